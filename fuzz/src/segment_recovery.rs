//! A data directory, changed in any way, opened: an error or a state that holds together, never a panic.
//!
//! The input changes the kept directory of format version 1, or is the records of a round in an empty one.
//! Checksums of the journal and the manifest are mended afterwards, so that changes get behind them.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};

use bytes::Bytes;
use duramen_storage::op::{Append, Content, LogEntry, RecoveredReplica};
use duramen_storage::storage::{Error, Facts};
use duramen_storage::{Descriptor, Disk, Done, Op, OpKind, Options, Storage};

const HEADER: usize = 64;
const PAGE: usize = 4096;
/// Of the kept directory.
const EXTENT: usize = 64 * 1024;
const DIRECTORY: [u8; 16] = *b"directory of v1.";

type Files = BTreeMap<String, Vec<u8>>;

/// Opens a changed data directory twice, reads it, and appends to it. Panics on a find.
pub fn run(data: &[u8]) {
    let Some((mode, data)) = data.split_first() else { return };
    let mut files = if mode & 1 == 0 { kept().clone() } else { empty(data) };
    if mode & 1 == 0 {
        change(&mut files, data);
    }
    if mode & 2 == 0 {
        mend(&mut files);
    }
    let disk = MemoryDisk::new(files);
    // Twice: recovery may be interrupted and run again, and must then find the same.
    let Ok((_, first)) = Storage::open(disk.clone(), options()) else { return };
    let (storage, second) =
        Storage::open(disk.clone(), options()).expect("it was good enough before");
    assert_eq!(shape(&first.replicas), shape(&second.replicas));
    second.replicas.iter().for_each(holds_together);
    let mut storage = storage;
    read(&storage, &second.replicas);
    if append(&mut storage, &disk, &second.replicas).is_ok() {
        let third = Storage::open(disk, options());
        // Records that nobody ever wrote, behind good checksums, may lead anywhere but to a panic.
        let honest = mode & 2 != 0;
        assert!(third.is_ok() || !honest, "what was written cannot be read");
    }
}

fn options() -> Options {
    Options {
        facts: Facts { cluster_id: [1; 16], broker_id: 7, directory_id: DIRECTORY },
        extent_bytes: EXTENT as u64,
        extents_max: 6,
        replicas_an_extent: 128,
        journal_payload_max: 3000,
        index_interval_bytes: 1000,
        free_bytes_min: 0,
        reserve_bytes: 0,
        open_files_max: 1000,
        recovered_at_once: 2,
    }
}

/// The kept directory of format version 1.
fn kept() -> &'static Files {
    static KEPT: OnceLock<Files> = OnceLock::new();
    KEPT.get_or_init(|| {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../crates/duramen-storage/tests/fixtures/v1");
        let mut files = Files::new();
        let mut dirs = vec![root.clone()];
        while let Some(dir) = dirs.pop() {
            for entry in std::fs::read_dir(dir).expect("the fixture is there") {
                let path = entry.expect("it can be listed").path();
                if path.is_dir() {
                    dirs.push(path);
                } else {
                    let name =
                        path.strip_prefix(&root).expect("it lies below").to_str().expect("ASCII");
                    files.insert(name.to_owned(), std::fs::read(&path).expect("it can be read"));
                }
            }
        }
        files
    })
}

/// A directory whose journal holds one round of these records.
fn empty(records: &[u8]) -> Files {
    let mut extent = vec![0; EXTENT];
    let records = &records[..records.len().min(EXTENT - PAGE - HEADER)];
    for (round, at, body) in [(1u64, 0, &[][..]), (2, PAGE, records)] {
        let header = &mut extent[at..at + HEADER];
        header[..4].copy_from_slice(b"DJR1");
        header[8..10].copy_from_slice(&1u16.to_be_bytes());
        header[12..16].copy_from_slice(&u32::try_from(body.len()).expect("small").to_be_bytes());
        header[24..32].copy_from_slice(&1u64.to_be_bytes());
        header[32..40].copy_from_slice(&round.to_be_bytes());
        header[40..48].copy_from_slice(&1u64.to_be_bytes());
        header[48..56].copy_from_slice(&(at as u64).to_be_bytes());
        header[56..64].copy_from_slice(&DIRECTORY[..8]);
        extent[at + HEADER..at + HEADER + body.len()].copy_from_slice(body);
    }
    let mut files = Files::new();
    files.insert("manifest".to_owned(), kept()["manifest"].clone());
    files.insert("journal/0000".to_owned(), extent);
    for file in 1..4 {
        files.insert(format!("journal/{file:04}"), vec![0; EXTENT]);
    }
    files
}

