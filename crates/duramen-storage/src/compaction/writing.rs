//! # Room card: writing
//!
//! Purpose:    write a segment that is complete from the start: its batches, an index entry for each of them, and its
//!             times.
//! Owns:       the bytes until they are in files, and the files until storage has them.
//! Interface:  [`SegmentWriter`].
//! Invariants: the writer creates only files that did not exist. A finished segment is synced, but its names are not.
//! Never:      the choice of batches.
//! Tests:      with compaction, and `duramen-sim/tests/promises/compaction.rs`.
//! Start at:   [`SegmentWriter::put`].

use std::io;

use bytes::BufMut;

use crate::Disk;
use crate::descriptor::Descriptor;
use crate::disk::is_full;
use crate::format::{GIVEN, INDEX_ENTRY_BYTES};
use crate::replica_state::{SegmentState, TimeEntry};
use crate::sabotage::{self, Bug};

/// Written at once.
const BUFFER_BYTES: usize = 256 * 1024;
/// Bytes of batches for which a segment has an entry in its time index at most.
const TIME_INTERVAL_BYTES: u64 = 4096;

/// Why a segment was not written.
#[derive(Debug)]
pub(crate) enum WriteError {
    /// The segment would be larger than a segment may be.
    TooLarge,
    /// The disk is full.
    NoRoom,
    /// The disk failed.
    Disk { path: String, source: io::Error },
}

/// See the room card.
#[derive(Debug)]
pub(crate) struct SegmentWriter<D: Disk> {
    disk: D,
    state: SegmentState,
    stem: String,
    /// If not, it is read once more and goes: it needs no index, nor to be synced.
    is_final: bool,
    file: D::File,
    batches: Vec<u8>,
    batches_at: u64,
    index_file: Option<D::File>,
    index: Vec<u8>,
    index_at: u64,
    times: Vec<TimeEntry>,
    timed_at: u64,
}

fn failed(path: &str, error: io::Error) -> WriteError {
    if is_full(&error) {
        return WriteError::NoRoom;
    }
    WriteError::Disk { path: path.to_owned(), source: error }
}

/// Makes a file that was not there, and notes that.
fn create<D: Disk>(disk: &D, path: String, made: &mut Vec<String>) -> Result<D::File, WriteError> {
    match disk.remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(&path, error)),
        _ => {}
    }
    made.push(path);
    let path = made.last().expect("it was just pushed");
    disk.create(path).map_err(|error| failed(path, error))
}

impl<D: Disk> SegmentWriter<D> {
    /// Begins a segment with nothing in it. All files that are made are noted.
    pub(crate) fn begin(
        disk: &D,
        state: SegmentState,
        stem: String,
        is_final: bool,
        made: &mut Vec<String>,
    ) -> Result<Self, WriteError> {
        let file = create(disk, format!("{stem}.log"), made)?;
        Ok(Self {
            disk: disk.clone(),
            state,
            stem,
            is_final,
            file,
            batches: Vec::new(),
            batches_at: 0,
            index_file: None,
            index: Vec::new(),
            index_at: 0,
            times: Vec::new(),
            timed_at: 0,
        })
    }

    pub(crate) fn base_offset(&self) -> i64 {
        self.state.base_offset
    }

    pub(crate) fn size(&self) -> u64 {
        self.state.size
    }

    /// Adds the next batch.
    pub(crate) fn put(
        &mut self,
        batch: &Descriptor,
        bytes: &[u8],
        made: &mut Vec<String>,
    ) -> Result<(), WriteError> {
        assert_eq!(bytes.len(), batch.length as usize, "a batch is written whole");
        let state = &mut self.state;
        let position = u32::try_from(state.size).map_err(|_| WriteError::TooLarge)?;
        let delta = state.delta(batch.end_offset() - 1);
        if batch.max_timestamp > state.max_timestamp {
            (state.max_timestamp, state.max_timestamp_delta) = (batch.max_timestamp, delta);
        }
        self.index.put_u32(delta);
        self.index.put_u32(position);
        state.index_flushed += 1;
        state.flushed_position = position;
        state.size += u64::from(batch.length);
        self.batches.extend_from_slice(bytes);
        if state.size >= self.timed_at + TIME_INTERVAL_BYTES {
            self.timed_at = state.size;
            self.note_time();
        }
        if self.batches.len() >= BUFFER_BYTES || self.index.len() >= BUFFER_BYTES {
            self.flush(made)?;
        }
        Ok(())
    }

