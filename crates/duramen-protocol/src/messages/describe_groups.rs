//! `DescribeGroups` (key 15): state and members of classic groups.

use bytes::Bytes;

use crate::messages::declare::declare;

declare! {
    /// Request of `DescribeGroups`.
    pub struct DescribeGroupsRequest: versions 0..=6, flexible 5.. {
        groups: Vec<String> [0..],
        include_authorized_operations: bool [3..],
    }

    /// Response of `DescribeGroups`.
    pub struct DescribeGroupsResponse: versions 0..=6, flexible 5.. {
        throttle_time_ms: i32 [1.., ignorable],
        groups: Vec<DescribedGroup> [0..],
    }

    /// Stands in [`DescribeGroupsResponse::groups`].
    pub struct DescribedGroup {
        error_code: i16 [0..],
        error_message: Option<String> [6.., nullable 6..],
        group_id: String [0..],
        group_state: String [0..],
        protocol_type: String [0..],
        protocol_data: String [0..],
        members: Vec<DescribedGroupMember> [0..],
        authorized_operations: i32 [3..] = i32::MIN,
    }

    /// Stands in [`DescribedGroup::members`].
    pub struct DescribedGroupMember {
        member_id: String [0..],
        group_instance_id: Option<String> [4.., nullable 4.., ignorable],
        client_id: String [0..],
        client_host: String [0..],
        member_metadata: Bytes [0..],
        member_assignment: Bytes [0..],
    }
}
