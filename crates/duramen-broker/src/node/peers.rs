//! # Room card: peers of a node
//!
//! Purpose:    the other nodes of the cluster: frames to them and from them.
//! Owns:       frames under construction, bytes on their way, ticks of groups with several voters, known leaders,
//!             requests to the metadata's leader.
//! Interface:  [`Node::on_peer`], [`Node::post`], [`Node::tick_peers`], [`Node::send_frames`], [`Node::leader_of`].
//! Invariants: a replica accepts a letter only if the letter names it, and comes from the directory that the placement
//!             names for the sender. Each node gets one frame a turn. Writes that a letter depends on go to storage
//!             before the letter leaves.
//! Never:      sockets; the meaning of letters to groups.
//! Tests:      `node/tests/peers.rs`; `duramen-sim`, scenario `cluster`.
//! Start at:   [`Node::on_peer`].

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;

use duramen_protocol::ErrorCode;
use duramen_protocol::messages::create_topics::CreatableTopic;
use duramen_protocol::wire::Uuid;
use duramen_storage::op::ReplicaId;
use duramen_storage::sabotage::{self, Bug};

use super::{Node, NodeOptions, Timer};
use crate::controller::image::Topic;
use crate::controller::quorum::peer_of;
use crate::controller::{Founder, METADATA_GROUP, METADATA_REPLICA};
use crate::event::{Action, LogRead, MENDING_TICKETS, MadeBy, ReadLog, RequestKey};
use crate::internal_topics;
use crate::limits::{
    ACQUAINTANCES_MAX, LEAD_SETTLED_TICKS, PEER_BEAT_TICKS, PEER_BYTES_IN_FLIGHT_MAX,
    PEER_LEADS_MAX, PEER_QUIET_TICKS, PEER_READS_MAX, PEER_SILENT_TICKS, TICK_US,
};
use crate::metadata_records::{MetadataRecord, PlacedReplica, RegisterBroker};
use crate::peer::{Frame, Heard, IdsGranted, Lead, Letter, PeerFrame, Reassigned, Useless};
use crate::raft::{APPENDED, GroupId, Outgoing, PayloadRead, ReadFor, TIMEOUT_NOW, letter_of};

/// State of the link to another node and back.
#[derive(Debug, Default)]
struct Link {
    /// Frames that were sent to the node.
    sent: u64,
    /// Frames that the node may not have yet, and the bytes of batches in each.
    in_flight: VecDeque<(u64, u64)>,
    bytes_in_flight: u64,
    /// Repeated acknowledgements of replicas here to its replicas. The next frame carries them; they cause no frame of
    /// their own before the next tick.
    said_again: BTreeMap<ReplicaId, Letter>,
    /// Latest frame heard from the node.
    heard: Heard,
    /// Version of this node's announcements that the node has heard.
    told: u64,
    /// Registered nodes that the node does not hear itself.
    unheard: Vec<i32>,
    /// True if the node is about to end.
    is_leaving: bool,
    /// True if the node gives up leadership because its disk is slow.
    has_slow_disk: bool,
    /// Lead of its wall clock over this node's when it was heard, in milliseconds, if it has reported its clock.
    ahead_ms: Option<i64>,
    /// True if the node gives up leadership because its disk is full.
    has_full_disk: bool,
    /// Ticks since a frame was sent to the node, and since the node was heard.
    quiet: u64,
    silent: u64,
}

/// Another node's announcement of a partition that it leads.
#[derive(Debug, Default)]
struct Told {
    term: u64,
    version: u64,
    peer_id: u64,
    lacking: Vec<u64>,
}

/// A block of producer ids that is another node's once it is committed.
#[derive(Debug)]
struct Grant {
    index: u64,
    broker_id: i32,
    ids: IdsGranted,
}

/// Requests for the leader of the metadata.
struct Asked {
    registrations: Vec<RegisterBroker>,
    ids: Vec<u64>,
    topics: Vec<String>,
    reassigned: Vec<Reassigned>,
    useless: Vec<Useless>,
}

/// See the room card.
#[derive(Debug)]
pub(crate) struct Peers {
    founders: Vec<Founder>,
    /// Replicas of metadata that spoke and are not known yet.
    acquaintances: BTreeMap<u64, PlacedReplica>,
    links: BTreeMap<i32, Link>,
    outbox: BTreeMap<i32, Frame>,
    /// Groups, but for the metadata group.
    ticked: BTreeSet<ReplicaId>,
    ticks: u64,
    /// Announcements of the partitions that this node leads, with the tick in which each began; the versions only grow.
    leads: BTreeMap<GroupId, (u64, Lead)>,
    /// The same in the order of versions.
    news: BTreeMap<u64, GroupId>,
    version: u64,
    /// Announcements of other nodes: the newest by term and version.
    led: BTreeMap<GroupId, Told>,
    /// Requests that wait for the first leader of a partition without a replica here.
    creators: BTreeMap<GroupId, Vec<RequestKey>>,
    /// The open question for producer ids.
    ids_wanted: Option<u64>,
    grants: Vec<Grant>,
    topics_wanted: BTreeSet<String>,
    /// Reads of entries that followers lack and that are not in memory, and the number of reads under way.
    reads: VecDeque<ReadLog>,
    reading: usize,
}

