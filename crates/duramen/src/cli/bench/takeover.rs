//! `bench takeover`: how long queues cannot be written and read while something happens to the nodes.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use bytes::Bytes;
use clap::Args;
use serde::Serialize;
use tokio::task::LocalSet;
use tonic::{Code, Status};
use tonic_types::StatusExt;

use super::queues::{Chance, Place, name};
use super::report::{Latency, histogram, milliseconds, print};
use super::target::seconds;
use crate::cli::bootstrap::{Output, Safety};
use crate::cli::native::{Way, failure};
use crate::cli::screen;
use crate::cli::usage::whole;
use crate::proto::queues_client::QueuesClient;
use crate::proto::{
    EnqueueManyRequest, EnqueueRequest, Guard, Position, QueueMessage, Record, RetrieveRequest,
    enqueue_result, guard,
};

/// Messages of one request of the fill.
const FILL: u64 = 1_000;
/// Longest wait for the answer to one call, in milliseconds. A call to a frozen node must not take the whole time.
const CALL_MS: u32 = 1_000;
/// Pause before a failed call comes again, at the next node.
const PAUSE: Duration = Duration::from_millis(5);

/// A guarded append to each queue, and a read of it, twice.
#[derive(Debug, Args)]
#[command(
    after_help = "The command appends a message to each queue. Then, as a first pass, it appends one more to each,
on the condition that the first is the last, and reads the queue. It prints a line `ready`, waits
for a line on stdin, and makes a second pass. A caller tries a failed call again at the next node.

Example:
  duramen bench takeover --native a:9080,b:9080,c:9080 --queues 10000 --callers 64"
)]
pub(super) struct Takeover {
    /// Number of callers, each with one call at a time
    #[arg(long, short = 'n', default_value_t = 64, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    callers: u32,
    /// Bytes of a message
    #[arg(long, short, default_value_t = 100, value_name = "BYTES", value_parser = whole::<usize>)]
    size: usize,
    /// Longest time of the second pass, in seconds
    #[arg(long, default_value = "60", value_name = "S", value_parser = seconds)]
    patience: Duration,
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
    before: Pass,
    after: Pass,
}

/// Times of one pass, from its begin.
#[derive(Debug, Serialize)]
struct Pass {
    /// First append that was acknowledged, in seconds.
    first_append_s: f64,
    first_read_s: f64,
    /// The last queue's append and read.
    last_append_s: f64,
    last_read_s: f64,
    /// Latency of each append and of each read, with all its tries.
    append_us: Latency,
    read_us: Latency,
    /// Number of calls that failed and came again.
    failed: u64,
    /// Number of appends that an earlier try had made, though its answer was lost.
    found_done: u64,
}

/// One pass, while it runs.
struct Work {
    place: Place,
    value: Bytes,
    begun: Instant,
    deadline: Instant,
    next: Cell<u64>,
    /// The last element of each queue.
    lasts: RefCell<Vec<Position>>,
    /// Times of appends and of reads since the begin, with the time that each took.
    appends: RefCell<Vec<(Duration, Duration)>>,
    reads: RefCell<Vec<(Duration, Duration)>>,
    failed: Cell<u64>,
    found_done: Cell<u64>,
}

impl Takeover {
    /// Runs the command.
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let nodes = self.place.nodes(&self.safety)?;
        self.place.prepare(&nodes).await?;
        let value = Chance(1).bytes(self.size);
        let clients = nodes.lazy();
        let lasts = fill(&self.place, clients[0].clone(), &value).await?;
        let (before, lasts) = self.pass(&clients, &value, lasts).await?;
        screen::print_line("ready")?;
        let line = tokio::task::spawn_blocking(|| {
            let mut line = String::new();
            std::io::stdin().read_line(&mut line).map(|_| line)
        });
        ensure!(!line.await??.is_empty(), "stdin ended before it said that the second pass begins");
        let (after, _) = self.pass(&clients, &value, lasts).await?;
        let (queues, callers) = (self.place.queues, self.callers);
        let report = Report { benchmark: "takeover", queues, callers, before, after };
        let line = |name: &str, pass: &Pass| {
            format!(
                "{name}: appends from {} to {} s, reads from {} to {} s, {} again",
                pass.first_append_s,
                pass.last_append_s,
                pass.first_read_s,
                pass.last_read_s,
                screen::count(pass.failed, "call")
            )
        };
        let lines = [
            screen::count(queues, "queue"),
            line("before", &report.before),
            line("after", &report.after),
        ];
        print(self.output == Output::Json, &report, &lines)
    }

    /// Appends to each queue behind its last element, and reads it; returns the new last elements.
    async fn pass(
        &self,
        clients: &[QueuesClient<Way>],
        value: &Bytes,
        lasts: Vec<Position>,
    ) -> anyhow::Result<(Pass, Vec<Position>)> {
        let begun = Instant::now();
        let work = Rc::new(Work {
            place: self.place.clone(),
            value: value.clone(),
            begun,
            deadline: begun + self.patience,
            next: Cell::new(0),
            lasts: RefCell::new(lasts),
            appends: RefCell::default(),
            reads: RefCell::default(),
            failed: Cell::new(0),
            found_done: Cell::new(0),
        });
        let local = LocalSet::new();
        let running: Vec<_> = (0..self.callers as usize)
            .map(|caller| local.spawn_local(work.clone().run(clients.to_vec(), caller)))
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
        let work = Rc::into_inner(work).context("all callers have ended")?;
        let (appends, reads) = (work.appends.into_inner(), work.reads.into_inner());
        let at = |times: &[(Duration, Duration)], is_first: bool| {
            let times = times.iter().map(|it| it.0);
            let time = if is_first { times.min() } else { times.max() };
            milliseconds(time.unwrap_or_default().as_secs_f64())
        };
        let latency = |times: &[(Duration, Duration)]| {
            let mut all = histogram();
            for (_, took) in times {
                all.saturating_record(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
            }
            Latency::of(&all)
        };
        let pass = Pass {
            first_append_s: at(&appends, true),
            first_read_s: at(&reads, true),
            last_append_s: at(&appends, false),
            last_read_s: at(&reads, false),
            append_us: latency(&appends),
            read_us: latency(&reads),
            failed: work.failed.get(),
            found_done: work.found_done.get(),
        };
        Ok((pass, work.lasts.into_inner()))
    }
}

