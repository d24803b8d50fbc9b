//! A log that is trimmed to its end lets go of its last segment at once, and whatever a crash leaves of that, it goes on.
#![expect(clippy::unwrap_used, reason = "a test's own failure is a failure")]

use bytes::Bytes;
use duramen_protocol::compression::Codec;
use duramen_sim::SimDisk;
use duramen_sim::batch::Records;
use duramen_storage::op::{
    Append, ConfState, Content, HardState, Identity, LogEntry, RecoveredReplica,
};
use duramen_storage::storage::Error;
use duramen_storage::{Descriptor, Done, Op, OpKind, ReplicaId, Storage};

use super::rig::{self, options};

const REPLICA: ReplicaId = ReplicaId(7);
const TERM: u64 = 3;
const FIRST: &str = "t-0/00000000000000000000.log";
const NEXT: &str = "t-0/00000000000000000010.log";
/// Batches of one record each, from index 2 on.
const BATCHES: u64 = 10;
const LAST: u64 = BATCHES + 1;

/// The batch at an offset; `size` above 4,096 keeps it out of the journal.
fn append(offset: i64, starts_segment: bool, size: usize) -> Append {
    let records = Records {
        timestamps: vec![offset],
        value: vec![u8::try_from(offset).unwrap(); size],
        producer: (-1, -1, -1),
        log_append_time: false,
        codec: Codec::None,
    };
    let payload: Bytes = records.encode(offset, TERM).into();
    let batch = Descriptor::of_batch(&payload, starts_segment).unwrap();
    let index = u64::try_from(offset).unwrap() + 2;
    Append { entry: LogEntry { index, term: TERM, content: Content::Batch(batch) }, payload }
}

fn write(storage: &mut Storage<SimDisk>, appends: Vec<Append>) {
    let last = appends.last().unwrap().entry.index;
    let hard_state = Some(HardState { term: TERM, vote: 7, commit: last });
    let kind = OpKind::Write { ticket: last, appends, hard_state, must_sync: true };
    storage.submit(Op { replica: REPLICA, kind });
}

fn submit(storage: &mut Storage<SimDisk>, kind: OpKind) {
    storage.submit(Op { replica: REPLICA, kind });
}

/// All that is under way comes to its end. The first image that is asked for is given, of the entry that `image` names: a
/// node has no later one either, until it applies more.
fn settle(
    storage: &mut Storage<SimDisk>,
    disk: &SimDisk,
    image: Option<u64>,
) -> Result<Vec<Done>, Error> {
    let mut image = image;
    rig::settle(storage, disk, |storage, done| {
        if let Some(index) = image.take_if(|_| matches!(done, Done::WantImage { .. })) {
            submit(storage, OpKind::Image { index, image: Bytes::from_static(b"view") });
        }
    })
}

fn open(disk: &SimDisk) -> (Storage<SimDisk>, Vec<RecoveredReplica>) {
    let (storage, found) = Storage::open(disk.clone(), options()).unwrap();
    assert!(found.replicas.iter().all(|it| it.damage.is_none()), "{found:?}");
    (storage, found.replicas)
}

/// A log of one segment, all of it committed.
fn filled(seed: u64, size: usize) -> (SimDisk, Storage<SimDisk>) {
    let disk = SimDisk::new(seed);
    let (mut storage, _) = open(&disk);
    let identity = Identity { topic: "t".into(), topic_id: [5; 16], partition: 0 };
    let conf = ConfState { voters: vec![7, 8, 9], ..ConfState::default() };
    submit(&mut storage, OpKind::Create { ticket: 1, identity, conf });
    let appends = (0..10).map(|offset| append(offset, offset == 0, size)).collect();
    write(&mut storage, appends);
    settle(&mut storage, &disk, None).unwrap();
    assert!(disk.contents(FIRST).is_some());
    (disk, storage)
}

fn read_all(storage: &Storage<SimDisk>, from: i64, end: i64) -> Vec<u8> {
    let reader = storage.reader();
    let (mut at, mut bytes) = (from, Vec::new());
    while at < end {
        let range = reader.locate(REPLICA, at, end, 1, true).unwrap().unwrap();
        bytes.extend(reader.read(REPLICA, &range).unwrap());
        at += 1;
    }
    bytes
}

fn expected(from: i64, end: i64, size: usize) -> Vec<u8> {
    (from..end).flat_map(|offset| append(offset, false, size).payload).collect()
}

