//! `DeleteGroups` (key 42): delete empty groups.

use crate::messages::declare::declare;

declare! {
    /// Request of `DeleteGroups`.
    pub struct DeleteGroupsRequest: versions 0..=2, flexible 2.. {
        groups_names: Vec<String> [0..],
    }

    /// Response of `DeleteGroups`.
    pub struct DeleteGroupsResponse: versions 0..=2, flexible 2.. {
        throttle_time_ms: i32 [0..],
        results: Vec<DeletableGroupResult> [0..],
    }

    /// Stands in [`DeleteGroupsResponse::results`].
    pub struct DeletableGroupResult {
        group_id: String [0..],
        error_code: i16 [0..],
    }
}
