//! Nodes that join, that lose their directory, and that leave.

use duramen_protocol::messages::alter_partition_reassignments::{
    ReassignablePartition, ReassignableTopic,
};
use duramen_protocol::messages::create_topics::CreatableTopic;
use duramen_protocol::messages::{
    AlterPartitionReassignmentsRequest, CreateTopicsRequest, FindCoordinatorRequest,
    InitProducerIdRequest, UnregisterBrokerRequest,
};
use duramen_protocol::wire::Uuid;
use duramen_protocol::{ErrorCode, Response};

use super::harness::{batch, new_topic};
use super::trio::{TICK_MS, Trio};
use crate::controller::quorum::is_of_directory;
use crate::internal_topics::GROUPS;
use crate::limits::{PEER_QUIET_TICKS, PEER_SILENT_TICKS};
use crate::metadata_records::RegisterBroker;
use crate::node::members;
use crate::raft::Group;

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
    let image = &trio.nodes[at].node.core.controller.image;
    let found = image.topic_named(topic)?;
    let is_moving = image.reassignments.keys().any(|(id, _)| *id == found.id);
    let replicas = found.partitions[0].iter().map(|it| (it.broker_id, it.directory_id.0));
    (!is_moving).then(|| replicas.collect())
}

fn metadata_voters(trio: &Trio, at: usize) -> usize {
    trio.nodes[at].node.core.controller.group.voters()
}

