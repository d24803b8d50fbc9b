//! # Room card: event
//!
//! Purpose:    inputs and outputs of a node, as data.
//! Owns:       [`Event`], [`Action`], [`Reply`], [`Now`].
//! Interface:  the types.
//! Invariants: a node learns of the world only by events, and acts on it only by actions.
//! Never:      behaviour.
//! Tests:      those of the crate; the simulator is built from these types.
//! Start at:   [`Event`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use duramen_protocol::Response;
use duramen_protocol::records::Schedule;
use duramen_protocol::sasl::scram::Credential;
use duramen_storage::compaction::Order;
use duramen_storage::indexing::{self, Indexed};
use duramen_storage::keys::{Erasable, Expiry, Said, Standing};
use duramen_storage::mending::{Damage, Mend};
use duramen_storage::op::{Compacted, Done, Op, ReplicaId};
use duramen_storage::staging::Stage;

use crate::login::{Known, WhoIs};
use crate::native::{Answered, Position, Span};
use crate::peer::PeerFrame;
use crate::recompression::Targets;
pub use crate::session::ConnectionId;
use crate::session::{Prepared, RequestContext};

/// The two clocks, read once per turn by whoever drives the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// Monotonic, microseconds since the node was opened.
    pub mono_us: u64,
    /// Wall clock, milliseconds since the epoch. It may leap.
    pub wall_ms: i64,
}

impl Now {
    /// Returns the time at which a request with this timeout ends, in microseconds.
    pub(crate) fn deadline_us(self, timeout_ms: i32) -> u64 {
        let wait_us = u64::from(timeout_ms.max(0).unsigned_abs()) * 1000;
        self.mono_us.saturating_add(wait_us)
    }
}

/// Key of a request that waits for its answer: its connection, and its number there.
pub(crate) type RequestKey = (ConnectionId, u64);

/// Inputs of a node.
#[derive(Debug)]
pub enum Event {
    /// A decoded, checked request. Every one gets exactly one [`Action::Reply`] or
    /// [`Action::Close`], unless its connection was [`Event::Disconnected`] before.
    Request {
        /// Connection that sent the request.
        connection: ConnectionId,
        /// The session's number for it: replies leave the connection in this order.
        sequence: u64,
        /// Principal, client, listener and version of the request.
        context: RequestContext,
        /// The request itself.
        request: Box<Prepared>,
    },
    /// A client says that it is a user. Answered by [`Action::Credential`] or [`Action::Close`].
    WhoIs {
        /// Its connection.
        connection: ConnectionId,
        /// The question.
        asked: WhoIs,
    },
    /// A client has shown that it is a user. Comes before its first request.
    Known {
        /// Its connection.
        connection: ConnectionId,
        /// The user, with the credential of [`Action::Credential`].
        known: Known,
    },
    /// The connection is gone: forget its waiting requests.
    Disconnected(ConnectionId),
    /// Storage reports.
    Storage(Done),
    /// Result of [`Action::ReadLog`].
    LogRead(LogRead),
    /// Result of [`Look::Survey`].
    Surveyed(Surveyed),
    /// Result of [`Look::Date`].
    Dated(Dated),
    /// Result of [`Look::DeadLetters`].
    DeadLetters(DeadLettersMade),
    /// Result of [`Look::Queue`].
    QueueLooked(QueueLooked),
    /// Progress of [`Action::Index`].
    Indexed(Indexed),
    /// A reader found a queue index damaged, missing or behind.
    IndexLost(ReplicaId),
    /// A client read so many bytes of a queue.
    Consumed {
        /// The client, as in its request.
        context: RequestContext,
        /// Bytes of elements.
        bytes: u64,
    },
    /// A segment was found to be damaged: [`duramen_storage::scrub`].
    Damaged(Damage),
    /// A frame from another node. Bytes that are no frame never come here.
    Peer(Box<PeerFrame>),
    /// The node is about to end: others should lead what it leads. Answered by [`Action::Drained`].
    Drain,
    /// The machine was suspended: the monotonic clock stood still, and the wall clock went on. Comes before anything
    /// else that has the new time.
    Suspended {
        /// For so many milliseconds.
        ms: i64,
    },
    /// Settings given at the start that have changed while the node runs. `None` stands for a setting that is no longer
    /// given. All of them were checked.
    Given(Vec<(String, Option<String>)>),
    /// Nodes that this node speaks to without TLS, all of them.
    Plain(BTreeSet<i32>),
    /// Nothing but time passed. Sent when [`crate::Node::deadline`] has come.
    Tick,
}

