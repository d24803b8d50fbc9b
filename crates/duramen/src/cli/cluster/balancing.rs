//! `duramen cluster balance`: spreads replicas and preferred leaders over the nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::Args;
use duramen_client::{Client, NodeId};
use duramen_protocol::messages::DescribeLogDirsRequest;
use serde::Serialize;

use super::moving::{self, Move, Silence};
use super::overview::{Overview, Partition};
use crate::cli::bootstrap::Cluster;
use crate::cli::missing::no_such_topic;
use crate::cli::screen::{self, Table};
use crate::cli::usage::{joined, topic_name, whole};
use plan::{Replicas, Why};

mod plan;
mod throttle;

/// Interval at which the command looks for the end of moves that others began, and for leaders.
const POLL: Duration = Duration::from_millis(250);
/// Most looks at a cluster in which a partition is between two leaders.
const LOOKS_MAX: usize = 8;

#[derive(Debug, Args)]
#[command(
    after_help = "Run it after nodes have joined, and after `duramen cluster survive`. Without --execute the command
only shows its plan: which replicas go from which nodes to which, the bytes to copy, and the
replicas, preferred leaders and bytes of each node before and after. WHY is one of:

  racks      replicas of the partition share a rack, and another rack has fewer
  replicas   a node has more replicas than another one
  leaders    a node is the preferred leader of more partitions than another one; only the order of
             the replicas changes, and no data moves

The command evens out numbers of replicas, then numbers of preferred leaders, and moves few bytes:
the smallest partitions that help. A partition keeps its number of replicas, each on a node of its
own, in no fewer racks. A node that is down gets nothing, and partitions with a replica there stay
as they are; `duramen cluster remove` takes replicas off a lost node. The internal topics take part.
The voters of the metadata need no balance: the cluster itself chooses up to three of its nodes.

With --execute the command waits for moves that are under way, plans, moves the partitions, and has
the preferred leaders lead. Producers and consumers go on. After an interrupt, the moves under way
go on; run the command again to do the rest. `duramen cluster move --cancel` takes moves back.

--throttle sets Kafka's settings for throttled replication, and removes them in the end. An
interrupt leaves them: run the command again with --throttle.

Examples:
  duramen cluster balance
  duramen cluster balance --execute --throttle 20000000     # 20 MB/s a node
  duramen cluster balance --execute --topic orders --max-moves 10"
)]
pub(super) struct Balance {
    /// Carry the plan out
    #[arg(long)]
    execute: bool,
    /// Change only partitions of this topic; may be repeated. The others count as load
    #[arg(long = "topic", short, value_name = "TOPIC", value_parser = topic_name)]
    topics: Vec<String>,
    /// Most partitions that get a replica on another node
    #[arg(long, value_name = "N", value_parser = whole::<usize>)]
    max_moves: Option<usize>,
    /// Most partitions under way at once
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = whole::<usize>, requires = "execute")]
    at_once: usize,
    /// Most bytes a second that each node sends, and receives, for the moves
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u64).range(1..=i64::MAX as u64), requires = "execute")]
    throttle: Option<u64>,
    #[command(flatten)]
    cluster: Cluster,
}

/// Change of a partition, with its price and its reason.
#[derive(Debug, Serialize)]
struct Row {
    #[serde(flatten)]
    change: Move,
    /// Bytes to copy to new replicas.
    bytes: u64,
    why: Why,
}

/// Figure of a node now, and once the plan is carried out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
struct Shift {
    before: u64,
    after: u64,
}

