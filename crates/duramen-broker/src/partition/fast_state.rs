//! # Room card: state of fast appends
//!
//! Purpose:    keep what a replica knows of its fast appends, beside its holds and its log's stretches.
//! Owns:       the open stretch of a leader, its settling, the rescue of a former leader, the clients that wait.
//! Interface:  [`FastState`]; its parts are those of `fast.rs`, `settling.rs` and `rescue.rs`.
//! Invariants: those of these files.
//! Never:      a partition.
//! Tests:      `node/tests/fast.rs`; `node/tests/fast_schedules.rs`.
//! Start at:   [`FastState`].

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use duramen_storage::op::{HoldId, OpKind, RecoveredReplica, Stretch};

use super::holds::Holds;
use super::pacing::{Paces, Rate};
use super::slots::Slot;
use crate::event::ReadLog;

/// State of a replica's fast appends.
#[derive(Debug, Default)]
pub(crate) struct FastState {
    pub(super) holds: Holds,
    /// For storage, in order, in front of the writes of the next turn.
    pub(super) ops: Vec<OpKind>,
    /// Clients that wait until a hold is on disk.
    pub(super) waiting: BTreeMap<HoldId, Vec<Slot>>,
    /// Clients whose batch was held when it came, until the next turn.
    pub(super) over: Vec<Slot>,
    /// Term in which this replica leads, as of its last turn.
    pub(super) led: Option<u64>,
    /// Stretch in which its leader counts appends.
    pub(super) open: Option<Stretch>,
    /// Index of the Open or Close that this leader proposed last, until it is applied.
    pub(super) opening: Option<u64>,
    /// When a client last sent a batch in it to this leader, in microseconds.
    pub(super) used_us: u64,
    pub(super) rate: Rate,
    pub(super) paces: Paces,
    /// Since when a member is much slower than an outsider: microseconds, and the number of entries timed by then.
    pub(super) slow_since: Option<(u64, u64)>,
    pub(super) settling: Option<Settling>,
    /// The last hold at the last look for old ones, and the last one that was offered.
    pub(super) old: (Option<HoldId>, Option<HoldId>),
    /// Batches that a member of a stretch offers this leader.
    pub(super) offered: Option<(Stretch, Bytes)>,
    /// Question of a new leader that is not answered yet.
    pub(super) asked: Option<Wanted>,
    /// Counts since the last turn.
    pub(super) counts: FastCounts,
    /// For replicas on other nodes.
    pub(super) said: Vec<Said>,
    pub(super) rescue: Rescue,
}

impl FastState {
    /// Begins with the batches that a start found.
    pub(super) fn recover(found: &RecoveredReplica) -> Self {
        let mut state = Self { holds: Holds::recover(&found.holds), ..Self::default() };
        state.rescue.begin();
        state
    }

    /// Forgets the leadership of a term.
    pub(super) fn end_term(&mut self) {
        (self.open, self.opening, self.settling) = (None, None, None);
        self.offered = None;
    }
}

/// Counts of a replica for the metrics of its node.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FastCounts {
    /// Stretches that began here.
    pub(crate) begun: u64,
    /// Batches that others held and that were taken over.
    pub(crate) taken_over: u64,
    /// Bytes that letters left out, because clients sent them to the receiver too.
    pub(crate) left_out: u64,
}

/// A question of a new leader: which batches a member holds in a stretch, behind a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// Leader that asks, and its term.
    pub(crate) leader: u64,
    pub(crate) term: u64,
    pub(crate) stretch: Stretch,
    pub(crate) after: u64,
}

/// A part of a member's list, in the order in which the batches came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Given {
    pub(crate) wanted: Wanted,
    /// Number of the last batch of the part.
    pub(crate) next: u64,
    pub(crate) is_last: bool,
    pub(crate) batches: Bytes,
}

/// Message for a replica on another node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Said {
    Wanted {
        member: u64,
        wanted: Wanted,
    },
    Given(Given),
    /// Batches that a member has held for long, for the leader of their stretch.
    Offered {
        leader: u64,
        stretch: Stretch,
        batches: Bytes,
    },
    /// The leader of a term has left out payload that is not held here.
    Lacks {
        leader: u64,
        term: u64,
    },
}

impl Said {
    /// Returns the replica that it is for.
    pub(crate) fn receiver(&self) -> u64 {
        match self {
            Self::Wanted { member, .. } => *member,
            Self::Given(given) => given.wanted.leader,
            Self::Offered { leader, .. } | Self::Lacks { leader, .. } => *leader,
        }
    }
}

/// List of one member, as far as it has come.
#[derive(Debug, Default)]
pub(super) struct List {
    pub(super) batches: Vec<Bytes>,
    pub(super) next: u64,
    pub(super) is_complete: bool,
}

/// State of a leader that settles.
#[derive(Debug)]
pub(crate) struct Settling {
    pub(super) stretch: Stretch,
    /// Lists of the members that are asked.
    pub(super) lists: BTreeMap<u64, List>,
    /// True if this replica is a member: nobody else is asked.
    pub(super) has_own: bool,
    /// Batches to append, once they are known.
    pub(super) queue: Option<VecDeque<Bytes>>,
    /// Applied index at which too much waited for followers.
    pub(super) full_at: Option<u64>,
}

/// Batches of a former leader's own log that are to be held.
#[derive(Debug, Default)]
pub(crate) struct Rescue {
    /// True until all is held.
    pub(super) is_due: bool,
    /// Ticket of the read that is under way; 0 if the last one was in vain.
    pub(super) reading: Option<u64>,
    pub(super) tickets: u64,
    /// Read for the node to begin.
    pub(super) wanted: Option<ReadLog>,
    /// True once a read found damage: from then on each batch is read alone.
    pub(super) is_careful: bool,
    /// Index up to which the medium has lost batches.
    pub(super) lost: u64,
}

impl Rescue {
    /// Begins with whatever the log has.
    pub(super) fn begin(&mut self) {
        (self.is_due, self.reading) = (true, None);
        (self.is_careful, self.lost) = (false, 0);
    }

    /// Tells whether batches of the log have to be held first.
    pub(super) fn is_due(&self) -> bool {
        self.is_due
    }
}
