//! What is kept of share groups, through the whole node.

use std::sync::Arc;

use bytes::Bytes;
use duramen_protocol::messages::create_topics::CreatableTopic;
use duramen_protocol::messages::{
    CreateTopicsRequest, DeleteGroupsRequest, DeleteShareGroupStateRequest,
    DeleteShareGroupStateResponse, FindCoordinatorRequest, InitializeShareGroupStateRequest,
    ReadShareGroupStateRequest, ReadShareGroupStateSummaryRequest, ShareGroupDescribeRequest,
    ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse, WriteShareGroupStateRequest,
    delete_share_group_state, initialize_share_group_state, read_share_group_state,
    read_share_group_state_summary, write_share_group_state,
};
use duramen_protocol::wire::Uuid;
use duramen_protocol::{ErrorCode, Request, Response};

use duramen_storage::op::{Done, ReplicaId};

use super::harness::{Harness, SHORTAGE, new_topic};
use super::topics::{delete, delete_request};
use super::trio::Trio;
use crate::event::Event;
use crate::internal_topics::{SHARES, partition_of};
use crate::node::share_calls::ShareTold;
use crate::shares::coordinator::{Ask, Asker};
use crate::shares::{ShareKey, ShareState, ShareWrite, StateBatch};

const FEW: [(&str, &str); 3] = [
    ("share.coordinator.state.topic.num.partitions", "2"),
    ("share.coordinator.state.topic.segment.bytes", "16384"),
    ("share.coordinator.snapshot.update.records.per.snapshot", "5"),
];

fn code_of(code: i16) -> ErrorCode {
    ErrorCode::from_code(code).expect("a known code")
}

fn find(key: &ShareKey) -> FindCoordinatorRequest {
    let coordinator_keys = vec![key.to_string()];
    FindCoordinatorRequest { key_type: 2, coordinator_keys, ..Default::default() }
}

fn key(it: &Harness, topic: &str) -> ShareKey {
    let topic_id = it.node.core.controller.image.topic_named(topic).expect("it is there").id;
    ShareKey { group: "g".into(), topic_id, partition: 0 }
}

fn initialize(key: &ShareKey, state_epoch: i32, start_offset: i64) -> Request {
    use initialize_share_group_state::{InitializeStateData, PartitionData};
    let partition = PartitionData { partition: key.partition, state_epoch, start_offset };
    let topic = InitializeStateData { topic_id: key.topic_id, partitions: vec![partition] };
    let group_id = key.group.as_ref().to_owned();
    InitializeShareGroupStateRequest { group_id, topics: vec![topic] }.into()
}

fn read(key: &ShareKey, leader_epoch: i32) -> Request {
    use read_share_group_state::{PartitionData, ReadStateData};
    let partition = PartitionData { partition: key.partition, leader_epoch };
    let topic = ReadStateData { topic_id: key.topic_id, partitions: vec![partition] };
    let group_id = key.group.as_ref().to_owned();
    ReadShareGroupStateRequest { group_id, topics: vec![topic] }.into()
}

fn write(
    key: &ShareKey,
    state_epoch: i32,
    start_offset: i64,
    (first, last): (i64, i64),
) -> Request {
    use write_share_group_state::{PartitionData, StateBatch, WriteStateData};
    let batch =
        StateBatch { first_offset: first, last_offset: last, delivery_state: 2, delivery_count: 1 };
    let partition = PartitionData {
        partition: key.partition,
        state_epoch,
        leader_epoch: -1,
        start_offset,
        delivery_complete_count: 1,
        state_batches: vec![batch],
    };
    let topic = WriteStateData { topic_id: key.topic_id, partitions: vec![partition] };
    let group_id = key.group.as_ref().to_owned();
    WriteShareGroupStateRequest { group_id, topics: vec![topic] }.into()
}

