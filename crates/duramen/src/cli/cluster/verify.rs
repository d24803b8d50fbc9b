//! `duramen cluster verify`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::Duration;

use anyhow::bail;
use clap::Args;
use duramen_protocol::ErrorCode;
use serde::Serialize;

use super::overview::Overview;
use crate::cli::bootstrap::Cluster;
use crate::cli::explained;
use crate::cli::screen::{self, Table};
use crate::cli::usage::topic_name;
use crate::client::NodeId;

mod comparing;

use comparing::{Comparison, Nodes, Subject};

/// How long a node may take to answer; one that is frozen holds up the others once.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Debug, Args)]
#[command(
    after_help = "Replicas of a partition are files of the same bytes. Every node that holds one makes digests (XXH3,
128 bits) of the batches as they lie in its segments, up to what all of them know to be committed, a
few megabytes at a time; these are compared, and so is where segments begin. What compaction left is
compared record by record, once all replicas have done the same one. All is read again, whatever was
checked before. Producers, consumers and retention go on meanwhile. The cluster's own topics and its
metadata are compared, too.

A partition is identical, or it differs: then the first batch that does is found, and what each node
has there. Or it is not compared, wholly or in part: a node does not answer, is behind, or there is
one replica only. A replica that has what nobody else has is marked (<-): most likely it is the one
that is wrong. One that says that it is damaged is.

The exit code is 1 if something differs, and 0 if nothing does of what could be compared.

Examples:
  duramen cluster verify
  duramen cluster verify --topic orders --topic audit --all
  duramen cluster verify --output json | jq '.partitions[] | select(.state != \"identical\")'"
)]
pub(super) struct Verify {
    /// Only this topic; may be repeated
    #[arg(long = "topic", short, value_name = "TOPIC", value_parser = topic_name)]
    topics: Vec<String>,
    /// List the partitions that are identical, too; JSON has all of them anyway
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
    /// Of one replica of each partition.
    bytes: i64,
    partitions: Vec<Verdict>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum State {
    Identical,
    Differs,
    NotCompared,
}

/// What is known of a partition afterwards.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Verdict {
    topic: String,
    partition: i32,
    state: State,
    /// The offsets that were compared, and found to be the same.
    start: i64,
    end: i64,
    bytes: i64,
    /// The nodes whose replicas were compared.
    nodes: Vec<NodeId>,
    /// The nodes that were left out, and why.
    left_out: BTreeMap<NodeId, String>,
    difference: Option<Difference>,
}

/// The first batch that differs.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Difference {
    from: i64,
    /// One past its last offset.
    to: i64,
    nodes: Vec<NodeDigest>,
}

/// What a node has there.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct NodeDigest {
    node: NodeId,
    bytes: i64,
    digest: String,
    /// The segments that begin there.
    segments: Vec<i64>,
    /// It is damaged whatever others have: so, and there.
    damage: Option<String>,
    /// It is damaged, or most others have the same and it has not.
    odd: bool,
}

impl Verify {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let client = self.cluster.connect_within(PATIENCE).await?;
        let overview = Overview::gather(&client).await?;
        let mut subjects: Vec<Subject> = Vec::new();
        for partition in &overview.partitions {
            if self.topics.is_empty() || self.topics.contains(&partition.topic) {
                subjects.push(Subject {
                    topic: partition.topic.clone(),
                    topic_id: partition.topic_id,
                    partition: partition.index,
                    nodes: partition.replicas.clone(),
                });
            }
        }
        let metadata = duramen_broker::METADATA_TOPIC;
        if self.topics.is_empty() || self.topics.iter().any(|name| name == metadata) {
            subjects.push(Subject::metadata(&client).await?);
        }
        for name in &self.topics {
            if subjects.iter().all(|it| it.topic != *name) {
                let text = format!(
                    "there is no topic {name}; see which there are with `duramen topic list`"
                );
                return Err(explained(ErrorCode::UnknownTopicOrPartition, text));
            }
        }
        let nodes: BTreeSet<NodeId> = subjects.iter().flat_map(|it| it.nodes.clone()).collect();
        // Who did not answer just now is not waited for again.
        let answers = |id: &NodeId| overview.nodes.get(id).is_some_and(|node| node.answers);
        let silent = nodes.iter().copied().filter(|id| !answers(id)).collect();
        let mut nodes = Nodes::new(client, nodes, silent);
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
        if self.cluster.json() {
            screen::print_json(&report)?;
        } else {
            screen::print_line(report.text(self.all).trim_end())?;
        }
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
            table.row([
                it.topic.clone(),
                it.partition.to_string(),
                if it.end > it.start { format!("{}-{}", it.start, it.end - 1) } else { "-".into() },
                screen::list(&it.nodes),
                it.words(),
            ]);
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

impl Verdict {
    fn words(&self) -> String {
        let state = match self.state {
            State::Identical => "identical",
            State::Differs => "differs",
            State::NotCompared if self.nodes.len() > 1 => "in part",
            State::NotCompared => "not compared",
        };
        let left_out = self.left_out.iter().map(|(id, why)| format!("node {id}: {why}"));
        let left_out: Vec<_> = left_out.collect();
        if left_out.is_empty() { state.into() } else { format!("{state}; {}", left_out.join("; ")) }
    }
}
