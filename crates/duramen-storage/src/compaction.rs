//! # Room card: compaction
//!
//! Purpose:    rewrite the segments of a log below an offset, so that one record of each key stays. Of a log of queues,
//!             rewrite those alone that lose records which edits took away.
//! Owns:       the choice of records that stay; the new files, until storage has them.
//! Interface:  [`Order`], [`Compaction`] on a thread that may wait, [`Storage::install`] on storage's.
//! Invariants: the result is a function of the log and of the order alone: no clock, no memory and no place of a
//!             segment decides anything. So a log that was compacted twice is the same as one compacted once. A
//!             record that stays keeps its offset. Compaction reads only synced, undamaged segments. New files are
//!             whole and synced before storage gets them.
//! Never:      the time and the end of a compaction, which an entry decides; pace and threads.
//! Tests:      `duramen-sim/tests/promises/compaction.rs`, against a model; `duramen-sim`, scenario `node`.
//! Start at:   [`Compaction::step`], [`Rules`], [`Erasure`].
//!
//! Of each key the record with the highest offset stays. A tombstone below the order's horizon goes: every consumer
//! that reads from the beginning has had the time to see it. Transaction markers go like tombstones, records of
//! aborted transactions at once. Records without a key go, because they have no later record to compare
//! with. Only one at the end of the compacted part stays.
//!
//! Compaction knows keys by a hash of 128 bits with a secret key. Memory holds the latest offsets of a limited number
//! of keys. If there are more, compaction reads and writes the log in several passes, each for a part of all hashes.
//! Estimate: a pass reads segments that are not compacted yet twice and the rest once, and takes about 50 bytes a
//! key.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;

use bytes::Bytes;
use duramen_protocol::batch::BatchView;
use duramen_protocol::records::{Record, RecordError, Records, Retained, retain};
use siphasher::sip128::{Hasher128, SipHasher24};
use std::hash::Hasher;

use crate::catalog::{LogFiles, Segment};
use crate::descriptor::{BATCH_HEADER_BYTES, Descriptor};
use crate::format::segment_stem;
use crate::op::Compacted;
use crate::reader::{NOT_AS_INDEXED, ReadError, Reader, fault_of};
use crate::replica_state::SegmentState;
use crate::sabotage::{self, Bug};
use crate::{Disk, ReplicaId};

mod erasing;
mod order;
pub(crate) mod writing;

use erasing::Erasure;
use order::RECORD_BYTES_MAX;
pub use order::{Aborted, CompactionError, Means, Order};
use writing::SegmentWriter;

/// Bytes per read.
const BUFFER_BYTES: usize = 256 * 1024;

/// Outcome of a step.
#[derive(Debug)]
pub enum Progress<D: Disk> {
    /// More steps are to come.
    More,
    /// The new segments are complete.
    Done(Box<Made<D>>),
}

/// Segments that are ready to take the place of all below an offset.
#[derive(Debug)]
pub struct Made<D: Disk> {
    pub(crate) replica: ReplicaId,
    pub(crate) compacted: Compacted,
    /// Segments below, each with its number of cuts.
    pub(crate) run: Vec<(Arc<Segment<D>>, u64)>,
    /// Base offsets of those that stay as they are.
    pub(crate) kept: BTreeSet<i64>,
    pub(crate) segments: Vec<SegmentState>,
    /// Paths of all files that the compaction made.
    pub(crate) paths: Vec<String>,
}

/// Rules for the records of one pass.
#[derive(Debug)]
pub(crate) struct Rules {
    hash_key: (u64, u64),
    below: i64,
    tombstones_below: i64,
    /// Last offset of each aborted transaction, by producer id and first offset.
    aborted: BTreeMap<(i64, i64), i64>,
    /// First and last hash of the pass's part of all keys, both included.
    part: (u128, u128),
    /// Last offset of each key of this part in the segments that are not compacted yet, by the key's hash.
    latest: BTreeMap<u128, i64>,
    keys_max: usize,
}

