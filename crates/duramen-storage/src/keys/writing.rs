//! # Room card: writing
//!
//! Purpose:    write a table of a queue index: postings and facts in order of names go in, a synced and open table
//!             comes out.
//! Owns:       the file `….keys.new` and the bytes that are not in it yet; the cut of a name's postings into entries.
//! Interface:  [`TableWriter`].
//! Invariants: memory holds one block, the block index and one hash a name. A table has its name only after it is
//!             synced. A writer that does not end removes its file.
//! Never:      the choice of postings and facts.
//! Tests:      `keys/tests.rs`, `tests/formats`.
//! Start at:   [`TableWriter::posting`].

use bytes::{BufMut, Bytes};
use xorf::{BinaryFuse8, DmaSerializable};

use super::block::{Block, BlockWriter, Kind, PostingsWriter};
use super::expiries::{ExpiriesWriter, Expiry};
use super::masks::Masks;
use super::memtable::Posting;
use super::table::{
    FILTER_HEAD_BYTES, Footer, IndexError, Place, Table, TableHeader, damaged, failed, hash_of,
    places, put_place, read,
};
use crate::Disk;
use crate::disk::ignore_missing;
use crate::format::{Malformed, TABLE_EDGE_BYTES, table_name};
use crate::sabotage::{self, Bug};

/// Written at once.
const BUFFER_BYTES: usize = 256 * 1024;
/// Seeds that are tried for a filter. The library tries 1,000 of its own for each.
const SEEDS_MAX: u64 = 8;

/// See the room card.
#[derive(Debug)]
pub(crate) struct TableWriter<D: Disk> {
    disk: D,
    dir: String,
    path: String,
    header: TableHeader,
    block_bytes_max: usize,
    file: D::File,
    is_ended: bool,
    buffer: Vec<u8>,
    /// Bytes in the file.
    written: u64,
    kind: Kind,
    /// Name of the postings that are in no entry yet, and the offset behind the last one of it.
    name: Vec<u8>,
    behind: i64,
    postings: PostingsWriter,
    block: BlockWriter,
    /// Offset of the first posting of the block's last entry.
    first: i64,
    index: Vec<u8>,
    /// Masks in their encoding.
    masks: Vec<u8>,
    expiries: ExpiriesWriter,
    postings_end: u64,
    elements: u64,
    hashes: Vec<u64>,
}

impl<D: Disk> TableWriter<D> {
    /// Begins a table with its postings. A block has at most `block_bytes_max` bytes, unless one entry has more.
    pub(crate) fn begin(
        disk: &D,
        dir: &str,
        header: TableHeader,
        block_bytes_max: usize,
    ) -> Result<Self, IndexError> {
        assert!(0 <= header.from && header.from < header.to, "a table has a range");
        assert!(u16::try_from(block_bytes_max).is_ok(), "restart points have 16 bits");
        let path = format!("{dir}/{}.new", table_name(header.from, header.to, header.erased));
        ignore_missing(disk.remove_file(&path)).map_err(|it| failed("removing", &path, it))?;
        let file = disk.create(&path).map_err(|it| failed("creating", &path, it))?;
        Ok(Self {
            disk: disk.clone(),
            dir: dir.to_owned(),
            path,
            header,
            block_bytes_max,
            file,
            is_ended: false,
            buffer: header.encode(),
            written: 0,
            kind: Kind::Postings,
            name: Vec::new(),
            behind: header.from,
            postings: PostingsWriter::new(header.from),
            block: BlockWriter::default(),
            first: 0,
            index: Vec::new(),
            masks: Vec::new(),
            expiries: ExpiriesWriter::new(header.from),
            postings_end: 0,
            elements: 0,
            hashes: Vec::new(),
        })
    }

    /// Adds the next posting of a name, or the first one of the next name. An entry has about half a block at most: a
    /// reader of one place in a long queue reads little more than that.
    pub(crate) fn posting(&mut self, name: &[u8], posting: Posting) -> Result<(), IndexError> {
        let is_same = self.name == name;
        if !is_same || self.postings.bytes() >= self.block_bytes_max / 2 {
            self.end_entry()?;
        }
        if !is_same {
            self.name.clear();
            self.name.extend_from_slice(name);
            self.behind = self.header.from;
        }
        if posting.base_offset < self.behind {
            return Err(damaged(&self.path, "postings", Malformed("they are out of order")));
        }
        self.behind = posting.base_offset + 1;
        self.postings.push(posting);
        Ok(())
    }

