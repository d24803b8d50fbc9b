//! `OffsetForLeaderEpoch` (key 23): where a leader epoch ended.

use crate::messages::declare::declare;

declare! {
    /// Request of `OffsetForLeaderEpoch`.
    pub struct OffsetForLeaderEpochRequest: versions 2..=4, flexible 4.. {
        replica_id: i32 [3.., ignorable] = -2,
        topics: Vec<OffsetForLeaderTopic> [0..],
    }

    /// Stands in [`OffsetForLeaderEpochRequest::topics`].
    pub struct OffsetForLeaderTopic {
        topic: String [0..],
        partitions: Vec<OffsetForLeaderPartition> [0..],
    }

    /// Stands in [`OffsetForLeaderTopic::partitions`].
    pub struct OffsetForLeaderPartition {
        partition: i32 [0..],
        current_leader_epoch: i32 [2.., ignorable] = -1,
        leader_epoch: i32 [0..],
    }

    /// Response of `OffsetForLeaderEpoch`.
    pub struct OffsetForLeaderEpochResponse: versions 2..=4, flexible 4.. {
        throttle_time_ms: i32 [2.., ignorable],
        topics: Vec<OffsetForLeaderTopicResult> [0..],
    }

    /// Stands in [`OffsetForLeaderEpochResponse::topics`].
    pub struct OffsetForLeaderTopicResult {
        topic: String [0..],
        partitions: Vec<EpochEndOffset> [0..],
    }

    /// Stands in [`OffsetForLeaderTopicResult::partitions`].
    pub struct EpochEndOffset {
        error_code: i16 [0..],
        partition: i32 [0..],
        leader_epoch: i32 [1.., ignorable] = -1,
        end_offset: i64 [0..] = -1,
    }
}
