//! Which replicas are in sync is told alike by all nodes, whoever leads.

use std::collections::BTreeMap;

use duramen_protocol::Response;
use duramen_protocol::messages::create_topics::CreatableReplicaAssignment;
use duramen_protocol::messages::describe_topic_partitions::TopicRequest;
use duramen_protocol::messages::metadata::{
    MetadataRequestTopic, MetadataResponsePartition, MetadataResponseTopic,
};
use duramen_protocol::messages::{
    DescribeClusterRequest, DescribeTopicPartitionsRequest, MetadataRequest,
};

use super::harness::{batch, new_topic};
use super::trio::{TICK_MS, Trio};
use crate::event::Event;
use crate::limits::{PEER_SILENT_TICKS, TICK_US};

const PARTITIONS: i32 = 6;
/// Silence after which a node counts as gone, and a tick.
const SILENT_MS: u64 = (PEER_SILENT_TICKS + 2) * TICK_US / 1000;
/// The time after which a leader sees that a replica does not keep up, and all nodes have heard of it.
const LAG_MS: u64 = 17_000;

fn topic(trio: &mut Trio, at: usize, name: &str) -> MetadataResponseTopic {
    let asked = MetadataRequestTopic { name: Some(name.to_owned()), ..Default::default() };
    let request = MetadataRequest { topics: Some(vec![asked]), ..MetadataRequest::default() };
    match trio.ask(at, request, 12) {
        Response::Metadata(mut response) => response.topics.remove(0),
        other => panic!("{other:?}"),
    }
}

/// What a node says of all partitions: leader, and who is in sync, sorted. Both APIs say the same.
fn told(trio: &mut Trio, at: usize) -> BTreeMap<i32, (i32, Vec<i32>)> {
    let sorted = |mut nodes: Vec<i32>| {
        nodes.sort_unstable();
        nodes
    };
    let row =
        |it: MetadataResponsePartition| (it.partition_index, (it.leader_id, sorted(it.isr_nodes)));
    let told: BTreeMap<_, _> = topic(trio, at, "t").partitions.into_iter().map(row).collect();
    let request = DescribeTopicPartitionsRequest {
        topics: vec![TopicRequest { name: "t".to_owned() }],
        response_partition_limit: 1000,
        cursor: None,
    };
    let Response::DescribeTopicPartitions(mut response) = trio.ask(at, request, 0) else {
        panic!("another answer")
    };
    let rows = response.topics.remove(0).partitions.into_iter();
    let described: BTreeMap<_, _> =
        rows.map(|it| (it.partition_index, (it.leader_id, sorted(it.isr_nodes)))).collect();
    assert_eq!(told, described);
    told
}

/// All that are not cut off say the same: that these nodes are in sync everywhere.
fn assert_told(trio: &mut Trio, in_sync: &[i32]) {
    let there: Vec<usize> = (0..3).filter(|at| !trio.cut.contains(at)).collect();
    let all: Vec<_> = there.iter().map(|at| told(trio, *at)).collect();
    for told in &all {
        assert_eq!(told.len(), usize::try_from(PARTITIONS).expect("small"));
        assert!(
            told.values().all(|(leader, isr)| isr == in_sync && isr.contains(leader)),
            "{told:?}"
        );
        assert_eq!(told, &all[0]);
    }
}

fn trio() -> Trio {
    let mut trio = Trio::new(&[]);
    trio.create("t", PARTITIONS);
    assert_told(&mut trio, &[0, 1, 2]);
    trio
}

#[test]
fn a_dead_node_is_in_sync_nowhere_and_everywhere_again_when_it_is_back() {
    let mut trio = trio();
    trio.cut.insert(2);
    trio.pass_ms(SILENT_MS);
    assert_told(&mut trio, &[0, 1]);
    trio.pass_ms(LAG_MS);
    assert_told(&mut trio, &[0, 1]);
    trio.cut.clear();
    trio.pass_ms(2 * TICK_MS);
    trio.pass_ms(2000);
    assert_told(&mut trio, &[0, 1, 2]);
}

#[test]
fn a_node_that_was_started_again_tells_what_the_others_tell() {
    let mut trio = trio();
    trio.cut.insert(2);
    trio.pass_ms(SILENT_MS);
    let store = trio.nodes[1].store.clone();
    trio.restart(1, store, &[]);
    trio.pass_ms(SILENT_MS);
    assert_told(&mut trio, &[0, 1]);
}

#[test]
fn replicas_that_lag_on_a_node_that_is_heard_are_told_by_all() {
    let mut trio = trio();
    let leader = trio.leader("t", 0).expect("led");
    let (lagging, other) = ((leader + 1) % 3, (leader + 2) % 3);
    // Its disk does not answer, so it acknowledges nothing; its node is heard.
    trio.nodes[lagging].is_prompt = false;
    for _ in 0..LAG_MS / 1000 {
        trio.produce(leader, "t", batch(&["a"]));
        trio.pass_ms(1000);
    }
    let lagging = i32::try_from(lagging).expect("small");
    for at in [leader, other] {
        let told = told(&mut trio, at);
        assert!(!told[&0].1.contains(&lagging), "node {at}: {told:?}");
        assert_eq!(told[&0].1.len(), 2, "node {at}: {told:?}");
    }
}

