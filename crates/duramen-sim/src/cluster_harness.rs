//! # Room card: cluster harness
//!
//! Purpose:    run a cluster of whole nodes, over a network and on disks that fail; hold it to P1 to P4 and to the
//!             rules that make replicas one log.
//! Owns:       virtual time, deaths and cuts, the connections of clients; the phase of faults and the phase in which
//!             progress is demanded; the comparison of replicas.
//! Interface:  [`run`].
//! Invariants: at no time are fewer disks whole than a majority needs: one is lost only while all committed data is on
//!             enough others; every frame goes over the network as bytes; every choice comes from the seed.
//! Never:      sockets; the requests of clients and their answers (the node harness has its clients and its oracle).
//! Tests:      `tests/promises/cluster.rs`.
//! Start at:   [`run`].

pub mod access;
mod clocks;
mod compacted;
mod departure;
mod fast;
mod gone;
mod leaving;
mod member;
mod network;
mod rot;
mod scrubbing;
mod sleep;
mod space;
mod witness;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use duramen_broker::configs::BrokerSettings;
use duramen_broker::event::FetchPlan;
use duramen_broker::peer::PeerFrame;
use duramen_broker::{Action, ConnectionId, Event, Node, Reply};
use duramen_protocol::batch::batches;
use duramen_protocol::messages::ShareFetchResponse;

use crate::disk::Faults;
use crate::failure::{Failure, wrong};
use crate::machine::{self, Came};
use crate::node_harness::clients::Clients;
use crate::planted::Bug;
use crate::prng::Prng;
pub use crate::report::Report;
use crate::trace::{Trace, tell};
use clocks::Clocks;
use fast::Writers;
use leaving::Leaving;
use member::{Log, Member};
use network::{Network, Weather};
use sleep::{Lulls, METADATA, Watch};
use space::Space;

#[derive(Default)]
struct Profile {
    steps: u64,
    /// Chance of a crash in ten thousand, for each step; the chances below likewise.
    crash: u64,
    cut: u64,
    freeze: u64,
    drain: u64,
    wipe: u64,
    /// Pieces of work of each machine in a step.
    work: u64,
    /// Longest time that a dead process stays away, in microseconds.
    away: u64,
}

/// Bytes of a replica's segments, by base offset.
type Segments = BTreeMap<i64, Vec<u8>>;

/// Returns the first segment in which two replicas differ, though both of their logs go on behind its base offset.
fn difference(one: &Segments, other: &Segments) -> Option<i64> {
    let from = *one.first_key_value()?.0.max(other.first_key_value()?.0);
    let to = *one.last_key_value()?.0.min(other.last_key_value()?.0);
    if from > to {
        return None;
    }
    let (mut left, mut right) = (one.range(from..=to), other.range(from..=to));
    loop {
        match (left.next(), right.next()) {
            (None, None) => return None,
            (Some((base, bytes)), Some((at, other))) if base == at => {
                // The last segment of either may still grow.
                let common = bytes.len().min(other.len());
                let is_last = *base == to;
                if bytes[..common] != other[..common] || bytes.len() != other.len() && !is_last {
                    return Some(*base);
                }
            }
            (Some((base, _)), _) | (None, Some((base, _))) => return Some(*base),
        }
    }
}

/// Returns the records that a node gives out, before they are read.
fn given(reply: &Reply) -> Option<ShareFetchResponse> {
    match reply {
        Reply::ShareFetch(plan) => Some(plan.response.clone()),
        _ => None,
    }
}

/// All machines, the network between them, their clients, and time.
struct World {
    profile: Profile,
    members: Vec<Member>,
    network: Network,
    clients: Clients,
    /// Machine to which each connection leads.
    connected: BTreeMap<ConnectionId, usize>,
    mono_us: u64,
    chance: Prng,
    /// Chance of which machine joins, and which disk is lost.
    membership: Prng,
    /// Leader of a log in a term, and the time when it was seen first.
    leaders: BTreeMap<(Log, u64), (u64, u64)>,
    /// Committed batches: length and checksum, by where they begin.
    committed: BTreeMap<(Log, i64), (usize, u32)>,
    /// Largest high watermark that any replica ever reported of a log.
    most_committed: BTreeMap<Log, i64>,
    /// Offset to which the log of a machine was compared since its last start.
    compared: BTreeMap<(usize, u64, Log), i64>,
    /// Entries that a machine made again from segments, and times that its log began anew, by start of the machine.
    made: BTreeMap<(usize, u64, Log), (u64, u64)>,
    /// Compact entries by which replicas of a log are compacted.
    compactions: BTreeMap<Log, BTreeSet<u64>>,
    /// Pieces that were given of compacted logs, by start of a machine.
    fed: BTreeMap<(usize, u64), u64>,
    watch: Watch,
    lulls: Lulls,
    clocks: Clocks,
    space: Space,
    leaving: Leaving,
    /// Writers of fast appends, in a scenario of their own.
    fast: Option<Writers>,
    trace: Trace,
    report: Report,
}

