//! `duramen cluster status`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use anyhow::bail;
use clap::Args;
use duramen_client::{Client, NodeId};
use duramen_protocol::messages::describe_quorum::{ReplicaState, ResponsePartitionData};
use duramen_protocol::messages::describe_replicas::DescribedStretch;
use duramen_protocol::messages::{DescribeLogDirsRequest, DescribeReplicasRequest};
use jiff::Timestamp;
use serde::Serialize;

use super::overview::{Node, Overview, Partition};
use super::stretches::{self, Stretch};
use crate::cli::bootstrap::Cluster;
use crate::cli::screen::{self, Table, or_dash};

/// Longest time that a node gets to respond. A frozen node delays the command by this time.
const PATIENCE: Duration = Duration::from_secs(5);
/// Pause before a second look. A leadership that moves during the first look shows on no node.
const SECOND_LOOK: Duration = Duration::from_millis(500);
const LIVE: &str = "live";
/// Smallest difference from most nodes' clocks of a clock called odd, in milliseconds. Nodes accept a difference below
/// ten minutes.
const ODD_CLOCK_MS_MIN: i64 = 60_000;
/// Most partitions that the command lists one by one.
const LISTED_MAX: usize = 50;

#[derive(Debug, Args)]
#[command(after_help = "The STATE of a node:
  live        the node answers
  no answer   other nodes hear the node, but it does not answer here
  not heard   the node answers here, but the node that was asked first has not heard it for 3
              seconds
  down        neither, with the time since a node last heard it, if known
A node with a full disk takes no appends. A node whose clock is far from most nodes' removes nothing
for its age. LEADS and REPLICAS count partitions, SIZE is their disk space, FREE is the free space
of the disk. METADATA is the node's role in the metadata's Raft group.

A partition is under-replicated if a replica lacks records that were committed a moment ago, or is
on a node that does not answer. It is moving until its replicas are on their new nodes. A partition
whose leader does not answer takes no appends.

Partitions that take fast appends are listed with the nodes that hold their batches. A line says
which nodes speak to which without TLS (node.security).

The last line is the verdict. A cluster is healthy if all nodes are live, their disks have room, and
their clocks agree. The metadata must have a leader, and all partitions must be led and fully
replicated. The exit code is 0 for a healthy cluster, and 1 otherwise.

Examples:
  duramen cluster status
  duramen cluster status --bootstrap 10.0.0.1:9092,10.0.0.2:9092
  duramen cluster status --output json | jq '.partitions'
  watch duramen cluster status")]
pub(super) struct Status {
    #[command(flatten)]
    cluster: Cluster,
}

#[derive(Debug, Serialize)]
struct Report {
    cluster_id: String,
    /// True if nodes, metadata and partitions have no fault.
    healthy: bool,
    /// Faults, in sentences.
    problems: Vec<String>,
    nodes: Vec<NodeReport>,
    /// Absent where no node returns it.
    metadata: Option<Metadata>,
    partitions: Totals,
    /// Partitions with a fault, and those that are moving.
    attention: Vec<Attention>,
    /// Partitions whose leader takes fast appends.
    stretches: Vec<Stretch>,
}

#[derive(Debug, Serialize)]
struct NodeReport {
    node: NodeId,
    address: String,
    rack: Option<String>,
    state: &'static str,
    /// Time since other nodes heard a node that is not live, in milliseconds, if they return it.
    silent_ms: Option<i64>,
    leads: usize,
    replicas: usize,
    bytes: Option<i64>,
    disk_total: Option<i64>,
    disk_free: Option<i64>,
    /// Free bytes that the node needs to accept appends; only while it refuses them.
    disk_needed: Option<i64>,
    /// Difference to most nodes' clocks, in milliseconds, if the node holds retention by age for it.
    clock_ahead_ms: Option<i64>,
    metadata: Option<&'static str>,
    /// Nodes that the node speaks to without TLS.
    plain_to: Vec<NodeId>,
}

#[derive(Debug, Serialize)]
struct Metadata {
    leader: Option<NodeId>,
    term: i32,
    committed: i64,
    voters: Vec<Member>,
    observers: Vec<Member>,
}

