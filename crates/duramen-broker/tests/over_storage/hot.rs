//! Costs of an append in user space, by stage: all stages on one warm thread, without sockets and medium.
//!
//! The number of allocations is exact, so the gate bounds it. Times are printed by
//! `cargo test --release -p duramen-broker --test over_storage -- --ignored --nocapture costs`.

use std::time::{Duration, Instant};

use bytes::Bytes;
use duramen_broker::session::{Session, SessionStep};
use duramen_broker::{Action, ConnectionId, Event, Reply};
use duramen_protocol::messages::ProduceRequest;
use duramen_protocol::messages::create_topics::CreatableTopic;
use duramen_protocol::messages::produce::{PartitionProduceData, TopicProduceData};
use duramen_protocol::records::{BatchBuilder, NewRecord};
use duramen_protocol::{Request, RequestHeader, Response, encode_request};
use duramen_storage::Options;
use duramen_storage::storage::Facts;

use super::memory::MemoryDisk;
use super::{Broker, WALL_MS};

const VALUE_BYTES: usize = 2048;
/// Turns before the first that counts, and those that count.
const WARM_UP: usize = 20;
const COUNTED: usize = 200;
const STAGES: [&str; 9] = [
    "decode, check",
    "step",
    "propose",
    "submit",
    "journal round",
    "segments",
    "synced",
    "commit",
    "encode",
];

/// Sums over appends.
#[derive(Default)]
struct Costs {
    appends: u64,
    took: [Duration; STAGES.len()],
    allocations: [u64; STAGES.len()],
}

impl Costs {
    fn count<T>(&mut self, stage: usize, work: impl FnOnce() -> T) -> T {
        let mut made = None;
        let began = Instant::now();
        let counted = allocation_counter::measure(|| made = Some(work()));
        self.took[stage] += began.elapsed();
        self.allocations[stage] += counted.count_total;
        made.expect("the work is done")
    }

    /// Returns the allocations of an append.
    fn allocations(&self) -> f64 {
        self.allocations.iter().sum::<u64>() as f64 / self.appends as f64
    }

    fn print(&self, what: &str) {
        let each = |sum: f64| sum / self.appends as f64;
        let total: Duration = self.took.iter().sum();
        println!(
            "{what}: {:.0} ns, {:.1} allocations an append",
            each(total.as_nanos() as f64),
            self.allocations()
        );
        for (at, stage) in STAGES.iter().enumerate() {
            let (took, allocations) = (self.took[at].as_nanos() as f64, self.allocations[at]);
            println!("    {stage:14} {:6.0} ns {:6.2}", each(took), each(allocations as f64));
        }
    }
}

/// Clients that append at once, each over a connection of its own.
struct Appenders {
    broker: Broker,
    sessions: Vec<Session>,
    /// Request of each partition.
    frames: Vec<Bytes>,
    /// Partition of the next request.
    next: usize,
}

impl Appenders {
    fn new(at_once: usize, partitions: i32) -> Self {
        let facts = Facts { cluster_id: [7; 16], broker_id: 0, directory_id: [9; 16] };
        // Those of a node.
        let options = Options {
            extent_bytes: 16 << 20,
            extents_max: 32,
            journal_payload_max: 512 << 10,
            ..super::options(facts)
        };
        let mut broker = Broker::open_with(MemoryDisk::default(), 1, options);
        let topic = CreatableTopic {
            name: "t".to_owned(),
            num_partitions: partitions,
            replication_factor: 1,
            ..CreatableTopic::default()
        };
        broker.create_topic(topic);
        broker.disk.stop();
        let session = |number| {
            let id = ConnectionId(number + 2);
            Session::new(id, "User:ANONYMOUS".into(), "PLAINTEXT".into(), "/127.0.0.1".into())
        };
        let sessions = (0..at_once as u64).map(session).collect();
        let frames = (0..partitions).map(frame).collect();
        Self { broker, sessions, frames, next: 0 }
    }

