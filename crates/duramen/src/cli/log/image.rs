//! Images too large for the journal: snapshots of a log's view after an index.

use anyhow::Context;
use bytes::Bytes;
use duramen_broker::describe;
use duramen_storage::ReplicaId;
use serde::Serialize;

use super::dump::Dump;
use super::printer::Printer;
use crate::cli::screen;

#[derive(Serialize)]
struct Entry {
    /// Absent where the file's name has no index.
    index: Option<u64>,
    bytes: usize,
    /// Checksum that the journal holds of this file.
    crc: u32,
    facts: usize,
}

/// Prints an image: of the metadata log, or of a partition's producers, as its directory says.
pub(super) fn dump(dump: &Dump, printer: &mut Printer) -> anyhow::Result<()> {
    let bytes = Bytes::from(std::fs::read(&dump.file)?);
    let path = std::path::absolute(&dump.file).context("where is that?")?;
    let directory = path.parent().and_then(|parent| parent.file_name());
    let is_metadata = directory.is_some_and(|name| name == "__cluster_metadata-0");
    let replica = if is_metadata { describe::METADATA } else { ReplicaId(u64::MAX) };
    let Some(facts) = describe::image(replica, &bytes) else {
        return printer.damage(0, "the image cannot be read");
    };
    let name = dump.file.file_name().and_then(|name| name.to_str());
    let index = name.and_then(|name| name.strip_prefix("image-")?.parse().ok());
    let (length, crc) = (bytes.len(), crc32c::crc32c(&bytes));
    let entry = Entry { index, bytes: length, crc, facts: facts.len() };
    let line = || {
        let after = index.map_or_else(String::new, |index| format!("image after index {index}  "));
        let facts = screen::count(entry.facts, "fact");
        format!("{after}{}  crc {crc}  {facts}", screen::count(length, "byte"))
    };
    let mut more = printer.entry(&entry, line)?;
    if !dump.records {
        return Ok(());
    }
    for fact in facts {
        if !more {
            break;
        }
        more = printer.entry(&fact, || format!("  {fact}"))?;
    }
    Ok(())
}
