//! `DescribeConfigs` (key 32): effective configuration of topics and nodes.

use crate::messages::declare::declare;

declare! {
    /// Request of `DescribeConfigs`.
    pub struct DescribeConfigsRequest: versions 1..=4, flexible 4.. {
        resources: Vec<DescribeConfigsResource> [0..],
        include_synonyms: bool [1..],
        include_documentation: bool [3..],
    }

    /// Stands in [`DescribeConfigsRequest::resources`].
    pub struct DescribeConfigsResource {
        resource_type: i8 [0..],
        resource_name: String [0..],
        configuration_keys: Option<Vec<String>> [0.., nullable 0..],
    }

    /// Response of `DescribeConfigs`.
    pub struct DescribeConfigsResponse: versions 1..=4, flexible 4.. {
        throttle_time_ms: i32 [0..],
        results: Vec<DescribeConfigsResult> [0..],
    }

    /// Stands in [`DescribeConfigsResponse::results`].
    pub struct DescribeConfigsResult {
        error_code: i16 [0..],
        error_message: Option<String> [0.., nullable 0..],
        resource_type: i8 [0..],
        resource_name: String [0..],
        configs: Vec<DescribeConfigsResourceResult> [0..],
    }

    /// Stands in [`DescribeConfigsResult::configs`].
    pub struct DescribeConfigsResourceResult {
        name: String [0..],
        value: Option<String> [0.., nullable 0..],
        read_only: bool [0..],
        config_source: i8 [1.., ignorable] = -1,
        is_sensitive: bool [0..],
        synonyms: Vec<DescribeConfigsSynonym> [1.., ignorable],
        config_type: i8 [3.., ignorable],
        documentation: Option<String> [3.., nullable 0.., ignorable],
    }

    /// Stands in [`DescribeConfigsResourceResult::synonyms`].
    pub struct DescribeConfigsSynonym {
        name: String [1..],
        value: Option<String> [1.., nullable 0..],
        source: i8 [1..],
    }
}
