//! Consumer groups as an administrator sees them: which there are, who is in them, and their offsets.

use std::collections::BTreeMap;
use std::sync::Arc;

use duramen_protocol::error_code::ErrorCode;
use duramen_protocol::messages::consumer_group_describe;
use duramen_protocol::messages::consumer_protocol::{
    self, ConsumerProtocolAssignment, TopicPartition,
};
use duramen_protocol::messages::describe_groups::{DescribedGroup, DescribedGroupMember};
use duramen_protocol::messages::find_coordinator::Coordinator as FoundCoordinator;
use duramen_protocol::messages::list_groups::ListedGroup;
use duramen_protocol::messages::offset_commit::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use duramen_protocol::messages::offset_delete::{
    OffsetDeleteRequestPartition, OffsetDeleteRequestTopic,
};
use duramen_protocol::messages::offset_fetch::{
    OffsetFetchRequestGroup, OffsetFetchRequestTopic, OffsetFetchRequestTopics,
    OffsetFetchResponsePartition, OffsetFetchResponsePartitions, OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
};
use duramen_protocol::messages::{
    ConsumerGroupDescribeRequest, DeleteGroupsRequest, DescribeGroupsRequest,
    FindCoordinatorRequest, ListGroupsRequest, OffsetCommitRequest, OffsetDeleteRequest,
    OffsetFetchRequest,
};

use super::admin::missing;
use super::call::OFFSETS_BY_TOPIC_NAME;
use super::connection::{Connection, address};
use super::shares::describe_shares;
use super::{Client, Error, NodeId, Partitions};

/// Something of each partition, by topic.
pub type ByPartition<T> = BTreeMap<String, BTreeMap<i32, T>>;

/// A committed offset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Committed {
    /// The next offset to be read.
    pub offset: i64,
    /// Metadata that the consumer committed with the offset.
    pub metadata: String,
}

/// Kind of key, as `FindCoordinator` numbers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KeyType {
    Group = 0,
    Transaction = 1,
}

/// Identity under which offsets are committed.
#[derive(Debug, Clone)]
pub(super) struct Committer {
    pub(super) generation: i32,
    pub(super) member_id: String,
    pub(super) instance_id: Option<String>,
}

impl Committer {
    /// Returns the identity of a client outside of the group; accepted only while the group has no members.
    fn administrator() -> Self {
        Self { generation: -1, member_id: String::new(), instance_id: None }
    }
}

/// A group, as it is described whatever protocol its members speak.
#[derive(Debug, Clone)]
pub struct Group {
    /// Its state and members, with their partitions as assignments of the classic protocol.
    pub described: DescribedGroup,
    /// Epochs of a group of the consumer protocol, or of a share group.
    pub epochs: Option<Epochs>,
}

/// Epochs of a group of the consumer protocol, or of a share group, and of its members.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Epochs {
    /// Group epoch: the number of changes of its members or topics.
    pub group: i32,
    /// Assignment epoch: the group epoch for which the target assignment was decided.
    pub assignment: i32,
    /// Epochs of the members, by their ids.
    pub members: BTreeMap<String, i32>,
}

/// Returns a group of the consumer protocol; `None` if there is none, or the broker does not know that protocol.
async fn describe_consumers(connection: &Connection, group: &str) -> Result<Option<Group>, Error> {
    if connection.version::<ConsumerGroupDescribeRequest>(i16::MAX).is_err() {
        return Ok(None);
    }
    let request =
        ConsumerGroupDescribeRequest { group_ids: vec![group.into()], ..Default::default() };
    let response = connection.call(&request).await?;
    let what = || format!("group {group}");
    let found = response.groups.into_iter().next().ok_or_else(|| missing(what()))?;
    if found.error_code == ErrorCode::GroupIdNotFound.code() {
        return Ok(None);
    }
    Error::check(what, found.error_code, found.error_message.as_deref())?;
    Ok(Some(Group::of(found)))
}

