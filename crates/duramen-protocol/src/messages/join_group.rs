//! `JoinGroup` (key 11): join a classic consumer group.

use bytes::Bytes;

use crate::messages::declare::declare;

declare! {
    /// Request of `JoinGroup`.
    pub struct JoinGroupRequest: versions 0..=9, flexible 6.. {
        group_id: String [0..],
        session_timeout_ms: i32 [0..],
        rebalance_timeout_ms: i32 [1.., ignorable] = -1,
        member_id: String [0..],
        group_instance_id: Option<String> [5.., nullable 5..],
        protocol_type: String [0..],
        protocols: Vec<JoinGroupRequestProtocol> [0..],
        reason: Option<String> [8.., nullable 8.., ignorable],
    }

    /// Stands in [`JoinGroupRequest::protocols`].
    pub struct JoinGroupRequestProtocol {
        name: String [0..],
        metadata: Bytes [0..],
    }

    /// Response of `JoinGroup`.
    pub struct JoinGroupResponse: versions 0..=9, flexible 6.. {
        throttle_time_ms: i32 [2.., ignorable],
        error_code: i16 [0..],
        generation_id: i32 [0..] = -1,
        protocol_type: Option<String> [7.., nullable 7.., ignorable],
        protocol_name: Option<String> [0.., nullable 7..] = Some(String::new()),
        leader: String [0..],
        skip_assignment: bool [9..],
        member_id: String [0..],
        members: Vec<JoinGroupResponseMember> [0..],
    }

    /// Stands in [`JoinGroupResponse::members`].
    pub struct JoinGroupResponseMember {
        member_id: String [0..],
        group_instance_id: Option<String> [5.., nullable 5.., ignorable],
        metadata: Bytes [0..],
    }
}
