//! Groups that sleep, and what wakes them.

use duramen_protocol::messages::ListOffsetsRequest;
use duramen_protocol::messages::list_offsets::{ListOffsetsPartition, ListOffsetsTopic};
use duramen_protocol::wire::Uuid;
use duramen_protocol::{ErrorCode, Response};
use duramen_storage::op::ReplicaId;

use super::harness::{batch, fetch_request, produce_request};
use super::trio::{TICK_MS, Trio};
use crate::controller::METADATA_GROUP;
use crate::event::Event;
use crate::limits::{ELECTION_TICKS, GROUP_QUIET_TICKS, PEER_SLEEPERS_MAX};
use crate::peer::{Asleep, Frame, PeerFrame, Sleeper};

const NEVER: (&str, &str) = ("auto.leader.rebalance.enable", "false");
const QUIET_MS: u64 = (GROUP_QUIET_TICKS + 20) * TICK_MS;
const ELECTION_MS: u64 = ELECTION_TICKS as u64 * TICK_MS;

/// Three nodes that all sleep, but for the metadata, and a topic `t`: the one that leads it, and the others.
fn asleep() -> (Trio, usize, [usize; 2]) {
    let mut trio = Trio::new(&[NEVER]);
    trio.create("t", 1);
    let leader = trio.leader("t", 0).expect("led");
    trio.produce(leader, "t", batch(&["a"]));
    trio.pass_ms(QUIET_MS);
    assert_eq!(sleeping(&trio), [true; 3]);
    (trio, leader, [(leader + 1) % 3, (leader + 2) % 3])
}

fn sleeps(trio: &Trio, at: usize) -> bool {
    let replica = trio.replica(at, "t", 0);
    trio.nodes[at].node.core.partitions[&replica].group.is_asleep()
}

/// Whether each node's replica sleeps; those that do are not ticked, and no others.
fn sleeping(trio: &Trio) -> [bool; 3] {
    [0, 1, 2].map(|at| {
        let (node, replica) = (&trio.nodes[at].node, trio.replica(at, "t", 0));
        let is_ticked = node.quiescence.awake().any(|id| id == replica);
        assert_ne!(is_ticked, sleeps(trio, at), "node {at}");
        sleeps(trio, at)
    })
}

fn term(trio: &Trio, at: usize) -> u64 {
    let replica = trio.replica(at, "t", 0);
    trio.nodes[at].node.core.partitions[&replica].group.term()
}

/// The letters of partitions that are sent while time passes.
fn letters_in(trio: &mut Trio, ms: u64) -> usize {
    let mut count = 0;
    for _ in 0..ms / 10 {
        trio.now.mono_us += 10_000;
        for node in &mut trio.nodes {
            node.now = trio.now;
            node.step(Event::Tick);
            let frames = node.sent.iter().map(|(_, frame)| &frame.0);
            let letters = frames.flat_map(|frame| &frame.letters);
            count += letters.filter(|it| it.topic_id.0 != METADATA_GROUP.topic_id).count();
        }
        trio.talk();
    }
    count
}

