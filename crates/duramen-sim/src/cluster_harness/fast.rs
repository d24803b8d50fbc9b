//! # Room card: fast writers
//!
//! Purpose:    send batches to all members of a stretch at once, and judge every answer when a machine gives it.
//! Owns:       writers with a connection to each machine; the batches that are complete.
//! Interface:  [`Writers::ask`], [`Writers::on_reply`], [`Writers::check_leader`], [`Writers::check`].
//! Invariants: a batch is complete once all members of a stretch have answered, the leader with *appended*, and all
//!             earlier batches of its writer are complete. From then on it is in the log, once, behind those that were
//!             complete before it was sent.
//! Never:      other topics than its own.
//! Tests:      scenario `fast`.
//! Start at:   [`Writers::ask`].

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use duramen_broker::session::{Session, SessionStep};
use duramen_broker::{ConnectionId, Event};
use duramen_protocol::batch::BatchHeader;
use duramen_protocol::compression::Codec;
use duramen_protocol::messages::append_fast::{AppendFastPartition, AppendFastTopic, AppendedFast};
use duramen_protocol::messages::create_topics::{CreatableTopic, CreatableTopicConfig};
use duramen_protocol::messages::describe_fast::DescribeFastTopic;
use duramen_protocol::messages::list_offsets::{ListOffsetsPartition, ListOffsetsTopic};
use duramen_protocol::messages::metadata::MetadataRequestTopic;
use duramen_protocol::messages::{
    AppendFastRequest, CreateTopicsRequest, DescribeFastRequest, InitProducerIdRequest,
    ListOffsetsRequest, MetadataRequest,
};
use duramen_protocol::wire::Uuid;
use duramen_protocol::{ErrorCode, Request, RequestHeader, Response, encode_request};

use super::World;
use super::member::{self, Log, Member};
use crate::batch::Records;
use crate::failure::{Failure, wrong};
use crate::prng::Prng;
use crate::trace::tell;

const TOPIC: &str = "figs";
/// Batches of each writer.
const BATCHES: i32 = 60;
/// Batches of a writer that may be under way at once.
const AHEAD: u64 = 3;
/// The first connection of these writers: others have smaller numbers.
const FIRST_CONNECTION: u64 = 1 << 40;

const HELD: i8 = 1;
const APPENDED: i8 = 2;
const COMMITTED: i8 = 3;

/// Term and index of a stretch.
type Stretch = (i64, i64);
/// Writer and sequence of a batch.
type Batch = (usize, i32);

/// A request on its way.
#[derive(Clone, Debug)]
enum Asked {
    Topic,
    Id,
    Producer,
    Stretch,
    Fast {
        sequence: i32,
        stretch: Stretch,
    },
    Sure {
        sequence: i32,
    },
    /// The end of the log, asked for when so many batches of each writer were complete.
    End {
        before: Vec<i32>,
    },
}

struct Link {
    writer: usize,
    at: usize,
    session: Session,
    asked: BTreeMap<u64, Asked>,
}

#[derive(Debug, Default)]
struct Writer {
    producer: Option<(i64, i16)>,
    /// Bytes of the batches that were sent.
    sent: Vec<Bytes>,
    /// For each of them, the number of batches of each writer that were complete before.
    before: Vec<Vec<i32>>,
    /// Number of batches that are complete: the first ones.
    complete: i32,
    /// Terms of the stretches in which they were, or of the answers that told of their commit.
    terms: Vec<i64>,
}

/// See the room card.
pub(super) struct Writers {
    all: Vec<Writer>,
    topic: Option<Uuid>,
    links: BTreeMap<ConnectionId, Link>,
    /// Nodes that are members of a stretch, the leader first.
    members: BTreeMap<Stretch, Vec<i32>>,
    answers: BTreeMap<(Stretch, Batch), BTreeSet<i32>>,
    counted: BTreeSet<(Stretch, Batch)>,
    /// Batches that are known to be committed, with the last term in which that was heard.
    told: BTreeMap<Batch, i64>,
    /// Ends of the log that machines told of, each with the number of batches of each writer that were complete before.
    ends: Vec<(Vec<i32>, i64)>,
    /// Offsets of committed batches.
    places: BTreeMap<Batch, i64>,
    checked: BTreeSet<u64>,
    connections: u64,
    chance: Prng,
    is_last: bool,
    /// Batches that were complete by the answers of members alone.
    pub(super) fast: u64,
    pub(super) stretches: u64,
}

