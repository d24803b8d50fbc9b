//! # Room card: settling leaders
//!
//! Purpose:    questions of new leaders for what was held, between nodes; reads of former leaders for themselves;
//!             offers of what is held for long.
//! Owns:       which replicas here wait for answers or reads, and which ones hold batches or have a stretch open.
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
use crate::limits::{FAST_ASKED_TICKS, FAST_OFFERED_TICKS};
use crate::partition::Partition;
use crate::partition::fast_state::{Given, Said, Wanted};
use crate::peer::{Adoption, Frame, HoldsGiven, HoldsWanted, Lack};
use crate::raft::GroupId;

/// See the room card.
#[derive(Debug, Default)]
pub(crate) struct Settlings {
    waiting: BTreeSet<ReplicaId>,
    /// Replicas that hold batches, or have a stretch open.
    tended: BTreeSet<ReplicaId>,
    /// Replicas whose letters wait for payload that clients send here.
    late: BTreeSet<ReplicaId>,
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
        if partition.held_bytes() > 0 || partition.open_here().is_some() {
            self.tended.insert(replica);
        } else {
            self.tended.remove(&replica);
        }
        if partition.group.has_late() {
            self.late.insert(replica);
        } else {
            self.late.remove(&replica);
        }
        if let Some(read) = read {
            core.peers.read(read);
        }
        for message in said {
            say(core, id, replica.0, message);
        }
    }

    /// Forgets a replica that is gone.
    pub(crate) fn forget(&mut self, replica: ReplicaId) {
        self.waiting.remove(&replica);
        self.tended.remove(&replica);
        self.late.remove(&replica);
    }

    /// Asks again, and reads again, where nothing came. Sees to open stretches, and to batches that are held for long.
    pub(crate) fn tick(&mut self, core: &mut Core) {
        for replica in &self.late {
            let Some(partition) = core.partitions.get_mut(replica) else { continue };
            if partition.group.count_late() {
                mark(&mut core.dirty, partition);
            }
        }
        if !core.peers.ticks().is_multiple_of(FAST_ASKED_TICKS) {
            return;
        }
        let are_offered = core.peers.ticks().is_multiple_of(FAST_OFFERED_TICKS);
        for replica in &self.tended {
            core.tend_stretch(*replica);
            let Some(partition) = core.partitions.get_mut(replica).filter(|_| are_offered) else {
                continue;
            };
            if partition.offer_holds() {
                mark(&mut core.dirty, partition);
            }
        }
        for replica in &self.waiting {
            let Some(partition) = core.partitions.get_mut(replica) else { continue };
            partition.ask_members();
            partition.rescue_again();
            mark(&mut core.dirty, partition);
        }
    }
}

/// Takes the questions, answers and offers of another node.
pub(crate) fn hear_frame(core: &mut Core, frame: &Frame) {
    let sender = frame.directory_id;
    for it in &frame.holds_wanted {
        let way = (group_of(it), it.from, it.to);
        hear(core, sender, way, |partition| partition.on_holds_wanted(wanted_of(it, it.from)));
    }
    for it in &frame.holds_given {
        let HoldsGiven { question, next, is_last, batches } = it;
        // The question went the other way.
        let (from, leader) = (question.to, question.from);
        let wanted = wanted_of(question, leader);
        let given = Given { wanted, next: *next, is_last: *is_last, batches: batches.clone() };
        let way = (group_of(question), from, leader);
        hear(core, sender, way, |partition| partition.on_holds_given(from, given));
    }
    for it in &frame.adoptions {
        let stretch = Stretch { term: it.stretch_term, index: it.stretch_index };
        let group = GroupId { topic_id: it.topic_id.0, partition: it.partition };
        hear(core, sender, (group, it.from, it.to), |partition| {
            partition.on_offer(stretch, it.batches.clone());
        });
    }
    for it in &frame.lacks {
        let group = GroupId { topic_id: it.topic_id.0, partition: it.partition };
        hear(core, sender, (group, it.from, it.to), |partition| {
            partition.on_lack(it.from, it.term);
        });
    }
}

fn group_of(question: &HoldsWanted) -> GroupId {
    GroupId { topic_id: question.topic_id.0, partition: question.partition }
}

fn wanted_of(question: &HoldsWanted, leader: u64) -> Wanted {
    let stretch = Stretch { term: question.stretch_term, index: question.stretch_index };
    Wanted { leader, term: question.term, stretch, after: question.after }
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
    let to = message.receiver();
    let Some(there) = core.placed(group, to) else { return };
    let frame = core.peers.frame_to(there.broker_id);
    let (topic_id, partition) = (Uuid(group.topic_id), group.partition);
    let question = |leader: u64, member: u64, wanted: Wanted| HoldsWanted {
        topic_id,
        partition,
        from: leader,
        to: member,
        term: wanted.term,
        stretch_term: wanted.stretch.term,
        stretch_index: wanted.stretch.index,
        after: wanted.after,
    };
    match message {
        Said::Wanted { wanted, .. } => frame.holds_wanted.push(question(from, to, wanted)),
        Said::Given(Given { wanted, next, is_last, batches }) => {
            let question = question(to, from, wanted);
            frame.holds_given.push(HoldsGiven { question, next, is_last, batches });
        }
        Said::Offered { stretch, batches, .. } => frame.adoptions.push(Adoption {
            topic_id,
            partition,
            from,
            to,
            stretch_term: stretch.term,
            stretch_index: stretch.index,
            batches,
        }),
        Said::Lacks { term, .. } => {
            frame.lacks.push(Lack { topic_id, partition, from, to, term });
        }
    }
}
