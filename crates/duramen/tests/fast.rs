//! Fast appends against a real `dev --nodes 3`.
#![expect(clippy::unwrap_used, reason = "a test's own failure is a failure")]

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use duramen_client::{Client, FastAppender, FastOptions, FetchOptions, Fetcher, NewTopic, Options};
use duramen_protocol::records::{BatchBuilder, NewRecord, Records};
use serde_json::Value;
use tempfile::TempDir;

/// Long enough for a busy machine; nothing here waits so long when all is well.
const PATIENCE: Duration = Duration::from_secs(60);

struct Cluster {
    dev: Child,
    pids: Vec<u32>,
    first_port: u16,
    _root: TempDir,
}

impl Cluster {
    fn start() -> Self {
        static CLUSTERS: AtomicU16 = AtomicU16::new(0);
        let root = TempDir::new().unwrap();
        let is_free = |port| TcpListener::bind(("127.0.0.1", port)).is_ok();
        let apart = CLUSTERS.fetch_add(1, Ordering::Relaxed) * 900;
        let seed = u16::try_from(std::process::id() % 900).unwrap();
        let mut first_port = 16_000 + (seed + apart) % 1990;
        // Nodes listen to each other ten thousand ports above.
        while !(0..3).all(|n| is_free(first_port + n) && is_free(first_port + n + 10_000)) {
            first_port = 16_000 + (first_port - 16_000 + 7) % 1990;
        }
        let mut command = Command::new(env!("CARGO_BIN_EXE_duramen"));
        command.args(["dev", "--nodes", "3", "--listen", &format!("127.0.0.1:{first_port}")]);
        command.arg("--data-dir").arg(root.path());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut dev = command.spawn().unwrap();
        let said = BufReader::new(dev.stdout.take().unwrap()).lines().map_while(Result::ok);
        // From here on it ends with the test, however that ends.
        let mut cluster = Self { dev, pids: Vec::new(), first_port, _root: root };
        let (sender, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || said.for_each(|line| drop(sender.send(line))));
        loop {
            let line = told.recv_timeout(PATIENCE).expect("it says what to type next");
            if let Some((_, rest)) = line.split_once("  process ") {
                cluster.pids.push(rest.split(' ').next().unwrap().parse().unwrap());
            }
            if line.starts_with("Type next") {
                break;
            }
        }
        assert_eq!(cluster.pids.len(), 3);
        cluster
    }

    fn bootstrap(&self) -> Vec<String> {
        (0..3).map(|n| format!("127.0.0.1:{}", self.first_port + n)).collect()
    }

