//! A compacted log holds what a model says, wherever it is read from; a crash at any point of it leaves all of the old or all
//! of the new; and it is the same whatever was compacted before, and however little memory there was.
#![expect(clippy::unwrap_used, reason = "a test's own failure is a failure")]

use std::collections::{BTreeMap, BTreeSet};

use bytes::{Bytes, BytesMut};
use duramen_protocol::batch::{self, TimestampType, batches};
use duramen_protocol::compression::Codec;
use duramen_protocol::records::{BatchBuilder, NewRecord, Records};
use duramen_sim::SimDisk;
use duramen_sim::prng::Prng;
use duramen_storage::compaction::{
    Aborted, Compaction, CompactionError, Made, Means, Order, Progress,
};
use duramen_storage::indexing::{self, Indexed, Indexer, Step};
use duramen_storage::op::{
    Append, Beginning, Compacted, ConfState, Content, Given, HardState, Identity, LogEntry,
    RecoveredReplica, SegmentMeta,
};
use duramen_storage::scrub::{Found, Scrubber};
use duramen_storage::staging::{Outcome, Stage, Stagings};
use duramen_storage::storage::Options;
use duramen_storage::{Descriptor, Done, Op, OpKind, ReplicaId, Storage};

use super::rig;

const REPLICA: ReplicaId = ReplicaId(7);
const SEGMENT_BYTES: u64 = 2000;

fn options() -> Options {
    Options {
        journal_payload_max: 600,
        index_interval_bytes: 256,
        open_files_max: 16,
        ..rig::options()
    }
}

fn means(keys_max: usize) -> Means {
    Means { hash_key: (1, 2), keys_max, free_bytes_min: 0 }
}

/// A record as readers see it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    offset: i64,
    key: Option<Vec<u8>>,
    value: Option<Vec<u8>>,
    time: i64,
    is_control: bool,
    producer_id: i64,
    term: i32,
}

/// A log as it was appended.
#[derive(Clone, Default)]
struct Log {
    appends: Vec<Append>,
    records: Vec<Seen>,
    /// Where segments begin.
    bases: Vec<i64>,
    aborted: Vec<Aborted>,
    end: i64,
}

impl Log {
    fn is_aborted(&self, record: &Seen) -> bool {
        self.aborted.iter().any(|it| {
            it.producer_id == record.producer_id
                && (it.first_offset..it.last_offset).contains(&record.offset)
        })
    }

    /// What is left of it.
    fn compacted(&self, how: Compacted) -> Vec<Seen> {
        let below = |it: &&Seen| it.offset < how.below;
        let mut latest = BTreeMap::new();
        for record in self.records.iter().filter(below) {
            if !record.is_control && !self.is_aborted(record) {
                latest.insert(record.key.clone(), record.offset);
            }
        }
        let stays = |it: &&Seen| {
            let is_young = it.offset >= how.tombstones_below;
            let is_latest = latest.get(&it.key) == Some(&it.offset);
            it.offset >= how.below
                || if it.is_control {
                    is_young
                } else {
                    !self.is_aborted(it)
                        && if it.key.is_some() {
                            is_latest && (it.value.is_some() || is_young)
                        } else {
                            it.offset + 1 == how.below
                        }
                }
        };
        self.records.iter().filter(stays).cloned().collect()
    }
}

fn small(number: usize) -> i64 {
    i64::try_from(number).unwrap()
}

/// Some log that other transactions than aborted and committed ones are not left open in.
fn any_log(chance: &mut Prng, count: usize) -> Log {
    let mut log = Log::default();
    let mut open: BTreeMap<i64, i64> = BTreeMap::new();
    let (mut term, mut index, mut clock, mut in_segment) = (3, 1, 1_000_000, 0);
    let keys = chance.between(1, 30);
    while log.appends.len() < count || !open.is_empty() {
        index += 1;
        if chance.chance(60) {
            term += 1;
            let content = Content::Internal(Bytes::from_static(b"x"));
            let entry = LogEntry { index, term, content };
            log.appends.push(Append { entry, payload: Bytes::new() });
            continue;
        }
        clock += i64::try_from(chance.below(50)).unwrap();
        let epoch = i32::try_from(term).unwrap();
        let producer = i64::try_from(chance.below(4)).unwrap();
        let ends =
            (chance.chance(150) || log.appends.len() >= count).then(|| open.pop_first()).flatten();
        let (mut bytes, is_control) = if let Some((id, first_offset)) = ends {
            let commits = chance.chance(500);
            if !commits {
                let last_offset = log.end;
                log.aborted.push(Aborted { producer_id: id, first_offset, last_offset });
            }
            (marker(id, commits, clock), true)
        } else {
            let is_transactional = producer > 0 && chance.chance(600);
            let mut batch = BatchBuilder::new().codec(*chance.pick(&Codec::ALL));
            if is_transactional {
                open.entry(producer).or_insert(log.end);
                batch = batch.producer(producer, 0, 5).transactional();
            } else if chance.chance(300) {
                batch = batch.producer(9, 1, 3);
            }
            for _ in 0..chance.between(1, 6) {
                push_any(&mut batch, chance, keys, clock);
            }
            (batch.build_mut().unwrap(), false)
        };
        if !is_control && chance.chance(150) {
            batch::restamp(&mut bytes, TimestampType::LogAppendTime, clock);
        }
        stamp(&mut bytes, log.end, epoch);
        let payload = bytes.freeze();
        let starts = log.bases.is_empty() || in_segment > 800 && chance.chance(300);
        let descriptor = Descriptor::of_batch(&payload, starts).unwrap();
        if starts {
            log.bases.push(log.end);
            in_segment = 0;
        }
        in_segment += payload.len();
        log.records.extend(seen(&payload));
        log.end = descriptor.end_offset();
        let entry = LogEntry { index, term, content: Content::Batch(descriptor) };
        log.appends.push(Append { entry, payload });
    }
    // Those behind the last base are the active segment, whatever it has.
    log
}

