//! # Room card: staging
//!
//! Purpose:    write the prefix of a compacted log that another replica gives into files. One journal record later
//!             makes these files this replica's.
//! Owns:       the given prefix, from the first batch until the log begins anew with it; the checks of its batches.
//! Interface:  [`Stage`] for [`Stagings::carry_out`] on a thread that may wait; [`crate::Storage::stage`] on storage's,
//!             and then [`crate::OpKind::Reset`].
//! Invariants: one compaction left the whole prefix. Staging accepts a batch only if it follows its predecessor and
//!             lies in its segment. The batch must match its checksum, and have the term known for its offset. Staging
//!             syncs all files and names before storage gets them. The files have names that nothing else has; the next
//!             start removes files that no record names.
//! Never:      the source of the prefix, and the check that one compaction left it (see the node's `feeding`).
//! Tests:      `duramen-sim/tests/promises/compaction.rs`; `duramen-sim`, scenario `cluster`.
//! Start at:   [`Staging::put`].

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::compaction::writing::{SegmentWriter, WriteError};
use crate::format::{GIVEN, segment_stem};
use crate::op::{Compacted, Done, Given, Identity, SegmentMeta};
use crate::replica_state::SegmentState;
use crate::{Descriptor, Disk, Reader, ReplicaId};

/// Step of a feed: batches of a compacted log that another replica sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stage {
    /// A feed begins. It replaces the earlier feed of this replica.
    Begin {
        /// Replica that the feed is for.
        replica: ReplicaId,
        /// Topic and partition of the replica.
        identity: Identity,
        /// Description of the fed part of the log.
        given: Given,
    },
    /// Next part of the feed. Answered by [`Done::Put`]; the last part, if all is well, by [`Done::Staged`].
    Put {
        /// Replica that the feed is for.
        replica: ReplicaId,
        /// [`Given::number`].
        number: u64,
        /// Whole batches.
        batches: Bytes,
        /// True if this is the last part.
        is_last: bool,
    },
    /// The replica no longer wants the feed.
    Drop {
        /// Replica that the feed was for.
        replica: ReplicaId,
    },
}

/// Outcome of a [`Stage`].
#[derive(Debug)]
pub enum Outcome {
    /// Report for the node.
    Done(Done),
    /// Complete feed for storage.
    Staged(Box<Staged>),
}

/// Complete feed of a log, on the medium.
#[derive(Debug)]
pub struct Staged {
    pub(crate) replica: ReplicaId,
    pub(crate) number: u64,
    pub(crate) compacted: Compacted,
    pub(crate) segments: Vec<SegmentState>,
    pub(crate) paths: Vec<String>,
}

/// Reason why a part is refused.
#[derive(Debug, thiserror::Error)]
enum Refused {
    #[error("the log is compacted as far already")]
    Surplus,
    #[error("what another replica gave does not fit: {0}")]
    Unfit(&'static str),
    #[error("there is no room for it")]
    NoRoom,
    #[error("the disk failed at {path}")]
    Disk {
        path: String,
        #[source]
        source: std::io::Error,
    },
}

impl From<WriteError> for Refused {
    fn from(error: WriteError) -> Self {
        match error {
            WriteError::TooLarge => Self::Unfit("a segment would be too large"),
            WriteError::NoRoom => Self::NoRoom,
            WriteError::Disk { path, source } => Self::Disk { path, source },
        }
    }
}

/// Feed of one log, as far as it has arrived.
#[derive(Debug)]
struct Staging<D: Disk> {
    reader: Reader<D>,
    replica: ReplicaId,
    dir: String,
    given: Given,
    /// Offset after the batches that have arrived.
    offset: i64,
    writing: Option<SegmentWriter<D>>,
    written: Vec<SegmentState>,
    paths: Vec<String>,
}

/// All feeds in progress.
#[derive(Debug)]
pub struct Stagings<D: Disk> {
    all: BTreeMap<ReplicaId, Staging<D>>,
}

impl<D: Disk> Default for Stagings<D> {
    fn default() -> Self {
        Self { all: BTreeMap::new() }
    }
}

impl<D: Disk> Stagings<D> {
    /// Carries out a step. `free_bytes_min` bytes must stay free on the disk.
    pub fn carry_out(
        &mut self,
        reader: &Reader<D>,
        stage: Stage,
        free_bytes_min: u64,
    ) -> Option<Outcome> {
        match stage {
            Stage::Begin { replica, identity, given } => {
                self.drop(replica);
                let staging = Staging {
                    reader: reader.clone(),
                    replica,
                    dir: identity.dir(),
                    offset: given.segments.first().map_or(0, |it| it.base_offset),
                    given,
                    writing: None,
                    written: Vec::new(),
                    paths: Vec::new(),
                };
                self.all.insert(replica, staging);
                None
            }
            Stage::Drop { replica } => {
                self.drop(replica);
                None
            }
            Stage::Put { replica, number, batches, is_last } => {
                let staging = self.all.get_mut(&replica).filter(|it| it.given.number == number);
                let Some(staging) = staging else {
                    return Some(Outcome::Done(Done::Put { replica, number, next: None }));
                };
                let put = staging.put(&batches, free_bytes_min);
                let put = put.and_then(|()| if is_last { staging.end() } else { Ok(()) });
                if let Err(why) = put {
                    tracing::warn!(replica = replica.0, %why, "storage refuses a piece of a feed");
                    self.drop(replica);
                    return Some(Outcome::Done(Done::Put { replica, number, next: None }));
                }
                if !is_last {
                    let next = Some(staging.offset);
                    return Some(Outcome::Done(Done::Put { replica, number, next }));
                }
                let staging = self.all.remove(&replica)?;
                let compacted = staging.given.compacted;
                let wanted = staging.given.segments.len();
                assert_eq!(staging.written.len(), wanted, "a whole feed has all segments");
                let (segments, paths) = (staging.written, staging.paths);
                let staged = Staged { replica, number, compacted, segments, paths };
                Some(Outcome::Staged(Box::new(staged)))
            }
        }
    }

