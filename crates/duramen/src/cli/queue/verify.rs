//! `duramen queue verify`.

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::bail;
use clap::Args;
use serde::Serialize;

use crate::cli::bootstrap::Cluster;
use crate::cli::cluster::overview::Overview;
use crate::cli::replicas::{Nodes, Subject};
use crate::cli::screen::{self, Table, or_dash};
use crate::cli::usage::topic_name;

mod checking;
mod verdict;

use checking::Checking;
use verdict::{Finding, State, Verdict};

/// Longest time that a node gets to respond. A frozen node delays the command once.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Debug, Args)]
#[command(
    after_help = "Each node with a replica reads its log again, a few megabytes at a time, and compares it with its
queue index. The index has to name each batch of a queue, to have each edit, and to mask what edits
take away. It must not have an edit that the log does not have. Names of batches that are gone are
no fault. The command then compares digests of the elements that readers of the queues are shown,
by queue, position, version and content. It stops at the offset up to which all replicas have
indexed the log. It waits five seconds for replicas that are behind. Readers and writers go on
meanwhile. `duramen cluster verify` compares the logs themselves.

The STATE of a partition:
  ok             each index fits its log, and all replicas show the same elements
  faulty         followed by the faults and the first element that replicas show differently
  in part        some nodes do not answer or are behind, and the others are ok
  not checked    no replica could be checked

The exit code is 1 if a partition is faulty, and 0 if every checked partition is ok.

Examples:
  duramen queue verify mail
  duramen queue verify mail --output json | jq '.partitions[].findings[]'"
)]
pub(super) struct Verify {
    /// The topic's name
    #[arg(value_parser = topic_name)]
    topic: String,
    #[command(flatten)]
    cluster: Cluster,
}

#[derive(Debug, Serialize)]
struct Report {
    topic: String,
    ok: usize,
    faulty: usize,
    not_checked: usize,
    elements: i64,
    queues: i64,
    /// Bytes of the log that were read, of one replica of each partition.
    bytes: i64,
    partitions: Vec<Verdict>,
}

impl Verify {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let client = self.cluster.connect_within(PATIENCE).await?;
        let overview = Overview::gather(&client).await?;
        let subjects = Subject::of_topic(&overview, &self.topic)?;
        let mut nodes = Nodes::new(client, &overview, &subjects);
        nodes.describe(&subjects).await?;
        let total: i64 = subjects.iter().map(|it| nodes.records(it)).sum();
        let bar = screen::count_bar(total.max(0).unsigned_abs());
        let mut verdicts = Vec::new();
        for subject in &subjects {
            bar.set_message(format!("{} {}", subject.topic, subject.partition));
            verdicts.push(Checking::new(&mut nodes, subject, &bar).run().await?);
        }
        bar.finish_and_clear();
        let report = Report::new(self.topic, verdicts);
        self.cluster.output.print(&report, || report.text())?;
        if report.faulty > 0 {
            bail!("{} faulty", screen::count(report.faulty, "partition"));
        }
        Ok(())
    }
}

impl Report {
    fn new(topic: String, partitions: Vec<Verdict>) -> Self {
        let count = |state| partitions.iter().filter(|it| it.state == state).count();
        Self {
            topic,
            ok: count(State::Ok),
            faulty: count(State::Faulty),
            not_checked: count(State::NotChecked),
            elements: partitions.iter().map(|it| it.elements).sum(),
            queues: partitions.iter().map(|it| it.queues).sum(),
            bytes: partitions.iter().map(|it| it.bytes).sum(),
            partitions,
        }
    }

    fn text(&self) -> String {
        let headings = ["PARTITION", "OFFSETS", "ELEMENTS", "QUEUES", "NODES", "STATE"];
        let mut table = Table::new(&headings);
        for it in &self.partitions {
            let offsets = (it.end > it.start).then(|| format!("{}-{}", it.start, it.end - 1));
            let (offsets, nodes) = (or_dash(offsets), screen::list(&it.nodes));
            table.row(&[&it.partition, &offsets, &it.elements, &it.queues, &nodes, &it.words()]);
        }
        let mut text = table.render();
        text.push('\n');
        for it in &self.partitions {
            for finding in &it.findings {
                let Finding { node, queue, position, what } = finding;
                let queue = queue.as_ref().map(|queue| format!(", queue {queue}"));
                let position = position.as_ref().map(|at| format!(", position {at}"));
                let (queue, position) = (queue.unwrap_or_default(), position.unwrap_or_default());
                let place = format!("{} {}", self.topic, it.partition);
                writeln!(text, "{place}, node {node}{queue}{position}: {what}")
                    .expect("a string takes all");
            }
        }
        if self.faulty > 0 {
            text.push('\n');
        }
        let Self { ok, faulty, not_checked, elements, queues, bytes, partitions, .. } = self;
        let count = screen::count(partitions.len(), "partition");
        let (elements, queues) =
            (screen::count(*elements, "element"), screen::count(*queues, "queue"));
        writeln!(
            text,
            "{count}: {ok} ok, {faulty} faulty, {not_checked} not checked; \
             {elements} of {queues}, {} of each replica",
            screen::bytes(*bytes as f64)
        )
        .expect("a string takes all");
        text
    }
}
