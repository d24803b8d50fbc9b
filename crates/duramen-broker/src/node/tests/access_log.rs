//! The topic of verdicts and changes: what comes into it, where, and how much.

use duramen_protocol::batch::BatchView;
use duramen_protocol::records::Records;
use duramen_protocol::{ErrorCode, Request, Response};
use duramen_storage::op::ReplicaId;
use serde_json::Value;

use super::harness::{Harness, Store, batch, fetch_request, produce_request};
use super::trio::Trio;
use crate::access::ACCESS_LOG as TOPIC;
use crate::configs::AUTHORIZER;
use crate::event::ConnectionId;
use crate::limits::ACCESS_LOG_RECORDS_MAX;
use crate::session::Session;

const ON: [(&str, &str); 4] = [
    ("authorizer.class.name", AUTHORIZER),
    ("super.users", "User:ANONYMOUS"),
    ("access.log.topic.enable", "true"),
    ("auto.create.topics.enable", "false"),
];
const ADA: ConnectionId = ConnectionId(777);

/// Makes the session of a client without rights.
fn with_ada(mut it: Harness) -> Harness {
    let anybody = "User:ANONYMOUS".into();
    let mut session = Session::new(ADA, anybody, "SASL".into(), "/10.0.0.1".into());
    session.be("ada");
    it.sessions.insert(ADA, session);
    it
}

fn try_to_produce(it: &mut Harness, topic: &str) -> i16 {
    let request = Request::from(produce_request(topic, batch(&["a"]), -1));
    let id = it.enqueue(ADA, &request, 12);
    it.run();
    match it.response_on(ADA, id).expect("answered at once") {
        Response::Produce(answer) => answer.responses[0].partition_responses[0].error_code,
        other => panic!("{other:?}"),
    }
}

/// Records of a replica.
fn kept(store: &Store, replica: ReplicaId) -> Vec<Value> {
    let stored = &store.replicas[&replica];
    let mut kept = Vec::new();
    for batch in stored.batches(0, i64::MAX) {
        let view = BatchView::parse(&batch).expect("a batch");
        let records = Records::of(&view, usize::MAX).expect("records");
        for record in &records {
            let json = record.expect("a record").value.expect("a value");
            kept.push(serde_json::from_slice(json).expect("JSON"));
        }
    }
    kept
}

fn all(it: &Harness) -> Vec<Value> {
    kept(&it.store, it.replica(TOPIC))
}

/// Words, user, kind and name of each record.
fn brief(records: &[Value]) -> Vec<String> {
    let word = |it: &Value| it.as_str().expect("a text").to_owned();
    let brief = |it: &Value| {
        let resource = &it["resources"][0];
        let parts =
            [&it["message"], &it["actor"]["user"]["name"], &resource["type"], &resource["name"]];
        parts.map(word).join(" ")
    };
    records.iter().map(brief).collect()
}

#[test]
fn denials_and_changes_are_kept_in_a_topic_of_the_nodes() {
    let mut it = with_ada(Harness::new(&ON));
    it.create("t", &[("retention.ms", "5000")]);
    assert_eq!(try_to_produce(&mut it, "t"), ErrorCode::TopicAuthorizationFailed.code());
    it.pass_ms(5_000);
    let records = all(&it);
    assert_eq!(brief(&records), ["topic made ANONYMOUS Topic t", "denied ada Topic t"]);
    assert_eq!(records[1]["src_endpoint"]["ip"], "10.0.0.1");
    assert_eq!(records[1]["dst_endpoint"]["svc_name"], "SASL");
    assert_eq!(records[1]["type_uid"], 600_303);
    assert_eq!(records[0]["status_detail"].as_str().map(|it| it.contains("5000")), Some(true));

    let topic = it.metadata(&[TOPIC]).topics.remove(0);
    assert_eq!((topic.is_internal, topic.partitions.len()), (true, 1));
    assert_eq!(
        it.produce(TOPIC, batch(&["forged"])).error_code,
        ErrorCode::InvalidTopicException.code(),
        "not even a super user writes it"
    );
    let replica = it.replica(TOPIC);
    assert!(it.node.core.partitions[&replica].settings.delete, "its records go after their time");
}

