//! The native API of a real server: gRPC and HTTP on one port.
#![expect(clippy::unwrap_used, reason = "a test's own failure is a failure")]

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use duramen::config::{Config, HostPort};
use duramen::proto::logs_client::LogsClient;
use duramen::proto::queues_client::QueuesClient;
use duramen::proto::topics_client::TopicsClient;
use duramen::proto::{
    AppendRequest, AppendResponse, CreateTopicRequest, FenceRequest, GetElementRequest,
    GetQueueRequest, GetTopicRequest, Guard, OpenSessionRequest, Pointer, Position, ReadRequest,
    ReadResponse, Record, Session, Tail, TailRequest, Topic, TruncateRequest, guard, read_request,
};
use duramen::server::{Server, start_with};
use duramen::telemetry::Flags;
use duramen_client::{Client, Options};
use duramen_protocol::BatchHeader;
use duramen_protocol::compression::Codec;
use duramen_protocol::messages::ProduceRequest;
use duramen_protocol::messages::produce::{PartitionProduceData, TopicProduceData};
use duramen_protocol::records::{BatchBuilder, NewRecord};
use prost::Message;
use prost_types::FileDescriptorSet;
use serde_json::{Value, json};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;
use tonic::{Code, Status};
use tonic_types::StatusExt;

#[path = "native/counts.rs"]
mod counts;
#[path = "native/edits.rs"]
mod edits;
#[path = "native/erasure.rs"]
mod erasure;
#[path = "native/once.rs"]
mod once;
#[path = "native/queue_benchmarks.rs"]
mod queue_benchmarks;
#[path = "native/queue_checks.rs"]
mod queue_checks;
#[path = "native/queue_commands.rs"]
mod queue_commands;
#[path = "native/queue_streams.rs"]
mod queue_streams;
#[path = "native/queues.rs"]
mod queues;
#[path = "native/quotas.rs"]
mod quotas;

/// Long enough for a busy machine; nothing here waits so long when all is well.
const PATIENCE: Duration = Duration::from_secs(30);

const RECORDS: &str = "/v1/topics/t/partitions/0/records";

struct Node {
    process: Process,
    native: SocketAddr,
    /// Address for Kafka's clients.
    kafka: SocketAddr,
}

enum Process {
    Other(Child),
    /// The server runs in the test's process, until it is taken out to be stopped.
    Own(Box<Option<Server>>),
}

impl Node {
    fn start(data_dir: &Path) -> Self {
        Self::start_with(data_dir, &[])
    }

    /// Starts a node whose streams show after so long that they are there.
    fn beating(data_dir: &Path, heartbeat: Duration) -> Self {
        let any_port = || HostPort { host: "127.0.0.1".to_owned(), port: 0 };
        let config = Config {
            data_dir: data_dir.to_owned(),
            listen: Some(any_port()),
            advertise: None,
            native: Some(any_port()),
            node_listen: None,
            http: None,
            open: false,
            settings: BTreeMap::new(),
            replaces: false,
            log: Flags::default(),
        };
        // A server has a runtime of its own, which no task of another one may begin or end.
        let started = std::thread::spawn(move || start_with(&config, heartbeat).unwrap());
        let server = started.join().unwrap();
        let (native, kafka) = (server.native.unwrap(), server.address);
        Self { process: Process::Own(Box::new(Some(server))), native, kafka }
    }

    fn start_with(data_dir: &Path, settings: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_duramen"));
        command.args(["serve", "--listen", "127.0.0.1:0", "--native", "127.0.0.1:0"]);
        command.args(["--log-format", "json"]).arg("--data-dir").arg(data_dir);
        command.args(settings.iter().flat_map(|setting| ["--set", setting]));
        command.env_remove("RUST_LOG").stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let (mut native, mut kafka) = (None, None);
        let mut line = String::new();
        while native.is_none() || kafka.is_none() {
            line.clear();
            assert!(stderr.read_line(&mut line).unwrap() > 0, "it ends");
            let told: Value = serde_json::from_str(&line).unwrap_or_else(|_| panic!("{line}"));
            let at = told["fields"]["address"].as_str().or(told["address"].as_str());
            let at = at.and_then(|at| at.parse().ok());
            if line.contains("\"serving the native API\"") {
                native = at;
            } else if line.contains("\"serving\"") {
                kafka = at;
            }
        }
        std::thread::spawn(move || std::io::copy(&mut stderr, &mut std::io::sink()));
        let process = Process::Other(child);
        Self { process, native: native.unwrap(), kafka: kafka.unwrap() }
    }

    async fn logs(&self) -> LogsClient<Channel> {
        LogsClient::connect(format!("http://{}", self.native)).await.unwrap()
    }

    async fn queues(&self) -> QueuesClient<Channel> {
        QueuesClient::connect(format!("http://{}", self.native)).await.unwrap()
    }

    async fn topics(&self) -> TopicsClient<Channel> {
        TopicsClient::connect(format!("http://{}", self.native)).await.unwrap()
    }

