//! # Room card: clients
//!
//! Purpose:    ask what clients ask, one request at a time each, and hand the oracle what came.
//! Owns:       sessions, retries, the choice of requests.
//! Interface:  [`Clients::ask`], [`Clients::on_reply`].
//! Invariants: an idempotent batch is sent again, byte for byte, until its fate is known; any other
//!             is sent once.
//! Never:      what is right: see `oracle`.
//! Tests:      with the harness.
//! Start at:   [`Clients::ask`]; `reading` for fetches, `requests` for messages.

use std::collections::BTreeMap;

use bytes::Bytes;
use duramen_broker::ConnectionId;
use duramen_broker::session::{Prepared, RequestContext, Session, SessionStep};
use duramen_protocol::compression::Codec;
use duramen_protocol::messages::InitProducerIdRequest;
use duramen_protocol::messages::metadata::MetadataResponseTopic;
use duramen_protocol::wire::Uuid;
use duramen_protocol::{
    ApiKey, ErrorCode, RequestHeader, Response, decode_response, encode_request,
};
use duramen_storage::op::Identity;

mod altering;
mod answers;
mod committing;
mod consumer_group;
mod crowds;
mod governing;
pub(super) mod keyed;
mod leasing;
mod native;
mod passing;
mod queueing;
mod reading;
mod removing;
mod requests;
mod share_group;
mod sharing;
mod transacting;
mod trimming;

use altering::Operator;
pub(crate) use answers::{Answered as Witnessed, Sight};
use answers::{expect_one_of, unexpected};
use committing::Committer;
use crowds::Crowds;
use keyed::KEYED;
use native::Natives;
use reading::{Fetch, FetchSession, Through};
use removing::Remover;
use requests::{Asking, Target};

use super::oracle::{Oracle, Place, Standing};
use crate::batch::Records;
use crate::failure::{Failure, wrong};
use crate::machine::Came;
use crate::prng::Prng;
use crate::report::Report;
use crate::trace::tell;

const TOPICS: [&str; 3] = ["apples", "pears", "plums"];
const PARTITIONS: i32 = 2;
/// Besides members of a group, if there are some: these come after them.
const CLIENTS: usize = 6;
/// The one of them that commits offsets, and does nothing else.
const COMMITTER: usize = CLIENTS - 1;
/// The one of them that changes settings, where somebody does.
const OPERATOR: usize = 1;
/// The clients' time when a run begins.
const SINCE_MS: i64 = 1_700_000_000_000;
/// Batches of a producer that a node remembers.
const REMEMBERED: i32 = 5;

const READ_CODES: [ErrorCode; 3] =
    [ErrorCode::None, ErrorCode::UnknownTopicOrPartition, ErrorCode::NotLeaderOrFollower];
/// Request on its way, with the facts needed to judge the answer.
#[derive(Clone, Debug)]
enum Asked {
    ProducerId,
    /// A topic's id.
    Metadata {
        name: String,
        life: u32,
    },
    Produce(Produce),
    Fetch(Fetch),
    Start {
        place: Place,
        life: u32,
    },
    /// Request for the end of a log; the answer is not less than this.
    End {
        place: Place,
        life: u32,
        least: i64,
    },
    Create {
        name: String,
        life: u32,
    },
    Delete {
        name: String,
    },
    Trim {
        place: Place,
        life: u32,
        offset: i64,
    },
    Move,
    Alter(altering::Question),
    Remove(removing::Question),
    Groups(committing::Question),
    Crowd(crowds::Question),
    Native(native::Question),
}

/// A batch with where it goes.
#[derive(Clone, Debug)]
struct Produce {
    target: Target,
    life: u32,
    number: u64,
    bytes: Bytes,
    count: i32,
    acks: i16,
    version: i16,
    idempotent: bool,
    /// True if the batch was acknowledged before, and comes once more.
    again: bool,
    /// True if the node must refuse the batch: its sequence does not follow, or its topic is gone.
    void: bool,
    /// State of the disk, as the node knew it when the batch was sent.
    disk: Disk,
}

impl Produce {
    fn place(&self) -> &Place {
        &self.target.0
    }
}

/// State of the disk as the node was told, and the number of such messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Disk {
    is_full: bool,
    changes: u64,
}

struct Client {
    connection: ConnectionId,
    session: Session,
    /// The request on its way, with its API and version, if it is Kafka's.
    outstanding: Option<(Option<(ApiKey, i16)>, Asked)>,
    /// A question to the native API that gets no answer any more.
    lost: Option<native::Question>,
    idempotent: bool,
    producer: Option<(i64, i16)>,
    /// Next sequence, by place and life.
    sequences: BTreeMap<(Place, u32), i32>,
    /// An idempotent batch whose fate is unknown.
    retry: Option<Produce>,
    /// The last batch that was acknowledged: its producer may not have heard of it.
    last: Option<Produce>,
    /// Offset that the client reads next.
    at: BTreeMap<(Place, u32), i64>,
    /// Its fetch session, if it uses one.
    fetches: FetchSession,
    in_sessions: bool,
}

