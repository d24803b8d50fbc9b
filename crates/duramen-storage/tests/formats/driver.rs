//! Drives a storage as a node would, and plays the script that the fixture was made by.

use bytes::Bytes;
use duramen_storage::compaction::{Compaction, Means, Order, Progress};
use duramen_storage::op::{
    Append, Beginning, Compacted, ConfState, Content, Given, HardState, Hold, HoldId, Identity,
    LogEntry, RecoveredReplica, Stretch,
};
use duramen_storage::staging::{Outcome, Stage, Stagings};
use duramen_storage::storage::{Facts, SyncRequest, SyncStep};
use duramen_storage::{Descriptor, Done, Op, OpKind, Options, ReplicaId, Storage};

use crate::disk::FsDisk;
use crate::layout::{self, Producer};

type File = <FsDisk as duramen_storage::Disk>::File;

pub(crate) const DIRECTORY: [u8; 16] = *b"directory of v1.";

pub(crate) fn options() -> Options {
    Options {
        facts: Facts { cluster_id: *b"cluster of v1...", broker_id: 7, directory_id: DIRECTORY },
        extent_bytes: 64 * 1024,
        extents_max: 6,
        replicas_an_extent: 128,
        journal_payload_max: 3000,
        index_interval_bytes: 1000,
        free_bytes_min: 0,
        reserve_bytes: 0,
        open_files_max: 1000,
        recovered_at_once: 2,
    }
}

/// One voter, and an index that was applied.
pub(crate) fn conf(applied: u64, voter: u64) -> ConfState {
    ConfState { applied, voters: vec![voter], ..ConfState::default() }
}

pub(crate) fn identity(topic: &str, partition: i32) -> Identity {
    let mut topic_id = [0; 16];
    topic_id.iter_mut().zip(topic.bytes()).for_each(|(byte, from)| *byte = from);
    Identity { topic: topic.to_owned(), topic_id, partition }
}

/// The image that replica `id` gives at `index`.
pub(crate) fn image(id: u64, index: u64, size: usize) -> Bytes {
    format!("image of replica {id} at {index};")
        .into_bytes()
        .into_iter()
        .cycle()
        .take(size)
        .collect()
}

/// Where one replica's log stands, as its writer knows it.
#[derive(Clone, Debug)]
pub(crate) struct Writer {
    pub(crate) id: u64,
    pub(crate) index: u64,
    pub(crate) term: u64,
    pub(crate) offset: i64,
    ticket: u64,
    image_bytes: usize,
}

pub(crate) struct Driver {
    pub(crate) storage: Storage<FsDisk>,
    pub(crate) recovered: Vec<RecoveredReplica>,
    disk: FsDisk,
    writers: Vec<Writer>,
    /// Removals of files that are held up, if they are.
    held: Option<Vec<SyncRequest<File>>>,
}

impl Driver {
    pub(crate) fn open(disk: &FsDisk, options: Options) -> Self {
        let (storage, found) = Storage::open(disk.clone(), options).expect("it is a good one");
        let writers = found.replicas.iter().map(|found| Writer {
            id: found.replica.0,
            index: found.prev_index + found.entries.len() as u64,
            term: found.hard_state.term,
            offset: found.end_offset,
            ticket: 0,
            image_bytes: found.image.len(),
        });
        let writers = writers.collect();
        Self { storage, recovered: found.replicas, disk: disk.clone(), writers, held: None }
    }

    pub(crate) fn writer(&mut self, id: u64) -> &mut Writer {
        self.writers.iter_mut().find(|writer| writer.id == id).expect("it was created")
    }

    fn submit(&mut self, id: u64, kind: OpKind) {
        self.storage.submit(Op { replica: ReplicaId(id), kind });
    }

    pub(crate) fn create(&mut self, id: u64, topic: &str, partition: i32, image_bytes: usize) {
        self.writers.push(Writer { id, index: 1, term: 1, offset: 0, ticket: 0, image_bytes });
        let kind =
            OpKind::Create { ticket: 0, identity: identity(topic, partition), conf: conf(1, id) };
        self.submit(id, kind);
    }

    fn write(&mut self, id: u64, appends: Vec<Append>, commit: u64) {
        let writer = self.writer(id);
        writer.ticket += 1;
        let hard_state = Some(HardState { term: writer.term, vote: id, commit });
        let ticket = writer.ticket;
        self.submit(id, OpKind::Write { ticket, appends, hard_state, must_sync: true });
    }

    /// An entry of Raft's own, or of the node's.
    pub(crate) fn internal(&mut self, id: u64, data: &[u8]) {
        let writer = self.writer(id);
        let commit = writer.index;
        writer.index += 1;
        let content = Content::Internal(Bytes::copy_from_slice(data));
        let entry = LogEntry { index: writer.index, term: writer.term, content };
        self.write(id, vec![Append { entry, payload: Bytes::new() }], commit);
    }

