//! Topics with a codec of their own, as clients see them.

use bytes::Bytes;
use duramen_protocol::batch::BatchView;
use duramen_protocol::compression::Codec;
use duramen_protocol::messages::append_fast::{AppendFastPartition, AppendFastTopic, AppendedFast};
use duramen_protocol::messages::produce::{PartitionProduceData, TopicProduceData};
use duramen_protocol::messages::{AppendFastRequest, ProduceRequest};
use duramen_protocol::records::{BatchBuilder, NewRecord};
use duramen_protocol::wire::Uuid;
use duramen_protocol::{ErrorCode, Response};

use super::harness::{Harness, batch, bytes_of};
use super::settings::{BROKER, TOPIC, set};
use super::topics::delete;

fn compressed(codec: Codec, sequence: i32, bytes: usize) -> Bytes {
    let mut builder = BatchBuilder::new().codec(codec).producer(5, 0, sequence);
    let value = vec![b'x'; bytes];
    let record =
        NewRecord { timestamp: 1_700_000_000_000, value: Some(&value), ..NewRecord::default() };
    builder.push(&record).expect("small");
    builder.build().expect("small")
}

/// The batch at an offset.
fn stored(it: &mut Harness, topic: &str, offset: i64) -> BatchView {
    let view = BatchView::parse(&bytes_of(&it.fetch(topic, offset))).expect("a batch");
    assert!(view.crc_matches());
    view
}

fn codec(it: &mut Harness, topic: &str, offset: i64) -> Codec {
    stored(it, topic, offset).header().attributes.codec().expect("a codec")
}

fn id_of(it: &Harness, topic: &str) -> Uuid {
    it.node.core.controller.image.topic_named(topic).expect("made").id
}

#[test]
fn a_batch_is_stored_in_the_codec_of_its_topic() {
    let mut it = Harness::new(&[]);
    let names = ["uncompressed", "gzip", "snappy", "lz4", "zstd"];
    for (name, target) in names.into_iter().zip(Codec::ALL) {
        it.create(name, &[("compression.type", name)]);
        for (offset, sent) in (0..).zip(Codec::ALL) {
            let bytes = compressed(sent, offset, 500);
            let produced = it.produce(name, bytes.clone());
            assert_eq!((produced.error_code, produced.base_offset), (0, i64::from(offset)));
            let found = stored(&mut it, name, i64::from(offset));
            let header = *found.header();
            assert_eq!(header.attributes.codec(), Ok(target), "{sent:?} in {name}");
            assert_eq!((header.producer_id, header.base_sequence), (5, offset));
            if sent == target {
                assert_eq!(found.bytes()[16..], bytes[16..], "from the magic byte on");
            }
            // A retry is known by its sequence, not by its bytes.
            assert_eq!(it.produce(name, bytes).base_offset, i64::from(offset));
        }
    }
}

#[test]
fn the_codec_of_a_topic_changes_while_the_node_runs() {
    let mut it = Harness::new(&[]);
    it.create("t", &[]);
    it.produce("t", batch(&["a"]));
    set(&mut it, TOPIC, "t", &[("compression.type", Some("zstd"))]);
    it.produce("t", batch(&["a"]));
    set(&mut it, TOPIC, "t", &[("compression.type", None)]);
    set(&mut it, BROKER, "", &[("compression.type", Some("gzip"))]);
    it.produce("t", batch(&["a"]));
    it.create("young", &[]);
    it.produce("young", batch(&["a"]));
    set(&mut it, TOPIC, "t", &[("compression.type", Some("producer"))]);
    it.produce("t", batch(&["a"]));
    let found = [0, 1, 2, 3].map(|offset| codec(&mut it, "t", offset));
    assert_eq!(found, [Codec::None, Codec::Zstd, Codec::Gzip, Codec::None]);
    assert_eq!(codec(&mut it, "young", 0), Codec::Gzip);
    it.restart(&[], 2);
    it.produce("young", batch(&["b"]));
    assert_eq!(codec(&mut it, "young", 1), Codec::Gzip, "as before the restart");
    delete(&mut it, "young");
    it.create("young", &[("compression.type", "lz4")]);
    it.produce("young", batch(&["c"]));
    assert_eq!(codec(&mut it, "young", 0), Codec::Lz4);
}

#[test]
fn a_topic_is_found_by_its_id_too() {
    let mut it = Harness::new(&[]);
    it.create("t", &[("compression.type", "snappy")]);
    let topic_id = id_of(&it, "t");
    let part = PartitionProduceData { index: 0, records: Some(batch(&["a"])) };
    let topic = TopicProduceData { topic_id, partition_data: [part].into(), ..Default::default() };
    let topic_data = [topic].into();
    let request = ProduceRequest { acks: -1, timeout_ms: 1000, topic_data, ..Default::default() };
    it.ask(request, 13);
    assert_eq!(codec(&mut it, "t", 0), Codec::Snappy);
}

#[test]
fn the_bound_of_a_batch_counts_as_it_came_and_as_it_is_stored() {
    let mut it = Harness::new(&[]);
    it.create("plain", &[("compression.type", "uncompressed"), ("max.message.bytes", "1000")]);
    it.create("gzip", &[("compression.type", "gzip"), ("max.message.bytes", "1000")]);
    let too_large = ErrorCode::MessageTooLarge.code();
    let grows = it.produce("plain", compressed(Codec::Zstd, 0, 5000));
    assert_eq!(grows.error_code, too_large, "it would be larger than it came");
    assert!(grows.error_message.is_some_and(|text| text.contains("max.message.bytes=1000")));
    assert_eq!(it.produce("gzip", compressed(Codec::None, 0, 5000)).error_code, too_large);
    assert_eq!(it.produce("gzip", compressed(Codec::Zstd, 0, 5000)).error_code, 0);
    assert_eq!(it.produce("plain", compressed(Codec::Zstd, 0, 800)).error_code, 0);
    assert_eq!(it.fetch("plain", 0).high_watermark, 1);
}

#[test]
fn members_hold_no_batch_of_a_topic_with_a_codec_and_its_leader_stores_it_in_that() {
    let mut it = Harness::new(&[]);
    it.create("t", &[("fast.append.enable", "true"), ("compression.type", "lz4")]);
    let topic_id = id_of(&it, "t");
    let append = |it: &mut Harness, wait: i8| -> AppendedFast {
        let records = Some(compressed(Codec::Gzip, 0, 500));
        let (stretch_term, stretch_index) = (1, 1);
        let part =
            AppendFastPartition { stretch_term, stretch_index, records, ..Default::default() };
        let topics = [AppendFastTopic { topic_id, partitions: [part].into() }].into();
        match it.ask(AppendFastRequest { wait, timeout_ms: 5000, topics }, 0) {
            Response::AppendFast(mut response) => response.topics.remove(0).partitions.remove(0),
            other => panic!("{other:?}"),
        }
    };
    let fast = append(&mut it, 0);
    assert_eq!((fast.outcome, fast.error_code), (0, 0), "not now");
    let sure = append(&mut it, 1);
    assert_eq!((sure.outcome, sure.error_code, sure.base_offset), (3, 0, 0));
    assert_eq!(codec(&mut it, "t", 0), Codec::Lz4);
}