#[derive(Debug, Serialize)]
struct Member {
    node: NodeId,
    /// Log end offset of the member, absent if unknown.
    end: Option<i64>,
}

#[derive(Debug, Default, PartialEq, Eq, Serialize)]
struct Totals {
    total: usize,
    without_leader: usize,
    under_replicated: usize,
    moving: usize,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct Attention {
    topic: String,
    partition: i32,
    leader: Option<NodeId>,
    /// Leader that other nodes name, and that does not report it itself.
    leader_unconfirmed: Option<NodeId>,
    replicas: Vec<NodeId>,
    in_sync: Vec<NodeId>,
    moving_to: Option<Vec<NodeId>>,
    under_replicated: bool,
}

/// A node's report of its disk and its clock.
#[derive(Debug, Clone)]
struct Machine {
    bytes: i64,
    total: Option<i64>,
    free: Option<i64>,
    /// Free bytes that the node needs, while it refuses appends for lack of space.
    needed: Option<i64>,
    /// Difference to the clock of this machine, in milliseconds.
    ahead_ms: Option<i64>,
    /// True if too few nodes share the node's time.
    is_clock_alone: bool,
    /// Nodes that the node speaks to without TLS.
    plain_to: Vec<NodeId>,
}

impl Status {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let client = self.cluster.connect_within(PATIENCE).await?;
        let mut report = Report::gather(&client).await?;
        if !report.healthy && report.nodes.iter().all(|node| node.state == LIVE) {
            tokio::time::sleep(SECOND_LOOK).await;
            report = Report::gather(&client).await?;
        }
        self.cluster.output.print(&report, || report.text())?;
        if !report.healthy {
            bail!("the cluster is not healthy");
        }
        Ok(())
    }
}

async fn machines(
    client: &Client,
    nodes: &BTreeMap<NodeId, Node>,
) -> (BTreeMap<NodeId, Machine>, Vec<DescribedStretch>) {
    let mut machines = BTreeMap::new();
    let mut stretches = Vec::new();
    for id in nodes.iter().filter(|(_, node)| node.answers).map(|(id, _)| *id) {
        let request = DescribeLogDirsRequest::default();
        let Ok(connection) = client.node(id).await else { continue };
        let Ok(answer) = connection.call(&request).await else { continue };
        // Only Duramen's own nodes know this request.
        let told = connection.call(&DescribeReplicasRequest::default()).await.ok();
        stretches.extend(told.iter().flat_map(|told| told.stretches.clone()));
        let known = |figure: i64| (figure >= 0).then_some(figure);
        let partitions = answer.results.iter().flat_map(|dir| &dir.topics);
        let partitions = partitions.flat_map(|topic| &topic.partitions);
        let bytes = partitions.map(|partition| partition.partition_size).sum();
        let first = answer.results.first();
        let needed = told.as_ref().map_or(0, |told| told.disk_needed_bytes);
        let machine = Machine {
            bytes,
            total: first.and_then(|dir| known(dir.total_bytes)),
            free: first.and_then(|dir| known(dir.usable_bytes)),
            needed: (needed > 0).then_some(needed),
            ahead_ms: told.as_ref().map(|told| told.wall_ms - Timestamp::now().as_millisecond()),
            is_clock_alone: told.as_ref().is_some_and(|told| told.is_clock_alone),
            plain_to: told.map(|told| told.plain_nodes).unwrap_or_default(),
        };
        machines.insert(id, machine);
    }
    (machines, stretches)
}

/// Computes the median difference of the nodes' clocks to this machine's.
fn ahead_of_here_ms(machines: &BTreeMap<NodeId, Machine>) -> Option<i64> {
    let mut all: Vec<i64> = machines.values().filter_map(|it| it.ahead_ms).collect();
    all.sort_unstable();
    all.get(all.len() / 2).copied()
}

