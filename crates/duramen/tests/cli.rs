//! The client commands of the real binary, against the real binary's server.
#![expect(clippy::unwrap_used, reason = "a test's own failure is a failure")]

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use clap::CommandFactory;
use duramen_client::{Client, Options};
use duramen_protocol::messages::ProduceRequest;
use duramen_protocol::messages::produce::{PartitionProduceData, TopicProduceData};
use duramen_protocol::records::{BatchBuilder, NewRecord};
use serde_json::Value;

/// Long enough for a busy machine; nothing here waits so long when all is well.
const PATIENCE: Duration = Duration::from_secs(30);

struct Node {
    child: Child,
    bootstrap: String,
}

impl Node {
    fn start(data_dir: &Path) -> Self {
        Self::start_with(data_dir, &[])
    }

    fn start_with(data_dir: &Path, settings: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_duramen"));
        command.args(["serve", "--listen", "127.0.0.1:0", "--log-format", "json", "--log", "info"]);
        command.args(["--set", "group.initial.rebalance.delay.ms=0"]);
        command.args(settings.iter().flat_map(|setting| ["--set", setting]));
        command.arg("--data-dir").arg(data_dir).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
        let serving = log.find(|line| line.contains("\"message\":\"serving\"")).unwrap();
        let serving: Value = serde_json::from_str(&serving).unwrap();
        let address = serving.pointer("/fields/address").or_else(|| serving.get("address"));
        let bootstrap = address.and_then(Value::as_str).unwrap().to_owned();
        // The pipe must be read to the end, or the server would wait for room in it.
        std::thread::spawn(move || log.for_each(drop));
        Self { child, bootstrap }
    }