fn forget(key: &ShareKey) -> Request {
    use delete_share_group_state::{DeleteStateData, PartitionData};
    let partition = PartitionData { partition: key.partition };
    let topic = DeleteStateData { topic_id: key.topic_id, partitions: vec![partition] };
    let group_id = key.group.as_ref().to_owned();
    DeleteShareGroupStateRequest { group_id, topics: vec![topic] }.into()
}

fn summary(it: &mut Harness, key: &ShareKey) -> (i32, i64, i32) {
    use read_share_group_state_summary::{PartitionData, ReadStateSummaryData};
    let partition = PartitionData { partition: key.partition, leader_epoch: -1 };
    let topic = ReadStateSummaryData { topic_id: key.topic_id, partitions: vec![partition] };
    let group_id = key.group.as_ref().to_owned();
    let request = ReadShareGroupStateSummaryRequest { group_id, topics: vec![topic] };
    let Response::ReadShareGroupStateSummary(answer) = it.ask(request, 1) else { panic!("other") };
    let part = &answer.results[0].partitions[0];
    assert_eq!(part.error_code, 0);
    (part.state_epoch, part.start_offset, part.delivery_complete_count)
}

/// What a request about one partition is answered with.
fn asked(it: &mut Harness, request: Request) -> ErrorCode {
    let version = i16::from(matches!(request, Request::WriteShareGroupState(_)));
    code_of(match it.ask(request, version) {
        Response::InitializeShareGroupState(it) => it.results[0].partitions[0].error_code,
        Response::WriteShareGroupState(it) => it.results[0].partitions[0].error_code,
        Response::DeleteShareGroupState(it) => it.results[0].partitions[0].error_code,
        Response::ReadShareGroupState(it) => it.results[0].partitions[0].error_code,
        other => panic!("{other:?}"),
    })
}

fn begun() -> (Harness, ShareKey) {
    let mut it = Harness::new(&FEW);
    it.create("t", &[]);
    let key = key(&it, "t");
    let Response::FindCoordinator(answer) = it.ask(find(&key), 6) else { panic!("other") };
    assert_eq!(answer.coordinators[0].error_code, 0);
    assert_eq!(asked(&mut it, initialize(&key, 3, -1)), ErrorCode::None);
    (it, key)
}

#[test]
fn what_is_kept_of_share_groups_is_read_back_over_restarts() {
    let (mut it, key) = begun();
    assert_eq!(summary(&mut it, &key), (3, -1, -1));
    for offset in 5..20 {
        assert_eq!(asked(&mut it, write(&key, 3, 5, (offset, offset))), ErrorCode::None);
    }
    it.restart(&FEW, 2);
    assert_eq!(summary(&mut it, &key), (3, 5, 1));
    let Response::ReadShareGroupState(answer) = it.ask(read(&key, 7), 0) else { panic!("other") };
    let part = &answer.results[0].partitions[0];
    assert_eq!((part.error_code, part.state_epoch, part.start_offset), (0, 3, 5));
    let batch = &part.state_batches[..];
    assert_eq!((batch.len(), batch[0].first_offset, batch[0].last_offset), (1, 5, 19));
    assert_eq!(asked(&mut it, read(&key, 6)), ErrorCode::FencedLeaderEpoch);
    assert_eq!(asked(&mut it, write(&key, 2, 6, (6, 6))), ErrorCode::FencedStateEpoch);
    assert_eq!(asked(&mut it, forget(&key)), ErrorCode::None);
    assert_eq!(asked(&mut it, read(&key, 8)), ErrorCode::InvalidRequest);
    assert_eq!(summary(&mut it, &key), (0, -1, -1));
}

