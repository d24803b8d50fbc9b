//! `IncrementalAlterConfigs` (key 44): change single configuration keys.

pub use super::alter_configs::AlterConfigsResourceResponse;
use crate::messages::declare::declare;

declare! {
    /// Request of `IncrementalAlterConfigs`.
    pub struct IncrementalAlterConfigsRequest: versions 0..=1, flexible 1.. {
        resources: Vec<AlterConfigsResource> [0..],
        validate_only: bool [0..],
    }

    /// Stands in [`IncrementalAlterConfigsRequest::resources`].
    pub struct AlterConfigsResource {
        resource_type: i8 [0..],
        resource_name: String [0..],
        configs: Vec<AlterableConfig> [0..],
    }

    /// Stands in [`AlterConfigsResource::configs`].
    pub struct AlterableConfig {
        name: String [0..],
        config_operation: i8 [0..],
        value: Option<String> [0.., nullable 0..],
    }

    /// Response of `IncrementalAlterConfigs`.
    pub struct IncrementalAlterConfigsResponse: versions 0..=1, flexible 1.. {
        throttle_time_ms: i32 [0..],
        responses: Vec<AlterConfigsResourceResponse> [0..],
    }
}
