//! Leadership that changes hands on purpose.

use duramen_protocol::messages::alter_partition_reassignments::{
    ReassignablePartition, ReassignableTopic,
};
use duramen_protocol::messages::elect_leaders::TopicPartitions;
use duramen_protocol::messages::{
    AlterPartitionReassignmentsRequest, CreateTopicsRequest, DescribeReplicasRequest,
    ElectLeadersRequest,
};
use duramen_protocol::{ErrorCode, Response};
use duramen_storage::op::{Done, ReplicaId, Shortage};

use super::harness::{SHORTAGE, batch, idempotent, new_topic, produce_request};
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
pub(super) fn hand_over(trio: &mut Trio, from: usize) {
    let replica = trio.replica(from, "t", 0);
    let group = &mut trio.nodes[from].node.core.partitions.get_mut(&replica).expect("there").group;
    let to = group.successors().next().expect("they keep up");
    assert!(group.hand_over(to, false));
    trio.nodes[from].node.core.mark_dirty(replica);
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
    let group =
        &mut trio.nodes[leader].node.core.partitions.get_mut(&replica).expect("there").group;
    let to = group.successors().next().expect("they keep up");
    assert!(group.hand_over(to, false));
    trio.nodes[leader].node.core.mark_dirty(replica);
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
    let group =
        &mut trio.nodes[leader].node.core.partitions.get_mut(&replica).expect("there").group;
    let to = group.successors().next().expect("they keep up");
    assert!(group.hand_over(to, false));
    trio.nodes[leader].node.core.mark_dirty(replica);
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
    assert_eq!(trio.nodes[leader].node.core.partitions[&replica].committed(), 2);
}

/// The partition of `t` is to be on these nodes, or where it was.
pub(super) fn reassign(trio: &mut Trio, nodes: Option<&[usize]>) {
    assert_eq!(try_reassign(trio, nodes), 0);
}

fn try_reassign(trio: &mut Trio, nodes: Option<&[usize]>) -> i16 {
    let id = |at: &usize| i32::try_from(*at).expect("small");
    let replicas = nodes.map(|nodes| nodes.iter().map(id).collect());
    let partitions = vec![ReassignablePartition { partition_index: 0, replicas }];
    let topics = vec![ReassignableTopic { name: "t".to_owned(), partitions }];
    let request = AlterPartitionReassignmentsRequest {
        topics,
        timeout_ms: 1000,
        ..AlterPartitionReassignmentsRequest::default()
    };
    match trio.ask(trio.controller(), request, 1) {
        Response::AlterPartitionReassignments(response) => {
            response.responses[0].partitions[0].error_code
        }
        other => panic!("{other:?}"),
    }
}

/// The image places the second replica already when the node hears of the first change.
#[test]
fn a_node_that_hears_late_gives_one_replica_up_before_it_makes_another() {
    let mut trio = Trio::new(NEVER);
    trio.create("t", 1);
    let late = (trio.controller() + 1) % 3;
    let former = trio.replica(late, "t", 0);
    let others: Vec<_> = (0..3).filter(|at| *at != late).collect();
    trio.cut.insert(late);
    trio.pass_ms(3000);
    reassign(&mut trio, Some(&others));
    trio.pass_ms(3000);
    reassign(&mut trio, Some(&[others[0], others[1], late]));
    trio.cut.clear();
    trio.pass_ms(3000);
    assert_ne!(trio.replica(late, "t", 0), former);
    assert!(!trio.nodes[late].node.core.partitions.contains_key(&former));
    let leader = trio.leader("t", 0).expect("led");
    assert_eq!(trio.produce(leader, "t", batch(&["a"])).error_code, 0);
}

