//! # Room card: table
//!
//! Purpose:    read an immutable table of a queue index: `<from>-<to>.keys`, see `docs/format.md`.
//! Owns:       header and footer, filter, block index and masks in memory; the place of each block and of expiries.
//! Interface:  [`Table`], [`TableHeader`], [`IndexError`]; [`Cursor`] for merges and lists of names.
//! Invariants: an open table's header, footer, filter, block index and masks fit their CRCs. A block is checked
//!             whenever it is read: a lookup says "nothing there" only of bytes that are right. No descriptor belongs
//!             to a table.
//! Never:      the choice of tables; their making (see `writing`).
//! Tests:      `keys/tests.rs`, `tests/formats`.
//! Start at:   [`Table::open`].

use std::io;
use std::ops::Range;
use std::sync::Arc;

use bytes::{Buf, BufMut, Bytes};
use twox_hash::XxHash3_64;
use xorf::{BinaryFuse8Ref, Filter, FilterRef};

use super::block::{self, Block, Body, Kind, Walk};
use super::expiries::Expiries;
use super::masks::Masks;
use super::memtable::Posting;
use super::statements::Fact;
use crate::format::{
    Malformed, TABLE_EDGE_BYTES, TABLE_FOOTER_MAGIC, TABLE_MAGIC, TABLE_VERSION, table_name, take,
    take_long,
};
use crate::{Disk, ReplicaId};

/// Bytes of a filter before its fingerprints.
pub(crate) const FILTER_HEAD_BYTES: usize = 20;
/// Kind of a postings block in the block index.
const POSTINGS: u8 = 0;
/// Kind of a facts block in the block index.
const FACTS: u8 = 1;

/// Why a table cannot be used. Each says that its range must be indexed again, but for a failure of the disk.
#[derive(Debug, thiserror::Error)]
pub enum IndexError {
    /// A read, write, sync, create or rename failed.
    #[error("the disk failed at {doing} {path}")]
    Disk {
        /// Name of the operation that failed.
        doing: &'static str,
        /// Path of the table, relative to the data directory.
        path: String,
        /// The disk's answer.
        #[source]
        source: io::Error,
    },
    /// Bytes of the table are not those that were written.
    #[error("{path} is damaged in its {part}: {what}")]
    Damaged {
        /// Path of the table, relative to the data directory.
        path: String,
        /// Name of the damaged part.
        part: &'static str,
        /// Description of the damage.
        what: &'static str,
    },
    /// Another version of Duramen wrote the table.
    #[error("{path} is of version {version}, which this build does not know")]
    UnknownVersion {
        /// Path of the table, relative to the data directory.
        path: String,
        /// Version in the header.
        version: u16,
    },
    /// The log could not be read, of which a table is made anew.
    #[error("the log below {path} cannot be read")]
    Unreadable {
        /// Path of the table, relative to the data directory.
        path: String,
    },
    /// The table would be larger than a table can be.
    #[error("{path} would be too large")]
    TooLarge {
        /// Path of the table, relative to the data directory.
        path: String,
    },
}

/// Makes the error of a failed disk operation.
pub(crate) fn failed(doing: &'static str, path: &str, source: io::Error) -> IndexError {
    IndexError::Disk { doing, path: path.to_owned(), source }
}

/// Makes the error of a damaged part.
pub(crate) fn damaged(path: &str, part: &'static str, why: Malformed) -> IndexError {
    IndexError::Damaged { path: path.to_owned(), part, what: why.0 }
}

/// Owner and range of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableHeader {
    /// Id of the topic.
    pub topic_id: [u8; 16],
    /// Number of the partition.
    pub partition: i32,
    /// Replica from whose log the table was made.
    pub replica: ReplicaId,
    /// First offset of the range.
    pub from: i64,
    /// Offset behind the range.
    pub to: i64,
    /// Term of the last offset of the range.
    pub term: u64,
    /// Index of the last Erase entry that the table takes into account, or 0.
    pub erased: u64,
}

