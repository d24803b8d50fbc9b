//! The commands of workers against a real server: `duramen queue enqueue`, `lease`, `settle`, `work` and `redrive`.

use std::process::Output;

use duramen_protocol::messages::IncrementalAlterConfigsRequest;
use duramen_protocol::messages::incremental_alter_configs::{
    AlterConfigsResource, AlterableConfig,
};

use super::queues::create;
use super::*;

/// Kafka's number of the resource that a group's settings are of.
const GROUP: i8 = 32;

/// Returns a command of queues on a node.
fn queue(node: &Node, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_duramen"));
    let (at, rest) = arguments.split_first().unwrap();
    command.args(["queue", at, "--native", &node.native.to_string()]).args(rest);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Runs a command that has to end so; returns its output and its complaint.
fn ends(node: &Node, arguments: &[&str], code: i32) -> (String, String) {
    let Output { status, stdout, stderr } = queue(node, arguments).output().unwrap();
    let told = text(&stderr);
    assert_eq!(status.code(), Some(code), "{arguments:?}: {told}");
    (text(&stdout), told)
}

/// Runs a command that prints lines of JSON.
fn lines(node: &Node, arguments: &[&str]) -> Vec<Value> {
    let (printed, _) = ends(node, &[arguments, &["--output", "json"]].concat(), 0);
    printed.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Leases one message, which has to come.
fn lease(node: &Node, topic: &str) -> Value {
    let mut leased = lines(node, &["lease", topic, "--group", "g", "--wait", "30s"]);
    assert_eq!(leased.len(), 1, "{leased:?}");
    leased.remove(0)
}

fn name_of(lease: &Value) -> &str {
    lease["lease"].as_str().unwrap()
}

/// Has a group copy its dead letters to a topic, which is created.
async fn bury_in(node: &Node, group: &str, topic: &str) {
    let settings = [("errors.deadletterqueue.group.enable".to_owned(), "true".to_owned())].into();
    let create =
        CreateTopicRequest { name: topic.into(), partitions: 1, settings, ..Default::default() };
    node.topics().await.create_topic(create).await.unwrap();
    let client = Client::connect(Options::new([node.kafka.to_string()])).await.unwrap();
    let config = AlterableConfig {
        name: "errors.deadletterqueue.topic.name".into(),
        config_operation: 0,
        value: Some(topic.into()),
    };
    let resource = AlterConfigsResource {
        resource_type: GROUP,
        resource_name: group.into(),
        configs: vec![config],
    };
    let request =
        IncrementalAlterConfigsRequest { resources: vec![resource], validate_only: false };
    let altered = client.controller().await.unwrap().call(&request).await.unwrap();
    assert_eq!(altered.responses[0].error_code, 0, "{altered:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_are_leased_by_rank_and_settled_once() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(dir.path());
    create(&node, "mail", 1).await;
    let (nothing, told) = ends(&node, &["lease", "mail", "--group", "g"], 0);
    assert_eq!((nothing.as_str(), told.as_str()), ("", "nothing to lease\n"));
    ends(&node, &["enqueue", "mail", "alice", "later", "--delay", "2s", "--priority", "9"], 0);
    ends(&node, &["enqueue", "mail", "alice", "usual"], 0);
    ends(&node, &["enqueue", "mail", "bob", "urgent", "--priority", "9", "--ttl", "1h"], 0);

    let (printed, told) = ends(&node, &["lease", "mail", "--group", "g", "--worker", "w"], 0);
    assert_eq!(printed, "0.2.1  bob  1  urgent\n");
    let how = "settle within 30 s: duramen queue settle mail --group g --worker w 0.2.1\n";
    assert_eq!(told, how);
    let usual = lease(&node, "mail");
    assert_eq!((&usual["queue"], &usual["value"]), (&json!("alice"), &json!("usual")));
    assert_eq!((&usual["deliveries"], &usual["partition"]), (&json!(1), &json!(0)));
    // The delayed one comes once its time is there.
    let later = lease(&node, "mail");
    assert_eq!(later["value"], "later");

    let settle = ["settle", "mail", "--group", "g"];
    let of_w = [&settle[..], &["--worker", "w", "0.2.1"]].concat();
    let renewed = [&of_w[..], &["--renew"]].concat();
    assert_eq!(ends(&node, &renewed, 0).0, "0.2.1  renewed\n");
    assert_eq!(ends(&node, &of_w, 0).0, "0.2.1  accepted\n");
    let (printed, told) = ends(&node, &of_w, 1);
    let lost = "error: lease 0.2.1 is not settled: the worker does not have the lease (lease-lost)";
    assert_eq!((printed.as_str(), told.trim_end()), ("", lost));

    // Both at once, of which one is lost. A released message comes again, as its second delivery.
    let names = format!("{}\n0.2.1\n", name_of(&usual));
    let mut command = queue(&node, &[&settle[..], &["--release", "-o", "json"]].concat());
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(names.as_bytes()).unwrap();
    let done = child.wait_with_output().unwrap();
    assert_eq!(done.status.code(), Some(1));
    let rows: Vec<Value> =
        text(&done.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let settled = |it: &Value| (it["settled"].clone(), it["problem"].clone());
    assert_eq!(settled(&rows[0]), (json!(true), Value::Null), "{rows:?}");
    assert_eq!(settled(&rows[1]), (json!(false), json!("lease-lost")), "{rows:?}");
    let complaint: Value = serde_json::from_slice(&done.stderr).unwrap();
    assert_eq!(complaint["code"], "lease-lost");
    let again = lease(&node, "mail");
    assert_eq!((&again["value"], &again["deliveries"]), (&json!("usual"), &json!(2)));

    for (wrong, told) in [
        (&["--accept", "--reject", "0.2.1"][..], "cannot be used with"),
        (&["--delay", "1s", "0.2.1"], "--release"),
        (&["--release", "--delay", "soon", "0.2.1"], "is not a time such as 90s, 10m or 2h"),
        (&["0.2.1  bob  1  urgent"], "jq -r .lease"),
        (&[], "there is no lease on stdin"),
    ] {
        let (_, complaint) = ends(&node, &[&settle[..], wrong].concat(), 2);
        assert!(complaint.contains(told), "{wrong:?}: {complaint}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rejected_message_is_put_back() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(dir.path());
    create(&node, "mail", 1).await;
    bury_in(&node, "g", "dead").await;
    ends(&node, &["enqueue", "mail", "alice", "hello", "--priority", "7"], 0);
    let leased = lease(&node, "mail");
    let reject = ["settle", "mail", "--group", "g", "--reject", name_of(&leased)];
    assert_eq!(ends(&node, &reject, 0).0, format!("{}  rejected\n", name_of(&leased)));

    // The dead letter comes some time after the decision.
    let until = Instant::now() + PATIENCE;
    let all = |arguments: &[&str]| {
        let (printed, _) = ends(&node, &[&["redrive", "dead"], arguments].concat(), 0);
        printed
    };
    loop {
        match all(&["--group", "another"]).as_str() {
            "put back 0 dead letters; 1 left where they are\n" => break,
            printed => assert_eq!(printed, "put back 0 dead letters\n"),
        }
        assert!(Instant::now() < until, "there is no dead letter");
    }
    let moved: Value = serde_json::from_str(&all(&["--group", "g", "-o", "json"])).unwrap();
    assert_eq!(moved, json!({ "moved": 1, "left": 0, "more": false }));
    let back = lease(&node, "mail");
    assert_eq!((&back["queue"], &back["value"]), (&json!("alice"), &json!("hello")));
    assert_eq!(back["deliveries"], 1);
    assert_eq!(all(&[]), "put back 0 dead letters\n");
    let (_, complaint) = ends(&node, &["redrive", "nowhere"], 1);
    assert!(complaint.contains("no such topic"), "{complaint}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_works_messages_off() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(dir.path());
    create(&node, "mail", 1).await;
    bury_in(&node, "g", "dead").await;
    for value in ["good", "bad"] {
        ends(&node, &["enqueue", "mail", "alice", value], 0);
    }
    let script = "read -r it; echo \"$DURAMEN_QUEUE $DURAMEN_DELIVERIES $it\"; \
                  case $it in good) exit 0;; bad) exit 65;; *) exit 1;; esac";
    let work = |more: &[&str]| {
        let worker = ["work", "mail", "--group", "g"];
        queue(&node, &[&worker[..], more, &["--", "sh", "-c", script]].concat())
    };
    let done = work(&["--once", "-o", "json"]).output().unwrap();
    let told = text(&done.stderr);
    assert_eq!(done.status.code(), Some(0), "{told}");
    assert_eq!(text(&done.stdout), "alice 1 good\nalice 1 bad\n");
    let rows: Vec<Value> = told.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let ended = |it: &Value| (it["decision"].clone(), it["exit"].clone(), it["problem"].clone());
    assert_eq!(ended(&rows[0]), (json!("accepted"), json!("exit status: 0"), Value::Null));
    assert_eq!(ended(&rows[1]), (json!("rejected"), json!("exit status: 65"), Value::Null));

    // A released one comes again after its delay, and a signal ends the command.
    ends(&node, &["enqueue", "mail", "alice", "slow"], 0);
    let mut child = work(&[]).spawn().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert_eq!(stdout.next().unwrap(), "alice 1 slow");
    assert_eq!(stdout.next().unwrap(), "alice 2 slow");
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let mut told = String::new();
    child.stderr.take().unwrap().read_to_string(&mut told).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let rows = ["1  alice  released for 1 s", "2  alice  released for 2 s"];
    let rows = rows.map(|it| format!("0.2.{it}; exit status: 1\n"));
    assert_eq!(told, rows.concat());

    // A program that cannot run is told, and the message is as if nobody had had it.
    ends(&node, &["enqueue", "mail", "bob", "hello"], 0);
    let absent = ["work", "mail", "--group", "g", "--once", "--", "/no/such/program"];
    let (_, complaint) = ends(&node, &absent, 1);
    assert!(complaint.contains("error: cannot run /no/such/program: No such file"), "{complaint}");
    assert_eq!(lease(&node, "mail")["deliveries"], 1);
}
