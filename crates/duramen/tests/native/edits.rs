//! Edits of a real server: no reader sees what they take away, of either protocol, also after a restart.

use std::collections::BTreeMap;
use std::io::Write;
use std::net::TcpStream;
use std::process::{Command, Stdio};

use duramen::proto::rewrite_request::Keep;
use duramen::proto::subscribe_response::Event;
use duramen::proto::{
    Cursor, DeleteQueueRequest, DeleteRequest, EditResponse, EnqueueRequest, FenceQueueRequest,
    FenceRequest, GetElementRequest, GetQueueRequest, Guard, Header, Pointer, Position, Queue,
    ReadRecord, ReadRequest, Record, ReplaceRequest, RetrieveRequest, RewriteRequest,
    SubscribeRequest, TrimQueueRequest, TruncateRequest, cursor, guard,
};
use duramen_client::{Client, Options};
use duramen_protocol::ErrorCode;
use duramen_protocol::batch::batches;
use duramen_protocol::messages::fetch::{FetchPartition, FetchTopic};
use duramen_protocol::messages::produce::{PartitionProduceData, TopicProduceData};
use duramen_protocol::messages::{FetchRequest, ProduceRequest};
use duramen_protocol::records::{BatchBuilder, NewRecord, Records};
use duramen_protocol::wire::RecordData;
use prost::Message;
use serde_json::{Value, json};
use tonic::transport::Channel;
use tonic::{Code, Status};
use tonic_types::StatusExt;

use super::queues::{all, enqueue, retrieve, start};
use super::{Node, QueuesClient, slug};

pub(super) async fn delete(
    queues: &mut QueuesClient<Channel>,
    name: &str,
    positions: &[Position],
) -> EditResponse {
    let request = DeleteRequest {
        topic: "t".into(),
        queue: name.to_owned().into(),
        positions: positions.to_vec(),
        ..DeleteRequest::default()
    };
    queues.delete(request).await.unwrap().into_inner()
}

/// Returns the offsets and values that one fetch of Kafka's shows, and the offset at which its reader goes on.
async fn fetch(client: &Client, from: i64) -> (Vec<(i64, String)>, i64) {
    let partition = FetchPartition {
        fetch_offset: from,
        partition_max_bytes: 1 << 20,
        ..FetchPartition::default()
    };
    let leader = client.leader("t", 0).await.unwrap();
    let (topic, topic_id) = ("t".to_owned(), leader.topic_id);
    let topic = FetchTopic { topic, topic_id, partitions: vec![partition] };
    let request = FetchRequest {
        replica_id: -1,
        // What was just appended is shown once the queue index has it.
        max_wait_ms: 60_000,
        min_bytes: 1,
        max_bytes: 1 << 20,
        session_epoch: -1,
        topics: vec![topic],
        ..FetchRequest::default()
    };
    let response = leader.connection.call(&request).await.unwrap();
    let part = &response.responses[0].partitions[0];
    assert_eq!(part.error_code, 0);
    let Some(RecordData::Bytes(bytes)) = &part.records else { panic!("{part:?}") };
    let (mut shown, mut next) = (Vec::new(), from);
    for batch in batches(bytes.clone()) {
        let batch = batch.unwrap();
        next = batch.header().end_offset();
        if batch.header().attributes.is_control() {
            continue;
        }
        let records = Records::of(&batch, 1 << 20).unwrap();
        for record in &records {
            let record = record.unwrap();
            let value = String::from_utf8(record.value.unwrap().to_vec()).unwrap();
            shown.push((records.offset(&record), value));
        }
    }
    (shown, next)
}

/// Reads the log to its end as a consumer of Kafka does.
pub(super) async fn consume(client: &Client, end: i64) -> Vec<(i64, String)> {
    let (mut all, mut next) = (Vec::new(), 0);
    while next < end {
        let (shown, behind) = fetch(client, next).await;
        assert!(behind > next, "a consumer comes to the end");
        all.extend(shown.into_iter().filter(|(offset, _)| *offset >= next));
        next = behind;
    }
    all
}

