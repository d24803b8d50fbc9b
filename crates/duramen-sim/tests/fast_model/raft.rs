//! # Room card: raft
//!
//! Purpose:    the group: replication one entry at a time, commits, elections, restarts.
//! Owns:       Raft's rules as far as the promises need them; where holds are given up, and where a cut makes some.
//! Interface:  [`Model::replicate`], [`Model::advance`], [`Model::learn`], [`Model::elect`], [`Model::bounce`].
//! Invariants: a message is what its leader's log was, so it may be lost, repeated and late without end.
//!             An action that changes nothing returns nothing.
//! Never:      heartbeats, timers: any order of actions is a run.
//! Tests:      every search.
//! Start at:   [`Model::replicate`].

use crate::log::{Content, Entry, Log};
use crate::model::{Model, Plant};
use crate::sets::{Batches, Set, small};
use crate::state::{COMMITTED, Node, Role, STRETCHES, State};

impl<const N: usize> Model<N> {
    /// An append of the term's leader reaches the node: one entry, and the cut of all that differs.
    pub(crate) fn replicate(&self, state: &State<N>, term: usize, node: usize) -> Option<State<N>> {
        let theirs = state.leaders[term].log;
        let follower = &state.nodes[node];
        let is_news = usize::from(follower.replicated[term]) < theirs.len();
        if state.sender(term)? == node || follower.term() > term || !is_news {
            return None;
        }
        let mut next = *state;
        if follower.term() < term {
            next.step_down(node, term);
        }
        let common = follower.log.common(&theirs);
        let follower = &mut next.nodes[node];
        let mut reported = common;
        if common < theirs.len() {
            self.hold_cut(follower, common);
            let Entry { term: of_entry, content } = theirs.get(common);
            follower.log.push(of_entry, content);
            reported += 1;
            if let Content::Batch(batch) = content
                && self.plants(Plant::HeldGoneAtAppend)
            {
                follower.holds.iter_mut().for_each(|holds| holds.remove(batch));
            }
        }
        follower.replicated[term] = small(reported);
        Some(next)
    }

    /// Cuts the log. An ex-leader first holds what it appended in its own stretches, in the log's order and before its
    /// other holds.
    fn hold_cut(&self, node: &mut Node, len: usize) {
        let mut cut = [Batches::default(); STRETCHES];
        for at in len..node.log.len() {
            let entry = node.log.get(at);
            if let Content::Batch(batch) = entry.content
                && node.led.contains(entry.term)
                && let Some(stretch) = node.log.stretch_of(at)
            {
                cut[stretch].push(batch);
            }
        }
        node.log.truncate(len);
        if !self.plants(Plant::CutForgetsHeld) {
            for (holds, cut) in node.holds.iter_mut().zip(cut) {
                let new = cut.iter().filter(|batch| !holds.contains(*batch));
                *holds = new.chain(holds.iter()).collect();
            }
        }
    }

    /// The leader of the term commits what a majority reported, up to an entry of its own term.
    pub(crate) fn advance(&self, state: &State<N>, term: usize) -> Option<State<N>> {
        let leader = state.leader(term)?;
        let log = state.leaders[term].log;
        let has = |len: usize| {
            let reported = |node: &&Node| usize::from(node.replicated[term]) >= len;
            state.nodes.iter().filter(reported).count() >= Self::MAJORITY
        };
        let before = usize::from(state.leaders[term].committed);
        let mut lens = (before + 1..=log.len()).rev();
        let committed = lens.find(|len| has(*len) && log.get(len - 1).term == term)?;
        let mut next = *state;
        next.leaders[term].committed = small(committed);
        next.nodes[leader].committed = small(committed);
        for at in next.committed.len()..committed {
            let entry = log.get(at);
            next.committed.push(entry.term, entry.content);
        }
        for batch in (0..self.batches()).filter(|batch| log.has_within(committed, *batch)) {
            next.complete.insert(batch);
            next.complete_in[batch] = COMMITTED;
        }
        Self::release(&mut next.nodes[leader]);
        self.complete(&mut next);
        Some(next)
    }

    /// A follower learns from the leader of its term what is committed.
    pub(crate) fn learn(state: &State<N>, term: usize, node: usize) -> Option<State<N>> {
        let follower = &state.nodes[node];
        if state.sender(term)? == node || follower.term() != term {
            return None;
        }
        let committed = state.leaders[term].committed.min(follower.replicated[term]);
        if committed <= follower.committed {
            return None;
        }
        let mut next = *state;
        next.nodes[node].committed = committed;
        Self::release(&mut next.nodes[node]);
        Some(next)
    }

    /// The node gives up holds whose batches it knows to be committed, and all of earlier stretches than its last
    /// committed one.
    fn release(node: &mut Node) {
        let known: Log = node.log.prefix(node.committed());
        let (stretch, _) = known.stretch();
        node.holds[..stretch].fill(Batches::default());
        for holds in node.holds[stretch..].iter_mut().filter(|holds| !holds.is_empty()) {
            *holds = holds.iter().filter(|batch| !known.has(*batch)).collect();
        }
    }

    /// The candidate wins the votes of `voters`, of which it is one, in the term after all of theirs.
    pub(crate) fn elect(
        &self,
        state: &State<N>,
        candidate: usize,
        voters: Set,
        terms: usize,
    ) -> Option<State<N>> {
        let term = voters.iter().map(|voter| state.nodes[voter].term()).max()? + 1;
        let measure = state.nodes[candidate].log.measure();
        let refuses = |voter: usize| state.nodes[voter].log.measure() > measure;
        if term > terms || voters.iter().any(refuses) {
            return None;
        }
        let mut next = *state;
        for voter in voters.iter() {
            next.step_down(voter, term);
        }
        let leader = &mut next.nodes[candidate];
        leader.role = Role::Settling;
        leader.led.insert(term);
        if self.has_no_op {
            leader.log.push(term, Content::NoOp);
        }
        next.publish(candidate);
        Some(next)
    }

    /// A leader restarts. Its journal gives all back but its leadership.
    pub(crate) fn bounce(&self, state: &State<N>, node: usize) -> Option<State<N>> {
        if state.bounces >= self.bounces || state.nodes[node].role == Role::Follower {
            return None;
        }
        let mut next = *state;
        next.forget_given(next.nodes[node].term());
        next.nodes[node].role = Role::Follower;
        next.bounces += 1;
        Some(next)
    }
}
