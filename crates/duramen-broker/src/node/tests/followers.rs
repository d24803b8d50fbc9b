//! Reads from replicas that do not lead.

use duramen_protocol::messages::FetchRequest;
use duramen_protocol::messages::create_topics::{CreatableReplicaAssignment, CreatableTopic};
use duramen_protocol::messages::delete_records::{DeleteRecordsPartition, DeleteRecordsTopic};
use duramen_protocol::messages::fetch::PartitionData;
use duramen_protocol::messages::{
    CreateTopicsRequest, DeleteRecordsRequest, DeleteTopicsRequest, MetadataRequest,
};
use duramen_protocol::{ErrorCode, Response};

use super::harness::{batch, bytes_of, fetch_request, new_topic, produce_request};
use super::trio::{TICK_MS, Trio};
use crate::event::Event;
use crate::peer::Letter;
use crate::raft::APPENDED;

const NOT_LEADER: i16 = ErrorCode::NotLeaderOrFollower.code();
const OUT_OF_RANGE: i16 = ErrorCode::OffsetOutOfRange.code();
const NEVER: (&str, &str) = ("auto.leader.rebalance.enable", "false");

/// Three nodes and a topic `t`: the one that leads it, and the others.
fn led(pairs: &[(&str, &str)]) -> (Trio, usize, [usize; 2]) {
    let mut trio = Trio::new(pairs);
    trio.create("t", 1);
    let leader = trio.leader("t", 0).expect("led");
    (trio, leader, [(leader + 1) % 3, (leader + 2) % 3])
}

fn waiting(offset: i64, ms: i32) -> FetchRequest {
    FetchRequest { max_wait_ms: ms, ..fetch_request("t", offset) }
}

fn only(response: Option<Response>) -> Option<PartitionData> {
    match response? {
        Response::Fetch(mut response) => Some(response.responses.remove(0).partitions.remove(0)),
        other => panic!("{other:?}"),
    }
}

fn fetch(trio: &mut Trio, at: usize, request: FetchRequest, version: i16) -> PartitionData {
    only(Some(trio.ask(at, request, version))).expect("there")
}

/// What a node tells of partition 0 of `t`: the error, the leader, its epoch.
fn described(trio: &mut Trio, at: usize) -> (i16, i32, i32) {
    let request = MetadataRequest { topics: None, ..MetadataRequest::default() };
    let Response::Metadata(mut metadata) = trio.ask(at, request, 12) else { panic!("other") };
    let part = metadata.topics.remove(0).partitions.remove(0);
    (part.error_code, part.leader_id, part.leader_epoch)
}

#[test]
fn before_the_first_election_its_candidate_is_told_as_the_leader() {
    let mut trio = Trio::new(&[NEVER]);
    let controller = trio.controller();
    let [first, other] = [(controller + 1) % 3, (controller + 2) % 3];
    let id = |at: usize| i32::try_from(at).expect("small");
    trio.cut.insert(first);
    placed(&mut trio, controller, &[first, controller, other]);
    trio.talk();
    assert_eq!(trio.leader("t", 0), None);
    assert_eq!(described(&mut trio, other), (0, id(first), -1));
    // It is not there, so another one comes to lead.
    trio.pass_ms(3000);
    let leader = trio.leader("t", 0).expect("led");
    let (error, told, epoch) = described(&mut trio, controller);
    assert_eq!((error, told), (0, id(leader)));
    assert!(epoch > 1, "{epoch}");
}

/// Asks for a topic of one partition on these nodes; answers the request's number.
fn placed(trio: &mut Trio, at: usize, on: &[usize]) -> i32 {
    let broker_ids = on.iter().map(|at| i32::try_from(*at).expect("small")).collect();
    let assignments = vec![CreatableReplicaAssignment { partition_index: 0, broker_ids }];
    let topic = CreatableTopic { replication_factor: -1, assignments, ..new_topic("t", -1, &[]) };
    let request =
        CreateTopicsRequest { topics: vec![topic], timeout_ms: 30_000, ..Default::default() };
    trio.nodes[at].send(request, 7)
}

