//! # Room card: waits
//!
//! Purpose:    judge how long reads wait for elements of queues, and which elements end their waits.
//! Owns:       the queues of each log that a process indexes, as its segments have them; its reads that wait.
//! Interface:  [`Waits`], of which each process has one.
//! Invariants: pieces of work count, not time: a machine that stands still, or is slow, is not late. A piece counts if
//!             it was done, or if there was nothing to do. A read whose log is indexed to its end has its element once
//!             all looks are done.
//! Never:      the queue index, which it judges.
//! Tests:      planted bugs.
//! Start at:   [`Waits::check`].

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use duramen_broker::event::{FoundElements, QueueLooked};
use duramen_broker::native::{Answer, Op, Queue, Span, Start, Target};
use duramen_broker::session::Prepared;
use duramen_broker::{Action, ConnectionId, Event, Node, Now, Reply, Standing};
use duramen_protocol::batch::batches;
use duramen_protocol::records::{Records, Schedule};
use duramen_storage::ReplicaId;
use duramen_storage::indexing::{Indexed, Order, Touched, queue_hash};
use duramen_storage::keys::{Said, Statement, is_replacement, statement_with, statements_of};
use duramen_storage::op::Identity;

use crate::disk::SimDisk;

/// Pieces of work within which a committed batch is indexed, and an indexed element ends the waits of its readers.
const PIECES_MAX: u64 = 300;
/// Time in which nothing is demanded after an order that failed, in microseconds. The node repeats it after a second.
const PAUSE_US: u64 = 1_500_000;
const RECORD_BYTES_MAX: usize = 1 << 20;

/// Log that a process indexes.
struct Log {
    identity: Identity,
    beginning: u64,
    start: i64,
    /// Offset up to which the node knows the log to be indexed.
    indexed: i64,
    /// Offset up to which the queues below are known.
    known: i64,
    queues: BTreeMap<Bytes, BTreeSet<i64>>,
    /// Elements that readers may not see, because they expire.
    expiring: BTreeSet<i64>,
    /// Element of each record that is the content of one which was appended before.
    contents: BTreeMap<i64, i64>,
    /// First offset of each queue that is not trimmed.
    firsts: BTreeMap<Bytes, i64>,
    /// Number of pieces of the index's work when the log was first seen to be behind; `None` once the index goes on.
    behind: Option<u64>,
}

/// Read that may wait.
struct Read {
    queue: Queue,
    /// Offset from which it reads; `None` for the end of the log, wherever that is when the read begins to wait.
    from: Option<i64>,
    /// Time before which only an element may end the wait, in microseconds.
    until_us: u64,
    /// True if the node has a reason to answer before: the queue was named, or any may be meant.
    is_woken: bool,
    /// Numbers of looks, and of times without one, when there was an element, and the read waited.
    due: Option<(u64, u64)>,
}

/// See the room card.
#[derive(Default)]
pub(crate) struct Waits {
    logs: BTreeMap<ReplicaId, Log>,
    reads: BTreeMap<(ConnectionId, u64), Read>,
    /// Pieces of work on looks, those in which there was no look, and pieces of work on indexes.
    looks: u64,
    rests: u64,
    steps: u64,
    /// Time of the node's last turn, in microseconds.
    pub(crate) now_us: u64,
    paused_until_us: u64,
    seed: u64,
    fault: Option<String>,
}

impl Log {
    fn new(order: &Order) -> Self {
        Self {
            identity: order.identity.clone(),
            beginning: order.beginning,
            start: 0,
            indexed: -1,
            known: 0,
            queues: BTreeMap::new(),
            expiring: BTreeSet::new(),
            contents: BTreeMap::new(),
            firsts: BTreeMap::new(),
            behind: None,
        }
    }

    /// Reads the queues of the log's batches below the indexed end. Nobody changes these bytes any more.
    fn read_on(&mut self, disk: &SimDisk) {
        let Identity { topic, partition, .. } = &self.identity;
        let dir = format!("{topic}-{partition}/");
        // Of a segment that was written anew the later one counts.
        let mut segments: BTreeMap<i64, (u64, String)> = BTreeMap::new();
        for (path, _) in disk.files() {
            let place = path.strip_prefix(&dir).and_then(place_of);
            let Some((base, generation)) = place else { continue };
            let here = segments.entry(base).or_default();
            if here.1.is_empty() || here.0 <= generation {
                *here = (generation, path);
            }
        }
        let first = segments.range(..=self.known).next_back().map_or(0, |(base, _)| *base);
        for path in segments.range(first..).map(|(_, (_, path))| path) {
            let bytes = disk.contents(path).unwrap_or_default();
            for batch in batches(Bytes::from(bytes)).map_while(Result::ok) {
                let header = *batch.header();
                if header.base_offset < self.known {
                    continue;
                }
                if header.end_offset() > self.indexed || !batch.crc_matches() {
                    return;
                }
                self.known = header.end_offset();
                if header.attributes.is_control() {
                    for statement in statements_of(&batch).ok().flatten().unwrap_or_default() {
                        self.hear(header.base_offset, &statement);
                    }
                    continue;
                }
                let records = Records::of(&batch, RECORD_BYTES_MAX);
                let Ok(records) = records else { return };
                let first = records.iter().next().and_then(Result::ok);
                let said = first.map(|first| statement_with(&header, &first));
                if let Some(statement) = said.and_then(Result::ok).flatten() {
                    self.hear(header.base_offset, &statement);
                }
                for record in records.iter().map_while(Result::ok) {
                    if let Some(key) = record.key.filter(|_| !is_replacement(&record)) {
                        let queue = self.queues.entry(Bytes::copy_from_slice(key)).or_default();
                        queue.insert(records.offset(&record));
                        if Schedule::of(&record).expires_ms < i64::MAX {
                            self.expiring.insert(records.offset(&record));
                        }
                    }
                }
            }
        }
    }

