//! Reads of logs of queues, without the records that edits took away.
//!
//! Where nothing is masked, bytes go from file to socket as ever. A batch with masked records is read, and goes without
//! them. An answer without any batch would be asked for again for ever: one control batch stands for batches of which
//! nothing is left.

use bytes::{Bytes, BytesMut};
use duramen_protocol::batch::{BatchView, batches};
use duramen_protocol::records::{Retained, retain};
use duramen_storage::keys::{Masks, passing_over};
use duramen_storage::reader::ReadError;
use duramen_storage::sabotage::{self, Bug};
use duramen_storage::{Disk, Reader};

use crate::event::FetchPart;
use crate::limits::DECOMPRESSED_BYTES_MAX;

/// First batches of a part.
pub(super) enum Stretch {
    /// None of them below this offset has a masked record.
    Clear(i64),
    /// The first one has.
    Masked,
}

/// Returns how far a part can be sent as it lies in the log.
pub(super) fn stretch<D: Disk>(
    reader: &Reader<D>,
    part: &FetchPart,
    masks: &Masks,
) -> Result<Stretch, ReadError> {
    let base_of = |offset| reader.base_of(part.replica, offset, part.end);
    if masks.is_empty() || part.offset >= part.end {
        return Ok(Stretch::Clear(part.end));
    }
    // The first batch may begin before the wanted offset, and is sent whole.
    let Some(base) = base_of(part.offset)? else { return Ok(Stretch::Clear(part.end)) };
    let Some(masked) = masks.first_in(base..part.end) else { return Ok(Stretch::Clear(part.end)) };
    let Some(masked) = base_of(masked.max(part.offset))? else {
        return Ok(Stretch::Clear(part.end));
    };
    Ok(if masked > base { Stretch::Clear(masked) } else { Stretch::Masked })
}

/// Copies batches without their masked records, up to a number of bytes; the first one comes whole if it has to.
/// Returns nothing if it does not fit.
pub(super) fn shown(
    bytes: Bytes,
    masks: &Masks,
    bytes_max: usize,
    first_whole: bool,
) -> Result<Option<Bytes>, &'static str> {
    let mut out = BytesMut::new();
    let mut passed: Option<(i64, i64, i32)> = None;
    // The last batch may be cut.
    for batch in batches(bytes).map_while(Result::ok) {
        let header = *batch.header();
        let rest = match retained(&batch, masks)? {
            Retained::All => batch.bytes().clone(),
            Retained::Part(rest) => rest,
            Retained::Nothing => {
                let base = passed.map_or(header.base_offset, |(base, ..)| base);
                passed = Some((base, header.last_offset(), header.partition_leader_epoch));
                continue;
            }
        };
        if out.len() + rest.len() > bytes_max && !(out.is_empty() && first_whole) {
            break;
        }
        out.extend_from_slice(&rest);
    }
    if !out.is_empty() || sabotage::is(Bug::MaskedTailBare) {
        return Ok(Some(out.freeze()));
    }
    let Some((base, last, epoch)) = passed else { return Ok(None) };
    let batch = passing_over(base, last, epoch);
    Ok((batch.len() <= bytes_max || first_whole).then_some(batch))
}

/// Returns what is left of a batch.
pub(super) fn retained(batch: &BatchView, masks: &Masks) -> Result<Retained, &'static str> {
    let header = batch.header();
    let is_met = masks.first_in(header.base_offset..header.end_offset()).is_some();
    if !is_met || header.attributes.is_control() {
        return Ok(Retained::All);
    }
    let left = retain(batch, DECOMPRESSED_BYTES_MAX, |offset, _| !masks.hides(offset));
    left.map_err(|_| "the records of a batch cannot be read")
}
