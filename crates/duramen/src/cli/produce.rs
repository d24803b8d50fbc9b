//! `duramen produce`: appends records from stdin or from files.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, stdin};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, ensure};
use bytes::BytesMut;
use clap::Args;
use duramen_client::{
    Acked, Acknowledgement, Appender, AppenderOptions, Client, Error, FastAppender, FastOptions,
    LATE_AFTER, Producer,
};
use duramen_protocol::compression::Codec;
use duramen_protocol::error_code::ErrorCode;
use duramen_protocol::partitioner::partition_of_key;
use duramen_protocol::records::{BatchBuilder, NewRecord};
use indicatif::ProgressBar;
use jiff::Timestamp;
use serde::Serialize;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

use super::acks::Acks;
use super::bootstrap::{Cluster, run};
use super::missing::{has_not, unknown_topic};
use super::screen;
use super::usage::{demand, key_value, topic_name, whole};

/// Most lines that wait for the network.
const LINES_AHEAD: usize = 4096;
/// Batches in flight: as many as a broker remembers of an idempotent producer.
const WINDOW: usize = 5;
/// Longest wait of a broker for its replicas, in milliseconds.
const TIMEOUT_MS: i32 = 30_000;

/// Append records to a topic, one for each line of stdin or each file.
#[derive(Debug, Args)]
#[command(
    after_help = "Without --partition, a record with a key goes to the partition that Kafka's Java client would
choose. Records without a key go to one partition after the other, batch by batch.

With --fast a batch goes to the leader and to followers at once, and is acknowledged once all of
them have it on disk: one round trip instead of two. The topic needs fast.append.enable=true and
two or more replicas. At that moment the batch has no offset yet, so the summary shows offsets of
a partition only if all are known. Batches that a member does not take go the normal way.

With --each a line follows each acknowledged batch. Batches of a partition are acknowledged in
order: {\"partition\":0,\"offset\":42,\"records\":3}, with null for an offset that is not known.

Examples:
  echo hello | duramen produce orders
  duramen produce orders --key-separator : < lines      # `key:value` on each line
  duramen produce orders --key customer-7 --header source=import < lines
  duramen produce images --file a.png --file b.png --codec zstd
  tail -f app.log | duramen produce logs --linger-ms 50
  duramen topic create far --replication-factor 3 --config fast.append.enable=true
  duramen produce far --fast < lines

Exit codes: 0 every record was acknowledged, 1 not all were, 2 wrongly called, 130 interrupted."
)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command")]
pub struct Produce {
    /// Topic to append to
    #[arg(value_parser = topic_name)]
    topic: String,
    /// Key of every record
    #[arg(
        long,
        short,
        value_name = "KEY",
        conflicts_with = "key_separator",
        allow_hyphen_values = true
    )]
    key: Option<String>,
    /// Each line is KEY, this separator, VALUE; a line without it has no key
    #[arg(long, short = 'K', value_name = "TEXT", allow_hyphen_values = true)]
    key_separator: Option<String>,
    /// Header of every record; may be repeated
    #[arg(
        long = "header",
        short = 'H',
        value_name = "KEY=VALUE",
        value_parser = key_value,
        allow_hyphen_values = true
    )]
    headers: Vec<(String, String)>,
    /// File whose whole content is the value of one record, instead of stdin; may be repeated
    #[arg(long = "file", short = 'F', value_name = "PATH", conflicts_with = "key_separator")]
    files: Vec<PathBuf>,
    /// Partition for all records
    #[arg(long, short, value_name = "P", value_parser = clap::value_parser!(i32).range(0..))]
    partition: Option<i32>,
    /// Compression of batches: none, gzip, snappy, lz4 or zstd
    #[arg(long, default_value = "none", value_name = "CODEC", value_parser = codec)]
    codec: Codec,
    /// Acknowledgement to wait for: all (durable on enough replicas), 1 (the leader) or 0 (sent)
    #[arg(long, default_value = "all", value_name = "all|1|0", hide_possible_values = true)]
    acks: Acks,
    /// Append each record exactly once, even if an acknowledgement is lost and the batch is sent again
    #[arg(long)]
    idempotent: bool,
    /// Send each batch to the leader and to followers at once; implies --idempotent
    #[arg(long)]
    fast: bool,
    /// Bytes at which a batch is sent
    #[arg(long, default_value_t = 256 << 10, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1..))]
    batch_bytes: u32,
    /// Longest time that a batch waits for more lines, in milliseconds
    #[arg(long, default_value_t = 5, value_name = "MS", value_parser = whole::<u64>)]
    linger_ms: u64,
    /// Fail if the topic does not exist, even where the broker would create it
    #[arg(long)]
    no_create: bool,
    /// Longest time to try a batch again before the command fails, in seconds
    #[arg(long, default_value_t = 30, value_name = "S", value_parser = whole::<u64>)]
    retry_seconds: u64,
    /// Print a line of JSON for each batch as soon as it is acknowledged
    #[arg(long)]
    each: bool,
    /// Print no summary
    #[arg(long, short)]
    quiet: bool,
    #[command(flatten)]
    cluster: Cluster,
}

