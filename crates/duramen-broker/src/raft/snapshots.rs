//! Snapshots for replicas that are new, or lack trimmed entries: their logs begin anew where the leader's log begins.
//!
//! A snapshot holds no segment. A snapshot names the place where the leader's log begins, before which the log keeps
//! nothing. The view's present image comes with it, and is of a later entry. The leader sends all entries between from
//! segments, as for any follower that is behind, with all checks. The view skips the entries that its image includes.
//! So an image bounds the bytes sent at once, the leader reads nothing twice, and batches reach a replica in one way
//! only.
//!
//! A compacted log keeps records from before that place: its prefix. The snapshot names the extent of the compaction,
//! and the segments and terms of the prefix. The group gets the snapshot only when the whole prefix is on the replica's
//! disk (`node/snapshot_feed.rs`), and the log begins anew with the prefix. A build that does not know prefixes cannot
//! read such a snapshot, so its log does not begin anew without one.
//!
//! A new beginning takes no acknowledged data back. The replica may lose an entry that it had acknowledged in three
//! cases. The entry was trimmed by an entry that a majority without this replica has. The entry never committed. Or the
//! entry is below a Compact entry, which a majority has with all before it. The rest that the compaction left comes
//! with the prefix.

use bytes::Bytes;
use duramen_protocol::wire::{Decoder, Encoder, Message as _};
use duramen_storage::history::History;
use duramen_storage::op::{
    Beginning, Compacted, ConfState, Given, HardState, Identity, OpKind, ReplicaId, SegmentMeta,
    TermRun,
};
use duramen_storage::sabotage::{self, Bug};
use raft::eraftpb::{Message, MessageType, Snapshot};
use raft::{ProgressState, SnapshotStatus, StateRole};

use super::exchange::Outgoing;
use super::letters::SNAPSHOT;
use super::log::{GroupLog, conf_to_raft};
use super::{CREATE_TICKET, Group, Turn};
use crate::peer::Letter;

/// Ticks after which a snapshot that was not acknowledged is sent again.
const AGAIN_TICKS: u64 = 100;
/// The same for a follower that speaks so late. One that writes a snapshot says nothing, and letters keep their order,
/// so the snapshot was lost.
const LOST_TICKS: u64 = 10;
const VERSION: i16 = 0;

duramen_protocol::message! {
    /// Contents of a snapshot beside index and term.
    struct Head: versions 0..=0, flexible 0.. {
        end_offset: i64 [0..],
        conf_applied: u64 [0..],
        voters: Vec<u64> [0..],
        learners: Vec<u64> [0..],
        voters_outgoing: Vec<u64> [0..],
        learners_next: Vec<u64> [0..],
        auto_leave: bool [0..],
        move_number: u64 [0..],
    }
}

duramen_protocol::message! {
    /// Part of the log that is kept from before the place that a snapshot names. The bytes follow the [`Head`].
    struct Prefix: versions 0..=0, flexible 0.. {
        compaction: u64 [0..],
        tombstones_below: i64 [0..],
        log_start: i64 [0..],
        runs: Vec<Run> [0..],
        segments: Vec<Begun> [0..],
    }
    /// A run of entries of one term.
    struct Run {
        term: u64 [0..],
        first_index: u64 [0..],
        start_offset: i64 [0..],
    }
    /// A segment.
    struct Begun {
        first_index: u64 [0..],
        base_offset: i64 [0..],
    }
}

impl Prefix {
    fn of(given: &Given) -> Self {
        let run = |run: &TermRun| {
            let TermRun { term, first_index, start_offset } = *run;
            Run { term, first_index, start_offset }
        };
        let begun = |it: &SegmentMeta| {
            let SegmentMeta { first_index, base_offset, .. } = *it;
            Begun { first_index, base_offset }
        };
        Self {
            compaction: given.compacted.index,
            tombstones_below: given.compacted.tombstones_below,
            log_start: given.log_start,
            runs: given.runs.iter().map(run).collect(),
            segments: given.segments.iter().map(begun).collect(),
        }
    }

