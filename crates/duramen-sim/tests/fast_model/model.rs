//! # Room card: model
//!
//! Purpose:    the size of a search, and the bug that is planted in the protocol.
//! Owns:       [`Model`]: nodes, producers, terms and faults of a search; [`Plant`].
//! Interface:  [`Model::new`], [`Model::previous`], [`Model::plants`].
//! Invariants: batches are numbered producer by producer, in the order of their sequences.
//! Never:      state.
//! Tests:      every search.
//! Start at:   [`Model`].

/// A bug planted in the protocol, by the name of the rule that it breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Plant {
    /// A member that gave its list goes on to hold in the old term.
    SealForgotten,
    /// Settling appends batches that the log has.
    RecoveredTwice,
    /// A leader serves while it settles.
    OpensTooEarly,
    /// Settling takes the list of a node outside the fast set.
    AskedAnyone,
    /// Settling takes a list from its end to its beginning.
    RecoveredReversed,
    /// A batch is taken without its predecessor.
    HeldWithGap,
    /// A batch is held if its predecessor is held in another stretch.
    GapAcrossStretches,
    /// Raft cuts an ex-leader's entries, and nothing holds them.
    CutForgetsHeld,
    /// A hold is given up when the log has the batch, committed or not.
    HeldGoneAtAppend,
    /// A leader counts in the old stretch until the next one is committed.
    OldStretchCounts,
    /// A batch that is held in one stretch is answered, and not held, in another.
    HeldInPlace,
    /// A leader counts before its Open is committed, and a member without the Open. Each barrier alone would do.
    NoBarrier,
    /// A final refusal is answered at once, in the stretch that goes on.
    RefusedTooEarly,
    /// A restarted leader holds in its own stretch.
    ExLeaderHolds,
    /// A client counts the leader alone.
    CountsTooFew,
    /// A client counts the members without the leader.
    CountsWithoutLeader,
    /// A client takes a batch for complete before its predecessor.
    ToldOutOfOrder,
}

/// The size of a search. Of the `N` nodes a majority is the fast set.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Model<const N: usize> {
    /// The number of batches of each producer.
    pub(crate) producers: &'static [usize],
    /// Terms that nodes may lead. Fair runs have one more.
    pub(crate) terms: usize,
    /// Restarts of a leader, after which it follows in its own term.
    pub(crate) bounces: u8,
    /// A leader appends an entry when elected, as Raft has it. Without, there are fewer states.
    pub(crate) has_no_op: bool,
    /// A leader may open a second stretch in its term, with another fast set.
    pub(crate) reopens: bool,
    /// A leader may refuse a batch for good.
    pub(crate) refuses: bool,
    /// The planted bug.
    pub(crate) plant: Option<Plant>,
}

impl<const N: usize> Model<N> {
    /// Nodes of a majority, and of a fast set.
    pub(crate) const MAJORITY: usize = N / 2 + 1;

    /// Returns the smallest search with these producers and terms.
    pub(crate) fn new(producers: &'static [usize], terms: usize) -> Self {
        Self {
            producers,
            terms,
            bounces: 0,
            has_no_op: false,
            reopens: false,
            refuses: false,
            plant: None,
        }
    }

    /// Tells whether the bug is planted.
    pub(crate) fn plants(&self, plant: Plant) -> bool {
        self.plant == Some(plant)
    }

    /// Returns the number of batches.
    pub(crate) fn batches(&self) -> usize {
        self.producers.iter().sum()
    }

    /// Returns the batch that the producer sent before.
    pub(crate) fn previous(&self, batch: usize) -> Option<usize> {
        let mut first = 0;
        for count in self.producers {
            if batch == first {
                return None;
            }
            first += count;
        }
        Some(batch - 1)
    }

    /// Returns the other names that batches may have: producers with equally many batches are alike.
    pub(crate) fn renamings(&self) -> Vec<Vec<usize>> {
        let mut firsts = Vec::new();
        let mut end = 0;
        for count in self.producers {
            firsts.push(end);
            end += count;
        }
        let mut orders = vec![Vec::new()];
        for count in self.producers {
            orders = orders.iter().flat_map(|order| self.extended(order, *count)).collect();
        }
        let names = orders.iter().map(|order| {
            let of_producer = |(producer, count): (&usize, &usize)| {
                let first = firsts[*producer];
                first..first + count
            };
            order.iter().zip(self.producers).flat_map(of_producer).collect()
        });
        names.filter(|names: &Vec<usize>| !names.is_sorted()).collect()
    }

    /// Returns the order of producers with each other one behind it that has as many batches.
    fn extended(&self, order: &[usize], count: usize) -> Vec<Vec<usize>> {
        let others = (0..self.producers.len())
            .filter(|other| self.producers[*other] == count && !order.contains(other));
        others.map(|other| [order, &[other]].concat()).collect()
    }
}
