//! # Room card: access scenario
//!
//! Purpose:    run a cluster whose nodes ask clients who they are and judge them by rules, while rules and users come
//!             and go; hold every answer to the rules.
//! Owns:       virtual time and faults of this scenario; what each machine knows of the metadata, and when it was in
//!             touch with the metadata's leader.
//! Interface:  [`run`].
//! Invariants: what `docs/security.md` promises holds for every answer that a machine gives, as follows.
//! Never:      what is right (the oracle); other clients than those of users (the cluster harness has those).
//! Tests:      `tests/promises/access.rs`, `tests/planted.rs`.
//! Start at:   [`run`].
//!
//! - **Lag.** A machine in touch with the leader of the metadata has applied every change of rules and users a second
//!   after its commit. In touch means for a second: both run, and no way between them is cut.
//! - **Data.** Records leave a machine only by the rules that it has applied when it answers, not when the question
//!   came. So a long poll or a fetch session gives nothing that was denied meanwhile.
//! - **Acts.** A change, and a denial, follow from the rules at some moment between the question and the answer. For a
//!   question that another machine decides that moment is at most a second before the question.
//! - **Users.** A machine answers on a connection only while its user has the password by which it came, by what the
//!   machine has applied. It closes the others at once, and no others.
//! - **Doubt.** A machine that has not heard the leader of the metadata for nine seconds lets no user in. Nor does a
//!   leader that has not heard a majority. A machine in touch does.
//!
//! By *Lag* all of these also hold for what is committed, a second late.

mod admin;
mod clients;
mod oracle;

use std::collections::{BTreeMap, VecDeque};

use duramen_broker::configs::BrokerSettings;
use duramen_broker::login::{Known, WhoIs};
use duramen_broker::peer::PeerFrame;
use duramen_broker::{Action, ConnectionId, Event, KINDS, Reply};
use duramen_protocol::batch::batches;
use duramen_protocol::sasl::scram::Hash;
use duramen_storage::op::ReplicaId;

use super::member::{self, Member};
use super::network::{Network, Weather};
use crate::disk::Faults;
use crate::failure::{Failure, wrong};
use crate::machine::{self, Came};
use crate::prng::Prng;
use crate::trace::{Trace, tell};
use admin::{Admin, HASH, HOSTS, USERS};
use clients::{Client, Door, Looked, Means, Outstanding};
use oracle::{Oracle, Says, Span};

/// Time in which a machine in touch applies what is committed, in microseconds.
const LAG_US: u64 = 1_000_000;
/// Time without a word from the leader of the metadata after which a machine lets no user in, in microseconds.
const DOUBT_US: u64 = 9_000_000;
/// Wanted mechanisms of a login.
const WANTED: &[Hash] = &[HASH];
/// Connections of the administrator begin here; those of clients are smaller.
const OF_ADMIN: u64 = 1 << 40;

/// Counts of a good run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Report {
    /// Hash of everything that happened.
    pub trace: Trace,
    /// Successful starts.
    pub starts: u64,
    /// Changes of rules and users.
    pub changes: u64,
    /// Clients that were let in.
    pub logins: u64,
    /// Clients that were turned away by a machine in doubt.
    pub doubted: u64,
    /// Connections that were closed because their user changed.
    pub shut: u64,
    /// Answers.
    pub answered: u64,
    /// Statements that clients may do something.
    pub allowed: u64,
    /// Statements that clients may not.
    pub denied: u64,
}

#[derive(Default)]
struct Profile {
    /// Chance of a death in ten thousand, for each step; the chances below likewise.
    crash: u64,
    cut: u64,
    heal: u64,
    freeze: u64,
    drain: u64,
    /// Longest time that a dead process stays away, in microseconds.
    away: u64,
}

/// Facts that are known of a machine.
#[derive(Clone, Debug, Default)]
struct Spot {
    /// End of the metadata that it has applied.
    applied: i64,
    /// End of the metadata that an image may hold from which it began: then it may know more than it has applied.
    imaged: i64,
    /// Number of times that its log of the metadata began anew.
    begun: u64,
    /// Term in which it leads the metadata, if it does.
    leads: Option<u64>,
    /// Machine that it follows.
    follows: Option<usize>,
    /// Time of the last word from each machine, in microseconds.
    heard_us: BTreeMap<usize, u64>,
    /// Senders of words that wait until the machine goes on.
    waiting: VecDeque<usize>,
    /// Last time at which it heard the one that it followed, or led a majority that it heard, in microseconds.
    sure_us: Option<u64>,
    /// Machine with which it is in touch, and since when.
    touch: Option<(usize, u64)>,
}

