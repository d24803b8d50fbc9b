//! # Room card: members
//!
//! Purpose:    the nodes and data directories of the cluster.
//! Owns:       this node's registration; admission of nodes, and of directories in the place of others; the voters of
//!             the metadata; the fate of replicas whose directory is lost.
//! Interface:  [`Node::register`], [`Node::admit`], [`Node::tend_members`], [`Node::tell_nodes`].
//! Invariants: a retired directory never takes part in the cluster again. Another directory takes a node's place only
//!             if an operator asked for that, and no node hears the former directory. The next step follows from the
//!             metadata and the membership of its group. So a new leader of the metadata goes on where the former one
//!             stopped.
//! Never:      changes of a group's members (see `raft/membership.rs`).
//! Tests:      `node/tests/members.rs`; `duramen-sim`, scenario `cluster`: machines that lose their disk, join and
//!             leave.
//! Start at:   [`Node::tend_members`].

use std::collections::VecDeque;

use duramen_protocol::ErrorCode;
use duramen_protocol::wire::Uuid;

use super::{Node, Parked, Signal};
use crate::controller::image::Topic;
use crate::controller::quorum::{Quorum, peer_of};
use crate::event::{Action, Membership, NodeAddress};
use crate::internal_topics;
use crate::limits::MOVES_BEGUN_MAX;
use crate::metadata_records::{
    Endpoint, MetadataRecord, PlacedReplica, RegisterBroker, RetireDirectory, UnregisterBroker,
};
use crate::raft::Approach;

/// The name of the listener for other nodes, among a node's endpoints.
const NODES: &str = "NODES";

/// This node's registration.
impl Node {
    /// Registers this node. The registration counts once the metadata group has committed it; then the node knows which
    /// replicas it should have.
    pub(crate) fn register(&mut self) {
        if self.is_registered {
            return;
        }
        if self.controller.group.is_serving() && self.registration.is_none() {
            let record = MetadataRecord::RegisterBroker(self.registration_record());
            self.registration = self.controller.propose(self.now, &[record]).ok();
            self.is_controller_dirty = self.registration.is_some();
            return;
        }
        let is_done = if self.controller.group.is_alone() {
            let applied = self.controller.group.applied();
            self.registration.is_some_and(|index| index <= applied)
        } else {
            // Another node may have proposed the registration. Its number shows that it is of this start.
            let broker = self.controller.image.brokers.get(&self.options.facts.broker_id);
            broker.is_some_and(|it| it.incarnation == self.options.seed)
        };
        if !is_done {
            return;
        }
        self.is_registered = true;
        self.tell_members();
        self.reconcile();
        self.note_opened(self.controller.group.id());
    }

    pub(super) fn registration_record(&self) -> RegisterBroker {
        let options = &self.options;
        let endpoint = Endpoint {
            listener: options.listener.clone(),
            host: options.host.clone(),
            port: options.port,
        };
        let for_nodes = options.node_address.clone().map(|(host, port)| Endpoint {
            listener: NODES.to_owned(),
            host,
            port,
        });
        RegisterBroker {
            broker_id: options.facts.broker_id,
            directory_id: self.own_directory(),
            incarnation: options.seed,
            endpoints: std::iter::once(endpoint).chain(for_nodes).collect(),
            rack: options.rack.clone(),
        }
    }

    /// Reports which directories are the cluster, so that others learn that they are not.
    fn tell_members(&mut self) {
        if !self.is_clustered() {
            return;
        }
        let image = &self.controller.image;
        let staying = image.staying().map(|(id, broker)| (id, broker.directory_id.0));
        let founders = self.peers.founders().iter();
        let founders = founders.map(|it| (it.broker_id, it.directory_id));
        // A founder may not have registered yet. A node's registration is newer than its founding.
        let founders = founders.filter(|(id, directory_id)| {
            let is_retired = image.retired.contains(&Uuid(*directory_id));
            !is_retired && !image.brokers.contains_key(id)
        });
        self.out.push(Action::Members(Membership {
            // A replica that began anew has an image of later entries than it has applied.
            index: self.controller.group.applied().max(image.as_of),
            directories: founders.chain(staying).collect(),
            retired: image.retired.iter().map(|it| it.0).collect(),
            is_registered: self.is_registered,
        }));
    }

    /// Says where the other nodes are, as far as they have said so, and which directories they are.
    pub(crate) fn tell_nodes(&mut self) {
        self.tell_members();
        let address = |(&broker_id, broker): (&i32, &RegisterBroker)| {
            let endpoint = broker.endpoints.iter().find(|it| it.listener == NODES)?;
            Some(NodeAddress { broker_id, host: endpoint.host.clone(), port: endpoint.port })
        };
        let brokers = self.controller.image.brokers.iter();
        let nodes: Vec<_> = brokers.filter_map(address).collect();
        if !nodes.is_empty() {
            self.out.push(Action::Nodes(nodes));
        }
    }
}

