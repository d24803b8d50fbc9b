//! # Room card: settling leaders
//!
//! Purpose:    questions of new leaders for what was held, between nodes; reads of former leaders for themselves.
//! Owns:       which replicas here wait for answers or reads.
//! Interface:  [`Settlings::follow`], [`Settlings::tick`], [`hear_frame`], [`hold_own`].
//! Invariants: a question or answer is taken only from the directory that the placement names for its sender.
//! Never:      the decision on what is taken over (see `partition/settling.rs`).
//! Tests:      `node/tests/fast.rs`; `duramen-sim`, scenario `cluster`.
//! Start at:   [`Settlings::follow`].

use std::collections::BTreeSet;

use duramen_protocol::wire::Uuid;
use duramen_storage::op::{ReplicaId, Stretch};

use crate::core::{Core, mark};
use crate::event::LogRead;
use crate::limits::FAST_ASKED_TICKS;
use crate::partition::Partition;
use crate::partition::fast_state::{Given, Said, Wanted};
use crate::peer::{Frame, HoldsGiven, HoldsWanted};
use crate::raft::GroupId;

/// See the room card.
#[derive(Debug, Default)]
pub(crate) struct Settlings {
    waiting: BTreeSet<ReplicaId>,
}

impl Settlings {
    /// Carries out what a partition wants after its turn.
    pub(crate) fn follow(&mut self, core: &mut Core, replica: ReplicaId) {
        let Some(partition) = core.partitions.get_mut(&replica) else { return };
        let (id, said) = (partition.id, partition.take_said());
        let read = partition.take_own_read();
        if partition.is_asking() || partition.is_rescuing() {
            self.waiting.insert(replica);
        } else {
            self.waiting.remove(&replica);
        }
        if let Some(read) = read {
            core.peers.read_for_mending(read);
        }
        for message in said {
            say(core, id, replica.0, message);
        }
    }

    /// Forgets a replica that is gone.
    pub(crate) fn forget(&mut self, replica: ReplicaId) {
        self.waiting.remove(&replica);
    }

    /// Asks again, and reads again, where nothing came.
    pub(crate) fn tick(&mut self, core: &mut Core) {
        if !core.peers.ticks().is_multiple_of(FAST_ASKED_TICKS) {
            return;
        }
        for replica in &self.waiting {
            let Some(partition) = core.partitions.get_mut(replica) else { continue };
            partition.ask_members();
            partition.rescue_again();
            mark(&mut core.dirty, partition);
        }
    }
}

/// Takes the questions and answers of another node.
pub(crate) fn hear_frame(core: &mut Core, frame: &Frame) {
    for it in &frame.holds_wanted {
        let stretch = Stretch { term: it.stretch_term, index: it.stretch_index };
        let wanted = Wanted { leader: it.from, term: it.term, stretch, after: it.after };
        let group = GroupId { topic_id: it.topic_id.0, partition: it.partition };
        hear(core, frame.directory_id, (group, it.from, it.to), |partition| {
            partition.on_holds_wanted(wanted);
        });
    }
    for it in &frame.holds_given {
        let stretch = Stretch { term: it.stretch_term, index: it.stretch_index };
        let wanted = Wanted { leader: it.to, term: it.term, stretch, after: it.after };
        let (next, is_last, batches) = (it.next, it.is_last, it.batches.clone());
        let given = Given { wanted, next, is_last, batches };
        let group = GroupId { topic_id: it.topic_id.0, partition: it.partition };
        hear(core, frame.directory_id, (group, it.from, it.to), |partition| {
            partition.on_holds_given(it.from, given);
        });
    }
}

/// Takes the batches that a former leader has to hold.
pub(crate) fn hold_own(core: &mut Core, read: &LogRead) {
    let Some(partition) = core.partitions.get_mut(&read.replica) else { return };
    let held = partition.held_bytes();
    partition.on_own_read(read);
    core.held_bytes = core.held_bytes - held + partition.held_bytes();
    mark(&mut core.dirty, partition);
}

/// Hands a message to the replica that it names, if it is from its named sender.
fn hear(
    core: &mut Core,
    sender: Uuid,
    (group, from, to): (GroupId, u64, u64),
    take: impl FnOnce(&mut Partition),
) {
    let is_from = core.placed(group, from).is_some_and(|it| it.directory_id == sender);
    let partition = core.partitions.get_mut(&ReplicaId(to)).filter(|it| it.id == group);
    let Some(partition) = partition.filter(|_| is_from) else {
        core.counters.foreign_letters += 1;
        return;
    };
    take(partition);
    mark(&mut core.dirty, partition);
}

/// Puts a message of a replica here into the frame for its receiver's node.
fn say(core: &mut Core, group: GroupId, from: u64, message: Said) {
    let (topic_id, partition) = (Uuid(group.topic_id), group.partition);
    let (to, Wanted { term, stretch, after, .. }) = match &message {
        Said::Wanted { member, wanted } => (*member, *wanted),
        Said::Given(given) => (given.wanted.leader, given.wanted),
    };
    let Some(there) = core.placed(group, to) else { return };
    let frame = core.peers.frame_to(there.broker_id);
    let (stretch_term, stretch_index) = (stretch.term, stretch.index);
    match message {
        Said::Wanted { .. } => frame.holds_wanted.push(HoldsWanted {
            topic_id,
            partition,
            from,
            to,
            term,
            stretch_term,
            stretch_index,
            after,
        }),
        Said::Given(Given { next, is_last, batches, .. }) => frame.holds_given.push(HoldsGiven {
            topic_id,
            partition,
            from,
            to,
            term,
            stretch_term,
            stretch_index,
            after,
            next,
            is_last,
            batches,
        }),
    }
}
