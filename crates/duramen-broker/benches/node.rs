//! What a node's own work costs, without sockets and disk: `cargo bench -p duramen-broker`.
//!
//! Storage is a list of tickets that come back at once. Requests are decoded before the clock
//! starts, so a figure is `step`, `flush` and nothing else.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use bytes::Bytes;
use duramen_broker::configs::BrokerSettings;
use duramen_broker::limits::{GROUP_QUIET_TICKS, Memory};
use duramen_broker::session::{Prepared, RequestContext, Session, SessionStep};
use duramen_broker::{Action, ClientListener, ConnectionId, Event, Node, NodeOptions, Now, Reply};
use duramen_protocol::messages::create_topics::CreatableTopic;
use duramen_protocol::messages::fetch::{FetchPartition, FetchTopic};
use duramen_protocol::messages::produce::{PartitionProduceData, TopicProduceData};
use duramen_protocol::messages::{
    CreateTopicsRequest, FetchRequest, MetadataRequest, ProduceRequest,
};
use duramen_protocol::records::{BatchBuilder, NewRecord};
use duramen_protocol::{Request, RequestHeader, Response, encode_request};
use duramen_storage::history::History;
use duramen_storage::op::{
    Compacted, Content, Done, HardState, LogEntry, Op, OpKind, RecoveredReplica, ReplicaId,
    SegmentMeta, TermRun,
};
use duramen_storage::storage::Facts;

const ONE: ConnectionId = ConnectionId(1);
const WALL_MS: i64 = 1_700_000_000_000;
const METADATA: ReplicaId = ReplicaId(1);

/// Storage that forgets all but what a restart needs.
#[derive(Default)]
struct Store {
    replicas: BTreeMap<ReplicaId, RecoveredReplica>,
    done: Vec<Done>,
}

impl Store {
    fn execute(&mut self, op: Op, is_kept: bool) {
        let replica = op.replica;
        match op.kind {
            OpKind::Create { ticket, identity, conf } => {
                let found = RecoveredReplica {
                    replica,
                    identity,
                    conf,
                    hard_state: HardState::default(),
                    prev_index: 1,
                    prev_term: 1,
                    prev_end_offset: 0,
                    entries: Vec::new(),
                    term_runs: Vec::new(),
                    log_start: 0,
                    end_offset: 0,
                    compacted: Compacted::default(),
                    history: History::new(1, 1, 0),
                    image: Bytes::new(),
                    holds: Vec::new(),
                    segments: Vec::new(),
                    damage: None,
                    lacks_room: false,
                };
                self.replicas.insert(replica, found);
                self.done.push(Done::Persisted { replica, ticket });
            }
            OpKind::Write { ticket, appends, hard_state, .. } => {
                if is_kept && let Some(found) = self.replicas.get_mut(&replica) {
                    found.hard_state = hard_state.unwrap_or(found.hard_state);
                    for append in appends {
                        found.keep(append.entry);
                    }
                }
                self.done.push(Done::Persisted { replica, ticket });
            }
            OpKind::Image { index, image } => {
                let found = self.replicas.get_mut(&replica).expect("created");
                let last = found.entries.iter().rfind(|entry| entry.index <= index);
                found.prev_term = last.map_or(found.prev_term, |last| last.term);
                found.prev_end_offset = found.end_offset;
                found.prev_index = index;
                found.image = image;
                found.entries.retain(|entry| entry.index > index);
            }
            OpKind::Conf { .. }
            | OpKind::Reset(_)
            | OpKind::Trim { .. }
            | OpKind::Hold(_)
            | OpKind::LetGo(_)
            | OpKind::Settle
            | OpKind::Delete => {}
        }
    }
}

/// What recovery would find of an entry.
trait Keep {
    fn keep(&mut self, entry: LogEntry);
}

impl Keep for RecoveredReplica {
    fn keep(&mut self, entry: LogEntry) {
        let (term, first_index, start_offset) = (entry.term, entry.index, self.end_offset);
        if self.term_runs.last().is_none_or(|run| run.term < term) {
            self.term_runs.push(TermRun { term, first_index, start_offset });
        }
        if let Content::Batch(batch) = &entry.content {
            if batch.starts_segment {
                let base_offset = batch.base_offset;
                let meta = SegmentMeta { base_offset, first_index, size: 0, max_timestamp: -1 };
                self.segments.push(meta);
            }
            self.end_offset = batch.end_offset();
        }
        self.entries.push(entry);
    }
}

