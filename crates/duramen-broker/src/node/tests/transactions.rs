//! Transactions, through the whole node.

use std::collections::BTreeMap;

use bytes::Bytes;
use duramen_protocol::batch::batches;
use duramen_protocol::messages::add_partitions_to_txn::AddPartitionsToTxnTopic;
use duramen_protocol::messages::delete_records::{DeleteRecordsPartition, DeleteRecordsTopic};
use duramen_protocol::messages::fetch::PartitionData;
use duramen_protocol::messages::list_offsets::{ListOffsetsPartition, ListOffsetsTopic};
use duramen_protocol::messages::offset_fetch::{OffsetFetchRequestGroup, OffsetFetchRequestTopics};
use duramen_protocol::messages::txn_offset_commit::{
    TxnOffsetCommitRequestPartition, TxnOffsetCommitRequestTopic,
};
use duramen_protocol::messages::{
    AddOffsetsToTxnRequest, AddPartitionsToTxnRequest, DeleteRecordsRequest,
    DescribeProducersRequest, DescribeTransactionsRequest, EndTxnRequest, FetchRequest,
    FindCoordinatorRequest, InitProducerIdRequest, ListOffsetsRequest, ListTransactionsRequest,
    OffsetFetchRequest, TxnOffsetCommitRequest, describe_producers,
};
use duramen_protocol::{ErrorCode, Request, Response};
use duramen_storage::op::Done;

use super::harness::{Harness, batch, builder, fetch_request, produce_request};
use super::trio::Trio;
use crate::event::ReadLog;
use crate::internal_topics::{GROUPS, partition_of};

const FEW: [(&str, &str); 2] =
    [("transaction.state.log.num.partitions", "2"), ("offsets.topic.num.partitions", "2")];

/// Where requests go.
pub(super) trait Asked {
    fn ask(&mut self, request: Request, version: i16) -> Response;
}

impl Asked for Harness {
    fn ask(&mut self, request: Request, version: i16) -> Response {
        Self::ask(self, request, version)
    }
}

/// A producer of transactions, of either protocol.
pub(super) struct Producer {
    name: &'static str,
    version: i16,
    id: i64,
    epoch: i16,
    /// By topic.
    sequences: BTreeMap<String, i32>,
}

fn code_of(code: i16) -> ErrorCode {
    ErrorCode::from_code(code).expect("a known code")
}

impl Producer {
    pub(super) fn new(it: &mut impl Asked, name: &'static str, version: i16) -> Self {
        find(it, 0, "g");
        Self::alone(it, name, version)
    }

    /// One on whose cluster there may be no group yet.
    fn alone(it: &mut impl Asked, name: &'static str, version: i16) -> Self {
        find(it, 1, name);
        let mut producer = Self { name, version, id: -1, epoch: -1, sequences: BTreeMap::new() };
        assert_eq!(producer.init(it), ErrorCode::None);
        producer
    }

    fn init(&mut self, it: &mut impl Asked) -> ErrorCode {
        let request = InitProducerIdRequest {
            transactional_id: Some(self.name.to_owned()),
            transaction_timeout_ms: 60_000,
            ..Default::default()
        };
        let Response::InitProducerId(answer) = it.ask(request.into(), 5) else { panic!("other") };
        (self.id, self.epoch) = (answer.producer_id, answer.producer_epoch);
        self.sequences.clear();
        code_of(answer.error_code)
    }

    fn sequence(&mut self, topic: &str) -> &mut i32 {
        self.sequences.entry(topic.to_owned()).or_default()
    }

    fn batch(&mut self, topic: &str, values: &[&str]) -> Bytes {
        let sequence = *self.sequence(topic);
        let built = builder(values, 1_000).producer(self.id, self.epoch, sequence);
        built.transactional().build().expect("a batch")
    }

    fn produce(
        &mut self,
        it: &mut impl Asked,
        topic: &str,
        values: &[&str],
    ) -> Result<i64, ErrorCode> {
        let mut request = produce_request(topic, self.batch(topic, values), -1);
        request.transactional_id = Some(self.name.to_owned());
        let version = if self.version == 2 { 12 } else { 11 };
        let Response::Produce(answer) = it.ask(request.into(), version) else { panic!("other") };
        let part = &answer.responses[0].partition_responses[0];
        match code_of(part.error_code) {
            ErrorCode::None => {
                *self.sequence(topic) += i32::try_from(values.len()).expect("few");
                Ok(part.base_offset)
            }
            code => Err(code),
        }
    }

