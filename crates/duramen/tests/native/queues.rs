//! Queues of a real server: both surfaces, waits, restarts, Kafka's clients on the same topic.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::Path;

use duramen::proto::{
    AppendRequest, CreateTopicRequest, EnqueueRequest, GetQueueRequest, ListQueuesRequest,
    Position, Record, RetrieveRequest, RetrieveResponse, retrieve_request,
};
use duramen_client::{Client, Options};
use duramen_protocol::ErrorCode;
use duramen_protocol::messages::ProduceRequest;
use duramen_protocol::messages::produce::{PartitionProduceData, TopicProduceData};
use duramen_protocol::partitioner::partition_of_key;
use duramen_protocol::records::{BatchBuilder, NewRecord};
use serde_json::{Value, json};
use tonic::transport::Channel;

use super::{Node, PATIENCE, QueuesClient, slug};

pub(super) async fn start(dir: &Path, partitions: i32) -> Node {
    let node = Node::start(dir);
    create(&node, "t", partitions).await;
    node
}

/// Creates a topic of queues.
pub(super) async fn create(node: &Node, name: &str, partitions: i32) {
    let settings = [("queue.enable".to_owned(), "true".to_owned())].into();
    let create =
        CreateTopicRequest { name: name.into(), partitions, settings, ..Default::default() };
    node.topics().await.create_topic(create).await.unwrap();
}

pub(super) async fn enqueue(
    queues: &mut QueuesClient<Channel>,
    name: &str,
    values: &[&str],
) -> Position {
    let message =
        |value: &&str| Record { value: Some((*value).to_owned().into()), ..Record::default() };
    let request = EnqueueRequest {
        topic: "t".into(),
        queue: name.to_owned().into(),
        messages: values.iter().map(message).collect(),
        ..EnqueueRequest::default()
    };
    queues.enqueue(request).await.unwrap().into_inner().last.unwrap()
}

pub(super) fn retrieve(name: &str, after: Option<Position>) -> RetrieveRequest {
    RetrieveRequest {
        topic: "t".into(),
        queue: name.to_owned().into(),
        start: after.map(retrieve_request::Start::After),
        ..RetrieveRequest::default()
    }
}

fn values(page: &RetrieveResponse) -> Vec<String> {
    let value = |it: &duramen::proto::ReadRecord| it.record.clone().unwrap().value.unwrap();
    page.elements.iter().map(|it| String::from_utf8(value(it).to_vec()).unwrap()).collect()
}

/// Reads a queue page by page, with so many elements on each.
pub(super) async fn all(queues: &mut QueuesClient<Channel>, name: &str, limit: u32) -> Vec<String> {
    let (mut found, mut after) = (Vec::new(), None);
    loop {
        let request = RetrieveRequest { limit, ..retrieve(name, after) };
        let page = queues.retrieve(request).await.unwrap().into_inner();
        found.extend(values(&page));
        after = page.next.or(after);
        if !page.more {
            return found;
        }
    }
}

