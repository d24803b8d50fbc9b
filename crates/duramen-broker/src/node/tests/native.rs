//! Operations of the native API on logs.

use bytes::Bytes;
use duramen_protocol::ErrorCode;

use super::harness::{Harness, NATIVE, batch, idempotent, produce_request};
use super::trio::{TICK_MS, Trio};
use crate::access::NATIVE_QUESTIONS;
use crate::checked_batch::CheckedBatch;
use crate::event::Event;
use crate::native::{
    Answer, Append, Delete, DeleteQueue, Guard, Last, Lease, Log, Name, Op, Place, Pointer,
    Position, Problem, Replace, Retrieve, Rewrite, SetFence, Settle, Start, Tail, Target,
    TrimQueue, Truncate, WantQueue, WantTail,
};

fn log() -> Log {
    Log { topic: "t".to_owned(), partition: 0 }
}

fn target() -> Target {
    Target::Log(log())
}

fn tail_op(log: Log) -> Op {
    Op::Tail(WantTail { target: Target::Log(log), is_certain: true })
}

fn append(records: Bytes, guard: Guard) -> Op {
    let batch = CheckedBatch::of(records, 0).expect("a good batch");
    let batch = CheckedBatch { guard, ..batch };
    Op::Append(Append {
        target: target(),
        batch,
        ids: Vec::new(),
        is_patient: false,
        timeout_ms: 5_000,
    })
}

fn after(last: Last) -> Guard {
    Guard { last: Some(last), ..Guard::default() }
}

fn fenced(token: &'static [u8]) -> Guard {
    Guard { fence: Some(Bytes::from_static(token)), ..Guard::default() }
}

fn set_fence(token: &'static [u8], if_token: Option<&'static [u8]>) -> Op {
    let if_token = if_token.map(Bytes::from_static);
    Op::Fence(SetFence {
        target: target(),
        token: Bytes::from_static(token),
        if_token,
        timeout_ms: 5_000,
    })
}

fn pointer(uri: &str) -> Pointer {
    Pointer { uri: uri.to_owned(), ..Pointer::default() }
}

fn truncate(through: Option<Position>, pointer: Option<Pointer>) -> Op {
    Op::Truncate(Truncate { target: target(), through, pointer, fence: None, timeout_ms: 5_000 })
}

fn at(term: i32, entry: i64, offset: i64) -> Position {
    Position { term, entry, offset }
}

/// Carries out an operation that is answered in the same turn.
fn ask(it: &mut Harness, op: Op) -> Result<Answer, Problem> {
    let number = it.operate(op);
    it.answer(number).expect("answered at once")
}

fn appended(it: &mut Harness, records: Bytes, guard: Guard) -> Result<(Position, bool), Problem> {
    ask(it, append(records, guard)).map(|answer| match answer {
        Answer::Appended { last, is_duplicate, .. } => (last, is_duplicate),
        other => panic!("{other:?}"),
    })
}

fn tail_of(answer: Result<Answer, Problem>) -> Result<Tail, Problem> {
    answer.map(|answer| match answer {
        Answer::Tail(tail) => tail,
        other => panic!("{other:?}"),
    })
}

fn tail(it: &mut Harness) -> Tail {
    tail_of(ask(it, tail_op(log()))).expect("it leads")
}

fn node() -> Harness {
    let mut it = Harness::new(&[]);
    it.create("t", &[]);
    it
}

#[test]
fn an_append_tells_where_its_records_are() {
    let mut it = node();
    let empty = tail(&mut it);
    assert_eq!((empty.start, empty.stable, empty.end, empty.last), (0, 0, 0, None));
    let answer = ask(&mut it, append(batch(&["a", "b", "c"]), Guard::default()));
    let Ok(Answer::Appended { first, last, is_duplicate: false }) = answer else {
        panic!("{answer:?}")
    };
    assert_eq!((first.entry, first.offset), (0, 0));
    assert_eq!((last.term, last.entry, last.offset), (first.term, 0, 2));
    // A Kafka client writes to the same log.
    assert_eq!(it.produce("t", batch(&["d"])).base_offset, 3);
    let (last, _) = appended(&mut it, batch(&["e", "f"]), Guard::default()).expect("taken");
    assert_eq!((last.entry, last.offset), (4, 5));
    let full = tail(&mut it);
    assert_eq!((full.start, full.stable, full.end, full.last), (0, 6, 6, Some(last)));
}