    fn end_entry(&mut self) -> Result<(), IndexError> {
        let Some(piece) = self.postings.end() else { return Ok(()) };
        let name = std::mem::take(&mut self.name);
        let put = self.put(&name, &piece.bytes, piece.first);
        self.name = name;
        self.elements += piece.records;
        put
    }

    /// Adds the next name with its facts.
    pub(crate) fn facts(&mut self, name: &[u8], body: &[u8]) -> Result<(), IndexError> {
        assert!(self.block.is_empty() || self.block.last() < name, "names come in order");
        self.put(name, body, 0)
    }

    /// Gives it the offsets that its facts mask.
    pub(crate) fn masks(&mut self, masks: &Masks) {
        self.masks = masks.encode();
    }

    /// Adds the next batch that expires.
    pub(crate) fn expiry(&mut self, expiry: Expiry) {
        self.expiries.push(expiry);
    }

    fn put(&mut self, name: &[u8], body: &[u8], first: i64) -> Result<(), IndexError> {
        let is_next = |last: &[u8]| last < name || last == name && self.first < first;
        assert!(self.block.is_empty() || is_next(self.block.last()), "entries come in order");
        if !self.block.push(name, body, self.block_bytes_max) {
            self.end_block()?;
            assert!(self.block.push(name, body, self.block_bytes_max), "one entry always fits");
        }
        self.first = first;
        self.hashes.push(hash_of(name, 0));
        Ok(())
    }

    /// Ends the postings. Facts follow.
    pub(crate) fn end_postings(&mut self) -> Result<(), IndexError> {
        assert_eq!(self.kind, Kind::Postings, "postings end once");
        self.end_entry()?;
        self.end_block()?;
        self.postings_end = self.position();
        (self.kind, self.first) = (Kind::Facts, 0);
        Ok(())
    }

    fn position(&self) -> u64 {
        self.written + self.buffer.len() as u64
    }

    fn end_block(&mut self) -> Result<(), IndexError> {
        if self.block.is_empty() {
            return Ok(());
        }
        let last = Bytes::copy_from_slice(self.block.last());
        let bytes = self.block.end();
        let length = u32::try_from(bytes.len()).map_err(|_| self.too_large())?;
        let place = Place { last, first: self.first, position: self.position(), length };
        put_place(&mut self.index, self.kind, &place);
        self.buffer.extend_from_slice(&bytes);
        if self.buffer.len() >= BUFFER_BYTES { self.flush() } else { Ok(()) }
    }

    fn too_large(&self) -> IndexError {
        IndexError::TooLarge { path: self.path.clone() }
    }

    /// Writes what is in memory.
    fn flush(&mut self) -> Result<(), IndexError> {
        let length = self.buffer.len() as u64;
        self.disk
            .write_at(&self.file, &[&self.buffer], self.written)
            .and_then(|()| self.disk.start_writeback(&self.file, self.written, length))
            .map_err(|error| failed("writing", &self.path, error))?;
        self.written += length;
        self.buffer.clear();
        Ok(())
    }

    /// Ends the table: adds filter, block index, masks, expiries and footer, syncs the file, and gives it its name.
    pub(crate) fn end(mut self) -> Result<Table<D>, IndexError> {
        assert_eq!(self.kind, Kind::Facts, "facts follow the postings");
        self.end_block()?;
        let facts_end = self.position();
        self.flush()?;
        let (seed, queues, filter) = self.filter(facts_end)?;
        let index = std::mem::take(&mut self.index);
        let masks = std::mem::take(&mut self.masks);
        let expiries = std::mem::replace(&mut self.expiries, ExpiriesWriter::new(0));
        let (expiries, earliest_ms) = expiries.end();
        let footer = Footer {
            queues,
            elements: self.elements,
            postings_end: self.postings_end,
            facts_end,
            filter_bytes: u32::try_from(filter.len() + 4).map_err(|_| self.too_large())?,
            index_bytes: u32::try_from(index.len() + 4).map_err(|_| self.too_large())?,
            masks_bytes: u32::try_from(masks.len() + 4).map_err(|_| self.too_large())?,
            expiries_bytes: u32::try_from(expiries.len() + 4).map_err(|_| self.too_large())?,
            earliest_ms,
            seed,
        };
        for part in [&filter, &index, &masks, &expiries] {
            self.buffer.extend_from_slice(part);
            self.buffer.put_u32(crc32c::crc32c(part));
        }
        self.buffer.extend_from_slice(&footer.encode(&self.header.encode()));
        self.flush()?;
        let name = table_name(self.header.from, self.header.to, self.header.erased);
        let to = format!("{}/{name}", self.dir);
        let is_late = sabotage::is(Bug::TableNotSynced);
        if !is_late {
            self.disk.sync(&self.file).map_err(|it| failed("syncing", &self.path, it))?;
        }
        self.disk.rename(&self.path, &to).map_err(|it| failed("renaming", &self.path, it))?;
        self.is_ended = true;
        if is_late {
            self.disk.sync(&self.file).map_err(|it| failed("syncing", &to, it))?;
        }
        self.disk.sync_dir(&self.dir).map_err(|it| failed("syncing", &self.dir, it))?;
        Table::open(&self.disk, &self.dir, &name)
    }

