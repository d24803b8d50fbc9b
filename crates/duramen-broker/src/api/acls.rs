//! `DescribeAcls`, `CreateAcls` and `DeleteAcls`: there is no access control yet, and the answer always says so.

use duramen_protocol::ErrorCode;
use duramen_protocol::messages::create_acls::AclCreationResult;
use duramen_protocol::messages::delete_acls::DeleteAclsFilterResult;
use duramen_protocol::messages::{
    CreateAclsRequest, CreateAclsResponse, DeleteAclsRequest, DeleteAclsResponse,
    DescribeAclsResponse,
};

const CODE: ErrorCode = ErrorCode::SecurityDisabled;
const TEXT: &str = "there is no access control";

pub(crate) fn describe() -> DescribeAclsResponse {
    let (error_code, error_message) = (CODE.code(), Some(TEXT.to_owned()));
    DescribeAclsResponse { error_code, error_message, ..DescribeAclsResponse::default() }
}

pub(crate) fn create(request: &CreateAclsRequest) -> CreateAclsResponse {
    let refused =
        AclCreationResult { error_code: CODE.code(), error_message: Some(TEXT.to_owned()) };
    let results = vec![refused; request.creations.len()];
    CreateAclsResponse { results, ..CreateAclsResponse::default() }
}

pub(crate) fn delete(request: &DeleteAclsRequest) -> DeleteAclsResponse {
    let refused = DeleteAclsFilterResult {
        error_code: CODE.code(),
        error_message: Some(TEXT.to_owned()),
        ..DeleteAclsFilterResult::default()
    };
    let filter_results = vec![refused; request.filters.len()];
    DeleteAclsResponse { filter_results, ..DeleteAclsResponse::default() }
}
