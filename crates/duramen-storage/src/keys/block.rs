//! # Room card: block
//!
//! Purpose:    the bytes of a table's blocks: entries in order of names, and the bodies of entries.
//! Owns:       blocks, entries, restart points, bodies; their encoding and the checks of their decoding.
//! Interface:  [`BlockWriter`], [`Block`], [`Walk`]; [`PostingsWriter`], [`FactsWriter`], [`postings`], [`facts`].
//! Invariants: any bytes can be read: they are an error, or entries in order whose offsets lie in the table's range. A
//!             name has one entry of facts, and as many of postings as their bytes take.
//! Never:      I/O.
//! Tests:      `keys/tests.rs`.
//! Start at:   [`Walk::advance`].

use std::ops::Range;

use bytes::{Buf, BufMut, Bytes};

use super::memtable::Posting;
use super::statements::Fact;
use crate::format::{Malformed, put_varint, take_long, varint};
use crate::sabotage::{self, Bug};

/// Entries from one restart point to the next.
const RESTART_INTERVAL: usize = 16;
/// Bytes behind the restart points: their count and the CRC.
const TRAILER_BYTES: usize = 6;
/// Flag of a posting whose batch is transactional.
const TRANSACTIONAL: u64 = 2;
/// Flags of a posting, of which only [`TRANSACTIONAL`] is used.
const FLAG_BITS: u32 = 2;

/// Kind of the entries of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Postings,
    Facts,
}

/// Body of an entry: how much the list holds, and the list's bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Body {
    /// Number of batches or facts.
    pub(crate) count: u64,
    /// Number of records; of facts 0.
    pub(crate) records: u64,
    pub(crate) list: Bytes,
}

impl Body {
    /// Returns the distance of the first posting from the table's first offset.
    fn distance(&self) -> Result<u64, Malformed> {
        Ok(varint(&mut self.list.clone())? >> FLAG_BITS)
    }

    /// Returns the offset of the first posting, in a table that begins at `from`.
    pub(crate) fn first(&self, from: i64) -> Result<i64, Malformed> {
        Ok(from.saturating_add_unsigned(self.distance()?))
    }
}

/// Block in the making.
#[derive(Debug, Default)]
pub(crate) struct BlockWriter {
    bytes: Vec<u8>,
    restarts: Vec<u16>,
    entries: usize,
    last: Vec<u8>,
}

impl BlockWriter {
    /// Adds an entry, unless the block would have more than `bytes_max` bytes with it. The first entry always fits.
    pub(crate) fn push(&mut self, name: &[u8], body: &[u8], bytes_max: usize) -> bool {
        let is_restart = self.entries.is_multiple_of(RESTART_INTERVAL);
        let pairs = self.last.iter().zip(name);
        let shared = if is_restart { 0 } else { pairs.take_while(|(a, b)| a == b).count() };
        let begin = self.bytes.len();
        put_varint(&mut self.bytes, shared as u64);
        put_varint(&mut self.bytes, (name.len() - shared) as u64);
        self.bytes.extend_from_slice(&name[shared..]);
        self.bytes.extend_from_slice(body);
        let restarts = self.restarts.len() + usize::from(is_restart);
        if begin > 0 && self.bytes.len() + 2 * restarts + TRAILER_BYTES > bytes_max {
            self.bytes.truncate(begin);
            return false;
        }
        if is_restart {
            self.restarts.push(u16::try_from(begin).expect("a block of several entries is small"));
        }
        self.entries += 1;
        self.last.clear();
        self.last.extend_from_slice(name);
        true
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries == 0
    }

    /// Returns the name of the last entry.
    pub(crate) fn last(&self) -> &[u8] {
        &self.last
    }

    /// Ends the block, and returns its bytes. The writer begins another one.
    pub(crate) fn end(&mut self) -> Vec<u8> {
        let mut bytes = std::mem::take(&mut self.bytes);
        for restart in &self.restarts {
            bytes.put_u16(*restart);
        }
        bytes.put_u16(u16::try_from(self.restarts.len()).expect("each has a position of its own"));
        bytes.put_u32(crc32c::crc32c(&bytes));
        self.restarts.clear();
        self.entries = 0;
        bytes
    }
}

/// Block that was read. Its CRC fits.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    entries: Bytes,
    restarts: Vec<usize>,
}

