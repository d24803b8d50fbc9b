//! `Produce`: batches into logs.

use duramen_protocol::ErrorCode;
use duramen_protocol::messages::ProduceResponse;
use duramen_protocol::messages::produce::{
    BatchIndexAndErrorMessage, PartitionProduceResponse, TopicProduceResponse,
};
use duramen_protocol::wire::Uuid;
use duramen_storage::op::ReplicaId;

use super::{Operation, Resource, authorize, deadline_us};
use crate::event::{Action, Now, Reply, RequestKey};
use crate::node::{Node, Parked};
use crate::partition::{Acks, Appended, Slot};
use crate::session::{
    CheckedBatch, PreparedPartition, PreparedProduce, PreparedTopic, Rejection, RequestContext,
};

/// Bytes of batches in a request.
pub(crate) fn bytes_of(request: &PreparedProduce) -> u64 {
    let partitions = request.topics.iter().flat_map(|topic| &topic.partitions);
    partitions.filter_map(|it| it.batch.as_ref().ok()).map(|it| it.bytes.len() as u64).sum()
}

pub(crate) fn handle(
    node: &mut Node,
    now: Now,
    key: RequestKey,
    context: RequestContext,
    request: PreparedProduce,
    actions: &mut Vec<Action>,
) {
    if node.has_stalled() || !node.has_room(bytes_of(&request)) {
        node.stall(key, context, request);
    } else {
        append(node, now, key, &context, request, actions);
    }
}

/// What became of one partition of the request.
enum Outcome {
    Waits { append_time_ms: i64 },
    Done(PartitionProduceResponse),
}

/// Appends all batches of a request, each on its own.
pub(crate) fn append(
    node: &mut Node,
    now: Now,
    key: RequestKey,
    context: &RequestContext,
    request: PreparedProduce,
    actions: &mut Vec<Action>,
) {
    let acks = match request.acks {
        0 => Ok(Acks::None),
        1 => Ok(Acks::Own),
        -1 => Ok(Acks::All),
        _ => Err(ErrorCode::InvalidRequiredAcks),
    };
    let acks = match acks {
        Ok(_) if request.is_transactional => Err(ErrorCode::TransactionalIdAuthorizationFailed),
        acks => acks,
    };
    let mut response = ProduceResponse::default();
    let mut outstanding = 0;
    let mut error = None;
    for (at, topic) in request.topics.into_iter().enumerate() {
        let PreparedTopic { name, id, partitions } = topic;
        let found = resolve(node, context, &name, id);
        let mut answers = Vec::with_capacity(partitions.len());
        for (slot, partition) in partitions.into_iter().enumerate() {
            let slot = Slot { key, topic: at, partition: slot };
            let PreparedPartition { index, batch } = partition;
            let outcome = match (acks, &found, batch) {
                (Err(code), ..) => refused(index, code, None),
                (_, Err(code), _) => refused(index, *code, None),
                (_, _, Err(Rejection { code, message })) => refused(index, code, Some(message)),
                (Ok(acks), Ok(topic), Ok(batch)) => {
                    one(node, now, *topic, index, batch, acks, slot)
                }
            };
            answers.push(match outcome {
                Outcome::Done(answer) => {
                    let code = ErrorCode::from_code(answer.error_code);
                    error = error.or(code.filter(|code| !code.is_none()));
                    answer
                }
                Outcome::Waits { append_time_ms } => {
                    outstanding += 1;
                    let log_append_time_ms = append_time_ms;
                    PartitionProduceResponse { index, log_append_time_ms, ..blank() }
                }
            });
        }
        let topic_id = id;
        response.responses.push(TopicProduceResponse {
            name,
            topic_id,
            partition_responses: answers,
        });
    }
    if request.acks == 0 {
        // Nobody listens for an answer: the only way to tell of an error is to hang up.
        match error {
            None => node.reply_with(key, Reply::Nothing, actions),
            Some(code) => {
                let reason = format!("a produce with acks=0 failed: {code}");
                actions.push(Action::Close { connection: key.0, reason });
            }
        }
    } else if outstanding == 0 {
        node.reply(key, response, actions);
    } else {
        let deadline = deadline_us(now, request.timeout_ms);
        node.park(key, Parked::Produce { response, outstanding }, deadline);
    }
}

