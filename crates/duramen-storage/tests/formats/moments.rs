//! A moment of each kept directory: taken while its storage goes on, copied, and restored elsewhere.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind, Read};
use std::path::Path;

use bytes::Bytes;
use duramen_storage::backup::{KeptFile, Moment, Role, Taken};
use duramen_storage::op::{Append, Content, HardState, LogEntry, Op, OpKind, RecoveredReplica};
use duramen_storage::storage::Facts;
use duramen_storage::{Descriptor, ReplicaId};

use crate::disk::FsDisk;
use crate::driver::{Driver, NOBODY, options};
use crate::{Scratch, batches, copy, describe, kept, layout};

/// Those that have more than a manifest.
const VERSIONS: [u32; 7] = [1, 3, 4, 5, 6, 7, 8];

/// The last entry of a log that is known to be committed, or that must be: a trim reached behind the one before.
fn commit_of(found: &RecoveredReplica) -> u64 {
    let last = found.prev_index + found.entries.len() as u64;
    let is_whole = |commit: &u64| {
        up_to(found, *commit).end_offset >= found.log_start && *commit >= found.compacted.index
    };
    (found.hard_state.commit..=last).find(is_whole).expect("the log is as long as its trim")
}

fn commits_of(found: &[RecoveredReplica]) -> BTreeMap<ReplicaId, u64> {
    let whole = found.iter().filter(|it| it.damage.is_none());
    whole.map(|it| (it.replica, commit_of(it))).collect()
}

fn taken(driver: &Driver, commits: &BTreeMap<ReplicaId, u64>) -> Moment {
    match driver.storage.moment(commits).expect("the manifest is good") {
        Taken::Moment(moment) => *moment,
        other => panic!("{other:?}"),
    }
}

fn link(moment: &Moment, from: &Path, to: &Path) {
    for file in moment.files() {
        let target = to.join(&file.path);
        fs::create_dir_all(target.parent().expect("it is in a directory")).expect("there is room");
        fs::hard_link(from.join(&file.path), target).expect("it is there");
    }
}

fn copied(moment: &Moment, file: &KeptFile, from: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let crc = moment.copy(file, from, &mut bytes)?;
    assert_eq!(crc, crc32c::crc32c(&bytes), "the checksum is that of the copy");
    assert_eq!(bytes.len() as u64, file.bytes);
    Ok(bytes)
}

fn copy_all(moment: &Moment, from: &Path, to: &Path) {
    for file in moment.files() {
        let opened = fs::File::open(from.join(&file.path)).expect("it is there");
        let bytes = copied(moment, &file, &mut io::BufReader::new(opened)).expect("it is whole");
        let target = to.join(&file.path);
        fs::create_dir_all(target.parent().expect("it is in a directory")).expect("there is room");
        fs::write(target, bytes).expect("there is room");
    }
}

fn owner() -> Facts {
    Facts { cluster_id: [3; 16], broker_id: 7, directory_id: [4; 16] }
}

/// Restores a moment from a folder into a new directory, and opens that.
fn restored(moment: &Moment, from: &Path, to: &Path, ops: Vec<Op>) -> Driver {
    copy_all(moment, from, to);
    let disk = FsDisk::new(to);
    moment.clone().restore(&disk, ops, (owner(), Vec::new())).expect("it can be restored");
    Driver::open(&disk, options())
}

/// A replica up to an index, as a start would find it.
fn up_to(found: &RecoveredReplica, commit: u64) -> RecoveredReplica {
    let mut cut = found.clone();
    while let Some(last) = cut.entries.pop_if(|entry| entry.index > commit) {
        if let Content::Batch(batch) = last.content {
            cut.end_offset = batch.base_offset;
            if batch.starts_segment
                || cut.segments.last().is_some_and(|it| it.base_offset == batch.base_offset)
            {
                cut.segments.pop();
            }
        }
    }
    cut.term_runs.retain(|run| run.first_index <= commit);
    cut.hard_state.commit = commit;
    cut
}

/// Opens a copy of a kept directory. A log that another replica gave goes on up to the entry that compacted it there:
/// before that there is no moment of it.
fn opened(version: u32, at: &Path) -> Driver {
    copy(&kept(version), at);
    let disk = FsDisk::new(at);
    let mut driver = Driver::open(&disk, options());
    let last = |it: &RecoveredReplica| it.prev_index + it.entries.len() as u64;
    let short: Vec<_> =
        driver.recovered.iter().filter(|it| last(it) < it.compacted.index).cloned().collect();
    for it in &short {
        let commits = [(it.replica, it.hard_state.commit)].into();
        assert!(matches!(driver.storage.moment(&commits), Ok(Taken::Missed)));
        (last(it)..it.compacted.index).for_each(|_| driver.batch(it.replica.0, false, NOBODY, 50));
    }
    driver.settle();
    drop(driver);
    Driver::open(&disk, options())
}

