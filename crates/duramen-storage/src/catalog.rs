//! # Room card: catalog
//!
//! Purpose:    the segments of every log and their written lengths, shared with readers.
//! Owns:       the only locks of this crate: short, never held over I/O of the write path.
//! Interface:  [`Catalog`], [`LogFiles`], [`Segment`]; [`ReadError`], of every read.
//! Invariants: a segment shows only bytes that are already in its file.
//! Never:      high watermarks, which callers hand to the reader.
//! Tests:      those of the reader.
//! Start at:   [`Catalog`].

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use crate::format::segment_stem;
use crate::keys::Index;
use crate::op::{Compacted, TermRun};
use crate::replica_state::{IndexEntry, SegmentState, TimeEntry};
use crate::sabotage::{self, Bug};
use crate::{Disk, ReplicaId};

/// Batches whose position is remembered without a look at the index: what tailing readers need.
const RECENT_BATCHES: usize = 256;
/// `EMFILE`, for which the standard library has no name.
const TOO_MANY_OPEN_FILES: i32 = 24;
/// Sealed segments kept open for reading, where descriptors are no concern.
const CACHED_FILES_MAX: usize = 512;
/// Suspects remembered; the others are found when their turn comes.
const SUSPECTS_MAX: usize = 1024;

/// Why a read could not be answered.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// No such replica here.
    #[error("no such replica on this node")]
    UnknownReplica,
    /// The offset is below the first segment, or above the end of the request.
    #[error("the offset is outside the log")]
    OutOfRange,
    /// The segment was removed during the lookup. A second attempt gets the log's own answer.
    #[error("the segment was just removed")]
    Removed,
    /// The medium gave bytes that do not match their checksums.
    #[error("damaged bytes in {path} at {at}: {what}")]
    Damaged {
        /// The file, relative to the data directory.
        path: String,
        /// Position of the bad batch.
        at: u64,
        /// Description of the damage.
        what: &'static str,
    },
    /// The disk failed to read.
    #[error("could not read {path}")]
    Disk {
        /// The file, relative to the data directory.
        path: String,
        /// The disk's answer.
        #[source]
        source: io::Error,
    },
}

/// All replicas' files.
#[derive(Debug)]
pub(crate) struct Catalog<D: Disk> {
    logs: RwLock<BTreeMap<ReplicaId, Arc<LogFiles<D>>>>,
    /// Segments whose file is open, oldest first.
    open: Mutex<VecDeque<Arc<Segment<D>>>>,
    /// Most segments whose file stays open for reading.
    cached_max: usize,
    /// Segments that a reader had trouble with: the scrub looks at them before all others.
    suspects: Mutex<BTreeSet<(ReplicaId, i64)>>,
    /// Segments with reported damage: further trouble with them is no news.
    damaged: Mutex<BTreeSet<(ReplicaId, i64)>>,
}

/// The segments of one replica, oldest first.
#[derive(Debug)]
pub(crate) struct LogFiles<D: Disk> {
    listing: RwLock<Listing<D>>,
    /// Start offset and term of each term run.
    terms: RwLock<Vec<(i64, u64)>>,
    /// Queue index of the log, if one is open.
    index: Mutex<Option<Arc<Index<D>>>>,
}

/// All segments, and the extent of the log's last compaction: both change at once.
#[derive(Debug)]
struct Listing<D: Disk> {
    segments: Vec<Arc<Segment<D>>>,
    compacted: Compacted,
}

/// One segment, as readers see it.
#[derive(Debug)]
pub(crate) struct Segment<D: Disk> {
    pub(crate) base_offset: i64,
    /// Index of the entry by which compaction made the segment, or 0.
    pub(crate) generation: u64,
    /// CRC of the index of a segment that compaction made.
    index_crc: u32,
    /// Path without extension that the segment's files share.
    stem: String,
    file: Mutex<Handle<D::File>>,
    view: Mutex<View>,
}

/// State of a segment's file: closed, open or removed.
#[derive(Debug)]
enum Handle<F> {
    Closed,
    Open(F),
    /// The segment was taken out of the log: its file is being removed, and not opened again.
    Gone,
}

