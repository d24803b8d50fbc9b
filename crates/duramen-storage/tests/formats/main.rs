//! The format on disk: exactly the bytes of `docs/format.md`, and readable for ever.
//!
//! `tests/fixtures/v1` is a data directory as the first version of the format wrote it, left by a process
//! that died; `v3` is one with States of version 2, `v4` one with logs that were compacted,
//! `v5` one with a log that was given to another replica, `v6` one with a mark, rounds that count the journal's files, and
//! logs that were trimmed to their ends, `v7` one with batches beside a log, and `v8` one whose log has such a batch. They are
//! never written again. A later version gets a directory of its own, made by `DURAMEN_WRITE_FIXTURES=1 cargo test -p duramen-storage --test formats`. `v2` differs from `v1` in the
//! manifest alone, so that is all it holds.

mod disk;
mod driver;
mod layout;
mod moments;
mod tables;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use duramen_storage::history::PastEntry;
use duramen_storage::op::{Content, Hold, HoldId, RecoveredReplica};
use duramen_storage::reader::ReadError;
use duramen_storage::storage::{Error, Voter};
use duramen_storage::{Descriptor, Reader, ReplicaId, Storage};

use crate::disk::FsDisk;
use crate::driver::{DIRECTORY, Driver, NOBODY, conf, identity, image, options};
use crate::layout::{Fields, Header};

/// A directory that goes away with the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("duramen-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path); // left by a run that was killed
        fs::create_dir_all(&path).expect("there is room for a test");
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn kept(version: u32) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/fixtures/v{version}"))
}

fn fixture() -> PathBuf {
    kept(1)
}

/// Makes a directory that is not there yet, and says what is in it.
fn make_if_asked(version: u32, script: fn(&FsDisk)) {
    let kept = kept(version);
    if std::env::var_os("DURAMEN_WRITE_FIXTURES").is_none() || kept.join("manifest").exists() {
        return;
    }
    script(&FsDisk::new(&kept));
    let scratch = Scratch::new(&format!("formats-write-{version}"));
    copy(&kept, &scratch.0);
    let expected = describe_all(&Driver::open(&FsDisk::new(&scratch.0), options()));
    fs::write(kept.with_extension("txt"), expected).expect("it can be written");
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("there is room for a test");
    for entry in fs::read_dir(from).expect("it is there") {
        let entry = entry.expect("it can be listed");
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).expect("it can be copied");
        }
    }
}

/// All rounds in the journal of a kept directory, file by file.
fn rounds_of(kept: &Path) -> Vec<(Header, Vec<layout::Found>)> {
    let names = ["0000", "0001", "0002", "0003"];
    let extents = names.map(|name| fs::read(kept.join("journal").join(name)).expect("it is kept"));
    extents.iter().flat_map(|extent| layout::rounds_of(extent)).collect()
}

/// The records in them.
fn records_of(kept: &Path) -> impl DoubleEndedIterator<Item = layout::Found> {
    rounds_of(kept).into_iter().flat_map(|(_, records)| records)
}

/// All batches of a replica, through the reader, their checksums checked.
fn batches(reader: &Reader<FsDisk>, found: &RecoveredReplica) -> Vec<Vec<u8>> {
    let mut batches = Vec::new();
    let mut at = found.segments.first().map_or(found.end_offset, |first| first.base_offset);
    while at < found.end_offset {
        let range = reader.locate(found.replica, at, found.end_offset, 1, true);
        let range = range.expect("it can be read").expect("there is a batch");
        let bytes = reader.read(found.replica, &range).expect("it is good");
        let batch = Descriptor::of_batch(&bytes, false).expect("it is a batch");
        let is_compacted = at < found.compacted.below;
        assert!(batch.base_offset == at || is_compacted, "batches follow each other");
        at = batch.end_offset();
        batches.push(bytes.to_vec());
    }
    batches
}

