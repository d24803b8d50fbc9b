//! `AddOffsetsToTxn` (key 25): a transaction is to commit offsets of a group.

use crate::messages::declare::declare;

declare! {
    /// Request of `AddOffsetsToTxn`.
    pub struct AddOffsetsToTxnRequest: versions 0..=4, flexible 3.. {
        transactional_id: String [0..],
        producer_id: i64 [0..],
        producer_epoch: i16 [0..],
        group_id: String [0..],
    }

    /// Response of `AddOffsetsToTxn`.
    pub struct AddOffsetsToTxnResponse: versions 0..=4, flexible 3.. {
        throttle_time_ms: i32 [0..],
        error_code: i16 [0..],
    }
}
