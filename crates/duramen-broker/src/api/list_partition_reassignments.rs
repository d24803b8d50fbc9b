//! `ListPartitionReassignments`: nothing is moved in a cluster of one node.

use duramen_protocol::ErrorCode;
use duramen_protocol::messages::ListPartitionReassignmentsResponse;

use super::{Operation, Resource, authorize};
use crate::session::RequestContext;

pub(crate) fn answer(context: &RequestContext) -> ListPartitionReassignmentsResponse {
    let is_allowed = authorize(&context.principal, Operation::Describe, Resource::Cluster);
    let code = if is_allowed { ErrorCode::None } else { ErrorCode::ClusterAuthorizationFailed };
    let error_code = code.code();
    ListPartitionReassignmentsResponse { error_code, ..Default::default() }
}
