//! # Room card: properties
//!
//! Purpose:    the promises, asked of every state; and that the cluster always goes on.
//! Owns:       [`Broken`], the check of a state, fair runs.
//! Interface:  [`Model::check`], [`Model::check_fair_runs`].
//! Invariants: a check reads the state alone.
//! Never:      the protocol's own view: the promises are about logs and clients.
//! Tests:      `main.rs` plants bugs, and each must break a promise.
//! Start at:   [`Model::check`].

use crate::log::{Content, Entry, Log};
use crate::model::{Model, Plant};
use crate::sets::Set;
use crate::state::{Node, Role, State, TERMS};

/// A promise that does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Broken {
    /// The log of a later leader that serves lacks a complete batch.
    Lost,
    /// A log has a batch twice.
    Doubled,
    /// A batch is before one that was complete when it was first sent, or that one is missing.
    RealTimeOrder,
    /// A batch is in the log before its producer's previous one, or without it.
    ProducerOrder,
    /// A node takes another entry for committed than was committed.
    CommittedPrefix,
    /// A leader that could confirm that it leads would answer a tail before a complete batch.
    TailRead,
    /// A batch is committed, and so is the stretch before which it was refused for good.
    Refused,
    /// A majority is alive, and cannot settle.
    Stuck,
    /// A majority is alive, has settled, and a complete batch is not committed.
    LostForGood,
}

impl<const N: usize> Model<N> {
    /// Asks for every promise.
    pub(crate) fn check(&self, state: &State<N>) -> Result<(), Broken> {
        self.check_leaders(state)?;
        self.check_committed(state)?;
        Self::check_tails(state)
    }

    /// Leaders that have settled have every batch that was completed in an earlier stretch, and none twice.
    fn check_leaders(&self, state: &State<N>) -> Result<(), Broken> {
        for term in 1..TERMS {
            let log = &state.leaders[term].log;
            if log.is_empty() {
                continue;
            }
            let (stretch, _) = log.stretch();
            if stretch / 2 != term {
                continue;
            }
            for batch in 0..self.batches() {
                let is_older = usize::from(state.complete_in[batch]) < stretch;
                if state.complete.contains(batch) && is_older && !log.has(batch) {
                    return Err(Broken::Lost);
                }
                if log.has_twice(batch) {
                    return Err(Broken::Doubled);
                }
            }
        }
        Ok(())
    }

    /// The committed log stays what it is, and its order is one that clients may see.
    fn check_committed(&self, state: &State<N>) -> Result<(), Broken> {
        let log = &state.committed;
        let knows = |node: &Node| log.starts_with(&node.log.prefix(node.committed()));
        if !state.nodes.iter().all(knows) {
            return Err(Broken::CommittedPrefix);
        }
        for batch in 0..self.batches() {
            let Some(at) = log.position_of(batch) else { continue };
            if self.is_refused(state, batch) {
                return Err(Broken::Refused);
            }
            if log.has_twice(batch) {
                return Err(Broken::Doubled);
            }
            let mut before = state.complete_before[batch].iter();
            if !before.all(|other| log.has_within(at, other)) {
                return Err(Broken::RealTimeOrder);
            }
            if self.previous(batch).is_some_and(|previous| !log.has_within(at, previous)) {
                return Err(Broken::ProducerOrder);
            }
        }
        Ok(())
    }

    /// Tells whether the batch's client was told of the final refusal: it is, once the next stretch is committed.
    fn is_refused(&self, state: &State<N>, batch: usize) -> bool {
        let term = usize::from(state.refused_in[batch]) / 2;
        let opened = Entry { term, content: Content::SecondOpen };
        let is_told = self.plants(Plant::RefusedTooEarly) || has_entry(&state.committed, opened);
        term != 0 && is_told
    }

    /// A leader whose own Open is committed, and that a majority still follows, has all complete batches.
    fn check_tails(state: &State<N>) -> Result<(), Broken> {
        for leader in state.nodes.iter().filter(|node| node.role == Role::Serving) {
            let follows = |node: &&Node| node.term <= leader.term;
            let may_confirm = state.nodes.iter().filter(follows).count() >= Self::MAJORITY;
            let is_open = leader.committed() > leader.log.stretch().1;
            let has_all = state.complete.iter().all(|batch| leader.log.has(batch));
            if may_confirm && is_open && !has_all {
                return Err(Broken::TailRead);
            }
        }
        Ok(())
    }

    /// From this state on a majority lives, or all nodes do, and nothing fails. The run settles, and commits what is
    /// complete.
    pub(crate) fn check_fair_runs(&self, state: &State<N>) -> Result<(), Broken> {
        let majorities = Set::all(Self::MAJORITY, N);
        majorities.chain([(0..N).collect()]).try_for_each(|alive| self.check_fair_run(state, alive))
    }

    fn check_fair_run(&self, state: &State<N>, alive: Set) -> Result<(), Broken> {
        let measure = |node: &usize| (state.nodes[*node].log.measure(), *node);
        let leader = alive.iter().max_by_key(measure).expect("a majority is somebody");
        let elected = self.elect(state, leader, alive, TERMS - 1);
        let mut next = elected.expect("the longest log of a majority wins");
        let term = next.nodes[leader].term();
        for node in alive.iter() {
            next = self.give(&next, term, node).unwrap_or(next);
        }
        let members = Self::fast_sets(leader).next().expect("a leader has a fast set");
        let settled = (0..N).find_map(|giver| self.settle(&next, term, giver, members));
        next = settled.ok_or(Broken::Stuck)?;
        loop {
            let before = next;
            for node in alive.iter() {
                while let Some(after) = self.replicate(&next, term, node) {
                    next = after;
                }
            }
            next = self.advance(&next, term).unwrap_or(next);
            if next == before {
                break;
            }
        }
        if !state.complete.iter().all(|batch| next.committed.has(batch)) {
            return Err(Broken::LostForGood);
        }
        self.check_committed(&next)
    }
}

fn has_entry(log: &Log, entry: Entry) -> bool {
    (0..log.len()).any(|at| log.get(at) == entry)
}
