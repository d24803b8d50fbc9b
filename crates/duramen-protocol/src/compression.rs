//! # Room card: compression
//!
//! Purpose:    the codecs of record batches.
//! Owns:       [`Codec`], its levels, the bound on what decompression may produce.
//! Interface:  [`decompress`] into a buffer that can be used again, [`compress`], [`compress_at`].
//! Invariants: decompression never produces more than the stated limit and never allocates by a number in the
//!             input without that bound; no state survives a call. Java clients read all accepted input, with the same
//!             result. Decompression refuses more than Java clients where other clients would fail: bytes after the
//!             end, and wrong sums and sizes.
//! Never:      records, batches; recompression is decided in the broker (`recompression`).
//! Tests:      `compression/tests.rs`; all codecs against an independent encoder in `records/tests.rs`.
//! Start at:   [`decompress`].

use std::io::{self, Read, Write};

use flate2::read::MultiGzDecoder;
use flate2::write::GzEncoder;
use lz4_flex::frame::{FrameDecoder, FrameEncoder};

mod codec;
mod lz4;
mod snappy;
mod zstd;

pub use codec::{Codec, CompressionError};

/// Bytes read from a decompressor at a time; also the step in which the output grows.
const STEP_BYTES: usize = 16 << 10;

/// Replaces the content of `out` by the decompressed `input`, which may be at most `limit` bytes long.
///
/// The output (that is, `limit`) plus a constant of the codec bounds the memory. The constant is at most 8 MiB, for
/// an lz4 frame that declares the largest blocks.
pub fn decompress(
    codec: Codec,
    input: &[u8],
    limit: usize,
    out: &mut Vec<u8>,
) -> Result<(), CompressionError> {
    out.clear();
    match codec {
        Codec::None if input.len() > limit => Err(CompressionError::LimitExceeded { limit }),
        Codec::None => {
            out.extend_from_slice(input);
            Ok(())
        }
        Codec::Gzip => drain(codec, MultiGzDecoder::new(input), limit, out),
        Codec::Snappy => snappy::decompress(input, limit, out),
        Codec::Lz4 => decompress_lz4(input, limit, out),
        Codec::Zstd => zstd::decompress(input, limit, out),
    }
}

fn decompress_lz4(input: &[u8], limit: usize, out: &mut Vec<u8>) -> Result<(), CompressionError> {
    let codec = Codec::Lz4;
    if !lz4::is_whole_frame(input) {
        return Err(CompressionError::Corrupt { codec });
    }
    let mut frame = FrameDecoder::new(input);
    // A block of nothing looks like the end to who reads, and is not.
    while !frame.get_ref().is_empty() {
        drain(codec, &mut frame, limit, out)?;
    }
    Ok(())
}

/// Reads to the end or to the limit, in steps, so that the output grows only with what was really produced.
fn drain(
    codec: Codec,
    mut reader: impl Read,
    limit: usize,
    out: &mut Vec<u8>,
) -> Result<(), CompressionError> {
    let mut step = [0; STEP_BYTES];
    loop {
        match reader.read(&mut step) {
            Ok(0) => return Ok(()),
            Ok(n) if out.len() + n > limit => {
                return Err(CompressionError::LimitExceeded { limit });
            }
            Ok(n) => out.extend_from_slice(&step[..n]),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return Err(CompressionError::Corrupt { codec }),
        }
    }
}

/// A codec, and the effort that it takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Compression {
    /// The codec.
    pub codec: Codec,
    /// Level of gzip or zstd; `None` for the codec's default. The others have none.
    pub level: Option<i32>,
}

impl From<Codec> for Compression {
    fn from(codec: Codec) -> Self {
        Self { codec, level: None }
    }
}

/// Appends the compressed `input` to `out`.
pub fn compress(codec: Codec, input: &[u8], out: &mut Vec<u8>) {
    compress_at(codec.into(), input, out);
}

/// Does the same at a level. The codec takes the nearest level that it has.
pub fn compress_at(Compression { codec, level }: Compression, input: &[u8], out: &mut Vec<u8>) {
    const MEMORY: &str = "writing to memory does not fail";
    match codec {
        Codec::None => out.extend_from_slice(input),
        Codec::Gzip => {
            let level = level.and_then(|level| u32::try_from(level).ok());
            let level = level.map_or_else(flate2::Compression::default, |level| {
                flate2::Compression::new(level.min(9))
            });
            let mut gzip = GzEncoder::new(out, level);
            gzip.write_all(input).expect(MEMORY);
            gzip.finish().expect(MEMORY);
        }
        Codec::Snappy => snappy::compress(input, out),
        Codec::Lz4 => {
            let mut lz4 = FrameEncoder::with_frame_info(lz4::frame(), out);
            lz4.write_all(input).expect(MEMORY);
            lz4.finish().expect(MEMORY);
        }
        Codec::Zstd => {
            let level = level.unwrap_or(::zstd::DEFAULT_COMPRESSION_LEVEL);
            out.extend_from_slice(&::zstd::bulk::compress(input, level).expect(MEMORY));
        }
    }
}

#[cfg(test)]
mod tests;
