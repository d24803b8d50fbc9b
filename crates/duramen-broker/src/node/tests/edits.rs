//! Edits of elements of queues, and the ends of a queue topic that readers see.

use bytes::Bytes;
use duramen_protocol::batch::{BatchView, batches};
use duramen_protocol::compression::Codec;
use duramen_protocol::messages::delete_records::{DeleteRecordsPartition, DeleteRecordsTopic};
use duramen_protocol::messages::{DeleteRecordsRequest, FetchRequest};
use duramen_protocol::partitioner::key_number;
use duramen_protocol::records::{BatchBuilder, ID_HEADER, NewRecord, Records};
use duramen_protocol::{ErrorCode, Response};
use duramen_storage::indexing::{Indexed, Touched};
use duramen_storage::keys::{FACT_HEADER, Said};

use super::harness::{Harness, WALL_MS, bytes_of, fetch_request, produce_request};
use crate::checked_batch::CheckedBatch;
use crate::event::Event;
use crate::guard::{Guard, Last, Position};
use crate::native::{
    Answer, Append, Delete, DeleteQueue, Edited, Log, Op, Problem, Queue, Replace, Rewrite,
    SetFence, Target, TrimQueue, Truncate,
};
use crate::partition::pointers::encode_pointer;

fn node() -> Harness {
    let mut it = Harness::new(&[]);
    it.create("mail", &[("queue.enable", "true")]);
    it
}

fn queue(name: &'static str) -> Target {
    Target::Queue(Queue { topic: "mail".to_owned(), name: Bytes::from_static(name.as_bytes()) })
}

fn batch(name: &str) -> Bytes {
    batch_with(name, &[None])
}

/// Makes a batch of records, each with an id or none.
fn batch_with(name: &str, ids: &[Option<&str>]) -> Bytes {
    batch_of_values(name, ids, b"v")
}

fn batch_of_values(name: &str, ids: &[Option<&str>], value: &[u8]) -> Bytes {
    let mut builder = BatchBuilder::new();
    let (key, value) = (Some(name.as_bytes()), Some(value));
    let timestamp = 1_700_000_000_000;
    for id in ids {
        let id: Vec<_> = id.iter().map(|id| (ID_HEADER, Some(id.as_bytes()))).collect();
        builder.push(&NewRecord { timestamp, key, value, headers: &id }).expect("a record");
    }
    builder.build().expect("a batch")
}

fn checked(name: &str, ids: &[Option<&str>]) -> CheckedBatch {
    CheckedBatch::of(batch_with(name, ids), key_number(name.as_bytes())).expect("a batch")
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
    edited(it, number)
}

