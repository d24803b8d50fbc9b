//! # Room card: set aside
//!
//! Purpose:    keep bytes that a start finds and may not use: no start removes whole batches.
//! Owns:       the folder `set-aside`; the names in a data directory that are ours.
//! Interface:  [`SetAside`], [`is_ours`], [`holds_batches`].
//! Invariants: only an operator removes anything from the folder. Each start has directories of its own in it, with the
//!             number of its first round in their names.
//! Never:      the set of replicas (see `recovery`).
//! Tests:      below; `duramen-sim`, `tests/promises/tampering.rs` and scenario `storage`, which damages files between
//!             two starts.
//! Start at:   [`SetAside::keep_dir`].

use std::io;

use crate::descriptor::{BATCH_HEADER_BYTES, Descriptor, UNCOVERED_BYTES};
use crate::disk::Disk;
use crate::format::{SET_ASIDE, stem_of_dir, table_range};
use crate::reserve::Reserve;

/// Files and directories that one start sets aside.
#[derive(Debug)]
pub(crate) struct SetAside {
    /// The first round after this start: part of the names.
    lsn: u64,
    /// Files and directories kept by this start.
    pub(crate) count: u64,
}

impl SetAside {
    pub(crate) fn new(lsn: u64) -> Self {
        Self { lsn, count: 0 }
    }

    /// Moves a whole directory into the folder, and returns its new name.
    pub(crate) fn keep_dir<D: Disk>(
        &mut self,
        disk: &D,
        reserve: &mut Reserve,
        name: &str,
    ) -> io::Result<String> {
        make_folder(disk, reserve)?;
        let taken = disk.list(SET_ASIDE)?;
        let stem = stem_of_dir(name);
        let mut to = format!("{stem}.{}", self.lsn);
        // An interrupted start may have kept another directory of the name.
        for again in 2.. {
            if !taken.contains(&to) {
                break;
            }
            to = format!("{stem}.{}.{again}", self.lsn);
        }
        let to = format!("{SET_ASIDE}/{to}");
        reserve.when_full(disk, || disk.rename(name, &to))?;
        self.count += 1;
        Ok(to)
    }

    /// Moves one file of a replica's directory into the folder, and returns its new name.
    pub(crate) fn keep_file<D: Disk>(
        &mut self,
        disk: &D,
        reserve: &mut Reserve,
        (dir, name): (&str, &str),
    ) -> io::Result<String> {
        let to = format!("{}/{name}", self.dir_of(disk, reserve, dir)?);
        reserve.when_full(disk, || disk.rename(&format!("{dir}/{name}"), &to))?;
        self.count += 1;
        Ok(to)
    }

    /// Writes bytes that are about to be cut into a file of the folder, synced, and returns its name.
    pub(crate) fn keep_bytes<D: Disk>(
        &mut self,
        disk: &D,
        reserve: &mut Reserve,
        (dir, name): (&str, &str),
        bytes: &[u8],
    ) -> io::Result<String> {
        let folder = self.dir_of(disk, reserve, dir)?;
        let to = format!("{folder}/{name}");
        let file = reserve.when_full(disk, || match disk.create(&to) {
            // An interrupted start has kept the same bytes.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => disk.open(&to),
            made => made,
        })?;
        reserve.when_full(disk, || disk.write_at(&file, &[bytes], 0))?;
        disk.sync(&file)?;
        disk.sync_dir(&folder)?;
        disk.sync_dir(SET_ASIDE)?;
        self.count += 1;
        Ok(to)
    }

    /// Makes what was moved durable, before anything takes its place.
    pub(crate) fn sync<D: Disk>(&self, disk: &D) -> io::Result<()> {
        if self.count == 0 { Ok(()) } else { disk.sync_dir(SET_ASIDE) }
    }

