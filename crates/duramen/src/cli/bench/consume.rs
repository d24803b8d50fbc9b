//! `bench consume`: one partition from start to end, at the speed of the wire.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure};
use clap::Args;
use duramen_client::{OffsetAt, Wire};
use duramen_protocol::batch::{BatchHeader, CHECKSUMMED_FROM, HEADER_BYTES};
use duramen_protocol::error_code::ErrorCode;
use rustix::net::{RecvFlags, recv};
use rustls::{ClientConnection, StreamOwned};
use serde::Serialize;

use super::frames::fetch;
use super::report::{bandwidth, count_in, cpu_time, milliseconds, print, round};
use crate::cli::bootstrap::Cluster;
use crate::cli::missing::{has_not, unknown_topic};
use crate::cli::screen;
use crate::cli::usage::{demand, topic_name, whole};

const BUFFER_BYTES: usize = 512 << 10;
/// Most bytes that discard mode copies beyond a request.
const PEEK_BYTES: usize = 256;
/// Longest silence of a broker, before the run fails.
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// Read a partition sequentially, as fast as the broker sends.
#[derive(Debug, Args)]
#[command(
    after_help = "The command sends the next request as soon as the last batch of a response begins to arrive, so
that the broker is never idle. By default it walks over the batches in user space, and counts
records from the batch headers.

Examples:
  duramen bench consume --topic duramen-bench
  duramen bench consume --topic duramen-bench --check      # verify every checksum
  duramen bench consume --topic duramen-bench --discard    # the kernel drops the bytes: pure wire"
)]
pub(super) struct Consume {
    /// Topic to read
    #[arg(long, short, default_value = "duramen-bench", value_name = "NAME", value_parser = topic_name)]
    topic: String,
    /// Partition to read
    #[arg(long, short, default_value_t = 0, value_name = "P", value_parser = clap::value_parser!(i32).range(0..))]
    partition: i32,
    /// First offset; the default is the log start offset
    #[arg(long, value_name = "OFFSET", value_parser = clap::value_parser!(i64).range(0..))]
    from: Option<i64>,
    /// Stop after this many bytes of batches; the default is the present end of the partition
    #[arg(long, value_name = "BYTES", value_parser = whole::<u64>)]
    bytes: Option<u64>,
    /// Most bytes of one response
    #[arg(long, default_value_t = 16 << 20, value_name = "BYTES", value_parser = clap::value_parser!(i32).range(1..))]
    max_bytes: i32,
    /// Verify the checksum of every batch
    #[arg(long, conflicts_with = "discard")]
    check: bool,
    /// Let the kernel drop the records without copying them
    #[arg(long)]
    discard: bool,
    /// Send the next request only after a complete response
    #[arg(long)]
    no_ahead: bool,
    #[command(flatten)]
    cluster: Cluster,
}

#[derive(Debug, Default, Serialize)]
struct Report {
    benchmark: &'static str,
    mode: &'static str,
    bytes: u64,
    records: u64,
    batches: u64,
    requests: u64,
    seconds: f64,
    megabytes_per_second: f64,
    first_batch_ms: f64,
    client_cpu_seconds: f64,
    per_second: Vec<u64>,
}

impl Consume {
    /// Runs the command.
    pub(super) async fn run(self) -> anyhow::Result<()> {
        demand(
            !self.discard || self.cluster.safety.tls_ca.is_none(),
            "--discard has the kernel drop what comes, and with TLS that cannot be read any more; leave one of them out",
        )?;
        let client = self.cluster.connect().await?;
        let found = client.topic(&self.topic, false).await.map_err(unknown_topic(&self.topic))?;
        let there: Vec<i32> = found.partitions.iter().map(|part| part.partition_index).collect();
        ensure!(there.contains(&self.partition), has_not(&self.topic, &there, self.partition));
        let leader =
            client.retry(async || client.leader(&self.topic, self.partition).await).await?;
        let at = |at| [(self.partition, at)];
        let start = client.list_offsets(&self.topic, &at(OffsetAt::Start)).await?;
        let end = client.list_offsets(&self.topic, &at(OffsetAt::End)).await?;
        let offset_of = |listed: &std::collections::BTreeMap<i32, duramen_client::ListedOffset>| {
            listed.get(&self.partition).map_or(0, |listed| listed.offset)
        };
        let (start, end) = (offset_of(&start), offset_of(&end));
        let next = self.from.unwrap_or(start);
        ensure!(next < end, "partition {} holds nothing from offset {next} on", self.partition);
        let address = client.address(leader.node).await?;
        let json = self.cluster.json();
        let socket = Socket::of(client.enter(&address).await?)?;
        let report = tokio::task::spawn_blocking(move || self.read(socket, next, end)).await??;
        let lines = [
            format!("{} in {} s", screen::bytes(report.bytes as f64), report.seconds),
            format!(
                "{}  {} records/s  {}, {}",
                bandwidth(report.bytes as f64, report.seconds),
                round(report.records as f64 / report.seconds),
                screen::count(report.requests, "request"),
                screen::count(report.batches, "batch")
            ),
            format!("client CPU {} s", report.client_cpu_seconds),
        ];
        print(json, &report, &lines)
    }

