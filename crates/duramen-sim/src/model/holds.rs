//! # Room card: holds of a model
//!
//! Purpose:    the batches that a replica keeps beside its log, by the simplest means.
//! Owns:       [`Holds`]: the submitted ones, the reported ones, and those that were let go.
//! Interface:  [`Holds::submit`], [`Holds::on_held`], [`Holds::let_go`], [`Holds::adopt`].
//! Invariants: a hold is kept from its report, or from the start that found it, until it is let go.
//! Never:      the log.
//! Tests:      every run.
//! Start at:   [`Holds::adopt`].

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use duramen_storage::op::{Hold, HoldId};

/// Batches beside the log of one replica.
#[derive(Clone, Debug, Default)]
pub struct Holds {
    /// Those that were not reported yet, oldest first.
    pub waiting: VecDeque<HoldId>,
    /// Those that every start must find.
    kept: BTreeMap<HoldId, Bytes>,
    /// All that a start may find.
    possible: BTreeMap<HoldId, Bytes>,
}

impl Holds {
    /// Notes that a hold was submitted.
    pub fn submit(&mut self, hold: Hold) {
        self.waiting.push_back(hold.id);
        self.possible.insert(hold.id, hold.payload);
    }

    /// Takes a report, which must be of the oldest hold that waits.
    pub fn on_held(&mut self, hold: HoldId) -> Result<(), String> {
        let due = self.waiting.pop_front();
        if due != Some(hold) {
            return Err(format!("hold {hold:?} is reported, and {due:?} was due"));
        }
        self.kept
            .extend(self.possible.get_key_value(&hold).map(|(id, bytes)| (*id, bytes.clone())));
        Ok(())
    }

    /// Returns the holds that may be let go.
    pub fn kept(&self) -> Vec<HoldId> {
        self.kept.keys().copied().collect()
    }

    /// Returns the bytes of all holds that are not let go.
    pub fn bytes(&self) -> usize {
        let waiting = self.waiting.iter().filter_map(|id| self.possible.get(id));
        waiting.chain(self.kept.values()).map(Bytes::len).sum()
    }

    /// Notes that holds are not needed any more: a start may find them, or not.
    pub fn let_go(&mut self, holds: &[HoldId]) {
        self.kept.retain(|id, _| !holds.contains(id));
    }

    /// Checks the holds that a start found, and goes on from there. Returns those that were let go before.
    pub fn adopt(&mut self, found: &[Hold]) -> Result<Vec<HoldId>, String> {
        if !found.is_sorted_by(|a, b| a.id < b.id) {
            return Err("holds are found out of order, or twice".to_owned());
        }
        let found: BTreeMap<HoldId, Bytes> =
            found.iter().map(|hold| (hold.id, hold.payload.clone())).collect();
        if let Some((id, _)) = found.iter().find(|(id, bytes)| self.possible.get(id) != Some(bytes))
        {
            return Err(format!(
                "hold {id:?} is found, which was never submitted, or was lost before"
            ));
        }
        if let Some(id) = self.kept.keys().find(|id| !found.contains_key(id)) {
            return Err(format!("hold {id:?} was reported, and is lost"));
        }
        let is_gone = |id: &HoldId| !self.kept.contains_key(id) && !self.waiting.contains(id);
        let gone: Vec<HoldId> = found.keys().copied().filter(is_gone).collect();
        self.waiting.clear();
        self.kept.clone_from(&found);
        self.kept.retain(|id, _| !gone.contains(id));
        self.possible = found;
        Ok(gone)
    }
}
