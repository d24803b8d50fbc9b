use bytes::BytesMut;
use duramen_protocol::batch::{self, BatchHeader, TimestampType};
use duramen_protocol::messages::produce::PartitionProduceData;
use duramen_protocol::wire::Uuid;
use duramen_protocol::{ErrorCode, Response};
use duramen_storage::op::Done;

use crate::controller::{METADATA_REPLICA, producer_ids_of};
use crate::event::ConnectionId;

use super::harness::{
    Harness, ONE, SHORTAGE, WALL_MS, batch, builder, bytes_of, idempotent, new_topic,
    produce_request,
};
use super::restart::producer_id;
use super::topics::delete;
use super::trio::Trio;

#[test]
fn an_acknowledged_batch_is_on_disk_first_and_can_be_fetched() {
    let mut it = Harness::new(&[]);
    it.create("t", &[]);
    it.is_prompt = false;
    let id = it.send(produce_request("t", batch(&["a", "b"]), -1), 9);
    assert!(it.produced(id).is_none(), "nothing is synced yet");
    assert!(it.node.metrics().bytes_in_flight > 0);
    it.persist();
    it.run();
    let produced = it.produced(id).expect("synced now");
    assert_eq!((produced.error_code, produced.base_offset), (0, 0));
    let fetched = it.fetch("t", 0);
    assert_eq!(fetched.high_watermark, 2);
    let header = BatchHeader::parse(&bytes_of(&fetched)).expect("a batch");
    assert_eq!((header.base_offset, header.record_count), (0, 2));
    let epoch = it.metadata(&["t"]).topics[0].partitions[0].leader_epoch;
    assert_eq!(header.partition_leader_epoch, epoch);
}

#[test]
fn a_batch_that_is_not_synced_is_not_shown() {
    let mut it = Harness::new(&[]);
    it.create("t", &[]);
    it.is_prompt = false;
    let produce = produce_request("t", batch(&["a"]), -1);
    it.enqueue(ConnectionId(2), &produce.into(), 9);
    it.run();
    assert_eq!(it.fetch("t", 0).high_watermark, 0);
    let beyond = it.fetch("t", 1);
    assert_eq!((beyond.error_code, beyond.high_watermark), (0, 0));
    it.persist();
    it.run();
    assert_eq!(it.fetch("t", 0).high_watermark, 1);
}

#[test]
fn all_events_of_a_turn_make_one_storage_batch() {
    let mut it = Harness::new(&[]);
    it.create("t", &[]);
    it.is_prompt = false;
    let turns = it.store.turns;
    for n in 0..10 {
        let value = n.to_string();
        let request = produce_request("t", batch(&[&value]), -1);
        it.enqueue(ONE, &request.into(), 9);
    }
    it.run();
    assert_eq!((it.store.turns - turns, it.queued.len()), (1, 1));
}

#[test]
fn offsets_are_dense_and_start_at_zero() {
    let mut it = Harness::new(&[]);
    it.create("t", &[]);
    assert_eq!(it.produce("t", batch(&["a", "b", "c"])).base_offset, 0);
    assert_eq!(it.produce("t", batch(&["d"])).base_offset, 3);
    assert_eq!(it.produce("t", batch(&["e", "f"])).base_offset, 4);
}

#[test]
fn acks_0_has_no_answer_and_an_error_closes_the_connection() {
    let mut it = Harness::new(&[]);
    it.create("t", &[]);
    let id = it.send(produce_request("t", batch(&["a"]), 0), 9);
    assert!(it.response(id).is_none() && it.closed().is_none());
    assert_eq!(it.fetch("t", 0).high_watermark, 1, "later answers are not held up");
    it.send(produce_request("missing", batch(&["a"]), 0), 9);
    assert!(it.closed().expect("closed").contains("UNKNOWN_TOPIC_OR_PARTITION"));
}

#[test]
fn acks_1_is_answered_and_other_numbers_are_refused() {
    let mut it = Harness::new(&[]);
    it.create("t", &[]);
    let id = it.send(produce_request("t", batch(&["a"]), 1), 9);
    assert_eq!(it.produced(id).expect("answered").base_offset, 0);
    let id = it.send(produce_request("t", batch(&["a"]), 2), 9);
    let refused = it.produced(id).expect("answered").error_code;
    assert_eq!(refused, ErrorCode::InvalidRequiredAcks.code());
}