#[test]
fn a_topic_is_made_when_its_leader_serves_wherever_that_is() {
    for has_own in [true, false] {
        let mut trio = Trio::new(&[NEVER]);
        let controller = trio.controller();
        let [first, other] = [(controller + 1) % 3, (controller + 2) % 3];
        let on = [first, other, controller];
        for at in [first, other] {
            trio.nodes[at].is_prompt = false;
        }
        let id = placed(&mut trio, controller, if has_own { &on } else { &on[..2] });
        let mut rounds = 0;
        let answer = loop {
            trio.pass_ms(TICK_MS / 10);
            let is_led = trio.leader("t", 0).is_some();
            if let Some(answer) = trio.response(controller, id) {
                assert!(is_led, "it is said to be there after {rounds} writes");
                break answer;
            }
            rounds += 1;
            assert!(rounds < 100, "nobody says so");
            // The one that stands for election is the last to have anything on its disk.
            let _ = trio.nodes[other].persist() || trio.nodes[first].persist();
        };
        let Response::CreateTopics(answer) = answer else { panic!("{answer:?}") };
        assert_eq!(answer.topics[0].error_code, 0);
        assert!(rounds > 2, "something had to be written first");
    }
}

#[test]
fn a_topic_that_is_deleted_before_it_is_led_is_answered() {
    let mut trio = Trio::new(&[NEVER]);
    let controller = trio.controller();
    let first = (controller + 1) % 3;
    trio.cut.insert(first);
    let made = placed(&mut trio, controller, &[first]);
    trio.talk();
    assert!(trio.response(controller, made).is_none(), "nobody leads it");
    let names = vec!["t".to_owned()];
    let request =
        DeleteTopicsRequest { topic_names: names, timeout_ms: 30_000, ..Default::default() };
    trio.send(controller, request, 5);
    let Some(Response::CreateTopics(answer)) = trio.response(controller, made) else {
        panic!("it would wait for ever");
    };
    assert_eq!(answer.topics[0].error_code, 0, "it was there");
}

#[test]
fn any_replica_shows_what_is_committed() {
    let (mut trio, leader, followers) = led(&[NEVER]);
    trio.produce(leader, "t", batch(&["a"]));
    let expected = fetch(&mut trio, leader, fetch_request("t", 0), 12);
    assert_eq!(expected.error_code, 0);
    for at in followers {
        let data = fetch(&mut trio, at, fetch_request("t", 0), 11);
        assert_eq!((data.error_code, data.high_watermark, data.preferred_read_replica), (0, 1, -1));
        assert_eq!(bytes_of(&data), bytes_of(&expected));
        let data = fetch(&mut trio, at, fetch_request("t", 0), 10);
        assert_eq!(data.error_code, NOT_LEADER, "clients that do not know of such reads");
    }
}

/// How many frames a node has said in which a replica of it acknowledges what it has; all is heard.
fn acknowledging(trio: &mut Trio, from: usize) -> usize {
    let mut count = 0;
    for at in (0..20).flat_map(|_| 0..3) {
        if at == from {
            let frames = trio.nodes[from].sent.iter().map(|(_, frame)| &frame.0.letters);
            let acknowledges = |it: &&Vec<Letter>| it.iter().any(|it| it.kind == APPENDED);
            count += frames.filter(acknowledges).count();
        }
        trio.deliver_from(at);
    }
    count
}

