//! Groups of the consumer protocol, as their members and administrators see them.

use duramen_protocol::messages::consumer_group_describe::DescribedGroup;
use duramen_protocol::messages::create_partitions::CreatePartitionsTopic;
use duramen_protocol::messages::{
    ConsumerGroupDescribeRequest, ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse,
    CreatePartitionsRequest, ListGroupsRequest,
};
use duramen_protocol::{ApiKey, ErrorCode, Request, Response};

use super::groups::{code, find};
use super::harness::Harness;
use super::topics::delete;

const SETTINGS: [(&str, &str); 2] =
    [("offsets.topic.num.partitions", "5"), ("group.consumer.assignment.interval.ms", "0")];

fn with_groups() -> Harness {
    let mut it = Harness::new(&SETTINGS);
    find(&mut it);
    it.create("t", &[]);
    it
}

fn heartbeat(
    it: &mut Harness,
    request: ConsumerGroupHeartbeatRequest,
) -> ConsumerGroupHeartbeatResponse {
    match it.ask(request, 1) {
        Response::ConsumerGroupHeartbeat(answer) => answer,
        other => panic!("{other:?}"),
    }
}

fn joining(id: &str) -> ConsumerGroupHeartbeatRequest {
    ConsumerGroupHeartbeatRequest {
        group_id: "g".to_owned(),
        member_id: id.to_owned(),
        rebalance_timeout_ms: 60_000,
        subscribed_topic_names: Some(vec!["t".to_owned()]),
        topic_partitions: Some(Vec::new()),
        ..ConsumerGroupHeartbeatRequest::default()
    }
}

fn staying(id: &str, member_epoch: i32) -> ConsumerGroupHeartbeatRequest {
    ConsumerGroupHeartbeatRequest {
        group_id: "g".to_owned(),
        member_id: id.to_owned(),
        member_epoch,
        ..ConsumerGroupHeartbeatRequest::default()
    }
}

/// The epoch that a member is told, and how many partitions, if it is told that.
fn told(answer: &ConsumerGroupHeartbeatResponse) -> (i32, Option<usize>) {
    assert_eq!(answer.error_code, 0, "{:?}", answer.error_message);
    let count = |it: &duramen_protocol::messages::consumer_group_heartbeat::Assignment| {
        it.topic_partitions.iter().map(|it| it.partitions.len()).sum()
    };
    (answer.member_epoch, answer.assignment.as_ref().map(count))
}

fn describe(it: &mut Harness) -> DescribedGroup {
    let request =
        ConsumerGroupDescribeRequest { group_ids: vec!["g".to_owned()], ..Default::default() };
    match it.ask(request, 1) {
        Response::ConsumerGroupDescribe(mut answer) => answer.groups.remove(0),
        other => panic!("{other:?}"),
    }
}

/// A request of one of the two APIs that only this protocol has.
pub(super) fn any_request(api: ApiKey) -> Option<Request> {
    Some(match api {
        ApiKey::ConsumerGroupHeartbeat => joining("a").into(),
        ApiKey::ConsumerGroupDescribe => ConsumerGroupDescribeRequest::default().into(),
        _ => return None,
    })
}

#[test]
fn members_follow_topics_that_grow_and_go() {
    let mut it = with_groups();
    assert_eq!(told(&heartbeat(&mut it, joining("a"))), (1, Some(1)));
    assert_eq!(told(&heartbeat(&mut it, staying("a", 1))), (1, None));
    let grown = CreatePartitionsTopic { name: "t".to_owned(), count: 3, assignments: None };
    it.ask(CreatePartitionsRequest { topics: vec![grown], ..Default::default() }, 3);
    assert_eq!(told(&heartbeat(&mut it, staying("a", 1))), (2, Some(3)));
    delete(&mut it, "t");
    assert_eq!(told(&heartbeat(&mut it, staying("a", 2))), (2, Some(0)));
}

#[test]
fn a_group_is_what_it_was_after_a_start() {
    let mut it = with_groups();
    heartbeat(&mut it, joining("a"));
    let before = describe(&mut it);
    assert_eq!((before.error_code, before.group_state.as_str()), (0, "Stable"));
    it.restart(&SETTINGS, 3);
    assert_eq!(describe(&mut it), before);
    assert_eq!(told(&heartbeat(&mut it, staying("a", 1))), (1, None));
    it.pass_ms(46_000);
    assert_eq!(code(heartbeat(&mut it, staying("a", 1)).error_code), ErrorCode::UnknownMemberId);
}

#[test]
fn groups_are_listed_with_their_kind_and_may_be_asked_about_with_what_one_may_do() {
    let mut it = with_groups();
    heartbeat(&mut it, joining("a"));
    let Response::ListGroups(listed) = it.ask(ListGroupsRequest::default(), 5) else {
        panic!("other")
    };
    let kinds: Vec<_> = listed.groups.iter().map(|group| group.group_type.as_str()).collect();
    assert_eq!(kinds, ["consumer"]);
    let request = ConsumerGroupDescribeRequest {
        group_ids: vec!["g".to_owned(), "none".to_owned(), String::new()],
        include_authorized_operations: true,
    };
    let Response::ConsumerGroupDescribe(answer) = it.ask(request, 1) else { panic!("other") };
    let codes: Vec<_> = answer.groups.iter().map(|group| code(group.error_code)).collect();
    assert_eq!(codes, [ErrorCode::None, ErrorCode::GroupIdNotFound, ErrorCode::InvalidGroupId]);
    assert_ne!(answer.groups[0].authorized_operations, i32::MIN);
}

#[test]
fn a_group_that_is_kept_elsewhere_is_told_so() {
    let mut it = Harness::new(&SETTINGS);
    let answer = heartbeat(&mut it, joining("a"));
    assert_eq!(code(answer.error_code), ErrorCode::NotCoordinator);
    assert_eq!(code(describe(&mut it).error_code), ErrorCode::NotCoordinator);
}
