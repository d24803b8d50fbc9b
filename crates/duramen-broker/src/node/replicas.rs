//! # Room card: replicas of a node
//!
//! Purpose:    the replicas on this node: those that the metadata places in its directory, and no others.
//! Owns:       creation and deletion of replicas, and their settings.
//! Interface:  [`Node::follow_change`] for each change of the metadata, [`Node::reconcile`] after a start or a new
//!             image of the metadata.
//! Invariants: the node deletes a partition's former replica before it creates another one. A directory has at most one
//!             replica of a partition.
//! Never:      the placement of replicas (see `controller`), their work.
//! Tests:      `node/tests`; `duramen-sim`.
//! Start at:   [`Node::follow_change`].

use std::collections::BTreeSet;
use std::sync::Arc;

use duramen_protocol::wire::Uuid;
use duramen_storage::op::{Identity, Op, OpKind, ReplicaId};

use super::Node;
use super::coordinators::Kind;
use crate::configs::TopicSettings;
use crate::controller::image::{Change, Topic};
use crate::controller::producer_ids_of;
use crate::event::Action;
use crate::internal_topics;
use crate::partition::{Effects, Partition};
use crate::raft::GroupId;
use duramen_storage::sabotage::{self, Bug};

impl Node {
    pub(crate) fn follow_change(&mut self, change: Change, made: &mut Vec<GroupId>) {
        if matches!(change, Change::Placed { .. } | Change::Deleted(_)) {
            self.note_topics();
        }
        match change {
            Change::Placed { topic_id, partition, gone } => {
                // While the log is replayed, replicas are there already or will be missed later.
                if self.is_registered {
                    let own = self.own_directory();
                    for replica in gone.iter().filter(|replica| replica.directory_id == own) {
                        self.remove_replica(ReplicaId(replica.peer_id));
                    }
                    let new = self.instantiate(topic_id, partition);
                    // One that is added is not waited for: the others serve.
                    let born = self.controller.image.voters_at_birth(topic_id, partition);
                    let group = GroupId { topic_id: topic_id.0, partition };
                    let is_made = match new {
                        Some(replica) => born.contains(&replica.0),
                        None => self.is_to_be_led_elsewhere(group),
                    };
                    made.extend(is_made.then_some(group));
                }
            }
            Change::Configured { topic_id } => self.configure(topic_id),
            Change::BrokersConfigured => self.reconfigure(),
            Change::Brokers => self.tell_nodes(),
            Change::Deleted(topic) => {
                self.remove(&topic);
                for key in self.peers.forget_topic(&topic) {
                    self.on_leader(key);
                }
                self.forget_offsets(&topic);
            }
        }
    }

    /// Makes the replica that a placement gives to this node's directory, if it is not there.
    fn instantiate(&mut self, topic_id: Uuid, partition: i32) -> Option<ReplicaId> {
        let topic = self.controller.image.topic(topic_id)?;
        let replicas = topic.partitions.get(usize::try_from(partition).ok()?)?;
        let own = self.own_directory();
        let replica = replicas.iter().find(|replica| replica.directory_id == own)?;
        let id = ReplicaId(replica.peer_id);
        if self.partitions.contains_key(&id) {
            return None;
        }
        let voters = self.controller.image.voters_at_birth(topic_id, partition);
        let settings = self.settings_of(topic);
        let kind = Kind::of(&topic.name);
        let identity = Identity { topic: topic.name.clone(), topic_id: topic_id.0, partition };
        let seed = self.options.seed;
        let is_added = !voters.contains(&id.0);
        let mut made = if is_added {
            Partition::await_birth(id, identity, settings, seed)
        } else {
            Partition::create(id, identity, &voters, settings, seed)
        };
        made.group.keep_in_memory(self.options.memory);
        let is_first = replicas[0].directory_id == own && !is_added;
        if made.group.is_alone() || is_first {
            made.group.campaign();
        }
        self.peers.tick(id);
        self.quiescence.begin(id);
        self.partitions.insert(id, made);
        self.mark_dirty(id);
        if let Some(kind) = kind {
            self.note_coordinated(id, kind);
        }
        Some(id)
    }