#[derive(Debug, Default)]
struct View {
    size: u64,
    end_offset: i64,
    max_timestamp: i64,
    index_flushed: u32,
    times_flushed: u32,
    index_tail: Vec<IndexEntry>,
    times_tail: Vec<TimeEntry>,
    /// Base offset and position of the last batches.
    recent: VecDeque<(i64, u64)>,
    /// Sorted, disjoint ranges of bytes known to be good.
    verified: Vec<(u64, u64)>,
    /// Up to here, bytes and offset, a checkpoint has synced the file: nothing but rot changes these bytes.
    settled: (u64, i64),
    /// Number of times that a cut of the log reached into the segment.
    cuts: u64,
    /// True if the last look at the segment found damage.
    is_damaged: bool,
    /// True if the index file is of no use.
    is_index_bad: bool,
    /// True once the index of a segment that compaction made was compared with its CRC.
    is_index_checked: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A reader that panicked cannot have left the view half changed: every change is one call.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<D: Disk> Catalog<D> {
    pub(crate) fn new(open_files_max: usize) -> Self {
        Self {
            logs: RwLock::new(BTreeMap::new()),
            open: Mutex::new(VecDeque::new()),
            cached_max: (open_files_max / 8).clamp(1, CACHED_FILES_MAX),
            suspects: Mutex::new(BTreeSet::new()),
            damaged: Mutex::new(BTreeSet::new()),
        }
    }

    /// Returns all replicas, by id.
    pub(crate) fn replicas(&self) -> Vec<(ReplicaId, Arc<LogFiles<D>>)> {
        let logs = self.logs.read().unwrap_or_else(PoisonError::into_inner);
        logs.iter().map(|(id, files)| (*id, Arc::clone(files))).collect()
    }

    /// Returns the first replica at or after an id.
    pub(crate) fn replica_from(&self, id: ReplicaId) -> Option<(ReplicaId, Arc<LogFiles<D>>)> {
        let logs = self.logs.read().unwrap_or_else(PoisonError::into_inner);
        logs.range(id..).next().map(|(id, files)| (*id, Arc::clone(files)))
    }

    /// Withdraws the reported damage of a segment, and asks the scrub to look at the segment as soon as possible.
    pub(crate) fn look_again(&self, replica: ReplicaId, base_offset: i64) {
        self.note_damaged(replica, base_offset, false);
        self.suspect(replica, base_offset);
    }

    /// Withdraws reported damage of the segments that a cut at an offset reaches. Returns the base offsets of those
    /// that were reported as damaged.
    pub(crate) fn unsettle(&self, replica: ReplicaId, end_offset: i64) -> Vec<i64> {
        let Ok(files) = self.get(replica) else { return Vec::new() };
        let cut = files.unsettle(end_offset);
        let mut damaged = lock(&self.damaged);
        cut.into_iter().filter(|base_offset| damaged.remove(&(replica, *base_offset))).collect()
    }

    /// Notes the outcome of a look at a segment.
    pub(crate) fn note_damaged(&self, replica: ReplicaId, base_offset: i64, is_damaged: bool) {
        let mut damaged = lock(&self.damaged);
        if !is_damaged {
            damaged.remove(&(replica, base_offset));
        } else if damaged.len() < SUSPECTS_MAX {
            damaged.insert((replica, base_offset));
        }
    }

    /// Asks the scrub to look at a segment as soon as possible, unless its damage is known. Without that exception a
    /// reader that fails again and again would keep the disk busy.
    pub(crate) fn suspect(&self, replica: ReplicaId, base_offset: i64) {
        if lock(&self.damaged).contains(&(replica, base_offset)) {
            return;
        }
        let mut suspects = lock(&self.suspects);
        if suspects.len() < SUSPECTS_MAX {
            suspects.insert((replica, base_offset));
        }
    }

    pub(crate) fn take_suspect(&self) -> Option<(ReplicaId, i64)> {
        lock(&self.suspects).pop_first()
    }

    pub(crate) fn has_suspects(&self) -> bool {
        !lock(&self.suspects).is_empty()
    }

    pub(crate) fn get(&self, replica: ReplicaId) -> Result<Arc<LogFiles<D>>, ReadError> {
        let logs = self.logs.read().unwrap_or_else(PoisonError::into_inner);
        logs.get(&replica).cloned().ok_or(ReadError::UnknownReplica)
    }

    pub(crate) fn insert(&self, replica: ReplicaId) -> Arc<LogFiles<D>> {
        let files = Arc::new(LogFiles {
            listing: RwLock::new(Listing { segments: Vec::new(), compacted: Compacted::default() }),
            terms: RwLock::new(Vec::new()),
            index: Mutex::new(None),
        });
        let mut logs = self.logs.write().unwrap_or_else(PoisonError::into_inner);
        logs.insert(replica, Arc::clone(&files));
        files
    }

    /// Removes a replica and closes its files: a removed file keeps its space while it is open.
    pub(crate) fn remove(&self, replica: ReplicaId) {
        let removed = self.logs.write().unwrap_or_else(PoisonError::into_inner).remove(&replica);
        if let Some(files) = removed {
            files.retain(|_| false);
        }
    }

    /// Returns the segment's open file. Opens it, and closes the file of another segment, if need be.
    pub(crate) fn file(&self, disk: &D, segment: &Arc<Segment<D>>) -> Result<D::File, ReadError> {
        let mut file = lock(&segment.file);
        match &*file {
            Handle::Open(file) => return Ok(file.clone()),
            Handle::Gone => return Err(ReadError::Removed),
            Handle::Closed => {}
        }
        let path = segment.path();
        let opened = match disk.open(&path) {
            Err(error) if error.raw_os_error() == Some(TOO_MANY_OPEN_FILES) => {
                // Fewer may be open than we would keep: those that are cached make room.
                let cached = std::mem::take(&mut *lock(&self.open));
                for other in cached {
                    // Never waited for: two threads may be here, each with what the other wants.
                    if let Ok(mut file) = other.file.try_lock() {
                        file.close();
                    }
                }
                disk.open(&path)
            }
            opened => opened,
        };
        let opened = opened.map_err(|source| ReadError::Disk { path, source })?;
        *file = Handle::Open(opened.clone());
        drop(file);
        let mut open = lock(&self.open);
        open.push_back(Arc::clone(segment));
        if open.len() > self.cached_max {
            let oldest = open.pop_front();
            drop(open);
            if let Some(oldest) = oldest {
                oldest.close();
            }
        }
        Ok(opened)
    }
}

impl<D: Disk> LogFiles<D> {
    pub(crate) fn segments(&self) -> Vec<Arc<Segment<D>>> {
        self.listing.read().unwrap_or_else(PoisonError::into_inner).segments.clone()
    }

