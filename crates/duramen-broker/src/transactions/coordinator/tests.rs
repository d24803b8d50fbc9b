//! Coordinators of transactions, by scenario and by chance.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use duramen_protocol::{ErrorCode, Response};

use super::*;
use crate::event::ConnectionId;
use crate::prng::Prng;

const SECOND: u64 = 1_000_000;

/// A coordinator, its log, and partitions that do as they are told when they are let.
struct Play {
    coordinator: Coordinator,
    now: Now,
    log: BTreeMap<i64, TransactionRecord>,
    end: i64,
    waiting: VecDeque<(Ticket, Vec<TransactionRecord>)>,
    appends_at_once: bool,
    marks: VecDeque<Mark>,
    marks_at_once: bool,
    /// All that was marked, in order.
    marked: Vec<Mark>,
    next_id: i64,
    asked: u64,
    connection: u64,
    replies: BTreeMap<RequestKey, Response>,
    judged: BTreeMap<u64, ErrorCode>,
    late: BTreeSet<RequestKey>,
}

fn code_of(code: i16) -> ErrorCode {
    ErrorCode::from_code(code).expect("a known code")
}

impl Play {
    fn new() -> Self {
        Self {
            coordinator: Coordinator::default(),
            now: Now { mono_us: SECOND, wall_ms: 1_700_000_000_000 },
            log: BTreeMap::new(),
            end: 0,
            waiting: VecDeque::new(),
            appends_at_once: true,
            marks: VecDeque::new(),
            marks_at_once: true,
            marked: Vec::new(),
            next_id: 100,
            asked: 0,
            connection: 1,
            replies: BTreeMap::new(),
            judged: BTreeMap::new(),
            late: BTreeSet::new(),
        }
    }

    fn key(&mut self) -> RequestKey {
        self.asked += 1;
        (ConnectionId(self.connection), self.asked)
    }

    fn settle(&mut self) {
        loop {
            let outputs = self.coordinator.take_outputs();
            let is_any = !outputs.is_empty();
            for output in outputs {
                match output {
                    Output::Reply { key, response, .. } => {
                        let before = self.replies.insert(key, *response);
                        assert!(before.is_none(), "a request was answered twice");
                    }
                    Output::Judged { asker: Asker::Own { nonce }, code, .. } => {
                        let before = self.judged.insert(nonce, code);
                        assert!(before.is_none(), "a question was answered twice");
                    }
                    Output::Judged { asker: Asker::Request { key, .. }, code, .. } => {
                        let before = self.judged.insert(key.1, code);
                        assert!(before.is_none(), "a question was answered twice");
                    }
                    Output::Judged { .. } => panic!("nobody else asks"),
                    Output::TooLate(key) => assert!(self.late.insert(key)),
                    Output::Append(ticket, records) => self.waiting.push_back((ticket, records)),
                    Output::WantProducerId(name) => {
                        self.next_id += 1;
                        self.coordinator.on_producer_id(&name, Ok(self.next_id), self.now);
                    }
                    Output::Mark(mark) => self.marks.push_back(mark),
                }
            }
            self.coordinator.inspect();
            let goes_on = self.appends_at_once && self.land()
                || self.marks_at_once && !self.marks.is_empty() && self.mark(0);
            if !goes_on && !is_any {
                return;
            }
        }
    }

    /// The oldest append becomes durable.
    fn land(&mut self) -> bool {
        let Some((ticket, records)) = self.waiting.pop_front() else { return false };
        let base = self.end;
        for record in records {
            let (key, value) = record.encode().expect("all fits");
            let read = TransactionRecord::decode(key, value).expect("it was just written");
            assert_eq!(read, record, "the log says what was meant");
            self.log.insert(self.end, read);
            self.end += 1;
        }
        self.coordinator.on_appended(ticket, Ok(base), self.now);
        true
    }

    /// A partition is marked.
    fn mark(&mut self, at: usize) -> bool {
        let Some(mark) = self.marks.remove(at) else { return false };
        self.coordinator.on_marked(&mark, self.now);
        self.marked.push(mark);
        true
    }

