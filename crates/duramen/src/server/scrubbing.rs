//! # Room card: scrubbing
//!
//! Purpose:    the one thread that works on data at rest. It looks for rot, copies segments under repair, compacts
//!             logs, and keeps the pieces of compacted logs that other replicas give.
//! Owns:       its pace; the metrics that an operator sees.
//! Interface:  [`start`], [`Scrubbing`].
//! Invariants: it writes nothing that has a name which storage knows, and never waits for storage or the node. A pass
//!             reads so slowly that it takes the interval; segments that somebody had trouble with are read at once.
//!             A log is compacted in pieces, no faster than a part of the disk allows, and nothing else waits for it.
//! Never:      the verdict on damage, the choice of a replacement, the rules of compaction
//!             (`duramen_storage::{scrub, mending, compaction, staging}`).
//! Tests:      `tests/cluster.rs`.
//! Start at:   [`Scrubbing::run`].
//!
//! Estimate: 1 TB in 7 days is 1.7 MB a second, or seven direct reads of 256 KiB. Each takes about 1 ms on an SSD:
//! 0.7 % of the device's time. Nothing of it stays in the page cache.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use duramen_broker::Event;
use duramen_storage::compaction::{Compaction, CompactionError, Means, Order, Progress};
use duramen_storage::mending::Mend;
use duramen_storage::op::Done;
use duramen_storage::scrub::{Found, Scrubber};
use duramen_storage::staging::{Outcome, Stage, Stagings};
use duramen_storage::{Disk, Reader, ReplicaId};

use super::disk::RealDisk;
use super::ending;
use super::inbox::Inbox;
use super::threads::{Chore, Common, Input, Ready, Work};

/// Bytes of one read.
const PIECE_BYTES: usize = 256 * 1024;
/// Bytes in a second, at least: a pass over little ends soon, and then waits.
const RATE_MIN: u64 = 64 * 1024;
/// Time between two looks for segments that somebody had trouble with.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Time between two adjustments of the pace to the bytes there are to read.
const PACE_EVERY: Duration = Duration::from_secs(60);

/// Bytes of a log compacted in one piece; the next constant is the bytes compacted in a second.
const COMPACTION_PIECE_BYTES: u64 = 1 << 20;
const COMPACTION_RATE: u64 = 64 << 20;
/// Keys that are kept in memory at once while a log is compacted: about 64 MiB.
const COMPACTION_KEYS_MAX: usize = 1 << 20;

/// Parts that the thread starts with.
#[derive(Debug)]
pub struct Scrubbing {
    /// Reader of segments and logs.
    pub reader: Reader<RealDisk>,
    /// Time of one pass; `None` limits the thread to segments that somebody had trouble with.
    pub interval: Option<Duration>,
    /// Key of the hash of record keys in compaction. Nobody else knows it.
    pub hash_key: (u64, u64),
    /// Bytes that the thread's files leave free on the disk.
    pub free_bytes_min: u64,
    /// Inbox of products that are ready to take the place of others.
    pub ready: Arc<Inbox<Ready<RealDisk>>>,
    /// State shared with the other threads.
    pub common: Common,
}

/// One pass over all segments.
struct Pass {
    began: Instant,
    /// Bytes in a second.
    rate: u64,
    paced_at: Instant,
    /// Time when the next piece may be read; of a pass that is over, the time when the next pass begins.
    next_at: Instant,
    is_over: bool,
}

/// Starts the thread. It ends with the process.
pub fn start(scrubbing: Scrubbing) -> io::Result<JoinHandle<()>> {
    ending::spawn("duramen-scrub", move || scrubbing.run())
}

impl Scrubbing {
    fn run(&self) {
        let seed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().subsec_nanos();
        let mut scrubber = Scrubber::new(self.reader.clone(), u64::from(seed));
        let mut pass = self.begin(&scrubber);
        let mut compacting = Compacting::default();
        let mut stagings = Stagings::default();
        let mut chores = VecDeque::new();
        loop {
            for chore in chores.drain(..) {
                match chore {
                    Chore::Mend(mend) => self.mend(&mend),
                    Chore::Compact(order) => compacting.orders.push_back(order),
                    Chore::Stage(stage) => self.stage(&mut stagings, stage),
                }
            }
            self.compact(&mut compacting);
            let is_due = self.interval.is_some() && pass.next_at <= Instant::now();
            if is_due && pass.is_over {
                pass = self.begin(&scrubber);
            }
            if is_due || scrubber.is_urgent() {
                let (bytes, found) = scrubber.step(PIECE_BYTES);
                self.common.metrics.scrubbing.bytes.inc_by(bytes);
                pass.next_at = Instant::now() + Duration::from_secs_f64(pass.seconds_of(bytes));
                self.tell(found, &mut pass);
            }
            if pass.paced_at.elapsed() >= PACE_EVERY {
                self.pace(&scrubber, &mut pass);
            }
            let now = Instant::now();
            let until = if scrubber.is_urgent() { now } else { now + LOOK_EVERY };
            let until = if self.interval.is_some() { until.min(pass.next_at) } else { until };
            let until = compacting.next_at().map_or(until, |at| until.min(at));
            self.common.chores.take_all(&mut chores, Some(until));
        }
    }

