//! `duramen backup` and `duramen restore`: a restored node has what the node had, and a damaged backup is refused.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use duramen_client::{
    Acknowledgement, Appender, AppenderOptions, Client, FetchOptions, Fetcher, Login, OffsetAt,
    Options, Producer,
};
use duramen_protocol::messages::produce::{PartitionProduceData, TopicProduceData};
use duramen_protocol::messages::{MetadataRequest, ProduceRequest};
use duramen_protocol::records::{BatchBuilder, NewRecord};
use duramen_protocol::sasl::Mechanism;
use serde_json::Value;
use tempfile::TempDir;

use crate::node::{Node, PATIENCE, stderr};

const POLL: Duration = Duration::from_millis(20);

/// A node with a listener for passwords, and the native API.
struct Server {
    node: Node,
    native: String,
    sasl: String,
    client: Client,
}

impl Server {
    async fn start(data_dir: &Path) -> Self {
        let users = data_dir.with_extension("users");
        fs::write(&users, "root:SCRAM-SHA-512:secret of root\n").unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_duramen"));
        command.args(["serve", "--log-format", "json", "--log", "info"]);
        command.args(["--native", "127.0.0.1:0", "--data-dir"]).arg(data_dir);
        let users = format!("bootstrap.users.file={}", users.display());
        for setting in [
            "listeners=OPEN://127.0.0.1:0,ASKING://127.0.0.1:0",
            "listener.security.protocol.map=OPEN:PLAINTEXT,ASKING:SASL_PLAINTEXT",
            "super.users=User:ANONYMOUS;User:root",
            "sasl.enabled.mechanisms=SCRAM-SHA-256,SCRAM-SHA-512",
            "log.cleaner.backoff.ms=50",
            "group.initial.rebalance.delay.ms=0",
            &users,
        ] {
            command.args(["--set", setting]);
        }
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
        let (mut native, mut open, mut sasl) = (String::new(), String::new(), String::new());
        while native.is_empty() || open.is_empty() || sasl.is_empty() {
            let line = log.next().expect("it says where it serves");
            let line: Value = serde_json::from_str(&line).expect(&line);
            let field = |name: &str| {
                let field = line.get(name).or_else(|| line.get("fields")?.get(name));
                field.and_then(Value::as_str).unwrap_or_default().to_owned()
            };
            match (field("message").as_str(), field("listener").as_str()) {
                ("serving the native API", _) => native = field("address"),
                ("serving", "OPEN") => open = field("address"),
                ("serving", "ASKING") => sasl = field("address"),
                _ => {}
            }
        }
        std::thread::spawn(move || log.for_each(drop));
        let client = Client::connect(Options::new([open.clone()])).await.unwrap();
        Self { node: Node { child, bootstrap: open }, native, sasl, client }
    }

    /// Runs a command of the native API, and returns its JSON, a line each.
    fn native(&self, arguments: &[&str]) -> String {
        let at = ["--native", &self.native, "--output", "json"];
        self.node.run(&[arguments, &at].concat())
    }

    /// Reads the raw batches of a partition, up to an offset.
    async fn batches(&self, topic: &str, partition: i32, (start, end): (i64, i64)) -> Vec<u8> {
        let mut bytes = Vec::new();
        let options = FetchOptions { max_wait_ms: 20, ..FetchOptions::default() };
        let mut fetcher = Fetcher::new(self.client.clone(), topic, [(partition, start)], options);
        let until = Instant::now() + PATIENCE;
        while fetcher.positions()[&partition] < end {
            assert!(Instant::now() < until, "{topic}-{partition} does not reach {end}");
            for fetched in fetcher.poll().await.unwrap() {
                for batch in duramen_protocol::batch::batches(fetched.records) {
                    let batch = batch.unwrap();
                    if batch.header().base_offset < end {
                        bytes.extend_from_slice(batch.bytes());
                    }
                }
            }
        }
        bytes
    }

    async fn end(&self, topic: &str) -> i64 {
        self.client.list_offsets(topic, &[(0, OffsetAt::End)]).await.unwrap()[&0].offset
    }

