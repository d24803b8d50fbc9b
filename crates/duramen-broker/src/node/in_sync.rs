//! # Room card: in sync
//!
//! Purpose:    which replicas of a partition keep up, told alike by every node.
//! Owns:       what a node says of partitions that it leads, and of those that others lead.
//! Interface:  [`Node::in_sync`], [`Node::note_lacking`].
//! Invariants: a leader's word counts, while it is heard: its announcement names replicas that lack something, its frames name
//!             nodes that it does not hear. Where all keep up, and all are heard, nothing is said.
//! Never:      what is acknowledged by: that is `min.insync.replicas`, which a leader looks up in its group.
//! Tests:      `node/tests/in_sync.rs`.
//! Start at:   [`Node::in_sync`].

use duramen_storage::op::ReplicaId;

use super::Node;
use crate::controller::records::PlacedReplica;
use crate::group::GroupId;
use crate::partition::Partition;

/// Whether a replica does not keep up, as its leader here sees it.
fn lacks(leader: &Partition, placed: &PlacedReplica) -> bool {
    !leader.group.caught_up().any(|peer| peer == placed.peer_id)
}

impl Node {
    /// The nodes whose replicas of a partition are in sync, as its leader says, on node `leader`; where that is not heard, as far
    /// as this one knows.
    pub(crate) fn in_sync(
        &self,
        group: GroupId,
        leader: i32,
        replicas: &[PlacedReplica],
    ) -> Vec<i32> {
        let peers = &self.peers;
        let own = self.own_directory();
        let here = replicas.iter().find(|placed| placed.directory_id == own);
        let here = here.and_then(|placed| self.partitions.get(&ReplicaId(placed.peer_id)));
        let leads = leader == self.options.facts.broker_id;
        let serving = here.filter(|partition| leads && partition.group.is_serving());
        let is_in = |placed: &&PlacedReplica| {
            if let Some(partition) = serving {
                return !lacks(partition, placed) && !peers.is_silent(placed.broker_id);
            }
            let is_there = if peers.is_silent(leader) {
                !peers.is_silent(placed.broker_id)
            } else {
                !peers.says_unheard(leader, placed.broker_id)
            };
            is_there && !peers.told_lacking(group).contains(&placed.peer_id)
        };
        replicas.iter().filter(is_in).map(|placed| placed.broker_id).collect()
    }

    /// Time has passed: which replicas of what is led here lack something. Of groups that sleep none does.
    pub(super) fn note_lacking(&mut self) {
        let is_settled = |replica: &ReplicaId| {
            self.partitions.get(replica).is_some_and(|it| self.peers.is_settled(it.id))
        };
        let led: Vec<ReplicaId> = self.sleepers.awake().filter(is_settled).collect();
        for replica in led {
            self.note_lacking_of(replica);
        }
    }

    /// Which replicas of a partition that is led here lack something.
    pub(super) fn note_lacking_of(&mut self, replica: ReplicaId) {
        let Some(partition) = self.partitions.get(&replica) else { return };
        let (id, group) = (partition.id, &partition.group);
        if !group.is_serving() || self.peers.announced(id) != Some(group.term()) {
            return;
        }
        let placed = self.placed_all(id);
        let lacking = placed.iter().filter(|placed| lacks(partition, placed));
        let lacking = lacking.map(|placed| placed.peer_id).collect();
        self.peers.announce_lacking(id, lacking);
    }

    /// How many partitions that are led here have replicas which are not in sync.
    pub(super) fn under_replicated(&self) -> usize {
        let own = self.options.facts.broker_id;
        let lacks_some = |partition: &&Partition| {
            let placed = self.placed_all(partition.id);
            self.in_sync(partition.id, own, &placed).len() < placed.len()
        };
        self.partitions.values().filter(|it| it.group.is_serving()).filter(lacks_some).count()
    }
}
