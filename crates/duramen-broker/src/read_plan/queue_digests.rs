//! Elements of the queues in a part of a log, and faults of the queue index that leads to them.
//!
//! The log is the truth, and an index may say too much, never too little. So the part is read again. The index has to
//! name each of its batches for each queue with records there. It has to have each statement, and to mask what
//! statements take away. An edit or a mask that the log does not have hides elements, so it is a fault, too.
//!
//! The digest covers the elements whose contents lie in the part, as the edits below one end leave them. So replicas
//! have the same digest though their indexes end at different offsets.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use duramen_protocol::ErrorCode;
use duramen_protocol::batch::{BatchView, batches};
use duramen_protocol::messages::describe_replicas::{
    DescribedElement, DescribedReplica, QueueFault,
};
use duramen_protocol::records::{Record, Records};
use duramen_storage::keys::{
    Fact, Index, IndexError, Masks, Posting, Replaced, Said, Standing, Statement, is_replacement,
    statement_with, statements_of,
};
use duramen_storage::op::Compacted;
use duramen_storage::reader::ReadError;
use duramen_storage::{Disk, Reader};
use twox_hash::xxhash3_128::Hasher;

use super::{code_of, text_of};
use crate::event::{QueuesPart, ReplicaPart};
use crate::limits::{DECOMPRESSED_BYTES_MAX, DIGEST_QUEUES_MAX};
use crate::native::Position;

/// Bytes of one read.
const READ_BYTES: u64 = 256 << 10;
/// Postings that one question to the index returns.
const POSTINGS_AT_ONCE: usize = 256;
/// Most faults of one answer.
const FAULTS_MAX: usize = 16;

/// Why a part is not described.
enum Stop {
    /// The index is not open, or does not reach so far any more.
    Behind,
    Index(IndexError),
    Log(ReadError),
    /// The batch at this offset is none, or its records are none.
    Unreadable(i64),
}

impl From<IndexError> for Stop {
    fn from(error: IndexError) -> Self {
        Self::Index(error)
    }
}

impl From<ReadError> for Stop {
    fn from(error: ReadError) -> Self {
        Self::Log(error)
    }
}

impl Stop {
    fn told(&self) -> (ErrorCode, String) {
        match self {
            Self::Behind => {
                (ErrorCode::OffsetNotAvailable, "the queue index is made anew".to_owned())
            }
            Self::Index(error) => (ErrorCode::KafkaStorageError, error.to_string()),
            // The log was trimmed between the plan and the read.
            Self::Log(error @ ReadError::Removed) => (ErrorCode::OffsetOutOfRange, text_of(error)),
            Self::Log(error) => (code_of(error), text_of(error)),
            Self::Unreadable(offset) => {
                let text = format!("the batch at offset {offset} cannot be read");
                (ErrorCode::KafkaStorageError, text)
            }
        }
    }
}

/// Describes the first elements of a part, and faults of the index there. Returns the bytes that it read.
pub(super) fn describe<D: Disk>(
    reader: &Reader<D>,
    part: &ReplicaPart,
    queues: &QueuesPart,
    bytes_max: u64,
    slot: &mut DescribedReplica,
) -> u64 {
    let described = Slice::read(reader, part, queues.end, bytes_max).and_then(|slice| {
        let index = reader.index(part.replica).ok_or(Stop::Behind)?;
        let first_batch = reader.base_of(part.replica, queues.log_start, queues.end)?;
        let first_batch = first_batch.unwrap_or(queues.end);
        let faults = Vec::new();
        let checking =
            Checking { reader, index: &index, part, queues, slice: &slice, first_batch, faults };
        checking.run(slot)?;
        (slot.end_offset, slot.bytes) = (slice.to, i64::try_from(slice.bytes).unwrap_or(i64::MAX));
        Ok(slice.bytes)
    });
    described.unwrap_or_else(|stop| {
        let (code, text) = stop.told();
        (slot.error_code, slot.error_message) = (code.code(), Some(text));
        0
    })
}

