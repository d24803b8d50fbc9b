//! `duramen cluster` and what belongs to it, against a real `dev --nodes 3`.
#![expect(clippy::unwrap_used, reason = "a test's own failure is a failure")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::time::{Duration, Instant};

use duramen_client::{
    Acknowledgement, Appender, AppenderOptions, Client, NewTopic, OffsetAt, Options,
};
use duramen_protocol::messages::MetadataRequest;
use duramen_protocol::messages::metadata::MetadataRequestTopic;
use duramen_protocol::records::{BatchBuilder, NewRecord};
use serde_json::Value;
use tempfile::TempDir;

/// Long enough for a busy machine; nothing here waits so long when all is well.
const PATIENCE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(50);
/// How far the ports of metrics and health are from those of clients.
const HTTP_APART: u16 = 5_000;

struct Cluster {
    dev: Child,
    pids: Vec<u32>,
    first_port: u16,
    root: TempDir,
}

impl Cluster {
    fn start() -> Self {
        // Tests of one process run side by side.
        static CLUSTERS: AtomicU16 = AtomicU16::new(0);
        let root = TempDir::new().unwrap();
        let is_free = |port| TcpListener::bind(("127.0.0.1", port)).is_ok();
        let apart = CLUSTERS.fetch_add(1, Ordering::Relaxed) * 900;
        let mut first_port =
            20_000 + (u16::try_from(std::process::id() % 900).unwrap() + apart) % 1990;
        let are_free = |port| (0..3).all(|n| is_free(port + n));
        while !(are_free(first_port)
            && are_free(first_port + HTTP_APART)
            && are_free(first_port + 10_000))
        {
            first_port = 20_000 + (first_port - 20_000 + 7) % 1990;
        }
        let mut command = Command::new(env!("CARGO_BIN_EXE_duramen"));
        command.args(["dev", "--nodes", "3", "--listen", &format!("127.0.0.1:{first_port}")]);
        command.args(["--http", &format!("127.0.0.1:{}", first_port + HTTP_APART)]);
        command.arg("--data-dir").arg(root.path());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut dev = command.spawn().unwrap();
        let said = BufReader::new(dev.stdout.take().unwrap()).lines().map_while(Result::ok);
        // From here on it ends with the test, however that ends.
        let mut cluster = Self { dev, pids: Vec::new(), first_port, root };
        let (sender, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || said.for_each(|line| drop(sender.send(line))));
        loop {
            let line = told.recv_timeout(PATIENCE).expect("it says what to type next");
            if let Some((_, rest)) = line.split_once("  process ") {
                let pid = rest.split(' ').next().unwrap();
                cluster.pids.push(pid.parse::<u32>().unwrap_or_else(|_| panic!("{line}")));
            }
            if line.starts_with("Type next") {
                break;
            }
        }
        assert_eq!(cluster.pids.len(), 3);
        cluster
    }

    fn bootstrap(&self) -> String {
        let all = (0..3).map(|n| format!("127.0.0.1:{}", self.first_port + n));
        all.collect::<Vec<_>>().join(",")
    }

