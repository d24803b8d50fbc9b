//! # Room card: clients
//!
//! Purpose:    ask what clients ask, one request at a time each, and hand the oracle what came.
//! Owns:       sessions, retries, the choice of requests.
//! Interface:  [`Clients::ask`], [`Clients::on_reply`].
//! Invariants: an idempotent batch is sent again, byte for byte, until its fate is known; any other
//!             is sent once.
//! Never:      what is right: see `oracle`.
//! Tests:      with the harness.
//! Start at:   [`Clients::ask`].

use std::collections::BTreeMap;

use bytes::Bytes;
use duramen_broker::ConnectionId;
use duramen_broker::session::{Prepared, RequestContext, Session, SessionStep};
use duramen_protocol::batch::batches;
use duramen_protocol::messages::create_topics::CreatableTopic;
use duramen_protocol::messages::delete_records::{DeleteRecordsPartition, DeleteRecordsTopic};
use duramen_protocol::messages::fetch::{FetchPartition, FetchTopic, PartitionData};
use duramen_protocol::messages::list_offsets::{ListOffsetsPartition, ListOffsetsTopic};
use duramen_protocol::messages::produce::{PartitionProduceData, TopicProduceData};
use duramen_protocol::messages::{
    CreateTopicsRequest, DeleteRecordsRequest, DeleteTopicsRequest, FetchRequest,
    InitProducerIdRequest, ListOffsetsRequest, ProduceRequest,
};
use duramen_protocol::records::Records as View;
use duramen_protocol::wire::RecordData;
use duramen_protocol::{
    ApiKey, ErrorCode, Request, RequestHeader, Response, decode_response, encode_request,
};

use super::oracle::{Oracle, Place, Standing};
use crate::batch::Records;
use crate::failure::Failure;
use crate::prng::Prng;
use crate::trace::tell;

const TOPICS: [&str; 3] = ["apples", "pears", "plums"];
const PARTITIONS: i32 = 2;
const CLIENTS: usize = 5;
/// A reader has to ask where the log starts.
const UNKNOWN_START: i64 = -1;

/// A request on its way, with what is needed to judge the answer.
#[derive(Clone, Debug)]
enum Asked {
    ProducerId,
    Produce(Produce),
    Fetch { place: Place, life: u32, offset: i64, acked_end: i64, end_seen: i64, through: bool },
    Start { place: Place, life: u32 },
    Create { name: String },
    Delete { name: String },
    Trim { place: Place, life: u32 },
}

/// A batch with where it goes.
#[derive(Clone, Debug)]
struct Produce {
    place: Place,
    life: u32,
    number: u64,
    bytes: Bytes,
    count: i32,
    idempotent: bool,
    /// It was acknowledged before, and comes once more.
    again: bool,
    /// Its sequence does not follow: it must be refused.
    gap: bool,
}

/// Reading a partition through, in the last phase.
#[derive(Clone, Debug, Default)]
struct Through {
    start: Option<i64>,
    at: i64,
    read: BTreeMap<i64, (u64, i64)>,
    done: bool,
}

struct Client {
    connection: ConnectionId,
    session: Session,
    outstanding: Option<(ApiKey, i16, Asked)>,
    idempotent: bool,
    producer: Option<(i64, i16)>,
    /// Next sequence, by place and life.
    sequences: BTreeMap<(Place, u32), i32>,
    /// An idempotent batch whose fate is unknown.
    retry: Option<Produce>,
    /// The last batch that was acknowledged: its producer may not have heard of it.
    last: Option<Produce>,
    /// Where it reads next.
    at: BTreeMap<(Place, u32), i64>,
}

/// See the room card.
pub(super) struct Clients {
    pub(super) oracle: Oracle,
    pub(super) requests: u64,
    all: Vec<Client>,
    work: Prng,
    next_connection: u64,
    next_batch: u64,
    correlation: i32,
    last_phase: bool,
    /// The clock leaps: producers may be forgotten, and timestamps refused.
    leaps: bool,
    through: BTreeMap<Place, Through>,
}

type Question = (ConnectionId, u64, RequestContext, Box<Prepared>);

fn session(connection: u64) -> (ConnectionId, Session) {
    let connection = ConnectionId(connection);
    (connection, Session::new(connection, "User:ANONYMOUS".into(), "PLAINTEXT".into()))
}

