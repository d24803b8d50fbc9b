//! Producers that write in transactions into the topic of a `read_committed` share group, and the fate of each
//! transaction.
//!
//! A producer writes some batches, each until it is acknowledged, and then commits, or aborts. It asks again until it
//! knows the outcome. When it is fenced, or time is over, or it has forgotten its identity, it gives up and begins
//! anew.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use duramen_protocol::messages::EndTxnRequest;
use duramen_protocol::{ErrorCode, Response};

use super::super::answers::{code_of, ends_transaction, found, unexpected};
use super::super::requests;
use super::keeping::{WRITES_MAX, batch_of};
use super::{Asking, PARTITIONS, ShareGroup, TOPIC};
use crate::failure::{Failure, wrong};
use crate::prng::Prng;
use crate::trace::tell;

/// Number of writers.
pub(super) const WRITERS: usize = 2;

/// A request on its way.
#[derive(Clone, Debug)]
pub(crate) enum Question {
    Find,
    Init,
    Batch,
    End,
}

/// Fate of a transaction, as far as clients know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// No writer asked for its end.
    Open,
    /// A writer asked for a commit.
    Asked,
    Committed,
    Aborted,
}

/// A batch of a transaction.
#[derive(Clone, Copy, Debug)]
struct Batch {
    fate: Fate,
    is_acknowledged: bool,
    /// True if a client that reads with isolation level `read_committed` is shown the batch.
    is_shown: Option<bool>,
}

/// Fates of batches, by their numbers. All others are of no transaction.
#[derive(Debug, Default)]
pub(super) struct Fates {
    all: BTreeMap<u64, Batch>,
    /// Batches of which somebody was given records.
    given: BTreeSet<u64>,
}

impl Fates {
    fn set(&mut self, numbers: &[u64], fate: Fate) {
        for number in numbers {
            tell(|| format!("  batch {number} is {fate:?}"));
            self.all.get_mut(number).expect("it was written").fate = fate;
        }
    }

    /// Notes the fate of batches.
    fn note(&mut self, numbers: &[u64], fate: Fate) -> Result<(), Failure> {
        self.set(numbers, fate);
        numbers.iter().try_for_each(|number| self.check(*number))
    }

    fn check(&self, number: u64) -> Result<(), Failure> {
        let Some(batch) = self.all.get(&number) else { return Ok(()) };
        let is_given = self.given.contains(&number);
        let is_aborted = batch.fate == Fate::Aborted || batch.is_shown == Some(false);
        if is_given && is_aborted {
            return wrong(format!("batch {number} of an aborted transaction is given out"));
        }
        let is_committed = batch.fate == Fate::Committed || batch.is_shown == Some(true);
        if is_aborted && is_committed {
            return wrong(format!("what became of batch {number}: {batch:?}"));
        }
        Ok(())
    }

    /// Notes that somebody is given records of a batch.
    pub(super) fn on_given(&mut self, number: u64) -> Result<(), Failure> {
        if self.all.get(&number).is_some_and(|it| it.fate == Fate::Open) {
            return wrong(format!("batch {number} of an open transaction is given out"));
        }
        self.given.insert(number);
        self.check(number)
    }

    /// Notes that a `read_committed` client is shown a batch, or passes it over.
    pub(super) fn on_read(&mut self, number: u64, is_shown: bool) -> Result<(), Failure> {
        if let Some(batch) = self.all.get_mut(&number) {
            batch.is_shown = Some(is_shown);
        }
        self.check(number)
    }

    /// Tells whether nobody may have to be given a batch.
    pub(super) fn may_be_nothing(&self, number: u64) -> bool {
        self.all.get(&number).is_some_and(|it| it.fate != Fate::Committed)
    }

    /// Tells whether nobody is to be given a batch, once all was read.
    pub(super) fn is_nothing(&self, number: u64) -> bool {
        self.all.get(&number).is_some_and(|it| it.is_shown == Some(false))
    }

