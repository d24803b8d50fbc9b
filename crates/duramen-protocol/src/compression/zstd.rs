//! zstd frames as Kafka reads them: one or more, skippable ones among them, none with a window above 128 MiB.
//!
//! ```text
//! magic u32 le, descriptor u8, unless it is of a single segment: window u8, …
//! ```

use zstd::zstd_safe;

use super::{Codec, CompressionError};

const MAGIC: [u8; 4] = 0xFD2F_B528_u32.to_le_bytes();
const SINGLE_SEGMENT: u8 = 1 << 5;

/// Largest window, in bytes, that a stream of the library accepts by default. Decompression in one call has no such
/// bound, so this module checks it. A single segment may have one byte more.
const WINDOW_BYTES_MAX: u64 = (1 << 27) + 1;

/// Room in the first buffer beside 16 times the input, in bytes.
const SPARE_BYTES: usize = 16 << 10;

const CORRUPT: CompressionError = CompressionError::Corrupt { codec: Codec::Zstd };

/// Decompresses in one call, into a buffer that grows by doubling. A stream would first allocate the window that the
/// frame declares: up to 128 MiB for a frame of a dozen bytes.
pub(super) fn decompress(
    input: &[u8],
    limit: usize,
    out: &mut Vec<u8>,
) -> Result<(), CompressionError> {
    check_windows(input)?;
    let declared = zstd_safe::get_frame_content_size(input).map_err(|_| CORRUPT)?;
    let declared = declared.map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
    if declared.is_some_and(|bytes| bytes > limit) {
        return Err(CompressionError::LimitExceeded { limit });
    }
    // The declared size is believed only as far as the input makes it likely.
    let likely = input.len().saturating_mul(16).saturating_add(SPARE_BYTES);
    let mut room = declared.unwrap_or(likely).clamp(1, likely).min(limit.max(1));
    let mut context = zstd_safe::DCtx::create();
    loop {
        out.clear();
        out.reserve_exact(room);
        match context.decompress(out, input) {
            Ok(_) if out.len() > limit => return Err(CompressionError::LimitExceeded { limit }),
            Ok(_) => return Ok(()),
            Err(code) if !is_too_small(code) => return Err(CORRUPT),
            // A buffer used again may have more room than was asked for.
            Err(_) if out.capacity() >= limit => {
                return Err(CompressionError::LimitExceeded { limit });
            }
            Err(_) => room = out.capacity().saturating_mul(2).min(limit),
        }
    }
}

/// Refuses frames whose window a stream would refuse. Decompression in one call accepts them, because it looks back
/// into its output at any distance.
fn check_windows(input: &[u8]) -> Result<(), CompressionError> {
    let mut left = input;
    while !left.is_empty() {
        let bytes = zstd_safe::find_frame_compressed_size(left).map_err(|_| CORRUPT)?;
        let (frame, rest) = left.split_at_checked(bytes).ok_or(CORRUPT)?;
        let window = window(frame)?;
        if window > WINDOW_BYTES_MAX {
            return Err(CompressionError::WindowTooLarge { bytes: window });
        }
        left = rest;
    }
    Ok(())
}

/// Returns the window of a frame, in bytes.
fn window(frame: &[u8]) -> Result<u64, CompressionError> {
    match *frame.strip_prefix(&MAGIC).unwrap_or_default() {
        // A single segment: the window is the whole content, whose size the header declares.
        [descriptor, ..] if descriptor & SINGLE_SEGMENT != 0 => {
            Ok(zstd_safe::get_frame_content_size(frame).map_err(|_| CORRUPT)?.ok_or(CORRUPT)?)
        }
        [_, window, ..] => {
            let base = 1_u64 << (10 + (window >> 3));
            Ok(base + base / 8 * u64::from(window & 7))
        }
        // A skippable one.
        _ => Ok(0),
    }
}

/// Tells whether the output buffer was too small. The library names its errors by text only.
fn is_too_small(code: usize) -> bool {
    zstd_safe::get_error_name(code) == "Destination buffer is too small"
}