#[derive(Debug, Default, Serialize)]
struct Summary {
    topic: String,
    records: u64,
    bytes: u64,
    batches: u64,
    seconds: f64,
    /// Batches that were acknowledged in one round trip; only with --fast.
    #[serde(skip_serializing_if = "Option::is_none")]
    fast_batches: Option<u64>,
    /// Offsets by partition; absent where not all are known (acks 0, --fast).
    offsets: BTreeMap<i32, Offsets>,
    /// Partitions with batches of unknown offset.
    #[serde(skip)]
    unplaced: BTreeSet<i32>,
}

#[derive(Debug, Serialize)]
struct Offsets {
    first: i64,
    last: i64,
}

/// Acknowledged batch, for --each.
#[derive(Debug, Serialize)]
struct Each {
    partition: i32,
    /// First offset, absent where it is not known yet (--fast) or never (acks 0).
    offset: Option<i64>,
    records: u32,
}

/// Key and value of one line or file.
struct Line {
    key: Option<Vec<u8>>,
    value: Vec<u8>,
}

impl Produce {
    /// Runs the command.
    pub fn run(self) -> anyhow::Result<()> {
        run(self.produce())
    }

    async fn produce(self) -> anyhow::Result<()> {
        demand(
            !self.idempotent || self.acks == Acks::All,
            "--idempotent needs --acks all: a lost acknowledgement must be noticed",
        )?;
        demand(
            !self.fast || self.acks == Acks::All,
            "--fast needs --acks all: it is another way to the same promise",
        )?;
        let client = self.cluster.connect_trying(Duration::from_secs(self.retry_seconds)).await?;
        let found = client.topic(&self.topic, !self.no_create).await;
        let partitions = found.map_err(unknown_topic(&self.topic))?.partitions.len();
        let partitions = i32::try_from(partitions).context("the topic has too many partitions")?;
        if let Some(partition) = self.partition {
            let there: Vec<i32> = (0..partitions).collect();
            ensure!(partition < partitions, has_not(&self.topic, &there, partition));
        }
        let needs_producer = self.idempotent || self.fast;
        let producer = if needs_producer { Some(client.init_producer().await?) } else { None };
        let begun = Instant::now();
        let bar = screen::counter();
        let mut sending = Sending {
            command: &self,
            client,
            producer,
            partitions,
            sticky: 0,
            open: BTreeMap::new(),
            appenders: BTreeMap::new(),
            summary: Summary {
                topic: self.topic.clone(),
                fast_batches: self.fast.then_some(0),
                ..Summary::default()
            },
            bar,
            has_warned: false,
        };
        let outcome = sending.send_all().await;
        sending.bar.finish_and_clear();
        let mut summary = sending.summary;
        summary.seconds = (begun.elapsed().as_secs_f64() * 1e3).round() / 1e3;
        outcome
            .with_context(|| {
                format!("after {}", screen::count(summary.records, "acknowledged record"))
            })
            .map_err(too_large)?;
        if self.quiet {
            return Ok(());
        }
        self.cluster.output.print(&summary, || summary.line(self.acks))
    }
}