impl Writers {
    pub(super) fn new(seed: u64) -> Self {
        let mut chance = Prng::new(seed, "fast writers");
        let count = chance.between(2, 4);
        Self {
            all: (0..count).map(|_| Writer::default()).collect(),
            topic: None,
            links: BTreeMap::new(),
            members: BTreeMap::new(),
            answers: BTreeMap::new(),
            counted: BTreeSet::new(),
            told: BTreeMap::new(),
            ends: Vec::new(),
            places: BTreeMap::new(),
            checked: BTreeSet::new(),
            connections: FIRST_CONNECTION,
            chance,
            is_last: false,
            fast: 0,
            stretches: 0,
        }
    }

    pub(super) fn owns(&self, connection: ConnectionId) -> bool {
        self.links.contains_key(&connection)
    }

    /// Forgets the connections to a machine that died.
    pub(super) fn on_died(&mut self, at: usize) {
        self.links.retain(|_, link| link.at != at);
    }

    pub(super) fn on_closed(&mut self, connection: ConnectionId) {
        self.links.remove(&connection);
    }

    pub(super) fn begin_last_phase(&mut self) {
        self.is_last = true;
    }

    /// Tells whether all that was sent is complete.
    pub(super) fn is_done(&self) -> bool {
        self.all.iter().all(|it| it.sent.len() == usize::try_from(it.complete).expect("small"))
    }

    /// Returns requests of a writer, each for a machine.
    pub(super) fn ask(&mut self, members: &[Member], wall_ms: i64) -> Vec<(usize, Event)> {
        let writer = self.chance.index(self.all.len());
        let anyone = self.chance.index(members.len());
        let mut out = Vec::new();
        let Some(topic) = self.topic else {
            let (request, version, asked) =
                if self.chance.chance(500) { create() } else { metadata() };
            out.extend(self.send(members, (writer, anyone), (request, version), asked));
            return out;
        };
        if self.all[writer].producer.is_none() {
            let request = InitProducerIdRequest::default().into();
            out.extend(self.send(members, (writer, anyone), (request, 4), Asked::Producer));
            return out;
        }
        if !self.is_last && (self.members.is_empty() || self.chance.chance(150)) {
            let topics = vec![DescribeFastTopic { topic_id: topic, partitions: vec![0] }];
            let open = self.chance.chance(600);
            let request = DescribeFastRequest { open, topics }.into();
            out.extend(self.send(members, (writer, anyone), (request, 0), Asked::Stretch));
            return out;
        }
        if self.chance.chance(60) {
            let before = self.all.iter().map(|it| it.complete).collect();
            let asked = Asked::End { before };
            out.extend(self.send(members, (writer, anyone), (end(), 7), asked));
            return out;
        }
        let known: Vec<Stretch> = self.members.keys().copied().collect();
        let is_fast = !self.is_last && !known.is_empty() && self.chance.chance(800);
        let ahead = if is_fast { self.chance.below(AHEAD) } else { 0 };
        let Some(sequence) = self.batch(writer, ahead, wall_ms) else { return out };
        let records = self.all[writer].sent[usize::try_from(sequence).expect("small")].clone();
        if !is_fast {
            let request = append(topic, 1, (-1, -1), records).into();
            let asked = Asked::Sure { sequence };
            out.extend(self.send(members, (writer, anyone), (request, 0), asked));
            return out;
        }
        let last = *known.last().expect("there is one");
        let stretch = if self.chance.chance(100) { *self.chance.pick(&known) } else { last };
        let nodes = self.members[&stretch].clone();
        for (at, member) in members.iter().enumerate() {
            let is_member = nodes.contains(&member.broker_id());
            if is_member && self.chance.chance(850) || self.chance.chance(50) {
                let request = append(topic, 0, stretch, records.clone()).into();
                let asked = Asked::Fast { sequence, stretch };
                out.extend(self.send(members, (writer, at), (request, 0), asked));
            }
        }
        out
    }

