//! Guards of appends to queues, native and as headers on Kafka's wire.

use std::collections::BTreeMap;

use bytes::Bytes;
use duramen_protocol::ErrorCode;
use duramen_protocol::partitioner::key_number;
use duramen_protocol::records::{BatchBuilder, NewRecord};

use super::harness::{Harness, produce_request};
use super::native::ask_of;
use super::trio::Trio;
use crate::checked_batch::CheckedBatch;
use crate::guard::{Guard, Last, Position};
use crate::native::{
    Answer, Append, Delete, DeleteQueue, Log, Op, Problem, Queue, Replace, SetFence, Target,
    TrimQueue,
};

fn node() -> Harness {
    let mut it = Harness::new(&[]);
    it.create("mail", &[("queue.enable", "true")]);
    it.create("t", &[]);
    it
}

fn records(keys: &[&str], headers: &[(&str, Option<&[u8]>)]) -> Bytes {
    let mut builder = BatchBuilder::new();
    for (at, key) in keys.iter().enumerate() {
        let record = NewRecord {
            timestamp: 1_700_000_000_000,
            key: Some(key.as_bytes()),
            value: Some(b"v"),
            headers: if at == 0 { headers } else { &[] },
        };
        builder.push(&record).expect("a record");
    }
    builder.build().expect("a batch")
}

fn queue(name: &str) -> Target {
    let name = Bytes::copy_from_slice(name.as_bytes());
    Target::Queue(Queue { topic: "mail".to_owned(), name })
}

fn checked(name: &str, bytes: Bytes) -> CheckedBatch {
    CheckedBatch::of(bytes, key_number(name.as_bytes())).expect("a batch")
}

fn enqueue(name: &str, last: Option<Last>) -> Op {
    enqueue_batch(name, records(&[name], &[]), last, None)
}

/// Makes an append of records to a queue, with a guard.
fn enqueue_batch(name: &str, bytes: Bytes, last: Option<Last>, fence: Option<&'static [u8]>) -> Op {
    let fence = fence.map(Bytes::from_static);
    let guard = Guard { last, fence, queue: Some(Bytes::copy_from_slice(name.as_bytes())) };
    let batch = CheckedBatch { guard, ..checked(name, bytes) };
    let (target, ids) = (queue(name), Vec::new());
    Op::Append(Append { target, batch, ids, is_patient: false, timeout_ms: 5_000 })
}

fn fence_queue(name: &str, token: &'static [u8], if_token: Option<&'static [u8]>) -> Op {
    let (token, if_token) = (Bytes::from_static(token), if_token.map(Bytes::from_static));
    Op::FenceQueue(SetFence { target: queue(name), token, if_token, timeout_ms: 5_000 })
}

fn ask(it: &mut Harness, op: Op) -> Result<Position, Problem> {
    let number = it.operate(op);
    match it.answer(number).expect("answered at once") {
        Ok(Answer::Appended { last, .. }) => Ok(last),
        Ok(other) => panic!("{other:?}"),
        Err(problem) => Err(problem),
    }
}

#[test]
fn a_guard_is_about_its_own_queue() {
    let mut it = node();
    let none = Some(Last::Nothing);
    let first = ask(&mut it, enqueue("alice", none)).expect("the queue is empty");
    assert_eq!(ask(&mut it, enqueue("alice", none)), Err(Problem::LastMismatch(Some(first))));
    let other = ask(&mut it, enqueue("bob", none)).expect("another queue is empty");
    let second = ask(&mut it, enqueue("alice", Some(Last::At(first)))).expect("it is the last");
    assert_eq!((first.offset, other.offset, second.offset), (0, 1, 2));
    let stale = ask(&mut it, enqueue("alice", Some(Last::At(first))));
    assert_eq!(stale, Err(Problem::LastMismatch(Some(second))));
    let foreign = ask(&mut it, enqueue("bob", Some(Last::At(second))));
    assert_eq!(foreign, Err(Problem::LastMismatch(Some(other))));
    let of_another_term = Position { term: second.term + 1, ..second };
    let diverged = ask(&mut it, enqueue("alice", Some(Last::At(of_another_term))));
    assert_eq!(diverged, Err(Problem::LastMismatch(Some(second))));
    // Appends without a guard count as well.
    let third = ask(&mut it, enqueue("alice", None)).expect("no guard");
    let stale = ask(&mut it, enqueue("alice", Some(Last::At(second))));
    assert_eq!(stale, Err(Problem::LastMismatch(Some(third))));
}

