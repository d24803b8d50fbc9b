//! # Room card: leftovers
//!
//! Purpose:    decide about files and bytes that no record names.
//! Owns:       the choice to remove, to set aside, or to ignore them.
//! Interface:  [`sort_out_strangers`], [`drop`], [`is_seam_sound`], [`keep_tail`]; [`stem_of`].
//! Invariants: a start sets whole batches aside and never removes them. It ignores names that are not ours, and cuts no
//!             file whose content is not the replica's own appends.
//! Never:      the content of a replica (see `recovery`).
//! Tests:      `duramen-sim/tests/promises/tampering.rs`; `duramen-sim`, scenario `storage`.
//! Start at:   [`sort_out_strangers`].

use std::collections::BTreeSet;
use std::io;

use crate::descriptor::{BATCH_HEADER_BYTES, Descriptor};
use crate::encoding::ImageSource;
use crate::error::{Error, disk_error};
use crate::format::{
    DELETED, INDEX_ENTRY_BYTES, NEW_TABLE, is_stem, segment_stem, stem_of_dir, table_range,
};
use crate::op::Content;
use crate::replica_state::{IndexEntry, ReplicaState, SegmentState};
use crate::reserve::Reserve;
use crate::sabotage::{self, Bug};
use crate::set_aside::{self, SetAside};
use crate::{Disk, ReplicaId};

/// Says in a directory's name that nobody was told of its replica.
const UNACKNOWLEDGED: &str = ".unacknowledged";

/// Sorts out directories that look like partitions and belong to no replica. Removes one without a whole batch: it
/// was made and never acknowledged. Sets aside one with whole batches. Leaves one with files that are not ours alone.
pub(super) fn sort_out_strangers<D: Disk>(
    disk: &D,
    owned: &BTreeSet<String>,
    reserve: &mut Reserve,
    kept: &mut SetAside,
    garbage: &mut Vec<String>,
) -> Result<(), Error> {
    let names = disk.list("").map_err(|source| disk_error("listing", ".", source))?;
    for name in &names {
        if is_garbage(name) {
            assert!(!owned.contains(name), "no replica has the name of a directory that goes");
            if !garbage.contains(name) {
                garbage.push(name.clone());
            }
            continue;
        }
        let partition = name.rsplit_once('-').and_then(|(_, number)| number.parse::<i32>().ok());
        if partition.is_none() || owned.contains(name) {
            continue;
        }
        // A file of such a name cannot be listed.
        let Ok(files) = disk.list(name) else { continue };
        if let Some(file) = files.iter().find(|file| !set_aside::is_ours(file)) {
            tracing::warn!(
                dir = name,
                file,
                "a directory has a partition's name, and holds files that are not duramen's: this node ignores it; move it \
                 elsewhere"
            );
            continue;
        }
        let holds = set_aside::holds_batches(disk, name, &files)
            .map_err(|source| disk_error("reading", name, source))?;
        if holds && !sabotage::is(Bug::StrangerRemoved) {
            let to = kept
                .keep_dir(disk, reserve, name)
                .map_err(|source| disk_error("renaming", name, source))?;
            tracing::warn!(
                dir = name,
                to,
                "a directory holds whole batches, and no record names its replica: it is set aside; see `duramen log \
                 set-aside`"
            );
            continue;
        }
        let aside = format!("{}{UNACKNOWLEDGED}{DELETED}", stem_of_dir(name));
        assert!(is_garbage(&aside), "the next start knows what this one began to remove");
        if names.contains(&aside) {
            // Set aside once before, and not removed before the crash.
            disk.remove_dir(&aside).map_err(|source| disk_error("removing", &aside, source))?;
        }
        reserve
            .when_full(disk, || disk.rename(name, &aside))
            .map_err(|source| disk_error("renaming", name, source))?;
        if !garbage.contains(&aside) {
            garbage.push(aside);
        }
    }
    Ok(())
}

/// Tells whether a directory has the name of one under removal. Such a name begins with a partition's name. The ids of
/// topic and replica follow, or a word for a replica that was never acknowledged. Earlier versions left out the
/// replica's id. Other directories may end alike, and are not ours.
pub(super) fn is_garbage(name: &str) -> bool {
    let Some((dir, reason)) = name.strip_suffix(DELETED).and_then(|it| it.rsplit_once('.')) else {
        return false;
    };
    let (topic_id, replica) = reason.split_once('-').unwrap_or((reason, "0"));
    let is_id = topic_id.len() == 32
        && topic_id.bytes().all(|byte| byte.is_ascii_hexdigit())
        && replica.bytes().all(|byte| byte.is_ascii_digit());
    is_stem(dir) && (is_id || reason == &UNACKNOWLEDGED[1..])
}

