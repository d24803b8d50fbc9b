//! `DescribeTopicPartitions` (key 75): partitions of topics, page by page.

use crate::messages::declare::declare;
use crate::wire::Uuid;

declare! {
    /// Request of `DescribeTopicPartitions`.
    pub struct DescribeTopicPartitionsRequest: versions 0..=0, flexible 0.. {
        topics: Vec<TopicRequest> [0..],
        response_partition_limit: i32 [0..] = 2000,
        cursor: Option<RequestCursor> [0.., nullable 0..],
    }

    /// Stands in [`DescribeTopicPartitionsRequest::topics`].
    pub struct TopicRequest {
        name: String [0..],
    }

    /// Stands in [`DescribeTopicPartitionsRequest::cursor`].
    pub struct RequestCursor {
        topic_name: String [0..],
        partition_index: i32 [0..],
    }

    /// Response of `DescribeTopicPartitions`.
    pub struct DescribeTopicPartitionsResponse: versions 0..=0, flexible 0.. {
        throttle_time_ms: i32 [0.., ignorable],
        topics: Vec<DescribeTopicPartitionsResponseTopic> [0..],
        next_cursor: Option<ResponseCursor> [0.., nullable 0..],
    }

    /// Stands in [`DescribeTopicPartitionsResponse::topics`].
    pub struct DescribeTopicPartitionsResponseTopic {
        error_code: i16 [0..],
        name: Option<String> [0.., nullable 0..],
        topic_id: Uuid [0.., ignorable],
        is_internal: bool [0.., ignorable],
        partitions: Vec<DescribeTopicPartitionsResponsePartition> [0..],
        topic_authorized_operations: i32 [0..] = i32::MIN,
    }

    /// Stands in [`DescribeTopicPartitionsResponseTopic::partitions`].
    pub struct DescribeTopicPartitionsResponsePartition {
        error_code: i16 [0..],
        partition_index: i32 [0..],
        leader_id: i32 [0..],
        leader_epoch: i32 [0.., ignorable] = -1,
        replica_nodes: Vec<i32> [0..],
        isr_nodes: Vec<i32> [0..],
        eligible_leader_replicas: Option<Vec<i32>> [0.., nullable 0..],
        last_known_elr: Option<Vec<i32>> [0.., nullable 0..],
        offline_replicas: Vec<i32> [0.., ignorable],
    }

    /// Stands in [`DescribeTopicPartitionsResponse::next_cursor`].
    pub struct ResponseCursor {
        topic_name: String [0..],
        partition_index: i32 [0..],
    }
}
