//! `ListOffsets`: offsets by time, and the first and last ones.

use std::collections::BTreeSet;

use duramen_protocol::ErrorCode;
use duramen_protocol::messages::list_offsets::{
    ListOffsetsPartition, ListOffsetsPartitionResponse, ListOffsetsTopicResponse,
};
use duramen_protocol::messages::{ListOffsetsRequest, ListOffsetsResponse};

use super::checks::repeated;
use crate::access::{Operation, Resource};
use crate::event::{Reply, RequestKey, TimePart, TimePlan};
use crate::node::Node;
use crate::partition::Partition;
use crate::session::RequestContext;

const READ_COMMITTED: i8 = 1;

const LATEST: i64 = -1;
const EARLIEST: i64 = -2;
const MAX_TIMESTAMP: i64 = -3;
const EARLIEST_LOCAL: i64 = -4;
const LATEST_TIERED: i64 = -5;
const EARLIEST_PENDING_UPLOAD: i64 = -6;

/// Returns the first version that may ask for this special timestamp.
fn first_version(timestamp: i64) -> i16 {
    match timestamp {
        LATEST | EARLIEST | 0.. => 1,
        MAX_TIMESTAMP => 7,
        EARLIEST_LOCAL => 8,
        LATEST_TIERED => 9,
        EARLIEST_PENDING_UPLOAD => 11,
        _ => i16::MAX,
    }
}

/// Older versions cannot express the leader epoch of an offset.
const FIRST_VERSION_WITH_EPOCHS: i16 = 4;

enum Answer {
    Offset { offset: i64, epoch: i32 },
    Lookup { start: i64, end: i64 },
}

pub(crate) fn handle(
    node: &mut Node,
    key: RequestKey,
    context: &RequestContext,
    request: &ListOffsetsRequest,
) {
    let mut response = ListOffsetsResponse::default();
    let mut parts = Vec::new();
    let is_read_committed = request.isolation_level == READ_COMMITTED;
    let with_epochs = context.version >= FIRST_VERSION_WITH_EPOCHS;
    let named = request.topics.iter().flat_map(|topic| {
        topic.partitions.iter().map(|asked| (topic.name.as_str(), asked.partition_index))
    });
    let twice = repeated(named);
    let mut told = BTreeSet::new();
    for topic in &request.topics {
        let mut partitions = Vec::with_capacity(topic.partitions.len());
        for asked in &topic.partitions {
            let place = (topic.name.as_str(), asked.partition_index);
            if twice.contains(&place) && !told.insert(place) {
                continue;
            }
            let mut answer = ListOffsetsPartitionResponse {
                partition_index: asked.partition_index,
                ..Default::default()
            };
            let found = if twice.contains(&place) {
                Err(ErrorCode::InvalidRequest)
            } else {
                one(node, context, &topic.name, asked, is_read_committed)
            };
            match found {
                Err(code) => answer.error_code = code.code(),
                Ok((_, Answer::Offset { offset, epoch })) => {
                    answer.offset = offset;
                    answer.leader_epoch = if with_epochs { epoch } else { -1 };
                }
                Ok((partition, Answer::Lookup { start, end })) => parts.push(TimePart {
                    topic: response.topics.len(),
                    partition: partitions.len(),
                    replica: partition.group.id(),
                    timestamp: asked.timestamp,
                    start,
                    end,
                    epochs: if with_epochs { partition.epochs() } else { Vec::new() },
                }),
            }
            partitions.push(answer);
        }
        if partitions.is_empty() && !topic.partitions.is_empty() {
            continue;
        }
        let name = topic.name.clone();
        response.topics.push(ListOffsetsTopicResponse { name, partitions });
    }
    if parts.is_empty() {
        node.reply(key, response);
    } else {
        let plan = TimePlan { response, parts };
        node.reply_with(key, Reply::ListOffsets(Box::new(plan)));
    }
}

fn one<'a>(
    node: &'a Node,
    context: &RequestContext,
    name: &str,
    asked: &ListOffsetsPartition,
    is_read_committed: bool,
) -> Result<(&'a Partition, Answer), ErrorCode> {
    node.core.access.admit(context, Operation::Describe, Resource::Topic(name))?;
    if context.version < first_version(asked.timestamp) {
        return Err(ErrorCode::UnsupportedVersion);
    }
    let topic = node.core.controller.image.topic_named(name);
    let topic = topic.ok_or(ErrorCode::UnknownTopicOrPartition)?;
    let partition = node.core.serving(topic, asked.partition_index)?;
    partition.check_epoch(asked.current_leader_epoch)?;
    let start = partition.log_start();
    let end = if is_read_committed { partition.stable() } else { partition.committed() };
    assert!(start <= end, "the log of a leader from {start} to {end} is in order");
    let offset = |offset| Answer::Offset { offset, epoch: partition.epoch_at(offset) };
    let answer = match asked.timestamp {
        LATEST => offset(end),
        EARLIEST | EARLIEST_LOCAL => offset(start),
        // Nothing is tiered, so nothing is the latest of it or waits for it.
        LATEST_TIERED | EARLIEST_PENDING_UPLOAD => Answer::Offset { offset: -1, epoch: -1 },
        _ if start == end => Answer::Offset { offset: -1, epoch: -1 },
        _ => Answer::Lookup { start, end },
    };
    Ok((partition, answer))
}
