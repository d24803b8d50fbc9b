//! A batch of which some records stay, as compaction leaves it.

use bytes::Bytes;

use super::{Record, RecordError, Records};
use crate::batch::{BatchView, CHECKSUMMED_FROM, HEADER_BYTES, LENGTH_OVERHEAD, TimestampType};
use crate::compression;

/// Rest of a batch after compaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Retained {
    /// All of it, byte by byte.
    All,
    /// A batch with fewer records. Its offsets, its producer, its epoch and its codec are what they were.
    Part(Bytes),
    /// Nothing.
    Nothing,
}

/// Leaves out the records that compaction drops, chosen by their offset. The records that stay keep their offset and
/// timestamp. The batch keeps its offset range and its base timestamp.
pub fn retain(
    batch: &BatchView,
    decompressed_bytes_max: usize,
    mut keep: impl FnMut(i64, &Record<'_>) -> bool,
) -> Result<Retained, RecordError> {
    let records = Records::of(batch, decompressed_bytes_max)?;
    let plain = &records.payload;
    let mut walk = records.iter();
    let mut kept = Vec::new();
    let (mut count, mut dropped, mut max_timestamp) = (0, 0, i64::MIN);
    let mut at = 0;
    while let Some(record) = walk.next() {
        let record = record?;
        let end = plain.len() - walk.bytes_left();
        if keep(records.offset(&record), &record) {
            kept.extend_from_slice(&plain[at..end]);
            max_timestamp = max_timestamp.max(records.timestamp(&record));
            count += 1;
        } else {
            dropped += 1;
        }
        at = end;
    }
    if dropped == 0 && count > 0 {
        return Ok(Retained::All);
    }
    if count == 0 {
        return Ok(Retained::Nothing);
    }
    let mut header = *batch.header();
    let codec = header.attributes.codec().map_err(|_| RecordError::Codec)?;
    let mut out = Vec::with_capacity(HEADER_BYTES + kept.len());
    out.resize(HEADER_BYTES, 0);
    compression::compress(codec, &kept, &mut out);
    header.batch_length = i32::try_from(out.len() - LENGTH_OVERHEAD)
        .map_err(|_| RecordError::Invalid("longer than 2 GiB"))?;
    header.record_count = count;
    if header.attributes.timestamp_type() == TimestampType::CreateTime {
        header.max_timestamp = max_timestamp;
    }
    out[..HEADER_BYTES].copy_from_slice(&header.to_bytes());
    let crc = crc32c::crc32c(&out[CHECKSUMMED_FROM..]);
    out[17..21].copy_from_slice(&crc.to_be_bytes());
    Ok(Retained::Part(out.into()))
}
