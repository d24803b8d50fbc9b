//! `DescribeTransactions` (key 65): what is known of transactional ids.

use crate::messages::declare::declare;

declare! {
    /// Request of `DescribeTransactions`.
    pub struct DescribeTransactionsRequest: versions 0..=0, flexible 0.. {
        transactional_ids: Vec<String> [0..],
    }

    /// Response of `DescribeTransactions`.
    pub struct DescribeTransactionsResponse: versions 0..=0, flexible 0.. {
        throttle_time_ms: i32 [0..],
        transaction_states: Vec<TransactionState> [0..],
    }

    /// Stands in [`DescribeTransactionsResponse::transaction_states`].
    pub struct TransactionState {
        error_code: i16 [0..],
        transactional_id: String [0..],
        transaction_state: String [0..],
        transaction_timeout_ms: i32 [0..],
        transaction_start_time_ms: i64 [0..],
        producer_id: i64 [0..],
        producer_epoch: i16 [0..],
        topics: Vec<TopicData> [0..],
    }

    /// Stands in [`TransactionState::topics`].
    pub struct TopicData {
        topic: String [0..],
        partitions: Vec<i32> [0..],
    }
}
