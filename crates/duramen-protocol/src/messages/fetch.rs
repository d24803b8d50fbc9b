//! `Fetch` (key 1): read record batches, with incremental sessions.

use crate::messages::declare::declare;
use crate::wire::{RecordData, Uuid};

declare! {
    /// Request of `Fetch`.
    pub struct FetchRequest: versions 4..=18, flexible 12.. {
        cluster_id: Option<String> [12.., nullable 12.., tag 0 in 12.., ignorable],
        replica_id: i32 [0..=14] = -1,
        replica_state: ReplicaState [15.., tag 1 in 15..],
        max_wait_ms: i32 [0..],
        min_bytes: i32 [0..],
        max_bytes: i32 [3.., ignorable] = i32::MAX,
        isolation_level: i8 [4.., ignorable],
        session_id: i32 [7.., ignorable],
        session_epoch: i32 [7.., ignorable] = -1,
        topics: Vec<FetchTopic> [0..],
        forgotten_topics_data: Vec<ForgottenTopic> [7..],
        rack_id: String [11.., ignorable],
    }

    /// Stands in [`FetchRequest::replica_state`].
    pub struct ReplicaState {
        replica_id: i32 [15..] = -1,
        replica_epoch: i64 [15..] = -1,
    }

    /// Stands in [`FetchRequest::topics`].
    pub struct FetchTopic {
        topic: String [0..=12, ignorable],
        topic_id: Uuid [13.., ignorable],
        partitions: Vec<FetchPartition> [0..],
    }

    /// Stands in [`FetchTopic::partitions`].
    pub struct FetchPartition {
        partition: i32 [0..],
        current_leader_epoch: i32 [9.., ignorable] = -1,
        fetch_offset: i64 [0..],
        last_fetched_epoch: i32 [12..] = -1,
        log_start_offset: i64 [5.., ignorable] = -1,
        partition_max_bytes: i32 [0..],
        replica_directory_id: Uuid [17.., tag 0 in 17.., ignorable],
        high_watermark: i64 [18.., tag 1 in 18.., ignorable] = i64::MAX,
    }

    /// Stands in [`FetchRequest::forgotten_topics_data`].
    pub struct ForgottenTopic {
        topic: String [7..=12, ignorable],
        topic_id: Uuid [13.., ignorable],
        partitions: Vec<i32> [7..],
    }

    /// Response of `Fetch`.
    pub struct FetchResponse: versions 4..=18, flexible 12.. {
        throttle_time_ms: i32 [1.., ignorable],
        error_code: i16 [7.., ignorable],
        session_id: i32 [7..],
        responses: Vec<FetchableTopicResponse> [0..],
        node_endpoints: Vec<NodeEndpoint> [16.., tag 0 in 16..],
    }

    /// Stands in [`FetchResponse::responses`].
    pub struct FetchableTopicResponse {
        topic: String [0..=12, ignorable],
        topic_id: Uuid [13.., ignorable],
        partitions: Vec<PartitionData> [0..],
    }

    /// Stands in [`FetchableTopicResponse::partitions`].
    pub struct PartitionData {
        partition_index: i32 [0..],
        error_code: i16 [0..],
        high_watermark: i64 [0..],
        last_stable_offset: i64 [4.., ignorable] = -1,
        log_start_offset: i64 [5.., ignorable] = -1,
        diverging_epoch: EpochEndOffset [12.., tag 0 in 12..],
        current_leader: LeaderIdAndEpoch [12.., tag 1 in 12..],
        snapshot_id: SnapshotId [12.., tag 2 in 12..],
        aborted_transactions: Option<Vec<AbortedTransaction>> [4.., nullable 4.., ignorable],
        preferred_read_replica: i32 [11..] = -1,
        records: Option<RecordData> [0.., nullable 0..],
    }

    /// Stands in [`PartitionData::diverging_epoch`].
    pub struct EpochEndOffset {
        epoch: i32 [12..] = -1,
        end_offset: i64 [12..] = -1,
    }

    /// Stands in [`PartitionData::current_leader`].
    pub struct LeaderIdAndEpoch {
        leader_id: i32 [12..] = -1,
        leader_epoch: i32 [12..] = -1,
    }

    /// Stands in [`PartitionData::snapshot_id`].
    pub struct SnapshotId {
        end_offset: i64 [0..] = -1,
        epoch: i32 [0..] = -1,
    }

    /// Stands in [`PartitionData::aborted_transactions`].
    pub struct AbortedTransaction {
        producer_id: i64 [4..],
        first_offset: i64 [4..],
    }

    /// Stands in [`FetchResponse::node_endpoints`].
    pub struct NodeEndpoint {
        node_id: i32 [16..],
        host: String [16..],
        port: i32 [16..],
        rack: Option<String> [16.., nullable 16..],
    }
}
