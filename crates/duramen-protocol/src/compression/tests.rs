//! Codecs against themselves, against hostile input, and against the limit.

use std::io::Write;

use proptest::prelude::*;

use super::{Codec, Compression, CompressionError, compress, compress_at, decompress};

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

/// A frame of one block that is stored as it is, with the first bytes of its header: 64 KiB a block at most.
fn lz4_frame(flags_size_checksum: [u8; 3], content: &[&[u8]]) -> Vec<u8> {
    [&[4, 0x22, 0x4D, 0x18], &flags_size_checksum[..], &content.concat()].concat()
}

#[test]
fn lz4_frames_go_on_after_empty_blocks_as_they_do_for_java_clients() {
    const PLAIN: [u8; 3] = [0x60, 0x40, 0x82];
    let stored = [2, 0, 0, 0x80, b'a', b'b'];
    let [end, stored_nothing] = [[0; 4], [0, 0, 0, 0x80]];
    let nothing = [1, 0, 0, 0, 0];
    let read = |blocks: &[&[u8]]| expand(Codec::Lz4, &lz4_frame(PLAIN, blocks), 8);
    assert_eq!(read(&[&stored, &stored, &end]).expect("two blocks"), b"abab");
    assert_eq!(read(&[&stored, &nothing, &stored, &end]).expect("one of nothing"), b"abab");
    // To Java clients this is the end, to others it is not.
    let corrupt = Err(CompressionError::Corrupt { codec: Codec::Lz4 });
    assert_eq!(read(&[&stored, &stored_nothing, &stored, &end]), corrupt);
    assert_eq!(read(&[&stored, &stored_nothing]), corrupt);
}

/// A frame of one block as it is; `header` is what stands between magic and block.
fn zstd_frame(header: &[u8], content: &[u8]) -> Vec<u8> {
    let length = u32::try_from(content.len()).expect("short") << 3 | 1;
    [&[0x28, 0xB5, 0x2F, 0xFD], header, &length.to_le_bytes()[..3], content].concat()
}

#[test]
fn zstd_windows_that_java_clients_do_not_read_are_refused_in_any_frame() {
    let of_window = |log: u8, eighths: u8| zstd_frame(&[0, (log - 10) << 3 | eighths], b"ab");
    let read = |input: &[u8]| expand(Codec::Zstd, input, MEBIBYTE);
    for log in [10, 20, 27] {
        assert_eq!(read(&of_window(log, 0)).expect("not too far"), b"ab", "2^{log}");
    }
    let too_large = |bytes| Err(CompressionError::WindowTooLarge { bytes });
    assert_eq!(read(&of_window(27, 1)), too_large((1 << 27) + (1 << 24)));
    assert_eq!(read(&of_window(28, 0)), too_large(1 << 28));
    assert_eq!(read(&of_window(31, 0)), too_large(1 << 31));
    assert!(read(&of_window(41, 7)).is_err(), "too large for the library as well");
    let skippable = [0x50, 0x2A, 0x4D, 0x18, 1, 0, 0, 0, 7];
    let good = of_window(20, 0);
    assert_eq!(read(&[&skippable[..], &good, &skippable, &good].concat()).expect("four"), b"abab");
    for before in [&good[..], &skippable] {
        assert_eq!(read(&[before, &of_window(28, 0)].concat()), too_large(1 << 28));
    }
}

#[test]
fn a_zstd_frame_of_a_single_segment_is_its_own_window() {
    // The frame declares its size, and repeats one byte that often; a block holds at most 128 KiB.
    let of_single_segment = |bytes: u32| {
        let mut frame = [&[0x28, 0xB5, 0x2F, 0xFD, 0xA0][..], &bytes.to_le_bytes()].concat();
        let blocks = bytes.div_ceil(128 << 10);
        for n in 1..=blocks {
            let length = if n < blocks { 128 << 10 } else { bytes - ((blocks - 1) << 17) };
            let header = length << 3 | 1 << 1 | u32::from(n == blocks);
            frame.extend_from_slice(&header.to_le_bytes()[..3]);
            frame.push(b'x');
        }
        frame
    };
    let largest = (1 << 27) + 1;
    let read = |bytes| expand(Codec::Zstd, &of_single_segment(bytes), 256 * MEBIBYTE);
    assert!(read(largest).is_ok_and(|out| out.len() == largest as usize));
    let bytes = u64::from(largest) + 1;
    assert_eq!(read(largest + 1), Err(CompressionError::WindowTooLarge { bytes }));
}