    pub(crate) fn settings_of(&self, topic: &Topic) -> Arc<TopicSettings> {
        let mut settings = TopicSettings::resolve(&topic.configs, &self.options.settings);
        // The topic's coordinator decides which records may go, whatever the settings are.
        let is_internal = internal_topics::is_internal(&topic.name);
        settings.delete &= !is_internal;
        settings.compact &= !is_internal;
        let own = producer_ids_of(self.options.facts.cluster_id);
        settings.newcomers = own.start.max(topic.newcomers_from)..own.end;
        Arc::new(settings)
    }

    pub(super) fn configure(&mut self, topic_id: Uuid) {
        if sabotage::is(Bug::SettingsNotTakenUp) {
            return;
        }
        let Some(topic) = self.controller.image.topic(topic_id) else { return };
        let settings = self.settings_of(topic);
        let mut keeping_less = Vec::new();
        for replica in own_replicas(topic, self.own_directory()) {
            if let Some(partition) = self.partitions.get_mut(&replica) {
                keeping_less
                    .extend(settings.keep_less_than(&partition.settings).then_some(replica));
                partition.settings = Arc::clone(&settings);
            }
        }
        // An operator who shortens retention may need the room.
        if self.is_registered && !keeping_less.is_empty() {
            let is_believed = self.believes_clock();
            self.retain(&keeping_less, is_believed.then_some(self.now.wall_ms));
        }
    }

    fn remove(&mut self, topic: &Topic) {
        for replica in own_replicas(topic, self.own_directory()) {
            self.remove_replica(replica);
        }
    }

    fn remove_replica(&mut self, replica: ReplicaId) {
        let Some(mut partition) = self.partitions.remove(&replica) else { return };
        self.peers.forget(replica, partition.id);
        self.quiescence.forget(replica);
        self.bytes_in_flight -= partition.group.bytes_in_flight();
        self.forget_coordinated(replica);
        self.forget_shares(replica);
        let mut effects = Effects::default();
        partition.close(&mut effects);
        self.settle_doubts(replica);
        if !sabotage::is(Bug::ReplicaNotDeleted) {
            self.out.push(Action::Storage(Op { replica, kind: OpKind::Delete }));
        }
        self.follow(effects);
        self.note_opened(replica);
    }

    /// Makes replicas that are placed here and missing, and deletes those that are not placed
    /// here any more.
    pub(crate) fn reconcile(&mut self) {
        let own = self.own_directory();
        let image = &self.controller.image;
        let mut wanted = BTreeSet::new();
        let mut missing = Vec::new();
        let mut ids = Vec::new();
        for topic in image.topics_by_name() {
            ids.push(topic.id);
            for (partition, replicas) in (0..).zip(&topic.partitions) {
                let own = replicas.iter().find(|replica| replica.directory_id == own);
                let Some(replica) = own else { continue };
                let replica = ReplicaId(replica.peer_id);
                wanted.insert(replica);
                if !self.partitions.contains_key(&replica) {
                    missing.push((topic.id, partition));
                }
            }
        }
        let all = self.partitions.keys();
        let mut surplus: Vec<_> = all.filter(|id| !wanted.contains(id)).copied().collect();
        if sabotage::is(Bug::SurplusKept) {
            surplus.clear();
        }
        for replica in surplus {
            self.remove_replica(replica);
        }
        for (topic_id, partition) in missing {
            let made = self.instantiate(topic_id, partition);
            let is_alone = |id: &ReplicaId| self.partitions[id].group.is_alone();
            let made = made.filter(is_alone);
            if let Some(opening) = &mut self.opening {
                opening.awaited.extend(made);
            }
        }
        for topic_id in ids {
            self.configure(topic_id);
        }
        for name in internal_topics::COORDINATED {
            let topic = self.controller.image.topic_named(name);
            let replicas = topic.map_or(Vec::new(), |topic| own_replicas(topic, own));
            for (replica, kind) in replicas.into_iter().zip(std::iter::repeat(Kind::of(name))) {
                if let Some(kind) = kind {
                    self.note_coordinated(replica, kind);
                }
            }
        }
    }
}

/// Returns the replicas of a topic that one directory holds.
fn own_replicas(topic: &Topic, own: Uuid) -> Vec<ReplicaId> {
    let all = topic.partitions.iter().flatten();
    all.filter(|replica| replica.directory_id == own).map(|it| ReplicaId(it.peer_id)).collect()
}
