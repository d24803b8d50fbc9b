//! # Room card: native
//!
//! Purpose:    requests and answers of the native API, as data.
//! Owns:       [`Op`], [`Answer`], [`Problem`], [`Pointer`], [`Target`], [`Span`].
//! Interface:  the types.
//! Invariants: a refusal means that nothing was appended; only [`Problem::OutcomeUnknown`] leaves that open.
//! Never:      gRPC, HTTP, JSON (see the server); carrying an operation out (see `api/native`).
//! Tests:      `node/tests/native.rs`.
//! Start at:   [`Op`].

use bytes::Bytes;
use duramen_protocol::partitioner::partition_of_key;
use duramen_storage::op::ReplicaId;

use crate::checked_batch::CheckedBatch;
pub use crate::guard::{Guard, Last, Position};
use crate::limits::POINTER_BYTES_MAX;

/// One partition of a topic, as a log of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Log {
    /// Name of the topic.
    pub topic: String,
    /// Number of the partition.
    pub partition: i32,
}

/// One queue: all records of one key, in the partition of a topic that the key's hash gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queue {
    /// Name of the topic, which has `queue.enable`.
    pub topic: String,
    /// The key.
    pub name: Bytes,
}

/// Log or queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A log.
    Log(Log),
    /// A queue.
    Queue(Queue),
}

impl Target {
    /// Returns the name of the topic.
    pub fn topic(&self) -> &str {
        match self {
            Self::Log(log) => &log.topic,
            Self::Queue(queue) => &queue.topic,
        }
    }

    /// Returns the number of the partition in a topic that has so many.
    pub fn partition(&self, partitions: usize) -> i32 {
        match self {
            Self::Log(log) => log.partition,
            Self::Queue(queue) => {
                partition_of_key(&queue.name, i32::try_from(partitions).unwrap_or(i32::MAX))
            }
        }
    }
}

/// Place of the state that a log's first records led to, for readers that come too late for them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pointer {
    /// Place of a snapshot.
    pub uri: String,
    /// The last position that the snapshot covers.
    pub position: Option<Position>,
    /// Its SHA-256; may be empty.
    pub sha256: Bytes,
    /// Text for people.
    pub note: String,
}

impl Pointer {
    /// Returns the size that counts against [`POINTER_BYTES_MAX`].
    pub fn bytes(&self) -> usize {
        self.uri.len() + self.sha256.len() + self.note.len()
    }

    /// Tells whether a log may keep the pointer.
    pub fn is_small(&self) -> bool {
        self.bytes() <= POINTER_BYTES_MAX
    }
}

/// An operation of the native API.
#[derive(Debug)]
pub enum Op {
    /// Append one batch.
    Append(Append),
    /// Tell the ends of a log.
    Tail(WantTail),
    /// Remove the first records of a log.
    Truncate(Truncate),
    /// Set a log's fence.
    Fence(SetFence),
    /// Delete elements of a queue.
    Delete(Delete),
    /// Give an element another content.
    Replace(Replace),
    /// Withdraw the last elements of a queue, and append others in their place.
    Rewrite(Rewrite),
    /// Delete all elements of a queue.
    DeleteQueue(DeleteQueue),
    /// Have readers of a queue begin behind a position.
    TrimQueue(TrimQueue),
    /// Set a queue's fence.
    FenceQueue(SetFence),
    /// Read elements of a queue, or wait for them.
    Retrieve(Retrieve),
    /// Tell how much a queue has.
    GetQueue(WantQueue),
    /// Tell the queues of one partition.
    ListQueues(WantTail),
    /// Lease records to a worker.
    Lease(Lease),
    /// End a worker's leases, or prolong them.
    Settle(Settle),
}

impl Op {
    /// Returns the operation's name.
    pub fn name(&self) -> Name {
        match self {
            Self::Append(_) => Name::Append,
            Self::Tail(_) => Name::Tail,
            Self::Truncate(_) => Name::Truncate,
            Self::Fence(_) => Name::Fence,
            Self::Delete(_) => Name::Delete,
            Self::Replace(_) => Name::Replace,
            Self::Rewrite(_) => Name::Rewrite,
            Self::DeleteQueue(_) => Name::DeleteQueue,
            Self::TrimQueue(_) => Name::TrimQueue,
            Self::FenceQueue(_) => Name::FenceQueue,
            Self::Retrieve(_) => Name::Retrieve,
            Self::GetQueue(_) => Name::GetQueue,
            Self::ListQueues(_) => Name::ListQueues,
            Self::Lease(_) => Name::Lease,
            Self::Settle(_) => Name::Settle,
        }
    }

