//! # Room card: erasing
//!
//! Purpose:    choose the records that an erasure takes out of a log of queues.
//! Owns:       the offsets, trims, expiries and statements of one erasure, as the log says them below its end.
//! Interface:  [`Erasure::plan`], [`Erasure::touches`], [`Erasure::judge`].
//! Invariants: the choice is a function of the log below the erasure's end alone, so replicas choose alike. A record
//!             goes only if a statement below that end took it away, and if it is of the queue that the statement
//!             names; or if it was of no use when the erasure was decided. The last element of a queue does not go by
//!             itself. The last batch below the end stays: a reader in a gap finds it. Only segments that lose
//!             something are touched: replicas compare the others byte for byte.
//! Never:      the files (see `compaction`); times and the end, which an entry decides.
//! Tests:      `duramen-sim`, `tests/promises/erasing.rs`, scenarios `node` and `cluster`;
//!             `duramen/tests/native/erasure.rs`.
//! Start at:   [`Erasure::plan`].
//!
//! The index answers for the log: it names each statement and each batch of a queue below its cursor. It may name more,
//! of batches that are gone, and those cost nothing.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use duramen_protocol::batch::{BatchView, batches};
use duramen_protocol::records::{Record, Records, Retained, Schedule, retain};

use super::order::{CompactionError, Order, RECORD_BYTES_MAX};
use crate::descriptor::Descriptor;
use crate::keys::{
    Fact, Index, IndexError, Posting, Said, Statement, batch_at, is_replacement, statement_with,
    statements_of,
};
use crate::op::Compacted;
use crate::reader::ReadError;
use crate::sabotage::{self, Bug};
use crate::{Disk, Reader};

/// Postings of a queue that are looked at together.
const POSTINGS: usize = 4096;
/// Bytes of a log that are read at once in search of records that have expired.
const STEP_BYTES: u32 = 64 << 10;

/// Choice of an erasure.
#[derive(Debug, Default)]
pub(crate) struct Erasure {
    below: i64,
    /// Offset below which statements go that nothing needs any more.
    statements_below: i64,
    /// Queue of each record that is taken away, by offset.
    masked: BTreeMap<i64, Bytes>,
    /// Last offset that goes of each queue that was trimmed.
    trims: BTreeMap<Bytes, i64>,
    /// Time at which the records that go by themselves were of no use, in milliseconds since 1970; 0 for none.
    expired_by_ms: i64,
    /// Element from which on nothing goes by itself, of each queue that has records of no use.
    lasting: BTreeMap<Bytes, i64>,
    /// Statements that go: offset, name and kind.
    spent: BTreeSet<(i64, Bytes, u8)>,
    /// Offsets of batches that lose something.
    touched: BTreeSet<i64>,
}

impl Erasure {
    /// Makes the choice of an order. The index has to have all of the log below the order's end.
    pub(crate) fn plan<D: Disk>(
        reader: &Reader<D>,
        order: &Order,
        since: Compacted,
    ) -> Result<Self, CompactionError> {
        let Compacted { below, tombstones_below: statements_below, .. } = order.compacted;
        let is_early = sabotage::is(Bug::StatementsGoEarly);
        let index = reader.index(order.replica).ok_or(CompactionError::Unsettled)?;
        let mut erasure = Self {
            below,
            statements_below: if is_early { below } else { statements_below },
            expired_by_ms: order.expired_by_ms,
            ..Self::default()
        };
        let (mut queues, mut fault) = (Vec::new(), None);
        let asked = index.all_facts(|name, facts| match Queue::of(name, &facts, below) {
            Ok(queue) => queues.push(queue),
            Err(what) => fault = Some(what),
        });
        let cursor = asked.map_err(|error| unusable(&error))?;
        if cursor < below && !sabotage::is(Bug::EraseUnindexed) {
            return Err(CompactionError::Unsettled);
        }
        if let Some(what) = fault {
            let path = index.dir().to_owned();
            return Err(CompactionError::Damaged { path, at: 0, what: what.to_owned() });
        }
        let log = Log { reader, index: &index, order };
        for queue in &queues {
            erasure.take_masked(queue, since);
            erasure.take_trims(&log, queue)?;
            erasure.take_statements(&log, queue)?;
        }
        erasure.take_expired(&log, &queues)?;
        Ok(erasure)
    }

