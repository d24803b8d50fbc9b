//! Extents of the journal: rounds, and the records in them.

use bytes::{Buf, Bytes, TryGetError};
use duramen_storage::journal::{Round, rounds_of};
use serde::Serialize;

use super::{Dump, Printer};

/// Kinds of record, by number (`docs/format.md`, "Journal records").
const KINDS: [&str; 12] = [
    "unknown",
    "create",
    "append",
    "truncate",
    "trim",
    "hard state",
    "conf",
    "image",
    "state",
    "delete",
    "gone",
    "synced",
];

#[derive(Serialize)]
struct Entry {
    extent: u64,
    round: u64,
    position: u64,
    tail: u64,
    directory: String,
    body_bytes: u32,
    whole: bool,
}

#[derive(Serialize)]
struct Record {
    kind: &'static str,
    replica: u64,
    bytes: usize,
}

/// Prints the rounds of an extent. Files are used again: rounds of an earlier use may follow.
pub(super) fn dump(dump: &Dump, printer: &mut Printer) -> anyhow::Result<()> {
    let bytes = Bytes::from(std::fs::read(&dump.file)?);
    for round in rounds_of(0, &bytes) {
        let header = round.header;
        let entry = Entry {
            extent: header.extent,
            round: header.lsn,
            position: header.position,
            tail: header.tail,
            directory: format!("{:016x}", header.directory),
            body_bytes: header.body_bytes,
            whole: round.body.is_some(),
        };
        let line = || {
            let Entry { extent, round, position, tail, body_bytes, .. } = &entry;
            let torn = if entry.whole { "" } else { "  TORN" };
            format!(
                "extent {extent}  round {round}  position {position}  {body_bytes} bytes  \
                 tail {tail}{torn}"
            )
        };
        let more = printer.entry(&entry, line)?;
        if dump.records {
            dump_records(printer, &round)?;
        }
        if !more {
            break;
        }
    }
    Ok(())
}

fn dump_records(printer: &mut Printer, round: &Round) -> anyhow::Result<()> {
    let Some(mut body) = round.body.clone() else { return Ok(()) };
    while !body.is_empty() {
        let Ok(record) = Record::read(&mut body) else {
            return printer.damage(round.header.position, "a record ends early");
        };
        let Record { kind, replica, bytes } = &record;
        printer.detail(&record, || format!("  {kind}  replica {replica}  {bytes} bytes"))?;
    }
    Ok(())
}

impl Record {
    /// Reads kind and replica, and passes over the rest.
    fn read(body: &mut Bytes) -> Result<Self, TryGetError> {
        let kind = usize::from(body.try_get_u8()?);
        let bytes = body.try_get_u32()? as usize;
        let mut rest = body.split_to(bytes.min(body.len()));
        let replica = rest.try_get_u64()?;
        Ok(Self { kind: KINDS.get(kind).copied().unwrap_or(KINDS[0]), replica, bytes })
    }
}
