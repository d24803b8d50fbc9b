//! `DescribeLogDirs`: the disk space that partitions take. Another thread than the node's adds the sizes of the volume.

use std::collections::{BTreeMap, BTreeSet};

use duramen_protocol::ErrorCode;
use duramen_protocol::messages::describe_log_dirs::{
    DescribeLogDirsPartition, DescribeLogDirsResult, DescribeLogDirsTopic,
};
use duramen_protocol::messages::{DescribeLogDirsRequest, DescribeLogDirsResponse};

use crate::access::{Operation, Resource};
use crate::controller::image::Topic;
use crate::event::{Reply, RequestKey};
use crate::node::Node;
use crate::session::RequestContext;

pub(crate) fn handle(
    node: &mut Node,
    key: RequestKey,
    context: &RequestContext,
    request: &DescribeLogDirsRequest,
) {
    if !node.core.access.may(context, Operation::Describe, Resource::Cluster) {
        let error_code = ErrorCode::ClusterAuthorizationFailed.code();
        return node.reply(key, DescribeLogDirsResponse { error_code, ..Default::default() });
    }
    let image = &node.core.controller.image;
    let topics = match &request.topics {
        None => image.topics_by_name().map(|it| described(node, it, None)).collect(),
        Some(asked) => {
            let mut indexes: BTreeMap<&str, BTreeSet<i32>> = BTreeMap::new();
            for topic in asked {
                indexes.entry(&topic.topic).or_default().extend(&topic.partitions);
            }
            let known = indexes.iter().filter_map(|(name, indexes)| {
                let topic = image.topic_named(name)?;
                Some(described(node, topic, Some(indexes)))
            });
            known.filter(|topic| !topic.partitions.is_empty()).collect()
        }
    };
    let dir = DescribeLogDirsResult {
        log_dir: node.core.options.log_dir.clone(),
        topics,
        ..Default::default()
    };
    let response = DescribeLogDirsResponse { results: vec![dir], ..Default::default() };
    node.reply_with(key, Reply::LogDirs(Box::new(response)));
}

/// Returns the partitions of a topic that this node has, or those of them in `indexes`.
fn described(node: &Node, topic: &Topic, indexes: Option<&BTreeSet<i32>>) -> DescribeLogDirsTopic {
    let count = i32::try_from(topic.partitions.len()).unwrap_or(i32::MAX);
    let wanted = |index: &i32| indexes.is_none_or(|indexes| indexes.contains(index));
    let one = |partition_index: i32| {
        let replica = node.core.local_replica(topic, partition_index)?;
        let partition = node.core.partitions.get(&replica)?;
        let partition_size = i64::try_from(partition.bytes()).unwrap_or(i64::MAX);
        Some(DescribeLogDirsPartition { partition_index, partition_size, ..Default::default() })
    };
    DescribeLogDirsTopic {
        name: topic.name.clone(),
        partitions: (0..count).filter(wanted).filter_map(one).collect(),
    }
}