    /// Appends one record of an idempotent or transactional producer. Returns the error code and the offset.
    async fn append(
        &self,
        topic: &str,
        (producer, id, sequence): (Producer, Option<&str>, i32),
        value: &str,
    ) -> (i16, i64) {
        let mut batch = BatchBuilder::new().producer(producer.id, producer.epoch, sequence);
        if id.is_some() {
            batch = batch.transactional();
        }
        batch.push(&NewRecord { value: Some(value.as_bytes()), ..NewRecord::default() }).unwrap();
        let records = Some(batch.build().unwrap());
        let partition_data = [PartitionProduceData { index: 0, records }].into();
        let topic = TopicProduceData { name: topic.into(), partition_data, ..Default::default() };
        let request = ProduceRequest {
            transactional_id: id.map(Into::into),
            acks: -1,
            timeout_ms: 30_000,
            topic_data: [topic].into(),
        };
        let answer = self.client.call_any(&request).await.unwrap();
        let part = &answer.responses[0].partition_responses[0];
        (part.error_code, part.base_offset)
    }

    /// What there is beside the records, as commands tell it.
    fn told(&self) -> Vec<String> {
        let settings = |topic: &str| {
            let mut told = self.node.run_json(&["topic", "describe", topic]);
            format!("{topic} {}", told[0]["configs"].take())
        };
        let mut told: Vec<String> = ["t", "compacted", "mail", "events"].map(settings).into();
        told.push(self.node.run(&["user", "list"]));
        told.push(self.node.run(&["acl", "list"]));
        for it in self.node.run_json(&["txn", "list"]).as_array().unwrap() {
            told.push(format!("{} {} {}", it["id"], it["state"], it["producer_id"]));
        }
        told.push(self.node.run(&["consume", "t", "--read-committed", "--count", "201"]));
        told.push(self.native(&["queue", "retrieve", "mail", "alice"]));
        told.push(self.native(&["queue", "show", "mail", "alice"]));
        told.push(self.native(&["queue", "list", "mail"]));
        told.push(self.native(&["log", "read", "events"]));
        told.push(self.native(&["log", "tail", "events"]));
        told
    }

    async fn is_let_in(&self, user: &str, password: &'static str) -> bool {
        let login = Login::Password {
            user: user.to_owned(),
            password: Bytes::from_static(password.as_bytes()),
            mechanism: Mechanism::from_name("SCRAM-SHA-256").unwrap(),
        };
        let options = Options { login: Some(login), ..Options::new([self.sasl.clone()]) };
        let connection = duramen_client::Connection::open(&self.sasl, &options).await;
        match connection {
            Ok(connection) => connection.call(&MetadataRequest::default()).await.is_ok(),
            Err(_) => false,
        }
    }
}

/// Fills a node with all kinds of things. Returns an idempotent producer that has appended once to `t`.
async fn fill(server: &Server, root: &Path) -> Producer {
    let node = &server.node;
    node.run(&["topic", "create", "t", "--partitions", "2", "--config", "retention.ms=86400000"]);
    for name in ["compacted", "busy"] {
        let policy = if name == "busy" { "delete" } else { "compact" };
        let policy = format!("cleanup.policy={policy}");
        let configs = ["--config", &policy, "--config", "segment.bytes=4096"];
        node.run(&[&["topic", "create", name, "--partitions", "1"], &configs[..]].concat());
    }
    let cleaning =
        ["--config", "min.cleanable.dirty.ratio=0.01", "--config", "delete.retention.ms=0"];
    node.run(&[&["topic", "alter", "compacted"], &cleaning[..]].concat());
    node.run(&["topic", "create", "mail", "--partitions", "1", "--config", "queue.enable=true"]);
    node.run(&["topic", "create", "events", "--partitions", "1"]);
    let lines: Vec<_> = (0..200).map(|n| format!("value {n}\n")).collect();
    node.feed(&["produce", "t"], &lines.concat());
    for round in 0..8 {
        let lines: Vec<_> = (0..40).map(|n| format!("k{}\tvalue {round} {n}\n", n % 7)).collect();
        node.feed(&["produce", "compacted", "--key-separator", "\t"], &lines.concat());
    }
    let password = root.join("ada");
    fs::write(&password, "secret of ada").unwrap();
    let password = password.display().to_string();
    node.run(&["user", "create", "ada", "--new-password-file", &password]);
    let rule = ["--principal", "User:ada", "--topic", "t", "--operation", "read"];
    node.run(&[&["acl", "allow"], &rule[..]].concat());
    let offsets = [("t".to_owned(), [(0, 17)].into())].into();
    server.client.commit("g", &offsets).await.unwrap();

    let ours = server.client.init_producer().await.unwrap();
    assert_eq!(server.append("t", (ours, None, 0), "first").await.0, 0);
    for (id, ends) in [("aborted", true), ("open", false)] {
        let producer = server.client.take_over(id, 900_000).await.unwrap();
        assert_eq!(server.append("t", (producer, Some(id), 0), id).await.0, 0);
        if ends {
            node.run(&["txn", "abort", id]);
        }
    }
    for message in ["one", "two", "three", "four"] {
        server.native(&["queue", "enqueue", "mail", "alice", message]);
    }
    let told = server.native(&["queue", "retrieve", "mail", "alice"]);
    let position = |at: usize| {
        let line: Value = serde_json::from_str(told.lines().nth(at).unwrap()).unwrap();
        line["position"].as_str().unwrap().to_owned()
    };
    server.native(&["queue", "edit", "mail", "alice", &position(1), "second"]);
    server.native(&["queue", "delete", "mail", "alice", &position(2)]);
    server.native(&["queue", "fence", "mail", "alice", "owner-1"]);
    server.native(&["log", "append", "events", "a", "b", "c"]);
    server.native(&["log", "fence", "events", "writer-1"]);
    let read = server.native(&["log", "read", "events", "--count", "1"]);
    let first: Value = serde_json::from_str(read.lines().next().unwrap()).unwrap();
    let through = first["position"].as_str().unwrap();
    let pointer = ["--through", through, "--pointer", "s3://snapshots/1", "--fence", "writer-1"];
    server.native(&[&["log", "truncate", "events"], &pointer[..]].concat());
    ours
}

