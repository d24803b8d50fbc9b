//! Offsets that a group has committed.

use std::collections::BTreeMap;

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
use duramen_protocol::messages::{OffsetCommitRequest, OffsetDeleteRequest, OffsetFetchRequest};

use crate::assignors::Partitions;
use crate::call::OFFSETS_BY_TOPIC_NAME;
use crate::client::{Client, KeyType};
use crate::connection::Connection;
use crate::error::Error;

/// Value of each partition, by topic and partition.
pub type ByPartition<T> = BTreeMap<String, BTreeMap<i32, T>>;

/// A committed offset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Committed {
    /// The next offset to be read.
    pub offset: i64,
    /// Metadata that the consumer committed with the offset.
    pub metadata: String,
}

/// Identity under which offsets are committed.
#[derive(Debug, Clone)]
pub(crate) struct Committer {
    pub(crate) generation: i32,
    pub(crate) member_id: String,
    pub(crate) instance_id: Option<String>,
}

impl Committer {
    /// Returns the identity of a client outside of the group; accepted only while the group has no members.
    fn administrator() -> Self {
        Self { generation: -1, member_id: String::new(), instance_id: None }
    }
}

impl Client {
    /// Returns the offsets that a group has committed, in all topics. A missing group has none.
    pub async fn committed(&self, group: &str) -> Result<ByPartition<Committed>, Error> {
        self.with_coordinator(KeyType::Group, group, async |_, connection| {
            fetch_offsets(connection, group, None).await
        })
        .await
    }

    /// Sets the next offsets to be read of a group that has no members. The group need not exist.
    ///
    /// Fails with `UNKNOWN_MEMBER_ID` for a group with members.
    pub async fn commit(&self, group: &str, offsets: &ByPartition<i64>) -> Result<(), Error> {
        self.with_coordinator(KeyType::Group, group, async |_, connection| {
            commit_offsets(connection, group, &Committer::administrator(), offsets).await
        })
        .await
    }

    /// Deletes a group's offsets in these partitions.
    ///
    /// Fails with `GROUP_SUBSCRIBED_TO_TOPIC` if a member reads one of them.
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
        self.with_coordinator(KeyType::Group, group, async |_, connection| {
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
pub(crate) async fn fetch_offsets(
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

pub(crate) async fn commit_offsets(
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
