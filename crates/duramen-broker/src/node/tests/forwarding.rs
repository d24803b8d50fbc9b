//! What only the leader of the metadata decides is asked of any node.

use duramen_protocol::messages::alter_client_quotas::{EntityData, EntryData, OpData};
use duramen_protocol::messages::create_partitions::CreatePartitionsTopic;
use duramen_protocol::messages::create_topics::CreatableTopic;
use duramen_protocol::messages::delete_topics::DeleteTopicState;
use duramen_protocol::messages::describe_quorum::{RequestPartitionData, RequestTopicData};
use duramen_protocol::messages::incremental_alter_configs::{
    AlterConfigsResource, AlterableConfig,
};
use duramen_protocol::messages::{
    AlterClientQuotasRequest, CreatePartitionsRequest, CreateTopicsRequest, DeleteTopicsRequest,
    DescribeQuorumRequest, IncrementalAlterConfigsRequest,
};
use duramen_protocol::{ErrorCode, Response};

use super::harness::new_topic;
use super::trio::{TICK_MS, Trio};
use crate::limits::FORWARDS_MAX;

const NOT_CONTROLLER: i16 = ErrorCode::NotController.code();
const TIMED_OUT: i16 = ErrorCode::RequestTimedOut.code();

fn create(name: &str, timeout_ms: i32) -> CreateTopicsRequest {
    let topic = CreatableTopic { replication_factor: 3, ..new_topic(name, 1, &[]) };
    CreateTopicsRequest { topics: vec![topic], timeout_ms, ..Default::default() }
}

fn code_of(response: Option<Response>) -> Option<i16> {
    match response? {
        Response::CreateTopics(response) => Some(response.topics[0].error_code),
        other => panic!("{other:?}"),
    }
}

fn has(trio: &Trio, at: usize, name: &str) -> bool {
    trio.nodes[at].node.core.controller.image.topic_named(name).is_some()
}

#[test]
fn any_node_takes_what_the_controller_decides() {
    let mut trio = Trio::new(&[]);
    for at in 0..3 {
        let name = format!("t{at}");
        let topic = CreatableTopic { replication_factor: 3, ..new_topic(&name, 1, &[]) };
        let row = trio.try_create(at, topic.clone()).topics.remove(0);
        assert_eq!((row.error_code, row.num_partitions), (0, 1), "{:?}", row.error_message);
        let row = trio.try_create(at, topic).topics.remove(0);
        assert_eq!(row.error_code, ErrorCode::TopicAlreadyExists.code());

        let more = CreatePartitionsTopic { name: name.clone(), count: 3, assignments: None };
        let request = CreatePartitionsRequest {
            topics: vec![more],
            timeout_ms: 10_000,
            ..Default::default()
        };
        let Response::CreatePartitions(response) = trio.ask(at, request, 3) else { panic!() };
        assert_eq!(response.results[0].error_code, 0);

        let config = AlterableConfig {
            name: "retention.ms".to_owned(),
            value: Some("7".to_owned()),
            ..Default::default()
        };
        let of_topic = AlterConfigsResource {
            resource_type: 2,
            resource_name: name.clone(),
            configs: vec![config],
        };
        let config = AlterableConfig {
            name: "log.retention.ms".to_owned(),
            value: Some("9".to_owned()),
            ..Default::default()
        };
        // A client asks the broker itself, as tools do.
        let of_broker = AlterConfigsResource {
            resource_type: 4,
            resource_name: at.to_string(),
            configs: vec![config],
        };
        let request = IncrementalAlterConfigsRequest {
            resources: vec![of_topic, of_broker],
            ..Default::default()
        };
        let Response::IncrementalAlterConfigs(response) = trio.ask(at, request, 1) else {
            panic!()
        };
        assert_eq!(response.responses.iter().map(|it| it.error_code).collect::<Vec<_>>(), [0, 0]);

        let entity = EntityData { entity_type: "user".to_owned(), entity_name: Some(name.clone()) };
        let op = OpData { key: "producer_byte_rate".to_owned(), value: 5.0, remove: false };
        let entries = vec![EntryData { entity: vec![entity], ops: vec![op] }];
        let request = AlterClientQuotasRequest { entries, validate_only: false };
        let Response::AlterClientQuotas(response) = trio.ask(at, request, 1) else { panic!() };
        assert_eq!(response.entries[0].error_code, 0);

        trio.pass_ms(1000);
        let image = &trio.nodes[(at + 1) % 3].node.core.controller.image;
        let topic = image.topic_named(&name).expect("all know of it");
        assert_eq!((topic.partitions.len(), topic.configs["retention.ms"].as_str()), (3, "7"));
        let id = i32::try_from(at).expect("small");
        assert_eq!(image.broker_configs(id)["log.retention.ms"], "9");

        let topics = vec![DeleteTopicState { name: Some(name.clone()), ..Default::default() }];
        let request = DeleteTopicsRequest { topics, timeout_ms: 10_000, ..Default::default() };
        let Response::DeleteTopics(response) = trio.ask(at, request, 6) else { panic!() };
        assert_eq!(response.responses[0].error_code, 0);
    }
}

