//! Snappy, raw and in the framing of the Java library, which librdkafka and others read and some write too.
//!
//! ```text
//! 0 82 'S' 'N' 'A' 'P' 'P' 'Y' 00   8 version i32   12 oldest compatible version i32
//! then, repeated: length i32, one raw snappy block of that length
//! ```

use super::{Codec, CompressionError};

pub(super) const MAGIC: [u8; 8] = [0x82, b'S', b'N', b'A', b'P', b'P', b'Y', 0];
const FRAME_HEADER_BYTES: usize = 16;
const VERSION: i32 = 1;

/// Bytes that Java clients put into one block.
const BLOCK_BYTES: usize = 32 << 10;

/// Greatest ratio of declared length to compressed length. No snappy element makes more than 64 bytes of fewer than
/// 3. So a block that declares more is corrupt, and the decompressor makes no room for it.
const RATIO_MAX: usize = 32;

const CORRUPT: CompressionError = CompressionError::Corrupt { codec: Codec::Snappy };

pub(super) fn decompress(
    input: &[u8],
    limit: usize,
    out: &mut Vec<u8>,
) -> Result<(), CompressionError> {
    if !input.starts_with(&MAGIC) {
        return block(input, limit, out);
    }
    let mut left = input.get(FRAME_HEADER_BYTES..).ok_or(CORRUPT)?;
    while !left.is_empty() {
        // Frames may follow one another; the magic cannot be the length of a block, for it would be negative.
        if let Some(header) = left.strip_prefix(&MAGIC) {
            // Java clients look at the version of any frame but the first.
            let version = header.first_chunk().ok_or(CORRUPT)?;
            if i32::from_be_bytes(*version) < VERSION {
                return Err(CORRUPT);
            }
            left = left.get(FRAME_HEADER_BYTES..).ok_or(CORRUPT)?;
            continue;
        }
        let (len, rest) = left.split_first_chunk::<4>().ok_or(CORRUPT)?;
        let len = usize::try_from(i32::from_be_bytes(*len)).map_err(|_| CORRUPT)?;
        let (compressed, rest) = rest.split_at_checked(len).ok_or(CORRUPT)?;
        // A block begins with its decompressed length, so it is never empty. The library reads no bytes as an empty
        // block; the Java library refuses them.
        if compressed.is_empty() {
            return Err(CORRUPT);
        }
        block(compressed, limit, out)?;
        left = rest;
    }
    Ok(())
}

/// Appends one raw block.
fn block(input: &[u8], limit: usize, out: &mut Vec<u8>) -> Result<(), CompressionError> {
    let len = snap::raw::decompress_len(input).map_err(|_| CORRUPT)?;
    let start = out.len();
    let end = start.checked_add(len).ok_or(CORRUPT)?;
    if end > limit {
        return Err(CompressionError::LimitExceeded { limit });
    }
    if len > input.len().saturating_mul(RATIO_MAX) {
        return Err(CORRUPT);
    }
    out.resize(end, 0);
    let written =
        snap::raw::Decoder::new().decompress(input, &mut out[start..]).map_err(|_| CORRUPT)?;
    if written == len { Ok(()) } else { Err(CORRUPT) }
}

pub(super) fn compress(input: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&VERSION.to_be_bytes());
    out.extend_from_slice(&VERSION.to_be_bytes());
    let mut encoder = snap::raw::Encoder::new();
    for chunk in input.chunks(BLOCK_BYTES) {
        let start = out.len() + 4;
        out.resize(start + snap::raw::max_compress_len(chunk.len()), 0);
        let len = encoder
            .compress(chunk, &mut out[start..])
            .expect("the room is what the library asked for");
        let prefix = i32::try_from(len).expect("a block is far shorter than 2 GiB");
        out[start - 4..start].copy_from_slice(&prefix.to_be_bytes());
        out.truncate(start + len);
    }
}
