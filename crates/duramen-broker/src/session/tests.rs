//! Requests that a session takes in, counts and refuses, without a node.

use bytes::Bytes;
use duramen_protocol::compression::Codec;
use duramen_protocol::messages::metadata::MetadataRequestTopic;
use duramen_protocol::messages::produce::{PartitionProduceData, TopicProduceData};
use duramen_protocol::messages::{ApiVersionsResponse, MetadataRequest, ProduceRequest};
use duramen_protocol::records::{BatchBuilder, NewRecord};
use duramen_protocol::{ErrorCode, Request, RequestHeader, Response, encode_request};

use super::{Prepared, Session, SessionStep};
use crate::event::ConnectionId;
use crate::limits::{ELEMENT_BYTES, SESSION_REQUESTS_MAX};

fn session() -> Session {
    Session::new(ConnectionId(1), "User:ANONYMOUS".into(), "L".into(), "/127.0.0.1".into())
}

#[test]
fn a_client_that_is_not_answered_is_not_read() {
    let mut session = session();
    let produce = Request::Produce(ProduceRequest::default());
    let frame = encoded(&produce, 9);
    for _ in 0..SESSION_REQUESTS_MAX {
        assert!(session.wants_more());
        session.on_frame(frame.clone());
    }
    assert!(!session.wants_more());
    session.on_reply(0, None).expect("known");
    assert!(session.wants_more());
}

#[test]
fn a_request_whose_answer_may_be_large_is_answered_before_the_next_one_is_taken_in() {
    let mut session = session();
    session.on_frame(Bytes::from_static(&[0, 18, 0, 0, 0, 0, 0, 1, 0xff, 0xff]));
    assert!(!session.wants_more());
    let response = Response::ApiVersions(ApiVersionsResponse::default());
    session.on_reply(0, Some(response)).expect("known");
    assert!(session.wants_more());
}

#[test]
fn what_a_request_takes_of_memory_is_counted_by_its_elements() {
    let mut session = session();
    let topics = vec![MetadataRequestTopic::default(); 1000];
    let request = MetadataRequest { topics: Some(topics), ..MetadataRequest::default() };
    let frame = encoded(&Request::Metadata(request), 12);
    let bytes = frame.len() + 1000 * ELEMENT_BYTES;
    session.on_frame(frame);
    assert_eq!(session.bytes(), bytes);
    session.on_reply(0, None).expect("known");
    assert_eq!(session.bytes(), 0);
}

#[test]
fn records_that_expand_to_much_are_checked_at_length_and_to_too_much_are_refused() {
    for (megabytes, is_refused) in [(20, false), (300, true)] {
        let mut session = session();
        let bomb = bomb(megabytes << 20);
        assert!(bomb.len() < 64 << 10, "{}", bomb.len());
        let SessionStep::Heavy(heavy) = session.on_frame(produce_frame(&[bomb.clone(), bomb]))
        else {
            panic!("it was checked where others wait")
        };
        let SessionStep::Request { request, .. } = session.on_heavy(*heavy) else { panic!() };
        let Prepared::Produce(produce) = *request else { panic!() };
        for partition in &produce.topics[0].partitions {
            let code = partition.batch.as_ref().map(|_| ()).map_err(|refused| refused.code);
            assert_eq!(code, if is_refused { Err(ErrorCode::MessageTooLarge) } else { Ok(()) });
        }
    }
}

#[test]
fn a_partition_named_hundreds_of_thousands_of_times_takes_no_time() {
    let partition_data = vec![PartitionProduceData::default(); 250_000];
    let topic = TopicProduceData { name: "t".into(), partition_data, ..Default::default() };
    let produce = ProduceRequest { topic_data: vec![topic], ..ProduceRequest::default() };
    let mut session = session();
    let step = session.on_frame(encoded(&Request::Produce(produce), 9));
    let SessionStep::Request { request, .. } = step else { panic!("{step:?}") };
    let Prepared::Produce(produce) = *request else { panic!() };
    assert_eq!(produce.topics[0].partitions.len(), 1);
}

fn encoded(request: &Request, api_version: i16) -> Bytes {
    let api_key = request.api_key().code();
    let header = RequestHeader { api_key, api_version, correlation_id: 1, client_id: None };
    encode_request(&header, request).expect("expressible").bytes.freeze().slice(4..)
}

/// A sound batch of one record with so many zeroes.
fn bomb(bytes: usize) -> Bytes {
    let mut builder = BatchBuilder::new().codec(Codec::Zstd);
    let value = vec![0; bytes];
    let record = NewRecord { timestamp: 1, key: None, value: Some(&value), headers: &[] };
    builder.push(&record).expect("one");
    builder.build().expect("small")
}

fn produce_frame(batches: &[Bytes]) -> Bytes {
    let of = |(index, records): (i32, &Bytes)| {
        let records = Some(records.clone());
        PartitionProduceData { index, records }
    };
    let partition_data = (0..).zip(batches).map(of).collect();
    let topic = TopicProduceData { name: "t".into(), partition_data, ..Default::default() };
    let produce = ProduceRequest { topic_data: vec![topic], ..ProduceRequest::default() };
    encoded(&Request::Produce(produce), 9)
}