/// See the room card.
#[expect(clippy::struct_excessive_bools, reason = "independent facts")]
pub(crate) struct Clients {
    pub(crate) oracle: Oracle,
    pub(crate) requests: u64,
    /// Logs that were compacted so far.
    pub(crate) compactions: u64,
    all: Vec<Client>,
    committer: Committer,
    crowds: Crowds,
    /// Clients of the native API, if there are some: these come last.
    natives: Option<Natives>,
    work: Prng,
    next_connection: u64,
    next_batch: u64,
    correlation: i32,
    last_phase: bool,
    /// Clocks leap: timestamps may be refused.
    pub(crate) leaps: bool,
    through: BTreeMap<Place, Through>,
    disk: Disk,
    /// Counts starts of the process.
    starts: u64,
    /// True if there are several nodes: each may be behind the others, and a leader may not know yet that it is none.
    many: bool,
    /// True if disks rot: a node refuses damaged data until it is repaired.
    rots: bool,
    /// Disks of several nodes fill up.
    pub(crate) fills: bool,
    /// Number of nodes, numbered from 1; below, the chance that a client wants a partition moved, in a thousand
    /// questions.
    nodes: i32,
    /// Smallest number of nodes to which a partition is moved.
    replicas_min: i32,
    moves: u64,
    /// Chance in a thousand that client 0 deletes a topic.
    deletes: u64,
    /// Client that takes a node out, if one does.
    remover: Option<Remover>,
    /// Client that changes settings, if one does.
    operator: Option<Operator>,
    /// True if logs are compacted to their ends.
    to_the_end: bool,
}

type Question = (ConnectionId, u64, RequestContext, Box<Prepared>);

fn session(connection: u64) -> (ConnectionId, Session) {
    let connection = ConnectionId(connection);
    (
        connection,
        Session::new(connection, "User:ANONYMOUS".into(), "PLAINTEXT".into(), "/127.0.0.1".into()),
    )
}

impl Clients {
    pub(crate) fn new(seed: u64, leaps: bool) -> Self {
        let mut oracle = Oracle::default();
        oracle.has_keyed = Prng::new(seed, "keyed").chance(500);
        for name in TOPICS {
            oracle.add_topic(name);
        }
        Self {
            oracle,
            requests: 0,
            compactions: 0,
            all: Vec::new(),
            committer: Committer::default(),
            crowds: Crowds::default(),
            natives: Natives::of(seed),
            work: Prng::new(seed, "clients"),
            next_connection: 0,
            next_batch: 0,
            correlation: 0,
            last_phase: false,
            leaps,
            through: BTreeMap::new(),
            disk: Disk::default(),
            starts: 0,
            many: false,
            rots: false,
            fills: false,
            nodes: 1,
            replicas_min: 1,
            moves: 0,
            deletes: 25,
            remover: None,
            operator: None,
            to_the_end: false,
        }
    }

    /// Makes clients of several nodes. They trust nothing less than a majority: no `acks=1`. Where they delete topics,
    /// they go by ids, and know no topic without one. To a node that is behind, a name may mean another topic.
    pub(crate) fn of_many(seed: u64, nodes: i32, replicas_min: i32) -> Self {
        let mut clients = Self::new(seed, false);
        clients.many = true;
        clients.nodes = nodes;
        clients.replicas_min = replicas_min;
        clients.moves = *Prng::new(seed, "moves").pick(&[0, 10, 40]);
        clients.deletes = *Prng::new(seed, "deletes").pick(&[0, 0, 0, 60, 300]);
        clients.oracle.many = true;
        clients.oracle.has_keyed = keyed::is_in(seed);
        clients.crowds = Crowds::of(seed);
        clients.operator = Operator::of(seed);
        clients.to_the_end = seed % 35 == 19 && clients.operator.is_none();
        clients
    }

    /// Makes a client take a node out, some questions later.
    pub(crate) fn take_out(&mut self, node: i32, patience: u64) {
        self.remover = Some(Remover::new(node, self.nodes, patience));
    }

    /// Tells whether a node is being taken out.
    pub(crate) fn is_taking_out(&self) -> bool {
        self.remover.as_ref().is_some_and(Remover::is_at_it)
    }

    /// Tells whether the node was taken out.
    pub(crate) fn has_taken_out(&self) -> bool {
        self.remover.as_ref().is_some_and(|remover| remover.is_done)
    }

    /// Returns every connection there is.
    pub(crate) fn connections(&self) -> Vec<ConnectionId> {
        self.all.iter().map(|client| client.connection).collect()
    }