/// Returns the offset of an edit's entry, and the number of absent elements.
fn edited(it: &mut Harness, number: u64) -> Result<(Option<i64>, usize), Problem> {
    match it.answer(number).expect("answered") {
        Ok(Answer::Edited(it)) => Ok((it.first.map(|it| it.offset), it.absent)),
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
    assert_eq!(edited(&mut it, number), Ok((Some(1), 0)));
    assert_eq!(edited(&mut it, again), Ok((None, 1)));
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
    assert_eq!(edited(&mut it, slow), Ok((None, 1)));
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

fn replacement(name: &'static str, position: Position) -> Replace {
    Replace {
        target: queue(name),
        position,
        batch: checked(name, &[None]),
        id: None,
        if_version: None,
        fence: None,
        timeout_ms: 5_000,
    }
}

fn rewrite(name: &'static str, after: Option<Position>, ids: &[&'static str]) -> Rewrite {
    let some: Vec<_> = ids.iter().map(|id| Some(*id)).collect();
    Rewrite {
        target: queue(name),
        after,
        batch: (!ids.is_empty()).then(|| checked(name, &some)),
        ids: ids.iter().map(|id| Bytes::from_static(id.as_bytes())).collect(),
        fence: None,
        reason: "a test".to_owned(),
        timeout_ms: 5_000,
    }
}

fn edit(it: &mut Harness, op: Op) -> Result<Edited, Problem> {
    let number = it.operate(op);
    match it.answer(number).expect("answered at once") {
        Ok(Answer::Edited(edited)) => Ok(edited),
        Ok(other) => panic!("{other:?}"),
        Err(problem) => Err(problem),
    }
}

/// Returns position and content of each element that is shown.
fn shown(it: &Harness, name: &str) -> Vec<(i64, i64)> {
    let all = it.store.replicas[&it.replica("mail")].shown(name.as_bytes());
    all.iter().map(|it| (it.position.offset, it.content)).collect()
}

#[test]
fn a_replaced_element_keeps_its_place_and_may_be_edited_on() {
    let mut it = node();
    let (first, other) = (enqueue(&mut it, "alice"), enqueue(&mut it, "alice"));
    let edited = edit(&mut it, Op::Replace(replacement("alice", first))).expect("there is one");
    assert_eq!((edited.first.map(|it| it.offset), edited.withdrawn), (Some(2), 1));
    assert_eq!(shown(&it, "alice"), [(0, 2), (1, 1)]);
    edit(&mut it, Op::Replace(replacement("alice", first))).expect("there is one");
    assert_eq!(shown(&it, "alice"), [(0, 3), (1, 1)]);
    // The record with the content is no element.
    let of_content = Position { offset: 3, entry: 3, ..first };
    let wrong = edit(&mut it, Op::Replace(replacement("alice", of_content)));
    assert_eq!(wrong, Err(Problem::UnknownElement));
    assert_eq!(delete(&mut it, "alice", &[of_content]), Ok((None, 1)));
    assert_eq!(delete(&mut it, "alice", &[first]), Ok((Some(4), 0)));
    assert_eq!(shown(&it, "alice"), [(1, 1)]);
    let gone = edit(&mut it, Op::Replace(replacement("alice", first)));
    assert_eq!(gone, Err(Problem::UnknownElement));
    assert!(edit(&mut it, Op::Replace(replacement("bob", other))).is_err(), "it is alice's");
}

#[test]
fn a_replacement_is_judged_by_version_and_id() {
    let mut it = node();
    let first = enqueue(&mut it, "alice");
    let of = |version: i64, id: &'static str| Replace {
        if_version: Some(version),
        id: Some(Bytes::from_static(id.as_bytes())),
        batch: checked("alice", &[Some(id)]),
        ..replacement("alice", first)
    };
    assert_eq!(edit(&mut it, Op::Replace(of(7, "a"))), Err(Problem::VersionMismatch(0)));
    let edited = edit(&mut it, Op::Replace(of(0, "a"))).expect("its version is 0");
    let again = edit(&mut it, Op::Replace(of(0, "a"))).expect("it is there already");
    assert!(again.is_duplicate && !edited.is_duplicate);
    assert_eq!((again.first, again.last), (edited.first, edited.last));
    assert_eq!(edit(&mut it, Op::Replace(of(0, "b"))), Err(Problem::VersionMismatch(1)));
    assert_eq!(shown(&it, "alice"), [(0, 1)]);
    let fence = Some(Bytes::from_static(b"nobody"));
    let fenced = Op::Replace(Replace { fence, ..of(1, "b") });
    assert_eq!(edit(&mut it, fenced), Err(Problem::Fenced));
}

