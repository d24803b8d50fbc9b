//! Deleted elements of a real server: no reader sees them, of either protocol, also after a restart.

use duramen::proto::{DeleteRequest, EditResponse, Position, RetrieveRequest};
use duramen_client::{Client, Options};
use duramen_protocol::batch::batches;
use duramen_protocol::messages::FetchRequest;
use duramen_protocol::messages::fetch::{FetchPartition, FetchTopic};
use duramen_protocol::records::Records;
use duramen_protocol::wire::RecordData;
use serde_json::{Value, json};
use tonic::transport::Channel;

use super::queues::{all, enqueue, retrieve, start};
use super::{Node, QueuesClient};

async fn delete(
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
async fn consume(client: &Client, end: i64) -> Vec<(i64, String)> {
    let (mut all, mut next) = (Vec::new(), 0);
    while next < end {
        let (shown, behind) = fetch(client, next).await;
        assert!(behind > next, "a consumer comes to the end");
        all.extend(shown.into_iter().filter(|(offset, _)| *offset >= next));
        next = behind;
    }
    all
}

fn of(shown: &[(i64, &str)]) -> Vec<(i64, String)> {
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
    assert_eq!(again, json!({ "at": null, "absent": 1 }));
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
