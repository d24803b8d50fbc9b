//! One machine of a cluster, and all that happens to it: it stands still, rots, is lost, and leaves.

use bytes::Bytes;
use duramen_broker::configs::BrokerSettings;
use duramen_broker::event::{MadeBy, ReadLog};
use duramen_broker::limits::Memory;
use duramen_broker::{Action, Event, Founder, NodeOptions, Now, read_plan};
use duramen_storage::Done;
use duramen_storage::op::ReplicaId;
use duramen_storage::storage::Facts;

use super::rot::{Rot, Rotting};
use crate::compacting::Compactor;
use crate::disk::{Faults, SimDisk};
use crate::failure::Failure;
use crate::machine::{Machine, node_options, storage_options};
use crate::planted::NodeBug;
use crate::prng::Prng;
use crate::trace::tell;

/// A partition: topic id and number.
pub(super) type Log = ([u8; 16], i32);

/// State of the disk as a process was told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Told {
    pub(super) is_full: bool,
    /// Number of such messages and of starts.
    pub(super) changes: u64,
}

/// See above.
pub(super) struct Member {
    pub(super) at: usize,
    pub(super) machine: Machine,
    /// Time when the process was started, in microseconds.
    since_us: u64,
    /// Time when a dead process is started again, in microseconds.
    pub(super) down_until_us: u64,
    /// The process stands still until then, and what came meanwhile.
    frozen_until_us: Option<u64>,
    held: Vec<Event>,
    /// Chance that a read is carried out, in a thousand pieces of work.
    reads: u64,
    /// The same for looks at queues.
    looks: u64,
    /// The same for a step of the queue indexes.
    indexing: u64,
    pub(super) rotting: Rotting,
    /// Scrubs and repairs of the process.
    pub(super) rot: Option<Rot>,
    chance: Prng,
    pub(super) wipes: u8,
    /// True once the machine was taken out of the cluster.
    pub(super) is_out: bool,
    /// Difference of its wall clock from everybody else's, in milliseconds.
    pub(super) leapt_ms: i64,
    pub(super) told: Told,
}

/// Outcome of a piece of work: actions for the harness.
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