impl Summary {
    fn line(&self, acks: Acks) -> String {
        let verb = if acks == Acks::None { "sent" } else { "appended" };
        let mut line =
            format!("{verb} {} to {}", screen::count(self.records, "record"), self.topic);
        // The offsets of some partitions alone would look like all.
        let mut parts = self.offsets.iter().filter(|_| self.unplaced.is_empty());
        match (parts.next(), parts.next()) {
            (Some((partition, Offsets { first, last })), None) if first == last => {
                write!(line, ": partition {partition}, offset {first}")
            }
            (Some((partition, Offsets { first, last })), None) => {
                write!(line, ": partition {partition}, offsets {first} to {last}")
            }
            (Some(_), Some(_)) => write!(line, ": {} partitions", self.offsets.len()),
            (None, _) => Ok(()),
        }
        .expect("a string takes all");
        if let Some(fast) = self.fast_batches {
            let all = screen::count(self.batches, "batch");
            write!(line, "; {fast} of {all} in one round trip").expect("a string takes all");
        }
        line
    }

    fn acked(&mut self, partition: i32, acked: &[Acked]) {
        for Acked { base_offset, records, bytes, is_fast } in acked {
            self.records += u64::from(*records);
            self.bytes += *bytes as u64;
            self.batches += 1;
            let fast = u64::from(*is_fast);
            self.fast_batches = self.fast_batches.map(|count| count + fast);
            if *base_offset < 0 {
                self.unplaced.insert(partition);
            }
            if self.unplaced.contains(&partition) {
                self.offsets.remove(&partition);
                continue;
            }
            let last = base_offset + i64::from(*records) - 1;
            let known = Offsets { first: *base_offset, last };
            let offsets = self.offsets.entry(partition).or_insert(known);
            offsets.first = offsets.first.min(*base_offset);
            offsets.last = offsets.last.max(last);
        }
    }
}

/// The way of batches to a partition.
enum Lane {
    Normal(Appender),
    Fast(Box<FastAppender>),
}

impl Lane {
    async fn push(&mut self, batch: BytesMut) -> Result<Vec<Acked>, Error> {
        match self {
            Self::Normal(appender) => appender.push(batch).await,
            Self::Fast(appender) => appender.push(batch).await,
        }
    }

    async fn finish(&mut self) -> Result<Vec<Acked>, Error> {
        match self {
            Self::Normal(appender) => appender.finish().await,
            Self::Fast(appender) => appender.finish().await,
        }
    }

    /// Returns the reason why batches go the normal way for good, once.
    fn warning(&mut self) -> Option<String> {
        match self {
            Self::Normal(_) => None,
            Self::Fast(appender) => appender.warning(),
        }
    }
}

struct Sending<'a> {
    command: &'a Produce,
    client: Client,
    producer: Option<Producer>,
    partitions: i32,
    /// Partition of records without a key, until its batch is full.
    sticky: i32,
    /// Batches that take more records.
    open: BTreeMap<i32, BatchBuilder>,
    appenders: BTreeMap<i32, Lane>,
    summary: Summary,
    bar: ProgressBar,
    has_warned: bool,
}

