//! `duramen bench` on queues.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::Node;

/// Runs a benchmark that must succeed; answers its report.
fn bench(node: &Node, arguments: &str) -> Value {
    let output = command(node, arguments).output().unwrap();
    assert!(output.status.success(), "{arguments}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn command(node: &Node, arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_duramen"));
    command.arg("bench").args(arguments.split(' ')).args(["--output", "json"]);
    command.args(["--native", &node.native.to_string()]);
    if arguments.starts_with("enqueue") {
        command.args(["--bootstrap", &node.kafka.to_string()]);
    }
    command
}

fn node() -> (tempfile::TempDir, Node) {
    let directory = tempfile::tempdir().unwrap();
    let node = Node::start(Path::new(directory.path()));
    (directory, node)
}

#[test]
fn benchmarks_of_queues_append_by_every_way_what_they_count() {
    let (_directory, node) = node();
    for (way, spread) in
        [("grpc", ""), ("grpc", " --spread"), ("stream", ""), ("http", ""), ("http", " --spread")]
    {
        let topic = format!("{way}{}", spread.trim());
        let load = "--queues 20 --messages 1000 --batch 7 --callers 4 --connections 4";
        let place = format!("--topic {topic} --partitions 3");
        let report = bench(&node, &format!("enqueue --via {way}{spread} {load} {place}"));
        assert_eq!((&report["total"], &report["refused"]), (&1000.into(), &0.into()), "{way}");
        let reads = "--queues 20 --reads 100 --limit 1000 --list";
        let report = bench(&node, &format!("retrieve {reads} {place}"));
        assert_eq!((&report["total"], &report["listed"]), (&100.into(), &20.into()), "{way}");
        // Each read has all elements of a queue: about a twentieth of them.
        let elements = report["elements"].as_u64().unwrap();
        assert!((4_000..6_000).contains(&elements), "{way}{spread}: {elements}");
    }
    let load = "--queues 20 --messages 1000 --batch 7 --callers 4 --connections 2 --spread";
    let report = bench(&node, &format!("enqueue --via kafka {load} --topic kafka --partitions 3"));
    assert_eq!((&report["total"], &report["refused"]), (&1000.into(), &0.into()));
    let place = "--queues 20 --topic kafka --partitions 3";
    let report = bench(&node, &format!("retrieve --via http --reads 1 --list {place}"));
    assert_eq!(report["listed"], 20);
}

#[test]
fn readers_that_wait_get_what_a_benchmark_appends() {
    let (_directory, node) = node();
    for way in ["grpc", "http"] {
        let load = "--readers 10 --rate 100 --seconds 3 --warmup-seconds 0.5";
        let report = bench(&node, &format!("wait --via {way} {load} --topic {way}"));
        assert!(report["total"].as_u64().unwrap() > 0, "{report}");
        assert!(report["append_us"]["p50"].as_f64().unwrap() > 0.0, "{report}");
    }
}

#[test]
fn a_log_is_read_whole_beside_streams_that_nobody_reads() {
    let (_directory, node) = node();
    bench(&node, "enqueue --messages 20000 --batch 1000 --size 1000 --topic t");
    let mut holding = command(&node, "read --topic t --stalled 4 --seconds 60").spawn().unwrap();
    let report = bench(&node, "read --topic t");
    assert!(report["bytes"].as_u64().unwrap() > 20_000_000, "{report}");
    assert!(report["responses"].as_u64().unwrap() > 10, "{report}");
    holding.kill().unwrap();
    holding.wait().unwrap();
}

#[test]
fn a_takeover_waits_for_its_line_between_two_passes() {
    let (_directory, node) = node();
    let mut command = command(&node, "takeover --queues 50 --callers 8");
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    child.stdin.take().unwrap().write_all(b"go\n").unwrap();
    let report: Value = serde_json::from_reader(out).unwrap();
    assert!(child.wait().unwrap().success());
    for pass in ["before", "after"] {
        assert_eq!(report[pass]["failed"], 0, "{report}");
        assert!(report[pass]["last_read_s"].as_f64().unwrap() > 0.0, "{report}");
    }
}
