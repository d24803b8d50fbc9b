//! `duramen consume`: records of a topic, as text, by template, or as JSON lines.

use std::collections::BTreeMap;
use std::io::Write;
use std::str::FromStr;

use anyhow::{Context, bail, ensure};
use clap::Args;
use duramen_protocol::batch::batches;
use duramen_protocol::error_code::ErrorCode;
use duramen_protocol::records::Records;
use indicatif::ProgressBar;
use jiff::Timestamp;

use super::cluster::{Cluster, run};
use super::screen;
use super::topic::unknown_topic;
use crate::client::{Client, FetchOptions, Fetched, Fetcher, OffsetAt};

mod format;

pub use format::{Format, Shown};
pub(in crate::cli) use format::{date, put_bytes};

/// More than any batch that a broker accepts, decompressed.
const BATCH_BYTES_MAX: usize = 1 << 30;

/// Read records of a topic.
#[derive(Debug, Args)]
#[command(after_help = "Where to begin (--from):
  beginning, end            the first record that is kept; only what comes from now on
  4711                      this offset
  -10                       ten records before the end, in each partition
  @1700000000000            the first record that is not older, in milliseconds since 1970
  2024-05-01T12:00:00Z      the same, as a date and time (RFC 3339)

Formats (--format): text with
  %v value   %k key   %o offset   %p partition   %t topic   %T timestamp in ms   %D date and time
  %h headers as NAME=VALUE,...    %S bytes of the value     %K bytes of the key
  \\n newline  \\t tab  \\0 zero byte  %% percent sign  \\\\ backslash
or the word `json`: one object a line. Bytes that are not UTF-8 are base64 there, in fields named
value_base64 and key_base64.

Examples:
  duramen consume orders
  duramen consume orders --from -10 --format '%p/%o %k=%v\\n'
  duramen consume orders --from end --follow
  duramen consume orders --from 2024-05-01T12:00:00Z --count 100 --format json | jq .value
  duramen consume images --partition 0 --from 12 --count 1 --format '%v' > image.png

Exit codes: 0 done, 1 failed, 2 wrongly called, 130 interrupted.")]
pub struct Consume {
    /// Topic to read
    topic: String,
    /// Where to begin
    #[arg(long, default_value = "beginning", value_name = "PLACE", allow_hyphen_values = true)]
    from: From,
    /// Partition to read; may be repeated. Without it, all of them
    #[arg(long = "partition", short, value_name = "P")]
    partitions: Vec<i32>,
    /// Stop after this many records
    #[arg(long, short = 'n', value_name = "N")]
    count: Option<u64>,
    /// Wait for more records instead of stopping at the end
    #[arg(long, short)]
    follow: bool,
    /// How a record is printed
    #[arg(long, short = 'F', default_value = "%v\\n", value_name = "TEMPLATE")]
    format: Format,
    /// Only records whose transactions were committed
    #[arg(long)]
    read_committed: bool,
    #[command(flatten)]
    cluster: Cluster,
}

/// Where to begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum From {
    Beginning,
    End,
    Offset(i64),
    BeforeEnd(i64),
    Timestamp(i64),
}

impl FromStr for From {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(ms) = text.strip_prefix('@') {
            let ms = ms.parse().map_err(|_| format!("`{ms}` is not a number of milliseconds"))?;
            return Ok(Self::Timestamp(ms));
        }
        match text {
            "beginning" | "start" => return Ok(Self::Beginning),
            "end" => return Ok(Self::End),
            _ => {}
        }
        if let Ok(number) = text.parse::<i64>() {
            return Ok(if number < 0 { Self::BeforeEnd(-number) } else { Self::Offset(number) });
        }
        match text.parse::<Timestamp>() {
            Ok(time) => Ok(Self::Timestamp(time.as_millisecond())),
            Err(_) => {
                Err("give beginning, end, OFFSET, -N, @MILLISECONDS or a date and time".into())
            }
        }
    }
}

impl Consume {
    /// Runs the command.
    pub fn run(self) -> anyhow::Result<()> {
        run(self.consume())
    }

    async fn consume(self) -> anyhow::Result<()> {
        let client = self.cluster.connect().await?;
        let found = client.topic(&self.topic, false).await.map_err(unknown_topic(&self.topic))?;
        let mut there: Vec<i32> =
            found.partitions.iter().map(|part| part.partition_index).collect();
        there.sort_unstable();
        for partition in &self.partitions {
            let last = there.last().copied().unwrap_or(0);
            let topic = &self.topic;
            ensure!(there.contains(partition), "topic {topic} has partitions 0 to {last}");
        }
        let partitions = if self.partitions.is_empty() { there } else { self.partitions.clone() };
        let range = Range::find(&client, &self.topic, &partitions, self.from).await?;
        let stop = (!self.follow).then_some(range.ends);
        let positions = range.positions.into_iter();
        let positions = positions.filter(|(partition, offset)| {
            stop.as_ref().is_none_or(|ends| ends.get(partition).is_some_and(|end| offset < end))
        });
        let options =
            FetchOptions { read_committed: self.read_committed, ..FetchOptions::default() };
        let fetcher = Fetcher::new(client, &self.topic, positions, options);
        let format = if self.cluster.json() { Format::json() } else { self.format.clone() };
        let left = self.count.unwrap_or(u64::MAX);
        // What goes to the terminal is its own progress.
        let quiet = std::io::IsTerminal::is_terminal(&std::io::stdout());
        let bar = if quiet { ProgressBar::hidden() } else { screen::counter() };
        let mut reading = Reading { topic: &self.topic, format, left, stop, fetcher, bar };
        let outcome = reading.all().await;
        reading.bar.finish_and_clear();
        outcome
    }
}

