//! # Room card: state
//!
//! Purpose:    a cluster with one partition, small enough that a search may keep millions of them.
//! Owns:       nodes, messages on their way, and the history that the promises are judged by.
//! Interface:  [`State`], [`Node`], [`Leader`].
//! Invariants: all that concerns one node lies in its [`Node`], so that nodes may change places.
//!             A batch is its number. A stretch is twice the term of its Open, plus one if this is the term's second.
//! Never:      a rule of the protocol.
//! Tests:      every search.
//! Start at:   [`State`].

use std::fmt;

use crate::log::{Content, Log};
use crate::sets::{Batches, Set, small};

/// Terms of a run, counted from 1. The last one is left to fair runs.
pub(crate) const TERMS: usize = 5;
/// Stretches of a run: two a term.
pub(crate) const STRETCHES: usize = 2 * TERMS;
/// Most batches of a run.
const BATCHES_MAX: usize = 3;
/// In place of a stretch: the batch is committed.
pub(crate) const COMMITTED: u8 = u8::MAX;

/// The part of a node in its group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Role {
    #[default]
    Follower,
    /// Elected, and asks for holds.
    Settling,
    /// Elected, and has appended its Open.
    Serving,
}

/// A node. A restart keeps all but the role: nothing is answered before it is synced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Node {
    pub(crate) term: u8,
    pub(crate) role: Role,
    /// Entries that the node knows to be committed.
    pub(crate) committed: u8,
    pub(crate) log: Log,
    /// Its holds of each stretch, in the order of their arrival.
    pub(crate) holds: [Batches; STRETCHES],
    /// Terms that it led.
    pub(crate) led: Set,
    /// Stretches of whose fast set it is.
    pub(crate) member_of: Set,
    /// The batches that it answered under each stretch, with *held* or *appended*.
    pub(crate) answered: [Set; STRETCHES],
    /// Entries that it reported to the leader of each term.
    pub(crate) replicated: [u8; TERMS],
    /// Terms to whose settling leader it gave its list.
    pub(crate) gave: Set,
    /// The list that it gave to each.
    pub(crate) given: [Batches; TERMS],
}

impl Node {
    pub(crate) fn committed(&self) -> usize {
        usize::from(self.committed)
    }

    pub(crate) fn term(&self) -> usize {
        usize::from(self.term)
    }
}

/// The messages of a term's leader that may still arrive: all that its log and its commits say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Leader {
    /// The leader's log, as long as it led. Empty, where no node can hear it any more.
    pub(crate) log: Log,
    /// Entries that it committed.
    pub(crate) committed: u8,
}

/// The cluster, the messages on their way, and the history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct State<const N: usize> {
    pub(crate) nodes: [Node; N],
    pub(crate) leaders: [Leader; TERMS],
    /// The batches that the leader answered under each stretch with *appended*.
    pub(crate) counted: [Set; STRETCHES],
    /// All that was ever committed.
    pub(crate) committed: Log,
    /// The batches that were sent at least once.
    pub(crate) sent: Set,
    /// The batches that were complete for their client when each was first sent.
    pub(crate) complete_before: [Set; BATCHES_MAX],
    /// The batches that are complete for their client.
    pub(crate) complete: Set,
    /// The stretch under which each was completed, or [`COMMITTED`].
    pub(crate) complete_in: [u8; BATCHES_MAX],
    /// The stretch that ended with the final refusal of each batch; 0 for none.
    pub(crate) refused_in: [u8; BATCHES_MAX],
    /// Leaders that restarted.
    pub(crate) bounces: u8,
}

impl<const N: usize> State<N> {
    /// Returns a cluster whose first node leads term 1. All nodes have its Open, and the first ones are the fast set.
    pub(crate) fn new() -> Self {
        let mut log = Log::default();
        log.push(1, Content::Open);
        let mut first = Node { term: 1, committed: 1, log, ..Node::default() };
        first.replicated[1] = 1;
        let mut nodes = [first; N];
        nodes[0].role = Role::Serving;
        nodes[0].led.insert(1);
        nodes.iter_mut().take(N / 2 + 1).for_each(|node| node.member_of.insert(2));
        let mut leaders = [Leader::default(); TERMS];
        leaders[1] = Leader { log, committed: 1 };
        Self {
            nodes,
            leaders,
            counted: [Set::default(); STRETCHES],
            committed: log,
            sent: Set::default(),
            complete_before: [Set::default(); BATCHES_MAX],
            complete: Set::default(),
            complete_in: [0; BATCHES_MAX],
            refused_in: [0; BATCHES_MAX],
            bounces: 0,
        }
    }

    /// Returns the node whose messages of the term may still arrive.
    pub(crate) fn sender(&self, term: usize) -> Option<usize> {
        if self.leaders[term].log.is_empty() {
            return None;
        }
        self.nodes.iter().position(|node| node.led.contains(term))
    }

    /// Returns the node that takes itself for the term's leader.
    pub(crate) fn leader(&self, term: usize) -> Option<usize> {
        self.nodes.iter().position(|node| node.term() == term && node.role != Role::Follower)
    }

    /// Sends what the leader appended.
    pub(crate) fn publish(&mut self, leader: usize) {
        let node = &mut self.nodes[leader];
        self.leaders[node.term()].log = node.log;
        node.replicated[node.term()] = small(node.log.len());
    }

    /// Follows the term, which is a later one.
    pub(crate) fn step_down(&mut self, node: usize, term: usize) {
        if self.nodes[node].role != Role::Follower {
            self.forget_given(self.nodes[node].term());
        }
        self.nodes[node].role = Role::Follower;
        self.nodes[node].term = small(term);
    }

    /// Forgets the lists that were given to the leader of the term.
    pub(crate) fn forget_given(&mut self, term: usize) {
        for node in &mut self.nodes {
            node.gave.remove(term);
            node.given[term] = Batches::default();
        }
    }
}

impl<const N: usize> fmt::Display for State<N> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for node in &self.nodes {
            write!(out, "    term {} {:?}, committed {}", node.term, node.role, node.committed)?;
            write!(out, ", log{}, holds", node.log)?;
            for stretch in 0..STRETCHES {
                let holds = node.holds[stretch].iter().collect::<Vec<_>>();
                if !holds.is_empty() {
                    write!(out, " {holds:?} in {}.{}", stretch / 2, stretch % 2)?;
                }
            }
            writeln!(out)?;
        }
        let complete = self.complete.iter().collect::<Vec<_>>();
        writeln!(out, "    committed{}, complete {complete:?}", self.committed)
    }
}
