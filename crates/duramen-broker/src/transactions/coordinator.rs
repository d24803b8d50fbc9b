//! # Room card: transaction coordinator
//!
//! Purpose:    all transactional ids that live in one partition of `__transaction_state`.
//! Owns:       [`Coordinator`]: the durable state of each id, the appends under way for it, waiting requests, the
//!             partitions that still need the marker of a transaction.
//! Interface:  [`Coordinator::ask`], answered by an [`Output`] now or later; [`Coordinator::apply`] and
//!             [`Coordinator::loaded`] first; [`Coordinator::on_appended`], [`Coordinator::on_producer_id`],
//!             [`Coordinator::on_marked`]; [`Coordinator::on_time`] at [`Coordinator::deadline_us`];
//!             [`Coordinator::expire`] now and then; [`Coordinator::renew`] and [`Coordinator::live`] to keep the
//!             log short.
//! Invariants: durable state changes only by a record that is in the log, one at a time for each id; a partition gets a
//!             marker only for a decision that is durable; no transaction begins before the last one of its id has its
//!             markers everywhere; each request gets one answer.
//! Never:      clocks, chance, I/O, which topics exist: the caller hands all that in.
//! Tests:      `coordinator/tests.rs`, by scenario and by chance; `node/tests/transactions.rs`.
//! Start at:   [`Coordinator::ask`], then `decide`, `land`, [`Coordinator::on_marked`].
//!
//! Protocols. A producer of version 1 keeps its epoch over its transactions, and adds partitions itself. With version 2
//! (KIP-890), each end of a transaction gives the producer another epoch, and partition leaders ask the coordinator. So
//! the epoch tells a late request of an earlier transaction apart, everywhere. For version 1 this coordinator uses the
//! connection: once an id has used a newer one, it executes no request from an older one. Jepsen found such late writes
//! in 2024 in every implementation of version 1. The client gave up on a request and sent it again, and the first copy
//! arrived later.
//!
//! A request that must follow the previous transaction waits here for a while. Kafka refuses it, and the producer asks
//! again.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::mem;
use std::sync::Arc;

use duramen_protocol::messages::describe_transactions::{TopicData, TransactionState};
use duramen_protocol::messages::list_transactions::TransactionState as Listed;
use duramen_protocol::messages::{EndTxnResponse, InitProducerIdResponse};
use duramen_protocol::{ErrorCode, Response};
use duramen_storage::sabotage::{self, Bug};

use super::records::{Partitions, Status, Transaction, TransactionRecord};
use crate::event::{ConnectionId, Now, RequestKey};
use crate::internal_topics::told;
use crate::ledger::{self, Due, Ledger, Live, Ticket};
use crate::limits::{TRANSACTION_AGAIN_US, TRANSACTION_COMPLETE_US, TRANSACTION_WAIT_US};
use crate::partition::Marker;

mod inspection;

/// Sender of a question about partitions in a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asker {
    /// A producer, in a part of its request.
    Request { key: RequestKey, part: usize },
    /// A partition of this node.
    Own { nonce: u64 },
    /// One of another node.
    Node { broker_id: i32, nonce: u64 },
}

/// The end of a transaction in one partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    pub id: Arc<str>,
    pub topic: String,
    pub partition: i32,
    pub marker: Marker,
    /// Where the decision stands in the log: of two decisions on an id, the later one has the larger number.
    pub number: i64,
}

/// Effects of requests, appends, markers and time.
#[derive(Debug, PartialEq)]
pub(crate) enum Output {
    /// Answer this request. If no record was written for it, first make certain that no other node coordinates by now.
    Reply { key: RequestKey, response: Box<Response>, is_written: bool },
    /// Answer this question, under the same condition.
    Judged { asker: Asker, code: ErrorCode, is_written: bool },
    /// Close the connection: its producer has given it up, and this request came on it.
    TooLate(RequestKey),
    /// Append this record, then call [`Coordinator::on_appended`].
    Append(Ticket, Vec<TransactionRecord>),
    /// Get a producer id, then call [`Coordinator::on_producer_id`].
    WantProducerId(Arc<str>),
    /// Write this marker, then call [`Coordinator::on_marked`].
    Mark(Mark),
}

/// Request of a producer to write to partitions, or to commit offsets, in a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Addition {
    pub producer_id: i64,
    pub epoch: i16,
    pub partitions: Partitions,
    /// Flag that the partitions should be in the transaction already.
    pub verify_only: bool,
    /// The protocol of the producer.
    pub version: i16,
}

