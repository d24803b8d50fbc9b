//! `DescribeQuorum`: who keeps the metadata log, and how far. Other logs are not told of here.

use duramen_protocol::ErrorCode;
use duramen_protocol::messages::describe_quorum::{
    Listener, Node as QuorumNode, ReplicaState, RequestPartitionData, RequestTopicData,
    ResponsePartitionData, ResponseTopicData,
};
use duramen_protocol::messages::{DescribeQuorumRequest, DescribeQuorumResponse};
use duramen_protocol::wire::Uuid;

use super::{Operation, Resource, authorize};
use crate::controller::METADATA_TOPIC;
use crate::event::Now;
use crate::node::Node;
use crate::session::RequestContext;

/// Older versions cannot express where a voter keeps its log, and at which addresses it is.
const FIRST_VERSION_WITH_DIRECTORIES: i16 = 2;

pub(crate) fn answer(
    node: &Node,
    now: Now,
    context: &RequestContext,
    request: &DescribeQuorumRequest,
) -> DescribeQuorumResponse {
    let mut response =
        DescribeQuorumResponse { error_message: Some(String::new()), ..Default::default() };
    if !authorize(&context.principal, Operation::Describe, Resource::Cluster) {
        response.error_code = ErrorCode::ClusterAuthorizationFailed.code();
        return response;
    }
    // It is asked for alone, or nothing of what is asked for is known.
    let is_metadata = match request.topics.as_slice() {
        [topic] if topic.topic_name == METADATA_TOPIC => {
            topic.partitions == [RequestPartitionData { partition_index: 0 }]
        }
        _ => false,
    };
    let with_directories = context.version >= FIRST_VERSION_WITH_DIRECTORIES;
    if is_metadata && with_directories {
        response.nodes = nodes(node);
    }
    let topic = |topic: &RequestTopicData| {
        let partition = |asked: &RequestPartitionData| {
            if is_metadata {
                metadata(node, now, with_directories)
            } else {
                unknown(asked.partition_index)
            }
        };
        ResponseTopicData {
            topic_name: topic.topic_name.clone(),
            partitions: topic.partitions.iter().map(partition).collect(),
        }
    };
    response.topics = request.topics.iter().map(topic).collect();
    response
}

fn unknown(partition_index: i32) -> ResponsePartitionData {
    ResponsePartitionData {
        partition_index,
        error_code: ErrorCode::UnknownTopicOrPartition.code(),
        error_message: Some("only the metadata log is described".to_owned()),
        ..ResponsePartitionData::default()
    }
}

fn metadata(node: &Node, now: Now, with_directories: bool) -> ResponsePartitionData {
    let controller = &node.controller;
    let leader_id = node.options.facts.broker_id;
    // The leader hears itself now.
    let voter = ReplicaState {
        replica_id: leader_id,
        replica_directory_id: if with_directories { node.own_directory() } else { Uuid::ZERO },
        log_end_offset: controller.group.end_offset(),
        last_fetch_timestamp: now.wall_ms,
        last_caught_up_timestamp: now.wall_ms,
    };
    ResponsePartitionData {
        error_message: Some(String::new()),
        leader_id,
        leader_epoch: controller.group.epoch(),
        high_watermark: controller.end(),
        current_voters: vec![voter],
        ..ResponsePartitionData::default()
    }
}

fn nodes(node: &Node) -> Vec<QuorumNode> {
    let brokers = node.controller.image.brokers.iter();
    let one = |(&node_id, broker): (&i32, &crate::controller::records::RegisterBroker)| {
        let listener = |endpoint: &crate::controller::records::Endpoint| Listener {
            name: endpoint.listener.clone(),
            host: endpoint.host.clone(),
            port: endpoint.port,
        };
        QuorumNode { node_id, listeners: broker.endpoints.iter().map(listener).collect() }
    };
    brokers.map(one).collect()
}
