//! `DescribeAcls`, `CreateAcls` and `DeleteAcls`: there is no access control yet, and the answer always says so.

use duramen_protocol::ErrorCode;
use duramen_protocol::messages::create_acls::AclCreationResult;
use duramen_protocol::messages::delete_acls::DeleteAclsFilterResult;
use duramen_protocol::messages::{
    CreateAclsRequest, CreateAclsResponse, DeleteAclsRequest, DeleteAclsResponse,
    DescribeAclsResponse,
};

use crate::access::{Access, Operation, RequestContext, Resource};

/// Returns the reason to refuse a request about rules: its client may not ask, or there are no rules.
fn refusal(
    access: &Access,
    context: &RequestContext,
    operation: Operation,
) -> (i16, Option<String>) {
    let (code, text) = if access.may(context, operation, Resource::Cluster) {
        (ErrorCode::SecurityDisabled, "there is no access control")
    } else {
        (ErrorCode::ClusterAuthorizationFailed, "not allowed to see or alter the rules")
    };
    (code.code(), Some(text.to_owned()))
}

pub(crate) fn describe(access: &Access, context: &RequestContext) -> DescribeAclsResponse {
    let (error_code, error_message) = refusal(access, context, Operation::Describe);
    DescribeAclsResponse { error_code, error_message, ..Default::default() }
}

pub(crate) fn create(
    access: &Access,
    context: &RequestContext,
    request: &CreateAclsRequest,
) -> CreateAclsResponse {
    let (error_code, error_message) = refusal(access, context, Operation::Alter);
    let refused = AclCreationResult { error_code, error_message };
    let results = vec![refused; request.creations.len()];
    CreateAclsResponse { results, ..Default::default() }
}

pub(crate) fn delete(
    access: &Access,
    context: &RequestContext,
    request: &DeleteAclsRequest,
) -> DeleteAclsResponse {
    let (error_code, error_message) = refusal(access, context, Operation::Alter);
    let refused = DeleteAclsFilterResult { error_code, error_message, ..Default::default() };
    let filter_results = vec![refused; request.filters.len()];
    DeleteAclsResponse { filter_results, ..Default::default() }
}