#[test]
fn a_retry_is_answered_with_the_first_offset_once_that_is_committed() {
    let mut it = Harness::new(&[]);
    it.create("t", &[]);
    assert_eq!(it.produce("t", idempotent(5, 0, 0, &["a"])).base_offset, 0);
    it.is_prompt = false;
    let first = it.send(produce_request("t", idempotent(5, 0, 1, &["b"]), -1), 9);
    let retry = it.send(produce_request("t", idempotent(5, 0, 1, &["b"]), -1), 9);
    assert!(it.produced(first).is_none() && it.produced(retry).is_none());
    it.is_prompt = true;
    it.persist();
    it.run();
    assert_eq!(it.produced(first).expect("committed").base_offset, 1);
    assert_eq!(it.produced(retry).expect("committed").base_offset, 1);
    assert_eq!(it.fetch("t", 0).high_watermark, 2, "it landed once");
    assert_eq!(it.produce("t", idempotent(5, 0, 0, &["a"])).base_offset, 0);
}

#[test]
fn gaps_stale_epochs_and_new_producers_in_the_middle_are_refused() {
    let mut it = Harness::new(&[]);
    it.create("t", &[]);
    let new = producer_id(&mut it).producer_id;
    it.produce("t", idempotent(5, 1, 0, &["a"]));
    let mut code = |batch| ErrorCode::from_code(it.produce("t", batch).error_code).expect("a code");
    assert_eq!(code(idempotent(5, 1, 2, &["c"])), ErrorCode::OutOfOrderSequenceNumber);
    assert_eq!(code(idempotent(5, 0, 1, &["b"])), ErrorCode::InvalidProducerEpoch);
    assert_eq!(code(idempotent(5, 2, 7, &["b"])), ErrorCode::OutOfOrderSequenceNumber);
    assert_eq!(code(idempotent(new, 0, 3, &["b"])), ErrorCode::UnknownProducerId);
    assert_eq!(code(idempotent(new, 0, 0, &["b"])), ErrorCode::None);
    assert_eq!(code(idempotent(5, 2, 0, &["b"])), ErrorCode::None);
}

/// Else librdkafka takes the gap for lost records, and sends again under another epoch.
#[test]
fn a_batch_that_was_sent_behind_a_refused_one_is_refused_like_it() {
    let mut it = Harness::new(&[]);
    it.create("t", &[]);
    let new = producer_id(&mut it).producer_id;
    let code = |it: &mut Harness, batch| {
        ErrorCode::from_code(it.produce("t", batch).error_code).expect("a code")
    };
    assert_eq!(code(&mut it, idempotent(5, 0, 0, &["a"])), ErrorCode::None);
    it.storage(Done::DiskFull(Some(SHORTAGE)));
    assert_eq!(code(&mut it, idempotent(5, 0, 1, &["b"])), ErrorCode::KafkaStorageError);
    assert_eq!(code(&mut it, idempotent(new, 0, 0, &["b"])), ErrorCode::KafkaStorageError);
    it.storage(Done::DiskFull(None));
    assert_eq!(code(&mut it, idempotent(5, 0, 2, &["c"])), ErrorCode::KafkaStorageError);
    assert_eq!(code(&mut it, idempotent(new, 0, 1, &["c"])), ErrorCode::KafkaStorageError);
    // The first batch was not sent again: its records are lost.
    assert_eq!(code(&mut it, idempotent(5, 0, 2, &["c"])), ErrorCode::OutOfOrderSequenceNumber);
    assert_eq!(code(&mut it, idempotent(new, 0, 1, &["c"])), ErrorCode::UnknownProducerId);
    for (sequence, value) in [(1, "b"), (2, "c")] {
        assert_eq!(code(&mut it, idempotent(5, 0, sequence, &[value])), ErrorCode::None);
    }
    assert_eq!(code(&mut it, idempotent(5, 0, 4, &["e"])), ErrorCode::OutOfOrderSequenceNumber);
}