fn marker(producer_id: i64, commits: bool, timestamp: i64) -> BytesMut {
    let key = [0, 0, 0, u8::from(commits)];
    let (key, value) = (Some(&key[..]), Some(&[0u8; 6][..]));
    let mut batch = BatchBuilder::new().producer(producer_id, 0, -1).transactional().control();
    batch.push(&NewRecord { timestamp, key, value, ..NewRecord::default() }).unwrap();
    batch.build_mut().unwrap()
}

fn push_any(batch: &mut BatchBuilder, chance: &mut Prng, keys: u64, clock: i64) {
    let key = format!("key-{}", chance.below(keys)).into_bytes();
    let key = (!chance.chance(50)).then_some(key);
    let len = *chance.pick(&[0, 3, 30, 200]);
    let value = (!chance.chance(250)).then(|| chance.bytes(len));
    let timestamp = clock + i64::try_from(chance.below(100)).unwrap();
    let (key, value) = (key.as_deref(), value.as_deref());
    let headers = [("h", Some(&b"v"[..]))];
    let headers = if chance.chance(200) { &headers[..] } else { &[] };
    batch.push(&NewRecord { timestamp, key, value, headers }).unwrap();
}

fn stamp(bytes: &mut BytesMut, offset: i64, epoch: i32) {
    batch::set_base_offset(bytes, offset);
    batch::set_partition_leader_epoch(bytes, epoch);
}

fn seen(bytes: &Bytes) -> Vec<Seen> {
    let mut all = Vec::new();
    for batch in batches(bytes.clone()) {
        let batch = batch.unwrap();
        assert!(batch.crc_matches());
        let header = *batch.header();
        let records = Records::of(&batch, 1 << 20).unwrap();
        for record in &records {
            let record = record.unwrap();
            all.push(Seen {
                offset: records.offset(&record),
                key: record.key.map(<[u8]>::to_vec),
                value: record.value.map(<[u8]>::to_vec),
                time: records.timestamp(&record),
                is_control: header.attributes.is_control(),
                producer_id: if header.attributes.is_transactional() {
                    header.producer_id
                } else {
                    -1
                },
                term: header.partition_leader_epoch,
            });
        }
    }
    all
}

/// A storage under way; it may die at any call.
struct World {
    disk: SimDisk,
    storage: Storage<SimDisk>,
    chance: Prng,
}

impl World {
    fn new(seed: u64) -> Self {
        let disk = SimDisk::new(seed);
        let (mut storage, _) = Storage::open(disk.clone(), options()).unwrap();
        let identity = Identity { topic: "t".into(), topic_id: [5; 16], partition: 0 };
        let conf = ConfState { voters: vec![7], ..ConfState::default() };
        storage.submit(Op { replica: REPLICA, kind: OpKind::Create { ticket: 1, identity, conf } });
        Self { disk, storage, chance: Prng::new(seed, "compaction") }
    }

    fn write(&mut self, appends: &[Append]) {
        for part in appends.chunks(self.chance.index(7) + 1) {
            let last = part.last().unwrap().entry.clone();
            let hard_state = Some(HardState { term: last.term, vote: 7, commit: last.index });
            let appends = part.to_vec();
            let kind = OpKind::Write { ticket: last.index, appends, hard_state, must_sync: true };
            self.storage.submit(Op { replica: REPLICA, kind });
            self.settle(last.index).unwrap();
        }
    }

    fn image(&mut self, index: u64) {
        let image = Bytes::from(self.chance.bytes(20));
        self.storage.submit(Op { replica: REPLICA, kind: OpKind::Image { index, image } });
    }

    /// All that is under way comes to its end, or the disk dies. Images are given as asked.
    fn settle(&mut self, applied: u64) -> Result<Vec<Done>, ()> {
        let mut all = Vec::new();
        for _ in 0..3000 {
            let mut requests = Vec::new();
            if let Some(round) = self.storage.begin_round().map_err(|_| ())? {
                requests.extend(self.storage.write_segments().map_err(|_| ())?);
                requests.push(round);
            }
            requests.extend(self.storage.maintain(true).map_err(|_| ())?);
            while !requests.is_empty() {
                let request = requests.swap_remove(self.chance.index(requests.len()));
                let result = request.run(&self.disk);
                self.storage.on_sync(request.id, result).map_err(|_| ())?;
            }
            let done = self.storage.take_done();
            if done.contains(&Done::WantImage { replica: REPLICA }) {
                self.image(applied);
            }
            all.extend(done);
            if self.storage.is_quiet() {
                return Ok(all);
            }
        }
        panic!("it never becomes quiet")
    }

    /// Everything of the log is settled, and an image stands behind its last entry.
    fn filled(seed: u64, log: &Log) -> Self {
        let mut world = Self::new(seed);
        world.write(&log.appends);
        world.checkpoint(log);
        world
    }