impl Rules {
    pub(crate) fn new(order: &Order, means: &Means) -> Self {
        let tombstones_below = if sabotage::is(Bug::TombstonesGoEarly) {
            order.compacted.below
        } else {
            order.compacted.tombstones_below
        };
        let aborted = order.aborted.iter();
        Self {
            hash_key: means.hash_key,
            below: order.compacted.below,
            tombstones_below,
            aborted: aborted
                .map(|it| ((it.producer_id, it.first_offset), it.last_offset))
                .collect(),
            part: (0, u128::MAX),
            latest: BTreeMap::new(),
            keys_max: means.keys_max.max(1),
        }
    }

    /// Begins the next pass with the keys after the current part. Returns false if there are none.
    pub(crate) fn next_part(&mut self) -> bool {
        let Some(from) = self.part.1.checked_add(1) else { return false };
        assert!(self.part.0 < from, "each pass takes other keys");
        self.part = (from, u128::MAX);
        self.latest.clear();
        true
    }

    fn is_last_part(&self) -> bool {
        self.part.1 == u128::MAX
    }

    fn hash(&self, key: &[u8]) -> u128 {
        let mut hasher = SipHasher24::new_with_keys(self.hash_key.0, self.hash_key.1);
        hasher.write(key);
        hasher.finish128().as_u128()
    }

    fn is_aborted(&self, batch: &Descriptor) -> bool {
        if !batch.transactional || batch.control {
            return false;
        }
        let from = (batch.producer_id, i64::MIN);
        let upto = (batch.producer_id, batch.base_offset);
        let mut begun = self.aborted.range(from..=upto);
        begun.next_back().is_some_and(|(_, last)| batch.base_offset <= *last)
    }

    /// Takes in the keys of a batch that was not compacted yet. Batches come in their order.
    pub(crate) fn note(&mut self, batch: &Descriptor, view: &BatchView) -> Result<(), RecordError> {
        if batch.control || self.is_aborted(batch) {
            return Ok(());
        }
        let records = Records::of(view, RECORD_BYTES_MAX)?;
        for record in &records {
            let record = record?;
            let Some(key) = record.key else { continue };
            let hash = self.hash(key);
            let is_kept = sabotage::is(Bug::OldestStays) && self.latest.contains_key(&hash);
            if (self.part.0..=self.part.1).contains(&hash) && !is_kept {
                self.latest.insert(hash, records.offset(&record));
            }
        }
        while self.latest.len() > self.keys_max && self.part.0 < self.part.1 {
            // Half of them wait for the next pass.
            let (low, high) = self.part;
            self.part.1 = low + (high - low) / 2;
            self.latest.split_off(&(self.part.1 + 1));
        }
        Ok(())
    }

    /// Returns the rest of a batch, once the pass has taken in all keys.
    pub(crate) fn judge(
        &self,
        batch: &Descriptor,
        view: &BatchView,
    ) -> Result<Retained, RecordError> {
        if batch.control {
            let goes = batch.marker.is_some() && batch.base_offset < self.tombstones_below;
            return Ok(if goes { Retained::Nothing } else { Retained::All });
        }
        if self.is_aborted(batch) {
            return Ok(Retained::Nothing);
        }
        retain(view, RECORD_BYTES_MAX, |offset, record| self.stays(offset, record))
    }

    fn stays(&self, offset: i64, record: &Record<'_>) -> bool {
        // A record without a key dates from a time when the topic was not compacted. One that ends the log stays: a
        // reader in a gap finds it.
        let Some(key) = record.key else { return offset + 1 == self.below };
        let hash = self.hash(key);
        if !(self.part.0..=self.part.1).contains(&hash) {
            return true;
        }
        let latest = self.latest.get(&hash);
        let is_latest = if sabotage::is(Bug::OldestStays) {
            latest.is_none_or(|latest| offset <= *latest)
        } else {
            latest.is_none_or(|latest| offset >= *latest)
        };
        // A tombstone must not go before all that it stands for: those are judged in the same pass.
        is_latest && (record.value.is_some() || offset >= self.tombstones_below)
    }
}

/// One file that a pass reads.
#[derive(Debug)]
struct Source<D: Disk> {
    path: String,
    base_offset: i64,
    end_offset: i64,
    size: u64,
    /// As it was found. If there is none, this compaction made it in the pass before.
    segment: Option<Arc<Segment<D>>>,
    /// True if the segment before it stays as it is.
    is_apart: bool,
}