    fn fail(&mut self, code: ErrorCode) {
        let (ticket, _) = self.waiting.pop_front().expect("something waits");
        self.coordinator.on_appended(ticket, Err(code), self.now);
        self.settle();
    }

    fn pass(&mut self, us: u64) {
        self.now.mono_us += us;
        self.now.wall_ms += i64::try_from(us / 1000).expect("small");
        if self.coordinator.deadline_us().is_some_and(|at| at <= self.now.mono_us) {
            self.coordinator.on_time(self.now);
        }
        self.settle();
    }

    fn init(&mut self, id: &str, expected: Option<(i64, i16)>) -> RequestKey {
        let key = self.key();
        let ask = Ask::Init { key, timeout_ms: 60_000, expected };
        self.coordinator.ask(id, ask, self.now);
        self.settle();
        key
    }

    fn begun(&self, key: RequestKey) -> Result<(i64, i16), ErrorCode> {
        match self.replies.get(&key) {
            Some(Response::InitProducerId(it)) if it.error_code == 0 => {
                Ok((it.producer_id, it.producer_epoch))
            }
            Some(Response::InitProducerId(it)) => Err(code_of(it.error_code)),
            other => panic!("{other:?}"),
        }
    }

    fn start(&mut self, id: &str) -> (i64, i16) {
        let key = self.init(id, None);
        self.begun(key).expect("it may")
    }

    fn add_as(
        &mut self,
        id: &str,
        (producer_id, epoch): (i64, i16),
        partition: i32,
        version: i16,
        verify_only: bool,
    ) -> u64 {
        let key = self.key();
        let partitions = [("t".to_owned(), [partition].into())].into();
        let addition = Addition { producer_id, epoch, partitions, verify_only, version };
        let asker = if version == 1 && !verify_only {
            Asker::Request { key, part: 0 }
        } else {
            Asker::Own { nonce: key.1 }
        };
        self.coordinator.ask(id, Ask::Add { asker, addition }, self.now);
        self.settle();
        key.1
    }

    fn add(&mut self, id: &str, producer: (i64, i16), partition: i32) -> ErrorCode {
        let asked = self.add_as(id, producer, partition, 2, false);
        self.judged[&asked]
    }

    fn end(
        &mut self,
        id: &str,
        (producer_id, epoch): (i64, i16),
        commits: bool,
        version: i16,
    ) -> RequestKey {
        let key = self.key();
        let end = End { producer_id, epoch, commits, version };
        self.coordinator.ask(id, Ask::End { key, end }, self.now);
        self.settle();
        key
    }

    fn ended(&self, key: RequestKey) -> Result<(i64, i16), ErrorCode> {
        match self.replies.get(&key) {
            Some(Response::EndTxn(it)) if it.error_code == 0 => {
                Ok((it.producer_id, it.producer_epoch))
            }
            Some(Response::EndTxn(it)) => Err(code_of(it.error_code)),
            other => panic!("{other:?}"),
        }
    }

    fn state(&self, id: &str) -> String {
        self.coordinator.describe(id).transaction_state
    }

    /// Another coordinator takes over, with what the log says.
    fn reload(&mut self, epoch: i32) {
        self.coordinator.unload();
        self.settle_answers_only();
        self.coordinator = Coordinator::default();
        self.waiting.clear();
        self.marks.clear();
        for (offset, record) in &self.log {
            self.coordinator.apply(*offset, record.clone());
        }
        self.coordinator.loaded(epoch, self.now);
        self.settle();
    }

    fn settle_answers_only(&mut self) {
        for output in self.coordinator.take_outputs() {
            match output {
                Output::Reply { key, response, .. } => {
                    assert!(self.replies.insert(key, *response).is_none());
                }
                Output::Judged { asker: Asker::Own { nonce }, code, .. } => {
                    assert!(self.judged.insert(nonce, code).is_none());
                }
                Output::Judged { asker: Asker::Request { key, .. }, code, .. } => {
                    assert!(self.judged.insert(key.1, code).is_none());
                }
                other => panic!("{other:?} of one that coordinates no more"),
            }
        }
    }
}

