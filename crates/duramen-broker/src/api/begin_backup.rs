//! `BeginBackup`: all replicas of this node at one moment, for a program on its machine that copies their files. The
//! API is ours, not Kafka's. Storage finds the moment, and another thread than the node's links the files.
//!
//! Each log ends at the last entry that was applied in this turn. Where this node leads two logs, the copy of one is
//! right about the other. A committed offset is one of records, and a marker follows its decision. A replica that
//! follows another node may be a moment behind that node.

use std::collections::BTreeMap;

use duramen_protocol::ErrorCode;
use duramen_protocol::messages::{BeginBackupRequest, BeginBackupResponse};
use duramen_protocol::wire::Uuid;

use crate::access::{Operation, Resource};
use crate::event::{BackupPlan, Reply, RequestKey};
use crate::node::Node;
use crate::raft::Group;
use crate::session::RequestContext;

/// Most partitions that an answer names.
const NAMED_MAX: usize = 100;

pub(crate) fn handle(
    node: &mut Node,
    key: RequestKey,
    context: &RequestContext,
    request: &BeginBackupRequest,
) {
    let mut response = BeginBackupResponse::default();
    if !node.core.access.may(context, Operation::Alter, Resource::Cluster) {
        response.error_code = ErrorCode::ClusterAuthorizationFailed.code();
        return node.reply(key, response);
    }
    let refuse = |mut response: BeginBackupResponse, code: ErrorCode, why: String| {
        response.error_code = code.code();
        response.error_message = Some(why);
        response
    };
    let metadata = &node.core.controller.group;
    if let Some(why) = lack_of(metadata) {
        let why = format!("the node's metadata is not whole: {why}");
        return node.reply(key, refuse(response, ErrorCode::KafkaStorageError, why));
    }
    let mut commits = BTreeMap::from([(metadata.id(), metadata.applied())]);
    let mut missing = Vec::new();
    for topic in node.core.controller.image.topics_by_name() {
        for (partition, _) in (0..).zip(&topic.partitions) {
            let replica = node.core.local_replica(topic, partition);
            let here = replica.and_then(|replica| node.core.partitions.get(&replica));
            let lack = here.map_or(Some("it has no replica here"), |it| lack_of(&it.group));
            match (here, lack) {
                (Some(here), None) => _ = commits.insert(here.group.id(), here.group.applied()),
                (_, lack) => {
                    let why = lack.unwrap_or_default();
                    missing.push(format!("{}-{partition}: {why}", topic.name));
                }
            }
        }
    }
    if !missing.is_empty() && !request.partial {
        let why = format!("the node lacks {} of the cluster's partitions", missing.len());
        missing.truncate(NAMED_MAX);
        response.missing = missing;
        return node.reply(key, refuse(response, ErrorCode::ReplicaNotAvailable, why));
    }
    missing.truncate(NAMED_MAX);
    response.missing = missing;
    response.directory_id = Uuid(node.core.options.facts.directory_id);
    node.reply_with(key, Reply::Backup(Box::new(BackupPlan { response, commits })));
}

/// Returns the reason for which a replica has not all of its log.
fn lack_of(group: &Group) -> Option<&str> {
    let is_voter = group.voter_ids().contains(&group.id().0);
    group.failure().or((!is_voter).then_some("its replica here is still being filled"))
}