impl TableHeader {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(TABLE_EDGE_BYTES);
        out.put_u32(TABLE_MAGIC);
        out.put_u16(TABLE_VERSION);
        out.put_u16(0);
        out.put_slice(&self.topic_id);
        out.put_i32(self.partition);
        out.put_u32(0);
        out.put_i64(self.from);
        out.put_i64(self.to);
        out.put_u64(self.term);
        out.put_u64(self.replica.0);
        out.put_u64(self.erased);
        assert_eq!(out.len(), TABLE_EDGE_BYTES, "a header has all its fields");
        out
    }

    /// Reads a header of a known version whose CRC fits.
    fn decode(mut from: Bytes) -> Result<Self, Malformed> {
        from.advance(8);
        let topic_id = take(&mut from, 16)?[..].try_into().expect("sixteen bytes");
        let partition = from.try_get_i32()?;
        from.advance(4);
        let (start, end) = (from.try_get_i64()?, from.try_get_i64()?);
        if start < 0 || end <= start {
            return Err(Malformed("its range is none"));
        }
        let (term, replica) = (from.try_get_u64()?, ReplicaId(from.try_get_u64()?));
        let erased = from.try_get_u64()?;
        Ok(Self { topic_id, partition, replica, from: start, to: end, term, erased })
    }
}

/// Numbers of a table, and where its parts end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Footer {
    pub(crate) queues: u64,
    pub(crate) elements: u64,
    pub(crate) postings_end: u64,
    pub(crate) facts_end: u64,
    pub(crate) filter_bytes: u32,
    pub(crate) index_bytes: u32,
    pub(crate) masks_bytes: u32,
    pub(crate) expiries_bytes: u32,
    /// The earliest time from which a record is of no use, in milliseconds since 1970; `i64::MAX` for none.
    pub(crate) earliest_ms: i64,
    pub(crate) seed: u64,
}

impl Footer {
    pub(crate) fn encode(&self, header: &[u8]) -> Vec<u8> {
        let mut rest = Vec::with_capacity(TABLE_EDGE_BYTES);
        rest.put_u64(self.queues);
        rest.put_u64(self.elements);
        rest.put_u64(self.postings_end);
        rest.put_u64(self.facts_end);
        rest.put_u32(self.filter_bytes);
        rest.put_u32(self.index_bytes);
        rest.put_u64(self.seed);
        rest.put_u32(self.masks_bytes);
        rest.put_u32(self.expiries_bytes);
        rest.put_i64(self.earliest_ms);
        let mut out = Vec::with_capacity(TABLE_EDGE_BYTES);
        out.put_u32(TABLE_FOOTER_MAGIC);
        out.put_u32(crc32c::crc32c_append(crc32c::crc32c(header), &rest));
        out.put_slice(&rest);
        assert_eq!(out.len(), TABLE_EDGE_BYTES, "a footer has all its fields");
        out
    }

    /// Returns the bytes of the file behind the facts.
    fn behind_facts(&self) -> u64 {
        let parts = [self.filter_bytes, self.index_bytes, self.masks_bytes, self.expiries_bytes];
        parts.map(u64::from).iter().sum::<u64>() + TABLE_EDGE_BYTES as u64
    }

    /// Reads a footer, and checks the lengths in it against the file's.
    fn decode(mut from: Bytes, header: &[u8], file_bytes: u64) -> Result<Self, Malformed> {
        if from.try_get_u32()? != TABLE_FOOTER_MAGIC {
            return Err(Malformed("it is none"));
        }
        if from.try_get_u32()? != crc32c::crc32c_append(crc32c::crc32c(header), &from) {
            return Err(Malformed("its CRC does not fit"));
        }
        let footer = Self {
            queues: from.try_get_u64()?,
            elements: from.try_get_u64()?,
            postings_end: from.try_get_u64()?,
            facts_end: from.try_get_u64()?,
            filter_bytes: from.try_get_u32()?,
            index_bytes: from.try_get_u32()?,
            seed: from.try_get_u64()?,
            masks_bytes: from.try_get_u32()?,
            expiries_bytes: from.try_get_u32()?,
            earliest_ms: from.try_get_i64()?,
        };
        let whole = footer.facts_end.checked_add(footer.behind_facts());
        if whole != Some(file_bytes)
            || footer.postings_end < TABLE_EDGE_BYTES as u64
            || footer.facts_end < footer.postings_end
        {
            return Err(Malformed("its lengths are not the file's"));
        }
        Ok(footer)
    }
}

