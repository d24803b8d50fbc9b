//! New batches: for clients, the metadata log, and tests.

use bytes::{Bytes, BytesMut};

use super::RecordError;
use crate::batch::{Attributes, BatchHeader, CHECKSUMMED_FROM, HEADER_BYTES, LENGTH_OVERHEAD};
use crate::compression::{self, Codec};
use crate::wire::{Encoder, varint_len, varlong_len};

/// A record to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NewRecord<'a> {
    /// Milliseconds since 1970.
    pub timestamp: i64,
    /// The key.
    pub key: Option<&'a [u8]>,
    /// The value.
    pub value: Option<&'a [u8]>,
    /// The headers, in order.
    pub headers: &'a [(&'a str, Option<&'a [u8]>)],
}

/// Collects records into one batch.
///
/// ```
/// use duramen_protocol::records::{BatchBuilder, NewRecord};
///
/// let mut batch = BatchBuilder::new();
/// batch.push(&NewRecord { timestamp: 5, value: Some(b"hello"), ..NewRecord::default() }).unwrap();
/// let bytes = batch.build().unwrap();
/// assert_eq!(bytes.len(), batch.plain_bytes());
/// ```
#[derive(Debug)]
pub struct BatchBuilder {
    /// Room for the header, and the records.
    records: Encoder,
    codec: Codec,
    /// Everything but the lengths, the count and the checksum.
    header: BatchHeader,
    /// Offsets left out before the first record.
    skipped: i32,
    count: i32,
}

impl Default for BatchBuilder {
    fn default() -> Self {
        Self::new()
    }
}

impl BatchBuilder {
    /// Creates a builder without records, producer or compression, with base offset 0.
    pub fn new() -> Self {
        let header = BatchHeader {
            base_offset: 0,
            batch_length: 0,
            partition_leader_epoch: -1,
            crc: 0,
            attributes: Attributes::default(),
            last_offset_delta: -1,
            base_timestamp: -1,
            max_timestamp: -1,
            producer_id: -1,
            producer_epoch: -1,
            base_sequence: -1,
            record_count: 0,
        };
        let records = Encoder::over(BytesMut::zeroed(HEADER_BYTES));
        Self { records, codec: Codec::None, header, skipped: 0, count: 0 }
    }

    /// Makes room for so many bytes of records.
    #[must_use]
    pub fn room(mut self, bytes: usize) -> Self {
        self.records.out.reserve(bytes);
        self
    }

    /// Compresses with `codec`.
    #[must_use]
    pub fn codec(mut self, codec: Codec) -> Self {
        self.codec = codec;
        self
    }

    /// Comes from an idempotent or transactional producer.
    #[must_use]
    pub fn producer(mut self, id: i64, epoch: i16, base_sequence: i32) -> Self {
        self.header.producer_id = id;
        self.header.producer_epoch = epoch;
        self.header.base_sequence = base_sequence;
        self
    }

    /// Belongs to a transaction.
    #[must_use]
    pub fn transactional(mut self) -> Self {
        self.header.attributes = self.header.attributes.with_transactional(true);
        self
    }

    /// Consists of control records.
    #[must_use]
    pub fn control(mut self) -> Self {
        self.header.attributes = self.header.attributes.with_control(true);
        self
    }

    /// Starts at this offset; a producer's batches start at 0.
    #[must_use]
    pub fn base_offset(mut self, base_offset: i64) -> Self {
        self.header.base_offset = base_offset;
        self
    }

    /// Was appended in this leader epoch.
    #[must_use]
    pub fn partition_leader_epoch(mut self, epoch: i32) -> Self {
        self.header.partition_leader_epoch = epoch;
        self
    }

    /// Leaves out so many offsets before the first record, as compaction does.
    #[must_use]
    pub fn skipping(mut self, offsets: i32) -> Self {
        self.skipped = offsets;
        self
    }

    /// Returns the number of records pushed.
    pub fn count(&self) -> i32 {
        self.count
    }

    /// Returns the bytes of the batch if it were not compressed.
    pub fn plain_bytes(&self) -> usize {
        self.records.len()
    }

