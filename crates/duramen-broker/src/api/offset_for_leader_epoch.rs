//! `OffsetForLeaderEpoch`: returns the end of a leader epoch, so that a client notices a truncation of its log.

use duramen_protocol::ErrorCode;
use duramen_protocol::messages::offset_for_leader_epoch::{
    EpochEndOffset, OffsetForLeaderPartition, OffsetForLeaderTopicResult,
};
use duramen_protocol::messages::{OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse};

use super::{Operation, Resource, authorize};
use crate::node::Node;
use crate::session::RequestContext;

pub(crate) fn answer(
    node: &Node,
    context: &RequestContext,
    request: OffsetForLeaderEpochRequest,
) -> OffsetForLeaderEpochResponse {
    let mut response = OffsetForLeaderEpochResponse::default();
    for topic in request.topics {
        let one = |asked: &OffsetForLeaderPartition| {
            let partition = asked.partition;
            match end_of(node, context, &topic.topic, asked) {
                Ok((leader_epoch, end_offset)) => {
                    EpochEndOffset { error_code: 0, partition, leader_epoch, end_offset }
                }
                Err(code) => EpochEndOffset {
                    error_code: code.code(),
                    partition,
                    ..EpochEndOffset::default()
                },
            }
        };
        let partitions = topic.partitions.iter().map(one).collect();
        response.topics.push(OffsetForLeaderTopicResult { topic: topic.topic, partitions });
    }
    response
}

fn end_of(
    node: &Node,
    context: &RequestContext,
    name: &str,
    asked: &OffsetForLeaderPartition,
) -> Result<(i32, i64), ErrorCode> {
    if !authorize(&context.principal, Operation::Describe, Resource::Topic(name)) {
        return Err(ErrorCode::TopicAuthorizationFailed);
    }
    let topic = node.controller.image.topic_named(name);
    let topic = topic.ok_or(ErrorCode::UnknownTopicOrPartition)?;
    let partition = node.serving(topic, asked.partition)?;
    partition.check_epoch(asked.current_leader_epoch)?;
    Ok(partition.epoch_end(asked.leader_epoch))
}
