//! # Room card: state of brief letters
//!
//! Purpose:    keep what brief letters rest on, beside the group that sends and hears them.
//! Owns:       which batches a leader leaves out, and for which peers; a follower's letters that wait for payload.
//! Interface:  [`Shared`], [`Late`]; their part is in `brief.rs`.
//! Invariants: those of that file.
//! Never:      a group.
//! Tests:      `node/tests/fast_schedules`.
//! Start at:   [`Shared`].

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use raft::eraftpb::Message;

use crate::limits::{FAST_LATE_LETTERS_MAX, GROUP_UNCOMMITTED_MAX};

/// Batches that a leader leaves out of letters.
#[derive(Debug, Default)]
pub(super) struct Shared {
    /// Peers that clients send their batches to.
    pub(super) peers: Vec<u64>,
    /// Those batches, by index and term.
    batches: BTreeSet<(u64, u64)>,
    /// Ticks for which a peer gets whole letters: it lacked a batch.
    pub(super) whole: BTreeMap<u64, u64>,
    /// Bytes left out since the last turn.
    pub(super) bytes: u64,
}

impl Shared {
    /// Tells whether a letter for a peer leaves out a batch.
    pub(super) fn is_left_out(&self, peer: u64, index: u64, term: u64) -> bool {
        self.batches.contains(&(index, term))
            && self.peers.contains(&peer)
            && !self.whole.contains_key(&peer)
    }

    /// Notes a batch of the log.
    pub(super) fn note(&mut self, index: u64, term: u64) {
        self.batches.insert((index, term));
        while self.batches.len() as u64 > GROUP_UNCOMMITTED_MAX {
            self.batches.pop_first();
        }
    }

    /// Counts the bytes of a batch that was left out.
    pub(super) fn count(&mut self, bytes: u32) {
        self.bytes += u64::from(bytes);
    }

    /// Forgets batches up to `index`, because no peer will need them soon.
    pub(super) fn forget(&mut self, index: u64) {
        self.batches = self.batches.split_off(&(index + 1, 0));
    }

    /// Counts a tick.
    pub(super) fn tick(&mut self) {
        self.whole.retain(|_, ticks| {
            *ticks -= 1;
            *ticks > 0
        });
    }
}

/// Letters of one leader that a follower cannot hear yet, in order. The first one lacks payload.
#[derive(Debug, Default)]
pub(super) struct Late {
    pub(super) letters: VecDeque<(Message, Vec<Bytes>)>,
    /// Bytes of payload in them.
    pub(super) bytes: u64,
    pub(super) ticks: u64,
}

impl Late {
    /// Returns leader and term of the letters.
    pub(super) fn sender(&self) -> Option<(u64, u64)> {
        self.letters.front().map(|(first, _)| (first.from, first.term))
    }

    /// Puts a letter behind the others, if there is room: Raft sends it again.
    pub(super) fn push(&mut self, message: Message, payloads: Vec<Bytes>) {
        if self.letters.len() < FAST_LATE_LETTERS_MAX {
            self.bytes += bytes_of(&payloads);
            self.letters.push_back((message, payloads));
        }
    }
}

/// Returns the bytes of payload.
pub(super) fn bytes_of(payloads: &[Bytes]) -> u64 {
    payloads.iter().map(|payload| payload.len() as u64).sum()
}