    /// Tells whether nothing is outstanding on a connection.
    pub(crate) fn is_quiet(&self, connection: ConnectionId) -> bool {
        self.all.iter().any(|it| it.connection == connection && it.outstanding.is_none())
    }

    /// Adds the clients' counts to the report.
    pub(crate) fn tell_of(&self, report: &mut Report) {
        report.requests = self.requests;
        (report.acked, report.shown) = self.oracle.totals();
        report.deleted = self.oracle.deleted();
        report.altered = self.operator.as_ref().map_or(0, |operator| operator.made);
        self.crowds.tell_of(report);
        (report.operated, report.objected) = self.operated();
        report.leased = self.worked();
    }

    /// Takes the connections that want another node, each with that node, because they were told so.
    pub(crate) fn take_aims(&mut self) -> Vec<(ConnectionId, i32)> {
        let first = self.first_native();
        let aims = self.crowds.take_aims().into_iter().map(|(at, node)| (CLIENTS + at, node));
        let natives = self.natives.as_mut().map(Natives::take_aims).unwrap_or_default();
        let natives = natives.into_iter().map(|(at, node)| (first + at, node));
        aims.chain(natives).map(|(at, node)| (self.all[at].connection, node)).collect()
    }

    /// Notes that a client is connected to the node that it wanted.
    pub(crate) fn on_arrived(&mut self, connection: ConnectionId, node: i32) {
        let at = self.all.iter().position(|client| client.connection == connection);
        if let Some(at) = at.and_then(|at| self.in_crowds(at)) {
            self.crowds.on_arrived(at, node);
        }
    }

    /// Tells whether the client of a connection has reason to stay where it is.
    pub(crate) fn is_settled(&self, connection: ConnectionId) -> bool {
        let at = self.all.iter().position(|client| client.connection == connection);
        at.and_then(|at| self.in_crowds(at)).is_some_and(|at| self.crowds.is_settled(at))
    }

    /// Returns the number that a client has in the crowds, if it belongs to one.
    fn in_crowds(&self, at: usize) -> Option<usize> {
        at.checked_sub(CLIENTS).filter(|at| *at < self.crowds.len())
    }

    /// Returns the number of clients that may ask in a moment: where there are many, more do.
    pub(crate) fn haste(&self) -> usize {
        let works = self.natives.as_ref().is_some_and(Natives::has_workers);
        self.crowds.haste().max(if works { 3 } else { 1 })
    }

    /// Judges an answer that leaves a node, even if nobody hears it.
    pub(crate) fn witness(
        &mut self,
        connection: ConnectionId,
        answered: &Witnessed<'_>,
        sight: impl Fn(Uuid, i32) -> Option<Sight>,
    ) -> Result<(), Failure> {
        let client = self.all.iter().find(|client| client.connection == connection);
        let asked = client.and_then(Client::asked_in_crowd);
        self.crowds.witness(asked, connection, answered, sight)
    }

    /// Turns a client to another node, and returns its new connection.
    pub(crate) fn leave(&mut self, connection: ConnectionId) -> Option<ConnectionId> {
        let at = self.all.iter().position(|client| client.connection == connection)?;
        self.reconnect(at);
        self.all[at].fetches = FetchSession::default();
        Some(self.all[at].connection)
    }

    /// Makes batches that stand for all that one producer sent to a partition in years, and that was trimmed since.
    /// Their sequence ends near the wrap. They are as many as the node remembers, so that it remembers none from
    /// before.
    pub(super) fn years_of(
        &mut self,
        identity: &Identity,
        end_offset: i64,
        term: u64,
        wall_ms: i64,
    ) -> Vec<Vec<u8>> {
        let Some(topic) = self.oracle.topics.get(&identity.topic) else { return Vec::new() };
        if topic.standing != Standing::Live || topic.id != Some(Uuid(identity.topic_id)) {
            return Vec::new();
        }
        let key = ((identity.topic.clone(), identity.partition), topic.life);
        let left = i32::try_from(self.work.below(8)).expect("small");
        let is_known = |client: &&mut Client| client.retry.is_none() && client.producer.is_some();
        let writer = self.all.iter_mut().find(is_known);
        let (producer, sequence) = match writer {
            Some(client) => {
                let sequence = client.sequences.entry(key.clone()).or_default();
                let before = std::mem::replace(sequence, i32::MAX - left);
                client.last = None;
                (client.producer.expect("it has one"), before)
            }
            None => ((-1, -1), 0),
        };
        let count = i32::MAX - left - sequence;
        if count < REMEMBERED {
            self.all.iter_mut().for_each(|client| client.producer = None);
            return Vec::new(); // it is there already: begin again
        }
        self.oracle.known(&key.0).trim_max = end_offset + i64::from(count);
        let mut batches = Vec::new();
        let (mut offset, mut sequence) = (end_offset, sequence);
        for at in 0..REMEMBERED {
            let count = if at == 0 { count - REMEMBERED + 1 } else { 1 };
            let first = if producer.0 < 0 { -1 } else { sequence };
            let records = Records {
                timestamps: vec![wall_ms],
                value: vec![0; 8],
                producer: (producer.0, producer.1, first),
                log_append_time: false,
                codec: Codec::None,
            };
            batches.push(records.encode_as(offset, term, count));
            offset += i64::from(count);
            sequence += count;
        }
        batches
    }

