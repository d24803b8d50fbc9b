//! Signals from the node to the APIs: the events that requests wait for. The node pushes a signal; `turn` hands it to
//! the API whose request goes on. So the node calls no API, and an API alone writes the fields of its answer.

use duramen_protocol::messages::offset_fetch::OffsetFetchResponseGroup;
use duramen_protocol::{ErrorCode, Request, Response};

use super::{ElectionWanted, ShareRequest};
use crate::event::RequestKey;
use crate::partition::{Appended, Growth, Slot};
use crate::session::{Prepared, RequestContext};
use crate::shares::coordinator::Answer;

/// One thing that happened, with the request that goes on. A request may be gone by then.
#[derive(Debug)]
pub(crate) enum Signal {
    /// The request may be served; until now it was held, or with another node.
    Judge { key: RequestKey, context: RequestContext, request: Box<Prepared> },
    /// The leadership checks that the request needs are done.
    Certain { key: RequestKey, context: RequestContext, request: Box<Prepared> },
    /// No controller decided on the request.
    Undecided { key: RequestKey, request: Box<Request>, code: ErrorCode },
    /// The controller cannot propose the records of this answer.
    NotProposed { key: RequestKey, response: Box<Response>, code: ErrorCode },
    /// The awaited metadata is committed, and its partitions have leaders.
    Ready(RequestKey),
    /// The awaited event will not come.
    TimedOut(RequestKey),
    /// A batch or trim of a waiting request is committed, or failed. Its place is that of topic and partition.
    Finished {
        key: RequestKey,
        place: (usize, usize),
        error: ErrorCode,
        base_offset: i64,
        log_start: i64,
    },
    /// A batch that waited for its transaction was given to its partition.
    Appended { slot: Slot, appended: Appended, log_start: i64 },
    /// A batch that waited for its transaction was refused.
    Refused { slot: Slot, code: ErrorCode },
    /// A partition that a fetch waits for has grown.
    Grown { key: RequestKey, growth: Growth },
    /// A producer id for a request that waited for one.
    ProducerId { key: RequestKey, id: i64 },
    /// A node has left the cluster, or the departure is for another node to tell.
    Departed { key: RequestKey, code: ErrorCode },
    /// Elections are over, each with its success.
    Elected { key: RequestKey, outcomes: Vec<(ElectionWanted, bool)> },
    /// `__consumer_offsets` is there.
    GroupsMade(RequestKey),
    /// The coordinator knows whether the offsets are part of their transaction.
    OffsetsJudged { key: RequestKey, code: ErrorCode },
    /// A coordinator's answer about one transaction or partition of a request.
    Judged { key: RequestKey, part: usize, code: ErrorCode },
    /// The answer of a transaction's coordinator. The answer is void if the coordinator had a successor.
    TransactionAnswered { key: RequestKey, response: Box<Response>, is_certain: bool },
    /// A marker of a request was written, or refused.
    Marked { key: RequestKey, at: usize, code: ErrorCode },
    /// The answer of a group's coordinator.
    GroupAnswered { key: RequestKey, response: Box<Response> },
    /// Committed offsets of one group of a request.
    OffsetsFetched { key: RequestKey, part: usize, group: Box<OffsetFetchResponseGroup> },
    /// One group of a request was deleted, or not.
    GroupDeleted { key: RequestKey, part: usize, code: i16 },
    /// Stored state of a share group, for one partition of a request.
    ShareState { key: RequestKey, part: usize, answer: Answer },
    /// The same, for a description of the group's offsets.
    ShareLooked { key: RequestKey, part: usize, answer: Answer },
    /// End offset of a partition, for a description of a share group's offsets.
    ShareEnd { key: RequestKey, part: usize, end: Result<i64, ErrorCode> },
    /// The index that an operation on a queue waits for is there, or an element may be.
    QueueReady(RequestKey),
    /// An append whose guard names the last element of a queue is to be judged. The index has what it lacked, or the
    /// replica leads no more.
    GuardReady((RequestKey, usize, usize)),
    /// The replica that an operation on a queue waits for leads no more, or is gone.
    QueueLost(RequestKey),
    /// All that a share consumer's request waited for is there.
    Shared { key: RequestKey, request: Box<ShareRequest> },
}
