use std::collections::BTreeSet;

use duramen_protocol::Response;
use duramen_protocol::messages::create_topics::{CreatableReplicaAssignment, CreatableTopic};
use duramen_protocol::messages::{
    DeleteTopicsRequest, FindCoordinatorRequest, InitProducerIdRequest,
};
use duramen_storage::op::ReplicaId;
#[cfg(feature = "sabotage")]
use duramen_storage::sabotage::{Bug, plant};

use super::groups::{commit_request, fetch_request, fetched};
use super::harness::{Harness, batch, new_topic};
use super::internal_topics::GROUPS;
use super::trio::{TICK_MS, Trio};

const METADATA: ReplicaId = ReplicaId(1);
const LOG_BYTES: u64 = 16 << 10;
const SMALL_LOG: (&str, &str) = ("metadata.log.max.record.bytes.between.snapshots", "16384");

fn kept_bytes(it: &Harness) -> u64 {
    let recovered = it.store.recover();
    let metadata = recovered.iter().find(|found| found.replica == METADATA).expect("there");
    metadata.segments.iter().map(|segment| segment.size).sum()
}

fn producer_id(it: &mut Harness) -> i64 {
    match it.ask(InitProducerIdRequest { transactional_id: None, ..Default::default() }, 4) {
        Response::InitProducerId(response) => response.producer_id,
        other => panic!("{other:?}"),
    }
}

#[test]
fn thousands_of_creations_and_deletions_leave_a_small_log_and_ids_are_never_reused() {
    let mut it = Harness::new(&[SMALL_LOG, ("auto.create.topics.enable", "false")]);
    it.create("stays", &[("retention.ms", "5000")]);
    let stays = it.metadata(&["stays"]).topics[0].topic_id;
    it.produce("stays", batch(&["a"]));
    let (mut topics, mut replicas) = (BTreeSet::new(), BTreeSet::new());
    let (mut last_producer, mut largest) = (-1, 0);
    for round in 0..4u64 {
        for n in 0..500 {
            let name = format!("t-{n}");
            it.create(&name, &[]);
            assert!(topics.insert(it.metadata(&[&name]).topics[0].topic_id), "a topic id twice");
            assert!(replicas.insert(it.replica(&name)), "a replica id twice");
            super::topics::delete(&mut it, &name);
            largest = largest.max(kept_bytes(&it));
        }
        it.restart(&[SMALL_LOG, ("auto.create.topics.enable", "false")], round + 2);
        let producer = producer_id(&mut it);
        assert!(producer > last_producer, "a producer id twice");
        last_producer = producer;
        let metadata = it.metadata(&["stays", "t-3"]);
        assert_eq!(metadata.topics[0].topic_id, stays);
        assert_eq!(metadata.topics[1].error_code, 3);
        assert_eq!(it.fetch("stays", 0).high_watermark, 1);
        assert_eq!(it.store.replicas.len(), 2, "nothing of the others is left");
    }
    assert!(largest > LOG_BYTES / 2, "it was filled");
    assert!(largest < 4 * LOG_BYTES, "{largest}");
    assert!(it.store.replicas[&METADATA].log_start > 0);
}

#[test]
fn the_log_is_never_trimmed_beyond_the_image_that_storage_has() {
    let mut it = Harness::new(&[SMALL_LOG]);
    for n in 0..400 {
        let name = format!("t-{n}");
        it.create(&name, &[]);
        super::topics::delete(&mut it, &name);
        let recovered = it.store.recover();
        let metadata = recovered.iter().find(|found| found.replica == METADATA).expect("there");
        assert!(metadata.log_start <= metadata.prev_end_offset);
    }
}

#[test]
fn a_trim_that_storage_did_not_hear_of_is_executed_at_the_next_start() {
    let mut it = Harness::new(&[SMALL_LOG]);
    let before = it.store.clone();
    let mut n = 0;
    while it.store.replicas[&METADATA].log_start == 0 {
        it.create(&format!("t-{n}"), &[]);
        n += 1;
    }
    // The node died between the commit of the entry and what follows from it.
    let trimmed_to = it.store.replicas[&METADATA].log_start;
    let metadata = it.store.replicas.get_mut(&METADATA).expect("there");
    metadata.log_start = 0;
    metadata.image = before.replicas[&METADATA].image.clone();
    it.restart(&[SMALL_LOG], 2);
    assert_eq!(it.store.replicas[&METADATA].log_start, trimmed_to);
    assert!(it.store.replicas[&METADATA].image.0 > 1);
    let names: Vec<_> = (0..n).map(|n| format!("t-{n}")).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    assert!(it.metadata(&names).topics.iter().all(|topic| topic.error_code == 0));
}

