//! # Room card: disk
//!
//! Purpose:    a machine's disk, kernel cache and power cord, in memory and repeatable.
//! Owns:       what survives a crash; faults; the count of a process's lives.
//! Interface:  [`SimDisk`], [`Faults`], [`Sabotage`].
//! Invariants: only what was synced is sure to survive a power loss; all that is visible survives
//!             the death of a process. A handle of a dead process does nothing.
//! Never:      the real file system, clocks; faults that a log could not be asked to survive.
//! Tests:      `tests/promises/disk.rs`; `docs/testing.md` has the fault atlas.
//! Start at:   [`SimDisk::power_loss`].

mod inode;
mod names;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use duramen_storage::Disk;

use crate::failure::{Failure, wrong};
use crate::prng::Prng;
use crate::trace::Trace;
use inode::{Inode, Luck, PAGE};
use names::{NameOp, Names, NodeId, ROOT};

const EIO: i32 = 5;
const ENOSPC: i32 = 28;
const ENAMETOOLONG: i32 = 36;
/// Most bytes of a name, as file systems have it.
const NAME_BYTES_MAX: usize = 255;

/// Chances in a thousand calls. All zero: a good disk.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// A sync fails; its pages are marked clean.
    pub sync_fails: u64,
    /// A read, cached or direct, fails.
    pub read_fails: u64,
    /// A write fails after some of its pages.
    pub write_fails: u64,
    /// The kernel writes some dirty pages of some file back, unasked.
    pub write_back: u64,
    /// That write-back fails, and nobody hears of it but the next sync of a handle then open.
    pub write_back_fails: u64,
}

/// Lies that a disk can be told to tell: bugs planted outside of production code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// `sync` returns at once.
    FileSyncDropped,
    /// `sync_dir` returns at once.
    DirSyncDropped,
    /// `read_medium` reads the page cache.
    MediumReadFromCache,
    /// A failed sync says that it succeeded.
    SyncErrorSwallowed,
}

/// State of the living process towards its disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Process {
    Alive,
    /// A sync failed, and nobody has been told: other threads go on.
    Failing,
    /// A sync or write failed, and the process knows: it must not write again.
    Doomed,
    /// Killed in the middle of a call.
    Dead,
}

/// Counts of calls and faults.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counters {
    /// Calls of any kind.
    pub calls: u64,
    /// Successful file syncs.
    pub syncs: u64,
    /// Faults injected.
    pub faults: u64,
    /// Power losses.
    pub power_losses: u64,
    /// Process deaths.
    pub kills: u64,
}

struct Machine {
    generation: u64,
    process: Process,
    files: BTreeMap<NodeId, Inode>,
    visible: Names,
    durable: Names,
    pending: Vec<NameOp>,
    next_node: NodeId,
    capacity: u64,
    crash_in: Option<u64>,
    faults: Faults,
    sabotage: Option<Sabotage>,
    chance: Prng,
    survival: Prng,
    trace: Trace,
    counters: Counters,
    violations: Vec<String>,
}

/// A simulated disk, as one process sees it.
#[derive(Clone)]
pub struct SimDisk {
    machine: Arc<Mutex<Machine>>,
    generation: u64,
}

impl fmt::Debug for SimDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimDisk(process {})", self.generation)
    }
}

/// An open file of one process.
#[derive(Clone)]
pub struct SimFile(Arc<Handle>);

struct Handle {
    node: NodeId,
    generation: u64,
    errors_seen: AtomicU64,
    machine: Arc<Mutex<Machine>>,
}

impl fmt::Debug for SimFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimFile({} of process {})", self.0.node, self.0.generation)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let mut machine = lock(&self.machine);
        if machine.generation == self.generation
            && let Some(inode) = machine.files.get_mut(&self.node)
        {
            inode.handles = inode.handles.saturating_sub(1);
        }
    }
}

fn lock(machine: &Mutex<Machine>) -> MutexGuard<'_, Machine> {
    machine.lock().unwrap_or_else(PoisonError::into_inner)
}

fn to_usize(value: u64) -> usize {
    usize::try_from(value).expect("simulated files are small")
}

