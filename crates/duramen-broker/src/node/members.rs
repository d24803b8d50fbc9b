//! # Room card: members
//!
//! Purpose:    the nodes and data directories of the cluster.
//! Owns:       this node's registration; admission of nodes, and of directories in the place of others; the voters of
//!             the metadata; the fate of replicas whose directory is lost.
//! Interface:  [`admit`], [`Members::tend_members`]; registration is in `node/replicas.rs`.
//! Invariants: a retired directory never takes part in the cluster again. Another directory takes a node's place only
//!             if an operator asked for that, and no node hears the former directory. The next step follows from the
//!             metadata and the membership of its group. So a new leader of the metadata goes on where the former one
//!             stopped.
//! Never:      changes of a group's members (see `raft/membership.rs`).
//! Tests:      `node/tests/members.rs`; `duramen-sim`, scenario `cluster`: machines that lose their disk, join and
//!             leave.
//! Start at:   [`Members::tend_members`].

use std::collections::{BTreeSet, VecDeque};

use duramen_protocol::ErrorCode;
use duramen_protocol::wire::Uuid;
use duramen_storage::op::ReplicaId;

use crate::controller::image::Topic;
use crate::controller::quorum::{Quorum, peer_of};
use crate::core::{Core, Parked, Signal};
use crate::internal_topics;
use crate::limits::MOVES_BEGUN_MAX;
use crate::metadata_records::{
    MetadataRecord, PlacedReplica, RegisterBroker, RetireDirectory, UnregisterBroker,
};
use crate::raft::Approach;

/// Work of the node that leads the metadata.
impl Core {
    /// Answers requests that wait for a node's removal, once the node is gone or another node knows.
    pub(crate) fn note_departures(&mut self, is_other_term: bool) {
        let brokers = &self.controller.image.brokers;
        let departing = self.desk.iter().filter_map(|(key, parked)| match parked {
            Parked::Departure { broker_id } => Some((key, !brokers.contains_key(broker_id))),
            _ => None,
        });
        let departing: Vec<_> =
            departing.filter(|(_, is_gone)| *is_gone || is_other_term).collect();
        for (key, is_gone) in departing {
            let code = if is_gone { ErrorCode::None } else { ErrorCode::NotController };
            self.signals.push_back(Signal::Departed { key, code });
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

impl Members {
    /// Takes a step towards the cluster as it should be: which nodes keep the metadata, which are gone, where replicas
    /// are.
    pub(crate) fn tend_members(&mut self, core: &mut Core) {
        if !core.controller.group.is_serving() {
            return;
        }
        let voters = core.controller.group.voter_ids().to_vec();
        let image = &core.controller.image;
        let quorum = Quorum::of(image, core.peers.founders(), &voters, |id| core.is_heard(id));
        let Quorum { voters, observers } = quorum;
        let approached = core.controller.group.approach(&voters, &observers, 0);
        core.is_controller_dirty |= approached == Approach::Stepped;
        self.let_go(core);
        self.mend_placements(core);
    }

    /// Removes a node whose directory was retired, once it has no part in the metadata any more.
    fn let_go(&mut self, core: &mut Core) {
        let image = &core.controller.image;
        let is_gone = |broker: &&RegisterBroker| {
            let peer = peer_of(core.peers.founders(), broker.directory_id);
            image.retired.contains(&broker.directory_id) && !core.controller.group.has_member(peer)
        };
        let gone = image.brokers.values().filter(is_gone);
        let unregister = |broker: &RegisterBroker| {
            MetadataRecord::UnregisterBroker(UnregisterBroker { broker_id: broker.broker_id })
        };
        let records: Vec<_> = gone.map(unregister).collect();
        if !records.is_empty() && self.decided != Some(core.controller.group.applied()) {
            self.decided = Some(core.controller.group.applied());
            core.propose_for_peer(&records);
        }
    }

    /// Makes replicas anew on the node of their lost directory, and gives internal topics the replicas that they should
    /// have.
    fn mend_placements(&mut self, core: &mut Core) {
        let applied = core.controller.group.applied();
        if self.mended == Some(applied) {
            return;
        }
        let mut wanted = Vec::new();
        for topic in core.controller.image.topics_by_name() {
            if core.controller.is_changing(topic.id) {
                continue;
            }
            for partition in (0..).take(topic.partitions.len()) {
                let brokers = core.brokers_wanted(topic, partition);
                wanted.extend(brokers.map(|brokers| (topic.id, partition, brokers)));
            }
        }
        if wanted.is_empty() {
            // A node that is silent now may be needed when it is back.
            let are_all_heard = core.controller.image.staying().all(|(id, _)| core.is_heard(id));
            self.mended = are_all_heard.then_some(applied);
            return;
        }
        wanted.truncate(MOVES_BEGUN_MAX);
        let records: Vec<_> = wanted
            .iter()
            .filter_map(|(id, partition, to)| core.controller.move_partition(*id, *partition, to))
            .collect();
        if !records.is_empty() {
            core.propose_for_peer(&records);
        }
    }
}

/// Last steps, as the indexes that were applied then: nothing changes until more is applied.
#[derive(Debug, Default)]
pub(crate) struct Members {
    mended: Option<u64>,
    decided: Option<u64>,
    /// Index of this node's own registration, once it is proposed.
    pub(crate) registration: Option<u64>,
    /// Replicas here that are damaged beyond repair in place.
    pub(super) useless: BTreeSet<ReplicaId>,
}

/// Registers a directory that is not known to be its node: it joins, or `replaces` one that is lost.
pub(crate) fn admit(core: &mut Core, registration: &RegisterBroker, replaces: bool) {
    let &RegisterBroker { broker_id, directory_id, .. } = registration;
    if !core.controller.group.is_serving() || core.controller.image.retired.contains(&directory_id)
    {
        return;
    }
    // Another directory may be about to take the place. It is retired only once it is known, and no replica may be
    // placed in a directory that nobody has and nobody retired. The speaker asks again.
    if core.controller.is_registering(broker_id) {
        return;
    }
    let mut records = Vec::new();
    if let Some(before) = core.directory_of(broker_id) {
        // An empty directory may be a mount that is missing, and the lost one may be whole. An operator who lets a
        // cluster survive, or removes a node, has given the former directory up already.
        let is_given_up = core.controller.image.retired.contains(&before);
        let may_follow = replaces || is_given_up;
        // The other directory was let in since it spoke. Or it may be alive, and the speaker is only another
        // process of the same number.
        if before == directory_id || !may_follow || core.peers.hears(broker_id) {
            return;
        }
        records.push(MetadataRecord::RetireDirectory(RetireDirectory { directory_id: before }));
    }
    records.push(MetadataRecord::RegisterBroker(registration.clone()));
    core.propose_for_peer(&records);
}
