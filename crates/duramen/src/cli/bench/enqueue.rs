//! `bench enqueue`: messages of many queues, by the native API or by Kafka's Produce.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use bytes::{Bytes, BytesMut};
use clap::{ArgGroup, Args};
use duramen_client::{Acknowledgement, NewTopic, Wire};
use duramen_protocol::error_code::ErrorCode;
use duramen_protocol::partitioner::partition_of_key;
use duramen_protocol::records::{BatchBuilder, NewRecord};
use futures_util::stream;
use serde::Serialize;
use tokio::sync::mpsc;
use tokio::task::LocalSet;

use super::frames::{Refused, Requests, answer, now_ms, send};
use super::queues::{Chance, Http, Place, Via, name, retriable};
use super::report::{Measured, Meter, bandwidth, print, round};
use super::target::{leaders, seconds};
use crate::cli::bootstrap::Cluster;
use crate::cli::native::{Way, failure};
use crate::cli::screen;
use crate::cli::usage::{demand, whole};
use crate::proto::queues_client::QueuesClient;
use crate::proto::{
    EnqueueManyRequest, EnqueueManyResponse, EnqueueRequest, EnqueueResponse, EnqueueStreamRequest,
    QueueMessage, Record, enqueue_result, enqueue_stream_response,
};

/// Pause before a batch that the broker refused by Produce comes again, and the time after which it does no more.
const PAUSE: Duration = Duration::from_millis(20);
const AGAIN_MAX: Duration = Duration::from_secs(30);

/// Callers in a closed loop, which append to many queues.
#[derive(Debug, Args)]
#[command(
    group = ArgGroup::new("stop").required(true).multiple(true),
    after_help = "Each caller sends a request, waits for its answer, and sends the next. A request has the messages
of one queue, and the next request those of another one. With --spread it has messages of many
queues, one of each. The latency is that of a request.

With --via kafka, callers that share a connection share requests, as in a good client: a connection
has one outstanding request, with the messages of all its callers in one batch a partition.

Examples:
  duramen bench enqueue --messages 1000000 --batch 1024 --callers 8 --connections 8
  duramen bench enqueue --seconds 10 --queues 10000 --callers 128 --connections 4
  duramen bench enqueue --seconds 10 --queues 100000 --batch 1024 --spread --via http"
)]
pub(super) struct Enqueue {
    /// Way to the node: grpc, stream (gRPC, one stream a connection), http or kafka
    #[arg(
        long,
        value_enum,
        default_value = "grpc",
        value_name = "WAY",
        hide_possible_values = true
    )]
    via: Via,
    /// Stop after this many messages
    #[arg(long, short, value_name = "M", value_parser = whole::<u64>, group = "stop")]
    messages: Option<u64>,
    /// Stop after this time
    #[arg(long, value_name = "S", value_parser = seconds, group = "stop")]
    seconds: Option<Duration>,
    /// Warm-up before the measured time, in seconds
    #[arg(long, default_value = "0", value_name = "S", value_parser = seconds)]
    warmup_seconds: Duration,
    /// Number of messages in a request
    #[arg(long, default_value_t = 1, value_name = "K", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    batch: u32,
    /// A request has messages of many queues, one of each
    #[arg(long)]
    spread: bool,
    /// Bytes of a message
    #[arg(long, short, default_value_t = 100, value_name = "BYTES", value_parser = whole::<usize>)]
    size: usize,
    /// Number of callers, each with one request at a time
    #[arg(long, short = 'n', default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    callers: u32,
    /// Number of connections that the callers share
    #[arg(long, short = 'C', default_value_t = 1, value_name = "C", value_parser = clap::value_parser!(u32).range(1..))]
    connections: u32,
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    cluster: Cluster,
}

#[derive(Debug, Serialize)]
struct Report {
    benchmark: &'static str,
    via: &'static str,
    queues: u64,
    callers: u32,
    connections: u32,
    partitions: i32,
    size: usize,
    batch: u32,
    spread: bool,
    messages_per_second: f64,
    megabytes_per_second: f64,
    #[serde(flatten)]
    measured: Measured,
}

/// State that all callers share.
struct Load {
    place: Place,
    batch: usize,
    spread: bool,
    value: Bytes,
    /// Messages of one request, for one queue.
    records: Vec<Record>,
    meter: RefCell<Meter>,
    /// Number of requests so far, and of messages left.
    counts: RefCell<(u64, u64)>,
}

impl Load {
    /// Takes the number of the next request, and of its messages, until there is no more to do.
    fn next(&self) -> Option<(u64, usize)> {
        if self.meter.borrow().is_over(Instant::now()) {
            return None;
        }
        let mut counts = self.counts.borrow_mut();
        let count = self.batch.min(usize::try_from(counts.1).unwrap_or(usize::MAX));
        if count == 0 {
            return None;
        }
        counts.0 += 1;
        counts.1 -= count as u64;
        Some((counts.0 - 1, count))
    }