#[test]
fn what_cannot_be_is_refused() {
    let (mut it, key) = begun();
    let other = ShareKey { partition: 9, ..key.clone() };
    assert_eq!(asked(&mut it, initialize(&other, 0, 0)), ErrorCode::UnknownTopicOrPartition);
    let other = ShareKey { topic_id: Uuid::from_u128(4), ..key.clone() };
    assert_eq!(asked(&mut it, forget(&other)), ErrorCode::UnknownTopicOrPartition);
    let other = ShareKey { partition: -1, ..key.clone() };
    assert_eq!(asked(&mut it, read(&other, 0)), ErrorCode::InvalidRequest);
    let nobody = ShareKey { group: "".into(), ..key };
    let Response::DeleteShareGroupState(answer) = it.ask(forget(&nobody), 0) else {
        panic!("other")
    };
    assert_eq!(answer, DeleteShareGroupStateResponse::default());
    let Response::FindCoordinator(answer) = it.ask(find(&nobody), 6) else { panic!("other") };
    assert_eq!(code_of(answer.coordinators[0].error_code), ErrorCode::InvalidRequest);
}

#[test]
fn a_topic_that_is_deleted_leaves_nothing_behind() {
    let (mut it, key) = begun();
    delete(&mut it, "t");
    it.pass_ms(100);
    let left =
        it.node.coordinators.coordinate_share(&mut it.node.core, &key, Asker::Nobody, Ask::Look);
    assert_eq!(left, Err(ErrorCode::UnknownTopicOrPartition));
    let batches: Vec<_> = (0..2)
        .flat_map(|partition| {
            let topic = it.node.core.controller.image.topic_named(SHARES).expect("it is there");
            let replica = it.node.core.local_replica(topic, partition).expect("it is here");
            it.store.replicas[&replica].batches(0, i64::MAX)
        })
        .collect();
    assert_eq!(batches.len(), 2, "it began, and went");
}

#[test]
fn the_log_of_what_changes_often_stays_small() {
    let (mut it, key) = begun();
    for offset in 0..3000 {
        assert_eq!(asked(&mut it, write(&key, 3, offset, (offset, offset))), ErrorCode::None);
    }
    it.restart(&FEW, 2);
    let topic = it.node.core.controller.image.topic_named(SHARES).expect("it is there");
    let bytes = (0..2).map(|partition| {
        let replica = it.node.core.local_replica(topic, partition).expect("it is here");
        let stored = &it.store.replicas[&replica];
        stored.batches(stored.log_start, i64::MAX).iter().map(Bytes::len).sum::<usize>()
    });
    let bytes = bytes.sum::<usize>();
    assert!(bytes < 100_000, "{bytes} bytes for one partition");
    assert_eq!(summary(&mut it, &key), (3, 2999, 1));
}

fn heartbeat(id: &str, member_epoch: i32) -> Request {
    let names = (member_epoch == 0).then(|| vec!["t".to_owned()]);
    ShareGroupHeartbeatRequest {
        group_id: "g".to_owned(),
        member_id: id.to_owned(),
        member_epoch,
        rack_id: None,
        subscribed_topic_names: names,
    }
    .into()
}

fn parts(answer: &ShareGroupHeartbeatResponse) -> Option<Vec<i32>> {
    let topics = &answer.assignment.as_ref()?.topic_partitions;
    Some(topics.iter().flat_map(|it| it.partitions.iter().copied()).collect())
}

