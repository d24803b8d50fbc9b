//! `duramen txn`.

use std::time::Instant;

use duramen_client::{Client, Options};
use duramen_protocol::messages::ProduceRequest;
use duramen_protocol::messages::produce::{PartitionProduceData, TopicProduceData};
use duramen_protocol::records::{BatchBuilder, NewRecord};
use serde_json::Value;

use crate::node::{Node, PATIENCE, stderr};

/// Writes a record in a transaction, and leaves it open.
async fn leave_open(bootstrap: &str, id: &str, topic: &str) {
    let client = Client::connect(Options::new([bootstrap])).await.unwrap();
    let producer = client.take_over(id, 60_000).await.unwrap();
    let mut batch = BatchBuilder::new().producer(producer.id, producer.epoch, 0).transactional();
    batch.push(&NewRecord { value: Some(b"v"), ..NewRecord::default() }).unwrap();
    let records = Some(batch.build().unwrap());
    let partition_data = [PartitionProduceData { index: 0, records }].into();
    let topic_data =
        [TopicProduceData { name: topic.into(), partition_data, ..Default::default() }].into();
    let request = ProduceRequest {
        transactional_id: Some(id.into()),
        acks: -1,
        timeout_ms: 30_000,
        topic_data,
    };
    let answer = client.call_any(&request).await.unwrap();
    assert_eq!(answer.responses[0].partition_responses[0].error_code, 0);
}

#[tokio::test]
async fn an_open_transaction_is_listed_described_and_aborted() {
    let directory = tempfile::tempdir().unwrap();
    let node = Node::start(directory.path());
    node.run(&["topic", "create", "t"]);
    assert_eq!(node.run(&["txn", "list"]), "no such transactional ids\n");
    leave_open(&node.bootstrap, "billing-1", "t").await;

    let listed = node.run_json(&["txn", "list", "--state", "ongoing", "--pattern", "billing-.*"]);
    assert_eq!((&listed[0]["id"], &listed[0]["state"]), (&"billing-1".into(), &"Ongoing".into()));
    let producer = listed[0]["producer_id"].to_string();
    let empty = node.run_json(&["txn", "list", "--open-for", "1h"]);
    assert_eq!(empty, Value::Array(Vec::new()));
    let described = node.run_json(&["txn", "describe", "billing-1"]);
    assert_eq!(described[0]["producer_id"], listed[0]["producer_id"]);
    let part = &described[0]["partitions"][0];
    assert_eq!((&part["topic"], &part["since"]), (&"t".into(), &0.into()));

    let aborted = node.run(&["txn", "abort", "billing-1"]);
    let expected = "aborted the transaction of billing-1 in 1 partition; producer ";
    assert_eq!(aborted, format!("{expected}{producer} is kept out\n"));
    assert_eq!(node.run_json(&["txn", "list", "--state", "ongoing"]), empty);
    let nothing = "error: transactional id billing-1 has nothing open: its state is Empty\n";
    assert_eq!(node.fail(&["txn", "abort", "billing-1"]), nothing);
    let unknown =
        "error: there is no transactional id x; see which there are with `duramen txn list`\n";
    assert_eq!(node.fail(&["txn", "describe", "x"]), unknown);
}

#[tokio::test]
async fn only_open_transactions_are_old_and_each_is_aborted_once() {
    let directory = tempfile::tempdir().unwrap();
    let node = Node::start(directory.path());
    node.run(&["topic", "create", "t"]);
    leave_open(&node.bootstrap, "one", "t").await;
    leave_open(&node.bootstrap, "two", "t").await;
    let open = || {
        let listed = node.run_json(&["txn", "list", "--open-for", "0s"]);
        let ids = listed.as_array().unwrap().iter().map(|it| it["id"].as_str().unwrap().to_owned());
        ids.collect::<Vec<_>>()
    };
    let until = Instant::now() + PATIENCE;
    while open() != ["one", "two"] {
        assert!(Instant::now() < until, "{:?}", open());
    }
    let output = node.command(&["txn", "abort", "one", "none", "one", "two"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    assert_eq!(text.matches("aborted the transaction of one ").count(), 1, "{text}");
    assert_eq!(text.matches("aborted the transaction of two ").count(), 1, "{text}");
    assert!(stderr(&output).starts_with("error: there is no transactional id none"), "{text}");
    assert_eq!(open(), [""; 0], "ids are left, and nothing of them is open");
    assert_eq!(node.run_json(&["txn", "describe", "one", "one"]).as_array().unwrap().len(), 1);
}
