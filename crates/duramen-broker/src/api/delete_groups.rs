//! `DeleteGroups`: deletes groups without members, with all of their committed offsets.

use std::collections::BTreeSet;

use duramen_protocol::ErrorCode;
use duramen_protocol::messages::delete_groups::DeletableGroupResult;
use duramen_protocol::messages::{DeleteGroupsRequest, DeleteGroupsResponse};

use super::results::count_result;
use crate::access::{Operation, Resource};
use crate::core::Parked;
use crate::event::RequestKey;
use crate::node::Node;
use crate::session::RequestContext;

pub(crate) fn handle(
    node: &mut Node,
    key: RequestKey,
    context: &RequestContext,
    request: DeleteGroupsRequest,
) {
    let mut named = BTreeSet::new();
    let mut groups = request.groups_names;
    groups.retain(|group| named.insert(group.clone()));
    let result =
        |group: &String| DeletableGroupResult { group_id: group.clone(), ..Default::default() };
    let results = groups.iter().map(result).collect();
    let response = DeleteGroupsResponse { results, ..Default::default() };
    // Some groups answer at once, so the count is one too high until all have the request.
    let outstanding = groups.len() + 1;
    node.core.park(key, Parked::DeleteGroups { response, outstanding }, u64::MAX);
    for (part, group) in groups.iter().enumerate() {
        let may = node.core.access.may(context, Operation::Delete, Resource::Group(group));
        let asked = if may {
            node.coordinators
                .coordinate_part(&mut node.core, group, |it, _| it.delete_group(key, part, group))
        } else {
            Err(ErrorCode::GroupAuthorizationFailed)
        };
        if let Err(code) = asked {
            on_deleted(node, key, part, code.code());
        }
    }
    count_result(node, key);
}

/// Records the result for one of the groups, and answers once all are known.
pub(crate) fn on_deleted(node: &mut Node, key: RequestKey, part: usize, error_code: i16) {
    if let Some(Parked::DeleteGroups { response, .. }) = node.core.parked_mut(key) {
        response.results[part].error_code = error_code;
        count_result(node, key);
    }
}
