//! Consumer groups, as their members see them.

use bytes::Bytes;
use duramen_protocol::messages::join_group::JoinGroupRequestProtocol;
use duramen_protocol::messages::leave_group::MemberIdentity;
use duramen_protocol::messages::offset_commit::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use duramen_protocol::messages::offset_delete::{
    OffsetDeleteRequestPartition, OffsetDeleteRequestTopic,
};
use duramen_protocol::messages::offset_fetch::{
    OffsetFetchRequestGroup, OffsetFetchRequestTopic, OffsetFetchRequestTopics,
    OffsetFetchResponseGroup,
};
use duramen_protocol::messages::sync_group::SyncGroupRequestAssignment;
use duramen_protocol::messages::{
    DeleteGroupsRequest, DescribeGroupsRequest, FindCoordinatorRequest, HeartbeatRequest,
    JoinGroupRequest, JoinGroupResponse, LeaveGroupRequest, ListGroupsRequest, ListGroupsResponse,
    OffsetCommitRequest, OffsetDeleteRequest, OffsetFetchRequest, SyncGroupRequest,
    SyncGroupResponse,
};
use duramen_protocol::wire::Uuid;
use duramen_protocol::{ApiKey, ErrorCode, Request, Response};

use super::harness::Harness;
use super::topics::delete;
use crate::event::ConnectionId;

const NO_DELAY: (&str, &str) = ("group.initial.rebalance.delay.ms", "0");
const SMALL: (&str, &str) = ("offsets.topic.num.partitions", "5");
const TWO: ConnectionId = ConnectionId(2);

pub(super) fn code(code: i16) -> ErrorCode {
    ErrorCode::from_code(code).expect("a code")
}

/// A node whose topic of groups is there, and a topic `t`.
fn with_groups() -> Harness {
    let mut it = Harness::new(&[NO_DELAY, SMALL]);
    find(&mut it);
    it.create("t", &[]);
    it
}

pub(super) fn find(it: &mut Harness) {
    it.ask(find_request(), 4);
}

pub(super) fn find_request() -> FindCoordinatorRequest {
    let coordinator_keys = vec!["any".to_owned()];
    FindCoordinatorRequest { coordinator_keys, ..FindCoordinatorRequest::default() }
}

pub(super) fn join_request(group: &str, member: &str) -> JoinGroupRequest {
    let metadata = Bytes::from_static(b"\0\x01\0\0\0\x01\0\x01t\xff\xff\xff\xff\xff\xff\xff\xff");
    let protocol = JoinGroupRequestProtocol { name: "range".to_owned(), metadata };
    JoinGroupRequest {
        group_id: group.to_owned(),
        session_timeout_ms: 10_000,
        rebalance_timeout_ms: 60_000,
        member_id: member.to_owned(),
        protocol_type: "consumer".to_owned(),
        protocols: vec![protocol],
        ..JoinGroupRequest::default()
    }
}

fn joined(response: Option<Response>) -> JoinGroupResponse {
    match response {
        Some(Response::JoinGroup(response)) => response,
        other => panic!("{other:?}"),
    }
}

fn sync_request(
    group: &str,
    joined: &JoinGroupResponse,
    given: &[(&str, &str)],
) -> SyncGroupRequest {
    let assignment = |(member, share): &(&str, &str)| SyncGroupRequestAssignment {
        member_id: (*member).to_owned(),
        assignment: Bytes::copy_from_slice(share.as_bytes()),
    };
    SyncGroupRequest {
        group_id: group.to_owned(),
        generation_id: joined.generation_id,
        member_id: joined.member_id.clone(),
        protocol_type: Some("consumer".to_owned()),
        protocol_name: Some("range".to_owned()),
        assignments: given.iter().map(assignment).collect(),
        ..SyncGroupRequest::default()
    }
}

fn synced(response: Option<Response>) -> SyncGroupResponse {
    match response {
        Some(Response::SyncGroup(response)) => response,
        other => panic!("{other:?}"),
    }
}

fn heartbeat(it: &mut Harness, group: &str, joined: &JoinGroupResponse) -> ErrorCode {
    let request = HeartbeatRequest {
        group_id: group.to_owned(),
        generation_id: joined.generation_id,
        member_id: joined.member_id.clone(),
        ..HeartbeatRequest::default()
    };
    match it.ask(request, 4) {
        Response::Heartbeat(response) => code(response.error_code),
        other => panic!("{other:?}"),
    }
}

