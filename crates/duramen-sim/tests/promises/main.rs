//! What the log, the node and the cluster promise, over the simulated disk. One binary: each links the whole node.

mod access;
mod cluster;
mod compaction;
mod determinism;
mod disk;
mod erasing;
mod holds;
mod keys;
mod manifest;
mod mending;
mod node;
mod rig;
mod storage;
mod tampering;
mod trims;
