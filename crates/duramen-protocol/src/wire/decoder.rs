//! Reading primitives from one frame.

use bytes::Bytes;

use super::{DecodeError, Uuid};

/// A cursor over one frame. Byte fields it returns are slices of that frame, never copies.
///
/// Every method either advances past what it returned or fails; after a failure the position is meaningless.
#[derive(Debug)]
pub struct Decoder {
    frame: Bytes,
    at: usize,
    end: usize,
    elements: usize,
    elements_max: usize,
}

impl Decoder {
    /// Creates a cursor at the start of `frame`.
    pub fn new(frame: Bytes) -> Self {
        let end = frame.len();
        Self { frame, at: 0, end, elements: 0, elements_max: usize::MAX }
    }

    /// Fails where all arrays together would have more than `max` elements.
    #[must_use]
    pub fn with_elements_max(self, max: usize) -> Self {
        Self { elements_max: max, ..self }
    }

    /// Elements of all arrays so far.
    pub fn elements(&self) -> usize {
        self.elements
    }

    /// Counts the elements that an array announces, against the limit of the message.
    pub(super) fn expect_elements(&mut self, count: usize) -> Result<(), DecodeError> {
        self.elements = self.elements.saturating_add(count);
        if self.elements > self.elements_max {
            return Err(DecodeError::TooManyElements { max: self.elements_max });
        }
        Ok(())
    }

    /// Bytes not read yet.
    pub fn remaining(&self) -> usize {
        self.end - self.at
    }

    /// Returns the position in the frame.
    pub fn position(&self) -> usize {
        self.at
    }

    /// Returns the error for something wrong at the present position.
    #[cold]
    pub fn malformed(&self, why: &'static str) -> DecodeError {
        DecodeError::Malformed { at: self.at, why }
    }

    /// Fails unless everything was read.
    pub fn finish(&self) -> Result<(), DecodeError> {
        if self.remaining() == 0 { Ok(()) } else { Err(self.malformed("trailing bytes")) }
    }

    /// Reads the next `len` bytes, borrowed.
    pub fn take(&mut self, len: usize) -> Result<&[u8], DecodeError> {
        if len > self.remaining() {
            return Err(self.malformed("ends early"));
        }
        let start = self.at;
        self.at += len;
        Ok(&self.frame[start..self.at])
    }

    /// Reads the next `len` bytes as a slice of the frame.
    pub fn bytes(&mut self, len: usize) -> Result<Bytes, DecodeError> {
        if len > self.remaining() {
            return Err(self.malformed("ends early"));
        }
        let start = self.at;
        self.at += len;
        Ok(self.frame.slice(start..self.at))
    }

    /// Confines the cursor to the next `len` bytes while `read` runs, which must consume them all.
    pub fn confined<T>(
        &mut self,
        len: usize,
        read: impl FnOnce(&mut Self) -> Result<T, DecodeError>,
    ) -> Result<T, DecodeError> {
        if len > self.remaining() {
            return Err(self.malformed("ends early"));
        }
        let outer_end = self.end;
        self.end = self.at + len;
        let value = read(self)?;
        if self.remaining() != 0 {
            return Err(self.malformed("field is shorter than its declared size"));
        }
        self.end = outer_end;
        Ok(value)
    }