/// Returns a node's role in the metadata's Raft group.
fn role(quorum: &ResponsePartitionData, id: NodeId) -> Option<&'static str> {
    let has = |members: &[ReplicaState]| members.iter().any(|it| it.replica_id == id);
    if quorum.leader_id == id {
        Some("leader")
    } else if has(&quorum.current_voters) {
        Some("voter")
    } else {
        has(&quorum.observers).then_some("observer")
    }
}

/// Computes the time since the node that reported the quorum last heard a node, by the reporter's clock.
fn silent_ms(quorum: &ResponsePartitionData, id: NodeId) -> Option<i64> {
    let members = || quorum.current_voters.iter().chain(&quorum.observers);
    let heard = members().find(|it| it.replica_id == id)?.last_fetch_timestamp;
    let now = members().map(|it| it.last_fetch_timestamp).max()?;
    (heard > 0).then_some(now - heard)
}

/// Returns the leader of a partition, if it reports the leadership itself.
fn led_by(partition: &Partition) -> Option<NodeId> {
    partition.leader.filter(|_| partition.is_confirmed)
}

fn time(ms: i64) -> String {
    match ms / 1000 {
        s @ ..120 => format!("{s} s"),
        s @ ..7200 => format!("{} min", s / 60),
        s => format!("{} h", s / 3600),
    }
}

impl NodeReport {
    /// Lists the faults of the node.
    fn problems(&self) -> impl Iterator<Item = String> {
        [self.absence(), self.shortage(), self.odd_clock()].into_iter().flatten()
    }

    fn state_text(&self) -> String {
        let mut text = match self.silent_ms {
            Some(ms) if self.state == "down" => format!("down {}", time(ms)),
            _ => self.state.to_owned(),
        };
        if self.disk_needed.is_some() {
            text.push_str(", disk full");
        }
        if self.clock_ahead_ms.is_some() {
            text.push_str(", odd clock");
        }
        text
    }

    fn shortage(&self) -> Option<String> {
        let (free, needed) = (self.disk_free?, self.disk_needed?);
        let size = |bytes: i64| screen::bytes(bytes as f64);
        let (free, needed) = (size(free), size(needed));
        Some(format!(
            "the disk of node {} is full ({free} free, {needed} needed): it takes no appends",
            self.node
        ))
    }

    fn odd_clock(&self) -> Option<String> {
        let ahead_ms = self.clock_ahead_ms?;
        let (far, way) =
            (time(ahead_ms.saturating_abs()), if ahead_ms < 0 { "behind" } else { "ahead of" });
        Some(format!(
            "the clock of node {} is {far} {way} most nodes': nothing there is removed for its age",
            self.node
        ))
    }

    fn absence(&self) -> Option<String> {
        let id = self.node;
        let since = self.silent_ms.map(|ms| format!(", not heard for {}", time(ms)));
        match self.state {
            LIVE => None,
            "down" => Some(format!("node {id} is down{}", since.unwrap_or_default())),
            "not heard" => Some(format!("node {id} answers here, but other nodes do not hear it")),
            _ => Some(format!("node {id} does not answer")),
        }
    }

    fn new(
        id: NodeId,
        node: &Node,
        partitions: &[Partition],
        machine: Option<&Machine>,
        usual_ahead_ms: Option<i64>,
        quorum: Option<&ResponsePartitionData>,
    ) -> Self {
        let odd = machine.filter(|it| it.is_clock_alone);
        let clock_ahead_ms = odd.and_then(|it| Some(it.ahead_ms? - usual_ahead_ms?));
        let metadata = quorum.and_then(|quorum| role(quorum, id));
        let state = match (node.answers, node.is_live) {
            (true, true) => LIVE,
            (true, false) => "not heard",
            (false, true) => "no answer",
            (false, false) => "down",
        };
        let silent_ms = quorum.and_then(|quorum| silent_ms(quorum, id));
        Self {
            node: id,
            address: node.address.clone(),
            rack: node.rack.clone(),
            state,
            silent_ms: silent_ms.filter(|_| state != LIVE),
            leads: partitions.iter().filter(|it| led_by(it) == Some(id)).count(),
            replicas: partitions.iter().filter(|it| it.replicas.contains(&id)).count(),
            bytes: machine.map(|it| it.bytes),
            disk_total: machine.and_then(|it| it.total),
            disk_free: machine.and_then(|it| it.free),
            disk_needed: machine.and_then(|it| it.needed),
            // A node that has heard no other yet is alone, too.
            clock_ahead_ms: clock_ahead_ms.filter(|ms| ms.abs() >= ODD_CLOCK_MS_MIN),
            metadata,
            plain_to: machine.map(|it| it.plain_to.clone()).unwrap_or_default(),
        }
    }
}

