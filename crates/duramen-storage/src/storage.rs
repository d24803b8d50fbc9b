//! # Room card: storage's turn
//!
//! Purpose:    one journal round at a time for all replicas, and what follows from it.
//! Owns:       the order of writes and syncs; when an op counts as persisted.
//! Interface:  [`Storage`], [`SyncRequest`], [`Options`], [`Recovered`].
//! Invariants: at most one round is in flight; a round is written only after the sync of the one
//!             before it returned; after an error nothing more is written.
//! Never:      threads: whoever drives it runs the syncs, anywhere and in any order.
//! Tests:      with the storage tests, and `duramen-sim`.
//! Start at:   [`Storage::begin_round`].

use std::io;

use crate::op::{Done, Op, RecoveredReplica};
use crate::{Disk, Reader};

/// Sizes and facts that storage is opened with.
#[derive(Clone, Debug)]
pub struct Options {
    /// Node-local facts, written when the directory is formatted and compared when it is opened.
    pub facts: Facts,
    /// Size of one journal extent, in bytes; a multiple of 4,096.
    pub extent_bytes: u64,
    /// Most extents the journal may grow to; at least 4.
    pub extents_max: u32,
    /// A replica's payload of up to this many bytes a round goes into the journal; more is synced
    /// in its segment instead.
    pub journal_payload_max: u32,
    /// One `.index` entry at most every so many bytes of batches.
    pub index_interval_bytes: u32,
    /// Appends are refused when less than this is free on the disk.
    pub free_bytes_min: u64,
    /// Size of the reserve file that is given up when the disk is full all the same.
    pub reserve_bytes: u64,
}

/// Who a data directory belongs to. `None` on opening means: whatever the directory says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// The cluster's id, 16 bytes.
    pub cluster_id: [u8; 16],
    /// The node's id, from 0.
    pub broker_id: i32,
    /// Made when the directory was formatted; a wiped directory has another.
    pub directory_id: [u8; 16],
}

/// What [`Storage::open`] found.
#[derive(Clone, Debug)]
pub struct Recovered {
    /// The facts in the manifest: those of [`Options`] if the directory was just formatted.
    pub facts: Facts,
    /// Whether the directory was empty and has just been formatted.
    pub formatted: bool,
    /// All replicas, by id.
    pub replicas: Vec<RecoveredReplica>,
}

/// Why storage stopped. The process must end: only the next start may trust the disk again.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A read, write, sync, create, rename or remove failed.
    #[error("the disk failed at {doing} {path}")]
    Disk {
        /// What was being done.
        doing: &'static str,
        /// To which path, relative to the data directory.
        path: String,
        /// The disk's answer.
        #[source]
        source: io::Error,
    },
    /// The directory is not ours, or of a version this build does not know.
    #[error("{0}")]
    Foreign(String),
    /// Bytes that were durable are gone or changed, and replay cannot go on without them.
    #[error("{path} is damaged at byte {at}: {what}; nothing was changed. If no other copy exists, see docs/operations.md, \"A damaged journal\"")]
    Damaged {
        /// The file, relative to the data directory.
        path: String,
        /// Position of the damage.
        at: u64,
        /// What does not fit.
        what: String,
    },
}

/// Names one sync in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SyncId(pub u64);

/// Syncs to run, in order, off the storage thread; answer with [`Storage::on_sync`].
#[derive(Clone, Debug)]
pub struct SyncRequest<F> {
    /// To be given back.
    pub id: SyncId,
    /// What to sync.
    pub steps: Vec<SyncStep<F>>,
}

/// One step of a [`SyncRequest`].
#[derive(Clone, Debug)]
pub enum SyncStep<F> {
    /// A file's bytes and length.
    File(F),
    /// A directory's entries.
    Dir(String),
}

impl<F: Clone + Send + Sync + 'static> SyncRequest<F> {
    /// Runs the steps; stops at the first error.
    pub fn run<D: Disk<File = F>>(&self, disk: &D) -> io::Result<()> {
        self.steps.iter().try_for_each(|step| match step {
            SyncStep::File(file) => disk.sync(file),
            SyncStep::Dir(path) => disk.sync_dir(path),
        })
    }
}

/// All replicas of one node on one disk.
#[derive(Debug)]
pub struct Storage<D: Disk> {
    reader: Reader<D>,
}

#[expect(clippy::unused_self, clippy::missing_const_for_fn, reason = "contract first")]
impl<D: Disk> Storage<D> {
    /// Opens a data directory, formatting an empty one; recovers every replica from the medium
    /// and returns only after all of it is synced.
    pub fn open(_disk: D, _options: Options) -> Result<(Self, Recovered), Error> {
        Err(Error::Foreign("not written yet".into()))
    }

    /// For reads, from any thread.
    pub fn reader(&self) -> Reader<D> {
        self.reader.clone()
    }

    /// Queues an op for the next round.
    pub fn submit(&mut self, _op: Op) {}

    /// If no round is in flight and something is queued, writes all of it as one journal round
    /// and returns the sync that makes it durable. Run the sync elsewhere, and meanwhile call
    /// [`Storage::write_segments`].
    pub fn begin_round(&mut self) -> Result<Option<SyncRequest<D::File>>, Error> {
        Ok(None)
    }

    /// Writes the payload of the round in flight into the segments (page cache), and returns the
    /// syncs of payload that is not in the journal. Must be called before the journal's sync is
    /// reported.
    pub fn write_segments(&mut self) -> Result<Vec<SyncRequest<D::File>>, Error> {
        Ok(Vec::new())
    }

    /// One slice of background work, a millisecond or so: checkpoints, removal of old segments,
    /// the closing round of a journal that fell quiet (`idle`). Returns syncs to run. Call it
    /// after each round, and about every 100 ms when nothing happens.
    pub fn maintain(&mut self, _idle: bool) -> Result<Vec<SyncRequest<D::File>>, Error> {
        Ok(Vec::new())
    }

    /// A sync returned. An error is final.
    pub fn on_sync(&mut self, _id: SyncId, _result: io::Result<()>) -> Result<(), Error> {
        Ok(())
    }

    /// What happened since the last call, for the node.
    pub fn take_done(&mut self) -> Vec<Done> {
        Vec::new()
    }

    /// Whether nothing is queued, in flight, or waiting for the closing round.
    pub fn is_quiet(&self) -> bool {
        true
    }

    /// Counters and gauges since it was opened.
    pub fn metrics(&self) -> Metrics {
        Metrics::default()
    }
}

/// Storage's counters and gauges.
#[derive(Clone, Copy, Debug, Default)]
pub struct Metrics {
    /// Journal rounds written.
    pub rounds: u64,
    /// Batches they carried.
    pub batches: u64,
    /// Bytes written to the journal, padding included.
    pub journal_bytes: u64,
    /// Bytes of batches written to segments.
    pub segment_bytes: u64,
    /// Bytes of the journal that hold what is not checkpointed yet.
    pub journal_live_bytes: u64,
    /// The journal's size now.
    pub journal_size_bytes: u64,
    /// Replica checkpoints completed.
    pub checkpoints: u64,
    /// Replicas on this node.
    pub replicas: u64,
}
