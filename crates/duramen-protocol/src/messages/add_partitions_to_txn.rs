//! `AddPartitionsToTxn` (key 24): partitions that a transaction writes to.

use crate::messages::declare::declare;

declare! {
    /// Request of `AddPartitionsToTxn`. Clients ask for one transaction, in versions up to 3; brokers for several.
    pub struct AddPartitionsToTxnRequest: versions 0..=5, flexible 3.. {
        transactions: Vec<AddPartitionsToTxnTransaction> [4..],
        v3_and_below_transactional_id: String [0..=3],
        v3_and_below_producer_id: i64 [0..=3],
        v3_and_below_producer_epoch: i16 [0..=3],
        v3_and_below_topics: Vec<AddPartitionsToTxnTopic> [0..=3],
    }

    /// Stands in [`AddPartitionsToTxnRequest::transactions`].
    pub struct AddPartitionsToTxnTransaction {
        transactional_id: String [4..],
        producer_id: i64 [4..],
        producer_epoch: i16 [4..],
        verify_only: bool [4..],
        topics: Vec<AddPartitionsToTxnTopic> [4..],
    }

    /// A topic's partitions.
    pub struct AddPartitionsToTxnTopic {
        name: String [0..],
        partitions: Vec<i32> [0..],
    }

    /// Response of `AddPartitionsToTxn`.
    pub struct AddPartitionsToTxnResponse: versions 0..=5, flexible 3.. {
        throttle_time_ms: i32 [0..],
        error_code: i16 [4.., ignorable],
        results_by_transaction: Vec<AddPartitionsToTxnResult> [4..],
        results_by_topic_v3_and_below: Vec<AddPartitionsToTxnTopicResult> [0..=3],
    }

    /// Stands in [`AddPartitionsToTxnResponse::results_by_transaction`].
    pub struct AddPartitionsToTxnResult {
        transactional_id: String [4..],
        topic_results: Vec<AddPartitionsToTxnTopicResult> [4..],
    }

    /// Results for the partitions of one topic.
    pub struct AddPartitionsToTxnTopicResult {
        name: String [0..],
        results_by_partition: Vec<AddPartitionsToTxnPartitionResult> [0..],
    }

    /// Stands in [`AddPartitionsToTxnTopicResult::results_by_partition`].
    pub struct AddPartitionsToTxnPartitionResult {
        partition_index: i32 [0..],
        partition_error_code: i16 [0..],
    }
}