    /// A client command, ready to be run.
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_duramen"));
        command.args(arguments).env("DURAMEN_BOOTSTRAP", &self.bootstrap);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Runs a client command that must succeed; answers what it printed.
    fn run(&self, arguments: &[&str]) -> String {
        let output = self.command(arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", stderr(&output));
        String::from_utf8(output.stdout).unwrap()
    }

    fn run_json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.run(&[arguments, &["--output", "json"]].concat())).unwrap()
    }

    /// Runs a client command that must fail with exit code 1; answers its complaint.
    fn fail(&self, arguments: &[&str]) -> String {
        self.complain(arguments, 1)
    }

    /// Runs a client command that is wrongly called; answers its complaint.
    fn misuse(&self, arguments: &[&str]) -> String {
        self.complain(arguments, 2)
    }

    fn complain(&self, arguments: &[&str], code: i32) -> String {
        let output = self.command(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", stderr(&output));
        assert!(output.stdout.is_empty(), "{arguments:?} printed a result");
        stderr(&output)
    }

    /// Runs a client command with this on its stdin.
    fn feed(&self, arguments: &[&str], input: &str) -> String {
        let mut child = self.command(arguments).stdin(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", stderr(&output));
        String::from_utf8(output.stdout).unwrap()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a command that must end with this code without any broker; answers its complaint.
fn alone(arguments: &[&str], code: i32) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_duramen"));
    let output = command.args(arguments).env_remove("DURAMEN_BOOTSTRAP").output().unwrap();
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", stderr(&output));
    stderr(&output)
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Sends a signal by its name.
fn signal(child: &Child, name: &str) {
    let pid = child.id().to_string();
    assert!(Command::new("kill").args([name, &pid]).status().unwrap().success());
}

#[test]
fn topics_are_created_listed_described_and_deleted() {
    let directory = tempfile::tempdir().unwrap();
    let node = Node::start(directory.path());
    assert_eq!(
        node.run(&["topic", "list"]),
        "no topics; create one with `duramen topic create NAME`\n"
    );
    let create = ["topic", "create", "orders", "--partitions", "3", "--config", "retention.ms=-1"];
    assert_eq!(node.run(&create), "created topic orders with 3 partitions\n");
    assert_eq!(
        node.fail(&create),
        "error: topic orders is there already; see it with `duramen topic describe orders`, or \
         pass --if-not-exists\n"
    );
    let again = node.run(&["topic", "create", "orders", "--if-not-exists"]);
    assert_eq!(again, "topic orders is there already\n");
    let listed = node.run(&["topic", "list"]);
    assert_eq!(listed, "TOPIC   PARTITIONS  REPLICAS\norders           3         1\n");

    node.feed(&["produce", "orders", "--partition", "1"], "a\nb\n");
    let described = node.run_json(&["topic", "describe", "orders"]);
    let partition = &described[0]["partitions"][1];
    assert_eq!((&partition["start"], &partition["end"]), (&0.into(), &2.into()));
    assert_eq!(described[0]["configs"][0]["name"], "retention.ms");
    let text = node.run(&["topic", "describe", "orders"]);
    assert!(text.contains("  retention.ms = -1  (set on the topic)\n"), "{text}");
    assert!(text.contains("PARTITION  LEADER  TERM  REPLICAS  IN SYNC  START  END"), "{text}");

    assert_eq!(node.run(&["topic", "delete", "orders"]), "deleted topic orders\n");
    let gone = "error: there is no topic orders; create it with `duramen topic create orders`\n";
    assert_eq!(node.fail(&["topic", "describe", "orders"]), gone);
    assert_eq!(node.fail(&["consume", "orders"]), gone);
    let kept = node.run(&["topic", "delete", "orders", "--if-exists"]);
    assert_eq!(kept, "there is no topic orders\n");
}

#[test]
fn dead_letters_are_produced_again_where_they_came_from_and_once() {
    let directory = tempfile::tempdir().unwrap();
    let node = Node::start(directory.path());
    node.run(&["topic", "create", "orders", "--partitions", "2"]);
    node.run(&["topic", "create", "dead"]);
    let bury = |group: &str, partition: &str, text: &str| {
        let headers = [
            "__dlq.errors.topic=orders".to_owned(),
            format!("__dlq.errors.partition={partition}"),
            format!("__dlq.errors.group={group}"),
            "own=kept".to_owned(),
        ];
        let mut command = vec!["produce", "dead", "--key", "k"];
        for header in &headers {
            command.extend(["--header", header]);
        }
        node.feed(&command, text);
    };
    bury("billing", "1", "a\nb\n");
    bury("mail", "0", "c\n");
    let redrive = ["share", "redrive", "dead"];
    let planned = node.run_json(&[&redrive[..], &["--dry-run"]].concat());
    assert_eq!((&planned["records"], &planned["dry_run"]), (&3.into(), &true.into()));
    assert_eq!(node.run(&["consume", "orders"]), "");
    let billing = [&redrive[..], &["--group", "billing", "--count", "1"]].concat();
    let first = "TOPIC   PARTITION  RECORDS\norders          1        1\nproduced 1 record again\n";
    assert_eq!(node.run(&billing), first);
    let second = node.run_json(&[&redrive[..], &["--group", "billing"]].concat());
    assert_eq!((&second["records"], &second["passed"]), (&1.into(), &1.into()));
    let read = ["consume", "orders", "--partition", "1", "--format", "%k=%v %h\\n"];
    assert_eq!(node.run(&read), "k=a own=kept\nk=b own=kept\n");
    assert_eq!(node.run(&billing), "produced 0 records again\n");
    node.run(&["topic", "create", "again"]);
    let other = [&redrive[..], &["--source", "orders", "--to", "again"]].concat();
    assert!(node.run(&other).ends_with("produced 3 records again\n"));
    assert_eq!(node.run(&["consume", "again"]), "a\nb\nc\n");
    node.feed(&["produce", "again"], "alive\n");
    let wrong = node.fail(&["share", "redrive", "again"]);
    assert_eq!(wrong, "error: the record at offset 0 of again is no dead letter\n");
}

#[test]
fn topics_are_altered_as_the_plan_says() {
    let directory = tempfile::tempdir().unwrap();
    let node = Node::start(directory.path());
    node.run(&["topic", "create", "t", "--partitions", "2"]);
    node.run(&["topic", "create", "u"]);
    let alter = ["topic", "alter", "t", "--partitions", "3", "--config", "retention.ms=86400000"];
    let plan = "topic t\n  retention.ms: 604800000 (default) -> 86400000\n  partitions: 2 -> 3\n";
    assert_eq!(node.run(&[&alter[..], &["--dry-run"]].concat()), format!("would alter {plan}"));
    let untouched = node.run_json(&["topic", "describe", "t"]);
    assert_eq!(untouched[0]["partitions"].as_array().unwrap().len(), 2);
    assert_eq!(node.run(&alter), format!("altered {plan}"));
    node.feed(&["produce", "t", "--partition", "2"], "in the new one\n");
    assert_eq!(
        node.run(&alter),
        "nothing to alter in topic t\n  \
         retention.ms = 86400000  (as it was, set on the topic)\n  partitions = 3  (as it was)\n"
    );
    assert_eq!(node.run_json(&alter)[0]["altered"], false);
    let unknown = node.fail(&["topic", "alter", "t", "--delete-config", "nope"]);
    assert!(unknown.contains("topics have no setting nope; see all with"), "{unknown}");
    let back = node.run_json(&["topic", "alter", "t", "--delete-config", "retention.ms"]);
    assert_eq!(back[0]["altered"], true);
    assert_eq!(back[0]["configs"][0]["after"], "604800000");
    assert_eq!(node.run_json(&["topic", "describe", "t"])[0]["configs"], Value::Array(vec![]));

    let fewer = node.fail(&["topic", "alter", "t", "--partitions", "1"]);
    assert!(fewer.contains("has 3 partitions; they can become more, but not 1"), "{fewer}");
    let typo = node.fail(&["topic", "alter", "t", "--config", "retentoin.ms=1"]);
    assert!(typo.contains("no setting retentoin.ms; did you mean retention.ms?"), "{typo}");
    // Nothing happens to any topic if one of them refuses.
    let bad = ["topic", "alter", "u", "t", "--partitions", "9", "--config", "retention.ms=soon"];
    let refused = node.fail(&bad);
    assert!(refused.contains("duramen topic describe u --all-configs"), "{refused}");
    let described = node.run_json(&["topic", "describe", "u"]);
    assert_eq!(described[0]["partitions"].as_array().unwrap().len(), 1);
}

#[test]
fn records_come_back_as_they_were_sent() {
    let directory = tempfile::tempdir().unwrap();
    let node = Node::start(directory.path());
    node.run(&["topic", "create", "t", "--partitions", "2"]);
    let first = node.feed(&["produce", "t", "--partition", "0"], "hello\n");
    assert_eq!(first, "appended 1 record to t: partition 0, offset 0\n");
    for codec in ["gzip", "snappy", "lz4", "zstd"] {
        let produce = ["produce", "t", "--partition", "0", "--codec", codec, "--idempotent"];
        let keyed = [&produce[..], &["--key-separator", ":", "--header", "by=test"]].concat();
        node.feed(&keyed, &format!("k:{codec}\nno key\n"));
    }
    let template = "%p/%o %k=%v [%h] %S\\n";
    let all = node.run(&["consume", "t", "--format", template]);
    let expected = "0/0 =hello [] 5\n\
        0/1 k=gzip [by=test] 4\n0/2 =no key [by=test] 6\n\
        0/3 k=snappy [by=test] 6\n0/4 =no key [by=test] 6\n\
        0/5 k=lz4 [by=test] 3\n0/6 =no key [by=test] 6\n\
        0/7 k=zstd [by=test] 4\n0/8 =no key [by=test] 6\n";
    assert_eq!(all, expected);
    let some = ["consume", "t", "--partition", "0", "--from", "-4", "--count", "2"];
    assert_eq!(node.run(&some), "lz4\nno key\n");
    assert_eq!(node.run(&["consume", "t", "--from", "end"]), "");
    assert_eq!(
        node.run(&["consume", "t", "--from", "2", "--until", "4", "-p", "0"]),
        "no key\nsnappy\n"
    );
    assert_eq!(node.run(&["consume", "t", "--from", "1h ago", "--until", "-8"]), "hello\n");
    assert_eq!(node.run(&["consume", "t", "--from", "2020-01-01T00:00:00Z", "-n", "1"]), "hello\n");
    assert_eq!(node.run(&["consume", "t", "--from", "@99999999999999"]), "");
    let json =
        node.run(&["consume", "t", "--partition", "0", "--from", "1", "-n", "1", "-o", "json"]);
    let record: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&record["key"], &record["value"]), (&"k".into(), &"gzip".into()));
    assert_eq!(record["headers"][0]["name"], "by");
    assert_eq!(
        node.fail(&["consume", "t", "--partition", "0", "--from", "99"]),
        "error: offset 99 is not in partition 0 of t, which holds offsets 0 to 8; give one that all partitions have, or a \
         place such as beginning\n"
    );
}

#[test]
fn old_records_are_trimmed_once_the_plan_is_approved() {
    let directory = tempfile::tempdir().unwrap();
    let node = Node::start(directory.path());
    node.run(&["topic", "create", "t", "--partitions", "2"]);
    node.feed(&["produce", "t", "--partition", "1"], "a\nb\nc\n");
    let trim = ["topic", "trim", "t", "--before", "-1"];
    let plan = "PARTITION  START  NEW START  END  TO DELETE\n        0      0          0    0          0\n        \
         1      0          2    3          2\n";
    assert_eq!(node.run(&trim), plan);
    assert_eq!(node.run(&["consume", "t"]), "a\nb\nc\n");
    let done = node.run(&[&trim[..], &["--execute"]].concat());
    assert_eq!(
        done,
        plan.replace("TO DELETE", "DELETED")
            .replace("          0\n", "        0\n")
            .replace("          2\n", "        2\n")
    );
    assert_eq!(node.run(&["consume", "t"]), "c\n");
}

#[test]
fn a_topic_comes_into_being_with_its_first_record_unless_that_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let node = Node::start(directory.path());
    let refused = node.fail(&["produce", "greetings", "--no-create"]);
    assert!(refused.contains("create it with `duramen topic create greetings`"), "{refused}");
    node.feed(&["produce", "greetings"], "hello\n");
    assert_eq!(node.run(&["consume", "greetings"]), "hello\n");
}