    /// Sends a request over HTTP/1.1; returns the status and the body.
    fn send(&self, method: &str, path: &str, headers: &[&str], body: &[u8]) -> (u16, Vec<u8>) {
        let mut stream = TcpStream::connect(self.native).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut request = format!("{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n");
        let length = format!("content-length: {}", body.len());
        for header in headers.iter().copied().chain([length.as_str()]) {
            request.extend([header, "\r\n"]);
        }
        request.push_str("\r\n");
        stream.write_all(&[request.as_bytes(), body].concat()).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let end = answer.windows(4).position(|it| it == b"\r\n\r\n").unwrap();
        let head = std::str::from_utf8(&answer[..end]).unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), answer[end + 4..].to_vec())
    }

    fn ask(&self, method: &str, path: &str, headers: &[&str], body: &str) -> (u16, String) {
        let (status, body) = self.send(method, path, headers, body.as_bytes());
        (status, String::from_utf8(body).unwrap())
    }

    fn json(&self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let (status, text) = self.ask(method, path, &["content-type: application/json"], &body);
        (status, serde_json::from_str(&text).unwrap_or(Value::Null))
    }
}

impl Node {
    /// Has a process of its own end in good order.
    fn stop(mut self) {
        let Process::Other(child) = &mut self.process else { unreachable!("it has a process") };
        let pid = rustix::process::Pid::from_child(child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        assert!(child.wait().unwrap().success());
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        match &mut self.process {
            Process::Other(child) => {
                let _ = child.kill();
                let _ = child.wait();
            }
            Process::Own(server) => {
                let server = server.take().expect("it is stopped once");
                let _ = std::thread::spawn(move || server.stop()).join();
            }
        }
    }
}

fn append(values: &[&str]) -> AppendRequest {
    let record =
        |value: &&str| Record { value: Some((*value).to_owned().into()), ..Record::default() };
    let records = values.iter().map(record).collect();
    AppendRequest { topic: "t".into(), records, ..AppendRequest::default() }
}

fn slug(status: &Status) -> String {
    status.get_details_error_info().map(|it| it.reason).unwrap_or_default()
}

async fn values(logs: &mut LogsClient<Channel>, request: ReadRequest) -> Vec<String> {
    let request = ReadRequest { topic: "t".into(), ..request };
    let mut pages = logs.read(request).await.unwrap().into_inner();
    let mut values = Vec::new();
    while let Some(page) = pages.message().await.unwrap() {
        for it in page.records {
            values.push(String::from_utf8(it.record.unwrap().value.unwrap().to_vec()).unwrap());
        }
    }
    values
}

#[tokio::test]
async fn a_log_is_appended_to_read_fenced_and_truncated_by_grpc() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(dir.path());
    let create = CreateTopicRequest { name: "t".into(), partitions: 1, ..Default::default() };
    let topic = node.topics().await.create_topic(create).await.unwrap().into_inner();
    assert_eq!((topic.name.as_str(), topic.partitions, topic.id.len()), ("t", 1, 16));
    let mut logs = node.logs().await;
    let none = Guard { last: Some(guard::Last::None(true)), fence: None };
    let first = AppendRequest { guard: Some(none.clone()), ..append(&["a", "b"]) };
    let answer = logs.append(first.clone()).await.unwrap().into_inner();
    let last = answer.last.unwrap();
    assert_eq!((last.entry, last.offset), (0, 1));
    let refused = logs.append(first).await.unwrap_err();
    assert_eq!((refused.code(), slug(&refused).as_str()), (Code::Aborted, "last-mismatch"));
    let info = refused.get_details_error_info().unwrap();
    assert_eq!(info.metadata["last"], format!("{}.0.1", last.term));
    let at = Guard { last: Some(guard::Last::At(last)), fence: None };
    let next = AppendRequest { guard: Some(at), ..append(&["c"]) };
    let third = logs.append(next).await.unwrap().into_inner().last.unwrap();
    assert_eq!(values(&mut logs, ReadRequest::default()).await, ["a", "b", "c"]);
    let after = |it: Position| Some(read_request::Start::After(it));
    let behind = ReadRequest { start: after(last), ..Default::default() };
    assert_eq!(values(&mut logs, behind).await, ["c"]);
    let limited = ReadRequest { limit: 2, ..Default::default() };
    assert_eq!(values(&mut logs, limited).await, ["a", "b"]);
    let fence = FenceRequest { topic: "t".into(), token: "one".into(), ..Default::default() };
    assert_eq!(logs.fence(fence).await.unwrap().into_inner().fence, "one");
    let wrong = Guard { last: None, fence: Some("zero".into()) };
    let refused = logs.append(AppendRequest { guard: Some(wrong), ..append(&["d"]) }).await;
    assert_eq!(slug(&refused.unwrap_err()), "fenced");
    let truncate = TruncateRequest {
        topic: "t".into(),
        through: Some(last),
        pointer: Some(Pointer { uri: "s3://snapshot".into(), ..Default::default() }),
        ..Default::default()
    };
    logs.truncate(truncate).await.unwrap();
    let tail = TailRequest { topic: "t".into(), partition: 0 };
    let tail = logs.tail(tail).await.unwrap().into_inner();
    assert_eq!((tail.start, tail.stable, tail.end, tail.last), (2, 3, 3, Some(third)));
    assert_eq!(tail.pointer.unwrap().uri, "s3://snapshot");
    let early = ReadRequest { start: Some(read_request::Start::From(0)), ..Default::default() };
    let request = ReadRequest { topic: "t".into(), ..early.clone() };
    let mut pages = logs.read(request).await.unwrap().into_inner();
    let refused = pages.message().await.unwrap_err();
    assert_eq!(slug(&refused), "trimmed");
    let skipping = ReadRequest { skip_trimmed: true, ..early };
    assert_eq!(values(&mut logs, skipping).await, ["c"]);
}

