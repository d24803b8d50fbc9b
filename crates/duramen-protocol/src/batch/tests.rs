//! Headers, checksums, and the walk over batches.

use bytes::{Bytes, BytesMut};
use proptest::prelude::*;

use super::{
    Attributes, BatchError, BatchHeader, BatchView, CHECKSUMMED_FROM, HEADER_BYTES, TimestampType,
    batches, restamp, restamp_log_append_time, set_base_offset, set_partition_leader_epoch,
};
use crate::compression::Codec;
use crate::records::{BatchBuilder, NewRecord};

fn batch_of(values: &[&[u8]]) -> BytesMut {
    let mut builder = BatchBuilder::new().producer(7, 1, 5);
    for (timestamp, value) in (100..).zip(values) {
        let record = NewRecord { timestamp, value: Some(value), ..NewRecord::default() };
        builder.push(&record).expect("small");
    }
    builder.build_mut().expect("small")
}

fn view(bytes: &[u8]) -> BatchView {
    BatchView::parse(&Bytes::copy_from_slice(bytes)).expect("a whole batch")
}

proptest! {
    #[test]
    fn any_header_survives_a_round_trip(
        offsets in any::<(i64, i32, i32)>(),
        times in any::<(i64, i64)>(),
        producer in any::<(i64, i16, i32)>(),
        rest in any::<(u32, i16, i32)>(),
        batch_length in 49i32..,
    ) {
        let header = BatchHeader {
            base_offset: offsets.0,
            batch_length,
            partition_leader_epoch: offsets.1,
            crc: rest.0,
            attributes: Attributes(rest.1),
            last_offset_delta: offsets.2,
            base_timestamp: times.0,
            max_timestamp: times.1,
            producer_id: producer.0,
            producer_epoch: producer.1,
            base_sequence: producer.2,
            record_count: rest.2,
        };
        prop_assert_eq!(BatchHeader::parse(&header.to_bytes()), Ok(header));
    }

    #[test]
    fn restamping_gives_the_checksum_that_reading_everything_gives(
        values in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 1..20),
        time in any::<i64>(),
        append in any::<bool>(),
    ) {
        let values: Vec<&[u8]> = values.iter().map(Vec::as_slice).collect();
        let mut batch = batch_of(&values);
        let kind = if append { TimestampType::LogAppendTime } else { TimestampType::CreateTime };
        restamp(&mut batch, kind, time);
        let view = view(&batch);
        prop_assert_eq!(view.header().crc, crc32c::crc32c(&batch[CHECKSUMMED_FROM..]));
        prop_assert_eq!(view.header().max_timestamp, time);
        prop_assert_eq!(view.header().attributes.timestamp_type(), kind);
    }

    #[test]
    fn no_bytes_make_the_walk_panic_or_repeat_itself(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let bytes = Bytes::from(bytes);
        let walked: usize = batches(bytes.clone()).flatten().map(|b| b.bytes().len()).sum();
        prop_assert!(walked <= bytes.len());
    }
}

#[test]
fn restamping_the_header_alone_equals_restamping_the_batch() {
    let mut whole = batch_of(&[b"one", b"two"]);
    let mut header = whole[..HEADER_BYTES].to_vec();
    restamp_log_append_time(&mut whole, 123_456);
    restamp_log_append_time(&mut header, 123_456);
    assert_eq!(header, &whole[..HEADER_BYTES]);
    assert!(view(&whole).crc_matches());
}

#[test]
fn a_batch_that_compaction_emptied_can_be_restamped() {
    // Found by fuzzing: the combination of checksums has a special case for nothing to carry over.
    let mut batch = batch_of(&[]);
    assert_eq!(batch.len(), HEADER_BYTES);
    restamp_log_append_time(&mut batch, 123_456);
    assert!(view(&batch).crc_matches());
}

#[test]
fn restamping_a_broken_batch_does_not_mend_it() {
    let mut batch = batch_of(&[b"one", b"two"]);
    let last = batch.len() - 1;
    batch[last] ^= 1;
    assert!(!view(&batch).crc_matches());
    restamp_log_append_time(&mut batch, 123_456);
    assert!(!view(&batch).crc_matches());
}

