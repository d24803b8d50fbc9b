//! `duramen share redrive`: produces the records of dead letters again. The command commits only offsets of
//! acknowledged records: an interrupted run may repeat records, and skips none.

use std::collections::BTreeMap;
use std::fmt::Write;

use anyhow::{Context, bail, ensure};
use clap::Args;
use duramen_client::{
    Acknowledgement, Appender, AppenderOptions, Client, FetchOptions, Fetched, Fetcher,
};
use duramen_protocol::partitioner::partition_of_key;
use duramen_protocol::records::{BatchBuilder, NewRecord, Record, Records};
use indicatif::ProgressBar;
use serde::Serialize;

use crate::cli::bootstrap::Cluster;
use crate::cli::missing::{has_not, unknown_topic};
use crate::cli::place::Bounds;
use crate::cli::screen::{self, Table};
use crate::cli::usage::{topic_name, whole};

/// Prefix of the headers that the broker adds to a dead letter.
const SAID: &[u8] = b"__dlq.errors.";
/// Bytes of a batch after which the next one begins; one record may be larger.
const BATCH_BYTES: usize = 256 << 10;
/// More than any batch that a broker accepts, decompressed.
const DECOMPRESSED_BYTES_MAX: usize = 1 << 30;

#[derive(Debug, Args)]
#[command(
    after_help = "A share group may have a dead-letter topic (errors.deadletterqueue.topic.name). The group copies
there the records that its consumers reject, and those that reach its limit of deliveries. Once the
cause is gone, this command reads that topic up to its present end. It produces each record again
with its key, value, headers and timestamp, to its former topic and partition. With --to it produces
to another topic, and the key decides on the partition. Every share group that reads that topic gets
the record, not only the one that gave it up.

The command commits its offsets for a consumer group (--as), so that the next run continues there;
`duramen group reset` sets them back. Each --group and --source has a consumer group of its own, so
that a run with others still finds the records it skips. An interrupted run may repeat records, and
skips none.

Set up a dead-letter topic:
  duramen topic create dlq.billing --config errors.deadletterqueue.group.enable=true
  kafka-configs.sh --alter --entity-type groups --entity-name billing \\
      --add-config errors.deadletterqueue.topic.name=dlq.billing

Examples:
  duramen share redrive dlq.billing --dry-run
  duramen share redrive dlq.billing
  duramen share redrive dlq.billing --group billing --source orders
  duramen share redrive dlq.billing --to orders-again --count 100
  duramen share redrive dlq.billing --dry-run --output json | jq .records

Exit codes: 0 done, 1 failed, 2 wrongly called, 130 interrupted."
)]
pub(super) struct Redrive {
    /// Dead-letter topic to read
    #[arg(value_parser = topic_name)]
    topic: String,
    /// Only dead letters of this share group
    #[arg(long, value_name = "GROUP")]
    group: Option<String>,
    /// Only records that come from this topic
    #[arg(long, value_name = "TOPIC", value_parser = topic_name)]
    source: Option<String>,
    /// Produce to this topic instead of the one that each record comes from
    #[arg(long, value_name = "TOPIC", value_parser = topic_name)]
    to: Option<String>,
    /// Consumer group that keeps the offsets [default: redrive.TOPIC, followed by --group and --source]
    #[arg(long = "as", value_name = "GROUP")]
    place: Option<String>,
    /// Stop after this many records
    #[arg(long, short = 'n', value_name = "N", value_parser = whole::<u64>)]
    count: Option<u64>,
    /// Only show the number of records to produce
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    cluster: Cluster,
}

/// Topic and partition to which a record goes.
type Target = (String, i32);

#[derive(Debug, Default, PartialEq, Eq, Serialize)]
struct Report {
    topic: String,
    place: String,
    dry_run: bool,
    /// Records that the run produced, or would produce.
    records: u64,
    /// Dead letters of other groups or sources.
    passed: u64,
    /// Dead letters without key and value, which name only the record's place.
    without_record: u64,
    targets: Vec<Count>,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct Count {
    topic: String,
    partition: i32,
    records: u64,
}

/// Origin of a dead letter, from its headers.
#[derive(Debug, Default, PartialEq, Eq)]
struct Origin {
    topic: String,
    partition: i32,
    group: String,
}

impl Redrive {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let client = self.cluster.connect().await?;
        let place = self.place();
        let mut run = Run {
            positions: self.positions(&client, &place).await?,
            report: Report {
                topic: self.topic.clone(),
                place,
                dry_run: self.dry_run,
                ..Report::default()
            },
            left: self.count.unwrap_or(u64::MAX),
            partitions: BTreeMap::new(),
            appenders: BTreeMap::new(),
            counts: BTreeMap::new(),
            bar: screen::counter(),
            client,
            command: &self,
        };
        let outcome = run.all().await;
        run.bar.finish_and_clear();
        outcome?;
        run.tell()
    }

    fn place(&self) -> String {
        let parts = [Some(&self.topic), self.group.as_ref(), self.source.as_ref()];
        let named: Vec<&str> = parts.into_iter().flatten().map(String::as_str).collect();
        self.place.clone().unwrap_or_else(|| format!("redrive.{}", named.join(".")))
    }