    fn add(&self, it: &mut impl Asked, topic: &str) -> ErrorCode {
        let topic = AddPartitionsToTxnTopic { name: topic.to_owned(), partitions: vec![0] };
        let request = AddPartitionsToTxnRequest {
            v3_and_below_transactional_id: self.name.to_owned(),
            v3_and_below_producer_id: self.id,
            v3_and_below_producer_epoch: self.epoch,
            v3_and_below_topics: vec![topic],
            ..Default::default()
        };
        let Response::AddPartitionsToTxn(answer) = it.ask(request.into(), 3) else {
            panic!("other")
        };
        let topic = &answer.results_by_topic_v3_and_below[0];
        code_of(topic.results_by_partition[0].partition_error_code)
    }

    /// Writes, as its protocol has it.
    pub(super) fn write(&mut self, it: &mut impl Asked, topic: &str, values: &[&str]) -> i64 {
        if self.version == 1 {
            assert_eq!(self.add(it, topic), ErrorCode::None);
        }
        self.produce(it, topic, values).expect("it may")
    }

    pub(super) fn end(&mut self, it: &mut impl Asked, committed: bool) -> ErrorCode {
        let request = EndTxnRequest {
            transactional_id: self.name.to_owned(),
            producer_id: self.id,
            producer_epoch: self.epoch,
            committed,
        };
        let version = if self.version == 2 { 5 } else { 4 };
        let Response::EndTxn(answer) = it.ask(request.into(), version) else { panic!("other") };
        if answer.error_code == 0 && self.version == 2 {
            (self.id, self.epoch) = (answer.producer_id, answer.producer_epoch);
            self.sequences.clear();
        }
        code_of(answer.error_code)
    }

    fn add_offsets(&self, it: &mut impl Asked) -> ErrorCode {
        let request = AddOffsetsToTxnRequest {
            transactional_id: self.name.to_owned(),
            producer_id: self.id,
            producer_epoch: self.epoch,
            group_id: "g".to_owned(),
        };
        let Response::AddOffsetsToTxn(answer) = it.ask(request.into(), 4) else { panic!("other") };
        code_of(answer.error_code)
    }

    fn commit_offset(&self, it: &mut impl Asked, topic: &str, committed_offset: i64) -> ErrorCode {
        if self.version == 1 {
            assert_eq!(self.add_offsets(it), ErrorCode::None);
        }
        let partition = TxnOffsetCommitRequestPartition { committed_offset, ..Default::default() };
        let topic =
            TxnOffsetCommitRequestTopic { name: topic.to_owned(), partitions: vec![partition] };
        let request = TxnOffsetCommitRequest {
            transactional_id: self.name.to_owned(),
            group_id: "g".to_owned(),
            producer_id: self.id,
            producer_epoch: self.epoch,
            topics: vec![topic],
            ..Default::default()
        };
        let version = if self.version == 2 { 5 } else { 4 };
        let Response::TxnOffsetCommit(answer) = it.ask(request.into(), version) else {
            panic!("other")
        };
        code_of(answer.topics[0].partitions[0].error_code)
    }
}

fn find(it: &mut impl Asked, key_type: i8, key: &str) {
    let coordinator_keys = vec![key.to_owned()];
    let request = FindCoordinatorRequest { key_type, coordinator_keys, ..Default::default() };
    let Response::FindCoordinator(answer) = it.ask(request.into(), 4) else { panic!("other") };
    assert_eq!(answer.coordinators[0].error_code, 0);
}

/// Clients of the first protocol ask for the offsets' place in their transaction before they look for the group.
fn commit_an_offset_before_there_is_any_group(it: &mut impl Asked, name: &'static str) {
    let mut producer = Producer::alone(it, name, 1);
    assert_eq!(producer.add_offsets(it), ErrorCode::None);
    find(it, 0, "g");
    assert_eq!(producer.commit_offset(it, "t", 7), ErrorCode::None);
    assert_eq!(producer.end(it, true), ErrorCode::None);
}

