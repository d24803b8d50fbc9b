//! `DescribeDelegationToken` (key 41): list delegation tokens.

use bytes::Bytes;

use crate::messages::declare::declare;

declare! {
    /// Request of `DescribeDelegationToken`.
    pub struct DescribeDelegationTokenRequest: versions 1..=3, flexible 2.. {
        owners: Option<Vec<DescribeDelegationTokenOwner>> [0.., nullable 0..],
    }

    /// Stands in [`DescribeDelegationTokenRequest::owners`].
    pub struct DescribeDelegationTokenOwner {
        principal_type: String [0..],
        principal_name: String [0..],
    }

    /// Response of `DescribeDelegationToken`.
    pub struct DescribeDelegationTokenResponse: versions 1..=3, flexible 2.. {
        error_code: i16 [0..],
        tokens: Vec<DescribedDelegationToken> [0..],
        throttle_time_ms: i32 [0..],
    }

    /// Stands in [`DescribeDelegationTokenResponse::tokens`].
    pub struct DescribedDelegationToken {
        principal_type: String [0..],
        principal_name: String [0..],
        token_requester_principal_type: String [3..],
        token_requester_principal_name: String [3..],
        issue_timestamp: i64 [0..],
        expiry_timestamp: i64 [0..],
        max_timestamp: i64 [0..],
        token_id: String [0..],
        hmac: Bytes [0..],
        renewers: Vec<DescribedDelegationTokenRenewer> [0..],
    }

    /// Stands in [`DescribedDelegationToken::renewers`].
    pub struct DescribedDelegationTokenRenewer {
        principal_type: String [0..],
        principal_name: String [0..],
    }
}
