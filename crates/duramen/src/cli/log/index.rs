//! Offset and time indexes: entries of fixed size.

use serde::Serialize;

use super::dump::Dump;
use super::printer::Printer;
use crate::cli::consume::date;

const OFFSET_ENTRY_BYTES: usize = 8;
const TIME_ENTRY_BYTES: usize = 12;

#[derive(Serialize)]
struct OffsetEntry {
    offset: i64,
    position: u32,
}

#[derive(Serialize)]
struct TimeEntry {
    timestamp: i64,
    offset: i64,
}

/// Prints an offset index.
pub(super) fn dump_offsets(dump: &Dump, printer: &mut Printer) -> anyhow::Result<()> {
    let base = dump.base_offset();
    let mut before = None;
    dump_entries::<OFFSET_ENTRY_BYTES>(dump, printer, |printer, at, entry| {
        let (relative, position) = (u32_at(entry, 0), u32_at(entry, 4));
        let offset = base + i64::from(relative);
        if before.is_some_and(|(offset_before, position_before)| {
            offset <= offset_before || position <= position_before
        }) {
            printer.damage(at, "the entry is not greater than the one before it")?;
        }
        before = Some((offset, position));
        let line = || format!("offset {offset}  position {position}");
        Ok(!dump.wants(offset) || printer.entry(&OffsetEntry { offset, position }, line)?)
    })
}

/// Prints a time index.
pub(super) fn dump_times(dump: &Dump, printer: &mut Printer) -> anyhow::Result<()> {
    let base = dump.base_offset();
    let mut before = None;
    dump_entries::<TIME_ENTRY_BYTES>(dump, printer, |printer, at, entry| {
        let timestamp = i64::from_be_bytes(entry[..8].try_into().expect("eight bytes"));
        let offset = base + i64::from(u32_at(entry, 8));
        if before.is_some_and(|before| timestamp < before) {
            printer.damage(at, "the timestamp is less than the one before it")?;
        }
        before = Some(timestamp);
        let line = || format!("{} ({timestamp})  offset {offset}", date(timestamp));
        Ok(!dump.wants(offset) || printer.entry(&TimeEntry { timestamp, offset }, line)?)
    })
}

/// Prints entries with their positions until one is the last that the user wants.
fn dump_entries<const BYTES: usize>(
    dump: &Dump,
    printer: &mut Printer,
    mut print: impl FnMut(&mut Printer, u64, &[u8]) -> anyhow::Result<bool>,
) -> anyhow::Result<()> {
    let bytes = std::fs::read(&dump.file)?;
    for (at, entry) in (0u64..).step_by(BYTES).zip(bytes.chunks_exact(BYTES)) {
        // A file that is in use ends in zeros.
        if at > 0 && entry.iter().all(|byte| *byte == 0) {
            break;
        }
        if !print(printer, at, entry)? {
            return Ok(());
        }
    }
    rest(printer, bytes.len(), BYTES)
}

fn rest(printer: &mut Printer, bytes: usize, entry_bytes: usize) -> anyhow::Result<()> {
    let rest = bytes % entry_bytes;
    if rest == 0 {
        return Ok(());
    }
    printer.damage((bytes - rest) as u64, &format!("{rest} bytes are no whole entry"))
}

fn u32_at(entry: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(entry[at..at + 4].try_into().expect("four bytes"))
}
