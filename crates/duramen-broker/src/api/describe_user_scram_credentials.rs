//! `DescribeUserScramCredentials`: mechanisms and iterations of users' credentials.

use std::collections::BTreeSet;

use duramen_protocol::ErrorCode;
use duramen_protocol::messages::describe_user_scram_credentials::{
    CredentialInfo, DescribeUserScramCredentialsResult,
};
use duramen_protocol::messages::{
    DescribeUserScramCredentialsRequest, DescribeUserScramCredentialsResponse,
};
use duramen_protocol::sasl::scram::Credential;

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
    let users = &node.core.controller.image.users;
    let asked = || request.users.iter().flatten().map(|user| user.name.as_str());
    let twice = repeated(asked());
    let row = |user: &str| {
        let info = |it: &Credential| CredentialInfo {
            mechanism: it.hash.code(),
            iterations: i32::try_from(it.iterations).unwrap_or(i32::MAX),
        };
        let infos: Vec<_> = users.of(user).map(info).collect();
        let refused =
            |code: ErrorCode, text: &str| (code.code(), Some(text.to_owned()), Vec::new());
        let (error_code, error_message, credential_infos) = if twice.contains(user) {
            refused(ErrorCode::DuplicateResource, "the user is named twice in the request")
        } else if infos.is_empty() {
            refused(ErrorCode::ResourceNotFound, "the user has no credentials")
        } else {
            (0, None, infos)
        };
        let user = user.to_owned();
        DescribeUserScramCredentialsResult { user, error_code, error_message, credential_infos }
    };
    // Without names, or with none, the client wants all.
    let named: BTreeSet<&str> = asked().collect();
    response.results = if named.is_empty() {
        users.names().map(row).collect()
    } else {
        named.into_iter().map(row).collect()
    };
    response
}
