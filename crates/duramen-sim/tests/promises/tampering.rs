//! Files that are cut, lost, swapped, copied over each other or put back as they once were, between two starts: a start finds
//! all that was acknowledged, or says which file it is; and it removes no whole batch, and nothing that is not duramen's.
#![expect(clippy::unwrap_used, reason = "a test's own failure is a failure")]

use std::collections::BTreeMap;

use bytes::Bytes;
use duramen_protocol::compression::Codec;
use duramen_sim::SimDisk;
use duramen_sim::batch::Records;
use duramen_storage::op::{Append, ConfState, Content, HardState, Identity, LogEntry};
use duramen_storage::storage::{Error, Facts, Options, Recovered};
use duramen_storage::{Descriptor, Disk, Op, OpKind, ReplicaId, SET_ASIDE, Storage};

use super::rig;

const TERM: u64 = 3;
const EXTENT_BYTES: usize = 64 * 1024;
/// Replicas of `filled`.
const REPLICAS: u64 = 3;

type Files = BTreeMap<String, Vec<u8>>;

fn options() -> Options {
    Options {
        extent_bytes: EXTENT_BYTES as u64,
        extents_max: 6,
        journal_payload_max: 2048,
        ..rig::options()
    }
}

/// A batch of one record whose value has so many bytes, all different from those of other replicas and offsets.
fn batch_at(replica: u64, offset: i64, bytes: usize) -> Bytes {
    let value =
        vec![u8::try_from((offset + i64::try_from(replica).unwrap() * 50) % 200).unwrap(); bytes];
    let records = Records {
        timestamps: vec![offset],
        value,
        producer: (-1, -1, -1),
        log_append_time: false,
        codec: Codec::None,
    };
    records.encode(offset, TERM).into()
}

fn last_index(storage: &Storage<SimDisk>, replica: ReplicaId) -> u64 {
    let reader = storage.reader();
    let is_there =
        |offset| matches!(reader.locate(replica, offset, i64::MAX, 1, true), Ok(Some(_)));
    let end = (0..10_000).find(|offset| !is_there(*offset)).unwrap();
    u64::try_from(end).unwrap() + 1
}

/// What one run of the process has to do.
struct Run {
    disk: SimDisk,
    storage: Storage<SimDisk>,
}

impl Run {
    fn open(disk: &SimDisk) -> (Self, Recovered) {
        let (storage, found) = Storage::open(disk.clone(), options()).unwrap();
        (Self { disk: disk.clone(), storage }, found)
    }

    fn create(&mut self, replica: u64) {
        let identity = Identity {
            topic: "t".into(),
            topic_id: [5; 16],
            partition: i32::try_from(replica).unwrap(),
        };
        let conf = ConfState { voters: vec![replica], ..ConfState::default() };
        let kind = OpKind::Create { ticket: 1, identity, conf };
        self.storage.submit(Op { replica: ReplicaId(replica), kind });
        self.settle();
    }

    /// Appends batches of one record each; every twentieth begins a segment.
    fn append(&mut self, replica: u64, offsets: std::ops::Range<i64>, bytes: usize) {
        for offset in offsets {
            let payload = batch_at(replica, offset, bytes);
            let starts_segment = offset % 20 == 0;
            let batch = Descriptor::of_batch(&payload, starts_segment).unwrap();
            let index = u64::try_from(offset).unwrap() + 2;
            let entry = LogEntry { index, term: TERM, content: Content::Batch(batch) };
            let kind = OpKind::Write {
                ticket: index,
                appends: vec![Append { entry, payload }],
                hard_state: Some(HardState { term: TERM, vote: replica, commit: index }),
                must_sync: true,
            };
            self.storage.submit(Op { replica: ReplicaId(replica), kind });
            self.settle();
        }
    }

    /// All that is under way comes to its end. Whoever is asked for an image gives one.
    fn settle(&mut self) {
        let done = rig::settle(&mut self.storage, &self.disk, |storage, done| {
            if let duramen_storage::Done::WantImage { replica } = *done {
                let index = last_index(storage, replica);
                let kind = OpKind::Image { index, image: Bytes::from_static(b"image") };
                storage.submit(Op { replica, kind });
            }
        });
        done.unwrap();
    }

    /// Ends in good order.
    fn close(mut self) -> SimDisk {
        self.settle();
        self.storage.close().unwrap();
        drop(self.storage);
        self.disk.kill()
    }

