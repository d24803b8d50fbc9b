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
use duramen_protocol::batch::BatchView;
use duramen_protocol::records::{self, RecordError, RecordSummary};

use crate::guard::Guard;
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
    /// Conditions of the append.
    pub guard: Guard,
    /// True if the producer leaves it to the partition to join the transaction.
    pub adds_itself: bool,
}

impl CheckedBatch {
    /// Checks the one batch in `bytes`, which no session has read. For a queue `partition` is the number of its name
    /// ([`key_number`](duramen_protocol::partitioner::key_number)): the node chooses the partition by it.
    pub fn of(bytes: Bytes, partition: i32) -> Result<Self, String> {
        Self::checked(bytes, partition, records::validate)
    }

    /// Does the same with a batch that this process has just made: its checksum is right.
    pub fn made(bytes: BytesMut, partition: i32) -> Result<Self, String> {
        Self::checked(bytes.freeze(), partition, records::summarize)
    }

    fn checked(
        bytes: Bytes,
        partition: i32,
        check: fn(&BatchView, &records::Limits) -> Result<RecordSummary, RecordError>,
    ) -> Result<Self, String> {
        let limits = records::Limits {
            batch_bytes_max: usize::MAX,
            decompressed_bytes_max: DECOMPRESSED_BYTES_MAX,
            keys_required: false,
            partition,
        };
        let text = |error: RecordError| error.to_string();
        let (header, summary, guard) = {
            let view = records::sole_batch(Some(&bytes), i16::MAX).map_err(text)?;
            let summary = check(&view, &limits).map_err(text)?;
            let guard = Guard::of_headers(&view, &summary.keys)?;
            (*view.header(), summary, guard)
        };
        let bytes = bytes.try_into_mut().unwrap_or_else(|shared| BytesMut::from(&shared[..]));
        Ok(Self { bytes, header, summary, guard, adds_itself: false })
    }
}