fn blank() -> PartitionProduceResponse {
    PartitionProduceResponse { base_offset: -1, ..PartitionProduceResponse::default() }
}

fn refused(index: i32, code: ErrorCode, message: Option<String>) -> Outcome {
    Outcome::Done(PartitionProduceResponse {
        index,
        error_code: code.code(),
        error_message: message,
        ..blank()
    })
}

/// The topic's id, by name or id.
fn resolve(node: &Node, context: &RequestContext, name: &str, id: Uuid) -> Result<Uuid, ErrorCode> {
    if context.version >= 13 {
        let topic = node.controller.image.topic(id).ok_or(ErrorCode::UnknownTopicId)?;
        let is_allowed =
            authorize(&context.principal, Operation::Write, Resource::Topic(&topic.name));
        return if is_allowed { Ok(id) } else { Err(ErrorCode::TopicAuthorizationFailed) };
    }
    if !authorize(&context.principal, Operation::Write, Resource::Topic(name)) {
        return Err(ErrorCode::TopicAuthorizationFailed);
    }
    let topic = node.controller.image.topic_named(name);
    topic.map(|topic| topic.id).ok_or(ErrorCode::UnknownTopicOrPartition)
}

fn one(
    node: &mut Node,
    now: Now,
    topic: Uuid,
    index: i32,
    batch: CheckedBatch,
    acks: Acks,
    slot: Slot,
) -> Outcome {
    let replica = match find(node, topic, index, acks) {
        Ok(replica) => replica,
        Err(code) => return refused(index, code, None),
    };
    let bytes = batch.bytes.len() as u64;
    let partition = node.partitions.get_mut(&replica).expect("it was just found");
    let in_flight = partition.group.bytes_in_flight();
    let appended = partition.produce(now, batch, acks, slot);
    let log_start_offset = partition.log_start();
    let added = partition.group.bytes_in_flight() - in_flight;
    if partition.group.failure().is_some() {
        // Those who wait are told in the turn.
        node.mark_dirty(replica);
    }
    if added > 0 {
        node.counters.batches += 1;
        node.counters.batch_bytes += bytes;
        node.note_in_flight(added);
        node.mark_dirty(replica);
    }
    match appended {
        Appended::Waits { append_time_ms } => {
            node.counters.duplicates += u64::from(added == 0);
            Outcome::Waits { append_time_ms }
        }
        Appended::Done { base_offset } => {
            node.counters.duplicates += u64::from(added == 0);
            let answer =
                PartitionProduceResponse { index, base_offset, log_start_offset, ..blank() };
            Outcome::Done(answer)
        }
        Appended::Refused(code, message) => {
            let mut answer = PartitionProduceResponse {
                index,
                error_code: code.code(),
                log_start_offset,
                error_message: message,
                ..blank()
            };
            if matches!(code, ErrorCode::InvalidRecord | ErrorCode::InvalidTimestamp) {
                answer.record_errors =
                    vec![BatchIndexAndErrorMessage { batch_index: 0, ..Default::default() }];
            }
            Outcome::Done(answer)
        }
    }
}

fn find(node: &Node, topic: Uuid, index: i32, acks: Acks) -> Result<ReplicaId, ErrorCode> {
    let topic = node.controller.image.topic(topic).ok_or(ErrorCode::UnknownTopicOrPartition)?;
    let partition = node.serving(topic, index)?;
    if node.is_disk_full() {
        return Err(ErrorCode::KafkaStorageError);
    }
    // Checked before the append: a retry of a refused batch must not find it in the log.
    if acks == Acks::All && partition.lacks_replicas() {
        return Err(ErrorCode::NotEnoughReplicas);
    }
    Ok(partition.group.id())
}

/// The time of a waiting request is over: whatever is not answered yet may or may not become
/// durable.
pub(crate) fn time_out(response: &mut ProduceResponse) {
    let parts = response.responses.iter_mut().flat_map(|topic| &mut topic.partition_responses);
    for part in parts.filter(|part| part.error_code == 0 && part.base_offset < 0) {
        part.error_code = ErrorCode::RequestTimedOut.code();
        part.log_append_time_ms = -1;
    }
}
