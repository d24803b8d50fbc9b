//! # Room card: batch
//!
//! Purpose:    the record batch (format 2) as bytes: its header, its checksum, and the few fields a broker writes.
//! Owns:       [`BatchHeader`], [`Attributes`], [`BatchView`], the walk over batches that stand one after another.
//! Interface:  [`BatchView::parse`], [`batches`], [`BatchHeader::parse`], [`set_base_offset`],
//!             [`set_partition_leader_epoch`], [`restamp`], [`restamp_log_append_time`].
//! Invariants: a view holds exactly one whole batch, as a slice of the bytes it was parsed from. Base offset and
//!             leader epoch lie outside the checksum; a change of anything else here renews the checksum without
//!             reading the records.
//! Never:      a look inside the records (see `records`), policy.
//! Tests:      `batch/tests.rs`; `records/tests.rs`; `fuzz/` target `batch_reader`.
//! Start at:   [`BatchView::parse`].
//!
//! ```text
//!  0 base offset            i64 ┐ outside    27 base timestamp       i64
//!  8 length of what follows i32 │ the        35 max timestamp        i64
//! 12 partition leader epoch i32 │ checksum   43 producer id          i64
//! 16 magic = 2              i8  │            51 producer epoch       i16
//! 17 crc32c of 21..         u32 ┘            53 base sequence        i32
//! 21 attributes             i16              57 record count         i32
//! 23 last offset delta      i32              61 records, compressed as a whole
//! ```

use bytes::Bytes;

use crate::compression::Codec;

mod checksum;

/// Bytes before the records.
pub const HEADER_BYTES: usize = 61;

/// Bytes that the length field does not count: base offset and the field itself.
pub const LENGTH_OVERHEAD: usize = 12;

/// Where the checksummed part starts.
pub const CHECKSUMMED_FROM: usize = 21;

/// The only format written since Kafka 0.11, and the only one accepted.
pub const MAGIC: i8 = 2;

/// Where a format tells itself apart; the same place in all of them.
const MAGIC_AT: usize = 16;

/// Producer id of a batch without one.
pub const NO_PRODUCER_ID: i64 = -1;

/// Why bytes are not a record batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BatchError {
    /// The bytes end before the batch does. At the end of a fetched buffer this is normal.
    #[error("batch is incomplete: {available} of {needed} bytes")]
    Incomplete {
        /// Bytes the batch has by its own account, as far as that can be read.
        needed: usize,
        /// Bytes there are.
        available: usize,
    },
    /// The length field cannot be true.
    #[error("impossible batch length {0}")]
    Length(i32),
    /// A format other than 2.
    #[error("unsupported record format {0}")]
    Magic(i8),
}

/// When the timestamps of a batch were taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimestampType {
    /// By the producer, for each record.
    CreateTime,
    /// By the broker; the batch's max timestamp counts for all records.
    LogAppendTime,
}

/// The attribute bits of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Attributes(pub i16);

impl Attributes {
    const CODEC: i16 = 0x07;
    const LOG_APPEND_TIME: i16 = 0x08;
    const TRANSACTIONAL: i16 = 0x10;
    const CONTROL: i16 = 0x20;
    const DELETE_HORIZON: i16 = 0x40;

    /// Returns the codec, or its number if there is no codec with that number.
    pub fn codec(self) -> Result<Codec, i16> {
        Codec::from_id(self.0 & Self::CODEC).ok_or(self.0 & Self::CODEC)
    }

    /// Returns the timestamp type.
    pub const fn timestamp_type(self) -> TimestampType {
        if self.0 & Self::LOG_APPEND_TIME == 0 {
            TimestampType::CreateTime
        } else {
            TimestampType::LogAppendTime
        }
    }

    /// Tells whether the batch belongs to a transaction, as its marker does.
    pub const fn is_transactional(self) -> bool {
        self.0 & Self::TRANSACTIONAL != 0
    }

    /// Tells whether the batch holds control records, which applications never see.
    pub const fn is_control(self) -> bool {
        self.0 & Self::CONTROL != 0
    }

    /// Tells whether the base timestamp is the time after which compaction may drop tombstones and markers.
    pub const fn has_delete_horizon(self) -> bool {
        self.0 & Self::DELETE_HORIZON != 0
    }

    /// Returns the attributes with another codec.
    #[must_use]
    pub fn with_codec(self, codec: Codec) -> Self {
        Self(self.0 & !Self::CODEC | codec.id())
    }

    /// Returns the attributes with another timestamp type.
    #[must_use]
    pub const fn with_timestamp_type(self, timestamp_type: TimestampType) -> Self {
        self.with(Self::LOG_APPEND_TIME, matches!(timestamp_type, TimestampType::LogAppendTime))
    }

    /// Returns the attributes with the transaction flag set or cleared.
    #[must_use]
    pub const fn with_transactional(self, on: bool) -> Self {
        self.with(Self::TRANSACTIONAL, on)
    }

