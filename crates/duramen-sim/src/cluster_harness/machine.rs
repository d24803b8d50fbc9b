//! One machine of a cluster: a disk, and a process that lives between its deaths.

use std::io;

use bytes::Bytes;
use duramen_broker::configs::BrokerSettings;
use duramen_broker::event::{Look, MadeBy, ReadLog};
use duramen_broker::limits::Memory;
use duramen_broker::{Action, Event, Founder, Node, NodeOptions, Now, read_plan};
use duramen_storage::op::{OpKind, ReplicaId};
use duramen_storage::storage::{Error, Facts, Options, SyncId, SyncRequest};
use duramen_storage::{Done, Storage};

use super::rot::{Rot, Rotting};
use crate::compacting::Compactor;
use crate::disk::{Faults, SimDisk, SimFile};
use crate::failure::Failure;
use crate::planted::NodeBug;
use crate::prng::Prng;
use crate::trace::tell;

const IN_FLIGHT_MAX: u64 = 1024 * 1024;
pub(super) const RESERVE_BYTES: u64 = 1024 * 1024;

/// A partition: topic id and number.
pub(super) type Log = ([u8; 16], i32);

/// A living process.
pub(super) struct Life {
    pub(super) storage: Storage<SimDisk>,
    pub(super) node: Node,
    /// Time when the process was started, in microseconds.
    since_us: u64,
    segments_due: bool,
    reads: Vec<ReadLog>,
    looks: Vec<Look>,
    pub(super) rot: Rot,
    compactor: Compactor,
    to_run: Vec<(SyncRequest<SimFile>, bool)>,
    ran: Vec<(SyncId, bool, io::Result<()>)>,
    /// Tickets of a planted bug.
    held_back: Vec<Done>,
}

/// State of the disk as a process was told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Told {
    pub(super) is_full: bool,
    /// Number of such messages and of starts.
    pub(super) changes: u64,
}

/// See above.
pub(super) struct Machine {
    pub(super) at: usize,
    pub(super) disk: SimDisk,
    pub(super) life: Option<Life>,
    pub(super) starts: u64,
    /// Time when a dead process is started again, in microseconds.
    pub(super) down_until_us: u64,
    /// The process stands still until then, and what came meanwhile.
    frozen_until_us: Option<u64>,
    held: Vec<Event>,
    bug: Option<NodeBug>,
    options: Options,
    founders: Vec<Founder>,
    settings: BrokerSettings,
    memory: Memory,
    quiet_ticks: u64,
    /// Chance that a read is carried out, in a thousand pieces of work.
    reads: u64,
    faults: Faults,
    pub(super) rotting: Rotting,
    chance: Prng,
    seed: u64,
    pub(super) wipes: u8,
    /// True once the machine was taken out of the cluster.
    pub(super) is_out: bool,
    /// Difference of its wall clock from everybody else's, in milliseconds.
    pub(super) leapt_ms: i64,
    pub(super) told: Told,
}

/// Outcome of a piece of work: actions, or the process's death.
pub(super) type Outcome = Result<Vec<Action>, Failure>;

/// Returns the id of a machine's data directory, another one after each wipe.
fn directory(at: usize, wipes: u8) -> [u8; 16] {
    let mut id = [9 + wipes; 16];
    id[0] = u8::try_from(at).expect("small") + 1;
    id
}

/// Returns the founders with which a cluster of so many machines begins.
pub(super) fn founders(machines: usize, founders: usize) -> Vec<Founder> {
    let founder = |at| Founder {
        peer_id: at as u64 + 1,
        broker_id: broker(machines, at),
        directory_id: directory(at, 0),
    };
    (0..founders).map(founder).collect()
}

/// Returns a machine's broker id: not the number of its peer, so that nobody takes one for the other.
fn broker(machines: usize, at: usize) -> i32 {
    i32::try_from(machines - at).expect("small")
}

