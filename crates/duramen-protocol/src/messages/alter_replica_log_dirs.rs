//! `AlterReplicaLogDirs` (key 34): move replicas between directories of a broker.

use crate::messages::declare::declare;

declare! {
    /// Request of `AlterReplicaLogDirs`.
    pub struct AlterReplicaLogDirsRequest: versions 1..=2, flexible 2.. {
        dirs: Vec<AlterReplicaLogDir> [0..],
    }

    /// Stands in [`AlterReplicaLogDirsRequest::dirs`].
    pub struct AlterReplicaLogDir {
        path: String [0..],
        topics: Vec<AlterReplicaLogDirTopic> [0..],
    }

    /// Stands in [`AlterReplicaLogDir::topics`].
    pub struct AlterReplicaLogDirTopic {
        name: String [0..],
        partitions: Vec<i32> [0..],
    }

    /// Response of `AlterReplicaLogDirs`.
    pub struct AlterReplicaLogDirsResponse: versions 1..=2, flexible 2.. {
        throttle_time_ms: i32 [0..],
        results: Vec<AlterReplicaLogDirTopicResult> [0..],
    }

    /// Stands in [`AlterReplicaLogDirsResponse::results`].
    pub struct AlterReplicaLogDirTopicResult {
        topic_name: String [0..],
        partitions: Vec<AlterReplicaLogDirPartitionResult> [0..],
    }

    /// Stands in [`AlterReplicaLogDirTopicResult::partitions`].
    pub struct AlterReplicaLogDirPartitionResult {
        partition_index: i32 [0..],
        error_code: i16 [0..],
    }
}
