//! # Room card: sabotage
//!
//! Purpose:    bugs on purpose, inside the node: proof that the simulator would find them.
//! Owns:       the list, and which one is planted in this thread.
//! Interface:  [`Bug`], [`plant`].
//! Invariants: without the feature `sabotage`, which only `duramen-sim`'s tests ask for, every
//!             question is answered `false` at compile time.
//! Never:      behaviour: each bug is one line where it is planted.
//! Tests:      `duramen-sim`; `node/tests/sabotage.rs` shows that each does something.
//! Start at:   [`Bug`].

/// A planted bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// A restart forgets what producers had sent, image and log alike.
    DedupNotRebuilt,
    /// A produce is answered before its batch is on disk.
    AckedBeforePersisted,
    /// A fetch is told of, and may get, what is not committed.
    UncommittedShown,
    /// A batch that does not follow its producer's last one is appended.
    SequenceGapAccepted,
    /// Retention believes a wall clock that has leapt.
    ClockLeapBelieved,
    /// A partition's image leaves its producers out.
    ImageWithoutProducers,
    /// A deleted topic's replicas stay in storage.
    ReplicaNotDeleted,
    /// A repeated batch is answered with an offset that is not the first append's.
    DuplicateOffsetWrong,
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
