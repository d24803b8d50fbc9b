//! Share groups, as their consumers see them.

use duramen_protocol::batch::batches;
use duramen_protocol::messages::incremental_alter_configs::{
    AlterConfigsResource, AlterableConfig,
};
use duramen_protocol::messages::initialize_share_group_state::{
    InitializeStateData, PartitionData as Initialized,
};
use duramen_protocol::messages::share_fetch::{
    AcknowledgementBatch, FetchPartition, FetchTopic, ForgottenTopic, PartitionData,
};
use duramen_protocol::messages::{
    DeleteRecordsRequest, FindCoordinatorRequest, IncrementalAlterConfigsRequest,
    InitializeShareGroupStateRequest, ShareAcknowledgeRequest, ShareAcknowledgeResponse,
    ShareFetchRequest, ShareFetchResponse, delete_records, share_acknowledge,
};
use duramen_protocol::records::{BatchBuilder, NewRecord};
use duramen_protocol::wire::{RecordData, Uuid};
use duramen_protocol::{ErrorCode, Response};

use super::harness::{Harness, WALL_MS, batch, builder, produce_request};
use super::transactions::Producer;
use super::trio::Trio;
use crate::configs::resource_kind::{GROUP, TOPIC};
use crate::event::ConnectionId;
use crate::shares::ShareKey;

const FEW: [(&str, &str); 4] = [
    ("share.coordinator.state.topic.num.partitions", "2"),
    ("share.coordinator.state.topic.segment.bytes", "16384"),
    ("group.share.record.lock.duration.ms", "10000"),
    ("group.share.min.record.lock.duration.ms", "10000"),
];
const GAP: i8 = 0;
const ACCEPT: i8 = 1;
const RELEASE: i8 = 2;
const REJECT: i8 = 3;
const RENEW: i8 = 4;

fn code_of(code: i16) -> ErrorCode {
    ErrorCode::from_code(code).expect("a known code")
}

fn topic_id(it: &Harness) -> Uuid {
    it.node.core.controller.image.topic_named("t").expect("it is there").id
}

/// A node with a topic `t` that the share group `g` begins to read from its start.
fn with_group() -> Harness {
    with_group_from(0)
}

/// The same from another offset; -1 if it is not known yet.
fn with_group_from(start_offset: i64) -> Harness {
    let mut it = Harness::new(&FEW);
    it.create("t", &[]);
    let topic_id = topic_id(&it);
    let key = ShareKey { group: "g".into(), topic_id, partition: 0 };
    let coordinator_keys = vec![key.to_string()];
    it.ask(FindCoordinatorRequest { key_type: 2, coordinator_keys, ..Default::default() }, 6);
    let partitions = vec![Initialized { partition: 0, state_epoch: 1, start_offset }];
    let topics = vec![InitializeStateData { topic_id, partitions }];
    it.ask(InitializeShareGroupStateRequest { group_id: "g".to_owned(), topics }, 0);
    it
}

fn set(it: &mut Harness, name: &str, value: &str) -> i16 {
    let config = AlterableConfig {
        name: name.to_owned(),
        value: Some(value.to_owned()),
        ..AlterableConfig::default()
    };
    let resource = AlterConfigsResource {
        resource_type: GROUP,
        resource_name: "g".to_owned(),
        configs: vec![config],
    };
    let request =
        IncrementalAlterConfigsRequest { resources: vec![resource], ..Default::default() };
    let Response::IncrementalAlterConfigs(answer) = it.ask(request, 1) else { panic!("other") };
    answer.responses[0].error_code
}

/// Offsets, how often each came, in runs.
type Acquired = Vec<(i64, i64, i16)>;
type Said<'a> = &'a [(i64, i64, i8)];

struct Consumer {
    name: &'static str,
    connection: ConnectionId,
    epoch: i32,
    topic_id: Uuid,
}

fn consumer(it: &Harness, name: &'static str, connection: u64) -> Consumer {
    Consumer { name, connection: ConnectionId(connection), epoch: 0, topic_id: topic_id(it) }
}

impl Consumer {
    fn request(&mut self, said: Said<'_>) -> ShareFetchRequest {
        let one = |&(first_offset, last_offset, kind): &(i64, i64, i8)| AcknowledgementBatch {
            first_offset,
            last_offset,
            acknowledge_types: vec![kind],
        };
        let acknowledgement_batches = said.iter().map(one).collect();
        let partition = FetchPartition { partition_index: 0, acknowledgement_batches };
        let topic = FetchTopic { topic_id: self.topic_id, partitions: vec![partition] };
        let epoch = self.epoch;
        self.epoch += 1;
        ShareFetchRequest {
            group_id: Some("g".to_owned()),
            member_id: Some(self.name.to_owned()),
            share_session_epoch: epoch,
            max_wait_ms: 0,
            min_bytes: 1,
            max_bytes: 1 << 20,
            max_records: 100,
            topics: vec![topic],
            ..ShareFetchRequest::default()
        }
    }

