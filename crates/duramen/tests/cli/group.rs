//! `duramen group`, and `duramen consume` as a member of a group.

use std::io::{BufRead, BufReader};
use std::process::Child;

use crate::node::{Node, PATIENCE, signal};

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