    /// A batch; the commit follows one behind.
    pub(crate) fn batch(&mut self, id: u64, starts_segment: bool, producer: Producer, size: usize) {
        self.keyed_batch(id, starts_segment, producer, size, None);
    }

    /// The same; all records have this key.
    pub(crate) fn keyed_batch(
        &mut self,
        id: u64,
        starts_segment: bool,
        producer: Producer,
        size: usize,
        key: Option<&[u8]>,
    ) {
        let writer = self.writer(id);
        let commit = writer.index;
        writer.index += 1;
        let epoch = i32::try_from(writer.term).expect("small");
        let count = 1 + i32::try_from(writer.index % 3).expect("small");
        let timestamp = 1_000_000 + writer.offset * 10;
        let offset = writer.offset;
        let payload = layout::keyed_batch(offset, epoch, timestamp, producer, count, size, key);
        let descriptor = Descriptor::of_batch(&payload, starts_segment).expect("a good batch");
        let content = Content::Batch(descriptor);
        let entry = LogEntry { index: writer.index, term: writer.term, content };
        writer.offset += i64::from(count);
        self.write(id, vec![Append { entry, payload: payload.into() }], commit);
    }

    /// Holds a batch beside the log, in a stretch of this term and index.
    fn hold(&mut self, id: u64, (term, index): (u64, u64), number: u64, batch: &[u8]) {
        let id_of_hold = HoldId { stretch: Stretch { term, index }, number };
        let hold = Hold { id: id_of_hold, payload: Bytes::copy_from_slice(batch) };
        self.submit(id, OpKind::Hold(hold));
    }

    pub(crate) fn conf(&mut self, id: u64) {
        let applied = self.writer(id).index;
        self.submit(id, OpKind::Conf { conf: conf(applied, id) });
    }

    pub(crate) fn trim(&mut self, id: u64, log_start: i64) {
        self.submit(id, OpKind::Trim { log_start });
    }

    pub(crate) fn delete(&mut self, id: u64) {
        self.submit(id, OpKind::Delete);
    }

    pub(crate) fn image(&mut self, id: u64) {
        let writer = self.writer(id);
        let (index, size) = (writer.index, writer.image_bytes);
        self.submit(id, OpKind::Image { index, image: image(id, index, size) });
    }

    fn run(&mut self, requests: Vec<SyncRequest<File>>) {
        for request in requests {
            let is_removal = |step: &SyncStep<File>| {
                matches!(step, SyncStep::RemoveFile(_) | SyncStep::RemoveDir(_))
            };
            let removes = request.steps.iter().any(is_removal);
            if let Some(held) = self.held.as_mut().filter(|_| removes) {
                held.push(request);
                continue;
            }
            let result = request.run(&self.disk);
            self.storage.on_sync(request.id, result).expect("nothing fails here");
        }
    }

    /// Holds up removals from now on, as a slow disk would.
    pub(crate) fn hold_removals(&mut self) {
        self.held = Some(Vec::new());
    }

    /// Lets the removals that were held up run. Returns how many there were.
    pub(crate) fn release_removals(&mut self) -> usize {
        let held = self.held.take().unwrap_or_default();
        let count = held.len();
        self.run(held);
        count
    }

    /// One round, if there is something for one; false if not. What is persisted by then gives
    /// images where they are asked for.
    pub(crate) fn round(&mut self, idle: bool) -> bool {
        let request = self.storage.begin_round().expect("nothing fails here");
        let bulk = self.storage.write_segments().expect("nothing fails here");
        let some = request.is_some() || !bulk.is_empty();
        self.run(request.into_iter().chain(bulk).collect());
        let more = self.storage.maintain(idle).expect("nothing fails here");
        let some = some || !more.is_empty();
        self.run(more);
        let done = self.storage.take_done();
        for done in &done {
            if let Done::WantImage { replica } = done {
                self.image(replica.0);
            }
        }
        some || !done.is_empty()
    }

    /// Rounds until nothing is left to do but the closing round.
    pub(crate) fn settle(&mut self) {
        while self.round(false) {}
    }

    /// Rounds until the journal is closed.
    pub(crate) fn close(&mut self) {
        while self.round(true) {}
        assert!(self.storage.is_quiet(), "all is written and the journal is closed");
    }

    /// A last round that reaches the journal and nothing else: the process dies in the middle.
    pub(crate) fn die(mut self) {
        let request = self.storage.begin_round().expect("nothing fails here");
        assert!(request.is_some(), "something was queued");
    }
}

