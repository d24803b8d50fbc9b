//! `DescribeGroups`: states and members of groups.

use duramen_protocol::ErrorCode;
use duramen_protocol::messages::describe_groups::DescribedGroup;
use duramen_protocol::messages::{DescribeGroupsRequest, DescribeGroupsResponse};

use crate::access::{Operation, Resource};
use crate::node::Node;
use crate::session::RequestContext;

pub(crate) fn answer(
    node: &Node,
    context: &RequestContext,
    request: &DescribeGroupsRequest,
) -> DescribeGroupsResponse {
    let describe = |group: &String| {
        let mut described = describe(node, context, group).unwrap_or_else(|code| DescribedGroup {
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
    let groups = request.groups.iter().map(describe).collect();
    DescribeGroupsResponse { groups, ..Default::default() }
}

fn describe(
    node: &Node,
    context: &RequestContext,
    group: &str,
) -> Result<DescribedGroup, ErrorCode> {
    node.core.access.admit(context, Operation::Describe, Resource::Group(group))?;
    Ok(node.coordinators.coordinator(&node.core, group)?.describe(context.version, group))
}
