//! # Room card: clocks of nodes
//!
//! Purpose:    decide whether this node may remove data for its age, by its wall clock.
//! Owns:       [`Clocks`]: differences between the clocks of the nodes.
//! Interface:  [`Core::believes_clock`], [`Core::compare_clocks`].
//! Invariants: a node removes data for its age only if its clock has not leapt and a majority shares its time. The
//!             majority is of the nodes that this process has heard, itself among them. So two nodes that differ remove
//!             nothing, also after one is gone. A node of several that has heard no other removes nothing either.
//! Never:      changes of a clock; refusal of records with the time of another clock.
//! Tests:      `node/tests/clocks.rs`; `duramen-sim`, scenario `cluster`.
//! Start at:   [`Core::believes_clock`].

use std::collections::BTreeSet;

use duramen_storage::sabotage::{self, Bug};

use super::Core;
use crate::limits::CLOCK_LEAP_MS_MAX;

/// Differences between the wall clocks of other nodes and this one's, at the last comparison.
#[derive(Debug, Default)]
pub(crate) struct Clocks {
    /// Nodes whose clock is too far away.
    far: BTreeSet<i32>,
    /// True if too few nodes share the time of this node, and whether the log says so.
    pub(crate) is_alone: bool,
    is_said: bool,
    /// The largest difference.
    pub(crate) apart_ms: u64,
}

fn is_far(ahead_ms: i64) -> bool {
    ahead_ms.unsigned_abs() > CLOCK_LEAP_MS_MAX.unsigned_abs()
}

impl Core {
    /// Tells whether data may be removed for its age by the clock's last reading, taken now.
    pub(crate) fn believes_clock(&mut self) -> bool {
        self.compare_clocks();
        let is_odd = self.clocks.is_alone && !sabotage::is(Bug::ClockLeapBelieved);
        self.clock.believes(self.now) && !is_odd
    }

    /// Returns this node's wall clock, in milliseconds, and whether too few nodes share it. Then nothing is removed for
    /// its age.
    pub(crate) fn clock(&self) -> (i64, bool) {
        (self.now.wall_ms, self.clocks.is_alone)
    }

    /// Returns the time at or before which elements of queues have ended, in milliseconds since 1970. If the clock was
    /// not believed when it was asked last, none has.
    pub(crate) fn ended_ms(&self) -> i64 {
        let is_odd = self.clocks.is_alone || self.clock.is_held();
        if is_odd { i64::MIN } else { self.now.wall_ms }
    }

    /// Compares the clocks of other nodes with this one's, and logs a difference once.
    pub(crate) fn compare_clocks(&mut self) {
        let known = self.peers.clocks().filter(|(id, _)| self.directory_of(*id).is_some());
        let known: Vec<(i32, i64)> = known.collect();
        let before = std::mem::take(&mut self.clocks);
        for &(broker_id, ahead_ms) in known.iter().filter(|(_, ahead_ms)| is_far(*ahead_ms)) {
            self.clocks.far.insert(broker_id);
            if !before.far.contains(&broker_id) {
                tracing::warn!(broker_id, ahead_ms, "the wall clock of another node differs");
            }
        }
        let far = self.clocks.far.len();
        let apart_ms = known.iter().map(|(_, ahead_ms)| ahead_ms.unsigned_abs()).max();
        self.clocks.apart_ms = apart_ms.unwrap_or(0);
        // As long as no other node was heard, one of them may say otherwise.
        let is_unheard = known.is_empty() && !self.other_brokers().is_empty();
        self.clocks.is_alone = is_unheard || 2 * (known.len() + 1 - far) <= known.len() + 1;
        self.clocks.is_said = self.clocks.is_alone && !known.is_empty();
        if self.clocks.is_said && !before.is_said {
            tracing::warn!(
                "too few nodes share this node's time: this node removes nothing for its age until \
                 they do; correct the clocks"
            );
        } else if before.is_said && !self.clocks.is_said {
            tracing::info!("enough nodes share this node's time again");
        }
    }
}
