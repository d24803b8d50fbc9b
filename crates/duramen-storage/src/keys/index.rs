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
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};

use bytes::Bytes;
use duramen_protocol::BatchHeader;

use super::masks::Masks;
use super::memtable::{Memtable, NamedQueue, Posting};
use super::statements::{Fact, Said, Statement};
use super::table::{IndexError, Table, TableHeader, failed};
use super::view::{View, flush};
use crate::disk::ignore_missing;
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
}

/// A batch of the log: header, number of records of each queue, and what it says of queues.
pub(crate) type Batch<'a, N> = (&'a BatchHeader, N, &'a [Statement]);

impl<D: Disk> State<D> {
    /// Takes in what the log says at an offset.
    fn take(&mut self, statement: &Statement, offset: i64) {
        let Statement { queue, said, .. } = statement;
        self.newest.note(queue, Fact { kind: said.kind(), offset, body: said.body() });
        if matches!(said, Said::Replaced(_)) && sabotage::is(Bug::ReplacedStays) {
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
    /// Makes the index of a log from tables that adjoin, oldest first, which end at `cursor` if there are any.
    pub(crate) fn new(
        (topic_id, partition): ([u8; 16], i32),
        replica: ReplicaId,
        dir: String,
        tables: Vec<Table<D>>,
        cursor: i64,
    ) -> Self {
        let ends = tables.last().map_or(cursor, |last| last.header().to);
        assert_eq!(ends, cursor, "an index goes on where its tables end");
        let mut masks = Masks::default();
        if !sabotage::is(Bug::MasksNotLoaded) {
            for table in &tables {
                masks.add(table.masks());
            }
        }
        let (tables, newest) = (Arc::new(tables), Memtable::new(cursor));
        Self {
            replica,
            topic_id,
            partition,
            dir,
            state: RwLock::new(State { tables, newest, masks: Arc::new(masks), unflushed: 0 }),
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
        let (facts, cursor, masks) = self.ask_with_masks(cut, |view| view.facts(name))?;
        Ok((facts, masks, cursor))
    }

    /// Returns up to `limit` names that begin with `prefix` and are behind `after`, in order, and the cursor. Batches
    /// that are gone may still be counted. In a log that begins at `from`, names whose records were all taken away are
    /// left out.
    pub fn names(
        &self,
        prefix: &[u8],
        after: Option<&[u8]>,
        (limit, from): (usize, i64),
    ) -> Result<(Vec<NamedQueue>, i64), IndexError> {
        let start = after.map_or(prefix, |after| after.max(prefix));
        self.ask(
            |newest| newest.of_names(start, from, limit.saturating_add(1)),
            |view| view.names(prefix, after, (limit, from)),
        )
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
            let (tables, newest, masks) = {
                let state = self.state();
                (Arc::clone(&state.tables), cut(&state.newest), Arc::clone(&state.masks))
            };
            match question(View::new(&tables, &newest)) {
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

    /// Takes damaged tables out, and all behind them: their range is indexed anew.
    pub(crate) fn drop_damaged(&self, disk: &D) {
        if !self.has_damage.swap(false, Ordering::AcqRel) {
            return;
        }
        let damaged =
            std::mem::take(&mut *self.damaged.lock().unwrap_or_else(PoisonError::into_inner));
        let dropped = self.change(|state| {
            let first = state.tables.iter().position(|table| damaged.contains(table.path()));
            let Some(first) = first else { return Vec::new() };
            let dropped = Arc::make_mut(&mut state.tables).split_off(first);
            (state.newest, state.unflushed) = (Memtable::new(dropped[0].header().from), 0);
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

    /// Adds batches that follow the cursor, each with the number of its records of each queue, and its statements. They
    /// have `bytes` bytes.
    pub(crate) fn insert<'a>(
        &self,
        batches: impl Iterator<Item = Batch<'a, impl Iterator<Item = (&'a [u8], u32)>>>,
        bytes: u64,
    ) {
        self.change(|state| {
            state.unflushed += bytes;
            for (header, names, statements) in batches {
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
                for statement in statements {
                    state.take(statement, header.base_offset);
                }
            }
        });
    }

    /// Writes the memtable as a table, and shows it in the memtable's place. `term_at` tells the log's terms.
    pub(crate) fn flush(
        &self,
        disk: &D,
        term_at: impl FnOnce(i64) -> Option<u64>,
        block_bytes: usize,
    ) -> Result<(), IndexError> {
        if sabotage::is(Bug::TableTooFar) && self.state().newest.from() < self.cursor() {
            self.change(|state| state.newest.pass(state.newest.to() + 1));
        }
        // Only this thread changes the index, so readers are not held up.
        let state = self.state();
        let (from, to) = (state.newest.from(), state.newest.to());
        let Some(term) = (from < to).then(|| term_at(to - 1)).flatten() else {
            return Ok(());
        };
        let (topic_id, partition, replica) = (self.topic_id, self.partition, self.replica);
        let header = TableHeader { topic_id, partition, replica, from, to, term };
        let table = flush(disk, &self.dir, header, &state.newest, block_bytes)?;
        drop(state);
        self.change(|state| {
            Arc::make_mut(&mut state.tables).push(table);
            (state.newest, state.unflushed) = (Memtable::new(to), 0);
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
