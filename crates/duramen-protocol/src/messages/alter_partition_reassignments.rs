//! `AlterPartitionReassignments` (key 45): move partitions between brokers.

use crate::messages::declare::declare;

declare! {
    /// Request of `AlterPartitionReassignments`.
    pub struct AlterPartitionReassignmentsRequest: versions 0..=1, flexible 0.. {
        timeout_ms: i32 [0..] = 60000,
        allow_replication_factor_change: bool [1..] = true,
        topics: Vec<ReassignableTopic> [0..],
    }

    /// Stands in [`AlterPartitionReassignmentsRequest::topics`].
    pub struct ReassignableTopic {
        name: String [0..],
        partitions: Vec<ReassignablePartition> [0..],
    }

    /// Stands in [`ReassignableTopic::partitions`].
    pub struct ReassignablePartition {
        partition_index: i32 [0..],
        replicas: Option<Vec<i32>> [0.., nullable 0..],
    }

    /// Response of `AlterPartitionReassignments`.
    pub struct AlterPartitionReassignmentsResponse: versions 0..=1, flexible 0.. {
        throttle_time_ms: i32 [0..],
        allow_replication_factor_change: bool [1.., ignorable] = true,
        error_code: i16 [0..],
        error_message: Option<String> [0.., nullable 0..],
        responses: Vec<ReassignableTopicResponse> [0..],
    }

    /// Stands in [`AlterPartitionReassignmentsResponse::responses`].
    pub struct ReassignableTopicResponse {
        name: String [0..],
        partitions: Vec<ReassignablePartitionResponse> [0..],
    }

    /// Stands in [`ReassignableTopicResponse::partitions`].
    pub struct ReassignablePartitionResponse {
        partition_index: i32 [0..],
        error_code: i16 [0..],
        error_message: Option<String> [0.., nullable 0..],
    }
}