#[test]
fn a_guard_waits_for_appends_of_its_queue_alone() {
    let mut it = node();
    it.is_indexing = false;
    let first = it.operate(enqueue("alice", Some(Last::Nothing)));
    assert!(matches!(it.answer(first), Some(Ok(_))), "nothing is to be indexed before it");
    let second = it.operate(enqueue("alice", Some(Last::Nothing)));
    let other = it.operate(enqueue("bob", Some(Last::Nothing)));
    assert!(it.answer(second).is_none(), "an append of its queue is not indexed");
    assert!(matches!(it.answer(other), Some(Ok(_))), "none of bob's is");
    it.carry_out_orders();
    it.run();
    assert!(matches!(it.answer(second), Some(Err(Problem::LastMismatch(Some(_))))));
    // The wait has an end.
    let late = it.operate(enqueue("bob", Some(Last::Nothing)));
    it.pass_ms(5_001);
    assert!(matches!(it.answer(late), Some(Err(Problem::Busy(_)))));
    assert!(!it.node.queues.holds_any(), "nothing waits for nobody");
}

#[test]
fn an_append_during_the_look_has_it_done_again() {
    let mut it = node();
    it.is_prompt = false;
    let guarded = it.operate(enqueue("alice", Some(Last::Nothing)));
    it.run();
    let looks = std::mem::take(&mut it.looks);
    assert_eq!(looks.len(), 1);
    it.is_prompt = true;
    let plain = it.operate(enqueue("alice", None));
    it.run();
    assert!(matches!(it.answer(plain), Some(Ok(_))));
    it.looks = looks;
    it.run();
    let Some(Err(Problem::LastMismatch(Some(last)))) = it.answer(guarded) else {
        panic!("the look was before the other append")
    };
    assert_eq!(last.offset, 0);
}

#[test]
fn a_client_that_goes_takes_its_append_along() {
    let mut it = node();
    it.is_prompt = false;
    it.operate(enqueue("alice", Some(Last::Nothing)));
    it.run();
    it.disconnect(super::harness::NATIVE);
    it.is_prompt = true;
    it.run();
    assert!(!it.node.queues.holds_any());
    assert!(ask(&mut it, enqueue("alice", Some(Last::Nothing))).is_ok(), "nothing was appended");
}

/// Sends a batch as Kafka's clients do. Returns the code, the first offset and the message.
fn produce(
    it: &mut Harness,
    topic: &str,
    records: Bytes,
    acks: i16,
) -> (ErrorCode, i64, Option<String>) {
    let id = it.send(produce_request(topic, records, acks), 9);
    let part = it.produced(id).expect("answered");
    let code = ErrorCode::from_code(part.error_code).expect("known");
    (code, part.base_offset, part.error_message)
}

#[test]
fn headers_are_guards_on_kafkas_wire() {
    for topic in ["mail", "t"] {
        let mut it = node();
        let mut put = |last: &str| {
            let headers = [("duramen-if-last", Some(last.as_bytes()))];
            produce(&mut it, topic, records(&["alice", "alice"], &headers), -1)
        };
        assert_eq!(put("none"), (ErrorCode::None, 0, None), "{topic}");
        let (code, offset, message) = put("none");
        assert_eq!((code, offset), (ErrorCode::PolicyViolation, -1), "{topic}");
        let message = message.expect("it names the last position");
        let last = message.rsplit(' ').next().expect("a word").to_owned();
        assert_eq!(put(&last), (ErrorCode::None, 2, None), "{topic}: {message}");
        assert_eq!(put(&last).0, ErrorCode::PolicyViolation, "{topic}");
        assert_eq!(put("7").0, ErrorCode::InvalidRecord, "{topic}");
    }
}