/// Writes other entries in a later term over what was not committed: an append that a new leader decides.
fn overwrite(driver: &mut Driver, found: &RecoveredReplica) {
    let (index, term) = (commit_of(found) + 1, found.hard_state.term + 5);
    let end = up_to(found, commit_of(found)).end_offset;
    let epoch = i32::try_from(term).expect("small");
    let payload = layout::keyed_batch(end, epoch, 77, NOBODY, 2, 300, None);
    let descriptor = Descriptor::of_batch(&payload, false).expect("a good batch");
    let entry = LogEntry { index, term, content: Content::Batch(descriptor) };
    let appends = vec![Append { entry, payload: payload.into() }];
    let hard_state = Some(HardState { term, vote: 0, commit: index });
    let kind = OpKind::Write { ticket: 1000, appends, hard_state, must_sync: true };
    driver.storage.submit(Op { replica: found.replica, kind });
}

#[test]
fn a_moment_of_every_kept_directory_is_restored_as_it_was_while_storage_went_on() {
    for version in VERSIONS {
        let [source, frozen, target] = ["source", "frozen", "target"]
            .map(|name| Scratch::new(&format!("moments-{version}-{name}")));
        let mut driver = opened(version, &source.0);
        let (found, commits) = (driver.recovered.clone(), commits_of(&driver.recovered));
        assert!(!commits.is_empty());
        let reader = driver.storage.reader();
        let whole: Vec<_> = found.iter().filter(|it| it.damage.is_none()).collect();
        let expected: Vec<_> = whole.iter().map(|it| batches(&reader, it)).collect();
        let moment = taken(&driver, &commits);
        link(&moment, &source.0, &frozen.0);
        assert!(driver.storage.has_files_of(&moment));

        // What was not committed changes, and then all of it goes.
        for it in &whole {
            overwrite(&mut driver, it);
        }
        driver.settle();
        assert!(driver.storage.has_files_of(&moment), "version {version}");
        for it in &whole {
            driver.delete(it.replica.0);
        }
        driver.settle();
        assert!(!driver.storage.has_files_of(&moment), "the names may be those of others now");

        let bytes = Bytes::from(moment.encode());
        assert_eq!(Moment::decode(&bytes).as_ref(), Ok(&moment));
        let new = restored(&moment, &frozen.0, &target.0, Vec::new());
        assert_eq!(new.recovered.len(), whole.len());
        for ((is, was), expected) in new.recovered.iter().zip(&whole).zip(expected) {
            let was = up_to(was, commit_of(was));
            let reader = new.storage.reader();
            assert_eq!((is.damage.as_ref(), &is.holds), (None, &was.holds), "version {version}");
            assert_eq!(is.entries, was.entries, "version {version}");
            assert_eq!((is.log_start, is.end_offset), (was.log_start, was.end_offset));
            assert_eq!((&is.history, is.compacted), (&was.history, was.compacted));
            assert_eq!((&is.image, is.hard_state), (&was.image, was.hard_state));
            let has = batches(&reader, is);
            assert!(has == expected[..has.len()], "version {version}: {}", describe(&reader, is));
        }
    }
}

#[test]
fn a_log_is_cut_behind_any_entry_that_is_committed() {
    let [source, target] = ["source", "target"].map(|name| Scratch::new(&format!("cuts-{name}")));
    let disk = FsDisk::new(&source.0);
    let mut driver = Driver::open(&disk, options());
    driver.create(1, "t", 0, 10);
    for step in 0..12 {
        match step % 3 {
            2 => driver.internal(1, b"own"),
            _ => driver.batch(1, step % 5 == 0, NOBODY, 100),
        }
    }
    driver.settle();
    drop(driver);
    let driver = Driver::open(&disk, options());
    let (found, reader) = (&driver.recovered[0], driver.storage.reader());
    let all = batches(&reader, found);
    for commit in found.prev_index..=found.prev_index + found.entries.len() as u64 {
        let moment = taken(&driver, &[(ReplicaId(1), commit)].into());
        let _ = fs::remove_dir_all(&target.0);
        let new = restored(&moment, &source.0, &target.0, Vec::new());
        let is = &new.recovered[0];
        let was = up_to(found, commit);
        assert_eq!((is.end_offset, &is.entries), (was.end_offset, &was.entries), "{commit}");
        assert_eq!((is.hard_state.commit, &is.term_runs), (commit, &was.term_runs), "{commit}");
        assert_eq!(batches(&new.storage.reader(), is), all[..batches_in(&was)], "{commit}");
    }
    let asked = |id, commit| driver.storage.moment(&[(ReplicaId(id), commit)].into());
    assert!(matches!(asked(1, 1000), Ok(Taken::NotYet)), "the entry may still be submitted");
    assert!(matches!(asked(2, 2), Ok(Taken::NotYet)), "the replica may still be made");
}

fn batches_in(found: &RecoveredReplica) -> usize {
    let is_batch = |entry: &&LogEntry| matches!(entry.content, Content::Batch(_));
    found.entries.iter().filter(is_batch).count()
}

