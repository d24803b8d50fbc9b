//! Refusals: each row of the table of questions is asked, and its refusal tells a stranger nothing.

use bytes::Bytes;
use duramen_protocol::api::{API_TABLE, OWN_TABLE};
use duramen_protocol::messages::describe_share_group_offsets::DescribeShareGroupOffsetsRequestGroup;
use duramen_protocol::messages::metadata::MetadataRequestTopic;
use duramen_protocol::messages::offset_fetch::OffsetFetchRequestGroup;
use duramen_protocol::messages::{
    DeleteTopicsRequest, DescribeShareGroupOffsetsRequest, DescribeTopicPartitionsRequest,
    FindCoordinatorRequest, MetadataRequest, OffsetFetchRequest, ShareGroupHeartbeatRequest,
    delete_topics,
};
use duramen_protocol::wire::Uuid;
use duramen_protocol::{ApiKey, ErrorCode, Request, Response};

use super::harness::{Harness, batch, builder, fetch_request, produce_request};
use super::transactions::Producer;
use crate::access::{Asked, Kind, Operation, QUESTIONS, Question, Refusal};
use crate::internal_topics::{GROUPS, TRANSACTIONS};

mod requests;

use requests::{Names, request};

const KINDS: [Kind; 4] = [Kind::Cluster, Kind::Topic, Kind::Group, Kind::TransactionalId];
const SMALL: [(&str, &str); 5] = [
    ("offsets.topic.num.partitions", "1"),
    ("transaction.state.log.num.partitions", "1"),
    ("share.coordinator.state.topic.num.partitions", "1"),
    ("group.initial.rebalance.delay.ms", "0"),
    ("group.consumer.assignment.interval.ms", "0"),
];
const TOPIC: &str = "the-topic";
const PLAIN: &str = "the-group";
const CONSUMERS: &str = "the-consumers";
const SHARERS: &str = "the-sharers";
const ID: &str = "the-id";
const GONE: &str = "gone";

/// Rows whose question no single request shows; the tests of `groups/consumer/topics.rs` do.
const OF_SEARCHES: [(ApiKey, Kind); 1] = [(ApiKey::JoinGroup, Kind::Topic)];

/// A batch of a transaction.
fn transactional() -> Bytes {
    let built = builder(&["a"], 1_000).producer(7, 0, 0);
    built.transactional().build().expect("a batch")
}

/// A node with one resource of each kind.
struct World {
    it: Harness,
    topic_id: Uuid,
}

impl World {
    fn new() -> Self {
        let mut it = Harness::new(&SMALL);
        it.create(TOPIC, &[]);
        assert_eq!(it.produce(TOPIC, batch(&["a", "b"])).error_code, 0);
        let topic_id = it.node.core.controller.image.topic_named(TOPIC).expect("made").id;
        let mut world = Self { it, topic_id };
        for (kind, group) in [(Kind::Group, PLAIN), (Kind::Cluster, SHARERS)] {
            let names = Names { group, ..world.names(ApiKey::FindCoordinator) };
            world.send(request(ApiKey::FindCoordinator, Some(kind), names));
        }
        let mut producer = Producer::new(&mut world.it, ID, 2);
        producer.write(&mut world.it, TOPIC, &["c"]);
        for api in
            [ApiKey::OffsetCommit, ApiKey::ConsumerGroupHeartbeat, ApiKey::ShareGroupHeartbeat]
        {
            let answer = world.send(request(api, None, world.names(api)));
            assert!(shown(&answer).contains("error_code: 0"), "{answer:?}");
        }
        // The members of a share group get partitions once the states of these are there.
        world.it.pass_ms(1_000);
        let api = ApiKey::ShareGroupHeartbeat;
        world.send(request(api, None, world.names(api)));
        world
    }

