//! The topic that groups are kept in, as clients see it.

use duramen_protocol::messages::create_partitions::CreatePartitionsTopic;
use duramen_protocol::messages::delete_records::{DeleteRecordsPartition, DeleteRecordsTopic};
use duramen_protocol::messages::metadata::MetadataRequestTopic;
use duramen_protocol::messages::{
    CreatePartitionsRequest, DeleteRecordsRequest, FindCoordinatorRequest, FindCoordinatorResponse,
    MetadataRequest,
};
use duramen_protocol::{ErrorCode, Response};

use super::harness::{Harness, Store, batch};
use super::topics::delete;

pub(super) const GROUPS: &str = "__consumer_offsets";

fn find_request(key_type: i8, keys: &[&str]) -> FindCoordinatorRequest {
    FindCoordinatorRequest {
        key: keys[0].to_owned(),
        key_type,
        coordinator_keys: keys.iter().map(|key| (*key).to_owned()).collect(),
    }
}

fn one_key(key_type: i8) -> FindCoordinatorRequest {
    FindCoordinatorRequest { coordinator_keys: Vec::new(), ..find_request(key_type, &["g"]) }
}

fn several_keys(key_type: i8, keys: &[&str]) -> FindCoordinatorRequest {
    FindCoordinatorRequest { key: String::new(), ..find_request(key_type, keys) }
}

fn found(response: Response) -> FindCoordinatorResponse {
    match response {
        Response::FindCoordinator(response) => response,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_first_search_for_a_coordinator_makes_the_topic_and_is_answered_when_it_is_led() {
    let mut it = Harness::new(&[("offsets.topic.num.partitions", "3")]);
    assert_eq!(it.metadata(&[]).topics.len(), 0);
    let response = found(it.ask(several_keys(0, &["g", "h", ""]), 6));
    let told = response.coordinators.iter().map(|it| (it.error_code, it.node_id, it.host.as_str()));
    assert_eq!(told.collect::<Vec<_>>(), [(0, 0, "node.example"); 3]);
    let topic = it.metadata(&[GROUPS]).topics.remove(0);
    assert!(topic.is_internal);
    assert_eq!(topic.partitions.len(), 3);
    assert!(topic.partitions.iter().all(|it| it.leader_id == 0));
    for version in 0..4 {
        let response = found(it.ask(one_key(0), version));
        assert_eq!((response.error_code, response.node_id, response.port), (0, 0, 9092));
        assert_eq!(response.error_message.as_deref(), (version > 0).then_some("NONE"));
    }
}

#[test]
fn searches_meanwhile_wait_for_the_same_topic() {
    let mut it = Harness::slow(Store::default(), &[("offsets.topic.num.partitions", "2")], 1);
    let asked: Vec<i32> = (0..3).map(|_| it.send(several_keys(0, &["g"]), 4)).collect();
    it.is_prompt = true;
    it.run();
    for id in asked {
        let response = found(it.response(id).expect("answered"));
        assert_eq!(response.coordinators[0].error_code, 0);
    }
    let made = it.store.replicas.values().filter(|stored| stored.identity.topic == GROUPS);
    assert_eq!(made.count(), 2);
}

#[test]
fn coordinators_of_what_nobody_knows_are_refused_for_good() {
    let mut it = Harness::new(&[]);
    let mut code = |key_type, version| {
        let response = found(it.ask(several_keys(key_type, &["k"]), version));
        ErrorCode::from_code(response.coordinators[0].error_code).expect("a code")
    };
    assert_eq!(code(2, 5), ErrorCode::InvalidRequest);
    assert_eq!(code(2, 6), ErrorCode::InvalidRequest);
    assert_eq!(code(9, 6), ErrorCode::InvalidRequest);
    assert_eq!(it.store.replicas.len(), 1, "no topic was made for it");
}

#[test]
fn metadata_makes_the_topic_as_the_search_does() {
    let mut it = Harness::new(&[("offsets.topic.num.partitions", "4"), ("num.partitions", "9")]);
    let name =
        |name: &str| MetadataRequestTopic { name: Some(name.to_owned()), ..Default::default() };
    let topics = Some(vec![name(GROUPS), name("__share_group_state")]);
    let request = MetadataRequest { topics, allow_auto_topic_creation: true, ..Default::default() };
    let Response::Metadata(response) = it.ask(request, 12) else { panic!("other") };
    assert_eq!((response.topics[0].error_code, response.topics[0].partitions.len()), (0, 4));
    assert_eq!((response.topics[1].error_code, response.topics[1].partitions.len()), (0, 50));
}

#[test]
fn clients_may_read_it_and_nothing_more() {
    let mut it = Harness::new(&[("offsets.topic.num.partitions", "1")]);
    it.ask(several_keys(0, &["g"]), 4);
    let refused = ErrorCode::InvalidTopicException.code();
    assert_eq!(it.produce(GROUPS, batch(&["x"])).error_code, refused);
    let partitions = vec![DeleteRecordsPartition { partition_index: 0, offset: 0 }];
    let topics = vec![DeleteRecordsTopic { name: GROUPS.to_owned(), partitions }];
    let Response::DeleteRecords(response) =
        it.ask(DeleteRecordsRequest { topics, timeout_ms: 1000 }, 2)
    else {
        panic!("other")
    };
    assert_eq!(response.topics[0].partitions[0].error_code, refused);
    let topic = CreatePartitionsTopic { name: GROUPS.to_owned(), count: 9, assignments: None };
    let request = CreatePartitionsRequest { topics: vec![topic], ..Default::default() };
    let Response::CreatePartitions(response) = it.ask(request, 3) else { panic!("other") };
    assert_eq!(response.results[0].error_code, ErrorCode::InvalidPartitions.code());
    assert_eq!(it.fetch(GROUPS, 0).error_code, 0);
}

#[test]
fn it_may_be_deleted_and_comes_back_when_it_is_needed() {
    let mut it = Harness::new(&[("offsets.topic.num.partitions", "2")]);
    it.ask(several_keys(0, &["g"]), 4);
    delete(&mut it, GROUPS);
    assert_eq!(it.store.replicas.len(), 1);
    let response = found(it.ask(several_keys(0, &["g"]), 4));
    assert_eq!(response.coordinators[0].error_code, 0);
    assert_eq!(it.store.replicas.len(), 3);
}
