use duramen_protocol::messages::create_partitions::{
    CreatePartitionsAssignment, CreatePartitionsTopic,
};
use duramen_protocol::messages::describe_topic_partitions::{RequestCursor, TopicRequest};
use duramen_protocol::messages::{
    AlterConfigsRequest, CreatePartitionsRequest, DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse, IncrementalAlterConfigsRequest, alter_configs,
    incremental_alter_configs,
};
use duramen_protocol::{ErrorCode, Request, Response};

use super::harness::{Harness, batch, new_topic, produce_request};

fn pages(
    it: &mut Harness,
    names: &[&str],
    limit: i32,
    cursor: Option<(&str, i32)>,
) -> DescribeTopicPartitionsResponse {
    let cursor = cursor.map(|(topic, partition_index)| RequestCursor {
        topic_name: topic.to_owned(),
        partition_index,
    });
    let request = DescribeTopicPartitionsRequest {
        topics: names.iter().map(|name| TopicRequest { name: (*name).to_owned() }).collect(),
        response_partition_limit: limit,
        cursor,
    };
    match it.ask(request, 0) {
        Response::DescribeTopicPartitions(response) => response,
        other => panic!("{other:?}"),
    }
}

/// Names, and the partitions of each.
fn listed(page: &DescribeTopicPartitionsResponse) -> Vec<(&str, Vec<i32>)> {
    let topics = page.topics.iter().map(|topic| {
        let partitions = topic.partitions.iter().map(|it| it.partition_index).collect();
        (topic.name.as_deref().expect("a name"), partitions)
    });
    topics.collect()
}

fn next(page: &DescribeTopicPartitionsResponse) -> Option<(&str, i32)> {
    page.next_cursor.as_ref().map(|it| (it.topic_name.as_str(), it.partition_index))
}

#[test]
fn topics_are_described_page_by_page_in_the_order_of_their_names() {
    let mut it = Harness::new(&[]);
    for name in ["b", "c", "a"] {
        it.try_create(new_topic(name, 2, &[]));
    }
    for names in [&[][..], &["c", "a", "b", "a"]] {
        let page = pages(&mut it, names, 3, None);
        assert_eq!(listed(&page), [("a", vec![0, 1]), ("b", vec![0])]);
        assert_eq!(next(&page), Some(("b", 1)));
        let page = pages(&mut it, names, 1, Some(("b", 1)));
        assert_eq!((listed(&page), next(&page)), (vec![("b", vec![1])], Some(("c", 0))));
        let page = pages(&mut it, names, 0, Some(("c", 0)));
        assert_eq!((listed(&page), next(&page)), (vec![("c", vec![0])], Some(("c", 1))));
        let page = pages(&mut it, names, 2000, Some(("c", 1)));
        assert_eq!((listed(&page), next(&page)), (vec![("c", vec![1])], None));
    }
    let topic = &pages(&mut it, &["b"], 2000, None).topics[0];
    let id = it.metadata(&["b"]).topics[0].topic_id;
    assert_eq!((topic.topic_id, topic.is_internal), (id, false));
    let partition = &topic.partitions[0];
    assert_eq!((partition.leader_id, &partition.isr_nodes[..]), (0, &[0][..]));
    assert_eq!(partition.eligible_leader_replicas.as_deref(), Some(&[][..]));
}

#[test]
fn a_page_never_has_more_than_two_thousand_partitions() {
    let mut it = Harness::new(&[]);
    it.try_create(new_topic("t", 2001, &[]));
    let page = pages(&mut it, &[], i32::MAX, None);
    assert_eq!((page.topics[0].partitions.len(), next(&page)), (2000, Some(("t", 2000))));
}