fn read(it: &mut Harness, topic: &str, offset: i64, isolation_level: i8) -> PartitionData {
    let request = FetchRequest { isolation_level, max_wait_ms: 0, ..fetch_request(topic, offset) };
    let Response::Fetch(mut answer) = Harness::ask(it, request, 12) else { panic!("other") };
    answer.responses.remove(0).partitions.remove(0)
}

/// The offsets at which the batches begin that were read.
fn offsets(data: &PartitionData) -> Vec<i64> {
    let bytes = super::harness::bytes_of(data);
    batches(bytes).map(|batch| batch.expect("whole").header().base_offset).collect()
}

fn aborted(data: &PartitionData) -> Vec<(i64, i64)> {
    let all = data.aborted_transactions.iter().flatten();
    all.map(|it| (it.producer_id, it.first_offset)).collect()
}

fn latest(it: &mut Harness, topic: &str, isolation_level: i8) -> i64 {
    let partitions = vec![ListOffsetsPartition { timestamp: -1, ..Default::default() }];
    let topics = vec![ListOffsetsTopic { name: topic.to_owned(), partitions }];
    let request = ListOffsetsRequest { isolation_level, topics, ..Default::default() };
    let Response::ListOffsets(answer) = Harness::ask(it, request, 7) else { panic!("other") };
    answer.topics[0].partitions[0].offset
}

fn offset_of(it: &mut impl Asked, require_stable: bool) -> Result<i64, ErrorCode> {
    let topics = vec![OffsetFetchRequestTopics {
        name: "t".to_owned(),
        partition_indexes: vec![0],
        ..Default::default()
    }];
    let group = OffsetFetchRequestGroup {
        group_id: "g".to_owned(),
        topics: Some(topics),
        ..Default::default()
    };
    let request = OffsetFetchRequest { groups: vec![group], require_stable, ..Default::default() };
    let Response::OffsetFetch(answer) = it.ask(request.into(), 9) else { panic!("other") };
    let partition = &answer.groups[0].topics[0].partitions[0];
    match code_of(partition.error_code) {
        ErrorCode::None => Ok(partition.committed_offset),
        code => Err(code),
    }
}

#[test]
fn what_is_open_is_not_shown_to_readers_of_committed_records_and_what_was_aborted_is_named() {
    for version in [1, 2] {
        let mut it = Harness::new(&FEW);
        it.create("t", &[]);
        it.produce("t", batch(&["plain"]));
        let mut first = Producer::new(&mut it, "first", version);
        let mut second = Producer::new(&mut it, "second", version);
        assert_eq!(first.write(&mut it, "t", &["a", "b"]), 1);
        assert_eq!(second.write(&mut it, "t", &["c"]), 3);
        it.produce("t", batch(&["plain"]));
        let data = read(&mut it, "t", 0, 1);
        assert_eq!((data.high_watermark, data.last_stable_offset), (5, 1));
        assert_eq!((offsets(&data), aborted(&data)), (vec![0], vec![]));
        assert_eq!(offsets(&read(&mut it, "t", 0, 0)), [0, 1, 3, 4]);
        assert_eq!((latest(&mut it, "t", 1), latest(&mut it, "t", 0)), (1, 5));
        assert_eq!(second.end(&mut it, true), ErrorCode::None);
        let data = read(&mut it, "t", 1, 1);
        assert_eq!((data.high_watermark, data.last_stable_offset), (6, 1), "the first is open");
        assert_eq!(offsets(&data), [0; 0]);
        let id = first.id;
        assert_eq!(first.end(&mut it, false), ErrorCode::None);
        let data = read(&mut it, "t", 0, 1);
        assert_eq!((data.high_watermark, data.last_stable_offset), (7, 7));
        assert_eq!(offsets(&data), [0, 1, 3, 4, 5, 6], "markers are read, too");
        assert_eq!(aborted(&data), [(id, 1)]);
        assert_eq!(aborted(&read(&mut it, "t", 6, 1)), [(id, 1)], "its marker is there");
        let data = read(&mut it, "t", 0, 0);
        assert_eq!(data.aborted_transactions, None);
        // Once it is written that they are over, nothing is marked again.
        it.pass_ms(100);
        // All of this is known after a start, from the log and from an image.
        for has_image in [false, true] {
            if has_image {
                let replica = it.replica("t");
                it.storage(Done::WantImage { replica });
            }
            it.restart(&FEW, 2);
            let data = read(&mut it, "t", 0, 1);
            assert_eq!((data.last_stable_offset, aborted(&data)), (7, vec![(id, 1)]));
        }
    }
}

