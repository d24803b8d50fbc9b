//! The worker over a disk whose syncs of the journal are released by hand.

use std::sync::{Condvar, Mutex, MutexGuard};
use std::thread;

use bytes::Bytes;
use duramen_sim::disk::{SimDisk, SimFile};
use duramen_storage::ReplicaId;
use duramen_storage::op::{Append, ConfState, Content, Done, HardState, Identity, LogEntry};
use duramen_storage::storage::{Facts, Options};
use tokio::sync::mpsc::UnboundedReceiver;

use super::*;

/// A thread that stands still for so long has stopped for ever.
const PATIENCE: Duration = Duration::from_secs(120);
const APPENDERS: u64 = 128;

/// The entry whose round closes the gate. A journal that falls quiet writes a round of its own, which may be before it.
const CLOSING: &[u8] = b"closes the gate";

/// Gate where syncs of the journal's files wait.
#[derive(Debug, Default)]
struct Gate {
    state: Mutex<Passage>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Passage {
    is_closed: bool,
    /// Syncs that may still pass.
    permits: usize,
    waiting: usize,
    /// True if a write to the journal waits, too; below, true while one does.
    holds_writes: bool,
    is_writing: bool,
    /// Writes to the journal.
    rounds: usize,
}

impl Gate {
    fn state(&self) -> MutexGuard<'_, Passage> {
        self.state.lock().unwrap()
    }

    fn change(&self, change: impl FnOnce(&mut Passage)) {
        change(&mut self.state());
        self.changed.notify_all();
    }

    fn pass(&self) {
        self.change(|state| state.waiting += 1);
        let mut state =
            self.wait("the sync was let through", |state| !state.is_closed || state.permits > 0);
        state.waiting -= 1;
        if state.is_closed {
            state.permits -= 1;
        }
    }

    /// Lets a round's bytes through, and closes the gate behind a certain one.
    fn write(&self, bufs: &[&[u8]]) {
        let closes = |bytes: &&[u8]| bytes.windows(CLOSING.len()).any(|it| it == CLOSING);
        self.change(|state| {
            state.is_closed |= bufs.iter().any(closes);
            state.is_writing = true;
            state.rounds += 1;
        });
        drop(self.wait("the write was let through", |state| !state.holds_writes));
        self.change(|state| state.is_writing = false);
    }

    fn wait(&self, what: &str, is_so: impl Fn(&Passage) -> bool) -> MutexGuard<'_, Passage> {
        let waited =
            self.changed.wait_timeout_while(self.state(), PATIENCE, |state| !is_so(state)).unwrap();
        assert!(!waited.1.timed_out(), "it never happened that {what}");
        waited.0
    }
}

#[derive(Clone, Debug)]
struct GatedDisk {
    disk: SimDisk,
    gate: Arc<Gate>,
}

#[derive(Clone, Debug)]
struct GatedFile {
    file: SimFile,
    is_journal: bool,
}

impl GatedDisk {
    fn gated(path: &str, file: SimFile) -> GatedFile {
        GatedFile { file, is_journal: path.starts_with("journal/0") }
    }
}

impl Disk for GatedDisk {
    type File = GatedFile;

    fn create(&self, path: &str) -> io::Result<GatedFile> {
        self.disk.create(path).map(|file| Self::gated(path, file))
    }
    fn open(&self, path: &str) -> io::Result<GatedFile> {
        self.disk.open(path).map(|file| Self::gated(path, file))
    }
    fn len(&self, file: &GatedFile) -> io::Result<u64> {
        self.disk.len(&file.file)
    }
    fn read_at(&self, file: &GatedFile, buf: &mut [u8], at: u64) -> io::Result<usize> {
        self.disk.read_at(&file.file, buf, at)
    }
    fn read_medium(&self, file: &GatedFile, at: u64, len: usize) -> io::Result<Vec<u8>> {
        self.disk.read_medium(&file.file, at, len)
    }
    fn write_at(&self, file: &GatedFile, bufs: &[&[u8]], at: u64) -> io::Result<()> {
        if file.is_journal {
            self.gate.write(bufs);
        }
        self.disk.write_at(&file.file, bufs, at)
    }
    fn set_len(&self, file: &GatedFile, len: u64) -> io::Result<()> {
        self.disk.set_len(&file.file, len)
    }
    fn sync(&self, file: &GatedFile) -> io::Result<()> {
        if file.is_journal {
            self.gate.pass();
        }
        self.disk.sync(&file.file)
    }
    fn start_writeback(&self, file: &GatedFile, at: u64, len: u64) -> io::Result<()> {
        self.disk.start_writeback(&file.file, at, len)
    }
    fn create_dir(&self, path: &str) -> io::Result<()> {
        self.disk.create_dir(path)
    }
    fn sync_dir(&self, path: &str) -> io::Result<()> {
        self.disk.sync_dir(path)
    }
    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        self.disk.list(path)
    }
    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.disk.rename(from, to)
    }
    fn remove_file(&self, path: &str) -> io::Result<()> {
        self.disk.remove_file(path)
    }
    fn remove_dir(&self, path: &str) -> io::Result<()> {
        self.disk.remove_dir(path)
    }
    fn available(&self) -> io::Result<u64> {
        self.disk.available()
    }
}

