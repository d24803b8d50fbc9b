//! A batch made anew of the bytes of its records: as compaction leaves it, or in another codec.

use bytes::Bytes;

use super::{Record, RecordError, Records};
use crate::batch::{
    BatchHeader, BatchView, CHECKSUMMED_FROM, HEADER_BYTES, LENGTH_OVERHEAD, TimestampType,
};
use crate::compression::{self, Compression};

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
    header.record_count = count;
    if header.attributes.timestamp_type() == TimestampType::CreateTime {
        header.max_timestamp = max_timestamp;
    }
    let part = seal(header, codec.into(), &kept)?;
    Ok(Retained::Part(part.into()))
}

/// Returns a batch of the same records in another codec: all else in its header, and each of its records, is what it
/// was. `plain` are its records, decompressed. A control batch has none to gain from it, and is refused.
pub fn recompress(
    batch: &BatchView,
    plain: &[u8],
    compression: Compression,
) -> Result<Bytes, RecordError> {
    let header = *batch.header();
    if header.attributes.is_control() {
        return Err(RecordError::Invalid("control records are not compressed"));
    }
    Ok(seal(header, compression, plain)?.into())
}

/// Builds a batch of a header and its records, with the length, the codec and the checksum that they then have.
fn seal(
    mut header: BatchHeader,
    compression: Compression,
    plain: &[u8],
) -> Result<Vec<u8>, RecordError> {
    let mut out = Vec::with_capacity(HEADER_BYTES + plain.len());
    out.resize(HEADER_BYTES, 0);
    compression::compress_at(compression, plain, &mut out);
    header.attributes = header.attributes.with_codec(compression.codec);
    header.batch_length = i32::try_from(out.len() - LENGTH_OVERHEAD)
        .map_err(|_| RecordError::Invalid("longer than 2 GiB"))?;
    out[..HEADER_BYTES].copy_from_slice(&header.to_bytes());
    let crc = crc32c::crc32c(&out[CHECKSUMMED_FROM..]);
    out[17..21].copy_from_slice(&crc.to_be_bytes());
    Ok(out)
}
