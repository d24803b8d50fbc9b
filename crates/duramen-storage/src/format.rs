//! # Room card: format
//!
//! Purpose:    every constant of `docs/format.md`, and the reading of bytes that may be damaged.
//! Owns:       magic numbers, versions, sizes and names of files.
//! Interface:  the constants and functions.
//! Invariants: all integers are big-endian. This room checks a length from the disk before it uses it.
//! Never:      I/O.
//! Tests:      those of its users.
//! Start at:   [`ROUND_MAGIC`].

use bytes::{Buf, Bytes, TryGetError};

use crate::ReplicaId;

/// Begins every journal round: "DJR" and the version of the round format.
pub(crate) const ROUND_MAGIC: u32 = u32::from_be_bytes(*b"DJR1");
/// Size of a round's header.
pub(crate) const ROUND_HEADER_BYTES: usize = 64;
/// Rounds start at multiples of this, and are padded to it: whole pages are overwritten, so that
/// no write has to read first.
pub(crate) const ROUND_ALIGN: usize = 4096;
/// Directory of the journal's extents.
pub(crate) const JOURNAL_DIR: &str = "journal";
/// Names a round that was durable, in two slots.
pub(crate) const JOURNAL_MARK: &str = "journal/mark";
/// Begins a slot of the mark: "DJM" and the version of its format.
pub(crate) const MARK_MAGIC: u32 = u32::from_be_bytes(*b"DJM1");
/// Directory of what a start found and did not take: nothing in it is ever removed unasked.
pub const SET_ASIDE: &str = "set-aside";
/// Node-local facts: a directory that has it is a node's.
pub const MANIFEST: &str = "manifest";
/// Space given up when the disk is full.
pub(crate) const RESERVE: &str = "reserve";
/// Ends the name of a directory that is being removed.
pub(crate) const DELETED: &str = "-deleted";
/// Version of the data directory as a whole.
pub(crate) const DIRECTORY_VERSION: u32 = 1;
/// Size of an `.index` entry: relative offset and position, both 32 bits, as Kafka's.
pub(crate) const INDEX_ENTRY_BYTES: usize = 8;
/// Size of a `.timeindex` entry: timestamp of 64 bits and relative offset of 32, as Kafka's.
pub(crate) const TIME_ENTRY_BYTES: usize = 12;

const _: () = assert!(ROUND_HEADER_BYTES < ROUND_ALIGN && ROUND_ALIGN.is_power_of_two());

/// Flag in the generation of a segment that another replica fed; the rest names the Compact entry. This replica's own
/// compaction by the same entry gives its files other names.
pub(crate) const GIVEN: u64 = 1 << 62;

/// Returns the name of a segment's files without extension: the base offset in 20 digits, as Kafka's. Behind it a
/// compacted segment names its replica and its Compact entry, so that no two files ever have the same name.
pub(crate) fn segment_stem(base_offset: i64, replica: ReplicaId, generation: u64) -> String {
    if generation == 0 {
        return format!("{base_offset:020}");
    }
    if generation & GIVEN != 0 {
        return format!("{base_offset:020}.{:x}-{}-given", replica.0, generation & !GIVEN);
    }
    format!("{base_offset:020}.{:x}-{generation}", replica.0)
}

/// Bytes that cannot be read as what they should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Malformed(pub(crate) &'static str);

impl From<TryGetError> for Malformed {
    fn from(_: TryGetError) -> Self {
        Self("it ends too early")
    }
}

/// Reads `len` bytes as a slice of `from`, without copying.
pub(crate) fn take(from: &mut Bytes, len: usize) -> Result<Bytes, Malformed> {
    if from.len() < len {
        return Err(Malformed("it ends too early"));
    }
    Ok(from.split_to(len))
}

/// Reads a count of elements of at least `element_bytes` each; never more than can be there.
pub(crate) fn count(from: &mut Bytes, element_bytes: usize) -> Result<usize, Malformed> {
    let count = from.try_get_u32()? as usize;
    if count > from.len() / element_bytes {
        return Err(Malformed("a count exceeds what follows"));
    }
    Ok(count)
}
