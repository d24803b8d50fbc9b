//! `RenewDelegationToken` (key 39): make a delegation token live longer.

use bytes::Bytes;

use crate::messages::declare::declare;

declare! {
    /// Request of `RenewDelegationToken`.
    pub struct RenewDelegationTokenRequest: versions 1..=2, flexible 2.. {
        hmac: Bytes [0..],
        renew_period_ms: i64 [0..],
    }

    /// Response of `RenewDelegationToken`.
    pub struct RenewDelegationTokenResponse: versions 1..=2, flexible 2.. {
        error_code: i16 [0..],
        expiry_timestamp_ms: i64 [0..],
        throttle_time_ms: i32 [0..],
    }
}
