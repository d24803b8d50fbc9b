//! Damaged segments: who is asked for what belongs there, who gives it, and what is taken.

use duramen_protocol::batch::batches;
use duramen_protocol::messages::DeleteTopicsRequest;
use duramen_storage::mending::{Damage, DamagedRange};
use duramen_storage::op::{Done, ReplicaId};

use super::harness::{Harness, Store, batch, produce_request};
use super::trio::{TICK_MS, Trio};
use crate::event::Event;

const NEVER: (&str, &str) = ("auto.leader.rebalance.enable", "false");

/// Three nodes, a topic `t` with a few batches, and what is where in the segment of a node's replica.
fn filled(at: usize) -> (Trio, ReplicaId, Vec<DamagedRange>) {
    let mut trio = Trio::new(&[NEVER]);
    trio.create("t", 1);
    let leader = trio.leader("t", 0).expect("led");
    for value in ["a", "bb", "ccc", "dddd"] {
        trio.produce(leader, "t", batch(&[value]));
    }
    trio.pass_ms(1000);
    let replica = trio.replica(at, "t", 0);
    let mut position = 0;
    let mut ranges = Vec::new();
    for bytes in payloads(&trio.nodes[at].store, replica) {
        let end_at = position + bytes.len() as u64;
        let offset = i64::try_from(ranges.len()).expect("small");
        ranges.push(DamagedRange { at: position, end_at, offset, end_offset: offset + 1 });
        position = end_at;
    }
    assert_eq!(ranges.len(), 4);
    (trio, replica, ranges)
}

fn payloads(store: &Store, replica: ReplicaId) -> Vec<Vec<u8>> {
    let all = store.replicas[&replica].payloads.clone().into_iter();
    all.filter(|bytes| !bytes.is_empty()).map(|bytes| bytes.to_vec()).collect()
}

fn damage(replica: ReplicaId, ranges: &[DamagedRange]) -> Event {
    Event::Damaged(Damage { replica, segment: 0, ranges: ranges.to_vec() })
}

fn pass(trio: &mut Trio, ticks: u64) {
    for _ in 0..ticks {
        trio.pass_ms(TICK_MS);
    }
}

#[test]
fn a_damaged_range_is_filled_with_what_another_replica_has() {
    for at in 0..3 {
        let (mut trio, replica, ranges) = filled(at);
        trio.nodes[at].step(damage(replica, &[ranges[0], ranges[2]]));
        assert_eq!(trio.nodes[at].node.metrics().segments_damaged, 1);
        pass(&mut trio, 10);
        let mend = trio.nodes[at].mends.pop().expect("it knows what belongs there");
        assert_eq!((mend.replica, mend.segment), (replica, 0));
        let there = payloads(&trio.nodes[at].store, replica);
        let filled: Vec<_> = mend.patches.iter().map(|(_, bytes)| bytes.to_vec()).collect();
        assert_eq!(filled, [there[0].clone(), there[2].clone()]);
        assert_eq!(batches(mend.patches[1].1.clone()).count(), 1);
        pass(&mut trio, 200);
        assert!(trio.nodes[at].mends.is_empty(), "storage is at it");
        let done = Done::Mended { replica, segment: 0, is_done: true };
        trio.nodes[at].step(Event::Storage(done));
        let metrics = trio.nodes[at].node.metrics();
        let mended = filled.concat().len() as u64;
        assert_eq!((metrics.segments_damaged, metrics.segments_mended), (0, 1));
        assert_eq!(metrics.mended_bytes, mended);
        let given: u64 = trio.nodes.iter().map(|it| it.node.metrics().ranges_given).sum();
        assert_eq!(given, 2);
    }
}

