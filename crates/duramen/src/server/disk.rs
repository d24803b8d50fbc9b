//! # Room card: disk
//!
//! Purpose:    the real data directory.
//! Owns:       every file system call of storage and of the fetch path.
//! Interface:  [`RealDisk::open`], [`RealFile`].
//! Invariants: what [`Disk`] promises. One process has the directory, by a lock that the kernel drops
//!             with the process. [`Disk::read_medium`] does not return what only the page cache has.
//! Never:      a retry of a failed sync; a decision.
//! Tests:      `disk/tests.rs`, a suite over any [`Disk`].
//! Start at:   [`RealDisk::open`].

use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use duramen_storage::Disk;
use duramen_storage::disk::Unsynced;
use rustix::fs::{Advice, FlockOperation, Mode, OFlags};
use rustix::io::{Errno, ReadWriteFlags};

/// Direct reads are aligned to this in position, length and memory; every block device in use
/// accepts it.
const DIRECT_ALIGN: usize = 4096;

/// Linux takes at most this many buffers in one `pwritev` (`IOV_MAX`).
const WRITE_BUFS_MAX: usize = 1024;

/// Bytes between two probes for residency: the kernel reads ahead and reclaims in runs of about this.
const PROBE_STEP: u64 = 256 * 1024;

/// Bytes of one request to read ahead.
const ADVICE_STEP: u64 = 512 * 1024;

/// Syncs at once when the node starts. They share what the file system writes for one, so more wait no longer.
const SYNCS_AT_ONCE: usize = 64;

/// A disk that was synced so long ago is not being appended to.
const SYNC_PAUSE_MS: u64 = 100;

/// Bytes between two touches of a range that is being loaded.
const LOAD_STEP: u64 = 32 * 1024;

/// Time added to each sync, for `bench/`.
#[cfg(feature = "slow-syncs")]
static SLOW_SYNC: std::sync::LazyLock<std::time::Duration> = std::sync::LazyLock::new(|| {
    let us = std::env::var("DURAMEN_SLOW_SYNC_US").map(|us| us.parse().expect("microseconds"));
    std::time::Duration::from_micros(us.unwrap_or(0))
});

/// One data directory on a real file system, locked for this process. Clones share the lock.
#[derive(Clone, Debug)]
pub struct RealDisk {
    root: Arc<Root>,
}

#[derive(Debug)]
struct Root {
    path: PathBuf,
    /// The directory itself, open and locked: the lock needs no file, so it cannot go stale.
    directory: File,
    direct_refused: AtomicBool,
    opened: Instant,
    /// Milliseconds from then to the end of the last sync.
    synced_ms: AtomicU64,
}

/// An open file. Clones share the descriptor.
#[derive(Clone, Debug)]
pub struct RealFile {
    file: Arc<File>,
    root: Arc<Root>,
}

