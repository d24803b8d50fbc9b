//! Present state of a cluster: its nodes, and the replicas of all partitions.

use std::collections::BTreeMap;

use duramen_client::{Client, Moving, NodeId};
use duramen_protocol::messages::MetadataRequest;
use duramen_protocol::messages::metadata::{MetadataResponsePartition, MetadataResponseTopic};
use duramen_protocol::wire::Uuid;

use super::placement::Load;

/// Present state of a cluster.
#[derive(Debug, Clone)]
pub(crate) struct Overview {
    pub cluster_id: String,
    pub nodes: BTreeMap<NodeId, Node>,
    /// Partitions in the order of names and numbers.
    pub partitions: Vec<Partition>,
    pub moving: BTreeMap<(String, i32), Moving>,
}

/// Registered node.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    pub address: String,
    pub rack: Option<String>,
    /// True if the node that the client asked first has heard this one lately.
    pub is_live: bool,
    /// True if the node just responded to this command.
    pub answers: bool,
}

/// Partition as its leader reports it, or as another node does if the leader does not respond.
#[derive(Debug, Clone)]
pub(crate) struct Partition {
    pub topic: String,
    pub topic_id: Uuid,
    pub index: i32,
    pub leader: Option<NodeId>,
    pub replicas: Vec<NodeId>,
    pub in_sync: Vec<NodeId>,
    /// True if the leader itself reported this row.
    pub is_confirmed: bool,
}

impl Partition {
    /// Makes a partition as a node reports it that need not be its leader.
    pub(super) fn of(topic: &str, topic_id: Uuid, row: &MetadataResponsePartition) -> Self {
        Self {
            topic: topic.to_owned(),
            topic_id,
            index: row.partition_index,
            leader: (row.leader_id >= 0).then_some(row.leader_id),
            replicas: row.replica_nodes.clone(),
            in_sync: row.isr_nodes.clone(),
            is_confirmed: false,
        }
    }
}

impl Overview {
    /// Asks all nodes, because only the leader of a partition knows its in-sync replicas.
    pub(crate) async fn gather(client: &Client) -> anyhow::Result<Self> {
        let found = client.nodes().await?;
        let mut nodes = BTreeMap::new();
        for node in found.nodes {
            let address = client.address(node.broker_id).await?;
            let (rack, is_live) = (node.rack, !node.is_fenced);
            nodes.insert(node.broker_id, Node { address, rack, is_live, answers: false });
        }
        let mut partitions = BTreeMap::new();
        for topic in client.metadata(None, false).await?.topics {
            note(&mut partitions, &topic, None);
        }
        let request = MetadataRequest { topics: None, ..MetadataRequest::default() };
        let mut asked = Vec::new();
        for id in nodes.keys() {
            let client = client.clone();
            let (id, request) = (*id, request.clone());
            asked.push((
                id,
                tokio::spawn(async move { client.node(id).await?.call(&request).await }),
            ));
        }
        for (id, answer) in asked {
            let Ok(answer) = answer.await? else { continue };
            if let Some(node) = nodes.get_mut(&id) {
                node.answers = true;
            }
            for topic in &answer.topics {
                note(&mut partitions, topic, Some(id));
            }
        }
        let moving = client.moving().await?;
        let mut partitions: Vec<Partition> = partitions.into_values().collect();
        // A follower names the former leader until it hears of a new one. The leader's own report is reliable.
        let leads_no_more = |id: NodeId, is_confirmed: bool| {
            !is_confirmed && nodes.get(&id).is_none_or(|node| node.answers || !node.is_live)
        };
        for it in &mut partitions {
            if it.leader.is_some_and(|id| leads_no_more(id, it.is_confirmed)) {
                it.leader = None;
            }
        }
        Ok(Self { cluster_id: found.cluster_id, nodes, partitions, moving })
    }

    /// Returns the nodes of a partition, after its move if one is under way.
    pub(crate) fn placement(&self, partition: &Partition) -> Vec<NodeId> {
        let key = (partition.topic.clone(), partition.index);
        self.moving.get(&key).map_or_else(|| partition.replicas.clone(), Moving::target)
    }

    /// Counts the replicas of each node, after all moves under way.
    pub(crate) fn load(&self) -> Load {
        let mut load = Load::of_nodes(self.nodes.iter().map(|(id, node)| (*id, node.rack.clone())));
        for partition in &self.partitions {
            load.add(&self.placement(partition));
        }
        load
    }
}

/// Takes a node's report of a topic into the overview: all partitions, or only those that the node leads.
fn note(
    partitions: &mut BTreeMap<(String, i32), Partition>,
    topic: &MetadataResponseTopic,
    leader: Option<NodeId>,
) {
    let Some(name) = &topic.name else { return };
    for row in &topic.partitions {
        if leader.is_some_and(|id| row.leader_id != id) {
            continue;
        }
        let is_confirmed = leader.is_some();
        let partition = Partition { is_confirmed, ..Partition::of(name, topic.topic_id, row) };
        partitions.insert((name.clone(), row.partition_index), partition);
    }
}
