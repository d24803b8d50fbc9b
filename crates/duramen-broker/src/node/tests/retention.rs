use duramen_protocol::messages::delete_records::{DeleteRecordsPartition, DeleteRecordsTopic};
use duramen_protocol::messages::incremental_alter_configs::{
    AlterConfigsResource, AlterableConfig,
};
use duramen_protocol::messages::{DeleteRecordsRequest, IncrementalAlterConfigsRequest};
use duramen_protocol::records::{BatchBuilder, NewRecord};
use duramen_protocol::{ErrorCode, Response};
use duramen_storage::op::Done;

use crate::controller::METADATA_REPLICA;
use crate::event::Event;
use crate::limits::PARTITION_SEGMENTS;

use duramen_storage::op::Content;

use super::harness::{Harness, WALL_MS, batch, builder, idempotent, produce_request};
use super::trio::Trio;

const DAY_MS: i64 = 86_400_000;

fn at(it: &mut Harness, timestamp: i64) {
    let bytes = builder(&["a"], timestamp).build().expect("a batch");
    assert_eq!(it.produce("t", bytes).error_code, 0);
}

#[test]
fn old_segments_go_when_the_clock_is_believed() {
    let mut it = Harness::new(&[]);
    it.create("t", &[("retention.ms", "600000"), ("segment.ms", "60000")]);
    at(&mut it, WALL_MS);
    at(&mut it, WALL_MS + 120_000);
    it.pass_ms(660_000);
    assert_eq!(it.fetch("t", 1).log_start_offset, 1);
    let code = it.fetch("t", 0).error_code;
    assert_eq!(code, ErrorCode::OffsetOutOfRange.code());
    assert_eq!(it.store.trims, [(it.replica("t"), 1)]);
}

#[test]
fn a_log_whose_records_are_all_old_is_emptied_and_goes_on() {
    let mut it = Harness::new(&[]);
    it.create("t", &[("retention.ms", "60000")]);
    at(&mut it, WALL_MS);
    it.pass_ms(700_000);
    assert_eq!(it.fetch("t", 1).log_start_offset, 1);
    let next = it.now.wall_ms;
    at(&mut it, next);
    let replica = it.replica("t");
    // The old segment has gone with the trim, and the new batch starts one.
    assert_eq!(it.store.trims, [(replica, 1)]);
    assert_eq!(starts(&it), [0, 1]);
    assert_eq!(it.fetch("t", 1).high_watermark, 2);
}

#[test]
fn records_without_a_time_or_from_before_1970_go_in_their_turn() {
    for timestamp in [-1, -5, -DAY_MS, WALL_MS - i64::MAX] {
        let mut it = Harness::new(&[]);
        it.create("t", &[("retention.ms", "600000"), ("segment.ms", "60000")]);
        at(&mut it, timestamp);
        it.pass_ms(100_000);
        let next = it.now.wall_ms;
        at(&mut it, next);
        it.pass_ms(400_000);
        assert_eq!(it.store.trims, [], "{timestamp}: they have just come");
        it.pass_ms(200_000);
        assert_eq!(it.store.trims, [(it.replica("t"), 1)], "{timestamp}");
        it.pass_ms(300_000);
        assert_eq!(it.fetch("t", 2).log_start_offset, 2, "{timestamp}");
    }
}

#[test]
fn records_without_a_time_are_at_least_as_old_as_the_process() {
    let mut it = Harness::new(&[]);
    it.create("t", &[("retention.ms", "600000")]);
    at(&mut it, -1);
    it.pass_ms(590_000);
    it.restart(&[], 2);
    it.pass_ms(590_000);
    assert_eq!(it.store.trims, []);
    it.pass_ms(310_000);
    assert_eq!(it.store.trims, [(it.replica("t"), 1)]);
}

