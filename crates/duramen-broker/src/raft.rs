//! # Room card: group
//!
//! Purpose:    one Raft group on this node: its inputs, and its identity to others.
//! Owns:       the in-memory log the library reads, payload until storage has it, every call into the library, the
//!             failure of a group. Its outputs are in `turn`.
//! Interface:  [`Group::propose_batch`], [`Group::propose_internal`], [`Group::on_persisted`], [`Group::on_letter`],
//!             [`Group::tick`], [`Group::collect`], [`Group::is_serving`].
//! Invariants: entries are proposed only as leader, and their base offset comes from the last entry of the log. After a
//!             panic of the library the group is failed and never used again.
//! Never:      the meaning of entries; offsets in responses.
//! Tests:      `raft/tests.rs`, with three groups that exchange messages; those of `node`.
//! Start at:   [`Group::propose_batch`], then `raft/turn.rs`.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};

use bytes::Bytes;
use catching_up::CatchingUp;
use confirming::Confirming;
use duramen_storage::Descriptor;
use duramen_storage::history::History;
use duramen_storage::op::{
    Beginning, ConfState, Content, Given, HardState, OpKind, RecoveredReplica, ReplicaId, TermRun,
};
use duramen_storage::sabotage::{self, Bug};
use log::{GroupLog, TAG_BATCH, TAG_INTERNAL};
use moving::Moving;
use raft::eraftpb::{Entry, Message, MessageType};
use raft::{RawNode, StateRole};
use shared::Late;
use shipping::Shipping;
use sleeping::Sleeping;
use turn::InFlight;

use crate::limits::{
    ELECTION_TICKS, GROUP_UNCOMMITTED_MAX, HEARTBEAT_TICKS, LAG_TICKS, Memory, TERM_MAX,
};
use crate::peer::Letter;
use crate::prng::Prng;

mod brief;
mod catching_up;
mod confirming;
mod exchange;
mod hearing;
mod inspection;
mod lag;
mod letters;
mod log;
mod membership;
mod moving;
mod settling;
mod shared;
mod shipping;
mod sleeping;
mod snapshots;
mod standing;
mod turn;
pub(crate) use confirming::{Doubt, Unsure};
pub(crate) use exchange::{GroupId, Outgoing, PayloadRead, ReadFor};
pub(crate) use letters::{APPENDED, TIMEOUT_NOW, letter_of};
pub(crate) use log::internal_of;
pub(crate) use membership::Approach;
pub(crate) use sleeping::Doze;
pub(crate) use turn::Turn;

/// The index before the first entry of every group, so that an empty replica is always told from
/// one that has seen the first entry.
pub(crate) const BORN_INDEX: u64 = 1;
const BORN_TERM: u64 = 1;
/// Ticket of [`OpKind::Create`]; those of `Ready`s start at 1.
const CREATE_TICKET: u64 = 0;

/// Why a proposal was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// This replica does not lead, or does not serve yet.
    NotLeader,
    /// The group has failed.
    Failed,
    /// Too much waits for its followers.
    Full,
}

/// Pace of the replicas, as the leader sees it.
#[derive(Debug, Default)]
struct Pace {
    ticks: u64,
    /// Until then this replica does not stand for election.
    aside_until: u64,
    /// Commit indexes at the last sample and at the one before.
    commits: (u64, u64),
    /// The tick at which a peer was heard last.
    heard: BTreeMap<u64, u64>,
    /// Peers that lack entries which this log can no longer give.
    left_behind: BTreeSet<u64>,
    /// Term and commit index at the last look at a learner.
    looked: Option<(u64, u64)>,
    /// The tick at which a peer was first seen to wait for a snapshot.
    snapshots: BTreeMap<u64, u64>,
}

