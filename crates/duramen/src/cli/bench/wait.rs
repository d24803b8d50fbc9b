//! `bench wait`: readers that wait, each for a queue of its own, and a writer.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::Context;
use bytes::{Buf, Bytes};
use clap::Args;
use serde::Serialize;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::task::LocalSet;

use super::queues::{Place, Reader, Via, name, retriable};
use super::report::{Latency, Measured, Meter, print, round};
use super::tail::stopping;
use super::takeover::fill;
use super::target::seconds;
use crate::cli::bootstrap::{Output, Safety};
use crate::cli::native::Way;
use crate::cli::screen;
use crate::cli::usage::{demand, whole};
use crate::proto::queues_client::QueuesClient;
use crate::proto::retrieve_request::Start;
use crate::proto::{EnqueueRequest, Record, RetrieveRequest};

/// Bytes of a message's first field: its due time, in nanoseconds since the start of the run.
const STAMP_BYTES: usize = 8;
/// Longest wait of one read, in milliseconds.
const WAIT_MS: u32 = 60_000;
/// Pause before a refused read comes again.
const PAUSE: Duration = Duration::from_millis(20);

/// Readers that wait for messages.
#[derive(Debug, Args)]
#[command(
    after_help = "Each reader waits for the next message of a queue of its own. A writer appends one message at a
time at a steady rate, to one queue after the other, and waits for no acknowledgement before the
next. The latency is the time from a message's due time to its arrival at the reader.

Examples:
  duramen bench wait --readers 1 --rate 200
  duramen bench wait --readers 10000 --connections 16 --rate 200 --warmup-seconds 5
  duramen bench wait --readers 0 --rate 200                       # appends alone"
)]
pub(super) struct Wait {
    /// Way to the node for readers: grpc or http
    #[arg(
        long,
        value_enum,
        default_value = "grpc",
        value_name = "WAY",
        hide_possible_values = true
    )]
    via: Via,
    /// Number of readers
    #[arg(long, short = 'n', default_value_t = 1, value_name = "N")]
    readers: u32,
    /// Messages to append in a second
    #[arg(long, default_value_t = 200, value_name = "R", value_parser = clap::value_parser!(u32).range(1..))]
    rate: u32,
    /// Bytes of a message
    #[arg(long, short, default_value_t = 100, value_name = "BYTES", value_parser = whole::<usize>)]
    size: usize,
    /// Measured time, in seconds
    #[arg(long, default_value = "10", value_name = "S", value_parser = seconds)]
    seconds: Duration,
    /// Time for readers to begin their waits, before the measured time, in seconds
    #[arg(long, default_value = "2", value_name = "S", value_parser = seconds)]
    warmup_seconds: Duration,
    /// Number of connections that readers by gRPC share
    #[arg(long, short = 'C', default_value_t = 16, value_name = "C", value_parser = clap::value_parser!(u32).range(1..))]
    connections: u32,
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
    readers: u32,
    rate: u32,
    size: usize,
    /// Latency from a message's due time to its acknowledgement, in microseconds.
    append_us: Latency,
    #[serde(flatten)]
    delivered: Value,
}