#[tokio::test]
async fn each_key_is_a_queue_and_stays_one_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(dir.path(), 3).await;
    let mut queues = node.queues().await;
    let names: Vec<String> = (0..40).map(|it| format!("user-{it:02}")).collect();
    for round in ["a", "b", "c"] {
        for name in &names {
            let last = enqueue(&mut queues, name, &[round, name]).await;
            assert!(last.offset > last.entry, "both are in one entry");
        }
    }
    let expected = |name: &str| ["a", name, "b", name, "c", name].map(str::to_owned).to_vec();
    for (name, limit) in names.iter().zip([1, 2, 5, 100].into_iter().cycle()) {
        assert_eq!(all(&mut queues, name, limit).await, expected(name), "{name}");
    }
    drop(node);
    let node = Node::start(dir.path());
    let mut queues = node.queues().await;
    for name in &names {
        assert_eq!(all(&mut queues, name, 0).await, expected(name), "{name}");
    }
    let request = ListQueuesRequest { topic: "t".into(), limit: 15, ..Default::default() };
    let page = queues.list_queues(request.clone()).await.unwrap().into_inner();
    let listed: Vec<_> = page.queues.iter().map(|it| it.name.clone()).collect();
    assert_eq!((listed.len(), page.more), (15, true));
    assert!(page.queues.iter().all(|it| it.about_elements == 6));
    let rest = ListQueuesRequest { after: listed[14].clone(), limit: 0, ..request };
    let rest = queues.list_queues(rest).await.unwrap().into_inner();
    assert!(!rest.more);
    let all_names = page.queues.into_iter().chain(rest.queues).map(|it| it.name);
    assert!(all_names.eq(names.iter().map(|name| name.clone().into_bytes())));
    let few =
        ListQueuesRequest { topic: "t".into(), prefix: "user-1".into(), ..Default::default() };
    assert_eq!(queues.list_queues(few).await.unwrap().into_inner().queues.len(), 10);
    let of = GetQueueRequest { topic: "t".into(), queue: "user-07".into() };
    let queue = queues.get_queue(of).await.unwrap().into_inner();
    let (first, last) = (queue.first.unwrap(), queue.last.unwrap());
    assert!(first.offset < last.offset && queue.about_elements == 6);
    let request = RetrieveRequest { limit: 1, ..retrieve("user-07", None) };
    let page = queues.retrieve(request).await.unwrap().into_inner();
    assert_eq!(page.elements[0].position, Some(first));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiting_reader_gets_what_comes_to_its_queue() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(dir.path(), 1).await;
    let mut queues = node.queues().await;
    let mut waiting = queues.clone();
    let read = tokio::spawn(async move {
        let request = RetrieveRequest { wait_ms: 60_000, ..retrieve("alice", None) };
        waiting.retrieve(request).await.unwrap().into_inner()
    });
    // It waits for its own queue alone.
    enqueue(&mut queues, "bob", &["b"]).await;
    while gauge(&node, "queue_reads_waiting") == 0 {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    enqueue(&mut queues, "bob", &["b"]).await;
    assert_eq!(gauge(&node, "queue_index_lag_records"), 0);
    assert!(!read.is_finished());
    enqueue(&mut queues, "alice", &["a"]).await;
    let page = tokio::time::timeout(PATIENCE, read).await.unwrap().unwrap();
    assert_eq!(values(&page), ["a"]);
    // A reader that goes is forgotten.
    let mut stream = TcpStream::connect(node.native).unwrap();
    let request = "GET /v1/topics/t/queues/carol/messages?wait=60s HTTP/1.1\r\nhost: x\r\n\r\n";
    stream.write_all(request.as_bytes()).unwrap();
    while gauge(&node, "queue_reads_waiting") == 0 {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    drop(stream);
    while gauge(&node, "queue_reads_waiting") > 0 {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    let nothing = RetrieveRequest { wait_ms: 50, ..retrieve("carol", None) };
    let page = queues.retrieve(nothing).await.unwrap().into_inner();
    assert_eq!((values(&page).len(), page.more, page.next.is_some()), (0, false, true));
}

fn gauge(node: &Node, name: &str) -> u64 {
    let (_, metrics) = node.ask("GET", "/metrics", &[], "");
    let line = metrics.lines().find(|it| !it.starts_with('#') && it.contains(name));
    // The node tells its figures now and then, and none before the first time.
    line.map_or(0, |line| line.rsplit(' ').next().unwrap().parse().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn queues_by_http_and_json() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(dir.path(), 2).await;
    let path = "/v1/topics/t/queues/a%2F%00%FF/messages";
    let (status, text) = node.ask("POST", path, &["duramen-header-Kind: plain"], "hello");
    assert_eq!(status, 200, "{text}");
    let body = json!({ "messages": [{ "json": { "n": 1 } }, { "value": "two" }] });
    assert_eq!(node.json("POST", path, &body).0, 200);
    let (_, page) = node.json("GET", path, &Value::Null);
    let elements = page["elements"].as_array().unwrap();
    let shown: Vec<_> = elements.iter().map(|it| it["value"].clone()).collect();
    assert_eq!(shown, ["hello", "{\"n\":1}", "two"]);
    assert_eq!(elements[0]["headers"], json!({ "kind": "plain" }));
    assert_eq!((&page["more"], &page["next"]), (&json!(false), &elements[2]["position"]));
    let (_, rest) = node.json(
        "GET",
        &format!("{path}?after={}", elements[0]["position"].as_str().unwrap()),
        &Value::Null,
    );
    assert_eq!(rest["elements"].as_array().unwrap().len(), 2);
    let (_, some) =
        node.json("GET", &format!("{path}?filter=json.n%3D%3D1&on_error=skip"), &Value::Null);
    assert_eq!(some["elements"].as_array().unwrap().len(), 1, "{some}");
    let one = format!("{path}/{}", elements[1]["position"].as_str().unwrap());
    assert_eq!(node.json("GET", &one, &Value::Null).1["value"], "{\"n\":1}");
    let (_, queue) = node.json("GET", "/v1/topics/t/queues/a%2F%00%FF", &Value::Null);
    assert_eq!((&queue["about_elements"], &queue["queue_base64"]), (&json!(3), &json!("YS8A/w==")));
    let (_, list) = node.json("GET", "/v1/topics/t/queues?limit=1", &Value::Null);
    assert_eq!(list["queues"].as_array().unwrap().len(), 1);
    for (method, path, headers, body, field) in [
        ("POST", path, vec!["duramen-if-last: 7"], "x", "guard.last"),
        ("POST", path, vec!["duramen-key: b"], "x", "duramen-key"),
        ("GET", "/v1/topics/t/queues/a/messages?limit=1001", vec![], "", "limit"),
        ("GET", "/v1/topics/t/queues/a/messages?wait=61s", vec![], "", "wait"),
        ("GET", "/v1/topics/t/queues//messages", vec![], "", "queue"),
    ] {
        let (status, text) = node.ask(method, path, &headers, body);
        let problem: Value = serde_json::from_str(&text).unwrap();
        assert_eq!((status, &problem["errors"][0]["field"]), (400, &json!(field)), "{text}");
    }
    let mut stream = TcpStream::connect(node.native).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\naccept: text/event-stream\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let lines = BufReader::new(stream).lines().map_while(Result::ok);
    let ids: Vec<_> =
        lines.filter(|it| it.starts_with("id: ")).take(3).map(|it| it[4..].to_owned()).collect();
    let positions: Vec<_> = elements.iter().map(|it| it["position"].as_str().unwrap()).collect();
    assert_eq!(ids, positions);
}

/// Sends a batch as Kafka's clients do; returns the error code.
pub(super) async fn produce(
    client: &Client,
    transaction: Option<(i64, i16, i32)>,
    records: &[(&str, &str)],
) -> i16 {
    let mut batch = BatchBuilder::new();
    if let Some((id, epoch, sequence)) = transaction {
        batch = batch.producer(id, epoch, sequence).transactional();
    }
    for (key, value) in records {
        let key = (!key.is_empty()).then_some(key.as_bytes());
        let record = NewRecord { key, value: Some(value.as_bytes()), ..NewRecord::default() };
        batch.push(&record).unwrap();
    }
    let records = Some(batch.build().unwrap());
    let partition_data = [PartitionProduceData { index: 0, records }].into();
    let topic_data =
        [TopicProduceData { name: "t".into(), partition_data, ..Default::default() }].into();
    let transactional_id = transaction.map(|_| "open".to_owned());
    let request = ProduceRequest { transactional_id, acks: -1, timeout_ms: 30_000, topic_data };
    let answer = client.call_any(&request).await.unwrap();
    answer.responses[0].partition_responses[0].error_code
}

#[tokio::test(flavor = "multi_thread")]
async fn kafkas_clients_write_the_same_queues() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(dir.path(), 1).await;
    let mut queues = node.queues().await;
    enqueue(&mut queues, "alice", &["native"]).await;
    let client = Client::connect(Options::new([node.kafka.to_string()])).await.unwrap();
    assert_eq!(produce(&client, None, &[("bob", "x"), ("alice", "kafka")]).await, 0);
    let no_queue = produce(&client, None, &[("alice", "x"), ("", "keyless")]).await;
    assert_eq!(no_queue, ErrorCode::InvalidRecord.code());
    assert_eq!(all(&mut queues, "alice", 0).await, ["native", "kafka"]);
    // An open transaction hides what is behind it; an aborted one hides its own records for ever.
    let producer = client.take_over("open", 60_000).await.unwrap();
    let open = Some((producer.id, producer.epoch, 0));
    assert_eq!(produce(&client, open, &[("alice", "aborted")]).await, 0);
    enqueue(&mut queues, "alice", &["behind"]).await;
    assert_eq!(all(&mut queues, "alice", 0).await, ["native", "kafka"]);
    let mut waiting = queues.clone();
    let after = queues.retrieve(retrieve("alice", None)).await.unwrap().into_inner().next;
    let read = tokio::spawn(async move {
        let request = RetrieveRequest { wait_ms: 60_000, ..retrieve("alice", after) };
        waiting.retrieve(request).await.unwrap().into_inner()
    });
    client.take_over("open", 60_000).await.unwrap();
    let page = tokio::time::timeout(PATIENCE, read).await.unwrap().unwrap();
    assert_eq!(values(&page), ["behind"], "the end of the transaction wakes the reader");
    assert_eq!(all(&mut queues, "alice", 1).await, ["native", "kafka", "behind"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_passes_more_batches_than_it_looks_at() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(dir.path(), 1).await;
    let mut queues = node.queues().await;
    let first = enqueue(&mut queues, "alice", &["first"]).await;
    let client = Client::connect(Options::new([node.kafka.to_string()])).await.unwrap();
    let producer = client.take_over("open", 60_000).await.unwrap();
    for sequence in 0..300 {
        let open = Some((producer.id, producer.epoch, sequence));
        assert_eq!(produce(&client, open, &[("alice", "aborted")]).await, 0);
    }
    // All of that is behind the last stable offset.
    let page = queues.retrieve(retrieve("alice", Some(first))).await.unwrap().into_inner();
    assert_eq!((values(&page).len(), page.more, page.next), (0, false, Some(first)));
    let page = queues.retrieve(retrieve("alice", None)).await.unwrap().into_inner();
    assert_eq!(
        (values(&page), page.more, page.next),
        (vec!["first".to_owned()], false, Some(first))
    );
    client.take_over("open", 60_000).await.unwrap();
    let last = enqueue(&mut queues, "alice", &["last"]).await;
    // A reader that waits looks behind the aborted batches, too.
    let request = RetrieveRequest { wait_ms: 60_000, ..retrieve("alice", Some(first)) };
    let page = tokio::time::timeout(PATIENCE, queues.retrieve(request)).await.unwrap();
    assert_eq!(values(&page.unwrap().into_inner()), ["last"]);
    let of = GetQueueRequest { topic: "t".into(), queue: "alice".into() };
    let queue = queues.get_queue(of).await.unwrap().into_inner();
    assert_eq!((queue.first, queue.last), (Some(first), Some(last)));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_append_on_a_condition_is_about_its_queue() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(dir.path(), 2).await;
    let path = |name: &str| format!("/v1/topics/t/queues/{name}/messages");
    let put = |name: &str, last: &str| {
        let header = format!("duramen-if-last: {last}");
        let (status, text) = node.ask("POST", &path(name), &[&header], "x");
        (status, serde_json::from_str::<Value>(&text).unwrap())
    };
    let (status, first) = put("alice", "none");
    assert_eq!(status, 200, "{first}");
    let (status, problem) = put("alice", "none");
    assert_eq!((status, &problem["last"]), (412, &first["last"]), "{problem}");
    assert_eq!(put("bob", "none").0, 200);
    let (status, second) = put("alice", first["last"].as_str().unwrap());
    assert_eq!(status, 200, "{second}");
    let body = json!({ "messages": [{ "value": "y" }], "guard": { "last": first["last"] } });
    let (status, problem) = node.json("POST", &path("alice"), &body);
    assert_eq!((status, &problem["last"]), (412, &second["last"]), "{problem}");
    assert_eq!(problem["type"], "/problems/last-mismatch");
    // The log's fence is that of all its queues.
    for partition in 0..2 {
        let fence = format!("/v1/topics/t/partitions/{partition}/fence");
        assert_eq!(node.json("PUT", &fence, &json!({ "token": "one" })).0, 200);
    }
    let (status, text) = node.ask("POST", &path("alice"), &["duramen-fence: two"], "x");
    assert_eq!(status, 412, "{text}");
    assert_eq!(node.ask("POST", &path("alice"), &["duramen-fence: one"], "x").0, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_from_the_end_of_an_empty_log_misses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(dir.path(), 1).await;
    let mut queues = node.queues().await;
    let at_end = RetrieveRequest {
        start: Some(retrieve_request::Start::End(true)),
        wait_ms: 60_000,
        ..retrieve("alice", None)
    };
    let mut waiting = queues.clone();
    let read = tokio::spawn(async move { waiting.retrieve(at_end).await.unwrap().into_inner() });
    while gauge(&node, "queue_reads_waiting") == 0 {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    enqueue(&mut queues, "bob", &["b"]).await;
    enqueue(&mut queues, "alice", &["a"]).await;
    let page = tokio::time::timeout(PATIENCE, read).await.unwrap().unwrap();
    assert_eq!(values(&page), ["a"]);
}

/// Returns a key whose partition of three is this one.
fn key_of(partition: i32) -> String {
    let mut keys = (0..).map(|number| format!("key-{number}"));
    keys.find(|key| partition_of_key(key.as_bytes(), 3) == partition).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_of_queues_takes_the_keys_of_its_own_partition_alone() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(dir.path(), 3).await;
    let (mut logs, mut queues) = (node.logs().await, node.queues().await);
    let record = |key: Option<&str>, value: &str| Record {
        key: key.map(|key| key.to_owned().into()),
        value: Some(value.to_owned().into()),
        ..Record::default()
    };
    for partition in [0, 2] {
        let (right, wrong) = (key_of(partition), key_of(1));
        let append =
            |records| AppendRequest { topic: "t".into(), partition, records, ..Default::default() };
        let taken = append(vec![record(Some(&right), "a"), record(Some(&right), "b")]);
        let answer = logs.append(taken).await.unwrap().into_inner();
        assert_eq!(answer.last.unwrap().offset, 1, "{partition}");
        let one = || record(Some(&right), "c");
        for records in [
            vec![record(Some(&wrong), "c")],
            vec![one(), record(Some(&wrong), "c")],
            vec![record(None, "c"), one()],
        ] {
            let refused = logs.append(append(records)).await.unwrap_err();
            assert_eq!(slug(&refused), "bad-request", "{partition}: {refused:?}");
        }
        assert_eq!(all(&mut queues, &right, 0).await, ["a", "b"], "{partition}");
        let path = format!("/v1/topics/t/partitions/{partition}/records");
        for (key, expected) in [(&right, 200), (&wrong, 400)] {
            let header = format!("duramen-key: {key}");
            let (status, text) = node.ask("POST", &path, &[&header], "d");
            assert_eq!(status, expected, "{partition}: {text}");
        }
        assert_eq!(all(&mut queues, &right, 0).await, ["a", "b", "d"], "{partition}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_stops_keeps_its_index() {
    let dir = tempfile::tempdir().unwrap();
    let value = "v".repeat(600_000);
    let node = start(dir.path(), 1).await;
    let mut queues = node.queues().await;
    for _ in 0..2 {
        enqueue(&mut queues, "alice", &[&value]).await;
    }
    // The index has all of it, or the page would wait.
    assert_eq!(all(&mut queues, "alice", 0).await.len(), 2);
    node.stop();
    let replica = std::fs::read_dir(dir.path()).unwrap().map(|it| it.unwrap().path());
    let replica = replica.filter(|it| it.file_name().unwrap().to_string_lossy().starts_with("t-"));
    let files = replica.flat_map(|it| std::fs::read_dir(it).unwrap());
    let tables =
        files.filter(|it| it.as_ref().unwrap().path().extension().is_some_and(|it| it == "keys"));
    assert_eq!(tables.count(), 1);
    let node = Node::start(dir.path());
    assert_eq!(all(&mut node.queues().await, "alice", 0).await.len(), 2);
}