    /// Makes new connections for all: the process has started.
    pub(crate) fn connect(&mut self) {
        self.starts += 1;
        self.on_disk_full(false); // a new process has not been told yet
        for at in 0..self.first_native() + self.natives.as_ref().map_or(0, Natives::len) {
            self.next_connection += 1;
            let (connection, session) = session(self.next_connection);
            if let Some(client) = self.all.get_mut(at) {
                client.connection = connection;
                client.session = session;
            } else {
                self.all.push(Client {
                    connection,
                    session,
                    outstanding: None,
                    lost: None,
                    idempotent: at % 2 == 0,
                    producer: None,
                    sequences: BTreeMap::new(),
                    retry: None,
                    last: None,
                    at: BTreeMap::new(),
                    fetches: FetchSession::default(),
                    in_sessions: (COMMITTER - 2..COMMITTER).contains(&at),
                });
            }
        }
    }

    /// Notes that the fate of every outstanding request is unknown.
    pub(super) fn on_crash(&mut self) {
        for client in &mut self.all {
            client.forget();
        }
    }

    /// Tells the node whether its disk is full.
    pub(super) fn on_disk_full(&mut self, is_full: bool) {
        let changes = self.disk.changes + u64::from(is_full != self.disk.is_full);
        self.disk = Disk { is_full, changes };
    }

    /// Judges that the node closed a connection: in this way it tells of a failure without an answer.
    pub(crate) fn on_closed(
        &mut self,
        connection: ConnectionId,
        reason: &str,
    ) -> Result<(), Failure> {
        let at = self.all.iter().position(|client| client.connection == connection);
        let Some(at) = at else { return Ok(()) };
        let tells_no_other_way = matches!(&self.all[at].outstanding, Some((_, Asked::Produce(it))) if it.acks == 0)
            || self.in_crowds(at).is_some_and(|at| self.crowds.may_be_taken_for_another(at));
        if !tells_no_other_way {
            return wrong(format!("a good client's connection was closed: {reason}"));
        }
        tell(|| format!("closed: {reason}"));
        self.reconnect(at);
        Ok(())
    }

    /// Makes one client lose its connection.
    pub(super) fn disconnect(&mut self) -> ConnectionId {
        let at = self.work.index(self.all.len());
        self.reconnect(at)
    }

    fn reconnect(&mut self, at: usize) -> ConnectionId {
        self.next_connection += 1;
        let in_crowds = self.in_crowds(at);
        let client = &mut self.all[at];
        let before = client.connection;
        if let Some(at) = in_crowds {
            self.crowds.on_moved(at, before, client.asked_in_crowd());
        }
        client.forget();
        (client.connection, client.session) = session(self.next_connection);
        before
    }

    /// Takes care of a machine whose disk may rot.
    pub(crate) fn spare(&mut self, rots: bool) {
        self.rots = rots;
        self.natives.iter_mut().for_each(|it| it.spare_expiry(rots));
    }

    pub(crate) fn begin_last_phase(&mut self) {
        self.last_phase = true;
        self.through.clear();
        self.committer.begin_last_phase();
        self.crowds.begin_last_phase();
        self.natives.iter_mut().for_each(Natives::begin_last_phase);
    }

    /// Tells whether some use queues.
    pub(crate) fn has_queues(&self) -> bool {
        self.natives.as_ref().is_some_and(Natives::has_queues)
    }

    /// Tells whether acknowledged edits took the record at an offset of the queues' log away.
    pub(crate) fn is_gone(&self, partition: i32, offset: i64) -> bool {
        self.natives.as_ref().is_some_and(|natives| natives.is_gone(partition, offset))
    }

    /// Tells whether nothing is outstanding.
    pub(crate) fn is_idle(&self) -> bool {
        self.all.iter().all(|client| client.outstanding.is_none())
    }

    /// Tells whether nothing is outstanding or has to be sent again, and every topic was read through.
    pub(crate) fn is_done(&self) -> bool {
        self.is_idle()
            && self.committer.is_done()
            && self.crowds.is_done()
            && self.natives.as_ref().is_none_or(Natives::is_done)
            && !self.is_taking_out()
            && self.operator.as_ref().is_none_or(Operator::is_done)
            // A retry for no reason may never end.
            && self.all.iter().all(|client| client.retry.as_ref().is_none_or(|it| it.again))
            && self.oracle.topics.iter().all(|(name, topic)| {
                topic.standing == Standing::Live
                    && (topic.id.is_some() || !self.goes_by_id())
                    && (0..PARTITIONS).all(|partition| {
                        let place = (name.clone(), partition);
                        self.through.get(&place).is_some_and(|through| through.done)
                    })
            })
    }

