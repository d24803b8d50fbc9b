//! Consumers of one share group, producers that write the records they consume, and the records that they may be
//! given.
//!
//! A consumer is several clients. One asks the group's coordinator which partitions to fetch. The others, one for each
//! partition, go to its leader and have a share session there. They decide on some of the records that they hold, in
//! any order, late or never. They fall silent, leave, and begin anew as somebody else.
//!
//! The group's settings are made beforehand: the time and number of deliveries, the order of keys, and the topic of
//! dead letters. Statements of nodes are judged when they are made, also where nobody hears them (`deliveries`).
//!
//! Some groups read with isolation level `read_committed`. Then producers write in transactions as well (`writing`).
//! Nobody is given anything of a transaction that is open or aborted, and everything of one that is committed.
//!
//! In the end consumers accept all that they are given, until the group starts where the log ends. Then each record
//! was accepted, or rejected, or given out as often as it may be. In the latter cases it is a dead letter, if there
//! are any.

use std::collections::BTreeMap;

use bytes::Bytes;
use duramen_broker::ConnectionId;
use duramen_protocol::batch::batches;
use duramen_protocol::messages::{MetadataResponse, ShareFetchResponse};
use duramen_protocol::records::Records;
use duramen_protocol::wire::{RecordData, Uuid};
use duramen_protocol::{ErrorCode, Response};

mod consuming;
mod deliveries;
mod keeping;
mod writing;

use consuming::Consumer;
use deliveries::{Deliveries, Given, Numbered, Place, Rules};
use keeping::Keeper;
use writing::{WRITERS, Writer};

use super::answers::{Answered, Sight, code_of, found, unexpected};
use super::requests;
use crate::failure::{Failure, wrong};
use crate::prng::Prng;

const TOPIC: &str = "honey";
const LETTERS: &str = "wax";
const PARTITIONS: i32 = 2;
const GROUP: &str = "bears";
/// The first of its clients; the consumers' come after it.
const KEEPER: usize = 0;
/// Clients of a consumer: the one that asks the coordinator, and one for each partition.
const CLIENTS_EACH: usize = 3;

const GAP: i8 = 0;
const ACCEPT: i8 = 1;
const RELEASE: i8 = 2;
const REJECT: i8 = 3;
const RENEW: i8 = 4;

/// A decision on its way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Said {
    place: Place,
    kind: i8,
    /// Delivery count that its consumer was told.
    count: i16,
}

/// Request of a consumer to the leader of a partition.
#[derive(Clone, Debug)]
pub(super) struct Demand {
    member: String,
    said: Vec<Said>,
    number: u64,
    sent_us: u64,
    is_final: bool,
}