#[test]
fn a_new_leader_takes_a_producers_first_gap_for_a_batch_behind_a_refused_one() {
    let mut trio = Trio::new(&[("auto.leader.rebalance.enable", "false")]);
    trio.create("t", 1);
    let code = |trio: &mut Trio, at, sequence| {
        let part = trio.produce(at, "t", idempotent(5, 0, sequence, &["a"]));
        ErrorCode::from_code(part.error_code).expect("a code")
    };
    let old = trio.leader("t", 0).expect("led");
    assert_eq!(code(&mut trio, old, 0), ErrorCode::None);
    assert_eq!(code(&mut trio, old, 2), ErrorCode::OutOfOrderSequenceNumber);
    trio.pass_ms(1000);
    trio.cut.insert(old);
    trio.pass_ms(20_000);
    let new = trio.leader("t", 0).expect("led");
    assert_eq!(code(&mut trio, new, 2), ErrorCode::NotLeaderOrFollower);
    assert_eq!(code(&mut trio, new, 3), ErrorCode::NotLeaderOrFollower, "sent at once");
    assert_eq!(code(&mut trio, new, 2), ErrorCode::OutOfOrderSequenceNumber);
    assert_eq!(code(&mut trio, new, 1), ErrorCode::None);
    assert_eq!(code(&mut trio, new, 2), ErrorCode::None);
    assert_eq!(code(&mut trio, new, 4), ErrorCode::OutOfOrderSequenceNumber);
}

#[test]
fn a_producer_goes_on_in_a_topic_that_was_made_again() {
    let mut it = Harness::new(&[]);
    it.create("t", &[]);
    let old = producer_id(&mut it).producer_id;
    assert_eq!(it.produce("t", idempotent(old, 0, 0, &["a", "b"])).error_code, 0);
    delete(&mut it, "t");
    it.create("t", &[]);
    it.restart(&[], 2);
    for again in [idempotent(old, 0, 2, &["c"]), idempotent(old, 0, 2, &["c"])] {
        let part = it.produce("t", again);
        assert_eq!((part.error_code, part.base_offset), (0, 0), "it is there once");
    }
    let gap = ErrorCode::OutOfOrderSequenceNumber.code();
    assert_eq!(it.produce("t", idempotent(old, 0, 4, &["e"])).error_code, gap);
    assert_eq!(it.produce("t", idempotent(old, 0, 3, &["d"])).base_offset, 1);

    // Whoever came after the topic has no past that could be forgotten.
    it.storage(Done::WantImage { replica: METADATA_REPLICA });
    let new = producer_id(&mut it).producer_id;
    it.restart(&[], 3);
    assert!(new >= old + 1000, "it is of another block");
    let unknown = ErrorCode::UnknownProducerId.code();
    assert_eq!(it.produce("t", idempotent(new, 0, 2, &["x"])).error_code, unknown);
    assert_eq!(it.produce("t", idempotent(new, 0, 0, &["x"])).base_offset, 2);
}

#[test]
fn a_producer_of_another_cluster_may_begin_anywhere() {
    let mut it = Harness::new(&[]);
    it.create("t", &[]);
    let own = producer_ids_of([7; 16]);
    assert!(own.contains(&producer_id(&mut it).producer_id));
    for (at, other) in [(0, own.start - 1), (1, own.end)] {
        assert_eq!(it.produce("t", idempotent(other, 0, 9, &["a"])).base_offset, at);
    }
}

#[test]
fn two_clusters_give_out_different_producer_ids() {
    let mut starts: Vec<_> = (0..=255u8).map(|n| producer_ids_of([n; 16]).start).collect();
    assert!(starts.iter().all(|it| (0..1 << 53).contains(it)));
    starts.sort_unstable();
    assert!(starts.windows(2).all(|pair| pair[1] - pair[0] > 1_000_000));
}

#[test]
fn bad_batches_are_refused_with_the_code_of_their_fault() {
    let mut it = Harness::new(&[]);
    it.create("t", &[("max.message.bytes", "200")]);
    let mut code = |batch| ErrorCode::from_code(it.produce("t", batch).error_code).expect("a code");
    let mut rotten = batch(&["abc"]).to_vec();
    *rotten.last_mut().expect("not empty") ^= 1;
    assert_eq!(code(rotten.into()), ErrorCode::CorruptMessage);
    let long = "x".repeat(300);
    assert_eq!(code(batch(&[&long])), ErrorCode::MessageTooLarge);
    let control = builder(&["a"], WALL_MS).control().build().expect("a batch");
    assert_eq!(code(control), ErrorCode::InvalidRecord);
    let two = [batch(&["a"]), batch(&["b"])].concat();
    assert_eq!(code(two.into()), ErrorCode::InvalidRecord);
    let future = builder(&["a"], WALL_MS + 7_200_000).build().expect("a batch");
    assert_eq!(code(future), ErrorCode::InvalidTimestamp);
    assert_eq!(it.fetch("t", 0).high_watermark, 0);
}