impl Block {
    pub(crate) fn decode(mut bytes: Bytes) -> Result<Self, Malformed> {
        let Some(crc_at) = bytes.len().checked_sub(4).filter(|at| *at >= 2) else {
            return Err(Malformed("it is too short"));
        };
        let crc = bytes.split_off(crc_at).get_u32();
        if crc != crc32c::crc32c(&bytes) && !sabotage::is(Bug::TableBlockUnchecked) {
            return Err(Malformed("its CRC does not fit"));
        }
        let count = usize::from(bytes.split_off(crc_at - 2).get_u16());
        let Some(restarts_at) = bytes.len().checked_sub(2 * count) else {
            return Err(Malformed("restart points exceed it"));
        };
        let positions = bytes.split_off(restarts_at);
        let positions = positions.chunks_exact(2);
        let restarts: Vec<usize> =
            positions.map(|it| usize::from(u16::from_be_bytes([it[0], it[1]]))).collect();
        let is_ordered = restarts.is_sorted_by(|a, b| a < b);
        let is_inside = restarts.last().is_some_and(|last| *last < bytes.len());
        if !is_ordered || !is_inside || restarts[0] != 0 {
            return Err(Malformed("restart points are out of order"));
        }
        Ok(Self { entries: bytes, restarts })
    }

    /// Returns the name of the entry at a restart point.
    fn restart_name(&self, restart: usize) -> Result<Bytes, Malformed> {
        let mut from = self.entries.slice(self.restarts[restart]..);
        if varint(&mut from)? != 0 {
            return Err(Malformed("an entry at a restart point shares bytes"));
        }
        take_long(&mut from)
    }

    /// Returns a walk from the last restart point before `name`, or from the first.
    pub(crate) fn walk_to(self, kind: Kind, name: &[u8]) -> Result<Walk, Malformed> {
        let (mut low, mut high) = (0, self.restarts.len());
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if &self.restart_name(middle)?[..] < name { low = middle } else { high = middle }
        }
        let rest = self.entries.slice(self.restarts[low]..);
        Ok(Walk { kind, rest, name: Vec::new(), before: None })
    }

    /// Returns a walk over all its entries.
    pub(crate) fn walk(self, kind: Kind) -> Walk {
        Walk { kind, rest: self.entries, name: Vec::new(), before: None }
    }

    /// Returns a walk over all its entries, which must be behind the last one of the block before.
    pub(crate) fn walk_behind(self, last: Walk) -> Walk {
        Walk { rest: self.entries, ..last }
    }
}

/// Walk over the entries of a block.
#[derive(Debug)]
pub(crate) struct Walk {
    kind: Kind,
    rest: Bytes,
    name: Vec<u8>,
    /// Distance of the entry's first posting from the table's first offset, 0 for facts; `None` before the first entry.
    before: Option<u64>,
}

impl Walk {
    /// Returns the name of the entry that [`Walk::advance`] came to.
    pub(crate) fn name(&self) -> &[u8] {
        &self.name
    }

    /// Comes to the next entry, and returns its body; `None` at the end.
    pub(crate) fn advance(&mut self) -> Result<Option<Body>, Malformed> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let shared = usize::try_from(varint(&mut self.rest)?).unwrap_or(usize::MAX);
        let own = take_long(&mut self.rest)?;
        let Some(old) = self.name.get(shared..) else {
            return Err(Malformed("a name shares more than there is"));
        };
        let is_same = self.before.is_some() && old == &own[..];
        if self.before.is_some() && old > &own[..] {
            return Err(Malformed("names are out of order"));
        }
        self.name.truncate(shared);
        self.name.extend_from_slice(&own);
        let body = match self.kind {
            Kind::Postings => Body {
                count: varint(&mut self.rest)?,
                records: varint(&mut self.rest)?,
                list: take_long(&mut self.rest)?,
            },
            Kind::Facts => {
                let count = varint(&mut self.rest)?;
                let mut after = self.rest.clone();
                for _ in 0..count {
                    after.try_get_u8()?;
                    varint(&mut after)?;
                    take_long(&mut after)?;
                }
                let list = self.rest.split_to(self.rest.len() - after.len());
                Body { count, records: 0, list }
            }
        };
        let distance = if self.kind == Kind::Postings { body.distance()? } else { 0 };
        if is_same && self.before.is_none_or(|before| before >= distance) {
            return Err(Malformed("entries of a name are out of order"));
        }
        self.before = Some(distance);
        Ok(Some(body))
    }
}

/// Body of postings in the making.
#[derive(Debug)]
pub(crate) struct PostingsWriter {
    from: i64,
    count: u64,
    records: u64,
    first: i64,
    previous: i64,
    list: Vec<u8>,
}

/// Body of postings that is made.
#[derive(Debug)]
pub(crate) struct Piece {
    pub(crate) bytes: Vec<u8>,
    pub(crate) records: u64,
    /// Offset of the first posting.
    pub(crate) first: i64,
}

