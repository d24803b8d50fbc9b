//! # Room card: checkpoint
//!
//! Purpose:    know which replica needs which extent of the journal, and how far each checkpoint is.
//! Owns:       the extents that each replica needs, the stages of a checkpoint, the write of a replica's index files.
//! Interface:  [`Checkpoints`], [`Replica::flush`].
//! Invariants: storage writes a State record only after it has synced everything that the record states. An extent is
//!             free only after every replica that needed it has a durable State behind it.
//! Never:      the choice of replicas (see `storage/checkpointing.rs`).
//! Tests:      with the storage tests; `duramen-sim`.
//! Start at:   [`Checkpoints`].

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use bytes::BufMut;

use crate::disk::is_full;
use crate::format::{INDEX_ENTRY_BYTES, TIME_ENTRY_BYTES};
use crate::replica::Replica;
use crate::replica_state::ReplicaState;
use crate::reserve::Reserve;
use crate::sync::SyncStep;
use crate::{Disk, ReplicaId};

/// Index entries of the active segment that a State may carry; more are written to their file.
const INDEX_TAIL_MAX: usize = 512;

/// Segments whose index one checkpoint writes: each opens two files. A next one writes the others.
const INDEXES_AT_ONCE: usize = 2;

/// Where a replica's checkpoint is.
#[derive(Debug)]
pub(crate) enum Stage {
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
    pub(crate) live: BTreeSet<(u64, ReplicaId)>,
    pub(crate) lives: BTreeMap<ReplicaId, u64>,
    pub(crate) running: BTreeMap<ReplicaId, Stage>,
    /// To be checkpointed whatever the journal's fill.
    pub(crate) forced: BTreeSet<ReplicaId>,
    /// Replicas with unsynced segments, by the round in which they got the first.
    pub(crate) dirty: BTreeSet<(u64, ReplicaId)>,
}

impl Checkpoints {
    pub(crate) fn set_live_from(&mut self, replica: ReplicaId, lsn: u64) {
        if let Some(old) = self.lives.insert(replica, lsn) {
            self.live.remove(&(old, replica));
        }
        self.live.insert((lsn, replica));
        assert_eq!(self.live.len(), self.lives.len(), "a replica is live from one round");
    }

    pub(crate) fn forget(&mut self, replica: ReplicaId) {
        if let Some(old) = self.lives.remove(&replica) {
            self.live.remove(&(old, replica));
        }
        assert_eq!(self.live.len(), self.lives.len(), "a replica is live from one round");
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
        let is_new = self.dirty.insert((since, replica));
        assert!(is_new, "a replica becomes dirty once");
    }

    pub(crate) fn set_clean(&mut self, replica: ReplicaId, since: u64) {
        let was_dirty = self.dirty.remove(&(since, replica));
        assert!(was_dirty, "a replica that becomes clean was dirty");
    }

    pub(crate) fn busy(&self) -> bool {
        !self.running.is_empty()
    }

    pub(crate) fn oldest(&self) -> Option<u64> {
        self.live.first().map(|(lsn, _)| *lsn)
    }
}

impl<D: Disk> Replica<D> {
    /// Writes index entries to their files, where they are many or their segment is sealed. Returns the syncs that a
    /// checkpoint needs, and whether all entries are written. On a full disk the entries stay in the State.
    pub(crate) fn flush(
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
            assert_eq!(shown.base_offset, base_offset, "readers see the segment");
            shown.flushed(index, times);
            let flushed = self.state.segments[at].index_flushed;
            assert_eq!(shown.index_flushed(), flushed, "readers know all of the index");
        }
        Ok(steps)
    }
}
