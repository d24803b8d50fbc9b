//! The bare server: one thread reads sockets, writes journal and segment, and answers; another one syncs.
//!
//! It writes as a durable broker does: a round of the journal for all that came, over bytes that were written before; the
//! same batches to the end of a segment that grows; one sync of the journal. Then it answers. Nothing else is here: no
//! log that could be read, no errors but a closed connection.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::{mem, thread};

use anyhow::Context;
use clap::{Args, ValueEnum};
use rustix::event::{EventfdFlags, epoll, eventfd};

use crate::frames::{BASE_OFFSET, PREFIX, Produce, answer, int32};

const EXTENT_BYTES: u64 = 64 << 20;
const PAGE: usize = 4096;
/// Bytes of a segment after which their write-back begins, so that no sync finds many.
const WRITE_BACK_BYTES: u64 = 512 << 10;
/// Bytes of a segment after which it is synced, by a thread of its own, and after which it begins anew.
const SEGMENT_SYNC_BYTES: u64 = 16 << 20;
const SEGMENT_BYTES: u64 = 1 << 30;
/// Header of a round, and of each batch in it; their content does not matter here.
const ROUND_HEADER: usize = 64;
const RECORD_HEADER: usize = 80;
/// Buffers in one call of the kernel.
const SLICES_MAX: usize = 512;
/// Keys of what is no connection.
const LISTENER: u64 = u64::MAX;
const SYNCED: u64 = u64::MAX - 1;

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Store {
    /// Journal and segment
    Both,
    /// The journal alone
    Journal,
    /// Nothing: clients are answered at once
    Nothing,
}

#[derive(Args)]
pub(crate) struct Options {
    /// Directory of the journal and the segment
    #[arg(long)]
    directory: PathBuf,
    /// Port of 127.0.0.1; 0 takes a free one
    #[arg(long, default_value_t = 0)]
    port: u16,
    /// Files that are written
    #[arg(long, value_enum, default_value_t = Store::Both)]
    store: Store,
}

/// A client, and the bytes that it has sent and that are no whole request yet.
struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
    filled: usize,
}

/// A client that waits for its answer.
struct Waiter {
    connection: usize,
    correlation_id: i32,
    name: Arc<[u8]>,
    partition: i32,
    base_offset: i64,
}

/// Batches that are synced together.
struct Round {
    bytes: Vec<u8>,
    batches: Vec<Range<usize>>,
    waiters: Vec<Waiter>,
}

impl Round {
    fn new() -> Self {
        Self { bytes: vec![0; ROUND_HEADER], batches: Vec::new(), waiters: Vec::new() }
    }

    fn clear(&mut self) {
        self.bytes.truncate(ROUND_HEADER);
        self.batches.clear();
        self.waiters.clear();
    }
}

struct Files {
    store: Store,
    journal: File,
    journal_at: u64,
    segment: File,
    segment_path: PathBuf,
    segment_at: u64,
    segment_started: u64,
    segment_synced: u64,
    /// Segments to be synced in the background.
    background: Sender<File>,
}

impl Files {
    fn open(directory: &Path, store: Store) -> anyhow::Result<Self> {
        fs::create_dir_all(directory).with_context(|| directory.display().to_string())?;
        let path = directory.join("journal");
        let journal = OpenOptions::new().write(true).create(true).truncate(true).open(path)?;
        let zeros = vec![0; 1 << 20];
        for at in (0..EXTENT_BYTES).step_by(zeros.len()) {
            journal.write_all_at(&zeros, at)?;
        }
        journal.sync_all()?;
        let segment_path = directory.join("segment");
        let segment = File::create(&segment_path)?;
        let (background, segments) = channel::<File>();
        thread::spawn(move || {
            for segment in segments {
                segment.sync_data().expect("the segment is synced");
            }
        });
        Ok(Self {
            store,
            journal,
            journal_at: 0,
            segment,
            segment_path,
            segment_at: 0,
            segment_started: 0,
            segment_synced: 0,
            background,
        })
    }

    fn write(&mut self, round: &mut Round) -> io::Result<()> {
        if self.store == Store::Nothing {
            return Ok(());
        }
        let crc = crc32c::crc32c(&round.bytes[ROUND_HEADER..]);
        round.bytes[..4].copy_from_slice(&crc.to_be_bytes());
        let used = round.bytes.len();
        round.bytes.resize(used.next_multiple_of(PAGE), 0);
        let len = round.bytes.len() as u64;
        if self.journal_at + len > EXTENT_BYTES {
            self.journal_at = 0;
        }
        self.journal.write_all_at(&round.bytes, self.journal_at)?;
        self.journal_at += len;
        if self.store == Store::Both { self.write_segment(round) } else { Ok(()) }
    }

