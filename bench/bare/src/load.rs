//! The load client: appenders that wait, over connections to several servers that are loaded in turn.
//!
//! One thread waits for all sockets of one server. So many appenders share a connection's request as the number of
//! connections says: with one connection all of them are one request.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::process;
use std::str::FromStr;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use clap::Args;
use hdrhistogram::Histogram;
use rustix::event::epoll;
use serde::Serialize;

use crate::frames::{self, CORRELATION, PREFIX, int32};
use crate::usage::ran;

/// Time from a slice's beginning that does not count: what slept wakes up.
const WARM_UP: Duration = Duration::from_millis(80);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);
const READ_BYTES: usize = 16 << 10;

/// A server, as `name=host:port/topic/pid`, or with several process ids: `…/pid+pid`.
#[derive(Clone)]
struct Target {
    name: String,
    address: String,
    topic: String,
    pids: Vec<u32>,
}

impl FromStr for Target {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || format!("'{text}' is not like name=host:port/topic/pid");
        let (name, rest) = text.split_once('=').with_context(wrong)?;
        let parts: Vec<&str> = rest.split('/').collect();
        let [address, topic, pids] = parts[..] else { bail!(wrong()) };
        let pids: Result<_, _> = pids.split('+').map(str::parse).collect();
        let (name, address, topic) = (name.to_owned(), address.to_owned(), topic.to_owned());
        Ok(Self { name, address, topic, pids: pids.with_context(wrong)? })
    }
}

#[derive(Args)]
pub(crate) struct Options {
    /// Server to load, as name=host:port/topic/pid; the ratios are to the first
    #[arg(long = "target", required = true)]
    targets: Vec<Target>,
    /// Numbers of connections, each measured by itself
    #[arg(long, value_delimiter = ',', default_value = "1,8,32,128")]
    connections: Vec<usize>,
    /// Appenders that share the connections
    #[arg(long, default_value_t = 128)]
    appenders: usize,
    /// Bytes of a record, which is an append
    #[arg(long, default_value_t = 2048)]
    size: usize,
    /// Partitions, in turn
    #[arg(long, default_value_t = 1)]
    partitions: i32,
    /// Requests that a connection has outstanding
    #[arg(long, default_value_t = 1)]
    outstanding: usize,
    /// Times that each server is loaded
    #[arg(long, default_value_t = 9)]
    slices: usize,
    /// Length of a slice, in seconds
    #[arg(long, default_value_t = 0.4)]
    slice_seconds: f64,
}

struct Connection {
    stream: TcpStream,
    frame: Vec<u8>,
    correlation_id: i32,
    /// When the requests without an answer were sent, oldest first.
    sent: std::collections::VecDeque<Instant>,
    buffer: Vec<u8>,
}

/// All connections to one server.
struct Side<'a> {
    target: &'a Target,
    epoll: OwnedFd,
    connections: Vec<Connection>,
    partition_at: usize,
    partitions: i32,
    next_partition: i32,
    slices: Vec<Slice>,
    latency_us: Histogram<u64>,
}

/// Figures of one slice.
#[derive(Clone, Copy)]
struct Slice {
    per_second: f64,
    /// CPU time of an append.
    server_us: f64,
    client_us: f64,
}

/// Figures of a server at a number of connections.
#[derive(Serialize)]
struct Found<'a> {
    connections: usize,
    target: &'a str,
    appends_per_second: f64,
    /// Median, over the slices, of the quotient to the first server's.
    of_first: f64,
    server_cpu_us: f64,
    server_cpu_of_first: f64,
    client_cpu_us: f64,
    p50_us: u64,
    p99_us: u64,
    per_second: Vec<f64>,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let mut found = Vec::new();
    for connections in options.connections.iter().copied() {
        ensure!(connections > 0, "at least one connection is needed");
        let open = |target| Side::open(target, options, connections);
        let mut sides = options.targets.iter().map(open).collect::<anyhow::Result<Vec<_>>>()?;
        // The first time warms up. Each time another server is the first.
        for round in 0..=options.slices {
            for at in 0..sides.len() {
                let at = (at + round) % sides.len();
                sides[at].load(options, round > 0)?;
            }
        }
        let first = sides[0].slices.clone();
        found.extend(sides.iter().map(|side| side.found(connections, &first)));
    }
    println!("{}", serde_json::to_string_pretty(&found)?);
    Ok(())
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

impl<'a> Side<'a> {
    fn open(target: &'a Target, options: &Options, connections: usize) -> anyhow::Result<Self> {
        let records = (options.appenders / connections).max(1);
        let (frame, partition_at) = frames::produce(&target.topic, records, options.size)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let connect = |number| {
            let stream = TcpStream::connect(&target.address)
                .with_context(|| format!("{} at {}", target.name, target.address))?;
            stream.set_nodelay(true)?;
            let key = epoll::EventData::new_u64(number);
            epoll::add(&epoll, &stream, key, epoll::EventFlags::IN)?;
            Ok(Connection {
                stream,
                frame: frame.to_vec(),
                correlation_id: 0,
                sent: std::collections::VecDeque::new(),
                buffer: Vec::new(),
            })
        };
        let connections: anyhow::Result<_> = (0..connections as u64).map(connect).collect();
        Ok(Self {
            target,
            connections: connections?,
            epoll,
            partition_at,
            partitions: options.partitions,
            next_partition: 0,
            slices: Vec::new(),
            latency_us: Histogram::new(3)?,
        })
    }