    /// Names of resources that exist, as a request of the API uses them.
    fn names(&self, api: ApiKey) -> Names<'static> {
        let group = match api {
            ApiKey::ConsumerGroupHeartbeat | ApiKey::ConsumerGroupDescribe => CONSUMERS,
            ApiKey::ShareGroupHeartbeat
            | ApiKey::ShareGroupDescribe
            | ApiKey::ShareFetch
            | ApiKey::ShareAcknowledge
            | ApiKey::DescribeShareGroupOffsets
            | ApiKey::AlterShareGroupOffsets
            | ApiKey::DeleteShareGroupOffsets => SHARERS,
            _ => PLAIN,
        };
        // Only a missing topic can be created.
        let topic = if api == ApiKey::CreateTopics { "new" } else { TOPIC };
        Names { topic, topic_id: self.topic_id, group, id: ID }
    }

    fn send(&mut self, (request, version): (Request, i16)) -> Response {
        let id = self.it.send(request, version);
        // Share fetches and joins of groups may wait.
        self.it.pass_ms(10);
        self.it.response(id).expect("answered at once")
    }

    fn deny(&mut self, operation: Operation, kind: Kind) {
        self.it.node.core.access.deny(operation, kind);
    }

    /// Denies everything that a row asks for, and the rows before that would do as well.
    fn deny_row(&mut self, row: &Question) {
        for row in alternatives(row) {
            if let Asked::Operation(operation, kind) | Asked::OnAny(operation, kind) = row.asked {
                self.deny(operation, kind);
            }
        }
    }

    fn ask(&mut self, row: &Question) -> Response {
        let mut names = self.names(row.api);
        // A topic that is to be created on the way must be missing.
        if row.api == ApiKey::Metadata && is_of_creation(row) {
            names.topic = "new";
        }
        if row.api == ApiKey::ShareAcknowledge {
            // A consumer acknowledges in a session, which a fetch begins.
            self.send(request(ApiKey::ShareFetch, None, names));
        }
        if row.api == ApiKey::DeleteShareGroupOffsets {
            // Only a group without members loses its offsets.
            let leaving = ShareGroupHeartbeatRequest {
                group_id: names.group.to_owned(),
                member_id: "m".to_owned(),
                member_epoch: -1,
                ..Default::default()
            };
            self.send((leaving.into(), 1));
        }
        self.send(request(row.api, kind_of(row), names))
    }
}

fn is_of_creation(row: &Question) -> bool {
    matches!(row.asked, Asked::Operation(Operation::Create, _))
}

/// Returns the row, after those before it whose refusal leaves the answer to it.
fn alternatives(row: &Question) -> impl Iterator<Item = &'static Question> + use<'_> {
    let at = QUESTIONS.iter().position(|it| it == row).expect("it is in the table");
    let before = QUESTIONS[..at].iter();
    let before = before.filter(|it| it.api == row.api && it.refusal == Refusal::Next);
    before.chain([&QUESTIONS[at]])
}

/// Returns the kind that a row's request is to be about.
fn kind_of(row: &Question) -> Option<Kind> {
    match row.asked {
        Asked::Operation(_, kind) | Asked::Each(kind) => Some(kind),
        // No transactional id is named.
        Asked::OnAny(..) | Asked::Nothing => None,
    }
}

fn shown(answer: &Response) -> String {
    format!("{answer:?}")
}

/// Tells whether an answer has this error code anywhere.
fn has(answer: &Response, code: ErrorCode) -> bool {
    let text = shown(answer);
    let code = code.code();
    [",", " ", "}"].iter().any(|end| text.contains(&format!("error_code: {code}{end}")))
}

fn is_refused(answer: &Response) -> bool {
    KINDS.iter().any(|kind| has(answer, kind.refusal()))
}

fn named(kind: Kind, names: Names<'_>) -> String {
    match kind {
        Kind::Topic => format!("{:?}", names.topic),
        Kind::Group => format!("{:?}", names.group),
        Kind::TransactionalId => format!("{:?}", names.id),
        Kind::Cluster => unreachable!("no answer leaves out the cluster"),
    }
}

#[test]
fn each_served_api_has_rows_in_the_order_of_keys() {
    let keys: Vec<ApiKey> = QUESTIONS.iter().map(|row| row.api).collect();
    assert!(keys.is_sorted());
    let served = API_TABLE.iter().chain(OWN_TABLE).filter(|api| api.is_served());
    for api in served {
        let rows: Vec<_> = QUESTIONS.iter().filter(|row| row.api == api.key).collect();
        assert!(!rows.is_empty(), "{} has no row", api.name);
        let free = rows.iter().filter(|row| row.asked == Asked::Nothing).count();
        assert!(free == 0 || rows.len() == 1, "{} asks something or nothing", api.name);
        let twice =
            rows.iter().any(|row| rows.iter().filter(|it| it.asked == row.asked).count() > 1);
        assert!(!twice, "{} has a question twice", api.name);
        assert_ne!(rows.last().map(|row| row.refusal), Some(Refusal::Next), "{}", api.name);
    }
    assert!(QUESTIONS.iter().all(|row| duramen_protocol::api::Api::of(row.api).is_served()));
}

