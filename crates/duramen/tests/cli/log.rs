//! `duramen log`.

use serde_json::Value;

use crate::node::Node;

#[test]
fn the_files_of_a_data_directory_can_be_looked_into() {
    let directory = tempfile::tempdir().unwrap();
    let node = Node::start(directory.path());
    node.run(&["topic", "create", "t"]);
    node.feed(&["produce", "t", "--key", "k", "--codec", "zstd"], "v1\nv2\n");
    let segment = directory.path().join("t-0/00000000000000000000.log");
    let segment = segment.to_str().unwrap();
    let text = node.run(&["log", "dump", segment, "--records"]);
    assert!(text.starts_with("offsets 0..1  2 records  position 0  "), "{text}");
    assert!(text.contains("  zstd\n") && text.contains("key k  value v2\n"), "{text}");
    let json = node.run(&["log", "dump", segment, "--output", "json"]);
    let batch: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&batch["records"], &batch["crc_valid"]), (&2.into(), &true.into()));

    let journal = directory.path().join("journal/0000");
    let text = node.run(&["log", "dump", journal.to_str().unwrap(), "--records"]);
    assert!(text.contains("round 1  ") && text.contains("  append  replica "), "{text}");
    assert!(text.contains("(base_offset 0  count 2  length "), "{text}");
    assert!(text.contains("  internal Raft's own"), "{text}");
    assert!(text.contains("\n  create  replica 1  identity (topic __cluster_metadata"), "{text}");
    let json = node.run(&["log", "dump", journal.to_str().unwrap(), "--records", "-o", "json"]);
    let records = json.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let of_topic = |record: &Value| record["identity"]["topic"] == "t";
    let replica = records.clone().find(of_topic).unwrap()["replica"].clone();
    let mut of_replica = records.filter(|record| record["replica"] == replica);
    let appended = of_replica.find(|record| record["batch"].is_object()).unwrap();
    assert_eq!((&appended["kind"], &appended["batch"]["count"]), (&"append".into(), &2.into()));
    assert_eq!(appended["batch"]["starts_segment"], true);
    assert_eq!(appended["payload_bytes"], appended["batch"]["length"]);

    // Large images are rare; this one is made by hand.
    let image = directory.path().join("image-00000000000000000815");
    let producer = [&[1][..], &77i64.to_be_bytes(), &3i16.to_be_bytes(), &[0]].concat();
    std::fs::write(&image, &producer).unwrap();
    let text = node.run(&["log", "dump", image.to_str().unwrap(), "--records"]);
    assert!(text.starts_with("image after index 815  12 bytes  crc "), "{text}");
    assert!(text.ends_with("  1 fact\n  producer 77  epoch 3\n"), "{text}");

    let copy = directory.path().join("copy.log");
    let mut bytes = std::fs::read(segment).unwrap();
    // As Apache Kafka leaves a segment with log.preallocate; of some lengths no batch's header could begin.
    for room in [1, 60, 5000, 3 << 20] {
        std::fs::write(&copy, [&bytes[..], &vec![0; room]].concat()).unwrap();
        let text = node.run(&["log", "dump", copy.to_str().unwrap()]);
        let told = format!(
            "\nposition {}: {room} bytes of zeroes up to the end: room that was preallocated\n",
            bytes.len()
        );
        assert!(text.ends_with(&told), "{text}");
    }
    let json = node.run(&["log", "dump", copy.to_str().unwrap(), "-o", "json"]);
    let room: Value = serde_json::from_str(json.lines().last().unwrap()).unwrap();
    assert_eq!(room, serde_json::json!({"position": bytes.len(), "preallocated_bytes": 3 << 20}));
    std::fs::write(&copy, [&bytes[..], &[0; 5000], &[1]].concat()).unwrap();
    let zeroes = node.command(&["log", "dump", copy.to_str().unwrap()]).output().unwrap();
    assert_eq!(zeroes.status.code(), Some(1), "something follows the zeroes");
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&copy, &bytes[..]).unwrap();
    let output = node.command(&["log", "dump", copy.to_str().unwrap()]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("position 0: DAMAGED: the checksum does not fit"), "{text}");
}