    fn send(&mut self, it: &mut Harness, request: ShareFetchRequest) -> i32 {
        let id = it.enqueue(self.connection, &request.into(), 2);
        it.run();
        id
    }

    fn answer(&self, it: &mut Harness, id: i32) -> Option<ShareFetchResponse> {
        match it.response_on(self.connection, id)? {
            Response::ShareFetch(answer) => Some(answer),
            other => panic!("{other:?}"),
        }
    }

    /// Says something, and asks for more, for a moment.
    fn fetch(&mut self, it: &mut Harness, said: Said<'_>) -> (ErrorCode, Acquired) {
        let mut request = self.request(said);
        request.max_wait_ms = 1;
        let id = self.send(it, request);
        let answer = self.answer(it, id).unwrap_or_else(|| {
            it.pass_ms(1);
            self.answer(it, id).expect("its time is over")
        });
        assert_eq!(answer.error_code, 0, "{:?}", answer.error_message);
        acquired(&answer)
    }

    fn acknowledge(&mut self, it: &mut Harness, said: Said<'_>) -> i32 {
        let one = |&(first_offset, last_offset, kind): &(i64, i64, i8)| {
            share_acknowledge::AcknowledgementBatch {
                first_offset,
                last_offset,
                acknowledge_types: vec![kind],
            }
        };
        let acknowledgement_batches = said.iter().map(one).collect();
        let partition =
            share_acknowledge::AcknowledgePartition { partition_index: 0, acknowledgement_batches };
        let partitions = vec![partition];
        let topic = share_acknowledge::AcknowledgeTopic { topic_id: self.topic_id, partitions };
        let request = ShareAcknowledgeRequest {
            group_id: Some("g".to_owned()),
            member_id: Some(self.name.to_owned()),
            share_session_epoch: self.epoch,
            topics: vec![topic],
            ..ShareAcknowledgeRequest::default()
        };
        self.epoch += 1;
        let id = it.enqueue(self.connection, &request.into(), 2);
        it.run();
        id
    }

    fn acknowledged(&self, it: &mut Harness, id: i32) -> Option<ShareAcknowledgeResponse> {
        match it.response_on(self.connection, id)? {
            Response::ShareAcknowledge(answer) => Some(answer),
            other => panic!("{other:?}"),
        }
    }
}

/// What the answer says of the only partition. Acquired records are in the bytes that come with them.
fn acquired(answer: &ShareFetchResponse) -> (ErrorCode, Acquired) {
    let Some(topic) = answer.responses.first() else { return (ErrorCode::None, Vec::new()) };
    let part = &topic.partitions[0];
    assert_eq!(part.error_code, 0);
    let all = part.acquired_records.iter();
    let all = all.map(|it| (it.first_offset, it.last_offset, it.delivery_count)).collect();
    check_bytes(part, &all);
    (code_of(part.acknowledge_error_code), all)
}

fn check_bytes(part: &PartitionData, all: &Acquired) {
    let RecordData::Bytes(bytes) = &part.records else { panic!("{:?}", part.records) };
    let sent: Vec<_> = batches(bytes.clone())
        .map(|batch| {
            let batch = batch.expect("whole batches");
            (batch.header().base_offset, batch.header().end_offset())
        })
        .collect();
    for (first, last, _) in all {
        for offset in *first..=*last {
            assert!(sent.iter().any(|(base, end)| (*base..*end).contains(&offset)));
        }
    }
}

fn accepted(it: &mut Harness, consumer: &mut Consumer, said: Said<'_>) -> ErrorCode {
    let id = consumer.acknowledge(it, said);
    let answer = consumer.acknowledged(it, id).expect("answered at once");
    assert_eq!(answer.error_code, 0);
    code_of(answer.responses[0].partitions[0].error_code)
}