/// Runs one seed to its end, with a bug planted or without.
pub fn run(seed: u64, bug: Option<Bug>) -> Result<Report, Failure> {
    run_world(World::new(seed, bug)?)
}

/// Runs one seed with writers of fast appends beside all other clients.
pub fn run_fast(seed: u64, bug: Option<Bug>) -> Result<Report, Failure> {
    let mut world = World::new(seed, bug)?;
    world.fast = Some(Writers::new(seed));
    run_world(world)
}

fn run_world(mut world: World) -> Result<Report, Failure> {
    world.live()?;
    if let Some(fast) = &world.fast {
        world.report.fast = (fast.stretches, fast.fast);
    }
    world.clients.tell_of(&mut world.report);
    (world.report.left, world.report.returned) = (world.leaving.left, world.leaving.returned);
    world.report.rebuilt = world.made.values().map(|made| made.0).sum();
    world.report.begun = world.made.values().map(|made| made.1).sum();
    (world.report.slept, world.report.roused) = (world.watch.slept, world.watch.roused);
    world.report.flips = world.members.iter().map(|member| member.rotting.flips).sum();
    world.report.mended = world.members.iter().map(|member| member.rotting.mended).sum();
    world.report.leaps = world.clocks.leapt;
    (world.report.filled, world.report.refused) = (world.space.filled, world.space.refused);
    world.report.frames = world.network.sent();
    world.report.fed = world.fed.values().sum();
    world.report.starts = world.members.iter().map(|it| it.machine.starts).sum();
    for it in &world.members {
        world.trace.mix(it.machine.disk.trace().hash());
    }
    world.report.trace = world.trace;
    Ok(world.report)
}

fn faults(chance: &mut Prng) -> Faults {
    let mut faults = Faults::default();
    if chance.chance(600) {
        faults.write_back = *chance.pick(&[5, 50]);
    }
    if chance.chance(150) {
        faults.sync_fails = 3;
    }
    faults
}

fn weather(chance: &mut Prng) -> Weather {
    Weather {
        lost: *chance.pick(&[0, 0, 10, 100]),
        doubled: *chance.pick(&[0, 10, 100]),
        late_us: *chance.pick(&[1_000, 10_000, 200_000]),
    }
}

fn settings(chance: &mut Prng, moves: bool, clocks: &Clocks) -> Result<BrokerSettings, Failure> {
    let min_insync = chance.between(1, 2).to_string();
    let segment_bytes = *chance.pick(&["16384", "4096"]);
    let metadata_bytes = *chance.pick(&["4194304", "1000"]);
    let years = i32::MAX.to_string();
    let pairs = [
        ("log.segment.bytes", segment_bytes),
        ("metadata.log.max.record.bytes.between.snapshots", metadata_bytes),
        ("num.partitions", "2"),
        ("default.replication.factor", "3"),
        ("min.insync.replicas", min_insync.as_str()),
        ("log.retention.check.interval.ms", "200"),
        ("log.cleaner.backoff.ms", "200"),
        ("group.min.session.timeout.ms", "500"),
        ("group.initial.rebalance.delay.ms", "100"),
        ("offsets.topic.num.partitions", "2"),
        ("offsets.topic.replication.factor", "3"),
        ("offsets.topic.segment.bytes", "8192"),
        ("transaction.state.log.num.partitions", "2"),
        ("transaction.state.log.replication.factor", "3"),
        ("transaction.state.log.segment.bytes", "8192"),
        // Locks of share groups may be released soon.
        ("group.share.min.record.lock.duration.ms", "1000"),
        ("share.coordinator.state.topic.num.partitions", "2"),
        ("share.coordinator.state.topic.replication.factor", "3"),
        ("share.coordinator.state.topic.segment.bytes", "8192"),
        ("share.coordinator.snapshot.update.records.per.snapshot", "10"),
        ("group.consumer.min.session.timeout.ms", "500"),
        ("group.consumer.session.timeout.ms", "1500"),
        ("group.consumer.min.heartbeat.interval.ms", "100"),
        ("group.consumer.heartbeat.interval.ms", "500"),
        ("group.consumer.assignment.interval.ms", "200"),
        ("group.share.min.session.timeout.ms", "500"),
        ("group.share.session.timeout.ms", "2000"),
        ("group.share.min.heartbeat.interval.ms", "100"),
        ("group.share.heartbeat.interval.ms", "500"),
        ("offsets.retention.check.interval.ms", "500"),
        // With a shorter retention a client would not know which of its commits may be gone.
        ("offsets.retention.minutes", if clocks.outlast { &years } else { "10080" }),
        ("auto.leader.rebalance.enable", if moves { "true" } else { "false" }),
        ("leader.imbalance.check.interval.seconds", "1"),
    ];
    machine::settings(&pairs)
}

