//! # Room card: partition
//!
//! Purpose:    one replicated log of record batches: its group, its producers, the requests that wait for it.
//! Owns:       offset assignment, the high watermark, idempotence, the choice of new segments, trims.
//! Interface:  [`Partition::produce`], [`Partition::trim`], [`Partition::turn`], [`Partition::image`].
//! Invariants: acknowledged implies committed implies synced. `start <= committed <= end`.
//!             The leader checks a producer's sequence before it assigns an offset, and never after.
//!             Only the execution of a committed entry removes or reshapes data.
//! Never:      files, other partitions, Kafka's versions (see `api`), the inside of a batch.
//! Tests:      `node/tests`; `duramen-sim`.
//! Start at:   [`Partition::produce`].

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use compaction::Compacting;
use controls::{Controls, Objection};
use duramen_protocol::ErrorCode;
use duramen_protocol::batch::{self, BatchHeader, TimestampType};
use duramen_protocol::partitioner::key_number;
use duramen_protocol::records::Keys;
use duramen_storage::Descriptor;
use duramen_storage::keys::{Statement, batch_of};
use duramen_storage::op::{
    Beginning, Compacted, Content, Identity, LogEntry, Op, OpKind, RecoveredReplica, ReplicaId,
    SegmentMeta,
};
use duramen_storage::sabotage::{self, Bug};
use fast_state::{FastCounts, FastState};
use faults::Faults;
use fresh::Fresh;
use internal::Internal;
use kept::Kept;
use producers::{ActiveProducer, Ending, Producers};
use refused::{RefusedBatches, leaves_gap};
use retention::Undated;
use rolling::Active;
use stretches::Stretches;
use traffic::Traffic;

use crate::checked_batch::CheckedBatch;
use crate::configs::TopicSettings;
use crate::event::{Action, Now, RequestKey};
use crate::limits::FETCH_ABORTED_MAX;
use crate::raft::{Group, GroupId, Outgoing, PayloadRead, Refused, Unsure, internal_of};

mod adopting;
mod compaction;
pub(crate) mod controls;
mod erasing;
pub(crate) mod fast;
pub(crate) mod fast_state;
pub(crate) mod faults;
mod fresh;
mod holds;
mod inspection;
pub(crate) mod internal;
mod kept;
pub(crate) mod members;
mod pacing;
pub(crate) mod pointers;
pub(crate) mod producers;
mod refused;
mod rescue;
pub(crate) mod retention;
mod rolling;
mod settling;
mod shown;
mod slots;
mod stretches;
pub(crate) mod traffic;
mod transactions;
mod view;
mod waits;

pub(crate) use producers::Verdict;
pub(crate) use shown::Growth;
use shown::{Indexed, Told};
use slots::Waiting;
pub(crate) use slots::{Acks, Finished, MarkAsker, Sender, Slot};
pub(crate) use transactions::{Aborted, Marker};
pub(crate) use view::View;

/// Immediate result of an append.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Appended {
    /// Nothing more will come.
    Done {
        /// Where it is.
        base_offset: i64,
    },
    /// A [`Finished`] will come. The time is that of the append, or -1.
    Waits {
        /// The append time written into the batch.
        append_time_ms: i64,
    },
    /// The guard does not hold.
    Objected {
        /// Why.
        reason: Objection,
        /// False if a [`Finished`] will come once that is certain.
        is_certain: bool,
    },
    /// Nothing was appended, for this reason, and the same batch may be sent again.
    Busy(&'static str),
    /// A refused batch.
    Refused(ErrorCode, Option<String>),
    /// A batch refused because the topic does not take some of its records.
    Faulty(Faults),
}

/// A partition's number in its fetch session, counted up in the order of arrival and never used again.
pub(crate) type Place = u32;

/// Watcher of a partition: a fetch session, and the partition's place there.
pub(crate) type Watcher = (i32, Place);

/// Effects of a partition's turn on the node, beside actions.
#[derive(Debug, Default)]
pub(crate) struct Effects {
    pub finished: Vec<Finished>,
    /// Parked fetches, with what came.
    pub woken: Vec<(RequestKey, Growth)>,
    /// Places in fetch sessions where something changed, with what came.
    pub touched: Vec<(Watcher, Growth)>,
    /// Requests that waited for this partition to have a leader.
    pub served: Vec<RequestKey>,
    /// True if the partition began to serve, false if it ceased to serve; `None` without a change.
    pub serves: Option<bool>,
    /// True if the partition has to have another turn.
    pub goes_on: bool,
    pub fast: FastCounts,
    /// For its peers.
    pub messages: Vec<Outgoing>,
    /// Reads of payload for those messages.
    pub reads: Vec<PayloadRead>,
}