impl Machine {
    pub(super) fn new(
        seed: u64,
        (machines, at): (usize, usize),
        founders: Vec<Founder>,
        settings: BrokerSettings,
        faults: Faults,
        bug: Option<NodeBug>,
    ) -> Self {
        let own = seed.wrapping_mul(31).wrapping_add(at as u64);
        let mut shape = Prng::new(own, "machine");
        let facts = Facts {
            cluster_id: [7; 16],
            broker_id: broker(machines, at),
            directory_id: directory(at, 0),
        };
        Self {
            at,
            disk: SimDisk::new(own),
            life: None,
            starts: 0,
            down_until_us: 0,
            frozen_until_us: None,
            held: Vec::new(),
            bug,
            options: Options {
                facts,
                extent_bytes: 64 * 1024,
                extents_max: u32::try_from(shape.between(4, 8)).expect("small"),
                replicas_an_extent: *shape.pick(&[2, 1000]),
                journal_payload_max: *shape.pick(&[500, 4096]),
                index_interval_bytes: 512,
                free_bytes_min: IN_FLIGHT_MAX + 256 * 1024,
                reserve_bytes: RESERVE_BYTES,
                open_files_max: *shape.pick(&[16, 1000]),
                recovered_at_once: *Prng::new(seed, "recovered at once").pick(&[1, 1, 1, 3]),
            },
            founders,
            settings,
            memory: Memory {
                entries: *shape.pick(&[1, 1, 4, 50]),
                payload_bytes: *shape.pick(&[1, 2000, 100_000]),
                read_bytes: *shape.pick(&[1, 1000, 5000, 50_000]),
            },
            reads: *shape.pick(&[300, 300, 2]),
            quiet_ticks: *Prng::new(seed, "machine quiet").pick(&[1, 3, 10]),
            faults,
            rotting: Rotting::off(own),
            chance: Prng::new(own, "machine schedule"),
            seed: own.wrapping_mul(1000),
            wipes: 0,
            is_out: false,
            leapt_ms: 0,
            told: Told::default(),
        }
    }

    pub(super) fn broker_id(&self) -> i32 {
        self.options.facts.broker_id
    }

    pub(super) fn directory_id(&self) -> [u8; 16] {
        self.options.facts.directory_id
    }

    /// Ends the process, and replaces its disk by an empty one.
    pub(super) fn wipe(&mut self) {
        self.die(true);
        tell(|| format!("machine {} is WIPED", self.at));
        self.wipes += 1;
        self.disk = SimDisk::new(self.seed.wrapping_add(u64::from(self.wipes)));
        self.options.facts.directory_id = directory(self.at, self.wipes);
    }

    /// Ends the faults of the disk, and its slowness.
    pub(super) fn heal(&mut self) {
        self.reads = 300;
        self.faults = Faults::default();
        self.disk.set_faults(Faults::default());
        self.disk.crash_in(None);
    }

    /// Returns the time of a process that started at `since_us`, on a machine whose wall clock is wrong by so much.
    fn now(since_us: u64, mono_us: u64, leapt_ms: i64) -> Now {
        Now { mono_us: mono_us - since_us, wall_ms: right_wall_ms(mono_us) + leapt_ms }
    }

    /// Freezes the process, which notices nothing of it.
    pub(super) fn freeze(&mut self, until_us: u64) {
        if self.life.is_some() && self.frozen_until_us.is_none() {
            tell(|| format!("machine {} FROZEN", self.at));
            self.frozen_until_us = Some(until_us);
        }
    }

    pub(super) fn is_frozen(&self) -> bool {
        self.frozen_until_us.is_some()
    }

    /// Returns the events that came while the machine stood still, if that is over: clients first, now and then.
    pub(super) fn thaw(&mut self, mono_us: u64) -> Option<Vec<Event>> {
        self.frozen_until_us.take_if(|until_us| *until_us <= mono_us)?;
        tell(|| format!("machine {} goes on", self.at));
        let mut held = std::mem::take(&mut self.held);
        if self.chance.chance(500) {
            held.sort_by_key(|event| matches!(event, Event::Peer(_)));
        }
        Some(held)
    }