/// Returns this node's metadata replica, and the replicas that its group began with, sorted.
pub(super) fn metadata_replica(options: &NodeOptions) -> Result<(ReplicaId, Vec<u64>), String> {
    if options.founders.is_empty() {
        return Ok((METADATA_REPLICA, vec![METADATA_REPLICA.0]));
    }
    let mut ids: Vec<u64> = options.founders.iter().map(|founder| founder.peer_id).collect();
    ids.sort_unstable();
    if ids.first() == Some(&0) || ids.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err("a cluster's founders need different ids from 1".to_owned());
    }
    let own = peer_of(&options.founders, Uuid(options.facts.directory_id));
    Ok((ReplicaId(own), ids))
}

impl Peers {
    pub(super) fn new(founders: Vec<Founder>) -> Self {
        Self {
            founders,
            acquaintances: BTreeMap::new(),
            links: BTreeMap::new(),
            outbox: BTreeMap::new(),
            ticked: BTreeSet::new(),
            ticks: 0,
            leads: BTreeMap::new(),
            news: BTreeMap::new(),
            version: 0,
            led: BTreeMap::new(),
            creators: BTreeMap::new(),
            ids_wanted: None,
            grants: Vec::new(),
            topics_wanted: BTreeSet::new(),
            reads: VecDeque::new(),
            reading: 0,
        }
    }

    /// Asks for reads of entries that followers lack.
    pub(crate) fn read(&mut self, replica: ReplicaId, reads: &[PayloadRead]) {
        self.reads.extend(reads.iter().map(|wanted| ReadLog {
            replica,
            from: wanted.from,
            pass: wanted.pass,
            end: wanted.end,
            bytes_max: wanted.bytes,
            peer: Some(ReplicaId(wanted.peer)),
            ticket: wanted.ticket,
            made_by: MadeBy::Anything,
        }));
    }

    /// Asks for reads of batches that another node's damaged replica lacks.
    pub(super) fn read_for_mending(&mut self, wanted: ReadLog) {
        self.reads.push_back(wanted);
    }

    /// Begins reads, as many as may be under way at once: they share the disk with appends.
    pub(crate) fn begin_reads(&mut self, actions: &mut Vec<Action>) {
        while self.reading < PEER_READS_MAX
            && let Some(wanted) = self.reads.pop_front()
        {
            self.reading += 1;
            actions.push(Action::ReadLog(wanted));
        }
    }

    /// Tells whether there may be other nodes.
    pub(crate) fn may_be(&self) -> bool {
        !self.founders.is_empty()
    }

    /// Returns the founders of the cluster.
    pub(super) fn founders(&self) -> &[Founder] {
        &self.founders
    }

    /// Ticks since the start.
    pub(super) fn ticks(&self) -> u64 {
        self.ticks
    }

    /// Returns the replicas here, except the metadata group's.
    pub(super) fn ticked(&self) -> impl Iterator<Item = ReplicaId> {
        self.ticked.iter().copied()
    }

    /// Tells whether a node was silent for so long that clients are not told of it.
    pub(super) fn is_silent(&self, broker_id: i32) -> bool {
        self.links.get(&broker_id).is_some_and(|link| link.silent >= PEER_SILENT_TICKS)
    }

    /// Tells whether a node has reported that it does not hear another one.
    pub(super) fn says_unheard(&self, speaker: i32, broker_id: i32) -> bool {
        self.links.get(&speaker).is_some_and(|link| link.unheard.contains(&broker_id))
    }

    /// Tells whether a node was heard lately.
    pub(super) fn hears(&self, broker_id: i32) -> bool {
        self.links.get(&broker_id).is_some_and(|link| link.silent < PEER_SILENT_TICKS)
    }

    /// Returns for how many ticks a node was not heard, if it ever was.
    pub(crate) fn silent_ticks(&self, broker_id: i32) -> Option<u64> {
        let link = self.links.get(&broker_id).filter(|link| link.heard.number > 0)?;
        Some(link.silent)
    }

    /// Tells whether a node has reported that it is about to end.
    pub(super) fn leaves(&self, broker_id: i32) -> bool {
        self.links.get(&broker_id).is_some_and(|link| link.is_leaving)
    }

    /// Tells whether a node has reported a slow disk.
    pub(super) fn has_slow_disk(&self, broker_id: i32) -> bool {
        self.links.get(&broker_id).is_some_and(|link| link.has_slow_disk)
    }

    /// Returns the nodes that have reported their time, and the lead of each wall clock over this node's then.
    pub(super) fn clocks(&self) -> impl Iterator<Item = (i32, i64)> {
        self.links.iter().filter_map(|(&broker_id, link)| Some((broker_id, link.ahead_ms?)))
    }

    /// Tells whether a node has reported a full disk.
    pub(super) fn has_full_disk(&self, broker_id: i32) -> bool {
        self.links.get(&broker_id).is_some_and(|link| link.has_full_disk)
    }

    /// Returns the nodes that have reported a full disk.
    pub(super) fn full_disks(&self) -> impl Iterator<Item = i32> {
        self.links.iter().filter(|(_, link)| link.has_full_disk).map(|(id, _)| *id)
    }

