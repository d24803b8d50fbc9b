//! `ReadShareGroupState` (key 84): the kept state of a share group's partitions, for their leaders.

pub use super::write_share_group_state::StateBatch;
use crate::messages::declare::declare;
use crate::wire::Uuid;

declare! {
    /// Request of `ReadShareGroupState`.
    pub struct ReadShareGroupStateRequest: versions 0..=0, flexible 0.. {
        group_id: String [0..],
        topics: Vec<ReadStateData> [0..],
    }

    /// Stands in [`ReadShareGroupStateRequest::topics`].
    pub struct ReadStateData {
        topic_id: Uuid [0..],
        partitions: Vec<PartitionData> [0..],
    }

    /// Stands in [`ReadStateData::partitions`].
    pub struct PartitionData {
        partition: i32 [0..],
        leader_epoch: i32 [0..],
    }

    /// Response of `ReadShareGroupState`.
    pub struct ReadShareGroupStateResponse: versions 0..=0, flexible 0.. {
        results: Vec<ReadStateResult> [0..],
    }

    /// Stands in [`ReadShareGroupStateResponse::results`].
    pub struct ReadStateResult {
        topic_id: Uuid [0..],
        partitions: Vec<PartitionResult> [0..],
    }

    /// Stands in [`ReadStateResult::partitions`].
    pub struct PartitionResult {
        partition: i32 [0..],
        error_code: i16 [0..],
        error_message: Option<String> [0.., nullable 0..],
        state_epoch: i32 [0..],
        start_offset: i64 [0..],
        state_batches: Vec<StateBatch> [0..],
    }
}
