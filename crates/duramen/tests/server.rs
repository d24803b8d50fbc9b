//! The real binary, from outside: a process, its port, its signals.
#![expect(clippy::unwrap_used, reason = "a test's own failure is a failure")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use duramen_client::{Client, Connection, NewTopic, Options};
use duramen_protocol::compression::Codec;
use duramen_protocol::messages::fetch::{FetchPartition, FetchTopic};
use duramen_protocol::messages::produce::{PartitionProduceData, TopicProduceData};
use duramen_protocol::messages::{FetchRequest, ProduceRequest};
use duramen_protocol::records::{BatchBuilder, NewRecord};

#[path = "server/doors.rs"]
mod doors;
#[path = "server/metrics.rs"]
mod metrics;
#[path = "server/security.rs"]
mod security;

/// Long enough for a busy machine; nothing here waits so long when all is well.
const PATIENCE: Duration = Duration::from_secs(30);

struct Node {
    child: Child,
    log: Receiver<String>,
    seen: Vec<String>,
    address: SocketAddr,
}

fn command(data_dir: &Path, more: &[&str]) -> Command {
    command_of("serve", data_dir, more)
}

fn command_of(name: &str, data_dir: &Path, more: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_duramen"));
    command.args([name, "--listen", "127.0.0.1:0", "--log-format", "json"]);
    command.arg("--data-dir").arg(data_dir).args(more);
    command.env_remove("RUST_LOG").stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

impl Node {
    fn start(data_dir: &Path, more: &[&str]) -> Self {
        Self::spawn(&mut command(data_dir, more))
    }

    fn spawn(command: &mut Command) -> Self {
        let mut node = Self::begin(command);
        let line = node.wait_for_log("\"message\":\"serving\"");
        node.address = field(&line, "address").parse().unwrap();
        node
    }

    /// Starts the process, which may not serve yet.
    fn begin(command: &mut Command) -> Self {
        let mut child = command.spawn().unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let (sender, log) = channel();
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        Self { child, log, seen: Vec::new(), address }
    }

    fn wait_for_log(&mut self, part: &str) -> String {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(at) = self.seen.iter().position(|line| line.contains(part)) {
                return self.seen.remove(at);
            }
            match self.log.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(line) => self.seen.push(line),
                Err(error) => panic!("{error}: no log line with {part} in {:#?}", self.seen),
            }
        }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// Connects, once there is room: the connections of commands that have ended may count for a moment longer.
    fn connect_served(&self) -> TcpStream {
        let until = Instant::now() + PATIENCE;
        loop {
            let mut stream = self.connect();
            let mut len = [0; 4];
            let sent = stream.write_all(&api_versions(1));
            if sent.and_then(|()| stream.read_exact(&mut len)).is_ok() {
                stream.read_exact(&mut vec![0; u32::from_be_bytes(len) as usize]).unwrap();
                return stream;
            }
            assert!(Instant::now() < until, "there is never room for one more");
        }
    }

    /// What a client is told of a topic.
    fn setting_of(&self, topic: &str, name: &str) -> String {
        let mut describe = Command::new(env!("CARGO_BIN_EXE_duramen"));
        describe.args(["topic", "describe", topic, "--all-configs", "--output", "json"]);
        describe.args(["--bootstrap", &self.address.to_string()]);
        let told: serde_json::Value =
            serde_json::from_slice(&describe.output().unwrap().stdout).unwrap();
        let configs = told[0]["configs"].as_array().unwrap();
        let found = configs.iter().find(|it| it["name"] == name).unwrap();
        found["value"].as_str().unwrap().to_owned()
    }

    fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([name, &pid]).status().unwrap().success());
    }

    fn wait(&mut self) -> ExitStatus {
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("the process did not end");
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The value of a string field of a JSON log line of ours.
fn field<'a>(line: &'a str, name: &str) -> &'a str {
    let start = line.find(&format!("\"{name}\":\"")).unwrap() + name.len() + 4;
    let end = start + line[start..].find('"').unwrap();
    &line[start..end]
}

fn native_of(node: &mut Node) -> SocketAddr {
    field(&node.wait_for_log("serving the native API"), "address").parse().unwrap()
}

/// An `ApiVersions` request of version 0, with its length.
fn api_versions(correlation_id: i32) -> Vec<u8> {
    let mut body = vec![0, 18, 0, 0];
    body.extend_from_slice(&correlation_id.to_be_bytes());
    body.extend_from_slice(&[0, 4]);
    body.extend_from_slice(b"test");
    framed(&body)
}

