//! `DeleteAcls` (key 31): remove access control entries.

use crate::messages::declare::declare;

declare! {
    /// Request of `DeleteAcls`.
    pub struct DeleteAclsRequest: versions 1..=3, flexible 2.. {
        filters: Vec<DeleteAclsFilter> [0..],
    }

    /// Stands in [`DeleteAclsRequest::filters`].
    pub struct DeleteAclsFilter {
        resource_type_filter: i8 [0..],
        resource_name_filter: Option<String> [0.., nullable 0..],
        pattern_type_filter: i8 [1..] = 3,
        principal_filter: Option<String> [0.., nullable 0..],
        host_filter: Option<String> [0.., nullable 0..],
        operation: i8 [0..],
        permission_type: i8 [0..],
    }

    /// Response of `DeleteAcls`.
    pub struct DeleteAclsResponse: versions 1..=3, flexible 2.. {
        throttle_time_ms: i32 [0..],
        filter_results: Vec<DeleteAclsFilterResult> [0..],
    }

    /// Stands in [`DeleteAclsResponse::filter_results`].
    pub struct DeleteAclsFilterResult {
        error_code: i16 [0..],
        error_message: Option<String> [0.., nullable 0..],
        matching_acls: Vec<DeleteAclsMatchingAcl> [0..],
    }

    /// Stands in [`DeleteAclsFilterResult::matching_acls`].
    pub struct DeleteAclsMatchingAcl {
        error_code: i16 [0..],
        error_message: Option<String> [0.., nullable 0..],
        resource_type: i8 [0..],
        resource_name: String [0..],
        pattern_type: i8 [1..] = 3,
        principal: String [0..],
        host: String [0..],
        operation: i8 [0..],
        permission_type: i8 [0..],
    }
}
