//! # Room card: sim
//!
//! Purpose:    judge the log: run its real code on a disk and clients that are out to break it.
//! Owns:       the simulated disk, the workloads, the oracles, the planted bugs.
//! Interface:  the binary `duramen-sim` (`cargo sim`); [`SimDisk`] for other tests.
//! Invariants: same seed, same trace; faults stay within the atlas (`docs/testing.md`); every
//!             failure prints commit, seed and command.
//! Never:      production code, wall clocks, threads within a run.
//! Tests:      `tests/`.
//! Start at:   `main.rs`.

pub mod batch;
pub mod cluster_harness;
mod compacting;
pub mod cores;
pub mod disk;
pub mod disk_suite;
mod erased;
pub mod failure;
mod machine;
pub mod model;
pub mod node_harness;
pub mod planted;
pub mod prng;
mod report;
pub mod scenario;
pub mod storage_harness;
pub mod trace;
mod waits;

pub use disk::{Faults, Sabotage, SimDisk};
pub use prng::Prng;
