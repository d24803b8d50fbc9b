//! # Room card: peers of a node
//!
//! Purpose:    the other nodes of the cluster: frames to them and from them.
//! Owns:       frames under construction, bytes on their way, ticks of groups with several voters, known leaders,
//!             requests to the metadata's leader.
//! Interface:  [`Peers::frame_to`], [`Core::post`], [`Core::hear`], [`Core::fill_frame`]; `turn/frames.rs` hands the
//!             rest of a frame to its rooms.
//! Invariants: a replica accepts a letter only if the letter names it, and comes from the directory that the placement
//!             names for the sender. Each node gets one frame a turn. Writes that a letter depends on go to storage
//!             before the letter leaves.
//! Never:      sockets; the meaning of letters to groups.
//! Tests:      `node/tests/peers.rs`; `duramen-sim`, scenario `cluster`.
//! Start at:   [`Core::hear`], then [`Core::fill_frame`].

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;

use duramen_protocol::ErrorCode;
use duramen_protocol::wire::Uuid;
use duramen_storage::op::ReplicaId;
use duramen_storage::sabotage::{self, Bug};

use super::{Core, NodeOptions, Timer};
use crate::controller::image::Topic;
use crate::controller::quorum::peer_of;
use crate::controller::{Founder, METADATA_REPLICA};
use crate::event::{Action, ReadLog, RequestKey};
use crate::limits::{
    ACQUAINTANCES_MAX, LEAD_SETTLED_TICKS, PEER_BEAT_TICKS, PEER_BYTES_IN_FLIGHT_MAX,
    PEER_LEADS_MAX, PEER_QUIET_TICKS, PEER_READS_MAX, PEER_SILENT_TICKS, TICK_US,
};
use crate::metadata_records::{MetadataRecord, PlacedReplica};
use crate::peer::{Frame, Heard, IdsGranted, KNOWS_STRETCHES, Lead, Letter};
use crate::raft::{APPENDED, GroupId, Outgoing, letter_of};

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
    /// Bits of what the node's build knows.
    knows: i64,
    /// Ticks since a frame was sent to the node, and since the node was heard.
    quiet: u64,
    silent: u64,
    /// Time at which the node was heard last, in monotonic microseconds. Ticks do not tell: a process that stood still
    /// has counted none.
    heard_us: Option<u64>,
}

/// Another node's announcement of a partition that it leads.
#[derive(Debug, Default)]
pub(super) struct Told {
    pub(super) term: u64,
    version: u64,
    pub(super) peer_id: u64,
    lacking: Vec<u64>,
}

/// A block of producer ids that is another node's once it is committed.
#[derive(Debug)]
struct Grant {
    index: u64,
    broker_id: i32,
    ids: IdsGranted,
}

/// See the room card.
#[derive(Debug, Default)]
pub(crate) struct Peers {
    pub(super) founders: Vec<Founder>,
    /// Replicas of metadata that spoke and are not known yet.
    pub(super) acquaintances: BTreeMap<u64, PlacedReplica>,
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
    pub(super) led: BTreeMap<GroupId, Told>,
    /// Requests that wait for the first leader of a partition without a replica here.
    creators: BTreeMap<GroupId, Vec<RequestKey>>,
    /// The open question for producer ids.
    ids_wanted: Option<u64>,
    grants: Vec<Grant>,
    topics_wanted: BTreeSet<String>,
    /// Nodes that this one speaks to without TLS.
    pub(crate) plain: BTreeSet<i32>,
    /// Reads of entries that followers lack and that are not in memory, and the number of reads under way.
    reads: VecDeque<ReadLog>,
    reading: usize,
}

