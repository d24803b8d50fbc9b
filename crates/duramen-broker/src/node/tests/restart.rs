use duramen_protocol::ErrorCode;
use duramen_protocol::Response;
use duramen_protocol::messages::{InitProducerIdRequest, InitProducerIdResponse};
use duramen_storage::op::{Content, Done, LogEntry, ReplicaId};

use super::harness::{Harness, ONE, batch, fetch_request, idempotent};

#[test]
fn topics_records_settings_and_ids_survive_a_restart() {
    let mut it = Harness::new(&[]);
    it.create("t", &[("max.message.bytes", "300")]);
    it.create("gone", &[]);
    it.produce("t", batch(&["a", "b"]));
    super::topics::delete(&mut it, "gone");
    let before = it.metadata(&["t"]);
    it.restart(&[("auto.create.topics.enable", "false")], 2);
    let after = it.metadata(&["t", "gone"]);
    assert_eq!(after.topics[0].topic_id, before.topics[0].topic_id);
    assert_eq!(after.topics[1].error_code, ErrorCode::UnknownTopicOrPartition.code());
    assert_eq!(after.cluster_id, before.cluster_id);
    assert_eq!(it.fetch("t", 0).high_watermark, 2);
    assert_eq!(it.produce("t", batch(&["c"])).base_offset, 2);
    let long = "x".repeat(400);
    let refused = it.produce("t", batch(&[&long])).error_code;
    assert_eq!(refused, ErrorCode::MessageTooLarge.code());
    let epoch = after.topics[0].partitions[0].leader_epoch;
    assert!(epoch > before.topics[0].partitions[0].leader_epoch, "epochs never fall");
}

#[test]
fn dedup_survives_a_restart_by_image_and_replay() {
    for has_image in [false, true] {
        let mut it = Harness::new(&[]);
        it.create("t", &[]);
        for n in 0..6 {
            it.produce("t", idempotent(5, 0, n, &["a"]));
        }
        if has_image {
            let replica = it.replica("t");
            it.storage(Done::WantImage { replica });
            it.storage(Done::WantImage { replica: ReplicaId(1) });
            assert!(it.store.replicas[&replica].image.0 > 6, "the image is at the applied index");
        }
        it.produce("t", idempotent(5, 0, 6, &["b"]));
        it.restart(&[], 2);
        assert_eq!(it.produce("t", idempotent(5, 0, 6, &["b"])).base_offset, 6);
        assert_eq!(it.produce("t", idempotent(5, 0, 2, &["a"])).base_offset, 2);
        let old = it.produce("t", idempotent(5, 0, 1, &["a"])).error_code;
        assert_eq!(old, ErrorCode::OutOfOrderSequenceNumber.code(), "only five are remembered");
        assert_eq!(it.produce("t", idempotent(5, 0, 7, &["c"])).base_offset, 7);
    }
}

#[test]
fn a_metadata_image_stands_in_for_the_log_before_it() {
    let mut it = Harness::new(&[]);
    it.create("t", &[]);
    it.storage(Done::WantImage { replica: ReplicaId(1) });
    it.create("u", &[]);
    let tail = it.store.metadata_tail();
    assert_eq!(tail.len(), 1, "only what came after the image is read again");
    it.restart(&[], 3);
    let metadata = it.metadata(&["t", "u"]);
    assert!(metadata.topics.iter().all(|topic| topic.error_code == 0));
}

pub(super) fn producer_id(it: &mut Harness) -> InitProducerIdResponse {
    let request = InitProducerIdRequest { transactional_id: None, ..Default::default() };
    match it.ask(request, 4) {
        Response::InitProducerId(response) => response,
        other => panic!("{other:?}"),
    }
}

#[test]
fn producer_ids_are_never_given_twice() {
    let mut it = Harness::new(&[]);
    let mut last = -1;
    for _ in 0..1500 {
        let id = producer_id(&mut it).producer_id;
        assert!(id > last);
        last = id;
    }
    it.restart(&[], 2);
    assert!(producer_id(&mut it).producer_id > last);
}

#[test]
fn requests_during_opening_are_kept_until_the_groups_lead() {
    let mut it = Harness::new(&[]);
    it.create("t", &[]);
    it.produce("t", batch(&["a"]));
    let mut it = Harness::slow(it.store, &[], 2);
    let id = it.enqueue(ONE, &fetch_request("t", 0).into(), 12);
    it.run();
    assert!(it.response(id).is_none(), "nothing is led yet");
    assert!(it.node.metrics().is_opening);
    it.is_prompt = true;
    it.run();
    let Some(Response::Fetch(response)) = it.response(id) else { panic!("not answered") };
    assert_eq!(response.responses[0].partitions[0].high_watermark, 1);
    assert!(!it.node.metrics().is_opening);
}

#[test]
fn a_replica_of_a_topic_that_is_gone_is_removed_at_the_start() {
    let mut it = Harness::new(&[]);
    it.create("t", &[]);
    let replica = it.replica("t");
    let kept = it.store.replicas[&replica].clone();
    super::topics::delete(&mut it, "t");
    // The deletion was committed, but the node died before storage heard of it.
    it.store.replicas.insert(replica, kept);
    it.store.deleted.clear();
    it.restart(&[], 2);
    assert_eq!(it.store.deleted, [replica]);
}

#[test]
fn a_replica_that_was_placed_and_not_made_is_made_at_the_start() {
    let mut it = Harness::new(&[]);
    it.create("t", &[]);
    let replica = it.replica("t");
    it.store.replicas.remove(&replica);
    it.restart(&[], 2);
    assert_eq!(it.produce("t", batch(&["a"])).base_offset, 0);
}

#[test]
fn an_unknown_internal_entry_stops_its_group_and_no_other() {
    let mut it = Harness::new(&[]);
    it.create("t", &[]);
    it.create("u", &[]);
    let replica = it.replica("t");
    let stored = it.store.replicas.get_mut(&replica).expect("there");
    let last = stored.entries.last().expect("a no-op").clone();
    let content = Content::Internal(vec![1, 0, 2, 99, 1].into());
    stored.entries.push(LogEntry { index: last.index + 1, term: last.term, content });
    stored.payloads.push(bytes::Bytes::new());
    it.restart(&[], 2);
    let failed = it.produce("t", batch(&["a"])).error_code;
    assert_eq!(failed, ErrorCode::KafkaStorageError.code());
    assert_eq!(it.produce("u", batch(&["a"])).error_code, 0);
    assert_eq!(it.node.metrics().partitions_failed, 1);
}

#[test]
fn the_same_events_make_the_same_actions() {
    let run = || {
        let mut it = Harness::new(&[]);
        it.create("t", &[]);
        it.produce("t", batch(&["a"]));
        it.restart(&[], 9);
        it.produce("t", batch(&["b"]));
        format!("{:?}", it.store)
    };
    assert_eq!(run(), run());
}
