//! # Room card: compacting
//!
//! Purpose:    the work of a process's thread for data at rest when it compacts logs, or others give the rest of
//!             theirs.
//! Owns:       orders, the one at hand, segments that are made and not installed yet.
//! Interface:  [`Compactor`].
//! Invariants: it draws from a stream of its own, and only when there is something to do.
//! Never:      the choice of logs to compact.
//! Tests:      scenarios `node` and `cluster`.
//! Start at:   [`Compactor::step`].

use std::collections::VecDeque;

use duramen_storage::compaction::{Compaction, Made, Means, Order, Progress};
use duramen_storage::staging::{Outcome, Stage, Stagings};
use duramen_storage::{Done, Storage};

use crate::disk::SimDisk;
use crate::prng::Prng;
use crate::trace::tell;

/// See the room card.
pub(crate) struct Compactor {
    orders: Vec<Order>,
    current: Option<Compaction<SimDisk>>,
    made: Vec<Made<SimDisk>>,
    stages: VecDeque<Stage>,
    stagings: Stagings<SimDisk>,
    free_bytes_min: u64,
    chance: Prng,
}

impl Compactor {
    pub(crate) fn new(seed: u64, free_bytes_min: u64) -> Self {
        let chance = Prng::new(seed, "compaction");
        Self {
            orders: Vec::new(),
            current: None,
            made: Vec::new(),
            stages: VecDeque::new(),
            stagings: Stagings::default(),
            free_bytes_min,
            chance,
        }
    }

    pub(crate) fn push(&mut self, order: Order) {
        self.orders.push(order);
    }

    pub(crate) fn stage(&mut self, stage: Stage) {
        self.stages.push_back(stage);
    }

    /// Tells whether there is nothing to do.
    pub(crate) fn is_idle(&self) -> bool {
        let compacts = !self.orders.is_empty() || self.current.is_some() || !self.made.is_empty();
        !compacts && self.stages.is_empty()
    }

    /// Does a piece of the work, now and then. Returns an answer for work that could not be done.
    pub(crate) fn step(&mut self, storage: &mut Storage<SimDisk>) -> Option<Done> {
        if self.is_idle() || !self.chance.chance(300) {
            return None;
        }
        if let Some(stage) = self.stages.pop_front() {
            tell(|| format!("stage {}", brief(&stage)));
            match self.stagings.carry_out(&storage.reader(), stage, self.free_bytes_min)? {
                Outcome::Done(done) => return Some(done),
                Outcome::Staged(staged) => storage.stage(*staged),
            }
            return None;
        }
        if let Some(made) = self.made.pop() {
            storage.install(made);
            return None;
        }
        if self.current.is_none() {
            let order = self.orders.remove(self.chance.index(self.orders.len()));
            let keys_max = *self.chance.pick(&[1, 3, 1000]);
            let means = Means { hash_key: (5, 6), keys_max, free_bytes_min: self.free_bytes_min };
            let replica = order.replica;
            tell(|| format!("compact {order:?}"));
            match Compaction::begin(&storage.reader(), order, &means) {
                Ok(begun) => self.current = Some(begun),
                Err(error) => {
                    tell(|| format!("not compacted: {error}"));
                    return Some(Done::Compacted { replica, done: None });
                }
            }
        }
        let current = self.current.as_mut()?;
        let replica = current.replica();
        match current.step(self.chance.between(1, 20_000)) {
            Ok(Progress::More) => return None,
            Ok(Progress::Done(made)) => self.made.push(*made),
            Err(error) => {
                tell(|| format!("not compacted: {error}"));
                self.current = None;
                return Some(Done::Compacted { replica, done: None });
            }
        }
        self.current = None;
        None
    }
}

fn brief(stage: &Stage) -> String {
    match stage {
        Stage::Put { replica, number, batches, is_last } => {
            format!("put {} to {number} of {replica:?}, last: {is_last}", batches.len())
        }
        other => format!("{other:?}"),
    }
}