#[tokio::test]
async fn a_session_appends_once() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(dir.path());
    let create = CreateTopicRequest { name: "t".into(), partitions: 1, ..Default::default() };
    node.topics().await.create_topic(create).await.unwrap();
    let mut logs = node.logs().await;
    let session = logs.open_session(OpenSessionRequest::default()).await.unwrap().into_inner();
    let once = AppendRequest { session: Some(session), ..append(&["a", "b"]) };
    let first = logs.append(once.clone()).await.unwrap().into_inner();
    let again = logs.append(once).await.unwrap().into_inner();
    assert_eq!((first.last, first.duplicate, again.duplicate), (again.last, false, true));
    let gap = Session { sequence: 5, ..session };
    let refused = logs.append(AppendRequest { session: Some(gap), ..append(&["f"]) }).await;
    let info = refused.unwrap_err().get_details_error_info().unwrap();
    assert_eq!((info.reason.as_str(), info.metadata["expected"].as_str()), ("sequence-gap", "2"));
    let headers = [format!("duramen-session: {}.0", session.id), "duramen-sequence: 5".to_owned()];
    let (status, problem) = node.ask("POST", RECORDS, &headers.each_ref().map(|it| &it[..]), "f");
    let problem: Value = serde_json::from_str(&problem).unwrap();
    assert_eq!((status, &problem["expected"]), (409, &json!(2)), "{problem}");
    assert_eq!(values(&mut logs, ReadRequest::default()).await, ["a", "b"]);
}

#[tokio::test]
async fn a_reader_that_waits_gets_what_is_appended() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(dir.path());
    let create = CreateTopicRequest { name: "t".into(), partitions: 1, ..Default::default() };
    node.topics().await.create_topic(create).await.unwrap();
    let mut logs = node.logs().await;
    let wait = ReadRequest { topic: "t".into(), wait_ms: 30_000, limit: 1, ..Default::default() };
    let mut pages = logs.clone().read(wait).await.unwrap().into_inner();
    let waiting = tokio::spawn(async move { pages.message().await });
    logs.append(append(&["a"])).await.unwrap();
    let page = waiting.await.unwrap().unwrap().unwrap();
    assert_eq!((page.records.len(), page.next), (1, 1));
}

#[test]
fn the_same_by_http_and_json() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(dir.path());
    let (status, topic) = node.json("PUT", "/v1/topics/t", &json!({ "partitions": 2 }));
    assert_eq!((status, &topic["partitions"]), (201, &json!(2)), "{topic}");
    let (status, again) = node.json("PUT", "/v1/topics/t", &json!({ "partitions": 2 }));
    assert_eq!((status, &again["type"]), (409, &json!("/problems/topic-exists")), "{again}");
    let records = "/v1/topics/t/partitions/1/records";
    let (status, answer) = node.ask("POST", records, &["duramen-if-last: none"], "hello");
    assert_eq!(status, 200, "{answer}");
    let answer: Value = serde_json::from_str(&answer).unwrap();
    let last = answer["last"].as_str().unwrap().to_owned();
    let body = json!({
        "records": [{ "key": "k", "json": { "a": 1 } }, { "base64": "/w==" }],
        "guard": { "last": last },
    });
    let (status, answer) = node.json("POST", records, &body);
    assert_eq!(status, 200, "{answer}");
    let (status, refused) = node.json("POST", records, &body);
    assert_eq!((status, &refused["type"]), (412, &json!("/problems/last-mismatch")), "{refused}");
    assert_eq!(refused["last"], answer["last"]);
    let (status, page) = node.json("GET", &format!("{records}?from=0"), &Value::Null);
    assert_eq!(status, 200, "{page}");
    let shown: Vec<&Value> = page["records"].as_array().unwrap().iter().collect();
    assert_eq!(shown[0]["value"], "hello");
    assert_eq!((&shown[1]["key"], &shown[1]["value"]), (&json!("k"), &json!("{\"a\":1}")));
    assert_eq!(shown[2]["base64"], "/w==");
    assert_eq!((&page["next"], &page["more"]), (&json!(3), &json!(false)));
    let (_, empty) = node.json("GET", &format!("{records}?after={last}&limit=1"), &Value::Null);
    assert_eq!(empty["records"].as_array().unwrap().len(), 1, "{empty}");
    let (status, tail) = node.json("GET", "/v1/topics/t/partitions/1", &Value::Null);
    assert_eq!((status, &tail["end"]), (200, &json!(3)), "{tail}");
    let misspelt = json!({ "records": [{ "value": "x" }], "guards": {} });
    let (status, refused) = node.json("POST", records, &misspelt);
    assert_eq!((status, &refused["type"]), (400, &json!("/problems/bad-request")), "{refused}");
    let (status, page) = node.ask("GET", "/problems/fenced", &[], "");
    assert!(status == 200 && page.contains("another fence"), "{page}");
    let (status, proto) = node.ask("GET", "/duramen.proto", &[], "");
    assert!(status == 200 && proto.contains("service Logs"));
    assert_eq!(node.ask("GET", "/healthz", &[], "").0, 200);
    let (status, _) = node.json("DELETE", "/v1/topics/t", &Value::Null);
    assert_eq!(status, 204);
    assert_eq!(node.json("GET", "/v1/topics/t", &Value::Null).0, 404);
}

