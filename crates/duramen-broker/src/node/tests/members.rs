//! Nodes that join, that lose their directory, and that leave.

use duramen_protocol::messages::{
    CreateTopicsRequest, FindCoordinatorRequest, InitProducerIdRequest, UnregisterBrokerRequest,
};
use duramen_protocol::{ErrorCode, Response};

use super::harness::{batch, new_topic};
use super::trio::{TICK_MS, Trio};
use crate::controller::quorum::is_of_directory;
use crate::internal_topics::GROUPS;

/// Nothing that the tests wait for takes longer.
const PATIENCE_MS: u64 = 60_000;

fn wait(trio: &mut Trio, what: &str, is_so: impl Fn(&Trio) -> bool) {
    for _ in 0..PATIENCE_MS / TICK_MS {
        if is_so(trio) {
            return;
        }
        trio.pass_ms(TICK_MS);
    }
    panic!("{what}: it never came to be");
}

/// Where the replicas of a partition are, as one node sees it; nothing while they are being moved.
fn settled(trio: &Trio, at: usize, topic: &str) -> Option<Vec<(i32, [u8; 16])>> {
    let image = &trio.nodes[at].node.controller.image;
    let found = image.topic_named(topic)?;
    let is_moving = image.reassignments.keys().any(|(id, _)| *id == found.id);
    let replicas = found.partitions[0].iter().map(|it| (it.broker_id, it.directory_id.0));
    (!is_moving).then(|| replicas.collect())
}

fn metadata_voters(trio: &Trio, at: usize) -> usize {
    trio.nodes[at].node.controller.group.voters()
}

fn is_member(trio: &Trio, at: usize, others: usize) -> bool {
    let image = &trio.nodes[at].node.controller.image;
    let own = trio.nodes[at].node.own_directory();
    image.brokers.len() == others && image.brokers.values().any(|it| it.directory_id == own)
}

