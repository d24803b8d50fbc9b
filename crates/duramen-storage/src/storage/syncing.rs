//! # Room card: storage's syncs
//!
//! Purpose:    requests for syncs that the driver runs, and the consequences of their returns.
//! Owns:       the meaning of each [`Purpose`].
//! Interface:  [`Storage::on_sync`]; `request` for the rest of storage.
//! Invariants: a failed sync is final: storage writes nothing after it. Only the sync of a removal may fail, because
//!             nobody needs the removed files.
//! Never:      threads; the order of rounds (see `storage`).
//! Tests:      the storage tests, and `duramen-sim`.
//! Start at:   [`Storage::on_sync`].

use std::io;

use super::Storage;
use crate::Disk;
use crate::error::{Error, disk_error};
use crate::format::JOURNAL_DIR;
use crate::op::ReplicaId;
use crate::record::Record;
use crate::sync::{Purpose, SyncId, SyncKind, SyncRequest, SyncStep};

impl<D: Disk> Storage<D> {
    pub(super) fn request(&mut self, purpose: Purpose, steps: Vec<SyncStep<D::File>>) -> SyncId {
        let id = SyncId(self.next_sync);
        self.next_sync += 1;
        let kind = match purpose {
            Purpose::Round => SyncKind::Round,
            Purpose::Payload { .. } => SyncKind::Payload,
            Purpose::Checkpoint { .. } => SyncKind::Checkpoint,
            _ => SyncKind::Other,
        };
        self.syncs.insert(id, purpose);
        self.requests.push(SyncRequest { id, kind, steps });
        id
    }

    /// Removes files of replicas. A removal is by name, and may be late. The next replica of a directory's name has
    /// files of the same names, so a deleted replica keeps that name until its removals have run. Once its deletion is
    /// durable, its directory goes as a whole.
    pub(super) fn remove_in_background(&mut self, mut files: Vec<(ReplicaId, String)>) {
        let is_here = |id: &ReplicaId| self.replicas.get(id).is_some_and(|it| !it.delete_durable);
        files.retain(|(id, _)| is_here(id));
        let mut replicas: Vec<ReplicaId> = files.iter().map(|(id, _)| *id).collect();
        replicas.sort_unstable();
        replicas.dedup();
        for id in &replicas {
            self.replicas.get_mut(id).expect("it was just found").in_flight += 1;
        }
        let steps = files.into_iter().map(|(_, path)| SyncStep::RemoveFile(path)).collect();
        self.request(Purpose::Removed { replicas }, steps);
    }

    /// Removes a directory whose name no replica has.
    pub(super) fn remove_dir_in_background(&mut self, path: String) {
        let steps = vec![SyncStep::RemoveDir(path)];
        self.request(Purpose::Removed { replicas: Vec::new() }, steps);
    }

    /// Takes the result of a sync. An error is final.
    pub fn on_sync(&mut self, id: SyncId, result: io::Result<()>) -> Result<(), Error> {
        let Some(purpose) = self.syncs.remove(&id) else { return Ok(()) };
        match result {
            Err(source) if matches!(purpose, Purpose::Removed { .. }) => {
                tracing::warn!(%source, "cannot remove files that are no longer needed");
            }
            result => {
                result.map_err(|it| disk_error("syncing", &self.path_of(&purpose), it))?;
            }
        }
        match purpose {
            Purpose::Round => {
                let round = self.round.as_mut().filter(|round| !round.durable);
                assert!(round.is_some(), "a round stays until its sync returns");
                if let Some(round) = round {
                    round.durable = true;
                }
                return self.end_round();
            }
            Purpose::Payload { replica: id, bulks, names } => {
                if let Some(replica) = self.replicas.get_mut(&id) {
                    assert!(replica.syncing, "one sync of a replica's files is in flight");
                    for bulk in bulks {
                        replica.end_bulk(bulk);
                    }
                    replica.names_synced = replica.names_synced.max(names);
                    replica.syncing = false;
                    self.riders.insert(id);
                    self.unclosed = true;
                }
                self.release(id);
                self.sync_next(id);
                return self.on_replica_idle(id);
            }
            Purpose::Checkpoint { replica: id, names } => {
                if let Some(replica) = self.replicas.get_mut(&id) {
                    assert!(replica.syncing, "one sync of a replica's files is in flight");
                    replica.names_synced = replica.names_synced.max(names);
                    replica.syncing = false;
                }
                self.on_checkpoint_synced(id);
                self.sync_next(id);
                return self.on_replica_idle(id);
            }
            Purpose::Image { image, implied } => {
                let id = image.replica();
                self.urgent.extend(implied);
                self.urgent.push_back(image);
                return self.on_replica_idle(id);
            }
            Purpose::Renamed { replica } => self.urgent.push_back(Record::Gone { replica }),
            Purpose::Extent => self.journal.grown(),
            Purpose::Removed { replicas } => {
                for id in replicas {
                    self.on_replica_idle(id)?;
                }
            }
            Purpose::Mark => {}
        }
        Ok(())
    }

    /// Returns the place of a sync's files, for the error log.
    fn path_of(&self, purpose: &Purpose) -> String {
        let replica = match purpose {
            Purpose::Round | Purpose::Extent | Purpose::Mark => return JOURNAL_DIR.to_owned(),
            Purpose::Removed { .. } => return ".".to_owned(),
            Purpose::Image { image, .. } => image.replica(),
            Purpose::Payload { replica, .. }
            | Purpose::Checkpoint { replica, .. }
            | Purpose::Renamed { replica } => *replica,
        };
        self.dir_of(replica)
    }
}
