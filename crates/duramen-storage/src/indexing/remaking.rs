//! # Room card: remaking
//!
//! Purpose:    make tables anew whose log was erased since: names are data, too.
//! Owns:       the tables of one index that wait, and those that are made.
//! Interface:  [`Remaking::begin`], [`Remaking::step`].
//! Invariants: all tables of an index change at once. A table loses a posting only if its batch has no record of the
//!             queue any more. It loses a fact only if the log does not say it any more. Only segments that the erasure
//!             wrote anew are asked.
//! Never:      the choice of records that are erased (see `compaction`).
//! Tests:      `duramen/tests/native/erasure.rs`; `duramen-sim`, scenario `node`.
//! Start at:   [`Remaking::step`].
//!
//! Only a queue with facts has lost records, or one with records that expire. So postings of other queues are copied
//! unseen, unless batches of the table expire.

use std::sync::Arc;

use duramen_protocol::batch::BatchView;
use duramen_protocol::records::Records;
use rangemap::RangeSet;

use super::reading::{RECORD_BYTES_MAX, first_expiry};
use crate::catalog::LogFiles;
use crate::format::GIVEN;
use crate::keys::{
    Expiry, Fact, Index, IndexError, Masks, Merge, Merged, Posting, Question, Remains, Said,
    Statement, Table, statement_with, statements_of,
};
use crate::op::Compacted;
use crate::reader::{ReadError, Reader};
use crate::sabotage::{self, Bug};
use crate::{Disk, ReplicaId};

/// See the room card.
#[derive(Debug)]
pub(super) struct Remaking<D: Disk> {
    index: Arc<Index<D>>,
    erased: Compacted,
    waiting: Vec<Table<D>>,
    made: Vec<Table<D>>,
    at_hand: Option<Merge<D>>,
}

/// Ranges of the segments that entries behind `since` have written anew.
fn rewritten<D: Disk>(files: &LogFiles<D>, since: u64) -> RangeSet<i64> {
    let segments = files.segments();
    let ends = segments.iter().skip(1).map(|next| next.base_offset).chain([i64::MAX]);
    let all = segments.iter().zip(ends);
    let is_newer = |generation: u64| generation & !GIVEN > since;
    let newer = all.filter(|(segment, _)| is_newer(segment.generation));
    newer.map(|(segment, end)| segment.base_offset..end).collect()
}

impl<D: Disk> Remaking<D> {
    /// Begins with all tables of an index that the last erasure of its log concerns.
    pub(super) fn begin(index: Arc<Index<D>>, files: &LogFiles<D>) -> Self {
        let erased = files.compacted();
        let is_stale = |table: &&Table<D>| {
            let header = table.header();
            header.erased < erased.index
                && rewritten(files, header.erased).overlaps(&(header.from..header.to))
        };
        let mut waiting: Vec<_> = index.tables().iter().filter(is_stale).cloned().collect();
        if sabotage::is(Bug::TablesNotRemade) {
            waiting.clear();
        }
        Self { index, erased, waiting, made: Vec::new(), at_hand: None }
    }

    /// Makes a part of a table, and at the end shows all of them. Tells whether it has ended. After an error nothing
    /// has changed.
    pub(super) fn step(
        &mut self,
        reader: &Reader<D>,
        replica: ReplicaId,
        (block_bytes, budget_bytes): (usize, usize),
    ) -> Result<bool, IndexError> {
        let merge = if let Some(merge) = self.at_hand.take() {
            merge
        } else if let Some(table) = self.waiting.pop() {
            self.remake(reader, replica, table, block_bytes)?
        } else {
            self.end(reader, replica)?;
            return Ok(true);
        };
        match merge.step(budget_bytes)? {
            Merged::More(merge) => self.at_hand = Some(*merge),
            Merged::Done(table) => self.made.push(table),
        }
        Ok(false)
    }

