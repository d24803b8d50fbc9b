//! # Room card: event
//!
//! Purpose:    all that goes into a node and all that comes out, as data.
//! Owns:       [`Event`], [`Action`], [`Reply`], [`Now`].
//! Interface:  all of it.
//! Invariants: a node learns of the world only by events, and acts on it only by actions.
//! Never:      behaviour.
//! Tests:      those of the crate; the simulator is built from these types.
//! Start at:   [`Event`].

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use duramen_protocol::Response;
use duramen_storage::compaction::Order;
use duramen_storage::mending::{Damage, Mend};
use duramen_storage::op::{Done, Op, ReplicaId};
use duramen_storage::staging::Stage;

use crate::peer::PeerFrame;
use crate::session::{Prepared, RequestContext};

/// The two clocks, read once per turn by whoever drives the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// Monotonic, microseconds since the node was opened.
    pub mono_us: u64,
    /// Wall clock, milliseconds since the epoch. It may leap.
    pub wall_ms: i64,
}

/// One client connection, numbered by the listener and never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u64);

/// A request, as long as it waits for its answer: whose, and its number there.
pub(crate) type RequestKey = (ConnectionId, u64);

/// What happens to a node.
#[derive(Debug)]
pub enum Event {
    /// A decoded, checked request. Every one gets exactly one [`Action::Reply`] or
    /// [`Action::Close`], unless its connection was [`Event::Disconnected`] before.
    Request {
        /// Whose.
        connection: ConnectionId,
        /// The session's number for it: replies leave the connection in this order.
        sequence: u64,
        /// Who asks, how, by which version.
        context: RequestContext,
        /// What is asked.
        request: Box<Prepared>,
    },
    /// The connection is gone: forget its waiting requests.
    Disconnected(ConnectionId),
    /// Storage reports.
    Storage(Done),
    /// What [`Action::ReadLog`] asked for.
    LogRead(LogRead),
    /// What [`Look::Survey`] asked for.
    Surveyed(Surveyed),
    /// What [`Look::Date`] asked for.
    Dated(Dated),
    /// What [`Look::DeadLetters`] asked for.
    DeadLetters(DeadLettersMade),
    /// A segment was found to be damaged: [`duramen_storage::scrub`].
    Damaged(Damage),
    /// Another node says something. Bytes that are no frame never come here.
    Peer(Box<PeerFrame>),
    /// The node is about to end: others should lead what it leads. Answered by [`Action::Drained`].
    Drain,
    /// The machine was suspended: the monotonic clock stood still, and the wall clock went on. Comes before anything else
    /// that has the new time.
    Suspended {
        /// For so many milliseconds.
        ms: i64,
    },
    /// What the node was started with is otherwise now, in these settings that may change while it runs; `None` for what is
    /// no longer given. They were checked.
    Given(Vec<(String, Option<String>)>),
    /// Nothing but time passed. Sent when [`crate::Node::deadline`] has come.
    Tick,
}

/// What a node wants done.
#[derive(Debug)]
pub enum Action {
    /// Answer a request.
    Reply {
        /// Whose.
        connection: ConnectionId,
        /// The request's number.
        sequence: u64,
        /// The answer.
        reply: Reply,
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
    /// Look at a log for a share group where it does no harm to wait, and answer with what [`crate::read_plan::look`] says.
    Look(Look),
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
        /// What is said.
        frame: Box<PeerFrame>,
    },
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
    /// An index of the metadata that is applied here. Of two nodes' lists the one of the higher index is newer, if they differ.
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
    /// Whose log.
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
    /// What must have made the segment.
    pub made_by: MadeBy,
}

/// How a part of a log came to be as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MadeBy {
    /// However.
    #[default]
    Anything,
    /// Its batches were appended, and no compaction has changed them.
    Appends,
    /// The log was compacted last by the entry at this index. Nothing may be left of what is read.
    Compaction(u64),
}

impl ReadLog {
    /// Whether it is for a damaged range of another node's replica.
    pub fn is_for_mending(&self) -> bool {
        self.ticket >= MENDING_TICKETS
    }
}

/// What was read for a [`ReadLog`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogRead {
    /// Whose log.
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
}

