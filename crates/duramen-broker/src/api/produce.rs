//! `Produce`: appends batches to logs.

use std::sync::Arc;

use duramen_protocol::messages::ProduceResponse;
use duramen_protocol::messages::produce::{
    BatchIndexAndErrorMessage, PartitionProduceResponse, TopicProduceResponse,
};
use duramen_protocol::wire::{Few, Uuid};
use duramen_protocol::{BatchHeader, ErrorCode};
use duramen_storage::op::ReplicaId;
use duramen_storage::sabotage::{self, Bug};

use super::results::count_result;
use super::{guarded, leaders};
use crate::access::{Operation, Resource};
use crate::checked_batch::CheckedBatch;
use crate::controller::image::Topic;
use crate::core::Parked;
use crate::event::{Action, Reply, RequestKey};
use crate::internal_topics::is_internal;
use crate::node::Node;
use crate::node::queues::{Change, Place};
use crate::partition::faults::Faults;
use crate::partition::{Acks, Appended, Partition, Slot};
use crate::quotas::QuotaKey;
use crate::session::{
    FIRST_THAT_ADDS, Prepared, PreparedPartition, PreparedProduce, PreparedTopic, Rejection,
    RequestContext,
};

/// First version whose clients know the error of a transaction that they can only abort.
const FIRST_ABORTABLE: i16 = 11;
/// Reason of a refusal of what may be sent again.
pub(super) const INDEX_BEHIND: &str = "the index of the queues is behind the log";
/// Longest time that a produce request without a timeout waits, in milliseconds.
const UNTIMED_MS: i32 = 1_000;

pub(crate) fn handle(
    node: &mut Node,
    key: RequestKey,
    context: RequestContext,
    request: PreparedProduce,
) {
    let deadline = deadline_us(node, request.timeout_ms);
    if node.core.has_stalled() || !node.core.has_room(request.bytes()) {
        node.core.stall(key, context, Prepared::Produce(request), deadline);
    } else {
        append(node, key, &context, request, deadline);
    }
}

/// Returns the time at which the wait for an append ends, in microseconds.
pub(super) fn deadline_us(node: &Node, timeout_ms: i32) -> u64 {
    // A producer that gives no time means: no more than it takes. The disk takes some.
    node.core.now.deadline_us(if timeout_ms > 0 { timeout_ms } else { UNTIMED_MS })
}

/// Answers a stalled produce request whose timeout has passed; none of its batches was appended.
pub(crate) fn on_stalled_too_long(node: &mut Node, key: RequestKey, request: PreparedProduce) {
    let code = ErrorCode::RequestTimedOut;
    if request.acks == 0 {
        return hang_up(key, code, &mut node.core.out);
    }
    let answer = |partition: PreparedPartition| {
        let code = partition.batch.err().map_or(code, |rejection| rejection.code);
        PartitionProduceResponse { error_code: code.code(), ..blank(partition.index) }
    };
    let topic = |topic: PreparedTopic| TopicProduceResponse {
        name: topic.name,
        topic_id: topic.id,
        partition_responses: topic.partitions.into_iter().map(answer).collect(),
    };
    let responses = request.topics.into_iter().map(topic).collect();
    node.reply(key, ProduceResponse { responses, ..Default::default() });
}

/// Closes the connection after a failed produce with acks=0. Its client reads no answer, so only that shows it the
/// error.
fn hang_up(key: RequestKey, code: ErrorCode, actions: &mut Vec<Action>) {
    let reason = format!("a produce with acks=0 failed: {code}");
    actions.push(Action::Close { connection: key.0, reason });
}

/// Result of one partition of the request.
pub(super) enum Outcome {
    /// Time of the append, and the message about a guard that does not hold. The batch waits.
    Waits {
        append_time_ms: i64,
        message: Option<String>,
    },
    Done(PartitionProduceResponse),
}