#[test]
fn logs_that_are_to_be_compacted_are_found_within_seconds() {
    let keyed = |it: &mut Harness| {
        let (key, value) = (Some(&b"k"[..]), Some(&b"v"[..]));
        let mut batch = BatchBuilder::new();
        let timestamp = it.now.wall_ms;
        batch.push(&NewRecord { timestamp, key, value, ..NewRecord::default() }).expect("good");
        assert_eq!(it.produce("t", batch.build().expect("a batch")).error_code, 0);
    };
    for (settings, ms) in [(&[][..], 15_000), (&[("log.cleaner.backoff.ms", "2000")][..], 2000)] {
        let mut it = Harness::new(settings);
        it.create("t", &[("cleanup.policy", "compact"), ("segment.ms", "1000")]);
        keyed(&mut it);
        it.pass_ms(1100);
        keyed(&mut it);
        assert!(it.compactions.is_empty());
        it.pass_ms(ms);
        assert_eq!(it.compactions.len(), 1, "within {ms} ms");
    }
}

#[test]
fn a_machine_that_was_suspended_goes_on_with_retention() {
    let mut it = Harness::new(&[]);
    it.create("t", &[("retention.ms", "600000")]);
    at(&mut it, WALL_MS);
    it.now.wall_ms += DAY_MS;
    it.step(Event::Suspended { ms: DAY_MS });
    it.pass_ms(300_000);
    assert_eq!(it.store.trims, [(it.replica("t"), 1)]);
    let metrics = it.node.metrics();
    assert_eq!((metrics.clock_holds, metrics.is_clock_held), (0, false));
    // A leap is told from it all the same.
    it.now.wall_ms += DAY_MS;
    it.pass_ms(300_000);
    assert!(it.node.metrics().is_clock_held);
}

#[test]
fn nothing_goes_before_a_topics_own_settings_are_known() {
    let settings = [("log.retention.ms", "1000"), ("log.retention.check.interval.ms", "1000")];
    let mut it = Harness::new(&settings);
    it.create("t", &[("retention.ms", "-1")]);
    at(&mut it, WALL_MS);
    let wall_ms = it.now.wall_ms + DAY_MS;
    it = Harness::slow(std::mem::take(&mut it.store), &settings, 2);
    it.now.wall_ms = wall_ms;
    // The topic's partition leads, and the metadata group, which knows the topic, does not yet.
    for _ in 0..5 {
        let (metadata, others) = it.queued.drain(..).partition(|op| op.replica == METADATA_REPLICA);
        it.queued = others;
        it.persist();
        it.queued.extend::<Vec<_>>(metadata);
        it.run();
    }
    it.pass_ms(10_000);
    it.is_prompt = true;
    it.run();
    it.pass_ms(10_000);
    assert_eq!(it.store.trims, []);
    assert_eq!(it.fetch("t", 0).log_start_offset, 0);
}

#[test]
fn a_clock_leap_of_days_deletes_nothing() {
    let mut it = Harness::new(&[]);
    it.create("t", &[("retention.ms", "600000"), ("segment.ms", "1000")]);
    at(&mut it, WALL_MS);
    at(&mut it, WALL_MS + 5_000);
    it.now.wall_ms += 8 * DAY_MS;
    it.pass_ms(3_600_000);
    assert!(it.store.trims.is_empty());
    let metrics = it.node.metrics();
    assert_eq!((metrics.clock_holds, metrics.is_clock_held), (1, true));
    it.now.wall_ms -= 8 * DAY_MS;
    it.pass_ms(300_000);
    assert_eq!(it.store.trims, [(it.replica("t"), 2)]);
}

#[test]
fn a_clock_that_leapt_back_makes_nothing_old() {
    let mut it = Harness::new(&[]);
    it.create("t", &[("retention.ms", "600000"), ("message.timestamp.type", "LogAppendTime")]);
    it.now.wall_ms -= 8 * DAY_MS;
    at(&mut it, WALL_MS);
    // The next process, as another node that leads next, has a clock that is right.
    it.now.wall_ms += 8 * DAY_MS;
    it.restart(&[], 2);
    it.pass_ms(330_000);
    assert!(!it.node.metrics().is_clock_held);
    assert_eq!(it.store.trims, []);
}

