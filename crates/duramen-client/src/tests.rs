//! The client against a broker that does what a test tells it to.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use duramen_protocol::api::{ApiKey, advertised};
use duramen_protocol::batch::BatchView;
use duramen_protocol::error_code::ErrorCode;
use duramen_protocol::messages::api_versions::ApiVersion;
use duramen_protocol::messages::fetch::{FetchableTopicResponse, PartitionData};
use duramen_protocol::messages::metadata::{
    MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic,
};
use duramen_protocol::messages::produce::{PartitionProduceResponse, TopicProduceResponse};
use duramen_protocol::messages::{
    ApiVersionsResponse, FetchResponse, InitProducerIdResponse, MetadataRequest, MetadataResponse,
    ProduceResponse,
};
use duramen_protocol::records::{BatchBuilder, NewRecord};
use duramen_protocol::wire::{RecordData, Uuid};
use duramen_protocol::{Request, Response, decode_request, encode_response};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::*;

mod fast;

/// Answer of a scripted broker to a request; `None` closes the connection.
type Script = dyn FnMut(&Request) -> Option<Response> + Send;

/// Starts a broker with one topic `t` of two partitions; the script answers all but versions and metadata.
async fn broker(script: impl FnMut(&Request) -> Option<Response> + Send + 'static) -> Client {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let script: Arc<Mutex<Script>> = Arc::new(Mutex::new(script));
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream, port, script.clone()));
        }
    });
    let options = Options {
        retry_for: Duration::from_secs(5),
        request_timeout: Duration::from_secs(5),
        ..Options::new([format!("127.0.0.1:{port}")])
    };
    Client::connect(options).await.unwrap()
}

async fn serve(mut stream: TcpStream, port: u16, script: Arc<Mutex<Script>>) {
    while let Ok(length) = stream.read_u32().await {
        let mut frame = vec![0; length as usize];
        if stream.read_exact(&mut frame).await.is_err() {
            return;
        }
        let (header, request) = decode_request(Bytes::from(frame)).unwrap();
        let response = match &request {
            Request::ApiVersions(_) => Some(versions().into()),
            Request::Metadata(_) => Some(metadata(port).into()),
            other => (script.lock().unwrap())(other),
        };
        let Some(response) = response else { return };
        let frame = encode_response(header.correlation_id, &response, header.api_version).unwrap();
        stream.write_all(&frame.bytes).await.unwrap();
    }
}

fn versions() -> ApiVersionsResponse {
    let api_keys = advertised().map(|api| ApiVersion {
        api_key: api.key.code(),
        min_version: api.advertised.first,
        max_version: api.advertised.last,
    });
    ApiVersionsResponse { api_keys: api_keys.collect(), ..ApiVersionsResponse::default() }
}

fn metadata(port: u16) -> MetadataResponse {
    let broker = MetadataResponseBroker {
        node_id: 7,
        host: "127.0.0.1".into(),
        port: port.into(),
        ..MetadataResponseBroker::default()
    };
    let partitions = (0..2).map(|partition_index| MetadataResponsePartition {
        partition_index,
        leader_id: 7,
        ..MetadataResponsePartition::default()
    });
    let topic = MetadataResponseTopic {
        name: Some("t".into()),
        topic_id: Uuid::from_u128(5),
        partitions: partitions.collect(),
        ..MetadataResponseTopic::default()
    };
    MetadataResponse { brokers: vec![broker], topics: vec![topic], ..MetadataResponse::default() }
}

fn appended(code: ErrorCode, base_offset: i64) -> Response {
    let answer =
        PartitionProduceResponse { error_code: code.code(), base_offset, ..Default::default() };
    let topic = TopicProduceResponse {
        topic_id: Uuid::from_u128(5),
        partition_responses: [answer].into(),
        ..Default::default()
    };
    ProduceResponse { responses: [topic].into(), ..Default::default() }.into()
}

fn batch(value: &str) -> BytesMut {
    let mut batch = BatchBuilder::new();
    let record = NewRecord { value: Some(value.as_bytes()), ..NewRecord::default() };
    batch.push(&record).unwrap();
    batch.build_mut().unwrap()
}

fn sent(request: &Request) -> BatchView {
    let Request::Produce(produce) = request else { panic!("not a produce: {request:?}") };
    let records = produce.topic_data[0].partition_data[0].records.clone().unwrap();
    let batch = BatchView::parse(&records).unwrap();
    assert!(batch.crc_matches(), "a claimed batch has a new checksum");
    batch
}