impl Report {
    async fn gather(client: &Client) -> anyhow::Result<Self> {
        let overview = Overview::gather(client).await?;
        // An old broker does not return the quorum; the command shows the rest.
        let quorum = client.quorum().await.ok();
        let (machines, stretches) = machines(client, &overview.nodes).await;
        let stretches = stretches::named(&stretches, &overview.partitions);
        Ok(Self { stretches, ..Self::new(overview, quorum.as_ref(), &machines) })
    }

    fn new(
        overview: Overview,
        quorum: Option<&ResponsePartitionData>,
        machines: &BTreeMap<NodeId, Machine>,
    ) -> Self {
        let usual_ahead_ms = ahead_of_here_ms(machines);
        let node = |(id, node): (&NodeId, &Node)| {
            let machine = machines.get(id);
            NodeReport::new(*id, node, &overview.partitions, machine, usual_ahead_ms, quorum)
        };
        let nodes: Vec<NodeReport> = overview.nodes.iter().map(node).collect();
        let metadata = quorum.map(|quorum| {
            let member = |it: &ReplicaState| Member {
                node: it.replica_id,
                end: (it.log_end_offset >= 0).then_some(it.log_end_offset),
            };
            Metadata {
                leader: (quorum.leader_id >= 0).then_some(quorum.leader_id),
                term: quorum.leader_epoch,
                committed: quorum.high_watermark,
                voters: quorum.current_voters.iter().map(member).collect(),
                observers: quorum.observers.iter().map(member).collect(),
            }
        });
        let answers = |id: &NodeId| overview.nodes.get(id).is_some_and(|node| node.answers);
        let mut totals = Totals { total: overview.partitions.len(), ..Totals::default() };
        let mut attention = Vec::new();
        for mut partition in overview.partitions {
            let key = (partition.topic.clone(), partition.index);
            let moving = overview.moving.get(&key);
            let leader = led_by(&partition);
            // A leader notices a lost node only after a moment; the unanswered request shows it at once.
            partition.in_sync.retain(answers);
            // A replica that a move adds has no records at first. That is not a fault.
            let expected = partition
                .replicas
                .iter()
                .filter(|id| moving.is_none_or(|moving| !moving.adding.contains(id)));
            let under_replicated = expected.into_iter().any(|id| !partition.in_sync.contains(id));
            totals.without_leader += usize::from(leader.is_none());
            totals.under_replicated += usize::from(under_replicated);
            totals.moving += usize::from(moving.is_some());
            if under_replicated || moving.is_some() || leader.is_none() {
                attention.push(Attention {
                    topic: partition.topic,
                    partition: partition.index,
                    leader,
                    leader_unconfirmed: partition.leader.filter(|_| leader.is_none()),
                    replicas: partition.replicas,
                    in_sync: partition.in_sync,
                    moving_to: moving.map(duramen_client::Moving::target),
                    under_replicated,
                });
            }
        }
        let mut problems: Vec<String> = nodes.iter().flat_map(NodeReport::problems).collect();
        if metadata.as_ref().is_some_and(|it| it.leader.is_none()) {
            problems.push("nobody leads the metadata".to_owned());
        }
        problems.extend(totals.problems());
        let (cluster_id, healthy) = (overview.cluster_id, problems.is_empty());
        let (partitions, stretches) = (totals, Vec::new());
        Self { cluster_id, healthy, problems, nodes, metadata, partitions, attention, stretches }
    }