    /// Returns the offset at which the first segment begins, if there is one.
    pub(crate) fn start_offset(&self) -> Option<i64> {
        let listing = self.listing.read().unwrap_or_else(PoisonError::into_inner);
        listing.segments.first().map(|first| first.base_offset)
    }

    /// Returns one past the last offset that is in a segment's file.
    pub(crate) fn end_offset(&self) -> i64 {
        self.last().map_or(0, |last| last.written().1)
    }

    /// Returns the queue index of the log, if one is open.
    pub(crate) fn index(&self) -> Option<Arc<Index<D>>> {
        lock(&self.index).clone()
    }

    /// Sets the queue index of the log. A log that begins anew loses it.
    pub(crate) fn set_index(&self, index: Option<Arc<Index<D>>>) {
        *lock(&self.index) = index;
    }

    /// Returns the segment whose range of offsets contains `offset`.
    pub(crate) fn segment_of(&self, offset: i64) -> Option<Arc<Segment<D>>> {
        self.place_of(offset).map(|(segment, _)| segment)
    }

    /// Returns the same segment, and the index of the entry by which the log was compacted last.
    pub(crate) fn place_of(&self, offset: i64) -> Option<(Arc<Segment<D>>, u64)> {
        let listing = self.listing.read().unwrap_or_else(PoisonError::into_inner);
        let after = listing.segments.partition_point(|segment| segment.base_offset <= offset);
        Some((listing.segments.get(after.checked_sub(1)?).cloned()?, listing.compacted.index))
    }

    /// Puts the segments that a compaction left in the place of all segments below its offset. Some may be the same.
    pub(crate) fn replace(&self, left: Vec<Arc<Segment<D>>>, compacted: Compacted) {
        let mut listing = self.listing.write().unwrap_or_else(PoisonError::into_inner);
        let below = compacted.below;
        let after = listing.segments.partition_point(|segment| segment.base_offset < below);
        let stays = |old: &Arc<Segment<D>>| left.iter().any(|it| Arc::ptr_eq(it, old));
        for old in listing.segments[..after].iter().filter(|old| !stays(old)) {
            *lock(&old.file) = Handle::Gone;
        }
        listing.segments.splice(..after, left);
        debug_assert!(
            listing.segments.is_sorted_by(|a, b| a.base_offset < b.base_offset),
            "segments are in order"
        );
        listing.compacted = compacted;
    }

