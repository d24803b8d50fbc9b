//! # Room card: mending
//!
//! Purpose:    replace damaged batches of a segment with those of other replicas.
//! Owns:       the checks of received batches, the new copy of a segment's file, the switch to it.
//! Interface:  [`Damage`], [`Mend`], [`Reader::mend`] on a thread that may wait, [`Storage::switch`] on storage's.
//! Invariants: repair replaces a file and never rewrites it, because a planned read holds the old one open. The copy is
//!             whole and synced before it takes the name, so that a crash leaves the old file or the new one. Repair
//!             accepts a batch only if it follows its predecessor, matches its checksum, and has the term known for its
//!             offset. The batches must fill the range to the byte.
//! Never:      the source of the batches (see the node's `mending`), detection of damage (see `scrub`).
//! Tests:      `duramen-sim/tests/promises/mending.rs`; `duramen-sim`, scenario `cluster`.
//! Start at:   [`Reader::mend`].

use std::io;
use std::sync::Arc;

use bytes::Bytes;

use crate::catalog::{LogFiles, Segment};
use crate::descriptor::Descriptor;
use crate::disk::is_full;
use crate::error::{Error, disk_error};
use crate::op::Done;
use crate::reader::{Reader, fault_of};
use crate::sabotage::{self, Bug};
use crate::storage::Storage;
use crate::{Disk, ReplicaId};

/// Bytes copied at once.
const PIECE_BYTES: u64 = 1 << 20;
/// Most bytes that the storage thread copies and syncs itself, at the switch; the copy holds all earlier bytes.
const LAST_PIECE_BYTES: u64 = 256 * 1024;

/// A part of a segment that is not what was acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DamagedRange {
    /// Position of the first damaged byte in the file.
    pub at: u64,
    /// Position behind the last damaged byte.
    pub end_at: u64,
    /// First offset in the range.
    pub offset: i64,
    /// One past the last offset in the range.
    pub end_offset: i64,
}

/// Damage of one segment. Bytes outside the ranges are good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Replica that the segment belongs to.
    pub replica: ReplicaId,
    /// The segment's base offset.
    pub segment: i64,
    /// Damaged ranges in order, at least one.
    pub ranges: Vec<DamagedRange>,
}

/// Patches that repair one segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mend {
    /// Replica that the segment belongs to.
    pub replica: ReplicaId,
    /// The segment's base offset.
    pub segment: i64,
    /// All its damaged ranges in order, and batches from the beginning of each: all, some or none.
    pub patches: Vec<(DamagedRange, Bytes)>,
}

/// A copy of a segment's file, ready to take its place.
#[derive(Debug)]
pub struct Mended<D: Disk> {
    replica: ReplicaId,
    segment: Arc<Segment<D>>,
    cuts: u64,
    file: D::File,
    /// Bytes of the segment that the copy holds, synced.
    copied: u64,
    path: String,
}

