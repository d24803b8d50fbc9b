//! `Heartbeat` (key 12): stay a member of a classic group.

use crate::messages::declare::declare;

declare! {
    /// Request of `Heartbeat`.
    pub struct HeartbeatRequest: versions 0..=4, flexible 4.. {
        group_id: String [0..],
        generation_id: i32 [0..],
        member_id: String [0..],
        group_instance_id: Option<String> [3.., nullable 3..],
    }

    /// Response of `Heartbeat`.
    pub struct HeartbeatResponse: versions 0..=4, flexible 4.. {
        throttle_time_ms: i32 [1.., ignorable],
        error_code: i16 [0..],
    }
}
