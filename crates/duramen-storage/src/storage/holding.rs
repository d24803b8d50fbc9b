//! # Room card: holding
//!
//! Purpose:    keep batches beside the log of a replica, on disk, until the node lets them go.
//! Owns:       the holds of each replica in memory; their way through checkpoints.
//! Interface:  `Storage::take_hold`, `let_go_of`, `hold_again`, `report_held`.
//! Invariants: a hold that was reported is in a round that replay reads, until it is let go. Replay reads the holds of
//!             all live rounds, also of those before a State: so neither a cut nor a new beginning loses one. Before a
//!             checkpoint frees rounds, it writes all holds anew. A record of an append may name a hold
//!             instead of having its bytes. Replay finds the hold that storage had when it wrote the record.
//! Never:      segments; a decision on what is needed: the node lets go.
//! Tests:      `tests/promises/holds.rs` of `duramen-sim`, and the storage scenario there.
//! Start at:   `Storage::take_hold`.

use super::{Round, Storage};
use crate::op::{Done, Hold, HoldId};
use crate::record::Record;
use crate::sabotage::{self, Bug};
use crate::{Disk, ReplicaId};

impl<D: Disk> Storage<D> {
    /// Writes a hold into the round.
    pub(super) fn take_hold(
        &mut self,
        id: ReplicaId,
        hold: Hold,
        (round, buffer): (&mut Round<D>, &mut Vec<u8>),
    ) {
        let most = self.journal.body_bytes_max() / 4;
        assert!(hold.payload.len() <= most, "a hold leaves room for others in its round");
        let replica = self.replicas.get_mut(&id).expect("the caller found it");
        replica.holds.insert(hold.clone());
        if sabotage::is(Bug::HeldBeforeSync) {
            self.done.push(Done::Held { replica: id, hold: hold.id });
        } else {
            round.held.push((id, hold.id));
        }
        Record::Held { replica: id, hold }.encode(buffer);
        self.touch(round, id);
    }

    /// Forgets holds that the node needs no more. Nothing is written: the next checkpoint leaves them out.
    pub(super) fn let_go_of(&mut self, id: ReplicaId, holds: &[HoldId]) {
        let Some(replica) = self.replicas.get_mut(&id) else { return };
        for hold in holds {
            replica.holds.remove(*hold);
        }
    }

    /// Queues all holds of a replica for a round, in front of the State that frees the rounds with their records.
    pub(super) fn hold_again(&mut self, id: ReplicaId) {
        let Some(replica) = self.replicas.get(&id) else { return };
        if sabotage::is(Bug::CheckpointForgetsHeld) {
            return;
        }
        let holds = replica.holds.iter().map(|hold| Record::Held { replica: id, hold });
        self.urgent.extend(holds);
    }

    /// Reports the holds of a round that has just become durable.
    pub(super) fn report_held(&mut self, held: Vec<(ReplicaId, HoldId)>) {
        let reports = held.into_iter().map(|(replica, hold)| Done::Held { replica, hold });
        self.done.extend(reports);
    }
}
