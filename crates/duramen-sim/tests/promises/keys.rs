//! The queue index of a log, over a disk that loses power: it says of each key what a scan of the log says.
#![expect(clippy::unwrap_used, reason = "a test's own failure is a failure")]

use std::collections::BTreeMap;
use std::path::Path;

use bytes::{Bytes, BytesMut};
use duramen_protocol::compression::Codec;
use duramen_protocol::records::{BatchBuilder, NewRecord};
use duramen_sim::SimDisk;
use duramen_sim::prng::Prng;
use duramen_storage::indexing::{Indexed, Indexer, Limits, Order, Step, Touched, queue_hash};
use duramen_storage::keys::{Deleted, FACT_HEADER, Said, Statement, batch_of};
use duramen_storage::op::{Append, ConfState, Content, HardState, LogEntry};
use duramen_storage::{Descriptor, Done, Op, OpKind, ReplicaId, Storage};

use super::rig::{self, identity, index_limits, options};

const REPLICA: ReplicaId = ReplicaId(7);
const SEED: u64 = 99;
const QUEUES: u64 = 14;

fn name_of(number: u64) -> Vec<u8> {
    format!("queue-{number:03}").into_bytes()
}

/// A batch of the log, as the test knows it.
#[derive(Clone, Debug)]
struct Batch {
    base: i64,
    end: i64,
    names: BTreeMap<Vec<u8>, u32>,
}

/// A storage with one log, its index, and all that the log has.
struct Tested {
    disk: SimDisk,
    storage: Storage<SimDisk>,
    indexer: Indexer<SimDisk>,
    prng: Prng,
    batches: Vec<Batch>,
    term: u64,
    next_index: u64,
    start: i64,
    segments: Vec<i64>,
    beginning: u64,
}

impl Tested {
    fn new(seed: u64) -> Self {
        let disk = SimDisk::new(seed);
        let (mut storage, _) = Storage::open(disk.clone(), options()).unwrap();
        let conf = ConfState { voters: vec![7], ..ConfState::default() };
        let kind = OpKind::Create { ticket: 1, identity: identity(), conf };
        storage.submit(Op { replica: REPLICA, kind });
        let indexer = Indexer::new(storage.reader(), index_limits(SEED));
        let (batches, segments) = (Vec::new(), Vec::new());
        let prng = Prng::new(seed, "keys");
        let mut tested = Self {
            disk,
            storage,
            indexer,
            prng,
            batches,
            term: 1,
            next_index: 2,
            start: 0,
            segments,
            beginning: 0,
        };
        tested.settle();
        tested
    }

    fn end(&self) -> i64 {
        self.batches.last().map_or(self.start, |it| it.end)
    }

    /// Appends one batch with records of a few queues.
    fn append(&mut self) {
        let base = self.end();
        let count = 1 + self.prng.below(6);
        let mut builder = BatchBuilder::new()
            .base_offset(base)
            .partition_leader_epoch(i32::try_from(self.term).unwrap());
        let mut names = BTreeMap::new();
        for _ in 0..count {
            let name = name_of(self.prng.below(QUEUES));
            let value = vec![b'v'; usize::try_from(self.prng.below(80)).unwrap()];
            let record = NewRecord { key: Some(&name), value: Some(&value), ..Default::default() };
            builder.push(&record).unwrap();
            *names.entry(name).or_default() += 1;
        }
        let rolls = self.batches.is_empty() || self.prng.below(12) == 0;
        self.append_batch(builder.build().unwrap(), names, rolls);
    }

    /// Appends a batch of the log's end.
    fn append_batch(&mut self, payload: Bytes, names: BTreeMap<Vec<u8>, u32>, rolls: bool) {
        let base = self.end();
        let batch = Descriptor::of_batch(&payload, rolls).unwrap();
        if rolls {
            self.segments.push(base);
        }
        let end = batch.end_offset();
        let index = self.next_index;
        self.next_index += 1;
        let entry = LogEntry { index, term: self.term, content: Content::Batch(batch) };
        let appends = vec![Append { entry, payload }];
        let hard_state = Some(HardState { term: self.term, vote: 7, commit: index });
        let kind = OpKind::Write { ticket: index, appends, hard_state, must_sync: true };
        self.storage.submit(Op { replica: REPLICA, kind });
        self.batches.push(Batch { base, end, names });
    }