#[test]
fn a_transaction_of_either_protocol_goes_through_its_states() {
    for version in [1, 2] {
        let mut play = Play::new();
        let producer = play.start("x");
        assert_eq!((producer, play.state("x").as_str()), ((101, 0), "Empty"));
        play.marks_at_once = false;
        for partition in [0, 1] {
            let asked = play.add_as("x", producer, partition, version, false);
            assert_eq!(play.judged[&asked], ErrorCode::None);
        }
        assert_eq!(play.state("x"), "Ongoing");
        let end = play.end("x", producer, true, version);
        let next = (101, i16::from(version == 2));
        let told = if version == 2 { next } else { (-1, -1) };
        assert_eq!((play.ended(end), play.state("x").as_str()), (Ok(told), "PrepareCommit"));
        let next_one = play.add_as("x", next, 5, version, false);
        assert!(!play.judged.contains_key(&next_one), "the last one is not over");
        assert_eq!(play.marks.len(), 2);
        assert!(play.marks.iter().all(|it| it.marker.commits && it.marker.epoch == next.1));
        play.mark(1);
        play.settle();
        assert_eq!(play.state("x"), "PrepareCommit", "one partition has not heard of it");
        play.mark(0);
        play.settle();
        assert_eq!(play.judged[&next_one], ErrorCode::None);
        assert_eq!(play.state("x"), "Ongoing");
    }
}

#[test]
fn a_commit_that_comes_before_its_records_is_to_be_sent_again_after_them() {
    let mut play = Play::new();
    let producer = play.start("x");
    play.add("x", producer, 0);
    play.marks_at_once = false;
    play.end("x", producer, true, 2);
    let next = (101, 1);
    // Whether the last transaction is over or not, and though the first of the next one's partitions waits already.
    let first_record = play.add_as("x", next, 0, 2, false);
    let early = play.end("x", next, true, 2);
    assert_eq!(play.ended(early), Err(ErrorCode::ConcurrentTransactions));
    play.mark(0);
    play.settle();
    assert_eq!(
        (play.judged[&first_record], play.state("x").as_str()),
        (ErrorCode::None, "Ongoing")
    );
    play.marks_at_once = true;
    let end = play.end("x", next, true, 2);
    let next = play.ended(end).expect("now it may");
    let early = play.end("x", next, true, 2);
    assert_eq!(play.ended(early), Err(ErrorCode::ConcurrentTransactions));
    assert_eq!(play.state("x"), "CompleteCommit");
    // No records come.
    play.pass(2 * SECOND);
    let nothing = play.end("x", next, true, 2);
    assert_eq!(play.ended(nothing), Err(ErrorCode::InvalidTxnState));
}

#[test]
fn that_a_transaction_is_over_is_written_with_what_follows_or_after_a_while() {
    let mut play = Play::new();
    let written = |play: &Play| -> Vec<&str> {
        let values = play.log.values().filter_map(|it| it.value.as_ref());
        values.map(|it| it.status.name()).collect()
    };
    let producer = play.start("x");
    play.add("x", producer, 0);
    let end = play.end("x", producer, true, 2);
    let next = play.ended(end).expect("it may");
    assert_eq!(written(&play), ["Empty", "Ongoing", "PrepareCommit"]);
    assert_eq!(play.state("x"), "CompleteCommit", "all partitions have it");
    assert_eq!(play.coordinator.describe("x").topics, []);
    assert_eq!(play.add("x", next, 1), ErrorCode::None);
    let end = play.end("x", next, false, 2);
    assert_eq!(written(&play)[3..], ["Ongoing", "PrepareAbort"]);
    // The next coordinator does not know which partitions have it.
    play.marks_at_once = false;
    play.reload(7);
    assert_eq!((play.state("x").as_str(), play.marks.len()), ("PrepareAbort", 1));
    play.marks_at_once = true;
    play.settle();
    play.pass(SECOND);
    assert_eq!(written(&play)[5..], ["CompleteAbort"]);
    play.pass(SECOND);
    assert_eq!(written(&play).len(), 6, "once");
    let last = play.ended(end).expect("it may");
    assert_eq!(play.add("x", last, 1), ErrorCode::None);
    assert_eq!(play.marked.last().map(|it| it.marker.commits), Some(false));
}

