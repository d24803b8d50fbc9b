//! # Room card: merge
//!
//! Purpose:    make one table of several that adjoin, or one without what was erased, in steps of bounded work.
//! Owns:       the new table until it has its name.
//! Interface:  [`Merge::begin`], [`Merge::remake`], [`Merge::step`].
//! Invariants: the new table says of its range what the old ones say, without postings of batches that are gone. A
//!             merge leaves all facts, and masks of offsets that are there. Memory holds one block of each table, or
//!             one entry of facts. Readers see none of it before the end.
//! Never:      the choice of tables, the removal of the old ones; the log, which a remake asks by [`Remains`].
//! Tests:      `keys/tests.rs`.
//! Start at:   [`Merge::step`].

use std::fmt;

use super::block::{self, FactsWriter, Kind};
use super::expiries::{Expiries, Expiry};
use super::masks::Masks;
use super::memtable::Posting;
use super::statements::{Fact, Said};
use super::table::{Cursor, IndexError, Table, TableHeader};
use super::writing::TableWriter;
use crate::Disk;
use crate::sabotage::{self, Bug};

/// Bytes that a look at the log for one batch counts in a step.
const LOOK_BYTES: usize = 4096;

/// Part of a table, of which the log tells the rest.
pub(crate) enum Question<'a> {
    /// Postings and facts about a name. Those that are gone are taken out.
    Name(&'a [u8], &'a mut Vec<Posting>, &'a mut Vec<Fact>),
    /// Batch that expires: `None` becomes of it if it is gone.
    Expiry(&'a mut Option<Expiry>),
}

/// Answer of a log to the question what is left.
type Ask = Box<dyn FnMut(Question<'_>) -> Result<(), IndexError> + Send>;

/// Part of a table that an erasure has left.
pub(crate) struct Remains {
    /// Offset below which facts mask nothing any more.
    pub(crate) below: i64,
    /// Takes out what is gone.
    pub(crate) ask: Ask,
}

impl fmt::Debug for Remains {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Remains").field("below", &self.below).finish_non_exhaustive()
    }
}

/// Merge that has begun.
#[derive(Debug)]
pub struct Merge<D: Disk> {
    tables: Vec<Table<D>>,
    /// Offset at which the first batch that is still there begins.
    first_batch: i64,
    range_from: i64,
    kind: Kind,
    cursors: Vec<Cursor<D>>,
    writer: TableWriter<D>,
    /// Batches that expire, of each table that was not walked over, newest first.
    expiries: Option<Vec<Expiries>>,
    /// The part that is left of the table, if it is only made anew, and the offsets that it masks.
    remains: Option<(Remains, Masks)>,
}

/// Outcome of a step.
#[derive(Debug)]
pub enum Merged<D: Disk> {
    /// The merge goes on.
    More(Box<Merge<D>>),
    /// The merge has ended: the table takes the place of those that it was made of.
    Done(Table<D>),
}

impl<D: Disk> Merge<D> {
    /// Begins a merge of adjoining tables of one replica, oldest first. Postings of batches that begin below
    /// `first_batch` are left out. The caller names a batch's base offset: a batch may reach across the log start.
    pub fn begin(
        dir: &str,
        tables: Vec<Table<D>>,
        first_batch: i64,
        block_bytes_max: usize,
    ) -> Result<Self, IndexError> {
        assert!(tables.len() > 1, "a merge takes several tables");
        let (oldest, newest) = (tables[0].header(), tables[tables.len() - 1].header());
        let erased = tables.iter().map(|table| table.header().erased).min().unwrap_or(0);
        for pair in tables.windows(2) {
            assert_eq!(pair[0].header().to, pair[1].header().from, "merged tables adjoin");
            let [before, after] = [0, 1].map(|at| pair[at].header());
            let is_same = before.topic_id == after.topic_id && before.partition == after.partition;
            assert!(is_same, "merged tables are of one partition");
        }
        let header = TableHeader { from: oldest.from, erased, ..*newest };
        Self::new(dir, tables, header, (first_batch, block_bytes_max), None)
    }

    /// Begins to make a table anew, of a log that the entry `erased` has erased.
    pub(crate) fn remake(
        dir: &str,
        table: Table<D>,
        erased: u64,
        limits: (i64, usize),
        remains: Remains,
    ) -> Result<Self, IndexError> {
        assert!(table.header().erased < erased, "an erasure is taken into account once");
        let header = TableHeader { erased, ..*table.header() };
        Self::new(dir, vec![table], header, limits, Some((remains, Masks::default())))
    }

    fn new(
        dir: &str,
        tables: Vec<Table<D>>,
        header: TableHeader,
        (first_batch, block_bytes_max): (i64, usize),
        remains: Option<(Remains, Masks)>,
    ) -> Result<Self, IndexError> {
        let writer = TableWriter::begin(tables[0].disk(), dir, header, block_bytes_max)?;
        let cursors = cursors(&tables, Kind::Postings)?;
        let (range_from, kind) = (header.from, Kind::Postings);
        let expiries = None;
        Ok(Self { tables, first_batch, range_from, kind, cursors, writer, expiries, remains })
    }

    /// Merges entries until they have `budget_bytes`, and at least one. The last step builds the filter and syncs.
    /// After an error the merge is over, and the old tables stay.
    pub fn step(mut self, budget_bytes: usize) -> Result<Merged<D>, IndexError> {
        let mut spent = 0;
        loop {
            let all = self.cursors.iter().enumerate();
            let names = all.filter_map(|(at, cursor)| Some((cursor.entry()?.0, at)));
            if let Some((name, at)) = names.min().map(|(name, at)| (name.to_vec(), at)) {
                spent += match self.kind {
                    Kind::Postings => self.merge_postings(&name, at)?,
                    Kind::Facts => self.merge_facts(&name)?,
                };
                if spent >= budget_bytes {
                    return Ok(Merged::More(Box::new(self)));
                }
                continue;
            }
            if self.kind == Kind::Facts || sabotage::is(Bug::MergeDropsFacts) {
                if self.kind == Kind::Postings {
                    self.writer.end_postings()?;
                    self.kind = Kind::Facts;
                }
                if !self.copy_expiries(budget_bytes.saturating_sub(spent))? {
                    return Ok(Merged::More(Box::new(self)));
                }
                if !sabotage::is(Bug::MergeDropsMasks) {
                    self.writer.masks(&self.masks());
                }
                return Ok(Merged::Done(self.writer.end()?));
            }
            self.writer.end_postings()?;
            self.kind = Kind::Facts;
            self.cursors = cursors(&self.tables, Kind::Facts)?;
        }
    }

    /// Returns the offsets that its tables mask, but for those that are gone.
    fn masks(&self) -> Masks {
        if let Some((_, masks)) = &self.remains {
            return masks.clone();
        }
        let mut masks = Masks::default();
        for table in &self.tables {
            masks.add(table.masks());
        }
        masks.trim(self.first_batch);
        masks
    }

    /// Copies expiries until they have so many bytes. Tells whether all are copied.
    fn copy_expiries(&mut self, budget_bytes: usize) -> Result<bool, IndexError> {
        let mut walks = match self.expiries.take() {
            Some(walks) => walks,
            None => self.tables.iter().rev().map(Table::expiries).collect::<Result<_, _>>()?,
        };
        let mut spent = 0;
        while let Some(walk) = walks.last_mut() {
            let Some(expiry) = walk.next() else {
                walks.pop();
                continue;
            };
            let mut left = (expiry.base_offset >= self.first_batch).then_some(expiry);
            spent += size_of::<Expiry>();
            if let (Some((remains, _)), Some(_)) = (&mut self.remains, left) {
                spent += LOOK_BYTES;
                (remains.ask)(Question::Expiry(&mut left))?;
            }
            if let Some(left) = left {
                self.writer.expiry(left);
            }
            if spent >= budget_bytes {
                self.expiries = Some(walks);
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Copies one entry of a table, the oldest of its name that is left. Returns the bytes that it took.
    fn merge_postings(&mut self, name: &[u8], at: usize) -> Result<usize, IndexError> {
        let cursor = &mut self.cursors[at];
        let body = cursor.entry().expect("the name is of its entry").1.clone();
        let spent = name.len() + body.list.len();
        let mut postings = Vec::new();
        block::postings(body, &cursor.table().range(), |posting| postings.push(posting))
            .map_err(|why| cursor.table().damaged_block(why))?;
        cursor.advance()?;
        postings.retain(|posting| posting.base_offset >= self.first_batch);
        if let Some((remains, _)) = &mut self.remains {
            (remains.ask)(Question::Name(name, &mut postings, &mut Vec::new()))?;
        }
        if sabotage::is(Bug::MergeDropsPosting) {
            postings.pop();
        }
        for posting in postings {
            self.writer.posting(name, posting)?;
        }
        Ok(spent)
    }

    /// Writes the facts about one name, made of those of all tables. Returns the bytes that they took.
    fn merge_facts(&mut self, name: &[u8]) -> Result<usize, IndexError> {
        let mut facts = Vec::new();
        let mut spent = name.len();
        for cursor in &mut self.cursors {
            let Some((_, body)) = cursor.entry().filter(|(found, _)| *found == name) else {
                continue;
            };
            spent += body.list.len();
            block::facts(body.clone(), &cursor.table().range(), |fact| facts.push(fact))
                .map_err(|why| cursor.table().damaged_block(why))?;
            cursor.advance()?;
        }
        if let Some((remains, masks)) = &mut self.remains {
            (remains.ask)(Question::Name(name, &mut Vec::new(), &mut facts))?;
            for fact in facts.iter().filter(|fact| fact.offset >= remains.below) {
                let said = Said::of(fact).ok();
                said.iter().flat_map(Said::withdrawn).for_each(|offset| masks.insert(*offset));
            }
        }
        let mut body = FactsWriter::new(self.range_from);
        for fact in &facts {
            body.push(fact);
        }
        if let Some(body) = body.end() {
            self.writer.facts(name, &body)?;
        }
        Ok(spent)
    }
}

fn cursors<D: Disk>(tables: &[Table<D>], kind: Kind) -> Result<Vec<Cursor<D>>, IndexError> {
    tables.iter().map(|table| Cursor::seek(table, kind, &[])).collect()
}