/// Work of the node that leads the metadata.
impl Node {
    /// Registers a directory that is not known to be its node: it joins, or `replaces` one that is lost.
    pub(super) fn admit(&mut self, registration: &RegisterBroker, replaces: bool) {
        let &RegisterBroker { broker_id, directory_id, .. } = registration;
        if !self.controller.group.is_serving()
            || self.controller.image.retired.contains(&directory_id)
        {
            return;
        }
        let mut records = Vec::new();
        if let Some(before) = self.directory_of(broker_id) {
            // An empty directory may be a mount that is missing, and the lost one may be whole. An operator who lets a
            // cluster survive, or removes a node, has given the former directory up already.
            let is_given_up = self.controller.image.retired.contains(&before);
            let may_follow = replaces || is_given_up;
            // The other directory was let in since it spoke. Or it may be alive, and the speaker is only another
            // process of the same number.
            if before == directory_id || !may_follow || self.peers.hears(broker_id) {
                return;
            }
            records.push(MetadataRecord::RetireDirectory(RetireDirectory { directory_id: before }));
        }
        records.push(MetadataRecord::RegisterBroker(registration.clone()));
        self.propose_for_peer(&records);
    }

    /// Answers requests that wait for a node's removal, once the node is gone or another node knows.
    pub(crate) fn note_departures(&mut self, is_other_term: bool) {
        let brokers = &self.controller.image.brokers;
        let departing = self.parked.iter().filter_map(|(key, waiting)| match waiting.parked {
            Parked::Departure { broker_id } => Some((*key, !brokers.contains_key(&broker_id))),
            _ => None,
        });
        let departing: Vec<_> =
            departing.filter(|(_, is_gone)| *is_gone || is_other_term).collect();
        for (key, is_gone) in departing {
            let code = if is_gone { ErrorCode::None } else { ErrorCode::NotController };
            self.signals.push_back(Signal::Departed { key, code });
        }
    }

    /// Takes a step towards the cluster as it should be: which nodes keep the metadata, which are gone, where replicas
    /// are.
    pub(super) fn tend_members(&mut self) {
        if !self.controller.group.is_serving() {
            return;
        }
        let voters = self.controller.group.voter_ids().to_vec();
        let image = &self.controller.image;
        let quorum = Quorum::of(image, self.peers.founders(), &voters, |id| self.is_heard(id));
        let Quorum { voters, observers } = quorum;
        let approached = self.controller.group.approach(&voters, &observers, 0);
        self.is_controller_dirty |= approached == Approach::Stepped;
        self.let_go();
        self.mend_placements();
    }

    /// Removes a node whose directory was retired, once it has no part in the metadata any more.
    fn let_go(&mut self) {
        let image = &self.controller.image;
        let is_gone = |broker: &&RegisterBroker| {
            let peer = peer_of(self.peers.founders(), broker.directory_id);
            image.retired.contains(&broker.directory_id) && !self.controller.group.has_member(peer)
        };
        let gone = image.brokers.values().filter(is_gone);
        let unregister = |broker: &RegisterBroker| {
            MetadataRecord::UnregisterBroker(UnregisterBroker { broker_id: broker.broker_id })
        };
        let records: Vec<_> = gone.map(unregister).collect();
        if !records.is_empty() && self.members.decided != Some(self.controller.group.applied()) {
            self.members.decided = Some(self.controller.group.applied());
            self.propose_for_peer(&records);
        }
    }

    /// Makes replicas anew on the node of their lost directory, and gives internal topics the replicas that they should
    /// have.
    fn mend_placements(&mut self) {
        let applied = self.controller.group.applied();
        if self.members.mended == Some(applied) {
            return;
        }
        let mut wanted = Vec::new();
        for topic in self.controller.image.topics_by_name() {
            if self.controller.is_changing(topic.id) {
                continue;
            }
            for partition in (0..).take(topic.partitions.len()) {
                let brokers = self.brokers_wanted(topic, partition);
                wanted.extend(brokers.map(|brokers| (topic.id, partition, brokers)));
            }
        }
        if wanted.is_empty() {
            // A node that is silent now may be needed when it is back.
            let are_all_heard = self.controller.image.staying().all(|(id, _)| self.is_heard(id));
            self.members.mended = are_all_heard.then_some(applied);
            return;
        }
        wanted.truncate(MOVES_BEGUN_MAX);
        let records: Vec<_> = wanted
            .iter()
            .filter_map(|(id, partition, to)| self.controller.move_partition(*id, *partition, to))
            .collect();
        if !records.is_empty() {
            self.propose_for_peer(&records);
        }
    }

