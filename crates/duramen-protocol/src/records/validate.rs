//! Rules that a producer's batch must satisfy before the leader appends it.
//!
//! The rules are those of Apache Kafka 4.3 for client appends, with four deliberate differences that are stricter. We
//! refuse bytes after the batch, where Kafka drops them if they are too few for a header. We check offset deltas in
//! uncompressed batches too. We refuse the delete-horizon flag, which only compaction may set. We refuse a negative
//! producer id other than -1.
//!
//! One difference is not stricter: we sum up the records' own timestamps, whatever timestamp type the batch claims.
//! The timestamp type is the broker's to set, and the broker overwrites the claim.

use bytes::Bytes;

use super::walk::Walk;
use super::{Record, RecordError, Schedule};
use crate::batch::{BatchError, BatchView, NO_PRODUCER_ID};
use crate::compression::{self, Codec};
use crate::partitioner::key_number;

/// First version of Produce that may carry zstd.
const ZSTD_FROM_VERSION: i16 = 7;

/// Limits of the topic. There are no defaults: each comes from the topic's configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Longest batch, as it stands on the wire (`max.message.bytes`).
    pub batch_bytes_max: usize,
    /// Most bytes the records may take decompressed.
    pub decompressed_bytes_max: usize,
    /// True if every record must have a key (`cleanup.policy` with `compact`).
    pub keys_required: bool,
    /// Partition that the batch is for, for [`Keys::divisor`].
    pub partition: i32,
}

/// Places of the first few records of some kind: enough to name them to a person, and never an allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Places {
    at: [i32; PLACES_MAX],
    len: usize,
}

/// Most records that [`Places`] names.
const PLACES_MAX: usize = 8;
/// Most numbers of keys that [`Keys`] names.
pub const NUMBERS_MAX: usize = 4_096;
/// Beginning of the names of headers that mean something to the broker.
const RESERVED_HEADERS: &[u8] = b"duramen-";
/// Header of a batch's first record: the position that the log or queue has to end with, or `none`.
pub const IF_LAST_HEADER: &[u8] = b"duramen-if-last";
/// Header of a batch's first record: the token that has to be the fence.
pub const FENCE_HEADER: &[u8] = b"duramen-fence";
/// Header of any record: the writer's own name for it.
pub const ID_HEADER: &str = "duramen-id";
/// The time of a record that has none.
const NO_TIMESTAMP: i64 = -1;

impl Places {
    #[inline]
    fn push(&mut self, place: i32) {
        if let Some(slot) = self.at.get_mut(self.len) {
            *slot = place;
            self.len += 1;
        }
    }

    /// Returns the places, ascending.
    pub fn as_slice(&self) -> &[i32] {
        &self.at[..self.len]
    }

    /// Tells whether there is no such record.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// Findings about the records' keys and headers, in a size that their number bounds only up to [`NUMBERS_MAX`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Keys {
    /// Greatest common divisor of the differences between each key's number ([`key_number`]) and the partition. So all
    /// keys belong into the partition exactly if the count of partitions divides it. 0 if all differences are 0.
    pub divisor: u32,
    /// Number of the first key.
    pub number: Option<i32>,
    /// Numbers of the other keys, but for some repeated ones; empty if `is_cut`.
    pub others: Vec<i32>,
    /// True if there are more numbers than [`NUMBERS_MAX`].
    pub is_cut: bool,
    /// Length of the longest key, and the offset delta of its record.
    pub longest: (usize, i32),
    /// The first records whose key is empty.
    pub empty: Places,
    /// The first records with a header of a guard ([`IF_LAST_HEADER`], [`FENCE_HEADER`]).
    pub guarded: Places,
    /// The first records with a header of a [`Schedule`] whose value is wrong.
    pub misscheduled: Places,
    /// The first records with another header whose name begins with `duramen-`, [`ID_HEADER`] aside.
    pub reserved: Places,
}

