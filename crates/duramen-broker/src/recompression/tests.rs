//! Batches in another codec, and the table of topics that want one.

use bytes::Bytes;
use duramen_protocol::batch::BatchView;
use duramen_protocol::compression::Codec;
use duramen_protocol::records::{BatchBuilder, NewRecord, Records};
use duramen_protocol::wire::Uuid;

use super::{Board, Made, Target};
use crate::checked_batch::CheckedBatch;

fn target(codec: Codec, batch_bytes_max: usize) -> Target {
    Target { compression: codec.into(), batch_bytes_max }
}

/// A batch of so many bytes of the same letter.
fn batch(codec: Codec, bytes: usize) -> Bytes {
    let mut builder = BatchBuilder::new().codec(codec).producer(7, 1, 3).transactional();
    let value = vec![b'x'; bytes];
    builder.push(&NewRecord { value: Some(&value), ..NewRecord::default() }).expect("small");
    builder.build().expect("small")
}

fn in_codec(bytes: Bytes, target: &Target) -> CheckedBatch {
    CheckedBatch::of(bytes, 0).expect("a good batch").in_codec(target).expect("a good batch")
}

#[test]
fn each_codec_becomes_each_other_and_its_own_is_left_alone() {
    for from in Codec::ALL {
        for to in Codec::ALL {
            let sent = batch(from, 1000);
            let made = in_codec(sent.clone(), &target(to, 2000));
            let view = BatchView::parse(&made.bytes.clone().freeze()).expect("a batch");
            assert!(view.crc_matches());
            assert_eq!(*view.header(), made.header, "the header is that of the new bytes");
            assert_eq!(made.header.attributes.codec(), Ok(to));
            assert!(made.header.attributes.is_transactional());
            let ids = (made.header.producer_id, made.header.producer_epoch);
            assert_eq!((ids, made.header.base_sequence), ((7, 1), 3));
            let records = Records::of(&view, 2000).expect("readable");
            let value = records.iter().next().expect("one").expect("whole").value.map(<[u8]>::len);
            assert_eq!(value, Some(1000));
            if from == to {
                assert_eq!((&made.bytes[..], made.greatest_bytes), (&sent[..], 0));
            } else {
                assert_eq!(made.greatest_bytes, sent.len().max(made.bytes.len()));
            }
        }
    }
}

#[test]
fn a_batch_that_is_too_large_in_either_codec_stays_as_it_is() {
    let sent = batch(Codec::Zstd, 1000);
    let plain = batch(Codec::None, 1000).len();
    for to in [Codec::None, Codec::Gzip] {
        let made = in_codec(batch(Codec::None, 1000), &target(to, 900));
        assert_eq!((made.bytes.len(), made.greatest_bytes), (plain, 0), "too large as it came");
    }
    let made = in_codec(sent.clone(), &target(Codec::None, plain - 1));
    assert_eq!((&made.bytes[..], made.greatest_bytes), (&sent[..], plain));
    let made = in_codec(sent, &target(Codec::None, plain));
    assert_eq!((made.bytes.len(), made.greatest_bytes), (plain, plain));
    // Noise grows by the frame of the codec.
    let mut state = 1_u64;
    let noise = std::iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        state.to_be_bytes()[0]
    });
    let noise: Vec<u8> = noise.take(2000).collect();
    let mut builder = BatchBuilder::new();
    builder.push(&NewRecord { value: Some(&noise), ..NewRecord::default() }).expect("small");
    let view = BatchView::parse(&builder.build().expect("small")).expect("a batch");
    let made = target(Codec::Snappy, view.bytes().len()).make(&view, view.payload());
    assert!(matches!(made, Ok(Made::TooLarge(bytes)) if bytes > view.bytes().len()), "{made:?}");
}

#[test]
fn the_table_tells_topics_by_name_and_id_and_comes_only_when_it_has_changed() {
    let (first, second) = (Uuid::from_u128(1), Uuid::from_u128(2));
    let mut board = Board::default();
    board.note(first, "t", None);
    assert_eq!(board.take(), None, "most topics");
    board.note(first, "t", Some(target(Codec::Gzip, 10)));
    let before = board.take().expect("it has changed");
    board.note(first, "t", Some(target(Codec::Gzip, 10)));
    assert_eq!(board.take(), None);
    // Its successor has the name before it is gone itself.
    board.note(second, "t", Some(target(Codec::Lz4, 10)));
    board.note(first, "t", None);
    let now = board.take().expect("it has changed");
    assert_eq!(now.of_name("t"), Some(&target(Codec::Lz4, 10)));
    assert_eq!((now.of_id(first), now.of_id(second)), (None, now.of_name("t")));
    assert_eq!(before.of_name("t"), Some(&target(Codec::Gzip, 10)), "a table stays as it was");
    board.keep(|id| id != second);
    assert!(board.take().expect("it has changed").is_empty());
    board.keep(|_| false);
    assert_eq!(board.take(), None);
}
