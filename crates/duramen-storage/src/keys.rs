//! # Room card: keys
//!
//! Purpose:    the queue index of one replica: which batches of its log hold records of which key. Also what the log
//!             says about each key as a whole.
//! Owns:       its newest part in memory, its tables on disk, the merges of tables; the order of this work.
//! Interface:  [`Indexer`] for the thread that does the work; [`Index`] for readers. [`Memtable`], [`flush`], [`Table`],
//!             [`Merge`] and [`View`] are its parts.
//! Invariants: the log is the truth, and the index can be thrown away. The index may name a batch whose records are
//!             gone. Of the offsets below the cursor no record is missing from it. A damaged block is an error.
//! Never:      threads, clocks; the choice of a replica's committed end.
//! Tests:      `keys/tests.rs`, `duramen-sim/tests/promises/keys.rs`, `tests/formats`.
//! Start at:   [`Indexer::step`], [`Index::postings`].
//!
//! `memtable` is the newest part; `block`, `table` and `writing` are the file; `merge` makes one table of several.
//! `index` is all of that for one replica, and `indexer` leads the indexes of a node.

mod block;
mod index;
mod indexer;
mod memtable;
mod merge;
mod table;
#[cfg(test)]
mod tests;
mod writing;

use bytes::Bytes;

pub use index::Index;
pub use indexer::{Indexed, Indexer, Limits, Order, Step, Touched, queue_hash};
pub use memtable::{Fact, Memtable, NamedQueue, Posting};
pub use merge::{Merge, Merged};
pub use table::{IndexError, Table, TableHeader};

use crate::Disk;
use block::{FactsWriter, Kind, PostingsWriter};
use table::Cursor;
use writing::TableWriter;

/// Most bytes of a block with several entries.
pub const BLOCK_BYTES_MAX: usize = 4096;

/// Writes a memtable as a table, whose range is the memtable's, into a replica's directory.
pub fn flush<D: Disk>(
    disk: &D,
    dir: &str,
    header: TableHeader,
    memtable: &Memtable,
    block_bytes_max: usize,
) -> Result<Table<D>, IndexError> {
    let range = (memtable.from(), memtable.to());
    assert_eq!((header.from, header.to), range, "a table has the memtable's range");
    let mut writer = TableWriter::begin(disk, dir, header, block_bytes_max)?;
    for (name, postings, _) in memtable.all() {
        let mut body = PostingsWriter::new(header.from);
        for posting in postings {
            body.push(*posting);
        }
        let records = body.records();
        if let Some(body) = body.end() {
            writer.push(name, &body, records)?;
        }
    }
    writer.end_postings()?;
    for (name, _, facts) in memtable.all() {
        let mut body = FactsWriter::new(header.from);
        for fact in facts {
            body.push(fact);
        }
        if let Some(body) = body.end() {
            writer.push(name, &body, 0)?;
        }
    }
    writer.end()
}

/// The index at one state: tables that adjoin, oldest first, and the memtable behind them.
#[derive(Clone, Copy, Debug)]
pub struct View<'a, D: Disk> {
    tables: &'a [Table<D>],
    memtable: &'a Memtable,
}

impl<'a, D: Disk> View<'a, D> {
    /// Joins tables and memtable.
    pub fn new(tables: &'a [Table<D>], memtable: &'a Memtable) -> Self {
        let ends = tables.iter().map(|table| table.header().to);
        let begins = tables.iter().skip(1).map(|table| table.header().from);
        for (end, begin) in ends.zip(begins.chain([memtable.from()])) {
            assert_eq!(end, begin, "the parts of an index adjoin");
        }
        Self { tables, memtable }
    }

    /// Returns up to `limit` postings of a queue in order of offsets: all whose batches may hold an offset at or behind
    /// `at`. The first batch may end before it.
    pub fn postings(&self, name: &[u8], at: i64, limit: usize) -> Result<Vec<Posting>, IndexError> {
        let mut postings = Vec::new();
        for table in self.tables.iter().filter(|table| table.header().to > at) {
            if postings.len() < limit {
                table.postings(name, at, limit - postings.len(), &mut postings)?;
            }
        }
        let rest = limit - postings.len();
        postings.extend(self.memtable.postings(name, at).iter().take(rest));
        Ok(postings)
    }

    /// Returns all facts about a queue, newest first.
    pub fn facts(&self, name: &[u8]) -> Result<Vec<Fact>, IndexError> {
        let mut facts: Vec<_> = self.memtable.facts(name).iter().rev().cloned().collect();
        for table in self.tables.iter().rev() {
            facts.extend(table.facts(name)?.into_iter().rev());
        }
        Ok(facts)
    }

    /// Returns up to `limit` names that begin with `prefix` and are behind `after`, in order, with their counts.
    pub fn names(
        &self,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<NamedQueue>, IndexError> {
        let start = after.map_or(prefix, |after| after.max(prefix));
        let mut cursors = Vec::new();
        for table in self.tables {
            for kind in [Kind::Postings, Kind::Facts] {
                cursors.push((kind, Cursor::seek(table, kind, start)?));
            }
        }
        let mut newest = self.memtable.names(start).peekable();
        let mut queues = Vec::new();
        while queues.len() < limit {
            let in_tables = cursors.iter().filter_map(|(_, cursor)| Some(cursor.entry()?.0));
            let name = in_tables.chain(newest.peek().map(|it| &it.name[..])).min();
            let Some(name) = name.filter(|name| name.starts_with(prefix)) else { break };
            let name = Bytes::copy_from_slice(name);
            let here = newest.next_if(|queue| queue.name == name);
            let mut queue = here.unwrap_or(NamedQueue { name, batches: 0, records: 0, facts: 0 });
            for (kind, cursor) in &mut cursors {
                let entry = cursor.entry().filter(|(found, _)| *found == queue.name);
                let Some((_, body)) = entry else { continue };
                match kind {
                    Kind::Postings => {
                        queue.batches += body.count;
                        queue.records += body.records;
                    }
                    Kind::Facts => queue.facts += body.count,
                }
                cursor.advance()?;
            }
            if after.is_none_or(|after| queue.name > after) {
                queues.push(queue);
            }
        }
        Ok(queues)
    }
}