#[test]
fn whoever_does_not_answer_is_not_waited_for() {
    let (mut trio, replica, ranges) = filled(0);
    for (cut, other) in [(1, 2), (2, 1)] {
        trio.cut.insert(cut);
        trio.nodes[0].step(damage(replica, &ranges[1..2]));
        pass(&mut trio, 60);
        assert!(trio.nodes[0].mends.pop().is_some(), "{other} has it");
        let done = Done::Mended { replica, segment: 0, is_done: true };
        trio.nodes[0].step(Event::Storage(done));
        trio.cut.clear();
        pass(&mut trio, 40);
    }
}

/// Each read of the range reports it anew, and a leader reads for a follower that lacks it at each tick.
#[test]
fn reports_of_known_damage_do_not_void_a_question() {
    let (mut trio, replica, ranges) = filled(0);
    for cut in [1, 2] {
        trio.cut.insert(cut);
        for _ in 0..40 {
            trio.nodes[0].step(damage(replica, &ranges[1..2]));
            pass(&mut trio, 1);
        }
        assert!(trio.nodes[0].mends.pop().is_some(), "the node that is not cut off has it");
        trio.nodes[0].step(Event::Storage(Done::Mended { replica, segment: 0, is_done: true }));
        trio.cut.clear();
        pass(&mut trio, 40);
    }
}

#[test]
fn what_was_not_mended_is_tried_again_after_a_while() {
    let (mut trio, replica, ranges) = filled(0);
    trio.nodes[0].step(damage(replica, &ranges[1..2]));
    pass(&mut trio, 10);
    assert!(trio.nodes[0].mends.pop().is_some());
    trio.nodes[0].step(Event::Storage(Done::Mended { replica, segment: 0, is_done: false }));
    pass(&mut trio, 50);
    assert!(trio.nodes[0].mends.is_empty(), "not at once");
    pass(&mut trio, 100);
    assert!(trio.nodes[0].mends.pop().is_some());
}

#[test]
fn what_is_given_is_put_in_and_the_rest_stays_told() {
    let (mut trio, replica, ranges) = filled(0);
    let behind = DamagedRange { end_offset: 9, ..ranges[3] };
    trio.nodes[0].step(damage(replica, &[ranges[0], behind]));
    pass(&mut trio, 10);
    let mend = trio.nodes[0].mends.pop().expect("a part of it is there");
    let there = payloads(&trio.nodes[0].store, replica);
    let filled: Vec<_> = mend.patches.iter().map(|(_, bytes)| bytes.to_vec()).collect();
    assert_eq!(filled, [there[0].clone(), Vec::new()]);
    trio.nodes[0].step(Event::Storage(Done::Mended { replica, segment: 0, is_done: true }));
    pass(&mut trio, 150);
    assert!(trio.nodes[0].mends.is_empty(), "what was put in is not put in again");
    let metrics = trio.nodes[0].node.metrics();
    assert_eq!((metrics.segments_damaged, metrics.segments_mended), (1, 0));
    assert_eq!(metrics.mended_bytes, there[0].len() as u64);
}

#[test]
fn what_nobody_has_stays_told_and_is_asked_for_again() {
    let (mut trio, replica, ranges) = filled(0);
    // Both are there, and have none of it.
    let reads = |trio: &mut Trio, are_broken| {
        trio.nodes.iter_mut().for_each(|it| it.are_reads_broken = are_broken);
    };
    reads(&mut trio, true);
    trio.nodes[0].step(damage(replica, &ranges[1..2]));
    pass(&mut trio, 250);
    assert!(trio.nodes[0].mends.is_empty());
    assert_eq!(trio.nodes[0].node.metrics().segments_damaged, 1);
    reads(&mut trio, false);
    pass(&mut trio, 150);
    assert!(trio.nodes[0].mends.pop().is_some());
}

/// It could not feed a replica that lacks the log.
#[test]
fn a_leader_hands_over_to_one_that_has_compacted_what_is_damaged_there() {
    let leader = filled(0).0.leader("t", 0).expect("led");
    for more in [1, 2] {
        let (mut trio, replica, ranges) = filled(leader);
        let to = (leader + more) % 3;
        trio.nodes.iter_mut().for_each(|it| it.are_reads_broken = true);
        trio.nodes[to].are_reads_changed = true;
        trio.nodes[leader].step(damage(replica, &ranges[1..2]));
        pass(&mut trio, 250);
        assert_eq!(trio.leader("t", 0), Some(to));
        assert_eq!(trio.replica(leader, "t", 0), replica, "the third one may have it again");
    }
}