/// Producer's request to end its transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct End {
    pub producer_id: i64,
    pub epoch: i16,
    pub commits: bool,
    pub version: i16,
}

/// Request for a transactional id.
#[derive(Clone, Debug)]
pub(crate) enum Ask {
    /// Begin with a producer, or with the next epoch of the producer that names its present id and epoch.
    Init { key: RequestKey, timeout_ms: i32, expected: Option<(i64, i16)> },
    /// Add partitions to a transaction, or check that they are in it.
    Add { asker: Asker, addition: Addition },
    /// End a transaction.
    End { key: RequestKey, end: End },
}

/// Act that follows once the result of an append is known.
#[derive(Debug)]
enum Then {
    Nothing,
    /// The record was written for this.
    Answer(Ask),
}

/// Decision on an [`Ask`].
enum Decision {
    /// The request gets this answer, and changes nothing.
    Answer(ErrorCode),
    /// The request gets its answer once this record is durable.
    Write(Transaction),
    /// The transaction is aborted first.
    Fence,
    /// A producer id is needed first.
    NeedId,
    /// The request waits until the transaction is complete.
    Wait,
    TooLate,
}

#[derive(Debug)]
struct Waiting {
    ask: Ask,
    until_us: u64,
}

/// One transactional id.
#[derive(Debug, Default)]
struct Id {
    /// Durable state, and the offset of its record.
    stored: Option<(i64, Arc<Transaction>)>,
    /// Its next record is on its way.
    flying: Option<Ticket>,
    /// Count of renewed records whose append is under way.
    renewing: u32,
    /// The epoch that a retried request may still name, of the producer that has the present one; -1 is none.
    last_epoch: i16,
    /// Producer id that is still unused, kept until the id needs one.
    spare: Option<i64>,
    awaits_spare: bool,
    /// Where the decision stands that is being executed, and the partitions that do not have it yet.
    number: i64,
    unmarked: BTreeSet<(String, i32)>,
    waiting: VecDeque<Waiting>,
    /// The newest connection that its producer used.
    connection: Option<ConnectionId>,
    /// When the open transaction is aborted.
    expires_us: Option<u64>,
    /// Time of the next try after a failure; nothing is due before.
    again_us: Option<u64>,
    /// Where it stands in [`Coordinator::due`].
    due_us: Option<u64>,
}

impl Id {
    fn is_idle(&self) -> bool {
        self.stored.is_none()
            && self.flying.is_none()
            && self.renewing == 0
            && !self.awaits_spare
            && self.waiting.is_empty()
    }

    fn transaction(&self) -> Option<&Transaction> {
        self.stored.as_ref().map(|(_, it)| &**it)
    }

    /// Returns the state that answers and decisions use. A transaction whose marker all partitions have is complete,
    /// whether or not a record says so.
    fn present(&self) -> Option<Arc<Transaction>> {
        let (_, it) = self.stored.as_ref()?;
        let is_over = it.status.decided().is_some() && self.unmarked.is_empty();
        Some(if is_over { Arc::new((**it).clone().completed()) } else { it.clone() })
    }

    fn deadline_us(&self) -> Option<u64> {
        let waiting = self.waiting.iter().map(|it| it.until_us).min();
        let due_us = self.again_us.or(self.expires_us).filter(|_| self.flying.is_none());
        due_us.into_iter().chain(waiting).min()
    }
}

/// Append under way.
#[derive(Debug)]
struct Flight {
    /// Transactional id of the record; `None` for a renewal.
    id: Option<Arc<str>>,
    then: Then,
}

/// See the room card.
#[derive(Debug, Default)]
pub(crate) struct Coordinator {
    ids: BTreeMap<Arc<str>, Id>,
    ledger: Ledger<Arc<str>, TransactionRecord, Flight, Output>,
    due: Due,
    /// The term in which it coordinates.
    epoch: i32,
}

/// Last epoch that a producer gets; the one above is for the end of its last transaction.
const LAST_EPOCH: i16 = i16::MAX - 1;

/// For so long after a transaction a commit with nothing to commit is taken for one that came before its records.
const EARLY_MS: i64 = 1000;

/// Coming and going.
impl Coordinator {
    /// Begins to coordinate, once the log was read to its end. Carries out the decisions that it found.
    pub(crate) fn loaded(&mut self, epoch: i32, now: Now) {
        self.epoch = epoch;
        let names: Vec<Arc<str>> = self.ids.keys().cloned().collect();
        for name in names {
            self.take_up(&name, now);
        }
    }

