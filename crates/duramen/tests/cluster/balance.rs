//! `duramen cluster balance` against real nodes.

use std::collections::BTreeSet;
use std::process::Output;

use duramen_client::Reassignment;
use duramen_protocol::messages::create_topics::CreatableReplicaAssignment;
use duramen_protocol::messages::{FindCoordinatorRequest, MetadataRequest};
use serde_json::Value;

use super::*;

impl Cluster {
    fn balance(&self, arguments: &[&str]) -> Command {
        let ports = self.client_ports.iter().map(|port| format!("127.0.0.1:{port}"));
        let mut command = Command::new(env!("CARGO_BIN_EXE_duramen"));
        command.args(["cluster", "balance", "--output", "json", "--bootstrap"]);
        command.arg(ports.collect::<Vec<_>>().join(",")).args(arguments);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// What a run of the command that succeeds prints.
    fn balanced(&self, arguments: &[&str]) -> Value {
        told(&self.balance(arguments).output().unwrap())
    }

    /// Starts a fourth node, which joins, and waits until all four are registered.
    async fn join_fourth(&mut self) -> Client {
        let listens = format!("127.0.0.1:{}", self.node_ports[3]);
        let mut command = self.command(4);
        command.args(["--node-listen", listens.as_str()]);
        self.run(4, command);
        self.wait_for_log(4, "serving");
        self.client_of(4).await
    }
}

fn told(done: &Output) -> Value {
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    serde_json::from_slice(&done.stdout).unwrap()
}

/// Makes a topic whose partitions are all on these nodes, and led by the first.
async fn create_on(client: &Client, name: &str, partitions: i32, nodes: &[i32]) {
    let assignment = |partition_index| CreatableReplicaAssignment {
        partition_index,
        broker_ids: nodes.to_vec(),
    };
    let topic = CreatableTopic {
        name: name.to_owned(),
        num_partitions: -1,
        replication_factor: -1,
        assignments: (0..partitions).map(assignment).collect(),
        ..CreatableTopic::default()
    };
    let request =
        CreateTopicsRequest { topics: vec![topic], timeout_ms: 30_000, ..Default::default() };
    let id = i32::try_from(controller(client).await).unwrap();
    let answer = client.node(id).await.unwrap().call(&request).await.unwrap();
    assert_eq!(answer.topics[0].error_code, 0, "{answer:?}");
    let until = Instant::now() + PATIENCE;
    loop {
        client.forget(name).await;
        let there = client.topic(name, false).await;
        if there.is_ok_and(|it| it.partitions.iter().all(|it| it.leader_id >= 0)) {
            return;
        }
        assert!(Instant::now() < until, "{name} gets no leaders");
        tokio::time::sleep(POLL).await;
    }
}

/// Replicas of all partitions, the preferred leader first, with the leader.
async fn placements(client: &Client) -> BTreeMap<(String, i32), (Vec<i32>, i32)> {
    let request = MetadataRequest { topics: None, ..MetadataRequest::default() };
    let until = Instant::now() + PATIENCE;
    let answer = loop {
        // Other nodes may hear of a change a moment later.
        let id = i32::try_from(controller(client).await).unwrap();
        if let Ok(node) = client.node(id).await
            && let Ok(answer) = node.call(&request).await
        {
            break answer;
        }
        assert!(Instant::now() < until, "nobody leads the metadata");
        tokio::time::sleep(POLL).await;
    };
    let mut all = BTreeMap::new();
    for topic in answer.topics {
        for row in topic.partitions {
            let key = (topic.name.clone().unwrap(), row.partition_index);
            all.insert(key, (row.replica_nodes, row.leader_id));
        }
    }
    all
}

/// Has the topic of committed offsets made.
async fn make_internal_topic(client: &Client) {
    let request = FindCoordinatorRequest {
        key_type: 0,
        coordinator_keys: vec!["group".to_owned()],
        ..Default::default()
    };
    let until = Instant::now() + PATIENCE;
    loop {
        let id = i32::try_from(controller(client).await).unwrap();
        let answer = client.node(id).await.unwrap().call(&request).await.unwrap();
        if answer.coordinators[0].error_code == 0 {
            return;
        }
        assert!(Instant::now() < until, "{answer:?}");
        tokio::time::sleep(POLL).await;
    }
}

/// Appends so many batches of so many bytes to each partition. Returns the values, by partition.
async fn fill(
    client: &Client,
    topic: &str,
    partitions: i32,
    (batches, bytes): (usize, usize),
) -> BTreeMap<i32, Vec<String>> {
    let mut all: BTreeMap<i32, Vec<String>> = BTreeMap::new();
    for partition in 0..partitions {
        let producer = Some(client.init_producer().await.unwrap());
        let options =
            AppenderOptions { acks: Acknowledgement::All, producer, window: 5, timeout_ms: 5_000 };
        let mut appender = Appender::new(client.clone(), topic, partition, options);
        for n in 0..batches {
            let value = format!("{topic}-{partition}-{n}-{}", "x".repeat(bytes));
            let mut batch = BatchBuilder::new();
            let record = NewRecord { value: Some(value.as_bytes()), ..NewRecord::default() };
            batch.push(&record).unwrap();
            appender.push(batch.build_mut().unwrap()).await.unwrap();
            all.entry(partition).or_default().push(value);
        }
        appender.finish().await.unwrap();
    }
    all
}

async fn check(client: &Client, topic: &str, expected: &BTreeMap<i32, Vec<String>>) {
    let places: Vec<(i32, i64)> = expected.keys().map(|partition| (*partition, 0)).collect();
    client.forget(topic).await;
    let mut fetcher = Fetcher::new(client.clone(), topic, places, FetchOptions::default());
    let mut read: BTreeMap<i32, Vec<String>> = BTreeMap::new();
    let count = |all: &BTreeMap<i32, Vec<String>>| all.values().map(Vec::len).sum::<usize>();
    while count(&read) < count(expected) {
        for fetched in fetcher.poll().await.unwrap() {
            for view in duramen_protocol::batch::batches(fetched.records) {
                for record in &Records::of(&view.unwrap(), 1 << 20).unwrap() {
                    let text = String::from_utf8(record.unwrap().value.unwrap().to_vec());
                    read.entry(fetched.partition).or_default().push(text.unwrap());
                }
            }
        }
    }
    assert_eq!(&read, expected);
}

/// Counts the replicas and the preferred leaders of these nodes.
fn counts(
    there: &BTreeMap<(String, i32), (Vec<i32>, i32)>,
    nodes: std::ops::RangeInclusive<i32>,
) -> (Vec<usize>, Vec<usize>) {
    let replicas = |id: i32| there.values().filter(|(nodes, _)| nodes.contains(&id)).count();
    let leaders = |id: i32| there.values().filter(|(nodes, _)| nodes[0] == id).count();
    (nodes.clone().map(replicas).collect(), nodes.map(leaders).collect())
}

fn are_even(counts: &[usize]) -> bool {
    counts.iter().max().unwrap() - counts.iter().min().unwrap() <= 1
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fourth_node_gets_its_share_in_spite_of_an_interrupt_and_a_dead_one_nothing() {
    let mut cluster = Cluster::of([]);
    cluster.more = ["--set", "offsets.topic.num.partitions=3"].map(str::to_owned).into();
    (1..=3).for_each(|id| cluster.spawn(id));
    (1..=3).for_each(|id| cluster.wait_for_log(id, "serving"));
    let client = cluster.client().await;
    make_internal_topic(&client).await;
    // As after `survive`: one node leads everything.
    create_on(&client, "two", 6, &[1, 2]).await;
    create_on(&client, "three", 3, &[1, 2, 3]).await;
    let two = fill(&client, "two", 6, (20, 100)).await;
    let three = fill(&client, "three", 3, (20, 100)).await;
    let client = cluster.join_fourth().await;

    let before = placements(&client).await;
    let plan = cluster.balanced(&[]);
    let planned = plan["moves"].as_array().unwrap().len();
    assert_eq!((plan["executed"].as_bool(), planned > 5), (Some(false), true), "{plan:#}");
    assert_eq!(placements(&client).await, before, "a plan changes nothing");

    // It is interrupted in the middle, and what is under way goes on.
    let mut first = cluster.balance(&["--execute", "--at-once", "1"]).spawn().unwrap();
    loop {
        let there = placements(&client).await;
        if there.values().any(|(nodes, _)| nodes.contains(&4)) {
            break;
        }
        assert!(first.try_wait().unwrap().is_none(), "it moves nothing");
        tokio::time::sleep(POLL).await;
    }
    first.kill().unwrap();
    first.wait().unwrap();
    let done = cluster.balanced(&["--execute", "--at-once", "50"]);
    assert!(done["moves"].as_array().unwrap().iter().all(|it| it["done"] == true), "{done:#}");

    let there = placements(&client).await;
    let (replicas, leaders) = counts(&there, 1..=4);
    assert!(are_even(&replicas) && are_even(&leaders), "{there:#?}");
    assert_eq!(replicas.iter().sum::<usize>(), 2 * 6 + 3 * 3 + 3 * 3, "with the internal topic");
    for (key, (nodes, _)) in &there {
        let distinct: BTreeSet<&i32> = nodes.iter().collect();
        assert_eq!((distinct.len(), nodes.len()), (nodes.len(), before[key].0.len()), "{key:?}");
    }
    let plan = cluster.balanced(&[]);
    let nothing = (Some(0), &Value::from(0), &Value::from(0));
    let rest = plan["moves"].as_array().map(Vec::len);
    assert_eq!((rest, &plan["elections"], &plan["held"]), nothing, "{plan:#}");
    check(&client, "two", &two).await;
    check(&client, "three", &three).await;

    create_on(&client, "one", 4, &[1]).await;
    cluster.kill(3);
    let plan = cluster.balanced(&["--topic", "one"]);
    assert_eq!(plan["nodes"][2]["is_up"], false, "{plan:#}");
    let moves = plan["moves"].as_array().unwrap();
    assert!(!moves.is_empty() && moves.iter().all(|it| it["after"] != serde_json::json!([3])));
    let replicas = &plan["nodes"][2]["replicas"];
    assert_eq!(replicas["before"], replicas["after"], "{plan:#}");
}

/// The limits of nodes and the lists of the topic that are set.
async fn throttles(client: &Client, topic: &str) -> Vec<(String, String)> {
    let of = |kind: &str| {
        let name = |side| format!("{side}.replication.throttled.{kind}");
        [name("leader"), name("follower")]
    };
    let (rates, lists) = (of("rate"), of("replicas"));
    let mut all = Vec::new();
    for id in 1..=3 {
        let values = client.broker_configs(id, &rates.each_ref().map(String::as_str)).await;
        all.extend(values.unwrap().into_iter().filter(|(_, it)| *it != i64::MAX.to_string()));
    }
    let lists = lists.each_ref().map(String::as_str);
    all.extend(client.settings_of_topics(&[topic], &lists).await.unwrap().into_values().flatten());
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn a_throttled_move_waits_while_another_one_ends_and_goes_on_at_a_higher_rate() {
    let cluster = Cluster::start();
    let client = cluster.client().await;
    create_on(&client, "slow", 1, &[1]).await;
    create_on(&client, "quick", 3, &[1]).await;
    // More than a log keeps in memory, by number and by size.
    let slow = fill(&client, "slow", 1, (1_100, 2_000)).await;
    let quick = fill(&client, "quick", 3, (20, 100)).await;
    let limited = |rate: &'static str| ["--topic", "slow", "--execute", "--throttle", rate];
    let mut first = cluster.balance(&limited("1")).spawn().unwrap();
    while client.moving().await.unwrap().is_empty() {
        assert!(first.try_wait().unwrap().is_none(), "it moves nothing");
        tokio::time::sleep(POLL).await;
    }
    first.kill().unwrap();
    first.wait().unwrap();
    let set = throttles(&client, "slow").await;
    assert_eq!(set.iter().filter(|(_, value)| value == "1").count(), 6, "{set:?}");
    assert!(set.iter().any(|(_, value)| value == "0:1"), "node 1 sends: {set:?}");

    let moves = [Reassignment { topic: "quick".into(), partition: 0, replicas: Some(vec![2]) }];
    client.reassign(&moves).await.unwrap()[0].1.as_ref().unwrap();
    let is_there =
        |there: BTreeMap<(String, i32), (Vec<i32>, i32)>| there[&("quick".to_owned(), 0)].0 == [2];
    let until = Instant::now() + PATIENCE;
    while !is_there(placements(&client).await) {
        assert!(Instant::now() < until, "the other move does not end");
        tokio::time::sleep(POLL).await;
    }
    check(&client, "quick", &quick).await;
    let moving = client.moving().await.unwrap();
    assert!(moving.contains_key(&("slow".to_owned(), 0)), "{moving:?}");
    let bytes = |id| cluster.segments(id, "slow-0").values().map(Vec::len).sum::<usize>();
    assert!(bytes(2) + bytes(3) < bytes(1) / 2, "{} and {} of {}", bytes(2), bytes(3), bytes(1));

    cluster.balanced(&limited("1000000000"));
    assert!(client.moving().await.unwrap().is_empty());
    assert_eq!(throttles(&client, "slow").await, []);
    let there = placements(&client).await;
    assert_ne!(there[&("slow".to_owned(), 0)].0, [1]);
    check(&client, "slow", &slow).await;
}