/// All that was recovered, as text.
fn describe(reader: &Reader<FsDisk>, found: &RecoveredReplica) -> String {
    let mut out = String::new();
    let crc = |bytes: &[u8]| format!("{} bytes crc {:08x}", bytes.len(), crc32c::crc32c(bytes));
    let (identity, state, conf) = (&found.identity, &found.hard_state, &found.conf);
    let id = found.replica.0;
    let mut line = |text: String| writeln!(out, "{text}").expect("a string takes all");
    line(format!("replica {id}: {} partition {}", identity.topic, identity.partition));
    line(format!("  topic id {}", identity.topic_id.map(|byte| format!("{byte:02x}")).concat()));
    line(format!("  term {} vote {} commit {}", state.term, state.vote, state.commit));
    line(format!(
        "  membership at {}: voters {:?} learners {:?} outgoing {:?} next {:?} leaves {}",
        conf.applied,
        conf.voters,
        conf.learners,
        conf.voters_outgoing,
        conf.learners_next,
        conf.auto_leave
    ));
    line(format!(
        "  image at {} term {} end {}: {}",
        found.prev_index,
        found.prev_term,
        found.prev_end_offset,
        crc(&found.image)
    ));
    line(format!("  offsets {}..{}", found.log_start, found.end_offset));
    for run in &found.term_runs {
        line(format!(
            "  term {} from index {} offset {}",
            run.term, run.first_index, run.start_offset
        ));
    }
    for segment in &found.segments {
        line(format!(
            "  segment {} index {} {} bytes latest {}",
            segment.base_offset, segment.first_index, segment.size, segment.max_timestamp
        ));
    }
    if found.compacted.index > 0 {
        line(format!("  {:?}", found.compacted));
    }
    let history = &found.history;
    line(format!(
        "  history after {} term {} end {}",
        history.index, history.term, history.end_offset
    ));
    for PastEntry { entry, end_offset } in history.internal() {
        let Content::Internal(bytes) = &entry.content else { panic!("no batch is in a history") };
        line(format!("  past entry {} term {} at {end_offset} {bytes:?}", entry.index, entry.term));
    }
    for entry in &found.entries {
        let what = match &entry.content {
            Content::Internal(bytes) => format!("internal {bytes:?}"),
            Content::Batch(batch) => format!("batch {}", crc(&batch.encode())),
        };
        line(format!("  entry {} term {} {what}", entry.index, entry.term));
    }
    for batch in batches(reader, found) {
        let described = Descriptor::of_batch(&batch, false).expect("it is a batch");
        line(format!(
            "  batch {}..{} producer {} sequence {} {}",
            described.base_offset,
            described.end_offset(),
            described.producer_id,
            described.first_sequence,
            crc(&batch)
        ));
    }
    found.holds.iter().for_each(|hold| line(describe_hold(hold)));
    line(format!("  damage {:?}", found.damage));
    out
}

fn describe_hold(Hold { id: HoldId { stretch, number }, payload }: &Hold) -> String {
    let (at, bytes) = (format!("{}@{}", stretch.index, stretch.term), payload.len());
    let crc = crc32c::crc32c(payload);
    format!("  held in stretch {at}, number {number}: {bytes} bytes crc {crc:08x}")
}

fn describe_all(driver: &Driver) -> String {
    let reader = driver.storage.reader();
    driver.recovered.iter().map(|found| describe(&reader, found)).collect()
}

#[test]
fn the_directory_of_version_1_opens_with_everything_in_it() {
    opens_with_everything_in_it(1);
}

#[test]
fn the_directory_of_version_3_opens_with_everything_in_it() {
    make_if_asked(3, driver::script);
    opens_with_everything_in_it(3);
}

fn opens_with_everything_in_it(version: u32) {
    let kept = kept(version);
    let scratch = Scratch::new(&format!("formats-v{version}"));
    copy(&kept, &scratch.0);
    let disk = FsDisk::new(&scratch.0);
    let mut driver = Driver::open(&disk, options());
    let expected = fs::read_to_string(kept.with_extension("txt")).expect("it is kept");
    assert_eq!(describe_all(&driver), expected);
    let ids: Vec<_> = driver.recovered.iter().map(|found| found.replica.0).collect();
    assert_eq!(ids, [1, 2, 3, 5]);
    for found in &driver.recovered {
        let size = found.image.len();
        assert_eq!(found.image, image(found.replica.0, found.prev_index, size), "images are whole");
    }
    // It lives on: more is written to it, and all is there the next time.
    for id in ids {
        driver.batch(id, false, NOBODY, 500);
    }
    driver.close();
    drop(driver);
    let again = describe_all(&Driver::open(&disk, options()));
    for line in expected.lines().filter(|line| line.starts_with("  batch")) {
        assert!(again.contains(line), "{line} is gone");
    }
}

