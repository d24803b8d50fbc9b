//! Leadership that changes hands on purpose.

use duramen_protocol::messages::ElectLeadersRequest;
use duramen_protocol::messages::elect_leaders::TopicPartitions;
use duramen_protocol::{ErrorCode, Response};

use super::harness::{batch, idempotent, produce_request};
use super::trio::{TICK_MS, Trio};
use crate::event::Event;
use crate::limits::ELECTION_TICKS;

const NOT_NEEDED: i16 = ErrorCode::ElectionNotNeeded.code();
const NOT_AVAILABLE: i16 = ErrorCode::PreferredLeaderNotAvailable.code();
const NOT_LEADER: i16 = ErrorCode::NotLeaderOrFollower.code();
const NEVER: &[(&str, &str)] = &[("auto.leader.rebalance.enable", "false")];

/// Three nodes, and a topic `t` of one partition that is led by another node than it should be: which one.
fn misplaced(pairs: &[(&str, &str)]) -> (Trio, usize) {
    let mut trio = Trio::new(pairs);
    trio.create("t", 1);
    let preferred = trio.preferred("t", 0);
    assert_eq!(trio.leader("t", 0), Some(preferred));
    hand_over(&mut trio, preferred);
    let other = trio.leader("t", 0).expect("led");
    assert_ne!(other, preferred);
    (trio, other)
}

/// The leader hands over to another node.
fn hand_over(trio: &mut Trio, from: usize) {
    let replica = trio.replica(from, "t", 0);
    let group = &mut trio.nodes[from].node.partitions.get_mut(&replica).expect("there").group;
    let to = group.successors().next().expect("they keep up");
    assert!(group.hand_over(to, false));
    trio.nodes[from].node.mark_dirty(replica);
    trio.nodes[from].run();
    trio.talk();
}

