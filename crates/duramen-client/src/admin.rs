//! Topics, offsets and configurations.

use std::collections::BTreeMap;

use duramen_protocol::error_code::ErrorCode;
use duramen_protocol::messages::create_partitions::CreatePartitionsTopic;
use duramen_protocol::messages::create_topics::{
    CreatableTopic, CreatableTopicConfig, CreatableTopicResult,
};
use duramen_protocol::messages::delete_records::{DeleteRecordsPartition, DeleteRecordsTopic};
use duramen_protocol::messages::delete_topics::DeleteTopicState;
use duramen_protocol::messages::describe_configs::{
    DescribeConfigsResource, DescribeConfigsResourceResult,
};
use duramen_protocol::messages::incremental_alter_configs::{
    AlterConfigsResource, AlterableConfig,
};
use duramen_protocol::messages::list_offsets::{ListOffsetsPartition, ListOffsetsTopic};
use duramen_protocol::messages::{
    CreatePartitionsRequest, CreateTopicsRequest, DeleteRecordsRequest, DeleteTopicsRequest,
    DescribeConfigsRequest, IncrementalAlterConfigsRequest, ListOffsetsRequest,
};

use crate::backoff::Backoff;
use crate::client::Client;
use crate::error::Error;
use crate::node_id::NodeId;

/// The resource type of a topic in config requests.
const RESOURCE_TOPIC: i8 = 2;
/// The resource type of a node in config requests.
const RESOURCE_BROKER: i8 = 4;
/// Longest time a broker may take to carry out an admin request, in milliseconds.
pub(crate) const ADMIN_TIMEOUT_MS: i32 = 30_000;

/// Topic that a client asks for.
#[derive(Debug, Clone, Default)]
pub struct NewTopic {
    /// Its name.
    pub name: String,
    /// Partitions; -1 for the cluster's default.
    pub partitions: i32,
    /// Replicas of each; -1 for the cluster's default.
    pub replication_factor: i16,
    /// Settings that differ from the cluster's.
    pub configs: BTreeMap<String, String>,
}

/// A place in a partition, not yet an offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OffsetAt {
    /// The first offset that is kept.
    Start,
    /// One past the last committed record.
    End,
    /// The first record that is not older than this, in milliseconds since 1970.
    Timestamp(i64),
    /// The record with the greatest timestamp.
    MaxTimestamp,
}

impl OffsetAt {
    fn code(self) -> i64 {
        match self {
            Self::Start => -2,
            Self::End => -1,
            Self::MaxTimestamp => -3,
            Self::Timestamp(ms) => ms,
        }
    }
}

/// An answer to "which offset".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListedOffset {
    /// The offset, or -1 where no record fits.
    pub offset: i64,
    /// Timestamp of that record, or -1.
    pub timestamp: i64,
}

impl Client {
    /// Creates a topic, and waits until every partition has a leader: then it can be used. Returns the topic as the
    /// broker made it. With `validate_only` the broker only checks the request.
    ///
    /// Fails with `TOPIC_ALREADY_EXISTS` for a topic that exists, and with `INVALID_CONFIG` for a wrong setting.
    pub async fn create_topic(
        &self,
        topic: &NewTopic,
        validate_only: bool,
    ) -> Result<CreatableTopicResult, Error> {
        let configs = topic.configs.iter().map(|(name, value)| CreatableTopicConfig {
            name: name.clone(),
            value: Some(value.clone()),
        });
        let request = CreateTopicsRequest {
            topics: vec![CreatableTopic {
                name: topic.name.clone(),
                num_partitions: topic.partitions,
                replication_factor: topic.replication_factor,
                configs: configs.collect(),
                ..CreatableTopic::default()
            }],
            timeout_ms: ADMIN_TIMEOUT_MS,
            validate_only,
        };
        let what = || format!("topic {}", topic.name);
        let created = self
            .retry(async || {
                let response = self.controller().await?.call(&request).await?;
                let result = Error::first(response.topics, what)?;
                Error::check(what, result.error_code, result.error_message.as_deref())?;
                Ok(result)
            })
            .await?;
        if !validate_only {
            self.wait_for_leaders(&topic.name, 1).await?;
        }
        Ok(created)
    }

    /// Waits until a topic that was just created or has grown is known with at least `count` partitions, each with a
    /// leader.
    async fn wait_for_leaders(&self, name: &str, count: i32) -> Result<(), Error> {
        let count = usize::try_from(count).unwrap_or(0);
        let mut backoff = Backoff::new(self.options().retry_for);
        loop {
            let response = self.metadata(Some(&[name]), false).await?;
            let topic = response.topics.first();
            let code = topic.map_or(ErrorCode::UnknownTopicOrPartition.code(), |it| it.error_code);
            let led = topic.is_some_and(|it| it.partitions.iter().all(|part| part.leader_id >= 0));
            let there = topic.map_or(0, |it| it.partitions.len());
            if code == 0 && led && there >= count {
                return Ok(());
            }
            if !backoff.pause().await {
                let what = format!("topic {name} was changed, but not all of it has a leader");
                return Err(Error::refused(what, code, None));
            }
        }
    }