    /// Returns the queue of a request that has messages of one.
    fn queue(&self, number: u64) -> Bytes {
        name(self.place.nth(number))
    }

    /// Returns the queues of a request that has messages of many.
    fn queues(&self, number: u64, count: usize) -> impl Iterator<Item = u64> {
        let from = number * self.batch as u64;
        (from..from + count as u64).map(|it| self.place.nth(it))
    }

    fn one(&self, number: u64, count: usize) -> EnqueueRequest {
        EnqueueRequest {
            topic: self.place.topic.clone(),
            queue: self.queue(number),
            messages: self.records[..count].to_vec(),
            ..EnqueueRequest::default()
        }
    }

    fn many(&self, number: u64, count: usize) -> EnqueueManyRequest {
        let message = |(queue, record): (u64, &Record)| QueueMessage {
            queue: name(queue),
            message: Some(record.clone()),
        };
        let queues = self.queues(number, count);
        let messages = queues.zip(&self.records).map(message).collect();
        EnqueueManyRequest {
            topic: self.place.topic.clone(),
            messages,
            ..EnqueueManyRequest::default()
        }
    }

    /// Counts the answer to a request.
    fn count(&self, begun: Instant, count: usize, outcome: Result<(), String>) {
        let mut meter = self.meter.borrow_mut();
        match outcome {
            Ok(()) => meter.done(Instant::now(), count as u64, [begun]),
            Err(why) => meter.refused(Instant::now(), count as u64, why),
        }
    }
}

impl Enqueue {
    /// Runs the command.
    pub(super) async fn run(self) -> anyhow::Result<()> {
        demand(
            self.via != Via::Http || self.callers == self.connections,
            "a connection of HTTP has one call at a time; give as many --connections as --callers",
        )?;
        demand(
            self.via != Via::Stream || !self.spread,
            "a request of a stream is of one queue; leave --spread out",
        )?;
        demand(self.callers >= self.connections, "give no more --connections than --callers")?;
        let value = Chance(0x9e37_79b9_7f4a_7c15).bytes(self.size);
        let batch = self.batch as usize;
        let record = Record { value: Some(value.clone()), ..Record::default() };
        let load = Rc::new(Load {
            place: self.place.clone(),
            batch,
            spread: self.spread,
            value,
            records: vec![record; batch],
            meter: RefCell::new(Meter::new(self.warmup_seconds, self.seconds)),
            counts: RefCell::new((0, self.messages.unwrap_or(u64::MAX))),
        });
        let local = LocalSet::new();
        local.run_until(self.drive(&load)).await?;
        drop(local);
        let load = Rc::into_inner(load).context("all callers have ended")?;
        let mut meter = load.meter.into_inner();
        meter.ends_after(self.messages);
        self.report(meter)
    }

    /// Runs all callers to their end.
    async fn drive(&self, load: &Rc<Load>) -> anyhow::Result<()> {
        let mut running = Vec::new();
        let callers = |connection: u32| {
            let mine = (connection..self.callers).step_by(self.connections as usize);
            mine.count()
        };
        if self.via == Via::Kafka {
            let lanes = self.lanes(load).await?;
            load.meter.borrow_mut().starts_now();
            for (lane, connection) in lanes.into_iter().zip(0..) {
                let count = callers(connection);
                running.push(tokio::task::spawn_local(lane.run(load.clone(), count)));
            }
        } else {
            let nodes = self.place.nodes(&self.cluster.safety)?;
            self.place.prepare(&nodes).await?;
            let (mut grpc, mut http) = (Vec::new(), Vec::new());
            for connection in 0..self.connections {
                match self.via {
                    Via::Http => http.push(nodes.http(connection as usize).await?),
                    _ => grpc.push(nodes.grpc(connection as usize).await?),
                }
            }
            load.meter.borrow_mut().starts_now();
            for client in http {
                running.push(tokio::task::spawn_local(post(load.clone(), client)));
            }
            for (client, connection) in grpc.into_iter().zip(0..) {
                if self.via == Via::Stream {
                    let task = pour(load.clone(), client, callers(connection));
                    running.push(tokio::task::spawn_local(task));
                    continue;
                }
                for _ in 0..callers(connection) {
                    let task = call(load.clone(), client.clone());
                    running.push(tokio::task::spawn_local(task));
                }
            }
        }
        for task in running {
            task.await.context("a caller's task failed")??;
        }
        Ok(())
    }