    fn read(&self, socket: Socket, next: i64, end: i64) -> anyhow::Result<Report> {
        let mode = match (self.check, self.discard) {
            (true, _) => "check",
            (_, true) => "discard",
            _ => "walk",
        };
        let limit = self.bytes.unwrap_or(u64::MAX);
        let mut reading = Reading {
            options: self,
            wire: Incoming::new(socket, self.discard),
            report: Report { benchmark: "consume", mode, ..Report::default() },
            begun: Instant::now(),
            next,
            end,
            limit,
            asked: false,
        };
        let cpu = cpu_time();
        let bar = screen::counter();
        while reading.wants_more() {
            reading.ask()?;
            reading.answer()?;
            bar.set_position(reading.report.records);
            bar.set_message(screen::bytes(reading.report.bytes as f64));
        }
        bar.finish_and_clear();
        let Reading { mut report, begun, .. } = reading;
        let seconds = begun.elapsed().as_secs_f64();
        report.seconds = milliseconds(seconds);
        report.megabytes_per_second = round(report.bytes as f64 / seconds / 1e6);
        report.client_cpu_seconds = milliseconds(cpu_time().saturating_sub(cpu).as_secs_f64());
        Ok(report)
    }
}

struct Reading<'a> {
    options: &'a Consume,
    wire: Incoming,
    report: Report,
    begun: Instant,
    next: i64,
    end: i64,
    limit: u64,
    /// A request is on its way.
    asked: bool,
}

impl Reading<'_> {
    fn wants_more(&self) -> bool {
        self.next < self.end && self.report.bytes < self.limit
    }

    fn ask(&mut self) -> anyhow::Result<()> {
        if self.asked {
            return Ok(());
        }
        let Consume { topic, partition, max_bytes, .. } = self.options;
        let frame = fetch(topic, (*partition, self.next), 500, *max_bytes)?;
        self.wire.socket.write_all(&frame)?;
        self.wire.socket.flush()?;
        self.asked = true;
        self.report.requests += 1;
        Ok(())
    }

    fn answer(&mut self) -> anyhow::Result<()> {
        let length = u64::from(self.wire.u32()?);
        let frame_end = self.wire.position + length;
        self.wire.skip(4)?; // correlation id
        self.wire.tags()?;
        self.wire.skip(4)?; // throttle time
        let failure = self.wire.i16()?;
        self.wire.skip(4)?; // session id
        check(failure)?;
        ensure!(self.wire.varint()? == 2, "the response lacks the topic");
        let name = self.wire.varint()?.saturating_sub(1);
        self.wire.skip(u64::from(name))?;
        ensure!(self.wire.varint()? == 2, "the response lacks the partition");
        self.wire.skip(4)?; // partition
        let failure = self.wire.i16()?;
        check(failure)?;
        self.wire.skip(24)?; // committed, stable, start
        for _ in 1..self.wire.varint()? {
            self.wire.skip(16)?; // an aborted transaction
            self.wire.tags()?;
        }
        self.wire.skip(4)?; // preferred replica
        let records = u64::from(self.wire.varint()?.saturating_sub(1));
        self.asked = false;
        self.walk(records)?;
        ensure!(self.wire.position <= frame_end, "the response is longer than its length");
        self.wire.skip(frame_end - self.wire.position)
    }

    /// Walks over the batches of a response, and drops an incomplete one at its end.
    fn walk(&mut self, mut left: u64) -> anyhow::Result<()> {
        while left >= HEADER_BYTES as u64 {
            let header = BatchHeader::parse(self.wire.peek(HEADER_BYTES)?)?;
            let length = header.batch_bytes() as u64;
            if length > left {
                break;
            }
            ensure!(
                header.end_offset() > self.next,
                "the broker sent offset {} again",
                header.base_offset
            );
            self.next = header.end_offset();
            left -= length;
            self.count(&header, length);
            // No whole batch can follow, so the broker may begin with the next response now.
            if left < HEADER_BYTES as u64 && !self.options.no_ahead && self.wants_more() {
                self.ask()?;
            }
            if self.options.check {
                self.wire.skip(CHECKSUMMED_FROM as u64)?;
                let crc = self.wire.checksum(length - CHECKSUMMED_FROM as u64)?;
                ensure!(
                    crc == header.crc,
                    "the batch at offset {} fails its checksum",
                    header.base_offset
                );
            } else {
                self.wire.skip(length)?;
            }
        }
        self.wire.skip(left)
    }

    fn count(&mut self, header: &BatchHeader, length: u64) {
        let elapsed = self.begun.elapsed();
        let report = &mut self.report;
        if report.batches == 0 {
            report.first_batch_ms = round(elapsed.as_secs_f64() * 1e3);
        }
        report.batches += 1;
        report.bytes += length;
        report.records += u64::try_from(header.record_count).unwrap_or(0);
        count_in(&mut report.per_second, elapsed, length);
    }
}

