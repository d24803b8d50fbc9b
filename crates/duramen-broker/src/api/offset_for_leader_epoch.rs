//! `OffsetForLeaderEpoch`: returns the end of a leader epoch, so that a client notices a truncation of its log.

use duramen_protocol::ErrorCode;
use duramen_protocol::messages::offset_for_leader_epoch::{
    EpochEndOffset, OffsetForLeaderPartition, OffsetForLeaderTopicResult,
};
use duramen_protocol::messages::{OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse};

use crate::access::{Operation, Resource};
use crate::node::Node;
use crate::session::RequestContext;

pub(crate) fn answer(
    node: &Node,
    context: &RequestContext,
    request: OffsetForLeaderEpochRequest,
) -> OffsetForLeaderEpochResponse {
    let mut response = OffsetForLeaderEpochResponse::default();
    let may_all = node.core.access.may(context, Operation::ClusterAction, Resource::Cluster);
    for topic in request.topics {
        let name = topic.topic.as_str();
        let may =
            may_all || node.core.access.may(context, Operation::Describe, Resource::Topic(name));
        let one = |asked: &OffsetForLeaderPartition| {
            let partition = asked.partition;
            let found = if may {
                end_of(node, name, asked)
            } else {
                Err(ErrorCode::TopicAuthorizationFailed)
            };
            match found {
                Ok((leader_epoch, end_offset)) => {
                    EpochEndOffset { error_code: 0, partition, leader_epoch, end_offset }
                }
                Err(code) => {
                    EpochEndOffset { error_code: code.code(), partition, ..Default::default() }
                }
            }
        };
        let partitions = topic.partitions.iter().map(one).collect();
        response.topics.push(OffsetForLeaderTopicResult { topic: topic.topic, partitions });
    }
    response
}

fn end_of(
    node: &Node,
    name: &str,
    asked: &OffsetForLeaderPartition,
) -> Result<(i32, i64), ErrorCode> {
    let topic = node.core.controller.image.topic_named(name);
    let topic = topic.ok_or(ErrorCode::UnknownTopicOrPartition)?;
    let partition = node.core.serving(topic, asked.partition)?;
    partition.check_epoch(asked.current_leader_epoch)?;
    Ok(partition.epoch_end(asked.leader_epoch))
}
