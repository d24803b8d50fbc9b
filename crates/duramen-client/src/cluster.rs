//! Nodes, the metadata's keepers, and where replicas are and are to be.

use std::collections::BTreeMap;

use duramen_protocol::error_code::ErrorCode;
use duramen_protocol::messages::alter_partition_reassignments::{
    ReassignablePartition, ReassignableTopic,
};
use duramen_protocol::messages::describe_cluster::DescribeClusterBroker;
use duramen_protocol::messages::describe_quorum::{
    RequestPartitionData, RequestTopicData, ResponsePartitionData,
};
use duramen_protocol::messages::elect_leaders::TopicPartitions;
use duramen_protocol::messages::{
    AlterPartitionReassignmentsRequest, DescribeClusterRequest, DescribeQuorumRequest,
    ElectLeadersRequest, ListPartitionReassignmentsRequest, UnregisterBrokerRequest,
};

use crate::admin::ADMIN_TIMEOUT_MS;
use crate::client::Client;
use crate::error::Error;
use crate::node_id::NodeId;

/// The log that the cluster keeps its metadata in.
const METADATA_TOPIC: &str = "__cluster_metadata";
/// The first version of `DescribeCluster` that tells of nodes which are not heard.
const FIRST_WITH_FENCED: i16 = 2;

/// The type of an election that makes the first replica the leader.
const PREFERRED: i8 = 0;

/// The nodes of a cluster.
#[derive(Debug, Clone)]
pub struct Nodes {
    /// The cluster's id.
    pub cluster_id: String,
    /// All that are registered, where the broker tells of those that are not heard; the others else.
    pub nodes: Vec<DescribeClusterBroker>,
}

/// A partition that is being moved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Moving {
    /// Nodes that have, or get, a replica.
    pub replicas: Vec<NodeId>,
    /// Nodes that get a replica.
    pub adding: Vec<NodeId>,
    /// Nodes that lose their replica.
    pub removing: Vec<NodeId>,
}

impl Moving {
    /// Returns the nodes that the partition is to be on.
    pub fn target(&self) -> Vec<NodeId> {
        let stay = self.replicas.iter().filter(|id| !self.removing.contains(id));
        stay.copied().collect()
    }
}

/// A partition that is to be elsewhere, or where it was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reassignment {
    /// Its topic.
    pub topic: String,
    /// Its number.
    pub partition: i32,
    /// The nodes that it is to be on, the preferred leader first; `None` takes an earlier wish back.
    pub replicas: Option<Vec<NodeId>>,
}

impl Client {
    /// Returns the nodes, those included that were not heard lately, where the broker tells of them.
    pub async fn nodes(&self) -> Result<Nodes, Error> {
        self.retry(async || {
            let connection = self.any().await?;
            let version = connection.version::<DescribeClusterRequest>(i16::MAX)?;
            let request = DescribeClusterRequest {
                include_fenced_brokers: version >= FIRST_WITH_FENCED,
                ..DescribeClusterRequest::default()
            };
            let response = connection.call(&request).await?;
            let message = response.error_message.as_deref();
            Error::check(|| "cluster".into(), response.error_code, message)?;
            let brokers = response.brokers.iter();
            self.learn(brokers.map(|it| (it.broker_id, it.host.as_str(), it.port))).await;
            Ok(Nodes { cluster_id: response.cluster_id, nodes: response.brokers })
        })
        .await
    }

    /// Describes the metadata quorum: its leader, its voters and observers, and their progress as offsets.
    pub async fn quorum(&self) -> Result<ResponsePartitionData, Error> {
        let partitions = vec![RequestPartitionData { partition_index: 0 }];
        let topics = vec![RequestTopicData { topic_name: METADATA_TOPIC.into(), partitions }];
        let request = DescribeQuorumRequest { topics };
        let what = || "the metadata's keepers".to_owned();
        self.retry(async || {
            let response = self.any().await?.call(&request).await?;
            Error::check(what, response.error_code, response.error_message.as_deref())?;
            let rows = response.topics.into_iter().flat_map(|topic| topic.partitions);
            let row = Error::first(rows, what)?;
            Error::check(what, row.error_code, row.error_message.as_deref())?;
            Ok(row)
        })
        .await
    }

    /// Unregisters a node: it has no part in the cluster any more, and never has again. It has no replicas then, and
    /// may be stopped. The answer that there is no such node is as good: an earlier try may have had its answer lost.
    pub async fn unregister(&self, node: NodeId) -> Result<(), Error> {
        let request = UnregisterBrokerRequest { broker_id: node };
        self.retry(async || {
            let response = self.any().await?.call(&request).await?;
            let message = response.error_message.as_deref();
            if response.error_code == ErrorCode::BrokerIdNotRegistered.code() {
                return Ok(());
            }
            Error::check(|| format!("node {node}"), response.error_code, message)
        })
        .await
    }