/// A group of one that is stable, and its member.
fn group_of_one(it: &mut Harness, group: &str) -> JoinGroupResponse {
    let id = it.send(join_request(group, ""), 9);
    let promised = joined(it.response(id));
    assert_eq!(code(promised.error_code), ErrorCode::MemberIdRequired);
    let id = it.send(join_request(group, &promised.member_id), 9);
    let member = joined(it.response(id));
    assert_eq!((member.error_code, member.leader.as_str()), (0, member.member_id.as_str()));
    let id = it.send(sync_request(group, &member, &[(&member.member_id, "all")]), 5);
    assert_eq!(synced(it.response(id)).assignment, "all");
    member
}

pub(super) fn commit_request(group: &str, topic: &str, offset: i64) -> OffsetCommitRequest {
    let partition = OffsetCommitRequestPartition {
        committed_offset: offset,
        committed_metadata: Some("note".to_owned()),
        ..OffsetCommitRequestPartition::default()
    };
    let topic = OffsetCommitRequestTopic {
        name: topic.to_owned(),
        partitions: vec![partition],
        ..OffsetCommitRequestTopic::default()
    };
    OffsetCommitRequest {
        group_id: group.to_owned(),
        topics: vec![topic],
        ..OffsetCommitRequest::default()
    }
}

pub(super) fn commit(it: &mut Harness, group: &str, topic: &str, offset: i64) -> ErrorCode {
    let id = it.send(commit_request(group, topic, offset), 8);
    committed(it.response(id))
}

pub(super) fn committed(response: Option<Response>) -> ErrorCode {
    match response {
        Some(Response::OffsetCommit(response)) => code(response.topics[0].partitions[0].error_code),
        other => panic!("{other:?}"),
    }
}

pub(super) fn fetch_request(groups: &[&str], topic: Option<&str>) -> OffsetFetchRequest {
    let topics = topic.map(|name| {
        let (name, partition_indexes) = (name.to_owned(), vec![0]);
        vec![OffsetFetchRequestTopics { name, partition_indexes, ..Default::default() }]
    });
    let group = |group: &&str| OffsetFetchRequestGroup {
        group_id: (*group).to_owned(),
        topics: topics.clone(),
        ..OffsetFetchRequestGroup::default()
    };
    let groups = groups.iter().map(group).collect();
    OffsetFetchRequest { groups, ..OffsetFetchRequest::default() }
}

pub(super) fn fetched(response: Option<Response>) -> Vec<OffsetFetchResponseGroup> {
    match response {
        Some(Response::OffsetFetch(response)) => response.groups,
        other => panic!("{other:?}"),
    }
}

/// The committed offset; -1 if there is none.
pub(super) fn offset_of(it: &mut Harness, group: &str, topic: &str) -> Result<i64, ErrorCode> {
    let id = it.send(fetch_request(&[group], Some(topic)), 9);
    let group = fetched(it.response(id)).remove(0);
    match code(group.error_code) {
        ErrorCode::None => Ok(group.topics[0].partitions[0].committed_offset),
        code => Err(code),
    }
}

fn listed(it: &mut Harness) -> ListGroupsResponse {
    match it.ask(ListGroupsRequest::default(), 5) {
        Response::ListGroups(response) => response,
        other => panic!("{other:?}"),
    }
}

#[test]
fn two_members_share_and_one_that_leaves_gives_its_share_back() {
    let mut it = with_groups();
    let first = group_of_one(&mut it, "g");
    let join = it.enqueue(TWO, &join_request("g", "").into(), 3);
    it.run();
    assert_eq!(heartbeat(&mut it, "g", &first), ErrorCode::RebalanceInProgress);
    let again = it.send(join_request("g", &first.member_id), 9);
    let (leader, follower) = (joined(it.response(again)), joined(it.response_on(TWO, join)));
    assert_eq!((leader.members.len(), follower.members.len()), (2, 0));
    assert_eq!(leader.generation_id, first.generation_id + 1);
    let waits = it.enqueue(TWO, &sync_request("g", &follower, &[]).into(), 5);
    it.run();
    assert!(it.response_on(TWO, waits).is_none());
    let shares = [(leader.member_id.as_str(), "one"), (follower.member_id.as_str(), "two")];
    let id = it.send(sync_request("g", &leader, &shares), 5);
    assert_eq!(synced(it.response(id)).assignment, "one");
    assert_eq!(synced(it.response_on(TWO, waits)).assignment, "two");
    let member = MemberIdentity { member_id: follower.member_id, ..MemberIdentity::default() };
    let request =
        LeaveGroupRequest { group_id: "g".to_owned(), members: vec![member], ..Default::default() };
    let Response::LeaveGroup(left) = it.ask(request, 5) else { panic!("other") };
    assert_eq!((left.error_code, left.members[0].error_code), (0, 0));
    assert_eq!(heartbeat(&mut it, "g", &leader), ErrorCode::RebalanceInProgress);
}

