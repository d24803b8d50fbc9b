//! `ShareGroupHeartbeat` (key 76): join, stay in and leave a share group.

pub use super::consumer_group_heartbeat::{Assignment, TopicPartitions};
use crate::messages::declare::declare;

declare! {
    /// Request of `ShareGroupHeartbeat`.
    pub struct ShareGroupHeartbeatRequest: versions 1..=1, flexible 0.. {
        group_id: String [0..],
        member_id: String [0..],
        member_epoch: i32 [0..],
        rack_id: Option<String> [0.., nullable 0..],
        subscribed_topic_names: Option<Vec<String>> [0.., nullable 0..],
    }

    /// Response of `ShareGroupHeartbeat`.
    pub struct ShareGroupHeartbeatResponse: versions 1..=1, flexible 0.. {
        throttle_time_ms: i32 [0..],
        error_code: i16 [0..],
        error_message: Option<String> [0.., nullable 0..],
        member_id: Option<String> [0.., nullable 0..],
        member_epoch: i32 [0..],
        heartbeat_interval_ms: i32 [0..],
        assignment: Option<Assignment> [0.., nullable 0..],
    }
}
