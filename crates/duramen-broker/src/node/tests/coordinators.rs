//! How the node keeps its groups: loading, storing, keeping the log small.

use std::collections::BTreeMap;

use bytes::Bytes;
use duramen_protocol::ErrorCode;
use duramen_protocol::Response;
use duramen_protocol::batch::batches;
use duramen_protocol::messages::{HeartbeatRequest, ListGroupsRequest};
use duramen_protocol::records::{BatchBuilder, NewRecord, Records};
use duramen_storage::op::{Content, Done};

use super::groups::{
    code, commit, commit_request, committed, fetch_request, fetched, find, find_request, offset_of,
};
use super::harness::{Harness, SHORTAGE, bytes_of};
use super::internal_topics::GROUPS;
use super::topics::delete;
use super::trio::Trio;
use crate::event::Event;
use crate::limits::GROUP_LOG_AGAIN_US;

const ONE_PARTITION: [(&str, &str); 2] =
    [("offsets.topic.num.partitions", "1"), ("offsets.topic.segment.bytes", "16384")];

fn with_groups() -> Harness {
    let mut it = Harness::new(&ONE_PARTITION);
    find(&mut it);
    it.create("t", &[]);
    it
}

/// Bytes of batches that the log holds from its start on.
fn log_bytes(it: &Harness) -> usize {
    let stored = &it.store.replicas[&it.replica(GROUPS)];
    stored.batches(stored.log_start, i64::MAX).iter().map(Bytes::len).sum()
}

#[test]
fn groups_are_served_once_their_log_was_read_to_its_end() {
    let mut it = with_groups();
    for offset in 0..200 {
        assert_eq!(commit(&mut it, "g", "t", offset), ErrorCode::None);
    }
    it.restart_without_reading(&ONE_PARTITION, 9);
    let loading = ErrorCode::CoordinatorLoadInProgress;
    assert_eq!(it.reads.len(), 1);
    assert_eq!(offset_of(&mut it, "g", "t"), Err(loading));
    assert_eq!(commit(&mut it, "g", "t", 7), loading);
    let Response::ListGroups(listed) = it.ask(ListGroupsRequest::default(), 4) else {
        panic!("other")
    };
    assert_eq!(code(listed.error_code), loading);
    let heartbeat = HeartbeatRequest { group_id: "g".to_owned(), ..Default::default() };
    let Response::Heartbeat(answer) = it.ask(heartbeat, 4) else { panic!("other") };
    assert_eq!(answer.error_code, 0, "no member is alarmed");
    let mut slices = 0;
    while it.carry_out_reads() {
        slices += 1;
    }
    assert!(slices > 5, "{slices} slices: a long log is read bit by bit");
    assert_eq!(offset_of(&mut it, "g", "t"), Ok(199));
}

#[test]
fn a_log_that_cannot_be_read_is_not_passed_over() {
    let mut it = with_groups();
    assert_eq!(commit(&mut it, "g", "t", 5), ErrorCode::None);
    it.restart_without_reading(&ONE_PARTITION, 9);
    let wanted = it.reads.pop().expect("it loads");
    let batches = Err("the medium has rotted".to_owned());
    let read = wanted.answer(batches);
    it.node.step(it.now, Event::LogRead(read), &mut Vec::new());
    assert_eq!(offset_of(&mut it, "g", "t"), Err(ErrorCode::NotCoordinator));
    assert_eq!(commit(&mut it, "g", "t", 7), ErrorCode::NotCoordinator);
    assert_eq!(it.node.metrics().coordinators_failed, 1);
}

#[test]
fn a_log_that_could_not_be_read_is_read_again_later() {
    let mut it = with_groups();
    assert_eq!(commit(&mut it, "g", "t", 5), ErrorCode::None);
    it.restart_without_reading(&ONE_PARTITION, 9);
    for _ in 0..2 {
        let wanted = it.reads.pop().expect("it loads");
        let batches = Err("the medium does not answer".to_owned());
        let read = wanted.answer(batches);
        it.node.step(it.now, Event::LogRead(read), &mut Vec::new());
        it.pass_ms(GROUP_LOG_AGAIN_US / 1000 - 100);
        assert_eq!(it.reads.len(), 0, "not at once");
        assert_eq!(it.node.metrics().coordinators_failed, 1);
        it.pass_ms(200);
    }
    assert_eq!(it.node.metrics().coordinators_failed, 0);
    while it.carry_out_reads() {}
    assert_eq!(offset_of(&mut it, "g", "t"), Ok(5));
}