#[test]
fn a_moment_that_an_image_has_passed_is_missed() {
    let source = Scratch::new("moments-missed");
    let mut driver = Driver::open(&FsDisk::new(&source.0), options());
    driver.create(1, "t", 0, 10);
    (0..5).for_each(|_| driver.batch(1, false, NOBODY, 100));
    driver.settle();
    let moment = |driver: &Driver| driver.storage.moment(&[(ReplicaId(1), 4)].into());
    assert!(matches!(moment(&driver), Ok(Taken::Moment(_))));
    driver.image(1);
    driver.settle();
    assert!(matches!(moment(&driver), Ok(Taken::Missed)));
    driver.delete(1);
    driver.settle();
    assert!(!matches!(moment(&driver), Ok(Taken::Moment(_))));
}

/// A row of changes, a term ahead, becomes part of the log before the directory is one.
#[test]
fn what_is_appended_before_a_restore_is_in_a_segment_of_its_own() {
    let [source, target] = ["source", "target"].map(|name| Scratch::new(&format!("ops-{name}")));
    copy(&kept(4), &source.0);
    let driver = Driver::open(&FsDisk::new(&source.0), options());
    let found = driver.recovered.iter().find(|it| it.damage.is_none()).expect("it has one");
    let commit = commit_of(found);
    let was = up_to(found, commit);
    let term = was.hard_state.term + 100;
    let mut offset = was.end_offset;
    let mut appends = Vec::new();
    for (at, starts_segment) in [(1, true), (2, false)] {
        let epoch = i32::try_from(term).expect("small");
        let payload = layout::keyed_batch(offset, epoch, 5, NOBODY, 2, 100, None);
        let batch = Descriptor::of_batch(&payload, starts_segment).expect("a good batch");
        let entry = LogEntry { index: commit + at, term, content: Content::Batch(batch) };
        appends.push(Append { entry, payload: payload.into() });
        offset += 2;
    }
    let hard_state = Some(HardState { term, vote: 9, commit: commit + 2 });
    let image = Bytes::from(vec![5; 300_000]);
    let kinds = [
        OpKind::Write { ticket: 1, appends, hard_state, must_sync: true },
        OpKind::Image { index: commit + 2, image: image.clone() },
    ];
    let ops = kinds.map(|kind| Op { replica: found.replica, kind }).to_vec();
    let moment = taken(&driver, &commits_of(&driver.recovered));
    let new = restored(&moment, &source.0, &target.0, ops);
    let is = new.recovered.iter().find(|it| it.replica == found.replica).expect("it is there");
    assert_eq!((is.end_offset, is.hard_state.term), (offset, term));
    assert_eq!((is.prev_index, &is.image, &is.damage), (commit + 2, &image, &None));
    let before = batches(&driver.storage.reader(), found);
    let is_kept = |batch: &&Vec<u8>| {
        Descriptor::of_batch(batch, false).expect("a batch").base_offset < was.end_offset
    };
    let kept: Vec<_> = before.iter().filter(is_kept).collect();
    let after = batches(&new.storage.reader(), is);
    assert_eq!(after.iter().take(kept.len()).collect::<Vec<_>>(), kept);
    assert_eq!(after.len(), kept.len() + 2);
    assert_eq!(is.segments.last().expect("there is one").base_offset, was.end_offset);
}

#[test]
fn every_changed_byte_and_every_cut_of_a_file_is_noticed() {
    let source = Scratch::new("moments-damage");
    copy(&kept(4), &source.0);
    let driver = Driver::open(&FsDisk::new(&source.0), options());
    let moment = taken(&driver, &commits_of(&driver.recovered));
    let files = moment.files();
    assert!(files.iter().any(|it| matches!(it.role, Role::Segment { is_dense: false, .. })));
    for file in &files {
        let whole = fs::read(source.0.join(&file.path)).expect("it is there");
        let whole = &whole[..usize::try_from(file.bytes).expect("small")];
        assert_eq!(copied(&moment, file, &mut &whole[..]).expect("it is whole"), whole);
        if matches!(file.role, Role::Index(None)) {
            continue; // the catalogue of the backup has the only checksum
        }
        // All of the first batch's header, and many places behind it.
        let step = (whole.len() / 100).max(1);
        for at in (0..61.min(whole.len())).chain((61..whole.len()).step_by(step)) {
            let mut changed = whole.to_vec();
            changed[at] ^= 1;
            let told = copied(&moment, file, &mut &changed[..]).expect_err("it is damaged");
            assert_eq!(told.kind(), ErrorKind::InvalidData, "{} at {at}", file.path);
            let cut = copied(&moment, file, &mut &whole[..at]).expect_err("it is cut short");
            assert_eq!(cut.kind(), ErrorKind::InvalidData, "{} cut at {at}", file.path);
        }
    }
    let state = moment.encode();
    for at in (0..state.len()).step_by(7) {
        let mut changed = state.clone();
        changed[at] ^= 1;
        assert!(Moment::decode(&changed.into()).is_err(), "state at {at}");
    }
}