#[test]
fn the_address_of_a_member_is_told_as_kafka_tells_it() {
    let mut it = with_groups();
    group_of_one(&mut it, "g");
    let groups = vec!["g".to_owned(), "nobody".to_owned()];
    let request = DescribeGroupsRequest { groups, include_authorized_operations: true };
    let Response::DescribeGroups(response) = it.ask(request, 6) else { panic!("other") };
    let [group, missing] = &response.groups[..] else { panic!("two were asked for") };
    assert_eq!((group.group_state.as_str(), group.protocol_data.as_str()), ("Stable", "range"));
    assert_eq!(group.members[0].client_host, "/127.0.0.1");
    assert_eq!(group.members[0].client_id, "test");
    assert_ne!(group.authorized_operations, i32::MIN);
    assert_eq!(code(missing.error_code), ErrorCode::GroupIdNotFound);
}

#[test]
fn members_and_offsets_are_there_after_a_restart() {
    let mut it = with_groups();
    let member = group_of_one(&mut it, "g");
    assert_eq!(commit(&mut it, "alone", "t", 17), ErrorCode::None);
    assert_eq!(commit(&mut it, "alone", "t", 18), ErrorCode::None);
    it.restart(&[NO_DELAY, SMALL], 2);
    assert_eq!(offset_of(&mut it, "alone", "t"), Ok(18));
    assert_eq!(heartbeat(&mut it, "g", &member), ErrorCode::None);
    let listed = listed(&mut it);
    let names: Vec<_> = listed.groups.iter().map(|group| group.group_id.as_str()).collect();
    assert_eq!(listed.error_code, 0);
    assert!(names.contains(&"g") && names.contains(&"alone"), "{names:?}");
    it.pass_ms(10_001);
    assert_eq!(heartbeat(&mut it, "g", &member), ErrorCode::UnknownMemberId);
}

#[test]
fn a_commit_is_acknowledged_once_it_is_stored_and_seen_by_what_comes_after_it() {
    let mut it = with_groups();
    it.is_prompt = false;
    let commit = it.send(commit_request("g", "t", 5), 8);
    let fetch = it.send(fetch_request(&["g"], Some("t")), 9);
    assert!(it.response(commit).is_none());
    assert!(it.response(fetch).is_none(), "it must not miss what came before");
    it.is_prompt = true;
    it.run();
    assert_eq!(committed(it.response(commit)), ErrorCode::None);
    let group = fetched(it.response(fetch)).remove(0);
    let partition = &group.topics[0].partitions[0];
    assert_eq!((partition.committed_offset, partition.metadata.as_deref()), (5, Some("note")));
}

#[test]
fn offsets_of_topics_that_are_not_there_are_refused() {
    let mut it = with_groups();
    let mut request = commit_request("g", "t", 5);
    request
        .topics
        .push(OffsetCommitRequestTopic { name: "nowhere".to_owned(), ..request.topics[0].clone() });
    request.topics[0].partitions.push(OffsetCommitRequestPartition {
        partition_index: 7,
        ..OffsetCommitRequestPartition::default()
    });
    let Response::OffsetCommit(response) = it.ask(request.clone(), 9) else { panic!("other") };
    let codes = response.topics.iter().flat_map(|topic| &topic.partitions);
    let codes: Vec<_> = codes.map(|partition| code(partition.error_code)).collect();
    let unknown = ErrorCode::UnknownTopicOrPartition;
    assert_eq!(codes, [unknown, ErrorCode::None, unknown]);
    let Response::OffsetCommit(response) = it.ask(request, 10) else { panic!("other") };
    assert_eq!(code(response.topics[0].partitions[0].error_code), ErrorCode::UnknownTopicId);
}

