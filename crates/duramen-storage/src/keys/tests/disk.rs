//! A disk in memory that notes the calls that make a file durable.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::Disk;

type File = Arc<Mutex<Vec<u8>>>;

#[derive(Clone, Debug, Default)]
pub(in crate::keys) struct MemoryDisk(Arc<Mutex<Names>>);

#[derive(Debug, Default)]
struct Names {
    files: BTreeMap<String, File>,
    calls: Vec<&'static str>,
    read_bytes: usize,
    on_read: OnRead,
}

/// Work that the next read does before it reads.
#[derive(Default)]
struct OnRead(Option<Box<dyn FnOnce() + Send>>);

impl fmt::Debug for OnRead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OnRead").field(&self.0.is_some()).finish()
    }
}

fn bytes_of(file: &File) -> MutexGuard<'_, Vec<u8>> {
    file.lock().unwrap_or_else(PoisonError::into_inner)
}

fn position(at: u64) -> usize {
    usize::try_from(at).expect("files of tests are small")
}

impl MemoryDisk {
    fn names(&self) -> MutexGuard<'_, Names> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, call: &'static str) {
        self.names().calls.push(call);
    }

    /// Calls so far that make files durable or give them names.
    pub(in crate::keys) fn calls(&self) -> Vec<&'static str> {
        self.names().calls.clone()
    }

    /// Bytes that were read so far.
    pub(in crate::keys) fn read_bytes(&self) -> usize {
        self.names().read_bytes
    }

    /// Has the next read do some work first. The disk may be used in it.
    pub(in crate::keys) fn on_read(&self, work: impl FnOnce() + Send + 'static) {
        self.names().on_read = OnRead(Some(Box::new(work)));
    }

    pub(in crate::keys) fn bytes(&self, path: &str) -> Vec<u8> {
        bytes_of(&self.open(path).expect("it is there")).clone()
    }

    pub(in crate::keys) fn change(&self, path: &str, change: impl FnOnce(&mut Vec<u8>)) {
        change(&mut bytes_of(&self.open(path).expect("it is there")));
    }
}

impl Disk for MemoryDisk {
    type File = File;

    fn create(&self, path: &str) -> io::Result<File> {
        let file = File::default();
        let before = self.names().files.insert(path.to_owned(), file.clone());
        assert!(before.is_none(), "{path} is there already");
        Ok(file)
    }

    fn open(&self, path: &str) -> io::Result<File> {
        self.names().files.get(path).cloned().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn len(&self, file: &File) -> io::Result<u64> {
        Ok(bytes_of(file).len() as u64)
    }

    fn read_at(&self, file: &File, buf: &mut [u8], at: u64) -> io::Result<usize> {
        let work = self.names().on_read.0.take();
        if let Some(work) = work {
            work();
        }
        let bytes = bytes_of(file);
        let from = position(at).min(bytes.len());
        let len = buf.len().min(bytes.len() - from);
        buf[..len].copy_from_slice(&bytes[from..from + len]);
        self.names().read_bytes += len;
        Ok(len)
    }

    fn read_medium(&self, file: &File, at: u64, len: usize) -> io::Result<Vec<u8>> {
        let mut out = vec![0; len];
        let read = self.read_at(file, &mut out, at)?;
        out.truncate(read);
        Ok(out)
    }

    fn write_at(&self, file: &File, bufs: &[&[u8]], at: u64) -> io::Result<()> {
        self.note("write");
        let mut bytes = bytes_of(file);
        assert_eq!(bytes.len(), position(at), "a table is written from its beginning to its end");
        bytes.extend_from_slice(&bufs.concat());
        Ok(())
    }

    fn set_len(&self, file: &File, len: u64) -> io::Result<()> {
        bytes_of(file).resize(position(len), 0);
        Ok(())
    }

    fn sync(&self, _file: &File) -> io::Result<()> {
        self.note("sync");
        Ok(())
    }

    fn start_writeback(&self, _file: &File, _at: u64, _len: u64) -> io::Result<()> {
        Ok(())
    }

    fn create_dir(&self, _path: &str) -> io::Result<()> {
        Ok(())
    }

    fn sync_dir(&self, _path: &str) -> io::Result<()> {
        self.note("sync_dir");
        Ok(())
    }

    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        let prefix = format!("{path}/");
        let names = self.names();
        let inside = names.files.keys().filter_map(|name| name.strip_prefix(&prefix));
        Ok(inside.map(ToOwned::to_owned).collect())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.note("rename");
        let mut names = self.names();
        let file = names.files.remove(from).ok_or(io::ErrorKind::NotFound)?;
        names.files.insert(to.to_owned(), file);
        Ok(())
    }

    fn remove_file(&self, path: &str) -> io::Result<()> {
        let file = self.names().files.remove(path);
        file.map(drop).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn remove_dir(&self, _path: &str) -> io::Result<()> {
        Ok(())
    }

    fn available(&self) -> io::Result<u64> {
        Ok(1 << 40)
    }
}