    /// Returns the log or queue that the operation is about.
    pub fn target(&self) -> &Target {
        match self {
            Self::Append(it) => &it.target,
            Self::Tail(it) | Self::ListQueues(it) => &it.target,
            Self::Truncate(it) => &it.target,
            Self::Fence(it) | Self::FenceQueue(it) => &it.target,
            Self::Delete(it) => &it.target,
            Self::Replace(it) => &it.target,
            Self::Rewrite(it) => &it.target,
            Self::DeleteQueue(it) => &it.target,
            Self::TrimQueue(it) => &it.target,
            Self::Retrieve(it) => &it.target,
            Self::GetQueue(it) => &it.target,
            Self::Lease(it) => &it.target,
            Self::Settle(it) => &it.target,
        }
    }

    /// Returns the bytes of batches that the operation carries.
    pub(crate) fn bytes(&self) -> u64 {
        let batch = match self {
            Self::Append(it) => Some(&it.batch),
            Self::Replace(it) => Some(&it.batch),
            Self::Rewrite(it) => it.batch.as_ref(),
            _ => None,
        };
        batch.map_or(0, |batch| batch.bytes.len() as u64)
    }
}

/// Name of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Name {
    /// [`Op::Append`].
    Append,
    /// [`Op::Tail`].
    Tail,
    /// [`Op::Truncate`].
    Truncate,
    /// [`Op::Fence`].
    Fence,
    /// [`Op::Delete`].
    Delete,
    /// [`Op::Replace`].
    Replace,
    /// [`Op::Rewrite`].
    Rewrite,
    /// [`Op::DeleteQueue`].
    DeleteQueue,
    /// [`Op::TrimQueue`].
    TrimQueue,
    /// [`Op::FenceQueue`].
    FenceQueue,
    /// [`Op::Retrieve`].
    Retrieve,
    /// [`Op::GetQueue`].
    GetQueue,
    /// [`Op::ListQueues`].
    ListQueues,
    /// [`Op::Lease`].
    Lease,
    /// [`Op::Settle`].
    Settle,
}

impl Name {
    /// All names.
    pub const ALL: [Self; 15] = [
        Self::Append,
        Self::Tail,
        Self::Truncate,
        Self::Fence,
        Self::Delete,
        Self::Replace,
        Self::Rewrite,
        Self::DeleteQueue,
        Self::TrimQueue,
        Self::FenceQueue,
        Self::Retrieve,
        Self::GetQueue,
        Self::ListQueues,
        Self::Lease,
        Self::Settle,
    ];
}

/// Question about the ends of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WantTail {
    /// The log.
    pub target: Target,
    /// True for the ends as a majority confirms them; false for those that any replica here knows.
    pub is_certain: bool,
}

/// Append of one batch to a log: all of its records or none.
#[derive(Debug)]
pub struct Append {
    /// The log.
    pub target: Target,
    /// The records, with their guard.
    pub batch: CheckedBatch,
    /// Id of each record, or none. Without a session, a guard that does not hold because an earlier append of these ids
    /// did is no refusal.
    pub ids: Vec<Bytes>,
    /// True for an append with a place among others. If its client exceeds a quota, it is late instead of refused.
    pub is_patient: bool,
    /// Longest wait for the answer, in milliseconds.
    pub timeout_ms: i32,
}

/// Append under a guard, as the records of its first attempt would show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identified {
    /// Position that the log or queue was to end with.
    pub after: Last,
    /// The queue; empty for a log.
    pub queue: Bytes,
    /// Id of each record.
    pub ids: Vec<Bytes>,
}

/// Removal of the first records of a log.
#[derive(Debug)]
pub struct Truncate {
    /// The log.
    pub target: Target,
    /// The last record that goes; `None` for the last one that is committed.
    pub through: Option<Position>,
    /// Pointer to keep, in the same entry.
    pub pointer: Option<Pointer>,
    /// Token that must be the fence.
    pub fence: Option<Bytes>,
    /// Longest wait for the answer, in milliseconds.
    pub timeout_ms: i32,
}

