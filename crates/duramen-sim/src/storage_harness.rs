//! # Room card: storage harness
//!
//! Purpose:    drive the real storage through crashes, and hold it to its contract.
//! Owns:       the interleaving of ops, rounds, syncs, background work and crashes.
//! Interface:  [`run`].
//! Invariants: storage is called only as its contract allows; every choice comes from the seed.
//! Never:      Raft, clients: see the node harness.
//! Tests:      `tests/promises/storage.rs`.
//! Start at:   [`run`].

mod checks;
mod crashes;
mod holds;
mod tampering;
mod workload;

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use duramen_storage::op::HoldId;
use duramen_storage::storage::{Error, Facts, Options, SyncId, SyncRequest, SyncStep};
use duramen_storage::{Done, ReplicaId, Storage};

use crate::batch::Records;
use crate::disk::{Counters, Faults, SimDisk, SimFile};
use crate::failure::{Failure, wrong};
use crate::model::ReplicaModel;
use crate::planted::{Bug, DriverBug};
use crate::prng::Prng;
use crate::trace::{Trace, tell};

/// The files of a moment, by path.
type Files = BTreeMap<String, Vec<u8>>;

/// Most bytes of a topic's name, as in Kafka.
const TOPIC_BYTES_MAX: usize = 249;
/// Less than the journal can hold, as in production.
const RESERVE_BYTES: u64 = 64 * 1024;
/// Payload that may be submitted and not reported, as a node would bound it.
const IN_FLIGHT_MAX: u64 = 256 * 1024;
/// One more extent, indexes and images, and what files take beyond their bytes.
const FREE_BESIDE: u64 = 256 * 1024;
/// A disk that the workload fills by itself, with the largest journal on it.
const SMALL_DISK: u64 = 1152 * 1024;

/// Counts of a good run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Report {
    /// Hash of everything that happened.
    pub trace: Trace,
    /// The disk's numbers.
    pub disk: Counters,
    /// Successful recoveries.
    pub recoveries: u64,
    /// Ops submitted.
    pub ops: u64,
    /// Journal rounds.
    pub rounds: u64,
    /// Replica checkpoints.
    pub checkpoints: u64,
}

/// Profile of one seed, drawn once.
#[derive(Clone, Debug)]
struct Profile {
    steps: u64,
    /// Chances in a thousand, per step.
    crash: u64,
    /// Chance in a thousand that a payload is too large for the journal.
    large: u64,
    conflict: u64,
    delete: u64,
    replicas_max: usize,
    faults: Faults,
    /// True if somebody else fills the disk.
    fills_up: bool,
    /// The disk is small, and all ours: no write may ever wait for room.
    small: bool,
    rots: bool,
    /// Chance in a thousand that the removal of files lets another sync pass.
    late_removal: u64,
    /// Least bytes of a topic's name.
    topic_bytes: usize,
    /// Chance in a thousand, per step, that a batch is held beside a log.
    hold: u64,
}

/// A sync on its way.
struct Sync {
    request: SyncRequest<SimFile>,
    journal: bool,
}

impl Sync {
    fn removes_files(&self) -> bool {
        self.request.steps.iter().any(|step| matches!(step, SyncStep::RemoveFile(_)))
    }
}

/// A storage with everything around it.
struct World {
    bug: Option<DriverBug>,
    profile: Profile,
    options: Options,
    disk: SimDisk,
    storage: Option<Storage<SimDisk>>,
    chance: Prng,
    work: Prng,
    tampering: Prng,
    holding: Prng,
    /// Records of the holds that are batches.
    held: BTreeMap<HoldId, Records>,
    /// All files as they once were.
    copies: Vec<Files>,
    replicas: Vec<ReplicaModel>,
    /// Deletions, with the time when each was submitted.
    deletions: Vec<(ReplicaId, u64)>,
    /// Gone for good.
    dead: Vec<ReplicaId>,
    /// Numbers ops; tickets are these numbers.
    clock: u64,
    segments_due: bool,
    to_run: Vec<Sync>,
    ran: Vec<(SyncId, bool, io::Result<()>)>,
    wants: Vec<ReplicaId>,
    full: bool,
    limited: bool,
    /// Payload on its way, by replica and ticket.
    in_flight: BTreeMap<(ReplicaId, u64), u64>,
    /// Replicas that this process found no room to restore.
    unrestored: BTreeSet<ReplicaId>,
    trace: Trace,
    report: Report,
}

