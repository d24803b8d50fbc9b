//! Response frames byte by byte.

use bytes::Bytes;

use super::{EncodedFrame, Response, decode_response, encode_response};
use crate::ErrorCode;
use crate::api::{ApiKey, advertised};
use crate::messages::api_versions::ApiVersion;
use crate::messages::fetch::{FetchableTopicResponse, PartitionData};
use crate::messages::{ApiVersionsResponse, DeleteTopicsResponse, FetchResponse};
use crate::wire::RecordData;

/// Returns the bytes on the wire, with `fill` in every hole, after checking the length.
fn on_the_wire(frame: &EncodedFrame, fill: u8) -> Bytes {
    let mut wire = Vec::new();
    let mut written = 0;
    for hole in &frame.holes {
        wire.extend_from_slice(&frame.bytes[written..hole.at]);
        wire.resize(wire.len() + hole.len as usize, fill);
        written = hole.at;
    }
    wire.extend_from_slice(&frame.bytes[written..]);
    assert_eq!(wire.len(), frame.wire_len());
    assert_eq!(wire[..4], u32::try_from(wire.len() - 4).expect("short").to_be_bytes());
    Bytes::from(wire).slice(4..)
}

fn refusal() -> Response {
    let list = advertised().map(|api| ApiVersion {
        api_key: api.key.code(),
        min_version: api.advertised.first,
        max_version: api.advertised.last,
    });
    let error_code = ErrorCode::UnsupportedVersion.code();
    let api_keys = list.collect();
    Response::ApiVersions(ApiVersionsResponse { error_code, api_keys, ..Default::default() })
}

#[test]
fn flexible_answers_have_a_longer_header_but_that_of_api_versions_never() {
    let answer = Response::DeleteTopics(DeleteTopicsResponse::default());
    let frame = |response: &Response, version| {
        on_the_wire(&encode_response(0x0102_0304, response, version).expect("expressible"), 0)
    };
    assert_eq!(&frame(&answer, 3)[..], b"\x01\x02\x03\x04\0\0\0\0\0\0\0\0");
    assert_eq!(&frame(&answer, 4)[..], b"\x01\x02\x03\x04\0\0\0\0\0\x01\0");
    let versions = Response::ApiVersions(ApiVersionsResponse::default());
    assert_eq!(&frame(&versions, 0)[..], b"\x01\x02\x03\x04\0\0\0\0\0\0");
    assert_eq!(&frame(&versions, 4)[..], b"\x01\x02\x03\x04\0\0\x01\0\0\0\0\0");
    for (version, api) in [(3, ApiKey::DeleteTopics), (4, ApiKey::DeleteTopics)] {
        let decoded = decode_response(frame(&answer, version), api, version);
        assert_eq!(decoded, Ok((0x0102_0304, answer.clone())));
    }
}

#[test]
fn a_client_that_asked_for_a_later_api_versions_reads_the_refusal_in_version_0() {
    let wire = on_the_wire(&encode_response(7, &refusal(), 0).expect("expressible"), 0);
    let (correlation_id, response) = decode_response(wire, ApiKey::ApiVersions, 4).expect("reads");
    assert_eq!((correlation_id, &response), (7, &refusal()));
    let Response::ApiVersions(response) = response else { panic!("{response:?}") };
    let produce = response.api_keys.iter().find(|row| row.api_key == 0).expect("listed");
    assert_eq!((produce.min_version, produce.max_version), (0, 13));
}

#[test]
fn the_length_counts_the_bytes_of_all_holes_in_every_version() {
    let partition = |id: u32, records| PartitionData {
        partition_index: i32::try_from(id).expect("small"),
        records: Some(records),
        ..PartitionData::default()
    };
    let external = |id: u32, len| partition(id, RecordData::External { len, id });
    let inline = partition(3, RecordData::Bytes(Bytes::from_static(b"inline")));
    let topic = FetchableTopicResponse {
        partitions: vec![external(1, 100_000), external(2, 0), inline, external(4, 5)],
        ..FetchableTopicResponse::default()
    };
    let fetch = FetchResponse { responses: vec![topic], ..FetchResponse::default() };
    for version in 4..=18 {
        let response = Response::Fetch(fetch.clone());
        let frame = encode_response(9, &response, version).expect("expressible");
        let holes: Vec<_> = frame.holes.iter().map(|hole| (hole.len, hole.id)).collect();
        assert_eq!(holes, [(100_000, 1), (5, 4)], "an empty hole is none");
        let wire = on_the_wire(&frame, 0xee);
        let (_, decoded) = decode_response(wire, ApiKey::Fetch, version).expect("reads");
        let Response::Fetch(decoded) = decoded else { panic!("{decoded:?}") };
        let lengths = decoded.responses[0].partitions.iter().map(|p| match &p.records {
            Some(RecordData::Bytes(bytes)) => bytes.len(),
            other => panic!("{other:?}"),
        });
        assert_eq!(lengths.collect::<Vec<_>>(), [100_000, 0, 6, 5], "version {version}");
    }
}

#[test]
fn a_client_refuses_bytes_after_the_body() {
    let response = Response::DeleteTopics(DeleteTopicsResponse::default());
    let wire = on_the_wire(&encode_response(7, &response, 3).expect("expressible"), 0);
    let longer = Bytes::from([&wire[..], &[0]].concat());
    assert!(decode_response(wire, ApiKey::DeleteTopics, 3).is_ok());
    assert!(decode_response(longer, ApiKey::DeleteTopics, 3).is_err());
}

#[test]
fn a_frame_longer_than_its_prefix_can_say_is_refused() {
    let huge = PartitionData {
        records: Some(RecordData::External { len: i32::MAX.cast_unsigned(), id: 1 }),
        ..PartitionData::default()
    };
    let topic = FetchableTopicResponse { partitions: vec![huge], ..Default::default() };
    let fetch = FetchResponse { responses: vec![topic], ..FetchResponse::default() };
    assert!(encode_response(9, &Response::Fetch(fetch), 4).is_err());
}