    fn note_time(&mut self) {
        let timestamp = self.state.max_timestamp;
        if timestamp > self.times.last().map_or(-1, |it| it.timestamp) {
            let offset_delta = self.state.max_timestamp_delta;
            self.times.push(TimeEntry { timestamp, offset_delta });
        }
    }

    /// Writes what is in memory.
    fn flush(&mut self, made: &mut Vec<String>) -> Result<(), WriteError> {
        let path = format!("{}.log", self.stem);
        let len = self.batches.len() as u64;
        self.disk
            .write_at(&self.file, &[&self.batches], self.batches_at)
            .and_then(|()| self.disk.start_writeback(&self.file, self.batches_at, len))
            .map_err(|error| failed(&path, error))?;
        self.batches_at += len;
        self.batches.clear();
        if self.is_final && !self.index.is_empty() {
            let path = format!("{}.index", self.stem);
            let file = match self.index_file.take() {
                Some(file) => file,
                None => create(&self.disk, path.clone(), made)?,
            };
            self.disk
                .write_at(&file, &[&self.index], self.index_at)
                .map_err(|error| failed(&path, error))?;
            self.state.index_crc = crc32c::crc32c_append(self.state.index_crc, &self.index);
            self.index_at += self.index.len() as u64;
            self.index_file = Some(file);
        }
        self.index.clear();
        Ok(())
    }

    /// Ends the segment, which is whole. Returns its state and its path.
    pub(crate) fn end(
        mut self,
        made: &mut Vec<String>,
    ) -> Result<(SegmentState, String), WriteError> {
        self.flush(made)?;
        assert_eq!(self.batches_at, self.state.size, "all batches are in the file");
        let path = format!("{}.log", self.stem);
        if !self.is_final {
            return Ok((self.state, path));
        }
        let index_bytes = u64::from(self.state.index_flushed) * INDEX_ENTRY_BYTES as u64;
        assert_eq!(self.index_at, index_bytes, "the index has an entry for each batch");
        self.note_time();
        let mut files = vec![(path.clone(), self.file)];
        if let Some(file) = self.index_file {
            files.push((format!("{}.index", self.stem), file));
        }
        if !self.times.is_empty() {
            let path = format!("{}.timeindex", self.stem);
            let file = create(&self.disk, path.clone(), made)?;
            let mut bytes = Vec::new();
            for entry in &self.times {
                bytes.put_i64(entry.timestamp);
                bytes.put_u32(entry.offset_delta);
            }
            let written = self.disk.write_at(&file, &[&bytes], 0);
            written.map_err(|error| failed(&path, error))?;
            files.push((path, file));
        }
        let is_given = self.state.generation & GIVEN != 0;
        let is_skipped =
            sabotage::is(Bug::CompactedNotSynced) || is_given && sabotage::is(Bug::StagedNotSynced);
        for (path, file) in files.iter().filter(|_| !is_skipped) {
            self.disk.sync(file).map_err(|error| failed(path, error))?;
        }
        let state = &mut self.state;
        state.times_flushed = u32::try_from(self.times.len()).expect("fewer than batches");
        state.flushed_timestamp = self.times.last().map_or(-1, |it| it.timestamp);
        state.image_max_timestamp = state.max_timestamp;
        state.image_max_delta = state.max_timestamp_delta;
        Ok((self.state, path))
    }
}