/// Runs one seed to its end, with a bug planted or without.
pub fn run(seed: u64, bug: Option<Bug>) -> Result<Report, Failure> {
    let mut world = World::new(seed, bug);
    world.reopen()?;
    for _ in 0..world.profile.steps {
        world.step()?;
    }
    world.finish()?;
    world.report.disk = world.disk.counters();
    world.trace.mix(world.disk.trace().hash());
    world.report.trace = world.trace;
    Ok(world.report)
}

fn profile(prng: &mut Prng) -> Profile {
    let mut faults = Faults::default();
    if prng.chance(700) {
        faults.write_back = *prng.pick(&[5, 50, 200]);
    }
    if prng.chance(300) {
        faults.sync_fails = *prng.pick(&[5, 20, 60]);
    }
    if prng.chance(150) {
        faults.write_back_fails = 100;
    }
    if prng.chance(100) {
        faults.read_fails = 3;
    }
    if prng.chance(100) {
        faults.write_fails = 5;
    }
    let mut profile = Profile {
        steps: prng.between(60, 500),
        crash: *prng.pick(&[0, 4, 10, 20, 40]),
        large: *prng.pick(&[0, 50, 200, 600]),
        conflict: *prng.pick(&[0, 50, 200]),
        delete: *prng.pick(&[0, 10, 60]),
        replicas_max: prng.index(5) + 1,
        faults,
        fills_up: prng.chance(120),
        small: false,
        rots: prng.chance(300),
        late_removal: 0,
        topic_bytes: 0,
        hold: 0,
    };
    if prng.chance(100) {
        profile = Profile { small: true, large: 600, delete: 2, ..profile };
    }
    profile
}

impl World {
    fn new(seed: u64, bug: Option<Bug>) -> Self {
        let mut shape = Prng::new(seed, "profile");
        let disk = SimDisk::new(seed);
        if let Some(Bug::Disk(lie)) = bug {
            disk.set_sabotage(Some(lie));
        }
        let mut profile = profile(&mut shape);
        if Prng::new(seed, "late removals").chance(250) {
            profile.late_removal = 970;
        }
        if Prng::new(seed, "long names").chance(100) {
            profile.topic_bytes = TOPIC_BYTES_MAX;
        }
        if Prng::new(seed, "holds").chance(350) && !profile.small {
            profile.hold = *Prng::new(seed, "share of holds").pick(&[30, 200]);
        }
        if profile.small {
            disk.set_capacity(SMALL_DISK);
        }
        let facts = Facts { cluster_id: [7; 16], broker_id: 1, directory_id: [9; 16] };
        Self {
            bug: if let Some(Bug::Driver(bug)) = bug { Some(bug) } else { None },
            profile,
            options: Options {
                facts,
                extent_bytes: 64 * 1024,
                extents_max: u32::try_from(shape.between(4, 6)).expect("small"),
                replicas_an_extent: *Prng::new(seed, "replicas an extent").pick(&[2, 1000]),
                journal_payload_max: *shape.pick(&[0, 1000, 4096]),
                index_interval_bytes: 256,
                free_bytes_min: IN_FLIGHT_MAX + FREE_BESIDE,
                reserve_bytes: RESERVE_BYTES,
                open_files_max: *shape.pick(&[16, 24, 1000]),
                recovered_at_once: *Prng::new(seed, "recovered at once").pick(&[1, 1, 1, 3]),
            },
            disk,
            storage: None,
            chance: Prng::new(seed, "schedule"),
            work: Prng::new(seed, "workload"),
            tampering: Prng::new(seed, "tampering"),
            holding: Prng::new(seed, "holding"),
            held: BTreeMap::new(),
            copies: Vec::new(),
            replicas: Vec::new(),
            deletions: Vec::new(),
            dead: Vec::new(),
            clock: 0,
            segments_due: false,
            to_run: Vec::new(),
            ran: Vec::new(),
            wants: Vec::new(),
            full: false,
            limited: false,
            in_flight: BTreeMap::new(),
            unrestored: BTreeSet::new(),
            trace: Trace::default(),
            report: Report::default(),
        }
    }