    /// Forgets elements that a statement takes away, and notes where the contents of others are.
    fn hear(&mut self, at: i64, statement: &Statement) {
        if let Said::Replaced(replaced) = &statement.said {
            self.contents.insert(at, replaced.offset);
            // Its first record may be erased.
            let queue = self.queues.entry(statement.queue.clone()).or_default();
            queue.insert(replaced.offset);
            return;
        }
        if let Said::Trimmed { through, .. } = statement.said {
            let first = self.firsts.entry(statement.queue.clone()).or_default();
            *first = (through + 1).max(*first);
        }
        let withdrawn = statement.said.withdrawn().iter();
        let elements = withdrawn.map(|it| self.contents.get(it).unwrap_or(it));
        let Some(queue) = self.queues.get_mut(&statement.queue) else { return };
        for element in elements {
            queue.remove(element);
        }
    }

    fn holds(&self, queue: &Queue, from: i64, end: i64) -> bool {
        let first = self.firsts.get(&queue.name).copied().unwrap_or(0);
        let from = from.max(self.start).max(first);
        self.there(queue, from, end).any(|it| !self.expiring.contains(&it))
    }

    /// Tells whether a queue is trimmed at or behind an offset: a reader there may learn that.
    fn is_trimmed(&self, queue: &Queue, from: i64) -> bool {
        self.firsts.get(&queue.name).is_some_and(|first| *first > from)
    }

    /// Does the same, whether or not the log has lost its first records since.
    fn held(&self, queue: &Queue, from: i64, end: i64) -> bool {
        self.there(queue, from, end).next().is_some()
    }

    fn there(&self, queue: &Queue, from: i64, end: i64) -> impl Iterator<Item = i64> {
        let is_own = queue.topic == self.identity.topic;
        let elements = self.queues.get(&queue.name).filter(|_| is_own && from < end);
        elements.into_iter().flat_map(move |them| them.range(from..end).copied())
    }
}

/// Returns base offset and generation of a segment by the name of its file.
fn place_of(name: &str) -> Option<(i64, u64)> {
    let stem = name.strip_suffix(".log")?;
    let (base, rest) = stem.split_once('.').unwrap_or((stem, ""));
    let generation = rest.split('-').nth(1).map_or(Some(0), |it| it.parse().ok())?;
    Some((base.parse().ok()?, generation))
}

impl Waits {
    pub(crate) fn new(node: &Node) -> Self {
        Self { seed: node.queue_seed(), ..Self::default() }
    }

    /// Notes an event before the node takes it.
    pub(crate) fn on_event(&mut self, now: Now, event: &Event, disk: &SimDisk) {
        self.now_us = now.mono_us;
        match event {
            Event::Request { connection, sequence, request, .. } => {
                if let Prepared::Native(op) = &**request {
                    self.on_asked((*connection, *sequence), op);
                }
            }
            Event::Disconnected(connection) => self.reads.retain(|key, _| key.0 != *connection),
            Event::Indexed(indexed) => self.on_indexed(indexed, disk),
            Event::IndexLost(replica) => {
                if let Some(log) = self.logs.get_mut(replica) {
                    (log.indexed, log.behind) = (-1, None);
                }
                self.excuse();
            }
            Event::QueueLooked(QueueLooked { found, .. }) => {
                if matches!(found, FoundElements::NoIndex | FoundElements::Unreadable) {
                    self.excuse();
                }
            }
            _ => {}
        }
    }

    /// Notes that a read may come to its end without an element.
    fn excuse(&mut self) {
        self.reads.values_mut().for_each(|read| read.is_woken = true);
    }

    fn on_asked(&mut self, key: (ConnectionId, u64), op: &Op) {
        let Op::Retrieve(asked) = op else { return };
        let Target::Queue(queue) = &asked.target else { return };
        let from = match asked.start {
            Start::Begin => Some(0),
            Start::End => None,
            Start::At(offset) => Some(offset),
            Start::After(position) => Some(position.offset + 1),
        };
        let wait_us = u64::try_from(asked.wait_ms).unwrap_or(0) * 1000;
        if wait_us > 0 {
            let (queue, until_us) = (queue.clone(), self.now_us + wait_us);
            let read = Read { queue, from, until_us, is_woken: false, due: None };
            self.reads.insert(key, read);
        }
    }

