//! `ListGroups`: all groups that this node coordinates.

use duramen_protocol::messages::{ListGroupsRequest, ListGroupsResponse};

use crate::access::{Operation, Resource};
use crate::node::Node;
use crate::session::RequestContext;

pub(crate) fn answer(
    node: &Node,
    context: &RequestContext,
    request: &ListGroupsRequest,
) -> ListGroupsResponse {
    let mut response = ListGroupsResponse::default();
    match node.coordinators.groups(&node.core, request) {
        Ok(groups) => response.groups = groups,
        Err(code) => response.error_code = code.code(),
    }
    if !node.core.access.may(context, Operation::Describe, Resource::Cluster) {
        response.groups.retain(|group| {
            let group = Resource::Group(&group.group_id);
            node.core.access.may(context, Operation::Describe, group)
        });
    }
    response
}