#[test]
fn an_append_that_expects_another_end_is_refused_with_the_end_there_is() {
    let mut it = node();
    let (first, _) = appended(&mut it, batch(&["a"]), after(Last::Nothing)).expect("empty");
    let refused = appended(&mut it, batch(&["b"]), after(Last::Nothing));
    assert_eq!(refused, Err(Problem::LastMismatch(Some(first))));
    let (second, _) = appended(&mut it, batch(&["b", "c"]), after(Last::At(first))).expect("next");
    for wrong in [first, at(second.term + 1, 1, 2), at(second.term, 1, 3), at(0, 0, i64::MAX)] {
        let refused = appended(&mut it, batch(&["d"]), after(Last::At(wrong)));
        assert_eq!(refused, Err(Problem::LastMismatch(Some(second))), "{wrong:?}");
    }
    assert_eq!(tail(&mut it).end, 3);
}

#[test]
fn a_guard_sees_appends_in_flight_and_its_refusal_waits_for_them() {
    let mut it = node();
    it.is_prompt = false;
    let one = it.operate(append(batch(&["a"]), after(Last::Nothing)));
    let two = it.operate(append(batch(&["b"]), after(Last::Nothing)));
    assert_eq!(it.answer(one).or(it.answer(two)), None, "nothing is durable yet");
    it.persist();
    it.run();
    let Some(Ok(Answer::Appended { last, .. })) = it.answer(one) else { panic!("not taken") };
    assert_eq!(it.answer(two), Some(Err(Problem::LastMismatch(Some(last)))));
}

#[test]
fn a_writer_with_an_old_token_is_fenced() {
    let mut it = node();
    assert_eq!(appended(&mut it, batch(&["a"]), fenced(b"one")), Err(Problem::Fenced));
    let told = tail_of(ask(&mut it, set_fence(b"one", None))).expect("set");
    assert_eq!(told.fence, Bytes::from_static(b"one"));
    assert!(appended(&mut it, batch(&["a"]), fenced(b"one")).is_ok());
    assert_eq!(ask(&mut it, set_fence(b"two", Some(b""))), Err(Problem::Fenced));
    assert!(ask(&mut it, set_fence(b"two", Some(b"one"))).is_ok());
    assert!(ask(&mut it, set_fence(b"two", Some(b"one"))).is_ok(), "the same again");
    assert_eq!(appended(&mut it, batch(&["b"]), fenced(b"one")), Err(Problem::Fenced));
    assert!(appended(&mut it, batch(&["b"]), fenced(b"two")).is_ok());
    assert!(appended(&mut it, batch(&["c"]), Guard::default()).is_ok(), "tokens are voluntary");
    it.restart(&[], 5);
    assert_eq!(appended(&mut it, batch(&["b"]), fenced(b"one")), Err(Problem::Fenced));
    assert_eq!(tail(&mut it).fence, Bytes::from_static(b"two"));
}

#[test]
fn a_fence_counts_from_its_place_in_the_log() {
    let mut it = node();
    it.is_prompt = false;
    let fence = it.operate(set_fence(b"new", None));
    let old = it.operate(append(batch(&["a"]), fenced(b"")));
    let new = it.operate(append(batch(&["b"]), fenced(b"new")));
    it.persist();
    it.run();
    it.persist();
    it.run();
    assert!(tail_of(it.answer(fence).expect("committed")).is_ok());
    assert_eq!(it.answer(old), Some(Err(Problem::Fenced)));
    assert!(matches!(it.answer(new), Some(Ok(Answer::Appended { .. }))));
}