    fn text(&self) -> String {
        let mut text = format!("cluster {}\n", self.cluster_id);
        let headings =
            ["NODE", "ADDRESS", "RACK", "STATE", "LEADS", "REPLICAS", "SIZE", "FREE", "METADATA"];
        let mut table = Table::new(&headings);
        let size = |bytes: Option<i64>| or_dash(bytes.map(|bytes| screen::bytes(bytes as f64)));
        for node in &self.nodes {
            table.row(&[
                &node.node,
                &node.address,
                &node.rack.as_deref().unwrap_or("-"),
                &node.state_text(),
                &node.leads,
                &node.replicas,
                &size(node.bytes),
                &size(node.disk_free),
                &node.metadata.unwrap_or("-"),
            ]);
        }
        text.push_str(&table.render());
        text.push('\n');
        text.push_str(&self.metadata_text());
        text.push_str(&self.plain_text());
        text.push_str(&self.partitions_text());
        text.push_str(&stretches::text(&self.stretches));
        if self.healthy {
            if !self.attention.is_empty() {
                text.push_str("\nhealthy: all led and fully replicated\n");
            }
        } else {
            writeln!(text, "\nnot healthy: {}", self.problems.join("; "))
                .expect("a string takes all");
        }
        text
    }

    /// Says which nodes speak to which without TLS.
    fn plain_text(&self) -> String {
        let ways = |node: &NodeReport| node.plain_to.len();
        let all = self.nodes.iter().map(ways).sum::<usize>();
        match all {
            0 => return String::new(),
            _ if self.nodes.iter().all(|node| ways(node) + 1 == self.nodes.len()) => {
                return "no node uses TLS to another\n".to_owned();
            }
            _ => {}
        }
        let plain = self.nodes.iter().filter(|node| ways(node) > 0);
        let plain = plain.map(|node| format!("{} to {}", node.node, screen::list(&node.plain_to)));
        format!("without TLS between nodes: {}\n", plain.collect::<Vec<_>>().join("; "))
    }

    fn partitions_text(&self) -> String {
        let Totals { total, without_leader, under_replicated, moving } = self.partitions;
        let partitions = screen::count(total, "partition");
        if self.attention.is_empty() {
            let state = match total {
                0 => "",
                1 => ", led and fully replicated",
                _ => ", all led and fully replicated",
            };
            return format!("{partitions}{state}\n");
        }
        let mut text = format!(
            "{partitions}: {without_leader} without leader, {under_replicated} under-replicated, \
             {moving} moving\n\n"
        );
        let mut table =
            Table::new(&["TOPIC", "PARTITION", "LEADER", "REPLICAS", "IN SYNC", "STATE"]);
        for it in self.attention.iter().take(LISTED_MAX) {
            let (replicas, in_sync) = (screen::list(&it.replicas), screen::list(&it.in_sync));
            let leader = or_dash(it.leader);
            table.row(&[&it.topic, &it.partition, &leader, &replicas, &in_sync, &it.state()]);
        }
        text.push_str(&table.render());
        if let Some(more) = self.attention.len().checked_sub(LISTED_MAX + 1) {
            writeln!(text, "and {} more; --output json lists all", more + 1)
                .expect("a string takes all");
        }
        text
    }

    fn metadata_text(&self) -> String {
        let Some(metadata) = &self.metadata else {
            return "the metadata's leader is not known\n".to_owned();
        };
        let leader = match metadata.leader {
            Some(id) => format!("node {id} leads the metadata in term {}", metadata.term),
            None => "nobody leads the metadata".to_owned(),
        };
        let member = |it: &Member| match it.end {
            Some(end) if end < metadata.committed => {
                format!("{} ({} behind)", it.node, metadata.committed - end)
            }
            _ => it.node.to_string(),
        };
        let of =
            |all: &[Member], what: &str| format!("{what}{}", if all.len() == 1 { "" } else { "s" });
        let members = |all: &[Member]| all.iter().map(member).collect::<Vec<_>>().join(", ");
        let mut text = format!(
            "{leader}, {} committed; {} {}",
            screen::count(metadata.committed, "record"),
            of(&metadata.voters, "voter"),
            members(&metadata.voters)
        );
        if !metadata.observers.is_empty() {
            let observers = of(&metadata.observers, "observer");
            write!(text, "; {observers} {}", members(&metadata.observers))
                .expect("a string takes all");
        }
        text.push('\n');
        text
    }
}

