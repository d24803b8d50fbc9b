//! `SyncGroup` (key 14): distribute the assignment of a classic group.

use bytes::Bytes;

use crate::messages::declare::declare;

declare! {
    /// Request of `SyncGroup`.
    pub struct SyncGroupRequest: versions 0..=5, flexible 4.. {
        group_id: String [0..],
        generation_id: i32 [0..],
        member_id: String [0..],
        group_instance_id: Option<String> [3.., nullable 3..],
        protocol_type: Option<String> [5.., nullable 5.., ignorable],
        protocol_name: Option<String> [5.., nullable 5.., ignorable],
        assignments: Vec<SyncGroupRequestAssignment> [0..],
    }

    /// Stands in [`SyncGroupRequest::assignments`].
    pub struct SyncGroupRequestAssignment {
        member_id: String [0..],
        assignment: Bytes [0..],
    }

    /// Response of `SyncGroup`.
    pub struct SyncGroupResponse: versions 0..=5, flexible 4.. {
        throttle_time_ms: i32 [1.., ignorable],
        error_code: i16 [0..],
        protocol_type: Option<String> [5.., nullable 5.., ignorable],
        protocol_name: Option<String> [5.., nullable 5.., ignorable],
        assignment: Bytes [0..],
    }
}