/// Appends all batches of a request, each on its own.
pub(crate) fn append(
    node: &mut Node,
    key: RequestKey,
    context: &RequestContext,
    request: PreparedProduce,
    deadline_us: u64,
) {
    let acks = match request.acks {
        0 => Ok(Acks::None),
        1 => Ok(Acks::Own),
        -1 => Ok(Acks::All),
        _ => Err(ErrorCode::InvalidRequiredAcks),
    };
    let id = request.transactional_id.as_deref();
    let may_transact =
        |id| node.core.access.may(context, Operation::Write, Resource::TransactionalId(id));
    let acks = match acks {
        Ok(_) if request.is_transactional && !id.is_some_and(may_transact) => {
            Err(ErrorCode::TransactionalIdAuthorizationFailed)
        }
        acks => acks,
    };
    let transactional_id = id.unwrap_or("").to_owned();
    let quota = node.core.quota(QuotaKey::ProducerByteRate, context);
    let rest_ms = quota.map_or(0, |quota| node.core.use_up(&quota, request.bytes()));
    let mut response = ProduceResponse { throttle_time_ms: rest_ms, ..Default::default() };
    let mut outstanding = 0;
    let mut error = None;
    for (at, topic) in request.topics.into_iter().enumerate() {
        let PreparedTopic { name, id, partitions } = topic;
        let found = resolve(node, context, &name, id);
        let mut answers = Few::with_capacity(partitions.len());
        for (slot, partition) in partitions.into_iter().enumerate() {
            let slot = Slot::Request { key, topic: at, partition: slot };
            let PreparedPartition { index, batch } = partition;
            let outcome = match (acks, &found, batch) {
                (Err(code), ..) => refused(index, code, None),
                (_, Err(code), _) => refused(index, *code, None),
                (_, _, Err(Rejection { code, message })) => refused(index, code, Some(message)),
                (Ok(acks), Ok(topic), Ok(batch)) => {
                    let transaction = (transactional_id.as_str(), context);
                    let header = batch.header;
                    let outcome = one(node, transaction, (*topic, index), batch, acks, slot);
                    note_refusal(node, (*topic, index), &header, &outcome);
                    outcome
                }
            };
            answers.push(match outcome {
                Outcome::Done(answer) => {
                    let code = ErrorCode::from_code(answer.error_code);
                    error = error.or(code.filter(|code| !code.is_none()));
                    answer
                }
                Outcome::Waits { append_time_ms, message } => {
                    outstanding += 1;
                    let (log_append_time_ms, error_message) = (append_time_ms, message);
                    PartitionProduceResponse { log_append_time_ms, error_message, ..blank(index) }
                }
            });
        }
        let topic = TopicProduceResponse { name, topic_id: id, partition_responses: answers };
        response.responses.push(topic);
    }
    if request.acks == 0 {
        match error {
            None => node.reply_with(key, Reply::Nothing { rest_ms }),
            Some(code) => hang_up(key, code, &mut node.core.out),
        }
    } else if outstanding == 0 {
        leaders::tell_producer(node, &context.listener, &mut response, context.version);
        node.reply(key, response);
    } else {
        let (version, listener) = (context.version, Arc::clone(&context.listener));
        let parked = Parked::Produce { response, outstanding, version, listener };
        node.core.park(key, parked, deadline_us);
    }
}

fn blank(index: i32) -> PartitionProduceResponse {
    PartitionProduceResponse { index, base_offset: -1, ..Default::default() }
}

fn refused(index: i32, code: ErrorCode, message: Option<String>) -> Outcome {
    Outcome::Done(PartitionProduceResponse {
        error_code: code.code(),
        error_message: message,
        ..blank(index)
    })
}

/// Returns the topic's id, by name or id.
fn resolve(node: &Node, context: &RequestContext, name: &str, id: Uuid) -> Result<Uuid, ErrorCode> {
    if context.version >= 13 {
        return admit(node, context, id);
    }
    node.core.access.admit(context, Operation::Write, Resource::Topic(name))?;
    let topic = node.core.controller.image.topic_named(name);
    topic.map(|topic| topic.id).ok_or(ErrorCode::UnknownTopicOrPartition)
}

/// Returns the id of a topic that the client may write to.
pub(super) fn admit(node: &Node, context: &RequestContext, id: Uuid) -> Result<Uuid, ErrorCode> {
    let topic = node.core.controller.image.topic(id).ok_or(ErrorCode::UnknownTopicId)?;
    node.core.access.admit(context, Operation::Write, Resource::Topic(&topic.name))?;
    Ok(id)
}

