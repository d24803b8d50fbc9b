//! `AlterShareGroupOffsets` (key 91): set where a share group starts in its partitions.

use crate::messages::declare::declare;
use crate::wire::Uuid;

declare! {
    /// Request of `AlterShareGroupOffsets`.
    pub struct AlterShareGroupOffsetsRequest: versions 0..=0, flexible 0.. {
        group_id: String [0..],
        topics: Vec<AlterShareGroupOffsetsRequestTopic> [0..],
    }

    /// Stands in [`AlterShareGroupOffsetsRequest::topics`].
    pub struct AlterShareGroupOffsetsRequestTopic {
        topic_name: String [0..],
        partitions: Vec<AlterShareGroupOffsetsRequestPartition> [0..],
    }

    /// Stands in [`AlterShareGroupOffsetsRequestTopic::partitions`].
    pub struct AlterShareGroupOffsetsRequestPartition {
        partition_index: i32 [0..],
        start_offset: i64 [0..],
    }

    /// Response of `AlterShareGroupOffsets`.
    pub struct AlterShareGroupOffsetsResponse: versions 0..=0, flexible 0.. {
        throttle_time_ms: i32 [0..],
        error_code: i16 [0..],
        error_message: Option<String> [0.., nullable 0..],
        responses: Vec<AlterShareGroupOffsetsResponseTopic> [0..],
    }

    /// Stands in [`AlterShareGroupOffsetsResponse::responses`].
    pub struct AlterShareGroupOffsetsResponseTopic {
        topic_name: String [0..],
        topic_id: Uuid [0..],
        partitions: Vec<AlterShareGroupOffsetsResponsePartition> [0..],
    }

    /// Stands in [`AlterShareGroupOffsetsResponseTopic::partitions`].
    pub struct AlterShareGroupOffsetsResponsePartition {
        partition_index: i32 [0..],
        error_code: i16 [0..],
        error_message: Option<String> [0.., nullable 0..],
    }
}