#[test]
fn missing_topics_and_bad_cursors_are_told_by_their_codes() {
    let mut it = Harness::new(&[]);
    it.create("t", &[]);
    let page = pages(&mut it, &["t", "nope", "a b"], 1, None);
    let codes: Vec<_> = page.topics.iter().map(|it| (it.name.as_deref(), it.error_code)).collect();
    let invalid = ErrorCode::InvalidTopicException.code();
    let unknown = ErrorCode::UnknownTopicOrPartition.code();
    assert_eq!(codes, [(Some("a b"), invalid), (Some("nope"), unknown), (Some("t"), 0)]);
    assert_eq!(next(&page), None);
    for (names, cursor) in [(&["t"][..], ("u", 0)), (&["t"], ("t", -1)), (&[], ("t", -1))] {
        let page = pages(&mut it, names, 1, Some(cursor));
        let codes: Vec<_> = page.topics.iter().map(|it| it.error_code).collect();
        assert_eq!(codes, vec![ErrorCode::InvalidRequest.code(); names.len()]);
    }
}

fn grow(topics: &[(&str, i32)]) -> CreatePartitionsRequest {
    let topic = |(name, count): &(&str, i32)| CreatePartitionsTopic {
        name: (*name).to_owned(),
        count: *count,
        assignments: None,
    };
    CreatePartitionsRequest {
        topics: topics.iter().map(topic).collect(),
        timeout_ms: 1000,
        validate_only: false,
    }
}

fn codes_of(response: Option<Response>) -> Vec<i16> {
    match response {
        Some(Response::CreatePartitions(response)) => {
            response.results.iter().map(|result| result.error_code).collect()
        }
        other => panic!("{other:?}"),
    }
}

fn try_grow(it: &mut Harness, request: CreatePartitionsRequest) -> Vec<i16> {
    let response = it.ask(request, 3);
    if let Response::CreatePartitions(response) = &response {
        let mut all = response.results.iter();
        assert!(all.all(|it| (it.error_code == 0) == it.error_message.is_none()), "a reason");
    }
    codes_of(Some(response))
}

fn partitions(it: &mut Harness, name: &str) -> usize {
    let topic = it.metadata(&[name]).topics.remove(0);
    assert!(topic.partitions.iter().all(|it| it.leader_id == 0), "led");
    topic.partitions.len()
}

#[test]
fn a_topic_grows_and_keeps_what_it_has() {
    let mut it = Harness::new(&[]);
    it.create("t", &[]);
    it.produce("t", batch(&["a"]));
    assert_eq!(try_grow(&mut it, grow(&[("t", 3)])), [0]);
    assert_eq!(partitions(&mut it, "t"), 3);
    assert_eq!(it.fetch("t", 0).high_watermark, 1);
    let mut request = produce_request("t", batch(&["b"]), -1);
    request.topic_data[0].partition_data[0].index = 2;
    let id = it.send(request, 9);
    assert_eq!(it.produced(id).map(|it| it.error_code), Some(0));
    it.restart(&[], 2);
    assert_eq!(partitions(&mut it, "t"), 3);
    assert_eq!(try_grow(&mut it, grow(&[("t", 4)])), [0]);
    assert_eq!(partitions(&mut it, "t"), 4);
    let replicas = it.store.replicas.len();
    assert_eq!(replicas, 1 + 4, "one each, and the metadata's: no id was used twice");
}

#[test]
fn what_makes_no_partitions_is_refused_with_its_code() {
    let mut it = Harness::new(&[]);
    it.try_create(new_topic("t", 3, &[]));
    it.create("u", &[]);
    let invalid = ErrorCode::InvalidPartitions.code();
    for count in [3, 2, 0, -1, i32::MAX] {
        assert_eq!(try_grow(&mut it, grow(&[("t", count)])), [invalid], "{count}");
    }
    let unknown = ErrorCode::UnknownTopicOrPartition.code();
    let twice = ErrorCode::InvalidRequest.code();
    let all = grow(&[("u", 9), ("nope", 2), ("t", 4), ("u", 9)]);
    assert_eq!(try_grow(&mut it, all), [twice, unknown, 0], "one goes without the others");
    let assigned = |brokers: &[Vec<i32>]| {
        let mut request = grow(&[("u", 3)]);
        let row =
            |broker_ids: &Vec<i32>| CreatePartitionsAssignment { broker_ids: broker_ids.clone() };
        request.topics[0].assignments = Some(brokers.iter().map(row).collect());
        request
    };
    let bad = ErrorCode::InvalidReplicaAssignment.code();
    for ids in [
        vec![],
        vec![vec![0]],
        vec![vec![0], vec![7]],
        vec![vec![0], vec![0, 0]],
        vec![vec![0], vec![]],
    ] {
        assert_eq!(try_grow(&mut it, assigned(&ids)), [bad], "{ids:?}");
    }
    let validated =
        CreatePartitionsRequest { validate_only: true, ..assigned(&[vec![0], vec![0]]) };
    assert_eq!(try_grow(&mut it, validated), [0]);
    assert_eq!((partitions(&mut it, "t"), partitions(&mut it, "u")), (4, 1));
    assert_eq!(try_grow(&mut it, assigned(&[vec![0], vec![0]])), [0]);
    assert_eq!(partitions(&mut it, "u"), 3);
}