#[test]
fn size_retention_needs_no_clock() {
    let mut it = Harness::new(&[]);
    let configs = [("retention.bytes", "100"), ("segment.bytes", "4096")];
    it.create("t", &configs);
    let value = "x".repeat(3000);
    for _ in 0..4 {
        it.produce("t", batch(&[&value]));
    }
    it.now.wall_ms += 8 * DAY_MS;
    it.pass_ms(300_000);
    assert_eq!(it.store.trims, [(it.replica("t"), 3)]);
}

#[test]
fn a_partition_of_very_many_segments_makes_them_larger() {
    let mut it = Harness::new(&[]);
    it.create("t", &[("segment.bytes", "4096"), ("segment.ms", "1000")]);
    let value = "x".repeat(3000);
    for at in 0..50 {
        let bytes = builder(&[&value], WALL_MS + at * 5_000).build().expect("a batch");
        assert_eq!(it.produce("t", bytes).error_code, 0);
    }
    let replica = it.replica("t");
    let found = it.store.recover().into_iter().find(|found| found.replica == replica);
    let found = found.expect("it was made");
    assert_eq!((found.segments.len(), found.end_offset), (PARTITION_SEGMENTS, 50));
    // With room again, segments are as they were asked for.
    delete_records(&mut it, 30);
    at(&mut it, WALL_MS + 300_000);
    let again = it.store.recover().into_iter().find(|found| found.replica == replica);
    let last = again.expect("it is there").segments.pop().expect("it has segments");
    assert_eq!(last.base_offset, 50);
}

fn request_before(offset: i64, timeout_ms: i32) -> DeleteRecordsRequest {
    let partition = DeleteRecordsPartition { partition_index: 0, offset };
    let topic = DeleteRecordsTopic { name: "t".to_owned(), partitions: vec![partition] };
    DeleteRecordsRequest { topics: vec![topic], timeout_ms }
}

fn deleted(response: &Response) -> (i16, i64) {
    let Response::DeleteRecords(it) = response else { panic!("{response:?}") };
    let part = &it.topics[0].partitions[0];
    (part.error_code, part.low_watermark)
}

pub(super) fn delete_records(it: &mut Harness, offset: i64) -> (i16, i64) {
    deleted(&it.ask(request_before(offset, 1000), 2))
}

#[test]
fn delete_records_moves_the_start_and_survives_a_restart() {
    let mut it = Harness::new(&[]);
    it.create("t", &[]);
    it.produce("t", batch(&["a", "b", "c", "d"]));
    assert_eq!(delete_records(&mut it, 2), (0, 2));
    assert_eq!(delete_records(&mut it, 1), (0, 2), "it never goes back");
    assert_eq!(delete_records(&mut it, 9).0, ErrorCode::OffsetOutOfRange.code());
    it.restart(&[], 2);
    assert_eq!(it.fetch("t", 2).log_start_offset, 2);
    assert_eq!(delete_records(&mut it, -1), (0, 4));
    assert_eq!(it.produce("t", batch(&["e"])).base_offset, 4);
}

#[test]
fn silent_producers_are_forgotten_by_an_entry_of_the_log() {
    let mut it = Harness::new(&[("producer.id.expiration.ms", "3600000")]);
    it.create("t", &[]);
    let id = super::restart::producer_id(&mut it).producer_id;
    it.produce("t", idempotent(id, 0, 0, &["a"]));
    it.pass_ms(3_000_000);
    assert_eq!(it.node.metrics().producers, 1);
    it.pass_ms(1_800_000);
    assert_eq!(it.node.metrics().producers, 0);
    it.restart(&[], 2);
    assert_eq!(it.node.metrics().producers, 0, "a replay forgets them too");
    let replica = it.replica("t");
    it.storage(Done::WantImage { replica });
    it.restart(&[], 3);
    // As in Kafka, whoever was forgotten goes on; whoever never was here cannot have been.
    let unknown = ErrorCode::UnknownProducerId.code();
    assert_eq!(it.produce("t", idempotent(id + 1, 0, 1, &["x"])).error_code, unknown);
    let goes_on = it.produce("t", idempotent(id, 0, 1, &["b"]));
    assert_eq!((goes_on.error_code, goes_on.base_offset), (0, 1));
}