/// Worker, with its input and its reports.
struct Running {
    gate: Arc<Gate>,
    common: Common,
    inputs: UnboundedReceiver<Input>,
    thread: JoinHandle<()>,
    persisted: Vec<u64>,
}

impl Running {
    fn start() -> Self {
        let gate = Arc::new(Gate::default());
        let disk = GatedDisk { disk: SimDisk::new(1), gate: Arc::clone(&gate) };
        let options = Options {
            facts: Facts { cluster_id: [1; 16], broker_id: 1, directory_id: [2; 16] },
            extent_bytes: 1 << 20,
            extents_max: 8,
            replicas_an_extent: 64,
            journal_payload_max: 1 << 16,
            index_interval_bytes: 4096,
            free_bytes_min: 0,
            reserve_bytes: 0,
            open_files_max: 64,
            recovered_at_once: 1,
        };
        let (storage, _) = Storage::open(disk, options).unwrap();
        let (common, inputs) = Common::new();
        // Work that waits for an idle moment here waits for ever.
        let thread = start_with(storage, Arc::default(), common.clone(), 10 * PATIENCE).unwrap();
        let mut running = Self { gate, common, inputs, thread, persisted: Vec::new() };
        let identity = Identity { topic: "t".into(), topic_id: [3; 16], partition: 0 };
        let conf = ConfState { voters: vec![1], ..ConfState::default() };
        running.give(vec![OpKind::Create { ticket: 1, identity, conf }]);
        running.wait_for(1);
        running
    }

    fn give(&self, kinds: Vec<OpKind>) {
        let ops = kinds.into_iter().map(|kind| Op { replica: ReplicaId(1), kind });
        self.common.work.push(Work::Ops(ops.collect()));
    }

    /// Appends the entry of this index; the ticket is the same number.
    fn append(&self, index: u64, data: &'static [u8]) {
        self.give(vec![write(index, data)]);
    }

    /// Waits until an append is reported durable.
    fn wait_for(&mut self, ticket: u64) {
        let deadline = Instant::now() + PATIENCE;
        while !self.persisted.contains(&ticket) {
            assert!(Instant::now() < deadline, "{ticket} was never durable");
            if !self.hear() {
                thread::sleep(Duration::from_millis(1));
            }
        }
    }

    /// Takes the reports of the worker. Returns whether there were any.
    fn hear(&mut self) -> bool {
        let before = self.persisted.len();
        while let Ok(input) = self.inputs.try_recv() {
            let Input::Storage(done) = input else { continue };
            self.persisted.extend(done.into_iter().filter_map(|done| match done {
                Done::Persisted { ticket, .. } => Some(ticket),
                _ => None,
            }));
        }
        self.persisted.len() > before
    }

    fn end(self) {
        self.gate.change(|state| state.is_closed = false);
        self.common.work.push(Work::Stop);
        self.thread.join().unwrap();
    }
}

fn write(index: u64, data: &'static [u8]) -> OpKind {
    let content = Content::Internal(Bytes::from_static(data));
    let entry = LogEntry { index, term: 1, content };
    let appends = vec![Append { entry, payload: Bytes::new() }];
    let hard_state = Some(HardState { term: 1, vote: 1, commit: index - 1 });
    OpKind::Write { ticket: index, appends, hard_state, must_sync: true }
}

/// Checks the group commit: two syncs for 129 appends, of which 128 came while the first of them was synced. Answers
/// bring new appends, and so work for all threads. When the first answer comes, the next round is written.
#[test]
fn everything_submitted_before_a_round_begins_is_in_it() {
    let mut running = Running::start();
    let gate = Arc::clone(&running.gate);
    running.append(2, CLOSING);
    drop(gate.wait("a round waits", |state| state.is_closed && state.waiting == 1));
    for index in 3..3 + APPENDERS {
        running.append(index, b"entry");
    }
    gate.change(|state| (state.permits, state.holds_writes) = (1, true));
    drop(gate.wait("the next round is written", |state| state.is_writing));
    running.hear();
    assert_eq!(running.persisted, [1], "the first one is told before the next round is written");
    gate.change(|state| (state.permits, state.holds_writes) = (1, false));
    running.wait_for(2 + APPENDERS);
    assert!((1..3 + APPENDERS).eq(running.persisted.iter().copied()), "{:?}", running.persisted);
    running.end();
}

/// Checks a round of about a quarter of an extent: ops without room in it go into the next one, which waits for
/// nothing.
#[test]
fn what_one_round_has_no_room_for_follows_at_once() {
    const LARGE: &[u8] = &[b'x'; 5000];
    let mut running = Running::start();
    let before = running.gate.state().rounds;
    running.give((2..122).map(|index| write(index, LARGE)).collect());
    running.wait_for(121);
    let rounds = running.gate.state().rounds - before;
    assert!(rounds >= 3, "they had room in {rounds} rounds");
    running.end();
}

#[test]
fn a_lone_append_is_told_though_no_other_follows() {
    let mut running = Running::start();
    for index in 2..12 {
        running.append(index, b"entry");
        running.wait_for(index);
    }
    running.end();
}
