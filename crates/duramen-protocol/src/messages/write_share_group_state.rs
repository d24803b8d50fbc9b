//! `WriteShareGroupState` (key 85): what changed in the kept state of a share group's partitions.

use crate::messages::declare::declare;
use crate::wire::Uuid;

declare! {
    /// Request of `WriteShareGroupState`.
    pub struct WriteShareGroupStateRequest: versions 0..=1, flexible 0.. {
        group_id: String [0..],
        topics: Vec<WriteStateData> [0..],
    }

    /// Stands in [`WriteShareGroupStateRequest::topics`].
    pub struct WriteStateData {
        topic_id: Uuid [0..],
        partitions: Vec<PartitionData> [0..],
    }

    /// Stands in [`WriteStateData::partitions`].
    pub struct PartitionData {
        partition: i32 [0..],
        state_epoch: i32 [0..],
        leader_epoch: i32 [0..],
        start_offset: i64 [0..],
        delivery_complete_count: i32 [1.., ignorable] = -1,
        state_batches: Vec<StateBatch> [0..],
    }

    /// Stands in [`PartitionData::state_batches`].
    pub struct StateBatch {
        first_offset: i64 [0..],
        last_offset: i64 [0..],
        delivery_state: i8 [0..],
        delivery_count: i16 [0..],
    }

    /// Response of `WriteShareGroupState`.
    pub struct WriteShareGroupStateResponse: versions 0..=1, flexible 0.. {
        results: Vec<WriteStateResult> [0..],
    }

    /// Stands in [`WriteShareGroupStateResponse::results`].
    pub struct WriteStateResult {
        topic_id: Uuid [0..],
        partitions: Vec<PartitionResult> [0..],
    }

    /// Stands in [`WriteStateResult::partitions`].
    pub struct PartitionResult {
        partition: i32 [0..],
        error_code: i16 [0..],
        error_message: Option<String> [0.., nullable 0..],
    }
}