    /// Runs a command that must succeed with these lines. Returns its output and its complaints.
    fn feed(&self, line: &str, input: &str) -> (String, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_duramen"));
        command.args(line.split_whitespace()).args(["--bootstrap", &self.bootstrap().join(",")]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let done = child.wait_with_output().unwrap();
        let complaints = String::from_utf8(done.stderr).unwrap();
        assert!(done.status.success(), "{line}: {complaints}");
        (String::from_utf8(done.stdout).unwrap(), complaints)
    }

    fn json(&self, line: &str, input: &str) -> Value {
        serde_json::from_str(&self.feed(&format!("{line} --output json"), input).0).unwrap()
    }

    async fn client(&self) -> Client {
        let options = Options {
            connect_for: PATIENCE,
            retry_for: PATIENCE,
            ..Options::new(self.bootstrap())
        };
        Client::connect(options).await.unwrap()
    }

    /// Kills the node with this id.
    fn kill(&self, node: i32) {
        let pid = self.pids[usize::try_from(node).unwrap() - 1].to_string();
        assert!(Command::new("kill").args(["-KILL", &pid]).status().unwrap().success());
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // Its nodes end with it.
        let _ = self.dev.kill();
        let _ = self.dev.wait();
    }
}

async fn create(client: &Client, name: &str) {
    let topic = NewTopic {
        name: name.to_owned(),
        partitions: 1,
        replication_factor: 3,
        configs: [("fast.append.enable".to_owned(), "true".to_owned())].into(),
    };
    client.create_topic(&topic, false).await.unwrap();
}

/// Returns the first records of partition 0, as text.
async fn read(client: &Client, topic: &str, count: usize) -> Vec<String> {
    let mut fetcher = Fetcher::new(client.clone(), topic, [(0, 0)], FetchOptions::default());
    let mut values = Vec::new();
    while values.len() < count {
        for fetched in fetcher.poll().await.unwrap() {
            for view in duramen_protocol::batch::batches(fetched.records) {
                for record in &Records::of(&view.unwrap(), 1 << 20).unwrap() {
                    let value = record.unwrap().value.unwrap().to_vec();
                    values.push(String::from_utf8(value).unwrap());
                }
            }
        }
    }
    values
}

fn batch(number: usize) -> bytes::BytesMut {
    let mut batch = BatchBuilder::new();
    let value = number.to_string();
    batch.push(&NewRecord { value: Some(value.as_bytes()), ..NewRecord::default() }).unwrap();
    batch.build_mut().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn fast_appends_are_read_back_once_and_in_order_though_the_leader_dies() {
    let cluster = Cluster::start();
    let client = cluster.client().await;
    create(&client, "far").await;
    let producer = client.init_producer().await.unwrap();
    // A busy machine is no reason to ask the leader for a commit.
    let options = FastOptions { producer, window: 5, timeout_ms: 5_000, late_after: PATIENCE };
    let mut appender = FastAppender::new(client.clone(), "far", 0, options);
    appender.prepare(PATIENCE).await;
    let mut acked = Vec::new();
    for number in 0..400 {
        if number == 200 {
            assert!(acked.contains(&-1), "none was fast: {acked:?}");
            cluster.kill(client.leader("far", 0).await.unwrap().node);
        }
        let done = appender.push(batch(number)).await.unwrap();
        acked.extend(done.iter().map(|acked| acked.base_offset));
    }
    acked.extend(appender.finish().await.unwrap().iter().map(|acked| acked.base_offset));
    assert_eq!(appender.warning(), None);
    for (at, offset) in (0..).zip(&acked) {
        assert!([-1, at].contains(offset), "batch {at} is at {offset}");
    }
    let expected: Vec<_> = (0..400).map(|number| number.to_string()).collect();
    assert_eq!(read(&client, "far", 400).await, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn produce_takes_the_fast_way_where_the_topic_allows_it() {
    let cluster = Cluster::start();
    let client = cluster.client().await;
    create(&client, "far").await;
    let lines = (0..200).fold(String::new(), |lines, line| lines + &format!("{line}\n"));
    let produce = "produce far --fast --partition 0 --batch-bytes 1";
    let told = cluster.json(produce, &lines);
    assert_eq!((&told["records"], &told["batches"]), (&200.into(), &200.into()), "{told}");
    // On a busy machine all of them may be late.
    assert!(told["fast_batches"].is_u64(), "{told}");
    let expected: Vec<_> = (0..200).map(|number| number.to_string()).collect();
    assert_eq!(read(&client, "far", 200).await, expected);
    let bench = "bench append --fast --topic far --seconds 0.5 --warmup-seconds 0 --size 100";
    let told = cluster.json(bench, "");
    assert!(told["appends_per_second"].as_f64().unwrap() > 0.0, "{told}");
    assert!(told["fast_batches"].is_u64(), "{told}");
    let bench =
        "bench produce --fast --topic bulk --replication-factor 3 --messages 1000 --batch 100";
    let told = cluster.json(bench, "");
    assert_eq!(told["total"], 1_000, "{told}");
    let (said, complaints) = cluster.feed("produce near --fast", "one\n");
    assert_eq!(
        said,
        "appended 1 record to near: partition 0, offset 0; 0 of 1 batch in one round trip\n"
    );
    assert!(complaints.is_empty() || complaints.contains("fast.append.enable"), "{complaints}");
}