/// Describes the records that edits took away of a log, and that were not erased to this extent. Also says when the
/// first record that is there is of no use.
pub(super) fn describe_erasure<D: Disk>(
    reader: &Reader<D>,
    part: &ReplicaPart,
    done: Compacted,
    slot: &mut DescribedReplica,
) {
    let mut described = || {
        let index = reader.index(part.replica).ok_or(Stop::Behind)?;
        let (found, cursor) = index.erasable(done.below.max(part.from))?;
        if cursor < part.to {
            return Err(Stop::Behind);
        }
        let next = index.next_expiry(part.from, part.from, i64::MAX)?;
        slot.expires_ms = next.map_or(-1, |it| it.at_ms);
        slot.names_are_left = index.erased().index != done.index;
        slot.hidden_records = found.map_or(0, |it| i64::try_from(it.records).unwrap_or(i64::MAX));
        let Some(first) = found.map(|it| it.first) else { return Ok(()) };
        let range = reader.locate(part.replica, first, part.to.max(first + 1), 1, true)?;
        let bytes = range.map(|range| reader.read(part.replica, &range)).transpose()?;
        let batch = bytes.map(|bytes| BatchView::parse(&bytes)).transpose();
        let batch = batch.map_err(|_| Stop::Unreadable(first))?;
        slot.hidden_since_ms = batch.map_or(-1, |batch| batch.header().max_timestamp);
        Ok(())
    };
    let described: Result<(), Stop> = described();
    if let Err(stop) = described {
        let (code, text) = stop.told();
        (slot.error_code, slot.error_message) = (code.code(), Some(text));
    }
}

/// All that a part of the log says of one queue.
#[derive(Debug, Default)]
struct Named {
    postings: Vec<Posting>,
    facts: Vec<Fact>,
    /// Offsets of its records.
    records: Vec<i64>,
}

/// Part of a log that was read.
#[derive(Debug, Default)]
struct Slice {
    batches: Vec<BatchView>,
    named: BTreeMap<Bytes, Named>,
    /// Base offsets of batches that still have their first record, and with it a statement.
    whole: BTreeSet<i64>,
    bytes: u64,
    /// Offset behind the last one.
    to: i64,
}

impl Slice {
    /// Reads batches from the begin of a part on: the first one, and more up to a number of bytes or queues.
    fn read<D: Disk>(
        reader: &Reader<D>,
        part: &ReplicaPart,
        end: i64,
        bytes_max: u64,
    ) -> Result<Self, Stop> {
        let mut slice = Self { to: part.from, ..Self::default() };
        while slice.to < part.to {
            let before = slice.to;
            let left = bytes_max.saturating_sub(slice.bytes).clamp(1, READ_BYTES);
            let left = u32::try_from(left).expect("a read is small");
            let Some(range) = reader.locate(part.replica, slice.to, end, left, true)? else {
                slice.to = part.to;
                break;
            };
            // The last batch may be cut: the next read begins with it.
            for batch in batches(reader.read(part.replica, &range)?).map_while(Result::ok) {
                if batch.header().base_offset >= part.to {
                    slice.to = part.to;
                    break;
                }
                let bytes = slice.bytes + batch.bytes().len() as u64;
                let is_full = bytes > bytes_max || slice.named.len() >= DIGEST_QUEUES_MAX;
                if is_full && !slice.batches.is_empty() {
                    return Ok(slice);
                }
                slice.take(batch)?;
                slice.to = slice.to.min(part.to);
            }
            if slice.to <= before {
                return Err(Stop::Unreadable(before));
            }
        }
        Ok(slice)
    }

    fn take(&mut self, batch: BatchView) -> Result<(), Stop> {
        let header = *batch.header();
        let base_offset = header.base_offset;
        let statements = if header.attributes.is_control() {
            self.whole.insert(base_offset);
            statements_of(&batch).map_err(|_| Stop::Unreadable(base_offset))?.unwrap_or_default()
        } else {
            self.take_records(&batch)?
        };
        for Statement { queue, said, .. } in statements {
            let fact = Fact { kind: said.kind(), offset: base_offset, body: said.body() };
            self.named(&queue).facts.push(fact);
        }
        self.bytes += batch.bytes().len() as u64;
        self.to = header.end_offset();
        self.batches.push(batch);
        Ok(())
    }

    fn take_records(&mut self, batch: &BatchView) -> Result<Vec<Statement>, Stop> {
        let header = batch.header();
        let base_offset = header.base_offset;
        let is_transactional = header.attributes.is_transactional();
        let unreadable = |_| Stop::Unreadable(base_offset);
        let records = Records::of(batch, DECOMPRESSED_BYTES_MAX).map_err(unreadable)?;
        let mut statement = None;
        for (at, record) in records.iter().enumerate() {
            let record = record.map_err(unreadable)?;
            let offset = records.offset(&record);
            if offset == base_offset {
                self.whole.insert(base_offset);
            }
            if at == 0 {
                let made = statement_with(header, &record);
                statement = made.map_err(|_| Stop::Unreadable(base_offset))?;
            }
            let Some(key) = record.key else { continue };
            let named = self.named(key);
            named.records.push(offset);
            match named.postings.last_mut() {
                Some(last) if last.base_offset == base_offset => last.records += 1,
                _ => named.postings.push(Posting { base_offset, is_transactional, records: 1 }),
            }
        }
        Ok(statement.into_iter().collect())
    }

