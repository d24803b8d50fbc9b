//! The native API of a cluster: any node takes any call.

use data_encoding::BASE64;
use duramen::proto::logs_client::LogsClient;
use duramen::proto::topics_client::TopicsClient;
use duramen::proto::{
    AppendRequest, AppendResponse, CreateTopicRequest, Position, ReadRequest, Record, TailRequest,
};
use tonic::Request;
use tonic::metadata::MetadataValue;
use tonic::transport::{Channel, Endpoint};
use tonic_types::StatusExt;

use super::*;

fn channel_to(cluster: &Cluster, id: usize) -> Channel {
    let address = format!("http://127.0.0.1:{}", cluster.native_ports[id - 1]);
    Endpoint::from_shared(address).unwrap().connect_lazy()
}

/// Appends one record through a node, and asks again while a leader is missing.
async fn append(cluster: &Cluster, id: usize, partition: i32, value: &str) -> AppendResponse {
    let record = Record { value: Some(value.to_owned().into()), ..Record::default() };
    let topic = "t".to_owned();
    let request = AppendRequest { topic, partition, records: vec![record], ..Default::default() };
    let until = Instant::now() + PATIENCE;
    loop {
        let answer = LogsClient::new(channel_to(cluster, id)).append(request.clone()).await;
        let status = match answer {
            Ok(answer) => return answer.into_inner(),
            Err(status) => status,
        };
        let reason = status.get_details_error_info().map(|info| info.reason);
        let may_pass = ["no-leader", "unknown-topic", "not-enough-replicas", "outcome-unknown"];
        assert!(reason.is_some_and(|it| may_pass.contains(&it.as_str())), "{status:?}");
        assert!(Instant::now() < until, "{status:?}");
        tokio::time::sleep(POLL).await;
    }
}

async fn values(cluster: &Cluster, id: usize, partition: i32) -> Vec<String> {
    let request = ReadRequest { topic: "t".into(), partition, ..ReadRequest::default() };
    let mut pages =
        LogsClient::new(channel_to(cluster, id)).read(request).await.unwrap().into_inner();
    let mut values = Vec::new();
    while let Some(page) = pages.message().await.unwrap() {
        for it in page.records {
            values.push(String::from_utf8(it.record.unwrap().value.unwrap().to_vec()).unwrap());
        }
    }
    values
}

async fn last(cluster: &Cluster, id: usize, partition: i32) -> Option<Position> {
    let request = TailRequest { topic: "t".into(), partition };
    LogsClient::new(channel_to(cluster, id)).tail(request).await.unwrap().into_inner().last
}

#[tokio::test]
async fn any_node_takes_any_native_call() {
    let mut cluster = Cluster::start();
    let create = CreateTopicRequest { name: "t".into(), partitions: 3, ..Default::default() };
    let create = CreateTopicRequest { replication_factor: 3, ..create };
    TopicsClient::new(channel_to(&cluster, 2)).create_topic(create).await.unwrap();
    for partition in 0..3 {
        let mut positions = Vec::new();
        for id in 1..=3 {
            positions.push(append(&cluster, id, partition, &id.to_string()).await.last.unwrap());
        }
        assert_eq!(positions.iter().map(|it| it.offset).collect::<Vec<_>>(), [0, 1, 2]);
        for id in 1..=3 {
            assert_eq!(values(&cluster, id, partition).await, ["1", "2", "3"], "through {id}");
            assert_eq!(last(&cluster, id, partition).await, positions.last().copied());
        }
    }
    // The others lead what one led, and nothing of what was acknowledged is missing.
    cluster.kill(1);
    for partition in 0..3 {
        for id in 2..=3 {
            append(&cluster, id, partition, "after").await;
        }
        let all = values(&cluster, 3, partition).await;
        assert_eq!(all[..3], ["1", "2", "3"]);
        assert!(all.len() >= 5 && all[3..].iter().all(|it| it == "after"), "{all:?}");
    }
}

/// Runs a command for the administrator, who comes by Kafka's listener and may do everything.
fn administer(cluster: &Cluster, arguments: &[&str]) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_duramen"));
    command
        .args(arguments)
        .args(["--bootstrap", &format!("127.0.0.1:{}", cluster.client_ports[0])]);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {output:?}");
}

/// Appends through a node as ada, who claims more. Returns the name of the problem, or nothing.
async fn append_as_ada(cluster: &Cluster, id: usize, partition: i32) -> String {
    let until = Instant::now() + PATIENCE;
    loop {
        let record = Record { value: Some("x".into()), ..Record::default() };
        let topic = "t".to_owned();
        let message =
            AppendRequest { topic, partition, records: vec![record], ..Default::default() };
        let mut request = Request::new(message);
        let shown = format!("Basic {}", BASE64.encode(b"ada:secret"));
        request.metadata_mut().insert("authorization", shown.parse().unwrap());
        // A node says so on the port for nodes. Here it is nothing.
        let root = MetadataValue::from_bytes(b"User:ANONYMOUS");
        request.metadata_mut().insert_bin("duramen-principal-bin", root);
        let answer = LogsClient::new(channel_to(cluster, id)).append(request).await;
        let Err(status) = answer else { return String::new() };
        let reason = status.get_details_error_info().unwrap().reason;
        let may_pass = ["no-leader", "unknown-topic", "not-enough-replicas", "outcome-unknown"];
        if !may_pass.contains(&reason.as_str()) {
            return reason;
        }
        assert!(Instant::now() < until, "{status:?}");
        tokio::time::sleep(POLL).await;
    }
}

/// A node that passes a call on names its client, so the same rules hold whichever node carries the call out.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_stays_its_clients_on_the_way_between_nodes() {
    let dir = TempDir::new().unwrap();
    let (users, password) = (dir.path().join("users"), dir.path().join("password"));
    std::fs::write(&users, "ada:SCRAM-SHA-256:secret\n").unwrap();
    std::fs::write(&password, "other").unwrap();
    let settings = [
        "listener.security.protocol.map=NATIVE:SASL_PLAINTEXT".to_owned(),
        "sasl.enabled.mechanisms=PLAIN".to_owned(),
        "connection.failed.authentication.delay.ms=1".to_owned(),
        "super.users=User:ANONYMOUS".to_owned(),
        "node.security=plain".to_owned(),
        format!("bootstrap.users.file={}", users.display()),
    ];
    let more = settings.into_iter().flat_map(|it| ["--set".to_owned(), it]).collect();
    let cluster = Cluster::with(1..=3, more);
    let client = cluster.client().await;
    client.create_topic(&NewTopic { partitions: 3, ..topic("t") }, false).await.unwrap();
    let each = (1..=3).flat_map(|id| (0..3).map(move |partition| (id, partition)));
    for (id, partition) in each.clone() {
        assert_eq!(append_as_ada(&cluster, id, partition).await, "not-authorized");
    }
    let rule = ["--principal", "User:ada", "--topic", "t", "--operation", "write"];
    administer(&cluster, &[&["acl", "allow"], &rule[..]].concat());
    for (id, partition) in each.clone() {
        assert_eq!(append_as_ada(&cluster, id, partition).await, "", "{partition} through {id}");
    }
    let password = password.display().to_string();
    administer(&cluster, &["user", "password", "ada", "--new-password-file", &password]);
    for id in 1..=3 {
        let has_heard = async || append_as_ada(&cluster, id, 0).await == "unauthenticated";
        while !has_heard().await {}
    }
}