    /// Lets checkpoints come by: at a start all is settled.
    fn checkpoint(&mut self, log: &Log) {
        let last = log.appends.last().unwrap().entry.index;
        self.image(last);
        self.settle(last).unwrap();
        self.reopen();
    }

    fn reopen(&mut self) -> RecoveredReplica {
        let (storage, mut found) = Storage::open(self.disk.clone(), options()).unwrap();
        self.storage = storage;
        let found = found.replicas.remove(0);
        assert_eq!(found.damage, None);
        found
    }

    fn make(&mut self, order: Order, keys_max: usize) -> Result<Made<SimDisk>, CompactionError> {
        let reader = self.storage.reader();
        let mut compaction = Compaction::begin(&reader, order, &means(keys_max))?;
        loop {
            if let Progress::Done(made) = compaction.step(self.chance.between(1, 3000))? {
                return Ok(*made);
            }
        }
    }

    /// Compacts to the end. False if the disk died.
    fn compact(&mut self, log: &Log, how: Compacted, keys_max: usize) -> bool {
        let last = log.appends.last().unwrap().entry.index;
        let Ok(made) = self.make(order(log, how), keys_max) else {
            assert!(self.disk.is_dead());
            return false;
        };
        self.storage.install(made);
        let Ok(done) = self.settle(last) else {
            assert!(self.disk.is_dead());
            return false;
        };
        let is_it = |it: &Done| match it {
            Done::Compacted { done: Some((compacted, _)), .. } => *compacted == how,
            _ => false,
        };
        assert!(done.iter().any(is_it), "{done:?}");
        true
    }

    /// All that can be read from an offset on, in pieces of any size.
    fn read_from(&mut self, mut offset: i64, end: i64) -> Vec<Seen> {
        let reader = self.storage.reader();
        let mut all = Vec::new();
        while offset < end {
            let max = u32::try_from(self.chance.between(1, 5000)).unwrap();
            let Some(range) = reader.locate(REPLICA, offset, end, max, true).unwrap() else {
                return all;
            };
            let bytes = reader.read(REPLICA, &range).unwrap();
            let mut whole = 0;
            for batch in batches(bytes.clone()).map_while(Result::ok) {
                whole += batch.bytes().len();
                assert!(batch.header().end_offset() > offset);
                offset = batch.header().end_offset();
            }
            assert!(whole > 0);
            all.extend(seen(&bytes.slice(..whole)));
        }
        all
    }

    fn check(&mut self, expected: &[Seen], end: i64) {
        let all = self.read_from(0, end);
        for (at, (found, expected)) in all.iter().zip(expected).enumerate() {
            assert_eq!(found, expected, "record {at}");
        }
        assert_eq!(all.len(), expected.len());
        for _ in 0..20 {
            let from = small(self.chance.index(usize::try_from(end).unwrap()));
            // The first batch may begin before what is asked for.
            let found: Vec<Seen> =
                self.read_from(from, end).into_iter().filter(|it| it.offset >= from).collect();
            let wanted: Vec<Seen> =
                expected.iter().filter(|it| it.offset >= from).cloned().collect();
            assert_eq!(found, wanted, "from {from}");
        }
        let reader = self.storage.reader();
        for _ in 0..20 {
            let start = small(self.chance.index(usize::try_from(end).unwrap()));
            let near = expected[self.chance.index(expected.len())].time;
            let asked = near - 60 + small(self.chance.index(120));
            let in_range = || expected.iter().filter(|it| it.offset >= start);
            let first = in_range().find(|it| it.time >= asked).map(|it| (it.offset, it.time));
            assert_eq!(reader.find_time(REPLICA, asked, start, end).unwrap(), first);
            let largest = in_range().map(|it| it.time).max();
            let found = reader.find_max_time(REPLICA, start, end).unwrap();
            assert_eq!(found.map(|it| it.1), largest);
        }
        let mut from = 0;
        while from < end {
            let digest = reader.digest(REPLICA, from, end, 700).unwrap();
            assert_eq!(digest.damage, None);
            assert!(digest.end > from);
            from = digest.end;
        }
        self.scrub();
    }

    fn scrub(&self) {
        let mut scrubber = Scrubber::new(self.storage.reader(), 0);
        for _ in 0..10_000 {
            match scrubber.step(700).1 {
                Found::Nothing | Found::Sound { .. } => {}
                Found::Damaged(damage) => panic!("{damage:?}"),
                Found::EndOfPass => return,
            }
        }
        panic!("a pass never ends")
    }

    /// No file is there but those of the segments.
    fn check_tidy(&self) {
        let reader = self.storage.reader();
        let logs: BTreeSet<String> =
            reader.settled_files(|_| true).into_iter().map(|it| it.0).collect();
        let stems: BTreeSet<&str> =
            logs.iter().map(|path| path.strip_suffix(".log").unwrap()).collect();
        for (path, _) in self.disk.files() {
            if path.starts_with("t-0/") && !path.contains("image") {
                let (stem, _) = path.rsplit_once('.').unwrap();
                assert!(stems.contains(stem), "{path} is left behind");
            }
        }
    }
}

fn order(log: &Log, compacted: Compacted) -> Order {
    let aborted =
        log.aborted.iter().filter(|it| it.first_offset < compacted.below).copied().collect();
    Order {
        replica: REPLICA,
        compacted,
        aborted,
        segment_bytes: SEGMENT_BYTES,
        erases_since: None,
        expired_by_ms: 0,
    }
}