impl World {
    fn new(seed: u64, bug: Option<Bug>) -> Result<Self, Failure> {
        let mut shape = Prng::new(seed, "cluster profile");
        let count = *shape.pick(&[3, 3, 5]);
        // A machine that is no founder joins later.
        let mut membership = Prng::new(seed, "cluster members");
        let founded = count;
        let count = founded + usize::from(membership.chance(250));
        let founders = member::founders(count, founded);
        let (faults, weather) = (faults(&mut shape), weather(&mut shape));
        let moves = *Prng::new(seed, "cluster moves").pick(&[0, 0, 5, 20]);
        let mut profile = Profile {
            steps: shape.between(2_000, 8_000),
            crash: *shape.pick(&[0, 5, 20]),
            cut: *shape.pick(&[0, 5, 20]),
            freeze: *shape.pick(&[0, 5, 20]),
            drain: moves,
            wipe: *membership.pick(&[0, 0, 0, 10, 50]),
            work: shape.between(2, 8),
            away: *shape.pick(&[100_000, 1_000_000, 6_000_000]),
        };
        let clocks = Clocks::new(seed, count);
        let settings = settings(&mut shape, moves > 0, &clocks)?;
        let bug = if let Some(Bug::Cluster(bug)) = bug { Some(bug) } else { None };
        let member =
            |at| Member::new(seed, (count, at), founders.clone(), settings.clone(), faults, bug);
        let mut members: Vec<_> = (0..count).map(member).collect();
        for late in &mut members[founded..] {
            late.down_until_us = membership.below(4_000_000);
        }
        // Where disks are lost as well, there may be no other copy.
        let rots = profile.wipe == 0 && scrubbing::begin(seed, &mut members);
        if rots {
            profile.crash = profile.crash.max(10);
        }
        // Of two replicas none can be spared.
        let replicas_min = if profile.wipe > 0 || rots { 3 } else { 1 };
        let nodes = i32::try_from(count).expect("small");
        let mut clients = Clients::of_many(seed, nodes, replicas_min);
        let mut space = Space::new(seed, count);
        if rots {
            space.fills = 0;
        }
        let mut leaving = Leaving::new(seed, founded, count);
        leaving.begin(&mut clients, |at| members[at].broker_id());
        // Segments that compaction made cannot be repaired.
        clients.oracle.spare_compaction(rots);
        clients.spare(rots);
        (clients.leaps, clients.fills) = (clocks.leaps > 0, space.fills > 0);
        Ok(Self {
            members,
            network: Network::new(seed, weather),
            clients,
            profile,
            connected: BTreeMap::new(),
            mono_us: 0,
            chance: Prng::new(seed, "cluster schedule"),
            leaders: BTreeMap::new(),
            committed: BTreeMap::new(),
            most_committed: BTreeMap::new(),
            compared: BTreeMap::new(),
            made: BTreeMap::new(),
            compactions: BTreeMap::new(),
            fed: BTreeMap::new(),
            membership,
            watch: Watch::default(),
            lulls: Lulls::new(seed),
            clocks,
            space,
            leaving,
            fast: None,
            trace: Trace::default(),
            report: Report { machines: count, ..Report::default() },
        })
    }

    fn live(&mut self) -> Result<(), Failure> {
        for at in 0..self.members.len() {
            if self.members[at].down_until_us == 0 {
                self.start(at)?;
            }
        }
        self.clients.connect();
        for connection in self.clients.connections() {
            let at = self.chance.index(self.members.len());
            self.connected.insert(connection, at);
        }
        for _ in 0..self.profile.steps {
            self.disturb()?;
            let asks = if self.lulls.is_now(self.mono_us) { 0 } else { 600 };
            self.step(asks)?;
        }
        self.finish()
    }