    /// Returns the incarnation of a node's latest start that was heard.
    pub(super) fn incarnation_of(&self, broker_id: i32) -> Option<u64> {
        let link = self.links.get(&broker_id).filter(|link| link.heard.number > 0)?;
        Some(link.heard.incarnation)
    }

    /// Returns the frame that goes to a node at the end of the turn.
    pub(super) fn frame_to(&mut self, broker_id: i32) -> &mut Frame {
        self.outbox.entry(broker_id).or_default()
    }

    /// Begins to tick a replica that is here.
    pub(super) fn tick(&mut self, replica: ReplicaId) {
        self.ticked.insert(replica);
    }

    /// Forgets a replica that is gone. The leaders of the other replicas stay known, because clients ask any node.
    pub(super) fn forget(&mut self, replica: ReplicaId, group: GroupId) {
        self.ticked.remove(&replica);
        self.retract(group);
    }

    /// Retracts the announcement of a replica here: another replica leads, or none.
    fn retract(&mut self, group: GroupId) {
        if let Some((_, lead)) = self.leads.remove(&group) {
            self.news.remove(&lead.version);
        }
    }

    /// Forgets a topic that is gone, wherever its replicas were. Returns the requests that waited for leaders of its
    /// partitions.
    pub(super) fn forget_topic(&mut self, topic: &Topic) -> Vec<RequestKey> {
        let mut creators = Vec::new();
        for partition in (0..).take(topic.partitions.len()) {
            let group = GroupId { topic_id: topic.id.0, partition };
            self.led.remove(&group);
            creators.extend(self.creators.remove(&group).into_iter().flatten());
        }
        creators
    }

    /// Tells whether a replica of metadata belongs to the directory that speaks for it. If so, it can be answered,
    /// whether it is known or not.
    fn meet(&mut self, speaker: PlacedReplica) -> bool {
        let founder = self.founders.iter().find(|it| it.directory_id == speaker.directory_id.0);
        let is_it = speaker.peer_id == peer_of(&self.founders, speaker.directory_id)
            && founder.is_none_or(|founder| founder.broker_id == speaker.broker_id);
        let is_it = is_it || sabotage::is(Bug::WipedVotes);
        if is_it {
            if self.acquaintances.len() >= ACQUAINTANCES_MAX {
                self.acquaintances.clear();
            }
            self.acquaintances.insert(speaker.peer_id, speaker);
        }
        is_it
    }

    /// Announces to all nodes that a replica here leads now. A replica that lacked entries before still does, as far as
    /// is known.
    pub(crate) fn announce(&mut self, group: GroupId, (peer_id, term): (u64, u64)) {
        let own = self.leads.get(&group).map(|(_, lead)| &lead.lacking);
        let before = own.or_else(|| Some(&self.led.get(&group)?.lacking));
        let lacking = before.into_iter().flatten().copied().filter(|peer| *peer != peer_id);
        let lacking = lacking.collect();
        self.tell_all(group, self.ticks, Lead { term, peer_id, lacking, ..Lead::default() });
    }

    fn tell_all(&mut self, group: GroupId, since: u64, lead: Lead) {
        self.retract(group);
        self.version += 1;
        self.news.insert(self.version, group);
        let (topic_id, partition) = (Uuid(group.topic_id), group.partition);
        let lead = Lead { topic_id, partition, version: self.version, ..lead };
        self.leads.insert(group, (since, lead));
    }

    /// Tells whether the replicas of a partition that is led here had time to be heard.
    pub(super) fn is_settled(&self, group: GroupId) -> bool {
        self.leads.get(&group).is_some_and(|(since, _)| self.ticks >= since + LEAD_SETTLED_TICKS)
    }

    /// Returns the term in which a replica here leads a partition, as announced to all nodes.
    pub(super) fn announced(&self, group: GroupId) -> Option<u64> {
        self.leads.get(&group).map(|(_, lead)| lead.term)
    }

    /// Returns the replicas of a partition that lack something, as announced by its leader on another node.
    pub(super) fn told_lacking(&self, group: GroupId) -> &[u64] {
        self.led.get(&group).map_or(&[], |told| &told.lacking)
    }

    /// Announces to all nodes, if it is news, which replicas of a partition led here lack something.
    pub(super) fn announce_lacking(&mut self, group: GroupId, lacking: Vec<u64>) {
        let Some((since, lead)) = self.leads.get(&group) else { return };
        if lead.lacking != lacking {
            let (since, lead) = (*since, Lead { lacking, ..lead.clone() });
            self.tell_all(group, since, lead);
        }
    }

    /// Lets a request wait for the first leader of a partition, on another node.
    pub(crate) fn expect_leader(&mut self, group: GroupId, key: RequestKey) {
        self.creators.entry(group).or_default().push(key);
    }