#[test]
fn topics_are_named_by_their_ids_too() {
    let mut it = with_groups();
    let id = it.metadata(&["t"]).topics[0].topic_id;
    let mut request = commit_request("g", "", 5);
    request.topics[0].topic_id = id;
    let Response::OffsetCommit(response) = it.ask(request, 10) else { panic!("other") };
    assert_eq!((response.topics[0].topic_id, response.topics[0].partitions[0].error_code), (id, 0));
    let mut request = fetch_request(&["g"], Some(""));
    let topics = request.groups[0].topics.as_mut().expect("one");
    topics[0].topic_id = id;
    topics.push(OffsetFetchRequestTopics {
        topic_id: Uuid::from_u128(77),
        partition_indexes: vec![0],
        ..Default::default()
    });
    let asked = it.send(request, 10);
    let group = fetched(it.response(asked)).remove(0);
    let told = group.topics.iter().map(|topic| {
        let partition = &topic.partitions[0];
        (topic.topic_id == id, partition.committed_offset, code(partition.error_code))
    });
    let told: Vec<_> = told.collect();
    assert_eq!(told, [(true, 5, ErrorCode::None), (false, -1, ErrorCode::UnknownTopicId)]);
    let asked = it.send(fetch_request(&["g"], None), 10);
    let all = fetched(it.response(asked)).remove(0);
    assert_eq!((all.topics.len(), all.topics[0].topic_id), (1, id));
}

#[test]
fn one_fetch_asks_about_groups_of_different_partitions() {
    let mut it = with_groups();
    let groups = ["a", "b", "c", "d", "e", "f"];
    for (group, offset) in groups.iter().zip(1..) {
        assert_eq!(commit(&mut it, group, "t", offset), ErrorCode::None);
    }
    let asked = it.send(fetch_request(&groups, Some("t")), 8);
    let answers = fetched(it.response(asked));
    let told = answers.iter().map(|group| group.topics[0].partitions[0].committed_offset);
    assert_eq!(told.collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6]);
    let names: Vec<_> = answers.iter().map(|group| group.group_id.as_str()).collect();
    assert_eq!(names, groups);
}

#[test]
fn deleted_groups_are_forgotten_and_others_are_not() {
    let mut it = with_groups();
    group_of_one(&mut it, "busy");
    assert_eq!(commit(&mut it, "idle", "t", 3), ErrorCode::None);
    let groups_names = ["idle", "busy", "nobody", "idle"].map(str::to_owned).to_vec();
    let id = it.send(DeleteGroupsRequest { groups_names }, 2);
    let Some(Response::DeleteGroups(response)) = it.response(id) else { panic!("other") };
    let told = response.results.iter().map(|it| (it.group_id.as_str(), code(it.error_code)));
    let wanted = [
        ("idle", ErrorCode::None),
        ("busy", ErrorCode::NonEmptyGroup),
        ("nobody", ErrorCode::GroupIdNotFound),
    ];
    assert_eq!(told.collect::<Vec<_>>(), wanted);
    assert_eq!(offset_of(&mut it, "idle", "t"), Ok(-1));
    it.restart(&[NO_DELAY, SMALL], 2);
    assert_eq!(offset_of(&mut it, "idle", "t"), Ok(-1));
    assert_eq!(listed(&mut it).groups.len(), 1);
}

#[test]
fn a_groups_offset_is_deleted_unless_its_topic_is_being_consumed() {
    let mut it = with_groups();
    let member = group_of_one(&mut it, "g");
    let mut request = commit_request("g", "t", 3);
    request.generation_id_or_member_epoch = member.generation_id;
    request.member_id = member.member_id;
    let id = it.send(request, 8);
    assert_eq!(committed(it.response(id)), ErrorCode::None);
    assert_eq!(commit(&mut it, "alone", "t", 4), ErrorCode::None);
    let mut remove = |group: &str| {
        let partitions = vec![OffsetDeleteRequestPartition { partition_index: 0 }];
        let topics = vec![OffsetDeleteRequestTopic { name: "t".to_owned(), partitions }];
        let id = it.send(OffsetDeleteRequest { group_id: group.to_owned(), topics }, 0);
        let Some(Response::OffsetDelete(response)) = it.response(id) else { panic!("other") };
        (code(response.error_code), code(response.topics[0].partitions[0].error_code))
    };
    assert_eq!(remove("g"), (ErrorCode::None, ErrorCode::GroupSubscribedToTopic));
    assert_eq!(remove("alone"), (ErrorCode::None, ErrorCode::None));
    assert_eq!(offset_of(&mut it, "alone", "t"), Ok(-1));
    assert_eq!(offset_of(&mut it, "g", "t"), Ok(3));
}

