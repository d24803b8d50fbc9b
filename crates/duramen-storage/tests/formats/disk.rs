//! A data directory on the real file system by `std` alone: enough to write a fixture and to open
//! a copy of it. It syncs nothing, since nothing here crashes.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use duramen_storage::Disk;

#[derive(Clone, Debug)]
pub(crate) struct FsDisk(PathBuf, Arc<Interruption>);

/// Something that happens right before a file is opened, once.
#[derive(Default)]
struct Interruption(Mutex<Option<(String, Happening)>>);

type Happening = Box<dyn FnOnce() + Send>;

impl fmt::Debug for Interruption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Interruption")
    }
}

impl FsDisk {
    pub(crate) fn new(root: &Path) -> Self {
        fs::create_dir_all(root).expect("the test's directory can be made");
        Self(root.to_owned(), Arc::default())
    }

    pub(crate) fn before_opening(&self, path: &str, what: impl FnOnce() + Send + 'static) {
        *self.1.0.lock().expect("no panics here") = Some((path.to_owned(), Box::new(what)));
    }

    fn at(&self, path: &str) -> PathBuf {
        if path.is_empty() { self.0.clone() } else { self.0.join(path) }
    }
}

impl Disk for FsDisk {
    type File = Arc<File>;

    fn create(&self, path: &str) -> io::Result<Arc<File>> {
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(self.at(path));
        file.map(Arc::new)
    }

    fn open(&self, path: &str) -> io::Result<Arc<File>> {
        let due = self.1.0.lock().expect("no panics here").take_if(|(on, _)| on == path);
        if let Some((_, happen)) = due {
            happen();
        }
        OpenOptions::new().read(true).write(true).open(self.at(path)).map(Arc::new)
    }

    fn len(&self, file: &Arc<File>) -> io::Result<u64> {
        Ok(file.metadata()?.len())
    }

    fn read_at(&self, file: &Arc<File>, buf: &mut [u8], at: u64) -> io::Result<usize> {
        let mut done = 0;
        while done < buf.len() {
            match file.read_at(&mut buf[done..], at + done as u64)? {
                0 => break,
                read => done += read,
            }
        }
        Ok(done)
    }

    fn read_medium(&self, file: &Arc<File>, at: u64, len: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        let read = self.read_at(file, &mut bytes, at)?;
        bytes.truncate(read);
        Ok(bytes)
    }

    fn write_at(&self, file: &Arc<File>, bufs: &[&[u8]], mut at: u64) -> io::Result<()> {
        for buf in bufs {
            file.write_all_at(buf, at)?;
            at += buf.len() as u64;
        }
        Ok(())
    }

    fn set_len(&self, file: &Arc<File>, len: u64) -> io::Result<()> {
        file.set_len(len)
    }

    fn sync(&self, _file: &Arc<File>) -> io::Result<()> {
        Ok(())
    }

    fn start_writeback(&self, _file: &Arc<File>, _at: u64, _len: u64) -> io::Result<()> {
        Ok(())
    }

    fn create_dir(&self, path: &str) -> io::Result<()> {
        fs::create_dir_all(self.at(path))
    }

    fn sync_dir(&self, _path: &str) -> io::Result<()> {
        Ok(())
    }

    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(self.at(path))? {
            names.extend(entry?.file_name().into_string());
        }
        names.sort_unstable();
        Ok(names)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.at(from), self.at(to))
    }

    fn remove_file(&self, path: &str) -> io::Result<()> {
        fs::remove_file(self.at(path))
    }

    fn remove_dir(&self, path: &str) -> io::Result<()> {
        fs::remove_dir_all(self.at(path))
    }

    fn available(&self) -> io::Result<u64> {
        Ok(1 << 40)
    }
}