    /// Adds a record. Timestamps are stored as differences from the first one's.
    pub fn push(&mut self, record: &NewRecord<'_>) -> Result<(), RecordError> {
        if self.count == 0 {
            self.header.base_timestamp = record.timestamp;
            self.header.max_timestamp = record.timestamp;
        }
        let timestamp_delta = record
            .timestamp
            .checked_sub(self.header.base_timestamp)
            .ok_or(RecordError::Invalid("timestamp overflows"))?;
        self.write(record, timestamp_delta)?;
        self.header.max_timestamp = self.header.max_timestamp.max(record.timestamp);
        self.count += 1;
        Ok(())
    }

    fn write(&mut self, record: &NewRecord<'_>, timestamp_delta: i64) -> Result<(), RecordError> {
        let header_count = signed_len(record.headers.len())?;
        let offset_delta = self.skipped + self.count;
        let mut body = 1 + varlong_len(timestamp_delta) + varint_len(offset_delta);
        body += nullable_len(record.key)? + nullable_len(record.value)? + varint_len(header_count);
        for (key, value) in record.headers {
            body += nullable_len(Some(key.as_bytes()))? + nullable_len(*value)?;
        }
        let body = signed_len(body)?;
        let e = &mut self.records;
        e.varint(body);
        e.i8(0);
        e.varlong(timestamp_delta);
        e.varint(offset_delta);
        put_nullable(e, record.key)?;
        put_nullable(e, record.value)?;
        e.varint(header_count);
        for (key, value) in record.headers {
            put_nullable(e, Some(key.as_bytes()))?;
            put_nullable(e, *value)?;
        }
        Ok(())
    }

    /// Builds the batch. The builder keeps its records, so that a batch can be built again.
    pub fn build(&self) -> Result<Bytes, RecordError> {
        self.build_mut().map(BytesMut::freeze)
    }

    /// Builds the batch, still open to [`set_base_offset`](crate::batch::set_base_offset) and the like.
    pub fn build_mut(&self) -> Result<BytesMut, RecordError> {
        let mut out = Vec::with_capacity(self.plain_bytes());
        out.resize(HEADER_BYTES, 0);
        compression::compress(self.codec, &self.records.out[HEADER_BYTES..], &mut out);
        self.put_header(&mut out)?;
        Ok(BytesMut::from(Bytes::from(out)))
    }

    /// Builds the batch, in the memory of its records unless they are compressed.
    pub fn finish(mut self) -> Result<BytesMut, RecordError> {
        if self.codec != Codec::None {
            return self.build_mut();
        }
        let mut out = std::mem::take(&mut self.records.out);
        self.put_header(&mut out)?;
        Ok(out)
    }

    fn put_header(&self, out: &mut [u8]) -> Result<(), RecordError> {
        let mut header = self.header;
        header.attributes = header.attributes.with_codec(self.codec);
        header.batch_length = signed_len(out.len() - LENGTH_OVERHEAD)?;
        header.last_offset_delta = self.skipped + self.count - 1;
        header.record_count = self.count;
        out[..HEADER_BYTES].copy_from_slice(&header.to_bytes());
        let crc = crc32c::crc32c(&out[CHECKSUMMED_FROM..]);
        out[17..21].copy_from_slice(&crc.to_be_bytes());
        Ok(())
    }
}

fn signed_len(len: usize) -> Result<i32, RecordError> {
    i32::try_from(len).map_err(|_| RecordError::Invalid("longer than 2 GiB"))
}

fn nullable_len(bytes: Option<&[u8]>) -> Result<usize, RecordError> {
    let Some(bytes) = bytes else { return Ok(varint_len(-1)) };
    Ok(varint_len(signed_len(bytes.len())?) + bytes.len())
}

fn put_nullable(e: &mut Encoder, bytes: Option<&[u8]>) -> Result<(), RecordError> {
    match bytes {
        None => e.varint(-1),
        Some(bytes) => {
            e.varint(signed_len(bytes.len())?);
            e.put(bytes);
        }
    }
    Ok(())
}