    /// All that is under way comes to its end.
    fn settle(&mut self) {
        let index = self.next_index - 1;
        let done = rig::settle(&mut self.storage, &self.disk, |storage, done| {
            if let Done::WantImage { replica } = *done {
                let image = Bytes::from_static(b"image");
                storage.submit(Op { replica, kind: OpKind::Image { index, image } });
            }
        });
        done.unwrap();
    }

    /// Writes what waits, and syncs nothing.
    fn write(&mut self) {
        if self.storage.begin_round().unwrap().is_some() {
            self.storage.write_segments().unwrap();
        }
    }

    fn order(&mut self) {
        let (identity, beginning) = (identity(), self.beginning);
        self.indexer.order(Order {
            replica: REPLICA,
            identity,
            beginning,
            start: 0,
            to: self.end(),
        });
    }

    /// Indexes all; returns what was touched.
    fn index(&mut self) -> Vec<Indexed> {
        self.order();
        let mut all = Vec::new();
        for _ in 0..10_000 {
            match self.indexer.step(true) {
                Step::Idle => return all,
                Step::Wait => panic!("all is written"),
                Step::Merged => {}
                Step::Indexed(indexed) => {
                    assert_eq!(indexed.problem, None);
                    all.push(indexed);
                }
            }
        }
        panic!("the index is never done")
    }

    /// Appends and indexes until a rest may find something to flush.
    fn grow(&mut self) {
        loop {
            self.append();
            self.settle();
            self.index();
            if self.indexer.may_rest() {
                return;
            }
        }
    }

    fn trim(&mut self) {
        let Some(at) = self.segments.get(1).copied() else { return };
        self.storage.submit(Op { replica: REPLICA, kind: OpKind::Trim { log_start: at } });
        self.settle();
        self.segments.remove(0);
        self.start = at;
        self.batches.retain(|it| it.base >= at);
    }

    /// Loses power with the last batches written, not synced, and indexed; the log goes on in another term.
    fn lose_power(&mut self) {
        let safe = (self.batches.len(), self.next_index, self.segments.clone());
        for _ in 0..=self.prng.below(30) {
            self.append();
        }
        self.write();
        if self.prng.below(3) > 0 {
            self.order();
            for _ in 0..self.prng.below(40) {
                self.indexer.step(true);
            }
        }
        self.disk = self.disk.power_loss();
        let (storage, found) = Storage::open(self.disk.clone(), options()).unwrap();
        assert_eq!(found.replicas[0].damage, None);
        let end = found.replicas[0].end_offset;
        self.storage = storage;
        self.indexer = Indexer::new(self.storage.reader(), index_limits(SEED));
        assert!(self.batches.get(safe.0.wrapping_sub(1)).is_none_or(|it| it.end <= end));
        let lost = self.batches.iter().filter(|it| it.base >= end).count();
        self.batches.retain(|it| it.base < end);
        self.segments.retain(|base| *base < end);
        self.next_index -= u64::try_from(lost).unwrap();
        self.term += 1;
        self.settle();
        // A later index than the log: tables are judged by their terms.
        if self.prng.below(2) == 0 {
            for _ in 0..self.prng.below(30) {
                self.append();
            }
            self.settle();
        }
    }

    /// Returns the paths and lengths of files with an extension.
    fn files(&self, extension: &str) -> Vec<(String, u64)> {
        let all = self.disk.files().into_iter();
        all.filter(|(path, _)| Path::new(path).extension().is_some_and(|it| it == extension))
            .collect()
    }

    /// Damages a table.
    fn damage(&mut self) {
        let tables = self.files("keys");
        if tables.is_empty() {
            return;
        }
        let (path, length) =
            &tables[usize::try_from(self.prng.below(tables.len() as u64)).unwrap()];
        assert!(self.disk.flip(path, self.prng.below(*length), 3));
        // Readers may come to the block, and their answer is an error.
        self.compare(true);
        self.index();
    }