fn framed(body: &[u8]) -> Vec<u8> {
    let mut frame = u32::try_from(body.len()).unwrap().to_be_bytes().to_vec();
    frame.extend_from_slice(body);
    frame
}

fn read_frame(stream: &mut TcpStream) -> Vec<u8> {
    let mut len = [0; 4];
    stream.read_exact(&mut len).unwrap();
    let mut frame = vec![0; u32::from_be_bytes(len) as usize];
    stream.read_exact(&mut frame).unwrap();
    frame
}

fn assert_serves(stream: &mut TcpStream, correlation_id: i32) {
    stream.write_all(&api_versions(correlation_id)).unwrap();
    let frame = read_frame(stream);
    assert_eq!(frame[..4], correlation_id.to_be_bytes());
    assert_eq!(frame[4..6], [0, 0], "no error");
    assert!(frame.len() > 40, "some APIs");
}

fn assert_closed(mut stream: TcpStream) {
    let mut rest = Vec::new();
    // A reset is a close too.
    let _ = stream.read_to_end(&mut rest);
    assert!(rest.is_empty(), "{rest:?}");
}

fn http_get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn api_versions_are_answered_in_order_on_one_connection() {
    let directory = tempfile::tempdir().unwrap();
    let node = Node::start(directory.path(), &[]);
    let mut stream = node.connect();
    let requests: Vec<u8> = (0..100).flat_map(api_versions).collect();
    // Byte borders have no meaning.
    for chunk in requests.chunks(7) {
        stream.write_all(chunk).unwrap();
    }
    for correlation_id in 0..100_i32 {
        assert_eq!(read_frame(&mut stream)[..4], correlation_id.to_be_bytes());
    }
}

#[test]
fn garbage_ends_only_its_own_connection_with_a_reason_in_the_log() {
    let directory = tempfile::tempdir().unwrap();
    let mut node = Node::start(directory.path(), &[]);
    let mut good = node.connect();
    assert_serves(&mut good, 1);
    let garbage: [(&[u8], &str); 5] = [
        (b"GET / HTTP/1.1\r\n\r\n", "this looks like HTTP"),
        (&[0x16, 0x03, 0x01, 0x02, 0x00, 0x01], "this looks like a TLS handshake"),
        (&[0xff, 0xff, 0xff, 0xff, 0, 0], "a frame of -1 bytes"),
        (&[0x7f, 0xff, 0xff, 0xff, 0, 0], "above socket.request.max.bytes"),
        (&framed(&[0x7f; 16]), "unknown api key"),
    ];
    for (bytes, reason) in garbage {
        let mut bad = node.connect();
        bad.write_all(bytes).unwrap();
        assert_closed(bad);
        let line = node.wait_for_log(reason);
        assert!(field(&line, "peer").starts_with("127.0.0.1:"), "{line}");
        assert_serves(&mut good, 2);
    }
    // Half a frame, and then nothing.
    let mut half = node.connect();
    half.write_all(&api_versions(3)[..9]).unwrap();
    drop(half);
    assert_serves(&mut good, 3);
}

#[test]
fn a_directory_belongs_to_one_process_and_a_port_too() {
    let directory = tempfile::tempdir().unwrap();
    let node = Node::start(directory.path(), &[]);
    let second = command(directory.path(), &[]).output().unwrap();
    assert_eq!(second.status.code(), Some(1));
    let error = String::from_utf8(second.stderr).unwrap();
    assert!(error.contains("is in use by another process"), "{error}");
    assert!(error.contains("--data-dir"), "{error}");

    let elsewhere = tempfile::tempdir().unwrap();
    let mut third = Command::new(env!("CARGO_BIN_EXE_duramen"));
    third.arg("dev").args(["--listen", &node.address.to_string()]);
    let third = third.arg("--data-dir").arg(elsewhere.path()).output().unwrap();
    assert_eq!(third.status.code(), Some(1));
    let error = String::from_utf8(third.stderr).unwrap();
    assert!(error.contains("another process does already"), "{error}");
    assert!(error.contains("--listen 127.0.0.1:"), "{error}");
}