#[test]
fn the_directory_of_version_4_has_logs_that_were_compacted() {
    let kept = kept(4);
    make_if_asked(4, driver::compacted_script);
    let scratch = Scratch::new("formats-v4");
    copy(&kept, &scratch.0);
    let driver = Driver::open(&FsDisk::new(&scratch.0), options());
    let expected = fs::read_to_string(kept.with_extension("txt")).expect("it is kept");
    assert_eq!(describe_all(&driver), expected);
    // By the document: one log's State says that it is compacted, of the other a record behind its State.
    let records: Vec<_> = records_of(&kept).collect();
    let of = |kind: u8, id: u64| {
        let mut found = records.iter().filter(|it| (it.0, it.1) == (kind, id));
        found.next_back().map(|it| it.2.clone())
    };
    let made = |id: u64, topic: &str| {
        let stem = format!("{topic}-0/00000000000000000000.{id}-41");
        let index = fs::read(kept.join(format!("{stem}.index"))).expect("it is kept");
        let log = fs::read(kept.join(format!("{stem}.log"))).expect("it is kept");
        let mut at = 0;
        for entry in index.chunks(8) {
            let batch = Descriptor::of_batch(&log[at..], false).expect("a batch");
            let delta = u32::try_from(batch.end_offset() - 1).expect("small");
            let position = u32::try_from(at).expect("small");
            assert_eq!(entry, Fields::new().u32(delta).u32(position).0, "all batches are in it");
            at += batch.length as usize;
        }
        assert_eq!(at, log.len());
        Fields::new().u32(1).i64(0).u64(41).u32(crc32c::crc32c(&index))
    };
    let head = |tombstones_below: i64| Fields::new().u64(41).i64(52).i64(tombstones_below);
    let record = of(14, 1).expect("the second log's last record of that kind is live");
    assert!(record.starts_with(&head(26).u64(27).u64(1).u32(1).i64(0).u64(2).0), "{record:?}");
    assert!(record.ends_with(&made(1, "before").0), "{record:?}");
    let state = of(13, 2).expect("the first log has a checkpoint since");
    assert!(state.ends_with(&head(0).raw(&made(2, "after").0).0), "{state:?}");
}

#[test]
fn the_directory_of_version_5_has_a_log_that_was_given() {
    let kept = kept(5);
    make_if_asked(5, driver::given_script);
    let scratch = Scratch::new("formats-v5");
    copy(&kept, &scratch.0);
    let driver = Driver::open(&FsDisk::new(&scratch.0), options());
    let expected = fs::read_to_string(kept.with_extension("txt")).expect("it is kept");
    assert_eq!(describe_all(&driver), expected);
    // By the document: the State of what was given is of a kind of its own, and so are the names of its files.
    let mut states = records_of(&kept).filter(|it| (it.0, it.1) == (15, 2));
    let state = states.next_back().expect("its log began anew").2;
    let stem = "taker-0/00000000000000000000.2-41-given";
    let [index, log] = [".index", ".log"]
        .map(|ending| fs::read(kept.join(format!("{stem}{ending}"))).expect("it is kept"));
    let made = Fields::new().u32(1).i64(0).u64(41 + (1 << 62)).u32(crc32c::crc32c(&index));
    let end = Fields::new().u64(41).i64(52).i64(0).raw(&made.0);
    assert!(state.ends_with(&end.0), "{state:?}");
    assert_eq!(
        fs::read(kept.join("giver-0/00000000000000000000.1-41.log")).expect("it is kept"),
        log
    );
}