    /// Notes that another node leads a partition. Returns the requests that waited for that.
    fn note_lead(&mut self, lead: &Lead) -> Vec<RequestKey> {
        let group = GroupId { topic_id: lead.topic_id.0, partition: lead.partition };
        let known = self.led.entry(group).or_default();
        // A frame may be late: within a term only one process leads, and counts its versions.
        if (lead.term, lead.version) > (known.term, known.version) {
            let Lead { term, version, peer_id, .. } = *lead;
            *known = Told { term, version, peer_id, lacking: lead.lacking.clone() };
        }
        if self.leads.get(&group).is_some_and(|(_, own)| own.term < lead.term) {
            self.retract(group);
        }
        self.creators.remove(&group).unwrap_or_default()
    }

    /// Forgets the blocks of producer ids that were proposed for others, because another leader decides now.
    pub(crate) fn forget_grants(&mut self) {
        self.grants.clear();
    }

    /// Grants the blocks of producer ids that are committed to the nodes that asked for them.
    pub(crate) fn grant(&mut self, applied: u64) {
        let is_ready = |grant: &Grant| grant.index <= applied || sabotage::is(Bug::IdsBeforeCommit);
        let (ready, open) = std::mem::take(&mut self.grants).into_iter().partition(is_ready);
        self.grants = open;
        for Grant { broker_id, ids, .. } in ready {
            self.outbox.entry(broker_id).or_default().ids_granted.push(ids);
        }
    }
}

/// Outgoing frames.
impl Node {
    /// Tells whether there may be other nodes.
    pub(crate) fn is_clustered(&self) -> bool {
        self.peers.may_be()
    }

    pub(super) fn schedule_ticks(&mut self) {
        if self.is_clustered() {
            self.timers.insert((self.now.mono_us + TICK_US, Timer::Peers));
        }
    }

    /// Ticks the groups of several voters. Missed ticks are not made up for, because they would end terms for nothing.
    pub(crate) fn tick_peers(&mut self) {
        self.schedule_ticks();
        self.is_controller_dirty |= self.controller.group.tick();
        self.tick_groups();
        self.peers.ticks += 1;
        for broker_id in self.other_brokers() {
            let link = self.peers.links.entry(broker_id).or_default();
            (link.quiet, link.silent) = (link.quiet + 1, link.silent + 1);
            if link.silent.is_multiple_of(2 * PEER_QUIET_TICKS) {
                // A node that does not answer has lost the frames, or will report the latest that it has.
                link.in_flight.clear();
                link.bytes_in_flight = 0;
            }
            if link.quiet >= PEER_BEAT_TICKS || !link.said_again.is_empty() {
                self.peers.outbox.entry(broker_id).or_default();
            }
        }
        if self.peers.ticks.is_multiple_of(PEER_QUIET_TICKS) {
            self.note_lacking();
            self.compare_clocks();
            self.ask_leader();
            self.tend_members();
            self.go_on_reassigning();
            self.tell_of_useless();
        }
    }

    pub(super) fn other_brokers(&self) -> BTreeSet<i32> {
        let registered = self.controller.image.brokers.keys().copied();
        let retired = &self.controller.image.retired;
        let acquaintances = self.peers.acquaintances.values();
        let acquaintances = acquaintances.filter(|it| !retired.contains(&it.directory_id));
        let acquaintances = acquaintances.map(|it| it.broker_id);
        let own = self.options.facts.broker_id;
        let introduced = if self.is_registered { &[][..] } else { &self.options.introduced };
        let all = self.founding_brokers().chain(registered).chain(acquaintances);
        let all = all.chain(introduced.iter().copied());
        all.filter(|id| *id != own).collect()
    }

    /// Returns the founders of the cluster that are not gone.
    pub(crate) fn founding_brokers(&self) -> impl Iterator<Item = i32> {
        let retired = &self.controller.image.retired;
        let founders = self.peers.founders.iter();
        let stays = |it: &&Founder| !retired.contains(&Uuid(it.directory_id));
        founders.filter(stays).map(|it| it.broker_id)
    }

    /// Queues a frame to every other node, if only to report that this one is there, and whether it is about to end.
    pub(super) fn say_something_to_all(&mut self) {
        for broker_id in self.other_brokers() {
            self.peers.outbox.entry(broker_id).or_default();
        }
    }

    /// Sends this node's requests to the leader of the metadata, again and again.
    fn ask_leader(&mut self) {
        let registration = (!self.is_registered).then(|| self.registration_record());
        let asks = registration.is_some() && self.options.replaces;
        let replacing = asks.then(|| self.own_directory());
        let Some(leader) = self.metadata_leader() else {
            // A node that has not joined yet knows no leader, so it asks all nodes: the leader is among them.
            for broker_id in self.other_brokers() {
                let frame = self.peers.frame_to(broker_id);
                frame.registrations.extend(registration.clone());
                frame.replacing.extend(replacing);
            }
            return;
        };
        if leader == self.options.facts.broker_id {
            return;
        }
        let frame = self.peers.outbox.entry(leader).or_default();
        frame.registrations.extend(registration);
        frame.replacing.extend(replacing);
        frame.ids_wanted.extend(self.peers.ids_wanted);
        frame.topics_wanted.extend(std::mem::take(&mut self.peers.topics_wanted));
    }

