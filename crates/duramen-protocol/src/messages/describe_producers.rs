//! `DescribeProducers` (key 61): producers that are active in partitions.

use crate::messages::declare::declare;

declare! {
    /// Request of `DescribeProducers`.
    pub struct DescribeProducersRequest: versions 0..=0, flexible 0.. {
        topics: Vec<TopicRequest> [0..],
    }

    /// Stands in [`DescribeProducersRequest::topics`].
    pub struct TopicRequest {
        name: String [0..],
        partition_indexes: Vec<i32> [0..],
    }

    /// Response of `DescribeProducers`.
    pub struct DescribeProducersResponse: versions 0..=0, flexible 0.. {
        throttle_time_ms: i32 [0..],
        topics: Vec<TopicResponse> [0..],
    }

    /// Stands in [`DescribeProducersResponse::topics`].
    pub struct TopicResponse {
        name: String [0..],
        partitions: Vec<PartitionResponse> [0..],
    }

    /// Stands in [`TopicResponse::partitions`].
    pub struct PartitionResponse {
        partition_index: i32 [0..],
        error_code: i16 [0..],
        error_message: Option<String> [0.., nullable 0..],
        active_producers: Vec<ProducerState> [0..],
    }

    /// Stands in [`PartitionResponse::active_producers`].
    pub struct ProducerState {
        producer_id: i64 [0..],
        producer_epoch: i32 [0..],
        last_sequence: i32 [0..] = -1,
        last_timestamp: i64 [0..] = -1,
        coordinator_epoch: i32 [0..],
        current_txn_start_offset: i64 [0..] = -1,
    }
}
