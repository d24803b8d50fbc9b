use bytes::Bytes;
use duramen_protocol::Response;
use duramen_protocol::messages::{
    ApiVersionsRequest, ApiVersionsResponse, DescribeClusterRequest, MetadataRequest,
};

use super::harness::{Harness, ONE};
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
    let mut session = Session::new(ONE, "User:ANONYMOUS".into(), "L".into(), "/127.0.0.1".into());
    let frame = Bytes::from_static(&[0, 18, 0, 99, 0, 0, 0, 7, 0xff, 0xff]);
    let SessionStep::Reply(outgoing) = session.on_frame(frame) else { panic!("no reply") };
    let bytes = &outgoing[0].frame.bytes;
    assert_eq!(&bytes[4..8], &[0, 0, 0, 7]);
    assert_eq!(&bytes[8..10], &[0, 35]);
    assert!(bytes.len() > 50, "the list of versions is there too");
}

#[test]
fn garbage_and_apis_that_are_not_served_close_the_connection() {
    let mut session = Session::new(ONE, "User:ANONYMOUS".into(), "L".into(), "/127.0.0.1".into());
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
fn a_node_can_move_to_a_thread_of_its_own() {
    fn moves<T: Send>(_: &T) {}
    let it = Harness::new(&[]);
    moves(&it.node);
    moves(&Session::new(ONE, "User:ANONYMOUS".into(), "L".into(), "/127.0.0.1".into()));
}

#[test]
fn replies_keep_the_order_of_requests() {
    let mut session = Session::new(ONE, "User:ANONYMOUS".into(), "L".into(), "/127.0.0.1".into());
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
