//! # Room card: adopting
//!
//! Purpose:    bring a batch to the leader that only followers have: the client's copy for the leader may be lost.
//! Owns:       the offers of a member to its leader.
//! Interface:  [`Partition::offer_holds`], [`Partition::on_offer`], [`Partition::adopt`].
//! Invariants: a leader takes an offer as a client's retry, and only while the stretch of the offer is open. A batch
//!             that was refused for good is of an earlier one.
//! Never:      the end of a hold (see `holds.rs`).
//! Tests:      `node/tests/fast.rs`; `node/tests/fast_schedules`.
//! Start at:   [`Partition::offer_holds`].

use bytes::{Bytes, BytesMut};
use duramen_protocol::batch::batches;
use duramen_storage::op::{HoldId, Stretch};
use duramen_storage::sabotage::{self, Bug};

use super::fast_state::Said;
use super::{Acks, Appended, Partition, Slot, Verdict};
use crate::checked_batch::CheckedBatch;
use crate::event::Now;
use crate::limits::FAST_LIST_BYTES_MAX;

impl Partition {
    /// Offers the leader the batches that were held at the last call too. True if there are some.
    pub(crate) fn offer_holds(&mut self) -> bool {
        let (seen, offered) = self.fast.old;
        self.fast.old.0 = self.fast.holds.last();
        if self.group.is_elected() || self.group.failure().is_some() || self.group.is_beginning() {
            return false;
        }
        let Some(current) = self.stretches.current() else { return false };
        let leader = current.members.first().copied().filter(|it| self.group.leader() == Some(*it));
        let (Some(leader), stretch) = (leader, current.at) else { return false };
        let old: Vec<(HoldId, &Bytes)> =
            self.fast.holds.in_stretch(stretch).filter(|(id, _)| Some(*id) <= seen).collect();
        // Those that the leader did not take the last time come again after the others.
        let at = old.partition_point(|(id, _)| Some(*id) <= offered);
        let from = if at < old.len() { at } else { 0 };
        let (mut bytes, mut last) = (BytesMut::new(), None);
        for (id, payload) in &old[from..] {
            if !bytes.is_empty() && bytes.len() + payload.len() > FAST_LIST_BYTES_MAX {
                break;
            }
            bytes.extend_from_slice(payload);
            last = Some(*id);
        }
        self.fast.old.1 = last;
        if last.is_some() {
            self.fast.said.push(Said::Offered { leader, stretch, batches: bytes.freeze() });
        }
        last.is_some()
    }

    /// Takes an offer of a member, until the next turn.
    pub(crate) fn on_offer(&mut self, stretch: Stretch, batches: Bytes) {
        let is_open = self.fast.open == Some(stretch) || sabotage::is(Bug::AdoptedLate);
        if is_open && self.fast.offered.is_none() {
            self.fast.offered = Some((stretch, batches));
        }
    }

    /// Appends the batches of an offer.
    pub(super) fn adopt(&mut self, now: Now) {
        let Some((stretch, offered)) = self.fast.offered.take() else { return };
        let is_open = self.fast.open == Some(stretch) || sabotage::is(Bug::AdoptedLate);
        if !is_open || self.obstacle().is_some() || self.lacks_replicas() {
            return;
        }
        for view in batches(offered).map_while(Result::ok) {
            let batch = CheckedBatch::of(view.bytes().clone(), self.id.partition);
            let Ok(batch) = batch else { return };
            let is_next = self.verdict(&batch.header) == Verdict::Append;
            if !is_next || self.producers.is_open(batch.header.producer_id) {
                continue;
            }
            // Nobody waits here: the client asks the leader itself.
            let slot = Slot::Coordinator { replica: self.group.id(), ticket: 0 };
            if let Appended::Busy(_) = self.produce(now, batch, Acks::None, slot) {
                return;
            }
        }
    }
}
