//! The walk over records: varints in place, nothing allocated.
//!
//! ```text
//! length varint, then that many bytes:
//!   attributes i8, timestamp delta varlong, offset delta varint,
//!   key length varint (-1 = null), key, value length varint (-1 = null), value,
//!   header count varint, then for each: key length varint, key, value length varint (-1 = null), value
//! ```

use bytes::Bytes;

use super::RecordError;
use crate::batch::{BatchView, TimestampType};
use crate::compression::{self, Codec};

/// Part of a batch's records above which a key or value shares their memory: one of so many.
const KEPT_FRACTION: usize = 4;

/// The records of one batch, ready to be walked over as often as needed.
#[derive(Debug, Clone)]
pub struct Records {
    pub(super) payload: Bytes,
    count: i32,
    base_offset: i64,
    last_offset: i64,
    base_timestamp: i64,
    append_time: Option<i64>,
}

impl Records {
    /// Makes the records of `batch` readable, decompressing at most `decompressed_bytes_max` bytes.
    pub fn of(batch: &BatchView, decompressed_bytes_max: usize) -> Result<Self, RecordError> {
        let header = batch.header();
        let payload = match header.attributes.codec().map_err(|_| RecordError::Codec)? {
            Codec::None => batch.payload_bytes(),
            codec => {
                let mut out = Vec::new();
                compression::decompress(codec, batch.payload(), decompressed_bytes_max, &mut out)?;
                Bytes::from(out)
            }
        };
        let append_time = match header.attributes.timestamp_type() {
            TimestampType::LogAppendTime => Some(header.max_timestamp),
            TimestampType::CreateTime => None,
        };
        Ok(Self {
            payload,
            count: header.record_count,
            base_offset: header.base_offset,
            last_offset: header.last_offset(),
            base_timestamp: header.base_timestamp,
            append_time,
        })
    }

    /// Returns the records in order. After an error nothing more comes.
    pub fn iter(&self) -> Walk<'_> {
        Walk::new(&self.payload, self.count)
    }

    /// Returns the records' keys in order, without a look at values and headers. After an error nothing more comes.
    pub fn keys(&self) -> impl Iterator<Item = Result<Keyed<'_>, RecordError>> {
        let (mut cursor, mut left) = (Cursor { left: &self.payload[..] }, self.count);
        std::iter::from_fn(move || {
            if left <= 0 {
                return None;
            }
            let key = cursor.key();
            left = if key.is_ok() { left - 1 } else { 0 };
            Some(key.map_err(|Malformed| RecordError::Invalid("malformed record")))
        })
    }

    /// Returns a record's offset in the log.
    pub fn offset(&self, record: &Record<'_>) -> i64 {
        self.base_offset.saturating_add(i64::from(record.offset_delta))
    }

    /// Returns the offset of the last record that the batch had when it was appended.
    pub fn last_offset(&self) -> i64 {
        self.last_offset
    }

    /// Returns a record's timestamp, as consumers see it.
    pub fn timestamp(&self, record: &Record<'_>) -> i64 {
        self.append_time
            .unwrap_or_else(|| self.base_timestamp.saturating_add(record.timestamp_delta))
    }

    /// Returns a key or value as owned bytes. They share the memory of the batch only if they are a good part of it: a
    /// small part keeps no large batch in memory.
    pub fn keep(&self, part: &[u8]) -> Bytes {
        if part.len() < self.payload.len() / KEPT_FRACTION {
            Bytes::copy_from_slice(part)
        } else {
            self.payload.slice_ref(part)
        }
    }
}

impl<'a> IntoIterator for &'a Records {
    type Item = Result<Record<'a>, RecordError>;
    type IntoIter = Walk<'a>;

    fn into_iter(self) -> Walk<'a> {
        self.iter()
    }
}

/// Key of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keyed<'a> {
    /// The key.
    pub key: Option<&'a [u8]>,
    /// True if the record has headers.
    pub has_headers: bool,
}

/// One record, borrowed from its batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record<'a> {
    /// Unused in format 2.
    pub attributes: i8,
    /// Timestamp, less the batch's base timestamp.
    pub timestamp_delta: i64,
    /// Offset, less the batch's base offset.
    pub offset_delta: i32,
    /// The key.
    pub key: Option<&'a [u8]>,
    /// The value; a record without one deletes its key in a compacted topic.
    pub value: Option<&'a [u8]>,
    /// The headers.
    pub headers: Headers<'a>,
}

/// One header of a record. Kafka demands UTF-8 keys but no broker checks it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header<'a> {
    /// The key.
    pub key: &'a [u8],
    /// The value.
    pub value: Option<&'a [u8]>,
}

/// The headers of a record. Their layout was checked when the record was read, so walking them cannot fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Headers<'a> {
    bytes: &'a [u8],
    count: i32,
}

impl Headers<'_> {
    /// Returns the number of headers.
    pub fn len(&self) -> usize {
        usize::try_from(self.count).unwrap_or(0)
    }

    /// Tells whether the record has no headers.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }
}

impl<'a> IntoIterator for Headers<'a> {
    type Item = Header<'a>;
    type IntoIter = HeaderWalk<'a>;

    fn into_iter(self) -> HeaderWalk<'a> {
        HeaderWalk { cursor: Cursor { left: self.bytes }, left: self.count }
    }
}