/// What the node wants to know of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Look {
    /// Which batches there are. Answered by [`Event::Surveyed`].
    Survey(Survey),
    /// Dead letters of its records. Answered by [`Event::DeadLetters`].
    DeadLetters(DeadLetters),
    /// The first record since some time. Answered by [`Event::Dated`].
    Date(Date),
}

/// A record that the node wants to know of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Date {
    /// Whose log.
    pub replica: ReplicaId,
    /// It is no older; milliseconds.
    pub timestamp: i64,
    /// The first offset to consider.
    pub start: i64,
    /// One past the last offset to consider.
    pub end: i64,
    /// Comes back in [`Dated`].
    pub ticket: u64,
}

/// What was found for a [`Date`].
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
    /// Whose log.
    pub replica: ReplicaId,
    /// From which offset.
    pub from: i64,
    /// Nothing at or past it is wanted.
    pub end: i64,
    /// About how many bytes of batches are looked at; at least one batch is.
    pub bytes_max: u32,
    /// The keys of so many records are wanted, too; 0 if none are.
    pub keys_max: usize,
    /// Comes back in [`Surveyed`].
    pub ticket: u64,
}

/// Records of a log that a share group has given up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetters {
    /// Whose log.
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
    /// How often they were given out.
    pub deliveries: i16,
    /// Why they are given up.
    pub reason: &'static str,
    /// All of them is kept, and not only where they were.
    pub copies: bool,
    /// About how many bytes of them make one batch; at least one record does.
    pub bytes_max: usize,
    /// Comes back in [`DeadLettersMade`].
    pub ticket: u64,
}

/// What was made of [`DeadLetters`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLettersMade {
    /// As it was asked for.
    pub ticket: u64,
    /// A batch, empty if there are no records, and the offset up to which all are in it; or why there is none.
    pub made: Result<(Bytes, i64), String>,
}

/// What was found for a [`Survey`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Surveyed {
    /// Whose log.
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
    /// Whose transaction it belongs to, if it does.
    pub transactional: Option<i64>,
    /// It ends a transaction.
    pub is_control: bool,
    /// The keys of its records, if they were asked for.
    pub keys: Option<SeenKeys>,
}

/// The records of a batch by their keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenKeys {
    /// All records before this offset are named.
    pub end: i64,
    /// Their offsets, with a hash of each key; those before the survey are left out.
    pub of: Vec<(i64, Option<u128>)>,
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
}

impl Reply {
    /// For how many milliseconds the client is not read after it: it took more than its quota allows.
    pub fn rest_ms(&mut self) -> u32 {
        self.rest_field().map_or(0, |ms| (*ms).max(0).unsigned_abs())
    }

    /// The client rests for so many milliseconds at least.
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
    /// Whoever is told of aborted transactions must read the log as it was when they were looked up: compacted last by this
    /// entry.
    pub compaction: Option<u64>,
}

/// A `ShareFetch` response whose records are found and sent off the node's thread.
#[derive(Debug)]
pub struct SharePlan {
    /// The response, with empty records where a [`SharePart`] fills them in.
    pub response: duramen_protocol::messages::ShareFetchResponse,
    /// The parts, in the order of the response.
    pub parts: Vec<SharePart>,
}

/// One partition's share of a [`SharePlan`]: whole batches, all of which have to be there, because a client takes records
/// that it has acquired and does not see for gaps in the log.
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
    /// How many bytes they were when they were surveyed.
    pub bytes: u64,
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

/// A `DescribeReplicas` response whose digests are made off the node's thread.
#[derive(Debug)]
pub struct ReplicasPlan {
    /// The response, without digests.
    pub response: duramen_protocol::messages::DescribeReplicasResponse,
    /// What is read for it, in the order of the request.
    pub parts: Vec<ReplicaPart>,
    /// How many bytes are read for all of them together; the first may exceed it by its first batch.
    pub bytes_max: u64,
}

/// One digest of a [`ReplicasPlan`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplicaPart {
    /// Index of the topic in the response.
    pub topic: usize,
    /// Index of the partition in the topic.
    pub partition: usize,
    /// Whose log.
    pub replica: ReplicaId,
    /// The first offset.
    pub from: i64,
    /// One past the last offset; all before it is committed.
    pub to: i64,
}
