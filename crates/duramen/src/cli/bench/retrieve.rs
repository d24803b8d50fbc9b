//! `bench retrieve`: reads of random queues.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::{ArgGroup, Args};
use duramen_protocol::partitioner::partition_of_key;
use serde::Serialize;
use tokio::task::LocalSet;

use super::queues::{Chance, Nodes, Place, Reader, Via, after, name};
use super::report::{Measured, Meter, print, round};
use super::target::seconds;
use crate::cli::bootstrap::{Output, Safety};
use crate::cli::native::failure;
use crate::cli::screen;
use crate::cli::usage::{demand, whole};
use crate::proto::retrieve_request::Start;
use crate::proto::{ListQueuesRequest, Position, RetrieveRequest};

/// Pause before a read that the node could not serve yet comes again.
const PAUSE: Duration = Duration::from_millis(2);

/// Callers in a closed loop, which read random queues.
#[derive(Debug, Args)]
#[command(
    group = ArgGroup::new("stop").required(true).multiple(true),
    after_help = "The latency is that of a read. The command tries the first read again until a node serves it; the
report names the time until then (first_s).

Examples:
  duramen bench retrieve --queues 1000 --reads 10000 --callers 8
  duramen bench retrieve --queues 1000 --seconds 10 --limit 10 --after 0=2.0.5000
  duramen bench retrieve --queues 1000 --reads 1 --patience 60 --list"
)]
pub(super) struct Retrieve {
    /// Way to the node: grpc or http
    #[arg(
        long,
        value_enum,
        default_value = "grpc",
        value_name = "WAY",
        hide_possible_values = true
    )]
    via: Via,
    /// Stop after this many reads
    #[arg(long, short, value_name = "M", value_parser = whole::<u64>, group = "stop")]
    reads: Option<u64>,
    /// Stop after this time
    #[arg(long, value_name = "S", value_parser = seconds, group = "stop")]
    seconds: Option<Duration>,
    /// Most elements of a read
    #[arg(long, default_value_t = 10, value_name = "K", value_parser = clap::value_parser!(u32).range(1..=1_000))]
    limit: u32,
    /// Place to begin at in a partition; may be repeated. The first element, if there is none
    #[arg(long, value_name = "PARTITION=POSITION", value_parser = after)]
    after: Vec<(i32, Position)>,
    /// Number of callers, each with one read at a time
    #[arg(long, short = 'n', default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    callers: u32,
    /// Number of connections that callers by gRPC share
    #[arg(long, short = 'C', default_value_t = 1, value_name = "C", value_parser = clap::value_parser!(u32).range(1..))]
    connections: u32,
    /// Longest wait for a node that serves the first read, in seconds
    #[arg(long, default_value = "0", value_name = "S", value_parser = seconds)]
    patience: Duration,
    /// List all queues first
    #[arg(long)]
    list: bool,
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    safety: Safety,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Serialize)]
struct Report {
    benchmark: &'static str,
    queues: u64,
    callers: u32,
    /// Time until the first read was served, in seconds.
    first_s: f64,
    listed: Option<u64>,
    list_s: Option<f64>,
    reads_per_second: f64,
    elements: u64,
    /// Number of reads that had fewer elements than wanted.
    short: u64,
    #[serde(flatten)]
    measured: Measured,
}

/// State that all callers share.
struct Load {
    asked: RetrieveRequest,
    place: Place,
    after: BTreeMap<i32, Position>,
    meter: RefCell<Meter>,
    left: Cell<u64>,
    elements: Cell<u64>,
    short: Cell<u64>,
}

