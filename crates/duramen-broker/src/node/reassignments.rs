//! Reassignments of partitions. The leader changes its group's members a step at a time, and reports when it has
//! reached the target.

use std::collections::BTreeSet;

use duramen_protocol::wire::Uuid;
use duramen_storage::op::ReplicaId;
use duramen_storage::sabotage::{self, Bug};

use crate::core::Core;
use crate::limits::MOVES_BEGUN_MAX;
use crate::metadata_records::PlacedReplica;
use crate::node::Members;
use crate::peer::{Reassigned, Useless};
use crate::raft::Approach;

/// Replicas that are damaged beyond repair in place: others take their place.
impl Members {
    /// Reports these replicas, and those that were found damaged at the start, until they are gone.
    pub(crate) fn tell_of_useless(&mut self, core: &mut Core, found: Vec<ReplicaId>) {
        self.useless.extend(found);
        let here = &core.partitions;
        self.useless.retain(|replica| here.contains_key(replica));
        let told: Vec<_> = self
            .useless
            .iter()
            .take(MOVES_BEGUN_MAX)
            .map(|replica| {
                let id = here[replica].id;
                let (topic_id, peer_id) = (Uuid(id.topic_id), replica.0);
                Useless { topic_id, partition: id.partition, peer_id }
            })
            .collect();
        if told.is_empty() {
            return;
        }
        if core.controller.group.is_serving() {
            let own = (core.options.facts.broker_id, core.own_directory());
            replace_useless(core, own, &told);
        } else if let Some(leader) = core.metadata_leader() {
            core.peers.frame_to(leader).useless.extend(told);
        }
    }
}

/// Takes a step with each partition that is led here and being moved.
pub(crate) fn go_on(core: &mut Core) {
    let all = core.controller.image.reassignments.iter();
    let all: Vec<_> = all.map(|(place, it)| (*place, it.target.clone(), it.number)).collect();
    let mut reassigned = Vec::new();
    for ((topic_id, partition), target, number) in all {
        let Some(topic) = core.controller.image.topic(topic_id) else { continue };
        let Some(replica) = core.local_replica(topic, partition) else { continue };
        let Some(there) = core.partitions.get_mut(&replica) else { continue };
        // Members of a stretch are voters of its log: other voters would not know of its holds.
        let voters: BTreeSet<u64> = target.iter().copied().collect();
        let is_same = voters.iter().eq(there.group.voter_ids());
        if there.is_in_stretch() && !is_same && !sabotage::is(Bug::MembersChangeOpen) {
            if there.close_stretch() {
                core.mark_dirty(replica);
            }
            continue;
        }
        match there.group.approach(&target, &[], number) {
            Approach::There => reassigned.push(Reassigned { topic_id, partition, number }),
            Approach::Stepped => core.mark_dirty(replica),
            Approach::Waits => {}
        }
    }
    if core.controller.group.is_serving() {
        finish(core, &reassigned);
    } else if let Some(leader) = core.metadata_leader() {
        core.peers.frame_to(leader).reassigned.extend(reassigned);
    }
}

/// Notes that partitions have reached their targets, as their leaders report. All at once: one topic is decided on
/// at a time.
pub(crate) fn finish(core: &mut Core, reassigned: &[Reassigned]) {
    let finish =
        |it: &Reassigned| core.controller.finish_move(it.topic_id, it.partition, it.number);
    let records: Vec<_> = reassigned.iter().filter_map(finish).flatten().collect();
    if !records.is_empty() {
        core.propose_for_peer(&records);
    }
}

/// Takes a directory's report of its useless replicas.
pub(crate) fn replace_useless(
    core: &mut Core,
    (broker_id, directory_id): (i32, Uuid),
    useless: &[Useless],
) {
    let mut records = Vec::new();
    for it in useless {
        let replica = PlacedReplica { peer_id: it.peer_id, broker_id, directory_id };
        let record = core.controller.replace_replica(it.topic_id, it.partition, &replica);
        if record.is_some() {
            tracing::warn!(
                replica = it.peer_id,
                broker = broker_id,
                partition = it.partition,
                "a damaged replica is replaced: its Raft group removes it, then adds a new one on that node"
            );
        }
        records.extend(record);
    }
    if !records.is_empty() {
        core.propose_for_peer(&records);
    }
}