    fn send(&mut self, at: usize, times: usize) -> anyhow::Result<()> {
        let connection = &mut self.connections[at];
        for _ in 0..times {
            connection.correlation_id += 1;
            let id = PREFIX + CORRELATION.start..PREFIX + CORRELATION.end;
            connection.frame[id].copy_from_slice(&connection.correlation_id.to_be_bytes());
            self.next_partition = (self.next_partition + 1) % self.partitions;
            let place = self.partition_at..self.partition_at + 4;
            connection.frame[place].copy_from_slice(&self.next_partition.to_be_bytes());
            connection.sent.push_back(Instant::now());
            connection.stream.write_all(&connection.frame)?;
        }
        Ok(())
    }

    /// Loads the server for one slice. All requests are answered when it ends.
    fn load(&mut self, options: &Options, counts: bool) -> anyhow::Result<()> {
        let begin = Instant::now();
        for at in 0..self.connections.len() {
            self.send(at, options.outstanding)?;
        }
        let mut outstanding = self.connections.len() * options.outstanding;
        let length = Duration::from_secs_f64(options.slice_seconds);
        let (mut warm, mut end) = (None, None);
        let mut answers = 0_u64;
        let mut events = Vec::with_capacity(1024);
        while outstanding > 0 {
            events.clear();
            let timeout = ANSWER_TIMEOUT.try_into()?;
            epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&timeout))?;
            ensure!(!events.is_empty(), "{}: no answer in {ANSWER_TIMEOUT:?}", self.target.name);
            let elapsed = begin.elapsed();
            if warm.is_none() && elapsed >= WARM_UP {
                warm = Some((Instant::now(), self.cpu()?, answers));
            }
            if end.is_none() && elapsed >= WARM_UP + length {
                end = Some((Instant::now(), self.cpu()?, answers));
            }
            for event in &events {
                let at = usize::try_from(event.data.u64())?;
                let came = self.receive(at, counts && warm.is_some() && end.is_none())?;
                answers += came as u64;
                if end.is_none() {
                    self.send(at, came)?;
                } else {
                    outstanding -= came;
                }
            }
        }
        let (Some((from, cpu_from, first)), Some((until, cpu_until, last))) = (warm, end) else {
            bail!("{}: the slice is too short", self.target.name)
        };
        if counts {
            let records = (options.appenders / self.connections.len()).max(1);
            let appends = ((last - first) * records as u64) as f64;
            let each = |from: Duration, until: Duration| {
                until.saturating_sub(from).as_secs_f64() * 1e6 / appends
            };
            self.slices.push(Slice {
                per_second: appends / (until - from).as_secs_f64(),
                server_us: each(cpu_from.0, cpu_until.0),
                client_us: each(cpu_from.1, cpu_until.1),
            });
        }
        Ok(())
    }

    /// Returns the CPU time of the server, and of this process.
    fn cpu(&self) -> anyhow::Result<(Duration, Duration)> {
        let server = self.target.pids.iter().map(|pid| ran(*pid)).sum::<anyhow::Result<_>>()?;
        Ok((server, ran(process::id())?))
    }

    /// Takes all answers that a connection has now. Returns their number.
    fn receive(&mut self, at: usize, counts: bool) -> anyhow::Result<usize> {
        let Connection { stream, buffer, sent, .. } = &mut self.connections[at];
        let mut bytes = [0; READ_BYTES];
        let len = stream.read(&mut bytes)?;
        ensure!(len > 0, "{} closed a connection", self.target.name);
        buffer.extend_from_slice(&bytes[..len]);
        let (mut came, mut from) = (0, 0);
        while let Some(len) = int32(buffer, from..from + PREFIX) {
            let until = from + PREFIX + usize::try_from(len)?;
            let Some(answer) = buffer.get(from + PREFIX..until) else { break };
            let code = frames::error_of(answer)?;
            ensure!(code == 0, "{} answered error {code}", self.target.name);
            let sent = sent.pop_front().context("an answer without a request")?;
            if counts {
                self.latency_us.record(u64::try_from(sent.elapsed().as_micros())?)?;
            }
            from = until;
            came += 1;
        }
        buffer.drain(..from);
        Ok(came)
    }

    fn found(&self, connections: usize, first: &[Slice]) -> Found<'a> {
        let own = |figure: fn(&Slice) -> f64| median(self.slices.iter().map(figure));
        let of_first = |figure: fn(&Slice) -> f64| {
            median(self.slices.iter().zip(first).map(|(own, first)| figure(own) / figure(first)))
        };
        Found {
            connections,
            target: &self.target.name,
            appends_per_second: own(|it| it.per_second),
            of_first: of_first(|it| it.per_second),
            server_cpu_us: own(|it| it.server_us),
            server_cpu_of_first: of_first(|it| it.server_us),
            client_cpu_us: own(|it| it.client_us),
            p50_us: self.latency_us.value_at_quantile(0.5),
            p99_us: self.latency_us.value_at_quantile(0.99),
            per_second: self.slices.iter().map(|it| it.per_second).collect(),
        }
    }
}