impl Clients {
    pub(super) fn new(seed: u64, leaps: bool) -> Self {
        let mut oracle = Oracle::default();
        for name in TOPICS {
            oracle.add_topic(name);
        }
        Self {
            oracle,
            requests: 0,
            all: Vec::new(),
            work: Prng::new(seed, "clients"),
            next_connection: 0,
            next_batch: 0,
            correlation: 0,
            last_phase: false,
            leaps,
            through: BTreeMap::new(),
        }
    }

    /// New connections for all: the process has started.
    pub(super) fn connect(&mut self) {
        for at in 0..CLIENTS {
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
                    idempotent: at % 2 == 0,
                    producer: None,
                    sequences: BTreeMap::new(),
                    retry: None,
                    last: None,
                    at: BTreeMap::new(),
                });
            }
        }
    }

    /// Every outstanding request's fate is unknown.
    pub(super) fn on_crash(&mut self) {
        for client in &mut self.all {
            client.forget();
        }
    }

    /// One client loses its connection.
    pub(super) fn disconnect(&mut self) -> ConnectionId {
        let at = self.work.index(self.all.len());
        self.next_connection += 1;
        let client = &mut self.all[at];
        client.forget();
        let before = client.connection;
        (client.connection, client.session) = session(self.next_connection);
        before
    }

    pub(super) fn begin_last_phase(&mut self) {
        self.last_phase = true;
        self.through.clear();
    }

    /// Whether nothing is outstanding and every topic was read through.
    pub(super) fn is_done(&self) -> bool {
        let idle = |client: &Client| client.outstanding.is_none() && client.retry.is_none();
        self.all.iter().all(idle)
            && self.oracle.topics.iter().all(|(name, topic)| {
                topic.standing == Standing::Live
                    && (0..PARTITIONS).all(|partition| {
                        let place = (name.clone(), partition);
                        self.through.get(&place).is_some_and(|through| through.done)
                    })
            })
    }

    pub(super) fn waiting(&self) -> String {
        let asked: Vec<_> =
            self.all.iter().filter_map(|client| client.outstanding.as_ref()).collect();
        let topics: Vec<_> = self.oracle.topics.iter().map(|(n, t)| (n, t.standing)).collect();
        let mut text = format!("{topics:?} {asked:?}");
        text.truncate(1500);
        text
    }

    /// A request from a client that has none outstanding.
    pub(super) fn ask(&mut self, wall_ms: i64) -> Option<Question> {
        let at = self.work.index(self.all.len());
        if self.all[at].outstanding.is_some() {
            return None;
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
        client.outstanding = Some((api, version, asked));
        match client.session.on_frame(frame.bytes.freeze().slice(4..)) {
            SessionStep::Request { sequence, context, request } => {
                Some((client.connection, sequence, context, request))
            }
            other => panic!("a good request led to {other:?}"),
        }
    }

    fn choose(&mut self, at: usize, wall_ms: i64) -> Option<(Asked, Request, i16)> {
        if at == 0
            && let Some(question) = self.govern()
        {
            return Some(question);
        }
        let gone = |it: &Produce, oracle: &Oracle| oracle.topics[&it.place.0].life != it.life;
        let client = &mut self.all[at];
        if client.retry.as_ref().is_some_and(|retry| gone(retry, &self.oracle)) {
            // Its topic is gone: the client gives up, and begins with new sequences.
            client.retry = None;
            client.producer = None;
        }
        if let Some(produce) = client.retry.clone() {
            self.oracle.on_sent(produce.number, &produce.place, i64::from(produce.count), false);
            return Some(produce_request(produce));
        }
        if let Some(last) = client.last.clone()
            && self.oracle.is_live(&last.place.0, last.life)
            && self.work.chance(80)
        {
            let again = Produce { again: true, ..last };
            self.oracle.on_sent(again.number, &again.place, i64::from(again.count), false);
            return Some(produce_request(again));
        }
        if client.idempotent && client.producer.is_none() {
            return Some((Asked::ProducerId, InitProducerIdRequest::default().into(), 4));
        }
        let live: Vec<String> = self
            .oracle
            .topics
            .iter()
            .filter(|(_, topic)| topic.standing == Standing::Live)
            .map(|(name, _)| name.clone())
            .collect();
        if live.is_empty() {
            return None;
        }
        let name = self.work.pick(&live).clone();
        let partition = i32::try_from(self.work.below(2)).expect("small");
        let place = (name, partition);
        if self.last_phase {
            return self.read_through(place);
        }
        match self.work.below(20) {
            0..=10 => Some(self.produce(at, place, wall_ms)),
            11 if self.work.chance(300) => Some(self.trim(place)),
            _ => Some(self.fetch(at, place)),
        }
    }

    /// Client 0 makes and deletes topics.
    fn govern(&mut self) -> Option<(Asked, Request, i16)> {
        let name = (*self.work.pick(&TOPICS)).to_owned();
        let standing = self.oracle.topics[&name].standing;
        match standing {
            Standing::Absent | Standing::Creating => Some(self.create(name)),
            Standing::Deleting => Some(self.delete(name)),
            Standing::Live if !self.last_phase && self.work.chance(25) => Some(self.delete(name)),
            Standing::Live => None,
        }
    }

    fn create(&mut self, name: String) -> (Asked, Request, i16) {
        self.oracle.on_create_sent(&name);
        let topic = CreatableTopic {
            name: name.clone(),
            num_partitions: PARTITIONS,
            replication_factor: 1,
            ..CreatableTopic::default()
        };
        let request =
            CreateTopicsRequest { topics: vec![topic], timeout_ms: 10_000, validate_only: false };
        (Asked::Create { name }, request.into(), 7)
    }

    fn delete(&mut self, name: String) -> (Asked, Request, i16) {
        self.oracle.on_delete_sent(&name);
        let request = DeleteTopicsRequest {
            topic_names: vec![name.clone()],
            timeout_ms: 10_000,
            ..DeleteTopicsRequest::default()
        };
        (Asked::Delete { name }, request.into(), 5)
    }

    fn life(&self, place: &Place) -> u32 {
        self.oracle.topics[&place.0].life
    }

    fn produce(&mut self, at: usize, place: Place, wall_ms: i64) -> (Asked, Request, i16) {
        let life = self.life(&place);
        self.next_batch += 1;
        let number = self.next_batch;
        let count = self.work.between(1, 4);
        let size = if self.work.chance(100) { 7000 } else { self.work.between(8, 200) };
        let mut value = number.to_be_bytes().to_vec();
        value.resize(usize::try_from(size).expect("small"), 7);
        let client = &self.all[at];
        let mut sequence = client.sequences.get(&(place.clone(), life)).copied().unwrap_or(0);
        let producer = client.producer.filter(|_| client.idempotent);
        let gap = producer.is_some() && self.work.chance(30);
        if gap {
            sequence += i32::try_from(self.work.between(1, 100)).expect("small");
        }
        let records = Records {
            timestamps: (0..count).map(|n| wall_ms + i64::try_from(n).expect("small")).collect(),
            value,
            producer: producer.map_or((-1, -1, -1), |(id, epoch)| (id, epoch, sequence)),
            log_append_time: false,
        };
        let produce = Produce {
            bytes: Bytes::from(records.encode(0, 0)),
            count: i32::try_from(count).expect("small"),
            idempotent: producer.is_some(),
            again: false,
            gap,
            place,
            life,
            number,
        };
        self.oracle.on_sent(number, &produce.place, i64::from(produce.count), gap);
        produce_request(produce)
    }

    fn trim(&mut self, place: Place) -> (Asked, Request, i16) {
        let life = self.life(&place);
        let known = self.oracle.known(&place);
        let end = known.end_seen;
        let span = u64::try_from(end - known.trim_max.min(end)).expect("it is positive");
        let offset = known.trim_max.min(end) + i64::try_from(self.work.below(span + 1)).expect("");
        let known = self.oracle.known(&place);
        known.trim_max = known.trim_max.max(offset);
        let partitions = vec![DeleteRecordsPartition { partition_index: place.1, offset }];
        let topics = vec![DeleteRecordsTopic { name: place.0.clone(), partitions }];
        let request = DeleteRecordsRequest { topics, timeout_ms: 10_000 };
        (Asked::Trim { place, life }, request.into(), 2)
    }

    fn fetch(&mut self, at: usize, place: Place) -> (Asked, Request, i16) {
        let life = self.life(&place);
        let known = self.oracle.known(&place);
        let (acked_end, end_seen, trimmed) = (known.acked_end(), known.end_seen, known.trim_max);
        let key = (place.clone(), life);
        let mut offset = self.all[at].at.get(&key).copied().unwrap_or(0);
        if offset == UNKNOWN_START {
            return start_request(place, life);
        }
        if self.work.chance(100) {
            let from = u64::try_from(end_seen.max(1)).expect("it is positive");
            offset = i64::try_from(self.work.below(from)).expect("small");
        }
        let offset = offset.max(trimmed.min(end_seen));
        let wait_ms = if self.work.chance(500) { 500 } else { 0 };
        let bytes = i32::try_from(self.work.between(1, 20_000)).expect("small");
        let request = fetch_request(&place, offset, wait_ms, bytes);
        let asked = Asked::Fetch { place, life, offset, acked_end, end_seen, through: false };
        (asked, request, 12)
    }

    fn read_through(&mut self, place: Place) -> Option<(Asked, Request, i16)> {
        let life = self.life(&place);
        let through = self.through.entry(place.clone()).or_default();
        if through.done {
            return None;
        }
        if through.start.is_none() {
            return Some(start_request(place, life));
        }
        let offset = through.at;
        let known = self.oracle.known(&place);
        let (acked_end, end_seen) = (known.acked_end(), known.end_seen);
        let request = fetch_request(&place, offset, 0, 50_000);
        let asked = Asked::Fetch { place, life, offset, acked_end, end_seen, through: true };
        Some((asked, request, 12))
    }

    pub(super) fn on_reply(
        &mut self,
        connection: ConnectionId,
        sequence: u64,
        response: Option<Response>,
    ) -> Result<(), Failure> {
        let at = self.all.iter().position(|client| client.connection == connection);
        let Some(at) = at else { return Ok(()) }; // its connection is gone
        let frames = self.all[at]
            .session
            .on_reply(sequence, response)
            .map_err(|reason| Failure::correctness(format!("a reply fails: {reason}")))?;
        for outgoing in frames {
            let frame = outgoing.frame.bytes.freeze().slice(4..);
            let Some((api, version, asked)) = self.all[at].outstanding.take() else {
                return Err(Failure::correctness("a reply to nothing"));
            };
            let (_, response) = decode_response(frame, api, version)
                .map_err(|error| Failure::correctness(format!("an unreadable reply: {error}")))?;
            self.on_response(at, asked, response)?;
        }
        Ok(())
    }

    fn on_response(&mut self, at: usize, asked: Asked, came: Response) -> Result<(), Failure> {
        match (asked, came) {
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
                tell(|| format!("  produced {} {}", part.error_code, part.base_offset));
                self.on_produced(at, produce, part.error_code, part.base_offset)
            }
            (Asked::Fetch { place, life, offset, acked_end, end_seen, through }, came) => {
                let Response::Fetch(mut it) = came else { return unexpected(&came) };
                if !self.oracle.is_live(&place.0, life) || it.error_code != 0 {
                    return Ok(());
                }
                let part = it.responses.remove(0).partitions.remove(0);
                let next =
                    self.on_fetched(&place, &part, (offset, acked_end, end_seen), through)?;
                if let Some(next) = next {
                    self.all[at].at.insert((place, life), next);
                }
                Ok(())
            }
            (Asked::Start { place, life }, Response::ListOffsets(it)) => {
                let part = &it.topics[0].partitions[0];
                if part.error_code == 0 && self.oracle.is_live(&place.0, life) {
                    self.all[at].at.insert((place.clone(), life), part.offset);
                    let through = self.through.entry(place).or_default();
                    through.start = Some(part.offset);
                    through.at = part.offset;
                }
                Ok(())
            }
            (Asked::Create { name }, Response::CreateTopics(it)) => {
                let code = it.topics[0].error_code;
                tell(|| format!("  created {name}: {code}"));
                if code == 0 || code == ErrorCode::TopicAlreadyExists.code() {
                    self.oracle.on_created(&name, code == 0);
                }
                Ok(())
            }
            (Asked::Delete { name }, Response::DeleteTopics(it)) => {
                let code = it.responses[0].error_code;
                tell(|| format!("  deleted {name}: {code}"));
                if code == 0 || code == ErrorCode::UnknownTopicOrPartition.code() {
                    self.oracle.on_deleted(&name);
                    self.through.retain(|(topic, _), _| *topic != name);
                }
                Ok(())
            }
            (Asked::Trim { place, life }, Response::DeleteRecords(it)) => {
                let part = &it.topics[0].partitions[0];
                if self.oracle.is_live(&place.0, life)
                    && part.error_code == 0
                    && !self.oracle.may_start_at(&place, part.low_watermark)
                {
                    let what = format!("{place:?}: trimmed to {}", part.low_watermark);
                    return Err(Failure::correctness(what));
                }
                Ok(())
            }
            (_, came) => unexpected(&came),
        }
    }

    fn on_produced(
        &mut self,
        at: usize,
        produce: Produce,
        code: i16,
        base: i64,
    ) -> Result<(), Failure> {
        let live = self.oracle.is_live(&produce.place.0, produce.life);
        let client = &mut self.all[at];
        client.retry = None;
        if live && produce.gap {
            let number = produce.number;
            return match ErrorCode::from_code(code) {
                Some(ErrorCode::None) => self.oracle.on_acked(number, base),
                Some(ErrorCode::UnknownTopicOrPartition) => {
                    self.oracle.on_unknown(&produce.place.0)
                }
                _ => Ok(()),
            };
        }
        if !live {
            client.last = None;
            client.producer = None; // a new life of the topic begins with new sequences
            return Ok(());
        }
        let key = (produce.place.clone(), produce.life);
        match ErrorCode::from_code(code) {
            Some(ErrorCode::None) => {
                let number = produce.number;
                if produce.idempotent && !produce.again {
                    *client.sequences.entry(key).or_default() += produce.count;
                    client.last = Some(produce);
                }
                self.oracle.on_acked(number, base)
            }
            Some(ErrorCode::UnknownTopicOrPartition) => {
                client.last = None;
                client.producer = None;
                self.oracle.on_unknown(&produce.place.0)
            }
            // The producer was forgotten, or the clock has leapt: whether its last batch is there,
            // nobody can say, and it will not be sent again.
            Some(ErrorCode::UnknownProducerId | ErrorCode::InvalidTimestamp) if self.leaps => {
                client.last = None;
                client.producer = None;
                Ok(())
            }
            Some(
                code @ (ErrorCode::UnknownProducerId
                | ErrorCode::InvalidTimestamp
                | ErrorCode::OutOfOrderSequenceNumber
                | ErrorCode::DuplicateSequenceNumber
                | ErrorCode::CorruptMessage
                | ErrorCode::InvalidProducerEpoch),
            ) => {
                let (place, number) = (&produce.place, produce.number);
                Err(Failure::correctness(format!("P4: batch {number} for {place:?}: {code:?}")))
            }
            _ => {
                if produce.idempotent {
                    client.retry = Some(produce);
                }
                Ok(())
            }
        }
    }

    /// Returns where the reader goes on.
    fn on_fetched(
        &mut self,
        place: &Place,
        part: &PartitionData,
        (offset, acked_end, end_seen): (i64, i64, i64),
        through: bool,
    ) -> Result<Option<i64>, Failure> {
        let wrong = |what: String| Err(Failure::correctness(format!("{place:?}: {what}")));
        tell(|| format!("  fetched {} up to {}", part.error_code, part.high_watermark));
        let trimmed = self.oracle.known(place).trim_max;
        match ErrorCode::from_code(part.error_code) {
            Some(ErrorCode::None) => {}
            Some(ErrorCode::OffsetOutOfRange) if offset < trimmed => {
                self.through.remove(place); // a trim came late: begin again
                return Ok(Some(trimmed));
            }
            Some(ErrorCode::OffsetOutOfRange) if self.oracle.trims_by_time => {
                self.through.remove(place);
                return Ok(Some(UNKNOWN_START));
            }
            Some(ErrorCode::UnknownTopicOrPartition) => {
                self.oracle.on_unknown(&place.0)?;
                return Ok(None);
            }
            Some(code) if code.is_retriable() && code != ErrorCode::KafkaStorageError => {
                return Ok(None);
            }
            _ => return wrong(format!("fetch at {offset} fails with {}", part.error_code)),
        }
        if part.high_watermark < acked_end.max(end_seen) {
            let before = acked_end.max(end_seen);
            return wrong(format!("P2: the end was {before}, and is {}", part.high_watermark));
        }
        if !self.oracle.may_start_at(place, part.log_start_offset) {
            return wrong(format!("starts at {}, {trimmed} was asked", part.log_start_offset));
        }
        let known = self.oracle.known(place);
        known.end_seen = known.end_seen.max(part.high_watermark);
        let bytes = match &part.records {
            Some(RecordData::Bytes(bytes)) => bytes.clone(),
            _ => Bytes::new(),
        };
        if bytes.is_empty() && offset < acked_end {
            return wrong(format!("P2: nothing at {offset}, {acked_end} is acknowledged"));
        }
        let next = self.on_batches(place, bytes, offset, part.high_watermark, through)?;
        if through {
            let done = self.through.entry(place.clone()).or_default();
            done.at = next;
            if next >= part.high_watermark && !done.done {
                done.done = true;
                let (start, read) = (done.start.unwrap_or(0), std::mem::take(&mut done.read));
                self.oracle.on_read_through(place, start, next, &read)?;
            }
        }
        Ok(Some(next))
    }

    fn on_batches(
        &mut self,
        place: &Place,
        bytes: Bytes,
        offset: i64,
        end: i64,
        through: bool,
    ) -> Result<i64, Failure> {
        let wrong = |what: String| Err(Failure::correctness(format!("{place:?}: {what}")));
        let mut next = offset;
        let mut first = true;
        for batch in batches(bytes).map_while(Result::ok) {
            let header = *batch.header();
            let follows = header.base_offset == next || (first && header.base_offset < next);
            if !follows || !batch.crc_matches() || header.end_offset() <= next {
                return wrong(format!("P3: {} follows {next}", header.base_offset));
            }
            if header.end_offset() > end {
                return wrong(format!("P2: {} is shown past {end}", header.end_offset()));
            }
            first = false;
            next = header.end_offset();
            let Ok(records) = View::of(&batch, 1 << 20) else {
                return wrong("records cannot be read".to_owned());
            };
            for (record, at) in (&records).into_iter().zip(header.base_offset..) {
                let value = record.ok().and_then(|record| record.value.map(<[u8]>::to_vec));
                let number = value.as_ref().and_then(|value| value.first_chunk::<8>());
                let Some(number) = number else {
                    return wrong(format!("a record at {at} has no number"));
                };
                let shown = (u64::from_be_bytes(*number), at - header.base_offset);
                self.oracle.on_shown(place, at, shown)?;
                if through {
                    self.through.entry(place.clone()).or_default().read.insert(at, shown);
                }
            }
        }
        Ok(next)
    }
}

