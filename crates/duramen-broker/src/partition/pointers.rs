//! The bytes of a log's pointer, in entries, in images and in statements about queues.

use bytes::{Buf, BufMut, Bytes};

use crate::guard::Position;
use crate::native::Pointer;

/// Encodes bytes behind their length, of one byte.
pub(super) fn put_short(out: &mut Vec<u8>, bytes: &[u8]) {
    out.put_u8(u8::try_from(bytes.len()).expect("a token or checksum is short"));
    out.put_slice(bytes);
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    out.put_u16(u16::try_from(text.len()).expect("a pointer is small"));
    out.put_slice(text.as_bytes());
}

/// Encodes a pointer, or none, for an entry or an image.
pub(super) fn put_pointer(out: &mut Vec<u8>, pointer: Option<&Pointer>) {
    out.put_u8(u8::from(pointer.is_some()));
    let Some(pointer) = pointer else { return };
    assert!(pointer.is_small(), "a pointer was checked where it came in");
    put_text(out, &pointer.uri);
    put_text(out, &pointer.note);
    put_short(out, &pointer.sha256);
    out.put_u8(u8::from(pointer.position.is_some()));
    if let Some(Position { term, entry, offset }) = pointer.position {
        out.put_i32(term);
        out.put_i64(entry);
        out.put_i64(offset);
    }
}

/// Encodes a pointer, or none, for a statement about a queue.
pub(crate) fn encode_pointer(pointer: Option<&Pointer>) -> Bytes {
    let mut out = Vec::new();
    put_pointer(&mut out, pointer);
    out.into()
}

/// Decodes a pointer, or none, of a statement about a queue.
pub(crate) fn pointer_of(mut bytes: &[u8]) -> Option<Pointer> {
    take_pointer(&mut bytes).flatten()
}

fn take(bytes: &mut &[u8], len: usize) -> Option<Bytes> {
    let (taken, rest) = bytes.split_at_checked(len)?;
    *bytes = rest;
    Some(Bytes::copy_from_slice(taken))
}

/// Decodes what [`put_short`] encodes.
pub(super) fn take_short(bytes: &mut &[u8]) -> Option<Bytes> {
    let len = bytes.try_get_u8().ok()?;
    take(bytes, len.into())
}

fn take_text(bytes: &mut &[u8]) -> Option<String> {
    let len = bytes.try_get_u16().ok()?;
    String::from_utf8(take(bytes, len.into())?.into()).ok()
}

/// Decodes a pointer, or none.
#[expect(clippy::option_option, reason = "unreadable bytes are not the same as no pointer")]
pub(super) fn take_pointer(bytes: &mut &[u8]) -> Option<Option<Pointer>> {
    match bytes.try_get_u8().ok()? {
        0 => return Some(None),
        1 => {}
        _ => return None,
    }
    let uri = take_text(bytes)?;
    let note = take_text(bytes)?;
    let sha256 = take_short(bytes)?;
    let position = match bytes.try_get_u8().ok()? {
        0 => None,
        1 => {
            let term = bytes.try_get_i32().ok()?;
            let entry = bytes.try_get_i64().ok()?;
            Some(Position { term, entry, offset: bytes.try_get_i64().ok()? })
        }
        _ => return None,
    };
    let pointer = Pointer { uri, position, sha256, note };
    pointer.is_small().then_some(Some(pointer))
}
