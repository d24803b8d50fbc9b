//! # Room card: in sync
//!
//! Purpose:    the in-sync replicas of partitions, the same on every node.
//! Owns:       the in-sync replicas of partitions that this node leads, and of those that others lead.
//! Interface:  [`Core::in_sync`], [`Core::note_lacking_of`].
//! Invariants: a node believes the leader while it hears the leader's node. The leader announces replicas that lack
//!             entries, and its frames name nodes that it does not hear. If all replicas keep up, and the leader hears
//!             all nodes, it announces nothing. A replica in a replaced directory is never in sync, nor is a learner.
//! Never:      acknowledgements, for which a leader counts the replicas of its group (`min.insync.replicas`).
//! Tests:      `node/tests/in_sync.rs`.
//! Start at:   [`Core::in_sync`].

use duramen_storage::op::ReplicaId;

use super::Core;
use crate::metadata_records::PlacedReplica;
use crate::partition::Partition;
use crate::raft::GroupId;

impl Core {
    /// Tells whether a replica keeps up, as its leader here sees it, and would make a majority if others were lost.
    pub(crate) fn keeps_up(&self, leader: &Partition, placed: &PlacedReplica) -> bool {
        let group = &leader.group;
        self.has_its_place(placed)
            && group.is_full_voter(placed.peer_id)
            && group.caught_up().any(|peer| peer == placed.peer_id)
    }

    /// Tells whether no other directory took the place of a replica's. While a partition moves to the new one it has
    /// both.
    fn has_its_place(&self, placed: &PlacedReplica) -> bool {
        !self.controller.image.retired.contains(&placed.directory_id)
    }

    /// Returns the nodes whose replicas of a partition are in sync, as its leader on node `leader` reports. Where that
    /// report is not heard, the result is this node's own knowledge.
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
                return self.keeps_up(partition, placed) && !peers.is_silent(placed.broker_id);
            }
            let is_there = if peers.is_silent(leader) {
                !peers.is_silent(placed.broker_id)
            } else {
                !peers.says_unheard(leader, placed.broker_id)
            };
            // This node may learn of a change of membership before the leader's next word.
            let votes = here.is_none_or(|it| {
                let peer = placed.peer_id;
                it.group.is_full_voter(peer) || !it.group.has_member(peer)
            });
            is_there
                && votes
                && self.has_its_place(placed)
                && !peers.told_lacking(group).contains(&placed.peer_id)
        };
        replicas.iter().filter(is_in).map(|placed| placed.broker_id).collect()
    }

    /// Announces which replicas of a partition that is led here lack something.
    pub(crate) fn note_lacking_of(&mut self, replica: ReplicaId) {
        let Some(partition) = self.partitions.get(&replica) else { return };
        let (id, group) = (partition.id, &partition.group);
        if !group.is_serving() || self.peers.announced(id) != Some(group.term()) {
            return;
        }
        let placed = self.placed_all(id);
        let lacking = placed.iter().filter(|placed| !self.keeps_up(partition, placed));
        let lacking = lacking.map(|placed| placed.peer_id).collect();
        self.peers.announce_lacking(id, lacking);
    }

    /// Returns the number of partitions led here with replicas that are not in sync.
    pub(crate) fn under_replicated(&self) -> usize {
        let own = self.options.facts.broker_id;
        let lacks_some = |partition: &Partition| {
            let placed = self.placed_all(partition.id);
            self.in_sync(partition.id, own, &placed).len() < placed.len()
        };
        self.partitions
            .values()
            .filter(|it| it.group.is_serving())
            .filter(|it| lacks_some(it))
            .count()
    }
}
