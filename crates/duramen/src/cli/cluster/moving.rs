//! `duramen cluster move`: moves partitions between nodes.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use clap::{ArgGroup, Args};
use duramen_client::{Client, Error, NodeId, Reassignment};
use indicatif::ProgressBar;
use serde::Serialize;

use super::overview::{Overview, Partition};
use crate::cli::bootstrap::Cluster;
use crate::cli::missing::{has_not, no_such_topic};
use crate::cli::screen::{self, Table};
use crate::cli::usage::{demand, joined, topic_name, whole};

/// Interval at which the command checks the moves.
const POLL: Duration = Duration::from_millis(250);
/// Time after which a move that is neither under way nor done counts as cancelled. A node that has not heard of a new
/// move yet reports neither.
const UNTOLD_MAX: Duration = Duration::from_secs(10);
/// Interval at which the command looks for nodes that are down while it waits.
const LOOK: Duration = Duration::from_secs(5);
/// Longest time that a node gets to respond.
pub(super) const PATIENCE: Duration = Duration::from_secs(15);

#[derive(Debug, Args)]
#[command(
    group = ArgGroup::new("what").required(true).multiple(true),
    after_help = "With --to, the command moves the partitions of --topic to these nodes. If the nodes are as many as a
partition has replicas, each node gets one. With several partitions, the nodes take turns as the
first replica, the preferred leader. If the nodes are more, replicas on one of them stay, and the
command spreads the others over racks and nodes as for new topics. The number of replicas does not
change; `duramen topic alter --replication-factor` changes it.

With --from, the command moves every replica off a node, or only those of --topic. They go to the
other nodes, or to those of --to; other replicas stay. `duramen cluster remove` begins with the same
moves.

Producers and consumers go on. A new replica counts once it has a copy of the log; then the old
replica is deleted. An interrupt does not stop the moves under way. To move the rest, run the
command again; to cancel the moves, use --cancel.

Examples:
  duramen cluster move --topic orders --to 1,2,3 --dry-run
  duramen cluster move --topic orders --partition 0 --to 3,1,2     # node 3 leads it then
  duramen cluster move --from 4
  duramen cluster move --from 4 --to 5                             # node 5 takes its place
  duramen cluster move --cancel"
)]
pub(super) struct MoveCommand {
    /// Partitions of this topic; may be repeated
    #[arg(long = "topic", short, value_name = "TOPIC", value_parser = topic_name)]
    topics: Vec<String>,
    /// Only this partition of it; may be repeated
    #[arg(long = "partition", short, value_name = "P", requires = "topics", value_parser = clap::value_parser!(i32).range(0..))]
    partitions: Vec<i32>,
    /// Nodes that get the partitions
    #[arg(long, value_name = "NODE,...", value_delimiter = ',', group = "what")]
    to: Vec<NodeId>,
    /// Node that loses its partitions; may be several
    #[arg(long, value_name = "NODE,...", value_delimiter = ',', group = "what")]
    from: Vec<NodeId>,
    /// Cancel the moves under way: all, or those of --topic
    #[arg(long, conflicts_with_all = ["to", "from", "at_once", "no_wait"], group = "what")]
    cancel: bool,
    /// Most partitions under way at once
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = whole::<usize>)]
    at_once: usize,
    /// Start all moves at once, and do not wait for their end
    #[arg(long, conflicts_with = "at_once")]
    no_wait: bool,
    /// Only show the moves
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    cluster: Cluster,
}

/// Move of a partition to other nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Move {
    pub topic: String,
    pub partition: i32,
    /// Nodes of the replicas now, or after an earlier move that is still under way.
    pub before: Vec<NodeId>,
    /// Nodes of the replicas after the move, the preferred leader first.
    pub after: Vec<NodeId>,
    /// True once the replicas are on the nodes of `after`, in this order.
    pub done: bool,
}

impl Move {
    fn is_of(&self, partition: &Partition) -> bool {
        self.topic == partition.topic && self.partition == partition.index
    }

    fn is_there(&self, partition: &Partition) -> bool {
        self.is_of(partition) && self.after == partition.replicas
    }

    /// Returns the nodes that get a replica.
    fn gaining(&self) -> impl Iterator<Item = NodeId> {
        self.after.iter().copied().filter(|id| !self.before.contains(id))
    }