/// An idempotent broker: refuses what is out of order, loses its connection when told to.
struct Partition {
    log: Vec<i32>,
    received: u32,
    refuse: Vec<u32>,
    hang_up: Vec<u32>,
}

impl Partition {
    fn on_produce(&mut self, request: &Request) -> Option<Response> {
        let header = *sent(request).header();
        assert_eq!((header.producer_id, header.producer_epoch), (9, 0));
        self.received += 1;
        if self.hang_up.contains(&self.received) {
            return None;
        }
        if self.refuse.contains(&self.received) {
            return Some(appended(ErrorCode::NotLeaderOrFollower, -1));
        }
        let sequence = header.base_sequence;
        if let Some(at) = self.log.iter().position(|known| *known == sequence) {
            return Some(appended(ErrorCode::None, i64::try_from(at).unwrap()));
        }
        if i32::try_from(self.log.len()).unwrap() != sequence {
            return Some(appended(ErrorCode::OutOfOrderSequenceNumber, -1));
        }
        self.log.push(sequence);
        Some(appended(ErrorCode::None, i64::from(sequence)))
    }
}

async fn append_twenty(refuse: &[u32], hang_up: &[u32]) -> (Vec<i64>, Vec<i32>) {
    let partition = Arc::new(Mutex::new(Partition {
        log: Vec::new(),
        received: 0,
        refuse: refuse.to_vec(),
        hang_up: hang_up.to_vec(),
    }));
    let theirs = partition.clone();
    let client = broker(move |request| match request {
        Request::InitProducerId(_) => {
            let producer = InitProducerIdResponse { producer_id: 9, ..Default::default() };
            Some(producer.into())
        }
        request => theirs.lock().unwrap().on_produce(request),
    })
    .await;
    let options = AppenderOptions {
        acks: Acknowledgement::All,
        producer: Some(client.init_producer().await.unwrap()),
        window: 5,
        timeout_ms: 1000,
    };
    let mut appender = Appender::new(client, "t", 0, options);
    let mut acked = Vec::new();
    for index in 0..20 {
        acked.extend(appender.push(batch(&index.to_string())).await.unwrap());
    }
    acked.extend(appender.finish().await.unwrap());
    let log = partition.lock().unwrap().log.clone();
    (acked.iter().map(|acked| acked.base_offset).collect(), log)
}

#[tokio::test]
async fn an_appender_keeps_order_and_loses_nothing_when_batches_are_refused_in_between() {
    let expected: (Vec<i64>, Vec<i32>) = ((0..20).collect(), (0..20).collect());
    assert_eq!(append_twenty(&[], &[]).await, expected);
    assert_eq!(append_twenty(&[3, 4, 11], &[]).await, expected);
    assert_eq!(append_twenty(&[1, 2, 3, 4, 5, 6], &[]).await, expected);
}

#[tokio::test]
async fn an_appender_survives_lost_connections() {
    let expected: (Vec<i64>, Vec<i32>) = ((0..20).collect(), (0..20).collect());
    assert_eq!(append_twenty(&[], &[1]).await, expected);
    assert_eq!(append_twenty(&[9], &[4, 5, 12]).await, expected);
}

#[tokio::test]
async fn an_error_that_does_not_pass_ends_the_append_at_once() {
    let client = broker(|_| Some(appended(ErrorCode::MessageTooLarge, -1))).await;
    let options =
        AppenderOptions { acks: Acknowledgement::All, producer: None, window: 1, timeout_ms: 1000 };
    let mut appender = Appender::new(client, "t", 0, options);
    appender.push(batch("x")).await.unwrap();
    let error = appender.finish().await.unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::MessageTooLarge));
    let text = "append to partition 0 of topic t: MESSAGE_TOO_LARGE";
    assert_eq!(error.to_string(), text);
}

fn fetched(session_id: i32, partition: i32, records: Bytes) -> Response {
    let part = PartitionData {
        partition_index: partition,
        high_watermark: 100,
        records: Some(RecordData::Bytes(records)),
        ..PartitionData::default()
    };
    let topic = FetchableTopicResponse {
        topic_id: Uuid::from_u128(5),
        partitions: vec![part],
        ..FetchableTopicResponse::default()
    };
    FetchResponse { session_id, responses: vec![topic], ..FetchResponse::default() }.into()
}