struct Bench {
    node: Node,
    store: Store,
    sessions: BTreeMap<ConnectionId, Session>,
    now: Now,
    actions: Vec<Action>,
    replies: Vec<Reply>,
    is_kept: bool,
    longest: Duration,
}

fn options() -> NodeOptions {
    NodeOptions {
        facts: Facts { cluster_id: [7; 16], broker_id: 0, directory_id: [9; 16] },
        listeners: vec![ClientListener {
            name: "PLAINTEXT".to_owned(),
            host: "localhost".to_owned(),
            port: 9092,
        }],
        rack: None,
        log_dir: "/data".to_owned(),
        settings: BrokerSettings::from_pairs(&[]).expect("no mistakes"),
        seed: 1,
        kinds: duramen_broker::KINDS,
        secret: [1; 32],
        first_users: Vec::new(),
        bytes_in_flight_max: 256 << 20,
        metadata_tail: Vec::new(),
        node_address: None,
        native_address: None,
        founders: Vec::new(),
        memory: Memory::default(),
        introduced: Vec::new(),
        replaces: false,
        quiet_ticks: GROUP_QUIET_TICKS,
    }
}

impl Bench {
    fn open(store: Store) -> Self {
        let now = Now { mono_us: 0, wall_ms: WALL_MS };
        let mut actions = Vec::new();
        let recovered = store.replicas.values().cloned().collect();
        let node = Node::open(options(), recovered, now, &mut actions);
        let mut bench = Self {
            node,
            store,
            sessions: BTreeMap::new(),
            now,
            actions,
            replies: Vec::new(),
            is_kept: true,
            longest: Duration::ZERO,
        };
        bench.run();
        bench
    }

    fn prepare(&mut self, connection: ConnectionId, request: &Request, version: i16) -> Event {
        let header = RequestHeader {
            api_key: request.api_key().code(),
            api_version: version,
            correlation_id: 1,
            client_id: None,
        };
        let frame = encode_request(&header, request).expect("good").bytes.freeze().slice(4..);
        let new = || {
            Session::new(
                connection,
                "User:ANONYMOUS".into(),
                "PLAINTEXT".into(),
                "/127.0.0.1".into(),
            )
        };
        let session = self.sessions.entry(connection).or_insert_with(new);
        match session.on_frame(frame) {
            SessionStep::Request { sequence, context, request } => {
                event(connection, sequence, context, request)
            }
            other => panic!("{other:?}"),
        }
    }

    fn step(&mut self, event: Event) {
        let began = Instant::now();
        self.node.step(self.now, event, &mut self.actions);
        self.longest = self.longest.max(began.elapsed());
    }

    fn flush(&mut self) {
        let began = Instant::now();
        self.node.flush(self.now, &mut self.actions);
        self.longest = self.longest.max(began.elapsed());
    }

    /// Actions take effect. This is storage's time, not the node's.
    fn act(&mut self) -> bool {
        for action in std::mem::take(&mut self.actions) {
            match action {
                Action::Storage(op) => self.store.execute(op, self.is_kept),
                Action::Reply { connection, sequence, reply } => {
                    let session = self.sessions.get_mut(&connection).expect("there");
                    session.on_reply(sequence, None).expect("in order");
                    self.replies.push(reply);
                }
                Action::ReadLog(wanted) => panic!("nothing is kept that could be read: {wanted:?}"),
                Action::Look(wanted) => panic!("nobody shares anything: {wanted:?}"),
                Action::Close { reason, .. } | Action::Fatal(reason) => panic!("{reason}"),
                Action::Send { to, .. } => panic!("there is no node {to}"),
                Action::Nodes(_) | Action::Members(_) | Action::Targets(_) => {}
                Action::Credential { .. }
                | Action::Index(_)
                | Action::Mend(_)
                | Action::Compact(_)
                | Action::Stage(_)
                | Action::Drained => {
                    panic!("nobody asked")
                }
            }
        }
        !self.store.done.is_empty()
    }

    /// Until nothing happens any more.
    fn run(&mut self) {
        loop {
            self.flush();
            if !self.act() {
                break;
            }
            for done in std::mem::take(&mut self.store.done) {
                self.step(Event::Storage(done));
            }
        }
    }