/// Eight bytes a change: what, to which file, where, with what.
fn change(files: &mut Files, data: &[u8]) {
    for change in data.chunks_exact(8) {
        let [kind, file, at0, at1, at2, value @ ..] = *<&[u8; 8]>::try_from(change).expect("eight");
        let names: Vec<String> = files.keys().cloned().collect();
        let Some(name) = names.get(usize::from(file) % names.len().max(1)) else { return };
        let bytes = files.get_mut(name).expect("it was just listed");
        let at = usize::from(at0) << 16 | usize::from(at1) << 8 | usize::from(at2);
        match kind % 8 {
            // In the records of a round: that is where most meaning is.
            0..4 => {
                let rounds: Vec<usize> = (0..bytes.len())
                    .step_by(PAGE)
                    .filter(|at| bytes[*at..].starts_with(b"DJR1"))
                    .collect();
                let Some(round) = rounds.get(usize::from(at0) % rounds.len().max(1)) else {
                    continue;
                };
                let at = round + if kind & 4 == 0 { HEADER + (at & 0xfff) } else { 8 + at % 56 };
                for (target, value) in bytes.iter_mut().skip(at).zip(value) {
                    *target = if kind & 1 == 0 { value } else { *target ^ value };
                }
            }
            4 => {
                for (target, value) in bytes.iter_mut().skip(at).zip(value) {
                    *target = value;
                }
            }
            5 => bytes.truncate(at),
            6 => {
                let end = bytes.len() + usize::from(value[0]) * 16;
                bytes.resize(end, value[1]);
            }
            _ => {
                let bytes = files.remove(name).expect("it was just listed");
                let other = &names[usize::from(value[0]) % names.len()];
                if value[1] & 1 == 0 {
                    files.insert(other.clone(), bytes);
                }
            }
        }
    }
}

/// Gives the manifest and all rounds good checksums.
fn mend(files: &mut Files) {
    if let Some(manifest) = files.get_mut("manifest")
        && let Some(at) = manifest.windows(7).position(|window| window == b"crc32c=")
    {
        manifest.truncate(at);
        let crc = crc32c::crc32c(manifest);
        manifest.extend_from_slice(format!("crc32c={crc:08x}\n").as_bytes());
    }
    for (_, extent) in files.iter_mut().filter(|(name, _)| name.starts_with("journal/")) {
        for at in (0..extent.len()).step_by(PAGE) {
            let page = &mut extent[at..];
            if page.len() < HEADER || !page.starts_with(b"DJR1") {
                continue;
            }
            let body = u32::from_be_bytes(page[12..16].try_into().expect("four")) as usize;
            if let Some(body) = page.get(HEADER..HEADER + body) {
                let crc = crc32c::crc32c(body);
                page[16..20].copy_from_slice(&crc.to_be_bytes());
            }
            let crc = crc32c::crc32c(&page[8..HEADER]);
            page[4..8].copy_from_slice(&crc.to_be_bytes());
        }
    }
}

/// What two recoveries of one directory must agree on.
fn shape(replicas: &[RecoveredReplica]) -> Vec<(u64, u64, usize, i64, i64, bool)> {
    let shape = |it: &RecoveredReplica| {
        (
            it.replica.0,
            it.prev_index,
            it.entries.len(),
            it.log_start,
            it.end_offset,
            it.damage.is_some(),
        )
    };
    replicas.iter().map(shape).collect()
}

fn holds_together(found: &RecoveredReplica) {
    let mut offset = found.prev_end_offset;
    let mut term = found.prev_term;
    for (entry, index) in found.entries.iter().zip(found.prev_index + 1..) {
        assert_eq!(entry.index, index, "indexes are dense");
        assert!(entry.term >= term, "terms only grow");
        term = entry.term;
        if let Content::Batch(batch) = &entry.content {
            assert_eq!(batch.base_offset, offset, "offsets are dense");
            offset = batch.end_offset();
        }
    }
    assert_eq!(offset, found.end_offset);
    assert!(found.hard_state.commit <= found.prev_index + found.entries.len() as u64);
    assert!((0..=found.end_offset).contains(&found.log_start));
    for pair in found.segments.windows(2) {
        assert!(
            pair[0].base_offset < pair[1].base_offset && pair[0].first_index < pair[1].first_index
        );
    }
    for pair in found.term_runs.windows(2) {
        assert!(pair[0].term < pair[1].term && pair[0].first_index < pair[1].first_index);
    }
}

/// Reads all of it. Errors are answers, too.
fn read(storage: &Storage<MemoryDisk>, replicas: &[RecoveredReplica]) {
    let reader = storage.reader();
    for found in replicas {
        let (id, end) = (found.replica, found.end_offset);
        let mut at = found.log_start;
        for _ in 0..200 {
            let Ok(Some(range)) = reader.locate(id, at, end, 2000, true) else { break };
            let Ok(bytes) = reader.read(id, &range) else { break };
            let Ok(batch) = Descriptor::of_batch(&bytes, false) else { break };
            assert!(batch.end_offset() > at, "a read goes forward");
            at = batch.end_offset();
        }
        let _ = reader.find_time(id, 1_000_500, found.log_start, end);
        let _ = reader.find_max_time(id, found.log_start, end);
    }
}