/// Refuses a path whose last name is too long, as file systems do.
fn check_name(path: &str) -> io::Result<()> {
    let name = path.rsplit('/').next().unwrap_or_default();
    if name.len() > NAME_BYTES_MAX { Err(os_error(ENAMETOOLONG)) } else { Ok(()) }
}

fn os_error(code: i32) -> io::Error {
    io::Error::from_raw_os_error(code)
}

fn not_found(path: &str) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, format!("no such file or directory: {path}"))
}

fn exists(path: &str) -> io::Error {
    io::Error::new(io::ErrorKind::AlreadyExists, format!("exists already: {path}"))
}

/// The kinds of calls, for the trace.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Call {
    Create = 1,
    Open,
    Len,
    Read,
    ReadMedium,
    Write,
    SetLen,
    Sync,
    WriteBack,
    CreateDir,
    SyncDir,
    List,
    Rename,
    RemoveFile,
    RemoveDir,
    Available,
}

impl Call {
    /// Tells whether the call changes state that others see. Removals may be under way on another thread.
    fn mutates(self) -> bool {
        matches!(self, Self::Create | Self::Write | Self::SetLen | Self::CreateDir | Self::Rename)
    }
}

impl Machine {
    /// Enters a call: checks who may make it, lets other things happen meanwhile, and returns `Ok(true)` if it is the
    /// last of this process.
    fn enter(&mut self, generation: u64, call: Call) -> io::Result<bool> {
        self.counters.calls += 1;
        self.trace.mix(call as u64);
        if generation != self.generation {
            self.violations.push(format!("call {} of a dead process", call as u64));
            return Err(io::Error::other("this process is dead: a zombie calls"));
        }
        match self.process {
            Process::Dead => return Err(io::Error::other("this process was just killed")),
            Process::Doomed if call.mutates() => {
                self.violations.push(format!("call {} after a failed sync or write", call as u64));
                return Err(io::Error::other("nothing may be written after a failure"));
            }
            Process::Doomed | Process::Failing | Process::Alive => {}
        }
        self.background();
        if let Some(left) = &mut self.crash_in {
            *left = left.saturating_sub(1);
            if *left == 0 {
                self.process = Process::Dead;
                self.crash_in = None;
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Does the kernel's own work between two calls.
    fn background(&mut self) {
        if !self.chance.chance(self.faults.write_back) {
            return;
        }
        let dirty: Vec<NodeId> = self
            .files
            .iter()
            .filter(|(_, inode)| inode.is_dirty())
            .map(|(node, _)| *node)
            .collect();
        if dirty.is_empty() {
            return;
        }
        let node = *self.chance.pick(&dirty);
        let fails = self.chance.chance(self.faults.write_back_fails);
        let inode = self.files.get_mut(&node).expect("it was just found");
        if fails {
            inode.fail_write_back(&mut self.chance);
            self.counters.faults += 1;
        } else {
            let luck = Luck::draw(&mut self.chance);
            inode.write_back(luck, &mut self.chance);
        }
    }

    fn fault(&mut self, per_mille: u64) -> bool {
        let happens = self.chance.chance(per_mille);
        if happens {
            self.counters.faults += 1;
            self.trace.mix(u64::MAX);
        }
        happens
    }

    fn file(&mut self, node: NodeId) -> &mut Inode {
        self.files.get_mut(&node).expect("an open file has an inode")
    }

    fn used(&self) -> u64 {
        let held = self.files.values().filter(|inode| inode.linked || inode.handles > 0);
        held.map(Inode::space).sum()
    }

    fn free(&self) -> u64 {
        self.capacity.saturating_sub(self.used())
    }

    fn change(&mut self, op: NameOp) {
        let (unlinked, linked) = match &op {
            NameOp::Link { node, .. } => (None, Some(*node)),
            NameOp::Unlink { node, .. } => (Some(*node), None),
            NameOp::Move { to, .. } => {
                let entries = self.visible.entries(to.0);
                (entries.and_then(|entries| entries.get(&to.1).copied()), None)
            }
        };
        for (node, link) in [(unlinked, false), (linked, true)] {
            if let Some(inode) = node.and_then(|node| self.files.get_mut(&node)) {
                inode.linked = link;
            }
        }
        self.visible.apply(&op);
        self.pending.push(op);
    }

    fn killed() -> io::Error {
        io::Error::other("killed in the middle of a call")
    }

    /// Drops inodes which no name, visible, durable or pending, and no handle needs.
    fn collect(&mut self) {
        let mut needed: Vec<NodeId> = self.visible.walk().into_iter().map(|(_, n)| n).collect();
        needed.extend(self.durable.walk().into_iter().map(|(_, n)| n));
        needed.extend(self.pending.iter().map(NameOp::node));
        needed.sort_unstable();
        self.files.retain(|node, inode| inode.handles > 0 || needed.binary_search(node).is_ok());
    }

    fn unlink_file(&mut self, dir: NodeId, name: &str, node: NodeId) {
        self.change(NameOp::Unlink { dir, name: name.to_owned(), node });
    }

    /// Removes a directory with all in it, or, if the process `dies` of it, only some of that.
    fn remove_tree(&mut self, parent: NodeId, name: &str, dir: NodeId, dies: bool) {
        let entries: Vec<(String, NodeId)> = self
            .visible
            .entries(dir)
            .into_iter()
            .flatten()
            .map(|(name, node)| (name.clone(), *node))
            .collect();
        for (child, node) in entries {
            if dies && self.chance.chance(300) {
                return;
            }
            if self.visible.is_dir(node) {
                self.remove_tree(dir, &child, node, false);
            } else {
                self.unlink_file(dir, &child, node);
            }
        }
        self.change(NameOp::Unlink { dir: parent, name: name.to_owned(), node: dir });
    }
}

impl SimDisk {
    /// Returns an empty disk whose chances come from `seed`.
    pub fn new(seed: u64) -> Self {
        let mut visible = Names::default();
        visible.add_dir(ROOT);
        let machine = Machine {
            generation: 1,
            process: Process::Alive,
            files: BTreeMap::new(),
            durable: visible.clone(),
            visible,
            pending: Vec::new(),
            next_node: ROOT + 1,
            capacity: u64::MAX / 2,
            crash_in: None,
            faults: Faults::default(),
            sabotage: None,
            chance: Prng::new(seed, "disk"),
            survival: Prng::new(seed, "survival"),
            trace: Trace::default(),
            counters: Counters::default(),
            violations: Vec::new(),
        };
        Self { machine: Arc::new(Mutex::new(machine)), generation: 1 }
    }

    fn state(&self) -> MutexGuard<'_, Machine> {
        lock(&self.machine)
    }

    /// Sets the chances of faults from now on.
    pub fn set_faults(&self, faults: Faults) {
        self.state().faults = faults;
    }

    /// Plants a bug in the disk.
    pub fn set_sabotage(&self, sabotage: Option<Sabotage>) {
        self.state().sabotage = sabotage;
    }

    /// Sets the disk's size.
    pub fn set_capacity(&self, bytes: u64) {
        self.state().capacity = bytes;
    }

    /// Returns the bytes taken, by whole pages.
    pub fn used(&self) -> u64 {
        self.state().used()
    }

    /// Lets the process die in the middle of its `calls`th call from now; `None` lets it live.
    pub fn crash_in(&self, calls: Option<u64>) {
        self.state().crash_in = calls;
    }

    /// Tells whether the process has died by [`SimDisk::crash_in`].
    pub fn is_dead(&self) -> bool {
        self.state().process == Process::Dead
    }

    /// Tells whether a sync or write has failed in this process.
    pub fn is_doomed(&self) -> bool {
        matches!(self.state().process, Process::Failing | Process::Doomed)
    }

    /// Tells the process of a failed sync: from now on it must not write.
    pub fn doom(&self) {
        let mut machine = self.state();
        if machine.process == Process::Failing {
            machine.process = Process::Doomed;
        }
    }

    /// Kills the process; the kernel lives on, and all that was visible stays. The kernel may drop clean pages
    /// from its cache, those which a failed write-back had marked clean among them. Returns the next process's view.
    #[must_use = "the old process's view is dead"]
    pub fn kill(&self) -> Self {
        let mut guard = self.state();
        let machine = &mut *guard;
        machine.trace.mix(101);
        machine.counters.kills += 1;
        let luck = Luck::draw(&mut machine.survival);
        for inode in machine.files.values_mut() {
            inode.handles = 0;
            inode.evict(luck, &mut machine.survival);
        }
        machine.collect();
        machine.begin_process(&self.machine)
    }

    /// Cuts the power, and returns the next process's view. Every file that still has a name keeps one of the lengths
    /// since its last sync. Each unsynced page is any of its versions, or torn between two of them at 512 bytes. Of
    /// the unsynced creations, renames and removals any subset has happened.
    #[must_use = "the old process's view is dead"]
    pub fn power_loss(&self) -> Self {
        let mut guard = self.state();
        let machine = &mut *guard;
        machine.trace.mix(102);
        machine.counters.power_losses += 1;
        let prng = &mut machine.survival;
        let (names, lengths, pages) = (Luck::draw(prng), Luck::draw(prng), Luck::draw(prng));
        let prefix = prng.chance(250).then(|| prng.index(machine.pending.len() + 1));
        for (at, op) in machine.pending.drain(..).enumerate() {
            if prefix.map_or_else(|| names.holds(prng), |prefix| at < prefix) {
                machine.durable.apply(&op);
            }
        }
        machine.durable.prune();
        for inode in machine.files.values_mut() {
            inode.power_loss(lengths, pages, prng);
        }
        machine.visible = machine.durable.clone();
        machine.collect();
        for inode in machine.files.values_mut() {
            inode.linked = true;
        }
        machine.begin_process(&self.machine)
    }

    /// Returns all files, with their lengths, in order.
    pub fn files(&self) -> Vec<(String, u64)> {
        let machine = self.state();
        let walked = machine.visible.walk().into_iter();
        walked
            .filter_map(|(path, node)| Some((path, machine.files.get(&node)?.len() as u64)))
            .collect()
    }

    /// Returns a file's bytes as the page cache has them.
    pub fn contents(&self, path: &str) -> Option<Vec<u8>> {
        let machine = self.state();
        Some(machine.files.get(&machine.visible.find(path)?)?.visible().to_vec())
    }

    /// Flips one bit of a byte at rest; false if there is none there: past the end, or not yet
    /// durable.
    pub fn flip(&self, path: &str, at: u64, bit: u8) -> bool {
        let mut machine = self.state();
        let node = machine.visible.find(path);
        let Some(inode) = node.and_then(|node| machine.files.get_mut(&node)) else {
            return false;
        };
        let rests = inode.is_at_rest(to_usize(at));
        if rests {
            inode.flip(to_usize(at), bit);
        }
        rests
    }

    /// Changes a file as somebody with a shell does while no process runs: gives it other bytes, makes one, or, with
    /// `None`, removes it. All that was visible is durable then, and so is the change.
    pub fn put(&self, path: &str, bytes: Option<Vec<u8>>) {
        let mut guard = self.state();
        let machine = &mut *guard;
        for op in machine.pending.drain(..) {
            machine.durable.apply(&op);
        }
        for inode in machine.files.values_mut() {
            let visible = inode.visible().to_vec();
            inode.put(visible);
        }
        let (dir, name) = machine.visible.parent(path).expect("its directory is there");
        let name = name.to_owned();
        match (machine.visible.find(path), bytes) {
            (Some(node), Some(bytes)) => machine.file(node).put(bytes),
            (None, Some(bytes)) => {
                let node = machine.next_node;
                machine.next_node += 1;
                let mut inode = Inode::default();
                inode.put(bytes);
                machine.files.insert(node, inode);
                machine.change(NameOp::Link { dir, name, node });
            }
            (Some(node), None) => machine.unlink_file(dir, &name, node),
            (None, None) => {}
        }
        for op in machine.pending.drain(..) {
            machine.durable.apply(&op);
        }
        machine.trace.mix(103);
    }

    /// Calls that no correct process makes: after its death, or writes after a failure.
    pub fn violations(&self) -> Vec<String> {
        self.state().violations.clone()
    }

    /// Fails for the first call that no correct process makes.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        match self.violations().first() {
            Some(violation) => wrong(format!("disk: {violation}")),
            None => Ok(()),
        }
    }

