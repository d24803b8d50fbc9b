//! # Room card: index
//!
//! Purpose:    the queue index of one replica while the node runs: open it, read the log on, flush, take merges in.
//! Owns:       the replica's tables and memtable, behind one short lock; the choice of tables at the start.
//! Interface:  [`Index::postings`], [`Index::names`], [`Index::facts`] from any thread; the rest for `indexer`.
//! Invariants: the cursor passes a batch only after it was decoded and checked. A table of another log, or of more than
//!             the log has, is removed. An answer names the cursor up to which it is complete. One thread alone
//!             changes an index. No reader waits for the I/O of others.
//! Never:      the choice when to flush or merge (see `indexer`); the committed end.
//! Tests:      `duramen-sim/tests/promises/keys.rs`.
//! Start at:   [`Index::read_on`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};

use duramen_protocol::batch::{BatchView, batches};
use duramen_protocol::records::Records;

use super::indexer::{Limits, Order, Touched, queue_hash};
use super::table::failed;
use super::{Fact, IndexError, Memtable, NamedQueue, Posting, Table, TableHeader, View, flush};
use crate::catalog::LogFiles;
use crate::disk::ignore_missing;
use crate::format::{NEW_TABLE, table_range};
use crate::reader::{ReadError, Reader};
use crate::sabotage::{self, Bug};
use crate::{Disk, ReplicaId};

/// Most bytes of a batch's records, decompressed.
const RECORD_BYTES_MAX: usize = 1 << 30;

/// Why the log was not indexed further.
#[derive(Debug)]
pub(super) enum Stop {
    /// The replica has not written so far yet, or a segment went away: a later attempt succeeds.
    Wait,
    /// The log cannot be read there.
    Log(ReadError),
}

impl From<ReadError> for Stop {
    fn from(error: ReadError) -> Self {
        if matches!(error, ReadError::Removed) { Self::Wait } else { Self::Log(error) }
    }
}

/// A part of the log that was read.
#[derive(Debug, Default)]
pub(super) struct Part {
    /// Bytes of its batches.
    pub(super) bytes: u64,
    /// Queues that have records in it.
    pub(super) touched: Touched,
}

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
    /// Bytes of the log that the memtable stands for.
    unflushed: u64,
}

