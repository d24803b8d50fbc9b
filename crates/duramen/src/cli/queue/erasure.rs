//! `duramen queue erasure`.

use std::fmt::Write as _;
use std::time::Duration;

use clap::Args;
use duramen_client::NodeId;
use duramen_protocol::messages::describe_replicas::DescribedReplica;
use jiff::Timestamp;
use serde::Serialize;

use crate::cli::bootstrap::Cluster;
use crate::cli::cluster::overview::Overview;
use crate::cli::replicas::{Nodes, Question, Subject, words};
use crate::cli::screen::{self, Table, or_dash};
use crate::cli::usage::topic_name;

/// Longest time that a node gets to respond. A frozen node delays the command once.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Debug, Args)]
#[command(
    after_help = "Edits of queues hide records at once. Their bytes leave the disks later: a partition's leader
decides that `queue.erase.lag.ms` after the first such edit, an hour by default. Each replica then
writes anew what holds such records, when it comes to it. Records that have expired go with them, or
so long after their end. This command asks each replica.

The STATE of a replica:
  erased         its files have nothing that edits took away
  waits          edits took records away, and the leader has not decided to erase them
  behind         another replica has erased more
  names left     records are erased, and its queue index still names queues of theirs
  unknown        followed by the reason

ERASED is the offset below which nothing is left that edits below it took away. HIDDEN counts the
records that edits took away since; SINCE is the time of the first such edit. EXPIRED is the time
from which the first record that is still there is of no use: the last element of a queue stays.
Bytes can also be in the journal, on nodes that are away, in backups and with consumers: see
docs/operations.md.

To erase at once, set `queue.erase.lag.ms` of the topic to 0, and back afterwards.

Examples:
  duramen queue erasure mail
  duramen queue erasure mail --output json | jq '.replicas[] | select(.state != \"erased\")'"
)]
pub(super) struct Erasure {
    /// The topic's name
    #[arg(value_parser = topic_name)]
    topic: String,
    #[command(flatten)]
    cluster: Cluster,
}

#[derive(Debug, Serialize)]
struct Report {
    topic: String,
    /// True if no replica has anything that edits took away, as far as all have answered.
    erased: bool,
    replicas: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct Row {
    partition: i32,
    node: NodeId,
    state: State,
    erased_offset: i64,
    hidden_records: i64,
    hidden_since: Option<String>,
    /// Time from which the first record that is there is of no use, if that is over.
    expired_since: Option<String>,
    reason: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum State {
    Erased,
    Waits,
    Behind,
    NamesLeft,
    Unknown,
}

impl State {
    fn word(self) -> &'static str {
        match self {
            Self::Erased => "erased",
            Self::Waits => "waits",
            Self::Behind => "behind",
            Self::NamesLeft => "names left",
            Self::Unknown => "unknown",
        }
    }
}

impl Row {
    fn of(
        partition: i32,
        node: NodeId,
        said: &Result<DescribedReplica, String>,
        newest: i64,
    ) -> Self {
        let mut row = Self {
            partition,
            node,
            state: State::Unknown,
            erased_offset: 0,
            hidden_records: 0,
            hidden_since: None,
            expired_since: None,
            reason: None,
        };
        match said {
            Err(why) => row.reason = Some(why.clone()),
            Ok(it) if it.error_code != 0 => row.reason = Some(words(it)),
            Ok(it) => {
                row.erased_offset = it.compacted_offset;
                row.hidden_records = it.hidden_records.max(0);
                let since_ms = Some(it.hidden_since_ms).filter(|since_ms| *since_ms >= 0);
                let time = |ms| Timestamp::from_millisecond(ms).ok().map(|time| time.to_string());
                row.hidden_since = since_ms.and_then(time);
                let now_ms = Timestamp::now().as_millisecond();
                let is_over = |expires_ms: &i64| (0..=now_ms).contains(expires_ms);
                row.expired_since = Some(it.expires_ms).filter(is_over).and_then(time);
                row.state = match since_ms {
                    _ if it.compaction < newest => State::Behind,
                    Some(_) => State::Waits,
                    None if it.names_are_left => State::NamesLeft,
                    None => State::Erased,
                };
            }
        }
        row
    }
}

impl Erasure {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let client = self.cluster.connect_within(PATIENCE).await?;
        let overview = Overview::gather(&client).await?;
        let subjects = Subject::of_topic(&overview, &self.topic)?;
        let mut nodes = Nodes::new(client, &overview, &subjects);
        let mut replicas = Vec::new();
        for subject in &subjects {
            let said = nodes.ask_about(&subject.nodes, subject, Question::ERASURE, 1).await?;
            let newest = said.values().flatten().map(|it| it.compaction).max().unwrap_or(0);
            replicas.extend(
                said.iter().map(|(node, said)| Row::of(subject.partition, *node, said, newest)),
            );
        }
        let erased = replicas.iter().all(|it| it.state == State::Erased);
        let report = Report { topic: self.topic, erased, replicas };
        self.cluster.output.print(&report, || report.text())
    }
}

impl Report {
    fn text(&self) -> String {
        let headings = ["PARTITION", "NODE", "ERASED", "HIDDEN", "SINCE", "EXPIRED", "STATE"];
        let mut table = Table::new(&headings);
        for it in &self.replicas {
            let state = match &it.reason {
                Some(reason) => format!("{}: {reason}", it.state.word()),
                None => it.state.word().to_owned(),
            };
            let since = or_dash(it.hidden_since.as_ref());
            let expired = or_dash(it.expired_since.as_ref());
            let (erased, hidden) = (&it.erased_offset, &it.hidden_records);
            table.row(&[&it.partition, &it.node, erased, hidden, &since, &expired, &state]);
        }
        let mut text = table.render();
        let count = screen::count(self.replicas.len(), "replica");
        let others = self.replicas.iter().filter(|it| it.state != State::Erased).count();
        writeln!(text, "\n{count}: {} erased, {others} not", self.replicas.len() - others)
            .expect("a string takes all");
        text
    }
}
