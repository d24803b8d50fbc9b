//! # Room card: framing
//!
//! Purpose:    cut a byte stream into Kafka's frames.
//! Owns:       the length prefix, the largest frame, what to say of bytes that are no frame.
//! Interface:  [`next_frame`], [`make_room`], [`whole`], [`FrameError`].
//! Invariants: memory follows the bytes that arrived, never the length that was announced.
//! Never:      the contents of a frame.
//! Tests:      below; `tests/` sends garbage to a real server.
//! Start at:   [`next_frame`].

use std::ops::RangeInclusive;

use bytes::{Buf, Bytes, BytesMut};

/// Bytes of the length prefix.
const PREFIX: usize = 4;

/// Bytes of the shortest request: an API key, a version and a correlation id.
const REQUEST_BYTES_MIN: u32 = 8;

/// The first read of a client's connection, and of one whose buffer is used up: a few small requests.
pub const ROOM_MIN: usize = 8 * 1024;

/// A frame of at least this size gets a buffer of its own.
const SOLE_FRAME: usize = 32 * 1024;

/// Reason why a stream cannot be cut into frames, with a guess at the peer's protocol.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The peer speaks HTTP.
    #[error("this looks like HTTP, and the port speaks the Kafka protocol")]
    Http,
    /// The peer speaks TLS.
    #[error("this looks like a TLS handshake, and the port is plaintext")]
    Tls,
    /// The length is negative, or shorter than the shortest request header.
    #[error("a frame of {0} bytes is no request")]
    TooShort(i32),
    /// The length is above `socket.request.max.bytes`.
    #[error("a frame of {len} bytes is above socket.request.max.bytes={max}")]
    TooLong {
        /// As announced.
        len: u32,
        /// As allowed.
        max: u32,
    },
}

/// Takes the next whole frame, without its length, from the front of `buf`.
pub fn next_frame(buf: &mut BytesMut, frame_max: u32) -> Result<Option<Bytes>, FrameError> {
    next_of(buf, REQUEST_BYTES_MIN..=frame_max)
}

/// Returns the number of the API of the next frame, as soon as it is here.
pub fn api_key(buf: &BytesMut) -> Option<i16> {
    buf.get(PREFIX..PREFIX + 2)?.try_into().ok().map(i16::from_be_bytes)
}

/// Takes the next whole frame, without its length, where that may also be a token of SASL, which may be shorter than a
/// request.
pub fn next_token(buf: &mut BytesMut, token_max: u32) -> Result<Option<Bytes>, FrameError> {
    next_of(buf, 0..=token_max)
}

fn next_of(buf: &mut BytesMut, sizes: RangeInclusive<u32>) -> Result<Option<Bytes>, FrameError> {
    let Some(len) = announced(buf, sizes)? else { return Ok(None) };
    if buf.len() < PREFIX + len {
        return Ok(None);
    }
    buf.advance(PREFIX);
    // A large frame that is alone takes the buffer with it, and so owns its memory: its batch can
    // then be changed in place.
    let frame =
        if buf.len() == len && len >= SOLE_FRAME { std::mem::take(buf) } else { buf.split_to(len) };
    Ok(Some(frame.freeze()))
}

/// Makes room in `buf` for the next read, and returns how much of it to use: the rest of the frame at its front. The
/// room is not much more than has arrived of the frame, or `room_min`, so that an announced length costs nothing. The
/// rest of a large frame is read without the bytes that follow, so that it is alone in its buffer.
pub fn make_room(buf: &mut BytesMut, frame_max: u32, room_min: usize) -> usize {
    let wanted = room_wanted(buf, frame_max, room_min);
    buf.reserve(wanted);
    match announced(buf, 0..=frame_max) {
        Ok(Some(len)) if len >= SOLE_FRAME => wanted,
        _ => buf.capacity() - buf.len(),
    }
}

fn room_wanted(buf: &BytesMut, frame_max: u32, room_min: usize) -> usize {
    let Ok(Some(len)) = announced(buf, 0..=frame_max) else { return room_min };
    let rest = (PREFIX + len).saturating_sub(buf.len());
    rest.min((buf.len() * 3).max(room_min)).max(1)
}

/// Returns the bytes of the frame at the front of `buf`, with its length prefix, if that prefix is here.
pub fn whole(buf: &BytesMut) -> Option<usize> {
    buf.first_chunk().map(|prefix| PREFIX + u32::from_be_bytes(*prefix) as usize)
}

