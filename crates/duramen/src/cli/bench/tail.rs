//! `bench tail`: consumers at the end of a partition to which a producer writes at a steady rate.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use bytes::{Buf, BytesMut};
use clap::Args;
use duramen_client::{Acknowledgement, Client, OffsetAt, Wire};
use duramen_protocol::batch::batches;
use duramen_protocol::messages::FetchResponse;
use duramen_protocol::records::{BatchBuilder, NewRecord, Records};
use duramen_protocol::wire::{Decoder, Message, RecordData};
use serde::Serialize;
use serde_json::Value;
use tokio::io::{ReadHalf, WriteHalf};
use tokio::task::LocalSet;

use super::consume::check;
use super::frames::{FETCH_VERSION, Requests, answer, fetch, now_ms, read_answer, send};
use super::report::{Latency, Measured, Meter, print, round};
use super::target::{Target, seconds};
use crate::cli::acks::Acks;
use crate::cli::bootstrap::Cluster;
use crate::cli::screen;
use crate::cli::usage::{demand, whole};

const FETCH_BYTES: i32 = 1 << 20;
/// Bytes of a record's first field: its due time, in nanoseconds since the start of the run.
const STAMP_BYTES: usize = 8;
/// Interval at which the writer sends all due records together.
const TICK: Duration = Duration::from_millis(1);
/// Pause before the writer asks for the new leader.
const LEADER_PAUSE: Duration = Duration::from_millis(20);

/// Consumers that follow a writer.
#[derive(Debug, Args)]
#[command(
    after_help = "A writer appends batches of one record at a steady rate, and waits for no acknowledgement before
the next. Every consumer has a connection of its own, and sends the next request as soon as it gets
a response. The latency is the time from a record's due time to its arrival at a consumer.

Examples:
  duramen bench tail --consumers 10 --rate 1000
  duramen bench tail --consumers 1000 --rate 0 --seconds 30     # parked: what does waiting cost?"
)]
pub(super) struct Tail {
    /// Number of consumers
    #[arg(long, short = 'n', default_value_t = 1, value_name = "N")]
    consumers: u32,
    /// Records to write in a second; 0 writes nothing
    #[arg(long, default_value_t = 1000, value_name = "R")]
    rate: u32,
    /// Bytes of a record's value
    #[arg(long, short, default_value_t = 200, value_name = "BYTES", value_parser = whole::<usize>)]
    size: usize,
    /// Measured time, in seconds
    #[arg(long, default_value = "10", value_name = "S", value_parser = seconds)]
    seconds: Duration,
    /// Warm-up before the measured time, in seconds
    #[arg(long, default_value = "1", value_name = "S", value_parser = seconds)]
    warmup_seconds: Duration,
    /// Longest time that the broker may delay a response (fetch.max.wait.ms)
    #[arg(long, default_value_t = 500, value_name = "MS", value_parser = clap::value_parser!(i32).range(0..))]
    max_wait_ms: i32,
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    cluster: Cluster,
}

#[derive(Debug, Serialize)]
struct Report {
    benchmark: &'static str,
    consumers: u32,
    rate: u32,
    size: usize,
    /// Latency from a record's due time to its acknowledgement, in microseconds.
    append_us: Option<Latency>,
    /// Figures of the consumers, each null without a record. Their latency is end to end.
    #[serde(flatten)]
    delivered: Value,
}

