//! # Room card: format
//!
//! Purpose:    every constant of `docs/format.md`, and the reading of bytes that may be damaged.
//! Owns:       magic numbers, versions, sizes and names of files.
//! Interface:  the constants and functions.
//! Invariants: all integers are big-endian. This room checks a length from the disk before it uses it.
//! Never:      I/O.
//! Tests:      below, and those of its users.
//! Start at:   [`ROUND_MAGIC`].

use bytes::{Buf, Bytes, TryGetError};
use siphasher::sip::SipHasher24;

use crate::ReplicaId;
use crate::sabotage::{self, Bug};

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

/// Begins a table of the queue index: "DQK" and the version of its layout.
pub(crate) const TABLE_MAGIC: u32 = u32::from_be_bytes(*b"DQK1");
/// Begins the footer of a table of the queue index.
pub(crate) const TABLE_FOOTER_MAGIC: u32 = u32::from_be_bytes(*b"DQKF");
/// Version of a table of the queue index.
pub(crate) const TABLE_VERSION: u16 = 5;
/// Size of a table's header, and of its footer.
pub(crate) const TABLE_EDGE_BYTES: usize = 72;

const _: () = assert!(ROUND_HEADER_BYTES < ROUND_ALIGN && ROUND_ALIGN.is_power_of_two());

/// Flag in the generation of a segment that another replica fed; the rest names the Compact entry. This replica's own
/// compaction by the same entry gives its files other names.
pub(crate) const GIVEN: u64 = 1 << 62;

/// Most bytes of a name, as file systems have it.
const NAME_BYTES_MAX: usize = 255;
/// Most bytes of a directory's name in a longer name, which says what became of the directory.
const STEM_BYTES_MAX: usize = 190;
/// Most bytes that follow it: a topic's id, a replica's id, a word.
const SUFFIX_BYTES_MAX: usize = 65;
const _: () = assert!(STEM_BYTES_MAX + SUFFIX_BYTES_MAX <= NAME_BYTES_MAX);
/// Stands before the hash in a shortened name. No topic's name has it.
const SHORTENED: char = '~';

/// Returns the name of a replica's directory as a part of a longer name. A topic's name may be almost as long as names
/// can be: then a hash takes the place of its end.
pub(crate) fn stem_of_dir(dir: &str) -> String {
    if dir.len() <= STEM_BYTES_MAX || sabotage::is(Bug::LongNamesKept) {
        return dir.to_owned();
    }
    let hash = SipHasher24::new().hash(dir.as_bytes());
    let cut = (0..=STEM_BYTES_MAX - 17).rev().find(|at| dir.is_char_boundary(*at)).unwrap_or(0);
    let stem = format!("{}{SHORTENED}{hash:016x}", &dir[..cut]);
    assert!(stem.len() <= STEM_BYTES_MAX && is_stem(&stem), "{stem} is a shortened name");
    stem
}

/// Tells whether [`stem_of_dir`] gives a replica's directory this name.
pub(crate) fn is_stem(name: &str) -> bool {
    let is_partition = |number: &str| number.parse::<i32>().is_ok();
    let is_hash = |hash: &str| hash.len() == 16 && hash.bytes().all(|it| it.is_ascii_hexdigit());
    name.rsplit_once('-').is_some_and(|(_, number)| is_partition(number))
        || name.rsplit_once(SHORTENED).is_some_and(|(_, hash)| is_hash(hash))
}

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

/// Returns the name of a table of the queue index: the first offset of its range and the one after its last.
pub(crate) fn table_name(from: i64, to: i64, erased: u64) -> String {
    match erased {
        0 => format!("{from:020}-{to:020}.keys"),
        _ => format!("{from:020}-{to:020}-{erased}.keys"),
    }
}

/// End of the name of a table that is being written.
pub(crate) const NEW_TABLE: &str = ".keys.new";

/// Returns the range in the name of a table.
pub(crate) fn table_range(name: &str) -> Option<(i64, i64)> {
    let mut parts = name.strip_suffix(".keys")?.split('-');
    let (from, to) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    let erased = parts.next().map_or(Some(0), |it| it.parse().ok())?;
    (table_name(from, to, erased) == name).then_some((from, to))
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

/// Reads bytes behind their length.
pub(crate) fn take_long(from: &mut Bytes) -> Result<Bytes, Malformed> {
    let length = usize::try_from(varint(from)?).unwrap_or(usize::MAX);
    take(from, length)
}

/// Reads a count of elements of at least `element_bytes` each; never more than can be there.
pub(crate) fn count(from: &mut Bytes, element_bytes: usize) -> Result<usize, Malformed> {
    let count = from.try_get_u32()? as usize;
    if count > from.len() / element_bytes {
        return Err(Malformed("a count exceeds what follows"));
    }
    Ok(count)
}

/// Writes an unsigned varint (LEB128).
pub(crate) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value.to_le_bytes()[0] | 0x80);
        value >>= 7;
    }
    out.push(value.to_le_bytes()[0]);
}

/// Reads an unsigned varint of at most 64 bits.
pub(crate) fn varint(from: &mut Bytes) -> Result<u64, Malformed> {
    let mut value = 0;
    for shift in (0..u64::BITS).step_by(7) {
        let byte = from.try_get_u8()?;
        // The tenth byte has room for one bit.
        if shift == 63 && byte > 1 {
            break;
        }
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Ok(value);
        }
    }
    Err(Malformed("a varint is too long"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_name_is_shortened_and_stays_unique() {
        let short = format!("{}-7", "a".repeat(188));
        assert_eq!(stem_of_dir(&short), short);
        let long = |partition: i32| format!("{}-{partition}", "a".repeat(249));
        let stems = [stem_of_dir(&long(1)), stem_of_dir(&long(2))];
        assert_ne!(stems[0], stems[1]);
        for stem in stems {
            assert_eq!(stem.len(), STEM_BYTES_MAX);
            assert!(is_stem(&stem), "{stem}");
        }
        let foreign = stem_of_dir(&format!("{}-0", "\u{e4}".repeat(130)));
        assert!(foreign.len() <= STEM_BYTES_MAX, "{foreign}");
    }

    #[test]
    fn varints_survive_and_overlong_ones_are_refused() {
        for value in [0, 1, 127, 128, 300, u64::from(u32::MAX), u64::MAX - 1, u64::MAX] {
            let mut out = Vec::new();
            put_varint(&mut out, value);
            assert_eq!(varint(&mut Bytes::from(out)), Ok(value));
        }
        for bad in [&[0x80][..], &[0xff; 10], &[0xff; 11]] {
            assert!(varint(&mut Bytes::copy_from_slice(bad)).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn names_of_others_are_no_stems() {
        for name in ["letters", "my-letters", "a~b", "a~00000000000000000", "-"] {
            assert!(!is_stem(name), "{name}");
        }
    }
}
