//! # Room card: actions
//!
//! Purpose:    all that may happen next.
//! Owns:       [`Action`], and which of them a search tries.
//! Interface:  [`Model::successors`].
//! Invariants: every order of actions that the model's size allows is tried.
//! Never:      a rule of the protocol: those are where the actions are carried out.
//! Tests:      every search.
//! Start at:   [`Model::successors`].

use crate::model::Model;
use crate::sets::Set;
use crate::state::{Role, State};

/// One step of a run. Nodes are named by their place in the state before it.
#[derive(Clone, Copy, Debug)]
#[expect(dead_code, reason = "a found violation prints the fields")]
pub(crate) enum Action {
    /// A batch arrives at a node.
    Deliver { batch: usize, node: usize },
    /// An append of the term's leader arrives at a node.
    Replicate { term: usize, node: usize },
    /// A node learns from the term's leader what is committed.
    Learn { term: usize, node: usize },
    /// A node gives the term's leader its list.
    Give { term: usize, node: usize },
    /// The leader of the term commits.
    Advance { term: usize },
    /// The leader of the term settles from a member's list.
    Settle { term: usize, giver: usize, members: Set },
    /// The leader of the term opens its second stretch.
    Reopen { term: usize, members: Set },
    /// The leader of the term refuses a batch for good.
    Refuse { term: usize, batch: usize, members: Set },
    /// A node wins an election.
    Elect { candidate: usize, voters: Set },
    /// A leader restarts.
    Bounce { node: usize },
}

/// The actions that are possible, and where each leads.
pub(crate) type Successors<const N: usize> = Vec<(Action, State<N>)>;

impl<const N: usize> Model<N> {
    /// Lists what may happen next.
    pub(crate) fn successors(&self, state: &State<N>, found: &mut Successors<N>) {
        found.clear();
        let mut add =
            |action, next: Option<State<N>>| found.extend(next.map(|next| (action, next)));
        for batch in 0..self.batches() {
            if self.previous(batch).is_some_and(|previous| !state.sent.contains(previous)) {
                continue;
            }
            for node in 0..N {
                add(Action::Deliver { batch, node }, self.deliver(state, batch, node));
            }
        }
        for term in 1..=self.terms {
            for node in 0..N {
                add(Action::Replicate { term, node }, self.replicate(state, term, node));
                add(Action::Learn { term, node }, Self::learn(state, term, node));
                add(Action::Give { term, node }, self.give(state, term, node));
            }
            add(Action::Advance { term }, self.advance(state, term));
            if let Some(leader) = state.leader(term) {
                self.of_leader(state, term, leader, &mut add);
            }
        }
        for node in 0..N {
            for voters in Self::fast_sets(node) {
                let next = self.elect(state, node, voters, self.terms);
                add(Action::Elect { candidate: node, voters }, next);
            }
            add(Action::Bounce { node }, self.bounce(state, node));
        }
    }

    /// Lists what the leader of the term may do of itself.
    fn of_leader(
        &self,
        state: &State<N>,
        term: usize,
        leader: usize,
        add: &mut impl FnMut(Action, Option<State<N>>),
    ) {
        let is_settling = state.nodes[leader].role == Role::Settling;
        for members in Self::fast_sets(leader) {
            for giver in (0..N).filter(|_| is_settling) {
                let action = Action::Settle { term, giver, members };
                add(action, self.settle(state, term, giver, members));
            }
            for batch in (0..self.batches()).filter(|_| self.refuses) {
                let action = Action::Refuse { term, batch, members };
                add(action, self.refuse(state, term, batch, members));
            }
            if self.reopens {
                add(Action::Reopen { term, members }, Self::reopen(state, term, members));
            }
        }
    }
}
