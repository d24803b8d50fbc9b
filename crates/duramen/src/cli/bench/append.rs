//! `bench append`: appenders that each wait for their own acknowledgement.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::Context;
use bytes::BytesMut;
use clap::Args;
use duramen_client::{Acknowledgement, Client, Wire};
use serde::Serialize;
use tokio::task::LocalSet;

use super::fast::FastLane;
use super::frames::{Records, Refused, Requests, answer, send};
use super::report::{Measured, Meter, bandwidth, print, round};
use super::target::{Led, Target, seconds};
use crate::cli::acks::Acks;
use crate::cli::bootstrap::Cluster;
use crate::cli::screen;
use crate::cli::usage::{demand, whole};

/// Appenders in a closed loop, sharing connections.
#[derive(Debug, Args)]
#[command(
    after_help = "Each appender sends one record, waits for its acknowledgement, and sends the next. Appenders
that share a connection share requests, as in a good client: a connection has one outstanding
Produce request. The next request has the records of all waiting appenders, in one batch for each
partition. With --partitions above 1 an appender writes to another partition each time.

With --fast a request is a batch that goes to the leader and to followers at once, in a topic with
fast.append.enable=true. Each connection is then a client of its own, with one partition.

Examples:
  duramen bench append --appenders 128 --connections 1
  duramen bench append --appenders 128 --connections 128 --size 2048 --seconds 20
  duramen bench append --appenders 128 --connections 8 --topic wide --partitions 1000
  duramen bench append --fast --topic far --replication-factor 3 --size 200"
)]
pub(super) struct Append {
    /// Number of appenders
    #[arg(long, short = 'n', default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    appenders: u32,
    /// Number of connections that the appenders share
    #[arg(long, short = 'C', default_value_t = 1, value_name = "C", value_parser = clap::value_parser!(u32).range(1..))]
    connections: u32,
    /// Send each batch to the leader and to followers at once
    #[arg(long)]
    fast: bool,
    /// Bytes of a record's value
    #[arg(long, short, default_value_t = 2048, value_name = "BYTES", value_parser = whole::<usize>)]
    size: usize,
    /// Measured time, in seconds
    #[arg(long, default_value = "10", value_name = "S", value_parser = seconds)]
    seconds: Duration,
    /// Warm-up before the measured time, in seconds
    #[arg(long, default_value = "1", value_name = "S", value_parser = seconds)]
    warmup_seconds: Duration,
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    cluster: Cluster,
}

#[derive(Debug, Serialize)]
struct Report {
    benchmark: &'static str,
    appenders: u32,
    connections: u32,
    partitions: i32,
    size: usize,
    appends_per_second: f64,
    megabytes_per_second: f64,
    appends_per_request: f64,
    /// Batches of one round trip; only with --fast.
    #[serde(skip_serializing_if = "Option::is_none")]
    fast_batches: Option<u64>,
    #[serde(flatten)]
    measured: Measured,
}

/// Counters of all connections.
struct Shared {
    meter: Meter,
    requests: u64,
    /// Of the requests, batches of one round trip.
    fast: u64,
}

impl Append {
    /// Runs the command.
    pub(super) async fn run(mut self) -> anyhow::Result<()> {
        demand(
            self.target.acks != Acks::None,
            "an appender waits for its acknowledgement; give --acks all or --acks 1",
        )?;
        if self.fast {
            self.target.allow_fast()?;
        }
        let client = self.cluster.connect().await?;
        let led = self.target.prepare(&client).await?;
        let per_lane = self.appenders.div_ceil(self.connections) as usize;
        let records = Rc::new(Records::new(per_lane, self.size)?);
        let (mut lanes, mut fast_lanes) = (Vec::new(), Vec::new());
        for lane in 0..self.connections.min(self.appenders) {
            if self.fast {
                fast_lanes.push((
                    self.fast_lane(lane, &client, &records).await?,
                    self.of_lane(lane).count(),
                ));
            } else {
                let led = &led[lane as usize % led.len()];
                lanes.push(self.lane(lane, (&client, led), &records).await?);
            }
        }
        let (warm_up, time) = (self.warmup_seconds, self.seconds);
        let meter = Meter::new(warm_up, Some(time));
        let shared = Rc::new(RefCell::new(Shared { meter, requests: 0, fast: 0 }));
        let local = LocalSet::new();
        let lanes = lanes.into_iter().map(|lane| local.spawn_local(lane.run(shared.clone())));
        let fast_lanes = fast_lanes
            .into_iter()
            .map(|(lane, appenders)| local.spawn_local(run_fast(lane, appenders, shared.clone())));
        let running: Vec<_> = lanes.chain(fast_lanes).collect();
        local.spawn_local(show(shared.clone(), warm_up + time));
        local
            .run_until(async {
                for lane in running {
                    lane.await.context("a connection's task failed")??;
                }
                anyhow::Ok(())
            })
            .await?;
        drop(local);
        let shared = Rc::into_inner(shared).context("all connections have ended")?.into_inner();
        self.report(shared)
    }

    /// Returns the appenders of a connection.
    fn of_lane(&self, lane: u32) -> impl Iterator<Item = u32> + use<> {
        (lane..self.appenders).step_by(self.connections as usize)
    }

    async fn fast_lane(
        &self,
        lane: u32,
        client: &Client,
        records: &Rc<Records>,
    ) -> anyhow::Result<FastLane> {
        let client = Client::connect(client.options().clone()).await?;
        let partition = i32::try_from(lane)? % self.target.partitions;
        FastLane::open(client, (&self.target.topic, partition), records, 1).await
    }