    /// Tells whether the move copies data. Another order of the same replicas copies none.
    pub(super) fn copies(&self) -> bool {
        self.gaining().next().is_some()
    }

    fn wish(&self) -> Reassignment {
        let replicas = Some(self.after.clone());
        Reassignment { topic: self.topic.clone(), partition: self.partition, replicas }
    }
}

impl MoveCommand {
    /// Makes a command that moves everything off one node.
    pub(super) fn off(node: NodeId, cluster: Cluster) -> Self {
        Self {
            topics: Vec::new(),
            partitions: Vec::new(),
            to: Vec::new(),
            from: vec![node],
            cancel: false,
            at_once: 1,
            no_wait: false,
            dry_run: true,
            cluster,
        }
    }

    pub(super) async fn run(self) -> anyhow::Result<()> {
        self.check()?;
        let client = self.cluster.connect_within(PATIENCE).await?;
        if self.cancel {
            return self.cancel(&client).await;
        }
        let overview = Overview::gather(&client).await?;
        let mut moves = self.plan(&overview)?;
        let began = Instant::now();
        if !self.dry_run && !moves.is_empty() {
            if self.no_wait {
                begin(&client, &moves).await?;
            } else {
                carry_out(&client, &mut moves, self.at_once.max(1)).await?;
            }
        }
        let empty = "nothing to move: every replica is on its target node";
        self.cluster.output.print_list(&moves, empty, table)?;
        if self.cluster.json() || moves.is_empty() {
            return Ok(());
        }
        let partitions = screen::count(moves.len(), "partition");
        eprintln!(
            "{}",
            if self.dry_run {
                format!("{partitions} would move; nothing was changed")
            } else if self.no_wait {
                format!("{partitions} under way; see `duramen cluster status`")
            } else {
                format!("{partitions} moved in {:.1} s", began.elapsed().as_secs_f64())
            }
        );
        Ok(())
    }

    /// Refuses a command line that names no move, or a contradiction.
    fn check(&self) -> anyhow::Result<()> {
        demand(
            self.cancel || !self.topics.is_empty() || !self.from.is_empty(),
            "name the partitions to move: --topic TOPIC, or --from NODE",
        )?;
        for id in &self.to {
            let times = self.to.iter().filter(|other| *other == id).count();
            demand(times == 1, &format!("node {id} is named twice in --to; name each node once"))?;
            demand(
                !self.from.contains(id),
                &format!("node {id} is both in --to and in --from; choose one"),
            )?;
        }
        Ok(())
    }

    /// Refuses missing topics and partitions.
    fn check_topics(&self, partitions: &[Partition]) -> anyhow::Result<()> {
        for name in &self.topics {
            let of_topic = partitions.iter().filter(|it| it.topic == *name);
            let there: Vec<i32> = of_topic.map(|it| it.index).collect();
            if there.is_empty() {
                return Err(no_such_topic(name));
            }
            for partition in &self.partitions {
                ensure!(there.contains(partition), has_not(name, &there, *partition));
            }
        }
        Ok(())
    }