impl PostingsWriter {
    /// Begins the body for a table that begins at `from`.
    pub(crate) fn new(from: i64) -> Self {
        Self { from, count: 0, records: 0, first: from, previous: from, list: Vec::new() }
    }

    /// Returns the length of its list in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.list.len()
    }

    /// Adds the next posting.
    pub(crate) fn push(&mut self, posting: Posting) {
        if self.count == 0 {
            (self.first, self.previous) = (posting.base_offset, self.from);
        }
        let distance = posting.base_offset - self.previous;
        assert!((0..1 << 60).contains(&distance), "postings are in order, and near");
        let flags = if posting.is_transactional { TRANSACTIONAL } else { 0 };
        put_varint(&mut self.list, distance.cast_unsigned() << FLAG_BITS | flags);
        put_varint(&mut self.list, u64::from(posting.records - 1));
        self.previous = posting.base_offset;
        self.count += 1;
        self.records += u64::from(posting.records);
    }

    /// Returns the body, unless it has no postings, and begins another one.
    pub(crate) fn end(&mut self) -> Option<Piece> {
        if self.count == 0 {
            return None;
        }
        let mut bytes = Vec::with_capacity(self.list.len() + 12);
        for number in [self.count, self.records, self.list.len() as u64] {
            put_varint(&mut bytes, number);
        }
        bytes.append(&mut self.list);
        self.count = 0;
        Some(Piece { bytes, records: std::mem::take(&mut self.records), first: self.first })
    }
}

/// Body of facts in the making.
#[derive(Debug)]
pub(crate) struct FactsWriter {
    from: i64,
    count: u64,
    list: Vec<u8>,
}

impl FactsWriter {
    /// Begins the body for a table that begins at `from`.
    pub(crate) fn new(from: i64) -> Self {
        Self { from, count: 0, list: Vec::new() }
    }

    /// Adds the next fact.
    pub(crate) fn push(&mut self, fact: &Fact) {
        self.list.push(fact.kind);
        put_varint(&mut self.list, (fact.offset - self.from).cast_unsigned());
        put_varint(&mut self.list, fact.body.len() as u64);
        self.list.extend_from_slice(&fact.body);
        self.count += 1;
    }

    /// Returns the body; `None` if it has no facts.
    pub(crate) fn end(self) -> Option<Vec<u8>> {
        if self.count == 0 {
            return None;
        }
        let mut body = Vec::with_capacity(self.list.len() + 2);
        put_varint(&mut body, self.count);
        body.extend_from_slice(&self.list);
        Some(body)
    }
}

/// Hands the postings of a body over, oldest first. Whatever the body says, they are in order and in `range`.
pub(crate) fn postings(
    body: Body,
    range: &Range<i64>,
    mut take_one: impl FnMut(Posting),
) -> Result<(), Malformed> {
    let (mut list, mut previous, mut records) = (body.list, None, 0u64);
    for _ in 0..body.count {
        let place = varint(&mut list)?;
        let distance = (place >> FLAG_BITS).cast_signed();
        let base_offset = previous.unwrap_or(range.start).checked_add(distance);
        let base_offset = base_offset.filter(|it| range.contains(it) && previous != Some(*it));
        let base_offset = base_offset.ok_or(Malformed("a posting is out of the table's range"))?;
        let flags = place & ((1 << FLAG_BITS) - 1);
        if flags & !TRANSACTIONAL != 0 {
            return Err(Malformed("a posting has an unknown flag"));
        }
        let of_it = varint(&mut list)?.checked_add(1).and_then(|it| u32::try_from(it).ok());
        let of_it = of_it.ok_or(Malformed("a posting has too many records"))?;
        records = records.saturating_add(u64::from(of_it));
        previous = Some(base_offset);
        take_one(Posting { base_offset, is_transactional: flags != 0, records: of_it });
    }
    if !list.is_empty() || records != body.records {
        return Err(Malformed("postings are not as many as they should be"));
    }
    Ok(())
}

/// Hands the facts of a body over, oldest first. Whatever the body says, they are in order and in `range`.
pub(crate) fn facts(
    body: Body,
    range: &Range<i64>,
    mut take_one: impl FnMut(Fact),
) -> Result<(), Malformed> {
    let (mut list, mut previous) = (body.list, None);
    for _ in 0..body.count {
        let kind = list.try_get_u8()?;
        let distance = i64::try_from(varint(&mut list)?).ok();
        let offset = distance.and_then(|it| range.start.checked_add(it));
        let offset =
            offset.filter(|it| range.contains(it) && previous.is_none_or(|last| last <= *it));
        let offset = offset.ok_or(Malformed("a fact is out of the table's range"))?;
        previous = Some(offset);
        take_one(Fact { kind, offset, body: take_long(&mut list)? });
    }
    Ok(())
}
