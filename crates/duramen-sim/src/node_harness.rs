//! # Room card: node harness
//!
//! Purpose:    run the whole node, from frames to the disk, under crashes, and hold it to P1 to P4.
//! Owns:       virtual time, the order of work, the times of crashes; the phase of faults and the
//!             phase in which progress is demanded. The machine itself is in `machine`.
//! Interface:  [`run`].
//! Invariants: node and storage are called as a runtime may call them; every choice comes from the
//!             seed; a request whose reply was lost may have happened or not.
//! Never:      sockets; what clients ask and may see: see `clients` and `oracle`.
//! Tests:      `tests/promises/node.rs`.
//! Start at:   [`run`].

mod aging;
pub(crate) mod clients;
pub(crate) mod oracle;

use duramen_broker::configs::BrokerSettings;
use duramen_broker::{Action, Event, Now};
use duramen_storage::Done;
use duramen_storage::storage::Facts;

use crate::compacting::Compactor;
use crate::disk::{Counters, Faults, SimDisk};
use crate::failure::{Failure, wrong};
use crate::machine::{self, Machine, RESERVE_BYTES, node_options, storage_options};
use crate::planted::Bug;
use crate::prng::Prng;
use crate::trace::{Trace, tell};
use clients::Clients;

/// Reason of the node when there is no term left.
const LAST_TERM: &str = "the term has reached its limit";
const DAY_MS: i64 = 86_400_000;
/// Time after which statements about erased records are erased, too, in microseconds.
const ERASED_US: u64 = 5_000_000;

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
    /// Operations of the native API that were done, and those that a guard refused.
    pub operated: u64,
    /// See above.
    pub objected: u64,
    /// Leases that workers had, decisions on them that were taken, and dead letters.
    pub leased: (u64, u64, u64),
    /// Records read.
    pub shown: u64,
    /// Logs compacted.
    pub compactions: u64,
}

struct Profile {
    steps: u64,
    crash: u64,
    fills_up: bool,
    leaps: bool,
    /// True if years may pass between two processes.
    ages: bool,
    /// Chance that a look at a queue is carried out, in a thousand pieces of work.
    looks: u64,
}

/// The machine, its clients, and time.
struct World {
    seed: u64,
    profile: Profile,
    machine: Machine,
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
    let mut world = World::new(seed, bug)?;
    let outcome = world.live();
    if !world.is_over {
        outcome?;
    }
    world.report.starts = world.machine.starts;
    world.report.disk = world.machine.disk.counters();
    world.report.requests = world.clients.requests;
    (world.report.acked, world.report.shown) = world.clients.oracle.totals();
    (world.report.operated, world.report.objected) = world.clients.operated();
    world.report.leased = world.clients.worked();
    world.trace.mix(world.machine.disk.trace().hash());
    world.report.trace = world.trace;
    Ok(world.report)
}

fn profile(seed: u64, prng: &mut Prng) -> (Profile, Faults) {
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
    let profile = Profile {
        steps: prng.between(400, 2500),
        crash: *prng.pick(&[0, 1, 3, 8]),
        fills_up: !ages && prng.chance(150),
        leaps: !ages && prng.chance(300),
        ages,
        looks: *Prng::new(seed, "looks").pick(&[300, 30]),
    };
    (profile, faults)
}

fn settings() -> Result<BrokerSettings, Failure> {
    let pairs = [
        ("log.segment.bytes", "16384"),
        ("num.partitions", "2"),
        ("log.retention.check.interval.ms", "200"),
        ("log.cleaner.backoff.ms", "200"),
        ("offsets.topic.num.partitions", "2"),
        ("offsets.topic.segment.bytes", "8192"),
        // The clock leaps by days; that is not what offsets are tested for here.
        ("offsets.retention.minutes", "2147483647"),
        ("group.share.min.record.lock.duration.ms", "1000"),
        ("share.coordinator.state.topic.num.partitions", "2"),
        ("share.coordinator.state.topic.segment.bytes", "8192"),
        ("share.coordinator.snapshot.update.records.per.snapshot", "10"),
        ("offsets.retention.check.interval.ms", "500"),
    ];
    machine::settings(&pairs)
}