/// Gives one batch to its partition.
pub(super) fn one(
    node: &mut Node,
    transaction: (&str, &RequestContext),
    (topic, index): (Uuid, i32),
    batch: CheckedBatch,
    acks: Acks,
    slot: Slot,
) -> Outcome {
    let replica = match find(node, topic, index, acks) {
        Ok(replica) => replica,
        Err((code, message)) => {
            if let Some(partition) = here(node, topic, index) {
                partition.note_append(0, 0, true);
            }
            return refused(index, code, message);
        }
    };
    let (guard, partition) = (&batch.guard, &node.core.partitions[&replica]);
    if !guard.is_open() && acks == Acks::None {
        let text = "a guard needs an answer: acks=all, or 1".to_owned();
        return refused(index, ErrorCode::InvalidRecord, Some(text));
    }
    if guarded::is_of_queue(partition, guard) {
        let Slot::Request { key, topic, partition } = slot else {
            unreachable!("a request's batch has its slot")
        };
        let place = (key, topic, partition);
        return match guarded::hold(node, replica, Change::append(batch, acks), place) {
            Some((appended, log_start)) => outcome_of(index, appended, log_start),
            None => Outcome::Waits { append_time_ms: -1, message: None },
        };
    }
    if partition.settings.queue && guard.last.is_some() {
        let text =
            "duramen-if-last is about one queue, and the records have several keys".to_owned();
        return refused(index, ErrorCode::InvalidRecord, Some(text));
    }
    let (appended, log_start_offset) = if batch.header.attributes.is_transactional() {
        node.coordinators.append_in_transaction(
            &mut node.core,
            replica,
            transaction,
            batch,
            acks,
            slot,
        )
    } else {
        node.core.append(replica, batch, acks, slot)
    };
    outcome_of(index, appended, log_start_offset)
}

/// Has the replica remember a refused batch: the producer may have sent the next one already.
pub(super) fn note_refusal(
    node: &mut Node,
    (topic, index): (Uuid, i32),
    header: &BatchHeader,
    outcome: &Outcome,
) {
    let Outcome::Done(PartitionProduceResponse { error_code, .. }) = outcome else { return };
    let Some(code) = ErrorCode::from_code(*error_code).filter(|code| !code.is_none()) else {
        return;
    };
    if let Some(partition) = here(node, topic, index) {
        partition.note_refused(header, code);
    }
}

/// Returns the replica of a partition on this node, leader or not.
fn here(node: &mut Node, topic: Uuid, index: i32) -> Option<&mut Partition> {
    let topic = node.core.controller.image.topic(topic)?;
    let replica = node.core.local_replica(topic, index)?;
    node.core.partitions.get_mut(&replica).map(AsMut::as_mut)
}

fn outcome_of(index: i32, appended: Appended, log_start_offset: i64) -> Outcome {
    match appended {
        Appended::Waits { append_time_ms } => Outcome::Waits { append_time_ms, message: None },
        Appended::Objected { reason, is_certain: false } => {
            Outcome::Waits { append_time_ms: -1, message: Some(reason.to_string()) }
        }
        Appended::Objected { reason, is_certain: true } => {
            refused(index, ErrorCode::PolicyViolation, Some(reason.to_string()))
        }
        Appended::Busy(text) => refused(index, ErrorCode::NotEnoughReplicas, Some(text.to_owned())),
        Appended::Done { base_offset } => {
            let blank = blank(index);
            Outcome::Done(PartitionProduceResponse { base_offset, log_start_offset, ..blank })
        }
        Appended::Refused(code, message) => Outcome::Done(PartitionProduceResponse {
            error_code: code.code(),
            log_start_offset,
            error_message: message,
            ..blank(index)
        }),
        Appended::Faulty(Faults { code, message, records }) => {
            let named = |(batch_index, text)| BatchIndexAndErrorMessage {
                batch_index,
                batch_index_error_message: Some(text),
            };
            Outcome::Done(PartitionProduceResponse {
                error_code: code.code(),
                log_start_offset,
                record_errors: records.into_iter().map(named).collect(),
                error_message: Some(message),
                ..blank(index)
            })
        }
    }
}

/// Records the outcome of a batch, and answers after the last one.
pub(crate) fn on_finished(
    node: &mut Node,
    key: RequestKey,
    (topic, partition): (usize, usize),
    error: ErrorCode,
    (base_offset, log_start): (i64, i64),
) {
    let Some(Parked::Produce { response, .. }) = node.core.parked_mut(key) else { return };
    let part = &mut response.responses[topic].partition_responses[partition];
    assert!(is_open(part), "a batch has one result, and {part:?} is there");
    part.error_code = error.code();
    part.base_offset = base_offset;
    part.log_start_offset = log_start;
    if !error.is_none() {
        part.log_append_time_ms = -1;
    }
    // The message is about a guard that does not hold.
    if error != ErrorCode::PolicyViolation {
        part.error_message = None;
    }
    count_result(node, key);
}

