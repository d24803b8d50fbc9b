//! # Room card: checkpoint
//!
//! Purpose:    free the oldest extents of the journal, a few replicas at a time.
//! Owns:       the extents that each replica needs, and the stages of a replica's checkpoint.
//! Interface:  [`Checkpoints`]; `Storage::run_checkpoints`.
//! Invariants: storage writes a State record only after it has synced everything that the record states. An extent is
//!             free only after every replica that needed it has a durable State behind it.
//! Never:      all replicas at once, because that would stop the node for a while.
//! Tests:      with the storage tests; `duramen-sim`.
//! Start at:   `Storage::run_checkpoints`.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use bytes::BufMut;

use crate::disk::is_full;
use crate::error::{Error, disk_error};
use crate::format::{INDEX_ENTRY_BYTES, TIME_ENTRY_BYTES};
use crate::record::Record;
use crate::replica::Replica;
use crate::replica_state::ReplicaState;
use crate::reserve::Reserve;
use crate::storage::{Storage, SyncStep};
use crate::{Disk, ReplicaId};

/// Checkpoints under way at once: enough to keep the sync pool busy, few enough to leave the disk
/// to the appends.
const AT_ONCE: usize = 8;
/// Entries that a State may carry without a snapshot; with more, storage asks for a snapshot first.
const ENTRIES_WITHOUT_IMAGE: usize = 16;
/// Index entries of the active segment that a State may carry; more are written to their file.
const INDEX_TAIL_MAX: usize = 512;

/// Segments whose index one checkpoint writes: each opens two files. A next one writes the others.
const INDEXES_AT_ONCE: usize = 2;

/// Where a replica's checkpoint is.
#[derive(Debug)]
enum Stage {
    /// Storage has asked the node for a snapshot.
    Imaging,
    /// Files are being synced; then this is written.
    Syncing(Box<ReplicaState>, u64),
    /// The State record is in, or waits for, a round.
    Writing,
    /// Files are being synced of a log that has begun anew since: nothing is written of it.
    Void,
}

/// All checkpoints of a node.
#[derive(Debug, Default)]
pub(crate) struct Checkpoints {
    /// Replicas by the oldest round they need.
    live: BTreeSet<(u64, ReplicaId)>,
    lives: BTreeMap<ReplicaId, u64>,
    running: BTreeMap<ReplicaId, Stage>,
    /// To be checkpointed whatever the journal's fill.
    forced: BTreeSet<ReplicaId>,
    /// Replicas with unsynced segments, by the round in which they got the first.
    dirty: BTreeSet<(u64, ReplicaId)>,
}

impl Checkpoints {
    pub(crate) fn set_live_from(&mut self, replica: ReplicaId, lsn: u64) {
        if let Some(old) = self.lives.insert(replica, lsn) {
            self.live.remove(&(old, replica));
        }
        self.live.insert((lsn, replica));
    }

    pub(crate) fn forget(&mut self, replica: ReplicaId) {
        if let Some(old) = self.lives.remove(&replica) {
            self.live.remove(&(old, replica));
        }
        self.running.remove(&replica);
        self.forced.remove(&replica);
    }

    /// Voids a running checkpoint when the replica's log begins anew: the captured state of the old log must not be
    /// written.
    pub(crate) fn void(&mut self, replica: ReplicaId) {
        if let Some(stage @ Stage::Syncing(..)) = self.running.get_mut(&replica) {
            *stage = Stage::Void;
        }
    }

    pub(crate) fn force(&mut self, replica: ReplicaId) {
        self.forced.insert(replica);
    }

    pub(crate) fn set_dirty(&mut self, replica: ReplicaId, since: u64) {
        self.dirty.insert((since, replica));
    }

    pub(crate) fn set_clean(&mut self, replica: ReplicaId, since: u64) {
        self.dirty.remove(&(since, replica));
    }

    pub(crate) fn busy(&self) -> bool {
        !self.running.is_empty()
    }

    fn oldest(&self) -> Option<u64> {
        self.live.first().map(|(lsn, _)| *lsn)
    }
}

impl<D: Disk> Storage<D> {
    /// Starts checkpoints of the replicas that hold the oldest extent, if the journal is half full. Starts
    /// checkpoints of the replicas with the oldest unsynced files, if too many files are open. Moves on the
    /// checkpoints that wait for a snapshot.
    pub(crate) fn run_checkpoints(&mut self) -> Result<(), Error> {
        let due = self.journal.live_extents() >= (self.extents_wanted() as u64 / 2).max(2);
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

    /// Returns the number of extents that the journal should have: its present number, or more where a great many
    /// replicas share it. The node checkpoints each replica once while it writes half of the journal. A checkpoint
    /// costs the same whether the replica has written much meanwhile or little.
    pub(crate) fn extents_wanted(&self) -> usize {
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
            replica.first_since_capture = None;
            replica.checkpoint_due = Some((steps, replica.names));
            let state = Box::new(replica.state.clone());
            let as_of = self.journal.next_lsn();
            self.checkpoints.running.insert(id, Stage::Syncing(state, as_of));
            if !is_all {
                self.checkpoints.force(id);
            }
            self.sync_next(id);
        }
        Ok(())
    }

