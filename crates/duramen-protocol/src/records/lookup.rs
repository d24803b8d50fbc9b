//! Offsets by timestamp, at the precision of a record.

use super::{RecordError, Records};
use crate::batch::BatchView;

/// A record that a lookup found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    /// Offset of the record.
    pub offset: i64,
    /// Timestamp of the record.
    pub timestamp: i64,
}

/// Returns the first record of the batch whose timestamp is `timestamp` or later, at `offset_min` or later.
///
/// A caller that walks batches can leave out those whose max timestamp is smaller.
pub fn find_timestamp(
    batch: &BatchView,
    timestamp: i64,
    offset_min: i64,
    decompressed_bytes_max: usize,
) -> Result<Option<Found>, RecordError> {
    let records = Records::of(batch, decompressed_bytes_max)?;
    for record in &records {
        let record = record?;
        let found =
            Found { offset: records.offset(&record), timestamp: records.timestamp(&record) };
        if found.offset >= offset_min && found.timestamp >= timestamp {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// Returns the first record with the greatest timestamp of the batch, or none if compaction emptied the batch.
pub fn find_max_timestamp(
    batch: &BatchView,
    decompressed_bytes_max: usize,
) -> Result<Option<Found>, RecordError> {
    let records = Records::of(batch, decompressed_bytes_max)?;
    let mut best: Option<Found> = None;
    for record in &records {
        let record = record?;
        let found =
            Found { offset: records.offset(&record), timestamp: records.timestamp(&record) };
        if best.is_none_or(|best| found.timestamp > best.timestamp) {
            best = Some(found);
        }
    }
    Ok(best)
}
