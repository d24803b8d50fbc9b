//! `ShareFetch` (key 78): acquire records for a share group, and acknowledge those that were acquired before.

use crate::messages::declare::declare;
use crate::wire::{RecordData, Uuid};

declare! {
    /// Request of `ShareFetch`.
    pub struct ShareFetchRequest: versions 1..=2, flexible 0.. {
        group_id: Option<String> [0.., nullable 0..],
        member_id: Option<String> [0.., nullable 0..],
        share_session_epoch: i32 [0..],
        max_wait_ms: i32 [0..],
        min_bytes: i32 [0..],
        max_bytes: i32 [0..] = i32::MAX,
        max_records: i32 [1..],
        batch_size: i32 [1..],
        share_acquire_mode: i8 [2.., ignorable],
        is_renew_ack: bool [2..],
        topics: Vec<FetchTopic> [0..],
        forgotten_topics_data: Vec<ForgottenTopic> [0..],
    }

    /// Stands in [`ShareFetchRequest::topics`].
    pub struct FetchTopic {
        topic_id: Uuid [0..],
        partitions: Vec<FetchPartition> [0..],
    }

    /// Stands in [`FetchTopic::partitions`].
    pub struct FetchPartition {
        partition_index: i32 [0..],
        acknowledgement_batches: Vec<AcknowledgementBatch> [0..],
    }

    /// Stands in [`FetchPartition::acknowledgement_batches`].
    pub struct AcknowledgementBatch {
        first_offset: i64 [0..],
        last_offset: i64 [0..],
        acknowledge_types: Vec<i8> [0..],
    }

    /// Stands in [`ShareFetchRequest::forgotten_topics_data`].
    pub struct ForgottenTopic {
        topic_id: Uuid [0..],
        partitions: Vec<i32> [0..],
    }

    /// Response of `ShareFetch`.
    pub struct ShareFetchResponse: versions 1..=2, flexible 0.. {
        throttle_time_ms: i32 [0..],
        error_code: i16 [0..],
        error_message: Option<String> [0.., nullable 0..],
        acquisition_lock_timeout_ms: i32 [1..],
        responses: Vec<ShareFetchableTopicResponse> [0..],
        node_endpoints: Vec<NodeEndpoint> [0..],
    }

    /// Stands in [`ShareFetchResponse::responses`].
    pub struct ShareFetchableTopicResponse {
        topic_id: Uuid [0..],
        partitions: Vec<PartitionData> [0..],
    }

    /// Stands in [`ShareFetchableTopicResponse::partitions`].
    pub struct PartitionData {
        partition_index: i32 [0..],
        error_code: i16 [0..],
        error_message: Option<String> [0.., nullable 0..],
        acknowledge_error_code: i16 [0..],
        acknowledge_error_message: Option<String> [0.., nullable 0..],
        current_leader: LeaderIdAndEpoch [0..],
        records: RecordData [0..],
        acquired_records: Vec<AcquiredRecords> [0..],
    }

    /// Stands in [`PartitionData::current_leader`].
    pub struct LeaderIdAndEpoch {
        leader_id: i32 [0..],
        leader_epoch: i32 [0..],
    }

    /// Stands in [`PartitionData::acquired_records`].
    pub struct AcquiredRecords {
        first_offset: i64 [0..],
        last_offset: i64 [0..],
        delivery_count: i16 [0..],
    }

    /// Stands in [`ShareFetchResponse::node_endpoints`].
    pub struct NodeEndpoint {
        node_id: i32 [0..],
        host: String [0..],
        port: i32 [0..],
        rack: Option<String> [0.., nullable 0..],
    }
}
