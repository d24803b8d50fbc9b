//! `AlterConfigs` (key 33): replace configurations as a whole.

use crate::messages::declare::declare;

declare! {
    /// Request of `AlterConfigs`.
    pub struct AlterConfigsRequest: versions 0..=2, flexible 2.. {
        resources: Vec<AlterConfigsResource> [0..],
        validate_only: bool [0..],
    }

    /// Stands in [`AlterConfigsRequest::resources`].
    pub struct AlterConfigsResource {
        resource_type: i8 [0..],
        resource_name: String [0..],
        configs: Vec<AlterableConfig> [0..],
    }

    /// Stands in [`AlterConfigsResource::configs`].
    pub struct AlterableConfig {
        name: String [0..],
        value: Option<String> [0.., nullable 0..],
    }

    /// Response of `AlterConfigs`.
    pub struct AlterConfigsResponse: versions 0..=2, flexible 2.. {
        throttle_time_ms: i32 [0..],
        responses: Vec<AlterConfigsResourceResponse> [0..],
    }

    /// Stands in [`AlterConfigsResponse::responses`].
    pub struct AlterConfigsResourceResponse {
        error_code: i16 [0..],
        error_message: Option<String> [0.., nullable 0..],
        resource_type: i8 [0..],
        resource_name: String [0..],
    }
}
