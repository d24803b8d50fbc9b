//! Requests as frames, and answers out of frames.

use std::collections::BTreeMap;
use std::io;

use bytes::{Bytes, BytesMut};
use duramen_protocol::api::{Api, ApiKey};
use duramen_protocol::wire::{Decoder, Message, Versions};
use duramen_protocol::{RequestHeader, encode_request_of};
use tokio::io::{AsyncRead, AsyncReadExt};

use crate::call::Call;
use crate::error::Error;
use crate::options::Options;

/// More than any answer that this client asks for. "HTTP" and TLS alerts read as lengths are longer.
const ANSWER_BYTES_MAX: usize = 256 << 20;

/// Returns the newest version of a call that both sides speak, up to a bound.
pub(super) fn common_version<C: Call>(
    (address, versions): (&str, &BTreeMap<i16, Versions>),
    version_max: i16,
) -> Result<i16, Error> {
    let ours = C::VERSIONS;
    let theirs = versions.get(&C::API.code()).copied().unwrap_or(Versions::NONE);
    let first = ours.first.max(theirs.first);
    let last = ours.last.min(theirs.last).min(C::Response::VERSIONS.last).min(version_max);
    let unsupported =
        || Error::Unsupported { address: address.to_owned(), api: Api::of(C::API).name };
    (first <= last).then_some(last).ok_or_else(unsupported)
}

pub(super) fn frame_of<C: Call>(
    options: &Options,
    request: &C,
    api_version: i16,
    correlation_id: i32,
) -> Result<Bytes, Error> {
    let api = Api::of(C::API);
    let client_id = Some(options.client_id.as_str().into());
    let api_key = api.key.code();
    let header = RequestHeader { api_key, api_version, correlation_id, client_id };
    let frame = encode_request_of(&header, api.key, request);
    let frame = frame.map_err(|source| Error::Inexpressible { api: api.name, source })?;
    Ok(frame.bytes.freeze())
}

pub(super) fn decode<R: Message>(
    frame: Bytes,
    api: &Api,
    version: i16,
    address: &str,
) -> Result<R, Error> {
    let garbled = |source| Error::Garbled { address: address.to_owned(), api: api.name, source };
    // A broker that does not know the version answers ApiVersions in version 0.
    let refused = api.key == ApiKey::ApiVersions && frame.starts_with(&[0, 35]);
    let mut d = Decoder::new(frame);
    if api.response_header_version(version) > 0 {
        d.skip_tagged_fields().map_err(garbled)?;
    }
    let response = R::decode(&mut d, if refused { 0 } else { version }).map_err(garbled)?;
    // Bytes that are left over mean that the version was misread.
    d.finish().map_err(garbled)?;
    Ok(response)
}

/// Reads one answer: its correlation id, and its body.
pub(super) async fn read_frame(
    socket: &mut (impl AsyncRead + Unpin),
) -> io::Result<Option<(i32, Bytes)>> {
    let length = match socket.read_i32().await {
        Ok(length) => length,
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    };
    let length =
        usize::try_from(length).ok().filter(|length| (4..=ANSWER_BYTES_MAX).contains(length));
    let Some(length) = length else {
        return Err(io::Error::other(
            "what answers there does not speak the Kafka protocol (or expects TLS)",
        ));
    };
    let correlation = socket.read_i32().await?;
    let mut body = BytesMut::with_capacity(length - 4);
    let mut limited = socket.take(length as u64 - 4);
    while body.len() < length - 4 {
        if limited.read_buf(&mut body).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(Some((correlation, body.freeze())))
}