    fn dir_of<D: Disk>(&self, disk: &D, reserve: &mut Reserve, dir: &str) -> io::Result<String> {
        make_folder(disk, reserve)?;
        let to = format!("{SET_ASIDE}/{}.{}", stem_of_dir(dir), self.lsn);
        reserve.when_full(disk, || disk.create_dir(&to))?;
        Ok(to)
    }
}

fn make_folder<D: Disk>(disk: &D, reserve: &mut Reserve) -> io::Result<()> {
    reserve.when_full(disk, || disk.create_dir(SET_ASIDE))
}

/// Tells whether storage gives names like this one to files in a replica's directory.
pub(crate) fn is_ours(name: &str) -> bool {
    if let Some(index) = name.strip_prefix("image-") {
        return is_number(index);
    }
    if table_range(name.strip_suffix(".new").unwrap_or(name)).is_some() {
        return true;
    }
    let Some((stem, extension)) = name.rsplit_once('.') else { return false };
    let stem = stem.split_once('.').map_or(stem, |(base, _)| base);
    is_number(stem) && ["log", "index", "timeindex", "mending"].contains(&extension)
}

/// Tells whether the text is twenty digits, as offsets and indexes are written.
fn is_number(text: &str) -> bool {
    text.len() == 20 && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Returns the base offset of a segment's file as it was appended. Returns nothing for a compacted or fed segment.
pub(crate) fn appended_segment(name: &str) -> Option<i64> {
    let base = name.strip_suffix(".log")?;
    if is_number(base) { base.parse().ok() } else { None }
}

/// Returns the batch at a position of a segment's file, if it is whole by its own length and checksum.
pub(crate) fn batch_at<D: Disk>(
    disk: &D,
    file: &D::File,
    at: u64,
) -> io::Result<Option<Descriptor>> {
    let header = disk.read_medium(file, at, BATCH_HEADER_BYTES)?;
    let Ok(batch) = Descriptor::of_batch(&header, false) else { return Ok(None) };
    if disk.len(file)? < at + u64::from(batch.length) {
        return Ok(None);
    }
    let bytes = disk.read_medium(file, at, batch.length as usize)?;
    let is_whole = bytes.len() == batch.length as usize
        && crc32c::crc32c(&bytes[UNCOVERED_BYTES..]) == batch.batch_crc;
    Ok(is_whole.then_some(batch))
}

/// Tells whether any of a directory's segments begins with a whole batch.
pub(crate) fn holds_batches<D: Disk>(disk: &D, dir: &str, names: &[String]) -> io::Result<bool> {
    let segments = names.iter().filter(|name| name.strip_suffix(".log").is_some());
    for name in segments {
        let file = disk.open(&format!("{dir}/{name}"))?;
        if batch_at(disk, &file, 0)?.is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_that_storage_gives_are_ours() {
        let ours = [
            "00000000000000000000.log",
            "00000000000000004711.index",
            "00000000000000004711.timeindex",
            "00000000000000005000.7-12.log",
            "00000000000000005000.7-12-given.log",
            "00000000000000005000.7-12.pass0.index",
            "00000000000000004711.mending",
            "image-00000000000000000815",
            "00000000000000004711-00000000000000004815.keys",
            "00000000000000004711-00000000000000004815.keys.new",
        ];
        let others = [
            "notes.txt",
            "leader-epoch-checkpoint",
            "0.log",
            "00000000000000000000.snapshot",
            "00000000000000000000",
            "image-815",
            "4711-00000000000000004815.keys",
            "x0000000000000000000.log",
            "",
        ];
        assert!(ours.iter().all(|name| is_ours(name)));
        assert!(!others.iter().any(|name| is_ours(name)));
    }

    #[test]
    fn a_segment_that_compaction_made_is_not_one_as_appended() {
        assert_eq!(appended_segment("00000000000000004711.log"), Some(4711));
        assert_eq!(appended_segment("00000000000000004711.7-12.log"), None);
        assert_eq!(appended_segment("00000000000000004711.index"), None);
    }
}
