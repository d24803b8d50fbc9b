//! Deletions of elements of queues, and the ends of a queue topic that readers see.

use bytes::Bytes;
use duramen_protocol::batch::batches;
use duramen_protocol::messages::FetchRequest;
use duramen_protocol::partitioner::key_number;
use duramen_protocol::records::{BatchBuilder, NewRecord};
use duramen_protocol::{ErrorCode, Response};
use duramen_storage::indexing::{Indexed, Touched};

use super::harness::{Harness, bytes_of, fetch_request, produce_request};
use crate::checked_batch::CheckedBatch;
use crate::event::Event;
use crate::guard::{Guard, Last, Position};
use crate::native::{Answer, Append, Delete, Log, Op, Problem, Queue, SetFence, Target};

fn node() -> Harness {
    let mut it = Harness::new(&[]);
    it.create("mail", &[("queue.enable", "true")]);
    it
}

fn queue(name: &'static str) -> Target {
    Target::Queue(Queue { topic: "mail".to_owned(), name: Bytes::from_static(name.as_bytes()) })
}

fn batch(name: &str) -> Bytes {
    let mut builder = BatchBuilder::new();
    let (key, value) = (Some(name.as_bytes()), Some(&b"v"[..]));
    let timestamp = 1_700_000_000_000;
    builder.push(&NewRecord { timestamp, key, value, headers: &[] }).expect("a record");
    builder.build().expect("a batch")
}

fn enqueue(it: &mut Harness, name: &'static str) -> Position {
    let batch = CheckedBatch::of(batch(name), key_number(name.as_bytes())).expect("a batch");
    let append = Append {
        target: queue(name),
        batch,
        ids: Vec::new(),
        is_patient: false,
        timeout_ms: 5_000,
    };
    let number = it.operate(Op::Append(append));
    match it.answer(number) {
        Some(Ok(Answer::Appended { last, .. })) => last,
        other => panic!("{other:?}"),
    }
}

fn deletion(name: &'static str, positions: &[Position]) -> Delete {
    Delete { target: queue(name), positions: positions.to_vec(), fence: None, timeout_ms: 5_000 }
}

/// Deletes, and returns the offset of the entry and the number of absent elements.
fn delete(
    it: &mut Harness,
    name: &'static str,
    positions: &[Position],
) -> Result<(Option<i64>, usize), Problem> {
    let number = it.operate(Op::Delete(deletion(name, positions)));
    match it.answer(number).expect("answered at once") {
        Ok(Answer::Edited { at, absent }) => Ok((at.map(|it| it.offset), absent)),
        Ok(other) => panic!("{other:?}"),
        Err(problem) => Err(problem),
    }
}

#[test]
fn only_elements_of_the_queue_that_are_there_are_deleted() {
    let mut it = node();
    let (first, other) = (enqueue(&mut it, "alice"), enqueue(&mut it, "bob"));
    let second = enqueue(&mut it, "alice");
    assert_eq!(delete(&mut it, "alice", &[second, other, second]), Ok((Some(3), 1)));
    assert_eq!(delete(&mut it, "alice", &[second]), Ok((None, 1)), "it is gone already");
    assert_eq!(delete(&mut it, "carol", &[first]), Ok((None, 1)), "it is another queue's");
    assert_eq!(delete(&mut it, "alice", &[second, first]), Ok((Some(4), 1)));
    assert_eq!(delete(&mut it, "bob", &[other]), Ok((Some(5), 0)));
}

#[test]
fn a_deletion_is_answered_once_the_index_has_it() {
    let mut it = node();
    let first = enqueue(&mut it, "alice");
    it.is_indexing = false;
    let number = it.operate(Op::Delete(deletion("alice", &[first])));
    assert!(it.answer(number).is_none(), "readers still see the element");
    // A change of the same queue waits for it.
    let again = it.operate(Op::Delete(deletion("alice", &[first])));
    it.run();
    assert!(it.answer(again).is_none());
    it.carry_out_orders();
    it.run();
    assert!(matches!(it.answer(number), Some(Ok(Answer::Edited { at: Some(_), absent: 0 }))));
    assert!(matches!(it.answer(again), Some(Ok(Answer::Edited { at: None, absent: 1 }))));
    // It is committed, and the wait has an end.
    it.is_indexing = true;
    let second = enqueue(&mut it, "alice");
    it.is_indexing = false;
    let late = it.operate(Op::Delete(deletion("alice", &[second])));
    it.pass_ms(5_001);
    assert_eq!(it.answer(late), Some(Err(Problem::OutcomeUnknown)));
    assert!(!it.node.queues.holds_any(), "nothing waits for nobody");
}

