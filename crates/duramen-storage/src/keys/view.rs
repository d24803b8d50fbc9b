//! Tables and memtable read as one index, and a memtable written as a table.

use std::ops::ControlFlow;

use bytes::Bytes;

use super::block::{self, FactsWriter, Kind};
use super::expiries::Expiry;
use super::memtable::{Left, Memtable, NamedQueue, Posting};
use super::statements::{Fact, Said, Standing};
use super::table::{Cursor, IndexError, Table, TableHeader};
use super::writing::TableWriter;
use crate::Disk;

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
        for posting in postings {
            writer.posting(name, *posting)?;
        }
    }
    writer.end_postings()?;
    for (name, _, facts) in memtable.all() {
        let mut body = FactsWriter::new(header.from);
        for fact in facts {
            body.push(fact);
        }
        if let Some(body) = body.end() {
            writer.facts(name, &body)?;
        }
    }
    writer.masks(memtable.masks());
    for expiry in memtable.expiries() {
        writer.expiry(*expiry);
    }
    writer.end()
}

/// The index at one state: tables that adjoin, oldest first, and the memtable behind them.
#[derive(Clone, Copy, Debug)]
pub struct View<'a, D: Disk> {
    tables: &'a [Table<D>],
    memtable: &'a Memtable,
    /// Offset below which facts do not count.
    start: i64,
}

impl<'a, D: Disk> View<'a, D> {
    /// Joins tables and memtable.
    pub fn new(tables: &'a [Table<D>], memtable: &'a Memtable) -> Self {
        let ends = tables.iter().map(|table| table.header().to);
        let begins = tables.iter().skip(1).map(|table| table.header().from);
        for (end, begin) in ends.zip(begins.chain([memtable.from()])) {
            assert_eq!(end, begin, "the parts of an index adjoin");
        }
        Self { tables, memtable, start: 0 }
    }

