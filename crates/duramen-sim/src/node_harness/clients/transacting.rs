//! Clients that write in transactions, and one that reads committed records.
//!
//! A producer writes some batches to two partitions, by chance also an offset of a group, each until it is
//! acknowledged. Then it commits or aborts, and asks again until it knows the outcome. When it is fenced, or time is
//! over, it gives up and begins anew. Two producers may have one transactional id: each fences the other.
//!
//! The reader is shown whole transactions: all acknowledged batches of one, in each partition, or nothing. A
//! transaction that was known to be committed is shown in the end, one known to be aborted never. A group's offset is
//! that of its producer's last transaction that was shown.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use duramen_protocol::batch::batches;
use duramen_protocol::messages::add_partitions_to_txn::AddPartitionsToTxnTopic;
use duramen_protocol::messages::txn_offset_commit::{
    TxnOffsetCommitRequestPartition, TxnOffsetCommitRequestTopic,
};
use duramen_protocol::messages::{
    AddOffsetsToTxnRequest, AddPartitionsToTxnRequest, EndTxnRequest, FetchResponse,
    InitProducerIdResponse, MetadataResponse, TxnOffsetCommitRequest,
};
use duramen_protocol::records::{BatchBuilder, NewRecord, Records};
use duramen_protocol::{ErrorCode, Request, Response};

use super::answers::{bytes_of, code_of, ends_transaction, found, is_made, unexpected};
use super::passing::Passing;
use super::requests::{self, Asking, COMMITTED, Patience, TIMELESS};
use crate::failure::{Failure, wrong};
use crate::prng::Prng;
use crate::trace::tell;

const TOPIC: &str = "ledger";
const PARTITIONS: i32 = 2;
const GROUP: &str = "bank";
const PRODUCERS: usize = 2;
/// The one that reads, after the producers.
const READER: usize = PRODUCERS;
/// All of them.
pub(super) const TRANSACTORS: usize = PRODUCERS + 1;

/// A transaction, as far as its producer knows.
#[derive(Clone, Debug, Default)]
struct Transaction {
    number: u64,
    /// Batches that are still to be written, after the one that is being written.
    left: u64,
    /// Partitions that were added.
    added: BTreeSet<i32>,
    has_group: bool,
    /// The batch that is being written, and where.
    pending: Option<(i32, Bytes)>,
    /// An offset is to be committed with it, or was.
    offset: Option<bool>,
    /// End that the producer wants: true for a commit.
    ends: Option<bool>,
}

/// Fate of a transaction.
#[derive(Clone, Debug, Default)]
struct Fate {
    /// Batches that were acknowledged, by partition.
    acked: BTreeMap<i32, u64>,
    has_offset: bool,
    producer: usize,
    /// True if the transaction was committed for certain, false if it was aborted.
    known: Option<bool>,
    /// Batches of it that were shown, and passed over, by partition.
    shown: BTreeMap<i32, u64>,
    passed: BTreeMap<i32, u64>,
}

#[derive(Debug, Default)]
struct Producer {
    name: &'static str,
    version: i16,
    is: Option<(i64, i16)>,
    sequences: BTreeMap<i32, i32>,
    transaction: Option<Transaction>,
    /// To whom it is connected, as far as it knows; what it has to find.
    coordinator: Option<i32>,
    group_coordinator: Option<i32>,
    leaders: BTreeMap<i32, i32>,
    at: Option<i32>,
}

#[derive(Debug, Default)]
struct Reader {
    next: BTreeMap<i32, i64>,
    /// Partitions that were read to their ends in the last phase.
    done: BTreeSet<i32>,
    offsets_told: bool,
    turn: i32,
}

/// A request on its way.
#[derive(Clone, Debug)]
pub(super) enum Question {
    Create,
    Overview,
    Find,
    FindGroup,
    Init,
    Add(i32),
    AddOffsets,
    Produce,
    Offset,
    End,
    Read(i32),
    Offsets,
}

/// See above.
#[derive(Debug, Default)]
pub(super) struct Transactors {
    producers: Vec<Producer>,
    reader: Reader,
    fates: BTreeMap<u64, Fate>,
    next: u64,
    is_created: bool,
    aims: Vec<(usize, i32)>,
    last_phase: bool,
}

