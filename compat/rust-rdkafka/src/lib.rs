//! rust-rdkafka (librdkafka behind Rust) against one broker.

#![cfg(test)]

mod groups;
mod transactions;

use std::fmt::Debug;
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use futures_executor::block_on;
use rdkafka::ClientContext;
use rdkafka::admin::{
    AdminClient, AdminOptions, AlterConfig, NewPartitions, NewTopic, ResourceSpecifier,
    TopicReplication, TopicResult,
};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::{ClientConfig, FromClientConfigAndContext};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use rdkafka::message::{Header, Headers, Message, OwnedHeaders, OwnedMessage, Timestamp};
use rdkafka::producer::{BaseProducer, BaseRecord, DeliveryResult, Producer, ProducerContext};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use suite::{bootstrap, brokers, strict_bootstrap, unique, until};

const PATIENCE: Duration = Duration::from_secs(40);

/// The settings of a client, topics here living for moments.
fn config(settings: &[(&str, &str)]) -> ClientConfig {
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", bootstrap())
        .set("topic.metadata.refresh.fast.interval.ms", "20");
    for (name, value) in settings {
        config.set(*name, *value);
    }
    config
}

/// One for all: it takes a while to end.
fn admin() -> &'static AdminClient<DefaultClientContext> {
    static ADMIN: OnceLock<AdminClient<DefaultClientContext>> = OnceLock::new();
    ADMIN.get_or_init(|| config(&[]).create().expect("an admin client"))
}

fn create(name: &str, partitions: i32, replicas: i32, settings: &[(&str, &str)]) -> TopicResult {
    let mut topic = NewTopic::new(name, partitions, TopicReplication::Fixed(replicas));
    for (name, value) in settings {
        topic = topic.set(name, value);
    }
    block_on(admin().create_topics([&topic], &AdminOptions::new())).expect("an answer").remove(0)
}

fn new_topic(partitions: i32, settings: &[(&str, &str)]) -> String {
    let name = unique("rdkafka");
    create(&name, partitions, brokers().into(), settings).expect("created");
    name
}

/// Remembers what became of each record: its partition and offset, or the error.
#[derive(Default)]
struct Reports(Mutex<Vec<KafkaResult<(i32, i64)>>>);

impl ClientContext for Reports {}

impl ProducerContext for Reports {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        let report = match result {
            Ok(message) => Ok((message.partition(), message.offset())),
            Err((error, _)) => Err(error.clone()),
        };
        self.0.lock().expect("no panic").push(report);
    }
}

/// Produces and returns the reports in the order of delivery.
fn produce(records: &[OwnedMessage], settings: &[(&str, &str)]) -> Vec<KafkaResult<(i32, i64)>> {
    let all = config(&[&[("linger.ms", "1")], settings].concat());
    let producer: BaseProducer<Reports> =
        BaseProducer::from_config_and_context(&all, Reports::default()).expect("a producer");
    for one in records {
        let mut record = BaseRecord::to(one.topic()).partition(one.partition());
        record.key = one.key();
        record.payload = one.payload();
        record.headers = one.headers().cloned();
        record.timestamp = one.timestamp().to_millis();
        producer.send(record).expect("room in the queue");
    }
    producer.flush(PATIENCE).expect("flushed");
    std::mem::take(&mut *producer.context().0.lock().expect("no panic"))
}

fn must_produce(records: &[OwnedMessage], settings: &[(&str, &str)]) -> Vec<(i32, i64)> {
    produce(records, settings).into_iter().map(|report| report.expect("delivered")).collect()
}

fn message(topic: &str, key: Option<&[u8]>, value: Option<&[u8]>) -> OwnedMessage {
    let (key, value) = (key.map(Vec::from), value.map(Vec::from));
    OwnedMessage::new(value, key, topic.to_owned(), Timestamp::NotAvailable, 0, 0, None)
}

fn numbered(topic: &str, count: usize) -> Vec<OwnedMessage> {
    (0..count).map(|number| message(topic, None, Some(number.to_string().as_bytes()))).collect()
}