#[test]
fn an_event_stream_tells_where_to_go_on_and_goes_on_there() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(dir.path());
    assert_eq!(node.json("PUT", "/v1/topics/t", &json!({})).0, 201);
    for value in ["a", "b", "c"] {
        assert_eq!(node.ask("POST", RECORDS, &[], value).0, 200);
    }
    let events = "accept: text/event-stream";
    let two = format!("{RECORDS}?limit=2");
    let (status, text) = node.ask("GET", &two, &[events], "");
    assert_eq!((status, text.matches("event: record").count()), (200, 2), "{text}");
    assert!(text.contains("id: 1\n") && text.contains("id: 2\n"), "{text}");
    let (_, text) = node.ask("GET", &two, &[events, "last-event-id: 2"], "");
    assert_eq!(text.matches("event: record").count(), 1, "{text}");
    assert!(text.contains("id: 3\n") && text.contains("\"value\":\"c\""), "{text}");
    let (_, text) = node.ask("GET", &two, &[events, "last-event-id: 9"], "");
    assert!(text.contains("/problems/position-diverged"), "{text}");
}

#[test]
fn http_takes_and_returns_the_messages_of_the_protocol() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(dir.path());
    let protobuf = ["content-type: application/x-protobuf", "accept: application/x-protobuf"];
    let create = CreateTopicRequest { partitions: 2, ..Default::default() }.encode_to_vec();
    let (status, body) = node.send("PUT", "/v1/topics/t", &protobuf, &create);
    let topic = Topic::decode(&body[..]).unwrap();
    assert_eq!((status, topic.name.as_str(), topic.partitions), (201, "t", 2));
    let (status, body) = node.send("POST", RECORDS, &protobuf, &append(&["a"]).encode_to_vec());
    let last = AppendResponse::decode(&body[..]).unwrap().last.unwrap();
    assert_eq!((status, last.offset), (200, 0));
    let (status, body) = node.send("GET", RECORDS, &protobuf[1..], b"");
    let page = ReadResponse::decode(&body[..]).unwrap();
    assert_eq!((status, page.records[0].position, page.next), (200, Some(last), 1));
    let (status, body) = node.send("POST", RECORDS, &protobuf, b"\xff");
    assert!(status == 400 && body.starts_with(b"{"), "{status}");
}

#[test]
fn any_replica_shows_what_it_has() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(dir.path());
    assert_eq!(node.json("PUT", "/v1/topics/t", &json!({})).0, 201);
    let (_, appended) = node.ask("POST", RECORDS, &[], "a");
    let appended: Value = serde_json::from_str(&appended).unwrap();
    let read = |query: &str| {
        node.json("GET", &format!("{RECORDS}?consistency=any_replica&{query}"), &Value::Null)
    };
    let (status, page) = read("from=begin");
    assert_eq!(
        (status, &page["records"][0]["value"], &page["next"]),
        (200, &json!("a"), &json!(1))
    );
    let (status, page) = read(&format!("after={}", appended["last"].as_str().unwrap()));
    assert_eq!((status, &page["records"], &page["next"]), (200, &json!([]), &json!(1)), "{page}");
    let term = appended["last"].as_str().unwrap().split('.').next().unwrap();
    for query in [format!("after={term}.{0}.{0}", i64::MAX), format!("from={}", i64::MAX)] {
        let (status, refused) = read(&query);
        assert_eq!((status, &refused["diverged_at"]), (409, &json!(1)), "{query}: {refused}");
    }
}

/// Two operations have the same name on both surfaces, and neither has one that the other lacks. But HTTP has no stream
/// in both directions, and one element has a path of its own to be deleted at. Its names are those of one document, so
/// `Queues.Fence` and `Queues.Trim` have longer ones there.
#[test]
fn both_surfaces_have_the_same_operations() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(dir.path());
    let (status, document) = node.json("GET", "/openapi.json", &Value::Null);
    assert_eq!((status, &document["openapi"]), (200, &json!("3.1.0")));
    assert_eq!(document["info"]["version"], env!("CARGO_PKG_VERSION"));
    let mut by_http = BTreeSet::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for operation in item.as_object().unwrap().values() {
            if path.starts_with("/v1/") {
                let (tag, id) = (&operation["tags"][0], &operation["operationId"]);
                let name = (tag.as_str().unwrap().to_owned(), id.as_str().unwrap().to_owned());
                assert!(by_http.insert(name), "{path} repeats {id}");
            }
        }
    }
    let files = FileDescriptorSet::decode(duramen::proto::DESCRIPTORS).unwrap();
    let services = files.file.iter().flat_map(|file| &file.service);
    let methods = services.flat_map(|service| {
        service.method.iter().map(|it| (service.name().to_owned(), it.name().to_owned()))
    });
    let both_ways = ("Queues".to_owned(), "EnqueueStream".to_owned());
    assert!(by_http.insert(both_ways), "the stream has a path");
    let of_one = ("Queues".to_owned(), "DeleteElement".to_owned());
    assert!(by_http.remove(&of_one), "one element has no path");
    assert_eq!(by_http, methods.collect::<BTreeSet<_>>());
}