    fn storage(&mut self) -> &mut Storage<SimDisk> {
        self.storage.as_mut().expect("the process lives between crashes")
    }

    /// Does one of all the things that may happen next.
    fn step(&mut self) -> Result<(), Failure> {
        self.remember_files();
        if self.chance.chance(self.profile.crash) {
            return self.crash();
        }
        if self.chance.chance(self.profile.crash / 2) {
            let calls = self.chance.between(1, 60);
            self.disk.crash_in(Some(calls));
        }
        if self.profile.small {
            self.check_room()?;
            self.rush()?;
        } else if self.profile.fills_up {
            self.change_capacity();
        }
        if self.holding.chance(self.profile.hold) {
            self.hold_something();
        }
        match self.chance.below(20) {
            0..=7 => self.submit_something(),
            8..=10 => self.begin_round()?,
            11..=12 => self.write_segments()?,
            13..=15 => self.run_sync(),
            16..=17 => self.report_sync()?,
            18 => {
                let idle = self.chance.chance(300);
                self.maintain(idle)?;
            }
            _ => self.read_something()?,
        }
        Ok(())
    }

    /// Keeps as much in flight as may be, most of the time.
    fn rush(&mut self) -> Result<(), Failure> {
        if self.chance.chance(200) {
            (0..80).for_each(|_| self.submit_something());
        }
        self.begin_round()?;
        self.write_segments()?;
        self.run_sync();
        self.report_sync()
    }

    /// Checks that a write that was taken in when there was room for it finds room.
    fn check_room(&mut self) -> Result<(), Failure> {
        if self.storage().lacks_room() {
            return wrong("a write waits for room that was kept free for it");
        }
        Ok(())
    }

    /// Fills the disk as somebody else does, or makes room again.
    fn change_capacity(&mut self) {
        if self.limited {
            if self.chance.chance(15) {
                tell(|| "room again".to_owned());
                self.disk.set_capacity(u64::MAX / 2);
                self.limited = false;
            }
            return;
        }
        let reserve = ("reserve".to_owned(), RESERVE_BYTES);
        if self.chance.chance(20) && self.disk.files().contains(&reserve) {
            let left = self.chance.below(300_000);
            tell(|| format!("only {left} bytes left"));
            self.disk.set_capacity(self.disk.used() + left);
            self.limited = true;
        }
    }

    fn begin_round(&mut self) -> Result<(), Failure> {
        if self.segments_due {
            return self.write_segments();
        }
        match self.storage().begin_round() {
            Ok(Some(request)) => {
                tell(|| format!("round {:?}", request.id));
                self.segments_due = true;
                self.to_run.push(Sync { request, journal: true });
                Ok(())
            }
            Ok(None) => Ok(()),
            Err(error) => self.on_error(&error),
        }
    }

    fn write_segments(&mut self) -> Result<(), Failure> {
        if !self.segments_due {
            return Ok(());
        }
        self.segments_due = false;
        match self.storage().write_segments() {
            Ok(requests) => {
                tell(|| format!("segments written; syncs {:?}", ids(&requests)));
                self.queue(requests);
                Ok(())
            }
            Err(error) => self.on_error(&error),
        }
    }

    fn maintain(&mut self, idle: bool) -> Result<(), Failure> {
        match self.storage().maintain(idle) {
            Ok(requests) => {
                tell(|| format!("maintained; syncs {:?}", ids(&requests)));
                self.queue(requests);
                self.take_done()
            }
            Err(error) => self.on_error(&error),
        }
    }

    fn queue(&mut self, requests: Vec<SyncRequest<SimFile>>) {
        let syncs = requests.into_iter().map(|request| Sync { request, journal: false });
        self.to_run.extend(syncs);
    }

