//! `OffsetCommit` (key 8): store consumed offsets.

use crate::messages::declare::declare;
use crate::wire::Uuid;

declare! {
    /// Request of `OffsetCommit`.
    pub struct OffsetCommitRequest: versions 2..=10, flexible 8.. {
        group_id: String [0..],
        generation_id_or_member_epoch: i32 [1.., ignorable] = -1,
        member_id: String [1.., ignorable],
        group_instance_id: Option<String> [7.., nullable 7..],
        retention_time_ms: i64 [2..=4, ignorable] = -1,
        topics: Vec<OffsetCommitRequestTopic> [0..],
    }

    /// Stands in [`OffsetCommitRequest::topics`].
    pub struct OffsetCommitRequestTopic {
        name: String [0..=9, ignorable],
        topic_id: Uuid [10.., ignorable],
        partitions: Vec<OffsetCommitRequestPartition> [0..],
    }

    /// Stands in [`OffsetCommitRequestTopic::partitions`].
    pub struct OffsetCommitRequestPartition {
        partition_index: i32 [0..],
        committed_offset: i64 [0..],
        committed_leader_epoch: i32 [6.., ignorable] = -1,
        committed_metadata: Option<String> [0.., nullable 0..],
    }

    /// Response of `OffsetCommit`.
    pub struct OffsetCommitResponse: versions 2..=10, flexible 8.. {
        throttle_time_ms: i32 [3.., ignorable],
        topics: Vec<OffsetCommitResponseTopic> [0..],
    }

    /// Stands in [`OffsetCommitResponse::topics`].
    pub struct OffsetCommitResponseTopic {
        name: String [0..=9, ignorable],
        topic_id: Uuid [10.., ignorable],
        partitions: Vec<OffsetCommitResponsePartition> [0..],
    }

    /// Stands in [`OffsetCommitResponseTopic::partitions`].
    pub struct OffsetCommitResponsePartition {
        partition_index: i32 [0..],
        error_code: i16 [0..],
    }
}