    /// Returns the prefix before an entry of this index and term, at which the log ends at `below`. `None` if the parts
    /// do not fit.
    fn given(self, (index, term, below): (u64, u64, i64)) -> Option<Given> {
        let compacted =
            Compacted { index: self.compaction, below, tombstones_below: self.tombstones_below };
        let run = |run: &Run| {
            let Run { term, first_index, start_offset } = *run;
            TermRun { term, first_index, start_offset }
        };
        let meta = |it: &Begun| {
            let Begun { first_index, base_offset } = *it;
            SegmentMeta { base_offset, first_index, size: 0, max_timestamp: -1 }
        };
        let runs: Vec<TermRun> = self.runs.iter().map(run).collect();
        let segments: Vec<SegmentMeta> = self.segments.iter().map(meta).collect();
        let (first, last) = (segments.first()?, segments.last()?);
        let last_run = runs.last()?;
        let are_in_order = runs.windows(2).all(|pair| {
            let (one, next) = (pair[0], pair[1]);
            one.term < next.term
                && one.first_index < next.first_index
                && one.start_offset <= next.start_offset
        }) && segments.windows(2).all(|pair| {
            pair[0].base_offset < pair[1].base_offset && pair[0].first_index < pair[1].first_index
        });
        let fits = are_in_order
            && compacted.index > index
            && (0..=below).contains(&compacted.tombstones_below)
            && (first.base_offset..below).contains(&self.log_start)
            && (0..below).contains(&first.base_offset)
            && last.base_offset < below
            && last.first_index <= index
            && last_run.term <= term
            && last_run.first_index <= index
            && (0..=below).contains(&last_run.start_offset)
            && (0..=first.base_offset).contains(&runs[0].start_offset);
        fits.then_some(Given { number: 0, compacted, log_start: self.log_start, runs, segments })
    }
}

impl Head {
    fn of(end_offset: i64, conf: &ConfState) -> Self {
        Self {
            end_offset,
            conf_applied: conf.applied,
            voters: conf.voters.clone(),
            learners: conf.learners.clone(),
            voters_outgoing: conf.voters_outgoing.clone(),
            learners_next: conf.learners_next.clone(),
            auto_leave: conf.auto_leave,
            move_number: conf.move_number,
        }
    }

    fn read(bytes: &Bytes) -> Option<(Self, Option<Prefix>)> {
        let mut d = Decoder::new(bytes.clone());
        let head = Self::decode(&mut d, VERSION).ok()?;
        let prefix = match d.remaining() {
            0 => None,
            _ => Some(Prefix::decode(&mut d, VERSION).ok()?),
        };
        d.finish().ok()?;
        (head.end_offset >= 0 && !head.voters.is_empty()).then_some((head, prefix))
    }

    fn conf(self) -> ConfState {
        ConfState {
            applied: self.conf_applied,
            voters: self.voters,
            learners: self.learners,
            voters_outgoing: self.voters_outgoing,
            learners_next: self.learners_next,
            auto_leave: self.auto_leave,
            move_number: self.move_number,
        }
    }
}

/// Lets a snapshot travel in the fields that other messages have.
pub(super) fn pack(message: &mut Message) {
    if message.get_msg_type() == MessageType::MsgSnapshot {
        let snapshot = message.take_snapshot();
        message.index = snapshot.get_metadata().index;
        message.log_term = snapshot.get_metadata().term;
        message.context = snapshot.data;
    }
}

/// Undoes [`pack`]; `None` if it cannot be read.
pub(super) fn unpack(message: &mut Message) -> Option<()> {
    if message.get_msg_type() == MessageType::MsgSnapshot {
        let data = std::mem::take(&mut message.context);
        let mut snapshot = Snapshot { data, ..Snapshot::default() };
        let conf = Head::read(&snapshot.data)?.0.conf();
        let metadata = snapshot.mut_metadata();
        metadata.index = std::mem::take(&mut message.index);
        metadata.term = std::mem::take(&mut message.log_term);
        metadata.set_conf_state(conf_to_raft(&conf));
        message.set_snapshot(snapshot);
    }
    Some(())
}

