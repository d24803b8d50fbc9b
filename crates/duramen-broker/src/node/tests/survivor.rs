//! One node goes on alone, when the others are lost for ever.

use duramen_protocol::Response;
use duramen_protocol::messages::create_topics::{CreatableReplicaAssignment, CreatableTopic};
use duramen_protocol::messages::{FindCoordinatorRequest, InitProducerIdRequest};

use super::harness::{Harness, batch, bytes_of, fetch_request, new_topic, produce_request};
use super::trio::{TICK_MS, Trio};
use crate::internal_topics::GROUPS;
use crate::survivor::{Place, Survival};

fn place(topic: &str) -> Place {
    Place { topic: topic.to_owned(), partition: 0 }
}

fn wait(trio: &mut Trio, what: &str, is_so: impl Fn(&Trio) -> bool) {
    for _ in 0..1200 {
        if is_so(trio) {
            return;
        }
        trio.pass_ms(TICK_MS);
    }
    panic!("{what}: it never came to be");
}

fn producer_id(trio: &mut Trio, at: usize) -> i64 {
    match trio.ask(at, InitProducerIdRequest::default(), 4) {
        Response::InitProducerId(response) => response.producer_id,
        other => panic!("{other:?}"),
    }
}

/// A topic of one partition, on these nodes.
fn create_on(trio: &mut Trio, name: &str, brokers: &[i32]) {
    let assignment =
        CreatableReplicaAssignment { partition_index: 0, broker_ids: brokers.to_vec() };
    let topic = CreatableTopic {
        num_partitions: -1,
        replication_factor: -1,
        assignments: vec![assignment],
        ..new_topic(name, 1, &[])
    };
    let row = trio.try_create(trio.controller(), topic).topics.remove(0);
    assert_eq!(row.error_code, 0, "{:?}", row.error_message);
    trio.pass_ms(3000);
}

fn placed(trio: &Trio, at: usize, topic: &str) -> Vec<i32> {
    let topic = trio.nodes[at].node.core.controller.image.topic_named(topic).expect("it is there");
    topic.partitions[0].iter().map(|it| it.broker_id).collect()
}

#[test]
fn what_one_node_has_goes_on_without_the_others() {
    let mut trio = Trio::new(&[]);
    create_on(&mut trio, "t", &[0, 1, 2]);
    create_on(&mut trio, "elsewhere", &[1, 2]);
    let coordinator =
        FindCoordinatorRequest { coordinator_keys: vec!["g".into()], ..Default::default() };
    trio.ask(0, coordinator, 4);
    trio.pass_ms(3000);
    let before = producer_id(&mut trio, 0);
    assert_eq!(trio.produce(0, "t", batch(&["committed"])).error_code, 0);
    // The others do not hear of this one, so nobody was told that it is there.
    trio.cut.extend([1, 2]);
    trio.send(0, produce_request("t", batch(&["written"]), -1), 9);

    let outcome = trio.survive(0);
    assert_eq!(outcome.others, [1, 2]);
    assert!(outcome.kept.contains(&place("t")) && outcome.kept.contains(&place(GROUPS)));
    assert_eq!(outcome.lost, [place("elsewhere")]);
    assert!(outcome.partial.is_empty() && outcome.renewed.is_empty());
    wait(&mut trio, "it leads", |trio| trio.leader("t", 0) == Some(0));
    wait(&mut trio, "the others are gone from placements", |trio| placed(trio, 0, "t") == [0]);
    wait(&mut trio, "the others are gone", |trio| {
        trio.nodes[0].node.core.controller.image.brokers.len() == 1
    });
    let Response::Fetch(fetched) = trio.ask(0, fetch_request("t", 0), 12) else { panic!() };
    let part = &fetched.responses[0].partitions[0];
    assert_eq!(part.high_watermark, 2, "what only this node had is kept");
    let text = String::from_utf8_lossy(&bytes_of(part)).into_owned();
    assert!(text.contains("committed") && text.contains("written"));
    let part = trio.produce(0, "t", batch(&["c"]));
    assert_eq!((part.error_code, part.base_offset), (0, 2));
    assert!(producer_id(&mut trio, 0) > before + 1_000_000, "others may have been given some");
    assert_eq!(trio.leader("elsewhere", 0), None, "its records are nowhere: it takes none");

    // The directories of the others turn up after all: it does not listen to them.
    trio.cut.clear();
    trio.pass_ms(10_000);
    assert_eq!(trio.nodes[0].node.core.controller.image.brokers.len(), 1);
    assert_eq!(trio.produce(0, "t", batch(&["d"])).error_code, 0);

    // It grows again, by nodes that may have the numbers of those that are lost.
    trio.wipe(1, 1, &[]);
    trio.wipe(2, 1, &[]);
    let joined = |trio: &Trio| trio.nodes[0].node.core.controller.image.brokers.len() == 3;
    wait(&mut trio, "others join", joined);
    wait(&mut trio, "groups are kept by all", |trio| placed(trio, 0, GROUPS).len() == 3);
}

/// The cluster's own topics cannot be deleted, so what is lost of them begins anew.
#[test]
fn groups_that_were_elsewhere_begin_anew() {
    let mut trio = Trio::new(&[("offsets.topic.replication.factor", "1")]);
    let coordinator =
        FindCoordinatorRequest { coordinator_keys: vec!["g".into()], ..Default::default() };
    trio.ask(0, coordinator.clone(), 4);
    trio.pass_ms(3000);
    let image = &trio.nodes[0].node.core.controller.image;
    let partitions = &image.topic_named(GROUPS).expect("it was made").partitions;
    let here = partitions.iter().filter(|it| it[0].broker_id == 0).count();
    let all = partitions.len();
    assert!(here > 0 && here < all);
    let outcome = trio.survive(0);
    assert_eq!((outcome.kept.len(), outcome.renewed.len()), (here, all - here));
    wait(&mut trio, "all are led", |trio| {
        (0..).take(all).all(|partition| trio.leader(GROUPS, partition) == Some(0))
    });
}

/// In the middle of a move a replica lacks most of the log, and whoever decides is told so.
#[test]
fn a_directory_without_a_past_cannot_survive() {
    let node = Harness::new(&[]);
    let facts = node.node.core.options.facts.clone();
    let plan = Survival::plan(&facts, &[], Vec::new(), 0);
    assert!(plan.expect_err("nothing is there").contains("no metadata"));
}