#[test]
fn a_topic_that_is_deleted_while_groups_are_loaded_leaves_no_offsets() {
    let mut it = with_groups();
    it.create("u", &[]);
    assert_eq!(commit(&mut it, "g", "t", 5), ErrorCode::None);
    assert_eq!(commit(&mut it, "g", "u", 6), ErrorCode::None);
    it.restart_without_reading(&ONE_PARTITION, 9);
    it.is_prompt = true;
    let reads = std::mem::take(&mut it.reads);
    delete(&mut it, "t");
    assert_eq!(offset_of(&mut it, "g", "u"), Err(ErrorCode::CoordinatorLoadInProgress));
    it.reads = reads;
    it.run();
    let id = it.send(fetch_request(&["g"], None), 9);
    let groups = fetched(it.response(id));
    let names: Vec<&str> = groups[0].topics.iter().map(|topic| topic.name.as_str()).collect();
    assert_eq!(names, ["u"]);
}

#[test]
fn a_record_that_this_version_does_not_know_is_not_passed_over() {
    let mut it = with_groups();
    assert_eq!(commit(&mut it, "g", "t", 5), ErrorCode::None);
    it.restart_without_reading(&ONE_PARTITION, 9);
    let wanted = it.reads.pop().expect("it loads");
    let mut batch = BatchBuilder::new();
    let record =
        NewRecord { key: Some(b"\0\x63later"), value: Some(b"\0\0"), ..NewRecord::default() };
    batch.push(&record).expect("a good record");
    let batches = Ok(batch.build().expect("a good batch"));
    let read = wanted.answer(batches);
    it.node.step(it.now, Event::LogRead(read), &mut Vec::new());
    assert_eq!(offset_of(&mut it, "g", "t"), Err(ErrorCode::NotCoordinator));
    it.pass_ms(2 * GROUP_LOG_AGAIN_US / 1000);
    assert_eq!(it.reads.len(), 0, "it would say the same again");
}

#[test]
fn the_log_stays_small_however_much_is_committed() {
    let mut it = with_groups();
    for group in 0..40 {
        assert_eq!(commit(&mut it, &format!("quiet-{group}"), "t", group), ErrorCode::None);
    }
    let mut largest = 0;
    for offset in 0..3_000 {
        assert_eq!(commit(&mut it, "busy", "t", offset), ErrorCode::None);
        largest = largest.max(log_bytes(&it));
    }
    assert!(largest < 64 << 10, "{largest} bytes");
    assert!(it.store.trims.len() > 5, "{} trims", it.store.trims.len());
    // Whoever reads the topic from its start finds the last value of every key.
    let mut last: BTreeMap<Bytes, Bytes> = BTreeMap::new();
    let start = it.store.replicas[&it.replica(GROUPS)].log_start;
    let mut at = start;
    loop {
        let fetched = it.fetch(GROUPS, at);
        assert_eq!(fetched.error_code, 0);
        let bytes = bytes_of(&fetched);
        if bytes.is_empty() {
            break;
        }
        for batch in batches(bytes) {
            let batch = batch.expect("ours");
            let records = Records::of(&batch, 1 << 20).expect("ours");
            for record in &records {
                let record = record.expect("ours");
                let part = |part: Option<&[u8]>| Bytes::copy_from_slice(part.expect("there"));
                last.insert(part(record.key), part(record.value));
            }
            at = batch.header().end_offset();
        }
    }
    assert_eq!(last.len(), 41);
    it.restart(&ONE_PARTITION, 3);
    assert_eq!(offset_of(&mut it, "busy", "t"), Ok(2_999));
    for group in 0..40 {
        assert_eq!(offset_of(&mut it, &format!("quiet-{group}"), "t"), Ok(group));
    }
}

#[test]
fn a_restart_amid_a_renewal_loses_nothing() {
    let mut it = with_groups();
    for group in 0..40 {
        assert_eq!(commit(&mut it, &format!("quiet-{group}"), "t", group), ErrorCode::None);
    }
    let mut offset = 0;
    assert_eq!(commit(&mut it, "busy", "t", offset), ErrorCode::None);
    for restart in 0..30 {
        // Storage stops somewhere: what was not stored is lost.
        for _ in 0..restart * 7 {
            offset += 1;
            assert_eq!(commit(&mut it, "busy", "t", offset), ErrorCode::None);
        }
        it.is_prompt = false;
        it.send(commit_request("busy", "t", -7), 8);
        for _ in 0..restart % 3 {
            it.persist();
            it.run();
        }
        it.restart(&ONE_PARTITION, 100 + restart);
        let found = offset_of(&mut it, "busy", "t").expect("served");
        assert!(found == offset || found == -7, "{found}, after {offset}");
        offset += 1;
        assert_eq!(commit(&mut it, "busy", "t", offset), ErrorCode::None);
        for group in 0..40 {
            assert_eq!(offset_of(&mut it, &format!("quiet-{group}"), "t"), Ok(group));
        }
    }
}

