//! `OffsetDelete` (key 47): delete stored offsets.

use crate::messages::declare::declare;

declare! {
    /// Request of `OffsetDelete`.
    pub struct OffsetDeleteRequest: versions 0..=0, flexible none {
        group_id: String [0..],
        topics: Vec<OffsetDeleteRequestTopic> [0..],
    }

    /// Stands in [`OffsetDeleteRequest::topics`].
    pub struct OffsetDeleteRequestTopic {
        name: String [0..],
        partitions: Vec<OffsetDeleteRequestPartition> [0..],
    }

    /// Stands in [`OffsetDeleteRequestTopic::partitions`].
    pub struct OffsetDeleteRequestPartition {
        partition_index: i32 [0..],
    }

    /// Response of `OffsetDelete`.
    pub struct OffsetDeleteResponse: versions 0..=0, flexible none {
        error_code: i16 [0..],
        throttle_time_ms: i32 [0.., ignorable],
        topics: Vec<OffsetDeleteResponseTopic> [0..],
    }

    /// Stands in [`OffsetDeleteResponse::topics`].
    pub struct OffsetDeleteResponseTopic {
        name: String [0..],
        partitions: Vec<OffsetDeleteResponsePartition> [0..],
    }

    /// Stands in [`OffsetDeleteResponseTopic::partitions`].
    pub struct OffsetDeleteResponsePartition {
        partition_index: i32 [0..],
        error_code: i16 [0..],
    }
}