#[test]
fn the_directory_of_version_6_has_a_mark_and_logs_that_were_emptied() {
    let kept = kept(6);
    make_if_asked(6, driver::emptied_script);
    let scratch = Scratch::new("formats-v6");
    copy(&kept, &scratch.0);
    // Git keeps no empty directories.
    fs::create_dir_all(scratch.0.join("emptied-0")).expect("there is room for a test");
    let mut driver = Driver::open(&FsDisk::new(&scratch.0), options());
    let expected = fs::read_to_string(kept.with_extension("txt")).expect("it is kept");
    assert_eq!(describe_all(&driver), expected);
    for (found, segments) in driver.recovered.iter().zip([0, 1]) {
        assert_eq!((found.log_start, found.segments.len()), (21, segments), "{found:?}");
    }
    // By the document: the record has no body, rounds say how many files there are, and the mark names one of them.
    let rounds = rounds_of(&kept);
    assert!(rounds.iter().all(|(header, _)| header.extents == 4));
    let emptied = rounds.iter().flat_map(|(_, records)| records).filter(|it| it.0 == 16);
    assert_eq!(emptied.map(|it| (it.1, it.2.len())).collect::<Vec<_>>(), [(1, 0), (2, 0)]);
    let mark = fs::read(kept.join("journal/mark")).expect("it is kept");
    let number = |at: usize| u64::from_be_bytes(mark[at..at + 8].try_into().expect("eight"));
    assert_eq!(mark[..4], *b"DJM1");
    assert_eq!(mark[4..8], crc32c::crc32c(&mark[8..24]).to_be_bytes());
    assert_eq!(mark[8..16], DIRECTORY[..8]);
    assert!(rounds.iter().any(|(header, _)| header.round == number(16)), "it was durable");
    // A log that has nothing goes on where it ended.
    driver.batch(1, true, NOBODY, 20);
    driver.close();
    drop(driver);
    let driver = Driver::open(&FsDisk::new(&scratch.0), options());
    assert_eq!(driver.recovered[0].segments[0].base_offset, 21);
}

#[test]
fn the_directory_of_version_7_has_batches_beside_a_log() {
    let kept = kept(7);
    make_if_asked(7, driver::held_script);
    let scratch = Scratch::new("formats-v7");
    copy(&kept, &scratch.0);
    let driver = Driver::open(&FsDisk::new(&scratch.0), options());
    let expected = fs::read_to_string(kept.with_extension("txt")).expect("it is kept");
    assert_eq!(describe_all(&driver), expected);
    // By the document: stretch, number, and the batch to the end. A start gives them by stretch and number.
    let held = records_of(&kept).filter(|it| it.0 == 17);
    let bodies: Vec<_> = held.map(|it| (it.1, it.2)).collect();
    let body = |index: u64, number: u64, sequence: i32| {
        Fields::new().u64(1).u64(index).u64(number).raw(&driver::held(sequence)).0
    };
    assert_eq!(bodies, [(1, body(4, 2, 0)), (1, body(2, 17, 3)), (1, body(4, 1, 7))]);
    let found = driver.recovered[0].holds.iter().map(|hold| hold.payload.to_vec());
    assert_eq!(found.collect::<Vec<_>>(), [3, 7, 0].map(driver::held));
}

#[test]
fn the_directory_of_version_8_has_an_entry_whose_batch_is_beside_the_log() {
    let kept = kept(8);
    make_if_asked(8, driver::appended_script);
    let scratch = Scratch::new("formats-v8");
    copy(&kept, &scratch.0);
    // The journal alone has to have the batch.
    let segment = scratch.0.join("appended-0/00000000000000000000.log");
    let whole = fs::read(&segment).expect("it is kept");
    let batch = layout::batch(3, 1, 1_000_030, (9, 0, 3), 1, 100);
    fs::write(&segment, &whole[..whole.len() - batch.len()]).expect("it can be written");
    let driver = Driver::open(&FsDisk::new(&scratch.0), options());
    let expected = fs::read_to_string(kept.with_extension("txt")).expect("it is kept");
    assert_eq!(describe_all(&driver), expected);
    assert_eq!(fs::read(&segment).expect("it is there"), whole);
    // By the document: the entry, stretch and number of the hold, and the header of the batch.
    let appended = records_of(&kept).filter(|it| it.0 == 18);
    let bodies: Vec<_> = appended.map(|it| (it.1, it.2)).collect();
    let body = Fields::new()
        .u64(3)
        .u64(1)
        .u8(1)
        .raw(&layout::descriptor(&batch, false))
        .u64(1)
        .u64(2)
        .u64(1)
        .raw(&batch[..61]);
    assert_eq!(bodies, [(1, body.0)]);
}