impl Tail {
    /// Runs the command.
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let size = format!("a record begins with its time; give --size {STAMP_BYTES} or more");
        demand(self.size >= STAMP_BYTES, &size)?;
        demand(
            self.target.partitions == 1,
            "consumers follow one partition; leave --partitions out",
        )?;
        demand(
            self.target.acks != Acks::None,
            "a record without an acknowledgement has no latency; give --acks all or --acks 1",
        )?;
        let client = self.cluster.connect().await?;
        let led = self.target.prepare(&client).await?;
        let end = client.list_offsets(&self.target.topic, &[(0, OffsetAt::End)]).await?;
        let from = end.get(&0).map_or(0, |listed| listed.offset);
        let (warm_up, time) = (self.warmup_seconds, self.seconds);
        let mut sockets = Vec::new();
        for _ in 0..self.consumers {
            sockets.push(client.enter(&led[0].address).await?);
        }
        let epoch = Instant::now();
        let over = epoch + warm_up + time;
        let delivered = Rc::new(RefCell::new(Meter::new(warm_up, Some(time))));
        let appended = Rc::new(RefCell::new(Meter::new(warm_up, Some(time))));
        let local = LocalSet::new();
        let tail = Rc::new(self);
        for socket in sockets {
            let reading = tail.clone().follow(socket, from, epoch, delivered.clone());
            local.spawn_local(stopping(reading));
        }
        if tail.rate > 0 {
            let leader = led[0].address.clone();
            let appending = tail.clone().append(client, leader, epoch, over, appended.clone());
            local.spawn_local(stopping(appending));
        }
        local.run_until(tokio::time::sleep_until(over.into())).await;
        drop(local);
        let meter = |shared: Rc<RefCell<Meter>>| Rc::into_inner(shared).map(RefCell::into_inner);
        let delivered = meter(delivered).context("all consumers have ended")?;
        let appended = meter(appended).context("the writer has ended")?;
        tail.report(delivered, appended)
    }

    fn report(&self, delivered: Meter, appended: Meter) -> anyhow::Result<()> {
        let has_moved = self.rate > 0 && self.consumers > 0;
        let delivered = if has_moved { Some(delivered.finish()?) } else { None };
        let report = Report {
            benchmark: "tail",
            consumers: self.consumers,
            rate: self.rate,
            size: self.size,
            append_us: if self.rate > 0 { Some(appended.finish()?.latency_us) } else { None },
            delivered: match &delivered {
                Some(delivered) => serde_json::to_value(delivered)?,
                None => Measured::of_nothing()?,
            },
        };
        let mut lines = vec![format!(
            "{} behind {} of {} a second",
            screen::count(self.consumers, "consumer"),
            screen::count(self.rate, "record"),
            screen::count(self.size, "byte")
        )];
        if let Some(append) = &report.append_us {
            lines.push(format!("to the ack:      {}", append.line()));
        }
        if let Some(delivered) = &delivered {
            let rate = round(delivered.rate());
            lines.push(format!("to the consumer: {}", delivered.latency_us.line()));
            lines.push(format!(
                "{rate} deliveries/s  client CPU {} s",
                delivered.client_cpu_seconds
            ));
        }
        print(self.cluster.json(), &report, &lines)
    }

    /// Computes the instant at which the record of this number is due.
    fn due(&self, epoch: Instant, number: u64) -> Instant {
        epoch + Duration::from_nanos(number * 1_000_000_000 / u64::from(self.rate))
    }

    /// Writes to the leader. Records that one leader did not acknowledge go to the next, and may be in the log twice.
    async fn append(
        self: Rc<Self>,
        client: Client,
        mut leader: String,
        epoch: Instant,
        over: Instant,
        meter: Rc<RefCell<Meter>>,
    ) -> anyhow::Result<()> {
        let acks = Acknowledgement::from(self.target.acks).code();
        let mut unacked = 0;
        loop {
            let (input, output) = tokio::io::split(client.enter(&leader).await?);
            let requests = Requests::new(&self.target.topic, acks)?;
            let writing = self.write(output, requests, unacked, epoch, over);
            tokio::select! {
                written = writing => written?,
                refused = self.acknowledge(input, &mut unacked, epoch, &meter) => refused?,
            }
            tokio::time::sleep(LEADER_PAUSE).await;
            client.forget(&self.target.topic).await;
            leader = self.target.prepare(&client).await?.swap_remove(0).address;
        }
    }

    async fn write(
        &self,
        mut socket: WriteHalf<Wire>,
        mut requests: Requests,
        from: u64,
        epoch: Instant,
        over: Instant,
    ) -> anyhow::Result<()> {
        let (mut frame, mut frames) = (Vec::new(), Vec::new());
        let mut value = vec![0x5a; self.size];
        let mut ticks = tokio::time::interval(TICK);
        for number in from.. {
            let due = self.due(epoch, number);
            while due > Instant::now() {
                if !frames.is_empty() {
                    send(&mut socket, &frames).await?;
                    frames.clear();
                }
                ticks.tick().await;
            }
            if due >= over {
                break;
            }
            let stamp = u64::try_from((due - epoch).as_nanos())?;
            value[..STAMP_BYTES].copy_from_slice(&stamp.to_be_bytes());
            let mut batch = BatchBuilder::new();
            let timestamp = now_ms();
            batch.push(&NewRecord { timestamp, value: Some(&value), ..NewRecord::default() })?;
            requests.put_batches(&mut frame, &[(0, batch.build()?)]);
            frames.extend_from_slice(&frame);
        }
        // The socket stays open, because acknowledgements still arrive.
        std::future::pending().await
    }

    /// Counts acknowledgements until the broker refuses a record with a retriable error.
    async fn acknowledge(
        &self,
        mut socket: ReadHalf<Wire>,
        unacked: &mut u64,
        epoch: Instant,
        meter: &RefCell<Meter>,
    ) -> anyhow::Result<()> {
        let mut input = BytesMut::with_capacity(64 << 10);
        while answer(&mut socket, &mut input).await?.is_empty() {
            meter.borrow_mut().done(Instant::now(), 1, [self.due(epoch, *unacked)]);
            *unacked += 1;
        }
        Ok(())
    }

    async fn follow(
        self: Rc<Self>,
        mut socket: Wire,
        from: i64,
        epoch: Instant,
        meter: Rc<RefCell<Meter>>,
    ) -> anyhow::Result<()> {
        let mut next = from;
        let mut input = BytesMut::with_capacity(64 << 10);
        loop {
            let place = (0, next);
            let request = fetch(&self.target.topic, place, self.max_wait_ms, FETCH_BYTES)?;
            send(&mut socket, &request).await?;
            let mut d = Decoder::new(read_answer(&mut socket, &mut input).await?);
            let now = Instant::now();
            d.i32()?;
            d.skip_tagged_fields()?;
            let response = FetchResponse::decode(&mut d, FETCH_VERSION)?;
            check(response.error_code)?;
            for part in response.responses.into_iter().flat_map(|topic| topic.partitions) {
                check(part.error_code)?;
                let Some(RecordData::Bytes(records)) = part.records else { continue };
                for batch in batches(records) {
                    let Ok(batch) = batch else { break }; // An incomplete batch ends a response.
                    ensure!(
                        batch.header().end_offset() > next,
                        "the broker sent offset {next} again"
                    );
                    next = batch.header().end_offset();
                    for record in &Records::of(&batch, FETCH_BYTES as usize)? {
                        let mut value = record?.value.context("a record without a value")?;
                        let due = epoch + Duration::from_nanos(value.get_u64());
                        meter.borrow_mut().done(now, 1, [due]);
                    }
                }
            }
        }
    }
}

/// Runs a part of the benchmark. A failure ends the process, because the figures would tell nothing.
pub(super) async fn stopping(part: impl Future<Output = anyhow::Result<()>>) {
    if let Err(error) = part.await {
        eprintln!("error: {error:#}");
        std::process::exit(1);
    }
}
