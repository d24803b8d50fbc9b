//! `DescribeAcls` (key 29): list access control entries.

use crate::messages::declare::declare;

declare! {
    /// Request of `DescribeAcls`.
    pub struct DescribeAclsRequest: versions 1..=3, flexible 2.. {
        resource_type_filter: i8 [0..],
        resource_name_filter: Option<String> [0.., nullable 0..],
        pattern_type_filter: i8 [1..] = 3,
        principal_filter: Option<String> [0.., nullable 0..],
        host_filter: Option<String> [0.., nullable 0..],
        operation: i8 [0..],
        permission_type: i8 [0..],
    }

    /// Response of `DescribeAcls`.
    pub struct DescribeAclsResponse: versions 1..=3, flexible 2.. {
        throttle_time_ms: i32 [0..],
        error_code: i16 [0..],
        error_message: Option<String> [0.., nullable 0..],
        resources: Vec<DescribeAclsResource> [0..],
    }

    /// Stands in [`DescribeAclsResponse::resources`].
    pub struct DescribeAclsResource {
        resource_type: i8 [0..],
        resource_name: String [0..],
        pattern_type: i8 [1..] = 3,
        acls: Vec<AclDescription> [0..],
    }

    /// Stands in [`DescribeAclsResource::acls`].
    pub struct AclDescription {
        principal: String [0..],
        host: String [0..],
        operation: i8 [0..],
        permission_type: i8 [0..],
    }
}
