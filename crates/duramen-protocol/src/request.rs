//! # Room card: request
//!
//! Purpose:    one request frame ⇄ header and typed request.
//! Owns:       [`RequestHeader`], [`Request`]; the rule which header version a request has.
//! Interface:  [`decode_request`] for the node, [`encode_request`] and [`encode_request_of`] for clients. A frame on
//!             the way in comes without its 4-byte length, a frame on the way out has it.
//! Invariants: only served APIs in accepted versions decode; record bytes are slices of the frame; a request has at
//!             most [`REQUEST_ELEMENTS_MAX`] elements.
//! Never:      dispatch, authorisation.
//! Tests:      `request/tests.rs`; `messages/tests.rs`; `fuzz/` target `request_decoder`.
//! Start at:   [`decode_request`].

use bytes::Bytes;
use smol_str::SmolStr;

use crate::api::{Api, ApiKey};
use crate::messages::{self, any_message, for_each_api};
use crate::response::EncodedFrame;
pub use crate::wire::RequestHeader;
use crate::wire::{Ctx, DecodeError, Decoder, EncodeError, Encoder, Message, Nullable, Wire};

/// Most elements that the arrays of one request may have, together: a topic, a partition, a name is one each. The
/// bound leaves room for a request about each of the 100,000 partitions that a cluster may have. A compact array
/// takes one byte of the frame for an element, and a hundred and more bytes of memory and answer.
pub const REQUEST_ELEMENTS_MAX: usize = 1 << 18;

impl RequestHeader {
    /// Returns the key, if it is one of Kafka's.
    pub fn api(&self) -> Option<ApiKey> {
        ApiKey::from_code(self.api_key).ok()
    }
}

/// Strings in headers have the old form in every version, so that any broker can read them.
const HEADER: Ctx = Ctx { version: 1, flexible: false, nullable: true };

macro_rules! requests {
    ($($module:ident $api:ident($request:ident, $response:ident))*) => {
        any_message! {
            /// A request of any declared API.
            Request: $($api(messages::$request))*
        }
    };
}

for_each_api!(requests);

/// Reads one request frame (without its 4-byte length).
///
/// Bytes after the body are ignored, because Apache Kafka 4.3 ignores them too: a client that works there works here.
pub fn decode_request(frame: Bytes) -> Result<(RequestHeader, Request), DecodeError> {
    decode_request_counted(frame).map(|(header, request, _)| (header, request))
}

/// Does the same as [`decode_request`], and returns the number of elements in the request's arrays. The memory that
/// the request takes follows from that number.
pub fn decode_request_counted(
    frame: Bytes,
) -> Result<(RequestHeader, Request, usize), DecodeError> {
    let mut d = Decoder::new(frame).with_elements_max(REQUEST_ELEMENTS_MAX);
    let (header, api) = decode_header(&mut d)?;
    let request = Request::decode(&mut d, api.key, header.api_version)?;
    Ok((header, request, d.elements()))
}

/// Reads the header of a request frame and leaves the cursor at the body.
pub fn decode_header(d: &mut Decoder) -> Result<(RequestHeader, &'static Api), DecodeError> {
    let api_key = d.i16()?;
    let api_version = d.i16()?;
    let correlation_id = d.i32()?;
    let client_id = SmolStr::read_nullable(d, HEADER);
    let Ok(key) = ApiKey::from_code(api_key) else {
        let client_id = client_id.unwrap_or_default();
        let header = RequestHeader { api_key, api_version, correlation_id, client_id };
        return Err(DecodeError::UnknownApiKey { header: Box::new(header) });
    };
    let api = Api::of(key);
    if !api.accepts(api_version) {
        // A version we do not know may have a header we do not know; what was read is enough for an answer.
        let client_id = client_id.unwrap_or_default();
        let header = RequestHeader { api_key, api_version, correlation_id, client_id };
        return Err(DecodeError::UnsupportedVersion { header: Box::new(header) });
    }
    let header = RequestHeader { api_key, api_version, correlation_id, client_id: client_id? };
    if api.request_header_version(api_version) >= 2 {
        d.skip_tagged_fields()?;
    }
    Ok((header, api))
}

/// Writes one request frame, with its 4-byte length. The header's API key must be the request's.
pub fn encode_request(
    header: &RequestHeader,
    request: &Request,
) -> Result<EncodedFrame, EncodeError> {
    let api = Api::of(request.api_key());
    encode_frame(header, api, |e| request.encode(e, header.api_version))
}

/// Writes a request frame in the same way, for a request whose type is known.
pub fn encode_request_of<M: Message>(
    header: &RequestHeader,
    api: ApiKey,
    request: &M,
) -> Result<EncodedFrame, EncodeError> {
    encode_frame(header, Api::of(api), |e| request.encode(e, header.api_version))
}

fn encode_frame(
    header: &RequestHeader,
    api: &Api,
    body: impl FnOnce(&mut Encoder) -> Result<(), EncodeError>,
) -> Result<EncodedFrame, EncodeError> {
    assert_eq!(api.key.code(), header.api_key, "a request is sent under its own key");
    let mut e = Encoder::with_capacity(256);
    e.i32(0);
    e.i16(header.api_key);
    e.i16(header.api_version);
    e.i32(header.correlation_id);
    header.client_id.write(&mut e, HEADER)?;
    if api.request_header_version(header.api_version) >= 2 {
        e.unsigned_varint(0);
    }
    body(&mut e)?;
    EncodedFrame::seal(e)
}

#[cfg(test)]
mod tests;
