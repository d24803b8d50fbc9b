//! Where share groups start, as administrators see and set it.

use duramen_protocol::messages::alter_share_group_offsets::{
    AlterShareGroupOffsetsRequestPartition, AlterShareGroupOffsetsRequestTopic,
};
use duramen_protocol::messages::delete_share_group_offsets::DeleteShareGroupOffsetsRequestTopic;
use duramen_protocol::messages::describe_share_group_offsets::{
    DescribeShareGroupOffsetsRequestGroup, DescribeShareGroupOffsetsRequestTopic,
};
use duramen_protocol::messages::{
    AlterShareGroupOffsetsRequest, DeleteGroupsRequest, DeleteShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequest, DescribeShareGroupOffsetsResponse, FindCoordinatorRequest,
    ShareGroupHeartbeatRequest,
};
use duramen_protocol::{ErrorCode, Request, Response};

use super::harness::{Harness, batch};
use super::trio::Trio;
use crate::internal_topics::GROUPS;

const FEW: [(&str, &str); 4] = [
    ("share.coordinator.state.topic.num.partitions", "2"),
    ("share.coordinator.state.topic.segment.bytes", "16384"),
    ("offsets.topic.num.partitions", "2"),
    ("offsets.topic.segment.bytes", "16384"),
];

fn find() -> FindCoordinatorRequest {
    FindCoordinatorRequest { coordinator_keys: vec!["g".to_owned()], ..Default::default() }
}

fn heartbeat(member_epoch: i32) -> Request {
    let names = (member_epoch == 0).then(|| vec!["t".to_owned()]);
    ShareGroupHeartbeatRequest {
        group_id: "g".to_owned(),
        member_id: "a".to_owned(),
        member_epoch,
        rack_id: None,
        subscribed_topic_names: names,
    }
    .into()
}

fn describe(topics: Option<&[(&str, &[i32])]>) -> Request {
    let topic = |(name, partitions): &(&str, &[i32])| DescribeShareGroupOffsetsRequestTopic {
        topic_name: (*name).to_owned(),
        partitions: partitions.to_vec(),
    };
    let topics = topics.map(|topics| topics.iter().map(topic).collect());
    let group = DescribeShareGroupOffsetsRequestGroup { group_id: "g".to_owned(), topics };
    DescribeShareGroupOffsetsRequest { groups: vec![group] }.into()
}

/// Topic, partition, start, how many records are left, and what is wrong.
type Line<'a> = (&'a str, i32, i64, i64, ErrorCode);

fn lines(answer: &DescribeShareGroupOffsetsResponse) -> Vec<Line<'_>> {
    let group = &answer.groups[0];
    assert_eq!((group.group_id.as_str(), group.error_code), ("g", 0));
    let of = |code| ErrorCode::from_code(code).expect("a known code");
    let topics = group.topics.iter();
    let all = topics.flat_map(|topic| topic.partitions.iter().map(move |it| (topic, it)));
    let line = all.map(|(topic, it)| {
        let name = topic.topic_name.as_str();
        (name, it.partition_index, it.start_offset, it.lag, of(it.error_code))
    });
    line.collect()
}

fn alter(starts: &[(i32, i64)]) -> Request {
    let part = |&(partition_index, start_offset): &(i32, i64)| {
        AlterShareGroupOffsetsRequestPartition { partition_index, start_offset }
    };
    let (topic_name, partitions) = ("t".to_owned(), starts.iter().map(part).collect());
    let topics = vec![AlterShareGroupOffsetsRequestTopic { topic_name, partitions }];
    AlterShareGroupOffsetsRequest { group_id: "g".to_owned(), topics }.into()
}

fn forget(names: &[&str]) -> Request {
    let topic =
        |name: &&str| DeleteShareGroupOffsetsRequestTopic { topic_name: (*name).to_owned() };
    let topics = names.iter().map(topic).collect();
    DeleteShareGroupOffsetsRequest { group_id: "g".to_owned(), topics }.into()
}

