//! Reads of records that workers have leases of.

use std::collections::BTreeMap;

use duramen_protocol::batch::BatchView;
use duramen_protocol::records::{Record, Records};
use duramen_storage::keys::REPLACES_HEADER;
use duramen_storage::{Disk, Reader};

use super::queues::{QueueError, batch_at};
use crate::limits::DECOMPRESSED_BYTES_MAX;
use crate::native::{LeasedPart, Position};

/// Reads leased records, in the order of the part. A record that is gone, or taken away by an edit, is `None`.
pub fn leased<D: Disk, T>(
    reader: &Reader<D>,
    part: &LeasedPart,
    mut make: impl FnMut(&Records, &Record<'_>, Position) -> T,
) -> Result<Vec<Option<T>>, QueueError<()>> {
    let masks = reader.masks(part.replica, part.is_of_queues).map_err(QueueError::Log)?;
    let mut places: BTreeMap<i64, usize> = BTreeMap::new();
    for (place, (offset, _)) in part.records.iter().enumerate() {
        if !masks.hides(*offset) {
            places.insert(*offset, place);
        }
    }
    let mut found: Vec<Option<T>> = part.records.iter().map(|_| None).collect();
    while let Some((&first, _)) = places.first_key_value() {
        let Some(batch) = batch_at(reader, part.replica, (first, part.end))? else {
            places.remove(&first);
            continue;
        };
        take_records(&batch, &mut places, |place, records, record, position| {
            found[place] = Some(make(records, record, position));
        })?;
        // A compacted batch may lack the record that it once had.
        places.retain(|offset, _| *offset >= batch.header().end_offset());
    }
    Ok(found)
}

fn take_records(
    batch: &BatchView,
    places: &mut BTreeMap<i64, usize>,
    mut take: impl FnMut(usize, &Records, &Record<'_>, Position),
) -> Result<(), QueueError<()>> {
    let header = batch.header();
    let unreadable = |_| QueueError::Unreadable(header.base_offset);
    let records = Records::of(batch, DECOMPRESSED_BYTES_MAX).map_err(unreadable)?;
    for record in &records {
        let record = record.map_err(unreadable)?;
        let offset = records.offset(&record);
        let Some(place) = places.remove(&offset) else { continue };
        let (term, entry) = (header.partition_leader_epoch, header.base_offset);
        let own = Position { term, entry, offset };
        let replaced = record.headers.into_iter().find(|it| it.key == REPLACES_HEADER.as_bytes());
        let replaced = replaced.and_then(|it| str::from_utf8(it.value?).ok()?.parse().ok());
        take(place, &records, &record, replaced.unwrap_or(own));
    }
    Ok(())
}