#[test]
fn what_is_decided_survives_its_coordinator_and_is_executed_by_the_next() {
    for commits in [true, false] {
        let mut play = Play::new();
        let producer = play.start("x");
        play.add("x", producer, 0);
        play.marks_at_once = false;
        let end = play.end("x", producer, commits, 2);
        assert!(play.ended(end).is_ok());
        play.reload(9);
        assert_eq!(play.marks.len(), 1);
        let mark = play.marks[0].clone();
        assert_eq!((mark.marker.commits, mark.marker.coordinator_epoch), (commits, 9));
        let again = play.end("x", producer, commits, 2);
        assert!(!play.replies.contains_key(&again), "it is not over");
        let other = play.end("x", producer, !commits, 2);
        play.mark(0);
        play.settle();
        assert_eq!(play.ended(again), Ok((101, 1)), "the answer of the first time");
        let refused = if commits { ErrorCode::InvalidTxnState } else { ErrorCode::ProducerFenced };
        assert_eq!(play.ended(other), Err(refused), "a decision stands");
    }
}

#[test]
fn what_was_not_decided_durably_was_not_decided() {
    let mut play = Play::new();
    let producer = play.start("x");
    play.add("x", producer, 0);
    play.appends_at_once = false;
    let end = play.end("x", producer, true, 2);
    assert!(!play.replies.contains_key(&end) && play.marks.is_empty());
    play.reload(3);
    assert_eq!(play.ended(end), Err(ErrorCode::NotCoordinator));
    play.appends_at_once = true;
    let other = play.end("x", producer, false, 2);
    assert_eq!(play.ended(other), Ok((101, 1)), "so it may still be the other way");
    assert_eq!(play.state("x"), "CompleteAbort");
    let mut play = Play::new();
    let producer = play.start("x");
    play.add("x", producer, 0);
    play.appends_at_once = false;
    let end = play.end("x", producer, true, 2);
    play.fail(ErrorCode::NotEnoughReplicas);
    assert_eq!(play.ended(end), Err(ErrorCode::CoordinatorNotAvailable));
    assert_eq!((play.state("x").as_str(), play.marks.len()), ("Ongoing", 0));
}

#[test]
fn a_new_producer_ends_what_is_open_and_keeps_its_predecessor_out() {
    let mut play = Play::new();
    let first = play.start("x");
    play.add("x", first, 0);
    play.marks_at_once = false;
    let second = play.init("x", None);
    assert!(!play.replies.contains_key(&second), "the abort comes first");
    assert_eq!(play.marks[0].marker.epoch, first.1 + 1, "nothing of the old epoch comes after it");
    play.mark(0);
    play.settle();
    let second = play.begun(second).expect("it may now");
    assert_eq!(second, (first.0, first.1 + 2));
    assert_eq!(play.add("x", first, 0), ErrorCode::ProducerFenced);
    let end = play.end("x", first, true, 2);
    assert_eq!(play.ended(end), Err(ErrorCode::ProducerFenced));
    let begin = play.init("x", Some(first));
    assert_eq!(play.begun(begin), Err(ErrorCode::ProducerFenced));
    // While its successor's transaction is open, too: who is kept out ends nothing.
    play.add("x", second, 0);
    let begin = play.init("x", Some(first));
    assert_eq!(play.begun(begin), Err(ErrorCode::ProducerFenced));
    assert_eq!(play.state("x"), "Ongoing");
}

#[test]
fn a_producer_that_names_its_epoch_gets_the_next_one_and_its_retry_the_same() {
    let mut play = Play::new();
    let producer = play.start("x");
    for _ in 0..2 {
        let begin = play.init("x", Some(producer));
        assert_eq!(play.begun(begin), Ok((101, 1)));
    }
    let other = play.init("x", None);
    assert_eq!(play.begun(other), Ok((101, 2)));
    let begin = play.init("x", Some(producer));
    assert_eq!(play.begun(begin), Err(ErrorCode::ProducerFenced));
    let stranger = play.init("x", Some((9, 2)));
    assert_eq!(play.begun(stranger), Err(ErrorCode::ProducerFenced));
    let fresh = play.init("new", Some((9, 2)));
    assert_eq!(play.begun(fresh), Ok((102, 0)), "it may have been forgotten");
}