/// Gates of a group whose log has stretches; see `raft/settling.rs`.
#[derive(Debug, Default)]
struct Gates {
    /// Index of the entry from which on the leader of this term serves.
    serves_from: u64,
    /// True while the partition appends what others held.
    settles: bool,
    /// True while the end of the log has batches that are nowhere else, and may be complete.
    keeps_end: bool,
    /// Last term in which this leader counted batches that are not committed.
    counted: u64,
}

/// One replica's share in a Raft group.
pub(crate) struct Group {
    id: ReplicaId,
    raw: RawNode<GroupLog>,
    failed: Option<String>,
    timeouts: Prng,
    timeout_ticks: usize,
    seen: (u64, StateRole),
    /// Index and term of what was proposed since the last turn.
    proposed: Vec<(u64, u64)>,
    /// Payload of proposed entries until storage gets it, by (index, term).
    payloads: BTreeMap<(u64, u64), Bytes>,
    in_flight: VecDeque<InFlight>,
    /// Messages whose `Ready` is persisted.
    released: Vec<Message>,
    shipping: Shipping,
    late: Late,
    catching_up: CatchingUp,
    /// A snapshot that came with the message at hand.
    arriving: Option<Beginning>,
    /// Prefix named by that snapshot, already on the disk.
    fed: Option<Given>,
    begun: u64,
    memory: Memory,
    /// The last term in which this replica led.
    led: u64,
    /// Receiver, term and index of this replica's last acknowledgement to a leader.
    acknowledged: (u64, u64, u64),
    pace: Pace,
    confirming: Confirming,
    moving: Moving,
    sleeping: Sleeping,
    /// A commit index that storage has not been told: it rides with the next write.
    unsaved: Option<HardState>,
    /// The next turn's first op, for a replica that was just made.
    create: Option<OpKind>,
    applied: (u64, u64),
    created: bool,
    bytes_in_flight: u64,
    /// Term on this replica's disk.
    persisted_term: u64,
    gates: Gates,
}

impl std::fmt::Debug for Group {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Group")
            .field("id", &self.id)
            .field("applied", &self.applied)
            .finish_non_exhaustive()
    }
}

impl Group {
    /// Makes a new, empty replica. The first [`Group::collect`] yields its creation.
    pub(crate) fn create(
        id: ReplicaId,
        identity: duramen_storage::op::Identity,
        voters: &[u64],
        seed: u64,
    ) -> Self {
        let mut voters = voters.to_vec();
        voters.sort_unstable();
        assert!(
            voters.contains(&id.0),
            "a replica that is made empty is one of its group's voters"
        );
        let conf = ConfState { applied: BORN_INDEX, voters, ..ConfState::default() };
        let hard_state = HardState { term: BORN_TERM, vote: 0, commit: BORN_INDEX };
        let history = History::new(BORN_INDEX, BORN_TERM, 0);
        let log = GroupLog::new(hard_state, conf.clone(), history, (BORN_INDEX, BORN_TERM, 0));
        let mut group = Self::over(id, log, BORN_INDEX, BORN_TERM, seed);
        group.create = Some(OpKind::Create { ticket: CREATE_TICKET, identity, conf });
        group.created = false;
        group
    }

    /// Makes a replica from the state that storage recovered. [`Group::collect`] hands out entries after the image
    /// again, once they are known to be committed.
    pub(crate) fn recover(found: &RecoveredReplica, seed: u64) -> Self {
        let hard_state = HardState {
            // A replica that died right after its creation may have no hard state yet; and the
            // image's index was applied, so it was committed, whatever the last saved commit says.
            term: found.hard_state.term.max(found.prev_term).max(BORN_TERM),
            vote: found.hard_state.vote,
            commit: found.hard_state.commit.max(found.prev_index),
        };
        let mut log = GroupLog::new(
            hard_state,
            found.conf.clone(),
            found.history.clone(),
            (found.prev_index, found.prev_term, found.prev_end_offset),
        );
        log.compacted = found.compacted;
        log.runs.clone_from(&found.term_runs);
        log.segments = found.segments.iter().map(|it| (it.first_index, it.base_offset)).collect();
        for entry in &found.entries {
            log.append(entry.clone());
        }
        let mut group = Self::over(found.replica, log, found.prev_index, found.prev_term, seed);
        group.persisted_term = found.hard_state.term;
        group.failed.clone_from(&found.damage);
        group
    }

