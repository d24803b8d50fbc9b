//! The node over the real storage, driven as a runtime drives it, by public names only.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use duramen_broker::configs::BrokerSettings;
use duramen_broker::limits::{GROUP_QUIET_TICKS, Memory};
use duramen_broker::session::{Session, SessionStep};
use duramen_broker::{
    Action, ClientListener, ConnectionId, Event, METADATA_TOPIC_ID, Node, NodeOptions, Now, Reply,
    read_plan,
};
use duramen_protocol::batch::batches;
use duramen_protocol::messages::create_topics::{CreatableTopic, CreatableTopicConfig};
use duramen_protocol::messages::delete_records::{DeleteRecordsPartition, DeleteRecordsTopic};
use duramen_protocol::messages::describe_replicas::{
    DescribeReplicasPartition, DescribeReplicasTopic, DescribedReplica,
};
use duramen_protocol::messages::fetch::{FetchPartition, FetchTopic, PartitionData};
use duramen_protocol::messages::list_offsets::{ListOffsetsPartition, ListOffsetsTopic};
use duramen_protocol::messages::metadata::MetadataRequestTopic;
use duramen_protocol::messages::produce::{PartitionProduceData, TopicProduceData};
use duramen_protocol::messages::{
    CreateTopicsRequest, DeleteRecordsRequest, DeleteTopicsRequest, DescribeReplicasRequest,
    FetchRequest, ListOffsetsRequest, MetadataRequest, ProduceRequest,
};
use duramen_protocol::records::{BatchBuilder, NewRecord};
use duramen_protocol::wire::{RecordData, Uuid};
use duramen_protocol::{
    ApiKey, ErrorCode, Request, RequestHeader, Response, decode_response, encode_request,
};
use duramen_storage::compaction::{Compaction, CompactionError, Means, Order, Progress};
use duramen_storage::indexing::{Indexer, Limits, Step};
use duramen_storage::op::OpKind;
use duramen_storage::storage::Facts;
use duramen_storage::{Done, Options, Storage};

mod erasing;
mod hot;
mod memory;
mod queue_checks;
use memory::MemoryDisk;

const WALL_MS: i64 = 1_700_000_000_000;
const ONE: ConnectionId = ConnectionId(1);

struct Broker {
    disk: MemoryDisk,
    storage: Storage<MemoryDisk>,
    node: Node,
    session: Session,
    asked: BTreeMap<i32, (ApiKey, i16)>,
    came: BTreeMap<i32, Response>,
    correlation: i32,
    now: Now,
    images: usize,
    /// Indexes of the entries for which the node ordered a compaction or an erasure.
    cleanings: BTreeSet<u64>,
    /// What was read for the node, to be given to it.
    read: Vec<Event>,
    indexer: Indexer<MemoryDisk>,
}

fn options(facts: Facts) -> Options {
    Options {
        facts,
        extent_bytes: 64 << 10,
        extents_max: 8,
        replicas_an_extent: 128,
        journal_payload_max: 8 << 10,
        index_interval_bytes: 4096,
        free_bytes_min: 0,
        reserve_bytes: 0,
        open_files_max: 1000,
        recovered_at_once: 2,
    }
}

impl Broker {
    fn open(disk: MemoryDisk, seed: u64) -> Self {
        let facts = Facts { cluster_id: [7; 16], broker_id: 0, directory_id: [9; 16] };
        Self::open_with(disk, seed, options(facts))
    }

