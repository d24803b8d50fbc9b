//! `ListOffsets` (key 2): offsets by timestamp, and the first and last ones.

use crate::messages::declare::declare;

declare! {
    /// Request of `ListOffsets`.
    pub struct ListOffsetsRequest: versions 1..=11, flexible 6.. {
        replica_id: i32 [0..],
        isolation_level: i8 [2..],
        topics: Vec<ListOffsetsTopic> [0..],
        timeout_ms: i32 [10.., ignorable],
    }

    /// Stands in [`ListOffsetsRequest::topics`].
    pub struct ListOffsetsTopic {
        name: String [0..],
        partitions: Vec<ListOffsetsPartition> [0..],
    }

    /// Stands in [`ListOffsetsTopic::partitions`].
    pub struct ListOffsetsPartition {
        partition_index: i32 [0..],
        current_leader_epoch: i32 [4.., ignorable] = -1,
        timestamp: i64 [0..],
    }

    /// Response of `ListOffsets`.
    pub struct ListOffsetsResponse: versions 1..=11, flexible 6.. {
        throttle_time_ms: i32 [2.., ignorable],
        topics: Vec<ListOffsetsTopicResponse> [0..],
    }

    /// Stands in [`ListOffsetsResponse::topics`].
    pub struct ListOffsetsTopicResponse {
        name: String [0..],
        partitions: Vec<ListOffsetsPartitionResponse> [0..],
    }

    /// Stands in [`ListOffsetsTopicResponse::partitions`].
    pub struct ListOffsetsPartitionResponse {
        partition_index: i32 [0..],
        error_code: i16 [0..],
        timestamp: i64 [1..] = -1,
        offset: i64 [1..] = -1,
        leader_epoch: i32 [4..] = -1,
    }
}