impl Transactors {
    /// Makes transactional clients in every fifth seed.
    pub(super) fn of(seed: u64) -> Option<Self> {
        let mut shape = Prng::new(seed, "transactions");
        let is_shared = shape.chance(300);
        let mut producer = |at: usize| Producer {
            name: if is_shared { "both" } else { ["one", "two"][at] },
            version: *shape.pick(&[1, 2, 2]),
            ..Producer::default()
        };
        let producers = (0..PRODUCERS).map(&mut producer).collect();
        (seed % 5 == 3).then(|| Self { producers, ..Self::default() })
    }

    /// Tells whether both producers have one transactional id. Then the coordinator may take one for the other. After
    /// a request over a newer connection, even one that fails, it may take the other's request for one given up.
    pub(super) fn have_one_id(&self) -> bool {
        self.producers.iter().all(|it| it.name == self.producers[0].name)
    }

    pub(super) fn begin_last_phase(&mut self) {
        self.last_phase = true;
        self.reader.done.clear();
        self.reader.offsets_told = false;
    }

    /// Returns the numbers of transactions that are known to be committed, and to be aborted.
    pub(super) fn totals(&self) -> (u64, u64) {
        let count = |how| self.fates.values().filter(|it| it.known == Some(how)).count() as u64;
        (count(true), count(false))
    }

    /// Tells whether no transaction is open, and all was read and compared.
    pub(super) fn is_done(&self) -> bool {
        self.producers.iter().all(|it| it.transaction.is_none()) && self.reader.offsets_told
    }

    pub(super) fn take_aims(&mut self) -> Vec<(usize, i32)> {
        std::mem::take(&mut self.aims)
    }

    pub(super) fn choose(&mut self, at: usize, work: &mut Prng) -> Option<Asking<Question>> {
        if self.last_phase && self.is_done() {
            return None;
        }
        if at == READER { self.read() } else { self.turn(at, work) }
    }

    /// Returns the next request of a producer.
    fn turn(&mut self, at: usize, work: &mut Prng) -> Option<Asking<Question>> {
        if !self.is_created {
            // Clocks leap, so its settings set no limit of time.
            let request = requests::create(TOPIC, PARTITIONS, 3, &TIMELESS);
            return (at == 0).then_some((Question::Create, request, 7));
        }
        if let Some(asked) = self.find(at) {
            return Some(asked);
        }
        let it = &self.producers[at];
        let Some(is) = it.is else {
            return self.to(at, it.coordinator, Question::Init, requests::init(it.name, work), 4);
        };
        if it.transaction.is_none() {
            if self.last_phase || !work.chance(700) {
                return None;
            }
            self.begin(at, work);
        }
        let open = self.producers[at].transaction.as_ref().expect("it was just begun");
        if open.ends.is_none() && (open.pending.is_some() || open.left > 0) {
            return self.write(at, is, work);
        }
        if open.ends.is_none() && open.offset == Some(false) {
            return self.commit_offset(at, is);
        }
        self.end(at, is, work)
    }

    /// Returns the request for facts that a producer has to find out first.
    fn find(&self, at: usize) -> Option<Asking<Question>> {
        let it = &self.producers[at];
        if it.leaders.len() < usize::try_from(PARTITIONS).expect("few") {
            return Some((Question::Overview, requests::metadata(&[TOPIC]), 12));
        }
        let (key_type, key, question) = match (it.coordinator, it.group_coordinator) {
            (None, _) => (requests::TRANSACTION_KEY, it.name, Question::Find),
            (_, None) => (requests::GROUP_KEY, GROUP, Question::FindGroup),
            _ => return None,
        };
        Some((question, requests::find(key_type, &[key]), 4))
    }

    fn begin(&mut self, at: usize, work: &mut Prng) {
        self.next += 1;
        let offset = work.chance(400).then_some(false);
        let (number, left) = (self.next, work.between(1, 4));
        self.fates.insert(number, Fate { producer: at, ..Fate::default() });
        let open = Transaction { number, left, offset, ..Transaction::default() };
        self.producers[at].transaction = Some(open);
    }