    /// Returns the nodes on which a partition should be, if something is wrong with its present or its next replicas.
    /// Another directory of the same node replaces a lost replica, or else another node does.
    fn brokers_wanted(&self, topic: &Topic, partition: i32) -> Option<Vec<i32>> {
        let image = &self.controller.image;
        let replicas = topic.partitions.get(usize::try_from(partition).ok()?)?;
        let moved = image.reassignments.get(&(topic.id, partition));
        let is_meant = |peer: u64| moved.is_none_or(|moved| moved.target.contains(&peer));
        let meant: Vec<_> = replicas.iter().filter(|it| is_meant(it.peer_id)).collect();
        let lost = |it: &PlacedReplica| image.retired.contains(&it.directory_id);
        let factor = internal_topics::replicas(&topic.name, &self.options.settings);
        let missing = factor.map_or(0, |factor| factor.saturating_sub(meant.len()));
        let missing = if moved.is_none() { missing } else { 0 };
        if missing == 0 && !meant.iter().any(|it| lost(it)) {
            return None;
        }
        let stays = |id: i32| self.controller.staying().any(|(staying, _)| staying == id);
        let mut others: VecDeque<i32> = self
            .controller
            .staying()
            .map(|(id, _)| id)
            .filter(|id| self.is_heard(*id) && meant.iter().all(|it| it.broker_id != *id))
            .collect();
        others.rotate_left(usize::try_from(partition).ok()? % others.len().max(1));
        let mut wanted = Vec::new();
        for replica in &meant {
            let is_there = !lost(replica) || stays(replica.broker_id);
            wanted.extend(if is_there { Some(replica.broker_id) } else { others.pop_front() });
        }
        wanted.extend(others.into_iter().take(missing));
        let is_better = wanted.len() > meant.len() || meant.iter().any(|it| lost(it));
        (is_better && !wanted.is_empty()).then_some(wanted)
    }

    /// Returns the number of partitions that are being moved, or have a replica whose directory is lost. `None` if this
    /// node does not lead the metadata.
    pub fn unsettled(&self) -> Option<usize> {
        let image = &self.controller.image;
        let is_lost = |it: &PlacedReplica| image.retired.contains(&it.directory_id);
        let topics = image.topics_by_name();
        let lost = topics.flat_map(|topic| &topic.partitions).filter(|it| it.iter().any(is_lost));
        let unsettled = lost.count() + image.reassignments.len();
        self.controller.group.is_serving().then_some(unsettled)
    }

    /// Returns the data directories of the nodes that belong to the cluster, as far as this one knows.
    pub fn directories(&self) -> impl Iterator<Item = [u8; 16]> {
        self.controller.image.staying().map(|(_, broker)| broker.directory_id.0)
    }

    /// Returns the term of the metadata.
    pub fn metadata_term(&self) -> u64 {
        self.controller.group.term()
    }

    /// Tells whether all committed data would survive elsewhere, and could be served, if a node's directory were lost
    /// now. Only the leader of the metadata knows.
    pub fn can_spare(&self, broker_id: i32) -> bool {
        let image = &self.controller.image;
        let group = &self.controller.group;
        let quorum = Quorum::of(image, self.peers.founders(), group.voter_ids(), |_| true);
        // In a joint membership, a majority of the former voters is needed, too.
        let is_kept =
            group.voters() >= 3 && quorum.voters == group.voter_ids() && !group.is_joint();
        let partitions = image.topics_by_name().flat_map(|topic| &topic.partitions);
        let mut there = partitions.filter(|it| it.iter().any(|it| it.broker_id == broker_id));
        self.unsettled() == Some(0) && is_kept && there.all(|it| it.len() >= 3)
    }

    fn is_heard(&self, broker_id: i32) -> bool {
        broker_id == self.options.facts.broker_id || self.peers.hears(broker_id)
    }

    /// Returns the number of replicas in a data directory.
    pub(crate) fn replicas_in(&self, directory_id: Uuid) -> usize {
        let topics = self.controller.image.topics_by_name();
        let replicas = topics.flat_map(|topic| topic.partitions.iter().flatten());
        replicas.filter(|it| it.directory_id == directory_id).count()
    }
}

/// Last steps, as the indexes that were applied then: nothing changes until more is applied.
#[derive(Debug, Default)]
pub(super) struct Members {
    mended: Option<u64>,
    decided: Option<u64>,
}