impl Spot {
    /// Returns the furthest state that the machine may have.
    fn furthest(&self) -> i64 {
        self.applied.max(self.imaged)
    }
}

struct World {
    profile: Profile,
    members: Vec<Member>,
    spots: Vec<Spot>,
    network: Network,
    metadata: Option<ReplicaId>,
    oracle: Oracle,
    clients: Vec<Client>,
    admin: Admin,
    /// The administrator's own client, for one request.
    envoy: Option<Envoy>,
    /// Connections so far.
    connections: u64,
    mono_us: u64,
    chance: Prng,
    trace: Trace,
    report: Report,
    is_ready: bool,
}

/// Connection of the administrator, and what is known of its request.
struct Envoy {
    client: Client,
    came: i64,
    since_us: u64,
}

/// Runs one seed to its end. A bug may be planted in this thread.
pub fn run(seed: u64) -> Result<Report, Failure> {
    let mut world = World::new(seed)?;
    world.live()?;
    let World { oracle, clients, members, trace, mut report, .. } = world;
    report.starts = members.iter().map(|it| it.machine.starts).sum();
    report.changes = oracle.changes() as u64;
    report.answered = clients.iter().map(|it| it.answered).sum();
    (report.allowed, report.denied) = (oracle.allowed, oracle.denied);
    report.trace = trace;
    for it in &members {
        report.trace.mix(it.machine.disk.trace().hash());
    }
    Ok(report)
}

fn settings(metadata_bytes: &str) -> Result<BrokerSettings, Failure> {
    let pairs = [
        ("authorizer.class.name", duramen_broker::configs::AUTHORIZER),
        ("super.users", "User:admin"),
        ("metadata.log.max.record.bytes.between.snapshots", metadata_bytes),
        ("num.partitions", "1"),
        ("default.replication.factor", "3"),
        ("auto.create.topics.enable", "false"),
        ("auto.leader.rebalance.enable", "true"),
        ("leader.imbalance.check.interval.seconds", "2"),
    ];
    machine::settings(&pairs)
}

impl World {
    fn new(seed: u64) -> Result<Self, Failure> {
        let mut shape = Prng::new(seed, "access profile");
        let count = *shape.pick(&[3, 3, 3, 5]);
        let founders = member::founders(count, count);
        let metadata_bytes = *shape.pick(&["4194304", "4000"]);
        let settings = settings(metadata_bytes)?;
        let profile = Profile {
            crash: *shape.pick(&[0, 3, 10]),
            cut: *shape.pick(&[0, 5, 15]),
            heal: *shape.pick(&[5, 20, 100]),
            freeze: *shape.pick(&[0, 3, 10]),
            drain: *shape.pick(&[0, 0, 5]),
            away: *shape.pick(&[100_000, 1_000_000, 6_000_000]),
        };
        let weather = Weather {
            lost: *shape.pick(&[0, 0, 10]),
            doubled: *shape.pick(&[0, 10, 100]),
            late_us: *shape.pick(&[1_000, 10_000, 50_000]),
        };
        let member = |at| {
            let all = founders.clone();
            let mut member =
                Member::new(seed, (count, at), all, settings.clone(), Faults::default(), None);
            member.machine.node_options.kinds = KINDS;
            // Disks are quick here, and do not fail: other scenarios have those that do.
            member.heal();
            member
        };
        let mut clients = vec![Client::new(None, HOSTS[0], false, false)];
        for (number, user) in USERS.into_iter().enumerate() {
            for (host, is_native) in [(HOSTS[number % 2], false), (HOSTS[0], number % 2 == 0)] {
                clients.push(Client::new(Some(user), host, is_native, shape.chance(500)));
            }
        }
        Ok(Self {
            members: (0..count).map(member).collect(),
            spots: vec![Spot::default(); count],
            network: Network::new(seed, Weather { lost: 0, ..weather }),
            metadata: None,
            oracle: Oracle::default(),
            clients,
            admin: Admin::new(seed),
            envoy: None,
            connections: 0,
            mono_us: 0,
            chance: Prng::new(seed, "access schedule"),
            trace: Trace::default(),
            report: Report::default(),
            is_ready: false,
            profile,
        })
    }

