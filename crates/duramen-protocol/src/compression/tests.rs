//! Codecs against themselves, against hostile input, and against the limit.

use std::io::Write;

use proptest::prelude::*;

use super::{Codec, CompressionError, compress, decompress};

const MEBIBYTE: usize = 1 << 20;

fn squeeze(codec: Codec, input: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    compress(codec, input, &mut out);
    out
}

fn expand(codec: Codec, input: &[u8], limit: usize) -> Result<Vec<u8>, CompressionError> {
    let mut out = vec![1, 2, 3];
    decompress(codec, input, limit, &mut out).map(|()| out)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_codec_gives_back_what_it_got(
        unit in prop::collection::vec(any::<u8>(), 1..200),
        times in 1usize..2000,
    ) {
        let input = unit.repeat(times);
        for codec in Codec::ALL {
            let squeezed = squeeze(codec, &input);
            prop_assert_eq!(&expand(codec, &squeezed, input.len()).expect("within the limit"), &input);
            let over = expand(codec, &squeezed, input.len() - 1);
            let limit = input.len() - 1;
            prop_assert_eq!(over, Err(CompressionError::LimitExceeded { limit }));
        }
    }

    #[test]
    fn no_bytes_make_a_codec_panic_or_exceed_its_limit(
        noise in prop::collection::vec(any::<u8>(), 0..300),
        place in any::<prop::sample::Index>(),
        byte in any::<u8>(),
    ) {
        for codec in Codec::ALL {
            let mut broken = squeeze(codec, &noise);
            if !broken.is_empty() {
                let place = place.index(broken.len());
                broken[place] ^= byte;
            }
            for input in [&broken, &noise] {
                if let Ok(out) = expand(codec, input, 1000) {
                    prop_assert!(out.len() <= 1000);
                }
            }
        }
    }
}

#[test]
fn a_bomb_stops_at_the_limit_and_leaves_little_behind() {
    let zeros = vec![0; 64 * MEBIBYTE];
    for codec in [Codec::Gzip, Codec::Snappy, Codec::Lz4, Codec::Zstd] {
        let bomb = squeeze(codec, &zeros);
        let mut out = Vec::new();
        let limit = MEBIBYTE;
        let result = decompress(codec, &bomb, limit, &mut out);
        assert_eq!(result, Err(CompressionError::LimitExceeded { limit }), "{codec:?}");
        assert!(out.capacity() <= 2 * limit, "{codec:?} left {}", out.capacity());
    }
}

#[test]
fn zstd_frames_that_do_not_declare_their_size_are_read_and_bounded() {
    let input = b"0123456789".repeat(100_000);
    let mut stream = zstd::stream::write::Encoder::new(Vec::new(), 19).expect("memory");
    stream.write_all(&input).expect("memory");
    let frame = stream.finish().expect("memory");
    let declared = zstd::zstd_safe::get_frame_content_size(&frame);
    assert!(matches!(declared, Ok(None)), "else this tests nothing");
    assert_eq!(expand(Codec::Zstd, &frame, input.len()).expect("fits"), input);
    let limit = input.len() - 1;
    let over = expand(Codec::Zstd, &frame, limit);
    assert_eq!(over, Err(CompressionError::LimitExceeded { limit }));
}

#[test]
fn snappy_is_read_raw_and_framed_and_in_frames_that_follow_one_another() {
    let input = b"to be or not to be ".repeat(5000);
    let raw = snap::raw::Encoder::new().compress_vec(&input).expect("memory");
    assert_eq!(expand(Codec::Snappy, &raw, input.len()).expect("raw"), input);
    let framed = squeeze(Codec::Snappy, &input);
    assert!(framed.starts_with(b"\x82SNAPPY\0\0\0\0\x01\0\0\0\x01"));
    assert_eq!(expand(Codec::Snappy, &framed, input.len()).expect("framed"), input);
    let twice = [&framed[..], &framed[..]].concat();
    let expanded = expand(Codec::Snappy, &twice, 2 * input.len()).expect("two frames");
    assert_eq!(expanded, input.repeat(2));
}

#[test]
fn a_snappy_block_that_declares_an_impossible_length_is_refused_before_room_is_made() {
    // Twelve bytes that claim 64 MiB.
    let claim = [0x80, 0x80, 0x80, 0x20, 0, 0, 0, 0, 0, 0, 0, 0];
    let mut out = Vec::new();
    let result = decompress(Codec::Snappy, &claim, 128 * MEBIBYTE, &mut out);
    assert_eq!(result, Err(CompressionError::Corrupt { codec: Codec::Snappy }));
    assert_eq!(out.capacity(), 0);
}

#[test]
fn gzip_members_may_follow_one_another() {
    let twice = [squeeze(Codec::Gzip, b"ab"), squeeze(Codec::Gzip, b"cd")].concat();
    assert_eq!(expand(Codec::Gzip, &twice, 4).expect("two members"), b"abcd");
}

#[test]
fn truncated_input_is_corrupt_for_every_codec() {
    let input: Vec<u8> =
        (0..10_000u32).flat_map(|n| n.wrapping_mul(2_654_435_761).to_be_bytes()).collect();
    for codec in [Codec::Gzip, Codec::Snappy, Codec::Lz4, Codec::Zstd] {
        let squeezed = squeeze(codec, &input);
        for cut in (0..8).map(|n| squeezed.len() * n / 8).chain([squeezed.len() - 1]) {
            let result = expand(codec, &squeezed[..cut], MEBIBYTE).map(|_| ());
            let empty_gzip = codec == Codec::Gzip && cut == 0;
            let expected = Err(CompressionError::Corrupt { codec });
            assert!(result == expected || empty_gzip, "{codec:?} cut at {cut}: {result:?}");
        }
    }
}

#[test]
fn lz4_frames_that_java_clients_cannot_read_are_corrupt() {
    let input = b"to be or not to be ".repeat(9000);
    let write = |frame: lz4_flex::frame::FrameInfo| {
        let mut lz4 = lz4_flex::frame::FrameEncoder::with_frame_info(frame, Vec::new());
        lz4.write_all(&input).expect("memory");
        lz4.finish().expect("memory")
    };
    let checked = super::lz4::frame().content_checksum(true).block_checksums(true);
    assert!(expand(Codec::Lz4, &write(checked), input.len()).is_ok_and(|out| out == input));
    let linked = super::lz4::frame().block_mode(lz4_flex::frame::BlockMode::Linked);
    assert!(expand(Codec::Lz4, &write(linked), input.len()).is_err());
    let trailing = [squeeze(Codec::Lz4, &input), vec![0]].concat();
    assert!(expand(Codec::Lz4, &trailing, input.len()).is_err());
}

#[test]
fn codecs_have_kafkas_numbers_and_names() {
    for (id, name) in (0..).zip(["none", "gzip", "snappy", "lz4", "zstd"]) {
        let codec = Codec::from_id(id).expect("five codecs");
        assert_eq!((codec.id(), codec.name()), (id, name));
        assert_eq!(Codec::from_name(name), Some(codec));
    }
    assert_eq!((Codec::from_id(5), Codec::from_name("brotli")), (None, None));
}