/// Where reading begins, and where the partitions end at this moment.
struct Range {
    positions: BTreeMap<i32, i64>,
    ends: BTreeMap<i32, i64>,
}

impl Range {
    async fn find(
        client: &Client,
        topic: &str,
        partitions: &[i32],
        from: From,
    ) -> anyhow::Result<Self> {
        let list = async |at: OffsetAt| -> anyhow::Result<BTreeMap<i32, i64>> {
            let places: Vec<_> = partitions.iter().map(|partition| (*partition, at)).collect();
            let listed = client.list_offsets(topic, &places).await?.into_iter();
            Ok(listed.map(|(partition, listed)| (partition, listed.offset)).collect())
        };
        let ends = list(OffsetAt::End).await?;
        let starts = list(OffsetAt::Start).await?;
        let mut positions = BTreeMap::new();
        let found = match from {
            From::Timestamp(ms) => list(OffsetAt::Timestamp(ms)).await?,
            _ => BTreeMap::new(),
        };
        for (partition, end) in &ends {
            let start = starts.get(partition).copied().unwrap_or(0);
            let position = match from {
                From::Beginning => start,
                From::End => *end,
                From::BeforeEnd(count) => (end - count).max(start),
                // Every record is older: begin behind the last one.
                From::Timestamp(_) => match found.get(partition) {
                    Some(offset) if *offset >= 0 => *offset,
                    _ => *end,
                },
                From::Offset(offset) => {
                    ensure!(
                        (start..=*end).contains(&offset),
                        "offset {offset} is not in partition {partition}: it holds {start} to {end}"
                    );
                    offset
                }
            };
            positions.insert(*partition, position);
        }
        Ok(Self { positions, ends })
    }
}

struct Reading<'a> {
    topic: &'a str,
    format: Format,
    left: u64,
    /// Where to stop, unless more is waited for.
    stop: Option<BTreeMap<i32, i64>>,
    fetcher: Fetcher,
    bar: ProgressBar,
}

impl Reading<'_> {
    async fn all(&mut self) -> anyhow::Result<()> {
        let mut out = screen::stdout();
        while self.left > 0 && !self.fetcher.positions().is_empty() {
            // What was asked for is the first offset wanted; batches may begin earlier.
            let asked = self.fetcher.positions().clone();
            let fetched = self.fetcher.poll().await.map_err(|error| match error.code() {
                Some(ErrorCode::OffsetOutOfRange) => anyhow::Error::new(error)
                    .context("the records were deleted meanwhile; begin with --from beginning"),
                _ => error.into(),
            })?;
            for part in fetched {
                let first = asked.get(&part.partition).copied().unwrap_or(0);
                self.print(&mut out, &part, first)?;
                let end = self.stop.as_ref().and_then(|ends| ends.get(&part.partition));
                if end.is_some_and(|end| part.next_offset >= *end) {
                    self.fetcher.stop(part.partition);
                }
            }
            out.flush()?;
        }
        Ok(())
    }

    fn print(&mut self, out: &mut impl Write, part: &Fetched, first: i64) -> anyhow::Result<()> {
        let end = self.stop.as_ref().and_then(|ends| ends.get(&part.partition)).copied();
        for batch in batches(part.records.clone()) {
            let batch = batch?;
            let header = batch.header();
            if header.attributes.is_control() {
                continue;
            }
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
                if offset < first || end.is_some_and(|end| offset >= end) {
                    continue;
                }
                if self.left == 0 {
                    return Ok(());
                }
                let timestamp = records.timestamp(&record);
                let topic = self.topic;
                let shown = Shown { topic, partition: part.partition, offset, timestamp, record };
                self.format.write(out, &shown)?;
                self.left -= 1;
                self.bar.inc(1);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read_as_documented() {
        for (text, place) in [
            ("beginning", From::Beginning),
            ("end", From::End),
            ("0", From::Offset(0)),
            ("4711", From::Offset(4711)),
            ("-10", From::BeforeEnd(10)),
            ("@1700000000000", From::Timestamp(1_700_000_000_000)),
            ("2023-11-14T22:13:20Z", From::Timestamp(1_700_000_000_000)),
            ("2023-11-14T23:13:20+01:00", From::Timestamp(1_700_000_000_000)),
        ] {
            assert_eq!(text.parse(), Ok(place), "{text}");
        }
        assert!("yesterday".parse::<From>().is_err());
        assert!("@noon".parse::<From>().is_err());
    }
}