#[test]
fn a_request_whose_frame_is_lost_or_doubled_is_executed_once() {
    let mut trio = Trio::new(&[]);
    let controller = trio.controller();
    let asked = (controller + 1) % 3;
    let delete = |name: &str| DeleteTopicsRequest {
        topics: vec![DeleteTopicState { name: Some(name.to_owned()), ..Default::default() }],
        timeout_ms: 10_000,
        ..Default::default()
    };
    for (name, lost_at) in [("a", asked), ("b", controller)] {
        trio.create(name, 1);
        let id = trio.nodes[asked].send(delete(name), 6);
        if lost_at == asked {
            // The request is lost on its way there.
            trio.nodes[asked].sent.clear();
            trio.pass_ms(TICK_MS);
            assert!(has(&trio, controller, name));
        } else {
            // Its answer is lost on the way back, so it is asked again what was done already.
            trio.deliver_from(asked);
            for _ in 0..20 {
                trio.deliver_between(controller, (controller + 2) % 3);
                trio.nodes[controller].sent.retain(|(to, _)| usize::try_from(*to) != Ok(asked));
            }
            assert!(!has(&trio, controller, name), "it was executed");
        }
        assert!(trio.response(asked, id).is_none());
        let mut response = None;
        for _ in 0..40 {
            trio.pass_ms(TICK_MS);
            response = response.or_else(|| trio.response(asked, id));
        }
        let Some(Response::DeleteTopics(response)) = response else { panic!("no answer") };
        // Executed twice, it would be told that there is no such topic.
        assert_eq!(response.responses[0].error_code, 0);
    }
}

#[test]
fn a_request_waits_for_a_leader_and_goes_to_it() {
    let mut trio = Trio::new(&[]);
    let dead = trio.controller();
    let asked = (dead + 1) % 3;
    trio.cut.insert(dead);
    // It was sent to a node that does not answer: whether it was executed is not known when another one leads.
    let id = trio.send(asked, create("a", 30_000), 7);
    let mut code = None;
    for _ in 0..100 {
        trio.pass_ms(TICK_MS);
        code = code.or_else(|| code_of(trio.response(asked, id)));
    }
    assert_eq!(code, Some(NOT_CONTROLLER));
    // One that comes while nobody leads is held.
    let mut trio = Trio::new(&[]);
    let dead = trio.controller();
    let asked = (dead + 1) % 3;
    trio.cut.insert(dead);
    for _ in 0..100 {
        if trio.nodes[asked].node.core.metadata_leader().is_none() {
            break;
        }
        trio.pass_ms(10);
    }
    let id = trio.send(asked, create("b", 30_000), 7);
    let mut code = None;
    for _ in 0..200 {
        trio.pass_ms(TICK_MS);
        code = code.or_else(|| code_of(trio.response(asked, id)));
    }
    assert_eq!(code, Some(0));
    assert!(has(&trio, asked, "b"));
}