/// The codes of the response, and of each partition that it names.
fn elect(
    trio: &mut Trio,
    at: usize,
    kind: i8,
    asked: Option<&[(&str, &[i32])]>,
) -> (i16, Vec<i16>) {
    let topic = |(topic, partitions): &(&str, &[i32])| TopicPartitions {
        topic: (*topic).to_owned(),
        partitions: partitions.to_vec(),
    };
    let topic_partitions = asked.map(|asked| asked.iter().map(topic).collect());
    let request = ElectLeadersRequest { election_type: kind, topic_partitions, timeout_ms: 60_000 };
    match trio.ask(at, request, 2) {
        Response::ElectLeaders(response) => {
            let rows = response.replica_election_results.iter().flat_map(|it| &it.partition_result);
            (response.error_code, rows.map(|row| row.error_code).collect())
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn whoever_is_asked_for_an_election_gets_the_preferred_leader() {
    for asked in 0..3 {
        let (mut trio, _) = misplaced(NEVER);
        let preferred = trio.preferred("t", 0);
        let before = trio.now.mono_us;
        assert_eq!(
            elect(&mut trio, asked, 0, Some(&[("t", &[0, 7]), ("u", &[0])])),
            (
                0,
                vec![
                    0,
                    ErrorCode::UnknownTopicOrPartition.code(),
                    ErrorCode::UnknownTopicOrPartition.code()
                ]
            )
        );
        assert!(trio.now.mono_us - before < 1_000_000, "an election takes less than a second");
        assert_eq!(trio.leader("t", 0), Some(preferred));
        assert_eq!(elect(&mut trio, asked, 0, Some(&[("t", &[0])])), (0, vec![NOT_NEEDED]));
        assert_eq!(elect(&mut trio, asked, 1, Some(&[("t", &[0])])), (0, vec![NOT_NEEDED]));
        assert_eq!(elect(&mut trio, asked, 0, None), (0, vec![]));
    }
}

#[test]
fn an_election_of_all_names_those_that_were_held() {
    let (mut trio, _) = misplaced(NEVER);
    trio.create("u", 2);
    assert_eq!(elect(&mut trio, 0, 0, None), (0, vec![0]));
    assert_eq!(trio.leader("t", 0), Some(trio.preferred("t", 0)));
}

#[test]
fn a_preferred_replica_that_is_not_heard_is_not_elected() {
    let (mut trio, leader) = misplaced(NEVER);
    let preferred = trio.preferred("t", 0);
    trio.cut.insert(preferred);
    // Nobody has missed it yet: it is asked for, and does not come.
    let before = trio.now.mono_us;
    assert_eq!(elect(&mut trio, leader, 0, Some(&[("t", &[0])])), (0, vec![NOT_AVAILABLE]));
    assert!(trio.now.mono_us - before <= 5_100_000);
    // By now it is missed.
    let before = trio.now.mono_us;
    assert_eq!(elect(&mut trio, leader, 0, Some(&[("t", &[0])])), (0, vec![NOT_AVAILABLE]));
    assert!(trio.now.mono_us - before < 1_000_000, "told at once");
    assert_eq!(trio.leader("t", 0), Some(leader));
}

#[test]
fn an_unclean_election_is_never_held() {
    let (mut trio, _) = misplaced(NEVER);
    let preferred = trio.preferred("t", 0);
    trio.cut.extend((0..3).filter(|at| *at != preferred));
    trio.pass_ms(5000);
    assert_eq!(trio.leader("t", 0), None);
    let code = ErrorCode::EligibleLeadersNotAvailable.code();
    // What it heard last may be that another one leads.
    let (error, rows) = elect(&mut trio, preferred, 1, Some(&[("t", &[0])]));
    assert_eq!(error, 0);
    assert!(rows == [code] || rows == [NOT_NEEDED], "{rows:?}");
    assert_eq!(trio.leader("t", 0), None);
}

#[test]
fn leaders_go_back_to_preferred_replicas_by_themselves() {
    let (mut trio, other) = misplaced(&[("leader.imbalance.check.interval.seconds", "20")]);
    let preferred = trio.preferred("t", 0);
    trio.cut.insert(preferred);
    trio.pass_ms(25_000);
    assert_eq!(trio.leader("t", 0), Some(other), "to nobody who is not there");
    trio.cut.clear();
    trio.pass_ms(41_000);
    assert_eq!(trio.leader("t", 0), Some(preferred));
    let (mut trio, other) = misplaced(NEVER);
    trio.pass_ms(700_000);
    assert_eq!(trio.leader("t", 0), Some(other), "unless they are told not to");
}

#[test]
fn a_node_that_is_about_to_end_leads_nothing_any_more() {
    let mut trio = Trio::new(NEVER);
    trio.create("t", 9);
    let leaver = trio.controller();
    trio.nodes[leaver].step(Event::Drain);
    assert!(!trio.nodes[leaver].is_drained);
    trio.pass_ms(2 * TICK_MS);
    assert!(trio.nodes[leaver].is_drained);
    assert_ne!(trio.controller(), leaver);
    let leaders: Vec<_> = (0..9).map(|partition| trio.leader("t", partition)).collect();
    let led = |at: usize| leaders.iter().filter(|leader| **leader == Some(at)).count();
    assert_eq!(led(leaver), 0, "{leaders:?}");
    let others = [led((leaver + 1) % 3), led((leaver + 2) % 3)];
    assert_eq!(others.iter().sum::<usize>(), 9);
    assert!(others.iter().all(|led| *led >= 4), "not all to one: {others:?}");
    // Nobody gives anything to a node that leaves.
    assert_eq!(elect(&mut trio, 0, 0, None).1, [NOT_AVAILABLE; 3]);
    trio.pass_ms(10_000);
    assert!((0..9).all(|partition| trio.leader("t", partition).is_some_and(|it| it != leaver)));
}

#[test]
fn nodes_that_end_together_do_not_wait_for_each_other() {
    let mut trio = Trio::new(NEVER);
    trio.create("t", 9);
    (0..3).for_each(|at| trio.nodes[at].step(Event::Drain));
    trio.pass_ms(1200);
    assert!((0..3).all(|at| trio.nodes[at].is_drained));
    let mut alone = super::harness::Harness::new(&[]);
    alone.create("t", &[]);
    alone.step(Event::Drain);
    assert!(alone.is_drained);
}

#[test]
fn what_was_appended_before_a_handover_is_answered_before_it() {
    let mut trio = Trio::new(NEVER);
    trio.create("t", 1);
    let leader = trio.leader("t", 0).expect("led");
    // The leader's disk takes its time, so the append is still open when the handover begins.
    trio.nodes[leader].is_prompt = false;
    let id = trio.send(leader, produce_request("t", batch(&["a"]), -1), 9);
    let replica = trio.replica(leader, "t", 0);
    let group = &mut trio.nodes[leader].node.partitions.get_mut(&replica).expect("there").group;
    let to = group.successors().next().expect("they keep up");
    assert!(group.hand_over(to, false));
    trio.nodes[leader].node.mark_dirty(replica);
    trio.nodes[leader].run();
    trio.talk();
    assert_eq!(trio.leader("t", 0), Some(leader), "somebody waits for it");
    assert!(trio.response(leader, id).is_none());

    // Whoever comes meanwhile goes elsewhere, and nothing of that is kept.
    let refused = trio.send(leader, produce_request("t", idempotent(7, 0, 0, &["b"]), -1), 9);
    assert_eq!(trio.leader("t", 0), Some(leader));

    trio.nodes[leader].is_prompt = true;
    trio.nodes[leader].persist();
    trio.nodes[leader].run();
    trio.talk();
    let Some(Response::Produce(first)) = trio.response(leader, id) else { panic!("not answered") };
    assert_eq!(first.responses[0].partition_responses[0].error_code, 0);
    let Some(Response::Produce(refused)) = trio.response(leader, refused) else { panic!("waits") };
    assert_eq!(refused.responses[0].partition_responses[0].error_code, NOT_LEADER);
    let next = trio.leader("t", 0).expect("led at once");
    assert_ne!(next, leader);
    let part = trio.produce(next, "t", idempotent(7, 0, 0, &["b"]));
    assert_eq!((part.error_code, part.base_offset), (0, 1));
}

#[test]
fn a_handover_that_fails_leaves_the_leader_as_it_was() {
    let mut trio = Trio::new(NEVER);
    trio.create("t", 1);
    let leader = trio.leader("t", 0).expect("led");
    let replica = trio.replica(leader, "t", 0);
    let group = &mut trio.nodes[leader].node.partitions.get_mut(&replica).expect("there").group;
    let to = group.successors().next().expect("they keep up");
    assert!(group.hand_over(to, false));
    trio.nodes[leader].node.mark_dirty(replica);
    trio.nodes[leader].run();
    // What the successor was told is lost.
    trio.nodes[leader].sent.clear();
    let refused = trio.send(leader, produce_request("t", idempotent(7, 0, 0, &["a"]), -1), 9);
    let Some(Response::Produce(refused)) = trio.response(leader, refused) else { panic!("waits") };
    assert_eq!(refused.responses[0].partition_responses[0].error_code, NOT_LEADER);
    trio.pass_ms((ELECTION_TICKS as u64 + 2) * TICK_MS);
    assert_eq!(trio.leader("t", 0), Some(leader));
    let part = trio.produce(leader, "t", idempotent(7, 0, 0, &["a"]));
    assert_eq!(
        (part.error_code, part.base_offset),
        (0, 0),
        "neither offset nor sequence were kept"
    );
    let part = trio.produce(leader, "t", idempotent(7, 0, 1, &["b"]));
    assert_eq!((part.error_code, part.base_offset), (0, 1));
}

#[test]
fn leadership_leaves_a_node_whose_disk_holds_up_the_others() {
    let mut trio = Trio::new(NEVER);
    trio.create("t", 1);
    let leader = trio.leader("t", 0).expect("led");
    trio.nodes[leader].is_prompt = false;
    trio.send(leader, produce_request("t", idempotent(7, 0, 0, &["a"]), -1), 9);
    trio.pass_ms(3 * TICK_MS);
    assert_eq!(trio.leader("t", 0), Some(leader), "not for a moment's sake");
    trio.pass_ms((ELECTION_TICKS as u64 + 2) * TICK_MS);
    let next = trio.leader("t", 0).expect("led");
    assert_ne!(next, leader);
    // What a majority had is committed, once.
    let part = trio.produce(next, "t", idempotent(7, 0, 0, &["a"]));
    assert_eq!((part.error_code, part.base_offset), (0, 0));
    let part = trio.produce(next, "t", idempotent(7, 0, 1, &["b"]));
    assert_eq!((part.error_code, part.base_offset), (0, 1));
    // Later its disk answers, and it follows.
    trio.nodes[leader].is_prompt = true;
    while trio.nodes[leader].persist() {}
    trio.nodes[leader].run();
    trio.pass_ms(1000);
    let replica = trio.replica(leader, "t", 0);
    assert_eq!(trio.nodes[leader].node.partitions[&replica].committed(), 2);
}
