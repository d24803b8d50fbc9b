//! `duramen produce`.

use crate::node::Node;

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