/// Outputs of a node.
#[derive(Debug)]
pub enum Action {
    /// Answer a request.
    Reply {
        /// Connection that sent the request.
        connection: ConnectionId,
        /// The request's number.
        sequence: u64,
        /// The answer.
        reply: Reply,
    },
    /// Check a client's proof with this credential. That of nobody, which no password fits, looks the same.
    Credential {
        /// Connection that asked.
        connection: ConnectionId,
        /// The credential.
        credential: Arc<Credential>,
    },
    /// Close the connection (an `acks=0` produce failed, or the like).
    Close {
        /// Which.
        connection: ConnectionId,
        /// For the log line.
        reason: String,
    },
    /// Give storage this op. All of one turn's are submitted together.
    Storage(Op),
    /// Read of a log where it does no harm to wait, and answer with [`Event::LogRead`]:
    /// [`crate::read_plan::log_slice`].
    ReadLog(ReadLog),
    /// Look at a log for a share group where it does no harm to wait, and answer with what [`crate::read_plan::look`]
    /// says.
    Look(Look),
    /// Index a log up to an offset, where it does no harm to wait: [`duramen_storage::indexing`]. Answered by
    /// [`Event::Indexed`], several times.
    Index(indexing::Order),
    /// Copy a segment and fill its damaged ranges, where it does no harm to wait, and let storage switch to the copy:
    /// [`duramen_storage::mending`]. Answered by [`Done::Mended`], in any case.
    Mend(Mend),
    /// Compact a log, where it does no harm to wait, and let storage switch to what was made:
    /// [`duramen_storage::compaction`]. Answered by [`Done::Compacted`], in any case.
    Compact(Order),
    /// Keep what another replica gives of a compacted log, where it does no harm to wait: [`duramen_storage::staging`].
    Stage(Stage),
    /// Give this to another node. It may be lost, and come late, twice, or in another order.
    Send {
        /// Its id.
        to: i32,
        /// The frame.
        frame: Box<PeerFrame>,
    },
    /// Other topics have a codec of their own now: those who read requests make batches anew by this table. The answers
    /// of the same turn leave after that.
    Targets(Arc<Targets>),
    /// Other nodes are there now.
    Nodes(Vec<NodeAddress>),
    /// Other directories are the cluster now, or this one is registered.
    Members(Membership),
    /// After [`Event::Drain`]: others lead what they can lead. Said once.
    Drained,
    /// The process must end: what happened may not be survived in memory.
    Fatal(String),
}

/// The data directories that are the cluster, as the metadata says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Membership {
    /// An index of the metadata that is applied here. Of two nodes' lists the one of the higher index is newer, if they
    /// differ.
    pub index: u64,
    /// The directory of each node that stays.
    pub directories: BTreeMap<i32, [u8; 16]>,
    /// Directories that have no part in the cluster any more.
    pub retired: BTreeSet<[u8; 16]>,
    /// Set once this start of this node is registered.
    pub is_registered: bool,
}

/// Where a node listens to other nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeAddress {
    /// Which.
    pub broker_id: i32,
    /// Its host.
    pub host: String,
    /// Its port.
    pub port: u16,
}

/// First ticket of a read for another node's damaged range; the tickets of a group begin with 1.
pub(crate) const MENDING_TICKETS: u64 = 1 << 63;