#[test]
fn an_open_transaction_outlasts_a_start_and_is_aborted_when_its_time_is_over() {
    for has_image in [false, true] {
        let mut it = Harness::new(&FEW);
        it.create("t", &[]);
        let mut producer = Producer::new(&mut it, "x", 2);
        producer.write(&mut it, "t", &["a"]);
        if has_image {
            let replica = it.replica("t");
            it.storage(Done::WantImage { replica });
        }
        it.restart(&FEW, 2);
        assert_eq!(producer.produce(&mut it, "t", &["b"]), Ok(1), "it goes on");
        let data = read(&mut it, "t", 0, 1);
        assert_eq!((data.high_watermark, data.last_stable_offset), (2, 0));
        it.pass_ms(61_000);
        let data = read(&mut it, "t", 0, 1);
        assert_eq!((data.high_watermark, data.last_stable_offset), (3, 3));
        assert_eq!(aborted(&data), [(producer.id, 0)]);
        assert_eq!(producer.produce(&mut it, "t", &["c"]), Err(ErrorCode::InvalidProducerEpoch));
    }
}

#[test]
fn a_transaction_outlasts_a_start_whose_image_is_older_than_a_trim() {
    let mut it = Harness::new(&FEW);
    it.create("t", &[]);
    let mut producer = Producer::new(&mut it, "x", 2);
    producer.write(&mut it, "t", &["a"]);
    let replica = it.replica("t");
    it.storage(Done::WantImage { replica });
    producer.write(&mut it, "t", &["b"]);
    let partitions = vec![DeleteRecordsPartition { partition_index: 0, offset: 2 }];
    let topics = vec![DeleteRecordsTopic { name: "t".to_owned(), partitions }];
    Harness::ask(&mut it, DeleteRecordsRequest { topics, timeout_ms: 1000 }, 2);
    it.restart(&FEW, 2);
    assert_eq!(producer.produce(&mut it, "t", &["c"]), Ok(2), "it goes on");
    let data = read(&mut it, "t", 2, 1);
    assert_eq!((data.high_watermark, data.last_stable_offset), (3, 2));
}

#[test]
fn a_parked_reader_of_committed_records_is_woken_by_the_end_of_a_transaction() {
    let mut it = Harness::new(&FEW);
    it.create("t", &[]);
    let mut producer = Producer::new(&mut it, "x", 2);
    let request = FetchRequest {
        isolation_level: 1,
        max_wait_ms: 30_000,
        min_bytes: 1,
        ..fetch_request("t", 0)
    };
    let two = crate::event::ConnectionId(2);
    let parked = it.enqueue(two, &request.into(), 12);
    it.run();
    producer.write(&mut it, "t", &["a"]);
    assert_eq!(it.response_on(two, parked), None, "nothing stable came");
    producer.end(&mut it, true);
    let Some(Response::Fetch(answer)) = it.response_on(two, parked) else { panic!("it waits") };
    assert_eq!(offsets(&answer.responses[0].partitions[0]), [0, 1]);
}

#[test]
fn what_was_not_added_is_not_written_and_what_is_not_over_is_not_left() {
    let mut it = Harness::new(&FEW);
    it.create("t", &[]);
    let mut old = Producer::new(&mut it, "old", 1);
    assert_eq!(old.produce(&mut it, "t", &["a"]), Err(ErrorCode::TransactionAbortable));
    assert_eq!(read(&mut it, "t", 0, 0).high_watermark, 0);
    old.write(&mut it, "t", &["a"]);
    // A batch outside of it has no place in its middle.
    let plain = builder(&["x"], 1_000).producer(old.id, old.epoch, 1);
    let refused = it.produce("t", plain.build().expect("a batch")).error_code;
    assert_eq!(code_of(refused), ErrorCode::InvalidTxnState);
    assert_eq!(old.end(&mut it, true), ErrorCode::None);
    assert_eq!(old.produce(&mut it, "t", &["b"]), Err(ErrorCode::TransactionAbortable));
    let mut new = Producer::new(&mut it, "new", 2);
    let before = new.epoch;
    new.write(&mut it, "t", &["a"]);
    assert_eq!(new.end(&mut it, true), ErrorCode::None);
    let sequences = [("t".to_owned(), 1)].into();
    let mut late = Producer { epoch: before, sequences, ..new };
    assert_eq!(late.produce(&mut it, "t", &["late"]), Err(ErrorCode::InvalidProducerEpoch));
}

