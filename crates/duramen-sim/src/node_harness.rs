//! # Room card: node harness
//!
//! Purpose:    run the whole node, from frames to the disk, under crashes, and hold it to P1 to P4.
//! Owns:       virtual time, the turn of node and storage, crashes; the phase of faults and the
//!             phase in which progress is demanded.
//! Interface:  [`run`].
//! Invariants: node and storage are called as a runtime may call them; every choice comes from the
//!             seed; a request whose reply was lost may have happened or not.
//! Never:      sockets; what clients ask and may see: see `clients` and `oracle`.
//! Tests:      `tests/promises/node.rs`.
//! Start at:   [`run`].

mod aging;
pub(crate) mod clients;
pub(crate) mod oracle;

use std::io;

use duramen_broker::configs::BrokerSettings;
use duramen_broker::event::{Look, ReadLog};
use duramen_broker::limits::{GROUP_QUIET_TICKS, Memory};
use duramen_broker::{Action, ConnectionId, Event, Node, NodeOptions, Now, Reply, read_plan};
use duramen_storage::op::OpKind;
use duramen_storage::storage::{Error, Facts, Options, SyncId, SyncRequest};
use duramen_storage::{Done, Storage};

use crate::compacting::Compactor;
use crate::disk::{Counters, Faults, SimDisk, SimFile};
use crate::failure::Failure;
use crate::planted::{Bug, NodeBug};
use crate::prng::Prng;
use crate::trace::{Trace, tell};
use clients::Clients;

const RESERVE_BYTES: u64 = 1024 * 1024;
/// Reason of the node when there is no term left.
const LAST_TERM: &str = "the term has reached its limit";

/// Batch bytes that the node may hold before their sync.
const IN_FLIGHT_MAX: u64 = 1024 * 1024;
const DAY_MS: i64 = 86_400_000;

/// Counts of a good run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Report {
    /// Hash of everything that happened.
    pub trace: Trace,
    /// The disk's numbers.
    pub disk: Counters,
    /// Successful starts.
    pub starts: u64,
    /// Requests sent.
    pub requests: u64,
    /// Batches acknowledged.
    pub acked: u64,
    /// Records read.
    pub shown: u64,
    /// Logs compacted.
    pub compactions: u64,
}

struct Profile {
    steps: u64,
    crash: u64,
    faults: Faults,
    fills_up: bool,
    leaps: bool,
    /// True if years may pass between two processes.
    ages: bool,
}

/// A living process.
struct Life {
    storage: Storage<SimDisk>,
    node: Node,
    segments_due: bool,
    /// Reads of logs that the node wants and that were not carried out yet.
    reads: Vec<ReadLog>,
    looks: Vec<Look>,
    compactor: Compactor,
    to_run: Vec<(SyncRequest<SimFile>, bool)>,
    ran: Vec<(SyncId, bool, io::Result<()>)>,
}

/// The node, its disk, its clients, and time.
struct World {
    seed: u64,
    bug: Option<NodeBug>,
    /// Reports that a planted bug makes too early.
    early: Vec<Done>,
    profile: Profile,
    options: Options,
    disk: SimDisk,
    life: Option<Life>,
    clients: Clients,
    chance: Prng,
    mono_us: u64,
    wall_ms: i64,
    limited: bool,
    /// Difference of the node's wall clock from the clients', in milliseconds.
    leapt_ms: i64,
    /// True once there is no term left: the node has stopped for good.
    is_over: bool,
    trace: Trace,
    report: Report,
}

/// Runs one seed to its end, with a bug planted in the disk or without.
pub fn run(seed: u64, bug: Option<Bug>) -> Result<Report, Failure> {
    let mut world = World::new(seed, bug);
    let outcome = world.live();
    if !world.is_over {
        outcome?;
    }
    world.report.disk = world.disk.counters();
    world.report.requests = world.clients.requests;
    (world.report.acked, world.report.shown) = world.clients.oracle.totals();
    world.trace.mix(world.disk.trace().hash());
    world.report.trace = world.trace;
    Ok(world.report)
}