    fn over(id: ReplicaId, log: GroupLog, applied: u64, applied_term: u64, seed: u64) -> Self {
        let config = raft::Config {
            id: id.0,
            election_tick: ELECTION_TICKS,
            heartbeat_tick: HEARTBEAT_TICKS,
            applied,
            max_size_per_msg: 1 << 20,
            max_inflight_msgs: 64,
            batch_append: true,
            check_quorum: true,
            pre_vote: true,
            ..raft::Config::default()
        };
        let logger = slog::Logger::root(slog::Discard, slog::o!());
        let raw = RawNode::new(&config, log, &logger)
            .expect("the configuration is valid and the log in memory answers");
        assert_eq!(raw.raft.raft_log.applied, applied, "entries after the image are applied again");
        let mut group = Self {
            id,
            raw,
            failed: None,
            timeouts: Prng::stream(seed, id.0),
            timeout_ticks: ELECTION_TICKS,
            seen: (0, StateRole::Follower),
            proposed: Vec::new(),
            payloads: BTreeMap::new(),
            in_flight: VecDeque::new(),
            released: Vec::new(),
            shipping: Shipping::default(),
            late: Late::default(),
            catching_up: CatchingUp::default(),
            arriving: None,
            fed: None,
            begun: 0,
            memory: Memory::default(),
            led: 0,
            acknowledged: (0, 0, 0),
            pace: Pace::default(),
            confirming: Confirming::default(),
            moving: Moving::default(),
            sleeping: Sleeping::default(),
            unsaved: None,
            create: None,
            applied: (applied, applied_term),
            created: true,
            bytes_in_flight: 0,
            persisted_term: 0,
            gates: Gates::default(),
        };
        group.keep_in_memory(Memory::default());
        group.settle_timeout();
        group
    }

    /// Keeps another amount in memory for its followers.
    pub(crate) fn keep_in_memory(&mut self, memory: Memory) {
        self.memory = memory;
        self.shipping.bytes_max = memory.payload_bytes;
    }

    /// Returns the id of the replica.
    pub(crate) fn id(&self) -> ReplicaId {
        self.id
    }

    /// Returns the reason why the group failed, if it did.
    pub(crate) fn failure(&self) -> Option<&str> {
        self.failed.as_deref()
    }

    /// Returns the peer that leads, if it is known.
    pub(crate) fn leader(&self) -> Option<u64> {
        Some(self.raw.raft.leader_id).filter(|id| *id != 0)
    }

    /// Tells whether this group has had no serving leader yet, as far as this replica knows. Nothing is committed, and
    /// the log holds at most the first leader's first entry.
    pub(crate) fn is_before_first_leader(&self) -> bool {
        let last = self.raw.raft.raft_log.last_index();
        self.failed.is_none() && self.applied() == BORN_INDEX && last <= BORN_INDEX + 1
    }

    /// Returns this replica and its term, for announcements that it leads.
    pub(crate) fn lead(&self) -> (u64, u64) {
        (self.id.0, self.term())
    }

    /// Returns the current term.
    pub(crate) fn term(&self) -> u64 {
        self.raw.raft.term
    }

    /// Returns the term as the leader epoch that clients see.
    pub(crate) fn epoch(&self) -> i32 {
        // A group with a term above is failed, and asked all the same.
        i32::try_from(self.term()).unwrap_or(i32::MAX)
    }

    /// Returns the last applied index.
    pub(crate) fn applied(&self) -> u64 {
        self.applied.0
    }

    /// Returns the last index that is on this replica's disk.
    pub(crate) fn persisted(&self) -> u64 {
        self.raw.raft.raft_log.persisted
    }

