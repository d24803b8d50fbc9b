//! `DescribeQuorum`: the nodes that keep the metadata log, and their progress as its leader knows it. The answer covers
//! no other log.

use duramen_protocol::ErrorCode;
use duramen_protocol::messages::describe_quorum::{
    Listener, Node as QuorumNode, ReplicaState, RequestPartitionData, RequestTopicData,
    ResponsePartitionData, ResponseTopicData,
};
use duramen_protocol::messages::{DescribeQuorumRequest, DescribeQuorumResponse};
use duramen_protocol::wire::Uuid;

use super::decisions::why_undecided;
use crate::access::{Operation, Resource};
use crate::controller::{METADATA_GROUP, METADATA_TOPIC};
use crate::core::NATIVE;
use crate::limits::TICK_US;
use crate::node::Node;
use crate::session::RequestContext;

/// Older versions cannot express where a voter keeps its log, and at which addresses it is.
const FIRST_VERSION_WITH_DIRECTORIES: i16 = 2;

pub(crate) fn answer(
    node: &Node,
    context: &RequestContext,
    request: &DescribeQuorumRequest,
) -> DescribeQuorumResponse {
    let mut response =
        DescribeQuorumResponse { error_message: Some(String::new()), ..Default::default() };
    if !node.core.access.may(context, Operation::Describe, Resource::Cluster) {
        response.error_code = ErrorCode::ClusterAuthorizationFailed.code();
        return response;
    }
    // The request must name only this partition, or the node answers that it knows none of them.
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
                metadata(node, with_directories)
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
        ..Default::default()
    }
}

/// Describes the metadata log as its leader knows it. A node that knows of no leader answers with its own knowledge.
fn metadata(node: &Node, with_directories: bool) -> ResponsePartitionData {
    let controller = &node.core.controller;
    let group = &controller.group;
    let is_leader = group.is_serving();
    let in_sync: Vec<u64> = if is_leader { group.caught_up().collect() } else { Vec::new() };
    let state = |peer: u64| {
        let is_own = peer == group.id().0;
        let placed = node.core.placed(METADATA_GROUP, peer);
        let placed = placed.map(|placed| (placed.broker_id, placed.directory_id));
        let own = is_own.then(|| (node.core.options.facts.broker_id, node.core.own_directory()));
        let (broker_id, directory) = own.or(placed).unwrap_or((-1, Uuid::ZERO));
        let silent_ticks = if is_own { Some(0) } else { node.core.peers.silent_ticks(broker_id) };
        // Without a leader, no node knows more.
        let is_told = is_leader || is_own || node.core.metadata_leader().is_none();
        let heard = silent_ticks.filter(|_| is_told).map_or(-1, |ticks| {
            let silent_ms = i64::try_from(ticks * TICK_US / 1000).unwrap_or(i64::MAX);
            node.core.now.wall_ms.saturating_sub(silent_ms)
        });
        let keeps_up = in_sync.contains(&peer);
        ReplicaState {
            replica_id: broker_id,
            replica_directory_id: if with_directories { directory } else { Uuid::ZERO },
            log_end_offset: group.end_offset_of(peer).unwrap_or(-1),
            last_fetch_timestamp: heard,
            last_caught_up_timestamp: if keeps_up { heard } else { -1 },
        }
    };
    ResponsePartitionData {
        error_message: Some(String::new()),
        leader_id: node.core.metadata_leader().unwrap_or(-1),
        leader_epoch: group.epoch(),
        high_watermark: controller.end(),
        current_voters: group.electorate().into_iter().map(state).collect(),
        observers: group.learners().into_iter().map(state).collect(),
        ..Default::default()
    }
}

/// Returns the answer to a request that the leader of the metadata did not answer.
pub(crate) fn undecided(code: ErrorCode) -> DescribeQuorumResponse {
    let error_message = Some(why_undecided(code).to_owned());
    DescribeQuorumResponse { error_code: code.code(), error_message, ..Default::default() }
}

fn nodes(node: &Node) -> Vec<QuorumNode> {
    let brokers = node.core.controller.image.brokers.iter();
    let one = |(&node_id, broker): (&i32, &crate::metadata_records::RegisterBroker)| {
        let listener = |endpoint: &crate::metadata_records::Endpoint| Listener {
            name: endpoint.listener.clone(),
            host: endpoint.host.clone(),
            port: endpoint.port,
        };
        // The native API is no listener of Kafka's protocol.
        let listeners = broker.endpoints.iter().filter(|it| it.listener != NATIVE);
        QuorumNode { node_id, listeners: listeners.map(listener).collect() }
    };
    brokers.map(one).collect()
}