    /// Returns the sequence of a batch that is not complete, a new one or one that was sent.
    fn batch(&mut self, writer: usize, ahead: u64, wall_ms: i64) -> Option<i32> {
        let complete: Vec<i32> = self.all.iter().map(|it| it.complete).collect();
        let it = &mut self.all[writer];
        let next = i32::try_from(it.sent.len()).expect("small");
        let sequence = (it.complete + i32::try_from(ahead).expect("small")).min(next);
        if sequence < next {
            return Some(sequence);
        }
        if self.is_last || next >= BATCHES {
            return None;
        }
        let (id, epoch) = it.producer?;
        let records = Records {
            timestamps: vec![wall_ms],
            value: format!("{writer}/{sequence}").into_bytes(),
            producer: (id, epoch, sequence),
            log_append_time: false,
            codec: Codec::None,
        };
        it.sent.push(Bytes::from(records.encode(0, 0)));
        it.before.push(complete);
        Some(sequence)
    }

    fn send(
        &mut self,
        members: &[Member],
        (writer, at): (usize, usize),
        (request, version): (Request, i16),
        asked: Asked,
    ) -> Option<(usize, Event)> {
        if !members[at].machine.is_alive() {
            return None;
        }
        let is_it = |link: &Link| (link.writer, link.at) == (writer, at);
        let known = self.links.iter().find(|(_, link)| is_it(link)).map(|(id, _)| *id);
        let connection = known.unwrap_or_else(|| {
            self.connections += 1;
            let connection = ConnectionId(self.connections);
            let (user, listener) = ("User:ANONYMOUS".into(), "PLAINTEXT".into());
            let session = Session::new(connection, user, listener, "/127.0.0.1".into());
            let asked = BTreeMap::new();
            self.links.insert(connection, Link { writer, at, session, asked });
            connection
        });
        let link = self.links.get_mut(&connection).expect("it is there now");
        if !link.session.wants_more() {
            return None;
        }
        let header = RequestHeader {
            api_key: request.api_key().code(),
            api_version: version,
            correlation_id: 1,
            client_id: None,
        };
        let frame = encode_request(&header, &request).expect("requests here are well-formed");
        match link.session.on_frame(frame.bytes.freeze().slice(4..)) {
            SessionStep::Request { sequence, context, request } => {
                tell(|| format!("writer {writer} asks machine {at}: {asked:?}"));
                link.asked.insert(sequence, asked);
                Some((at, Event::Request { connection, sequence, context, request }))
            }
            other => panic!("a good request led to {other:?}"),
        }
    }

    /// Judges an answer of a machine, heard or not.
    pub(super) fn on_reply(
        &mut self,
        node: i32,
        (connection, sequence): (ConnectionId, u64),
        response: Response,
    ) -> Result<(), Failure> {
        let Some(link) = self.links.get_mut(&connection) else { return Ok(()) };
        let Some(asked) = link.asked.remove(&sequence) else { return wrong("a reply to nothing") };
        let writer = link.writer;
        link.session
            .on_reply(sequence, Some(response.clone()))
            .map_err(|reason| Failure::correctness(format!("a reply fails: {reason}")))?;
        match (asked, response) {
            (Asked::Topic, Response::CreateTopics(it)) if it.topics[0].error_code == 0 => {
                self.topic = Some(it.topics[0].topic_id);
            }
            (Asked::Id, Response::Metadata(it)) if it.topics[0].error_code == 0 => {
                self.topic = Some(it.topics[0].topic_id);
            }
            (Asked::Topic | Asked::Id, _) => {}
            (Asked::Producer, Response::InitProducerId(it)) => {
                if it.error_code == 0 && self.all[writer].producer.is_none() {
                    self.all[writer].producer = Some((it.producer_id, it.producer_epoch));
                }
            }
            (Asked::Stretch, Response::DescribeFast(it)) => {
                let part = &it.topics[0].partitions[0];
                self.learn((part.stretch_term, part.stretch_index), &part.members);
            }
            (Asked::Fast { sequence, stretch }, Response::AppendFast(it)) => {
                let part = &it.topics[0].partitions[0];
                self.on_said(node, (writer, sequence), Some(stretch), part)?;
            }
            (Asked::Sure { sequence }, Response::AppendFast(it)) => {
                let part = &it.topics[0].partitions[0];
                self.on_said(node, (writer, sequence), None, part)?;
            }
            (Asked::End { before }, Response::ListOffsets(it)) => {
                let part = &it.topics[0].partitions[0];
                if part.error_code == 0 {
                    tell(|| format!("node {node} says that the log ends at {}", part.offset));
                    self.ends.push((before, part.offset));
                }
            }
            (asked, other) => return wrong(format!("{other:?} to {asked:?}")),
        }
        Ok(())
    }