    fn write_segment(&mut self, round: &Round) -> io::Result<()> {
        for batches in round.batches.chunks(SLICES_MAX) {
            let bytes = batches.iter().map(|it| IoSlice::new(&round.bytes[it.clone()]));
            let slices: Vec<IoSlice> = bytes.collect();
            let len: usize = batches.iter().map(ExactSizeIterator::len).sum();
            let written = rustix::io::pwritev(&self.segment, &slices, self.segment_at)?;
            assert_eq!(written, len, "the disk has room");
            self.segment_at += len as u64;
        }
        if self.segment_at - self.segment_started >= WRITE_BACK_BYTES {
            start_write_back(&self.segment, self.segment_started..self.segment_at);
            self.segment_started = self.segment_at;
        }
        if self.segment_at - self.segment_synced >= SEGMENT_SYNC_BYTES {
            self.segment_synced = self.segment_at;
            let segment = self.segment.try_clone()?;
            self.background.send(segment).expect("the thread waits for ever");
        }
        if self.segment_at >= SEGMENT_BYTES {
            fs::remove_file(&self.segment_path)?;
            self.segment = File::create(&self.segment_path)?;
            (self.segment_at, self.segment_started, self.segment_synced) = (0, 0, 0);
        }
        Ok(())
    }
}

/// Has the kernel begin to write a range to the medium, and does not wait. A refusal costs speed alone.
#[expect(unsafe_code, reason = "rustix has no such call")]
fn start_write_back(file: &File, range: Range<u64>) {
    let place = (i64::try_from(range.start), i64::try_from(range.end - range.start));
    let (Ok(at), Ok(len)) = place else { return };
    // SAFETY: the descriptor is open as long as `file` is borrowed, and the call touches no memory of ours.
    unsafe { libc::sync_file_range(file.as_raw_fd(), at, len, libc::SYNC_FILE_RANGE_WRITE) };
}

/// The thread that syncs.
struct Syncer {
    wanted: Sender<()>,
    done: Arc<AtomicU64>,
    bell: Arc<OwnedFd>,
    seen: u64,
}

impl Syncer {
    fn start(journal: File) -> anyhow::Result<Self> {
        let (wanted, requests) = channel::<()>();
        let done = Arc::new(AtomicU64::new(0));
        let bell = Arc::new(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?);
        let syncer = Self { wanted, done: Arc::clone(&done), bell: Arc::clone(&bell), seen: 0 };
        thread::spawn(move || {
            for () in requests {
                journal.sync_data().expect("the journal is synced");
                done.fetch_add(1, Ordering::Release);
                // Any number but 0 rings.
                rustix::io::write(&*bell, &1_u64.to_le_bytes()).expect("an event is counted");
            }
        });
        Ok(syncer)
    }

    /// Tells whether a sync has ended since the last look.
    fn is_done(&mut self) -> bool {
        let done = self.done.load(Ordering::Acquire);
        mem::replace(&mut self.seen, done) < done
    }
}

struct Server {
    epoll: OwnedFd,
    listener: TcpListener,
    connections: Vec<Option<Connection>>,
    files: Files,
    syncer: Syncer,
    /// Requests that came since the last round began.
    next: Round,
    syncing: Option<Round>,
    spare: Vec<Round>,
    next_offset: i64,
    /// Topic of the last request.
    name: Arc<[u8]>,
    out: Vec<u8>,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let files = Files::open(&options.directory, options.store)?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, options.port))?;
    listener.set_nonblocking(true)?;
    let syncer = Syncer::start(files.journal.try_clone()?)?;
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let is_in = epoll::EventFlags::IN;
    epoll::add(&epoll, &listener, epoll::EventData::new_u64(LISTENER), is_in)?;
    epoll::add(&epoll, &syncer.bell, epoll::EventData::new_u64(SYNCED), is_in)?;
    println!("listening on port {}", listener.local_addr()?.port());
    let mut server = Server {
        epoll,
        listener,
        connections: Vec::new(),
        files,
        syncer,
        next: Round::new(),
        syncing: None,
        spare: Vec::new(),
        next_offset: 0,
        name: Arc::from([]),
        out: Vec::new(),
    };
    let mut events = Vec::with_capacity(1024);
    loop {
        events.clear();
        epoll::wait(&server.epoll, rustix::buffer::spare_capacity(&mut events), None)?;
        server.turn(&events)?;
    }
}