#[test]
fn a_transaction_that_takes_too_long_is_aborted() {
    let mut play = Play::new();
    let producer = play.start("x");
    play.add("x", producer, 0);
    play.pass(59 * SECOND);
    assert_eq!(play.add("x", producer, 1), ErrorCode::None, "which gives it no more time");
    play.pass(2 * SECOND);
    assert_eq!(play.state("x"), "CompleteAbort");
    assert_eq!(play.marked.len(), 2);
    assert!(play.marked.iter().all(|it| !it.marker.commits && it.marker.epoch == 1));
    assert_eq!(play.add("x", producer, 1), ErrorCode::ProducerFenced);
    let end = play.end("x", producer, true, 2);
    assert_eq!(play.ended(end), Err(ErrorCode::ProducerFenced));
    // After another coordinator took over, the time that is left is that of the log.
    let producer = play.start("y");
    play.add("y", producer, 0);
    play.pass(30 * SECOND);
    play.reload(5);
    play.pass(29 * SECOND);
    assert_eq!(play.state("y"), "Ongoing");
    play.pass(2 * SECOND);
    assert_eq!(play.state("y"), "CompleteAbort");
}

#[test]
fn whoever_waits_for_what_cannot_be_written_is_told_so() {
    let mut play = Play::new();
    let producer = play.start("x");
    play.add("x", producer, 0);
    play.appends_at_once = false;
    let successor = play.init("x", None);
    play.fail(ErrorCode::KafkaStorageError);
    assert!(play.waiting.is_empty(), "it would not end where each append fails at once");
    assert!(play.begun(successor).is_err_and(ErrorCode::is_retriable));
    play.appends_at_once = true;
    assert_eq!(play.start("x").1, producer.1 + 2);
}

#[test]
fn what_cannot_be_written_is_tried_again() {
    let mut play = Play::new();
    let producer = play.start("x");
    play.add("x", producer, 0);
    play.appends_at_once = false;
    play.pass(61 * SECOND);
    play.fail(ErrorCode::KafkaStorageError);
    play.pass(SECOND);
    assert_eq!(play.waiting.len(), 1, "the abort");
    play.land();
    play.settle();
    let marks: Vec<bool> = play.marked.iter().map(|it| it.marker.commits).collect();
    assert_eq!((marks, play.waiting.len()), (vec![false], 0));
    play.pass(SECOND);
    assert_eq!(play.waiting.len(), 1, "that it is over");
    play.fail(ErrorCode::KafkaStorageError);
    play.pass(SECOND);
    assert_eq!(play.waiting.len(), 1, "again");
    play.land();
    play.settle();
    let last = play.log.last_key_value().and_then(|(_, it)| it.value.as_ref());
    assert_eq!(last.map(|it| it.status), Some(Status::CompleteAbort));
}

#[test]
fn epochs_that_are_used_up_are_followed_by_another_id() {
    let mut play = Play::new();
    let producer = play.start("x");
    let (at, record) = play.log.pop_last().expect("one");
    let mut late = record.value.clone().expect("it is there").as_ref().clone();
    late.epoch = LAST_EPOCH - 1;
    play.log.insert(at, TransactionRecord { value: Some(Arc::new(late)), ..record });
    play.reload(3);
    let last = (producer.0, LAST_EPOCH - 1);
    assert_eq!(play.add("x", last, 0), ErrorCode::None);
    let end = play.end("x", last, true, 2);
    assert_eq!(play.ended(end), Ok((producer.0, LAST_EPOCH)));
    let last = (producer.0, LAST_EPOCH);
    assert_eq!(play.add("x", last, 0), ErrorCode::None);
    play.marks_at_once = false;
    let end = play.end("x", last, true, 2);
    let next = (producer.0 + 1, 0);
    assert_eq!(play.ended(end), Ok(next));
    let waits = play.add_as("x", next, 0, 2, false);
    assert!(!play.judged.contains_key(&waits), "it is known who that is");
    assert_eq!(play.marks[0].marker.epoch, i16::MAX);
    play.marks_at_once = true;
    play.settle();
    assert_eq!(play.judged[&waits], ErrorCode::None);
    let again = play.end("x", last, true, 2);
    assert_eq!(play.ended(again), Err(ErrorCode::ProducerFenced), "another one is open");
    let end = play.end("x", next, false, 2);
    assert_eq!(play.ended(end), Ok((next.0, 1)));
}