/// Compacts a log by an entry that is applied, up to where a segment begins.
pub(crate) fn compact(driver: &mut Driver, id: u64, compacted: Compacted) {
    let (replica, aborted) = (ReplicaId(id), Vec::new());
    let order = Order {
        replica,
        compacted,
        aborted,
        segment_bytes: 100_000,
        erases_since: None,
        expired_by_ms: 0,
    };
    let means = Means { hash_key: (1, 2), keys_max: 100, free_bytes_min: 0 };
    let begun = Compaction::begin(&driver.storage.reader(), order, &means);
    match begun.and_then(|mut it| it.step(u64::MAX)).expect("all is settled") {
        Progress::Done(made) => driver.storage.install(*made),
        Progress::More => panic!("it was given all it needs"),
    }
}

/// What the fixture of version 4 holds: a log that was compacted, with its checkpoint before and after.
pub(crate) fn compacted_script(disk: &FsDisk) {
    let mut driver = Driver::open(disk, options());
    for (id, topic) in [(1, "before"), (2, "after")] {
        driver.create(id, topic, 0, 10);
        driver.settle();
        for step in 0..40 {
            let key = [b'k', b'0' + step % 3];
            driver.keyed_batch(id, step % 13 == 0, NOBODY, 100, Some(&key));
            driver.settle();
        }
        driver.image(id);
        driver.settle();
    }
    drop(driver);
    // At a start all is settled.
    let mut driver = Driver::open(disk, options());
    compact(&mut driver, 2, Compacted { index: 41, below: 52, tombstones_below: 0 });
    driver.settle();
    // Until it has a checkpoint; then the other.
    for step in 0..200 {
        driver.conf(2);
        driver.batch(2, false, NOBODY, 30);
        if step % 10 == 0 {
            driver.image(2);
        }
        driver.settle();
    }
    compact(&mut driver, 1, Compacted { index: 41, below: 52, tombstones_below: 26 });
    driver.settle();
    driver.batch(1, false, NOBODY, 20);
    driver.die();
}

/// What the fixture of version 5 holds: a log that was compacted, and another one that began anew with what that left.
pub(crate) fn given_script(disk: &FsDisk) {
    let mut driver = Driver::open(disk, options());
    driver.create(1, "giver", 0, 10);
    driver.create(2, "taker", 0, 10);
    driver.settle();
    for step in 0..40 {
        driver.keyed_batch(1, step % 13 == 0, NOBODY, 100, Some(&[b'k', b'0' + step % 3]));
        driver.settle();
    }
    driver.image(1);
    driver.settle();
    drop(driver);
    let mut driver = Driver::open(disk, options());
    compact(&mut driver, 1, Compacted { index: 41, below: 52, tombstones_below: 0 });
    driver.settle();
    drop(driver);
    let mut driver = Driver::open(disk, options());
    give(&mut driver, 1, 2);
    driver.settle();
    driver.batch(2, true, NOBODY, 20);
    driver.die();
}

/// What the fixture of version 6 holds: a journal whose rounds say how many files it has, its mark, and logs that were trimmed to
/// their ends: one that has nothing, one that went on.
pub(crate) fn emptied_script(disk: &FsDisk) {
    let mut driver = Driver::open(disk, options());
    for (id, topic) in [(1, "emptied"), (2, "went-on")] {
        driver.create(id, topic, 0, 10);
        driver.settle();
        for step in 0..10 {
            driver.batch(id, step % 4 == 0, NOBODY, 100);
        }
        driver.settle();
        let end = driver.writer(id).offset;
        driver.trim(id, end);
        driver.image(id);
        driver.settle();
    }
    driver.batch(2, true, NOBODY, 20);
    driver.settle();
    drop(driver);
    // A start writes the mark.
    let mut driver = Driver::open(disk, options());
    driver.settle();
    driver.conf(1);
    driver.die();
}

/// Content of the fixture of version 7: a replica that holds batches beside its log, of two stretches.
pub(crate) fn held_script(disk: &FsDisk) {
    let mut driver = Driver::open(disk, options());
    driver.create(1, "held", 0, 10);
    driver.settle();
    driver.batch(1, true, (9, 0, 0), 100);
    driver.settle();
    driver.hold(1, (1, 4), 2, &held(0));
    driver.settle();
    driver.hold(1, (1, 2), 17, &held(3));
    driver.hold(1, (1, 4), 1, &held(7));
    driver.die();
}

/// Content of the fixture of version 8: a replica whose log has a batch that lies beside it too.
pub(crate) fn appended_script(disk: &FsDisk) {
    let mut driver = Driver::open(disk, options());
    driver.create(1, "appended", 0, 10);
    driver.batch(1, true, (9, 0, 0), 100); // index 2, offsets 0..3
    driver.hold(1, (1, 2), 1, &layout::batch(0, -1, 1_000_030, (9, 0, 3), 1, 100));
    driver.settle();
    driver.batch(1, false, (9, 0, 3), 100); // index 3, offset 3
    driver.settle();
    driver.conf(1);
    driver.die();
}