    /// Checks that a replica has each of these batches.
    fn holds(&self, replica: u64, end: i64, bytes: usize) {
        let reader = self.storage.reader();
        for offset in 0..end {
            let range = reader.locate(ReplicaId(replica), offset, end, 1, true).unwrap();
            let range = range.unwrap_or_else(|| panic!("offset {offset} of {replica} is gone"));
            let found = reader.read(ReplicaId(replica), &range).unwrap();
            assert!(
                found.starts_with(&batch_at(replica, offset, bytes)),
                "offset {offset} of {replica}"
            );
        }
    }
}

fn snapshot(disk: &SimDisk) -> Files {
    let files = disk.files().into_iter();
    files.map(|(path, _)| (path.clone(), disk.contents(&path).unwrap())).collect()
}

const BATCHES: i64 = 130;
const BATCH_BYTES: usize = 400;

/// A directory with three replicas whose journal has gone around, as a process left it in good order, and what its files
/// were now and then.
fn filled() -> (SimDisk, Vec<Files>) {
    let disk = SimDisk::new(1);
    let (mut run, _) = Run::open(&disk);
    let mut before = Vec::new();
    for replica in 1..=REPLICAS {
        run.create(replica);
    }
    for from in (0..BATCHES).step_by(10) {
        for replica in 1..=REPLICAS {
            run.append(replica, from..from + 10, BATCH_BYTES);
        }
        before.push(snapshot(&run.disk));
    }
    (run.close(), before)
}

fn is_extent(path: &str) -> bool {
    path.strip_prefix("journal/").is_some_and(|name| name != "mark")
}

fn extents(files: &Files) -> Vec<String> {
    files.keys().filter(|path| is_extent(path)).cloned().collect()
}

/// A copy of the disk with some files changed.
fn with(files: &Files, changes: &[(&str, Option<Vec<u8>>)]) -> SimDisk {
    let disk = SimDisk::new(2);
    for path in files.keys() {
        if let Some((dir, _)) = path.split_once('/') {
            disk.create_dir(dir).unwrap();
        }
    }
    let harmed = changes.iter().map(|(path, bytes)| (*path, bytes.clone()));
    let all = files.iter().map(|(path, bytes)| (path.as_str(), Some(bytes.clone())));
    all.chain(harmed).for_each(|(path, bytes)| disk.put(path, bytes));
    disk.kill()
}

/// A start finds all that was acknowledged; or it refuses, changes nothing, and names a file of `blamed`.
fn finds_all_or_refuses(disk: &SimDisk, blamed: &str, what: &str) -> bool {
    let before = snapshot(disk);
    match Storage::open(disk.clone(), options()) {
        Err(Error::Damaged { path, .. }) => {
            assert!(path.starts_with(blamed), "{what}: {path} is named");
            let after = snapshot(disk);
            let mut paths = before.keys().chain(after.keys());
            let changed = paths.find(|path| before.get(*path) != after.get(*path));
            assert_eq!(changed, None, "{what}: nothing may be changed");
            false
        }
        Err(error) => panic!("{what}: {error}"),
        Ok((storage, found)) => {
            let run = Run { disk: disk.clone(), storage };
            assert_eq!(found.replicas.len() as u64, REPLICAS, "{what}");
            for replica in &found.replicas {
                assert_eq!(replica.damage, None, "{what}");
                run.holds(replica.replica.0, BATCHES, BATCH_BYTES);
            }
            true
        }
    }
}

#[test]
fn a_short_file_of_the_journal_is_named() {
    let (disk, _) = filled();
    let files = snapshot(&disk);
    assert!(extents(&files).len() >= 4);
    for path in extents(&files) {
        for len in [0, 4096, 40_960, EXTENT_BYTES - 4096, EXTENT_BYTES - 1] {
            let cut = with(&files, &[(&path, Some(files[&path][..len].to_vec()))]);
            assert!(!finds_all_or_refuses(&cut, &path, &format!("{path} cut to {len}")));
        }
    }
    assert!(finds_all_or_refuses(&with(&files, &[]), "", "nothing was changed"));
}

#[test]
fn a_missing_file_of_the_journal_is_named() {
    let (disk, _) = filled();
    let files = snapshot(&disk);
    for path in extents(&files) {
        let lost = with(&files, &[(&path, None)]);
        assert!(!finds_all_or_refuses(&lost, &path, &format!("{path} is lost")));
    }
    let unmarked = with(&files, &[("journal/mark", None)]);
    assert!(finds_all_or_refuses(&unmarked, "", "the mark is only a second witness"));
}