    /// Returns the index of the entry by which the log was compacted last, or 0.
    pub(crate) fn compaction(&self) -> u64 {
        self.compacted().index
    }

    /// Returns the extent of the log's last compaction.
    pub(crate) fn compacted(&self) -> Compacted {
        self.listing.read().unwrap_or_else(PoisonError::into_inner).compacted
    }

    /// Replaces all segments with those of a feed, which a compaction left. No reader sees a state between.
    pub(crate) fn begin_anew(
        &self,
        given: Vec<Arc<Segment<D>>>,
        compacted: Compacted,
        runs: &[TermRun],
    ) {
        let mut listing = self.listing.write().unwrap_or_else(PoisonError::into_inner);
        for old in std::mem::replace(&mut listing.segments, given) {
            *lock(&old.file) = Handle::Gone;
        }
        if !sabotage::is(Bug::IndexOutlivesLog) {
            *lock(&self.index) = None;
        }
        listing.compacted = compacted;
        let terms = runs.iter().map(|run| (run.start_offset, run.term)).collect();
        *self.terms.write().unwrap_or_else(PoisonError::into_inner) = terms;
    }

    /// Sets the extent of the log's last compaction, as recovery found it.
    pub(crate) fn set_compacted(&self, compacted: Compacted) {
        self.listing.write().unwrap_or_else(PoisonError::into_inner).compacted = compacted;
    }

    /// Shows readers the term runs, if they have changed.
    pub(crate) fn set_terms(&self, runs: &[TermRun]) {
        let same = |known: &[(i64, u64)]| {
            known.len() == runs.len()
                && known.last().map(|it| it.1) == runs.last().map(|it| it.term)
        };
        if !same(&self.terms.read().unwrap_or_else(PoisonError::into_inner)) {
            let terms = runs.iter().map(|run| (run.start_offset, run.term)).collect();
            *self.terms.write().unwrap_or_else(PoisonError::into_inner) = terms;
        }
    }

    /// Returns the term in which a leader appended the batch at `offset`.
    pub(crate) fn term_at(&self, offset: i64) -> Option<u64> {
        let terms = self.terms.read().unwrap_or_else(PoisonError::into_inner);
        let after = terms.partition_point(|(start, _)| *start <= offset);
        Some(terms.get(after.checked_sub(1)?)?.1)
    }

    /// Prepares for a cut of the log at an offset: [`LogFiles::term_at`] no longer tells the term of what lies behind
    /// it. Returns the base offsets of the segments that the cut reaches.
    fn unsettle(&self, end_offset: i64) -> Vec<i64> {
        let mut concerned = Vec::new();
        for segment in self.segments() {
            let mut view = lock(&segment.view);
            if view.end_offset > end_offset {
                view.cuts += 1;
                view.settled = (0, segment.base_offset);
                concerned.push(segment.base_offset);
            }
        }
        concerned
    }

    pub(crate) fn last(&self) -> Option<Arc<Segment<D>>> {
        self.listing.read().unwrap_or_else(PoisonError::into_inner).segments.last().cloned()
    }

    /// Shows a new segment. `state` may already hold more than is written: only what
    /// [`Segment::extend`] adds is shown.
    pub(crate) fn push(&self, segment: Arc<Segment<D>>) {
        let mut listing = self.listing.write().unwrap_or_else(PoisonError::into_inner);
        let last = listing.segments.last();
        let is_next = last.is_none_or(|last| last.base_offset < segment.base_offset);
        assert!(is_next, "segments are in order");
        listing.segments.push(segment);
    }

    /// Hides and closes the segments that `keep` refuses, by their base offset.
    pub(crate) fn retain(&self, keep: impl Fn(i64) -> bool) {
        let mut listing = self.listing.write().unwrap_or_else(PoisonError::into_inner);
        listing.segments.retain(|segment| {
            let kept = keep(segment.base_offset);
            if !kept {
                *lock(&segment.file) = Handle::Gone;
            }
            kept
        });
    }
}

impl<D: Disk> Segment<D> {
    /// Creates a segment with nothing in it yet.
    pub(crate) fn new(dir: &str, base_offset: i64, file: D::File) -> Arc<Self> {
        Arc::new(Self {
            base_offset,
            generation: 0,
            index_crc: 0,
            stem: format!("{dir}/{}", segment_stem(base_offset, ReplicaId(0), 0)),
            file: Mutex::new(Handle::Open(file)),
            view: Mutex::new(View {
                end_offset: base_offset,
                max_timestamp: -1,
                settled: (0, base_offset),
                ..View::default()
            }),
        })
    }