/// A request on its way.
#[derive(Clone, Debug)]
pub(super) enum Question {
    Create(&'static str),
    Set,
    Overview,
    Find,
    Write,
    Trim,
    Start(i32),
    Begin(i32),
    Read(&'static str, i32),
    Heartbeat(String),
    Fetch(Demand),
    Decide(Demand),
    Writing(writing::Question),
}

pub(super) type Asking = requests::Asking<Question>;

/// Owner of a client. Of a consumer's clients, 0 asks the coordinator, the others are the partitions'.
enum Whose {
    Keeper,
    Consumer(usize, usize),
    Writer(usize),
}

/// Node to which each client is connected, and the node that it wants.
#[derive(Debug, Default)]
struct Places {
    at: Vec<Option<i32>>,
    aiming: Vec<bool>,
    aims: Vec<(usize, i32)>,
}

/// See above.
#[derive(Debug, Default)]
pub(super) struct ShareGroup {
    keeper: Keeper,
    consumers: Vec<Consumer>,
    /// Producers of a group with isolation level `read_committed`. Their clients come after the consumers'.
    writers: Vec<Writer>,
    deliveries: Deliveries,
    places: Places,
    /// Requests of connections that are gone: they may be answered all the same.
    lost: BTreeMap<ConnectionId, Question>,
    requests: u64,
    topic_id: Option<Uuid>,
    last_phase: bool,
}

impl Places {
    /// Asks a node, if the client is connected to it; else it has to be.
    fn to(&mut self, client: usize, node: i32, asking: Asking) -> Option<Asking> {
        if self.at[client] == Some(node) {
            return Some(asking);
        }
        self.aim(client, node);
        None
    }

    fn aim(&mut self, client: usize, node: i32) {
        self.aiming[client] = true;
        self.aims.push((client, node));
    }
}

impl ShareGroup {
    /// Makes a share group in every eleventh seed, and in every seventeenth one with isolation level `read_committed`.
    pub(super) fn of(seed: u64) -> Option<Self> {
        let is_committed = seed % 17 == 14;
        if seed % 11 != 5 && !is_committed {
            return None;
        }
        let mut shape = Prng::new(seed, "share groups");
        let rules = Rules {
            by_key: shape.chance(500),
            deliveries_max: *shape.pick(&[2, 3, 4]),
            lock_us: *shape.pick(&[1_000_000, 1_000_000, 2_000_000]),
            has_dead_letters: shape.chance(500),
            starts_at_earliest: shape.chance(700),
            is_committed,
        };
        let count = usize::try_from(shape.between(2, 4)).expect("few");
        let writers = if is_committed { WRITERS } else { 0 };
        let clients = 1 + count * CLIENTS_EACH + writers;
        Some(Self {
            keeper: Keeper::new(shape.chance(300)),
            consumers: (0..count).map(Consumer::new).collect(),
            writers: (0..writers).map(Writer::new).collect(),
            deliveries: Deliveries::new(rules),
            places: Places {
                at: vec![None; clients],
                aiming: vec![false; clients],
                aims: Vec::new(),
            },
            ..Self::default()
        })
    }

    pub(super) fn len(&self) -> usize {
        self.places.at.len()
    }

    pub(super) fn begin_last_phase(&mut self) {
        self.last_phase = true;
        self.keeper.forget();
        self.consumers.iter_mut().for_each(Consumer::wake);
    }

    /// Tells whether the group is done with all records.
    pub(super) fn is_done(&self) -> bool {
        self.keeper.is_done
    }

    /// Returns the numbers of records given out, of decisions that were answered, and of dead letters.
    pub(super) fn totals(&self) -> (u64, u64, u64) {
        (self.deliveries.delivered, self.deliveries.decided, self.deliveries.letters())
    }

    /// Returns the numbers of transactions' batches that `read_committed` clients are shown, and that they pass over.
    pub(super) fn written(&self) -> (u64, u64) {
        self.deliveries.fates.totals()
    }

    pub(super) fn take_aims(&mut self) -> Vec<(usize, i32)> {
        std::mem::take(&mut self.places.aims)
    }

    /// Describes in brief the clients that wait, and the answers they wait for.
    pub(super) fn told(&self) -> String {
        format!("{:?} {:?}", self.keeper, self.consumers)
    }

    /// Tells whether a client has reason to stay where it is: its session ends when it goes.
    pub(super) fn is_settled(&self, client: usize) -> bool {
        client != KEEPER
            && client < self.first_writer()
            && !(client - 1).is_multiple_of(CLIENTS_EACH)
            && self.places.at[client].is_some()
    }

    /// Notes that a client lost its connection, or went elsewhere, with something asked or not.
    pub(super) fn on_moved(
        &mut self,
        client: usize,
        before: ConnectionId,
        asked: Option<&Question>,
    ) {
        if let Some(question) = asked {
            self.lost.insert(before, question.clone());
        }
        self.places.at[client] = None;
        let Whose::Consumer(consumer, part) = self.whose(client) else { return };
        let by_itself = self.places.aiming[client];
        let it = &mut self.consumers[consumer];
        it.on_moved(part, by_itself);
        if part > 0 {
            self.deliveries.on_gone(&it.id);
            for former in &it.former {
                self.deliveries.on_gone(former);
            }
        }
    }

    /// Notes that a client is connected to the node that it wanted.
    pub(super) fn on_arrived(&mut self, client: usize, node: i32) {
        self.places.aiming[client] = false;
        self.places.at[client] = Some(node);
    }

    pub(super) fn choose(&mut self, client: usize, work: &mut Prng, now_us: u64) -> Option<Asking> {
        if self.last_phase && self.is_done() {
            return None;
        }
        match self.whose(client) {
            Whose::Keeper => self.keep(work),
            Whose::Consumer(consumer, 0) => self.attend(consumer, work),
            Whose::Consumer(consumer, part) => self.consume(consumer, part - 1, work, now_us),
            Whose::Writer(at) => self.write_in_transaction(at, work),
        }
    }

    pub(super) fn on_response(
        &mut self,
        client: usize,
        question: Question,
        came: &Response,
    ) -> Result<(), Failure> {
        let consumer = match self.whose(client) {
            Whose::Keeper => None,
            Whose::Consumer(at, part) => Some((at, part)),
            Whose::Writer(at) => {
                let Question::Writing(question) = question else { return unexpected(came) };
                return self.on_written(at, &question, came);
            }
        };
        match (question, came) {
            (Question::Find, Response::FindCoordinator(it)) => {
                let node = found(it);
                match consumer {
                    None => self.keeper.coordinator = node,
                    Some((at, _)) => self.consumers[at].coordinator = node,
                }
            }
            (Question::Overview, Response::Metadata(it)) => {
                self.on_overview(consumer.map(|(at, _)| at), it);
            }
            (Question::Heartbeat(id), Response::ShareGroupHeartbeat(it)) => {
                let (at, _) = consumer.expect("the keeper has no heart");
                self.consumers[at].on_heartbeat(&id, it, self.topic_id)?;
            }
            (Question::Fetch(demand), Response::ShareFetch(it)) => {
                let (at, part) = consumer.expect("the keeper fetches nothing");
                self.consumers[at].on_fetched(part - 1, &demand, it)?;
            }
            (Question::Decide(demand), Response::ShareAcknowledge(it)) => {
                let (at, part) = consumer.expect("the keeper decides on nothing");
                self.consumers[at].on_decided(part - 1, &demand, it)?;
            }
            (question, came) => self.on_kept(question, came)?,
        }
        Ok(())
    }

    fn first_writer(&self) -> usize {
        1 + self.consumers.len() * CLIENTS_EACH
    }

    fn whose(&self, client: usize) -> Whose {
        if let Some(at) = client.checked_sub(self.first_writer()) {
            return Whose::Writer(at);
        }
        match client.checked_sub(1) {
            None => Whose::Keeper,
            Some(at) => Whose::Consumer(at / CLIENTS_EACH, at % CLIENTS_EACH),
        }
    }

    fn on_overview(&mut self, consumer: Option<usize>, it: &MetadataResponse) {
        let leaders = |name: &str| -> BTreeMap<i32, i32> {
            let topic = it.topics.iter().find(|it| it.name.as_deref() == Some(name));
            let all = topic.iter().flat_map(|it| &it.partitions).filter(|it| it.leader_id >= 0);
            all.map(|it| (it.partition_index, it.leader_id)).collect()
        };
        let topic = it.topics.iter().find(|it| it.name.as_deref() == Some(TOPIC));
        if let Some(topic) = topic.filter(|it| it.error_code == 0) {
            self.topic_id = Some(topic.topic_id);
        }
        match consumer {
            Some(at) => self.consumers[at].leaders = leaders(TOPIC),
            None => {
                self.keeper.leaders = [(TOPIC, leaders(TOPIC)), (LETTERS, leaders(LETTERS))].into();
            }
        }
    }
}

/// Statements of nodes.
impl ShareGroup {
    /// Judges an answer that leaves a node, even if nobody hears it.
    pub(super) fn witness(
        &mut self,
        asked: Option<&Question>,
        connection: ConnectionId,
        answered: &Answered<'_>,
        sight: &impl Fn(Uuid, i32) -> Option<Sight>,
    ) -> Result<(), Failure> {
        let lost = self.lost.remove(&connection);
        let (question, is_gone) = match (asked, lost) {
            (Some(question), _) => (question.clone(), false),
            (_, Some(question)) => (question, true),
            _ => return Ok(()),
        };
        match (question, answered.response) {
            (Question::Fetch(demand), Response::ShareFetch(it)) => {
                let codes = it.responses.iter().flat_map(|topic| {
                    let part = |part: &duramen_protocol::messages::share_fetch::PartitionData| {
                        (part.partition_index, part.acknowledge_error_code)
                    };
                    topic.partitions.iter().map(part)
                });
                self.witness_decisions(&demand, it.error_code, &codes.collect(), answered, sight)?;
                self.witness_fetch(&demand, it, answered, is_gone, sight)
            }
            (Question::Decide(demand), Response::ShareAcknowledge(it)) => {
                let parts = it.responses.iter().flat_map(|topic| &topic.partitions);
                let codes = parts.map(|part| (part.partition_index, part.error_code)).collect();
                self.witness_decisions(&demand, it.error_code, &codes, answered, sight)
            }
            _ => Ok(()),
        }
    }

    fn witness_decisions(
        &mut self,
        demand: &Demand,
        error: i16,
        codes: &BTreeMap<i32, i16>,
        answered: &Answered<'_>,
        sight: &impl Fn(Uuid, i32) -> Option<Sight>,
    ) -> Result<(), Failure> {
        let Some(topic_id) = self.topic_id else { return Ok(()) };
        let told = |partition: i32| {
            if error != 0 {
                return Some((false, None));
            }
            match code_of(*codes.get(&partition)?) {
                ErrorCode::None => Some((true, sight(topic_id, partition).map(|it| it.term))),
                ErrorCode::InvalidRecordState | ErrorCode::InvalidRequest => Some((false, None)),
                _ => None,
            }
        };
        let said = (&demand.said[..], demand.number, demand.sent_us);
        self.deliveries.on_answered(&demand.member, said, told, answered.now_us)
    }

    fn witness_fetch(
        &mut self,
        demand: &Demand,
        it: &ShareFetchResponse,
        answered: &Answered<'_>,
        is_gone: bool,
        sight: &impl Fn(Uuid, i32) -> Option<Sight>,
    ) -> Result<(), Failure> {
        for topic in &it.responses {
            for part in &topic.partitions {
                let RecordData::Bytes(bytes) = &part.records else { continue };
                for (offset, content) in numbered(bytes)? {
                    let place = (part.partition_index, offset);
                    self.deliveries.on_content(place, content)?;
                }
                for run in &part.acquired_records {
                    let all = run.first_offset..=run.last_offset;
                    let read = |offset| self.deliveries.content((part.partition_index, offset));
                    if let Some(offset) = all.clone().find(|offset| read(*offset).is_none()) {
                        return wrong(format!("record {offset} is given out without its bytes"));
                    }
                }
            }
        }
        for topic in answered.given.iter().flat_map(|it| &it.responses) {
            for part in &topic.partitions {
                let partition = part.partition_index;
                for run in &part.acquired_records {
                    let (first, last) = (run.first_offset, run.last_offset);
                    let Some(sight) = sight(topic.topic_id, partition) else {
                        return wrong(format!("who does not lead {partition} gives out {first}"));
                    };
                    if last >= sight.committed {
                        let committed = sight.committed;
                        let what = format!("{last} of {partition} is given out");
                        return wrong(format!("{what}, {committed} is committed"));
                    }
                    let given = Given { partition, first, last, count: run.delivery_count };
                    let (member, now_us) = (&demand.member, answered.now_us);
                    self.deliveries.on_given(sight.term, member, given, now_us, is_gone)?;
                }
            }
        }
        Ok(())
    }
}

/// Returns the records in these bytes, by their offsets, with the content that each carries.
fn numbered(bytes: &Bytes) -> Result<Vec<(i64, Numbered)>, Failure> {
    let mut all = Vec::new();
    let all_batches = batches(bytes.clone()).map_while(Result::ok);
    for batch in all_batches.filter(|batch| !batch.header().attributes.is_control()) {
        let Ok(records) = Records::of(&batch, 1 << 20) else {
            return wrong(format!("{TOPIC}: records cannot be read"));
        };
        for record in &records {
            let Ok(record) = record else { return wrong(format!("{TOPIC}: a torn record")) };
            let offset = records.offset(&record);
            let Some(content) = keeping::content_of(&record) else {
                return wrong(format!("{TOPIC}: record {offset} is not what was written"));
            };
            all.push((offset, content));
        }
    }
    Ok(all)
}