    fn live(&mut self) -> Result<(), Failure> {
        for at in 0..self.members.len() {
            self.start(at)?;
        }
        for _ in 0..20_000 {
            if self.admin.is_ready() {
                break;
            }
            self.step()?;
        }
        if !self.admin.is_ready() {
            return self.stuck("the cluster does not begin");
        }
        self.is_ready = true;
        let until_us = self.mono_us + self.chance.between(15_000_000, 40_000_000);
        while self.mono_us < until_us {
            self.disturb()?;
            self.step()?;
        }
        self.finish()
    }

    /// Ends the faults. The users are all there again, and each client gets an answer.
    fn finish(&mut self) -> Result<(), Failure> {
        tell(|| "LAST PHASE".to_owned());
        self.network.weather = Weather::FINE;
        self.network.heal();
        self.profile = Profile::default();
        self.admin.begin_last_phase(self.mono_us);
        for member in &mut self.members {
            member.down_until_us = 0;
        }
        let before: Vec<u64> = self.clients.iter().map(|it| it.answered).collect();
        for _ in 0..20_000 {
            let mut counts = self.clients.iter().zip(&before);
            // Answers of long ago may be among the first.
            let have_answers = counts.all(|(client, before)| client.answered > before + 2);
            if self.admin.is_ready() && have_answers && self.oracle.open() == 0 {
                return Ok(());
            }
            self.disturb()?;
            self.step()?;
        }
        self.stuck("somebody waits for ever")
    }

    fn stuck(&self, what: &str) -> Result<(), Failure> {
        let doors: Vec<_> = self.clients.iter().map(|it| (&it.door, it.at, it.answered)).collect();
        let (spots, asked) = (&self.spots, &self.admin.asked);
        let open = self.oracle.open();
        let known = self.oracle.known();
        Err(Failure::liveness(format!(
            "{what}: {spots:?} {doors:?} {asked:?}, {open} not judged, known {known}"
        )))
    }

    /// Makes something go wrong, now and then.
    fn disturb(&mut self) -> Result<(), Failure> {
        let count = self.members.len();
        if self.chance.below(10_000) < self.profile.crash {
            let at = self.chance.index(count);
            let power = self.chance.chance(500);
            if self.members[at].machine.is_alive() {
                self.bury(at, power);
            }
        }
        if self.chance.below(10_000) < self.profile.cut {
            let at = self.network.cut(count);
            tell(|| format!("the network of machine {at} is cut at {}", self.mono_us));
        } else if self.chance.below(10_000) < self.profile.heal {
            self.network.heal();
        }
        if self.chance.below(10_000) < self.profile.freeze {
            let at = self.chance.index(count);
            let us = self.chance.between(200_000, 12_000_000);
            self.members[at].freeze(self.mono_us + us);
        }
        if self.chance.below(10_000) < self.profile.drain {
            let at = self.chance.index(count);
            self.deliver(at, Event::Drain)?;
        }
        for at in 0..count {
            if let Some(held) = self.members[at].thaw(self.mono_us) {
                for event in held {
                    if matches!(event, Event::Peer(_))
                        && let Some(from) = self.spots[at].waiting.pop_front()
                    {
                        self.spots[at].heard_us.insert(from, self.mono_us);
                    }
                    self.deliver(at, event)?;
                }
                for client in self.clients.iter_mut().filter(|it| it.at == at) {
                    if let Door::Knocks(credential) = &client.door {
                        client.door = Door::In(Some(credential.clone()));
                    }
                }
                self.claim_users(at);
            }
            let member = &self.members[at];
            if !member.machine.is_alive() && member.down_until_us <= self.mono_us {
                self.start(at)?;
            }
        }
        Ok(())
    }