fn profile(prng: &mut Prng) -> Profile {
    let mut faults = Faults::default();
    if prng.chance(700) {
        faults.write_back = *prng.pick(&[5, 50]);
    }
    if prng.chance(250) {
        faults.sync_fails = *prng.pick(&[5, 20]);
    }
    if prng.chance(100) {
        faults.write_back_fails = 100;
    }
    let ages = prng.chance(150);
    Profile {
        steps: prng.between(400, 2500),
        crash: *prng.pick(&[0, 1, 3, 8]),
        faults,
        fills_up: !ages && prng.chance(150),
        leaps: !ages && prng.chance(300),
        ages,
    }
}

impl World {
    fn new(seed: u64, bug: Option<Bug>) -> Self {
        let mut shape = Prng::new(seed, "node profile");
        let profile = profile(&mut shape);
        let disk = SimDisk::new(seed);
        if let Some(Bug::Disk(lie)) = bug {
            disk.set_sabotage(Some(lie));
        }
        Self {
            seed,
            bug: match bug {
                Some(Bug::Node(bug)) => Some(bug),
                _ => None,
            },
            early: Vec::new(),
            options: Options {
                facts: Facts { cluster_id: [7; 16], broker_id: 0, directory_id: [9; 16] },
                extent_bytes: 64 * 1024,
                extents_max: u32::try_from(shape.between(4, 8)).expect("small"),
                replicas_an_extent: *Prng::new(seed, "replicas an extent").pick(&[2, 1000]),
                journal_payload_max: *shape.pick(&[500, 4096]),
                index_interval_bytes: 512,
                free_bytes_min: IN_FLIGHT_MAX + 256 * 1024,
                reserve_bytes: RESERVE_BYTES,
                open_files_max: *shape.pick(&[16, 1000]),
                recovered_at_once: *Prng::new(seed, "recovered at once").pick(&[1, 1, 1, 3]),
            },
            disk,
            life: None,
            clients: {
                let mut clients = Clients::new(seed, profile.leaps);
                // The entries that stand for years of records have no keys.
                clients.oracle.has_keyed &= !profile.ages;
                clients
            },
            profile,
            chance: Prng::new(seed, "node schedule"),
            mono_us: 0,
            wall_ms: 1_700_000_000_000,
            limited: false,
            leapt_ms: 0,
            is_over: false,
            trace: Trace::default(),
            report: Report::default(),
        }
    }

    fn now(&self) -> Now {
        Now { mono_us: self.mono_us, wall_ms: self.wall_ms + self.leapt_ms }
    }

    fn life(&mut self) -> &mut Life {
        self.life.as_mut().expect("the process lives between crashes")
    }

    fn advance(&mut self, us: u64) {
        self.mono_us += us;
        self.wall_ms += i64::try_from(us / 1000).expect("small");
    }

    fn live(&mut self) -> Result<(), Failure> {
        self.start()?;
        for _ in 0..self.profile.steps {
            self.step()?;
        }
        self.finish()
    }

    /// Does one of all the things that may happen next.
    fn step(&mut self) -> Result<(), Failure> {
        let us = self.chance.below(3000);
        self.advance(us);
        if self.chance.chance(self.profile.crash) {
            return self.crash();
        }
        if self.chance.chance(self.profile.crash) {
            let calls = self.chance.between(1, 80);
            self.disk.crash_in(Some(calls));
        }
        if self.profile.fills_up {
            self.change_capacity();
        }
        if self.profile.leaps && self.chance.chance(3) {
            tell(|| "the clock leaps".to_owned());
            let days = i64::try_from(self.chance.between(1, 20)).expect("small");
            self.leapt_ms += if self.chance.chance(800) { days } else { -days } * DAY_MS;
        }
        match self.chance.below(10) {
            0..=3 => self.ask(),
            4 if self.chance.chance(100) => self.disconnect(),
            _ => self.turn(false),
        }
    }

    fn change_capacity(&mut self) {
        if self.limited {
            if self.chance.chance(5) {
                self.disk.set_capacity(u64::MAX / 2);
                self.limited = false;
            }
        } else if self.chance.chance(10)
            && self.disk.files().contains(&("reserve".to_owned(), RESERVE_BYTES))
        {
            let left = self.chance.below(400_000);
            tell(|| format!("only {left} bytes left"));
            self.disk.set_capacity(self.disk.used() + left);
            self.limited = true;
        }
    }

