//! `InitializeShareGroupState`, `ReadShareGroupState`, `WriteShareGroupState`, `DeleteShareGroupState` and
//! `ReadShareGroupStateSummary`: the stored state of share groups, for an operator of the cluster. Our own nodes ask
//! each other by frames (`node/share_calls.rs`).

use std::sync::Arc;

use duramen_protocol::messages::{
    DeleteShareGroupStateRequest, DeleteShareGroupStateResponse, InitializeShareGroupStateRequest,
    InitializeShareGroupStateResponse, ReadShareGroupStateRequest, ReadShareGroupStateResponse,
    ReadShareGroupStateSummaryRequest, ReadShareGroupStateSummaryResponse,
    WriteShareGroupStateRequest, WriteShareGroupStateResponse, delete_share_group_state,
    initialize_share_group_state, read_share_group_state, read_share_group_state_summary,
    write_share_group_state,
};
use duramen_protocol::wire::Uuid;
use duramen_protocol::{ErrorCode, Response};

use super::results::count_result;
use crate::access::{Operation, Resource};
use crate::core::Parked;
use crate::event::RequestKey;
use crate::node::Node;
use crate::session::RequestContext;
use crate::shares::coordinator::{Answer, Ask, Asker};
use crate::shares::{ShareKey, ShareState, ShareWrite, StateBatch};

/// One partition of the request.
struct Part {
    topic_id: Uuid,
    partition: i32,
    ask: Ask,
}

/// Handles `InitializeShareGroupState`.
pub(crate) fn initialize(
    node: &mut Node,
    key: RequestKey,
    context: &RequestContext,
    request: InitializeShareGroupStateRequest,
) {
    use initialize_share_group_state::{InitializeStateResult, PartitionResult};
    let (group, topics) = (request.group_id, request.topics.into_iter());
    let (parts, results) = split(
        &group,
        topics.map(|it| (it.topic_id, it.partitions)).collect(),
        |it| (it.partition, Ask::Initialize { epoch: it.state_epoch, start: it.start_offset }),
        |partition| PartitionResult { partition, ..Default::default() },
        |topic_id, partitions| InitializeStateResult { topic_id, partitions },
    );
    let response = InitializeShareGroupStateResponse { results };
    ask(node, key, context, &group, parts, response.into());
}

/// Handles `ReadShareGroupState`.
pub(crate) fn read(
    node: &mut Node,
    key: RequestKey,
    context: &RequestContext,
    request: ReadShareGroupStateRequest,
) {
    use read_share_group_state::{PartitionResult, ReadStateResult};
    let (group, topics) = (request.group_id, request.topics.into_iter());
    let (parts, results) = split(
        &group,
        topics.map(|it| (it.topic_id, it.partitions)).collect(),
        |it| (it.partition, Ask::Read { leader_epoch: it.leader_epoch }),
        |partition| PartitionResult { partition, ..Default::default() },
        |topic_id, partitions| ReadStateResult { topic_id, partitions },
    );
    let response = ReadShareGroupStateResponse { results };
    ask(node, key, context, &group, parts, response.into());
}

/// Handles `WriteShareGroupState`.
pub(crate) fn write(
    node: &mut Node,
    key: RequestKey,
    context: &RequestContext,
    request: WriteShareGroupStateRequest,
) {
    use write_share_group_state::{PartitionResult, StateBatch as Said, WriteStateResult};
    let batch = |it: Said| StateBatch {
        first: it.first_offset,
        last: it.last_offset,
        state: it.delivery_state,
        count: it.delivery_count,
    };
    let (group, topics) = (request.group_id, request.topics.into_iter());
    let (parts, results) = split(
        &group,
        topics.map(|it| (it.topic_id, it.partitions)).collect(),
        |it| {
            let write = ShareWrite {
                state_epoch: it.state_epoch,
                start: it.start_offset,
                complete: it.delivery_complete_count,
                batches: it.state_batches.into_iter().map(batch).collect(),
            };
            (it.partition, Ask::Write { leader_epoch: it.leader_epoch, write })
        },
        |partition| PartitionResult { partition, ..Default::default() },
        |topic_id, partitions| WriteStateResult { topic_id, partitions },
    );
    let response = WriteShareGroupStateResponse { results };
    ask(node, key, context, &group, parts, response.into());
}

/// Handles `DeleteShareGroupState`.
pub(crate) fn delete(
    node: &mut Node,
    key: RequestKey,
    context: &RequestContext,
    request: DeleteShareGroupStateRequest,
) {
    use delete_share_group_state::{DeleteStateResult, PartitionResult};
    let (group, topics) = (request.group_id, request.topics.into_iter());
    let (parts, results) = split(
        &group,
        topics.map(|it| (it.topic_id, it.partitions)).collect(),
        |it| (it.partition, Ask::Delete { of: None }),
        |partition| PartitionResult { partition, ..Default::default() },
        |topic_id, partitions| DeleteStateResult { topic_id, partitions },
    );
    let response = DeleteShareGroupStateResponse { results };
    ask(node, key, context, &group, parts, response.into());
}

