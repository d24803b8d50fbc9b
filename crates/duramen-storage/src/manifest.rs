//! # Room card: manifest
//!
//! Purpose:    node-local facts that do not change while the directory lives.
//! Owns:       the file `manifest`.
//! Interface:  [`write`], [`read`].
//! Invariants: it is written once, when the directory is formatted, after the journal's first
//!             round is durable: a directory with a manifest is a whole one.
//! Never:      topics, configs, or anything else that the metadata group holds.
//! Tests:      below.
//! Start at:   [`write`].

use std::fmt::Write as _;

use crate::Disk;
use crate::format::{DIRECTORY_VERSION, MANIFEST, ROUND_ALIGN};
use crate::journal::disk_error;
use crate::storage::{Error, Facts};

/// Extents are read whole.
const EXTENT_BYTES_MAX: u64 = 1 << 30;

/// A text file, for people: `key=value` lines and their CRC.
fn render(facts: &Facts, extent_bytes: u64) -> String {
    let mut text = format!(
        "version={DIRECTORY_VERSION}\ncluster.id={}\nbroker.id={}\ndirectory.id={}\n\
         journal.extent.bytes={extent_bytes}\n",
        hex(&facts.cluster_id),
        facts.broker_id,
        hex(&facts.directory_id),
    );
    let crc = crc32c::crc32c(text.as_bytes());
    writeln!(text, "crc32c={crc:08x}").expect("writing to a string cannot fail");
    text
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("writing to a string cannot fail");
        text
    })
}

fn unhex(text: &str) -> Option<[u8; 16]> {
    let mut out = [0; 16];
    if text.len() != 32 || !text.is_ascii() {
        return None;
    }
    for (at, byte) in out.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[at * 2..at * 2 + 2], 16).ok()?;
    }
    Some(out)
}

/// Writes the manifest and syncs it, so that it is there whole or not at all.
pub(crate) fn write<D: Disk>(disk: &D, facts: &Facts, extent_bytes: u64) -> Result<(), Error> {
    let temporary = "manifest.new";
    let write = || {
        let _ = disk.remove_file(temporary); // left by a crash, or not there
        let file = disk.create(temporary)?;
        disk.write_at(&file, &[render(facts, extent_bytes).as_bytes()], 0)?;
        disk.sync(&file)?;
        disk.rename(temporary, MANIFEST)?;
        disk.sync_dir("")
    };
    write().map_err(|source| disk_error("writing", MANIFEST, source))
}

/// Reads the manifest: the facts and the size of the journal's extents.
pub(crate) fn read<D: Disk>(disk: &D) -> Result<(Facts, u64), Error> {
    let read = || {
        let file = disk.open(MANIFEST)?;
        let len = usize::try_from(disk.len(&file)?.min(65536)).unwrap_or(0);
        disk.read_medium(&file, 0, len)
    };
    let bytes = read().map_err(|source| disk_error("reading", MANIFEST, source))?;
    parse(&bytes)
}

fn parse(bytes: &[u8]) -> Result<(Facts, u64), Error> {
    let damaged = |what: &str| Error::Damaged { path: MANIFEST.into(), at: 0, what: what.into() };
    let text = std::str::from_utf8(bytes).map_err(|_| damaged("it is not text"))?;
    let (body, crc) = text.rsplit_once("crc32c=").ok_or_else(|| damaged("its CRC is missing"))?;
    if u32::from_str_radix(crc.trim_end(), 16) != Ok(crc32c::crc32c(body.as_bytes())) {
        return Err(damaged("its CRC does not match"));
    }
    let value = |key: &str| {
        body.lines()
            .find_map(|line| line.strip_prefix(key)?.strip_prefix('='))
            .ok_or_else(|| damaged("a line is missing"))
    };
    if value("version")? != DIRECTORY_VERSION.to_string() {
        return Err(Error::Foreign(format!(
            "the data directory has format version {}, and this build knows only {}; \
             use the version of duramen that wrote it",
            value("version")?,
            DIRECTORY_VERSION
        )));
    }
    let id = |key| unhex(value(key)?).ok_or_else(|| damaged("an id is malformed"));
    let facts = Facts {
        cluster_id: id("cluster.id")?,
        broker_id: value("broker.id")?.parse().map_err(|_| damaged("broker.id is no number"))?,
        directory_id: id("directory.id")?,
    };
    let extent_bytes = value("journal.extent.bytes")?
        .parse()
        .map_err(|_| damaged("journal.extent.bytes is no number"))?;
    if !(1..=EXTENT_BYTES_MAX).contains(&extent_bytes) || extent_bytes % ROUND_ALIGN as u64 != 0 {
        return Err(damaged("journal.extent.bytes is no size of an extent"));
    }
    Ok((facts, extent_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> Facts {
        Facts { cluster_id: [1; 16], broker_id: 3, directory_id: [0xab; 16] }
    }

    #[test]
    fn a_manifest_reads_back() {
        let text = render(&facts(), 4096);
        assert_eq!(parse(text.as_bytes()).expect("it is good"), (facts(), 4096));
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let text = render(&facts(), 4096).into_bytes();
        for bit in 0..text.len() * 8 {
            let mut bad = text.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            let same_number = parse(&bad).is_ok_and(|got| got == (facts(), 4096));
            assert!(parse(&bad).is_err() || same_number, "bit {bit} changed a fact");
        }
    }

    #[test]
    fn a_newer_format_is_refused_by_name() {
        let mut text = render(&facts(), 4096).replace("version=1", "version=2");
        text.truncate(text.find("crc32c").expect("it has one"));
        let crc = crc32c::crc32c(text.as_bytes());
        let text = format!("{text}crc32c={crc:08x}\n");
        assert!(matches!(parse(text.as_bytes()), Err(Error::Foreign(_))));
    }
}
