//! Any text as a token, for a key whose secret is not here, and any text as a set of keys.

use std::time::Duration;

use duramen::server::tokens::{KeySource, TokenSettings, Tokens};

/// Set of the public key of RFC 8037, appendix A.2.
pub(crate) const KEYS: &str = r#"{"keys":[{"kty":"OKP","crv":"Ed25519","kid":"1","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}"#;

/// Looks at a text as a token; or at the text before a zero as keys, and at the rest as a token. Panics on a find.
pub fn run(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let (keys, token) = text.split_once('\0').unwrap_or((KEYS, &text));
    let settings = TokenSettings {
        keys: KeySource::File("unread".into()),
        refresh: Duration::MAX,
        backoff: (Duration::MAX, Duration::MAX),
        audience: Vec::new(),
        issuer: None,
        user_claim: "sub".to_owned(),
        skew: Duration::ZERO,
    };
    let Ok(tokens) = Tokens::with_keys(settings, keys.as_bytes()) else { return };
    let found = tokens.check(token);
    assert!(keys != KEYS || found.is_err(), "a token counts that nobody could sign");
}