    /// Restarts without tables, over a log that cannot be read in one place until somebody mends it.
    fn rot(&mut self) {
        self.disk = self.disk.kill();
        for (path, _) in self.files("keys") {
            self.disk.put(&path, None);
        }
        let segments = self.files("log");
        // Recovery itself looks at the last one.
        let rots = segments.len() > 1;
        let (path, length) = &segments[0];
        let at = self.prng.below(*length);
        let whole = self.disk.contents(path).unwrap();
        if rots {
            assert!(self.disk.flip(path, at, 4));
        }
        let (storage, found) = Storage::open(self.disk.clone(), options()).unwrap();
        assert_eq!(found.replicas[0].damage, None);
        self.storage = storage;
        self.indexer = Indexer::new(self.storage.reader(), index_limits(SEED));
        self.settle();
        self.order();
        for _ in 0..1000 {
            match self.indexer.step(true) {
                Step::Indexed(Indexed { problem: Some(problem), .. }) => {
                    assert!(rots && problem.contains("damaged"), "{problem}");
                    break;
                }
                Step::Idle => break,
                _ => {}
            }
        }
        if self.disk.contents(path).unwrap() != whole {
            assert!(self.disk.flip(path, at, 4));
        }
    }

    /// Restarts over a table that another version of Duramen wrote.
    fn change_version(&mut self) {
        let tables = self.files("keys");
        if tables.is_empty() {
            return;
        }
        let (path, _) = &tables[self.prng.index(tables.len())];
        // The second byte of the version.
        let version = self.disk.contents(path).unwrap()[5];
        assert!(self.disk.flip(path, 5, 6));
        self.restart();
        self.index();
        let now = self.disk.contents(path);
        assert!(now.is_none_or(|bytes| bytes[5] == version), "{path} stays");
    }

    fn restart(&mut self) {
        self.disk = self.disk.kill();
        let (storage, found) = Storage::open(self.disk.clone(), options()).unwrap();
        assert_eq!(found.replicas[0].damage, None);
        self.storage = storage;
        self.indexer = Indexer::new(self.storage.reader(), index_limits(SEED));
        self.settle();
    }

    /// Restarts as a node does that has not heard yet how far its log is committed.
    fn restart_behind(&mut self) {
        self.restart();
        let Some(known) = self.batches.len().checked_sub(1) else { return };
        let known = self.prng.below(u64::try_from(known).unwrap() + 1);
        let (identity, beginning) = (identity(), self.beginning);
        let to = self.batches[usize::try_from(known).unwrap()].base;
        self.indexer.order(Order { replica: REPLICA, identity, beginning, start: 0, to });
        while !matches!(self.indexer.step(true), Step::Idle) {}
        self.compare(true);
    }

    /// Compares the index with a scan of the log.
    fn compare(&self, may_fail: bool) {
        let index = self.storage.reader().index(REPLICA).unwrap();
        if !self.indexer.has_work() {
            assert_eq!(self.files("new"), [], "a table has its name, or it is gone");
        }
        for number in 0..=QUEUES {
            let name = name_of(number);
            let (found, cursor) = match index.postings(&name, self.start, usize::MAX) {
                Ok(found) => found,
                Err(error) if may_fail => {
                    assert!(error.to_string().contains("damaged"), "{error}");
                    continue;
                }
                Err(error) => panic!("{error}"),
            };
            let is_there = |base: &i64| *base >= self.start && *base < cursor;
            let found = found.iter().map(|it| (it.base_offset, it.records));
            let found: Vec<_> = found.filter(|(base, _)| is_there(base)).collect();
            let scanned =
                self.batches.iter().filter_map(|it| Some((it.base, *it.names.get(&name)?)));
            let scanned: Vec<_> = scanned.filter(|(base, _)| is_there(base)).collect();
            assert_eq!(found, scanned, "{}", String::from_utf8_lossy(&name));
        }
    }

    /// Checks that the batches behind an offset were announced by the queues that they have records of.
    fn check_touched(&self, from: i64, indexed: &[Indexed]) {
        let mut to = from;
        for step in indexed {
            let part = self.batches.iter().filter(|it| it.base >= to && it.base < step.to);
            for name in part.flat_map(|it| it.names.keys()) {
                let Touched::These(hashes) = &step.touched else { continue };
                assert!(hashes.contains(&queue_hash(name, SEED)));
                assert!(hashes.len() <= index_limits(SEED).touched);
            }
            to = step.to.max(to);
        }
        assert_eq!(to, self.end(), "all was indexed");
    }
}