    /// Refuses all waiting requests, because another node coordinates now. Their senders ask there.
    pub(crate) fn unload(&mut self) {
        let flying = self.ledger.close().into_iter().filter_map(|flight| match flight.then {
            Then::Answer(ask) => Some(ask),
            Then::Nothing => None,
        });
        let waiting = mem::take(&mut self.ids).into_values().flat_map(|id| id.waiting);
        let asks: Vec<Ask> = flying.chain(waiting.map(|it| it.ask)).collect();
        for ask in asks {
            self.answer(None, &ask, ErrorCode::NotCoordinator, false);
        }
        *self = Self { ledger: mem::take(&mut self.ledger), ..Self::default() };
    }

    /// Returns the effects of everything since the last call.
    pub(crate) fn take_outputs(&mut self) -> Vec<Output> {
        self.ledger.take_outputs()
    }
}

/// Requests.
impl Coordinator {
    /// Describes a transactional id for `DescribeTransactions`.
    pub(crate) fn describe(&self, name: &str) -> TransactionState {
        let transactional_id = name.to_owned();
        let Some(it) = self.ids.get(name).and_then(Id::present) else {
            let error_code = ErrorCode::TransactionalIdNotFound.code();
            return TransactionState { error_code, transactional_id, ..Default::default() };
        };
        let topics = it.partitions.iter().map(|(topic, partitions)| TopicData {
            topic: topic.clone(),
            partitions: partitions.iter().copied().collect(),
        });
        TransactionState {
            error_code: ErrorCode::None.code(),
            transactional_id,
            transaction_state: it.status.name().to_owned(),
            transaction_timeout_ms: it.timeout_ms,
            transaction_start_time_ms: it.started_ms,
            producer_id: it.producer_id,
            producer_epoch: it.epoch,
            topics: topics.collect(),
        }
    }

    /// Returns the transactional ids that `is_wanted` selects.
    pub(crate) fn list(&self, is_wanted: impl Fn(&str, &Transaction) -> bool) -> Vec<Listed> {
        let listed = |(name, id): (&Arc<str>, &Id)| {
            let it = id.present().filter(|it| is_wanted(name, it))?;
            Some(Listed {
                transactional_id: name.as_ref().to_owned(),
                producer_id: it.producer_id,
                transaction_state: it.status.name().to_owned(),
            })
        };
        self.ids.iter().filter_map(listed).collect()
    }

    /// Takes a request, and decides on it now or once the earlier ones are decided.
    pub(crate) fn ask(&mut self, name: &str, ask: Ask, now: Now) {
        let is_new = !self.ids.contains_key(name);
        if is_new && !matches!(ask, Ask::Init { .. }) {
            return self.answer(None, &ask, ErrorCode::InvalidProducerIdMapping, false);
        }
        let known = self.ids.get_key_value(name).map(|(name, _)| name.clone());
        let name = known.unwrap_or_else(|| name.into());
        if is_new {
            self.ids.insert(name.clone(), Id { last_epoch: -1, ..Id::default() });
        }
        let until_us = now.mono_us.saturating_add(TRANSACTION_WAIT_US);
        self.id_mut(&name).waiting.push_back(Waiting { ask, until_us });
        self.go_on(&name, now);
    }

    fn id_mut(&mut self, name: &Arc<str>) -> &mut Id {
        self.ids.get_mut(name).expect("it is known")
    }

    /// Decides on all that waits and can be decided on, in its order.
    fn go_on(&mut self, name: &Arc<str>, now: Now) {
        let mut at = 0;
        loop {
            let Some(id) = self.ids.get_mut(name) else { return };
            if id.flying.is_some() || id.awaits_spare {
                break;
            }
            let Some(waiting) = id.waiting.get(at) else { break };
            let decision = match waiting.ask.clone() {
                Ask::Init { key, timeout_ms, expected } => {
                    id.decide_init(key, timeout_ms, expected, now)
                }
                Ask::Add { asker, addition } => id.decide_addition(asker, &addition, now),
                Ask::End { key, end } => id.decide_end(key, end, now),
            };
            match decision {
                Decision::Wait => at += 1,
                Decision::NeedId => {
                    id.awaits_spare = true;
                    self.ledger.push(Output::WantProducerId(name.clone()));
                }
                Decision::Fence => self.fence(name, now),
                Decision::Answer(code) => {
                    if let Some(Waiting { ask, .. }) = id.waiting.remove(at) {
                        self.answer(Some(name), &ask, code, false);
                    }
                }
                Decision::TooLate => {
                    if let Some(Waiting { ask, .. }) = id.waiting.remove(at)
                        && let Some(key) = ask.key()
                    {
                        self.ledger.push(Output::TooLate(key));
                    }
                }
                Decision::Write(transaction) => {
                    if let Some(Waiting { ask, .. }) = id.waiting.remove(at) {
                        self.write(name, Some(transaction), Then::Answer(ask));
                    }
                }
            }
        }
        self.settle(name);
    }