#[test]
fn a_topic_that_is_growing_is_not_judged_before_it_has_grown() {
    let mut it = Harness::new(&[]);
    it.create("t", &[]);
    it.is_prompt = false;
    let first = it.send(grow(&[("t", 3)]), 3);
    let second = it.send(grow(&[("t", 2)]), 3);
    let third = it.send(grow(&[("t", 4)]), 3);
    assert!([first, second, third].iter().all(|id| it.response(*id).is_none()));
    it.is_prompt = true;
    it.persist();
    it.run();
    assert_eq!(codes_of(it.response(first)), [0]);
    assert_eq!(codes_of(it.response(second)), [ErrorCode::InvalidPartitions.code()]);
    assert_eq!(codes_of(it.response(third)), [0]);
    assert_eq!(partitions(&mut it, "t"), 4);
}

#[test]
fn a_growth_that_is_not_committed_in_time_is_answered_so() {
    let mut it = Harness::new(&[]);
    it.create("t", &[]);
    it.is_prompt = false;
    let first = it.send(grow(&[("t", 2)]), 3);
    let second = it.send(grow(&[("t", 3)]), 3);
    it.pass_ms(1000);
    let timed_out = ErrorCode::RequestTimedOut.code();
    assert_eq!(codes_of(it.response(first)), [timed_out]);
    assert_eq!(codes_of(it.response(second)), [timed_out]);
    it.is_prompt = true;
    it.persist();
    it.run();
    assert_eq!(partitions(&mut it, "t"), 2, "what was proposed is committed all the same");
}

const TOPIC: i8 = 2;

/// Changes of one topic: name, operation, value.
fn alter(topic: &str, changes: &[(&str, i8, Option<&str>)]) -> IncrementalAlterConfigsRequest {
    let change = |(name, operation, value): &(&str, i8, Option<&str>)| {
        incremental_alter_configs::AlterableConfig {
            name: (*name).to_owned(),
            config_operation: *operation,
            value: value.map(str::to_owned),
        }
    };
    let resource = incremental_alter_configs::AlterConfigsResource {
        resource_type: TOPIC,
        resource_name: topic.to_owned(),
        configs: changes.iter().map(change).collect(),
    };
    IncrementalAlterConfigsRequest { resources: vec![resource], validate_only: false }
}

fn replace(topic: &str, configs: &[(&str, Option<&str>)]) -> AlterConfigsRequest {
    let config = |(name, value): &(&str, Option<&str>)| alter_configs::AlterableConfig {
        name: (*name).to_owned(),
        value: value.map(str::to_owned),
    };
    let resource = alter_configs::AlterConfigsResource {
        resource_type: TOPIC,
        resource_name: topic.to_owned(),
        configs: configs.iter().map(config).collect(),
    };
    AlterConfigsRequest { resources: vec![resource], validate_only: false }
}

fn altered(response: Option<Response>) -> Vec<i16> {
    match response {
        Some(Response::IncrementalAlterConfigs(response)) => {
            response.responses.iter().map(|it| it.error_code).collect()
        }
        Some(Response::AlterConfigs(response)) => {
            response.responses.iter().map(|it| it.error_code).collect()
        }
        other => panic!("{other:?}"),
    }
}