    /// Returns all partitions that are being moved, by topic and number.
    pub async fn moving(&self) -> Result<BTreeMap<(String, i32), Moving>, Error> {
        let request = ListPartitionReassignmentsRequest {
            timeout_ms: ADMIN_TIMEOUT_MS,
            ..ListPartitionReassignmentsRequest::default()
        };
        let response = self
            .retry(async || {
                let response = self.any().await?.call(&request).await?;
                let message = response.error_message.as_deref();
                Error::check(|| "reassignments".into(), response.error_code, message)?;
                Ok(response)
            })
            .await?;
        let mut moving = BTreeMap::new();
        for topic in response.topics {
            for row in topic.partitions {
                let it = Moving {
                    replicas: row.replicas,
                    adding: row.adding_replicas,
                    removing: row.removing_replicas,
                };
                moving.insert((topic.name.clone(), row.partition_index), it);
            }
        }
        Ok(moving)
    }

    /// Asks for other replicas of partitions, or takes that back. Returns each request with the answer of the
    /// controller.
    pub async fn reassign(
        &self,
        wanted: &[Reassignment],
    ) -> Result<Vec<(Reassignment, Result<(), Error>)>, Error> {
        let mut by_topic: BTreeMap<&str, Vec<ReassignablePartition>> = BTreeMap::new();
        for it in wanted {
            let row = ReassignablePartition {
                partition_index: it.partition,
                replicas: it.replicas.clone(),
            };
            by_topic.entry(&it.topic).or_default().push(row);
        }
        let topics = by_topic
            .into_iter()
            .map(|(name, partitions)| ReassignableTopic { name: name.to_owned(), partitions });
        let request = AlterPartitionReassignmentsRequest {
            timeout_ms: ADMIN_TIMEOUT_MS,
            topics: topics.collect(),
            ..AlterPartitionReassignmentsRequest::default()
        };
        let response = self
            .retry(async || {
                let response = self.controller().await?.call(&request).await?;
                let message = response.error_message.as_deref();
                Error::check(|| "reassignments".into(), response.error_code, message)?;
                Ok(response)
            })
            .await?;
        let mut told = BTreeMap::new();
        for topic in response.responses {
            for row in topic.partitions {
                told.insert((topic.name.clone(), row.partition_index), row);
            }
        }
        let outcome = |it: &Reassignment| {
            let what = || format!("partition {} of topic {}", it.partition, it.topic);
            match told.get(&(it.topic.clone(), it.partition)) {
                Some(row) => Error::check(what, row.error_code, row.error_message.as_deref()),
                None => Err(Error::refused(what(), ErrorCode::UnknownServerError.code(), None)),
            }
        };
        Ok(wanted.iter().map(|it| (it.clone(), outcome(it))).collect())
    }

    /// Has the preferred leaders of these partitions lead them, and waits for that. Returns the partitions whose
    /// preferred leader does not lead, each with the reason.
    pub async fn elect_preferred(
        &self,
        partitions: &[(String, i32)],
    ) -> Result<Vec<((String, i32), Error)>, Error> {
        let mut by_topic: BTreeMap<&str, Vec<i32>> = BTreeMap::new();
        for (topic, partition) in partitions {
            by_topic.entry(topic).or_default().push(*partition);
        }
        let topics = by_topic
            .into_iter()
            .map(|(topic, partitions)| TopicPartitions { topic: topic.to_owned(), partitions });
        let request = ElectLeadersRequest {
            election_type: PREFERRED,
            topic_partitions: Some(topics.collect()),
            timeout_ms: ADMIN_TIMEOUT_MS,
        };
        let response = self
            .retry(async || {
                let response = self.controller().await?.call(&request).await?;
                Error::check(|| "elections".into(), response.error_code, None)?;
                Ok(response)
            })
            .await?;
        let mut failures = Vec::new();
        for topic in response.replica_election_results {
            for row in topic.partition_result {
                let what = || format!("partition {} of topic {}", row.partition_id, topic.topic);
                let code = Some(row.error_code)
                    .filter(|code| *code != ErrorCode::ElectionNotNeeded.code());
                let message = row.error_message.as_deref();
                if let Err(error) = Error::check(what, code.unwrap_or(0), message) {
                    failures.push(((topic.topic.clone(), row.partition_id), error));
                }
            }
        }
        Ok(failures)
    }
}