    /// Answers a request. A record that was written for it proves that no other node coordinates.
    fn answer(&mut self, name: Option<&Arc<str>>, ask: &Ask, code: ErrorCode, is_written: bool) {
        let now = name.and_then(|name| self.ids.get(name)).and_then(Id::present);
        let of_now = now.filter(|_| code.is_none());
        match *ask {
            Ask::Add { asker, .. } => {
                self.ledger.push(Output::Judged { asker, code, is_written });
            }
            Ask::Init { key, .. } => {
                let mut answer = InitProducerIdResponse {
                    error_code: code.code(),
                    producer_id: -1,
                    producer_epoch: -1,
                    ..InitProducerIdResponse::default()
                };
                if let Some(it) = of_now {
                    (answer.producer_id, answer.producer_epoch) = (it.producer_id, it.epoch);
                }
                let response = Box::new(answer.into());
                self.ledger.push(Output::Reply { key, response, is_written });
            }
            Ask::End { key, end } => {
                let mut answer =
                    EndTxnResponse { error_code: code.code(), ..EndTxnResponse::default() };
                if let Some(it) = of_now.filter(|_| end.version >= 2) {
                    (answer.producer_id, answer.producer_epoch) = match it.next_producer_id {
                        -1 => (it.producer_id, it.epoch),
                        next => (next, 0),
                    };
                }
                let response = Box::new(answer.into());
                self.ledger.push(Output::Reply { key, response, is_written });
            }
        }
    }
}

impl Ask {
    fn key(&self) -> Option<RequestKey> {
        match self {
            Self::Init { key, .. }
            | Self::End { key, .. }
            | Self::Add { asker: Asker::Request { key, .. }, .. } => Some(*key),
            Self::Add { .. } => None,
        }
    }
}

/// Decisions: pure, but for the connection that is noted.
impl Id {
    fn decide_init(
        &mut self,
        key: RequestKey,
        timeout_ms: i32,
        expected: Option<(i64, i16)>,
        now: Now,
    ) -> Decision {
        let Some(it) = self.present() else {
            let Some(producer_id) = self.spare.take() else { return Decision::NeedId };
            self.connection = Some(key.0);
            return Decision::Write(Transaction {
                producer_id,
                previous_producer_id: -1,
                next_producer_id: -1,
                epoch: 0,
                timeout_ms,
                status: Status::Empty,
                partitions: Partitions::new(),
                updated_ms: now.wall_ms,
                started_ms: -1,
                version: 0,
            });
        };
        // The producer's own retry, after its id was replaced.
        let is_of_before =
            |(id, epoch): (i64, i16)| id == it.previous_producer_id && epoch >= LAST_EPOCH;
        if let Some(expected) = expected
            && expected.0 != it.producer_id
            && !is_of_before(expected)
        {
            return Decision::Answer(ErrorCode::ProducerFenced);
        }
        match it.status {
            Status::PrepareCommit | Status::PrepareAbort => return Decision::Wait,
            Status::Ongoing => {
                let is_own = expected.is_none_or(|is| is == (it.producer_id, it.epoch));
                let fenced = Decision::Answer(ErrorCode::ProducerFenced);
                return if is_own { Decision::Fence } else { fenced };
            }
            Status::Empty | Status::CompleteCommit | Status::CompleteAbort => {}
        }
        let last_epoch = match expected {
            None => -1,
            Some(expected) if is_of_before(expected) => {
                return Decision::Answer(ErrorCode::None);
            }
            Some((_, epoch)) if epoch == it.epoch => epoch,
            Some((_, epoch)) if epoch >= 0 && epoch == self.last_epoch => {
                self.connection = Some(key.0);
                return Decision::Answer(ErrorCode::None);
            }
            Some(_) => return Decision::Answer(ErrorCode::ProducerFenced),
        };
        let mut next = Transaction {
            timeout_ms,
            status: Status::Empty,
            partitions: Partitions::new(),
            updated_ms: now.wall_ms,
            started_ms: -1,
            ..(*it).clone()
        };
        if it.epoch >= LAST_EPOCH {
            let Some(producer_id) = self.spare.take() else { return Decision::NeedId };
            next.previous_producer_id = it.producer_id;
            (next.producer_id, next.epoch) = (producer_id, 0);
        } else {
            next.epoch = it.epoch + 1;
        }
        self.last_epoch = last_epoch;
        self.connection = Some(key.0);
        Decision::Write(next)
    }