    async fn lane(
        &self,
        lane: u32,
        (client, led): (&Client, &Led),
        records: &Rc<Records>,
    ) -> anyhow::Result<Lane> {
        let mine = self.of_lane(lane);
        let acks = Acknowledgement::from(self.target.acks).code();
        Ok(Lane {
            socket: client.enter(&led.address).await?,
            requests: Requests::new(&self.target.topic, acks)?,
            records: records.clone(),
            partitions: led.partitions.clone(),
            next: mine.map(|appender| appender as usize).collect(),
            stride: self.appenders as usize,
        })
    }

    fn report(&self, shared: Shared) -> anyhow::Result<()> {
        let requests = shared.requests;
        let fast_batches = self.fast.then_some(shared.fast);
        let measured = shared.meter.finish()?;
        let payload = measured.total as f64 * self.size as f64;
        let report = Report {
            benchmark: "append",
            appenders: self.appenders,
            connections: self.connections,
            partitions: self.target.partitions,
            size: self.size,
            appends_per_second: round(measured.rate()),
            megabytes_per_second: round(payload / measured.seconds / 1e6),
            appends_per_request: round(measured.total as f64 / requests.max(1) as f64),
            fast_batches,
            measured,
        };
        let Report { measured, appends_per_second, appends_per_request, .. } = &report;
        let mut lines = vec![
            format!(
                "{} of {} over {} to {}, {} s",
                screen::count(self.appenders, "appender"),
                screen::count(self.size, "byte"),
                screen::count(self.connections, "connection"),
                screen::count(self.target.partitions, "partition"),
                measured.seconds
            ),
            format!(
                "{appends_per_second} appends/s  {}  {appends_per_request} appends a request",
                bandwidth(payload, measured.seconds)
            ),
            measured.latency_us.line(),
            format!("client CPU {} s", measured.client_cpu_seconds),
        ];
        let fast =
            fast_batches.map(|fast| format!("{fast} of {requests} batches in one round trip"));
        lines.extend(fast);
        print(self.cluster.json(), &report, &lines)?;
        report.measured.check("append")
    }
}

/// One connection and its appenders.
struct Lane {
    socket: Wire,
    requests: Requests,
    records: Rc<Records>,
    /// Partitions that the broker of this connection leads.
    partitions: Vec<i32>,
    /// Counter of each appender, which chooses its next partition.
    next: Vec<usize>,
    stride: usize,
}

impl Lane {
    async fn run(mut self, shared: Rc<RefCell<Shared>>) -> anyhow::Result<()> {
        let (mut frame, mut input) = (Vec::new(), BytesMut::with_capacity(64 << 10));
        let (mut chosen, mut parts) = (Vec::new(), Vec::new());
        let mut begun = Instant::now();
        while !shared.borrow().meter.is_over(begun) {
            self.choose(&mut chosen, &mut parts);
            self.requests.put(&mut frame, &self.records, &parts);
            send(&mut self.socket, &frame).await?;
            let refused = answer(&mut self.socket, &mut input).await?;
            // Every appender of this connection waited for this response, and begins its next append
            // at the same instant. The next request therefore has a record of each.
            let now = Instant::now();
            let mut appends = self.next.len();
            let mut shared = shared.borrow_mut();
            for Refused { partition, why } in refused {
                let lost = parts.iter().find(|(to, _)| *to == partition).map_or(0, |part| part.1);
                appends -= lost;
                shared.meter.refused(now, lost as u64, why);
            }
            let before = shared.meter.total();
            shared.meter.done(now, appends as u64, std::iter::repeat_n(begun, appends));
            shared.requests += u64::from(shared.meter.total() > before);
            begun = now;
        }
        Ok(())
    }

    /// Chooses the partitions of the next request, with the number of records for each.
    fn choose(&mut self, chosen: &mut Vec<i32>, parts: &mut Vec<(i32, usize)>) {
        parts.clear();
        if let [only] = self.partitions[..] {
            parts.push((only, self.next.len()));
            return;
        }
        chosen.clear();
        for next in &mut self.next {
            chosen.push(self.partitions[*next % self.partitions.len()]);
            *next = next.wrapping_add(self.stride);
        }
        chosen.sort_unstable();
        for run in chosen.chunk_by(|a, b| a == b) {
            parts.push((run[0], run.len()));
        }
    }
}

/// Appends by one client, whose appenders share a batch each time.
async fn run_fast(
    mut lane: FastLane,
    appenders: usize,
    shared: Rc<RefCell<Shared>>,
) -> anyhow::Result<()> {
    let mut begun = Instant::now();
    while !shared.borrow().meter.is_over(begun) {
        let mut done = lane.push(appenders).await?;
        done.extend(lane.finish().await?);
        let now = Instant::now();
        let mut shared = shared.borrow_mut();
        let before = shared.meter.total();
        shared.meter.done(now, appenders as u64, std::iter::repeat_n(begun, appenders));
        if shared.meter.total() > before {
            shared.requests += 1;
            shared.fast += done.iter().filter(|it| it.is_fast).count() as u64;
        }
        begun = now;
    }
    Ok(())
}

/// Shows a line on the terminal while the benchmark runs.
async fn show(shared: Rc<RefCell<Shared>>, time: Duration) {
    let bar = screen::count_bar(time.as_secs().max(1));
    if bar.is_hidden() {
        return;
    }
    for second in 0..time.as_secs() {
        tokio::time::sleep(Duration::from_secs(1)).await;
        bar.set_position(second + 1);
        let appends = screen::count(shared.borrow().meter.total(), "append");
        bar.set_message(format!("seconds; {appends}"));
    }
    bar.finish_and_clear();
}
