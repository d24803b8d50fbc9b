//! # Room card: groups
//!
//! Purpose:    consumer groups: clients that share partitions among themselves.
//! Owns:       `Coordinator`, all groups of one partition of `__consumer_offsets`; `Membership`, one group of the
//!             classic protocol; `ConsumerGroup`, one of the consumer protocol; `ShareGroup`, one share group; the
//!             committed offsets of a group; the records of all this. (A *group* without more is a Raft group,
//!             `raft.rs`.)
//! Interface:  `Coordinator`'s functions for requests of clients; its outputs for the effects.
//! Invariants: each request gets exactly one answer; an assignment that members learn, and an offset that any client
//!             learns, was durable before.
//! Never:      clocks, chance, the bytes of a log: the caller hands in time, fresh ids and results of appends.
//! Tests:      `groups/coordinator/tests.rs`, `groups/membership/tests.rs`, `groups/consumer/tests.rs`;
//!             `node/tests/groups.rs`.
//! Start at:   `groups/coordinator.rs`.

pub(crate) mod consumer;
pub(crate) mod coordinator;
mod membership;
mod offsets;
pub(crate) mod records;
mod roster;
mod rules;
mod share;

pub(crate) use consumer::Refusal;
pub(crate) use membership::Caller;
pub use rules::{Assignor, ConsumerRules, Migration, Rules, ShareRules};