/// A compaction that may be decided after another one.
fn any_how(chance: &mut Prng, log: &Log, before: Option<Compacted>) -> Compacted {
    let before = before.unwrap_or_default();
    let places = log.bases.iter().copied().chain([log.end]);
    let later: Vec<i64> = places.filter(|it| *it > before.below.max(1)).collect();
    let below = if later.is_empty() { before.below } else { *chance.pick(&later) };
    let tombstones_below = if chance.chance(500) { before.below } else { before.tombstones_below };
    Compacted { index: before.index + 1000, below, tombstones_below }
}

fn log_of(seed: u64) -> (Log, Prng) {
    let mut chance = Prng::new(seed, "log");
    loop {
        let count = usize::try_from(chance.between(20, 120)).unwrap();
        let log = any_log(&mut chance, count);
        if log.bases.len() > 2 {
            return (log, chance);
        }
    }
}

/// Twice and more, read after each and after a start; and the last alone comes to the same.
fn compacted_by_chance(seeds: std::ops::Range<u64>) {
    for seed in seeds {
        let (log, mut chance) = log_of(seed);
        let mut world = World::filled(seed, &log);
        let mut last = None;
        for _ in 0..chance.between(1, 4) {
            let how = any_how(&mut chance, &log, last);
            let keys_max = *chance.pick(&[1, 2, 7, 1000]);
            assert!(world.compact(&log, how, keys_max));
            let expected = log.compacted(how);
            world.check(&expected, log.end);
            if chance.chance(500) {
                let found = world.reopen();
                assert_eq!(found.compacted, how);
                assert_eq!(found.history.end_offset, how.below);
                world.check(&expected, log.end);
            }
            world.check_tidy();
            last = Some(how);
        }
        let how = last.unwrap();
        let mut alone = World::filled(seed, &log);
        assert!(alone.compact(&log, how, 1000));
        assert_eq!(alone.read_from(0, log.end), world.read_from(0, log.end), "seed {seed}");
    }
}

#[test]
fn a_compacted_log_is_what_the_model_says() {
    compacted_by_chance(1..150);
}

/// The disk dies at some call of a compaction, or at none.
fn crash_anywhere(seeds: std::ops::Range<u64>) {
    let (mut old, mut new) = (0, 0);
    for seed in seeds {
        let (log, mut chance) = log_of(seed);
        let mut world = World::filled(seed, &log);
        let mut before = log.records.clone();
        if chance.chance(500) {
            let how = any_how(&mut chance, &log, None);
            assert!(world.compact(&log, how, 1000));
            before = log.compacted(how);
        }
        let first = world.reopen().compacted;
        let how = any_how(&mut chance, &log, Some(first));
        world.disk.crash_in(Some(chance.between(1, 160)));
        let keys_max = *chance.pick(&[2, 1000]);
        let is_done = world.compact(&log, how, keys_max);
        world.disk.crash_in(None);
        world.disk = if chance.chance(700) { world.disk.power_loss() } else { world.disk.kill() };
        let found = world.reopen();
        let is_new = found.compacted == how;
        assert!(is_new || !is_done && found.compacted == first, "seed {seed}: {found:?}");
        *if is_new { &mut new } else { &mut old } += 1;
        let after = log.compacted(how);
        world.check(if is_new { &after } else { &before }, log.end);
        world.settle(log.appends.last().unwrap().entry.index).unwrap();
        world.check_tidy();
        if !is_new {
            assert!(world.compact(&log, how, keys_max));
            world.check(&after, log.end);
        }
        world.disk = world.disk.power_loss();
        world.reopen();
        world.check(&after, log.end);
    }
    assert!(old > 0 && new > 0, "{old} {new}");
}

#[test]
fn a_crash_at_any_point_leaves_all_of_the_old_or_all_of_the_new() {
    crash_anywhere(1000..1300);
}

#[cfg(feature = "sabotage")]
#[test]
fn planted_bugs_of_compaction_are_found() {
    use duramen_storage::sabotage::{Bug, plant};
    for (bug, test) in [
        (Bug::CompactedNotSynced, (|| crash_anywhere(1000..1300)) as fn()),
        // Only a crash between the two is told apart: it takes hundreds of seeds.
        (Bug::CompactedShownEarly, || crash_anywhere(1000..5000)),
        (Bug::TombstonesGoEarly, || compacted_by_chance(1..150)),
        (Bug::StagedNotSynced, || crash_while_given(3000..3300)),
        (Bug::GivenForgotten, || crash_while_given(3000..3300)),
        (Bug::IndexOutlivesLog, || indexed_again(4000..4040)),
    ] {
        plant(Some(bug));
        let found = std::panic::catch_unwind(test);
        plant(None);
        assert!(found.is_err(), "{bug:?}");
    }
}

/// What another replica gives of a log that it has compacted, and where that begins anew.
struct Gift {
    given: Given,
    begins: (u64, u64, i64),
    pieces: Vec<Bytes>,
}

