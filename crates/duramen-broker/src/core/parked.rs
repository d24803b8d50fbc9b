//! Requests that wait: the awaited event of each, and the answer so far.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use duramen_protocol::messages::offset_fetch::OffsetFetchResponseGroup;
use duramen_protocol::messages::{
    AddOffsetsToTxnRequest, AppendFastResponse, DeleteGroupsResponse, DeleteRecordsResponse,
    DescribeFastResponse, DescribeShareGroupOffsetsResponse, ElectLeadersResponse,
    FindCoordinatorRequest, MetadataRequest, ProduceResponse, TxnOffsetCommitRequest,
    WriteTxnMarkersResponse,
};
use duramen_protocol::wire::Uuid;
use duramen_protocol::{ErrorCode, Request, Response};
use duramen_storage::op::{ReplicaId, Stretch};

use crate::event::RequestKey;
use crate::fetch_sessions::{Asked, FetchSessions};
use crate::native::{self, Edited, Identified, Op, Problem};
use crate::partition::Partition;
use crate::partition::controls::Objection;
use crate::partition::fast::Outcome;
use crate::quotas::Quota;
use crate::session::{Prepared, RequestContext};
use crate::shares::ShareKey;
use crate::shares::partition::{Limits, Plan};
use crate::shares::sessions::{Member, Target};

/// Wait of one batch of an `AppendFast` request.
#[derive(Debug)]
pub(crate) enum FastWait {
    /// For a statement that is true of the batch once the wait ends well.
    Outcome(Outcome),
    /// For the commit. The batch may be held in a stretch.
    Commit(Option<Stretch>),
    /// For the end of the stretch in which the batch may be held: then it is refused for good.
    Refusal(ErrorCode, Option<String>),
}

/// A request that waits.
#[derive(Debug)]
pub(crate) enum Parked {
    /// For the node to open.
    Held { context: RequestContext, request: Box<Prepared> },
    /// For leadership checks.
    Doubtful { context: RequestContext, request: Box<Prepared>, outstanding: usize },
    /// For a decision on its topics or settings, or for nodes that are about to register.
    Deferred { context: RequestContext, request: Box<Request> },
    /// For room for its batches.
    Stalled { context: RequestContext, request: Box<Prepared> },
    /// For its batches to be durable.
    Produce { response: ProduceResponse, outstanding: usize, version: i16, listener: Arc<str> },
    /// For its batches to be held, durable or committed, or for the end of stretches. Only a request that waits for the
    /// commit is told of errors by their codes.
    Fast {
        response: AppendFastResponse,
        waits: BTreeMap<(usize, usize), FastWait>,
        commits: bool,
        context: RequestContext,
    },
    /// For stretches to be opened, by topic and partition of the response.
    Opening {
        response: DescribeFastResponse,
        waits: BTreeSet<(usize, usize)>,
        context: RequestContext,
    },
    /// For more records.
    Fetch(ParkedFetch),
    /// For its trims to be committed.
    Trims { response: DeleteRecordsResponse, outstanding: usize },
    /// For its records to be committed, and then for its new partitions to have leaders.
    Commit { response: Box<Response>, outstanding: usize },
    /// For topics it names to be made.
    Metadata { request: MetadataRequest, context: RequestContext, outstanding: usize },
    /// For the topic that groups are kept in to be made.
    FindCoordinator { request: FindCoordinatorRequest, context: RequestContext, outstanding: usize },
    /// For partitions to be led by other replicas.
    Election { response: Box<ElectLeadersResponse>, wanted: VecDeque<ElectionWanted> },
    /// For a node to be gone from the cluster.
    Departure { broker_id: i32 },
    /// For the node that leads the metadata.
    Forwarded { nonce: u64 },
    /// For a block of producer ids.
    ProducerId,
    /// For the coordinator of its group.
    Group { version: i16 },
    /// For the coordinator of its transactional id.
    Transaction { version: i16 },
    /// For the coordinators of its transactional ids.
    Addition { response: Box<Response>, places: Vec<Place>, outstanding: usize, version: i16 },
    /// For the topic that groups are kept in to be made.
    AddOffsets { request: AddOffsetsToTxnRequest, context: RequestContext },
    /// For its transaction to be known to commit offsets.
    TxnOffsets { request: Box<TxnOffsetCommitRequest>, context: RequestContext },
    /// For the coordinators of what is kept of share groups.
    ShareStates { response: Box<Response>, outstanding: usize },
    /// For the same, and for how long partitions are.
    ShareOffsets(Box<Describing>),
    /// For its markers to be committed.
    Markers { response: WriteTxnMarkersResponse, outstanding: usize },
    /// For the coordinators of its groups.
    OffsetFetch {
        groups: Vec<OffsetFetchResponseGroup>,
        outstanding: usize,
        context: RequestContext,
    },
    /// For the coordinators of its groups.
    DeleteGroups { response: DeleteGroupsResponse, outstanding: usize },
    /// For an entry of a log, or for certainty about it: an operation of the native API.
    Native(Box<NativeWait>),
    /// For the index of its queue, or for an element of it.
    Queue(Box<QueueWait>),
    /// For records of share partitions, or for decisions on them to be durable.
    Share(Box<ShareRequest>),
}

/// An operation of the native API that waits for its log.
#[derive(Debug)]
pub(crate) struct NativeWait {
    pub replica: ReplicaId,
    pub awaited: Awaited,
    /// Earlier append that a refused one may repeat.
    pub identified: Option<Identified>,
    /// Time that the client has to rest afterwards, in milliseconds.
    pub rest_ms: i32,
}

