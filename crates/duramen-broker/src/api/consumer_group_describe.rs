//! `ConsumerGroupDescribe`: states and members of groups of the consumer protocol.

use duramen_protocol::ErrorCode;
use duramen_protocol::messages::consumer_group_describe::DescribedGroup;
use duramen_protocol::messages::{ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse};

use super::{GROUP_OPERATIONS, Operation, Resource, authorize};
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
            ..DescribedGroup::default()
        });
        if request.include_authorized_operations && described.error_code == 0 {
            described.authorized_operations = GROUP_OPERATIONS;
        }
        described
    };
    let groups = request.group_ids.iter().map(describe).collect();
    ConsumerGroupDescribeResponse { groups, ..ConsumerGroupDescribeResponse::default() }
}

fn describe(
    node: &Node,
    context: &RequestContext,
    group: &str,
) -> Result<DescribedGroup, ErrorCode> {
    if !authorize(&context.principal, Operation::Describe, Resource::Group(group)) {
        return Err(ErrorCode::GroupAuthorizationFailed);
    }
    if group.is_empty() {
        return Err(ErrorCode::InvalidGroupId);
    }
    let (coordinator, sight) = node.coordinator_and_sight(group)?;
    Ok(coordinator.describe_consumers(sight.rules, sight.topics, group, node.now))
}