#[test]
fn members_of_a_share_group_get_partitions_and_what_is_kept_goes_with_the_group() {
    let mut it = Harness::new(&FEW);
    it.create("t", &[]);
    it.ask(
        FindCoordinatorRequest { coordinator_keys: vec!["g".to_owned()], ..Default::default() },
        6,
    );
    let tell = |it: &mut Harness, request| match it.ask(request, 1) {
        Response::ShareGroupHeartbeat(answer) => answer,
        other => panic!("{other:?}"),
    };
    let joined = tell(&mut it, heartbeat("a", 0));
    assert_eq!((joined.error_code, joined.member_epoch, parts(&joined)), (0, 1, Some(vec![])));
    it.pass_ms(1_000);
    let told = tell(&mut it, heartbeat("a", 1));
    assert_eq!((told.member_epoch, parts(&told)), (2, Some(vec![0])));
    let key = key(&it, "t");
    let (epoch, start, _) = summary(&mut it, &key);
    assert_eq!((epoch, start), (1, -1));
    it.restart(&FEW, 2);
    let group_ids = vec!["g".to_owned(), "x".to_owned()];
    let request = ShareGroupDescribeRequest { group_ids, ..Default::default() };
    let Response::ShareGroupDescribe(answer) = it.ask(request, 1) else { panic!("other") };
    let group = &answer.groups[0];
    assert_eq!((group.group_state.as_str(), group.group_epoch), ("Stable", 2));
    assert_eq!(group.members[0].assignment.topic_partitions[0].topic_name, "t");
    assert_eq!(code_of(answer.groups[1].error_code), ErrorCode::GroupIdNotFound);
    tell(&mut it, heartbeat("a", -1));
    let groups_names = vec!["g".to_owned()];
    let Response::DeleteGroups(answer) = it.ask(DeleteGroupsRequest { groups_names }, 2) else {
        panic!("other")
    };
    assert_eq!(answer.results[0].error_code, 0);
    assert_eq!(summary(&mut it, &key), (0, -1, -1));
}

fn share_write(epoch: i32, start: i64, (first, last): (i64, i64)) -> ShareWrite {
    let batches = vec![StateBatch { first, last, state: 2, count: 1 }];
    ShareWrite { state_epoch: epoch, start, complete: 1, batches }
}

/// A leader asks, and is answered in a while.
fn called(
    trio: &mut Trio,
    at: usize,
    ask: impl FnOnce(&mut Harness) -> u64,
) -> Result<Arc<ShareState>, ErrorCode> {
    let call = ask(&mut trio.nodes[at]);
    for _ in 0..400 {
        trio.nodes[at].step(Event::Tick);
        trio.pass_ms(50);
        let told = trio.nodes[at].node.coordinators.take_share_answers();
        if let Some(ShareTold { answer, .. }) = told.into_iter().find(|it| it.call == call) {
            return answer;
        }
    }
    panic!("nobody answers")
}

#[test]
fn leaders_reach_the_coordinator_wherever_it_is_and_whoever_it_becomes() {
    let mut trio = Trio::new(&FEW);
    trio.create("t", 1);
    let leader = trio.leader("t", 0).expect("led");
    let key = key(&trio.nodes[leader], "t");
    while trio
        .nodes
        .iter()
        .any(|it| it.node.core.coordinator_of(SHARES, &key.to_string()).is_none())
    {
        let at = trio.controller();
        trio.ask(at, find(&key), 6);
        trio.pass_ms(500);
    }
    let coordinator = |trio: &Trio| {
        let found = (0..3)
            .filter(|at| !trio.cut.contains(at))
            .find_map(|at| trio.nodes[at].node.core.coordinator_of(SHARES, &key.to_string()));
        usize::try_from(found.expect("one")).expect("small")
    };
    let replica = trio.replica(leader, "t", 0);
    let of = key.clone();
    let refused = called(&mut trio, leader, |it| {
        it.node.coordinators.read_share_state(&mut it.node.core, replica, of)
    });
    assert_eq!(refused, Err(ErrorCode::InvalidRequest), "nothing was begun");
    let at = coordinator(&trio);
    let node = &mut trio.nodes[at];
    let begun = node.node.coordinators.coordinate_share(
        &mut node.node.core,
        &key,
        Asker::Nobody,
        Ask::Begin,
    );
    assert_eq!((begun, node.node.core.out.len()), (Ok(()), 0));
    node.step(Event::Tick);
    trio.pass_ms(500);
    let of = key.clone();
    let state = called(&mut trio, leader, |it| {
        it.node.coordinators.read_share_state(&mut it.node.core, replica, of)
    });
    let epoch = state.expect("it has begun").state_epoch;
    let of = key.clone();
    let wrote = share_write(epoch, 5, (5, 9));
    let told = called(&mut trio, leader, |it| {
        it.node.coordinators.write_share_state(&mut it.node.core, replica, of, wrote)
    });
    assert_eq!(told.expect("it leads").state_epoch, epoch);
    // The coordinator is cut off, unless that is the leader; then whoever leads next asks whoever coordinates next.
    trio.cut.insert(at);
    trio.pass_ms(5_000);
    let leader = trio.leader("t", 0).expect("led");
    let replica = trio.replica(leader, "t", 0);
    let of = key.clone();
    let state = called(&mut trio, leader, |it| {
        it.node.coordinators.read_share_state(&mut it.node.core, replica, of)
    });
    let state = state.expect("it is kept");
    assert_eq!((state.start, state.batches[0].last), (5, 9));
    assert_ne!(coordinator(&trio), at);
}