impl Totals {
    fn problems(&self) -> impl Iterator<Item = String> {
        let count = |count: usize, what: &str| {
            (count > 0).then(|| format!("{} {what}", screen::count(count, "partition")))
        };
        let without_leader = count(self.without_leader, "without leader");
        without_leader.into_iter().chain(count(self.under_replicated, "under-replicated"))
    }
}

impl Attention {
    fn state(&self) -> String {
        let mut words = Vec::new();
        if let Some(id) = self.leader_unconfirmed {
            words.push(format!("leader {id} does not answer"));
        } else if self.leader.is_none() {
            words.push("no leader".to_owned());
        } else if self.under_replicated {
            words.push("under-replicated".to_owned());
        }
        words.extend(self.moving_to.as_ref().map(|to| format!("moving to {}", screen::list(to))));
        words.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use duramen_client::Moving;
    use duramen_protocol::wire::Uuid;

    fn overview() -> Overview {
        let node = |port: u16, is_live, answers| Node {
            address: format!("127.0.0.1:{port}"),
            rack: None,
            is_live,
            answers,
        };
        let partition = |index, leader, in_sync: &[i32]| Partition {
            topic: "orders".into(),
            topic_id: Uuid::ZERO,
            index,
            leader,
            replicas: vec![1, 2, 3],
            in_sync: in_sync.to_vec(),
            is_confirmed: true,
        };
        let moving = Moving { replicas: vec![1, 2, 3], adding: vec![3], removing: vec![1] };
        Overview {
            cluster_id: "abc".into(),
            nodes: BTreeMap::from([
                (1, node(9092, true, true)),
                (2, node(9093, true, false)),
                (3, node(9094, false, false)),
            ]),
            partitions: vec![
                partition(0, Some(1), &[1, 2, 3]),
                partition(1, Some(1), &[1, 2]),
                partition(2, None, &[]),
                partition(3, Some(1), &[1, 2]),
            ],
            moving: BTreeMap::from([(("orders".into(), 3), moving)]),
        }
    }

    fn machine() -> Machine {
        Machine {
            bytes: 2048,
            total: Some(8192),
            free: Some(4096),
            needed: None,
            ahead_ms: Some(100),
            is_clock_alone: false,
            plain_to: Vec::new(),
        }
    }

    #[test]
    fn who_speaks_without_tls_is_said() {
        let plain_to = |plain: [&[i32]; 3]| {
            let machine = |to: &[i32]| Machine { plain_to: to.to_vec(), ..machine() };
            let machines = (1..).zip(plain.map(machine)).collect();
            Report::new(overview(), None, &machines).plain_text()
        };
        assert_eq!(plain_to([&[], &[], &[]]), "");
        assert_eq!(plain_to([&[2, 3], &[1, 3], &[1, 2]]), "no node uses TLS to another\n");
        let some = "without TLS between nodes: 1 to 3; 3 to 1,2\n";
        assert_eq!(plain_to([&[3], &[], &[1, 2]]), some);
    }

    #[test]
    fn a_full_disk_and_an_odd_clock_are_marked() {
        let mut overview = overview();
        for node in overview.nodes.values_mut() {
            (node.is_live, node.answers) = (true, true);
        }
        (overview.partitions, overview.moving) = (Vec::new(), BTreeMap::new());
        let full = Machine { needed: Some(8192), ..machine() };
        let odd = Machine { ahead_ms: Some(-7_200_000), is_clock_alone: true, ..machine() };
        let machines = BTreeMap::from([(1, machine()), (2, full), (3, odd)]);
        let report = Report::new(overview.clone(), None, &machines);
        let text = report.text();
        assert!(text.contains("  live, disk full  "), "{text}");
        assert!(text.contains("  live, odd clock  "), "{text}");
        let verdict = "not healthy: the disk of node 2 is full (4.0 KiB free, 8.0 KiB needed): it takes no appends; \
             the clock of node 3 is 2 h behind most nodes': nothing there is removed for its age\n";
        assert!(text.ends_with(verdict), "{text}");

        // One that has heard nobody yet believes no clock.
        let unheard = Machine { is_clock_alone: true, ..machine() };
        let machines = BTreeMap::from([(1, unheard), (2, machine()), (3, machine())]);
        assert!(Report::new(overview, None, &machines).healthy);
    }

    #[test]
    fn a_report_reads_well() {
        let state = |replica_id, log_end_offset, last_fetch_timestamp| ReplicaState {
            replica_id,
            log_end_offset,
            last_fetch_timestamp,
            ..ReplicaState::default()
        };
        let quorum = ResponsePartitionData {
            leader_id: 1,
            leader_epoch: 4,
            high_watermark: 120,
            current_voters: vec![
                state(1, 120, 1_000_000),
                state(2, 100, 999_950),
                state(3, -1, 988_000),
            ],
            ..ResponsePartitionData::default()
        };
        let report = Report::new(overview(), Some(&quorum), &BTreeMap::from([(1, machine())]));
        let expected = "cluster abc\n\
             NODE  ADDRESS         RACK  STATE      LEADS  REPLICAS  SIZE     FREE     METADATA\n   \
             1  127.0.0.1:9092     -  live           3         4  2.0 KiB  4.0 KiB  leader\n   \
             2  127.0.0.1:9093     -  no answer      0         4  -        -        voter\n   \
             3  127.0.0.1:9094     -  down 12 s      0         4  -        -        voter\n\
             \n\
             node 1 leads the metadata in term 4, 120 records committed; voters 1, 2 (20 behind), 3\n\
             4 partitions: 1 without leader, 4 under-replicated, 1 moving\n\
             \n\
             TOPIC   PARTITION  LEADER  REPLICAS  IN SYNC  STATE\n\
             orders          0       1  1,2,3     1        under-replicated\n\
             orders          1       1  1,2,3     1        under-replicated\n\
             orders          2       -  1,2,3              no leader\n\
             orders          3       1  1,2,3     1        under-replicated, moving to 2,3\n\
             \n\
             not healthy: node 2 does not answer; node 3 is down, not heard for 12 s; \
             1 partition without leader; 4 partitions under-replicated\n";
        assert_eq!(report.text(), expected);
        assert!(!report.healthy);
    }

    #[test]
    fn a_leader_that_does_not_answer_leads_nothing() {
        let mut overview = overview();
        for node in overview.nodes.values_mut() {
            (node.is_live, node.answers) = (true, true);
        }
        overview.partitions.truncate(2);
        overview.moving.clear();
        overview.partitions[1].in_sync = vec![1, 2, 3];
        let report = Report::new(overview.clone(), None, &BTreeMap::new());
        assert!(report.healthy, "{:?}", report.problems);
        assert!(report.text().ends_with("2 partitions, all led and fully replicated\n"));

        overview.nodes.get_mut(&1).expect("there").answers = false;
        for partition in &mut overview.partitions {
            partition.is_confirmed = false;
        }
        let report = Report::new(overview, None, &BTreeMap::new());
        let expected = Totals { total: 2, without_leader: 2, under_replicated: 2, moving: 0 };
        assert_eq!(report.partitions, expected);
        assert_eq!(report.attention[0].state(), "leader 1 does not answer");
        assert_eq!(report.attention[0].in_sync, [2, 3]);
    }

    #[test]
    fn a_cluster_whose_metadata_nobody_leads_is_not_healthy() {
        let mut overview = overview();
        for node in overview.nodes.values_mut() {
            (node.is_live, node.answers) = (true, true);
        }
        (overview.partitions, overview.moving) = (Vec::new(), BTreeMap::new());
        let quorum = ResponsePartitionData { leader_id: -1, ..ResponsePartitionData::default() };
        let report = Report::new(overview, Some(&quorum), &BTreeMap::new());
        assert!(report.text().ends_with("\nnot healthy: nobody leads the metadata\n"));
    }
}