/// The leader cannot read what is behind a damaged batch either.
#[test]
fn a_leader_that_damage_keeps_from_its_first_commit_leaves_it_to_others() {
    let at = filled(0).0.leader("t", 0).expect("led");
    let (mut trio, replica, ranges) = filled(at);
    let others = [(at + 1) % 3, (at + 2) % 3];
    trio.cut.extend(others);
    // This replica alone has one more batch, which memory has lost.
    trio.send(at, produce_request("t", batch(&["e"]), -1), 7);
    let store = std::mem::take(&mut trio.nodes[at].store);
    trio.restart(at, store, &[NEVER]);
    trio.nodes.iter_mut().for_each(|it| it.are_reads_broken = true);
    trio.cut.remove(&others[0]);
    let term = |trio: &Trio| trio.nodes[at].node.core.partitions[&replica].group.term();
    let leads = |trio: &Trio| trio.nodes[at].node.core.partitions[&replica].group.is_elected();
    for _ in 0..200 {
        if leads(&trio) {
            break;
        }
        pass(&mut trio, 1);
    }
    assert!(leads(&trio), "nobody else has as much");
    trio.cut.clear();
    let first = term(&trio);
    pass(&mut trio, 100);
    assert!(leads(&trio) && term(&trio) == first && trio.leader("t", 0).is_none());
    trio.nodes[at].step(damage(replica, &ranges[1..2]));
    pass(&mut trio, 300);
    assert!(trio.leader("t", 0).is_some_and(|leader| leader != at));
}

#[test]
fn a_replica_is_replaced_once_all_others_have_compacted_what_is_damaged_there() {
    for at in 0..3 {
        let (mut trio, replica, ranges) = filled(at);
        let others: Vec<usize> = (0..3).filter(|other| *other != at).collect();
        for other in &others {
            (trio.nodes[*other].are_reads_broken, trio.nodes[*other].are_reads_changed) =
                (true, *other == others[0]);
        }
        trio.nodes[at].step(damage(replica, &ranges[1..2]));
        pass(&mut trio, 250);
        assert_eq!(trio.replica(at, "t", 0), replica, "one of them may have it again");
        trio.nodes[others[1]].are_reads_changed = true;
        // The same question rests for up to five minutes.
        pass(&mut trio, 7000);
        for other in &others {
            trio.nodes[*other].are_reads_broken = false;
        }
        pass(&mut trio, 400);
        assert_ne!(trio.replica(at, "t", 0), replica);
        assert_eq!(trio.nodes[at].store.deleted, [replica]);
        let after = trio.replica(at, "t", 0);
        assert_eq!(trio.nodes[at].node.core.partitions[&after].committed(), 4);
        assert_eq!(trio.nodes[at].node.metrics().segments_damaged, 0);
    }
}

/// A segment is damaged of which no other node can read what it has, and that has been so for long.
fn asked_in_vain() -> (Trio, ReplicaId) {
    let (mut trio, replica, ranges) = filled(0);
    trio.nodes.iter_mut().for_each(|it| it.are_reads_broken = true);
    trio.nodes[0].step(damage(replica, &ranges[1..2]));
    pass(&mut trio, 3300);
    trio.nodes.iter_mut().for_each(|it| it.are_reads_broken = false);
    assert!(trio.nodes[0].mends.is_empty());
    // What is told of again is the same damage.
    trio.nodes[0].step(damage(replica, &ranges[1..2]));
    (trio, replica)
}