#[test]
fn a_rewrite_withdraws_by_position_and_spares_what_is_replaced_before() {
    let mut it = node();
    let (first, other) = (enqueue(&mut it, "alice"), enqueue(&mut it, "bob"));
    let second = enqueue(&mut it, "alice");
    edit(&mut it, Op::Replace(replacement("alice", first))).expect("there is one");
    edit(&mut it, Op::Replace(replacement("alice", second))).expect("there is one");
    let edited = edit(&mut it, Op::Rewrite(rewrite("alice", Some(first), &["a", "b"])));
    let edited = edited.expect("it has the position");
    let ends = (edited.first.map(|it| it.offset), edited.last.map(|it| it.offset));
    assert_eq!((ends, edited.withdrawn), ((Some(5), Some(6)), 1));
    assert_eq!(shown(&it, "alice"), [(0, 3), (5, 5), (6, 6)]);
    let again = edit(&mut it, Op::Rewrite(rewrite("alice", Some(first), &["a", "b"])));
    let again = again.expect("it is there already");
    assert!(again.is_duplicate);
    assert_eq!((again.first, again.last), (edited.first, edited.last));
    assert_eq!(shown(&it, "alice"), [(0, 3), (5, 5), (6, 6)]);
    let cut = edit(&mut it, Op::Rewrite(rewrite("alice", Some(first), &[]))).expect("a cut");
    assert_eq!((cut.first.map(|it| it.offset), cut.withdrawn), (Some(7), 2));
    let nothing = edit(&mut it, Op::Rewrite(rewrite("alice", Some(first), &[])));
    assert_eq!(nothing, Ok(Edited::default()), "there is nothing behind it");
    let (target, timeout_ms) = (queue("alice"), 5_000);
    edit(&mut it, Op::DeleteQueue(DeleteQueue { target, fence: None, timeout_ms })).expect("all");
    assert_eq!((shown(&it, "alice"), shown(&it, "bob")), (vec![], vec![(1, 1)]));
    let fence = Some(Bytes::from_static(b"nobody"));
    let fenced = Rewrite { fence, ..rewrite("bob", Some(other), &["c"]) };
    assert_eq!(edit(&mut it, Op::Rewrite(fenced)), Err(Problem::Fenced));
}

#[test]
fn another_content_with_the_same_id_is_no_repeat() {
    let mut it = node();
    let other = |ids: &[Option<&str>]| {
        let batch = batch_of_values("alice", ids, b"other");
        CheckedBatch::of(batch, key_number(b"alice")).expect("a batch")
    };
    let first = edit(&mut it, Op::Rewrite(rewrite("alice", None, &["a"]))).expect("appended");
    let first = first.first.expect("a position");
    let again = edit(&mut it, Op::Rewrite(rewrite("alice", None, &["a"]))).expect("appended");
    assert!(again.is_duplicate);
    let batch = Some(other(&[Some("a")]));
    let rewritten = Op::Rewrite(Rewrite { batch, ..rewrite("alice", None, &["a"]) });
    assert!(!edit(&mut it, rewritten).expect("another content").is_duplicate);
    assert_eq!(shown(&it, "alice"), [(1, 1)]);
    let position = Position { entry: 1, offset: 1, ..first };
    let id = Some(Bytes::from_static(b"a"));
    let same =
        Replace { id: id.clone(), batch: other(&[Some("a")]), ..replacement("alice", position) };
    assert!(edit(&mut it, Op::Replace(same)).expect("it is that").is_duplicate);
    let batch = checked("alice", &[Some("a")]);
    let back = Op::Replace(Replace { batch, id, ..replacement("alice", position) });
    assert!(!edit(&mut it, back).expect("another content").is_duplicate);
    assert_eq!(shown(&it, "alice"), [(1, 2)]);
}

#[test]
fn records_that_state_an_edit_say_so_to_consumers() {
    let mut it = node();
    let first = enqueue(&mut it, "alice");
    edit(&mut it, Op::Replace(replacement("alice", first))).expect("there is one");
    edit(&mut it, Op::Rewrite(rewrite("alice", None, &["a", "b"]))).expect("all goes");
    let stored = &it.store.replicas[&it.replica("mail")];
    let mut headers = Vec::new();
    for batch in stored.batches(1, 5) {
        let view = BatchView::parse(&batch).expect("a batch");
        let records = Records::of(&view, usize::MAX).expect("records");
        for record in &records {
            for header in record.expect("a record").headers {
                let name = String::from_utf8_lossy(header.key).into_owned();
                let value = String::from_utf8_lossy(header.value.unwrap_or_default()).into_owned();
                headers.push((
                    name,
                    if header.key == FACT_HEADER.as_bytes() { String::new() } else { value },
                ));
            }
        }
    }
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let wanted = [
        pair("duramen-replaces", &first.to_string()),
        pair(FACT_HEADER, ""),
        pair(ID_HEADER, "a"),
        pair("duramen-cuts-after", "none"),
        pair(FACT_HEADER, ""),
        pair(ID_HEADER, "b"),
    ];
    assert_eq!(headers, wanted);
}