    /// Tells whether a request comes on a connection that its producer has given up.
    fn is_late(&mut self, key: RequestKey) -> bool {
        let is_late = self.connection.is_some_and(|newest| key.0 < newest);
        self.connection = self.connection.max(Some(key.0));
        is_late && !sabotage::is(Bug::LateRequestTaken)
    }

    fn decide_addition(&mut self, asker: Asker, addition: &Addition, now: Now) -> Decision {
        let Some(it) = self.present() else {
            return Decision::Answer(ErrorCode::InvalidProducerIdMapping);
        };
        let is_next = it.next_producer_id >= 0
            && (addition.producer_id, addition.epoch) == (it.next_producer_id, 0);
        if is_next {
            return Decision::Wait;
        }
        if addition.producer_id != it.producer_id {
            return Decision::Answer(ErrorCode::InvalidProducerIdMapping);
        }
        if addition.epoch != it.epoch {
            return Decision::Answer(ErrorCode::ProducerFenced);
        }
        if let Asker::Request { key, .. } = asker
            && self.is_late(key)
        {
            return Decision::TooLate;
        }
        if it.status.decided().is_some() && !sabotage::is(Bug::BegunBeforeMarked) {
            return Decision::Wait;
        }
        let is_open = it.status == Status::Ongoing;
        let is_in = |(topic, partitions): (&String, &BTreeSet<i32>)| {
            it.partitions.get(topic).is_some_and(|known| partitions.is_subset(known))
        };
        if is_open && addition.partitions.iter().all(is_in) {
            return Decision::Answer(ErrorCode::None);
        }
        if addition.verify_only {
            return Decision::Answer(ErrorCode::TransactionAbortable);
        }
        let mut next = (*it).clone();
        if !is_open {
            next.partitions.clear();
            next.started_ms = now.wall_ms;
        }
        next.status = Status::Ongoing;
        next.updated_ms = now.wall_ms;
        next.version = addition.version;
        for (topic, partitions) in &addition.partitions {
            next.partitions.entry(topic.clone()).or_default().extend(partitions);
        }
        Decision::Write(next)
    }

    fn decide_end(&mut self, key: RequestKey, end: End, now: Now) -> Decision {
        let Some(it) = self.present() else {
            return Decision::Answer(ErrorCode::InvalidProducerIdMapping);
        };
        let End { producer_id, epoch, commits, version } = end;
        let is_current = (producer_id, epoch) == (it.producer_id, it.epoch);
        // The end that has brought the present epoch, once more.
        let is_repeated = version >= 2
            && (producer_id == it.producer_id && epoch.checked_add(1) == Some(it.epoch)
                || producer_id == it.previous_producer_id && epoch >= LAST_EPOCH && it.epoch == 0);
        if !is_repeated {
            if producer_id != it.producer_id {
                return Decision::Answer(ErrorCode::InvalidProducerIdMapping);
            }
            if !is_current {
                return Decision::Answer(ErrorCode::ProducerFenced);
            }
        }
        if self.is_late(key) {
            return Decision::TooLate;
        }
        let wrong = Decision::Answer(ErrorCode::InvalidTxnState);
        // The request has the epoch of the next transaction, for which no partition has come yet. A producer of
        // kafka-clients may send it before the records, but does not repeat it before them. If it waited here, it could
        // be decided when only the first of several partitions is in the transaction. The transaction would then be
        // torn.
        let is_early = version >= 2 && !is_repeated && commits;
        let completed = match it.status {
            Status::PrepareCommit | Status::PrepareAbort if is_early => {
                return Decision::Answer(ErrorCode::ConcurrentTransactions);
            }
            Status::CompleteCommit | Status::CompleteAbort
                if is_early && (0..EARLY_MS).contains(&(now.wall_ms - it.updated_ms)) =>
            {
                return Decision::Answer(ErrorCode::ConcurrentTransactions);
            }
            Status::PrepareCommit | Status::PrepareAbort => return Decision::Wait,
            Status::Ongoing | Status::Empty if is_repeated => {
                return Decision::Answer(ErrorCode::ProducerFenced);
            }
            Status::Ongoing => {
                let status = if commits { Status::PrepareCommit } else { Status::PrepareAbort };
                let mut next = Transaction { status, version, ..(*it).clone() };
                next.updated_ms = now.wall_ms;
                return match self.advance_epoch(next) {
                    Some(next) => Decision::Write(next),
                    None => Decision::NeedId,
                };
            }
            Status::Empty => None,
            Status::CompleteCommit => Some(true),
            Status::CompleteAbort => Some(false),
        };
        if version < 2 || is_repeated {
            return match completed {
                Some(completed) if completed == commits => Decision::Answer(ErrorCode::None),
                // The coordinator aborted the transaction while the commit was on its way. Producers survive the error
                // of a fenced producer, and no other one (KAFKA-20785).
                Some(false) if is_repeated => Decision::Answer(ErrorCode::ProducerFenced),
                _ => wrong,
            };
        }
        if commits {
            return wrong;
        }
        // No transaction is open, but the epoch must fence requests that are under way.
        let status = Status::CompleteAbort;
        let mut next = Transaction { status, version, ..(*it).clone() };
        next.updated_ms = now.wall_ms;
        match self.advance_epoch(next) {
            Some(next) => Decision::Write(next.completed()),
            None => Decision::NeedId,
        }
    }