/// Reason why a segment was not repaired.
#[derive(Debug, thiserror::Error)]
pub enum MendError {
    /// The segment was cut or removed.
    #[error("the segment is not what it was")]
    Changed,
    /// The batches of the other replica do not belong there.
    #[error("what another replica gave does not fit: {0}")]
    Unfit(&'static str),
    /// The copy would leave too little room for appends.
    #[error("there is no room for a copy of the segment")]
    NoRoom,
    /// The disk failed.
    #[error("the disk failed at the copy")]
    Disk(#[from] io::Error),
}

impl<D: Disk> Reader<D> {
    /// Writes a copy of a segment in which the damaged ranges are filled, and syncs it. Takes as long as to read and
    /// write the segment. `free_bytes_min` bytes must stay free on the disk.
    pub fn mend(&self, mend: &Mend, free_bytes_min: u64) -> Result<Mended<D>, MendError> {
        let files = self.catalog().get(mend.replica).map_err(|_| MendError::Changed)?;
        let segment = files.segment_of(mend.segment).filter(|it| it.base_offset == mend.segment);
        let segment = segment.ok_or(MendError::Changed)?;
        if !segment.is_dense() {
            return Err(MendError::Unfit("what was compacted has no other copy yet"));
        }
        let cuts = segment.cuts();
        let settled = segment.settled().0;
        for (range, batches) in &mend.patches {
            if range.end_at > settled {
                self.catalog().look_again(mend.replica, mend.segment);
                return Err(MendError::Changed);
            }
            check(&files, range, batches).map_err(MendError::Unfit)?;
        }
        if mend.patches.iter().all(|(_, batches)| batches.is_empty()) {
            return Err(MendError::Unfit("there is nothing"));
        }
        let room = free_bytes_min.saturating_add(segment.written().0);
        if self.disk().available()? < room {
            return Err(MendError::NoRoom);
        }
        let path = segment.sibling("mending");
        match self.disk().remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
        let made = self.copy(&segment, &path, settled, mend);
        let (file, copied) = match made {
            Ok(made) => made,
            Err(error) => {
                // Else the next start removes it.
                let _ = self.disk().remove_file(&path);
                return Err(if is_full(&error) { MendError::NoRoom } else { error.into() });
            }
        };
        Ok(Mended { replica: mend.replica, segment, cuts, file, copied, path })
    }

    fn copy(
        &self,
        segment: &Arc<Segment<D>>,
        path: &str,
        settled: u64,
        mend: &Mend,
    ) -> io::Result<(D::File, u64)> {
        let file = self.disk().create(path)?;
        let old = match self.disk().open(&segment.path()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            opened => Some(opened?),
        };
        let mut at = 0;
        for (range, batches) in &mend.patches {
            assert!(at <= range.at, "damaged ranges are in order");
            self.copy_part(old.as_ref(), &file, (at, range.at), true)?;
            self.disk().write_at(&file, &[batches], range.at)?;
            let rest = (range.at + batches.len() as u64, range.end_at);
            self.copy_part(old.as_ref(), &file, rest, false)?;
            at = range.end_at;
        }
        self.copy_part(old.as_ref(), &file, (at, settled), true)?;
        self.disk().set_len(&file, settled)?;
        // The rest was written by this process, and may not be on the medium yet.
        let mut copied = settled;
        loop {
            if !sabotage::is(Bug::MendNotSynced) {
                self.disk().sync(&file)?;
            }
            let (size, _) = segment.written();
            if size <= copied + LAST_PIECE_BYTES {
                return Ok((file, copied));
            }
            copied = self.copy_written(segment, &file, (copied, size))?;
        }
    }

    /// Copies bytes that rest on the medium. Leaves out bytes that cannot be read, unless `must_be` is set.
    fn copy_part(
        &self,
        old: Option<&D::File>,
        file: &D::File,
        (mut at, end): (u64, u64),
        must_be: bool,
    ) -> io::Result<()> {
        while at < end {
            let len = (end - at).min(PIECE_BYTES);
            let wanted = usize::try_from(len).expect("a piece is small");
            let read = match old {
                Some(old) => self.disk().read_medium(old, at, wanted),
                None => Ok(Vec::new()),
            };
            let bytes = match read {
                Err(error) if must_be => return Err(error),
                read => read.unwrap_or_default(),
            };
            if bytes.len() < wanted && must_be {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            // The copy has a hole for the unreadable bytes, which takes no space.
            if !bytes.is_empty() {
                self.disk().write_at(file, &[&bytes], at)?;
                self.disk().start_writeback(file, at, len)?;
            }
            at += len;
        }
        Ok(())
    }

    /// Copies bytes that this process has written.
    fn copy_written(
        &self,
        segment: &Arc<Segment<D>>,
        file: &D::File,
        (mut at, end): (u64, u64),
    ) -> io::Result<u64> {
        let old = self.catalog().file(self.disk(), segment).map_err(io::Error::other)?;
        while at < end {
            let len = (end - at).min(PIECE_BYTES);
            let mut bytes = vec![0; usize::try_from(len).expect("a piece is small")];
            if self.disk().read_at(&old, &mut bytes, at)? < bytes.len() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.disk().write_at(file, &[&bytes], at)?;
            at += len;
        }
        Ok(end)
    }
}

/// Checks whether batches may stand at the beginning of a range, or fill all of it. Returns the fault otherwise.
fn check<D: Disk>(
    files: &LogFiles<D>,
    range: &DamagedRange,
    batches: &Bytes,
) -> Result<(), &'static str> {
    if sabotage::is(Bug::MendUnchecked) {
        return Ok(());
    }
    let (mut at, mut offset, mut rest) = (range.at, range.offset, &batches[..]);
    while !rest.is_empty() {
        let batch = Descriptor::of_batch(rest, at == 0).map_err(|_| "there is no batch")?;
        let bytes = rest.get(..batch.length as usize).ok_or("a batch is cut short")?;
        if let Some(fault) = fault_of(files, &batch, bytes, (offset, true)) {
            return Err(fault);
        }
        rest = &rest[bytes.len()..];
        at += bytes.len() as u64;
        offset = batch.end_offset();
    }
    let fits = (at == range.end_at) == (offset == range.end_offset);
    if at > range.end_at || offset > range.end_offset || !fits {
        return Err("the batches have another length");
    }
    Ok(())
}

impl<D: Disk> Storage<D> {
    /// Puts a copy in the place of its segment's file, and reports by [`Done::Mended`]. Adds the bytes that were
    /// written since the copy was made first. The call may also come between [`Storage::begin_round`] and the end of
    /// that round.
    pub fn switch(&mut self, mended: &Mended<D>) -> Result<(), Error> {
        let (replica, segment) = (mended.replica, mended.segment.base_offset);
        let is_done = self.try_switch(mended)?;
        if is_done {
            // The scrub looks at the repaired segment once more, as at all others.
            self.reader().catalog().look_again(replica, segment);
        } else {
            // Else the next start removes it.
            let _ = self.disk.remove_file(&mended.path);
        }
        self.done.push(Done::Mended { replica, segment, is_done });
        Ok(())
    }

    /// Tries the switch. Returns false if the segment has changed meanwhile, or there is no room.
    fn try_switch(&mut self, mended: &Mended<D>) -> Result<bool, Error> {
        let Mended { replica, segment, cuts, file, copied, path } = mended;
        let failed = |source| disk_error("mending", path, source);
        let reader = self.reader();
        let Some(at_work) = self.replicas.get_mut(replica).filter(|it| !it.deleting) else {
            return Ok(false);
        };
        let here = at_work.files.segment_of(segment.base_offset);
        let is_same = here.is_some_and(|here| Arc::ptr_eq(&here, segment));
        if !is_same || segment.is_gone() || segment.cuts() != *cuts {
            return Ok(false);
        }
        let (size, _) = segment.written();
        assert!(*copied <= size, "a segment that was not cut keeps its bytes");
        if size > *copied {
            match reader.copy_written(segment, file, (*copied, size)) {
                Err(error) if is_full(&error) => return Ok(false),
                copied => copied.map_err(failed)?,
            };
            self.disk.sync(file).map_err(failed)?;
        }
        match self.disk.rename(path, &segment.path()) {
            Err(error) if is_full(&error) || error.kind() == io::ErrorKind::NotFound => {
                return Ok(false);
            }
            renamed => renamed.map_err(failed)?,
        }
        // Later appends go into this file. So its name must be durable first, or a crash would lose them.
        self.disk.sync_dir(&at_work.state.dir()).map_err(failed)?;
        at_work.take_file(segment, file);
        Ok(true)
    }
}
