//! `AlterPartitionReassignments` (KIP-455): moves partitions to other nodes, or cancels a move.

use std::collections::BTreeSet;

use duramen_protocol::ErrorCode;
use duramen_protocol::messages::alter_partition_reassignments::{
    ReassignablePartition, ReassignablePartitionResponse, ReassignableTopicResponse,
};
use duramen_protocol::messages::{
    AlterPartitionReassignmentsRequest, AlterPartitionReassignmentsResponse,
};

use super::checks::admit_operator;
use super::decisions::{answer_after_commit, why_undecided};
use crate::controller::Error;
use crate::event::RequestKey;
use crate::metadata_records::MetadataRecord;
use crate::node::Node;
use crate::session::RequestContext;

pub(crate) fn handle(
    node: &mut Node,
    key: RequestKey,
    context: &RequestContext,
    request: &AlterPartitionReassignmentsRequest,
) {
    let mut response = AlterPartitionReassignmentsResponse {
        allow_replication_factor_change: request.allow_replication_factor_change,
        ..Default::default()
    };
    let late = || Error::new(ErrorCode::RequestTimedOut, "there is no time");
    let is_late = request.timeout_ms <= 0;
    let obstacle = admit_operator(node, context).err().or_else(|| is_late.then(late));
    if let Some(error) = &obstacle {
        response.error_code = error.code.code();
        response.error_message = Some(error.message.clone());
    }
    // Of one that is named again, as Kafka has it, the last wish counts.
    let mut records = Vec::new();
    for topic in &request.topics {
        let mut partitions = Vec::with_capacity(topic.partitions.len());
        for asked in &topic.partitions {
            let judged = match &obstacle {
                Some(error) => Err(error.clone()),
                None => judge(node, request, &topic.name, asked),
            };
            let error = match judged {
                Ok(record) => {
                    records.extend(record);
                    None
                }
                Err(error) => Some(error),
            };
            partitions.push(ReassignablePartitionResponse {
                partition_index: asked.partition_index,
                error_code: error.as_ref().map_or(0, |error| error.code.code()),
                error_message: error.map(|error| error.message),
            });
        }
        let name = topic.name.clone();
        response.responses.push(ReassignableTopicResponse { name, partitions });
    }
    answer_after_commit(node, (key, context), &records, response.into(), request.timeout_ms);
}

/// Returns the record that begins the move, or `None` if the partition already has these replicas.
fn judge(
    node: &mut Node,
    request: &AlterPartitionReassignmentsRequest,
    name: &str,
    asked: &ReassignablePartition,
) -> Result<Option<MetadataRecord>, Error> {
    let image = &node.core.controller.image;
    let topic = image.topic_named(name);
    let there = topic.and_then(|it| Some((it.id, it.replicas(asked.partition_index)?)));
    let (topic_id, there) = there.ok_or_else(|| {
        let text = format!("there is no partition {} of '{name}'", asked.partition_index);
        Error::new(ErrorCode::UnknownTopicOrPartition, text)
    })?;
    let partition = asked.partition_index;
    let moved = image.reassignments.get(&(topic_id, partition));
    let Some(wanted) = &asked.replicas else {
        let text = "the partition is not being moved";
        let refused = || Error::new(ErrorCode::NoReassignmentInProgress, text);
        return node.core.controller.cancel_move(topic_id, partition).map(Some).ok_or_else(refused);
    };
    let refuse = |text: String| Err(Error::new(ErrorCode::InvalidReplicaAssignment, text));
    if wanted.is_empty() {
        return refuse("a partition has at least one replica".to_owned());
    }
    // A node that is leaving the cluster has no replicas, and must get none.
    let stays = |id: i32| node.core.controller.staying().any(|(staying, _)| staying == id);
    if let Some(id) = wanted.iter().find(|id| !stays(**id)) {
        return refuse(if image.brokers.contains_key(id) {
            format!("broker {id} is leaving the cluster")
        } else {
            format!("there is no broker {id}")
        });
    }
    let set: BTreeSet<i32> = wanted.iter().copied().collect();
    if set.len() < wanted.len() {
        return refuse("a broker holds at most one replica of a partition".to_owned());
    }
    let replicas = moved.map_or(there.len(), |moved| moved.origin.len());
    if !request.allow_replication_factor_change && wanted.len() != replicas {
        let text =
            format!("the partition has {replicas} replicas, and would have {}", wanted.len());
        return Err(Error::new(ErrorCode::InvalidReplicationFactor, text));
    }
    Ok(node.core.controller.move_partition(topic_id, partition, wanted))
}

/// Returns the answer to a request that was still undecided when it timed out.
pub(crate) fn undecided(
    request: &AlterPartitionReassignmentsRequest,
    code: ErrorCode,
) -> AlterPartitionReassignmentsResponse {
    AlterPartitionReassignmentsResponse {
        allow_replication_factor_change: request.allow_replication_factor_change,
        error_code: code.code(),
        error_message: Some(why_undecided(code).to_owned()),
        ..Default::default()
    }
}

pub(crate) fn fail(response: &mut AlterPartitionReassignmentsResponse, code: ErrorCode) {
    response.error_code = code.code();
    response.error_message = Some(why_undecided(code).to_owned());
    response.responses.clear();
}