    /// Takes in the records that edits took away since the erasure before.
    fn take_masked(&mut self, queue: &Queue, since: Compacted) {
        for (_, it) in queue.said.iter().filter(|(offset, _)| *offset >= since.below) {
            for withdrawn in it.withdrawn() {
                self.masked.insert(*withdrawn, queue.name.clone());
                self.touched.insert(*withdrawn);
            }
        }
    }

    /// Takes in what a queue's trims took away, but for the last element of the queue: a guard names it.
    fn take_trims<D: Disk>(
        &mut self,
        log: &Log<'_, D>,
        queue: &Queue,
    ) -> Result<(), CompactionError> {
        let through = queue.said.iter().filter_map(|(_, it)| match it {
            Said::Trimmed { through, .. } => Some(*through),
            _ => None,
        });
        let Some(mut through) = through.max() else { return Ok(()) };
        // Else the erasures before took them.
        let Some(last) = log.last_through(queue, through)? else { return Ok(()) };
        if queue.last_deleted() < last && !log.goes_on(queue, through)? {
            through = last - 1;
            if log.last_through(queue, through)?.is_none() {
                return Ok(());
            }
        }
        for (offset, it) in &queue.said {
            let is_trimmed = matches!(it, Said::Replaced(it) if it.offset <= through);
            if is_trimmed && log.holds(&queue.name, *offset, through)? {
                self.touched.insert(*offset);
            }
        }
        log.find_through(&queue.name, through, &mut self.touched)?;
        self.trims.insert(queue.name.clone(), through);
        Ok(())
    }

    /// Takes in the records that are of no use.
    fn take_expired<D: Disk>(
        &mut self,
        log: &Log<'_, D>,
        queues: &[Queue],
    ) -> Result<(), CompactionError> {
        if self.expired_by_ms == 0 {
            return Ok(());
        }
        let (start, below) = (log.start()?, self.below);
        let expired = log.index.expired(self.expired_by_ms).map_err(|error| unusable(&error))?;
        let mut expired = expired.into_iter().filter(|it| (start..below).contains(it)).peekable();
        while let Some(next) = expired.peek().copied() {
            let Some(bytes) = log.read(next, STEP_BYTES)? else {
                return if log.start()? > start { Err(CompactionError::Changed) } else { Ok(()) };
            };
            let mut behind = next;
            // The last batch may be cut: the next part begins with it.
            for batch in batches(bytes).map_while(Result::ok) {
                let base_offset = batch.header().base_offset;
                behind = batch.header().end_offset();
                while expired.next_if(|it| *it < base_offset).is_some() {}
                if expired.next_if_eq(&base_offset).is_some() && behind < below {
                    self.take_expired_of(log, &batch, queues)?;
                }
            }
            if behind == next {
                return Err(log.unreadable(next));
            }
            while expired.next_if(|it| *it < behind).is_some() {}
        }
        Ok(())
    }

    /// Takes in the records of a batch that are of no use.
    fn take_expired_of<D: Disk>(
        &mut self,
        log: &Log<'_, D>,
        batch: &BatchView,
        queues: &[Queue],
    ) -> Result<(), CompactionError> {
        let base_offset = batch.header().base_offset;
        let unreadable = |_| log.unreadable(base_offset);
        let records = Records::of(batch, RECORD_BYTES_MAX).map_err(unreadable)?;
        for record in &records {
            let record = record.map_err(unreadable)?;
            let Some(key) = record.key.filter(|_| self.is_of_no_use(&record)) else { continue };
            let element = element_of(batch, records.offset(&record), &record);
            let element = element.map_err(|_| log.unreadable(base_offset))?;
            if !self.lasting.contains_key(key) {
                let found = queues.binary_search_by(|it| it.name[..].cmp(key)).ok();
                let unknown = Queue::unknown(key);
                let first = log.first_lasting(found.map_or(&unknown, |at| &queues[at]))?;
                self.lasting.insert(unknown.name, first);
            }
            if element < self.lasting[key] {
                self.touched.insert(base_offset);
            }
        }
        Ok(())
    }