fn assigned(
    topic: &str,
    partitions: i32,
    offset: Offset,
    settings: &[(&str, &str)],
) -> BaseConsumer {
    let fixed = [
        ("group.id", "unused"),
        ("enable.auto.commit", "false"),
        ("fetch.wait.max.ms", "200"),
        ("check.crcs", "true"),
    ];
    let consumer: BaseConsumer = config(&[&fixed, settings].concat()).create().expect("a consumer");
    let mut list = TopicPartitionList::new();
    for partition in 0..partitions {
        list.add_partition_offset(topic, partition, offset).expect("an offset");
    }
    consumer.assign(&list).expect("assigned");
    consumer
}

fn poll(consumer: &BaseConsumer) -> KafkaResult<OwnedMessage> {
    consumer.poll(PATIENCE).expect("a message in time").map(|message| message.detach())
}

/// Reads `count` records of partition 0 from an offset on.
fn consume(
    topic: &str,
    count: usize,
    offset: Offset,
    settings: &[(&str, &str)],
) -> Vec<OwnedMessage> {
    let consumer = assigned(topic, 1, offset, settings);
    (0..count).map(|_| poll(&consumer).expect("a record")).collect()
}

fn values(messages: &[OwnedMessage]) -> Vec<Option<&[u8]>> {
    messages.iter().map(Message::payload).collect()
}

fn refused<T: Debug>(result: KafkaResult<T>, expected: RDKafkaErrorCode) {
    match &result {
        Err(error) if error.rdkafka_error_code() == Some(expected) => {}
        other => panic!("expected {expected:?}, got {other:?}"),
    }
}

fn topic_refused(result: TopicResult, expected: RDKafkaErrorCode) {
    assert_eq!(result.expect_err("refused").1, expected);
}

#[test]
fn keys_values_headers_and_timestamps_come_back_as_they_went_with_every_codec() {
    for codec in ["none", "gzip", "snappy", "lz4", "zstd"] {
        let topic = new_topic(1, &[]);
        let sent: Vec<OwnedMessage> = (0..500i64)
            .map(|number| {
                let headers = OwnedHeaders::new()
                    .insert(Header { key: "a", value: Some("1") })
                    .insert(Header { key: "a", value: Some("") })
                    .insert(Header { key: "null", value: None::<&str> });
                message(
                    &topic,
                    Some(format!("key-{number}").as_bytes()),
                    Some(format!("value-{number} ").repeat(50).as_bytes()),
                )
                .set_timestamp(Timestamp::CreateTime(1_600_000_000_000 + number))
                .replace_headers(Some(headers))
            })
            .collect();
        let reports = must_produce(&sent, &[("compression.type", codec)]);
        assert_eq!(reports, (0..500).map(|offset| (0, offset)).collect::<Vec<_>>());
        for (index, (got, one)) in
            consume(&topic, 500, Offset::Beginning, &[]).iter().zip(&sent).enumerate()
        {
            assert_eq!(
                (got.offset(), got.key(), got.payload()),
                (index as i64, one.key(), one.payload()),
                "{codec}"
            );
            assert_eq!(got.timestamp(), one.timestamp(), "{codec}");
            let headers: Vec<_> =
                got.headers().expect("headers").iter().map(|one| (one.key, one.value)).collect();
            assert_eq!(
                headers,
                [("a", Some(&b"1"[..])), ("a", Some(&b""[..])), ("null", None)],
                "{codec}"
            );
        }
    }
}

#[test]
fn null_and_empty_keys_and_values_stay_apart() {
    let topic = new_topic(1, &[]);
    let (k, v, empty): (&[u8], &[u8], &[u8]) = (b"k", b"v", b"");
    let pairs = [
        (None, Some(v)),
        (Some(k), None),
        (None, None),
        (Some(empty), Some(empty)),
        (Some(k), Some(empty)),
    ];
    must_produce(&pairs.map(|(key, value)| message(&topic, key, value)), &[]);
    let found = consume(&topic, pairs.len(), Offset::Beginning, &[]);
    assert_eq!(found.iter().map(|got| (got.key(), got.payload())).collect::<Vec<_>>(), pairs);
}

