//! `FindCoordinator` (key 10): which node coordinates a group or transaction.

use crate::messages::declare::declare;

declare! {
    /// Request of `FindCoordinator`.
    pub struct FindCoordinatorRequest: versions 0..=6, flexible 3.. {
        key: String [0..=3],
        key_type: i8 [1..],
        coordinator_keys: Vec<String> [4..],
    }

    /// Response of `FindCoordinator`.
    pub struct FindCoordinatorResponse: versions 0..=6, flexible 3.. {
        throttle_time_ms: i32 [1.., ignorable],
        error_code: i16 [0..=3],
        error_message: Option<String> [1..=3, nullable 1..=3, ignorable],
        node_id: i32 [0..=3],
        host: String [0..=3],
        port: i32 [0..=3],
        coordinators: Vec<Coordinator> [4..],
    }

    /// Stands in [`FindCoordinatorResponse::coordinators`].
    pub struct Coordinator {
        key: String [4..],
        node_id: i32 [4..],
        host: String [4..],
        port: i32 [4..],
        error_code: i16 [4..],
        error_message: Option<String> [4.., nullable 4.., ignorable],
    }
}
