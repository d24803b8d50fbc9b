//! `ConsumerGroupHeartbeat` (key 68): join, stay in and leave a group of the consumer protocol.

use crate::messages::declare::declare;
use crate::wire::Uuid;

declare! {
    /// Request of `ConsumerGroupHeartbeat`. A null field has not changed since the last heartbeat.
    pub struct ConsumerGroupHeartbeatRequest: versions 0..=1, flexible 0.. {
        group_id: String [0..],
        member_id: String [0..],
        member_epoch: i32 [0..],
        instance_id: Option<String> [0.., nullable 0..],
        rack_id: Option<String> [0.., nullable 0..],
        rebalance_timeout_ms: i32 [0..] = -1,
        subscribed_topic_names: Option<Vec<String>> [0.., nullable 0..],
        subscribed_topic_regex: Option<String> [1.., nullable 1..],
        server_assignor: Option<String> [0.., nullable 0..],
        topic_partitions: Option<Vec<TopicPartitions>> [0.., nullable 0..],
    }

    /// Response of `ConsumerGroupHeartbeat`.
    pub struct ConsumerGroupHeartbeatResponse: versions 0..=1, flexible 0.. {
        throttle_time_ms: i32 [0..],
        error_code: i16 [0..],
        error_message: Option<String> [0.., nullable 0..],
        member_id: Option<String> [0.., nullable 0..],
        member_epoch: i32 [0..],
        heartbeat_interval_ms: i32 [0..],
        assignment: Option<Assignment> [0.., nullable 0..],
    }

    /// Stands in [`ConsumerGroupHeartbeatResponse::assignment`].
    pub struct Assignment {
        topic_partitions: Vec<TopicPartitions> [0..],
    }

    /// Stands in [`ConsumerGroupHeartbeatRequest::topic_partitions`] and [`Assignment::topic_partitions`].
    #[derive(Eq)]
    pub struct TopicPartitions {
        topic_id: Uuid [0..],
        partitions: Vec<i32> [0..],
    }
}