impl<D: Disk> Index<D> {
    /// Opens the index of a replica: takes the tables that are of its log, and removes all others.
    pub(super) fn open(reader: &Reader<D>, order: &Order) -> Result<Arc<Self>, Stop> {
        let files = reader.catalog().get(order.replica)?;
        let dir = order.identity.dir();
        let disk_failed = |source| Stop::Log(ReadError::Disk { path: dir.clone(), source });
        let disk = reader.disk();
        let mut tables = Vec::new();
        for name in disk.list(&dir).map_err(disk_failed)? {
            let is_new = name.ends_with(NEW_TABLE);
            if !is_new && table_range(&name).is_none() {
                continue;
            }
            let opened = if is_new { None } else { open_table(disk, &dir, &name)? };
            match opened.filter(|table| is_of(table, order, &files)) {
                Some(table) => tables.push(table),
                None => remove(disk, &format!("{dir}/{name}")),
            }
        }
        let start = files.start_offset();
        let (chain, others) = chain(tables, start);
        for other in others {
            remove(disk, other.path());
        }
        let cursor = chain.last().map_or(start, |last| last.header().to);
        Ok(Arc::new(Self {
            replica: order.replica,
            topic_id: order.identity.topic_id,
            partition: order.identity.partition,
            dir,
            state: RwLock::new(State {
                tables: Arc::new(chain),
                newest: Memtable::new(cursor),
                unflushed: 0,
            }),
            damaged: Mutex::default(),
            has_damage: AtomicBool::new(false),
        }))
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
    pub(super) fn unflushed(&self) -> (usize, u64) {
        let state = self.state();
        (state.newest.size(), state.unflushed)
    }

    /// Returns its tables, oldest first.
    pub fn tables(&self) -> Arc<Vec<Table<D>>> {
        Arc::clone(&self.state().tables)
    }

    /// Returns up to `limit` postings of a queue, in order: all whose batches may hold an offset at or behind `at`. The
    /// second value is the cursor: the answer is complete below it.
    pub fn postings(
        &self,
        name: &[u8],
        at: i64,
        limit: usize,
    ) -> Result<(Vec<Posting>, i64), IndexError> {
        let (tables, newest) = self.excerpt(|newest| newest.of_queue(name, at, limit));
        let found = View::new(&tables, &newest).postings(name, at, limit);
        Ok((self.judged(found)?, newest.to()))
    }

    /// Returns all facts about a queue, newest first, and the cursor.
    pub fn facts(&self, name: &[u8]) -> Result<(Vec<Fact>, i64), IndexError> {
        let (tables, newest) = self.excerpt(|newest| newest.of_queue(name, 0, 0));
        let found = View::new(&tables, &newest).facts(name);
        Ok((self.judged(found)?, newest.to()))
    }

    /// Returns up to `limit` names that begin with `prefix` and are behind `after`, in order, and the cursor. Batches
    /// that are gone may still be counted.
    pub fn names(
        &self,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<(Vec<NamedQueue>, i64), IndexError> {
        let start = after.map_or(prefix, |after| after.max(prefix));
        let (tables, newest) =
            self.excerpt(|newest| newest.of_names(start, limit.saturating_add(1)));
        let found = View::new(&tables, &newest).names(prefix, after, limit);
        Ok((self.judged(found)?, newest.to()))
    }

    fn excerpt(&self, cut: impl FnOnce(&Memtable) -> Memtable) -> (Arc<Vec<Table<D>>>, Memtable) {
        let state = self.state();
        (Arc::clone(&state.tables), cut(&state.newest))
    }

    /// Remembers a damaged table, which the indexer replaces.
    fn judged<T>(&self, found: Result<T, IndexError>) -> Result<T, IndexError> {
        if let Err(IndexError::Damaged { path, .. }) = &found {
            let mut damaged = self.damaged.lock().unwrap_or_else(PoisonError::into_inner);
            damaged.insert(path.clone());
            self.has_damage.store(true, Ordering::Release);
        }
        found
    }

    /// Takes damaged tables out, and all behind them: their range is indexed anew. Returns true if there were any.
    pub(super) fn drop_damaged(&self, disk: &D) -> bool {
        if !self.has_damage.swap(false, Ordering::AcqRel) {
            return false;
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
        !dropped.is_empty()
    }

    /// Removes tables of a part of the log that is gone.
    pub(super) fn trim(&self, disk: &D, start: i64) {
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

    /// Reads about `bytes_max` bytes of the log, at most up to `to`, and indexes them.
    pub(super) fn read_on(
        &self,
        reader: &Reader<D>,
        to: i64,
        bytes_max: u32,
        limits: &Limits,
    ) -> Result<Part, Stop> {
        let files = reader.catalog().get(self.replica)?;
        let from = self.cursor().max(files.start_offset()).min(to);
        let Some(range) = reader.locate(self.replica, from, to, bytes_max, true)? else {
            if from < to {
                return Err(Stop::Wait);
            }
            self.change(|state| state.newest.pass(from));
            return Ok(Part { bytes: 0, touched: Touched::All });
        };
        let bytes = match reader.read(self.replica, &range) {
            Err(ReadError::Damaged { .. }) if sabotage::is(Bug::CursorPassesDamage) => {
                self.change(|state| state.newest.pass(to));
                return Ok(Part { bytes: 0, touched: Touched::All });
            }
            read => read?,
        };
        let damaged = |what| {
            let path = files.segment_of(from).map_or_else(|| self.dir.clone(), |it| it.path());
            Stop::Log(ReadError::Damaged { path, at: range.at, what })
        };
        let mut part = Part { bytes: bytes.len() as u64, touched: Touched::default() };
        let mut found = Vec::new();
        for batch in batches(bytes) {
            // The last batch may be cut: the next part begins with it.
            let Ok(batch) = batch else { break };
            let header = *batch.header();
            if header.base_offset >= to {
                break;
            }
            match names_of(&batch) {
                Ok(names) => found.push((header, names)),
                Err(()) => return Err(damaged("a batch's records cannot be read")),
            }
        }
        if found.is_empty() {
            return Err(damaged("there is no whole batch"));
        }
        for (header, names) in &found {
            if header.attributes.is_control() {
                part.touched = Touched::All;
            }
            part.touched.add(names.keys().map(|name| queue_hash(name, limits.seed)), limits);
        }
        self.change(|state| {
            state.unflushed += part.bytes;
            for (header, names) in found {
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
                let names = names.iter().map(|(name, records)| (&name[..], *records));
                state.newest.insert(offsets, is_transactional, names);
            }
        });
        Ok(part)
    }

    /// Writes the memtable as a table, and shows it in the memtable's place.
    pub(super) fn flush(&self, reader: &Reader<D>, limits: &Limits) -> Result<(), IndexError> {
        let Ok(files) = reader.catalog().get(self.replica) else { return Ok(()) };
        if sabotage::is(Bug::TableTooFar) && self.state().newest.from() < self.cursor() {
            self.change(|state| state.newest.pass(state.newest.to() + 1));
        }
        // Only this thread changes the index, so readers are not held up.
        let state = self.state();
        let (from, to) = (state.newest.from(), state.newest.to());
        let Some(term) = (from < to).then(|| files.term_at(to - 1)).flatten() else {
            return Ok(());
        };
        let header = TableHeader {
            topic_id: self.topic_id,
            partition: self.partition,
            replica: self.replica,
            from,
            to,
            term,
        };
        let table = flush(reader.disk(), &self.dir, header, &state.newest, limits.block_bytes)?;
        drop(state);
        self.change(|state| {
            Arc::make_mut(&mut state.tables).push(table);
            (state.newest, state.unflushed) = (Memtable::new(to), 0);
        });
        Ok(())
    }

    /// Puts a merged table in the place of those that it was made of, unless they are not all here any more.
    pub(super) fn take_in(&self, disk: &D, merged: Table<D>) {
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

    pub(super) fn dir(&self) -> &str {
        &self.dir
    }
}

/// Opens a table; `None` for one that is of no use.
fn open_table<D: Disk>(disk: &D, dir: &str, name: &str) -> Result<Option<Table<D>>, Stop> {
    match Table::open(disk, dir, name) {
        Ok(table) => Ok(Some(table)),
        Err(IndexError::Disk { path, source, .. }) => {
            Err(Stop::Log(ReadError::Disk { path, source }))
        }
        Err(error) => {
            tracing::warn!(%error, "a table of a queue index is made anew");
            Ok(None)
        }
    }
}

/// Tells whether a table was made of this log, as far as the log is there.
fn is_of<D: Disk>(table: &Table<D>, order: &Order, files: &LogFiles<D>) -> bool {
    let header = table.header();
    let is_same =
        header.topic_id == order.identity.topic_id && header.partition == order.identity.partition;
    let is_below = header.to <= files.end_offset() || sabotage::is(Bug::TableAboveEndKept);
    let is_current =
        files.term_at(header.to - 1) == Some(header.term) || sabotage::is(Bug::TableTermUnchecked);
    is_same && is_below && is_current && header.to > files.start_offset()
}

/// Chooses tables that adjoin from the log start on, the longest first. Returns the others as well.
fn chain<D: Disk>(mut tables: Vec<Table<D>>, start: i64) -> (Vec<Table<D>>, Vec<Table<D>>) {
    let mut chain: Vec<Table<D>> = Vec::new();
    loop {
        let fits = |table: &Table<D>| match chain.last() {
            Some(last) => table.header().from == last.header().to,
            None => table.header().from <= start,
        };
        let fitting = tables.iter().enumerate().filter(|(_, table)| fits(table));
        let longest = fitting.max_by_key(|(_, table)| table.header().to);
        let Some((at, _)) = longest else { return (chain, tables) };
        chain.push(tables.swap_remove(at));
    }
}

/// Returns the keys of a batch's records, and the number of records of each.
fn names_of(batch: &BatchView) -> Result<BTreeMap<Box<[u8]>, u32>, ()> {
    let mut names = BTreeMap::new();
    if batch.header().attributes.is_control() {
        return Ok(names);
    }
    let records = Records::of(batch, RECORD_BYTES_MAX).map_err(|_| ())?;
    for record in &records {
        let record = record.map_err(|_| ())?;
        let Some(key) = record.key else { continue };
        match names.get_mut(key) {
            Some(records) => *records += 1,
            None => _ = names.insert(key.into(), 1),
        }
    }
    Ok(names)
}

/// Removes a table's file. One that stays is judged again when the index is opened next.
fn remove<D: Disk>(disk: &D, path: &str) {
    if let Err(error) = ignore_missing(disk.remove_file(path)) {
        let error = failed("removing", path, error);
        tracing::warn!(%error, "a table of a queue index was not removed");
    }
}
