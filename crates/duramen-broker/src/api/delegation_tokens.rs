//! The four requests about delegation tokens. A connection without authentication gets no token, and there is no other
//! kind of connection yet.

use duramen_protocol::ErrorCode;
use duramen_protocol::messages::{
    CreateDelegationTokenResponse, DescribeDelegationTokenResponse, ExpireDelegationTokenResponse,
    RenewDelegationTokenResponse,
};

use crate::session::RequestContext;

const CODE: ErrorCode = ErrorCode::DelegationTokenRequestNotAllowed;
const FIRST_VERSION_WITH_REQUESTER: i16 = 3;

pub(crate) fn create(context: &RequestContext) -> CreateDelegationTokenResponse {
    let (kind, name) = context.principal.split_once(':').unwrap_or_default();
    let mut response = CreateDelegationTokenResponse {
        error_code: CODE.code(),
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

pub(crate) fn renew() -> RenewDelegationTokenResponse {
    let (error_code, expiry_timestamp_ms) = (CODE.code(), -1);
    RenewDelegationTokenResponse { error_code, expiry_timestamp_ms, ..Default::default() }
}

pub(crate) fn expire() -> ExpireDelegationTokenResponse {
    let (error_code, expiry_timestamp_ms) = (CODE.code(), -1);
    ExpireDelegationTokenResponse { error_code, expiry_timestamp_ms, ..Default::default() }
}

pub(crate) fn describe() -> DescribeDelegationTokenResponse {
    DescribeDelegationTokenResponse { error_code: CODE.code(), ..Default::default() }
}