    /// All append once.
    fn turn(&mut self, costs: &mut Costs) {
        let Self { broker, sessions, frames, next } = self;
        let Broker { node, storage, disk, now, .. } = broker;
        let mut events = Vec::with_capacity(sessions.len());
        costs.count(0, || {
            for session in sessions.iter_mut() {
                *next = (*next + 7) % frames.len();
                // A socket's bytes are copied once.
                let frame = Bytes::copy_from_slice(&frames[*next]);
                match session.on_frame(frame) {
                    SessionStep::Request { sequence, context, request } => {
                        let connection = session.connection();
                        events.push(Event::Request { connection, sequence, context, request });
                    }
                    other => panic!("{other:?}"),
                }
            }
        });
        let mut actions = Vec::with_capacity(2 * sessions.len());
        costs.count(1, || {
            for event in events {
                node.step(*now, event, &mut actions);
            }
        });
        costs.count(2, || node.flush(*now, &mut actions));
        costs.count(3, || {
            for action in actions.drain(..) {
                match action {
                    Action::Storage(op) => storage.submit(op),
                    other => panic!("{other:?}"),
                }
            }
        });
        let round = costs.count(4, || storage.begin_round().expect("writes"));
        let bulk = costs.count(5, || storage.write_segments().expect("writes"));
        let done = costs.count(6, || {
            for request in round.into_iter().chain(bulk) {
                let result = request.run(disk);
                storage.on_sync(request.id, result).expect("syncs");
            }
            storage.take_done()
        });
        costs.count(7, || {
            for done in done {
                node.step(*now, Event::Storage(done), &mut actions);
            }
            node.flush(*now, &mut actions);
        });
        let is_reply = |action: &mut Action| matches!(action, Action::Reply { .. });
        let replies: Vec<_> = actions.extract_if(.., is_reply).collect();
        assert_eq!(replies.len(), sessions.len(), "every append is answered in its turn");
        costs.count(8, || {
            for action in replies {
                let Action::Reply { connection, sequence, reply } = action else { unreachable!() };
                let Reply::Response(response) = reply else { panic!("{reply:?}") };
                assert!(is_good(&response), "{response:?}");
                let session = &mut sessions[usize::try_from(connection.0 - 2).expect("small")];
                let outgoing = session.on_reply(sequence, Some(*response)).expect("encodes");
                assert_eq!(outgoing.len(), 1);
            }
        });
        costs.appends += sessions.len() as u64;
        broker.now.mono_us += 1000;
        broker.act(actions);
        broker.run();
    }

    /// Returns the costs of many turns, once caches and buffers are as large as they get.
    fn costs(mut self) -> Costs {
        let mut costs = Costs::default();
        (0..WARM_UP).for_each(|_| self.turn(&mut costs));
        costs = Costs::default();
        (0..COUNTED).for_each(|_| self.turn(&mut costs));
        costs
    }
}

fn is_good(response: &Response) -> bool {
    let Response::Produce(response) = response else { return false };
    response.responses[0].partition_responses[0].error_code == 0
}

fn frame(index: i32) -> Bytes {
    let mut builder = BatchBuilder::new();
    let value = Some(&[7u8; VALUE_BYTES][..]);
    builder
        .push(&NewRecord { timestamp: WALL_MS, value, ..NewRecord::default() })
        .expect("a record");
    let records = Some(builder.build().expect("a batch"));
    let partition_data = [PartitionProduceData { index, records }].into();
    let topic_data =
        [TopicProduceData { name: "t".into(), partition_data, ..Default::default() }].into();
    let request: Request =
        ProduceRequest { acks: -1, timeout_ms: 30_000, topic_data, ..Default::default() }.into();
    let header = RequestHeader {
        api_key: request.api_key().code(),
        api_version: 12,
        correlation_id: 1,
        client_id: Some("appender".into()),
    };
    encode_request(&header, &request).expect("good").bytes.freeze().slice(4..)
}

#[test]
fn an_append_allocates_no_more_than_so_often() {
    for (at_once, partitions, bound) in [(1, 1, 25.0), (64, 1, 10.0), (128, 1000, 24.5)] {
        let found = Appenders::new(at_once, partitions).costs().allocations();
        assert!(found <= bound, "{at_once} at once, {partitions} partitions: {found}");
    }
}

#[test]
#[ignore = "prints times, which no test judges"]
fn costs_of_an_append() {
    for at_once in [1, 8, 64, 128] {
        Appenders::new(at_once, 1).costs().print(&format!("{at_once} at once"));
    }
    Appenders::new(128, 1000).costs().print("128 at once, over 1,000 partitions");
}