    /// Makes something go wrong, now and then.
    fn disturb(&mut self) -> Result<(), Failure> {
        let count = self.members.len();
        if self.chance.below(10_000) < self.profile.crash {
            let at = self.chance.index(count);
            let power = self.chance.chance(500);
            self.kill(at, power);
        }
        if self.chance.below(10_000) < self.profile.crash {
            let calls = self.chance.between(1, 80);
            let at = self.chance.index(count);
            self.members[at].machine.disk.crash_in(Some(calls));
        }
        if self.chance.below(10_000) < self.profile.cut {
            tell(|| "the network is cut".to_owned());
            self.network.cut(count);
        } else if self.chance.below(10_000) < 3 * self.profile.cut {
            self.network.heal();
        }
        if self.chance.below(10_000) < self.profile.freeze {
            let at = self.chance.index(count);
            let us = self.chance.between(200_000, 4_000_000);
            self.members[at].freeze(self.mono_us + us);
        }
        if self.profile.drain > 0 && self.chance.below(10_000) < self.profile.drain {
            let at = self.chance.index(count);
            tell(|| format!("machine {at} is to end"));
            self.deliver(at, vec![Event::Drain])?;
        }
        if self.membership.below(10_000) < self.profile.wipe {
            self.wipe_one();
        }
        self.clocks.disturb(&mut self.members, &mut self.clients.oracle, self.mono_us)?;
        self.space.disturb(&self.members);
        self.disturb_leaving();
        for at in 0..count {
            if let Some(held) = self.members[at].thaw(self.mono_us) {
                self.deliver(at, held)?;
            }
            let member = &self.members[at];
            if !member.machine.is_alive() && member.down_until_us <= self.mono_us {
                self.start(at)?;
            }
        }
        Ok(())
    }

    fn kill(&mut self, at: usize, power: bool) {
        if self.members[at].machine.is_alive() {
            self.bury(at, power);
        }
    }

    /// Loses a disk, if all of its data is elsewhere.
    fn wipe_one(&mut self) {
        let at = self.membership.index(self.members.len());
        // Topics that are made later for groups have no more replicas than nodes that stay, and need most of them.
        let stay = self.metadata_leader().map_or(0, |node| node.directories().count());
        let are_enough = stay >= 3 + usize::from(self.clients.is_taking_out());
        if are_enough && !self.leaving.concerns(at) && self.can_spare(at) {
            self.bury(at, true);
            self.members[at].wipe();
            self.report.wiped += 1;
        }
    }

    /// Tells whether all data of a machine's disk is elsewhere, and disks that were lost before have their successors.
    fn can_spare(&self, at: usize) -> bool {
        let Some(last) = self.metadata_leader() else { return false };
        let known: Vec<_> = last.directories().collect();
        let mut wiped = self.members.iter().filter(|it| it.wipes > 0 && !it.is_out);
        let are_back = wiped.all(|it| known.contains(&it.directory_id()));
        are_back && last.can_spare(self.members[at].broker_id())
    }

    /// Returns the leader of the metadata with the newest term. A leader that has a successor may not know it, nor the
    /// changes since.
    fn metadata_leader(&self) -> Option<&Node> {
        let nodes = self.members.iter().filter_map(|it| it.machine.node());
        nodes.filter(|node| node.unsettled().is_some()).max_by_key(|node| node.metadata_term())
    }

    /// Buries a dead process: it comes back some time later, and its clients go elsewhere.
    fn bury(&mut self, at: usize, power: bool) {
        self.members[at].die(power);
        self.fast.iter_mut().for_each(|fast| fast.on_died(at));
        self.members[at].down_until_us = self.mono_us + self.chance.below(self.profile.away);
        let all: Vec<_> = self.connected.iter().filter(|(_, to)| **to == at).collect();
        let lost: Vec<_> = all.into_iter().map(|(connection, _)| *connection).collect();
        for connection in lost {
            self.turn_away(connection);
        }
    }

    /// Turns a client to another machine.
    fn turn_away(&mut self, connection: ConnectionId) {
        self.connected.remove(&connection);
        if let Some(other) = self.clients.leave(connection) {
            let at = self.chance.index(self.members.len());
            self.connected.insert(other, at);
        }
    }

    /// Turns clients that were told of a node to it.
    fn turn_to_aims(&mut self) -> Result<(), Failure> {
        for (connection, node) in self.clients.take_aims() {
            let is_it = |member: &Member| member.broker_id() == node;
            let to = self.members.iter().position(is_it).expect("a node of the cluster");
            let before = self.connected.remove(&connection);
            if let Some(other) = self.clients.leave(connection) {
                self.clients.on_arrived(other, node);
                self.connected.insert(other, to);
            }
            if let Some(at) = before {
                self.deliver(at, vec![Event::Disconnected(connection)])?;
            }
        }
        Ok(())
    }