#[test]
fn a_compacted_topic_wants_keys() {
    let mut it = Harness::new(&[]);
    it.create("t", &[("cleanup.policy", "compact")]);
    let refused = it.produce("t", batch(&["a"]));
    assert_eq!(refused.error_code, ErrorCode::InvalidRecord.code());
    let named: Vec<_> = refused.record_errors.iter().map(|it| it.batch_index).collect();
    assert_eq!(named, [0]);
}

#[test]
fn a_transactional_batch_without_a_transactional_id_refuses_the_whole_request() {
    let mut it = Harness::new(&[]);
    assert_eq!(it.try_create(new_topic("t", 2, &[])).topics[0].error_code, 0);
    for producer in [true, false] {
        let mut bad = builder(&["a"], WALL_MS).transactional();
        if producer {
            bad = bad.producer(1, 0, 0);
        }
        let mut request = produce_request("t", batch(&["a"]), -1);
        let records = Some(bad.build().expect("a batch"));
        let data = PartitionProduceData { index: 1, records };
        request.topic_data[0].partition_data.push(data);
        let Response::Produce(response) = it.ask(request, 9) else { panic!("other") };
        let parts = response.responses[0].partition_responses.iter();
        let codes: Vec<_> = parts.map(|part| ErrorCode::from_code(part.error_code)).collect();
        assert_eq!(codes, [Some(ErrorCode::TransactionalIdAuthorizationFailed); 2]);
    }
    assert_eq!(it.fetch("t", 0).high_watermark, 0);
}

#[test]
fn of_a_partition_named_twice_the_last_batch_counts() {
    let mut it = Harness::new(&[]);
    assert_eq!(it.try_create(new_topic("t", 2, &[])).topics[0].error_code, 0);
    let data = |index, value| PartitionProduceData { index, records: Some(batch(&[value])) };
    let mut request = produce_request("t", batch(&["first"]), -1);
    request.topic_data[0].partition_data.extend([data(1, "other"), data(0, "last")]);
    let Response::Produce(response) = it.ask(request.clone(), 9) else { panic!("other") };
    let parts = response.responses[0].partition_responses.iter();
    let parts: Vec<_> = parts.map(|part| (part.index, part.base_offset)).collect();
    assert_eq!(parts, [(1, 0), (0, 0)]);
    let fetched = bytes_of(&it.fetch("t", 0));
    assert!(fetched.windows(4).any(|bytes| bytes == b"last"));
    let again = request.topic_data[0].clone();
    request.topic_data.push(again);
    let Response::Produce(response) = it.ask(request, 9) else { panic!("other") };
    assert_eq!(response.responses.len(), 1, "also in two entries of the topic");
    assert_eq!(it.fetch("t", 0).high_watermark, 2);
}

#[test]
fn a_time_of_append_that_a_client_claims_is_taken_off() {
    let mut it = Harness::new(&[]);
    it.create("t", &[]);
    let mut bytes = BytesMut::from(&builder(&["a"], WALL_MS).build().expect("a batch")[..]);
    batch::restamp_log_append_time(&mut bytes, WALL_MS + 9);
    let produced = it.produce("t", bytes.freeze());
    assert_eq!((produced.error_code, produced.log_append_time_ms), (0, -1));
    let header = BatchHeader::parse(&bytes_of(&it.fetch("t", 0))).expect("a batch");
    assert_eq!(header.attributes.timestamp_type(), TimestampType::CreateTime);
    assert_eq!(header.max_timestamp, WALL_MS, "the record's own");
}

#[test]
fn log_append_time_is_stamped_by_the_node_and_the_checksum_fits() {
    let mut it = Harness::new(&[]);
    it.create("t", &[("message.timestamp.type", "LogAppendTime")]);
    it.now.wall_ms += 5_000;
    let old = builder(&["a"], 17).build().expect("a batch");
    assert_eq!(it.produce("t", old).log_append_time_ms, WALL_MS + 5_000);
    let fetched = bytes_of(&it.fetch("t", 0));
    let header = BatchHeader::parse(&fetched).expect("a batch");
    assert_eq!(header.attributes.timestamp_type(), TimestampType::LogAppendTime);
    assert_eq!(header.max_timestamp, WALL_MS + 5_000);
    // The harness has checked the descriptor, and so the checksum, against the stored bytes.
}