#[test]
fn the_directories_are_written_as_the_document_says() {
    is_written_as_the_document_says(1, &(1..=11).collect());
    // States are of another kind since.
    is_written_as_the_document_says(3, &(1..=12).filter(|kind| *kind != 8).collect());
}

fn is_written_as_the_document_says(version: u32, expected: &BTreeSet<u8>) {
    let root = kept(version);
    let manifest = fs::read_to_string(root.join("manifest")).expect("it is kept");
    let (body, crc) = manifest.split_at(manifest.find("crc32c=").expect("it has one"));
    assert_eq!(crc, format!("crc32c={:08x}\n", crc32c::crc32c(body.as_bytes())));
    assert!(body.starts_with("version=1\ncluster.id=636c757374657220"), "{body}");
    let mut kinds = BTreeSet::new();
    let mut rounds = Vec::new();
    for entry in fs::read_dir(root.join("journal")).expect("it is kept") {
        let extent = fs::read(entry.expect("it can be listed").path()).expect("it can be read");
        assert_eq!(extent.len(), 64 * 1024);
        rounds.extend(layout::rounds_of(&extent));
    }
    rounds.sort_by_key(|(header, _)| header.round);
    let last = rounds.last().expect("there are rounds").0;
    assert!(rounds[0].0.extent < last.tail, "what is left of an earlier use is there too");
    for (header, records) in rounds.iter().filter(|(header, _)| header.extent >= last.tail) {
        assert_eq!(header.directory.to_be_bytes(), driver::DIRECTORY[..8]);
        kinds.extend(records.iter().map(|(kind, ..)| *kind));
    }
    assert_eq!(kinds, *expected, "every kind of record is in what replay needs");
    // Sealed segments have their indexes, and those are Kafka's.
    let segment = fs::read(root.join("orders-0/00000000000000000049.log")).expect("it is kept");
    let index = fs::read(root.join("orders-0/00000000000000000049.index")).expect("it is kept");
    assert!(!index.is_empty() && index.len().is_multiple_of(8));
    for entry in index.chunks(8) {
        let number = |at: usize| u32::from_be_bytes(entry[at..at + 4].try_into().expect("four"));
        let at = usize::try_from(number(4)).expect("32 bits");
        let batch = Descriptor::of_batch(&segment[at..], false).expect("a batch begins there");
        assert_eq!(batch.end_offset() - 1, 49 + i64::from(number(0)));
    }
    let times = fs::read(root.join("orders-0/00000000000000000049.timeindex")).expect("it is kept");
    assert!(!times.is_empty() && times.len().is_multiple_of(12));
}

/// It used to be found once: recovery wrote the journal's payload behind the hole, and the next
/// start took the file for whole.
#[test]
fn a_segment_that_lost_its_end_is_damaged_at_every_start() {
    let scratch = Scratch::new("formats-short");
    copy(&fixture(), &scratch.0);
    let path = scratch.0.join("orders-0/00000000000000000099.log");
    let file = fs::OpenOptions::new().write(true).open(path).expect("it is kept");
    file.set_len(100).expect("it can be cut");
    for _ in 0..3 {
        let mut driver = Driver::open(&FsDisk::new(&scratch.0), options());
        for found in &driver.recovered {
            assert_eq!(found.damage.is_some(), found.replica.0 == 2, "{:?}", found.damage);
        }
        driver.batch(5, false, NOBODY, 10);
        driver.close();
    }
}