#[test]
fn a_log_append_time_topic_stamps_records_itself() {
    let topic = new_topic(1, &[("message.timestamp.type", "LogAppendTime")]);
    let before = Timestamp::now().to_millis().expect("a time");
    must_produce(
        &[message(&topic, None, Some(b"v")).set_timestamp(Timestamp::CreateTime(1000))],
        &[],
    );
    match consume(&topic, 1, Offset::Beginning, &[])[0].timestamp() {
        Timestamp::LogAppendTime(at) => {
            assert!(at >= before && at <= Timestamp::now().to_millis().expect("a time"), "{at}")
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_acks_setting_delivers() {
    for acks in ["0", "1", "all"] {
        let topic = new_topic(1, &[]);
        let sent = numbered(&topic, 200);
        let reports = must_produce(&sent, &[("acks", acks)]);
        assert!(acks == "0" || reports[199] == (0, 199), "acks={acks}: {:?}", reports[199]);
        assert_eq!(values(&consume(&topic, 200, Offset::Beginning, &[])), values(&sent));
    }
}

#[test]
fn an_idempotent_producer_keeps_order() {
    let topic = new_topic(1, &[]);
    let sent = numbered(&topic, 20_000);
    let idempotent = [("enable.idempotence", "true"), ("batch.num.messages", "100")];
    let reports = must_produce(&sent, &[&idempotent[..], &[("linger.ms", "0")]].concat());
    assert!(
        reports.iter().enumerate().all(|(index, report)| *report == (0, index as i64)),
        "the reports are not in order"
    );
    assert!(
        values(&consume(&topic, sent.len(), Offset::Beginning, &[])) == values(&sent),
        "the order differs"
    );
}

#[test]
fn a_record_of_11_mb_goes_through_when_the_topic_allows_it() {
    let topic = new_topic(1, &[("max.message.bytes", "11534336")]);
    let value: Vec<u8> =
        (0..(11 << 20) - 1000u32).map(|index| (index.wrapping_mul(31) >> 3) as u8).collect();
    for codec in ["none", "zstd"] {
        let large = [("message.max.bytes", "12000000"), ("compression.type", codec)];
        must_produce(&[message(&topic, None, Some(&value))], &large);
    }
    let room = [("fetch.message.max.bytes", "16000000"), ("receive.message.max.bytes", "64000000")];
    for got in consume(&topic, 2, Offset::Beginning, &room) {
        assert!(got.payload() == Some(&value), "the content differs");
    }
}

#[test]
fn refused_records_say_why() {
    let one = |report: Vec<KafkaResult<(i32, i64)>>| report.into_iter().next().expect("a report");
    let topic = new_topic(1, &[("max.message.bytes", "2000")]);
    let sent = [message(&topic, None, Some(b"before")), message(&topic, None, Some(b"after"))];
    must_produce(&sent[..1], &[]);
    refused(
        one(produce(&[message(&topic, None, Some(&[b'x'; 5000]))], &[])),
        RDKafkaErrorCode::MessageSizeTooLarge,
    );
    must_produce(&sent[1..], &[]);
    assert_eq!(values(&consume(&topic, 2, Offset::Beginning, &[])), values(&sent));

    let compacted = new_topic(1, &[("cleanup.policy", "compact")]);
    refused(
        one(produce(&[message(&compacted, None, Some(b"v"))], &[])),
        RDKafkaErrorCode::InvalidRecord,
    );
    let ahead = message(&new_topic(1, &[]), None, Some(b"v"))
        .set_timestamp(Timestamp::CreateTime(4_000_000_000_000));
    refused(one(produce(&[ahead], &[])), RDKafkaErrorCode::InvalidTimestamp);
}

#[test]
fn offsets_are_found_by_timestamp() {
    let topic = new_topic(1, &[]);
    let sent = numbered(&topic, 100).into_iter().enumerate();
    let sent: Vec<_> = sent
        .map(|(index, one)| one.set_timestamp(Timestamp::CreateTime(10_000 + 10 * index as i64)))
        .collect();
    must_produce(&sent, &[]);
    let consumer = assigned(&topic, 1, Offset::Beginning, &[]);
    for (asked, found) in [(0, 0), (10_000, 0), (10_001, 1), (10_495, 50), (10_990, 99)] {
        let mut list = TopicPartitionList::new();
        list.add_partition_offset(&topic, 0, Offset::Offset(asked)).expect("an offset");
        let answer = consumer.offsets_for_times(list, PATIENCE).expect("an answer");
        assert_eq!(answer.elements()[0].offset(), Offset::Offset(found), "timestamp {asked}");
    }
    assert_eq!(consumer.fetch_watermarks(&topic, 0, PATIENCE).expect("an answer"), (0, 100));
}

#[test]
fn many_partitions_are_read_by_one_consumer() {
    const PARTITIONS: i32 = 60;
    let topic = new_topic(PARTITIONS, &[]);
    let sent = numbered(&topic, 3000).into_iter().enumerate();
    let sent: Vec<_> =
        sent.map(|(index, one)| one.set_partition(index as i32 % PARTITIONS)).collect();
    // A broker of Apache Kafka may not know a new partition yet. Only this producer keeps the order when it sends again.
    must_produce(&sent, &[("enable.idempotence", "true")]);
    let consumer = assigned(&topic, PARTITIONS, Offset::Beginning, &[]);
    for _ in &sent {
        let got = poll(&consumer).expect("a record");
        let expected = got.offset() * i64::from(PARTITIONS) + i64::from(got.partition());
        assert_eq!(got.payload(), Some(expected.to_string().as_bytes()));
    }
}

#[test]
fn a_waiting_consumer_gets_a_record_at_once() {
    // Apache Kafka's was seen to take 700 ms; of the 5 s that the consumer would wait that is still at once.
    let is_kafka = std::env::var("BROKER_KIND").is_ok_and(|kind| kind == "kafka");
    let late_max = Duration::from_millis(if is_kafka { 2500 } else { 500 });
    let topic = new_topic(1, &[]);
    let consumer = assigned(&topic, 1, Offset::Beginning, &[("fetch.wait.max.ms", "5000")]);
    assert!(consumer.poll(Duration::from_millis(700)).is_none(), "nothing is there yet");
    for _ in 0..3 {
        must_produce(&[message(&topic, None, Some(b"now"))], &[("linger.ms", "0")]);
        let acknowledged = Instant::now();
        poll(&consumer).expect("a record");
        let late = acknowledged.elapsed();
        assert!(late < late_max, "woke {late:?} after the acknowledgement");
    }
}

fn partition_count(topic: &str) -> usize {
    let metadata = admin().inner().fetch_metadata(Some(topic), PATIENCE).expect("metadata");
    metadata.topics()[0].partitions().len()
}

#[test]
fn topics_are_deleted_and_recreated_with_no_old_data() {
    let topic = unique("rdkafka-again");
    for generation in 0..3 {
        create(&topic, 2, brokers().into(), &[]).expect("created");
        let sent = [message(&topic, None, Some(format!("generation {generation}").as_bytes()))];
        assert_eq!(must_produce(&sent, &[]), [(0, 0)]);
        assert_eq!(values(&consume(&topic, 1, Offset::Beginning, &[])), values(&sent));
        block_on(admin().delete_topics(&[&topic], &AdminOptions::new()))
            .expect("an answer")
            .remove(0)
            .expect("deleted");
        until("the topic is gone", || {
            let metadata = admin().inner().fetch_metadata(None, PATIENCE).expect("metadata");
            !metadata.topics().iter().any(|one| one.name() == topic)
        });
    }
}

#[test]
fn bad_topics_are_refused_by_code() {
    let name = unique("rdkafka-bad");
    topic_refused(create("bad name", 1, 1, &[]), RDKafkaErrorCode::InvalidTopic);
    topic_refused(create(&name, 1, 9, &[]), RDKafkaErrorCode::InvalidReplicationFactor);
    topic_refused(
        create(&name, 1, 1, &[("retention.ms", "soon")]),
        RDKafkaErrorCode::InvalidConfig,
    );
    topic_refused(
        create(&name, 1, 1, &[("no.such.setting", "1")]),
        RDKafkaErrorCode::InvalidConfig,
    );
    topic_refused(create(&new_topic(1, &[]), 1, 1, &[]), RDKafkaErrorCode::TopicAlreadyExists);
    let nowhere = unique("nowhere");
    let deleted = block_on(admin().delete_topics(&[&nowhere], &AdminOptions::new()))
        .expect("an answer")
        .remove(0);
    topic_refused(deleted, RDKafkaErrorCode::UnknownTopicOrPartition);
}

#[test]
fn an_unknown_topic_is_created_only_where_the_broker_allows_that() {
    must_produce(&[message(&unique("rdkafka-auto"), None, Some(b"v"))], &[]);
    let strict = strict_bootstrap();
    let quickly = [
        ("bootstrap.servers", &*strict),
        ("message.timeout.ms", "2000"),
        ("topic.metadata.propagation.max.ms", "0"),
    ];
    let reports = produce(&[message(&unique("rdkafka-refused"), None, Some(b"v"))], &quickly);
    // By the broker, or by the client after its patience.
    let code = reports[0].as_ref().expect_err("refused").rdkafka_error_code();
    let expected = [RDKafkaErrorCode::UnknownTopicOrPartition, RDKafkaErrorCode::UnknownTopic];
    assert!(expected.contains(&code.expect("a code")), "{code:?}");
}

#[test]
fn deleted_records_are_out_of_range() {
    let topic = new_topic(1, &[]);
    let sent = numbered(&topic, 10);
    for one in &sent {
        must_produce(std::slice::from_ref(one), &[]);
    }
    let mut before = TopicPartitionList::new();
    before.add_partition_offset(&topic, 0, Offset::Offset(6)).expect("an offset");
    let answer =
        block_on(admin().delete_records(&before, &AdminOptions::new())).expect("an answer");
    answer.elements()[0].error().expect("deleted");
    assert_eq!(values(&consume(&topic, 4, Offset::Offset(6), &[])), values(&sent[6..]));
    let earliest = [("auto.offset.reset", "earliest")];
    assert_eq!(values(&consume(&topic, 4, Offset::Offset(2), &earliest)), values(&sent[6..]));
    let consumer = assigned(&topic, 1, Offset::Offset(2), &[("auto.offset.reset", "error")]);
    match poll(&consumer) {
        Err(KafkaError::MessageConsumption(RDKafkaErrorCode::AutoOffsetReset)) => {}
        other => panic!("{other:?}"),
    }
}

#[test]
fn partitions_are_added_and_settings_changed() {
    let topic = new_topic(1, &[]);
    let more = NewPartitions::new(&topic, 3);
    block_on(admin().create_partitions([&more], &AdminOptions::new()))
        .expect("an answer")
        .remove(0)
        .expect("added");
    until("three partitions", || partition_count(&topic) == 3);
    let change = AlterConfig::new(ResourceSpecifier::Topic(&topic)).set("retention.ms", "123456");
    block_on(admin().alter_configs([&change], &AdminOptions::new()))
        .expect("an answer")
        .remove(0)
        .expect("changed");
    let retention = || {
        let resource = [&ResourceSpecifier::Topic(&topic)];
        let answer = block_on(admin().describe_configs(resource, &AdminOptions::new()))
            .expect("an answer")
            .remove(0);
        answer.expect("described").get("retention.ms").expect("a setting").value.clone()
    };
    until("the setting is there", || retention().as_deref() == Some("123456"));
}
