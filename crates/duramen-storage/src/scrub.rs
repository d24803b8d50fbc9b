//! # Room card: scrubbing
//!
//! Purpose:    find damage at rest: read all settled bytes of segments again from the medium, and check them.
//! Owns:       the next bytes to read, the definition of damage, the place behind it where the log goes on.
//! Interface:  [`Scrubber`], [`Found`].
//! Invariants: the scrubber judges only settled bytes: a checkpoint has synced them, so that only damage changes them.
//!             It does not judge a segment that was cut or removed meanwhile. Damaged bytes lose their mark as
//!             verified.
//! Never:      pace, threads, repair (see `mending`); the journal and images, which recovery reads.
//! Tests:      `duramen-sim/tests/promises/mending.rs`; `duramen-sim`, scenario `cluster`.
//! Start at:   [`Scrubber::step`].

use std::io;
use std::sync::Arc;

use crate::catalog::{LogFiles, Segment};
use crate::descriptor::{BATCH_HEADER_BYTES, Descriptor};
use crate::format::INDEX_ENTRY_BYTES;
use crate::mending::{Damage, DamagedRange};
use crate::reader::{ReadError, Reader, fault_of};
use crate::replica_state::IndexEntry;
use crate::{Disk, ReplicaId};

/// Most damaged ranges in one report; the scrub finds the others after the repair of these.
const RANGES_MAX: usize = 64;

/// Outcome of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// Nothing yet.
    Nothing,
    /// A segment is good, as far as it is settled.
    Sound {
        /// Replica that the segment belongs to.
        replica: ReplicaId,
        /// Base offset of the segment.
        segment: i64,
    },
    /// A segment is damaged.
    Damaged(Damage),
    /// All segments were looked at.
    EndOfPass,
}

/// Scrubs one segment after the other, for ever.
#[derive(Debug)]
pub struct Scrubber<D: Disk> {
    reader: Reader<D>,
    /// A pass begins behind this segment, goes on at the first one, and ends with it.
    began: (ReplicaId, i64),
    has_wrapped: bool,
    /// Segment of the last inspection.
    last: Option<(ReplicaId, i64)>,
    /// Inspection of the segment whose turn it is; `urgent` is that of a segment that a reader had trouble with.
    in_turn: Option<Inspection<D>>,
    urgent: Option<Inspection<D>>,
}

/// One segment that is being looked at.
#[derive(Debug)]
struct Inspection<D: Disk> {
    replica: ReplicaId,
    files: Arc<LogFiles<D>>,
    segment: Arc<Segment<D>>,
    cuts: u64,
    /// Position up to which the segment is inspected.
    size: u64,
    end_offset: i64,
    /// File of the segment, opened for this inspection: the system reports write-back errors to those who write.
    /// `None` if the file is not there.
    file: Option<D::File>,
    at: u64,
    offset: i64,
    /// Least number of bytes to read next.
    wanted: usize,
    ranges: Vec<DamagedRange>,
}

impl<D: Disk> Scrubber<D> {
    /// Begins at some replica: a node that restarts often does not inspect the same segments each time.
    pub fn new(reader: Reader<D>, chance: u64) -> Self {
        let replicas = reader.catalog().replicas();
        let at = usize::try_from(chance).unwrap_or(0) % replicas.len().max(1);
        let began = (replicas.get(at).map_or(ReplicaId(0), |it| it.0), i64::MIN);
        let last = Some(began);
        Self { reader, began, has_wrapped: false, last, in_turn: None, urgent: None }
    }

    /// Tells whether a reader had trouble with a segment: its inspection should not wait.
    pub fn is_urgent(&self) -> bool {
        self.urgent.is_some() || self.reader.catalog().has_suspects()
    }

    /// Returns the number of bytes that one pass would read now.
    pub fn bytes(&self) -> u64 {
        let all = self.reader.catalog().replicas();
        let segments = all.iter().flat_map(|(_, files)| files.segments());
        segments.map(|segment| segment.settled().0).sum()
    }

    /// Reads about so many bytes of one segment. Returns the number of bytes read.
    pub fn step(&mut self, bytes_max: usize) -> (u64, Found) {
        if self.urgent.is_none()
            && let Some((replica, base_offset)) = self.reader.catalog().take_suspect()
        {
            self.urgent = self.inspect(replica, base_offset);
        }
        let is_urgent = self.urgent.is_some();
        if !is_urgent && self.in_turn.is_none() {
            let Some((replica, base_offset)) = self.next() else { return (0, Found::EndOfPass) };
            self.in_turn = self.inspect(replica, base_offset);
        }
        let current = if is_urgent { &mut self.urgent } else { &mut self.in_turn };
        let Some(inspection) = current else { return (0, Found::Nothing) };
        let bytes = inspection.step(&self.reader, bytes_max);
        if !inspection.is_over() {
            return (bytes, Found::Nothing);
        }
        let found = current.take().map_or(Found::Nothing, |it| it.finish(&self.reader));
        (bytes, found)
    }