impl Group {
    fn of(found: consumer_group_describe::DescribedGroup) -> Self {
        let epoch = |it: &consumer_group_describe::Member| (it.member_id.clone(), it.member_epoch);
        let epochs = Epochs {
            group: found.group_epoch,
            assignment: found.assignment_epoch,
            members: found.members.iter().map(epoch).collect(),
        };
        let member = |it: consumer_group_describe::Member| {
            let parts = it.assignment.topic_partitions.into_iter();
            let assigned_partitions = parts
                .map(|it| TopicPartition { topic: it.topic_name, partitions: it.partitions })
                .collect();
            let share = ConsumerProtocolAssignment { assigned_partitions, user_data: None };
            DescribedGroupMember {
                member_id: it.member_id,
                group_instance_id: it.instance_id,
                client_id: it.client_id,
                client_host: it.client_host,
                member_assignment: consumer_protocol::encode(&share, 0).unwrap_or_default(),
                ..DescribedGroupMember::default()
            }
        };
        let described = DescribedGroup {
            group_id: found.group_id,
            group_state: found.group_state,
            protocol_type: "consumer".into(),
            protocol_data: found.assignor_name,
            members: found.members.into_iter().map(member).collect(),
            ..DescribedGroup::default()
        };
        Self { described, epochs: Some(epochs) }
    }
}

impl Client {
    /// Returns the groups of all brokers, each with the broker that coordinates it. Empty filters pass all; brokers
    /// that are too old for a filter ignore it.
    pub async fn list_groups(
        &self,
        states: &[&str],
        types: &[&str],
    ) -> Result<Vec<(NodeId, ListedGroup)>, Error> {
        let owned = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        let brokers = self.metadata(Some(&[]), false).await?.brokers;
        let mut listed = Vec::new();
        for node in brokers.into_iter().map(|broker| broker.node_id) {
            let answered = self.retry(async || {
                let connection = self.node(node).await?;
                let version = connection.version::<ListGroupsRequest>(i16::MAX)?;
                let request = ListGroupsRequest {
                    states_filter: if version >= 4 { owned(states) } else { Vec::new() },
                    types_filter: if version >= 5 { owned(types) } else { Vec::new() },
                };
                let response = connection.call(&request).await?;
                Error::check(|| format!("groups of broker {node}"), response.error_code, None)?;
                Ok(response.groups)
            });
            listed.extend(answered.await?.into_iter().map(|group| (node, group)));
        }
        Ok(listed)
    }

    /// Returns the broker that coordinates a group, with an open connection to it.
    pub async fn coordinator(&self, group: &str) -> Result<(NodeId, Arc<Connection>), Error> {
        let node = self.find_coordinator(KeyType::Group, group).await?;
        Ok((node, self.node(node).await?))
    }

    pub(super) async fn find_coordinator(&self, of: KeyType, key: &str) -> Result<NodeId, Error> {
        let connection = self.any().await?;
        let request = if connection.version::<FindCoordinatorRequest>(i16::MAX)? >= 4 {
            FindCoordinatorRequest { coordinator_keys: vec![key.into()], ..Default::default() }
        } else {
            FindCoordinatorRequest { key: key.into(), ..Default::default() }
        };
        let request = FindCoordinatorRequest { key_type: of as i8, ..request };
        let response = connection.call(&request).await?;
        let found = response.coordinators.into_iter().next().unwrap_or(FoundCoordinator {
            key: key.into(),
            node_id: response.node_id,
            host: response.host,
            port: response.port,
            error_code: response.error_code,
            error_message: response.error_message,
        });
        let what = || match of {
            KeyType::Group => format!("coordinator of group {key}"),
            KeyType::Transaction => format!("coordinator of transactional id {key}"),
        };
        Error::check(what, found.error_code, found.error_message.as_deref())?;
        let at = address(&found.host, found.port);
        self.shared.state.lock().await.addresses.insert(found.node_id, at);
        Ok(found.node_id)
    }

