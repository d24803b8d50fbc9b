//! # Room card: indexing
//!
//! Purpose:    the one thread that keeps the queue indexes of this node's logs.
//! Owns:       its pace.
//! Interface:  [`start`], [`Indexing`].
//! Invariants: it writes tables of the index and nothing else, and never waits for storage or the node. Merges leave
//!             most of the disk to others.
//! Never:      the choice of the next piece of work (`duramen_storage::indexing`).
//! Tests:      `tests/native/queues.rs`.
//! Start at:   [`Indexing::run`].
//!
//! Estimate for a commit of one small batch: two messages between threads, one read from the page cache, one walk over
//! the records. Each queue in it costs two map lookups. Nothing is synced, or written before a memtable is full.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use duramen_broker::Event;
use duramen_storage::Reader;
use duramen_storage::indexing::{Indexer, Limits, Step};

use super::disk::RealDisk;
use super::ending;
use super::inbox::Inbox;
use super::threads::{Errand, Input, ToNode};

/// Pause after a piece of a merge: with pieces of 1 MiB, merges read at most 32 MiB a second.
const MERGE_PAUSE: Duration = Duration::from_millis(31);
/// Pause between two looks for memtables that do not grow: such a one is flushed one to two pauses after its log's last
/// append.
const REST_PAUSE: Duration = Duration::from_secs(60);
/// Pause before a log is looked at again whose last batches storage has not written yet.
const WRITE_PAUSE: Duration = Duration::from_millis(1);

/// Memory of a process in which freed pages are given back, in bytes. With as much in small free pieces the call holds
/// the allocator's locks for some ten milliseconds; with a gigabyte for 650.
const SMALL_BYTES: usize = 64 << 20;

/// Parts that the thread starts with.
#[derive(Debug)]
pub struct Indexing {
    /// Reader of logs.
    pub reader: Reader<RealDisk>,
    /// Bounds of the indexes.
    pub limits: Limits,
    /// Inbox of orders.
    pub orders: Arc<Inbox<Errand>>,
    /// The way into the node's thread.
    pub node: ToNode,
}

/// Starts the thread. It ends after [`Errand::Stop`].
pub fn start(indexing: Indexing) -> io::Result<JoinHandle<()>> {
    ending::spawn("duramen-index", move || indexing.run())
}

impl Indexing {
    fn run(self) {
        let mut indexer = Indexer::new(self.reader, self.limits);
        let mut errands = VecDeque::new();
        let mut merges_at = Instant::now();
        let mut rests_at = merges_at + REST_PAUSE;
        let mut has_freed = false;
        loop {
            for errand in errands.drain(..) {
                match errand {
                    Errand::Index(order) => indexer.order(order),
                    Errand::Stop => return indexer.finish(),
                }
            }
            let now = Instant::now();
            if rests_at <= now {
                has_freed |= indexer.rest();
                rests_at = now + REST_PAUSE;
            }
            let until = match indexer.step(merges_at <= now) {
                Step::Indexed(indexed) => {
                    self.node.push(Input::Event(Event::Indexed(indexed)));
                    Some(now)
                }
                Step::Merged => {
                    merges_at = Instant::now() + MERGE_PAUSE;
                    Some(now)
                }
                Step::Wait => Some(now + WRITE_PAUSE),
                Step::Idle => {
                    if std::mem::take(&mut has_freed) {
                        give_memory_back();
                    }
                    indexer.may_rest().then_some(rests_at)
                }
            };
            self.orders.take_all(&mut errands, until);
        }
    }
}

/// Gives pages that nothing uses any more back to the machine, if the process is small. Else the allocator keeps those
/// of a memtable: names of queues lie between things that stay. In a large process the call could hold up others.
#[cfg_attr(target_env = "gnu", expect(unsafe_code, reason = "no crate wraps the call"))]
fn give_memory_back() {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok());
    if pages.is_none_or(|pages| pages * rustix::param::page_size() > SMALL_BYTES) {
        return;
    }
    // SAFETY: the call takes the allocator's own locks, and touches no memory that is in use.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::malloc_trim(0)
    };
}
