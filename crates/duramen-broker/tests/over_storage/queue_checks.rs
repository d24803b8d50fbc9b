//! Digests of elements of queues, and faults of a queue index.

use super::*;

const ALL: i32 = i32::MAX;

/// Describes the elements of a part, with the edits below an offset.
fn checked(
    broker: &mut Broker,
    topic_id: Uuid,
    (from_offset, to_offset): (i64, i64),
    (queues_end, bytes_max): (i64, i32),
) -> DescribedReplica {
    let partition = DescribeReplicasPartition {
        partition_index: 0,
        from_offset,
        to_offset,
        queues_end,
        erasure: false,
    };
    let topics = vec![DescribeReplicasTopic { topic_id, partitions: vec![partition] }];
    let request = DescribeReplicasRequest { topics, bytes_max };
    let Response::DescribeReplicas(mut response) = broker.ask(request, 0) else { panic!("other") };
    response.topics.remove(0).partitions.remove(0)
}

fn batch(records: &[(&str, &str)]) -> Bytes {
    let mut builder = BatchBuilder::new();
    for (key, value) in records {
        let (key, value) = (Some(key.as_bytes()), Some(value.as_bytes()));
        let record = NewRecord { timestamp: WALL_MS, key, value, ..NewRecord::default() };
        builder.push(&record).expect("a record");
    }
    builder.build().expect("a batch")
}

/// Makes a topic of queues with batches of three queues.
fn filled() -> (Broker, Uuid) {
    let mut broker = Broker::open(MemoryDisk::default(), 1);
    let config =
        CreatableTopicConfig { name: "queue.enable".to_owned(), value: Some("true".to_owned()) };
    broker.create_with("t", vec![config]);
    for round in 0..20 {
        let value = format!("{round}-{}", "x".repeat(90));
        let records = [("alice", &value[..]), ("bob", &value), ("alice", &value), ("carol", "c")];
        assert_eq!(broker.produce("t", batch(&records)), round * 4);
    }
    let id = broker.topic_id("t");
    (broker, id)
}

#[test]
fn a_part_of_any_size_has_the_elements_that_lie_in_it() {
    let (mut broker, id) = filled();
    let state = checked(&mut broker, id, (-1, -1), (-1, ALL));
    assert_eq!((state.stable_offset, state.indexed_offset, state.elements), (80, 80, -1));
    let all = checked(&mut broker, id, (0, 80), (80, ALL));
    assert_eq!((all.error_code, all.end_offset, all.elements, all.queues), (0, 80, 80, 3));
    assert_eq!((all.digest.len(), all.faults.len(), all.shown.len()), (16, 0, 0));
    for bytes_max in [1, 2000, 6000] {
        let (mut at, mut elements, mut queues, mut bytes) = (0, 0, 0, 0);
        while at < 80 {
            let part = checked(&mut broker, id, (at, 80), (80, bytes_max));
            assert_eq!((part.error_code, part.first_offset), (0, at));
            assert!(part.end_offset > at && part.faults.is_empty());
            at = part.end_offset;
            (elements, queues) = (elements + part.elements, queues + part.queues);
            bytes += part.bytes;
        }
        assert_eq!((elements, queues, bytes), (80, 3, all.bytes));
    }
    // A part may begin and end within a batch.
    let one = checked(&mut broker, id, (6, 7), (80, ALL));
    let shown = &one.shown[0];
    assert_eq!((one.end_offset, one.elements, one.queues, one.shown.len()), (7, 1, 0, 1));
    assert_eq!(
        (&shown.queue[..], shown.entry, shown.offset, shown.version),
        (&b"alice"[..], 4, 6, 6)
    );
    assert_eq!(checked(&mut broker, id, (0, 80), (80, 0)).elements, -1, "nobody wants to read");

    forge(&mut broker, 2);
    let forged = checked(&mut broker, id, (0, 80), (80, ALL));
    assert_eq!((forged.elements, forged.faults.len()), (80, 0));
    assert_ne!(forged.digest, all.digest);
}

/// Changes a byte of the first batch, so far from its end, and the batch's CRC with it.
fn forge(broker: &mut Broker, from_end: usize) {
    broker.disk.rot("t-0/00000000000000000000.log", |bytes| {
        let len = 12 + u32::from_be_bytes(bytes[8..12].try_into().expect("four")) as usize;
        bytes[len - from_end] ^= 1;
        let crc = crc32c::crc32c(&bytes[21..len]);
        bytes[17..21].copy_from_slice(&crc.to_be_bytes());
    });
}

#[test]
fn a_queue_that_the_index_does_not_name_is_a_fault() {
    let (mut broker, id) = filled();
    forge(&mut broker, 5); // within the key of the last record
    let found = checked(&mut broker, id, (0, 80), (80, ALL));
    assert_eq!((found.elements, found.faults.len()), (80, 1), "carol has other batches");
    let fault = &found.faults[0];
    assert_eq!((&fault.queue[..], fault.entry, fault.offset), (&b"carnl"[..], 0, 0));
    assert_eq!(fault.what, "the index lacks the batch at offset 0");
}

#[test]
fn a_part_that_cannot_be_checked_is_refused() {
    let (mut broker, id) = filled();
    let code = |described: DescribedReplica| ErrorCode::from_code(described.error_code);
    let too_far = checked(&mut broker, id, (0, 80), (81, ALL));
    assert_eq!(code(too_far), Some(ErrorCode::OffsetNotAvailable));
    let behind_edits = checked(&mut broker, id, (0, 80), (60, ALL));
    assert_eq!(code(behind_edits), Some(ErrorCode::InvalidRequest));
    assert_eq!(checked(&mut broker, id, (0, 60), (60, ALL)).elements, 60);
    broker.create("plain");
    let plain = broker.topic_id("plain");
    broker.produce("plain", batch(&[("a", "b")]));
    let no_queues = checked(&mut broker, plain, (0, 1), (1, ALL));
    assert_eq!((no_queues.stable_offset, no_queues.indexed_offset), (-1, -1));
    assert_eq!(code(no_queues), Some(ErrorCode::InvalidRequest));
    broker.trim("t", 33);
    assert_eq!(
        code(checked(&mut broker, id, (0, 80), (80, ALL))),
        Some(ErrorCode::OffsetOutOfRange)
    );
    let rest = checked(&mut broker, id, (33, 80), (80, ALL));
    assert_eq!((rest.elements, rest.queues, rest.faults.len()), (47, 3, 0));
}