    fn named(&mut self, name: &[u8]) -> &mut Named {
        if self.named.contains_key(name) {
            return self.named.get_mut(name).expect("it was just there");
        }
        self.named.entry(Bytes::copy_from_slice(name)).or_default()
    }

    /// Returns the position of a record, as far as its batch is here.
    fn position(&self, offset: i64) -> Position {
        let behind = self.batches.partition_point(|it| it.header().base_offset <= offset);
        let batch = behind.checked_sub(1).map(|at| self.batches[at].header());
        let (term, entry) =
            batch.map_or((-1, -1), |it| (it.partition_leader_epoch, it.base_offset));
        Position { term, entry, offset }
    }
}

/// Effects of the edits of a queue on its records in a part.
#[derive(Debug, Default)]
struct Effects {
    /// Offset of each record that an edit takes away, and that of its first such edit.
    withdrawn: BTreeMap<i64, i64>,
    /// Records that are the contents of elements.
    contents: BTreeMap<i64, Replaced>,
    /// The last offset that is trimmed; -1 for none.
    trimmed: i64,
}

/// Comparison of a part of a log with the index.
struct Checking<'a, D: Disk> {
    reader: &'a Reader<D>,
    index: &'a Index<D>,
    part: &'a ReplicaPart,
    queues: &'a QueuesPart,
    slice: &'a Slice,
    /// Base offset of the log's first batch.
    first_batch: i64,
    faults: Vec<QueueFault>,
}

