//! `LeaveGroup` (key 13): leave a group.

use crate::messages::declare::declare;

declare! {
    /// Request of `LeaveGroup`.
    pub struct LeaveGroupRequest: versions 0..=5, flexible 4.. {
        group_id: String [0..],
        member_id: String [0..=2],
        members: Vec<MemberIdentity> [3..],
    }

    /// Stands in [`LeaveGroupRequest::members`].
    pub struct MemberIdentity {
        member_id: String [3..],
        group_instance_id: Option<String> [3.., nullable 3..],
        reason: Option<String> [5.., nullable 5.., ignorable],
    }

    /// Response of `LeaveGroup`.
    pub struct LeaveGroupResponse: versions 0..=5, flexible 4.. {
        throttle_time_ms: i32 [1.., ignorable],
        error_code: i16 [0..],
        members: Vec<MemberResponse> [3..],
    }

    /// Stands in [`LeaveGroupResponse::members`].
    pub struct MemberResponse {
        member_id: String [3..],
        group_instance_id: Option<String> [3.., nullable 3..],
        error_code: i16 [3..],
    }
}
