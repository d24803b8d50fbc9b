//! `ListGroups`: all groups that this node coordinates.

use duramen_protocol::messages::{ListGroupsRequest, ListGroupsResponse};

use super::{Operation, Resource, authorize};
use crate::node::Node;
use crate::session::RequestContext;

pub(crate) fn answer(
    node: &Node,
    context: &RequestContext,
    request: &ListGroupsRequest,
) -> ListGroupsResponse {
    let mut response = ListGroupsResponse::default();
    match node.groups(request) {
        Ok(groups) => response.groups = groups,
        Err(code) => response.error_code = code.code(),
    }
    let principal = &context.principal;
    if !authorize(principal, Operation::Describe, Resource::Cluster) {
        response.groups.retain(|group| {
            authorize(principal, Operation::Describe, Resource::Group(&group.group_id))
        });
    }
    response
}
