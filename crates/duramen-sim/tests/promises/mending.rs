//! Rot at rest is found, and a segment is mended so that a crash at any point leaves the old file or the new one, whole.
#![expect(clippy::unwrap_used, reason = "a test's own failure is a failure")]

use bytes::Bytes;
use duramen_broker::event::{MadeBy, ReadLog};
use duramen_broker::read_plan;
use duramen_protocol::compression::Codec;
use duramen_sim::SimDisk;
use duramen_sim::batch::Records;
use duramen_storage::mending::{Damage, Mend, MendError};
use duramen_storage::op::{Append, ConfState, Content, HardState, Identity, LogEntry};
use duramen_storage::scrub::{Found, Scrubber};
use duramen_storage::{Descriptor, Done, Op, OpKind, ReplicaId, Storage};

use super::rig::{self, options};

const REPLICA: ReplicaId = ReplicaId(7);
const TERM: u64 = 3;
const SEALED: &str = "t-0/00000000000000000000.log";
const ACTIVE: &str = "t-0/00000000000000000020.log";
const BATCHES: u64 = 40;
/// Bytes at the beginning of a batch that its checksum leaves out.
const UNCOVERED: u64 = 21;

fn batch_at(offset: i64) -> Bytes {
    let value = vec![u8::try_from(offset % 200).unwrap(); 150];
    let records = Records {
        timestamps: vec![offset],
        value,
        producer: (-1, -1, -1),
        log_append_time: false,
        codec: Codec::None,
    };
    records.encode(offset, TERM).into()
}

/// The batch of an index: one record each, the first of two segments at 0 and 20.
fn append(index: u64) -> Append {
    let offset = i64::try_from(index).unwrap() - 2;
    let payload = batch_at(offset);
    let batch = Descriptor::of_batch(&payload, offset == 0 || offset == 20).unwrap();
    Append { entry: LogEntry { index, term: TERM, content: Content::Batch(batch) }, payload }
}

fn write(storage: &mut Storage<SimDisk>, indexes: impl Iterator<Item = u64>) {
    let appends: Vec<Append> = indexes.map(append).collect();
    let last = appends.last().unwrap().entry.index;
    let hard_state = Some(HardState { term: TERM, vote: 7, commit: last });
    let kind = OpKind::Write { ticket: last, appends, hard_state, must_sync: true };
    storage.submit(Op { replica: REPLICA, kind });
}

/// All that is under way comes to its end.
fn settle(storage: &mut Storage<SimDisk>, disk: &SimDisk) -> Vec<Done> {
    rig::settle(storage, disk, |_, _| {}).unwrap()
}

fn filled(seed: u64) -> SimDisk {
    let disk = SimDisk::new(seed);
    let (mut storage, _) = Storage::open(disk.clone(), options()).unwrap();
    let identity = Identity { topic: "t".into(), topic_id: [5; 16], partition: 0 };
    let conf = ConfState { voters: vec![7, 8, 9], ..ConfState::default() };
    storage.submit(Op { replica: REPLICA, kind: OpKind::Create { ticket: 1, identity, conf } });
    write(&mut storage, 2..2 + BATCHES);
    settle(&mut storage, &disk);
    disk
}

fn reopened(disk: &SimDisk) -> Storage<SimDisk> {
    let (storage, found) = Storage::open(disk.clone(), options()).unwrap();
    assert_eq!(found.replicas[0].damage, None);
    storage
}

/// What one pass finds damaged.
fn scrub(storage: &Storage<SimDisk>) -> Vec<Damage> {
    let mut scrubber = Scrubber::new(storage.reader(), 0);
    let mut damaged = Vec::new();
    for _ in 0..10_000 {
        match scrubber.step(700).1 {
            Found::Nothing | Found::Sound { .. } => {}
            Found::Damaged(damage) => damaged.push(damage),
            Found::EndOfPass => return damaged,
        }
    }
    panic!("a pass never ends")
}

/// What belongs into damaged ranges.
fn mend_of(damage: &Damage) -> Mend {
    let patch = |range: &duramen_storage::mending::DamagedRange| {
        let batches: Vec<u8> = (range.offset..range.end_offset).flat_map(batch_at).collect();
        (*range, Bytes::from(batches))
    };
    let patches = damage.ranges.iter().map(patch).collect();
    Mend { replica: damage.replica, segment: damage.segment, patches }
}

