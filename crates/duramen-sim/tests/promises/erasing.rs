//! Erasures of a log of queues, record by record.
#![expect(clippy::unwrap_used, reason = "a test's own failure is a failure")]

use bytes::{Bytes, BytesMut};
use duramen_protocol::batch::batches;
use duramen_protocol::records::{BatchBuilder, EXPIRES_HEADER, NewRecord, Records};
use duramen_sim::SimDisk;
use duramen_storage::compaction::{Compaction, CompactionError, Means, Order, Progress};
use duramen_storage::indexing::{self, Indexer, Step};
use duramen_storage::keys::{Deleted, Said, Statement, batch_of};
use duramen_storage::op::{Append, Compacted, ConfState, Content, HardState, LogEntry};
use duramen_storage::{Descriptor, Done, Op, OpKind, ReplicaId, Storage};

use super::rig::{self, identity, index_limits, options};

const REPLICA: ReplicaId = ReplicaId(7);
const NEVER: i64 = i64::MAX;

/// Log of a queue topic, on a disk.
struct Log {
    disk: SimDisk,
    storage: Storage<SimDisk>,
    next_index: u64,
    end: i64,
    erased: Compacted,
}

impl Log {
    fn new() -> Self {
        let disk = SimDisk::new(1);
        let (mut storage, _) = Storage::open(disk.clone(), options()).unwrap();
        let conf = ConfState { voters: vec![7], ..ConfState::default() };
        let kind = OpKind::Create { ticket: 1, identity: identity(), conf };
        storage.submit(Op { replica: REPLICA, kind });
        let mut log = Self { disk, storage, next_index: 2, end: 0, erased: Compacted::default() };
        log.settle();
        log
    }

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

    fn append(&mut self, mut bytes: BytesMut, begins_segment: bool) {
        bytes[..8].copy_from_slice(&self.end.to_be_bytes());
        bytes[12..16].copy_from_slice(&1_i32.to_be_bytes());
        let payload = bytes.freeze();
        let batch = Descriptor::of_batch(&payload, begins_segment).unwrap();
        self.end = batch.end_offset();
        let index = self.next_index;
        self.next_index += 1;
        let entry = LogEntry { index, term: 1, content: Content::Batch(batch) };
        let appends = vec![Append { entry, payload }];
        let hard_state = Some(HardState { term: 1, vote: 7, commit: index });
        let kind = OpKind::Write { ticket: index, appends, hard_state, must_sync: true };
        self.storage.submit(Op { replica: REPLICA, kind });
    }

    /// Appends a batch with an element of each queue, which expires at a time.
    fn enqueue(&mut self, elements: &[(&str, i64)], begins_segment: bool) {
        let mut builder = BatchBuilder::new();
        for (queue, expires_ms) in elements {
            let expires = expires_ms.to_string();
            let header = [(EXPIRES_HEADER, Some(expires.as_bytes()))];
            let record = NewRecord {
                key: Some(queue.as_bytes()),
                value: Some(b"value"),
                headers: if *expires_ms < NEVER { &header } else { &[] },
                ..NewRecord::default()
            };
            builder.push(&record).unwrap();
        }
        self.append(builder.build_mut().unwrap(), begins_segment);
    }

    fn state(&mut self, queue: &str, said: Said) {
        let queue = Bytes::copy_from_slice(queue.as_bytes());
        let statement = Statement { queue, principal: String::new(), said };
        self.append(batch_of(0, &[statement]), false);
    }

    fn erase(&mut self, below: i64, statements_below: i64, expired_by_ms: i64) {
        self.try_erase(below, statements_below, expired_by_ms).unwrap();
    }

    /// Settles all at a start, and erases what is below an offset and had expired by a time.
    fn try_erase(
        &mut self,
        below: i64,
        statements_below: i64,
        expired_by_ms: i64,
    ) -> Result<(), CompactionError> {
        self.settle();
        let (index, image) = (self.next_index - 1, Bytes::from_static(b"image"));
        self.storage.submit(Op { replica: REPLICA, kind: OpKind::Image { index, image } });
        self.settle();
        self.storage = Storage::open(self.disk.clone(), options()).unwrap().0;
        let reader = self.storage.reader();
        let mut indexer = Indexer::new(reader.clone(), index_limits(1));
        indexer.order(indexing::Order {
            replica: REPLICA,
            identity: identity(),
            beginning: 0,
            start: 0,
            to: self.end,
        });
        while !matches!(indexer.step(true), Step::Idle) {}
        let compacted = Compacted { index, below, tombstones_below: statements_below };
        let order = Order {
            replica: REPLICA,
            compacted,
            aborted: Vec::new(),
            segment_bytes: 1 << 20,
            erases_since: Some(self.erased),
            expired_by_ms,
        };
        let means = Means { hash_key: (1, 2), keys_max: 100, free_bytes_min: 0 };
        let mut erasure = Compaction::begin(&reader, order, &means)?;
        loop {
            if let Progress::Done(made) = erasure.step(1000)? {
                self.storage.install(*made);
                break;
            }
        }
        self.settle();
        self.erased = compacted;
        Ok(())
    }

    /// Returns the offsets of records that are there, but for statements.
    fn left(&self) -> Vec<i64> {
        self.offsets(false)
    }

    /// Returns the offsets of records that are statements, or of all others.
    fn offsets(&self, are_statements: bool) -> Vec<i64> {
        let (reader, mut at, mut left) = (self.storage.reader(), 0, Vec::new());
        while let Some(range) = reader.locate(REPLICA, at, self.end, 1 << 20, true).unwrap() {
            let bytes = reader.read(REPLICA, &range).unwrap();
            for batch in batches(bytes).map(Result::unwrap) {
                at = batch.header().end_offset();
                if batch.header().attributes.is_control() == are_statements {
                    let records = Records::of(&batch, 1 << 20).unwrap();
                    left.extend(records.iter().map(|it| records.offset(&it.unwrap())));
                }
            }
        }
        left
    }
}