    /// Returns the index of the last entry of the log, committed or not.
    pub(crate) fn last_index(&self) -> u64 {
        self.raw.raft.raft_log.last_index()
    }

    /// Returns the log end offset, committed or not.
    pub(crate) fn end_offset(&self) -> i64 {
        let unstable = self.raw.raft.raft_log.unstable_entries().iter().rev();
        unstable
            .filter(|entry| entry.data.first() == Some(&TAG_BATCH))
            .find_map(|entry| Descriptor::decode(&entry.data[1..]).ok())
            .map_or_else(|| self.raw.store().end_offset(), |last| last.end_offset())
    }

    /// Returns the starts of the terms, oldest first.
    pub(crate) fn term_runs(&self) -> &[TermRun] {
        &self.raw.store().runs
    }

    /// Returns the bytes of batches in the log from `offset` to `end`, if the entries are still in memory.
    pub(crate) fn bytes_between(&self, offset: i64, end: i64) -> Option<u64> {
        self.raw.store().bytes_between(offset, end)
    }

    /// Returns the bytes of the batch that holds `offset`, if its entry is still in memory.
    pub(crate) fn batch_bytes_at(&self, offset: i64) -> Option<u64> {
        self.raw.store().batch_bytes_at(offset)
    }

    /// Tells whether this replica leads, has applied an entry of its own term, and has settled. Only then does it know
    /// all that was acknowledged before, and may answer.
    pub(crate) fn is_serving(&self) -> bool {
        if sabotage::is(Bug::ServesTooEarly) {
            return self.is_elected();
        }
        let is_settled = self.applied.0 >= self.gates.serves_from;
        self.has_begun_term() && (is_settled || sabotage::is(Bug::OpensTooEarly))
    }

    /// Tells whether this replica leads and has applied an entry of its own term. Then it knows all entries committed
    /// before.
    pub(crate) fn has_begun_term(&self) -> bool {
        self.is_elected() && self.applied.1 == self.raw.raft.term
    }

    /// Tells whether this replica leads, as far as it knows. Other nodes may have heard so before it serves.
    pub(crate) fn is_elected(&self) -> bool {
        self.failed.is_none() && self.raw.raft.state == StateRole::Leader
    }

    /// Asks the followers whether this replica, which serves, still leads.
    pub(crate) fn doubt(&mut self) -> Doubt {
        self.wake();
        let end = if self.counts() { self.last_index() } else { 0 };
        self.confirming.ask(self.raw.raft.term, end)
    }

    /// Tells whether this replica led for certain after `doubt` was raised, and has applied all that was committed
    /// then, or complete for a client. `None` while the answer is not known.
    pub(crate) fn led_at(&self, doubt: Doubt) -> Option<bool> {
        if !self.is_serving() {
            return Some(false);
        }
        self.confirming.answer(doubt, self.term(), self.applied())
    }

    /// Returns the peers that vote.
    pub(crate) fn voter_ids(&self) -> &[u64] {
        &self.raw.store().conf.voters
    }

    /// Returns the number of voters.
    pub(crate) fn voters(&self) -> usize {
        self.raw.store().conf.voters.len()
    }

    /// Returns the voters that keep up, this replica among them, as far as this leader knows. Such a voter was heard
    /// lately and has all that was committed a while ago. A learner does not count, because it cannot replace a lost
    /// voter.
    pub(crate) fn caught_up(&self) -> impl Iterator<Item = u64> {
        let since = self.pace.ticks.saturating_sub(LAG_TICKS);
        let keeps_up = move |id: u64, matched: u64| {
            let heard = self.pace.heard.get(&id);
            id == self.id.0
                || heard.is_some_and(|at| *at >= since) && matched >= self.pace.commits.1
        };
        let progress = self.raw.raft.prs();
        let votes = |id: u64| progress.conf().voters().contains(id);
        let all = progress.iter().filter(move |(id, it)| votes(**id) && keeps_up(**id, it.matched));
        all.map(|(id, _)| *id)
    }