    fn open_with(disk: MemoryDisk, seed: u64, options: Options) -> Self {
        let (storage, found) = Storage::open(disk.clone(), options).expect("opens");
        let metadata_tail = read_plan::metadata_tail(&storage.reader(), &found.replicas);
        let settings = BrokerSettings::from_pairs(&[]).expect("no mistakes");
        let options = NodeOptions {
            facts: found.facts,
            listeners: vec![ClientListener {
                name: "PLAINTEXT".to_owned(),
                host: "localhost".to_owned(),
                port: 9092,
            }],
            rack: None,
            log_dir: "/data".to_owned(),
            settings,
            seed,
            kinds: duramen_broker::KINDS,
            secret: [2; 32],
            first_users: Vec::new(),
            bytes_in_flight_max: 64 << 20,
            metadata_tail: metadata_tail.expect("readable"),
            node_address: None,
            native_address: None,
            founders: Vec::new(),
            memory: Memory::default(),
            introduced: Vec::new(),
            replaces: false,
            quiet_ticks: GROUP_QUIET_TICKS,
        };
        let now = Now { mono_us: 0, wall_ms: WALL_MS };
        let mut actions = Vec::new();
        let node = Node::open(options, found.replicas, now, &mut actions);
        let session =
            Session::new(ONE, "User:ANONYMOUS".into(), "PLAINTEXT".into(), "/127.0.0.1".into());
        let limits = Limits { rest_bytes: 1, ..Limits::new(node.queue_seed(), 0) };
        let indexer = Indexer::new(storage.reader(), limits);
        let mut broker = Self {
            disk,
            storage,
            node,
            session,
            asked: BTreeMap::new(),
            came: BTreeMap::new(),
            correlation: 0,
            now,
            images: 0,
            cleanings: BTreeSet::new(),
            read: Vec::new(),
            indexer,
        };
        broker.act(actions);
        broker.run();
        broker
    }