impl Shift {
    fn text(self, write: impl Fn(u64) -> String) -> String {
        let Self { before, after } = self;
        if before == after {
            return write(before);
        }
        format!("{} -> {}", write(before), write(after))
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
struct NodeRow {
    node: NodeId,
    rack: Option<String>,
    /// False if the node is left out, because it does not respond.
    is_up: bool,
    replicas: Shift,
    /// Partitions whose preferred leader is the node.
    leaders: Shift,
    bytes: Shift,
}

#[derive(Debug, Serialize)]
struct Report {
    moves: Vec<Row>,
    nodes: Vec<NodeRow>,
    /// Partitions that stay: a replica is on a node that is down, nobody leads them, or a move is under way.
    held: usize,
    /// Partitions that another node than the preferred leader leads.
    elections: usize,
    executed: bool,
}

/// Sizes of replicas in bytes, by topic and partition: on each node that responds.
type Sizes = BTreeMap<(String, i32), BTreeMap<NodeId, u64>>;

impl Balance {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let client = self.cluster.connect_within(moving::PATIENCE).await?;
        let began = Instant::now();
        if self.execute {
            self.wait_for_others(&client).await?;
        }
        let overview = settled(&client).await?;
        let sizes = sizes(&client, &overview).await?;
        let mut report = self.plan(&overview, &sizes)?;
        let mut failures = Vec::new();
        if self.execute {
            self.carry_out(&client, &overview, &mut report).await?;
            failures = self.elect(&client, &mut report).await?;
            report.executed = true;
        }
        self.cluster.output.print(&report, || report.text())?;
        if !self.cluster.json() {
            eprintln!("{}", report.summary(began.elapsed()));
        }
        let asked = report.elections;
        joined(asked, failures).context("not every preferred leader leads: run the command again")
    }

    fn is_chosen(&self, topic: &str) -> bool {
        self.topics.is_empty() || self.topics.iter().any(|it| it == topic)
    }

    /// Waits for the end of moves that somebody began earlier: this command, before it was interrupted, or another one.
    async fn wait_for_others(&self, client: &Client) -> anyhow::Result<()> {
        let mut moving = client.moving().await?;
        if moving.is_empty() {
            return Ok(());
        }
        let moves: Vec<Move> = moving
            .iter()
            .map(|((topic, partition), it)| Move {
                topic: topic.clone(),
                partition: *partition,
                before: it.replicas.iter().filter(|id| !it.adding.contains(id)).copied().collect(),
                after: it.target(),
                done: false,
            })
            .collect();
        if let Some(rate) = self.throttle {
            let nodes: Vec<NodeId> =
                client.nodes().await?.nodes.iter().map(|it| it.broker_id).collect();
            throttle::begin(client, rate, &nodes, &moves).await?;
        }
        eprintln!("waiting for {} under way", screen::count(moves.len(), "move"));
        let bar = screen::count_bar(moves.len() as u64);
        let mut silence = Silence::default();
        while !moving.is_empty() {
            tokio::time::sleep(POLL).await;
            moving = client.moving().await?;
            let is_moving = |it: &&Move| moving.contains_key(&(it.topic.clone(), it.partition));
            let still: Vec<&Move> = moves.iter().filter(is_moving).collect();
            bar.set_position((moves.len() - still.len()) as u64);
            silence.look(client, &still, &bar).await?;
        }
        bar.finish_and_clear();
        Ok(())
    }

    fn plan(&self, overview: &Overview, sizes: &Sizes) -> anyhow::Result<Report> {
        for name in &self.topics {
            let is_there = overview.partitions.iter().any(|it| it.topic == *name);
            ensure!(is_there, no_such_topic(name));
        }
        let sites: BTreeMap<NodeId, Option<String>> =
            up(overview).map(|(id, rack)| (id, rack.cloned())).collect();
        let size = |partition: &Partition| {
            let of = sizes.get(&(partition.topic.clone(), partition.index));
            let led = partition.leader.and_then(|leader| of?.get(&leader).copied());
            led.or_else(|| of?.values().max().copied()).unwrap_or(0)
        };
        let is_held = |partition: &Partition| {
            let key = (partition.topic.clone(), partition.index);
            let is_elsewhere = partition.replicas.iter().any(|id| !sites.contains_key(id));
            is_elsewhere || partition.leader.is_none() || overview.moving.contains_key(&key)
        };
        let replicas = |partition: &Partition| Replicas {
            nodes: overview.placement(partition),
            bytes: size(partition),
            is_free: self.is_chosen(&partition.topic) && !is_held(partition),
        };
        let there: Vec<Replicas> = overview.partitions.iter().map(replicas).collect();
        let changes = plan::plan(&sites, &there, self.max_moves.unwrap_or(usize::MAX));
        let mut after: Vec<&[NodeId]> = there.iter().map(|it| &*it.nodes).collect();
        let mut moves = Vec::new();
        for change in &changes {
            let (partition, before) = (&overview.partitions[change.at], &there[change.at]);
            after[change.at] = &change.after;
            let new = change.after.iter().filter(|id| !before.nodes.contains(id)).count();
            let change_of = Move {
                topic: partition.topic.clone(),
                partition: partition.index,
                before: before.nodes.clone(),
                after: change.after.clone(),
                done: false,
            };
            let bytes = before.bytes.saturating_mul(new as u64);
            moves.push(Row { change: change_of, bytes, why: change.why });
        }
        let nodes = node_rows(overview, sizes, &there, &after);
        let held = overview.partitions.iter().filter(|it| is_held(it)).count();
        let firsts =
            overview.partitions.iter().zip(&after).filter(|(it, _)| self.is_chosen(&it.topic));
        let is_led_elsewhere = |(it, after): &(&Partition, &&[NodeId])| {
            let first = after.first().filter(|id| sites.contains_key(id));
            it.leader.is_some() && first.is_some_and(|id| it.leader != Some(*id))
        };
        let elections = firsts.filter(is_led_elsewhere).count();
        Ok(Report { moves, nodes, held, elections, executed: false })
    }

    /// Moves the partitions, throttled if the user asked for that.
    async fn carry_out(
        &self,
        client: &Client,
        overview: &Overview,
        report: &mut Report,
    ) -> anyhow::Result<()> {
        let nodes: Vec<NodeId> = overview.nodes.keys().copied().collect();
        let mut moves: Vec<Move> = report.moves.iter().map(|row| row.change.clone()).collect();
        if let Some(rate) = self.throttle.filter(|_| moves.iter().any(Move::copies)) {
            throttle::begin(client, rate, &nodes, &moves).await?;
        }
        moving::carry_out(client, &mut moves, self.at_once.max(1)).await?;
        if self.throttle.is_some() {
            let topics = overview.partitions.iter().map(|it| it.topic.as_str()).collect();
            throttle::end(client, &nodes, &topics).await?;
        }
        for (row, change) in report.moves.iter_mut().zip(moves) {
            row.change = change;
        }
        Ok(())
    }

    /// Has preferred leaders lead. Returns the failures.
    async fn elect(
        &self,
        client: &Client,
        report: &mut Report,
    ) -> anyhow::Result<Vec<anyhow::Error>> {
        let overview = settled(client).await?;
        let sites: BTreeSet<NodeId> = up(&overview).map(|(id, _)| id).collect();
        let is_due = |it: &&Partition| {
            let first = it.replicas.first();
            let is_elsewhere = it.leader.is_some() && it.leader.as_ref() != first;
            self.is_chosen(&it.topic) && is_elsewhere && first.is_some_and(|id| sites.contains(id))
        };
        let due = overview.partitions.iter().filter(is_due);
        let due: Vec<(String, i32)> = due.map(|it| (it.topic.clone(), it.index)).collect();
        report.elections = due.len();
        if due.is_empty() {
            return Ok(Vec::new());
        }
        let failures = client.elect_preferred(&due).await?;
        Ok(failures.into_iter().map(|(_, error)| error.into()).collect())
    }
}

/// Returns the nodes that take part, with their racks: they respond to this command, and others hear them.
fn up(overview: &Overview) -> impl Iterator<Item = (NodeId, Option<&String>)> {
    let up = overview.nodes.iter().filter(|(_, node)| node.answers && node.is_live);
    up.map(|(id, node)| (*id, node.rack.as_ref()))
}

/// Looks at the cluster, and again if some partition is between two leaders.
async fn settled(client: &Client) -> anyhow::Result<Overview> {
    let mut looks = 0;
    loop {
        let overview = Overview::gather(client).await?;
        let up: BTreeSet<NodeId> = up(&overview).map(|(id, _)| id).collect();
        let is_between =
            |it: &Partition| it.leader.is_none() && it.replicas.iter().all(|id| up.contains(id));
        looks += 1;
        if looks == LOOKS_MAX || !overview.partitions.iter().any(is_between) {
            return Ok(overview);
        }
        tokio::time::sleep(POLL).await;
    }
}

/// Asks all nodes for the sizes of their replicas. A node that does not respond is left out.
async fn sizes(client: &Client, overview: &Overview) -> anyhow::Result<Sizes> {
    let mut sizes = Sizes::new();
    let asked = overview.nodes.iter().filter(|(_, node)| node.answers).map(|(id, _)| {
        let (client, id) = (client.clone(), *id);
        let ask =
            async move { client.node(id).await?.call(&DescribeLogDirsRequest::default()).await };
        (id, tokio::spawn(ask))
    });
    for (id, answer) in asked.collect::<Vec<_>>() {
        let Ok(answer) = answer.await? else { continue };
        for topic in answer.results.into_iter().flat_map(|dir| dir.topics) {
            for row in topic.partitions {
                let bytes = u64::try_from(row.partition_size).unwrap_or(0);
                sizes
                    .entry((topic.name.clone(), row.partition_index))
                    .or_default()
                    .insert(id, bytes);
            }
        }
    }
    Ok(sizes)
}

fn node_rows(
    overview: &Overview,
    sizes: &Sizes,
    there: &[Replicas],
    after: &[&[NodeId]],
) -> Vec<NodeRow> {
    let row = |(id, node): (&NodeId, &super::overview::Node)| {
        let (rack, is_up) = (node.rack.clone(), node.answers && node.is_live);
        (*id, NodeRow { node: *id, rack, is_up, ..NodeRow::default() })
    };
    let mut rows: BTreeMap<NodeId, NodeRow> = overview.nodes.iter().map(row).collect();
    for ((partition, it), after) in overview.partitions.iter().zip(there).zip(after) {
        let of = sizes.get(&(partition.topic.clone(), partition.index));
        let here = |id: &NodeId| of.and_then(|of| of.get(id)).copied();
        for id in &it.nodes {
            let Some(row) = rows.get_mut(id) else { continue };
            row.replicas.before += 1;
            row.bytes.before += here(id).unwrap_or(0);
        }
        for id in *after {
            let Some(row) = rows.get_mut(id) else { continue };
            row.replicas.after += 1;
            let is_new = !it.nodes.contains(id);
            row.bytes.after += if is_new { it.bytes } else { here(id).unwrap_or(0) };
        }
        for (first, is_after) in [(it.nodes.first(), false), (after.first(), true)] {
            let Some(row) = first.and_then(|id| rows.get_mut(id)) else { continue };
            let count = if is_after { &mut row.leaders.after } else { &mut row.leaders.before };
            *count += 1;
        }
    }
    rows.into_values().collect()
}

impl Report {
    fn text(&self) -> String {
        let mut nodes = Table::new(&["NODE", "RACK", "REPLICAS", "LEADERS", "BYTES"]);
        let number = |count: u64| count.to_string();
        #[expect(clippy::cast_precision_loss, reason = "it is rounded anyway")]
        let size = |bytes: u64| screen::bytes(bytes as f64);
        for row in &self.nodes {
            let node = format!("{}{}", row.node, if row.is_up { "" } else { " (down)" });
            let rack = screen::or_dash(row.rack.as_ref());
            let (replicas, leaders) = (row.replicas.text(number), row.leaders.text(number));
            nodes.row(&[&node, &rack, &replicas, &leaders, &row.bytes.text(size)]);
        }
        if self.moves.is_empty() {
            return nodes.render();
        }
        let mut moves = Table::new(&["TOPIC", "PARTITION", "FROM", "TO", "BYTES", "WHY"]);
        for Row { change, bytes, why } in &self.moves {
            let (from, to) = (screen::list(&change.before), screen::list(&change.after));
            let why = match why {
                Why::Racks => "racks",
                Why::Replicas => "replicas",
                Why::Leaders => "leaders",
            };
            moves.row(&[&change.topic, &change.partition, &from, &to, &size(*bytes), &why]);
        }
        format!("{}\n{}", nodes.render(), moves.render())
    }