/// Waits until the log was compacted: a segment is named by the entry that decided it.
fn until_compacted(data_dir: &Path) {
    let until = Instant::now() + PATIENCE;
    let is_made =
        |entry: fs::DirEntry| entry.file_name().to_string_lossy().matches('.').count() > 1;
    while !fs::read_dir(data_dir.join("compacted-0")).unwrap().flatten().any(is_made) {
        assert!(Instant::now() < until, "it is never compacted");
        std::thread::sleep(POLL);
    }
}

/// Copies a directory with all that is in it.
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().flatten() {
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// Appends to `busy`, until it is told to end; says how much was acknowledged.
async fn keep_busy(client: Client, acked: Arc<AtomicI64>, is_over: Arc<AtomicBool>) {
    let (acks, window, timeout_ms) = (Acknowledgement::All, 5, 30_000);
    let options = AppenderOptions { acks, producer: None, window, timeout_ms };
    let mut appender = Appender::new(client, "busy", 0, options);
    while !is_over.load(Ordering::Relaxed) {
        let mut batch = BatchBuilder::new();
        batch.push(&NewRecord { value: Some(&[b'v'; 100]), ..NewRecord::default() }).unwrap();
        for done in appender.push(batch.build_mut().unwrap()).await.unwrap() {
            acked.store(done.base_offset + 1, Ordering::Relaxed);
        }
    }
    appender.finish().await.unwrap();
}

fn alone(arguments: &[&str]) -> Result<Value, String> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_duramen"));
    let output = command.args(arguments).args(["--output", "json"]).output().unwrap();
    match output.status.code() {
        Some(0) => Ok(serde_json::from_slice(&output.stdout).unwrap()),
        Some(1) => Err(stderr(&output)),
        other => panic!("{other:?}: {}", stderr(&output)),
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restored_node_has_what_the_node_had_at_the_moment_of_the_backup() {
    let root = TempDir::new().unwrap();
    let [data, backup, new] = ["data", "backup", "new"].map(|name| root.path().join(name));
    let old = Server::start(&data).await;
    let ours = fill(&old, root.path()).await;
    until_compacted(&data);
    let (acked, is_over) = (Arc::new(AtomicI64::new(0)), Arc::new(AtomicBool::new(false)));
    let (at, shared) = (old.node.bootstrap.clone(), (acked.clone(), is_over.clone()));
    let busy = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let client = Client::connect(Options::new([at])).await.unwrap();
            keep_busy(client, shared.0, shared.1).await;
        });
    });
    while acked.load(Ordering::Relaxed) < 100 {
        tokio::time::sleep(POLL).await;
    }
    let told = old.told();
    let before = acked.load(Ordering::Relaxed);
    let made = old.node.run_json(&["backup", "create", text(&backup), "--data-dir", text(&data)]);
    assert!(!data.join("backup").exists(), "what the node kept for it is gone");
    is_over.store(true, Ordering::Relaxed);
    busy.join().unwrap();

    assert_eq!(
        alone(&["backup", "verify", text(&backup)]).unwrap()["partitions"],
        made["partitions"]
    );
    let restore = ["restore", text(&backup), "--data-dir", text(&new)];
    assert_eq!(alone(&[&restore[..], &["--dry-run"]].concat()).unwrap()["cluster_id"], Value::Null);
    assert!(!new.exists(), "a dry run changes nothing");
    let restored = alone(&restore).unwrap();
    assert_ne!(restored["cluster_id"], made["cluster_id"]);
    let again = alone(&restore).unwrap_err();
    assert!(again.contains("is not empty"), "{again}");

    let server = Server::start(&new).await;
    for partition in made["partitions"].as_array().unwrap() {
        let topic = partition["topic"].as_str().unwrap();
        let number = i32::try_from(partition["partition"].as_i64().unwrap()).unwrap();
        let range = (partition["start"].as_i64().unwrap(), partition["end"].as_i64().unwrap());
        let (was, is) =
            (old.batches(topic, number, range).await, server.batches(topic, number, range).await);
        assert!(is == was, "{topic}-{number}: {} and {} bytes", is.len(), was.len());
        if topic == "busy" {
            assert!(range.1 >= before, "{} of {before} acknowledged records", range.1);
            assert_eq!(server.end(topic).await, range.1, "nothing is behind the cut");
        }
    }
    assert_eq!(server.told(), told);
    assert_eq!(server.client.committed("g").await.unwrap()["t"][&0].offset, 17);
    assert!(server.is_let_in("ada", "secret of ada").await);
    assert!(!server.is_let_in("ada", "secret of eve").await);

    // It goes on: a known producer in its sequence, again, and not out of it; the open transaction is ended.
    let (error, offset) = server.append("t", (ours, None, 1), "second").await;
    assert_eq!(error, 0);
    assert_eq!(server.append("t", (ours, None, 1), "second").await, (0, offset));
    assert_ne!(server.append("t", (ours, None, 7), "lost before").await.0, 0);
    server.node.run(&["txn", "abort", "open"]);
    assert!(server.client.init_producer().await.unwrap().id > ours.id + 1_000_000);
    let refused = server.node.command(&["log", "append", "events", "d", "--fence", "writer-0"]);
    assert!(!{ refused }.args(["--native", &server.native]).status().unwrap().success());
    server.native(&["log", "append", "events", "d", "--fence", "writer-1"]);
    server.native(&["queue", "enqueue", "mail", "alice", "five"]);
}

