//! `ConsumerGroupDescribe`: states and members of groups of the consumer protocol.

use std::collections::BTreeSet;

use duramen_protocol::ErrorCode;
use duramen_protocol::messages::consumer_group_describe::DescribedGroup;
use duramen_protocol::messages::{ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse};

use super::checks::admit_to_group;
use crate::access::{Operation, Resource};
use crate::node::Node;
use crate::session::RequestContext;

pub(crate) fn answer(
    node: &Node,
    context: &RequestContext,
    request: &ConsumerGroupDescribeRequest,
) -> ConsumerGroupDescribeResponse {
    let describe = |group: &String| {
        let described = describe(node, context, group);
        let mut described = described.unwrap_or_else(|code| DescribedGroup {
            group_id: group.clone(),
            error_code: code.code(),
            ..Default::default()
        });
        if request.include_authorized_operations && described.error_code == 0 {
            described.authorized_operations =
                node.core.access.operations(context, Resource::Group(group));
        }
        described
    };
    let groups = request.group_ids.iter().map(describe).collect();
    ConsumerGroupDescribeResponse { groups, ..Default::default() }
}

fn describe(
    node: &Node,
    context: &RequestContext,
    group: &str,
) -> Result<DescribedGroup, ErrorCode> {
    admit_to_group(node, context, Operation::Describe, group)?;
    let (coordinator, sight) = node.coordinators.coordinator_and_sight(&node.core, group)?;
    let described = coordinator.describe_consumers(sight.rules, sight.topics, group, node.core.now);
    let may_see =
        |name: &str| node.core.access.may(context, Operation::Describe, Resource::Topic(name));
    if topics_of(&described).all(may_see) {
        return Ok(described);
    }
    Ok(DescribedGroup {
        group_id: group.to_owned(),
        error_code: ErrorCode::TopicAuthorizationFailed.code(),
        error_message: Some("not allowed to see all topics of the group".to_owned()),
        ..Default::default()
    })
}

/// Returns the topics of all assignments, each once.
fn topics_of(group: &DescribedGroup) -> impl Iterator<Item = &str> {
    let assignments = group.members.iter().flat_map(|it| [&it.assignment, &it.target_assignment]);
    let topics = assignments.flat_map(|it| &it.topic_partitions);
    topics.map(|it| it.topic_name.as_str()).collect::<BTreeSet<&str>>().into_iter()
}
