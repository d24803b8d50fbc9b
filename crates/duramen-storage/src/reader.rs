//! # Room card: reader
//!
//! Purpose:    find the bytes of a read without touching the write path.
//! Owns:       the shared catalogue of segments, offset and time lookups, first-touch verification.
//! Interface:  [`Reader::locate`], [`Reader::read`], [`Reader::verify`], [`Reader::find_time`],
//!             [`Reader::digest`].
//! Invariants: a located range holds its file open, so it stays readable after the segment's removal. A range never
//!             reaches past the committed end in its request.
//! Never:      writes.
//! Tests:      the storage tests.
//! Start at:   [`Reader::locate`].

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use duramen_protocol::batch::{BatchHeader, BatchView};
use duramen_protocol::records::Records;

pub use crate::catalog::ReadError;
use crate::catalog::{Catalog, LogFiles, Segment};
use crate::descriptor::{BATCH_HEADER_BYTES, Descriptor};
use crate::format::{INDEX_ENTRY_BYTES, TIME_ENTRY_BYTES};
use crate::replica_state::{IndexEntry, TimeEntry};
use crate::{Disk, ReplicaId};

mod digest;

/// Bytes per read while looking for a batch: a few index intervals.
const WINDOW_BYTES: usize = 32 * 1024;

/// Most memory for the records of a compressed batch while the reader compares their timestamps, in bytes.
const RECORD_BYTES_MAX: usize = 1 << 30;

/// Bytes per read of an index.
const INDEX_CHUNK_BYTES: usize = 1 << 20;
/// Fault of a batch that its segment's index does not list.
pub(crate) const NOT_AS_INDEXED: &str = "a batch is not where, or what, the index says";

/// Bytes of one segment that answer a read.
#[derive(Clone, Debug)]
pub struct FileRange<F> {
    /// The segment's file, held open.
    pub file: F,
    /// Base offset of the segment.
    pub segment: i64,
    /// Position of the first byte.
    pub at: u64,
    /// Length in bytes; never 0.
    pub len: u32,
    /// The bytes were written by this process or their CRCs were checked since it started. If
    /// not, [`Reader::read`] or [`Reader::verify`] them first, off the node's thread: the disk
    /// may have rotted.
    pub verified: bool,
    /// Index of the entry by which the log was compacted last at the lookup, or 0. The list of aborted transactions
    /// must belong to the same state of the log.
    pub compaction: u64,
    /// The entry by which compaction made the segment, or 0.
    pub generation: u64,
}

/// Digest of a part of a log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Digest {
    /// The first offset of the first batch, which holds the offset that was asked for.
    pub first: i64,
    /// One past the last offset of the last batch.
    pub end: i64,
    /// Bytes of the batches; for compacted batches, bytes of their decompressed records.
    pub bytes: u64,
    /// XXH3 (128 bits) of those bytes: protects against chance, not against an attacker.
    pub hash: [u8; 16],
    /// The base offsets of the segments that begin with one of the batches, but for those that compaction made.
    pub segments: Vec<i64>,
    /// Index of the entry by which the log was compacted last, or 0.
    pub compaction: u64,
    /// First damage that this replica finds by itself, without comparison.
    pub damage: Option<Damage>,
}

/// A batch that does not match its own checksum or place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The offset of the batch.
    pub offset: i64,
    /// Description and place of the damage.
    pub what: String,
}

/// Shared, cheap to clone, used from any thread.
#[derive(Clone, Debug)]
pub struct Reader<D: Disk> {
    disk: D,
    catalog: Arc<Catalog<D>>,
}

/// Where a batch lies in its segment.
#[derive(Clone, Copy, Debug)]
struct Place {
    at: u64,
    batch: Descriptor,
}

impl<D: Disk> Reader<D> {
    pub(crate) fn new(disk: D, catalog: Arc<Catalog<D>>) -> Self {
        Self { disk, catalog }
    }

    pub(crate) fn catalog(&self) -> &Catalog<D> {
        &self.catalog
    }