/// Change of the fence of a log or queue.
#[derive(Debug)]
pub struct SetFence {
    /// The log or queue.
    pub target: Target,
    /// The new token, of at most [`crate::limits::FENCE_BYTES_MAX`] bytes; empty for none.
    pub token: Bytes,
    /// Token that the present fence must equal.
    pub if_token: Option<Bytes>,
    /// Longest wait for the answer, in milliseconds.
    pub timeout_ms: i32,
}

/// Deletion of elements of a queue: readers see them no more, and their offsets stay unused.
#[derive(Debug)]
pub struct Delete {
    /// The queue.
    pub target: Target,
    /// At most [`crate::limits::QUEUE_DELETES_MAX`]. One that names no element is passed over, and counted.
    pub positions: Vec<Position>,
    /// Token that must be the fence.
    pub fence: Option<Bytes>,
    /// Longest wait for the answer, in milliseconds.
    pub timeout_ms: i32,
}

/// Change of the content of an element. The element keeps its position.
#[derive(Debug)]
pub struct Replace {
    /// The queue.
    pub target: Target,
    /// The element.
    pub position: Position,
    /// One record: the new content, with the queue's name as key.
    pub batch: CheckedBatch,
    /// Id of the record. A content with this id is not replaced by itself.
    pub id: Option<Bytes>,
    /// Offset of the record that must be the present content.
    pub if_version: Option<i64>,
    /// Token that must be the fence.
    pub fence: Option<Bytes>,
    /// Longest wait for the answer, in milliseconds.
    pub timeout_ms: i32,
}

/// Withdrawal of all elements behind a position, with others in their place: all in one entry.
#[derive(Debug)]
pub struct Rewrite {
    /// The queue.
    pub target: Target,
    /// The last position that stays; `None` for none.
    pub after: Option<Position>,
    /// Records to append, with the queue's name as key; `None` for none.
    pub batch: Option<CheckedBatch>,
    /// Id of each record, or none. Where elements of these ids are all that is behind `after`, nothing is done again.
    pub ids: Vec<Bytes>,
    /// Token that must be the fence.
    pub fence: Option<Bytes>,
    /// Text for people, of at most [`crate::limits::REASON_BYTES_MAX`] bytes.
    pub reason: String,
    /// Longest wait for the answer, in milliseconds.
    pub timeout_ms: i32,
}

/// Deletion of all elements of a queue.
#[derive(Debug)]
pub struct DeleteQueue {
    /// The queue.
    pub target: Target,
    /// Token that must be the fence.
    pub fence: Option<Bytes>,
    /// Longest wait for the answer, in milliseconds.
    pub timeout_ms: i32,
}

/// Trim of a queue. Readers of the queue begin behind it; the log keeps its records.
#[derive(Debug)]
pub struct TrimQueue {
    /// The queue.
    pub target: Target,
    /// The last position that goes.
    pub through: Position,
    /// Pointer to keep, in the same entry.
    pub pointer: Option<Pointer>,
    /// Token that must be the fence.
    pub fence: Option<Bytes>,
    /// Longest wait for the answer, in milliseconds.
    pub timeout_ms: i32,
}

/// Read of a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retrieve {
    /// The queue.
    pub target: Target,
    /// Place before the first element.
    pub start: Start,
    /// Longest wait for an element, in milliseconds.
    pub wait_ms: i32,
    /// True for what the log has, as a majority confirms it; false for what any replica here knows.
    pub is_certain: bool,
    /// True if the read may go on at the log start if the log begins later than the read.
    pub skips_trimmed: bool,
}

/// Question about a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WantQueue {
    /// The queue.
    pub target: Target,
    /// See [`Retrieve::is_certain`].
    pub is_certain: bool,
}

/// Wish of a worker for records that a share group gives out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The topic, with the partition to lease of, or -1 for all that the node leads.
    pub target: Target,
    /// Name of the group.
    pub group: String,
    /// The worker's name for itself; may be empty.
    pub worker: String,
    /// Most records.
    pub records: i64,
    /// Most bytes of the batches that hold the records; one record may have more.
    pub bytes: u64,
    /// Longest wait for a record, in milliseconds.
    pub wait_ms: i32,
}