    fn start(&mut self, at: usize) -> Result<(), Failure> {
        self.spots[at] = Spot::default();
        let Some(actions) = self.members[at].start(self.mono_us)? else {
            self.members[at].down_until_us = self.mono_us + 50_000;
            return Ok(());
        };
        let applied = self.members[at].machine.standings().first().map_or(0, |it| it.committed);
        let imaged = self.committed();
        self.spots[at] = Spot { applied, imaged, ..Spot::default() };
        self.act(at, actions)
    }

    /// Buries a dead process: it comes back some time later.
    fn bury(&mut self, at: usize, power: bool) {
        self.members[at].die(power);
        self.spots[at] = Spot::default();
        let away_us = self.chance.below(self.profile.away.max(1));
        self.members[at].down_until_us = self.mono_us + away_us;
        self.clients.iter_mut().filter(|it| it.at == at).for_each(Client::leave);
        if self.envoy.take_if(|it| it.client.at == at).is_some() {
            self.admin.asked = None;
        }
    }

    fn deliver(&mut self, at: usize, event: Event) -> Result<(), Failure> {
        let actions = self.members[at].step(self.mono_us, event);
        self.act(at, actions)
    }

    /// Lets a moment pass.
    fn step(&mut self) -> Result<(), Failure> {
        self.mono_us += self.chance.below(8_000);
        while let Some((from, to, frame)) = self.network.arrived(self.mono_us) {
            let frame = PeerFrame::decode(&frame)
                .map_err(|error| Failure::correctness(format!("from {from}: {error}")))?;
            self.hear(from, to);
            self.deliver(to, Event::Peer(Box::new(frame)))?;
        }
        self.ask_admin()?;
        for _ in 0..2 {
            if self.is_ready && self.chance.chance(300) {
                self.ask()?;
            }
        }
        for at in 0..self.members.len() {
            for _ in 0..8 {
                if self.members[at].is_frozen() || !self.members[at].machine.is_alive() {
                    break;
                }
                let actions = if self.chance.chance(300) {
                    self.members[at].flush(self.mono_us)
                } else {
                    self.members[at].work(self.mono_us)?
                };
                self.act(at, actions)?;
            }
        }
        self.read_metadata()?;
        self.watch()?;
        self.oracle.judge()
    }

    /// Notes a frame, which its receiver has heard, or will hear when it goes on.
    fn hear(&mut self, from: usize, to: usize) {
        if self.members[to].is_frozen() {
            self.spots[to].waiting.push_back(from);
        } else if self.members[to].machine.is_alive() {
            self.spots[to].heard_us.insert(from, self.mono_us);
        }
    }

    /// Takes what a machine says of the metadata now.
    fn look(&mut self, at: usize) {
        let Some(metadata) = self.members[at].machine.standings().into_iter().next() else {
            return;
        };
        let (others, committed) = ((self.members.len() - 1) / 2, self.committed());
        let spot = &mut self.spots[at];
        spot.applied = metadata.committed;
        if spot.begun != metadata.begun {
            (spot.begun, spot.imaged) = (metadata.begun, committed);
        }
        spot.leads = metadata.serves.then_some(metadata.term);
        spot.follows = metadata.leader.and_then(|peer| usize::try_from(peer).ok()?.checked_sub(1));
        let mut heard: Vec<u64> = spot.heard_us.values().copied().collect();
        heard.sort_unstable();
        let heard_us = match (spot.leads, spot.follows) {
            (Some(_), _) => heard.len().checked_sub(others).map(|last| heard[last]),
            (None, Some(leader)) => spot.heard_us.get(&leader).copied(),
            (None, None) => None,
        };
        spot.sure_us = spot.sure_us.max(heard_us);
    }

    /// Reads what is committed of the metadata's log, from any machine that can show it.
    fn read_metadata(&mut self) -> Result<(), Failure> {
        for at in 0..self.members.len() {
            let Some(metadata) = self.members[at].machine.standings().into_iter().next() else {
                continue;
            };
            self.metadata = Some(metadata.replica);
            self.oracle.note_committed(self.mono_us, metadata.committed);
            let known = self.oracle.known();
            if metadata.committed <= known || metadata.log_start > known {
                continue;
            }
            let read = self.members[at].read(metadata.replica, known, metadata.committed);
            let Ok(bytes) = read else { continue };
            let ends = batches(bytes.clone()).map_while(Result::ok);
            let ends = ends.map(|it| it.header().end_offset());
            let end = ends.filter(|end| *end <= metadata.committed).max();
            if let Some(end) = end {
                self.oracle.read(bytes, end)?;
            }
        }
        Ok(())
    }