/// Every bit of a batch that flips is found, and the range around it is little more than what the index spans.
#[test]
fn every_flipped_bit_is_found_where_it_is() {
    let batch = batch_at(0).len() as u64;
    for path in [SEALED, ACTIVE] {
        for bit in 0..batch * 8 {
            let disk = filled(1);
            let storage = reopened(&disk);
            assert_eq!(scrub(&storage), []);
            let at = 3 * batch + bit / 8;
            assert!(disk.flip(path, at, u8::try_from(bit % 8).unwrap()));
            let damage = scrub(&storage);
            let [damage] = &damage[..] else { panic!("{damage:?}") };
            let [range] = damage.ranges[..] else { panic!("{damage:?}") };
            assert_eq!((damage.replica, range.at), (REPLICA, 3 * batch), "{range:?}");
            assert_eq!(range.offset, damage.segment + 3);
            assert!(range.end_at > at && range.end_at <= range.at + 4 * batch, "{range:?}");
            assert_eq!(
                (range.end_at - range.at) / batch,
                (range.end_offset - range.offset).unsigned_abs()
            );
            // Whoever reads it is refused from now on, though this process has checked it before.
            let end = i64::try_from(BATCHES).unwrap();
            let located = storage.reader().locate(REPLICA, range.offset, end, 100, true);
            let read = located.and_then(|it| storage.reader().read(REPLICA, &it.unwrap()));
            assert!(read.is_err(), "bit {bit}");
            // And what is not damaged can be read as before.
            for offset in [range.offset - 1, range.end_offset] {
                let located = storage.reader().locate(REPLICA, offset, end, 100, true).unwrap();
                let read = storage.reader().read(REPLICA, &located.unwrap());
                assert_eq!(read.unwrap(), batch_at(offset), "bit {bit}");
            }
        }
    }
}

#[test]
fn a_crash_at_any_point_leaves_the_old_file_or_the_new_one_whole() {
    crash_anywhere();
}

/// The two tests that must see these bugs do.
#[cfg(feature = "sabotage")]
#[test]
fn planted_bugs_of_mending_are_found() {
    use duramen_storage::sabotage::{Bug, plant};
    for (bug, test) in [
        (Bug::MendNotSynced, crash_anywhere as fn()),
        (Bug::MendUnchecked, what_does_not_belong_there_is_not_taken),
    ] {
        plant(Some(bug));
        let found = std::panic::catch_unwind(test);
        plant(None);
        assert!(found.is_err(), "{bug:?}");
    }
}

fn crash_anywhere() {
    for path in [SEALED, ACTIVE] {
        let mut calls = 1;
        loop {
            let disk = filled(calls);
            let good = disk.contents(path).unwrap();
            drop(reopened(&disk));
            assert!(disk.flip(path, 500, 3) && disk.flip(path, 3000, 1));
            let bad = disk.contents(path).unwrap();
            let mut storage = reopened(&disk);
            let damage = scrub(&storage).remove(0);
            disk.crash_in(Some(calls));
            if let Ok(mended) = storage.reader().mend(&mend_of(&damage), 0)
                && storage.switch(&mended).is_ok()
            {
                settle_if_alive(&mut storage, &disk);
            }
            let is_over = !disk.is_dead();
            disk.crash_in(None);
            let disk = if calls % 2 == 0 { disk.power_loss() } else { disk.kill().power_loss() };
            let storage = reopened(&disk);
            let there = disk.contents(path).unwrap();
            assert!(there == good || there == bad, "after {calls} calls, {} bytes", there.len());
            assert!(disk.contents(&path.replace(".log", ".mending")).is_none());
            if is_over {
                assert!(there == good);
                assert_eq!(scrub(&storage), []);
                break;
            }
            calls += 1;
        }
        assert!(calls > 8, "{calls}");
    }
}

fn settle_if_alive(storage: &mut Storage<SimDisk>, disk: &SimDisk) {
    if !disk.is_dead() {
        let done = Done::Mended { replica: REPLICA, segment: 0, is_done: true };
        assert!(storage.take_done().iter().all(|it| match it {
            Done::Mended { is_done, .. } => *is_done,
            it => *it != done,
        }));
    }
}

