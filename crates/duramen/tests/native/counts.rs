//! Calls of a real server, as its metrics count them.

use duramen::proto::{
    Cursor, Guard, ReadRequest, RetrieveRequest, SubscribeRequest, TailRequest, guard,
};
use futures_util::stream::{self, StreamExt};
use serde_json::{Value, json};

use super::queues::{create, enqueue, retrieve};
use super::{AppendRequest, Node, PATIENCE, append, slug};

/// Returns the value of a metric without its labels' order in doubt; 0 if it is not there.
fn metric(node: &Node, name: &str) -> u64 {
    let (_, metrics) = node.ask("GET", "/metrics", &[], "");
    let line = metrics.lines().find_map(|line| line.strip_prefix("duramen_")?.strip_prefix(name));
    line.map_or(0, |value| value.trim().parse().unwrap())
}

fn calls(node: &Node, operation: &str, outcome: &str) -> u64 {
    let labels = format!("{{operation=\"{operation}\",outcome=\"{outcome}\"}}");
    let timed = metric(node, &format!("native_call_seconds_count{labels}"));
    let all = metric(node, &format!("native_calls_total{labels}"));
    assert!(timed <= all, "{labels}");
    all
}

async fn until(wanted: u64, what: impl Fn() -> u64) {
    let reached = async {
        while what() != wanted {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    let reached = tokio::time::timeout(PATIENCE, reached).await;
    assert!(reached.is_ok(), "{} instead of {wanted}", what());
}

#[tokio::test(flavor = "multi_thread")]
async fn each_call_is_counted_by_its_operation_and_its_outcome() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(dir.path());
    create(&node, "mail", 1).await;
    assert_eq!(node.json("PUT", "/v1/topics/t", &Value::Null).0, 201);
    assert_eq!(calls(&node, "Topics.CreateTopic", "ok"), 2, "one by each surface");
    let (mut logs, records) = (node.logs().await, "/v1/topics/t/partitions/0/records");
    logs.append(append(&["a"])).await.unwrap();
    let none = Guard { last: Some(guard::Last::None(true)), fence: None };
    let refused = logs.append(AppendRequest { guard: Some(none), ..append(&["b"]) }).await;
    assert_eq!(slug(&refused.unwrap_err()), "last-mismatch");
    assert_eq!(node.ask("POST", records, &["duramen-if-last: none"], "b").0, 412);
    assert_eq!(node.json("POST", records, &json!({ "record": [] })).0, 400);
    assert_eq!(calls(&node, "Logs.Append", "ok"), 1);
    assert_eq!(calls(&node, "Logs.Append", "last-mismatch"), 2);
    assert_eq!(calls(&node, "Logs.Append", "bad-request"), 1);
    let seconds = "native_call_seconds_count{operation=\"Logs.Append\",outcome=\"last-mismatch\"}";
    assert_eq!(metric(&node, seconds), 2);
    // Other paths are no operations.
    assert_eq!(node.ask("GET", "/v1/nothing", &[], "").0, 404);
    assert_eq!(node.ask("GET", "/problems/fenced", &[], "").0, 200);
    let (_, metrics) = node.ask("GET", "/metrics", &[], "");
    assert!(!metrics.contains("outcome=\"unsupported\""), "{metrics}");
    assert!(!metrics.contains("operation=\"Pages"), "{metrics}");
    // A stream is counted by the way that it ends.
    let failing = ReadRequest { topic: "t".into(), filter: "json.x".into(), ..Default::default() };
    let mut pages = logs.read(failing).await.unwrap().into_inner();
    assert_eq!(slug(&pages.message().await.unwrap_err()), "filter-failed");
    let path = format!("{records}?filter=json.x");
    let (_, events) = node.ask("GET", &path, &["accept: text/event-stream"], "");
    assert!(events.contains("/problems/filter-failed"), "{events}");
    assert_eq!(calls(&node, "Logs.Read", "filter-failed"), 2);
    let whole = ReadRequest { topic: "t".into(), ..Default::default() };
    let pages: Vec<_> = logs.read(whole).await.unwrap().into_inner().collect().await;
    assert_eq!((pages.len(), calls(&node, "Logs.Read", "ok")), (1, 1));
    let (_, metrics) = node.ask("GET", "/metrics", &[], "");
    assert!(!metrics.contains("native_call_seconds_count{operation=\"Logs.Read\""), "{metrics}");
    let unknown = TailRequest { topic: "none".into(), partition: 0 };
    assert_eq!(slug(&logs.tail(unknown).await.unwrap_err()), "unknown-topic");
    assert_eq!(calls(&node, "Logs.Tail", "unknown-topic"), 1);
    node.queues().await.enqueue_stream(stream::empty()).await.unwrap().into_inner().next().await;
    assert_eq!(calls(&node, "Queues.EnqueueStream", "ok"), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn open_streams_and_reads_that_wait_are_counted_until_they_end() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(dir.path());
    create(&node, "t", 1).await;
    let mut queues = node.queues().await;
    let waiting = || metric(&node, "native_reads_waiting ");
    let streams =
        |operation: &str| metric(&node, &format!("native_streams{{operation=\"{operation}\"}}"));
    let cursors = ["alice", "bob"].map(|queue| Cursor { queue: queue.into(), start: None });
    let request =
        SubscribeRequest { topic: "t".into(), cursors: cursors.to_vec(), ..Default::default() };
    let events = queues.subscribe(request).await.unwrap().into_inner();
    let request = ReadRequest { topic: "t".into(), follow: true, ..Default::default() };
    let pages = node.logs().await.read(request).await.unwrap().into_inner();
    until(3, waiting).await;
    assert_eq!((streams("Queues.Subscribe"), streams("Logs.Read")), (1, 1));
    drop(events);
    until(1, waiting).await;
    until(1, || calls(&node, "Queues.Subscribe", "gone")).await;
    assert_eq!((streams("Queues.Subscribe"), streams("Logs.Read")), (0, 1));
    drop(pages);
    until(0, || streams("Logs.Read")).await;
    until(0, waiting).await;
    let mut other = node.queues().await;
    let read = tokio::spawn(async move {
        let request = RetrieveRequest { wait_ms: 60_000, ..retrieve("carol", None) };
        other.retrieve(request).await.unwrap()
    });
    until(1, waiting).await;
    enqueue(&mut queues, "carol", &["c"]).await;
    read.await.unwrap();
    assert_eq!((waiting(), calls(&node, "Queues.Retrieve", "ok")), (0, 1));
}