    fn begin(&self, scrubber: &Scrubber<RealDisk>) -> Pass {
        let now = Instant::now();
        let mut pass =
            Pass { began: now, rate: RATE_MIN, paced_at: now, next_at: now, is_over: false };
        self.pace(scrubber, &mut pass);
        pass
    }

    /// Sets the pace that a pass over the present segments takes.
    fn pace(&self, scrubber: &Scrubber<RealDisk>, pass: &mut Pass) {
        let ms = self.interval.map_or(1000, |interval| interval.as_millis());
        let rate = u128::from(scrubber.bytes()) * 1000 / ms.max(1);
        pass.rate = u64::try_from(rate).unwrap_or(u64::MAX).max(RATE_MIN);
        pass.paced_at = Instant::now();
    }

    fn tell(&self, found: Found, pass: &mut Pass) {
        let metrics = &self.common.metrics;
        match found {
            Found::Nothing | Found::Sound { .. } => {}
            Found::Damaged(damage) => {
                metrics.scrubbing.damage_found.inc();
                self.common.node.push(Input::Event(Event::Damaged(damage)));
            }
            Found::EndOfPass => {
                pass.is_over = true;
                pass.next_at = pass.began + self.interval.unwrap_or_default().max(LOOK_EVERY);
                metrics.scrubbing.passes.inc();
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
                metrics.scrubbing.passed_seconds.set(now);
            }
        }
    }

    fn mend(&self, mend: &Mend) {
        match self.reader.mend(mend, self.free_bytes_min) {
            Ok(mended) => {
                self.ready.push(Ready::Mended(mended));
                self.common.work.push(Work::Ready);
            }
            Err(error) => {
                let (replica, segment) = (mend.replica, mend.segment);
                tracing::warn!(replica = replica.0, segment, %error, "a damaged segment was not repaired");
                let done = Done::Mended { replica, segment, is_done: false };
                self.common.node.push(Input::Storage(vec![done]));
            }
        }
    }
}

/// Work on the pieces of logs that other replicas give.
impl Scrubbing {
    fn stage(&self, stagings: &mut Stagings<RealDisk>, stage: Stage) {
        match stagings.carry_out(&self.reader, stage, self.free_bytes_min) {
            None => {}
            Some(Outcome::Done(done)) => self.common.node.push(Input::Storage(vec![done])),
            Some(Outcome::Staged(staged)) => {
                self.ready.push(Ready::Staged(staged));
                self.common.work.push(Work::Ready);
            }
        }
    }
}

/// Logs that are to be compacted, one after the other.
#[derive(Default)]
struct Compacting {
    orders: VecDeque<Order>,
    /// The one at hand, and when to go on with it.
    current: Option<(Compaction<RealDisk>, Instant)>,
}

impl Compacting {
    fn next_at(&self) -> Option<Instant> {
        let begins = (!self.orders.is_empty()).then(Instant::now);
        self.current.as_ref().map(|(_, at)| *at).or(begins)
    }
}

impl Scrubbing {
    /// Goes on with the log at hand.
    fn compact(&self, compacting: &mut Compacting) {
        if compacting.current.is_none()
            && let Some(order) = compacting.orders.pop_front()
        {
            let means = Means {
                hash_key: self.hash_key,
                keys_max: COMPACTION_KEYS_MAX,
                free_bytes_min: self.free_bytes_min,
            };
            let replica = order.replica;
            match Compaction::begin(&self.reader, order, &means) {
                Ok(begun) => compacting.current = Some((begun, Instant::now())),
                Err(error) => self.put_off(replica, &error),
            }
        }
        let Some((compaction, at)) = &mut compacting.current else { return };
        if *at > Instant::now() {
            return;
        }
        match compaction.step(COMPACTION_PIECE_BYTES) {
            Ok(Progress::More) => {
                let rest = COMPACTION_PIECE_BYTES as f64 / COMPACTION_RATE as f64;
                *at = Instant::now() + Duration::from_secs_f64(rest);
                return;
            }
            Ok(Progress::Done(made)) => {
                self.ready.push(Ready::Compacted(made));
                self.common.work.push(Work::Ready);
            }
            Err(error) => self.put_off(compaction.replica(), &error),
        }
        compacting.current = None;
    }

    /// Reports that a log was not compacted. Compaction tries again when the node looks at the log next.
    fn put_off(&self, replica: ReplicaId, error: &CompactionError) {
        let waits = matches!(error, CompactionError::Unsettled | CompactionError::Changed);
        if !waits {
            tracing::warn!(replica = replica.0, %error, "a log was not compacted");
        }
        let done = Done::Compacted { replica, done: None };
        self.common.node.push(Input::Storage(vec![done]));
    }
}

impl Pass {
    fn seconds_of(&self, bytes: u64) -> f64 {
        bytes as f64 / self.rate as f64
    }
}

/// Hands finished work to storage.
pub(super) fn switch<D: Disk>(
    storage: &mut duramen_storage::Storage<D>,
    made: &Inbox<Ready<D>>,
) -> Result<(), duramen_storage::storage::Error> {
    let mut ready = VecDeque::new();
    made.take_all(&mut ready, Some(Instant::now()));
    for one in ready {
        match one {
            Ready::Mended(mended) => storage.switch(&mended)?,
            Ready::Compacted(made) => storage.install(*made),
            Ready::Staged(staged) => storage.stage(*staged),
        }
    }
    Ok(())
}
