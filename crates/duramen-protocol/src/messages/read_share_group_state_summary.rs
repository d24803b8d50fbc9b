//! `ReadShareGroupStateSummary` (key 87): where a share group's partitions start, without what became of each record.

pub use super::read_share_group_state::PartitionData;
use crate::messages::declare::declare;
use crate::wire::Uuid;

declare! {
    /// Request of `ReadShareGroupStateSummary`.
    pub struct ReadShareGroupStateSummaryRequest: versions 0..=1, flexible 0.. {
        group_id: String [0..],
        topics: Vec<ReadStateSummaryData> [0..],
    }

    /// Stands in [`ReadShareGroupStateSummaryRequest::topics`].
    pub struct ReadStateSummaryData {
        topic_id: Uuid [0..],
        partitions: Vec<PartitionData> [0..],
    }

    /// Response of `ReadShareGroupStateSummary`.
    pub struct ReadShareGroupStateSummaryResponse: versions 0..=1, flexible 0.. {
        results: Vec<ReadStateSummaryResult> [0..],
    }

    /// Stands in [`ReadShareGroupStateSummaryResponse::results`].
    pub struct ReadStateSummaryResult {
        topic_id: Uuid [0..],
        partitions: Vec<PartitionResult> [0..],
    }

    /// Stands in [`ReadStateSummaryResult::partitions`].
    pub struct PartitionResult {
        partition: i32 [0..],
        error_code: i16 [0..],
        error_message: Option<String> [0.., nullable 0..],
        state_epoch: i32 [0..],
        leader_epoch: i32 [0..],
        start_offset: i64 [0..],
        delivery_complete_count: i32 [1.., ignorable] = -1,
    }
}
