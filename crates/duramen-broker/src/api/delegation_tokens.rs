//! The four requests about delegation tokens, which the node does not give out: it answers as Kafka does without a
//! secret key. A client that nobody has asked who it is may not even ask.

use duramen_protocol::ErrorCode;
use duramen_protocol::messages::{
    CreateDelegationTokenResponse, DescribeDelegationTokenResponse, ExpireDelegationTokenResponse,
    RenewDelegationTokenResponse,
};

use crate::session::RequestContext;

/// Principal of clients that nobody has asked who they are.
const ANONYMOUS: &str = "User:ANONYMOUS";
const FIRST_VERSION_WITH_REQUESTER: i16 = 3;

fn code(context: &RequestContext) -> i16 {
    let is_known = *context.principal != *ANONYMOUS;
    let code = if is_known {
        ErrorCode::DelegationTokenAuthDisabled
    } else {
        ErrorCode::DelegationTokenRequestNotAllowed
    };
    code.code()
}

pub(crate) fn create(context: &RequestContext) -> CreateDelegationTokenResponse {
    let (kind, name) = context.principal.split_once(':').unwrap_or_default();
    let mut response = CreateDelegationTokenResponse {
        error_code: code(context),
        principal_type: kind.to_owned(),
        principal_name: name.to_owned(),
        issue_timestamp_ms: -1,
        expiry_timestamp_ms: -1,
        max_timestamp_ms: -1,
        ..Default::default()
    };
    if context.version >= FIRST_VERSION_WITH_REQUESTER {
        kind.clone_into(&mut response.token_requester_principal_type);
        name.clone_into(&mut response.token_requester_principal_name);
    }
    response
}

pub(crate) fn renew(context: &RequestContext) -> RenewDelegationTokenResponse {
    let (error_code, expiry_timestamp_ms) = (code(context), -1);
    RenewDelegationTokenResponse { error_code, expiry_timestamp_ms, ..Default::default() }
}

pub(crate) fn expire(context: &RequestContext) -> ExpireDelegationTokenResponse {
    let (error_code, expiry_timestamp_ms) = (code(context), -1);
    ExpireDelegationTokenResponse { error_code, expiry_timestamp_ms, ..Default::default() }
}

pub(crate) fn describe(context: &RequestContext) -> DescribeDelegationTokenResponse {
    DescribeDelegationTokenResponse { error_code: code(context), ..Default::default() }
}