impl<D: Disk> Checking<'_, D> {
    fn run(mut self, slot: &mut DescribedReplica) -> Result<(), Stop> {
        let mut effects = BTreeMap::new();
        slot.queues = 0;
        for (name, named) in &self.slice.named {
            if !named.postings.is_empty() {
                self.check_postings(name, named)?;
                slot.queues += i64::from(self.begins_here(name)?);
            }
            let edits = self.check_facts(name, named)?;
            effects.insert(name.clone(), edits);
        }
        self.digest(&effects, slot)?;
        slot.faults = self.faults;
        Ok(())
    }

    fn fault(&mut self, name: &Bytes, offset: i64, what: String) {
        if self.faults.len() < FAULTS_MAX {
            let Position { term, entry, offset } = self.slice.position(offset);
            self.faults.push(QueueFault { queue: name.clone(), term, entry, offset, what });
        }
    }

    /// Compares the batches of a queue with its postings.
    fn check_postings(&mut self, name: &Bytes, named: &Named) -> Result<(), Stop> {
        // A sound index answers with these postings alone, and reads no more of its tables for that.
        let mut found = self.find_postings(name, named, named.postings.len())?;
        if found.len() < named.postings.len() {
            found = self.find_postings(name, named, POSTINGS_AT_ONCE)?;
        }
        for there in &named.postings {
            let base = there.base_offset;
            match found.get(&base) {
                None => {
                    let what = format!("the index lacks the batch at offset {base}");
                    self.fault(name, base, what);
                }
                Some(it) if it.records < there.records => {
                    let (known, records) = (it.records, there.records);
                    let what = format!("the index knows {known} of {records} records of the batch");
                    self.fault(name, base, what);
                }
                Some(it) if it.is_transactional != there.is_transactional => {
                    let what = "the index is wrong about a transaction of the batch".to_owned();
                    self.fault(name, base, what);
                }
                Some(_) => {}
            }
        }
        Ok(())
    }

    /// Returns those postings of a queue that the log has in the part. With less than [`POSTINGS_AT_ONCE`] at once,
    /// some may be missing.
    fn find_postings(
        &self,
        name: &Bytes,
        named: &Named,
        at_once: usize,
    ) -> Result<BTreeMap<i64, Posting>, Stop> {
        let at_once = at_once.min(POSTINGS_AT_ONCE);
        let last = named.postings[named.postings.len() - 1].base_offset;
        let is_wanted = |it: &Posting| {
            named.postings.binary_search_by_key(&it.base_offset, |it| it.base_offset).is_ok()
        };
        let (mut found, mut at) = (BTreeMap::new(), named.postings[0].base_offset);
        loop {
            let (page, cursor) = self.index.postings(name, at, at_once)?;
            if cursor < self.queues.end {
                return Err(Stop::Behind);
            }
            let goes_on = page.len() == POSTINGS_AT_ONCE;
            let behind = page.last().map(|it| it.base_offset);
            found.extend(page.into_iter().filter(is_wanted).map(|it| (it.base_offset, it)));
            match behind.filter(|behind| goes_on && *behind < last) {
                Some(behind) => at = behind + 1,
                None => return Ok(found),
            }
        }
    }

    /// Tells whether the first batch of a queue that the log still has is of this part.
    fn begins_here(&self, name: &Bytes) -> Result<bool, Stop> {
        let (postings, _) = self.index.postings(name, self.first_batch, 2)?;
        let first = postings.iter().find(|it| it.base_offset >= self.first_batch);
        let is_first_part = self.part.from <= self.queues.log_start;
        let from = if is_first_part { self.first_batch } else { self.part.from };
        Ok(first.is_some_and(|it| (from..self.slice.to).contains(&it.base_offset)))
    }

    /// Compares what the log says of a queue with what its index says. Returns what edits do to the queue's records
    /// here.
    fn check_facts(&mut self, name: &Bytes, named: &Named) -> Result<Effects, Stop> {
        let (facts, masks, cursor) = self.index.facts(name)?;
        if cursor < self.queues.end {
            return Err(Stop::Behind);
        }
        self.compare_facts(name, named, &facts);
        let unreadable = |offset| Stop::Unreadable(offset);
        let is_here = |offset: &i64| named.records.binary_search(offset).is_ok();
        let mut effects = Effects::default();
        // Newest first: of several edits the first one remains.
        for fact in &facts {
            let said = Said::of(fact).map_err(|_| unreadable(fact.offset))?;
            let mut withdrawn = said.withdrawn().iter().copied().filter(is_here).peekable();
            if let Some(first) = withdrawn.peek().copied()
                && fact.offset >= self.slice.to
                && self.is_unsaid(name, fact, cursor)?
            {
                self.fault(name, first, not_in_log(fact));
            }
            effects.withdrawn.extend(withdrawn.map(|it| (it, fact.offset)));
            if let Said::Replaced(replaced) = said
                && is_here(&fact.offset)
            {
                effects.contents.insert(fact.offset, replaced);
            }
        }
        self.compare_masks(name, named, (&effects, &masks));
        let before = facts.iter().filter(|it| it.offset < self.queues.end);
        let standing = Standing::of(before).map_err(|_| unreadable(cursor))?;
        effects.trimmed = standing.trim().map_or(-1, |(through, _)| through);
        Ok(effects)
    }

    /// Compares statements of the part with the facts of the index.
    fn compare_facts(&mut self, name: &Bytes, named: &Named, facts: &[Fact]) {
        type Key<'a> = (i64, u8, &'a [u8]);
        fn key(it: &Fact) -> Key<'_> {
            (it.offset, it.kind, &it.body)
        }
        let from = self.slice.batches.first().map_or(0, |it| it.header().base_offset);
        let here = facts.iter().filter(|it| (from..self.slice.to).contains(&it.offset));
        let here: BTreeSet<Key<'_>> = here.map(key).collect();
        let said: BTreeSet<Key<'_>> = named.facts.iter().map(key).collect();
        for (offset, kind, _) in said.difference(&here) {
            let what = format!("the index lacks what the log says of the queue (kind {kind})");
            self.fault(name, *offset, what);
        }
        for (offset, kind, _) in here.difference(&said) {
            if self.slice.whole.contains(offset) {
                let what =
                    format!("the index has an edit (kind {kind}) that the log does not have");
                self.fault(name, *offset, what);
            }
        }
    }

    /// Compares the masks of a queue's records with the edits that take records away.
    fn compare_masks(&mut self, name: &Bytes, named: &Named, (effects, masks): (&Effects, &Masks)) {
        for offset in named.records.iter().filter(|it| **it >= self.queues.log_start) {
            match (effects.withdrawn.get(offset), masks.hides(*offset)) {
                (None, true) => {
                    let what = "the index masks the record, and no edit takes it away".to_owned();
                    self.fault(name, *offset, what);
                }
                (Some(at), false) => {
                    let what =
                        format!("the index shows the record, which an edit at {at} takes away");
                    self.fault(name, *offset, what);
                }
                _ => {}
            }
        }
    }

    /// Tells whether the log has the batch of a fact, and that says something else.
    fn is_unsaid(&self, name: &Bytes, fact: &Fact, end: i64) -> Result<bool, Stop> {
        let replica = self.part.replica;
        let Some(range) = self.reader.locate(replica, fact.offset, end, 1, true)? else {
            return Ok(false);
        };
        let batch = BatchView::parse(&self.reader.read(replica, &range)?);
        let mut only = Slice::default();
        only.take(batch.map_err(|_| Stop::Unreadable(fact.offset))?)?;
        let says = only.named.get(name).is_some_and(|it| it.facts.contains(fact));
        Ok(only.whole.contains(&fact.offset) && !says)
    }

    /// Computes the digest of the elements.
    fn digest(
        &self,
        effects: &BTreeMap<Bytes, Effects>,
        slot: &mut DescribedReplica,
    ) -> Result<(), Stop> {
        let is_one = self.part.to - self.part.from == 1;
        let mut hasher = Hasher::new();
        slot.elements = 0;
        for batch in &self.slice.batches {
            let header = batch.header();
            if header.attributes.is_control() || self.is_aborted(batch) {
                continue;
            }
            let unreadable = |_| Stop::Unreadable(header.base_offset);
            let records = Records::of(batch, DECOMPRESSED_BYTES_MAX).map_err(unreadable)?;
            for record in &records {
                let record = record.map_err(unreadable)?;
                let version = records.offset(&record);
                let known = record.key.and_then(|key| effects.get_key_value(key));
                let Some((name, effects)) = known else { continue };
                let is_here = (self.part.from..self.slice.to).contains(&version);
                let Some(position) = self.shown(effects, &record, version).filter(|_| is_here)
                else {
                    continue;
                };
                let content = content_of(&records, &record);
                hash_bytes(&mut hasher, Some(name));
                hasher.write(&position.term.to_be_bytes());
                for number in [position.entry, position.offset, version] {
                    hasher.write(&number.to_be_bytes());
                }
                hasher.write(&content);
                slot.elements += 1;
                if is_one {
                    let (queue, digest) = (name.clone(), Bytes::copy_from_slice(&content));
                    let Position { term, entry, offset } = position;
                    slot.shown.push(DescribedElement {
                        queue,
                        term,
                        entry,
                        offset,
                        version,
                        digest,
                    });
                }
            }
        }
        slot.digest = Bytes::copy_from_slice(&hasher.finish_128().to_be_bytes());
        Ok(())
    }

    /// Returns the position of the element whose content a record is, if readers of the queue are shown it.
    fn shown(&self, effects: &Effects, record: &Record<'_>, version: i64) -> Option<Position> {
        if effects.withdrawn.get(&version).is_some_and(|at| *at < self.queues.end) {
            return None;
        }
        let position = if is_replacement(record) {
            let Replaced { term, entry, offset, .. } = *effects.contents.get(&version)?;
            Position { term, entry, offset }
        } else {
            self.slice.position(version)
        };
        Some(position).filter(|it| it.offset > effects.trimmed)
    }

    fn is_aborted(&self, batch: &BatchView) -> bool {
        let header = batch.header();
        header.attributes.is_transactional()
            && self.queues.aborted.iter().any(|(producer, first, last)| {
                header.producer_id == *producer && (*first..=*last).contains(&header.base_offset)
            })
    }
}

fn not_in_log(fact: &Fact) -> String {
    let Fact { kind, offset, .. } = fact;
    format!("the index has an edit (kind {kind}) at offset {offset} that the log does not have")
}

/// Hashes what a reader is shown of a record.
fn content_of(records: &Records, record: &Record<'_>) -> [u8; 16] {
    let mut hasher = Hasher::new();
    hasher.write(&records.timestamp(record).to_be_bytes());
    hash_bytes(&mut hasher, record.value);
    for header in record.headers {
        hash_bytes(&mut hasher, Some(header.key));
        hash_bytes(&mut hasher, header.value);
    }
    hasher.finish_128().to_be_bytes()
}

fn hash_bytes(hasher: &mut Hasher, bytes: Option<&[u8]>) {
    let length = bytes.map_or(-1, |it| i64::try_from(it.len()).unwrap_or(i64::MAX));
    hasher.write(&length.to_be_bytes());
    hasher.write(bytes.unwrap_or_default());
}
