//! The native API of a real server: gRPC and HTTP on one port.
#![expect(clippy::unwrap_used, reason = "a test's own failure is a failure")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use duramen::proto::logs_client::LogsClient;
use duramen::proto::topics_client::TopicsClient;
use duramen::proto::{
    AppendRequest, CreateTopicRequest, FenceRequest, Guard, OpenSessionRequest, Pointer, Position,
    ReadRequest, Record, Session, TailRequest, TruncateRequest, guard, read_request,
};
use serde_json::{Value, json};
use tonic::transport::Channel;
use tonic::{Code, Status};
use tonic_types::StatusExt;

/// Long enough for a busy machine; nothing here waits so long when all is well.
const PATIENCE: Duration = Duration::from_secs(30);

struct Node {
    child: Child,
    native: SocketAddr,
}

impl Node {
    fn start(data_dir: &Path) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_duramen"));
        command.args(["serve", "--listen", "127.0.0.1:0", "--native", "127.0.0.1:0"]);
        command.args(["--log-format", "json"]).arg("--data-dir").arg(data_dir);
        command.env_remove("RUST_LOG").stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let mut native = None;
        let mut line = String::new();
        while native.is_none() {
            line.clear();
            assert!(stderr.read_line(&mut line).unwrap() > 0, "it ends");
            if line.contains("serving the native API") {
                let told: Value = serde_json::from_str(&line).unwrap();
                let at = told["fields"]["address"].as_str().or(told["address"].as_str());
                native = Some(at.unwrap().parse().unwrap());
            }
        }
        std::thread::spawn(move || std::io::copy(&mut stderr, &mut std::io::sink()));
        Self { child, native: native.unwrap() }
    }

    async fn logs(&self) -> LogsClient<Channel> {
        LogsClient::connect(format!("http://{}", self.native)).await.unwrap()
    }

    async fn topics(&self) -> TopicsClient<Channel> {
        TopicsClient::connect(format!("http://{}", self.native)).await.unwrap()
    }

    /// Sends a request over HTTP/1.1; returns the status and the body.
    fn ask(&self, method: &str, path: &str, headers: &[&str], body: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(self.native).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut request = format!("{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n");
        let length = format!("content-length: {}", body.len());
        for header in headers.iter().copied().chain([length.as_str()]) {
            request.extend([header, "\r\n"]);
        }
        request.extend(["\r\n", body]);
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, body.to_owned())
    }

    fn json(&self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let (status, text) = self.ask(method, path, &["content-type: application/json"], &body);
        (status, serde_json::from_str(&text).unwrap_or(Value::Null))
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
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
    let session = logs.open_session(OpenSessionRequest {}).await.unwrap().into_inner();
    let once = AppendRequest { session: Some(session), ..append(&["a", "b"]) };
    let first = logs.append(once.clone()).await.unwrap().into_inner();
    let again = logs.append(once).await.unwrap().into_inner();
    assert_eq!((first.last, first.duplicate, again.duplicate), (again.last, false, true));
    let gap = Session { sequence: 5, ..session };
    let refused = logs.append(AppendRequest { session: Some(gap), ..append(&["f"]) }).await;
    assert_eq!(slug(&refused.unwrap_err()), "sequence-gap");
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
