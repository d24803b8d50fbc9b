//! `duramen consume` without a group.

use std::io::{BufRead, BufReader};
use std::time::Instant;

use serde_json::Value;

use crate::node::{Node, PATIENCE, signal, stderr};

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
    let some = ["consume", "t", "--partition", "0", "--from", "-4", "-n", "2", "-q"];
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