fn only_statements_below_the_end_count() {
    let mut log = Log::new();
    log.enqueue(&[("a", NEVER), ("a", NEVER), ("a", NEVER)], true);
    log.state("a", Said::Deleted(Deleted::of(&[0])));
    log.enqueue(&[("a", NEVER)], true);
    log.state("a", Said::Deleted(Deleted::of(&[1])));
    log.erase(4, 0, 0);
    assert_eq!(log.left(), [1, 2, 4]);
}

fn expired_elements_go_but_for_the_last_one_and_the_last_batch() {
    let mut log = Log::new();
    // At 0 to 3, of which 2 expires later, and 1 is the last one of its queue below the end.
    log.enqueue(&[("a", 10), ("b", 10), ("a", 30), ("c", 10)], true);
    log.enqueue(&[("a", NEVER), ("c", NEVER)], false);
    // The last batch below the end.
    log.enqueue(&[("a", 10)], false);
    log.enqueue(&[("a", 10), ("a", NEVER), ("b", NEVER)], true);
    log.erase(7, 0, 20);
    assert_eq!(log.left(), [1, 2, 4, 5, 6, 7, 8, 9]);
    log.enqueue(&[("d", NEVER)], true);
    // Now the batch at 7 is the last one.
    log.erase(10, 0, 40);
    assert_eq!(log.left(), [4, 5, 7, 8, 9, 10]);
}

fn a_record_of_another_queue_stops_the_erasure() {
    let mut log = Log::new();
    log.enqueue(&[("a", NEVER), ("b", NEVER)], true);
    // The statement names the record of `b`.
    log.state("a", Said::Deleted(Deleted::of(&[1])));
    log.enqueue(&[("a", NEVER)], true);
    let erased = log.try_erase(3, 0, 0);
    assert_eq!(log.left(), [0, 1, 3]);
    let Err(CompactionError::Damaged { what, .. }) = &erased else { panic!("{erased:?}") };
    assert!(what.contains("not of its queue"), "{what}");
    // A restart leaves the records, too.
    log.storage = Storage::open(log.disk.clone(), options()).unwrap().0;
    assert_eq!(log.left(), [0, 1, 3]);
}

fn statements_stay_until_an_erasure_names_a_later_offset() {
    let mut log = Log::new();
    log.enqueue(&[("a", NEVER), ("a", NEVER), ("b", NEVER), ("b", NEVER)], true);
    log.state("a", Said::Deleted(Deleted::of(&[0])));
    log.state("b", Said::Cut { after: 2, reason: String::new(), withdrawn: vec![3] });
    log.enqueue(&[("a", NEVER)], false);
    log.enqueue(&[("a", NEVER)], true);
    log.erase(7, 4, 0);
    assert_eq!(log.left(), [1, 2, 6, 7]);
    assert_eq!(log.offsets(true), [4, 5], "their records are gone, and they are not");
    log.enqueue(&[("a", NEVER)], true);
    log.erase(8, 5, 0);
    assert_eq!(log.offsets(true), [5]);
    log.enqueue(&[("a", NEVER)], true);
    log.erase(9, 6, 0);
    assert_eq!(log.offsets(true), [0; 0]);
    assert_eq!(log.left(), [1, 2, 6, 7, 8, 9]);
}

#[test]
fn statements_outlive_their_records() {
    statements_stay_until_an_erasure_names_a_later_offset();
}

#[test]
fn an_erasure_takes_what_the_log_below_its_end_says() {
    only_statements_below_the_end_count();
    expired_elements_go_but_for_the_last_one_and_the_last_batch();
}

#[test]
fn an_erasure_takes_no_record_of_another_queue() {
    a_record_of_another_queue_stops_the_erasure();
}

/// A replica may come to the last of several erasures alone.
#[test]
fn a_replica_that_missed_erasures_has_the_same_records() {
    let [mut one, mut other] = [Log::new(), Log::new()];
    for log in [&mut one, &mut other] {
        log.enqueue(&[("a", 10), ("a", 10), ("a", NEVER)], true);
        log.enqueue(&[("b", 30), ("a", NEVER)], true);
    }
    one.erase(3, 0, 20);
    for log in [&mut one, &mut other] {
        // The element that was the last one at the first erasure is withdrawn.
        log.state("a", Said::Cut { after: 1, reason: String::new(), withdrawn: vec![2, 4] });
        log.enqueue(&[("c", NEVER)], true);
        log.erase(6, 0, 40);
    }
    assert_eq!(one.left(), other.left());
    assert_eq!(one.left(), [3, 6]);
}

#[cfg(feature = "sabotage")]
#[test]
fn planted_bugs_of_erasures_are_found() {
    use duramen_storage::sabotage::{Bug, plant};
    for (bug, test) in [
        (Bug::EraseTooMuch, only_statements_below_the_end_count as fn()),
        (Bug::ExpiredTooSoon, expired_elements_go_but_for_the_last_one_and_the_last_batch),
        (Bug::ExpiredLastGoes, expired_elements_go_but_for_the_last_one_and_the_last_batch),
        (Bug::EraseUnchecked, a_record_of_another_queue_stops_the_erasure),
        (Bug::StatementsGoEarly, statements_stay_until_an_erasure_names_a_later_offset),
    ] {
        plant(Some(bug));
        let found = std::panic::catch_unwind(test);
        plant(None);
        assert!(found.is_err(), "{bug:?}");
    }
}