/// A part of a log that the node wants to see itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadLog {
    /// Replica whose log is read.
    pub replica: ReplicaId,
    /// From which offset.
    pub from: i64,
    /// So many batches from there on are passed over first.
    pub pass: u64,
    /// Nothing at or past it is wanted.
    pub end: i64,
    /// About how much at once; at least one batch.
    pub bytes_max: u32,
    /// The replica that it is for; the node itself wants to see it if there is none.
    pub peer: Option<ReplicaId>,
    /// Comes back in [`LogRead`].
    pub ticket: u64,
    /// Origin that the segment must have.
    pub made_by: MadeBy,
}

/// Origin of a part of a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MadeBy {
    /// Any origin.
    #[default]
    Anything,
    /// Its batches were appended, and no compaction has changed them.
    Appends,
    /// The log was compacted last by the entry at this index. Nothing may be left of what is read.
    Compaction(u64),
}

impl ReadLog {
    /// Tells whether the read is for a damaged range of another node's replica.
    pub fn is_for_mending(&self) -> bool {
        self.ticket >= MENDING_TICKETS
    }

    /// Answers with batches, or with a reason without more to it.
    pub fn answer(&self, batches: Result<Bytes, String>) -> LogRead {
        LogRead {
            replica: self.replica,
            from: self.from,
            peer: self.peer,
            ticket: self.ticket,
            begins_segment: false,
            batches,
            is_damaged: false,
            is_changed: false,
        }
    }
}

/// Result of a [`ReadLog`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogRead {
    /// Replica whose log was read.
    pub replica: ReplicaId,
    /// From which offset, after what was passed over.
    pub from: i64,
    /// The replica that it is for.
    pub peer: Option<ReplicaId>,
    /// As it was asked for.
    pub ticket: u64,
    /// The first batch is the first of its segment.
    pub begins_segment: bool,
    /// Whole batches, checked, the first of which holds `from`; or why there are none.
    pub batches: Result<Bytes, String>,
    /// True if there are none because the medium has lost one.
    pub is_damaged: bool,
    /// True if there are none because a compaction has changed or removed them, and they were wanted as appended.
    pub is_changed: bool,
}

/// A question about a log, answered off the node's thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Look {
    /// Which batches there are. Answered by [`Event::Surveyed`].
    Survey(Survey),
    /// Dead letters of its records. Answered by [`Event::DeadLetters`].
    DeadLetters(DeadLetters),
    /// The first record since some time. Answered by [`Event::Dated`].
    Date(Date),
    /// Elements of a queue in a part of its log: are there any, or which is the last? Answered by
    /// [`Event::QueueLooked`].
    Queue(QueueLook),
}

/// A question about a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueLook {
    /// Comes back in [`QueueLooked`].
    pub ticket: u64,
    /// The part of the log.
    pub span: Span,
    /// The question.
    pub wanted: WantedElements,
}

/// Question of a [`QueueLook`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WantedElements {
    /// Existence of any.
    Any,
    /// The last one that was appended, deleted or not, also one of an open transaction.
    Last,
    /// Those that were appended at these offsets, in order.
    These(Vec<i64>),
    /// All that are shown behind an offset.
    Behind(i64),
    /// None: the fence and the trim of the queue alone.
    Standing,
    /// None: the statements that the log has to repeat before it loses its records below an offset.
    Kept(i64),
    /// None: the statements from an offset on that took records away, and the batch that expires first. Below the
    /// offset one counts only if that is after a time.
    Erasable(i64, i64),
}

/// Element of a queue that readers see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundElement {
    /// Position at which it was appended.
    pub position: Position,
    /// Offset of the record that has its content.
    pub content: i64,
    /// Id of that record.
    pub id: Option<Bytes>,
    /// Hash of the record's value and headers, the broker's aside.
    pub digest: u64,
}

/// Result of a [`QueueLook`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueLooked {
    /// As it was asked.
    pub ticket: u64,
    /// Elements that are there.
    pub found: FoundElements,
    /// Fence and trim of the queue, unless the existence of an element was the question.
    pub standing: Standing,
}