#[test]
fn a_path_or_method_that_is_not_there_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(dir.path());
    for path in ["/nothing", "/v1/topics/t/partitions/0/nothing", "/problems/nothing"] {
        let (status, problem) = node.json("GET", path, &Value::Null);
        assert_eq!((status, &problem["type"]), (404, &json!("/problems/unsupported")), "{path}");
    }
    for path in ["/v1/sessions", "/v1/topics/t", "/metrics", "/healthz"] {
        let (status, problem) = node.json("PATCH", path, &Value::Null);
        assert_eq!(
            (status, &problem["type"]),
            (405, &json!("/problems/method-not-allowed")),
            "{path}"
        );
    }
}

/// Kinds of problems that this file makes on one surface alone or not at all, with the reason.
const NOT_MADE: &[(&str, &str)] = &[
    ("unauthenticated", "the port asks nobody: server/doors.rs"),
    ("not-authorized", "the port asks nobody: server/doors.rs"),
    ("version-mismatch", "it needs an element: native/edits.rs"),
    ("busy", "it needs a log whose followers stand still"),
    ("throttled", "it needs a quota: native/quotas.rs"),
    ("not-enough-replicas", "it needs a cluster with a node that is away"),
    ("disk-full", "it needs a small disk: compat/faults"),
    ("damaged", "it needs a damaged file: compat/faults"),
    ("no-leader", "one node always leads"),
    ("outcome-unknown", "it needs a leader that loses its place, or a disk that stands still"),
    ("method-not-allowed", "gRPC has no such problem"),
    ("not-a-share-group", "it needs a group of consumers: compat/work-queues"),
    ("lease-lost", "it is told of one lease of several: native/queue_commands.rs"),
];

/// Creates the topics that the tables of problems need: a fenced log without its first record, and one for small appends.
async fn prepare(node: &Node) -> [Session; 2] {
    let mut topics = node.topics().await;
    let create = CreateTopicRequest { name: "t".into(), ..Default::default() };
    topics.create_topic(create).await.unwrap();
    let settings = [("max.message.bytes".to_owned(), "100".to_owned())].into();
    let create = CreateTopicRequest { name: "small".into(), settings, ..Default::default() };
    topics.create_topic(create).await.unwrap();
    let settings = [("queue.enable".to_owned(), "true".to_owned())].into();
    let create = CreateTopicRequest { name: "mail".into(), settings, ..Default::default() };
    topics.create_topic(create).await.unwrap();
    let mut logs = node.logs().await;
    let first = logs.append(append(&["a"])).await.unwrap().into_inner().last;
    logs.append(append(&["b"])).await.unwrap();
    let truncate = TruncateRequest { topic: "t".into(), through: first, ..Default::default() };
    logs.truncate(truncate).await.unwrap();
    let fence = FenceRequest { topic: "t".into(), token: "one".into(), ..Default::default() };
    logs.fence(fence).await.unwrap();
    let mut sessions = [Session::default(); 2];
    for (epoch, session) in (0..).zip(&mut sessions) {
        *session = logs.open_session(OpenSessionRequest::default()).await.unwrap().into_inner();
        session.epoch = epoch;
        let heard = AppendRequest { session: Some(*session), ..append(&["c"]) };
        logs.append(heard).await.unwrap();
    }
    sessions
}

fn problems_by_http(node: &Node, [heard, newer]: [Session; 2]) -> Vec<(&'static str, String)> {
    let session = |it: Session, epoch, sequence| {
        [format!("duramen-session: {}.{epoch}", it.id), format!("duramen-sequence: {sequence}")]
    };
    let small = "/v1/topics/small/partitions/0/records";
    let large = "x".repeat(300);
    let rows: [(&str, &str, String, Vec<String>, &str); 16] = [
        ("filter-invalid", "GET", format!("{RECORDS}?filter=nothing"), vec![], ""),
        ("filter-failed", "GET", format!("{RECORDS}?from=2&filter=json.x"), vec![], ""),
        ("bad-request", "GET", format!("{RECORDS}?limit=0"), vec![], ""),
        ("unknown-topic", "GET", "/v1/topics/none".to_owned(), vec![], ""),
        ("topic-exists", "PUT", "/v1/topics/t".to_owned(), vec![], ""),
        ("not-a-queue-topic", "GET", "/v1/topics/t/queues/a".to_owned(), vec![], ""),
        (
            "unknown-element",
            "GET",
            "/v1/topics/mail/queues/a/messages/1.0.0".to_owned(),
            vec![],
            "",
        ),
        (
            "last-mismatch",
            "POST",
            RECORDS.to_owned(),
            vec!["duramen-if-last: none".to_owned()],
            "x",
        ),
        ("fenced", "POST", RECORDS.to_owned(), vec!["duramen-fence: zero".to_owned()], "x"),
        ("sequence-gap", "POST", RECORDS.to_owned(), session(heard, 0, 5).to_vec(), "x"),
        ("session-expired", "POST", small.to_owned(), session(heard, 0, 5).to_vec(), "x"),
        ("session-fenced", "POST", RECORDS.to_owned(), session(newer, 0, 1).to_vec(), "x"),
        ("trimmed", "GET", format!("{RECORDS}?from=0"), vec![], ""),
        ("position-diverged", "GET", format!("{RECORDS}?from=99"), vec![], ""),
        ("too-large", "POST", small.to_owned(), vec![], &large),
        ("unsupported", "GET", "/nothing".to_owned(), vec![], ""),
    ];
    let told = rows.map(|(slug, method, path, headers, body)| {
        let headers: Vec<&str> = headers.iter().map(String::as_str).collect();
        let (status, answer) = node.ask(method, &path, &headers, body);
        let problem: Value = serde_json::from_str(&answer).unwrap();
        assert_eq!(problem["status"], status, "{slug}: {answer}");
        let kind = problem["type"].as_str().unwrap_or_default();
        (slug, kind.trim_start_matches("/problems/").to_owned())
    });
    told.to_vec()
}

