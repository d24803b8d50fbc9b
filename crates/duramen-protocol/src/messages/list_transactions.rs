//! `ListTransactions` (key 66): the transactional ids that a broker coordinates.

use crate::messages::declare::declare;

declare! {
    /// Request of `ListTransactions`.
    pub struct ListTransactionsRequest: versions 0..=2, flexible 0.. {
        state_filters: Vec<String> [0..],
        producer_id_filters: Vec<i64> [0..],
        duration_filter: i64 [1..] = -1,
        transactional_id_pattern: Option<String> [2.., nullable 2..],
    }

    /// Response of `ListTransactions`.
    pub struct ListTransactionsResponse: versions 0..=2, flexible 0.. {
        throttle_time_ms: i32 [0..],
        error_code: i16 [0..],
        unknown_state_filters: Vec<String> [0..],
        transaction_states: Vec<TransactionState> [0..],
    }

    /// Stands in [`ListTransactionsResponse::transaction_states`].
    pub struct TransactionState {
        transactional_id: String [0..],
        producer_id: i64 [0..],
        transaction_state: String [0..],
    }
}