    /// Gives the process an event, if one runs.
    pub(super) fn step(&mut self, mono_us: u64, event: Event) -> Vec<Action> {
        let mut actions = Vec::new();
        if self.is_frozen() {
            self.held.push(event);
            return actions;
        }
        if let Some(life) = &mut self.life {
            let now = Self::now(life.since_us, mono_us, self.leapt_ms);
            life.node.step(now, event, &mut actions);
        }
        actions
    }

    /// Ends a turn.
    pub(super) fn flush(&mut self, mono_us: u64) -> Vec<Action> {
        let mut actions = Vec::new();
        if let Some(life) = &mut self.life {
            let now = Self::now(life.since_us, mono_us, self.leapt_ms);
            if life.node.deadline() <= now.mono_us {
                life.node.step(now, Event::Tick, &mut actions);
            }
            life.node.flush(now, &mut actions);
        }
        actions
    }

    /// Does one piece of work of storage, or a read that the node asked for.
    pub(super) fn work(&mut self, mono_us: u64) -> Outcome {
        let Some(life) = &mut self.life else { return Ok(Vec::new()) };
        if !life.reads.is_empty() && self.chance.chance(self.reads) {
            let at = self.chance.index(life.reads.len());
            let wanted = life.reads.swap_remove(at);
            let mut read = read_plan::log_slice(&life.storage.reader(), &wanted);
            if wanted.is_for_mending() && wanted.made_by == MadeBy::Appends {
                self.rotting.harm(&mut read);
            }
            if self.disk.is_dead() {
                return Ok(Vec::new()); // it was killed while it read
            }
            return Ok(self.step(mono_us, Event::LogRead(read)));
        }
        if !life.looks.is_empty() && self.chance.chance(self.reads) {
            let at = self.chance.index(life.looks.len());
            let wanted = life.looks.swap_remove(at);
            let event = read_plan::look(&life.storage.reader(), &wanted);
            if self.disk.is_dead() {
                return Ok(Vec::new()); // it was killed while it read
            }
            return Ok(self.step(mono_us, event));
        }
        if self.rotting.is_on()
            && let Some(outcome) = self.scrub(mono_us)
        {
            return outcome;
        }
        let life = self.life.as_mut().expect("it was just there");
        if let Some(done) = life.compactor.step(&mut life.storage) {
            let is_dead = self.disk.is_dead();
            return Ok(if is_dead { Vec::new() } else { self.step(mono_us, Event::Storage(done)) });
        }
        match self.chance.below(7) {
            0 | 1 => self.begin_round()?,
            2 => self.write_segments()?,
            3 | 4 => self.run_sync(),
            5 => return self.report_sync(mono_us),
            _ => {
                let idle = self.chance.chance(100);
                let life = self.life.as_mut().expect("it was just there");
                match life.storage.maintain(idle) {
                    Ok(syncs) => {
                        life.to_run.extend(syncs.into_iter().map(|request| (request, false)));
                        return Ok(self.take_done(mono_us));
                    }
                    Err(error) => self.on_error(&error)?,
                }
            }
        }
        Ok(Vec::new())
    }

    fn begin_round(&mut self) -> Result<(), Failure> {
        let Some(life) = &mut self.life else { return Ok(()) };
        if life.segments_due {
            return self.write_segments();
        }
        match life.storage.begin_round() {
            Ok(Some(request)) => {
                life.segments_due = true;
                life.to_run.push((request, true));
                Ok(())
            }
            Ok(None) => Ok(()),
            Err(error) => self.on_error(&error),
        }
    }