    #[inline]
    fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let Some(chunk) = self.frame[self.at..self.end].first_chunk::<N>() else {
            return Err(self.malformed("ends early"));
        };
        self.at += N;
        Ok(*chunk)
    }

    /// Reads a boolean: any byte but zero is true, as in Kafka.
    pub fn bool(&mut self) -> Result<bool, DecodeError> {
        Ok(self.i8()? != 0)
    }

    /// Reads one signed byte.
    pub fn i8(&mut self) -> Result<i8, DecodeError> {
        self.array().map(i8::from_be_bytes)
    }

    /// Reads a 16-bit signed integer.
    pub fn i16(&mut self) -> Result<i16, DecodeError> {
        self.array().map(i16::from_be_bytes)
    }

    /// Reads a 16-bit unsigned integer.
    pub fn u16(&mut self) -> Result<u16, DecodeError> {
        self.array().map(u16::from_be_bytes)
    }

    /// Reads a 32-bit signed integer.
    pub fn i32(&mut self) -> Result<i32, DecodeError> {
        self.array().map(i32::from_be_bytes)
    }

    /// Reads a 32-bit unsigned integer.
    pub fn u32(&mut self) -> Result<u32, DecodeError> {
        self.array().map(u32::from_be_bytes)
    }

    /// Reads a 64-bit signed integer.
    pub fn i64(&mut self) -> Result<i64, DecodeError> {
        self.array().map(i64::from_be_bytes)
    }

    /// Reads a 64-bit unsigned integer. Kafka itself has none; our own records do.
    pub fn u64(&mut self) -> Result<u64, DecodeError> {
        self.array().map(u64::from_be_bytes)
    }

    /// Reads a double.
    pub fn f64(&mut self) -> Result<f64, DecodeError> {
        self.array().map(f64::from_be_bytes)
    }

    /// Reads a UUID.
    pub fn uuid(&mut self) -> Result<Uuid, DecodeError> {
        self.array().map(Uuid)
    }

    /// Reads an unsigned variable-length integer of at most 32 bits.
    pub fn unsigned_varint(&mut self) -> Result<u32, DecodeError> {
        let wide = self.unsigned_varlong_of(5)?;
        u32::try_from(wide).map_err(|_| self.malformed("varint overflows 32 bits"))
    }

    /// Reads an unsigned variable-length integer of at most 64 bits.
    pub fn unsigned_varlong(&mut self) -> Result<u64, DecodeError> {
        self.unsigned_varlong_of(10)
    }

    /// Reads a zigzag variable-length integer of at most 32 bits.
    pub fn varint(&mut self) -> Result<i32, DecodeError> {
        let raw = self.unsigned_varint()?;
        Ok((raw >> 1).cast_signed() ^ -(raw & 1).cast_signed())
    }

    /// Reads a zigzag variable-length integer of at most 64 bits.
    pub fn varlong(&mut self) -> Result<i64, DecodeError> {
        let raw = self.unsigned_varlong()?;
        Ok((raw >> 1).cast_signed() ^ -(raw & 1).cast_signed())
    }

    fn unsigned_varlong_of(&mut self, bytes_max: usize) -> Result<u64, DecodeError> {
        let mut value = 0u64;
        for index in 0..bytes_max {
            let Some(&byte) = self.frame[self.at..self.end].get(index) else {
                return Err(self.malformed("ends early"));
            };
            // Only the tenth byte can push bits out of the top; it may hold one bit.
            if index == 9 && byte > 1 {
                break;
            }
            value |= u64::from(byte & 0x7f) << (7 * index);
            if byte < 0x80 {
                self.at += index + 1;
                return Ok(value);
            }
        }
        Err(self.malformed("varint is too long"))
    }

    /// Reads the length prefix of a string, byte field or array: `None` stands for null.
    pub(super) fn length(
        &mut self,
        flexible: bool,
        short: bool,
    ) -> Result<Option<usize>, DecodeError> {
        if flexible {
            let plus_one = self.unsigned_varint()?;
            return Ok(plus_one.checked_sub(1).map(|len| len as usize));
        }
        let len = if short { i32::from(self.i16()?) } else { self.i32()? };
        match usize::try_from(len) {
            Ok(len) => Ok(Some(len)),
            Err(_) if len == -1 => Ok(None),
            Err(_) => Err(self.malformed("negative length")),
        }
    }

    /// Passes over one tagged field whose tag was just read.
    pub fn skip_tagged_field(&mut self) -> Result<(), DecodeError> {
        let size = self.unsigned_varint()? as usize;
        self.take(size).map(|_| ())
    }

    /// Passes over a whole section of tagged fields.
    pub fn skip_tagged_fields(&mut self) -> Result<(), DecodeError> {
        for _ in 0..self.unsigned_varint()? {
            self.unsigned_varint()?;
            self.skip_tagged_field()?;
        }
        Ok(())
    }
}