/// The offsets at which segments of `t` were begun.
fn starts(it: &Harness) -> Vec<i64> {
    let entries = it.store.replicas[&it.replica("t")].entries.iter();
    let begun = entries.filter_map(|entry| match &entry.content {
        Content::Batch(batch) => batch.starts_segment.then_some(batch.base_offset),
        Content::Internal(_) => None,
    });
    begun.collect()
}

fn bytes(it: &Harness) -> u64 {
    it.node.core.partitions[&it.replica("t")].bytes()
}

#[test]
fn a_log_that_is_trimmed_to_its_end_keeps_nothing_and_goes_on_in_a_new_segment() {
    let mut it = Harness::new(&[]);
    it.create("t", &[]);
    it.produce("t", batch(&["a", "b", "c", "d"]));
    assert!(bytes(&it) > 0);
    assert_eq!(delete_records(&mut it, -1), (0, 4));
    assert_eq!(bytes(&it), 0);
    // A node that finds the segment still there forgets it, too.
    it.restart(&[], 2);
    assert_eq!(bytes(&it), 0);
    it.produce("t", batch(&["e"]));
    it.produce("t", batch(&["f"]));
    assert_eq!(starts(&it), [0, 4]);
}

#[test]
fn what_is_appended_behind_a_trim_to_the_end_begins_a_segment_before_that_is_executed() {
    let mut it = Harness::new(&[]);
    it.create("t", &[]);
    it.produce("t", batch(&["a", "b"]));
    it.is_prompt = false;
    it.send(request_before(2, 1000), 2);
    it.send(produce_request("t", batch(&["c"]), -1), 9);
    it.send(produce_request("t", batch(&["d"]), -1), 9);
    it.is_prompt = true;
    it.persist();
    it.run();
    assert_eq!(it.fetch("t", 2).log_start_offset, 2);
    // Followers remove the file as soon as they execute the trim, before they hear of what is behind it.
    assert_eq!(starts(&it), [0, 2]);
}

#[test]
fn a_client_without_patience_hears_of_its_trim() {
    let mut it = Harness::new(&[]);
    it.create("t", &[]);
    it.produce("t", batch(&["a", "b"]));
    it.is_prompt = false;
    let id = it.send(request_before(2, 0), 2);
    it.pass_ms(100);
    assert!(it.response(id).is_none(), "the disk has not written it");
    it.persist();
    it.run();
    assert_eq!(it.response(id).map(|it| deleted(&it)), Some((0, 2)));
}

#[test]
fn a_segment_that_is_trimmed_by_half_is_left_once_so_that_the_next_trim_removes_it() {
    let mut it = Harness::new(&[]);
    it.create("t", &[]);
    for _ in 0..10 {
        it.produce("t", batch(&["a"]));
    }
    assert_eq!(delete_records(&mut it, 4), (0, 4));
    it.produce("t", batch(&["a"]));
    assert_eq!(starts(&it), [0], "most of it stays");
    assert_eq!(delete_records(&mut it, 6), (0, 6));
    for _ in 0..5 {
        it.produce("t", batch(&["a"]));
    }
    assert_eq!(starts(&it), [0, 11], "one roll a trim, not one a record");
    let before = bytes(&it);
    assert_eq!(delete_records(&mut it, 12), (0, 12));
    assert!(bytes(&it) < before / 2);
}

/// Sets a setting of `t`.
fn set(it: &mut Harness, name: &str, value: &str) -> i16 {
    let (name, value) = (name.to_owned(), Some(value.to_owned()));
    let config = AlterableConfig { name, config_operation: 0, value };
    let topic =
        AlterConfigsResource { resource_type: 2, resource_name: "t".into(), configs: vec![config] };
    let request = IncrementalAlterConfigsRequest { resources: vec![topic], validate_only: false };
    match it.ask(request, 1) {
        Response::IncrementalAlterConfigs(response) => response.responses[0].error_code,
        other => panic!("{other:?}"),
    }
}

