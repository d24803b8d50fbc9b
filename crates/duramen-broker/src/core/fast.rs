//! Fast appends, on their way from a request to a replica: the leader's or a follower's.

use duramen_protocol::ErrorCode;
use duramen_protocol::wire::Uuid;
use duramen_storage::op::{ReplicaId, Stretch};

use super::{Core, mark};
use crate::checked_batch::{BatchIds, CheckedBatch};
use crate::limits::FAST_NODE_HELD_BYTES_MAX;
use crate::partition::fast::{Fast, Opening};
use crate::partition::{Partition, Slot};

impl Core {
    /// Gives a replica a batch that a client sends to all members of a stretch. Returns the first offset kept too.
    pub(crate) fn append_fast(
        &mut self,
        replica: ReplicaId,
        stretch: Stretch,
        batch: CheckedBatch,
        slot: Slot,
    ) -> (Fast, i64) {
        let bytes = batch.bytes.len() as u64;
        let partition = self.partitions.get_mut(&replica).expect("it was just found");
        let held = partition.held_bytes();
        let (leads, in_flight) = (partition.group.is_serving(), partition.group.bytes_in_flight());
        if !leads && self.held_bytes + batch.bytes.len() > FAST_NODE_HELD_BYTES_MAX {
            return (Fast::NotNow("too much is held on this node"), partition.log_start());
        }
        let fast = partition.append_fast(self.now, stretch, batch, slot);
        let added = partition.group.bytes_in_flight() - in_flight;
        self.held_bytes += partition.held_bytes() - held;
        let waits = matches!(fast, Fast::Waits(_));
        if waits || added > 0 || partition.group.failure().is_some() {
            mark(&mut self.dirty, partition);
        }
        let log_start = partition.log_start();
        assert!(leads || added == 0, "what a follower holds is not in its group");
        // A batch that is held is not one of the log, and what was held twice is no duplicate there.
        let is_taken = leads && !matches!(fast, Fast::NotNow(_));
        self.count_append(bytes, added, is_taken);
        (fast, log_start)
    }

    /// Asks a replica after a batch that its client sent before. Returns the first offset kept too.
    pub(crate) fn ask_fast(
        &mut self,
        replica: ReplicaId,
        ids: BatchIds,
        slot: Slot,
    ) -> (Fast, i64) {
        let partition = self.partitions.get_mut(&replica).expect("it was just found");
        let fast = partition.ask_fast(ids, slot);
        self.mark_if(replica, matches!(fast, Fast::Waits(_)));
        (fast, self.partitions.get(&replica).map_or(-1, Partition::log_start))
    }

    /// Has a replica open a stretch, if none is open.
    pub(crate) fn open_stretch(&mut self, replica: ReplicaId, slot: Slot) -> Opening {
        let partition = self.partitions.get_mut(&replica).expect("it was just found");
        let place = (Uuid(partition.id.topic_id), partition.id.partition);
        // Other voters would not know of its holds.
        if self.controller.image.reassignments.contains_key(&place) {
            return Opening::Refused(ErrorCode::ReassignmentInProgress);
        }
        let opening = partition.open_stretch(slot);
        self.mark_if(replica, opening == Opening::Waits);
        opening
    }

    /// Gives a replica a turn if a request waits for it, or if it has just failed.
    fn mark_if(&mut self, replica: ReplicaId, waits: bool) {
        let partition = self.partitions.get_mut(&replica).expect("it was just found");
        if waits || partition.group.failure().is_some() {
            mark(&mut self.dirty, partition);
        }
    }
}