    pub(crate) fn waiting(&self) -> String {
        let asked: Vec<_> =
            self.all.iter().filter_map(|client| client.outstanding.as_ref()).collect();
        let topics: Vec<_> = self.oracle.topics.iter().map(|(n, t)| (n, t.standing)).collect();
        let altered = self.operator.as_ref().map(Operator::told).unwrap_or_default();
        let natives = self.natives.as_ref().map(Natives::told).unwrap_or_default();
        let crowds = self.crowds.told();
        let mut text = format!("{topics:?} {altered} {natives} {crowds} {asked:?}");
        text.truncate(1500);
        text
    }

    /// Returns a request from a client that has none outstanding.
    pub(crate) fn ask(&mut self, wall_ms: i64) -> Option<Question> {
        self.oracle.now_ms = wall_ms;
        let at = self.work.index(self.all.len());
        if self.all[at].outstanding.is_some() {
            return None;
        }
        if let Some(native) = at.checked_sub(self.first_native()) {
            return self.ask_natively(at, native, wall_ms);
        }
        let (asked, request, version) = self.choose(at, wall_ms)?;
        self.correlation += 1;
        self.requests += 1;
        tell(|| format!("client {at} asks {}", brief(&asked)));
        let api = request.api_key();
        let header = RequestHeader {
            api_key: api.code(),
            api_version: version,
            correlation_id: self.correlation,
            client_id: None,
        };
        let frame = encode_request(&header, &request).expect("requests here are well-formed");
        let client = &mut self.all[at];
        client.outstanding = Some((Some((api, version)), asked));
        match client.session.on_frame(frame.bytes.freeze().slice(4..)) {
            SessionStep::Request { sequence, context, request } => {
                Some((client.connection, sequence, context, request))
            }
            other => panic!("a good request led to {other:?}"),
        }
    }

    fn choose(&mut self, at: usize, wall_ms: i64) -> Option<Asking<Asked>> {
        let asked = match at {
            0 => self.govern(),
            OPERATOR => self.alter(),
            _ => None,
        };
        if asked.is_some() {
            return asked;
        }
        if at == COMMITTER {
            let (question, request, version) =
                self.committer.choose(&mut self.work, self.last_phase);
            return Some((Asked::Groups(question), request, version));
        }
        if let Some(at) = at.checked_sub(CLIENTS) {
            let now_us = (wall_ms - SINCE_MS).unsigned_abs() * 1000;
            let (question, request, version) =
                self.crowds.choose(at, &mut self.work, (self.last_phase, now_us))?;
            return Some((Asked::Crowd(question), request, version));
        }
        let gone = |it: &Produce, oracle: &Oracle| oracle.topics[&it.place().0].life != it.life;
        let client = &mut self.all[at];
        if client.retry.as_ref().is_some_and(|retry| gone(retry, &self.oracle)) {
            // Its topic is gone: the client gives up, and begins with new sequences.
            client.retry = None;
            client.producer = None;
        }
        if let Some(produce) = client.retry.clone() {
            return Some(self.send(produce));
        }
        if self.nodes > 1 && !self.last_phase && self.work.chance(self.moves) {
            return Some(self.move_somewhere());
        }
        if let Some(last) = client.last.clone()
            && self.oracle.is_live(&last.place().0, last.life)
            && self.work.chance(80)
        {
            return Some(self.send(Produce { again: true, ..last }));
        }
        if client.idempotent && client.producer.is_none() {
            return Some((Asked::ProducerId, InitProducerIdRequest::default().into(), 4));
        }
        let live = self.oracle.live();
        if live.is_empty() {
            return None;
        }
        let mut name = self.work.pick(&live).clone();
        if self.many && self.oracle.compacts() && live.iter().any(|it| it == KEYED) {
            // Compaction needs many records.
            name = if self.work.chance(500) { KEYED.to_owned() } else { name };
        }
        let partition = i32::try_from(self.work.below(2)).expect("small");
        let place = (name, partition);
        let has_id = self.oracle.topics[&place.0].id.is_some();
        if self.last_phase && (has_id || !self.goes_by_id()) {
            return self.read_through(place);
        }
        if !has_id && (self.goes_by_id() || self.work.chance(100)) {
            let request = requests::metadata(&[&place.0]);
            let asked = Asked::Metadata { life: self.life(&place), name: place.0 };
            return Some((asked, request, 12));
        }
        match self.work.below(20) {
            0..=10 => Some(self.produce(at, place, wall_ms)),
            11 if self.work.chance(300) => Some(self.trim(place)),
            12 if self.work.chance(300) => match self.oracle.topics[&place.0].old_ids.last() {
                Some(id) => Some(self.fetch_stale(place, *id)),
                None => Some(self.fetch(at, place)),
            },
            13 if self.work.chance(300) => Some(self.end(place)),
            _ if self.all[at].in_sessions => self.fetch_in_session(at),
            _ => Some(self.fetch(at, place)),
        }
    }

