//! # Room card: checked batch
//!
//! Purpose:    a record batch whose bytes and records are all right, on its way to a partition.
//! Owns:       [`CheckedBatch`]; [`BatchIds`], by which a client names one that it sent before.
//! Interface:  its fields; [`CheckedBatch::of`].
//! Invariants: checksum, lengths and records were checked, or this process made the batch.
//! Never:      the bounds of a request's batches together (see `session`); offsets (see `partition`).
//! Tests:      those of `session` and `partition`.
//! Start at:   [`CheckedBatch`].

use std::hash::{DefaultHasher, Hash, Hasher};

use bytes::{Bytes, BytesMut};
use duramen_protocol::BatchHeader;
use duramen_protocol::batch::BatchView;
use duramen_protocol::compression::{self, Codec};
use duramen_protocol::records::{
    self, BatchBuilder, NewRecord, Record, RecordError, RecordSummary, Records,
};
use duramen_storage::keys::{CUTS_AFTER_HEADER, FACT_HEADER, REPLACES_HEADER};

use crate::guard::Guard;
use crate::limits::DECOMPRESSED_BYTES_MAX;
use crate::recompression::{Made, Target};

/// Returns a hash of a record's value and headers, but for headers that the leader adds.
pub(crate) fn digest_of(record: &Record<'_>) -> u64 {
    const ADDED: [&str; 3] = [FACT_HEADER, REPLACES_HEADER, CUTS_AFTER_HEADER];
    let mut hasher = DefaultHasher::new();
    record.value.hash(&mut hasher);
    let is_own = |name: &[u8]| ADDED.iter().all(|added| name != added.as_bytes());
    for header in record.headers.into_iter().filter(|it| is_own(it.key)) {
        (header.key, header.value).hash(&mut hasher);
    }
    hasher.finish()
}

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
    /// Bytes of headers that the leader added. They do not count against `max.message.bytes`.
    pub added_bytes: usize,
    /// Greatest size that the batch had as it came, or would have in its topic's codec, in bytes: `max.message.bytes`
    /// bounds both. 0 if the batch is as it came.
    pub greatest_bytes: usize,
    /// True if the producer leaves it to the partition to join the transaction.
    pub adds_itself: bool,
}

/// Name of a batch: its producer and its sequences, which may begin again at 0 in between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchIds {
    /// The producer.
    pub producer_id: i64,
    /// Its epoch.
    pub producer_epoch: i16,
    /// Sequence of the first record.
    pub first_sequence: i32,
    /// Sequence of the last record.
    pub last_sequence: i32,
}

impl BatchIds {
    /// Returns the name of a batch with a producer.
    pub(crate) fn of(header: &BatchHeader) -> Self {
        let steps = header.last_offset_delta & i32::MAX;
        let first = header.base_sequence;
        Self {
            producer_id: header.producer_id,
            producer_epoch: header.producer_epoch,
            first_sequence: first,
            last_sequence: first.wrapping_add(steps) & i32::MAX,
        }
    }

    /// Tells whether a batch can have the name.
    pub(crate) fn is_sound(self) -> bool {
        self.producer_id >= 0
            && self.producer_epoch >= 0
            && self.first_sequence >= 0
            && self.last_sequence >= 0
    }

    /// Returns the number of records of a batch with a sound name.
    pub(crate) fn count(self) -> u32 {
        let behind_first = self.last_sequence.wrapping_sub(self.first_sequence);
        (behind_first.cast_unsigned() & i32::MAX.cast_unsigned()) + 1
    }
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