#[test]
fn unknown_topics_partitions_and_ids_are_told_apart() {
    let mut it = Harness::new(&[]);
    it.create("t", &[]);
    let unknown = it.produce("u", batch(&["a"])).error_code;
    assert_eq!(unknown, ErrorCode::UnknownTopicOrPartition.code());
    let mut request = produce_request("t", batch(&["a"]), -1);
    request.topic_data[0].partition_data[0].index = 1;
    let id = it.send(request, 9);
    let code = it.produced(id).expect("answered").error_code;
    assert_eq!(code, ErrorCode::UnknownTopicOrPartition.code());
    let mut request = produce_request("", batch(&["a"]), -1);
    request.topic_data[0].topic_id = Uuid::from_u128(5);
    let id = it.send(request.clone(), 13);
    let code = it.produced(id).expect("answered").error_code;
    assert_eq!(code, ErrorCode::UnknownTopicId.code());
    request.topic_data[0].topic_id = it.metadata(&["t"]).topics[0].topic_id;
    let id = it.send(request, 13);
    assert_eq!(it.produced(id).expect("answered").error_code, 0);
}

#[test]
fn a_full_disk_refuses_appends_while_reads_and_deletes_go_on() {
    let mut it = Harness::new(&[]);
    it.create("t", &[]);
    it.produce("t", batch(&["a"]));
    it.storage(Done::DiskFull(Some(SHORTAGE)));
    let refused = it.produce("t", batch(&["b"]));
    assert_eq!(refused.error_code, ErrorCode::KafkaStorageError.code());
    let said = refused.error_message.expect("it says why");
    for part in ["broker 0 is full", "200 MiB are free", "from 400 MiB on", "retention"] {
        assert!(said.contains(part), "{said}");
    }
    assert_eq!(it.fetch("t", 0).high_watermark, 1);
    it.create("u", &[]);
    it.storage(Done::DiskFull(None));
    assert_eq!(it.produce("t", batch(&["b"])).base_offset, 1);
}

#[test]
fn a_produce_waits_while_too_many_bytes_are_in_flight_and_keeps_its_place() {
    let mut it = Harness::new(&[]);
    it.create("t", &[]);
    it.is_prompt = false;
    let large = "x".repeat(700 << 10);
    let first = it.send(produce_request("t", batch(&[&large]), -1), 9);
    let second = it.send(produce_request("t", batch(&[&large]), -1), 9);
    let small = it.send(produce_request("t", batch(&["a"]), -1), 9);
    assert_eq!(it.node.metrics().stalls, 2, "the small one does not overtake");
    it.is_prompt = true;
    it.persist();
    it.run();
    let offsets = [first, second, small].map(|id| it.produced(id).expect("done").base_offset);
    assert_eq!(offsets, [0, 1, 2]);
    assert_eq!(it.node.metrics().bytes_in_flight, 0);
}

#[test]
fn a_produce_that_is_not_synced_in_time_is_told_so() {
    let mut it = Harness::new(&[]);
    it.create("t", &[]);
    it.is_prompt = false;
    let id = it.send(produce_request("t", batch(&["a"]), -1), 9);
    it.pass_ms(29_000);
    assert!(it.produced(id).is_none());
    it.pass_ms(1_001);
    let code = it.produced(id).expect("over").error_code;
    assert_eq!(code, ErrorCode::RequestTimedOut.code());
    it.is_prompt = true;
    it.persist();
    it.run();
    assert_eq!(it.fetch("t", 0).high_watermark, 1);
}

#[test]
fn a_closed_connection_is_forgotten() {
    let mut it = Harness::new(&[]);
    it.create("t", &[]);
    it.is_prompt = false;
    it.send(produce_request("t", batch(&["a"]), -1), 9);
    it.disconnect(ONE);
    it.is_prompt = true;
    it.persist();
    it.run();
    assert_eq!(it.node.metrics().parked, 0);
    assert_eq!(it.fetch("t", 0).high_watermark, 1);
}