/// Tells whether a file in the replica's directory is one that its state names. Of a table of the queue index no
/// state says anything: the index itself judges it when it is opened.
fn is_named(state: &ReplicaState, name: &str) -> bool {
    let is_left = name.ends_with(NEW_TABLE) && sabotage::is(Bug::UnfinishedTableStays);
    if is_left || table_range(name).is_some() {
        return true;
    }
    let image = format!("image-{:020}", state.prev_index);
    let large = matches!(state.image, ImageSource::File { .. });
    (large && name == image)
        || state.segments.iter().any(|segment| {
            let extension = name.strip_prefix(stem_of(state, segment).as_str());
            match extension {
                Some(".log") => true,
                Some(".index") => segment.index_flushed > 0,
                Some(".timeindex") => segment.times_flushed > 0,
                _ => false,
            }
        })
}

/// Returns the name without extension that a segment's files share in their directory.
pub(super) fn stem_of(state: &ReplicaState, segment: &SegmentState) -> String {
    segment_stem(segment.base_offset, state.replica, segment.generation)
}

/// Removes files of ours that the state does not name: trimmed, replaced or unfinished ones. Sets aside a segment at
/// or past the log start that holds whole batches. Leaves files that are not ours alone.
pub(super) fn drop<D: Disk>(
    disk: &D,
    state: &ReplicaState,
    names: &[String],
    reserve: &mut Reserve,
    aside: &mut SetAside,
) -> io::Result<()> {
    let dir = state.dir();
    for name in names.iter().filter(|name| !is_named(state, name)) {
        if !set_aside::is_ours(name) {
            tracing::warn!(
                dir,
                file = name,
                "a file in a partition's directory is not duramen's: this node ignores it"
            );
            continue;
        }
        let path = format!("{dir}/{name}");
        let first = state.segments.first().map_or(state.end_offset, |it| it.base_offset);
        let kept_from = first.max(state.compacted.below);
        let is_unknown = set_aside::appended_segment(name).is_some_and(|base| base >= kept_from);
        if is_unknown && set_aside::batch_at(disk, &disk.open(&path)?, 0)?.is_some() {
            let to = aside.keep_file(disk, reserve, (&dir, name))?;
            tracing::warn!(
                path,
                to,
                "a segment holds whole batches that no record names: it is set aside; see `duramen log set-aside`"
            );
            continue;
        }
        disk.remove_file(&path)?;
    }
    Ok(())
}

/// Tells whether a segment that is too long holds the appended batches before its first replayed byte, as far as the
/// state can tell. If not, it is another file, and recovery must cut nothing of it.
pub(super) fn is_seam_sound<D: Disk>(
    disk: &D,
    file: &D::File,
    state: &ReplicaState,
    segment: &SegmentState,
    replayed_from: u64,
) -> io::Result<bool> {
    assert!(replayed_from <= segment.size, "what is replayed lies in the segment");
    // The last index entry before what is replayed.
    let indexed = segment.index_tail.iter().rfind(|it| u64::from(it.position) < replayed_from);
    if let Some(entry) = indexed
        && !is_as_indexed(disk, file, segment, *entry)?
    {
        return Ok(false);
    }
    // The last entry before it, by its checksum.
    let mut first = (segment.size, end_of(state, segment));
    assert!(first.1 > segment.base_offset, "a segment has offsets");
    for entry in state.entries.iter().rev() {
        let Content::Batch(batch) = &entry.content else { continue };
        if batch.base_offset >= first.1 {
            continue;
        }
        if batch.base_offset < segment.base_offset {
            break;
        }
        assert!(u64::from(batch.length) <= first.0, "a segment holds its entries' batches");
        first = (first.0 - u64::from(batch.length), batch.base_offset);
        if first.0 < replayed_from {
            let same = |it: Descriptor| {
                it.batch_crc == batch.batch_crc && it.header_crc == batch.header_crc
            };
            return Ok(header_at(disk, file, first.0)?.is_some_and(same));
        }
    }
    // No entry before it is held: the batches lead up to the first that is, or to the segment's end.
    let indexed = match indexed {
        Some(entry) => Some(*entry),
        None => last_flushed(disk, state, segment, replayed_from)?,
    };
    let mut start = (0, segment.base_offset);
    if let Some(entry) = indexed
        && is_as_indexed(disk, file, segment, entry)?
    {
        let at = u64::from(entry.position);
        start = (at, header_at(disk, file, at)?.map_or(-1, |it| it.base_offset));
    }
    leads_up_to(disk, file, start, (replayed_from, first), segment.generation == 0)
}

