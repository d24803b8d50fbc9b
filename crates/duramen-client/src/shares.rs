//! Progress of share groups, as an administrator sees and sets it.

use std::collections::BTreeMap;

use duramen_protocol::messages::alter_share_group_offsets::{
    AlterShareGroupOffsetsRequestPartition, AlterShareGroupOffsetsRequestTopic,
};
use duramen_protocol::messages::delete_share_group_offsets::DeleteShareGroupOffsetsRequestTopic;
use duramen_protocol::messages::describe_share_group_offsets::DescribeShareGroupOffsetsRequestGroup;
use duramen_protocol::messages::{
    AlterShareGroupOffsetsRequest, DeleteShareGroupOffsetsRequest, DescribeShareGroupOffsetsRequest,
};

use crate::client::{Client, KeyType};
use crate::error::Error;
use crate::offsets::ByPartition;

/// Progress of a share group in a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShareStart {
    /// First offset that the group is not done with.
    pub offset: i64,
    /// Number of offsets that the group is not done with; `None` where the broker does not say.
    pub lag: Option<i64>,
}

impl Client {
    /// Returns the starts of a share group, in all topics for which the broker keeps anything for it.
    pub async fn share_starts(&self, group: &str) -> Result<ByPartition<ShareStart>, Error> {
        let of = DescribeShareGroupOffsetsRequestGroup { group_id: group.into(), topics: None };
        let request = DescribeShareGroupOffsetsRequest { groups: vec![of] };
        self.with_coordinator(KeyType::Group, group, async |_, connection| {
            let response = connection.call(&request).await?;
            let what = || format!("where share group {group} starts");
            let found = Error::first(response.groups, what)?;
            Error::check(what, found.error_code, found.error_message.as_deref())?;
            let mut starts = ByPartition::new();
            for topic in found.topics {
                for part in topic.partitions {
                    check(group, &topic.topic_name, part.partition_index, part.error_code)?;
                    if part.start_offset >= 0 {
                        let lag = (part.lag >= 0).then_some(part.lag);
                        let of_topic: &mut BTreeMap<_, _> =
                            starts.entry(topic.topic_name.clone()).or_default();
                        let start = ShareStart { offset: part.start_offset, lag };
                        of_topic.insert(part.partition_index, start);
                    }
                }
            }
            Ok(starts)
        })
        .await
    }

    /// Sets the starts of a share group that has no members, as offsets.
    ///
    /// Fails with `NON_EMPTY_GROUP` for a group with members.
    pub async fn set_share_starts(
        &self,
        group: &str,
        starts: &ByPartition<i64>,
    ) -> Result<(), Error> {
        let partition = |(index, offset): (&i32, &i64)| AlterShareGroupOffsetsRequestPartition {
            partition_index: *index,
            start_offset: *offset,
        };
        let topic = |(name, starts): (&String, &BTreeMap<i32, i64>)| {
            let partitions = starts.iter().map(partition).collect();
            AlterShareGroupOffsetsRequestTopic { topic_name: name.clone(), partitions }
        };
        let topics = starts.iter().map(topic).collect();
        let request = AlterShareGroupOffsetsRequest { group_id: group.into(), topics };
        self.with_coordinator(KeyType::Group, group, async |_, connection| {
            let response = connection.call(&request).await?;
            Error::check(|| format!("group {group}"), response.error_code, None)?;
            for topic in response.responses {
                for part in topic.partitions {
                    check(group, &topic.topic_name, part.partition_index, part.error_code)?;
                }
            }
            Ok(())
        })
        .await
    }

    /// Deletes the progress of a share group without members in these topics.
    pub async fn forget_share_starts(&self, group: &str, topics: &[String]) -> Result<(), Error> {
        let topic =
            |name: &String| DeleteShareGroupOffsetsRequestTopic { topic_name: name.clone() };
        let topics = topics.iter().map(topic).collect();
        let request = DeleteShareGroupOffsetsRequest { group_id: group.into(), topics };
        self.with_coordinator(KeyType::Group, group, async |_, connection| {
            let response = connection.call(&request).await?;
            Error::check(|| format!("group {group}"), response.error_code, None)?;
            for topic in response.responses {
                let what = || format!("where share group {group} starts in {}", topic.topic_name);
                Error::check(what, topic.error_code, topic.error_message.as_deref())?;
            }
            Ok(())
        })
        .await
    }
}

fn check(group: &str, topic: &str, partition: i32, code: i16) -> Result<(), Error> {
    let what = || format!("where share group {group} starts in partition {partition} of {topic}");
    Error::check(what, code, None)
}
