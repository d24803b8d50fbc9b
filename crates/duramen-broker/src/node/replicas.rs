//! # Room card: replicas of a node
//!
//! Purpose:    the replicas on this node: those that the metadata places in its directory, and no others.
//! Owns:       creation and deletion of replicas, and their settings.
//! Interface:  [`follow_changes`] for the changes of the metadata, [`reconcile`] after a start or a new
//!             image of the metadata.
//! Invariants: the node deletes a partition's former replica before it creates another one. A directory has at most one
//!             replica of a partition.
//! Never:      the placement of replicas (see `controller`), their work.
//! Tests:      `node/tests`; `duramen-sim`.
//! Start at:   [`follow_changes`].

use std::collections::BTreeSet;
use std::sync::Arc;

use duramen_protocol::wire::Uuid;
use duramen_storage::op::{Identity, Op, OpKind, ReplicaId};
use duramen_storage::sabotage::{self, Bug};

use super::coordinators::Kind;
use crate::configs::TopicSettings;
use crate::controller::image::{Change, Topic};
use crate::controller::producer_ids_of;
use crate::core::{Core, mark};
use crate::event::Action;
use crate::internal_topics;
use crate::metadata_records::MetadataRecord;
use crate::node::Node;
use crate::partition::{Effects, Partition};
use crate::raft::GroupId;

impl Core {
    pub(crate) fn settings_of(&self, topic: &Topic) -> Arc<TopicSettings> {
        let mut settings = TopicSettings::resolve(&topic.configs, &self.options.settings);
        // The topic's coordinator decides which records may go, whatever the settings are.
        let is_coordinated = internal_topics::is_coordinated(&topic.name);
        settings.delete &= !is_coordinated;
        settings.compact &= !is_coordinated;
        settings.compression = settings.compression.filter(|_| !is_coordinated);
        let own = producer_ids_of(self.options.facts.cluster_id);
        settings.partitions = i32::try_from(topic.partitions.len()).unwrap_or(i32::MAX);
        settings.newcomers = own.start.max(topic.newcomers_from)..own.end;
        Arc::new(settings)
    }

    pub(super) fn configure(&mut self, topic_id: Uuid) {
        if sabotage::is(Bug::SettingsNotTakenUp) {
            return;
        }
        let Some(topic) = self.controller.image.topic(topic_id) else { return };
        let settings = self.settings_of(topic);
        self.board.note(topic_id, &topic.name, settings.target());
        let mut keeping_less = Vec::new();
        for replica in own_replicas(topic, self.own_directory()) {
            if let Some(partition) = self.partitions.get_mut(&replica) {
                keeping_less
                    .extend(settings.keep_less_than(&partition.settings).then_some(replica));
                let begins_queues = settings.queue && !partition.settings.queue;
                partition.settings = Arc::clone(&settings);
                if begins_queues {
                    // Its index begins with a turn, and nothing else may happen there.
                    mark(&mut self.dirty, partition);
                }
            }
        }
        // An operator who shortens retention may need the room.
        if self.is_registered && !keeping_less.is_empty() {
            let is_believed = self.believes_clock();
            self.retain(&keeping_less, is_believed.then_some(self.now.wall_ms));
        }
    }
}

/// Follows the changes of one turn, of which the image already has all. At the first one it may place a replica here
/// whose predecessor goes by a later one, so those that are gone go first.
pub(crate) fn follow_changes(node: &mut Node, changes: Vec<Change>) -> Vec<GroupId> {
    // While the log is replayed, replicas are there already or will be missed later.
    if node.core.is_registered {
        let own = node.core.own_directory();
        let gone = changes.iter().filter_map(|change| match change {
            Change::Placed { gone, .. } => Some(gone),
            _ => None,
        });
        for replica in gone.flatten().filter(|replica| replica.directory_id == own) {
            remove_replica(node, ReplicaId(replica.peer_id));
        }
    }
    let mut made = Vec::new();
    let are_users_others = changes.contains(&Change::Users);
    for change in changes {
        follow_change(node, change, &mut made);
    }
    if are_users_others {
        node.logins.follow(&mut node.core);
    }
    made
}