/// Records the refusal of a batch that waited for its transaction.
pub(crate) fn refuse_part(node: &mut Node, slot: Slot, code: ErrorCode) {
    let Slot::Request { key, .. } = slot else { return };
    let Some(&mut Parked::Produce { version, .. }) = node.core.parked_mut(key) else { return };
    settle_part(node, slot, Appended::Refused(judged(code, version), None), -1);
}

/// Records the result of a batch that waited for its transaction.
pub(crate) fn settle_part(node: &mut Node, slot: Slot, appended: Appended, log_start: i64) {
    let Slot::Request { key, topic, partition } = slot else { return };
    let Some(Parked::Produce { response, .. }) = node.core.parked_mut(key) else { return };
    let index = response.responses[topic].partition_responses[partition].index;
    settle_outcome(node, (key, topic, partition), outcome_of(index, appended, log_start));
}

fn settle_outcome(node: &mut Node, (key, topic, partition): Place, outcome: Outcome) {
    let Some(Parked::Produce { response, .. }) = node.core.parked_mut(key) else { return };
    let part = &mut response.responses[topic].partition_responses[partition];
    match outcome {
        Outcome::Waits { append_time_ms, message } => {
            (part.log_append_time_ms, part.error_message) = (append_time_ms, message);
        }
        Outcome::Done(answer) => {
            assert!(is_open(part), "a batch has one result, and {part:?} is there");
            *part = answer;
            count_result(node, key);
        }
    }
}

/// Returns the error code for a producer whose batch may not be part of its transaction.
fn judged(code: ErrorCode, version: i16) -> ErrorCode {
    match code {
        ErrorCode::TransactionAbortable if version < FIRST_ABORTABLE => ErrorCode::InvalidTxnState,
        ErrorCode::ProducerFenced => ErrorCode::InvalidProducerEpoch,
        // Producers of the first protocol do not expect this code.
        ErrorCode::ConcurrentTransactions if version < FIRST_THAT_ADDS => {
            ErrorCode::NotEnoughReplicas
        }
        ErrorCode::CoordinatorNotAvailable
        | ErrorCode::CoordinatorLoadInProgress
        | ErrorCode::NotCoordinator => ErrorCode::NotEnoughReplicas,
        code => code,
    }
}

/// Returns the replica that takes a batch, or the error with its message.
pub(super) fn find(
    node: &Node,
    topic: Uuid,
    index: i32,
    acks: Acks,
) -> Result<ReplicaId, (ErrorCode, Option<String>)> {
    let blunt = |code| (code, None);
    let topic = topic_of(node, topic).map_err(blunt)?;
    let partition = node.core.serving(topic, index).map_err(blunt)?;
    check_room(node, partition)?;
    // Checked before the append: a retry of a refused batch must not find it in the log.
    if acks == Acks::All && partition.lacks_replicas() {
        return Err(blunt(ErrorCode::NotEnoughReplicas));
    }
    Ok(partition.group.id())
}

/// Returns a topic that clients write to.
pub(super) fn topic_of(node: &Node, id: Uuid) -> Result<&Topic, ErrorCode> {
    let topic = node.core.controller.image.topic(id);
    let topic = topic.ok_or(ErrorCode::UnknownTopicOrPartition)?;
    if is_internal(&topic.name) { Err(ErrorCode::InvalidTopicException) } else { Ok(topic) }
}

/// Returns the error and message for a client while the disk, or the index of a log of queues, takes no more batches.
pub(super) fn check_room(
    node: &Node,
    partition: &Partition,
) -> Result<(), (ErrorCode, Option<String>)> {
    if let Some(refusal) = node.core.refusal()
        && !sabotage::is(Bug::FullDiskIgnored)
    {
        return Err((ErrorCode::KafkaStorageError, Some(refusal)));
    }
    if node.queues.is_behind(partition) {
        return Err((ErrorCode::NotEnoughReplicas, Some(INDEX_BEHIND.to_owned())));
    }
    Ok(())
}

/// Tells whether a batch of a waiting request has no result yet.
fn is_open(part: &PartitionProduceResponse) -> bool {
    part.error_code == 0 && part.base_offset < 0
}

/// Ends a waiting request that timed out. A batch without an answer may or may not become durable.
pub(crate) fn time_out(response: &mut ProduceResponse) {
    let parts = response.responses.iter_mut().flat_map(|topic| &mut topic.partition_responses);
    for part in parts.filter(|part| is_open(part)) {
        part.error_code = ErrorCode::RequestTimedOut.code();
        (part.log_append_time_ms, part.error_message) = (-1, None);
    }
}