/// A node that listens where other machines reach it, and asks nobody who they are, is open by no accident.
#[test]
fn other_machines_are_let_in_only_where_that_is_meant() {
    let directory = tempfile::tempdir().unwrap();
    let here = "127.0.0.1:0";
    for (command, flags) in [
        ("serve", &["--listen", "0.0.0.0:0"][..]),
        ("dev", &["--listen", "[::]:0"]),
        ("serve", &["--set", "listeners=PLAINTEXT://:0"]),
        ("serve", &["--listen", here, "--native", "0.0.0.0:0"]),
        ("serve", &["--listen", here, "--node-listen", "0.0.0.0:65535"]),
    ] {
        // A node that starts after all would never end.
        let mut refused = Command::new("timeout");
        refused.args(["30", env!("CARGO_BIN_EXE_duramen"), command]).args(flags);
        refused.arg("--data-dir").arg(directory.path());
        let refused = refused.output().unwrap();
        assert_eq!(refused.status.code(), Some(1), "{flags:?}");
        let error = String::from_utf8(refused.stderr).unwrap();
        assert!(error.contains("can be reached from other machines"), "{flags:?}: {error}");
        assert!(error.contains("--open"), "{error}");
    }
    let mut meant = Command::new(env!("CARGO_BIN_EXE_duramen"));
    meant.args(["serve", "--listen", "0.0.0.0:0", "--advertise", "127.0.0.1:1"]);
    meant.args(["--log-format", "json", "--data-dir"]).arg(directory.path());
    meant.env("DURAMEN_OPEN", "1").stderr(Stdio::piped());
    drop(Node::spawn(&mut meant));
    let mut meant = command(directory.path(), &["--native", "0.0.0.0:0", "--open"]);
    drop(Node::spawn(&mut meant));
}

#[test]
fn each_listener_sends_its_clients_to_listeners_of_its_name() {
    let directory = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_duramen"));
    command.args(["serve", "--log-format", "json", "--data-dir"]).arg(directory.path());
    for setting in [
        "listeners=inside://127.0.0.1:0,OUTSIDE://localhost:0",
        "listener.security.protocol.map=INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT",
        "advertised.listeners=OUTSIDE://outside.example:7",
    ] {
        command.args(["--set", setting]);
    }
    let mut node = Node::spawn(command.stderr(Stdio::piped()));
    let inside = node.address;
    let line = node.wait_for_log("\"listener\":\"OUTSIDE\"");
    let outside: SocketAddr = field(&line, "address").parse().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let told = |at: SocketAddr| {
        runtime.block_on(async {
            let client = Client::connect(Options::new([at.to_string()])).await.unwrap();
            let brokers = client.metadata(Some(&[]), false).await.unwrap().brokers;
            format!("{}:{}", brokers[0].host, brokers[0].port)
        })
    };
    assert_eq!(told(inside), inside.to_string());
    assert_eq!(told(outside), "outside.example:7");
}

#[test]
fn where_the_metadata_is_damaged_the_node_says_what_to_do() {
    let directory = tempfile::tempdir().unwrap();
    let small = ["--set", "metadata.log.max.record.bytes.between.snapshots=1024"];
    let mut node = Node::start(directory.path(), &small);
    let metadata = directory.path().join("__cluster_metadata-0");
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
        let mut create = Command::new(env!("CARGO_BIN_EXE_duramen"));
        create.args(["topic", "create", &format!("t{number}"), "--partitions", "1000"]);
        create.args(["--bootstrap", &node.address.to_string()]);
        assert!(create.output().unwrap().status.success());
    }
    node.signal("-TERM");
    node.wait();
    for image in images() {
        let mut bytes = std::fs::read(&image).unwrap();
        bytes[30] ^= 0x10;
        std::fs::write(&image, bytes).unwrap();
    }
    let output = command(directory.path(), &small).output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains("the metadata log is damaged: __cluster_metadata-0/image-"), "{error}");
    assert!(error.contains("start with a backup of the data directory"), "{error}");
}

/// A container's first process has no other end: the kernel leaves signals to it that it does not catch.
#[test]
fn a_node_that_waits_for_others_stops_on_sigterm() {
    let directory = tempfile::tempdir().unwrap();
    let own = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let of_three = format!("controller.quorum.voters=1@{own},2@127.0.0.1:2,3@127.0.0.1:3");
    let more = ["--set", "node.id=1", "--set", &of_three];
    let mut node = Node::begin(&mut command(directory.path(), &more));
    node.wait_for_log("the cluster is not formed yet");
    node.signal("-TERM");
    assert_eq!(node.wait().code(), Some(0));
    node.wait_for_log("stopped before it served");
}

#[test]
fn a_node_stops_on_sigterm_and_starts_again_after_kill() {
    let directory = tempfile::tempdir().unwrap();
    let mut node = Node::start(directory.path(), &[]);
    let mut stream = node.connect();
    assert_serves(&mut stream, 1);
    node.signal("-TERM");
    assert_eq!(node.wait().code(), Some(0));
    assert_closed(stream);
    node.wait_for_log("\"message\":\"stopped\"");

    for _ in 0..3 {
        let mut node = Node::start(directory.path(), &[]);
        assert_serves(&mut node.connect(), 2);
        node.signal("-KILL");
        assert_eq!(node.wait().code(), None);
    }
    let node = Node::start(directory.path(), &[]);
    assert_serves(&mut node.connect(), 3);
}

