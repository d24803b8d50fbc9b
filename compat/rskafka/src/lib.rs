//! rskafka against one broker. It has partitions only: no groups, no idempotent
//! producer, always acks=all, and one header of each name.

#![cfg(test)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use rskafka::BackoffConfig;
use rskafka::client::error::{Error, ProtocolError};
use rskafka::client::partition::{Compression, OffsetAt, PartitionClient, UnknownTopicHandling};
use rskafka::client::producer::{BatchProducerBuilder, aggregator::RecordAggregator};
use rskafka::client::{Client, ClientBuilder, Credentials, SaslConfig};
use rskafka::record::Record;
use rustls::pki_types::{CertificateDer, pem::PemObject};
use rustls::{ClientConfig, RootCertStore};
use suite::{Login, bootstrap, brokers, login, strict_bootstrap, unique};

const TIMEOUT_MS: i32 = 5000;

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(future)
}

async fn client_of(bootstrap: String) -> Client {
    let backoff = BackoffConfig { deadline: Some(Duration::from_secs(10)), ..Default::default() };
    let addresses = bootstrap.split(',').map(str::to_owned).collect();
    let client = ClientBuilder::new(addresses).backoff_config(backoff);
    let client = match login() {
        Some(Login { user, password, ca }) => client
            .tls_config(Arc::new(trusting(&ca)))
            .sasl_config(SaslConfig::ScramSha512(Credentials::new(user, password))),
        None => client,
    };
    client.build().await.expect("a client")
}

/// TLS of who trusts brokers that the authority in this file vouches for.
fn trusting(ca: &str) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(ca).expect("a file in PEM") {
        roots.add(certificate.expect("a certificate")).expect("an authority");
    }
    ClientConfig::builder().with_root_certificates(roots).with_no_client_auth()
}

async fn create(client: &Client, name: &str, partitions: i32, replicas: i16) -> Result<(), Error> {
    client.controller_client()?.create_topic(name, partitions, replicas, TIMEOUT_MS).await
}

async fn partition_of(client: &Client, topic: &str, partition: i32) -> PartitionClient {
    client
        .partition_client(topic, partition, UnknownTopicHandling::Retry)
        .await
        .expect("a partition")
}

/// A topic of one partition, on the broker with the defaults.
async fn new_partition() -> PartitionClient {
    let client = client_of(bootstrap()).await;
    let topic = unique("rskafka");
    create(&client, &topic, 1, brokers()).await.expect("created");
    partition_of(&client, &topic, 0).await
}

fn time(milliseconds: i64) -> DateTime<Utc> {
    DateTime::from_timestamp_millis(milliseconds).expect("in range")
}

fn record(key: Option<&[u8]>, value: Option<&[u8]>) -> Record {
    let (key, value) = (key.map(Vec::from), value.map(Vec::from));
    Record { key, value, headers: Default::default(), timestamp: time(1000) }
}

fn numbered(count: usize) -> Vec<Record> {
    (0..count).map(|number| record(None, Some(number.to_string().as_bytes()))).collect()
}

/// Reads all records from an offset on.
async fn consume(partition: &PartitionClient, mut offset: i64, count: usize) -> Vec<Record> {
    let mut found = Vec::new();
    while found.len() < count {
        let (records, _) =
            partition.fetch_records(offset, 1..16 << 20, 1000).await.expect("fetched");
        for got in records {
            assert_eq!(got.offset, offset, "dense offsets");
            offset += 1;
            found.push(got.record);
        }
    }
    found
}

fn refused<T: std::fmt::Debug>(result: Result<T, Error>, expected: ProtocolError) {
    match result {
        Err(Error::ServerError { protocol_error, .. }) if protocol_error == expected => {}
        other => panic!("expected {expected:?}, got {other:?}"),
    }
}

#[test]
fn keys_values_headers_and_timestamps_come_back_as_they_went_with_every_codec() {
    block_on(async {
        use Compression::{Gzip, Lz4, NoCompression, Snappy, Zstd};
        for codec in [NoCompression, Gzip, Lz4, Snappy, Zstd] {
            let partition = new_partition().await;
            let sent: Vec<Record> = (0..500)
                .map(|number| Record {
                    key: Some(format!("key-{number}").into()),
                    value: Some(format!("value-{number} ").repeat(50).into()),
                    headers: [("a".to_owned(), vec![1]), ("empty".to_owned(), vec![])].into(),
                    timestamp: time(1_600_000_000_000 + number),
                })
                .collect();
            let offsets = partition.produce(sent.clone(), codec).await.expect("produced");
            assert_eq!(offsets, (0..500).collect::<Vec<i64>>());
            assert!(consume(&partition, 0, 500).await == sent, "{codec:?}: the content differs");
        }
    });
}

