//! `ExpireDelegationToken` (key 40): make a delegation token live shorter.

use bytes::Bytes;

use crate::messages::declare::declare;

declare! {
    /// Request of `ExpireDelegationToken`.
    pub struct ExpireDelegationTokenRequest: versions 1..=2, flexible 2.. {
        hmac: Bytes [0..],
        expiry_time_period_ms: i64 [0..],
    }

    /// Response of `ExpireDelegationToken`.
    pub struct ExpireDelegationTokenResponse: versions 1..=2, flexible 2.. {
        error_code: i16 [0..],
        expiry_timestamp_ms: i64 [0..],
        throttle_time_ms: i32 [0..],
    }
}