/// Appends a message to each queue; returns where.
pub(super) async fn fill(
    place: &Place,
    mut client: QueuesClient<Way>,
    value: &Bytes,
) -> anyhow::Result<Vec<Position>> {
    let mut lasts = Vec::new();
    let all: Vec<u64> = (0..place.queues).collect();
    for some in all.chunks(usize::try_from(FILL)?) {
        let message = |queue: &u64| QueueMessage {
            queue: name(*queue),
            message: Some(Record { value: Some(value.clone()), ..Record::default() }),
        };
        let request = EnqueueManyRequest {
            topic: place.topic.clone(),
            messages: some.iter().map(message).collect(),
            ..EnqueueManyRequest::default()
        };
        let answer = client.enqueue_many(request).await.map_err(failure)?.into_inner();
        for result in answer.results {
            match result.result {
                Some(enqueue_result::Result::Position(position)) => lasts.push(position),
                other => bail!("a message of the fill was not appended: {other:?}"),
            }
        }
    }
    Ok(lasts)
}

impl Work {
    async fn run(
        self: Rc<Self>,
        mut clients: Vec<QueuesClient<Way>>,
        mut node: usize,
    ) -> anyhow::Result<()> {
        let count = clients.len();
        loop {
            let queue = self.next.get();
            if queue >= self.place.queues {
                return Ok(());
            }
            self.next.set(queue + 1);
            let begun = Instant::now();
            let mut was_lost = false;
            let last = loop {
                match self.append(&mut clients[node % count], queue).await {
                    Ok(last) => break last,
                    Err(status) if was_lost && status.code() == Code::Aborted => {
                        self.found_done.set(self.found_done.get() + 1);
                        break last_of(&status);
                    }
                    Err(status) => {
                        was_lost |= is_open(&status);
                        self.again(status, &mut node).await?;
                    }
                }
            };
            self.appends.borrow_mut().push((self.begun.elapsed(), begun.elapsed()));
            if let Some(last) = last {
                self.lasts.borrow_mut()[usize::try_from(queue)?] = last;
            }
            let begun = Instant::now();
            while let Err(status) = self.read(&mut clients[node % count], queue).await {
                self.again(status, &mut node).await?;
            }
            self.reads.borrow_mut().push((self.begun.elapsed(), begun.elapsed()));
        }
    }

    /// Goes to the next node after a failure that may be over soon.
    async fn again(&self, status: Status, node: &mut usize) -> anyhow::Result<()> {
        let is_lasting = !matches!(
            status.code(),
            Code::Unavailable | Code::DeadlineExceeded | Code::Unknown | Code::Cancelled
        );
        if is_lasting || Instant::now() > self.deadline {
            return Err(failure(status).context("the call failed for good"));
        }
        self.failed.set(self.failed.get() + 1);
        *node += 1;
        tokio::time::sleep(PAUSE).await;
        Ok(())
    }

    async fn append(
        &self,
        client: &mut QueuesClient<Way>,
        queue: u64,
    ) -> Result<Option<Position>, Status> {
        let last = self.lasts.borrow()[usize::try_from(queue).unwrap_or(usize::MAX)];
        let message = Record { value: Some(self.value.clone()), ..Record::default() };
        let request = EnqueueRequest {
            topic: self.place.topic.clone(),
            queue: name(queue),
            messages: vec![message],
            guard: Some(Guard { last: Some(guard::Last::At(last)), fence: None }),
            timeout_ms: CALL_MS,
            ..EnqueueRequest::default()
        };
        Ok(client.enqueue(request).await?.into_inner().last)
    }

    async fn read(&self, client: &mut QueuesClient<Way>, queue: u64) -> Result<(), Status> {
        let request = RetrieveRequest {
            topic: self.place.topic.clone(),
            queue: name(queue),
            ..RetrieveRequest::default()
        };
        client.retrieve(request).await.map(drop)
    }
}

/// Returns the queue's last element, as a refusal names it.
fn last_of(status: &Status) -> Option<Position> {
    let info = status.get_details_error_info()?;
    info.metadata.get("last")?.trim_matches('"').parse().ok()
}

/// True if the append may have been made: no node said that it was not.
fn is_open(status: &Status) -> bool {
    match status.get_details_error_info() {
        Some(info) => info.reason == "outcome-unknown",
        None => true,
    }
}