fn fence(it: &mut Harness, name: &'static str, token: &'static str) -> Result<Edited, Problem> {
    let token = Bytes::from_static(token.as_bytes());
    let (target, timeout_ms) = (queue(name), 5_000);
    edit(it, Op::FenceQueue(SetFence { target, token, if_token: None, timeout_ms }))
}

fn fence_log(it: &mut Harness, token: &'static str) {
    let target = Target::Log(Log { topic: "mail".to_owned(), partition: 0 });
    let token = Bytes::from_static(token.as_bytes());
    it.operate(Op::Fence(SetFence { target, token, if_token: None, timeout_ms: 5_000 }));
}

/// Enqueues with a token. Returns the offset.
fn enqueue_fenced(
    it: &mut Harness,
    name: &'static str,
    token: &'static str,
) -> Result<i64, Problem> {
    let mut batch = checked(name, &[None]);
    batch.guard = Guard {
        last: None,
        fence: Some(Bytes::from_static(token.as_bytes())),
        queue: Some(Bytes::from_static(name.as_bytes())),
    };
    let (target, ids) = (queue(name), Vec::new());
    let append = Append { target, batch, ids, is_patient: false, timeout_ms: 5_000 };
    let number = it.operate(Op::Append(append));
    match it.answer(number).expect("answered at once") {
        Ok(Answer::Appended { last, .. }) => Ok(last.offset),
        Ok(other) => panic!("{other:?}"),
        Err(problem) => Err(problem),
    }
}

#[test]
fn the_fence_of_a_queue_stands_in_for_that_of_its_log() {
    let mut it = node();
    fence_log(&mut it, "log");
    assert_eq!(enqueue_fenced(&mut it, "alice", "log"), Ok(0));
    assert_eq!(fence(&mut it, "alice", "one").map(|it| it.first.is_some()), Ok(true));
    assert_eq!(fence(&mut it, "alice", "one"), Ok(Edited::default()), "it is that already");
    assert_eq!(enqueue_fenced(&mut it, "alice", "log"), Err(Problem::Fenced));
    assert_eq!(enqueue_fenced(&mut it, "alice", "one"), Ok(2));
    assert_eq!(enqueue_fenced(&mut it, "bob", "one"), Err(Problem::Fenced));
    assert_eq!(enqueue_fenced(&mut it, "bob", "log"), Ok(3));
    let fenced = |token: &'static str| Some(Bytes::from_static(token.as_bytes()));
    let rewritten =
        |token| Op::Rewrite(Rewrite { fence: fenced(token), ..rewrite("alice", None, &["a"]) });
    assert_eq!(edit(&mut it, rewritten("log")), Err(Problem::Fenced));
    assert!(edit(&mut it, rewritten("one")).is_ok());
    // An expected fence is that of the queue alone.
    let set = |token, expected| {
        let (target, token, if_token) =
            (queue("alice"), fenced(token).expect("one"), fenced(expected));
        Op::FenceQueue(SetFence { target, token, if_token, timeout_ms: 5_000 })
    };
    assert_eq!(edit(&mut it, set("two", "log")), Err(Problem::Fenced));
    assert!(edit(&mut it, set("two", "one")).is_ok());
    assert!(edit(&mut it, set("", "two")).is_ok());
    assert!(edit(&mut it, set("three", "")).is_ok());
    assert!(fence(&mut it, "alice", "").is_ok());
    assert!(enqueue_fenced(&mut it, "alice", "log").is_ok(), "it has none of its own");
    // What is deleted has no fence.
    assert!(fence(&mut it, "bob", "four").is_ok());
    let (target, timeout_ms) = (queue("bob"), 5_000);
    let deleted = DeleteQueue { target, fence: fenced("four"), timeout_ms };
    assert!(edit(&mut it, Op::DeleteQueue(deleted)).is_ok());
    assert!(enqueue_fenced(&mut it, "bob", "log").is_ok());
}