    /// Runs a command of ours.
    fn run(&self, line: &str) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_duramen"));
        command.args(line.split_whitespace()).args(["--bootstrap", &self.bootstrap()]);
        command.stdin(Stdio::null()).output().unwrap()
    }

    /// Runs a command that must succeed; what it printed.
    fn ok(&self, line: &str) -> String {
        let done = self.run(line);
        assert!(done.status.success(), "{line}: {}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8(done.stdout).unwrap()
    }

    fn json(&self, line: &str) -> Value {
        serde_json::from_str(&self.ok(&format!("{line} --output json"))).unwrap()
    }

    /// The cluster's status, which says by the exit code, too, whether all is well.
    fn status(&self) -> Value {
        let done = self.run("cluster status --output json");
        let told: Value = serde_json::from_slice(&done.stdout)
            .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&done.stderr)));
        let code = i32::from(told["healthy"] != true);
        assert_eq!(done.status.code(), Some(code), "{told:#}");
        told
    }

    /// What a node answers about its health.
    fn health(&self, node: u16, path: &str) -> String {
        let port = self.first_port + HTTP_APART + node - 1;
        let mut socket = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n");
        socket.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).unwrap();
        answer
    }

    fn kill(&self, node: usize) {
        let pid = self.pids[node - 1].to_string();
        assert!(Command::new("kill").args(["-KILL", &pid]).status().unwrap().success());
    }

    async fn client(&self) -> Client {
        let options = Options {
            connect_for: PATIENCE,
            retry_for: PATIENCE,
            request_timeout: Duration::from_secs(5),
            ..Options::new(self.bootstrap().split(','))
        };
        Client::connect(options).await.unwrap()
    }

    fn segment(&self, node: usize, partition: &str) -> PathBuf {
        self.root.path().join(format!("node-{node}/{partition}/00000000000000000000.log"))
    }

    /// Waits until the status says something.
    fn wait_for(&self, is_so: impl Fn(&Value) -> bool) -> Value {
        let until = Instant::now() + PATIENCE;
        loop {
            let told = self.status();
            if is_so(&told) {
                return told;
            }
            assert!(Instant::now() < until, "{told:#}");
            std::thread::sleep(POLL);
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // Its nodes end with it.
        let _ = self.dev.kill();
        let _ = self.dev.wait();
    }
}

fn topic(name: &str, partitions: i32, replication_factor: i16) -> NewTopic {
    let configs = [("segment.bytes".to_owned(), "65536".to_owned())].into();
    NewTopic { name: name.to_owned(), partitions, replication_factor, configs }
}

async fn append(client: &Client, topic: &str, partition: i32, batches: usize) {
    let options = AppenderOptions {
        acks: Acknowledgement::All,
        producer: Some(client.init_producer().await.unwrap()),
        window: 5,
        timeout_ms: 5_000,
    };
    let mut appender = Appender::new(client.clone(), topic, partition, options);
    for n in 0..batches {
        let mut batch = BatchBuilder::new();
        for m in 0..5 {
            let value = format!("{n}-{m}-{}", "x".repeat(200));
            let record = NewRecord { value: Some(value.as_bytes()), ..NewRecord::default() };
            batch.push(&record).unwrap();
        }
        appender.push(batch.build_mut().unwrap()).await.unwrap();
    }
    appender.finish().await.unwrap();
}

fn partition<'a>(report: &'a Value, topic: &str, index: i64) -> &'a Value {
    let rows = report["partitions"].as_array().unwrap();
    rows.iter().find(|it| it["topic"] == topic && it["partition"] == index).unwrap()
}

