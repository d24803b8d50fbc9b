//! `DescribeUserScramCredentials`: no user has credentials, because there is no SASL yet.

use std::collections::BTreeSet;

use duramen_protocol::ErrorCode;
use duramen_protocol::messages::describe_user_scram_credentials::DescribeUserScramCredentialsResult;
use duramen_protocol::messages::{
    DescribeUserScramCredentialsRequest, DescribeUserScramCredentialsResponse,
};

use super::checks::repeated;
use crate::access::{Operation, Resource};
use crate::node::Node;
use crate::session::RequestContext;

pub(crate) fn answer(
    node: &Node,
    context: &RequestContext,
    request: &DescribeUserScramCredentialsRequest,
) -> DescribeUserScramCredentialsResponse {
    let mut response = DescribeUserScramCredentialsResponse {
        error_message: Some(String::new()),
        ..Default::default()
    };
    if !node.core.access.may(context, Operation::Describe, Resource::Cluster) {
        response.error_code = ErrorCode::ClusterAuthorizationFailed.code();
        return response;
    }
    let users = || request.users.iter().flatten().map(|user| user.name.as_str());
    let twice = repeated(users());
    let row = |user: &str| {
        let (code, text) = if twice.contains(user) {
            (ErrorCode::DuplicateResource, "the user is named twice in the request")
        } else {
            (ErrorCode::ResourceNotFound, "the user has no credentials")
        };
        DescribeUserScramCredentialsResult {
            user: user.to_owned(),
            error_code: code.code(),
            error_message: Some(text.to_owned()),
            ..Default::default()
        }
    };
    let named: BTreeSet<&str> = users().collect();
    response.results = named.into_iter().map(row).collect();
    response
}
