//! Quotas of clients of the native API: late answers, refusals, and streams that are only late.

use duramen::proto::{EnqueueRequest, EnqueueStreamRequest, Record, enqueue_stream_response};
use duramen_client::{Client, Options};
use duramen_protocol::messages::AlterClientQuotasRequest;
use duramen_protocol::messages::alter_client_quotas::{EntityData, EntryData, OpData};
use futures_util::stream;
use serde_json::Value;
use tonic::Code;

use super::queues::{all, retrieve, start};
use super::{Node, slug};

const PATH: &str = "/v1/topics/t/queues/alice/messages";

/// Sets a quota of every client, in bytes a second.
pub(super) async fn limit(node: &Node, key: &str, rate: f64) {
    let client = Client::connect(Options::new([node.kafka.to_string()])).await.unwrap();
    let entity = vec![EntityData { entity_type: "client-id".to_owned(), entity_name: None }];
    let op = OpData { key: key.to_owned(), value: rate, remove: false };
    let entries = vec![EntryData { entity, ops: vec![op] }];
    let quotas = AlterClientQuotasRequest { entries, validate_only: false };
    assert_eq!(client.call_any(&quotas).await.unwrap().entries[0].error_code, 0);
}

fn enqueue(bytes: usize) -> EnqueueRequest {
    let value = Some("x".repeat(bytes).into());
    EnqueueRequest {
        topic: "t".into(),
        queue: "alice".into(),
        messages: vec![Record { value, ..Record::default() }],
        ..EnqueueRequest::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_far_above_its_quota_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(dir.path(), 1).await;
    let mut queues = node.queues().await;
    limit(&node, "producer_byte_rate", 1_000.0).await;
    // The answer to the first is late, and those after it are refused until the client has rested.
    queues.enqueue(enqueue(50_000)).await.unwrap();
    let refused = queues.enqueue(enqueue(1)).await.unwrap_err();
    assert_eq!((refused.code(), slug(&refused).as_str()), (Code::ResourceExhausted, "throttled"));
    // A client of HTTP is another one, with a quota of its own.
    let post = |body: &str| node.ask("POST", PATH, &[], body);
    assert_eq!(post(&"x".repeat(50_000)).0, 200);
    let (status, problem) = post("x");
    let problem: Value = serde_json::from_str(&problem).unwrap();
    assert_eq!((status, &problem["type"]), (429, &"/problems/throttled".into()), "{problem}");
    assert!(problem["rest_ms"].as_i64().unwrap() > 1_000);
    assert_eq!(all(&mut queues, "alice", 0).await.len(), 2, "nothing else was appended");
    // Reads have a quota of their own.
    limit(&node, "consumer_byte_rate", 1_000.0).await;
    assert_eq!(all(&mut queues, "alice", 0).await.len(), 2);
    let refused = queues.retrieve(retrieve("alice", None)).await.unwrap_err();
    assert_eq!(slug(&refused), "throttled");
    let get = || node.ask("GET", PATH, &[], "").0;
    assert_eq!((get(), get()), (200, 429));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_above_its_quota_is_late_and_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(dir.path(), 1).await;
    let mut queues = node.queues().await;
    limit(&node, "producer_byte_rate", 10_000.0).await;
    let request = |call| EnqueueStreamRequest { call, request: Some(enqueue(40_000)) };
    let requests = stream::iter((0..3).map(request));
    let mut answers = queues.enqueue_stream(requests).await.unwrap().into_inner();
    let mut calls = Vec::new();
    while let Some(answer) = answers.message().await.unwrap() {
        let appended = matches!(answer.result, Some(enqueue_stream_response::Result::Appended(_)));
        assert!(appended, "{answer:?}");
        calls.push(answer.call);
    }
    assert_eq!(calls, [0, 1, 2]);
}
