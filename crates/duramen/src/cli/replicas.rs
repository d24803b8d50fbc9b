//! Questions to all nodes about their replicas of a partition.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Context;
use duramen_client::{Client, Error, NodeId};
use duramen_protocol::error_code::ErrorCode;
use duramen_protocol::messages::DescribeReplicasRequest;
use duramen_protocol::messages::describe_replicas::{
    DescribeReplicasPartition, DescribeReplicasTopic, DescribedReplica,
};
use duramen_protocol::wire::Uuid;

use super::cluster::overview::{Overview, Partition};
use super::missing::no_such_topic;

/// Most partitions of one request that reads no records.
const DESCRIBED_AT_ONCE: usize = 1000;

/// Partition with replicas to compare.
#[derive(Debug, Clone)]
pub(super) struct Subject {
    pub topic: String,
    pub topic_id: Uuid,
    pub partition: i32,
    pub nodes: Vec<NodeId>,
}

impl Subject {
    /// Makes the subjects of a topic's partitions.
    pub(super) fn of_topic(overview: &Overview, topic: &str) -> anyhow::Result<Vec<Self>> {
        let own = overview.partitions.iter().filter(|it| it.topic == topic);
        let subjects: Vec<Self> = own.map(Self::of).collect();
        if subjects.is_empty() { Err(no_such_topic(topic)) } else { Ok(subjects) }
    }

    /// Makes the subject of a partition.
    pub(super) fn of(partition: &Partition) -> Self {
        Self {
            topic: partition.topic.clone(),
            topic_id: partition.topic_id,
            partition: partition.index,
            nodes: partition.replicas.clone(),
        }
    }

    /// Makes a subject of the metadata log.
    pub(super) async fn metadata(client: &Client) -> anyhow::Result<Self> {
        let quorum = client.quorum().await.context("cannot find the replicas of the metadata")?;
        let members = quorum.current_voters.iter().chain(&quorum.observers);
        Ok(Self {
            topic: duramen_broker::METADATA_TOPIC.to_owned(),
            topic_id: Uuid(duramen_broker::METADATA_TOPIC_ID),
            partition: 0,
            nodes: members.map(|member| member.replica_id).filter(|id| *id >= 0).collect(),
        })
    }

    fn ask(&self, question: Question) -> DescribeReplicasTopic {
        let Question { part: (from_offset, to_offset), queues_end, erasure } = question;
        let partition_index = self.partition;
        let partition = DescribeReplicasPartition {
            partition_index,
            from_offset,
            to_offset,
            queues_end,
            erasure,
        };
        DescribeReplicasTopic { topic_id: self.topic_id, partitions: vec![partition] }
    }
}

/// Question about a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Question {
    /// Offsets of which the node computes a digest; negative for none.
    pub part: (i64, i64),
    /// Offset below which edits of queues count; -1 for a digest of the log's bytes.
    pub queues_end: i64,
    /// True to ask which records edits of queues took away that are not erased.
    pub erasure: bool,
}

impl Question {
    /// Where the replica begins and ends.
    pub(super) const STATE: Self = Self { part: (-1, -1), queues_end: -1, erasure: false };
    /// The records that are hidden and not erased.
    pub(super) const ERASURE: Self = Self { erasure: true, ..Self::STATE };
}

/// A node's description of its replica, or the reason of its absence.
pub(super) type Said = Result<DescribedReplica, String>;

/// Nodes with the descriptions of their replicas.
pub(super) struct Nodes {
    client: Client,
    all: BTreeSet<NodeId>,
    /// Nodes that did not respond. The comparison does not ask them again.
    silent: BTreeMap<NodeId, String>,
    held: BTreeMap<(Uuid, i32), BTreeMap<NodeId, Said>>,
}

impl Nodes {
    /// Takes the nodes with replicas. A command does not wait again for a node that just did not respond.
    pub(super) fn new(client: Client, overview: &Overview, subjects: &[Subject]) -> Self {
        let all: BTreeSet<NodeId> = subjects.iter().flat_map(|it| it.nodes.clone()).collect();
        let answers = |id: &NodeId| overview.nodes.get(id).is_some_and(|node| node.answers);
        let why = |id| (id, "it does not answer".to_owned());
        let silent = all.iter().copied().filter(|id| !answers(id)).map(why).collect();
        Self { client, all, silent, held: BTreeMap::new() }
    }