async fn problems_by_grpc(
    node: &Node,
    [heard, newer]: [Session; 2],
) -> Vec<(&'static str, Status)> {
    let (mut logs, mut topics) = (node.logs().await, node.topics().await);
    let large = "x".repeat(300);
    let small = |request| AppendRequest { topic: "small".into(), ..request };
    let with = |session, sequence| AppendRequest {
        session: Some(Session { sequence, ..session }),
        ..append(&["x"])
    };
    let guarded = |guard| AppendRequest { guard: Some(guard), ..append(&["x"]) };
    let none = Guard { last: Some(guard::Last::None(true)), fence: None };
    let appends = [
        ("bad-request", append(&[])),
        ("last-mismatch", guarded(none)),
        ("fenced", guarded(Guard { last: None, fence: Some("zero".into()) })),
        ("sequence-gap", with(heard, 5)),
        ("session-expired", small(with(heard, 5))),
        ("session-fenced", with(Session { epoch: 0, ..newer }, 1)),
        ("too-large", small(append(&[&large]))),
    ];
    let mut told = Vec::new();
    for (slug, request) in appends {
        told.push((slug, logs.append(request).await.unwrap_err()));
    }
    for (slug, from, filter) in [
        ("trimmed", 0, ""),
        ("position-diverged", 99, ""),
        ("filter-invalid", 2, "nothing"),
        ("filter-failed", 2, "json.x"),
    ] {
        let start = Some(read_request::Start::From(from));
        let (topic, filter) = ("t".to_owned(), filter.to_owned());
        let request = ReadRequest { topic, start, filter, ..Default::default() };
        let refused = match logs.read(request).await {
            Ok(pages) => pages.into_inner().message().await.unwrap_err(),
            Err(refused) => refused,
        };
        told.push((slug, refused));
    }
    let mut queues = node.queues().await;
    let of = |topic: &str| GetQueueRequest { topic: topic.into(), queue: "a".into() };
    told.push(("not-a-queue-topic", queues.get_queue(of("t")).await.unwrap_err()));
    let position = Some(Position { term: 1, entry: 0, offset: 0 });
    let element = GetElementRequest { topic: "mail".into(), queue: "a".into(), position };
    told.push(("unknown-element", queues.get_element(element).await.unwrap_err()));
    let none = GetTopicRequest { name: "none".into() };
    told.push(("unknown-topic", topics.get_topic(none).await.unwrap_err()));
    let again = CreateTopicRequest { name: "t".into(), ..Default::default() };
    told.push(("topic-exists", topics.create_topic(again).await.unwrap_err()));
    let channel = Channel::from_shared(format!("http://{}", node.native)).unwrap();
    let mut node = tonic::client::Grpc::new(channel.connect().await.unwrap());
    node.ready().await.unwrap();
    let path = PathAndQuery::from_static("/duramen.v1.Nothing/Do");
    let codec = tonic_prost::ProstCodec::<TailRequest, Tail>::default();
    let refused = node.unary(tonic::Request::new(TailRequest::default()), path, codec).await;
    told.push(("unsupported", refused.unwrap_err()));
    told
}

#[tokio::test(flavor = "multi_thread")]
async fn each_problem_is_told_on_both_surfaces() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(dir.path());
    let sessions = prepare(&node).await;
    let mut by_http = BTreeSet::new();
    for (wanted, told) in problems_by_http(&node, sessions) {
        assert_eq!(told, wanted);
        by_http.insert(told);
    }
    let mut by_grpc = BTreeSet::new();
    for (wanted, told) in problems_by_grpc(&node, sessions).await {
        assert_eq!(slug(&told), wanted, "{told:?}");
        by_grpc.insert(slug(&told));
    }
    assert_eq!(by_http, by_grpc);
    let (_, document) = node.json("GET", "/openapi.json", &Value::Null);
    let kinds = &document["components"]["schemas"]["Problem"]["properties"]["type"]["enum"];
    let kinds = kinds.as_array().unwrap().iter();
    let kinds: BTreeSet<String> =
        kinds.map(|it| it.as_str().unwrap().trim_start_matches("/problems/").to_owned()).collect();
    by_http.extend(NOT_MADE.iter().map(|(slug, _)| (*slug).to_owned()));
    assert_eq!(by_http, kinds, "each kind of problem is made here, or NOT_MADE says why not");
}