/// Elements of a queue in a part of its log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FoundElements {
    /// There are none.
    None,
    /// There are some.
    Some,
    /// This is the last one; whether it is of a transaction.
    Last(Position, bool),
    /// Of the wanted ones these are there, in order, or as many as a log may have masks. So many of its records are
    /// masked.
    These(Vec<FoundElement>, u64),
    /// Statements that the log has to repeat, or the first part of them.
    Kept(Vec<(Bytes, Said)>),
    /// Statements that took records away, if there are any, with the time of the first one; and the batch that expires
    /// first.
    Erasable(Option<(Erasable, i64)>, Option<Expiry>),
    /// The index is not there, or is damaged.
    NoIndex,
    /// The log cannot be read there.
    Unreadable,
}

/// A record that the node wants to know of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Date {
    /// Replica whose log is searched.
    pub replica: ReplicaId,
    /// Lowest timestamp of the record, in milliseconds.
    pub timestamp: i64,
    /// The first offset to consider.
    pub start: i64,
    /// One past the last offset to consider.
    pub end: i64,
    /// Comes back in [`Dated`].
    pub ticket: u64,
}

/// Result of a [`Date`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dated {
    /// As it was asked.
    pub ticket: u64,
    /// The first such record, if there is one; or what went wrong.
    pub found: Result<Option<i64>, String>,
}

/// A part of a log whose batches the node wants to know of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Survey {
    /// Replica whose log is surveyed.
    pub replica: ReplicaId,
    /// From which offset.
    pub from: i64,
    /// Nothing at or past it is wanted.
    pub end: i64,
    /// About how many bytes of batches are looked at; at least one batch is.
    pub bytes_max: u32,
    /// Number of records that are wanted one by one; 0 for none.
    pub records_max: usize,
    /// True for a topic of queues, whose index knows which records are not to be seen.
    pub is_of_queues: bool,
    /// Comes back in [`Surveyed`].
    pub ticket: u64,
}

/// Records of a log that a share group has given up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetters {
    /// Replica whose log holds the records.
    pub replica: ReplicaId,
    /// The first offset.
    pub from: i64,
    /// One past the last.
    pub end: i64,
    /// The log's committed end.
    pub committed: i64,
    /// The group.
    pub group: String,
    /// The topic they come from.
    pub topic: String,
    /// Its partition.
    pub partition: i32,
    /// Delivery count of the records.
    pub deliveries: i16,
    /// Why they are given up.
    pub reason: &'static str,
    /// True if the dead letters carry whole records; false if only their position.
    pub copies: bool,
    /// About how many bytes of them make one batch; at least one record does.
    pub bytes_max: usize,
    /// True for a topic of queues, whose index knows which records are not to be seen.
    pub is_of_queues: bool,
    /// Comes back in [`DeadLettersMade`].
    pub ticket: u64,
}

/// Result of [`DeadLetters`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLettersMade {
    /// As it was asked for.
    pub ticket: u64,
    /// A batch, empty if there are no records, and the offset up to which all are in it; or why there is none.
    pub made: Result<(Bytes, i64), String>,
}

/// Result of a [`Survey`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Surveyed {
    /// Replica whose log was surveyed.
    pub replica: ReplicaId,
    /// From which offset.
    pub from: i64,
    /// As it was asked for.
    pub ticket: u64,
    /// The batches, and the offset up to which they are all there are; or why they are not known.
    pub found: Result<(Vec<SeenBatch>, i64), String>,
}

/// A batch as a survey found it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenBatch {
    /// Its first offset.
    pub base: i64,
    /// Its last offset.
    pub last: i64,
    /// The base offset of its segment.
    pub segment: i64,
    /// Its place in the segment.
    pub at: u64,
    /// Its length.
    pub bytes: u64,
    /// Producer id of the transaction that the batch belongs to, if any.
    pub transactional: Option<i64>,
    /// True for a control batch, and for one whose records are all masked.
    pub is_nothing: bool,
    /// Its records, if they were asked for.
    pub records: Option<SeenRecords>,
}

