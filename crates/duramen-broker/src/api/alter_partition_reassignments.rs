//! `AlterPartitionReassignments`: in a cluster of one node every partition is where it can be.

use std::collections::BTreeSet;

use duramen_protocol::ErrorCode;
use duramen_protocol::messages::alter_partition_reassignments::{
    ReassignablePartition, ReassignablePartitionResponse, ReassignableTopicResponse,
};
use duramen_protocol::messages::{
    AlterPartitionReassignmentsRequest, AlterPartitionReassignmentsResponse,
};

use super::{Operation, Resource, authorize};
use crate::controller::Error;
use crate::node::Node;
use crate::session::RequestContext;

pub(crate) fn answer(
    node: &Node,
    context: &RequestContext,
    request: &AlterPartitionReassignmentsRequest,
) -> AlterPartitionReassignmentsResponse {
    let mut response = AlterPartitionReassignmentsResponse {
        allow_replication_factor_change: request.allow_replication_factor_change,
        ..AlterPartitionReassignmentsResponse::default()
    };
    let obstacle = if !authorize(&context.principal, Operation::Alter, Resource::Cluster) {
        let text = "not allowed to alter the cluster";
        Some(Error::new(ErrorCode::ClusterAuthorizationFailed, text))
    } else if request.timeout_ms <= 0 {
        Some(Error::new(ErrorCode::RequestTimedOut, "there is no time"))
    } else {
        None
    };
    if let Some(error) = &obstacle {
        response.error_code = error.code.code();
        response.error_message = Some(error.message.clone());
    }
    for topic in &request.topics {
        let one = |asked: &ReassignablePartition| {
            let judged = obstacle.clone().map_or_else(|| judge(node, &topic.name, asked), Err);
            let error = judged.err();
            ReassignablePartitionResponse {
                partition_index: asked.partition_index,
                error_code: error.as_ref().map_or(0, |error| error.code.code()),
                error_message: error.map(|error| error.message),
            }
        };
        let partitions = topic.partitions.iter().map(one).collect();
        let name = topic.name.clone();
        response.responses.push(ReassignableTopicResponse { name, partitions });
    }
    response
}

fn judge(node: &Node, name: &str, asked: &ReassignablePartition) -> Result<(), Error> {
    let image = &node.controller.image;
    let at = usize::try_from(asked.partition_index).ok();
    let there = image.topic_named(name).zip(at).and_then(|(topic, at)| topic.partitions.get(at));
    let there = there.ok_or_else(|| {
        let text = format!("there is no partition {} of '{name}'", asked.partition_index);
        Error::new(ErrorCode::UnknownTopicOrPartition, text)
    })?;
    let Some(wanted) = &asked.replicas else {
        let text = "the partition is not being moved";
        return Err(Error::new(ErrorCode::NoReassignmentInProgress, text));
    };
    let refuse = |text: String| Err(Error::new(ErrorCode::InvalidReplicaAssignment, text));
    if wanted.is_empty() {
        return refuse("a partition has at least one replica".to_owned());
    }
    if let Some(unknown) = wanted.iter().find(|id| !image.brokers.contains_key(id)) {
        return refuse(format!("there is no broker {unknown}"));
    }
    let set: BTreeSet<i32> = wanted.iter().copied().collect();
    if set.len() < wanted.len() {
        return refuse("a broker holds at most one replica of a partition".to_owned());
    }
    if !there.iter().map(|replica| replica.broker_id).eq(wanted.iter().copied()) {
        return refuse("replicas cannot be moved between brokers yet".to_owned());
    }
    Ok(())
}
