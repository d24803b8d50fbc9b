//! # Room card: storage worker
//!
//! Purpose:    the one thread that writes, and the few that sync.
//! Owns:       the loop around [`Storage`]: when a round begins, where its syncs run.
//! Interface:  [`start`].
//! Invariants: all that is queued when the last round is durable goes into the next one: that is the
//!             group commit. A round is told of when the next one is written, if more was
//!             queued. The journal's sync is under way before payload reaches the segments,
//!             unless the payload is too small to be worth another thread. After an error
//!             nothing is written and nothing retried: the process ends.
//! Never:      what is written, and where (that is the storage crate's).
//! Tests:      `storage_worker/tests.rs`, over a disk whose syncs are released by hand; `tests/`; the
//!             storage crate's own code is judged by the simulator.
//! Start at:   [`Worker::turn`].
//!
//! Estimate a round: one `pwritev` and one `fdatasync` for the journal, one `pwritev` for each segment
//! touched. Wake-ups: storage thread (by the node's batch), node thread (by what became durable),
//! and a sync thread only where there is something to overlap.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use duramen_storage::backup::{Moment, Taken};
use duramen_storage::op::{Op, OpKind};
use duramen_storage::storage::{Error, SyncKind, SyncRequest};
use duramen_storage::{Disk, ReplicaId, SET_ASIDE, Storage};
use tokio::sync::oneshot;

use super::ending;
use super::inbox::Inbox;
use super::scrubbing;
use super::threads::{Common, Input, Ready, Work};

/// Threads that run syncs. Bulk syncs of different files overlap in the device; more than a few
/// only queue there.
const SYNC_THREADS: usize = 3;

/// Time between two looks at background work while nothing happens.
const IDLE_TICK: Duration = Duration::from_millis(100);

/// Time between two counts of the data that is set aside.
const SET_ASIDE_LOOKS: Duration = Duration::from_secs(10);

/// Largest payload of a round, in bytes, with which the storage thread syncs the journal itself. Writing the segments
/// then takes less time than waking a sync thread and being woken by it.
const INLINE_PAYLOAD_MAX: usize = 256 * 1024;

/// Starts the storage thread and its sync threads. The handle ends after [`Work::Stop`].
pub fn start<D: Disk>(
    storage: Storage<D>,
    ready: Arc<Inbox<Ready<D>>>,
    common: Common,
) -> io::Result<JoinHandle<()>> {
    start_with(storage, ready, common, IDLE_TICK)
}

fn start_with<D: Disk>(
    storage: Storage<D>,
    ready: Arc<Inbox<Ready<D>>>,
    common: Common,
    idle_tick: Duration,
) -> io::Result<JoinHandle<()>> {
    let syncs = Arc::new(Inbox::default());
    let disk = storage.reader().disk().clone();
    for number in 0..SYNC_THREADS {
        let (disk, syncs, common) = (disk.clone(), Arc::clone(&syncs), common.clone());
        ending::spawn(&format!("duramen-sync-{number}"), move || {
            run_syncs(&disk, &syncs, &common);
        })?;
    }
    ending::spawn("duramen-storage", move || {
        let mut worker = Worker {
            storage,
            disk,
            common,
            ready,
            syncs,
            in_flight: 0,
            payload: 0,
            idle_tick,
            more: false,
            busy: true,
            stopping: false,
            moments: Vec::new(),
            looked_aside: None,
        };
        if let Err(error) = worker.run() {
            ending::on_disk_error(&error);
        }
    })
}

fn run_syncs<D: Disk>(disk: &D, syncs: &Inbox<Option<SyncRequest<D::File>>>, common: &Common) {
    while let Some(request) = syncs.take_one() {
        let began = Instant::now();
        let result = request.run(disk);
        let histogram = match request.kind {
            SyncKind::Round => Some(&common.metrics.threads.sync_seconds),
            SyncKind::Payload => Some(&common.metrics.threads.payload_sync_seconds),
            SyncKind::Checkpoint => Some(&common.metrics.threads.checkpoint_sync_seconds),
            SyncKind::Other => None,
        };
        if let Some(histogram) = histogram {
            histogram.observe(began.elapsed().as_secs_f64());
        }
        common.work.push(Work::Synced(request.id, result));
    }
}

/// Replicas, each with a committed entry, and the way to the asker.
type WantsMoment = (Arc<BTreeMap<ReplicaId, u64>>, oneshot::Sender<Option<Box<Moment>>>);

struct Worker<D: Disk> {
    storage: Storage<D>,
    disk: D,
    common: Common,
    ready: Arc<Inbox<Ready<D>>>,
    syncs: Arc<Inbox<Option<SyncRequest<D::File>>>>,
    /// Syncs that sync threads have.
    in_flight: usize,
    /// Bytes of payload submitted since the last round began.
    payload: usize,
    /// Idle time after which the thread looks at background work.
    idle_tick: Duration,
    /// True if a round is durable and the next may follow at once: the round may have lacked room for some of the
    /// queue.
    more: bool,
    /// True if something happened since the last look at background work.
    busy: bool,
    stopping: bool,
    /// Requests that wait for a moment between two rounds.
    moments: Vec<WantsMoment>,
    /// Time of the last count of the data that is set aside.
    looked_aside: Option<Instant>,
}

