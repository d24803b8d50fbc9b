//! `CreateAcls` (key 30): add access control entries.

use crate::messages::declare::declare;

declare! {
    /// Request of `CreateAcls`.
    pub struct CreateAclsRequest: versions 1..=3, flexible 2.. {
        creations: Vec<AclCreation> [0..],
    }

    /// Stands in [`CreateAclsRequest::creations`].
    pub struct AclCreation {
        resource_type: i8 [0..],
        resource_name: String [0..],
        resource_pattern_type: i8 [1..] = 3,
        principal: String [0..],
        host: String [0..],
        operation: i8 [0..],
        permission_type: i8 [0..],
    }

    /// Response of `CreateAcls`.
    pub struct CreateAclsResponse: versions 1..=3, flexible 2.. {
        throttle_time_ms: i32 [0..],
        results: Vec<AclCreationResult> [0..],
    }

    /// Stands in [`CreateAclsResponse::results`].
    pub struct AclCreationResult {
        error_code: i16 [0..],
        error_message: Option<String> [0.., nullable 0..],
    }
}