impl Keys {
    #[inline]
    fn take_in<'a>(
        &mut self,
        record: &Record<'a>,
        partition: i32,
        last_key: &mut Option<&'a [u8]>,
    ) {
        if let Some(key) = record.key
            && last_key.replace(key) != Some(key)
        {
            let number = key_number(key);
            // A divisor of 1 stays: mostly of a topic with one partition, or with another partitioner.
            if self.divisor != 1 {
                self.divisor = gcd(self.divisor, number.abs_diff(partition));
            }
            let last = self.others.last().copied().or(self.number);
            if self.number.is_none() {
                self.number = Some(number);
            } else if last != Some(number) && !self.is_cut {
                self.others.push(number);
                if self.others.len() > NUMBERS_MAX {
                    (self.others, self.is_cut) = (Vec::new(), true);
                }
            }
            if key.len() > self.longest.0 {
                self.longest = (key.len(), record.offset_delta);
            }
        }
        if record.key.is_some_and(<[u8]>::is_empty) {
            self.empty.push(record.offset_delta);
        }
        for header in record.headers {
            if header.key == IF_LAST_HEADER || header.key == FENCE_HEADER {
                self.guarded.push(record.offset_delta);
            } else if header.key.starts_with(RESERVED_HEADERS) && header.key != ID_HEADER.as_bytes()
            {
                match Schedule::default().take_in(header.key, header.value) {
                    Some(true) => {}
                    Some(false) => self.misscheduled.push(record.offset_delta),
                    None => self.reserved.push(record.offset_delta),
                }
            }
        }
    }

    /// Tells whether the batch's partition, of so many, is that of each key.
    pub fn belong(&self, partitions: i32) -> bool {
        self.divisor.is_multiple_of(partitions.max(1).unsigned_abs())
    }
}

fn gcd(mut a: u32, mut b: u32) -> u32 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// Findings of the walk over the records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordSummary {
    /// Number of records; equal to the header's count and to last offset delta + 1.
    pub count: i32,
    /// The first records without a key, if there are any.
    pub keyless: Places,
    /// Smallest timestamp but for -1, which is none. With create time, the broker compares both ends with its clock.
    pub min_timestamp: i64,
    /// Offset delta of the first record with the smallest timestamp.
    pub min_timestamp_delta: i32,
    /// The greatest timestamp. If the header says otherwise, [`restamp`](crate::batch::restamp) it, as Kafka does.
    pub max_timestamp: i64,
    /// Offset delta of the first record with the greatest timestamp.
    pub max_timestamp_delta: i32,
    /// Bytes of the records, decompressed.
    pub record_bytes: usize,
    /// Findings about keys and headers.
    pub keys: Keys,
}

/// Returns the one batch that a Produce request may carry for a partition.
///
/// Kafka 4.3 answers `INVALID_RECORD` when there is none, when it is cut short, when there are several and when
/// its format is 0 or 1; `CORRUPT_MESSAGE` when the length or the format is none at all; and
/// `UNSUPPORTED_COMPRESSION_TYPE` for zstd before version 7.
pub fn sole_batch(records: Option<&Bytes>, version: i16) -> Result<BatchView, RecordError> {
    let records = records.filter(|bytes| !bytes.is_empty()).ok_or(RecordError::NoBatch)?;
    let batch = BatchView::parse(records)?;
    let rest = records.len() - batch.bytes().len();
    if rest > 0 {
        return Err(match BatchView::parse(&records.slice(batch.bytes().len()..)) {
            Ok(_) => RecordError::SeveralBatches,
            // A rest that is not a batch is not a batch cut short either; nobody sends that on purpose.
            Err(BatchError::Incomplete { .. }) => RecordError::Invalid("bytes after the batch"),
            Err(error) => RecordError::Batch(error),
        });
    }
    if version < ZSTD_FROM_VERSION && batch.header().attributes.codec() == Ok(Codec::Zstd) {
        return Err(RecordError::Codec);
    }
    Ok(batch)
}

/// Checks a producer's batch, header, checksum and records, and sums it up.
pub fn validate(batch: &BatchView, limits: &Limits) -> Result<RecordSummary, RecordError> {
    validate_with(batch, limits, &mut Vec::new())
}