    /// Lets a client that has nothing outstanding ask for something.
    fn ask(&mut self) -> Result<(), Failure> {
        let now = self.now();
        let Some((connection, sequence, context, request)) = self.clients.ask(self.wall_ms) else {
            return self.turn(false);
        };
        let mut actions = Vec::new();
        let event = Event::Request { connection, sequence, context, request };
        self.life().node.step(now, event, &mut actions);
        self.act(actions)
    }

    fn disconnect(&mut self) -> Result<(), Failure> {
        let connection = self.clients.disconnect();
        self.lose_connection(connection)
    }

    fn lose_connection(&mut self, connection: ConnectionId) -> Result<(), Failure> {
        let now = self.now();
        let mut actions = Vec::new();
        self.life().node.step(now, Event::Disconnected(connection), &mut actions);
        self.act(actions)
    }

    /// Does one piece of work of node or storage.
    fn turn(&mut self, idle: bool) -> Result<(), Failure> {
        if !self.life().reads.is_empty() && self.chance.chance(300) {
            return self.read_log();
        }
        self.compact()?;
        if !self.life().looks.is_empty() && self.chance.chance(300) {
            return self.look();
        }
        match self.chance.below(8) {
            0 => {
                let now = self.now();
                let mut actions = Vec::new();
                let life = self.life();
                if life.node.deadline() <= now.mono_us {
                    life.node.step(now, Event::Tick, &mut actions);
                }
                life.node.flush(now, &mut actions);
                self.act(actions)
            }
            1 | 2 => self.begin_round(),
            3 => self.write_segments(),
            4 | 5 => {
                self.run_sync();
                Ok(())
            }
            6 => self.report_sync(),
            _ => {
                let idle = idle || self.chance.chance(100);
                match self.life().storage.maintain(idle) {
                    Ok(requests) => {
                        let syncs = requests.into_iter().map(|request| (request, false));
                        self.life().to_run.extend(syncs);
                        self.take_done()
                    }
                    Err(error) => self.on_error(&error),
                }
            }
        }
    }

    /// Does a piece of the work on data at rest.
    fn compact(&mut self) -> Result<(), Failure> {
        let life = self.life();
        let Some(done) = life.compactor.step(&mut life.storage) else { return Ok(()) };
        if self.disk.is_dead() {
            return Ok(());
        }
        let now = self.now();
        let mut actions = Vec::new();
        self.life().node.step(now, Event::Storage(done), &mut actions);
        self.act(actions)
    }

    /// Ends one of the reads that the node asked for.
    fn read_log(&mut self) -> Result<(), Failure> {
        let at = self.life().reads.len();
        let at = self.chance.index(at);
        let life = self.life();
        let wanted = life.reads.swap_remove(at);
        let read = read_plan::log_slice(&life.storage.reader(), &wanted);
        if self.disk.is_dead() {
            return Ok(()); // it was killed while it read
        }
        tell(|| format!("read {wanted:?}: {:?}", read.batches.as_ref().map(bytes::Bytes::len)));
        let now = self.now();
        let mut actions = Vec::new();
        self.life().node.step(now, Event::LogRead(read), &mut actions);
        self.act(actions)
    }

    /// Ends one of the looks at a log that the node asked for.
    fn look(&mut self) -> Result<(), Failure> {
        let at = self.life().looks.len();
        let at = self.chance.index(at);
        let life = self.life();
        let wanted = life.looks.swap_remove(at);
        let event = read_plan::look(&life.storage.reader(), &wanted);
        if self.disk.is_dead() {
            return Ok(()); // it was killed while it read
        }
        let now = self.now();
        let mut actions = Vec::new();
        self.life().node.step(now, event, &mut actions);
        self.act(actions)
    }