/// Of how many keys a node's coordinator says something here, the counter of epochs among them.
fn kept(it: &mut Harness, replica: ReplicaId) -> usize {
    let mut kept = 0;
    it.node.coordinators.with_shares(&mut it.node.core, replica, |it| kept = it.live().size().0);
    kept
}

const OFTEN: [(&str, &str); 4] =
    [FEW[0], FEW[1], FEW[2], ("offsets.retention.check.interval.ms", "60000")];

#[test]
fn a_topic_whose_end_could_not_be_kept_is_forgotten_later() {
    let mut it = Harness::new(&OFTEN);
    it.create("t", &[]);
    let coordinator_keys = vec!["g".to_owned()];
    it.ask(FindCoordinatorRequest { coordinator_keys, ..Default::default() }, 6);
    it.ask(heartbeat("a", 0), 1);
    it.pass_ms(1_000);
    it.ask(heartbeat("a", 1), 1);
    let topic = it.node.core.controller.image.topic_named(SHARES).expect("it is there").clone();
    let of_key = partition_of(&key(&it, "t").to_string(), topic.partitions.len());
    let replica = it.node.core.local_replica(&topic, of_key).expect("it is here");
    let shared = |it: &Harness| {
        let groups = it.node.coordinators.coordinator(&it.node.core, "g").expect("it is here");
        groups.topics_shared(None, None).len()
    };
    assert_eq!((kept(&mut it, replica), shared(&it)), (2, 1));
    it.storage(Done::DiskFull(Some(SHORTAGE)));
    delete(&mut it, "t");
    it.storage(Done::DiskFull(None));
    it.pass_ms(1_000);
    assert_eq!((kept(&mut it, replica), shared(&it)), (2, 1), "it could not be stored");
    it.pass_ms(150_000);
    assert_eq!((kept(&mut it, replica), shared(&it)), (1, 0));
}

/// Three nodes, a group whose state of a topic is kept by another node than the one that leads the metadata; that node,
/// and its replica.
fn kept_elsewhere() -> (Trio, ShareKey, usize, ReplicaId) {
    let mut trio = Trio::new(&OFTEN);
    trio.create("t", 1);
    let controller = trio.controller();
    let first = key(&trio.nodes[controller], "t");
    while trio.leader(SHARES, 0).is_none() || trio.leader(SHARES, 1).is_none() {
        trio.ask(controller, find(&first), 6);
        trio.pass_ms(500);
    }
    let found = (0..20).find_map(|n| {
        let key = ShareKey { group: format!("g{n}").into(), ..first.clone() };
        let partition = partition_of(&key.to_string(), 2);
        let at = trio.leader(SHARES, partition).filter(|at| *at != controller)?;
        Some((key, at, trio.replica(at, SHARES, partition)))
    });
    let (key, at, replica) = found.expect("one of two is led elsewhere");
    begin(&mut trio, at, &key, replica);
    trio.pass_ms(500);
    assert_eq!(kept(&mut trio.nodes[at], replica), 2);
    (trio, key, at, replica)
}

