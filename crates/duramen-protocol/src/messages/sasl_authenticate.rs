//! `SaslAuthenticate` (key 36): one token of the exchange by which a client shows who it is (KIP-152, KIP-368).

use bytes::Bytes;

use crate::messages::declare::declare;
use crate::wire::Secret;

declare! {
    /// Request of `SaslAuthenticate`.
    pub struct SaslAuthenticateRequest: versions 0..=2, flexible 2.. {
        auth_bytes: Secret [0..],
    }

    /// Response of `SaslAuthenticate`.
    pub struct SaslAuthenticateResponse: versions 0..=2, flexible 2.. {
        error_code: i16 [0..],
        error_message: Option<String> [0.., nullable 0..],
        auth_bytes: Bytes [0..],
        session_lifetime_ms: i64 [1.., ignorable],
    }
}