    /// Says in a line or two what the plan amounts to.
    fn summary(&self, time: Duration) -> String {
        let moved = self.moves.iter().filter(|row| row.change.copies()).count();
        let ordered = self.moves.len() - moved;
        let sum: u64 = self.moves.iter().map(|row| row.bytes).sum();
        #[expect(clippy::cast_precision_loss, reason = "it is rounded anyway")]
        let sum = screen::bytes(sum as f64);
        let (partitions, orders) =
            (screen::count(moved, "partition"), screen::count(ordered, "partition"));
        let elections = screen::count(self.elections, "leader");
        let mut text = if self.moves.is_empty() && self.elections == 0 {
            "the cluster is balanced: nothing to do".to_owned()
        } else if self.executed {
            let time = time.as_secs_f64();
            format!(
                "{partitions} moved ({sum}), {orders} reordered, {elections} elected, in {time:.1} s"
            )
        } else {
            format!(
                "{partitions} would move ({sum}), {orders} be reordered, {elections} be elected; nothing was changed: do it with --execute"
            )
        };
        if self.held > 0 {
            let held = screen::count(self.held, "partition");
            text.push('\n');
            text.push_str(&held);
            text.push_str(" left out: a replica is on a node that is down, nobody leads, or a move is under way");
        }
        text
    }
}

#[cfg(test)]
mod tests;