    /// Queues the captured state for a round, once everything that it stands for is on disk.
    pub(crate) fn on_checkpoint_synced(&mut self, id: ReplicaId) {
        let Some(Stage::Syncing(state, as_of)) = self.checkpoints.running.remove(&id) else {
            return; // its log has begun anew since
        };
        let Some(replica) = self.replicas.get_mut(&id).filter(|it| !it.deleting) else { return };
        replica.close_clean();
        self.checkpoints.running.insert(id, Stage::Writing);
        self.push_state(Record::State { as_of, state });
    }

    /// Notes that the State is durable: replay starts from it.
    pub(crate) fn on_state_durable(&mut self, id: ReplicaId, lsn: u64) {
        self.checkpoints.running.remove(&id);
        let Some(replica) = self.replicas.get_mut(&id) else { return };
        replica.settle();
        replica.live_from = replica.first_since_capture.unwrap_or(lsn).min(lsn);
        let live_from = replica.live_from;
        self.checkpoints.set_live_from(id, live_from);
        self.metrics.checkpoints += 1;
    }

    /// Lets go of the extents that no replica needs.
    pub(crate) fn advance_tail(&mut self) {
        let tail = match self.checkpoints.oldest() {
            Some(lsn) => self.journal.extent_of(lsn),
            None => self.journal.head_sequence(),
        };
        self.journal.advance_tail(tail);
    }
}

impl<D: Disk> Replica<D> {
    /// Writes index entries to their files, where they are many or their segment is sealed. Returns the syncs that a
    /// checkpoint needs, and whether all entries are written. On a full disk the entries stay in the State.
    fn flush(
        &mut self,
        disk: &D,
        reserve: &mut Reserve,
    ) -> io::Result<(Vec<SyncStep<D::File>>, bool)> {
        let mut steps: Vec<SyncStep<D::File>> =
            self.take_dirty().into_iter().map(SyncStep::File).collect();
        let mut written = 0;
        let last = self.state.segments.len().saturating_sub(1);
        for at in 0..self.state.segments.len() {
            let segment = &self.state.segments[at];
            // A Raft conflict could still cut an entry at or past the snapshot.
            let kept = self.state.prev_end_offset - segment.base_offset;
            let kept = u32::try_from(kept.max(0)).unwrap_or(u32::MAX);
            let index = segment.index_tail.partition_point(|entry| entry.offset_delta < kept);
            let times = segment.times_tail.partition_point(|entry| entry.offset_delta < kept);
            let due = at < last || index >= INDEX_TAIL_MAX;
            if due && (index > 0 || times > 0) {
                if written == INDEXES_AT_ONCE {
                    written += 1;
                    break;
                }
                match self.flush_segment(disk, reserve, at, (index, times)) {
                    Err(error) if is_full(&error) => break,
                    flushed => steps.extend(flushed?),
                }
                written += 1;
            }
        }
        steps.extend(self.name_steps());
        Ok((steps, written <= INDEXES_AT_ONCE))
    }

    fn flush_segment(
        &mut self,
        disk: &D,
        reserve: &mut Reserve,
        at: usize,
        (index, times): (usize, usize),
    ) -> io::Result<Vec<SyncStep<D::File>>> {
        let segment = &self.state.segments[at];
        let stem = self.stem_of(segment);
        let mut index_bytes = Vec::with_capacity(index * INDEX_ENTRY_BYTES);
        for entry in &segment.index_tail[..index] {
            index_bytes.put_u32(entry.offset_delta);
            index_bytes.put_u32(entry.position);
        }
        let mut time_bytes = Vec::with_capacity(times * TIME_ENTRY_BYTES);
        for entry in &segment.times_tail[..times] {
            time_bytes.put_i64(entry.timestamp);
            time_bytes.put_u32(entry.offset_delta);
        }
        let base_offset = segment.base_offset;
        let index_at = u64::from(segment.index_flushed) * INDEX_ENTRY_BYTES as u64;
        let times_at = u64::from(segment.times_flushed) * TIME_ENTRY_BYTES as u64;
        let mut steps = Vec::new();
        for (extension, bytes, at) in
            [("index", index_bytes, index_at), ("timeindex", time_bytes, times_at)]
        {
            if bytes.is_empty() {
                continue;
            }
            let path = format!("{stem}.{extension}");
            let names = &mut self.names;
            let file = reserve.when_full(disk, || {
                let file = match disk.open(&path) {
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {
                        *names += 1;
                        disk.create(&path)?
                    }
                    other => other?,
                };
                disk.write_at(&file, &[&bytes], at)?;
                Ok(file)
            })?;
            steps.push(SyncStep::File(file));
        }
        self.state.segments[at].flushed(index, times);
        if let Some(shown) = self.files.segment_of(base_offset) {
            shown.flushed(index, times);
        }
        Ok(steps)
    }
}
