//! `CreateDelegationToken` (key 38): make a delegation token.

use bytes::Bytes;

use crate::messages::declare::declare;

declare! {
    /// Request of `CreateDelegationToken`.
    pub struct CreateDelegationTokenRequest: versions 1..=3, flexible 2.. {
        owner_principal_type: Option<String> [3.., nullable 3..],
        owner_principal_name: Option<String> [3.., nullable 3..],
        renewers: Vec<CreatableRenewers> [0..],
        max_lifetime_ms: i64 [0..],
    }

    /// Stands in [`CreateDelegationTokenRequest::renewers`].
    pub struct CreatableRenewers {
        principal_type: String [0..],
        principal_name: String [0..],
    }

    /// Response of `CreateDelegationToken`.
    pub struct CreateDelegationTokenResponse: versions 1..=3, flexible 2.. {
        error_code: i16 [0..],
        principal_type: String [0..],
        principal_name: String [0..],
        token_requester_principal_type: String [3..],
        token_requester_principal_name: String [3..],
        issue_timestamp_ms: i64 [0..],
        expiry_timestamp_ms: i64 [0..],
        max_timestamp_ms: i64 [0..],
        token_id: String [0..],
        hmac: Bytes [0..],
        throttle_time_ms: i32 [0..],
    }
}