#[test]
fn what_a_producer_has_given_up_is_not_executed_when_it_comes_after_all() {
    let mut play = Play::new();
    let producer = play.start("x");
    play.add_as("x", producer, 0, 1, false);
    let first = play.connection;
    // The commit is sent, and lost on its way; the producer connects again, and the same request ends the transaction.
    play.connection += 1;
    let end = play.end("x", producer, true, 1);
    assert!(play.ended(end).is_ok());
    play.add_as("x", producer, 1, 1, false);
    let newest = play.connection;
    play.connection = first;
    let late = play.end("x", producer, true, 1);
    assert!(play.late.contains(&late), "it would tear the second transaction");
    let late = play.add_as("x", producer, 2, 1, false);
    assert!(!play.judged.contains_key(&late));
    play.connection = newest;
    assert_eq!(play.state("x"), "Ongoing");
    assert_eq!(play.coordinator.describe("x").topics[0].partitions, [1]);
}

#[test]
fn whoever_waits_too_long_is_told_to_ask_again() {
    let mut play = Play::new();
    let producer = play.start("x");
    play.add("x", producer, 0);
    play.marks_at_once = false;
    play.end("x", producer, true, 2);
    let waits = play.add_as("x", (101, 1), 0, 2, false);
    let begins = play.init("x", None);
    play.pass(2 * SECOND);
    assert_eq!(play.judged[&waits], ErrorCode::ConcurrentTransactions);
    assert_eq!(play.begun(begins), Err(ErrorCode::ConcurrentTransactions));
}

#[test]
fn ids_that_nobody_uses_are_forgotten_but_for_open_transactions() {
    let mut play = Play::new();
    play.start("old");
    let open = play.start("open");
    play.add("open", open, 0);
    play.now.wall_ms += 10_000;
    play.start("young");
    assert_eq!(play.coordinator.expire(10_000, play.now, None, 2).as_deref(), Some("open"));
    let after: Arc<str> = "open".into();
    assert_eq!(play.coordinator.expire(10_000, play.now, Some(&after), 2), None);
    play.settle();
    assert_eq!(
        play.coordinator.describe("old").error_code,
        ErrorCode::TransactionalIdNotFound.code()
    );
    assert_eq!((play.state("open").as_str(), play.state("young").as_str()), ("Ongoing", "Empty"));
    play.reload(2);
    assert_eq!(play.coordinator.list(|_, _| true).len(), 2);
}

#[test]
fn records_are_those_of_kafka() {
    let value = Transaction {
        producer_id: 7,
        previous_producer_id: -1,
        next_producer_id: -1,
        epoch: 3,
        timeout_ms: 60_000,
        status: Status::Ongoing,
        partitions: [("t".to_owned(), [0, 2].into())].into(),
        updated_ms: 5,
        started_ms: 4,
        version: 2,
    };
    let record = TransactionRecord { id: "x".into(), value: Some(Arc::new(value)) };
    let (key, bytes) = record.encode().expect("it fits");
    assert_eq!(&key[..], [0, 0, 0, 1, b'x']);
    // Version 1: id, epoch, timeout, state, one topic of two partitions, the two times, and the protocol as tagged
    // field 2.
    let mut expected = vec![0, 1];
    expected.extend(7i64.to_be_bytes());
    expected.extend(3i16.to_be_bytes());
    expected.extend(60_000i32.to_be_bytes());
    expected.extend([1, 2, 2, b't', 3]);
    expected.extend([0, 0, 0, 0, 0, 0, 0, 2, 0]);
    expected.extend(5i64.to_be_bytes());
    expected.extend(4i64.to_be_bytes());
    expected.extend([1, 2, 2, 0, 2]);
    assert_eq!(bytes.as_deref(), Some(&expected[..]));
    assert!(TransactionRecord::decode(key.clone(), Some(expected[..9].to_vec().into())).is_err());
    expected[16] = 9;
    assert!(TransactionRecord::decode(key, Some(expected.into())).is_err(), "an unknown state");
}