#[test]
fn on_sighup_what_may_change_is_taken_and_the_rest_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let (file, data) = (directory.path().join("duramen.toml"), directory.path().join("data"));
    let configure = |text: &str| std::fs::write(&file, text).unwrap();
    configure(
        "[settings]\nlog.retention.ms = 5000\nmax.connections = 8\nconnections.max.idle.ms = 77777",
    );
    let mut node = Node::start(&data, &["--config", file.to_str().unwrap()]);
    let mut create = Command::new(env!("CARGO_BIN_EXE_duramen"));
    create.args(["topic", "create", "t", "--bootstrap", &node.address.to_string()]);
    assert!(create.status().unwrap().success());
    assert_eq!(node.setting_of("t", "retention.ms"), "5000");
    let mut all: Vec<TcpStream> = (0..8).map(|_| node.connect_served()).collect();
    assert_closed(node.connect());

    let other = "log = \"info,duramen=debug\"\nhttp = \"127.0.0.1:1\"\n[settings]\n\
                 log.retention.ms = 7000\nmax.connections = 100\nnum.partitions = 3\n";
    configure(other);
    node.signal("-HUP");
    let told = |node: &mut Node, name: &str, text: &str, from: &str, to: &str| {
        let line = node.wait_for_log(&format!("\"setting\":\"{name}\""));
        assert!(line.contains(text), "{line}");
        assert_eq!((field(&line, "from"), field(&line, "to")), (from, to), "{line}");
    };
    let (changed, restart) = ("a setting was changed", "a setting needs a restart to change");
    told(&mut node, "log", changed, "", "info,duramen=debug");
    told(&mut node, "http", restart, "", "127.0.0.1:1");
    told(&mut node, "connections.max.idle.ms", changed, "77777", "600000");
    told(&mut node, "log.retention.ms", changed, "5000", "7000");
    told(&mut node, "max.connections", changed, "8", "100");
    told(&mut node, "num.partitions", restart, "1", "3");
    assert_serves(&mut node.connect(), 2);
    let until = Instant::now() + PATIENCE;
    while node.setting_of("t", "retention.ms") != "7000" {
        assert!(Instant::now() < until, "the topic does not hear of it");
    }
    node.wait_for_log("\"level\":\"DEBUG\"");

    configure(
        "[settings]\nlog.retention.ms = 9000\nmax.connections = \"few\"\nnum.partitons = 3\n",
    );
    node.signal("-HUP");
    let line = node.wait_for_log("SIGHUP changed nothing: correct");
    assert!(
        line.contains("max.connections: ") && line.contains("did you mean num.partitions?"),
        "{line}"
    );
    assert_eq!(node.setting_of("t", "retention.ms"), "7000");

    configure(other);
    node.signal("-HUP");
    told(&mut node, "num.partitions", restart, "1", "3");
    for one in &mut all {
        assert_serves(one, 3);
    }
    node.signal("-TERM");
    assert_eq!(node.wait().code(), Some(0));
}

#[test]
fn dev_has_nothing_to_read_again_on_sighup() {
    let directory = tempfile::tempdir().unwrap();
    let mut node = Node::spawn(&mut command_of("dev", directory.path(), &[]));
    // It may come before it can be answered, and waits then.
    node.signal("-HUP");
    node.wait_for_log("SIGHUP changes nothing");
    assert_serves(&mut node.connect(), 1);
}

#[test]
fn connections_above_the_limit_are_refused_and_silent_ones_closed() {
    let directory = tempfile::tempdir().unwrap();
    let settings = ["--set", "max.connections=2", "--set", "connections.max.idle.ms=1500"];
    let mut node = Node::start(directory.path(), &settings);
    let (mut one, mut two) = (node.connect(), node.connect());
    assert_serves(&mut one, 1);
    assert_serves(&mut two, 2);
    assert_closed(node.connect());
    node.wait_for_log("max.connections");
    assert_closed(one);
    assert_closed(two);
    node.wait_for_log("connections.max.idle.ms");
}

#[test]
fn clients_are_told_the_advertised_address() {
    let directory = tempfile::tempdir().unwrap();
    let node = Node::start(directory.path(), &["--advertise", "broker.example.com:19092"]);
    let mut stream = node.connect();
    // Metadata of version 1, of no topic.
    stream.write_all(&framed(&[0, 3, 0, 1, 0, 0, 0, 7, 0xff, 0xff, 0, 0, 0, 0])).unwrap();
    let frame = read_frame(&mut stream);
    let host = b"broker.example.com";
    let at = frame.windows(host.len()).position(|bytes| bytes == host).unwrap() + host.len();
    assert_eq!(frame[at..at + 4], 19092_u32.to_be_bytes());
}

