//! `UpdateFeatures`: there are no features yet whose level a cluster agrees on.

use duramen_protocol::ErrorCode;
use duramen_protocol::messages::{UpdateFeaturesRequest, UpdateFeaturesResponse};

use super::{Operation, Resource, authorize};
use crate::session::RequestContext;

pub(crate) fn answer(
    context: &RequestContext,
    request: &UpdateFeaturesRequest,
) -> UpdateFeaturesResponse {
    let mut response = UpdateFeaturesResponse::default();
    let (code, text) = if !authorize(&context.principal, Operation::Alter, Resource::Cluster) {
        (ErrorCode::ClusterAuthorizationFailed, "not allowed to alter the cluster".to_owned())
    } else if let Some(update) = request.feature_updates.first() {
        // One that cannot be updated keeps all others from it.
        let text = format!("there is no feature '{}'; nothing is updated", update.feature);
        (ErrorCode::InvalidUpdateVersion, text)
    } else {
        return response;
    };
    response.error_code = code.code();
    response.error_message = Some(text);
    response
}