/// Choice of the records that stay.
#[derive(Debug)]
enum Choice {
    /// The last record of each key.
    Latest(Rules),
    /// All that no edit took away.
    Erasure(Erasure),
}

/// Where a pass reads.
#[derive(Debug)]
struct Place<D: Disk> {
    source: usize,
    at: u64,
    offset: i64,
    file: Option<D::File>,
    window: Bytes,
    window_at: u64,
}

impl<D: Disk> Place<D> {
    fn at_source(source: usize) -> Self {
        let (window, file) = (Bytes::new(), None);
        Self { source, at: 0, offset: 0, file, window, window_at: 0 }
    }
}

/// Stage of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Keys,
    Copy,
}

impl Choice {
    /// Takes those segments out that stay as they are, and returns their base offsets. Emptied ones join a neighbour
    /// that is written anew.
    fn keep<D: Disk>(&self, sources: &mut Vec<Source<D>>) -> BTreeSet<i64> {
        let Self::Erasure(erasure) = self else { return BTreeSet::new() };
        let mut kept = BTreeSet::new();
        let mut is_apart = true;
        sources.retain_mut(|source| {
            source.is_apart = is_apart;
            let is_touched = erasure.touches(source.base_offset, source.end_offset);
            is_apart = !is_touched && (is_apart || source.size > 0);
            if is_apart {
                kept.insert(source.base_offset);
            }
            !is_apart
        });
        kept
    }

    fn is_last_part(&self) -> bool {
        match self {
            Self::Latest(rules) => rules.is_last_part(),
            Self::Erasure(_) => true,
        }
    }

    fn next_part(&mut self) -> bool {
        match self {
            Self::Latest(rules) => rules.next_part(),
            Self::Erasure(_) => false,
        }
    }
}

/// One log that is being compacted, a slice at a time.
#[derive(Debug)]
pub struct Compaction<D: Disk> {
    reader: Reader<D>,
    order: Order,
    files: Arc<LogFiles<D>>,
    run: Vec<(Arc<Segment<D>>, u64)>,
    /// Base offsets of segments that stay as they are.
    kept: BTreeSet<i64>,
    /// Offset from which the log was never compacted.
    dirty_from: i64,
    dir: String,
    choice: Choice,
    free_bytes_min: u64,
    pass: u32,
    stage: Stage,
    sources: Vec<Source<D>>,
    place: Place<D>,
    writing: Option<SegmentWriter<D>>,
    /// Segments of this pass that are written.
    written: Vec<(SegmentState, String)>,
    paths: Vec<String>,
}

impl<D: Disk> Compaction<D> {
    /// Begins at a log whose segments below the order's offset rest on the medium.
    pub fn begin(reader: &Reader<D>, order: Order, means: &Means) -> Result<Self, CompactionError> {
        let files = reader.catalog().get(order.replica).map_err(|_| CompactionError::Changed)?;
        let below = order.compacted.below;
        if files.compaction() >= order.compacted.index {
            return Err(CompactionError::Changed);
        }
        let all = files.segments();
        let after = all.partition_point(|it| it.base_offset < below);
        // Where no segment begins there yet, the log must end there: then it is the last one's end that is compared.
        if after == 0 || all.get(after).is_some_and(|next| next.base_offset != below) {
            return Err(CompactionError::Changed);
        }
        let run: Vec<_> = all[..after].iter().map(|it| (Arc::clone(it), it.cuts())).collect();
        let ends = all[1..after].iter().map(|next| next.base_offset).chain([below]);
        let mut sources = Vec::new();
        for ((segment, _), end_offset) in run.iter().zip(ends) {
            let (size, written_end) = segment.written();
            if segment.settled() != (size, written_end) || written_end != end_offset {
                return Err(CompactionError::Unsettled);
            }
            sources.push(Source {
                path: segment.path(),
                base_offset: segment.base_offset,
                end_offset,
                size,
                segment: Some(Arc::clone(segment)),
                is_apart: false,
            });
        }
        let (choice, stage) = match order.erases_since {
            None => (Choice::Latest(Rules::new(&order, means)), Stage::Keys),
            Some(since) => (Choice::Erasure(Erasure::plan(reader, &order, since)?), Stage::Copy),
        };
        let dir = sources[0].path.rsplit_once('/').map_or("", |(dir, _)| dir).to_owned();
        let kept = choice.keep(&mut sources);
        let bytes: u64 = sources.iter().map(|it| it.size).sum();
        Self::look_for_room(reader, &dir, means.free_bytes_min.saturating_add(bytes))?;
        let dirty = run.iter().find(|(segment, _)| segment.is_dense());
        let mut compaction = Self {
            reader: reader.clone(),
            choice,
            free_bytes_min: means.free_bytes_min,
            order,
            files,
            dirty_from: dirty.map_or(below, |(segment, _)| segment.base_offset),
            run,
            kept,
            dir,
            pass: 1,
            stage,
            sources,
            place: Place::at_source(0),
            writing: None,
            written: Vec::new(),
            paths: Vec::new(),
        };
        if stage == Stage::Keys {
            compaction.place = Place::at_source(compaction.first_dirty());
        }
        Ok(compaction)
    }

