//! # Room card: indexing
//!
//! Purpose:    lead the queue indexes of a node: which log is read next, which memtable is flushed, which tables merge.
//! Owns:       the orders of the node, and the merge at hand.
//! Interface:  [`Indexer::order`], [`Indexer::step`], [`Indexer::rest`]; [`Reader::index`] for readers.
//! Invariants: the cursor passes a batch only after it was decoded and checked. A table of another log, or of more than
//!             the log has, is removed when the index is opened. One step takes bounded work. Memtables are bounded for
//!             each log and in all. Orders come before merges. A table that fails to be written costs only memory.
//! Never:      threads and pauses, which the caller has; queues' contents.
//! Tests:      `duramen-sim/tests/promises/keys.rs`.
//! Start at:   [`Indexer::step`].

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use crate::catalog::LogFiles;
use crate::keys::{Index, IndexError, Masks, Merge, Merged, Table};
use crate::reader::{ReadError, Reader};
use crate::sabotage::{self, Bug};
use crate::{Disk, ReplicaId};

mod order;
mod reading;
mod remaking;

pub use order::{Indexed, Limits, Order, Touched, queue_hash};
use reading::Stop;
use remaking::Remaking;

/// Size classes of tables: those of the largest are not merged.
const CLASSES: u32 = 5;

/// Outcome of a step.
#[derive(Debug)]
pub enum Step {
    /// Nothing is left to do.
    Idle,
    /// Nothing can be done before a replica has written more.
    Wait,
    /// A log was read on, or cannot be.
    Indexed(Indexed),
    /// Tables were merged; the caller pauses between two such steps.
    Merged,
}

/// See the room card.
#[derive(Debug)]
pub struct Indexer<D: Disk> {
    reader: Reader<D>,
    limits: Limits,
    /// Every replica that has an index.
    orders: BTreeMap<ReplicaId, Order>,
    /// Replicas whose order is not carried out.
    waiting: VecDeque<ReplicaId>,
    /// Memory of each memtable, and the bytes of the log that it stands for; then the same of all.
    sizes: BTreeMap<ReplicaId, (usize, u64)>,
    unflushed: (usize, u64),
    /// Replicas whose memtables have grown since the last [`Indexer::rest`].
    grown: BTreeSet<ReplicaId>,
    /// Replicas whose tables may have to be merged.
    flushed: BTreeSet<ReplicaId>,
    merging: Option<(Arc<Index<D>>, Merge<D>)>,
    /// Replicas whose logs were erased since their tables were made.
    erased: BTreeSet<ReplicaId>,
    remaking: Option<(ReplicaId, Remaking<D>)>,
    /// Memory of the part that was read last.
    buffer: Vec<u8>,
}

impl<D: Disk> Reader<D> {
    /// Returns the offsets of a replica's log whose records readers do not see. A log of queues whose index is not open
    /// cannot be read yet.
    pub fn masks(&self, replica: ReplicaId, is_of_queues: bool) -> Result<Arc<Masks>, ReadError> {
        match self.index(replica).filter(|_| is_of_queues) {
            Some(index) => Ok(index.masks()),
            None if is_of_queues => Err(ReadError::Removed),
            None => Ok(Arc::default()),
        }
    }

    /// Returns the queue index of a replica, if it has one that is open.
    pub fn index(&self, replica: ReplicaId) -> Option<Arc<Index<D>>> {
        self.catalog().get(replica).ok()?.index()
    }
}

impl<D: Disk> Indexer<D> {
    /// Makes one without orders.
    pub fn new(reader: Reader<D>, limits: Limits) -> Self {
        Self {
            reader,
            limits,
            orders: BTreeMap::new(),
            waiting: VecDeque::new(),
            sizes: BTreeMap::new(),
            unflushed: (0, 0),
            grown: BTreeSet::new(),
            flushed: BTreeSet::new(),
            merging: None,
            erased: BTreeSet::new(),
            remaking: None,
            buffer: Vec::new(),
        }
    }

    /// Takes an order.
    pub fn order(&mut self, order: Order) {
        let replica = order.replica;
        self.orders.insert(replica, order);
        if !self.waiting.contains(&replica) {
            self.waiting.push_back(replica);
        }
    }

    /// Tells whether [`Indexer::rest`] may find something to flush.
    pub fn may_rest(&self) -> bool {
        self.unflushed.1 >= self.limits.rest_bytes
    }