impl Root {
    fn now_ms(&self) -> u64 {
        u64::try_from(self.opened.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Tells whether appends are being made durable, so that the next sync comes soon.
    fn is_syncing(&self) -> bool {
        self.now_ms() < self.synced_ms.load(Ordering::Relaxed) + SYNC_PAUSE_MS
    }
}

impl RealDisk {
    /// Returns the bytes of the file system that holds the directory: all of them, and those that may still be
    /// written.
    pub fn volume(&self) -> io::Result<(i64, i64)> {
        let stat = rustix::fs::fstatvfs(&self.root.directory)?;
        let bytes =
            |blocks: u64| i64::try_from(blocks.saturating_mul(stat.f_frsize)).unwrap_or(i64::MAX);
        Ok((bytes(stat.f_blocks), bytes(stat.f_bavail)))
    }

    /// Returns the data directory.
    pub fn path(&self) -> &Path {
        &self.root.path
    }

    /// Creates the directory if it is missing, and locks it.
    ///
    /// An error of kind [`io::ErrorKind::ResourceBusy`] means that another process has it.
    pub fn open(path: &Path) -> io::Result<Self> {
        std::fs::create_dir_all(path)?;
        let directory = File::open(path)?;
        match rustix::fs::flock(&directory, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                return Err(io::Error::new(
                    io::ErrorKind::ResourceBusy,
                    format!("{} is in use by another process", path.display()),
                ));
            }
            Err(error) => return Err(error.into()),
        }
        // A directory that was just made must outlive a power loss together with what is in it.
        if let Some(parent) = path.canonicalize()?.parent() {
            File::open(parent)?.sync_all()?;
        }
        let direct_refused = AtomicBool::new(false);
        let (opened, synced_ms) = (Instant::now(), AtomicU64::new(0));
        let root = Root { path: path.to_owned(), directory, direct_refused, opened, synced_ms };
        Ok(Self { root: Arc::new(root) })
    }

    /// Returns the place of `path`. Only plain names below the root are allowed, whatever a caller computed.
    fn resolve(&self, path: &str) -> io::Result<PathBuf> {
        let relative = Path::new(path);
        if relative.components().any(|part| !matches!(part, Component::Normal(_))) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("{path:?} leaves the data directory"),
            ));
        }
        Ok(self.root.path.join(relative))
    }

    fn note_direct_refused(&self, error: &io::Error) {
        if !self.root.direct_refused.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                directory = %self.root.path.display(),
                %error,
                "this file system refuses direct reads; recovery drops cached pages instead, \
                 which is advice that the kernel may ignore"
            );
        }
    }
}

impl RealFile {
    /// Tells open files apart; may be used again once the file is closed.
    pub fn identity(&self) -> usize {
        Arc::as_ptr(&self.file).addr()
    }

    /// Tells whether reading `len` bytes at `at` would not wait for the medium, as far as probing tells. The answer
    /// may be out of date at once, but it is good enough to choose a thread.
    pub fn is_resident(&self, at: u64, len: u64) -> bool {
        let Some(last) = (at + len).checked_sub(1) else { return true };
        let mut position = at;
        while position < last {
            if !self.byte_is_resident(position) {
                return false;
            }
            position += PROBE_STEP;
        }
        self.byte_is_resident(last)
    }

    fn byte_is_resident(&self, at: u64) -> bool {
        let mut byte = [0_u8];
        let mut bufs = [IoSliceMut::new(&mut byte)];
        // A file system that does not know the flag answers an error: then a thread that may
        // wait does the read.
        rustix::io::preadv2(&*self.file, &mut bufs, at, ReadWriteFlags::NOWAIT) == Ok(1)
    }

    /// Asks the kernel to read a range, and `ahead` bytes after it if nobody syncs meanwhile: a sync
    /// would wait behind them. Returns without waiting.
    pub fn read_ahead(&self, at: u64, len: u64, ahead: u64) {
        let ahead = if self.root.is_syncing() { 0 } else { ahead };
        let end = at + len + ahead;
        let mut position = at;
        while position < end {
            // The kernel caps one request near the size of a device request, so it gets several.
            let step = std::num::NonZeroU64::new(ADVICE_STEP);
            // Advice: where it cannot be taken, the read that follows waits instead.
            let _ = rustix::fs::fadvise(&*self.file, position, step, Advice::WillNeed);
            position += ADVICE_STEP;
        }
    }

    /// Waits until a range is in the page cache, and asks for the bytes after it.
    pub fn load(&self, at: u64, len: u64, ahead: u64) -> io::Result<()> {
        self.read_ahead(at, len, ahead);
        // A byte of every few pages: they arrive in the order they were asked for.
        let mut byte = [0_u8];
        let last = (at + len).saturating_sub(1);
        let mut position = at;
        loop {
            if pread_full(&self.file, &mut byte, position)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            if position >= last {
                return Ok(());
            }
            position = (position + LOAD_STEP).min(last);
        }
    }
}

impl RealFile {
    /// Reads a range that is in memory, so that nothing waits for the medium.
    pub fn read_resident(&self, at: u64, len: u64) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; usize::try_from(len).map_err(io::Error::other)?];
        if pread_full(&self.file, &mut bytes, at)? < bytes.len() {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "a segment is shorter than its index says",
            ));
        }
        Ok(bytes)
    }
}

