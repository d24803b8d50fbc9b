//! Three real processes that are one cluster: they form it, lose members, and lose nothing that was acknowledged.
#![expect(clippy::unwrap_used, reason = "a test's own failure is a failure")]

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use duramen_client::{
    Acknowledgement, Appender, AppenderOptions, Client, FetchOptions, Fetcher, NewTopic, Options,
};
use duramen_protocol::ErrorCode;
use duramen_protocol::messages::alter_partition_reassignments::{
    ReassignablePartition, ReassignableTopic,
};
use duramen_protocol::messages::create_topics::CreatableTopic;
use duramen_protocol::messages::metadata::MetadataResponseBroker;
use duramen_protocol::messages::{
    AlterPartitionReassignmentsRequest, CreateTopicsRequest, ListPartitionReassignmentsRequest,
};
use duramen_protocol::records::{BatchBuilder, NewRecord, Records};
use tempfile::TempDir;

#[path = "cluster/balance.rs"]
mod balance;
#[path = "cluster/members.rs"]
mod members;
#[path = "cluster/native.rs"]
mod native;
#[path = "cluster/sealed.rs"]
mod sealed;

/// Long enough for a busy machine; nothing here waits so long when all is well.
const PATIENCE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);
/// From the death of a leader to the first acknowledgement of another; the goal is 2 s on a machine that does nothing else.
const FAILOVER_MAX: Duration = Duration::from_secs(20);

struct Node {
    child: Child,
    log: Receiver<String>,
    seen: Vec<String>,
}

struct Cluster {
    root: TempDir,
    client_ports: Vec<u16>,
    native_ports: Vec<u16>,
    node_ports: Vec<u16>,
    nodes: BTreeMap<usize, Node>,
    /// What else nodes are started with from now on.
    more: Vec<String>,
}

/// A port below those that the kernel gives to outgoing connections.
fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let seed = u16::try_from(std::process::id() % 97 * 113).unwrap();
    loop {
        let port = 20_000 + (seed + NEXT.fetch_add(1, Ordering::Relaxed)) % 12_000;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

impl Cluster {
    fn start() -> Self {
        Self::of(1..=3)
    }

    /// A place for three nodes, and one that may come later, of which these begin the cluster.
    fn of(ids: impl IntoIterator<Item = usize> + Clone) -> Self {
        Self::with(ids, Vec::new())
    }

    /// The same, started with more.
    fn with(ids: impl IntoIterator<Item = usize> + Clone, more: Vec<String>) -> Self {
        let ports = || (0..4).map(|_| free_port()).collect::<Vec<_>>();
        let mut cluster = Self {
            root: TempDir::new().unwrap(),
            client_ports: ports(),
            native_ports: ports(),
            node_ports: ports(),
            nodes: BTreeMap::new(),
            more,
        };
        ids.clone().into_iter().for_each(|id| cluster.spawn(id));
        ids.into_iter().for_each(|id| cluster.wait_for_log(id, "serving"));
        cluster
    }

    fn dir(&self, id: usize) -> PathBuf {
        self.root.path().join(format!("node-{id}"))
    }

    fn command(&self, id: usize) -> Command {
        let listed = (1..=3).map(|id| format!("{id}@127.0.0.1:{}", self.node_ports[id - 1]));
        let listed = listed.collect::<Vec<_>>().join(",");
        self.command_with(id, &["--set", &format!("controller.quorum.voters={listed}")])
    }

    fn command_with(&self, id: usize, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_duramen"));
        command.args(["serve", "--log-format", "json", "--log", "info"]);
        command.args(["--listen", &format!("127.0.0.1:{}", self.client_ports[id - 1])]);
        command.args(["--native", &format!("127.0.0.1:{}", self.native_ports[id - 1])]);
        command.args(["--set", &format!("node.id={id}")]).args(arguments);
        command.arg("--data-dir").arg(self.dir(id));
        command.args(&self.more);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        command
    }

    fn spawn(&mut self, id: usize) {
        let command = self.command(id);
        self.run(id, command);
    }

    fn spawn_with(&mut self, id: usize, arguments: &[&str]) {
        let command = self.command_with(id, arguments);
        self.run(id, command);
    }

    /// The place of the directory before it is asked for.
    fn spawn_replacing(&mut self, id: usize) {
        let mut command = self.command(id);
        command.arg("--replace");
        self.run(id, command);
    }

    fn run(&mut self, id: usize, mut command: Command) {
        let mut child = command.spawn().unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let (sender, log) = channel();
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        self.nodes.insert(id, Node { child, log, seen: Vec::new() });
    }

    fn wait_for_log(&mut self, id: usize, message: &str) {
        self.wait_for_log_with(id, message, "");
    }

    fn wait_for_log_with(&mut self, id: usize, message: &str, more: &str) {
        let part = format!("\"message\":\"{message}\"");
        let node = self.nodes.get_mut(&id).unwrap();
        let until = Instant::now() + PATIENCE;
        loop {
            match node.log.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(line) if line.contains(&part) && line.contains(more) => return,
                Ok(line) => node.seen.push(line),
                Err(error) => {
                    panic!("{error}: node {id} does not say {part} {more}: {:#?}", node.seen)
                }
            }
        }
    }

    fn signal(&self, id: usize, name: &str) {
        let pid = self.nodes[&id].child.id().to_string();
        assert!(Command::new("kill").args([name, &pid]).status().unwrap().success());
    }

    /// As `kill -9` does it.
    fn kill(&mut self, id: usize) {
        let mut node = self.nodes.remove(&id).unwrap();
        node.child.kill().unwrap();
        node.child.wait().unwrap();
    }

    /// As a service manager does it. Returns how long it took to end.
    fn stop(&mut self, id: usize) -> Duration {
        let began = Instant::now();
        self.signal(id, "-TERM");
        assert!(self.nodes.remove(&id).unwrap().child.wait().unwrap().success());
        began.elapsed()
    }

    async fn client(&self) -> Client {
        self.client_of(3).await
    }

    /// A client, once so many nodes are registered.
    async fn client_of(&self, nodes: usize) -> Client {
        client_at(&self.client_ports, nodes).await
    }

    /// The bytes of all segments of a partition, by name.
    fn segments(&self, id: usize, partition: &str) -> BTreeMap<String, Vec<u8>> {
        let Ok(entries) = std::fs::read_dir(self.dir(id).join(partition)) else {
            return BTreeMap::new();
        };
        let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
        let segments = paths.filter(|path| path.extension().is_some_and(|it| it == "log"));
        let name = |path: &Path| path.file_name().unwrap().to_string_lossy().into_owned();
        // One that goes meanwhile, with a replica that is replaced, is none.
        segments.filter_map(|path| Some((name(&path), std::fs::read(&path).ok()?))).collect()
    }

    fn wait_for_same_segments(&self, partition: &str) {
        wait_until("all nodes have the same bytes", || {
            let first = self.segments(1, partition);
            !first.is_empty() && (2..=3).all(|id| self.segments(id, partition) == first)
        });
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for node in self.nodes.values_mut() {
            let _ = node.child.kill();
            let _ = node.child.wait();
        }
    }
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < until, "in vain: {what}");
        std::thread::sleep(POLL);
    }
}

