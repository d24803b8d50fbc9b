//! # Room card: transactions
//!
//! Purpose:    transactions of producers: what they write to several partitions stands as a whole, or not at all.
//! Owns:       [`coordinator::Coordinator`], all transactional ids of one partition of `__transaction_state`; the records
//!             that say what it knows.
//! Interface:  the coordinator's functions for what producers, partitions and administrators ask; its outputs for what follows.
//! Invariants: a decision is durable before anybody is told of it, or any log is marked with it; it is never changed.
//! Never:      clocks, chance, the bytes of a log, what partitions hold (see `partition/transactions.rs`).
//! Tests:      `transactions/coordinator/tests.rs`; `node/tests/transactions.rs`; `duramen-sim`.
//! Start at:   `transactions/coordinator.rs`.

pub(crate) mod coordinator;
pub(crate) mod records;
