//! # Room card: checkpointing
//!
//! Purpose:    start checkpoints, a few replicas at a time, and free the extents that no replica needs.
//! Owns:       the order in which replicas are captured; the stages from a snapshot to a durable State.
//! Interface:  `Storage::run_checkpoints`.
//! Invariants: those of `checkpoint`; a capture stands between two rounds.
//! Never:      all replicas at once, because that would stop the node for a while.
//! Tests:      with the storage tests; `duramen-sim`.
//! Start at:   `Storage::run_checkpoints`.

use super::{ENTRIES_MAX, Storage};
use crate::checkpoint::Stage;
use crate::error::{Error, disk_error};
use crate::record::Record;
use crate::{Disk, ReplicaId};

/// Checkpoints under way at once: enough to keep the sync pool busy, few enough to leave the disk
/// to the appends.
const AT_ONCE: usize = 8;
/// Entries that a State may carry without a snapshot; with more, storage asks for a snapshot first.
const ENTRIES_WITHOUT_IMAGE: usize = 16;

const _: () =
    assert!(ENTRIES_WITHOUT_IMAGE < ENTRIES_MAX, "a checkpoint asks for a snapshot first");

impl<D: Disk> Storage<D> {
    /// Starts checkpoints of the replicas that hold the oldest extent, if they are due. Starts checkpoints of the
    /// replicas with the oldest unsynced files, if too many files are open. Moves on the checkpoints that wait for a
    /// snapshot.
    pub(super) fn run_checkpoints(&mut self) -> Result<(), Error> {
        let due = self.is_due();
        let tail = self.journal.tail();
        let mut starting: Vec<ReplicaId> = self.checkpoints.forced.iter().copied().collect();
        if due {
            let oldest = self.checkpoints.live.iter();
            let oldest = oldest.take_while(|(lsn, _)| self.journal.extent_of(*lsn) <= tail);
            let oldest = oldest.map(|(_, replica)| *replica);
            starting.extend(oldest.filter(|id| !self.unrestored.contains(id)).take(4 * AT_ONCE));
        }
        if self.dirty_files() > self.options.dirty_files_max() / 4 * 3 {
            let dirty = self.checkpoints.dirty.iter().map(|(_, replica)| *replica);
            starting.extend(dirty.take(4 * AT_ONCE));
        }
        for id in starting {
            if self.checkpoints.running.len() >= AT_ONCE {
                break;
            }
            let Some(replica) = self.replicas.get_mut(&id).filter(|it| !it.deleting) else {
                self.checkpoints.forced.remove(&id);
                continue;
            };
            if self.checkpoints.running.contains_key(&id) {
                continue;
            }
            if replica.state.entries.len() > ENTRIES_WITHOUT_IMAGE {
                self.want_image(id);
            }
            self.checkpoints.forced.remove(&id);
            self.checkpoints.running.insert(id, Stage::Imaging);
        }
        self.capture_imaged()
    }

    /// Tells whether the journal is half full, and a checkpoint would free some of it. A checkpoint frees the records
    /// of ops, and writes holds anew: without ops in live extents each one would only make the next one due.
    fn is_due(&self) -> bool {
        let live = self.journal.live_extents();
        let is_filled = live >= (self.extents_wanted() as u64 / 2).max(2);
        let has_ops = self.ops_extent >= self.journal.tail();
        is_filled && (has_ops || live + 1 >= self.journal.extent_count() as u64)
    }

    /// Returns the number of extents that the journal should have: its present number, or more where a great many
    /// replicas share it. The node checkpoints each replica once while it writes half of the journal. A checkpoint
    /// costs the same whether the replica has written much meanwhile or little.
    pub(super) fn extents_wanted(&self) -> usize {
        let has = self.journal.extent_count();
        let wants = 2 * self.checkpoints.lives.len().div_ceil(self.options.replicas_an_extent);
        let may_have = self.options.extents_max as usize;
        if self.reserve.is_full() { has } else { has.max(wants.min(may_have)) }
    }

    /// Captures the replicas whose snapshot has come. A capture stands between two rounds, when all payload up to it
    /// is in the segments.
    fn capture_imaged(&mut self) -> Result<(), Error> {
        if !self.segments_written() {
            return Ok(());
        }
        let imaging: Vec<ReplicaId> = self
            .checkpoints
            .running
            .iter()
            .filter(|(_, stage)| matches!(stage, Stage::Imaging))
            .map(|(id, _)| *id)
            .collect();
        for id in imaging {
            let Some(replica) = self.replicas.get_mut(&id).filter(|it| !it.deleting) else {
                self.checkpoints.running.remove(&id);
                continue;
            };
            if replica.image_wanted {
                continue;
            }
            let dir = replica.state.dir();
            if let Some(since) = replica.dirty_since.take() {
                self.checkpoints.set_clean(id, since);
            }
            let (steps, is_all) = replica
                .flush(&self.disk, &mut self.reserve)
                .map_err(|source| disk_error("writing the indexes of", &dir, source))?;
            assert!(replica.checkpoint_due.is_none(), "a replica has one checkpoint at a time");
            replica.first_since_capture = None;
            replica.checkpoint_due = Some((steps, replica.names));
            let state = Box::new(replica.state.clone());
            let as_of = self.journal.next_lsn();
            self.checkpoints.running.insert(id, Stage::Syncing(state, as_of));
            self.hold_again(id);
            if !is_all {
                self.checkpoints.force(id);
            }
            self.sync_next(id);
        }
        Ok(())
    }

    /// Queues the captured state for a round, once everything that it stands for is on disk.
    pub(super) fn on_checkpoint_synced(&mut self, id: ReplicaId) {
        let Some(Stage::Syncing(state, as_of)) = self.checkpoints.running.remove(&id) else {
            return; // its log has begun anew since
        };
        let Some(replica) = self.replicas.get_mut(&id).filter(|it| !it.deleting) else { return };
        replica.close_clean();
        self.checkpoints.running.insert(id, Stage::Writing);
        self.push_state(Record::State { as_of, state });
    }

    /// Notes that the State is durable: replay starts from it.
    pub(super) fn on_state_durable(&mut self, id: ReplicaId, lsn: u64) {
        let stage = self.checkpoints.running.remove(&id);
        assert!(matches!(stage, Some(Stage::Writing)), "a durable State ends a checkpoint");
        let Some(replica) = self.replicas.get_mut(&id) else { return };
        replica.settle();
        let live_from = replica.first_since_capture.unwrap_or(lsn).min(lsn);
        assert!(
            replica.live_from <= live_from,
            "a checkpoint frees rounds, and needs no older ones"
        );
        replica.live_from = live_from;
        self.checkpoints.set_live_from(id, live_from);
        self.metrics.checkpoints += 1;
    }

    /// Lets go of the extents that no replica needs.
    pub(super) fn advance_tail(&mut self) {
        let tail = match self.checkpoints.oldest() {
            Some(lsn) => self.journal.extent_of(lsn),
            None => self.journal.head_sequence(),
        };
        self.journal.advance_tail(tail);
    }
}
