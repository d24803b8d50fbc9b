use bytes::Bytes;
use duramen_protocol::messages::delete_records::{DeleteRecordsPartition, DeleteRecordsTopic};
use duramen_protocol::messages::list_offsets::{ListOffsetsPartition, ListOffsetsTopic};
use duramen_protocol::messages::{
    ApiVersionsRequest, ApiVersionsResponse, DeleteRecordsRequest, DescribeClusterRequest,
    ListOffsetsRequest, MetadataRequest,
};
use duramen_protocol::{ErrorCode, Response};

use super::harness::{Harness, ONE, batch};
use crate::session::{Session, SessionStep};

#[test]
fn api_versions_lists_what_is_served() {
    let mut it = Harness::new(&[]);
    let Response::ApiVersions(response) = it.ask(ApiVersionsRequest::default(), 0) else {
        panic!("not an ApiVersions response")
    };
    let produce = response.api_keys.iter().find(|api| api.api_key == 0).expect("there");
    assert_eq!((produce.min_version, produce.max_version), (0, 13));
    assert_eq!(response.error_code, 0);
}

#[test]
fn an_unknown_version_of_api_versions_is_answered_in_version_0() {
    let mut session =
        Session::new(ONE, "User:ANONYMOUS".into(), "PLAINTEXT".into(), "/127.0.0.1".into());
    let frame = Bytes::from_static(&[0, 18, 0, 99, 0, 0, 0, 7, 0xff, 0xff]);
    let SessionStep::Reply(outgoing) = session.on_frame(frame) else { panic!("no reply") };
    let bytes = &outgoing[0].frame.bytes;
    assert_eq!(&bytes[4..8], &[0, 0, 0, 7]);
    assert_eq!(&bytes[8..10], &[0, 35]);
    assert!(bytes.len() > 50, "the list of versions is there too");
}

#[test]
fn garbage_and_apis_that_are_not_served_close_the_connection() {
    let mut session =
        Session::new(ONE, "User:ANONYMOUS".into(), "PLAINTEXT".into(), "/127.0.0.1".into());
    for frame in [&[0u8, 3][..], &[0, 99, 0, 0, 0, 0, 0, 1, 0, 0], &[0, 1, 0, 4, 0, 0, 0, 1]] {
        let step = session.on_frame(Bytes::copy_from_slice(frame));
        assert!(matches!(step, SessionStep::Close(_)), "{step:?}");
    }
}

#[test]
fn the_cluster_is_described() {
    let mut it = Harness::new(&[]);
    let request = DescribeClusterRequest { endpoint_type: 1, ..Default::default() };
    let Response::DescribeCluster(response) = it.ask(request, 1) else { panic!("other") };
    assert_eq!((response.controller_id, response.brokers.len()), (0, 1));
    let metadata = it.metadata(&[]);
    assert_eq!(metadata.cluster_id.as_deref(), Some(response.cluster_id.as_str()));
    let all = MetadataRequest { topics: Some(Vec::new()), ..Default::default() };
    it.create("t", &[]);
    let Response::Metadata(response) = it.ask(all.clone(), 0) else { panic!("other") };
    assert_eq!(response.topics.len(), 1, "in version 0 an empty list means all");
    let Response::Metadata(response) = it.ask(all, 1) else { panic!("other") };
    assert!(response.topics.is_empty());
}

#[test]
fn what_is_named_twice_is_answered_once() {
    let mut it = Harness::new(&[]);
    it.create("t", &[]);
    it.produce("t", batch(&["a", "b", "c"]));
    let names: Vec<_> =
        it.metadata(&["t", "u", "t"]).topics.into_iter().map(|it| it.name).collect();
    assert_eq!(names, [Some("t".to_owned()), Some("u".to_owned())]);

    let partition = |timestamp| ListOffsetsPartition { timestamp, ..Default::default() };
    let topic = |timestamp| {
        let partitions = vec![partition(timestamp)];
        ListOffsetsTopic { name: "t".to_owned(), partitions }
    };
    let topics = vec![topic(-1), topic(-2)];
    let request = ListOffsetsRequest { replica_id: -1, topics, ..Default::default() };
    let Response::ListOffsets(response) = it.ask(request, 7) else { panic!("other") };
    let codes: Vec<_> = response.topics.iter().flat_map(|topic| &topic.partitions).collect();
    assert_eq!((codes.len(), codes[0].error_code), (1, ErrorCode::InvalidRequest.code()));

    let topic = |offset| {
        let partitions = vec![DeleteRecordsPartition { partition_index: 0, offset }];
        DeleteRecordsTopic { name: "t".to_owned(), partitions }
    };
    let request = DeleteRecordsRequest { topics: vec![topic(3), topic(2)], timeout_ms: 1000 };
    let Response::DeleteRecords(response) = it.ask(request, 2) else { panic!("other") };
    let starts: Vec<_> = response.topics.iter().flat_map(|topic| &topic.partitions).collect();
    assert_eq!((starts.len(), starts[0].low_watermark), (1, 2), "the last counts");
}

#[test]
fn a_node_can_move_to_a_thread_of_its_own() {
    fn moves<T: Send>(_: &T) {}
    let it = Harness::new(&[]);
    moves(&it.node);
    moves(&Session::new(ONE, "User:ANONYMOUS".into(), "PLAINTEXT".into(), "/127.0.0.1".into()));
}

#[test]
fn replies_keep_the_order_of_requests() {
    let mut session =
        Session::new(ONE, "User:ANONYMOUS".into(), "PLAINTEXT".into(), "/127.0.0.1".into());
    let frame = |id: u8| Bytes::copy_from_slice(&[0, 18, 0, 0, 0, 0, 0, id, 0xff, 0xff]);
    for id in 0..3 {
        assert!(matches!(session.on_frame(frame(id)), SessionStep::Request { .. }));
    }
    let reply = || Some(Response::ApiVersions(ApiVersionsResponse::default()));
    assert!(session.on_reply(2, reply()).expect("known").is_empty());
    assert!(session.on_reply(1, None).expect("known").is_empty());
    let out = session.on_reply(0, reply()).expect("known");
    let ids: Vec<_> = out.iter().map(|it| (it.sequence, it.frame.bytes[7])).collect();
    assert_eq!(ids, [(0, 0), (2, 2)], "the one without an answer takes no place");
    assert!(session.on_reply(1, reply()).is_err());
}