    /// Creates a segment as recovery found it: the bytes that this process wrote are good, from `good_from` on.
    pub(crate) fn recovered(
        dir: &str,
        replica: ReplicaId,
        state: &SegmentState,
        end_offset: i64,
        good_from: u64,
    ) -> Arc<Self> {
        assert!(good_from <= state.size, "what was rewritten lies in the segment");
        let verified = (good_from < state.size).then_some((good_from, state.size));
        Arc::new(Self {
            base_offset: state.base_offset,
            generation: state.generation,
            index_crc: state.index_crc,
            stem: format!("{dir}/{}", segment_stem(state.base_offset, replica, state.generation)),
            file: Mutex::new(Handle::Closed),
            view: Mutex::new(View {
                size: state.size,
                end_offset,
                max_timestamp: state.max_timestamp,
                index_flushed: state.index_flushed,
                times_flushed: state.times_flushed,
                index_tail: state.index_tail.clone(),
                times_tail: state.times_tail.clone(),
                verified: verified.into_iter().collect(),
                settled: (state.size, end_offset),
                ..View::default()
            }),
        })
    }

    /// Tells whether batches follow each other without a gap. In a segment that compaction made there may be gaps.
    pub(crate) fn is_dense(&self) -> bool {
        self.generation == 0
    }

    /// Returns the CRC of the index of a segment that compaction made, until the index was compared with it.
    pub(crate) fn unchecked_index(&self) -> Option<u32> {
        (!self.is_dense() && !lock(&self.view).is_index_checked).then_some(self.index_crc)
    }

    /// Notes that the index matches its CRC.
    pub(crate) fn set_index_checked(&self) {
        lock(&self.view).is_index_checked = true;
    }

    /// Returns the paths of all its files.
    pub(crate) fn paths(&self) -> impl Iterator<Item = String> {
        ["log", "index", "timeindex"].into_iter().map(|extension| self.sibling(extension))
    }

    pub(crate) fn path(&self) -> String {
        self.sibling("log")
    }

    pub(crate) fn sibling(&self, extension: &str) -> String {
        format!("{}.{extension}", self.stem)
    }

    /// Bytes in the file, and one past the last offset in it.
    pub(crate) fn written(&self) -> (u64, i64) {
        let view = lock(&self.view);
        (view.size, view.end_offset)
    }

    pub(crate) fn max_timestamp(&self) -> i64 {
        lock(&self.view).max_timestamp
    }

    pub(crate) fn index_flushed(&self) -> u32 {
        lock(&self.view).index_flushed
    }

    pub(crate) fn times_flushed(&self) -> u32 {
        lock(&self.view).times_flushed
    }

    pub(crate) fn index_tail_floor(&self, delta: u32) -> Option<IndexEntry> {
        let view = lock(&self.view);
        let after = view.index_tail.partition_point(|entry| entry.offset_delta <= delta);
        view.index_tail.get(after.checked_sub(1)?).copied()
    }

    /// Returns the last index entry at or before a position, of those not flushed.
    pub(crate) fn index_tail_before(&self, position: u64) -> Option<IndexEntry> {
        let view = lock(&self.view);
        let after = view.index_tail.partition_point(|it| u64::from(it.position) <= position);
        view.index_tail.get(after.checked_sub(1)?).copied()
    }

    pub(crate) fn times_tail_floor(&self, timestamp: i64) -> Option<TimeEntry> {
        let view = lock(&self.view);
        let after = view.times_tail.partition_point(|entry| entry.timestamp < timestamp);
        view.times_tail.get(after.checked_sub(1)?).copied()
    }