    /// Finds the batch that holds `offset`, and up to `bytes_max` bytes from there. The range stays within one
    /// segment and below `end` (the high watermark, exclusive). Returns `Ok(None)` when `offset == end`. If
    /// `first_whole` is set, the first batch is whole even if it is longer than `bytes_max`. Otherwise the range is
    /// cut at `bytes_max`, so its last batch may be partial, as in Kafka. Returns `Ok(None)` if the first batch does
    /// not fit.
    pub fn locate(
        &self,
        replica: ReplicaId,
        offset: i64,
        end: i64,
        bytes_max: u32,
        first_whole: bool,
    ) -> Result<Option<FileRange<D::File>>, ReadError> {
        let found = self.locate_now(replica, offset, end, bytes_max, first_whole);
        self.suspect_of(replica, found)
    }

    /// Returns the index of the entry by which a log was compacted last, or 0.
    pub fn compaction(&self, replica: ReplicaId) -> Result<u64, ReadError> {
        Ok(self.catalog.get(replica)?.compaction())
    }

    /// Returns the term in which the record at an offset was appended, if the log has it or had it.
    pub fn term_at(&self, replica: ReplicaId, offset: i64) -> Result<Option<u64>, ReadError> {
        Ok(self.catalog.get(replica)?.term_at(offset))
    }

    fn locate_now(
        &self,
        replica: ReplicaId,
        offset: i64,
        end: i64,
        bytes_max: u32,
        first_whole: bool,
    ) -> Result<Option<FileRange<D::File>>, ReadError> {
        if offset >= end {
            return if offset == end { Ok(None) } else { Err(ReadError::OutOfRange) };
        }
        let files = self.catalog.get(replica)?;
        let (segment, compaction, file, (at, first_bytes)) = {
            let mut from = offset;
            loop {
                let (segment, compaction) = files.place_of(from).ok_or(ReadError::OutOfRange)?;
                let (_, written_end) = segment.written();
                if from >= written_end || from >= end {
                    return Ok(None);
                }
                let file = self.file(&segment)?;
                if let Some(place) = self.position_of(&segment, &file, from)? {
                    break (segment, compaction, file, place);
                }
                // All from there to its end was compacted away.
                from = written_end;
            }
        };
        let (size, written_end) = segment.written();
        let limit = if end >= written_end {
            size
        } else {
            self.position_of(&segment, &file, end)?.map_or(size, |(at, _)| at)
        };
        if at >= limit && !segment.is_dense() {
            return Ok(None);
        }
        let available = u32::try_from(limit.saturating_sub(at)).unwrap_or(u32::MAX);
        let mut len = available.min(bytes_max);
        if first_bytes > available {
            let what = "a batch reaches past the committed end";
            return Err(ReadError::Damaged { path: segment.path(), at, what });
        }
        if first_bytes > len {
            if !first_whole {
                return Ok(None);
            }
            len = first_bytes;
        }
        assert!(len > 0, "a range has bytes");
        let verified = segment.is_verified(at, at + u64::from(len));
        let (generation, segment) = (segment.generation, segment.base_offset);
        Ok(Some(FileRange { file, segment, at, len, verified, compaction, generation }))
    }

    /// Returns the base offset of the batch that holds an offset, or of the next one if that is gone. `None` if there
    /// is none below `end`.
    pub fn base_of(
        &self,
        replica: ReplicaId,
        offset: i64,
        end: i64,
    ) -> Result<Option<i64>, ReadError> {
        let Some(mut range) = self.locate(replica, offset, end, 1, true)? else { return Ok(None) };
        let header_bytes = u32::try_from(BATCH_HEADER_BYTES).expect("a header is small");
        range.len = range.len.min(header_bytes);
        let bytes = self.read(replica, &range)?;
        Ok(BatchHeader::parse(&bytes).ok().map(|header| header.base_offset))
    }

    /// Returns the base offset so many batches further, if a batch begins at `offset`. Checks all batches between, so
    /// it may take as long as to read them.
    pub fn pass(&self, replica: ReplicaId, offset: i64, batches: u64) -> Result<i64, ReadError> {
        let found = self.pass_now(replica, offset, batches);
        self.suspect_of(replica, found)
    }

    fn pass_now(&self, replica: ReplicaId, offset: i64, batches: u64) -> Result<i64, ReadError> {
        let files = self.catalog.get(replica)?;
        let (mut at_offset, mut left) = (offset, batches);
        while left > 0 {
            let segment = files.segment_of(at_offset).ok_or(ReadError::OutOfRange)?;
            let (size, written_end) = segment.written();
            if at_offset >= written_end {
                return Err(ReadError::OutOfRange);
            }
            let file = self.file(&segment)?;
            let place = self.position_of(&segment, &file, at_offset)?;
            let (at, _) = place.ok_or(ReadError::OutOfRange)?;
            let mut walk = Walk::new(self, &files, &segment, &file, (at, at_offset));
            while left > 0 && walk.at < size {
                let place = walk.step()?;
                if place.batch.base_offset != at_offset {
                    return Err(ReadError::OutOfRange);
                }
                at_offset = walk.offset;
                left -= 1;
            }
        }
        Ok(at_offset)
    }