#[test]
fn the_answer_to_news_of_what_is_committed_waits_for_company_but_not_for_long() {
    let (mut trio, leader, [one, _]) = led(&[NEVER]);
    trio.pass_ms(1);
    trio.nodes[leader].send(produce_request("t", batch(&["a"]), -1), 9);
    assert_eq!(acknowledging(&mut trio, one), 1, "what it has, not that it is committed");
    let replica = trio.replica(one, "t", 0);
    assert_eq!(
        trio.nodes[one].node.core.partitions[&replica].committed(),
        1,
        "it knows all the same"
    );
    trio.now.mono_us += TICK_MS * 1000;
    for node in &mut trio.nodes {
        node.now = trio.now;
        node.step(Event::Tick);
    }
    assert_eq!(acknowledging(&mut trio, one), 1, "the first may be lost, so it is said again");
    assert_eq!(acknowledging(&mut trio, one), 0);
}

#[test]
fn a_follower_shows_nothing_before_it_knows_that_it_is_committed_and_then_at_once() {
    let (mut trio, leader, [reader, other]) = led(&[NEVER]);
    trio.cut.insert(other);
    trio.nodes[reader].is_prompt = false;
    let produced = trio.send(leader, produce_request("t", batch(&["a"]), -1), 9);
    let replica = trio.replica(reader, "t", 0);
    assert_eq!(
        trio.nodes[reader].node.core.partitions[&replica].group.end_offset(),
        1,
        "it has it"
    );
    let data = fetch(&mut trio, reader, fetch_request("t", 0), 12);
    assert_eq!((data.error_code, data.high_watermark), (0, 0));
    assert!(bytes_of(&data).is_empty());

    let waits = trio.send(reader, waiting(0, 10_000), 12);
    trio.pass_ms(100);
    assert!(trio.response(reader, waits).is_none());
    // Its disk answers: the leader commits, tells it, and it wakes its reader, and no time passes.
    trio.nodes[reader].is_prompt = true;
    trio.nodes[reader].persist();
    trio.nodes[reader].run();
    trio.talk();
    assert!(trio.response(leader, produced).is_some());
    let data = only(trio.response(reader, waits)).expect("it is woken");
    assert_eq!((data.error_code, data.high_watermark), (0, 1));
    assert!(!bytes_of(&data).is_empty());

    // So it is with a batch that finds all idle.
    let waits = trio.send(reader, waiting(1, 10_000), 12);
    trio.pass_ms(2000);
    assert!(trio.response(reader, waits).is_none());
    trio.send(leader, produce_request("t", batch(&["b"]), -1), 9);
    let data = only(trio.response(reader, waits)).expect("it is woken");
    assert_eq!((data.error_code, data.high_watermark), (0, 2));
}

#[test]
fn an_offset_that_a_follower_has_not_heard_of_is_waited_for() {
    let (mut trio, leader, [reader, _]) = led(&[NEVER]);
    trio.produce(leader, "t", batch(&["a", "b", "c"]));
    // The client has read more from the leader than the follower has.
    let before = trio.now.mono_us;
    let data = fetch(&mut trio, reader, waiting(5, 500), 12);
    assert_eq!((data.error_code, data.high_watermark), (0, 3));
    assert!(bytes_of(&data).is_empty());
    assert!(trio.now.mono_us - before >= 500_000, "it waits");
    let mut request = waiting(5, 0);
    request.topics[0].partitions[0].last_fetched_epoch = 1000;
    let data = fetch(&mut trio, reader, request, 12);
    assert_eq!((data.error_code, data.diverging_epoch.end_offset), (0, -1), "nor is it cut back");
    assert_eq!(fetch(&mut trio, leader, waiting(5, 0), 12).error_code, OUT_OF_RANGE);

    let partitions = vec![DeleteRecordsPartition { partition_index: 0, offset: 2 }];
    let topics = vec![DeleteRecordsTopic { name: "t".to_owned(), partitions }];
    trio.ask(leader, DeleteRecordsRequest { topics, timeout_ms: 1000 }, 2);
    assert_eq!(fetch(&mut trio, reader, waiting(1, 0), 12).error_code, OUT_OF_RANGE);
    assert_eq!(fetch(&mut trio, reader, waiting(2, 0), 12).error_code, 0);
}