    fn compact(&mut self, order: Order) {
        self.cleanings.insert(order.compacted.index);
        let means = Means { hash_key: (3, 4), keys_max: 1000, free_bytes_min: 0 };
        let replica = order.replica;
        let made = Compaction::begin(&self.storage.reader(), order, &means)
            .and_then(|mut begun| begun.step(u64::MAX));
        match made {
            Ok(Progress::Done(made)) => self.storage.install(*made),
            Ok(Progress::More) => panic!("it was given all it needs"),
            Err(CompactionError::Unsettled) => {
                self.read.push(Event::Storage(Done::Compacted { replica, done: None }));
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn restart(self, seed: u64) -> Self {
        Self::open(self.disk, seed)
    }

    fn act(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Storage(op) => {
                    self.images += usize::from(matches!(op.kind, OpKind::Image { .. }));
                    self.storage.submit(op);
                }
                Action::ReadLog(wanted) => {
                    let read = read_plan::log_slice(&self.storage.reader(), &wanted);
                    self.read.push(Event::LogRead(read));
                }
                Action::Look(wanted) => {
                    self.read.push(read_plan::look(&self.storage.reader(), &wanted));
                }
                Action::Reply { sequence, reply, .. } => self.reply(sequence, reply),
                Action::Close { reason, .. } | Action::Fatal(reason) => panic!("{reason}"),
                Action::Send { to, .. } => panic!("there is no node {to}"),
                Action::Nodes(_) | Action::Members(_) | Action::Targets(_) => {}
                Action::Compact(order) => self.compact(order),
                Action::Index(order) => self.indexer.order(order),
                Action::Credential { .. }
                | Action::Mend(_)
                | Action::Stage(_)
                | Action::Drained => panic!("nobody asked"),
            }
        }
    }

    fn reply(&mut self, sequence: u64, reply: Reply) {
        let reader = self.storage.reader();
        let response = match reply {
            Reply::Nothing { .. } => None,
            Reply::Response(response) => Some(*response),
            Reply::Fetch(plan) => Some(read_plan::fetch_bytes(&reader, *plan, |_, _| ()).into()),
            Reply::ShareFetch(plan) => Some(read_plan::share_bytes(&reader, *plan).into()),
            Reply::ListOffsets(plan) => Some(read_plan::list_offsets(&reader, *plan).into()),
            Reply::LogDirs(response) => Some((*response).into()),
            Reply::Replicas(plan) => Some(read_plan::digests(&reader, *plan).into()),
            Reply::Backup(_) => unreachable!("no backup was asked for"),
            Reply::Native(_) => unreachable!("no operation of the native API was sent"),
        };
        for outgoing in self.session.on_reply(sequence, response).expect("encodes") {
            let frame = outgoing.frame.bytes.freeze().slice(4..);
            let id = i32::from_be_bytes(frame[..4].try_into().expect("four bytes"));
            let (api, version) = self.asked[&id];
            let (_, response) = decode_response(frame, api, version).expect("our own");
            self.came.insert(id, response);
        }
    }

    /// Turns until neither node nor storage has anything left to do.
    fn run(&mut self) {
        loop {
            let mut actions = Vec::new();
            self.node.flush(self.now, &mut actions);
            self.act(actions);
            let mut requests: Vec<_> =
                self.storage.begin_round().expect("writes").into_iter().collect();
            requests.extend(self.storage.write_segments().expect("writes"));
            requests.extend(self.storage.maintain(false).expect("maintains"));
            let is_quiet = requests.is_empty();
            for request in requests {
                let result = request.run(&self.disk);
                self.storage.on_sync(request.id, result).expect("syncs");
            }
            let mut events = std::mem::take(&mut self.read);
            while let Step::Indexed(indexed) = self.indexer.step(true) {
                events.push(Event::Indexed(indexed));
            }
            events.extend(self.storage.take_done().into_iter().map(Event::Storage));
            if is_quiet && events.is_empty() {
                break;
            }
            let mut actions = Vec::new();
            for event in events {
                self.node.step(self.now, event, &mut actions);
            }
            self.act(actions);
        }
    }

    fn ask(&mut self, request: impl Into<Request>, version: i16) -> Response {
        let request = request.into();
        self.correlation += 1;
        let correlation_id = self.correlation;
        let api = request.api_key();
        self.asked.insert(correlation_id, (api, version));
        let (api_key, api_version) = (api.code(), version);
        let header = RequestHeader { api_key, api_version, correlation_id, client_id: None };
        let frame = encode_request(&header, &request).expect("good").bytes.freeze().slice(4..);
        let SessionStep::Request { sequence, context, request } = self.session.on_frame(frame)
        else {
            panic!("not for the node")
        };
        let event = Event::Request { connection: ONE, sequence, context, request };
        let mut actions = Vec::new();
        self.node.step(self.now, event, &mut actions);
        self.act(actions);
        self.run();
        self.came.remove(&correlation_id).expect("answered")
    }

    fn create(&mut self, name: &str) {
        self.create_with(name, Vec::new());
    }

    fn create_with(&mut self, name: &str, configs: Vec<CreatableTopicConfig>) {
        let topic = CreatableTopic {
            name: name.to_owned(),
            num_partitions: 1,
            replication_factor: 1,
            configs,
            ..CreatableTopic::default()
        };
        self.create_topic(topic);
    }

    fn create_topic(&mut self, topic: CreatableTopic) {
        let request = CreateTopicsRequest { topics: vec![topic], ..Default::default() };
        let Response::CreateTopics(response) = self.ask(request, 7) else { panic!("other") };
        assert_eq!(response.topics[0].error_code, 0);
    }

    fn topic_id(&mut self, name: &str) -> Uuid {
        let topic = MetadataRequestTopic { name: Some(name.to_owned()), ..Default::default() };
        let request = MetadataRequest { topics: Some(vec![topic]), ..Default::default() };
        let Response::Metadata(response) = self.ask(request, 12) else { panic!("other") };
        response.topics[0].topic_id
    }

    /// Deletes the records before `offset`.
    fn trim(&mut self, topic: &str, offset: i64) {
        let partitions = vec![DeleteRecordsPartition { partition_index: 0, offset }];
        let topics = vec![DeleteRecordsTopic { name: topic.to_owned(), partitions }];
        let request = DeleteRecordsRequest { topics, timeout_ms: 1000 };
        let Response::DeleteRecords(response) = self.ask(request, 2) else { panic!("other") };
        assert_eq!(response.topics[0].partitions[0].error_code, 0);
    }

    fn produce(&mut self, topic: &str, records: Bytes) -> i64 {
        let partition_data = [PartitionProduceData { index: 0, records: Some(records) }].into();
        let topic = TopicProduceData { name: topic.into(), partition_data, ..Default::default() };
        let topic_data = [topic].into();
        let request =
            ProduceRequest { acks: -1, timeout_ms: 1000, topic_data, ..Default::default() };
        let Response::Produce(response) = self.ask(request, 9) else { panic!("other") };
        let part = &response.responses[0].partition_responses[0];
        assert_eq!(part.error_code, 0, "{:?}", part.error_message);
        part.base_offset
    }

    fn fetch(&mut self, topic: &str, fetch_offset: i64) -> PartitionData {
        let partition_max_bytes = 1 << 20;
        let partition =
            FetchPartition { fetch_offset, partition_max_bytes, ..FetchPartition::default() };
        let topic = FetchTopic {
            topic: topic.to_owned(),
            partitions: vec![partition],
            ..FetchTopic::default()
        };
        let request = FetchRequest { topics: vec![topic], ..FetchRequest::default() };
        let Response::Fetch(mut response) = self.ask(request, 12) else { panic!("other") };
        response.responses.remove(0).partitions.remove(0)
    }

    /// All values of a topic, in order, read as a consumer reads them.
    fn values(&mut self, topic: &str) -> Vec<String> {
        let mut values = Vec::new();
        let mut offset = 0;
        loop {
            let data = self.fetch(topic, offset);
            assert_eq!(data.error_code, 0);
            if offset == data.high_watermark {
                return values;
            }
            let Some(RecordData::Bytes(bytes)) = data.records else { panic!("no bytes") };
            for batch in batches(bytes).map_while(Result::ok) {
                assert!(batch.crc_matches());
                let header = *batch.header();
                assert_eq!(header.base_offset, offset, "no gaps");
                let records = duramen_protocol::records::Records::of(&batch, 1 << 20);
                for record in &records.expect("readable") {
                    let value = record.expect("readable").value.expect("a value");
                    values.push(String::from_utf8_lossy(value).into_owned());
                }
                offset = header.end_offset();
            }
        }
    }

    fn offset_at(&mut self, topic: &str, timestamp: i64) -> (i64, i64) {
        let partition = ListOffsetsPartition { timestamp, ..ListOffsetsPartition::default() };
        let topic = ListOffsetsTopic { name: topic.to_owned(), partitions: vec![partition] };
        let request = ListOffsetsRequest { topics: vec![topic], ..Default::default() };
        let Response::ListOffsets(response) = self.ask(request, 7) else { panic!("other") };
        let part = &response.topics[0].partitions[0];
        assert_eq!(part.error_code, 0);
        (part.offset, part.timestamp)
    }
}

fn batch(sequence: i32, values: &[String], timestamp: i64) -> Bytes {
    let mut builder = BatchBuilder::new().producer(5, 0, sequence);
    for value in values {
        let value = Some(value.as_bytes());
        let record = NewRecord { timestamp, value, ..NewRecord::default() };
        builder.push(&record).expect("a record");
    }
    builder.build().expect("a batch")
}

#[test]
fn records_topics_and_dedup_survive_restarts_and_checkpoints() {
    let mut broker = Broker::open(MemoryDisk::default(), 1);
    broker.create("t");
    let mut expected = Vec::new();
    for round in 0..4u64 {
        for n in 0..60 {
            let value =
                format!("{round}-{n}-{}", "x".repeat(if n % 20 == 0 { 20_000 } else { 700 }));
            let sequence = i32::try_from(expected.len()).expect("small");
            let bytes =
                batch(sequence, std::slice::from_ref(&value), WALL_MS + i64::from(sequence));
            let offset = i64::from(sequence);
            assert_eq!(broker.produce("t", bytes.clone()), offset);
            assert_eq!(broker.produce("t", bytes), offset, "a retry lands nowhere else");
            expected.push(value);
        }
        assert!(broker.images > 0, "the journal is small enough to need checkpoints");
        broker = broker.restart(round + 2);
        assert_eq!(broker.values("t"), expected);
        let last = i32::try_from(expected.len() - 1).expect("small");
        let retry = batch(last, &expected[expected.len() - 1..], WALL_MS + i64::from(last));
        assert_eq!(broker.produce("t", retry), i64::from(last), "also after a restart");
    }
    assert_eq!(broker.offset_at("t", WALL_MS + 100), (100, WALL_MS + 100));
    assert_eq!(broker.offset_at("t", -3), (239, WALL_MS + 239));
    assert_eq!(broker.offset_at("t", WALL_MS + 1000), (-1, -1));
}

/// What is held of topic `id`, or of a part of it.
fn described(
    broker: &mut Broker,
    topic_id: Uuid,
    (from_offset, to_offset): (i64, i64),
    bytes_max: i32,
) -> DescribedReplica {
    let partition = DescribeReplicasPartition {
        from_offset,
        to_offset,
        ..DescribeReplicasPartition::default()
    };
    let topics = vec![DescribeReplicasTopic { topic_id, partitions: vec![partition] }];
    let request = DescribeReplicasRequest { topics, bytes_max };
    let Response::DescribeReplicas(mut response) = broker.ask(request, 0) else { panic!("other") };
    assert_eq!(response.error_code, 0);
    response.topics.remove(0).partitions.remove(0)
}

#[test]
fn digests_tell_of_every_byte_in_segments_and_of_where_these_begin() {
    const ALL: i32 = i32::MAX;
    let mut broker = Broker::open(MemoryDisk::default(), 1);
    let config =
        CreatableTopicConfig { name: "segment.bytes".to_owned(), value: Some("4096".to_owned()) };
    broker.create_with("t", vec![config]);
    for n in 0..20 {
        let values: Vec<_> = (0..5).map(|m| format!("{n}-{m}-{}", "x".repeat(90))).collect();
        assert_eq!(broker.produce("t", batch(n * 5, &values, WALL_MS)), i64::from(n) * 5);
    }
    let id = broker.topic_id("t");
    let held = described(&mut broker, id, (-1, -1), ALL);
    assert_eq!((held.start_offset, held.committed_offset, held.bytes), (0, 100, 0));
    let all = described(&mut broker, id, (0, 100), ALL);
    assert_eq!((all.first_offset, all.end_offset, all.damaged_offset), (0, 100, -1));
    assert!(all.segments.len() > 2 && all.segments[0] == 0, "{:?}", all.segments);
    assert_eq!((all.digest.len(), all.error_code), (16, 0));

    // In slices it is the same bytes and the same segments; one batch at least, whatever its size.
    for bytes_max in [1, 2000, 6000] {
        let (mut at, mut bytes, mut segments) = (0, 0, Vec::new());
        while at < 100 {
            let slice = described(&mut broker, id, (at, 100), bytes_max);
            assert_eq!((slice.first_offset, slice.error_code), (at, 0));
            assert!(slice.end_offset > at);
            at = slice.end_offset;
            bytes += slice.bytes;
            segments.extend(slice.segments);
        }
        assert_eq!((bytes, segments), (all.bytes, all.segments.clone()));
    }
    // A batch is whole.
    let middle = described(&mut broker, id, (7, 8), ALL);
    assert_eq!((middle.first_offset, middle.end_offset), (5, 10));
    assert_eq!(middle, described(&mut broker, id, (5, 10), ALL));

    // Any byte makes another digest, also where the batch says that it is right.
    let path = "t-0/00000000000000000000.log";
    let digest = |broker: &mut Broker| described(broker, id, (0, 5), ALL);
    let sound = digest(&mut broker);
    for at in [100, 140] {
        broker.disk.rot(path, |bytes| bytes[at] ^= 1);
        let rotten = digest(&mut broker);
        assert_ne!(rotten.digest, sound.digest);
        assert_eq!((rotten.damaged_offset, rotten.end_offset), (0, 5));
        assert!(rotten.damage.is_some_and(|what| what.contains(path) && what.contains("CRC")));
        broker.disk.rot(path, |bytes| bytes[at] ^= 1);
    }
    broker.disk.rot(path, |bytes| {
        bytes[100] ^= 1;
        let len = 12 + u32::from_be_bytes(bytes[8..12].try_into().expect("four")) as usize;
        let crc = crc32c::crc32c(&bytes[21..len]);
        bytes[17..21].copy_from_slice(&crc.to_be_bytes());
    });
    let forged = digest(&mut broker);
    assert_eq!((forged.damaged_offset, forged.damage), (-1, None));
    assert_ne!(forged.digest, sound.digest);
    // A header that leads nowhere ends the digest, and is told of.
    broker.disk.rot(path, |bytes| bytes[8] = 0x7f);
    let lost = described(&mut broker, id, (0, 100), ALL);
    assert_eq!((lost.end_offset, lost.damaged_offset, lost.bytes), (0, 0, 0));

    // What is not there, or not known to be committed, is told in words.
    let code = |described: DescribedReplica| ErrorCode::from_code(described.error_code);
    let too_far = described(&mut broker, id, (0, 101), ALL);
    assert_eq!(code(too_far), Some(ErrorCode::OffsetOutOfRange));
    broker.trim("t", 33);
    let trimmed = described(&mut broker, id, (0, 100), ALL);
    assert_eq!(trimmed.start_offset, 33);
    assert_eq!(code(trimmed), Some(ErrorCode::OffsetOutOfRange));
    assert_eq!(described(&mut broker, id, (33, 100), ALL).first_offset, 30);
    let unknown = described(&mut broker, Uuid([5; 16]), (-1, -1), ALL);
    assert_eq!(code(unknown), Some(ErrorCode::UnknownTopicId));
    let metadata = Uuid(METADATA_TOPIC_ID);
    let held = described(&mut broker, metadata, (-1, -1), 0);
    let all = described(&mut broker, metadata, (held.start_offset, held.committed_offset), ALL);
    assert_eq!((all.end_offset, all.damaged_offset), (held.committed_offset, -1));
    assert!(all.bytes > 0);
}

#[test]
fn metadata_survives_many_changes_and_restarts() {
    let mut broker = Broker::open(MemoryDisk::default(), 1);
    for round in 0..3u64 {
        for n in 0..40 {
            broker.create(&format!("topic-{round}-{n}"));
        }
        let topic_names = (0..20).map(|n| format!("topic-{round}-{n}")).collect();
        let request = DeleteTopicsRequest { topic_names, timeout_ms: 1000, ..Default::default() };
        let Response::DeleteTopics(response) = broker.ask(request, 5) else { panic!("other") };
        assert!(response.responses.iter().all(|topic| topic.error_code == 0));
        broker = broker.restart(round + 2);
        assert_eq!(broker.node.metrics().partitions, 20 * (round + 1));
        let name = format!("topic-{round}-30");
        assert_eq!(broker.produce(&name, batch(0, &["a".to_owned()], WALL_MS)), 0);
        assert_eq!(broker.values(&name), ["a"]);
    }
}

#[test]
fn the_metadata_log_stays_small_however_many_topics_come_and_go() {
    const LOG_BYTES: u64 = 4 << 20;
    let mut broker = Broker::open(MemoryDisk::default(), 1);
    broker.create("stays");
    broker.produce("stays", batch(0, &["a".to_owned()], WALL_MS));
    let config = |name: &str, value: &str| CreatableTopicConfig {
        name: name.to_owned(),
        value: Some(value.to_owned()),
    };
    // Long names and many settings fill the log sooner.
    let configs = [
        ("retention.ms", "600000"),
        ("retention.bytes", "600000"),
        ("segment.ms", "60000"),
        ("segment.bytes", "1000000"),
        ("max.message.bytes", "60000"),
        ("cleanup.policy", "delete"),
        ("compression.type", "producer"),
        ("message.timestamp.type", "CreateTime"),
    ];
    let configs: Vec<_> = configs.iter().map(|(name, value)| config(name, value)).collect();
    let (mut largest, mut last) = (0, 0);
    for round in 0..200u64 {
        let name = |n: u64| format!("{}-{round}-{n}", "x".repeat(180));
        let topics = (0..40).map(|n| CreatableTopic {
            name: name(n),
            num_partitions: 1,
            replication_factor: 1,
            configs: configs.clone(),
            ..CreatableTopic::default()
        });
        let request = CreateTopicsRequest { topics: topics.collect(), ..Default::default() };
        let Response::CreateTopics(response) = broker.ask(request, 7) else { panic!("other") };
        assert!(response.topics.iter().all(|topic| topic.error_code == 0));
        let topic_names = (0..40).map(name).collect();
        let request = DeleteTopicsRequest { topic_names, timeout_ms: 1000, ..Default::default() };
        let Response::DeleteTopics(response) = broker.ask(request, 5) else { panic!("other") };
        assert!(response.responses.iter().all(|topic| topic.error_code == 0));
        last = broker.disk.bytes_under("__cluster_metadata-0/");
        largest = largest.max(last);
        if round % 50 == 49 {
            broker = broker.restart(round + 2);
            assert_eq!(broker.node.metrics().partitions, 1);
            assert_eq!(broker.values("stays"), ["a"]);
        }
    }
    assert!(largest > LOG_BYTES / 2, "it was filled: {largest}");
    assert!(largest < 2 * LOG_BYTES, "{largest}");
    assert!(last < largest, "and it was trimmed: {last}");
}

fn keyed(key: &str, value: Option<&str>, timestamp: i64) -> Bytes {
    let mut builder = BatchBuilder::new();
    let (key, value) = (Some(key.as_bytes()), value.map(str::as_bytes));
    builder.push(&NewRecord { timestamp, key, value, ..NewRecord::default() }).expect("a record");
    builder.build().expect("a batch")
}

impl Broker {
    /// So much time passes.
    fn pass(&mut self, ms: i64) {
        self.now.wall_ms += ms;
        self.now.mono_us += ms.unsigned_abs() * 1000;
        let mut actions = Vec::new();
        self.node.step(self.now, Event::Tick, &mut actions);
        self.act(actions);
        self.run();
    }