/// One replica of one partition.
#[derive(Debug)]
pub(crate) struct Partition {
    pub(crate) id: GroupId,
    pub(crate) group: Group,
    pub(crate) settings: Arc<TopicSettings>,
    pub(crate) is_dirty: bool,
    /// Requests to be told when this partition has a leader.
    pub(crate) creators: Vec<RequestKey>,
    /// Parked fetches of no session that wait for more.
    pub(crate) fetches: BTreeSet<RequestKey>,
    /// Places in fetch sessions to be touched when anything changes that a fetch tells of.
    pub(crate) watchers: Vec<Watcher>,
    told: Told,
    indexed: Indexed,
    producers: Producers,
    compacting: Compacting,
    pub(crate) controls: Controls,
    stretches: Stretches,
    fast: FastState,
    /// The fence that was proposed last in this term, and the index of its entry, until that is applied.
    fencing: Option<(u64, Bytes)>,
    fresh: Fresh,
    kept: Kept,
    committed: i64,
    log_start: i64,
    segments: Vec<SegmentMeta>,
    segments_end: i64,
    undated: Undated,
    active: Option<Active>,
    trimming: i64,
    /// The group is to be told of trims of before the start, once they are committed again.
    trims_again: bool,
    /// The next batch begins a segment, however little is in this one.
    roll_due: bool,
    waiting_commit: BTreeMap<(u64, u64), Waiting>,
    /// Appends that are refused if this replica leads for certain.
    doubted: Unsure<(Slot, ErrorCode)>,
    refused: RefusedBatches,
    waiting_persist: BTreeMap<(u64, u64), Waiting>,
    waited: u64,
    /// The term in which it served at the end of its last turn.
    served: Option<u64>,
    /// Number of times that the log began anew.
    beginnings: u64,
    traffic: Cell<Traffic>,
}

fn id_of(identity: &Identity) -> GroupId {
    GroupId { topic_id: identity.topic_id, partition: identity.partition }
}

impl Partition {
    /// Makes a new, empty replica.
    pub(crate) fn create(
        replica: ReplicaId,
        identity: Identity,
        voters: &[u64],
        settings: Arc<TopicSettings>,
        seed: u64,
    ) -> Self {
        let id = id_of(&identity);
        let group = Group::create(replica, identity, voters, seed);
        Self::over(id, group, settings)
    }

    /// Makes a replica that is added to a partition: its leader will send it the rest.
    pub(crate) fn await_birth(
        replica: ReplicaId,
        identity: Identity,
        settings: Arc<TopicSettings>,
        seed: u64,
    ) -> Self {
        let id = id_of(&identity);
        Self::over(id, Group::await_birth(replica, identity, seed), settings)
    }

    /// Makes a replica from the state that storage recovered. The replica answers nothing before it leads.
    pub(crate) fn recover(
        found: &RecoveredReplica,
        settings: Arc<TopicSettings>,
        now: Now,
        seed: u64,
    ) -> Self {
        let mut group = Group::recover(found, seed);
        let view = View::of(&found.image, now.mono_us);
        if view.is_none() {
            group.fail("the image of its producers cannot be read by this version".to_owned());
        }
        let mut partition = Self::over(id_of(&found.identity), group, settings);
        partition.take_view(view.unwrap_or_default());
        partition.note_compacted(found.compacted);
        if sabotage::is(Bug::DedupNotRebuilt) {
            partition.producers = Producers::default();
        }
        partition.fast = FastState::recover(found);
        partition.drop_known_holds();
        found.entries.iter().for_each(|entry| partition.note_appended_elsewhere(entry));
        partition.committed = found.prev_end_offset;
        partition.log_start = found.log_start;
        partition.segments.clone_from(&found.segments);
        partition.segments_end = found.end_offset;
        partition.undated.look_at(&partition.segments, now.wall_ms);
        partition.trims_again = partition.log_start > 0;
        partition.drop_segments();
        partition.active = partition.last_segment(now);
        partition
    }

    fn over(id: GroupId, group: Group, settings: Arc<TopicSettings>) -> Self {
        Self {
            id,
            group,
            settings,
            is_dirty: false,
            creators: Vec::new(),
            fetches: BTreeSet::new(),
            watchers: Vec::new(),
            told: Told::default(),
            indexed: Indexed::default(),
            producers: Producers::default(),
            compacting: Compacting::default(),
            controls: Controls::default(),
            stretches: Stretches::default(),
            fast: FastState::default(),
            fencing: None,
            fresh: Fresh::default(),
            kept: Kept::default(),
            committed: 0,
            log_start: 0,
            segments: Vec::new(),
            segments_end: 0,
            undated: Undated::default(),
            active: None,
            trimming: 0,
            trims_again: false,
            roll_due: false,
            waiting_commit: BTreeMap::new(),
            doubted: Unsure::default(),
            refused: RefusedBatches::default(),
            waiting_persist: BTreeMap::new(),
            waited: 0,
            served: None,
            beginnings: 0,
            traffic: Cell::default(),
        }
    }

    /// Returns the log start offset.
    pub(crate) fn log_start(&self) -> i64 {
        self.log_start
    }

    /// Returns the number of times that the log began anew since the start.
    pub(crate) fn beginnings(&self) -> u64 {
        self.beginnings
    }

    /// Returns the high watermark.
    pub(crate) fn committed(&self) -> i64 {
        self.committed
    }

    /// Returns the aborted transactions between two offsets, and the offset up to which the list is complete.
    pub(crate) fn aborted(&self, from: i64, to: i64) -> (Vec<Aborted>, i64) {
        // Below a compaction nothing is left of them.
        let is_erased = self.compacting.decided.erases;
        let from = if is_erased { from } else { from.max(self.compacting.done.below) };
        self.producers.transactions().aborted(from, to, FETCH_ABORTED_MAX)
    }

