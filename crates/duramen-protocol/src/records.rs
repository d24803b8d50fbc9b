//! # Room card: records
//!
//! Purpose:    the records inside a batch: reading them, checking a producer's batch, building new ones.
//! Owns:       [`Record`], [`Records`], [`validate`] and [`sole_batch`] (what a produce must satisfy),
//!             [`BatchBuilder`], [`retain`] (what compaction leaves), [`recompress`], lookup by timestamp.
//! Interface:  [`sole_batch`] then [`validate`] on produce; [`Records::of`] to read; [`find_timestamp`].
//! Invariants: records of an uncompressed batch are read in place, without copies; those of a compressed one after one
//!             bounded decompression. A check allocates nothing else, but for the numbers of a batch's keys if it has
//!             several.
//! Never:      offsets assigned, producer sequences compared, clocks: those are the partition's.
//! Tests:      `records/tests.rs`; `fuzz/` target `batch_reader`.
//! Start at:   [`validate`].

mod builder;
mod error;
mod lookup;
mod retain;
mod schedule;
mod validate;
mod walk;

pub use builder::{BatchBuilder, NewRecord};
pub use error::RecordError;
pub use lookup::{Found, find_max_timestamp, find_timestamp};
pub use retain::{Retained, recompress, retain};
pub use schedule::{
    DELIVER_AT_HEADER, EXPIRES_HEADER, PRIORITY_HEADER, PRIORITY_MAX, PRIORITY_USUAL, Schedule,
};
pub use validate::{
    FENCE_HEADER, ID_HEADER, IF_LAST_HEADER, Keys, Limits, NUMBERS_MAX, Places, RecordSummary,
    sole_batch, summarize, validate, validate_with,
};
pub use walk::{Header, HeaderWalk, Headers, Keyed, Record, Records, Walk};

#[cfg(test)]
mod golden;
#[cfg(test)]
mod tests;
