//! `ApiVersions`: the APIs and versions that this node supports, from the table of APIs. A client may send it at any
//! time.

use duramen_protocol::ErrorCode;
use duramen_protocol::api::{Api, advertised, advertised_to};
use duramen_protocol::messages::api_versions::{
    ApiVersion, FinalizedFeatureKey, SupportedFeatureKey,
};
use duramen_protocol::messages::{ApiVersionsRequest, ApiVersionsResponse};

/// Feature that clients may rely on by name. All nodes have it at the same, highest level. No operator can change the
/// level.
pub(crate) struct Feature {
    pub(crate) name: &'static str,
    pub(crate) level: i16,
}

pub(crate) const FEATURES: &[Feature] = &[
    // Groups of the consumer protocol (KIP-848).
    Feature { name: "group.version", level: 1 },
    // Share groups (KIP-932).
    Feature { name: "share.version", level: 1 },
    // Each transaction has an epoch of its own, and partitions add themselves (KIP-890).
    Feature { name: "transaction.version", level: 2 },
];

/// The first version of `ApiVersions` whose clients know features that may be at level 0 (KIP-584, KAFKA-17011).
const FEATURES_FROM_LEVEL_0: i16 = 4;

/// Returns the rows for a client that calls itself `software`.
fn versions(software: &str) -> Vec<ApiVersion> {
    let row = |api: &Api| ApiVersion {
        api_key: api.key.code(),
        min_version: api.advertised.first,
        max_version: api.advertised.last,
    };
    advertised().chain(advertised_to(software)).map(row).collect()
}

/// Returns the answer to a request of a version that we do not know, to be sent in version 0.
pub(crate) fn unsupported_version() -> ApiVersionsResponse {
    ApiVersionsResponse {
        error_code: ErrorCode::UnsupportedVersion.code(),
        api_keys: versions(""),
        ..ApiVersionsResponse::default()
    }
}

pub(crate) fn answer(request: &ApiVersionsRequest, version: i16) -> ApiVersionsResponse {
    // Before version 3 there are no names, and the empty ones of the struct are not looked at.
    let names = [&request.client_software_name, &request.client_software_version];
    let is_named = names.iter().any(|name| !name.is_empty());
    if is_named && !names.iter().all(|name| is_software_name(name)) {
        return ApiVersionsResponse {
            error_code: ErrorCode::InvalidRequest.code(),
            ..ApiVersionsResponse::default()
        };
    }
    // kafka-clients 3.3 to 3.7 cannot decode a feature whose lowest level is 0, and then do not connect at all. Kafka
    // hides such a feature as well.
    let is_shown = version >= FEATURES_FROM_LEVEL_0;
    let supported = |it: &Feature| SupportedFeatureKey {
        name: it.name.to_owned(),
        min_version: 0,
        max_version: it.level,
    };
    let finalized = |it: &Feature| FinalizedFeatureKey {
        name: it.name.to_owned(),
        min_version_level: it.level,
        max_version_level: it.level,
    };
    ApiVersionsResponse {
        api_keys: versions(&request.client_software_name),
        supported_features: FEATURES.iter().filter(|_| is_shown).map(supported).collect(),
        finalized_features_epoch: 0,
        finalized_features: FEATURES.iter().map(finalized).collect(),
        ..ApiVersionsResponse::default()
    }
}

fn is_software_name(name: &str) -> bool {
    let is_edge = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = name.as_bytes();
    let is_legal = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-');
    is_edge(bytes.first()) && is_edge(bytes.last()) && bytes.iter().all(is_legal)
}