    fn look_for_room(reader: &Reader<D>, dir: &str, bytes: u64) -> Result<(), CompactionError> {
        match reader.disk().available() {
            Ok(available) if available < bytes => Err(CompactionError::NoRoom),
            Ok(_) => Ok(()),
            Err(source) => Err(CompactionError::Disk { path: dir.to_owned(), source }),
        }
    }

    /// Returns the replica whose log is compacted.
    pub fn replica(&self) -> ReplicaId {
        self.order.replica
    }

    fn first_dirty(&self) -> usize {
        self.sources.partition_point(|it| it.end_offset <= self.dirty_from)
    }

    /// Reads about so many bytes, and writes the records that stay. After an error the compaction has removed its
    /// files.
    pub fn step(&mut self, bytes_max: u64) -> Result<Progress<D>, CompactionError> {
        let stepped = self.try_step(bytes_max);
        if stepped.is_err() {
            self.discard();
        }
        stepped
    }

    /// Removes the files that the compaction made.
    pub fn discard(&mut self) {
        self.writing = None;
        for path in self.paths.drain(..) {
            // Else the next start removes it.
            let _ = self.reader.disk().remove_file(&path);
        }
    }

    fn try_step(&mut self, bytes_max: u64) -> Result<Progress<D>, CompactionError> {
        // Appends go first, also when it has begun.
        Self::look_for_room(&self.reader, &self.dir, self.free_bytes_min)?;
        let mut read = 0;
        while read < bytes_max {
            let Some(source) = self.sources.get(self.place.source) else {
                if self.stage == Stage::Keys {
                    (self.stage, self.place) = (Stage::Copy, Place::at_source(0));
                } else if self.end_pass()? {
                    return self.end().map(Progress::Done);
                }
                continue;
            };
            if self.place.at == 0 && self.place.file.is_none() {
                self.begin_source()?;
                continue;
            }
            if self.place.at >= source.size {
                self.place = Place::at_source(self.place.source + 1);
                continue;
            }
            let (batch, bytes) = self.next_batch()?;
            read += bytes.len() as u64;
            self.take(&batch, &bytes)?;
        }
        Ok(Progress::More)
    }

