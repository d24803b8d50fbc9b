//! Fast appends, on their way from a request to a replica: the leader's or a follower's.

use duramen_protocol::ErrorCode;
use duramen_protocol::wire::Uuid;
use duramen_storage::op::{ReplicaId, Stretch};
use duramen_storage::sabotage::{self, Bug};

use super::{Core, mark, records_of};
use crate::checked_batch::{BatchIds, CheckedBatch};
use crate::limits::FAST_NODE_HELD_BYTES_MAX;
use crate::metadata_records::PlacedReplica;
use crate::partition::Slot;
use crate::partition::fast::{Fast, Outcome};
use crate::partition::members::Opening;
use crate::peer::KNOWS_STRETCHES;
use crate::raft::GroupId;

impl Core {
    /// Gives a replica a batch that a client sends to all members of a stretch. Returns the first offset kept too.
    pub(crate) fn append_fast(
        &mut self,
        replica: ReplicaId,
        stretch: Stretch,
        batch: CheckedBatch,
        slot: Slot,
    ) -> (Fast, i64) {
        let (bytes, records) = (batch.bytes.len() as u64, records_of(&batch));
        let partition = self.partitions.get_mut(&replica).expect("it was just found");
        let held = partition.held_bytes();
        let (leads, in_flight) = (partition.group.is_serving(), partition.group.bytes_in_flight());
        if !leads && self.held_bytes + batch.bytes.len() > FAST_NODE_HELD_BYTES_MAX {
            return (Fast::NotNow("too much is held on this node"), partition.log_start());
        }
        let fast = partition.append_fast(self.now, stretch, batch, slot);
        let added = partition.group.bytes_in_flight() - in_flight;
        self.held_bytes += partition.held_bytes() - held;
        match fast {
            Fast::Waits(Outcome::Held) => self.counters.fast_held += 1,
            Fast::Waits(Outcome::Appended) => self.counters.fast_appended += 1,
            Fast::NotNow(_) => self.counters.fast_not_taken += 1,
            _ => {}
        }
        let waits = matches!(fast, Fast::Waits(_));
        if waits || added > 0 || partition.group.failure().is_some() {
            mark(&mut self.dirty, partition);
        }
        let log_start = partition.log_start();
        assert!(leads || added == 0, "what a follower holds is not in its group");
        // A batch that is held is not one of the log, and what was held twice is no duplicate there.
        let is_taken = leads && !matches!(fast, Fast::NotNow(_));
        if is_taken {
            partition.note_append(records, added, false);
        }
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
        (fast, self.partitions.get(&replica).map_or(-1, |it| it.log_start()))
    }

    /// Has a replica open a stretch, if none is open.
    pub(crate) fn open_stretch(&mut self, replica: ReplicaId, slot: Slot) -> Opening {
        let id = self.partitions[&replica].id;
        // Other voters would not know of its holds.
        if self.is_reassigned(id) {
            return Opening::Refused(ErrorCode::ReassignmentInProgress);
        }
        if !self.all_know_stretches(id) {
            return Opening::Refused(ErrorCode::UnsupportedVersion);
        }
        let (now, unfit) = (self.now, self.unfit_members(id));
        let partition = self.partitions.get_mut(&replica).expect("it was just found");
        let opening = partition.open_stretch(now, &unfit, slot);
        self.mark_if(replica, opening == Opening::Waits);
        opening
    }

    fn is_reassigned(&self, group: GroupId) -> bool {
        let place = (Uuid(group.topic_id), group.partition);
        let is_hidden = sabotage::is(Bug::MembersChangeOpen);
        self.controller.image.reassignments.contains_key(&place) && !is_hidden
    }

    /// Makes sure that no leader takes over a batch that may be held in a stretch. `Ok(true)` if `slot` now waits.
    pub(crate) fn outlast_stretch(
        &mut self,
        replica: ReplicaId,
        stretch: Stretch,
        slot: Slot,
    ) -> Result<bool, ErrorCode> {
        let now = self.now;
        let partition = self.partitions.get_mut(&replica).expect("it was just found");
        let outlasted = partition.outlast_stretch(now, stretch, slot);
        self.mark_if(replica, outlasted == Ok(true));
        outlasted
    }

    /// Has a leader here see to its open stretch.
    pub(crate) fn tend_stretch(&mut self, replica: ReplicaId) {
        let open = self.partitions.get(&replica).filter(|it| it.open_here().is_some());
        let Some(id) = open.map(|it| it.id).filter(|id| !self.is_reassigned(*id)) else { return };
        let (now, unfit) = (self.now, self.unfit_members(id));
        if let Some(partition) = self.partitions.get_mut(&replica)
            && partition.tend_stretch(now, &unfit)
        {
            mark(&mut self.dirty, partition);
        }
    }

    /// Ends the stretch of a partition that is handed over: then its next leader has nothing to settle.
    pub(crate) fn end_stretch(&mut self, replica: ReplicaId, to: u64) {
        let Some(partition) = self.partitions.get_mut(&replica) else { return };
        let can_move = partition.group.successors().any(|it| it == to);
        if can_move && !partition.group.is_moving() && partition.close_stretch() {
            mark(&mut self.dirty, partition);
        }
    }

    fn placed_peers(&self, group: GroupId) -> &[PlacedReplica] {
        let topic = self.controller.image.topic(Uuid(group.topic_id));
        topic.and_then(|topic| topic.replicas(group.partition)).unwrap_or_default()
    }

    /// Tells whether the builds of all nodes with a replica know stretches. An earlier one would fail its replica.
    fn all_know_stretches(&self, group: GroupId) -> bool {
        let own = self.options.facts.broker_id;
        let knows = |it: &PlacedReplica| {
            it.broker_id == own || self.peers.knows(it.broker_id) & KNOWS_STRETCHES != 0
        };
        self.placed_peers(group).iter().all(knows)
    }

    /// Returns the replicas that are to be no members, since their nodes are about to end or have slow disks.
    fn unfit_members(&self, group: GroupId) -> Vec<u64> {
        let is_unfit = |it: &&PlacedReplica| {
            self.peers.leaves(it.broker_id) || self.peers.has_slow_disk(it.broker_id)
        };
        self.placed_peers(group).iter().filter(is_unfit).map(|it| it.peer_id).collect()
    }

    /// Gives a replica a turn if a request waits for it, or if it has just failed.
    fn mark_if(&mut self, replica: ReplicaId, waits: bool) {
        let partition = self.partitions.get_mut(&replica).expect("it was just found");
        if waits || partition.group.failure().is_some() {
            mark(&mut self.dirty, partition);
        }
    }
}
