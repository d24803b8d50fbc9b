//! `ListPartitionReassignments` (KIP-455): partitions that are being moved.

use duramen_protocol::ErrorCode;
use duramen_protocol::messages::list_partition_reassignments::{
    ListPartitionReassignmentsTopics, OngoingPartitionReassignment, OngoingTopicReassignment,
};
use duramen_protocol::messages::{
    ListPartitionReassignmentsRequest, ListPartitionReassignmentsResponse,
};

use crate::access::{Operation, Resource};
use crate::controller::image::Topic;
use crate::node::Node;
use crate::session::RequestContext;

pub(crate) fn answer(
    node: &Node,
    context: &RequestContext,
    request: &ListPartitionReassignmentsRequest,
) -> ListPartitionReassignmentsResponse {
    let mut response = ListPartitionReassignmentsResponse::default();
    if !node.core.access.may(context, Operation::Describe, Resource::Cluster) {
        response.error_code = ErrorCode::ClusterAuthorizationFailed.code();
        return response;
    }
    let image = &node.core.controller.image;
    let is_asked = |topic: &Topic, partition: i32| {
        let is_it = |asked: &_| is_named(asked, topic, partition);
        request.topics.as_ref().is_none_or(|topics| topics.iter().any(is_it))
    };
    for ((topic_id, partition), moved) in &image.reassignments {
        let Some(topic) = image.topic(*topic_id).filter(|it| is_asked(it, *partition)) else {
            continue;
        };
        let Some(replicas) = topic.replicas(*partition) else { continue };
        let brokers_of = |is_one: &dyn Fn(u64) -> bool| {
            let some = replicas.iter().filter(|it| is_one(it.peer_id));
            some.map(|it| it.broker_id).collect::<Vec<_>>()
        };
        let row = OngoingPartitionReassignment {
            partition_index: *partition,
            replicas: brokers_of(&|_| true),
            adding_replicas: brokers_of(&|id| !moved.origin.contains(&id)),
            removing_replicas: brokers_of(&|id| !moved.target.contains(&id)),
        };
        if let Some(last) = response.topics.last_mut().filter(|it| it.name == topic.name) {
            last.partitions.push(row);
        } else {
            let (name, partitions) = (topic.name.clone(), vec![row]);
            response.topics.push(OngoingTopicReassignment { name, partitions });
        }
    }
    response
}

fn is_named(asked: &ListPartitionReassignmentsTopics, topic: &Topic, partition: i32) -> bool {
    asked.name == topic.name && asked.partition_indexes.contains(&partition)
}