    /// Checks that machines in touch have applied what was committed a second ago.
    fn watch(&mut self) -> Result<(), Failure> {
        let leads = |at: &usize| self.spots[*at].leads.map(|term| (term, *at));
        let runs =
            |at: &usize| self.members[*at].machine.is_alive() && !self.members[*at].is_frozen();
        let leader = (0..self.members.len()).filter_map(|at| leads(&at)).max().map(|it| it.1);
        let leader = leader.filter(runs);
        for at in 0..self.members.len() {
            let with = leader.filter(|leader| {
                let is_cut = self.network.is_cut(at, *leader) || self.network.is_cut(*leader, at);
                runs(&at) && (at == *leader || !is_cut)
            });
            let touch = &mut self.spots[at].touch;
            *touch = match (with, *touch) {
                (Some(leader), Some((before, since_us))) if leader == before => {
                    Some((leader, since_us))
                }
                (with, _) => with.map(|leader| (leader, self.mono_us)),
            };
            if let Some((_, since_us)) = *touch
                && self.mono_us >= since_us + LAG_US
            {
                let (due, applied) =
                    (self.oracle.committed_at(self.mono_us - LAG_US), self.spots[at].applied);
                if applied < due {
                    return wrong(format!(
                        "machine {at} is in touch with {leader:?} since {since_us}, and at \
                         {} has applied {applied} of {due}",
                        self.mono_us
                    ));
                }
            }
        }
        Ok(())
    }

    /// Returns the end of what any machine ever had applied.
    fn committed(&self) -> i64 {
        let applied = self.spots.iter().map(|it| it.applied).max().unwrap_or(0);
        applied.max(self.oracle.committed_at(self.mono_us))
    }

    fn is_in_touch(&self, at: usize) -> bool {
        self.spots[at].touch.is_some_and(|(_, since_us)| self.mono_us >= since_us + LAG_US)
    }

    /// Returns the state of a machine, and one that every machine in touch has.
    fn came(&self, at: usize) -> (i64, i64) {
        let everywhere = self.oracle.committed_at(self.mono_us.saturating_sub(LAG_US));
        let own = self.spots[at].applied;
        (own, everywhere.min(own))
    }

    fn connection(&mut self) -> ConnectionId {
        self.connections += 1;
        ConnectionId(self.connections)
    }

    fn any_alive(&mut self) -> Option<usize> {
        let alive = |at: &usize| self.members[*at].machine.is_alive();
        let all: Vec<usize> = (0..self.members.len()).filter(alive).collect();
        if all.is_empty() { None } else { Some(*self.chance.pick(&all)) }
    }

    fn ask_admin(&mut self) -> Result<(), Failure> {
        if let Some(envoy) = self.envoy.take_if(|it| self.mono_us > it.since_us + 12_000_000) {
            self.admin.asked = None;
            self.deliver(envoy.client.at, Event::Disconnected(envoy.client.connection))?;
        }
        if self.envoy.is_some() {
            return Ok(());
        }
        let Some(at) = self.any_alive() else { return Ok(()) };
        let Some((request, version)) = self.admin.ask(self.mono_us) else { return Ok(()) };
        tell(|| format!("{}: the administrator asks machine {at}: {request:?}", self.mono_us));
        let connection = ConnectionId(self.connection().0 + OF_ADMIN);
        let mut client = Client::new(None, HOSTS[0], false, false);
        client.connect(connection, at);
        let (sequence, context, request) = client.framed(&request, version);
        let came = self.came(at).1;
        self.envoy = Some(Envoy { client, came, since_us: self.mono_us });
        self.deliver(at, Event::Request { connection, sequence, context, request })
    }