/// Handles `ReadShareGroupStateSummary`.
pub(crate) fn summarize(
    node: &mut Node,
    key: RequestKey,
    context: &RequestContext,
    request: ReadShareGroupStateSummaryRequest,
) {
    use read_share_group_state_summary::{PartitionResult, ReadStateSummaryResult};
    let (group, topics) = (request.group_id, request.topics.into_iter());
    let (parts, results) = split(
        &group,
        topics.map(|it| (it.topic_id, it.partitions)).collect(),
        |it| (it.partition, Ask::Look),
        |partition| PartitionResult { partition, ..Default::default() },
        |topic_id, partitions| ReadStateSummaryResult { topic_id, partitions },
    );
    let response = ReadShareGroupStateSummaryResponse { results };
    ask(node, key, context, &group, parts, response.into());
}

/// Returns the parts of a request, and the topics of its answer. As in Kafka, a request without a group, or with a
/// topic without partitions, has none.
fn split<P, R, T>(
    group: &str,
    topics: Vec<(Uuid, Vec<P>)>,
    ask: impl Fn(P) -> (i32, Ask),
    row: impl Fn(i32) -> R,
    topic: impl Fn(Uuid, Vec<R>) -> T,
) -> (Vec<Part>, Vec<T>) {
    let (mut parts, mut results) = (Vec::new(), Vec::new());
    if group.is_empty() || topics.iter().any(|(_, partitions)| partitions.is_empty()) {
        return (parts, results);
    }
    for (topic_id, partitions) in topics {
        let mut rows = Vec::with_capacity(partitions.len());
        for it in partitions {
            let (partition, ask) = ask(it);
            parts.push(Part { topic_id, partition, ask });
            rows.push(row(partition));
        }
        results.push(topic(topic_id, rows));
    }
    (parts, results)
}

/// Puts all parts to their coordinators, and answers when they have.
fn ask(
    node: &mut Node,
    key: RequestKey,
    context: &RequestContext,
    group: &str,
    parts: Vec<Part>,
    response: Response,
) {
    let may = node.core.access.may(context, Operation::ClusterAction, Resource::Cluster);
    if parts.is_empty() {
        return node.reply(key, response);
    }
    let group: Arc<str> = group.into();
    let (response, outstanding) = (Box::new(response), parts.len());
    node.core.park(key, Parked::ShareStates { response, outstanding }, u64::MAX);
    for (part, Part { topic_id, partition, ask }) in parts.into_iter().enumerate() {
        let of = ShareKey { group: group.clone(), topic_id, partition };
        let asker = Asker::Request { key, part };
        let given = match partition {
            _ if !may => Err(ErrorCode::ClusterAuthorizationFailed),
            i32::MIN..0 => Err(ErrorCode::InvalidRequest),
            _ => node.coordinators.coordinate_share(&mut node.core, &of, asker, ask),
        };
        if let Err(code) = given {
            on_answer(node, key, part, &Err(code));
        }
    }
}

/// Records a coordinator's answer for one part, by its place among all parts of the request.
pub(crate) fn on_answer(node: &mut Node, key: RequestKey, part: usize, answer: &Answer) {
    let Some(Parked::ShareStates { response, .. }) = node.core.parked_mut(key) else { return };
    fill(response, part, answer);
    count_result(node, key);
}

fn fill(response: &mut Response, part: usize, answer: &Answer) {
    let code = answer.as_ref().err().copied().unwrap_or_default();
    let message = (!code.is_none()).then(|| code.name().to_owned());
    let kept: Option<&ShareState> = answer.as_ref().ok().and_then(|it| it.as_deref());
    macro_rules! place {
        ($response:ident) => {
            $response.results.iter_mut().flat_map(|it| &mut it.partitions).nth(part)
        };
    }
    match response {
        Response::InitializeShareGroupState(it) => {
            if let Some(it) = place!(it) {
                (it.error_code, it.error_message) = (code.code(), message);
            }
        }
        Response::WriteShareGroupState(it) => {
            if let Some(it) = place!(it) {
                (it.error_code, it.error_message) = (code.code(), message);
            }
        }
        Response::DeleteShareGroupState(it) => {
            if let Some(it) = place!(it) {
                (it.error_code, it.error_message) = (code.code(), message);
            }
        }
        Response::ReadShareGroupState(it) => {
            use read_share_group_state::StateBatch as Said;
            let Some(it) = place!(it) else { return };
            (it.error_code, it.error_message) = (code.code(), message);
            let Some(kept) = kept else { return };
            (it.state_epoch, it.start_offset) = (kept.state_epoch, kept.start);
            let batch = |it: &StateBatch| Said {
                first_offset: it.first,
                last_offset: it.last,
                delivery_state: it.state,
                delivery_count: it.count,
            };
            it.state_batches = kept.batches.iter().map(batch).collect();
        }
        Response::ReadShareGroupStateSummary(it) => {
            let Some(it) = place!(it) else { return };
            (it.error_code, it.error_message) = (code.code(), message);
            match kept {
                Some(kept) => {
                    (it.state_epoch, it.leader_epoch) = (kept.state_epoch, kept.leader_epoch);
                    (it.start_offset, it.delivery_complete_count) = (kept.start, kept.complete);
                }
                None if code.is_none() => it.start_offset = -1,
                None => {}
            }
        }
        _ => {}
    }
}