    fn start(&mut self, at: usize) -> Result<(), Failure> {
        if let Some(actions) = self.members[at].start(self.mono_us)? {
            return self.act(at, actions);
        }
        self.members[at].down_until_us = self.mono_us + 50_000;
        Ok(())
    }

    fn deliver(&mut self, at: usize, events: Vec<Event>) -> Result<(), Failure> {
        for event in events {
            let actions = self.members[at].step(self.mono_us, event);
            self.act(at, actions)?;
        }
        Ok(())
    }

    /// Lets a moment pass: frames arrive, a client asks, every machine works.
    fn step(&mut self, asks: u64) -> Result<(), Failure> {
        let us = self.chance.below(3_000);
        self.mono_us += us;
        while let Some((from, to, frame)) = self.network.arrived(self.mono_us) {
            let frame = PeerFrame::decode(&frame)
                .map_err(|error| Failure::correctness(format!("from {from}: {error}")))?;
            self.deliver(to, vec![Event::Peer(Box::new(frame))])?;
        }
        for _ in 0..self.clients.haste() {
            if self.chance.chance(asks) {
                self.ask()?;
            }
        }
        self.ask_fast(asks)?;
        for at in 0..self.members.len() {
            for _ in 0..self.profile.work {
                if self.members[at].is_frozen() {
                    break;
                }
                let actions = if self.chance.chance(300) {
                    self.members[at].flush(self.mono_us)
                } else {
                    self.members[at].work(self.mono_us)?
                };
                self.act(at, actions)?;
                let is_alive = self.members[at].machine.is_alive();
                let disk = &self.members[at].machine.disk;
                let is_dead = disk.is_dead() || disk.is_doomed();
                if is_dead || !is_alive && self.connected.values().any(|to| *to == at) {
                    // The process has ended by itself, or was ended in the middle of something.
                    if is_dead {
                        let power = self.chance.chance(500);
                        self.bury(at, power);
                    }
                    break;
                }
            }
        }
        self.watch.look(self.mono_us, &self.members, &self.network, &self.clients.oracle)?;
        if self.clients.oracle.compacts() {
            self.look_at_compaction();
        }
        self.compare()
    }

    /// Lets a client that has nothing outstanding ask for something, maybe of another machine than before.
    fn ask(&mut self) -> Result<(), Failure> {
        self.turn_to_aims()?;
        if self.chance.chance(100) {
            let connections = self.clients.connections();
            let connection = *self.chance.pick(&connections);
            // One that waits has less reason to go.
            let is_free = self.clients.is_quiet(connection) || self.chance.chance(100);
            if is_free && (!self.clients.is_settled(connection) || self.chance.chance(50)) {
                let before = self.connected.get(&connection).copied();
                self.turn_away(connection);
                if let Some(at) = before {
                    self.deliver(at, vec![Event::Disconnected(connection)])?;
                }
            }
        }
        let wall_ms = member::right_wall_ms(self.mono_us);
        let Some((connection, sequence, context, request)) = self.clients.ask(wall_ms) else {
            return Ok(());
        };
        let at = self.connected[&connection];
        if !self.members[at].machine.is_alive() {
            self.turn_away(connection);
            return Ok(());
        }
        self.space.note(connection, self.members[at].told);
        self.deliver(at, vec![Event::Request { connection, sequence, context, request }])
    }

    /// Carries out the actions of a node.
    fn act(&mut self, at: usize, actions: Vec<Action>) -> Result<(), Failure> {
        for action in actions {
            match action {
                Action::Reply { connection, sequence, reply }
                    if self.fast.as_ref().is_some_and(|fast| fast.owns(connection)) =>
                {
                    let came = self.members[at].machine.answer((connection, sequence), reply);
                    let node = self.members[at].broker_id();
                    if let (Came::Response(response), Some(fast)) = (came, &mut self.fast) {
                        fast.on_reply(node, (connection, sequence), response)?;
                    }
                }
                Action::Close { connection, .. }
                    if self.fast.as_ref().is_some_and(|fast| fast.owns(connection)) =>
                {
                    self.fast.iter_mut().for_each(|fast| fast.on_closed(connection));
                }
                Action::Reply { connection, sequence, reply } => {
                    if let Reply::Fetch(plan) = &reply {
                        self.check_ends(at, plan)?;
                    }
                    let given = given(&reply);
                    let came = self.members[at].machine.answer((connection, sequence), reply);
                    if let Came::Response(response) = &came {
                        self.witness(at, connection, given.as_ref(), response)?;
                    }
                    if !self.members[at].machine.disk.is_dead() {
                        if let Came::Response(response) = &came {
                            let told = self.members[at].told;
                            self.space.check(connection, (at, told), response)?;
                        }
                        let wall_ms = member::right_wall_ms(self.mono_us);
                        self.clients.on_reply(wall_ms, (connection, sequence), came)?;
                    }
                }
                Action::Close { connection, reason } => self.on_closed(connection, &reason)?,
                Action::Send { to, frame } => {
                    let bytes = frame.encode();
                    self.trace.mix_bytes(&bytes);
                    let count = i32::try_from(self.members.len()).expect("small");
                    let to = usize::try_from(count - to).expect("a node of the cluster");
                    self.network.send(self.mono_us, at, to, &bytes);
                }
                Action::Mend(mend) => {
                    let rot = self.members[at].rot.as_mut();
                    rot.expect("a process looks for rot while it runs").mends.push(mend);
                }
                Action::Nodes(_)
                | Action::Members(_)
                | Action::Targets(_)
                | Action::Credential { .. } => {}
                // The process ends now, as it does in good order.
                Action::Drained => {
                    self.bury(at, false);
                    return Ok(());
                }
                Action::Fatal(reason) => {
                    return wrong(format!("machine {at} gives up: {reason}"));
                }
                Action::Storage(_)
                | Action::ReadLog(_)
                | Action::Look(_)
                | Action::Index(_)
                | Action::Compact(_)
                | Action::Stage(_) => unreachable!("the machine keeps them"),
            }
        }
        Ok(())
    }