#[test]
fn a_deletion_is_looked_at_again_after_another_change_of_its_queue() {
    let mut it = node();
    let first = enqueue(&mut it, "alice");
    it.is_prompt = false;
    let slow = it.operate(Op::Delete(deletion("alice", &[first])));
    it.run();
    let looks = std::mem::take(&mut it.looks);
    assert_eq!(looks.len(), 1);
    it.is_prompt = true;
    assert_eq!(delete(&mut it, "alice", &[first]), Ok((Some(1), 0)));
    it.looks = looks;
    it.run();
    assert!(matches!(it.answer(slow), Some(Ok(Answer::Edited { at: None, absent: 1 }))));
}

#[test]
fn a_deletion_needs_a_right_position_and_the_fence_that_it_names() {
    let mut it = node();
    let first = enqueue(&mut it, "alice");
    let of_later = Position { offset: 7, ..first };
    assert_eq!(delete(&mut it, "alice", &[of_later]), Err(Problem::PositionDiverged(1)));
    let of_another = Position { term: first.term + 1, ..first };
    assert_eq!(delete(&mut it, "alice", &[of_another]), Err(Problem::PositionDiverged(0)));
    let target = Target::Log(Log { topic: "mail".to_owned(), partition: 0 });
    let token = Bytes::from_static(b"owner");
    it.operate(Op::Fence(SetFence { target, token, if_token: None, timeout_ms: 5_000 }));
    for (fence, is_right) in [("other", false), ("owner", true)] {
        let fence = Some(Bytes::from_static(fence.as_bytes()));
        let number = it.operate(Op::Delete(Delete { fence, ..deletion("alice", &[first]) }));
        let answer = it.answer(number).expect("answered at once");
        assert_eq!(answer.is_ok(), is_right, "{answer:?}");
        assert!(is_right || answer == Err(Problem::Fenced));
    }
}

#[test]
fn a_guard_names_the_last_element_whether_it_is_deleted_or_not() {
    let mut it = node();
    let first = enqueue(&mut it, "alice");
    assert_eq!(delete(&mut it, "alice", &[first]), Ok((Some(1), 0)));
    for (last, is_right) in [(Last::Nothing, false), (Last::At(first), true)] {
        let batch = CheckedBatch::of(batch("alice"), key_number(b"alice"));
        let mut batch = batch.expect("a batch");
        let name = Some(Bytes::from_static(b"alice"));
        batch.guard = Guard { last: Some(last), fence: None, queue: name };
        let (target, ids) = (queue("alice"), Vec::new());
        let append = Append { target, batch, ids, is_patient: false, timeout_ms: 5_000 };
        let number = it.operate(Op::Append(append));
        let answer = it.answer(number).expect("answered at once");
        assert_eq!(answer.is_ok(), is_right, "{answer:?}");
    }
}

#[test]
fn consumers_of_a_queue_topic_see_what_is_indexed() {
    let mut it = node();
    enqueue(&mut it, "alice");
    it.is_indexing = false;
    let id = it.send(produce_request("mail", batch("bob"), -1), 9);
    let produced = it.produced(id).expect("an append waits for no index");
    assert_eq!(produced.error_code, 0);
    let data = it.fetch("mail", 0);
    let seen = bytes_of(&data);
    assert_eq!((seen.len(), data.high_watermark), (batch("alice").len(), 2));
    let wait = FetchRequest { max_wait_ms: 500, ..fetch_request("mail", 1) };
    let id = it.send(wait, 12);
    it.run();
    assert!(it.response(id).is_none(), "bob's element is not indexed");
    it.carry_out_orders();
    it.run();
    let Some(Response::Fetch(response)) = it.response(id) else { panic!("it is not woken") };
    let data = &response.responses[0].partitions[0];
    assert_eq!(ErrorCode::from_code(data.error_code), Some(ErrorCode::None));
    assert_eq!(bytes_of(data).len(), batch("bob").len());
}

#[test]
fn a_leader_shows_nothing_before_its_index_has_what_was_acknowledged() {
    let mut it = node();
    let first = enqueue(&mut it, "alice");
    assert_eq!(delete(&mut it, "alice", &[first]), Ok((Some(1), 0)));
    enqueue(&mut it, "alice");
    it.is_indexing = false;
    it.restart(&[], 7);
    it.run();
    let replica = it.replica("mail");
    // An index that has the element, and not yet what deletes it.
    let beginning = it.orders.last().expect("an order").beginning;
    for (to, shown) in [(1, 0), (2, 0), (3, 3)] {
        let touched = Touched::All;
        let indexed = Indexed { replica, beginning, to, touched, problem: None };
        it.step(Event::Indexed(indexed));
        let data = it.fetch("mail", 0);
        let batches = batches(bytes_of(&data)).count();
        assert_eq!((batches, data.high_watermark), (shown, 3), "indexed up to {to}");
    }
}