#[test]
fn a_refusal_of_each_row_shows_in_the_answer() {
    for row in QUESTIONS {
        let mut allowed = World::new();
        let open = allowed.ask(row);
        assert!(!is_refused(&open), "{row:?}: {open:?}");
        let mut world = World::new();
        match row.refusal {
            Refusal::Code(code) => {
                world.deny_row(row);
                let answer = world.ask(row);
                assert!(has(&answer, code), "{row:?}: {answer:?}");
            }
            Refusal::Next => {
                world.deny_row(row);
                let answer = world.ask(row);
                assert!(!is_refused(&answer), "{row:?}: {answer:?}");
            }
            Refusal::Omits => {
                let kind = kind_of(row).expect("it has a resource");
                if OF_SEARCHES.contains(&(row.api, kind)) {
                    continue;
                }
                let name = named(kind, world.names(row.api));
                assert!(shown(&open).contains(&name), "{row:?}: {open:?}");
                world.deny_row(row);
                let answer = world.ask(row);
                assert!(!is_refused(&answer), "{row:?}: {answer:?}");
                assert!(!shown(&answer).contains(&name), "{row:?}: {answer:?}");
            }
            Refusal::Lacks => sets_lack(row),
        }
    }
}

/// Checks a row whose refusal takes operations out of a set, and a row that asks nothing.
fn sets_lack(row: &Question) {
    let kind = match row.asked {
        Asked::Each(kind) => kind,
        Asked::Operation(operation, kind) => {
            let mut world = World::new();
            world.deny(operation, kind);
            let answer = world.ask(row);
            assert!(shown(&answer).contains("authorized_operations: 0"), "{row:?}: {answer:?}");
            return;
        }
        Asked::Nothing | Asked::OnAny(..) => {
            let mut world = World::new();
            for kind in KINDS {
                kind.operations().iter().for_each(|operation| world.deny(*operation, kind));
            }
            let answer = world.ask(row);
            return assert!(!is_refused(&answer), "{row:?}: {answer:?}");
        }
    };
    let all = match kind {
        Kind::Cluster => 1 << 5 | 1 << 7 | 1 << 8 | 1 << 9 | 1 << 10 | 1 << 11 | 1 << 12,
        Kind::Topic => 1 << 3 | 1 << 4 | 1 << 5 | 1 << 6 | 1 << 7 | 1 << 8 | 1 << 10 | 1 << 11,
        _ => 1 << 3 | 1 << 6 | 1 << 8 | 1 << 10 | 1 << 11,
    };
    let mut world = World::new();
    let answer = shown(&world.ask(row));
    assert!(answer.contains(&format!("authorized_operations: {all}")), "{row:?}: {answer}");
    // Without the right to describe there is no set.
    for operation in kind.operations().iter().filter(|it| **it != Operation::Describe) {
        world.it.node.core.access.allow_all();
        world.deny(*operation, kind);
        let answer = shown(&world.ask(row));
        let left = all & !(1 << *operation as u8);
        assert!(answer.contains(&format!("authorized_operations: {left}")), "{row:?}: {answer}");
    }
}

#[test]
fn a_stranger_does_not_learn_whether_a_resource_exists() {
    // These requests name topics by id, or only groups. Ids are no secrets, as in Apache Kafka.
    let without_names = [
        ApiKey::ShareFetch,
        ApiKey::ShareAcknowledge,
        ApiKey::ConsumerGroupDescribe,
        ApiKey::ShareGroupDescribe,
    ];
    for row in QUESTIONS.iter().filter(|row| matches!(row.refusal, Refusal::Code(_))) {
        let Asked::Operation(_, kind) = row.asked else { continue };
        if kind == Kind::Cluster || kind == Kind::Topic && without_names.contains(&row.api) {
            continue;
        }
        let mut world = World::new();
        for row in QUESTIONS.iter().filter(|it| it.api == row.api && it.refusal == Refusal::Next) {
            world.deny_row(row);
        }
        kind.operations().iter().for_each(|operation| world.deny(*operation, kind));
        let mut names = world.names(row.api);
        if kind == Kind::Topic {
            names.topic = TOPIC;
        }
        let existing = shown(&world.send(request(row.api, Some(kind), names)));
        let name = match kind {
            Kind::Topic => std::mem::replace(&mut names.topic, GONE),
            Kind::Group => std::mem::replace(&mut names.group, GONE),
            _ => std::mem::replace(&mut names.id, GONE),
        };
        let missing = shown(&world.send(request(row.api, Some(kind), names)));
        assert_eq!(existing.replace(name, GONE), missing, "{row:?}");
    }
}

