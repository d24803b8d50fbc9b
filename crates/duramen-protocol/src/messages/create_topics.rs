//! `CreateTopics` (key 19): create topics.

use crate::messages::declare::declare;
use crate::wire::Uuid;

declare! {
    /// Request of `CreateTopics`.
    pub struct CreateTopicsRequest: versions 2..=7, flexible 5.. {
        topics: Vec<CreatableTopic> [0..],
        timeout_ms: i32 [0..] = 60000,
        validate_only: bool [1..],
    }

    /// Stands in [`CreateTopicsRequest::topics`].
    pub struct CreatableTopic {
        name: String [0..],
        num_partitions: i32 [0..],
        replication_factor: i16 [0..],
        assignments: Vec<CreatableReplicaAssignment> [0..],
        configs: Vec<CreatableTopicConfig> [0..],
    }

    /// Stands in [`CreatableTopic::assignments`].
    pub struct CreatableReplicaAssignment {
        partition_index: i32 [0..],
        broker_ids: Vec<i32> [0..],
    }

    /// Stands in [`CreatableTopic::configs`].
    pub struct CreatableTopicConfig {
        name: String [0..],
        value: Option<String> [0.., nullable 0..],
    }

    /// Response of `CreateTopics`.
    pub struct CreateTopicsResponse: versions 2..=7, flexible 5.. {
        throttle_time_ms: i32 [2.., ignorable],
        topics: Vec<CreatableTopicResult> [0..],
    }

    /// Stands in [`CreateTopicsResponse::topics`].
    pub struct CreatableTopicResult {
        name: String [0..],
        topic_id: Uuid [7.., ignorable],
        error_code: i16 [0..],
        error_message: Option<String> [1.., nullable 0.., ignorable],
        topic_config_error_code: i16 [5.., tag 0 in 5.., ignorable],
        num_partitions: i32 [5.., ignorable] = -1,
        replication_factor: i16 [5.., ignorable] = -1,
        configs: Option<Vec<CreatableTopicConfigs>> [5.., nullable 5.., ignorable],
    }

    /// Stands in [`CreatableTopicResult::configs`].
    pub struct CreatableTopicConfigs {
        name: String [5..],
        value: Option<String> [5.., nullable 5..],
        read_only: bool [5..],
        config_source: i8 [5.., ignorable] = -1,
        is_sensitive: bool [5..],
    }
}