    /// Sets settings of a topic, or with `None` gives them back to the cluster's; the others stay as they are. With
    /// `validate_only` the broker only checks the request.
    ///
    /// Fails with `UNKNOWN_TOPIC_OR_PARTITION` for a missing topic, and with `INVALID_CONFIG` for a wrong setting.
    pub async fn alter_topic_configs(
        &self,
        topic: &str,
        changes: &BTreeMap<String, Option<String>>,
        validate_only: bool,
    ) -> Result<(), Error> {
        self.alter_configs((RESOURCE_TOPIC, topic), changes, validate_only).await
    }

    /// Sets settings of a node while it runs, or with `None` removes them.
    ///
    /// Fails with `INVALID_CONFIG` or `INVALID_REQUEST` for a wrong setting.
    pub async fn alter_broker_configs(
        &self,
        node: NodeId,
        changes: &BTreeMap<String, Option<String>>,
    ) -> Result<(), Error> {
        self.alter_configs((RESOURCE_BROKER, &node.to_string()), changes, false).await
    }

    async fn alter_configs(
        &self,
        (resource_type, name): (i8, &str),
        changes: &BTreeMap<String, Option<String>>,
        validate_only: bool,
    ) -> Result<(), Error> {
        let configs = changes.iter().map(|(name, value)| AlterableConfig {
            name: name.clone(),
            config_operation: i8::from(value.is_none()),
            value: value.clone(),
        });
        let request = IncrementalAlterConfigsRequest {
            resources: vec![AlterConfigsResource {
                resource_type,
                resource_name: name.into(),
                configs: configs.collect(),
            }],
            validate_only,
        };
        self.retry(async || {
            let response = self.controller().await?.call(&request).await?;
            let kind = if resource_type == RESOURCE_TOPIC { "topic" } else { "node" };
            let what = || format!("settings of {kind} {name}");
            let result = Error::first(response.responses, what)?;
            Error::check(what, result.error_code, result.error_message.as_deref())
        })
        .await
    }

    /// Adds partitions to a topic until there are `count`, and waits until each has a leader. With `validate_only` the
    /// broker only checks the request.
    ///
    /// Fails with `INVALID_PARTITIONS` unless `count` is greater than the present number.
    pub async fn create_partitions(
        &self,
        topic: &str,
        count: i32,
        validate_only: bool,
    ) -> Result<(), Error> {
        let request = CreatePartitionsRequest {
            topics: vec![CreatePartitionsTopic { name: topic.into(), count, assignments: None }],
            timeout_ms: ADMIN_TIMEOUT_MS,
            validate_only,
        };
        let what = || format!("partitions of topic {topic}");
        self.retry(async || {
            let response = self.controller().await?.call(&request).await?;
            let result = Error::first(response.results, what)?;
            Error::check(what, result.error_code, result.error_message.as_deref())
        })
        .await?;
        if validate_only { Ok(()) } else { self.wait_for_leaders(topic, count).await }
    }

    /// Deletes a topic with all its records.
    ///
    /// Fails with `UNKNOWN_TOPIC_OR_PARTITION` for a missing topic.
    pub async fn delete_topic(&self, name: &str) -> Result<(), Error> {
        let state = DeleteTopicState { name: Some(name.into()), ..DeleteTopicState::default() };
        let by_state = DeleteTopicsRequest {
            topics: vec![state],
            timeout_ms: ADMIN_TIMEOUT_MS,
            ..DeleteTopicsRequest::default()
        };
        let by_name = DeleteTopicsRequest {
            topic_names: vec![name.into()],
            timeout_ms: ADMIN_TIMEOUT_MS,
            ..DeleteTopicsRequest::default()
        };
        let outcome = self
            .retry(async || {
                let connection = self.controller().await?;
                let newest = connection.version::<DeleteTopicsRequest>(i16::MAX)?;
                let request = if newest >= 6 { &by_state } else { &by_name };
                let response = connection.call(request).await?;
                let what = || format!("topic {name}");
                let result = Error::first(response.responses, what)?;
                Error::check(what, result.error_code, result.error_message.as_deref())
            })
            .await;
        self.forget(name).await;
        outcome
    }

    /// Deletes the records before `offset`; -1 means all committed records. Returns the offset of the first record that
    /// is left.
    ///
    /// Fails with `OFFSET_OUT_OF_RANGE` for an offset beyond the committed records.
    pub async fn delete_records(
        &self,
        topic: &str,
        partition: i32,
        offset: i64,
    ) -> Result<i64, Error> {
        let request = DeleteRecordsRequest {
            topics: vec![DeleteRecordsTopic {
                name: topic.into(),
                partitions: vec![DeleteRecordsPartition { partition_index: partition, offset }],
            }],
            timeout_ms: ADMIN_TIMEOUT_MS,
        };
        self.retry(async || {
            let leader = self.leader(topic, partition).await?;
            let response = leader.connection.call(&request).await?;
            let what = || format!("partition {partition} of topic {topic}");
            let rows = response.topics.into_iter().flat_map(|topic| topic.partitions);
            let result = Error::first(rows, what)?;
            self.check_leader(topic, what, result.error_code).await?;
            Ok(result.low_watermark)
        })
        .await
    }

