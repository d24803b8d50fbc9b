//! `ApiVersions` (key 18): which APIs, in which versions, and which features the node has.

use crate::messages::declare::declare;

declare! {
    /// Request of `ApiVersions`.
    pub struct ApiVersionsRequest: versions 0..=4, flexible 3.. {
        client_software_name: String [3.., ignorable],
        client_software_version: String [3.., ignorable],
    }

    /// Response of `ApiVersions`.
    pub struct ApiVersionsResponse: versions 0..=4, flexible 3.. {
        error_code: i16 [0..],
        api_keys: Vec<ApiVersion> [0..],
        throttle_time_ms: i32 [1.., ignorable],
        supported_features: Vec<SupportedFeatureKey> [3.., tag 0 in 3.., ignorable],
        finalized_features_epoch: i64 [3.., tag 1 in 3.., ignorable] = -1,
        finalized_features: Vec<FinalizedFeatureKey> [3.., tag 2 in 3.., ignorable],
        zk_migration_ready: bool [3.., tag 3 in 3.., ignorable],
    }

    /// Stands in [`ApiVersionsResponse::api_keys`].
    pub struct ApiVersion {
        api_key: i16 [0..],
        min_version: i16 [0..],
        max_version: i16 [0..],
    }

    /// Stands in [`ApiVersionsResponse::supported_features`].
    pub struct SupportedFeatureKey {
        name: String [3..],
        min_version: i16 [3..],
        max_version: i16 [3..],
    }

    /// Stands in [`ApiVersionsResponse::finalized_features`].
    pub struct FinalizedFeatureKey {
        name: String [3..],
        max_version_level: i16 [3..],
        min_version_level: i16 [3..],
    }
}