    /// Makes the filter. Returns its seed, the number of names in it, and its bytes.
    fn filter(&mut self, facts_end: u64) -> Result<(u64, u64, Vec<u8>), IndexError> {
        let mut hashes = std::mem::take(&mut self.hashes);
        for seed in 0..SEEDS_MAX {
            if seed > 0 {
                hashes = self.hashes_again(facts_end, seed)?;
            }
            if sabotage::is(Bug::TableFilterHalf) {
                hashes.truncate(hashes.len() / 2);
            }
            // The library takes no hash twice: one name may have postings and facts.
            hashes.sort_unstable();
            hashes.dedup();
            if let Ok(filter) = BinaryFuse8::try_from(&hashes[..]) {
                let mut bytes = vec![0; FILTER_HEAD_BYTES];
                filter.dma_copy_descriptor_to(&mut bytes);
                bytes.extend_from_slice(filter.dma_fingerprints());
                return Ok((seed, hashes.len() as u64, bytes));
            }
        }
        Err(self.too_large())
    }

    /// Reads all names back from the file's blocks, and hashes them by another seed.
    fn hashes_again(&self, facts_end: u64, seed: u64) -> Result<Vec<u64>, IndexError> {
        let broken = |why| damaged(&self.path, "blocks", why);
        let index = Bytes::copy_from_slice(&self.index);
        let all = places(index, self.postings_end, facts_end).map_err(broken)?;
        let mut hashes = Vec::new();
        for (places, kind) in all.iter().zip([Kind::Postings, Kind::Facts]) {
            for place in places {
                let from = (&self.disk, &self.file, &self.path[..]);
                let bytes = read(from, place.position, place.length as usize, "blocks")?;
                let mut walk = Block::decode(bytes).map_err(broken)?.walk(kind);
                while walk.advance().map_err(broken)?.is_some() {
                    hashes.push(hash_of(walk.name(), seed));
                }
            }
        }
        Ok(hashes)
    }
}

impl<D: Disk> Drop for TableWriter<D> {
    fn drop(&mut self) {
        if !self.is_ended {
            // Else the next start removes it.
            let _ = self.disk.remove_file(&self.path);
        }
    }
}

const _: () = assert!(TABLE_EDGE_BYTES == 72 && FILTER_HEAD_BYTES == BinaryFuse8::DESCRIPTOR_LEN);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ReplicaId;
    use crate::keys::tests::disk::MemoryDisk;

    #[test]
    fn names_that_are_read_back_are_those_that_were_written() {
        let (topic_id, replica) = ([1; 16], ReplicaId(7));
        let (from, to) = (0, 9);
        let header = TableHeader { topic_id, partition: 0, replica, from, to, term: 1, erased: 0 };
        let mut writer =
            TableWriter::begin(&MemoryDisk::default(), "t-0", header, 100).expect("good");
        let names: Vec<_> = (0..99).map(|it| format!("name-{it:02}")).collect();
        for name in &names {
            let posting = Posting { base_offset: 0, is_transactional: false, records: 1 };
            writer.posting(name.as_bytes(), posting).expect("the disk is good");
        }
        writer.end_postings().expect("the disk is good");
        writer.facts(b"fact", &[1, 5, 0, 0]).expect("the disk is good");
        writer.end_block().expect("the disk is good");
        let facts_end = writer.position();
        writer.flush().expect("the disk is good");
        let again = |seed| writer.hashes_again(facts_end, seed).expect("it can be read");
        assert_eq!(again(0), writer.hashes);
        let by_another = names.iter().map(|name| hash_of(name.as_bytes(), 3));
        assert_eq!(again(3), by_another.chain([hash_of(b"fact", 3)]).collect::<Vec<_>>());
    }
}