/// It used to be a failure of the disk.
#[test]
fn a_late_removal_spares_the_files_of_the_next_replica_of_that_name() {
    let scratch = Scratch::new("late-removal");
    let disk = FsDisk::new(&scratch.0);
    let mut driver = Driver::open(&disk, options());
    driver.create(1, "t", 0, 10);
    driver.settle();
    for _ in 0..2 {
        driver.batch(1, true, NOBODY, 100);
        driver.settle();
    }
    let second = driver.writer(1).offset;
    driver.batch(1, true, NOBODY, 100);
    driver.internal(1, b"commits what is before it");
    driver.settle();
    driver.image(1);
    driver.settle();
    driver.hold_removals();
    driver.trim(1, second);
    driver.settle();
    driver.delete(1);
    driver.settle();
    driver.create(2, "t", 0, 10);
    driver.batch(2, true, NOBODY, 100);
    driver.settle();
    assert!(driver.release_removals() > 0, "the trim removes segments");
    driver.settle();
    driver.image(2);
    driver.close();
    let end = driver.writer(2).offset;
    drop(driver);
    let first = scratch.0.join("t-0/00000000000000000000.log");
    assert!(fs::metadata(first).is_ok_and(|it| it.len() > 0), "the new log's segment is there");
    let driver = Driver::open(&disk, options());
    let found = driver.recovered.iter().find(|it| it.replica.0 == 2).expect("it was created");
    assert_eq!((found.damage.is_none(), found.end_offset), (true, end));
}

/// It used to be a failure of the disk, at every start afterwards, too.
#[test]
fn a_topic_with_the_longest_name_can_be_deleted() {
    let scratch = Scratch::new("long-name");
    let disk = FsDisk::new(&scratch.0);
    let topic = "t".repeat(249);
    let mut driver = Driver::open(&disk, options());
    for replica in 1..=2 {
        driver.create(replica, &topic, 19_999, 10);
        driver.batch(replica, true, NOBODY, 100);
        driver.settle();
        if replica == 1 {
            driver.delete(replica);
            driver.settle();
        }
    }
    driver.hold_removals();
    driver.delete(2);
    driver.settle();
    drop(driver);
    Driver::open(&disk, options()).settle();
    let names = fs::read_dir(&scratch.0).expect("it is there").flatten();
    let of_it = names.filter(|it| it.file_name().to_string_lossy().starts_with("ttt")).count();
    assert_eq!(of_it, 0, "the start removes the rest");
}

/// It used to be a failure of the disk: both had one name while they were removed.
#[test]
fn replicas_of_one_partition_are_removed_side_by_side() {
    let scratch = Scratch::new("two-removals");
    let disk = FsDisk::new(&scratch.0);
    let mut driver = Driver::open(&disk, options());
    driver.hold_removals();
    for replica in 1..=3 {
        driver.create(replica, "t", 0, 10);
        driver.batch(replica, true, NOBODY, 100);
        driver.settle();
        driver.delete(replica);
        driver.settle();
    }
    let left = || fs::read_dir(&scratch.0).expect("it is there").count();
    let before = left();
    assert_eq!(driver.release_removals(), 3, "each has a directory");
    driver.settle();
    assert_eq!(before - left(), 3, "nothing of them is left");
}

#[test]
fn a_segment_that_is_removed_in_the_middle_of_a_lookup_is_told_from_a_lost_one() {
    let scratch = Scratch::new("formats-removed");
    copy(&fixture(), &scratch.0);
    let disk = FsDisk::new(&scratch.0);
    let mut driver = Driver::open(&disk, options());
    let (reader, orders) = (driver.storage.reader(), ReplicaId(2));
    let end = driver.writer(2).offset;
    let found = reader.find_time(orders, 1_000_700, 60, end).expect("it can be read");
    assert_eq!(found, Some((72, 1_000_720)), "the batch there is of one time");
    disk.before_opening("orders-0/00000000000000000049.timeindex", move || {
        driver.trim(2, 110);
        driver.image(2);
        driver.close();
    });
    let found = reader.find_time(orders, 1_000_700, 60, end);
    assert!(matches!(found, Err(ReadError::Removed)), "{found:?}");
    assert!(!scratch.0.join("orders-0/00000000000000000049.log").exists());
}