impl<D: Disk> Worker<D> {
    fn run(&mut self) -> Result<(), Error> {
        let mut work = VecDeque::new();
        loop {
            if self.common.work.is_empty() {
                self.report();
            }
            self.common.health.end(&self.common.health.storage);
            // While stopping, idle work is due at once: it is what ends the journal properly.
            let is_due = self.more || self.stopping && self.in_flight == 0;
            let tick = if is_due { Duration::ZERO } else { self.idle_tick };
            self.common.work.take_all(&mut work, Some(Instant::now() + tick));
            self.common.health.begin(&self.common.health.storage);
            self.busy = self.more || !work.is_empty();
            for item in work.drain(..) {
                self.accept(item)?;
            }
            self.turn()?;
            self.common.metrics.set_storage(self.storage.metrics());
            self.count_set_aside();
            // On a full disk it may never become quiet. Acknowledged appends are safe all the same.
            let is_done = self.storage.is_quiet() || self.storage.lacks_room();
            if self.stopping && self.in_flight == 0 && is_done {
                if self.storage.is_quiet() {
                    self.storage.close()?;
                }
                self.syncs.push_all((0..SYNC_THREADS).map(|_| None));
                return Ok(());
            }
        }
    }

    /// Counts the data that is set aside: people drop it while the node runs.
    fn count_set_aside(&mut self) {
        if self.looked_aside.is_some_and(|at| at.elapsed() < SET_ASIDE_LOOKS) {
            return;
        }
        let count = self.disk.list(SET_ASIDE).map_or(0, |names| names.len());
        self.common.metrics.threads.set_aside.set(i64::try_from(count).unwrap_or(i64::MAX));
        self.looked_aside = Some(Instant::now());
    }

    fn accept(&mut self, work: Work) -> Result<(), Error> {
        match work {
            Work::Ops(ops) => {
                for op in ops {
                    self.payload += payload_of(&op);
                    self.storage.submit(op);
                }
            }
            Work::Synced(id, result) => {
                self.in_flight -= 1;
                self.storage.on_sync(id, result)?;
            }
            Work::Ready => scrubbing::switch(&mut self.storage, &self.ready)?,
            Work::Moment(commits, answer) => self.moments.push((commits, answer)),
            Work::HasFiles(moment, answer) => _ = answer.send(self.storage.has_files_of(&moment)),
            Work::Stop => self.stopping = true,
        }
        Ok(())
    }

    /// Does a slice of background work, then the next round, if none is being synced elsewhere.
    fn turn(&mut self) -> Result<(), Error> {
        let began = Instant::now();
        let requests = self.storage.maintain(!self.busy)?;
        self.common.metrics.threads.maintain_seconds.observe(began.elapsed().as_secs_f64());
        self.dispatch(requests);
        self.round()
    }

    /// Answers those who wait for a moment, if this is one.
    fn give_moments(&mut self) -> Result<(), Error> {
        for (commits, answer) in std::mem::take(&mut self.moments) {
            match self.storage.moment(&commits)? {
                Taken::Moment(moment) => _ = answer.send(Some(moment)),
                Taken::Missed => _ = answer.send(None),
                Taken::NotYet if answer.is_closed() => {}
                Taken::NotYet => self.moments.push((commits, answer)),
            }
        }
        Ok(())
    }

    /// Begins a round of all submitted ops, and only then reports the previous round. The answers, and the appends
    /// that come back for them, keep the processor busy while this round syncs, and not before its sync begins.
    fn round(&mut self) -> Result<(), Error> {
        self.more = false;
        self.give_moments()?;
        let before = self.storage.metrics().batches;
        let Some(journal) = self.storage.begin_round()? else {
            self.report();
            return Ok(());
        };
        let payload = std::mem::take(&mut self.payload);
        let batches = self.storage.metrics().batches - before;
        if batches > 0 {
            self.common.metrics.threads.sync_batches.observe(batches as f64);
        }
        if payload > INLINE_PAYLOAD_MAX || self.in_flight > 0 {
            self.dispatch(vec![journal]);
            let bulk = self.storage.write_segments()?;
            self.dispatch(bulk);
            self.report();
            return Ok(());
        }
        let bulk = self.storage.write_segments()?;
        self.dispatch(bulk);
        self.report();
        let began = Instant::now();
        let result = journal.run(&self.disk);
        self.common.metrics.threads.sync_seconds.observe(began.elapsed().as_secs_f64());
        self.more = true;
        self.storage.on_sync(journal.id, result)
    }

    fn dispatch(&mut self, requests: Vec<SyncRequest<D::File>>) {
        self.in_flight += requests.len();
        self.syncs.push_all(requests.into_iter().map(Some));
    }

    fn report(&mut self) {
        let done = self.storage.take_done();
        if done.is_empty() {
            return;
        }
        self.common.node.push(Input::Storage(done));
    }
}

fn payload_of(op: &Op) -> usize {
    match &op.kind {
        OpKind::Write { appends, .. } => appends.iter().map(|append| append.payload.len()).sum(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests;