#[test]
fn records_go_to_one_consumer_each_and_are_gone_when_they_are_accepted() {
    let mut it = with_group();
    it.produce("t", batch(&["a", "b", "c"]));
    it.produce("t", batch(&["d"]));
    let (mut one, mut two) = (consumer(&it, "one", 1), consumer(&it, "two", 2));
    let mut request = one.request(&[]);
    (request.max_records, request.max_wait_ms) = (2, 1);
    let id = one.send(&mut it, request);
    let answer = one.answer(&mut it, id).expect("at once");
    assert_eq!(acquired(&answer).1, [(0, 2, 1)], "a whole batch");
    assert_eq!(answer.acquisition_lock_timeout_ms, 10_000);
    assert_eq!(two.fetch(&mut it, &[]).1, [(3, 3, 1)]);
    let wrong = accepted(&mut it, &mut two, &[(0, 2, ACCEPT)]);
    assert_eq!(wrong, ErrorCode::InvalidRecordState);
    assert_eq!(accepted(&mut it, &mut one, &[(0, 2, ACCEPT)]), ErrorCode::None);
    assert_eq!(two.fetch(&mut it, &[(3, 3, ACCEPT)]), (ErrorCode::None, vec![]));
    assert_eq!(it.node.metrics().share_records, 0);
    assert_eq!(it.node.metrics().share_sessions, 2);
}

#[test]
fn a_fetch_waits_for_records_and_for_locks_that_end() {
    let mut it = with_group();
    let (mut one, mut two) = (consumer(&it, "one", 1), consumer(&it, "two", 2));
    let mut waits = one.request(&[]);
    waits.max_wait_ms = 500;
    let id = one.send(&mut it, waits);
    assert!(one.answer(&mut it, id).is_none());
    it.produce("t", batch(&["a"]));
    assert_eq!(acquired(&one.answer(&mut it, id).expect("woken")).1, [(0, 0, 1)]);
    let mut waits = two.request(&[]);
    waits.max_wait_ms = 60_000;
    let id = two.send(&mut it, waits);
    it.pass_ms(9_999);
    assert!(two.answer(&mut it, id).is_none());
    it.pass_ms(1);
    assert_eq!(acquired(&two.answer(&mut it, id).expect("woken")).1, [(0, 0, 2)]);
    let late = accepted(&mut it, &mut one, &[(0, 0, ACCEPT)]);
    assert_eq!(late, ErrorCode::InvalidRecordState);
    let mut waits = one.request(&[]);
    waits.max_wait_ms = 100;
    let id = one.send(&mut it, waits);
    it.pass_ms(100);
    assert_eq!(acquired(&one.answer(&mut it, id).expect("its time is over")).1, []);
}

#[test]
fn an_acknowledgement_is_answered_when_it_is_durable() {
    let mut it = with_group();
    it.produce("t", batch(&["a", "b"]));
    let mut one = consumer(&it, "one", 1);
    assert_eq!(one.fetch(&mut it, &[]).1, [(0, 1, 1)]);
    it.is_prompt = false;
    let id = one.acknowledge(&mut it, &[(0, 0, ACCEPT)]);
    assert!(one.acknowledged(&mut it, id).is_none());
    it.is_prompt = true;
    it.run();
    it.pass_ms(0);
    let answer = one.acknowledged(&mut it, id).expect("it is durable");
    assert_eq!(answer.responses[0].partitions[0].error_code, 0);
    it.restart(&FEW, 2);
    let mut two = consumer(&it, "two", 2);
    assert_eq!(two.fetch(&mut it, &[]).1, [(1, 1, 1)], "the other one was not acknowledged");
}

#[test]
fn a_group_begins_with_what_is_no_older_than_it_wants() {
    let hour = 3_600_000;
    let check = |set_to: &str, expected: &[(i64, i64, i16)]| {
        let mut it = with_group_from(-1);
        assert_eq!(set(&mut it, "share.auto.offset.reset", set_to), 0, "{set_to}");
        for hours in [3, 2] {
            it.produce("t", builder(&["old"], WALL_MS - hours * hour).build().expect("good"));
        }
        let mut one = consumer(&it, "one", 1);
        assert_eq!(one.fetch(&mut it, &[]).1, expected, "{set_to}");
        it.produce("t", batch(&["new"]));
        assert_eq!(one.fetch(&mut it, &[]).1, [(2, 2, 1)], "{set_to}");
    };
    check("by_duration:PT2H30M", &[(1, 1, 1)]);
    check("by_duration:P1D", &[(0, 1, 1)]);
    check("by_duration:PT1H", &[]);
    check("latest", &[]);
    check("earliest", &[(0, 1, 1)]);
    let mut it = with_group_from(-1);
    assert_eq!(set(&mut it, "share.auto.offset.reset", "by_duration:PT1H"), 0);
    let mut one = consumer(&it, "one", 1);
    assert_eq!(one.fetch(&mut it, &[]).1, [], "there is nothing at all");
    it.produce("t", batch(&["new"]));
    assert_eq!(one.fetch(&mut it, &[]).1, [(0, 0, 1)]);
    assert_ne!(set(&mut it, "share.auto.offset.reset", "by_duration:-PT1H"), 0);
}