fn follow_change(node: &mut Node, change: Change, made: &mut Vec<GroupId>) {
    if matches!(change, Change::Placed { .. } | Change::Deleted(_)) {
        node.coordinators.note_topics();
    }
    match change {
        Change::Placed { topic_id, partition, .. } => {
            if node.core.is_registered {
                let new = instantiate(node, topic_id, partition);
                // One that is added is not waited for: the others serve.
                let born = node.core.controller.image.voters_at_birth(topic_id, partition);
                let group = GroupId { topic_id: topic_id.0, partition };
                let is_made = match new {
                    Some(replica) => born.contains(&replica.0),
                    None => node.core.is_to_be_led_elsewhere(group),
                };
                made.extend(is_made.then_some(group));
            }
        }
        Change::Configured { topic_id } => node.core.configure(topic_id),
        Change::BrokersConfigured => node.sweeps.reconfigure(&mut node.core),
        Change::Brokers => node.core.tell_nodes(),
        Change::AclAdded(acl) => node.core.access.add(acl),
        Change::AclRemoved(acl) => node.core.access.remove(&acl),
        // One look at all connections does for all users of a turn.
        Change::Users => {}
        Change::Deleted(topic) => {
            remove(node, &topic);
            for key in node.core.peers.forget_topic(&topic) {
                node.core.on_leader(key);
            }
            node.coordinators.forget_offsets(&mut node.core, &topic);
        }
    }
}

/// Makes the replica that a placement gives to this node's directory, if it is not there.
fn instantiate(node: &mut Node, topic_id: Uuid, partition: i32) -> Option<ReplicaId> {
    let topic = node.core.controller.image.topic(topic_id)?;
    let replicas = topic.partitions.get(usize::try_from(partition).ok()?)?;
    let own = node.core.own_directory();
    let replica = replicas.iter().find(|replica| replica.directory_id == own)?;
    let id = ReplicaId(replica.peer_id);
    if node.core.partitions.contains_key(&id) {
        return None;
    }
    let voters = node.core.controller.image.voters_at_birth(topic_id, partition);
    let settings = node.core.settings_of(topic);
    let kind = Kind::of(&topic.name);
    let identity = Identity { topic: topic.name.clone(), topic_id: topic_id.0, partition };
    node.core.board.note(topic_id, &topic.name, settings.target());
    let seed = node.core.options.seed;
    let is_added = !voters.contains(&id.0);
    let mut made = if is_added {
        Partition::await_birth(id, identity, settings, seed)
    } else {
        Partition::create(id, identity, &voters, settings, seed)
    };
    made.group.keep_in_memory(node.core.options.memory);
    debug_assert!(
        node.core.partitions.values().all(|other| other.id != made.id),
        "a directory has one replica of a partition"
    );
    let is_first = replicas[0].directory_id == own && !is_added;
    if made.group.is_alone() || is_first {
        made.group.campaign();
    }
    node.core.peers.tick(id);
    node.quiescence.begin(id);
    node.core.partitions.insert(id, Box::new(made));
    node.core.mark_dirty(id);
    if let Some(kind) = kind {
        node.coordinators.note_coordinated(&mut node.core, id, kind);
    }
    Some(id)
}

fn remove(node: &mut Node, topic: &Topic) {
    node.core.board.note(topic.id, &topic.name, None);
    for replica in own_replicas(topic, node.core.own_directory()) {
        remove_replica(node, replica);
    }
}