/// Does the same as [`validate`], and decompresses into a buffer that the caller uses again.
pub fn validate_with(
    batch: &BatchView,
    limits: &Limits,
    scratch: &mut Vec<u8>,
) -> Result<RecordSummary, RecordError> {
    let bytes = batch.bytes().len();
    if bytes > limits.batch_bytes_max {
        return Err(RecordError::TooLarge { bytes, limit: limits.batch_bytes_max });
    }
    if !batch.crc_matches() {
        return Err(RecordError::Checksum);
    }
    check_content(batch, limits, scratch)
}

/// Checks all of a batch but its size and its checksum, which this process has just written, and sums it up.
pub fn summarize(batch: &BatchView, limits: &Limits) -> Result<RecordSummary, RecordError> {
    check_content(batch, limits, &mut Vec::new())
}

fn check_content(
    batch: &BatchView,
    limits: &Limits,
    scratch: &mut Vec<u8>,
) -> Result<RecordSummary, RecordError> {
    check_header(batch)?;
    match batch.header().attributes.codec().map_err(|_| RecordError::Codec)? {
        Codec::None => check_records(batch, batch.payload(), limits),
        codec => {
            let limit = limits.decompressed_bytes_max;
            compression::decompress(codec, batch.payload(), limit, scratch)?;
            check_records(batch, scratch, limits)
        }
    }
}

fn check_header(batch: &BatchView) -> Result<(), RecordError> {
    let header = batch.header();
    let rules = [
        (header.base_offset == 0, "base offset of a produced batch is not 0"),
        (header.record_count > 0, "record count is not positive"),
        (
            header.last_offset_delta == header.record_count.wrapping_sub(1),
            "record count does not fit the last offset delta",
        ),
        (!header.attributes.is_control(), "clients may not write control records"),
        (!header.attributes.has_delete_horizon(), "clients may not set a delete horizon"),
        (header.producer_id >= NO_PRODUCER_ID, "negative producer id"),
        (!header.has_producer() || header.base_sequence >= 0, "a producer id needs a sequence"),
        (
            header.has_producer() || !header.attributes.is_transactional(),
            "a transactional batch needs a producer id",
        ),
    ];
    if let Some((_, why)) = rules.iter().find(|(holds, _)| !holds) {
        return Err(RecordError::Invalid(why));
    }
    let has_epoch = !header.has_producer() || header.producer_epoch >= 0;
    if has_epoch { Ok(()) } else { Err(RecordError::ProducerEpoch) }
}

fn check_records(
    batch: &BatchView,
    payload: &[u8],
    limits: &Limits,
) -> Result<RecordSummary, RecordError> {
    let header = batch.header();
    let mut summary = RecordSummary {
        count: 0,
        keyless: Places::default(),
        min_timestamp: i64::MAX,
        min_timestamp_delta: 0,
        max_timestamp: i64::MIN,
        max_timestamp_delta: 0,
        record_bytes: payload.len(),
        keys: Keys::default(),
    };
    let mut last_key = None;
    for record in Walk::new(payload, header.record_count) {
        let record = record?;
        summary.take_in(&record, header.base_timestamp, limits.keys_required)?;
        summary.keys.take_in(&record, limits.partition, &mut last_key);
    }
    Ok(summary)
}

impl RecordSummary {
    #[inline]
    fn take_in(
        &mut self,
        record: &Record<'_>,
        base_timestamp: i64,
        keys_required: bool,
    ) -> Result<(), RecordError> {
        if record.offset_delta != self.count {
            return Err(RecordError::Invalid("offset deltas are not 0, 1, 2, …"));
        }
        if record.key.is_none() {
            if keys_required {
                return Err(RecordError::Keyless { index: self.count });
            }
            self.keyless.push(self.count);
        }
        let timestamp = base_timestamp
            .checked_add(record.timestamp_delta)
            .ok_or(RecordError::Invalid("timestamp overflows"))?;
        if timestamp > self.max_timestamp {
            self.max_timestamp = timestamp;
            self.max_timestamp_delta = record.offset_delta;
        }
        if timestamp < self.min_timestamp && timestamp != NO_TIMESTAMP {
            self.min_timestamp = timestamp;
            self.min_timestamp_delta = record.offset_delta;
        }
        self.count += 1;
        Ok(())
    }
}
