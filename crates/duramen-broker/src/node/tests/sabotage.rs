//! Each planted bug does something that a client or storage can see.

use duramen_storage::op::Done;

use super::harness::{Harness, WALL_MS, batch, builder, idempotent, produce_request};
use crate::sabotage::{Bug, plant};

fn with_topic(bug: Bug) -> Harness {
    plant(None);
    let mut it = Harness::new(&[]);
    it.create("t", &[("retention.ms", "600000"), ("segment.ms", "1000")]);
    plant(Some(bug));
    it
}

#[test]
fn dedup_is_not_rebuilt() {
    for bug in [Bug::DedupNotRebuilt, Bug::ImageWithoutProducers] {
        let mut it = with_topic(bug);
        it.produce("t", idempotent(5, 0, 0, &["a"]));
        let replica = it.replica("t");
        it.storage(Done::WantImage { replica });
        it.restart(&[], 2);
        assert_eq!(it.produce("t", idempotent(5, 0, 0, &["a"])).base_offset, 1, "{bug:?}");
    }
}

#[test]
fn a_batch_is_acknowledged_before_it_is_on_disk() {
    let mut it = with_topic(Bug::AckedBeforePersisted);
    it.is_prompt = false;
    let id = it.send(produce_request("t", batch(&["a"]), -1), 9);
    assert!(it.produced(id).is_some());
}

#[test]
fn what_is_not_committed_is_shown() {
    let mut it = with_topic(Bug::UncommittedShown);
    it.is_prompt = false;
    let other = crate::event::ConnectionId(2);
    it.enqueue(other, &produce_request("t", batch(&["a"]), -1).into(), 9);
    assert_eq!(it.fetch("t", 0).high_watermark, 1);
}

#[test]
fn a_gap_is_taken_and_a_repeat_answered_wrongly() {
    let mut it = with_topic(Bug::SequenceGapAccepted);
    it.produce("t", idempotent(5, 0, 0, &["a"]));
    assert_eq!(it.produce("t", idempotent(5, 0, 9, &["b"])).base_offset, 1);
    let mut it = with_topic(Bug::DuplicateOffsetWrong);
    it.produce("t", idempotent(5, 0, 0, &["a"]));
    assert_eq!(it.produce("t", idempotent(5, 0, 0, &["a"])).base_offset, 1);
}

#[test]
fn a_leap_of_the_clock_deletes() {
    let mut it = with_topic(Bug::ClockLeapBelieved);
    for ahead_ms in [0, 5_000] {
        let bytes = builder(&["a"], WALL_MS + ahead_ms).build().expect("a batch");
        it.produce("t", bytes);
    }
    it.now.wall_ms += 8 * 86_400_000;
    it.pass_ms(3_600_000);
    assert!(!it.store.trims.is_empty());
}

#[test]
fn a_deleted_replica_stays() {
    let mut it = with_topic(Bug::ReplicaNotDeleted);
    super::topics::delete(&mut it, "t");
    assert!(it.store.deleted.is_empty());
}