/// The records of a batch, one by one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenRecords {
    /// All records before this offset are named.
    pub end: i64,
    /// Those before the survey are left out.
    pub of: Vec<SeenRecord>,
}

/// A record as a survey found it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeenRecord {
    /// Its offset.
    pub offset: i64,
    /// Hash of its key, if it has one.
    pub key: Option<u128>,
    /// Time and rank of it, for workers; of a queue topic only.
    pub schedule: Option<Schedule>,
}

/// An answer, or how to make it off the node's thread.
#[derive(Debug)]
pub enum Reply {
    /// Nothing is sent (`acks=0`), and the client rests for so many milliseconds.
    Nothing {
        /// As a quota wants it.
        rest_ms: i32,
    },
    /// A finished response, encoded by the session.
    Response(Box<Response>),
    /// A Fetch whose record bytes are still in the segments.
    Fetch(Box<FetchPlan>),
    /// A `ShareFetch` whose record bytes are still in the segments.
    ShareFetch(Box<SharePlan>),
    /// A `ListOffsets` with lookups by time.
    ListOffsets(Box<TimePlan>),
    /// A `DescribeLogDirs` that lacks how large the volume is, and how much of it is free.
    LogDirs(Box<duramen_protocol::messages::DescribeLogDirsResponse>),
    /// A `DescribeReplicas` that lacks digests.
    Replicas(Box<ReplicasPlan>),
    /// A `BeginBackup` whose files are still to be linked.
    Backup(Box<BackupPlan>),
    /// The result of an operation of the native API, which may lack the beginning of a batch.
    Native(Box<Answered>),
}

impl Reply {
    /// Returns the time for which the client is not read after the answer, in milliseconds: it exceeded its quota.
    pub fn rest_ms(&mut self) -> u32 {
        self.rest_field().map_or(0, |ms| (*ms).max(0).unsigned_abs())
    }

    /// Raises the answer's throttle time to at least this many milliseconds.
    pub(crate) fn rest(&mut self, at_least_ms: i32) {
        if at_least_ms > 0
            && let Some(ms) = self.rest_field()
        {
            *ms = at_least_ms.max(*ms);
        }
    }

    fn rest_field(&mut self) -> Option<&mut i32> {
        match self {
            Self::Nothing { rest_ms } => Some(rest_ms),
            Self::Response(response) => response.throttle_time_ms(),
            Self::Fetch(plan) => Some(&mut plan.response.throttle_time_ms),
            Self::ShareFetch(plan) => Some(&mut plan.response.throttle_time_ms),
            Self::ListOffsets(plan) => Some(&mut plan.response.throttle_time_ms),
            Self::LogDirs(response) => Some(&mut response.throttle_time_ms),
            Self::Replicas(plan) => Some(&mut plan.response.throttle_time_ms),
            Self::Backup(plan) => Some(&mut plan.response.throttle_time_ms),
            Self::Native(answered) => Some(&mut answered.rest_ms),
        }
    }
}

/// A Fetch response whose records are found and sent off the node's thread.
#[derive(Debug)]
pub struct FetchPlan {
    /// The response, with empty records where a [`FetchPart`] fills them in.
    pub response: duramen_protocol::messages::FetchResponse,
    /// The parts, in the order of the request.
    pub parts: Vec<FetchPart>,
    /// The whole response's limit of record bytes; the first non-empty part may exceed it by its
    /// first batch.
    pub bytes_max: u32,
}

/// One partition's share of a [`FetchPlan`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FetchPart {
    /// Index of the topic in the response.
    pub topic: usize,
    /// Index of the partition in the topic.
    pub partition: usize,
    /// Where the records are.
    pub replica: ReplicaId,
    /// From which offset.
    pub offset: i64,
    /// The committed (or stable) end: nothing at or past it may be sent.
    pub end: i64,
    /// This partition's limit of record bytes.
    pub bytes_max: u32,
    /// An incremental session leaves the partition out of the response if no bytes are found.
    pub omit_if_empty: bool,
    /// Index of the latest Compact entry at the time when the aborted transactions were looked up. The log must be read
    /// as that compaction left it.
    pub compaction: Option<u64>,
    /// True for a topic of queues, whose index knows which records are not to be seen.
    pub is_of_queues: bool,
}

