//! Copies of moves within Kafka's limits.

use duramen_protocol::Response;
use duramen_protocol::messages::CreateTopicsRequest;
use duramen_protocol::messages::create_topics::{CreatableReplicaAssignment, CreatableTopic};

use super::harness::{batch, new_topic};
use super::moves::reassign;
use super::settings::{BROKER, TOPIC, alter};
use super::trio::{TICK_MS, Trio};

const BATCH: u64 = 200 * 1024;
const BATCHES: u64 = 20;
/// About what a log keeps in memory, and sends at once.
const MEMORY: u64 = 1 << 20;
const LEADER: &str = "leader.replication.throttled";
const FOLLOWER: &str = "follower.replication.throttled";
const NEVER: (&str, &str) = ("auto.leader.rebalance.enable", "false");

/// Three nodes, and a partition on the first two with much more than memory has: the one that leads.
fn filled() -> (Trio, usize) {
    let mut trio = Trio::new(&[NEVER]);
    let assignments =
        vec![CreatableReplicaAssignment { partition_index: 0, broker_ids: vec![0, 1] }];
    let topic = CreatableTopic { replication_factor: -1, assignments, ..new_topic("t", -1, &[]) };
    let request =
        CreateTopicsRequest { topics: vec![topic], timeout_ms: 30_000, ..Default::default() };
    let Response::CreateTopics(made) = trio.ask(trio.controller(), request, 7) else {
        panic!("other")
    };
    assert_eq!(made.topics[0].error_code, 0);
    trio.pass_ms(3000);
    let leader = trio.leader("t", 0).expect("led");
    for _ in 0..BATCHES {
        produce(&mut trio, leader);
    }
    trio.pass_ms(1000);
    (trio, leader)
}

fn produce(trio: &mut Trio, leader: usize) {
    let value = "x".repeat(usize::try_from(BATCH).expect("small"));
    assert_eq!(trio.produce(leader, "t", batch(&[&value])).error_code, 0);
}

/// Sets a setting, or removes it.
fn set(trio: &mut Trio, kind: i8, of: &str, name: &str, value: Option<&str>) {
    let request = alter(kind, of, &[(name, i8::from(value.is_none()), value)]);
    let answer = trio.ask(trio.controller(), request, 1);
    let Response::IncrementalAlterConfigs(answer) = answer else { panic!("{answer:?}") };
    assert_eq!(answer.responses[0].error_code, 0, "{:?}", answer.responses[0].error_message);
}

fn set_rate(trio: &mut Trio, node: usize, of: &str, rate: Option<u64>) {
    let rate = rate.map(|rate| rate.to_string());
    set(trio, BROKER, &node.to_string(), &format!("{of}.rate"), rate.as_deref());
}

fn throttled(trio: &Trio, node: usize) -> u64 {
    trio.nodes[node].node.metrics().throttled_bytes
}

fn is_moving(trio: &Trio) -> bool {
    !trio.nodes[trio.controller()].node.core.controller.image.reassignments.is_empty()
}

/// How long the move takes from now on, in milliseconds.
fn rest_ms(trio: &mut Trio) -> u64 {
    let began = trio.now.mono_us;
    while is_moving(trio) {
        assert!(trio.now.mono_us < began + 600_000_000, "it never ends");
        trio.pass_ms(TICK_MS);
    }
    (trio.now.mono_us - began) / 1000
}

#[test]
fn a_move_keeps_within_the_rate_of_the_leader_and_of_the_follower() {
    for of in [LEADER, FOLLOWER] {
        let (mut trio, leader) = filled();
        let limited = if of == LEADER { leader } else { 2 };
        let rate = 1 << 19;
        let list = if of == LEADER { format!("0:{leader},0:7") } else { "0:2".to_owned() };
        set(&mut trio, TOPIC, "t", &format!("{of}.replicas"), Some(&list));
        set_rate(&mut trio, limited, of, Some(rate));
        reassign(&mut trio, Some(&[leader, 1 - leader, 2]));
        let began = trio.now.mono_us;
        // A read is charged before its bytes are known, and the reads of a tick begin together.
        let slack = 1 << 19;
        let mut before = 0;
        while is_moving(&trio) {
            trio.pass_ms(1000);
            let bytes = throttled(&trio, leader);
            let seconds = (trio.now.mono_us - began).div_ceil(1_000_000);
            assert!(bytes <= rate * seconds + slack, "{of}: {bytes} in {seconds} s");
            assert!(seconds < 60, "{of}: {bytes} bytes are not all");
            before = bytes;
        }
        assert!(before > BATCH * BATCHES - 2 * MEMORY, "{of}: {before} went within the limit");
        let seconds = (trio.now.mono_us - began) / 1_000_000;
        assert!(seconds >= (before - slack) / rate, "{of}: {seconds} s");
    }
}

#[test]
fn what_is_not_throttled_moves_at_once() {
    let (mut trio, leader) = filled();
    // A list without a rate, a rate without a list, and a list of others.
    set(&mut trio, TOPIC, "t", &format!("{FOLLOWER}.replicas"), Some("*"));
    set(&mut trio, TOPIC, "t", &format!("{LEADER}.replicas"), Some("1:0,1:1,0:2"));
    set_rate(&mut trio, leader, LEADER, Some(1));
    set_rate(&mut trio, leader, FOLLOWER, Some(1));
    reassign(&mut trio, Some(&[leader, 1 - leader, 2]));
    let ms = rest_ms(&mut trio);
    assert!(ms < 10_000, "{ms} ms");
    assert_eq!(throttled(&trio, leader), 0);
}

#[test]
fn appends_go_on_beside_a_throttled_move_and_it_ends_when_the_limit_is_lifted() {
    let (mut trio, leader) = filled();
    set(&mut trio, TOPIC, "t", &format!("{LEADER}.replicas"), Some("*"));
    set_rate(&mut trio, leader, LEADER, Some(1));
    reassign(&mut trio, Some(&[leader, 1 - leader, 2]));
    trio.pass_ms(60_000);
    let bytes = throttled(&trio, leader);
    assert!(is_moving(&trio) && bytes < BATCHES * BATCH / 2, "{bytes}");
    // The other replica is in sync.
    produce(&mut trio, leader);
    assert_eq!(throttled(&trio, leader), bytes);
    set_rate(&mut trio, leader, LEADER, None);
    let ms = rest_ms(&mut trio);
    assert!(ms < 10_000, "{ms} ms");
}

#[test]
fn the_limit_of_all_nodes_holds_for_a_follower_without_one_of_its_own() {
    let (mut trio, leader) = filled();
    let rate = 1 << 18;
    set(&mut trio, TOPIC, "t", &format!("{FOLLOWER}.replicas"), Some("*"));
    set(&mut trio, BROKER, "", &format!("{FOLLOWER}.rate"), Some(&rate.to_string()));
    reassign(&mut trio, Some(&[leader, 1 - leader, 2]));
    trio.pass_ms(10_000);
    let core = &trio.nodes[leader].node.core;
    assert_eq!(core.throttle.share_of(2), Some(rate), "there is one leader");
    assert!(is_moving(&trio));
}
