//! `UpdateFeatures` (key 57): raise and lower finalized features.

use crate::messages::declare::declare;

declare! {
    /// Request of `UpdateFeatures`.
    pub struct UpdateFeaturesRequest: versions 0..=2, flexible 0.. {
        timeout_ms: i32 [0..] = 60000,
        feature_updates: Vec<FeatureUpdateKey> [0..],
        validate_only: bool [1..],
    }

    /// Stands in [`UpdateFeaturesRequest::feature_updates`].
    pub struct FeatureUpdateKey {
        feature: String [0..],
        max_version_level: i16 [0..],
        allow_downgrade: bool [0..=0],
        upgrade_type: i8 [1..] = 1,
    }

    /// Response of `UpdateFeatures`.
    pub struct UpdateFeaturesResponse: versions 0..=2, flexible 0.. {
        throttle_time_ms: i32 [0..],
        error_code: i16 [0..],
        error_message: Option<String> [0.., nullable 0..],
        results: Vec<UpdatableFeatureResult> [0..=1, ignorable],
    }

    /// Stands in [`UpdateFeaturesResponse::results`].
    pub struct UpdatableFeatureResult {
        feature: String [0..],
        error_code: i16 [0..],
        error_message: Option<String> [0.., nullable 0..],
    }
}