    /// Returns the range's bytes. Checks the CRCs of the batches first, unless the range is `verified`.
    pub fn read(&self, replica: ReplicaId, range: &FileRange<D::File>) -> Result<Bytes, ReadError> {
        self.read_into(replica, range, Vec::new())
    }

    /// Reads as [`Reader::read`] does, into memory that the caller had for another range.
    pub(crate) fn read_into(
        &self,
        replica: ReplicaId,
        range: &FileRange<D::File>,
        buffer: Vec<u8>,
    ) -> Result<Bytes, ReadError> {
        let found = self.read_now(replica, range, buffer);
        self.suspect_of(replica, found)
    }

    fn read_now(
        &self,
        replica: ReplicaId,
        range: &FileRange<D::File>,
        mut buffer: Vec<u8>,
    ) -> Result<Bytes, ReadError> {
        if !range.verified {
            self.verify_now(replica, range)?;
        }
        let segment = self.segment(replica, range)?;
        let len = range.len as usize;
        let buffer = if buffer.capacity() < len {
            vec![0; len]
        } else {
            buffer.resize(len, 0);
            buffer
        };
        self.fill(&segment.path(), &range.file, range.at, buffer)
    }

    /// Checks the batches of a range that is not `verified`, and reads it ahead into the page cache. Checks their
    /// CRCs. Checks the header fields outside the CRC by the index and by the neighbouring batches.
    pub fn verify(&self, replica: ReplicaId, range: &FileRange<D::File>) -> Result<(), ReadError> {
        let found = self.verify_now(replica, range);
        self.suspect_of(replica, found)
    }

    fn verify_now(&self, replica: ReplicaId, range: &FileRange<D::File>) -> Result<(), ReadError> {
        let files = self.catalog.get(replica)?;
        let segment = self.segment(replica, range)?;
        let end = range.at + u64::from(range.len);
        let anchor = self.anchor(&segment, &range.file, range.at)?;
        let mut walk = Walk::new(self, &files, &segment, &range.file, anchor);
        while walk.at < end {
            walk.step()?;
        }
        Ok(())
    }

    /// Returns the first record at or after `timestamp` (milliseconds) with `start <= offset < end`, as `(offset,
    /// timestamp)`.
    pub fn find_time(
        &self,
        replica: ReplicaId,
        timestamp: i64,
        start: i64,
        end: i64,
    ) -> Result<Option<(i64, i64)>, ReadError> {
        let found = self.find_time_now(replica, timestamp, start, end);
        self.suspect_of(replica, found)
    }

    fn find_time_now(
        &self,
        replica: ReplicaId,
        timestamp: i64,
        start: i64,
        end: i64,
    ) -> Result<Option<(i64, i64)>, ReadError> {
        let files = self.catalog.get(replica)?;
        for segment in files.segments() {
            let (size, written_end) = segment.written();
            if written_end <= start || segment.max_timestamp() < timestamp {
                continue;
            }
            if segment.base_offset >= end {
                break;
            }
            let file = self.file(&segment)?;
            let hint = self.time_floor(&segment, timestamp)?.max(start).max(segment.base_offset);
            let anchor = self.anchor(&segment, &file, self.floor(&segment, hint)?)?;
            let mut walk = Walk::new(self, &files, &segment, &file, anchor);
            while walk.at < size {
                let place = walk.step()?;
                if place.batch.base_offset >= end {
                    return Ok(None);
                }
                if place.batch.max_timestamp >= timestamp {
                    let found =
                        self.records(&segment, &file, place)?.into_iter().find(|(offset, time)| {
                            *time >= timestamp && *offset >= start && *offset < end
                        });
                    if found.is_some() {
                        return Ok(found);
                    }
                }
            }
        }
        Ok(None)
    }