    fn is_of_no_use(&self, record: &Record<'_>) -> bool {
        let expires_ms = Schedule::of(record).expires_ms;
        let is_early = expires_ms < i64::MAX && sabotage::is(Bug::ExpiredTooSoon);
        expires_ms <= self.expired_by_ms || is_early
    }

    /// Takes in the statements about a queue that nothing needs any more.
    fn take_statements<D: Disk>(
        &mut self,
        log: &Log<'_, D>,
        queue: &Queue,
    ) -> Result<(), CompactionError> {
        let is_old = |it: &&(i64, Said)| it.0 < self.statements_below;
        let old: Vec<_> = queue.said.iter().filter(is_old).collect();
        // A guard may name the last element, which is deleted: only its statement knows it.
        let deleted = queue.last_deleted();
        let deletes_last =
            |it: &Said| matches!(it, Said::Deleted(it) if it.elements.contains(&deleted));
        let has_last = old.iter().any(|(_, it)| deletes_last(it));
        let is_last = has_last && !log.goes_on(queue, deleted)?;
        for (offset, it) in old {
            let goes = match it {
                // Its place is a header of the content.
                Said::Replaced(_) => false,
                Said::Deleted(_) => !(is_last && deletes_last(it)),
                Said::Cut { .. } | Said::Gone(_) => true,
                Said::Trimmed { .. } | Said::Fenced { .. } => {
                    is_superseded((*offset, it), &queue.said)
                }
            };
            if goes {
                // An earlier erasure may have left it, as the last batch below its end, or taken it.
                if log.says(&queue.name, it.kind(), *offset)? {
                    self.spent.insert((*offset, queue.name.clone(), it.kind()));
                    self.touched.insert(*offset);
                }
            }
        }
        Ok(())
    }

    /// Tells whether a part of the log loses something.
    pub(crate) fn touches(&self, from: i64, to: i64) -> bool {
        self.touched.range(from..to).next().is_some()
    }

    /// Returns the rest of a batch. The error says what is wrong.
    pub(crate) fn judge(
        &self,
        batch: &Descriptor,
        view: &BatchView,
    ) -> Result<Retained, &'static str> {
        if batch.control {
            let goes = batch.base_offset < self.statements_below && batch.end_offset() < self.below;
            return if goes { self.judge_statements(batch, view) } else { Ok(Retained::All) };
        }
        let (mut wrong, may_expire) = (None, batch.end_offset() < self.below);
        let stays = |offset, record: &Record<'_>| {
            let verdict = self.stays(view, offset, record, may_expire);
            verdict.unwrap_or_else(|what| {
                wrong = Some(what);
                true
            })
        };
        let left = retain(view, RECORD_BYTES_MAX, stays);
        let left = left.map_err(|_| "the records cannot be read")?;
        wrong.map_or(Ok(left), Err)
    }

    fn stays(
        &self,
        view: &BatchView,
        offset: i64,
        record: &Record<'_>,
        may_expire: bool,
    ) -> Result<bool, &'static str> {
        if let Some(queue) = self.masked.get(&offset) {
            let is_its = record.key == Some(&queue[..]);
            if !is_its && !sabotage::is(Bug::EraseUnchecked) {
                return Err("an edit took a record away that is not of its queue");
            }
            return Ok(false);
        }
        let Some(key) = record.key else { return Ok(true) };
        let through = self.trims.get(key).copied().unwrap_or(-1);
        let may_expire = may_expire && self.expired_by_ms > 0 && self.is_of_no_use(record);
        let lasting = self.lasting.get(key).copied().filter(|_| may_expire).unwrap_or(-1);
        if through < 0 && lasting < 0 {
            return Ok(true);
        }
        let element = element_of(view, offset, record)?;
        Ok(element > through && element >= lasting)
    }

    /// Returns the rest of a batch of statements.
    fn judge_statements(
        &self,
        batch: &Descriptor,
        view: &BatchView,
    ) -> Result<Retained, &'static str> {
        let Some(mut statements) = statements_of(view)? else { return Ok(Retained::All) };
        let all = statements.len();
        let place = |it: &Statement| (batch.base_offset, it.queue.clone(), it.said.kind());
        statements.retain(|it| !self.spent.contains(&place(it)));
        Ok(match statements.len() {
            left if left == all => Retained::All,
            0 => Retained::Nothing,
            _ => Retained::Part(batch_at(view.header(), &statements)),
        })
    }
}

