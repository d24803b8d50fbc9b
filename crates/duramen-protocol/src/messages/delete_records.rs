//! `DeleteRecords` (key 21): move the start of a partition forward.

use crate::messages::declare::declare;

declare! {
    /// Request of `DeleteRecords`.
    pub struct DeleteRecordsRequest: versions 0..=2, flexible 2.. {
        topics: Vec<DeleteRecordsTopic> [0..],
        timeout_ms: i32 [0..],
    }

    /// Stands in [`DeleteRecordsRequest::topics`].
    pub struct DeleteRecordsTopic {
        name: String [0..],
        partitions: Vec<DeleteRecordsPartition> [0..],
    }

    /// Stands in [`DeleteRecordsTopic::partitions`].
    pub struct DeleteRecordsPartition {
        partition_index: i32 [0..],
        offset: i64 [0..],
    }

    /// Response of `DeleteRecords`.
    pub struct DeleteRecordsResponse: versions 0..=2, flexible 2.. {
        throttle_time_ms: i32 [0..],
        topics: Vec<DeleteRecordsTopicResult> [0..],
    }

    /// Stands in [`DeleteRecordsResponse::topics`].
    pub struct DeleteRecordsTopicResult {
        name: String [0..],
        partitions: Vec<DeleteRecordsPartitionResult> [0..],
    }

    /// Stands in [`DeleteRecordsTopicResult::partitions`].
    pub struct DeleteRecordsPartitionResult {
        partition_index: i32 [0..],
        low_watermark: i64 [0..],
        error_code: i16 [0..],
    }
}