#[test]
fn a_read_goes_over_what_compaction_removed_and_ends_where_the_log_ends() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start_with(dir.path(), &["log.cleaner.backoff.ms=100"]);
    let settings = json!({
        "cleanup.policy": "compact", "segment.bytes": "4096", "segment.ms": "1",
        "min.cleanable.dirty.ratio": "0", "delete.retention.ms": "0",
    });
    assert_eq!(node.json("PUT", "/v1/topics/t", &json!({ "settings": settings })).0, 201);
    let began = Instant::now();
    let get = |query: &str| {
        let (status, page) = node.json("GET", &format!("{RECORDS}?{query}"), &Value::Null);
        assert_eq!(status, 200, "{query}: {page}");
        page
    };
    let mut end = 0;
    // A tombstone takes the one before, and itself goes in the compaction after the next.
    while end == 0 || get("from=0")["records"][0]["position"].as_str().unwrap().ends_with(".0") {
        assert!(began.elapsed() < PATIENCE, "nothing was compacted");
        let gone = json!({ "records": [{ "key": "k" }] });
        assert_eq!(node.json("POST", RECORDS, &gone).0, 200);
        end += 1;
        std::thread::sleep(Duration::from_millis(50));
    }
    let mut next = 0;
    while next < end {
        let page = get(&format!("from={next}&wait=20ms"));
        assert!(page["next"].as_i64().unwrap() > next, "{page}");
        next = page["next"].as_i64().unwrap();
    }
    for query in [format!("from={end}&wait=20ms"), "from=end".to_owned()] {
        let page = get(&query);
        let found = (&page["records"], &page["next"], &page["more"]);
        assert_eq!(found, (&json!([]), &json!(end), &json!(false)), "{query}");
    }
}

#[test]
fn an_append_is_stored_in_the_codec_of_its_topic() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(dir.path());
    let settings = json!({ "compression.type": "gzip" });
    assert_eq!(node.json("PUT", "/v1/topics/t", &json!({ "settings": settings })).0, 201);
    let records = json!({ "records": [{ "value": "x".repeat(2000) }] });
    assert_eq!(node.json("POST", RECORDS, &records).0, 200);
    let segment = std::fs::read(dir.path().join("t-0/00000000000000000000.log")).unwrap();
    let header = BatchHeader::parse(&segment).unwrap();
    assert_eq!(header.attributes.codec(), Ok(Codec::Gzip));
    assert!(header.batch_bytes() < 500, "{header:?}");
    let (_, page) = node.json("GET", &format!("{RECORDS}?from=0"), &Value::Null);
    assert_eq!(page["records"].as_array().map(Vec::len), Some(1), "{page}");
}

#[test]
fn a_selective_reader_gets_little_and_hears_how_far_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(dir.path());
    assert_eq!(node.ask("PUT", "/v1/topics/t", &[], "").0, 201);
    for hundred in 0..5 {
        let records: Vec<Value> = (0..100)
            .map(|it| json!({ "value": format!("{{\"n\":{}}}", hundred * 100 + it) }))
            .collect();
        assert_eq!(node.json("POST", RECORDS, &json!({ "records": records })).0, 200);
    }
    let records = read_through(&node, "filter=json.n%20%3D%3D%20321");
    let values: Vec<&Value> = records.iter().map(|it| &it["value"]).collect();
    assert_eq!(values, [&json!("{\"n\":321}")]);
    let records =
        read_through(&node, "filter=json.n%3E497&fields=%7B%22double%22%3A%22json.n*2%22%7D");
    let doubles: Vec<&Value> = records.iter().map(|it| &it["fields"]["double"]).collect();
    assert_eq!(doubles, [&json!(996), &json!(998)], "{records:?}");
    assert!(records[0].get("value").is_none(), "{records:?}");
    // A filter that lets nothing through tells how far it is, in pages and in events.
    assert!(read_through(&node, "filter=false").is_empty());
    let accept = ["accept: text/event-stream"];
    let path = format!("{RECORDS}?filter=json.n%3D%3D499&limit=1");
    let (_, events) = node.ask("GET", &path, &accept, "");
    assert!(events.contains("id: 500"), "{events}");
    assert!(events.contains("event: record"), "{events}");
}

