//! Rules for the calls, results and errors of every command.

use std::process::Command;

use clap::CommandFactory;
use serde_json::Value;

use crate::node::{Node, alone, stderr};

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
        (&["bench", "consume", "--discard", "--tls-ca", "ca.pem"], "leave one of them out"),
        (&["topic", "list", "--tls-cert", "own.pem"], "--tls-ca"),
        (&["topic", "list", "--password-file", "p"], "--user"),
        (&["topic", "list", "--user", "a", "--mechanism", "GSSAPI"], "give one of SCRAM-SHA-512"),
        (&["user", "create", "a", "--for", "PLAIN"], "give SCRAM-SHA-512 or SCRAM-SHA-256"),
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

/// Every command that names a broker or a node also takes the means to enter one that asks who comes.
#[test]
fn commands_that_connect_can_show_who_comes() {
    let mut seen = 0;
    let mut left = vec![(String::new(), duramen::cli::Cli::command())];
    while let Some((path, command)) = left.pop() {
        let flag = |name: &str| command.get_arguments().any(|it| it.get_long() == Some(name));
        let serves = ["dev", "serve"].contains(&command.get_name());
        if (flag("bootstrap") || flag("native")) && !serves {
            for needed in ["tls-ca", "tls-cert", "user", "password-file", "token-file"] {
                assert!(flag(needed), "{path} has no --{needed}");
            }
            seen += 1;
        }
        let inner = command.get_subcommands();
        left.extend(inner.map(|it| (format!("{path} {}", it.get_name()), it.clone())));
    }
    assert!(seen > 50, "{seen} commands connect");
}
