//! # Room card: transactions
//!
//! Purpose:    transactions of producers: their writes to several partitions stand as a whole, or not at all.
//! Owns:       [`coordinator::Coordinator`], all transactional ids of one partition of `__transaction_state`; the
//!             records of its state.
//! Interface:  the coordinator's functions for requests of producers, partitions and administrators; its outputs for
//!             the effects.
//! Invariants: a decision is durable before any client learns of it, or any log gets its marker; it is never changed.
//! Never:      clocks, chance, the bytes of a log, the content of partitions (see `partition/transactions.rs`).
//! Tests:      `transactions/coordinator/tests.rs`; `node/tests/transactions.rs`; `duramen-sim`.
//! Start at:   `transactions/coordinator.rs`.

pub(crate) mod coordinator;
pub(crate) mod records;