    /// Returns the trace of all calls.
    pub fn trace(&self) -> Trace {
        self.state().trace
    }

    /// Returns the counts of calls and faults.
    pub fn counters(&self) -> Counters {
        self.state().counters
    }

    /// Begins a call that does nothing if the process dies in it.
    fn enter(&self, generation: u64, call: Call) -> io::Result<MutexGuard<'_, Machine>> {
        let mut machine = self.state();
        if machine.enter(generation, call)? { Err(Machine::killed()) } else { Ok(machine) }
    }

    fn handle(&self, machine: &mut Machine, node: NodeId) -> SimFile {
        let inode = machine.file(node);
        // A new handle hears of an earlier write-back error only if nobody has yet. The kernel must also still have
        // the inode, which only an open handle makes sure.
        let missed = inode.handles > 0 && !inode.error_seen && inode.errors > 0;
        let errors_seen = AtomicU64::new(inode.errors - u64::from(missed));
        inode.handles += 1;
        let machine = Arc::clone(&self.machine);
        SimFile(Arc::new(Handle { node, generation: self.generation, errors_seen, machine }))
    }
}

impl Machine {
    fn begin_process(&mut self, shared: &Arc<Mutex<Machine>>) -> SimDisk {
        self.generation += 1;
        self.process = Process::Alive;
        self.crash_in = None;
        SimDisk { machine: Arc::clone(shared), generation: self.generation }
    }

