//! # Room card: index
//!
//! Purpose:    the queue index of one replica while the node runs.
//! Owns:       the replica's tables, memtable and masks, behind one short lock; the tables in which readers found
//!             damage.
//! Interface:  [`Index::postings`], [`Index::names`], [`Index::facts`], [`Index::masks`] from any thread; the rest for
//!             `indexing`.
//! Invariants: an answer names the cursor up to which it is complete. One thread alone changes an index. No reader
//!             waits for the I/O of others. A damaged table goes, and all behind it.
//! Never:      the log, and the choice when to flush or merge (see `indexing`).
//! Tests:      `duramen-sim/tests/promises/keys.rs`.
//! Start at:   [`Index::postings`].

use std::collections::BTreeSet;
use std::io;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};

use bytes::Bytes;
use duramen_protocol::BatchHeader;

use super::expiries::Expiry;
use super::masks::Masks;
use super::memtable::{Left, Memtable, NamedQueue, Posting};
use super::statements::{Fact, Said, Statement};
use super::table::{IndexError, Table, TableHeader, failed};
use super::view::{View, flush};
use crate::disk::ignore_missing;
use crate::op::Compacted;
use crate::sabotage::{self, Bug};
use crate::{Disk, ReplicaId};

/// See the room card.
#[derive(Debug)]
pub struct Index<D: Disk> {
    replica: ReplicaId,
    topic_id: [u8; 16],
    partition: i32,
    dir: String,
    state: RwLock<State<D>>,
    /// Paths of tables in which a reader found damage.
    damaged: Mutex<BTreeSet<String>>,
    has_damage: AtomicBool,
}

#[derive(Debug)]
struct State<D: Disk> {
    /// Tables that adjoin, oldest first.
    tables: Arc<Vec<Table<D>>>,
    newest: Memtable,
    /// All that tables and memtable mask. It stays when damaged tables go.
    masks: Arc<Masks>,
    /// Bytes of the log that the memtable stands for.
    unflushed: u64,
    /// Index of the last Erase entry when the memtable began: it was read from no older segments.
    newest_erased: u64,
    /// Extent of the erasure that tables and memtable take into account.
    erased: Compacted,
    /// First offset of the log's segments.
    start: i64,
}

impl<D: Disk> State<D> {
    /// Begins another memtable.
    fn begin(&mut self, from: i64, erased: u64) {
        (self.newest, self.unflushed, self.newest_erased) = (Memtable::new(from), 0, erased);
    }
}

/// Statements that took records away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Erasable {
    /// Offset of the first one.
    pub first: i64,
    /// Offset of the last one.
    pub last: i64,
    /// Number of the records that they name.
    pub records: u64,
}

impl Erasable {
    /// Returns the extent of both.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        Self {
            first: self.first.min(other.first),
            last: self.last.max(other.last),
            records: self.records + other.records,
        }
    }
}

/// Batch of the log, as the index takes it in.
#[derive(Debug)]
pub(crate) struct Batch<'a, N> {
    pub(crate) header: &'a BatchHeader,
    /// Name of each queue, with the number of its records.
    pub(crate) names: N,
    /// Statements about queues.
    pub(crate) said: &'a [Statement],
    /// Time from which the first of its records is of no use, in milliseconds since 1970.
    pub(crate) expires_ms: Option<i64>,
}

impl<D: Disk> State<D> {
    /// Takes in what the log says at an offset.
    fn take(&mut self, statement: &Statement, offset: i64) {
        let Statement { queue, said, .. } = statement;
        self.newest.note(queue, Fact { kind: said.kind(), offset, body: said.body() });
        if matches!(said, Said::Replaced(_)) && sabotage::is(Bug::ReplacedStays) {
            return;
        }
        // The records are erased. Their masks would only count.
        if offset < self.erased.below {
            return;
        }
        let masks = Arc::make_mut(&mut self.masks);
        for withdrawn in said.withdrawn() {
            masks.insert(*withdrawn);
            self.newest.mask(*withdrawn);
        }
    }
}

