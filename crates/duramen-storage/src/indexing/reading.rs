//! The log of one replica, read into its index; and the choice of tables when the index is opened.

use std::ops::Range;

use duramen_protocol::BatchHeader;
use duramen_protocol::batch::{BatchView, batches};
use duramen_protocol::records::{RecordError, Records, Schedule};

use super::order::{Limits, Order, Touched, queue_hash};
use crate::Disk;
use crate::catalog::LogFiles;
use crate::format::{NEW_TABLE, table_range};
use crate::keys::{
    Batch, Index, IndexError, Statement, Table, remove, statement_with, statements_of,
};
use crate::op::Identity;
use crate::reader::{ReadError, Reader};
use crate::sabotage::{self, Bug};

/// Most bytes of a batch's records, decompressed.
pub(super) const RECORD_BYTES_MAX: usize = 1 << 30;

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

/// Batch of a part.
#[derive(Debug)]
struct FoundBatch {
    header: BatchHeader,
    /// Place in [`Found::queues`] behind the last one of the batch.
    queues_end: usize,
    said: Vec<Statement>,
    expires_ms: Option<i64>,
}

/// Batches of a part, with the number of records that each has of its queues. All names are in one piece of memory.
#[derive(Debug, Default)]
struct Found {
    batches: Vec<FoundBatch>,
    /// Place of a queue's name in `names`, and the number of its records.
    queues: Vec<(Range<usize>, u32)>,
    names: Vec<u8>,
    /// True if a transaction ends in the part.
    has_marker: bool,
}

impl Found {
    /// Adds a batch with the keys of its records, each once and in order.
    fn push(&mut self, batch: &BatchView) -> Result<(), &'static str> {
        const UNREADABLE: &str = "a batch's records cannot be read";
        let (header, mut expires_ms) = (*batch.header(), None);
        let said = if header.attributes.is_control() {
            let made = statements_of(batch)?;
            self.has_marker |= made.is_none();
            made.unwrap_or_default()
        } else {
            let records = Records::of(batch, RECORD_BYTES_MAX).map_err(|_| UNREADABLE)?;
            let has_headers = self.push_records(&records).map_err(|_| UNREADABLE)?;
            if has_headers {
                expires_ms = first_expiry(&records).map_err(|_| UNREADABLE)?;
            }
            let first = records.iter().next().transpose().map_err(|_| UNREADABLE)?;
            let made = first.map(|first| statement_with(&header, &first)).transpose()?;
            made.flatten().into_iter().collect()
        };
        if !said.iter().all(|it| it.is_before(header.base_offset)) {
            return Err("a fact is about a later record");
        }
        let queues_end = self.queues.len();
        self.batches.push(FoundBatch { header, queues_end, said, expires_ms });
        Ok(())
    }

    /// Adds the keys of a batch. Tells whether a record with a key has headers.
    fn push_records(&mut self, records: &Records) -> Result<bool, RecordError> {
        // Records of one queue often follow each other.
        let (mut runs, mut has_headers) = (Vec::<(&[u8], u32)>::new(), false);
        for keyed in records.keys() {
            let keyed = keyed?;
            let Some(key) = keyed.key else { continue };
            has_headers |= keyed.has_headers;
            match runs.last_mut() {
                Some((last, records)) if *last == key => *records += 1,
                _ => runs.push((key, 1)),
            }
        }
        runs.sort_unstable_by_key(|(key, _)| *key);
        runs.dedup_by(|(key, records), (kept, sum)| {
            let is_same = key == kept;
            *sum += if is_same { *records } else { 0 };
            is_same
        });
        for (key, records) in runs {
            let at = self.names.len();
            self.names.extend_from_slice(key);
            self.queues.push((at..self.names.len(), records));
        }
        Ok(has_headers)
    }

    fn hashes(&self, seed: u64) -> Vec<u64> {
        let names = self.queues.iter().map(|(place, _)| &self.names[place.clone()]);
        names.map(|name| queue_hash(name, seed)).collect()
    }

    fn batches(&self) -> impl Iterator<Item = Batch<'_, impl Iterator<Item = (&[u8], u32)>>> {
        let mut from = 0;
        self.batches.iter().map(move |FoundBatch { header, queues_end, said, expires_ms }| {
            let queues = &self.queues[from..*queues_end];
            from = *queues_end;
            let names = queues.iter().map(|(place, of)| (&self.names[place.clone()], *of));
            Batch { header, names, said, expires_ms: *expires_ms }
        })
    }
}

/// Returns the time from which the first of these records is of no use. One without a key is of no queue.
pub(super) fn first_expiry(records: &Records) -> Result<Option<i64>, RecordError> {
    let mut first_ms = i64::MAX;
    for record in records {
        let record = record?;
        if record.key.is_some() {
            first_ms = first_ms.min(Schedule::of(&record).expires_ms);
        }
    }
    Ok((first_ms < i64::MAX).then_some(first_ms))
}