    /// Raises the epoch, for a producer that has one for each transaction. Returns `None` if a new producer id is
    /// needed first.
    fn advance_epoch(&mut self, mut next: Transaction) -> Option<Transaction> {
        if next.version >= 2 {
            if next.epoch >= LAST_EPOCH {
                next.next_producer_id = self.spare.take()?;
            }
            next.epoch = next.epoch.saturating_add(1);
            self.last_epoch = -1;
        }
        Some(next)
    }
}

impl Transaction {
    /// Returns the state after all partitions have the marker of the decision.
    fn completed(mut self) -> Self {
        self.status = match self.status {
            Status::PrepareCommit => Status::CompleteCommit,
            Status::PrepareAbort => Status::CompleteAbort,
            status => status,
        };
        self.partitions.clear();
        if self.next_producer_id >= 0 {
            self.previous_producer_id = self.producer_id;
            self.producer_id = self.next_producer_id;
            (self.next_producer_id, self.epoch) = (-1, 0);
        }
        self
    }
}

/// Records.
impl Coordinator {
    fn write(&mut self, name: &Arc<str>, value: Option<Transaction>, then: Then) {
        self.id_mut(name).check_next(name, value.as_ref());
        let record = TransactionRecord { id: name.clone(), value: value.map(Arc::new) };
        let flight = Flight { id: Some(name.clone()), then };
        let ticket = self.ledger.launch(vec![record], flight, Output::Append);
        let before = self.id_mut(name).flying.replace(ticket);
        assert!(before.is_none(), "{name} has one record under way");
    }

    /// Aborts an open transaction, and keeps its producer out.
    fn fence(&mut self, name: &Arc<str>, now: Now) {
        let id = self.id_mut(name);
        let Some(it) = id.stored.as_ref().map(|(_, it)| it.clone()) else { return };
        let status = Status::PrepareAbort;
        let mut next = Transaction { status, updated_ms: now.wall_ms, ..(*it).clone() };
        next.epoch = it.epoch.saturating_add(1);
        if sabotage::is(Bug::FencedWithoutEpoch) {
            next.epoch = it.epoch;
        }
        id.last_epoch = it.epoch;
        self.write(name, Some(next), Then::Nothing);
    }

    /// Takes the result of an [`Output::Append`]: its records are durable from this offset on, or will never be in the
    /// log. Successes come in the order of the log.
    pub(crate) fn on_appended(&mut self, ticket: Ticket, result: Result<i64, ErrorCode>, now: Now) {
        let Some((records, Flight { id, then })) = self.ledger.land(ticket, result) else { return };
        for (record, delta) in records.into_iter().zip(0..) {
            if id.is_none() {
                self.id_mut(&record.id).renewing -= 1;
            }
            if let Ok(base) = result {
                self.apply(base + delta, record);
            }
        }
        let Some(name) = id else { return };
        let landed = self.id_mut(&name).flying.take();
        assert_eq!(landed, Some(ticket), "{name} has one record under way");
        let code = result.err().map_or(ErrorCode::None, told);
        if let Then::Answer(ask) = then {
            self.answer(Some(&name), &ask, code, result.is_ok());
        }
        if result.is_ok() {
            self.take_up(&name, now);
        } else {
            // The waiting requests would ask for the same at once, and again and again.
            for Waiting { ask, .. } in std::mem::take(&mut self.id_mut(&name).waiting) {
                self.answer(Some(&name), &ask, code, false);
            }
            // Whatever is due is tried again by and by.
            self.id_mut(&name).again_us = Some(now.mono_us.saturating_add(TRANSACTION_AGAIN_US));
        }
        self.go_on(&name, now);
    }