    fn write(&mut self, node: NodeId, bytes: &[u8], at: usize, dies: bool) -> io::Result<()> {
        self.trace.mix(at as u64);
        self.trace.mix_bytes(bytes);
        let fails = self.fault(self.faults.write_fails);
        let full = self.file(node).needs(at, bytes.len()) > self.free();
        if !(dies || fails || full) {
            self.file(node).write(at, bytes);
            return Ok(());
        }
        let mut done = self.chance.index(bytes.len() + 1);
        if self.chance.chance(200) {
            done = bytes.len();
        } else if !self.chance.chance(100) {
            done = done.saturating_sub((at + done) % PAGE);
        }
        if full {
            while done > 0 && self.file(node).needs(at, done) > self.free() {
                done = done.saturating_sub(PAGE);
            }
        }
        self.file(node).write(at, &bytes[..done]);
        if dies {
            return Err(Self::killed());
        }
        if fails {
            self.process = Process::Doomed;
        }
        Err(os_error(if fails { EIO } else { ENOSPC }))
    }

    fn sync(&mut self, file: &Handle, dies: bool) -> io::Result<()> {
        let sabotage = self.sabotage;
        if sabotage == Some(Sabotage::FileSyncDropped) && !dies {
            return Ok(());
        }
        if dies {
            // The sync may have got as far as the device for some pages.
            let luck = Luck::draw(&mut self.chance);
            let inode = self.files.get_mut(&file.node).expect("an open file has an inode");
            inode.write_back(luck, &mut self.chance);
            return Err(Self::killed());
        }
        let fails = self.fault(self.faults.sync_fails);
        let inode = self.files.get_mut(&file.node).expect("an open file has an inode");
        if fails {
            inode.fail_write_back(&mut self.chance);
        }
        if file.errors_seen.load(Ordering::Relaxed) < inode.errors {
            file.errors_seen.store(inode.errors, Ordering::Relaxed);
            inode.error_seen = true;
            if sabotage == Some(Sabotage::SyncErrorSwallowed) {
                return Ok(());
            }
            self.process = Process::Failing;
            return Err(os_error(EIO));
        }
        inode.sync();
        self.counters.syncs += 1;
        Ok(())
    }
}