impl AsFd for RealFile {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Disk for RealDisk {
    type File = RealFile;

    fn create(&self, path: &str) -> io::Result<RealFile> {
        let path = self.resolve(path)?;
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(path)?;
        Ok(RealFile { file: Arc::new(file), root: Arc::clone(&self.root) })
    }

    fn open(&self, path: &str) -> io::Result<RealFile> {
        let path = self.resolve(path)?;
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        Ok(RealFile { file: Arc::new(file), root: Arc::clone(&self.root) })
    }

    fn len(&self, file: &RealFile) -> io::Result<u64> {
        Ok(file.file.metadata()?.len())
    }

    fn read_at(&self, file: &RealFile, buf: &mut [u8], at: u64) -> io::Result<usize> {
        pread_full(&file.file, buf, at)
    }

    fn read_medium(&self, file: &RealFile, at: u64, len: usize) -> io::Result<Vec<u8>> {
        if !self.root.direct_refused.load(Ordering::Relaxed) {
            match read_direct(&file.file, at, len) {
                Err(error) if is_refusal(&error) => self.note_direct_refused(&error),
                result => return result,
            }
        }
        // Dirty pages are never dropped, so they are written first; an error here is an error of
        // the medium.
        rustix::fs::fdatasync(&*file.file)?;
        rustix::fs::fadvise(
            &*file.file,
            at,
            std::num::NonZeroU64::new(len as u64),
            Advice::DontNeed,
        )?;
        let mut bytes = vec![0; len];
        let n = pread_full(&file.file, &mut bytes, at)?;
        bytes.truncate(n);
        Ok(bytes)
    }

    fn write_at(&self, file: &RealFile, bufs: &[&[u8]], at: u64) -> io::Result<()> {
        pwritev_full(&file.file, bufs, at)
    }

    fn set_len(&self, file: &RealFile, len: u64) -> io::Result<()> {
        file.file.set_len(len)
    }

    fn sync(&self, file: &RealFile) -> io::Result<()> {
        #[cfg(feature = "slow-syncs")]
        std::thread::sleep(*SLOW_SYNC);
        // The node does not retry on EINTR either: nobody says how far an interrupted sync came.
        rustix::fs::fdatasync(&*file.file)?;
        self.root.synced_ms.store(self.root.now_ms(), Ordering::Relaxed);
        Ok(())
    }

    fn start_writeback(&self, file: &RealFile, at: u64, len: u64) -> io::Result<()> {
        start_writeback(&file.file, at, len)
    }

    fn create_dir(&self, path: &str) -> io::Result<()> {
        match std::fs::create_dir(self.resolve(path)?) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            result => result,
        }
    }

    fn sync_dir(&self, path: &str) -> io::Result<()> {
        if path.is_empty() {
            return self.root.directory.sync_all();
        }
        File::open(self.resolve(path)?)?.sync_all()
    }

    fn sync_each(&self, unsynced: &[Unsynced<RealFile>]) -> Vec<io::Result<()>> {
        let next = AtomicUsize::new(0);
        let sync_some = || {
            let mut done = Vec::new();
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                let Some(it) = unsynced.get(at) else { return done };
                done.push((at, it.sync(self)));
            }
        };
        let mut done: Vec<_> = std::thread::scope(|scope| {
            let threads = unsynced.len().min(SYNCS_AT_ONCE);
            let running: Vec<_> = (0..threads).map(|_| scope.spawn(sync_some)).collect();
            running
                .into_iter()
                .flat_map(|each| each.join().expect("a sync does not panic"))
                .collect()
        });
        done.sort_unstable_by_key(|(at, _)| *at);
        done.into_iter().map(|(_, result)| result).collect()
    }

    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(self.resolve(path)?)? {
            // A name that is not text is not ours, nor is what mkfs leaves in a mounted root.
            if let Ok(name) = entry?.file_name().into_string()
                && !(path.is_empty() && name == "lost+found")
            {
                names.push(name);
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        std::fs::rename(self.resolve(from)?, self.resolve(to)?)
    }

    fn remove_file(&self, path: &str) -> io::Result<()> {
        std::fs::remove_file(self.resolve(path)?)
    }

    fn remove_dir(&self, path: &str) -> io::Result<()> {
        if path.is_empty() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        std::fs::remove_dir_all(self.resolve(path)?)
    }

    fn available(&self) -> io::Result<u64> {
        // `f_bavail`, not `f_bfree`: blocks reserved for root are not ours to write.
        let stat = rustix::fs::fstatvfs(&self.root.directory)?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }
}