#[test]
fn null_and_empty_keys_and_values_stay_apart() {
    block_on(async {
        let partition = new_partition().await;
        let (k, v, empty): (&[u8], &[u8], &[u8]) = (b"k", b"v", b"");
        let pairs = [
            (None, Some(v)),
            (Some(k), None),
            (None, None),
            (Some(empty), Some(empty)),
            (Some(k), Some(empty)),
        ];
        let sent: Vec<Record> = pairs.into_iter().map(|(key, value)| record(key, value)).collect();
        partition.produce(sent.clone(), Compression::NoCompression).await.expect("produced");
        assert_eq!(consume(&partition, 0, sent.len()).await, sent);
    });
}

/// This client creates topics without settings, so there is none with LogAppendTime.
#[test]
fn create_times_stay_as_they_were() {
    block_on(async {
        let partition = new_partition().await;
        let sent: Vec<Record> = [0, 1, 1_600_000_000_000]
            .into_iter()
            .map(|at| Record { timestamp: time(at), ..record(None, Some(b"v")) })
            .collect();
        partition.produce(sent.clone(), Compression::NoCompression).await.expect("produced");
        assert_eq!(consume(&partition, 0, sent.len()).await, sent);
    });
}

#[test]
fn a_batching_producer_keeps_order() {
    block_on(async {
        let partition = Arc::new(new_partition().await);
        let producer = BatchProducerBuilder::new(Arc::clone(&partition))
            .with_linger(Duration::from_millis(2))
            .with_compression(Compression::Lz4)
            .build(RecordAggregator::new(200));
        let sent = numbered(1000);
        let producer = Arc::new(producer);
        let mut waiting = Vec::new();
        for one in sent.clone() {
            let producer = Arc::clone(&producer);
            waiting.push(tokio::spawn(async move { producer.produce(one).await }));
        }
        for (number, answer) in waiting.into_iter().enumerate() {
            assert_eq!(answer.await.expect("no panic").expect("produced"), number as i64);
        }
        assert!(consume(&partition, 0, sent.len()).await == sent, "the content differs");
    });
}

#[test]
fn a_record_of_11_mb_goes_through_where_the_broker_allows_it() {
    block_on(async {
        let client = client_of(strict_bootstrap()).await;
        let topic = unique("rskafka");
        create(&client, &topic, 1, 1).await.expect("created");
        let partition = partition_of(&client, &topic, 0).await;
        let value: Vec<u8> =
            (0..(11 << 20) - 1000u32).map(|index| (index.wrapping_mul(31) >> 3) as u8).collect();
        let sent = vec![record(None, Some(&value))];
        for codec in [Compression::NoCompression, Compression::Zstd] {
            partition.produce(sent.clone(), codec).await.expect("produced");
        }
        assert!(
            consume(&partition, 0, 2).await == [sent.clone(), sent].concat(),
            "the content differs"
        );
    });
}

#[test]
fn refused_records_say_why() {
    block_on(async {
        let partition = new_partition().await;
        let large = vec![record(None, Some(&vec![b'x'; 2 << 20]))];
        refused(
            partition.produce(large, Compression::NoCompression).await,
            ProtocolError::MessageTooLarge,
        );
        let ahead = Record { timestamp: time(4_000_000_000_000), ..record(None, Some(b"v")) };
        refused(
            partition.produce(vec![ahead], Compression::NoCompression).await,
            ProtocolError::InvalidTimestamp,
        );
        partition
            .produce(numbered(1), Compression::NoCompression)
            .await
            .expect("the connection goes on");
        assert_eq!(partition.get_offset(OffsetAt::Latest).await.expect("an offset"), 1);
    });
}

#[test]
fn offsets_are_found_by_timestamp() {
    block_on(async {
        let partition = new_partition().await;
        let mut sent = numbered(100);
        for (index, one) in sent.iter_mut().enumerate() {
            one.timestamp = time(10_000 + 10 * index as i64);
        }
        partition.produce(sent, Compression::Gzip).await.expect("produced");
        for (asked, offset) in
            [(0, 0), (10_000, 0), (10_001, 1), (10_495, 50), (10_990, 99), (10_991, -1)]
        {
            let found =
                partition.get_offset(OffsetAt::Timestamp(time(asked))).await.expect("an answer");
            assert_eq!(found, offset, "timestamp {asked}");
        }
        assert_eq!(partition.get_offset(OffsetAt::Earliest).await.expect("an offset"), 0);
        assert_eq!(partition.get_offset(OffsetAt::Latest).await.expect("an offset"), 100);
    });
}