#[test]
fn a_guard_that_cannot_be_judged_is_refused() {
    let mut it = node();
    let none = [("duramen-if-last", Some(&b"none"[..]))];
    let mixed = produce(&mut it, "mail", records(&["alice", "bob"], &none), -1);
    assert_eq!(mixed.0, ErrorCode::InvalidRecord, "{mixed:?}");
    let (code, _, message) = produce(&mut it, "t", records(&["alice"], &none), 1);
    assert_eq!(code, ErrorCode::None, "{message:?}");
    let twice = [none[0], none[0]];
    let twice = produce(&mut it, "t", records(&["alice"], &twice), -1);
    assert_eq!(twice.0, ErrorCode::InvalidRecord, "{twice:?}");
    // A guard behind the first record would let through what stands before it.
    let mut builder = BatchBuilder::new();
    for headers in [&[][..], &none[..]] {
        let record = NewRecord { key: Some(b"alice"), headers, ..NewRecord::default() };
        builder.push(&record).expect("a record");
    }
    let late = builder.build().expect("a batch");
    for topic in ["mail", "t"] {
        let (code, _, message) = produce(&mut it, topic, late.clone(), -1);
        assert_eq!(code, ErrorCode::InvalidRecord);
        assert!(message.expect("a reason").contains("first record"), "{topic}");
    }
}

#[test]
fn a_fence_on_kafkas_wire_keeps_others_out() {
    let mut it = node();
    for topic in ["mail", "t"] {
        let fence = |token: &'static [u8]| {
            Op::Fence(SetFence {
                target: Target::Log(Log { topic: topic.to_owned(), partition: 0 }),
                token: Bytes::from_static(token),
                if_token: None,
                timeout_ms: 5_000,
            })
        };
        let number = it.operate(fence(b"one"));
        assert!(matches!(it.answer(number), Some(Ok(_))));
        let mut put = |token: &[u8], last: Option<&[u8]>| {
            let mut headers = vec![("duramen-fence", Some(token))];
            headers.extend(last.map(|last| ("duramen-if-last", Some(last))));
            produce(&mut it, topic, records(&["alice"], &headers), -1)
        };
        assert_eq!(put(b"one", None).0, ErrorCode::None);
        for last in [None, Some(&b"none"[..])] {
            let (code, _, message) = put(b"two", last);
            assert_eq!(code, ErrorCode::PolicyViolation, "{topic}");
            assert!(message.expect("a reason").contains("fence"), "{topic}");
        }
    }
}

/// Makes operations that a leader refuses, or that come to nothing, if it has a fence `one` of alice's queue, a trim
/// through her element, and an element of another queue.
fn vain_operations(own: Position, other: Position) -> Vec<Op> {
    let name = "alice";
    let (target, fence, timeout_ms) = (queue(name), None, 5_000);
    let nothing = DeleteQueue { target: queue("carol"), fence: None, timeout_ms };
    let replacement = Replace {
        target: target.clone(),
        position: other,
        batch: checked(name, records(&[name], &[])),
        id: None,
        if_version: None,
        fence: None,
        timeout_ms,
    };
    let positions = vec![other];
    let deletion = Delete { target: target.clone(), positions, fence: None, timeout_ms };
    vec![
        enqueue(name, Some(Last::Nothing)),
        enqueue_batch(name, records(&[name], &[]), None, Some(b"two")),
        Op::Delete(deletion),
        Op::Replace(replacement),
        Op::DeleteQueue(nothing),
        Op::TrimQueue(TrimQueue { target, through: own, pointer: None, fence, timeout_ms }),
        fence_queue(name, b"two", Some(b"zero")),
        fence_queue(name, b"one", None),
    ]
}