fn gift_of(world: &mut World, how: Compacted) -> Gift {
    let found = world.reopen();
    let begins = (found.history.index, found.history.term, found.history.end_offset);
    assert_eq!((found.compacted, begins.2), (how, how.below));
    let runs = found.term_runs.iter().filter(|run| run.first_index <= begins.0);
    let segments = found.segments.iter().filter(|it| it.base_offset < how.below);
    let (runs, segments) = (runs.copied().collect(), segments.copied().collect());
    let given = Given { number: 1, compacted: how, log_start: 0, runs, segments };
    let (reader, mut pieces, mut offset) = (world.storage.reader(), Vec::new(), 0);
    while let Some(range) = reader.locate(REPLICA, offset, how.below, 900, true).unwrap() {
        let bytes = reader.read(REPLICA, &range).unwrap();
        let all = batches(bytes.clone()).map_while(Result::ok);
        let whole: usize = all.map(|batch| batch.bytes().len()).sum();
        let piece = bytes.slice(..whole);
        offset = batches(piece.clone()).last().unwrap().unwrap().header().end_offset();
        pieces.push(piece);
    }
    Gift { given, begins, pieces }
}

impl World {
    /// Takes what is given, begins anew with it, and appends what follows. False if the disk died.
    fn begin_anew(&mut self, gift: &Gift, rest: &[Append]) -> bool {
        let Some(segments) = self.take_gift(gift) else {
            assert!(self.disk.is_dead());
            return false;
        };
        let (index, term, end_offset) = gift.begins;
        let given = Some(Given { segments, ..gift.given.clone() });
        let conf = ConfState { voters: vec![7], applied: index, ..ConfState::default() };
        let image = Bytes::from(self.chance.bytes(20));
        let beginning = Beginning { index, term, end_offset, conf, image, given };
        let kind = OpKind::Reset(Box::new(beginning));
        self.storage.submit(Op { replica: REPLICA, kind });
        // Nobody has said yet that more is committed.
        let hard_state = Some(HardState { term: 1000, vote: 0, commit: index });
        let appends = rest.to_vec();
        let kind = OpKind::Write { ticket: 9_000_000, appends, hard_state, must_sync: true };
        self.storage.submit(Op { replica: REPLICA, kind });
        // What is not on the disk yet is in no image.
        let is_done = self.settle(index).is_ok();
        assert!(is_done || self.disk.is_dead());
        is_done
    }

    fn take_gift(&mut self, gift: &Gift) -> Option<Vec<SegmentMeta>> {
        let (reader, mut stagings) = (self.storage.reader(), Stagings::default());
        let identity = Identity { topic: "t".into(), topic_id: [5; 16], partition: 0 };
        let (replica, given) = (REPLICA, gift.given.clone());
        let none = stagings.carry_out(&reader, Stage::Begin { replica, identity, given }, 0);
        assert!(none.is_none());
        let last = gift.pieces.len().max(1) - 1;
        for at in 0..=last {
            let batches = gift.pieces.get(at).cloned().unwrap_or_default();
            let put = Stage::Put { replica, number: 1, batches, is_last: at == last };
            match stagings.carry_out(&reader, put, 0)? {
                Outcome::Done(Done::Put { next, .. }) => assert!(next? > 0),
                Outcome::Done(other) => panic!("{other:?}"),
                Outcome::Staged(staged) => self.storage.stage(*staged),
            }
        }
        self.storage.take_done().into_iter().find_map(|it| match it {
            Done::Staged { segments, .. } => Some(segments),
            _ => None,
        })
    }

    fn check_records(&mut self, all: &[Seen], end: i64) {
        let expected: Vec<Seen> = all.iter().filter(|it| it.offset < end).cloned().collect();
        assert_eq!(self.read_from(0, end), expected);
        self.scrub();
    }
}

/// A replica that has a part of a log, or nothing, begins anew with what another one gives, and the disk dies at some call of
/// that, or at none.
fn crash_while_given(seeds: std::ops::Range<u64>) {
    let (mut old, mut new) = (0, 0);
    for seed in seeds {
        let (log, mut chance) = log_of(seed);
        let mut giver = World::filled(seed, &log);
        let how = any_how(&mut chance, &log, None);
        assert!(giver.compact(&log, how, 1000));
        let gift = gift_of(&mut giver, how);
        let after = log.compacted(how);
        let split = log.appends.partition_point(|it| it.entry.index <= gift.begins.0);
        let here = chance.index(split + 1);
        let (here, rest) = (&log.appends[..here], &log.appends[split..]);
        let rest = &rest[..chance.index(rest.len() + 1)];
        let mut world = World::new(seed + 500_000);
        world.write(here);
        world.settle(1).unwrap();
        let old_end = world.reopen().end_offset;
        world.disk.crash_in(Some(chance.between(1, 120)));
        let is_done = world.begin_anew(&gift, rest);
        world.disk.crash_in(None);
        world.disk = if chance.chance(700) { world.disk.power_loss() } else { world.disk.kill() };
        let found = world.reopen();
        let is_new = found.compacted == how;
        assert!(is_new || !is_done && found.compacted.index == 0, "seed {seed}: {found:?}");
        *if is_new { &mut new } else { &mut old } += 1;
        if is_new {
            let (index, _, end_offset) = gift.begins;
            assert_eq!((found.history.index, found.history.end_offset), (index, end_offset));
            assert!(found.end_offset >= end_offset);
            world.check_records(&after, found.end_offset);
        } else {
            assert_eq!(found.end_offset, old_end);
            world.check_records(&log.records, old_end);
        }
        world.settle(found.prev_index).unwrap();
        world.check_tidy();
        if !is_new {
            assert!(world.begin_anew(&gift, rest));
        }
        let rest = &log.appends[split..];
        let here = world.reopen();
        let next =
            rest.partition_point(|it| it.entry.index <= here.prev_index) + here.entries.len();
        world.write(&rest[next..]);
        world.check_records(&after, log.end);
        world.disk = world.disk.power_loss();
        assert_eq!(world.reopen().compacted, how);
        world.check_records(&after, log.end);
        // It goes on to be compacted as any other.
        world.checkpoint(&log);
        let next = any_how(&mut chance, &log, Some(how));
        if next.below > how.below {
            assert!(world.compact(&log, next, 1000));
            world.check(&log.compacted(next), log.end);
            world.check_tidy();
        }
    }
    assert!(old > 0 && new > 0, "{old} {new}");
}