#[test]
fn what_a_consumer_releases_rejects_and_forgets_comes_as_often_as_it_may() {
    let mut it = with_group();
    assert_eq!(set(&mut it, "share.delivery.count.limit", "2"), 0);
    it.produce("t", batch(&["a", "b", "c", "d"]));
    let mut one = consumer(&it, "one", 1);
    assert_eq!(one.fetch(&mut it, &[]).1, [(0, 3, 1)]);
    let said = [(0, 0, RELEASE), (1, 1, REJECT), (2, 2, GAP), (3, 3, ACCEPT)];
    let (code, got) = one.fetch(&mut it, &said);
    assert_eq!((code, got), (ErrorCode::None, vec![(0, 0, 2)]));
    assert_eq!(one.fetch(&mut it, &[(0, 0, RELEASE)]).1, [], "it came twice");
    assert_eq!(it.node.metrics().share_records, 0);
    it.restart(&FEW, 2);
    let mut two = consumer(&it, "two", 1);
    assert_eq!(two.fetch(&mut it, &[]).1, [], "all of it is over");
}

#[test]
fn locks_are_renewed_and_whoever_goes_leaves_what_it_has_to_others() {
    let mut it = with_group();
    it.produce("t", batch(&["a"]));
    it.produce("t", batch(&["b"]));
    let (mut one, mut two) = (consumer(&it, "one", 1), consumer(&it, "two", 2));
    assert_eq!(one.fetch(&mut it, &[]).1, [(0, 1, 1)]);
    it.pass_ms(8_000);
    let mut renew = one.request(&[(0, 0, RENEW)]);
    assert!(renew.max_records > 0);
    renew.is_renew_ack = true;
    let id = one.send(&mut it, renew.clone());
    let answer = one.answer(&mut it, id).expect("refused");
    assert_eq!(code_of(answer.error_code), ErrorCode::InvalidRequest);
    (renew.max_bytes, renew.min_bytes, renew.max_records, renew.max_wait_ms) = (0, 0, 0, 0);
    one.epoch -= 1;
    let id = one.send(&mut it, renew);
    assert_eq!(acquired(&one.answer(&mut it, id).expect("at once")), (ErrorCode::None, vec![]));
    it.pass_ms(5_000);
    assert_eq!(two.fetch(&mut it, &[]).1, [(1, 1, 2)]);
    it.disconnect(ConnectionId(1));
    assert_eq!(two.fetch(&mut it, &[]).1, [(0, 0, 1)], "that delivery does not count");
    let mut end = two.request(&[(1, 1, ACCEPT)]);
    end.share_session_epoch = -1;
    let id = two.send(&mut it, end);
    assert_eq!(acquired(&two.answer(&mut it, id).expect("at once")).0, ErrorCode::None);
    assert_eq!(it.node.metrics().share_sessions, 0);
    assert_eq!(it.node.metrics().share_partitions, 0, "nobody uses it");
    let mut three = consumer(&it, "three", 3);
    assert_eq!(three.fetch(&mut it, &[]).1, [(0, 0, 1)]);
}

#[test]
fn what_a_session_forgets_while_a_request_of_it_waits_is_forgotten() {
    let mut it = with_group();
    let mut one = consumer(&it, "one", 7);
    let mut waiting = one.request(&[]);
    waiting.max_wait_ms = 60_000;
    let id = one.send(&mut it, waiting);
    it.pass_ms(0);
    assert_eq!(it.node.metrics().share_partitions, 1);
    // The session goes on over another connection.
    let mut elsewhere = one.request(&[]);
    elsewhere.topics.clear();
    let forgotten = ForgottenTopic { topic_id: one.topic_id, partitions: vec![0] };
    elsewhere.forgotten_topics_data = vec![forgotten];
    one.connection = ConnectionId(8);
    let other = one.send(&mut it, elsewhere);
    it.pass_ms(0);
    assert!(one.answer(&mut it, other).is_some());
    it.produce("t", batch(&["a"]));
    assert_eq!(it.node.metrics().share_partitions, 0, "nobody fetches it");
    one.connection = ConnectionId(7);
    assert!(one.answer(&mut it, id).is_none(), "it is not for this request any more");
}

