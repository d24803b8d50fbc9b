//! # Room card: sabotage
//!
//! Purpose:    bugs on purpose, inside code that no lying disk can reach: proof that the simulator
//!             would find them.
//! Owns:       the list, and which one is planted in this thread.
//! Interface:  [`Bug`], [`plant`].
//! Invariants: without the feature `sabotage`, which only `duramen-sim`'s tests ask for, every
//!             question is answered `false` at compile time.
//! Never:      behaviour: each bug is one line where it is planted.
//! Tests:      `duramen-sim/tests/planted.rs`.
//! Start at:   [`Bug`].

/// A planted bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// Recovery replays what a recycled extent still holds of its last use.
    OldGenerationReplayed,
    /// A bad round in the middle of the journal ends it, like a torn one at its end.
    RotTakenForTear,
    /// The journal's last round is not made durable before it is believed.
    LastRoundNotRewritten,
    /// Bytes behind the last descriptor stay in the segment.
    TailNotCut,
    /// Payload that only the journal is sure to have is not written again.
    PayloadNotRewritten,
    /// Replay forgets that the log was cut.
    TruncateNotReplayed,
    /// Replay forgets Raft's hard state.
    HardStateNotReplayed,
    /// Replay forgets images.
    ImageDropped,
    /// Bad payload below the synced mark is cut like a torn tail.
    SyncedMarkIgnored,
    /// A ticket does not wait for the sync of its payload.
    PayloadSyncNotAwaited,
    /// The directory of a deleted replica keeps its name.
    DeletedNotRenamed,
}

#[cfg(feature = "sabotage")]
mod planted {
    use std::cell::Cell;

    use super::Bug;

    thread_local! {
        static PLANTED: Cell<Option<Bug>> = const { Cell::new(None) };
    }

    /// Plants a bug in this thread, or none.
    pub fn plant(bug: Option<Bug>) {
        PLANTED.set(bug);
    }

    pub(crate) fn is(bug: Bug) -> bool {
        PLANTED.get() == Some(bug)
    }
}

#[cfg(feature = "sabotage")]
pub(crate) use planted::is;
#[cfg(feature = "sabotage")]
pub use planted::plant;

/// Without the feature there are no bugs.
#[cfg(not(feature = "sabotage"))]
pub(crate) const fn is(_: Bug) -> bool {
    false
}