impl World {
    fn new(seed: u64, bug: Option<Bug>) -> Result<Self, Failure> {
        let mut shape = Prng::new(seed, "node profile");
        let (profile, faults) = profile(seed, &mut shape);
        let disk = SimDisk::new(seed);
        if let Some(Bug::Disk(lie)) = bug {
            disk.set_sabotage(Some(lie));
        }
        let bug = if let Some(Bug::Node(bug)) = bug { Some(bug) } else { None };
        let facts = Facts { cluster_id: [7; 16], broker_id: 0, directory_id: [9; 16] };
        let replicas = *Prng::new(seed, "replicas an extent").pick(&[2, 1000]);
        let extents = (shape.between(4, 8), replicas);
        let options = storage_options(seed, facts.clone(), extents, &mut shape);
        let node_options = node_options(facts, "localhost".to_owned(), settings()?, seed);
        let mut clients = Clients::new(seed, profile.leaps);
        // The entries that stand for years of records have no keys.
        clients.oracle.has_keyed &= !profile.ages;
        if profile.ages {
            clients.spare_natives();
        }
        Ok(Self {
            seed,
            machine: Machine::new(disk, options, node_options, faults, bug),
            clients,
            profile,
            chance: Prng::new(seed, "node schedule"),
            mono_us: 0,
            wall_ms: 1_700_000_000_000,
            limited: false,
            leapt_ms: 0,
            is_over: false,
            trace: Trace::default(),
            report: Report::default(),
        })
    }