    /// Asks for a block of producer ids.
    pub(super) fn want_producer_ids(&mut self) -> Result<(), ErrorCode> {
        if self.metadata_leader().is_none() {
            return Err(ErrorCode::CoordinatorNotAvailable);
        }
        if self.peers.ids_wanted.is_none() {
            self.peers.ids_wanted = Some(self.chance.next());
            self.ask_leader();
        }
        Ok(())
    }

    /// Asks for a topic that the cluster makes by itself.
    pub(crate) fn want_topic(&mut self, name: &str) {
        self.peers.topics_wanted.insert(name.to_owned());
        self.ask_leader();
    }

    /// Puts messages of a group into the frames of this turn.
    pub(crate) fn post(&mut self, from: ReplicaId, group: GroupId, messages: &mut Vec<Outgoing>) {
        for Outgoing { message, payloads, can_wait } in messages.drain(..) {
            let to = message.to;
            let Some(broker_id) = self.placed(group, to).map(|placed| placed.broker_id) else {
                continue;
            };
            let bytes: u64 = payloads.iter().map(|payload| payload.len() as u64).sum();
            let link = self.peers.links.entry(broker_id).or_default();
            if bytes > 0 && link.bytes_in_flight >= PEER_BYTES_IN_FLIGHT_MAX {
                self.on_unreachable(from, to);
                continue;
            }
            let Some(letter) = letter_of(group, message, payloads) else { continue };
            if can_wait {
                link.said_again.insert(from, letter);
                continue;
            }
            if letter.kind == APPENDED {
                link.said_again.remove(&from);
            }
            link.bytes_in_flight += bytes;
            self.peers.outbox.entry(broker_id).or_default().letters.push(letter);
        }
    }

    fn on_unreachable(&mut self, from: ReplicaId, to: u64) {
        if from == self.controller.group.id() {
            self.controller.group.on_unreachable(to);
        } else if let Some(partition) = self.partitions.get_mut(&from) {
            partition.group.on_unreachable(to);
        }
    }

    /// Sends the frames of this turn.
    pub(crate) fn send_frames(&mut self) {
        if self.peers.outbox.is_empty() {
            return;
        }
        let unheard: Vec<i32> = self.unheard().collect();
        let has_full_disk = self.has_full_disk();
        // An earlier build knows of slow disks alone.
        let has_slow_disk = self.has_slow_disk() || has_full_disk;
        for (to, mut frame) in std::mem::take(&mut self.peers.outbox) {
            let link = self.peers.links.entry(to).or_default();
            link.sent += 1;
            link.quiet = 0;
            frame.letters.extend(std::mem::take(&mut link.said_again).into_values());
            frame.cluster_id = Uuid(self.options.facts.cluster_id);
            frame.broker_id = self.options.facts.broker_id;
            frame.directory_id = Uuid(self.options.facts.directory_id);
            frame.incarnation = self.options.seed;
            frame.number = link.sent;
            frame.heard = link.heard.clone();
            frame.heard.asleep = self.quiescence.known(to, link.heard.incarnation);
            frame.asleep = self.quiescence.tell(to, link.sent);
            frame.leads_after = link.told;
            frame.is_leaving = self.moves.is_draining();
            frame.has_slow_disk = has_slow_disk;
            frame.unheard.clone_from(&unheard);
            frame.wall_ms = self.now.wall_ms;
            frame.has_full_disk = has_full_disk;
            // A node that has heard all announcements costs nothing, however many there are.
            let after = (Bound::Excluded(link.told), Bound::Unbounded);
            let news = self.peers.news.range(after).take(PEER_LEADS_MAX);
            let leads = &self.peers.leads;
            frame.leads = news.map(|(_, group)| leads[group].1.clone()).collect();
            let payloads = frame.letters.iter().flat_map(|letter| &letter.payloads);
            let bytes: u64 = payloads.map(|payload| payload.len() as u64).sum();
            if bytes > 0 {
                link.in_flight.push_back((link.sent, bytes));
            }
            self.out.push(Action::Send { to, frame: Box::new(PeerFrame(frame)) });
        }
    }
}

/// Incoming frames.
impl Node {
    /// Takes a frame from another node. Parts that are not for this cluster, this node or its replicas are ignored.
    /// Takes the sender's state from a frame. Hands the frame back if this node knows the sender's directory.
    pub(crate) fn hear_of(&mut self, frame: Frame) -> Option<Frame> {
        if frame.cluster_id.0 != self.options.facts.cluster_id
            || frame.broker_id == self.options.facts.broker_id
        {
            self.counters.foreign_frames += 1;
            return None;
        }
        let known = self.directory_of(frame.broker_id);
        let is_known = known == Some(frame.directory_id);
        if is_known || known.is_none() {
            self.hear(&frame);
            for lead in &frame.leads {
                for key in self.peers.note_lead(lead) {
                    self.on_leader(key);
                }
            }
        }
        if !is_known {
            self.on_stranger(frame);
            return None;
        }
        self.on_moves_wanted(&frame);
        Some(frame)
    }

