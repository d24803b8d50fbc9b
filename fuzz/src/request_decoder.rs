//! Any bytes as a request frame: they decode or fail, and what decodes encodes to something that decodes the same.

use bytes::Bytes;
use duramen_protocol::wire::Decoder;
use duramen_protocol::{ApiKey, Request, RequestHeader, decode_request, encode_request};

/// Decodes a request frame and encodes it again. Panics on a find.
pub fn run(data: &[u8]) {
    let frame = Bytes::copy_from_slice(data);
    if let Ok((header, request)) = decode_request(frame.clone()) {
        let encoded = encode_request(&header, &request).expect("a decoded request encodes");
        let again = decode_request(encoded.bytes.freeze().slice(4..)).expect("and decodes");
        let before = (header, request);
        // A number that is none does not equal itself.
        if again != before {
            assert_eq!(format!("{again:?}"), format!("{before:?}"));
        }
    }
    // The bodies of declared APIs that are not served, too; the frame's first bytes choose which.
    let [_, key, _, version, ..] = *data else { return };
    let Ok(api) = ApiKey::from_code(i16::from(key)) else { return };
    let (api_key, api_version) = (api.code(), i16::from(version));
    let mut d = Decoder::new(frame.slice(4..));
    if let Ok(request) = Request::decode(&mut d, api, api_version) {
        let header = RequestHeader { api_key, api_version, ..RequestHeader::default() };
        encode_request(&header, &request).expect("a decoded request encodes");
    }
}