#[test]
fn a_fence_is_judged_after_all_that_was_proposed() {
    let mut it = node();
    it.is_prompt = false;
    let token = Bytes::from_static(b"two");
    let (target, timeout_ms) = (queue("alice"), 5_000);
    let set = SetFence { target, token, if_token: None, timeout_ms };
    let set = it.operate(Op::FenceQueue(set));
    it.is_prompt = true;
    // Its look comes before the fence is in the index.
    let mut batch = checked("alice", &[None]);
    let fence = Some(Bytes::from_static(b"one"));
    let name = Some(Bytes::from_static(b"alice"));
    batch.guard = Guard { last: None, fence, queue: name };
    let (target, ids) = (queue("alice"), Vec::new());
    let append = Append { target, batch, ids, is_patient: false, timeout_ms: 5_000 };
    let late = it.operate(Op::Append(append));
    it.run();
    assert!(edited(&mut it, set).is_ok());
    assert_eq!(it.answer(late), Some(Err(Problem::Fenced)));
}

#[test]
fn a_log_says_again_what_it_says_of_fences_and_trims_before_it_loses_that() {
    let mut it = node();
    let first = enqueue(&mut it, "alice");
    assert!(fence(&mut it, "alice", "one").is_ok());
    assert!(fence(&mut it, "bob", "other").is_ok());
    assert!(fence(&mut it, "bob", "").is_ok());
    let (target, timeout_ms) = (queue("alice"), 5_000);
    let trim = TrimQueue { target, through: first, pointer: None, fence: None, timeout_ms };
    assert_eq!(edit(&mut it, Op::TrimQueue(trim)).map(|it| it.first.is_some()), Ok(true));
    let target = Target::Log(Log { topic: "mail".to_owned(), partition: 0 });
    let truncate = Truncate { target, through: None, pointer: None, fence: None, timeout_ms };
    let number = it.operate(Op::Truncate(truncate));
    match it.answer(number) {
        Some(Ok(Answer::Tail(tail))) => assert_eq!((tail.start, tail.end), (5, 6)),
        other => panic!("{other:?}"),
    }
    let replica = it.replica("mail");
    let said: Vec<_> =
        it.store.replicas[&replica].said().into_iter().filter(|it| it.0 >= 5).collect();
    let token = Bytes::from_static(b"one");
    let wanted = [
        Said::Trimmed { through: 0, first_said: 4, pointer: encode_pointer(None) },
        Said::Fenced { token, first_said: 1 },
    ];
    assert_eq!(said.iter().map(|it| it.1.said.clone()).collect::<Vec<_>>(), wanted);
    assert!(said.iter().all(|it| it.1.queue == "alice"));
    // A client of Kafka removes all there is; and once more, with nothing new to say.
    for (start, end) in [(6, 7), (7, 8)] {
        let asked = DeleteRecordsPartition { partition_index: 0, offset: -1 };
        let (name, partitions) = ("mail".to_owned(), vec![asked]);
        let topics = vec![DeleteRecordsTopic { name, partitions }];
        let request = DeleteRecordsRequest { topics, timeout_ms: 5_000 };
        let id = it.send(request, 2);
        it.run();
        let Some(Response::DeleteRecords(response)) = it.response(id) else { panic!("no answer") };
        let part = &response.topics[0].partitions[0];
        assert_eq!((part.error_code, part.low_watermark), (0, start));
        let partition = &it.node.core.partitions[&replica];
        assert_eq!((partition.log_start(), partition.committed()), (start, end));
        assert_eq!(enqueue_fenced(&mut it, "alice", "old"), Err(Problem::Fenced));
    }
}