    fn goes_by_id(&self) -> bool {
        self.many && self.deletes > 0
    }

    fn life(&self, place: &Place) -> u32 {
        self.oracle.topics[&place.0].life
    }

    /// Returns the topic's id, if it is known and the client cares to use it.
    fn id_to_use(&mut self, name: &str) -> Option<Uuid> {
        let id = self.oracle.id_of(name);
        if self.goes_by_id() { id } else { id.filter(|_| self.work.chance(400)) }
    }

    fn produce(&mut self, at: usize, place: Place, wall_ms: i64) -> Asking<Asked> {
        let life = self.life(&place);
        self.next_batch += 1;
        let number = self.next_batch;
        let count = self.work.between(1, 4);
        let size = if self.work.chance(100) { 7000 } else { self.work.between(8, 200) };
        let mut value = number.to_be_bytes().to_vec();
        value.resize(usize::try_from(size).expect("small"), 7);
        let client = &self.all[at];
        let key = (place.clone(), life);
        let mut sequence = client.sequence_of(&key);
        let producer = client.producer.filter(|_| client.idempotent);
        let idempotent = producer.is_some();
        let mut void = idempotent && self.work.chance(30);
        if void {
            let gap = i32::try_from(self.work.between(1, 100)).expect("small");
            void = client.sequences.contains_key(&key); // elsewhere it is not known, and may begin anywhere
            sequence = if void { advance(sequence, gap) } else { sequence };
        }
        let mut id = self.id_to_use(&place.0);
        if let Some(stale) = self.oracle.topics[&place.0].old_ids.last()
            && self.work.chance(20)
        {
            (id, void) = (Some(*stale), true);
        }
        let codec = if self.work.chance(400) { *self.work.pick(&Codec::ALL) } else { Codec::None };
        let records = Records {
            timestamps: (0..count).map(|n| wall_ms + i64::try_from(n).expect("small")).collect(),
            value,
            producer: producer.map_or((-1, -1, -1), |(id, epoch)| (id, epoch, sequence)),
            log_append_time: false,
            codec,
        };
        let bytes = if self.oracle.is_keyed(&place.0) {
            keyed::encode(number, &records.timestamps, &records.value, records.producer, codec)
        } else {
            Bytes::from(records.encode(0, 0))
        };
        let acks = match (self.many, idempotent) {
            (true, true) => &[-1][..],
            (true, false) => &[-1, -1, -1, 0],
            (false, true) => &[-1, -1, -1, 1],
            (false, false) => &[-1, -1, 1, 0],
        };
        let acks = *self.work.pick(acks);
        let versions = match id {
            Some(_) => &requests::PRODUCE_BY_ID[..],
            None => &requests::PRODUCE_BY_NAME,
        };
        let version = *self.work.pick(versions);
        self.send(Produce {
            bytes,
            count: i32::try_from(count).expect("small"),
            acks,
            version,
            idempotent,
            again: false,
            void,
            target: (place, id),
            life,
            number,
            disk: self.disk,
        })
    }

    fn send(&mut self, mut produce: Produce) -> Asking<Asked> {
        produce.disk = self.disk;
        let (place, count) = (produce.place(), i64::from(produce.count));
        let bytes = produce.bytes.len();
        self.oracle.on_sent(produce.number, (place, produce.life), (count, bytes), produce.void);
        let request = requests::produce(&produce.target, produce.acks, produce.bytes.clone());
        let version = produce.version;
        (Asked::Produce(produce), request.into(), version)
    }

    /// Judges a reply that came at a time. Much time may have passed since the last request.
    pub(crate) fn on_reply(
        &mut self,
        wall_ms: i64,
        (connection, sequence): (ConnectionId, u64),
        came: Came,
    ) -> Result<(), Failure> {
        self.oracle.now_ms = wall_ms;
        if let Came::Work(worked) = came {
            return self.on_worked((connection, sequence), &worked);
        }
        let at = self.all.iter().position(|client| client.connection == connection);
        let Some(at) = at else { return Ok(()) }; // its connection is gone
        let response = match came {
            Came::Work(_) => unreachable!("it was judged"),
            Came::Native(answered) => return self.on_answered(at, &answered),
            Came::Page(elements, next, more) => return self.on_page(at, &elements, (next, more)),
            Came::Response(it) if at >= self.first_native() => return self.on_kafkas(at, &it),
            Came::Response(response) => Some(response),
            Came::Silence => None,
        };
        let is_silent = response.is_none();
        let frames = self.all[at]
            .session
            .on_reply(sequence, response)
            .map_err(|reason| Failure::correctness(format!("a reply fails: {reason}")))?;
        if is_silent {
            return match self.all[at].outstanding.take() {
                Some((_, Asked::Produce(it))) if it.acks == 0 => {
                    self.check_disk(&it, ErrorCode::None)
                }
                other => wrong(format!("no answer to {other:?}")),
            };
        }
        for outgoing in frames {
            let frame = outgoing.frame.bytes.freeze().slice(4..);
            let Some((Some((api, version)), asked)) = self.all[at].outstanding.take() else {
                return wrong("a reply to nothing");
            };
            let (_, response) = decode_response(frame, api, version)
                .map_err(|error| Failure::correctness(format!("an unreadable reply: {error}")))?;
            self.on_response(at, asked, response)?;
        }
        Ok(())
    }

