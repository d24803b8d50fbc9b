//! The lz4 frame as Kafka reads it: one frame, whole, of independent blocks.
//!
//! The decompressor takes the end of its input for the end of the frame, and knows forms that Java clients do not.
//! Java consumers could not read such frames later. So this module walks over the frame first.
//!
//! ```text
//! magic u32 le, flags u8, block size u8, [content size u64], header checksum u8
//! then, repeated: length u32 le (top bit: stored as it is), bytes, [checksum u32]
//! then: 0 u32, [content checksum u32]
//! ```

use lz4_flex::frame::{BlockMode, BlockSize, FrameInfo};

const MAGIC: u32 = 0x184D_2204;
const STORED: u32 = 1 << 31;

/// Returns the settings of the frames that we write.
pub(super) fn frame() -> FrameInfo {
    FrameInfo::new().block_mode(BlockMode::Independent).block_size(BlockSize::Max64KB)
}

/// Tells whether `input` is exactly one complete frame in the form that Java clients read.
pub(super) fn is_whole_frame(input: &[u8]) -> bool {
    walk(input).is_some_and(<[u8]>::is_empty)
}

/// Walks over one frame and returns what follows it.
fn walk(input: &[u8]) -> Option<&[u8]> {
    let (magic, rest) = input.split_first_chunk::<4>()?;
    let [flags, _, ..] = *rest else { return None };
    let has = |bit: u8| flags & 1 << bit != 0;
    let (block_checksums, content_size, content_checksum) = (has(4), has(3), has(2));
    // Version 1 in the top bits; bit 5 says that blocks are independent.
    if u32::from_le_bytes(*magic) != MAGIC || flags >> 5 != 0b011 {
        return None;
    }
    let mut left = rest.get(if content_size { 11 } else { 3 }..)?;
    loop {
        let (length, rest) = left.split_first_chunk::<4>()?;
        let length = u32::from_le_bytes(*length);
        if length == 0 {
            return rest.get(if content_checksum { 4 } else { 0 }..);
        }
        // An empty block that is stored as it is: Java clients end there, and others go on.
        if length == STORED {
            return None;
        }
        let checksum = if block_checksums { 4 } else { 0 };
        left = rest.get((length & !STORED) as usize + checksum..)?;
    }
}