/// Something is kept from now on, though the node may not know of what.
fn begin(trio: &mut Trio, at: usize, key: &ShareKey, replica: ReplicaId) {
    let node = &mut trio.nodes[at];
    let now = node.now;
    node.node.coordinators.with_shares(&mut node.node.core, replica, |it| {
        it.ask(key, Asker::Nobody, Ask::Begin, now);
    });
    assert_eq!(node.node.core.out.len(), 0);
    node.step(Event::Tick);
}

#[test]
fn a_topic_that_goes_while_nobody_coordinates_is_forgotten_by_whoever_does_next() {
    let (mut trio, key, at, _) = kept_elsewhere();
    let partition = partition_of(&key.to_string(), 2);
    trio.cut.insert(at);
    let controller = trio.controller();
    let id = trio.send(controller, delete_request("t"), 5);
    assert!(trio.response(controller, id).is_some(), "the other two decide at once");
    assert_eq!(trio.leader(SHARES, partition), None, "nobody coordinates yet");
    trio.pass_ms(5_000);
    trio.cut.clear();
    trio.pass_ms(5_000);
    let next = trio.leader(SHARES, partition).expect("led");
    let replica = trio.replica(next, SHARES, partition);
    assert_eq!(kept(&mut trio.nodes[next], replica), 2, "it is kept, and its topic is gone");
    trio.pass_ms(150_000);
    assert_eq!(kept(&mut trio.nodes[next], replica), 1);
}

#[test]
fn a_topic_that_a_coordinator_has_not_heard_of_is_not_gone() {
    let (mut trio, key, at, replica) = kept_elsewhere();
    let controller = trio.controller();
    trio.cut.insert(at);
    let topic = CreatableTopic { replication_factor: 3, ..new_topic("u", 1, &[]) };
    let request = CreateTopicsRequest { topics: vec![topic], timeout_ms: 1, ..Default::default() };
    trio.send(controller, request, 7);
    trio.cut.clear();
    let topic_id =
        trio.nodes[controller].node.core.controller.image.topic_named("u").expect("made").id;
    let new = ShareKey { topic_id, ..key };
    begin(&mut trio, at, &new, replica);
    let node = &mut trio.nodes[at];
    assert!(node.node.core.controller.image.topic(topic_id).is_none(), "it does not know it");
    node.node.coordinators.doubt_topics(&mut node.node.core, replica, [topic_id]);
    node.step(Event::Tick);
    trio.pass_ms(5_000);
    assert!(trio.nodes[at].node.core.controller.image.topic(topic_id).is_some());
    assert_eq!(kept(&mut trio.nodes[at], replica), 3);
}

#[test]
fn a_leader_that_leads_no_more_hears_no_answer() {
    let (mut it, key) = begun();
    let replica = it.replica("t");
    let call = it.node.coordinators.read_share_state(&mut it.node.core, replica, key.clone());
    it.step(Event::Tick);
    it.run();
    let told = it.node.coordinators.take_share_answers();
    assert_eq!((told.len(), told[0].call, told[0].replica), (1, call, replica));
    it.node.coordinators.read_share_state(&mut it.node.core, replica, key);
    it.node.coordinators.forget_share_calls(replica);
    it.step(Event::Tick);
    it.run();
    assert_eq!(it.node.coordinators.take_share_answers(), []);
}

#[test]
fn a_call_that_nobody_answers_is_given_up() {
    let mut it = Harness::new(&FEW);
    it.create("t", &[]);
    let (replica, key) = (it.replica("t"), key(&it, "t"));
    it.node.coordinators.read_share_state(&mut it.node.core, replica, key);
    it.pass_ms(9_000);
    assert_eq!(it.node.coordinators.take_share_answers(), []);
    it.pass_ms(2_000);
    let told = it.node.coordinators.take_share_answers();
    assert_eq!(told[0].answer, Err(ErrorCode::CoordinatorNotAvailable));
}