    /// Returns producer, first and last offset of each aborted transaction that began below an offset.
    pub(crate) fn all_aborted(&self, end: i64) -> Vec<(i64, i64, i64)> {
        let all = self.producers.transactions().aborted_before(end);
        all.map(|it| (it.producer_id, it.first_offset, it.last_offset)).collect()
    }

    /// Returns the highest epoch in which a producer was heard.
    pub(crate) fn producer_epoch(&self, producer_id: i64) -> Option<i16> {
        self.producers.epoch_of(producer_id)
    }

    /// Tells whether a transaction of a producer is open here.
    pub(crate) fn is_in_transaction(&self, producer_id: i64) -> bool {
        self.producers.is_open(producer_id)
    }

    /// Returns the bytes of record batches that are committed and not removed.
    pub(crate) fn bytes(&self) -> u64 {
        self.segments.iter().map(|segment| segment.size).sum()
    }

    /// Returns the number of segments.
    pub(crate) fn segments_len(&self) -> usize {
        self.segments.len()
    }

    /// Returns about how many of those bytes are at or behind an offset: of its segment in proportion.
    pub(crate) fn bytes_from(&self, offset: i64) -> u64 {
        let (mut end, mut bytes) = (self.committed, 0);
        for segment in self.segments.iter().rev() {
            if segment.base_offset < offset {
                let part = |from: i64| u64::try_from(end - from).unwrap_or(0);
                let (behind, all) = (part(offset), part(segment.base_offset).max(1));
                return bytes + segment.size / all * behind + segment.size % all * behind / all;
            }
            (end, bytes) = (segment.base_offset, bytes + segment.size);
        }
        bytes
    }

    /// Returns the last batch of each producer with sequences.
    pub(crate) fn active_producers(&self) -> impl Iterator<Item = ActiveProducer> {
        self.producers.active()
    }

    /// Returns the number of remembered producers.
    pub(crate) fn producers_len(&self) -> usize {
        self.producers.len()
    }

    /// Returns the error for a client that cannot be served here now, if there is one.
    pub(crate) fn obstacle(&self) -> Option<ErrorCode> {
        if self.group.failure().is_some() {
            Some(ErrorCode::KafkaStorageError)
        } else if self.group.is_serving() {
            None
        } else {
            Some(ErrorCode::NotLeaderOrFollower)
        }
    }

    /// Returns the error for a read here now, if there is one. A follower serves reads up to the high watermark that it
    /// knows. A follower that knows no leader may be cut off, and its clients go elsewhere.
    pub(crate) fn obstacle_to_reading(&self) -> Option<ErrorCode> {
        let follows = self.group.failure().is_none() && self.group.leader().is_some();
        if self.group.is_beginning() {
            return Some(ErrorCode::NotLeaderOrFollower); // what is to be read is not shown yet
        }
        if follows { None } else { self.obstacle() }
    }

    /// Tells whether fewer replicas than `min.insync.replicas` are caught up. A setting above the number of replicas
    /// counts as all of them.
    pub(crate) fn lacks_replicas(&self) -> bool {
        if self.settings.min_insync_replicas <= 1 {
            return false;
        }
        let caught_up = self.group.caught_up().count();
        let wanted = usize::try_from(self.settings.min_insync_replicas).unwrap_or(usize::MAX);
        caught_up < wanted.min(self.group.voters())
    }

    /// Compares a client's idea of the leader epoch with ours; -1 is none.
    pub(crate) fn check_epoch(&self, epoch: i32) -> Result<(), ErrorCode> {
        match epoch.cmp(&self.group.epoch()) {
            _ if epoch < 0 => Ok(()),
            std::cmp::Ordering::Less => Err(ErrorCode::FencedLeaderEpoch),
            std::cmp::Ordering::Equal => Ok(()),
            std::cmp::Ordering::Greater => Err(ErrorCode::UnknownLeaderEpoch),
        }
    }

    /// Returns the leader epoch under which the record at `offset` was appended; -1 if there is none.
    pub(crate) fn epoch_at(&self, offset: i64) -> i32 {
        let runs = self.group.term_runs();
        let at = runs.partition_point(|run| run.start_offset <= offset);
        let term = at.checked_sub(1).map(|at| runs[at].term);
        term.and_then(|term| i32::try_from(term).ok()).unwrap_or(-1)
    }

    /// Returns the start offsets of the epochs that matter to a lookup by time.
    pub(crate) fn epochs(&self) -> Vec<(i64, i32)> {
        let runs = self.group.term_runs().iter();
        runs.map(|run| (run.start_offset, i32::try_from(run.term).unwrap_or(-1))).collect()
    }

    /// Returns the largest epoch not above `epoch` and its end offset, or `(-1, -1)`.
    pub(crate) fn epoch_end(&self, epoch: i32) -> (i32, i64) {
        let Ok(asked) = u64::try_from(epoch) else { return (-1, -1) };
        if epoch > self.group.epoch() {
            return (-1, -1);
        }
        let runs = self.group.term_runs();
        let at = runs.partition_point(|run| run.term <= asked);
        let end = runs.get(at).map_or(self.committed, |next| next.start_offset);
        let end = end.max(self.log_start).min(self.committed);
        let known = at.checked_sub(1).and_then(|at| i32::try_from(runs[at].term).ok());
        (known.unwrap_or(epoch), end)
    }