    fn write_segments(&mut self) -> Result<(), Failure> {
        let Some(life) = &mut self.life else { return Ok(()) };
        if !std::mem::take(&mut life.segments_due) {
            return Ok(());
        }
        match life.storage.write_segments() {
            Ok(syncs) => {
                life.to_run.extend(syncs.into_iter().map(|request| (request, false)));
                Ok(())
            }
            Err(error) => self.on_error(&error),
        }
    }

    fn run_sync(&mut self) {
        let Some(life) = &mut self.life else { return };
        if !life.to_run.is_empty() {
            let at = self.chance.index(life.to_run.len());
            let (request, journal) = life.to_run.swap_remove(at);
            let result = request.run(&self.disk);
            life.ran.push((request.id, journal, result));
        }
    }

    fn report_sync(&mut self, mono_us: u64) -> Outcome {
        let Some(life) = &mut self.life else { return Ok(Vec::new()) };
        if life.ran.is_empty() {
            return Ok(Vec::new());
        }
        let at = self.chance.index(life.ran.len());
        if life.ran[at].1 && life.segments_due {
            self.write_segments()?;
            return Ok(Vec::new());
        }
        let (id, _, result) = life.ran.swap_remove(at);
        if result.is_err() {
            self.disk.doom();
        }
        match life.storage.on_sync(id, result) {
            Ok(()) => Ok(self.take_done(mono_us)),
            Err(error) => {
                self.on_error(&error)?;
                Ok(Vec::new())
            }
        }
    }

    pub(super) fn take_done(&mut self, mono_us: u64) -> Vec<Action> {
        let mut actions = Vec::new();
        let Some(life) = &mut self.life else { return actions };
        let mut dones = life.storage.take_done();
        if self.bug == Some(NodeBug::PersistedEarly) {
            dones.retain(|done| !matches!(done, Done::Persisted { .. }));
            dones.append(&mut life.held_back);
        }
        for done in dones {
            if let Done::DiskFull(shortage) = done {
                let is_full = shortage.is_some();
                let changes = self.told.changes + u64::from(is_full != self.told.is_full);
                self.told = Told { is_full, changes };
            }
            actions.extend(self.step(mono_us, Event::Storage(done)));
        }
        actions
    }

    /// Gives storage what the node wants stored, and keeps what it wants read. Returns the rest.
    pub(super) fn keep(&mut self, actions: Vec<Action>) -> Vec<Action> {
        let Some(life) = &mut self.life else { return Vec::new() };
        let mut rest = Vec::new();
        for action in actions {
            match action {
                Action::Storage(op) => {
                    if let OpKind::Write { ticket, .. } | OpKind::Create { ticket, .. } = &op.kind
                        && self.bug == Some(NodeBug::PersistedEarly)
                    {
                        let (replica, ticket) = (op.replica, *ticket);
                        life.held_back.push(Done::Persisted { replica, ticket });
                    }
                    life.storage.submit(op);
                }
                Action::ReadLog(wanted) => life.reads.push(wanted),
                Action::Look(wanted) => life.looks.push(wanted),
                Action::Mend(mend) => life.rot.mends.push(mend),
                Action::Compact(order) => life.compactor.push(order),
                Action::Stage(stage) => life.compactor.stage(stage),
                other => rest.push(other),
            }
        }
        rest
    }

    /// Ends the process because storage cannot go on, if there is a cause.
    pub(super) fn on_error(&mut self, error: &Error) -> Result<(), Failure> {
        tell(|| format!("machine {}: {error:?}", self.at));
        self.expected(error)?;
        self.life = None;
        Ok(())
    }

    fn expected(&self, error: &Error) -> Result<(), Failure> {
        if self.disk.is_dead() || self.disk.is_doomed() {
            return Ok(());
        }
        Err(Failure::correctness(format!("an error without a cause: {error:?}")))
    }