/// Else leadership goes to and fro between the preferred replica and one that stays.
#[test]
fn a_move_that_is_taken_back_does_not_prefer_one_that_goes() {
    let mut trio = Trio::new(NEVER);
    trio.create("t", 1);
    let first = trio.preferred("t", 0);
    reassign(&mut trio, Some(&[first]));
    trio.pass_ms(3000);
    // Nobody gets so far as to have it there while the one that is wanted is not heard.
    let wanted = (first + 1) % 3;
    trio.cut.insert(wanted);
    trio.pass_ms(3000);
    reassign(&mut trio, Some(&[wanted]));
    assert_eq!(trio.preferred("t", 0), wanted, "it is to lead, once it is there");
    reassign(&mut trio, None);
    assert_eq!(trio.preferred("t", 0), first);
}

#[test]
fn a_move_that_is_asked_for_again_and_again_comes_to_its_end() {
    let mut trio = Trio::new(NEVER);
    trio.create("t", 1);
    let wanted = (trio.preferred("t", 0) + 1) % 3;
    for _ in 0..40 {
        reassign(&mut trio, Some(&[wanted]));
        trio.pass_ms(500);
    }
    assert_eq!(trio.nodes[trio.controller()].node.unsettled(), Some(0));
}

/// A node's directory has at most one replica of a partition, also when the one before it is to go and to stay by
/// turns.
#[test]
fn a_lost_replica_that_is_wanted_back_has_one_successor() {
    let mut trio = Trio::new(NEVER);
    trio.create("t", 1);
    let wiped = (trio.controller() + 1) % 3;
    trio.wipe(wiped, 1, NEVER);
    let mut taken_back = 0;
    for _ in 0..400 {
        trio.pass_ms(TICK_MS);
        let Some(at) = (0..3).find(|at| trio.nodes[*at].node.unsettled().is_some()) else {
            continue;
        };
        let image = &trio.nodes[at].node.core.controller.image;
        let topic = image.topic_named("t").expect("there");
        let placed = &topic.partitions[0];
        let mut directories: Vec<_> = placed.iter().map(|it| it.directory_id).collect();
        directories.sort_unstable();
        directories.dedup();
        assert_eq!(directories.len(), placed.len(), "{placed:?}");
        if placed.len() > 3 && taken_back < 3 {
            taken_back += 1;
            reassign(&mut trio, None);
        }
    }
    assert_eq!(taken_back, 3);
    assert_eq!(trio.nodes[trio.controller()].node.unsettled(), Some(0), "it is there in the end");
}

/// `t` with a record, of which these nodes find their replicas damaged when they start again: which nodes and replicas.
fn damaged_at_the_start(
    of: impl Fn(usize) -> Vec<usize>,
    lacks_room: bool,
) -> (Trio, Vec<(usize, ReplicaId)>) {
    let mut trio = Trio::new(NEVER);
    trio.create("t", 1);
    let leader = trio.leader("t", 0).expect("led");
    assert_eq!(trio.produce(leader, "t", batch(&["a"])).error_code, 0);
    trio.pass_ms(1000);
    let damaged: Vec<_> = of(leader).into_iter().map(|at| (at, trio.replica(at, "t", 0))).collect();
    for &(at, replica) in &damaged {
        let mut store = std::mem::take(&mut trio.nodes[at].store);
        store.damaged.insert(replica, lacks_room);
        trio.restart(at, store, NEVER);
    }
    (trio, damaged)
}

#[test]
fn a_replica_that_is_damaged_at_the_start_is_replaced() {
    for behind in 0..3 {
        let (mut trio, damaged) = damaged_at_the_start(|leader| vec![(leader + behind) % 3], false);
        let (at, before) = damaged[0];
        let first_leader = (at + 3 - behind) % 3;
        trio.pass_ms(20_000);
        let after = trio.replica(at, "t", 0);
        assert_ne!(after, before);
        assert_eq!(trio.nodes[at].store.deleted, [before]);
        assert_eq!(trio.nodes[trio.controller()].node.unsettled(), Some(0));
        assert_eq!(trio.preferred("t", 0), first_leader);
        let leader = trio.leader("t", 0).expect("led");
        let partition = &trio.nodes[leader].node.core.partitions[&trio.replica(leader, "t", 0)];
        assert_eq!(partition.group.voters(), 3);
        assert_eq!(trio.nodes[at].node.core.partitions[&after].committed(), 1);
        assert_eq!(trio.produce(leader, "t", batch(&["b"])).base_offset, 1);
    }
}