    fn begin_round(&mut self) -> Result<(), Failure> {
        // Ops that the node has decided go to storage first: that is the group commit.
        let now = self.now();
        let mut actions = Vec::new();
        self.life().node.flush(now, &mut actions);
        self.act(actions)?;
        if self.life().segments_due {
            return self.write_segments();
        }
        match self.life().storage.begin_round() {
            Ok(Some(request)) => {
                let life = self.life();
                life.segments_due = true;
                life.to_run.push((request, true));
                Ok(())
            }
            Ok(None) => Ok(()),
            Err(error) => self.on_error(&error),
        }
    }

    fn write_segments(&mut self) -> Result<(), Failure> {
        let life = self.life();
        if !std::mem::take(&mut life.segments_due) {
            return Ok(());
        }
        match life.storage.write_segments() {
            Ok(requests) => {
                life.to_run.extend(requests.into_iter().map(|request| (request, false)));
                Ok(())
            }
            Err(error) => self.on_error(&error),
        }
    }

    fn run_sync(&mut self) {
        let count = self.life().to_run.len();
        if count > 0 {
            let at = self.chance.index(count);
            let disk = self.disk.clone();
            let life = self.life();
            let (request, journal) = life.to_run.swap_remove(at);
            let result = request.run(&disk);
            life.ran.push((request.id, journal, result));
        }
    }

    fn report_sync(&mut self) -> Result<(), Failure> {
        let count = self.life().ran.len();
        if count == 0 {
            return Ok(());
        }
        let at = self.chance.index(count);
        let life = self.life();
        if life.ran[at].1 && life.segments_due {
            return self.write_segments();
        }
        let (id, _, result) = life.ran.swap_remove(at);
        if result.is_err() {
            self.disk.doom();
        }
        match self.life().storage.on_sync(id, result) {
            Ok(()) => self.take_done(),
            Err(error) => self.on_error(&error),
        }
    }

    fn take_done(&mut self) -> Result<(), Failure> {
        let now = self.now();
        let mut actions = Vec::new();
        let mut dones = self.life().storage.take_done();
        if self.bug == Some(NodeBug::PersistedEarly) {
            dones.retain(|done| !matches!(done, Done::Persisted { .. }));
            dones.append(&mut self.early);
        }
        for done in dones {
            tell(|| format!("done: {done:?}"));
            if let Done::DiskFull(shortage) = done {
                self.clients.on_disk_full(shortage.is_some());
            }
            if let Done::Persisted { ticket, .. } = done {
                self.trace.mix(ticket);
            }
            if let Done::Compacted { done: Some((compacted, _)), .. } = &done {
                self.trace.mix(compacted.index);
                self.report.compactions += 1;
                self.clients.compactions += 1;
            }
            self.life().node.step(now, Event::Storage(done), &mut actions);
        }
        self.act(actions)
    }

    /// Carries out the actions of the node.
    fn act(&mut self, actions: Vec<Action>) -> Result<(), Failure> {
        let mut closed = Vec::new();
        for action in actions {
            match action {
                Action::Storage(op) => {
                    if let OpKind::Write { ticket, .. } | OpKind::Create { ticket, .. } = &op.kind {
                        self.early.push(Done::Persisted { replica: op.replica, ticket: *ticket });
                    }
                    if self.bug.is_none() {
                        self.early.clear();
                    }
                    self.life().storage.submit(op);
                }
                Action::ReadLog(wanted) => self.life().reads.push(wanted),
                Action::Compact(order) => self.life().compactor.push(order),
                Action::Stage(stage) => self.life().compactor.stage(stage),
                Action::Look(wanted) => self.life().looks.push(wanted),
                Action::Reply { connection, sequence, reply } => {
                    let reader = self.life().storage.reader();
                    let response = match reply {
                        Reply::Nothing { .. } => None,
                        Reply::Response(response) => Some(*response),
                        Reply::Fetch(plan) => Some(read_plan::fetch_bytes(&reader, *plan).into()),
                        Reply::ShareFetch(plan) => {
                            Some(read_plan::share_bytes(&reader, *plan).into())
                        }
                        Reply::ListOffsets(plan) => {
                            Some(read_plan::list_offsets(&reader, *plan).into())
                        }
                        Reply::LogDirs(response) => Some((*response).into()),
                        Reply::Replicas(plan) => Some(read_plan::digests(&reader, *plan).into()),
                    };
                    if self.disk.is_dead() {
                        continue; // it was killed while it read: nothing is sent any more
                    }
                    self.clients.on_reply(self.wall_ms, (connection, sequence), response)?;
                }
                Action::Close { connection, reason } => {
                    self.clients.on_closed(connection, &reason)?;
                    closed.push(connection);
                }
                Action::Send { to, .. } => {
                    return Err(Failure::correctness(format!("a frame for node {to}")));
                }
                Action::Nodes(_) | Action::Members(_) => {}
                Action::Mend(_) => {
                    let what = "a segment is mended, and nothing was damaged";
                    return Err(Failure::correctness(what.to_owned()));
                }
                Action::Drained => {
                    let what = "the node says that it is drained, and nobody asked";
                    return Err(Failure::correctness(what.to_owned()));
                }
                Action::Fatal(reason) => {
                    self.is_over = self.profile.ages && reason.ends_with(LAST_TERM);
                    return Err(Failure::correctness(format!("the node gives up: {reason}")));
                }
            }
        }
        for connection in closed {
            self.lose_connection(connection)?;
        }
        Ok(())
    }