fn run(seed: u64) {
    let mut tested = Tested::new(seed);
    tested.append();
    tested.settle();
    for turn in 0..40 {
        match tested.prng.below(10) {
            0 => tested.trim(),
            1 => tested.lose_power(),
            2 => tested.damage(),
            3 => tested.rot(),
            4 => tested.restart_behind(),
            5 => tested.change_version(),
            _ => {
                let from = tested.storage.reader().index(REPLICA).map_or(-1, |it| it.cursor());
                for _ in 0..tested.prng.below(20) {
                    tested.append();
                }
                tested.settle();
                let indexed = tested.index();
                if from >= 0 && from <= tested.end() {
                    tested.check_touched(from, &indexed);
                }
            }
        }
        tested.index();
        tested.compare(false);
        if turn % 4 == 0 {
            tested.indexer.rest();
            tested.compare(false);
        }
    }
    let index = tested.storage.reader().index(REPLICA).unwrap();
    let names = index.names(b"", None, (usize::MAX, 0)).unwrap_or_else(|_| {
        // Only this walk reads the damaged block.
        tested.index();
        index.names(b"", None, (usize::MAX, 0)).unwrap()
    });
    let names = names.0;
    let named = tested.batches.iter().flat_map(|it| it.names.keys().cloned());
    for name in named {
        assert!(names.iter().any(|it| it.name == name));
    }
    assert!(index.tables().len() < 20, "tables merge");
}

#[test]
fn the_index_says_what_a_scan_of_the_log_says() {
    for seed in 0..200 {
        run(seed);
    }
}

#[test]
fn a_log_that_rests_is_flushed() {
    let mut tested = Tested::new(7);
    tested.grow();
    assert!(tested.files("keys").is_empty());
    tested.indexer.rest();
    assert!(tested.files("keys").is_empty(), "it has grown just now");
    tested.indexer.rest();
    assert_eq!((tested.files("keys").len(), tested.indexer.may_rest()), (1, false));
    // A node that stops does not wait for a rest.
    tested.grow();
    let last = Indexer::new(tested.storage.reader(), index_limits(SEED));
    std::mem::replace(&mut tested.indexer, last).finish();
    assert_eq!(tested.files("keys").len(), 2);
    tested.compare(false);
}

fn a_part_stays_in_memory_until_its_disk_has_room() {
    let mut tested = Tested::new(7);
    tested.grow();
    // Something else fills the disk.
    tested.disk.set_capacity(tested.disk.used());
    tested.indexer.rest();
    tested.indexer.rest();
    assert_eq!((tested.files("keys"), tested.files("new")), (Vec::new(), Vec::new()));
    tested.compare(false);
    tested.disk.set_capacity(u64::MAX / 2);
    assert!(tested.indexer.may_rest(), "it is tried again");
    tested.indexer.rest();
    assert_eq!(tested.files("keys").len(), 1);
    tested.compare(false);
    tested.restart_behind();
    tested.index();
    tested.compare(false);
}

fn nothing_is_written_to_a_disk_that_is_almost_full() {
    let mut tested = Tested::new(7);
    let limits = Limits { free_bytes_min: u64::MAX, ..index_limits(SEED) };
    tested.indexer = Indexer::new(tested.storage.reader(), limits);
    // More than a memtable may have.
    for _ in 0..50 {
        tested.append();
    }
    tested.grow();
    tested.indexer.rest();
    tested.indexer.rest();
    assert_eq!(tested.files("keys"), []);
    tested.compare(false);
}

fn a_merge_that_was_killed_leaves_no_file() {
    let mut tested = Tested::new(7);
    while tested.files("new").is_empty() {
        tested.append();
        tested.settle();
        tested.order();
        while tested.files("new").is_empty() && !matches!(tested.indexer.step(true), Step::Idle) {}
    }
    tested.restart();
    tested.index();
    tested.compare(false);
}

#[test]
fn an_unfinished_table_is_gone_after_a_start() {
    a_merge_that_was_killed_leaves_no_file();
}

#[test]
fn an_index_goes_on_in_memory_while_the_disk_is_full() {
    a_part_stays_in_memory_until_its_disk_has_room();
    nothing_is_written_to_a_disk_that_is_almost_full();
}