    pub(super) fn plan(&self, overview: &Overview) -> anyhow::Result<Vec<Move>> {
        for id in self.to.iter().chain(&self.from) {
            let is_known = overview.nodes.contains_key(id);
            ensure!(is_known, "there is no node {id}; {}", there(overview));
        }
        for id in &self.to {
            let node = &overview.nodes[id];
            ensure!(node.answers || node.is_live, "node {id} is down: nothing would arrive there");
        }
        self.check_topics(&overview.partitions)?;
        let is_chosen = |partition: &Partition| {
            (self.topics.is_empty() || self.topics.contains(&partition.topic))
                && (self.partitions.is_empty() || self.partitions.contains(&partition.index))
        };
        let chosen: Vec<_> = overview.partitions.iter().filter(|it| is_chosen(it)).collect();
        let is_one = chosen.len() == 1;
        let up = overview.nodes.iter().filter(|(_, node)| node.answers || node.is_live);
        let up: BTreeSet<NodeId> = up.map(|(id, _)| *id).collect();
        let mut load = overview.load();
        let mut moves = Vec::new();
        for partition in chosen {
            let before = overview.placement(partition);
            let what = || format!("partition {} of topic {}", partition.index, partition.topic);
            let factor = before.len();
            let after = if self.from.is_empty() {
                ensure!(
                    self.to.len() >= factor,
                    "{} has {}, and --to names {}; `duramen topic alter {} --replication-factor {}` gives it fewer",
                    what(),
                    screen::count(factor, "replica"),
                    screen::count(self.to.len(), "node"),
                    partition.topic,
                    self.to.len()
                );
                if self.to.len() == factor {
                    let mut after = self.to.clone();
                    if !is_one {
                        let at = usize::try_from(partition.index).unwrap_or(0);
                        after.rotate_left(at % factor);
                    }
                    load.replace(&before, &after);
                    after
                } else {
                    let allowed = self.to.iter().copied().collect();
                    load.fit(&before, &allowed, factor).with_context(what)?
                }
            } else if before.iter().any(|id| self.from.contains(id)) {
                // Other nodes keep their replicas, also a node that is down: this command does not repair.
                let others =
                    if self.to.is_empty() { &up } else { &self.to.iter().copied().collect() };
                let mut allowed: BTreeSet<NodeId> = others.iter().chain(&before).copied().collect();
                allowed.retain(|id| !self.from.contains(id));
                load.fit(&before, &allowed, factor).with_context(what)?
            } else {
                continue;
            };
            if after != before {
                let (topic, partition) = (partition.topic.clone(), partition.index);
                moves.push(Move { topic, partition, before, after, done: false });
            }
        }
        Ok(moves)
    }

    async fn cancel(self, client: &Client) -> anyhow::Result<()> {
        self.check_topics(&placements(client, self.topics.iter().map(String::as_str)).await?)?;
        let moving = client.moving().await?;
        let is_chosen = |(topic, partition): &&(String, i32)| {
            (self.topics.is_empty() || self.topics.contains(topic))
                && (self.partitions.is_empty() || self.partitions.contains(partition))
        };
        let chosen = moving.keys().filter(is_chosen);
        let wishes: Vec<_> = chosen
            .map(|(topic, partition)| Reassignment {
                topic: topic.clone(),
                partition: *partition,
                replicas: None,
            })
            .collect();
        let row = |wish: &Reassignment| {
            let it = &moving[&(wish.topic.clone(), wish.partition)];
            let stays = it.replicas.iter().filter(|id| !it.adding.contains(id));
            Move {
                topic: wish.topic.clone(),
                partition: wish.partition,
                before: it.target(),
                after: stays.copied().collect(),
                done: !self.dry_run,
            }
        };
        let rows: Vec<_> = wishes.iter().map(row).collect();
        if !self.dry_run && !wishes.is_empty() {
            taken(client.reassign(&wishes).await?)?;
        }
        self.cluster.output.print_list(&rows, "no such move is under way", table)?;
        if self.cluster.json() || rows.is_empty() {
            return Ok(());
        }
        let verb = if self.dry_run { "would be cancelled" } else { "cancelled" };
        eprintln!("{} {verb}", screen::count(rows.len(), "move"));
        Ok(())
    }
}

pub(super) fn there(overview: &Overview) -> String {
    let ids: Vec<_> = overview.nodes.keys().map(ToString::to_string).collect();
    format!("the nodes are {}", ids.join(", "))
}

/// Makes a table with a row for each move.
pub(crate) fn table(moves: &[Move]) -> Table {
    let mut table = Table::new(&["TOPIC", "PARTITION", "FROM", "TO"]);
    for it in moves {
        let (from, to) = (screen::list(&it.before), screen::list(&it.after));
        table.row(&[&it.topic, &it.partition, &from, &to]);
    }
    table
}

async fn begin(client: &Client, moves: &[Move]) -> anyhow::Result<()> {
    let wishes: Vec<_> = moves.iter().map(Move::wish).collect();
    taken(client.reassign(&wishes).await?)
}

