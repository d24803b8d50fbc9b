//! # Room card: the ring, as recovery finds it
//!
//! Purpose:    read the journal from the medium, and refuse one that has lost a part.
//! Owns:       the files that must exist, and their lengths; the comparison with the mark.
//! Interface:  [`read`], [`was_used`], [`directory_number`].
//! Invariants: recovery checks everything before it changes anything, and syncs the bytes that it read before it
//!             believes them.
//! Never:      the meaning of records.
//! Tests:      `duramen-sim/tests/promises/tampering.rs`; `duramen-sim`, scenario `storage`.
//! Start at:   [`read`].

use std::collections::BTreeSet;
use std::io;

use bytes::Bytes;

use crate::Disk;
use crate::error::{Error, disk_error};
use crate::format::{JOURNAL_DIR, JOURNAL_MARK, ROUND_HEADER_BYTES};
use crate::journal::{self, Journal, Mark, Round, Scan, extent_path};
use crate::manifest::EXTENT_BYTES_MAX;
use crate::options::Options;
use crate::sabotage::{self, Bug};

/// Returns the number that ties a round to its directory.
pub(super) fn directory_number(options: &Options) -> u64 {
    let id = options.facts.directory_id;
    u64::from_be_bytes(id[..8].try_into().expect("eight of sixteen bytes"))
}

/// Reads the whole ring from the medium and sorts it out. Makes the last round durable: the process that wrote it may
/// have ended before its sync.
pub(super) fn read<D: Disk>(disk: &D, options: &Options) -> Result<(Journal<D>, Scan), Error> {
    let extents = read_extents(disk, options.extent_bytes)?;
    let rounds: Vec<Round> = extents
        .iter()
        .enumerate()
        .flat_map(|(at, extent)| journal::rounds_of(at, &extent.bytes))
        .collect();
    let written: BTreeSet<usize> = rounds.iter().map(|round| round.file).collect();
    let directory = directory_number(options);
    let damaged = |path: &str, at, what| Error::Damaged { path: path.into(), at, what };
    let scan = journal::scan(rounds, directory).map_err(|what| damaged(JOURNAL_DIR, 0, what))?;
    let ring = scan.extents as usize;
    let (files, unfinished) = check_ring(disk, extents, &written, ring, options.extent_bytes)?;
    let last = scan.rounds.last().expect("a scan without rounds is an error");
    assert!(last.file < files.len(), "a file with rounds is one of the ring's");
    assert!(
        files.len() >= ring || sabotage::is(Bug::LostExtentTaken),
        "all {ring} files that rounds count are there"
    );
    debug_assert!(
        scan.rounds.is_sorted_by(|a, b| a.header.lsn + 1 == b.header.lsn),
        "no round is missing between two others"
    );
    let mark = Mark::read(disk, directory);
    let mark = mark.map_err(|source| disk_error("reading", JOURNAL_MARK, source))?;
    if last.header.lsn < mark.lsn && !sabotage::is(Bug::MarkIgnored) {
        let what = format!(
            "round {} was durable, and the newest that is left is {}: a file of the journal was replaced by another, or \
             by an older copy of itself; put the newest copy back",
            mark.lsn, last.header.lsn
        );
        return Err(damaged(JOURNAL_DIR, 0, what));
    }
    if let Some(path) = unfinished {
        disk.remove_file(&path).map_err(|source| disk_error("removing", &path, source))?;
    }
    if scan.torn {
        tracing::info!("a crash tore the journal's last round, which was never acknowledged");
    }
    let path = extent_path(last.file);
    rewrite_round(disk, &files[last.file], last)
        .map_err(|source| disk_error("syncing", &path, source))?;
    disk.sync_dir(JOURNAL_DIR).map_err(|source| disk_error("syncing", JOURNAL_DIR, source))?;
    Ok((Journal::resume(disk, directory, options.extent_bytes, files, &scan, mark), scan))
}

