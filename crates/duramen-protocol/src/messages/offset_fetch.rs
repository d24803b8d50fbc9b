//! `OffsetFetch` (key 9): read stored offsets.

use crate::messages::declare::declare;
use crate::wire::Uuid;

declare! {
    /// Request of `OffsetFetch`.
    pub struct OffsetFetchRequest: versions 1..=10, flexible 6.. {
        group_id: String [0..=7],
        topics: Option<Vec<OffsetFetchRequestTopic>> [0..=7, nullable 2..=7] = Some(Vec::new()),
        groups: Vec<OffsetFetchRequestGroup> [8..],
        require_stable: bool [7..],
    }

    /// Stands in [`OffsetFetchRequest::topics`].
    pub struct OffsetFetchRequestTopic {
        name: String [0..=7],
        partition_indexes: Vec<i32> [0..=7],
    }

    /// Stands in [`OffsetFetchRequest::groups`].
    pub struct OffsetFetchRequestGroup {
        group_id: String [8..],
        member_id: Option<String> [9.., nullable 9.., ignorable],
        member_epoch: i32 [9.., ignorable] = -1,
        topics: Option<Vec<OffsetFetchRequestTopics>> [8.., nullable 8..],
    }

    /// Stands in [`OffsetFetchRequestGroup::topics`].
    pub struct OffsetFetchRequestTopics {
        name: String [8..=9, ignorable],
        topic_id: Uuid [10.., ignorable],
        partition_indexes: Vec<i32> [8..],
    }

    /// Response of `OffsetFetch`.
    pub struct OffsetFetchResponse: versions 1..=10, flexible 6.. {
        throttle_time_ms: i32 [3.., ignorable],
        topics: Vec<OffsetFetchResponseTopic> [0..=7],
        error_code: i16 [2..=7, ignorable],
        groups: Vec<OffsetFetchResponseGroup> [8..],
    }

    /// Stands in [`OffsetFetchResponse::topics`].
    pub struct OffsetFetchResponseTopic {
        name: String [0..=7],
        partitions: Vec<OffsetFetchResponsePartition> [0..=7],
    }

    /// Stands in [`OffsetFetchResponseTopic::partitions`].
    pub struct OffsetFetchResponsePartition {
        partition_index: i32 [0..=7],
        committed_offset: i64 [0..=7],
        committed_leader_epoch: i32 [5..=7, ignorable] = -1,
        metadata: Option<String> [0..=7, nullable 0..=7],
        error_code: i16 [0..=7],
    }

    /// Stands in [`OffsetFetchResponse::groups`].
    pub struct OffsetFetchResponseGroup {
        group_id: String [8..],
        topics: Vec<OffsetFetchResponseTopics> [8..],
        error_code: i16 [8..],
    }

    /// Stands in [`OffsetFetchResponseGroup::topics`].
    pub struct OffsetFetchResponseTopics {
        name: String [8..=9, ignorable],
        topic_id: Uuid [10.., ignorable],
        partitions: Vec<OffsetFetchResponsePartitions> [8..],
    }

    /// Stands in [`OffsetFetchResponseTopics::partitions`].
    pub struct OffsetFetchResponsePartitions {
        partition_index: i32 [8..],
        committed_offset: i64 [8..],
        committed_leader_epoch: i32 [8.., ignorable] = -1,
        metadata: Option<String> [8.., nullable 8..],
        error_code: i16 [8..],
    }
}