impl Disk for SimDisk {
    type File = SimFile;

    fn create(&self, path: &str) -> io::Result<SimFile> {
        let mut machine = self.state();
        let dies = machine.enter(self.generation, Call::Create)?;
        machine.trace.mix_bytes(path.as_bytes());
        check_name(path)?;
        if machine.visible.find(path).is_some() {
            return Err(exists(path));
        }
        let (dir, name) = machine.visible.parent(path).ok_or_else(|| not_found(path))?;
        let name = name.to_owned();
        if machine.free() < PAGE as u64 {
            return Err(os_error(ENOSPC));
        }
        let node = machine.next_node;
        if !dies || machine.chance.chance(500) {
            machine.next_node += 1;
            machine.files.insert(node, Inode::default());
            machine.change(NameOp::Link { dir, name, node });
        }
        if dies { Err(Machine::killed()) } else { Ok(self.handle(&mut machine, node)) }
    }

    fn open(&self, path: &str) -> io::Result<SimFile> {
        let mut machine = self.enter(self.generation, Call::Open)?;
        machine.trace.mix_bytes(path.as_bytes());
        let node = machine.visible.find(path).ok_or_else(|| not_found(path))?;
        if machine.visible.is_dir(node) {
            return Err(io::Error::from(io::ErrorKind::IsADirectory));
        }
        Ok(self.handle(&mut machine, node))
    }