    /// Takes everything in a frame but the sender's state and forwarded requests.
    pub(crate) fn on_frame(&mut self, frame: Frame) {
        self.on_ranges(&frame);
        self.on_prefixes(&frame);
        self.on_transaction_calls(&frame);
        self.on_burial_calls(&frame);
        self.on_share_frames(&frame);
        for letter in frame.letters {
            self.on_letter(frame.broker_id, frame.directory_id, letter);
        }
        let sender = (frame.broker_id, frame.incarnation);
        self.on_asleep(sender, frame.directory_id, frame.asleep);
        let asked = Asked {
            registrations: frame.registrations,
            ids: frame.ids_wanted,
            topics: frame.topics_wanted,
            reassigned: frame.reassigned,
            useless: frame.useless,
        };
        self.serve_peer(frame.broker_id, frame.directory_id, &asked);
        for stranger in &frame.strangers {
            let replaces = frame.replacing.contains(&stranger.directory_id);
            self.admit(stranger, replaces);
        }
        for ids in frame.ids_granted {
            if self.peers.ids_wanted == Some(ids.nonce) && ids.first < ids.end {
                self.peers.ids_wanted = None;
                self.producer_ids = (ids.first, ids.end);
                self.grant_producer_ids();
            }
        }
    }

    /// Takes a frame from a directory that is not its node's, as far as this node knows. The metadata may be ahead of
    /// this node's copy, and know the directory.
    fn on_stranger(&mut self, mut frame: Frame) {
        self.counters.foreign_frames += 1;
        for letter in std::mem::take(&mut frame.letters) {
            if letter.topic_id.0 == METADATA_GROUP.topic_id {
                self.on_letter(frame.broker_id, frame.directory_id, letter);
            }
        }
        let is_own = |it: &RegisterBroker| {
            it.broker_id == frame.broker_id && it.directory_id == frame.directory_id
        };
        let replaces = frame.replacing.contains(&frame.directory_id);
        let Some(registration) = frame.registrations.into_iter().find(is_own) else { return };
        if self.controller.group.is_serving() {
            return self.admit(&registration, replaces);
        }
        // The directory knows the founders, and none of them may lead any more.
        let leader = self.metadata_leader().filter(|id| *id != self.options.facts.broker_id);
        if let Some(leader) = leader {
            let to_leader = self.peers.frame_to(leader);
            to_leader.replacing.extend(replaces.then_some(registration.directory_id));
            to_leader.strangers.push(registration);
        }
    }

    fn hear(&mut self, frame: &Frame) {
        let own = self.options.seed;
        let link = self.peers.links.entry(frame.broker_id).or_default();
        link.silent = 0;
        if frame.number > link.heard.number || frame.incarnation != link.heard.incarnation {
            link.unheard.clone_from(&frame.unheard);
        }
        link.is_leaving = frame.is_leaving;
        link.has_slow_disk = frame.has_slow_disk;
        link.has_full_disk = frame.has_full_disk;
        let heard = &mut link.heard;
        if heard.incarnation != frame.incarnation {
            *heard = Heard { incarnation: frame.incarnation, ..Heard::default() };
        }
        if frame.number >= heard.number {
            let wall_ms = Some(frame.wall_ms).filter(|it| *it > 0);
            link.ahead_ms = wall_ms.map(|it| it.saturating_sub(self.now.wall_ms));
        }
        heard.number = heard.number.max(frame.number);
        if frame.leads_after <= heard.leads {
            let last = frame.leads.last().map_or(0, |lead| lead.version);
            heard.leads = heard.leads.max(last);
        }
        if frame.heard.incarnation != own {
            // The node was restarted since, or has not heard this node yet.
            link.told = 0;
            return;
        }
        link.told = frame.heard.leads;
        self.quiescence.on_heard(frame.broker_id, frame.heard.number, frame.heard.asleep);
        while let Some(&(number, bytes)) = link.in_flight.front() {
            if number > frame.heard.number {
                break;
            }
            link.in_flight.pop_front();
            link.bytes_in_flight = link.bytes_in_flight.saturating_sub(bytes);
        }
    }

    fn on_letter(&mut self, broker_id: i32, sender: Uuid, letter: Letter) {
        let group = GroupId { topic_id: letter.topic_id.0, partition: letter.partition };
        let is_from = if group == METADATA_GROUP {
            self.peers.meet(PlacedReplica { peer_id: letter.from, broker_id, directory_id: sender })
        } else {
            self.placed(group, letter.from).is_some_and(|it| it.directory_id == sender)
        };
        if !is_from {
            self.counters.foreign_letters += 1;
            return;
        }
        // A node that is about to end does not begin to lead.
        if letter.kind == TIMEOUT_NOW && self.moves.is_draining() {
            return;
        }
        // The sender will try again; the requests that wait for room here came first.
        if !letter.payloads.is_empty() && self.bytes_in_flight > self.options.bytes_in_flight_max {
            return;
        }
        if group == METADATA_GROUP {
            if letter.to == self.controller.group.id().0 {
                self.controller.group.on_letter(letter);
                self.is_controller_dirty = true;
            }
            return;
        }
        let Some(partition) = self.partitions.get_mut(&ReplicaId(letter.to)) else { return };
        if partition.id != group {
            self.counters.foreign_letters += 1;
            return;
        }
        if let Some(given) = partition.group.given_by(&letter) {
            return self.on_prefixed(broker_id, letter, given);
        }
        let before = partition.group.bytes_in_flight();
        partition.group.on_letter(letter);
        self.bytes_in_flight += partition.group.bytes_in_flight().saturating_sub(before);
        super::mark(&mut self.dirty, partition);
    }

