//! `duramen bench`.

use std::time::Instant;

use serde_json::Value;

use crate::node::{Node, PATIENCE, stderr};

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
