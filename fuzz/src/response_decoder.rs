//! Any bytes as a response frame, after two that choose API and version.

use bytes::Bytes;
use duramen_protocol::{ApiKey, decode_response, encode_response};

/// Decodes a response frame and encodes it again. Panics on a find.
pub fn run(data: &[u8]) {
    let [key, version, frame @ ..] = data else { return };
    let Ok(api) = ApiKey::from_code(i16::from(*key)) else { return };
    let frame = Bytes::copy_from_slice(frame);
    let version = i16::from(*version);
    let Ok((correlation_id, response)) = decode_response(frame.clone(), api, version) else {
        return;
    };
    // A refusal of `ApiVersions` is in version 0, whatever was asked.
    let refused = api == ApiKey::ApiVersions && frame.get(4..6) == Some(&[0, 35][..]);
    let version = if refused { 0 } else { version };
    let encoded = encode_response(correlation_id, &response, version).expect("encodes");
    assert!(encoded.holes.is_empty(), "nothing decodes as external");
    let again = decode_response(encoded.bytes.freeze().slice(4..), api, version);
    let (again, before) = (again.expect("and decodes"), (correlation_id, response));
    // A number that is none does not equal itself.
    if again != before {
        assert_eq!(format!("{again:?}"), format!("{before:?}"));
    }
}