    /// Writes a batch, its partition first where the protocol wants that.
    fn write(
        &mut self,
        at: usize,
        (producer_id, producer_epoch): (i64, i16),
        work: &mut Prng,
    ) -> Option<Asking<Question>> {
        let it = &mut self.producers[at];
        let (name, is_first) = (it.name, it.version == 1);
        let open = it.transaction.as_mut().expect("there is one");
        let (partition, batch) = open
            .pending
            .get_or_insert_with(|| {
                open.left -= 1;
                let partition = i32::try_from(work.below(2)).expect("small");
                let sequence = *it.sequences.entry(partition).or_default();
                (partition, batch_of(open.number, (producer_id, producer_epoch, sequence)))
            })
            .clone();
        if is_first && !open.added.contains(&partition) {
            let topic =
                AddPartitionsToTxnTopic { name: TOPIC.to_owned(), partitions: vec![partition] };
            let request = AddPartitionsToTxnRequest {
                v3_and_below_transactional_id: name.to_owned(),
                v3_and_below_producer_id: producer_id,
                v3_and_below_producer_epoch: producer_epoch,
                v3_and_below_topics: vec![topic],
                ..Default::default()
            };
            let coordinator = it.coordinator;
            return self.to(at, coordinator, Question::Add(partition), request.into(), 3);
        }
        let request = requests::produce_in(name, TOPIC, partition, batch);
        let leader = it.leaders.get(&partition).copied();
        self.to(at, leader, Question::Produce, request, if is_first { 11 } else { 12 })
    }

    /// Commits an offset, its group first where the protocol wants that.
    fn commit_offset(
        &mut self,
        at: usize,
        (producer_id, producer_epoch): (i64, i16),
    ) -> Option<Asking<Question>> {
        let it = &self.producers[at];
        let open = it.transaction.as_ref().expect("there is one");
        let (transactional_id, group_id) = (it.name.to_owned(), GROUP.to_owned());
        if it.version == 1 && !open.has_group {
            let request =
                AddOffsetsToTxnRequest { transactional_id, producer_id, producer_epoch, group_id };
            return self.to(at, it.coordinator, Question::AddOffsets, request.into(), 3);
        }
        let partition = TxnOffsetCommitRequestPartition {
            partition_index: i32::try_from(at).expect("few"),
            committed_offset: i64::try_from(open.number).expect("few"),
            ..Default::default()
        };
        let topic =
            TxnOffsetCommitRequestTopic { name: COMMITTED.to_owned(), partitions: vec![partition] };
        let request = TxnOffsetCommitRequest {
            transactional_id,
            group_id,
            producer_id,
            producer_epoch,
            topics: vec![topic],
            ..Default::default()
        };
        let version = if it.version == 1 { 4 } else { 5 };
        self.to(at, it.group_coordinator, Question::Offset, request.into(), version)
    }

    fn end(
        &mut self,
        at: usize,
        (producer_id, producer_epoch): (i64, i16),
        work: &mut Prng,
    ) -> Option<Asking<Question>> {
        let it = &mut self.producers[at];
        let open = it.transaction.as_mut().expect("there is one");
        let committed = *open.ends.get_or_insert_with(|| work.chance(700));
        let transactional_id = it.name.to_owned();
        let request = EndTxnRequest { transactional_id, producer_id, producer_epoch, committed };
        let version = if it.version == 1 { 4 } else { 5 };
        let coordinator = it.coordinator;
        self.to(at, coordinator, Question::End, request.into(), version)
    }

    /// Asks a node, if the client is connected to it; else it has to be.
    fn to(
        &mut self,
        at: usize,
        node: Option<i32>,
        question: Question,
        request: Request,
        version: i16,
    ) -> Option<Asking<Question>> {
        let it = &mut self.producers[at];
        if node.is_some() && it.at != node {
            it.at = node;
            self.aims.extend(node.map(|node| (at, node)));
            return None;
        }
        Some((question, request, version))
    }

    /// Notes that a client lost its connection, or went elsewhere by itself: nobody knows to which node it is
    /// connected. The node that it waited for may never come back.
    pub(super) fn on_moved(&mut self, at: usize, has_asked: bool) {
        let Some(it) = self.producers.get_mut(at) else { return };
        it.at = None;
        if has_asked {
            (it.coordinator, it.group_coordinator) = (None, None);
            it.leaders.clear();
        }
    }

    /// Notes that a client is connected to the node that it wanted.
    pub(super) fn on_arrived(&mut self, at: usize, node: i32) {
        if let Some(it) = self.producers.get_mut(at) {
            it.at = Some(node);
        }
    }