#[test]
fn a_client_cannot_state_an_edit() {
    let mut it = node();
    enqueue(&mut it, "alice");
    let (key, timestamp) = (Some(&b"alice"[..]), WALL_MS);
    let plain = NewRecord { timestamp, key, value: None, headers: &[] };
    for name in [FACT_HEADER, "duramen-replaces", "duramen-cuts-after"] {
        let headers: &[_] = &[(name, Some(&b"0.0.0"[..]))];
        let forged = NewRecord { headers, ..plain };
        // Each record may hide an element, not the first one alone.
        for records in [&[forged][..], &[plain, forged]] {
            for codec in [Codec::None, Codec::Gzip, Codec::Lz4] {
                let mut builder = BatchBuilder::new().codec(codec);
                for record in records {
                    builder.push(record).expect("a record");
                }
                let refused = it.produce("mail", builder.build().expect("a batch"));
                let code = ErrorCode::from_code(refused.error_code);
                assert_eq!(code, Some(ErrorCode::InvalidRecord), "{name} {codec:?}");
            }
        }
    }
    assert_eq!(shown(&it, "alice"), [(0, 0)]);
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

#[test]
fn a_leap_of_the_clock_erases_no_deleted_element() {
    const MINUTE_MS: u64 = 60_000;
    const LEAP_MS: i64 = 8 * 86_400_000;
    let mut it = Harness::new(&[]);
    it.create("mail", &[("queue.enable", "true"), ("queue.erase.lag.ms", "3600000")]);
    let first = enqueue(&mut it, "alice");
    enqueue(&mut it, "alice");
    assert_eq!(delete(&mut it, "alice", &[first]), Ok((Some(2), 0)));
    it.pass_ms(MINUTE_MS);
    it.now.wall_ms += LEAP_MS;
    it.pass_ms(10 * MINUTE_MS);
    assert!(it.compactions.is_empty(), "the clock is not believed");
    it.now.wall_ms -= LEAP_MS;
    it.pass_ms(40 * MINUTE_MS);
    assert!(it.compactions.is_empty(), "the lag is not over");
    it.pass_ms(10 * MINUTE_MS);
    assert_eq!(it.compactions.len(), 1);
}

#[test]
fn retention_says_again_what_it_would_lose() {
    let mut it = Harness::new(&[]);
    let configs = [("queue.enable", "true"), ("retention.ms", "600000"), ("segment.ms", "60000")];
    it.create("mail", &configs);
    assert_eq!(fence(&mut it, "alice", "one").map(|it| it.first.is_some()), Ok(true));
    let (key, timestamp) = (Some(&b"alice"[..]), WALL_MS + 500_000);
    let mut builder = BatchBuilder::new();
    builder.push(&NewRecord { timestamp, key, ..NewRecord::default() }).expect("a record");
    let element = it.produce("mail", builder.build().expect("a batch"));
    assert_eq!((element.error_code, element.base_offset), (0, 1));
    // The index is behind the fence, and nobody knows what the log has to say again.
    it.is_indexing = false;
    it.step(Event::IndexLost(it.replica("mail")));
    it.pass_ms(660_000);
    assert_eq!(it.store.trims, []);
    it.is_indexing = true;
    it.run();
    it.pass_ms(300_000);
    let replica = it.replica("mail");
    assert_eq!(it.store.trims, [(replica, 1)]);
    let said = it.store.replicas[&replica].said().into_iter().filter(|it| it.0 > 0);
    let said: Vec<_> = said.map(|(offset, it)| (offset, it.queue, it.said)).collect();
    let again = Said::Fenced { token: Bytes::from_static(b"one"), first_said: 0 };
    assert_eq!(said, [(2, Bytes::from_static(b"alice"), again)]);
    assert_eq!(enqueue_fenced(&mut it, "alice", "old"), Err(Problem::Fenced));
    assert_eq!(enqueue_fenced(&mut it, "alice", "one"), Ok(3));
}