    /// Returns the record with the largest timestamp below `end` (the first of several), as `(offset, timestamp)`.
    pub fn find_max_time(
        &self,
        replica: ReplicaId,
        start: i64,
        end: i64,
    ) -> Result<Option<(i64, i64)>, ReadError> {
        let found = self.find_max_time_now(replica, start, end);
        self.suspect_of(replica, found)
    }

    fn find_max_time_now(
        &self,
        replica: ReplicaId,
        start: i64,
        end: i64,
    ) -> Result<Option<(i64, i64)>, ReadError> {
        let files = self.catalog.get(replica)?;
        let mut best: Option<(i64, i64)> = None;
        for segment in files.segments() {
            let (size, written_end) = segment.written();
            let beaten = best.is_some_and(|(_, time)| time >= segment.max_timestamp());
            if written_end <= start || segment.base_offset >= end || beaten {
                continue;
            }
            let file = self.file(&segment)?;
            let mut walk = Walk::new(self, &files, &segment, &file, (0, segment.base_offset));
            // A batch that straddles `start` or `end` may have its largest timestamp outside.
            let mut places = Vec::new();
            let mut largest: Option<Place> = None;
            while walk.at < size {
                let place = walk.step()?;
                let batch = place.batch;
                if batch.base_offset >= end {
                    break;
                }
                if batch.base_offset < start || batch.end_offset() > end {
                    if batch.end_offset() > start {
                        places.push(place);
                    }
                } else if largest.is_none_or(|it| batch.max_timestamp > it.batch.max_timestamp) {
                    largest = Some(place);
                }
            }
            places.extend(largest);
            places.sort_by_key(|place| place.at);
            for place in places {
                for (offset, time) in self.records(&segment, &file, place)? {
                    let inside = offset >= start && offset < end;
                    if inside && best.is_none_or(|(_, most)| time > most) {
                        best = Some((offset, time));
                    }
                }
            }
        }
        Ok(best)
    }

    /// Returns the disk below.
    pub fn disk(&self) -> &D {
        &self.disk
    }

    /// Returns the segment of a range. Another segment may have replaced it, and says nothing of the range's file.
    fn segment(
        &self,
        replica: ReplicaId,
        range: &FileRange<D::File>,
    ) -> Result<Arc<Segment<D>>, ReadError> {
        let files = self.catalog.get(replica)?;
        let segment = files.segment_of(range.segment).ok_or(ReadError::OutOfRange)?;
        if segment.generation == range.generation { Ok(segment) } else { Err(ReadError::Removed) }
    }

    /// Returns the offsets and timestamps of a batch's records. Checks the batch's CRC first.
    fn records(
        &self,
        segment: &Segment<D>,
        file: &D::File,
        place: Place,
    ) -> Result<Vec<(i64, i64)>, ReadError> {
        let Place { at, batch } = place;
        let damaged = |what| ReadError::Damaged { path: segment.path(), at, what };
        let bytes = self.read_file(&segment.path(), file, at, batch.length as usize)?;
        if !batch.matches(&bytes) {
            return Err(damaged("a batch's CRC does not match"));
        }
        if (batch.log_append_time && segment.is_dense()) || batch.control {
            let offsets = batch.base_offset..batch.end_offset();
            return Ok(offsets.map(|offset| (offset, batch.max_timestamp)).collect());
        }
        let unreadable = |_| damaged("a batch's records cannot be read");
        let view = BatchView::parse(&bytes).map_err(|_| damaged("there is no batch"))?;
        let records = Records::of(&view, RECORD_BYTES_MAX).map_err(unreadable)?;
        let mut times = Vec::new();
        for record in &records {
            let record = record.map_err(unreadable)?;
            times.push((records.offset(&record), records.timestamp(&record)));
        }
        Ok(times)
    }

    fn file(&self, segment: &Arc<Segment<D>>) -> Result<D::File, ReadError> {
        self.catalog.file(&self.disk, segment)
    }

    fn read_file(
        &self,
        path: &str,
        file: &D::File,
        at: u64,
        len: usize,
    ) -> Result<Bytes, ReadError> {
        self.fill(path, file, at, vec![0; len])
    }

    /// Reads as many bytes as `bytes` has.
    fn fill(
        &self,
        path: &str,
        file: &D::File,
        at: u64,
        mut bytes: Vec<u8>,
    ) -> Result<Bytes, ReadError> {
        let read = self
            .disk
            .read_at(file, &mut bytes, at)
            .map_err(|source| ReadError::Disk { path: path.to_owned(), source })?;
        if read < bytes.len() {
            let what = "the file is shorter than it was";
            return Err(ReadError::Damaged { path: path.to_owned(), at, what });
        }
        Ok(Bytes::from(bytes))
    }