impl Sending<'_> {
    async fn send_all(&mut self) -> anyhow::Result<()> {
        if self.command.files.is_empty() {
            self.send_lines().await?;
        } else {
            for path in &self.command.files {
                let value = read_whole(path)?;
                self.add(Line { key: None, value }).await?;
            }
        }
        self.flush().await?;
        self.settle().await
    }

    async fn send_lines(&mut self) -> anyhow::Result<()> {
        let mut lines = read_lines(self.command.key_separator.clone());
        let linger = Duration::from_millis(self.command.linger_ms);
        let mut deadline = None;
        loop {
            let received = match deadline {
                Some(deadline) => timeout_at(deadline, lines.recv()).await,
                None => Ok(lines.recv().await),
            };
            match received {
                Ok(Some(line)) => {
                    self.add(line?).await?;
                    deadline = deadline.or_else(|| Some(Instant::now() + linger));
                }
                Ok(None) => return Ok(()),
                Err(_) => {
                    self.flush().await?;
                    deadline = None;
                    if lines.is_empty() {
                        self.settle().await?;
                    }
                }
            }
        }
    }

    /// Waits for batches in flight: in the end, and when stdin has no line, so that an error shows at once.
    async fn settle(&mut self) -> anyhow::Result<()> {
        for (partition, appender) in &mut self.appenders {
            let acked = appender.finish().await?;
            if self.command.each {
                tell(*partition, &acked);
            }
            self.summary.acked(*partition, &acked);
            if let Some(warning) = appender.warning().filter(|_| !self.has_warned) {
                self.has_warned = true;
                self.bar.suspend(|| eprintln!("warning: {warning}"));
            }
        }
        self.bar.set_position(self.summary.records);
        Ok(())
    }

    async fn add(&mut self, line: Line) -> anyhow::Result<()> {
        let command = self.command;
        let key = line.key.as_deref().or(command.key.as_deref().map(str::as_bytes));
        let partition = match (command.partition, key) {
            (Some(partition), _) => partition,
            (None, Some(key)) => partition_of_key(key, self.partitions),
            (None, None) => self.sticky,
        };
        let headers: Vec<_> = command
            .headers
            .iter()
            .map(|(name, value)| (name.as_str(), Some(value.as_bytes())))
            .collect();
        let batch =
            self.open.entry(partition).or_insert_with(|| BatchBuilder::new().codec(command.codec));
        let timestamp = Timestamp::now().as_millisecond();
        let record = NewRecord { timestamp, key, value: Some(&line.value), headers: &headers };
        let full = batch.count() > 0
            && batch.plain_bytes() + line.value.len() > command.batch_bytes as usize;
        if full {
            self.send(partition).await?;
            if key.is_none() {
                self.sticky = (self.sticky + 1) % self.partitions;
            }
        }
        let batch =
            self.open.entry(partition).or_insert_with(|| BatchBuilder::new().codec(command.codec));
        batch.push(&record).context("the record cannot be encoded")
    }

    async fn flush(&mut self) -> anyhow::Result<()> {
        let open: Vec<i32> = self.open.keys().copied().collect();
        for partition in open {
            self.send(partition).await?;
        }
        Ok(())
    }

    async fn send(&mut self, partition: i32) -> anyhow::Result<()> {
        let Some(batch) = self.open.remove(&partition) else { return Ok(()) };
        let (command, client, producer) = (self.command, &self.client, self.producer);
        let appender = self
            .appenders
            .entry(partition)
            .or_insert_with(|| lane(command, client, producer, partition));
        let acked = appender.push(batch.build_mut()?).await?;
        if self.command.each {
            tell(partition, &acked);
        }
        self.summary.acked(partition, &acked);
        self.bar.set_position(self.summary.records);
        Ok(())
    }
}

/// Prints a line for each batch.
fn tell(partition: i32, acked: &[Acked]) {
    for Acked { base_offset, records, .. } in acked {
        let offset = (*base_offset >= 0).then_some(*base_offset);
        let each = Each { partition, offset, records: *records };
        println!("{}", serde_json::to_string(&each).expect("three numbers"));
    }
}

fn lane(command: &Produce, client: &Client, producer: Option<Producer>, partition: i32) -> Lane {
    let (client, topic) = (client.clone(), &command.topic);
    if let Some(producer) = producer.filter(|_| command.fast) {
        let (window, timeout_ms) = (WINDOW, TIMEOUT_MS);
        let options = FastOptions { producer, window, timeout_ms, late_after: LATE_AFTER };
        Lane::Fast(Box::new(FastAppender::new(client, topic, partition, options)))
    } else {
        let acks = Acknowledgement::from(command.acks);
        let options = AppenderOptions { acks, producer, window: WINDOW, timeout_ms: TIMEOUT_MS };
        Lane::Normal(Appender::new(client, topic, partition, options))
    }
}

/// Names the fix for a batch that is too large for its topic.
fn too_large(error: anyhow::Error) -> anyhow::Error {
    let codes = error.chain().filter_map(|cause| cause.downcast_ref::<Error>());
    if codes.into_iter().any(|cause| cause.code() == Some(ErrorCode::MessageTooLarge)) {
        error.context(
            "a batch is larger than the topic's max.message.bytes; lower --batch-bytes, or raise \
             the topic's setting if one record alone is larger",
        )
    } else {
        error
    }
}