    fn now(&self) -> Now {
        Now { mono_us: self.mono_us, wall_ms: self.wall_ms + self.leapt_ms }
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
            self.machine.disk.crash_in(Some(calls));
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
                self.machine.disk.set_capacity(u64::MAX / 2);
                self.limited = false;
            }
        } else if self.chance.chance(10)
            && self.machine.disk.files().contains(&("reserve".to_owned(), RESERVE_BYTES))
        {
            let left = self.chance.below(400_000);
            tell(|| format!("only {left} bytes left"));
            self.machine.disk.set_capacity(self.machine.disk.used() + left);
            self.limited = true;
        }
    }

    /// Lets a client that has nothing outstanding ask for something.
    fn ask(&mut self) -> Result<(), Failure> {
        let Some((connection, sequence, context, request)) = self.clients.ask(self.wall_ms) else {
            return self.turn(false);
        };
        self.deliver(Event::Request { connection, sequence, context, request })
    }

    fn disconnect(&mut self) -> Result<(), Failure> {
        let connection = self.clients.disconnect();
        self.deliver(Event::Disconnected(connection))
    }

    fn deliver(&mut self, event: Event) -> Result<(), Failure> {
        let actions = self.machine.step(self.now(), event);
        self.act(actions)
    }

    /// Gives the node the result of a piece of work.
    fn report(&mut self, event: Event) -> Result<(), Failure> {
        let actions = self.machine.report(self.now(), event);
        self.act(actions)
    }

    /// Does one piece of work of node or storage.
    fn turn(&mut self, idle: bool) -> Result<(), Failure> {
        if let Some((_, read)) = self.machine.read_log(300, &mut self.chance) {
            return self.report(Event::LogRead(read));
        }
        if let Some(done) = self.machine.compact() {
            self.report(Event::Storage(done))?;
        }
        if let Some(event) = self.machine.look(self.profile.looks, &mut self.chance) {
            return self.report(event);
        }
        if let Some(event) = self.machine.index(300, &mut self.chance) {
            return self.report(event);
        }
        let piece = self.chance.below(8);
        if piece == 0 {
            let actions = self.machine.tick(self.now());
            return self.act(actions);
        }
        if piece <= 2 {
            // Ops that the node has decided go to storage first: that is the group commit.
            let actions = self.machine.flush(self.now());
            self.act(actions)?;
        }
        match self.machine.work(piece - 1, idle, &mut self.chance)? {
            Some(done) => self.on_done(done),
            None => self.crash(),
        }
    }

    fn on_done(&mut self, all: Vec<Done>) -> Result<(), Failure> {
        let mut actions = Vec::new();
        for done in all {
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
            actions.extend(self.machine.step(self.now(), Event::Storage(done)));
        }
        self.act(actions)
    }

    /// Carries out the actions of the node.
    fn act(&mut self, actions: Vec<Action>) -> Result<(), Failure> {
        let mut closed = Vec::new();
        for action in actions {
            match action {
                Action::Reply { connection, sequence, reply } => {
                    let came = self.machine.answer((connection, sequence), reply);
                    if self.machine.disk.is_dead() {
                        continue; // it was killed while it read: nothing is sent any more
                    }
                    self.clients.on_reply(self.wall_ms, (connection, sequence), came)?;
                }
                Action::Close { connection, reason } => {
                    self.clients.on_closed(connection, &reason)?;
                    closed.push(connection);
                }
                Action::Send { to, .. } => {
                    return wrong(format!("a frame for node {to}"));
                }
                Action::Nodes(_)
                | Action::Members(_)
                | Action::Targets(_)
                | Action::Credential { .. } => {}
                Action::Mend(_) => {
                    return wrong("a segment is mended, and nothing was damaged");
                }
                Action::Drained => {
                    return wrong("the node says that it is drained, and nobody asked");
                }
                Action::Fatal(reason) => {
                    self.is_over = self.profile.ages && reason.ends_with(LAST_TERM);
                    return wrong(format!("the node gives up: {reason}"));
                }
                Action::Storage(_)
                | Action::ReadLog(_)
                | Action::Look(_)
                | Action::Index(_)
                | Action::Compact(_)
                | Action::Stage(_) => unreachable!("the machine keeps them"),
            }
        }
        for connection in closed {
            self.deliver(Event::Disconnected(connection))?;
        }
        Ok(())
    }

    fn crash(&mut self) -> Result<(), Failure> {
        self.clients.on_crash();
        let power = self.chance.chance(450);
        self.machine.die(power);
        if self.profile.ages && self.chance.chance(300) {
            self.grow_old()?;
        }
        self.start()
    }

    fn start(&mut self) -> Result<(), Failure> {
        self.mono_us = 0;
        for _ in 0..4 {
            if self.chance.chance(200) {
                let calls = self.chance.between(1, 200);
                self.machine.disk.crash_in(Some(calls));
            }
            if self.try_start()? {
                return Ok(());
            }
            let power = self.chance.chance(500);
            self.machine.die(power);
        }
        if self.try_start()? { Ok(()) } else { Err(Failure::liveness("it does not start")) }
    }

    /// Starts a process. False if it died meanwhile.
    fn try_start(&mut self) -> Result<bool, Failure> {
        let compactor = Compactor::new(self.seed, self.machine.options.free_bytes_min);
        let Some(actions) = self.machine.start(self.now(), compactor)? else { return Ok(false) };
        self.machine.disk.crash_in(None);
        // A node believes the first reading of its clock.
        self.clients.oracle.trims_by_time |= self.leapt_ms != 0;
        self.clients.connect();
        self.act(actions)?;
        Ok(true)
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
        self.machine.heal();
        self.profile.crash = 0;
        if self.limited && self.chance.chance(500) {
            self.endure_full_disk()?;
        }
        self.machine.disk.set_capacity(u64::MAX / 2);
        self.limited = false;
        if self.chance.chance(700) || self.machine.disk.is_dead() || self.machine.disk.is_doomed() {
            self.crash()?;
        }
        self.clients.begin_last_phase();
        for _ in 0..60_000 {
            if self.clients.is_done() {
                self.clients.oracle.check_complete()?;
                self.await_erasure()?;
                return self.machine.disk.check();
            }
            self.pass(true)?;
        }
        Err(Failure::liveness(format!("no progress: {}", self.clients.waiting())))
    }

    /// Waits until all that edits took away is erased. A node that does not believe its clock erases nothing.
    fn await_erasure(&mut self) -> Result<(), Failure> {
        // Statements of queues that are gone go later, and so do records that expire.
        for later_us in [if self.clients.has_queues() { ERASED_US } else { 0 }, 0] {
            for _ in 0..60_000 {
                if self.profile.leaps || self.machine.unerased().is_none() {
                    break;
                }
                self.pass(false)?;
            }
            let settled_us = self.mono_us + later_us;
            while self.mono_us < settled_us {
                self.pass(false)?;
            }
        }
        match self.machine.unerased() {
            Some(_) if self.profile.leaps => Ok(()),
            Some(log) => Err(Failure::liveness(format!("it is not erased: {log:?}"))),
            None => self
                .machine
                .check_erased(|partition, offset| self.clients.is_gone(partition, offset)),
        }
    }
}
