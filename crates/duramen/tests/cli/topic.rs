//! `duramen topic`, and the compaction of a topic.

use std::time::Instant;

use serde_json::Value;

use crate::node::{Node, PATIENCE};

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
