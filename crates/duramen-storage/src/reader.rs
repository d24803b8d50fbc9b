//! # Room card: reader
//!
//! Purpose:    find the bytes of a read without touching the write path.
//! Owns:       the shared catalogue of segments, offset and time lookups, first-touch verification.
//! Interface:  [`Reader::locate`], [`Reader::read`], [`Reader::find_time`].
//! Invariants: a located range holds its file: it stays whole when the segment is removed.
//!             A range never reaches past the committed end it was asked with.
//! Never:      writes.
//! Tests:      with the storage tests.
//! Start at:   [`Reader::locate`].

use bytes::Bytes;

use crate::{Disk, ReplicaId};

/// Bytes of one segment that answer a read.
#[derive(Clone, Debug)]
pub struct FileRange<F> {
    /// The segment's file, held open.
    pub file: F,
    /// Position of the first byte.
    pub at: u64,
    /// How many bytes; never 0.
    pub len: u32,
    /// The bytes were written by this process or their CRCs were checked since it started. If
    /// not, [`Reader::read`] or [`Reader::verify`] them first, off the node's thread: the disk
    /// may have rotted.
    pub verified: bool,
}

/// Why a read could not be answered.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// No such replica here.
    #[error("no such replica on this node")]
    UnknownReplica,
    /// The offset is below the first segment, or above the end asked with.
    #[error("the offset is outside the log")]
    OutOfRange,
    /// The medium gave bytes that do not match their checksums.
    #[error("damaged bytes in {path} at {at}: {what}")]
    Damaged {
        /// The file, relative to the data directory.
        path: String,
        /// Position of the bad batch.
        at: u64,
        /// What does not fit.
        what: &'static str,
    },
    /// The disk would not read.
    #[error("could not read {path}")]
    Disk {
        /// The file, relative to the data directory.
        path: String,
        /// The disk's answer.
        #[source]
        source: std::io::Error,
    },
}

/// Shared, cheap to clone, used from any thread.
#[derive(Clone, Debug)]
pub struct Reader<D: Disk> {
    disk: D,
}

impl<D: Disk> Reader<D> {
    /// Where the batch that holds `offset` starts, and up to `bytes_max` bytes from there, within
    /// one segment and below `end` (the committed end offset, exclusive). `Ok(None)` when
    /// `offset == end`. The first batch is whole even if it is longer than `bytes_max` when
    /// `first_whole` is set; otherwise the range is cut at `bytes_max`, so its last batch may be
    /// partial, as in Kafka; `Ok(None)` if nothing fits.
    pub fn locate(
        &self,
        _replica: ReplicaId,
        _offset: i64,
        _end: i64,
        _bytes_max: u32,
        _first_whole: bool,
    ) -> Result<Option<FileRange<D::File>>, ReadError> {
        Err(ReadError::UnknownReplica)
    }

    /// The range's bytes, their batches' CRCs checked unless `verified`.
    pub fn read(
        &self,
        _replica: ReplicaId,
        _range: &FileRange<D::File>,
    ) -> Result<Bytes, ReadError> {
        Err(ReadError::UnknownReplica)
    }

    /// Checks the CRCs of a range that is not `verified`, reading it ahead into the page cache.
    pub fn verify(
        &self,
        _replica: ReplicaId,
        _range: &FileRange<D::File>,
    ) -> Result<(), ReadError> {
        Err(ReadError::UnknownReplica)
    }

    /// The first record at or after `timestamp` (milliseconds) with `start <= offset < end`, as
    /// `(offset, timestamp)`.
    pub fn find_time(
        &self,
        _replica: ReplicaId,
        _timestamp: i64,
        _start: i64,
        _end: i64,
    ) -> Result<Option<(i64, i64)>, ReadError> {
        Err(ReadError::UnknownReplica)
    }

    /// The record with the largest timestamp below `end`, as `(offset, timestamp)`.
    pub fn find_max_time(
        &self,
        _replica: ReplicaId,
        _start: i64,
        _end: i64,
    ) -> Result<Option<(i64, i64)>, ReadError> {
        Err(ReadError::UnknownReplica)
    }

    /// The disk below.
    pub fn disk(&self) -> &D {
        &self.disk
    }
}