#[test]
fn a_reader_of_the_topic_causes_no_records() {
    let mut it = with_ada(Harness::new(&[&ON[..], &[("access.log", "all")]].concat()));
    it.create("t", &[]);
    it.pass_ms(5_000);
    let before = all(&it).len();
    assert!(
        brief(&all(&it)).contains(&"allowed ANONYMOUS Cluster kafka-cluster".to_owned()),
        "{:?}",
        all(&it)
    );
    for _ in 0..10 {
        assert_eq!(it.fetch(TOPIC, 0).error_code, 0);
        it.pass_ms(1_000);
    }
    assert_eq!(all(&it).len(), before);
    let request = Request::from(fetch_request(TOPIC, 0));
    it.enqueue(ADA, &request, 12);
    it.run();
    it.pass_ms(1_000);
    let records = all(&it);
    assert_eq!(brief(&records[before..]), [format!("denied ada Topic {TOPIC}")]);
}

#[test]
fn nothing_is_kept_unless_that_is_asked_for() {
    for pairs in [&ON[..2], &[&ON[..], &[("access.log", "off")]].concat()] {
        let mut it = with_ada(Harness::new(pairs));
        assert_ne!(try_to_produce(&mut it, "t"), 0);
        it.pass_ms(5_000);
        assert!(it.node.core.controller.image.topic_named(TOPIC).is_none(), "{pairs:?}");
    }
}

#[test]
fn records_beyond_the_bound_are_counted() {
    let mut it = with_ada(Harness::new(&ON));
    it.pass_ms(1_000);
    for number in 0..ACCESS_LOG_RECORDS_MAX + 70 {
        try_to_produce(&mut it, &format!("t{number}"));
    }
    it.pass_ms(5_000);
    try_to_produce(&mut it, "last");
    it.pass_ms(5_000);
    let records = all(&it);
    assert_eq!(records.len() as u64, ACCESS_LOG_RECORDS_MAX + 1);
    let last = records.last().expect("one");
    assert_eq!(last["unmapped"]["records_left_out"], 70);
    let batches = it.store.replicas[&it.replica(TOPIC)].batches(0, i64::MAX);
    assert!(batches.len() > 5, "batches have a size: {}", batches.len());
}

#[test]
fn all_nodes_write_one_log() {
    let mut trio = Trio::new(&ON);
    trio.nodes = trio.nodes.drain(..).map(with_ada).collect();
    for at in 0..3 {
        try_to_produce(&mut trio.nodes[at], &format!("t{at}"));
    }
    trio.pass_ms(6_000);
    let nodes = |trio: &Trio, at: usize| {
        let records = kept(&trio.nodes[at].store, trio.replica(at, TOPIC, 0));
        let node = |it: &Value| it["metadata"]["product"]["uid"].as_str().expect("it").to_owned();
        let mut nodes: Vec<String> = records.iter().map(node).collect();
        nodes.sort();
        nodes
    };
    for at in 0..3 {
        assert_eq!(nodes(&trio, at), ["0", "1", "2"], "each replica has all");
    }

    // What was sent to a leader that is gone is sent again.
    let leader = trio.leader(TOPIC, 0).expect("led");
    trio.cut.insert(leader);
    let other = (leader + 1) % 3;
    try_to_produce(&mut trio.nodes[other], "t");
    trio.pass_ms(20_000);
    let expected = ["0".to_owned(), "1".to_owned(), "2".to_owned(), other.to_string()];
    let mut expected = expected.to_vec();
    expected.sort();
    assert_eq!(nodes(&trio, other), expected);
}