/// Tells whether the journal holds more than the one round that formatting writes: then the directory was in use.
pub(super) fn was_used<D: Disk>(disk: &D) -> Result<bool, Error> {
    let names =
        disk.list(JOURNAL_DIR).map_err(|source| disk_error("listing", JOURNAL_DIR, source))?;
    for name in names.iter().filter(|name| is_extent(name)) {
        let path = format!("{JOURNAL_DIR}/{name}");
        let read = || {
            let file = disk.open(&path)?;
            let len = usize::try_from(disk.len(&file)?.min(EXTENT_BYTES_MAX))
                .map_err(io::Error::other)?;
            disk.read_medium(&file, 0, len)
        };
        let bytes = Bytes::from(read().map_err(|source| disk_error("reading", &path, source))?);
        if journal::rounds_of(0, &bytes).iter().any(|round| round.header.lsn > 1) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// One file of the ring, as it was found.
struct FoundExtent<D: Disk> {
    file: D::File,
    bytes: Bytes,
    /// Bytes that the file has.
    len: u64,
}

/// Reads all files of the ring; none may be missing between others.
fn read_extents<D: Disk>(disk: &D, extent_bytes: u64) -> Result<Vec<FoundExtent<D>>, Error> {
    let names =
        disk.list(JOURNAL_DIR).map_err(|source| disk_error("listing", JOURNAL_DIR, source))?;
    let mut extents = Vec::new();
    // Names are sorted, and of one length.
    for name in names.iter().filter(|name| is_extent(name)) {
        let path = extent_path(extents.len());
        if *name != path[JOURNAL_DIR.len() + 1..] {
            let what = format!("it is missing, and {JOURNAL_DIR}/{name} is there");
            return Err(Error::Damaged { path, at: 0, what });
        }
        let failed = |source| disk_error("reading", &path, source);
        let file = disk.open(&path).map_err(failed)?;
        let len = disk.len(&file).map_err(failed)?;
        let wanted = usize::try_from(extent_bytes.min(len)).expect("extents are bounded");
        let bytes = Bytes::from(disk.read_medium(&file, 0, wanted).map_err(failed)?);
        assert!(bytes.len() <= wanted, "a disk gives no more than was asked for");
        extents.push(FoundExtent { file, bytes, len });
    }
    Ok(extents)
}

/// Tells whether a name in the journal's directory is that of an extent's file.
fn is_extent(name: &str) -> bool {
    name.len() == 4 && name.bytes().all(|byte| byte.is_ascii_digit())
}

/// Compares the ring with the facts that rounds state of it. Returns its files, and the path of a file that was being
/// made. `written` lists the files that hold rounds. `ring` is the least number of files in the ring, or 0 if no
/// build has recorded it.
fn check_ring<D: Disk>(
    disk: &D,
    extents: Vec<FoundExtent<D>>,
    written: &BTreeSet<usize>,
    ring: usize,
    extent_bytes: u64,
) -> Result<(Vec<D::File>, Option<String>), Error> {
    if extents.len() < ring && !sabotage::is(Bug::LostExtentTaken) {
        let what = format!("it is missing: the journal has {ring} files");
        return Err(Error::Damaged { path: extent_path(extents.len()), at: 0, what });
    }
    let count = extents.len();
    assert!(written.last().is_none_or(|at| *at < count), "rounds are in files that were read");
    let mut files = Vec::new();
    for (at, FoundExtent { file, bytes, len }) in extents.into_iter().enumerate() {
        let path = extent_path(at);
        // A file that no round counts yet is being made. Earlier builds counted none.
        let is_unfinished = at + 1 == count && !written.contains(&at) && (ring == 0 || at >= ring);
        let is_short = bytes.len() as u64 != extent_bytes || len != extent_bytes;
        if is_short && is_unfinished {
            return Ok((files, Some(path)));
        }
        if is_short && !sabotage::is(Bug::LostExtentTaken) {
            let what = format!(
                "it is {len} bytes long, and must have {extent_bytes}: it was cut, or not copied whole"
            );
            return Err(Error::Damaged { path, at: len, what });
        }
        if at >= ring {
            // The process may have ended before it synced the new file: once rounds count the file, it must survive
            // any crash.
            disk.sync(&file).map_err(|source| disk_error("syncing", &path, source))?;
        }
        files.push(file);
    }
    Ok((files, None))
}

/// Writes the last round again as it was read, and syncs it.
fn rewrite_round<D: Disk>(disk: &D, file: &D::File, round: &Round) -> io::Result<()> {
    if sabotage::is(Bug::LastRoundNotRewritten) {
        return Ok(());
    }
    assert!(round.body.is_some(), "the last round is whole");
    let body = round.body.clone().unwrap_or_default();
    let bytes = disk.read_medium(file, round.header.position, ROUND_HEADER_BYTES)?;
    disk.write_at(file, &[&bytes, &body], round.header.position)?;
    disk.sync(file)
}
