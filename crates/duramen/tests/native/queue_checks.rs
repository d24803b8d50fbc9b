//! `duramen queue verify` against a real server: a sound index passes, and a wrong one is found.

use std::path::{Path, PathBuf};
use std::process::Output;

use bytes::Bytes;
use duramen::proto::RetrieveRequest;
use duramen_protocol::batch::batches;
use duramen_protocol::records::Records;
use duramen_sim::SimDisk;
use duramen_storage::keys::{
    Deleted, Fact, Memtable, Said, Statement, TableHeader, flush, statement_with, statements_of,
};
use duramen_storage::{Disk, ReplicaId};

use super::queues::{enqueue, produce, retrieve, start};
use super::*;

/// A batch of the log, as an index has it.
struct Indexed {
    offsets: (i64, i64),
    names: Vec<(Bytes, u32)>,
    facts: Vec<(Bytes, Fact)>,
    masks: Vec<i64>,
}

fn segment(dir: &Path) -> PathBuf {
    dir.join("t-0/00000000000000000000.log")
}

/// Reads what the index of a log has to have.
fn indexed(dir: &Path) -> (Vec<Indexed>, u64) {
    let (mut all, mut term) = (Vec::new(), 0);
    for batch in batches(std::fs::read(segment(dir)).unwrap().into()).map_while(Result::ok) {
        let header = *batch.header();
        let (mut names, mut statements) = (Vec::<(Bytes, u32)>::new(), Vec::new());
        if header.attributes.is_control() {
            statements = statements_of(&batch).unwrap().unwrap_or_default();
        } else {
            let records = Records::of(&batch, 1 << 20).unwrap();
            for record in &records {
                let record = record.unwrap();
                let key = Bytes::copy_from_slice(record.key.unwrap());
                match names.iter_mut().find(|(name, _)| *name == key) {
                    Some((_, count)) => *count += 1,
                    None => names.push((key, 1)),
                }
            }
            let first = records.iter().next().unwrap().unwrap();
            statements.extend(statement_with(&header, &first).unwrap());
        }
        let masks = statements.iter().flat_map(|it| it.said.withdrawn().to_vec()).collect();
        let fact = |Statement { queue, said, .. }: &Statement| (queue.clone(), fact(said, &header));
        let facts = statements.iter().map(fact).collect();
        let offsets = (header.base_offset, header.last_offset());
        all.push(Indexed { offsets, names, facts, masks });
        term = u64::try_from(header.partition_leader_epoch).unwrap();
    }
    (all, term)
}

fn fact(said: &Said, header: &duramen_protocol::BatchHeader) -> Fact {
    Fact { kind: said.kind(), offset: header.base_offset, body: said.body() }
}

/// Writes a table of the queue index into the directory of a node that is stopped. Returns its path.
fn plant(dir: &Path, topic_id: [u8; 16], change: impl FnOnce(&mut Vec<Indexed>)) -> PathBuf {
    let (mut all, term) = indexed(dir);
    change(&mut all);
    let mut memtable = Memtable::new(0);
    for Indexed { offsets, names, facts, masks } in &all {
        memtable.insert(*offsets, false, names.iter().map(|(name, count)| (&name[..], *count)));
        for (name, fact) in facts {
            memtable.note(name, fact.clone());
        }
        for offset in masks {
            memtable.mask(*offset);
        }
    }
    let disk = SimDisk::new(1);
    disk.create_dir("t-0").unwrap();
    let (replica, to) = (ReplicaId(1), memtable.to());
    let header = TableHeader { topic_id, partition: 0, replica, from: 0, to, term, erased: 0 };
    let table = flush(&disk, "t-0", header, &memtable, 4096).unwrap();
    let file = disk.open(table.path()).unwrap();
    let mut bytes = vec![0; usize::try_from(disk.len(&file).unwrap()).unwrap()];
    assert_eq!(disk.read_at(&file, &mut bytes, 0).unwrap(), bytes.len());
    let path = dir.join(table.path());
    std::fs::write(&path, bytes).unwrap();
    path
}

/// Runs `duramen queue verify t`.
fn verify(node: &Node, more: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_duramen"));
    command.args(["queue", "verify", "t", "--bootstrap", &node.kafka.to_string()]).args(more);
    command.stdin(Stdio::null()).output().unwrap()
}

/// Returns the report, and whether the command says by its exit code that all is well.
fn report(node: &Node) -> (Value, bool) {
    let done = verify(node, &["--output", "json"]);
    let text = String::from_utf8_lossy(&done.stderr).into_owned();
    let report = serde_json::from_slice(&done.stdout).unwrap_or_else(|_| panic!("{text}"));
    (report, done.status.success())
}