#[test]
fn retention_lets_the_log_of_groups_alone() {
    let settings = [
        ONE_PARTITION[0],
        ("log.retention.ms", "1000"),
        ("log.retention.check.interval.ms", "1000"),
        ("log.retention.bytes", "1"),
    ];
    let mut it = Harness::new(&settings);
    find(&mut it);
    it.create("t", &[]);
    assert_eq!(commit(&mut it, "g", "t", 5), ErrorCode::None);
    it.pass_ms(60_000);
    assert!(log_bytes(&it) > 0);
    it.restart(&settings, 4);
    assert_eq!(offset_of(&mut it, "g", "t"), Ok(5));
}

#[test]
fn a_full_disk_refuses_commits_and_room_lets_them_in() {
    let mut it = with_groups();
    assert_eq!(commit(&mut it, "g", "t", 5), ErrorCode::None);
    it.storage(Done::DiskFull(Some(SHORTAGE)));
    assert_eq!(commit(&mut it, "g", "t", 6), ErrorCode::NotCoordinator);
    assert_eq!(offset_of(&mut it, "g", "t"), Ok(5), "what was committed can be asked for");
    it.storage(Done::DiskFull(None));
    assert_eq!(commit(&mut it, "g", "t", 7), ErrorCode::None);
    assert_eq!(offset_of(&mut it, "g", "t"), Ok(7));
}

#[test]
fn one_turn_stores_all_commits_of_a_partition_at_once() {
    let mut it = with_groups();
    let turns = it.store.turns;
    it.is_prompt = false;
    let asked: Vec<i32> = (0..20)
        .map(|n| {
            it.enqueue(super::harness::ONE, &commit_request(&format!("g{n}"), "t", n).into(), 8)
        })
        .collect();
    it.run();
    assert_eq!(it.store.turns, turns + 1);
    let waits = it.send(fetch_request(&["g3"], Some("t")), 8);
    it.is_prompt = true;
    it.run();
    for id in asked.into_iter().chain([waits]) {
        assert!(it.response(id).is_some());
    }
}

/// What a coordinator appends is by nobody: no producer is remembered for it.
#[test]
fn batches_of_coordinators_have_no_producer() {
    let mut it = with_groups();
    assert_eq!(commit(&mut it, "g", "t", 5), ErrorCode::None);
    let stored = &it.store.replicas[&it.replica(GROUPS)];
    let batch = stored.entries.iter().find_map(|entry| match &entry.content {
        Content::Batch(batch) => Some(batch),
        Content::Internal(_) => None,
    });
    assert_eq!(batch.expect("one").producer_id, -1);
}

#[test]
fn who_comes_to_a_coordinator_that_was_just_elected_has_come_to_the_right_one() {
    let mut trio = Trio::new(&ONE_PARTITION);
    trio.ask(0, find_request(), 4);
    trio.pass_ms(3000);
    trio.cut.insert(trio.leader(GROUPS, 0).expect("one leads"));
    let others: Vec<usize> = (0..3).filter(|at| !trio.cut.contains(at)).collect();
    for at in &others {
        trio.nodes[*at].is_prompt = false;
    }
    let group = |trio: &Trio, at: usize| {
        let replica = trio.replica(at, GROUPS, 0);
        let group = &trio.nodes[at].node.core.partitions[&replica].group;
        (group.is_elected(), group.is_serving())
    };
    let mut told = Vec::new();
    for _ in 0..2000 {
        trio.pass_ms(1);
        let elected = others.iter().copied().find(|at| group(&trio, *at).0);
        if let Some(at) = elected {
            let id = trio.send(at, commit_request("g", "t", 1), 8);
            // What is taken is answered when disks have it.
            told.extend(trio.response(at, id).map(|it| (group(&trio, at).1, committed(Some(it)))));
        }
        for at in &others {
            trio.nodes[*at].persist();
            trio.nodes[*at].run();
        }
    }
    let loading = ErrorCode::CoordinatorLoadInProgress;
    assert!(
        told.contains(&(false, loading)),
        "nobody asked before the coordinator served: {told:?}"
    );
    let elsewhere = told.iter().filter(|(_, code)| *code == ErrorCode::NotCoordinator).count();
    assert_eq!(elsewhere, 0, "{told:?}");
}