#[tokio::test]
async fn a_session_names_only_what_changed_and_begins_anew_when_it_is_lost() {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let theirs = asked.clone();
    let client = broker(move |request| {
        let Request::Fetch(fetch) = request else { panic!("not a fetch: {request:?}") };
        let partitions = fetch.topics.iter().flat_map(|topic| &topic.partitions);
        let named: Vec<_> = partitions.map(|it| (it.partition, it.fetch_offset)).collect();
        let mut asked = theirs.lock().unwrap();
        asked.push((fetch.session_id, fetch.session_epoch, named));
        if asked.len() == 3 {
            let code = ErrorCode::FetchSessionIdNotFound.code();
            return Some(FetchResponse { error_code: code, ..Default::default() }.into());
        }
        Some(fetched(44, 1, batch("one").freeze()))
    })
    .await;
    let positions = [(0, 10), (1, 0)];
    let mut fetcher = Fetcher::new(client, "t", positions, FetchOptions::default());
    while asked.lock().unwrap().len() < 5 {
        fetcher.poll().await.unwrap();
    }
    let asked = asked.lock().unwrap();
    assert_eq!(asked[0], (0, 0, vec![(0, 10), (1, 0)]));
    assert_eq!(asked[1], (44, 1, vec![(1, 1)]), "only partition 1 moved");
    // The scripted broker sends offset 0 again; a position never goes back, so nothing changed.
    assert_eq!(asked[2], (44, 2, vec![]));
    assert_eq!(asked[3], (0, 0, vec![(0, 10), (1, 1)]), "a new session names everything");
}

#[tokio::test]
async fn a_fetch_from_beyond_the_log_is_an_error_that_names_the_place() {
    let client = broker(|_| {
        let part = PartitionData {
            error_code: ErrorCode::OffsetOutOfRange.code(),
            ..PartitionData::default()
        };
        let topic = FetchableTopicResponse { partitions: vec![part], ..Default::default() };
        Some(FetchResponse { responses: vec![topic], ..Default::default() }.into())
    })
    .await;
    let mut fetcher = Fetcher::new(client, "t", [(0, 999)], FetchOptions::default());
    let error = fetcher.poll().await.unwrap_err();
    let text = "offset 999 of partition 0 of topic t: OFFSET_OUT_OF_RANGE";
    assert_eq!(error.to_string(), text);
}

#[tokio::test]
async fn retries_end_when_their_time_is_over() {
    let client = broker(|_| Some(appended(ErrorCode::NotLeaderOrFollower, -1))).await;
    let impatient = Options { retry_for: Duration::from_millis(100), ..client.options().clone() };
    let client = Client::connect(impatient).await.unwrap();
    let options =
        AppenderOptions { acks: Acknowledgement::All, producer: None, window: 1, timeout_ms: 1000 };
    let mut appender = Appender::new(client, "t", 0, options);
    appender.push(batch("x")).await.unwrap();
    let error = appender.finish().await.unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::NotLeaderOrFollower));
}

#[tokio::test]
async fn a_server_that_speaks_something_else_is_told_apart() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest).await;
    });
    let error = Client::connect(Options::new([address])).await.err().unwrap();
    assert!(error.to_string().contains("does not speak the Kafka protocol"), "{error}");
}

#[tokio::test]
async fn a_broker_that_is_not_there_is_named() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    drop(listener);
    let error = Client::connect(Options::new([&address])).await.err().unwrap();
    assert_eq!(error.to_string(), format!("no broker answers at {address}"));
}

/// A broker from before Apache Kafka 2.4, which answers a newer `ApiVersions` in version 0.
#[tokio::test]
async fn an_old_broker_is_asked_for_its_versions_once_more() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let asked = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut asked = Vec::new();
        for code in [ErrorCode::UnsupportedVersion, ErrorCode::None] {
            let mut frame = vec![0; stream.read_u32().await.unwrap() as usize];
            stream.read_exact(&mut frame).await.unwrap();
            let (header, _) = decode_request(Bytes::from(frame)).unwrap();
            asked.push(header.api_version);
            let row =
                ApiVersion { api_key: ApiKey::Metadata.code(), min_version: 0, max_version: 5 };
            let response = ApiVersionsResponse {
                error_code: code.code(),
                api_keys: vec![row],
                ..ApiVersionsResponse::default()
            };
            let frame = encode_response(header.correlation_id, &response.into(), 0).unwrap();
            stream.write_all(&frame.bytes).await.unwrap();
        }
        asked
    });
    let connection = Connection::open(&address, &Options::new([&address])).await.unwrap();
    assert_eq!(connection.version::<MetadataRequest>(i16::MAX).unwrap(), 5);
    let missing = connection.version::<duramen_protocol::messages::FetchRequest>(i16::MAX);
    assert!(matches!(missing, Err(Error::Unsupported { api: "Fetch", .. })));
    assert_eq!(asked.await.unwrap(), [3, 0]);
}
