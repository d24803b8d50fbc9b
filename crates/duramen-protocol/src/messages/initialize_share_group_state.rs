//! `InitializeShareGroupState` (key 83): begin the kept state of a share group's partitions.

pub use super::write_share_group_state::PartitionResult;
use crate::messages::declare::declare;
use crate::wire::Uuid;

declare! {
    /// Request of `InitializeShareGroupState`.
    pub struct InitializeShareGroupStateRequest: versions 0..=0, flexible 0.. {
        group_id: String [0..],
        topics: Vec<InitializeStateData> [0..],
    }

    /// Stands in [`InitializeShareGroupStateRequest::topics`].
    pub struct InitializeStateData {
        topic_id: Uuid [0..],
        partitions: Vec<PartitionData> [0..],
    }

    /// Stands in [`InitializeStateData::partitions`].
    pub struct PartitionData {
        partition: i32 [0..],
        state_epoch: i32 [0..],
        start_offset: i64 [0..],
    }

    /// Response of `InitializeShareGroupState`.
    pub struct InitializeShareGroupStateResponse: versions 0..=0, flexible 0.. {
        results: Vec<InitializeStateResult> [0..],
    }

    /// Stands in [`InitializeShareGroupStateResponse::results`].
    pub struct InitializeStateResult {
        topic_id: Uuid [0..],
        partitions: Vec<PartitionResult> [0..],
    }
}