/// Fails with the refused moves. The others go on, and the status shows them.
fn taken(told: Vec<(Reassignment, Result<(), Error>)>) -> anyhow::Result<()> {
    let asked = told.len();
    let failures: Vec<anyhow::Error> =
        told.into_iter().filter_map(|(_, taken)| taken.err()).map(Into::into).collect();
    let others = asked - failures.len();
    let outcome = joined(asked, failures);
    if others == 0 {
        return outcome;
    }
    outcome.with_context(|| {
        let others = screen::count(others, "other partition");
        format!("not all is moved ({others} under way, see `duramen cluster status`)")
    })
}

/// Nodes that a wait for moves has found silent.
#[derive(Debug, Default)]
pub(super) struct Silence {
    looked: Option<Instant>,
    said: BTreeSet<NodeId>,
}

impl Silence {
    /// Says on stderr which nodes are down that get a replica by these moves, each once. The moves wait for them.
    pub(super) async fn look(
        &mut self,
        client: &Client,
        moves: &[&Move],
        bar: &ProgressBar,
    ) -> anyhow::Result<()> {
        let began = *self.looked.get_or_insert_with(Instant::now);
        if began.elapsed() < LOOK {
            return Ok(());
        }
        self.looked = Some(Instant::now());
        let nodes = client.nodes().await?.nodes;
        let is_up = |id: &NodeId| nodes.iter().any(|it| it.broker_id == *id && !it.is_fenced);
        let down: BTreeSet<NodeId> = moves.iter().flat_map(|it| it.gaining()).collect();
        for id in down.into_iter().filter(|id| !is_up(id)) {
            if self.said.insert(id) {
                bar.suspend(|| {
                    eprintln!(
                        "node {id} is down, and moves to it wait: start it, or interrupt and use `duramen cluster move --cancel`"
                    );
                });
            }
        }
        Ok(())
    }
}

/// Moves partitions, some at a time, and waits for the end of all moves.
pub(crate) async fn carry_out(
    client: &Client,
    moves: &mut [Move],
    at_once: usize,
) -> anyhow::Result<()> {
    let bar = screen::count_bar(moves.len() as u64);
    let mut waiting: VecDeque<usize> = (0..moves.len()).collect();
    // First time at which each move was neither under way nor done.
    let mut under_way: BTreeMap<usize, Option<Instant>> = BTreeMap::new();
    let mut silence = Silence::default();
    while !waiting.is_empty() || !under_way.is_empty() {
        let room = at_once.saturating_sub(under_way.len()).min(waiting.len());
        if room > 0 {
            let next: Vec<usize> = waiting.drain(..room).collect();
            let begun: Vec<Move> = next.iter().map(|at| moves[*at].clone()).collect();
            begin(client, &begun).await?;
            under_way.extend(next.into_iter().map(|at| (at, None)));
        }
        tokio::time::sleep(POLL).await;
        let open: Vec<&Move> = under_way.keys().map(|at| &moves[*at]).collect();
        silence.look(client, &open, &bar).await?;
        let moving = client.moving().await?;
        let is_moving = |it: &Move| moving.contains_key(&(it.topic.clone(), it.partition));
        let still: Vec<usize> =
            under_way.keys().copied().filter(|at| !is_moving(&moves[*at])).collect();
        if still.is_empty() {
            for since in under_way.values_mut() {
                *since = None;
            }
            continue;
        }
        let there = placements(client, still.iter().map(|at| moves[*at].topic.as_str())).await?;
        for at in still {
            let it = &mut moves[at];
            if there.iter().any(|partition| it.is_there(partition)) {
                it.done = true;
                under_way.remove(&at);
                bar.inc(1);
                continue;
            }
            let is_gone = !there.iter().any(|partition| it.is_of(partition));
            let since = under_way.entry(at).or_default().get_or_insert_with(Instant::now);
            if is_gone || since.elapsed() > UNTOLD_MAX {
                bar.abandon();
                let why = if is_gone {
                    "was deleted"
                } else {
                    "is no longer moving: somebody cancelled the move"
                };
                bail!("partition {} of topic {} {why}", it.partition, it.topic);
            }
        }
    }
    bar.finish_and_clear();
    Ok(())
}

