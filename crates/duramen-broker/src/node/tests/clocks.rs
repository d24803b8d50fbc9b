//! Wall clocks that differ between nodes, and what is removed for its age meanwhile.

use duramen_protocol::Response;
use duramen_protocol::messages::DescribeReplicasRequest;
use duramen_protocol::messages::create_topics::CreatableTopic;

use super::harness::{builder, new_topic};
use super::trio::Trio;

const DAY_MS: i64 = 86_400_000;
const SETTINGS: &[(&str, &str)] = &[("log.retention.check.interval.ms", "1000")];

/// A record that is new, in a topic that keeps records for a minute. Returns the node that has the only replica.
fn one_record(trio: &mut Trio) -> usize {
    let configs = [("retention.ms", "60000")];
    let topic = CreatableTopic { replication_factor: 1, ..new_topic("t", 1, &configs) };
    let row = trio.try_create(trio.controller(), topic).topics.remove(0);
    assert_eq!(row.error_code, 0, "{:?}", row.error_message);
    trio.pass_ms(3000);
    let leader = trio.leader("t", 0).expect("led");
    let batch = builder(&["a"], trio.now.wall_ms).build().expect("a batch");
    assert_eq!(trio.produce(leader, "t", batch).error_code, 0);
    leader
}

/// A node ends, and is started again while its clock is so far ahead.
fn restart_ahead(trio: &mut Trio, at: usize, ahead_ms: i64) {
    let store = std::mem::take(&mut trio.nodes[at].store);
    trio.ahead_ms.insert(at, ahead_ms);
    trio.restart(at, store, SETTINGS);
}

/// What a node says of its clock, to its metrics and to whoever asks it.
fn is_alone(trio: &mut Trio, at: usize) -> bool {
    let is_alone = trio.nodes[at].node.metrics().is_clock_alone;
    let request = DescribeReplicasRequest { topics: Vec::new(), bytes_max: 0 };
    let Response::DescribeReplicas(response) = trio.ask(at, request, 0) else { panic!("another") };
    assert_eq!(response.is_clock_alone, is_alone);
    assert_eq!(response.wall_ms, trio.nodes[at].now.wall_ms);
    is_alone
}

#[test]
fn a_node_that_starts_with_another_time_than_most_deletes_nothing() {
    for ahead_ms in [8 * DAY_MS, 3 * 3_600_000] {
        let mut trio = Trio::new(SETTINGS);
        let leader = one_record(&mut trio);
        restart_ahead(&mut trio, leader, ahead_ms);
        trio.pass_ms(10_000);
        assert_eq!(trio.leader("t", 0), Some(leader));
        assert_eq!(trio.nodes[leader].store.trims, []);
        let metrics = trio.nodes[leader].node.metrics();
        assert!(metrics.is_clock_alone && !metrics.is_clock_held);
        let apart_ms = ahead_ms.unsigned_abs();
        assert!(metrics.clocks_apart_ms.abs_diff(apart_ms) < 1000, "{}", metrics.clocks_apart_ms);
        // The others know that it is not theirs.
        for other in (0..3).filter(|at| *at != leader) {
            assert!(!is_alone(&mut trio, other));
            assert!(trio.nodes[other].node.metrics().clocks_apart_ms.abs_diff(apart_ms) < 1000);
        }
        // That they are not heard any more makes its time no better.
        trio.cut.extend((0..3).filter(|at| *at != leader));
        trio.pass_ms(10_000);
        assert_eq!(trio.nodes[leader].store.trims, []);
        trio.cut.clear();
        restart_ahead(&mut trio, leader, 0);
        trio.pass_ms(10_000);
        assert!(!is_alone(&mut trio, leader));
        assert_eq!(trio.nodes[leader].store.trims, []);
        trio.pass_ms(60_000);
        assert_eq!(trio.nodes[leader].store.trims, [(trio.replica(leader, "t", 0), 1)]);
    }
}

#[test]
fn the_clock_of_one_node_holds_nothing_up_elsewhere() {
    let mut trio = Trio::new(SETTINGS);
    let leader = one_record(&mut trio);
    restart_ahead(&mut trio, (leader + 1) % 3, -8 * DAY_MS);
    trio.pass_ms(65_000);
    assert_eq!(trio.nodes[leader].store.trims, [(trio.replica(leader, "t", 0), 1)]);
}

#[test]
fn of_two_nodes_that_differ_neither_deletes() {
    let mut trio = Trio::begun_by(2, SETTINGS);
    trio.pass_ms(10_000);
    let leader = one_record(&mut trio);
    restart_ahead(&mut trio, 1 - leader, -8 * DAY_MS);
    trio.pass_ms(65_000);
    assert!(is_alone(&mut trio, 0) && is_alone(&mut trio, 1));
    assert_eq!(trio.nodes[leader].store.trims, []);
}

#[test]
fn minutes_are_forgiven() {
    let mut trio = Trio::new(SETTINGS);
    let leader = one_record(&mut trio);
    restart_ahead(&mut trio, leader, 9 * 60_000);
    trio.pass_ms(5_000);
    assert!(!is_alone(&mut trio, leader));
    assert_eq!(trio.nodes[leader].store.trims, [(trio.replica(leader, "t", 0), 1)]);
}