    /// Finds the first offset to read and the end, by partition.
    async fn positions(
        &self,
        client: &Client,
        place: &str,
    ) -> anyhow::Result<BTreeMap<i32, (i64, i64)>> {
        let found = client.topic(&self.topic, false).await.map_err(unknown_topic(&self.topic))?;
        let there: Vec<i32> = found.partitions.iter().map(|part| part.partition_index).collect();
        let bounds = Bounds::find(client, &self.topic, &there).await?;
        let mut committed = client.committed(place).await?;
        let committed = committed.remove(&self.topic).unwrap_or_default();
        let position = |(partition, held): (i32, Bounds)| {
            let from = committed.get(&partition).map_or(held.start, |it| it.offset);
            (partition, (from.clamp(held.start, held.end), held.end))
        };
        let all = bounds.into_iter().map(position);
        Ok(all.filter(|(_, (from, end))| from < end).collect())
    }

    fn wants(&self, origin: &Origin) -> bool {
        self.group.as_ref().is_none_or(|group| *group == origin.group)
            && self.source.as_ref().is_none_or(|topic| *topic == origin.topic)
    }
}

struct Run<'a> {
    command: &'a Redrive,
    client: Client,
    positions: BTreeMap<i32, (i64, i64)>,
    report: Report,
    left: u64,
    /// Number of partitions of each topic to which records go.
    partitions: BTreeMap<String, i32>,
    appenders: BTreeMap<Target, Appender>,
    counts: BTreeMap<Target, u64>,
    bar: ProgressBar,
}

impl Run<'_> {
    async fn all(&mut self) -> anyhow::Result<()> {
        let from = self.positions.iter().map(|(partition, (from, _))| (*partition, *from));
        let topic = &self.command.topic;
        let mut fetcher = Fetcher::new(self.client.clone(), topic, from, FetchOptions::default());
        while self.left > 0 && !fetcher.positions().is_empty() {
            let asked = fetcher.positions().clone();
            for part in fetcher.poll().await? {
                let from = asked.get(&part.partition).copied().unwrap_or(0);
                let next = self.take(&part, from).await?;
                if next > from && !self.command.dry_run {
                    let offsets = [(part.partition, next)].into();
                    let offsets = [(topic.clone(), offsets)].into();
                    self.client.commit(&self.report.place, &offsets).await?;
                }
                let (_, end) = self.positions[&part.partition];
                if part.next_offset >= end {
                    fetcher.stop(part.partition);
                }
            }
        }
        Ok(())
    }

    /// Produces the fetched records from the offset `from` on. Returns the offset after the last record that it
    /// handled.
    async fn take(&mut self, part: &Fetched, from: i64) -> anyhow::Result<i64> {
        let (_, end) = self.positions[&part.partition];
        let mut building = BTreeMap::<Target, Vec<BatchBuilder>>::new();
        let mut next = from;
        'all: for batch in part.batches() {
            let batch = batch?;
            let header = batch.header();
            let at =
                || format!("the batch at {} of partition {}", header.base_offset, part.partition);
            ensure!(batch.crc_matches(), "{} fails its checksum", at());
            let records = Records::of(&batch, DECOMPRESSED_BYTES_MAX).with_context(at)?;
            for record in &records {
                let record = record.with_context(at)?;
                let offset = records.offset(&record);
                if offset < from {
                    continue;
                }
                if self.left == 0 || offset >= end {
                    break 'all;
                }
                let timestamp = records.timestamp(&record);
                self.add(&mut building, offset, timestamp, &record).await?;
                next = offset + 1;
            }
        }
        if !self.command.dry_run {
            self.append(building).await?;
        }
        Ok(if self.left == 0 { next } else { next.max(part.next_offset.min(end)) })
    }

    async fn add(
        &mut self,
        building: &mut BTreeMap<Target, Vec<BatchBuilder>>,
        offset: i64,
        timestamp: i64,
        record: &Record<'_>,
    ) -> anyhow::Result<()> {
        let Some(origin) = origin(record) else {
            bail!("the record at offset {offset} of {} is no dead letter", self.command.topic);
        };
        if !self.command.wants(&origin) {
            self.report.passed += 1;
            return Ok(());
        }
        if record.key.is_none() && record.value.is_none() {
            self.report.without_record += 1;
            return Ok(());
        }
        let target = self.target(&origin, record.key).await?;
        *self.counts.entry(target.clone()).or_default() += 1;
        self.report.records += 1;
        self.left -= 1;
        self.bar.inc(1);
        let kept = record.headers.into_iter().filter(|it| !it.key.starts_with(SAID));
        let kept: Vec<_> = kept.map(|it| (String::from_utf8_lossy(it.key), it.value)).collect();
        let headers: Vec<_> = kept.iter().map(|(key, value)| (&**key, *value)).collect();
        let (key, value) = (record.key, record.value);
        let again = NewRecord { timestamp, key, value, headers: &headers };
        let batches = building.entry(target).or_default();
        if batches.last().is_none_or(|batch| batch.plain_bytes() >= BATCH_BYTES) {
            batches.push(BatchBuilder::new());
        }
        batches.last_mut().expect("it was just made").push(&again)?;
        Ok(())
    }

    async fn target(&mut self, origin: &Origin, key: Option<&[u8]>) -> anyhow::Result<Target> {
        let topic = self.command.to.as_ref().unwrap_or(&origin.topic);
        if !self.partitions.contains_key(topic) {
            let found = self.client.topic(topic, false).await.map_err(unknown_topic(topic))?;
            let count = i32::try_from(found.partitions.len())?;
            self.partitions.insert(topic.clone(), count);
        }
        let count = self.partitions[topic];
        let partition = match (&self.command.to, key) {
            (None, _) => origin.partition,
            (Some(_), Some(key)) => partition_of_key(key, count),
            (Some(_), None) => origin.partition % count,
        };
        let there: Vec<i32> = (0..count).collect();
        ensure!(partition < count, has_not(topic, &there, partition));
        Ok((topic.clone(), partition))
    }

    /// Appends batches, and waits until the broker acknowledges them.
    async fn append(
        &mut self,
        building: BTreeMap<Target, Vec<BatchBuilder>>,
    ) -> anyhow::Result<()> {
        for (target, batches) in building {
            if !self.appenders.contains_key(&target) {
                let options = AppenderOptions {
                    acks: Acknowledgement::All,
                    producer: Some(self.client.init_producer().await?),
                    window: 5,
                    timeout_ms: 30_000,
                };
                let appender = Appender::new(self.client.clone(), &target.0, target.1, options);
                self.appenders.insert(target.clone(), appender);
            }
            let appender = self.appenders.get_mut(&target).expect("it was just made");
            for batch in batches {
                appender.push(batch.build_mut()?).await?;
            }
            appender.finish().await?;
        }
        Ok(())
    }

    fn tell(mut self) -> anyhow::Result<()> {
        let count = |((topic, partition), records)| Count { topic, partition, records };
        self.report.targets = std::mem::take(&mut self.counts).into_iter().map(count).collect();
        let report = &self.report;
        let table =
            || if report.targets.is_empty() { String::new() } else { report.table().render() };
        self.command.cluster.output.print(report, || table() + &report.summary())
    }
}