    /// Returns the number of peers that lack entries which this leader cannot give. Its history of its own entries
    /// begins too late, or a segment cannot be read.
    pub(crate) fn left_behind(&self) -> usize {
        self.pace.left_behind.len()
    }

    /// Returns the number of entries that this replica has made again from segments.
    pub(crate) fn rebuilt(&self) -> u64 {
        self.catching_up.rebuilt
    }

    /// Returns the number of times that this replica's log began anew.
    pub(crate) fn begun(&self) -> u64 {
        self.begun
    }

    /// Tells whether this replica is the group's only member.
    pub(crate) fn is_alone(&self) -> bool {
        let conf = &self.raw.store().conf;
        let others = [&conf.learners, &conf.voters_outgoing, &conf.learners_next];
        conf.voters == [self.id.0] && others.iter().all(|peers| peers.is_empty())
    }

    /// Stands for election. For a group of one voter that is all it takes.
    pub(crate) fn campaign(&mut self) {
        if self.term() >= TERM_MAX {
            self.failed = Some("the term has reached its limit".to_owned());
            return;
        }
        self.wake();
        self.guarded(|raw| raw.campaign().ok());
    }

    /// Takes a message from a peer. Anything that the library would treat as a fatal error is found here first.
    pub(crate) fn on_letter(&mut self, letter: Letter) {
        if let Some(message) = letters::message_of(&letter) {
            self.on_message(message, letter.payloads);
        }
    }

    pub(crate) fn on_message(&mut self, mut message: Message, mut payloads: Vec<Bytes>) {
        if self.failed.is_some() || self.is_beginning() || !self.is_acceptable(&message) {
            return;
        }
        let is_withheld = self.may_cut(&message);
        if is_withheld {
            (message, payloads) = (self.beat_of(message.from, message.term), Vec::new());
        }
        if let Some(damage) = self.damage_shown_by(&message) {
            return self.fail(damage);
        }
        self.wake();
        let mut payloads = payloads.into_iter();
        if message.get_msg_type() == MessageType::MsgSnapshot {
            // A snapshot without its image counts as lost.
            let Some(image) = payloads.next() else { return };
            let mut beginning = snapshots::beginning_of(message.get_snapshot(), image);
            if let Some(beginning) = &mut beginning
                && beginning.given.is_some()
            {
                let compaction = |given: &Given| given.compacted.index;
                let named = beginning.given.as_ref().map(compaction);
                beginning.given = self.fed.take().filter(|fed| Some(compaction(fed)) == named);
                // The library hears the snapshot only when everything that it names is here.
                let is_short = beginning.given.is_none() && self.lacks(message.get_snapshot());
                if is_short && !sabotage::is(Bug::GivenForgotten) {
                    return;
                }
            }
            self.arriving = beginning;
        }
        let mut with_payload = Vec::new();
        for entry in message.get_entries() {
            let Some(Content::Batch(descriptor)) = log::content_of(entry) else { continue };
            // Without its payload, or with another one, the entry is not there at all.
            let fits = |it: &Bytes| descriptor.matches(it) || sabotage::is(Bug::RebuiltUnchecked);
            let Some(payload) = payloads.next().filter(fits) else { return };
            with_payload.push(((entry.index, entry.term), payload));
        }
        for (key, payload) in with_payload {
            self.bytes_in_flight += payload.len() as u64;
            let before = self.payloads.insert(key, payload);
            self.bytes_in_flight -= before.map_or(0, |before| before.len() as u64);
        }
        self.pace.heard.insert(message.from, self.pace.ticks);
        let said = self.raw.raft.msgs.len();
        let (from, committed) = (message.from, message.commit);
        // An error only says that the message is not for this state; it is dropped.
        self.guarded(|raw| raw.step(message).ok());
        self.end_wait_for_snapshot(from, committed);
        if is_withheld {
            // The leader would send the entries again for each answer, and each time get one more.
            self.raw.raft.msgs.truncate(said);
        }
    }