    /// Returns the reader's next request.
    fn read(&mut self) -> Option<Asking<Question>> {
        if !self.is_created {
            return None;
        }
        let reader = &mut self.reader;
        reader.turn = (reader.turn + 1) % PARTITIONS;
        let is_all_read = reader.done.len() == usize::try_from(PARTITIONS).expect("few");
        let is_settled = self.producers.iter().all(|it| it.transaction.is_none());
        if self.last_phase && is_settled && is_all_read {
            let producers = i32::try_from(PRODUCERS).expect("few");
            let mut request = requests::committed(&[GROUP], COMMITTED, producers);
            request.require_stable = true;
            return Some((Question::Offsets, request.into(), 9));
        }
        let partition = reader.turn;
        let next = reader.next.get(&partition).copied().unwrap_or(0);
        let target = ((TOPIC.to_owned(), partition), None);
        let patience = Patience { wait_ms: 200, bytes: 2_000 };
        let mut request = requests::fetch(&[(target, next)], patience);
        request.isolation_level = 1;
        // The last phase is the leader's to answer: others may be behind.
        let version = if self.last_phase { requests::FETCH_OF_LEADER } else { 12 };
        Some((Question::Read(partition), request.into(), version))
    }
}

/// Returns a batch of one record with the number of its transaction.
fn batch_of(number: u64, (id, epoch, sequence): (i64, i16, i32)) -> Bytes {
    let mut batch = BatchBuilder::new().producer(id, epoch, sequence).transactional();
    let value = number.to_be_bytes();
    let record =
        NewRecord { timestamp: 1_700_000_000_000, value: Some(&value), ..NewRecord::default() };
    batch.push(&record).expect("it is small");
    batch.build().expect("it is small")
}

/// Answers.
impl Transactors {
    pub(super) fn on_response(
        &mut self,
        at: usize,
        question: &Question,
        came: &Response,
    ) -> Result<(), Failure> {
        match (question, came) {
            (Question::Create, Response::CreateTopics(it)) => self.is_created = is_made(it),
            (Question::Overview, Response::Metadata(it)) => self.on_overview(at, it),
            (Question::Find, Response::FindCoordinator(it)) => {
                self.producers[at].coordinator = found(it);
            }
            (Question::FindGroup, Response::FindCoordinator(it)) => {
                self.producers[at].group_coordinator = found(it);
            }
            (Question::Init, Response::InitProducerId(it)) => self.on_identity(at, it)?,
            (Question::Add(partition), Response::AddPartitionsToTxn(it)) => {
                let topic = &it.results_by_topic_v3_and_below[0];
                let code = code_of(topic.results_by_partition[0].partition_error_code);
                self.on_taken(at, code, "AddPartitionsToTxn", |open, _| {
                    open.added.insert(*partition);
                })?;
            }
            (Question::AddOffsets, Response::AddOffsetsToTxn(it)) => {
                let code = code_of(it.error_code);
                self.on_taken(at, code, "AddOffsetsToTxn", |open, _| open.has_group = true)?;
            }
            (Question::Produce, Response::Produce(it)) => {
                let part = &it.responses[0].partition_responses[0];
                self.on_produced(at, code_of(part.error_code))?;
            }
            (Question::Offset, Response::TxnOffsetCommit(it)) => {
                let code = code_of(it.topics[0].partitions[0].error_code);
                self.on_taken(at, code, "TxnOffsetCommit", |open, fate| {
                    (open.offset, fate.has_offset) = (Some(true), true);
                })?;
            }
            (Question::End, Response::EndTxn(it)) => {
                let code = code_of(it.error_code);
                self.on_ended(at, code, (it.producer_id, it.producer_epoch))?;
            }
            (Question::Read(partition), Response::Fetch(it)) => self.on_read(*partition, it)?,
            (Question::Offsets, Response::OffsetFetch(it)) if it.groups[0].error_code == 0 => {
                let told = it.groups[0].topics[0].partitions.iter();
                let told: Vec<_> = told.map(|it| (it.error_code, it.committed_offset)).collect();
                tell(|| format!("  offsets of transactions: {told:?}"));
                self.check_end(&told)?;
            }
            (Question::Offsets, Response::OffsetFetch(_)) => {}
            (_, came) => unexpected(came)?,
        }
        Ok(())
    }