#[tokio::test]
async fn a_damaged_backup_is_refused_by_the_name_of_the_file() {
    let root = TempDir::new().unwrap();
    let [data, backup, bad, new] = ["data", "backup", "bad", "new"].map(|it| root.path().join(it));
    let node = Node::start(&data);
    node.run(&["topic", "create", "t"]);
    node.feed(&["produce", "t"], &"value\n".repeat(100));
    let create = ["backup", "create", text(&backup), "--data-dir", text(&data)];
    node.run(&create);
    assert!(node.fail(&create).contains("exists already"));
    let elsewhere = root.path().join("elsewhere");
    let other = Node::start(&elsewhere);
    let strange = ["backup", "create", text(&bad), "--data-dir", text(&elsewhere)];
    assert!(node.fail(&strange).contains("is not the data directory of the node"));
    drop(other);
    let serving = alone(&["restore", text(&backup), "--data-dir", text(&data)]).unwrap_err();
    assert!(serving.contains("is not empty"), "{serving}");

    let segment = "t-0/00000000000000000000.log";
    let flip = |path: PathBuf| {
        let mut bytes = fs::read(&path).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        fs::write(path, bytes).unwrap();
    };
    let cut = |path: PathBuf| {
        let file = fs::File::options().write(true).open(path).unwrap();
        file.set_len(file.metadata().unwrap().len() - 5).unwrap();
    };
    let remove = |path: PathBuf| fs::remove_file(path).unwrap();
    let harms: [(&str, &dyn Fn(PathBuf)); 3] =
        [("flip", &flip), ("cut", &cut), ("remove", &remove)];
    for file in [segment, "state", "backup.json"] {
        for (harm, harmed) in harms {
            let _ = fs::remove_dir_all(&bad);
            copy(&backup, &bad);
            harmed(bad.join(file));
            for arguments in [
                &["backup", "verify", text(&bad)][..],
                &["restore", text(&bad), "--data-dir", text(&new)],
            ] {
                let told = alone(arguments).unwrap_err();
                assert!(told.contains(file), "{harm} {file}: {told}");
            }
            assert!(!new.join("manifest").exists(), "no node would start on it");
            let _ = fs::remove_dir_all(&new);
        }
    }
    assert!(alone(&["restore", text(&backup), "--data-dir", text(&new)]).is_ok());
}