/// One more entry for each replica that is not damaged, and whatever rounds that takes.
fn append(
    storage: &mut Storage<MemoryDisk>,
    disk: &MemoryDisk,
    replicas: &[RecoveredReplica],
) -> Result<(), Error> {
    for found in replicas.iter().filter(|found| found.damage.is_none()) {
        let index = found.prev_index + found.entries.len() as u64 + 1;
        let term = found.entries.last().map_or(found.prev_term, |last| last.term);
        let content = Content::Internal(Bytes::from_static(&[1, 0]));
        let append = Append { entry: LogEntry { index, term, content }, payload: Bytes::new() };
        let kind =
            OpKind::Write { ticket: 1, appends: vec![append], hard_state: None, must_sync: true };
        storage.submit(Op { replica: found.replica, kind });
    }
    for _ in 0..50 {
        let request = storage.begin_round()?;
        let mut requests = storage.write_segments()?;
        requests.extend(request);
        requests.extend(storage.maintain(true)?);
        for request in requests {
            storage.on_sync(request.id, request.run(disk))?;
        }
        for done in storage.take_done() {
            if let Done::WantImage { replica } = done {
                let found = replicas.iter().find(|found| found.replica == replica);
                let index = found.map_or(0, |found| found.prev_index + found.entries.len() as u64);
                storage.submit(Op {
                    replica,
                    kind: OpKind::Image { index, image: Bytes::from_static(b"image") },
                });
            }
        }
    }
    Ok(())
}

/// A disk in memory. It reserves what it is asked to read, as the real one does.
#[derive(Clone, Debug)]
struct MemoryDisk(Arc<Mutex<Names>>);

#[derive(Debug, Default)]
struct Names {
    files: BTreeMap<String, MemoryFile>,
    dirs: BTreeSet<String>,
}

type MemoryFile = Arc<Mutex<Vec<u8>>>;

impl MemoryDisk {
    fn new(files: Files) -> Self {
        let mut names = Names::default();
        for (name, bytes) in files {
            if let Some((dir, _)) = name.rsplit_once('/') {
                names.dirs.insert(dir.to_owned());
            }
            names.files.insert(name, Arc::new(Mutex::new(bytes)));
        }
        Self(Arc::new(Mutex::new(names)))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().expect("nothing panics and goes on")
}

fn place(at: u64) -> usize {
    usize::try_from(at).expect("64 bits")
}

impl Disk for MemoryDisk {
    type File = MemoryFile;

    fn create(&self, path: &str) -> io::Result<MemoryFile> {
        let mut names = lock(&self.0);
        if names.files.contains_key(path) || names.dirs.contains(path) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let file = MemoryFile::default();
        names.files.insert(path.to_owned(), file.clone());
        Ok(file)
    }

    fn open(&self, path: &str) -> io::Result<MemoryFile> {
        lock(&self.0).files.get(path).cloned().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn len(&self, file: &MemoryFile) -> io::Result<u64> {
        Ok(lock(file).len() as u64)
    }

    fn read_at(&self, file: &MemoryFile, buf: &mut [u8], at: u64) -> io::Result<usize> {
        let bytes = lock(file);
        let from = place(at).min(bytes.len());
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
        let mut bytes = lock(file);
        let mut at = place(at);
        for buf in bufs {
            // A real file may be sparse; this one would take the memory.
            if at > 8 << 20 {
                return Err(io::ErrorKind::FileTooLarge.into());
            }
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
        lock(file).resize(place(len), 0);
        Ok(())
    }

    fn sync(&self, _file: &MemoryFile) -> io::Result<()> {
        Ok(())
    }

    fn start_writeback(&self, _file: &MemoryFile, _at: u64, _len: u64) -> io::Result<()> {
        Ok(())
    }

    fn create_dir(&self, path: &str) -> io::Result<()> {
        lock(&self.0).dirs.insert(path.to_owned());
        Ok(())
    }

    fn sync_dir(&self, _path: &str) -> io::Result<()> {
        Ok(())
    }

    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        let names = lock(&self.0);
        if !path.is_empty() && !names.dirs.contains(path) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let prefix = if path.is_empty() { String::new() } else { format!("{path}/") };
        let inside =
            names.files.keys().chain(&names.dirs).filter_map(|name| name.strip_prefix(&prefix));
        let here: BTreeSet<_> = inside.filter(|name| !name.contains('/')).collect();
        Ok(here.into_iter().map(ToOwned::to_owned).collect())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut names = lock(&self.0);
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
            let file = names.files.remove(&name).expect("it was just listed");
            names.files.insert(format!("{to}/{}", &name[prefix.len()..]), file);
        }
        Ok(())
    }

    fn remove_file(&self, path: &str) -> io::Result<()> {
        lock(&self.0).files.remove(path).map(|_| ()).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn remove_dir(&self, path: &str) -> io::Result<()> {
        let mut names = lock(&self.0);
        if !names.dirs.remove(path) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let prefix = format!("{path}/");
        names.files.retain(|name, _| !name.starts_with(&prefix));
        Ok(())
    }

    fn available(&self) -> io::Result<u64> {
        Ok(1 << 40)
    }
}