#[test]
fn snappy_frames_that_java_clients_cannot_read_are_corrupt() {
    let header =
        |version: u8| [&super::snappy::MAGIC[..], &[0, 0, 0, version, 0, 0, 0, 1]].concat();
    let block = [0, 0, 0, 4, 2, 4, b'a', b'b'];
    let empty = [0, 0, 0, 1, 0];
    let read = |parts: &[&[u8]]| expand(Codec::Snappy, &parts.concat(), 8);
    let (good, old) = (&header(1)[..], &header(0)[..]);
    assert_eq!(read(&[good, &block, good, &block]).expect("two frames"), b"abab");
    assert_eq!(read(&[good, &empty, &block, good]).expect("nothing"), b"ab");
    assert_eq!(read(&[old, &block]).expect("the first frame may say anything"), b"ab");
    let corrupt = Err(CompressionError::Corrupt { codec: Codec::Snappy });
    assert_eq!(read(&[good, &block, old, &block]), corrupt);
    // A block has a length at least.
    assert_eq!(read(&[good, &[0; 4], &block]), corrupt);
    assert_eq!(read(&[good, &block, &[0; 4]]), corrupt);
}

/// Java clients read this, and others would not: librdkafka, or what Go and Python bring. Nobody sends it on purpose.
#[test]
fn what_only_some_clients_read_is_corrupt() {
    let gzip = squeeze(Codec::Gzip, b"ab");
    let snappy = squeeze(Codec::Snappy, b"ab");
    let lz4 = squeeze(Codec::Lz4, b"ab");
    let zstd = squeeze(Codec::Zstd, b"ab");
    let stored: &[u8] = &[2, 0, 0, 0x80, b'a', b'b', 0, 0, 0, 0];
    let content_checksum = [0x64, 0x40, 0xA7];
    let cases = [
        ("bytes after a member", Codec::Gzip, [&gzip[..], b"tail"].concat()),
        ("zeroes after a member", Codec::Gzip, [&gzip[..], &[0; 40]].concat()),
        ("a member that is cut short", Codec::Gzip, [&gzip[..], &gzip[..5]].concat()),
        ("too few bytes for a block", Codec::Snappy, [&snappy[..], b"abc"].concat()),
        ("bytes after a frame", Codec::Lz4, [&lz4[..], b"tail"].concat()),
        ("a second frame", Codec::Lz4, [&lz4[..], &lz4].concat()),
        ("a wrong sum", Codec::Lz4, lz4_frame(content_checksum, &[stored, b"sums"])),
        ("a frame that is cut short", Codec::Zstd, [&zstd[..], &zstd[..zstd.len() - 1]].concat()),
    ];
    for (what, codec, input) in cases {
        let result = expand(codec, &input, 100);
        assert_eq!(result, Err(CompressionError::Corrupt { codec }), "{codec:?}: {what}");
    }
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

#[test]
fn a_higher_level_makes_fewer_bytes_and_the_default_one_the_same() {
    let input: Vec<u8> = (0..60_000_u32).flat_map(|it| (it * it % 7919).to_le_bytes()).collect();
    let at = |codec: Codec, level: Option<i32>| {
        let mut out = Vec::new();
        compress_at(Compression { codec, level }, &input, &mut out);
        assert_eq!(expand(codec, &out, input.len()).as_ref(), Ok(&input), "{codec:?} {level:?}");
        out
    };
    for (codec, least, usual, most) in [(Codec::Gzip, 1, 6, 9), (Codec::Zstd, -131_072, 3, 22)] {
        let [worst, default, best] = [least, usual, most].map(|level| at(codec, Some(level)));
        assert!(worst.len() > default.len() && default.len() >= best.len(), "{codec:?}");
        assert_eq!(default, at(codec, None), "{codec:?}");
        assert_eq!(default, squeeze(codec, &input), "{codec:?}");
    }
    for codec in [Codec::None, Codec::Snappy, Codec::Lz4] {
        assert_eq!(at(codec, Some(1)), at(codec, None), "{codec:?} has no levels");
    }
}