    /// Kills the process, or cuts the machine's power.
    pub(super) fn die(&mut self, power: bool) {
        tell(|| format!("machine {}: {}", self.at, if power { "POWER LOSS" } else { "KILL" }));
        let life = self.life.take();
        // Of two voters one alone may have what is not committed yet, and nobody leads without it.
        let settled = life.map_or_else(Vec::new, |life| {
            let standings = life.node.standings();
            let of_many = |it| standings.iter().any(|of| of.replica == it && of.voters.len() > 2);
            life.storage.reader().settled_files(of_many)
        });
        self.frozen_until_us = None;
        self.held.clear();
        self.disk = if power { self.disk.power_loss() } else { self.disk.kill() };
        self.rotting.rot(&self.disk, &settled);
    }

    /// Starts the process. False if it died meanwhile.
    pub(super) fn start(&mut self, mono_us: u64) -> Result<Option<Vec<Action>>, Failure> {
        self.disk.set_faults(Faults::default());
        let opened = Storage::open(self.disk.clone(), self.options.clone());
        let (storage, found) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                tell(|| format!("machine {} does not start: {error:?}", self.at));
                self.expected(&error)?;
                let power = self.chance.chance(500);
                self.die(power);
                return Ok(None);
            }
        };
        let tail = read_plan::metadata_tail(&storage.reader(), &found.replicas);
        if self.disk.is_dead() {
            let power = self.chance.chance(500);
            self.die(power);
            return Ok(None);
        }
        let tail: Vec<Bytes> =
            tail.map_err(|error| Failure::correctness(format!("the metadata log: {error}")))?;
        if let Some(damaged) = found.replicas.iter().find_map(|it| it.damage.as_ref()) {
            return Err(Failure::correctness(format!("damage where there was none: {damaged}")));
        }
        self.disk.set_faults(self.faults);
        self.starts += 1;
        self.told = Told { is_full: false, changes: self.told.changes + 1 };
        tell(|| format!("machine {} STARTED with {} replicas", self.at, found.replicas.len()));
        let options = NodeOptions {
            facts: found.facts,
            listener: "PLAINTEXT".to_owned(),
            host: format!("machine{}", self.at),
            port: 9092,
            rack: None,
            log_dir: "/data".to_owned(),
            settings: self.settings.clone(),
            seed: self.seed.wrapping_add(self.starts),
            bytes_in_flight_max: IN_FLIGHT_MAX,
            metadata_tail: tail,
            node_address: None,
            founders: self.founders.clone(),
            memory: self.memory,
            introduced: Vec::new(),
            // An operator asks for it where a disk was lost.
            replaces: self.wipes > 0,
            quiet_ticks: self.quiet_ticks,
        };
        let now = Self::now(mono_us, mono_us, self.leapt_ms);
        let mut actions = Vec::new();
        let node = Node::open(options, found.replicas, now, &mut actions);
        let storage_reader = storage.reader();
        self.life = Some(Life {
            storage,
            node,
            since_us: mono_us,
            segments_due: false,
            reads: Vec::new(),
            looks: Vec::new(),
            rot: Rot::new(storage_reader),
            compactor: Compactor::new(self.starts, 0),
            to_run: Vec::new(),
            ran: Vec::new(),
            held_back: Vec::new(),
        });
        Ok(Some(actions))
    }

    /// Returns whole batches of a replica from `from` on, below `end`.
    pub(super) fn read(&self, replica: ReplicaId, from: i64, end: i64) -> Result<Bytes, String> {
        let Some(life) = &self.life else { return Ok(Bytes::new()) };
        let wanted = ReadLog {
            replica,
            from,
            pass: 0,
            end,
            bytes_max: 1 << 20,
            peer: None,
            ticket: 0,
            made_by: MadeBy::Appends,
        };
        read_plan::log_slice(&life.storage.reader(), &wanted).batches
    }
}

/// Returns the time of a wall clock that has not leapt, in milliseconds.
pub(super) fn right_wall_ms(mono_us: u64) -> i64 {
    1_700_000_000_000 + i64::try_from(mono_us / 1000).expect("small")
}
