//! `TxnOffsetCommit` (key 28): store consumed offsets once a transaction commits.

use crate::messages::declare::declare;

declare! {
    /// Request of `TxnOffsetCommit`.
    pub struct TxnOffsetCommitRequest: versions 0..=5, flexible 3.. {
        transactional_id: String [0..],
        group_id: String [0..],
        producer_id: i64 [0..],
        producer_epoch: i16 [0..],
        generation_id: i32 [3..] = -1,
        member_id: String [3..],
        group_instance_id: Option<String> [3.., nullable 3..],
        topics: Vec<TxnOffsetCommitRequestTopic> [0..],
    }

    /// Stands in [`TxnOffsetCommitRequest::topics`].
    pub struct TxnOffsetCommitRequestTopic {
        name: String [0..],
        partitions: Vec<TxnOffsetCommitRequestPartition> [0..],
    }

    /// Stands in [`TxnOffsetCommitRequestTopic::partitions`].
    pub struct TxnOffsetCommitRequestPartition {
        partition_index: i32 [0..],
        committed_offset: i64 [0..],
        committed_leader_epoch: i32 [2.., ignorable] = -1,
        committed_metadata: Option<String> [0.., nullable 0..],
    }

    /// Response of `TxnOffsetCommit`.
    pub struct TxnOffsetCommitResponse: versions 0..=5, flexible 3.. {
        throttle_time_ms: i32 [0..],
        topics: Vec<TxnOffsetCommitResponseTopic> [0..],
    }

    /// Stands in [`TxnOffsetCommitResponse::topics`].
    pub struct TxnOffsetCommitResponseTopic {
        name: String [0..],
        partitions: Vec<TxnOffsetCommitResponsePartition> [0..],
    }

    /// Stands in [`TxnOffsetCommitResponseTopic::partitions`].
    pub struct TxnOffsetCommitResponsePartition {
        partition_index: i32 [0..],
        error_code: i16 [0..],
    }
}