impl Client {
    /// The reply to what is outstanding will never come.
    fn forget(&mut self) {
        if let Some((_, _, Asked::Produce(produce))) = self.outstanding.take()
            && produce.idempotent
            && !produce.gap
        {
            self.retry = Some(produce);
        }
    }
}

fn unexpected<T>(came: &Response) -> Result<T, Failure> {
    Err(Failure::correctness(format!("a reply of another kind: {:?}", came.api_key())))
}

fn produce_request(produce: Produce) -> (Asked, Request, i16) {
    let partition_data =
        vec![PartitionProduceData { index: produce.place.1, records: Some(produce.bytes.clone()) }];
    let topic = TopicProduceData {
        name: produce.place.0.clone(),
        partition_data,
        ..TopicProduceData::default()
    };
    let request = ProduceRequest {
        acks: -1,
        timeout_ms: 10_000,
        topic_data: vec![topic],
        ..ProduceRequest::default()
    };
    (Asked::Produce(produce), request.into(), 9)
}

/// Where does the log start?
fn start_request(place: Place, life: u32) -> (Asked, Request, i16) {
    let partition = ListOffsetsPartition {
        partition_index: place.1,
        timestamp: -2,
        ..ListOffsetsPartition::default()
    };
    let topic = ListOffsetsTopic { name: place.0.clone(), partitions: vec![partition] };
    let request =
        ListOffsetsRequest { topics: vec![topic], replica_id: -1, ..ListOffsetsRequest::default() };
    (Asked::Start { place, life }, request.into(), 7)
}

fn fetch_request(place: &Place, fetch_offset: i64, max_wait_ms: i32, bytes: i32) -> Request {
    let partition = FetchPartition {
        partition: place.1,
        fetch_offset,
        partition_max_bytes: bytes,
        ..FetchPartition::default()
    };
    let topic =
        FetchTopic { topic: place.0.clone(), partitions: vec![partition], ..FetchTopic::default() };
    let request =
        FetchRequest { max_wait_ms, min_bytes: 1, topics: vec![topic], ..FetchRequest::default() };
    request.into()
}

fn brief(asked: &Asked) -> String {
    match asked {
        Asked::Produce(it) => {
            let kind = if it.idempotent { "idempotent " } else { "" };
            format!("{kind}produce {} of {} to {:?}", it.number, it.count, it.place)
        }
        other => format!("{other:?}"),
    }
}