/// Returns one past the last offset that a segment can have.
fn end_of(state: &ReplicaState, segment: &SegmentState) -> i64 {
    let next = state.segments.iter().find(|it| it.base_offset > segment.base_offset);
    next.map_or(state.end_offset, |next| next.base_offset)
}

fn header_at<D: Disk>(disk: &D, file: &D::File, at: u64) -> io::Result<Option<Descriptor>> {
    let header = disk.read_medium(file, at, BATCH_HEADER_BYTES)?;
    Ok(Descriptor::of_batch(&header, false).ok())
}

/// Tells whether a batch ends with the offset that its index entry names.
fn is_as_indexed<D: Disk>(
    disk: &D,
    file: &D::File,
    segment: &SegmentState,
    entry: IndexEntry,
) -> io::Result<bool> {
    let last = segment.base_offset + i64::from(entry.offset_delta);
    let found = header_at(disk, file, u64::from(entry.position))?;
    Ok(found.is_some_and(|batch| batch.end_offset() == last + 1))
}

/// Returns the last entry of a segment's index file, if it lies before a position. The file has no checksum.
fn last_flushed<D: Disk>(
    disk: &D,
    state: &ReplicaState,
    segment: &SegmentState,
    before: u64,
) -> io::Result<Option<IndexEntry>> {
    let Some(at) = segment.index_flushed.checked_sub(1) else { return Ok(None) };
    let name = format!("{}/{}.index", state.dir(), stem_of(state, segment));
    let file = match disk.open(&name) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    let at = u64::from(at) * INDEX_ENTRY_BYTES as u64;
    let bytes = disk.read_medium(&file, at, INDEX_ENTRY_BYTES)?;
    if bytes.len() < INDEX_ENTRY_BYTES {
        return Ok(None);
    }
    let number = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    let entry = IndexEntry { offset_delta: number(0), position: number(4) };
    Ok((u64::from(entry.position) < before).then_some(entry))
}

/// Tells whether batches lead, one by one, from one position and offset to another, or past the replayed part before
/// it.
fn leads_up_to<D: Disk>(
    disk: &D,
    file: &D::File,
    (mut at, mut offset): (u64, i64),
    (replayed_from, end): (u64, (u64, i64)),
    is_dense: bool,
) -> io::Result<bool> {
    while at < replayed_from {
        let Some(batch) = header_at(disk, file, at)? else { return Ok(false) };
        if batch.base_offset < offset || is_dense && batch.base_offset != offset {
            return Ok(false);
        }
        (at, offset) = (at + u64::from(batch.length), batch.end_offset());
    }
    let is_at_end = at == end.0 && (offset == end.1 || !is_dense && offset <= end.1);
    Ok(is_at_end || at < end.0 && offset < end.1)
}

/// Keeps the whole batches behind a segment's end before recovery cuts them. Their round was torn, or is lost.
pub(super) fn keep_tail<D: Disk>(
    disk: &D,
    file: &D::File,
    (dir, size, len): (&str, u64, u64),
    (reserve, aside): (&mut Reserve, &mut SetAside),
) -> io::Result<()> {
    assert!(size < len, "a tail lies behind the segment's end");
    let Some(first) = set_aside::batch_at(disk, file, size)? else { return Ok(()) };
    let mut end = size + u64::from(first.length);
    while let Some(batch) = set_aside::batch_at(disk, file, end)? {
        end += u64::from(batch.length);
    }
    debug_assert!(end <= len, "a whole batch ends within the file");
    let bytes =
        disk.read_medium(file, size, usize::try_from(end - size).map_err(io::Error::other)?)?;
    let name = format!("{}.log", segment_stem(first.base_offset, ReplicaId(0), 0));
    let to = aside.keep_bytes(disk, reserve, (dir, &name), &bytes)?;
    tracing::warn!(
        dir,
        to,
        bytes = bytes.len(),
        "a segment ended with whole batches that were never acknowledged: they are set aside"
    );
    Ok(())
}