pub(super) fn of(shown: &[(i64, &str)]) -> Vec<(i64, String)> {
    shown.iter().map(|(offset, value)| (*offset, (*value).to_owned())).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_element_is_nowhere_to_be_seen() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(dir.path(), 1).await;
    let mut queues = node.queues().await;
    let last = enqueue(&mut queues, "alice", &["a0", "a1", "a2"]).await;
    let at = |offset| Position { offset, ..last };
    let bob = enqueue(&mut queues, "bob", &["b0"]).await;
    let done = delete(&mut queues, "alice", &[at(1), bob]).await;
    assert_eq!((done.absent, done.at.map(|it| it.offset)), (1, Some(4)));
    assert_eq!((done.withdrawn, done.last, done.duplicate), (1, done.at, false));
    assert_eq!(all(&mut queues, "alice", 0).await, ["a0", "a2"]);
    assert_eq!(all(&mut queues, "bob", 0).await, ["b0"]);
    let client = Client::connect(Options::new([node.kafka.to_string()])).await.unwrap();
    assert_eq!(consume(&client, 5).await, of(&[(0, "a0"), (2, "a2"), (3, "b0")]));
    // Of the first batch nothing is left, and of the answer nothing at its end.
    delete(&mut queues, "alice", &[at(0), at(2)]).await;
    delete(&mut queues, "bob", &[bob]).await;
    assert_eq!(all(&mut queues, "alice", 1).await, [""; 0]);
    assert_eq!(consume(&client, 7).await, []);
    enqueue(&mut queues, "alice", &["a3"]).await;
    assert_eq!(consume(&client, 8).await, of(&[(7, "a3")]));
    drop(node);
    let node = Node::start(dir.path());
    let mut queues = node.queues().await;
    assert_eq!(all(&mut queues, "alice", 0).await, ["a3"]);
    let client = Client::connect(Options::new([node.kafka.to_string()])).await.unwrap();
    assert_eq!(consume(&client, 8).await, of(&[(7, "a3")]));
    let again = delete(&mut queues, "alice", &[at(0)]).await;
    assert_eq!((again.at, again.absent), (None, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn deletions_by_http_and_json() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(dir.path(), 1).await;
    let mut queues = node.queues().await;
    let last = enqueue(&mut queues, "alice", &["a0", "a1", "a2"]).await;
    let text = |offset| Position { offset, ..last }.to_string();
    let queue = "/v1/topics/t/queues/alice";
    let (status, done) =
        node.json("DELETE", &format!("{queue}/messages/{}", text(0)), &Value::Null);
    assert_eq!((status, &done["absent"]), (200, &json!(0)), "{done}");
    assert!(done["at"].as_str().unwrap().ends_with(".3.3"), "{done}");
    let (_, again) = node.json("DELETE", &format!("{queue}/messages/{}", text(0)), &Value::Null);
    assert_eq!(again, json!({ "at": null, "last": null, "absent": 1, "withdrawn": 0 }));
    let body = json!({ "positions": [text(2), text(0)] });
    assert_eq!(node.json("POST", &format!("{queue}/delete"), &body).1["absent"], 1);
    let (_, page) = node.json("GET", &format!("{queue}/messages"), &Value::Null);
    assert_eq!(page["elements"].as_array().unwrap().len(), 1, "{page}");
    for (body, field) in [
        (json!({ "positions": [] }), "positions"),
        (json!({ "positions": ["1.2"] }), "positions"),
        (json!({ "positions": [text(0)], "fence": "x".repeat(65) }), "fence"),
    ] {
        let (status, problem) = node.json("POST", &format!("{queue}/delete"), &body);
        assert_eq!((status, &problem["errors"][0]["field"]), (400, &json!(field)), "{problem}");
    }
    let fenced = ["duramen-fence: nobody"];
    let path = format!("{queue}/messages/{}", text(1));
    let (status, problem) = node.ask("DELETE", &path, &fenced, "");
    assert_eq!(status, 412, "{problem}");
    // A reader that waits behind the end is not woken by what goes.
    let waits = RetrieveRequest { wait_ms: 50, ..retrieve("alice", Some(last)) };
    assert!(queues.retrieve(waits).await.unwrap().into_inner().elements.is_empty());
}

fn message(value: &str) -> Record {
    Record { value: Some(value.to_owned().into()), ..Record::default() }
}

fn named(id: &str) -> Record {
    Record { id: Some(id.to_owned()), ..message(id) }
}

fn replacement(position: Position, message: Record) -> ReplaceRequest {
    ReplaceRequest {
        topic: "t".into(),
        queue: "alice".into(),
        position: Some(position),
        message: Some(message),
        ..ReplaceRequest::default()
    }
}

fn rewrite(keep: Keep, messages: &[Record]) -> RewriteRequest {
    RewriteRequest {
        topic: "t".into(),
        queue: "alice".into(),
        keep: Some(keep),
        messages: messages.to_vec(),
        fence: "one".into(),
        ..RewriteRequest::default()
    }
}

fn delete_queue(name: &str) -> DeleteQueueRequest {
    let (topic, queue) = ("t".into(), name.to_owned().into());
    DeleteQueueRequest { topic, queue, ..DeleteQueueRequest::default() }
}

async fn element(
    queues: &mut QueuesClient<Channel>,
    position: Position,
) -> Result<ReadRecord, Status> {
    let (topic, queue) = ("t".into(), "alice".into());
    let request = GetElementRequest { topic, queue, position: Some(position) };
    queues.get_element(request).await.map(tonic::Response::into_inner)
}

/// Enqueues one message behind the last element of a queue.
async fn behind(
    queues: &mut QueuesClient<Channel>,
    last: Option<Position>,
    value: &str,
) -> Result<Position, Status> {
    let last = last.map_or(guard::Last::None(true), guard::Last::At);
    let request = EnqueueRequest {
        topic: "t".into(),
        queue: "alice".into(),
        messages: vec![message(value)],
        guard: Some(Guard { last: Some(last), fence: None }),
        ..EnqueueRequest::default()
    };
    queues.enqueue(request).await.map(|it| it.into_inner().last.unwrap())
}

/// Sets the fence of the log with which the tests rewrite.
async fn fence(node: &Node) {
    let request = FenceRequest { topic: "t".into(), token: "one".into(), ..Default::default() };
    node.logs().await.fence(request).await.unwrap();
}

/// Reads the whole log, with the names and values of headers.
async fn log(node: &Node) -> Vec<(i64, String, BTreeMap<String, String>)> {
    let request = ReadRequest { topic: "t".into(), ..ReadRequest::default() };
    let mut pages = node.logs().await.read(request).await.unwrap().into_inner();
    let mut shown = Vec::new();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    while let Some(page) = pages.message().await.unwrap() {
        for it in page.records {
            let record = it.record.unwrap();
            assert_eq!(it.version, None, "a record of a log has no version");
            let headers = record.headers.iter();
            let headers = headers.map(|it| (it.name.clone(), text(it.value.as_ref().unwrap())));
            shown.push((
                it.position.unwrap().offset,
                text(&record.value.unwrap()),
                headers.collect(),
            ));
        }
    }
    shown
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replaced_element_keeps_its_place() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(dir.path(), 1).await;
    let mut queues = node.queues().await;
    let last = enqueue(&mut queues, "alice", &["a0", "a1", "a2"]).await;
    let at = |offset| Position { offset, ..last };
    let header = Header { name: "kind".into(), value: Some("letter".into()) };
    let edit = Record { headers: vec![header.clone()], id: Some("edit".into()), ..message("new") };
    let replace = replacement(at(1), edit);
    let done = queues.replace(replace.clone()).await.unwrap().into_inner();
    assert_eq!(done.at.map(|it| (it.entry, it.offset)), Some((3, 3)));
    assert_eq!((done.last, done.withdrawn, done.absent, done.duplicate), (done.at, 1, 0, false));
    assert_eq!(all(&mut queues, "alice", 0).await, ["a0", "new", "a2"]);
    assert_eq!(all(&mut queues, "alice", 1).await, ["a0", "new", "a2"]);
    let one = element(&mut queues, at(1)).await.unwrap();
    assert_eq!((one.position, one.version), (Some(at(1)), Some(3)));
    let record = one.record.unwrap();
    assert_eq!((record.headers, record.id.as_deref()), (vec![header], Some("edit")));
    let page = queues.retrieve(retrieve("alice", None)).await.unwrap().into_inner();
    let versions: Vec<_> = page.elements.iter().map(|it| it.version.unwrap()).collect();
    assert_eq!(versions, [0, 3, 2]);
    // An expression sees the element's place, and no header of the broker's.
    let filter = "offset == 1 && headers.kind == 'letter' && size(headers) == 2".to_owned();
    let selective = RetrieveRequest { filter, skip_failed: true, ..retrieve("alice", None) };
    let page = queues.retrieve(selective).await.unwrap().into_inner();
    assert_eq!(page.elements.len(), 1);
    // The log has the new record behind all others, and shows the old one no more.
    let shown = log(&node).await;
    let values: Vec<_> = shown.iter().map(|(offset, value, _)| (*offset, value.as_str())).collect();
    assert_eq!(values, [(0, "a0"), (2, "a2"), (3, "new")]);
    assert_eq!(shown[2].2["duramen-replaces"], at(1).to_string());
    assert_eq!(shown[2].2["kind"], "letter");
    assert_eq!(shown[2].2.len(), 3);
    let client = Client::connect(Options::new([node.kafka.to_string()])).await.unwrap();
    assert_eq!(consume(&client, 4).await, of(&[(0, "a0"), (2, "a2"), (3, "new")]));
    let again = queues.replace(replace.clone()).await.unwrap().into_inner();
    let duplicate = EditResponse { duplicate: true, withdrawn: 0, ..done };
    assert_eq!(again, duplicate);
    drop(node);
    let node = Node::start(dir.path());
    let mut queues = node.queues().await;
    assert_eq!(all(&mut queues, "alice", 0).await, ["a0", "new", "a2"]);
    assert_eq!(queues.replace(replace).await.unwrap().into_inner(), duplicate);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replacement_is_about_one_version_of_one_element() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(dir.path(), 1).await;
    let mut queues = node.queues().await;
    let last = enqueue(&mut queues, "alice", &["a0", "a1"]).await;
    let bob = enqueue(&mut queues, "bob", &["b0"]).await;
    let version = |number, value| ReplaceRequest {
        if_version: Some(number),
        ..replacement(last, message(value))
    };
    let done = queues.replace(version(1, "second")).await.unwrap().into_inner();
    assert_eq!(done.at.map(|it| it.offset), Some(3));
    let refused = queues.replace(version(1, "late")).await.unwrap_err();
    assert_eq!((refused.code(), slug(&refused).as_str()), (Code::Aborted, "version-mismatch"));
    assert_eq!(refused.get_details_error_info().unwrap().metadata["version"], "3");
    queues.replace(version(3, "third")).await.unwrap();
    assert_eq!(all(&mut queues, "alice", 0).await, ["a0", "third"]);
    // A guard names the element that was appended last, whatever its content is.
    behind(&mut queues, Some(last), "a2").await.unwrap();
    let deleted = delete(&mut queues, "alice", &[last]).await;
    assert_eq!((deleted.withdrawn, deleted.absent), (1, 0));
    let nowhere = Position { offset: 4, entry: 4, ..last };
    for gone in [last, nowhere, bob] {
        let refused = queues.replace(replacement(gone, message("x"))).await.unwrap_err();
        assert_eq!(
            (refused.code(), slug(&refused).as_str()),
            (Code::NotFound, "unknown-element"),
            "{gone}"
        );
        assert_eq!(slug(&element(&mut queues, gone).await.unwrap_err()), "unknown-element");
    }
    assert_eq!(all(&mut queues, "alice", 0).await, ["a0", "a2"]);
    assert_eq!(all(&mut queues, "bob", 0).await, ["b0"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn replacements_by_http() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(dir.path(), 1).await;
    let last = enqueue(&mut node.queues().await, "alice", &["a0"]).await;
    let path = format!("/v1/topics/t/queues/alice/messages/{last}");
    let put = |headers: &[&str], body: &str| {
        let (status, text) = node.ask("PUT", &path, headers, body);
        (status, serde_json::from_str::<Value>(&text).unwrap())
    };
    let shown = || node.json("GET", &path, &Value::Null).1;
    assert_eq!((&shown()["version"], &shown()["value"]), (&json!(0), &json!("a0")));
    let (status, done) = put(&["if-match: \"0\"", "duramen-header-kind: letter"], "raw");
    assert_eq!((status, &done["version"]), (200, &json!(1)), "{done}");
    assert_eq!((&done["at"], &done["withdrawn"]), (&done["last"], &json!(1)), "{done}");
    let element = shown();
    assert_eq!((&element["version"], &element["value"]), (&json!(1), &json!("raw")));
    assert_eq!(element["headers"], json!({ "kind": "letter" }));
    assert_eq!(element["position"], last.to_string());
    let (status, problem) = put(&["if-match: \"0\""], "late");
    assert_eq!((status, &problem["version"]), (412, &json!(1)), "{problem}");
    assert_eq!(problem["type"], "/problems/version-mismatch");
    let json = "content-type: application/json";
    let (status, done) = put(&[json, "if-match: \"1\""], r#"{"json":{"n":1},"id":"one"}"#);
    assert_eq!((status, &done["version"]), (200, &json!(2)), "{done}");
    let (_, again) = put(&[json], r#"{"json":{"n":1},"id":"one"}"#);
    assert_eq!((&again["version"], &again["duplicate"]), (&json!(2), &json!(true)), "{again}");
    assert_eq!((&shown()["value"], &shown()["id"]), (&json!("{\"n\":1}"), &json!("one")));
    let protobuf = ["content-type: application/x-protobuf", "accept: application/x-protobuf"];
    let request = ReplaceRequest { if_version: Some(2), ..replacement(last, message("p")) };
    let (status, body) = node.send("PUT", &path, &protobuf, &request.encode_to_vec());
    let done = EditResponse::decode(&body[..]).unwrap();
    assert_eq!((status, done.at.map(|it| it.offset)), (200, Some(3)));
    for (headers, body, field) in [
        (&["if-match: 3"][..], "x", "if-match"),
        (&["if-match: \"\""], "x", "if-match"),
        (&["if-match: \"+3\""], "x", "if-match"),
        (&["if-match: \"3\", \"4\""], "x", "if-match"),
        (&["duramen-if-last: none"], "x", "duramen-if-last"),
        (&["duramen-key: bob"], "x", "duramen-key"),
        (&[json], r#"{"headers":{"duramen-if-last":"none"}}"#, "messages"),
        (&[json], r#"{"headers":{"duramen-replaces":"1.0.0"}}"#, "records"),
        (&[json], r#"{"headers":{"duramen-fact":"x"}}"#, "records"),
        (&[json], r#"{"values":"x"}"#, "body"),
    ] {
        let (status, problem) = put(headers, body);
        assert_eq!((status, &problem["errors"][0]["field"]), (400, &json!(field)), "{problem}");
    }
    let mut stream = TcpStream::connect(node.native).unwrap();
    let head = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    let answer = std::io::read_to_string(stream).unwrap();
    assert!(answer.contains("\r\netag: \"3\"\r\n"), "{answer}");
    let (status, problem) = put(&["duramen-fence: nobody"], "x");
    assert_eq!((status, &problem["type"]), (412, &json!("/problems/fenced")), "{problem}");
    assert_eq!(node.json("DELETE", &path, &Value::Null).0, 200);
    let (status, problem) = put(&[], "x");
    assert_eq!((status, &problem["type"]), (404, &json!("/problems/unknown-element")), "{problem}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rewrite_puts_other_elements_behind_a_position() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(dir.path(), 1).await;
    let mut queues = node.queues().await;
    let last = enqueue(&mut queues, "alice", &["a0", "a1", "a2"]).await;
    let at = |offset| Position { offset, ..last };
    enqueue(&mut queues, "bob", &["b0"]).await;
    // Its content is behind the cut, and its place is not.
    queues.replace(replacement(at(0), message("new"))).await.unwrap();
    fence(&node).await;
    let wanted = rewrite(Keep::After(at(0)), &[named("c1"), named("c2")]);
    let done = queues.rewrite(wanted.clone()).await.unwrap().into_inner();
    assert_eq!((done.withdrawn, done.absent, done.duplicate), (2, 0, false));
    let (first, end) = (done.at.unwrap(), done.last.unwrap());
    assert_eq!(
        (first.entry, end.entry, end.offset),
        (first.offset, first.offset, first.offset + 1)
    );
    assert_eq!(all(&mut queues, "alice", 0).await, ["new", "c1", "c2"]);
    assert_eq!(all(&mut queues, "bob", 0).await, ["b0"]);
    let again = queues.rewrite(wanted.clone()).await.unwrap().into_inner();
    assert_eq!(again, EditResponse { duplicate: true, withdrawn: 0, ..done });
    assert_eq!(all(&mut queues, "alice", 0).await, ["new", "c1", "c2"]);
    let shown = element(&mut queues, first).await.unwrap().record.unwrap();
    assert_eq!((shown.headers, shown.id.as_deref()), (Vec::new(), Some("c1")));
    let of_log = log(&node).await;
    let values: Vec<_> = of_log.iter().map(|(_, value, _)| value.as_str()).collect();
    assert_eq!(values, ["b0", "new", "c1", "c2"]);
    assert_eq!(of_log[2].2["duramen-cuts-after"], at(0).to_string());
    assert!(of_log[3].2.is_empty(), "the first record alone says it");
    // A reader goes on behind what it had, and the next append behind the new last element.
    let page = queues.retrieve(retrieve("alice", Some(last))).await.unwrap().into_inner();
    assert_eq!(page.elements.len(), 2);
    let refused = behind(&mut queues, Some(last), "x").await.unwrap_err();
    assert_eq!(slug(&refused), "last-mismatch");
    assert_eq!(refused.get_details_error_info().unwrap().metadata["last"], end.to_string());
    behind(&mut queues, Some(end), "c3").await.unwrap();
    // What came meanwhile goes, too.
    let third = queues.rewrite(wanted).await.unwrap().into_inner();
    assert_eq!((third.withdrawn, third.duplicate), (3, false));
    node.stop();
    let node = Node::start(dir.path());
    let mut queues = node.queues().await;
    assert_eq!(all(&mut queues, "alice", 1).await, ["new", "c1", "c2"]);
    behind(&mut queues, third.last, "c3").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rewrite_without_messages_is_a_cut() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(dir.path(), 1).await;
    let mut queues = node.queues().await;
    let last = enqueue(&mut queues, "alice", &["a0", "a1", "a2"]).await;
    let first = Position { offset: 0, ..last };
    fence(&node).await;
    let cut = rewrite(Keep::After(first), &[]);
    let done = queues.rewrite(cut.clone()).await.unwrap().into_inner();
    assert_eq!((done.withdrawn, done.at), (2, done.last));
    assert_eq!(all(&mut queues, "alice", 0).await, ["a0"]);
    let again = queues.rewrite(cut).await.unwrap().into_inner();
    assert_eq!((again.withdrawn, again.at), (0, None), "there was nothing to say");
    let next = behind(&mut queues, Some(first), "a3").await.unwrap();
    let (topic, queue) = ("t".into(), "alice".into());
    let told = queues.get_queue(GetQueueRequest { topic, queue }).await.unwrap().into_inner();
    assert_eq!((told.first, told.last, told.about_elements), (Some(first), Some(next), 2));
    let afresh = rewrite(Keep::None(true), &[message("b0")]);
    assert_eq!(queues.rewrite(afresh).await.unwrap().into_inner().withdrawn, 2);
    assert_eq!(all(&mut queues, "alice", 0).await, ["b0"]);
    let of_log = log(&node).await;
    assert_eq!(of_log.len(), 1, "{of_log:?}");
    assert_eq!(of_log[0].2["duramen-cuts-after"], "none");
    assert_eq!(
        queues.rewrite(rewrite(Keep::None(true), &[])).await.unwrap().into_inner().withdrawn,
        1
    );
    assert_eq!(all(&mut queues, "alice", 0).await, [""; 0]);
    behind(&mut queues, None, "c0").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn rewrites_by_http() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(dir.path(), 1).await;
    let mut queues = node.queues().await;
    let last = enqueue(&mut queues, "alice", &["a0", "a1", "a2"]).await;
    let text = Position { offset: 0, ..last }.to_string();
    fence(&node).await;
    let path = "/v1/topics/t/queues/alice/rewrite";
    for (body, field) in [
        (json!({ "after": text }), "fence"),
        (json!({ "after": text, "fence": "" }), "fence"),
        (json!({ "after": text, "fence": "x".repeat(65) }), "fence"),
        (json!({ "fence": "one" }), "after"),
        (json!({ "after": "1.2", "fence": "one" }), "after"),
        (json!({ "after": text, "none": true, "fence": "one" }), "none"),
        (json!({ "none": true, "fence": "one", "reason": "x".repeat(1025) }), "reason"),
        (json!({ "none": true, "fence": "one", "message": [] }), "body"),
        (
            json!({ "none": true, "fence": "one", "messages": [{ "id": "a" }, { "value": "b" }] }),
            "messages",
        ),
    ] {
        let (status, problem) = node.json("POST", path, &body);
        assert_eq!((status, &problem["errors"][0]["field"]), (400, &json!(field)), "{problem}");
    }
    let (status, problem) = node.json("POST", path, &json!({ "none": true, "fence": "two" }));
    assert_eq!((status, &problem["type"]), (412, &json!("/problems/fenced")), "{problem}");
    assert_eq!(all(&mut queues, "alice", 0).await, ["a0", "a1", "a2"]);
    let body = json!({
        "after": text, "fence": "one", "reason": "a test",
        "messages": [{ "value": "b1", "id": "1" }, { "json": 2, "id": "2" }],
    });
    let (status, done) = node.json("POST", path, &body);
    assert_eq!((status, &done["withdrawn"], done.get("duplicate")), (200, &json!(2), None));
    let (_, again) = node.json("POST", path, &body);
    let positions = (&again["at"], &again["last"], &again["duplicate"]);
    assert_eq!(positions, (&done["at"], &done["last"], &json!(true)));
    assert_eq!(all(&mut queues, "alice", 0).await, ["a0", "b1", "2"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_queue_is_as_one_without_elements() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(dir.path(), 1).await;
    let mut queues = node.queues().await;
    enqueue(&mut queues, "alice", &["a0", "a1"]).await;
    enqueue(&mut queues, "bob", &["b0"]).await;
    let done = queues.delete_queue(delete_queue("alice")).await.unwrap().into_inner();
    assert_eq!((done.withdrawn, done.absent, done.at), (2, 0, done.last));
    assert_eq!(all(&mut queues, "alice", 0).await, [""; 0]);
    assert_eq!(all(&mut queues, "bob", 0).await, ["b0"]);
    let of = |name: &str| GetQueueRequest { topic: "t".into(), queue: name.to_owned().into() };
    let told = queues.get_queue(of("alice")).await.unwrap().into_inner();
    assert_eq!((told.first, told.last, told.about_elements), (None, None, 0));
    let again = queues.delete_queue(delete_queue("alice")).await.unwrap().into_inner();
    assert_eq!((again.withdrawn, again.at), (0, None));
    let next = behind(&mut queues, None, "a2").await.unwrap();
    assert_eq!(all(&mut queues, "alice", 0).await, ["a2"]);
    let told = queues.get_queue(of("alice")).await.unwrap().into_inner();
    assert_eq!((told.first, told.last, told.about_elements), (Some(next), Some(next), 1));
    let path = "/v1/topics/t/queues/alice";
    let (status, problem) = node.ask("DELETE", path, &["duramen-fence: nobody"], "");
    assert_eq!(status, 412, "{problem}");
    let (status, done) = node.json("DELETE", path, &Value::Null);
    assert_eq!((status, &done["withdrawn"]), (200, &json!(1)), "{done}");
    drop(node);
    let node = Node::start(dir.path());
    let mut queues = node.queues().await;
    assert_eq!(all(&mut queues, "alice", 0).await, [""; 0]);
    assert_eq!(all(&mut queues, "bob", 0).await, ["b0"]);
    behind(&mut queues, None, "a3").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_without_records_is_edited_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(dir.path(), 1).await;
    let mut queues = node.queues().await;
    let nothing = DeleteQueueRequest { timeout_ms: 5_000, ..delete_queue("alice") };
    let done = queues.delete_queue(nothing).await.unwrap().into_inner();
    assert_eq!(done, EditResponse::default());
    fence(&node).await;
    let first = RewriteRequest { timeout_ms: 5_000, ..rewrite(Keep::None(true), &[message("a")]) };
    queues.rewrite(first).await.unwrap();
    assert_eq!(all(&mut queues, "alice", 0).await, ["a"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_of_the_log_passes_deleted_elements_of_later_terms() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(dir.path(), 1).await;
    enqueue(&mut node.queues().await, "alice", &["a0"]).await;
    drop(node);
    let node = Node::start(dir.path());
    let mut queues = node.queues().await;
    let gone = enqueue(&mut queues, "alice", &["a1"]).await;
    delete(&mut queues, "alice", &[gone]).await;
    enqueue(&mut queues, "alice", &["a2"]).await;
    let values: Vec<_> = log(&node).await.into_iter().map(|(_, value, _)| value).collect();
    assert_eq!(values, ["a0", "a2"]);
}

/// Runs `duramen queue` with a text at its stdin. Returns its exit code, its output and its complaints.
fn command(node: &Node, arguments: &[&str], input: &str) -> (i32, String, String) {
    command_of("queue", node, arguments, input)
}

fn command_of(group: &str, node: &Node, arguments: &[&str], input: &str) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_duramen"));
    command.arg(group).args(arguments).args(["--native", &node.native.to_string()]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // A command that needs no input may be over.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    let done = child.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (done.status.code().unwrap(), text(done.stdout), text(done.stderr))
}

#[tokio::test(flavor = "multi_thread")]
async fn queues_are_edited_by_commands() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(dir.path(), 1).await;
    let mut queues = node.queues().await;
    let last = enqueue(&mut queues, "alice", &["a0", "a1", "a2"]).await;
    let position = |offset| Position { offset, ..last }.to_string();
    let (first, second) = (position(0), position(1));
    let done = |arguments: &[&str], input: &str| {
        let (code, out, complaint) = command(&node, arguments, input);
        assert_eq!((code, complaint.as_str()), (0, ""), "{arguments:?}: {out}");
        out
    };
    let edit = ["edit", "t", "alice", &second];
    let told = done(&[&edit[..], &["by argument", "--id", "one"]].concat(), "");
    assert_eq!(told, format!("{second} has version 3\n"));
    let told = done(&[&edit[..], &["by argument", "--id", "one"]].concat(), "");
    assert_eq!(told, format!("{second} has version 3, by an earlier attempt\n"));
    let by_stdin = [&edit[..], &["--if-version", "3", "--output", "json"]].concat();
    let told: Value = serde_json::from_str(&done(&by_stdin, "by\nstdin")).unwrap();
    assert_eq!(told, json!({ "position": second, "version": 4, "duplicate": false }));
    assert_eq!(all(&mut queues, "alice", 0).await, ["a0", "by\nstdin", "a2"]);
    let (code, _, complaint) = command(&node, &by_stdin, "late");
    assert_eq!(code, 1);
    assert!(complaint.contains("version-mismatch") && complaint.contains('4'), "{complaint}");
    let shown = done(&["retrieve", "t", "alice", "--output", "json"], "");
    let shown: Vec<Value> = shown.lines().map(|it| serde_json::from_str(it).unwrap()).collect();
    assert_eq!((&shown[1]["version"], &shown[1]["position"]), (&json!(4), &json!(second)));
    let rewrite = ["rewrite", "t", "alice", "--after", &first, "--fence", "one"];
    let (code, _, complaint) = command(&node, &rewrite, "");
    assert_eq!(code, 1, "{complaint}");
    fence(&node).await;
    let told = done(&rewrite, "b1\nb2\n");
    assert!(told.starts_with("withdrawn 2; appended from "), "{told}");
    assert_eq!(all(&mut queues, "alice", 0).await, ["a0", "b1", "b2"]);
    let cut = [&rewrite[..], &["--reason", "a test", "--output", "json"]].concat();
    let told: Value = serde_json::from_str(&done(&cut, "")).unwrap();
    assert_eq!((&told["withdrawn"], &told["at"]), (&json!(2), &told["last"]), "{told}");
    assert_eq!(all(&mut queues, "alice", 0).await, ["a0"]);
    let afresh = ["rewrite", "t", "alice", "--after", "none", "--fence", "one"];
    done(&afresh, "c0\nc1\n");
    assert_eq!(all(&mut queues, "alice", 0).await, ["c0", "c1"]);
    for wrong in [
        &["rewrite", "t", "alice", "--after", "1.2", "--fence", "one"][..],
        &["rewrite", "t", "alice", "--after", "none"],
        &["delete", "t", "alice", &first, "--all"],
        &["delete", "t", "alice"],
    ] {
        assert_eq!(command(&node, wrong, "").0, 2, "{wrong:?}");
    }
    assert_eq!(done(&["delete", "t", "alice", "--all"], ""), "deleted 2\n");
    assert_eq!(all(&mut queues, "alice", 0).await, [""; 0]);
}

fn trim(name: &str, through: Position) -> TrimQueueRequest {
    let (topic, queue) = ("t".into(), name.to_owned().into());
    TrimQueueRequest { topic, queue, through: Some(through), ..TrimQueueRequest::default() }
}

/// Returns a pointer to a state that has the elements up to a position.
fn pointer(position: Position) -> Pointer {
    let sha256 = vec![7; 32].into();
    let (uri, note) = ("s3://state".to_owned(), "a test".to_owned());
    Pointer { uri, position: Some(position), sha256, note }
}

async fn get(queues: &mut QueuesClient<Channel>, name: &str) -> Queue {
    let (topic, queue) = ("t".into(), name.to_owned().into());
    queues.get_queue(GetQueueRequest { topic, queue }).await.unwrap().into_inner()
}

/// Sets the fence of a queue, if its own is the expected one.
async fn fence_queue(
    queues: &mut QueuesClient<Channel>,
    name: &str,
    token: &str,
    if_token: Option<&str>,
) -> Result<EditResponse, Status> {
    let request = FenceQueueRequest {
        topic: "t".into(),
        queue: name.to_owned().into(),
        token: token.to_owned().into(),
        if_token: if_token.map(|it| it.to_owned().into()),
        timeout_ms: 0,
    };
    queues.fence_queue(request).await.map(tonic::Response::into_inner)
}

/// Enqueues one message with a token, or without one. Returns the slug of a refusal.
async fn with_token(
    queues: &mut QueuesClient<Channel>,
    name: &str,
    token: Option<&str>,
) -> Result<(), String> {
    let guard = token.map(|token| Guard { last: None, fence: Some(token.to_owned().into()) });
    let request = EnqueueRequest {
        topic: "t".into(),
        queue: name.to_owned().into(),
        messages: vec![message("x")],
        guard,
        ..EnqueueRequest::default()
    };
    queues.enqueue(request).await.map(drop).map_err(|it| slug(&it))
}

fn fenced() -> Result<(), String> {
    Err("fenced".to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_of_a_trimmed_queue_begin_behind_the_trim() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(dir.path(), 1).await;
    let mut queues = node.queues().await;
    let last = enqueue(&mut queues, "alice", &["a0", "a1", "a2"]).await;
    let at = |offset| Position { offset, ..last };
    enqueue(&mut queues, "bob", &["b0"]).await;
    // Its place is trimmed, wherever its content is.
    queues.replace(replacement(at(1), message("new"))).await.unwrap();
    let wanted = TrimQueueRequest { pointer: Some(pointer(at(1))), ..trim("alice", at(1)) };
    let done = queues.trim_queue(wanted.clone()).await.unwrap().into_inner();
    assert_eq!((done.withdrawn, done.absent, done.duplicate), (0, 0, false));
    assert_eq!((done.at.map(|it| it.offset), done.last), (Some(5), done.at));
    for limit in [0, 1] {
        assert_eq!(all(&mut queues, "alice", limit).await, ["a2"]);
        assert_eq!(all(&mut queues, "bob", limit).await, ["b0"]);
    }
    // Readers that say where they are learn what is gone.
    let refused = queues.retrieve(retrieve("alice", Some(at(0)))).await.unwrap_err();
    assert_eq!((refused.code(), slug(&refused).as_str()), (Code::OutOfRange, "trimmed"));
    let info = refused.get_details_error_info().unwrap();
    assert_eq!(info.metadata["first"], "2");
    let told: Value = serde_json::from_str(&info.metadata["pointer"]).unwrap();
    let position = format!("{}.{}.{}", at(1).term, at(1).entry, at(1).offset);
    let sha256 = "07".repeat(32);
    let whole =
        json!({ "uri": "s3://state", "position": position, "sha256": sha256, "note": "a test" });
    assert_eq!(told, whole);
    let skips = RetrieveRequest { skip_trimmed: true, ..retrieve("alice", Some(at(0))) };
    let page = queues.retrieve(skips).await.unwrap().into_inner();
    assert_eq!((page.skipped, page.elements.len()), (true, 1));
    assert_eq!(page.elements[0].position, Some(last));
    let begin = queues.retrieve(retrieve("alice", None)).await.unwrap().into_inner();
    assert!(!begin.skipped);
    let behind_it = queues.retrieve(retrieve("alice", Some(at(1)))).await.unwrap().into_inner();
    assert_eq!((behind_it.skipped, behind_it.elements.len()), (false, 1));
    for gone in [at(0), at(1)] {
        assert_eq!(slug(&element(&mut queues, gone).await.unwrap_err()), "unknown-element");
        let refused = queues.replace(replacement(gone, message("x"))).await.unwrap_err();
        assert_eq!(slug(&refused), "unknown-element");
    }
    let told = get(&mut queues, "alice").await;
    assert_eq!((told.first, told.last), (Some(last), Some(last)));
    assert_eq!((told.pointer, told.fence.len()), (Some(pointer(at(1))), 0));
    assert_eq!(get(&mut queues, "bob").await.pointer, None);
    // The log keeps them.
    let values: Vec<_> = log(&node).await.into_iter().map(|(_, value, _)| value).collect();
    assert_eq!(values, ["a0", "a2", "b0", "new"]);
    let client = Client::connect(Options::new([node.kafka.to_string()])).await.unwrap();
    let shown = of(&[(0, "a0"), (2, "a2"), (3, "b0"), (4, "new")]);
    assert_eq!(consume(&client, 6).await, shown);
    // What the log keeps may still be deleted there.
    let deleted = delete(&mut queues, "alice", &[at(0)]).await;
    assert_eq!((deleted.absent, deleted.withdrawn), (0, 1));
    assert_eq!(consume(&client, 7).await, of(&[(2, "a2"), (3, "b0"), (4, "new")]));
    // There is no way back, and nothing to say twice.
    for earlier in [trim("alice", at(0)), wanted] {
        assert_eq!(queues.trim_queue(earlier).await.unwrap().into_inner(), EditResponse::default());
    }
    assert_eq!(get(&mut queues, "alice").await.pointer, Some(pointer(at(1))));
    // A guard names what it named before, and a trim may take all.
    let end = behind(&mut queues, Some(last), "a3").await.unwrap();
    queues.trim_queue(trim("alice", end)).await.unwrap();
    assert_eq!(all(&mut queues, "alice", 0).await, [""; 0]);
    let told = get(&mut queues, "alice").await;
    assert_eq!((told.first, told.last, told.pointer), (None, Some(end), None));
    behind(&mut queues, Some(end), "a4").await.unwrap();
    let far = Position { offset: 1_000, ..last };
    let refused = queues.trim_queue(trim("alice", far)).await.unwrap_err();
    assert_eq!(slug(&refused), "position-diverged");
    drop(node);
    let node = Node::start(dir.path());
    assert_eq!(all(&mut node.queues().await, "alice", 0).await, ["a4"]);
}

/// Names of the first so many events of a subscription to alice.
async fn events(
    queues: &mut QueuesClient<Channel>,
    start: Option<cursor::Start>,
    skip_trimmed: bool,
    count: usize,
) -> Result<Vec<&'static str>, Status> {
    let cursors = vec![Cursor { queue: "alice".into(), start }];
    let request =
        SubscribeRequest { topic: "t".into(), cursors, skip_trimmed, ..Default::default() };
    let mut stream = queues.subscribe(request).await?.into_inner();
    let mut names = Vec::new();
    while names.len() < count {
        names.push(match stream.message().await?.unwrap().event.unwrap() {
            Event::Element(_) => "element",
            Event::Trimmed(_) => "trimmed",
            Event::CaughtUp(_) => "caught_up",
            Event::Heartbeat(_) => "heartbeat",
        });
    }
    Ok(names)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subscriber_hears_that_its_queue_is_trimmed() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(dir.path(), 1).await;
    let mut queues = node.queues().await;
    let last = enqueue(&mut queues, "alice", &["a0", "a1", "a2"]).await;
    let at = |offset| Position { offset, ..last };
    queues.trim_queue(trim("alice", at(1))).await.unwrap();
    let after = |offset| Some(cursor::Start::After(at(offset)));
    let refused = events(&mut queues, after(0), false, 1).await.unwrap_err();
    assert_eq!(slug(&refused), "trimmed");
    let told = events(&mut queues, after(0), true, 3).await.unwrap();
    assert_eq!(told, ["trimmed", "element", "caught_up"]);
    for start in [None, after(1)] {
        let told = events(&mut queues, start, false, 2).await.unwrap();
        assert_eq!(told, ["element", "caught_up"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_trim_is_passed_in_one_go() {
    const BATCHES: usize = 300;
    let dir = tempfile::tempdir().unwrap();
    let node = start(dir.path(), 1).await;
    let mut queues = node.queues().await;
    let first = enqueue(&mut queues, "alice", &["a"]).await;
    let mut through = first;
    for _ in 0..BATCHES {
        through = enqueue(&mut queues, "alice", &["a"]).await;
    }
    enqueue(&mut queues, "alice", &["b"]).await;
    queues.trim_queue(trim("alice", through)).await.unwrap();
    assert_eq!(all(&mut queues, "alice", 0).await, ["b"]);
    let told = events(&mut queues, None, false, 2).await.unwrap();
    assert_eq!(told, ["element", "caught_up"]);
    let after = Some(cursor::Start::After(first));
    let told = events(&mut queues, after, true, 3).await.unwrap();
    assert_eq!(told, ["trimmed", "element", "caught_up"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fence_of_a_queue_goes_before_that_of_its_log() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(dir.path(), 1).await;
    let mut queues = node.queues().await;
    // A queue is there once it is used.
    let done = fence_queue(&mut queues, "alice", "mine", Some("")).await.unwrap();
    assert!(done.at.is_some() && done.withdrawn == 0, "{done:?}");
    let again = fence_queue(&mut queues, "alice", "mine", None).await.unwrap();
    assert_eq!(again, EditResponse::default());
    assert_eq!(get(&mut queues, "alice").await.fence, "mine");
    assert_eq!(with_token(&mut queues, "alice", Some("mine")).await, Ok(()));
    assert_eq!(with_token(&mut queues, "alice", None).await, Ok(()));
    assert_eq!(with_token(&mut queues, "alice", Some("other")).await, fenced());
    // Another queue has none, and the log's then.
    assert_eq!(with_token(&mut queues, "bob", Some("mine")).await, fenced());
    fence(&node).await;
    assert_eq!(with_token(&mut queues, "bob", Some("one")).await, Ok(()));
    assert_eq!(with_token(&mut queues, "bob", Some("mine")).await, fenced());
    assert_eq!(with_token(&mut queues, "alice", Some("one")).await, fenced());
    assert_eq!(with_token(&mut queues, "alice", Some("mine")).await, Ok(()));
    assert_eq!(get(&mut queues, "bob").await.fence.len(), 0);
    for wrong in ["", "other", "one"] {
        let refused = fence_queue(&mut queues, "alice", "next", Some(wrong)).await.unwrap_err();
        assert_eq!(
            (refused.code(), slug(&refused).as_str()),
            (Code::FailedPrecondition, "fenced"),
            "{wrong}"
        );
    }
    fence_queue(&mut queues, "alice", "next", Some("mine")).await.unwrap();
    assert_eq!(with_token(&mut queues, "alice", Some("mine")).await, fenced());
    // A rewrite of all is no deletion of the queue: its owner keeps it.
    let afresh = RewriteRequest { fence: "next".into(), ..rewrite(Keep::None(true), &[]) };
    queues.rewrite(afresh).await.unwrap();
    assert_eq!(get(&mut queues, "alice").await.fence, "next");
    assert_eq!(with_token(&mut queues, "alice", Some("next")).await, Ok(()));
    // Every edit is judged so.
    let last = get(&mut queues, "alice").await.last.unwrap();
    for (token, is_right) in [("mine", false), ("one", false), ("next", true)] {
        let told = |answer: Result<tonic::Response<EditResponse>, Status>| {
            answer.map(drop).map_err(|it| slug(&it))
        };
        let expected = if is_right { Ok(()) } else { fenced() };
        let fence = Some(token.into());
        let replace = ReplaceRequest { fence: fence.clone(), ..replacement(last, message("new")) };
        assert_eq!(told(queues.replace(replace).await), expected, "{token}");
        let nothing = Position { entry: 0, offset: 0, ..last };
        let deleted = DeleteRequest {
            topic: "t".into(),
            queue: "alice".into(),
            positions: vec![nothing],
            fence: fence.clone(),
            timeout_ms: 0,
        };
        assert_eq!(told(queues.delete(deleted).await), expected, "{token}");
        let rest = RewriteRequest { fence: token.into(), ..rewrite(Keep::After(last), &[]) };
        assert_eq!(told(queues.rewrite(rest).await), expected, "{token}");
        let trimmed = TrimQueueRequest { fence: fence.clone(), ..trim("alice", last) };
        assert_eq!(told(queues.trim_queue(trimmed).await), expected, "{token}");
        let deleted = DeleteQueueRequest { fence, ..delete_queue("alice") };
        assert_eq!(told(queues.delete_queue(deleted).await), expected, "{token}");
    }
    // The queue went, and its fence and trim with it.
    let told = get(&mut queues, "alice").await;
    assert_eq!((told.fence.len(), told.pointer, told.first), (0, None, None));
    assert_eq!(with_token(&mut queues, "alice", Some("next")).await, fenced());
    assert_eq!(with_token(&mut queues, "alice", Some("one")).await, Ok(()));
    assert_eq!(all(&mut queues, "alice", 0).await, ["x"]);
    fence_queue(&mut queues, "alice", "last", Some("")).await.unwrap();
    assert_eq!(with_token(&mut queues, "alice", Some("one")).await, fenced());
    fence_queue(&mut queues, "alice", "", Some("last")).await.unwrap();
    assert_eq!(with_token(&mut queues, "alice", Some("last")).await, fenced());
    assert_eq!(with_token(&mut queues, "alice", Some("one")).await, Ok(()));
}

/// Produces records by Kafka's protocol, the first with a header `duramen-fence`. Returns the error code.
async fn produce(client: &Client, token: &str, keys: &[&str]) -> i16 {
    let mut batch = BatchBuilder::new();
    let guard: &[_] = &[("duramen-fence", Some(token.as_bytes()))];
    for (number, key) in keys.iter().enumerate() {
        let headers = if number == 0 { guard } else { &[] };
        let (key, value) = (Some(key.as_bytes()), Some(&b"k"[..]));
        batch.push(&NewRecord { key, value, headers, ..NewRecord::default() }).unwrap();
    }
    let records = Some(batch.build().unwrap());
    let partition_data = [PartitionProduceData { index: 0, records }].into();
    let topic_data =
        [TopicProduceData { name: "t".into(), partition_data, ..Default::default() }].into();
    let request =
        ProduceRequest { transactional_id: None, acks: -1, timeout_ms: 30_000, topic_data };
    let answer = client.call_any(&request).await.unwrap();
    answer.responses[0].partition_responses[0].error_code
}

#[tokio::test(flavor = "multi_thread")]
async fn kafkas_producers_name_the_fence_of_their_queue() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(dir.path(), 1).await;
    let mut queues = node.queues().await;
    fence(&node).await;
    fence_queue(&mut queues, "alice", "mine", None).await.unwrap();
    let client = Client::connect(Options::new([node.kafka.to_string()])).await.unwrap();
    let refused = ErrorCode::PolicyViolation.code();
    for (token, keys, code) in [
        ("mine", &["alice", "alice"][..], 0),
        ("one", &["alice", "alice"], refused),
        ("one", &["bob"], 0),
        ("mine", &["bob"], refused),
        ("one", &["alice", "bob"], 0),
        ("mine", &["alice", "bob"], refused),
    ] {
        assert_eq!(produce(&client, token, keys).await, code, "{token} for {keys:?}");
    }
}

/// Asserts that alice has her fence and trim, whatever the log has lost.
async fn assert_kept(queues: &mut QueuesClient<Channel>, pointer: &Pointer) {
    let told = get(queues, "alice").await;
    assert_eq!((&told.fence[..], told.pointer.as_ref()), (&b"mine"[..], Some(pointer)));
    assert_eq!(with_token(queues, "alice", Some("zero")).await, fenced());
    assert_eq!(with_token(queues, "alice", Some("one")).await, fenced());
    assert_eq!(with_token(queues, "alice", Some("mine")).await, Ok(()));
}

#[tokio::test(flavor = "multi_thread")]
async fn fences_and_trims_outlive_the_process_and_the_records() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(dir.path(), 1).await;
    let mut queues = node.queues().await;
    let last = enqueue(&mut queues, "alice", &["a0", "a1", "a2"]).await;
    let at = |offset| Position { offset, ..last };
    enqueue(&mut queues, "bob", &["b0"]).await;
    fence(&node).await;
    fence_queue(&mut queues, "alice", "zero", None).await.unwrap();
    fence_queue(&mut queues, "alice", "mine", Some("zero")).await.unwrap();
    let kept = pointer(at(1));
    let trimmed = TrimQueueRequest { pointer: Some(kept.clone()), ..trim("alice", at(1)) };
    queues.trim_queue(trimmed).await.unwrap();
    drop(node);
    let node = Node::start(dir.path());
    let mut queues = node.queues().await;
    assert_kept(&mut queues, &kept).await;
    assert_eq!(all(&mut queues, "alice", 0).await, ["a2", "x"]);
    // By Kafka's protocol and by the native one, and each time what was said again has to be said again.
    let mut node = node;
    for round in 0..4 {
        if round % 2 == 0 {
            let client = Client::connect(Options::new([node.kafka.to_string()])).await.unwrap();
            client.delete_records("t", 0, -1).await.unwrap();
        } else {
            let all = TruncateRequest { topic: "t".into(), ..TruncateRequest::default() };
            node.logs().await.truncate(all).await.unwrap();
        }
        assert_eq!(all(&mut queues, "alice", 0).await, [""; 0], "round {round}");
        assert_eq!(get(&mut queues, "alice").await.first, None);
        assert_kept(&mut queues, &kept).await;
        assert_eq!(all(&mut queues, "alice", 0).await, ["x"], "round {round}");
        if round == 1 {
            node.stop();
        } else {
            drop(node);
        }
        node = Node::start(dir.path());
        queues = node.queues().await;
        assert_kept(&mut queues, &kept).await;
        assert_eq!(all(&mut queues, "alice", 0).await, ["x", "x"], "round {round}");
        assert_eq!(with_token(&mut queues, "bob", Some("one")).await, Ok(()));
    }
    queues.delete_queue(delete_queue("alice")).await.unwrap();
    for round in 0..2 {
        let told = get(&mut queues, "alice").await;
        assert_eq!((told.fence.len(), told.pointer), (0, None), "round {round}");
        assert_eq!(with_token(&mut queues, "alice", Some("mine")).await, fenced());
        assert_eq!(with_token(&mut queues, "alice", Some("one")).await, Ok(()));
        let client = Client::connect(Options::new([node.kafka.to_string()])).await.unwrap();
        client.delete_records("t", 0, -1).await.unwrap();
        drop(node);
        node = Node::start(dir.path());
        queues = node.queues().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn trims_and_fences_by_http() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(dir.path(), 1).await;
    let mut queues = node.queues().await;
    let last = enqueue(&mut queues, "alice", &["a0", "a1", "a2"]).await;
    let text = |offset| Position { offset, ..last }.to_string();
    let queue = "/v1/topics/t/queues/alice";
    let (trim_at, fence_at) = (format!("{queue}/trim"), format!("{queue}/fence"));
    for (method, path, body, field) in [
        ("POST", &trim_at, json!({}), "through"),
        ("POST", &trim_at, json!({ "through": "1.2" }), "through"),
        ("POST", &trim_at, json!({ "through": text(0), "pointers": {} }), "body"),
        ("POST", &trim_at, json!({ "through": text(0), "fence": "x".repeat(65) }), "fence"),
        (
            "POST",
            &trim_at,
            json!({ "through": text(0), "pointer": { "sha256": "ab" } }),
            "pointer.sha256",
        ),
        (
            "POST",
            &trim_at,
            json!({ "through": text(0), "pointer": { "note": "x".repeat(1_025) } }),
            "pointer",
        ),
        ("PUT", &fence_at, json!({}), "body"),
        ("PUT", &fence_at, json!({ "token": "x".repeat(65) }), "token"),
        ("PUT", &fence_at, json!({ "token": "x", "if_token": "x".repeat(65) }), "if_token"),
    ] {
        let (status, problem) = node.json(method, path, &body);
        assert_eq!((status, &problem["errors"][0]["field"]), (400, &json!(field)), "{problem}");
    }
    let (_, told) = node.json("GET", queue, &Value::Null);
    assert_eq!((&told["fence"], &told["pointer"]), (&Value::Null, &Value::Null), "{told}");
    let (status, done) = node.json("PUT", &fence_at, &json!({ "token": "mine", "if_token": "" }));
    assert_eq!((status, &done["withdrawn"]), (200, &json!(0)), "{done}");
    let (status, problem) =
        node.json("PUT", &fence_at, &json!({ "token": "next", "if_token": "other" }));
    assert_eq!((status, &problem["type"]), (412, &json!("/problems/fenced")), "{problem}");
    let shown = json!({
        "uri": "s3://state", "position": text(1), "sha256": "ab".repeat(32), "note": "a test",
    });
    let body = |token: &str| json!({ "through": text(1), "pointer": shown, "fence": token });
    assert_eq!(node.json("POST", &trim_at, &body("other")).0, 412);
    let (status, done) = node.json("POST", &trim_at, &body("mine"));
    assert_eq!((status, &done["at"]), (200, &done["last"]), "{done}");
    assert!(done["at"].is_string(), "{done}");
    let (_, again) = node.json("POST", &trim_at, &body("mine"));
    assert_eq!(again, json!({ "at": null, "last": null, "absent": 0, "withdrawn": 0 }));
    let (_, told) = node.json("GET", queue, &Value::Null);
    assert_eq!((&told["fence"], &told["pointer"]), (&json!("mine"), &shown), "{told}");
    assert_eq!((&told["first"], &told["last"]), (&json!(text(2)), &json!(text(2))), "{told}");
    let path = |query: &str| format!("{queue}/messages?after={}{query}", text(0));
    let (status, problem) = node.json("GET", &path(""), &Value::Null);
    assert_eq!((status, &problem["type"]), (410, &json!("/problems/trimmed")), "{problem}");
    assert_eq!((&problem["first"], &problem["pointer"]["uri"]), (&json!(2), &shown["uri"]));
    let (status, page) = node.json("GET", &path("&on_trimmed=skip"), &Value::Null);
    assert_eq!((status, &page["skipped"]), (200, &json!(true)), "{page}");
    let (status, _) = node.json("GET", &format!("{queue}/messages/{}", text(0)), &Value::Null);
    assert_eq!(status, 404);
    let protobuf = ["content-type: application/x-protobuf", "accept: application/x-protobuf"];
    let request = FenceQueueRequest { if_token: Some("mine".into()), ..Default::default() };
    let (status, body) = node.send("PUT", &fence_at, &protobuf, &request.encode_to_vec());
    assert!(status == 200 && EditResponse::decode(&body[..]).unwrap().at.is_some());
    assert_eq!(node.json("GET", queue, &Value::Null).1["fence"], Value::Null);
}

#[tokio::test(flavor = "multi_thread")]
async fn queues_are_trimmed_and_fenced_by_commands() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(dir.path(), 1).await;
    let mut queues = node.queues().await;
    let last = enqueue(&mut queues, "alice", &["a0", "a1", "a2"]).await;
    let text = |offset| Position { offset, ..last }.to_string();
    let done = |group: &str, arguments: &[&str]| {
        let (code, out, complaint) = command_of(group, &node, arguments, "");
        assert_eq!((code, complaint.as_str()), (0, ""), "{arguments:?}: {out}");
        out
    };
    let fence = ["fence", "t", "alice"];
    let told = done("queue", &[&fence[..], &["mine", "--if-token", ""]].concat());
    assert_eq!(told, "the queue's fence is mine\n");
    let (code, _, complaint) =
        command(&node, &[&fence[..], &["next", "--if-token", "other"]].concat(), "");
    assert_eq!(code, 1);
    assert!(complaint.contains("is not the fence"), "{complaint}");
    let through = text(1);
    let trim = ["trim", "t", "alice", "--through", &through];
    let (code, _, complaint) = command(&node, &[&trim[..], &["--fence", "other"]].concat(), "");
    assert!(code == 1 && complaint.contains("is not the fence"), "{complaint}");
    let whole = [&trim[..], &["--pointer", "s3://state", "--fence", "mine"]].concat();
    assert_eq!(done("queue", &whole), format!("trimmed through {through}\n"));
    let told = done("queue", &whole);
    assert_eq!(told, format!("trimmed through {through} or further before\n"));
    assert_eq!(all(&mut queues, "alice", 0).await, ["a2"]);
    let shown = done("queue", &["show", "t", "alice"]);
    assert!(shown.ends_with("fence      mine\npointer    s3://state\n"), "{shown}");
    let shown = done("queue", &["show", "t", "alice", "--output", "json"]);
    let shown: Value = serde_json::from_str(&shown).unwrap();
    assert_eq!((&shown["fence"], &shown["pointer"]), (&json!("mine"), &json!("s3://state")));
    let kept = get(&mut queues, "alice").await.pointer.unwrap();
    assert_eq!(kept.position, Some(Position { offset: 1, ..last }));
    let rewrite = ["rewrite", "t", "alice", "--after", &through, "--fence", "mine"];
    let (code, _, complaint) = command(&node, &rewrite, "b2\n");
    assert_eq!(code, 0, "{complaint}");
    assert_eq!(all(&mut queues, "alice", 0).await, ["b2"]);
    let told = done("queue", &[&fence[..], &["", "--if-token", "mine"]].concat());
    assert_eq!(told, "the queue has no fence of its own\n");
    // A queue without one has that of its log.
    let told = done("log", &["fence", "t", "one", "--partition", "0", "--if-token", ""]);
    assert!(told.contains("fence    one\n"), "{told}");
    assert_eq!(with_token(&mut queues, "alice", Some("mine")).await, fenced());
    assert_eq!(with_token(&mut queues, "alice", Some("one")).await, Ok(()));
    let (code, _, complaint) =
        command_of("log", &node, &["fence", "t", "two", "--if-token", "mine"], "");
    assert!(code == 1 && complaint.contains("is not the fence"), "{complaint}");
    assert!(done("log", &["fence", "t", ""]).contains("fence    -\n"));
    for wrong in [&["trim", "t", "alice"][..], &["fence", "t", "alice"]] {
        assert_eq!(command(&node, wrong, "").0, 2, "{wrong:?}");
    }
}