    /// Reports to the library that a message for a peer was not sent.
    pub(crate) fn on_unreachable(&mut self, peer: u64) {
        self.wake();
        self.guarded(|raw| raw.report_unreachable(peer));
    }

    /// Ticks the group's clock. A group of one voter needs no tick. True if the group has messages.
    pub(crate) fn tick(&mut self) -> bool {
        if self.term() >= TERM_MAX || self.failed.is_some() || self.is_beginning() {
            return false;
        }
        // The library asserts that all is persisted when a group of one voter elects itself.
        let elects_itself = self.voters() == 1 && self.raw.raft.state != StateRole::Leader;
        if elects_itself && !self.in_flight.is_empty() {
            return false;
        }
        self.pace.ticks += 1;
        // The others may not have made their replicas when this one stood for the first election. To ask once more
        // whether they would vote changes nothing, and nobody waits for another timeout.
        if self.raw.raft.state == StateRole::PreCandidate && self.is_before_first_leader() {
            self.campaign();
        }
        self.tick_moving();
        if self.is_alone() {
            // The library may have refused before, while a change of membership waited to be applied.
            if elects_itself {
                self.campaign();
            }
            return elects_itself;
        }
        if self.pace.ticks >= self.pace.aside_until || self.raw.raft.state == StateRole::Leader {
            self.guarded(RawNode::tick);
        }
        self.shipping.shared.tick();
        self.note_beat();
        if self.pace.ticks.is_multiple_of(LAG_TICKS / 2) {
            self.pace.commits = (self.raw.raft.raft_log.committed, self.pace.commits.0);
        }
        if self.pace.ticks.is_multiple_of(2 * ELECTION_TICKS as u64) {
            self.shipping.forget(self.applied.0);
            self.note_left_behind();
            self.give_up_snapshots();
        }
        self.failed.is_some() || self.raw.has_ready()
    }

    fn note_left_behind(&mut self) {
        let first = self.raw.store().history.index + 1;
        let applied = self.applied.0;
        let lacks = |id: u64| {
            let progress = self.raw.raft.prs().get(id);
            progress.is_some_and(|progress| progress.matched < applied)
        };
        self.shipping.starved.retain(|id| lacks(*id));
        let progress = self.raw.raft.prs().iter();
        let is_leader = self.raw.raft.state == StateRole::Leader;
        let can_be_given = self.raw.store().can_be_given();
        let behind = progress.filter(|(id, progress)| {
            let is_starved = self.shipping.starved.contains(*id);
            is_leader
                && self.pace.heard.contains_key(*id)
                && (progress.next_idx < first && !can_be_given || is_starved)
        });
        let behind: BTreeSet<u64> = behind.map(|(id, _)| *id).collect();
        for peer in behind.difference(&self.pace.left_behind) {
            tracing::warn!(
                replica = self.id.0,
                peer,
                first,
                "the leader cannot send entries that a follower lacks; the follower stays behind"
            );
        }
        self.pace.left_behind = behind;
    }

    /// Entries that are not committed.
    pub(crate) fn uncommitted(&self) -> u64 {
        let log = &self.raw.raft.raft_log;
        log.last_index() - log.committed
    }

    /// Appends a batch whose base offset is [`Group::end_offset`] and whose leader epoch is
    /// [`Group::epoch`]. Returns its index.
    pub(crate) fn propose_batch(
        &mut self,
        descriptor: &Descriptor,
        payload: Bytes,
    ) -> Result<u64, Refused> {
        assert_eq!(descriptor.base_offset, self.end_offset(), "offsets are dense");
        assert_eq!(payload.len(), descriptor.length as usize, "a descriptor is of its payload");
        let index = self.propose(log::data_of(descriptor))?;
        let term = self.term();
        self.bytes_in_flight += payload.len() as u64;
        self.payloads.insert((index, term), payload);
        Ok(index)
    }