/// Reads a snapshot, and adds the view's image.
pub(super) fn beginning_of(snapshot: &Snapshot, image: Bytes) -> Option<Beginning> {
    let metadata = snapshot.get_metadata();
    let (head, prefix) = Head::read(&snapshot.data)?;
    let (index, term, end_offset) = (metadata.index, metadata.term, head.end_offset);
    let given = match prefix {
        Some(prefix) => Some(prefix.given((index, term, end_offset))?),
        None => None,
    };
    Some(Beginning { index, term, end_offset, conf: head.conf(), image, given })
}

impl Group {
    /// Makes a replica that is not born yet: its leader will tell it how its log begins, and who its peers are. Until
    /// then it neither votes nor counts.
    pub(crate) fn await_birth(id: ReplicaId, identity: Identity, seed: u64) -> Self {
        let conf = ConfState::default();
        let log =
            GroupLog::new(HardState::default(), conf.clone(), History::new(0, 0, 0), (0, 0, 0));
        let mut group = Self::over(id, log, 0, 0, seed);
        group.create = Some(OpKind::Create { ticket: CREATE_TICKET, identity, conf });
        group.created = false;
        group
    }

    /// Adds what a snapshot of [`Turn::snapshots`] still lacks. `None` if it is not to be sent any more.
    pub(crate) fn with_image(
        &mut self,
        mut message: Message,
        image: Bytes,
        log_start: i64,
    ) -> Option<Outgoing> {
        let log = self.raw.store();
        let (history, conf) = (&log.history, &log.conf);
        let leads = self.raw.raft.state == StateRole::Leader && message.term == self.term();
        if !leads || message.get_snapshot().get_metadata().index != history.index {
            let peer = message.to;
            self.guarded(|raw| raw.report_snapshot(peer, SnapshotStatus::Failure));
            return None;
        }
        let mut head = Encoder::new();
        Head::of(history.end_offset, conf).encode(&mut head, VERSION).expect("the version has all");
        if let Some(given) = log.prefix(log_start) {
            Prefix::of(&given).encode(&mut head, VERSION).expect("the version has all");
        }
        assert!(history.index <= self.applied.0, "the index that a snapshot names is applied");
        let raft_conf = conf_to_raft(conf);
        let snapshot = message.mut_snapshot();
        snapshot.data = head.into_bytes().freeze();
        snapshot.mut_metadata().set_conf_state(raft_conf);
        debug_assert!(
            beginning_of(snapshot, Bytes::new()).is_some(),
            "a replica reads the snapshot that its leader makes"
        );
        Some(Outgoing { message, payloads: vec![image], can_wait: false })
    }

    /// Replaces all that was here by the snapshot.
    pub(super) fn begin_anew(&mut self, snapshot: &Snapshot, turn: &mut Turn) {
        let metadata = snapshot.get_metadata();
        let is_it = |it: &Beginning| (it.index, it.term) == (metadata.index, metadata.term);
        let Some(beginning) = self.arriving.take().filter(is_it) else {
            return self.fail("a snapshot came without its image".to_owned());
        };
        let Beginning { index, term, end_offset, conf, .. } = &beginning;
        assert!(*index > self.applied.0, "a log begins anew only behind what is applied");
        tracing::info!(
            replica = self.id.0,
            index,
            end_offset,
            "a log begins anew from its leader's snapshot"
        );
        let hard_state = self.raw.store().hard_state;
        let history = History::new(*index, *term, *end_offset);
        let place = (*index, *term, *end_offset);
        let mut log = GroupLog::new(hard_state, conf.clone(), history, place);
        if let Some(given) = &beginning.given {
            log.runs.clone_from(&given.runs);
            let begun = given.segments.iter().map(|it| (it.first_index, it.base_offset));
            log.segments = begun.collect();
            log.compacted = given.compacted;
        }
        *self.raw.mut_store() = log;
        self.applied = (*index, *term);
        self.shipping.clear();
        self.catching_up.clear();
        turn.committed.clear();
        turn.removed.clear();
        turn.appended.clear();
        turn.ops.push(OpKind::Reset(Box::new(beginning.clone())));
        turn.begun = Some(beginning);
        self.begun += 1;
    }