    /// Returns the next segment of this pass.
    fn next(&mut self) -> Option<(ReplicaId, i64)> {
        loop {
            match self.after(self.last) {
                Some(next) if !self.has_wrapped || next <= self.began => {
                    self.last = Some(next);
                    return Some(next);
                }
                None if !self.has_wrapped => (self.has_wrapped, self.last) = (true, None),
                _ => {
                    (self.has_wrapped, self.last) = (false, Some(self.began));
                    return None;
                }
            }
        }
    }

    /// Returns the segment after another one.
    fn after(&self, last: Option<(ReplicaId, i64)>) -> Option<(ReplicaId, i64)> {
        let (mut from, mut after) = last.unwrap_or((ReplicaId(0), i64::MIN));
        loop {
            let (replica, files) = self.reader.catalog().replica_from(from)?;
            let after_here = if replica == from { after } else { i64::MIN };
            let mut bases = files.segments().into_iter().map(|segment| segment.base_offset);
            if let Some(base) = bases.find(|base| *base > after_here) {
                return Some((replica, base));
            }
            (from, after) = (ReplicaId(replica.0.checked_add(1)?), i64::MIN);
        }
    }

    fn inspect(&self, replica: ReplicaId, base_offset: i64) -> Option<Inspection<D>> {
        let files = self.reader.catalog().get(replica).ok()?;
        let segment = files.segment_of(base_offset).filter(|it| it.base_offset == base_offset)?;
        let cuts = segment.cuts();
        let (size, end_offset) = segment.settled();
        if size == 0 {
            return None;
        }
        let file = match self.reader.disk().open(&segment.path()) {
            Ok(file) => Some(file),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => {
                tracing::warn!(path = segment.path(), %error, "cannot open a segment to check it");
                return None;
            }
        };
        Some(Inspection {
            replica,
            files,
            cuts,
            size,
            end_offset,
            file,
            at: 0,
            offset: segment.base_offset,
            wanted: 0,
            ranges: Vec::new(),
            segment,
        })
    }
}

impl<D: Disk> Inspection<D> {
    fn is_over(&self) -> bool {
        self.at >= self.size || self.is_void() || self.ranges.len() >= RANGES_MAX
    }

    /// Tells whether the bytes read are void: the segment was cut or removed meanwhile.
    fn is_void(&self) -> bool {
        self.segment.is_gone() || self.segment.cuts() != self.cuts
    }

    fn finish(self, reader: &Reader<D>) -> Found {
        if self.is_void() {
            return Found::Nothing;
        }
        let (replica, segment) = (self.replica, self.segment.base_offset);
        reader.catalog().note_damaged(replica, segment, !self.ranges.is_empty());
        self.segment.set_damaged(!self.ranges.is_empty());
        if self.ranges.is_empty() {
            return Found::Sound { replica, segment };
        }
        for range in &self.ranges {
            self.segment.unverify(range.at, range.end_at);
        }
        Found::Damaged(Damage { replica, segment, ranges: self.ranges })
    }

    /// Inspects the next piece. Returns the number of bytes read.
    fn step(&mut self, reader: &Reader<D>, bytes_max: usize) -> u64 {
        if self.is_over() {
            return 0;
        }
        let left = usize::try_from(self.size - self.at).unwrap_or(usize::MAX);
        let len = bytes_max.max(self.wanted).max(BATCH_HEADER_BYTES).min(left);
        let read = self.file.as_ref().map(|file| reader.disk().read_medium(file, self.at, len));
        // Of what the medium does not give, as of what is not there, nothing is known to be good.
        let bytes = read.and_then(Result::ok).unwrap_or_default();
        let is_short = bytes.len() < len;
        let mut rest = &bytes[..];
        let is_bad = loop {
            match self.look(reader, rest) {
                Look::Good(batch) => {
                    rest = &rest[batch.length as usize..];
                    self.at += u64::from(batch.length);
                    self.offset = batch.end_offset();
                    if self.at == self.size {
                        let is_dense = self.segment.is_dense();
                        break self.offset > self.end_offset
                            || is_dense && self.offset != self.end_offset;
                    }
                }
                Look::Bad => break true,
                Look::More(wanted) => {
                    self.wanted = wanted;
                    break is_short;
                }
            }
        };
        assert!(self.at <= self.size, "the scrub stays within settled bytes");
        let mut read = bytes.len() as u64;
        if is_bad && self.at == self.size {
            // Each batch fits, and still they do not lead to where the log goes on.
            self.ranges.clear();
            (self.at, self.offset) = (0, self.segment.base_offset);
            self.note((self.size, self.end_offset));
        } else if is_bad {
            let (next, more) = self.next_good(reader);
            read += more;
            self.note(next);
        }
        read
    }