/// As in Kafka: a producer of the second protocol has a new epoch, and so new sequences, in each transaction.
#[test]
fn a_transaction_of_the_first_protocol_goes_on_in_a_topic_that_was_made_again() {
    for version in [1, 2] {
        let mut it = Harness::new(&FEW);
        it.create("t", &[]);
        let mut producer = Producer::new(&mut it, "x", version);
        producer.write(&mut it, "t", &["a", "b"]);
        assert_eq!(producer.end(&mut it, true), ErrorCode::None);
        super::topics::delete(&mut it, "t");
        it.create("t", &[]);
        if version == 1 {
            assert_eq!(producer.add(&mut it, "t"), ErrorCode::None);
        }
        *producer.sequence("t") = 2;
        let went_on = producer.produce(&mut it, "t", &["c"]);
        let refused = Err(ErrorCode::OutOfOrderSequenceNumber);
        assert_eq!(went_on, if version == 1 { Ok(0) } else { refused });
    }
}

#[test]
fn offsets_move_with_their_transaction() {
    for version in [1, 2] {
        let mut it = Harness::new(&FEW);
        it.create("t", &[]);
        let mut producer = Producer::new(&mut it, "x", version);
        for (commits, offset, after) in [(true, 5, 5), (false, 9, 5), (true, 7, 7)] {
            assert_eq!(producer.commit_offset(&mut it, "t", offset), ErrorCode::None);
            assert_eq!(offset_of(&mut it, true), Err(ErrorCode::UnstableOffsetCommit));
            // Also for a coordinator that reads its log anew.
            it.restart(&FEW, 2);
            assert_eq!(offset_of(&mut it, true), Err(ErrorCode::UnstableOffsetCommit));
            assert_eq!(producer.end(&mut it, commits), ErrorCode::None);
            assert_eq!(offset_of(&mut it, true), Ok(after));
            it.restart(&FEW, 3);
            assert_eq!(offset_of(&mut it, true), Ok(after));
        }
        if version == 1 {
            let stranger = Producer { epoch: producer.epoch - 1, version: 2, ..producer };
            let told = stranger.commit_offset(&mut it, "t", 1);
            assert_eq!(told, ErrorCode::InvalidProducerEpoch);
        }
    }
}

/// The leader of a log writes markers from its election on, and its coordinator may still be reading the log.
#[test]
fn a_transaction_that_ends_while_groups_are_loaded_takes_its_offsets_with_it() {
    for (commits, after) in [(true, 5), (false, -1)] {
        let mut it = Harness::new(&FEW);
        it.create("t", &[]);
        let mut producer = Producer::new(&mut it, "x", 2);
        assert_eq!(producer.commit_offset(&mut it, "t", 5), ErrorCode::None);
        it.restart_without_reading(&FEW, 2);
        let is_of_groups = |it: &Harness, read: &ReadLog| {
            it.store.replicas[&read.replica].identity.topic == GROUPS
        };
        let reads = std::mem::take(&mut it.reads).into_iter();
        let (of_groups, others): (Vec<_>, _) = reads.partition(|read| is_of_groups(&it, read));
        let [ReadLog { replica, end, .. }] = of_groups[..] else { panic!("{of_groups:?}") };
        it.reads = others;
        it.is_prompt = true;
        it.run();
        assert_eq!(producer.end(&mut it, commits), ErrorCode::None);
        it.pass_ms(100);
        let markers = it.store.replicas[&replica].batches(end, i64::MAX).len();
        assert_eq!(markers, 1, "the marker is written behind what is read");
        it.reads = of_groups;
        it.run();
        assert_eq!(offset_of(&mut it, true), Ok(after));
    }
}