/// An operator who sees three replicas in sync may take a node away: the other two must be a majority of what votes.
#[test]
fn a_replica_in_a_new_directory_is_in_sync_once_it_votes() {
    let mut trio = trio();
    let at = (trio.controller() + 1) % 3;
    // What it has stored is still thought to be there, and nothing is appended that it would lack.
    trio.wipe(at, 1, &[]);
    let new = trio.nodes[at].node.core.own_directory();
    let mut seen_moving = 0;
    for _ in 0..400 {
        trio.pass_ms(TICK_MS);
        let image = &trio.nodes[trio.controller()].node.core.controller.image;
        let has_joined = image.brokers.values().any(|it| it.directory_id == new);
        let rows: Vec<_> = (0..3).filter(|of| has_joined || *of != at).collect();
        let rows: Vec<_> = rows.into_iter().map(|of| told(&mut trio, of)).collect();
        for partition in 0..PARTITIONS {
            if !rows.iter().all(|told| told[&partition].1 == [0, 1, 2]) || !has_joined {
                seen_moving += usize::from(has_joined);
                continue;
            }
            let leader = trio.leader("t", partition).expect("led");
            let node = &trio.nodes[leader].node;
            let topic = node.core.controller.image.topic_named("t").expect("it is there");
            let placed = &topic.partitions[usize::try_from(partition).expect("small")];
            let here = node.core.local_replica(topic, partition).expect("a replica");
            let voters = node.core.partitions[&here].group.electorate();
            let directory = |peer: &u64| placed.iter().find(|it| it.peer_id == *peer);
            let of_new = voters.iter().filter_map(directory).any(|it| it.directory_id == new);
            assert!(of_new && voters.len() == 3, "{partition} is told to be in sync: {voters:?}");
        }
    }
    assert!(seen_moving > 0, "the move was not seen");
    assert_told(&mut trio, &[0, 1, 2]);
}

#[test]
fn nodes_without_a_majority_say_what_they_know() {
    let mut trio = trio();
    trio.cut.extend([1, 2]);
    trio.pass_ms(SILENT_MS);
    // It tells clients of leaders all the same, so that they can leave it.
    let rows = topic(&mut trio, 0, "t").partitions;
    assert!(rows.iter().all(|it| it.isr_nodes.iter().all(|id| *id == 0)), "{rows:?}");
    let request = DescribeClusterRequest {
        endpoint_type: 1,
        include_fenced_brokers: true,
        ..Default::default()
    };
    let Response::DescribeCluster(response) = trio.ask(0, request, 2) else { panic!("another") };
    let fenced = response.brokers.iter().filter(|it| it.is_fenced).map(|it| it.broker_id);
    assert_eq!(fenced.collect::<Vec<_>>(), [1, 2]);
    let readiness = trio.nodes[0].node.readiness();
    assert_eq!((readiness.nodes, readiness.nodes_unheard), (3, 2));
    assert!(readiness.is_member && !readiness.knows_leader);
}

#[test]
fn a_partition_whose_only_replica_is_lost_has_no_leader() {
    let mut trio = trio();
    let at = trio.controller();
    let lost = (at + 1) % 3;
    let only = i32::try_from(lost).expect("small");
    let mut one = new_topic("one", -1, &[]);
    one.replication_factor = -1;
    one.assignments =
        vec![CreatableReplicaAssignment { partition_index: 0, broker_ids: vec![only] }];
    assert_eq!(trio.try_create(at, one).topics[0].error_code, 0);
    trio.pass_ms(1000);
    let other = (at + 2) % 3;
    assert_eq!(topic(&mut trio, other, "one").partitions[0].leader_id, only);
    trio.cut.insert(lost);
    trio.pass_ms(SILENT_MS);
    for at in [at, other] {
        let row = topic(&mut trio, at, "one").partitions.remove(0);
        assert_eq!(
            (row.leader_id, &row.isr_nodes[..], &row.offline_replicas[..]),
            (-1, &[][..], &[only][..])
        );
    }
}

#[test]
fn nothing_is_said_where_nothing_changes() {
    let mut trio = trio();
    trio.pass_ms(5000);
    trio.talk();
    for _ in 0..200 {
        trio.now.mono_us += TICK_US;
        for node in &mut trio.nodes {
            node.now = trio.now;
            node.step(Event::Tick);
            let said =
                node.sent.iter().all(|(_, it)| it.0.leads.is_empty() && it.0.unheard.is_empty());
            assert!(said);
        }
        trio.talk();
    }
}