    /// Appends an entry of ours. Returns its index.
    pub(crate) fn propose_internal(&mut self, entry: &[u8]) -> Result<u64, Refused> {
        self.propose([&[TAG_INTERNAL][..], entry].concat().into())
    }

    fn propose(&mut self, data: Bytes) -> Result<u64, Refused> {
        if self.failed.is_some() {
            return Err(Refused::Failed);
        }
        // The library would forward a follower's proposal, with an offset computed here.
        let settles = self.gates.settles && self.has_begun_term();
        if !self.is_serving() && !settles || self.is_moving() {
            return Err(Refused::NotLeader);
        }
        // With one voter they wait for its disk, and their bytes are bounded elsewhere.
        if !self.is_alone() && self.uncommitted() >= GROUP_UNCOMMITTED_MAX {
            return Err(Refused::Full);
        }
        self.wake();
        let before = self.raw.raft.raft_log.last_index();
        let mut message = Message::default();
        message.set_msg_type(MessageType::MsgPropose);
        message.from = self.id.0;
        message.set_entries(vec![Entry { data, ..Entry::default() }].into());
        let proposed = self.guarded(|raw| raw.raft.step(message));
        match proposed {
            None => Err(Refused::Failed),
            Some(Err(_)) => Err(Refused::NotLeader),
            Some(Ok(())) => {
                let index = self.raw.raft.raft_log.last_index();
                assert_eq!(index, before + 1, "one proposal is one entry");
                assert!(index > self.applied.0, "a proposal is not applied yet");
                assert_eq!(self.led, self.raw.raft.term, "only the leader of a term appends in it");
                self.proposed.push((index, self.raw.raft.term));
                Ok(index)
            }
        }
    }

    /// Returns the bytes of payload proposed and not persisted yet.
    pub(crate) fn bytes_in_flight(&self) -> u64 {
        self.bytes_in_flight
    }

    /// Marks the group as failed: it is never used again in this process.
    pub(crate) fn fail(&mut self, why: String) {
        tracing::error!(replica = self.id.0, why, "a replica has failed; the other replicas go on");
        self.failed.get_or_insert(why);
    }

    /// Guards every call into the library that may change it.
    fn guarded<T>(&mut self, call: impl FnOnce(&mut RawNode<GroupLog>) -> T) -> Option<T> {
        if self.failed.is_some() {
            return None;
        }
        let raw = &mut self.raw;
        match catch_unwind(AssertUnwindSafe(|| call(raw))) {
            Ok(value) => {
                if self.raw.raft.state == StateRole::Leader {
                    self.led = self.raw.raft.term;
                }
                self.settle_timeout();
                Some(value)
            }
            Err(panic) => {
                let text = panic.downcast_ref::<String>().cloned();
                let text = text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
                self.fail(text.unwrap_or_else(|| "the consensus library panicked".to_owned()));
                None
            }
        }
    }

    /// Sets the election timeout from the seed. At every reset the library draws it from the thread's randomness, even
    /// at one that changes neither term nor role.
    fn settle_timeout(&mut self) {
        if self.is_alone() {
            return;
        }
        let now = (self.raw.raft.term, self.raw.raft.state);
        if now != self.seen {
            self.seen = now;
            let spread = self.timeouts.below(ELECTION_TICKS as u64);
            self.timeout_ticks = ELECTION_TICKS + usize::try_from(spread).expect("below ten");
        }
        assert!(
            (ELECTION_TICKS..2 * ELECTION_TICKS).contains(&self.timeout_ticks),
            "an election timeout of {} ticks is one that the library takes",
            self.timeout_ticks
        );
        self.raw.raft.set_randomized_election_timeout(self.timeout_ticks);
    }
}

#[cfg(test)]
mod tests;