#[test]
fn a_truncation_keeps_its_pointer_over_restarts() {
    let mut it = node();
    for value in ["a", "b", "c", "d"] {
        assert!(appended(&mut it, batch(&[value]), Guard::default()).is_ok());
    }
    let last = tail(&mut it).last.expect("appended");
    let through = at(last.term, 1, 1);
    let told = tail_of(ask(&mut it, truncate(Some(through), Some(pointer("s3://2")))));
    let told = told.expect("truncated");
    assert_eq!((told.start, told.end, told.pointer), (2, 4, Some(pointer("s3://2"))));
    // Retention and DeleteRecords keep the pointer that is there; an earlier truncation changes nothing.
    let told = tail_of(ask(&mut it, truncate(Some(at(last.term, 2, 2)), None))).expect("gone");
    assert_eq!((told.start, told.pointer), (3, Some(pointer("s3://2"))));
    let told =
        tail_of(ask(&mut it, truncate(Some(through), Some(pointer("s3://1"))))).expect("gone");
    assert_eq!((told.start, told.pointer), (3, Some(pointer("s3://2"))));
    it.restart(&[], 7);
    let told = tail(&mut it);
    assert_eq!((told.start, told.end, told.pointer), (3, 4, Some(pointer("s3://2"))));
    // Storage asks for the view's image, and the next start reads it.
    let replica = it.replica("t");
    it.storage(duramen_storage::op::Done::WantImage { replica });
    it.restart(&[], 8);
    assert_eq!(tail(&mut it).pointer, Some(pointer("s3://2")));
    let all = tail_of(ask(&mut it, truncate(None, Some(pointer("s3://all"))))).expect("all");
    assert_eq!((all.start, all.end, all.last), (4, 4, Some(last)));
}

#[test]
fn a_truncation_is_fenced_and_names_records_of_this_history() {
    let mut it = node();
    let (last, _) = appended(&mut it, batch(&["a"]), Guard::default()).expect("taken");
    assert!(ask(&mut it, set_fence(b"new", None)).is_ok());
    let fence = Some(Bytes::from_static(b"old"));
    let fenced =
        Truncate { target: target(), through: None, pointer: None, fence, timeout_ms: 5_000 };
    assert_eq!(ask(&mut it, Op::Truncate(fenced)), Err(Problem::Fenced));
    for (position, from) in [(at(last.term + 3, 0, 0), 0), (at(last.term, 1, 1), 1)] {
        let refused = ask(&mut it, truncate(Some(position), None));
        assert_eq!(refused, Err(Problem::PositionDiverged(from)), "{position:?}");
    }
    assert_eq!(tail(&mut it).start, 0);
}

#[test]
fn a_session_appends_once_whatever_its_guard_says_by_then() {
    let mut it = node();
    let (first, _) =
        appended(&mut it, idempotent(7, 0, 0, &["a", "b"]), after(Last::Nothing)).expect("taken");
    let again = appended(&mut it, idempotent(7, 0, 0, &["a", "b"]), after(Last::Nothing));
    assert_eq!(again, Ok((first, true)));
    let gap = appended(&mut it, idempotent(7, 0, 5, &["f"]), Guard::default());
    assert_eq!(gap, Err(Problem::SequenceGap(2)));
    let late = appended(&mut it, idempotent(7, 1, 1, &["f"]), Guard::default());
    assert_eq!(late, Err(Problem::SequenceGap(0)), "a new epoch begins anew");
    assert!(appended(&mut it, idempotent(7, 1, 0, &["c"]), Guard::default()).is_ok());
    let old = appended(&mut it, idempotent(7, 0, 2, &["c"]), Guard::default());
    assert_eq!(old, Err(Problem::SessionFenced));
}