    /// Applies a record that is in the log, and durable. Durable state changes nowhere else.
    pub(crate) fn apply(&mut self, at: i64, record: TransactionRecord) {
        let bytes = record.bytes();
        let TransactionRecord { id: name, value } = record;
        if value.is_none() && !self.ids.contains_key(&name) {
            return;
        }
        let id =
            self.ids.entry(name.clone()).or_insert_with(|| Id { last_epoch: -1, ..Id::default() });
        if let Some((before, _)) = id.stored.take() {
            assert!(
                before < at,
                "the record at {at} replaces an earlier one, not that at {before}"
            );
            self.ledger.live.remove(before);
        }
        match value {
            Some(value) => {
                id.stored = Some((at, value));
                self.ledger.live.put(at, name, bytes);
            }
            None if id.is_idle() => {
                self.ids.remove(&name);
            }
            None => {}
        }
    }

    /// Begins the work of a new state: carries out a decision, or sets the timeout of an open transaction.
    fn take_up(&mut self, name: &Arc<str>, now: Now) {
        let epoch = self.epoch;
        let Some(id) = self.ids.get_mut(name) else { return };
        id.again_us = None;
        let Some((at, it)) = id.stored.clone() else { return };
        if it.status != Status::Ongoing {
            id.expires_us = None;
        } else if id.expires_us.is_none() {
            // The wall clock is looked at once; it may leap.
            let timeout_ms = i64::from(it.timeout_ms.max(0));
            let left_ms = it.started_ms.saturating_add(timeout_ms).saturating_sub(now.wall_ms);
            let rest_ms = left_ms.clamp(0, timeout_ms).unsigned_abs();
            id.expires_us = Some(now.mono_us.saturating_add(rest_ms * 1000));
        }
        let Some(commits) = it.status.decided() else { return self.settle(name) };
        id.number = at;
        for (topic, partitions) in &it.partitions {
            for &partition in partitions {
                id.unmarked.insert((topic.clone(), partition));
                let (producer_id, coordinator_epoch) = (it.producer_id, epoch);
                let marker = Marker { producer_id, epoch: it.epoch, coordinator_epoch, commits };
                self.ledger.push(Output::Mark(Mark {
                    id: name.clone(),
                    topic: topic.clone(),
                    partition,
                    marker,
                    number: at,
                }));
            }
        }
        if id.unmarked.is_empty() || sabotage::is(Bug::CompleteBeforeMarked) {
            id.unmarked.clear();
            self.complete(name);
        }
        self.settle(name);
    }

    /// Appends a record that the transaction is complete, because all partitions have its marker.
    fn complete(&mut self, name: &Arc<str>) {
        let id = self.id_mut(name);
        if id.flying.is_some() {
            return;
        }
        if id.transaction().is_some_and(|it| it.status.decided().is_some())
            && let Some(next) = id.present()
        {
            self.write(name, Some((*next).clone()), Then::Nothing);
        }
    }

    /// Notes that a partition has the marker of this decision, or needs none. After the last marker, the producer's
    /// next request mostly follows at once. Its record also says that the transaction is complete, so a separate record
    /// can wait.
    pub(crate) fn on_marked(&mut self, mark: &Mark, now: Now) {
        let Some(id) = self.ids.get_mut(&mark.id).filter(|id| id.number == mark.number) else {
            return;
        };
        if id.unmarked.remove(&(mark.topic.clone(), mark.partition)) && id.unmarked.is_empty() {
            id.again_us = Some(now.mono_us.saturating_add(TRANSACTION_COMPLETE_US));
            self.go_on(&mark.id, now);
        }
    }

    /// Takes the producer id that was asked for, or the error in its place.
    pub(crate) fn on_producer_id(
        &mut self,
        name: &Arc<str>,
        producer_id: Result<i64, ErrorCode>,
        now: Now,
    ) {
        let Some(id) = self.ids.get_mut(name).filter(|id| id.awaits_spare) else { return };
        id.awaits_spare = false;
        match producer_id {
            Ok(producer_id) => id.spare = Some(producer_id),
            Err(code) => {
                let needs = |it: &Waiting| matches!(it.ask, Ask::Init { .. } | Ask::End { .. });
                let at = id.waiting.iter().position(needs);
                let refused = at.and_then(|at| id.waiting.remove(at));
                if let Some(Waiting { ask, .. }) = refused {
                    self.answer(None, &ask, code, false);
                }
            }
        }
        self.go_on(name, now);
    }
}