    /// Appends a batch, or finds it appended already.
    pub(crate) fn produce(
        &mut self,
        now: Now,
        batch: CheckedBatch,
        acks: Acks,
        slot: Slot,
    ) -> Appended {
        if let Some(refused) = self.refuse(now, &batch) {
            return refused;
        }
        let header = &batch.header;
        let count = header.last_offset_delta.unsigned_abs() + 1;
        let verdict = if header.producer_id >= 0 {
            let (id, epoch) = (header.producer_id, header.producer_epoch);
            let is_stray = !header.attributes.is_transactional() && self.producers.is_open(id);
            match self.producers.check(id, epoch, header.base_sequence, count) {
                Verdict::Refuse(ErrorCode::UnknownProducerId) => self.judge_stranger(&batch),
                // Its transaction is open, and the batch is not of it.
                Verdict::Append if is_stray => Verdict::Refuse(ErrorCode::InvalidTxnState),
                verdict => verdict,
            }
        } else {
            Verdict::Append
        };
        if leaves_gap(verdict) {
            let last = self.producers.last_offset(header.producer_id, header.producer_epoch);
            if let Some(code) = self.refused.judge(header, &self.group, last) {
                return Appended::Refused(code, None);
            }
        }
        match verdict {
            Verdict::Append => self.refused.forget(header.producer_id),
            Verdict::Refuse(code) if acks == Acks::None || self.group.is_alone() => {
                return Appended::Refused(code, None);
            }
            Verdict::Refuse(code) => {
                // A producer would give up, though a leader that came after this one may know its sequence.
                self.doubted.push(self.group.doubt(), (slot, code));
                return Appended::Waits { append_time_ms: -1 };
            }
            Verdict::Duplicate { mut base_offset, uncommitted } => {
                if sabotage::is(Bug::DuplicateOffsetWrong) {
                    base_offset += 1;
                }
                let waits = uncommitted.filter(|_| acks != Acks::None);
                let Some(index) = waits else { return Appended::Done { base_offset } };
                return self.wait(index, acks, Waiting { slot, base_offset }, -1);
            }
        }
        // A retry of a batch that is there has its answer above, whatever has changed since.
        if let Some(reason) = self.objection(&batch.guard) {
            return self.object(reason, slot);
        }
        let CheckedBatch { bytes, header, summary, .. } = batch;
        let end = self.group.end_offset();
        let appended = self.append_bytes(now, bytes, &header, summary.max_timestamp, acks, slot);
        if self.settings.queue && self.group.end_offset() > end {
            self.fresh.note(self.group.end_offset(), summary.keys);
        }
        appended
    }

    /// Notes that a batch was refused.
    pub(crate) fn note_refused(&mut self, header: &BatchHeader, code: ErrorCode) {
        self.refused.note(header, self.group.epoch(), code);
    }

    /// Judges a batch of an unknown producer that goes on with its sequence. As in Kafka the batch may be appended: the
    /// producer wrote to an earlier topic of this name, was forgotten, or is of another cluster. Where all of this is
    /// impossible, earlier batches are still to come.
    fn judge_stranger(&self, batch: &CheckedBatch) -> Verdict {
        let id = batch.header.producer_id;
        let is_transactional = batch.header.attributes.is_transactional();
        let is_new =
            self.settings.newcomers.contains(&id) && !self.producers.may_have_forgotten(id);
        match () {
            // As Kafka has it, a transaction of the second protocol does not begin in the middle.
            () if is_transactional && (is_new || batch.adds_itself) => {
                Verdict::Refuse(ErrorCode::OutOfOrderSequenceNumber)
            }
            () if is_new => Verdict::Refuse(ErrorCode::UnknownProducerId),
            () => Verdict::Append,
        }
    }

    /// Appends a batch of this node's own: what a coordinator keeps of its groups.
    pub(crate) fn append_own(&mut self, now: Now, bytes: BytesMut, slot: Slot) -> Appended {
        if let Some(code) = self.obstacle() {
            return Appended::Refused(code, None);
        }
        if self.lacks_replicas() {
            return Appended::Refused(ErrorCode::NotEnoughReplicas, None);
        }
        // Nobody has checked its keys and headers.
        if self.settings.queue {
            return Appended::Refused(ErrorCode::PolicyViolation, None);
        }
        // A record that was taken once is not lost for the headers that say what became of it.
        let is_bounded = !matches!(slot, Slot::Delivery(_));
        let bytes_max = usize::try_from(self.settings.max_message_bytes).unwrap_or(0);
        if is_bounded && bytes.len() > bytes_max {
            return Appended::Refused(ErrorCode::MessageTooLarge, None);
        }
        let Ok(header) = BatchHeader::parse(&bytes) else {
            return Appended::Refused(ErrorCode::CorruptMessage, None);
        };
        if header.producer_id >= 0
            && !self.producers.admits(header.producer_id, header.producer_epoch)
        {
            return Appended::Refused(ErrorCode::InvalidProducerEpoch, None);
        }
        let acks = if sabotage::is(Bug::CommittedBeforeStored) { Acks::None } else { Acks::All };
        self.append_bytes(now, bytes, &header, header.max_timestamp, acks, slot)
    }