    /// Leaves out facts below the log's first offset. What took their place may be erased, and they must not come back.
    pub(crate) fn since(self, start: i64) -> Self {
        Self { start, ..self }
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

    /// Returns the last posting of a queue whose batch begins below an offset.
    pub fn last_before(&self, name: &[u8], before: i64) -> Result<Option<Posting>, IndexError> {
        let newest = self.memtable.postings(name, before - 1);
        if let Some(last) = newest.iter().rfind(|it| it.base_offset < before) {
            return Ok(Some(*last));
        }
        for table in self.tables.iter().rev().filter(|it| it.header().from < before) {
            let mut found = Vec::new();
            table.postings(name, before - 1, 1, &mut found)?;
            if let Some(last) = found.pop().filter(|it| it.base_offset < before) {
                return Ok(Some(last));
            }
        }
        Ok(None)
    }

    /// Returns all facts about a queue, newest first.
    pub fn facts(&self, name: &[u8]) -> Result<Vec<Fact>, IndexError> {
        let mut facts: Vec<_> = self.memtable.facts(name).iter().rev().cloned().collect();
        for table in self.tables.iter().rev() {
            facts.extend(table.facts(name)?.into_iter().rev());
        }
        facts.retain(|fact| fact.offset >= self.start);
        Ok(facts)
    }

    /// Returns what a log has to say again of up to `limit` queues before it loses its records below an offset.
    pub fn kept(&self, below: i64, limit: usize) -> Result<Vec<(Bytes, Said)>, IndexError> {
        let (mut kept, mut queues) = (Vec::new(), 0);
        self.all_facts(|name, facts| {
            // A fact that nobody can read stopped the index before.
            let standing = Standing::of(&facts).unwrap_or_default();
            let before = kept.len();
            kept.extend(standing.below(below).map(|said| (name.clone(), said)));
            queues += usize::from(kept.len() > before);
            if queues < limit { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        Ok(kept)
    }

    /// Returns the base offsets of batches with records that are of no use at a time, in order.
    pub(crate) fn expired(&self, at_ms: i64) -> Result<Vec<i64>, IndexError> {
        let mut expired = Vec::new();
        for table in self.tables.iter().filter(|it| it.earliest_ms() <= at_ms) {
            expired
                .extend(table.expiries()?.filter(|it| it.at_ms <= at_ms).map(|it| it.base_offset));
        }
        let newest = self.memtable.expiries().iter().filter(|it| it.at_ms <= at_ms);
        expired.extend(newest.map(|it| it.base_offset));
        Ok(expired)
    }

    /// Returns the batch that expires first, of those at or behind `below` and those that expire after `after_ms`.
    /// Leaves out batches below the log start.
    pub(crate) fn next_expiry(
        &self,
        start: i64,
        below: i64,
        after_ms: i64,
    ) -> Result<Option<Expiry>, IndexError> {
        let counts = |it: &Expiry| {
            it.base_offset >= start && (it.base_offset >= below || it.at_ms > after_ms)
        };
        let newest = self.memtable.expiries().iter().copied().filter(counts);
        let mut first = newest.min_by_key(|it| it.at_ms);
        for table in self.tables {
            if table.earliest_ms() < first.map_or(i64::MAX, |it| it.at_ms) {
                let here = table.expiries()?.filter(counts);
                first = here.chain(first).min_by_key(|it| it.at_ms);
            }
        }
        Ok(first)
    }

    /// Hands the facts about each queue that has some to `take`, in order of names, until that breaks off.
    pub(crate) fn all_facts(
        &self,
        mut take: impl FnMut(&Bytes, Vec<Fact>) -> ControlFlow<()>,
    ) -> Result<(), IndexError> {
        let mut cursors = Vec::new();
        for table in self.tables {
            cursors.push(Cursor::seek(table, Kind::Facts, &[])?);
        }
        let mut newest = self.memtable.all().filter(|(_, _, facts)| !facts.is_empty()).peekable();
        loop {
            let in_tables = cursors.iter().filter_map(|cursor| Some(cursor.entry()?.0));
            let Some(name) = in_tables.chain(newest.peek().map(|it| it.0)).min() else { break };
            let name = Bytes::copy_from_slice(name);
            let here = newest.next_if(|(it, ..)| *it == name);
            let mut facts = here.map_or_else(Vec::new, |(_, _, facts)| facts.to_vec());
            for cursor in &mut cursors {
                if let Some((_, body)) = cursor.entry().filter(|it| it.0 == name) {
                    let (body, table) = (body.clone(), cursor.table());
                    block::facts(body, &table.range(), |fact| facts.push(fact))
                        .map_err(|why| table.damaged_block(why))?;
                    cursor.advance()?;
                }
            }
            facts.retain(|fact| fact.offset >= self.start);
            if take(&name, facts).is_break() {
                break;
            }
        }
        Ok(())
    }

    /// Returns up to `limit` names that begin with `prefix` and are behind `after`, in order, with their counts. Names
    /// whose records were all taken away are left out.
    pub fn names(
        &self,
        prefix: &[u8],
        after: Option<&[u8]>,
        (limit, left): (usize, Left),
    ) -> Result<Vec<NamedQueue>, IndexError> {
        let start = after.map_or(prefix, |after| after.max(prefix));
        let mut cursors = Vec::new();
        for table in self.tables {
            for kind in [Kind::Postings, Kind::Facts] {
                cursors.push((kind, Cursor::seek(table, kind, start)?));
            }
        }
        let mut newest = self.memtable.names(start, left).peekable();
        let mut queues = Vec::new();
        while queues.len() < limit {
            let in_tables = cursors.iter().filter_map(|(_, cursor)| Some(cursor.entry()?.0));
            let name = in_tables.chain(newest.peek().map(|it| &it.name[..])).min();
            let Some(name) = name.filter(|name| name.starts_with(prefix)) else { break };
            let name = Bytes::copy_from_slice(name);
            let here = newest.next_if(|queue| queue.name == name);
            let mut queue = here.unwrap_or(NamedQueue { name, ..NamedQueue::default() });
            for (kind, cursor) in &mut cursors {
                while let Some((_, body)) = cursor.entry().filter(|it| it.0 == queue.name) {
                    match kind {
                        Kind::Postings => {
                            queue.batches += body.count;
                            queue.records += body.records;
                        }
                        Kind::Facts => {
                            let (body, table) = (body.clone(), cursor.table());
                            block::facts(body, &table.range(), |fact| queue.add(&fact, left))
                                .map_err(|why| table.damaged_block(why))?;
                        }
                    }
                    cursor.advance()?;
                }
            }
            let is_gone = queue.withdrawn > 0 && queue.withdrawn >= queue.records;
            if after.is_none_or(|after| queue.name > after) && !is_gone {
                queues.push(queue);
            }
        }
        Ok(queues)
    }
}