#[test]
fn time_is_up_where_nobody_answers() {
    let mut trio = Trio::new(&[]);
    let asked = (trio.controller() + 1) % 3;
    trio.cut.insert(asked);
    let id = trio.send(asked, create("t", 300), 7);
    trio.pass_ms(250);
    assert!(trio.response(asked, id).is_none());
    trio.pass_ms(100);
    assert_eq!(code_of(trio.response(asked, id)), Some(TIMED_OUT));
    trio.cut.clear();
    trio.pass_ms(5000);
    assert!(!has(&trio, asked, "t"), "what is over is not sent any more");
}

#[test]
fn what_is_on_its_way_is_bounded() {
    let mut trio = Trio::new(&[]);
    let asked = (trio.controller() + 1) % 3;
    trio.cut.insert(asked);
    let mut ids = Vec::new();
    for n in 0..=FORWARDS_MAX {
        let connection = crate::event::ConnectionId(1000 + n as u64);
        let request = create(&format!("t{n}"), 1000).into();
        ids.push((connection, trio.nodes[asked].enqueue(connection, &request, 7)));
    }
    let (last, id) = ids.pop().expect("there are many");
    assert_eq!(code_of(trio.nodes[asked].response_on(last, id)), Some(NOT_CONTROLLER));
    let gone = ids.pop().expect("there are many").0;
    trio.nodes[asked].disconnect(gone);
    let request = create("after", 1000).into();
    let id = trio.nodes[asked].enqueue(last, &request, 7);
    assert!(trio.nodes[asked].response_on(last, id).is_none(), "there is room again");
}

#[test]
fn a_topic_for_all_nodes_of_a_cluster_that_was_just_started_is_made_when_they_are_there() {
    let mut trio = Trio::unregistered(&[]);
    let late = 2;
    trio.cut.insert(late);
    for _ in 0..200 {
        if trio.nodes[0].node.core.controller.image.brokers.len() == 2 {
            break;
        }
        trio.pass_ms(TICK_MS);
    }
    let at = trio.controller();
    let id = trio.send(at, create("t", 30_000), 7);
    trio.pass_ms(3000);
    assert!(trio.response(at, id).is_none());
    trio.cut.clear();
    let mut code = None;
    for _ in 0..60 {
        trio.pass_ms(TICK_MS);
        code = code.or_else(|| code_of(trio.response(at, id)));
    }
    assert_eq!(code, Some(0));

    // More than there will ever be is refused at once, and one that does not come is not awaited for ever.
    let mut trio = Trio::unregistered(&[]);
    trio.cut.insert(late);
    for _ in 0..200 {
        if trio.nodes[0].node.core.controller.image.brokers.len() == 2 {
            break;
        }
        trio.pass_ms(TICK_MS);
    }
    let at = trio.controller();
    let refused = ErrorCode::InvalidReplicationFactor.code();
    let topic = CreatableTopic { replication_factor: 4, ..new_topic("u", 1, &[]) };
    let request = CreateTopicsRequest { topics: vec![topic], timeout_ms: 1, ..Default::default() };
    let id = trio.send(at, request, 7);
    assert_eq!(code_of(trio.response(at, id)), Some(refused));
    let id = trio.send(at, create("t", 60_000), 7);
    trio.pass_ms(9_900);
    assert!(trio.response(at, id).is_none());
    trio.pass_ms(200);
    assert_eq!(code_of(trio.response(at, id)), Some(refused));
}