    /// Puts it into the codec of its topic, which may take long. The batch stays as it is if it would be too large: so
    /// the node refuses it.
    pub fn in_codec(self, target: &Target) -> Result<Self, String> {
        if !target.is_due(&self.header) {
            return Ok(self);
        }
        let text = |error: RecordError| error.to_string();
        let came = self.bytes.len();
        let bytes = self.bytes.freeze();
        let (made, header) = {
            let view = BatchView::parse(&bytes).map_err(|error| error.to_string())?;
            let codec = self.header.attributes.codec().map_err(|_| text(RecordError::Codec))?;
            let made = match codec {
                Codec::None => target.make(&view, view.payload()),
                codec => {
                    let mut plain = Vec::new();
                    let limit = DECOMPRESSED_BYTES_MAX;
                    compression::decompress(codec, view.payload(), limit, &mut plain)
                        .map_err(|error| error.to_string())?;
                    target.make(&view, &plain)
                }
            };
            (made.map_err(text)?, *view.header())
        };
        let (bytes, header, greatest_bytes) = match made {
            Made::TooLarge(bytes_then) => (bytes, header, bytes_then),
            Made::Anew(anew) => {
                let header = BatchHeader::parse(&anew).map_err(|error| error.to_string())?;
                let greatest = came.max(anew.len());
                (anew, header, greatest)
            }
        };
        let bytes = bytes.try_into_mut().unwrap_or_else(|shared| BytesMut::from(&shared[..]));
        Ok(Self { bytes, header, greatest_bytes, ..self })
    }

    /// Adds headers to its first record. All its bytes are made anew, and the summary stays that of the client's
    /// records.
    pub(crate) fn with_headers(self, added: &[(&str, &[u8])]) -> Result<Self, String> {
        let text = |error: RecordError| error.to_string();
        let own_bytes = self.bytes.len();
        let view = BatchView::parse(&self.bytes.freeze()).map_err(|error| error.to_string())?;
        let records = Records::of(&view, DECOMPRESSED_BYTES_MAX).map_err(text)?;
        let extra: usize = added.iter().map(|(name, value)| name.len() + value.len() + 16).sum();
        let mut builder = BatchBuilder::new().room(self.summary.record_bytes + extra);
        for (at, record) in records.iter().enumerate() {
            let record = record.map_err(text)?;
            let mut headers = Vec::new();
            for header in record.headers {
                let name = str::from_utf8(header.key).map_err(|error| error.to_string())?;
                headers.push((name, header.value));
            }
            if at == 0 {
                headers.extend(added.iter().map(|(name, value)| (*name, Some(*value))));
            }
            let timestamp = records.timestamp(&record);
            let (key, value) = (record.key, record.value);
            let record = NewRecord { timestamp, key, value, headers: &headers };
            builder.push(&record).map_err(text)?;
        }
        let bytes = builder.finish().map_err(text)?;
        let header = BatchHeader::parse(&bytes).map_err(|error| error.to_string())?;
        // A client's batch may be compressed.
        let added_bytes = bytes.len().saturating_sub(own_bytes);
        Ok(Self { bytes, header, added_bytes, ..self })
    }

    /// Returns a hash of each record's value and headers.
    pub(crate) fn digests(&self) -> Vec<u64> {
        let bytes = Bytes::copy_from_slice(&self.bytes);
        let records = BatchView::parse(&bytes).ok();
        let records = records.and_then(|view| Records::of(&view, DECOMPRESSED_BYTES_MAX).ok());
        let records = records.expect("the batch was checked");
        records.iter().map(|record| digest_of(&record.expect("the batch was checked"))).collect()
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
        Ok(Self {
            bytes,
            header,
            summary,
            guard,
            added_bytes: 0,
            greatest_bytes: 0,
            adds_itself: false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::BatchIds;

    #[test]
    fn sequences_of_a_batch_may_begin_again() {
        let count = |first_sequence, last_sequence| {
            let ids = BatchIds { producer_id: 7, producer_epoch: 0, first_sequence, last_sequence };
            assert!(ids.is_sound());
            ids.count()
        };
        assert_eq!((count(4, 4), count(4, 6), count(0, i32::MAX)), (1, 3, 1 << 31));
        assert_eq!((count(i32::MAX, 0), count(i32::MAX - 1, 1)), (2, 4));
    }
}
