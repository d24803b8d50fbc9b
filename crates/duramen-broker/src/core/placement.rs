//! Places of replicas and nodes, as far as this node knows them.

use duramen_protocol::wire::Uuid;

use super::Core;
use crate::controller::METADATA_GROUP;
use crate::controller::image::Topic;
use crate::controller::quorum::peer_of;
use crate::metadata_records::{PlacedReplica, RegisterBroker};
use crate::raft::GroupId;

impl Core {
    /// Returns the places of all peers of a group.
    pub(crate) fn placed_all(&self, group: GroupId) -> Vec<PlacedReplica> {
        if group == METADATA_GROUP {
            let ids = self.controller.group.voter_ids().iter();
            return ids.filter_map(|&peer_id| self.placed(group, peer_id)).collect();
        }
        let placed = self.controller.image.replicas(Uuid(group.topic_id), group.partition);
        placed.unwrap_or_default().to_vec()
    }

    /// Returns the place of a peer of a group.
    pub(crate) fn placed(&self, group: GroupId, peer_id: u64) -> Option<PlacedReplica> {
        if group == METADATA_GROUP {
            let founders = &self.peers.founders;
            let founder = founders.iter().find(|it| it.peer_id == peer_id);
            let founder = founder.map(|it| (it.broker_id, Uuid(it.directory_id)));
            let registered = || {
                let mut all = self.controller.image.brokers.values();
                let found = all.find(|it| peer_of(founders, it.directory_id) == peer_id);
                found.map(|it| (it.broker_id, it.directory_id))
            };
            let acquainted = || self.peers.acquaintances.get(&peer_id).cloned();
            let placed =
                |(broker_id, directory_id)| PlacedReplica { peer_id, broker_id, directory_id };
            return founder.or_else(registered).map(placed).or_else(acquainted);
        }
        let replicas = self.controller.image.replicas(Uuid(group.topic_id), group.partition)?;
        replicas.iter().find(|placed| placed.peer_id == peer_id).cloned()
    }

    /// Returns the directory that is a node, as far as this one knows.
    pub(crate) fn directory_of(&self, broker_id: i32) -> Option<Uuid> {
        let registered = self.controller.image.brokers.get(&broker_id).map(|it| it.directory_id);
        registered.or_else(|| {
            let founder = self.peers.founders.iter().find(|it| it.broker_id == broker_id);
            let directory_id = founder.map(|founder| Uuid(founder.directory_id));
            directory_id.filter(|id| !self.controller.image.retired.contains(id))
        })
    }

    /// Returns the registered nodes for clients: this node, and the nodes that were heard lately. A node that hears no
    /// majority returns all of them. It is cut off itself, and clients that forgot the others could not leave it.
    pub(crate) fn live_brokers(&self) -> impl Iterator<Item = (i32, &RegisterBroker)> {
        let is_cut_off = self.is_cut_off();
        let all = self.controller.image.brokers.iter().map(|(&id, broker)| (id, broker));
        all.filter(move |(id, _)| is_cut_off || !self.peers.is_silent(*id))
    }

    /// Returns the registered nodes that this one has not heard lately.
    pub(crate) fn unheard(&self) -> impl Iterator<Item = i32> {
        let all = self.controller.image.brokers.keys().copied();
        all.filter(move |id| self.peers.is_silent(*id))
    }

    /// Tells whether this node hears no majority of all nodes, itself among them, and knows no leader of the metadata.
    fn is_cut_off(&self) -> bool {
        let all = self.controller.image.brokers.len();
        2 * (all - self.unheard().count()) <= all && self.metadata_leader().is_none()
    }

    /// Tells whether clients may learn of a leader on a node: the node was heard lately, or this node is cut off
    /// itself.
    pub(crate) fn may_lead(&self, broker_id: i32) -> bool {
        !self.peers.is_silent(broker_id) || self.is_cut_off()
    }

    /// Returns the node that leads the metadata, as far as this one knows.
    pub(crate) fn metadata_leader(&self) -> Option<i32> {
        if !self.is_clustered() {
            return Some(self.options.facts.broker_id);
        }
        let leader = self.controller.group.leader()?;
        self.placed(METADATA_GROUP, leader).map(|placed| placed.broker_id)
    }

    /// Returns the node that leads a partition, and its leader epoch. Both come from the replica here or from
    /// announcements, whichever has the highest term.
    pub(crate) fn leader_of(&self, topic: &Topic, index: i32) -> Option<(i32, i32)> {
        let replica = self.local_replica(topic, index);
        let partition = replica.and_then(|replica| self.partitions.get(&replica));
        let group = GroupId { topic_id: topic.id.0, partition: index };
        let here = partition.map(|it| &it.group).and_then(|it| Some((it.term(), it.leader()?)));
        let told = self.peers.led.get(&group).map(|told| (told.term, told.peer_id));
        let (term, leader) = here.max(told)?;
        let is_own = partition.is_some_and(|partition| partition.group.id().0 == leader);
        if is_own && !partition.is_some_and(|partition| partition.group.is_serving()) {
            return None;
        }
        let placed = self.placed(group, leader)?;
        Some((placed.broker_id, i32::try_from(term).unwrap_or(i32::MAX)))
    }

    /// Tells whether a partition without a replica here had no leader yet, and is about to have one. The node of its
    /// first replica, which stands for election first, is heard.
    pub(crate) fn is_to_be_led_elsewhere(&self, group: GroupId) -> bool {
        let replicas = self.controller.image.replicas(Uuid(group.topic_id), group.partition);
        let own = self.own_directory();
        !self.peers.led.contains_key(&group)
            && replicas.is_some_and(|all| {
                all.iter().all(|it| it.directory_id != own)
                    && all.first().is_some_and(|first| self.peers.hears(first.broker_id))
            })
    }
}