#[test]
fn what_consumers_acquire_counts_for_their_quotas() {
    let mut it = with_group();
    for _ in 0..3 {
        it.produce("t", batch(&[&"x".repeat(1000)]));
    }
    assert_eq!(super::quotas::set(&mut it, "consumer_byte_rate", Some(150.0)), 0);
    let mut one = consumer(&it, "one", 1);
    assert_eq!(one.fetch(&mut it, &[]).1, [(0, 0, 1)], "as much as it may have at once");
    let request = one.request(&[(0, 0, ACCEPT)]);
    let id = one.send(&mut it, request);
    it.pass_ms(0);
    let answer = one.answer(&mut it, id).expect("at once");
    assert!(answer.throttle_time_ms > 0);
    assert_eq!(acquired(&answer), (ErrorCode::None, vec![]), "it is not acquired");
    let mut two = consumer(&it, "two", 2);
    it.pass_ms(20_000);
    assert_eq!(two.fetch(&mut it, &[]).1, [(1, 1, 1)], "that did not count");
}

#[test]
fn sessions_count_their_requests() {
    let mut it = with_group();
    let mut one = consumer(&it, "one", 1);
    let mut code = |one: &mut Consumer, epoch: i32, said: Said<'_>| {
        one.epoch = epoch;
        let request = one.request(said);
        let id = one.send(&mut it, request);
        code_of(one.answer(&mut it, id).expect("at once").error_code)
    };
    assert_eq!(code(&mut one, 3, &[]), ErrorCode::ShareSessionNotFound);
    assert_eq!(code(&mut one, -1, &[]), ErrorCode::ShareSessionNotFound);
    assert_eq!(code(&mut one, 0, &[(0, 0, ACCEPT)]), ErrorCode::InvalidRequest);
    assert_eq!(code(&mut one, 0, &[]), ErrorCode::None);
    assert_eq!(code(&mut one, 2, &[]), ErrorCode::InvalidShareSessionEpoch);
    assert_eq!(code(&mut one, 1, &[]), ErrorCode::None);
    assert_eq!(code(&mut one, 0, &[]), ErrorCode::None, "it begins anew");
    assert_eq!(code(&mut one, -1, &[]), ErrorCode::None);
    one.epoch = 0;
    let id = one.acknowledge(&mut it, &[]);
    let answer = one.acknowledged(&mut it, id).expect("at once");
    assert_eq!(code_of(answer.error_code), ErrorCode::InvalidShareSessionEpoch);
    let mut nameless = one.request(&[]);
    nameless.member_id = None;
    let id = one.send(&mut it, nameless);
    let answer = one.answer(&mut it, id).expect("at once");
    assert_eq!(code_of(answer.error_code), ErrorCode::InvalidRequest);
}

#[test]
fn records_that_the_log_loses_are_passed() {
    let mut it = with_group();
    for value in ["a", "b", "c", "d"] {
        it.produce("t", batch(&[value]));
    }
    let mut one = consumer(&it, "one", 1);
    assert_eq!(one.fetch(&mut it, &[]).1, [(0, 3, 1)]);
    let partition = delete_records::DeleteRecordsPartition { partition_index: 0, offset: 2 };
    let topic =
        delete_records::DeleteRecordsTopic { name: "t".to_owned(), partitions: vec![partition] };
    let topics = vec![topic];
    it.ask(DeleteRecordsRequest { topics, timeout_ms: 1000 }, 2);
    let (code, got) = one.fetch(&mut it, &[(0, 3, ACCEPT)]);
    assert_eq!((code, got), (ErrorCode::None, vec![]));
    assert_eq!(it.node.metrics().share_records, 0);
}

fn keyed(pairs: &[(&str, &str)]) -> bytes::Bytes {
    let mut batch = BatchBuilder::new();
    for (key, value) in pairs {
        let key = (!key.is_empty()).then_some(key.as_bytes());
        let value = Some(value.as_bytes());
        let record = NewRecord { timestamp: WALL_MS, key, value, ..NewRecord::default() };
        batch.push(&record).expect("a good record");
    }
    batch.build().expect("a good batch")
}

#[test]
fn with_keys_in_order_one_record_of_a_key_is_out_at_a_time() {
    let mut it = with_group();
    assert_eq!(code_of(set(&mut it, "share.record.order", "size")), ErrorCode::InvalidConfig);
    assert_eq!(set(&mut it, "share.record.order", "key"), 0);
    it.produce("t", keyed(&[("a", "1"), ("b", "2"), ("a", "3"), ("", "4"), ("", "5"), ("b", "6")]));
    let (mut one, mut two) = (consumer(&it, "one", 1), consumer(&it, "two", 2));
    assert_eq!(one.fetch(&mut it, &[]).1, [(0, 1, 1), (3, 4, 1)]);
    assert_eq!(two.fetch(&mut it, &[]).1, []);
    assert_eq!(accepted(&mut it, &mut one, &[(0, 0, ACCEPT)]), ErrorCode::None);
    assert_eq!(two.fetch(&mut it, &[]).1, [(2, 2, 1)]);
    assert_eq!(accepted(&mut it, &mut one, &[(1, 1, RELEASE)]), ErrorCode::None);
    assert_eq!(two.fetch(&mut it, &[]).1, [(1, 1, 2)], "the same one first");
    assert_eq!(two.fetch(&mut it, &[(1, 1, REJECT)]).1, [(5, 5, 1)]);
}