/// Place of a block, and its last entry.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    /// Name of the entry.
    pub(crate) last: Bytes,
    /// Offset of its first posting; 0 for facts.
    pub(crate) first: i64,
    pub(crate) position: u64,
    pub(crate) length: u32,
}

/// Adds a block to a block index.
pub(crate) fn put_place(out: &mut Vec<u8>, kind: Kind, place: &Place) {
    out.put_u8(if kind == Kind::Postings { POSTINGS } else { FACTS });
    crate::format::put_varint(out, place.last.len() as u64);
    out.put_slice(&place.last);
    if kind == Kind::Postings {
        out.put_i64(place.first);
    }
    out.put_u64(place.position);
    out.put_u32(place.length);
}

/// Reads a block index, without its CRC: places of postings blocks, and of facts blocks. They adjoin, from the
/// header to `facts_end`, and their last entries are in order.
pub(crate) fn places(
    mut from: Bytes,
    postings_end: u64,
    facts_end: u64,
) -> Result<[Vec<Place>; 2], Malformed> {
    let mut all = [Vec::new(), Vec::new()];
    let mut position = TABLE_EDGE_BYTES as u64;
    let mut postings = position;
    while from.has_remaining() {
        let kind = usize::from(from.try_get_u8()?);
        let places: &mut Vec<Place> = all.get_mut(kind).ok_or(Malformed("a kind is unknown"))?;
        let last = take_long(&mut from)?;
        let first = if kind == usize::from(POSTINGS) { from.try_get_i64()? } else { 0 };
        let (at, length) = (from.try_get_u64()?, from.try_get_u32()?);
        let place = Place { last, first, position: at, length };
        let is_next = places
            .last()
            .is_none_or(|before| (&before.last, before.first) < (&place.last, place.first));
        if !is_next || place.position != position || place.length == 0 {
            return Err(Malformed("blocks do not follow each other"));
        }
        position = position.saturating_add(u64::from(place.length));
        places.push(place);
        if kind == usize::from(POSTINGS) {
            postings = position;
        }
    }
    if postings != postings_end || position != facts_end {
        return Err(Malformed("blocks do not end where they should"));
    }
    Ok(all)
}

/// Cuts the CRC off a part, and checks it.
fn checked(mut part: Bytes) -> Result<Bytes, Malformed> {
    let at = part.len().checked_sub(4).ok_or(Malformed("it is too short"))?;
    let crc = part.split_off(at).get_u32();
    if crc == crc32c::crc32c(&part) { Ok(part) } else { Err(Malformed("its CRC does not fit")) }
}

/// Checks that a lookup in the filter stays in its fingerprints.
fn check_filter(filter: &[u8]) -> Result<(), Malformed> {
    let Some((head, fingerprints)) = filter.split_at_checked(FILTER_HEAD_BYTES) else {
        return Err(Malformed("it is too short"));
    };
    // The library's own form, little-endian: seed, segment length, its mask, length of all segments but two.
    let number = |at: usize| (&head[at..]).get_u32_le();
    let (segment, mask, length) = (number(8), number(12), number(16));
    let is_whole =
        segment.is_power_of_two() && mask == segment - 1 && length.is_multiple_of(segment);
    if !is_whole || length == 0 {
        return Err(Malformed("its segments are none"));
    }
    if u64::from(length) + 2 * u64::from(segment) != fingerprints.len() as u64 {
        return Err(Malformed("its segments are not its fingerprints"));
    }
    Ok(())
}

/// Returns the hash by which a filter knows a name.
pub(crate) fn hash_of(name: &[u8], seed: u64) -> u64 {
    XxHash3_64::oneshot_with_seed(seed, name)
}