#[test]
fn mistakes_in_the_configuration_are_told_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("duramen.toml");
    std::fs::write(&file, "listn = \"x\"\n[settings]\nnum.partitions = 3\n").unwrap();
    let mut command = command(directory.path(), &[]);
    let output = command.arg("--config").arg(&file).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("unknown key `listn`; did you mean `listen`?"), "{error}");

    let settings = ["--set", "num.partitons=3", "--set", "socket.request.max.bytes=x"];
    let output = self::command(directory.path(), &settings).output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("2 mistakes"), "{error}");
    assert!(error.contains("did you mean num.partitions?"), "{error}");
}

#[test]
fn the_example_configuration_is_printed_and_accepted() {
    let directory = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_duramen")).args(["config", "example"]).output();
    let file = directory.path().join("duramen.toml");
    std::fs::write(&file, output.unwrap().stdout).unwrap();
    let data = directory.path().join("data");
    let node = Node::start(&data, &["--config", file.to_str().unwrap()]);
    assert_serves(&mut node.connect(), 1);
}

/// A produce of one record of this many bytes; compressed if they are zeros.
fn produce_of(bytes: usize, is_compressed: bool) -> ProduceRequest {
    let (codec, byte) = if is_compressed { (Codec::Gzip, 0) } else { (Codec::None, b'x') };
    let mut batch = BatchBuilder::new().codec(codec);
    let value = vec![byte; bytes];
    batch.push(&NewRecord { value: Some(&value), ..NewRecord::default() }).unwrap();
    let partition = PartitionProduceData { index: 0, records: Some(batch.build().unwrap()) };
    let topic = TopicProduceData {
        name: "t".into(),
        partition_data: [partition].into(),
        ..TopicProduceData::default()
    };
    let topic_data = [topic].into();
    ProduceRequest { acks: -1, timeout_ms: 30_000, topic_data, ..ProduceRequest::default() }
}

fn fetch_of_all() -> FetchRequest {
    let partition = FetchPartition { partition_max_bytes: 1 << 20, ..FetchPartition::default() };
    let partitions = vec![partition];
    let topic = FetchTopic { topic: "t".to_owned(), partitions, ..FetchTopic::default() };
    let (max_bytes, topics) = (1 << 20, vec![topic]);
    let max_wait_ms = 30_000;
    FetchRequest { max_wait_ms, min_bytes: 1, max_bytes, topics, ..FetchRequest::default() }
}

#[tokio::test]
async fn a_connection_that_moves_to_other_threads_keeps_the_order_of_its_answers() {
    // A frame above 256 KiB, and one whose record takes long to check.
    let (large, heavy) = (|| produce_of(300_000, false), || produce_of(4 << 20, true));
    for threads in ["num.network.threads=0", "num.network.threads=2"] {
        let directory = tempfile::tempdir().unwrap();
        let node = Node::start(directory.path(), &["--set", threads]);
        let address = node.address.to_string();
        let client = Client::connect(Options::new([address.clone()])).await.unwrap();
        let (name, replication_factor) = ("t".to_owned(), -1);
        let topic = NewTopic { name, partitions: 1, replication_factor, ..NewTopic::default() };
        client.create_topic(&topic, false).await.unwrap();
        let mut offset = 0;
        for first in [large(), heavy(), produce_of(1, false)] {
            let connection = Connection::open(&address, client.options()).await.unwrap();
            let mut produces = Vec::new();
            for request in [produce_of(1, false), first, produce_of(2, false)] {
                produces.push(connection.start(&request).await.unwrap());
            }
            let fetch = connection.start(&fetch_of_all()).await.unwrap();
            for request in [produce_of(3, false), heavy(), large(), produce_of(4, false)] {
                produces.push(connection.start(&request).await.unwrap());
            }
            for produce in produces {
                let answer = produce.answer().await.unwrap();
                let part = &answer.responses[0].partition_responses[0];
                assert_eq!((part.error_code, part.base_offset), (0, offset), "{threads}");
                offset += 1;
            }
            let fetched = fetch.answer().await.unwrap();
            let part = &fetched.responses[0].partitions[0];
            assert_eq!(part.error_code, 0);
            assert!(part.records.as_ref().is_some_and(|it| it.len() > 60), "{threads}");
        }
    }
}