#[test]
fn a_log_begins_anew_with_all_that_is_given_or_not_at_all() {
    crash_while_given(3000..3300);
}

impl World {
    /// Indexes the log up to an offset, in its life of a number.
    fn index(&self, beginning: u64, to: i64) {
        let mut indexer = Indexer::new(self.storage.reader(), rig::index_limits(1));
        let (replica, identity, start) = (REPLICA, rig::identity(), 0);
        indexer.order(indexing::Order { replica, identity, beginning, start, to });
        loop {
            match indexer.step(true) {
                Step::Idle => break,
                Step::Wait => panic!("all is written"),
                Step::Merged => {}
                Step::Indexed(Indexed { problem, .. }) => assert_eq!(problem, None),
            }
        }
        indexer.finish();
    }

    /// Checks that the index names each batch of each key. The index may name batches that are gone.
    fn check_index(&self, end: i64) {
        let reader = self.storage.reader();
        let index = reader.index(REPLICA).unwrap();
        let (mut at, mut names) = (0, BTreeMap::<Vec<u8>, BTreeMap<i64, u32>>::new());
        while let Some(range) = reader.locate(REPLICA, at, end, 1 << 20, true).unwrap() {
            for batch in batches(reader.read(REPLICA, &range).unwrap()).map_while(Result::ok) {
                at = batch.header().end_offset();
                let base = batch.header().base_offset;
                let records = seen(batch.bytes()).into_iter().filter(|it| !it.is_control);
                for name in records.filter_map(|it| it.key) {
                    *names.entry(name).or_default().entry(base).or_default() += 1;
                }
            }
        }
        assert!(!names.is_empty());
        for (name, expected) in names {
            let (found, cursor) = index.postings(&name, 0, usize::MAX).unwrap();
            let found: BTreeMap<i64, u32> =
                found.iter().map(|it| (it.base_offset, it.records)).collect();
            for (base, records) in expected {
                assert!(found.get(&base).is_some_and(|it| *it >= records), "{name:?} at {base}");
            }
            assert_eq!(cursor, end);
        }
    }
}

/// A replica whose log is indexed begins anew with what another one gives.
fn indexed_again(seeds: std::ops::Range<u64>) {
    for seed in seeds {
        let (log, mut chance) = log_of(seed);
        let mut giver = World::filled(seed, &log);
        let how = any_how(&mut chance, &log, None);
        assert!(giver.compact(&log, how, 1000));
        let gift = gift_of(&mut giver, how);
        let split = log.appends.partition_point(|it| it.entry.index <= gift.begins.0);
        let mut world = World::new(seed + 500_000);
        let is_batch = |it: &Append| matches!(it.entry.content, Content::Batch(_));
        let first = log.appends.iter().position(is_batch).unwrap();
        world.write(&log.appends[..=first + chance.index(split - first)]);
        world.settle(1).unwrap();
        let end = world.reopen().end_offset;
        world.index(0, end);
        assert!(world.storage.reader().index(REPLICA).is_some());
        assert!(world.begin_anew(&gift, &log.appends[split..]));
        assert!(world.storage.reader().index(REPLICA).is_none(), "it is of the log before");
        world.index(1, log.end);
        world.check_index(log.end);
    }
}

#[test]
fn a_log_that_begins_anew_loses_its_index() {
    indexed_again(4000..4040);
}

/// What another replica gives is looked at: nothing of it is taken if a bit is wrong, or a batch is not where it is to be.
#[test]
fn what_is_given_and_does_not_fit_is_not_taken() {
    let (log, mut chance) = log_of(7);
    let mut source = World::filled(7, &log);
    let how = any_how(&mut chance, &log, None);
    assert!(source.compact(&log, how, 1000));
    let gift = gift_of(&mut source, how);
    let mut world = World::new(8);
    world.settle(1).unwrap();
    let taken = |world: &mut World, pieces: Vec<Bytes>, given: Given| {
        let gift = Gift { given, begins: gift.begins, pieces };
        let taken = world.take_gift(&gift).is_some();
        let staged = world.disk.files().into_iter().filter(|(path, _)| path.contains("given"));
        assert_eq!(staged.count() > 0, taken, "what is not taken leaves nothing behind");
        taken
    };
    let (pieces, given) = (&gift.pieces, &gift.given);
    // Where a batch is to be only its source can tell, by an index; a frame's checksum keeps that on its way.
    let (mut at, mut offsets) = (0, BTreeSet::new());
    for batch in batches(pieces[0].clone()).map(Result::unwrap) {
        offsets.extend(at..at + 8);
        at += batch.bytes().len();
    }
    for bit in (0..pieces[0].len() * 8).filter(|bit| !offsets.contains(&(bit / 8))) {
        let mut harmed = pieces[0].to_vec();
        harmed[bit / 8] ^= 1 << (bit % 8);
        let mut all = pieces.clone();
        all[0] = harmed.into();
        assert!(!taken(&mut world, all, given.clone()), "bit {bit}");
    }
    let twice = [&pieces[..1], &pieces[..]].concat();
    assert!(!taken(&mut world, twice, given.clone()));
    let mut runs = given.runs.clone();
    for run in &mut runs {
        run.term += 1;
    }
    assert!(!taken(&mut world, pieces.clone(), Given { runs, ..given.clone() }));
    let compacted = Compacted { below: 1, ..how };
    let short = Given { compacted, segments: given.segments[..1].to_vec(), ..given.clone() };
    assert!(!taken(&mut world, pieces.clone(), short));
    assert!(taken(&mut world, pieces.clone(), given.clone()));
}

