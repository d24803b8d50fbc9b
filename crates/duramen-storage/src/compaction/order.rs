//! Orders to compact or erase a log, the means, and the reasons why that fails, as data.

use std::io;

use super::writing::WriteError;
use crate::ReplicaId;
use crate::op::Compacted;

/// Most bytes that the records of one batch may take when decompressed. The limit for appends is lower.
pub(super) const RECORD_BYTES_MAX: usize = 1 << 30;
/// An aborted transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aborted {
    /// Producer of the transaction.
    pub producer_id: i64,
    /// Offset of the first record.
    pub first_offset: i64,
    /// Offset of the transaction marker.
    pub last_offset: i64,
}

/// Order to compact one log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    /// Replica whose log is compacted.
    pub replica: ReplicaId,
    /// Offset up to which to compact, and the entry that says so.
    pub compacted: Compacted,
    /// All aborted transactions that begin below that offset.
    pub aborted: Vec<Aborted>,
    /// Size up to which a new segment takes in its neighbours, in bytes.
    pub segment_bytes: u64,
    /// Extent of the erasure before, if the log is one of queues: records go that edits took away, and no others.
    pub erases_since: Option<Compacted>,
    /// Time at which the records that an erasure takes by themselves were of no use, in milliseconds since 1970; 0 for
    /// none.
    pub expired_by_ms: i64,
}

/// Means of a compaction: none of them changes the result.
#[derive(Clone, Copy, Debug)]
pub struct Means {
    /// Secret key of the hash: no client may know it.
    pub hash_key: (u64, u64),
    /// Most keys in memory at once.
    pub keys_max: usize,
    /// Bytes that stay free on the disk.
    pub free_bytes_min: u64,
}

/// Why a log was not compacted.
#[derive(Debug, thiserror::Error)]
pub enum CompactionError {
    /// The log was trimmed, compacted or deleted meanwhile.
    #[error("the log is not what it was")]
    Changed,
    /// A checkpoint must come first.
    #[error("a segment is not settled yet")]
    Unsettled,
    /// A segment is not what was acknowledged.
    #[error("damaged bytes in {path} at {at}: {what}")]
    Damaged {
        /// The file, relative to the data directory.
        path: String,
        /// Position of the damage.
        at: u64,
        /// Description of the damage.
        what: String,
    },
    /// The rest of a segment, compressed anew, is larger than a segment may be.
    #[error("a compacted segment would be too large")]
    TooLarge,
    /// The new segments would leave too little for appends.
    #[error("there is no room for the compacted segments")]
    NoRoom,
    /// The disk failed.
    #[error("the disk failed at {path}")]
    Disk {
        /// The file, relative to the data directory.
        path: String,
        /// The disk's answer.
        #[source]
        source: io::Error,
    },
}

impl From<WriteError> for CompactionError {
    fn from(error: WriteError) -> Self {
        match error {
            WriteError::TooLarge => Self::TooLarge,
            WriteError::NoRoom => Self::NoRoom,
            WriteError::Disk { path, source } => Self::Disk { path, source },
        }
    }
}