#[test]
fn answers_about_all_topics_leave_out_those_that_a_client_may_not_see() {
    let mut world = World::new();
    let ask = |world: &mut World| {
        let group = |group_id: &str| OffsetFetchRequestGroup {
            group_id: group_id.to_owned(),
            topics: None,
            ..Default::default()
        };
        let fetch = OffsetFetchRequest { groups: vec![group(PLAIN)], ..Default::default() };
        let (group_id, topics) = (SHARERS.to_owned(), None);
        let shared = DescribeShareGroupOffsetsRequestGroup { group_id, topics };
        let shared = DescribeShareGroupOffsetsRequest { groups: vec![shared] };
        let all = MetadataRequest { topics: None, ..Default::default() };
        let asked: [(Request, i16); 4] = [
            (fetch.into(), 9),
            (shared.into(), 1),
            (all.into(), 12),
            (DescribeTopicPartitionsRequest::default().into(), 0),
        ];
        asked.map(|asked| world.send(asked))
    };
    for answer in ask(&mut world) {
        assert!(shown(&answer).contains(TOPIC), "{answer:?}");
    }
    world.it.node.core.access.deny_on_topic(Operation::Describe, TOPIC);
    for answer in ask(&mut world) {
        assert!(!shown(&answer).contains(TOPIC) && !is_refused(&answer), "{answer:?}");
    }
    assert_eq!(world.it.node.core.access.denials(), 0, "the client hears of none");
}

#[test]
fn a_refusal_by_topic_id_names_the_id_alone() {
    let mut world = World::new();
    let topic_id = world.topic_id;
    world.deny(Operation::Describe, Kind::Topic);
    world.deny(Operation::Delete, Kind::Topic);
    world.deny(Operation::Delete, Kind::Cluster);
    let topic = MetadataRequestTopic { topic_id, name: None };
    let described = MetadataRequest { topics: Some(vec![topic]), ..Default::default() };
    let Response::Metadata(answer) = world.send((described.into(), 12)) else { panic!("other") };
    let topic = &answer.topics[0];
    let refused = ErrorCode::TopicAuthorizationFailed.code();
    assert_eq!((topic.error_code, &topic.name, topic.topic_id), (refused, &None, topic_id));
    assert!(topic.partitions.is_empty());
    let topics = vec![delete_topics::DeleteTopicState { name: None, topic_id }];
    let deleted = DeleteTopicsRequest { topics, ..Default::default() };
    let Response::DeleteTopics(answer) = world.send((deleted.into(), 6)) else { panic!("other") };
    let topic = &answer.responses[0];
    assert_eq!((topic.error_code, &topic.name, topic.topic_id), (refused, &None, topic_id));
    world.deny(Operation::Read, Kind::Topic);
    let mut fetch = fetch_request("", 0);
    fetch.topics[0].topic_id = topic_id;
    let Response::Fetch(answer) = world.send((fetch.into(), 16)) else { panic!("other") };
    let topic = &answer.responses[0];
    let code = topic.partitions[0].error_code;
    assert_eq!((code, topic.topic.as_str(), topic.topic_id), (refused, "", topic_id));
    world.deny(Operation::Write, Kind::Topic);
    let mut produce = produce_request("", batch(&["a"]), -1);
    produce.topic_data[0].topic_id = topic_id;
    let Response::Produce(answer) = world.send((produce.into(), 13)) else { panic!("other") };
    let topic = &answer.responses[0];
    let code = topic.partition_responses[0].error_code;
    assert_eq!((code, topic.name.as_str(), topic.topic_id), (refused, "", topic_id));
}

#[test]
fn internal_topics_are_made_for_clients_that_may_not_create_topics() {
    let mut it = Harness::new(&SMALL);
    it.node.core.access.deny(Operation::Create, Kind::Cluster);
    it.node.core.access.deny(Operation::Create, Kind::Topic);
    it.node.core.access.deny(Operation::Describe, Kind::TransactionalId);
    let find = |key_type| FindCoordinatorRequest {
        key_type,
        coordinator_keys: vec!["any".to_owned()],
        ..Default::default()
    };
    it.ask(find(0), 6);
    it.ask(find(1), 6);
    let is_there = |name| it.node.core.controller.image.topic_named(name).is_some();
    assert_eq!((is_there(GROUPS), is_there(TRANSACTIONS)), (true, false));
}