#[test]
fn what_no_log_takes_is_refused_with_its_reason() {
    let mut it = node();
    let elsewhere = Log { topic: "none".to_owned(), partition: 0 };
    assert_eq!(ask(&mut it, tail_op(elsewhere)), Err(Problem::UnknownTopic));
    let beyond = Log { partition: 1, ..log() };
    assert_eq!(ask(&mut it, tail_op(beyond)), Err(Problem::UnknownTopic));
    it.create("small", &[("max.message.bytes", "100")]);
    let small = Target::Log(Log { topic: "small".to_owned(), partition: 0 });
    let large = CheckedBatch::of(batch(&["x".repeat(200).as_str()]), 0).expect("a batch");
    let op =
        Append { target: small, batch: large, ids: Vec::new(), is_patient: false, timeout_ms: 0 };
    assert_eq!(ask(&mut it, Op::Append(op)), Err(Problem::TooLarge(100)));
    it.create("compacted", &[("cleanup.policy", "compact")]);
    let compacted = Target::Log(Log { topic: "compacted".to_owned(), partition: 0 });
    let keyless = CheckedBatch::of(batch(&["a"]), 0).expect("a batch");
    let op = Append {
        target: compacted.clone(),
        batch: keyless,
        ids: Vec::new(),
        is_patient: false,
        timeout_ms: 0,
    };
    assert!(matches!(ask(&mut it, Op::Append(op)), Err(Problem::BadRequest("records", _))));
    let whole =
        Truncate { target: compacted, through: None, pointer: None, fence: None, timeout_ms: 0 };
    assert!(matches!(ask(&mut it, Op::Truncate(whole)), Err(Problem::BadRequest("topic", _))));
    it.storage(duramen_storage::op::Done::DiskFull(Some(super::harness::SHORTAGE)));
    let refused = appended(&mut it, batch(&["a"]), Guard::default());
    assert!(matches!(refused, Err(Problem::DiskFull(_))), "{refused:?}");
}

/// Makes an operation of each name.
fn an_op(name: Name, target: Target) -> Op {
    match name {
        Name::Append => {
            let batch = CheckedBatch::of(batch(&["a"]), 0).expect("a batch");
            Op::Append(Append { target, batch, ids: Vec::new(), is_patient: false, timeout_ms: 0 })
        }
        Name::Tail => Op::Tail(WantTail { target, is_certain: true }),
        Name::Truncate => Op::Truncate(Truncate {
            target,
            through: None,
            pointer: None,
            fence: None,
            timeout_ms: 0,
        }),
        Name::Fence => {
            let (token, if_token) = (Bytes::new(), None);
            Op::Fence(SetFence { target, token, if_token, timeout_ms: 0 })
        }
        Name::Retrieve => Op::Retrieve(Retrieve {
            target,
            start: Start::Begin,
            wait_ms: 0,
            is_certain: true,
            skips_trimmed: false,
        }),
        Name::GetQueue => Op::GetQueue(WantQueue { target, is_certain: true }),
        Name::Delete => {
            Op::Delete(Delete { target, positions: Vec::new(), fence: None, timeout_ms: 0 })
        }
        Name::Replace => Op::Replace(Replace {
            target,
            position: Position { term: 0, entry: 0, offset: 0 },
            batch: CheckedBatch::of(batch(&["v"]), 0).expect("a batch"),
            id: None,
            if_version: None,
            fence: None,
            timeout_ms: 0,
        }),
        Name::Rewrite => Op::Rewrite(Rewrite {
            target,
            after: None,
            batch: None,
            ids: Vec::new(),
            fence: None,
            reason: String::new(),
            timeout_ms: 0,
        }),
        Name::DeleteQueue => Op::DeleteQueue(DeleteQueue { target, fence: None, timeout_ms: 0 }),
        Name::TrimQueue => Op::TrimQueue(TrimQueue {
            target,
            through: Position { term: 0, entry: 0, offset: 0 },
            pointer: None,
            fence: None,
            timeout_ms: 0,
        }),
        Name::FenceQueue => {
            let (token, if_token) = (Bytes::new(), None);
            Op::FenceQueue(SetFence { target, token, if_token, timeout_ms: 0 })
        }
        Name::ListQueues => Op::ListQueues(WantTail { target, is_certain: true }),
        Name::Lease => {
            let (group, worker) = ("g".to_owned(), String::new());
            Op::Lease(Lease { target, group, worker, records: 1, bytes: 1, wait_ms: 0 })
        }
        Name::Settle => {
            let (group, worker) = ("g".to_owned(), String::new());
            Op::Settle(Settle { target, group, worker, settlements: Vec::new() })
        }
    }
}