fn is_roll(append: &Append) -> bool {
    matches!(&append.entry.content, Content::Batch(batch) if batch.starts_segment)
}

/// Where a log is cut in two. The second one begins anywhere, or with a segment, so that the first is compacted to its end.
fn split_of(log: &Log, to_the_end: bool) -> usize {
    let last = log.appends.iter().rposition(is_roll).filter(|_| to_the_end);
    last.unwrap_or(log.appends.len() * 2 / 3)
}

/// Appends, trims and images go on while it is made and switched.
#[test]
fn a_log_goes_on_beside_its_compaction() {
    let mut declined = 0;
    for seed in 2000..2120 {
        let (log, mut chance) = log_of(seed);
        let to_the_end = chance.chance(400);
        let split = split_of(&log, to_the_end);
        let early: Vec<Append> = log.appends[..split].to_vec();
        let rolls = early.iter().filter(|it| is_roll(it)).count();
        if rolls < 2 {
            continue;
        }
        let mut world = World::new(seed);
        world.write(&early);
        let last = early.last().unwrap().entry.index;
        world.image(last);
        world.settle(last).unwrap();
        world.reopen();
        let below = log.bases[rolls - usize::from(!to_the_end)];
        let how = Compacted { index: 1000, below, tombstones_below: 0 };
        let mut compaction =
            Compaction::begin(&world.storage.reader(), order(&log, how), &means(5)).unwrap();
        let trim =
            chance.chance(400).then(|| small(chance.index(usize::try_from(how.below).unwrap())));
        let at = chance.below(3);
        if let (Some(log_start), 0) = (trim, at) {
            world.storage.submit(Op { replica: REPLICA, kind: OpKind::Trim { log_start } });
        }
        let mut rest = log.appends[split..].chunks(3);
        let mut applied = last;
        let made = loop {
            if let Some(part) = rest.next() {
                world.write(part);
                applied = part.last().unwrap().entry.index;
            }
            match compaction.step(500) {
                Ok(Progress::Done(made)) => break Some(*made),
                Ok(Progress::More) => {}
                Err(CompactionError::Changed) => break None,
                Err(error) => panic!("{error}"),
            }
        };
        let is_made = made.is_some();
        if let Some(made) = made {
            world.storage.install(made);
        }
        if let (Some(log_start), 1) = (trim, at) {
            world.storage.submit(Op { replica: REPLICA, kind: OpKind::Trim { log_start } });
        }
        let done = world.settle(applied).unwrap();
        let is_done = done.iter().any(|it| matches!(it, Done::Compacted { done: Some(_), .. }));
        assert!(is_done || trim.is_some(), "seed {seed}: {is_made}");
        declined += u64::from(!is_done);
        if let (Some(log_start), 2) = (trim, at) {
            world.storage.submit(Op { replica: REPLICA, kind: OpKind::Trim { log_start } });
        }
        for part in rest {
            world.write(part);
        }
        world.checkpoint(&log);
        let all = if is_done { log.compacted(how) } else { log.records.clone() };
        let start = trim.unwrap_or(0);
        let expected: Vec<Seen> = all.into_iter().filter(|it| it.offset >= start).collect();
        let found = world.read_from(start, log.end);
        let found: Vec<Seen> = found.into_iter().filter(|it| it.offset >= start).collect();
        assert_eq!(found, expected, "seed {seed}");
        world.scrub();
        world.check_tidy();
    }
    assert!(declined > 0);
}