/// Checks that all is well, and that readers are shown so many elements of so many queues.
fn is_ok(node: &Node, (elements, queues): (i64, i64)) {
    let (report, is_ok) = report(node);
    assert!(is_ok, "{report:#}");
    assert_eq!((&report["ok"], &report["faulty"]), (&1.into(), &0.into()), "{report:#}");
    let counts = (&report["elements"], &report["queues"]);
    assert_eq!(counts, (&elements.into(), &queues.into()), "{report:#}");
}

/// Fills queues, and edits them in every way. Of eleven elements that were appended, five and a rewritten one are shown.
async fn fill(node: &Node) {
    let mut queues = node.queues().await;
    let alice = enqueue(&mut queues, "alice", &["a0", "a1", "a2"]).await;
    let bob = enqueue(&mut queues, "bob", &["b0", "b1"]).await;
    enqueue(&mut queues, "bob", &["b2"]).await;
    let carol = enqueue(&mut queues, "carol", &["c0", "c1", "c2"]).await;
    enqueue(&mut queues, "dora", &["d0", "d1"]).await;
    let at = |position: Position, offset| Position { offset, ..position }.to_string();
    let do_so = |method: &str, path: &str, body: Value| {
        let (status, told) = node.json(method, &format!("/v1/topics/t/queues/{path}"), &body);
        assert_eq!(status, 200, "{method} {path}: {told:#}");
    };
    do_so("PUT", &format!("alice/messages/{}", at(alice, 0)), json!({ "value": "other" }));
    do_so("PUT", &format!("alice/messages/{}", at(alice, 0)), json!({ "value": "another" }));
    do_so("DELETE", &format!("alice/messages/{}", at(alice, 1)), Value::Null);
    do_so("POST", "bob/trim", json!({ "through": at(bob, 3) }));
    do_so("PUT", "carol/fence", json!({ "token": "owner", "if_token": "" }));
    let messages = json!([{ "value": "c3" }]);
    let after = at(carol, 6);
    do_so(
        "POST",
        "carol/rewrite",
        json!({ "after": after, "fence": "owner", "messages": messages, "reason": "bad" }),
    );
    do_so("DELETE", "dora", Value::Null);
}

/// What readers are shown: a0 with other content, a2, b1, b2, c0, c3; of four queues.
const SHOWN: (i64, i64) = (6, 4);

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_with_all_kinds_of_edits_is_ok_also_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(dir.path(), 1).await;
    is_ok(&node, (0, 0));
    fill(&node).await;
    is_ok(&node, SHOWN);
    let text = String::from_utf8(verify(&node, &[]).stdout).unwrap();
    assert!(text.contains("PARTITION  OFFSETS"), "{text}");
    assert!(text.contains("1 partition: 1 ok, 0 faulty, 0 not checked; 6 elements of 4 queues"));
    node.stop();
    let node = Node::start(dir.path());
    is_ok(&node, SHOWN);
    let mut queues = node.queues().await;
    enqueue(&mut queues, "erin", &["e0"]).await;
    is_ok(&node, (7, 5));

    // An open transaction ends the check; elements of an aborted one are shown to nobody.
    let client = Client::connect(Options::new([node.kafka.to_string()])).await.unwrap();
    let producer = client.take_over("open", 60_000).await.unwrap();
    let open = Some((producer.id, producer.epoch, 0));
    assert_eq!(produce(&client, open, &[("fay", "aborted")]).await, 0);
    let last = enqueue(&mut queues, "erin", &["e1"]).await;
    is_ok(&node, (7, 5));
    client.take_over("open", 60_000).await.unwrap();
    let request = RetrieveRequest {
        wait_ms: 60_000,
        ..retrieve("erin", Some(Position { offset: last.offset - 1, ..last }))
    };
    queues.retrieve(request).await.unwrap();
    is_ok(&node, (8, 6));

    let (status, _) = node.json("PUT", "/v1/topics/plain", &json!({ "partitions": 1 }));
    assert_eq!(status, 201);
    let command = ["queue", "verify", "plain", "--bootstrap", &node.kafka.to_string()];
    let done = Command::new(env!("CARGO_BIN_EXE_duramen")).args(command).output().unwrap();
    let told = String::from_utf8(done.stderr).unwrap();
    assert!(told.contains("the keys of topic plain are no queues"), "{told}");
    assert_eq!(done.status.code(), Some(1));
}

