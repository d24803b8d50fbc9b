//! # Room card: brief letters
//!
//! Purpose:    leave out of letters the payload that a client sent to leader and follower alike.
//! Owns:       which batches a leader leaves out, and for which peers; a follower's letters that wait for payload.
//! Interface:  [`Group::share_with`], [`Group::note_shared`] and [`Group::send_whole`] of a leader; [`Group::hear`],
//!             [`Group::hear_late`] and [`Group::count_late`] of a follower.
//! Invariants: the library hears an entry with its payload or not at all, and the payload fits its descriptor. So a
//!             leader that is wrong about what a follower holds costs time, and nothing else.
//! Never:      what is held (see `partition/holds.rs`).
//! Tests:      `node/tests/fast.rs`; `node/tests/fast_schedules`.
//! Start at:   [`Group::hear`].

use bytes::Bytes;
use duramen_storage::Descriptor;
use duramen_storage::op::Content;
use raft::eraftpb::{Message, MessageType};

use super::shared::{Late, bytes_of};
use super::{Group, letters, log};
use crate::limits::{FAST_LATE_TICKS, FAST_WHOLE_TICKS};
use crate::peer::Letter;

/// Returns all payload of a letter, with what it leaves out. `None` if some of that is not there.
fn completed(
    message: &Message,
    payloads: &[Bytes],
    held: &impl Fn(&Descriptor, u64) -> Option<Bytes>,
) -> Option<Vec<Bytes>> {
    let batches = message.get_entries().iter().filter_map(|entry| match log::content_of(entry) {
        Some(Content::Batch(batch)) => Some((entry.term, batch)),
        _ => None,
    });
    let found = |((term, batch), payload): ((u64, Descriptor), &Bytes)| {
        if payload.is_empty() { held(&batch, term) } else { Some(payload.clone()) }
    };
    batches.zip(payloads).map(found).collect()
}

impl Group {
    /// Lets letters to these peers leave out what clients send to them too.
    pub(crate) fn share_with(&mut self, peers: Vec<u64>) {
        self.shipping.shared.peers = peers;
    }

    /// Notes that a client sends the last batch of the log to those peers too.
    pub(crate) fn note_shared(&mut self, index: u64) {
        self.shipping.shared.note(index, self.raw.raft.term);
    }

    /// Sends whole letters for a while to a follower that lacks what was left out, from its last entry on.
    pub(crate) fn send_whole(&mut self, peer: u64) {
        self.shipping.shared.whole.insert(peer, FAST_WHOLE_TICKS);
        self.on_unreachable(peer);
    }

    /// Returns the bytes that letters left out since the last call.
    pub(crate) fn take_left_out(&mut self) -> u64 {
        std::mem::take(&mut self.shipping.shared.bytes)
    }

    /// Takes a letter that may leave out payload which `held` gives for a descriptor and a term. Without that it waits,
    /// and others wait behind it.
    pub(crate) fn hear(
        &mut self,
        letter: Letter,
        held: impl Fn(&Descriptor, u64) -> Option<Bytes>,
    ) {
        let Some(mut message) = letters::message_of(&letter) else { return };
        let payloads = letter.payloads;
        let is_append = message.get_msg_type() == MessageType::MsgAppend;
        let is_whole = payloads.iter().all(|payload| !payload.is_empty());
        let is_heard = is_whole && !self.has_late() || message.term < self.term();
        if !is_append || is_heard || self.may_cut(&message) || !self.is_acceptable(&message) {
            return self.on_message(message, payloads);
        }
        if self.late.sender().is_some_and(|sender| sender != (message.from, message.term)) {
            self.drop_late();
        }
        if !self.has_late() {
            if let Some(payloads) = completed(&message, &payloads, &held) {
                return self.on_message(message, payloads);
            }
            if self.pass_over(&mut message) {
                return self.on_message(message, Vec::new());
            }
        }
        if self.failed.is_none() && !self.is_beginning() {
            self.wake();
            let before = self.late.bytes;
            self.late.push(message, payloads);
            self.bytes_in_flight += self.late.bytes - before;
        }
    }

    /// Hears the letters whose payload is there by now. Returns leader and term if one has waited for too long: they
    /// are dropped, and the leader should send them whole.
    pub(crate) fn hear_late(
        &mut self,
        held: impl Fn(&Descriptor, u64) -> Option<Bytes>,
    ) -> Option<(u64, u64)> {
        while let Some((message, payloads)) = self.late.letters.pop_front() {
            let bytes = bytes_of(&payloads);
            if message.term < self.term() {
                self.late.letters.push_front((message, payloads));
                self.drop_late();
                return None;
            }
            let Some(whole) = completed(&message, &payloads, &held) else {
                let sender = (message.from, message.term);
                self.late.letters.push_front((message, payloads));
                let is_over = self.late.ticks >= FAST_LATE_TICKS;
                if is_over {
                    self.drop_late();
                }
                return is_over.then_some(sender);
            };
            self.late.bytes -= bytes;
            self.bytes_in_flight -= bytes;
            self.late.ticks = 0;
            self.on_message(message, whole);
        }
        None
    }

    /// Leaves out the entries of a letter that are all in this log: it says no more than their last index. True if it
    /// was such a letter.
    fn pass_over(&self, message: &mut Message) -> bool {
        let last = message.get_entries().last().map(|last| (last.index, last.term));
        let known = |(index, term): &(u64, u64)| self.raw.raft.raft_log.match_term(*index, *term);
        let Some((index, term)) = last.filter(known) else { return false };
        (message.index, message.log_term) = (index, term);
        message.clear_entries();
        true
    }

    /// Counts a tick for letters that wait for payload. False if there are none.
    pub(crate) fn count_late(&mut self) -> bool {
        self.late.ticks += u64::from(self.has_late());
        self.has_late()
    }

    /// Tells whether letters wait for payload.
    pub(crate) fn has_late(&self) -> bool {
        !self.late.letters.is_empty()
    }

    /// Forgets the letters that wait for payload.
    pub(super) fn drop_late(&mut self) {
        self.bytes_in_flight -= self.late.bytes;
        self.late = Late::default();
    }
}