    /// Returns a position at or before `at` where a batch begins, and that batch's base offset. Falls back to the
    /// segment's beginning where the index entry does not fit the batch.
    fn anchor(
        &self,
        segment: &Segment<D>,
        file: &D::File,
        at: u64,
    ) -> Result<(u64, i64), ReadError> {
        let entry = match segment.index_tail_before(at) {
            Some(entry) => Some(entry),
            None => self.search_index(segment, |entry| u64::from(entry.position) <= at)?,
        };
        let Some(entry) = entry else { return Ok((0, segment.base_offset)) };
        let file_at = u64::from(entry.position);
        let path = segment.path();
        let last = segment.base_offset + i64::from(entry.offset_delta);
        match self.header(&path, file, file_at) {
            Ok(batch) if batch.end_offset() == last + 1 => Ok((file_at, batch.base_offset)),
            // A scan from the segment's beginning finds out whether the index is wrong or the batch.
            Ok(_) | Err(ReadError::Damaged { .. }) if !segment.is_damaged() => {
                Ok((0, segment.base_offset))
            }
            Ok(_) => {
                let what = "a batch does not end where the index says";
                Err(ReadError::Damaged { path, at: file_at, what })
            }
            Err(error) => Err(error),
        }
    }

    fn search_index(
        &self,
        segment: &Segment<D>,
        before: impl Fn(&IndexEntry) -> bool,
    ) -> Result<Option<IndexEntry>, ReadError> {
        let read = |bytes: &[u8]| IndexEntry {
            offset_delta: be_u32(bytes, 0),
            position: be_u32(bytes, 4),
        };
        self.check_index(segment)?;
        if segment.is_index_bad() {
            return Ok(None);
        }
        let flushed = segment.index_flushed();
        match self.search(segment, "index", flushed, INDEX_ENTRY_BYTES, read, before) {
            // The index file is too short, or gone: the search only begins earlier without it.
            Err(ReadError::Damaged { .. }) => {
                segment.distrust_index();
                Ok(None)
            }
            found => found,
        }
    }

    /// Compares the index of a segment that compaction made with its CRC, before the reader trusts it.
    fn check_index(&self, segment: &Segment<D>) -> Result<(), ReadError> {
        let Some(expected) = segment.unchecked_index() else { return Ok(()) };
        let bytes = segment.index_flushed() as usize * INDEX_ENTRY_BYTES;
        let path = segment.sibling("index");
        let mut crc = 0;
        if bytes > 0 {
            let file = match self.disk.open(&path) {
                Err(source) if source.kind() == io::ErrorKind::NotFound => {
                    if segment.is_gone() {
                        return Err(ReadError::Removed);
                    }
                    segment.distrust_index();
                    return Ok(());
                }
                opened => {
                    opened.map_err(|source| ReadError::Disk { path: path.clone(), source })?
                }
            };
            for at in (0..bytes).step_by(INDEX_CHUNK_BYTES) {
                let len = (bytes - at).min(INDEX_CHUNK_BYTES);
                match self.read_file(&path, &file, at as u64, len) {
                    Err(ReadError::Damaged { .. }) => {
                        segment.distrust_index();
                        return Ok(());
                    }
                    chunk => crc = crc32c::crc32c_append(crc, &chunk?),
                }
            }
        }
        if crc == expected {
            segment.set_index_checked();
        } else {
            segment.distrust_index();
        }
        Ok(())
    }

    /// Tells whether a batch belongs at its position. In a segment that compaction made, the predecessor does not
    /// tell, because there may be gaps. There the index lists all batches, and does.
    pub(crate) fn belongs(
        &self,
        segment: &Segment<D>,
        at: u64,
        batch: &Descriptor,
    ) -> Result<bool, ReadError> {
        if segment.is_dense() {
            return Ok(true);
        }
        let entry = self.search_index(segment, |entry| u64::from(entry.position) <= at)?;
        let is_it = entry.is_some_and(|entry| {
            let last = segment.base_offset + i64::from(entry.offset_delta);
            u64::from(entry.position) == at && batch.end_offset() == last + 1
        });
        Ok(is_it || segment.is_index_bad())
    }

