//! Erasure of what edits took away: its bytes, and the names of queues of which nothing is left, leave the disk.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use bytes::Bytes;
use duramen::proto::{
    CreateTopicRequest, DeleteQueueRequest, EnqueueRequest, EnqueueResponse, GetQueueRequest,
    Guard, Position, Record, ReplaceRequest, Schedule, TrimQueueRequest, guard, schedule,
};
use duramen_client::{Client, Options};
use serde_json::{Value, json};
use tonic::Code;

use super::edits::{consume, delete, of};
use super::queues::{all, enqueue};
use super::{Node, slug};

/// Time after which a test fails that waits for the disk, in seconds.
const PATIENCE_S: u64 = 120;

fn node(dir: &Path) -> Node {
    Node::start_with(dir, &["log.cleaner.backoff.ms=100"])
}

async fn create(node: &Node, retention_ms: &str) {
    let settings = [
        ("queue.enable", "true"),
        ("queue.erase.lag.ms", "0"),
        ("delete.retention.ms", retention_ms),
    ];
    let settings = settings.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    let create =
        CreateTopicRequest { name: "t".into(), partitions: 1, settings, ..Default::default() };
    node.topics().await.create_topic(create).await.unwrap();
}

/// Returns the files of the log that hold one of these texts.
fn holding(dir: &Path, texts: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    for file in fs::read_dir(dir.join("t-0")).unwrap() {
        let path = file.unwrap().path();
        // A file may go between the two.
        let Ok(bytes) = fs::read(&path) else { continue };
        let holds = |text: &&str| bytes.windows(text.len()).any(|part| part == text.as_bytes());
        if texts.iter().any(holds) {
            found.push(path.display().to_string());
        }
    }
    found
}