/// Returns this node's metadata replica, and the replicas that its group began with, sorted.
pub(crate) fn metadata_replica(options: &NodeOptions) -> Result<(ReplicaId, Vec<u64>), String> {
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
    pub(crate) fn new(founders: Vec<Founder>) -> Self {
        Self { founders, ..Self::default() }
    }

    /// Asks for a read of batches that another node's replica lacks.
    pub(crate) fn read(&mut self, wanted: ReadLog) {
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
        assert!(self.reading <= PEER_READS_MAX, "few reads share the disk with appends");
    }

    /// Tells whether there may be other nodes.
    pub(crate) fn may_be(&self) -> bool {
        !self.founders.is_empty()
    }

    /// Returns the founders of the cluster.
    pub(crate) fn founders(&self) -> &[Founder] {
        &self.founders
    }

    /// Ticks since the start.
    pub(crate) fn ticks(&self) -> u64 {
        self.ticks
    }

    /// Returns the replicas here, except the metadata group's.
    pub(crate) fn ticked(&self) -> impl Iterator<Item = ReplicaId> {
        self.ticked.iter().copied()
    }

    /// Tells whether a node was silent for so long that clients are not told of it.
    pub(crate) fn is_silent(&self, broker_id: i32) -> bool {
        self.links.get(&broker_id).is_some_and(|link| link.silent >= PEER_SILENT_TICKS)
    }

    /// Tells whether a node has reported that it does not hear another one.
    pub(crate) fn says_unheard(&self, speaker: i32, broker_id: i32) -> bool {
        self.links.get(&speaker).is_some_and(|link| link.unheard.contains(&broker_id))
    }

    /// Returns the bits of what a node's build knows; none before the node was heard.
    pub(crate) fn knows(&self, broker_id: i32) -> i64 {
        self.links.get(&broker_id).map_or(0, |link| link.knows)
    }

    /// Tells whether a node was heard lately.
    pub(crate) fn hears(&self, broker_id: i32) -> bool {
        self.links.get(&broker_id).is_some_and(|link| link.silent < PEER_SILENT_TICKS)
    }

    /// Returns the time at which a node was heard last, in monotonic microseconds.
    pub(crate) fn heard_us(&self, broker_id: i32) -> Option<u64> {
        self.links.get(&broker_id).and_then(|link| link.heard_us)
    }

    /// Notes that the machine was suspended: all words are older by that time.
    pub(crate) fn note_suspended(&mut self, us: u64) {
        for link in self.links.values_mut() {
            link.heard_us = link.heard_us.and_then(|it| it.checked_sub(us));
        }
    }

    /// Returns for how many ticks a node was not heard, if it ever was.
    pub(crate) fn silent_ticks(&self, broker_id: i32) -> Option<u64> {
        let link = self.links.get(&broker_id).filter(|link| link.heard.number > 0)?;
        Some(link.silent)
    }

    /// Tells whether a node has reported that it is about to end.
    pub(crate) fn leaves(&self, broker_id: i32) -> bool {
        self.links.get(&broker_id).is_some_and(|link| link.is_leaving)
    }

    /// Tells whether a node has reported a slow disk.
    pub(crate) fn has_slow_disk(&self, broker_id: i32) -> bool {
        self.links.get(&broker_id).is_some_and(|link| link.has_slow_disk)
    }

    /// Returns the nodes that have reported their time, and the lead of each wall clock over this node's then.
    pub(crate) fn clocks(&self) -> impl Iterator<Item = (i32, i64)> {
        self.links.iter().filter_map(|(&broker_id, link)| Some((broker_id, link.ahead_ms?)))
    }

    /// Tells whether a node has reported a full disk.
    pub(crate) fn has_full_disk(&self, broker_id: i32) -> bool {
        self.links.get(&broker_id).is_some_and(|link| link.has_full_disk)
    }

    /// Returns the nodes that have reported a full disk.
    pub(crate) fn full_disks(&self) -> impl Iterator<Item = i32> {
        self.links.iter().filter(|(_, link)| link.has_full_disk).map(|(id, _)| *id)
    }

    /// Returns the incarnation of a node's latest start that was heard.
    pub(crate) fn incarnation_of(&self, broker_id: i32) -> Option<u64> {
        let link = self.links.get(&broker_id).filter(|link| link.heard.number > 0)?;
        Some(link.heard.incarnation)
    }

    /// Returns the frame that goes to a node at the end of the turn.
    pub(crate) fn frame_to(&mut self, broker_id: i32) -> &mut Frame {
        self.outbox.entry(broker_id).or_default()
    }

    /// Begins to tick a replica that is here.
    pub(crate) fn tick(&mut self, replica: ReplicaId) {
        self.ticked.insert(replica);
    }

    /// Forgets a replica that is gone. The leaders of the other replicas stay known, because clients ask any node.
    pub(crate) fn forget(&mut self, replica: ReplicaId, group: GroupId) {
        self.ticked.remove(&replica);
        self.retract(group);
    }

    /// Retracts the announcement of a replica here: another replica leads, or none.
    fn retract(&mut self, group: GroupId) {
        if let Some((_, lead)) = self.leads.remove(&group) {
            let before = self.news.remove(&lead.version);
            assert_eq!(before, Some(group), "an announcement stands in its order");
        }
    }

    /// Forgets a topic that is gone, wherever its replicas were. Returns the requests that waited for leaders of its
    /// partitions.
    pub(crate) fn forget_topic(&mut self, topic: &Topic) -> Vec<RequestKey> {
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
    pub(crate) fn meet(&mut self, speaker: PlacedReplica) -> bool {
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
        assert_eq!(self.leads.len(), self.news.len(), "each announcement stands in its order");
    }

    /// Tells whether the replicas of a partition that is led here had time to be heard.
    pub(crate) fn is_settled(&self, group: GroupId) -> bool {
        self.leads.get(&group).is_some_and(|(since, _)| self.ticks >= since + LEAD_SETTLED_TICKS)
    }

    /// Returns the term in which a replica here leads a partition, as announced to all nodes.
    pub(crate) fn announced(&self, group: GroupId) -> Option<u64> {
        self.leads.get(&group).map(|(_, lead)| lead.term)
    }

    /// Returns the replicas of a partition that lack something, as announced by its leader on another node.
    pub(crate) fn told_lacking(&self, group: GroupId) -> &[u64] {
        self.led.get(&group).map_or(&[], |told| &told.lacking)
    }

    /// Announces to all nodes, if it is news, which replicas of a partition led here lack something.
    pub(crate) fn announce_lacking(&mut self, group: GroupId, lacking: Vec<u64>) {
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
    pub(crate) fn note_lead(&mut self, lead: &Lead) -> Vec<RequestKey> {
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

    /// Checks the announcements and the questions to the leader of the metadata, at the end of a turn.
    pub(crate) fn inspect(&self) {
        debug_assert!(
            self.news.iter().all(|(version, group)| {
                self.leads.get(group).is_some_and(|(_, lead)| lead.version == *version)
            }),
            "each announcement stands in the order of versions"
        );
        assert!(
            self.news.last_key_value().is_none_or(|(latest, _)| *latest <= self.version),
            "versions only grow"
        );
        assert!(
            self.acquaintances.len() <= ACQUAINTANCES_MAX,
            "few replicas of metadata are remembered that are not known yet"
        );
    }

    /// Takes the frames of this turn.
    pub(crate) fn take_frames(&mut self) -> BTreeMap<i32, Frame> {
        std::mem::take(&mut self.outbox)
    }

    /// Notes that a read for another node has ended.
    pub(crate) fn end_read(&mut self) {
        self.reading -= 1;
    }

    /// Tells whether a block of producer ids answers this node's open question, which then is closed.
    pub(crate) fn is_wanted(&mut self, ids: &IdsGranted) -> bool {
        let is_it = self.ids_wanted == Some(ids.nonce) && ids.first < ids.end;
        if is_it {
            self.ids_wanted = None;
        }
        is_it
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
impl Core {
    /// Tells whether there may be other nodes.
    pub(crate) fn is_clustered(&self) -> bool {
        self.peers.may_be()
    }

    pub(crate) fn schedule_ticks(&mut self) {
        if self.is_clustered() {
            self.timers.insert((self.now.mono_us + TICK_US, Timer::Peers));
        }
    }

    pub(crate) fn other_brokers(&self) -> BTreeSet<i32> {
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
    pub(crate) fn say_something_to_all(&mut self) {
        for broker_id in self.other_brokers() {
            self.peers.outbox.entry(broker_id).or_default();
        }
    }

    /// Sends this node's requests to the leader of the metadata, again and again.
    pub(crate) fn ask_leader(&mut self) {
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
    pub(crate) fn want_producer_ids(&mut self) -> Result<(), ErrorCode> {
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

    /// Counts a tick of every link.
    pub(crate) fn tick_links(&mut self) {
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
    }

    /// Writes the sender, the state of the link, announcements and repeated acknowledgements into a frame that is about
    /// to leave.
    pub(crate) fn fill_frame(&mut self, to: i32, frame: &mut Frame) {
        let facts = &self.options.facts;
        let link = self.peers.links.entry(to).or_default();
        link.sent += 1;
        link.quiet = 0;
        frame.letters.extend(std::mem::take(&mut link.said_again).into_values());
        frame.cluster_id = Uuid(facts.cluster_id);
        frame.broker_id = facts.broker_id;
        frame.directory_id = Uuid(facts.directory_id);
        frame.incarnation = self.options.seed;
        frame.number = link.sent;
        frame.heard = link.heard.clone();
        frame.leads_after = link.told;
        frame.wall_ms = self.now.wall_ms;
        frame.knows = KNOWS_STRETCHES;
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
    }

    /// Takes the state of the sender and of the link from a frame. Tells whether the sender has heard this process.
    pub(crate) fn hear(&mut self, frame: &Frame) -> bool {
        let own = self.options.seed;
        let link = self.peers.links.entry(frame.broker_id).or_default();
        (link.silent, link.heard_us) = (0, Some(self.now.mono_us));
        if frame.number > link.heard.number || frame.incarnation != link.heard.incarnation {
            link.unheard.clone_from(&frame.unheard);
        }
        link.is_leaving = frame.is_leaving;
        link.has_slow_disk = frame.has_slow_disk;
        link.has_full_disk = frame.has_full_disk;
        link.knows = frame.knows;
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
            return false;
        }
        link.told = frame.heard.leads;
        while let Some(&(number, bytes)) = link.in_flight.front() {
            if number > frame.heard.number {
                break;
            }
            link.in_flight.pop_front();
            link.bytes_in_flight = link.bytes_in_flight.saturating_sub(bytes);
        }
        true
    }

    /// Allocates a block of producer ids for another node, unless it is under way already.
    pub(crate) fn allocate_for_peer(&mut self, broker_id: i32, nonce: u64) {
        if self.peers.grants.iter().any(|grant| grant.ids.nonce == nonce) {
            return;
        }
        let cluster_id = self.options.facts.cluster_id;
        let block = self.controller.allocate_producer_ids(cluster_id, broker_id);
        let (first, end, record) = block;
        if let Some(index) = self.propose_for_peer(&[record]) {
            let ids = IdsGranted { nonce, first, end };
            self.peers.grants.push(Grant { index, broker_id, ids });
        }
    }

    fn on_unreachable(&mut self, from: ReplicaId, to: u64) {
        if from == self.controller.group.id() {
            self.controller.group.on_unreachable(to);
        } else if let Some(partition) = self.partitions.get_mut(&from) {
            partition.group.on_unreachable(to);
        }
    }
}

/// Incoming frames.
impl Core {
    pub(crate) fn propose_for_peer(&mut self, records: &[MetadataRecord]) -> Option<u64> {
        self.propose(records).ok()
    }
}