/// A `ShareFetch` response whose records are found and sent off the node's thread.
#[derive(Debug)]
pub struct SharePlan {
    /// The response, with empty records where a [`SharePart`] fills them in.
    pub response: duramen_protocol::messages::ShareFetchResponse,
    /// The parts, in the order of the response.
    pub parts: Vec<SharePart>,
}

/// One partition's share of a [`SharePlan`]: whole batches, none missing. A client treats an acquired record that it
/// does not see as a gap in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharePart {
    /// Index of the topic in the response.
    pub topic: usize,
    /// Index of the partition in the topic.
    pub partition: usize,
    /// Where the records are.
    pub replica: ReplicaId,
    /// The first batch holds this offset.
    pub from: i64,
    /// One past the last offset of the last batch.
    pub end: i64,
    /// Size of the batches at the survey, in bytes.
    pub bytes: u64,
    /// True for a topic of queues, whose index knows which records are not to be seen.
    pub is_of_queues: bool,
}

/// A `ListOffsets` response some of whose offsets are found off the node's thread.
#[derive(Debug)]
pub struct TimePlan {
    /// The response, with placeholders where a [`TimePart`] fills them in.
    pub response: duramen_protocol::messages::ListOffsetsResponse,
    /// The lookups.
    pub parts: Vec<TimePart>,
}

/// One lookup of a [`TimePlan`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimePart {
    /// Index of the topic in the response.
    pub topic: usize,
    /// Index of the partition in the topic.
    pub partition: usize,
    /// Where the records are.
    pub replica: ReplicaId,
    /// Milliseconds, or -3 for the record of the largest timestamp.
    pub timestamp: i64,
    /// The first offset to consider.
    pub start: i64,
    /// One past the last offset to consider.
    pub end: i64,
    /// Leader epochs and the offsets they began at, oldest first: the answer names the record's.
    pub epochs: Vec<(i64, i32)>,
}

/// A `BeginBackup` response whose files are linked off the node's thread.
#[derive(Debug)]
pub struct BackupPlan {
    /// The response, without the path.
    pub response: duramen_protocol::messages::BeginBackupResponse,
    /// The replicas, each with the last entry that the node knew to be committed in this turn.
    pub commits: BTreeMap<ReplicaId, u64>,
}

/// A `DescribeReplicas` response whose digests are made off the node's thread.
#[derive(Debug)]
pub struct ReplicasPlan {
    /// The response, without digests.
    pub response: duramen_protocol::messages::DescribeReplicasResponse,
    /// Reads for the digests, in the order of the request.
    pub parts: Vec<ReplicaPart>,
    /// Limit of the bytes read for all digests together. The first digest may exceed it by its first batch.
    pub bytes_max: u64,
}

/// One digest of a [`ReplicasPlan`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaPart {
    /// Index of the topic in the response.
    pub topic: usize,
    /// Index of the partition in the topic.
    pub partition: usize,
    /// Replica whose log is digested.
    pub replica: ReplicaId,
    /// The first offset.
    pub from: i64,
    /// One past the last offset; all before it is committed.
    pub to: i64,
    /// Subject of the description.
    pub subject: Described,
}

/// Subject of one description of a replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Described {
    /// Digest of the log's bytes.
    Bytes,
    /// Digest of elements of queues.
    Queues(QueuesPart),
    /// Records that edits of queues took away and that are not erased: those that statements behind this extent name.
    Erasure(Compacted),
}

/// Part of a log whose elements of queues are digested, and whose queue index is checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueuesPart {
    /// Offset below which edits count. All before it is indexed, and is part of no open transaction.
    pub end: i64,
    /// First offset that is left of the log.
    pub log_start: i64,
    /// Producer, first and last offset of each aborted transaction in the part.
    pub aborted: Vec<(i64, i64, i64)>,
}
