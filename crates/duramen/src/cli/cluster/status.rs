//! `duramen cluster status`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use clap::Args;
use duramen_protocol::messages::DescribeLogDirsRequest;
use duramen_protocol::messages::describe_quorum::{ReplicaState, ResponsePartitionData};
use serde::Serialize;

use super::overview::{Node, Overview, Partition};
use crate::cli::bootstrap::Cluster;
use crate::cli::screen::{self, Table};
use crate::client::{Client, NodeId};

/// How long a node may take to answer; one that is frozen holds up the others for so long.
const PATIENCE: Duration = Duration::from_secs(5);
/// Partitions that need attention and are listed one by one.
const LISTED_MAX: usize = 50;

#[derive(Debug, Args)]
#[command(
    after_help = "The state of a node: live (it answered), no answer (the others hear it, but it did not answer
here), or down (the others have not heard it for a few seconds). LEADS and REPLICAS count
partitions, SIZE is what they take of its disk, FREE what the disk has left. METADATA is its part
in keeping the cluster's metadata.

A partition is under-replicated if a replica lacks what was committed a moment ago, and moving
until its replicas are where they are to be. Without a leader it takes nothing in.

Examples:
  duramen cluster status
  duramen cluster status --bootstrap 10.0.0.1:9092,10.0.0.2:9092
  duramen cluster status --output json | jq '.partitions'
  watch duramen cluster status"
)]
pub(super) struct Status {
    #[command(flatten)]
    cluster: Cluster,
}

#[derive(Debug, Serialize)]
struct Report {
    cluster_id: String,
    nodes: Vec<NodeReport>,
    /// Absent where nobody says.
    #[serde(skip_serializing_if = "Option::is_none")]
    metadata: Option<Metadata>,
    partitions: Totals,
    /// Partitions that are not as they should be.
    attention: Vec<Attention>,
}

#[derive(Debug, Serialize)]
struct NodeReport {
    node: NodeId,
    address: String,
    rack: Option<String>,
    state: &'static str,
    leads: usize,
    replicas: usize,
    bytes: Option<i64>,
    disk_total: Option<i64>,
    disk_free: Option<i64>,
    metadata: Option<&'static str>,
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
    /// One past the last entry that it has; absent if that is not known.
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
    replicas: Vec<NodeId>,
    in_sync: Vec<NodeId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    moving_to: Option<Vec<NodeId>>,
    under_replicated: bool,
}

/// What a node's disk has.
#[derive(Debug, Clone, Copy)]
struct Disk {
    bytes: i64,
    total: Option<i64>,
    free: Option<i64>,
}

impl Status {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let client = self.cluster.connect_within(PATIENCE).await?;
        let overview = Overview::gather(&client).await?;
        // An old broker, or a cluster whose metadata nobody leads, says nothing of it; the rest is worth showing.
        let quorum = client.quorum().await.ok();
        let disks = disks(&client, &overview.nodes).await;
        let report = Report::new(overview, quorum.as_ref(), &disks);
        if self.cluster.json() {
            return screen::print_json(&report);
        }
        Ok(screen::print_line(report.text().trim_end())?)
    }
}

async fn disks(client: &Client, nodes: &BTreeMap<NodeId, Node>) -> BTreeMap<NodeId, Disk> {
    let mut disks = BTreeMap::new();
    for id in nodes.iter().filter(|(_, node)| node.answers).map(|(id, _)| *id) {
        let request = DescribeLogDirsRequest::default();
        let Ok(connection) = client.node(id).await else { continue };
        let Ok(answer) = connection.call(&request).await else { continue };
        let known = |figure: i64| (figure >= 0).then_some(figure);
        let partitions = answer.results.iter().flat_map(|dir| &dir.topics);
        let partitions = partitions.flat_map(|topic| &topic.partitions);
        disks.insert(
            id,
            Disk {
                bytes: partitions.map(|partition| partition.partition_size).sum(),
                total: answer.results.first().and_then(|dir| known(dir.total_bytes)),
                free: answer.results.first().and_then(|dir| known(dir.usable_bytes)),
            },
        );
    }
    disks
}

impl NodeReport {
    fn new(
        id: NodeId,
        node: &Node,
        partitions: &[Partition],
        disk: Option<&Disk>,
        metadata: Option<&'static str>,
    ) -> Self {
        Self {
            node: id,
            address: node.address.clone(),
            rack: node.rack.clone(),
            state: match (node.answers, node.is_live) {
                (true, _) => "live",
                (false, true) => "no answer",
                (false, false) => "down",
            },
            leads: partitions.iter().filter(|it| it.leader == Some(id)).count(),
            replicas: partitions.iter().filter(|it| it.replicas.contains(&id)).count(),
            bytes: disk.map(|disk| disk.bytes),
            disk_total: disk.and_then(|disk| disk.total),
            disk_free: disk.and_then(|disk| disk.free),
            metadata,
        }
    }
}

