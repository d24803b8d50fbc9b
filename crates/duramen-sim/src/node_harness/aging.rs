//! A directory as it is after years: terms near the last one, producers near the wrap of their sequence, offsets above
//! 32 bits. Made between two processes, by what storage is told anyway: nothing in the product knows of it.

use std::collections::BTreeMap;

use bytes::Bytes;
use duramen_storage::op::{Append, Content, HardState, LogEntry, OpKind, RecoveredReplica};
use duramen_storage::{Descriptor, Done, Op, Options, ReplicaId, Storage};

use super::World;
use crate::disk::{Faults, SimDisk};
use crate::failure::Failure;
use crate::trace::tell;

/// The highest Raft term: it is a leader epoch, an `i32` on the wire.
const TERM_MAX: u64 = i32::MAX as u64;
/// Starts that a partition's term leaves; a run has fewer.
const TERMS_LEFT: u64 = 1000;
const TICKET: u64 = 1;

impl World {
    /// Lets years pass in which no process of ours looks.
    pub(super) fn grow_old(&mut self) -> Result<(), Failure> {
        tell(|| "YEARS PASS".to_owned());
        self.machine.disk.set_faults(Faults::default());
        self.machine.disk.crash_in(None);
        // With few files, rounds would wait for checkpoints, and those for images that only a node has.
        let options = Options { open_files_max: 1000, ..self.machine.options.clone() };
        let opened = Storage::open(self.machine.disk.clone(), options);
        let (mut storage, found) =
            opened.map_err(|error| Failure::correctness(format!("it does not open: {error:?}")))?;
        let mut waiting = BTreeMap::new();
        for replica in &found.replicas {
            for kind in self.years_of(replica) {
                if matches!(kind, OpKind::Write { .. }) {
                    waiting.insert(replica.replica, TICKET);
                }
                storage.submit(Op { replica: replica.replica, kind });
            }
        }
        persist(&self.machine.disk, &mut storage, waiting)?;
        drop(storage);
        let power = self.chance.chance(500);
        self.machine.die(power);
        Ok(())
    }

    /// Returns the ops that stand for years of a replica's log.
    fn years_of(&mut self, replica: &RecoveredReplica) -> Vec<OpKind> {
        let is_metadata = replica.identity.topic == "__cluster_metadata";
        let left = if is_metadata { self.chance.between(1, 6) } else { TERMS_LEFT };
        let term = TERM_MAX - left;
        if replica.hard_state.term >= term {
            return Vec::new();
        }
        let hard_state = Some(HardState { term, vote: 0, commit: replica.hard_state.commit });
        let last = replica.prev_index + replica.entries.len() as u64;
        let mut ops = Vec::new();
        let mut appends = Vec::new();
        let batches =
            self.clients.years_of(&replica.identity, replica.end_offset, term, self.wall_ms);
        for (batch, index) in batches.into_iter().zip(last + 1..) {
            let starts_segment = appends.is_empty();
            let descriptor = Descriptor::of_batch(&batch, starts_segment).expect("it is a batch");
            let entry = LogEntry { index, term, content: Content::Batch(descriptor) };
            appends.push(Append { entry, payload: Bytes::from(batch) });
            ops = vec![OpKind::Trim { log_start: descriptor.end_offset() }];
        }
        ops.insert(0, OpKind::Write { ticket: TICKET, appends, hard_state, must_sync: true });
        ops
    }
}

/// Runs storage until all that it was given is on disk.
fn persist(
    disk: &SimDisk,
    storage: &mut Storage<SimDisk>,
    mut waiting: BTreeMap<ReplicaId, u64>,
) -> Result<(), Failure> {
    let failed = |error| Failure::correctness(format!("growing old fails: {error:?}"));
    for _ in 0..1000 {
        let mut requests: Vec<_> = storage.begin_round().map_err(failed)?.into_iter().collect();
        requests.extend(storage.write_segments().map_err(failed)?);
        requests.extend(storage.maintain(true).map_err(failed)?);
        for request in requests {
            let result = request.run(disk);
            storage.on_sync(request.id, result).map_err(failed)?;
        }
        for done in storage.take_done() {
            if let Done::Persisted { replica, .. } = done {
                waiting.remove(&replica);
            }
        }
        if waiting.is_empty() && storage.is_quiet() {
            return Ok(());
        }
    }
    Err(Failure::liveness("storage is never quiet"))
}