    /// Has a client connect anew, whose connection a node has closed.
    fn on_closed(&mut self, connection: ConnectionId, reason: &str) -> Result<(), Failure> {
        self.clients.on_closed(connection, reason)?;
        self.connected.remove(&connection);
        let to = self.chance.index(self.members.len());
        for connection in self.clients.connections() {
            self.connected.entry(connection).or_insert(to);
        }
        Ok(())
    }

    /// Checks that no leader or follower shows records that no replica knows to be committed.
    fn check_ends(&mut self, at: usize, plan: &FetchPlan) -> Result<(), Failure> {
        let standings: Vec<_> = self.members.iter().map(|it| it.machine.standings()).collect();
        for part in &plan.parts {
            let own = standings[at].iter().find(|it| it.replica == part.replica);
            let Some(own) = own else { continue };
            let log = (own.topic_id, own.partition);
            let others = standings.iter().flatten();
            let others = others.filter(|it| (it.topic_id, it.partition) == log);
            let now = others.map(|it| it.committed).max().unwrap_or(0);
            // A replica that has just begun anew knows less than before.
            let committed = now.max(self.most_committed.get(&log).copied().unwrap_or(0));
            if part.end > committed {
                let end = part.end;
                let what =
                    format!("machine {at} shows {log:?} up to {end}, {committed} is committed");
                return wrong(what);
            }
            self.report.of_followers += u64::from(!own.serves);
        }
        Ok(())
    }

    /// Checks the statements of replicas: no two replicas lead in one term, and committed data is the same everywhere,
    /// for ever.
    fn compare(&mut self) -> Result<(), Failure> {
        for at in 0..self.members.len() {
            let start = self.members[at].machine.starts;
            for standing in self.members[at].machine.standings() {
                let log = (standing.topic_id, standing.partition);
                if let Some(why) = standing.failure {
                    let what =
                        format!("machine {at}: replica {:?} failed: {why}", standing.replica);
                    return wrong(what);
                }
                self.made.insert((at, start, log), (standing.rebuilt, standing.begun));
                if standing.serves {
                    let elected = self.leaders.get(&(log, standing.term)).map(|it| it.0);
                    self.leaders
                        .entry((log, standing.term))
                        .or_insert((standing.replica.0, self.mono_us));
                    match elected {
                        None => {
                            tell(|| {
                                format!("machine {at} leads {log:?} in term {}", standing.term)
                            });
                            self.report.elections += 1;
                        }
                        Some(other) if other != standing.replica.0 => {
                            return wrong(format!("two lead {log:?} in term {}", standing.term));
                        }
                        Some(_) => {}
                    }
                }
                let most = self.most_committed.entry(log).or_default();
                *most = standing.committed.max(*most);
                let known = self.compared.entry((at, start, log)).or_default();
                // Data that compaction left is compared in the end.
                *known = standing.compacted.below.max(*known);
                let from = (*known).max(standing.log_start);
                if from >= standing.committed {
                    if let (Some(fast), true) = (&mut self.fast, standing.serves) {
                        fast.check_leader(log, standing.term, standing.committed)?;
                    }
                    continue;
                }
                // Data that is committed elsewhere may not be written here yet, and a process may be dying.
                let read = self.members[at].read(standing.replica, from, standing.committed);
                let Ok(bytes) = read else { continue };
                for batch in batches(bytes).map_while(Result::ok) {
                    let header = batch.header();
                    if header.end_offset() > standing.committed {
                        break;
                    }
                    *known = header.end_offset();
                    if let Some(fast) = &mut self.fast {
                        fast.on_committed(log, header)?;
                    }
                    let seen = (batch.bytes().len(), crc32c::crc32c(batch.bytes()));
                    let before = self.committed.insert((log, header.base_offset), seen);
                    if before.is_none() {
                        tell(|| format!("committed {}-{}: {header:?}", log.0[0], log.1));
                    }
                    if before.is_some_and(|before| before != seen) {
                        return wrong(format!(
                            "machine {at}: what is committed at {} of {log:?} is another batch",
                            header.base_offset
                        ));
                    }
                }
            }
        }
        Ok(())
    }