/// A batch as a client sends it, that is held.
pub(crate) fn held(sequence: i32) -> Vec<u8> {
    layout::batch(0, -1, 1_000_000, (9, 0, sequence), 1, 40)
}

/// A log begins anew behind what is compacted of another one, with what is left there.
fn give(driver: &mut Driver, from: u64, to: u64) {
    let found = driver.recovered.iter().find(|it| it.replica.0 == from).expect("it was made");
    let (compacted, history) = (found.compacted, found.history.clone());
    let runs = found.term_runs.iter().filter(|run| run.first_index <= history.index);
    let segments = found.segments.iter().filter(|it| it.base_offset < compacted.below);
    let (runs, segments) = (runs.copied().collect(), segments.copied().collect());
    let given = Given { number: 1, compacted, log_start: 0, runs, segments };
    let (reader, mut stagings) = (driver.storage.reader(), Stagings::default());
    let (replica, identity) = (ReplicaId(to), identity("taker", 0));
    stagings.carry_out(&reader, Stage::Begin { replica, identity, given: given.clone() }, 0);
    let mut offset = 0;
    while let Some(range) =
        reader.locate(ReplicaId(from), offset, compacted.below, 1, true).expect("it can be read")
    {
        let batches = reader.read(ReplicaId(from), &range).expect("it is good");
        offset = Descriptor::of_batch(&batches, false).expect("it is a batch").end_offset();
        let put = Stage::Put { replica, number: 1, batches, is_last: false };
        stagings.carry_out(&reader, put, 0);
    }
    let put = Stage::Put { replica, number: 1, batches: Bytes::new(), is_last: true };
    match stagings.carry_out(&reader, put, 0) {
        Some(Outcome::Staged(staged)) => driver.storage.stage(*staged),
        other => panic!("all of it was put: {other:?}"),
    }
    let segments = driver.storage.take_done().into_iter().find_map(|done| match done {
        Done::Staged { segments, .. } => Some(segments),
        _ => None,
    });
    let given = Some(Given { segments: segments.expect("it is staged"), ..given });
    let (index, term, end_offset) = (history.index, history.term, history.end_offset);
    let (conf, image) = (conf(index, to), image(to, index, 10));
    let beginning = Beginning { index, term, end_offset, conf, image, given };
    driver.submit(to, OpKind::Reset(Box::new(beginning)));
    let writer = driver.writer(to);
    (writer.index, writer.term, writer.offset) = (index, term, end_offset);
}

/// No idempotent producer.
pub(crate) const NOBODY: Producer = (-1, -1, -1);

/// What the fixture of version 1 holds. Only what is written by hand in `expected.txt` counts in
/// the end; this is how it was made.
pub(crate) fn script(disk: &FsDisk) {
    let mut driver = Driver::open(disk, options());
    driver.create(1, "__cluster_metadata", 0, 100);
    driver.create(2, "orders", 0, 300);
    driver.create(3, "events.all", 3, 12_000);
    driver.create(4, "gone", 0, 0);
    driver.settle();
    for id in 1..=4 {
        driver.writer(id).term = 2;
        driver.internal(id, &[1, 0]);
    }
    driver.settle();
    // Long enough that the ring goes round, segments are sealed and large payload is synced.
    for step in 0..70 {
        driver.batch(2, step == 0 || step == 25 || step == 50, (41, 0, step), 150);
        driver.settle();
        driver.batch(3, step == 0 || step == 40, NOBODY, if step % 9 == 0 { 2500 } else { 40 });
        driver.settle();
        if step % 10 == 0 {
            driver.batch(1, step == 0, NOBODY, 60);
            driver.batch(4, step == 0, NOBODY, 30);
            driver.settle();
        }
    }
    // And every kind of record once more, in the extents that replay needs.
    driver.image(1);
    driver.trim(2, 60);
    driver.conf(2);
    driver.settle();
    let before = driver.writer(3).clone();
    driver.batch(3, false, NOBODY, 77);
    driver.settle();
    *driver.writer(3) = Writer { term: 3, ticket: before.ticket + 1, ..before };
    driver.internal(3, &[1, 0]);
    driver.settle();
    driver.batch(3, false, NOBODY, 2500);
    driver.settle();
    driver.delete(4);
    driver.settle();
    driver.create(5, "gone", 0, 0);
    driver.settle();
    driver.writer(5).term = 2;
    driver.internal(5, &[1, 0]);
    driver.batch(5, true, (42, 3, 0), 10);
    driver.settle();
    driver.internal(2, &[1, 0, 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 9]);
    driver.batch(2, false, (41, 0, 70), 50);
    driver.batch(5, false, (42, 3, 1), 20);
    driver.die();
}
