//! `duramen consume`: prints records of a topic as text, by a template, or as JSON lines.

use std::collections::BTreeMap;
use std::io::Write;

use anyhow::{Context, bail};
use clap::Args;
use duramen_client::{Client, FetchOptions, Fetched, Fetcher};
use duramen_protocol::error_code::ErrorCode;
use duramen_protocol::records::Records;
use indicatif::ProgressBar;

use super::bootstrap::{Cluster, run};
use super::place::{Bounds, Place, chosen};
use super::screen;
use super::usage::{demand, topic_name, whole};

mod format;
mod membership;

pub use format::{Format, Shown};
pub(super) use format::{date, fields, put_bytes};

/// More than any batch that a broker accepts, decompressed.
const BATCH_BYTES_MAX: usize = 1 << 30;

/// Read records of a topic.
#[derive(Debug, Args)]
#[command(after_help = "Places to begin (--from) and to stop (--until):
  beginning, end            the first record of the log; behind the last one
  4711                      this offset
  -10                       ten records before the end, in each partition
  @1700000000000            the first record that is not older, in milliseconds since 1970
  2024-05-01T12:00:00Z      the same, as a date and time (RFC 3339)
  '2h ago', '3 days ago'    the same, counted from now

With --group the command joins that consumer group. One member reads each partition, from the
group's committed offset; --from is for partitions in which the group has no offset yet. The command
commits only offsets of printed records, so that a crash may repeat records and never skips any.

Formats (--format): text with
  %v value   %k key   %o offset   %p partition   %t topic   %T timestamp in ms   %D date and time
  %h headers as NAME=VALUE,...    %S bytes of the value     %K bytes of the key
  \\n newline  \\t tab  \\0 zero byte  %% percent sign  \\\\ backslash
or the word `json`, as --output json: one object a line. The fields value_base64 and key_base64
replace value and key where the bytes are not UTF-8.

Examples:
  duramen consume orders
  duramen consume orders --from -10 --format '%p/%o %k=%v\\n'
  duramen consume orders --from end --follow
  duramen consume orders --from '2h ago' --until '1h ago'
  duramen consume orders --from 2024-05-01T12:00:00Z --count 100 --output json | jq .value
  duramen consume orders --group billing --follow
  duramen consume images --partition 0 --from 12 --count 1 --format '%v' > image.png

Exit codes: 0 done, 1 failed, 2 wrongly called, 130 interrupted.")]
pub struct Consume {
    /// Topic to read
    #[arg(value_parser = topic_name)]
    topic: String,
    /// Place of the first record
    #[arg(long, default_value = "beginning", value_name = "PLACE", allow_hyphen_values = true)]
    from: Place,
    /// Place before which to stop
    #[arg(
        long,
        default_value = "end",
        value_name = "PLACE",
        allow_hyphen_values = true,
        conflicts_with = "follow"
    )]
    until: Place,
    /// Read as a member of this consumer group, and commit its offsets
    #[arg(long, short, value_name = "GROUP", conflicts_with = "partitions")]
    group: Option<String>,
    /// Name of a static member (group.instance.id). When it ends, it does not leave the group; if it restarts within
    /// its session, it keeps its partitions
    #[arg(long, value_name = "ID", requires = "group")]
    instance_id: Option<String>,
    /// Time after which the group removes a silent member, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 45, requires = "group", value_parser = clap::value_parser!(u64).range(1..=3600))]
    session_seconds: u64,
    /// Partition to read; may be repeated. The default is all of them
    #[arg(long = "partition", short, value_name = "P", value_parser = clap::value_parser!(i32).range(0..))]
    partitions: Vec<i32>,
    /// Stop after this many records
    #[arg(long, short = 'n', value_name = "N", value_parser = whole::<u64>)]
    count: Option<u64>,
    /// Wait for more records instead of stopping at the end
    #[arg(long, short)]
    follow: bool,
    /// Template of a printed record [default: %v\n]
    #[arg(long, short = 'F', value_name = "TEMPLATE", allow_hyphen_values = true)]
    format: Option<Format>,
    /// Read only committed records, as a consumer with isolation level read committed
    #[arg(long)]
    read_committed: bool,
    /// Print neither progress nor the assigned partitions to stderr
    #[arg(long, short)]
    quiet: bool,
    #[command(flatten)]
    cluster: Cluster,
}

impl Consume {
    /// Runs the command.
    pub fn run(self) -> anyhow::Result<()> {
        demand(
            !self.cluster.json() || self.format.as_ref().is_none_or(|it| *it == Format::json()),
            "--output json prints each record as JSON, and --format as text; leave one of them out",
        )?;
        match self.group.clone() {
            Some(group) => membership::run(&self, &group),
            None => run(self.consume()),
        }
    }

