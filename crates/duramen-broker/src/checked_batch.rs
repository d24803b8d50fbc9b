//! # Room card: checked batch
//!
//! Purpose:    a record batch whose bytes and records are all right, on its way to a partition.
//! Owns:       [`CheckedBatch`].
//! Interface:  its fields; [`CheckedBatch::of`].
//! Invariants: checksum, lengths and records were checked, or this process made the batch.
//! Never:      the bounds of a request's batches together (see `session`); offsets (see `partition`).
//! Tests:      those of `session` and `partition`.
//! Start at:   [`CheckedBatch`].

use bytes::{Bytes, BytesMut};
use duramen_protocol::BatchHeader;
use duramen_protocol::records::{self, RecordError, RecordSummary};

use crate::limits::DECOMPRESSED_BYTES_MAX;

/// A batch whose bytes and records are all right.
#[derive(Debug)]
pub struct CheckedBatch {
    /// All of it, owned, so that the node can write the offset into it.
    pub bytes: BytesMut,
    /// Its header.
    pub header: BatchHeader,
    /// Result of the walk over the batch's records.
    pub summary: RecordSummary,
    /// True if the producer leaves it to the partition to join the transaction.
    pub adds_itself: bool,
}

impl CheckedBatch {
    /// Checks the one batch in `bytes`, which no session has read. For a queue `partition` is the number of its name
    /// ([`key_number`](duramen_protocol::partitioner::key_number)): the node chooses the partition by it.
    pub fn of(bytes: Bytes, partition: i32) -> Result<Self, RecordError> {
        let limits = records::Limits {
            batch_bytes_max: usize::MAX,
            decompressed_bytes_max: DECOMPRESSED_BYTES_MAX,
            keys_required: false,
            partition,
        };
        let (header, summary) = {
            let view = records::sole_batch(Some(&bytes), i16::MAX)?;
            (*view.header(), records::validate(&view, &limits)?)
        };
        let bytes = bytes.try_into_mut().unwrap_or_else(|shared| BytesMut::from(&shared[..]));
        Ok(Self { bytes, header, summary, adds_itself: false })
    }
}