#[test]
fn a_damaged_replica_stays_while_others_are_no_majority_and_if_it_only_lacks_room() {
    for (lacks_room, count) in [(false, 2), (true, 1)] {
        let of = |leader: usize| (0..count).map(|it| (leader + it) % 3).collect();
        let (mut trio, damaged) = damaged_at_the_start(of, lacks_room);
        trio.pass_ms(20_000);
        for (at, before) in damaged {
            assert_eq!(trio.replica(at, "t", 0), before);
            assert!(trio.nodes[at].store.deleted.is_empty());
        }
    }
}

/// A trio of which one node's disk gets done what waits only now and then.
struct Uneven {
    trio: Trio,
    slow: usize,
    /// Ticks that a sync of it takes.
    sync_ticks: u64,
    ticks: u64,
    /// Produces, of which node.
    asked: Vec<(usize, i32)>,
}

impl Uneven {
    /// The node that is to lead `t` is slow.
    fn new(pairs: &[(&str, &str)], sync_ticks: u64) -> Self {
        let mut trio = Trio::new(pairs);
        trio.create("t", 1);
        let slow = trio.preferred("t", 0);
        assert_eq!(trio.leader("t", 0), Some(slow));
        trio.nodes[slow].is_prompt = false;
        Self { trio, slow, sync_ticks, ticks: 0, asked: Vec::new() }
    }

    fn tick(&mut self) {
        self.trio.pass_ms(TICK_MS);
        self.ticks += 1;
        if self.sync_ticks == 0 || self.ticks.is_multiple_of(self.sync_ticks) {
            while self.trio.nodes[self.slow].persist() {
                self.trio.nodes[self.slow].run();
            }
            self.trio.talk();
        }
    }

    /// So many ticks pass, in each of which something is produced, or in none.
    fn pass(&mut self, ticks: u64, is_busy: bool) {
        for _ in 0..ticks {
            if is_busy && let Some(leader) = self.trio.leader("t", 0) {
                let id = self.trio.send(leader, produce_request("t", batch(&["a"]), -1), 9);
                self.asked.push((leader, id));
            }
            self.tick();
        }
    }

    fn handovers(&self) -> u64 {
        self.trio.nodes.iter().map(|it| it.node.metrics().handovers).sum()
    }

    /// What became of all that was produced.
    fn codes(&mut self) -> Vec<i16> {
        let asked = std::mem::take(&mut self.asked);
        let code = |(at, id)| match self.trio.response(at, id) {
            Some(Response::Produce(it)) => it.responses[0].partition_responses[0].error_code,
            other => panic!("{other:?}"),
        };
        asked.into_iter().map(code).collect()
    }
}

const LOOKS: &[(&str, &str)] = &[("leader.imbalance.check.interval.seconds", "1")];
const SECOND: u64 = 1000 / TICK_MS;

#[test]
fn leadership_leaves_a_disk_that_is_always_slower_and_stays_away() {
    for sync_ticks in [3, 8, 20] {
        let mut uneven = Uneven::new(LOOKS, sync_ticks);
        uneven.pass(4 * SECOND, true);
        let next = uneven.trio.leader("t", 0).expect("led");
        assert_ne!(next, uneven.slow, "{sync_ticks}");
        // Busy, idle and asleep, and busy for a moment.
        for _ in 0..20 {
            uneven.pass(2 * SECOND, true);
            uneven.pass(30 * SECOND, false);
        }
        assert_eq!(uneven.trio.leader("t", 0), Some(next), "{sync_ticks}");
        assert_eq!(uneven.handovers(), 1, "{sync_ticks}");
        if sync_ticks < 5 {
            let codes = uneven.codes();
            let refused = codes.iter().filter(|code| **code != 0).count();
            assert!(refused < 8, "only while it hands over: {codes:?}");
            let replica = uneven.trio.replica(next, "t", 0);
            let kept = uneven.trio.nodes[next].node.core.partitions[&replica].committed();
            let taken = i64::try_from(codes.len() - refused).expect("few");
            assert_eq!(kept, taken, "what was appended before is answered before");
        }
    }
}

