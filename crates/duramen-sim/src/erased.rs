//! Erased logs of queues. In the end no file of a replica has records that edits took away, or that have expired. No
//! index names a queue of which its log has nothing.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use duramen_broker::Standing;
use duramen_protocol::batch::batches;
use duramen_protocol::records::{Records, Schedule};
use duramen_storage::keys::{Said, statement_with, statements_of};
use duramen_storage::{Reader, ReplicaId};

use crate::disk::SimDisk;
use crate::failure::{Failure, wrong};
use crate::machine::Machine;

/// Most names of an index that are looked at.
const NAMES: usize = 1000;

/// A log of queues as its files have it.
#[derive(Debug, Default)]
struct Scanned {
    offsets: BTreeSet<i64>,
    queues: BTreeSet<Bytes>,
    records: Vec<ScannedRecord>,
}

/// Record of a queue.
#[derive(Debug)]
struct ScannedRecord {
    queue: Bytes,
    /// Offset of the element of which it is a content.
    element: i64,
    /// Offset behind its batch.
    batch_end: i64,
    expires_ms: i64,
}

impl Scanned {
    /// Returns a record that had expired by a time, in a batch that ends below an offset. Its queue has later elements
    /// below that offset.
    fn expired(&self, below: i64, by_ms: i64) -> Option<&ScannedRecord> {
        let here = self.records.iter().filter(|it| it.element < below);
        let mut last = BTreeMap::new();
        for it in here.clone().filter(|it| it.batch_end <= below) {
            let place = last.entry(&it.queue).or_insert(it.element);
            *place = it.element.max(*place);
        }
        let is_over = |it: &&ScannedRecord| it.expires_ms <= by_ms && it.batch_end < below;
        here.filter(is_over).find(|it| last.get(&it.queue).is_some_and(|last| it.element < *last))
    }
}

impl Machine {
    /// Returns a log whose erasure has not come to its end, if there is one.
    pub(crate) fn unerased(&self) -> Option<Standing> {
        let reader = self.reader()?;
        self.standings().into_iter().find(|it| {
            let Some(index) = reader.index(it.replica) else { return false };
            let found = index.erasable(it.compacted.below.max(it.log_start));
            found.map_or(true, |(found, _)| found.is_some()) || index.erased() != it.compacted
        })
    }

    /// Checks the files of all logs of queues, once their erasure has come to its end. `is_gone` tells whether edits
    /// took the record at an offset of a partition away.
    pub(crate) fn check_erased(&self, is_gone: impl Fn(i32, i64) -> bool) -> Result<(), Failure> {
        let Some(reader) = self.reader() else { return Ok(()) };
        for it in self.standings() {
            let Some(index) = reader.index(it.replica) else { continue };
            let (from, to) = (it.log_start, it.committed);
            let Some(found) = scan(&reader, it.replica, from, to) else { continue };
            let below = it.compacted.below;
            // A batch may reach across the log start: what is below goes with its segment.
            let is_here = |offset: i64| (from..below).contains(&offset);
            let left = |offset: &&i64| is_here(**offset) && is_gone(it.partition, **offset);
            if let Some(offset) = found.offsets.iter().find(left) {
                return wrong(format!("{offset} is not erased of {it:?}"));
            }
            if let Some(left) = found.expired(below, it.expired_by_ms) {
                return wrong(format!("{left:?} had expired, and is not erased of {it:?}"));
            }
            let Ok((names, _)) = index.names(b"", None, (NAMES, from)) else { continue };
            let is_left = |name: &Bytes| found.queues.contains(name);
            // Records between the first segment's begin and the log start are there, and nobody sees them.
            let is_whole = from == 0;
            if let Some(other) = names.iter().find(|it| is_whole && !is_left(&it.name)) {
                return wrong(format!("an index names {other:?}, and nothing is left of it"));
            }
        }
        Ok(())
    }
}

/// Reads a log; `None` if it cannot be read.
fn scan(reader: &Reader<SimDisk>, replica: ReplicaId, from: i64, to: i64) -> Option<Scanned> {
    let mut found = Scanned::default();
    let mut at = from;
    while at < to {
        let Some(range) = reader.locate(replica, at, to, 1 << 20, true).ok()? else { break };
        let bytes = reader.read(replica, &range).ok()?;
        for batch in batches(bytes).map_while(Result::ok) {
            at = batch.header().end_offset();
            if batch.header().attributes.is_control() {
                let said = statements_of(&batch).ok()?.unwrap_or_default();
                found.queues.extend(said.into_iter().map(|it| it.queue));
                continue;
            }
            let records = Records::of(&batch, 1 << 20).ok()?;
            for record in &records {
                let record = record.ok()?;
                found.offsets.insert(records.offset(&record));
                found.queues.extend(record.key.map(Bytes::copy_from_slice));
                let said = statement_with(batch.header(), &record).ok().flatten();
                let element = match said.as_ref().map(|it| &it.said) {
                    Some(Said::Replaced(it)) => it.offset,
                    _ => records.offset(&record),
                };
                found.records.extend(record.key.map(|key| ScannedRecord {
                    queue: Bytes::copy_from_slice(key),
                    element,
                    batch_end: at,
                    expires_ms: Schedule::of(&record).expires_ms,
                }));
                found.queues.extend(said.map(|it| it.queue));
            }
        }
    }
    Some(found)
}