    fn on_error(&mut self, error: &Error) -> Result<(), Failure> {
        tell(|| format!("error: {error:?}"));
        self.expected(error)?;
        self.crash()
    }

    fn expected(&self, error: &Error) -> Result<(), Failure> {
        if self.disk.is_dead() || self.disk.is_doomed() {
            return Ok(());
        }
        Err(Failure::correctness(format!("an error without a cause: {error:?}")))
    }

    fn crash(&mut self) -> Result<(), Failure> {
        self.life = None;
        self.clients.on_crash();
        let power = self.chance.chance(450);
        self.lose(power);
        if self.profile.ages && self.chance.chance(300) {
            self.grow_old()?;
        }
        self.start()
    }

    fn lose(&mut self, power: bool) {
        tell(|| (if power { "POWER LOSS" } else { "KILL" }).to_owned());
        self.disk = if power { self.disk.power_loss() } else { self.disk.kill() };
    }

    fn start(&mut self) -> Result<(), Failure> {
        for attempt in 0..5 {
            let last = attempt == 4;
            if !last && self.chance.chance(200) {
                let calls = self.chance.between(1, 200);
                self.disk.crash_in(Some(calls));
            }
            self.disk.set_faults(Faults::default());
            let opened = Storage::open(self.disk.clone(), self.options.clone());
            let error = match opened {
                Ok((storage, found)) => {
                    let tail = read_plan::metadata_tail(&storage.reader(), &found.replicas);
                    if let (Ok(metadata_tail), false) = (tail, self.disk.is_dead()) {
                        self.disk.crash_in(None);
                        self.disk.set_faults(self.profile.faults);
                        return self.open_node(storage, found, metadata_tail);
                    }
                    None
                }
                Err(error) => Some(error),
            };
            if let Some(error) = &error {
                tell(|| format!("start failed: {error:?}"));
                self.expected(error)?;
            } else if !self.disk.is_dead() {
                return Err(Failure::correctness("the metadata log cannot be read"));
            }
            if last {
                return Err(Failure::liveness(format!("it does not start: {error:?}")));
            }
            let power = self.chance.chance(500);
            self.lose(power);
        }
        Ok(())
    }