/// Who shortens retention because the disk is full does not wait for the next sweep, minutes later.
#[test]
fn retention_that_was_lowered_counts_at_once() {
    for (name, value) in [("retention.bytes", "0"), ("retention.ms", "5000")] {
        let mut it = Harness::new(&[]);
        it.create("t", &[("retention.bytes", "1000000")]);
        at(&mut it, WALL_MS);
        it.pass_ms(10_000);
        assert_eq!(it.store.trims, []);
        assert_eq!(set(&mut it, name, value), 0);
        assert_eq!(it.store.trims, [(it.replica("t"), 1)], "{name}");
        // One that was raised looks at nothing.
        assert_eq!(set(&mut it, name, "100000000"), 0);
        assert_eq!(it.node.metrics().retention_trims, 1);
    }
    // A setting of all nodes counts for the topics that have none of their own.
    let mut it = Harness::new(&[]);
    it.create("t", &[]);
    at(&mut it, WALL_MS);
    it.pass_ms(10_000);
    let config = AlterableConfig {
        name: "log.retention.ms".to_owned(),
        config_operation: 0,
        value: Some("5000".to_owned()),
    };
    let all = AlterConfigsResource {
        resource_type: 4,
        resource_name: String::new(),
        configs: vec![config],
    };
    it.ask(IncrementalAlterConfigsRequest { resources: vec![all], validate_only: false }, 1);
    assert_eq!(it.store.trims, [(it.replica("t"), 1)]);
}

#[test]
fn settings_of_segments_that_were_lowered_count_with_the_next_batch() {
    for (name, value) in [("segment.bytes", "1048576"), ("segment.ms", "1000")] {
        let mut it = Harness::new(&[]);
        it.create("t", &[]);
        let large = "x".repeat(900 << 10);
        let sent = |it: &mut Harness, timestamp| {
            let bytes = builder(&[&large], timestamp).build().expect("a batch");
            assert_eq!(it.produce("t", bytes).error_code, 0);
        };
        sent(&mut it, WALL_MS);
        sent(&mut it, WALL_MS + 500);
        assert_eq!(starts(&it), [0]);
        assert_eq!(set(&mut it, name, value), 0);
        sent(&mut it, WALL_MS + 5000);
        assert_eq!(starts(&it), [0, 2], "{name}");
    }
}

#[test]
fn on_every_replica_a_log_that_is_trimmed_to_its_end_keeps_nothing_and_one_that_was_away_begins_anew()
 {
    let mut trio = Trio::new(&[("auto.leader.rebalance.enable", "false")]);
    trio.create("t", 1);
    let leader = trio.leader("t", 0).expect("led");
    let away = (leader + 1) % 3;
    let delete_all = |trio: &mut Trio| {
        let at = trio.leader("t", 0).expect("led");
        deleted(&trio.ask(at, request_before(-1, 10_000), 2))
    };
    let kept = |trio: &Trio, at: usize| {
        let partition = &trio.nodes[at].node.core.partitions[&trio.replica(at, "t", 0)];
        (partition.log_start(), partition.committed(), partition.bytes())
    };
    assert_eq!(trio.produce(leader, "t", batch(&["a", "b"])).error_code, 0);
    assert_eq!(delete_all(&mut trio), (0, 2));
    trio.pass_ms(1000);
    assert!((0..3).all(|at| kept(&trio, at) == (2, 2, 0)));
    trio.cut.insert(away);
    for _ in 0..3 {
        assert_eq!(trio.produce(leader, "t", batch(&["c"])).error_code, 0);
    }
    assert_eq!(delete_all(&mut trio), (0, 5));
    trio.cut.clear();
    trio.pass_ms(5000);
    assert!((0..3).all(|at| kept(&trio, at) == (5, 5, 0)));
    let leader = trio.leader("t", 0).expect("led");
    assert_eq!(trio.produce(leader, "t", batch(&["d"])).base_offset, 5);
    trio.pass_ms(1000);
    assert!((0..3).all(|at| kept(&trio, at).1 == 6));
}