/// Reads a whole part of a table. The caller has compared `length` with the file's.
pub(crate) fn read<D: Disk>(
    (disk, file, path): (&D, &D::File, &str),
    position: u64,
    length: usize,
    part: &'static str,
) -> Result<Bytes, IndexError> {
    let mut bytes = vec![0; length];
    let read = disk.read_at(file, &mut bytes, position);
    if read.map_err(|error| failed("reading", path, error))? < length {
        return Err(damaged(path, part, Malformed("the file ends before it")));
    }
    Ok(bytes.into())
}

/// An open table. Clones share it.
#[derive(Clone, Debug)]
pub struct Table<D: Disk>(Arc<Parts<D>>);

#[derive(Debug)]
struct Parts<D: Disk> {
    disk: D,
    path: String,
    header: TableHeader,
    footer: Footer,
    filter: Bytes,
    /// Places of postings blocks, and of facts blocks.
    places: [Vec<Place>; 2],
    masks: Masks,
}

impl<D: Disk> Table<D> {
    /// Opens the table of that name in a replica's directory, and checks all but its blocks.
    pub fn open(disk: &D, dir: &str, name: &str) -> Result<Self, IndexError> {
        let path = format!("{dir}/{name}");
        let file = disk.open(&path).map_err(|error| failed("opening", &path, error))?;
        let length = disk.len(&file).map_err(|error| failed("measuring", &path, error))?;
        let edge = TABLE_EDGE_BYTES as u64;
        if length < 2 * edge {
            return Err(damaged(&path, "length", Malformed("it is too short")));
        }
        let from = (disk, &file, &path[..]);
        let header_bytes = read(from, 0, TABLE_EDGE_BYTES, "header")?;
        if (&header_bytes[..4]).get_u32() != TABLE_MAGIC {
            return Err(damaged(&path, "header", Malformed("it is none")));
        }
        let version = (&header_bytes[4..6]).get_u16();
        if version != TABLE_VERSION {
            return Err(IndexError::UnknownVersion { path, version });
        }
        let footer = read(from, length - edge, TABLE_EDGE_BYTES, "footer")?;
        let footer = Footer::decode(footer, &header_bytes, length);
        let footer = footer.map_err(|why| damaged(&path, "footer", why))?;
        let header = TableHeader::decode(header_bytes);
        let header = header.map_err(|why| damaged(&path, "header", why))?;
        if table_name(header.from, header.to, header.erased) != name {
            return Err(damaged(&path, "header", Malformed("its range is not its name's")));
        }
        let (filter_bytes, index_bytes) =
            (footer.filter_bytes as usize, footer.index_bytes as usize);
        let filter = read(from, footer.facts_end, filter_bytes, "filter")?;
        let filter = checked(filter).and_then(|it| check_filter(&it).map(|()| it));
        let filter = filter.map_err(|why| damaged(&path, "filter", why))?;
        let index_at = footer.facts_end + u64::from(footer.filter_bytes);
        let index = read(from, index_at, index_bytes, "block index")?;
        let places = checked(index)
            .and_then(|index| places(index, footer.postings_end, footer.facts_end))
            .map_err(|why| damaged(&path, "block index", why))?;
        let masks_at = index_at + u64::from(footer.index_bytes);
        let masks = read(from, masks_at, footer.masks_bytes as usize, "masks")?;
        let masks = checked(masks).and_then(|masks| Masks::decode(masks, header.to));
        let masks = masks.map_err(|why| damaged(&path, "masks", why))?;
        let disk = disk.clone();
        Ok(Self(Arc::new(Parts { disk, path, header, footer, filter, places, masks })))
    }

    /// Returns its owner and range.
    pub fn header(&self) -> &TableHeader {
        &self.0.header
    }

    /// Returns the number of its names.
    pub fn queues(&self) -> u64 {
        self.0.footer.queues
    }

    /// Returns the number of records that its postings stand for.
    pub fn elements(&self) -> u64 {
        self.0.footer.elements
    }