/// Decisions of a worker on its leases, all of one partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settle {
    /// The partition.
    pub target: Target,
    /// Name of the group.
    pub group: String,
    /// See [`Lease::worker`].
    pub worker: String,
    /// Each record once.
    pub settlements: Vec<Settlement>,
}

/// Decision on one lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settlement {
    /// Offset of the record.
    pub offset: i64,
    /// Delivery of it that is meant.
    pub deliveries: i16,
    /// The decision.
    pub decision: Decision,
}

/// Fate of a leased record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The work is done.
    Accept,
    /// Somebody else may have the record, after this time in milliseconds.
    Release {
        /// Time that the record waits.
        delay_ms: i64,
    },
    /// The record cannot be worked off.
    Reject,
    /// The lease begins anew.
    Renew,
    /// The worker has not seen the record: the delivery does not count.
    Unseen,
    /// There is no such record any more.
    Gone,
}

/// Place before the first element of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// Begin of the log.
    Begin,
    /// Behind a position.
    After(Position),
    /// At an offset.
    At(i64),
    /// End of the log.
    End,
}

/// Part of a log in which elements are to be found, off the node's thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// Replica whose log it is.
    pub replica: ReplicaId,
    /// Number of the partition.
    pub partition: i32,
    /// Name of the queue; empty for a list of queues.
    pub name: Bytes,
    /// First offset.
    pub from: i64,
    /// Offset behind the last. The index is complete below it.
    pub end: i64,
    /// True if the log has nothing behind `end` that may be shown.
    pub is_whole: bool,
    /// Producer, first and last offset of each aborted transaction in it.
    pub aborted: Vec<(i64, i64, i64)>,
    /// True if the read began below the log start and goes on there.
    pub has_skipped: bool,
    /// Treatment of elements that the queue has trimmed.
    pub trimmed: Trimmed,
    /// Time at or before which elements have ended, in milliseconds since 1970. A page shows none of them.
    pub ended_ms: i64,
    /// True if the bytes that are read count against a quota: [`crate::event::Event::Consumed`].
    pub is_metered: bool,
}

/// Treatment of elements that a queue has trimmed, by a read that begins before them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trimmed {
    /// The read shows them, as the log has them.
    Shown,
    /// The read begins behind them.
    Passed,
    /// The same, and the answer says so.
    Skipped,
    /// The read is refused.
    Refused,
}

impl Span {
    /// Tells whether the part has no offsets.
    pub fn is_empty(&self) -> bool {
        self.end <= self.from
    }
}

/// Result of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The batch is committed.
    Appended {
        /// Position of its first record.
        first: Position,
        /// Position of its last record.
        last: Position,
        /// True if an earlier request had appended it.
        is_duplicate: bool,
    },
    /// An edit is committed, and the leader's readers see it.
    Edited(Edited),
    /// The log as it is now.
    Tail(Tail),
    /// The part of the log that holds a queue's elements, or the queues of a list.
    Span(Span),
    /// Records that a worker has a lease of.
    Leased(Leased),
    /// The decisions are durable, except those on these offsets, of which the worker has no lease.
    Settled(Vec<i64>),
}

/// Records that a worker has a lease of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leased {
    /// The records of each partition, in the order in which the group gives them out.
    pub parts: Vec<LeasedPart>,
    /// Time that the worker has for them, in milliseconds.
    pub lock_ms: i32,
    /// Nodes that lead other partitions which the worker wants, with the address of the native API of each.
    pub others: Vec<(i32, Option<Place>)>,
    /// True if the bytes that are read count against a quota: [`crate::event::Event::Consumed`].
    pub is_metered: bool,
}

/// Leased records of one partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeasedPart {
    /// Replica whose log it is.
    pub replica: ReplicaId,
    /// Number of the partition.
    pub partition: i32,
    /// End of what is committed.
    pub end: i64,
    /// True for a topic of queues, whose index knows which records are not to be seen.
    pub is_of_queues: bool,
    /// Offset of each record, and the count of its deliveries.
    pub records: Vec<(i64, i16)>,
}