#[test]
fn a_follower_that_hears_no_leader_sends_its_readers_away() {
    let (mut trio, _, [reader, _]) = led(&[NEVER]);
    trio.cut.insert(reader);
    trio.pass_ms(3000);
    assert_eq!(fetch(&mut trio, reader, waiting(0, 0), 12).error_code, NOT_LEADER);
}

fn near(rack: usize) -> FetchRequest {
    FetchRequest { rack_id: format!("rack-{rack}"), ..waiting(0, 5000) }
}

#[test]
fn a_consumer_is_sent_to_the_replica_in_its_rack() {
    let (mut trio, leader, [near_by, other]) = led(&[NEVER]);
    trio.produce(leader, "t", batch(&["a"]));
    trio.pass_ms(1000);
    let id = i32::try_from(near_by).expect("small");
    for session_epoch in [-1, 0] {
        let request = FetchRequest { session_epoch, ..near(near_by) };
        let sent = trio.send(leader, request, 12);
        let data = only(trio.response(leader, sent)).expect("at once");
        assert_eq!((data.error_code, data.preferred_read_replica), (0, id));
        assert!(bytes_of(&data).is_empty());
    }
    let data = fetch(&mut trio, near_by, near(near_by), 12);
    assert_eq!((data.preferred_read_replica, bytes_of(&data).is_empty()), (-1, false));
    for rack in [leader, 9] {
        let data = fetch(&mut trio, leader, near(rack), 12);
        assert_eq!((data.preferred_read_replica, bytes_of(&data).is_empty()), (-1, false));
    }
    // A follower sends nobody anywhere.
    let data = fetch(&mut trio, near_by, near(other), 12);
    assert_eq!((data.preferred_read_replica, bytes_of(&data).is_empty()), (-1, false));
    // Nor is anyone sent to a node that was not heard lately.
    trio.cut.insert(near_by);
    trio.pass_ms(4000);
    let data = fetch(&mut trio, leader, near(near_by), 12);
    assert_eq!((data.preferred_read_replica, bytes_of(&data).is_empty()), (-1, false));
    // Clients are told where nodes stand.
    let metadata = trio.ask(leader, MetadataRequest::default(), 12);
    let Response::Metadata(metadata) = metadata else { panic!("{metadata:?}") };
    let told = metadata.brokers.iter().map(|it| (it.node_id, it.rack.clone().expect("said")));
    assert!(
        told.clone().count() >= 2 && told.clone().all(|(id, rack)| rack == format!("rack-{id}"))
    );
}

#[test]
fn consumers_stay_with_the_leader_where_that_is_wished() {
    let selector = ("replica.selector.class", "org.apache.kafka.common.replica.LeaderSelector");
    let (mut trio, leader, [near_by, _]) = led(&[NEVER, selector]);
    trio.produce(leader, "t", batch(&["a"]));
    let data = fetch(&mut trio, leader, near(near_by), 12);
    assert_eq!((data.preferred_read_replica, bytes_of(&data).is_empty()), (-1, false));
}

#[test]
fn a_reader_stays_with_its_replica_when_that_begins_to_lead_or_ceases_to() {
    let (mut trio, leader, [reader, _]) = led(&[NEVER]);
    let waits = trio.send(reader, waiting(0, 60_000), 12);
    trio.cut.insert(leader);
    trio.pass_ms(4000);
    trio.cut.clear();
    trio.pass_ms(10 * TICK_MS);
    let next = trio.leader("t", 0).expect("led");
    let mut answer = only(trio.response(reader, waits));
    trio.produce(next, "t", batch(&["a"]));
    trio.pass_ms(TICK_MS);
    answer = answer.or_else(|| only(trio.response(reader, waits)));
    assert_eq!(answer.expect("it was woken").error_code, 0);
    assert!(!bytes_of(&fetch(&mut trio, reader, waiting(0, 0), 12)).is_empty());
}