    /// All records of a topic by offset, from an offset on.
    fn records(&mut self, topic: &str, mut offset: i64) -> BTreeMap<i64, (String, Option<String>)> {
        let mut all = BTreeMap::new();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        loop {
            let data = self.fetch(topic, offset);
            assert_eq!(data.error_code, 0);
            if offset == data.high_watermark {
                return all;
            }
            let Some(RecordData::Bytes(bytes)) = data.records else { panic!("no bytes") };
            assert!(!bytes.is_empty(), "there is something behind {offset}");
            for batch in batches(bytes).map_while(Result::ok) {
                let records = duramen_protocol::records::Records::of(&batch, 1 << 20);
                let records = records.expect("readable");
                for record in &records {
                    let record = record.expect("readable");
                    let key = text(record.key.expect("a key"));
                    all.insert(records.offset(&record), (key, record.value.map(text)));
                }
                offset = batch.header().end_offset();
            }
        }
    }
}

#[test]
fn of_a_compacted_topic_the_last_record_of_each_key_stays_where_it_was() {
    let config = |(name, value): (&str, &str)| CreatableTopicConfig {
        name: name.to_owned(),
        value: Some(value.to_owned()),
    };
    let configs = [
        ("cleanup.policy", "compact"),
        ("segment.bytes", "4096"),
        ("min.cleanable.dirty.ratio", "0.1"),
        ("delete.retention.ms", "900000"),
    ];
    let mut broker = Broker::open(MemoryDisk::default(), 1);
    broker.create_with("t", configs.map(config).into());
    let mut last = BTreeMap::new();
    let mut end = 0;
    let mut fill = |broker: &mut Broker, last: &mut BTreeMap<String, (i64, Option<String>)>| {
        for n in 0..150 {
            let key = format!("key {}", n % 7);
            let value = (n % 7 != 3).then(|| format!("value {end}"));
            let offset = broker.produce("t", keyed(&key, value.as_deref(), broker.now.wall_ms));
            assert_eq!(offset, end);
            last.insert(key, (end, value));
            end += 1;
        }
        end
    };
    fill(&mut broker, &mut last);
    broker.pass(301_000);
    broker.pass(301_000);
    let compacted = broker.node.metrics();
    assert!(compacted.compactions >= 1 && compacted.compacted_bytes > 5000, "{compacted:?}");
    let all = broker.records("t", 0);
    assert!(all.len() < 60, "{}", all.len());
    let fits = |all: &BTreeMap<i64, (String, Option<String>)>,
                last: &BTreeMap<String, (i64, Option<String>)>| {
        for (key, (offset, value)) in last {
            assert_eq!(all.get(offset), Some(&(key.clone(), value.clone())));
        }
    };
    fits(&all, &last);
    // From any offset on a reader gets what is behind it.
    for from in 0..150 {
        let behind: BTreeMap<_, _> = all.range(from..).map(|(at, it)| (*at, it.clone())).collect();
        let mut found = broker.records("t", from);
        found.retain(|at, _| *at >= from);
        assert_eq!(found, behind, "from {from}");
    }
    let first = *all.first_key_value().expect("some are left").0;
    assert!(first > 0);
    assert_eq!(broker.offset_at("t", 0).0, first);
    broker = broker.restart(2);
    assert_eq!(broker.records("t", 0), all);
    // Only so much later are tombstones gone, by the next compaction that there is something to do for.
    broker.pass(1_000_000);
    let tombstones = |all: &BTreeMap<i64, (String, Option<String>)>| {
        all.values().filter(|it| it.1.is_none()).count()
    };
    assert!(tombstones(&all) > 0);
    let end = fill(&mut broker, &mut last);
    last.remove("key 3");
    for key in ["key 1", "key 3", "key 5"] {
        broker.produce("t", keyed(key, None, broker.now.wall_ms));
    }
    broker.pass(301_000);
    let all = broker.records("t", 0);
    assert_eq!(all.range(..150).count(), 0, "{all:?}");
    assert!(all.len() < 70 && all.contains_key(&(end + 2)));
    broker = broker.restart(3);
    assert_eq!(broker.records("t", 0), all);
}

#[test]
fn a_quiet_log_is_compacted_to_its_end_once_its_oldest_record_is_overdue() {
    let config = |(name, value): (&str, &str)| CreatableTopicConfig {
        name: name.to_owned(),
        value: Some(value.to_owned()),
    };
    let configs = [
        ("cleanup.policy", "compact"),
        ("max.compaction.lag.ms", "600000"),
        ("min.cleanable.dirty.ratio", "1"),
    ];
    let mut broker = Broker::open(MemoryDisk::default(), 1);
    broker.create_with("t", configs.map(config).into());
    let mut seed = 1;
    // In the second round a log goes on that was compacted to its end, and after a start.
    for round in 0..3 {
        let end = 20 * (round + 1);
        for offset in 20 * round..end {
            let (key, value) = (format!("key {}", offset % 3), format!("value {offset}"));
            let appended = keyed(&key, Some(&value), broker.now.wall_ms);
            assert_eq!(broker.produce("t", appended), offset);
        }
        let before = broker.node.metrics().compactions;
        broker.pass(599_000);
        assert_eq!(broker.node.metrics().compactions, before, "it is not overdue");
        broker.pass(31_000);
        broker.pass(31_000);
        assert_eq!(broker.node.metrics().compactions, before + 1, "round {round}");
        let left: BTreeMap<_, _> = (end - 3..end)
            .map(|at| (at, (format!("key {}", at % 3), Some(format!("value {at}")))))
            .collect();
        assert_eq!(broker.records("t", 0), left);
        assert_eq!(broker.offset_at("t", -1).0, end);
        // It is once that it is compacted so.
        broker.pass(1_000_000);
        assert_eq!(broker.node.metrics().compactions, before + 1);
        seed += 1;
        broker = broker.restart(seed);
        assert_eq!(broker.records("t", 0), left);
    }
}