/// Reads page by page up to the end of 500 records. A page with an expression may end early.
fn read_through(node: &Node, query: &str) -> Vec<Value> {
    let (mut from, mut records) = (0, Vec::new());
    while from < 500 {
        let (status, page) =
            node.json("GET", &format!("{RECORDS}?from={from}&{query}"), &Value::Null);
        assert_eq!(status, 200, "{page}");
        let next = page["next"].as_i64().unwrap();
        assert!(next > from, "a page moves on: {page}");
        assert_eq!(page["more"], next < 500, "{page}");
        from = next;
        records.extend(page["records"].as_array().unwrap().iter().cloned());
    }
    records
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_ends_before_an_open_transaction_and_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(dir.path());
    assert_eq!(node.ask("PUT", "/v1/topics/t", &[], "").0, 201);
    assert_eq!(node.ask("POST", RECORDS, &[], "seen").0, 200);
    leave_open(&node.kafka.to_string()).await;
    assert_eq!(node.ask("POST", RECORDS, &[], "hidden").0, 200);
    for (query, records, next) in [("", 1, 1), ("from=1", 0, 1), ("from=1&filter=true", 0, 1)] {
        let (_, page) = node.json("GET", &format!("{RECORDS}?{query}"), &Value::Null);
        assert_eq!(page["records"].as_array().unwrap().len(), records, "{query}: {page}");
        assert_eq!((&page["next"], &page["end"]), (&json!(next), &json!(3)), "{query}");
        assert_eq!(page["more"], false, "nothing more is to be had: {query}: {page}");
    }
    let (_, tail) = node.json("GET", "/v1/topics/t/partitions/0", &Value::Null);
    assert_eq!((&tail["stable"], &tail["end"]), (&json!(1), &json!(3)));
}

/// Writes a record in a transaction, and leaves it open.
async fn leave_open(bootstrap: &str) {
    let client = Client::connect(Options::new([bootstrap])).await.unwrap();
    let producer = client.take_over("open", 60_000).await.unwrap();
    let mut batch = BatchBuilder::new().producer(producer.id, producer.epoch, 0).transactional();
    batch.push(&NewRecord { value: Some(b"v"), ..NewRecord::default() }).unwrap();
    let records = Some(batch.build().unwrap());
    let partition_data = [PartitionProduceData { index: 0, records }].into();
    let topic_data =
        [TopicProduceData { name: "t".into(), partition_data, ..Default::default() }].into();
    let transactional_id = Some("open".to_owned());
    let request = ProduceRequest { transactional_id, acks: -1, timeout_ms: 30_000, topic_data };
    let answer = client.call_any(&request).await.unwrap();
    assert_eq!(answer.responses[0].partition_responses[0].error_code, 0);
}

#[test]
fn bodies_that_stand_still_take_no_more_than_the_budget() {
    const BUDGET: u64 = 16 << 20;
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start_with(dir.path(), &[&format!("queued.max.request.bytes={BUDGET}")]);
    assert_eq!(node.ask("PUT", "/v1/topics/t", &[], "").0, 201);
    let head = format!(
        "POST {RECORDS} HTTP/1.1\r\nhost: x\r\ncontent-type: text/plain\r\ncontent-length: {}\r\n\r\n",
        16 << 20
    );
    let slow: Vec<_> = (0..12)
        .map(|_| {
            let mut stream = TcpStream::connect(node.native).unwrap();
            stream.write_all(head.as_bytes()).unwrap();
            stream.set_nonblocking(true).unwrap();
            stream
        })
        .collect();
    // All of them together would send 12 times 15 MiB, if they were read.
    let chunk = vec![7; 1 << 20];
    let mut sent = vec![0; slow.len()];
    let mut quiet = 0;
    let mut most = 0;
    while quiet < 20 {
        quiet += 1;
        for (mut stream, sent) in slow.iter().zip(&mut sent) {
            if *sent < 15 << 20
                && let Ok(count) = stream.write(&chunk)
            {
                (*sent, quiet) = (*sent + count, 0);
            }
        }
        most = most.max(in_flight(&node));
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(most > BUDGET / 2, "bodies are charged: {most}");
    assert!(most < 3 * BUDGET, "{most} of {sent:?}");
    // Who holds little is served meanwhile.
    assert_eq!(node.ask("POST", RECORDS, &[], "small").0, 200);
    drop(slow);
    let began = Instant::now();
    while in_flight(&node) > 0 {
        assert!(began.elapsed() < PATIENCE, "{} bytes stay charged", in_flight(&node));
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Returns the bytes that the node's metric tells of requests on their way.
fn in_flight(node: &Node) -> u64 {
    let (_, metrics) = node.ask("GET", "/metrics", &[], "");
    let line = metrics.lines().find(|it| !it.starts_with('#') && it.contains("in_flight_bytes "));
    line.unwrap().rsplit(' ').next().unwrap().parse().unwrap()
}

#[test]
fn a_bad_topic_is_refused_by_the_name_of_its_field() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(dir.path());
    let rows = [
        ("partitions", json!({ "partitions": -1 })),
        ("partitions", json!({ "partitions": 100_000_000 })),
        ("replication_factor", json!({ "replication_factor": -1 })),
        ("replication_factor", json!({ "replication_factor": 7 })),
        ("settings", json!({ "settings": { "max.message.bytes": "many" } })),
    ];
    for (field, body) in rows {
        let (status, refused) = node.json("PUT", "/v1/topics/t", &body);
        assert_eq!((status, &refused["errors"][0]["field"]), (400, &json!(field)), "{refused}");
    }
    assert_eq!(node.json("PUT", "/v1/topics/t", &Value::Null).0, 201, "all has a default");
    let (status, refused) = node.json("GET", &format!("{RECORDS}?wait=61s&limit=1"), &Value::Null);
    assert_eq!((status, &refused["errors"][0]["field"]), (400, &json!("wait")), "{refused}");
}