/// Returns batches whose checksums are right, and which nobody can understand. Each is for an offset.
fn not_understood(offset: i64) -> Vec<BytesMut> {
    const UNKNOWN: [u8; 7] = [1, 9, 1, b'q', 0, 1, 0];
    let built = |batch: BatchBuilder, record: &NewRecord<'_>| {
        let mut batch = batch;
        batch.push(record).unwrap();
        batch.build_mut().unwrap()
    };
    let record = NewRecord { key: Some(b"q"), value: Some(&[7; 200]), ..NewRecord::default() };
    let mut cannot_be_decompressed = built(BatchBuilder::new().codec(Codec::Zstd), &record);
    cannot_be_decompressed[61..].fill(0xff);
    let crc = crc32c::crc32c(&cannot_be_decompressed[21..]);
    cannot_be_decompressed[17..21].copy_from_slice(&crc.to_be_bytes());
    let said = NewRecord { key: Some(&[0, 0, 0x44, 0x55]), value: Some(&UNKNOWN), ..record };
    let says_something_unknown = built(BatchBuilder::new().control(), &said);
    let headers = [(FACT_HEADER, Some(&UNKNOWN[..]))];
    let has_an_unknown_header =
        built(BatchBuilder::new(), &NewRecord { headers: &headers, ..record });
    let said = Said::Deleted(Deleted::of(&[offset]));
    let statement = Statement { queue: "q".into(), principal: String::new(), said };
    let is_about_itself = batch_of(0, &[statement]);
    vec![cannot_be_decompressed, says_something_unknown, has_an_unknown_header, is_about_itself]
}

fn the_cursor_stays_at_a_batch_that_is_not_understood() {
    for number in 0..not_understood(0).len() {
        let mut tested = Tested::new(7);
        tested.grow();
        tested.indexer.rest();
        tested.indexer.rest();
        assert_eq!(tested.files("keys").len(), 1, "a start goes on behind it");
        let at = tested.end();
        let mut batch = not_understood(at).swap_remove(number);
        batch[..8].copy_from_slice(&at.to_be_bytes());
        batch[12..16].copy_from_slice(&1_i32.to_be_bytes());
        tested.append_batch(batch.freeze(), BTreeMap::new(), false);
        tested.append();
        tested.settle();
        for _ in 0..2 {
            tested.order();
            let steps = std::iter::repeat_with(|| tested.indexer.step(true)).take(100);
            let problem = steps.map_while(|step| match step {
                Step::Idle => None,
                Step::Indexed(indexed) => Some(indexed.problem),
                _ => Some(None),
            });
            let problem = problem.flatten().next();
            assert!(problem.is_some_and(|it| it.contains("damaged")), "batch {number}");
            let index = tested.storage.reader().index(REPLICA).unwrap();
            assert_eq!(index.cursor(), at, "batch {number}");
            tested.compare(false);
            tested.restart();
        }
    }
}

#[test]
fn a_batch_that_is_not_understood_stops_the_index() {
    the_cursor_stays_at_a_batch_that_is_not_understood();
}

#[cfg(feature = "sabotage")]
#[test]
fn planted_bugs_of_the_index_are_found() {
    use duramen_storage::sabotage::{Bug, plant};
    for bug in [
        Bug::CursorPassesDamage,
        Bug::TableTooFar,
        Bug::TableAboveEndKept,
        Bug::TableTermUnchecked,
        Bug::TableBlockUnchecked,
        Bug::TableFilterHalf,
        Bug::MergeDropsPosting,
        Bug::UnknownTableStops,
    ] {
        let found = (0..100).find(|seed| {
            let seed = *seed;
            let thread = std::thread::spawn(move || {
                plant(Some(bug));
                run(seed);
            });
            thread.join().is_err()
        });
        println!("{bug:?}: seed {found:?}");
        assert!(found.is_some(), "{bug:?} is not found");
    }
}

#[cfg(feature = "sabotage")]
#[test]
fn planted_bugs_of_full_disks_and_of_files_are_found() {
    use duramen_storage::sabotage::{Bug, plant};
    for (bug, test) in [
        (Bug::FlushLost, a_part_stays_in_memory_until_its_disk_has_room as fn()),
        (Bug::FlushIgnoresRoom, nothing_is_written_to_a_disk_that_is_almost_full),
        (Bug::UnfinishedTableStays, a_merge_that_was_killed_leaves_no_file),
        (Bug::CursorPassesDamage, the_cursor_stays_at_a_batch_that_is_not_understood),
    ] {
        plant(Some(bug));
        let found = std::panic::catch_unwind(test);
        plant(None);
        assert!(found.is_err(), "{bug:?}");
    }
}