    /// Connects to the leaders of the queues' partitions.
    async fn lanes(&self, load: &Load) -> anyhow::Result<Vec<Lane>> {
        let client = self.cluster.connect().await?;
        let Place { topic, partitions, queues, .. } = &self.place;
        let wanted = NewTopic {
            name: topic.clone(),
            partitions: *partitions,
            replication_factor: -1,
            configs: [("queue.enable".to_owned(), "true".to_owned())].into(),
        };
        match client.create_topic(&wanted, false).await {
            Err(error) if error.code() != Some(ErrorCode::TopicAlreadyExists) => {
                return Err(error).context("cannot create the topic");
            }
            _ => {}
        }
        let mut led = Vec::new();
        for leader in leaders(&client, topic, *partitions).await? {
            let is_led = |queue: &u64| {
                leader.partitions.contains(&partition_of_key(&name(*queue), *partitions))
            };
            let mine: Rc<[u64]> =
                (0..*queues).map(|it| load.place.nth(it)).filter(is_led).collect();
            if !mine.is_empty() {
                led.push((leader.address, mine));
            }
        }
        ensure!(!led.is_empty(), "no queue has a leader");
        let mut lanes = Vec::new();
        for connection in 0..self.connections as usize {
            let (address, queues) = &led[connection % led.len()];
            lanes.push(Lane {
                socket: client.enter(address).await?,
                requests: Requests::new(topic, Acknowledgement::All.code())?,
                queues: queues.clone(),
                next: connection / led.len() * queues.len() / self.connections as usize,
            });
        }
        Ok(lanes)
    }

    fn report(&self, meter: Meter) -> anyhow::Result<()> {
        let measured = meter.finish()?;
        let payload = measured.total as f64 * self.size as f64;
        let report = Report {
            benchmark: "enqueue",
            via: match self.via {
                Via::Grpc => "grpc",
                Via::Stream => "stream",
                Via::Http => "http",
                Via::Kafka => "kafka",
            },
            queues: self.place.queues,
            callers: self.callers,
            connections: self.connections,
            partitions: self.place.partitions,
            size: self.size,
            batch: self.batch,
            spread: self.spread,
            messages_per_second: round(measured.rate()),
            megabytes_per_second: round(payload / measured.seconds / 1e6),
            measured,
        };
        let Report { measured, messages_per_second, .. } = &report;
        let lines = [
            format!(
                "{} of {} to {} in {} s",
                screen::count(measured.total, "message"),
                screen::count(self.size, "byte"),
                screen::count(self.place.queues, "queue"),
                measured.seconds
            ),
            format!("{messages_per_second} messages/s  {}", bandwidth(payload, measured.seconds)),
            format!("of a request: {}", measured.latency_us.line()),
            format!("client CPU {} s", measured.client_cpu_seconds),
        ];
        print(self.cluster.json(), &report, &lines)?;
        report.measured.check("message")
    }
}

/// Calls by gRPC, one after the other.
async fn call(load: Rc<Load>, mut client: QueuesClient<Way>) -> anyhow::Result<()> {
    while let Some((number, count)) = load.next() {
        let begun = Instant::now();
        let outcome = if load.spread {
            let answer = client.enqueue_many(load.many(number, count)).await;
            answer.map(|it| all_appended(&it.into_inner()))
        } else {
            client.enqueue(load.one(number, count)).await.map(|_| Ok(()))
        };
        let outcome = match outcome {
            Ok(appended) => appended,
            Err(status) => Err(retriable(status)?),
        };
        load.count(begun, count, outcome);
    }
    Ok(())
}

/// Returns the reason of the first message that was not appended.
fn all_appended(answer: &EnqueueManyResponse) -> Result<(), String> {
    let problem = |it: &enqueue_result::Result| match it {
        enqueue_result::Result::Problem(problem) => {
            Some(format!("{}: {}", problem.reason, problem.detail))
        }
        enqueue_result::Result::Position(_) => None,
    };
    let mut results = answer.results.iter().filter_map(|it| it.result.as_ref());
    results.find_map(problem).map_or(Ok(()), Err)
}

/// Calls by HTTP, one after the other.
async fn post(load: Rc<Load>, mut client: Http) -> anyhow::Result<()> {
    let topic = &load.place.topic;
    let all = format!("/v1/topics/{topic}/messages");
    while let Some((number, count)) = load.next() {
        let begun = Instant::now();
        let outcome = if load.spread {
            let answer = client.post(&all, &load.many(number, count)).await?;
            answer.and_then(|it: EnqueueManyResponse| all_appended(&it))
        } else {
            let request = load.one(number, count);
            let queue = String::from_utf8_lossy(&request.queue);
            let path = format!("/v1/topics/{topic}/queues/{queue}/messages");
            client.post(&path, &request).await?.map(|_: EnqueueResponse| ())
        };
        load.count(begun, count, outcome);
    }
    Ok(())
}