/// Reads until the buffer is full or the file ends.
fn pread_full(file: &File, buf: &mut [u8], at: u64) -> io::Result<usize> {
    let mut done = 0;
    while done < buf.len() {
        match rustix::io::pread(file, &mut buf[done..], at + done as u64) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(done)
}

/// Writes all the buffers; goes on after a short write.
fn pwritev_full(file: &File, bufs: &[&[u8]], mut at: u64) -> io::Result<()> {
    for group in bufs.chunks(WRITE_BUFS_MAX) {
        let mut slices: Vec<IoSlice<'_>> =
            group.iter().filter(|buf| !buf.is_empty()).map(|buf| IoSlice::new(buf)).collect();
        let mut rest = slices.as_mut_slice();
        while !rest.is_empty() {
            match rustix::io::pwritev(file, rest, at) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => {
                    at += n as u64;
                    IoSlice::advance_slices(&mut rest, n);
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(())
}

/// Reads past the page cache. The kernel writes dirty pages of the range first.
fn read_direct(file: &File, at: u64, len: usize) -> io::Result<Vec<u8>> {
    let align = DIRECT_ALIGN as u64;
    let start = at / align * align;
    let lead = usize::try_from(at - start).expect("less than the alignment");
    let want = (lead + len).next_multiple_of(DIRECT_ALIGN);
    // A descriptor of its own: the flag belongs to the open file, and the other users of this one
    // read through the cache. Through /proc it finds the inode even if the file was renamed.
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let direct =
        rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECT | OFlags::CLOEXEC, Mode::empty())?;
    let mut memory = vec![0_u8; want + DIRECT_ALIGN];
    let skip = memory.as_ptr().align_offset(DIRECT_ALIGN);
    let aligned = &mut memory[skip..skip + want];
    let mut done = 0;
    while done < want {
        match rustix::io::pread(&direct, &mut aligned[done..], start + done as u64) {
            Ok(0) => break,
            Ok(n) => {
                done += n;
                // Only the end of the file ends a direct read off the alignment.
                if n % DIRECT_ALIGN != 0 {
                    break;
                }
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let end = done.min(lead + len).max(lead);
    memory.truncate(skip + end);
    memory.drain(..skip + lead);
    Ok(memory)
}

/// Calls `sync_file_range(2)` with no more than its flag to begin writing. The call waits for nothing, and leaves an
/// error of write-back to the sync that follows. `POSIX_FADV_DONTNEED` begins writing too, but drops the pages that
/// tailing consumers are about to read.
#[expect(
    unsafe_code,
    reason = "no crate wraps the call; its arguments are numbers and a descriptor"
)]
fn start_writeback(file: &File, at: u64, len: u64) -> io::Result<()> {
    let (Ok(at), Ok(len)) = (i64::try_from(at), i64::try_from(len)) else { return Ok(()) };
    // SAFETY: the descriptor is open as long as `file` is borrowed, and the call touches no memory
    // of ours.
    let result =
        unsafe { libc::sync_file_range(file.as_raw_fd(), at, len, libc::SYNC_FILE_RANGE_WRITE) };
    match if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) } {
        Err(error) if Errno::from_io_error(&error) == Some(Errno::IO) => Err(error),
        // Else the file system or the sandbox has no such call: nothing was promised.
        _ => Ok(()),
    }
}

/// Tells whether an error means that the file system has no direct reads, rather than that one failed.
fn is_refusal(error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    // ENOENT: there is no /proc.
    matches!(errno, Some(Errno::INVAL | Errno::OPNOTSUPP | Errno::NOENT | Errno::NOTDIR))
}

#[cfg(test)]
mod tests;
