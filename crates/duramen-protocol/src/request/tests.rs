//! Request frames byte by byte.

use bytes::{BufMut, Bytes, BytesMut};

use super::{
    REQUEST_ELEMENTS_MAX, RequestHeader, decode_request, decode_request_counted, encode_request,
};
use crate::Request;
use crate::api::ApiKey;
use crate::messages::produce::{PartitionProduceData, TopicProduceData};
use crate::messages::{MetadataRequest, ProduceRequest};
use crate::wire::DecodeError;

fn header(api: ApiKey, api_version: i16, client_id: Option<&str>) -> RequestHeader {
    let client_id = client_id.map(Into::into);
    RequestHeader { api_key: api.code(), api_version, correlation_id: 0x0102_0304, client_id }
}

/// Returns the frame without its length, after checking the length.
fn body(frame: BytesMut) -> Bytes {
    let mut frame = frame.freeze();
    let prefix = frame.split_to(4);
    assert_eq!(&prefix[..], u32::try_from(frame.len()).expect("short").to_be_bytes());
    frame
}

fn encoded(header: &RequestHeader, request: impl Into<Request>) -> Bytes {
    body(encode_request(header, &request.into()).expect("expressible").bytes)
}

#[test]
fn old_versions_have_a_header_without_and_new_ones_with_tagged_fields() {
    let all = MetadataRequest { topics: None, ..MetadataRequest::default() };
    let old = header(ApiKey::Metadata, 8, Some("me"));
    let bytes = encoded(&old, all.clone());
    assert_eq!(&bytes[..], b"\0\x03\0\x08\x01\x02\x03\x04\0\x02me\xff\xff\xff\xff\x01\0\0");
    assert_eq!(decode_request(bytes), Ok((old, Request::Metadata(all.clone()))));
    // The client id keeps its old form; one byte follows it.
    let new = header(ApiKey::Metadata, 9, Some("me"));
    let bytes = encoded(&new, all.clone());
    assert_eq!(&bytes[..], b"\0\x03\0\x09\x01\x02\x03\x04\0\x02me\0\0\x01\0\0\0");
    assert_eq!(decode_request(bytes), Ok((new, Request::Metadata(all))));
}

#[test]
fn a_client_id_may_be_null() {
    let old = header(ApiKey::Metadata, 1, None);
    let bytes = encoded(&old, MetadataRequest::default());
    assert_eq!(decode_request(bytes).expect("reads").0, old);
}

#[test]
fn tagged_fields_of_the_header_are_passed_over() {
    let frame = b"\0\x12\0\x03\0\0\0\x07\0\x01c\x01\x05\x02zz\x02a\x02b\0";
    let (header, request) = decode_request(Bytes::from_static(frame)).expect("reads");
    assert_eq!((header.correlation_id, header.client_id.as_deref()), (7, Some("c")));
    let Request::ApiVersions(request) = request else { panic!("{request:?}") };
    assert_eq!(
        (request.client_software_name.as_str(), request.client_software_version.as_str()),
        ("a", "b")
    );
}

#[test]
fn an_unknown_key_is_told_apart_from_an_unsupported_version() {
    let frame = |key: i16, version: i16| {
        let mut frame = BytesMut::new();
        frame.put_i16(key);
        frame.put_i16(version);
        frame.put_i32(42);
        frame.put_slice(b"\0\x02me and whatever this version may hold");
        decode_request(frame.freeze())
    };
    for key in [-1, 93, i16::MAX] {
        let Err(DecodeError::UnknownApiKey { header }) = frame(key, 0) else { panic!("{key}") };
        assert_eq!((header.api_key, header.correlation_id, header.api()), (key, 42, None));
    }
    // A later version of ours, versions Kafka dropped, an API not served, one refused.
    for (key, version) in [(18, 99), (18, -1), (0, 2), (1, 3), (22, 6), (80, 0), (4, 0), (52, 0)] {
        let result = frame(key, version);
        let Err(DecodeError::UnsupportedVersion { header }) = result else {
            panic!("{key} {version}: {result:?}")
        };
        assert_eq!((header.api_key, header.api_version, header.correlation_id), (key, version, 42));
        assert_eq!(header.client_id.as_deref(), Some("me"));
    }
}

#[test]
fn an_unsupported_version_is_recognised_even_if_the_rest_of_its_header_is_not() {
    let result = decode_request(Bytes::from_static(b"\0\x12\0\x63\0\0\0\x2a\0\x09me"));
    let Err(DecodeError::UnsupportedVersion { header }) = result else { panic!("{result:?}") };
    assert_eq!((header.api(), header.correlation_id), (Some(ApiKey::ApiVersions), 42));
}

#[test]
fn an_api_that_is_not_served_does_not_decode_as_a_request() {
    let bytes = Bytes::from_static(b"\0\x50\0\0\0\0\0\x2a\xff\xff\0");
    assert!(matches!(decode_request(bytes), Err(DecodeError::UnsupportedVersion { .. })));
}

#[test]
fn bytes_after_the_body_are_ignored_and_missing_ones_are_not() {
    let old = header(ApiKey::Metadata, 4, Some("me"));
    let bytes = encoded(&old, MetadataRequest::default());
    let longer = Bytes::from([&bytes[..], b"and more"].concat());
    assert_eq!(decode_request(longer), decode_request(bytes.clone()));
    for len in 0..bytes.len() {
        let cut = decode_request(bytes.slice(..len));
        assert!(matches!(cut, Err(DecodeError::Malformed { .. })), "{len}: {cut:?}");
    }
}

#[test]
fn records_of_a_produce_are_slices_of_its_frame() {
    let records = Some(Bytes::from(vec![0xab; 5000]));
    for version in 3..=13 {
        let partition = PartitionProduceData { index: 2, records: records.clone() };
        let topic =
            TopicProduceData { partition_data: [partition].into(), ..TopicProduceData::default() };
        let produce =
            ProduceRequest { acks: -1, topic_data: [topic].into(), ..ProduceRequest::default() };
        let frame = encoded(&header(ApiKey::Produce, version, Some("p")), produce.clone());
        let (_, request) = decode_request(frame.clone()).expect("reads");
        let Request::Produce(decoded) = request else { panic!("{request:?}") };
        assert_eq!(decoded, produce);
        let slice = decoded.topic_data[0].partition_data[0].records.as_ref().expect("present");
        assert!(frame.as_ptr_range().contains(&slice.as_ptr()), "version {version}");
    }
}

#[test]
fn the_arrays_of_a_request_have_a_bounded_number_of_elements_together() {
    let topic = |partitions: usize| {
        let partition_data = vec![PartitionProduceData::default(); partitions].into();
        TopicProduceData { name: "t".into(), partition_data, ..Default::default() }
    };
    let read = |topic_data| {
        let produce = ProduceRequest { topic_data, ..Default::default() };
        decode_request_counted(encoded(&header(ApiKey::Produce, 9, None), produce))
    };
    let (.., elements) = read(vec![topic(2), topic(3)].into()).expect("few");
    assert_eq!(elements, 2 + 2 + 3);
    let (.., elements) =
        read(vec![topic(REQUEST_ELEMENTS_MAX - 3), topic(1)].into()).expect("just few enough");
    assert_eq!(elements, REQUEST_ELEMENTS_MAX);
    let one_more = read(vec![topic(REQUEST_ELEMENTS_MAX - 3), topic(2)].into());
    assert_eq!(one_more, Err(DecodeError::TooManyElements { max: REQUEST_ELEMENTS_MAX }));
}