#[test]
fn a_disk_that_is_well_again_gets_leadership_back() {
    for is_busy in [true, false] {
        let mut uneven = Uneven::new(LOOKS, 4);
        uneven.pass(4 * SECOND, true);
        uneven.sync_ticks = 0;
        uneven.trio.nodes[uneven.slow].is_prompt = true;
        uneven.pass(SECOND, true);
        uneven.pass(4 * 60 * SECOND, is_busy);
        assert_ne!(uneven.trio.leader("t", 0), Some(uneven.slow), "nobody knows yet");
        uneven.pass(2 * 60 * SECOND, is_busy);
        assert_eq!(uneven.trio.leader("t", 0), Some(uneven.slow));
        uneven.pass(60 * SECOND, true);
        assert_eq!(uneven.trio.leader("t", 0), Some(uneven.slow), "for good");
        assert_eq!(uneven.handovers(), 2);
    }
}

#[test]
fn leadership_is_not_given_to_a_slow_disk_unless_the_own_one_stands_still() {
    let mut uneven = Uneven::new(NEVER, 4);
    let first = uneven.slow;
    uneven.pass(4 * SECOND, true);
    uneven.sync_ticks = 0;
    uneven.trio.nodes[first].is_prompt = true;
    uneven.pass(SECOND, true);
    // The second one becomes slow, and then the third.
    for at in 1..3 {
        uneven.slow = uneven.trio.leader("t", 0).expect("led");
        uneven.trio.nodes[uneven.slow].is_prompt = false;
        uneven.sync_ticks = 4;
        uneven.pass(6 * SECOND, true);
        assert_eq!(uneven.trio.leader("t", 0) == Some(uneven.slow), at == 2);
        if at == 1 {
            uneven.trio.nodes[uneven.slow].is_prompt = true;
            uneven.sync_ticks = 0;
            uneven.pass(SECOND, true);
        }
    }
    uneven.sync_ticks = u64::MAX;
    uneven.pass(SECOND, true);
    assert_eq!(uneven.trio.leader("t", 0), Some(uneven.slow), "it may move again");
    uneven.pass(2 * SECOND, true);
    assert!(uneven.trio.leader("t", 0).is_some_and(|it| it != uneven.slow));
}

#[test]
fn who_leads_the_metadata_leaves_a_slow_disk_too() {
    let mut trio = Trio::new(NEVER);
    let slow = trio.controller();
    trio.nodes[slow].is_prompt = false;
    let mut uneven = Uneven { trio, slow, sync_ticks: 4, ticks: 0, asked: Vec::new() };
    for number in 0..40 {
        let topic = new_topic(&format!("t{number}"), 1, &[]);
        let request =
            CreateTopicsRequest { topics: vec![topic], timeout_ms: 30_000, ..Default::default() };
        uneven.trio.send((slow + 1) % 3, request, 7);
        uneven.pass(8, false);
    }
    assert_ne!(uneven.trio.controller(), slow);
    assert_eq!(uneven.handovers(), 1);
}

/// A node is told whether its disk is full.
fn fill(trio: &mut Trio, at: usize, shortage: Option<Shortage>) {
    trio.nodes[at].storage(Done::DiskFull(shortage));
    trio.talk();
}

fn seconds(trio: &mut Trio, seconds: u64) {
    for _ in 0..seconds * SECOND {
        trio.pass_ms(TICK_MS);
    }
}