impl Retrieve {
    /// Runs the command.
    pub(super) async fn run(self) -> anyhow::Result<()> {
        demand(matches!(self.via, Via::Grpc | Via::Http), "reads go by grpc or http")?;
        let asked = RetrieveRequest {
            topic: self.place.topic.clone(),
            limit: self.limit,
            ..RetrieveRequest::default()
        };
        let nodes = self.place.nodes(&self.safety)?;
        let begun = Instant::now();
        let readers = self.first(&nodes, &asked, begun).await?;
        let first = begun.elapsed().as_secs_f64();
        let (mut listed, mut list_s) = (None, None);
        if self.list {
            let begun = Instant::now();
            listed = Some(self.list(&nodes).await?);
            list_s = Some(begun.elapsed().as_secs_f64());
        }
        let load = Rc::new(Load {
            asked,
            place: self.place.clone(),
            after: self.after.iter().copied().collect(),
            meter: RefCell::new(Meter::new(Duration::ZERO, self.seconds)),
            left: Cell::new(self.reads.unwrap_or(u64::MAX)),
            elements: Cell::new(0),
            short: Cell::new(0),
        });
        let local = LocalSet::new();
        let running: Vec<_> = readers
            .into_iter()
            .zip(1..)
            .map(|(reader, seed)| local.spawn_local(read(load.clone(), reader, Chance(seed))))
            .collect();
        local
            .run_until(async {
                for task in running {
                    task.await.context("a caller's task failed")??;
                }
                anyhow::Ok(())
            })
            .await?;
        drop(local);
        let load = Rc::into_inner(load).context("all callers have ended")?;
        let mut meter = load.meter.into_inner();
        meter.ends_after(self.reads);
        let measured = meter.finish()?;
        let report = Report {
            benchmark: "retrieve",
            queues: self.place.queues,
            callers: self.callers,
            first_s: first,
            listed,
            list_s,
            reads_per_second: round(measured.rate()),
            elements: load.elements.get(),
            short: load.short.get(),
            measured,
        };
        let Report { measured, reads_per_second, elements, short, .. } = &report;
        let lines = [
            format!("{} in {} s", screen::count(measured.total, "read"), measured.seconds),
            format!("{reads_per_second} reads/s  {}", screen::count(*elements, "element")),
            format!("{} with fewer elements than wanted", screen::count(*short, "read")),
            format!("the first after {first:.3} s"),
            measured.latency_us.line(),
            format!("client CPU {} s", measured.client_cpu_seconds),
        ];
        print(self.output == Output::Json, &report, &lines)?;
        report.measured.check("read")
    }

    /// Connects all callers, and reads once, as soon as a node serves that.
    async fn first(
        &self,
        nodes: &Nodes,
        asked: &RetrieveRequest,
        begun: Instant,
    ) -> anyhow::Result<Vec<Reader>> {
        loop {
            let outcome = async {
                let mut readers = nodes.readers(self.via, self.callers, self.connections).await?;
                let queue = name(Chance(u64::from(self.callers) + 1).next() % self.place.queues);
                let request = RetrieveRequest { queue, ..asked.clone() };
                match readers[0].read(&request).await? {
                    Ok(_) => Ok(readers),
                    Err(why) => bail!("the node refuses the first read: {why}"),
                }
            };
            match outcome.await {
                Err(_) if begun.elapsed() < self.patience => tokio::time::sleep(PAUSE).await,
                other => return other,
            }
        }
    }

    /// Counts all queues of the topic.
    async fn list(&self, nodes: &Nodes) -> anyhow::Result<u64> {
        let mut client = nodes.grpc(0).await?;
        let mut request =
            ListQueuesRequest { topic: self.place.topic.clone(), ..ListQueuesRequest::default() };
        let mut count = 0;
        loop {
            let page = client.list_queues(request.clone()).await.map_err(failure)?.into_inner();
            count += page.queues.len() as u64;
            match page.queues.last().filter(|_| page.more) {
                Some(last) => request.after = last.name.clone(),
                None => return Ok(count),
            }
        }
    }
}

/// Reads queues, one after the other.
async fn read(load: Rc<Load>, mut reader: Reader, mut chance: Chance) -> anyhow::Result<()> {
    while load.left.get() > 0 && !load.meter.borrow().is_over(Instant::now()) {
        load.left.set(load.left.get() - 1);
        let queue = name(chance.next() % load.place.queues);
        let partition = partition_of_key(&queue, load.place.partitions);
        let start = load.after.get(&partition).copied().map(Start::After);
        let mut request = RetrieveRequest { queue, start, ..load.asked.clone() };
        let (begun, mut found) = (Instant::now(), 0);
        loop {
            let page = match reader.read(&request).await? {
                Ok(page) => page,
                Err(why) => {
                    load.meter.borrow_mut().refused(Instant::now(), 1, why);
                    break;
                }
            };
            found += page.elements.len();
            request.limit -= u32::try_from(page.elements.len())?.min(request.limit);
            let ends = request.limit == 0 || !page.more || page.next.is_none();
            request.start = page.next.map(Start::After);
            if ends {
                load.meter.borrow_mut().done(Instant::now(), 1, [begun]);
                load.elements.set(load.elements.get() + found as u64);
                load.short.set(load.short.get() + u64::from(request.limit > 0));
                break;
            }
        }
    }
    Ok(())
}