    /// Returns the attributes with the control flag set or cleared.
    #[must_use]
    pub const fn with_control(self, on: bool) -> Self {
        self.with(Self::CONTROL, on)
    }

    const fn with(self, bit: i16, on: bool) -> Self {
        Self(if on { self.0 | bit } else { self.0 & !bit })
    }
}

/// All fields before the records. Parsed as they stand: nothing here is checked against anything else, only the
/// length and the format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchHeader {
    /// Offset of the first record; the producer's is 0, the broker assigns the real one.
    pub base_offset: i64,
    /// Bytes after this field; see [`BatchHeader::batch_bytes`].
    pub batch_length: i32,
    /// The Raft term of the leader that appended it.
    pub partition_leader_epoch: i32,
    /// CRC32C of everything from byte 21 on.
    pub crc: u32,
    /// Codec and flags.
    pub attributes: Attributes,
    /// Offset of the last record, less the base offset; stays when compaction removes the record.
    pub last_offset_delta: i32,
    /// Time from which the records' timestamp deltas count, in milliseconds since 1970.
    pub base_timestamp: i64,
    /// The greatest timestamp; with log append time, the timestamp of all records.
    pub max_timestamp: i64,
    /// The idempotent or transactional producer, or -1.
    pub producer_id: i64,
    /// Epoch of that producer, or -1.
    pub producer_epoch: i16,
    /// Sequence number of the first record, or -1.
    pub base_sequence: i32,
    /// Number of records.
    pub record_count: i32,
}

/// Reads `N` bytes at a fixed place of a header whose length was checked.
fn field<const N: usize>(header: &[u8; HEADER_BYTES], at: usize) -> [u8; N] {
    *header[at..].first_chunk().expect("all fields end within the header")
}

impl BatchHeader {
    /// Reads the header at the start of `bytes`; the records need not be there.
    pub fn parse(bytes: &[u8]) -> Result<Self, BatchError> {
        // An older format is told apart even when it is shorter than a header of this one.
        match bytes.get(MAGIC_AT).map(|byte| byte.cast_signed()) {
            Some(MAGIC) | None => {}
            Some(other) => return Err(BatchError::Magic(other)),
        }
        let Some(header) = bytes.first_chunk::<HEADER_BYTES>() else {
            return Err(BatchError::Incomplete { needed: HEADER_BYTES, available: bytes.len() });
        };
        let header = Self {
            base_offset: i64::from_be_bytes(field(header, 0)),
            batch_length: i32::from_be_bytes(field(header, 8)),
            partition_leader_epoch: i32::from_be_bytes(field(header, 12)),
            crc: u32::from_be_bytes(field(header, 17)),
            attributes: Attributes(i16::from_be_bytes(field(header, 21))),
            last_offset_delta: i32::from_be_bytes(field(header, 23)),
            base_timestamp: i64::from_be_bytes(field(header, 27)),
            max_timestamp: i64::from_be_bytes(field(header, 35)),
            producer_id: i64::from_be_bytes(field(header, 43)),
            producer_epoch: i16::from_be_bytes(field(header, 51)),
            base_sequence: i32::from_be_bytes(field(header, 53)),
            record_count: i32::from_be_bytes(field(header, 57)),
        };
        let payload = usize::try_from(header.batch_length).unwrap_or(0);
        if payload + LENGTH_OVERHEAD < HEADER_BYTES {
            return Err(BatchError::Length(header.batch_length));
        }
        Ok(header)
    }

    /// Returns the header's bytes, with the checksum that the header holds.
    pub fn to_bytes(&self) -> [u8; HEADER_BYTES] {
        let mut out = [0; HEADER_BYTES];
        let mut put = |at: usize, bytes: &[u8]| out[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &self.base_offset.to_be_bytes());
        put(8, &self.batch_length.to_be_bytes());
        put(12, &self.partition_leader_epoch.to_be_bytes());
        put(MAGIC_AT, &MAGIC.to_be_bytes());
        put(17, &self.crc.to_be_bytes());
        put(21, &self.attributes.0.to_be_bytes());
        put(23, &self.last_offset_delta.to_be_bytes());
        put(27, &self.base_timestamp.to_be_bytes());
        put(35, &self.max_timestamp.to_be_bytes());
        put(43, &self.producer_id.to_be_bytes());
        put(51, &self.producer_epoch.to_be_bytes());
        put(53, &self.base_sequence.to_be_bytes());
        put(57, &self.record_count.to_be_bytes());
        out
    }

    /// Returns the bytes of the whole batch, header included; at least [`HEADER_BYTES`] for a parsed header.
    pub fn batch_bytes(&self) -> usize {
        usize::try_from(self.batch_length).map_or(0, |len| len + LENGTH_OVERHEAD)
    }

    /// Returns the offset of the last record.
    pub fn last_offset(&self) -> i64 {
        self.base_offset.saturating_add(i64::from(self.last_offset_delta))
    }