fn latest(trio: &mut Trio, at: usize) -> (i16, i64) {
    let partitions =
        vec![ListOffsetsPartition { partition_index: 0, current_leader_epoch: -1, timestamp: -1 }];
    let topic = ListOffsetsTopic { name: "t".to_owned(), partitions };
    let request =
        ListOffsetsRequest { replica_id: -1, topics: vec![topic], ..ListOffsetsRequest::default() };
    match trio.ask(at, request, 5) {
        Response::ListOffsets(mut response) => {
            let part = response.topics.remove(0).partitions.remove(0);
            (part.error_code, part.offset)
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn groups_without_anything_to_do_say_nothing() {
    let (mut trio, _, _) = asleep();
    assert_eq!(letters_in(&mut trio, 10_000), 0);
    assert_eq!(sleeping(&trio), [true; 3]);
    let metrics = trio.nodes[0].node.metrics();
    assert_eq!((metrics.partitions_asleep, metrics.partitions), (1, 1));
}

#[test]
fn a_group_that_sleeps_takes_what_is_appended_and_sleeps_again() {
    let (mut trio, leader, _) = asleep();
    let before = term(&trio, leader);
    let part = trio.produce(leader, "t", batch(&["b"]));
    assert_eq!((part.error_code, part.base_offset), (0, 1));
    assert_eq!(sleeping(&trio), [false; 3], "whoever is awake has woken the others");
    trio.pass_ms(QUIET_MS);
    assert_eq!(sleeping(&trio), [true; 3]);
    assert_eq!([0, 1, 2].map(|at| term(&trio, at)), [before; 3]);
}

#[test]
fn a_leader_that_slept_makes_sure_that_it_leads() {
    let (mut trio, leader, others) = asleep();
    assert_eq!(latest(&mut trio, leader), (0, 1));
    trio.pass_ms(QUIET_MS);
    assert_eq!(sleeping(&trio), [true; 3]);
    // It is cut off, and does not know it yet.
    trio.cut.extend(others);
    assert_eq!(latest(&mut trio, leader).0, ErrorCode::NotLeaderOrFollower.code());
}

#[test]
fn followers_that_slept_elect_another_leader_when_their_leader_dies() {
    let (mut trio, leader, others) = asleep();
    trio.cut.insert(leader);
    trio.pass_ms(ELECTION_MS - 2 * TICK_MS);
    assert_eq!(others.map(|at| sleeps(&trio, at)), [true; 2], "not yet");
    trio.pass_ms(ELECTION_MS + 2 * TICK_MS);
    let led = others.into_iter().find(|at| {
        let replica = trio.replica(*at, "t", 0);
        trio.nodes[*at].node.core.partitions[&replica].group.is_serving()
    });
    let first = others.into_iter().min_by_key(|at| {
        let image = &trio.nodes[*at].node.core.controller.image;
        let placed = &image.topic_named("t").expect("there").partitions[0];
        placed.iter().position(|it| it.broker_id == i32::try_from(*at).expect("small"))
    });
    assert_eq!(led, first, "the next of the placement, within another election timeout");
    // A follower is missing, so they stay awake.
    trio.pass_ms(QUIET_MS);
    assert_eq!(others.map(|at| sleeps(&trio, at)), [false; 2]);
    trio.cut.clear();
    trio.pass_ms(2 * QUIET_MS);
    assert_eq!(sleeping(&trio), [true; 3]);
    assert_ne!(trio.leader("t", 0), Some(leader));
}

#[test]
fn a_producer_is_answered_soon_after_a_leader_dies_asleep() {
    let (mut trio, leader, _) = asleep();
    trio.cut.insert(leader);
    let from_us = trio.now.mono_us;
    let next = loop {
        match trio.leader("t", 0) {
            Some(next) => break next,
            None => trio.pass_ms(TICK_MS),
        }
    };
    let part = trio.produce(next, "t", batch(&["b"]));
    assert_eq!((part.error_code, part.base_offset), (0, 1));
    // An election timeout until it is noticed, half of one until the next of the placement stands, and the way to and
    // fro.
    assert!(trio.now.mono_us - from_us <= (ELECTION_MS + ELECTION_MS / 2 + 3 * TICK_MS) * 1000);
}

#[test]
fn a_wake_up_that_is_lost_is_said_again() {
    let (mut trio, leader, [deaf, other]) = asleep();
    let before = term(&trio, leader);
    trio.cut.insert(deaf);
    let part = trio.produce(leader, "t", batch(&["b"]));
    assert_eq!((part.error_code, part.base_offset), (0, 1));
    trio.pass_ms(ELECTION_MS / 2);
    assert_eq!([deaf, other].map(|at| sleeps(&trio, at)), [true, false]);
    trio.cut.clear();
    trio.pass_ms(ELECTION_MS / 2);
    assert!(!sleeps(&trio, deaf));
    assert_eq!(trio.nodes[deaf].node.core.partitions[&trio.replica(deaf, "t", 0)].committed(), 2);
    trio.pass_ms(QUIET_MS);
    assert_eq!(sleeping(&trio), [true; 3]);
    assert_eq!([0, 1, 2].map(|at| term(&trio, at)), [before; 3]);
}

#[test]
fn one_that_returns_without_what_it_had_does_not_sleep_and_has_no_say() {
    let (mut trio, leader, [poor, other]) = asleep();
    let before = term(&trio, leader);
    let mut store = trio.nodes[poor].store.clone();
    let replica = trio.replica(poor, "t", 0);
    let stored = store.replicas.get_mut(&replica).expect("there");
    stored.entries.pop();
    stored.payloads.pop();
    stored.hard_state.commit = stored.entries.last().expect("an election before").index;
    trio.restart(poor, store, &[NEVER]);
    trio.pass_ms(QUIET_MS);
    // It was asked to sleep, and shown by that that something is missing.
    let failure = trio.nodes[poor].node.core.partitions[&replica].group.failure();
    assert!(failure.is_some_and(|why| why.contains("not in this log")), "{failure:?}");
    assert_eq!([leader, other].map(|at| sleeps(&trio, at)), [false; 2]);
    assert_eq!([leader, other].map(|at| term(&trio, at)), [before; 2]);
    let part = trio.produce(leader, "t", batch(&["b"]));
    assert_eq!((part.error_code, part.base_offset), (0, 1));
}

#[test]
fn a_leader_that_slept_and_is_alone_acknowledges_nothing() {
    let (mut trio, leader, others) = asleep();
    trio.cut.extend(others);
    // It does not know that yet.
    let part = trio.produce(leader, "t", batch(&["lost"]));
    assert_ne!(part.error_code, 0);
    trio.cut.clear();
    trio.pass_ms(2 * QUIET_MS);
    assert_eq!(sleeping(&trio), [true; 3]);
}

#[test]
fn followers_that_sleep_show_what_is_committed_and_no_more() {
    let (mut trio, leader, others) = asleep();
    let end = |trio: &mut Trio, at: usize| match trio.ask(at, fetch_request("t", 0), 11) {
        Response::Fetch(response) => {
            let part = &response.responses[0].partitions[0];
            (part.error_code, part.high_watermark)
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(others.map(|at| end(&mut trio, at)), [(0, 1); 2]);
    assert_eq!(sleeping(&trio), [true; 3], "nobody was woken by that");
    // What is appended here is nobody's but the leader's, and what follows it must not be shown.
    trio.cut.extend(others);
    trio.send(leader, produce_request("t", batch(&["b"]), -1), 9);
    assert_eq!(end(&mut trio, leader), (0, 1));
    trio.cut.clear();
    trio.pass_ms(QUIET_MS);
    let ends = others.map(|at| end(&mut trio, at));
    assert_eq!(ends, [end(&mut trio, leader); 2]);
}

#[test]
fn a_leader_that_slept_and_is_not_answered_ceases_to_lead() {
    let (mut trio, leader, others) = asleep();
    trio.cut.extend(others);
    trio.pass_ms(ELECTION_MS + 3 * TICK_MS);
    let replica = trio.replica(leader, "t", 0);
    let group = &trio.nodes[leader].node.core.partitions[&replica].group;
    assert!(!group.is_asleep() && !group.is_serving());
}

#[test]
fn a_leader_that_slept_goes_on_with_a_majority() {
    let (mut trio, leader, [gone, _]) = asleep();
    let before = term(&trio, leader);
    trio.cut.insert(gone);
    let part = trio.produce(leader, "t", batch(&["before it is known"]));
    assert_eq!((part.error_code, part.base_offset), (0, 1));
    trio.pass_ms(10 * ELECTION_MS);
    assert_eq!(trio.leader("t", 0), Some(leader));
    assert_eq!(term(&trio, leader), before);
    assert!(!sleeps(&trio, leader), "a follower is missing");
    let part = trio.produce(leader, "t", batch(&["b"]));
    assert_eq!((part.error_code, part.base_offset), (0, 2));
}

#[test]
fn a_leader_that_fails_does_not_keep_its_followers_asleep() {
    let (mut trio, leader, others) = asleep();
    let replica = trio.replica(leader, "t", 0);
    let node = &mut trio.nodes[leader].node;
    node.core.partitions.get_mut(&replica).expect("there").group.fail("a fault".to_owned());
    node.core.mark_dirty(replica);
    trio.nodes[leader].run();
    // Its node is there as before, and says so.
    trio.pass_ms(2 * ELECTION_MS);
    let serves = |at: &usize| {
        let replica = trio.replica(*at, "t", 0);
        trio.nodes[*at].node.core.partitions[&replica].group.is_serving()
    };
    assert!(others.iter().any(serves));
}

#[test]
fn a_set_that_is_not_what_was_told_is_told_again() {
    let (mut trio, leader, [follower, _]) = asleep();
    // It woke, for whatever reason, and nobody else knows.
    let replica = trio.replica(follower, "t", 0);
    let node = &mut trio.nodes[follower].node;
    node.core.partitions.get_mut(&replica).expect("there").group.wake();
    node.core.mark_dirty(replica);
    trio.nodes[follower].run();
    assert!(!sleeps(&trio, follower) && sleeps(&trio, leader));
    trio.pass_ms(2 * TICK_MS);
    assert_eq!(trio.nodes[follower].node.metrics().sleep_disputes, 1);
    trio.pass_ms(ELECTION_MS + QUIET_MS);
    assert_eq!(sleeping(&trio), [true; 3]);
    assert_eq!(trio.nodes[follower].node.metrics().sleep_disputes, 0);
}

/// What the leader's node says of those that sleep, put into a frame of another number.
fn frame_of(trio: &Trio, from: usize, number: u64, asleep: Asleep) -> Event {
    let facts = &trio.nodes[from].node.core.options.facts;
    let frame = Frame {
        cluster_id: Uuid(facts.cluster_id),
        broker_id: facts.broker_id,
        directory_id: Uuid(facts.directory_id),
        incarnation: trio.nodes[from].node.core.options.seed,
        number,
        asleep,
        ..Frame::default()
    };
    Event::Peer(Box::new(PeerFrame(frame)))
}

#[test]
fn what_is_out_of_order_changes_nothing_and_what_is_dropped_wakes() {
    let (mut trio, leader, [follower, _]) = asleep();
    let (from, to) = (trio.replica(leader, "t", 0), trio.replica(follower, "t", 0));
    let woken = |from: ReplicaId| Sleeper { from: from.0, to: to.0, term: 0, index: 0 };
    let drop = |version, after| Asleep {
        version,
        hash: 0,
        after,
        upto: version,
        sleepers: vec![woken(from)],
    };
    // A frame that was late, and one before which another was lost.
    for (version, after) in [(0, 0), (99, 98)] {
        let frame = frame_of(&trio, leader, 1000, drop(version, after));
        trio.nodes[follower].step(frame);
        assert!(sleeps(&trio, follower));
    }
    let frame = frame_of(&trio, leader, 1001, drop(99, 1));
    trio.nodes[follower].step(frame);
    assert!(!sleeps(&trio, follower));
}

#[test]
fn another_start_of_the_leaders_node_leads_nothing_asleep() {
    let (mut trio, leader, [follower, _]) = asleep();
    let Event::Peer(mut frame) = frame_of(&trio, leader, 1, Asleep::default()) else {
        panic!("it is a frame")
    };
    frame.0.incarnation += 1;
    trio.nodes[follower].step(Event::Peer(frame));
    assert!(!sleeps(&trio, follower));
}

#[test]
fn many_groups_that_sleep_are_told_and_dropped_in_pieces() {
    const { assert!(PEER_SLEEPERS_MAX < 150 / 3) };
    let mut trio = Trio::new(&[NEVER]);
    trio.create("t", 1);
    trio.create("many", 150);
    trio.pass_ms(QUIET_MS);
    for node in &trio.nodes {
        assert_eq!(node.node.quiescence.asleep(), 151);
        assert_eq!(node.node.quiescence.awake().count(), 0);
        assert_eq!(node.node.metrics().sleep_disputes, 0);
    }
    // All that one node leads is led by others when it is gone.
    trio.cut.insert(0);
    trio.pass_ms(3 * ELECTION_MS);
    for partition in 0..150 {
        let serves = |at: usize| {
            let replica = trio.replica(at, "many", partition);
            trio.nodes[at].node.core.partitions[&replica].group.is_serving()
        };
        assert!(serves(1) || serves(2), "{partition}");
    }
}

#[test]
fn a_move_of_leadership_wakes_a_group() {
    let (mut trio, leader, [to, _]) = asleep();
    let (own, successor) = (trio.replica(leader, "t", 0), trio.replica(to, "t", 0));
    let node = &mut trio.nodes[leader].node;
    assert!(node.core.partitions.get_mut(&own).expect("there").group.hand_over(successor.0, false));
    node.core.mark_dirty(own);
    trio.nodes[leader].run();
    trio.pass_ms(TICK_MS);
    assert_eq!(trio.leader("t", 0), Some(to));
    trio.pass_ms(QUIET_MS);
    assert_eq!(sleeping(&trio), [true; 3]);
}

#[test]
fn a_node_that_ends_gives_away_what_sleeps() {
    let (mut trio, leader, _) = asleep();
    trio.nodes[leader].step(Event::Drain);
    trio.pass_ms(5 * TICK_MS);
    assert_ne!(trio.leader("t", 0), Some(leader));
}
