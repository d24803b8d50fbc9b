//! `UnregisterBroker` (key 64): take a broker out of the cluster.

use crate::messages::declare::declare;

declare! {
    /// Request of `UnregisterBroker`.
    pub struct UnregisterBrokerRequest: versions 0..=0, flexible 0.. {
        broker_id: i32 [0..],
    }

    /// Response of `UnregisterBroker`.
    pub struct UnregisterBrokerResponse: versions 0..=0, flexible 0.. {
        throttle_time_ms: i32 [0..],
        error_code: i16 [0..],
        error_message: Option<String> [0.., nullable 0..],
    }
}