/// The code of the whole, and those of the parts.
fn codes(answer: &Response) -> (ErrorCode, Vec<ErrorCode>) {
    let of = |code| ErrorCode::from_code(code).expect("a known code");
    match answer {
        Response::AlterShareGroupOffsets(it) => {
            let parts = it.responses.iter().flat_map(|it| &it.partitions);
            (of(it.error_code), parts.map(|it| of(it.error_code)).collect())
        }
        Response::DeleteShareGroupOffsets(it) => {
            (of(it.error_code), it.responses.iter().map(|it| of(it.error_code)).collect())
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn administrators_see_set_and_forget_where_a_group_starts() {
    const NONE: ErrorCode = ErrorCode::None;
    const UNKNOWN: ErrorCode = ErrorCode::UnknownTopicOrPartition;
    let mut it = Harness::new(&FEW);
    it.create("t", &[]);
    let ask = |it: &mut Harness, request: Request| {
        let version = i16::from(matches!(request, Request::DescribeShareGroupOffsets(_)));
        let answer = it.ask(request, version);
        it.pass_ms(100);
        answer
    };
    let seen = |it: &mut Harness, topics: Option<&[(&str, &[i32])]>| match ask(it, describe(topics))
    {
        Response::DescribeShareGroupOffsets(answer) => answer,
        other => panic!("{other:?}"),
    };
    it.ask(find(), 6);
    for value in ["a", "b", "c"] {
        it.produce("t", batch(&[value]));
    }
    assert_eq!(lines(&seen(&mut it, None)), []);
    let named: [(&str, &[i32]); 2] = [("t", &[0, 5]), ("x", &[0])];
    let unknown = [("t", 0, -1, -1, NONE), ("t", 5, -1, -1, NONE), ("x", 0, -1, -1, NONE)];
    assert_eq!(lines(&seen(&mut it, Some(&named))), unknown, "nothing was ever kept");
    assert_eq!(codes(&ask(&mut it, forget(&["t"]))).0, ErrorCode::GroupIdNotFound);
    it.ask(heartbeat(0), 1);
    it.pass_ms(1_000);
    assert_eq!(lines(&seen(&mut it, None)), [("t", 0, -1, -1, NONE)]);
    assert_eq!(codes(&ask(&mut it, alter(&[(0, 1)]))).0, ErrorCode::NonEmptyGroup);
    assert_eq!(codes(&ask(&mut it, forget(&["t"]))).0, ErrorCode::NonEmptyGroup);
    it.ask(heartbeat(-1), 1);
    let told = codes(&ask(&mut it, alter(&[(0, 1), (7, 1)])));
    assert_eq!(told, (NONE, vec![NONE, UNKNOWN]));
    let told = seen(&mut it, Some(&named));
    assert_eq!(lines(&told)[..2], [("t", 0, 1, 2, NONE), ("t", 5, -1, -1, NONE)]);
    it.restart(&FEW, 2);
    assert_eq!(lines(&seen(&mut it, None)), [("t", 0, 1, 2, NONE)]);
    it.create("u", &[]);
    let told = codes(&ask(&mut it, forget(&["t", "u", "x"])));
    assert_eq!(told, (NONE, vec![NONE, UNKNOWN, UNKNOWN]));
    assert_eq!(lines(&seen(&mut it, None)), []);
}

/// Asks the node that coordinates the group, until it does.
fn told(trio: &mut Trio, request: &Request, version: i16) -> Response {
    for _ in 0..40 {
        if let Some(at) = trio.nodes[0].node.core.coordinator_of(GROUPS, "g") {
            let at = usize::try_from(at).expect("small");
            let id = trio.send(at, request.clone(), version);
            for _ in 0..60 {
                trio.pass_ms(50);
                if let Some(answer) = trio.response(at, id) {
                    return answer;
                }
            }
            panic!("nobody answers");
        }
        let at = trio.controller();
        trio.ask(at, find(), 6);
        trio.pass_ms(500);
    }
    panic!("nobody coordinates")
}

#[test]
fn how_much_is_left_is_known_of_what_other_nodes_lead() {
    let mut trio = Trio::new(&FEW);
    trio.create("t", 3);
    let leaders: Vec<usize> = (0..3).map(|it| trio.leader("t", it).expect("led")).collect();
    assert!(leaders.iter().any(|it| *it != leaders[0]), "they are spread");
    told(&mut trio, &heartbeat(0), 1);
    trio.pass_ms(2_000);
    told(&mut trio, &heartbeat(-1), 1);
    let answer = told(&mut trio, &alter(&[(0, 0), (1, 0), (2, 0)]), 0);
    assert_eq!(codes(&answer), (ErrorCode::None, vec![ErrorCode::None; 3]));
    trio.produce(leaders[0], "t", batch(&["a", "b"]));
    let Response::DescribeShareGroupOffsets(answer) = told(&mut trio, &describe(None), 1) else {
        panic!("other")
    };
    let none = ErrorCode::None;
    let expected = [("t", 0, 0, 2, none), ("t", 1, 0, 0, none), ("t", 2, 0, 0, none)];
    assert_eq!(lines(&answer), expected);
    let Response::DescribeShareGroupOffsets(answer) = told(&mut trio, &describe(None), 0) else {
        panic!("other")
    };
    assert_eq!(lines(&answer)[0], ("t", 0, 0, -1, none), "it was not asked for");
}

#[test]
fn a_deletion_that_nobody_can_take_part_in_is_given_up() {
    let mut trio = Trio::new(&FEW);
    trio.create("t", 3);
    told(&mut trio, &heartbeat(0), 1);
    trio.pass_ms(2_000);
    told(&mut trio, &heartbeat(-1), 1);
    let at = trio.nodes[0].node.core.coordinator_of(GROUPS, "g").expect("one");
    let at = usize::try_from(at).expect("small");
    trio.cut.extend((0..3).filter(|other| *other != at));
    let groups_names = vec!["g".to_owned()];
    let id = trio.send(at, DeleteGroupsRequest { groups_names }, 2);
    trio.pass_ms(15_000);
    let Some(Response::DeleteGroups(answer)) = trio.response(at, id) else { panic!("no answer") };
    assert_ne!(answer.results[0].error_code, 0);
}
