//! `bench produce`: batches in an open pipeline.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use bytes::BytesMut;
use clap::{ArgGroup, Args};
use duramen_client::{Acknowledgement, Client, OffsetAt, Wire};
use serde::Serialize;
use tokio::task::LocalSet;

use super::fast::{Appended, FastLane};
use super::frames::{Records, Requests, answer, send};
use super::report::{Measured, Meter, bandwidth, print, round};
use super::target::{Target, seconds};
use crate::cli::acks::Acks;
use crate::cli::bootstrap::Cluster;
use crate::cli::screen;
use crate::cli::usage::{demand, whole};

/// Longest time until records sent without acks appear in the topic.
const UNSEEN_MAX: Duration = Duration::from_secs(60);

/// Bulk produce: several requests in flight on each connection.
#[derive(Debug, Args)]
#[command(
    group = ArgGroup::new("stop").required(true).multiple(true),
    after_help = "Examples:
  duramen bench produce --messages 5000000 --size 200 --batch 500
  duramen bench produce --seconds 30 --size 1000 --batch 1000 --in-flight 5
  duramen bench produce --messages 1000000 --topic wide --partitions 100
  duramen bench produce --messages 1000000 --acks 0 --batch 1
  duramen bench produce --fast --seconds 30 --topic far --replication-factor 3

With --fast a batch goes to the leader and to followers at once, in a topic with
fast.append.enable=true. Each connection is then a client of its own, with one partition and at
most 5 batches in flight.

Without acks (--acks 0), records count once the ends of the partitions include all of them."
)]
pub(super) struct Produce {
    /// Stop after this many records
    #[arg(long, short, value_name = "M", value_parser = whole::<u64>, group = "stop")]
    messages: Option<u64>,
    /// Stop after this time
    #[arg(long, value_name = "S", value_parser = seconds, group = "stop")]
    seconds: Option<Duration>,
    /// Send each batch to the leader and to followers at once
    #[arg(long)]
    fast: bool,
    /// Bytes of a record's value
    #[arg(long, short, default_value_t = 1000, value_name = "BYTES", value_parser = whole::<usize>)]
    size: usize,
    /// Number of records in a batch
    #[arg(long, default_value_t = 500, value_name = "K", value_parser = clap::value_parser!(u32).range(1..))]
    batch: u32,
    /// Number of connections
    #[arg(long, short = 'C', default_value_t = 1, value_name = "C", value_parser = clap::value_parser!(u32).range(1..))]
    connections: u32,
    /// Requests in flight on each connection
    #[arg(long, default_value_t = 5, value_name = "W", value_parser = whole::<usize>)]
    in_flight: usize,
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    cluster: Cluster,
}

#[derive(Debug, Serialize)]
struct Report {
    benchmark: &'static str,
    connections: u32,
    partitions: i32,
    size: usize,
    batch: u32,
    messages_per_second: f64,
    megabytes_per_second: f64,
    /// Batches of one round trip; only with --fast.
    #[serde(skip_serializing_if = "Option::is_none")]
    fast_batches: Option<u64>,
    #[serde(flatten)]
    measured: Measured,
}

struct Shared {
    meter: Meter,
    /// Number of records left to send.
    left: u64,
    /// Batches of one round trip.
    fast: u64,
}

impl Shared {
    /// Takes the records of the next batch: at most so many.
    fn take(&mut self, batch: u64) -> u64 {
        let count = self.left.min(batch);
        self.left -= count;
        count
    }
}

impl Produce {
    /// Runs the command.
    pub(super) async fn run(mut self) -> anyhow::Result<()> {
        if self.fast {
            self.target.allow_fast()?;
        }
        let is_answered = self.target.acks != Acks::None;
        demand(
            is_answered || self.messages.is_some(),
            "--acks 0 needs --messages, the number of records to wait for",
        )?;
        let client = self.cluster.connect().await?;
        let led = self.target.prepare(&client).await?;
        let records = Rc::new(Records::new(self.batch as usize, self.size)?);
        let acks = Acknowledgement::from(self.target.acks).code();
        let (mut lanes, mut fast_lanes) = (Vec::new(), Vec::new());
        for lane in 0..self.connections as usize {
            if self.fast {
                fast_lanes.push(self.fast_lane(lane, &client, &records).await?);
                continue;
            }
            let led = &led[lane % led.len()];
            lanes.push(Lane {
                socket: client.enter(&led.address).await?,
                requests: Requests::new(&self.target.topic, acks)?,
                records: records.clone(),
                partitions: led.partitions.clone(),
                next: lane,
                in_flight: self.in_flight.max(1),
                is_answered,
            });
        }
        let before = if is_answered { 0 } else { self.ends(&client).await? };
        let meter = Meter::new(Duration::ZERO, self.seconds);
        let shared = Shared { meter, left: self.messages.unwrap_or(u64::MAX), fast: 0 };
        let shared = Rc::new(RefCell::new(shared));
        let local = LocalSet::new();
        let batch = u64::from(self.batch);
        let begin = |lane: Lane| local.spawn_local(lane.run(shared.clone(), batch));
        let running: Vec<_> = lanes.into_iter().map(begin).collect();
        let begin = |lane| local.spawn_local(run_fast(lane, shared.clone(), batch));
        let fast_lanes: Vec<_> = fast_lanes.into_iter().map(begin).collect();
        let bar = local.spawn_local(show(shared.clone(), self.messages));
        // A broker may drop unacknowledged records of a closed connection.
        let mut open = Vec::new();
        local
            .run_until(async {
                for lane in running {
                    open.push(lane.await.context("a connection's task failed")??);
                }
                for lane in fast_lanes {
                    lane.await.context("a connection's task failed")??;
                }
                bar.abort();
                let _ = bar.await;
                anyhow::Ok(())
            })
            .await?;
        let shared = Rc::into_inner(shared).context("all connections have ended")?;
        let mut shared = shared.into_inner();
        if let Some(messages) = self.messages.filter(|_| !is_answered) {
            self.see(&client, before + i64::try_from(messages)?).await?;
            shared.meter.done(Instant::now(), messages, []);
        }
        shared.meter.ends_after(self.messages);
        self.report(shared)
    }

