//! # Room card: settling
//!
//! Purpose:    what a new leader does before it serves: it takes over what was held, then opens a stretch.
//! Owns:       the list of a member, the seal, the choice among lists, fast sets.
//! Interface:  [`Model::give`], [`Model::settle`], [`Model::reopen`], [`Model::fast_sets`].
//! Invariants: a member that gave its list has the new term, and so holds nothing in the old stretch any more.
//!             One complete list is enough, and any will do.
//! Never:      a wait for the no-op's commit: settling earlier allows more, and is searched instead.
//! Tests:      every search.
//! Start at:   [`Model::settle`].

use crate::log::Content;
use crate::model::{Model, Plant};
use crate::sets::{Batches, Set};
use crate::state::{Node, Role, State};

impl<const N: usize> Model<N> {
    /// The node gives the settling leader of the term its list, and seals the stretch.
    pub(crate) fn give(&self, state: &State<N>, term: usize, node: usize) -> Option<State<N>> {
        let leader = state.leader(term)?;
        let member = &state.nodes[node];
        let is_asked = state.nodes[leader].role == Role::Settling && leader != node;
        if !is_asked || member.term() > term || member.gave.contains(term) {
            return None;
        }
        let stretch = state.nodes[leader].log.stretch().0;
        if !self.may_give(member, stretch) {
            return None;
        }
        let mut list = Self::list(member, stretch);
        if self.plants(Plant::RecoveredReversed) {
            list = list.iter().rev().collect();
        }
        let mut next = *state;
        if member.term() < term && !self.plants(Plant::SealForgotten) {
            next.step_down(node, term);
        }
        next.nodes[node].gave.insert(term);
        next.nodes[node].given[term] = list;
        Some(next)
    }

    fn may_give(&self, node: &Node, stretch: usize) -> bool {
        node.member_of.contains(stretch) || self.plants(Plant::AskedAnyone)
    }

    /// Returns what the node may have answered in the stretch and does not know to be committed. An ex-leader's own
    /// entries of the stretch come first.
    fn list(node: &Node, stretch: usize) -> Batches {
        let own =
            (node.committed()..node.log.len()).filter_map(|at| match node.log.get(at).content {
                Content::Batch(batch) if node.log.stretch_of(at) == Some(stretch) => Some(batch),
                _ => None,
            });
        let own = own.filter(|_| node.led.contains(stretch / 2));
        own.chain(node.holds[stretch].iter()).collect()
    }

    /// The leader of the term appends the list of the member `giver`, then an Open with the fast set `members`.
    pub(crate) fn settle(
        &self,
        state: &State<N>,
        term: usize,
        giver: usize,
        members: Set,
    ) -> Option<State<N>> {
        let leader = state.leader(term)?;
        let stretch = state.nodes[leader].log.stretch().0;
        let is_settling = state.nodes[leader].role == Role::Settling;
        if !is_settling || !self.may_give(&state.nodes[giver], stretch) {
            return None;
        }
        let list = match giver == leader {
            true => Self::list(&state.nodes[leader], stretch),
            false if state.nodes[giver].gave.contains(term) => state.nodes[giver].given[term],
            false => return None,
        };
        let mut next = *state;
        let before = state.nodes[leader].log;
        let log = &mut next.nodes[leader].log;
        for batch in list.iter() {
            let lacks = |previous: usize| !log.has(previous);
            let is_duplicate = before.has(batch) && !self.plants(Plant::RecoveredTwice);
            let has_gap =
                self.previous(batch).is_some_and(lacks) && !self.plants(Plant::HeldWithGap);
            if !is_duplicate && !has_gap {
                log.push(term, Content::Batch(batch));
            }
        }
        log.push(term, Content::Open);
        next.nodes[leader].role = Role::Serving;
        next.publish(leader);
        next.open(2 * term, members);
        next.forget_given(term);
        Some(next)
    }

    /// The leader of the term opens its second stretch, with another fast set.
    pub(crate) fn reopen(state: &State<N>, term: usize, members: Set) -> Option<State<N>> {
        let leader = state.leader(term)?;
        let is_member = |node: usize| state.nodes[node].member_of.contains(2 * term);
        let is_same = members.iter().all(is_member);
        if !Self::may_open_again(state, leader) || is_same {
            return None;
        }
        let mut next = *state;
        next.open_again(leader, members);
        Some(next)
    }

    /// Tells whether the leader is in its term's first stretch, and the Open of it is committed.
    pub(crate) fn may_open_again(state: &State<N>, leader: usize) -> bool {
        let leader = &state.nodes[leader];
        let (stretch, at) = leader.log.stretch();
        let is_first = stretch == 2 * leader.term();
        leader.role == Role::Serving && is_first && leader.committed() > at
    }

    /// Returns every fast set that a leader may choose.
    pub(crate) fn fast_sets(leader: usize) -> impl Iterator<Item = Set> {
        Set::all(Self::MAJORITY, N).filter(move |members| members.contains(leader))
    }
}

impl<const N: usize> State<N> {
    fn open(&mut self, stretch: usize, members: Set) {
        for (number, node) in self.nodes.iter_mut().enumerate() {
            if members.contains(number) {
                node.member_of.insert(stretch);
            }
        }
    }

    /// The leader opens its term's second stretch.
    pub(crate) fn open_again(&mut self, leader: usize, members: Set) {
        let node = &mut self.nodes[leader];
        let term = node.term();
        node.log.push(term, Content::SecondOpen);
        self.publish(leader);
        self.open(2 * term + 1, members);
    }
}
