//! # Room card: scrubbing
//!
//! Purpose:    the one thread that looks for rot at rest, and copies segments that are mended.
//! Owns:       its pace; what of it an operator sees.
//! Interface:  [`start`], [`Scrubbing`].
//! Invariants: it writes nothing that has a name which storage knows, and never waits for storage or the node; what has
//!             its turn is read so slowly that a pass takes the interval, what somebody had trouble with at once.
//! Never:      what is damaged, what may take its place (`duramen_storage::{scrub, mending}`).
//! Tests:      `tests/cluster.rs`.
//! Start at:   [`Scrubbing::run`].
//!
//! Estimate: 1 TB in 7 days is 1.7 MB a second, seven direct reads of 256 KiB, each of about 1 ms on an SSD: 0.7 % of the
//! device's time. Nothing of it stays in the page cache.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use duramen_broker::Event;
use duramen_storage::mending::{Mend, Mended};
use duramen_storage::op::Done;
use duramen_storage::scrub::{Found, Scrubber};
use duramen_storage::{Disk, Reader};

use super::core_loop::Input;
use super::disk::RealDisk;
use super::inbox::Inbox;
use super::storage_worker::Work;
use super::{Common, ending};

/// What is read at once.
const PIECE_BYTES: usize = 256 * 1024;
/// Bytes in a second, at least: a pass over little ends soon, and then waits.
const RATE_MIN: u64 = 64 * 1024;
/// How often it is looked whether somebody had trouble with a segment.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// How often the pace follows what there is to read.
const PACE_EVERY: Duration = Duration::from_secs(60);

/// What the thread is started with.
#[derive(Debug)]
pub struct Scrubbing {
    /// What it reads.
    pub reader: Reader<RealDisk>,
    /// How long a pass takes; without it only what somebody had trouble with is looked at.
    pub interval: Option<Duration>,
    /// A copy of a segment leaves so much free on the disk.
    pub free_bytes_min: u64,
    /// Copies that are ready to take their segments' place.
    pub mended: Arc<Inbox<Mended<RealDisk>>>,
    /// What it tells.
    pub common: Common,
}

/// One pass over all segments.
struct Pass {
    began: Instant,
    /// Bytes in a second.
    rate: u64,
    paced_at: Instant,
    /// When the next piece may be read; of a pass that is over, when the next pass begins.
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
        let mut mends = VecDeque::new();
        loop {
            for mend in mends.drain(..) {
                self.mend(&mend);
            }
            let is_due = self.interval.is_some() && pass.next_at <= Instant::now();
            if is_due && pass.is_over {
                pass = self.begin(&scrubber);
            }
            if is_due || scrubber.is_urgent() {
                let (bytes, found) = scrubber.step(PIECE_BYTES);
                self.common.metrics.scrubbed_bytes.inc_by(bytes);
                pass.next_at = Instant::now() + Duration::from_secs_f64(pass.seconds_of(bytes));
                self.tell(found, &mut pass);
            }
            if pass.paced_at.elapsed() >= PACE_EVERY {
                self.pace(&scrubber, &mut pass);
            }
            let now = Instant::now();
            let until = if scrubber.is_urgent() { now } else { now + LOOK_EVERY };
            let until = if self.interval.is_some() { until.min(pass.next_at) } else { until };
            self.common.mends.take_all(&mut mends, Some(until));
        }
    }

    fn begin(&self, scrubber: &Scrubber<RealDisk>) -> Pass {
        let now = Instant::now();
        let mut pass =
            Pass { began: now, rate: RATE_MIN, paced_at: now, next_at: now, is_over: false };
        self.pace(scrubber, &mut pass);
        pass
    }

    /// As fast as it takes for a pass over what there is now.
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
                metrics.scrub_damage_found.inc();
                self.common.node.push(Input::Event(Event::Damaged(damage)));
            }
            Found::EndOfPass => {
                pass.is_over = true;
                pass.next_at = pass.began + self.interval.unwrap_or_default().max(LOOK_EVERY);
                metrics.scrub_passes.inc();
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
                metrics.scrub_passed_seconds.set(now);
            }
        }
    }

    fn mend(&self, mend: &Mend) {
        match self.reader.mend(mend, self.free_bytes_min) {
            Ok(mended) => {
                self.mended.push(mended);
                self.common.work.push(Work::Mended);
            }
            Err(error) => {
                let (replica, segment) = (mend.replica, mend.segment);
                tracing::warn!(replica = replica.0, segment, %error, "a damaged segment was not mended");
                let done = Done::Mended { replica, segment, is_done: false };
                self.common.node.push(Input::Storage(vec![done]));
            }
        }
    }
}

impl Pass {
    fn seconds_of(&self, bytes: u64) -> f64 {
        bytes as f64 / self.rate as f64
    }
}

/// Hands the copies that are ready to storage.
pub(super) fn switch<D: Disk>(
    storage: &mut duramen_storage::Storage<D>,
    mended: &Inbox<Mended<D>>,
) -> Result<(), duramen_storage::storage::Error> {
    let mut ready = VecDeque::new();
    mended.take_all(&mut ready, Some(Instant::now()));
    ready.iter().try_for_each(|it| storage.switch(it))
}
