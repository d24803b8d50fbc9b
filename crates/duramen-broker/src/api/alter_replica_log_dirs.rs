//! `AlterReplicaLogDirs`: moves no replica, because a node has one directory.

use std::collections::BTreeMap;

use duramen_protocol::ErrorCode;
use duramen_protocol::messages::alter_replica_log_dirs::{
    AlterReplicaLogDirPartitionResult, AlterReplicaLogDirTopicResult,
};
use duramen_protocol::messages::{AlterReplicaLogDirsRequest, AlterReplicaLogDirsResponse};

use crate::access::{Operation, Resource};
use crate::node::Node;
use crate::session::RequestContext;

pub(crate) fn answer(
    node: &Node,
    context: &RequestContext,
    request: &AlterReplicaLogDirsRequest,
) -> AlterReplicaLogDirsResponse {
    let is_allowed = node.core.access.may(context, Operation::Alter, Resource::Cluster);
    let mut topics: BTreeMap<&str, Vec<AlterReplicaLogDirPartitionResult>> = BTreeMap::new();
    for dir in &request.dirs {
        for topic in &dir.topics {
            let results = topics.entry(&topic.name).or_default();
            for &partition_index in &topic.partitions {
                let code = match node.core.controller.image.topic_named(&topic.name) {
                    _ if !is_allowed => ErrorCode::ClusterAuthorizationFailed,
                    _ if dir.path != node.core.options.log_dir => ErrorCode::LogDirNotFound,
                    Some(there) if node.core.local_replica(there, partition_index).is_some() => {
                        ErrorCode::None
                    }
                    _ => ErrorCode::UnknownTopicOrPartition,
                };
                let error_code = code.code();
                results.push(AlterReplicaLogDirPartitionResult { partition_index, error_code });
            }
        }
    }
    let row = |(name, partitions): (&str, _)| AlterReplicaLogDirTopicResult {
        topic_name: name.to_owned(),
        partitions,
    };
    AlterReplicaLogDirsResponse {
        results: topics.into_iter().map(row).collect(),
        ..Default::default()
    }
}