    /// Returns the length of its file in bytes.
    pub fn bytes(&self) -> u64 {
        self.0.footer.facts_end + self.0.footer.behind_facts()
    }

    /// Returns the offsets that the facts of its range mask.
    pub fn masks(&self) -> &Masks {
        &self.0.masks
    }

    /// Returns the time from which its first record is of no use; `i64::MAX` if there is none.
    pub(crate) fn earliest_ms(&self) -> i64 {
        self.0.footer.earliest_ms
    }

    /// Reads its batches that expire, in order.
    pub(crate) fn expiries(&self) -> Result<Expiries, IndexError> {
        let Parts { disk, path, footer, .. } = &*self.0;
        let range = self.range();
        let wrong = |why| damaged(path, "expiries", why);
        if footer.earliest_ms == i64::MAX {
            return Expiries::decode(Bytes::new(), &range, i64::MAX).map_err(wrong);
        }
        let file = disk.open(path).map_err(|it| failed("opening", path, it))?;
        let length = footer.expiries_bytes as usize;
        let at = self.bytes() - TABLE_EDGE_BYTES as u64 - length as u64;
        let bytes = read((disk, &file, path), at, length, "expiries")?;
        let read = checked(bytes);
        read.and_then(|it| Expiries::decode(it, &range, footer.earliest_ms)).map_err(wrong)
    }

    /// Returns the path of its file, relative to the data directory.
    pub fn path(&self) -> &str {
        &self.0.path
    }

    pub(crate) fn disk(&self) -> &D {
        &self.0.disk
    }

    /// Returns the range of its offsets.
    pub(crate) fn range(&self) -> Range<i64> {
        self.0.header.from..self.0.header.to
    }

    /// Makes the error of a damaged block.
    pub(crate) fn damaged_block(&self, why: Malformed) -> IndexError {
        damaged(&self.0.path, "blocks", why)
    }

    fn places(&self, kind: Kind) -> &[Place] {
        &self.0.places[usize::from(kind == Kind::Facts)]
    }

    /// Tells whether the table may have something of a name; false is certain.
    fn may_hold(&self, name: &[u8]) -> bool {
        let (head, fingerprints) = self.0.filter.split_at(FILTER_HEAD_BYTES);
        BinaryFuse8Ref::from_dma(head, fingerprints).contains(&hash_of(name, self.0.footer.seed))
    }

    /// Adds up to `limit` postings to `out`, from the last one at or before `at` on: its batch may reach beyond `at`.
    pub(crate) fn postings(
        &self,
        name: &[u8],
        at: i64,
        limit: usize,
        out: &mut Vec<Posting>,
    ) -> Result<(), IndexError> {
        if !self.may_hold(name) {
            return Ok(());
        }
        let (begin, range) = (out.len(), self.range());
        let mut cursor = Cursor::seek_posting(self, name, at)?;
        while let Some((_, body)) = cursor.entry().filter(|(found, _)| *found == name) {
            let first = body.first(range.start).map_err(|why| self.damaged_block(why))?;
            if out.len() - begin >= limit && first > at {
                break;
            }
            if out[begin..].last().is_some_and(|last| last.base_offset >= first) {
                return Err(self.damaged_block(Malformed("entries of a name overlap")));
            }
            let read = block::postings(body.clone(), &range, |posting| {
                if posting.base_offset <= at {
                    out.truncate(begin);
                }
                if out.len() - begin < limit {
                    out.push(posting);
                }
            });
            read.map_err(|why| self.damaged_block(why))?;
            cursor.advance()?;
        }
        Ok(())
    }

    /// Returns the facts about a queue, oldest first.
    pub(crate) fn facts(&self, name: &[u8]) -> Result<Vec<Fact>, IndexError> {
        let mut facts = Vec::new();
        if !self.may_hold(name) {
            return Ok(facts);
        }
        let cursor = Cursor::seek(self, Kind::Facts, name)?;
        if let Some((_, body)) = cursor.entry().filter(|(found, _)| *found == name) {
            let read = block::facts(body.clone(), &self.range(), |fact| facts.push(fact));
            read.map_err(|why| self.damaged_block(why))?;
        }
        Ok(facts)
    }
}

