//! # Room card: groups
//!
//! Purpose:    consumer groups: clients that share partitions among themselves.
//! Owns:       [`Membership`], one group of the classic protocol. (A *group* without more is a Raft group, `group.rs`.)
//! Interface:  [`Membership`]'s functions for what members ask; [`Membership::take_effects`] for what follows.
//! Invariants: a request that is not answered at once is answered exactly once later; what members learn of an
//!             assignment was stored before.
//! Never:      clocks, chance, offsets, the bytes of a log: time, fresh ids and results of storing are handed in.
//! Tests:      `groups/membership/tests.rs`. No API leads here yet.
//! Start at:   `groups/membership.rs`.

mod membership;
#[expect(dead_code, reason = "the node does not use it yet")]
pub(crate) mod records;
mod roster;

pub use membership::{Caller, Effect, Membership, Rules, State, Stored, StoredMember, Ticket};