/// What is appended to the active segment while its copy is made, and after the switch, is in the new file.
#[test]
fn appends_go_on_beside_and_behind_the_mending() {
    for seed in 1..40 {
        let disk = filled(seed);
        drop(reopened(&disk));
        assert!(disk.flip(ACTIVE, 700, 3));
        let mut storage = reopened(&disk);
        let damage = scrub(&storage).remove(0);
        write(&mut storage, 42..50);
        settle(&mut storage, &disk);
        let mended = storage.reader().mend(&mend_of(&damage), 0).unwrap();
        write(&mut storage, 50..60);
        // Its bytes may be written, and not synced yet, or not even written.
        let round = storage.begin_round().unwrap().unwrap();
        if seed % 2 == 0 {
            let bulk = storage.write_segments().unwrap();
            assert!(bulk.is_empty());
        }
        storage.switch(&mended).unwrap();
        if seed % 2 == 1 {
            let bulk = storage.write_segments().unwrap();
            assert!(bulk.is_empty());
        }
        let result = round.run(&disk);
        storage.on_sync(round.id, result).unwrap();
        write(&mut storage, 60..70);
        let done = settle(&mut storage, &disk);
        assert!(done.contains(&Done::Persisted { replica: REPLICA, ticket: 69 }));
        let expected: Vec<u8> = (20..68).flat_map(batch_at).collect();
        assert_eq!(disk.contents(ACTIVE).unwrap(), expected);
        let disk = disk.power_loss();
        let storage = reopened(&disk);
        assert_eq!(disk.contents(ACTIVE).unwrap(), expected);
        assert_eq!(scrub(&storage), []);
    }
}

#[test]
fn what_does_not_belong_there_is_not_taken() {
    let disk = filled(1);
    drop(reopened(&disk));
    assert!(disk.flip(SEALED, 500, 3));
    let storage = reopened(&disk);
    let good = mend_of(&scrub(&storage).remove(0));
    let refused = |batches: Bytes| {
        let patches = vec![(good.patches[0].0, batches)];
        let mended = storage.reader().mend(&Mend { patches, ..good.clone() }, 0);
        assert!(matches!(mended, Err(MendError::Unfit(_))), "{mended:?}");
    };
    let bytes = &good.patches[0].1;
    for bit in 0..bytes.len() * 8 {
        let mut harmed = bytes.to_vec();
        harmed[bit / 8] ^= 1 << (bit % 8);
        refused(harmed.into());
    }
    refused(Bytes::new());
    refused([bytes.clone(), batch_at(good.patches[0].0.end_offset)].concat().into());
    refused(bytes.slice(..bytes.len() - 1));
    // Less than all of it is taken: the rest follows.
    let one = batch_at(good.patches[0].0.offset);
    let patches = vec![(good.patches[0].0, one)];
    assert!(storage.reader().mend(&Mend { patches, ..good.clone() }, 0).is_ok());
    let no_room = storage.reader().mend(&good, u64::MAX);
    assert!(matches!(no_room, Err(MendError::NoRoom)));
}

/// Nor does whoever is asked give it: what was good when it was read first is looked at once more.
#[test]
fn what_has_rotted_is_not_given_to_others() {
    let disk = filled(1);
    let storage = reopened(&disk);
    let given = |from: i64| {
        let (end, ticket) = (20, 1 << 63);
        let wanted = ReadLog {
            replica: REPLICA,
            from,
            pass: 0,
            end,
            bytes_max: 1 << 20,
            peer: None,
            ticket,
            made_by: MadeBy::Appends,
        };
        assert!(wanted.is_for_mending());
        read_plan::log_slice(&storage.reader(), &wanted).batches.unwrap_or_default()
    };
    let good = |from: i64, end: i64| (from..end).flat_map(batch_at).collect::<Vec<u8>>();
    assert_eq!(given(0), good(0, 20));
    let batch = batch_at(0).len() as u64;
    // Of what the checksum leaves out the taker judges, who knows what belongs there.
    for bit in UNCOVERED * 8..batch * 8 {
        let (at, bit) = (7 * batch + bit / 8, u8::try_from(bit % 8).unwrap());
        assert!(disk.flip(SEALED, at, bit));
        assert_eq!((given(0), given(7).len()), (good(0, 7).into(), 0));
        assert!(disk.flip(SEALED, at, bit));
    }
}

/// A file that is gone, or cut short, is damaged as well.
#[test]
fn a_file_that_is_gone_is_made_again() {
    let disk = filled(1);
    let good = disk.contents(SEALED).unwrap();
    let mut storage = reopened(&disk);
    {
        use duramen_storage::Disk;
        disk.remove_file(SEALED).unwrap();
    }
    let damage = scrub(&storage).remove(0);
    assert_eq!((damage.segment, damage.ranges.len()), (0, 1));
    let mended = storage.reader().mend(&mend_of(&damage), 0).unwrap();
    storage.switch(&mended).unwrap();
    assert_eq!(disk.contents(SEALED).unwrap(), good);
    assert_eq!(scrub(&storage), []);
}

