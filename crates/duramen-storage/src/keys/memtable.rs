//! # Room card: memtable
//!
//! Purpose:    hold the newest part of a queue index in memory: what no table has yet.
//! Owns:       postings and facts of each name, what the facts mask, batches that expire, and the cursor up to which
//!             they are complete.
//! Interface:  [`Memtable`].
//! Invariants: batches arrive in order of their offsets. All that was said of offsets from [`Memtable::from`] up to
//!             [`Memtable::to`] is there.
//! Never:      I/O, locks.
//! Tests:      `keys/tests.rs`.
//! Start at:   [`Memtable::insert`].

use std::collections::BTreeMap;
use std::ops::Bound;

use bytes::Bytes;
use smallvec::SmallVec;

use super::expiries::Expiry;
use super::masks::Masks;
use super::statements::{Fact, Said};

/// Memory of a name beside its bytes: its place in the map, and an allocation.
const QUEUE_BYTES: usize = 128;
/// Memory of a masked offset that adjoins no other.
const MASK_BYTES: usize = 32;

/// Batch that holds records of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Posting {
    /// Base offset of the batch.
    pub base_offset: i64,
    /// True if the batch is part of a transaction.
    pub is_transactional: bool,
    /// Number of this queue's records in the batch, at least 1.
    pub records: u32,
}

/// Name of a queue, and how much is known of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamedQueue {
    /// Key of the queue's records.
    pub name: Bytes,
    /// Number of batches with records of the queue.
    pub batches: u64,
    /// Number of the queue's records.
    pub records: u64,
    /// Number of facts about the queue.
    pub facts: u64,
    /// Number of those records that edits took away. All others are elements, but for aborted ones and old contents of
    /// the log below its start.
    pub withdrawn: u64,
}

impl NamedQueue {
    /// Adds a fact, of whose offsets those count that the log still has.
    pub(crate) fn add(&mut self, fact: &Fact, left: Left) {
        self.facts += 1;
        if fact.offset < left.erased {
            return;
        }
        let said = Said::of(fact).ok();
        let is_there = |offset: &&i64| **offset >= left.from;
        let withdrawn = said.iter().flat_map(Said::withdrawn).filter(is_there);
        self.withdrawn += withdrawn.count() as u64;
    }
}

/// Records that are left of a log, as counts of them need to know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Left {
    /// First offset of the log.
    pub from: i64,
    /// Offset below which facts name no record that is there: what they took away is erased.
    pub erased: i64,
}

/// Postings and facts of one name, each in order of offsets.
#[derive(Clone, Debug, Default)]
struct Queue {
    /// Most queues of a memtable have one, if there are many.
    postings: SmallVec<[Posting; 1]>,
    facts: Vec<Fact>,
}

/// See the room card.
#[derive(Clone, Debug)]
pub struct Memtable {
    from: i64,
    to: i64,
    size: usize,
    queues: BTreeMap<Box<[u8]>, Queue>,
    masks: Masks,
    expiries: Vec<Expiry>,
}

impl Memtable {
    /// Makes one that holds nothing, and goes on at an offset.
    pub fn new(from: i64) -> Self {
        assert!(from >= 0, "offsets are not negative");
        let (queues, masks) = (BTreeMap::new(), Masks::default());
        Self { from, to: from, size: 0, queues, masks, expiries: Vec::new() }
    }

    /// Returns the offset at which it begins.
    pub fn from(&self) -> i64 {
        self.from
    }

    /// Returns the cursor: the offset up to which the log is indexed.
    pub fn to(&self) -> i64 {
        self.to
    }

    /// Returns an estimate of its memory in bytes.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Adds a batch, and moves the cursor behind it. A batch without names moves the cursor alone.
    pub fn insert<'a>(
        &mut self,
        (base_offset, last_offset): (i64, i64),
        is_transactional: bool,
        names: impl IntoIterator<Item = (&'a [u8], u32)>,
    ) {
        assert!(self.to <= base_offset, "a batch begins at the cursor or behind it");
        assert!(base_offset <= last_offset && last_offset < i64::MAX, "a batch takes an offset");
        self.to = last_offset + 1;
        for (name, records) in names {
            assert!(records > 0, "a batch names a queue of which it has records");
            let postings = &mut self.queue(name).postings;
            match postings.last_mut() {
                Some(last) if last.base_offset == base_offset => last.records += records,
                _ => {
                    postings.push(Posting { base_offset, is_transactional, records });
                    self.size += size_of::<Posting>();
                }
            }
        }
    }

    /// Adds a fact, which a batch before the cursor says.
    pub fn note(&mut self, name: &[u8], fact: Fact) {
        let is_here = self.from <= fact.offset && fact.offset < self.to;
        assert!(is_here, "a batch of the memtable says it");
        self.size += size_of::<Fact>() + fact.body.len();
        let facts = &mut self.queue(name).facts;
        // One batch may say several.
        let is_next = facts.last().is_none_or(|last| last.offset <= fact.offset);
        assert!(is_next, "facts about a queue come in order");
        facts.push(fact);
    }