fn is_member(trio: &Trio, at: usize, others: usize) -> bool {
    let image = &trio.nodes[at].node.core.controller.image;
    let own = trio.nodes[at].node.core.own_directory();
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
        let group = &trio.nodes[trio.controller()].node.core.controller.group;
        group.has_member(trio.nodes[new].node.core.controller.group.id().0)
    });
    assert!(is_of_directory(trio.nodes[new].node.core.controller.group.id().0));
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
    let image = &trio.nodes[1].node.core.controller.image;
    let all = image.topic_named(GROUPS).expect("there").partitions.clone();
    assert!(all.iter().all(|replicas| replicas.len() == 3), "every partition");
    trio.cut.insert(0);
    wait(&mut trio, "others lead", |trio| trio.leader(GROUPS, 0).is_some());
    trio.pass_ms(2000);
    let other = trio.controller();
    assert!(trio.nodes[other].node.core.controller.image.topic_named("t").is_some());
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
    let own = trio.nodes[wiped].node.core.own_directory().0;
    wait(&mut trio, "its replica is another", |trio| {
        let there = settled(trio, leader, "t");
        there.is_some_and(|it| it.len() == 3 && it.iter().any(|(_, id)| *id == own))
    });
    let after = settled(&trio, leader, "t").expect("nothing moves");
    let nodes = |it: &[(i32, [u8; 16])]| it.iter().map(|(id, _)| *id).collect::<Vec<_>>();
    assert_eq!(nodes(&before), nodes(&after), "the preferred one is still the first");
    wait(&mut trio, "it votes", |trio| {
        let group = &trio.nodes[trio.controller()].node.core.controller.group;
        let own = trio.nodes[wiped].node.core.controller.group.id().0;
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

/// No replica of a directory that nobody has any more would ever be made anew, unless that directory is retired.
#[test]
fn a_directory_that_is_wiped_before_it_is_registered_is_retired_all_the_same() {
    let mut trio = Trio::new(&[]);
    let controller = trio.controller();
    trio.cut.extend((0..3).filter(|at| *at != controller));
    let admit = |trio: &mut Trio, directory_id, replaces| {
        let core = &mut trio.nodes[controller].node.core;
        let own = core.registration_record();
        members::admit(core, &RegisterBroker { broker_id: 99, directory_id, ..own }, replaces);
    };
    let (first, second) = (Uuid([8; 16]), Uuid([9; 16]));
    admit(&mut trio, first, false);
    admit(&mut trio, second, true);
    trio.cut.clear();
    wait(&mut trio, "one is registered", |trio| {
        trio.nodes[controller].node.core.controller.image.brokers.contains_key(&99)
    });
    // A node that was just registered counts as heard for a while.
    trio.pass_ms((PEER_SILENT_TICKS + 2) * TICK_MS);
    admit(&mut trio, second, true);
    wait(&mut trio, "the second is registered", |trio| {
        let image = &trio.nodes[controller].node.core.controller.image;
        image.brokers.get(&99).is_some_and(|it| it.directory_id == second)
    });
    let image = &trio.nodes[controller].node.core.controller.image;
    assert!(image.retired.contains(&first), "its replicas are lost");
}

/// A mount that is missing looks like a disk that was lost: only an operator knows.
#[test]
fn nobody_follows_a_directory_unless_that_was_asked_for() {
    let mut trio = Trio::new(&[]);
    trio.create("t", 1);
    let (controller, leader) = (trio.controller(), trio.leader("t", 0).expect("led"));
    assert_eq!(trio.produce(leader, "t", batch(&["a"])).error_code, 0);
    let away = (0..3).find(|at| ![controller, leader].contains(at)).expect("there are three");
    let store = trio.nodes[away].store.clone();
    trio.lose_mount(away, 1);
    trio.pass_ms(60_000);
    let image = &trio.nodes[controller].node.core.controller.image;
    assert!(image.retired.is_empty(), "the directory that is not mounted is still the node's");
    assert!((0..3).all(|at| is_member(&trio, at, 3) == (at != away)));
    trio.restart(away, store, &[]);
    wait(&mut trio, "it is back", |trio| (0..3).all(|at| is_member(trio, at, 3)));
    // It counts: with one of the others gone, it and the third go on.
    trio.cut.insert(leader);
    wait(&mut trio, "another leads", |trio| trio.leader("t", 0).is_some());
    let leads = trio.leader("t", 0).expect("led");
    assert_eq!(trio.produce(leads, "t", batch(&["b"])).base_offset, 1);
}

/// Who has not joined yet speaks to whom it was told of, which need not be the one that decides.
#[test]
fn a_node_that_leads_nothing_passes_on_that_a_place_is_asked_for() {
    let mut trio = Trio::new(&[]);
    let controller = trio.controller();
    let lost = (controller + 1) % 3;
    trio.severed = Some((lost, controller));
    trio.wipe(lost, 1, &[]);
    let own = trio.nodes[lost].node.core.own_directory();
    wait(&mut trio, "the one between is listened to", |trio| {
        let image = &trio.nodes[controller].node.core.controller.image;
        image.brokers.values().any(|it| it.directory_id == own)
    });
}

fn unregister(trio: &mut Trio, asked: usize, broker_id: i32) -> (i16, Option<String>) {
    match trio.ask(asked, UnregisterBrokerRequest { broker_id }, 0) {
        Response::UnregisterBroker(response) => (response.error_code, response.error_message),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_node_leaves_once_it_has_nothing() {
    let mut trio = Trio::new(&[]);
    trio.create("t", 1);
    let new = trio.start_another(&[]);
    wait(&mut trio, "it joins", |trio| (0..4).all(|at| is_member(trio, at, 4)));
    let (code, text) = unregister(&mut trio, 1, 0);
    assert_eq!(code, ErrorCode::InvalidRequest.code());
    assert!(text.is_some_and(|text| text.contains("has 1 replicas: move them")));
    assert_eq!(unregister(&mut trio, 1, 77).0, ErrorCode::BrokerIdNotRegistered.code());
    let id = i32::try_from(new).expect("small");
    assert_eq!(unregister(&mut trio, 1, id), (0, None));
    let are_three =
        |trio: &Trio, at: usize| trio.nodes[at].node.core.controller.image.brokers.len() == 3;
    assert!(are_three(&trio, trio.controller()), "the answer is that it is gone");
    let is_gone = |trio: &Trio| (0..3).all(|at| are_three(trio, at));
    wait(&mut trio, "it is gone", is_gone);
    trio.pass_ms(20_000);
    assert!(is_gone(&trio), "and it does not come back, though it is running");
    assert_eq!(unregister(&mut trio, 1, id).0, ErrorCode::BrokerIdNotRegistered.code());
}

/// Three nodes of three, and a fourth that has the metadata and no vote.
fn with_observer() -> (Trio, usize) {
    let mut trio = Trio::new(&[]);
    let new = trio.start_another(&[]);
    wait(&mut trio, "it joins", |trio| (0..4).all(|at| is_member(trio, at, 4)));
    trio.pass_ms(3000);
    (trio, new)
}

/// Peers of nodes in the metadata group that vote on it, as the node knows that leads it.
fn voting(trio: &Trio) -> Vec<u64> {
    trio.nodes[trio.controller()].node.core.controller.group.voter_ids().to_vec()
}

fn peer(trio: &Trio, at: usize) -> u64 {
    trio.nodes[at].node.core.controller.group.id().0
}

#[test]
fn the_leader_of_the_metadata_may_be_stopped_when_it_is_told_to_have_left() {
    let (mut trio, new) = with_observer();
    let leader = trio.controller();
    let other = (leader + 1) % 3;
    let id = i32::try_from(leader).expect("small");
    let mut most = 0;
    // Who leads then does not know what was asked of the one before it, and is asked again.
    let mut code = ErrorCode::NotController.code();
    while code == ErrorCode::NotController.code() {
        let asked = trio.send(other, UnregisterBrokerRequest { broker_id: id }, 0);
        code = loop {
            match trio.response(other, asked) {
                Some(Response::UnregisterBroker(response)) => break response.error_code,
                Some(other) => panic!("{other:?}"),
                None => trio.pass_ms(TICK_MS),
            }
            let groups = trio.nodes.iter().map(|it| &it.node.core.controller.group);
            most = groups.map(Group::voters).chain([most]).max().expect("there are some");
        };
    }
    assert_eq!(code, 0);
    assert_eq!(most, 3, "one that goes is not one more");
    let gone = peer(&trio, leader);
    let voters = voting(&trio);
    assert!(!voters.contains(&gone) && voters.contains(&peer(&trio, new)), "{voters:?}");
    // Of three one may fail.
    trio.cut.extend([leader, trio.controller()]);
    let others: Vec<usize> = (0..4).filter(|at| !trio.cut.contains(at)).collect();
    wait(&mut trio, "the others go on", |trio| {
        others.iter().any(|at| trio.nodes[*at].node.core.controller.group.is_serving())
    });
}

#[test]
fn one_that_goes_gets_no_replicas() {
    let mut trio = Trio::new(&[]);
    trio.create("t", 1);
    let new = trio.start_another(&[]);
    wait(&mut trio, "it joins", |trio| (0..4).all(|at| is_member(trio, at, 4)));
    let (controller, id) = (trio.controller(), i32::try_from(new).expect("small"));
    // Members were just tended, so that it takes half a second until it is gone.
    wait(&mut trio, "they are tended", |trio| {
        trio.nodes[controller].node.core.peers.ticks().is_multiple_of(PEER_QUIET_TICKS)
    });
    trio.send(controller, UnregisterBrokerRequest { broker_id: id }, 0);
    let image = |trio: &Trio| trio.nodes[controller].node.core.controller.image.clone();
    assert!(image(&trio).brokers.contains_key(&id), "it is on its way");
    let refused = (
        ErrorCode::InvalidReplicaAssignment.code(),
        Some(format!("broker {id} is leaving the cluster")),
    );

    let moved = ReassignablePartition { partition_index: 0, replicas: Some(vec![0, 1, id]) };
    let topics = vec![ReassignableTopic { name: "t".to_owned(), partitions: vec![moved] }];
    let request =
        AlterPartitionReassignmentsRequest { topics, timeout_ms: 1000, ..Default::default() };
    let answer = trio.ask(controller, request, 1);
    let Response::AlterPartitionReassignments(mut answer) = answer else { panic!("{answer:?}") };
    let row = answer.responses.remove(0).partitions.remove(0);
    assert_eq!((row.error_code, row.error_message), refused);
}

#[test]
fn one_that_is_about_to_go_gets_no_replicas_and_one_that_is_about_to_get_some_does_not_go() {
    let (mut trio, new) = with_observer();
    let (controller, id) = (trio.controller(), i32::try_from(new).expect("small"));
    let topic = |name| CreatableTopic { replication_factor: 3, ..new_topic(name, 8, &[]) };
    let create = |name| CreateTopicsRequest {
        topics: vec![topic(name)],
        timeout_ms: 30_000,
        ..CreateTopicsRequest::default()
    };
    let replicas = |trio: &Trio| {
        let image = &trio.nodes[controller].node.core.controller.image;
        let all = image.topics_by_name().flat_map(|topic| topic.partitions.iter().flatten());
        all.filter(|it| it.broker_id == id).count()
    };
    let took = |answer| match answer {
        Response::CreateTopics(answer) => answer.topics[0].error_code == 0,
        other => panic!("{other:?}"),
    };
    let leave = |broker_id| UnregisterBrokerRequest { broker_id };
    // Those that come while the node makes sure for another one that it leads are decided together, in their order.
    trio.nodes[controller].send(leave(77), 0);
    let creates = trio.nodes[controller].send(create("first"), 7);
    let (code, text) = unregister(&mut trio, controller, id);
    assert_eq!(code, ErrorCode::RequestTimedOut.code());
    assert!(text.is_some_and(|text| text.contains("placed or moved just now; ask again")));
    assert!(trio.response(controller, creates).is_some_and(took) && replicas(&trio) > 0);
    let (code, _) = unregister(&mut trio, controller, id);
    assert_eq!(code, ErrorCode::InvalidRequest.code(), "it has replicas");

    let (mut trio, _) = with_observer();
    let controller = trio.controller();
    trio.nodes[controller].send(leave(77), 0);
    let leaves = trio.nodes[controller].send(leave(id), 0);
    assert!(took(trio.ask(controller, create("second"), 7)));
    let image = &trio.nodes[controller].node.core.controller.image;
    assert!(image.topic_named("second").is_some());
    assert_eq!(replicas(&trio), 0);
    wait(&mut trio, "it has left", |trio| {
        !trio.nodes[controller].node.core.controller.image.brokers.contains_key(&id)
    });
    assert!(trio.response(controller, leaves).is_some());
}

#[test]
fn where_all_is_as_it_should_be_members_cost_the_metadata_no_turn() {
    let (mut trio, _) = with_observer();
    trio.create("t", 1);
    let controller = trio.controller();
    let node = &mut trio.nodes[controller].node;
    for _ in 0..3 {
        node.members.tend_members(&mut node.core);
        assert!(!node.core.is_controller_dirty);
    }
}

#[test]
fn one_that_is_silent_is_not_given_a_vote() {
    let (mut trio, new) = with_observer();
    trio.cut.insert(new);
    trio.pass_ms(1000);
    let leaves = (trio.controller() + 1) % 3;
    let id = i32::try_from(leaves).expect("small");
    let stays = 3 - leaves - trio.controller();
    assert_eq!(unregister(&mut trio, stays, id), (0, None));
    assert_eq!(voting(&trio).len(), 2, "it was heard a moment ago, and is not any more");
    trio.cut.clear();
    wait(&mut trio, "it votes now", |trio| voting(trio).len() == 3);
}

#[test]
fn a_node_joins_though_none_is_left_of_those_that_began_the_cluster() {
    let mut trio = Trio::begun_by(1, &[]);
    trio.pass_ms(1000);
    (0..2).for_each(|_| _ = trio.start_another(&[]));
    wait(&mut trio, "all vote", |trio| (0..3).all(|at| metadata_voters(trio, at) == 3));
    trio.cut.insert(0);
    trio.pass_ms(5000);
    trio.cut.clear();
    trio.pass_ms(1000);
    assert_ne!(trio.controller(), 0, "one leads that joined");
    let fourth = trio.start_another(&[]);
    wait(&mut trio, "the first lets it in, which is all it knows", |trio| {
        (0..4).all(|at| is_member(trio, at, 4))
    });
    assert_eq!(unregister(&mut trio, fourth, 0), (0, None));
    trio.cut.insert(0);
    trio.pass_ms(5000);
    let lonely = trio.start_another(&[]);
    trio.pass_ms(5000);
    assert!(!is_member(&trio, lonely, 4), "it speaks to nobody who is there");
    let introduced = vec![i32::try_from(fourth).expect("small")];
    trio.start_introduced(lonely, introduced);
    wait(&mut trio, "it joins", |trio| (1..5).all(|at| is_member(trio, at, 4)));
}