impl Report {
    fn table(&self) -> Table {
        let mut table = Table::new(&["TOPIC", "PARTITION", "RECORDS"]);
        for Count { topic, partition, records } in &self.targets {
            table.row(&[topic, partition, records]);
        }
        table
    }

    fn summary(&self) -> String {
        let verb = if self.dry_run { "would produce" } else { "produced" };
        let mut text = format!("{verb} {} again", screen::count(self.records, "record"));
        if self.passed > 0 {
            write!(text, ", passed {} by", self.passed).expect("a string takes all");
        }
        if self.without_record > 0 {
            let without = self.without_record;
            let verb = if without == 1 { "says" } else { "say" };
            write!(text, ", {without} {verb} only where the record was")
                .expect("a string takes all");
        }
        text
    }
}

/// Reads the origin from the headers of a dead letter. The last headers count, if a record died more than once.
fn origin(record: &Record<'_>) -> Option<Origin> {
    let mut said = BTreeMap::new();
    for header in record.headers {
        let name = header.key.strip_prefix(SAID).and_then(|name| std::str::from_utf8(name).ok());
        let value = header.value.and_then(|value| std::str::from_utf8(value).ok());
        said.extend(name.zip(value));
    }
    Some(Origin {
        topic: (*said.get("topic")?).to_owned(),
        partition: said.get("partition")?.parse().ok().filter(|it| *it >= 0)?,
        group: said.get("group").map_or_else(String::new, |group| (*group).to_owned()),
    })
}

#[cfg(test)]
mod tests {
    use duramen_protocol::batch::batches;

    use super::*;

    #[test]
    fn a_dead_letter_says_where_it_was() {
        let said: [(&str, Option<&[u8]>); 4] = [
            ("own", None),
            ("__dlq.errors.topic", Some(b"orders")),
            ("__dlq.errors.partition", Some(b"3")),
            ("__dlq.errors.group", Some(b"billing")),
        ];
        let read = |headers: &[(&str, Option<&[u8]>)]| {
            let mut batch = BatchBuilder::new();
            batch.push(&NewRecord { headers, ..NewRecord::default() }).expect("a record");
            let bytes = batch.build().expect("a batch");
            let view = batches(bytes).next().expect("one").expect("good");
            let records = Records::of(&view, 1000).expect("good");
            let record = records.iter().next().expect("one").expect("good");
            origin(&record)
        };
        let (topic, group) = ("orders".to_owned(), "billing".to_owned());
        assert_eq!(read(&said), Some(Origin { topic, partition: 3, group }));
        assert_eq!(read(&said[..2]), None);
    }

    #[test]
    fn the_summary_leaves_nothing_out() {
        let report =
            Report { dry_run: true, records: 1, passed: 2, without_record: 3, ..Report::default() };
        let expected = "would produce 1 record again, passed 2 by, 3 say only where the record was";
        assert_eq!(report.summary(), expected);
    }
}