fn try_alter(it: &mut Harness, request: impl Into<Request>) -> Vec<i16> {
    let request = request.into();
    let version = if matches!(request, Request::AlterConfigs(_)) { 2 } else { 1 };
    let response = it.ask(request, version);
    altered(Some(response))
}

/// A topic's own settings.
fn own(it: &Harness, topic: &str) -> Vec<(String, String)> {
    let topic = it.node.core.controller.image.topic_named(topic).expect("there");
    topic.configs.iter().map(|(name, value)| (name.clone(), value.clone())).collect()
}

fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

#[test]
fn single_settings_change_and_outlive_a_restart() {
    let mut it = Harness::new(&[]);
    it.create("t", &[("retention.ms", "5"), ("segment.ms", "7")]);
    let changes = [
        ("retention.ms", 0, Some("9")),
        ("segment.ms", 1, None),
        ("max.message.bytes", 0, Some("4096")),
    ];
    assert_eq!(try_alter(&mut it, alter("t", &changes)), [0]);
    let expected = pairs(&[("max.message.bytes", "4096"), ("retention.ms", "9")]);
    assert_eq!(own(&it, "t"), expected);
    it.restart(&[], 2);
    assert_eq!(own(&it, "t"), expected);
}

#[test]
fn a_changed_setting_holds_at_once() {
    let mut it = Harness::new(&[]);
    it.create("t", &[]);
    let large = "x".repeat(2000);
    assert_eq!(it.produce("t", batch(&[&large])).error_code, 0);
    assert_eq!(try_alter(&mut it, alter("t", &[("max.message.bytes", 0, Some("1000"))])), [0]);
    let too_large = ErrorCode::MessageTooLarge.code();
    assert_eq!(it.produce("t", batch(&[&large])).error_code, too_large);
    assert_eq!(try_alter(&mut it, alter("t", &[("max.message.bytes", 1, None)])), [0]);
    assert_eq!(it.produce("t", batch(&[&large])).error_code, 0);
}

#[test]
fn lists_get_and_lose_words() {
    let mut it = Harness::new(&[]);
    it.create("t", &[]);
    let policy = |it: &Harness| own(it, "t").pop().map(|(_, value)| value);
    for (operation, words, left) in [
        (2, "compact", "delete,compact"),
        (2, "delete", "delete,compact"),
        (3, "delete", "compact"),
    ] {
        let change = alter("t", &[("cleanup.policy", operation, Some(words))]);
        assert_eq!(try_alter(&mut it, change), [0]);
        assert_eq!(policy(&it).as_deref(), Some(left));
    }
    let no_list = alter("t", &[("retention.ms", 2, Some("9"))]);
    assert_eq!(try_alter(&mut it, no_list), [ErrorCode::InvalidConfig.code()]);
    // Kafka takes a policy of no words.
    let nothing_left = alter("t", &[("cleanup.policy", 3, Some("compact"))]);
    assert_eq!(try_alter(&mut it, nothing_left), [0]);
    assert_eq!(policy(&it).as_deref(), Some(""));
}

#[test]
fn all_own_settings_are_replaced() {
    let mut it = Harness::new(&[]);
    it.create("t", &[("retention.ms", "5"), ("segment.ms", "7")]);
    let request = replace("t", &[("segment.ms", Some("8")), ("retention.bytes", Some("1"))]);
    assert_eq!(try_alter(&mut it, request), [0]);
    assert_eq!(own(&it, "t"), pairs(&[("retention.bytes", "1"), ("segment.ms", "8")]));
    assert_eq!(try_alter(&mut it, replace("t", &[])), [0]);
    assert_eq!(own(&it, "t"), []);
}

