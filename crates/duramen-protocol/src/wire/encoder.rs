//! Writing primitives, with holes for bytes that never pass through user space.

use bytes::{BufMut, Bytes, BytesMut};

use super::{EncodeError, Uuid};

/// A place in a response where `len` bytes that are not in memory belong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hole {
    /// Position in the written bytes (which do not contain the hole's bytes) before which they go.
    pub at: usize,
    /// Length of the missing bytes; every length prefix around the hole counts them already.
    pub len: u32,
    /// The caller's name for the bytes.
    pub id: u32,
}

/// Record bytes of a Fetch response: in memory, or somewhere the server can send them from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RecordData {
    /// In memory; copied into the frame.
    Bytes(Bytes),
    /// Elsewhere, say in a segment file: only their length is written, and a [`Hole`] is left.
    External {
        /// Length in bytes.
        len: u32,
        /// The caller's name for them.
        id: u32,
    },
}

impl RecordData {
    /// Returns the length in bytes, in memory or not.
    pub fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::External { len, .. } => *len as usize,
        }
    }

    /// Tells whether there are no record bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Default for RecordData {
    fn default() -> Self {
        Self::Bytes(Bytes::new())
    }
}

impl From<Bytes> for RecordData {
    fn from(bytes: Bytes) -> Self {
        Self::Bytes(bytes)
    }
}

/// A growing buffer that knows where the holes are.
#[derive(Debug, Default)]
pub struct Encoder {
    pub(crate) out: BytesMut,
    pub(super) holes: Vec<Hole>,
    hole_bytes: usize,
}

impl Encoder {
    /// Creates an empty encoder.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates an empty encoder with room for `bytes`.
    pub fn with_capacity(bytes: usize) -> Self {
        Self { out: BytesMut::with_capacity(bytes), ..Self::default() }
    }

    /// Creates an encoder that appends to `out`, which allows a buffer to be used again.
    pub fn over(out: BytesMut) -> Self {
        Self { out, ..Self::default() }
    }

    /// Returns the number of bytes written so far, holes not counted.
    pub fn len(&self) -> usize {
        self.out.len()
    }

    /// Tells whether nothing was written.
    pub fn is_empty(&self) -> bool {
        self.out.is_empty()
    }

    /// Returns the number of bytes that the holes stand for.
    pub fn hole_bytes(&self) -> usize {
        self.hole_bytes
    }

    /// Returns the written bytes and the holes in them, in order of position.
    pub fn finish(self) -> (BytesMut, Vec<Hole>) {
        (self.out, self.holes)
    }

    /// Returns the written bytes of an encoder that met no external record data.
    pub fn into_bytes(self) -> BytesMut {
        assert!(self.holes.is_empty(), "a caller that drops holes never encodes external records");
        self.out
    }

    /// Overwrites four bytes at `at` with `value`: for length prefixes that are known last.
    pub(crate) fn patch_i32(&mut self, at: usize, value: i32) {
        self.out[at..at + 4].copy_from_slice(&value.to_be_bytes());
    }

    /// Writes raw bytes.
    pub fn put(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
    }

    /// Writes a boolean.
    pub fn bool(&mut self, value: bool) {
        self.out.put_u8(u8::from(value));
    }

    /// Writes one signed byte.
    pub fn i8(&mut self, value: i8) {
        self.out.put_i8(value);
    }

    /// Writes a 16-bit signed integer.
    pub fn i16(&mut self, value: i16) {
        self.out.put_i16(value);
    }

    /// Writes a 16-bit unsigned integer.
    pub fn u16(&mut self, value: u16) {
        self.out.put_u16(value);
    }

    /// Writes a 32-bit signed integer.
    pub fn i32(&mut self, value: i32) {
        self.out.put_i32(value);
    }

    /// Writes a 32-bit unsigned integer.
    pub fn u32(&mut self, value: u32) {
        self.out.put_u32(value);
    }