#[test]
fn what_nobody_has_is_asked_for_less_and_less_often_but_again_and_again() {
    let (mut trio, _) = asked_in_vain();
    pass(&mut trio, 400);
    assert!(trio.nodes[0].mends.is_empty(), "twenty seconds are not long");
    pass(&mut trio, 3000);
    assert!(trio.nodes[0].mends.pop().is_some());
}

#[test]
fn what_nobody_had_is_asked_for_soon_when_somebody_comes_back_or_another_one_leads() {
    let (mut trio, _) = asked_in_vain();
    let away = if trio.leader("t", 0) == Some(2) { 1 } else { 2 };
    trio.cut.insert(away);
    pass(&mut trio, 10);
    trio.cut.clear();
    pass(&mut trio, 120);
    assert!(trio.nodes[0].mends.is_empty(), "it was not missed, so nothing is new");
    trio.cut.insert(away);
    pass(&mut trio, 100);
    trio.cut.clear();
    pass(&mut trio, 120);
    assert!(trio.nodes[0].mends.pop().is_some());

    let (mut trio, _) = asked_in_vain();
    let leader = trio.leader("t", 0).expect("led");
    super::moves::hand_over(&mut trio, leader);
    pass(&mut trio, 120);
    assert!(trio.nodes[0].mends.pop().is_some());
}

#[test]
fn a_segment_that_was_cut_is_not_damaged() {
    let (mut trio, replica, ranges) = filled(0);
    trio.nodes[0].step(damage(replica, &[DamagedRange { end_offset: 9, ..ranges[3] }]));
    trio.nodes[0].step(Event::Storage(Done::Cut { replica, segment: 0 }));
    assert_eq!(trio.nodes[0].node.metrics().segments_damaged, 0);
}

#[test]
fn a_node_alone_tells_of_damage_and_goes_on() {
    let mut it = Harness::new(&[]);
    it.create("t", &[]);
    it.produce("t", batch(&["a"]));
    let replica = it.replica("t");
    let range = DamagedRange { at: 0, end_at: 70, offset: 0, end_offset: 1 };
    it.step(damage(replica, &[range]));
    it.pass_ms(60_000);
    assert_eq!(it.node.metrics().segments_damaged, 1);
    assert!(it.mends.is_empty(), "nobody has it");
    assert_eq!(it.produce("t", batch(&["b"])).base_offset, 1);
    assert_eq!(it.fetch("t", 1).error_code, 0);
    let request = DeleteTopicsRequest { topic_names: vec!["t".into()], ..Default::default() };
    it.ask(request, 1);
    assert_eq!(it.node.metrics().segments_damaged, 0);
}

#[test]
fn what_is_not_committed_is_neither_asked_for_nor_given() {
    let (mut trio, replica, ranges) = filled(0);
    let behind = DamagedRange { end_offset: 9, ..ranges[3] };
    trio.nodes[0].step(damage(replica, &[behind]));
    pass(&mut trio, 150);
    assert!(trio.nodes[0].mends.is_empty());
    assert!(trio.nodes.iter().all(|it| it.node.metrics().ranges_given == 0));
    // What was told of later stands.
    trio.nodes[0].step(damage(replica, &ranges[3..]));
    pass(&mut trio, 150);
    assert!(trio.nodes[0].mends.pop().is_some());
}

#[test]
fn batches_of_another_length_are_not_taken() {
    let (mut trio, replica, ranges) = filled(0);
    let short = DamagedRange { end_at: ranges[1].end_at - 1, ..ranges[1] };
    trio.nodes[0].step(damage(replica, &[short]));
    pass(&mut trio, 150);
    assert!(trio.nodes[0].mends.is_empty());
    assert_eq!(trio.nodes[0].node.metrics().segments_damaged, 1);
}

#[test]
fn a_topic_that_is_gone_is_not_mended() {
    let (mut trio, _, ranges) = filled(0);
    trio.nodes[0].step(damage(ReplicaId(99), &ranges[..1]));
    assert_eq!(trio.nodes[0].node.metrics().segments_damaged, 0);
}
