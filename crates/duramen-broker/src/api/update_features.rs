//! `UpdateFeatures`: every node has all features at their highest levels, so no request can change one. A script for
//! upgrades that asks for a feature's present level succeeds.

use duramen_protocol::ErrorCode;
use duramen_protocol::messages::update_features::{FeatureUpdateKey, UpdatableFeatureResult};
use duramen_protocol::messages::{UpdateFeaturesRequest, UpdateFeaturesResponse};

use crate::access::{Operation, Resource};
use crate::api_versions::FEATURES;
use crate::node::Node;
use crate::session::RequestContext;

pub(crate) fn answer(
    node: &Node,
    context: &RequestContext,
    request: &UpdateFeaturesRequest,
) -> UpdateFeaturesResponse {
    let refused = if node.core.access.may(context, Operation::Alter, Resource::Cluster) {
        // One that cannot be updated keeps all others from it.
        let refusal = request.feature_updates.iter().find_map(refusal);
        refusal.map(|text| (ErrorCode::InvalidUpdateVersion, text))
    } else {
        let text = "not allowed to alter the cluster".to_owned();
        Some((ErrorCode::ClusterAuthorizationFailed, text))
    };
    if let Some((code, text)) = refused {
        return UpdateFeaturesResponse {
            error_code: code.code(),
            error_message: Some(text),
            ..Default::default()
        };
    }
    // In versions 0 and 1 a client takes a feature without a result for failed.
    let done = |update: &FeatureUpdateKey| UpdatableFeatureResult {
        feature: update.feature.clone(),
        ..Default::default()
    };
    let results = request.feature_updates.iter().map(done).collect();
    UpdateFeaturesResponse { results, ..Default::default() }
}

/// Returns the reason to refuse a feature's update, or `None` if the feature is at that level already.
fn refusal(update: &FeatureUpdateKey) -> Option<String> {
    let name = &update.feature;
    let Some(feature) = FEATURES.iter().find(|it| it.name == name) else {
        return Some(format!("there is no feature '{name}'; nothing is updated"));
    };
    let level = feature.level;
    (update.max_version_level != level).then(|| {
        format!("feature '{name}' is at level {level} and stays there; nothing is updated")
    })
}