#[test]
fn offsets_may_be_committed_in_a_transaction_before_there_is_any_group() {
    let mut it = Harness::new(&FEW);
    it.create("t", &[]);
    commit_an_offset_before_there_is_any_group(&mut it, "x");
    assert_eq!(offset_of(&mut it, true), Ok(7));
}

#[test]
fn administrators_see_transactions_and_their_producers() {
    let mut it = Harness::new(&FEW);
    it.create("t", &[]);
    let mut producer = Producer::new(&mut it, "x", 2);
    producer.write(&mut it, "t", &["a"]);
    let request = DescribeTransactionsRequest {
        transactional_ids: vec!["x".to_owned(), "nobody".to_owned(), String::new()],
    };
    let Response::DescribeTransactions(answer) = Harness::ask(&mut it, request, 0) else {
        panic!("other")
    };
    let states = &answer.transaction_states;
    assert_eq!(states[0].transaction_state, "Ongoing");
    assert_eq!(
        (states[0].topics[0].topic.as_str(), &states[0].topics[0].partitions[..]),
        ("t", &[0][..])
    );
    let codes: Vec<_> = states.iter().map(|it| code_of(it.error_code)).collect();
    let expected = [ErrorCode::None, ErrorCode::TransactionalIdNotFound, ErrorCode::InvalidRequest];
    assert_eq!(codes, expected);
    let topics =
        vec![describe_producers::TopicRequest { name: "t".to_owned(), partition_indexes: vec![0] }];
    let Response::DescribeProducers(answer) =
        Harness::ask(&mut it, DescribeProducersRequest { topics }, 0)
    else {
        panic!("other")
    };
    let active = &answer.topics[0].partitions[0].active_producers[0];
    assert_eq!((active.current_txn_start_offset, active.coordinator_epoch), (0, -1));
    let listed = |it: &mut Harness, pattern: Option<&str>, states: &[&str]| {
        let request = ListTransactionsRequest {
            state_filters: states.iter().map(|it| (*it).to_owned()).collect(),
            transactional_id_pattern: pattern.map(str::to_owned),
            duration_filter: -1,
            ..Default::default()
        };
        let Response::ListTransactions(answer) = Harness::ask(it, request, 2) else {
            panic!("other")
        };
        (code_of(answer.error_code), answer.transaction_states.len(), answer.unknown_state_filters)
    };
    assert_eq!(listed(&mut it, None, &[]), (ErrorCode::None, 1, vec![]));
    assert_eq!(listed(&mut it, Some("x|y"), &["Ongoing"]).1, 1);
    assert_eq!(listed(&mut it, Some("xy"), &[]).1, 0, "the pattern is for all of it");
    let strange = vec!["Odd".to_owned()];
    assert_eq!(listed(&mut it, None, &["Odd"]), (ErrorCode::None, 0, strange));
    assert_eq!(listed(&mut it, Some("("), &[]).0, ErrorCode::InvalidRegularExpression);
}

/// Each request goes to the node that it is for.
impl Asked for Trio {
    fn ask(&mut self, request: Request, version: i16) -> Response {
        let of = |it: &Self, topic: &str, key: &str| {
            let image = &it.nodes[it.controller()].node.core.controller.image;
            let topic_there = image.topic_named(topic).expect("it was made");
            let partition = partition_of(key, topic_there.partitions.len());
            it.leader(topic, partition).expect("somebody coordinates")
        };
        let state = "__transaction_state";
        let at = match &request {
            Request::InitProducerId(it) => {
                of(self, state, it.transactional_id.as_deref().expect("of transactions"))
            }
            Request::AddPartitionsToTxn(it) => of(self, state, &it.v3_and_below_transactional_id),
            Request::AddOffsetsToTxn(it) => of(self, state, &it.transactional_id),
            Request::EndTxn(it) => of(self, state, &it.transactional_id),
            Request::TxnOffsetCommit(it) => of(self, "__consumer_offsets", &it.group_id),
            Request::OffsetFetch(it) => of(self, "__consumer_offsets", &it.groups[0].group_id),
            Request::Produce(it) => self.leader(&it.topic_data[0].name, 0).expect("led"),
            _ => self.controller(),
        };
        for _ in 0..100 {
            let id = self.send(at, request.clone(), version);
            self.talk();
            for _ in 0..40 {
                if let Some(answer) = self.response(at, id) {
                    let is_made = !matches!(&answer, Response::FindCoordinator(it)
                        if it.coordinators[0].error_code != 0);
                    if is_made {
                        return answer;
                    }
                    break;
                }
                self.pass_ms(50);
            }
            self.pass_ms(500);
        }
        panic!("{request:?} is not answered")
    }
}