    fn begin_source(&mut self) -> Result<(), CompactionError> {
        let source = &self.sources[self.place.source];
        self.place.offset = source.base_offset;
        let opened = self.reader.disk().open(&source.path);
        self.place.file = Some(opened.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => CompactionError::Changed,
            _ => CompactionError::Disk { path: source.path.clone(), source: error },
        })?);
        if self.stage == Stage::Keys {
            return Ok(());
        }
        let (base_offset, end_offset, size) = (source.base_offset, source.end_offset, source.size);
        let is_apart = source.is_apart;
        let has_room = self.writing.as_ref().filter(|_| !is_apart).is_some_and(|writing| {
            writing.size() + size <= self.order.segment_bytes.min(1 << 31)
                && end_offset - writing.base_offset() <= i64::from(i32::MAX)
        });
        if has_room {
            return Ok(());
        }
        self.end_segment()?;
        self.begin_segment(base_offset)
    }

    /// Returns the batch at the current place, whole and checked.
    fn next_batch(&mut self) -> Result<(Descriptor, Bytes), CompactionError> {
        let source = &self.sources[self.place.source];
        let left = usize::try_from(source.size - self.place.at).unwrap_or(usize::MAX);
        let damaged = |place: &Place<D>, what: &str| CompactionError::Damaged {
            path: source.path.clone(),
            at: place.at,
            what: what.to_owned(),
        };
        let mut wanted = BATCH_HEADER_BYTES.min(left);
        loop {
            let skip = usize::try_from(self.place.at - self.place.window_at).unwrap_or(usize::MAX);
            let there = self.place.window.len().saturating_sub(skip);
            if there < wanted {
                let len = wanted.max(BUFFER_BYTES).min(left);
                let file = self.place.file.as_ref().expect("a source is opened first");
                // Files of this compaction are in the page cache; it reads every other segment from the medium.
                let read = if source.segment.is_some() {
                    self.reader.disk().read_medium(file, self.place.at, len)
                } else {
                    let mut bytes = vec![0; len];
                    let read = self.reader.disk().read_at(file, &mut bytes, self.place.at);
                    read.map(|read| {
                        bytes.truncate(read);
                        bytes
                    })
                };
                let bytes = read.map_err(|error| CompactionError::Disk {
                    path: source.path.clone(),
                    source: error,
                })?;
                (self.place.window, self.place.window_at) = (bytes.into(), self.place.at);
                if self.place.window.len() < wanted {
                    return Err(
                        self.suspect(damaged(&self.place, "the file is shorter than it was"))
                    );
                }
                continue;
            }
            let rest = self.place.window.slice(skip..);
            let Ok(batch) = Descriptor::of_batch(&rest, self.place.at == 0) else {
                return Err(self.suspect(damaged(&self.place, "there is no batch")));
            };
            let length = batch.length as usize;
            if length > left || batch.end_offset() > source.end_offset {
                return Err(self.suspect(damaged(&self.place, "a batch reaches past the end")));
            }
            if rest.len() < length {
                wanted = length;
                continue;
            }
            let bytes = rest.slice(..length);
            let is_dense = source.segment.as_ref().is_some_and(|it| it.is_dense());
            let mut fault = fault_of(&self.files, &batch, &bytes, (self.place.offset, is_dense));
            if let Some(segment) = &source.segment {
                match self.reader.belongs(segment, self.place.at, &batch) {
                    Ok(true) => {}
                    Ok(false) => fault = fault.or(Some(NOT_AS_INDEXED)),
                    Err(ReadError::Disk { path, source }) => {
                        return Err(CompactionError::Disk { path, source });
                    }
                    Err(_) => return Err(CompactionError::Changed),
                }
            }
            if let Some(what) = fault {
                return Err(self.suspect(damaged(&self.place, what)));
            }
            return Ok((batch, bytes));
        }
    }

    /// Asks the scrub to look at the damaged source, and returns the error.
    fn suspect(&self, error: CompactionError) -> CompactionError {
        let base_offset = self.sources[self.place.source].base_offset;
        self.reader.catalog().suspect(self.order.replica, base_offset);
        error
    }

    fn take(&mut self, batch: &Descriptor, bytes: &Bytes) -> Result<(), CompactionError> {
        let (path, at) = (self.sources[self.place.source].path.clone(), self.place.at);
        let unreadable = |error: &dyn std::fmt::Display| {
            let (path, what) = (path.clone(), error.to_string());
            CompactionError::Damaged { path, at, what }
        };
        self.place.at += u64::from(batch.length);
        self.place.offset = batch.end_offset();
        let view = match BatchView::parse(bytes) {
            Ok(view) => view,
            Err(error) => return Err(unreadable(&error)),
        };
        // Of a whole batch a marker says how its transaction ended.
        let whole = Descriptor::of_batch(bytes, false).unwrap_or(*batch);
        let left = match &mut self.choice {
            Choice::Latest(rules) if self.stage == Stage::Keys => {
                if batch.base_offset >= self.dirty_from {
                    rules.note(&whole, &view).map_err(|error| unreadable(&error))?;
                }
                return Ok(());
            }
            Choice::Latest(rules) => {
                rules.judge(&whole, &view).map_err(|error| unreadable(&error))?
            }
            Choice::Erasure(erasure) => {
                erasure.judge(&whole, &view).map_err(|error| unreadable(&error))?
            }
        };
        match left {
            Retained::All => self.put(&whole, bytes),
            Retained::Part(bytes) => {
                let part = Descriptor::of_batch(&bytes, false);
                let part = part.map_err(|error| unreadable(&error))?;
                self.put(&part, &bytes)
            }
            Retained::Nothing => Ok(()),
        }
    }
}

