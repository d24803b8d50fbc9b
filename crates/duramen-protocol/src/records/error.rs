//! Why records are refused, and Kafka's error code for each case.

use crate::batch::BatchError;
use crate::compression::CompressionError;
use crate::error_code::ErrorCode;

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
