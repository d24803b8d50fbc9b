//! A disk in memory: everything written stays, until it is stopped.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use duramen_storage::Disk;

#[derive(Clone, Debug, Default)]
pub(crate) struct MemoryDisk {
    names: Arc<Mutex<Names>>,
    is_stopped: Arc<AtomicBool>,
}

#[derive(Debug, Default)]
struct Names {
    files: BTreeMap<String, MemoryFile>,
    dirs: BTreeSet<String>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct MemoryFile(Arc<Mutex<Vec<u8>>>);

impl MemoryFile {
    fn bytes(&self) -> MutexGuard<'_, Vec<u8>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl MemoryDisk {
    fn names(&self) -> MutexGuard<'_, Names> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps nothing that is written from now on.
    pub(crate) fn stop(&self) {
        self.is_stopped.store(true, Ordering::Relaxed);
    }

    /// Bytes of all files whose paths begin so.
    pub(crate) fn bytes_under(&self, prefix: &str) -> u64 {
        let names = self.names();
        let files = names.files.iter().filter(|(path, _)| path.starts_with(prefix));
        files.map(|(_, file)| file.bytes().len() as u64).sum()
    }
}

impl MemoryDisk {
    /// Changes bytes of a file behind everybody's back.
    pub(crate) fn rot(&self, path: &str, change: impl FnOnce(&mut [u8])) {
        let file = self.names().files[path].clone();
        change(&mut file.bytes());
    }
}

fn position(at: u64) -> usize {
    usize::try_from(at).expect("small files")
}

impl Disk for MemoryDisk {
    type File = MemoryFile;

    fn create(&self, path: &str) -> io::Result<MemoryFile> {
        let mut names = self.names();
        if names.files.contains_key(path) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let file = MemoryFile::default();
        names.files.insert(path.to_owned(), file.clone());
        Ok(file)
    }

    fn open(&self, path: &str) -> io::Result<MemoryFile> {
        self.names().files.get(path).cloned().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn len(&self, file: &MemoryFile) -> io::Result<u64> {
        Ok(file.bytes().len() as u64)
    }

    fn read_at(&self, file: &MemoryFile, buf: &mut [u8], at: u64) -> io::Result<usize> {
        let bytes = file.bytes();
        let from = position(at).min(bytes.len());
        let len = buf.len().min(bytes.len() - from);
        buf[..len].copy_from_slice(&bytes[from..from + len]);
        Ok(len)
    }

    fn read_medium(&self, file: &MemoryFile, at: u64, len: usize) -> io::Result<Vec<u8>> {
        let mut out = vec![0; len];
        let read = self.read_at(file, &mut out, at)?;
        out.truncate(read);
        Ok(out)
    }

    fn write_at(&self, file: &MemoryFile, bufs: &[&[u8]], at: u64) -> io::Result<()> {
        if self.is_stopped.load(Ordering::Relaxed) {
            return Ok(());
        }
        let mut bytes = file.bytes();
        let mut at = position(at);
        for buf in bufs {
            let end = at + buf.len();
            if bytes.len() < end {
                bytes.resize(end, 0);
            }
            bytes[at..end].copy_from_slice(buf);
            at = end;
        }
        Ok(())
    }

    fn set_len(&self, file: &MemoryFile, len: u64) -> io::Result<()> {
        file.bytes().resize(position(len), 0);
        Ok(())
    }

    fn sync(&self, _file: &MemoryFile) -> io::Result<()> {
        Ok(())
    }

    fn start_writeback(&self, _file: &MemoryFile, _at: u64, _len: u64) -> io::Result<()> {
        Ok(())
    }

    fn create_dir(&self, path: &str) -> io::Result<()> {
        self.names().dirs.insert(path.to_owned());
        Ok(())
    }

    fn sync_dir(&self, _path: &str) -> io::Result<()> {
        Ok(())
    }

    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        let prefix = if path.is_empty() { String::new() } else { format!("{path}/") };
        let names = self.names();
        let all = names.files.keys().chain(&names.dirs);
        let inside = all.filter_map(|name| name.strip_prefix(&prefix));
        let here: BTreeSet<_> = inside.filter(|name| !name.contains('/')).collect();
        Ok(here.into_iter().map(ToOwned::to_owned).collect())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut names = self.names();
        if let Some(file) = names.files.remove(from) {
            names.files.insert(to.to_owned(), file);
            return Ok(());
        }
        if !names.dirs.remove(from) {
            return Err(io::ErrorKind::NotFound.into());
        }
        names.dirs.insert(to.to_owned());
        let prefix = format!("{from}/");
        let moved: Vec<_> =
            names.files.keys().filter(|name| name.starts_with(&prefix)).cloned().collect();
        for name in moved {
            let file = names.files.remove(&name).expect("it was just seen");
            names.files.insert(format!("{to}/{}", &name[prefix.len()..]), file);
        }
        Ok(())
    }

    fn remove_file(&self, path: &str) -> io::Result<()> {
        let gone = self.names().files.remove(path);
        gone.map(|_| ()).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn remove_dir(&self, path: &str) -> io::Result<()> {
        let mut names = self.names();
        names.dirs.remove(path);
        let prefix = format!("{path}/");
        names.files.retain(|name, _| !name.starts_with(&prefix));
        Ok(())
    }

    fn available(&self) -> io::Result<u64> {
        Ok(1 << 40)
    }
}
