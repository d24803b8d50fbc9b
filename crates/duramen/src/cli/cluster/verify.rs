//! `duramen cluster verify`.

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::bail;
use clap::Args;
use serde::Serialize;

use super::overview::Overview;
use crate::cli::bootstrap::Cluster;
use crate::cli::missing::no_such_topic;
use crate::cli::replicas::{Nodes, Subject};
use crate::cli::screen::{self, Table, or_dash};
use crate::cli::usage::topic_name;

mod comparing;
mod verdict;

use comparing::Comparison;
use verdict::{Difference, NodeDigest, State, Verdict};

/// Longest time that a node gets to respond. A frozen node delays the command once.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Debug, Args)]
#[command(
    after_help = "Replicas of a partition have files of the same bytes. Every node with a replica computes digests
(XXH3, 128 bits) of the batches in its segments, a few megabytes at a time. It stops at the offset
up to which all replicas know the records as committed. The command compares the digests and the
segments' first offsets. It compares compacted segments record by record, once all replicas have
done the same compaction. Nodes read every batch again, whatever they checked before. Producers,
consumers and retention go on meanwhile. The command compares internal topics and the metadata, too.

The STATE of a partition:
  identical      all replicas are the same
  differs        followed by the first batch that differs, and each node's copy of it
  in part        some nodes do not answer or are behind, and the others are the same
  not compared   fewer than two replicas could be compared
A mark (<-) shows a replica that differs from most others and is probably the wrong one. The mark
also shows a replica that its node reports as damaged.

The exit code is 1 if a partition differs, and 0 if every compared partition is identical.

Examples:
  duramen cluster verify
  duramen cluster verify --topic orders --topic audit --all
  duramen cluster verify --output json | jq '.partitions[] | select(.state != \"identical\")'"
)]
pub(super) struct Verify {
    /// Only this topic; may be repeated
    #[arg(long = "topic", short, value_name = "TOPIC", value_parser = topic_name)]
    topics: Vec<String>,
    /// List identical partitions, too; JSON has all of them nevertheless
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    cluster: Cluster,
}

#[derive(Debug, Serialize)]
struct Report {
    identical: usize,
    differ: usize,
    not_compared: usize,
    /// Compared bytes, of one replica of each partition.
    bytes: i64,
    partitions: Vec<Verdict>,
}

impl Verify {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let client = self.cluster.connect_within(PATIENCE).await?;
        let overview = Overview::gather(&client).await?;
        let mut subjects: Vec<Subject> = Vec::new();
        for partition in &overview.partitions {
            if self.topics.is_empty() || self.topics.contains(&partition.topic) {
                subjects.push(Subject::of(partition));
            }
        }
        let metadata = duramen_broker::METADATA_TOPIC;
        if self.topics.is_empty() || self.topics.iter().any(|name| name == metadata) {
            subjects.push(Subject::metadata(&client).await?);
        }
        for name in &self.topics {
            if subjects.iter().all(|it| it.topic != *name) {
                return Err(no_such_topic(name));
            }
        }
        let mut nodes = Nodes::new(client, &overview, &subjects);
        nodes.describe(&subjects).await?;
        let total: i64 = subjects.iter().map(|it| nodes.records(it)).sum();
        let bar = screen::count_bar(total.max(0).unsigned_abs());
        let mut verdicts = Vec::new();
        for subject in &subjects {
            bar.set_message(format!("{} {}", subject.topic, subject.partition));
            let comparison = Comparison::new(&mut nodes, subject, &bar);
            verdicts.push(comparison.run().await?);
        }
        bar.finish_and_clear();
        let report = Report::new(verdicts);
        self.cluster.output.print(&report, || report.text(self.all))?;
        if report.differ > 0 {
            let plural = if report.differ == 1 { " differs" } else { "s differ" };
            bail!("{} partition{plural}", report.differ);
        }
        Ok(())
    }
}

impl Report {
    fn new(partitions: Vec<Verdict>) -> Self {
        let count = |state| partitions.iter().filter(|it| it.state == state).count();
        Self {
            identical: count(State::Identical),
            differ: count(State::Differs),
            not_compared: count(State::NotCompared),
            bytes: partitions.iter().map(|it| it.bytes).sum(),
            partitions,
        }
    }

    fn text(&self, all: bool) -> String {
        let mut text = String::new();
        let mut table = Table::new(&["TOPIC", "PARTITION", "OFFSETS", "NODES", "STATE"]);
        let listed = |it: &&Verdict| all || it.state != State::Identical;
        let listed: Vec<_> = self.partitions.iter().filter(listed).collect();
        for it in &listed {
            let offsets = (it.end > it.start).then(|| format!("{}-{}", it.start, it.end - 1));
            let (offsets, nodes) = (or_dash(offsets), screen::list(&it.nodes));
            table.row(&[&it.topic, &it.partition, &offsets, &nodes, &it.words()]);
        }
        if !listed.is_empty() {
            text.push_str(&table.render());
            text.push('\n');
        }
        for it in &self.partitions {
            let Some(difference) = &it.difference else { continue };
            let Difference { from, to, nodes } = difference;
            let offsets = if to - from > 1 {
                format!("offsets {from}-{}", to - 1)
            } else {
                format!("offset {from}")
            };
            let mut line = |line: String| {
                text.push_str(&line);
                text.push('\n');
            };
            line(format!("{} {}, first difference at {offsets}:", it.topic, it.partition));
            for node in nodes {
                let mark = if node.odd { "  <-" } else { "" };
                let NodeDigest { node, bytes, digest, segments, damage, .. } = node;
                let mut what = format!(
                    "  node {node}: {}, digest {digest}{mark}",
                    screen::count(*bytes, "byte")
                );
                if !segments.is_empty() {
                    write!(what, "  (a segment begins at {})", segments[0])
                        .expect("a string takes all");
                }
                if let Some(damage) = damage {
                    write!(what, "\n    {damage}").expect("a string takes all");
                }
                line(what);
            }
            line(String::new());
        }
        let Self { identical, differ, not_compared, bytes, partitions } = self;
        let count = screen::count(partitions.len(), "partition");
        let differ = if *differ == 1 { "1 differs".into() } else { format!("{differ} differ") };
        writeln!(
            text,
            "{count}: {identical} identical, {differ}, {not_compared} not compared; \
             {} of each replica",
            screen::bytes(*bytes as f64)
        )
        .expect("a string takes all");
        text
    }
}
