//! `duramen cluster` on one node.

use crate::node::Node;

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