/// Sends requests in one stream, a few of them at a time.
async fn pour(load: Rc<Load>, mut client: QueuesClient<Way>, at_once: usize) -> anyhow::Result<()> {
    let (send, receive) = mpsc::channel(at_once);
    let requests = stream::unfold(receive, |mut receive| async {
        let request: Option<EnqueueStreamRequest> = receive.recv().await;
        request.map(|request| (request, receive))
    });
    let push = |waiting: &mut BTreeMap<u64, (Instant, usize)>| {
        let Some((number, count)) = load.next() else { return false };
        waiting.insert(number, (Instant::now(), count));
        let request = Some(load.one(number, count));
        send.try_send(EnqueueStreamRequest { call: number, request }).is_ok()
    };
    let mut waiting = BTreeMap::new();
    while waiting.len() < at_once && push(&mut waiting) {}
    let answers = client.enqueue_stream(requests).await;
    let mut answers = answers.map_err(failure)?.into_inner();
    while !waiting.is_empty() {
        let answer = answers.message().await.map_err(failure)?;
        let answer = answer.context("the node ended the stream")?;
        let (begun, count) = waiting.remove(&answer.call).context("an answer to no request")?;
        let outcome = match answer.result {
            Some(enqueue_stream_response::Result::Appended(_)) => Ok(()),
            Some(enqueue_stream_response::Result::Problem(problem)) => {
                Err(format!("{}: {}", problem.reason, problem.detail))
            }
            None => bail!("the node answered nothing"),
        };
        load.count(begun, count, outcome);
        push(&mut waiting);
    }
    Ok(())
}

/// Batches of one request, by partition, and the number of messages in each.
struct Batches {
    batches: Vec<(i32, Bytes)>,
    sizes: BTreeMap<i32, u64>,
}

/// Connection that speaks Kafka's protocol to the leader of some queues.
struct Lane {
    socket: Wire,
    requests: Requests,
    /// Queues whose partitions the broker of this connection leads.
    queues: Rc<[u64]>,
    next: usize,
}

impl Lane {
    async fn run(mut self, load: Rc<Load>, callers: usize) -> anyhow::Result<()> {
        let (mut frame, mut input) = (Vec::new(), BytesMut::with_capacity(64 << 10));
        loop {
            let counts: Vec<usize> =
                std::iter::from_fn(|| load.next()).take(callers).map(|it| it.1).collect();
            if counts.is_empty() {
                return Ok(());
            }
            let begun = Instant::now();
            let Batches { mut batches, mut sizes } = self.batches(&load, &counts)?;
            while !batches.is_empty() {
                self.requests.put_batches(&mut frame, &batches);
                send(&mut self.socket, &frame).await?;
                let refused = answer(&mut self.socket, &mut input).await?;
                let now = Instant::now();
                let mut later = BTreeMap::new();
                for Refused { partition, why } in refused {
                    let count = sizes.remove(&partition).unwrap_or(0);
                    if begun.elapsed() < AGAIN_MAX {
                        later.insert(partition, count);
                    } else {
                        load.meter.borrow_mut().refused(now, count, why);
                    }
                }
                let ended = if later.is_empty() { counts.len() } else { 0 };
                let begun = std::iter::repeat_n(begun, ended);
                load.meter.borrow_mut().done(now, sizes.into_values().sum(), begun);
                batches.retain(|(partition, _)| later.contains_key(partition));
                sizes = later;
                if !batches.is_empty() {
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }

    /// Makes a batch for each partition, of the messages of all callers, and counts the messages of each.
    fn batches(&mut self, load: &Load, counts: &[usize]) -> anyhow::Result<Batches> {
        let timestamp = now_ms();
        let mut batches: BTreeMap<i32, BatchBuilder> = BTreeMap::new();
        for count in counts {
            let mut key = name(self.take());
            for number in 0..*count {
                if load.spread && number > 0 {
                    key = name(self.take());
                }
                let partition = partition_of_key(&key, load.place.partitions);
                let (key, value) = (Some(&*key), Some(&*load.value));
                let record = NewRecord { timestamp, key, value, ..NewRecord::default() };
                batches.entry(partition).or_default().push(&record)?;
            }
        }
        let sizes = batches.iter().map(|(at, it)| (*at, u64::from(it.count().cast_unsigned())));
        let sizes = sizes.collect();
        let build = |(at, batch): (i32, BatchBuilder)| Ok((at, batch.build()?));
        let batches = batches.into_iter().map(build).collect::<anyhow::Result<_>>()?;
        Ok(Batches { batches, sizes })
    }

    fn take(&mut self) -> u64 {
        let queue = self.queues[self.next % self.queues.len()];
        self.next = self.next.wrapping_add(1);
        queue
    }
}
