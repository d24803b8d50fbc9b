//! `SaslHandshake` and `SaslAuthenticate` of a client that is known already, or whose listener asks nobody who they
//! are. The ones before that are in `login`.

use duramen_protocol::ErrorCode;
use duramen_protocol::messages::{SaslAuthenticateResponse, SaslHandshakeResponse};

const CODE: ErrorCode = ErrorCode::IllegalSaslState;

pub(crate) fn handshake() -> SaslHandshakeResponse {
    SaslHandshakeResponse { error_code: CODE.code(), mechanisms: Vec::new() }
}

pub(crate) fn authenticate() -> SaslAuthenticateResponse {
    SaslAuthenticateResponse {
        error_code: CODE.code(),
        error_message: Some(
            "the listener asks nobody who they are, or has asked already".to_owned(),
        ),
        ..Default::default()
    }
}
