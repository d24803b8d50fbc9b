//! `ElectLeaders`: partitions of a cluster of one node are led by their only replica, or by none.

use duramen_protocol::ErrorCode;
use duramen_protocol::messages::elect_leaders::{
    PartitionResult, ReplicaElectionResult, TopicPartitions,
};
use duramen_protocol::messages::{ElectLeadersRequest, ElectLeadersResponse};

use super::{Operation, Resource, authorize};
use crate::controller::Error;
use crate::node::Node;
use crate::session::RequestContext;

const PREFERRED: i8 = 0;
const UNCLEAN: i8 = 1;

pub(crate) fn answer(
    node: &Node,
    context: &RequestContext,
    request: &ElectLeadersRequest,
) -> ElectLeadersResponse {
    let mut response = ElectLeadersResponse::default();
    let Some(topics) = &request.topic_partitions else {
        // All partitions: those that have their leader are not told of, and that is all of them.
        if !matches!(request.election_type, PREFERRED | UNCLEAN) {
            response.error_code = ErrorCode::InvalidRequest.code();
            return response;
        }
        let topics = node.controller.image.topics_by_name();
        let row = |name: &String| ReplicaElectionResult {
            topic: name.clone(),
            partition_result: Vec::new(),
        };
        response.replica_election_results = topics.map(|topic| row(&topic.name)).collect();
        return response;
    };
    let obstacle = obstacle(context, request);
    if let Some(error) = obstacle.as_ref().filter(|_| !topics.is_empty()) {
        response.error_code = error.code.code();
    }
    for TopicPartitions { topic, partitions } in topics {
        let one = |&partition_id: &i32| {
            let error = obstacle.clone().unwrap_or_else(|| judge(node, topic, partition_id));
            PartitionResult {
                partition_id,
                error_code: error.code.code(),
                error_message: Some(error.message),
            }
        };
        let partition_result = partitions.iter().map(one).collect();
        let topic = topic.clone();
        response.replica_election_results.push(ReplicaElectionResult { topic, partition_result });
    }
    response
}

/// Why none of what is asked can be done.
fn obstacle(context: &RequestContext, request: &ElectLeadersRequest) -> Option<Error> {
    if !authorize(&context.principal, Operation::Alter, Resource::Cluster) {
        let text = "not allowed to alter the cluster";
        return Some(Error::new(ErrorCode::ClusterAuthorizationFailed, text));
    }
    if !matches!(request.election_type, PREFERRED | UNCLEAN) {
        let text = format!("there is no type of election {}", request.election_type);
        return Some(Error::new(ErrorCode::InvalidRequest, text));
    }
    (request.timeout_ms <= 0).then(|| Error::new(ErrorCode::RequestTimedOut, "there is no time"))
}

/// The texts leave out what the request names: it may name very much, and would get it back for each partition.
fn judge(node: &Node, name: &str, partition: i32) -> Error {
    let Some(topic) = node.controller.image.topic_named(name) else {
        return Error::new(ErrorCode::UnknownTopicOrPartition, "there is no such topic");
    };
    match node.serving(topic, partition) {
        Ok(_) => Error::new(ErrorCode::ElectionNotNeeded, "the partition has its leader"),
        Err(ErrorCode::UnknownTopicOrPartition) => {
            let text = "the topic has no such partition";
            Error::new(ErrorCode::UnknownTopicOrPartition, text)
        }
        Err(_) => {
            let text = "the partition's only replica cannot lead now";
            Error::new(ErrorCode::EligibleLeadersNotAvailable, text)
        }
    }
}