    /// Appends a statement about a queue, which the caller has judged.
    pub(crate) fn say(&mut self, now: Now, statement: &Statement, slot: Slot) -> Appended {
        assert!(self.settings.queue, "only a log of queues says something of them");
        if let Some(code) = self.obstacle() {
            return Appended::Refused(code, None);
        }
        if self.lacks_replicas() {
            return Appended::Refused(ErrorCode::NotEnoughReplicas, None);
        }
        let bytes = batch_of(now.wall_ms, std::slice::from_ref(statement));
        let header = BatchHeader::parse(&bytes).expect("it was just built");
        let end = self.group.end_offset();
        let time = header.max_timestamp;
        let appended = self.append_bytes(now, bytes, &header, time, Acks::All, slot);
        if self.group.end_offset() > end {
            let number = Some(key_number(&statement.queue));
            self.fresh.note(self.group.end_offset(), Keys { number, ..Keys::default() });
        }
        appended
    }

    /// Returns the offset up to which the index has to know the log. Then it knows all elements of a queue whose name
    /// has this number.
    pub(crate) fn fresh_end(&self, number: i32) -> i64 {
        self.fresh.end_of(number)
    }

    /// Returns the sequence that the next batch of a producer has.
    pub(crate) fn next_sequence(&self, id: i64, epoch: i16) -> i32 {
        self.producers.next_sequence(id, epoch)
    }

    /// Judges a batch's header by its producer's sequence.
    pub(crate) fn verdict(&self, header: &BatchHeader) -> Verdict {
        let count = header.last_offset_delta.unsigned_abs() + 1;
        let (id, epoch) = (header.producer_id, header.producer_epoch);
        self.producers.check(id, epoch, header.base_sequence, count)
    }

    /// Ends a producer's transaction, if it has one here. True if `slot` now waits for that to be committed.
    pub(crate) fn mark(&mut self, now: Now, marker: Marker, slot: Slot) -> Result<bool, ErrorCode> {
        if let Some(code) = self.obstacle() {
            return Err(code);
        }
        let Marker { producer_id, epoch, coordinator_epoch, .. } = marker;
        match self.producers.check_marker(producer_id, epoch, coordinator_epoch) {
            Ending::Told(code)
                if self.group.is_alone() || sabotage::is(Bug::StaleLeaderAnswers) =>
            {
                if code.is_none() { Ok(false) } else { Err(code) }
            }
            Ending::Told(code) => {
                // A leader that came after this one may have what is to be ended.
                self.doubted.push(self.group.doubt(), (slot, code));
                Ok(true)
            }
            Ending::Waits(index) => {
                self.wait(index, Acks::All, Waiting { slot, base_offset: -1 }, -1);
                Ok(true)
            }
            Ending::Append => {
                let bytes = marker.batch(now.wall_ms);
                let header = BatchHeader::parse(&bytes).expect("it was just built");
                match self.append_bytes(now, bytes, &header, header.max_timestamp, Acks::All, slot)
                {
                    Appended::Waits { .. } => Ok(true),
                    Appended::Done { .. } => Ok(false),
                    Appended::Objected { reason, .. } => {
                        unreachable!("a marker has no guard, and there is {reason:?}")
                    }
                    Appended::Busy(_) => Err(ErrorCode::NotEnoughReplicas),
                    Appended::Refused(code, _) => Err(code),
                    Appended::Faulty(faults) => Err(faults.code),
                }
            }
        }
    }

    fn refuse(&self, now: Now, batch: &CheckedBatch) -> Option<Appended> {
        let refused = |code, text: String| Some(Appended::Refused(code, Some(text)));
        if let Some(code) = self.obstacle() {
            return Some(Appended::Refused(code, None));
        }
        let settings = &self.settings;
        let bytes = batch.greatest_bytes.max(batch.bytes.len() - batch.added_bytes);
        if bytes > usize::try_from(settings.max_message_bytes).unwrap_or(0) {
            let most = settings.max_message_bytes;
            let text =
                format!("the batch of {bytes} bytes is larger than max.message.bytes={most}");
            return refused(ErrorCode::MessageTooLarge, text);
        }
        faults::of(settings, now.wall_ms, &batch.summary).map(Appended::Faulty)
    }

    fn append_bytes(
        &mut self,
        now: Now,
        bytes: BytesMut,
        header: &BatchHeader,
        max_timestamp: i64,
        acks: Acks,
        slot: Slot,
    ) -> Appended {
        let (index, base_offset, append_time_ms) =
            match self.propose_bytes(now, bytes, header, max_timestamp) {
                Ok(placed) => placed,
                Err(refused) => return refused,
            };
        match acks {
            Acks::None => Appended::Done { base_offset },
            _ if sabotage::is(Bug::AckedBeforePersisted) => Appended::Done { base_offset },
            _ => self.wait(index, acks, Waiting { slot, base_offset }, append_time_ms),
        }
    }