    /// Serves another node's requests to the leader of the metadata. If this node does not lead it, the other asks
    /// again.
    fn serve_peer(&mut self, broker_id: i32, directory_id: Uuid, asked: &Asked) {
        if !self.controller.group.is_serving() {
            return;
        }
        for registration in &asked.registrations {
            let known = self.controller.image.brokers.get(&broker_id);
            let is_new = known.is_none_or(|known| known != registration);
            let is_own =
                registration.broker_id == broker_id && registration.directory_id == directory_id;
            if is_new && is_own {
                let record = MetadataRecord::RegisterBroker(registration.clone());
                self.propose_for_peer(&[record]);
            }
        }
        for &nonce in &asked.ids {
            if self.peers.grants.iter().any(|grant| grant.ids.nonce == nonce) {
                continue;
            }
            let cluster_id = self.options.facts.cluster_id;
            let block = self.controller.allocate_producer_ids(cluster_id, broker_id);
            let (first, end, record) = block;
            if let Some(index) = self.propose_for_peer(&[record]) {
                let ids = IdsGranted { nonce, first, end };
                self.peers.grants.push(Grant { index, broker_id, ids });
            }
        }
        for name in &asked.topics {
            self.make_topic(name);
        }
        self.finish_reassignments(&asked.reassigned);
        self.replace_useless((broker_id, directory_id), &asked.useless);
    }

    /// Returns an internal topic to make, if the cluster makes it now.
    pub(crate) fn topic_to_make(&self, name: &str) -> Option<CreatableTopic> {
        let there = self.controller.image.staying().count();
        let expected = self.founding_brokers().count();
        internal_topics::to_make(name, &self.options.settings, there, expected)
    }

    /// Makes the topic, or has it made.
    pub(crate) fn make_or_want_topic(&mut self, name: &str) {
        if self.metadata_leader() == Some(self.options.facts.broker_id) {
            self.make_topic_here(name);
        } else {
            self.want_topic(name);
        }
    }

    /// Proposes the topic, unless it is proposed already. Returns the index to wait for.
    pub(crate) fn make_topic_here(&mut self, name: &str) -> Option<u64> {
        if let Some(index) = self.controller.creating(name) {
            return Some(index);
        }
        let topic = self.topic_to_make(name)?;
        let made = self.controller.create_topic(&topic, &self.options.settings);
        let proposed = match made {
            Ok(creation) => self
                .controller
                .propose(self.now, &creation.records)
                .map_err(|code| code.to_string()),
            Err(error) => Err(error.message),
        };
        match proposed {
            Ok(index) => {
                self.mark_controller_dirty();
                Some(index)
            }
            Err(problem) => {
                tracing::warn!(
                    problem,
                    "this node cannot serve coordinators: it cannot create {name}"
                );
                None
            }
        }
    }

    fn make_topic(&mut self, name: &str) {
        let may =
            internal_topics::is_internal(name) || self.options.settings.auto_create_topics_enable;
        let image = &self.controller.image;
        if !may || image.topic_named(name).is_some() || self.controller.creating(name).is_some() {
            return;
        }
        let topic = self.topic_to_make(name);
        let made = topic.map(|it| self.controller.create_topic(&it, &self.options.settings));
        if let Some(Ok(creation)) = made {
            self.propose_for_peer(&creation.records);
        }
    }

    pub(super) fn propose_for_peer(&mut self, records: &[MetadataRecord]) -> Option<u64> {
        let index = self.controller.propose(self.now, records).ok()?;
        self.is_controller_dirty = true;
        Some(index)
    }

    /// Takes the payload that was read for a follower.
    pub(crate) fn on_payload(&mut self, read: LogRead) {
        self.peers.reading -= 1;
        if self.feeds.serves(read.ticket) {
            return self.on_prefix_read(read);
        }
        if read.ticket >= MENDING_TICKETS {
            return self.on_range_read(read);
        }
        let LogRead { replica, from, peer, ticket, begins_segment, batches } = read;
        let Some(ReplicaId(peer)) = peer else { return };
        let read = ReadFor { peer, ticket, from, begins_segment, batches };
        if replica == self.controller.group.id() {
            self.controller.group.on_read(read);
            self.is_controller_dirty = true;
        } else if let Some(partition) = self.partitions.get_mut(&replica) {
            partition.group.on_read(read);
            super::mark(&mut self.dirty, partition);
        }
    }
}

/// Places of replicas and nodes.
impl Node {
    /// Returns the places of all peers of a group.
    pub(super) fn placed_all(&self, group: GroupId) -> Vec<PlacedReplica> {
        if group == METADATA_GROUP {
            let ids = self.controller.group.voter_ids().iter();
            return ids.filter_map(|&peer_id| self.placed(group, peer_id)).collect();
        }
        let topic = self.controller.image.topic(Uuid(group.topic_id));
        let index = usize::try_from(group.partition).unwrap_or(usize::MAX);
        topic.and_then(|topic| topic.partitions.get(index)).cloned().unwrap_or_default()
    }

