//! # Room card: disk
//!
//! Purpose:    the one seam between storage and the machine.
//! Owns:       the contract of the real disk and the simulated one.
//! Interface:  [`Disk`]; `is_full` and `ignore_missing` for its errors.
//! Invariants: paths are relative to the data directory, with `/` between their parts.
//! Never:      decisions: a disk executes each call, and reports a failure.
//! Tests:      `duramen-sim/src/disk.rs` is the adversarial implementation.
//! Start at:   [`Disk`].

use std::fmt::Debug;
use std::io;

/// Files of one directory that were written to, and the directory's own entries.
#[derive(Clone, Debug)]
pub struct Unsynced<F> {
    /// Files that were written to.
    pub files: Vec<F>,
    /// Directory of those files; `None` if it has not changed.
    pub dir: Option<String>,
}

impl<F> Unsynced<F> {
    /// Syncs the files, and then the directory.
    pub fn sync<D: Disk<File = F>>(&self, disk: &D) -> io::Result<()> {
        self.files.iter().try_for_each(|file| disk.sync(file))?;
        self.dir.iter().try_for_each(|dir| disk.sync_dir(dir))
    }
}

/// Blocking access to one data directory.
///
/// After a power loss the data directory holds all that [`Disk::sync`] (a file's bytes and length) and
/// [`Disk::sync_dir`] (a directory's entries) returned `Ok` for. Anything else may or may not survive, page by page
/// and entry by entry, in any order. The caller must not repeat a sync that returned an error: the kernel may have
/// marked the pages clean (Rebello et al., ATC '20).
pub trait Disk: Clone + Debug + Send + Sync + 'static {
    /// An open file. Cloning shares it; it stays readable after the file is renamed or removed.
    type File: Clone + Debug + Send + Sync + 'static;

    /// Creates a file that must not exist yet, open for reading and writing.
    fn create(&self, path: &str) -> io::Result<Self::File>;
    /// Opens a file that exists, for reading and writing.
    fn open(&self, path: &str) -> io::Result<Self::File>;
    /// Returns the file's length in bytes.
    fn len(&self, file: &Self::File) -> io::Result<u64>;
    /// Reads through the page cache; returns fewer bytes than asked only at the end of the file.
    fn read_at(&self, file: &Self::File, buf: &mut [u8], at: u64) -> io::Result<usize>;
    /// Reads `len` bytes at `at` from the medium, not from the page cache; `at` and `len` may be
    /// unaligned. Returns fewer bytes only at the end of the file.
    fn read_medium(&self, file: &Self::File, at: u64, len: usize) -> io::Result<Vec<u8>>;
    /// Writes all the buffers, one after the other, at `at`. On an error any part may be written.
    fn write_at(&self, file: &Self::File, bufs: &[&[u8]], at: u64) -> io::Result<()>;
    /// Cuts or extends (with zeros) the file.
    fn set_len(&self, file: &Self::File, len: u64) -> io::Result<()>;
    /// Returns once the file's bytes and length are on the medium (`fdatasync`).
    fn sync(&self, file: &Self::File) -> io::Result<()>;
    /// Starts writing `len` bytes at `at` back, and promises nothing: a sync then has less to do.
    fn start_writeback(&self, file: &Self::File, at: u64, len: u64) -> io::Result<()>;
    /// Creates a directory; one that exists already is not an error.
    fn create_dir(&self, path: &str) -> io::Result<()>;
    /// Returns once the directory's entries are on the medium. `""` is the data directory.
    fn sync_dir(&self, path: &str) -> io::Result<()>;
    /// Syncs many files and directories, and returns the results in order. A real disk syncs many at once, which then
    /// share the work of the file system and the medium.
    fn sync_each(&self, unsynced: &[Unsynced<Self::File>]) -> Vec<io::Result<()>> {
        unsynced.iter().map(|it| it.sync(self)).collect()
    }
    /// Returns the names in a directory, sorted. `""` is the data directory.
    fn list(&self, path: &str) -> io::Result<Vec<String>>;
    /// Renames a file or directory, replacing a file of the new name.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a file.
    fn remove_file(&self, path: &str) -> io::Result<()>;
    /// Removes a directory with all that is in it.
    fn remove_dir(&self, path: &str) -> io::Result<()>;
    /// Returns the number of bytes that can still be written before the disk is full.
    fn available(&self) -> io::Result<u64>;
}

/// Tells whether an operation failed for want of room.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Takes a missing file for a removed one.
pub(crate) fn ignore_missing(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