#[test]
fn a_file_is_one_record_and_survives_byte_by_byte() {
    let directory = tempfile::tempdir().unwrap();
    let node = Node::start(&directory.path().join("data"));
    let path = directory.path().join("blob");
    let blob: Vec<u8> =
        (0..3_000_000u32).map(|at| at.wrapping_mul(2_654_435_761).to_be_bytes()[0]).collect();
    std::fs::write(&path, &blob).unwrap();
    let file = path.to_str().unwrap();
    node.run(&["topic", "create", "small"]);
    let refused = node.fail(&["produce", "small", "--file", file]);
    assert!(
        refused.contains("raise the topic's setting") && refused.contains("MESSAGE_TOO_LARGE"),
        "{refused}"
    );
    node.run(&["topic", "create", "big", "--config", "max.message.bytes=4000000"]);
    node.run(&["produce", "big", "--file", file]);
    let output = node.command(&["consume", "big", "--format", "%v"]).output().unwrap();
    assert!(output.stdout == blob, "the file changed on its way");
}

#[test]
fn every_line_of_a_long_stdin_arrives_once_and_in_order() {
    let directory = tempfile::tempdir().unwrap();
    let node = Node::start(directory.path());
    node.run(&["topic", "create", "t"]);
    let lines = (0..200_000).fold(String::new(), |lines, line| lines + &format!("line {line}\n"));
    node.feed(&["produce", "t", "--idempotent", "--batch-bytes", "20000", "--quiet"], &lines);
    assert!(node.run(&["consume", "t"]) == lines, "lines were lost, doubled or moved");
}

#[test]
fn following_ends_with_130_when_interrupted_and_with_0_when_nobody_reads() {
    let directory = tempfile::tempdir().unwrap();
    let node = Node::start(directory.path());
    node.run(&["topic", "create", "t"]);
    let mut follower = node.command(&["consume", "t", "--follow"]).spawn().unwrap();
    let mut lines = BufReader::new(follower.stdout.take().unwrap()).lines();
    for line in ["one", "two"] {
        node.feed(&["produce", "t"], line);
        assert_eq!(lines.next().unwrap().unwrap(), line);
    }
    signal(&follower, "-INT");
    assert_eq!(follower.wait().unwrap().code(), Some(130));

    let mut follower = node.command(&["consume", "t", "--follow"]).spawn().unwrap();
    let mut lines = BufReader::new(follower.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "one");
    drop(lines);
    let until = Instant::now() + PATIENCE;
    while follower.try_wait().unwrap().is_none() {
        assert!(Instant::now() < until, "it goes on though nobody reads");
        node.feed(&["produce", "t"], "more");
    }
    let output = follower.wait_with_output().unwrap();
    assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(0), ""));
}

#[test]
fn a_broker_that_is_not_there_is_an_error_that_says_what_to_do() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_duramen"));
    let output = command.args(["topic", "list", "--bootstrap", "127.0.0.1:1"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        stderr(&output),
        "error: no broker answers at 127.0.0.1:1 (Connection refused (os error 111)); start one \
         with `duramen dev`, or name another with --bootstrap HOST:PORT\n"
    );
}

#[test]
fn benchmarks_report_what_they_counted() {
    let directory = tempfile::tempdir().unwrap();
    let node = Node::start(directory.path());
    let short = ["--seconds", "0.5", "--warmup-seconds", "0"];
    let append = ["bench", "append", "--appenders", "8", "--connections", "2", "--partitions", "3"];
    let report = node.run_json(&[&append[..], &short].concat());
    assert!(report["appends_per_second"].as_f64().unwrap() > 0.0);
    let quantile = |name: &str| report["latency_us"][name].as_f64().unwrap();
    assert!(quantile("p50") > 0.0 && quantile("p50") <= quantile("p999"));

    let bulk = ["bench", "produce", "--topic", "bulk", "--messages", "10000", "--batch", "300"];
    let report = node.run_json(&[&bulk[..], &["--size", "100"]].concat());
    assert_eq!((&report["total"], &report["refused"]), (&10_000.into(), &0.into()));
    for mode in [None, Some("--check"), Some("--discard")] {
        let consume = ["bench", "consume", "--topic", "bulk", "--max-bytes", "65536"];
        let report = node.run_json(&[&consume[..], mode.as_slice()].concat());
        assert_eq!(report["records"], 10_000, "{mode:?}");
    }
    // Checked by the consumer that people use, too.
    assert_eq!(node.run(&["consume", "bulk", "--format", "%S\\n"]).lines().count(), 10_000);
}