/// A log of which a checkpoint has written the first segment's indexes, and an image is later than that.
fn checkpointed() -> SimDisk {
    let disk = filled(1);
    let mut storage = reopened(&disk);
    storage.submit(Op {
        replica: REPLICA,
        kind: OpKind::Image { index: 1 + BATCHES, image: Bytes::from_static(b"image") },
    });
    for first in (42..1000).step_by(20) {
        write(&mut storage, first..first + 20);
        let done = settle(&mut storage, &disk);
        if done.contains(&Done::WantImage { replica: REPLICA }) {
            let kind = OpKind::Image { index: first + 19, image: Bytes::from_static(b"image") };
            storage.submit(Op { replica: REPLICA, kind });
        }
    }
    settle(&mut storage, &disk);
    disk
}

/// Indexes only say where to begin to look: without one, or with one that is wrong, all is found.
#[test]
fn what_an_index_does_not_tell_is_found_all_the_same() {
    use duramen_storage::Disk;
    let disk = checkpointed();
    let index = &SEALED.replace(".log", ".index");
    let bytes = disk.contents(index).unwrap().len() as u64;
    assert!(bytes > 32, "{bytes}");
    let all_is_found = |disk: &SimDisk, why: &str| {
        let storage = reopened(disk);
        for offset in (0..20).rev() {
            let range = storage.reader().locate(REPLICA, offset, 40, 100, true).unwrap();
            let read = storage.reader().read(REPLICA, &range.unwrap()).unwrap();
            assert_eq!(read, batch_at(offset), "{why}");
        }
        assert_eq!(storage.reader().find_time(REPLICA, 13, 0, 40).unwrap(), Some((13, 13)));
    };
    for bit in 0..bytes * 8 {
        let (at, bit) = (bit / 8, u8::try_from(bit % 8).unwrap());
        assert!(disk.flip(index, at, bit));
        all_is_found(&disk, &format!("bit {bit} of byte {at}"));
        assert!(disk.flip(index, at, bit));
    }
    disk.set_len(&disk.open(index).unwrap(), bytes / 2).unwrap();
    all_is_found(&disk, "cut short");
    disk.remove_file(index).unwrap();
    let times = SEALED.replace(".log", ".timeindex");
    if disk.contents(&times).is_some() {
        disk.remove_file(&times).unwrap();
    }
    all_is_found(&disk, "gone");
}

/// The same at the start, of a segment that is sealed: the replica goes on, because others have it.
#[test]
fn a_sealed_file_that_is_gone_or_short_at_the_start_is_made_again() {
    use duramen_storage::Disk;
    for len in [None, Some(0), Some(1000)] {
        let disk = checkpointed();
        let good = disk.contents(SEALED).unwrap();
        match len {
            None => disk.remove_file(SEALED).unwrap(),
            Some(len) => disk.set_len(&disk.open(SEALED).unwrap(), len).unwrap(),
        }
        disk.sync_dir("t-0").unwrap();
        let mut storage = reopened(&disk);
        let mut scrubber = Scrubber::new(storage.reader(), 0);
        assert!(scrubber.is_urgent());
        let damage = loop {
            match scrubber.step(1000).1 {
                Found::Nothing => {}
                Found::Damaged(damage) => break damage,
                found => panic!("{found:?}"),
            }
        };
        assert_eq!(damage.segment, 0);
        let mended = storage.reader().mend(&mend_of(&damage), 0).unwrap();
        storage.switch(&mended).unwrap();
        assert_eq!(disk.contents(SEALED).unwrap(), good);
        assert_eq!(scrub(&storage), []);
    }
}

/// Who meets rot while reading lets it be looked at.
#[test]
fn what_somebody_had_trouble_with_is_looked_at_first() {
    let disk = filled(1);
    drop(reopened(&disk));
    assert!(disk.flip(ACTIVE, 700, 3));
    let storage = reopened(&disk);
    let mut scrubber = Scrubber::new(storage.reader(), 0);
    assert!(!scrubber.is_urgent());
    let range = storage.reader().locate(REPLICA, 20, 40, 2000, true).unwrap().unwrap();
    assert!(storage.reader().read(REPLICA, &range).is_err());
    assert!(scrubber.is_urgent());
    while let (_, found) = scrubber.step(1000)
        && found == Found::Nothing
    {}
    assert!(!scrubber.is_urgent());
    assert!(storage.reader().read(REPLICA, &range).is_err());
    assert!(!scrubber.is_urgent(), "it is known already");
    assert_eq!(scrub(&storage)[0].segment, 20);
}