    fn on_response(&mut self, at: usize, asked: Asked, came: Response) -> Result<(), Failure> {
        match (asked, came) {
            (Asked::Crowd(question), came) => {
                self.crowds.on_response(at - CLIENTS, question, &came)
            }
            (Asked::ProducerId, Response::InitProducerId(it)) => {
                if it.error_code == 0 {
                    self.all[at].producer = Some((it.producer_id, it.producer_epoch));
                    self.all[at].sequences.clear();
                    self.all[at].last = None;
                }
                Ok(())
            }
            (Asked::Produce(produce), Response::Produce(it)) => {
                let part = &it.responses[0].partition_responses[0];
                let (number, acks) = (produce.number, produce.acks);
                tell(|| {
                    let (code, base) = (part.error_code, part.base_offset);
                    format!("  produced {number} acks={acks}: {code} {base}")
                });
                self.on_produced(at, produce, part.error_code, part.base_offset)
            }
            (Asked::Metadata { name, life }, Response::Metadata(it)) => {
                self.on_topic(&name, life, &it.topics[0])
            }
            (Asked::Fetch(fetch), Response::Fetch(it)) => self.on_fetch(at, &fetch, it),
            (asked, Response::ListOffsets(it)) => {
                let part = &it.topics[0].partitions[0];
                expect_one_of(part.error_code, &READ_CODES, "ListOffsets")?;
                if part.error_code == 0 { self.on_offset(at, asked, part.offset) } else { Ok(()) }
            }
            (Asked::Create { name, life }, Response::CreateTopics(it)) => {
                self.on_created(&name, life, &it.topics[0])
            }
            (Asked::Delete { name }, Response::DeleteTopics(it)) => {
                self.on_deleted(&name, it.responses[0].error_code)
            }
            (Asked::Remove(removing::Question::Look), Response::Metadata(it)) => {
                self.remover.as_mut().expect("it asked").on_overview(&it);
                Ok(())
            }
            (Asked::Remove(_), Response::UnregisterBroker(it)) => {
                self.remover.as_mut().expect("it asked").on_unregistered(&it)
            }
            (Asked::Alter(question), came) => self.on_altered(question, &came),
            (Asked::Move, Response::AlterPartitionReassignments(it)) => removing::on_moved(&it),
            (Asked::Trim { place, life, offset }, Response::DeleteRecords(it)) => {
                self.on_trimmed(&place, life, offset, &it)
            }
            (Asked::Groups(question), came) => self.committer.on_response(question, &came),
            (_, came) => unexpected(&came),
        }
    }

    fn on_topic(
        &mut self,
        name: &str,
        life: u32,
        topic: &MetadataResponseTopic,
    ) -> Result<(), Failure> {
        let is_live = self.oracle.is_live(name, life);
        let is_doubtful = self.goes_by_id() && is_live;
        match ErrorCode::from_code(topic.error_code) {
            Some(ErrorCode::None) if is_doubtful && self.oracle.is_gone(topic.topic_id) => {
                self.oracle.on_doubtful(name, Some(topic.topic_id));
                Ok(())
            }
            Some(ErrorCode::UnknownTopicOrPartition) if is_doubtful => {
                self.oracle.on_doubtful(name, None);
                Ok(())
            }
            Some(ErrorCode::None) => self.oracle.on_id(name, life, topic.topic_id),
            Some(ErrorCode::UnknownTopicOrPartition) if is_live => self.oracle.on_unknown(name),
            _ => Ok(()),
        }
    }

    fn on_offset(&mut self, at: usize, asked: Asked, offset: i64) -> Result<(), Failure> {
        match asked {
            Asked::Start { place, life } if self.oracle.is_live(&place.0, life) => {
                let is_of_it = self.oracle.is_named_surely(&place.0);
                if is_of_it || self.oracle.may_start_at(&place, offset) {
                    self.on_start(at, place, life, offset);
                }
                Ok(())
            }
            Asked::End { place, life, least } if self.oracle.is_live(&place.0, life) => {
                self.oracle.on_end(&place, offset, least)
            }
            Asked::Start { .. } | Asked::End { .. } => Ok(()),
            other => wrong(format!("an offset answers {other:?}")),
        }
    }