#[test]
fn the_order_of_keys_is_begun_and_ended_when_nobody_holds_anything() {
    let mut it = with_group();
    it.produce("t", keyed(&[("a", "1"), ("a", "2"), ("a", "3")]));
    let mut one = consumer(&it, "one", 1);
    let mut first = one.request(&[]);
    (first.max_records, first.share_acquire_mode, first.max_wait_ms) = (1, 1, 1);
    let id = one.send(&mut it, first);
    assert_eq!(acquired(&one.answer(&mut it, id).expect("at once")).1, [(0, 0, 1)]);
    assert_eq!(set(&mut it, "share.record.order", "key"), 0);
    assert_eq!(one.fetch(&mut it, &[]).1, [], "somebody holds something");
    assert_eq!(accepted(&mut it, &mut one, &[(0, 0, ACCEPT)]), ErrorCode::None);
    assert_eq!(one.fetch(&mut it, &[]).1, [(1, 1, 1)]);
    assert_eq!(set(&mut it, "share.record.order", "none"), 0);
    assert_eq!(accepted(&mut it, &mut one, &[(1, 1, RELEASE)]), ErrorCode::None);
    assert_eq!(one.fetch(&mut it, &[]).1, [(1, 1, 2), (2, 2, 1)]);
}

#[test]
fn a_group_begins_at_the_end_of_the_log_unless_it_is_told_otherwise_and_stays_there() {
    let mut it = Harness::new(&FEW);
    it.create("t", &[]);
    it.produce("t", batch(&["a"]));
    let topic_id = topic_id(&it);
    let begin = |it: &mut Harness, group: &str| {
        let key = ShareKey { group: group.into(), topic_id, partition: 0 };
        let coordinator_keys = vec![key.to_string()];
        it.ask(FindCoordinatorRequest { key_type: 2, coordinator_keys, ..Default::default() }, 6);
        let partitions = vec![Initialized { partition: 0, state_epoch: 1, start_offset: -1 }];
        let topics = vec![InitializeStateData { topic_id, partitions }];
        it.ask(InitializeShareGroupStateRequest { group_id: group.to_owned(), topics }, 0);
    };
    begin(&mut it, "g");
    let mut one = consumer(&it, "one", 1);
    assert_eq!(one.fetch(&mut it, &[]).1, []);
    it.produce("t", batch(&["b"]));
    it.restart(&FEW, 2);
    it.produce("t", batch(&["c"]));
    let mut two = consumer(&it, "two", 2);
    assert_eq!(two.fetch(&mut it, &[]).1, [(1, 2, 1)], "where it began is kept");
    assert_eq!(set(&mut it, "share.auto.offset.reset", "earliest"), 0);
    it.create("u", &[]);
}

#[test]
fn a_group_that_is_not_known_yet_is_waited_for() {
    let mut it = Harness::new(&FEW);
    it.create("t", &[]);
    it.produce("t", batch(&["a"]));
    let mut one = consumer(&it, "one", 1);
    assert_eq!(one.fetch(&mut it, &[]).1, []);
    let produced = it.send(produce_request("t", batch(&["b"]), -1), 9);
    it.produced(produced).expect("at once");
    assert_eq!(one.fetch(&mut it, &[]).1, []);
}

/// The records of the topic of dead letters: value, and the headers that say where it was and why.
fn dead_letters(it: &mut Harness) -> Vec<(String, Vec<String>)> {
    let mut found = Vec::new();
    let bytes = super::harness::bytes_of(&it.fetch("dead", 0));
    for batch in batches(bytes) {
        let batch = batch.expect("whole");
        let records = duramen_protocol::records::Records::of(&batch, 1 << 20).expect("ours");
        for record in &records {
            let record = record.expect("ours");
            let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("text");
            assert_eq!(records.timestamp(&record), WALL_MS);
            let headers = record.headers.into_iter();
            let headers = headers.map(|it| text(it.value.expect("a value")));
            found.push((record.value.map(text).unwrap_or_default(), headers.collect()));
        }
    }
    found
}