    /// Returns position and length of the batch that holds `offset`, if it is one of the last. An offset at the very
    /// end has the position of the end.
    pub(crate) fn recent_place(&self, offset: i64) -> Option<(u64, u32)> {
        let view = lock(&self.view);
        let after = view.recent.partition_point(|(base, _)| *base <= offset);
        let (_, at) = view.recent.get(after.checked_sub(1)?)?;
        let next = view.recent.get(after).map_or(view.size, |(_, next)| *next);
        (offset < view.end_offset).then(|| (*at, u32::try_from(next - at).unwrap_or(u32::MAX)))
    }

    pub(crate) fn is_verified(&self, from: u64, to: u64) -> bool {
        let view = lock(&self.view);
        let after = view.verified.partition_point(|(start, _)| *start <= from);
        after > 0 && view.verified[after - 1].1 >= to
    }

    pub(crate) fn set_verified(&self, from: u64, to: u64) {
        add_range(&mut lock(&self.view).verified, from, to);
    }

    /// Bytes turned out to be bad, or were replaced: whoever reads them checks them.
    pub(crate) fn unverify(&self, from: u64, to: u64) {
        remove_range(&mut lock(&self.view).verified, from, to);
    }

    /// Returns the settled part of the segment: its bytes, and the offset at its end.
    pub(crate) fn settled(&self) -> (u64, i64) {
        lock(&self.view).settled
    }

    /// Returns the number of times that a cut of the log reached into the segment.
    pub(crate) fn cuts(&self) -> u64 {
        lock(&self.view).cuts
    }

    /// Notes the outcome of a look at the segment.
    pub(crate) fn set_damaged(&self, is_damaged: bool) {
        lock(&self.view).is_damaged = is_damaged;
    }

    /// Tells whether the segment is known to be damaged. A reader whose index lookup fails in a damaged segment does
    /// not search it without the index.
    pub(crate) fn is_damaged(&self) -> bool {
        lock(&self.view).is_damaged
    }

    pub(crate) fn is_index_bad(&self) -> bool {
        lock(&self.view).is_index_bad
    }

    /// Stops the use of the segment's index file: until the process ends, readers scan the segment from its
    /// beginning.
    pub(crate) fn distrust_index(&self) {
        if !std::mem::replace(&mut lock(&self.view).is_index_bad, true) {
            let path = self.sibling("index");
            tracing::warn!(
                path,
                "an index is damaged or gone: reads of its segment start at its beginning"
            );
        }
    }

    /// Notes that a checkpoint, taken after so many cuts, is durable.
    pub(crate) fn settle(&self, settled: (u64, i64), cuts: u64) {
        let mut view = lock(&self.view);
        if view.cuts == cuts {
            view.settled = view.settled.max(settled);
        }
    }

    /// Returns all index entries that are not in their file yet.
    pub(crate) fn index_tail(&self) -> Vec<IndexEntry> {
        lock(&self.view).index_tail.clone()
    }

    /// Puts another file in the place of this segment's.
    pub(crate) fn replace(&self, file: D::File) {
        *lock(&self.file) = Handle::Open(file);
    }

    /// Bytes were appended: shows them. `batches` are `(base offset, position)`.
    pub(crate) fn extend(&self, state: &WrittenPart, batches: &[(i64, u64)]) {
        let mut view = lock(&self.view);
        let from = view.size;
        // Records behind a compacted segment's end begin another segment.
        let is_next = !self.is_dense() || batches.first().is_some_and(|(_, at)| *at == from);
        assert!(is_next, "a write begins where the segment ends");
        view.size = state.size;
        view.end_offset = state.end_offset;
        view.max_timestamp = state.max_timestamp;
        view.index_tail.extend_from_slice(&state.index);
        view.times_tail.extend_from_slice(&state.times);
        view.recent.extend(batches);
        let excess = view.recent.len().saturating_sub(RECENT_BATCHES);
        view.recent.drain(..excess);
        add_range(&mut view.verified, from, state.size);
    }

    /// Cuts the segment as the log was cut.
    pub(crate) fn cut(&self, state: &SegmentState, end_offset: i64) {
        let mut view = lock(&self.view);
        assert!(state.size <= view.size, "a cut leaves no more than there was");
        assert!(end_offset <= view.end_offset, "a cut leaves no later offsets");
        view.size = state.size;
        view.end_offset = end_offset;
        view.index_tail.clone_from(&state.index_tail);
        view.times_tail.clone_from(&state.times_tail);
        view.recent.retain(|(base, _)| *base < end_offset);
        view.settled = view.settled.min((state.size, end_offset));
        view.cuts += 1;
        view.verified.retain(|(from, _)| *from < state.size);
        if let Some(last) = view.verified.last_mut() {
            last.1 = last.1.min(state.size);
        }
    }