/// Returns the element of which the record at an offset is a content.
fn element_of(batch: &BatchView, offset: i64, record: &Record<'_>) -> Result<i64, &'static str> {
    Ok(match statement_with(batch.header(), record)? {
        Some(Statement { said: Said::Replaced(it), .. }) => it.offset,
        _ => offset,
    })
}

/// A queue, as the log has stated facts about it below the end.
#[derive(Debug)]
struct Queue {
    name: Bytes,
    /// Facts, each with its offset.
    said: Vec<(i64, Said)>,
    /// Offsets that they take away.
    withdrawn: BTreeSet<i64>,
    /// Elements that are there with another content than their first.
    replaced: BTreeSet<i64>,
}

impl Queue {
    fn of(name: &Bytes, facts: &[Fact], below: i64) -> Result<Self, &'static str> {
        let is_late = |fact: &&Fact| fact.offset >= below && !sabotage::is(Bug::EraseTooMuch);
        let early = facts.iter().filter(|fact| !is_late(fact));
        let said = early.map(|fact| Ok((fact.offset, Said::of(fact)?)));
        let said = said.collect::<Result<Vec<_>, &'static str>>()?;
        let withdrawn: BTreeSet<i64> =
            said.iter().flat_map(|(_, it)| it.withdrawn()).copied().collect();
        let contents = said.iter().filter(|(offset, _)| !withdrawn.contains(offset));
        let replaced = contents.filter_map(|(_, it)| match it {
            Said::Replaced(it) => Some(it.offset),
            _ => None,
        });
        let replaced = replaced.collect();
        Ok(Self { name: name.clone(), said, withdrawn, replaced })
    }

    /// Makes one of which the log has stated nothing.
    fn unknown(name: &[u8]) -> Self {
        let name = Bytes::copy_from_slice(name);
        let (withdrawn, replaced) = (BTreeSet::new(), BTreeSet::new());
        Self { name, said: Vec::new(), withdrawn, replaced }
    }

    /// Returns the last element that was deleted and not withdrawn by a rewrite; -1 if there is none.
    fn last_deleted(&self) -> i64 {
        let is_cut = |element: i64| {
            self.said.iter().any(|(at, it)| match it {
                Said::Cut { after, .. } => (*after + 1..*at).contains(&element),
                Said::Gone(_) => element < *at,
                _ => false,
            })
        };
        let deleted = self.said.iter().filter_map(|(_, it)| match it {
            Said::Deleted(it) => Some(&it.elements),
            _ => None,
        });
        deleted.flatten().copied().filter(|it| !is_cut(*it)).max().unwrap_or(-1)
    }
}

/// Tells whether a later statement took the place of a trim or fence.
fn is_superseded((offset, it): (i64, &Said), all: &[(i64, Said)]) -> bool {
    let place = (first_said(offset, it), offset);
    all.iter().any(|(at, other)| match other {
        Said::Gone(_) => *at > offset,
        _ => other.kind() == it.kind() && (first_said(*at, other), *at) > place,
    })
}

/// Returns the offset at which a statement about the same was made first.
fn first_said(offset: i64, said: &Said) -> i64 {
    match said {
        Said::Trimmed { first_said, .. } | Said::Fenced { first_said, .. } if *first_said >= 0 => {
            *first_said
        }
        _ => offset,
    }
}

/// The log of an order, as the choice asks it.
struct Log<'a, D: Disk> {
    reader: &'a Reader<D>,
    index: &'a Index<D>,
    order: &'a Order,
}