    /// Writes a 64-bit signed integer.
    pub fn i64(&mut self, value: i64) {
        self.out.put_i64(value);
    }

    /// Writes a 64-bit unsigned integer.
    pub fn u64(&mut self, value: u64) {
        self.out.put_u64(value);
    }

    /// Writes a double.
    pub fn f64(&mut self, value: f64) {
        self.out.put_f64(value);
    }

    /// Writes a UUID.
    pub fn uuid(&mut self, value: Uuid) {
        self.put(&value.0);
    }

    /// Writes an unsigned variable-length integer of 32 bits.
    pub fn unsigned_varint(&mut self, value: u32) {
        self.unsigned_varlong(u64::from(value));
    }

    /// Writes an unsigned variable-length integer of 64 bits.
    pub fn unsigned_varlong(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.out.put_u8(low_seven(value) | 0x80);
            value >>= 7;
        }
        self.out.put_u8(low_seven(value));
    }

    /// Writes a zigzag variable-length integer of 32 bits.
    pub fn varint(&mut self, value: i32) {
        self.unsigned_varint(((value << 1) ^ (value >> 31)).cast_unsigned());
    }

    /// Writes a zigzag variable-length integer of 64 bits.
    pub fn varlong(&mut self, value: i64) {
        self.unsigned_varlong(((value << 1) ^ (value >> 63)).cast_unsigned());
    }

    /// Writes the length prefix of a string, byte field or array; `None` stands for null.
    pub(super) fn length(
        &mut self,
        len: Option<usize>,
        flexible: bool,
        short: bool,
        what: &'static str,
    ) -> Result<(), EncodeError> {
        let too_long = |_| EncodeError::TooLong { what, len: len.unwrap_or(0) };
        if flexible {
            let plus_one = match len {
                None => 0,
                Some(len) => i32::try_from(len).map_err(too_long)?.cast_unsigned() + 1,
            };
            self.unsigned_varint(plus_one);
        } else if short {
            self.i16(len.map_or(Ok(-1), i16::try_from).map_err(too_long)?);
        } else {
            self.i32(len.map_or(Ok(-1), i32::try_from).map_err(too_long)?);
        }
        Ok(())
    }

    pub(super) fn hole(&mut self, len: u32, id: u32) {
        // An empty hole would be a write of nothing; the length prefix already says it all.
        if len > 0 {
            self.holes.push(Hole { at: self.out.len(), len, id });
            self.hole_bytes += len as usize;
        }
    }

    /// Writes one tagged field: tag, size, and what `write` writes.
    pub fn tagged_field(
        &mut self,
        tag: u32,
        write: impl FnOnce(&mut Self) -> Result<(), EncodeError>,
    ) -> Result<(), EncodeError> {
        // The size comes first and its own length depends on it, so the field is written aside. Tagged fields
        // are rare and small; record data never lives in one.
        let mut aside = Self::new();
        write(&mut aside)?;
        if !aside.holes.is_empty() {
            return Err(EncodeError::MisplacedHole);
        }
        let size = u32::try_from(aside.len())
            .map_err(|_| EncodeError::TooLong { what: "tagged field", len: aside.len() })?;
        self.unsigned_varint(tag);
        self.unsigned_varint(size);
        self.put(&aside.out);
        Ok(())
    }
}

fn low_seven(value: u64) -> u8 {
    value.to_le_bytes()[0] & 0x7f
}

/// Returns the number of bytes that [`Encoder::varint`] writes for `value`.
pub fn varint_len(value: i32) -> usize {
    unsigned_len(u64::from(((value << 1) ^ (value >> 31)).cast_unsigned()))
}

/// Returns the number of bytes that [`Encoder::varlong`] writes for `value`.
pub fn varlong_len(value: i64) -> usize {
    unsigned_len(((value << 1) ^ (value >> 63)).cast_unsigned())
}

fn unsigned_len(value: u64) -> usize {
    let bits = 64 - (value | 1).leading_zeros() as usize;
    bits.div_ceil(7)
}