#[test]
fn a_deleted_topics_offsets_are_forgotten() {
    let mut it = with_groups();
    assert_eq!(commit(&mut it, "g", "t", 3), ErrorCode::None);
    delete(&mut it, "t");
    it.create("t", &[]);
    assert_eq!(offset_of(&mut it, "g", "t"), Ok(-1));
    it.restart(&[NO_DELAY, SMALL], 2);
    assert_eq!(offset_of(&mut it, "g", "t"), Ok(-1));
}

#[test]
fn a_group_whose_last_topic_is_gone_stays_until_the_next_look_at_what_has_expired() {
    let mut it = with_groups();
    it.create("u", &[]);
    for topic in ["t", "u"] {
        assert_eq!(commit(&mut it, topic, topic, 3), ErrorCode::None);
    }
    delete(&mut it, "t");
    let partitions = vec![OffsetDeleteRequestPartition { partition_index: 0 }];
    let topics = vec![OffsetDeleteRequestTopic { name: "u".to_owned(), partitions }];
    let request = OffsetDeleteRequest { group_id: "u".to_owned(), topics };
    it.ask(request, 0);
    let told = |it: &mut Harness| {
        let groups = listed(it).groups.into_iter();
        let mut told: Vec<_> = groups.map(|it| (it.group_id, it.group_state)).collect();
        told.sort();
        told
    };
    let empty = |name: &str| (name.to_owned(), "Empty".to_owned());
    assert_eq!(told(&mut it), [empty("t"), empty("u")]);
    it.pass_ms(700_000);
    assert_eq!(told(&mut it), []);
    it.restart(&[NO_DELAY, SMALL], 2);
    assert_eq!(told(&mut it), []);
}

#[test]
fn a_member_whose_connection_breaks_while_it_joins_stays_a_member() {
    let mut it = with_groups();
    let first = group_of_one(&mut it, "g");
    it.enqueue(TWO, &join_request("g", "").into(), 3);
    it.run();
    it.disconnect(TWO);
    let again = it.send(join_request("g", &first.member_id), 9);
    assert_eq!(joined(it.response(again)).members.len(), 2);
}

#[test]
fn requests_that_no_group_can_have_sent_are_refused() {
    let mut it = with_groups();
    let answers: Vec<Response> = vec![
        it.ask(join_request("", ""), 9),
        it.ask(
            SyncGroupRequest {
                protocol_name: None,
                ..sync_request("g", &JoinGroupResponse::default(), &[])
            },
            5,
        ),
        it.ask(HeartbeatRequest::default(), 4),
        it.ask(
            LeaveGroupRequest { members: vec![MemberIdentity::default()], ..Default::default() },
            5,
        ),
        it.ask(OffsetDeleteRequest::default(), 0),
    ];
    let codes = answers.iter().map(|answer| match answer {
        Response::JoinGroup(response) => code(response.error_code),
        Response::SyncGroup(response) => code(response.error_code),
        Response::Heartbeat(response) => code(response.error_code),
        Response::LeaveGroup(response) => code(response.error_code),
        Response::OffsetDelete(response) => code(response.error_code),
        other => panic!("{other:?}"),
    });
    let invalid = ErrorCode::InvalidGroupId;
    let wanted = [invalid, ErrorCode::InconsistentGroupProtocol, invalid, invalid, invalid];
    assert_eq!(codes.collect::<Vec<_>>(), wanted);
}

#[test]
fn a_refused_join_names_no_protocol_in_the_way_of_its_version() {
    let mut it = with_groups();
    let mut told = |group: &str, version| {
        let id = it.send(join_request(group, "nobody"), version);
        joined(it.response(id)).protocol_name
    };
    for group in ["", "g"] {
        assert_eq!(told(group, 6), Some(String::new()));
        assert_eq!(told(group, 7), None);
    }
}