#[test]
fn what_is_given_up_is_in_the_dead_letter_topic_before_it_is_over() {
    let mut it = with_group();
    it.create("dead", &[("errors.deadletterqueue.group.enable", "true")]);
    assert_eq!(set(&mut it, "errors.deadletterqueue.topic.name", "dead"), 0);
    assert_eq!(set(&mut it, "share.delivery.count.limit", "2"), 0);
    it.produce("t", keyed(&[("k", "a"), ("k", "b"), ("k", "c")]));
    let mut one = consumer(&it, "one", 1);
    assert_eq!(one.fetch(&mut it, &[]).1, [(0, 2, 1)]);
    let said = [(0, 0, ACCEPT), (1, 1, REJECT), (2, 2, RELEASE)];
    assert_eq!(one.fetch(&mut it, &said), (ErrorCode::None, vec![(2, 2, 2)]));
    assert_eq!(one.fetch(&mut it, &[(2, 2, RELEASE)]), (ErrorCode::None, vec![]));
    assert_eq!(it.node.metrics().share_records, 0);
    assert_eq!(it.node.metrics().burials, 0);
    let letter = |value: &str, offset: &str, count: &str, why: &str| {
        let headers = ["t", "0", offset, "g", count, why].map(str::to_owned).to_vec();
        (value.to_owned(), headers)
    };
    let expected = [
        letter("b", "1", "1", "it was rejected by a consumer"),
        letter("c", "2", "2", "it was given out as often as it may be"),
    ];
    assert_eq!(dead_letters(&mut it), expected);
}

#[test]
fn what_cannot_be_kept_as_a_dead_letter_is_held_back() {
    let is_meant = ("errors.deadletterqueue.group.enable", "true");
    // A dead letter has the headers of its record: in a queue topic they would state edits.
    for configs in [&[][..], &[is_meant, ("queue.enable", "true")]] {
        hold_back(configs);
    }
}

fn hold_back(configs: &[(&str, &str)]) {
    let mut it = with_group();
    it.create("dead", configs);
    assert_eq!(set(&mut it, "errors.deadletterqueue.topic.name", "dead"), 0);
    it.produce("t", batch(&["a"]));
    let mut one = consumer(&it, "one", 1);
    assert_eq!(one.fetch(&mut it, &[]).1, [(0, 0, 1)]);
    let refused = accepted(&mut it, &mut one, &[(0, 0, REJECT)]);
    assert_eq!(refused, ErrorCode::CoordinatorNotAvailable, "the topic is not meant for it");
    assert_eq!((it.node.metrics().share_records, it.node.metrics().burials), (1, 1));
    it.pass_ms(60_000);
    assert_eq!(one.fetch(&mut it, &[]).1, [], "nobody gets it");
    assert_eq!(set(&mut it, "errors.deadletterqueue.topic.name", ""), 0);
    it.pass_ms(3_000);
    assert_eq!((it.node.metrics().share_records, it.node.metrics().burials), (0, 0));
    assert_eq!(dead_letters(&mut it), []);
}

#[test]
fn who_reads_committed_records_only_gets_no_aborted_ones() {
    let mut it = with_group();
    assert_eq!(set(&mut it, "share.isolation.level", "read_committed"), 0);
    let mut producer = Producer::new(&mut it, "tx", 2);
    producer.write(&mut it, "t", &["a", "b"]);
    it.produce("t", batch(&["c"]));
    let mut one = consumer(&it, "one", 1);
    assert_eq!(one.fetch(&mut it, &[]).1, [], "the transaction is open");
    assert_eq!(producer.end(&mut it, false), ErrorCode::None);
    it.pass_ms(100);
    producer.write(&mut it, "t", &["d"]);
    assert_eq!(producer.end(&mut it, true), ErrorCode::None);
    it.pass_ms(100);
    assert_eq!(one.fetch(&mut it, &[]).1, [(2, 2, 1), (4, 4, 1)]);
    assert_eq!(one.fetch(&mut it, &[(2, 2, ACCEPT), (4, 4, ACCEPT)]).0, ErrorCode::None);
    assert_eq!(it.node.metrics().share_records, 0);
}

/// Three nodes, a topic `t` on all of them, and a share group `g` that begins to read it.
fn trio_with_group() -> Trio {
    let mut trio = Trio::new(&FEW);
    trio.create("t", 1);
    let topic_id = topic_id(&trio.nodes[0]);
    let key = ShareKey { group: "g".into(), topic_id, partition: 0 };
    let find = || FindCoordinatorRequest {
        key_type: 2,
        coordinator_keys: vec![key.to_string()],
        ..Default::default()
    };
    trio.ask(0, find(), 6);
    trio.pass_ms(3000);
    let Response::FindCoordinator(answer) = trio.ask(0, find(), 6) else { panic!("other") };
    let at = usize::try_from(answer.coordinators[0].node_id).expect("it is known");
    let partitions = vec![Initialized { partition: 0, state_epoch: 1, start_offset: 0 }];
    let topics = vec![InitializeStateData { topic_id, partitions }];
    trio.ask(at, InitializeShareGroupStateRequest { group_id: "g".to_owned(), topics }, 0);
    trio
}