    /// Asks a group's coordinator, again if it moved.
    pub(super) async fn with_coordinator<T>(
        &self,
        group: &str,
        mut ask: impl AsyncFnMut(NodeId, &Connection) -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.retry(async || {
            let (node, connection) = self.coordinator(group).await?;
            ask(node, &connection).await
        })
        .await
    }

    /// Returns a group and its members. `None` if there is no such group, or it is of a protocol that is not known
    /// here.
    pub async fn describe_group(&self, group: &str) -> Result<(NodeId, Option<Group>), Error> {
        self.with_coordinator(group, async |node, connection| {
            let request =
                DescribeGroupsRequest { groups: vec![group.into()], ..Default::default() };
            let response = connection.call(&request).await?;
            let what = || format!("group {group}");
            let found = response.groups.into_iter().next().ok_or_else(|| missing(what()))?;
            if found.error_code == ErrorCode::GroupIdNotFound.code() || found.group_state == "Dead"
            {
                let found = describe_consumers(connection, group).await?;
                let found = match found {
                    None => describe_shares(connection, group).await?,
                    found => found,
                };
                return Ok((node, found));
            }
            Error::check(what, found.error_code, found.error_message.as_deref())?;
            Ok((node, Some(Group { described: found, epochs: None })))
        })
        .await
    }

    /// Returns the offsets that a group has committed, in all topics.
    pub async fn committed(&self, group: &str) -> Result<ByPartition<Committed>, Error> {
        self.with_coordinator(group, async |_, connection| {
            fetch_offsets(connection, group, None).await
        })
        .await
    }

    /// Sets the offsets of a group that has no members.
    pub async fn commit(&self, group: &str, offsets: &ByPartition<i64>) -> Result<(), Error> {
        self.with_coordinator(group, async |_, connection| {
            commit_offsets(connection, group, &Committer::administrator(), offsets).await
        })
        .await
    }

    /// Deletes a group that has no members, with its offsets.
    pub async fn delete_group(&self, group: &str) -> Result<(), Error> {
        let request = DeleteGroupsRequest { groups_names: vec![group.into()] };
        self.with_coordinator(group, async |_, connection| {
            let response = connection.call(&request).await?;
            let what = || format!("group {group}");
            let result = response.results.into_iter().next().ok_or_else(|| missing(what()))?;
            Error::check(what, result.error_code, None)
        })
        .await
    }

    /// Deletes a group's offsets in these partitions, which none of its members may be reading.
    pub async fn delete_offsets(&self, group: &str, partitions: &Partitions) -> Result<(), Error> {
        let partition = |index: &i32| OffsetDeleteRequestPartition { partition_index: *index };
        let topic = |(name, indexes): (&String, &Vec<i32>)| OffsetDeleteRequestTopic {
            name: name.clone(),
            partitions: indexes.iter().map(partition).collect(),
        };
        let request = OffsetDeleteRequest {
            group_id: group.into(),
            topics: partitions.iter().map(topic).collect(),
        };
        self.with_coordinator(group, async |_, connection| {
            let response = connection.call(&request).await?;
            Error::check(|| format!("group {group}"), response.error_code, None)?;
            for topic in response.topics {
                for part in topic.partitions {
                    check_partition(group, &topic.name, part.partition_index, part.error_code)?;
                }
            }
            Ok(())
        })
        .await
    }
}