/// Waits until no file of the log holds one of these texts.
async fn await_erasure(dir: &Path, texts: &[&str]) {
    let begun = Instant::now();
    while !holding(dir, texts).is_empty() {
        let found = holding(dir, texts);
        assert!(begun.elapsed() < Duration::from_secs(PATIENCE_S), "{found:?} hold {texts:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Returns the replica's row of `duramen queue erasure`.
fn row(node: &Node) -> Value {
    let mut command = Command::new(env!("CARGO_BIN_EXE_duramen"));
    command.args(["queue", "erasure", "t", "--output", "json"]);
    command.args(["--bootstrap", &node.kafka.to_string()]).stdin(Stdio::null());
    let done = command.output().unwrap();
    let text = String::from_utf8_lossy(&done.stderr).into_owned();
    let report: Value = serde_json::from_slice(&done.stdout).unwrap_or_else(|_| panic!("{text}"));
    assert_eq!(report["erased"], report["replicas"][0]["state"] == "erased");
    report["replicas"][0].clone()
}

/// Waits until the command says that all is erased.
async fn await_state(node: &Node) -> Value {
    let begun = Instant::now();
    loop {
        let row = row(node);
        if row["state"] == "erased" {
            return row;
        }
        assert!(begun.elapsed() < Duration::from_secs(PATIENCE_S), "{row}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_tells_what_waits() {
    let dir = tempfile::tempdir().unwrap();
    let node = node(dir.path());
    let settings = [("queue.enable".to_owned(), "true".to_owned())].into();
    let (name, partitions) = ("t".to_owned(), 1);
    let create = CreateTopicRequest { name, partitions, settings, ..Default::default() };
    node.topics().await.create_topic(create).await.unwrap();
    let mut queues = node.queues().await;
    let last = enqueue(&mut queues, "alice", &["a0", "a1"]).await;
    assert_eq!(await_state(&node).await["erased_offset"], 0);
    delete(&mut queues, "alice", &[last]).await;
    let row = row(&node);
    assert_eq!((&row["state"], &row["hidden_records"]), (&json!("waits"), &json!(1)));
    assert!(row["hidden_since"].as_str().is_some_and(|since| since.starts_with("20")), "{row}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_edits_took_away_leaves_the_disk() {
    let dir = tempfile::tempdir().unwrap();
    let running = node(dir.path());
    create(&running, "86400000").await;
    let mut queues = running.queues().await;
    let alice = enqueue(&mut queues, "alice", &["stays-0", "secret-1", "secret-2"]).await;
    let bob = enqueue(&mut queues, "bob", &["secret-3"]).await;
    let at = |offset| Position { offset, ..alice };
    let replace = ReplaceRequest {
        topic: "t".into(),
        queue: "alice".into(),
        position: Some(at(1)),
        message: Some(Record { value: Some("stays-1".into()), ..Record::default() }),
        ..ReplaceRequest::default()
    };
    let replaced = queues.replace(replace).await.unwrap().into_inner().at.unwrap();
    delete(&mut queues, "alice", &[at(2)]).await;
    delete(&mut queues, "bob", &[bob]).await;
    await_erasure(dir.path(), &["secret"]).await;
    let row = await_state(&running).await;
    assert_eq!((&row["erased_offset"], &row["hidden_records"]), (&json!(7), &json!(0)));
    let mut running = Some(running);
    for _ in 0..2 {
        let it = running.take().unwrap_or_else(|| node(dir.path()));
        let mut queues = it.queues().await;
        assert_eq!(all(&mut queues, "alice", 0).await, ["stays-0", "stays-1"]);
        assert_eq!(all(&mut queues, "bob", 0).await, [""; 0]);
        let client = Client::connect(Options::new([it.kafka.to_string()])).await.unwrap();
        let left = of(&[(0, "stays-0"), (replaced.offset, "stays-1")]);
        assert_eq!(consume(&client, bob.offset + 4).await, left);
        // A guard names the last element, though it is deleted and erased.
        let ask = GetQueueRequest { topic: "t".into(), queue: "alice".into() };
        let last = queues.get_queue(ask).await.unwrap().into_inner().last.unwrap();
        assert_eq!((last.term, last.offset), (at(2).term, 2));
    }
    let it = node(dir.path());
    let mut queues = it.queues().await;
    let guarded = |last: Position| EnqueueRequest {
        topic: "t".into(),
        queue: "alice".into(),
        messages: vec![Record { value: Some("next".into()), ..Record::default() }],
        guard: Some(Guard { last: Some(guard::Last::At(last)), ..Guard::default() }),
        ..EnqueueRequest::default()
    };
    let refused = queues.enqueue(guarded(at(0))).await.unwrap_err();
    assert_eq!(refused.code(), Code::Aborted);
    queues.enqueue(guarded(at(2))).await.unwrap();
    assert_eq!(all(&mut queues, "alice", 0).await, ["stays-0", "stays-1", "next"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_name_of_a_deleted_queue_leaves_the_disk_with_its_statements() {
    let dir = tempfile::tempdir().unwrap();
    let running = node(dir.path());
    create(&running, "0").await;
    let mut queues = running.queues().await;
    enqueue(&mut queues, "mallory", &["one", "two"]).await;
    enqueue(&mut queues, "alice", &["a0", "a1", "a2"]).await;
    let through = enqueue(&mut queues, "alice", &["a3", "a4"]).await;
    let gone =
        DeleteQueueRequest { topic: "t".into(), queue: "mallory".into(), ..Default::default() };
    queues.delete_queue(gone).await.unwrap();
    let trim = TrimQueueRequest {
        topic: "t".into(),
        queue: "alice".into(),
        through: Some(Position { offset: through.offset - 1, ..through }),
        ..TrimQueueRequest::default()
    };
    queues.trim_queue(trim).await.unwrap();
    await_erasure(dir.path(), &["a0", "a1", "a2", "a3"]).await;
    // The statements go with the erasure after that. The last batch below it stays, so something follows.
    enqueue(&mut queues, "alice", &["a5"]).await;
    let last = enqueue(&mut queues, "alice", &["a6"]).await;
    delete(&mut queues, "alice", &[last]).await;
    await_erasure(dir.path(), &["mallory", "a6"]).await;
    assert_eq!(all(&mut queues, "alice", 0).await, ["a4", "a5"]);
    assert_eq!(all(&mut queues, "mallory", 0).await, [""; 0]);
    drop(running);
    let running = node(dir.path());
    let mut queues = running.queues().await;
    assert_eq!(all(&mut queues, "alice", 0).await, ["a4", "a5"]);
    assert_eq!(holding(dir.path(), &["mallory", "a3", "a6"]), [""; 0]);
}

/// Returns messages for a queue that expire after so many milliseconds, each with its value as its id.
fn expiring(queue: &str, values: &[&str], ttl_ms: u64) -> EnqueueRequest {
    let end = Some(schedule::End::TtlMs(ttl_ms));
    let schedule = Some(Schedule { end, ..Schedule::default() });
    let message = |value: &&str| Record {
        value: Some((*value).to_owned().into()),
        id: Some((*value).to_owned()),
        schedule,
        ..Record::default()
    };
    EnqueueRequest {
        topic: "t".into(),
        queue: Bytes::copy_from_slice(queue.as_bytes()),
        messages: values.iter().map(message).collect(),
        ..EnqueueRequest::default()
    }
}

/// Enqueues messages that expire after so many milliseconds. Returns the position of the first.
async fn enqueue_expiring(node: &Node, queue: &str, values: &[&str], ttl_ms: u64) -> Position {
    let enqueue = expiring(queue, values, ttl_ms);
    node.queues().await.enqueue(enqueue).await.unwrap().into_inner().first.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_append_is_known_by_what_erasure_has_left_of_it() {
    let dir = tempfile::tempdir().unwrap();
    let node = node(dir.path());
    create(&node, "86400000").await;
    let mut queues = node.queues().await;
    let guarded = |ids: &[&str]| EnqueueRequest {
        guard: Some(Guard { last: Some(guard::Last::None(true)), fence: None }),
        ..expiring("bob", ids, 1)
    };
    let ids = ["over-0", "over-1", "last-2"];
    let first = queues.enqueue(guarded(&ids)).await.unwrap().into_inner();
    enqueue(&mut queues, "alice", &["stays"]).await;
    await_erasure(dir.path(), &["over"]).await;
    let again = queues.enqueue(guarded(&ids)).await.unwrap().into_inner();
    assert_eq!(again, EnqueueResponse { duplicate: true, ..first });
    for other in [
        &["over-1", "last-2"][..],
        &["last-2", "over-1", "over-0"],
        &["over-0", "over-1", "last-3"],
        &["over-0", "over-1", "last-2", "next-3"],
    ] {
        let refused = queues.enqueue(guarded(other)).await.unwrap_err();
        assert_eq!(slug(&refused), "last-mismatch", "{other:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_has_expired_leaves_the_disk_and_the_last_element_of_a_queue_stays() {
    let dir = tempfile::tempdir().unwrap();
    let running = node(dir.path());
    create(&running, "86400000").await;
    let mut queues = running.queues().await;
    enqueue_expiring(&running, "alice", &["over-0", "over-1"], 1).await;
    enqueue(&mut queues, "alice", &["stays-2"]).await;
    enqueue_expiring(&running, "alice", &["later-3"], 3_600_000).await;
    let bob = enqueue_expiring(&running, "bob", &["over-4", "last-5"], 1).await;
    enqueue_expiring(&running, "carol", &["over-6"], 1).await;
    enqueue(&mut queues, "carol", &["stays-7"]).await;
    await_erasure(dir.path(), &["over"]).await;
    let row = await_state(&running).await;
    assert_eq!(row["hidden_records"], json!(0), "{row}");
    assert!(row["expired_since"].as_str().is_some_and(|since| since.starts_with("20")), "{row}");
    let mut running = Some(running);
    for _ in 0..2 {
        let it = running.take().unwrap_or_else(|| node(dir.path()));
        let mut queues = it.queues().await;
        assert_eq!(all(&mut queues, "alice", 0).await, ["stays-2", "later-3"]);
        assert_eq!(all(&mut queues, "bob", 0).await, [""; 0]);
        assert_eq!(all(&mut queues, "carol", 0).await, ["stays-7"]);
        assert_ne!(holding(dir.path(), &["last-5"]), [""; 0], "a guard may name it");
        let ask = GetQueueRequest { topic: "t".into(), queue: "bob".into() };
        let last = queues.get_queue(ask).await.unwrap().into_inner().last.unwrap();
        assert_eq!(last.offset, bob.offset + 1);
    }
    // Once the queue goes on, the element goes, too. The last batch of the log stays.
    let it = node(dir.path());
    let mut queues = it.queues().await;
    enqueue(&mut queues, "bob", &["stays-8"]).await;
    enqueue_expiring(&it, "carol", &["over-9"], 1).await;
    enqueue(&mut queues, "carol", &["stays-10"]).await;
    await_erasure(dir.path(), &["last-5", "over"]).await;
    assert_eq!(all(&mut queues, "bob", 0).await, ["stays-8"]);
    assert_eq!(all(&mut queues, "carol", 0).await, ["stays-7", "stays-10"]);
    assert_eq!(await_state(&it).await["expired_since"], Value::Null);
}