#[test]
fn a_stranger_may_do_nothing() {
    for row in NATIVE_QUESTIONS {
        let mut it = node();
        it.node.core.access.deny(row.operation, row.kind);
        for topic in ["t", "none"] {
            let log = Log { topic: topic.to_owned(), partition: 0 };
            let op = an_op(row.op, Target::Log(log));
            assert_eq!(ask(&mut it, op), Err(Problem::NotAuthorized), "{row:?} {topic}");
        }
    }
    let mut asked: Vec<Name> = NATIVE_QUESTIONS.iter().map(|row| row.op).collect();
    asked.dedup();
    assert_eq!(asked, Name::ALL, "each operation asks");
}

#[test]
fn appends_wait_for_room_in_their_order_and_not_for_ever() {
    let mut it = node();
    it.is_prompt = false;
    let large = batch(&["x".repeat(900_000).as_str()]);
    let first = it.operate(append(large.clone(), Guard::default()));
    let second = it.operate(append(large.clone(), Guard::default()));
    let kafka = it.send(produce_request("t", batch(&["k"]), -1), 9);
    let third = it.operate(append(large, Guard::default()));
    it.persist();
    it.run();
    it.persist();
    it.run();
    let offset = |answer| match answer {
        Some(Ok(Answer::Appended { first, .. })) => first.offset,
        other => panic!("{other:?}"),
    };
    assert_eq!((offset(it.answer(first)), offset(it.answer(second))), (0, 1));
    assert_eq!(it.produced(kafka).expect("taken").base_offset, 2);
    let fourth = it.operate(append(batch(&["x".repeat(900_000).as_str()]), Guard::default()));
    it.pass_ms(5_100);
    assert_eq!(it.answer(third), Some(Err(Problem::OutcomeUnknown)), "it is on its way");
    assert!(matches!(it.answer(fourth), Some(Err(Problem::Busy(_)))));
}

#[test]
fn a_client_that_goes_leaves_nothing_behind() {
    let mut it = node();
    it.is_prompt = false;
    let gone = it.operate(append(batch(&["a"]), Guard::default()));
    it.step(Event::Disconnected(NATIVE));
    it.persist();
    it.run();
    assert_eq!(it.answer(gone), None);
    it.is_prompt = true;
    assert_eq!(tail(&mut it).end, 1, "an append that was taken is not taken back");
}

/// Carries out an operation at a node of three, and waits for the answer.
pub(super) fn ask_of(trio: &mut Trio, at: usize, op: Op) -> Result<Answer, Problem> {
    let number = trio.nodes[at].operate(op);
    for _ in 0..400 {
        if let Some(answer) = trio.nodes[at].answer(number) {
            return answer;
        }
        trio.pass_ms(TICK_MS);
    }
    panic!("not answered within twenty seconds")
}

#[test]
fn a_node_that_does_not_lead_names_the_one_that_does() {
    let mut trio = Trio::new(&[]);
    trio.create("t", 1);
    let leader = trio.leader("t", 0).expect("led");
    let other = (leader + 1) % 3;
    let node = i32::try_from(leader).expect("small");
    let elsewhere = Problem::Elsewhere(node, Some(Place(node)));
    let ops = [
        append(batch(&["a"]), Guard::default()),
        tail_op(log()),
        truncate(None, None),
        set_fence(b"one", None),
    ];
    for op in ops {
        assert_eq!(ask_of(&mut trio, other, op), Err(elsewhere.clone()));
    }
    assert!(ask_of(&mut trio, leader, append(batch(&["a"]), Guard::default())).is_ok());
    let told = tail_of(ask_of(&mut trio, leader, tail_op(log()))).expect("it leads");
    assert_eq!((told.start, told.end), (0, 1));
    // Any replica tells what it knows.
    trio.pass_ms(1_000);
    let vague = Op::Tail(WantTail { target: target(), is_certain: false });
    let told = tail_of(ask_of(&mut trio, other, vague)).expect("it follows");
    assert_eq!((told.start, told.end), (0, 1));
}

