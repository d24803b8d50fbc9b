//! # Room card: response
//!
//! Purpose:    one response frame ⇄ correlation id and typed response.
//! Owns:       [`Response`], [`EncodedFrame`]; the rule which header version a response has.
//! Interface:  [`encode_response`] for the node, [`decode_response`] for clients. A frame on the way in comes
//!             without its 4-byte length, a frame on the way out has it.
//! Invariants: the length prefix counts the bytes of all holes; holes are in order of position.
//! Never:      filling a hole.
//! Tests:      `response/tests.rs`; `messages/tests.rs`; `fuzz/` target `response_decoder`.
//! Start at:   [`encode_response`].

use bytes::{Bytes, BytesMut};

use crate::api::{Api, ApiKey};
use crate::error_code::ErrorCode;
use crate::messages::{self, any_message, for_each_api};
use crate::wire::{DecodeError, Decoder, EncodeError, Encoder, Hole, Message};

/// A frame ready to be sent: its bytes, and the places where bytes from elsewhere belong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EncodedFrame {
    /// Length prefix, header and body, without the bytes of the holes.
    pub bytes: BytesMut,
    /// Holes in `bytes`, in order of position.
    pub holes: Vec<Hole>,
}

impl EncodedFrame {
    /// Bytes on the wire, length prefix and holes included.
    pub fn wire_len(&self) -> usize {
        self.bytes.len() + self.holes.iter().map(|hole| hole.len as usize).sum::<usize>()
    }

    /// Writes the length over the four bytes reserved for it.
    pub(crate) fn seal(mut e: Encoder) -> Result<Self, EncodeError> {
        let len = e.len() - 4 + e.hole_bytes();
        let prefix = i32::try_from(len).map_err(|_| EncodeError::TooLong { what: "frame", len })?;
        e.patch_i32(0, prefix);
        let (bytes, holes) = e.finish();
        Ok(Self { bytes, holes })
    }
}

macro_rules! responses {
    ($($module:ident $api:ident($request:ident, $response:ident))*) => {
        any_message! {
            /// A response of any declared API.
            Response: $($api(messages::$response))*
        }

        impl Response {
            /// Returns the time for which the client should send nothing, in milliseconds, where a response has that
            /// field.
            pub fn throttle_time_ms(&mut self) -> Option<&mut i32> {
                match self { $(Self::$api(response) => throttle_time_ms!($api response),)* }
            }
        }
    };
}

macro_rules! throttle_time_ms {
    (DescribeQuorum $response:ident) => {
        no_throttle_time($response)
    };
    (SaslHandshake $response:ident) => {
        no_throttle_time($response)
    };
    (SaslAuthenticate $response:ident) => {
        no_throttle_time($response)
    };
    (WriteTxnMarkers $response:ident) => {
        no_throttle_time($response)
    };
    (InitializeShareGroupState $response:ident) => {
        no_throttle_time($response)
    };
    (ReadShareGroupState $response:ident) => {
        no_throttle_time($response)
    };
    (WriteShareGroupState $response:ident) => {
        no_throttle_time($response)
    };
    (DeleteShareGroupState $response:ident) => {
        no_throttle_time($response)
    };
    (ReadShareGroupStateSummary $response:ident) => {
        no_throttle_time($response)
    };
    ($api:ident $response:ident) => {
        Some(&mut $response.throttle_time_ms)
    };
}

fn no_throttle_time<R>(_response: &mut R) -> Option<&mut i32> {
    None
}

for_each_api!(responses);

/// Writes one response frame, with its 4-byte length. `version` is the request's.
///
/// An `ApiVersions` request of an unknown version is answered with version 0 here, and error 35 in the response.
pub fn encode_response(
    correlation_id: i32,
    response: &Response,
    version: i16,
) -> Result<EncodedFrame, EncodeError> {
    let mut e = Encoder::with_capacity(256);
    e.i32(0);
    e.i32(correlation_id);
    if Api::of(response.api_key()).response_header_version(version) >= 1 {
        e.unsigned_varint(0);
    }
    response.encode(&mut e, version)?;
    EncodedFrame::seal(e)
}

/// Reads one response frame (without its 4-byte length) to a request of `api` in `version`.
///
/// An `ApiVersions` answer that refuses the version comes in version 0 whatever was asked, and is read so.
/// Bytes after the body are an error: we would have misread the version.
pub fn decode_response(
    frame: Bytes,
    api: ApiKey,
    version: i16,
) -> Result<(i32, Response), DecodeError> {
    let refused = api == ApiKey::ApiVersions
        && frame.get(4..6) == Some(&ErrorCode::UnsupportedVersion.code().to_be_bytes()[..]);
    let mut d = Decoder::new(frame);
    let correlation_id = d.i32()?;
    if Api::of(api).response_header_version(version) >= 1 {
        d.skip_tagged_fields()?;
    }
    let response = Response::decode(&mut d, api, if refused { 0 } else { version })?;
    d.finish()?;
    Ok((correlation_id, response))
}

#[cfg(test)]
mod tests;