#[test]
fn base_offset_and_leader_epoch_lie_outside_the_checksum() {
    let mut batch = batch_of(&[b"one", b"two"]);
    set_base_offset(&mut batch, 41);
    set_partition_leader_epoch(&mut batch, 9);
    let view = view(&batch);
    assert!(view.crc_matches());
    assert_eq!((view.header().base_offset, view.header().partition_leader_epoch), (41, 9));
    assert_eq!((view.header().last_offset(), view.header().end_offset()), (42, 43));
}

#[test]
fn a_flipped_bit_anywhere_in_the_checksummed_part_is_noticed() {
    let batch = batch_of(&[b"some value"]);
    for at in CHECKSUMMED_FROM..batch.len() {
        let mut broken = batch.clone();
        broken[at] ^= 0x10;
        assert!(!view(&broken).crc_matches(), "byte {at}");
    }
}

#[test]
fn batches_are_walked_over_in_place_up_to_an_incomplete_one() {
    let (first, second) = (batch_of(&[b"a"]).freeze(), batch_of(&[b"b", b"c"]).freeze());
    let cut = &second[..second.len() - 1];
    let buffer = Bytes::from([&first[..], &second[..], cut].concat());
    let walked: Vec<_> = batches(buffer.clone()).collect();
    assert_eq!(walked.len(), 3);
    let (one, two) = (walked[0].as_ref().expect("whole"), walked[1].as_ref().expect("whole"));
    assert_eq!((one.bytes(), two.bytes()), (&first, &second));
    assert_eq!(one.bytes().as_ptr(), buffer.as_ptr(), "a view is a slice, not a copy");
    let incomplete = BatchError::Incomplete { needed: second.len(), available: cut.len() };
    assert_eq!(walked[2], Err(incomplete));
}

#[test]
fn impossible_lengths_and_other_formats_are_told_apart() {
    let good = batch_of(&[b"a"]);
    let parse = |change: &dyn Fn(&mut BytesMut)| {
        let mut bytes = good.clone();
        change(&mut bytes);
        BatchHeader::parse(&bytes)
    };
    for length in [i32::MIN, -1, 0, 48] {
        let parsed = parse(&|b| b[8..12].copy_from_slice(&length.to_be_bytes()));
        assert_eq!(parsed, Err(BatchError::Length(length)));
    }
    assert!(parse(&|b| b[8..12].copy_from_slice(&49i32.to_be_bytes())).is_ok());
    for magic in [0u8, 1, 3, 0x80] {
        let parsed = parse(&|b| b[16] = magic);
        assert_eq!(parsed, Err(BatchError::Magic(magic.cast_signed())));
    }
    let short = BatchHeader::parse(&good[..HEADER_BYTES - 1]);
    assert_eq!(short, Err(BatchError::Incomplete { needed: HEADER_BYTES, available: 60 }));
}

#[test]
fn attributes_name_their_bits() {
    let plain = Attributes::default();
    assert_eq!(plain.with_codec(Codec::Zstd).0, 4);
    assert_eq!(plain.with_timestamp_type(TimestampType::LogAppendTime).0, 8);
    assert_eq!(plain.with_transactional(true).0, 16);
    assert_eq!(plain.with_control(true).0, 32);
    assert!(Attributes(64).has_delete_horizon());
    assert_eq!(Attributes(0x7ff8 | 5).codec(), Err(5));
    assert_eq!(Attributes(0x7f).with_control(false).0, 0x5f);
}

#[test]
fn sequences_wrap_to_zero() {
    let mut header = *view(&batch_of(&[b"a", b"b", b"c"])).header();
    assert_eq!(header.last_sequence(), 7);
    header.base_sequence = i32::MAX - 1;
    assert_eq!(header.last_sequence(), 0);
    header.base_sequence = -1;
    assert_eq!(header.last_sequence(), -1);
}
