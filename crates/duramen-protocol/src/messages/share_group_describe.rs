//! `ShareGroupDescribe` (key 77): state and members of share groups.

pub use super::consumer_group_describe::{Assignment, TopicPartitions};
use crate::messages::declare::declare;

declare! {
    /// Request of `ShareGroupDescribe`.
    pub struct ShareGroupDescribeRequest: versions 1..=1, flexible 0.. {
        group_ids: Vec<String> [0..],
        include_authorized_operations: bool [0..],
    }

    /// Response of `ShareGroupDescribe`.
    pub struct ShareGroupDescribeResponse: versions 1..=1, flexible 0.. {
        throttle_time_ms: i32 [0..],
        groups: Vec<DescribedGroup> [0..],
    }

    /// Stands in [`ShareGroupDescribeResponse::groups`].
    pub struct DescribedGroup {
        error_code: i16 [0..],
        error_message: Option<String> [0.., nullable 0..],
        group_id: String [0..],
        group_state: String [0..],
        group_epoch: i32 [0..],
        assignment_epoch: i32 [0..],
        assignor_name: String [0..],
        members: Vec<Member> [0..],
        authorized_operations: i32 [0..] = i32::MIN,
    }

    /// Stands in [`DescribedGroup::members`].
    pub struct Member {
        member_id: String [0..],
        rack_id: Option<String> [0.., nullable 0..],
        member_epoch: i32 [0..],
        client_id: String [0..],
        client_host: String [0..],
        subscribed_topic_names: Vec<String> [0..],
        assignment: Assignment [0..],
    }
}