#[test]
fn files_of_the_journal_may_change_places_and_not_replace_each_other() {
    let (disk, _) = filled();
    let files = snapshot(&disk);
    for one in extents(&files) {
        for other in extents(&files).into_iter().filter(|other| *other != one) {
            let content = |path: &str| Some(files[path].clone());
            let swapped = with(&files, &[(&one, content(&other)), (&other, content(&one))]);
            let what = format!("{one} and {other} have changed places");
            assert!(finds_all_or_refuses(&swapped, "journal", &what));
            let copied = with(&files, &[(&other, content(&one))]);
            finds_all_or_refuses(&copied, "journal", &format!("{one} is copied over {other}"));
        }
    }
}

#[test]
fn an_older_copy_of_any_file_loses_nothing_unsaid() {
    let (disk, before) = filled();
    let files = snapshot(&disk);
    // The process ended while it made one more file of the journal.
    let unfinished = format!("journal/{:04}", extents(&files).len());
    let mut refused = 0;
    for old in &before {
        for (path, bytes) in old
            .iter()
            .filter(|(path, _)| is_extent(path) || *path == "manifest" || *path == "journal/mark")
        {
            let changes = [(path.as_str(), bytes.clone()), (&unfinished, vec![0; 8192])];
            let restored = with(&files, &changes.map(|(path, bytes)| (path, Some(bytes))));
            let what = format!("{path} is as it once was");
            refused += u32::from(!finds_all_or_refuses(&restored, "journal", &what));
        }
    }
    assert!(refused > 0, "some of them were the newest file");
}

#[test]
fn a_directory_whose_manifest_is_lost_is_not_formatted_again() {
    let disk = SimDisk::new(1);
    let (mut run, _) = Run::open(&disk);
    run.create(1);
    let disk = run.close();
    disk.put("manifest", None);
    let disk = disk.kill();
    let before = snapshot(&disk);
    let refused = Storage::open(disk.clone(), options()).map(|_| ()).unwrap_err();
    assert!(refused.to_string().starts_with("manifest is damaged"), "{refused}");
    assert_eq!(snapshot(&disk), before);
}

#[test]
fn a_manifest_from_before_the_node_joined_is_refused() {
    let disk = SimDisk::new(1);
    let fresh = Options { facts: Facts { cluster_id: [0; 16], ..options().facts }, ..options() };
    let (mut storage, _) = Storage::open(disk.clone(), fresh).unwrap();
    let old = disk.contents("manifest").unwrap();
    let voter = |peer_id, broker_id, byte| duramen_storage::storage::Voter {
        peer_id,
        broker_id,
        directory_id: [byte; 16],
    };
    storage.join(Some([1; 16]), &[voter(1, 1, 2), voter(2, 2, 3)]).unwrap();
    let mut run = Run { disk, storage };
    run.create(1);
    let disk = run.close();
    disk.put("manifest", Some(old));
    let refused = Storage::open(disk.clone(), options()).map(|_| ()).unwrap_err();
    assert!(refused.to_string().starts_with("manifest is damaged"), "{refused}");
}

#[test]
fn a_directory_that_no_record_names_is_set_aside_and_one_that_is_not_ours_is_left_alone() {
    let (disk, _) = filled();
    disk.create_dir("lost-7").unwrap();
    disk.put("lost-7/00000000000000000000.log", Some(batch_at(9, 0, 100).to_vec()));
    disk.create_dir("torn-7").unwrap();
    disk.put("torn-7/00000000000000000000.log", Some(batch_at(9, 0, 100)[..70].to_vec()));
    disk.create_dir("foo-0").unwrap();
    disk.put("foo-0/thesis.txt", Some(b"mine".to_vec()));
    disk.put("bar-0", Some(b"a file".to_vec()));
    disk.create_dir("my-deleted").unwrap();
    disk.put("my-deleted/letter", Some(b"mine".to_vec()));
    disk.put("t-1/notes.txt", Some(b"mine".to_vec()));
    disk.create_dir("t-1/00000000000000000020.d").unwrap();
    let disk = disk.kill();
    let (mut run, found) = Run::open(&disk);
    assert!(found.replicas.iter().all(|replica| replica.damage.is_none()));
    run.settle();
    run.holds(1, BATCHES, BATCH_BYTES);
    let files = snapshot(&disk);
    for (path, bytes) in [
        ("foo-0/thesis.txt", &b"mine"[..]),
        ("bar-0", b"a file"),
        ("my-deleted/letter", b"mine"),
        ("t-1/notes.txt", b"mine"),
    ] {
        assert_eq!(files.get(path).map(|it| &it[..]), Some(bytes), "{path}");
    }
    let aside: Vec<&String> = files.keys().filter(|path| path.starts_with(SET_ASIDE)).collect();
    let [lost] = &aside[..] else { panic!("{aside:?}") };
    assert!(lost.starts_with("set-aside/lost-7."), "{lost}");
    assert_eq!(files[*lost], batch_at(9, 0, 100).to_vec());
    assert!(!files.keys().any(|path| path.starts_with("torn-7") || path.starts_with("lost-7")));
    // The next start finds nothing more.
    let disk = run.close();
    let (run, _) = Run::open(&disk);
    let names = |files: &Files| {
        files.keys().filter(|path| path.starts_with(SET_ASIDE)).cloned().collect::<Vec<_>>()
    };
    assert_eq!(names(&snapshot(&disk)), names(&files));
    drop(run);
}