#[test]
fn a_leader_that_was_cut_off_refuses_nothing_and_tells_no_end() {
    let mut trio = Trio::new(&[]);
    trio.create("t", 1);
    let old = trio.leader("t", 0).expect("led");
    assert!(ask_of(&mut trio, old, append(batch(&["a"]), Guard::default())).is_ok());
    assert!(ask_of(&mut trio, old, set_fence(b"one", None)).is_ok());
    trio.cut.insert(old);
    let node = &mut trio.nodes[old];
    let wrong = [
        append(batch(&["b"]), after(Last::Nothing)),
        append(batch(&["b"]), fenced(b"two")),
        set_fence(b"two", Some(b"zero")),
        tail_op(log()),
    ];
    let numbers: Vec<u64> = wrong.into_iter().map(|op| node.operate(op)).collect();
    for number in &numbers {
        assert_eq!(trio.nodes[old].answer(*number), None, "nobody confirms that it leads");
    }
    trio.pass_ms(20_000);
    let next = trio.leader("t", 0).expect("another leads");
    assert_ne!(next, old);
    for number in &numbers {
        let answer = trio.nodes[old].answer(*number).expect("its time is over");
        let is_vague = matches!(
            answer,
            Err(Problem::NoLeader | Problem::OutcomeUnknown | Problem::Elsewhere(..))
        );
        assert!(is_vague, "{answer:?}");
    }
    // What the old one had is what the next one judges by.
    let refused = ask_of(&mut trio, next, append(batch(&["b"]), after(Last::Nothing)));
    assert!(matches!(refused, Err(Problem::LastMismatch(Some(it))) if it.offset == 0));
    let refused = ask_of(&mut trio, next, append(batch(&["b"]), fenced(b"two")));
    assert_eq!(refused, Err(Problem::Fenced));
    assert!(ask_of(&mut trio, next, append(batch(&["b"]), fenced(b"one"))).is_ok());
}

#[test]
fn the_next_leader_knows_fence_and_pointer() {
    let mut trio = Trio::new(&[]);
    trio.create("t", 1);
    let old = trio.leader("t", 0).expect("led");
    for value in ["a", "b"] {
        assert!(ask_of(&mut trio, old, append(batch(&[value]), Guard::default())).is_ok());
    }
    let told = tail_of(ask_of(&mut trio, old, tail_op(log()))).expect("it leads");
    let last = told.last.expect("appended");
    let through = Position { entry: 0, offset: 0, ..last };
    assert!(ask_of(&mut trio, old, truncate(Some(through), Some(pointer("u")))).is_ok());
    assert!(ask_of(&mut trio, old, set_fence(b"one", None)).is_ok());
    trio.pass_ms(1_000);
    let (store, id) = (std::mem::take(&mut trio.nodes[old].store), old);
    trio.restart(id, store, &[]);
    trio.pass_ms(20_000);
    let next = trio.leader("t", 0).expect("led");
    let told = tail_of(ask_of(&mut trio, next, tail_op(log()))).expect("it leads");
    assert_eq!((told.start, told.end, told.last), (1, 2, Some(last)));
    assert_eq!((told.fence, told.pointer), (Bytes::from_static(b"one"), Some(pointer("u"))));
}

#[test]
fn kafka_clients_are_not_bound_by_a_fence_they_do_not_name() {
    let mut it = node();
    assert!(ask(&mut it, set_fence(b"one", None)).is_ok());
    let taken = it.produce("t", batch(&["a"]));
    assert_eq!(taken.error_code, ErrorCode::None.code());
}