    fn ask(&mut self, request: impl Into<Request>, version: i16) -> (Response, Duration) {
        let event = self.prepare(ONE, &request.into(), version);
        let began = Instant::now();
        self.step(event);
        let took = began.elapsed();
        self.run();
        match self.replies.pop() {
            Some(Reply::Response(response)) => (*response, took),
            Some(Reply::Fetch(plan)) => (plan.response.into(), took),
            other => panic!("{other:?}"),
        }
    }

    fn create(&mut self, topics: Vec<(String, i32)>) -> Duration {
        let topic = |(name, num_partitions)| CreatableTopic {
            name,
            num_partitions,
            replication_factor: 1,
            ..CreatableTopic::default()
        };
        let topics = topics.into_iter().map(topic).collect();
        let request = CreateTopicsRequest { topics, timeout_ms: 60_000, ..Default::default() };
        let began = Instant::now();
        let (Response::CreateTopics(response), _) = self.ask(request, 7) else { panic!("other") };
        assert!(response.topics.iter().all(|topic| topic.error_code == 0), "{response:?}");
        began.elapsed()
    }

    fn image(&mut self) {
        let replicas: Vec<_> = self.store.replicas.keys().copied().collect();
        for replica in replicas {
            self.step(Event::Storage(Done::WantImage { replica }));
        }
        self.run();
    }
}

fn event(
    connection: ConnectionId,
    sequence: u64,
    context: RequestContext,
    request: Box<Prepared>,
) -> Event {
    Event::Request { connection, sequence, context, request }
}

fn batch(sequence: Option<i32>) -> Bytes {
    let mut builder = BatchBuilder::new();
    if let Some(sequence) = sequence {
        builder = builder.producer(5, 0, sequence);
    }
    let value = Some(&[7u8; 100][..]);
    let record = NewRecord { timestamp: WALL_MS, value, ..NewRecord::default() };
    builder.push(&record).expect("a record");
    builder.build().expect("a batch")
}

fn produce(name: &str, index: i32, records: Bytes) -> Request {
    let partition_data = [PartitionProduceData { index, records: Some(records) }].into();
    let name = name.into();
    let topic_data = [TopicProduceData { name, partition_data, ..Default::default() }].into();
    ProduceRequest { acks: -1, timeout_ms: 30_000, topic_data, ..Default::default() }.into()
}

/// 128 producers, each waiting for its acknowledgement, over so many partitions.
fn produces(partitions: i32, is_idempotent: bool) {
    const AT_ONCE: u64 = 128;
    let mut bench = Bench::open(Store::default());
    bench.create(vec![("t".to_owned(), partitions)]);
    bench.is_kept = false;
    let mut sequences = vec![0; usize::try_from(partitions).expect("positive")];
    let (mut spent, mut worst, mut count, mut next) = (Duration::ZERO, Duration::ZERO, 0u32, 0);
    for round in 0..3000 {
        let mut events = Vec::new();
        for connection in 0..AT_ONCE {
            let index = next % partitions;
            next += 7;
            let sequence = &mut sequences[usize::try_from(index).expect("positive")];
            let records = batch(is_idempotent.then_some(*sequence));
            *sequence += 1;
            let request = produce("t", index, records);
            events.push(bench.prepare(ConnectionId(connection + 2), &request, 9));
        }
        let began = Instant::now();
        for event in events {
            bench.node.step(bench.now, event, &mut bench.actions);
        }
        bench.node.flush(bench.now, &mut bench.actions);
        let mut took = began.elapsed();
        bench.act();
        let done = std::mem::take(&mut bench.store.done);
        let began = Instant::now();
        for done in done {
            bench.node.step(bench.now, Event::Storage(done), &mut bench.actions);
        }
        bench.node.flush(bench.now, &mut bench.actions);
        took += began.elapsed();
        bench.run();
        assert_eq!(bench.replies.len(), 128, "all are answered");
        bench.replies.clear();
        if round >= 500 {
            spent += took;
            worst = worst.max(took);
            count += 128;
        }
        bench.now.mono_us += 1000;
    }
    let kind = if is_idempotent { "idempotent" } else { "plain" };
    println!(
        "produce, {partitions} partitions, {kind}: {:?} each, worst turn {worst:?}",
        spent / count
    );
}