    fn on_produced(
        &mut self,
        at: usize,
        produce: Produce,
        code: i16,
        base: i64,
    ) -> Result<(), Failure> {
        let live = self.oracle.is_live(&produce.place().0, produce.life);
        self.all[at].retry = None;
        let code = ErrorCode::from_code(code).unwrap_or(ErrorCode::UnknownServerError);
        if live && produce.void {
            let is_of_gone = produce.target.1.is_some_and(|id| self.oracle.is_gone(id));
            return match code {
                // Most of the nodes that had it may not know that it is gone.
                ErrorCode::None if self.many && is_of_gone => Ok(()),
                ErrorCode::None => self.oracle.on_acked(produce.number, base),
                ErrorCode::UnknownTopicOrPartition => self.oracle.on_unknown(&produce.place().0),
                _ => Ok(()),
            };
        }
        if !live {
            let client = &mut self.all[at];
            client.last = None;
            client.producer = None; // a new life of the topic begins with new sequences
            return Ok(());
        }
        self.check_disk(&produce, code)?;
        let client = &mut self.all[at];
        let key = (produce.place().clone(), produce.life);
        match code {
            ErrorCode::None => {
                let number = produce.number;
                if produce.idempotent && !produce.again {
                    let sequence = client.sequence_of(&key);
                    client.sequences.insert(key, advance(sequence, produce.count));
                    client.last = Some(produce);
                }
                self.oracle.on_acked(number, base)
            }
            ErrorCode::UnknownTopicOrPartition | ErrorCode::UnknownTopicId => {
                client.last = None;
                client.producer = None;
                self.oracle.on_unknown(&produce.place().0)
            }
            // The clock has leapt: whether the last batch is there, nobody can say, and it will not be sent again.
            ErrorCode::InvalidTimestamp if self.leaps => {
                client.last = None;
                client.producer = None;
                Ok(())
            }
            ErrorCode::UnknownProducerId
            | ErrorCode::InvalidTimestamp
            | ErrorCode::OutOfOrderSequenceNumber
            | ErrorCode::DuplicateSequenceNumber
            | ErrorCode::CorruptMessage
            | ErrorCode::UnsupportedCompressionType
            | ErrorCode::InvalidProducerEpoch => {
                let (place, number) = (produce.place(), produce.number);
                wrong(format!("P4: batch {number} for {place:?}: {code:?}"))
            }
            _ => {
                if produce.idempotent {
                    client.retry = Some(produce);
                }
                Ok(())
            }
        }
    }

    /// Checks that a full disk refuses appends, and says why; nothing else is refused so.
    fn check_disk(&self, produce: &Produce, code: ErrorCode) -> Result<(), Failure> {
        let is_refused = code == ErrorCode::KafkaStorageError;
        let is_known =
            produce.disk == self.disk && self.oracle.is_live(&produce.place().0, produce.life);
        if is_known && code.is_none() && self.disk.is_full {
            return wrong(format!("batch {} was taken though the disk is full", produce.number));
        }
        if is_refused && produce.disk == self.disk && !self.disk.is_full && !self.fills {
            return wrong(format!("batch {} was refused though the disk has room", produce.number));
        }
        Ok(())
    }
}

impl Client {
    /// Returns the sequence of its next batch: in a topic that was made again it goes on where it was in the one
    /// before.
    fn sequence_of(&self, (place, life): &(Place, u32)) -> i32 {
        let mut lives = self.sequences.range((place.clone(), 0)..=(place.clone(), *life));
        lives.next_back().map_or(0, |(_, sequence)| *sequence)
    }

    /// Returns the outstanding request of a crowd's client.
    fn asked_in_crowd(&self) -> Option<&crowds::Question> {
        match &self.outstanding {
            Some((_, Asked::Crowd(question))) => Some(question),
            _ => None,
        }
    }

    /// Notes that the reply to the outstanding request will never come.
    fn forget(&mut self) {
        match self.outstanding.take() {
            Some((_, Asked::Produce(produce))) if produce.idempotent && !produce.void => {
                self.retry = Some(produce);
            }
            Some((_, Asked::Native(question))) => self.lost = Some(question),
            _ => {}
        }
        self.fetches.forget();
    }
}

/// Returns the sequence number after `count` more records: after the largest comes 0.
fn advance(sequence: i32, count: i32) -> i32 {
    sequence.wrapping_add(count) & i32::MAX
}

fn brief(asked: &Asked) -> String {
    match asked {
        Asked::Produce(it) => {
            let kind = if it.idempotent { "idempotent " } else { "" };
            format!("{kind}produce {} of {} to {:?}", it.number, it.count, it.place())
        }
        Asked::Crowd(question) => format!("{question:?}"),
        other => format!("{other:?}"),
    }
}