    fn learn(&mut self, stretch: Stretch, members: &[i32]) {
        if stretch.0 >= 0 && self.members.insert(stretch, members.to_vec()).is_none() {
            self.stretches += 1;
        }
    }

    fn on_said(
        &mut self,
        node: i32,
        batch: Batch,
        stretch: Option<Stretch>,
        part: &AppendedFast,
    ) -> Result<(), Failure> {
        tell(|| format!("node {node} says {} of {batch:?} in {stretch:?}", part.outcome));
        self.learn((part.stretch_term, part.stretch_index), &part.members);
        let code = ErrorCode::from_code(part.error_code).unwrap_or(ErrorCode::UnknownServerError);
        let lacks = [ErrorCode::OutOfOrderSequenceNumber, ErrorCode::UnknownProducerId];
        // Of a batch that is long complete a node may not know more.
        if lacks.contains(&code) && batch.1 >= self.all[batch.0].complete {
            return wrong(format!("{code}: node {node} lacks what is complete before {batch:?}"));
        }
        if let Some(stretch) = stretch {
            if code != ErrorCode::None {
                return wrong(format!("a fast append is refused for good: {code}"));
            }
            if part.outcome == HELD || part.outcome == APPENDED {
                self.answers.entry((stretch, batch)).or_default().insert(node);
            }
            if part.outcome == APPENDED {
                self.counted.insert((stretch, batch));
            }
        }
        if part.outcome == COMMITTED {
            let (term, place) = (i64::from(part.leader_epoch), part.base_offset);
            self.told.entry(batch).or_insert(term);
            if self.places.get(&batch).is_some_and(|known| *known != place) {
                return wrong(format!("{batch:?} is at {place}, and it was elsewhere"));
            }
        }
        self.note_complete();
        Ok(())
    }

    /// Clients take batches for complete, each writer's in its order.
    fn note_complete(&mut self) {
        for writer in 0..self.all.len() {
            loop {
                let batch = (writer, self.all[writer].complete);
                let has_all = |(stretch, nodes): (&Stretch, &Vec<i32>)| {
                    let answers = self.answers.get(&(*stretch, batch));
                    let is_counted = self.counted.contains(&(*stretch, batch));
                    is_counted
                        && answers.is_some_and(|it| nodes.iter().all(|node| it.contains(node)))
                };
                let told = self.told.get(&batch).copied();
                let fast = self.members.iter().find(|it| has_all(*it)).map(|(it, _)| it.0);
                let Some(term) = told.or(fast) else { break };
                tell(|| format!("{batch:?} is complete"));
                self.fast += u64::from(told.is_none());
                self.all[writer].complete += 1;
                self.all[writer].terms.push(term);
            }
        }
    }

    /// Notes a committed batch of a log.
    pub(super) fn on_committed(&mut self, log: Log, header: &BatchHeader) -> Result<(), Failure> {
        if self.topic.map(|it| (it.0, 0)) != Some(log) {
            return Ok(());
        }
        let is_of = |it: &Writer| it.producer.is_some_and(|(id, _)| id == header.producer_id);
        let Some(writer) = self.all.iter().position(is_of) else { return Ok(()) };
        let batch = (writer, header.base_sequence);
        match self.places.insert(batch, header.base_offset) {
            Some(before) if before != header.base_offset => {
                wrong(format!("{batch:?} is in the log twice: {before}, {}", header.base_offset))
            }
            _ => Ok(()),
        }
    }

    /// Checks that a leader, when it begins to serve, has all that was complete in earlier terms.
    pub(super) fn check_leader(
        &mut self,
        log: Log,
        term: u64,
        committed: i64,
    ) -> Result<(), Failure> {
        if self.topic.map(|it| (it.0, 0)) != Some(log) || !self.checked.insert(term) {
            return Ok(());
        }
        let now = i64::try_from(term).unwrap_or(i64::MAX);
        for (writer, it) in self.all.iter().enumerate() {
            for (sequence, _) in (0..).zip(&it.terms).filter(|(_, before)| **before < now) {
                let place = self.places.get(&(writer, sequence));
                if place.is_none_or(|place| *place >= committed) {
                    return wrong(format!(
                        "({writer}, {sequence}) was complete, and the leader of term {term} lacks it"
                    ));
                }
            }
        }
        Ok(())
    }