    fn len(&self, file: &SimFile) -> io::Result<u64> {
        let mut machine = self.enter(file.0.generation, Call::Len)?;
        Ok(machine.file(file.0.node).len() as u64)
    }

    fn read_at(&self, file: &SimFile, buf: &mut [u8], at: u64) -> io::Result<usize> {
        let mut machine = self.enter(file.0.generation, Call::Read)?;
        let fails = machine.faults.read_fails;
        if machine.fault(fails) {
            return Err(os_error(EIO));
        }
        let bytes = machine.file(file.0.node).visible();
        let from = to_usize(at).min(bytes.len());
        let len = buf.len().min(bytes.len() - from);
        buf[..len].copy_from_slice(&bytes[from..from + len]);
        machine.trace.mix_bytes(&buf[..len]);
        Ok(len)
    }

    fn read_medium(&self, file: &SimFile, at: u64, len: usize) -> io::Result<Vec<u8>> {
        let mut machine = self.enter(file.0.generation, Call::ReadMedium)?;
        let fails = machine.faults.read_fails;
        if machine.fault(fails) {
            return Err(os_error(EIO));
        }
        let cached = machine.sabotage == Some(Sabotage::MediumReadFromCache);
        let inode = machine.file(file.0.node);
        let bytes = if cached {
            let from = to_usize(at).min(inode.len());
            inode.visible()[from..(from + len).min(inode.len())].to_vec()
        } else {
            inode.read_direct(to_usize(at), len)
        };
        machine.trace.mix_bytes(&bytes);
        Ok(bytes)
    }

    fn write_at(&self, file: &SimFile, bufs: &[&[u8]], at: u64) -> io::Result<()> {
        let mut machine = self.state();
        let dies = machine.enter(file.0.generation, Call::Write)?;
        let joined;
        let bytes: &[u8] = if let [one] = bufs {
            one
        } else {
            joined = bufs.concat();
            &joined
        };
        machine.write(file.0.node, bytes, to_usize(at), dies)
    }

    fn set_len(&self, file: &SimFile, len: u64) -> io::Result<()> {
        let mut machine = self.state();
        let dies = machine.enter(file.0.generation, Call::SetLen)?;
        machine.trace.mix(len);
        if !dies || machine.chance.chance(500) {
            machine.file(file.0.node).set_len(to_usize(len));
        }
        if dies { Err(Machine::killed()) } else { Ok(()) }
    }

    fn sync(&self, file: &SimFile) -> io::Result<()> {
        let mut machine = self.state();
        let dies = machine.enter(file.0.generation, Call::Sync)?;
        machine.sync(&file.0, dies)
    }

    fn start_writeback(&self, file: &SimFile, _at: u64, _len: u64) -> io::Result<()> {
        let mut guard = self.enter(file.0.generation, Call::WriteBack)?;
        let machine = &mut *guard;
        let luck = Luck::draw(&mut machine.chance);
        let inode = machine.files.get_mut(&file.0.node).expect("an open file has an inode");
        inode.write_back(luck, &mut machine.chance);
        Ok(())
    }

