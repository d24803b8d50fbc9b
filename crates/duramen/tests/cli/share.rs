//! `duramen share`.

use crate::node::Node;

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