    /// Checks the log at the end.
    pub(super) fn check(&self) -> Result<(), Failure> {
        for (before, end) in &self.ends {
            for (writer, complete) in before.iter().enumerate().filter(|(_, it)| **it > 0) {
                let last = (writer, complete - 1);
                if self.places.get(&last).is_none_or(|place| place >= end) {
                    return wrong(format!(
                        "{last:?} was complete before the log was said to end at {end}"
                    ));
                }
            }
        }
        for (writer, it) in self.all.iter().enumerate() {
            for sequence in 0..it.complete {
                let batch = (writer, sequence);
                let Some(place) = self.places.get(&batch) else {
                    return wrong(format!("{batch:?} was complete, and is not in the log"));
                };
                let before = &it.before[usize::try_from(sequence).expect("small")];
                let others = before.iter().enumerate().filter(|(_, count)| **count > 0);
                let earlier = others.map(|(writer, count)| (writer, count - 1));
                let own = (sequence > 0).then(|| (writer, sequence - 1));
                for earlier in earlier.chain(own) {
                    if self.places.get(&earlier).is_none_or(|at| at >= place) {
                        return wrong(format!("{batch:?} is not behind {earlier:?}"));
                    }
                }
            }
        }
        Ok(())
    }
}

impl World {
    /// Lets a writer of fast appends ask several machines.
    pub(super) fn ask_fast(&mut self, asks: u64) -> Result<(), Failure> {
        let Some(fast) = &mut self.fast else { return Ok(()) };
        if !self.chance.chance(asks) {
            return Ok(());
        }
        for (at, event) in fast.ask(&self.members, member::right_wall_ms(self.mono_us)) {
            self.deliver(at, vec![event])?;
        }
        Ok(())
    }
}

/// Tells whether the machines that run hold no batches.
pub(super) fn hold_nothing(members: &[Member]) -> bool {
    let mut nodes = members.iter().filter_map(|it| it.machine.node());
    nodes.all(|node| node.metrics().held_bytes == 0)
}

fn end() -> Request {
    let partition = ListOffsetsPartition { timestamp: -1, ..ListOffsetsPartition::default() };
    let topic = ListOffsetsTopic { name: TOPIC.to_owned(), partitions: vec![partition] };
    ListOffsetsRequest { replica_id: -1, topics: vec![topic], ..ListOffsetsRequest::default() }
        .into()
}

fn append(topic_id: Uuid, wait: i8, stretch: Stretch, records: Bytes) -> AppendFastRequest {
    let (stretch_term, stretch_index) = stretch;
    let records = Some(records);
    let part = AppendFastPartition { stretch_term, stretch_index, records, ..Default::default() };
    let topics = [AppendFastTopic { topic_id, partitions: [part].into() }].into();
    AppendFastRequest { wait, timeout_ms: 1_000, topics }
}

fn create() -> (Request, i16, Asked) {
    let configs = [
        ("fast.append.enable", "true"),
        ("retention.ms", "-1"),
        ("message.timestamp.after.max.ms", "9223372036854775807"),
        ("message.timestamp.before.max.ms", "9223372036854775807"),
    ];
    let config = |(name, value): (&str, &str)| CreatableTopicConfig {
        name: name.to_owned(),
        value: Some(value.to_owned()),
    };
    let topic = CreatableTopic {
        name: TOPIC.to_owned(),
        num_partitions: 1,
        replication_factor: 3,
        configs: configs.into_iter().map(config).collect(),
        ..CreatableTopic::default()
    };
    let topics = vec![topic];
    let request = CreateTopicsRequest { topics, timeout_ms: 5_000, ..Default::default() };
    (request.into(), 7, Asked::Topic)
}

fn metadata() -> (Request, i16, Asked) {
    let topic = MetadataRequestTopic { name: Some(TOPIC.to_owned()), ..Default::default() };
    let topics = Some(vec![topic]);
    let request =
        MetadataRequest { topics, allow_auto_topic_creation: false, ..Default::default() };
    (request.into(), 12, Asked::Id)
}
