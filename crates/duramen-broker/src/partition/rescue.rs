//! # Room card: rescue
//!
//! Purpose:    keep what a former leader appended in its own stretch, before a newer leader's entries replace it.
//! Owns:       the read of these batches, and the gate of the log's end meanwhile.
//! Interface:  [`Partition::tend_rescue`], [`Partition::on_own_read`].
//! Invariants: while an entry of the own stretch may be complete, and is in the log alone, no letter cuts the log. The
//!             batches are held, in the order of the log, before that ends.
//! Never:      batches of transactions, or without a producer: clients never take them for complete.
//! Tests:      `node/tests/fast.rs`; `duramen-sim`.
//! Start at:   [`Partition::tend_rescue`].
//!
//! A leader counts a batch only while little is uncommitted before it. So one that may be complete is among the first
//! uncommitted ones. That holds for a start, too, which finds the commit index that the last entry was written with.
//!
//! A batch that the medium has lost is given up. Otherwise its replica could follow no leader any more, and other
//! replicas have the batch if it is complete.

use bytes::Bytes;
use duramen_protocol::batch::batches;
use duramen_storage::Descriptor;
use duramen_storage::op::{Content, HoldId};
use duramen_storage::sabotage::{self, Bug};

use super::Partition;
use crate::event::{LogRead, MadeBy, ReadLog};
use crate::limits::{FAST_BATCH_BYTES_MAX, FAST_UNCOMMITTED_BYTES_MAX};

impl Partition {
    /// Holds what this replica appended as the leader of a stretch, once it leads no more.
    pub(super) fn tend_rescue(&mut self) {
        if self.group.is_elected() {
            self.fast.rescue.reading = None;
            self.fast.rescue.is_due = false;
            return self.group.keep_end(self.stretches.are_led_by(self.group.id().0));
        }
        if !self.fast.rescue.is_due || self.group.is_beginning() {
            return;
        }
        let mut pending = self.own_batches();
        if self.fast.rescue.is_careful {
            pending.truncate(1);
        }
        let (Some((_, first)), Some((_, last))) = (pending.first(), pending.last()) else {
            self.fast.rescue.is_due = false;
            return self.group.keep_end(false);
        };
        self.group.keep_end(true);
        if self.fast.rescue.reading.is_some() {
            return;
        }
        let bytes: u32 = pending.iter().map(|(_, batch)| batch.length).sum();
        self.fast.rescue.tickets += 1;
        self.fast.rescue.reading = Some(self.fast.rescue.tickets);
        self.fast.rescue.wanted = Some(ReadLog {
            replica: self.group.id(),
            from: first.base_offset,
            pass: 0,
            end: last.end_offset(),
            bytes_max: bytes,
            peer: Some(self.group.id()),
            ticket: self.fast.rescue.tickets,
            made_by: MadeBy::Anything,
        });
    }

    /// Returns the batches that may be complete and are in the log alone, each with its place among holds.
    fn own_batches(&self) -> Vec<(HoldId, Descriptor)> {
        let own = self.group.id().0;
        let mut pending = Vec::new();
        if !self.stretches.are_led_by(own) || sabotage::is(Bug::CutForgetsHeld) {
            return pending;
        }
        let mut bytes = 0;
        for entry in self.group.uncommitted_entries() {
            let Content::Batch(batch) = &entry.content else { continue };
            if bytes > FAST_UNCOMMITTED_BYTES_MAX {
                break;
            }
            bytes += u64::from(batch.length);
            let is_fast = batch.producer_id >= 0
                && batch.first_sequence >= 0
                && !batch.transactional
                && !batch.control
                && batch.length as usize <= FAST_BATCH_BYTES_MAX;
            let change = self.stretches.before(entry.index);
            let stretch = change.filter(|it| it.members.first() == Some(&own)).map(|it| it.at);
            let Some(stretch) = stretch.filter(|it| is_fast && it.term == entry.term) else {
                continue;
            };
            let is_lost = entry.index <= self.fast.rescue.lost;
            if !is_lost && !self.fast.holds.has_batch(stretch, batch) {
                pending.push((HoldId { stretch, number: entry.index }, *batch));
            }
        }
        pending
    }

    /// Tells whether something of the own stretch is still to be held.
    pub(crate) fn is_rescuing(&self) -> bool {
        self.group.failure().is_none() && self.fast.rescue.is_due
    }

    /// Lets a read that was in vain be tried again.
    pub(crate) fn rescue_again(&mut self) {
        self.fast.rescue.reading.take_if(|ticket| *ticket == 0);
    }

    /// Takes the read for the node to begin.
    pub(crate) fn take_own_read(&mut self) -> Option<ReadLog> {
        self.fast.rescue.wanted.take()
    }

    /// Holds the batches that were read.
    pub(crate) fn on_own_read(&mut self, read: &LogRead) {
        if self.fast.rescue.reading.take_if(|ticket| *ticket == read.ticket).is_none() {
            return;
        }
        let pending = self.own_batches();
        let replica = self.group.id().0;
        let rescue = &mut self.fast.rescue;
        let read = match (&read.batches, pending.first()) {
            (Ok(read), _) => read.clone(),
            (Err(why), Some((first, _))) if read.is_damaged && rescue.is_careful => {
                // All members have it, and this one is a disk that has lost it.
                let index = first.number;
                tracing::warn!(replica, index, why, "a batch that may be complete is damaged");
                rescue.lost = index;
                return;
            }
            (Err(_), _) if read.is_damaged && !rescue.is_careful => {
                rescue.is_careful = true;
                return;
            }
            (Err(why), _) => {
                tracing::warn!(replica, why, "batches that may be complete cannot be read now");
                Bytes::new()
            }
        };
        let held = self.fast.ops.len();
        let mut wanted = pending.iter().peekable();
        for view in batches(read).map_while(Result::ok) {
            let offset = view.header().base_offset;
            while wanted.next_if(|(_, batch)| batch.base_offset < offset).is_some() {}
            let fits = |it: &&(HoldId, Descriptor)| it.1.matches(view.bytes());
            let Some((id, _)) = wanted.next_if(fits) else { continue };
            self.fast.ops.extend(self.fast.holds.take_own(*id, view.bytes().clone()));
        }
        if self.fast.ops.len() == held && !pending.is_empty() {
            self.fast.rescue.reading = Some(0);
        }
    }
}