    fn on_identity(&mut self, at: usize, it: &InitProducerIdResponse) -> Result<(), Failure> {
        let (id, epoch) = (it.producer_id, it.producer_epoch);
        tell(|| format!("  producer {at} is {id} {epoch} ({})", it.error_code));
        if it.error_code == 0 {
            let producer = &mut self.producers[at];
            producer.is = Some((id, epoch));
            producer.sequences.clear();
        }
        self.on_code(at, code_of(it.error_code), "InitProducerId")
    }

    /// Notes that a part of a transaction was taken, or not.
    fn on_taken(
        &mut self,
        at: usize,
        code: ErrorCode,
        what: &str,
        note: impl FnOnce(&mut Transaction, &mut Fate),
    ) -> Result<(), Failure> {
        if let Some(open) = self.producers[at].transaction.as_mut().filter(|_| code.is_none()) {
            note(open, self.fates.entry(open.number).or_default());
        }
        self.on_code(at, code, what)
    }

    fn on_overview(&mut self, at: usize, it: &MetadataResponse) {
        let topic = &it.topics[0];
        if topic.error_code != 0 {
            return;
        }
        let led = topic.partitions.iter().filter(|it| it.leader_id >= 0);
        let leaders = led.map(|it| (it.partition_index, it.leader_id)).collect();
        self.producers[at].leaders = leaders;
    }

    /// Handles an error code: the producer's knowledge is out of date, or the producer is fenced.
    fn on_code(&mut self, at: usize, code: ErrorCode, what: &str) -> Result<(), Failure> {
        tell(|| format!("  producer {at}: {what} {code:?}"));
        let it = &mut self.producers[at];
        match code {
            ErrorCode::None | ErrorCode::ConcurrentTransactions => {}
            code if ends_transaction(code) => {
                it.is = None;
                if let Some(open) = it.transaction.take() {
                    self.note(open.number, open.ends, None)?;
                }
            }
            code if code.is_retriable() => {
                (it.coordinator, it.group_coordinator) = (None, None);
                it.leaders.clear();
            }
            code => return wrong(format!("producer {at}: {what} is answered with {code:?}")),
        }
        Ok(())
    }

    fn on_produced(&mut self, at: usize, code: ErrorCode) -> Result<(), Failure> {
        let it = &mut self.producers[at];
        if code.is_none()
            && let Some(open) = &mut it.transaction
            && let Some((partition, _)) = open.pending.take()
        {
            *it.sequences.entry(partition).or_default() += 1;
            open.added.insert(partition);
            let fate = self.fates.entry(open.number).or_default();
            *fate.acked.entry(partition).or_default() += 1;
        }
        self.on_code(at, code, "Produce")
    }

    fn on_ended(&mut self, at: usize, code: ErrorCode, next: (i64, i16)) -> Result<(), Failure> {
        let it = &mut self.producers[at];
        let Some(open) = it.transaction.clone() else { return Ok(()) };
        match code {
            ErrorCode::None => {
                it.transaction = None;
                if it.version == 2 {
                    it.is = Some(next);
                    it.sequences.clear();
                }
                tell(|| format!("  transaction {} has ended: {:?}", open.number, open.ends));
                self.note(open.number, open.ends, open.ends)
            }
            // Its time was over, or it never was.
            ErrorCode::InvalidTxnState => {
                it.transaction = None;
                it.is = None;
                self.note(open.number, open.ends, Some(false))
            }
            code => self.on_code(at, code, "EndTxn"),
        }
    }

    /// Ends a transaction for its producer, which wanted this end, and may know the outcome.
    fn note(
        &mut self,
        number: u64,
        wanted: Option<bool>,
        known: Option<bool>,
    ) -> Result<(), Failure> {
        let fate = self.fates.entry(number).or_default();
        // A producer that did not ask for a commit knows that there is none.
        fate.known = known.or(if wanted == Some(true) { None } else { Some(false) });
        let is_shown = !fate.shown.is_empty();
        if fate.known == Some(false) && is_shown {
            return wrong(format!("transaction {number} was shown, and is aborted"));
        }
        if fate.known == Some(true) && !fate.passed.is_empty() {
            return wrong(format!("transaction {number} was passed over, and is committed"));
        }
        Ok(())
    }