    /// Returns batches that were acknowledged and committed, and that nobody was shown.
    pub(super) fn lost(&self) -> Vec<u64> {
        let is_lost = |it: &Batch| {
            it.fate == Fate::Committed && it.is_acknowledged && it.is_shown != Some(true)
        };
        self.all.iter().filter(|(_, it)| is_lost(it)).map(|(number, _)| *number).collect()
    }

    /// Transactions' batches that were shown, and passed over.
    pub(super) fn totals(&self) -> (u64, u64) {
        let count = |how| self.all.values().filter(|it| it.is_shown == Some(how)).count() as u64;
        (count(true), count(false))
    }
}

/// A transaction that is not over, as far as its producer knows.
#[derive(Debug, Default)]
struct Open {
    numbers: Vec<u64>,
    /// Batches that are still to be written, after the one that is being written.
    left: u64,
    pending: Option<(i32, Bytes)>,
    /// End that the writer wants: true for a commit.
    ends: Option<bool>,
}

/// A producer.
#[derive(Debug, Default)]
pub(super) struct Writer {
    at: usize,
    coordinator: Option<i32>,
    is: Option<(i64, i16)>,
    sequences: BTreeMap<i32, i32>,
    open: Option<Open>,
}

impl Writer {
    pub(super) fn new(at: usize) -> Self {
        Self { at, ..Self::default() }
    }

    pub(super) fn is_done(&self) -> bool {
        self.open.is_none()
    }

    fn name(&self) -> String {
        format!("bee-{}", self.at)
    }
}

/// Requests of writers.
impl ShareGroup {
    pub(super) fn write_in_transaction(&mut self, at: usize, work: &mut Prng) -> Option<Asking> {
        let leaders = self.keeper.leaders.get(TOPIC).map_or(0, BTreeMap::len);
        if leaders < usize::try_from(PARTITIONS).expect("few") {
            return None;
        }
        let Some(node) = self.writers[at].coordinator else {
            let request = requests::find(requests::TRANSACTION_KEY, &[&self.writers[at].name()]);
            return Some((super::Question::Writing(Question::Find), request, 4));
        };
        if !self.last_phase && work.chance(20) {
            // The writer begins anew, and the coordinator aborts the transaction that it has left open.
            self.writers[at].is = None;
            self.give_up(at);
        }
        let client = self.first_writer() + at;
        let it = &mut self.writers[at];
        let Some(is) = it.is else {
            let request = requests::init(&it.name(), work);
            let asking = (super::Question::Writing(Question::Init), request, 4);
            return self.places.to(client, node, asking);
        };
        if it.open.is_none() {
            if self.last_phase || self.keeper.written >= WRITES_MAX || !work.chance(300) {
                return None;
            }
            it.open = Some(Open { left: work.between(1, 3), ..Open::default() });
        }
        let open = it.open.as_ref().expect("it was just begun");
        if open.ends.is_none() && (open.pending.is_some() || open.left > 0) {
            self.write_batch((at, client), is, work)
        } else {
            self.end((at, client), is, node, work)
        }
    }

    fn write_batch(
        &mut self,
        (at, client): (usize, usize),
        (id, epoch): (i64, i16),
        work: &mut Prng,
    ) -> Option<Asking> {
        let it = &mut self.writers[at];
        let name = it.name();
        let open = it.open.as_mut().expect("it is written in one");
        if open.pending.is_none() {
            open.left -= 1;
            self.keeper.written += 1;
            let (number, partition) = (self.keeper.written, i32::from(work.chance(500)));
            let sequence = it.sequences.get(&partition).copied().unwrap_or(0);
            open.pending = Some((partition, batch_of(number, 1, Some((id, epoch, sequence)))));
            open.numbers.push(number);
            let batch = Batch { fate: Fate::Open, is_acknowledged: false, is_shown: None };
            self.deliveries.fates.all.insert(number, batch);
        }
        let (index, bytes) = open.pending.clone().expect("it was just made");
        let request = requests::produce_in(&name, TOPIC, index, bytes);
        let leader = self.keeper.leaders.get(TOPIC)?.get(&index).copied()?;
        let asking = (super::Question::Writing(Question::Batch), request, 12);
        self.places.to(client, leader, asking)
    }