/// Event that an operation of the native API waits for.
#[derive(Debug)]
pub(crate) enum Awaited {
    /// Commit of the batch, with its producer's id and epoch. The batch is behind this end of the log, if it is no
    /// duplicate.
    Append { end: i64, last_delta: i32, producer: (i64, i16) },
    /// Certainty that the guard does not hold, for this reason.
    Refusal(Objection),
    /// Commit of a truncation.
    Truncate,
    /// Certainty of the log's fence, which is to be this one.
    Fence(Bytes),
    /// Commit of an edit with so many records, and what else its answer says.
    Edit { last_delta: i32, edited: Edited },
    /// Index up to an offset, which has an edit that is committed. The answer is there.
    Indexed { end: i64, edited: Edited },
}

/// An operation on a queue that waits.
#[derive(Debug)]
pub(crate) struct QueueWait {
    pub context: RequestContext,
    pub op: Op,
    pub replica: ReplicaId,
    pub stage: QueueStage,
}

/// Event that an operation on a queue waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueueStage {
    /// The index reaches this offset.
    Behind(i64),
    /// An element of the queue with this hash, or the look with this ticket.
    Waiting { hash: u64, ticket: u64 },
}

/// A fetch that waits for more records.
#[derive(Debug)]
pub(crate) struct ParkedFetch {
    pub fetch: Fetch,
    /// Targets that were there, with the replicas that wake it, if it is of no session.
    pub waits_on: Vec<(usize, ReplicaId)>,
    pub available: u64,
}

/// A fetch, complete.
#[derive(Debug)]
pub(crate) struct Fetch {
    pub context: RequestContext,
    /// True if the request names a replica, as those of Apache Kafka's followers do.
    pub is_of_replica: bool,
    pub session_id: i32,
    pub is_incremental: bool,
    pub targets: Vec<Asked>,
    pub bytes_min: u64,
    pub bytes_max: u32,
    pub is_read_committed: bool,
    /// Where the client is; may be empty.
    pub rack: String,
    pub quota: Option<Quota>,
}

/// Place in an answer that a coordinator decides: a transaction of the request, all of it or one partition.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub at: usize,
    pub partition: Option<(String, i32)>,
}

/// Description that waits for the stored states of partitions, and then for their end offsets.
#[derive(Debug)]
pub(crate) struct Describing {
    pub response: DescribeShareGroupOffsetsResponse,
    /// Place in the response of each partition that the client asks about.
    pub places: Vec<(usize, usize, usize, ShareKey)>,
    pub outstanding: usize,
    pub with_lag: bool,
}

/// A partition of a request for elections, and where in the response its result stands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ElectionWanted {
    pub topic_id: Uuid,
    pub partition: i32,
    pub slot: (usize, usize),
}

/// Limits of a consumer's fetch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub limits: Limits,
    pub bytes_min: u64,
    /// True for a new session: all of its partitions are answered for.
    pub is_full: bool,
}

/// Answer for one partition of a request.
#[derive(Debug, Default)]
pub(crate) struct Told {
    pub acknowledged: Option<ErrorCode>,
    pub error: Option<ErrorCode>,
    pub plan: Option<(ReplicaId, Plan)>,
}

/// A request of a consumer of a share group, until it is answered.
#[derive(Debug)]
pub(crate) struct ShareRequest {
    pub member: Member,
    /// Client of the request.
    pub context: RequestContext,
    /// Limits of the fetch; `None` if the request only acknowledges.
    pub wanted: Option<Wanted>,
    /// True if the request declares that it renews locks; other requests may not.
    pub is_renewing: bool,
    /// Quota that the bytes of the answer count for, and the time that the consumer has to rest, in milliseconds.
    pub quota: Option<Quota>,
    pub rest_ms: i32,
    pub told: BTreeMap<Target, Told>,
    /// Number of decisions that are not durable yet.
    pub undecided: usize,
    /// True once the request has waited long enough for records.
    pub is_over: bool,
    /// Share partitions and replicas that wake the request.
    pub waits_on: Vec<(ShareKey, ReplicaId)>,
    /// Worker of the native API, in place of a consumer.
    pub worker: Option<Worker>,
}

/// Part of a worker's request that a consumer's does not have.
#[derive(Clone, Debug, Default)]
pub(crate) struct Worker {
    /// Partitions to lease records of.
    pub targets: Vec<Target>,
    /// Other nodes that lead partitions which the worker wants.
    pub others: Vec<(i32, Option<native::Place>)>,
    /// True once the worker does not even wait for what is being read.
    pub is_late: bool,
    /// Offsets of leases that the worker does not have.
    pub lost: Vec<i64>,
    pub problem: Option<Problem>,
}

impl ShareRequest {
    pub(crate) fn new(member: Member, context: RequestContext, wanted: Option<Wanted>) -> Self {
        Self {
            member,
            context,
            wanted,
            is_renewing: false,
            quota: None,
            rest_ms: 0,
            told: BTreeMap::new(),
            undecided: 0,
            is_over: false,
            waits_on: Vec::new(),
            worker: None,
        }
    }
}

impl ParkedFetch {
    /// Withdraws the fetch from everything that could wake it.
    pub(crate) fn forget(
        &self,
        key: RequestKey,
        sessions: &mut FetchSessions,
        partitions: &mut BTreeMap<ReplicaId, Box<Partition>>,
    ) {
        sessions.unpark(self.fetch.session_id, key);
        for (_, replica) in &self.waits_on {
            if let Some(partition) = partitions.get_mut(replica) {
                partition.fetches.remove(&key);
            }
        }
    }
}