fn ask(trio: &mut Trio, at: usize, consumer: &mut Consumer, said: Said<'_>) -> ShareFetchResponse {
    let mut request = consumer.request(said);
    request.max_wait_ms = 2_000;
    match trio.ask(at, request, 2) {
        Response::ShareFetch(answer) => answer,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_leader_that_dies_takes_nothing_with_it_that_was_answered() {
    let mut trio = trio_with_group();
    let leader = trio.leader("t", 0).expect("led");
    for value in ["a", "b", "c"] {
        trio.produce(leader, "t", batch(&[value]));
    }
    let mut one = consumer(&trio.nodes[leader], "one", 1);
    let follower = (leader + 1) % 3;
    let mut lost = consumer(&trio.nodes[leader], "lost", 1);
    let elsewhere = ask(&mut trio, follower, &mut lost, &[]);
    let part = &elsewhere.responses[0].partitions[0];
    assert_eq!(code_of(part.error_code), ErrorCode::NotLeaderOrFollower);
    let id = i32::try_from(leader).expect("small");
    assert_eq!((part.current_leader.leader_id, elsewhere.node_endpoints[0].node_id), (id, id));
    assert_eq!(acquired(&ask(&mut trio, leader, &mut one, &[])).1, [(0, 2, 1)]);
    let said = [(0, 0, ACCEPT), (1, 1, RELEASE)];
    let (code, got) = acquired(&ask(&mut trio, leader, &mut one, &said));
    assert_eq!((code, got), (ErrorCode::None, vec![(1, 1, 2)]));
    trio.cut.insert(leader);
    trio.pass_ms(10_000);
    let next = trio.leader("t", 0).expect("led by another");
    let mut two = consumer(&trio.nodes[next], "two", 1);
    let got = acquired(&ask(&mut trio, next, &mut two, &[])).1;
    assert_eq!(got, [(1, 1, 2), (2, 2, 1)], "the count is as it was kept");
    // The former one does not know yet, but what it is told there does not count.
    let late = one.request(&[(1, 1, ACCEPT)]);
    let id = trio.send(leader, late, 2);
    trio.cut.clear();
    trio.pass_ms(15_000);
    let Some(Response::ShareFetch(answer)) = trio.response(leader, id) else { panic!("answered") };
    let part = &answer.responses[0].partitions[0];
    assert_ne!(part.acknowledge_error_code, 0);
}

#[test]
fn dead_letters_go_to_whoever_leads_their_topic() {
    let mut trio = trio_with_group();
    for partition in 0..3 {
        let topic = format!("dead{partition}");
        trio.create(&topic, 1);
    }
    let leader = trio.leader("t", 0).expect("led");
    let elsewhere = |topic: &String| trio.leader(topic, 0) != Some(leader);
    let topics = (0..3).map(|partition| format!("dead{partition}"));
    let topic = topics.into_iter().find(elsewhere).expect("they are spread");
    let set = |resource_type: i8, resource_name: &str, name: &str, value: &str| {
        let config = AlterableConfig {
            name: name.to_owned(),
            value: Some(value.to_owned()),
            ..AlterableConfig::default()
        };
        let configs = vec![config];
        let resource_name = resource_name.to_owned();
        let resource = AlterConfigsResource { resource_type, resource_name, configs };
        IncrementalAlterConfigsRequest { resources: vec![resource], ..Default::default() }
    };
    let is_one = set(TOPIC, &topic, "errors.deadletterqueue.group.enable", "true");
    let named = set(GROUP, "g", "errors.deadletterqueue.topic.name", &topic);
    trio.ask(leader, is_one, 1);
    trio.ask(leader, named, 1);
    trio.pass_ms(1_000);
    trio.produce(leader, "t", batch(&["a"]));
    let mut one = consumer(&trio.nodes[leader], "one", 1);
    assert_eq!(acquired(&ask(&mut trio, leader, &mut one, &[])).1, [(0, 0, 1)]);
    let code = acquired(&ask(&mut trio, leader, &mut one, &[(0, 0, REJECT)])).0;
    assert_eq!(code, ErrorCode::None);
    let there = trio.leader(&topic, 0).expect("led");
    let data = trio.nodes[there].fetch(&topic, 0);
    assert_eq!(data.high_watermark, 1);
    assert_eq!(trio.nodes[leader].node.metrics().burials, 0);
}