/// Reads stdin on a thread of its own: a blocked read must not hold up the network.
fn read_lines(separator: Option<String>) -> mpsc::Receiver<anyhow::Result<Line>> {
    let (sender, lines) = mpsc::channel(LINES_AHEAD);
    std::thread::spawn(move || {
        let mut input = BufReader::with_capacity(256 << 10, stdin());
        loop {
            let mut text = Vec::new();
            let line = match input.read_until(b'\n', &mut text) {
                Ok(0) => return,
                Ok(_) => Ok(split(text, separator.as_deref())),
                Err(error) => Err(anyhow::Error::new(error).context("cannot read stdin")),
            };
            let failed = line.is_err();
            if sender.blocking_send(line).is_err() || failed {
                return;
            }
        }
    });
    lines
}

fn split(mut text: Vec<u8>, separator: Option<&str>) -> Line {
    if text.last() == Some(&b'\n') {
        text.pop();
    }
    let Some(separator) = separator.map(str::as_bytes).filter(|bytes| !bytes.is_empty()) else {
        return Line { key: None, value: text };
    };
    match text.windows(separator.len()).position(|window| window == separator) {
        Some(at) => {
            let value = text[at + separator.len()..].to_vec();
            text.truncate(at);
            Line { key: Some(text), value }
        }
        None => Line { key: None, value: text },
    }
}

fn read_whole(path: &Path) -> anyhow::Result<Vec<u8>> {
    let mut value = Vec::new();
    let opened = std::fs::File::open(path).and_then(|mut file| file.read_to_end(&mut value));
    opened.with_context(|| format!("cannot read {}", path.display()))?;
    Ok(value)
}

fn codec(name: &str) -> Result<Codec, String> {
    Codec::from_name(name).ok_or_else(|| {
        let names = Codec::ALL.map(Codec::name);
        format!("known codecs are {}", names.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_split_at_the_first_separator_and_loses_its_end() {
        let parts = |text: &str, separator| {
            let line = split(text.into(), separator);
            (line.key, String::from_utf8(line.value).expect("text"))
        };
        assert_eq!(parts("a:b:c\n", Some(":")), (Some(b"a".to_vec()), "b:c".into()));
        assert_eq!(parts("ab", Some("::")), (None, "ab".into()));
        assert_eq!(parts("a:b\r\n", None), (None, "a:b\r".into()));
        assert_eq!(parts("\n", None), (None, String::new()));
    }

    #[test]
    fn the_summary_names_the_offsets() {
        let mut summary = Summary { topic: "orders".into(), ..Summary::default() };
        assert_eq!(summary.line(Acks::All), "appended 0 records to orders");
        summary.acked(0, &[Acked { base_offset: 7, records: 1, bytes: 70, is_fast: false }]);
        assert_eq!(summary.line(Acks::All), "appended 1 record to orders: partition 0, offset 7");
        summary.acked(0, &[Acked { base_offset: 8, records: 3, bytes: 70, is_fast: false }]);
        let line = "appended 4 records to orders: partition 0, offsets 7 to 10";
        assert_eq!(summary.line(Acks::All), line);
        summary.acked(2, &[Acked { base_offset: 0, records: 1, bytes: 70, is_fast: false }]);
        assert_eq!(summary.line(Acks::All), "appended 5 records to orders: 2 partitions");
        summary.acked(2, &[Acked { base_offset: -1, records: 1, bytes: 70, is_fast: false }]);
        summary.acked(2, &[Acked { base_offset: 2, records: 1, bytes: 70, is_fast: false }]);
        assert_eq!(summary.line(Acks::All), "appended 7 records to orders");
        assert_eq!(summary.offsets.keys().collect::<Vec<_>>(), [&0], "all are known there");
    }

    #[test]
    fn the_summary_counts_batches_of_one_round_trip() {
        let none = Summary { topic: "far".into(), ..Summary::default() };
        let mut summary = Summary { fast_batches: Some(0), ..none };
        summary.acked(0, &[Acked { base_offset: 0, records: 1, bytes: 70, is_fast: false }]);
        summary.acked(0, &[Acked { base_offset: -1, records: 1, bytes: 70, is_fast: true }]);
        let line = "appended 2 records to far; 1 of 2 batches in one round trip";
        assert_eq!(summary.line(Acks::All), line);
    }
}
