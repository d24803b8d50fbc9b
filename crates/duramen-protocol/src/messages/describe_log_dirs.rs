//! `DescribeLogDirs` (key 35): disk use by directory and partition.

use crate::messages::declare::declare;

declare! {
    /// Request of `DescribeLogDirs`.
    pub struct DescribeLogDirsRequest: versions 1..=5, flexible 2.. {
        topics: Option<Vec<DescribableLogDirTopic>> [0.., nullable 0..],
    }

    /// Stands in [`DescribeLogDirsRequest::topics`].
    pub struct DescribableLogDirTopic {
        topic: String [0..],
        partitions: Vec<i32> [0..],
    }

    /// Response of `DescribeLogDirs`.
    pub struct DescribeLogDirsResponse: versions 1..=5, flexible 2.. {
        throttle_time_ms: i32 [0..],
        error_code: i16 [3.., ignorable],
        results: Vec<DescribeLogDirsResult> [0..],
    }

    /// Stands in [`DescribeLogDirsResponse::results`].
    pub struct DescribeLogDirsResult {
        error_code: i16 [0..],
        log_dir: String [0..],
        topics: Vec<DescribeLogDirsTopic> [0..],
        total_bytes: i64 [4.., ignorable] = -1,
        usable_bytes: i64 [4.., ignorable] = -1,
        is_cordoned: bool [5.., ignorable],
    }

    /// Stands in [`DescribeLogDirsResult::topics`].
    pub struct DescribeLogDirsTopic {
        name: String [0..],
        partitions: Vec<DescribeLogDirsPartition> [0..],
    }

    /// Stands in [`DescribeLogDirsTopic::partitions`].
    pub struct DescribeLogDirsPartition {
        partition_index: i32 [0..],
        partition_size: i64 [0..],
        offset_lag: i64 [0..],
        is_future_key: bool [0..],
    }
}
