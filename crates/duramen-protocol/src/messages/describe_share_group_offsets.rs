//! `DescribeShareGroupOffsets` (key 90): where share groups start in their partitions.

use crate::messages::declare::declare;
use crate::wire::Uuid;

declare! {
    /// Request of `DescribeShareGroupOffsets`.
    pub struct DescribeShareGroupOffsetsRequest: versions 0..=1, flexible 0.. {
        groups: Vec<DescribeShareGroupOffsetsRequestGroup> [0..],
    }

    /// Stands in [`DescribeShareGroupOffsetsRequest::groups`].
    pub struct DescribeShareGroupOffsetsRequestGroup {
        group_id: String [0..],
        topics: Option<Vec<DescribeShareGroupOffsetsRequestTopic>> [0.., nullable 0..],
    }

    /// Stands in [`DescribeShareGroupOffsetsRequestGroup::topics`].
    pub struct DescribeShareGroupOffsetsRequestTopic {
        topic_name: String [0..],
        partitions: Vec<i32> [0..],
    }

    /// Response of `DescribeShareGroupOffsets`.
    pub struct DescribeShareGroupOffsetsResponse: versions 0..=1, flexible 0.. {
        throttle_time_ms: i32 [0..],
        groups: Vec<DescribeShareGroupOffsetsResponseGroup> [0..],
    }

    /// Stands in [`DescribeShareGroupOffsetsResponse::groups`].
    pub struct DescribeShareGroupOffsetsResponseGroup {
        group_id: String [0..],
        topics: Vec<DescribeShareGroupOffsetsResponseTopic> [0..],
        error_code: i16 [0..],
        error_message: Option<String> [0.., nullable 0..],
    }

    /// Stands in [`DescribeShareGroupOffsetsResponseGroup::topics`].
    pub struct DescribeShareGroupOffsetsResponseTopic {
        topic_name: String [0..],
        topic_id: Uuid [0..],
        partitions: Vec<DescribeShareGroupOffsetsResponsePartition> [0..],
    }

    /// Stands in [`DescribeShareGroupOffsetsResponseTopic::partitions`].
    pub struct DescribeShareGroupOffsetsResponsePartition {
        partition_index: i32 [0..],
        start_offset: i64 [0..],
        leader_epoch: i32 [0..],
        lag: i64 [1.., ignorable] = -1,
        error_code: i16 [0..],
        error_message: Option<String> [0.., nullable 0..],
    }
}