    /// Masks an offset, as a batch before the cursor says.
    pub fn mask(&mut self, offset: i64) {
        assert!(offset < self.to, "the log takes away what it had before");
        self.size += MASK_BYTES;
        self.masks.insert(offset);
    }

    /// Notes when the first record of the batch before the cursor expires.
    pub fn expire(&mut self, expiry: Expiry) {
        let is_here = self.from <= expiry.base_offset && expiry.base_offset < self.to;
        assert!(is_here, "a batch of the memtable expires");
        let is_next = self.expiries.last().is_none_or(|it| it.base_offset < expiry.base_offset);
        assert!(is_next, "batches come in order");
        self.size += size_of::<Expiry>();
        self.expiries.push(expiry);
    }

    /// Returns the batches that expire, in order.
    pub(crate) fn expiries(&self) -> &[Expiry] {
        &self.expiries
    }

    /// Copies the part that answers for the batches that expire.
    pub(crate) fn of_expiries(&self) -> Self {
        Self { expiries: self.expiries.clone(), ..self.with([]) }
    }

    /// Returns the offsets that were masked since it began.
    pub(crate) fn masks(&self) -> &Masks {
        &self.masks
    }

    fn queue(&mut self, name: &[u8]) -> &mut Queue {
        if self.queues.contains_key(name) {
            return self.queues.get_mut(name).expect("it was just there");
        }
        self.size += QUEUE_BYTES + name.len();
        self.queues.entry(name.into()).or_default()
    }

    /// Moves the cursor over offsets of which the log has nothing any more.
    pub(crate) fn pass(&mut self, to: i64) {
        assert!(self.to <= to, "a cursor goes forward");
        self.to = to;
    }

    /// Copies the part that answers for a queue's first `limit` postings at or behind `at`, and for its facts.
    pub(crate) fn of_queue(&self, name: &[u8], at: i64, limit: usize) -> Self {
        let postings = self.postings(name, at).iter().take(limit).copied().collect();
        let facts = self.facts(name).to_vec();
        self.with([(name.into(), Queue { postings, facts })])
    }

    /// Copies the facts about all queues.
    pub(crate) fn of_facts(&self) -> Self {
        let queues = self.queues.iter().filter(|(_, queue)| !queue.facts.is_empty());
        let facts = |queue: &Queue| Queue { facts: queue.facts.clone(), ..Queue::default() };
        self.with(queues.map(|(name, queue)| (name.clone(), facts(queue))))
    }

    /// Copies the queues from `start` on up to the `limit`th that has records here which edits did not take away.
    pub(crate) fn of_names(&self, start: &[u8], left: Left, limit: usize) -> Self {
        let bounds = (Bound::Included(start), Bound::Unbounded);
        let queues = self.queues.range::<[u8], _>(bounds).zip(self.names(start, left));
        let queues = queues.scan(0, |whole, (queue, named)| {
            let is_within = *whole < limit;
            *whole += usize::from(named.records > named.withdrawn);
            is_within.then_some(queue)
        });
        self.with(queues.map(|(name, queue)| (name.clone(), queue.clone())))
    }

    fn with(&self, queues: impl IntoIterator<Item = (Box<[u8]>, Queue)>) -> Self {
        let said = |queue: &Queue| !queue.postings.is_empty() || !queue.facts.is_empty();
        let queues = queues.into_iter().filter(|(_, queue)| said(queue)).collect();
        let (from, to, masks) = (self.from, self.to, Masks::default());
        Self { from, to, size: 0, queues, masks, expiries: Vec::new() }
    }

    /// Returns a queue's postings from the last one at or before `at` on: its batch may reach beyond `at`.
    pub(crate) fn postings(&self, name: &[u8], at: i64) -> &[Posting] {
        let all = self.queues.get(name).map_or(&[][..], |queue| &queue.postings);
        let later = all.partition_point(|posting| posting.base_offset <= at);
        &all[later.saturating_sub(1)..]
    }

    /// Returns the facts about a queue, oldest first.
    pub(crate) fn facts(&self, name: &[u8]) -> &[Fact] {
        self.queues.get(name).map_or(&[], |queue| &queue.facts)
    }

    /// Returns the names from `start` on, in order. Withdrawn records that are gone are not counted.
    pub(crate) fn names(&self, start: &[u8], left: Left) -> impl Iterator<Item = NamedQueue> {
        let bounds = (Bound::Included(start), Bound::Unbounded);
        self.queues.range::<[u8], _>(bounds).map(move |(name, queue)| {
            let mut named = NamedQueue {
                name: Bytes::copy_from_slice(name),
                batches: queue.postings.len() as u64,
                records: queue.postings.iter().map(|it| u64::from(it.records)).sum(),
                ..NamedQueue::default()
            };
            queue.facts.iter().for_each(|fact| named.add(fact, left));
            named
        })
    }

    /// Returns all names in order, with their postings and facts.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&[u8], &[Posting], &[Fact])> {
        self.queues.iter().map(|(name, it)| (&name[..], &it.postings[..], &it.facts[..]))
    }
}
