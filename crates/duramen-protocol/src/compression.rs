//! # Room card: compression
//!
//! Purpose:    the codecs of record batches.
//! Owns:       [`Codec`], the bound on what decompression may produce.
//! Interface:  [`decompress`] into a buffer that can be used again, [`compress`].
//! Invariants: decompression never produces more than the stated limit and never allocates by a number in the
//!             input without that bound; no state survives a call. Java clients read all accepted input, with the same
//!             result. Decompression refuses more than Java clients where other clients would fail: bytes after the
//!             end, and wrong sums and sizes.
//! Never:      records, batches; recompression is decided elsewhere.
//! Tests:      `compression/tests.rs`; all codecs against an independent encoder in `records/tests.rs`.
//! Start at:   [`decompress`].

use std::io::{self, Read, Write};

use flate2::read::MultiGzDecoder;
use flate2::write::GzEncoder;
use lz4_flex::frame::{FrameDecoder, FrameEncoder};

mod lz4;
mod snappy;
mod zstd;

/// A codec, by its number in the attributes of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Codec {
    /// Records as they are.
    #[default]
    None,
    /// gzip, one or more members.
    Gzip,
    /// snappy, raw or in the framing of Java clients.
    Snappy,
    /// lz4 frame format.
    Lz4,
    /// zstd frames.
    Zstd,
}

impl Codec {
    /// All codecs.
    pub const ALL: [Self; 5] = [Self::None, Self::Gzip, Self::Snappy, Self::Lz4, Self::Zstd];

    /// Returns the number in the attributes.
    pub const fn id(self) -> i16 {
        match self {
            Self::None => 0,
            Self::Gzip => 1,
            Self::Snappy => 2,
            Self::Lz4 => 3,
            Self::Zstd => 4,
        }
    }

    /// Returns the codec with this number.
    pub const fn from_id(id: i16) -> Option<Self> {
        match id {
            0 => Some(Self::None),
            1 => Some(Self::Gzip),
            2 => Some(Self::Snappy),
            3 => Some(Self::Lz4),
            4 => Some(Self::Zstd),
            _ => None,
        }
    }

    /// Returns the name in configurations.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Gzip => "gzip",
            Self::Snappy => "snappy",
            Self::Lz4 => "lz4",
            Self::Zstd => "zstd",
        }
    }

    /// Returns the codec with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|codec| codec.name() == name)
    }
}

/// Why bytes could not be decompressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CompressionError {
    /// The result would be longer than allowed.
    #[error("decompresses to more than {limit} bytes")]
    LimitExceeded {
        /// The limit.
        limit: usize,
    },
    /// The bytes are not what the codec writes.
    #[error("not valid {}", codec.name())]
    Corrupt {
        /// The codec.
        codec: Codec,
    },
    /// A zstd window that few clients read, and Java clients do not.
    #[error(
        "zstd window of {bytes} bytes; compress with a window log of at most 27, more is not read by Java clients"
    )]
    WindowTooLarge {
        /// Window that the frame declares, in bytes.
        bytes: u64,
    },
}

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

/// Appends the compressed `input` to `out`.
pub fn compress(codec: Codec, input: &[u8], out: &mut Vec<u8>) {
    const MEMORY: &str = "writing to memory does not fail";
    match codec {
        Codec::None => out.extend_from_slice(input),
        Codec::Gzip => {
            let mut gzip = GzEncoder::new(out, flate2::Compression::default());
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
            let level = ::zstd::DEFAULT_COMPRESSION_LEVEL;
            out.extend_from_slice(&::zstd::bulk::compress(input, level).expect(MEMORY));
        }
    }
}

#[cfg(test)]
mod tests;
