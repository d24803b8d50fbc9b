//! The table against itself, the declared messages, and the document.

use std::fs;
use std::path::PathBuf;

use super::document::render;
use super::{API_TABLE, Api, ApiKey, OWN_TABLE, Status, advertised, advertised_to};
use crate::messages::for_each_api;
use crate::wire::{Message, Versions};

#[test]
fn there_is_one_row_per_key_in_order_without_gaps() {
    for (code, api) in (0i16..).zip(API_TABLE) {
        assert_eq!(api.key.code(), code);
        assert_eq!(ApiKey::from_code(code), Ok(api.key));
        assert_eq!(Api::of(api.key), api);
    }
    assert!(ApiKey::from_code(-1).is_err());
    assert!(ApiKey::from_code(i16::try_from(API_TABLE.len()).expect("small")).is_err());
}

#[test]
fn what_is_ours_is_far_from_kafkas_and_told_to_nobody_else() {
    for api in OWN_TABLE {
        assert!(api.key.code() >= 10_000 && api.is_served(), "{}", api.name);
        assert_eq!(ApiKey::from_code(api.key.code()), Ok(api.key));
        assert_eq!(Api::of(api.key), api);
        assert!(!advertised().any(|other| other.key == api.key), "{}", api.name);
    }
    for stranger in ["apache-kafka-java", "", "Duramen", "not-duramen"] {
        assert_eq!(advertised_to(stranger).count(), 0, "{stranger}");
    }
}

#[test]
fn clients_whose_names_begin_like_ours_are_told_of_what_they_may_use() {
    for software in ["duramen", "duramen-go"] {
        let told: Vec<_> = advertised_to(software).map(|api| api.key).collect();
        let ours = [
            ApiKey::DescribeReplicas,
            ApiKey::DescribeFast,
            ApiKey::AppendFast,
            ApiKey::BeginBackup,
        ];
        assert_eq!(told, ours, "{software}");
    }
}

#[test]
fn produce_is_advertised_from_zero_but_accepted_from_three() {
    let produce = Api::of(ApiKey::Produce);
    assert_eq!(produce.advertised, Versions::between(0, 13));
    assert!(!produce.accepts(2) && produce.accepts(3) && produce.accepts(13));
    for other in advertised().filter(|api| api.key != ApiKey::Produce) {
        assert_eq!(other.advertised, other.accepted, "{}", other.name);
    }
}

#[test]
fn header_versions_follow_the_flexible_versions_but_for_the_answer_of_api_versions() {
    let metadata = Api::of(ApiKey::Metadata);
    assert_eq!((metadata.request_header_version(8), metadata.response_header_version(8)), (1, 0));
    assert_eq!((metadata.request_header_version(9), metadata.response_header_version(9)), (2, 1));
    let versions = Api::of(ApiKey::ApiVersions);
    assert_eq!((versions.request_header_version(4), versions.response_header_version(4)), (2, 0));
    let sasl = Api::of(ApiKey::SaslHandshake);
    assert_eq!((sasl.request_header_version(1), sasl.response_header_version(1)), (1, 0));
}

#[test]
fn declared_messages_cover_exactly_what_their_api_accepts_and_agree_on_flexibility() {
    let mut declared = Vec::new();
    macro_rules! check {
        ($($module:ident $api:ident($request:ident, $response:ident))*) => {$(
            agrees::<crate::messages::$request>(ApiKey::$api);
            agrees::<crate::messages::$response>(ApiKey::$api);
            declared.push(ApiKey::$api);
        )*};
    }
    for_each_api!(check);
    for api in API_TABLE.iter().chain(OWN_TABLE).filter(|api| api.status == Status::Served) {
        assert!(declared.contains(&api.key), "{} is served but not declared", api.name);
    }
}

fn agrees<M: Message>(key: ApiKey) {
    let api = Api::of(key);
    assert_eq!(M::VERSIONS.first, api.accepted.first, "{api:?}");
    // A declared message may know one version more: an unstable one that is not accepted.
    assert!(M::VERSIONS.last - api.accepted.last <= i16::from(key == ApiKey::InitProducerId));
    for version in api.accepted.first..=api.accepted.last {
        assert!(M::VERSIONS.contains(version), "{} {version}", M::NAME);
        assert_eq!(M::FLEXIBLE.contains(version), api.flexible.contains(version), "{}", M::NAME);
    }
}

#[test]
fn the_document_says_what_the_table_says() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/api-versions.md");
    if std::env::var_os("DURAMEN_WRITE_DOCS").is_some() {
        fs::write(&path, render()).expect("docs can be written");
    }
    let written = fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(written, render(), "run with DURAMEN_WRITE_DOCS=1 to write {}", path.display());
}