/// A producer, partitions and coordinators that do things in any order.
struct Chaos {
    play: Play,
    chance: Prng,
    producer: Option<(i64, i16)>,
    inits: Vec<RequestKey>,
    /// Ends that were asked for, of which epoch, and which.
    ends: Vec<(RequestKey, (i64, i16), bool)>,
    additions: Vec<(u64, (i64, i16), i32)>,
    epoch: i32,
}

impl Chaos {
    fn new(seed: u64) -> Self {
        let mut play = Play::new();
        (play.appends_at_once, play.marks_at_once) = (false, false);
        let chance = Prng::stream(seed, 0);
        let (inits, ends, additions) = (Vec::new(), Vec::new(), Vec::new());
        Self { play, chance, producer: None, inits, ends, additions, epoch: 1 }
    }

    fn step(&mut self) {
        let Self { play, chance, .. } = self;
        match (chance.below(9), self.producer) {
            (0, _) => self.inits.push(play.init("x", None)),
            (1 | 2, Some(it)) => {
                let partition = i32::try_from(chance.below(4)).expect("small");
                let nonce = play.add_as("x", it, partition, 2, false);
                self.additions.push((nonce, it, partition));
            }
            (3, Some(it)) => {
                let commits = chance.below(2) == 0;
                self.ends.push((play.end("x", it, commits, 2), it, commits));
            }
            (4 | 5, _) => {
                play.land();
                play.settle();
            }
            (6, _) if !play.marks.is_empty() => {
                let count = play.marks.len() as u64;
                play.mark(usize::try_from(chance.below(count)).expect("small"));
                play.settle();
            }
            (7, _) => play.pass(chance.below(40) * SECOND),
            (8, _) => {
                self.epoch += 1;
                play.reload(self.epoch);
            }
            _ => {}
        }
        let told = self.inits.iter().chain(self.ends.iter().map(|it| &it.0));
        for key in told {
            let of_now = match play.replies.get(key) {
                Some(Response::InitProducerId(it)) if it.error_code == 0 => {
                    (it.producer_id, it.producer_epoch)
                }
                Some(Response::EndTxn(it)) if it.error_code == 0 => {
                    (it.producer_id, it.producer_epoch)
                }
                _ => continue,
            };
            self.producer = self.producer.max(Some(of_now));
        }
    }

    fn check(&self, seed: u64) {
        // A transaction's markers have the epoch that follows its own.
        let of = |mark: &Mark| (mark.marker.producer_id, mark.marker.epoch - 1);
        let mut ends: BTreeMap<(i64, i16), bool> = BTreeMap::new();
        for mark in &self.play.marked {
            let before = *ends.entry(of(mark)).or_insert(mark.marker.commits);
            assert_eq!(before, mark.marker.commits, "seed {seed}: a torn transaction");
        }
        for (key, of, commits) in &self.ends {
            let Some(Response::EndTxn(it)) = self.play.replies.get(key) else { continue };
            if it.error_code == 0
                && let Some(end) = ends.get(of)
            {
                assert_eq!(end, commits, "seed {seed}: the end of {of:?} is not what was told");
            }
        }
        for (nonce, whose, partition) in &self.additions {
            let is_in = self.play.judged.get(nonce) == Some(&ErrorCode::None);
            let mut marked = self.play.marked.iter();
            let is_marked = marked.any(|it| of(it) == *whose && it.partition == *partition);
            assert!(!is_in || is_marked, "seed {seed}: {partition} of {whose:?} hears of no end");
        }
    }
}

#[test]
fn by_chance_no_transaction_is_torn_lost_or_both() {
    for seed in 0..400 {
        let mut chaos = Chaos::new(seed);
        for _ in 0..80 {
            chaos.step();
        }
        let play = &mut chaos.play;
        (play.appends_at_once, play.marks_at_once) = (true, true);
        play.reload(chaos.epoch + 1);
        play.pass(120 * SECOND);
        let state = play.state("x");
        assert!(!["Ongoing", "PrepareCommit", "PrepareAbort"].contains(&state.as_str()));
        chaos.check(seed);
    }
}