/// Returns the offsets that a group has committed: of these partitions, or of all. Partitions without one are left
/// out.
///
/// With partitions named it requires stable offsets, on which a member may rely. The caller waits while an open
/// transaction may still change one.
pub(super) async fn fetch_offsets(
    connection: &Connection,
    group: &str,
    partitions: Option<&Partitions>,
) -> Result<ByPartition<Committed>, Error> {
    let version = connection.version::<OffsetFetchRequest>(OFFSETS_BY_TOPIC_NAME)?;
    let asked = partitions.map(|partitions| {
        let topic = |(name, indexes): (&String, &Vec<i32>)| OffsetFetchRequestTopics {
            name: name.clone(),
            partition_indexes: indexes.clone(),
            ..OffsetFetchRequestTopics::default()
        };
        partitions.iter().map(topic).collect::<Vec<_>>()
    });
    let require_stable = partitions.is_some() && version >= 7;
    let request = if version >= 8 {
        let group = OffsetFetchRequestGroup {
            group_id: group.into(),
            topics: asked,
            ..OffsetFetchRequestGroup::default()
        };
        OffsetFetchRequest { groups: vec![group], require_stable, ..OffsetFetchRequest::default() }
    } else {
        let old = |topic: OffsetFetchRequestTopics| OffsetFetchRequestTopic {
            name: topic.name,
            partition_indexes: topic.partition_indexes,
        };
        OffsetFetchRequest {
            group_id: group.into(),
            topics: asked.map(|topics| topics.into_iter().map(old).collect()),
            require_stable,
            ..OffsetFetchRequest::default()
        }
    };
    let response = connection.call(&request).await?;
    let mut code = response.error_code;
    let mut topics: Vec<_> = response.topics.into_iter().map(as_newer).collect();
    for answer in response.groups {
        code = answer.error_code;
        topics.extend(answer.topics);
    }
    Error::check(|| format!("offsets of group {group}"), code, None)?;
    let mut committed = ByPartition::new();
    for topic in topics {
        for part in topic.partitions {
            check_partition(group, &topic.name, part.partition_index, part.error_code)?;
            if part.committed_offset >= 0 {
                let metadata = part.metadata.unwrap_or_default();
                let found = Committed { offset: part.committed_offset, metadata };
                let of_topic: &mut BTreeMap<_, _> =
                    committed.entry(topic.name.clone()).or_default();
                of_topic.insert(part.partition_index, found);
            }
        }
    }
    Ok(committed)
}

/// Returns an answer of before version 8 as it looks from then on.
fn as_newer(topic: OffsetFetchResponseTopic) -> OffsetFetchResponseTopics {
    let partition = |part: OffsetFetchResponsePartition| OffsetFetchResponsePartitions {
        partition_index: part.partition_index,
        committed_offset: part.committed_offset,
        committed_leader_epoch: part.committed_leader_epoch,
        metadata: part.metadata,
        error_code: part.error_code,
    };
    OffsetFetchResponseTopics {
        name: topic.name,
        partitions: topic.partitions.into_iter().map(partition).collect(),
        ..OffsetFetchResponseTopics::default()
    }
}

pub(super) async fn commit_offsets(
    connection: &Connection,
    group: &str,
    committer: &Committer,
    offsets: &ByPartition<i64>,
) -> Result<(), Error> {
    let partition = |(index, offset): (&i32, &i64)| OffsetCommitRequestPartition {
        partition_index: *index,
        committed_offset: *offset,
        committed_metadata: Some(String::new()),
        ..OffsetCommitRequestPartition::default()
    };
    let topic = |(name, offsets): (&String, &BTreeMap<i32, i64>)| OffsetCommitRequestTopic {
        name: name.clone(),
        partitions: offsets.iter().map(partition).collect(),
        ..OffsetCommitRequestTopic::default()
    };
    let request = OffsetCommitRequest {
        group_id: group.into(),
        generation_id_or_member_epoch: committer.generation,
        member_id: committer.member_id.clone(),
        group_instance_id: committer.instance_id.clone(),
        topics: offsets.iter().map(topic).collect(),
        ..OffsetCommitRequest::default()
    };
    let response = connection.call(&request).await?;
    for topic in response.topics {
        for part in topic.partitions {
            check_partition(group, &topic.name, part.partition_index, part.error_code)?;
        }
    }
    Ok(())
}

fn check_partition(group: &str, topic: &str, partition: i32, code: i16) -> Result<(), Error> {
    let what = || format!("offset of group {group} in partition {partition} of topic {topic}");
    Error::check(what, code, None)
}