#[test]
fn a_benchmark_that_was_refused_anything_says_so_and_fails() {
    let directory = tempfile::tempdir().unwrap();
    let node = Node::start(directory.path());
    let arguments = ["bench", "produce", "--topic", "t", "--seconds", "2", "--output", "json"];
    let bench = node.command(&arguments).spawn().unwrap();
    let since = Instant::now();
    while node.command(&["consume", "t", "-n", "1"]).output().unwrap().stdout.is_empty() {
        assert!(since.elapsed() < PATIENCE, "nothing is produced");
    }
    node.run(&["topic", "delete", "t"]);
    let output = bench.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let complaint = stderr(&output);
    assert!(complaint.starts_with("{\"error\":\"the broker refused "), "{complaint}");
    assert!(complaint.contains("for partition 0: UNKNOWN_TOPIC_OR_PARTITION"), "{complaint}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(report["refused"].as_u64().unwrap() > 0, "{report}");
    assert!(report["total"].as_u64().unwrap() > 0, "{report}");
}

#[test]
fn programs_are_told_of_results_and_errors_in_one_shape() {
    let directory = tempfile::tempdir().unwrap();
    let node = Node::start(directory.path());
    node.run(&["topic", "create", "a"]);
    let json = |bytes: &[u8]| serde_json::from_slice::<Value>(bytes).unwrap();
    let both = node.command(&["topic", "delete", "a", "b", "-o", "json"]).output().unwrap();
    assert_eq!(both.status.code(), Some(1));
    assert!(both.stdout.is_empty(), "all are looked at before any of them goes");
    let text = "there is no topic b; pass --if-exists if that is all right";
    let expected = serde_json::json!({"error": text, "code": "UNKNOWN_TOPIC_OR_PARTITION"});
    assert_eq!(json(&both.stderr), expected);
    let kept = node.run_json(&["topic", "delete", "b", "--if-exists"]);
    assert_eq!(kept, serde_json::json!([{"name": "b", "deleted": false}]));
    node.run(&["group", "reset", "g", "--to", "end", "--topic", "a", "--execute"]);
    let own = node.fail(&["topic", "delete", "a", "__consumer_offsets"]);
    assert!(own.contains("topic __consumer_offsets is the cluster's own"), "{own}");
    node.run(&["group", "delete", "g"]);
    let done = node.run_json(&["topic", "delete", "a", "a"]);
    assert_eq!(done, serde_json::json!([{"name": "a", "deleted": true}]));
    let kept = node.run_json(&["group", "delete", "g", "--if-exists"]);
    assert_eq!(kept, serde_json::json!([{"group": "g", "deleted": false, "offsets": null}]));

    for (command, code) in [
        (&["topic", "describe", "b"][..], "UNKNOWN_TOPIC_OR_PARTITION"),
        (&["topic", "create", "c", "--config", "retention.ms=soon"], "INVALID_CONFIG"),
        (&["group", "describe", "g"], "GROUP_ID_NOT_FOUND"),
        (&["group", "delete", "g"], "GROUP_ID_NOT_FOUND"),
        (&["txn", "abort", "t"], "TRANSACTIONAL_ID_NOT_FOUND"),
        (&["consume", "b"], "UNKNOWN_TOPIC_OR_PARTITION"),
    ] {
        let complaint = node.fail(&[command, &["--output", "json"]].concat());
        assert_eq!(json(complaint.as_bytes())["code"], code, "{complaint}");
    }
    let nobody = node.fail(&["topic", "list", "-o", "json", "-b", "127.0.0.1:1,127.0.0.1:2"]);
    let nobody = json(nobody.as_bytes());
    assert_eq!(nobody["code"], Value::Null);
    let text = nobody["error"].as_str().unwrap();
    assert!(text.starts_with("no broker answers at 127.0.0.1:1 or 127.0.0.1:2 ("), "{text}");

    node.run(&["topic", "create", "one"]);
    let text = node.run(&["topic", "describe", "one"]);
    assert!(text.starts_with("topic one: 1 partition, id "), "{text}");
}

#[test]
fn the_files_of_a_data_directory_can_be_looked_into() {
    let directory = tempfile::tempdir().unwrap();
    let node = Node::start(directory.path());
    node.run(&["topic", "create", "t"]);
    node.feed(&["produce", "t", "--key", "k", "--codec", "zstd"], "v1\nv2\n");
    let segment = directory.path().join("t-0/00000000000000000000.log");
    let segment = segment.to_str().unwrap();
    let text = node.run(&["log", "dump", segment, "--records"]);
    assert!(text.starts_with("offsets 0..1  2 records  position 0  "), "{text}");
    assert!(text.contains("  zstd\n") && text.contains("key k  value v2\n"), "{text}");
    let json = node.run(&["log", "dump", segment, "--output", "json"]);
    let batch: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&batch["records"], &batch["crc_valid"]), (&2.into(), &true.into()));

    let journal = directory.path().join("journal/0000");
    let text = node.run(&["log", "dump", journal.to_str().unwrap(), "--records"]);
    assert!(text.contains("round 1  ") && text.contains("  append  replica "), "{text}");
    assert!(text.contains("(base_offset 0  count 2  length "), "{text}");
    assert!(text.contains("  internal Raft's own"), "{text}");
    assert!(text.contains("\n  create  replica 1  identity (topic __cluster_metadata"), "{text}");
    let json = node.run(&["log", "dump", journal.to_str().unwrap(), "--records", "-o", "json"]);
    let records = json.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let of_topic = |record: &Value| record["identity"]["topic"] == "t";
    let replica = records.clone().find(of_topic).unwrap()["replica"].clone();
    let mut of_replica = records.filter(|record| record["replica"] == replica);
    let appended = of_replica.find(|record| record["batch"].is_object()).unwrap();
    assert_eq!((&appended["kind"], &appended["batch"]["count"]), (&"append".into(), &2.into()));
    assert_eq!(appended["batch"]["starts_segment"], true);
    assert_eq!(appended["payload_bytes"], appended["batch"]["length"]);

    // Large images are rare; this one is made by hand.
    let image = directory.path().join("image-00000000000000000815");
    let producer = [&[1][..], &77i64.to_be_bytes(), &3i16.to_be_bytes(), &[0]].concat();
    std::fs::write(&image, &producer).unwrap();
    let text = node.run(&["log", "dump", image.to_str().unwrap(), "--records"]);
    assert!(text.starts_with("image after index 815  12 bytes  crc "), "{text}");
    assert!(text.ends_with("  1 fact\n  producer 77  epoch 3\n"), "{text}");

    let copy = directory.path().join("copy.log");
    let mut bytes = std::fs::read(segment).unwrap();
    // As Apache Kafka leaves a segment with log.preallocate; of some lengths no batch's header could begin.
    for room in [1, 60, 5000, 3 << 20] {
        std::fs::write(&copy, [&bytes[..], &vec![0; room]].concat()).unwrap();
        let text = node.run(&["log", "dump", copy.to_str().unwrap()]);
        let told = format!(
            "\nposition {}: {room} bytes of zeroes up to the end: room that was preallocated\n",
            bytes.len()
        );
        assert!(text.ends_with(&told), "{text}");
    }
    let json = node.run(&["log", "dump", copy.to_str().unwrap(), "-o", "json"]);
    let room: Value = serde_json::from_str(json.lines().last().unwrap()).unwrap();
    assert_eq!(room, serde_json::json!({"position": bytes.len(), "preallocated_bytes": 3 << 20}));
    std::fs::write(&copy, [&bytes[..], &[0; 5000], &[1]].concat()).unwrap();
    let zeroes = node.command(&["log", "dump", copy.to_str().unwrap()]).output().unwrap();
    assert_eq!(zeroes.status.code(), Some(1), "something follows the zeroes");
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&copy, &bytes[..]).unwrap();
    let output = node.command(&["log", "dump", copy.to_str().unwrap()]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("position 0: DAMAGED: the checksum does not fit"), "{text}");
}

#[test]
fn every_command_has_a_manual_page() {
    let directory = tempfile::tempdir().unwrap();
    let man = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_duramen"));
        command.arg("man");
        command
    };
    let page = String::from_utf8(man().output().unwrap().stdout).unwrap();
    let title = concat!(
        ".TH DURAMEN 1 \"\" \"Duramen ",
        env!("CARGO_PKG_VERSION"),
        "\" \"Duramen manual\"\n"
    );
    assert!(page.contains(title) && page.contains("duramen\\-topic"), "{page}");
    assert!(man().arg("--dir").arg(directory.path()).status().unwrap().success());
    for name in ["duramen.1", "duramen-serve.1", "duramen-topic-alter.1", "duramen-group-reset.1"] {
        let page = std::fs::read_to_string(directory.path().join(name)).unwrap();
        assert!(page.contains(".SH SYNOPSIS"), "{name}");
        let foot = title.split_once(" 1 ").unwrap().1;
        assert!(page.contains(foot), "{name}: {page}");
    }
}