/// Time.
impl Coordinator {
    /// Returns the time at which [`Self::on_time`] is due next, if nothing else happens before.
    pub(crate) fn deadline_us(&self) -> Option<u64> {
        self.due.first_us()
    }

    /// Does everything that is due by now.
    pub(crate) fn on_time(&mut self, now: Now) {
        for name in self.due.by(now.mono_us) {
            let id = self.id_mut(&name);
            let waiting = mem::take(&mut id.waiting).into_iter();
            let (over, stays) = waiting.partition(|it: &Waiting| it.until_us <= now.mono_us);
            id.waiting = stays;
            for Waiting { ask, .. } in Vec::from(over) {
                self.answer(Some(&name), &ask, ErrorCode::ConcurrentTransactions, false);
            }
            let id = self.id_mut(&name);
            id.again_us = id.again_us.filter(|at| *at > now.mono_us);
            if id.flying.is_none() && id.again_us.is_none() {
                let has_expired = id.expires_us.is_some_and(|at| at <= now.mono_us);
                let is_marked = id.unmarked.is_empty();
                match id.transaction().map(|it| it.status) {
                    Some(Status::Ongoing) if has_expired => self.fence(&name, now),
                    Some(Status::PrepareCommit | Status::PrepareAbort) if is_marked => {
                        self.complete(&name);
                    }
                    _ => {}
                }
            }
            self.go_on(&name, now);
        }
    }

    /// Updates the id's place among those that are due, or forgets the id.
    fn settle(&mut self, name: &Arc<str>) {
        let Some(id) = self.ids.get_mut(name) else { return };
        let is_idle = id.is_idle();
        let due_us = if is_idle { None } else { id.deadline_us() };
        self.due.set(name, &mut id.due_us, due_us);
        if is_idle {
            self.ids.remove(name);
        }
    }

    /// Forgets ids that were unused for `expiration_ms`, a limited count of them after this one. Returns the id where
    /// it stopped, unless it saw all.
    pub(crate) fn expire(
        &mut self,
        expiration_ms: i64,
        now: Now,
        after: Option<&Arc<str>>,
        ids_max: usize,
    ) -> Option<Arc<str>> {
        use std::ops::Bound::{Excluded, Unbounded};
        let from = after.map_or(Unbounded, Excluded);
        let names = self.ids.range::<Arc<str>, _>((from, Unbounded));
        let names: Vec<Arc<str>> = names.map(|(name, _)| name.clone()).take(ids_max).collect();
        for name in &names {
            let id = self.id_mut(name);
            let is_free = id.flying.is_none() && id.renewing == 0 && id.waiting.is_empty();
            let is_old = id.transaction().is_some_and(|it| {
                let is_at_rest = it.status != Status::Ongoing && it.status.decided().is_none();
                is_at_rest && now.wall_ms.saturating_sub(it.updated_ms) >= expiration_ms
            });
            if is_free && is_old {
                self.write(name, None, Then::Nothing);
            }
        }
        names.last().filter(|_| names.len() == ids_max).cloned()
    }
}

/// Keeping the log short.
impl Coordinator {
    /// Returns the live records of the log. The log may be trimmed before the first of them.
    pub(crate) fn live(&self) -> &Live<Arc<str>> {
        &self.ledger.live
    }

    /// Appends live records before an offset again, up to about `bytes_max` bytes. Leaves out ids that have an append
    /// under way. Returns the ticket of the append, or none if there is nothing to append.
    pub(crate) fn renew(&mut self, before: i64, bytes_max: usize) -> Option<Ticket> {
        let current = self.ledger.live.before(before).filter_map(|(name, bytes)| {
            let id = self.ids.get(name).filter(|id| id.flying.is_none() && id.renewing == 0)?;
            let (_, value) = id.stored.as_ref()?;
            Some((TransactionRecord { id: name.clone(), value: Some(value.clone()) }, bytes))
        });
        let records = ledger::first_bytes(current, bytes_max);
        if records.is_empty() {
            return None;
        }
        for record in &records {
            self.id_mut(&record.id).renewing += 1;
        }
        let flight = Flight { id: None, then: Then::Nothing };
        Some(self.ledger.launch(records, flight, Output::Append))
    }
}

#[cfg(test)]
mod tests;