impl Server {
    fn turn(&mut self, events: &[epoll::Event]) -> anyhow::Result<()> {
        for event in events {
            match event.data.u64() {
                LISTENER => self.accept()?,
                SYNCED => _ = rustix::io::read(&*self.syncer.bell, &mut [0_u8; 8]),
                key => self.read(usize::try_from(key)?),
            }
        }
        if self.syncer.is_done() {
            let round = self.syncing.take().context("no round was synced")?;
            // The next round is under way before anyone is answered.
            self.begin()?;
            self.answer_all(round);
        }
        self.begin()
    }

    fn accept(&mut self) -> anyhow::Result<()> {
        loop {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error.into()),
            };
            stream.set_nonblocking(true)?;
            stream.set_nodelay(true)?;
            let key = epoll::EventData::new_u64(self.connections.len() as u64);
            epoll::add(&self.epoll, &stream, key, epoll::EventFlags::IN)?;
            self.connections.push(Some(Connection { stream, buffer: Vec::new(), filled: 0 }));
        }
    }

    /// Takes all that a client has sent. A client that sends anything wrong is closed.
    fn read(&mut self, at: usize) {
        let Some(mut connection) = self.connections[at].take() else { return };
        if connection.fill() && self.take_frames(at, &mut connection).is_ok() {
            self.connections[at] = Some(connection);
        }
    }

    fn take_frames(&mut self, at: usize, connection: &mut Connection) -> anyhow::Result<()> {
        let mut from = 0;
        while let Some(len) = int32(&connection.buffer[..connection.filled], from..from + PREFIX) {
            let frame = from + PREFIX..from + PREFIX + usize::try_from(len)?;
            if frame.end > connection.filled {
                break;
            }
            self.take(at, &connection.buffer[frame.clone()])?;
            from = frame.end;
        }
        connection.buffer.copy_within(from..connection.filled, 0);
        connection.filled -= from;
        Ok(())
    }

    fn take(&mut self, connection: usize, frame: &[u8]) -> anyhow::Result<()> {
        let produce = Produce::parse(frame)?;
        if frame[produce.name.clone()] != *self.name {
            self.name = Arc::from(&frame[produce.name]);
        }
        let round = &mut self.next;
        round.bytes.resize(round.bytes.len() + RECORD_HEADER, 0);
        let at = round.bytes.len();
        round.bytes.extend_from_slice(&frame[produce.batch]);
        round.bytes[at..][BASE_OFFSET].copy_from_slice(&self.next_offset.to_be_bytes());
        round.batches.push(at..round.bytes.len());
        round.waiters.push(Waiter {
            connection,
            correlation_id: produce.correlation_id,
            name: Arc::clone(&self.name),
            partition: produce.partition,
            base_offset: self.next_offset,
        });
        self.next_offset += produce.count;
        Ok(())
    }

    /// Begins a round, if there is something to write and no sync is under way.
    fn begin(&mut self) -> anyhow::Result<()> {
        if self.syncing.is_some() || self.next.waiters.is_empty() {
            return Ok(());
        }
        let spare = self.spare.pop().unwrap_or_else(Round::new);
        let mut round = mem::replace(&mut self.next, spare);
        self.files.write(&mut round)?;
        if self.files.store == Store::Nothing {
            self.answer_all(round);
        } else {
            self.syncing = Some(round);
            self.syncer.wanted.send(())?;
        }
        Ok(())
    }

    fn answer_all(&mut self, mut round: Round) {
        for waiter in round.waiters.drain(..) {
            let Waiter { connection, correlation_id, name, partition, base_offset } = waiter;
            answer(&mut self.out, correlation_id, (&name, partition), base_offset);
            let slot = &mut self.connections[connection];
            // An answer always has room, unless its client does not read.
            if slot.as_mut().is_some_and(|it| it.stream.write_all(&self.out).is_err()) {
                *slot = None;
            }
        }
        round.clear();
        self.spare.push(round);
    }
}

impl Connection {
    /// Reads once. False once the client is gone.
    fn fill(&mut self) -> bool {
        if self.buffer.len() - self.filled < 2 * PAGE {
            self.buffer.resize((2 * self.buffer.len()).max(4 * PAGE), 0);
        }
        match self.stream.read(&mut self.buffer[self.filled..]) {
            Ok(0) => false,
            Ok(len) => {
                self.filled += len;
                true
            }
            Err(error) => error.kind() == ErrorKind::WouldBlock,
        }
    }
}