    /// Proposes a batch. Returns its index, its first offset, and the time written into it, or -1.
    fn propose_bytes(
        &mut self,
        now: Now,
        mut bytes: BytesMut,
        header: &BatchHeader,
        max_timestamp: i64,
    ) -> Result<(u64, i64, i64), Appended> {
        let base_offset = self.group.end_offset();
        batch::set_base_offset(&mut bytes, base_offset);
        batch::set_partition_leader_epoch(&mut bytes, self.group.epoch());
        let mut append_time_ms = -1;
        if self.settings.log_append_time {
            append_time_ms = now.wall_ms;
            batch::restamp(&mut bytes, TimestampType::LogAppendTime, append_time_ms);
        } else if header.max_timestamp != max_timestamp
            || header.attributes.timestamp_type() == TimestampType::LogAppendTime
        {
            // The time index and retention rely on it, so a producer's mistake is corrected here;
            // and a time of append is not a producer's to claim.
            batch::restamp(&mut bytes, TimestampType::CreateTime, max_timestamp);
        }
        let Ok(mut descriptor) = Descriptor::of_batch(&bytes, false) else {
            return Err(Appended::Refused(ErrorCode::CorruptMessage, None));
        };
        descriptor.starts_segment = self.rolls(now, &descriptor);
        let index =
            self.group.propose_batch(&descriptor, bytes.freeze()).map_err(
                |refused| match refused {
                    Refused::NotLeader => Appended::Refused(ErrorCode::NotLeaderOrFollower, None),
                    Refused::Failed => Appended::Refused(ErrorCode::KafkaStorageError, None),
                    Refused::Full => {
                        Appended::Busy("too much of this partition waits for its followers")
                    }
                },
            )?;
        assert_eq!(self.group.end_offset(), descriptor.end_offset(), "the log ends with the batch");
        assert!(base_offset >= self.committed, "a batch is appended behind all that is committed");
        self.note_appended(now, &descriptor);
        self.producers.propose(index, &descriptor);
        Ok((index, base_offset, append_time_ms))
    }

    /// Proposes that offsets below `offset` go. `Ok(true)` if `slot` now waits for it.
    pub(crate) fn trim(&mut self, offset: i64, slot: Option<Slot>) -> Result<bool, ErrorCode> {
        if let Some(code) = self.obstacle() {
            return Err(code);
        }
        if offset > self.committed || offset < -1 {
            return Err(ErrorCode::OffsetOutOfRange);
        }
        if offset <= self.log_start {
            return Ok(false);
        }
        if self.keeps_trim(offset, None, slot) {
            return Ok(true);
        }
        let entry = self.trim_entry(offset, None).encode();
        let index = self.group.propose_internal(&entry).map_err(|refused| match refused {
            Refused::NotLeader => ErrorCode::NotLeaderOrFollower,
            Refused::Failed => ErrorCode::KafkaStorageError,
            Refused::Full => ErrorCode::NotEnoughReplicas,
        })?;
        self.trimming = self.trimming.max(offset);
        assert!(self.trimming <= self.committed, "only committed records are to be trimmed");
        if let Some(slot) = slot {
            self.wait(index, Acks::All, Waiting { slot, base_offset: -1 }, -1);
        }
        Ok(true)
    }

    /// Proposes what retention asks for. Without a believed wall clock only size counts. True if
    /// something was proposed.
    pub(crate) fn retain(&mut self, wall_ms: Option<i64>) -> bool {
        if !self.settings.delete || self.obstacle().is_some() {
            return false;
        }
        let mut keep = retention::Keep {
            ms: self.settings.retention_ms,
            bytes: self.settings.retention_bytes,
        };
        if sabotage::is(Bug::RetentionHalved) {
            keep.ms -= keep.ms / 2;
        }
        let from = self.log_start.max(self.trimming);
        let to = {
            let segments = self.undated.dated(&self.segments, wall_ms);
            retention::trim_to(&segments, self.log_start, self.committed, keep, wall_ms)
        };
        to.filter(|to| *to > from).is_some_and(|to| self.trim(to, None).is_ok())
    }

    /// Proposes to forget producers that were not heard of since `before_us`. True if there were.
    pub(crate) fn expire_producers(&mut self, now: Now, before_us: u64) -> bool {
        if self.obstacle().is_some() {
            return false;
        }
        let Some(before) = self.producers.unused_before(before_us, self.committed) else {
            return false;
        };
        // A member may still hold a batch that is committed. A later leader must not take it for a new one.
        let forgets = sabotage::is(Bug::ForgottenInStretch);
        if self.is_in_stretch() && !forgets && self.renew_stretch(now).is_err() {
            return false;
        }
        let entry = Internal::ExpireProducers { before }.encode();
        self.group.propose_internal(&entry).is_ok()
    }

