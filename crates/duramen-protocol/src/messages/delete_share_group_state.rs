//! `DeleteShareGroupState` (key 86): forget the kept state of a share group's partitions.

pub use super::write_share_group_state::PartitionResult;
use crate::messages::declare::declare;
use crate::wire::Uuid;

declare! {
    /// Request of `DeleteShareGroupState`.
    pub struct DeleteShareGroupStateRequest: versions 0..=0, flexible 0.. {
        group_id: String [0..],
        topics: Vec<DeleteStateData> [0..],
    }

    /// Stands in [`DeleteShareGroupStateRequest::topics`].
    pub struct DeleteStateData {
        topic_id: Uuid [0..],
        partitions: Vec<PartitionData> [0..],
    }

    /// Stands in [`DeleteStateData::partitions`].
    pub struct PartitionData {
        partition: i32 [0..],
    }

    /// Response of `DeleteShareGroupState`.
    pub struct DeleteShareGroupStateResponse: versions 0..=0, flexible 0.. {
        results: Vec<DeleteStateResult> [0..],
    }

    /// Stands in [`DeleteShareGroupStateResponse::results`].
    pub struct DeleteStateResult {
        topic_id: Uuid [0..],
        partitions: Vec<PartitionResult> [0..],
    }
}
