//! # Room card: questions
//!
//! Purpose:    ask other nodes, or a room of this one, until there is an answer.
//! Owns:       [`Questions`]: open questions, the place that each was sent to last, and when the asker gives up.
//! Interface:  [`Questions::ask`], [`Questions::is_due`], [`Questions::take`].
//! Invariants: a question goes to one place at a time. The same place gets it again only after a pause; another place
//!             gets it at once. So frames that are lost, late or doubled do no harm, if a repeated question changes
//!             nothing.
//! Never:      the meaning of questions, frames; requests that must not be repeated (see `node/forwarding.rs`).
//! Tests:      `node/tests/shares.rs`, `node/tests/transactions.rs`.
//! Start at:   [`Questions::is_due`].

use std::collections::BTreeMap;

use crate::event::Now;

/// Node to ask, and the leader epoch that the question is for; 0 for any.
pub(super) type Place = (i32, i32);

#[derive(Debug)]
struct Open<Q> {
    question: Q,
    /// Place that was asked last, and when, in monotonic microseconds.
    to: Option<(Place, u64)>,
    until_us: u64,
}

/// See the room card.
#[derive(Debug)]
pub(super) struct Questions<Q> {
    open: BTreeMap<u64, Open<Q>>,
    /// Questions that were sent to no place yet.
    unsent: Vec<u64>,
}

impl<Q> Default for Questions<Q> {
    fn default() -> Self {
        Self { open: BTreeMap::new(), unsent: Vec::new() }
    }
}

impl<Q> Questions<Q> {
    /// Opens a question under a number of its own, to be sent with the turn. The asker gives up at `until_us`.
    pub(super) fn ask(&mut self, nonce: u64, question: Q, until_us: u64) {
        self.open(nonce, question, until_us);
        self.unsent.push(nonce);
    }

    /// Opens a question that the asker sends at once.
    pub(super) fn open(&mut self, nonce: u64, question: Q, until_us: u64) {
        let before = self.open.insert(nonce, Open { question, to: None, until_us });
        assert!(before.is_none(), "the number of a question is its own");
    }

    pub(super) fn get(&self, nonce: u64) -> Option<&Q> {
        self.open.get(&nonce).map(|open| &open.question)
    }

    /// Closes a question: it has its answer, or nobody waits for one.
    pub(super) fn take(&mut self, nonce: u64) -> Option<Q> {
        self.open.remove(&nonce).map(|open| open.question)
    }

    /// Tells whether a question is to be sent to a place now, and notes that it is. The same place gets it again after
    /// `pause_us`; never, if that is `u64::MAX`.
    pub(super) fn is_due(&mut self, nonce: u64, place: Place, now: Now, pause_us: u64) -> bool {
        let Some(open) = self.open.get_mut(&nonce) else { return false };
        let is_due = open
            .to
            .is_none_or(|(to, at)| to != place || now.mono_us >= at.saturating_add(pause_us));
        if is_due {
            open.to = Some((place, now.mono_us));
        }
        is_due
    }

    /// Has a question sent at the next look, because the place that was asked is the wrong one by now.
    pub(super) fn ask_elsewhere(&mut self, nonce: u64) {
        if let Some(open) = self.open.get_mut(&nonce) {
            open.to = None;
        }
    }

    /// Takes the numbers of questions that were sent to no place yet.
    pub(super) fn take_unsent(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.unsent)
    }

    /// Returns the numbers of all open questions.
    pub(super) fn nonces(&self) -> Vec<u64> {
        self.open.keys().copied().collect()
    }

    /// Closes a question if its asker gives up by now.
    pub(super) fn take_late(&mut self, nonce: u64, now: Now) -> Option<Q> {
        let is_late = self.open.get(&nonce).is_some_and(|open| open.until_us <= now.mono_us);
        if is_late { self.take(nonce) } else { None }
    }

    pub(super) fn retain(&mut self, stays: impl Fn(&Q) -> bool) {
        self.open.retain(|_, open| stays(&open.question));
    }

    /// Tells whether each question was sent, or is not to be sent yet.
    pub(super) fn are_sent(&self) -> bool {
        self.unsent.is_empty()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }
}
