//! Fast appends, as clients see them.

use bytes::Bytes;
use duramen_protocol::messages::append_fast::{AppendFastPartition, AppendFastTopic, AppendedFast};
use duramen_protocol::messages::describe_fast::{DescribeFastTopic, DescribedFast};
use duramen_protocol::messages::{AppendFastRequest, DescribeFastRequest};
use duramen_protocol::wire::Uuid;
use duramen_protocol::{ErrorCode, Response};
use duramen_storage::op::Done;
#[cfg(feature = "sabotage")]
use duramen_storage::sabotage::{Bug, plant};

use super::harness::{Harness, SHORTAGE, batch, idempotent, produce_request};
use super::trio::Trio;
use super::{moves, quotas};
use crate::access::{Kind, Operation};
use crate::event::{ConnectionId, Event};
use crate::peer::{Frame, PeerFrame};

const ENABLED: [(&str, &str); 1] = [("fast.append.enable", "true")];

const NOT_NOW: i8 = 0;
const COMMITTED: i8 = 3;

/// Sends to all members, and waits for none of the others.
const FAST: i8 = 0;
/// Waits for the commit.
const SURE: i8 = 1;

fn id_of(it: &Harness, topic: &str) -> Uuid {
    it.node.core.controller.image.topic_named(topic).expect("made").id
}

fn append(topic_id: Uuid, wait: i8, records: Bytes) -> AppendFastRequest {
    let (stretch_term, stretch_index) = (1, 1);
    let records = Some(records);
    let part = AppendFastPartition { stretch_term, stretch_index, records, ..Default::default() };
    of(topic_id, wait, part)
}

/// Asks after a batch of producer 5.
fn ask(topic_id: Uuid, first_sequence: i32, last_sequence: i32) -> AppendFastRequest {
    let (producer_id, producer_epoch) = (5, 0);
    let part = AppendFastPartition { producer_id, producer_epoch, ..Default::default() };
    of(topic_id, SURE, AppendFastPartition { first_sequence, last_sequence, ..part })
}

fn of(topic_id: Uuid, wait: i8, partition: AppendFastPartition) -> AppendFastRequest {
    let topics = [AppendFastTopic { topic_id, partitions: [partition].into() }].into();
    AppendFastRequest { wait, timeout_ms: 5_000, topics }
}

fn only(response: Response) -> AppendedFast {
    match response {
        Response::AppendFast(mut response) => response.topics.remove(0).partitions.remove(0),
        other => panic!("{other:?}"),
    }
}

/// What is said of the batch: outcome, error code, and words.
fn told(part: AppendedFast) -> (i8, ErrorCode, String) {
    let code = ErrorCode::from_code(part.error_code).expect("a code");
    (part.outcome, code, part.error_message.unwrap_or_default())
}