fn announced(buf: &BytesMut, sizes: RangeInclusive<u32>) -> Result<Option<usize>, FrameError> {
    let Some(prefix) = buf.first_chunk::<PREFIX>() else { return Ok(None) };
    let len = i32::from_be_bytes(*prefix);
    let Ok(positive) = u32::try_from(len) else { return Err(guess(*prefix, len)) };
    if positive < *sizes.start() {
        return Err(guess(*prefix, len));
    }
    if positive > *sizes.end() {
        let max = *sizes.end();
        return Err(match guess(*prefix, len) {
            FrameError::TooShort(_) => FrameError::TooLong { len: positive, max },
            known => known,
        });
    }
    Ok(Some(positive as usize))
}

/// Guesses the protocol of first bytes that are no length.
fn guess(prefix: [u8; PREFIX], len: i32) -> FrameError {
    match &prefix {
        b"GET " | b"POST" | b"PUT " | b"HEAD" | b"DELE" | b"OPTI" | b"PATC" | b"CONN" | b"PRI " => {
            FrameError::Http
        }
        [0x16, 0x03, _, _] => FrameError::Tls,
        _ => FrameError::TooShort(len),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: u32 = 100 * 1024 * 1024;

    fn frame(body: &[u8]) -> Vec<u8> {
        let mut bytes = u32::try_from(body.len()).unwrap().to_be_bytes().to_vec();
        bytes.extend_from_slice(body);
        bytes
    }

    #[test]
    fn frames_come_out_whole_however_the_bytes_arrive() {
        let bodies: [&[u8]; 3] = [b"12345678", &[7; 5000], b"abcdefghij"];
        let stream: Vec<u8> = bodies.iter().flat_map(|body| frame(body)).collect();
        for step in [1, 3, 4, 11, 4096, stream.len()] {
            let mut buf = BytesMut::new();
            let mut frames = Vec::new();
            for chunk in stream.chunks(step) {
                buf.extend_from_slice(chunk);
                while let Some(frame) = next_frame(&mut buf, MAX).unwrap() {
                    frames.push(frame);
                }
            }
            assert_eq!(frames, bodies, "in steps of {step}");
            assert!(buf.is_empty());
        }
    }

    #[test]
    fn an_announced_length_makes_no_room_before_its_bytes_arrive() {
        let mut buf = BytesMut::from(&MAX.to_be_bytes()[..]);
        assert_eq!(room_wanted(&buf, MAX, ROOM_MIN), ROOM_MIN);
        buf.extend_from_slice(&vec![0; 100_000]);
        assert_eq!(room_wanted(&buf, MAX, ROOM_MIN), 300_012);
        let mut buf = BytesMut::from(&100_u32.to_be_bytes()[..]);
        assert_eq!(room_wanted(&buf, MAX, ROOM_MIN), 100);
        buf.extend_from_slice(&[0; 99]);
        assert_eq!(room_wanted(&buf, MAX, ROOM_MIN), 1);
    }

    #[test]
    fn a_large_frame_owns_its_memory() {
        let stream =
            frame(&vec![7; 300_000]).into_iter().chain(frame(b"12345678")).collect::<Vec<_>>();
        let (mut buf, mut at) = (BytesMut::new(), 0);
        let large = loop {
            let room = make_room(&mut buf, MAX, ROOM_MIN).min(stream.len() - at);
            buf.extend_from_slice(&stream[at..at + room]);
            at += room;
            if let Some(frame) = next_frame(&mut buf, MAX).unwrap() {
                break frame;
            }
        };
        assert_eq!(large.len(), 300_000);
        assert!(large.try_into_mut().is_ok());
    }

    #[test]
    fn other_protocols_are_recognised() {
        let error = |bytes: &[u8]| next_frame(&mut BytesMut::from(bytes), MAX).unwrap_err();
        assert_eq!(error(b"GET / HTTP/1.1\r\n"), FrameError::Http);
        assert_eq!(error(b"POST /topics"), FrameError::Http);
        assert_eq!(error(b"PRI * HTTP/2.0"), FrameError::Http);
        assert_eq!(error(&[0x16, 0x03, 0x01, 0x02, 0x00, 0x01]), FrameError::Tls);
        assert_eq!(error(&[0, 0, 0, 7]), FrameError::TooShort(7));
        assert_eq!(error(&[0xff, 0xff, 0xff, 0xff]), FrameError::TooShort(-1));
        assert_eq!(error(&[0x7f, 0, 0, 0]), FrameError::TooLong { len: 0x7f00_0000, max: MAX });
        assert_eq!(next_frame(&mut BytesMut::from(&[0x16, 0x03][..]), MAX), Ok(None));
    }
}