/// Opens the index of a replica: takes the tables that are of its log, and removes all others.
pub(super) fn open<D: Disk>(reader: &Reader<D>, order: &Order) -> Result<Index<D>, Stop> {
    let files = reader.catalog().get(order.replica)?;
    let dir = order.identity.dir();
    let disk_failed = |source| Stop::Log(ReadError::Disk { path: dir.clone(), source });
    let disk = reader.disk();
    let mut tables = Vec::new();
    for name in disk.list(&dir).map_err(disk_failed)? {
        let is_new = name.ends_with(NEW_TABLE);
        let is_left = is_new && sabotage::is(Bug::UnfinishedTableStays);
        if is_left || !is_new && table_range(&name).is_none() {
            continue;
        }
        let opened = if is_new { None } else { open_table(disk, &dir, &name)? };
        match opened.filter(|table| is_of(table, order, &files)) {
            Some(table) => tables.push(table),
            None => remove(disk, &format!("{dir}/{name}")),
        }
    }
    let start = order.start_of(files.start_offset());
    let (chain, others) = chain(tables, start);
    for other in others {
        remove(disk, other.path());
    }
    let cursor = chain.last().map_or(start, |last| last.header().to);
    let Identity { topic_id, partition, .. } = order.identity;
    let of = (topic_id, partition);
    Ok(Index::new(of, order.replica, dir.clone(), (chain, cursor), (start, files.compacted())))
}

/// Reads about a step's bytes of the log, at most up to `to`, and indexes them. The memory of `buffer` is used again.
pub(super) fn read_on<D: Disk>(
    reader: &Reader<D>,
    index: &Index<D>,
    order: &Order,
    limits: &Limits,
    buffer: &mut Vec<u8>,
) -> Result<Part, Stop> {
    let (replica, to) = (order.replica, order.to);
    let files = reader.catalog().get(replica)?;
    let from = index.cursor().max(order.start_of(files.start_offset())).min(to);
    let Some(range) = reader.locate(replica, from, to, limits.step_bytes, true)? else {
        if from < to {
            return Err(Stop::Wait);
        }
        // After a start its tables may reach further than what the node knows to be committed.
        if index.cursor() >= from {
            return Ok(Part::default());
        }
        index.pass(from);
        return Ok(Part { bytes: 0, touched: Touched::All });
    };
    let bytes = match reader.read_into(replica, &range, std::mem::take(buffer)) {
        Err(ReadError::Damaged { .. }) if sabotage::is(Bug::CursorPassesDamage) => {
            index.pass(to);
            return Ok(Part { bytes: 0, touched: Touched::All });
        }
        read => read?,
    };
    let damaged = |what| {
        let path = files.segment_of(from).map_or_else(String::new, |it| it.path());
        Stop::Log(ReadError::Damaged { path, at: range.at, what })
    };
    let mut found = Found::default();
    for batch in batches(bytes.clone()) {
        // The last batch may be cut: the next part begins with it.
        let Ok(batch) = batch else { break };
        if batch.header().base_offset >= to {
            break;
        }
        match found.push(&batch) {
            Err(_) if sabotage::is(Bug::CursorPassesDamage) => {
                index.pass(to);
                return Ok(Part { bytes: 0, touched: Touched::All });
            }
            pushed => pushed.map_err(damaged)?,
        }
    }
    if found.batches.is_empty() {
        return Err(damaged("there is no whole batch"));
    }
    // The end of a transaction may show records of any queue.
    let touched = if found.has_marker {
        Touched::All
    } else {
        Touched::of(found.hashes(limits.seed), limits)
    };
    let part = Part { bytes: bytes.len() as u64, touched };
    index.insert(found.batches(), part.bytes);
    if bytes.len() <= limits.step_bytes as usize {
        *buffer = bytes.into();
    }
    Ok(part)
}

/// Opens a table; `None` for one that is of no use.
fn open_table<D: Disk>(disk: &D, dir: &str, name: &str) -> Result<Option<Table<D>>, Stop> {
    match Table::open(disk, dir, name) {
        Ok(table) => Ok(Some(table)),
        Err(IndexError::Disk { path, source, .. }) => {
            Err(Stop::Log(ReadError::Disk { path, source }))
        }
        Err(IndexError::UnknownVersion { path, .. }) if sabotage::is(Bug::UnknownTableStops) => {
            Err(Stop::Log(ReadError::Damaged { path, at: 0, what: "a version is unknown" }))
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
    is_same && is_below && is_current && header.to > order.start_of(files.start_offset())
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
