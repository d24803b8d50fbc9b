//! `DeleteRecords`: moves the log start offset forward.

use std::collections::BTreeSet;

use duramen_protocol::ErrorCode;
use duramen_protocol::messages::delete_records::{
    DeleteRecordsPartitionResult, DeleteRecordsTopic, DeleteRecordsTopicResult,
};
use duramen_protocol::messages::{DeleteRecordsRequest, DeleteRecordsResponse};

use super::results::count_result;
use crate::access::{Operation, Resource};
use crate::core::Parked;
use crate::event::RequestKey;
use crate::internal_topics::is_internal;
use crate::limits::TRIM_MS_MIN;
use crate::node::Node;
use crate::partition::Slot;
use crate::session::RequestContext;

const TO_THE_END: i64 = -1;

pub(crate) fn handle(
    node: &mut Node,
    key: RequestKey,
    context: &RequestContext,
    request: DeleteRecordsRequest,
) {
    let mut response = DeleteRecordsResponse::default();
    let mut outstanding = 0;
    let topics = last_of_each(request.topics);
    for (at, topic) in topics.into_iter().enumerate() {
        let mut partitions = Vec::with_capacity(topic.partitions.len());
        for (slot, asked) in topic.partitions.into_iter().enumerate() {
            let slot = Slot::Request { key, topic: at, partition: slot };
            let index = asked.partition_index;
            let mut result = DeleteRecordsPartitionResult {
                partition_index: index,
                low_watermark: -1,
                error_code: 0,
            };
            match trim(node, context, &topic.name, index, asked.offset, slot) {
                Ok(Some(low_watermark)) => result.low_watermark = low_watermark,
                Ok(None) => outstanding += 1,
                Err(code) => result.error_code = code.code(),
            }
            partitions.push(result);
        }
        response.topics.push(DeleteRecordsTopicResult { name: topic.name, partitions });
    }
    if outstanding == 0 {
        node.reply(key, response);
    } else {
        // Kafka's leader trims without its followers, so that a client without patience hears of it, too.
        let deadline = node.core.now.deadline_us(request.timeout_ms.max(TRIM_MS_MIN));
        node.core.park(key, Parked::Trims { response, outstanding }, deadline);
    }
}

/// Returns each partition once. As in Kafka, the last offset given for a partition counts.
fn last_of_each(mut topics: Vec<DeleteRecordsTopic>) -> Vec<DeleteRecordsTopic> {
    let mut named = BTreeSet::new();
    for topic in topics.iter_mut().rev() {
        let name = &topic.name;
        topic.partitions.reverse();
        topic.partitions.retain(|it| named.insert((name.clone(), it.partition_index)));
        topic.partitions.reverse();
    }
    topics.retain(|topic| !topic.partitions.is_empty());
    topics
}

/// Returns the log start offset if it has reached `offset` already, or `None` if a trim is under way.
fn trim(
    node: &mut Node,
    context: &RequestContext,
    name: &str,
    index: i32,
    offset: i64,
    slot: Slot,
) -> Result<Option<i64>, ErrorCode> {
    node.core.access.admit(context, Operation::Delete, Resource::Topic(name))?;
    let topic = node.core.controller.image.topic_named(name);
    let topic = topic.ok_or(ErrorCode::UnknownTopicOrPartition)?;
    if is_internal(name) {
        return Err(ErrorCode::InvalidTopicException);
    }
    let partition = node.core.serving(topic, index)?;
    if partition.settings.compact && !partition.settings.delete {
        return Err(ErrorCode::PolicyViolation);
    }
    let replica = partition.group.id();
    let partition = node.core.partitions.get_mut(&replica).expect("it was just found");
    let offset = if offset == TO_THE_END { partition.committed() } else { offset };
    if offset < 0 {
        return Err(ErrorCode::OffsetOutOfRange);
    }
    if partition.trim(offset, Some(slot))? {
        node.core.mark_dirty(replica);
        return Ok(None);
    }
    Ok(Some(partition.log_start()))
}

/// Tells whether a trim of a waiting request has no result yet.
fn is_open(part: &DeleteRecordsPartitionResult) -> bool {
    part.error_code == 0 && part.low_watermark < 0
}

pub(crate) fn time_out(response: &mut DeleteRecordsResponse) {
    let parts = response.topics.iter_mut().flat_map(|topic| &mut topic.partitions);
    for part in parts.filter(|part| is_open(part)) {
        part.error_code = ErrorCode::RequestTimedOut.code();
    }
}

/// Records the outcome of one trim, and answers after the last one.
pub(crate) fn on_finished(
    node: &mut Node,
    key: RequestKey,
    (topic, partition): (usize, usize),
    error: ErrorCode,
    log_start: i64,
) {
    let Some(Parked::Trims { response, .. }) = node.core.parked_mut(key) else { return };
    let part = &mut response.topics[topic].partitions[partition];
    assert!(is_open(part), "a trim has one result, and {part:?} is there");
    part.error_code = error.code();
    part.low_watermark = if error.is_none() { log_start } else { -1 };
    count_result(node, key);
}
