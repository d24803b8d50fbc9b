//! # Room card: holds of the storage harness
//!
//! Purpose:    hold batches beside logs, and demand those back that storage reported.
//! Owns:       the choice of holds, and of those that are let go; the check of what a start finds.
//! Interface:  [`World::hold_something`], [`World::on_held`], [`World::adopt_holds`].
//! Invariants: only a hold that was reported, or found, is let go.
//! Never:      an order among stretches: each hold of a run has a number of its own.
//! Tests:      with the harness.
//! Start at:   [`World::adopt_holds`].

use duramen_protocol::compression::Codec;
use duramen_storage::op::{Hold, HoldId, Stretch};
use duramen_storage::{Op, OpKind, ReplicaId};

use super::World;
use crate::batch::Records;
use crate::failure::{Failure, wrong};
use crate::trace::tell;

/// Bytes of a small hold, and of a large one, at most.
const SIZES: [u64; 3] = [100, 500, 6000];
/// Bytes of all holds, at most: an eighth of the journal at its smallest, as a node would bound them.
const HOLDS_BYTES_MAX: usize = 32 * 1024;

impl World {
    /// Holds a batch beside one of the logs, or lets some go.
    pub(super) fn hold_something(&mut self) {
        let live: Vec<usize> = (0..self.replicas.len())
            .filter(|at| {
                let model = &self.replicas[*at];
                !model.deleted && !self.unrestored.contains(&model.id)
            })
            .collect();
        if live.is_empty() {
            return;
        }
        let at = *self.holding.pick(&live);
        let known = self.replicas[at].holds.kept();
        let bytes: usize = self.replicas.iter().map(|model| model.holds.bytes()).sum();
        let size = *self.holding.pick(&SIZES);
        let size = usize::try_from(self.holding.between(61, size)).expect("small");
        let is_full = bytes + size > HOLDS_BYTES_MAX;
        if !known.is_empty() && (is_full || self.holding.chance(300)) {
            let most = known.len();
            let first = self.holding.index(most);
            let count = self.holding.index(most - first) + 1;
            let gone: Vec<HoldId> = known.into_iter().skip(first).take(count).collect();
            let model = &mut self.replicas[at];
            model.holds.let_go(&gone);
            let id = model.id;
            tell(|| format!("submit {}: let go {gone:?}", id.0));
            self.storage().submit(Op { replica: id, kind: OpKind::LetGo(gone) });
            return;
        }
        if is_full {
            return;
        }
        self.clock += 1;
        let number = self.clock;
        let term = self.replicas[at].tip.hard_state.term;
        let stretch = Stretch { term, index: self.holding.between(1, 3) };
        let id = HoldId { stretch, number };
        let payload = if self.holding.chance(500) {
            let records = self.records_to_hold(number, size);
            let payload = records.encode(0, term);
            self.held.insert(id, records);
            payload
        } else {
            self.holding.bytes(size)
        };
        let hold = Hold { id, payload: payload.into() };
        let model = &mut self.replicas[at];
        model.holds.submit(hold.clone());
        let id = model.id;
        self.report.ops += 1;
        tell(|| format!("submit {}: hold {:?} of {size} bytes", id.0, hold.id));
        self.storage().submit(Op { replica: id, kind: OpKind::Hold(hold) });
    }

    fn records_to_hold(&mut self, number: u64, size: usize) -> Records {
        let sequence = i32::try_from(number).expect("small");
        Records {
            timestamps: vec![1_700_000_000_000],
            value: self.holding.bytes(size),
            producer: (9, 0, sequence),
            log_append_time: false,
            codec: Codec::None,
        }
    }

    /// Returns the records of a batch that a replica holds, for its log, now and then.
    pub(super) fn records_held(&mut self, at: usize) -> Option<Records> {
        if !self.holding.chance(400) {
            return None;
        }
        let known = self.replicas[at].holds.kept();
        let known: Vec<&Records> = known.iter().filter_map(|id| self.held.get(id)).collect();
        if known.is_empty() { None } else { Some((*self.holding.pick(&known)).clone()) }
    }

    /// Notes that a hold is said to be on disk.
    pub(super) fn on_held(&mut self, replica: ReplicaId, hold: HoldId) -> Result<(), Failure> {
        self.trace.mix(hold.number);
        match self.replicas.iter_mut().find(|model| model.id == replica) {
            Some(model) => Ok(model.holds.on_held(hold)?),
            None if self.dead.contains(&replica) => Ok(()),
            None => wrong(format!("replica {} is unknown, and holds", replica.0)),
        }
    }

    /// Checks the holds that a start found of a replica, and lets those go again that were let go before.
    pub(super) fn adopt_holds(&mut self, at: usize, found: &[Hold]) -> Result<(), Failure> {
        let model = &mut self.replicas[at];
        let (id, gone) = (model.id, model.holds.adopt(found)?);
        if !gone.is_empty() {
            self.storage().submit(Op { replica: id, kind: OpKind::LetGo(gone) });
        }
        Ok(())
    }
}