/// Who was away while topics were deleted and the log of that was trimmed is given an image that has them not.
#[test]
fn a_deletion_that_is_only_known_by_an_image_leaves_no_offsets_either() {
    let never = ("auto.leader.rebalance.enable", "false");
    let mut trio = Trio::new(&[SMALL_LOG, never, ("offsets.topic.num.partitions", "1")]);
    let controller = trio.controller();
    let find = FindCoordinatorRequest { coordinator_keys: vec!["g".into()], ..Default::default() };
    trio.ask(controller, find, 4);
    trio.create("t", 1);
    trio.create("u", 1);
    let away = trio.leader(GROUPS, 0).expect("led");
    assert_ne!(away, controller, "else another seed is needed");
    for topic in ["t", "u"] {
        trio.ask(away, commit_request("g", topic, 5), 8);
    }
    let peer = trio.nodes[away].node.core.controller.group.id();
    let begins = |trio: &Trio| trio.nodes[away].store.replicas[&peer].begins;
    let (before, at) = (begins(&trio), trio.now.mono_us);

    trio.cut.insert(away);
    let delete = |trio: &mut Trio, name: &str| {
        let names = vec![name.to_owned()];
        let request =
            DeleteTopicsRequest { topic_names: names, timeout_ms: 1000, ..Default::default() };
        trio.ask(controller, request, 1);
    };
    delete(&mut trio, "t");
    let metadata = trio.nodes[controller].node.core.controller.group.id();
    while trio.nodes[controller].store.replicas[&metadata].log_start == 0 {
        let here = vec![i32::try_from(controller).expect("small")];
        let assignment = CreatableReplicaAssignment { partition_index: 0, broker_ids: here };
        let topic = CreatableTopic {
            replication_factor: -1,
            assignments: vec![assignment],
            ..new_topic("filler", -1, &[])
        };
        trio.try_create(controller, topic);
        delete(&mut trio, "filler");
    }
    assert_eq!(trio.now.mono_us, at, "it was not away for long enough to cease to lead");
    trio.cut.clear();
    trio.pass_ms(2000);
    assert_ne!(begins(&trio), before, "its log began anew");
    assert_eq!(trio.leader(GROUPS, 0), Some(away));

    let groups = match trio.ask(away, fetch_request(&["g"], None), 9) {
        answer @ Response::OffsetFetch(_) => fetched(Some(answer)),
        other => panic!("{other:?}"),
    };
    let names: Vec<&str> = groups[0].topics.iter().map(|topic| topic.name.as_str()).collect();
    assert_eq!(names, ["u"]);
}

/// Asks for a producer id while the leader of the metadata hears no follower. Returns whether the asker got one then, and
/// the id that it got in the end.
fn id_of_a_leader_that_hears_nobody() -> (bool, i64) {
    let mut trio = Trio::new(&[]);
    let leader = trio.controller();
    let (asker, other) = ((leader + 1) % 3, (leader + 2) % 3);
    trio.cut.insert(other);
    let id = trio.nodes[asker].send(InitProducerIdRequest::default(), 4);
    // The question comes to the leader, and so does the leader's block to the asker, but no acknowledgement of the block.
    trio.deliver_between(asker, leader);
    trio.severed = Some((asker, leader));
    trio.talk();
    let mut given = trio.response(asker, id);
    let is_early = given.is_some();
    trio.severed = None;
    trio.cut.clear();
    for _ in 0..200 {
        if let Some(Response::InitProducerId(response)) = given {
            return (is_early, response.producer_id);
        }
        trio.pass_ms(TICK_MS);
        given = trio.response(asker, id);
    }
    panic!("no id is given")
}

#[test]
fn producer_ids_are_given_once_their_block_is_committed() {
    let (is_early, id) = id_of_a_leader_that_hears_nobody();
    assert!(!is_early, "the block is not committed");
    assert!(id >= 0);
}

#[cfg(feature = "sabotage")]
#[test]
fn producer_ids_that_are_given_too_early_are_noticed() {
    plant(Some(Bug::IdsBeforeCommit));
    let (is_early, _) = id_of_a_leader_that_hears_nobody();
    plant(None);
    assert!(is_early);
}