    /// Collects what the group has ready, executes what was committed, and says who is to be told.
    pub(crate) fn turn(&mut self, now: Now, actions: &mut Vec<Action>, effects: &mut Effects) {
        let replica = self.group.id();
        let applied = self.group.applied();
        let emit = |kind| Action::Storage(Op { replica, kind });
        self.settle(now);
        self.adopt(now);
        self.hear_late();
        // A hold goes before the write of a term in which it could not be taken, and before a cut.
        actions.extend(self.fast.ops.drain(..).map(emit));
        let turn = self.group.collect();
        actions.extend(turn.ops.into_iter().map(emit));
        (effects.messages, effects.reads) = (turn.messages, turn.reads);
        if let Some(first) = turn.cut {
            assert!(first > applied || turn.begun.is_some(), "applied entries are never cut");
            self.cut(first, &turn.removed, effects);
        }
        if let Some(beginning) = &turn.begun {
            self.begin_anew(beginning, now, effects);
        }
        turn.appended.iter().for_each(|entry| self.note_appended_elsewhere(entry));
        let (before, shown) = ((self.committed, self.stable()), self.shown_ends());
        let log_start = self.log_start;
        self.indexed.take_report();
        for entry in &turn.committed {
            if let Some(op) = self.apply(entry, now) {
                actions.push(emit(op));
                self.group.trim(self.log_start);
            }
        }
        self.follow_stretch(now, effects);
        actions.extend(self.fast.ops.drain(..).map(emit));
        if self.trims_again && self.committed >= self.log_start {
            self.trims_again = false;
            self.group.trim(self.log_start);
        }
        // The image says that it holds all that was applied, so it is made after that.
        for snapshot in turn.snapshots {
            let claimed = self.group.applied() + u64::from(sabotage::is(Bug::ImageClaimsMore));
            let image = self.view_image(claimed);
            let image = if sabotage::is(Bug::SnapshotWithoutImage) { Bytes::new() } else { image };
            let log_start = self.log_start;
            effects.messages.extend(self.group.with_image(snapshot, image, log_start));
        }
        if self.shown() > shown.0 && !self.fetches.is_empty() {
            let growth = self.growth(shown);
            effects.woken.extend(self.fetches.iter().map(|key| (*key, growth)));
        }
        actions.extend(self.order().into_iter().flatten());
        self.finish(effects);
        self.refuse_for_certain(effects);
        self.note_leadership(now, effects);
        self.touch_watchers(effects);
        assert!(
            turn.begun.is_some() || self.committed >= before.0,
            "the high watermark never falls"
        );
        assert!(self.log_start >= log_start, "the log start never falls");
        assert!(self.stable() >= before.1, "the last stable offset never falls");
        self.inspect();
    }

    /// Begins this replica's log anew, as its leader's does: all that was here is gone.
    fn begin_anew(&mut self, beginning: &Beginning, now: Now, effects: &mut Effects) {
        self.fail_waiting(0, ErrorCode::NotLeaderOrFollower, effects);
        match View::of(&beginning.image, now.mono_us) {
            Some(view) => self.take_view(view),
            None => self.group.fail("an image came that this version cannot read".to_owned()),
        }
        let end = beginning.end_offset;
        (self.committed, self.log_start, self.segments_end) = (end, end, end);
        self.segments.clear();
        self.undated = Undated::default();
        self.compacting.done = Compacted::default();
        if let Some(given) = &beginning.given {
            self.log_start = given.log_start.min(end);
            self.segments.clone_from(&given.segments);
            self.note_compacted(given.compacted);
        }
        self.drop_known_holds();
        self.active = None;
        self.beginnings += 1;
        (self.trimming, self.fencing) = (0, None);
        self.indexed.begin_anew();
        effects.woken.extend(self.fetches.iter().map(|key| (*key, Growth::default())));
    }

    /// Drops the proposals from an index on, because a newer leader's entries replaced them.
    fn cut(&mut self, first: u64, removed: &[LogEntry], effects: &mut Effects) {
        self.stretches.cut(first);
        if !sabotage::is(Bug::CutKeepsProducers) {
            let cut = self.producers.cut(first);
            self.refused.note_cut(&cut, self.group.epoch());
        }
        if !sabotage::is(Bug::CutKeepsWaiting) {
            self.fail_waiting(first, ErrorCode::NotLeaderOrFollower, effects);
        }
        // Recovery counts segments up to the log's end; only what is committed counts otherwise.
        let batches = removed.iter().rev().filter_map(|entry| match &entry.content {
            Content::Batch(batch) => Some(batch),
            Content::Internal(_) => None,
        });
        for batch in batches.filter(|batch| batch.base_offset >= self.committed) {
            if batch.base_offset >= self.segments_end {
                continue;
            }
            self.segments_end = batch.base_offset;
            let Some(segment) = self.segments.last_mut() else { continue };
            // Its largest time may be one that is gone; so it stays a little longer.
            segment.size = segment.size.saturating_sub(u64::from(batch.length));
            if segment.base_offset == batch.base_offset {
                self.segments.pop();
            }
        }
    }

    /// Notes an entry of another leader, or one that a start has found: the next leader goes on behind it.
    fn note_appended_elsewhere(&mut self, entry: &LogEntry) {
        match &entry.content {
            Content::Batch(batch) => {
                self.producers.propose(entry.index, batch);
                if sabotage::is(Bug::HeldGoneAtAppend) {
                    self.fast.ops.extend(self.fast.holds.on_committed(batch));
                }
            }
            Content::Internal(_) => {
                self.stretches.note(entry);
                if sabotage::is(Bug::SweptAtAppend)
                    && let Some(current) = self.stretches.current()
                {
                    self.fast.ops.extend(self.fast.holds.on_change(current.at));
                }
            }
        }
    }

    fn apply(&mut self, entry: &LogEntry, now: Now) -> Option<OpKind> {
        match &entry.content {
            Content::Batch(batch) => {
                assert_eq!(batch.base_offset, self.committed, "committed offsets are dense");
                self.committed = batch.end_offset();
                let is_replayed = batch.base_offset < self.segments_end;
                if !(is_replayed && sabotage::is(Bug::DedupNotRebuilt)) {
                    self.producers.apply(entry.index, batch, now.mono_us);
                }
                self.note_segment(entry.index, batch, now.wall_ms);
                self.fast.ops.extend(self.fast.holds.on_committed(batch));
                // A segment that was trimmed while it was the active one can go now.
                self.drop_segments().then_some(OpKind::Trim { log_start: self.log_start })
            }
            Content::Internal(bytes) => match internal_of(bytes) {
                Ok(None) => None,
                Ok(Some(ours)) => {
                    self.follow_change(entry);
                    self.execute(entry.index, ours)
                }
                Err(()) => {
                    self.group.fail(format!("entry {} is of an unknown version", entry.index));
                    None
                }
            },
        }
    }