#[test]
fn the_last_segment_goes_when_all_of_it_is_trimmed_and_an_image_is_behind_it() {
    for (size, starts_segment) in [(100, true), (100, false), (6000, true), (6000, false)] {
        let (disk, mut storage) = filled(1, size);
        let used = disk.used();
        submit(&mut storage, OpKind::Trim { log_start: 10 });
        let done = settle(&mut storage, &disk, Some(LAST)).unwrap();
        assert!(done.contains(&Done::WantImage { replica: REPLICA }));
        assert_eq!(disk.contents(FIRST), None);
        assert!(disk.used() < used);
        // Nothing is left of it at the next start, and the next batch begins a segment, whether it says so or not.
        drop(storage);
        let (mut storage, found) = open(&disk.kill());
        let found = &found[0];
        assert_eq!((found.log_start, found.end_offset, found.segments.len()), (10, 10, 0));
        assert_eq!((found.history.index, found.history.end_offset), (LAST, 10));
        let disk = storage.reader().disk().clone();
        write(&mut storage, vec![append(10, starts_segment, size), append(11, false, size)]);
        settle(&mut storage, &disk, Some(LAST)).unwrap();
        assert_eq!(read_all(&storage, 10, 12), expected(10, 12, size));
        assert_eq!(disk.contents(NEXT).unwrap(), expected(10, 12, size));
        drop(storage);
        let (storage, found) = open(&disk.power_loss());
        assert_eq!(found[0].segments[0].base_offset, 10);
        assert_eq!(read_all(&storage, 10, 12), expected(10, 12, size));
    }
}

#[test]
fn what_could_still_be_cut_keeps_its_segment() {
    let (disk, mut storage) = filled(1, 100);
    submit(&mut storage, OpKind::Trim { log_start: 10 });
    settle(&mut storage, &disk, Some(LAST - 1)).unwrap();
    assert!(disk.contents(FIRST).is_some(), "the image holds all but the last batch");
    submit(&mut storage, OpKind::Trim { log_start: 9 });
    submit(&mut storage, OpKind::Image { index: LAST, image: Bytes::new() });
    settle(&mut storage, &disk, None).unwrap();
    assert_eq!(disk.contents(FIRST), None);
    // One that is trimmed in part stays.
    let (disk, mut storage) = filled(1, 100);
    submit(&mut storage, OpKind::Trim { log_start: 9 });
    submit(&mut storage, OpKind::Image { index: LAST, image: Bytes::new() });
    settle(&mut storage, &disk, Some(LAST)).unwrap();
    assert_eq!(read_all(&storage, 9, 10), expected(9, 10, 100));
}

/// An image may come late, or the process may end before it does: it is asked for until there is one.
#[test]
fn a_start_goes_on_with_what_a_trim_had_not_removed() {
    let (disk, mut storage) = filled(1, 100);
    submit(&mut storage, OpKind::Trim { log_start: 10 });
    settle(&mut storage, &disk, None).unwrap();
    drop(storage);
    assert!(disk.contents(FIRST).is_some());
    let disk = disk.kill();
    let (mut storage, found) = open(&disk);
    assert_eq!((found[0].log_start, found[0].segments.len()), (10, 1));
    settle(&mut storage, &disk, Some(LAST - 2)).unwrap();
    assert!(disk.contents(FIRST).is_some());
    submit(&mut storage, OpKind::Image { index: LAST, image: Bytes::from_static(b"view") });
    settle(&mut storage, &disk, None).unwrap();
    assert_eq!(disk.contents(FIRST), None);
}

#[test]
fn a_crash_anywhere_in_it_loses_nothing_that_comes_behind() {
    for seed in 1..400 {
        let size = if seed % 2 == 0 { 100 } else { 6000 };
        let (disk, mut storage) = filled(seed, size);
        disk.crash_in(Some(1 + seed / 2 % 40));
        submit(&mut storage, OpKind::Trim { log_start: 10 });
        let starts = seed % 3 > 0;
        let mut acked = false;
        let outcome = settle(&mut storage, &disk, Some(LAST)).and_then(|_| {
            write(&mut storage, (10..14).map(|at| append(at, starts && at == 10, size)).collect());
            settle(&mut storage, &disk, Some(LAST))
        });
        if let Ok(done) = outcome {
            acked = done.contains(&Done::Persisted { replica: REPLICA, ticket: 15 });
            assert!(acked);
        }
        disk.crash_in(None);
        drop(storage);
        let disk = if seed % 5 < 3 { disk.power_loss() } else { disk.kill() };
        let (mut storage, found) = open(&disk);
        let found = &found[0];
        let (start, end) = (found.log_start, found.end_offset);
        assert!(start == 0 && end == 10 || start == 10 && (10..=14).contains(&end), "{found:?}");
        assert!(!acked || end == 14, "seed {seed}: {found:?}");
        assert_eq!(read_all(&storage, start, end), expected(start, end, size), "seed {seed}");
        // It goes on, and at rest nothing of what was trimmed is left.
        submit(&mut storage, OpKind::Trim { log_start: 10 });
        let image = found.prev_index + found.entries.len() as u64;
        settle(&mut storage, &disk, Some(image)).unwrap();
        write(&mut storage, vec![append(end, false, size)]);
        settle(&mut storage, &disk, Some(image)).unwrap();
        assert_eq!(read_all(&storage, 10, end + 1), expected(10, end + 1, size));
        if starts || end == 10 {
            assert_eq!(disk.contents(FIRST), None, "seed {seed}");
        }
        drop(storage);
        let (storage, _) = open(&disk.power_loss());
        assert_eq!(read_all(&storage, 10, end + 1), expected(10, end + 1, size), "seed {seed}");
    }
}