impl<D: Disk> Index<D> {
    /// Makes the index of a log from tables that adjoin, oldest first, which end at `cursor` if there are any. The log
    /// was erased so far.
    pub(crate) fn new(
        (topic_id, partition): ([u8; 16], i32),
        replica: ReplicaId,
        dir: String,
        (tables, cursor): (Vec<Table<D>>, i64),
        (start, erased): (i64, Compacted),
    ) -> Self {
        let ends = tables.last().map_or(cursor, |last| last.header().to);
        assert_eq!(ends, cursor, "an index goes on where its tables end");
        let mut masks = Masks::default();
        if !sabotage::is(Bug::MasksNotLoaded) {
            // Records that facts below took away are erased.
            for table in tables.iter().filter(|it| it.header().to > erased.below) {
                masks.add(table.masks());
            }
        }
        let state = State {
            tables: Arc::new(tables),
            newest: Memtable::new(cursor),
            masks: Arc::new(masks),
            unflushed: 0,
            newest_erased: erased.index,
            erased: Compacted { index: 0, ..erased },
            start,
        };
        Self {
            replica,
            topic_id,
            partition,
            dir,
            state: RwLock::new(state),
            damaged: Mutex::default(),
            has_damage: AtomicBool::new(false),
        }
    }

    fn state(&self) -> RwLockReadGuard<'_, State<D>> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn change<T>(&self, change: impl FnOnce(&mut State<D>) -> T) -> T {
        change(&mut self.state.write().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the offset up to which the log is indexed.
    pub fn cursor(&self) -> i64 {
        self.state().newest.to()
    }

    /// Returns the memory of the memtable, and the bytes of the log that it stands for.
    pub(crate) fn unflushed(&self) -> (usize, u64) {
        let state = self.state();
        (state.newest.size(), state.unflushed)
    }

    /// Returns its tables, oldest first.
    pub fn tables(&self) -> Arc<Vec<Table<D>>> {
        Arc::clone(&self.state().tables)
    }

    /// Returns the offsets whose records readers do not see. All that the log says below the cursor is in it.
    pub fn masks(&self) -> Arc<Masks> {
        Arc::clone(&self.state().masks)
    }

    /// Returns up to `limit` postings of a queue, in order: all whose batches may hold an offset at or behind `at`. The
    /// second value is the cursor: the answer is complete below it.
    pub fn postings(
        &self,
        name: &[u8],
        at: i64,
        limit: usize,
    ) -> Result<(Vec<Posting>, i64), IndexError> {
        self.ask(|newest| newest.of_queue(name, at, limit), |view| view.postings(name, at, limit))
    }

    /// Returns the last posting of a queue whose batch begins below an offset, and the cursor.
    pub fn last_before(
        &self,
        name: &[u8],
        before: i64,
    ) -> Result<(Option<Posting>, i64), IndexError> {
        self.ask(
            |newest| newest.of_queue(name, before - 1, 1),
            |view| view.last_before(name, before),
        )
    }

    /// Returns all facts about a queue, newest first, and the masks and cursor of the same moment.
    pub fn facts(&self, name: &[u8]) -> Result<(Vec<Fact>, Arc<Masks>, i64), IndexError> {
        let cut = |newest: &Memtable| newest.of_queue(name, 0, 0);
        let (facts, cursor, mut masks) = self.ask_with_masks(cut, |view| view.facts(name))?;
        if sabotage::is(Bug::EditsBeforeMasks) {
            masks = self.masks();
        }
        Ok((facts, masks, cursor))
    }

    /// Returns up to `limit` names that begin with `prefix` and are behind `after`, in order, and the cursor. Batches
    /// that are gone may still be counted. In a log that begins at `from`, names whose records were all taken away are
    /// left out, unless that was erased just now.
    pub fn names(
        &self,
        prefix: &[u8],
        after: Option<&[u8]>,
        (limit, from): (usize, i64),
    ) -> Result<(Vec<NamedQueue>, i64), IndexError> {
        let start = after.map_or(prefix, |after| after.max(prefix));
        loop {
            let left = Left { from, erased: self.erased().below };
            let answer = self.ask(
                |newest| newest.of_names(start, left, limit.saturating_add(1)),
                |view| view.names(prefix, after, (limit, left)),
            )?;
            // Else the tables may be newer than that.
            if self.erased().below == left.erased {
                return Ok(answer);
            }
        }
    }

    /// Hands the facts about each queue that has some to `take`, in order of names. Returns the cursor.
    pub(crate) fn all_facts(
        &self,
        mut take: impl FnMut(&Bytes, Vec<Fact>),
    ) -> Result<i64, IndexError> {
        let (tables, newest, start) = {
            let state = self.state();
            (Arc::clone(&state.tables), state.newest.of_facts(), state.start)
        };
        let asked = View::new(&tables, &newest).since(start).all_facts(|name, facts| {
            take(name, facts);
            ControlFlow::Continue(())
        });
        match asked {
            Ok(()) => Ok(newest.to()),
            Err(error) => {
                self.note_damage(&error);
                Err(error)
            }
        }
    }

    /// Returns the base offsets of batches with records that are of no use at a time, in order.
    pub(crate) fn expired(&self, at_ms: i64) -> Result<Vec<i64>, IndexError> {
        self.ask(Memtable::of_expiries, |view| view.expired(at_ms)).map(|(expired, _)| expired)
    }

    /// Returns the batch that expires first, of those at or behind `below` and those that expire after `after_ms`.
    /// Leaves out batches below the log start: a table may begin before it.
    pub fn next_expiry(
        &self,
        start: i64,
        below: i64,
        after_ms: i64,
    ) -> Result<Option<Expiry>, IndexError> {
        let next = |view: View<'_, D>| view.next_expiry(start, below, after_ms);
        self.ask(Memtable::of_expiries, next).map(|(next, _)| next)
    }

    /// Returns the statements from an offset on that took records away, and the cursor.
    pub fn erasable(&self, since: i64) -> Result<(Option<Erasable>, i64), IndexError> {
        let mut all: Option<Erasable> = None;
        let cursor = self.all_facts(|_, facts| {
            for fact in facts.iter().filter(|fact| fact.offset >= since) {
                // A fact that nobody can read stopped the index before.
                let Ok(said) = Said::of(fact) else { continue };
                let is_trim = matches!(said, Said::Trimmed { first_said: ..0, .. });
                let records = said.withdrawn().len() as u64;
                if records > 0 || is_trim {
                    let it = Erasable { first: fact.offset, last: fact.offset, records };
                    all = Some(all.map_or(it, |all| all.with(it)));
                }
            }
        })?;
        Ok((all, cursor))
    }

    /// Returns the extent of the erasure that the index takes into account.
    pub fn erased(&self) -> Compacted {
        self.state().erased
    }

    /// Returns what the log has to say again of up to `limit` queues before it loses its records below an offset, and
    /// the cursor.
    pub fn kept(&self, below: i64, limit: usize) -> Result<(Vec<(Bytes, Said)>, i64), IndexError> {
        self.ask(Memtable::of_facts, |view| view.kept(below, limit))
    }

    /// Asks the tables and a part of the memtable, all of one moment. Returns the cursor of that moment, too.
    fn ask<T>(
        &self,
        cut: impl Fn(&Memtable) -> Memtable,
        question: impl Fn(View<'_, D>) -> Result<T, IndexError>,
    ) -> Result<(T, i64), IndexError> {
        self.ask_with_masks(cut, question).map(|(answer, cursor, _)| (answer, cursor))
    }

    /// Does the same, and returns the masks of that moment as well.
    fn ask_with_masks<T>(
        &self,
        cut: impl Fn(&Memtable) -> Memtable,
        question: impl Fn(View<'_, D>) -> Result<T, IndexError>,
    ) -> Result<(T, i64, Arc<Masks>), IndexError> {
        let mut may_be_old = true;
        loop {
            let (tables, newest, masks, start) = {
                let state = self.state();
                let (tables, masks) = (Arc::clone(&state.tables), Arc::clone(&state.masks));
                (tables, cut(&state.newest), masks, state.start)
            };
            match question(View::new(&tables, &newest).since(start)) {
                Ok(answer) => return Ok((answer, newest.to(), masks)),
                // A merge or a trim took a table away meanwhile.
                Err(IndexError::Disk { source, .. })
                    if may_be_old && source.kind() == io::ErrorKind::NotFound =>
                {
                    may_be_old = false;
                }
                Err(error) => {
                    self.note_damage(&error);
                    return Err(error);
                }
            }
        }
    }

    /// Remembers a damaged table, which the indexer replaces. One that cannot be read is no better.
    fn note_damage(&self, error: &IndexError) {
        let (IndexError::Damaged { path, .. } | IndexError::Disk { path, .. }) = error else {
            return;
        };
        let mut damaged = self.damaged.lock().unwrap_or_else(PoisonError::into_inner);
        damaged.insert(path.clone());
        self.has_damage.store(true, Ordering::Release);
    }

    /// Takes damaged tables out, and all behind them: their range is indexed anew, from a log that was erased so far.
    pub(crate) fn drop_damaged(&self, disk: &D, erased: u64) {
        if !self.has_damage.swap(false, Ordering::AcqRel) {
            return;
        }
        let damaged =
            std::mem::take(&mut *self.damaged.lock().unwrap_or_else(PoisonError::into_inner));
        let dropped = self.change(|state| {
            let first = state.tables.iter().position(|table| damaged.contains(table.path()));
            let Some(first) = first else { return Vec::new() };
            let dropped = Arc::make_mut(&mut state.tables).split_off(first);
            state.begin(dropped[0].header().from, erased);
            dropped
        });
        for table in &dropped {
            tracing::warn!(
                path = table.path(),
                "a table of a queue index is made anew: it, or one before it, is damaged"
            );
            remove(disk, table.path());
        }
    }

    /// Removes tables of a part of the log that is gone.
    pub(crate) fn trim(&self, disk: &D, start: i64) {
        if self.state().start != start {
            self.change(|state| state.start = start);
        }
        if self.state().masks.first_in(0..start).is_some() {
            self.change(|state| Arc::make_mut(&mut state.masks).trim(start));
        }
        let gone = self.state().tables.iter().take_while(|it| it.header().to <= start).count();
        if gone == 0 {
            return;
        }
        let gone: Vec<_> =
            self.change(|state| Arc::make_mut(&mut state.tables).drain(..gone).collect());
        for table in gone {
            remove(disk, table.path());
        }
    }

    /// Moves the cursor over offsets of which the log has nothing any more.
    pub(crate) fn pass(&self, to: i64) {
        self.change(|state| state.newest.pass(to));
    }

    /// Adds batches that follow the cursor. They have `bytes` bytes.
    pub(crate) fn insert<'a>(
        &self,
        batches: impl Iterator<Item = Batch<'a, impl Iterator<Item = (&'a [u8], u32)>>>,
        bytes: u64,
    ) {
        self.change(|state| {
            state.unflushed += bytes;
            for Batch { header, names, said, expires_ms } in batches {
                let is_passed = header.base_offset < state.newest.to();
                assert!(
                    !is_passed || sabotage::is(Bug::TableTooFar),
                    "a part is behind the cursor"
                );
                if is_passed {
                    continue;
                }
                let offsets = (header.base_offset, header.last_offset());
                let is_transactional = header.attributes.is_transactional();
                state.newest.insert(offsets, is_transactional, names);
                if let Some(at_ms) = expires_ms {
                    state.newest.expire(Expiry { base_offset: header.base_offset, at_ms });
                }
                for statement in said {
                    state.take(statement, header.base_offset);
                }
            }
        });
    }

    /// Writes the memtable as a table, and shows it in the memtable's place. `term_at` tells the log's terms. The next
    /// one is read from a log that was erased so far.
    pub(crate) fn flush(
        &self,
        disk: &D,
        term_at: impl FnOnce(i64) -> Option<u64>,
        (block_bytes, erased): (usize, u64),
    ) -> Result<(), IndexError> {
        if sabotage::is(Bug::TableTooFar) && self.state().newest.from() < self.cursor() {
            self.change(|state| state.newest.pass(state.newest.to() + 1));
        }
        // Only this thread changes the index, so readers are not held up.
        let state = self.state();
        let (from, to) = (state.newest.from(), state.newest.to());
        let Some(term) = (from < to).then(|| term_at(to - 1)).flatten() else {
            drop(state);
            if from == to {
                self.change(|state| state.newest_erased = erased);
            }
            return Ok(());
        };
        let (topic_id, partition, replica) = (self.topic_id, self.partition, self.replica);
        let made_by = state.newest_erased;
        let header = TableHeader { topic_id, partition, replica, from, to, term, erased: made_by };
        let flushed = flush(disk, &self.dir, header, &state.newest, block_bytes);
        drop(state);
        if flushed.is_err() && sabotage::is(Bug::FlushLost) {
            self.change(|state| state.begin(to, erased));
        }
        let table = flushed?;
        self.change(|state| {
            Arc::make_mut(&mut state.tables).push(table);
            state.begin(to, erased);
        });
        Ok(())
    }

    /// Puts a merged table in the place of those that it was made of, unless they are not all here any more.
    pub(crate) fn take_in(&self, disk: &D, merged: Table<D>) {
        let range = merged.range();
        let path = merged.path().to_owned();
        let replaced = self.change(|state| {
            let begin = state.tables.iter().position(|it| it.header().from == range.start);
            let end = state.tables.iter().position(|it| it.header().to == range.end);
            let (begin, end) = (begin?, end?);
            let tables = Arc::make_mut(&mut state.tables);
            Some(tables.splice(begin..=end, [merged]).collect::<Vec<_>>())
        });
        let Some(replaced) = replaced else { return remove(disk, &path) };
        for table in replaced {
            assert_ne!(table.path(), path, "a merge makes a file of its own");
            remove(disk, table.path());
        }
    }

    /// Puts tables that take an erasure into account in the place of those of the same ranges, with the masks that are
    /// left. Tables that are not here any more are not replaced.
    pub(crate) fn take_remade(
        &self,
        disk: &D,
        made: Vec<Table<D>>,
        (start, erased, masks): (i64, Compacted, Masks),
    ) {
        let removed = self.change(|state| {
            let tables = Arc::make_mut(&mut state.tables);
            let mut removed = Vec::new();
            for table in made {
                match tables.iter_mut().find(|it| it.range() == table.range()) {
                    Some(old) => removed.push(std::mem::replace(old, table)),
                    None => removed.push(table),
                }
            }
            (state.start, state.erased) = (start.max(state.start), erased);
            state.masks = Arc::new(masks);
            removed
        });
        for table in removed {
            remove(disk, table.path());
        }
    }

    /// Tells whether the memtable, if it has something, was read from a log that was erased so far.
    pub(crate) fn is_newest_of(&self, erased: u64) -> bool {
        let state = self.state();
        state.newest_erased == erased || state.newest.from() == state.newest.to()
    }

    pub(crate) fn dir(&self) -> &str {
        &self.dir
    }
}

/// Removes a table's file. One that stays is judged again when the index is opened next.
pub(crate) fn remove<D: Disk>(disk: &D, path: &str) {
    if let Err(error) = ignore_missing(disk.remove_file(path)) {
        let error = failed("removing", path, error);
        tracing::warn!(%error, "a table of a queue index was not removed");
    }
}