#[test]
fn without_the_topic_of_groups_nobody_coordinates() {
    let mut it = Harness::new(&[]);
    let id = it.send(fetch_request(&["g"], Some("t")), 9);
    assert_eq!(code(fetched(it.response(id))[0].error_code), ErrorCode::NotCoordinator);
    for version in 1..8 {
        let request = any_request(ApiKey::OffsetFetch, version, Uuid::ZERO).expect("there is one");
        let Response::OffsetFetch(response) = it.ask(request, version) else { panic!("other") };
        let told = if version == 1 {
            response.topics[0].partitions[0].error_code
        } else {
            response.error_code
        };
        assert_eq!(code(told), ErrorCode::NotCoordinator, "version {version}");
    }
    assert_eq!(listed(&mut it), ListGroupsResponse::default());
}

#[test]
fn offsets_that_nobody_uses_expire_by_a_clock_that_is_believed() {
    let settings = [NO_DELAY, SMALL, ("offsets.retention.minutes", "1")];
    let mut it = Harness::new(&settings);
    find(&mut it);
    it.create("t", &[]);
    assert_eq!(commit(&mut it, "g", "t", 3), ErrorCode::None);
    it.now.wall_ms += 365 * 86_400_000;
    it.pass_ms(700_000);
    assert_eq!(offset_of(&mut it, "g", "t"), Ok(3), "a leap of the clock expires nothing");
    it.now.wall_ms -= 365 * 86_400_000;
    it.pass_ms(700_000);
    assert_eq!(offset_of(&mut it, "g", "t"), Ok(-1));
    assert_eq!(listed(&mut it).groups.len(), 0);
}

#[test]
fn an_offset_is_not_old_for_a_clock_that_had_leapt_back() {
    let settings = [NO_DELAY, SMALL];
    let mut it = Harness::new(&settings);
    find(&mut it);
    it.create("t", &[]);
    it.now.wall_ms -= 30 * 86_400_000;
    assert_eq!(commit(&mut it, "g", "t", 3), ErrorCode::None);
    it.now.wall_ms += 30 * 86_400_000;
    it.restart(&settings, 2);
    it.pass_ms(700_000);
    assert!(!it.node.metrics().is_clock_held);
    assert_eq!(offset_of(&mut it, "g", "t"), Ok(3));
}

/// A request of `api` by nobody in particular, about topic `t`, that means something in `version`.
pub(super) fn any_request(api: ApiKey, version: i16, id: Uuid) -> Option<Request> {
    let nobody = JoinGroupResponse { member_id: "nobody".to_owned(), ..Default::default() };
    let group_id = "g".to_owned();
    Some(match api {
        ApiKey::ConsumerGroupHeartbeat | ApiKey::ConsumerGroupDescribe => {
            return super::consumer_groups::any_request(api);
        }
        ApiKey::FindCoordinator if version < 4 => {
            FindCoordinatorRequest { key: group_id, ..Default::default() }.into()
        }
        ApiKey::FindCoordinator => {
            FindCoordinatorRequest { coordinator_keys: vec![group_id], ..Default::default() }.into()
        }
        ApiKey::JoinGroup => join_request("g", "nobody").into(),
        ApiKey::SyncGroup => sync_request("g", &nobody, &[]).into(),
        ApiKey::Heartbeat => HeartbeatRequest { group_id, ..Default::default() }.into(),
        ApiKey::LeaveGroup if version < 3 => {
            let member_id = nobody.member_id;
            LeaveGroupRequest { group_id, member_id, ..Default::default() }.into()
        }
        ApiKey::LeaveGroup => {
            let members = vec![MemberIdentity::default()];
            LeaveGroupRequest { group_id, members, ..Default::default() }.into()
        }
        ApiKey::OffsetCommit => {
            let mut request = commit_request("g", "t", 3);
            request.topics[0].topic_id = id;
            request.into()
        }
        ApiKey::OffsetFetch if version < 8 => {
            let topic =
                OffsetFetchRequestTopic { name: "t".to_owned(), partition_indexes: vec![0] };
            let topics = Some(vec![topic]);
            OffsetFetchRequest { group_id, topics, ..Default::default() }.into()
        }
        ApiKey::OffsetFetch => fetch_request(&["g", "h"], None).into(),
        ApiKey::OffsetDelete => OffsetDeleteRequest { group_id, topics: Vec::new() }.into(),
        ApiKey::ListGroups => ListGroupsRequest::default().into(),
        ApiKey::DescribeGroups => {
            DescribeGroupsRequest { groups: vec![group_id], ..Default::default() }.into()
        }
        ApiKey::DeleteGroups => DeleteGroupsRequest { groups_names: vec![group_id] }.into(),
        _ => return None,
    })
}
