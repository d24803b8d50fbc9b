//! # Room card: clients
//!
//! Purpose:    requests of clients: a batch arrives at a node, and its client counts the answers.
//! Owns:       the rules of a follower that holds and of a leader that appends; which batches are complete.
//! Interface:  [`Model::deliver`], [`Model::refuse`], [`Model::complete`].
//! Invariants: a request names its stretch, so a node takes it for the stretch that it is in itself, or not at all.
//!             A client may send each batch to any node at any time, once or often.
//! Never:      replication, elections.
//! Tests:      every search.
//! Start at:   [`Model::deliver`].

use crate::log::Content;
use crate::model::{Model, Plant};
use crate::sets::{Set, small};
use crate::state::{COMMITTED, Role, STRETCHES, State};

impl<const N: usize> Model<N> {
    /// The batch arrives at the node, under the stretch that the node is in, and the answer at the client.
    pub(crate) fn deliver(&self, state: &State<N>, batch: usize, node: usize) -> Option<State<N>> {
        let mut next = *state;
        if !next.sent.contains(batch) {
            next.sent.insert(batch);
            next.complete_before[batch] = next.complete;
        }
        let is_taken = match state.nodes[node].role {
            Role::Follower => self.hold(&mut next, batch, node),
            Role::Settling => {
                self.plants(Plant::OpensTooEarly) && self.append(&mut next, batch, node)
            }
            Role::Serving => self.append(&mut next, batch, node),
        };
        if !is_taken {
            return None;
        }
        self.complete(&mut next);
        (next != *state).then_some(next)
    }

    /// A follower holds the batch, and answers. Returns false for *not now*.
    fn hold(&self, next: &mut State<N>, batch: usize, node: usize) -> bool {
        let member = &mut next.nodes[node];
        let mut stretch = member.log.stretch().0;
        if stretch / 2 != member.term() {
            if !self.plants(Plant::NoBarrier) {
                return false;
            }
            stretch = 2 * member.term();
        }
        // Copies of a refused batch may be late, but name no stretch after the one that its refusal ended.
        let refused_in = usize::from(next.refused_in[batch]);
        if refused_in != 0 && stretch > refused_in {
            return false;
        }
        if member.log.has_within(member.committed(), batch) {
            next.complete.insert(batch);
            next.complete_in[batch] = COMMITTED;
            return true;
        }
        // An ex-leader's log and its holds would have no common order.
        let led = member.led.contains(member.term()) && !self.plants(Plant::ExLeaderHolds);
        if !member.member_of.contains(stretch) || led {
            return false;
        }
        let is_held = |previous: usize| {
            let elsewhere = || member.holds.iter().any(|holds| holds.contains(previous));
            member.holds[stretch].contains(previous)
                || self.plants(Plant::GapAcrossStretches) && elsewhere()
        };
        let lacks = |previous: usize| !member.log.has(previous) && !is_held(previous);
        if self.previous(batch).is_some_and(lacks) && !self.plants(Plant::HeldWithGap) {
            return false;
        }
        let is_held_elsewhere =
            || (0..STRETCHES).any(|other| other != stretch && member.holds[other].contains(batch));
        if !self.plants(Plant::HeldInPlace) || !is_held_elsewhere() {
            member.holds[stretch].push(batch);
        }
        member.answered[stretch].insert(batch);
        true
    }

    /// A leader appends the batch if its log lacks it, and answers. Returns false for *not now*.
    fn append(&self, next: &mut State<N>, batch: usize, node: usize) -> bool {
        if next.refused_in[batch] != 0 {
            return false;
        }
        let counts_in = self.counts_in(next, node);
        let leader = &mut next.nodes[node];
        match leader.log.position_of(batch) {
            Some(at) if at < leader.committed() => {
                next.complete.insert(batch);
                next.complete_in[batch] = COMMITTED;
                return true;
            }
            Some(_) => {}
            None => {
                let lacks = |previous: usize| !leader.log.has(previous);
                if self.previous(batch).is_some_and(lacks) && !self.plants(Plant::HeldWithGap) {
                    return false;
                }
                leader.log.push(leader.term(), Content::Batch(batch));
                next.publish(node);
            }
        }
        if let Some(stretch) = counts_in {
            next.nodes[node].answered[stretch].insert(batch);
            next.counted[stretch].insert(batch);
        }
        true
    }

    /// Returns the stretch under which the leader's answer counts: its last one, from the commit of the Open on.
    fn counts_in(&self, state: &State<N>, leader: usize) -> Option<usize> {
        let leader = &state.nodes[leader];
        let (stretch, at) = leader.log.stretch();
        if leader.role == Role::Settling {
            return Some(2 * leader.term());
        }
        if leader.committed() > at || self.plants(Plant::NoBarrier) {
            return Some(stretch);
        }
        let is_second = stretch % 2 == 1;
        (is_second && self.plants(Plant::OldStretchCounts)).then(|| stretch - 1)
    }

    /// Clients take batches for complete, each producer in its order.
    pub(crate) fn complete(&self, next: &mut State<N>) {
        for batch in 0..self.batches() {
            let is_too_early = |previous: usize| !next.complete.contains(previous);
            let waits = self.previous(batch).is_some_and(is_too_early);
            if next.complete.contains(batch) || waits && !self.plants(Plant::ToldOutOfOrder) {
                continue;
            }
            let stretch =
                (2..STRETCHES).find(|stretch| self.has_all_answers(next, batch, *stretch));
            if let Some(stretch) = stretch {
                next.complete.insert(batch);
                next.complete_in[batch] = small(stretch);
            }
        }
    }

    /// Tells whether all members of the stretch have answered, the leader with *appended*.
    fn has_all_answers(&self, state: &State<N>, batch: usize, stretch: usize) -> bool {
        let excuses_leader = self.plants(Plant::CountsWithoutLeader);
        let is_counted = state.counted[stretch].contains(batch) || excuses_leader;
        if !is_counted || self.plants(Plant::CountsTooFew) {
            return is_counted;
        }
        let mut members = state.nodes.iter().filter(|node| node.member_of.contains(stretch));
        let mut has_any = false;
        let answers = members.all(|node| {
            let has_answered = node.answered[stretch].contains(batch);
            has_any |= has_answered;
            has_answered || excuses_leader && node.led.contains(stretch / 2)
        });
        answers && has_any
    }

    /// The leader of the term refuses the batch for good. First it opens a stretch with the fast set `members`. The
    /// client hears of the refusal when that Open is committed.
    pub(crate) fn refuse(
        &self,
        state: &State<N>,
        term: usize,
        batch: usize,
        members: Set,
    ) -> Option<State<N>> {
        let leader = state.leader(term)?;
        let is_known = state.refused_in[batch] != 0 || state.nodes[leader].log.has(batch);
        if is_known || !state.sent.contains(batch) || !Self::may_open_again(state, leader) {
            return None;
        }
        let mut next = *state;
        next.refused_in[batch] = small(2 * term);
        if !self.plants(Plant::RefusedTooEarly) {
            next.open_again(leader, members);
        }
        Some(next)
    }
}