    fn remake(
        &self,
        reader: &Reader<D>,
        replica: ReplicaId,
        table: Table<D>,
        block_bytes: usize,
    ) -> Result<Merge<D>, IndexError> {
        let files = reader.catalog().get(replica).ok();
        let anew = files.as_ref().map(|files| rewritten(files, table.header().erased));
        let start = files.and_then(|files| files.start_offset()).unwrap_or(0);
        let mut log =
            Log { reader: reader.clone(), replica, anew: anew.unwrap_or_default(), last: None };
        let (index, below, path) =
            (Arc::clone(&self.index), self.erased.below, table.path().to_owned());
        let may_expire = table.earliest_ms() < i64::MAX;
        let ask = move |question: Question<'_>| {
            let unreadable = |_| IndexError::Unreadable { path: path.clone() };
            let (name, postings, facts) = match question {
                Question::Name(name, postings, facts) => (name, postings, facts),
                Question::Expiry(expiry) => {
                    if let Some(before) = expiry.take_if(|it| log.anew.contains(&it.base_offset)) {
                        *expiry = log.expiry_at(before.base_offset).map_err(unreadable)?;
                    }
                    return Ok(());
                }
            };
            let is_asked = |at: i64| at < below && log.anew.contains(&at);
            if !postings.iter().any(|it| is_asked(it.base_offset))
                && !facts.iter().any(|it| is_asked(it.offset))
            {
                return Ok(());
            }
            let may_lose = may_expire || !facts.is_empty() || !index.facts(name)?.0.is_empty();
            let mut left = Vec::new();
            for posting in postings.drain(..) {
                if may_lose && log.anew.contains(&posting.base_offset) {
                    let records = log.records_of(name, posting.base_offset).map_err(unreadable)?;
                    left.extend((records > 0).then_some(Posting { records, ..posting }));
                } else {
                    left.push(posting);
                }
            }
            *postings = left;
            let mut left = Vec::new();
            for fact in facts.drain(..) {
                let is_said = !log.anew.contains(&fact.offset)
                    || log.says(name, &fact).map_err(unreadable)?;
                left.extend(is_said.then_some(fact));
            }
            *facts = left;
            Ok(())
        };
        let remains = Remains { below, ask: Box::new(ask) };
        let limits = (start, block_bytes);
        Merge::remake(self.index.dir(), table, self.erased.index, limits, remains)
    }

    /// Shows the new tables.
    fn end(&mut self, reader: &Reader<D>, replica: ReplicaId) -> Result<(), IndexError> {
        let mut masks = Masks::default();
        self.index.all_facts(|_, facts| {
            for fact in facts.iter().filter(|fact| fact.offset >= self.erased.below) {
                let said = Said::of(fact).ok();
                said.iter().flat_map(Said::withdrawn).for_each(|offset| masks.insert(*offset));
            }
        })?;
        let made = std::mem::take(&mut self.made);
        let files = reader.catalog().get(replica).ok();
        let start = files.and_then(|files| files.start_offset()).unwrap_or(0);
        self.index.take_remade(reader.disk(), made, (start, self.erased, masks));
        Ok(())
    }

    pub(super) fn is_of(&self, index: &Arc<Index<D>>) -> bool {
        Arc::ptr_eq(&self.index, index)
    }
}

impl<D: Disk> Drop for Remaking<D> {
    fn drop(&mut self) {
        for table in &self.made {
            crate::keys::remove(table.disk(), table.path());
        }
    }
}

/// A log, as a remake asks it.
#[derive(Debug)]
struct Log<D: Disk> {
    reader: Reader<D>,
    replica: ReplicaId,
    /// Ranges of segments that were written anew.
    anew: RangeSet<i64>,
    /// The batch that was read last, and where it was looked for.
    last: Option<(i64, Option<BatchView>)>,
}

impl<D: Disk> Log<D> {
    /// Returns the batch that begins at an offset, if it is there.
    fn batch(&mut self, offset: i64) -> Result<Option<&BatchView>, ReadError> {
        if self.last.as_ref().is_none_or(|(at, _)| *at != offset) {
            let found = self.reader.locate(self.replica, offset, i64::MAX, 1, true);
            let found = match found {
                Err(ReadError::OutOfRange) => None,
                found => found?,
            };
            let bytes = found.map(|range| self.reader.read(self.replica, &range)).transpose()?;
            let batch = bytes.and_then(|bytes| BatchView::parse(&bytes).ok());
            let batch = batch.filter(|batch| batch.header().base_offset == offset);
            self.last = Some((offset, batch));
        }
        Ok(self.last.as_ref().and_then(|(_, batch)| batch.as_ref()))
    }

    /// Counts the records of a queue in the batch at an offset.
    fn records_of(&mut self, name: &[u8], offset: i64) -> Result<u32, ReadError> {
        let Some(batch) = self.batch(offset)? else { return Ok(0) };
        let Ok(records) = Records::of(batch, RECORD_BYTES_MAX) else { return Ok(1) };
        let own = records.keys().filter(|it| matches!(it, Ok(it) if it.key == Some(name)));
        Ok(u32::try_from(own.count()).unwrap_or(u32::MAX))
    }

    /// Returns when the batch at an offset expires, if it is there and does.
    fn expiry_at(&mut self, base_offset: i64) -> Result<Option<Expiry>, ReadError> {
        let Some(batch) = self.batch(base_offset)? else { return Ok(None) };
        let records = Records::of(batch, RECORD_BYTES_MAX).ok();
        let at_ms = records.and_then(|it| first_expiry(&it).ok()).flatten();
        Ok(at_ms.map(|at_ms| Expiry { base_offset, at_ms }))
    }

    /// Tells whether the batch at a fact's offset still states it.
    fn says(&mut self, name: &[u8], fact: &Fact) -> Result<bool, ReadError> {
        let Some(batch) = self.batch(fact.offset)? else { return Ok(false) };
        let is_it = |it: &Statement| it.queue == name && it.said.kind() == fact.kind;
        if batch.header().attributes.is_control() {
            let statements = statements_of(batch).ok().flatten();
            return Ok(statements.is_none_or(|all| all.iter().any(is_it)));
        }
        let Ok(records) = Records::of(batch, RECORD_BYTES_MAX) else { return Ok(true) };
        let first = records.iter().next().and_then(Result::ok);
        let made = first.map(|first| statement_with(batch.header(), &first));
        Ok(made.and_then(Result::ok).flatten().is_some_and(|it| is_it(&it)))
    }
}
