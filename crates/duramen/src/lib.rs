//! # Room card: duramen
//!
//! Purpose:    the binary: the node joined to a machine, and what people type.
//! Owns:       all I/O: sockets, the real disk, clocks, threads, configuration, commands.
//! Interface:  [`cli::main`]; [`server::start`] for tests.
//! Invariants: one thread steps the node; one thread writes; every queue is bounded.
//! Never:      a decision that changes what a client may observe (that is the broker's).
//! Tests:      `tests/` starts the real binary; unit tests in the modules.
//! Start at:   [`server::start`].

pub mod cli;
pub mod config;
pub mod proto;
pub mod server;
pub mod telemetry;