    /// Ends the faults; all machines run. Everything asked must be answered, all that was ever acknowledged or shown
    /// must be there, and all replicas must come to the same end.
    fn finish(&mut self) -> Result<(), Failure> {
        self.network.weather = Weather::FINE;
        self.network.heal();
        self.profile = Profile { work: 10, away: self.profile.away, ..Profile::default() };
        self.clocks.leaps = 0;
        self.space.fills = 0;
        for at in 0..self.members.len() {
            self.members[at].heal();
            if self.chance.chance(300) {
                self.kill(at, true);
            }
            if self.members[at].down_until_us < u64::MAX {
                self.members[at].down_until_us = 0;
            }
        }
        let settled_us = self.mono_us + 6_000_000;
        // The departure of a machine is known only once it was reported; a machine that has left is in nobody's way.
        let left_us = settled_us + 20_000_000;
        while self.mono_us < settled_us || self.clients.is_taking_out() && self.mono_us < left_us {
            self.disturb()?;
            self.step(100)?;
        }
        self.sleep_through_faults()?;
        tell(|| "LAST PHASE".to_owned());
        self.clients.begin_last_phase();
        self.fast.iter_mut().for_each(Writers::begin_last_phase);
        for _ in 0..60_000 {
            let is_done = |fast: &Writers| fast.is_done() && fast::hold_nothing(&self.members);
            if self.clients.is_done() && self.fast.as_ref().is_none_or(is_done) {
                self.clients.oracle.check_complete()?;
                self.check_replicas()?;
                return self.fast.as_ref().map_or(Ok(()), Writers::check);
            }
            self.disturb()?;
            self.step(300)?;
        }
        self.stuck(&format!("no progress: {}", self.clients.waiting()))
    }

    fn pass(&mut self, us: u64) -> Result<(), Failure> {
        let until_us = self.mono_us + us;
        while self.mono_us < until_us {
            self.disturb()?;
            self.step(0)?;
        }
        Ok(())
    }

    /// Fails for a lack of progress, and describes all replicas.
    fn stuck<T>(&self, what: &str) -> Result<T, Failure> {
        Err(Failure::liveness(format!("{what} {}", self.told())))
    }

    /// Describes all replicas in brief: log, replica, term, high watermark.
    fn told(&self) -> String {
        let mut text = String::new();
        for member in &self.members {
            let Some(node) = member.machine.node() else { continue };
            let _ = write!(text, "\nmachine {}:", member.at);
            for it in node.standings() {
                let (topic, partition, replica) = (it.topic_id[0], it.partition, it.replica.0);
                let lead = if it.serves { " leads" } else { "" };
                let sleeps = if it.is_asleep { " sleeps" } else { "" };
                let _ = write!(text, " [{topic}-{partition} r{replica} t{} ", it.term);
                let _ = write!(text, "{}..{} -{}", it.log_start, it.committed, it.left_behind);
                let _ = write!(text, "{lead}{sleeps}");
                if it.topic_id == METADATA || !it.is_asleep {
                    let _ = write!(text, " of {:?} and {:?}", it.voters, it.learners);
                    let _ = write!(text, " follows {:?}", it.leader);
                }
                if let Some(why) = &it.failure {
                    let _ = write!(text, " failed: {why}");
                }
                text.push(']');
            }
        }
        text
    }