    fn drop(&mut self, replica: ReplicaId) {
        let Some(staging) = self.all.remove(&replica) else { return };
        for path in staging.paths {
            // Else the next start removes it.
            let _ = staging.reader.disk().remove_file(&path);
        }
    }
}

impl<D: Disk> Staging<D> {
    /// Adds batches. After an error the whole feed is of no use.
    fn put(&mut self, batches: &Bytes, free_bytes_min: u64) -> Result<(), Refused> {
        let disk = self.reader.disk().clone();
        let failed = |path: &str, source| Refused::Disk { path: path.to_owned(), source };
        let room = free_bytes_min.saturating_add(batches.len() as u64);
        if disk.available().map_err(|error| failed(&self.dir, error))? < room {
            return Err(Refused::NoRoom);
        }
        if self.writing.is_none() {
            let here = self.reader.catalog().get(self.replica).map_err(|_| Refused::Surplus)?;
            if here.compaction() >= self.given.compacted.index {
                return Err(Refused::Surplus);
            }
            disk.create_dir(&self.dir).map_err(|error| failed(&self.dir, error))?;
            self.begin_segment()?;
        }
        let mut rest = &batches[..];
        while !rest.is_empty() {
            let batch = Descriptor::of_batch(rest, false);
            let batch = batch.map_err(|_| Refused::Unfit("there is no batch"))?;
            let bytes = rest.get(..batch.length as usize);
            let bytes = bytes.ok_or(Refused::Unfit("a batch is cut short"))?;
            while self.segment_end() <= batch.base_offset && self.has_more() {
                self.end_segment()?;
                self.begin_segment()?;
            }
            if let Some(fault) = self.fault_of(&batch, bytes) {
                return Err(Refused::Unfit(fault));
            }
            let writing = self.writing.as_mut().expect("a segment was begun");
            writing.put(&batch, bytes, &mut self.paths)?;
            self.offset = batch.end_offset();
            rest = &rest[bytes.len()..];
        }
        Ok(())
    }

    fn fault_of(&self, batch: &Descriptor, bytes: &[u8]) -> Option<&'static str> {
        if batch.base_offset < self.offset || batch.end_offset() > self.segment_end() {
            return Some("a batch is not where it is to be");
        }
        if !batch.matches(bytes) {
            return Some("a batch's CRC does not match");
        }
        let runs = &self.given.runs;
        let begun = runs.partition_point(|run| run.start_offset <= batch.base_offset);
        let term = begun.checked_sub(1).map(|at| runs[at].term);
        let epoch = u32::from_be_bytes(bytes[12..16].try_into().expect("four bytes"));
        (term != Some(u64::from(epoch))).then_some("a batch is of another term")
    }

    /// Returns the end offset of the segment being written.
    fn segment_end(&self) -> i64 {
        let next = self.given.segments.get(self.written.len() + 1);
        next.map_or(self.given.compacted.below, |next| next.base_offset)
    }

    fn has_more(&self) -> bool {
        self.written.len() + 1 < self.given.segments.len()
    }

    fn begin_segment(&mut self) -> Result<(), Refused> {
        let Some(meta) = self.given.segments.get(self.written.len()) else {
            return Err(Refused::Unfit("there is no such segment"));
        };
        let mut state = SegmentState::new(meta.base_offset, meta.first_index);
        state.generation = self.given.compacted.index | GIVEN;
        let name = segment_stem(meta.base_offset, self.replica, state.generation);
        let stem = format!("{}/{name}", self.dir);
        let disk = self.reader.disk();
        self.writing = Some(SegmentWriter::begin(disk, state, stem, true, &mut self.paths)?);
        Ok(())
    }

    fn end_segment(&mut self) -> Result<(), Refused> {
        let Some(writing) = self.writing.take() else { return Ok(()) };
        self.written.push(writing.end(&mut self.paths)?.0);
        Ok(())
    }

    /// Ends the feed.
    fn end(&mut self) -> Result<(), Refused> {
        while self.has_more() {
            self.end_segment()?;
            self.begin_segment()?;
        }
        self.end_segment()?;
        let disk = self.reader.disk();
        let synced = disk.sync_dir(&self.dir).and_then(|()| disk.sync_dir(""));
        synced.map_err(|source| Refused::Disk { path: self.dir.clone(), source })
    }
}

impl Staged {
    /// Returns the segments as the node knows them.
    pub(crate) fn metas(&self) -> Vec<SegmentMeta> {
        self.segments.iter().map(SegmentState::meta).collect()
    }
}