impl Report {
    fn new(
        overview: Overview,
        quorum: Option<&ResponsePartitionData>,
        disks: &BTreeMap<NodeId, Disk>,
    ) -> Self {
        let role = |id: NodeId| {
            let quorum = quorum?;
            let has = |members: &[ReplicaState]| members.iter().any(|it| it.replica_id == id);
            if quorum.leader_id == id {
                Some("leader")
            } else if has(&quorum.current_voters) {
                Some("voter")
            } else {
                has(&quorum.observers).then_some("observer")
            }
        };
        let node = |(id, node): (&NodeId, &Node)| {
            NodeReport::new(*id, node, &overview.partitions, disks.get(id), role(*id))
        };
        let nodes = overview.nodes.iter().map(node).collect();
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
        let mut totals = Totals { total: overview.partitions.len(), ..Totals::default() };
        let mut attention = Vec::new();
        for partition in overview.partitions {
            let key = (partition.topic.clone(), partition.index);
            let moving = overview.moving.get(&key);
            // Those that are being added lack everything at first; that is no failure.
            let expected = partition
                .replicas
                .iter()
                .filter(|id| moving.is_none_or(|moving| !moving.adding.contains(id)));
            let under_replicated = expected.into_iter().any(|id| !partition.in_sync.contains(id));
            totals.without_leader += usize::from(partition.leader.is_none());
            totals.under_replicated += usize::from(under_replicated);
            totals.moving += usize::from(moving.is_some());
            if under_replicated || moving.is_some() || partition.leader.is_none() {
                attention.push(Attention {
                    topic: partition.topic,
                    partition: partition.index,
                    leader: partition.leader,
                    replicas: partition.replicas,
                    in_sync: partition.in_sync,
                    moving_to: moving.map(crate::client::Moving::target),
                    under_replicated,
                });
            }
        }
        Self { cluster_id: overview.cluster_id, nodes, metadata, partitions: totals, attention }
    }

    fn text(&self) -> String {
        let mut text = format!("cluster {}\n", self.cluster_id);
        let headings =
            ["NODE", "ADDRESS", "RACK", "STATE", "LEADS", "REPLICAS", "SIZE", "FREE", "METADATA"];
        let mut table = Table::new(&headings);
        let size = |bytes: Option<i64>| {
            bytes.map_or_else(|| "-".to_owned(), |bytes| screen::bytes(bytes as f64))
        };
        for node in &self.nodes {
            table.row([
                node.node.to_string(),
                node.address.clone(),
                node.rack.clone().unwrap_or_else(|| "-".to_owned()),
                node.state.to_owned(),
                node.leads.to_string(),
                node.replicas.to_string(),
                size(node.bytes),
                size(node.disk_free),
                node.metadata.unwrap_or("-").to_owned(),
            ]);
        }
        text.push_str(&table.render());
        text.push('\n');
        text.push_str(&self.metadata_text());
        let Totals { total, without_leader, under_replicated, moving } = self.partitions;
        let plural = if total == 1 { "" } else { "s" };
        if self.attention.is_empty() {
            let all = if total == 0 { "" } else { ", all led and fully replicated" };
            writeln!(text, "{total} partition{plural}{all}").expect("a string takes all");
            return text;
        }
        writeln!(
            text,
            "{total} partition{plural}: {without_leader} without leader, {under_replicated} under-replicated, \
             {moving} moving\n"
        )
        .expect("a string takes all");
        let mut table =
            Table::new(&["TOPIC", "PARTITION", "LEADER", "REPLICAS", "IN SYNC", "STATE"]);
        for it in self.attention.iter().take(LISTED_MAX) {
            table.row([
                it.topic.clone(),
                it.partition.to_string(),
                it.leader.map_or_else(|| "-".to_owned(), |id| id.to_string()),
                screen::list(&it.replicas),
                screen::list(&it.in_sync),
                it.state(),
            ]);
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
        let members = |all: &[Member]| all.iter().map(member).collect::<Vec<_>>().join(", ");
        let mut text = format!(
            "{leader}, {} records committed; voters {}",
            metadata.committed,
            members(&metadata.voters)
        );
        if !metadata.observers.is_empty() {
            write!(text, "; observers {}", members(&metadata.observers))
                .expect("a string takes all");
        }
        text.push('\n');
        text
    }
}

impl Attention {
    fn state(&self) -> String {
        let mut words = Vec::new();
        if self.leader.is_none() {
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
    use crate::client::Moving;
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

    #[test]
    fn a_report_reads_well() {
        let state = |replica_id, log_end_offset| ReplicaState {
            replica_id,
            log_end_offset,
            ..ReplicaState::default()
        };
        let quorum = ResponsePartitionData {
            leader_id: 1,
            leader_epoch: 4,
            high_watermark: 120,
            current_voters: vec![state(1, 120), state(2, 100), state(3, -1)],
            ..ResponsePartitionData::default()
        };
        let disk = Disk { bytes: 2048, total: Some(8192), free: Some(4096) };
        let report = Report::new(overview(), Some(&quorum), &BTreeMap::from([(1, disk)]));
        let expected = "cluster abc\n\
             NODE  ADDRESS         RACK  STATE      LEADS  REPLICAS  SIZE     FREE     METADATA\n   \
             1  127.0.0.1:9092     -  live           3         4  2.0 KiB  4.0 KiB  leader\n   \
             2  127.0.0.1:9093     -  no answer      0         4  -        -        voter\n   \
             3  127.0.0.1:9094     -  down           0         4  -        -        voter\n\
             \n\
             node 1 leads the metadata in term 4, 120 records committed; voters 1, 2 (20 behind), 3\n\
             4 partitions: 1 without leader, 2 under-replicated, 1 moving\n\
             \n\
             TOPIC   PARTITION  LEADER  REPLICAS  IN SYNC  STATE\n\
             orders          1       1  1,2,3     1,2      under-replicated\n\
             orders          2       -  1,2,3              no leader\n\
             orders          3       1  1,2,3     1,2      moving to 2,3\n";
        assert_eq!(report.text(), expected);
    }
}