    /// Returns the prefix that must be fetched before the group hears a letter. `None` unless the letter is a snapshot
    /// with a prefix, and this replica lacks it.
    pub(crate) fn given_by(&self, letter: &Letter) -> Option<Given> {
        if letter.kind != SNAPSHOT || self.failed.is_some() || sabotage::is(Bug::GivenForgotten) {
            return None;
        }
        let message = super::letters::message_of(letter)?;
        if self.is_beginning() || !self.is_acceptable(&message) {
            return None;
        }
        let snapshot = message.get_snapshot();
        let beginning = beginning_of(snapshot, Bytes::new())?;
        beginning.given.filter(|_| self.lacks(snapshot))
    }

    /// Tells whether a snapshot brings entries that this log lacks. The library only notes any other snapshot.
    pub(super) fn lacks(&self, snapshot: &Snapshot) -> bool {
        let metadata = snapshot.get_metadata();
        let log = &self.raw.raft.raft_log;
        metadata.index > log.committed && !log.match_term(metadata.index, metadata.term)
    }

    /// Takes a snapshot whose prefix, named by [`Self::given_by`], is here in full.
    pub(crate) fn on_fed(&mut self, letter: Letter, given: Given) {
        assert!(self.fed.is_none(), "a replica is fed for one letter at a time");
        self.fed = Some(given);
        self.on_letter(letter);
        self.fed = None;
    }

    /// Tells whether a new beginning is on its way to the disk. Until it is there, this replica sends and hears
    /// nothing.
    pub(crate) fn is_beginning(&self) -> bool {
        self.raw.raft.raft_log.applied < self.applied.0
    }

    /// Lets the library count on a new beginning once it is on the disk.
    pub(super) fn note_begun(&mut self) {
        let (index, _) = self.applied;
        if self.is_beginning() && self.raw.raft.raft_log.persisted >= index {
            self.guarded(|raw| raw.advance_apply_to(index));
        }
    }

    /// Ends the library's wait for a snapshot that brings its follower nothing, or that was lost. The follower has
    /// committed the log up to `committed`, by its last letter.
    ///
    /// A snapshot brings nothing in two cases, and its acknowledgement would be no news:
    ///
    /// - An old rejection sets the follower's next entry back behind one that it has acknowledged since. If that one is
    ///   trimmed, the library sends a snapshot.
    /// - The acknowledgement of the last entry that was trimmed is lost. The follower names that entry as committed.
    pub(super) fn end_wait_for_snapshot(&mut self, peer: u64, committed: u64) {
        let progress = self.raw.raft.prs().get(peer);
        let Some(it) = progress.filter(|it| it.state == ProgressState::Snapshot) else {
            self.pace.snapshots.remove(&peer);
            return;
        };
        let ticks = self.pace.ticks;
        let since = *self.pace.snapshots.entry(peer).or_insert(ticks);
        // A follower that is fed a prefix first goes on to speak.
        let may_be_fed = self.raw.store().compacted != Compacted::default();
        let heard = self.pace.heard.get(&peer).copied().filter(|_| !may_be_fed);
        let is_lost =
            heard.is_some_and(|at| at >= since + LOST_TICKS) || ticks >= since + AGAIN_TICKS;
        let status = if it.matched.max(committed) >= it.pending_snapshot {
            SnapshotStatus::Finish
        } else if is_lost {
            SnapshotStatus::Failure
        } else {
            return;
        };
        self.pace.snapshots.remove(&peer);
        self.guarded(|raw| raw.report_snapshot(peer, status));
    }

    /// Looks at the snapshots of followers that say nothing.
    pub(super) fn give_up_snapshots(&mut self) {
        let peers: Vec<u64> = self.raw.raft.prs().iter().map(|(id, _)| *id).collect();
        self.pace.snapshots.retain(|id, _| peers.contains(id));
        for peer in peers {
            self.end_wait_for_snapshot(peer, 0);
        }
    }
}