async fn placements<'a>(
    client: &Client,
    topics: impl Iterator<Item = &'a str>,
) -> anyhow::Result<Vec<Partition>> {
    let names: BTreeSet<&str> = topics.collect();
    let names: Vec<&str> = names.into_iter().collect();
    let mut there = Vec::new();
    if names.is_empty() {
        return Ok(there);
    }
    for topic in client.metadata(Some(&names), false).await?.topics {
        let name = topic.name.unwrap_or_default();
        there.extend(
            topic
                .partitions
                .iter()
                .map(|row| Partition { leader: None, ..Partition::of(&name, topic.topic_id, row) }),
        );
    }
    Ok(there)
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use duramen_protocol::wire::Uuid;

    use super::super::overview::Node;
    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        command: MoveCommand,
    }

    fn plan(overview: &Overview, line: &str) -> anyhow::Result<Vec<(i32, Vec<NodeId>)>> {
        let words = ["move"].into_iter().chain(line.split_whitespace());
        let command = Line::try_parse_from(words)?.command;
        command.check()?;
        Ok(command.plan(overview)?.into_iter().map(|it| (it.partition, it.after)).collect())
    }

    fn overview(replicas: &[&[NodeId]]) -> Overview {
        let node = |id: NodeId| Node {
            address: String::new(),
            rack: None,
            is_live: id != 5,
            answers: id != 5,
        };
        let partition = |(index, replicas): (i32, &&[NodeId])| Partition {
            topic: "t".into(),
            topic_id: Uuid::ZERO,
            index,
            leader: None,
            replicas: replicas.to_vec(),
            in_sync: Vec::new(),
            is_confirmed: false,
        };
        Overview {
            cluster_id: String::new(),
            nodes: (1..=5).map(|id| (id, node(id))).collect(),
            partitions: (0..).zip(replicas).map(partition).collect(),
            moving: BTreeMap::new(),
        }
    }

    #[test]
    fn named_nodes_take_turns_in_leading_and_one_partition_is_as_it_was_said() {
        let there = overview(&[&[1, 2], &[1, 2], &[2, 1]]);
        let planned = plan(&there, "--topic t --to 3,4").expect("possible");
        assert_eq!(planned, [(0, vec![3, 4]), (1, vec![4, 3]), (2, vec![3, 4])]);
        let planned = plan(&there, "--topic t --partition 1 --to 3,4").expect("possible");
        assert_eq!(planned, [(1, vec![3, 4])]);
        assert_eq!(plan(&there, "--topic t -p 0 --to 1,2").expect("possible"), []);
        let planned = plan(&there, "--topic t -p 0 --to 1,3,4").expect("possible");
        assert_eq!(planned, [(0, vec![1, 3])], "what may stay stays");
    }

    #[test]
    fn a_node_is_emptied_and_the_others_keep_what_they_have() {
        let there = overview(&[&[4, 1], &[1, 2], &[2, 5], &[3, 4]]);
        let planned = plan(&there, "--from 4").expect("possible");
        assert_eq!(planned, [(0, vec![3, 1]), (3, vec![3, 1])]);
        let planned = plan(&there, "--from 4,5 --to 3").expect_err("two on one node");
        assert!(planned.to_string().contains("partition 3 of topic t"), "{planned:#}");
        let planned = plan(&there, "--from 5 --to 3").expect("possible");
        assert_eq!(planned, [(2, vec![2, 3])]);
    }

    #[test]
    fn what_cannot_be_meant_is_refused_with_a_hint() {
        let there = overview(&[&[1, 2]]);
        let refused = |line: &str| format!("{:#}", plan(&there, line).expect_err("refused"));
        assert!(refused("--topic t --to 1").contains("--replication-factor 1"));
        assert!(refused("--topic t --to 1,9").contains("the nodes are 1, 2, 3, 4, 5"));
        assert!(refused("--topic t --to 1,5").contains("node 5 is down"));
        assert!(refused("--topic t --to 1,1").contains("named twice"));
        assert!(refused("--topic u --to 1,2").contains("no topic u"));
        assert!(refused("--topic t -p 7 --to 1,2").contains("topic t has partition 0 alone"));
        assert!(refused("--to 1,2").contains("--topic TOPIC, or --from NODE"));
        let both = refused("--topic t --to 1 --from 1");
        assert!(both.contains("choose one"), "{both}");
        let nothing = refused("--topic t");
        assert!(nothing.contains("--to <NODE,...>|--from <NODE,...>|--cancel"), "{nothing}");
    }
}