    /// Lets a client do something: come, ask, or go.
    fn ask(&mut self) -> Result<(), Failure> {
        let number = self.chance.index(self.clients.len());
        let Client { at, connection, .. } = self.clients[number];
        match self.clients[number].door.clone() {
            Door::Out => {
                let Some(at) = self.any_alive() else { return Ok(()) };
                let connection = self.connection();
                let client = &mut self.clients[number];
                client.connect(connection, at);
                let Some(user) = client.user.clone() else { return Ok(()) };
                let asked = WhoIs { user, wanted: WANTED };
                self.deliver(at, Event::WhoIs { connection, asked })
            }
            Door::Asks | Door::Knocks(_) if self.chance.chance(950) => Ok(()),
            Door::Proven(credential) => {
                let user = self.clients[number].user.clone().expect("of a user");
                self.clients[number].door = if self.members[at].is_frozen() {
                    Door::Knocks(credential.clone())
                } else {
                    Door::In(Some(credential.clone()))
                };
                let known = Known { user, credential };
                self.deliver(at, Event::Known { connection, known })?;
                self.report.logins += 1;
                self.claim_users(at);
                Ok(())
            }
            Door::In(_)
                if self.clients[number].outstanding.is_some() && self.chance.chance(990) =>
            {
                Ok(())
            }
            Door::In(_)
                if self.clients[number].outstanding.is_none() && self.chance.chance(960) =>
            {
                self.ask_as(number)
            }
            Door::Asks | Door::Knocks(_) | Door::In(_) => {
                self.clients[number].leave();
                self.deliver(at, Event::Disconnected(connection))
            }
        }
    }

    fn ask_as(&mut self, number: usize) -> Result<(), Failure> {
        let at = self.clients[number].at;
        let came = self.came(at);
        let standings = self.members[at].machine.standings();
        let leads =
            self.admin.ids.map(|id| standings.iter().any(|it| it.topic_id == id.0 && it.serves));
        let wall_ms = member::right_wall_ms(self.mono_us);
        let mut means = Means { ids: &self.admin.ids, leads, wall_ms, chance: &mut self.chance };
        let client = &mut self.clients[number];
        let (asked, (sequence, context, request)) = client.choose(&mut means);
        tell(|| format!("{}: client {number} asks machine {at}: {asked:?}", self.mono_us));
        client.outstanding = Some(Outstanding { sequence, asked, came });
        let connection = client.connection;
        self.deliver(at, Event::Request { connection, sequence, context, request })
    }

    /// States that the clients that are in on a machine are users, as far as it knows now.
    fn claim_users(&mut self, at: usize) {
        let span = (self.spots[at].applied, self.spots[at].furthest());
        for client in self.clients.iter().filter(|it| it.at == at) {
            if let (Door::In(Some(credential)), Some(user)) = (&client.door, &client.user) {
                let says = Says::IsUser(user.clone(), credential.salt.clone());
                let told = format!("machine {at} at {} keeps {user}'s connection", self.mono_us);
                self.oracle.claim(says, span, told);
            }
        }
    }

    /// Carries out the actions of a machine.
    fn act(&mut self, at: usize, actions: Vec<Action>) -> Result<(), Failure> {
        let before = self.spots[at].applied;
        self.look(at);
        let now = (before, self.spots[at].furthest());
        for action in actions {
            match action {
                Action::Reply { connection, sequence, reply } => {
                    self.on_reply(at, (connection, sequence), reply, now)?;
                }
                Action::Credential { connection, credential } => {
                    let (us, sure_us) = (self.mono_us, self.spots[at].sure_us);
                    if sure_us.is_none_or(|it| it + DOUBT_US < us) {
                        return wrong(format!(
                            "machine {at} lets in at {us}, and was sure at {sure_us:?}"
                        ));
                    }
                    let client = self.clients.iter_mut().find(|it| it.connection == connection);
                    let Some(client) = client else { continue };
                    let user = client.user.as_deref().unwrap_or_default();
                    if self.admin.knows(user, &credential.salt) {
                        client.door = Door::Proven(credential);
                    } else {
                        client.leave();
                    }
                }
                Action::Close { connection, reason } => {
                    self.on_closed(at, connection, &reason, now)?;
                }
                Action::Send { to, frame } => {
                    let bytes = frame.encode();
                    self.trace.mix_bytes(&bytes);
                    let count = i32::try_from(self.members.len()).expect("small");
                    let to = usize::try_from(count - to).expect("a node of the cluster");
                    self.network.send(self.mono_us, at, to, &bytes);
                }
                Action::Drained => {
                    self.bury(at, false);
                    return Ok(());
                }
                Action::Fatal(reason) => {
                    return wrong(format!("machine {at} gives up: {reason}"));
                }
                Action::Mend(_) => return wrong("damage where there was none"),
                Action::Nodes(_) | Action::Members(_) | Action::Targets(_) => {}
                Action::Storage(_)
                | Action::ReadLog(_)
                | Action::Look(_)
                | Action::Index(_)
                | Action::Compact(_)
                | Action::Stage(_) => unreachable!("the machine keeps them"),
            }
        }
        if before != self.spots[at].applied {
            self.claim_users(at);
        }
        Ok(())
    }