    fn on_read(&mut self, partition: i32, it: &FetchResponse) -> Result<(), Failure> {
        let Some(part) = it.responses.first().and_then(|topic| topic.partitions.first()) else {
            return Ok(());
        };
        if part.error_code != 0 {
            let code = code_of(part.error_code);
            let is_expected = code.is_retriable() || code == ErrorCode::UnknownTopicOrPartition;
            return if is_expected { Ok(()) } else { wrong(format!("{TOPIC}: {code:?}")) };
        }
        let mut passing = Passing::of(part);
        let mut next = self.reader.next.get(&partition).copied().unwrap_or(0);
        for batch in batches(bytes_of(part)).map_while(Result::ok) {
            let header = *batch.header();
            if header.end_offset() <= next {
                continue;
            }
            if header.base_offset != next || header.end_offset() > part.last_stable_offset {
                let what = format!("{} after {next}", header.base_offset);
                return wrong(format!(
                    "{TOPIC}-{partition}: {what} of {}",
                    part.last_stable_offset
                ));
            }
            next = header.end_offset();
            let is_shown = passing.shows(&header);
            if !header.attributes.is_control() {
                self.on_batch(partition, &batch, !is_shown)?;
            }
        }
        self.reader.next.insert(partition, next);
        let is_settled = self.producers.iter().all(|it| it.transaction.is_none());
        if self.last_phase && is_settled && next == part.high_watermark {
            self.reader.done.insert(partition);
        }
        Ok(())
    }

    fn on_batch(
        &mut self,
        partition: i32,
        batch: &duramen_protocol::batch::BatchView,
        is_passed: bool,
    ) -> Result<(), Failure> {
        let Ok(records) = Records::of(batch, 1 << 20) else {
            return wrong(format!("{TOPIC}-{partition}: records cannot be read"));
        };
        for record in &records {
            let value = record.ok().and_then(|record| record.value.map(<[u8]>::to_vec));
            let Some(number) = value.as_ref().and_then(|value| value.first_chunk::<8>()) else {
                return wrong(format!("{TOPIC}-{partition}: a record has no number"));
            };
            let number = u64::from_be_bytes(*number);
            let Some(fate) = self.fates.get_mut(&number) else {
                return wrong(format!("{TOPIC}-{partition}: {number} was never written"));
            };
            tell(|| format!("  {TOPIC}-{partition}: {number}, passed over: {is_passed}"));
            let at = if is_passed { &mut fate.passed } else { &mut fate.shown };
            *at.entry(partition).or_default() += 1;
            if is_passed && fate.known == Some(true) {
                return wrong(format!("transaction {number} is committed, and passed over"));
            }
            if !is_passed && fate.known == Some(false) {
                return wrong(format!("transaction {number} is aborted, and shown"));
            }
        }
        Ok(())
    }

    /// Checks the end: all was read, and no transaction is open.
    fn check_end(&mut self, offsets: &[(i16, i64)]) -> Result<(), Failure> {
        if offsets.iter().any(|(code, _)| *code == ErrorCode::UnstableOffsetCommit.code()) {
            return Ok(());
        }
        let mut expected = [-1; PRODUCERS];
        for (number, fate) in &self.fates {
            let is_shown = !fate.shown.is_empty();
            if is_shown && !fate.passed.is_empty() {
                return wrong(format!("transaction {number} is torn: {fate:?}"));
            }
            // A batch that was not acknowledged may be there, of a transaction that was given up.
            let is_whole = fate.acked.iter().all(|(it, count)| fate.shown.get(it) == Some(count));
            let is_acked = !fate.acked.is_empty();
            if is_shown && !is_whole || fate.known == Some(true) && is_acked && !is_shown {
                return wrong(format!("transaction {number} lost records: {fate:?}"));
            }
            if is_shown && fate.has_offset {
                expected[fate.producer] = i64::try_from(*number).expect("few");
            }
        }
        for (at, (code, told)) in offsets.iter().enumerate() {
            if *code == 0 && *told != expected[at] {
                let expected = expected[at];
                return wrong(format!("the offset of producer {at} is {told}, not {expected}"));
            }
        }
        self.reader.offsets_told = offsets.iter().all(|(code, _)| *code == 0);
        Ok(())
    }
}