    fn execute(&mut self, index: u64, entry: &[u8]) -> Option<OpKind> {
        match Internal::decode(entry) {
            Some(Internal::Trim { offset }) => self.begin_at(offset),
            Some(Internal::Truncate { offset, term, pointer }) => {
                self.controls.truncate(offset, term, pointer);
                self.begin_at(offset)
            }
            Some(Internal::Fence { token }) => {
                self.apply_fence(index, token);
                None
            }
            Some(Internal::Compact { below, tombstones_below, at_ms }) => {
                self.compacting.decided.apply(index, (below, tombstones_below), at_ms, false);
                self.group.compact(below, index);
                None
            }
            Some(Internal::Erase { below, statements_below, at_ms, expired_by_ms }) => {
                let decided = &mut self.compacting.decided;
                decided.apply(index, (below, statements_below), at_ms, true);
                decided.expire(index, expired_by_ms);
                self.group.compact(below, index);
                None
            }
            // The stretches know of it.
            Some(Internal::Open { .. } | Internal::Close) => None,
            Some(Internal::ExpireProducers { before }) => {
                self.producers.expire(index, before);
                None
            }
            Some(Internal::ExpireNamed { ids }) => {
                self.producers.expire_named(index, &ids);
                None
            }
            None => {
                self.group.fail("an internal entry is of an unknown kind".to_owned());
                None
            }
        }
    }

    /// Moves the log start forward. Returns the op for storage, if the start has moved.
    fn begin_at(&mut self, offset: i64) -> Option<OpKind> {
        if offset <= self.log_start {
            return None;
        }
        assert!(self.trims_again || offset <= self.committed, "only committed records go");
        self.log_start = offset;
        self.producers.trim(offset);
        self.drop_segments();
        let is_stored = !sabotage::is(Bug::TrimNotStored);
        is_stored.then_some(OpKind::Trim { log_start: offset })
    }

    fn note_segment(&mut self, index: u64, batch: &Descriptor, wall_ms: i64) {
        // Recovery has counted what was in the log already.
        if batch.base_offset < self.segments_end {
            return;
        }
        assert_eq!(batch.base_offset, self.segments_end, "segments have no gap");
        self.segments_end = batch.end_offset();
        if batch.starts_segment || self.segments.is_empty() {
            let base_offset = batch.base_offset;
            let segment =
                SegmentMeta { base_offset, first_index: index, size: 0, max_timestamp: -1 };
            self.segments.push(segment);
            self.note_begun(base_offset, batch.max_timestamp);
        }
        let segment = self.segments.last_mut().expect("there is one now");
        segment.size += u64::from(batch.length);
        segment.max_timestamp = segment.max_timestamp.max(batch.max_timestamp);
        self.undated.note(segment, wall_ms);
    }

    /// Forgets segments wholly below the log start.
    fn drop_segments(&mut self) -> bool {
        if self.log_start >= self.segments_end {
            return !std::mem::take(&mut self.segments).is_empty();
        }
        let bases = &self.segments[1.min(self.segments.len())..];
        let gone = bases.partition_point(|next| next.base_offset <= self.log_start);
        self.segments.drain(..gone);
        gone > 0
    }

    fn note_leadership(&mut self, now: Now, effects: &mut Effects) {
        let serves = self.group.is_serving().then(|| self.group.term());
        // A follower will not serve soon. A request that waits for a leader learns of another node's leader, once that
        // serves.
        let is_led = !self.group.is_alone()
            && self.group.leader().is_some()
            && !self.group.is_before_first_leader();
        if serves.is_some() || is_led || self.group.failure().is_some() {
            effects.served.append(&mut self.creators);
        }
        if self.served == serves {
            return;
        }
        if self.served.is_some() {
            let error = match self.obstacle() {
                Some(error) => error,
                None => ErrorCode::NotLeaderOrFollower,
            };
            self.fail_waiting(0, error, effects);
            effects.woken.extend(self.fetches.iter().map(|key| (*key, Growth::default())));
        }
        self.trimming = 0;
        self.fencing = None;
        self.fresh.begin_term(self.group.end_offset());
        self.indexed.begin_term(serves.map(|_| self.group.end_offset()));
        self.forget_proposed();
        self.roll_due = false;
        if serves.is_some() && !self.group.is_alone() && !sabotage::is(Bug::StaleSegment) {
            // Entries that other leaders appended are applied by now, and this replica appended nothing else.
            self.active = self.last_segment(now);
        }
        effects.serves = Some(serves.is_some());
        self.served = serves;
    }
}

/// Stamps the payload of an own batch, so that it can be appended as it is.
pub(crate) fn stamp(mut bytes: BytesMut, base_offset: i64, epoch: i32) -> Bytes {
    batch::set_base_offset(&mut bytes, base_offset);
    batch::set_partition_leader_epoch(&mut bytes, epoch);
    bytes.freeze()
}