/// Outcome of an edit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Edited {
    /// Position of the first record of the entry that says so; `None` if there was nothing to say.
    pub first: Option<Position>,
    /// Position of the last one.
    pub last: Option<Position>,
    /// Number of positions that named no element.
    pub absent: usize,
    /// Number of records that it took away.
    pub withdrawn: usize,
    /// True if an earlier request had done it.
    pub is_duplicate: bool,
}

/// Ends of a log, and its fence and pointer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tail {
    /// The first offset that is there.
    pub start: i64,
    /// One past the last offset before the first open transaction.
    pub stable: i64,
    /// One past the last committed offset.
    pub end: i64,
    /// Position of the last committed record; `None` for a log to which nothing was ever appended.
    pub last: Option<Position>,
    /// The fence; empty for none.
    pub fence: Bytes,
    /// The pointer that the latest truncation kept.
    pub pointer: Option<Pointer>,
}

/// Id of a node that serves the native API, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place(pub i32);

/// Reason of a refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    /// The request is wrong: the field, and why.
    BadRequest(&'static str, String),
    /// The client may not do this.
    NotAuthorized,
    /// The cluster has no such topic or partition.
    UnknownTopic,
    /// Another node leads the log: its id, and the address of its native API, if it serves one.
    Elsewhere(i32, Option<Place>),
    /// No node leads the log, as far as this one knows.
    NoLeader,
    /// The log's last position is another one.
    LastMismatch(Option<Position>),
    /// The element's content is another one, at this offset.
    VersionMismatch(i64),
    /// The queue has no such element.
    UnknownElement,
    /// The log's fence is another one.
    Fenced,
    /// Earlier messages of the session are missing; the log expects this sequence.
    SequenceGap(i32),
    /// The log does not know the session any more.
    SessionExpired,
    /// A newer holder has opened the session.
    SessionFenced,
    /// The topic's keys are no queues.
    NotAQueueTopic,
    /// The log begins at this offset, behind the asked one; the pointer tells where the earlier state is.
    Trimmed(i64, Option<Pointer>),
    /// The log has another history than the position: its own goes on from this offset.
    PositionDiverged(i64),
    /// The records are larger than the topic allows, in bytes.
    TooLarge(u64),
    /// Fewer replicas are in sync than the topic wants.
    NotEnoughReplicas,
    /// The disk is full; the text says which, and what helps.
    DiskFull(String),
    /// The log cannot be read or written here.
    Damaged,
    /// The client exceeds a quota: it has to rest for so many milliseconds.
    Throttled(i32),
    /// Too much waits; the text says for what.
    Busy(&'static str),
    /// The change may or may not become durable.
    OutcomeUnknown,
    /// The group is one of consumers.
    NotAShareGroup,
    /// The worker does not have the lease: its time is over, or it is settled.
    LeaseLost,
}

/// Part of a log that may begin with the records of a refused append: an earlier attempt made it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repeat {
    /// The part, behind the position that the append expected.
    pub span: Span,
    /// Ids that its first records have, if so.
    pub ids: Vec<Bytes>,
}

/// An answer, and what is left to do for it off the node's thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answered {
    /// The answer.
    pub answer: Result<Answer, Problem>,
    /// Replica in whose log the entry of the answer's last position is to be looked up.
    pub lacking: Option<ReplicaId>,
    /// Part of a log to be searched for an earlier attempt of a refused append.
    pub repeat: Option<Repeat>,
    /// Time for which the client is not read afterwards, in milliseconds: it exceeded its quota.
    pub rest_ms: i32,
}

impl Answered {
    /// Tells whether [`crate::read_plan::native`] has something to look up.
    pub fn is_lacking(&self) -> bool {
        self.lacking.is_some() || self.repeat.is_some()
    }

    /// Returns the position that lacks its entry, if there is one.
    pub(crate) fn lacking(&mut self) -> Option<(ReplicaId, &mut Position)> {
        let position = match &mut self.answer {
            Ok(Answer::Tail(tail)) => tail.last.as_mut(),
            Err(Problem::LastMismatch(last)) => last.as_mut(),
            _ => None,
        };
        self.lacking.zip(position.filter(|it| it.entry < 0))
    }
}