fn remove_replica(node: &mut Node, replica: ReplicaId) {
    let Some(mut partition) = node.core.partitions.remove(&replica) else { return };
    assert_eq!(partition.group.id(), replica, "a replica has the id that it is kept under");
    node.core.peers.forget(replica, partition.id);
    node.quiescence.forget(replica);
    node.core.bytes_in_flight -= partition.group.bytes_in_flight();
    node.core.held_bytes -= partition.held_bytes();
    node.settling.forget(replica);
    node.coordinators.forget_coordinated(&mut node.core, replica);
    node.shares.forget_shares(&mut node.core, replica);
    node.queues.forget(&mut node.core, replica);
    let mut effects = Effects::default();
    partition.close(&mut effects);
    node.settle_doubts(replica);
    if !sabotage::is(Bug::ReplicaNotDeleted) {
        node.core.out.push(Action::Storage(Op { replica, kind: OpKind::Delete }));
    }
    node.follow(effects);
    node.core.note_opened(replica);
    assert!(
        node.core.peers.announced(partition.id).is_none(),
        "a replica that is gone leads nothing"
    );
}

/// Makes replicas that are placed here and missing, and deletes those that are not placed
/// here any more.
pub(crate) fn reconcile(node: &mut Node) {
    let own = node.core.own_directory();
    let image = &node.core.controller.image;
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
            if !node.core.partitions.contains_key(&replica) {
                missing.push((topic.id, partition));
            }
        }
    }
    let all = node.core.partitions.keys();
    let mut surplus: Vec<_> = all.filter(|id| !wanted.contains(id)).copied().collect();
    if sabotage::is(Bug::SurplusKept) {
        surplus.clear();
    }
    for replica in surplus {
        remove_replica(node, replica);
    }
    for (topic_id, partition) in missing {
        let made = instantiate(node, topic_id, partition);
        let is_alone = |id: &ReplicaId| node.core.partitions[id].group.is_alone();
        let made = made.filter(is_alone);
        if let Some(replica) = made {
            node.core.open_after(replica);
        }
    }
    let Core { board, controller, .. } = &mut node.core;
    board.keep(|id| controller.image.topic(id).is_some());
    for topic_id in ids {
        node.core.configure(topic_id);
    }
    for name in internal_topics::COORDINATED {
        let topic = node.core.controller.image.topic_named(name);
        let replicas = topic.map_or(Vec::new(), |topic| own_replicas(topic, own));
        for (replica, kind) in replicas.into_iter().zip(std::iter::repeat(Kind::of(name))) {
            if let Some(kind) = kind {
                node.coordinators.note_coordinated(&mut node.core, replica, kind);
            }
        }
    }
}

/// Registers this node. The registration counts once the metadata group has committed it; then the node knows which
/// replicas it should have.
pub(crate) fn register(node: &mut Node) {
    if node.core.is_registered {
        return;
    }
    if node.core.controller.group.is_serving() && node.members.registration.is_none() {
        let record = MetadataRecord::RegisterBroker(node.core.registration_record());
        node.members.registration = node.core.controller.propose(node.core.now, &[record]).ok();
        node.core.is_controller_dirty = node.members.registration.is_some();
        return;
    }
    let is_done = if node.core.controller.group.is_alone() {
        let applied = node.core.controller.group.applied();
        node.members.registration.is_some_and(|index| index <= applied)
    } else {
        // Another node may have proposed the registration. Its number shows that it is of this start.
        let broker = node.core.controller.image.brokers.get(&node.core.options.facts.broker_id);
        broker.is_some_and(|it| it.incarnation == node.core.options.seed)
    };
    if !is_done {
        return;
    }
    node.core.is_registered = true;
    node.core.tell_members();
    reconcile(node);
    node.core.note_opened(node.core.controller.group.id());
}

/// Returns the replicas of a topic that one directory holds.
fn own_replicas(topic: &Topic, own: Uuid) -> Vec<ReplicaId> {
    let all = topic.partitions.iter().flatten();
    all.filter(|replica| replica.directory_id == own).map(|it| ReplicaId(it.peer_id)).collect()
}