pub(super) fn check(code: i16) -> anyhow::Result<()> {
    match ErrorCode::from_code(code) {
        Some(ErrorCode::None) => Ok(()),
        Some(code) => bail!("the broker refused to send: {code}"),
        None => bail!("the broker refused to send: error {code}"),
    }
}

/// Socket whose reads block.
enum Socket {
    Plain(TcpStream),
    Sealed(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl Socket {
    fn of(wire: Wire) -> anyhow::Result<Self> {
        let (tcp, session) = match wire {
            Wire::Left(tcp) => (tcp, None),
            Wire::Right(sealed) => {
                let (tcp, session) = sealed.into_inner();
                (tcp, Some(session))
            }
        };
        let tcp = tcp.into_std()?;
        tcp.set_nonblocking(false)?;
        tcp.set_read_timeout(Some(SILENCE_MAX))?;
        Ok(match session {
            None => Self::Plain(tcp),
            Some(session) => Self::Sealed(Box::new(StreamOwned::new(session, tcp))),
        })
    }
}

impl Read for Socket {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(tcp) => tcp.read(into),
            Self::Sealed(sealed) => sealed.read(into),
        }
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(tcp) => tcp.write(bytes),
            Self::Sealed(sealed) => sealed.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(tcp) => tcp.flush(),
            Self::Sealed(sealed) => sealed.flush(),
        }
    }
}

/// Socket with one buffer for all reads.
struct Incoming {
    socket: Socket,
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    /// Bytes consumed since the beginning.
    position: u64,
    discard: bool,
}

impl Incoming {
    fn new(socket: Socket, discard: bool) -> Self {
        let buffer = vec![0; BUFFER_BYTES].into_boxed_slice();
        Self { socket, buffer, start: 0, end: 0, position: 0, discard }
    }

    /// Returns the next `len` bytes, and leaves them in the buffer.
    fn peek(&mut self, len: usize) -> anyhow::Result<&[u8]> {
        if self.start + len > self.buffer.len() {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        while self.end - self.start < len {
            let wanted = if self.discard { self.start + len.max(PEEK_BYTES) } else { usize::MAX };
            let wanted = wanted.min(self.buffer.len());
            let read = self.socket.read(&mut self.buffer[self.end..wanted])?;
            ensure!(read > 0, "the broker closed the connection");
            self.end += read;
        }
        Ok(&self.buffer[self.start..self.start + len])
    }

    fn take<const N: usize>(&mut self) -> anyhow::Result<[u8; N]> {
        let bytes = self.peek(N)?.try_into().expect("as many as were asked for");
        self.consume(N);
        Ok(bytes)
    }

    fn consume(&mut self, len: usize) {
        self.start += len;
        self.position += len as u64;
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    fn u32(&mut self) -> anyhow::Result<u32> {
        self.take().map(u32::from_be_bytes)
    }

    fn i16(&mut self) -> anyhow::Result<i16> {
        self.take().map(i16::from_be_bytes)
    }

    fn varint(&mut self) -> anyhow::Result<u32> {
        let mut value = 0;
        for shift in (0..35).step_by(7) {
            let [byte] = self.take()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(u32::try_from(value)?);
            }
        }
        bail!("the response has a number that is too long")
    }

    fn tags(&mut self) -> anyhow::Result<()> {
        for _ in 0..self.varint()? {
            self.varint()?;
            let size = self.varint()?;
            self.skip(u64::from(size))?;
        }
        Ok(())
    }

    /// Skips bytes.
    fn skip(&mut self, len: u64) -> anyhow::Result<()> {
        let mut left = len;
        while left > 0 {
            left -= self.some(left, |_| ())?;
        }
        Ok(())
    }

    fn checksum(&mut self, len: u64) -> anyhow::Result<u32> {
        let (mut left, mut crc) = (len, 0);
        while left > 0 {
            left -= self.some(left, |bytes| crc = crc32c::crc32c_append(crc, bytes))?;
        }
        Ok(crc)
    }

    /// Consumes the buffered bytes, at most `len`, and waits for at least one.
    fn some(&mut self, len: u64, see: impl FnOnce(&[u8])) -> anyhow::Result<u64> {
        if self.start == self.end {
            let room = usize::try_from(len).unwrap_or(usize::MAX).min(self.buffer.len());
            if self.discard
                && let Socket::Plain(socket) = &self.socket
            {
                // For TCP, this flag makes the kernel drop the bytes instead of copying them.
                let (_, read) = recv(socket, &mut self.buffer[..room], RecvFlags::TRUNC)?;
                ensure!(read > 0, "the broker closed the connection");
                self.position += read as u64;
                return Ok(read as u64);
            }
            let read = self.socket.read(&mut self.buffer)?;
            ensure!(read > 0, "the broker closed the connection");
            self.end = read;
        }
        let there = self.end - self.start;
        let len = usize::try_from(len).unwrap_or(usize::MAX).min(there);
        see(&self.buffer[self.start..self.start + len]);
        self.consume(len);
        Ok(len as u64)
    }
}
