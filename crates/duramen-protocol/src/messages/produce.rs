//! `Produce` (key 0): append record batches.

use bytes::Bytes;
use smol_str::SmolStr;

use crate::messages::declare::declare;
use crate::wire::{Few, Uuid};

declare! {
    /// Request of `Produce`.
    pub struct ProduceRequest: versions 3..=13, flexible 9.. {
        transactional_id: Option<String> [3.., nullable 3..],
        acks: i16 [0..],
        timeout_ms: i32 [0..],
        topic_data: Few<TopicProduceData> [0..],
    }

    /// Stands in [`ProduceRequest::topic_data`].
    pub struct TopicProduceData {
        name: SmolStr [0..=12, ignorable],
        topic_id: Uuid [13.., ignorable],
        partition_data: Few<PartitionProduceData> [0..],
    }

    /// Stands in [`TopicProduceData::partition_data`].
    pub struct PartitionProduceData {
        index: i32 [0..],
        records: Option<Bytes> [0.., nullable 0..],
    }

    /// Response of `Produce`.
    pub struct ProduceResponse: versions 3..=13, flexible 9.. {
        responses: Few<TopicProduceResponse> [0..],
        throttle_time_ms: i32 [1.., ignorable],
        node_endpoints: Vec<NodeEndpoint> [10.., tag 0 in 10..],
    }

    /// Stands in [`ProduceResponse::responses`].
    pub struct TopicProduceResponse {
        name: SmolStr [0..=12, ignorable],
        topic_id: Uuid [13.., ignorable],
        partition_responses: Few<PartitionProduceResponse> [0..],
    }

    /// Stands in [`TopicProduceResponse::partition_responses`].
    pub struct PartitionProduceResponse {
        index: i32 [0..],
        error_code: i16 [0..],
        base_offset: i64 [0..],
        log_append_time_ms: i64 [2.., ignorable] = -1,
        log_start_offset: i64 [5.., ignorable] = -1,
        record_errors: Vec<BatchIndexAndErrorMessage> [8.., ignorable],
        error_message: Option<String> [8.., nullable 8.., ignorable],
        current_leader: LeaderIdAndEpoch [10.., tag 0 in 10..],
    }

    /// Stands in [`PartitionProduceResponse::record_errors`].
    pub struct BatchIndexAndErrorMessage {
        batch_index: i32 [8..],
        batch_index_error_message: Option<String> [8.., nullable 8..],
    }

    /// Stands in [`PartitionProduceResponse::current_leader`].
    pub struct LeaderIdAndEpoch {
        leader_id: i32 [10..] = -1,
        leader_epoch: i32 [10..] = -1,
    }

    /// Stands in [`ProduceResponse::node_endpoints`].
    pub struct NodeEndpoint {
        node_id: i32 [10..],
        host: String [10..],
        port: i32 [10..],
        rack: Option<String> [10.., nullable 10..],
    }
}
