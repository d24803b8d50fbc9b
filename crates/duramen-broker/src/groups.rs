//! # Room card: groups
//!
//! Purpose:    consumer groups: clients that share partitions among themselves.
//! Owns:       `Coordinator`, all groups of one partition of `__consumer_offsets`; [`Membership`], one group of the
//!             classic protocol; `ConsumerGroup`, one of the consumer protocol; `ShareGroup`, one that shares; the committed offsets of a group; the
//!             records that say all this.
//!             (A *group* without more is a Raft group, `group.rs`.)
//! Interface:  `Coordinator`'s functions for what clients ask; its outputs for what follows.
//! Invariants: a request is answered exactly once; what members learn of an assignment, and anybody of an offset, was
//!             durable before.
//! Never:      clocks, chance, the bytes of a log: time, fresh ids and results of appends are handed in.
//! Tests:      `groups/coordinator/tests.rs`, `groups/membership/tests.rs`, `groups/consumer/tests.rs`;
//!             `node/tests/groups.rs`.
//! Start at:   `groups/coordinator.rs`.

pub(crate) mod consumer;
pub(crate) mod coordinator;
mod membership;
mod offsets;
pub(crate) mod records;
mod roster;
mod share;

pub(crate) use consumer::Refusal;
pub use consumer::{Assignor, ConsumerRules, Migration};
pub use membership::{Caller, Effect, Membership, Rules, State, Stored, StoredMember, Ticket};
pub use share::ShareRules;
