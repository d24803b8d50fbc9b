//! `ConsumerGroupDescribe` (key 69): state and members of groups of the consumer protocol.

use crate::messages::declare::declare;
use crate::wire::Uuid;

declare! {
    /// Request of `ConsumerGroupDescribe`.
    pub struct ConsumerGroupDescribeRequest: versions 0..=1, flexible 0.. {
        group_ids: Vec<String> [0..],
        include_authorized_operations: bool [0..],
    }

    /// Response of `ConsumerGroupDescribe`.
    pub struct ConsumerGroupDescribeResponse: versions 0..=1, flexible 0.. {
        throttle_time_ms: i32 [0..],
        groups: Vec<DescribedGroup> [0..],
    }

    /// Stands in [`ConsumerGroupDescribeResponse::groups`].
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
        instance_id: Option<String> [0.., nullable 0..],
        rack_id: Option<String> [0.., nullable 0..],
        member_epoch: i32 [0..],
        client_id: String [0..],
        client_host: String [0..],
        subscribed_topic_names: Vec<String> [0..],
        subscribed_topic_regex: Option<String> [0.., nullable 0..],
        assignment: Assignment [0..],
        target_assignment: Assignment [0..],
        member_type: i8 [1.., ignorable] = -1,
    }

    /// Stands in [`Member::assignment`] and [`Member::target_assignment`].
    pub struct Assignment {
        topic_partitions: Vec<TopicPartitions> [0..],
    }

    /// Stands in [`Assignment::topic_partitions`].
    pub struct TopicPartitions {
        topic_id: Uuid [0..],
        topic_name: String [0..],
        partitions: Vec<i32> [0..],
    }
}