fn producer_id(trio: &mut Trio, at: usize) -> i64 {
    match trio.ask(at, InitProducerIdRequest::default(), 4) {
        Response::InitProducerId(response) => {
            assert_eq!(response.error_code, 0);
            response.producer_id
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_node_joins_and_gets_replicas_but_no_vote() {
    let mut trio = Trio::new(&[]);
    trio.create("old", 1);
    let new = trio.start_another(&[]);
    wait(&mut trio, "it joins", |trio| (0..4).all(|at| is_member(trio, at, 4)));
    wait(&mut trio, "it observes", |trio| {
        let group = &trio.nodes[trio.controller()].node.controller.group;
        group.has_member(trio.nodes[new].node.controller.group.id().0)
    });
    assert!(is_of_directory(trio.nodes[new].node.controller.group.id().0));
    assert_eq!(metadata_voters(&trio, new), 3);
    let topic = new_topic("wide", 1, &[]);
    let topic = duramen_protocol::messages::create_topics::CreatableTopic {
        replication_factor: 4,
        ..topic
    };
    let row = trio.try_create(new, topic).topics.remove(0);
    assert_eq!(row.error_code, 0, "{:?}", row.error_message);
    wait(&mut trio, "it is led", |trio| trio.leader("wide", 0).is_some());
    let leader = trio.leader("wide", 0).expect("led");
    assert_eq!(trio.produce(leader, "wide", batch(&["a"])).error_code, 0);
}

#[test]
fn one_node_grows_to_three_and_the_first_may_be_destroyed() {
    let mut trio = Trio::begun_by(1, &[]);
    trio.pass_ms(1000);
    let topic = CreateTopicsRequest {
        topics: vec![new_topic("t", 2, &[])],
        timeout_ms: 30_000,
        ..Default::default()
    };
    trio.ask(0, topic, 7);
    let coordinator =
        FindCoordinatorRequest { coordinator_keys: vec!["g".into()], ..Default::default() };
    trio.ask(0, coordinator, 4);
    let before = producer_id(&mut trio, 0);
    assert_eq!(settled(&trio, 0, GROUPS).map(|it| it.len()), Some(1));
    for _ in 0..2 {
        trio.start_another(&[]);
    }
    wait(&mut trio, "they join", |trio| (0..3).all(|at| is_member(trio, at, 3)));
    wait(&mut trio, "all vote", |trio| (0..3).all(|at| metadata_voters(trio, at) == 3));
    wait(&mut trio, "groups are kept by all", |trio| {
        (0..3).all(|at| settled(trio, at, GROUPS).is_some_and(|it| it.len() == 3))
    });
    let image = &trio.nodes[1].node.controller.image;
    let all = image.topic_named(GROUPS).expect("there").partitions.clone();
    assert!(all.iter().all(|replicas| replicas.len() == 3), "every partition");
    trio.cut.insert(0);
    wait(&mut trio, "others lead", |trio| trio.leader(GROUPS, 0).is_some());
    trio.pass_ms(2000);
    let other = trio.controller();
    assert!(trio.nodes[other].node.controller.image.topic_named("t").is_some());
    assert!(producer_id(&mut trio, other) > before, "no id is given twice");
}

#[test]
fn a_wiped_node_is_followed_by_its_new_directory() {
    let mut trio = Trio::new(&[]);
    trio.create("t", 1);
    let leader = trio.leader("t", 0).expect("led");
    assert_eq!(trio.produce(leader, "t", batch(&["a"])).error_code, 0);
    let wiped = (leader + 1) % 3;
    let before = settled(&trio, leader, "t").expect("nothing moves");
    trio.wipe(wiped, 1, &[]);
    trio.pass_ms(500);
    assert!(!is_member(&trio, wiped, 3), "the directory before it was heard a moment ago");
    wait(&mut trio, "it is a member", |trio| (0..3).all(|at| is_member(trio, at, 3)));
    let own = trio.nodes[wiped].node.own_directory().0;
    wait(&mut trio, "its replica is another", |trio| {
        let there = settled(trio, leader, "t");
        there.is_some_and(|it| it.len() == 3 && it.iter().any(|(_, id)| *id == own))
    });
    let after = settled(&trio, leader, "t").expect("nothing moves");
    let nodes = |it: &[(i32, [u8; 16])]| it.iter().map(|(id, _)| *id).collect::<Vec<_>>();
    assert_eq!(nodes(&before), nodes(&after), "the preferred one is still the first");
    wait(&mut trio, "it votes", |trio| {
        let group = &trio.nodes[trio.controller()].node.controller.group;
        let own = trio.nodes[wiped].node.controller.group.id().0;
        group.voters() == 3 && group.voter_ids().contains(&own)
    });
    // It counts: with one of the others gone, it and the third go on.
    let third = 3 - leader - wiped;
    trio.cut.insert(leader);
    wait(&mut trio, "another leads", |trio| trio.leader("t", 0).is_some());
    let leads = trio.leader("t", 0).expect("led");
    assert!([wiped, third].contains(&leads));
    let part = trio.produce(leads, "t", batch(&["b"]));
    assert_eq!((part.error_code, part.base_offset), (0, 1));
}

#[test]
fn a_node_leaves_once_it_has_nothing() {
    let mut trio = Trio::new(&[]);
    trio.create("t", 1);
    let new = trio.start_another(&[]);
    wait(&mut trio, "it joins", |trio| (0..4).all(|at| is_member(trio, at, 4)));
    let unregister = |trio: &mut Trio, asked: usize, broker_id: i32| match trio.ask(
        asked,
        UnregisterBrokerRequest { broker_id },
        0,
    ) {
        Response::UnregisterBroker(response) => (response.error_code, response.error_message),
        other => panic!("{other:?}"),
    };
    let (code, text) = unregister(&mut trio, 1, 0);
    assert_eq!(code, ErrorCode::InvalidRequest.code());
    assert!(text.is_some_and(|text| text.contains("has 1 replicas: move them")));
    assert_eq!(unregister(&mut trio, 1, 77).0, ErrorCode::BrokerIdNotRegistered.code());
    let id = i32::try_from(new).expect("small");
    assert_eq!(unregister(&mut trio, 1, id), (0, None));
    let is_gone =
        |trio: &Trio| (0..3).all(|at| trio.nodes[at].node.controller.image.brokers.len() == 3);
    wait(&mut trio, "it is gone", is_gone);
    trio.pass_ms(20_000);
    assert!(is_gone(&trio), "and it does not come back, though it is running");
    assert_eq!(unregister(&mut trio, 1, id).0, ErrorCode::BrokerIdNotRegistered.code());
}