#[test]
fn a_manifest_with_an_absurd_size_is_damaged() {
    let scratch = Scratch::new("formats-manifest");
    copy(&fixture(), &scratch.0);
    let path = scratch.0.join("manifest");
    let text = fs::read_to_string(&path).expect("it is kept");
    let text = text.replace("extent.bytes=65536", "extent.bytes=1152921504606846976");
    let body = &text[..text.find("crc32c=").expect("it has one")];
    let crc = crc32c::crc32c(body.as_bytes());
    fs::write(&path, format!("{body}crc32c={crc:08x}\n")).expect("it can be written");
    let opened = Storage::open(FsDisk::new(&scratch.0), options());
    assert!(matches!(opened, Err(Error::Damaged { .. })), "and not an allocation of that size");
}

#[test]
fn a_member_of_a_cluster_of_version_2_is_opened_as_one() {
    let scratch = Scratch::new("formats-v2");
    copy(&fixture(), &scratch.0);
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/v2/manifest");
    fs::copy(kept, scratch.0.join("manifest")).expect("it can be copied");
    let (_, found) = Storage::open(FsDisk::new(&scratch.0), options()).expect("it is good");
    assert_eq!(found.facts, options().facts);
    let voter = |peer_id, broker_id, directory_id| Voter { peer_id, broker_id, directory_id };
    let others = [voter(2, 8, [8; 16]), voter(3, 9, [9; 16])];
    assert_eq!(found.voters, [&[voter(1, 7, DIRECTORY)], &others[..]].concat());
    assert!(!found.replicas.is_empty(), "and what it holds is there");
}

#[test]
fn a_round_has_the_bytes_of_the_document() {
    let scratch = Scratch::new("formats-round");
    let disk = FsDisk::new(&scratch.0);
    let mut driver = Driver::open(&disk, options());
    driver.create(9, "t", 2, 0);
    driver.batch(9, true, (7, 1, 5), 20);
    driver.close();
    let extent = fs::read(scratch.0.join("journal/0000")).expect("it was written");
    let directory = u64::from_be_bytes(*b"director");
    let header =
        |round, position| Header { extent: 1, round, tail: 1, position, extents: 4, directory };

    let mut topic_id = [0; 16];
    topic_id[0] = b't';
    let create = Fields::new()
        .bytes(b"t") // topic
        .raw(&topic_id)
        .i32(2) // partition
        .u64(1) // membership as of this index
        .u32(1)
        .u64(9) // voters
        .u32(0) // learners
        .u32(0) // outgoing voters
        .u32(0) // next learners
        .u8(0); // does not leave by itself
    // The second entry of a log has index 2; a batch at index 2 has three records.
    let payload = layout::batch(0, 1, 1_000_000, (7, 1, 5), 3, 20);
    let append = Fields::new()
        .u64(2) // index
        .u64(1) // term
        .u8(1) // a batch
        .raw(&layout::descriptor(&payload, true))
        .raw(&payload);
    let hard_state = Fields::new().u64(1).u64(9).u64(1); // term, vote, commit
    let body = [
        layout::record(1, 9, &create),
        layout::record(2, 9, &append),
        layout::record(5, 9, &hard_state),
    ]
    .concat();
    let expected = [
        layout::round(header(1, 0), &[]), // of the formatting
        layout::round(header(2, 4096), &body),
        layout::round(header(3, 8192), &[]), // closes
    ]
    .concat();
    assert_eq!(extent[..12288], expected);
    assert!(extent[12288..].iter().all(|byte| *byte == 0), "nothing else was written");
    let segment = fs::read(scratch.0.join("t-2/00000000000000000000.log")).expect("it was written");
    assert_eq!(segment, payload);
}