    fn end(
        &mut self,
        (at, client): (usize, usize),
        (producer_id, producer_epoch): (i64, i16),
        node: i32,
        work: &mut Prng,
    ) -> Option<Asking> {
        let it = &mut self.writers[at];
        let transactional_id = it.name();
        let open = it.open.as_mut().expect("it is ended");
        let committed = *open.ends.get_or_insert_with(|| work.chance(600));
        let request = EndTxnRequest { transactional_id, producer_id, producer_epoch, committed };
        let asking = (super::Question::Writing(Question::End), request.into(), 5);
        let asking = self.places.to(client, node, asking)?;
        let fate = if committed { Fate::Asked } else { Fate::Aborted };
        self.deliveries.fates.set(&open.numbers, fate);
        Some(asking)
    }

    /// Makes a producer forget its transaction: if it did not ask for a commit, there was none.
    fn give_up(&mut self, at: usize) {
        let open = self.writers[at].open.take();
        if let Some(open) = open.filter(|open| open.ends != Some(true)) {
            self.deliveries.fates.set(&open.numbers, Fate::Aborted);
        }
    }
}

/// Answers to writers.
impl ShareGroup {
    pub(super) fn on_written(
        &mut self,
        at: usize,
        question: &Question,
        came: &Response,
    ) -> Result<(), Failure> {
        let it = &mut self.writers[at];
        match (question, came) {
            (Question::Find, Response::FindCoordinator(came)) => {
                it.coordinator = found(came);
                Ok(())
            }
            (Question::Init, Response::InitProducerId(came)) => {
                if came.error_code == 0 {
                    it.is = Some((came.producer_id, came.producer_epoch));
                    it.sequences.clear();
                }
                self.on_code(at, code_of(came.error_code), "InitProducerId")
            }
            (Question::Batch, Response::Produce(came)) => {
                let code = code_of(came.responses[0].partition_responses[0].error_code);
                if code.is_none()
                    && let Some(open) = &mut it.open
                    && let Some((partition, _)) = open.pending.take()
                {
                    *it.sequences.entry(partition).or_default() += 1;
                    let number = open.numbers.last().expect("it was written");
                    let batch = self.deliveries.fates.all.get_mut(number);
                    batch.expect("it was written").is_acknowledged = true;
                }
                self.on_code(at, code, "Produce")
            }
            (Question::End, Response::EndTxn(came)) => {
                let code = code_of(came.error_code);
                let fate = match code {
                    ErrorCode::None => Fate::Committed,
                    // Its time was over, or it never was.
                    ErrorCode::InvalidTxnState => Fate::Aborted,
                    code => return self.on_code(at, code, "EndTxn"),
                };
                let next = (came.producer_id, came.producer_epoch);
                it.is = Some(next).filter(|_| code.is_none());
                it.sequences.clear();
                let Some(open) = it.open.take() else { return Ok(()) };
                let fate = if open.ends == Some(true) { fate } else { Fate::Aborted };
                self.deliveries.fates.note(&open.numbers, fate)
            }
            (_, came) => unexpected(came),
        }
    }

    fn on_code(&mut self, at: usize, code: ErrorCode, what: &str) -> Result<(), Failure> {
        tell(|| format!("  bee {at}: {what} {code:?}"));
        let it = &mut self.writers[at];
        match code {
            ErrorCode::None | ErrorCode::ConcurrentTransactions => {}
            code if ends_transaction(code) => {
                it.is = None;
                self.give_up(at);
            }
            code if code.is_retriable() => {
                it.coordinator = None;
                self.keeper.forget();
            }
            code => return wrong(format!("bee {at}: {what} is answered with {code:?}")),
        }
        Ok(())
    }
}