    fn on_closed(
        &mut self,
        at: usize,
        connection: ConnectionId,
        reason: &str,
        now: Span,
    ) -> Result<(), Failure> {
        tell(|| format!("{}: machine {at} closes {connection:?}: {reason}", self.mono_us));
        let is_in_touch = self.is_in_touch(at);
        let Some(client) = self.clients.iter_mut().find(|it| it.connection == connection) else {
            return Ok(());
        };
        let door = client.door.clone();
        client.leave();
        match (door, client.user.clone()) {
            (Door::In(Some(credential)) | Door::Knocks(credential), Some(user)) => {
                self.report.shut += 1;
                let told = format!("machine {at} at {} closes a connection", self.mono_us);
                let says = Says::IsNoUser(user, credential.salt.clone());
                self.oracle.claim(says, now, told);
            }
            (Door::Asks, _) if is_in_touch => {
                return wrong(format!("machine {at} is in touch, and lets nobody in: {reason}"));
            }
            (Door::Asks, _) => self.report.doubted += 1,
            _ => {}
        }
        Ok(())
    }

    fn on_reply(
        &mut self,
        at: usize,
        (connection, sequence): (ConnectionId, u64),
        reply: Reply,
        now: Span,
    ) -> Result<(), Failure> {
        let came = self.members[at].machine.answer((connection, sequence), reply);
        if self.members[at].machine.disk.is_dead() {
            return Ok(());
        }
        if let Some(envoy) = self.envoy.take_if(|it| it.client.connection == connection) {
            return self.on_admin(at, &envoy, came);
        }
        let (us, committed) = (self.mono_us, self.committed());
        let Some(number) = self.clients.iter().position(|it| it.connection == connection) else {
            return Ok(());
        };
        let client = &mut self.clients[number];
        let Some(Outstanding { asked, came: begun, .. }) =
            client.outstanding.take_if(|it| it.sequence == sequence)
        else {
            return Ok(());
        };
        tell(|| format!("{us}: machine {at} answers client {number} in {now:?}: {asked:?}"));
        if let (Door::In(Some(credential)), Some(user)) = (&client.door, &client.user) {
            let told = format!("machine {at} at {us} answers {user}, {asked:?}");
            let says = Says::IsUser(user.clone(), credential.salt.clone());
            self.oracle.claim(says, now, told);
        }
        let is_free = client.user.is_none();
        for (says, looked) in client.on_came(&asked, sequence, came, &self.admin.ids)? {
            let span = match looked {
                Looked::Last => now,
                Looked::Since => (begun.0, now.1),
                Looked::Elsewhere => (begun.1, committed.max(now.1)),
            };
            if is_free {
                if matches!(says, Says::MayNot(..)) {
                    return wrong(format!(
                        "machine {at} at {us} denies the administrator {asked:?}"
                    ));
                }
                continue;
            }
            self.oracle.claim(
                says,
                span,
                format!("machine {at} at {us} to client {number}, {asked:?}"),
            );
        }
        Ok(())
    }

    fn on_admin(&mut self, at: usize, envoy: &Envoy, came: Came) -> Result<(), Failure> {
        let Came::Response(response) = came else { return wrong("no answer to the administrator") };
        tell(|| {
            format!("{}: the administrator hears from machine {at}: {response:?}", self.mono_us)
        });
        let span = (envoy.came, self.committed());
        for says in self.admin.on_response(&response)? {
            let told = format!("machine {at} at {} to the administrator", self.mono_us);
            self.oracle.claim(says, span, told);
        }
        Ok(())
    }
}