/// Each bit of a compacted segment that flips is met by whoever reads it, and by whoever looks for rot. Where the predecessor
/// of a batch does not tell its offset, the index does.
#[test]
fn every_flipped_bit_of_a_compacted_segment_is_found() {
    let large = (5..).find_map(|seed| {
        let (log, _) = log_of(seed);
        let how = Compacted { index: 1000, below: log.end, tombstones_below: 0 };
        let mut world = World::filled(seed, &log);
        assert!(world.compact(&log, how, 1000));
        world.reopen();
        let (path, size) = world.storage.reader().settled_files(|_| true)[0].clone();
        assert!(path.contains('-'), "{path}");
        (size > 500).then_some((log, how, world, path, size))
    });
    let (log, how, mut world, path, size) = large.expect("some seed leaves enough");
    let expected = log.compacted(how);
    for bit in 0..size.min(1500) * 8 {
        let (at, bit) = (bit / 8, u8::try_from(bit % 8).unwrap());
        assert!(world.disk.flip(&path, at, bit));
        world.reopen();
        let reader = world.storage.reader();
        let mut offset = 0;
        let mut all = Vec::new();
        let failed = loop {
            let range = match reader.locate(REPLICA, offset, log.end, 1, true) {
                Ok(Some(range)) => range,
                Ok(None) => break false,
                Err(_) => break true,
            };
            let Ok(bytes) = reader.read(REPLICA, &range) else { break true };
            all.extend(seen(&bytes));
            offset = batches(bytes).last().unwrap().unwrap().header().end_offset();
        };
        assert!(failed, "byte {at} bit {bit}: {:?}", all == expected);
        assert!(all.len() <= expected.len() && all == expected[..all.len()]);
        let mut scrubber = Scrubber::new(reader, 0);
        let found = loop {
            match scrubber.step(2000).1 {
                Found::Damaged(_) => break true,
                Found::EndOfPass => break false,
                _ => {}
            }
        };
        assert!(found, "byte {at} bit {bit}");
        // It is not taken for what it says by another compaction either.
        let next = Compacted { index: 5000, ..how };
        assert!(world.make(order(&log, next), 1000).is_err());
        assert!(world.disk.flip(&path, at, bit));
    }
    // An index that rots is no longer believed, and not needed.
    let index = path.replace(".log", ".index");
    let bytes = world.disk.contents(&index).unwrap().len() as u64;
    for bit in 0..bytes * 8 {
        let (at, bit) = (bit / 8, u8::try_from(bit % 8).unwrap());
        assert!(world.disk.flip(&index, at, bit));
        world.reopen();
        assert_eq!(world.read_from(0, log.end), expected);
        assert!(world.disk.flip(&index, at, bit));
    }
}

#[test]
fn what_is_not_settled_or_has_no_room_waits() {
    let (log, mut chance) = log_of(3);
    let how = any_how(&mut chance, &log, None);
    let mut world = World::new(3);
    world.write(&log.appends);
    let last = log.appends.last().unwrap().entry.index;
    let made = world.make(order(&log, how), 1000);
    if let Ok(made) = made {
        // Segments were settled by checkpoints; but no image stands behind them yet, or it does.
        world.storage.install(made);
        world.settle(last).unwrap();
    }
    let mut world = World::filled(3, &log);
    let reader = world.storage.reader();
    let no_room = Means { free_bytes_min: u64::MAX, ..means(5) };
    let refused = Compaction::begin(&reader, order(&log, how), &no_room);
    assert!(matches!(refused, Err(CompactionError::NoRoom)));
    let odd = Compacted { below: how.below + 1, ..how };
    let refused = Compaction::begin(&reader, order(&log, odd), &means(5));
    assert!(matches!(refused, Err(CompactionError::Changed)));
    world.disk.set_capacity(world.disk.used() + 300);
    assert!(matches!(world.make(order(&log, how), 5), Err(CompactionError::NoRoom)));
    world.disk.set_capacity(u64::MAX / 2);
    world.check(&log.records.clone(), log.end);
    assert!(world.compact(&log, how, 5));
    world.check(&log.compacted(how), log.end);
}

/// A log that begins anew with an image for which there is no room, until one that stands behind that was given, too.
fn without_room_to_begin_anew() -> (World, Log, RecoveredReplica, u64) {
    let (log, _) = log_of(5);
    let mut world = World::new(5);
    world.write(&log.appends);
    let before = world.reopen();
    let index = log.appends[log.appends.len() - 2].entry.index;
    assert!(before.prev_index < index);
    let conf = ConfState { voters: vec![7], applied: index, ..ConfState::default() };
    let image = Bytes::from(world.chance.bytes(20_000));
    let beginning = Beginning { index, term: 1000, end_offset: 9000, conf, image, given: None };
    world.disk.set_capacity(world.disk.used());
    let kind = OpKind::Reset(Box::new(beginning));
    world.storage.submit(Op { replica: REPLICA, kind });
    world.image(index);
    for _ in 0..10 {
        let mut requests = Vec::new();
        requests.extend(world.storage.begin_round().unwrap());
        requests.extend(world.storage.write_segments().unwrap());
        requests.extend(world.storage.maintain(false).unwrap());
        for request in requests {
            let result = request.run(&world.disk);
            world.storage.on_sync(request.id, result).unwrap();
        }
    }
    (world, log, before, index)
}

/// Images pass what is queued. One that stands behind a new beginning says nothing of what is kept until that is durable.
#[test]
fn an_image_from_behind_a_new_beginning_is_not_one_of_the_old_log() {
    let (mut world, log, before, _) = without_room_to_begin_anew();
    world.disk.set_capacity(u64::MAX / 2);
    world.disk = world.disk.power_loss();
    let found = world.reopen();
    assert_eq!((found.prev_index, found.end_offset), (before.prev_index, log.end));
}

#[test]
fn a_log_that_has_no_room_to_begin_anew_does_so_when_there_is_some() {
    let (mut world, _, _, index) = without_room_to_begin_anew();
    world.disk.set_capacity(u64::MAX / 2);
    world.settle(index).unwrap();
    world.disk = world.disk.power_loss();
    let found = world.reopen();
    assert_eq!((found.prev_index, found.end_offset), (index, 9000));
}

#[test]
fn a_log_that_has_no_room_to_begin_anew_can_be_deleted() {
    let (mut world, _, _, index) = without_room_to_begin_anew();
    world.storage.submit(Op { replica: REPLICA, kind: OpKind::Delete });
    world.disk.set_capacity(world.disk.used() + 8192);
    world.settle(index).unwrap();
    let (_, found) = Storage::open(world.disk.clone(), options()).unwrap();
    assert!(found.replicas.is_empty());
}