impl Member {
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
        let extents = (shape.between(4, 8), *shape.pick(&[2, 1000]));
        let options = storage_options(seed, facts.clone(), extents, &mut shape);
        let memory = Memory {
            entries: *shape.pick(&[1, 1, 4, 50]),
            payload_bytes: *shape.pick(&[1, 2000, 100_000]),
            read_bytes: *shape.pick(&[1, 1000, 5000, 50_000]),
        };
        let reads = *shape.pick(&[300, 300, 2]);
        let mut queues = Prng::new(own, "machine queues");
        let quiet_ticks = *Prng::new(seed, "machine quiet").pick(&[1, 3, 10]);
        let alone = node_options(facts, format!("machine{at}"), settings, own.wrapping_mul(1000));
        let node_options = NodeOptions { founders, memory, quiet_ticks, ..alone };
        Self {
            at,
            machine: Machine::new(SimDisk::new(own), options, node_options, faults, bug),
            since_us: 0,
            down_until_us: 0,
            frozen_until_us: None,
            held: Vec::new(),
            reads,
            looks: *queues.pick(&[300, 300, 2]),
            indexing: *queues.pick(&[300, 10, 2]),
            rotting: Rotting::off(own),
            rot: None,
            chance: Prng::new(own, "machine schedule"),
            wipes: 0,
            is_out: false,
            leapt_ms: 0,
            told: Told::default(),
        }
    }

    pub(super) fn broker_id(&self) -> i32 {
        self.machine.options.facts.broker_id
    }

    pub(super) fn directory_id(&self) -> [u8; 16] {
        self.machine.options.facts.directory_id
    }

    /// Ends the process, and replaces its disk by an empty one.
    pub(super) fn wipe(&mut self) {
        self.die(true);
        tell(|| format!("machine {} is WIPED", self.at));
        self.wipes += 1;
        let seed = self.machine.node_options.seed;
        self.machine.disk = SimDisk::new(seed.wrapping_add(u64::from(self.wipes)));
        self.machine.options.facts.directory_id = directory(self.at, self.wipes);
        // An operator asks for it where a disk was lost.
        self.machine.node_options.replaces = true;
    }

    /// Ends the faults of the disk, and its slowness.
    pub(super) fn heal(&mut self) {
        (self.reads, self.looks, self.indexing) = (300, 300, 300);
        self.machine.heal();
    }

    /// Returns the time as the process sees it.
    fn now(&self, mono_us: u64) -> Now {
        let wall_ms = right_wall_ms(mono_us) + self.leapt_ms;
        Now { mono_us: mono_us - self.since_us, wall_ms }
    }

    /// Freezes the process, which notices nothing of it.
    pub(super) fn freeze(&mut self, until_us: u64) {
        if self.machine.is_alive() && self.frozen_until_us.is_none() {
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
        if self.is_frozen() {
            self.held.push(event);
            return Vec::new();
        }
        self.machine.step(self.now(mono_us), event)
    }

    /// Ends a turn.
    pub(super) fn flush(&mut self, mono_us: u64) -> Vec<Action> {
        self.machine.tick(self.now(mono_us))
    }

    /// Does one piece of work of storage, or a read that the node asked for.
    pub(super) fn work(&mut self, mono_us: u64) -> Outcome {
        if !self.machine.is_alive() {
            return Ok(Vec::new());
        }
        let now = self.now(mono_us);
        if let Some((wanted, mut read)) = self.machine.read_log(self.reads, &mut self.chance) {
            if wanted.is_for_mending() && wanted.made_by == MadeBy::Appends {
                self.rotting.harm(&mut read);
            }
            return Ok(self.machine.report(now, Event::LogRead(read)));
        }
        if let Some(event) = self.machine.look(self.looks, &mut self.chance) {
            return Ok(self.machine.report(now, event));
        }
        if let Some(event) = self.machine.index(self.indexing, &mut self.chance) {
            return Ok(self.machine.report(now, event));
        }
        if self.rotting.is_on()
            && let Some(outcome) = self.scrub(mono_us)
        {
            return outcome;
        }
        if let Some(done) = self.machine.compact() {
            return Ok(self.machine.report(now, Event::Storage(done)));
        }
        let piece = self.chance.below(7);
        let done = self.machine.work(piece, false, &mut self.chance)?;
        Ok(self.on_done(mono_us, done.unwrap_or_default()))
    }

    pub(super) fn on_done(&mut self, mono_us: u64, all: Vec<Done>) -> Vec<Action> {
        let mut actions = Vec::new();
        for done in all {
            if let Done::DiskFull(shortage) = done {
                let is_full = shortage.is_some();
                let changes = self.told.changes + u64::from(is_full != self.told.is_full);
                self.told = Told { is_full, changes };
            }
            actions.extend(self.step(mono_us, Event::Storage(done)));
        }
        actions
    }

    /// Kills the process, or cuts the machine's power.
    pub(super) fn die(&mut self, power: bool) {
        // Of two voters one alone may have what is not committed yet, and nobody leads without it.
        let standings = self.machine.standings();
        let of_many = |it| standings.iter().any(|of| of.replica == it && of.voters.len() > 2);
        let reader = self.machine.reader();
        let settled = reader.map_or_else(Vec::new, |reader| reader.settled_files(of_many));
        self.frozen_until_us = None;
        self.held.clear();
        self.rot = None;
        self.machine.die(power);
        self.rotting.rot(&self.machine.disk, &settled);
    }

    /// Starts the process. Returns none if it died meanwhile.
    pub(super) fn start(&mut self, mono_us: u64) -> Result<Option<Vec<Action>>, Failure> {
        self.since_us = mono_us;
        let compactor = Compactor::new(self.machine.starts + 1, 0);
        let actions = self.machine.start(self.now(mono_us), compactor)?;
        if actions.is_none() {
            let power = self.chance.chance(500);
            self.die(power);
            return Ok(None);
        }
        self.told = Told { is_full: false, changes: self.told.changes + 1 };
        self.rot = self.machine.reader().map(Rot::new);
        Ok(actions)
    }

    /// Returns whole batches of a replica from `from` on, below `end`.
    pub(super) fn read(&self, replica: ReplicaId, from: i64, end: i64) -> Result<Bytes, String> {
        let Some(reader) = self.machine.reader() else { return Ok(Bytes::new()) };
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
        read_plan::log_slice(&reader, &wanted).batches
    }
}

/// Returns the time of a wall clock that has not leapt, in milliseconds.
pub(super) fn right_wall_ms(mono_us: u64) -> i64 {
    1_700_000_000_000 + i64::try_from(mono_us / 1000).expect("small")
}
