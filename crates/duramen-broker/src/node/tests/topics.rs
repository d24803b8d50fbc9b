use duramen_protocol::messages::create_topics::{CreatableReplicaAssignment, CreatableTopic};
use duramen_protocol::messages::describe_configs::DescribeConfigsResource;
use duramen_protocol::messages::{
    CreateTopicsRequest, DeleteTopicsRequest, DescribeConfigsRequest, DescribeConfigsResponse,
};
use duramen_protocol::wire::Uuid;
use duramen_protocol::{ErrorCode, Response};

use super::harness::{Harness, batch, new_topic};

pub(super) fn delete_request(name: &str) -> DeleteTopicsRequest {
    DeleteTopicsRequest {
        topic_names: vec![name.to_owned()],
        timeout_ms: 1000,
        ..DeleteTopicsRequest::default()
    }
}

pub(super) fn delete(it: &mut Harness, name: &str) {
    match it.ask(delete_request(name), 5) {
        Response::DeleteTopics(response) => assert_eq!(response.responses[0].error_code, 0),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_created_topic_is_led_when_the_answer_arrives() {
    let mut it = Harness::new(&[]);
    let made = it.try_create(new_topic("t", 3, &[("retention.ms", "5000")]));
    let made = &made.topics[0];
    assert_eq!((made.error_code, made.num_partitions, made.replication_factor), (0, 3, 1));
    let configs = made.configs.as_ref().expect("echoed");
    let retention = configs.iter().find(|config| config.name == "retention.ms").expect("there");
    assert_eq!((retention.value.as_deref(), retention.config_source), (Some("5000"), 1));
    let metadata = it.metadata(&["t"]);
    assert_eq!(metadata.topics[0].topic_id, made.topic_id);
    assert_eq!(metadata.brokers[0].host, "node.example");
    let partitions = &metadata.topics[0].partitions;
    assert_eq!(partitions.len(), 3);
    assert!(partitions.iter().all(|it| it.leader_id == 0 && it.isr_nodes == [0]));
}

#[test]
fn bad_topics_are_refused_with_the_code_of_their_fault() {
    let mut it = Harness::new(&[]);
    it.create("there.is", &[]);
    let mut code =
        |topic| ErrorCode::from_code(it.try_create(topic).topics[0].error_code).expect("a code");
    let with = |change: fn(&mut CreatableTopic)| {
        let mut topic = new_topic("t", 1, &[]);
        change(&mut topic);
        topic
    };
    assert_eq!(code(new_topic("a/b", 1, &[])), ErrorCode::InvalidTopicException);
    assert_eq!(code(new_topic("..", 1, &[])), ErrorCode::InvalidTopicException);
    assert_eq!(code(new_topic("", 1, &[])), ErrorCode::InvalidTopicException);
    assert_eq!(code(new_topic("there_is", 1, &[])), ErrorCode::InvalidTopicException);
    assert_eq!(code(new_topic("there.is", 1, &[])), ErrorCode::TopicAlreadyExists);
    assert_eq!(code(new_topic("t", 0, &[])), ErrorCode::InvalidPartitions);
    assert_eq!(code(new_topic("t", -2, &[])), ErrorCode::InvalidPartitions);
    assert_eq!(code(with(|it| it.replication_factor = 2)), ErrorCode::InvalidReplicationFactor);
    assert_eq!(code(with(|it| it.replication_factor = 0)), ErrorCode::InvalidReplicationFactor);
    assert_eq!(code(new_topic("t", 1, &[("no.such", "1")])), ErrorCode::InvalidConfig);
    assert_eq!(code(new_topic("t", 1, &[("retention.ms", "x")])), ErrorCode::InvalidConfig);
    let manual = |ids: &[i32]| CreatableTopic {
        num_partitions: -1,
        replication_factor: -1,
        assignments: vec![CreatableReplicaAssignment {
            partition_index: 0,
            broker_ids: ids.to_vec(),
        }],
        ..new_topic("m", 1, &[])
    };
    assert_eq!(code(manual(&[3])), ErrorCode::InvalidReplicaAssignment);
    assert_eq!(code(manual(&[0])), ErrorCode::None);
}

#[test]
fn defaults_come_from_the_node_and_nothing_is_made_when_only_validating() {
    let mut it = Harness::new(&[("num.partitions", "4")]);
    let topic =
        CreatableTopic { num_partitions: -1, replication_factor: -1, ..new_topic("t", 1, &[]) };
    let request =
        CreateTopicsRequest { topics: vec![topic], validate_only: true, ..Default::default() };
    match it.ask(request, 7) {
        Response::CreateTopics(response) => {
            let made = &response.topics[0];
            assert_eq!((made.error_code, made.num_partitions), (0, 4));
            assert_eq!(made.topic_id, Uuid::ZERO);
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(it.store.replicas.len(), 1, "only the metadata group");
}

#[test]
fn a_topic_named_twice_in_one_request_is_refused_once() {
    let mut it = Harness::new(&[]);
    let topics = vec![new_topic("t", 1, &[]), new_topic("t", 2, &[]), new_topic("u", 1, &[])];
    match it.ask(CreateTopicsRequest { topics, ..Default::default() }, 7) {
        Response::CreateTopics(response) => {
            let codes: Vec<_> = response.topics.iter().map(|it| it.error_code).collect();
            assert_eq!(codes, [42, 0]);
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_topic_is_made_on_demand_only_if_both_sides_allow_it() {
    let mut it = Harness::new(&[("num.partitions", "2")]);
    let metadata = it.metadata(&["t"]);
    assert_eq!(metadata.topics[0].error_code, 0, "made before the answer");
    assert_eq!(metadata.topics[0].partitions.len(), 2);
    assert_eq!(it.produce("t", batch(&["a"])).error_code, 0);
    let bad = it.metadata(&["a/b"]).topics[0].error_code;
    assert_eq!(bad, ErrorCode::InvalidTopicException.code());

    let mut it = Harness::new(&[("auto.create.topics.enable", "false")]);
    let missing = it.metadata(&["t"]).topics[0].error_code;
    assert_eq!(missing, ErrorCode::UnknownTopicOrPartition.code());
}

#[test]
fn no_more_partitions_are_made_on_demand_than_one_creation_may_ask_for() {
    let mut it = Harness::new(&[("num.partitions", "4000")]);
    let codes: Vec<_> =
        it.metadata(&["a", "b", "c"]).topics.iter().map(|topic| topic.error_code).collect();
    assert_eq!(codes, [0, 0, ErrorCode::UnknownTopicOrPartition.code()]);
    assert_eq!(it.metadata(&["c"]).topics[0].error_code, 0, "it may be asked for again");
}

#[test]
fn a_deleted_topic_takes_its_replicas_along_and_its_successor_is_empty() {
    let mut it = Harness::new(&[]);
    it.create("t", &[]);
    it.produce("t", batch(&["a"]));
    let replica = it.replica("t");
    let before = it.metadata(&["t"]).topics[0].topic_id;
    delete(&mut it, "t");
    assert_eq!(it.store.deleted, [replica]);
    it.create("t", &[]);
    assert_ne!(it.metadata(&["t"]).topics[0].topic_id, before);
    assert_ne!(it.replica("t"), replica, "replica ids are never used twice");
    assert_eq!(it.fetch("t", 0).high_watermark, 0);
    let unknown = it.ask(delete_request("nope"), 5);
    let Response::DeleteTopics(unknown) = unknown else { panic!("{unknown:?}") };
    let code = unknown.responses[0].error_code;
    assert_eq!(code, ErrorCode::UnknownTopicOrPartition.code());
}

#[test]
fn what_is_asked_of_a_topic_whose_deletion_is_not_committed_waits_for_it() {
    let mut it = Harness::new(&[]);
    it.create("t", &[]);
    it.is_prompt = false; // storage waits to be told
    let deleted = it.send(delete_request("t"), 5);
    let again = it.send(delete_request("t"), 5);
    let topics = vec![new_topic("t", 1, &[])];
    let recreated = it.send(CreateTopicsRequest { topics, ..Default::default() }, 7);
    for id in [deleted, again, recreated] {
        assert!(it.response(id).is_none(), "judged by a deletion that may still be lost");
    }
    it.is_prompt = true;
    it.persist();
    it.run();
    let code_of = |response| match response {
        Some(Response::DeleteTopics(response)) => response.responses[0].error_code,
        Some(Response::CreateTopics(response)) => response.topics[0].error_code,
        other => panic!("{other:?}"),
    };
    assert_eq!(code_of(it.response(deleted)), 0);
    let unknown = ErrorCode::UnknownTopicOrPartition.code();
    assert_eq!(code_of(it.response(again)), unknown);
    assert_eq!(code_of(it.response(recreated)), 0);
    assert_eq!(it.fetch("t", 0).high_watermark, 0);
}

#[test]
fn what_waits_for_a_decision_waits_no_longer_than_it_says() {
    let mut it = Harness::new(&[("auto.create.topics.enable", "false")]);
    it.create("t", &[]);
    it.is_prompt = false;
    let slow = DeleteTopicsRequest { timeout_ms: 60_000, ..delete_request("t") };
    it.enqueue(crate::event::ConnectionId(2), &slow.into(), 5);
    it.run();
    let again = it.send(delete_request("t"), 5);
    let topics = vec![new_topic("t", 1, &[]), new_topic("u", 1, &[])];
    let both = CreateTopicsRequest { topics, timeout_ms: 2000, ..Default::default() };
    let recreated = it.send(both, 7);
    it.pass_ms(999);
    assert!(it.response(again).is_none());
    it.pass_ms(1);
    let timed_out = ErrorCode::RequestTimedOut.code();
    match it.response(again) {
        Some(Response::DeleteTopics(it)) => assert_eq!(it.responses[0].error_code, timed_out),
        other => panic!("{other:?}"),
    }
    assert!(it.response(recreated).is_none(), "it has time left");
    it.pass_ms(1000);
    match it.response(recreated) {
        Some(Response::CreateTopics(it)) => {
            assert!(it.topics.iter().all(|topic| topic.error_code == timed_out));
        }
        other => panic!("{other:?}"),
    }
    it.is_prompt = true;
    it.persist();
    it.run();
    assert_eq!(it.node.metrics().parked, 0);
    let mut there = it.metadata(&["t", "u"]).topics.into_iter();
    assert!(there.all(|topic| topic.partitions.is_empty()), "nothing was made of what timed out");
}

fn describe(it: &mut Harness, kind: i8, name: &str) -> DescribeConfigsResponse {
    let resource = DescribeConfigsResource {
        resource_type: kind,
        resource_name: name.to_owned(),
        configuration_keys: None,
    };
    let request = DescribeConfigsRequest {
        resources: vec![resource],
        include_synonyms: true,
        include_documentation: true,
    };
    match it.ask(request, 4) {
        Response::DescribeConfigs(response) => response,
        other => panic!("{other:?}"),
    }
}

#[test]
fn settings_are_described_with_their_sources() {
    let mut it = Harness::new(&[("log.retention.ms", "9000")]);
    it.create("t", &[("segment.bytes", "5000")]);
    let topic = describe(&mut it, 2, "t");
    let row = |name: &str| {
        let configs = &topic.results[0].configs;
        configs.iter().find(|row| row.name == name).expect("there").clone()
    };
    assert_eq!(row("segment.bytes").config_source, 1);
    assert_eq!(row("retention.ms").value.as_deref(), Some("9000"));
    assert_eq!(row("retention.ms").config_source, 4);
    assert_eq!(row("retention.ms").synonyms.len(), 2);
    assert_eq!((row("cleanup.policy").config_source, row("cleanup.policy").config_type), (5, 7));
    assert!(row("cleanup.policy").documentation.is_some());
    let broker = describe(&mut it, 4, "0");
    assert_eq!(broker.results[0].error_code, 0);
    let value = |name: &str| {
        let found: Vec<_> =
            broker.results[0].configs.iter().filter(|row| row.name == name).collect();
        assert_eq!(found.len(), 1, "{name}");
        (found[0].value.clone().expect("a value"), found[0].config_source)
    };
    // What nobody gave is answered as it is, not as it would be by default.
    assert_eq!(value("node.id"), ("0".to_owned(), 4));
    assert_eq!(value("broker.id"), ("0".to_owned(), 4));
    assert_eq!(value("advertised.listeners"), ("PLAINTEXT://node.example:9092".to_owned(), 4));
    assert_eq!(value("queued.max.request.bytes"), ("1048576".to_owned(), 4));
    assert_eq!(value("connections.max.idle.ms"), ("600000".to_owned(), 5));
    assert_eq!(value("log.retention.ms"), ("9000".to_owned(), 4));
    let wrong = describe(&mut it, 4, "7").results[0].error_code;
    assert_eq!(wrong, ErrorCode::InvalidRequest.code());
    let missing = describe(&mut it, 2, "nope").results[0].error_code;
    assert_eq!(missing, ErrorCode::UnknownTopicOrPartition.code());
}

#[test]
fn five_thousand_partitions_are_made_in_one_request() {
    let mut it = Harness::new(&[]);
    let made = it.try_create(new_topic("t", 5000, &[]));
    assert_eq!(made.topics[0].error_code, 0);
    let metadata = it.metadata(&["t"]);
    assert!(metadata.topics[0].partitions.iter().all(|it| it.leader_id == 0));
    it.restart(&[], 2);
    let metadata = it.metadata(&["t"]);
    assert!(metadata.topics[0].partitions.iter().all(|it| it.leader_id == 0));
}

#[test]
fn a_request_for_more_than_ten_thousand_partitions_is_refused_as_a_whole() {
    let mut it = Harness::new(&[]);
    let mut codes = |topics: &[(&str, i32)]| {
        let topics = topics.iter().map(|(name, count)| new_topic(name, *count, &[])).collect();
        let request = CreateTopicsRequest { topics, validate_only: true, ..Default::default() };
        let Response::CreateTopics(response) = it.ask(request, 7) else { panic!("other") };
        let codes = response.topics.iter().map(|topic| ErrorCode::from_code(topic.error_code));
        codes.map(|code| code.expect("a code")).collect::<Vec<_>>()
    };
    let violation = ErrorCode::PolicyViolation;
    assert_eq!(codes(&[("a", 10_001)]), [violation]);
    assert_eq!(codes(&[("a", 6_000), ("b", 4_001)]), [violation; 2]);
    assert_eq!(codes(&[("a", -1), ("b", 10_000)]), [violation; 2], "a default counts too");
    assert_eq!(codes(&[("a", 6_000), ("b", 4_000)]), [ErrorCode::None; 2]);
    let twice = codes(&[("a", 6_000), ("a", 6_000), ("b", 1)]);
    assert_eq!(twice, [ErrorCode::InvalidRequest, ErrorCode::None]);
}
