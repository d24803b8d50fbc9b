//! Syncs as values: the steps that a driver runs, and the purpose of each sync in flight.

use std::io;

use crate::disk::ignore_missing;
use crate::record::Record;
use crate::{Disk, ReplicaId};

/// Names one sync in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SyncId(pub u64);

/// Kind of data that a sync makes durable; for metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncKind {
    /// A journal round.
    Round,
    /// Payload that is not in the journal.
    Payload,
    /// A checkpoint of one replica.
    Checkpoint,
    /// Anything else: snapshots, new extents, renames, removals.
    Other,
}

/// Syncs to run, in order, off the storage thread; answer with [`Storage::on_sync`](crate::Storage::on_sync).
#[derive(Clone, Debug)]
pub struct SyncRequest<F> {
    /// Id to give back with the result.
    pub id: SyncId,
    /// Kind of data that the sync makes durable.
    pub kind: SyncKind,
    /// Steps of the sync.
    pub steps: Vec<SyncStep<F>>,
}

/// One step of a [`SyncRequest`].
#[derive(Clone, Debug)]
pub enum SyncStep<F> {
    /// A file's bytes and length.
    File(F),
    /// A directory's entries.
    Dir(String),
    /// Not a sync, but as slow: a file that nothing needs any more.
    RemoveFile(String),
    /// A directory that nothing needs any more.
    RemoveDir(String),
}

impl<F: Clone + Send + Sync + 'static> SyncRequest<F> {
    /// Runs the steps; stops at the first error.
    pub fn run<D: Disk<File = F>>(&self, disk: &D) -> io::Result<()> {
        self.steps.iter().try_for_each(|step| match step {
            SyncStep::File(file) => disk.sync(file),
            SyncStep::Dir(path) => disk.sync_dir(path),
            SyncStep::RemoveFile(path) => ignore_missing(disk.remove_file(path)),
            SyncStep::RemoveDir(path) => ignore_missing(disk.remove_dir(path)),
        })
    }
}

/// Purpose of a sync in flight.
#[derive(Clone, Debug)]
pub(crate) enum Purpose {
    /// The journal round.
    Round,
    /// Payload that is not in the journal.
    Payload { replica: ReplicaId, bulks: Vec<u64>, names: u64 },
    /// A checkpoint's files.
    Checkpoint { replica: ReplicaId, names: u64 },
    /// A snapshot too large for the journal.
    Image { image: Record, implied: Vec<Record> },
    /// The directory of a deleted replica has its new name.
    Renamed { replica: ReplicaId },
    /// A new file of the ring.
    Extent,
    /// The journal's mark.
    Mark,
    /// Files of these replicas were removed, or a directory of none. Only a deletion of the replicas waits for it.
    Removed { replicas: Vec<ReplicaId> },
}