impl Wait {
    /// Runs the command. Each reader has a queue of its own, so `--queues` counts only without readers.
    pub(super) async fn run(mut self) -> anyhow::Result<()> {
        let size = format!("a message begins with its time; give --size {STAMP_BYTES} or more");
        demand(self.size >= STAMP_BYTES, &size)?;
        demand(matches!(self.via, Via::Grpc | Via::Http), "reads go by grpc or http")?;
        if self.readers > 0 {
            self.place.queues = u64::from(self.readers);
        }
        let nodes = self.place.nodes(&self.safety)?;
        self.place.prepare(&nodes).await?;
        let writer = nodes.grpc(0).await?;
        // The first append to a partition makes its files; those that are measured should not.
        fill(&self.place, writer.clone(), &vec![0; self.size].into()).await?;
        let readers = nodes.readers(self.via, self.readers, self.connections).await?;
        let (warm_up, time) = (self.warmup_seconds, self.seconds);
        let epoch = Instant::now();
        let over = epoch + warm_up + time;
        let meter = || Rc::new(RefCell::new(Meter::new(warm_up, Some(time))));
        let (delivered, appended) = (meter(), meter());
        let local = LocalSet::new();
        let wait = Rc::new(self);
        for (reader, queue) in readers.into_iter().zip(0..) {
            let reading = follow(wait.clone(), reader, queue, epoch, delivered.clone());
            local.spawn_local(stopping(reading));
        }
        let writing = wait.clone().write(writer, epoch, over, appended.clone());
        local.spawn_local(stopping(writing));
        local.run_until(tokio::time::sleep_until(over.into())).await;
        drop(local);
        let meter = |shared: Rc<RefCell<Meter>>| Rc::into_inner(shared).map(RefCell::into_inner);
        let delivered = meter(delivered).context("all readers have ended")?;
        let appended = meter(appended).context("the writer has ended")?.finish()?;
        let delivered = if wait.readers > 0 { Some(delivered.finish()?) } else { None };
        let report = Report {
            benchmark: "wait",
            readers: wait.readers,
            rate: wait.rate,
            size: wait.size,
            append_us: appended.latency_us.clone(),
            delivered: match &delivered {
                Some(delivered) => serde_json::to_value(delivered)?,
                None => Measured::of_nothing()?,
            },
        };
        let readers = screen::count(wait.readers, "reader");
        let mut lines = vec![
            format!("{readers}, {} a second", screen::count(wait.rate, "message")),
            format!("to the ack:    {}", report.append_us.line()),
        ];
        if let Some(delivered) = &delivered {
            lines.push(format!("to the reader: {}", delivered.latency_us.line()));
            lines.push(format!(
                "{} deliveries/s  client CPU {} s",
                round(delivered.rate()),
                delivered.client_cpu_seconds
            ));
        }
        print(wait.output == Output::Json, &report, &lines)?;
        appended.check("message")
    }

    async fn write(
        self: Rc<Self>,
        client: QueuesClient<Way>,
        epoch: Instant,
        over: Instant,
        meter: Rc<RefCell<Meter>>,
    ) -> anyhow::Result<()> {
        // The readers' first waits come before the first message.
        let from = u64::from(self.rate) * self.warmup_seconds.as_secs() / 2;
        let mut value = vec![0x5a; self.size];
        let mut dues = dues(from, u64::from(self.rate), epoch, over);
        while let Some((number, due)) = dues.recv().await {
            let stamp = u64::try_from((due - epoch).as_nanos())?;
            value[..STAMP_BYTES].copy_from_slice(&stamp.to_be_bytes());
            let value = Some(Bytes::copy_from_slice(&value));
            let request = EnqueueRequest {
                topic: self.place.topic.clone(),
                queue: name(self.place.nth(number)),
                messages: vec![Record { value, ..Record::default() }],
                ..EnqueueRequest::default()
            };
            let (mut client, meter) = (client.clone(), meter.clone());
            tokio::task::spawn_local(stopping(async move {
                match client.enqueue(request).await {
                    Ok(_) => meter.borrow_mut().done(Instant::now(), 1, [due]),
                    Err(status) => {
                        meter.borrow_mut().refused(Instant::now(), 1, retriable(status)?);
                    }
                }
                Ok(())
            }));
        }
        std::future::pending().await
    }
}

/// Tells the number and time of each message when it is due. A thread of its own does so, because the runtime's timers
/// are a millisecond coarse.
fn dues(
    from: u64,
    rate: u64,
    epoch: Instant,
    over: Instant,
) -> mpsc::UnboundedReceiver<(u64, Instant)> {
    let (tell, told) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for number in from.. {
            let due = epoch + Duration::from_nanos(number * 1_000_000_000 / rate);
            if due >= over {
                break;
            }
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            if tell.send((number, due)).is_err() {
                break;
            }
        }
    });
    told
}

/// Waits for the messages of one queue.
async fn follow(
    wait: Rc<Wait>,
    mut reader: Reader,
    queue: u64,
    epoch: Instant,
    meter: Rc<RefCell<Meter>>,
) -> anyhow::Result<()> {
    let mut request = RetrieveRequest {
        topic: wait.place.topic.clone(),
        queue: name(queue),
        start: Some(Start::End(true)),
        wait_ms: WAIT_MS,
        limit: 100,
        ..RetrieveRequest::default()
    };
    loop {
        let page = match reader.read(&request).await? {
            Ok(page) => page,
            Err(why) => {
                meter.borrow_mut().refused(Instant::now(), 1, why);
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        let now = Instant::now();
        for element in page.elements {
            let mut value = element.record.and_then(|it| it.value).context("no value")?;
            let due = epoch + Duration::from_nanos(value.get_u64());
            meter.borrow_mut().done(now, 1, [due]);
        }
        // A log without a position has nothing: its end is its beginning.
        request.start = page.next.map(Start::After);
    }
}