    /// Returns the offset of the record that follows this batch.
    pub fn end_offset(&self) -> i64 {
        self.last_offset().saturating_add(1)
    }

    /// Tells whether the batch comes from an idempotent or transactional producer.
    pub fn has_producer(&self) -> bool {
        self.producer_id != NO_PRODUCER_ID
    }

    /// Returns the sequence number of the last record. Sequences wrap from 2³¹−1 to 0. Returns −1 for a batch without
    /// a sequence.
    pub fn last_sequence(&self) -> i32 {
        if self.base_sequence < 0 {
            return -1;
        }
        // The top bit is the only one a wrap could set, and it is never part of a sequence.
        self.base_sequence.wrapping_add(self.last_offset_delta) & i32::MAX
    }
}

/// One whole batch: a slice of the bytes it came in, and its header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchView {
    header: BatchHeader,
    bytes: Bytes,
}

impl BatchView {
    /// Parses the first batch in `bytes` and leaves out all bytes behind it.
    pub fn parse(bytes: &Bytes) -> Result<Self, BatchError> {
        let header = BatchHeader::parse(bytes)?;
        let needed = header.batch_bytes();
        if bytes.len() < needed {
            return Err(BatchError::Incomplete { needed, available: bytes.len() });
        }
        Ok(Self { header, bytes: bytes.slice(..needed) })
    }

    /// Returns the header.
    pub fn header(&self) -> &BatchHeader {
        &self.header
    }

    /// Returns the whole batch.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Returns the records as they stand, compressed or not, borrowed.
    pub fn payload(&self) -> &[u8] {
        &self.bytes[HEADER_BYTES..]
    }

    /// Returns the records as they stand, as a slice of the batch.
    pub fn payload_bytes(&self) -> Bytes {
        self.bytes.slice(HEADER_BYTES..)
    }

    /// Tells whether the checksum fits the bytes.
    pub fn crc_matches(&self) -> bool {
        crc32c::crc32c(&self.bytes[CHECKSUMMED_FROM..]) == self.header.crc
    }
}

/// Walks over batches that stand one after another. After an error nothing more comes; an
/// [`BatchError::Incomplete`] at the end of a fetched buffer means only that the rest was not sent.
pub fn batches(bytes: Bytes) -> Batches {
    Batches { left: bytes }
}

/// See [`batches`].
#[derive(Debug, Clone)]
pub struct Batches {
    left: Bytes,
}

impl Batches {
    /// Returns the bytes that the walk has not reached.
    pub fn remaining(&self) -> &Bytes {
        &self.left
    }
}

impl Iterator for Batches {
    type Item = Result<BatchView, BatchError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.left.is_empty() {
            return None;
        }
        let parsed = BatchView::parse(&self.left);
        match &parsed {
            Ok(batch) => self.left = self.left.slice(batch.bytes.len()..),
            Err(_) => self.left = Bytes::new(),
        }
        Some(parsed)
    }
}

/// Writes the base offset into a batch or its header. The checksum does not cover it.
pub fn set_base_offset(batch: &mut [u8], base_offset: i64) {
    batch[0..8].copy_from_slice(&base_offset.to_be_bytes());
}

/// Writes the leader epoch into a batch or its header. The checksum does not cover it.
pub fn set_partition_leader_epoch(batch: &mut [u8], epoch: i32) {
    batch[12..16].copy_from_slice(&epoch.to_be_bytes());
}

/// Turns a batch (or its header alone) into one with log append time. See [`restamp`].
pub fn restamp_log_append_time(batch: &mut [u8], append_time_ms: i64) {
    restamp(batch, TimestampType::LogAppendTime, append_time_ms);
}

/// Writes timestamp type and max timestamp into a batch, or into its header alone, and renews the checksum.
///
/// The function does not read the records. The checksum of two parts is a linear function of the checksum of the
/// first part. So the function carries the difference of the changed header over the length of the records, in O(log
/// n). The stored checksum must have been right before; otherwise it stays wrong in the same way.
pub fn restamp(batch: &mut [u8], timestamp_type: TimestampType, max_timestamp: i64) {
    let mut header = BatchHeader::parse(batch).expect("only parsed batches are restamped");
    let payload_bytes = header.batch_bytes() - HEADER_BYTES;
    let before = crc32c::crc32c(&batch[CHECKSUMMED_FROM..HEADER_BYTES]);
    header.attributes = header.attributes.with_timestamp_type(timestamp_type);
    header.max_timestamp = max_timestamp;
    batch[..HEADER_BYTES].copy_from_slice(&header.to_bytes());
    let after = crc32c::crc32c(&batch[CHECKSUMMED_FROM..HEADER_BYTES]);
    let crc = checksum::shift(before ^ after, payload_bytes) ^ header.crc;
    batch[17..21].copy_from_slice(&crc.to_be_bytes());
}

#[cfg(test)]
mod tests;