#[test]
fn help_is_no_wider_than_a_hundred_columns() {
    fn look(command: &mut clap::Command, path: &str) {
        // What is written by hand is not filled into lines again: too long a line breaks where a word ends.
        let by_hand = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        let help = command.render_long_help().to_string();
        for line in by_hand.lines().chain(help.lines()) {
            let columns = line.chars().count();
            assert!(columns <= 100, "{path} has a line of {columns} columns: {line}");
        }
        for inner in command.get_subcommands_mut() {
            let path = format!("{path} {}", inner.get_name());
            look(inner, &path);
        }
    }
    let mut cli = duramen::cli::Cli::command().term_width(100);
    cli.build();
    look(&mut cli, "duramen");
}

/// The help of every client command, as it stands in `tests/help.txt`. After a change on purpose, run
/// `DURAMEN_WRITE_HELP=1 cargo test -p duramen --test cli help`, and read the difference.
#[test]
fn the_help_is_as_reviewed_and_teaches_by_example() {
    let mut cli = duramen::cli::Cli::command().term_width(100);
    cli.build();
    let mut text = String::new();
    for path in [
        &["topic"][..],
        &["topic", "create"],
        &["topic", "list"],
        &["topic", "describe"],
        &["topic", "alter"],
        &["topic", "trim"],
        &["topic", "delete"],
        &["group"],
        &["group", "list"],
        &["group", "describe"],
        &["group", "reset"],
        &["group", "delete"],
        &["txn"],
        &["txn", "list"],
        &["txn", "describe"],
        &["txn", "abort"],
        &["share"],
        &["share", "redrive"],
        &["produce"],
        &["consume"],
        &["log"],
        &["log", "dump"],
        &["log", "set-aside"],
        &["bench"],
        &["cluster"],
        &["cluster", "status"],
        &["cluster", "verify"],
        &["cluster", "move"],
        &["cluster", "remove"],
        &["cluster", "survive"],
        &["bench", "append"],
        &["bench", "produce"],
        &["bench", "consume"],
        &["bench", "tail"],
        &["config"],
        &["completion"],
        &["man"],
    ] {
        let mut command = &mut cli;
        for name in path {
            command = command.find_subcommand_mut(name).unwrap();
        }
        let help = command.render_long_help().to_string();
        assert!(help.contains("Examples:\n"), "{path:?} has no examples");
        let line = |line: &str| line.trim_end().to_owned() + "\n";
        text.extend(["$ duramen ", &path.join(" "), " --help\n"]);
        text.extend(help.lines().map(line));
        text.push('\n');
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/help.txt");
    if std::env::var_os("DURAMEN_WRITE_HELP").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let reviewed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(reviewed == text, "the help differs from tests/help.txt");
}

#[test]
fn a_group_goes_on_where_it_was_until_it_is_sent_elsewhere() {
    let directory = tempfile::tempdir().unwrap();
    let node = Node::start(directory.path());
    assert_eq!(
        node.run(&["group", "list"]),
        "no groups; read as one with `duramen consume TOPIC --group GROUP`\n"
    );
    node.run(&["topic", "create", "t", "--partitions", "2"]);
    node.feed(&["produce", "t", "--partition", "1"], "a\nb\nc\n");
    let consume = ["consume", "t", "--group", "g", "--quiet"];
    assert_eq!(node.run(&[&consume[..], &["--count", "2"]].concat()), "a\nb\n");
    let listed = node.run_json(&["group", "list"]);
    assert_eq!((&listed[0]["group"], &listed[0]["state"]), (&"g".into(), &"Empty".into()));
    let described = node.run_json(&["group", "describe", "g"]);
    assert_eq!((&described[0]["lag"], &described[0]["type"]), (&1.into(), &"classic".into()));
    assert_eq!(described[0]["partitions"][0]["committed"], 2);
    assert_eq!(node.run(&consume), "c\n");
    assert_eq!(node.run(&consume), "");

    let reset = ["group", "reset", "g", "--to", "beginning"];
    let plan = "TOPIC  PARTITION  BEFORE  AFTER  CHANGE  LAG\n\
         t              1       3      0      -3    3\n";
    assert_eq!(node.run(&reset), plan);
    assert_eq!(node.run(&consume), "", "that was only a plan");
    assert_eq!(node.run(&[&reset[..], &["--execute"]].concat()), plan);
    assert_eq!(node.run(&consume), "a\nb\nc\n");
    let outside = node.fail(&["group", "reset", "g", "--to", "9"]);
    let error = "error: offset 9 is not in partition 1 of t, which holds offsets 0 to 2; ";
    assert!(outside.starts_with(error), "{outside}");

    let delete = node.run(&["group", "delete", "g", "--topic", "t"]);
    assert_eq!(delete, "deleted the offsets of group g in t:1\n");
    node.run(&["group", "delete", "g", "--if-exists"]);
    let gone = "error: there is no group g; see which there are with `duramen group list`\n";
    assert_eq!(node.fail(&["group", "describe", "g"]), gone);
    assert_eq!(node.fail(&["group", "delete", "g"]), gone);
}

/// Writes a record in a transaction, and leaves it open.
async fn leave_open(bootstrap: &str, id: &str, topic: &str) {
    let client = Client::connect(Options::new([bootstrap])).await.unwrap();
    let producer = client.take_over(id, 60_000).await.unwrap();
    let mut batch = BatchBuilder::new().producer(producer.id, producer.epoch, 0).transactional();
    batch.push(&NewRecord { value: Some(b"v"), ..NewRecord::default() }).unwrap();
    let records = Some(batch.build().unwrap());
    let partition_data = vec![PartitionProduceData { index: 0, records }];
    let topic_data =
        vec![TopicProduceData { name: topic.into(), partition_data, ..Default::default() }];
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

/// A member in the background, and what it prints line by line.
struct Follower {
    child: Child,
    lines: std::sync::mpsc::Receiver<String>,
}

impl Follower {
    fn join(node: &Node, topic: &str) -> Self {
        let mut child =
            node.command(&["consume", topic, "--group", "g", "--follow"]).spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let notes = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
        let (tell, lines) = std::sync::mpsc::channel();
        let also = tell.clone();
        std::thread::spawn(move || out.for_each(|line| drop(tell.send(line))));
        std::thread::spawn(move || notes.for_each(|line| drop(also.send(line))));
        Self { child, lines }
    }

    /// The next line of either kind.
    fn next(&self) -> String {
        self.lines.recv_timeout(PATIENCE).unwrap()
    }

    /// Ends it with a signal; answers its exit code.
    fn end(&mut self, name: &str) -> Option<i32> {
        signal(&self.child, name);
        self.child.wait().unwrap().code()
    }
}

#[test]
fn members_share_partitions_and_their_group_is_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let node = Node::start(directory.path());
    node.run(&["topic", "create", "t", "--partitions", "2"]);
    let mut first = Follower::join(&node, "t");
    assert_eq!(first.next(), "group g, generation 1: reading t:0,1");
    let mut second = Follower::join(&node, "t");
    let (one, other) = (first.next(), second.next());
    let reading = |half| format!("group g, generation 2: reading t:{half}");
    assert!(
        (&one, &other) == (&reading(0), &reading(1))
            || (&one, &other) == (&reading(1), &reading(0)),
        "{one}; {other}"
    );
    node.feed(&["produce", "t", "--partition", "0"], "zero\n");
    node.feed(&["produce", "t", "--partition", "1"], "one\n");
    let mut lines = [first.next(), second.next()];
    lines.sort();
    assert_eq!(lines, ["one", "zero"]);

    let reset = ["group", "reset", "g", "--topic", "t", "--to", "beginning", "--execute"];
    let refused = node.fail(&reset);
    let named =
        "error: group g has 2 active members: duramen-cli at 127.0.0.1 (2 times); stop them";
    assert!(refused.starts_with(named), "{refused}");
    assert!(node.fail(&["group", "delete", "g"]).contains("has active members; stop them"));

    assert_eq!(second.end("-TERM"), Some(130), "it leaves, and says that it was interrupted");
    assert_eq!(first.next(), "group g, generation 3: reading t:0,1");
    assert_eq!(first.end("-INT"), Some(130));
    let described = node.run_json(&["group", "describe", "g"]);
    assert_eq!((&described[0]["state"], &described[0]["lag"]), (&"Empty".into(), &0.into()));
    assert_eq!(node.run(&["consume", "t", "--group", "g", "--quiet"]), "", "all was committed");
}

/// What the node decides, the thread for data at rest makes, storage switches to, and a consumer reads.
#[test]
fn a_compacted_topic_shrinks_to_the_last_value_of_each_key() {
    let directory = tempfile::tempdir().unwrap();
    let often = &["log.cleaner.backoff.ms=50"][..];
    let node = Node::start_with(directory.path(), often);
    let configs = ["cleanup.policy=compact", "segment.bytes=4096", "min.cleanable.dirty.ratio=0.1"];
    let configs = configs.map(|config| ["--config", config]).concat();
    node.run(&[&["topic", "create", "t"], &configs[..]].concat());
    let lines: Vec<_> = (0..4000).map(|n| format!("key {}:value {n}\n", n % 13)).collect();
    let produce = ["produce", "t", "--key-separator", ":", "--linger-ms", "0"];
    node.feed(&[&produce[..], &["--batch-bytes", "500"]].concat(), &lines.concat());
    // One more segment, so that nothing of these is in the last one.
    let rest: Vec<_> = (0..300).map(|n| format!("other {}:value {n}\n", n % 7)).collect();
    node.feed(&[&produce[..], &["--batch-bytes", "500"]].concat(), &rest.concat());
    let read = |node: &Node| {
        let read = node.run(&["consume", "t", "--format", "%o %k %v\\n"]);
        read.lines().map(ToOwned::to_owned).collect::<Vec<_>>()
    };
    let last = (3987..4000).map(|n| format!("{n} key {} value {n}", n % 13));
    let last: Vec<String> = last.collect();
    let until = Instant::now() + PATIENCE;
    let left = loop {
        let left = read(&node);
        if left.iter().filter(|it| it.contains(" key ")).eq(&last) {
            break left;
        }
        assert!(Instant::now() < until, "{} are left: {left:?}", left.len());
    };
    for n in 293..300 {
        assert!(left.contains(&format!("{} other {} value {n}", 4000 + n, n % 7)), "{left:?}");
    }
    drop(node);
    let node = Node::start_with(directory.path(), often);
    let again = read(&node);
    assert!(again.starts_with(&last) && again.last() == left.last(), "{again:?}");
    let files = std::fs::read_dir(directory.path().join("t-0")).unwrap();
    let bytes: u64 = files.map(|file| file.unwrap().metadata().unwrap().len()).sum();
    assert!(bytes < 40_000, "{bytes}");
}

#[test]
fn wrong_calls_exit_with_2_and_failures_with_1() {
    let bench = ["bench", "tail", "--partitions", "2"];
    for (wrong, told) in [
        (&["produce", "t", "--idempotent", "--acks", "1"][..], "--idempotent needs --acks all"),
        (&["topic", "alter", "t", "-c", "a=1", "-d", "a"], "a is both set and deleted"),
        (&["topic", "alter", "t", "-c", "a=1", "-c", "a=2"], "a has two values, 1 and 2"),
        (&["topic", "create", "t", "-c", "a=1", "-c", "a=2"], "a has two values, 1 and 2"),
        (&["cluster", "move", "--to", "1"], "--topic TOPIC, or --from NODE"),
        (&["cluster", "move", "--topic", "t", "--to", "1,1"], "node 1 is named twice"),
        (&["cluster", "move", "--from", "1", "--no-wait", "--at-once", "3"], "cannot be used with"),
        (&["txn", "list", "--state", "empty", "--open-for", "1m"], "none is open in these states"),
        (&["bench", "append", "--acks", "0"], "give --acks all or --acks 1"),
        (&["bench", "append", "--seconds", "-1"], "give a number of seconds, 0 or more"),
        (&["bench", "produce", "--seconds", "1", "--acks", "0"], "--acks 0 needs --messages"),
        (&["bench", "tail", "--size", "7"], "give --size 8 or more"),
        (&bench, "leave --partitions out"),
        (&["dev", "--nodes", "0"], "0 is not in 1..=9"),
        (&["dev", "--nodes", "3", "--listen", "127.0.0.1:0"], "a port other than 0"),
        (&["serve", "--set", "oops"], "--set oops: write it as KEY=VALUE"),
        (&["serve", "--set", "num.partitons=3"], "did you mean num.partitions?"),
        (&["consume", "t", "-o", "json", "-F", "%v"], "leave one of them out"),
        (&["consume", "t", "-g", "g", "-o", "json", "-F", "%v"], "leave one of them out"),
    ] {
        let complaint = alone(&[wrong, &["--bootstrap", "127.0.0.1:1"][..]].concat(), 2);
        // Those of the server have no broker.
        let complaint =
            if complaint.contains("'--bootstrap'") { alone(wrong, 2) } else { complaint };
        assert!(complaint.contains(told), "{wrong:?}: {complaint}");
    }
    let complaint = alone(&["produce", "t", "--idempotent", "--acks", "1", "-o", "json"], 2);
    let complaint: Value = serde_json::from_str(&complaint).unwrap();
    assert_eq!(complaint["code"], Value::Null);
    let failure = alone(&["topic", "list", "--bootstrap", "127.0.0.1:1"], 1);
    assert!(failure.contains("no broker answers"), "{failure}");
    let help = duramen::cli::Cli::command().render_long_help().to_string();
    assert!(help.contains("2 wrongly called"), "{help}");
}

#[test]
fn a_negative_value_is_told_what_it_may_be() {
    for (wrong, told) in [
        (&["consume", "t", "--partition", "-1"][..], "-1 is not in 0.."),
        (&["consume", "t", "--count", "-1"], "give a whole number, 0 or more"),
        (&["topic", "trim", "t", "--before", "end", "-p", "-1"], "-1 is not in 0.."),
        (&["topic", "create", "t", "--partitions", "-1"], "-1 is not in 1.."),
        (&["topic", "create", "t", "--config", "-1"], "`-1` is not KEY=VALUE"),
        (&["produce", "t", "--linger-ms", "-1"], "give a whole number, 0 or more"),
        (&["cluster", "move", "--cancel", "-t", "t", "-p", "-1"], "-1 is not in 0.."),
        (&["log", "dump", "f", "--from", "-1"], "-1 is not in 0.."),
        (&["bench", "consume", "--from", "-1"], "-1 is not in 0.."),
        (&["bench", "tail", "--max-wait-ms", "-1"], "-1 is not in 0.."),
        (&["txn", "list", "--open-for", "-10m"], "`-10m` is not a time such as 90s, 10m or 2h"),
    ] {
        let complaint = alone(wrong, 2);
        assert!(complaint.contains(told), "{wrong:?}: {complaint}");
        assert!(!complaint.contains("-- -1"), "{wrong:?}: {complaint}");
    }
    let directory = tempfile::tempdir().unwrap();
    let node = Node::start(directory.path());
    node.run(&["topic", "create", "t", "-c", "retention.ms=-1"]);
    node.feed(&["produce", "t", "--key", "-k", "--header", "-a=-1"], "v\n");
    assert_eq!(node.run(&["consume", "t", "-F", "-%k %h\\n"]), "--k -a=-1\n");
    assert_eq!(node.run(&["txn", "list", "--producer", "-1"]), "no such transactional ids\n");
    assert_eq!(node.run(&["txn", "list", "--pattern", "-x"]), "no such transactional ids\n");
}

#[test]
fn fields_of_json_are_always_there() {
    let directory = tempfile::tempdir().unwrap();
    let node = Node::start(directory.path());
    let has = |value: &Value, expected: Value| {
        for (name, field) in expected.as_object().unwrap() {
            assert_eq!(value.get(name), Some(field), "{name} of {value:#}");
        }
    };
    let nothing = serde_json::json!({"id": null, "partitions": null, "replication_factor": null});
    node.run(&["topic", "create", "t"]);
    has(&node.run_json(&["topic", "create", "t", "--if-not-exists"]), nothing);
    node.feed(&["produce", "t"], "v\n");
    let record = node.run(&["consume", "t", "-o", "json"]);
    let record: Value = serde_json::from_str(&record).unwrap();
    has(&record, serde_json::json!({"headers": [], "key": null}));
    let altered = node.run_json(&["topic", "alter", "t", "-c", "retention.ms=5000000"]);
    has(&altered[0], serde_json::json!({"partitions": null, "replication_factor": null}));
    let altered = node.run_json(&["topic", "alter", "t", "-p", "2"]);
    has(&altered[0], serde_json::json!({"configs": [], "replication_factor": null}));
    // Nobody has been a member, and so nobody has said what it is.
    node.run(&["group", "reset", "g", "--to", "end", "--topic", "t", "--execute"]);
    has(&node.run_json(&["group", "list"])[0], serde_json::json!({"protocol": null}));
    let described = node.run_json(&["group", "describe", "g"]);
    let absent = serde_json::json!({"protocol": null, "epoch": null, "assignment_epoch": null});
    has(&described[0], absent);
    has(&described[0]["partitions"][0], serde_json::json!({"metadata": "", "member": null}));
    let removed = node.run_json(&["group", "delete", "g"]);
    has(&removed[0], serde_json::json!({"offsets": null}));
    let status = node.run_json(&["cluster", "status"]);
    let absent =
        serde_json::json!({"silent_ms": null, "disk_needed": null, "clock_ahead_ms": null});
    has(&status["nodes"][0], absent);
    let verified = node.run_json(&["cluster", "verify"]);
    has(&verified["partitions"][0], serde_json::json!({"difference": null}));
    let segment = directory.path().join("t-0/00000000000000000000.log");
    let batch = node.run(&["log", "dump", segment.to_str().unwrap(), "-o", "json"]);
    has(&serde_json::from_str(&batch).unwrap(), serde_json::json!({"producer": null}));
    let tail = ["bench", "tail", "--rate", "0", "--seconds", "0.1", "--warmup-seconds", "0"];
    let absent = serde_json::json!({"append_us": null, "refusal": null, "latency_us": null});
    has(&node.run_json(&tail), absent);
}

#[test]
fn where_one_of_several_is_required_all_are_named() {
    for (wrong, named) in [
        (&["group", "reset", "g"][..], &["--to <PLACE>", "--shift", "--to-group", "--to-file"][..]),
        (&["topic", "alter", "t"], &["--config", "--delete-config", "--partitions", "--repl"]),
        (&["cluster", "move", "--topic", "t"], &["--to", "--from", "--cancel"]),
        (&["bench", "produce"], &["--messages", "--seconds"]),
        (&["group", "describe"], &["GROUP", "--all"]),
    ] {
        let complaint = alone(wrong, 2);
        // What is required is told before the usage, which names all there is.
        let (required, _) = complaint.split_once("\n\n").unwrap();
        for name in named {
            assert!(required.contains(name), "{wrong:?} leaves out {name}: {complaint}");
        }
    }
}

#[test]
fn what_a_broker_would_refuse_by_a_code_is_told_in_words() {
    let directory = tempfile::tempdir().unwrap();
    let node = Node::start(directory.path());
    node.run(&["topic", "create", "t"]);
    node.feed(&["produce", "t"], "v\n");
    for wrong in [&["produce", "bad/name"][..], &["topic", "create", ""], &["consume", ".."]] {
        let complaint = node.misuse(wrong);
        assert!(complaint.contains("a topic's name has letters, digits"), "{complaint}");
    }
    assert_eq!(node.run(&["consume", "t", "-p", "0", "-p", "0"]), "v\n");
    let planned = node.run_json(&["topic", "trim", "t", "--before", "end", "-p", "0", "-p", "0"]);
    assert_eq!(planned["partitions"].as_array().unwrap().len(), 1);
    for wrong in [
        &["bench", "consume", "--topic", "t", "-p", "9"][..],
        &["consume", "t", "-p", "9"],
        &["produce", "t", "-p", "9"],
        &["topic", "trim", "t", "--before", "end", "-p", "9"],
        &["group", "reset", "g", "--to", "end", "--topic", "t:9"],
        &["cluster", "move", "-t", "t", "-p", "9", "--to", "1"],
    ] {
        let told = "error: topic t has partition 0 alone, and no partition 9\n";
        assert_eq!(node.fail(wrong), told, "{wrong:?}");
    }
    node.run(&["topic", "create", "c", "-c", "cleanup.policy=compact"]);
    for more in [None, Some("--execute")] {
        let trim = ["topic", "trim", "c", "--before", "end"];
        let refused = node.fail(&[&trim[..], more.as_slice()].concat());
        let told =
            "error: topic c is compacted (cleanup.policy=compact), and keeps the last record";
        assert!(refused.starts_with(told), "{refused}");
    }
    let refused = node.fail(&["txn", "list", "-p", "["]);
    let told = "error: the broker cannot read the regular expression `[`; write \\ in front of";
    assert!(refused.starts_with(told), "{refused}");
}

#[test]
fn one_thing_is_told_as_one() {
    let directory = tempfile::tempdir().unwrap();
    let node = Node::start(directory.path());
    let bench = ["bench", "produce", "--topic", "t", "--messages", "1", "--size", "1"];
    assert!(node.run(&bench).starts_with("1 record of 1 byte in "));
    let text = node.run(&["bench", "consume", "--topic", "t"]);
    assert!(text.contains("1 request, 1 batch\n"), "{text}");
    let text = node.run(&["cluster", "status"]);
    assert!(text.ends_with("1 partition, led and fully replicated\n"), "{text}");
    assert!(text.contains("; voter 1\n"), "{text}");
    let fewer = node.misuse(&["topic", "alter", "t", "--partitions", "0"]);
    assert!(fewer.contains("0 is not in 1.."), "{fewer}");
}

#[test]
fn what_is_named_twice_is_done_once_and_a_failure_stops_nothing_else() {
    let directory = tempfile::tempdir().unwrap();
    let node = Node::start(directory.path());
    node.run(&["topic", "create", "t"]);
    for group in ["a", "b"] {
        node.run(&["group", "reset", group, "--to", "end", "--topic", "t", "--execute"]);
    }
    let described = node.run_json(&["group", "describe", "a", "a"]);
    assert_eq!(described.as_array().unwrap().len(), 1);
    assert_eq!(node.run_json(&["topic", "describe", "t", "t"]).as_array().unwrap().len(), 1);
    let altered = node.run(&["topic", "alter", "t", "t", "-c", "retention.ms=5000000"]);
    assert_eq!(altered.matches("topic t").count(), 1, "{altered}");
    assert_eq!(node.run(&["group", "delete", "a", "a"]), "deleted group a\n");

    let output = node.command(&["group", "delete", "x", "b", "y"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "deleted group b\n");
    let complaint = stderr(&output);
    assert!(complaint.starts_with("error: 2 of 3 failed\n  there is no group x; "), "{complaint}");
    assert!(complaint.contains("\n  there is no group y; "), "{complaint}");
    let json = ["group", "delete", "x", "y", "--output", "json"];
    let complaint: Value = serde_json::from_str(&node.fail(&json)).unwrap();
    assert_eq!(complaint["code"], "GROUP_ID_NOT_FOUND");
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

#[test]
fn a_reset_says_what_is_wrong_with_what_it_goes_by() {
    let directory = tempfile::tempdir().unwrap();
    let node = Node::start(&directory.path().join("data"));
    node.run(&["topic", "create", "t"]);
    node.run(&["group", "reset", "g", "--to", "end", "--topic", "t", "--execute"]);
    let nobody = "error: there is no group nope; see which there are with `duramen group list`\n";
    assert_eq!(node.fail(&["group", "reset", "g", "--to-group", "nope"]), nobody);
    let topics = ["group", "reset", "new", "--to-group", "g", "--topic", "u"];
    node.run(&["topic", "create", "u"]);
    let other = node.fail(&topics);
    assert!(other.starts_with("error: group g has no offset in what --topic names"), "{other}");

    let path = directory.path().join("offsets.json");
    let file = path.to_str().unwrap();
    let refused = |text: &str| {
        std::fs::write(&path, text).unwrap();
        node.fail(&["group", "reset", "g", "--to-file", file])
    };
    let empty = format!("error: {file} names no partition with an offset; write one with");
    for text in ["[]", r#"{"group": "g", "partitions": []}"#] {
        let complaint = refused(text);
        assert!(complaint.starts_with(&empty), "{complaint}");
    }
    for text in ["7", "[7]", "TOPIC,0,1", r#"{"group": "g"}"#] {
        let complaint = refused(text);
        let shapes =
            "neither a JSON object with `group` and `partitions` nor a list of such objects";
        assert!(complaint.contains(shapes), "{complaint}");
        assert!(!complaint.contains("OneOrMany") && !complaint.contains("Kept"), "{complaint}");
    }
    let gone = refused(
        r#"{"group": "g", "partitions": [{"topic": "v", "partition": 0, "committed": 1}]}"#,
    );
    assert!(gone.contains("only in partitions that no longer exist"), "{gone}");
}

#[test]
fn a_broker_is_a_host_and_a_port_and_an_empty_variable_is_none() {
    let scheme = alone(&["topic", "list", "--bootstrap", "http://broker:9092"], 2);
    assert!(
        scheme.contains("a broker is HOST:PORT without http://; write broker:9092"),
        "{scheme}"
    );
    let run = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_duramen"));
        command.args(arguments).env("DURAMEN_BOOTSTRAP", "").output().unwrap()
    };
    // Whether somebody answers there is not the question.
    let output = run(&["topic", "list"]);
    assert_ne!(output.status.code(), Some(2), "{}", stderr(&output));
    let directory = tempfile::tempdir().unwrap();
    let node = Node::start(directory.path());
    let output = run(&["topic", "list", "--bootstrap", &node.bootstrap]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
}

#[test]
fn moves_of_a_topic_that_is_not_there_are_not_taken_back() {
    let directory = tempfile::tempdir().unwrap();
    let node = Node::start(directory.path());
    node.run(&["topic", "create", "t"]);
    assert_eq!(node.run(&["cluster", "move", "--cancel"]), "no such move is under way\n");
    let cancel = ["cluster", "move", "--cancel", "--topic"];
    assert_eq!(node.run(&[&cancel[..], &["t"]].concat()), "no such move is under way\n");
    let unknown = "error: there is no topic nope; see which there are with `duramen topic list`\n";
    assert_eq!(node.fail(&[&cancel[..], &["nope"]].concat()), unknown);
    assert_eq!(node.fail(&["cluster", "move", "--topic", "nope", "--to", "1"]), unknown);
    assert_eq!(node.fail(&["cluster", "verify", "--topic", "nope"]), unknown);
    let json = node.fail(&[&cancel[..], &["nope", "--output", "json"]].concat());
    assert!(json.contains("UNKNOWN_TOPIC_OR_PARTITION"), "{json}");
}