#[test]
fn a_leader_that_was_cut_off_refuses_no_guard_of_a_queue() {
    let mut trio = Trio::new(&[]);
    trio.create_with("mail", 1, &[("queue.enable", "true")]);
    let old = trio.leader("mail", 0).expect("led");
    let mut put = |name| match ask_of(&mut trio, old, enqueue(name, None)) {
        Ok(Answer::Appended { last, .. }) => last,
        other => panic!("{other:?}"),
    };
    let (own, other) = (put("alice"), put("bob"));
    let (target, timeout_ms) = (queue("alice"), 5_000);
    let trim = TrimQueue { target, through: own, pointer: None, fence: None, timeout_ms };
    for op in [fence_queue("alice", b"one", None), Op::TrimQueue(trim)] {
        assert!(ask_of(&mut trio, old, op).is_ok());
    }
    // The leader that others hear answers each of them.
    for op in vain_operations(own, other) {
        let name = op.name();
        let answer = ask_of(&mut trio, old, op);
        let is_judged = match &answer {
            Ok(Answer::Edited(edited)) => edited.first.is_none(),
            Err(problem) => matches!(
                problem,
                Problem::LastMismatch(Some(_)) | Problem::Fenced | Problem::UnknownElement
            ),
            Ok(_) => false,
        };
        assert!(is_judged, "{name:?}: {answer:?}");
    }
    trio.cut.insert(old);
    let node = &mut trio.nodes[old];
    let asked: Vec<_> =
        vain_operations(own, other).into_iter().map(|op| (op.name(), node.operate(op))).collect();
    for (name, number) in &asked {
        let answer = trio.nodes[old].answer(*number);
        assert_eq!(answer, None, "nobody confirms that it leads: {name:?}");
    }
    trio.pass_ms(20_000);
    let next = trio.leader("mail", 0).expect("another leads");
    assert_ne!(next, old);
    for (name, number) in &asked {
        let answer = trio.nodes[old].answer(*number).expect("its time is over");
        let is_vague = matches!(
            answer,
            Err(Problem::NoLeader
                | Problem::OutcomeUnknown
                | Problem::Busy(_)
                | Problem::Elsewhere(..))
        );
        assert!(is_vague, "{name:?}: {answer:?}");
    }
}

/// Returns position and kind of an append's answer, if there is one.
fn taken(it: &mut Harness, number: u64) -> Option<(Position, bool)> {
    match it.answer(number)? {
        Ok(Answer::Appended { last, is_duplicate, .. }) => Some((last, is_duplicate)),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_session_appends_once_to_a_queue_whatever_its_guard_says_by_then() {
    let session = || {
        let mut builder = BatchBuilder::new().producer(7, 0, 0);
        let record = NewRecord { key: Some(b"alice"), ..NewRecord::default() };
        builder.push(&record).expect("a record");
        let batch = builder.build().expect("a batch");
        enqueue_batch("alice", batch, Some(Last::Nothing), None)
    };
    let mut it = node();
    let first = it.operate(session());
    let (first, is_duplicate) = taken(&mut it, first).expect("answered at once");
    assert!(!is_duplicate);
    let again = it.operate(session());
    assert_eq!(taken(&mut it, again), Some((first, true)));
    // The retry comes while somebody looks for the end of the queue, which is then another one.
    let mut it = node();
    it.is_prompt = false;
    let numbers = [(); 2].map(|()| it.operate(session()));
    it.run();
    assert_eq!(it.looks.len(), 2);
    it.is_prompt = true;
    it.run();
    assert_eq!(taken(&mut it, numbers[0]), Some((first, false)));
    assert_eq!(taken(&mut it, numbers[1]), Some((first, true)));
    assert_eq!(it.fetch("mail", 0).high_watermark, 1, "the log has one of them");
}

/// Finds two names with the same number.
fn names_of_one_number() -> (String, String) {
    let mut known = BTreeMap::new();
    let names = (0..10_000_000).map(|n| format!("queue-{n}"));
    let mut all = names.map(|name| (known.insert(key_number(name.as_bytes()), name.clone()), name));
    all.find_map(|(before, name)| Some((before?, name))).expect("there are few numbers")
}

#[test]
fn names_of_one_number_wait_for_each_other_and_decide_nothing() {
    let (one, other) = names_of_one_number();
    let mut it = node();
    it.is_indexing = false;
    let first = it.operate(enqueue(&one, None));
    assert!(matches!(it.answer(first), Some(Ok(_))));
    let second = it.operate(enqueue(&other, Some(Last::Nothing)));
    assert!(it.answer(second).is_none(), "the append may be of its queue");
    it.carry_out_orders();
    it.run();
    assert!(matches!(it.answer(second), Some(Ok(_))), "its queue is empty");
}