    fn header(&self, path: &str, file: &D::File, at: u64) -> Result<Descriptor, ReadError> {
        let bytes = self.read_file(path, file, at, BATCH_HEADER_BYTES)?;
        Descriptor::of_batch(&bytes, at == 0).map_err(|_| ReadError::Damaged {
            path: path.to_owned(),
            at,
            what: "there is no batch header",
        })
    }

    /// Returns position and length of the batch that holds `offset`. In a segment that compaction made, returns the
    /// first batch that ends behind `offset`, if there is one.
    fn position_of(
        &self,
        segment: &Segment<D>,
        file: &D::File,
        offset: i64,
    ) -> Result<Option<(u64, u32)>, ReadError> {
        if let Some(place) = segment.recent_place(offset) {
            return Ok(Some(place));
        }
        let from = self.floor(segment, offset)?;
        match self.position_from(segment, file, offset, from) {
            // An index has no checksum. Without it the reader still finds the batch by a scan.
            Err(ReadError::Damaged { .. })
                if from > 0 && segment.is_dense() && !segment.is_damaged() =>
            {
                let found = self.position_from(segment, file, offset, 0)?;
                segment.distrust_index();
                Ok(found)
            }
            found => found,
        }
    }

    /// Finds the same batch by a walk from a position where a batch begins.
    fn position_from(
        &self,
        segment: &Segment<D>,
        file: &D::File,
        offset: i64,
        mut at: u64,
    ) -> Result<Option<(u64, u32)>, ReadError> {
        let path = segment.path();
        let (size, _) = segment.written();
        let mut window = Bytes::new();
        let mut window_at = at;
        loop {
            let damaged = |what| ReadError::Damaged { path: path.clone(), at, what };
            if at >= size && !segment.is_dense() {
                return Ok(None);
            }
            if at >= size {
                return Err(damaged("the batch that holds the offset is missing"));
            }
            let skip = usize::try_from(at - window_at).unwrap_or(usize::MAX);
            if skip.saturating_add(BATCH_HEADER_BYTES) > window.len() {
                let len = usize::try_from(size - at).unwrap_or(usize::MAX).min(WINDOW_BYTES);
                window = self.read_file(&path, file, at, len)?;
                window_at = at;
                if window.len() < BATCH_HEADER_BYTES {
                    return Err(damaged("a batch header is cut short"));
                }
                continue;
            }
            let batch = Descriptor::of_batch(&window[skip..], at == 0)
                .map_err(|_| damaged("there is no batch header"))?;
            if offset < batch.base_offset && segment.is_dense() {
                return Err(damaged("the batch that holds the offset is missing"));
            }
            if !self.belongs(segment, at, &batch)? {
                return Err(damaged(NOT_AS_INDEXED));
            }
            if offset < batch.end_offset() {
                return Ok(Some((at, batch.length)));
            }
            at += u64::from(batch.length);
        }
    }

    /// Returns a position at or before the batch that holds `offset`, by the sparse index.
    fn floor(&self, segment: &Segment<D>, offset: i64) -> Result<u64, ReadError> {
        let delta = u32::try_from(offset - segment.base_offset).unwrap_or(u32::MAX);
        if let Some(entry) = segment.index_tail_floor(delta) {
            return Ok(u64::from(entry.position));
        }
        let found = self.search_index(segment, |entry| entry.offset_delta <= delta)?;
        Ok(found.map_or(0, |entry| u64::from(entry.position)))
    }

    /// Returns an offset before which no record is as late as `timestamp`.
    fn time_floor(&self, segment: &Segment<D>, timestamp: i64) -> Result<i64, ReadError> {
        let at = |entry: TimeEntry| segment.base_offset + i64::from(entry.offset_delta);
        if let Some(entry) = segment.times_tail_floor(timestamp) {
            return Ok(at(entry));
        }
        let read = |bytes: &[u8]| TimeEntry {
            timestamp: i64::from_be_bytes(bytes[..8].try_into().expect("eight bytes")),
            offset_delta: be_u32(bytes, 8),
        };
        let flushed = segment.times_flushed();
        let before = |entry: &TimeEntry| entry.timestamp < timestamp;
        match self.search(segment, "timeindex", flushed, TIME_ENTRY_BYTES, read, before) {
            Err(ReadError::Damaged { .. }) => Ok(segment.base_offset),
            found => Ok(found?.map_or(segment.base_offset, at)),
        }
    }

