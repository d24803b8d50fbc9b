//! # Room card: storage
//!
//! Purpose:    keep every replica's log on one node durable, through one journal.
//! Owns:       the journal, segments and their indexes, replica state on disk, recovery.
//! Interface:  [`Storage::open`], [`Storage::submit`], [`Storage::begin_round`],
//!             [`Storage::write_segments`], [`Storage::on_sync`], [`Reader`], [`Disk`].
//! Invariants: a replica's log is a gapless run of whole batches. Storage reports a write as persisted only after all
//!             its syncs have returned. After a failed write or sync, storage writes nothing more.
//! Never:      requests, Raft, threads, async, clocks.
//! Tests:      the unit tests here; `duramen-sim` crashes this crate's real code on a simulated disk.
//! Start at:   [`Storage::begin_round`].

pub mod backup;
mod catalog;
mod checkpoint;
pub mod compaction;
pub mod describe;
pub mod descriptor;
pub mod disk;
mod encoding;
mod entry;
mod error;
mod format;
#[doc(hidden)]
pub mod fuzzing;
pub mod history;
mod holds;
pub mod indexing;
pub mod journal;
pub mod keys;
mod manifest;
pub mod mending;
pub mod op;
mod options;
pub mod reader;
mod record;
mod recovery;
mod replica;
mod replica_state;
mod reserve;
pub mod sabotage;
pub mod scrub;
mod set_aside;
pub mod staging;
pub mod storage;
mod sync;

pub use descriptor::Descriptor;
pub use disk::Disk;
pub use format::{MANIFEST, SET_ASIDE};
pub use op::{Done, Op, OpKind, ReplicaId};
pub use options::Options;
pub use reader::Reader;
pub use storage::{Recovered, Storage};
