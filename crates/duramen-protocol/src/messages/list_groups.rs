//! `ListGroups` (key 16): all groups of a node.

use crate::messages::declare::declare;

declare! {
    /// Request of `ListGroups`.
    pub struct ListGroupsRequest: versions 0..=5, flexible 3.. {
        states_filter: Vec<String> [4..],
        types_filter: Vec<String> [5..],
    }

    /// Response of `ListGroups`.
    pub struct ListGroupsResponse: versions 0..=5, flexible 3.. {
        throttle_time_ms: i32 [1.., ignorable],
        error_code: i16 [0..],
        groups: Vec<ListedGroup> [0..],
    }

    /// Stands in [`ListGroupsResponse::groups`].
    pub struct ListedGroup {
        group_id: String [0..],
        protocol_type: String [0..],
        group_state: String [4.., ignorable],
        group_type: String [5.., ignorable],
    }
}
