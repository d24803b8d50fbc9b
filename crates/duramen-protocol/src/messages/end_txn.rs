//! `EndTxn` (key 26): commit a transaction, or abort it.

use crate::messages::declare::declare;

declare! {
    /// Request of `EndTxn`.
    pub struct EndTxnRequest: versions 0..=5, flexible 3.. {
        transactional_id: String [0..],
        producer_id: i64 [0..],
        producer_epoch: i16 [0..],
        committed: bool [0..],
    }

    /// Response of `EndTxn`. From version 5 on it says under which id and epoch the producer goes on.
    pub struct EndTxnResponse: versions 0..=5, flexible 3.. {
        throttle_time_ms: i32 [0..],
        error_code: i16 [0..],
        producer_id: i64 [5.., ignorable] = -1,
        producer_epoch: i16 [5.., ignorable] = -1,
    }
}