    /// Flushes memtables of some size that have not grown since the last call: after a start their logs need not be
    /// read again. Tells whether there were any.
    pub fn rest(&mut self) -> bool {
        let grown = std::mem::take(&mut self.grown);
        let rests = |(replica, size): (&ReplicaId, &(usize, u64))| {
            (size.1 >= self.limits.rest_bytes && !grown.contains(replica)).then_some(*replica)
        };
        let resting: Vec<_> = self.sizes.iter().filter_map(rests).collect();
        for replica in &resting {
            match self.reader.index(*replica) {
                Some(index) => self.flush_one(*replica, &index),
                None => self.note_size(*replica, (0, 0)),
            }
        }
        !resting.is_empty()
    }

    /// Flushes what [`Indexer::rest`] would flush if nothing had grown: the node stops.
    pub fn finish(mut self) {
        self.grown.clear();
        self.rest();
    }

    /// Tells whether there is something to do.
    pub fn has_work(&self) -> bool {
        !self.waiting.is_empty() || self.has_tables_to_make()
    }

    fn has_tables_to_make(&self) -> bool {
        let has_merge = self.merging.is_some() || !self.flushed.is_empty();
        has_merge || self.remaking.is_some() || !self.erased.is_empty()
    }

    /// Does the next piece of work: reads a log on, or merges if it may.
    pub fn step(&mut self, may_merge: bool) -> Step {
        let mut has_waited = false;
        for _ in 0..self.waiting.len() {
            let Some(replica) = self.waiting.pop_front() else { break };
            let Some(order) = self.orders.get(&replica).cloned() else { continue };
            match self.carry_out(&order) {
                Ok(indexed) => return Step::Indexed(indexed),
                Err(Stop::Wait) => {
                    has_waited = true;
                    self.waiting.push_back(replica);
                }
                Err(Stop::Log(error)) => {
                    // A replica that is not there is gone, or storage has not made it yet: its node knows which.
                    if matches!(error, ReadError::UnknownReplica) {
                        self.forget(replica);
                    }
                    let to = self.reader.index(replica).map_or(0, |index| index.cursor());
                    return Step::Indexed(Indexed {
                        replica,
                        beginning: order.beginning,
                        to,
                        touched: Touched::default(),
                        problem: Some(error.to_string()),
                    });
                }
            }
        }
        let is_merging = self.has_tables_to_make();
        let step = if may_merge { self.merge() } else { Step::Idle };
        let is_waiting = has_waited || is_merging && !may_merge;
        if matches!(step, Step::Idle) && is_waiting { Step::Wait } else { step }
    }

    fn forget(&mut self, replica: ReplicaId) {
        self.orders.remove(&replica);
        self.flushed.remove(&replica);
        self.erased.remove(&replica);
        self.grown.remove(&replica);
        self.note_size(replica, (0, 0));
        self.sizes.remove(&replica);
    }

    /// Reads one log on.
    fn carry_out(&mut self, order: &Order) -> Result<Indexed, Stop> {
        let replica = order.replica;
        let files = self.reader.catalog().get(replica)?;
        let index = if let Some(index) = files.index() {
            index
        } else {
            let index = Arc::new(reading::open(&self.reader, order)?);
            files.set_index(Some(Arc::clone(&index)));
            index
        };
        index.drop_damaged(self.reader.disk(), files.compaction());
        index.trim(self.reader.disk(), order.start_of(files.start_offset()));
        let part = reading::read_on(&self.reader, &index, order, &self.limits, &mut self.buffer)?;
        let to = index.cursor();
        if to < order.to {
            self.waiting.push_back(replica);
        }
        if part.bytes > 0 {
            self.grown.insert(replica);
        }
        self.flush(replica, &index);
        self.follow_erasure(replica, &index, &files);
        let (beginning, touched) = (order.beginning, part.touched);
        Ok(Indexed { replica, beginning, to, touched, problem: None })
    }

    /// Has tables made anew if the log was erased since. What the memtable has from before becomes a table first.
    fn follow_erasure(&mut self, replica: ReplicaId, index: &Arc<Index<D>>, files: &LogFiles<D>) {
        let erased = files.compaction();
        if index.erased().index == erased {
            return;
        }
        if !index.is_newest_of(erased) {
            self.flush_one(replica, index);
        }
        // Without room on the disk that waits for the next order.
        if index.is_newest_of(erased) {
            self.erased.insert(replica);
        }
    }

    /// Flushes the memtable that was just written to if it is full, and the largest one if all together are.
    fn flush(&mut self, replica: ReplicaId, index: &Arc<Index<D>>) {
        self.note_size(replica, index.unflushed());
        let (memory, log) = index.unflushed();
        if memory >= self.limits.memtable_bytes.0 || log >= self.limits.log_bytes.0 {
            self.flush_one(replica, index);
        } else if self.unflushed.0 >= self.limits.memtable_bytes.1
            || self.unflushed.1 >= self.limits.log_bytes.1
        {
            let largest = self.sizes.iter().max_by_key(|(_, size)| **size);
            let replica = largest.map_or(replica, |(replica, _)| *replica);
            match self.reader.index(replica) {
                Some(index) => self.flush_one(replica, &index),
                None => self.note_size(replica, (0, 0)),
            }
        }
    }