#[test]
fn a_state_has_the_bytes_of_the_document() {
    let scratch = Scratch::new("formats-state");
    let disk = FsDisk::new(&scratch.0);
    let mut driver = Driver::open(&disk, options());
    driver.create(9, "t", 2, 5);
    driver.batch(9, true, NOBODY, 1200); // index 2, offsets 0..3
    driver.batch(9, false, NOBODY, 700); // index 3, offset 3
    driver.internal(9, &[1, 0]); // index 4
    driver.settle();
    driver.image(9);
    driver.settle();
    driver.internal(9, &[1, 0, 7]); // index 5
    driver.create(8, "filler", 0, 0);
    driver.settle();
    let found = (0..100).find_map(|_| {
        driver.conf(8); // a page a round, until the checkpoint of the oldest is due
        driver.settle();
        let extents = ["0000", "0001", "0002", "0003"].map(|name| {
            fs::read(scratch.0.join("journal").join(name)).expect("it was made by the formatting")
        });
        let rounds = extents.iter().flat_map(|extent| layout::rounds_of(extent));
        let mut records = rounds.flat_map(|(_, records)| records);
        records.find(|(kind, replica, _)| (*kind, *replica) == (12, 9))
    });
    let (.., body) = found.expect("a full journal is checkpointed");
    let first = layout::batch(0, 1, 1_000_000, NOBODY, 3, 1200);
    let second = layout::batch(3, 1, 1_000_030, NOBODY, 1, 700);
    let size = (first.len() + second.len()) as u64;
    assert_eq!(body[8..], state(&first, size).0, "behind the round that it is as of");
}

/// The State of replica 9 with two batches, of which `first` is one, of `size` bytes together.
fn state(first: &[u8], size: u64) -> Fields {
    let (identity, conf) = (identity("t", 2), conf(1, 9));
    Fields::new()
        // Who it is, as in a Create.
        .bytes(identity.topic.as_bytes())
        .raw(&identity.topic_id)
        .i32(identity.partition)
        // Term, vote, commit. The image holds index 4, so that was committed.
        .u64(1)
        .u64(9)
        .u64(4)
        .u64(conf.applied)
        .u32(1)
        .u64(9)
        .u32(0)
        .u32(0)
        .u32(0)
        .u8(0)
        // The image: index, term, end offset there; inline.
        .u64(4)
        .u64(1)
        .i64(4)
        .u8(0)
        .bytes(&image(9, 4, 5))
        // Entries after it.
        .u32(1)
        .u64(5)
        .u64(1)
        .u8(0)
        .bytes(&[1, 0, 7])
        // Term runs: term, first index, offset at which it began.
        .u32(1)
        .u64(1)
        .u64(2)
        .i64(0)
        // First offset kept, end offset, synced mark.
        .i64(0)
        .i64(4)
        .u64(2) // the first batch was too large for the journal
        // Segments.
        .u32(1)
        .i64(0) // base offset
        .u64(2) // first index
        .u64(size)
        .i64(1_000_030) // latest timestamp
        .u32(0) // entries in .index
        .u32(0) // entries in .timeindex
        .u32(0) // position of the last of the former
        .i64(-1) // timestamp of the last of the latter
        .u32(3) // offset delta of the latest timestamp
        .i64(1_000_030) // latest timestamp up to the image
        .u32(3) // and its offset delta
        .u32(1) // index entries not in the file yet
        .u32(3)
        .u32(u32::try_from(first.len()).expect("small"))
        .u32(1) // time index entries not in the file yet
        .i64(1_000_030)
        .u32(3)
        // The history: what is before it, term and end offset there; the internal entries up to the image.
        .u64(1)
        .u64(1)
        .i64(0)
        .u32(1)
        .i64(4) // the end offset at
        .u64(4) // this index
        .u64(1) // and term
        .u8(0)
        .bytes(&[1, 0])
}

#[test]
fn a_descriptor_has_the_bytes_of_the_document() {
    let payload = layout::batch(1000, 5, 77, (0x0102_0304, 6, 8), 4, 10);
    for starts_segment in [false, true] {
        let descriptor = Descriptor::of_batch(&payload, starts_segment).expect("a good batch");
        assert_eq!(descriptor.encode()[..], layout::descriptor(&payload, starts_segment));
    }
}
