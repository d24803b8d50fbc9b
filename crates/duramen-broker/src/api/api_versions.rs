//! `ApiVersions`: what we speak. It is the table, and it may be asked at any time.

use duramen_protocol::ErrorCode;
use duramen_protocol::api::{Api, advertised, advertised_to};
use duramen_protocol::messages::api_versions::{
    ApiVersion, FinalizedFeatureKey, SupportedFeatureKey,
};
use duramen_protocol::messages::{ApiVersionsRequest, ApiVersionsResponse};

/// The feature by whose level producers know which protocol of transactions is spoken.
pub(crate) const TRANSACTION_VERSION: &str = "transaction.version";
/// Each transaction has an epoch of its own, and partitions add themselves (KIP-890).
pub(crate) const TRANSACTION_LEVEL: i16 = 2;

/// The rows for a client that calls itself `software`.
fn versions(software: &str) -> Vec<ApiVersion> {
    let row = |api: &Api| ApiVersion {
        api_key: api.key.code(),
        min_version: api.advertised.first,
        max_version: api.advertised.last,
    };
    advertised().chain(advertised_to(software)).map(row).collect()
}

/// The answer to a request of a version that we do not know, to be sent in version 0.
pub(crate) fn unsupported_version() -> ApiVersionsResponse {
    ApiVersionsResponse {
        error_code: ErrorCode::UnsupportedVersion.code(),
        api_keys: versions(""),
        ..ApiVersionsResponse::default()
    }
}

pub(crate) fn answer(request: &ApiVersionsRequest) -> ApiVersionsResponse {
    // Before version 3 there are no names, and the empty ones of the struct are not looked at.
    let names = [&request.client_software_name, &request.client_software_version];
    let is_named = names.iter().any(|name| !name.is_empty());
    if is_named && !names.iter().all(|name| is_software_name(name)) {
        return ApiVersionsResponse {
            error_code: ErrorCode::InvalidRequest.code(),
            ..ApiVersionsResponse::default()
        };
    }
    // What all nodes of a cluster do alike: it is not turned up or down, so it never changes.
    let supported = SupportedFeatureKey {
        name: TRANSACTION_VERSION.to_owned(),
        min_version: 0,
        max_version: TRANSACTION_LEVEL,
    };
    let finalized = FinalizedFeatureKey {
        name: TRANSACTION_VERSION.to_owned(),
        min_version_level: TRANSACTION_LEVEL,
        max_version_level: TRANSACTION_LEVEL,
    };
    ApiVersionsResponse {
        api_keys: versions(&request.client_software_name),
        supported_features: vec![supported],
        finalized_features_epoch: 0,
        finalized_features: vec![finalized],
        ..ApiVersionsResponse::default()
    }
}

fn is_software_name(name: &str) -> bool {
    let is_edge = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = name.as_bytes();
    let is_legal = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-');
    is_edge(bytes.first()) && is_edge(bytes.last()) && bytes.iter().all(is_legal)
}