/// Change of a sound index, and what is found of it: queue, offset, words.
type Change = fn(&mut Vec<Indexed>);
type Found = (&'static str, i64, &'static str);

/// Returns indexes that lack something.
fn lacking() -> [(Change, Vec<Found>); 5] {
    const NO_FACT: &str = "the index lacks what the log says of the queue (kind 5)";
    const NO_EDIT: &str = "the index masks the record, and no edit takes it away";
    let batch: Change = |all| all.iter_mut().for_each(|it| it.names.retain(|_| it.offsets.0 != 5));
    let records: Change = |all| all[0].names[0].1 = 2;
    let fact: Change = |all| all.iter_mut().for_each(|it| it.facts.retain(|it| it.1.kind != 5));
    let fence: Change = |all| all.iter_mut().for_each(|it| it.facts.retain(|it| it.1.kind != 4));
    let mask: Change = |all| all.iter_mut().for_each(|it| it.masks.retain(|it| *it != 1));
    [
        (batch, vec![("bob", 5, "the index lacks the batch at offset 5")]),
        (records, vec![("alice", 0, "the index knows 2 of 3 records of the batch")]),
        (
            fact,
            vec![
                ("alice", 11, NO_FACT),
                ("alice", 12, NO_FACT),
                ("alice", 0, NO_EDIT),
                ("alice", 11, NO_EDIT),
            ],
        ),
        (fence, vec![("carol", 15, "the index lacks what the log says of the queue (kind 4)")]),
        (mask, vec![("alice", 1, "the index shows the record, which an edit at 13 takes away")]),
    ]
}

/// Returns indexes that take elements away which the log does not.
fn false_ones() -> [(Change, Vec<Found>); 2] {
    let mask: Change = |all| all.last_mut().unwrap().masks.push(4);
    let fact: Change = |all| {
        let last = all.last_mut().unwrap();
        let said = Said::Deleted(Deleted::of(&[4]));
        let (kind, offset, body) = (said.kind(), last.offsets.0, said.body());
        last.facts.push((Bytes::from_static(b"bob"), Fact { kind, offset, body }));
        last.masks.push(4);
    };
    [
        (mask, vec![("bob", 4, "the index masks the record, and no edit takes it away")]),
        (fact, vec![("bob", 17, "the index has an edit (kind 1) that the log does not have")]),
    ]
}

/// Makes a topic, and stops its node. Returns the topic's id.
async fn filled(dir: &Path) -> [u8; 16] {
    let node = start(dir, 1).await;
    fill(&node).await;
    let client = Client::connect(Options::new([node.kafka.to_string()])).await.unwrap();
    let topic_id = client.leader("t", 0).await.unwrap().topic_id.0;
    drop(client);
    node.stop();
    topic_id
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_index_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let topic_id = filled(dir.path()).await;
    for (change, expected) in lacking().into_iter().chain(false_ones()) {
        let path = plant(dir.path(), topic_id, change);
        let node = Node::start(dir.path());
        let (report, is_ok) = report(&node);
        assert!(!is_ok, "{report:#}");
        let findings = report["partitions"][0]["findings"].as_array().unwrap();
        let found = findings.iter().map(|it| {
            let position: Position = it["position"].as_str().unwrap().parse().unwrap();
            (it["queue"].as_str().unwrap(), position.offset, it["what"].as_str().unwrap())
        });
        assert_eq!(found.collect::<Vec<_>>(), expected, "{report:#}");
        assert_eq!(report["partitions"][0]["state"], "faulty");
        assert_eq!(verify(&node, &[]).status.code(), Some(1));
        node.stop();
        std::fs::remove_file(path).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_index_may_say_too_much_and_a_damaged_one_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let topic_id = filled(dir.path()).await;
    let path = plant(dir.path(), topic_id, |all| {
        all[0].names.push((Bytes::from_static(b"bob"), 1));
        all[1].names.push((Bytes::from_static(b"nobody"), 3));
    });
    let node = Node::start(dir.path());
    is_ok(&node, SHOWN);
    node.stop();

    let mut bytes = std::fs::read(&path).unwrap();
    bytes[80] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let node = Node::start(dir.path());
    let (report, is_well) = report(&node);
    assert!(!is_well, "{report:#}");
    let what = report["partitions"][0]["findings"][0]["what"].as_str().unwrap();
    assert!(what.contains(".keys"), "{report:#}");
    // The next use makes it anew.
    enqueue(&mut node.queues().await, "erin", &["e0"]).await;
    is_ok(&node, (7, 5));
}
