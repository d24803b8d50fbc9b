//! # Room card: records
//!
//! Purpose:    the records inside a batch: reading them, checking a producer's batch, building new ones.
//! Owns:       [`Record`], [`Records`], [`validate`] and [`sole_batch`] (what a produce must satisfy),
//!             [`BatchBuilder`], [`retain`] (what compaction leaves), lookup by timestamp.
//! Interface:  [`sole_batch`] then [`validate`] on produce; [`Records::of`] to read; [`find_timestamp`].
//! Invariants: records of an uncompressed batch are read in place, without copies and without allocation; those of
//!             a compressed one after one bounded decompression.
//! Never:      offsets assigned, producer sequences compared, clocks: those are the partition's.
//! Tests:      `records/tests.rs`; `fuzz/` target `batch_reader`.
//! Start at:   [`validate`].

use bytes::Bytes;

use crate::batch::{BatchView, TimestampType};
use crate::compression::{self, Codec, CompressionError};
use crate::error_code::ErrorCode;

mod builder;
mod lookup;
mod retain;
mod validate;
mod walk;

pub use builder::{BatchBuilder, NewRecord};
pub use lookup::{Found, find_max_timestamp, find_timestamp};
pub use retain::{Retained, retain};
pub use validate::{Limits, Places, RecordSummary, sole_batch, validate, validate_with};
pub use walk::{Header, HeaderWalk, Headers, Record, Walk};

use crate::batch::BatchError;

/// Why records cannot be read or are refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// There is no whole batch at all, not even the start of a second one, or not format 2.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// The produce carries no batch for the partition.
    #[error("no record batch for the partition")]
    NoBatch,
    /// The produce carries more than one batch for the partition.
    #[error("more than one record batch for the partition")]
    SeveralBatches,
    /// The checksum does not fit.
    #[error("checksum does not match")]
    Checksum,
    /// The batch is longer than the topic allows.
    #[error("batch of {bytes} bytes is longer than {limit}")]
    TooLarge {
        /// Length of the batch, in bytes.
        bytes: usize,
        /// The topic's limit.
        limit: usize,
    },
    /// The codec is unknown, or too new for the request's version.
    #[error("unsupported compression type")]
    Codec,
    /// The records do not decompress.
    #[error(transparent)]
    Compression(#[from] CompressionError),
    /// The batch breaks a rule of the format or one for producers.
    #[error("{0}")]
    Invalid(&'static str),
    /// The batch names a producer, and an epoch below the first one.
    #[error("a producer's epoch is not negative")]
    ProducerEpoch,
    /// A record without a key where keys are required.
    #[error("record {index} has no key")]
    Keyless {
        /// Place of the record in the batch.
        index: i32,
    },
}

impl RecordError {
    /// Returns the error code of Kafka 4.3 for this case.
    pub fn code(&self) -> ErrorCode {
        match self {
            // Kafka finds no batch in bytes that end within the first one, and says so.
            Self::Batch(BatchError::Incomplete { .. } | BatchError::Magic(0 | 1))
            | Self::NoBatch
            | Self::SeveralBatches
            | Self::Invalid(_)
            | Self::Compression(CompressionError::WindowTooLarge { .. })
            | Self::Keyless { .. } => ErrorCode::InvalidRecord,
            Self::Batch(BatchError::Length(_) | BatchError::Magic(_))
            | Self::Checksum
            | Self::Compression(CompressionError::Corrupt { .. }) => ErrorCode::CorruptMessage,
            Self::TooLarge { .. } | Self::Compression(CompressionError::LimitExceeded { .. }) => {
                ErrorCode::MessageTooLarge
            }
            Self::Codec => ErrorCode::UnsupportedCompressionType,
            Self::ProducerEpoch => ErrorCode::InvalidProducerEpoch,
        }
    }
}

/// The records of one batch, ready to be walked over as often as needed.
#[derive(Debug, Clone)]
pub struct Records {
    payload: Bytes,
    count: i32,
    base_offset: i64,
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
            base_timestamp: header.base_timestamp,
            append_time,
        })
    }

    /// Returns the records in order. After an error nothing more comes.
    pub fn iter(&self) -> Walk<'_> {
        Walk::new(&self.payload, self.count)
    }

    /// Returns a record's offset in the log.
    pub fn offset(&self, record: &Record<'_>) -> i64 {
        self.base_offset.saturating_add(i64::from(record.offset_delta))
    }

    /// Returns a record's timestamp, as consumers see it.
    pub fn timestamp(&self, record: &Record<'_>) -> i64 {
        self.append_time
            .unwrap_or_else(|| self.base_timestamp.saturating_add(record.timestamp_delta))
    }

    /// Returns a key or value as an owned slice that shares the memory of the batch.
    pub fn share(&self, part: &[u8]) -> Bytes {
        self.payload.slice_ref(part)
    }
}

impl<'a> IntoIterator for &'a Records {
    type Item = Result<Record<'a>, RecordError>;
    type IntoIter = Walk<'a>;

    fn into_iter(self) -> Walk<'a> {
        self.iter()
    }
}

#[cfg(test)]
mod golden;
#[cfg(test)]
mod tests;