/// Changes a record in the middle of a segment, and the batch's checksum with it: what is there looks valid, has the same
/// length, and is not what was acknowledged. Returns the batch's first offset.
fn forge(path: &Path) -> i64 {
    let mut bytes = std::fs::read(path).unwrap();
    let number = |bytes: &[u8], at: usize| {
        u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap()) as usize
    };
    let mut at = 0;
    while at < bytes.len() / 2 {
        at += 12 + number(&bytes, at + 8);
    }
    let end = at + 12 + number(&bytes, at + 8);
    bytes[end - 20] ^= 1;
    let crc = crc32c::crc32c(&bytes[at + 21..end]);
    bytes[at + 17..at + 21].copy_from_slice(&crc.to_be_bytes());
    let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &bytes[at..end], at as u64).unwrap();
    i64::from_be_bytes(bytes[at..at + 8].try_into().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_are_verified_beside_a_writer_and_a_trimmer_and_a_forged_batch_is_found() {
    let cluster = Cluster::start();
    let client = cluster.client().await;
    client.create_topic(&topic("still", 2, 3), false).await.unwrap();
    client.create_topic(&topic("busy", 1, 3), false).await.unwrap();
    append(&client, "still", 0, 200).await;
    append(&client, "still", 1, 20).await;
    append(&client, "busy", 0, 200).await;

    // Beside a writer, and deletions that take away what is being looked at.
    let is_over = Arc::new(AtomicBool::new(false));
    let busy = std::thread::spawn({
        let (options, is_over) = (client.options().clone(), is_over.clone());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        move || {
            runtime.block_on(async {
                let client = Client::connect(options).await.unwrap();
                while !is_over.load(Ordering::Relaxed) {
                    append(&client, "busy", 0, 50).await;
                    let ends = client.list_offsets("busy", &[(0, OffsetAt::End)]).await.unwrap();
                    client.delete_records("busy", 0, ends[&0].offset - 60).await.unwrap();
                }
            });
        }
    });
    for _ in 0..5 {
        let report = cluster.json("cluster verify");
        assert_eq!((&report["differ"], &report["not_compared"]), (&0.into(), &0.into()));
        let still = partition(&report, "still", 0);
        assert_eq!((&still["start"], &still["end"]), (&0.into(), &1000.into()), "{report:#}");
        assert!(still["bytes"].as_i64().unwrap() > 200_000, "{report:#}");
        assert_eq!(partition(&report, "busy", 0)["nodes"].as_array().unwrap().len(), 3);
        let metadata = partition(&report, "__cluster_metadata", 0);
        assert!(metadata["end"].as_i64().unwrap() > 0, "{report:#}");
    }
    is_over.store(true, Ordering::Relaxed);
    busy.join().unwrap();

    let offset = forge(&cluster.segment(2, "still-0"));
    let done = cluster.run("cluster verify --output json");
    assert_eq!(done.status.code(), Some(1));
    let complaint: Value = serde_json::from_slice(&done.stderr).unwrap();
    assert_eq!(complaint, serde_json::json!({ "error": "1 partition differs", "code": null }));
    let report: Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!(report["differ"], 1, "{report:#}");
    let still = partition(&report, "still", 0);
    assert_eq!((&still["state"], &still["end"]), (&"differs".into(), &offset.into()));
    let difference = &still["difference"];
    assert_eq!((&difference["from"], &difference["to"]), (&offset.into(), &(offset + 5).into()));
    let odd = |node: &&Value| node["odd"] == true;
    let nodes = difference["nodes"].as_array().unwrap();
    let odd: Vec<_> = nodes.iter().filter(odd).map(|node| node["node"].as_i64()).collect();
    assert_eq!(odd, [Some(2)], "{report:#}");
    assert_eq!(partition(&report, "still", 1)["state"], "identical");

    let done = cluster.run("cluster verify --topic still");
    assert_eq!(done.status.code(), Some(1));
    let text = String::from_utf8(done.stdout).unwrap();
    let place = format!("still 0, first difference at offsets {offset}-{}:", offset + 4);
    assert!(text.contains(&place), "{text}");
    assert!(text.lines().any(|it| it.starts_with("  node 2: ") && it.ends_with("  <-")), "{text}");

    // Who does not answer is left out, and said so; the others are compared.
    let pid = cluster.pids[2].to_string();
    assert!(Command::new("kill").args(["-KILL", &pid]).status().unwrap().success());
    let report = cluster.json("cluster verify --topic busy");
    let busy = partition(&report, "busy", 0);
    assert_eq!(busy["state"], "not_compared");
    let mut compared: Vec<_> =
        busy["nodes"].as_array().unwrap().iter().map(|node| node.as_i64().unwrap()).collect();
    compared.sort_unstable();
    assert_eq!(compared, [1, 2], "in the order of the placement");
    assert!(busy["left_out"]["3"].is_string(), "{report:#}");
}

/// Appends one batch of records of a few queues.
async fn append_to_queues(client: &Client, topic: &str, round: usize) {
    let options = AppenderOptions {
        acks: Acknowledgement::All,
        producer: Some(client.init_producer().await.unwrap()),
        window: 5,
        timeout_ms: 5_000,
    };
    let mut appender = Appender::new(client.clone(), topic, 0, options);
    let mut batch = BatchBuilder::new();
    for n in 0..5 {
        let (key, value) = (format!("queue-{}", n % 3), format!("{round}-{n}-{}", "x".repeat(50)));
        let (key, value) = (Some(key.as_bytes()), Some(value.as_bytes()));
        batch.push(&NewRecord { key, value, ..NewRecord::default() }).unwrap();
    }
    appender.push(batch.build_mut().unwrap()).await.unwrap();
    appender.finish().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn queues_are_verified_on_all_nodes_and_another_element_is_found() {
    let cluster = Cluster::start();
    let client = cluster.client().await;
    let configs = [("queue.enable".to_owned(), "true".to_owned())].into();
    let name = "mail".to_owned();
    let mail = NewTopic { name, partitions: 1, replication_factor: 3, configs };
    client.create_topic(&mail, false).await.unwrap();
    for round in 0..40 {
        append_to_queues(&client, "mail", round).await;
    }
    let report = cluster.json("queue verify mail");
    assert_eq!((&report["ok"], &report["elements"]), (&1.into(), &200.into()), "{report:#}");
    assert_eq!((&report["queues"], &report["partitions"][0]["end"]), (&3.into(), &200.into()));
    assert_eq!(report["partitions"][0]["nodes"], serde_json::json!([1, 2, 3]));

    let offset = forge(&cluster.segment(2, "mail-0")) + 4;
    let done = cluster.run("queue verify mail --output json");
    assert_eq!(done.status.code(), Some(1));
    let complaint: Value = serde_json::from_slice(&done.stderr).unwrap();
    assert_eq!(complaint["error"], "1 partition faulty");
    let report: Value = serde_json::from_slice(&done.stdout).unwrap();
    let partition = &report["partitions"][0];
    assert_eq!((&partition["state"], &partition["end"]), (&"faulty".into(), &200.into()));
    let findings = partition["findings"].as_array().unwrap();
    assert_eq!((findings.len(), &findings[0]["node"]), (1, &2.into()), "{report:#}");
    assert_eq!(findings[0]["queue"], "queue-1");
    let place = format!(".{}.{offset}", offset - 4);
    assert!(findings[0]["position"].as_str().unwrap().ends_with(&place), "{report:#}");
    let what = findings[0]["what"].as_str().unwrap();
    assert!(what.contains("; nodes 1,3 show version"), "{what}");
    let text = String::from_utf8(cluster.run("queue verify mail").stdout).unwrap();
    assert!(text.contains("mail 0, node 2, queue queue-1, position "), "{text}");

    cluster.kill(3);
    let done = cluster.run("queue verify mail --output json");
    let report: Value = serde_json::from_slice(&done.stdout).unwrap();
    assert!(report["partitions"][0]["left_out"]["3"].is_string(), "{report:#}");
    let findings = report["partitions"][0]["findings"].as_array().unwrap();
    let nodes: Vec<_> = findings.iter().map(|it| it["node"].as_i64().unwrap()).collect();
    assert_eq!(nodes, [1, 2], "of two that differ nobody knows which is wrong");
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_are_shown_and_partitions_moved_and_replicated() {
    let cluster = Cluster::start();
    let client = cluster.client().await;
    client.create_topic(&topic("t", 3, 1), false).await.unwrap();
    append(&client, "t", 0, 100).await;
    let is_whole = |it: &Value| it["nodes"].as_array().unwrap().len() == 3;
    let status = cluster.wait_for(is_whole);
    for node in status["nodes"].as_array().unwrap() {
        assert_eq!(node["state"], "live", "{status:#}");
        assert!(["leader", "voter"].map(Value::from).contains(&node["metadata"]), "{status:#}");
        assert!(node["disk_free"].as_i64().unwrap() > 0);
    }
    assert_eq!(status["metadata"]["voters"].as_array().unwrap().len(), 3);
    assert_eq!(status["partitions"]["total"], 3);
    assert!(cluster.ok("cluster status").contains("3 partitions, all led and fully replicated"));

    // Nothing is changed by a plan.
    let replicas = |it: &Value| {
        let rows = it[0]["partitions"].as_array().unwrap().iter();
        rows.map(|row| row["replicas"].to_string()).collect::<Vec<_>>()
    };
    let before = replicas(&cluster.json("topic describe t"));
    let planned = cluster.json("topic alter t --replication-factor 3 --dry-run");
    let moves = planned[0]["replication_factor"]["moves"].as_array().unwrap();
    assert_eq!(moves.len(), 3, "{planned:#}");
    assert_eq!(replicas(&cluster.json("topic describe t")), before);

    let raised = cluster.json("topic alter t --replication-factor 3");
    let moves = raised[0]["replication_factor"]["moves"].as_array().unwrap();
    assert!(moves.iter().all(|it| it["done"] == true), "{raised:#}");
    let after = cluster.json("topic describe t");
    for row in after[0]["partitions"].as_array().unwrap() {
        assert_eq!(row["replicas"].as_array().unwrap().len(), 3, "{after:#}");
    }
    append(&client, "t", 0, 100).await;
    let report = cluster.json("cluster verify --topic t");
    assert_eq!(
        (&report["identical"], partition(&report, "t", 0)["end"].as_i64()),
        (&3.into(), Some(1000))
    );

    cluster.ok("topic alter t --replication-factor 2");
    cluster.ok("cluster move --from 1");
    let after = cluster.json("topic describe t");
    for row in after[0]["partitions"].as_array().unwrap() {
        let mut nodes: Vec<_> =
            row["replicas"].as_array().unwrap().iter().filter_map(Value::as_i64).collect();
        nodes.sort_unstable();
        assert_eq!(nodes, [2, 3], "{after:#}");
    }
    let refused = cluster.run("cluster move --topic t --to 1");
    assert_eq!(refused.status.code(), Some(1));
    let text = String::from_utf8(refused.stderr).unwrap();
    assert!(text.contains("--replication-factor 1"), "{text}");
    cluster.ok("cluster move --topic t --partition 1 --to 1,3");
    let after = cluster.json("topic describe t");
    assert_eq!(after[0]["partitions"][1]["replicas"], Value::from(vec![1, 3]));
    assert_eq!(
        cluster.json("cluster move --topic t --partition 1 --to 1,3"),
        Value::from(Vec::<Value>::new())
    );
    assert!(cluster.ok("cluster move --cancel").contains("no such move"));

    // A node that is gone is shown, and so is what lacks it. Two replicas are no majority without one of them; of three, two
    // are.
    client.create_topic(&topic("three", 2, 3), false).await.unwrap();
    cluster.kill(3);
    let is_down = |it: &Value| {
        let totals = &it["partitions"];
        it["nodes"][2]["state"] == "down"
            && (&totals["under_replicated"], &totals["without_leader"]) == (&5.into(), &3.into())
    };
    let status = cluster.wait_for(is_down);
    assert_eq!(status["attention"].as_array().unwrap().len(), 5);
    let refused = cluster.run("cluster move --topic t --partition 1 --to 2,3");
    assert!(String::from_utf8(refused.stderr).unwrap().contains("node 3 is down"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_is_removed_with_all_that_is_on_it() {
    let cluster = Cluster::start();
    let client = cluster.client().await;
    client.create_topic(&topic("wide", 1, 3), false).await.unwrap();
    let refused = cluster.run("cluster remove 3");
    assert_eq!(refused.status.code(), Some(1));
    let text = String::from_utf8(refused.stderr).unwrap();
    assert!(text.contains("partition 0 of topic wide"), "{text}");
    cluster.ok("topic alter wide --replication-factor 2");
    client.create_topic(&topic("t", 3, 2), false).await.unwrap();
    append(&client, "t", 0, 10).await;
    let planned = cluster.json("cluster remove 3 --dry-run");
    assert_eq!(planned["removed"], false);
    assert_eq!(cluster.status()["nodes"].as_array().unwrap().len(), 3);

    let removed = cluster.json("cluster remove 3");
    assert_eq!(removed["removed"], true);
    cluster.wait_for(|it| it["nodes"].as_array().unwrap().len() == 2);
    for topic in ["t", "wide"] {
        for row in
            cluster.json(&format!("topic describe {topic}"))[0]["partitions"].as_array().unwrap()
        {
            assert!(!row["replicas"].as_array().unwrap().contains(&3.into()), "{row:#}");
        }
    }
    append(&client, "t", 0, 10).await;
    let refused = cluster.run("cluster remove 3");
    assert!(String::from_utf8(refused.stderr).unwrap().contains("there is no node 3"));
}

/// Which nodes are in sync with each partition of a topic, sorted, as one node says.
async fn in_sync(client: &Client, node: i32, topic: &str) -> Vec<Vec<i32>> {
    let asked = MetadataRequestTopic { name: Some(topic.to_owned()), ..Default::default() };
    let request = MetadataRequest { topics: Some(vec![asked]), ..MetadataRequest::default() };
    let mut answer = client.node(node).await.unwrap().call(&request).await.unwrap();
    let rows = answer.topics.remove(0).partitions.into_iter();
    let sorted = rows.map(|mut row| {
        row.isr_nodes.sort_unstable();
        row.isr_nodes
    });
    sorted.collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_dead_is_told_at_once_and_alike_by_every_node() {
    let cluster = Cluster::start();
    let client = cluster.client().await;
    client.create_topic(&topic("t", 6, 3), false).await.unwrap();
    append(&client, "t", 0, 10).await;
    let status = cluster.wait_for(|it| it["nodes"].as_array().unwrap().len() == 3);
    assert_eq!((&status["healthy"], &status["partitions"]["total"]), (&true.into(), &6.into()));
    assert!(cluster.health(1, "/readyz").starts_with("HTTP/1.1 200 OK"));

    cluster.kill(3);
    let done = cluster.run("cluster status");
    let text = String::from_utf8(done.stdout).unwrap();
    let verdict = text.lines().last().unwrap();
    assert!(verdict.starts_with("not healthy: node 3 ") && done.status.code() == Some(1), "{text}");
    let until = Instant::now() + PATIENCE;
    loop {
        let told = [in_sync(&client, 1, "t").await, in_sync(&client, 2, "t").await];
        if told.iter().flatten().all(|nodes| *nodes == [1, 2]) {
            break;
        }
        assert!(Instant::now() < until, "{told:?}");
        tokio::time::sleep(POLL).await;
    }
    let status = cluster.wait_for(|it| it["partitions"]["without_leader"] == 0);
    assert_eq!(status["partitions"]["under_replicated"], 6, "{status:#}");

    cluster.kill(2);
    let status = cluster.status();
    assert_eq!(status["healthy"], false, "{status:#}");
    let is_told = |it: &Value| {
        it["nodes"][1]["state"] == "down"
            && it["metadata"]["leader"].is_null()
            && it["partitions"]["without_leader"] == 6
    };
    let status = cluster.wait_for(is_told);
    assert!(status["nodes"][1]["silent_ms"].as_i64().unwrap() > 0, "{status:#}");
    // The first one lives, and says that it cannot serve.
    let until = Instant::now() + PATIENCE;
    let answer = loop {
        let answer = cluster.health(1, "/readyz");
        if answer.starts_with("HTTP/1.1 503 ") && answer.contains("no majority") {
            break answer;
        }
        assert!(Instant::now() < until, "{answer}");
        tokio::time::sleep(POLL).await;
    };
    assert!(answer.contains("1 of 3 nodes"), "{answer}");
    assert!(cluster.health(1, "/livez").starts_with("HTTP/1.1 200 OK"));
    assert!(cluster.health(1, "/healthz").contains("no majority"));
}