    /// Checks that segments begin at the same offsets on all machines, and hold the same bytes, as far as two have
    /// them.
    fn check_files(&self) -> Result<(), Failure> {
        let mut logs: BTreeMap<String, Vec<Segments>> = BTreeMap::new();
        for member in self.members.iter().filter(|it| !it.is_out) {
            let disk = &member.machine.disk;
            let mut segments: BTreeMap<String, Segments> = BTreeMap::new();
            for (path, _) in disk.files() {
                let Some((dir, name)) = path.split_once('/') else { continue };
                let base = name.strip_suffix(".log").and_then(|base| base.parse::<i64>().ok());
                let Some(base) = base else { continue };
                let bytes = disk.contents(&path).unwrap_or_default();
                segments.entry(dir.to_owned()).or_default().insert(base, bytes);
            }
            for (dir, segments) in segments {
                logs.entry(dir).or_default().push(segments);
            }
        }
        for (dir, replicas) in &logs {
            for (at, one) in replicas.iter().enumerate() {
                for other in &replicas[at + 1..] {
                    if let Some(base) = difference(one, other) {
                        let what =
                            format!("segment {base} of {dir} is not the same on two machines");
                        return wrong(what);
                    }
                }
            }
        }
        Ok(())
    }

    /// Waits until all rot is found and repaired.
    fn await_soundness(&mut self) -> Result<(), Failure> {
        for member in &mut self.members {
            member.rotting.rots = false;
            if let Some(rot) = &mut member.rot {
                rot.sound_passes = 0;
            }
        }
        for _ in 0..30_000 {
            let is_sound = |member: &Member| {
                member.is_out
                    || !member.rotting.is_on()
                    || member.rot.as_ref().is_some_and(|rot| rot.sound_passes >= 2)
            };
            if self.members.iter().all(is_sound) {
                return Ok(());
            }
            self.disturb()?;
            self.step(0)?;
        }
        self.stuck("what has rotted is not mended")
    }

    /// Checks that the voters of each group are the replicas that there are, and nobody else belongs to it.
    fn check_members(&self) -> Result<(), Failure> {
        let all: Vec<_> = self.members.iter().flat_map(|it| it.machine.standings()).collect();
        for leader in all.iter().filter(|it| it.serves) {
            let log = (leader.topic_id, leader.partition);
            let of = all.iter().filter(|it| (it.topic_id, it.partition) == log);
            let mut replicas: Vec<u64> = of.map(|it| it.replica.0).collect();
            replicas.sort_unstable();
            // The metadata is also kept by nodes that do not vote on it.
            let observers = if leader.topic_id == METADATA { &leader.learners[..] } else { &[] };
            let mut members = [&leader.voters, observers].concat();
            members.sort_unstable();
            if members != replicas {
                return self
                    .stuck(&format!("{log:?} has {replicas:?} and its members are {leader:?}"));
            }
        }
        Ok(())
    }

    /// Waits until all that edits took away is erased on every machine. A leader that does not believe its clock erases
    /// nothing.
    fn await_erasure(&mut self) -> Result<(), Failure> {
        let may_wait = self.clocks.leapt > 0;
        for _ in 0..30_000 {
            if may_wait || self.members.iter().all(|it| it.machine.unerased().is_none()) {
                break;
            }
            self.disturb()?;
            self.step(0)?;
        }
        for at in 0..self.members.len() {
            let machine = &self.members[at].machine;
            match machine.unerased() {
                Some(_) if may_wait => {}
                Some(log) => {
                    return self.stuck(&format!("machine {at}: it is not erased: {log:?}"));
                }
                None => machine
                    .check_erased(|partition, offset| self.clients.is_gone(partition, offset))?,
            }
        }
        Ok(())
    }

    /// Checks that all replicas have all committed data.
    fn check_replicas(&mut self) -> Result<(), Failure> {
        self.await_departure()?;
        for _ in 0..3_000 {
            self.disturb()?;
            self.step(0)?;
        }
        self.await_soundness()?;
        let mut ends: BTreeMap<Log, Vec<i64>> = BTreeMap::new();
        for standing in self.members.iter().flat_map(|it| it.machine.standings()) {
            let log = (standing.topic_id, standing.partition);
            ends.entry(log).or_default().push(standing.committed);
        }
        let uneven: Vec<_> =
            ends.iter().filter(|(_, ends)| ends.iter().any(|end| *end != ends[0])).collect();
        if !uneven.is_empty() {
            return self.stuck(&format!("not all of these are equal: {uneven:?}"));
        }
        self.check_members()?;
        let nodes = self.members.iter().filter_map(|it| it.machine.node());
        let unsettled = nodes.filter_map(Node::unsettled).max();
        if unsettled != Some(0) {
            return self.stuck(&format!("partitions are not where they are to be: {unsettled:?}"));
        }
        self.check_nothing_gone_is_left()?;
        self.check_files()?;
        self.await_erasure()?;
        if self.clients.oracle.compacts() || self.clients.has_queues() {
            self.check_compacted()?;
        }
        self.members.iter().try_for_each(|it| it.machine.disk.check())
    }
}