#[test]
fn a_bad_change_is_refused_with_the_reason_and_changes_nothing() {
    let mut it = Harness::new(&[]);
    it.create("t", &[("retention.ms", "5")]);
    let invalid = ErrorCode::InvalidConfig;
    let request = ErrorCode::InvalidRequest;
    let good = ("segment.ms", 0, Some("7"));
    for (change, code) in [
        (("retention.ms", 0, Some("soon")), invalid),
        (("retention.ms", 0, None), request),
        (("no.such", 0, Some("1")), invalid),
        (("retention.ms", 9, Some("1")), request),
        (("segment.ms", 1, None), request),
        (("cleanup.policy", 0, Some("burn")), invalid),
    ] {
        let Response::IncrementalAlterConfigs(response) = it.ask(alter("t", &[good, change]), 1)
        else {
            panic!("other")
        };
        let told = &response.responses[0];
        assert_eq!(told.error_code, code.code(), "{change:?}");
        assert!(
            told.error_message.as_ref().is_some_and(|text| text.contains(change.0)),
            "{told:?}"
        );
    }
    for (change, code) in [
        (("retention.ms", Some("soon")), invalid),
        (("retention.ms", None), request),
        (("no.such", Some("1")), invalid),
        (("segment.ms", Some("1")), request),
    ] {
        let asked = replace("t", &[("segment.ms", Some("7")), change]);
        assert_eq!(try_alter(&mut it, asked), [code.code()], "{change:?}");
    }
    for (kind, name, code) in [
        (TOPIC, "nope", ErrorCode::UnknownTopicOrPartition),
        (TOPIC, "a b", ErrorCode::InvalidTopicException),
        (TOPIC, "", request),
        (9, "t", request),
    ] {
        let mut asked = alter(name, &[good]);
        asked.resources[0].resource_type = kind;
        assert_eq!(try_alter(&mut it, asked), [code.code()], "{kind} {name}");
        let mut asked = replace(name, &[("segment.ms", Some("7"))]);
        asked.resources[0].resource_type = kind;
        assert_eq!(try_alter(&mut it, asked), [code.code()], "{kind} {name}");
    }
    let mut twice = alter("t", &[good]);
    twice.resources.extend(twice.resources.clone());
    assert_eq!(try_alter(&mut it, twice), [request.code(); 2]);
    let validated = AlterConfigsRequest { validate_only: true, ..replace("t", &[]) };
    assert_eq!(try_alter(&mut it, validated), [0]);
    let validated = IncrementalAlterConfigsRequest { validate_only: true, ..alter("t", &[good]) };
    assert_eq!(try_alter(&mut it, validated), [0]);
    assert_eq!(own(&it, "t"), pairs(&[("retention.ms", "5")]));
}

#[test]
fn changes_of_one_topic_are_judged_one_after_the_other() {
    let mut it = Harness::new(&[]);
    it.create("t", &[]);
    it.is_prompt = false;
    let compact = it.send(alter("t", &[("cleanup.policy", 2, Some("compact"))]), 1);
    let no_delete = it.send(alter("t", &[("cleanup.policy", 3, Some("delete"))]), 1);
    assert!(it.response(compact).is_none(), "not before it is durable");
    assert!(it.response(no_delete).is_none());
    it.is_prompt = true;
    it.persist();
    it.run();
    assert_eq!(altered(it.response(compact)), [0]);
    assert_eq!(altered(it.response(no_delete)), [0]);
    assert_eq!(own(&it, "t"), pairs(&[("cleanup.policy", "compact")]));
}

#[test]
fn a_change_that_is_not_committed_in_time_is_answered_so() {
    let mut it = Harness::new(&[]);
    it.create("t", &[]);
    it.is_prompt = false;
    let first = it.send(replace("t", &[("retention.ms", Some("1"))]), 2);
    let second = it.send(replace("t", &[("retention.ms", Some("2"))]), 2);
    let third = it.send(alter("t", &[("retention.ms", 0, Some("3"))]), 1);
    it.pass_ms(30_000);
    let timed_out = ErrorCode::RequestTimedOut.code();
    for id in [first, second, third] {
        assert_eq!(altered(it.response(id)), [timed_out]);
    }
}