/// Iterator over the headers of a record.
#[derive(Debug, Clone)]
pub struct HeaderWalk<'a> {
    cursor: Cursor<'a>,
    left: i32,
}

impl<'a> Iterator for HeaderWalk<'a> {
    type Item = Header<'a>;

    fn next(&mut self) -> Option<Header<'a>> {
        if self.left == 0 {
            return None;
        }
        self.left -= 1;
        Some(self.cursor.header().expect("the record's reader walked over it before"))
    }
}

/// Iterator over the records of a payload; fails if the payload holds more or less than the count says.
#[derive(Debug, Clone)]
pub struct Walk<'a> {
    cursor: Cursor<'a>,
    left: i32,
    done: bool,
}

impl<'a> Walk<'a> {
    pub(super) fn new(payload: &'a [u8], count: i32) -> Self {
        Self { cursor: Cursor { left: payload }, left: count, done: false }
    }

    /// Returns the number of bytes that the walk has not reached.
    pub(super) fn bytes_left(&self) -> usize {
        self.cursor.left.len()
    }
}

impl<'a> Iterator for Walk<'a> {
    type Item = Result<Record<'a>, RecordError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.left > 0 {
            self.left -= 1;
            let record = self.cursor.record();
            if record.is_none() {
                (self.left, self.done) = (0, true);
            }
            return Some(record.ok_or(RecordError::Invalid("malformed record")));
        }
        if self.done {
            return None;
        }
        self.done = true;
        if self.cursor.left.is_empty() {
            return None;
        }
        Some(Err(RecordError::Invalid("bytes after the last record")))
    }
}

/// Tells malformed bytes from null.
struct Malformed;

/// A cursor whose reads fail with `None` on malformed bytes.
#[derive(Debug, Clone, Copy)]
struct Cursor<'a> {
    left: &'a [u8],
}

impl<'a> Cursor<'a> {
    #[inline]
    fn record(&mut self) -> Option<Record<'a>> {
        let mut body = self.body()?;
        let record = Record {
            attributes: body.byte()?.cast_signed(),
            timestamp_delta: body.varlong()?,
            offset_delta: body.varint()?,
            key: body.nullable().ok()?,
            value: body.nullable().ok()?,
            headers: body.headers()?,
        };
        body.left.is_empty().then_some(record)
    }

    /// Reads over a record, and returns its key.
    #[inline]
    fn key(&mut self) -> Result<Keyed<'a>, Malformed> {
        let mut body = self.body().ok_or(Malformed)?;
        let is_whole = body.byte().is_some() && body.varlong().is_some() && body.varint().is_some();
        let key = if is_whole { body.nullable()? } else { return Err(Malformed) };
        body.nullable()?;
        Ok(Keyed { key, has_headers: body.varint().ok_or(Malformed)? != 0 })
    }

    /// Reads over a record; returns all behind its length.
    #[inline]
    fn body(&mut self) -> Option<Self> {
        let len = usize::try_from(self.varint()?).ok()?;
        let (body, rest) = self.left.split_at_checked(len)?;
        self.left = rest;
        Some(Cursor { left: body })
    }

    fn headers(&mut self) -> Option<Headers<'a>> {
        let count = self.varint()?;
        let start = self.left;
        for _ in 0..count {
            self.header()?;
        }
        let bytes = &start[..start.len() - self.left.len()];
        (count >= 0).then_some(Headers { bytes, count })
    }

    fn header(&mut self) -> Option<Header<'a>> {
        Some(Header { key: self.nullable().ok()??, value: self.nullable().ok()? })
    }

    /// Bytes behind a length of which any negative number means null, as Kafka reads it.
    #[inline]
    fn nullable(&mut self) -> Result<Option<&'a [u8]>, Malformed> {
        let Ok(len) = usize::try_from(self.varint().ok_or(Malformed)?) else { return Ok(None) };
        let (bytes, rest) = self.left.split_at_checked(len).ok_or(Malformed)?;
        self.left = rest;
        Ok(Some(bytes))
    }

    #[inline]
    fn byte(&mut self) -> Option<u8> {
        let (&first, rest) = self.left.split_first()?;
        self.left = rest;
        Some(first)
    }

    #[inline]
    fn varint(&mut self) -> Option<i32> {
        // Nearly all lengths and deltas are shorter than 64.
        if let Some((&byte, rest)) = self.left.split_first()
            && byte < 0x80
        {
            self.left = rest;
            return Some(i32::from(byte >> 1) ^ -i32::from(byte & 1));
        }
        let raw = u32::try_from(self.unsigned(5)?).ok()?;
        Some((raw >> 1).cast_signed() ^ -(raw & 1).cast_signed())
    }

    #[inline]
    fn varlong(&mut self) -> Option<i64> {
        let raw = self.unsigned(10)?;
        Some((raw >> 1).cast_signed() ^ -(raw & 1).cast_signed())
    }

    #[inline]
    fn unsigned(&mut self, bytes_max: usize) -> Option<u64> {
        let mut value = 0u64;
        for (index, &byte) in self.left.iter().take(bytes_max).enumerate() {
            // Only the tenth byte can push bits out of the top; it may hold one bit.
            if index == 9 && byte > 1 {
                return None;
            }
            value |= u64::from(byte & 0x7f) << (7 * index);
            if byte < 0x80 {
                self.left = &self.left[index + 1..];
                return Some(value);
            }
        }
        None
    }
}