fn topic(name: &str) -> NewTopic {
    NewTopic {
        name: name.to_owned(),
        partitions: 1,
        replication_factor: 3,
        configs: [("min.insync.replicas".to_owned(), "2".to_owned())].into(),
    }
}

/// A client of the nodes that listen there, once so many are registered.
async fn client_at(ports: &[u16], nodes: usize) -> Client {
    let options = Options {
        connect_for: PATIENCE,
        retry_for: PATIENCE,
        request_timeout: Duration::from_secs(5),
        ..Options::new(ports.iter().map(|port| format!("127.0.0.1:{port}")))
    };
    let client = Client::connect(options).await.unwrap();
    let until = Instant::now() + PATIENCE;
    while client.metadata(Some(&[]), false).await.unwrap().brokers.len() < nodes {
        assert!(Instant::now() < until, "not all nodes are registered");
        tokio::time::sleep(POLL).await;
    }
    client
}

/// Appends numbers, one record a batch, each acknowledged before the next.
struct Writer {
    appender: Appender,
    next: u64,
    acked: Vec<(i64, u64)>,
}

impl Writer {
    async fn new(client: &Client, topic: &str) -> Self {
        let producer = Some(client.init_producer().await.unwrap());
        let options =
            AppenderOptions { acks: Acknowledgement::All, producer, window: 1, timeout_ms: 5_000 };
        let appender = Appender::new(client.clone(), topic, 0, options);
        Self { appender, next: 0, acked: Vec::new() }
    }

    async fn append(&mut self, count: u64) {
        for _ in 0..count {
            let mut batch = BatchBuilder::new();
            let value = format!("{:0100}", self.next);
            let record = NewRecord { value: Some(value.as_bytes()), ..NewRecord::default() };
            batch.push(&record).unwrap();
            self.appender.push(batch.build_mut().unwrap()).await.unwrap();
            let acked = self.appender.finish().await.unwrap();
            self.acked.push((acked[0].base_offset, self.next));
            self.next += 1;
        }
    }

    /// What a consumer reads is what was acknowledged, each once and in its place.
    async fn check(&self, client: &Client, topic: &str) {
        let mut fetcher = Fetcher::new(client.clone(), topic, [(0, 0)], FetchOptions::default());
        let mut read = Vec::new();
        while read.len() < self.acked.len() {
            for fetched in fetcher.poll().await.unwrap() {
                for view in duramen_protocol::batch::batches(fetched.records) {
                    let view = view.unwrap();
                    let base = view.header().base_offset;
                    for record in &Records::of(&view, 1 << 20).unwrap() {
                        let text = String::from_utf8(record.unwrap().value.unwrap().to_vec());
                        read.push((base, text.unwrap().parse::<u64>().unwrap()));
                    }
                }
            }
        }
        assert_eq!(read, self.acked);
    }
}