    /// Notes that everything from the current position to another one is damaged.
    fn note(&mut self, (end_at, end_offset): (u64, i64)) {
        let (at, offset) = (self.at, self.offset);
        assert!(at < end_at, "damage has bytes");
        self.ranges.push(DamagedRange { at, end_at, offset, end_offset });
        (self.at, self.offset, self.wanted) = (end_at, end_offset, 0);
    }

    /// Inspects the batch that should begin at the current position.
    fn look(&self, reader: &Reader<D>, bytes: &[u8]) -> Look {
        let left = self.size - self.at;
        if left < BATCH_HEADER_BYTES as u64 {
            return Look::Bad;
        }
        if bytes.len() < BATCH_HEADER_BYTES {
            return Look::More(BATCH_HEADER_BYTES);
        }
        let Ok(batch) = Descriptor::of_batch(bytes, self.at == 0) else { return Look::Bad };
        if u64::from(batch.length) > left {
            return Look::Bad;
        }
        let Some(bytes) = bytes.get(..batch.length as usize) else {
            return Look::More(batch.length as usize);
        };
        let place = (self.offset, self.segment.is_dense());
        // Of an index that cannot be read nothing is known: the batch is looked at by itself.
        let belongs = reader.belongs(&self.segment, self.at, &batch).unwrap_or(true);
        match fault_of(&self.files, &batch, bytes, place) {
            None if belongs => Look::Good(batch),
            _ => Look::Bad,
        }
    }

    /// Returns position and offset of the next good batch behind the current position, or else the end, and the
    /// number of bytes read. An index entry gives the batch's position and last offset. The batch's checksum covers
    /// its number of offsets.
    fn next_good(&self, reader: &Reader<D>) -> ((u64, i64), u64) {
        let end = (self.size, self.end_offset);
        let Some(file) = &self.file else { return (end, 0) };
        let mut read = 0;
        let entries = self.index(reader).unwrap_or_default().into_iter();
        for entry in entries.filter(|entry| u64::from(entry.position) > self.at) {
            let at = u64::from(entry.position);
            let last = self.segment.base_offset + i64::from(entry.offset_delta);
            let Some(left) = self.size.checked_sub(at) else { break };
            let header = reader.disk().read_medium(file, at, BATCH_HEADER_BYTES);
            let Ok(batch) = header.map(|it| Descriptor::of_batch(&it, false)) else { continue };
            let Some(batch) = batch.ok().filter(|it| u64::from(it.length) <= left) else {
                continue;
            };
            let bytes = reader.disk().read_medium(file, at, batch.length as usize);
            let Ok(bytes) = bytes else { continue };
            read += bytes.len() as u64;
            let is_it = batch.end_offset() == last + 1 && batch.base_offset >= self.offset;
            let place = (batch.base_offset, true);
            if is_it && fault_of(&self.files, &batch, &bytes, place).is_none() {
                return ((at, batch.base_offset), read);
            }
        }
        (end, read)
    }

    /// Returns all entries of the segment's index.
    fn index(&self, reader: &Reader<D>) -> io::Result<Vec<IndexEntry>> {
        let flushed = self.segment.index_flushed() as usize;
        let mut entries = Vec::new();
        if flushed > 0 {
            let file = reader.disk().open(&self.segment.sibling("index"))?;
            let mut bytes = vec![0; flushed * INDEX_ENTRY_BYTES];
            let read = reader.disk().read_at(&file, &mut bytes, 0)?;
            let word = |at: &[u8]| u32::from_be_bytes(at.try_into().expect("four bytes"));
            entries.extend(bytes[..read].chunks_exact(INDEX_ENTRY_BYTES).map(|entry| IndexEntry {
                offset_delta: word(&entry[..4]),
                position: word(&entry[4..8]),
            }));
        }
        entries.extend(self.segment.index_tail());
        Ok(entries)
    }
}

/// Outcome of the inspection of one batch.
enum Look {
    Good(Descriptor),
    Bad,
    /// Number of bytes that the inspection needs.
    More(usize),
}

impl<D: Disk> Reader<D> {
    /// Returns the files of all segments of some replicas, each with its settled bytes: for tests that plant rot.
    pub fn settled_files(&self, of: impl Fn(ReplicaId) -> bool) -> Vec<(String, u64)> {
        let all = self.catalog().replicas();
        let all = all.iter().filter(|(replica, _)| of(*replica));
        let segments = all.flat_map(|(_, files)| files.segments());
        segments.map(|segment| (segment.path(), segment.settled().0)).collect()
    }

    /// Asks the scrub to inspect a segment before all others, if a read of it failed.
    pub(crate) fn suspect_of<T>(
        &self,
        replica: ReplicaId,
        result: Result<T, ReadError>,
    ) -> Result<T, ReadError> {
        if let Err(ReadError::Damaged { path, .. } | ReadError::Disk { path, .. }) = &result {
            let name = path.rsplit('/').next().and_then(|name| name.split('.').next());
            if let Some(base_offset) = name.and_then(|name| name.parse().ok()) {
                self.catalog().suspect(replica, base_offset);
            }
        }
        result
    }
}