    async fn consume(self) -> anyhow::Result<()> {
        let client = self.cluster.connect().await?;
        let partitions = chosen(&client, &self.topic, &self.partitions).await?;
        let bounds = Bounds::find(&client, &self.topic, &partitions).await?;
        let positions = self.from.find(&client, &self.topic, &bounds).await?.into_iter();
        let stop = if self.follow { None } else { Some(self.ends(&client, &bounds).await?) };
        let positions = positions.filter(|(partition, offset)| {
            stop.as_ref().is_none_or(|ends| ends.get(partition).is_some_and(|end| offset < end))
        });
        let fetcher = Fetcher::new(client, &self.topic, positions, self.fetch_options());
        let printer = self.printer();
        let mut reading = Reading { stop, fetcher, printer };
        let outcome = reading.all().await;
        reading.printer.bar.finish_and_clear();
        outcome
    }

    /// Finds the offset at which to stop in each partition.
    async fn ends(
        &self,
        client: &Client,
        bounds: &BTreeMap<i32, Bounds>,
    ) -> anyhow::Result<BTreeMap<i32, i64>> {
        self.until.find(client, &self.topic, bounds).await
    }

    fn fetch_options(&self) -> FetchOptions {
        FetchOptions { read_committed: self.read_committed, ..FetchOptions::default() }
    }

    fn printer(&self) -> Printer {
        // Records that scroll over the terminal show the progress themselves.
        let is_hidden = self.quiet || std::io::IsTerminal::is_terminal(&std::io::stdout());
        Printer {
            topic: self.topic.clone(),
            format: if self.cluster.json() {
                Format::json()
            } else {
                self.format.clone().unwrap_or_default()
            },
            left: self.count.unwrap_or(u64::MAX),
            bar: if is_hidden { ProgressBar::hidden() } else { screen::counter() },
        }
    }
}

struct Reading {
    /// Offsets at which to stop without `--follow`.
    stop: Option<BTreeMap<i32, i64>>,
    fetcher: Fetcher,
    printer: Printer,
}

impl Reading {
    async fn all(&mut self) -> anyhow::Result<()> {
        let mut out = screen::stdout();
        while self.printer.left > 0 && !self.fetcher.positions().is_empty() {
            // The position of the request is the first wanted offset; a batch may begin before it.
            let asked = self.fetcher.positions().clone();
            let fetched = self.fetcher.poll().await.map_err(|error| match error.code() {
                Some(ErrorCode::OffsetOutOfRange) => anyhow::Error::new(error)
                    .context("the records were deleted meanwhile; begin with --from beginning"),
                _ => error.into(),
            })?;
            for part in fetched {
                let first = asked.get(&part.partition).copied().unwrap_or(0);
                let end = self.stop.as_ref().and_then(|ends| ends.get(&part.partition)).copied();
                self.printer.print(&mut out, &part, first, end)?;
                if end.is_some_and(|end| part.next_offset >= end) {
                    self.fetcher.stop(part.partition);
                }
            }
            out.flush()?;
        }
        Ok(())
    }
}

/// Prints records until enough are printed.
struct Printer {
    topic: String,
    format: Format,
    left: u64,
    bar: ProgressBar,
}

impl Printer {
    /// Prints the fetched records from `first` up to `end`. Returns the offset after the last printed or hidden record.
    fn print(
        &mut self,
        out: &mut impl Write,
        part: &Fetched,
        first: i64,
        end: Option<i64>,
    ) -> anyhow::Result<i64> {
        let mut next = first;
        for batch in part.batches() {
            let batch = batch?;
            let header = batch.header();
            let at = || {
                format!(
                    "the batch at offset {} of partition {}",
                    header.base_offset, part.partition
                )
            };
            if !batch.crc_matches() {
                bail!("{} fails its checksum", at());
            }
            let records = Records::of(&batch, BATCH_BYTES_MAX).with_context(at)?;
            for record in &records {
                let record = record.with_context(at)?;
                let offset = records.offset(&record);
                if offset < first {
                    continue;
                }
                if self.left == 0 {
                    return Ok(next);
                }
                if let Some(end) = end.filter(|end| offset >= *end) {
                    return Ok(end);
                }
                let timestamp = records.timestamp(&record);
                let topic = &self.topic;
                let shown = Shown { topic, partition: part.partition, offset, timestamp, record };
                self.format.write(out, &shown)?;
                next = offset + 1;
                self.left -= 1;
                self.bar.inc(1);
            }
        }
        Ok(next.max(part.next_offset))
    }
}
