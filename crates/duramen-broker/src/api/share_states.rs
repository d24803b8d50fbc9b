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
    let mut response = InitializeShareGroupStateResponse::default();
    let mut parts = Vec::new();
    for topic in request.topics {
        let topic_id = topic.topic_id;
        let mut partitions = Vec::with_capacity(topic.partitions.len());
        for it in topic.partitions {
            let ask = Ask::Initialize { epoch: it.state_epoch, start: it.start_offset };
            parts.push(Part { topic_id, partition: it.partition, ask });
            partitions.push(PartitionResult { partition: it.partition, ..Default::default() });
        }
        response.results.push(InitializeStateResult { topic_id, partitions });
    }
    ask(node, key, context, &request.group_id, parts, response.into());
}

/// Handles `ReadShareGroupState`.
pub(crate) fn read(
    node: &mut Node,
    key: RequestKey,
    context: &RequestContext,
    request: ReadShareGroupStateRequest,
) {
    use read_share_group_state::{PartitionResult, ReadStateResult};
    let mut response = ReadShareGroupStateResponse::default();
    let mut parts = Vec::new();
    for topic in request.topics {
        let topic_id = topic.topic_id;
        let mut partitions = Vec::with_capacity(topic.partitions.len());
        for it in topic.partitions {
            let ask = Ask::Read { leader_epoch: it.leader_epoch };
            parts.push(Part { topic_id, partition: it.partition, ask });
            partitions.push(PartitionResult { partition: it.partition, ..Default::default() });
        }
        response.results.push(ReadStateResult { topic_id, partitions });
    }
    ask(node, key, context, &request.group_id, parts, response.into());
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
    let mut response = WriteShareGroupStateResponse::default();
    let mut parts = Vec::new();
    for topic in request.topics {
        let topic_id = topic.topic_id;
        let mut partitions = Vec::with_capacity(topic.partitions.len());
        for it in topic.partitions {
            let write = ShareWrite {
                state_epoch: it.state_epoch,
                start: it.start_offset,
                complete: it.delivery_complete_count,
                batches: it.state_batches.into_iter().map(batch).collect(),
            };
            let ask = Ask::Write { leader_epoch: it.leader_epoch, write };
            parts.push(Part { topic_id, partition: it.partition, ask });
            partitions.push(PartitionResult { partition: it.partition, ..Default::default() });
        }
        response.results.push(WriteStateResult { topic_id, partitions });
    }
    ask(node, key, context, &request.group_id, parts, response.into());
}

/// Handles `DeleteShareGroupState`.
pub(crate) fn delete(
    node: &mut Node,
    key: RequestKey,
    context: &RequestContext,
    request: DeleteShareGroupStateRequest,
) {
    use delete_share_group_state::{DeleteStateResult, PartitionResult};
    let mut response = DeleteShareGroupStateResponse::default();
    let mut parts = Vec::new();
    for topic in request.topics {
        let topic_id = topic.topic_id;
        let mut partitions = Vec::with_capacity(topic.partitions.len());
        for it in topic.partitions {
            parts.push(Part { topic_id, partition: it.partition, ask: Ask::Delete { of: None } });
            partitions.push(PartitionResult { partition: it.partition, ..Default::default() });
        }
        response.results.push(DeleteStateResult { topic_id, partitions });
    }
    ask(node, key, context, &request.group_id, parts, response.into());
}

/// Handles `ReadShareGroupStateSummary`.
pub(crate) fn summarize(
    node: &mut Node,
    key: RequestKey,
    context: &RequestContext,
    request: ReadShareGroupStateSummaryRequest,
) {
    use read_share_group_state_summary::{PartitionResult, ReadStateSummaryResult};
    let mut response = ReadShareGroupStateSummaryResponse::default();
    let mut parts = Vec::new();
    for topic in request.topics {
        let topic_id = topic.topic_id;
        let mut partitions = Vec::with_capacity(topic.partitions.len());
        for it in topic.partitions {
            parts.push(Part { topic_id, partition: it.partition, ask: Ask::Look });
            partitions.push(PartitionResult { partition: it.partition, ..Default::default() });
        }
        response.results.push(ReadStateSummaryResult { topic_id, partitions });
    }
    ask(node, key, context, &request.group_id, parts, response.into());
}

/// Puts all parts to their coordinators, and answers when they have.
fn ask(
    node: &mut Node,
    key: RequestKey,
    context: &RequestContext,
    group: &str,
    parts: Vec<Part>,
    mut response: Response,
) {
    let may = node.core.access.may(context, Operation::ClusterAction, Resource::Cluster);
    if group.is_empty() || has_empty_topic(&response) {
        // As Kafka has it.
        clear(&mut response);
        return node.reply(key, response);
    }
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

fn has_empty_topic(response: &Response) -> bool {
    match response {
        Response::InitializeShareGroupState(it) => {
            it.results.iter().any(|it| it.partitions.is_empty())
        }
        Response::ReadShareGroupState(it) => it.results.iter().any(|it| it.partitions.is_empty()),
        Response::WriteShareGroupState(it) => it.results.iter().any(|it| it.partitions.is_empty()),
        Response::DeleteShareGroupState(it) => it.results.iter().any(|it| it.partitions.is_empty()),
        Response::ReadShareGroupStateSummary(it) => {
            it.results.iter().any(|it| it.partitions.is_empty())
        }
        _ => false,
    }
}

fn clear(response: &mut Response) {
    match response {
        Response::InitializeShareGroupState(it) => it.results.clear(),
        Response::ReadShareGroupState(it) => it.results.clear(),
        Response::WriteShareGroupState(it) => it.results.clear(),
        Response::DeleteShareGroupState(it) => it.results.clear(),
        Response::ReadShareGroupStateSummary(it) => it.results.clear(),
        _ => {}
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