impl<D: Disk> Log<'_, D> {
    /// Tells whether a queue has an element behind an offset that this erasure leaves. One of a transaction does not
    /// count: it may be aborted.
    fn goes_on(&self, queue: &Queue, behind: i64) -> Result<bool, CompactionError> {
        if queue.replaced.last().is_some_and(|last| *last > behind) {
            return Ok(true);
        }
        let below = self.order.compacted.below;
        let mut from = behind + 1;
        loop {
            let postings = self.postings(&queue.name, from)?;
            for posting in postings.iter().filter(|it| it.base_offset < below) {
                let elements = self.elements(queue, posting.base_offset)?;
                if !posting.is_transactional && elements.iter().any(|it| *it > behind) {
                    return Ok(true);
                }
            }
            match postings.last() {
                Some(last) if postings.len() == POSTINGS && last.base_offset < below => {
                    from = last.base_offset + 1;
                }
                _ => return Ok(false),
            }
        }
    }

    /// Returns the last element of a queue at or below an offset that edits did not take away.
    fn last_through(&self, queue: &Queue, through: i64) -> Result<Option<i64>, CompactionError> {
        let replaced = queue.replaced.range(..=through).next_back().copied();
        let mut before = through + 1;
        loop {
            let found = self.index.last_before(&queue.name, before);
            let found = found.map_err(|error| unusable(&error))?.0;
            let Some(posting) = found else { return Ok(replaced) };
            let elements = self.elements(queue, posting.base_offset)?;
            let last = elements.into_iter().filter(|it| *it <= through).max();
            if last.is_some() {
                return Ok(last.max(replaced));
            }
            before = posting.base_offset;
        }
    }

    /// Returns the element of a queue from which on none goes by itself: a guard may name the last one. One of a
    /// transaction does not count: it may be aborted. One that a rewrite withdrew does. An erasure before that may have
    /// taken those in front of it, on some replicas and not on others.
    fn first_lasting(&self, queue: &Queue) -> Result<i64, CompactionError> {
        if sabotage::is(Bug::ExpiredLastGoes) {
            return Ok(i64::MAX);
        }
        let known = queue.last_deleted() + 1;
        let known = known.max(queue.replaced.last().copied().unwrap_or(-1));
        let statements_below = self.order.compacted.tombstones_below;
        let cuts = queue.said.iter().filter_map(|(at, it)| match it {
            Said::Cut { withdrawn, .. } if *at >= statements_below => withdrawn.last().copied(),
            _ => None,
        });
        let known = known.max(cuts.max().unwrap_or(-1));
        let mut before = self.order.compacted.below;
        loop {
            let found = self.index.last_before(&queue.name, before);
            let found = found.map_err(|error| unusable(&error))?.0;
            let Some(posting) = found else { return Ok(known) };
            if !posting.is_transactional {
                let elements = self.elements(queue, posting.base_offset)?;
                if let Some(last) = elements.into_iter().max() {
                    return Ok(known.max(last));
                }
            }
            before = posting.base_offset;
        }
    }

    /// Notes the batches that hold contents of a queue's elements at or below an offset.
    fn find_through(
        &self,
        name: &[u8],
        through: i64,
        touched: &mut BTreeSet<i64>,
    ) -> Result<(), CompactionError> {
        let mut from = 0;
        loop {
            let postings = self.postings(name, from)?;
            for posting in postings.iter().filter(|it| it.base_offset <= through) {
                if self.holds(name, posting.base_offset, through)? {
                    touched.insert(posting.base_offset);
                }
            }
            match postings.last() {
                Some(last) if postings.len() == POSTINGS && last.base_offset < through => {
                    from = last.base_offset + 1;
                }
                _ => return Ok(()),
            }
        }
    }

    fn postings(&self, name: &[u8], from: i64) -> Result<Vec<Posting>, CompactionError> {
        let found = self.index.postings(name, from, POSTINGS);
        found.map(|(postings, _)| postings).map_err(|error| unusable(&error))
    }

    /// Returns the elements of a queue in the batch at an offset that edits did not take away.
    fn elements(&self, queue: &Queue, base_offset: i64) -> Result<Vec<i64>, CompactionError> {
        let Some(batch) = self.batch(base_offset)? else { return Ok(Vec::new()) };
        let header = batch.header();
        let is_aborted = header.attributes.is_transactional()
            && self.order.aborted.iter().any(|it| {
                let range = it.first_offset..=it.last_offset;
                it.producer_id == header.producer_id && range.contains(&base_offset)
            });
        if is_aborted {
            return Ok(Vec::new());
        }
        let unreadable = |_| self.unreadable(base_offset);
        let records = Records::of(&batch, RECORD_BYTES_MAX).map_err(unreadable)?;
        let mut elements = Vec::new();
        for record in &records {
            let record = record.map_err(unreadable)?;
            let offset = records.offset(&record);
            let is_element = record.key == Some(&queue.name[..]) && !is_replacement(&record);
            if is_element && !queue.withdrawn.contains(&offset) {
                elements.push(offset);
            }
        }
        Ok(elements)
    }

    /// Returns the log's first offset.
    fn start(&self) -> Result<i64, CompactionError> {
        let files = self.reader.catalog().get(self.order.replica).map_err(|it| unread(&it))?;
        Ok(files.start_offset().unwrap_or(0))
    }

    /// Tells whether the batch at an offset is there, and holds a content of a queue's element at or below another.
    fn holds(&self, name: &[u8], base_offset: i64, through: i64) -> Result<bool, CompactionError> {
        let Some(batch) = self.batch(base_offset)? else { return Ok(false) };
        if batch.header().attributes.is_control() {
            return Ok(false);
        }
        let unreadable = |_| self.unreadable(base_offset);
        let records = Records::of(&batch, RECORD_BYTES_MAX).map_err(unreadable)?;
        for record in &records {
            let record = record.map_err(unreadable)?;
            let element = element_of(&batch, records.offset(&record), &record);
            let element = element.map_err(|_| self.unreadable(base_offset))?;
            if record.key == Some(name) && element <= through {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Tells whether the batch at an offset is there and may go, and has a statement of a kind about a queue.
    fn says(&self, name: &[u8], kind: u8, base_offset: i64) -> Result<bool, CompactionError> {
        let Some(batch) = self.batch(base_offset)? else { return Ok(false) };
        let header = batch.header();
        if !header.attributes.is_control() || header.end_offset() >= self.order.compacted.below {
            return Ok(false);
        }
        let said = statements_of(&batch).map_err(|_| self.unreadable(base_offset))?;
        Ok(said.is_some_and(|all| all.iter().any(|it| it.queue == name && it.said.kind() == kind)))
    }

    /// Reads about so many bytes below the end, from the batch with an offset or the next one on, but one batch whole.
    fn read(&self, from: i64, bytes: u32) -> Result<Option<Bytes>, CompactionError> {
        let (replica, below) = (self.order.replica, self.order.compacted.below);
        let found = match self.reader.locate(replica, from, below, bytes, true) {
            Err(ReadError::OutOfRange) => None,
            found => found.map_err(|error| unread(&error))?,
        };
        let read = found.map(|range| self.reader.read(replica, &range)).transpose();
        read.map_err(|error| unread(&error))
    }

    /// Reads the batch at an offset, if it is there.
    fn batch(&self, base_offset: i64) -> Result<Option<BatchView>, CompactionError> {
        let Some(bytes) = self.read(base_offset, 1)? else { return Ok(None) };
        let batch = BatchView::parse(&bytes).map_err(|_| self.unreadable(base_offset))?;
        Ok((batch.header().base_offset == base_offset).then_some(batch))
    }

    fn unreadable(&self, base_offset: i64) -> CompactionError {
        let (path, at) = (self.index.dir().to_owned(), base_offset.unsigned_abs());
        CompactionError::Damaged { path, at, what: "a batch cannot be read".to_owned() }
    }
}

fn unread(error: &ReadError) -> CompactionError {
    tracing::warn!(%error, "an erasure waits for the log");
    CompactionError::Unsettled
}

/// Returns why an order waits: the index is being made anew.
fn unusable(error: &IndexError) -> CompactionError {
    tracing::warn!(%error, "an erasure waits for the queue index");
    CompactionError::Unsettled
}