    /// Runs a sync that waits; its result is reported at another step.
    fn run_sync(&mut self) {
        if self.to_run.is_empty() {
            return;
        }
        let at = self.chance.index(self.to_run.len());
        let late = self.profile.late_removal;
        if late > 0 && self.to_run[at].removes_files() && self.chance.chance(late) {
            return;
        }
        let sync = self.to_run.swap_remove(at);
        let result = match self.bug {
            Some(DriverBug::AckBeforeSync) => without_syncs(&sync).run(&self.disk),
            Some(DriverBug::PayloadSyncSkipped) if !sync.journal => {
                without_syncs(&sync).run(&self.disk)
            }
            Some(DriverBug::FailedSyncRetried) => {
                sync.request.run(&self.disk).or_else(|_| sync.request.run(&self.disk))
            }
            _ => sync.request.run(&self.disk),
        };
        tell(|| format!("ran {:?}: {:?} {result:?}", sync.request.id, sync.request.steps));
        self.ran.push((sync.request.id, sync.journal, result));
    }

    fn report_sync(&mut self) -> Result<(), Failure> {
        if self.ran.is_empty() {
            return Ok(());
        }
        let at = self.chance.index(self.ran.len());
        if self.ran[at].1 && self.segments_due {
            return self.write_segments();
        }
        let (id, _, result) = self.ran.swap_remove(at);
        tell(|| format!("reported {id:?}: {result:?}"));
        if result.is_err() {
            self.disk.doom();
        }
        match self.storage().on_sync(id, result) {
            Ok(()) => self.take_done(),
            Err(error) => self.on_error(&error),
        }
    }

    fn take_done(&mut self) -> Result<(), Failure> {
        let mut dones = self.storage().take_done();
        if self.bug == Some(DriverBug::PersistedReordered) {
            dones.reverse();
        }
        for done in dones {
            tell(|| format!("done: {done:?}"));
            match done {
                Done::Persisted { replica, ticket } => {
                    self.trace.mix(ticket);
                    self.on_persisted(replica, ticket)?;
                }
                Done::Held { replica, hold } => self.on_held(replica, hold)?,
                Done::WantImage { replica } => self.wants.push(replica),
                Done::Mended { .. }
                | Done::Cut { .. }
                | Done::Compacted { .. }
                | Done::Put { .. }
                | Done::Staged { .. } => {
                    unreachable!("nothing is mended or compacted here")
                }
                Done::DiskFull(shortage) => {
                    self.full = shortage.is_some();
                    self.trace.mix(u64::from(self.full));
                }
            }
        }
        Ok(())
    }

    fn on_persisted(&mut self, replica: ReplicaId, ticket: u64) -> Result<(), Failure> {
        self.in_flight.remove(&(replica, ticket));
        let proves = match self.replicas.iter_mut().find(|model| model.id == replica) {
            Some(model) => model.on_persisted(ticket)?,
            None if self.dead.contains(&replica) => false,
            None => return wrong(format!("replica {} is unknown", replica.0)),
        };
        let settled: Vec<ReplicaId> = self
            .deletions
            .iter()
            .filter(|(_, at)| proves && *at < ticket)
            .map(|(replica, _)| *replica)
            .collect();
        for gone in settled {
            self.bury(gone);
        }
        Ok(())
    }

    /// Notes that the replica must never be seen again.
    fn bury(&mut self, replica: ReplicaId) {
        self.replicas.retain(|model| model.id != replica);
        self.deletions.retain(|(deleted, _)| *deleted != replica);
        self.in_flight.retain(|(owner, _), _| *owner != replica);
        self.dead.push(replica);
    }

    /// Ends the process for an error, if there was a reason for it.
    fn on_error(&mut self, error: &Error) -> Result<(), Failure> {
        tell(|| format!("error: {}", chain(error)));
        self.expected(error)?;
        self.crash()
    }

    fn expected(&self, error: &Error) -> Result<(), Failure> {
        let explained = self.disk.is_dead()
            || self.disk.is_doomed()
            || match error {
                Error::Disk { source, .. } => {
                    source.raw_os_error() == Some(5) && self.profile.faults.read_fails > 0
                }
                _ => false,
            };
        if explained {
            return Ok(());
        }
        wrong(format!("an error without a cause: {}", chain(error)))
    }
}

fn without_syncs(sync: &Sync) -> SyncRequest<SimFile> {
    let mut request = sync.request.clone();
    request.steps.retain(|step| !matches!(step, SyncStep::File(_) | SyncStep::Dir(_)));
    request
}

fn ids(requests: &[SyncRequest<SimFile>]) -> Vec<u64> {
    requests.iter().map(|request| request.id.0).collect()
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}