/// Place in the entries of one kind of a table.
#[derive(Debug)]
pub(crate) struct Cursor<D: Disk> {
    table: Table<D>,
    kind: Kind,
    file: Option<D::File>,
    next_block: usize,
    walk: Option<Walk>,
    body: Option<Body>,
}

impl<D: Disk> Cursor<D> {
    /// Comes to the first entry at or behind `name`.
    pub(crate) fn seek(table: &Table<D>, kind: Kind, name: &[u8]) -> Result<Self, IndexError> {
        let block = table.places(kind).partition_point(|place| place.last < name);
        Self::seek_from(table, kind, name, block)
    }

    /// Comes to an entry of postings of `name`, if there is one. It is not behind the last one that begins at or before
    /// `at`, and at most a block before that.
    fn seek_posting(table: &Table<D>, name: &[u8], at: i64) -> Result<Self, IndexError> {
        let places = table.places(Kind::Postings);
        let behind = places.partition_point(|it| (&it.last[..], it.first) <= (name, at));
        let before = behind.checked_sub(1).filter(|before| places[*before].last == name);
        Self::seek_from(table, Kind::Postings, name, before.unwrap_or(behind))
    }

    /// Comes to the first entry at or behind `name` in a block and all behind it.
    fn seek_from(
        table: &Table<D>,
        kind: Kind,
        name: &[u8],
        next_block: usize,
    ) -> Result<Self, IndexError> {
        let mut cursor =
            Self { table: table.clone(), kind, file: None, next_block, walk: None, body: None };
        if let Some(block) = cursor.load()? {
            let walk = block.walk_to(kind, name);
            cursor.walk = Some(walk.map_err(|why| cursor.table.damaged_block(why))?);
        }
        cursor.advance()?;
        while cursor.entry().is_some_and(|(found, _)| found < name) {
            cursor.advance()?;
        }
        Ok(cursor)
    }

    pub(crate) fn table(&self) -> &Table<D> {
        &self.table
    }

    /// Returns the name that it has come to, and the body of its entry; `None` behind the last one.
    pub(crate) fn entry(&self) -> Option<(&[u8], &Body)> {
        Some((self.walk.as_ref()?.name(), self.body.as_ref()?))
    }

    /// Comes to the next entry.
    pub(crate) fn advance(&mut self) -> Result<(), IndexError> {
        while let Some(walk) = &mut self.walk {
            let body = walk.advance().map_err(|why| self.table.damaged_block(why))?;
            if body.is_some() {
                self.body = body;
                return Ok(());
            }
            let place = &self.table.places(self.kind)[self.next_block - 1];
            let from = self.table.range().start;
            let first = match (self.kind, &self.body) {
                (Kind::Postings, Some(body)) => body.first(from),
                _ => Ok(0),
            };
            if walk.name() != place.last || first.ok() != Some(place.first) {
                let why = Malformed("a block does not end with the entry in the block index");
                return Err(self.table.damaged_block(why));
            }
            let block = self.load()?;
            self.walk = block.zip(self.walk.take()).map(|(block, last)| block.walk_behind(last));
        }
        self.body = None;
        Ok(())
    }

    /// Reads the next block, if there is one.
    fn load(&mut self) -> Result<Option<Block>, IndexError> {
        let parts = &self.table.0;
        let Some(place) = self.table.places(self.kind).get(self.next_block) else {
            return Ok(None);
        };
        let file = match self.file.take() {
            Some(file) => file,
            None => {
                parts.disk.open(&parts.path).map_err(|it| failed("opening", &parts.path, it))?
            }
        };
        let from = (&parts.disk, &file, &parts.path[..]);
        let bytes = read(from, place.position, place.length as usize, "blocks")?;
        self.file = Some(file);
        self.next_block += 1;
        Block::decode(bytes).map(Some).map_err(|why| self.table.damaged_block(why))
    }
}