#[test]
fn a_directory_in_the_way_of_a_new_replica_is_set_aside() {
    let (disk, _) = filled();
    disk.create_dir("t-9").unwrap();
    disk.put("t-9/00000000000000000000.log", Some(batch_at(9, 0, 100).to_vec()));
    disk.put("t-9/leader-epoch-checkpoint", Some(b"0\n0\n".to_vec()));
    let disk = disk.kill();
    let (mut run, _) = Run::open(&disk);
    assert!(
        disk.contents("t-9/leader-epoch-checkpoint").is_some(),
        "it is left alone until its name is wanted"
    );
    run.create(9);
    run.append(9, 0..30, 50);
    run.holds(9, 30, 50);
    let files = snapshot(&disk);
    let epochs = files.iter().find(|(path, _)| path.ends_with("leader-epoch-checkpoint")).unwrap();
    assert!(epochs.0.starts_with("set-aside/t-9."), "{}", epochs.0);
    let disk = run.close();
    let (run, found) = Run::open(&disk);
    assert!(found.replicas.iter().all(|replica| replica.damage.is_none()));
    run.holds(9, 30, 50);
}

#[test]
fn batches_that_no_record_names_are_set_aside_and_what_was_trimmed_is_not() {
    let (disk, _) = filled();
    let (mut run, _) = Run::open(&disk);
    run.storage.submit(Op { replica: ReplicaId(1), kind: OpKind::Trim { log_start: 45 } });
    run.settle();
    let disk = run.close();
    let name = |offset: i64| format!("t-1/{offset:020}.log");
    // As a crash leaves a file that was to be removed, and as one that was never taken into the log.
    disk.put(&name(0), Some(batch_at(1, 0, 100).to_vec()));
    disk.put(&name(BATCHES + 10), Some(batch_at(1, BATCHES + 10, 100).to_vec()));
    let last = name(BATCHES / 20 * 20);
    let mut longer = disk.contents(&last).unwrap();
    let tail = [batch_at(1, BATCHES, 77), batch_at(1, BATCHES + 1, 78)].concat();
    longer.extend_from_slice(&tail);
    longer.extend_from_slice(&[0; 500]);
    disk.put(&last, Some(longer));
    let disk = disk.kill();
    let (run, found) = Run::open(&disk);
    let one = found.replicas.iter().find(|it| it.replica == ReplicaId(1)).unwrap();
    assert_eq!((one.end_offset, one.damage.as_deref()), (BATCHES, None));
    let files = snapshot(&disk);
    assert!(!files.contains_key(&name(0)), "what was trimmed is removed");
    let kept: Vec<(&String, &Vec<u8>)> =
        files.iter().filter(|(path, _)| path.starts_with(SET_ASIDE)).collect();
    let [(tail_path, tail_bytes), (segment_path, _)] = &kept[..] else {
        panic!("{:?}", files.keys())
    };
    assert!(
        tail_path.ends_with(&format!("{BATCHES:020}.log")) && **tail_bytes == tail,
        "{tail_path}"
    );
    assert!(segment_path.ends_with(&format!("{:020}.log", BATCHES + 10)), "{segment_path}");
    drop(run);
}