#[test]
fn who_keeps_the_metadata_is_told_alike_by_any_node() {
    let mut trio = Trio::new(&[]);
    let ask = |trio: &mut Trio, at: usize| {
        let partitions = vec![RequestPartitionData { partition_index: 0 }];
        let topic_name = "__cluster_metadata".to_owned();
        let topics = vec![RequestTopicData { topic_name, partitions }];
        let Response::DescribeQuorum(mut response) =
            trio.ask(at, DescribeQuorumRequest { topics }, 2)
        else {
            panic!()
        };
        assert_eq!((response.error_code, response.nodes.len()), (0, 3));
        response.topics.remove(0).partitions.remove(0)
    };
    trio.pass_ms(2000);
    let leader = trio.controller();
    let told: Vec<_> = (0..3).map(|at| ask(&mut trio, at)).collect();
    for row in &told {
        assert_eq!((row.error_code, row.leader_id), (0, i32::try_from(leader).expect("small")));
        assert_eq!(row.leader_epoch, trio.nodes[leader].node.core.controller.group.epoch());
        assert_eq!(row.high_watermark, trio.nodes[leader].node.core.controller.end());
        assert!(row.observers.is_empty());
        let voters: Vec<_> = row.current_voters.iter().map(|it| it.replica_id).collect();
        assert_eq!(voters, [0, 1, 2]);
        for voter in &row.current_voters {
            let at = u8::try_from(voter.replica_id).expect("small");
            assert_eq!(voter.replica_directory_id.0, [at + 100; 16]);
            assert_eq!(voter.log_end_offset, row.high_watermark);
            assert!(voter.last_caught_up_timestamp > 0, "{voter:?}");
        }
    }

    // One that is cut off falls behind, and the others say by how much and since when.
    let lost = (leader + 1) % 3;
    trio.cut.insert(lost);
    let other = (leader + 2) % 3;
    let asked = trio.send(other, create("t", 10_000), 7);
    trio.pass_ms(20_000);
    assert!(trio.response(other, asked).is_some());
    let row = ask(&mut trio, other);
    let of = |at: usize| {
        let id = i32::try_from(at).expect("small");
        row.current_voters.iter().find(|it| it.replica_id == id).expect("a voter")
    };
    assert_eq!(of(other).log_end_offset, row.high_watermark);
    assert!(of(lost).log_end_offset < row.high_watermark, "{row:?}");
    assert!(of(lost).last_fetch_timestamp + 15_000 < of(leader).last_fetch_timestamp, "{row:?}");
    assert_eq!(of(lost).last_caught_up_timestamp, -1);
    // It knows of no leader any more, and says what it knows.
    let row = ask(&mut trio, lost);
    assert_eq!((row.error_code, row.leader_id, row.current_voters.len()), (0, -1, 3));
}

#[test]
fn a_leader_that_may_have_a_successor_refuses_nothing_by_what_it_knows() {
    let mut trio = Trio::new(&[]);
    let before = trio.controller();
    trio.cut.insert(before);
    let name = Some("t".to_owned());
    let request = DeleteTopicsRequest {
        topics: vec![DeleteTopicState { name, ..Default::default() }],
        timeout_ms: 30_000,
        ..Default::default()
    };
    let asked = trio.send(before, request, 6);
    let is_led = |trio: &Trio, at: usize| trio.nodes[at].node.core.controller.group.is_serving();
    for _ in 0..10_000 / TICK_MS {
        trio.pass_ms(TICK_MS);
        assert_eq!(trio.response(before, asked), None, "nobody has told it that there is no t");
        if (0..3).any(|at| at != before && is_led(&trio, at)) {
            break;
        }
    }
    let other = (0..3).find(|at| *at != before && is_led(&trio, *at)).expect("another leads");
    let row = trio.try_create(other, new_topic("t", 1, &[])).topics.remove(0);
    assert_eq!(row.error_code, 0);
    assert!(has(&trio, other, "t") && !has(&trio, before, "t"));
    trio.cut.clear();
    let told = (0..200).find_map(|_| {
        trio.pass_ms(TICK_MS);
        trio.response(before, asked)
    });
    let Some(Response::DeleteTopics(told)) = told else { panic!("{told:?}") };
    assert_eq!(told.responses[0].error_code, 0, "it was there");
    assert!(!has(&trio, other, "t"));
}