    fn create_dir(&self, path: &str) -> io::Result<()> {
        let mut machine = self.state();
        let dies = machine.enter(self.generation, Call::CreateDir)?;
        machine.trace.mix_bytes(path.as_bytes());
        check_name(path)?;
        if let Some(node) = machine.visible.find(path) {
            return if machine.visible.is_dir(node) { Ok(()) } else { Err(exists(path)) };
        }
        let (dir, name) = machine.visible.parent(path).ok_or_else(|| not_found(path))?;
        let name = name.to_owned();
        if machine.free() < PAGE as u64 {
            return Err(os_error(ENOSPC));
        }
        if !dies || machine.chance.chance(500) {
            let node = machine.next_node;
            machine.next_node += 1;
            machine.visible.add_dir(node);
            machine.durable.add_dir(node);
            machine.change(NameOp::Link { dir, name, node });
        }
        if dies { Err(Machine::killed()) } else { Ok(()) }
    }

    fn sync_dir(&self, path: &str) -> io::Result<()> {
        let mut guard = self.enter(self.generation, Call::SyncDir)?;
        let machine = &mut *guard;
        machine.trace.mix_bytes(path.as_bytes());
        let node = machine.visible.find(path).ok_or_else(|| not_found(path))?;
        if machine.fault(machine.faults.sync_fails) {
            machine.process = Process::Failing;
            return Err(os_error(EIO));
        }
        if machine.sabotage != Some(Sabotage::DirSyncDropped) {
            machine.durable.sync(node, &mut machine.pending);
            machine.collect();
        }
        Ok(())
    }

    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        let machine = self.enter(self.generation, Call::List)?;
        let node = machine.visible.find(path).ok_or_else(|| not_found(path))?;
        let entries = machine.visible.entries(node);
        Ok(entries.ok_or_else(|| not_found(path))?.keys().cloned().collect())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut machine = self.state();
        let dies = machine.enter(self.generation, Call::Rename)?;
        machine.trace.mix_bytes(from.as_bytes());
        machine.trace.mix_bytes(to.as_bytes());
        check_name(to)?;
        let node = machine.visible.find(from).ok_or_else(|| not_found(from))?;
        if let Some(old) = machine.visible.find(to)
            && (machine.visible.is_dir(old) || machine.visible.is_dir(node))
        {
            return Err(exists(to));
        }
        let source = machine.visible.parent(from).ok_or_else(|| not_found(from))?;
        let source = (source.0, source.1.to_owned());
        let target = machine.visible.parent(to).ok_or_else(|| not_found(to))?;
        let target = (target.0, target.1.to_owned());
        if !dies || machine.chance.chance(500) {
            machine.change(NameOp::Move { from: source, to: target, node });
        }
        if dies { Err(Machine::killed()) } else { Ok(()) }
    }

    fn remove_file(&self, path: &str) -> io::Result<()> {
        let mut machine = self.state();
        let dies = machine.enter(self.generation, Call::RemoveFile)?;
        machine.trace.mix_bytes(path.as_bytes());
        let node = machine.visible.find(path).ok_or_else(|| not_found(path))?;
        if machine.visible.is_dir(node) {
            return Err(io::Error::from(io::ErrorKind::IsADirectory));
        }
        let (dir, name) = machine.visible.parent(path).ok_or_else(|| not_found(path))?;
        let name = name.to_owned();
        if !dies || machine.chance.chance(500) {
            machine.unlink_file(dir, &name, node);
        }
        if dies { Err(Machine::killed()) } else { Ok(()) }
    }

    fn remove_dir(&self, path: &str) -> io::Result<()> {
        let mut machine = self.state();
        let dies = machine.enter(self.generation, Call::RemoveDir)?;
        machine.trace.mix_bytes(path.as_bytes());
        let node = machine.visible.find(path).ok_or_else(|| not_found(path))?;
        if !machine.visible.is_dir(node) {
            return Err(io::Error::from(io::ErrorKind::NotADirectory));
        }
        let (dir, name) = machine.visible.parent(path).ok_or_else(|| not_found(path))?;
        let name = name.to_owned();
        machine.remove_tree(dir, &name, node, dies);
        if dies { Err(Machine::killed()) } else { Ok(()) }
    }

    fn available(&self) -> io::Result<u64> {
        Ok(self.enter(self.generation, Call::Available)?.free())
    }
}