    /// Returns the last entry of a sorted file for which `before` holds.
    fn search<E: Copy>(
        &self,
        segment: &Segment<D>,
        extension: &str,
        count: u32,
        entry_bytes: usize,
        read: impl Fn(&[u8]) -> E,
        before: impl Fn(&E) -> bool,
    ) -> Result<Option<E>, ReadError> {
        if count == 0 {
            return Ok(None);
        }
        let path = segment.sibling(extension);
        let file = self.disk.open(&path).map_err(|source| match source.kind() {
            io::ErrorKind::NotFound if segment.is_gone() => ReadError::Removed,
            io::ErrorKind::NotFound => {
                ReadError::Damaged { path: path.clone(), at: 0, what: "the file is gone" }
            }
            _ => ReadError::Disk { path: path.clone(), source },
        })?;
        let (mut low, mut high, mut found) = (0, count, None);
        while low < high {
            let middle = low + (high - low) / 2;
            let at = u64::from(middle) * entry_bytes as u64;
            let entry = read(&self.read_file(&path, &file, at, entry_bytes)?);
            if before(&entry) {
                found = Some(entry);
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        Ok(found)
    }
}

/// Walks over batches, checking each that was not checked since the process started.
struct Walk<'a, D: Disk> {
    reader: &'a Reader<D>,
    files: &'a LogFiles<D>,
    segment: &'a Segment<D>,
    file: &'a D::File,
    path: String,
    /// Bytes of the segment, and the offset behind its last batch.
    written: (u64, i64),
    at: u64,
    offset: i64,
}

impl<'a, D: Disk> Walk<'a, D> {
    fn new(
        reader: &'a Reader<D>,
        files: &'a LogFiles<D>,
        segment: &'a Segment<D>,
        file: &'a D::File,
        (at, offset): (u64, i64),
    ) -> Self {
        let (path, written) = (segment.path(), segment.written());
        Self { reader, files, segment, file, path, written, at, offset }
    }

    fn step(&mut self) -> Result<Place, ReadError> {
        let at = self.at;
        let batch = self.reader.header(&self.path, self.file, at)?;
        let end = at + u64::from(batch.length);
        if !self.segment.is_verified(at, end) {
            if !self.reader.belongs(self.segment, at, &batch)? {
                let path = self.path.clone();
                return Err(ReadError::Damaged { path, at, what: NOT_AS_INDEXED });
            }
            self.check(&batch, end)?;
            self.segment.set_verified(at, end);
        }
        self.at = end;
        self.offset = batch.end_offset();
        Ok(Place { at, batch })
    }

    fn check(&self, batch: &Descriptor, end: u64) -> Result<(), ReadError> {
        let at = self.at;
        let damaged = |what| Err(ReadError::Damaged { path: self.path.clone(), at, what });
        let (size, written_end) = self.written;
        if end > size || batch.end_offset() > written_end {
            return damaged("a batch reaches past the end");
        }
        // The file of another log has sound batches, but their offsets end elsewhere.
        if end == size && batch.end_offset() < written_end && self.segment.is_dense() {
            return damaged("the last batches of the segment are missing");
        }
        let length = batch.length as usize;
        let bytes = self.reader.read_file(&self.path, self.file, at, length)?;
        let place = (self.offset, self.segment.is_dense());
        fault_of(self.files, batch, &bytes, place).map_or(Ok(()), damaged)
    }
}

/// Returns the fault of a batch that should begin at an offset; in a compacted segment the batch may begin later.
/// Checks the checksum, and the header fields outside of it.
pub(crate) fn fault_of<D: Disk>(
    files: &LogFiles<D>,
    batch: &Descriptor,
    bytes: &[u8],
    (offset, is_dense): (i64, bool),
) -> Option<&'static str> {
    if batch.base_offset < offset || is_dense && batch.base_offset != offset {
        return Some("a batch's base offset does not follow its predecessor's");
    }
    if !batch.matches(bytes) {
        return Some("a batch's CRC does not match");
    }
    let term = u64::from(u32::from_be_bytes(bytes[12..16].try_into().expect("four bytes")));
    if files.term_at(batch.base_offset) != Some(term) {
        return Some("a batch's leader epoch is not the term it was appended in");
    }
    None
}

fn be_u32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}