#[test]
fn nothing_is_cut_of_another_segment_s_file() {
    let (disk, _) = filled();
    let (mut run, _) = Run::open(&disk);
    run.append(1, BATCHES..BATCHES + 9, 3000);
    let disk = run.close();
    let name = |replica: u64| format!("t-{replica}/{:020}.log", BATCHES / 20 * 20);
    let (long, short) = (disk.contents(&name(1)).unwrap(), disk.contents(&name(2)).unwrap());
    disk.put(&name(1), Some(short.clone()));
    disk.put(&name(2), Some(long.clone()));
    let disk = disk.kill();
    let (_, found) = Run::open(&disk);
    let damaged: Vec<u64> =
        found.replicas.iter().filter(|it| it.damage.is_some()).map(|it| it.replica.0).collect();
    assert_eq!(
        damaged,
        [1, 2],
        "{:?}",
        found.replicas.iter().map(|it| &it.damage).collect::<Vec<_>>()
    );
    assert_eq!(disk.contents(&name(1)).unwrap(), short);
    assert_eq!(disk.contents(&name(2)).unwrap(), long);
    disk.put(&name(1), Some(long));
    disk.put(&name(2), Some(short));
    let disk = disk.kill();
    let (run, found) = Run::open(&disk);
    assert!(found.replicas.iter().all(|it| it.damage.is_none()));
    run.holds(2, BATCHES, BATCH_BYTES);
}

/// Such a file begins with a batch of the right offset, and is long enough. Only its further batches tell.
#[test]
fn a_sealed_segment_is_not_cut_out_of_a_longer_one_of_another_partition() {
    let disk = SimDisk::new(1);
    let (mut run, _) = Run::open(&disk);
    run.create(1);
    run.create(2);
    run.append(1, 0..200, 100);
    run.append(2, 0..200, 300);
    let disk = run.close();
    let name = |replica: u64| format!("t-{replica}/{:020}.log", 0);
    let (own, other) = (disk.contents(&name(1)).unwrap(), disk.contents(&name(2)).unwrap());
    disk.put(&name(1), Some(other.clone()));
    let disk = disk.kill();
    let (_, found) = Run::open(&disk);
    let damaged: Vec<u64> =
        found.replicas.iter().filter(|it| it.damage.is_some()).map(|it| it.replica.0).collect();
    assert_eq!(damaged, [1]);
    assert_eq!(disk.contents(&name(1)).unwrap(), other);
    disk.put(&name(1), Some(own));
    let disk = disk.kill();
    let (run, found) = Run::open(&disk);
    assert!(found.replicas.iter().all(|it| it.damage.is_none()));
    run.holds(1, 200, 100);
}

#[test]
fn synced_payload_that_is_not_in_the_journal_is_missed() {
    let disk = SimDisk::new(1);
    let (mut run, _) = Run::open(&disk);
    run.create(1);
    run.append(1, 0..3, 100);
    run.append(1, 3..6, 3000);
    run.append(1, 6..8, 100);
    let disk = run.close();
    let path = "t-1/00000000000000000000.log";
    let whole = disk.contents(path).unwrap();
    let tail = 2 * batch_at(1, 6, 100).len();
    disk.put(path, Some(whole[..whole.len() - tail - 10].to_vec()));
    let disk = disk.kill();
    let (_, found) = Run::open(&disk);
    let damage = found.replicas[0].damage.clone().unwrap_or_default();
    assert!(damage.contains("were synced"), "{damage:?}");
}

/// What this file would say if recovery were as it once was.
#[test]
#[cfg(feature = "sabotage")]
fn planted_bugs_of_recovery_are_caught() {
    use duramen_storage::sabotage::{Bug, plant};
    let tests: [(Bug, fn()); 4] = [
        (Bug::LostExtentTaken, a_short_file_of_the_journal_is_named),
        (Bug::LostExtentTaken, a_missing_file_of_the_journal_is_named),
        (Bug::MarkIgnored, an_older_copy_of_any_file_loses_nothing_unsaid),
        (
            Bug::StrangerRemoved,
            a_directory_that_no_record_names_is_set_aside_and_one_that_is_not_ours_is_left_alone,
        ),
    ];
    for (bug, test) in tests {
        plant(Some(bug));
        let is_caught = std::panic::catch_unwind(test).is_err();
        plant(None);
        assert!(is_caught, "{bug:?} is not caught");
    }
}

/// A start on a full disk may need the folder, and has no room to make it.
#[test]
fn a_new_directory_has_the_folder_for_what_is_set_aside() {
    let disk = SimDisk::new(1);
    Storage::open(disk.clone(), options()).unwrap();
    assert_eq!(disk.power_loss().list(SET_ASIDE).unwrap(), [""; 0]);
}