fn settled(trio: &mut Trio, topic: &str) -> (i64, i64) {
    trio.pass_ms(1_000);
    let leader = trio.leader(topic, 0).expect("led");
    let replica = trio.replica(leader, topic, 0);
    let partition = &trio.nodes[leader].node.core.partitions[&replica];
    (partition.committed(), partition.stable())
}

#[test]
fn nodes_ask_each_other_and_mark_what_others_lead() {
    for version in [1, 2] {
        let mut trio = Trio::new(&FEW);
        for topic in ["t", "u", "v"] {
            trio.create(topic, 1);
        }
        let mut producer = Producer::new(&mut trio, "x", version);
        for (commits, end) in [(true, 2), (false, 4)] {
            for topic in ["t", "u", "v"] {
                producer.write(&mut trio, topic, &["a"]);
                assert_eq!(settled(&mut trio, topic), (end - 1, end - 2));
            }
            assert_eq!(producer.commit_offset(&mut trio, "t", end), ErrorCode::None);
            assert_eq!(offset_of(&mut trio, true), Err(ErrorCode::UnstableOffsetCommit));
            assert_eq!(producer.end(&mut trio, commits), ErrorCode::None);
            for topic in ["t", "u", "v"] {
                assert_eq!(settled(&mut trio, topic), (end, end), "{topic} is marked");
            }
            assert_eq!(offset_of(&mut trio, true), Ok(2), "that of the first");
        }
    }
}

#[test]
fn whichever_of_three_nodes_is_asked_first_has_the_topic_of_groups_made() {
    let pairs =
        [("transaction.state.log.num.partitions", "3"), ("offsets.topic.num.partitions", "2")];
    let mut asked = std::collections::BTreeSet::new();
    for name in ["w", "x", "y"] {
        let mut trio = Trio::new(&pairs);
        trio.create("t", 1);
        find(&mut trio, 1, name);
        trio.pass_ms(3_000);
        let at = trio.leader("__transaction_state", partition_of(name, 3));
        asked.insert(at);
        commit_an_offset_before_there_is_any_group(&mut trio, name);
        trio.pass_ms(1_000);
        assert_eq!(offset_of(&mut trio, true), Ok(7));
    }
    assert_eq!(asked.len(), 3, "each was asked, so also the one that leads the metadata");
}

/// What ends a transaction of version 2 is answered before its markers are written.
#[test]
fn an_offset_of_the_next_transaction_waits_for_the_end_of_the_last_one() {
    let mut trio = Trio::new(&FEW);
    trio.create("t", 1);
    let mut producer = Producer::new(&mut trio, "x", 2);
    trio.pass_ms(3_000);
    assert_eq!(producer.commit_offset(&mut trio, "t", 1), ErrorCode::None);
    let coordinator = trio.leader("__transaction_state", partition_of("x", 2));
    let groups = trio.leader("__consumer_offsets", partition_of("g", 2)).expect("led");
    assert_ne!(coordinator, Some(groups), "a node of its own keeps the group");

    // The end is decided by the other two, and the marker does not arrive.
    trio.cut.insert(groups);
    assert_eq!(producer.end(&mut trio, true), ErrorCode::None);
    trio.cut.clear();
    assert_eq!(trio.leader("__consumer_offsets", partition_of("g", 2)), Some(groups));
    assert_eq!(offset_of(&mut trio, true), Err(ErrorCode::UnstableOffsetCommit));

    assert_eq!(producer.commit_offset(&mut trio, "t", 3), ErrorCode::None);
    assert_eq!(producer.end(&mut trio, true), ErrorCode::None);
    trio.pass_ms(1_000);
    assert_eq!(offset_of(&mut trio, true), Ok(3));
}