    async fn fast_lane(
        &self,
        lane: usize,
        client: &Client,
        records: &Rc<Records>,
    ) -> anyhow::Result<FastLane> {
        let client = Client::connect(client.options().clone()).await?;
        let partition = i32::try_from(lane)? % self.target.partitions;
        let topic = &self.target.topic;
        FastLane::open(client, (topic, partition), records, self.in_flight.max(1)).await
    }

    /// Waits until the sum of the partitions' end offsets is so much.
    async fn see(&self, client: &Client, sum: i64) -> anyhow::Result<()> {
        let begun = Instant::now();
        while self.ends(client).await? < sum {
            if begun.elapsed() > UNSEEN_MAX {
                bail!("some of the records do not appear in the topic: they were refused");
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Ok(())
    }

    /// Asks for the sum of the partitions' end offsets.
    async fn ends(&self, client: &Client) -> anyhow::Result<i64> {
        let partitions: Vec<_> =
            (0..self.target.partitions).map(|partition| (partition, OffsetAt::End)).collect();
        let listed = client.list_offsets(&self.target.topic, &partitions).await?;
        Ok(listed.values().map(|listed| listed.offset).sum())
    }

    fn report(&self, shared: Shared) -> anyhow::Result<()> {
        let fast_batches = self.fast.then_some(shared.fast);
        let measured = shared.meter.finish()?;
        let payload = measured.total as f64 * self.size as f64;
        let report = Report {
            benchmark: "produce",
            connections: self.connections,
            partitions: self.target.partitions,
            size: self.size,
            batch: self.batch,
            messages_per_second: round(measured.rate()),
            megabytes_per_second: round(payload / measured.seconds / 1e6),
            fast_batches,
            measured,
        };
        let Report { measured, messages_per_second, .. } = &report;
        let mut lines = vec![
            format!(
                "{} of {} in {} s",
                screen::count(measured.total, "record"),
                screen::count(self.size, "byte"),
                measured.seconds
            ),
            format!("{messages_per_second} records/s  {}", bandwidth(payload, measured.seconds)),
            format!("of a batch: {}", measured.latency_us.line()),
            format!("client CPU {} s", measured.client_cpu_seconds),
        ];
        lines.extend(fast_batches.map(|fast| format!("{fast} batches in one round trip")));
        print(self.cluster.json(), &report, &lines)?;
        report.measured.check("record")
    }
}

struct Lane {
    socket: Wire,
    requests: Requests,
    records: Rc<Records>,
    partitions: Vec<i32>,
    next: usize,
    in_flight: usize,
    is_answered: bool,
}

impl Lane {
    async fn run(mut self, shared: Rc<RefCell<Shared>>, batch: u64) -> anyhow::Result<Wire> {
        let (mut frame, mut input) = (Vec::new(), BytesMut::with_capacity(64 << 10));
        let mut waiting: VecDeque<(Instant, u64)> = VecDeque::new();
        loop {
            let over = shared.borrow().meter.is_over(Instant::now());
            while !over && waiting.len() < self.in_flight {
                let count = shared.borrow_mut().take(batch);
                if count == 0 {
                    break;
                }
                let partition = self.partitions[self.next % self.partitions.len()];
                self.next = self.next.wrapping_add(1);
                let records = usize::try_from(count)?;
                self.requests.put(&mut frame, &self.records, &[(partition, records)]);
                if self.is_answered {
                    waiting.push_back((Instant::now(), count));
                }
                send(&mut self.socket, &frame).await?;
            }
            let Some((begun, count)) = waiting.pop_front() else { return Ok(self.socket) };
            let refused = answer(&mut self.socket, &mut input).await?;
            let mut shared = shared.borrow_mut();
            match refused.into_iter().next() {
                None => shared.meter.done(Instant::now(), count, [begun]),
                Some(refused) => shared.meter.refused(Instant::now(), count, refused.why),
            }
        }
    }
}

/// Appends by one client, with several batches in flight.
async fn run_fast(
    mut lane: FastLane,
    shared: Rc<RefCell<Shared>>,
    batch: u64,
) -> anyhow::Result<()> {
    let note = |done: Vec<Appended>| {
        let mut shared = shared.borrow_mut();
        for Appended { begun, records, is_fast } in done {
            shared.meter.done(Instant::now(), records as u64, [begun]);
            shared.fast += u64::from(is_fast);
        }
    };
    while !shared.borrow().meter.is_over(Instant::now()) {
        let count = shared.borrow_mut().take(batch);
        if count == 0 {
            break;
        }
        note(lane.push(usize::try_from(count)?).await?);
    }
    note(lane.finish().await?);
    Ok(())
}

async fn show(shared: Rc<RefCell<Shared>>, messages: Option<u64>) {
    let bar = messages.map_or_else(screen::counter, screen::count_bar);
    while !bar.is_hidden() {
        tokio::time::sleep(Duration::from_millis(200)).await;
        bar.set_position(shared.borrow().meter.total());
    }
}
