//! `SaslHandshake` (key 17): choose a SASL mechanism.

use crate::messages::declare::declare;

declare! {
    /// Request of `SaslHandshake`.
    pub struct SaslHandshakeRequest: versions 0..=1, flexible none {
        mechanism: String [0..],
    }

    /// Response of `SaslHandshake`.
    pub struct SaslHandshakeResponse: versions 0..=1, flexible none {
        error_code: i16 [0..],
        mechanisms: Vec<String> [0..],
    }
}