    fn on_indexed(&mut self, indexed: &Indexed, disk: &SimDisk) {
        if indexed.problem.is_some() {
            self.paused_until_us = self.now_us + PAUSE_US;
        }
        let Some(log) = self.logs.get_mut(&indexed.replica) else { return };
        if log.beginning != indexed.beginning {
            return;
        }
        if indexed.to > log.indexed {
            log.behind = None;
        }
        // Older elements of any queue may be there.
        let is_opened = log.indexed < 0;
        log.indexed = indexed.to;
        log.read_on(disk);
        for read in self.reads.values_mut().filter(|it| it.queue.topic == log.identity.topic) {
            read.is_woken |= match &indexed.touched {
                Touched::These(hashes) if !is_opened => {
                    hashes.contains(&queue_hash(&read.queue.name, self.seed))
                }
                _ => true,
            };
        }
    }

    /// Notes what the node does.
    pub(crate) fn on_action(&mut self, action: &Action) {
        match action {
            Action::Index(order) => {
                let log = self.logs.entry(order.replica).or_insert_with(|| Log::new(order));
                if log.beginning != order.beginning {
                    *log = Log::new(order);
                }
            }
            Action::Reply { connection, sequence, reply } => {
                let Some(read) = self.reads.remove(&(*connection, *sequence)) else { return };
                if let Reply::Native(answered) = reply
                    && let Ok(Answer::Span(span)) = &answered.answer
                {
                    self.on_answered(&read, span);
                }
            }
            _ => {}
        }
    }

    /// Judges the end of a wait.
    fn on_answered(&mut self, read: &Read, span: &Span) {
        let has_some = self.logs.get(&span.replica).is_none_or(|log| {
            let from = read.from.unwrap_or(span.from).min(span.from);
            let is_told = log.known < span.end || log.is_trimmed(&read.queue, from);
            is_told || log.held(&read.queue, from, span.end)
        });
        if self.now_us < read.until_us && !read.is_woken && !has_some {
            let name = &read.queue.name;
            self.fault = Some(format!("a wait for {name:?} ends without reason: {span:?}"));
        }
    }

    /// Notes a piece of work on looks, of which there may have been none (`rests`).
    pub(crate) fn on_look(&mut self, node: &Node, rests: bool) {
        self.looks += 1;
        self.rests += u64::from(rests);
        self.check(node);
    }

    /// Notes a piece of work on indexes.
    pub(crate) fn on_step(&mut self) {
        self.steps += 1;
    }

    /// Checks that no index stands still, and no read waits on although an element is there.
    fn check(&mut self, node: &Node) {
        if self.reads.is_empty() {
            self.logs.values_mut().for_each(|log| log.behind = None);
            return;
        }
        let standings: BTreeMap<ReplicaId, Standing> =
            node.standings().into_iter().map(|it| (it.replica, it)).collect();
        self.logs.retain(|replica, _| standings.contains_key(replica));
        let is_paused = self.now_us < self.paused_until_us;
        for (replica, log) in &mut self.logs {
            let standing = &standings[replica];
            log.start = standing.log_start;
            if is_paused || log.indexed >= standing.committed || standing.failure.is_some() {
                log.behind = None;
                continue;
            }
            // Checks are rare while a look is slow, so the time before the first one does not count.
            if self.steps - *log.behind.get_or_insert(self.steps) > PIECES_MAX {
                let (end, committed) = (log.indexed, standing.committed);
                let what = format!("{:?} is indexed to {end} of {committed}", log.identity);
                self.fault.get_or_insert(what);
            }
        }
        for (key, read) in &mut self.reads {
            let found = read.from.and_then(|from| {
                let mut logs = self.logs.iter();
                logs.find(|(_, log)| log.holds(&read.queue, from, log.indexed))
            });
            // Before its log is indexed to its end, a read may wait for that.
            let is_free = |(replica, log): &(&ReplicaId, &Log)| {
                let is_whole = log.indexed >= standings[*replica].committed;
                is_whole && !is_paused && node.waits_for_queue(*key)
            };
            let (Some((_, log)), Some(from)) = (found.filter(is_free), read.from) else {
                read.due = None;
                continue;
            };
            let (looks, rests) = *read.due.get_or_insert((self.looks, self.rests));
            let is_late = self.looks - looks > PIECES_MAX || self.rests - rests > 1;
            if is_late {
                let (name, to) = (&read.queue.name, log.indexed);
                let what =
                    format!("read {key:?} of {name:?} waits, and there is one in {from}..{to}");
                self.fault.get_or_insert(what);
            }
        }
    }

    /// Returns a fault that was found.
    pub(crate) fn fault(&self) -> Option<&str> {
        self.fault.as_deref()
    }
}