    fn open_node(
        &mut self,
        storage: Storage<SimDisk>,
        mut found: duramen_storage::Recovered,
        metadata_tail: Vec<bytes::Bytes>,
    ) -> Result<(), Failure> {
        self.report.starts += 1;
        if let Some(damaged) = found.replicas.iter().find_map(|it| it.damage.as_ref()) {
            return Err(Failure::correctness(format!("damage where there was none: {damaged}")));
        }
        tell(|| format!("STARTED with {} replicas", found.replicas.len()));
        self.early.clear();
        if self.bug == Some(NodeBug::DedupLost) {
            for replica in
                found.replicas.iter_mut().filter(|it| !it.identity.topic.starts_with("__"))
            {
                replica.image = bytes::Bytes::new();
            }
        }
        let pairs = [
            ("log.segment.bytes".to_owned(), "16384".to_owned()),
            ("num.partitions".to_owned(), "2".to_owned()),
            ("log.retention.check.interval.ms".to_owned(), "200".to_owned()),
            ("log.cleaner.backoff.ms".to_owned(), "200".to_owned()),
            ("offsets.topic.num.partitions".to_owned(), "2".to_owned()),
            ("offsets.topic.segment.bytes".to_owned(), "8192".to_owned()),
            // The clock leaps by days; that is not what offsets are tested for here.
            ("offsets.retention.minutes".to_owned(), i32::MAX.to_string()),
            ("group.share.min.record.lock.duration.ms".to_owned(), "1000".to_owned()),
            ("offsets.retention.check.interval.ms".to_owned(), "500".to_owned()),
        ];
        let settings = BrokerSettings::from_pairs(&pairs)
            .map_err(|errors| Failure::correctness(format!("settings: {errors:?}")))?;
        let options = NodeOptions {
            facts: found.facts,
            listener: "PLAINTEXT".to_owned(),
            host: "localhost".to_owned(),
            port: 9092,
            rack: None,
            log_dir: "/data".to_owned(),
            settings,
            seed: self.seed.wrapping_add(self.report.starts),
            bytes_in_flight_max: IN_FLIGHT_MAX,
            metadata_tail,
            node_address: None,
            founders: Vec::new(),
            memory: Memory::default(),
            introduced: Vec::new(),
            replaces: false,
            quiet_ticks: GROUP_QUIET_TICKS,
        };
        self.mono_us = 0;
        // A node believes the first reading of its clock.
        self.clients.oracle.trims_by_time |= self.leapt_ms != 0;
        let mut actions = Vec::new();
        let node = Node::open(options, found.replicas, self.now(), &mut actions);
        let (reads, looks) = (Vec::new(), Vec::new());
        let (to_run, ran) = (Vec::new(), Vec::new());
        let compactor = Compactor::new(self.seed, self.options.free_bytes_min);
        let segments_due = false;
        self.life =
            Some(Life { storage, node, segments_due, reads, looks, compactor, to_run, ran });
        self.clients.connect();
        self.act(actions)
    }

    /// Leaves the disk as full as it is. Appends are refused, and everything else goes on.
    fn endure_full_disk(&mut self) -> Result<(), Failure> {
        for _ in 0..2_000 {
            self.pass(true)?;
        }
        for _ in 0..20_000 {
            if self.clients.is_idle() {
                return Ok(());
            }
            self.pass(false)?;
        }
        Err(Failure::liveness(format!("on a full disk: {}", self.clients.waiting())))
    }

    /// Lets time pass and work be done.
    fn pass(&mut self, asks: bool) -> Result<(), Failure> {
        let us = self.chance.below(20_000);
        self.advance(us);
        if asks && self.chance.chance(300) { self.ask() } else { self.turn(true) }
    }

    /// Ends the faults. Everything asked must be answered, every topic must settle, and all that was ever acknowledged
    /// or shown must be there.
    fn finish(&mut self) -> Result<(), Failure> {
        self.profile.faults = Faults::default();
        self.profile.crash = 0;
        self.disk.set_faults(Faults::default());
        self.disk.crash_in(None);
        if self.limited && self.chance.chance(500) {
            self.endure_full_disk()?;
        }
        self.disk.set_capacity(u64::MAX / 2);
        self.limited = false;
        if self.chance.chance(700) || self.disk.is_dead() || self.disk.is_doomed() {
            self.crash()?;
        }
        self.clients.begin_last_phase();
        for _ in 0..60_000 {
            if self.clients.is_done() {
                self.clients.oracle.check_complete()?;
                return match self.disk.violations().first() {
                    Some(violation) => Err(Failure::correctness(format!("disk: {violation}"))),
                    None => Ok(()),
                };
            }
            self.pass(true)?;
        }
        Err(Failure::liveness(format!("no progress: {}", self.clients.waiting())))
    }
}