    /// Asks all nodes to describe their replicas of all partitions.
    pub(super) async fn describe(&mut self, subjects: &[Subject]) -> anyhow::Result<()> {
        for node in self.all.clone() {
            let here: Vec<&Subject> =
                subjects.iter().filter(|it| it.nodes.contains(&node)).collect();
            for some in here.chunks(DESCRIBED_AT_ONCE) {
                let topics = some.iter().map(|subject| subject.ask(Question::STATE)).collect();
                let mut said = self.ask(&[node], topics, 0).await?;
                let said = said.remove(&node).unwrap_or_else(|| Err("it does not answer".into()));
                for (at, subject) in some.iter().enumerate() {
                    let row = match &said {
                        Ok(rows) => rows.get(at).cloned().ok_or("its answer is incomplete".into()),
                        Err(why) => Err(why.clone()),
                    };
                    let key = (subject.topic_id, subject.partition);
                    self.held.entry(key).or_default().insert(node, row);
                }
            }
        }
        Ok(())
    }

    /// Takes out the descriptions of a partition that [`Nodes::describe`] got.
    pub(super) fn take_described(&mut self, subject: &Subject) -> Option<BTreeMap<NodeId, Said>> {
        self.held.remove(&(subject.topic_id, subject.partition))
    }

    /// Number of records of a partition to compare, about.
    pub(super) fn records(&self, subject: &Subject) -> i64 {
        let held = self.held.get(&(subject.topic_id, subject.partition));
        let rows = held.into_iter().flat_map(BTreeMap::values).flatten();
        rows.map(|row| row.committed_offset - row.start_offset).max().unwrap_or(0)
    }

    /// Sends the same request to several nodes at the same time.
    async fn ask(
        &mut self,
        nodes: &[NodeId],
        topics: Vec<DescribeReplicasTopic>,
        bytes_max: i32,
    ) -> anyhow::Result<BTreeMap<NodeId, Result<Vec<DescribedReplica>, String>>> {
        let request = DescribeReplicasRequest { topics, bytes_max };
        let mut under_way = Vec::new();
        for id in nodes.iter().copied().filter(|id| !self.silent.contains_key(id)) {
            let (client, request) = (self.client.clone(), request.clone());
            let asked = tokio::spawn(async move {
                // A connection may have been closed meanwhile: try once more. A lost node fails again.
                match client.node(id).await?.call(&request).await {
                    Err(Error::Lost { .. }) => client.node(id).await?.call(&request).await,
                    outcome => outcome,
                }
            });
            under_way.push((id, asked));
        }
        let mut said = BTreeMap::new();
        for (id, asked) in under_way {
            match asked.await? {
                Ok(response) => {
                    let message = response.error_message.as_deref();
                    Error::check(|| format!("node {id}"), response.error_code, message)?;
                    let rows = response.topics.into_iter().flat_map(|topic| topic.partitions);
                    said.insert(id, Ok(rows.collect()));
                }
                Err(error @ Error::Unsupported { .. }) => {
                    return Err(anyhow::anyhow!("{error}; only Duramen's own nodes do"));
                }
                Err(error) => {
                    self.silent.insert(id, error.to_string());
                }
            }
        }
        for (id, why) in &self.silent {
            if nodes.contains(id) {
                said.insert(*id, Err(why.clone()));
            }
        }
        Ok(said)
    }

    /// Asks several nodes about a partition.
    pub(super) async fn ask_about(
        &mut self,
        nodes: &[NodeId],
        subject: &Subject,
        question: Question,
        bytes_max: i32,
    ) -> anyhow::Result<BTreeMap<NodeId, Said>> {
        let said = self.ask(nodes, vec![subject.ask(question)], bytes_max).await?;
        let one = |rows: Vec<DescribedReplica>| {
            rows.into_iter().next().ok_or_else(|| "its answer is empty".to_owned())
        };
        Ok(said.into_iter().map(|(id, rows)| (id, rows.and_then(one))).collect())
    }
}

/// Writes the reason why a node does not describe a replica.
pub(super) fn words(row: &DescribedReplica) -> String {
    let code = ErrorCode::from_code(row.error_code);
    let code = code.map_or_else(|| row.error_code.to_string(), |code| code.to_string());
    row.error_message.clone().unwrap_or(code)
}