#[test]
fn a_full_disk_is_left_and_given_nothing_until_it_has_room() {
    let mut trio = Trio::new(LOOKS);
    trio.create("t", 6);
    let full = trio.controller();
    let led =
        |trio: &Trio, at: usize| (0..6).filter(|it| trio.leader("t", *it) == Some(at)).count();
    assert_eq!(led(&trio, full), 2);
    fill(&mut trio, full, Some(SHORTAGE));
    trio.pass_ms(500);
    fill(&mut trio, full, None);
    seconds(&mut trio, 2);
    assert_eq!((led(&trio, full), trio.controller()), (2, full), "a moment is forgiven");
    fill(&mut trio, full, Some(SHORTAGE));
    seconds(&mut trio, 4);
    assert_eq!(led(&trio, full), 0);
    assert_ne!(trio.controller(), full, "nor does it lead the metadata");
    let of_disk = |trio: &mut Trio, at: usize| {
        let asked = DescribeReplicasRequest::default();
        let Response::DescribeReplicas(it) = trio.ask(at, asked, 0) else { panic!("another") };
        (it.disk_free_bytes, it.disk_needed_bytes)
    };
    assert_eq!(of_disk(&mut trio, full), (200 << 20, 400 << 20));
    assert_eq!(of_disk(&mut trio, (full + 1) % 3), (0, 0));
    let handovers =
        |trio: &Trio| -> u64 { trio.nodes.iter().map(|it| it.node.metrics().handovers).sum() };
    assert_eq!(handovers(&trio), 3);
    for at in 0..6 {
        let leader = trio.leader("t", at).expect("led");
        let mut request = produce_request("t", batch(&["a"]), -1);
        request.topic_data[0].partition_data[0].index = at;
        match trio.ask(leader, request, 9) {
            Response::Produce(it) => {
                assert_eq!(it.responses[0].partition_responses[0].error_code, 0);
            }
            other => panic!("{other:?}"),
        }
    }
    // It is not asked for either, and new partitions begin elsewhere.
    let asked = (full + 1) % 3;
    let (code, rows) = elect(&mut trio, asked, 0, Some(&[("t", &[0, 1, 2, 3, 4, 5])]));
    assert_eq!(code, 0);
    assert_eq!(rows.iter().filter(|row| **row == NOT_AVAILABLE).count(), 2, "{rows:?}");
    trio.create("u", 6);
    assert!((0..6).all(|at| trio.preferred("u", at) != full));
    seconds(&mut trio, 60);
    assert_eq!((led(&trio, full), handovers(&trio)), (0, 3));
    // It has room for a moment, and then for good.
    fill(&mut trio, full, None);
    seconds(&mut trio, 5);
    assert_eq!(led(&trio, full), 0);
    fill(&mut trio, full, Some(SHORTAGE));
    seconds(&mut trio, 5);
    fill(&mut trio, full, None);
    seconds(&mut trio, 9);
    assert_eq!((led(&trio, full), handovers(&trio)), (0, 3));
    seconds(&mut trio, 6);
    assert_eq!((led(&trio, full), handovers(&trio)), (2, 5));
}

#[test]
fn leadership_does_not_go_from_one_full_disk_to_another() {
    let mut trio = Trio::new(LOOKS);
    trio.create("t", 3);
    for at in 0..3 {
        fill(&mut trio, at, Some(SHORTAGE));
    }
    let leaders: Vec<_> = (0..3).map(|at| trio.leader("t", at)).collect();
    seconds(&mut trio, 30);
    assert_eq!((0..3).map(|at| trio.leader("t", at)).collect::<Vec<_>>(), leaders);
    assert!(trio.nodes.iter().all(|it| it.node.metrics().handovers == 0));
    fill(&mut trio, 1, None);
    seconds(&mut trio, 15);
    assert!((0..3).all(|at| trio.leader("t", at) == Some(1)));
}