    /// Notes how much a memtable holds. A replica without an index holds nothing.
    fn note_size(&mut self, replica: ReplicaId, size: (usize, u64)) {
        let before = self.sizes.insert(replica, size).unwrap_or_default();
        self.unflushed.0 = self.unflushed.0 + size.0 - before.0;
        self.unflushed.1 = self.unflushed.1 + size.1 - before.1;
    }

    fn flush_one(&mut self, replica: ReplicaId, index: &Arc<Index<D>>) {
        // Of a disk that is almost full appends are refused soon, so the memtable does not grow for long.
        let free_bytes = self.reader.disk().available().unwrap_or(u64::MAX);
        if free_bytes < self.limits.free_bytes_min && !sabotage::is(Bug::FlushIgnoresRoom) {
            return;
        }
        let files = self.reader.catalog().get(replica);
        let erased = files.as_ref().map_or(0, |files| files.compaction());
        let term_at = |offset| files.ok()?.term_at(offset);
        match index.flush(self.reader.disk(), term_at, (self.limits.block_bytes, erased)) {
            Ok(()) => _ = self.flushed.insert(replica),
            Err(error) => {
                tracing::warn!(replica = replica.0, %error, "a part of a queue index stays in memory");
            }
        }
        self.note_size(replica, index.unflushed());
    }

    /// Goes on with the merge at hand, or begins one. Tables of erased logs come before other merges.
    fn merge(&mut self) -> Step {
        let (index, merge) = match self.merging.take() {
            Some(at_hand) => at_hand,
            None if self.remake() => return Step::Merged,
            None => match self.begin_merge() {
                Some(begun) => begun,
                None => return Step::Idle,
            },
        };
        match merge.step(self.limits.merge_bytes) {
            Ok(Merged::More(merge)) => self.merging = Some((index, *merge)),
            Ok(Merged::Done(table)) => index.take_in(self.reader.disk(), table),
            Err(error) => warn_of_merge(&error),
        }
        Step::Merged
    }

    /// Goes on to make the tables of an erased log anew, or begins to. Tells whether there was something to do.
    fn remake(&mut self) -> bool {
        let (replica, mut remaking) = if let Some(at_hand) = self.remaking.take() {
            at_hand
        } else {
            let Some(replica) = self.erased.pop_first() else { return false };
            let Ok(files) = self.reader.catalog().get(replica) else { return true };
            let Some(index) = files.index() else { return true };
            (replica, Remaking::begin(index, &files))
        };
        if !self.reader.index(replica).is_some_and(|index| remaking.is_of(&index)) {
            return true;
        }
        let limits = (self.limits.block_bytes, self.limits.merge_bytes);
        match remaking.step(&self.reader, replica, limits) {
            Ok(false) => self.remaking = Some((replica, remaking)),
            Ok(true) => {}
            Err(error) => {
                tracing::warn!(%error, "tables of a queue index keep what was erased of its log");
            }
        }
        true
    }

    fn begin_merge(&mut self) -> Option<(Arc<Index<D>>, Merge<D>)> {
        while let Some(replica) = self.flushed.first().copied() {
            let files = self.reader.catalog().get(replica).ok();
            let index = files.as_ref().and_then(|files| files.index());
            let Some((files, index)) = files.zip(index) else {
                self.flushed.remove(&replica);
                continue;
            };
            let Some(tables) = self.mergeable(&index.tables()) else {
                self.flushed.remove(&replica);
                continue;
            };
            let start = files.start_offset().unwrap_or(0);
            match Merge::begin(index.dir(), tables, start, self.limits.block_bytes) {
                Ok(merge) => return Some((index, merge)),
                Err(error) => {
                    warn_of_merge(&error);
                    self.flushed.remove(&replica);
                }
            }
        }
        None
    }

    /// Chooses neighbours that are merged next, the smallest first.
    fn mergeable(&self, tables: &[Table<D>]) -> Option<Vec<Table<D>>> {
        let width = self.limits.merge_width;
        (0..CLASSES - 1).find_map(|class| {
            let is_small = |table: &Table<D>| self.class(table) <= class;
            let run = tables.windows(width).find(|run| run.iter().all(is_small))?;
            Some(run.to_vec())
        })
    }

    fn class(&self, table: &Table<D>) -> u32 {
        (table.bytes() / self.limits.class_bytes).checked_ilog(8).map_or(0, |log| log + 1)
    }
}

fn warn_of_merge(error: &IndexError) {
    tracing::warn!(%error, "tables of a queue index were not merged");
}