fn described(it: &mut Harness, topic_id: Uuid, open: bool) -> DescribedFast {
    let topics = vec![DescribeFastTopic { topic_id, partitions: vec![0] }];
    match it.ask(DescribeFastRequest { open, topics }, 0) {
        Response::DescribeFast(mut response) => response.topics.remove(0).partitions.remove(0),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_batch_for_sure_is_committed_once_and_can_be_asked_after() {
    let mut it = Harness::new(&[]);
    it.create("t", &ENABLED);
    let topic = id_of(&it, "t");
    let unknown = only(it.ask(ask(topic, 0, 1), 0));
    assert_eq!((unknown.outcome, unknown.error_code), (NOT_NOW, 0));
    it.is_prompt = false;
    let id = it.send(append(topic, SURE, idempotent(5, 0, 0, &["a", "b"])), 0);
    assert!(it.response(id).is_none(), "nothing is synced yet");
    it.persist();
    it.run();
    let first = only(it.response(id).expect("synced now"));
    assert_eq!((first.outcome, first.error_code, first.base_offset), (COMMITTED, 0, 0));
    it.is_prompt = true;
    let next = only(it.ask(append(topic, SURE, idempotent(5, 0, 2, &["c"])), 0));
    assert_eq!((next.outcome, next.base_offset), (COMMITTED, 2));
    let again = only(it.ask(append(topic, SURE, idempotent(5, 0, 0, &["a", "b"])), 0));
    assert_eq!((again.outcome, again.base_offset), (COMMITTED, 0));
    let asked = only(it.ask(ask(topic, 2, 2), 0));
    assert_eq!((asked.outcome, asked.base_offset), (COMMITTED, 2));
    assert_eq!(it.fetch("t", 0).high_watermark, 3);
}

#[test]
fn a_refusal_is_told_only_to_a_client_that_waits_for_the_commit() {
    let mut it = Harness::new(&[]);
    it.create("t", &ENABLED);
    let topic = id_of(&it, "t");
    let good = idempotent(5, 0, 0, &["a"]);
    let missing = Uuid::from_u128(77);
    let gone = AppendFastPartition { index: 9, records: Some(good.clone()), ..Default::default() };
    let cases = [
        (append(missing, SURE, good.clone()), ErrorCode::UnknownTopicId),
        (of(topic, SURE, gone), ErrorCode::UnknownTopicOrPartition),
        (append(topic, SURE, batch(&["no producer"])), ErrorCode::InvalidRecord),
        (append(topic, SURE, Bytes::from_static(b"no batch")), ErrorCode::InvalidRecord),
    ];
    for (mut request, code) in cases {
        let (outcome, found, _) = told(only(it.ask(request.clone(), 0)));
        assert_eq!((outcome, found), (NOT_NOW, code));
        request.wait = FAST;
        let (outcome, found, text) = told(only(it.ask(request, 0)));
        assert_eq!((outcome, found), (NOT_NOW, ErrorCode::None), "{code}");
        assert!(!text.is_empty(), "{code}");
    }
    assert_eq!(it.fetch("t", 0).high_watermark, 0);
    assert_eq!(only(it.ask(append(topic, SURE, good.clone()), 0)).outcome, COMMITTED);
    let gap = append(topic, SURE, idempotent(5, 0, 7, &["a"]));
    assert_eq!(told(only(it.ask(gap, 0))).1, ErrorCode::OutOfOrderSequenceNumber);
    let nameless = only(it.ask(ask(topic, -1, 4), 0));
    assert_eq!(nameless.error_code, ErrorCode::InvalidRequest.code());
    let other = only(it.ask(append(topic, 2, good), 0));
    assert_eq!(other.error_code, ErrorCode::InvalidRequest.code());
    let (outcome, _, text) =
        told(only(it.ask(AppendFastRequest { wait: FAST, ..ask(topic, 0, 0) }, 0)));
    assert_eq!((outcome, text.is_empty()), (NOT_NOW, false), "fast requests have a batch");
    assert_eq!(it.fetch("t", 0).high_watermark, 1);
}

#[test]
fn a_stranger_learns_nothing_of_a_topic() {
    let mut it = Harness::new(&[]);
    it.create("t", &ENABLED);
    let topic = id_of(&it, "t");
    assert_eq!(described(&mut it, topic, false).leader_id, 0);
    it.node.core.access.deny(Operation::Write, Kind::Topic);
    let part = only(it.ask(append(topic, FAST, idempotent(5, 0, 0, &["a"])), 0));
    assert_eq!((part.leader_id, part.leader_epoch, part.log_start_offset), (-1, -1, -1));
    let code = ErrorCode::TopicAuthorizationFailed;
    assert_eq!(told(part), (NOT_NOW, ErrorCode::None, code.to_string()));
    let part = described(&mut it, topic, true);
    assert_eq!((part.error_code, part.leader_id), (code.code(), -1));
}

#[test]
fn a_full_disk_takes_no_fast_append() {
    let mut it = Harness::new(&[]);
    it.create("t", &ENABLED);
    let topic = id_of(&it, "t");
    it.storage(Done::DiskFull(Some(SHORTAGE)));
    let (outcome, code, text) =
        told(only(it.ask(append(topic, FAST, idempotent(5, 0, 0, &["a"])), 0)));
    assert_eq!((outcome, code), (NOT_NOW, ErrorCode::None));
    assert!(text.contains("is full"), "{text}");
}

#[test]
fn while_too_much_waits_only_a_batch_for_sure_waits_too() {
    let mut it = Harness::new(&[]);
    it.create("t", &ENABLED);
    let topic = id_of(&it, "t");
    it.is_prompt = false;
    let large = "x".repeat((1 << 20) - 100);
    it.enqueue(ConnectionId(9), &produce_request("t", batch(&[&large]), -1).into(), 9);
    it.run();
    let (outcome, code, text) =
        told(only(it.ask(append(topic, FAST, idempotent(5, 0, 0, &["a"])), 0)));
    assert_eq!((outcome, code, &*text), (NOT_NOW, ErrorCode::None, "too much waits for the disk"));
    let id = it.send(append(topic, SURE, idempotent(5, 0, 0, &["a"])), 0);
    it.pass_ms(5_001);
    let late = told(only(it.response(id).expect("its time is over")));
    assert_eq!((late.0, late.1), (NOT_NOW, ErrorCode::RequestTimedOut));
    let id = it.send(append(topic, SURE, idempotent(5, 0, 0, &["a"])), 0);
    it.is_prompt = true;
    it.persist();
    it.run();
    let part = only(it.response(id).expect("there is room"));
    assert_eq!((part.outcome, part.base_offset), (COMMITTED, 1));
}

#[test]
fn a_batch_for_sure_whose_time_is_over_may_be_in_the_log() {
    let mut it = Harness::new(&[]);
    it.create("t", &ENABLED);
    let topic = id_of(&it, "t");
    it.is_prompt = false;
    let id = it.send(append(topic, SURE, idempotent(5, 0, 0, &["a"])), 0);
    it.pass_ms(5_001);
    let part = only(it.response(id).expect("its time is over"));
    assert_eq!((part.outcome, part.base_offset), (NOT_NOW, -1));
    assert_eq!(part.error_code, ErrorCode::RequestTimedOut.code());
    it.is_prompt = true;
    it.persist();
    it.run();
    assert_eq!(only(it.ask(ask(topic, 0, 0), 0)).outcome, COMMITTED);
}

#[test]
fn bytes_of_fast_appends_count_for_the_clients_quota() {
    let mut it = Harness::new(&[]);
    it.create("t", &ENABLED);
    let topic = id_of(&it, "t");
    assert_eq!(quotas::set(&mut it, "producer_byte_rate", Some(150.0)), 0);
    let value = "x".repeat(1_000);
    let mut rest_ms = |sequence| {
        let request = append(topic, SURE, idempotent(5, 0, sequence, &[&value]));
        let Response::AppendFast(response) = it.ask(request, 0) else { panic!("other") };
        assert_eq!(response.topics[0].partitions[0].outcome, COMMITTED);
        response.throttle_time_ms
    };
    assert_eq!(rest_ms(0), 0);
    assert!(rest_ms(1) > 0);
}

#[test]
fn a_follower_names_the_leader() {
    let mut trio = Trio::new(&[]);
    trio.create_with("t", 1, &ENABLED);
    let leader = trio.leader("t", 0).expect("led");
    let follower = (leader + 1) % 3;
    let topic = id_of(&trio.nodes[leader], "t");
    let leader_id = i32::try_from(leader).expect("small");
    let part = only(trio.ask(follower, append(topic, SURE, idempotent(5, 0, 0, &["a"])), 0));
    assert_eq!(part.error_code, ErrorCode::NotLeaderOrFollower.code());
    assert_eq!((part.outcome, part.leader_id, part.stretch_term), (NOT_NOW, leader_id, -1));
    let part = only(trio.ask(follower, append(topic, FAST, idempotent(5, 0, 0, &["a"])), 0));
    assert_eq!((part.outcome, part.error_code, part.leader_id), (NOT_NOW, 0, leader_id));
    assert!(part.error_message.is_some(), "no such stretch is open");
    let part = only(trio.ask(leader, append(topic, SURE, idempotent(5, 0, 0, &["a"])), 0));
    assert_eq!((part.outcome, part.base_offset), (COMMITTED, 0));
}

#[test]
fn a_topic_without_the_setting_takes_no_fast_appends() {
    let mut it = Harness::new(&[]);
    it.create("t", &[]);
    let topic = id_of(&it, "t");
    let request = append(topic, FAST, idempotent(5, 0, 0, &["a"]));
    let (outcome, code, text) = told(only(it.ask(request, 0)));
    assert_eq!((outcome, code), (NOT_NOW, ErrorCode::None));
    assert_eq!(text, "the topic's fast.append.enable is false");
    assert_eq!(it.fetch("t", 0).high_watermark, 0);
    let part = described(&mut it, topic, true);
    assert_eq!(part.error_code, ErrorCode::PolicyViolation.code());
    assert_eq!(part.error_message.as_deref(), Some("the topic's fast.append.enable is false"));
    assert_eq!(described(&mut it, topic, false).error_code, 0, "that it has none is the truth");
    let sure = only(it.ask(append(topic, SURE, idempotent(5, 0, 0, &["a"])), 0));
    assert_eq!((sure.outcome, sure.base_offset), (COMMITTED, 0));
}

#[test]
fn a_partition_without_a_stretch_is_described_by_its_leader() {
    let mut it = Harness::new(&[]);
    it.create("t", &ENABLED);
    let topic = id_of(&it, "t");
    let part = described(&mut it, topic, false);
    assert_eq!((part.error_code, part.leader_id), (0, 0));
    assert_eq!((part.stretch_term, part.stretch_index), (-1, -1));
    assert!(part.members.is_empty());
    let part = described(&mut it, Uuid::from_u128(77), true);
    assert_eq!(part.error_code, ErrorCode::UnknownTopicId.code());
}

const HELD: i8 = 1;
const APPENDED: i8 = 2;

/// Opens a stretch of partition 0. Returns its name, and its leader and follower.
fn opened(trio: &mut Trio, topic: &str) -> ((i64, i64), usize, usize) {
    let leader = trio.leader(topic, 0).expect("led");
    let topic_id = id_of(&trio.nodes[leader], topic);
    let topics = vec![DescribeFastTopic { topic_id, partitions: vec![0] }];
    let part = match trio.ask(leader, DescribeFastRequest { open: true, topics }, 0) {
        Response::DescribeFast(mut response) => response.topics.remove(0).partitions.remove(0),
        other => panic!("{other:?}"),
    };
    assert_eq!((part.error_code, part.members.len()), (0, 2), "a majority of three");
    let members: Vec<usize> =
        part.members.iter().map(|id| usize::try_from(*id).expect("a node")).collect();
    assert_eq!(members[0], leader);
    trio.pass_ms(1_000);
    ((part.stretch_term, part.stretch_index), leader, members[1])
}

fn in_stretch(topic_id: Uuid, stretch: (i64, i64), records: Bytes) -> AppendFastRequest {
    let (stretch_term, stretch_index) = stretch;
    let records = Some(records);
    let part = AppendFastPartition { stretch_term, stretch_index, records, ..Default::default() };
    of(topic_id, FAST, part)
}

/// Sends a batch to one node, and takes its answer before any other node has heard anything.
fn answered_alone(trio: &mut Trio, at: usize, request: AppendFastRequest) -> AppendedFast {
    let id = trio.nodes[at].send(request, 0);
    only(trio.nodes[at].response(id).expect("no other node is needed"))
}

#[test]
fn a_batch_that_all_members_have_outlives_its_leader() {
    let mut trio = Trio::new(&[]);
    trio.create_with("t", 1, &ENABLED);
    let (stretch, leader, follower) = opened(&mut trio, "t");
    let topic = id_of(&trio.nodes[leader], "t");
    let first = in_stretch(topic, stretch, idempotent(5, 0, 0, &["a"]));
    let next = in_stretch(topic, stretch, idempotent(5, 0, 1, &["b"]));
    let early = answered_alone(&mut trio, follower, next.clone());
    assert_eq!(early.outcome, NOT_NOW, "the batch before it is not there");
    for request in [first, next] {
        let held = answered_alone(&mut trio, follower, request.clone());
        assert_eq!((held.outcome, held.base_offset), (HELD, -1));
        let again = answered_alone(&mut trio, follower, request.clone());
        assert_eq!(again.outcome, HELD);
        let appended = answered_alone(&mut trio, leader, request);
        assert_eq!((appended.outcome, appended.base_offset), (APPENDED, -1));
    }
    let outsider = 3 - leader - follower;
    let elsewhere = in_stretch(topic, stretch, idempotent(5, 0, 2, &["c"]));
    assert_eq!(answered_alone(&mut trio, outsider, elsewhere).outcome, NOT_NOW);
    // Nobody hears the leader any more: no other node has the batches in its log.
    trio.nodes[leader].sent.clear();
    trio.cut.insert(leader);
    trio.pass_ms(10_000);
    let successor = trio.leader("t", 0).expect("another one leads");
    let part = only(trio.ask(successor, ask(topic, 0, 0), 0));
    assert_eq!((part.outcome, part.base_offset), (COMMITTED, 0));
    let part = only(trio.ask(successor, ask(topic, 1, 1), 0));
    assert_eq!((part.outcome, part.base_offset), (COMMITTED, 1));
    let late = in_stretch(topic, stretch, idempotent(5, 0, 2, &["c"]));
    assert_eq!(answered_alone(&mut trio, follower, late).outcome, NOT_NOW, "the stretch is over");
    // The former leader comes back with its own copies, which the log has.
    trio.cut.clear();
    trio.pass_ms(10_000);
    for at in 0..3 {
        let replica = trio.replica(at, "t", 0);
        let partition = &trio.nodes[at].node.core.partitions[&replica];
        assert_eq!((partition.committed(), partition.held_bytes()), (2, 0));
        assert_eq!(trio.nodes[at].node.core.held_bytes, 0);
        assert_eq!(trio.nodes[at].store.replicas[&replica].holds.len(), 0, "all are let go");
    }
}

#[test]
fn a_member_finds_what_it_held_after_a_start() {
    let mut trio = Trio::new(&[]);
    trio.create_with("t", 1, &ENABLED);
    let (stretch, leader, follower) = opened(&mut trio, "t");
    let topic = id_of(&trio.nodes[leader], "t");
    let request = in_stretch(topic, stretch, idempotent(5, 0, 0, &["a"]));
    assert_eq!(answered_alone(&mut trio, follower, request.clone()).outcome, HELD);
    assert_eq!(answered_alone(&mut trio, leader, request).outcome, APPENDED);
    trio.nodes[leader].sent.clear();
    trio.cut.insert(leader);
    let store = std::mem::take(&mut trio.nodes[follower].store);
    trio.restart(follower, store, &[]);
    trio.pass_ms(10_000);
    let successor = trio.leader("t", 0).expect("another one leads");
    assert_eq!(only(trio.ask(successor, ask(topic, 0, 0), 0)).outcome, COMMITTED);
}

/// Members of the stretch that a partition has open, by the numbers of their nodes; none if none is open.
fn members(trio: &mut Trio, topic: &str) -> Vec<i32> {
    let Some(leader) = trio.leader(topic, 0) else { return Vec::new() };
    let topic_id = id_of(&trio.nodes[leader], topic);
    described(&mut trio.nodes[leader], topic_id, false).members
}

#[test]
fn a_batch_is_refused_for_good_only_once_no_member_holds_it_for_its_stretch() {
    let mut trio = Trio::new(&[]);
    trio.create_with("t", 1, &ENABLED);
    let (stretch, leader, follower) = opened(&mut trio, "t");
    let topic = id_of(&trio.nodes[leader], "t");
    let first = only(trio.ask(leader, append(topic, SURE, idempotent(5, 0, 0, &["a"])), 0));
    assert_eq!(first.outcome, COMMITTED);
    let held = in_stretch(topic, stretch, idempotent(5, 0, 1, &["b"]));
    assert_eq!(answered_alone(&mut trio, follower, held.clone()).outcome, HELD);
    // The leader lacks that batch, and is asked for the next one.
    let next = |(stretch_term, stretch_index)| {
        let records = Some(idempotent(5, 0, 2, &["c"]));
        let part = AppendFastPartition { stretch_term, stretch_index, ..Default::default() };
        of(topic, SURE, AppendFastPartition { records, ..part })
    };
    let part = only(trio.ask(leader, next(stretch), 0));
    assert_eq!(part.error_code, ErrorCode::OutOfOrderSequenceNumber.code());
    let second = (part.stretch_term, part.stretch_index);
    assert!(second > stretch, "another stretch has begun");
    assert_eq!(part.members.len(), 2);
    let late = answered_alone(&mut trio, follower, held);
    assert_eq!(late.outcome, NOT_NOW, "its stretch is over");
    trio.talk();
    let replica = trio.replica(follower, "t", 0);
    assert_eq!(trio.nodes[follower].node.core.partitions[&replica].held_bytes(), 0);
    // A refusal soon after that ends the stretch, and begins no other one.
    let part = only(trio.ask(leader, next(second), 0));
    assert_eq!(part.error_code, ErrorCode::OutOfOrderSequenceNumber.code());
    assert_eq!((part.stretch_term, part.stretch_index), (-1, -1));
    let part = only(trio.ask(leader, next(stretch), 0));
    assert_eq!(part.error_code, ErrorCode::OutOfOrderSequenceNumber.code(), "at once");
}

#[test]
fn a_batch_that_only_a_follower_holds_comes_to_its_leader() {
    let mut trio = Trio::new(&[]);
    trio.create_with("t", 1, &ENABLED);
    let (stretch, leader, follower) = opened(&mut trio, "t");
    let topic = id_of(&trio.nodes[leader], "t");
    let request = in_stretch(topic, stretch, idempotent(5, 0, 0, &["a"]));
    assert_eq!(answered_alone(&mut trio, follower, request).outcome, HELD);
    trio.pass_ms(2_500);
    let part = only(trio.ask(leader, ask(topic, 0, 0), 0));
    assert_eq!((part.outcome, part.base_offset), (COMMITTED, 0));
    let replica = trio.replica(follower, "t", 0);
    assert_eq!(trio.nodes[follower].node.core.partitions[&replica].held_bytes(), 0);
}

#[test]
fn a_stretch_that_nobody_uses_ends() {
    let mut trio = Trio::new(&[]);
    trio.create_with("t", 1, &ENABLED);
    let (stretch, leader, _) = opened(&mut trio, "t");
    trio.pass_ms(200_000);
    let topic = id_of(&trio.nodes[leader], "t");
    let request = in_stretch(topic, stretch, idempotent(5, 0, 0, &["a"]));
    assert_eq!(answered_alone(&mut trio, leader, request).outcome, APPENDED);
    trio.pass_ms(200_000);
    assert_eq!(members(&mut trio, "t").len(), 2, "it was used 200 seconds ago");
    trio.pass_ms(101_000);
    assert_eq!(members(&mut trio, "t"), [0; 0]);
}

#[test]
fn a_member_that_is_silent_gives_way_to_another_voter() {
    let mut trio = Trio::new(&[]);
    trio.create_with("t", 1, &ENABLED);
    let (_, leader, follower) = opened(&mut trio, "t");
    let outsider = 3 - leader - follower;
    trio.cut.insert(follower);
    trio.pass_ms(2_000);
    let numbers = [leader, outsider].map(|at| i32::try_from(at).expect("small"));
    assert_eq!(members(&mut trio, "t"), numbers);
}

#[test]
fn stretches_of_a_partition_begin_at_most_once_a_second() {
    let mut trio = Trio::new(&[]);
    trio.create_with("t", 1, &ENABLED);
    let (_, leader, _) = opened(&mut trio, "t");
    let topic = id_of(&trio.nodes[leader], "t");
    let replica = trio.replica(leader, "t", 0);
    let mut codes = Vec::new();
    for _ in 0..2 {
        let partition = trio.nodes[leader].node.core.partitions.get_mut(&replica).expect("here");
        assert!(partition.close_stretch());
        trio.nodes[leader].node.core.mark_dirty(replica);
        trio.nodes[leader].run();
        trio.talk();
        let topics = vec![DescribeFastTopic { topic_id: topic, partitions: vec![0] }];
        let part = match trio.ask(leader, DescribeFastRequest { open: true, topics }, 0) {
            Response::DescribeFast(mut response) => response.topics.remove(0).partitions.remove(0),
            other => panic!("{other:?}"),
        };
        codes.push((part.error_code, part.stretch_term >= 0));
        if part.error_code != 0 {
            break;
        }
    }
    let throttled = ErrorCode::ThrottlingQuotaExceeded.code();
    assert_eq!(codes, [(0, true), (throttled, false)]);
}

#[test]
fn leadership_moves_after_the_end_of_the_stretch() {
    let mut trio = Trio::new(&[]);
    trio.create_with("t", 1, &ENABLED);
    let (stretch, leader, _) = opened(&mut trio, "t");
    let topic = id_of(&trio.nodes[leader], "t");
    let request = in_stretch(topic, stretch, idempotent(5, 0, 0, &["a"]));
    assert_eq!(answered_alone(&mut trio, leader, request).outcome, APPENDED);
    trio.nodes[leader].step(Event::Drain);
    trio.pass_ms(1_000);
    let successor = trio.leader("t", 0).expect("another one leads");
    assert_ne!(successor, leader);
    let replica = trio.replica(successor, "t", 0);
    let term = trio.nodes[successor].node.core.partitions[&replica].group.term();
    let lines: Vec<String> = trio.nodes[successor].node.core.partitions[&replica].stretch_lines();
    let closed = format!("term {}", term - 1);
    assert!(lines[0].contains("stretch closed") && lines[0].contains(&closed), "{lines:?}");
    let part = only(trio.ask(successor, ask(topic, 0, 0), 0));
    assert_eq!((part.outcome, part.base_offset), (COMMITTED, 0));
}

#[test]
fn no_stretch_begins_while_a_node_with_a_replica_does_not_know_stretches() {
    let mut trio = Trio::new(&[]);
    trio.create_with("t", 1, &ENABLED);
    let leader = trio.leader("t", 0).expect("led");
    let other = (leader + 1) % 3;
    let topic = id_of(&trio.nodes[leader], "t");
    let earlier = Frame {
        cluster_id: Uuid(trio.nodes[leader].node.core.options.facts.cluster_id),
        broker_id: i32::try_from(other).expect("small"),
        directory_id: trio.nodes[other].node.core.own_directory(),
        ..Frame::default()
    };
    trio.nodes[leader].step(Event::Peer(Box::new(PeerFrame(earlier))));
    let part = described(&mut trio.nodes[leader], topic, true);
    assert_eq!(part.error_code, ErrorCode::UnsupportedVersion.code());
    trio.pass_ms(1_000);
    let (_, leader, _) = opened(&mut trio, "t");
    assert_eq!(trio.leader("t", 0), Some(leader));
}

#[test]
fn a_node_that_goes_on_alone_tells_which_fast_appends_it_may_lack() {
    for is_member in [true, false] {
        let mut trio = Trio::new(&[]);
        trio.create_with("t", 1, &ENABLED);
        let (stretch, leader, follower) = opened(&mut trio, "t");
        let outsider = 3 - leader - follower;
        let topic = id_of(&trio.nodes[leader], "t");
        let request = in_stretch(topic, stretch, idempotent(5, 0, 0, &["a"]));
        assert_eq!(answered_alone(&mut trio, follower, request.clone()).outcome, HELD);
        assert_eq!(answered_alone(&mut trio, leader, request).outcome, APPENDED);
        // No other node hears of it from the leader.
        (0..3).for_each(|at| trio.nodes[at].sent.clear());
        let survivor = if is_member { follower } else { outsider };
        trio.cut.extend((0..3).filter(|at| *at != survivor));
        let outcome = trio.survive(survivor);
        let lacks = outcome.unsettled.iter().any(|place| place.topic == "t");
        assert_eq!(lacks, !is_member);
        trio.pass_ms(10_000);
        assert_eq!(trio.leader("t", 0), Some(survivor));
        let part = only(trio.ask(survivor, ask(topic, 0, 0), 0));
        assert_eq!(part.outcome, if is_member { COMMITTED } else { NOT_NOW });
    }
}

/// Moves a partition with an open stretch to another node. Returns the members of its stretch then.
fn members_after_a_move() -> Vec<i32> {
    let mut trio = Trio::new(&[]);
    trio.create_with("t", 1, &ENABLED);
    let (_, leader, follower) = opened(&mut trio, "t");
    let outsider = 3 - leader - follower;
    trio.start_another(&[]);
    trio.pass_ms(3_000);
    // The member that follows leaves.
    moves::reassign(&mut trio, Some(&[leader, outsider, 3]));
    trio.pass_ms(10_000);
    let replica = trio.replica(leader, "t", 0);
    assert!(!trio.nodes[follower].node.core.partitions.contains_key(&replica));
    let partition = &trio.nodes[leader].node.core.partitions[&replica];
    assert_eq!(partition.group.voters(), 3);
    members(&mut trio, "t")
}

#[test]
fn voters_change_after_the_end_of_the_stretch() {
    assert_eq!(members_after_a_move(), [0; 0]);
}

#[cfg(feature = "sabotage")]
#[test]
fn a_stretch_over_a_change_of_voters_is_noticed() {
    plant(Some(Bug::MembersChangeOpen));
    let members = members_after_a_move();
    plant(None);
    assert_ne!(members, [0; 0]);
}