    /// Returns the place of a peer of a group.
    pub(crate) fn placed(&self, group: GroupId, peer_id: u64) -> Option<PlacedReplica> {
        if group == METADATA_GROUP {
            let founders = &self.peers.founders;
            let founder = founders.iter().find(|it| it.peer_id == peer_id);
            let founder = founder.map(|it| (it.broker_id, Uuid(it.directory_id)));
            let registered = || {
                let mut all = self.controller.image.brokers.values();
                let found = all.find(|it| peer_of(founders, it.directory_id) == peer_id);
                found.map(|it| (it.broker_id, it.directory_id))
            };
            let acquainted = || self.peers.acquaintances.get(&peer_id).cloned();
            let placed =
                |(broker_id, directory_id)| PlacedReplica { peer_id, broker_id, directory_id };
            return founder.or_else(registered).map(placed).or_else(acquainted);
        }
        let topic = self.controller.image.topic(Uuid(group.topic_id))?;
        let replicas = topic.partitions.get(usize::try_from(group.partition).ok()?)?;
        replicas.iter().find(|placed| placed.peer_id == peer_id).cloned()
    }

    /// Returns the directory that is a node, as far as this one knows.
    pub(super) fn directory_of(&self, broker_id: i32) -> Option<Uuid> {
        let registered = self.controller.image.brokers.get(&broker_id).map(|it| it.directory_id);
        registered.or_else(|| {
            let founder = self.peers.founders.iter().find(|it| it.broker_id == broker_id);
            let directory_id = founder.map(|founder| Uuid(founder.directory_id));
            directory_id.filter(|id| !self.controller.image.retired.contains(id))
        })
    }

    /// Returns the registered nodes for clients: this node, and the nodes that were heard lately. A node that hears no
    /// majority returns all of them. It is cut off itself, and clients that forgot the others could not leave it.
    pub(crate) fn live_brokers(&self) -> impl Iterator<Item = (i32, &RegisterBroker)> {
        let is_cut_off = self.is_cut_off();
        let all = self.controller.image.brokers.iter().map(|(&id, broker)| (id, broker));
        all.filter(move |(id, _)| is_cut_off || !self.peers.is_silent(*id))
    }

    /// Returns the registered nodes that this one has not heard lately.
    pub(crate) fn unheard(&self) -> impl Iterator<Item = i32> {
        let all = self.controller.image.brokers.keys().copied();
        all.filter(move |id| self.peers.is_silent(*id))
    }

    /// Tells whether this node hears no majority of all nodes, itself among them, and knows no leader of the metadata.
    fn is_cut_off(&self) -> bool {
        let all = self.controller.image.brokers.len();
        2 * (all - self.unheard().count()) <= all && self.metadata_leader().is_none()
    }

    /// Tells whether clients may learn of a leader on a node: the node was heard lately, or this node is cut off
    /// itself.
    pub(crate) fn may_lead(&self, broker_id: i32) -> bool {
        !self.peers.is_silent(broker_id) || self.is_cut_off()
    }

    /// Returns the node that leads the metadata, as far as this one knows.
    pub(crate) fn metadata_leader(&self) -> Option<i32> {
        if !self.is_clustered() {
            return Some(self.options.facts.broker_id);
        }
        let leader = self.controller.group.leader()?;
        self.placed(METADATA_GROUP, leader).map(|placed| placed.broker_id)
    }

    /// Returns the node that leads a partition, and its leader epoch. Both come from the replica here or from
    /// announcements, whichever has the highest term.
    pub(crate) fn leader_of(&self, topic: &Topic, index: i32) -> Option<(i32, i32)> {
        let replica = self.local_replica(topic, index);
        let partition = replica.and_then(|replica| self.partitions.get(&replica));
        let group = GroupId { topic_id: topic.id.0, partition: index };
        let here = partition.map(|it| &it.group).and_then(|it| Some((it.term(), it.leader()?)));
        let told = self.peers.led.get(&group).map(|told| (told.term, told.peer_id));
        let (term, leader) = here.max(told)?;
        let is_own = partition.is_some_and(|partition| partition.group.id().0 == leader);
        if is_own && !partition.is_some_and(|partition| partition.group.is_serving()) {
            return None;
        }
        let placed = self.placed(group, leader)?;
        Some((placed.broker_id, i32::try_from(term).unwrap_or(i32::MAX)))
    }

    /// Tells whether a partition without a replica here had no leader yet, and is about to have one. The node of its
    /// first replica, which stands for election first, is heard.
    pub(super) fn is_to_be_led_elsewhere(&self, group: GroupId) -> bool {
        let topic = self.controller.image.topic(Uuid(group.topic_id));
        let placed = topic.zip(usize::try_from(group.partition).ok());
        let replicas = placed.and_then(|(topic, index)| topic.partitions.get(index));
        let own = self.own_directory();
        !self.peers.led.contains_key(&group)
            && replicas.is_some_and(|all| {
                all.iter().all(|it| it.directory_id != own)
                    && all.first().is_some_and(|first| self.peers.hears(first.broker_id))
            })
    }
}