async fn leader(client: &Client, topic: &str) -> usize {
    client.forget(topic).await;
    let found = client.topic(topic, false).await.unwrap();
    usize::try_from(found.partitions[0].leader_id).unwrap()
}

async fn controller(client: &Client) -> usize {
    loop {
        let id = client.metadata(Some(&[]), false).await.unwrap().controller_id;
        if let Ok(id) = usize::try_from(id) {
            return id;
        }
        tokio::time::sleep(POLL).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_leader_is_replaced_and_nothing_acknowledged_is_lost() {
    let mut cluster = Cluster::start();
    let client = cluster.client().await;
    client.create_topic(&topic("t"), false).await.unwrap();
    let mut writer = Writer::new(&client, "t").await;
    writer.append(100).await;
    for round in 0..3 {
        let dead = leader(&client, "t").await;
        cluster.kill(dead);
        let began = Instant::now();
        writer.append(1).await;
        let failover = began.elapsed();
        println!("round {round}: acknowledged again after {} ms", failover.as_millis());
        assert!(failover < FAILOVER_MAX, "{failover:?}");
        writer.append(100).await;
        assert_ne!(leader(&client, "t").await, dead);
        cluster.spawn(dead);
        cluster.wait_for_log(dead, "serving");
        cluster.wait_for_same_segments("t-0");
    }
    writer.check(&client, "t").await;
}

/// No election timeout has to pass: whoever ends has been replaced before.
#[tokio::test(flavor = "multi_thread")]
async fn nodes_are_restarted_one_after_the_other_beside_a_writer() {
    let mut cluster = Cluster::start();
    let client = cluster.client().await;
    client.create_topic(&topic("t"), false).await.unwrap();
    let mut writer = Writer::new(&client, "t").await;
    writer.append(20).await;
    for round in 1..=3 {
        let id = leader(&client, "t").await;
        let (stop, ended) = tokio::sync::oneshot::channel();
        let stopping = std::thread::spawn(move || {
            let took = cluster.stop(id);
            let _ = stop.send(());
            (cluster, took)
        });
        let mut longest = Duration::ZERO;
        let mut ended = std::pin::pin!(ended);
        while is_open(&mut ended).await {
            let began = Instant::now();
            writer.append(1).await;
            longest = longest.max(began.elapsed());
        }
        let (back, took) = stopping.join().unwrap();
        cluster = back;
        println!(
            "round {round}: node {id} ended within {} ms, the longest append took {} ms",
            took.as_millis(),
            longest.as_millis()
        );
        assert!(took < FAILOVER_MAX && longest < FAILOVER_MAX);
        assert_ne!(leader(&client, "t").await, id);
        cluster.spawn(id);
        cluster.wait_for_log(id, "serving");
        writer.append(20).await;
        cluster.wait_for_same_segments("t-0");
    }
    writer.check(&client, "t").await;
}

/// Wants a partition on these nodes, of any node, and waits until it is there.
async fn move_to(client: &Client, through: i32, topic: &str, nodes: &[i32]) {
    let partition = ReassignablePartition { partition_index: 0, replicas: Some(nodes.to_vec()) };
    let topics = vec![ReassignableTopic { name: topic.to_owned(), partitions: vec![partition] }];
    let request = AlterPartitionReassignmentsRequest {
        timeout_ms: 5_000,
        topics,
        ..AlterPartitionReassignmentsRequest::default()
    };
    let node = client.node(through).await.unwrap();
    let told = node.call(&request).await.unwrap();
    assert_eq!((told.error_code, told.responses[0].partitions[0].error_code), (0, 0));
    let until = Instant::now() + PATIENCE;
    loop {
        let request = ListPartitionReassignmentsRequest::default();
        let under_way = node.call(&request).await.unwrap().topics;
        client.forget(topic).await;
        let found = client.topic(topic, false).await.unwrap();
        if under_way.is_empty() && found.partitions[0].replica_nodes == nodes {
            return;
        }
        assert!(Instant::now() < until, "{under_way:?} {:?}", found.partitions);
        tokio::time::sleep(POLL).await;
    }
}

/// From one replica to three, and to another one alone: the node that had it first is not needed any more.
#[tokio::test(flavor = "multi_thread")]
async fn a_partition_moves_to_other_nodes_beside_a_writer() {
    let mut cluster = Cluster::start();
    let client = cluster.client().await;
    let alone = NewTopic { replication_factor: 1, configs: [].into(), ..topic("t") };
    client.create_topic(&alone, false).await.unwrap();
    let first = leader(&client, "t").await;
    let mut writer = Writer::new(&client, "t").await;
    writer.append(300).await;
    let id = |node: usize| i32::try_from(node).unwrap();
    let (second, third) = (first % 3 + 1, (first + 1) % 3 + 1);

    let began = Instant::now();
    let all = [id(first), id(second), id(third)];
    let is_moved = Cell::new(false);
    let moving = async {
        move_to(&client, all[1], "t", &all).await;
        is_moved.set(true);
    };
    let writing = async {
        while !is_moved.get() {
            writer.append(1).await;
        }
    };
    tokio::join!(moving, writing);
    println!("from one replica to three after {} ms", began.elapsed().as_millis());
    writer.append(10).await;
    cluster.wait_for_same_segments("t-0");

    let began = Instant::now();
    move_to(&client, id(third), "t", &[id(second)]).await;
    println!("to another node alone after {} ms", began.elapsed().as_millis());
    writer.append(10).await;
    assert_eq!(leader(&client, "t").await, second);
    wait_until("the others let go of it", || {
        [first, third].iter().all(|id| !cluster.dir(*id).join("t-0").exists())
    });
    cluster.kill(first);
    writer.append(10).await;
    writer.check(&client, "t").await;
}

/// Whether it has not come yet.
async fn is_open<F: Future + Unpin>(future: &mut F) -> bool {
    tokio::select! {
        biased;
        _ = future => false,
        () = std::future::ready(()) => true,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn topics_are_made_after_the_death_of_the_metadata_s_leader() {
    let mut cluster = Cluster::start();
    let client = cluster.client().await;
    client.create_topic(&topic("before"), false).await.unwrap();
    let dead = controller(&client).await;

    // Any node takes the request, and lets the metadata's leader decide.
    let request = CreateTopicsRequest {
        topics: vec![CreatableTopic {
            name: "anywhere".to_owned(),
            num_partitions: 1,
            replication_factor: 3,
            ..CreatableTopic::default()
        }],
        timeout_ms: 5_000,
        validate_only: false,
    };
    let other = i32::try_from(dead % 3 + 1).unwrap();
    let made = client.node(other).await.unwrap().call(&request).await.unwrap();
    assert_eq!(made.topics[0].error_code, 0);
    let again = client.node(other).await.unwrap().call(&request).await.unwrap();
    assert_eq!(again.topics[0].error_code, ErrorCode::TopicAlreadyExists.code());

    cluster.kill(dead);
    let began = Instant::now();
    client.create_topic(&topic("after"), false).await.unwrap();
    println!("a topic was made after {} ms", began.elapsed().as_millis());
    assert!(began.elapsed() < FAILOVER_MAX);
    assert_ne!(controller(&client).await, dead);
    let mut writer = Writer::new(&client, "after").await;
    writer.append(10).await;
    writer.check(&client, "after").await;

    // Clients are told of those that live, and of all again when all do.
    let until = Instant::now() + PATIENCE;
    let brokers = async || client.metadata(Some(&[]), false).await.unwrap().brokers.len();
    while brokers().await != 2 {
        assert!(Instant::now() < until, "the dead node is still named");
    }
    cluster.spawn(dead);
    while brokers().await != 3 {
        assert!(Instant::now() < until, "the node that came back is not named");
    }
    cluster.wait_for_same_segments("after-0");
}

#[tokio::test(flavor = "multi_thread")]
async fn appends_go_on_beside_a_frozen_follower() {
    let cluster = Cluster::start();
    let client = cluster.client().await;
    client.create_topic(&topic("t"), false).await.unwrap();
    let mut writer = Writer::new(&client, "t").await;
    writer.append(10).await;
    // The metadata's leader is left alone: this is about a follower of everything.
    let leads = [leader(&client, "t").await, controller(&client).await];
    let frozen = (1..=3).find(|id| !leads.contains(id)).unwrap();
    cluster.signal(frozen, "-STOP");
    let began = Instant::now();
    writer.append(200).await;
    println!("200 appends beside a frozen follower took {} ms", began.elapsed().as_millis());
    cluster.signal(frozen, "-CONT");
    writer.append(10).await;
    cluster.wait_for_same_segments("t-0");
    writer.check(&client, "t").await;
}

/// What a node says that cannot start.
fn complaint(mut command: Command) -> String {
    let mut child = command.spawn().unwrap();
    let mut text = String::new();
    child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(1), "{text}");
    text
}

#[test]
fn a_foreign_directory_is_refused_and_told_why() {
    let mut cluster = Cluster::start();
    // Node 2's own directory, given to node 3.
    cluster.kill(2);
    cluster.kill(3);
    let kept = cluster.dir(2);
    let mut foreign = Command::new(env!("CARGO_BIN_EXE_duramen"));
    let listed = cluster.command(3);
    let given: Vec<_> = listed.get_args().collect();
    let at = given.iter().position(|it| *it == "--data-dir").unwrap();
    foreign.args(&given[..at]).arg("--data-dir").arg(&kept).stderr(Stdio::piped());
    let text = complaint(foreign);
    assert!(text.contains("belongs to node 2"), "{text}");

    let mut alone = Command::new(env!("CARGO_BIN_EXE_duramen"));
    alone
        .args(["serve", "--listen", "127.0.0.1:0", "--data-dir"])
        .arg(&kept)
        .stderr(Stdio::piped());
    let text = complaint(alone);
    assert!(text.contains("--node-listen"), "{text}");
    for id in [2, 3] {
        cluster.spawn(id);
        cluster.wait_for_log(id, "serving");
    }
}

/// A node's directory is lost, and it is started again: what it had comes back to it, and it counts again.
#[tokio::test(flavor = "multi_thread")]
async fn a_wiped_node_is_replaced_by_itself_beside_a_writer() {
    let mut cluster = Cluster::start();
    let client = cluster.client().await;
    client.create_topic(&topic("t"), false).await.unwrap();
    let mut writer = Writer::new(&client, "t").await;
    writer.append(100).await;
    for wiped in 1..=3 {
        cluster.kill(wiped);
        std::fs::remove_dir_all(cluster.dir(wiped)).unwrap();
        writer.append(10).await;
        let began = Instant::now();
        cluster.spawn_replacing(wiped);
        cluster.wait_for_log(wiped, "serving");
        // Only when it has a vote again may the next one be lost.
        let until = Instant::now() + PATIENCE;
        loop {
            writer.append(1).await;
            let node = client.node(i32::try_from(wiped).unwrap()).await.unwrap();
            let request = ListPartitionReassignmentsRequest::default();
            let is_settled = node.call(&request).await.unwrap().topics.is_empty();
            if is_settled
                && cluster.segments(wiped, "t-0") == cluster.segments(wiped % 3 + 1, "t-0")
            {
                break;
            }
            assert!(Instant::now() < until, "node {wiped} does not get back what it had");
        }
        println!("node {wiped} was whole again after {} ms", began.elapsed().as_millis());
    }
    cluster.wait_for_same_segments("t-0");
    writer.check(&client, "t").await;
}

/// Waits until the log of groups has three replicas of every partition, as one node says.
async fn until_groups_are_on_all(client: &Client, through: i32) {
    let until = Instant::now() + PATIENCE;
    loop {
        client.forget("__consumer_offsets").await;
        let groups = client.topic("__consumer_offsets", false).await.unwrap();
        let are_grown = groups.partitions.iter().all(|it| it.replica_nodes.len() == 3);
        let request = ListPartitionReassignmentsRequest::default();
        let node = client.node(through).await.unwrap();
        if are_grown && node.call(&request).await.unwrap().topics.is_empty() {
            break;
        }
        assert!(Instant::now() < until, "the log of groups does not grow");
        tokio::time::sleep(POLL).await;
    }
}

/// One node, as `dev` starts it, becomes three; then the first is destroyed.
#[tokio::test(flavor = "multi_thread")]
async fn one_node_grows_to_three_and_outlives_the_first() {
    let mut cluster = Cluster::of([]);
    cluster.spawn_with(1, &[]);
    cluster.wait_for_log(1, "serving");
    let client = cluster.client_of(1).await;
    let alone = NewTopic { replication_factor: 1, configs: [].into(), ..topic("t") };
    client.create_topic(&alone, false).await.unwrap();
    let mut writer = Writer::new(&client, "t").await;
    writer.append(50).await;
    let offsets = [("t".to_owned(), [(0, 33)].into())].into();
    client.commit("g", &offsets).await.unwrap();
    let given = client.init_producer().await.unwrap().id;
    cluster.stop(1);

    // From now on it listens for others, which need no more than its address.
    let at = |port: u16| format!("127.0.0.1:{port}");
    let seeds = format!("controller.quorum.voters=1@{}", at(cluster.node_ports[0]));
    for id in 1..=3 {
        let listens = at(cluster.node_ports[id - 1]);
        let joins = ["--set", seeds.as_str()];
        let joins = if id == 1 { &[][..] } else { &joins };
        cluster.spawn_with(id, &[&["--node-listen", listens.as_str()], joins].concat());
    }
    (1..=3).for_each(|id| cluster.wait_for_log(id, "serving"));
    let client = cluster.client().await;
    writer.append(10).await;
    move_to(&client, 2, "t", &[2, 3, 1]).await;
    move_to(&client, 3, "t", &[2, 3]).await;
    until_groups_are_on_all(&client, 2).await;
    cluster.kill(1);
    std::fs::remove_dir_all(cluster.dir(1)).unwrap();
    writer.append(10).await;
    writer.check(&client, "t").await;
    let committed = client.committed("g").await.unwrap();
    assert_eq!(committed["t"][&0].offset, 33);
    assert!(client.init_producer().await.unwrap().id > given, "no producer id is given twice");

    // Of those with whom the cluster began none is left. Who joins now is told of another one.
    let listens = at(cluster.node_ports[3]);
    let seeds = format!("controller.quorum.voters=2@{}", at(cluster.node_ports[1]));
    cluster.spawn_with(4, &["--node-listen", listens.as_str(), "--set", seeds.as_str()]);
    let until = Instant::now() + PATIENCE;
    let is_there = |brokers: &[MetadataResponseBroker]| brokers.iter().any(|it| it.node_id == 4);
    while !is_there(&client.metadata(Some(&[]), false).await.unwrap().brokers) {
        assert!(Instant::now() < until, "the fourth does not join");
        tokio::time::sleep(POLL).await;
    }
    move_to(&client, 2, "t", &[2, 3, 4]).await;
    writer.append(10).await;
    writer.check(&client, "t").await;
}

/// Two of three disks are lost for ever. What the third has goes on, first alone, then with two new nodes, and without it.
#[tokio::test(flavor = "multi_thread")]
async fn one_directory_begins_a_new_cluster_when_the_others_are_lost() {
    let mut cluster = Cluster::start();
    let client = cluster.client().await;
    client.create_topic(&topic("t"), false).await.unwrap();
    let mut writer = Writer::new(&client, "t").await;
    writer.append(100).await;
    let offsets = [("t".to_owned(), [(0, 33)].into())].into();
    client.commit("g", &offsets).await.unwrap();
    cluster.wait_for_same_segments("t-0");
    let survive = |cluster: &Cluster, arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_duramen"));
        command.args(["cluster", "survive", "--output", "json"]).args(arguments);
        let ended = command.arg("--data-dir").arg(cluster.dir(3)).output().unwrap();
        (ended.status.success(), String::from_utf8([ended.stdout, ended.stderr].concat()).unwrap())
    };
    let (is_done, said) = survive(&cluster, &["--yes"]);
    assert!(!is_done && said.contains("in use by another process"), "{said}");
    (1..=3).for_each(|id| cluster.kill(id));
    for lost in 1..=2 {
        std::fs::remove_dir_all(cluster.dir(lost)).unwrap();
    }
    let manifest = || std::fs::read(cluster.dir(3).join("manifest")).unwrap();
    let before = manifest();
    let (is_done, said) = survive(&cluster, &[]);
    assert!(is_done, "{said}");
    let plan: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!((&plan["lost_nodes"], &plan["kept"]["t"]), (&[1, 2][..].into(), &[0][..].into()));
    assert_eq!((&plan["lost"], &plan["cluster_id"]), (&serde_json::json!({}), &().into()));
    assert_eq!(manifest(), before, "nothing was changed");
    // Once more is no harm: whoever was interrupted does it again.
    for _ in 0..2 {
        let (is_done, said) = survive(&cluster, &["--yes"]);
        assert!(is_done && said.contains("\"cluster_id\""), "{said}");
    }

    cluster.spawn(3);
    cluster.wait_for_log(3, "serving");
    writer.append(50).await;
    for id in 1..=2 {
        cluster.spawn(id);
        cluster.wait_for_log(id, "serving");
    }
    cluster.client().await;
    move_to(&client, 3, "t", &[3, 1, 2]).await;
    writer.append(10).await;
    cluster.wait_for_same_segments("t-0");
    until_groups_are_on_all(&client, 1).await;
    let until = Instant::now() + PATIENCE;
    while client.quorum().await.unwrap().current_voters.len() < 3 {
        assert!(Instant::now() < until, "the metadata is not voted on by all");
        tokio::time::sleep(POLL).await;
    }
    cluster.kill(3);
    writer.append(10).await;
    writer.check(&client, "t").await;
    assert_eq!(client.committed("g").await.unwrap()["t"][&0].offset, 33);
}

/// Whether a process is there that is not a zombie.
fn lives(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with(" Z"))
}

/// `duramen dev`, in a process of its own, and what it says.
struct Dev {
    process: Child,
    said: Box<dyn Iterator<Item = String>>,
    log: std::thread::JoinHandle<Vec<String>>,
    /// The processes that it named before it was ready.
    pids: Vec<u32>,
}

impl Dev {
    fn start(data_dir: &Path, first_port: u16, nodes: u32, arguments: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_duramen"));
        command.args(["dev", "--nodes", &nodes.to_string()]).args(arguments);
        command.args(["--listen", &format!("127.0.0.1:{first_port}"), "--data-dir"]).arg(data_dir);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let log = BufReader::new(process.stderr.take().unwrap()).lines().map_while(Result::ok);
        let log = std::thread::spawn(move || log.collect());
        let said = BufReader::new(process.stdout.take().unwrap()).lines().map_while(Result::ok);
        let mut dev = Self { process, said: Box::new(said), log, pids: Vec::new() };
        while let Some(line) = dev.said.next().filter(|line| !line.starts_with("Type next")) {
            if let Some((_, rest)) = line.split_once("  process ") {
                dev.pids.push(rest.split(' ').next().unwrap().parse().unwrap());
            }
        }
        dev
    }

    /// Sends a signal, and waits for the end: whether it was in order, and the log.
    fn end(mut self, signal: &str) -> (bool, Vec<String>) {
        let pid = self.process.id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
        let is_in_order = self.process.wait().unwrap().success();
        wait_until("the nodes have ended with it", || !self.pids.iter().any(|pid| lives(*pid)));
        (is_in_order, self.log.join().unwrap())
    }
}

/// The first of three ports for clients, and as many for nodes. Tests that run beside each other name different ranges.
fn dev_port(range: u16) -> u16 {
    let is_free = |port| TcpListener::bind(("127.0.0.1", port)).is_ok();
    loop {
        // Those for nodes are 10,000 higher, and below what the kernel gives away, too.
        let first = 20_000 + 1_000 * range + free_port() % 990;
        if (0..3).all(|n| is_free(first + n) && is_free(first + 10_000 + n)) {
            return first;
        }
    }
}

#[test]
fn dev_starts_three_nodes_that_end_with_it_however_it_ends() {
    let root = TempDir::new().unwrap();
    let first = dev_port(0);
    for (signal, is_in_order) in [("-KILL", false), ("-INT", true)] {
        let mut dev = Dev::start(root.path(), first, 3, &[]);
        let pids = dev.pids.clone();
        assert_eq!(pids.len(), 3);
        assert!(pids.iter().all(|pid| lives(*pid)));
        assert!((1..=3).all(|id| root.path().join(format!("node-{id}/manifest")).exists()));

        // One that is killed is told of; the others go on.
        let one = pids[1].to_string();
        assert!(Command::new("kill").args(["-KILL", &one]).status().unwrap().success());
        let ended = format!("node 2 (process {one}) ended");
        assert!(dev.said.any(|line| line.starts_with(&ended)));
        assert!(lives(pids[0]) && lives(pids[2]));

        let (ended_in_order, log) = dev.end(signal);
        assert_eq!(ended_in_order, is_in_order);
        assert!(log.iter().any(|line| line.starts_with("node-3 | ")), "{log:#?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn dev_with_three_nodes_goes_on_with_what_one_had() {
    let root = TempDir::new().unwrap();
    let first = dev_port(1);
    let dev = Dev::start(root.path(), first, 1, &[]);
    let client = client_at(&[first], 1).await;
    let alone = NewTopic { replication_factor: 1, configs: [].into(), ..topic("t") };
    client.create_topic(&alone, false).await.unwrap();
    let mut writer = Writer::new(&client, "t").await;
    writer.append(20).await;
    let offsets = [("t".to_owned(), [(0, 7)].into())].into();
    client.commit("g", &offsets).await.unwrap();
    assert!(dev.end("-INT").0);

    let dev = Dev::start(root.path(), first, 3, &[]);
    assert_eq!(dev.pids.len(), 3);
    let client = client_at(&[first, first + 1, first + 2], 3).await;
    client.create_topic(&topic("of_all"), false).await.unwrap();
    writer.append(10).await;
    writer.check(&client, "t").await;
    assert_eq!(client.committed("g").await.unwrap()["t"][&0].offset, 7);
    until_groups_are_on_all(&client, 1).await;
    assert!(dev.end("-INT").0);
}

/// The metrics of a node that serves them there.
fn metrics(port: u16) -> String {
    http_get(port, "/metrics")
}

fn http_get(port: u16, path: &str) -> String {
    let mut text = String::new();
    let socket = std::net::TcpStream::connect(("127.0.0.1", port));
    if let Ok(mut socket) = socket {
        let request = format!("GET {path} HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n");
        std::io::Write::write_all(&mut socket, request.as_bytes()).unwrap();
        let _ = socket.read_to_string(&mut text);
    }
    text
}

/// One of them.
fn figure(metrics: &str, name: &str) -> Option<u64> {
    let prefix = format!("duramen_{name} ");
    metrics.lines().find_map(|line| line.strip_prefix(&prefix)?.parse().ok())
}

/// A topic `t` with three segments of batches too large for the journal: what recovery finds in segments alone, and does not
/// look at. Returns what they are.
async fn with_large_batches(cluster: &Cluster, client: &Client) -> BTreeMap<String, Vec<u8>> {
    let mut large = topic("t");
    large.configs.insert("segment.bytes".to_owned(), "2000000".to_owned());
    client.create_topic(&large, false).await.unwrap();
    let options = AppenderOptions {
        acks: Acknowledgement::All,
        producer: None,
        window: 1,
        timeout_ms: 10_000,
    };
    let mut appender = Appender::new(client.clone(), "t", 0, options);
    for number in 0..5_u8 {
        let mut batch = BatchBuilder::new();
        let value = vec![number; 700_000];
        batch.push(&NewRecord { value: Some(&value), ..NewRecord::default() }).unwrap();
        appender.push(batch.build_mut().unwrap()).await.unwrap();
        appender.finish().await.unwrap();
    }
    cluster.wait_for_same_segments("t-0");
    let segments = cluster.segments(1, "t-0");
    assert_eq!(segments.len(), 3);
    segments
}

#[tokio::test(flavor = "multi_thread")]
async fn what_rots_at_rest_is_found_and_fetched_again() {
    let mut cluster = Cluster::start();
    let client = cluster.client().await;
    let good = with_large_batches(&cluster, &client).await;
    let rotten = leader(&client, "t").await;
    cluster.stop(rotten);
    // In the middle of a batch of the first segment, and in a header of the last one.
    let dir = cluster.dir(rotten).join("t-0");
    for (name, at) in [(good.keys().next().unwrap(), 300_000), (good.keys().last().unwrap(), 3)] {
        let mut bytes = std::fs::read(dir.join(name)).unwrap();
        bytes[at] ^= 0x10;
        std::fs::write(dir.join(name), bytes).unwrap();
    }
    let port = free_port();
    cluster.more = ["--set", "log.scrub.interval.ms=500", "--http", &format!("127.0.0.1:{port}")]
        .map(str::to_owned)
        .into();
    cluster.spawn(rotten);
    cluster.wait_for_log(rotten, "serving");
    cluster.wait_for_log(rotten, "a damaged segment is as other replicas have it again");
    cluster.wait_for_same_segments("t-0");
    assert_eq!(cluster.segments(rotten, "t-0"), good);
    // A pass may find the same damage again before it is mended.
    wait_until("both segments are mended", || {
        let text = metrics(port);
        figure(&text, "segments_damaged") == Some(0)
            && figure(&text, "segments_mended_total") >= Some(2)
            && figure(&text, "scrub_damage_found_total") >= Some(2)
            && figure(&text, "scrub_passes_total") >= Some(1)
    });
}

/// What may hide acknowledged records is neither cut nor guessed: it is told, and the others go on. A replica is replaced when
/// they have all of it; a directory is left as it is, and one that is begun anew gets all of it.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_damaged_at_the_start_is_told_and_replaced() {
    let mut cluster = Cluster::start();
    let client = cluster.client().await;
    let good = with_large_batches(&cluster, &client).await;
    client.create_topic(&topic("other"), false).await.unwrap();
    let mut writer = Writer::new(&client, "other").await;
    writer.append(10).await;
    let damaged = leader(&client, "t").await;
    cluster.stop(damaged);
    // The newest segment has lost its end, which was synced.
    let newest = cluster.dir(damaged).join("t-0").join(good.keys().last().unwrap());
    let left = std::fs::metadata(&newest).unwrap().len() - 1000;
    std::fs::OpenOptions::new().write(true).open(&newest).unwrap().set_len(left).unwrap();
    cluster.spawn(damaged);
    cluster.wait_for_log(damaged, "durable data is damaged");
    cluster.wait_for_log(damaged, "serving");
    writer.append(10).await;
    let leads = leader(&client, "t").await;
    assert_ne!(leads, damaged);
    cluster.wait_for_same_segments("other-0");

    // Another replica takes its place, now that the others have all that was committed.
    cluster.wait_for_same_segments("t-0");
    assert_eq!(cluster.segments(damaged, "t-0"), good);

    cluster.stop(damaged);
    let journal = cluster.dir(damaged).join("journal").join("0000");
    let mut bytes = std::fs::read(&journal).unwrap();
    bytes[10] ^= 0x10;
    std::fs::write(&journal, &bytes).unwrap();
    let text = complaint(cluster.command(damaged));
    assert!(text.contains("journal is damaged") && text.contains("empty data directory"), "{text}");
    assert_eq!(std::fs::read(&journal).unwrap(), bytes, "it is as it was found");

    std::fs::remove_dir_all(cluster.dir(damaged)).unwrap();
    cluster.spawn_replacing(damaged);
    cluster.wait_for_log(damaged, "serving");
    cluster.wait_for_same_segments("t-0");
    assert_eq!(cluster.segments(damaged, "t-0"), good);
    cluster.wait_for_same_segments("other-0");
    writer.check(&client, "other").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_whose_metadata_is_damaged_says_how_others_replace_it() {
    let mut cluster = Cluster::of([]);
    cluster.more =
        ["--set", "metadata.log.max.record.bytes.between.snapshots=1024"].map(str::to_owned).into();
    (1..=3).for_each(|id| cluster.spawn(id));
    (1..=3).for_each(|id| cluster.wait_for_log(id, "serving"));
    let client = cluster.client().await;
    let metadata = cluster.dir(3).join("__cluster_metadata-0");
    let images = || {
        let files = std::fs::read_dir(&metadata).into_iter().flatten();
        let files = files.map(|entry| entry.unwrap().path());
        files.filter(|path| path.to_string_lossy().contains("image-")).collect::<Vec<_>>()
    };
    // A small one is in the journal.
    for number in 0.. {
        if !images().is_empty() {
            break;
        }
        let wide = NewTopic { partitions: 1000, replication_factor: 1, ..topic("") };
        let wide = NewTopic { name: format!("t{number}"), configs: BTreeMap::new(), ..wide };
        // A busy machine may make the client ask twice.
        let made = client.create_topic(&wide, false).await.map(|_| ());
        let exists = Some(duramen_protocol::ErrorCode::TopicAlreadyExists);
        assert!(made.is_ok() || made.as_ref().unwrap_err().code() == exists, "{made:?}");
    }
    cluster.stop(3);
    for image in images() {
        let mut bytes = std::fs::read(&image).unwrap();
        bytes[30] ^= 0x10;
        std::fs::write(&image, bytes).unwrap();
    }
    let text = complaint(cluster.command(3));
    assert!(text.contains("the metadata log is damaged: __cluster_metadata-0/image-"), "{text}");
    assert!(text.contains("start this one with an empty data directory"), "{text}");
}