#[test]
fn many_partitions_are_read() {
    block_on(async {
        let client = client_of(bootstrap()).await;
        let topic = unique("rskafka");
        create(&client, &topic, 30, brokers()).await.expect("created");
        for number in 0..30 {
            let partition = partition_of(&client, &topic, number).await;
            let sent = vec![record(None, Some(format!("to {number}").as_bytes()))];
            partition.produce(sent.clone(), Compression::NoCompression).await.expect("produced");
            assert_eq!(consume(&partition, 0, 1).await, sent);
        }
        let listed = client.list_topics().await.expect("listed");
        let found = listed.iter().find(|one| one.name == topic).expect("it is there");
        assert_eq!(found.partitions.len(), 30);
    });
}

#[test]
fn a_waiting_fetch_gets_a_record_at_once() {
    block_on(async {
        let partition = new_partition().await;
        // On a connection of its own: a broker answers the requests of one connection in turn.
        let reading = client_of(bootstrap()).await;
        let reading = Arc::new(partition_of(&reading, partition.topic(), 0).await);
        for offset in 0..3 {
            let reading = Arc::clone(&reading);
            let parked = tokio::spawn(async move {
                let (records, _) =
                    reading.fetch_records(offset, 1..1 << 20, 5000).await.expect("fetched");
                assert_eq!(records.len(), 1);
                Instant::now()
            });
            tokio::time::sleep(Duration::from_millis(200)).await;
            partition.produce(numbered(1), Compression::NoCompression).await.expect("produced");
            let acknowledged = Instant::now();
            let woken = parked.await.expect("no panic");
            let late = woken.saturating_duration_since(acknowledged);
            assert!(late < Duration::from_millis(500), "woke {late:?} after the acknowledgement");
        }
    });
}

#[test]
fn topics_are_deleted_and_recreated_with_no_old_data() {
    block_on(async {
        let topic = unique("rskafka-again");
        for generation in 0..3 {
            // A client of its own each time: this one keeps what it knows of a topic.
            let client = client_of(bootstrap()).await;
            create(&client, &topic, 2, brokers()).await.expect("created");
            let partition = partition_of(&client, &topic, 0).await;
            let sent = vec![record(None, Some(format!("generation {generation}").as_bytes()))];
            let offsets = partition
                .produce(sent.clone(), Compression::NoCompression)
                .await
                .expect("produced");
            assert_eq!(offsets, [0]);
            assert_eq!(consume(&partition, 0, 1).await, sent);
            client
                .controller_client()
                .expect("a controller")
                .delete_topic(&topic, TIMEOUT_MS)
                .await
                .expect("deleted");
            while client.list_topics().await.expect("listed").iter().any(|one| one.name == topic) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    });
}

#[test]
fn bad_topics_are_refused_by_code() {
    block_on(async {
        let client = client_of(bootstrap()).await;
        let name = unique("rskafka-bad");
        refused(create(&client, "bad name", 1, 1).await, ProtocolError::InvalidTopicException);
        refused(create(&client, &name, 0, 1).await, ProtocolError::InvalidPartitions);
        refused(create(&client, &name, 1, 9).await, ProtocolError::InvalidReplicationFactor);
        create(&client, &name, 1, 1).await.expect("created");
        refused(create(&client, &name, 1, 1).await, ProtocolError::TopicAlreadyExists);
    });
}

#[test]
fn an_unknown_topic_is_created_only_where_the_broker_allows_that() {
    block_on(async {
        let client = client_of(bootstrap()).await;
        let partition = partition_of(&client, &unique("rskafka-auto"), 0).await;
        let offsets = partition.produce(numbered(1), Compression::NoCompression).await;
        assert_eq!(offsets.expect("produced"), [0]);

        let client = client_of(strict_bootstrap()).await;
        let topic = unique("rskafka-refused");
        let refusal = client.partition_client(&topic, 0, UnknownTopicHandling::Error).await;
        refused(refusal.map(|_| ()), ProtocolError::UnknownTopicOrPartition);
        let topics = client.list_topics().await.expect("listed");
        assert!(!topics.iter().any(|one| one.name == topic));
    });
}

#[test]
fn deleted_records_are_out_of_range() {
    block_on(async {
        let partition = new_partition().await;
        let sent = numbered(10);
        for one in sent.clone() {
            partition.produce(vec![one], Compression::NoCompression).await.expect("produced");
        }
        partition.delete_records(6, TIMEOUT_MS).await.expect("deleted");
        assert_eq!(partition.get_offset(OffsetAt::Earliest).await.expect("an offset"), 6);
        assert_eq!(consume(&partition, 6, 4).await, sent[6..]);
        refused(partition.fetch_records(2, 1..1 << 20, 100).await, ProtocolError::OffsetOutOfRange);
        refused(
            partition.fetch_records(11, 1..1 << 20, 100).await,
            ProtocolError::OffsetOutOfRange,
        );
    });
}