    /// Counts the first entries of both tails as flushed: they are in their files now.
    pub(crate) fn flushed(&self, index: usize, times: usize) {
        let mut view = lock(&self.view);
        view.index_tail.drain(..index);
        view.times_tail.drain(..times);
        view.index_flushed += u32::try_from(index).expect("a segment has fewer entries");
        view.times_flushed += u32::try_from(times).expect("a segment has fewer entries");
    }

    /// Returns the number of time index entries that readers see.
    pub(crate) fn times_shown(&self) -> usize {
        let view = lock(&self.view);
        view.times_flushed as usize + view.times_tail.len()
    }

    pub(crate) fn show_sealed_time(&self, entry: TimeEntry) {
        lock(&self.view).times_tail.push(entry);
    }

    /// Forgets the open file; the next reader opens it again.
    pub(crate) fn close(&self) {
        lock(&self.file).close();
    }

    /// Tells whether the segment was taken out of the log.
    pub(crate) fn is_gone(&self) -> bool {
        matches!(*lock(&self.file), Handle::Gone)
    }

    /// Returns the segment's file, for the writer.
    pub(crate) fn open(&self, disk: &D) -> io::Result<D::File> {
        let mut file = lock(&self.file);
        if let Handle::Open(file) = &*file {
            return Ok(file.clone());
        }
        let opened = disk.open(&self.path())?;
        *file = Handle::Open(opened.clone());
        Ok(opened)
    }
}

impl<F> Handle<F> {
    fn close(&mut self) {
        if let Self::Open(_) = self {
            *self = Self::Closed;
        }
    }
}

/// Addition of one write to a segment.
#[derive(Clone, Debug, Default)]
pub(crate) struct WrittenPart {
    pub(crate) size: u64,
    pub(crate) end_offset: i64,
    pub(crate) max_timestamp: i64,
    pub(crate) index: Vec<IndexEntry>,
    pub(crate) times: Vec<TimeEntry>,
}

impl WrittenPart {
    /// Adds what the next append wrote.
    pub(crate) fn merge(&mut self, next: Self) {
        assert!(self.size < next.size, "an append makes its segment longer");
        self.size = next.size;
        self.end_offset = next.end_offset;
        self.max_timestamp = next.max_timestamp;
        self.index.extend(next.index);
        self.times.extend(next.times);
    }
}

fn add_range(ranges: &mut Vec<(u64, u64)>, mut from: u64, mut to: u64) {
    if from >= to {
        return;
    }
    let first = ranges.partition_point(|(_, end)| *end < from);
    let last = ranges.partition_point(|(start, _)| *start <= to);
    if first < last {
        from = from.min(ranges[first].0);
        to = to.max(ranges[last - 1].1);
    }
    ranges.splice(first..last, [(from, to)]);
    debug_assert!(ranges.is_sorted_by(|a, b| a.1 <= b.0), "ranges are in order and apart");
}

fn remove_range(ranges: &mut Vec<(u64, u64)>, from: u64, to: u64) {
    let parts = ranges.iter().flat_map(|&(start, end)| {
        [(start, end.min(from)), (start.max(to), end)].into_iter().filter(|it| it.0 < it.1)
    });
    *ranges = parts.collect();
}

#[cfg(test)]
mod tests {
    use super::{add_range, remove_range};

    #[test]
    fn what_is_taken_out_of_ranges_is_in_none() {
        let mut ranges = vec![(0, 10), (20, 30), (40, 50)];
        remove_range(&mut ranges, 5, 25);
        assert_eq!(ranges, [(0, 5), (25, 30), (40, 50)]);
        remove_range(&mut ranges, 42, 44);
        assert_eq!(ranges, [(0, 5), (25, 30), (40, 42), (44, 50)]);
        remove_range(&mut ranges, 0, 100);
        assert_eq!(ranges, []);
    }

    #[test]
    fn ranges_merge_where_they_touch() {
        let mut ranges = Vec::new();
        for (from, to) in [(10, 20), (30, 40), (20, 25), (5, 6), (24, 31), (40, 40)] {
            add_range(&mut ranges, from, to);
        }
        assert_eq!(ranges, [(5, 6), (10, 40)]);
    }
}