fn fetch(session_id: i32, session_epoch: i32, partitions: i32, max_wait_ms: i32) -> FetchRequest {
    let partition = |partition| FetchPartition {
        partition,
        partition_max_bytes: 1 << 20,
        ..FetchPartition::default()
    };
    let topic = FetchTopic {
        topic: "t".to_owned(),
        partitions: (0..partitions).map(partition).collect(),
        ..FetchTopic::default()
    };
    let topics = if partitions == 0 { Vec::new() } else { vec![topic] };
    FetchRequest {
        session_id,
        session_epoch,
        max_wait_ms,
        min_bytes: 1,
        topics,
        ..Default::default()
    }
}

fn large_answers(partitions: i32) {
    let mut bench = Bench::open(Store::default());
    bench.create(vec![("t".to_owned(), partitions)]);
    bench.is_kept = false;
    let mut best = Duration::MAX;
    for _ in 0..20 {
        let (_, took) = bench.ask(MetadataRequest { topics: None, ..Default::default() }, 12);
        best = best.min(took);
    }
    println!("metadata of {partitions} partitions: {best:?}");
    let (Response::Fetch(first), took) = bench.ask(fetch(0, 0, partitions, 0), 12) else {
        panic!("other")
    };
    println!("first fetch of a session of {partitions}: {took:?}");
    let id = first.session_id;
    let (mut empty, mut epoch) = (Duration::MAX, 0);
    for _ in 0..20 {
        epoch += 1;
        empty = empty.min(bench.ask(fetch(id, epoch, 0, 0), 12).1);
    }
    println!("next fetch of a session of {partitions}, nothing new: {empty:?}");
    let (mut parking, mut waking) = (Duration::MAX, Duration::MAX);
    for n in 0..20 {
        epoch += 1;
        let event = bench.prepare(ONE, &fetch(id, epoch, 0, 500).into(), 12);
        let began = Instant::now();
        bench.step(event);
        parking = parking.min(began.elapsed());
        assert!(bench.actions.is_empty(), "it waits");
        let event = bench.prepare(ConnectionId(2), &produce("t", n, batch(None)), 9);
        bench.step(event);
        bench.longest = Duration::ZERO;
        bench.run();
        waking = waking.min(bench.longest);
        assert_eq!(bench.replies.len(), 2, "woken");
        bench.replies.clear();
        // The consumer has read it.
        let mut read = fetch(id, epoch + 1, 1, 0);
        (read.topics[0].partitions[0].partition, read.topics[0].partitions[0].fetch_offset) =
            (n, 1);
        bench.ask(read, 12);
        epoch += 1;
    }
    println!("the same parked: {parking:?}, woken by a produce: {waking:?}");
}

fn starts(partitions: i32) {
    let mut bench = Bench::open(Store::default());
    bench.longest = Duration::ZERO;
    let took = bench.create(vec![("t".to_owned(), partitions)]);
    println!("create {partitions} partitions: {took:?}, longest step {:?}", bench.longest);
    for is_imaged in [false, true] {
        if is_imaged {
            bench.image();
        }
        let mut store = std::mem::take(&mut bench.store);
        if !is_imaged {
            // The metadata's records would be read from its segments; the image stands for them.
            let replica = METADATA;
            bench.store = store;
            bench.step(Event::Storage(Done::WantImage { replica }));
            bench.run();
            store = std::mem::take(&mut bench.store);
        }
        let began = Instant::now();
        bench = Bench::open(store);
        let took = began.elapsed();
        println!(
            "restart with {partitions}, images {is_imaged}: {took:?}, longest step {:?}",
            bench.longest
        );
        assert!(!bench.node.metrics().is_opening);
    }
    let mut bench = Bench::open(Store::default());
    bench.longest = Duration::ZERO;
    let began = Instant::now();
    for n in 0..partitions {
        bench.create(vec![(format!("t{n}"), 1)]);
    }
    println!(
        "create {partitions} topics one by one: {:?}, longest step {:?}",
        began.elapsed(),
        bench.longest
    );
}

fn main() {
    let wanted = std::env::args().nth(1).filter(|it| !it.starts_with('-')).unwrap_or_default();
    let is_wanted = |name: &str| wanted.is_empty() || wanted == name;
    if is_wanted("produce") {
        for partitions in [1, 1000] {
            produces(partitions, false);
            produces(partitions, true);
        }
    }
    if is_wanted("answers") {
        large_answers(10_000);
        large_answers(1_000);
    }
    if is_wanted("starts") {
        starts(5_000);
    }
}
