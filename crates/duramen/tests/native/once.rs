//! Three ways to append exactly once: ids under a guard, a session, a session with a name.

use std::path::{Path, PathBuf};
use std::time::Duration;

use duramen::proto::{
    AppendRequest, DeleteQueueRequest, EnqueueRequest, EnqueueResponse, Guard, OpenSessionRequest,
    Position, Record, Session, guard, read_request,
};
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};
use tonic::{Code, Status};

use super::queues::{all, enqueue, retrieve, start};
use super::{Node, ReadRequest, slug};

/// Number of messages that each way appends.
const MESSAGES: usize = 24;

fn message(id: &str) -> Record {
    let id = id.to_owned();
    Record { value: Some(id.clone().into()), id: Some(id), ..Record::default() }
}

fn behind(last: Option<Position>) -> Guard {
    let last = last.map_or(guard::Last::None(true), guard::Last::At);
    Guard { last: Some(last), fence: None }
}

fn named(ids: &[&str], last: Option<Position>) -> EnqueueRequest {
    EnqueueRequest {
        topic: "t".into(),
        queue: "alice".into(),
        messages: ids.iter().map(|id| message(id)).collect(),
        guard: Some(behind(last)),
        ..EnqueueRequest::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_append_is_known_by_its_ids() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(dir.path(), 2).await;
    let mut queues = node.queues().await;
    let first = queues.enqueue(named(&["a", "b"], None)).await.unwrap().into_inner();
    assert!(!first.duplicate);
    let again = queues.enqueue(named(&["a", "b"], None)).await.unwrap().into_inner();
    assert_eq!(again, EnqueueResponse { duplicate: true, ..first });
    // Elements behind it do not matter, but all ids do, and their order.
    let second = queues.enqueue(named(&["c"], first.last)).await.unwrap().into_inner();
    let again = queues.enqueue(named(&["a", "b"], None)).await.unwrap().into_inner();
    assert_eq!(again, EnqueueResponse { duplicate: true, ..first });
    for ids in [&["b", "a"][..], &["a", "b", "x"], &["x"], &["a", "b", "c", "d"], &["b"]] {
        let refused = queues.enqueue(named(ids, None)).await.unwrap_err();
        assert_eq!(slug(&refused), "last-mismatch", "{ids:?}");
        let info = tonic_types::StatusExt::get_details_error_info(&refused).unwrap();
        assert_eq!(info.metadata["last"], second.last.unwrap().to_string());
    }
    // A guard of another history finds nothing.
    let elsewhere = first.last.map(|it| Position { term: it.term + 1, ..it });
    let refused = queues.enqueue(named(&["c"], elsewhere)).await.unwrap_err();
    assert_eq!(slug(&refused), "last-mismatch");
    drop(node);
    let node = Node::start(dir.path());
    let mut queues = node.queues().await;
    let again = queues.enqueue(named(&["c"], first.last)).await.unwrap().into_inner();
    assert_eq!(again, EnqueueResponse { duplicate: true, ..second });
    assert_eq!(all(&mut queues, "alice", 0).await, ["a", "b", "c"]);
    // Other queues share the log, and the ids of theirs do not count.
    enqueue(&mut queues, "bob", &["x"]).await;
    let bob = EnqueueRequest { queue: "bob".into(), ..named(&["a", "b"], None) };
    assert_eq!(slug(&queues.enqueue(bob).await.unwrap_err()), "last-mismatch");
}

/// The guard of a repeated append holds again once another writer has withdrawn the first try.
#[tokio::test(flavor = "multi_thread")]
async fn a_repeat_whose_first_try_was_withdrawn_is_appended_anew() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(dir.path(), 2).await;
    let mut queues = node.queues().await;
    let first = queues.enqueue(named(&["a"], None)).await.unwrap().into_inner();
    let (topic, queue) = ("t".into(), "alice".into());
    let all_of_it = DeleteQueueRequest { topic, queue, ..DeleteQueueRequest::default() };
    queues.delete_queue(all_of_it).await.unwrap();
    let again = queues.enqueue(named(&["a"], None)).await.unwrap().into_inner();
    assert!(!again.duplicate);
    assert_ne!(again.first, first.first);
    assert_eq!(all(&mut queues, "alice", 0).await, ["a"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn ids_are_shown_and_checked_on_both_surfaces() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(dir.path(), 1).await;
    let path = "/v1/topics/t/queues/alice/messages";
    let headers = ["duramen-if-last: none", "duramen-id: order-1"];
    let (status, first) = node.ask("POST", path, &headers, "x");
    assert_eq!(status, 200, "{first}");
    let first: Value = serde_json::from_str(&first).unwrap();
    let (status, again) = node.ask("POST", path, &headers, "x");
    assert_eq!((status, again.contains(r#""duplicate":true"#)), (200, true), "{again}");
    let (status, other) =
        node.ask("POST", path, &["duramen-if-last: none", "duramen-id: order-2"], "x");
    assert_eq!(status, 412, "{other}");
    let (_, page) = node.json("GET", path, &Value::Null);
    assert_eq!(page["elements"][0]["id"], "order-1", "{page}");
    assert_eq!(page["elements"][0]["headers"], Value::Null, "the header is shown as the id");
    let next = json!({
        "messages": [{ "value": "y", "id": "order-2" }, { "value": "z", "id": "order-3" }],
        "guard": { "last": first["last"] },
    });
    assert_eq!(node.json("POST", path, &next).0, 200);
    assert_eq!(node.json("POST", path, &next).1["duplicate"], true);
    let long = "x".repeat(65);
    for ids in [[Some("a"), None], [Some(""), Some("b")], [Some(&long), Some("b")]] {
        let messages = ids.map(|id| json!({ "value": "x", "id": id }));
        let (status, problem) = node.json("POST", path, &json!({ "messages": messages }));
        assert_eq!((status, &problem["errors"][0]["field"]), (400, &json!("messages")), "{ids:?}");
    }
    let headers = json!({ "duramen-id": "b" });
    let twice = json!({ "messages": [{ "value": "x", "id": "a", "headers": headers }] });
    assert_eq!(node.json("POST", path, &twice).0, 400);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_knows_a_repeated_append_too() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(dir.path());
    let topic = duramen::proto::CreateTopicRequest { name: "t".into(), ..Default::default() };
    node.topics().await.create_topic(topic).await.unwrap();
    let mut logs = node.logs().await;
    let append = |ids: &[&str], last| AppendRequest {
        topic: "t".into(),
        records: ids.iter().map(|id| message(id)).collect(),
        guard: Some(behind(last)),
        ..AppendRequest::default()
    };
    let first = logs.append(append(&["a", "b"], None)).await.unwrap().into_inner();
    let second = logs.append(append(&["c"], first.last)).await.unwrap().into_inner();
    for (ids, last, known) in [(&["a", "b"][..], None, first), (&["c"], first.last, second)] {
        let again = logs.append(append(ids, last)).await.unwrap().into_inner();
        assert!(again.duplicate);
        assert_eq!((again.first, again.last), (known.first, known.last));
    }
    for (ids, last) in [(&["b"][..], None), (&["a", "b"], first.first), (&["d"], first.last)] {
        let refused = logs.append(append(ids, last)).await.unwrap_err();
        assert_eq!((slug(&refused).as_str(), refused.code()), ("last-mismatch", Code::Aborted));
    }
    let from = Some(read_request::Start::From(0));
    let request = ReadRequest { topic: "t".into(), start: from, ..ReadRequest::default() };
    let page = logs.read(request).await.unwrap().into_inner().message().await.unwrap().unwrap();
    let ids: Vec<_> = page.records.into_iter().map(|it| it.record.unwrap().id.unwrap()).collect();
    assert_eq!(ids, ["a", "b", "c"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_with_a_name_keeps_earlier_holders_out() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(dir.path(), 1).await;
    let (mut logs, mut queues) = (node.logs().await, node.queues().await);
    let open = OpenSessionRequest { name: "writer".into() };
    let older = logs.open_session(open.clone()).await.unwrap().into_inner();
    let append = |session, value: &str| EnqueueRequest {
        topic: "t".into(),
        queue: "alice".into(),
        messages: vec![Record { value: Some(value.to_owned().into()), ..Record::default() }],
        session: Some(session),
        ..EnqueueRequest::default()
    };
    let first = queues.enqueue(append(older, "a")).await.unwrap().into_inner();
    let (status, newer) = node.json("POST", "/v1/sessions", &json!({ "name": "writer" }));
    assert_eq!((status, &newer["id"]), (201, &json!(older.id)), "{newer}");
    let epoch = i32::try_from(newer["epoch"].as_i64().unwrap()).unwrap();
    assert!(epoch > older.epoch);
    let again = queues.enqueue(append(older, "a")).await.unwrap().into_inner();
    assert_eq!(again, EnqueueResponse { duplicate: true, ..first });
    let newer = Session { epoch, ..older };
    queues.enqueue(append(newer, "b")).await.unwrap();
    let late = queues.enqueue(append(Session { sequence: 1, ..older }, "c")).await.unwrap_err();
    assert_eq!(slug(&late), "session-fenced");
    assert_eq!(all(&mut queues, "alice", 0).await, ["a", "b"]);
    let long = OpenSessionRequest { name: "x".repeat(256) };
    assert_eq!(slug(&logs.open_session(long).await.unwrap_err()), "bad-request");
    let nameless = logs.open_session(OpenSessionRequest::default()).await.unwrap().into_inner();
    assert_ne!(nameless.id, older.id);
}

/// A session counts its own records. If another writer appended the ids first, the answer is no duplicate.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_knows_its_own_appends_alone() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(dir.path(), 1).await;
    let (mut logs, mut queues) = (node.logs().await, node.queues().await);
    let open = OpenSessionRequest { name: "writer".into() };
    let older = logs.open_session(open.clone()).await.unwrap().into_inner();
    let newer = logs.open_session(open).await.unwrap().into_inner();
    let append =
        |session, id: &str, last| EnqueueRequest { session: Some(session), ..named(&[id], last) };
    let first = queues.enqueue(append(older, "a", None)).await.unwrap().into_inner();
    let refused = queues.enqueue(append(newer, "a", None)).await.unwrap_err();
    assert_eq!(slug(&refused), "last-mismatch");
    let second = queues.enqueue(append(newer, "b", first.last)).await.unwrap().into_inner();
    let again = queues.enqueue(append(newer, "b", first.last)).await.unwrap().into_inner();
    assert_eq!(again, EnqueueResponse { duplicate: true, ..second });
    let next = Session { sequence: 1, ..newer };
    queues.enqueue(append(next, "c", second.last)).await.unwrap();
    assert_eq!(all(&mut queues, "alice", 0).await, ["a", "b", "c"]);
    let topic = duramen::proto::CreateTopicRequest { name: "log".into(), ..Default::default() };
    node.topics().await.create_topic(topic).await.unwrap();
    let append = |session| AppendRequest {
        topic: "log".into(),
        records: vec![message("a")],
        guard: Some(behind(None)),
        session: Some(session),
        ..AppendRequest::default()
    };
    assert!(!logs.append(append(older)).await.unwrap().into_inner().duplicate);
    assert!(logs.append(append(older)).await.unwrap().into_inner().duplicate);
    assert_eq!(slug(&logs.append(append(newer)).await.unwrap_err()), "last-mismatch");
}

/// A node that is killed and started again.
struct Mortal {
    dir: PathBuf,
    node: Option<Node>,
}

impl Mortal {
    fn node(&self) -> &Node {
        self.node.as_ref().unwrap()
    }

    fn restart(&mut self) {
        self.node = None;
        self.node = Some(Node::start(&self.dir));
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    Ids,
    Session,
    Name,
}

/// A client's memory. Whoever begins again after a kill has `Kept` alone, and of the others nothing.
struct Writer {
    /// Number of the next message.
    next: usize,
    /// Last element of the queue.
    last: Option<Position>,
    session: Option<Session>,
    /// Number of the first message of this client, and of this session.
    first: usize,
}

impl Writer {
    /// Begins as a client that remembers its session and its progress, or nothing.
    async fn begin(way: Way, node: &Node, kept: Option<(Session, usize)>) -> Result<Self, Status> {
        let mut logs = node.logs().await;
        let (session, next) = match (way, kept) {
            (Way::Ids, _) => (None, None),
            (Way::Session, Some((session, next))) => (Some(session), Some(next)),
            (Way::Session, None) => {
                let opened = logs.open_session(OpenSessionRequest::default()).await?;
                (Some(opened.into_inner()), Some(0))
            }
            (Way::Name, _) => {
                let opened = logs.open_session(OpenSessionRequest { name: "w".into() }).await?;
                (Some(opened.into_inner()), None)
            }
        };
        let mut it = Self { next: next.unwrap_or(0), last: None, session, first: 0 };
        if next.is_none() {
            it.look(node).await?;
        }
        Ok(it)
    }

    /// Reads the end of the queue.
    async fn look(&mut self, node: &Node) -> Result<(), Status> {
        let page = node.queues().await.retrieve(retrieve("alice", None)).await?.into_inner();
        self.next = page.elements.len();
        self.first = self.next;
        self.last = page.elements.last().and_then(|it| it.position);
        Ok(())
    }

    fn request(&self, way: Way) -> EnqueueRequest {
        let id = format!("m-{}", self.next);
        let named = named(&[&id], self.last);
        let sequence = i32::try_from(self.next - self.first).unwrap();
        let session = self.session.map(|it| Session { sequence, ..it });
        match way {
            Way::Ids => named,
            // An earlier holder may append until the log has a record of the new one. So the first has a guard.
            Way::Name if sequence == 0 => EnqueueRequest { session, ..named },
            Way::Session | Way::Name => EnqueueRequest { guard: None, session, ..named },
        }
    }
}

/// Appends while client and node are killed in turn, at other moments of their calls.
async fn append_through_kills(dir: &Path, way: Way) {
    let mut broker = Mortal { dir: dir.to_owned(), node: Some(start(dir, 1).await) };
    let mut kept = None;
    let mut attempt: u64 = 0;
    let mut writer = Writer::begin(way, broker.node(), kept).await.unwrap();
    while writer.next < MESSAGES {
        attempt += 1;
        assert!(attempt < 1_000, "it goes on");
        kept = writer.session.map(|session| (session, writer.next));
        let delay = Duration::from_micros(attempt * 7 % 13 * 150);
        let mut queues = broker.node().queues().await;
        let request = writer.request(way);
        let call = async move { queues.enqueue(request).await };
        let outcome = match attempt % 4 {
            // The client dies, and another one begins.
            1 => {
                let Ok(outcome) = timeout(delay, call).await else {
                    writer = Writer::begin(way, broker.node(), kept).await.unwrap();
                    continue;
                };
                outcome
            }
            3 => {
                let call = tokio::spawn(call);
                sleep(delay).await;
                broker.restart();
                call.await.unwrap()
            }
            _ => call.await,
        };
        match outcome {
            Ok(answer) => {
                writer.next += 1;
                writer.last = answer.into_inner().last;
            }
            Err(status) if way == Way::Name && slug(&status) == "last-mismatch" => {
                writer.look(broker.node()).await.unwrap();
            }
            Err(status) => {
                let lost = [Code::Unavailable, Code::DeadlineExceeded, Code::Unknown];
                let lost = lost.into_iter().chain([Code::Cancelled, Code::Internal]);
                assert!(lost.into_iter().any(|it| it == status.code()), "{way:?}: {status:?}");
            }
        }
    }
    let found = all(&mut broker.node().queues().await, "alice", 0).await;
    let expected: Vec<String> = (0..MESSAGES).map(|number| format!("m-{number}")).collect();
    assert_eq!(found, expected, "{way:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn ids_append_once_through_kills_of_client_and_node() {
    append_through_kills(tempfile::tempdir().unwrap().path(), Way::Ids).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_append_once_through_kills_of_client_and_node() {
    append_through_kills(tempfile::tempdir().unwrap().path(), Way::Session).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_with_names_append_once_through_kills_of_client_and_node() {
    append_through_kills(tempfile::tempdir().unwrap().path(), Way::Name).await;
}
