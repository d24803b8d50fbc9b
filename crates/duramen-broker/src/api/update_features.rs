//! `UpdateFeatures`: every node has all features at their highest levels, so no request can change one. A script for
//! upgrades that asks for a feature's present level succeeds.

use duramen_protocol::ErrorCode;
use duramen_protocol::messages::update_features::{FeatureUpdateKey, UpdatableFeatureResult};
use duramen_protocol::messages::{UpdateFeaturesRequest, UpdateFeaturesResponse};

use super::checks::admit_operator;
use crate::api_versions::FEATURES;
use crate::controller::Error;
use crate::node::Node;
use crate::session::RequestContext;

pub(crate) fn answer(
    node: &Node,
    context: &RequestContext,
    request: &UpdateFeaturesRequest,
) -> UpdateFeaturesResponse {
    // One that cannot be updated keeps all others from it.
    let refusal = || request.feature_updates.iter().find_map(refusal);
    if let Some(error) = admit_operator(node, context).err().or_else(refusal) {
        return UpdateFeaturesResponse {
            error_code: error.code.code(),
            error_message: Some(error.message),
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
fn refusal(update: &FeatureUpdateKey) -> Option<Error> {
    let name = &update.feature;
    let text = match FEATURES.iter().find(|it| it.name == name) {
        None => format!("there is no feature '{name}'; nothing is updated"),
        Some(feature) if update.max_version_level == feature.level => return None,
        Some(feature) => format!(
            "feature '{name}' is at level {} and stays there; nothing is updated",
            feature.level
        ),
    };
    Some(Error::new(ErrorCode::InvalidUpdateVersion, text))
}