    /// Returns the offset at each given place, by partition. The leader of the partition says it. Of several places in
    /// one partition, the result has one.
    pub async fn list_offsets(
        &self,
        topic: &str,
        places: &[(i32, OffsetAt)],
    ) -> Result<BTreeMap<i32, ListedOffset>, Error> {
        self.retry(async || {
            let mut by_leader = BTreeMap::new();
            for (partition, at) in places {
                let leader = self.leader(topic, *partition).await?;
                let (_, asked) =
                    by_leader.entry(leader.node).or_insert((leader.connection, Vec::new()));
                asked.push(ListOffsetsPartition {
                    partition_index: *partition,
                    timestamp: at.code(),
                    ..ListOffsetsPartition::default()
                });
            }
            let mut listed = BTreeMap::new();
            for (connection, partitions) in by_leader.into_values() {
                let topics = vec![ListOffsetsTopic { name: topic.into(), partitions }];
                let request = ListOffsetsRequest {
                    replica_id: -1,
                    topics,
                    timeout_ms: ADMIN_TIMEOUT_MS,
                    ..ListOffsetsRequest::default()
                };
                let response = connection.call(&request).await?;
                for row in response.topics.into_iter().flat_map(|topic| topic.partitions) {
                    let index = row.partition_index;
                    let what = || format!("offsets of partition {index} of topic {topic}");
                    self.check_leader(topic, what, row.error_code).await?;
                    let found = ListedOffset { offset: row.offset, timestamp: row.timestamp };
                    listed.insert(index, found);
                }
            }
            Ok(listed)
        })
        .await
    }

    /// Returns the values of these settings of a node, as far as it has them.
    pub async fn broker_configs(
        &self,
        node: NodeId,
        names: &[&str],
    ) -> Result<BTreeMap<String, String>, Error> {
        let request = DescribeConfigsRequest {
            resources: vec![DescribeConfigsResource {
                resource_type: RESOURCE_BROKER,
                resource_name: node.to_string(),
                configuration_keys: Some(names.iter().map(|it| (*it).to_owned()).collect()),
            }],
            ..DescribeConfigsRequest::default()
        };
        let what = || format!("settings of node {node}");
        let response = self.node(node).await?.call(&request).await?;
        let result = Error::first(response.results, what)?;
        Error::check(what, result.error_code, result.error_message.as_deref())?;
        let values = result.configs.into_iter().filter_map(|it| Some((it.name, it.value?)));
        Ok(values.collect())
    }

    /// Returns the values of these settings of topics, by topic, where they are not empty.
    pub async fn settings_of_topics(
        &self,
        topics: &[&str],
        names: &[&str],
    ) -> Result<BTreeMap<String, BTreeMap<String, String>>, Error> {
        let names: Vec<String> = names.iter().map(|it| (*it).to_owned()).collect();
        let resource = |topic: &&str| DescribeConfigsResource {
            resource_type: RESOURCE_TOPIC,
            resource_name: (*topic).to_owned(),
            configuration_keys: Some(names.clone()),
        };
        let request = DescribeConfigsRequest {
            resources: topics.iter().map(resource).collect(),
            ..DescribeConfigsRequest::default()
        };
        let response = self.retry(async || self.any().await?.call(&request).await).await?;
        // A topic may be deleted meanwhile, and has no settings then.
        let results = response.results.into_iter().filter(|it| it.error_code == 0);
        let values = |configs: Vec<DescribeConfigsResourceResult>| {
            let values = configs.into_iter().filter_map(|it| Some((it.name, it.value?)));
            values.filter(|(_, value)| !value.is_empty()).collect::<BTreeMap<_, _>>()
        };
        let all = results.map(|it| (it.resource_name, values(it.configs)));
        Ok(all.filter(|(_, values)| !values.is_empty()).collect())
    }

    /// Returns the settings of a topic: each with its value, its source by Kafka's code, and the values that it hides.
    pub async fn topic_configs(
        &self,
        topic: &str,
    ) -> Result<Vec<DescribeConfigsResourceResult>, Error> {
        let request = DescribeConfigsRequest {
            resources: vec![DescribeConfigsResource {
                resource_type: RESOURCE_TOPIC,
                resource_name: topic.into(),
                configuration_keys: None,
            }],
            include_synonyms: true,
            ..DescribeConfigsRequest::default()
        };
        self.retry(async || {
            let response = self.any().await?.call(&request).await?;
            let what = || format!("configuration of {topic}");
            let result = Error::first(response.results, what)?;
            Error::check(what, result.error_code, result.error_message.as_deref())?;
            Ok(result.configs)
        })
        .await
    }

    /// Checks an error code from a partition's leader, and drops the metadata of the topic with an error.
    pub(crate) async fn check_leader(
        &self,
        topic: &str,
        what: impl FnOnce() -> String,
        code: i16,
    ) -> Result<(), Error> {
        if code != 0 {
            self.forget(topic).await;
        }
        Error::check(what, code, None)
    }
}
