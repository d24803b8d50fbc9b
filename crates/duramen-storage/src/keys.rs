//! # Room card: keys
//!
//! Purpose:    the queue index of one replica: which batches of its log hold records of which key. Also what the log
//!             says about each key as a whole.
//! Owns:       its newest part in memory, its tables on disk, the merges of tables.
//! Interface:  [`Index`] for readers. [`Memtable`], [`flush`], [`Table`], [`Merge`] and [`View`] are its parts.
//! Invariants: the log is the truth, and the index can be thrown away. The index may name a batch whose records are
//!             gone. Of the offsets below the cursor no record is missing from it. A damaged block is an error. An
//!             offset that the log took away below the cursor is masked, whatever tables are lost meanwhile.
//! Never:      the log, threads, clocks; the choice when to flush or merge (see `indexing`).
//! Tests:      `keys/tests.rs`, `duramen-sim/tests/promises/keys.rs`, `tests/formats`.
//! Start at:   [`Index::postings`].
//!
//! `memtable` is the newest part; `block`, `table` and `writing` are the file; `merge` makes one table of several.
//! `statements` are what the log says of a queue, `masks` the offsets that this takes away, `expiries` the batches
//! whose records end by themselves. `view` reads tables and
//! memtable as one; `index` is all of that for one replica.

mod block;
mod expiries;
mod index;
mod masks;
mod memtable;
mod merge;
mod statements;
mod table;
#[cfg(test)]
mod tests;
mod view;
mod writing;

pub use expiries::Expiry;
pub(crate) use index::{Batch, remove};
pub use index::{Erasable, Index};
pub use masks::Masks;
pub use memtable::{Left, Memtable, NamedQueue, Posting};
pub use merge::{Merge, Merged};
pub(crate) use merge::{Question, Remains};
pub(crate) use statements::batch_at;
pub use statements::{
    CUTS_AFTER_HEADER, Deleted, FACT_HEADER, Fact, REPLACES_HEADER, Replaced, Said, Standing,
    Statement, batch_of, is_replacement, passing_over, statement_with, statements_of,
};
pub use table::{IndexError, Table, TableHeader};
pub use view::{View, flush};

/// Most bytes of a block with several entries.
pub const BLOCK_BYTES_MAX: usize = 4096;