/// The writing half: new segments.
impl<D: Disk> Compaction<D> {
    fn begin_segment(&mut self, base_offset: i64) -> Result<(), CompactionError> {
        let is_final = self.choice.is_last_part();
        // Storage knows at which index it begins.
        let mut state = SegmentState::new(base_offset, 0);
        state.generation = self.order.compacted.index;
        let name = segment_stem(base_offset, self.order.replica, state.generation);
        let mut stem = format!("{}/{name}", self.dir);
        if !is_final {
            stem = format!("{stem}.pass{}", self.pass);
        }
        let disk = self.reader.disk();
        let begun = SegmentWriter::begin(disk, state, stem, is_final, &mut self.paths)?;
        self.writing = Some(begun);
        Ok(())
    }

    fn put(&mut self, batch: &Descriptor, bytes: &[u8]) -> Result<(), CompactionError> {
        let writing = self.writing.as_mut().expect("a segment was begun at the source");
        Ok(writing.put(batch, bytes, &mut self.paths)?)
    }

    /// Ends the segment being written, which is whole.
    fn end_segment(&mut self) -> Result<(), CompactionError> {
        let Some(writing) = self.writing.take() else { return Ok(()) };
        let last = self.written.last().map_or(-1, |(state, _)| state.base_offset);
        assert!(last < writing.base_offset(), "compacted segments are in order");
        self.written.push(writing.end(&mut self.paths)?);
        Ok(())
    }

    /// Ends a pass, once all of it is written. Returns true if it was the last.
    fn end_pass(&mut self) -> Result<bool, CompactionError> {
        self.end_segment()?;
        let old = std::mem::take(&mut self.sources);
        for source in old.iter().filter(|it| it.segment.is_none()) {
            let _ = self.reader.disk().remove_file(&source.path);
            self.paths.retain(|path| *path != source.path);
        }
        if !self.choice.next_part() {
            return Ok(true);
        }
        self.pass += 1;
        let written = std::mem::take(&mut self.written);
        let ends = written.iter().skip(1).map(|(state, _)| state.base_offset);
        let ends: Vec<i64> = ends.chain([self.order.compacted.below]).collect();
        let sources = written.into_iter().zip(ends).map(|((state, path), end_offset)| Source {
            path,
            base_offset: state.base_offset,
            end_offset,
            size: state.size,
            segment: None,
            is_apart: false,
        });
        self.sources = sources.collect();
        (self.stage, self.place) = (Stage::Keys, Place::at_source(self.first_dirty()));
        Ok(false)
    }

    fn end(&mut self) -> Result<Box<Made<D>>, CompactionError> {
        let dir = &self.dir;
        let synced = self.reader.disk().sync_dir(dir);
        synced.map_err(|source| CompactionError::Disk { path: dir.clone(), source })?;
        let first = self.written.first().map(|(state, _)| state.base_offset);
        let all = self.run.iter().map(|(segment, _)| segment.base_offset);
        let replaced = all.into_iter().find(|base| !self.kept.contains(base));
        assert_eq!(first, replaced, "compacted segments begin where those that they replace do");
        let made = Made {
            replica: self.order.replica,
            compacted: self.order.compacted,
            run: std::mem::take(&mut self.run),
            kept: std::mem::take(&mut self.kept),
            segments: self.written.drain(..).map(|(state, _)| state).collect(),
            paths: std::mem::take(&mut self.paths),
        };
        Ok(Box::new(made))
    }
}
