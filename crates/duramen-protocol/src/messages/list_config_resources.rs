//! `ListConfigResources` (key 74): resources that have settings of their own.

use crate::messages::declare::declare;

declare! {
    /// Request of `ListConfigResources`.
    pub struct ListConfigResourcesRequest: versions 0..=1, flexible 0.. {
        resource_types: Vec<i8> [1..],
    }

    /// Response of `ListConfigResources`.
    pub struct ListConfigResourcesResponse: versions 0..=1, flexible 0.. {
        throttle_time_ms: i32 [0..],
        error_code: i16 [0..],
        config_resources: Vec<ConfigResource> [0..],
    }

    /// Stands in [`ListConfigResourcesResponse::config_resources`].
    pub struct ConfigResource {
        resource_name: String [0..],
        resource_type: i8 [1.., ignorable] = 16,
    }
}
