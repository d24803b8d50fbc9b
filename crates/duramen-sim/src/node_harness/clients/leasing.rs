//! Workers of one share group, clients that enqueue messages for them, and the messages that they may get.
//!
//! The topic has queues, and nobody else uses it. Some messages have a time, an end or a rank (`messages`). A client
//! speaks for any worker. It leases with and without a wait. It settles some leases, in any order, late, twice, or as
//! another worker. The group's settings are made beforehand: the order of keys, the number of deliveries, and the
//! topic of dead letters.
//!
//! Each answer of a node is judged when the node gives it, also where nobody hears it (`holds`). An empty answer is
//! judged, too: a worker that does not wait gets nothing only if there is nothing.
//!
//! In the end workers accept all that they lease, until the group may be done with each acknowledged message. Then
//! some workers wait for messages that are due later, and get them soon after that time. At last all messages that
//! nobody can have accepted are dead letters.

mod holds;
mod judging;
mod messages;

use std::collections::{BTreeMap, BTreeSet};

use duramen_broker::ConnectionId;
use duramen_broker::native::{Decision, Lease, Log, Op, Settle, Settlement, Target};
use duramen_broker::session::Prepared;

use self::holds::{Holds, Rules};
use self::messages::{Messages, partition_of};
use super::requests::{self, OF_GROUP, Patience, TIMELESS};
use crate::prng::Prng;

/// The topic of the messages. No other client uses it.
pub(super) const TOPIC: &str = "jobs";
const LETTERS: &str = "failed-jobs";
const GROUP: &str = "crew";
/// Number of these clients.
pub(super) const WORKERS: usize = 6;
const PARTITIONS: i32 = 2;
/// Workers by name: one of them has none.
const NAMES: [&str; 4] = ["ann", "bob", "eve", ""];
/// Names of former leases that clients remember.
const FORMER_MAX: usize = 40;
/// Longest delay of a message that a worker releases, in milliseconds.
const DELAY_MS_MAX: u64 = 1500;
/// Time in which a worker that does not wait has its answer, in microseconds: less than the node's patience.
const PATIENCE_US: u64 = 4_000_000;
/// Number of messages at the end for which a worker waits.
const PROBES: u64 = 2;
/// Time after which a worker that waits has a message that is due, in milliseconds; and its longest wait.
const LATE_MS: i64 = 6_000;
const WAIT_MS: i32 = 30_000;

/// A partition and an offset.
type Place = (i32, i64);

/// Decisions that a request brings.
#[derive(Clone, Debug)]
pub(super) struct Said {
    partition: i32,
    worker: String,
    settlements: Vec<Settlement>,
    request: u64,
    /// Number of the question among all questions and answers.
    moment: u64,
}

/// A worker's wish.
#[derive(Clone, Debug)]
pub(super) struct Demand {
    worker: String,
    /// -1 for all that the node leads.
    partition: i32,
    wait_ms: i32,
    moment: u64,
    /// Message for which alone the worker waits.
    probe: Option<u64>,
}

/// A question of one of these clients.
#[derive(Clone, Debug)]
pub(super) enum Question {
    Create(&'static str),
    Set,
    Enqueue {
        batch: u64,
    },
    Lease(Demand),
    Settle(Said),
    /// Fetch of dead letters.
    Letters,
}

/// Progress at the end of a run.
#[derive(Clone, Debug)]
enum Last {
    /// Workers accept all messages, at least until a time in milliseconds.
    Working(i64),
    /// A worker waits for a message: its number, and its state.
    Waiting(u64, Probe),
    /// Dead letters are read.
    Reading,
    Done,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Probe {
    New,
    /// The message is sent.
    Sent(u64),
    /// The message is in the log, and a worker is to wait for it.
    There(u64),
    /// A worker waits for it.
    Asked(u64),
}

/// See above.
#[derive(Debug)]
pub(super) struct Workers {
    work: Prng,
    made: BTreeSet<&'static str>,
    is_set: bool,
    topic_id: Option<[u8; 16]>,
    messages: Messages,
    holds: Holds,
    /// Leases that a client has heard of and nobody has settled yet, with their workers.
    held: BTreeMap<(i32, i64, i16), String>,
    /// Leases that somebody has settled, or lost.
    former: Vec<((i32, i64, i16), String)>,
    /// Decisions that went to a node that does not lead.
    again: Vec<Said>,
    /// Questions of workers on their way, or lost.
    asked: BTreeMap<(ConnectionId, u64), Question>,
    moment: u64,
    requests: u64,
    last: Option<Last>,
    /// Offset at which the next fetch of dead letters begins.
    letters_at: i64,
    leaps: bool,
    /// True if disks rot: leased records may be damaged.
    rots: bool,
}

/// Facts from the other clients.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts {
    pub(super) wall_ms: i64,
    /// True if clocks leap in this run.
    pub(super) leaps: bool,
    pub(super) rots: bool,
    /// True if a process may have begun with a clock that was wrong.
    pub(super) lies: bool,
}

impl Workers {
    /// Returns the workers of a run, if it has some.
    pub(super) fn of(seed: u64) -> Option<Self> {
        if seed % 16 != 9 {
            return None;
        }
        let mut work = Prng::new(seed, "leases");
        let rules = Rules {
            by_key: work.chance(300),
            deliveries_max: *work.pick(&[2, 3, 5]),
            lock_us: *work.pick(&[1_000_000, 1_000_000, 2_000_000]),
            has_letters: work.chance(500),
        };
        let queues = *work.pick(&[2, 4, 9]);
        Some(Self {
            work,
            made: BTreeSet::new(),
            is_set: false,
            topic_id: None,
            messages: Messages::new(queues),
            holds: Holds::new(rules),
            held: BTreeMap::new(),
            former: Vec::new(),
            again: Vec::new(),
            asked: BTreeMap::new(),
            moment: 0,
            requests: 0,
            last: None,
            letters_at: 0,
            leaps: false,
            rots: false,
        })
    }

    /// Returns the numbers of leases, of decisions that were taken, and of dead letters.
    pub(super) fn totals(&self) -> (u64, u64, u64) {
        (self.holds.leased, self.holds.settled, self.holds.letters())
    }

    pub(super) fn begin_last_phase(&mut self) {
        // The time begins with the next question.
        self.last = Some(Last::Working(0));
    }

    pub(super) fn is_done(&self) -> bool {
        matches!(self.last, Some(Last::Done))
    }

    /// Describes in brief what is left to do.
    pub(super) fn told(&self) -> String {
        let open = self.holds.open(&self.messages, (i64::MIN, false));
        format!("{:?} open: {open:?} held: {:?} again: {:?}", self.last, self.held, self.again)
    }

    /// Returns a request that one of the clients asks now, if it does.
    pub(super) fn choose(&mut self, facts: Facts) -> Option<(Question, Prepared)> {
        (self.leaps, self.rots) = (facts.leaps, facts.rots);
        self.moment += 1;
        if let Some(asked) = self.prepare() {
            return Some(asked);
        }
        if !self.again.is_empty() && (self.last.is_some() || self.work.chance(300)) {
            let said = self.again.swap_remove(self.work.index(self.again.len()));
            return Some(self.settle(said.partition, said.worker, said.settlements));
        }
        if self.last.is_some() {
            return self.choose_last(facts);
        }
        match self.work.below(20) {
            0..=4 if !self.messages.are_many() => {
                Some(self.messages.enqueue(&mut self.work, (facts.wall_ms, facts.leaps)))
            }
            5 if !self.messages.are_many() => {
                Some(self.messages.produce(&mut self.work, (facts.wall_ms, facts.leaps)))
            }
            6..=11 => {
                let (records, bytes) =
                    (*self.work.pick(&[1, 2, 5, 20]), *self.work.pick(&[1, 1000, 1 << 20]));
                let wait_ms = *self.work.pick(&[0, 0, 0, 1, 100, 3000]);
                let partition = *self.work.pick(&[-1, -1, 0, 1]);
                Some(self.lease((partition, wait_ms), (records, bytes), None))
            }
            12..=17 => self.settle_some(),
            18 => self.settle_late(),
            _ => None,
        }
    }

    /// Prepares topics and settings first: a node that knows the topic knows the group's settings.
    fn prepare(&self) -> Option<(Question, Prepared)> {
        let rules = &self.holds.rules;
        let lacks = |name: &&str| !self.made.contains(name);
        if let Some(name) = Some(LETTERS).filter(|_| rules.has_letters).filter(lacks) {
            let enabled = ("errors.deadletterqueue.group.enable", "true");
            let request = requests::create(name, 1, -1, &[TIMELESS[0], TIMELESS[1], enabled]);
            return Some((Question::Create(name), Prepared::Request(request)));
        }
        if self.is_set {
            let queues = ("queue.enable", "true");
            let settings = [TIMELESS[0], TIMELESS[1], queues, ("segment.bytes", "16384")];
            let name = Some(TOPIC).filter(lacks)?;
            let request = requests::create(name, PARTITIONS, -1, &settings);
            return Some((Question::Create(name), Prepared::Request(request)));
        }
        let lock_ms = (rules.lock_us / 1000).to_string();
        let most = rules.deliveries_max.to_string();
        let settings = [
            ("share.record.order", if rules.by_key { "key" } else { "none" }),
            ("share.record.lock.duration.ms", &lock_ms),
            ("share.delivery.count.limit", &most),
        ];
        let letters = Some(("errors.deadletterqueue.topic.name", LETTERS));
        let settings = settings.into_iter().chain(letters.filter(|_| rules.has_letters));
        let settings = settings.map(|(name, value)| (name, Some(value)));
        let request = requests::alter((OF_GROUP, GROUP), settings);
        Some((Question::Set, Prepared::Request(request)))
    }

    fn lease(
        &mut self,
        (partition, wait_ms): (i32, i32),
        (records, bytes): (i64, u64),
        probe: Option<u64>,
    ) -> (Question, Prepared) {
        let worker = (*self.work.pick(&NAMES)).to_owned();
        let moment = self.moment;
        let demand = Demand { worker: worker.clone(), partition, wait_ms, moment, probe };
        let op = Op::Lease(Lease {
            target: Target::Log(Log { topic: TOPIC.to_owned(), partition }),
            group: GROUP.to_owned(),
            worker,
            records,
            bytes,
            wait_ms,
        });
        (Question::Lease(demand), Prepared::Native(Box::new(op)))
    }

    fn settle(
        &mut self,
        partition: i32,
        worker: String,
        settlements: Vec<Settlement>,
    ) -> (Question, Prepared) {
        self.requests += 1;
        let (request, moment) = (self.requests, self.moment);
        let said = Said {
            partition,
            worker: worker.clone(),
            settlements: settlements.clone(),
            request,
            moment,
        };
        self.holds.on_said(&said);
        let op = Op::Settle(Settle {
            target: Target::Log(Log { topic: TOPIC.to_owned(), partition }),
            group: GROUP.to_owned(),
            worker,
            settlements,
        });
        (Question::Settle(said), Prepared::Native(Box::new(op)))
    }

    /// Draws a decision. Where clocks leap, nothing is released for later: a clock may never come to that time.
    fn decision(&mut self) -> Decision {
        match self.work.below(20) {
            0..=10 => Decision::Accept,
            11..=12 => Decision::Release { delay_ms: 0 },
            13..=14 => {
                let delay_ms = i64::try_from(self.work.between(1, DELAY_MS_MAX)).expect("small");
                Decision::Release { delay_ms: if self.leaps { 0 } else { delay_ms } }
            }
            15..=16 => Decision::Reject,
            17 => Decision::Unseen,
            _ => Decision::Renew,
        }
    }

    /// Settles some leases of one worker in one partition, if clients know of any.
    fn settle_some(&mut self) -> Option<(Question, Prepared)> {
        let at = self.work.index(self.held.len().max(1));
        let (&(partition, ..), worker) = self.held.iter().nth(at)?;
        let mut worker = worker.clone();
        let its = self.held.iter().filter(|(name, of)| name.0 == partition && **of == worker);
        let all: Vec<(i32, i64, i16)> = its.map(|(name, _)| *name).collect();
        let is_last = self.last.is_some();
        let mut settlements: Vec<Settlement> = Vec::new();
        for name in all {
            // Each record once.
            let is_there = settlements.iter().any(|it| it.offset == name.1);
            if is_there || !is_last && self.work.chance(400) {
                continue;
            }
            let decision = if is_last { Decision::Accept } else { self.decision() };
            settlements.push(Settlement { offset: name.1, deliveries: name.2, decision });
            if decision != Decision::Renew {
                self.held.remove(&name);
                self.note_former(name, &worker);
            }
        }
        if settlements.is_empty() {
            return None;
        }
        if !is_last && self.work.chance(50) {
            worker = String::from(*self.work.pick(&NAMES));
        }
        Some(self.settle(partition, worker, settlements))
    }

    fn note_former(&mut self, name: (i32, i64, i16), worker: &str) {
        if self.former.len() >= FORMER_MAX {
            self.former.swap_remove(self.work.index(FORMER_MAX));
        }
        self.former.push((name, worker.to_owned()));
    }

    /// Settles a lease that was settled before.
    fn settle_late(&mut self) -> Option<(Question, Prepared)> {
        let at = self.work.index(self.former.len().max(1));
        let ((partition, offset, deliveries), worker) = self.former.get(at)?.clone();
        let decision = self.decision();
        Some(self.settle(partition, worker, vec![Settlement { offset, deliveries, decision }]))
    }

    /// Returns a request of the last phase, if there is something to ask.
    fn choose_last(&mut self, facts: Facts) -> Option<(Question, Prepared)> {
        if let Some(asked) = self.settle_some() {
            return Some(asked);
        }
        match self.last.clone()? {
            Last::Working(until_ms) => {
                let lock_ms = i64::try_from(self.holds.rules.lock_us / 1000).expect("small");
                let delay_ms = i64::try_from(DELAY_MS_MAX).expect("small");
                if until_ms == 0 {
                    let until_ms = facts.wall_ms + 2 * lock_ms + delay_ms;
                    self.last = Some(Last::Working(until_ms));
                    return None;
                }
                let open = self.holds.open(&self.messages, (facts.wall_ms, facts.lies));
                if open.is_none() && facts.wall_ms >= until_ms {
                    let waits = Last::Waiting(PROBES, Probe::New);
                    self.last = Some(if facts.leaps { Last::Reading } else { waits });
                    return None;
                }
                let partition = *self.work.pick(&[-1, 0, 1]);
                Some(self.lease((partition, 0), (20, 1 << 20), None))
            }
            Last::Waiting(0, _) => {
                self.last = Some(Last::Reading);
                None
            }
            Last::Waiting(left, probe) => self.wait_for_one(left, probe, facts.wall_ms),
            Last::Reading => {
                let unburied = self.holds.unburied(&self.messages, facts.lies);
                if unburied.is_none() || !self.holds.rules.has_letters {
                    self.last = Some(Last::Done);
                    return None;
                }
                let target = ((LETTERS.to_owned(), 0), None);
                let patience = Patience { wait_ms: 100, bytes: 10_000 };
                let mut request = requests::fetch(&[(target, self.letters_at)], patience);
                request.replica_id = -1;
                Some((Question::Letters, Prepared::Request(request.into())))
            }
            Last::Done => None,
        }
    }

    /// Has a worker wait for a message that is due later.
    fn wait_for_one(
        &mut self,
        left: u64,
        probe: Probe,
        wall_ms: i64,
    ) -> Option<(Question, Prepared)> {
        match probe {
            Probe::New => {
                let queue = self.work.pick(&self.messages.queues).clone();
                let later_ms = i64::try_from(self.work.between(1, 2000)).expect("small");
                let times = (wall_ms, wall_ms + later_ms);
                let (number, question, request) = self.messages.enqueue_delayed(&queue, times);
                self.last = Some(Last::Waiting(left, Probe::Sent(number)));
                Some((question, request))
            }
            Probe::There(number) => {
                let partition = partition_of(&self.messages.all[&number].queue);
                self.last = Some(Last::Waiting(left, Probe::Asked(number)));
                Some(self.lease((partition, WAIT_MS), (20, 1 << 20), Some(number)))
            }
            Probe::Sent(_) | Probe::Asked(_) => None,
        }
    }

    /// Notes a question to a node.
    pub(super) fn on_asked(&mut self, to: (ConnectionId, u64), question: &Question) {
        if matches!(question, Question::Lease(_) | Question::Settle(_)) {
            self.asked.insert(to, question.clone());
        }
    }

    /// Notes that nobody hears the answer to a question.
    pub(super) fn on_lost(&mut self, question: &Question) {
        let Some(Last::Waiting(left, probe)) = self.last else { return };
        let next = match (question, probe) {
            (Question::Enqueue { .. }, Probe::Sent(_)) => Probe::New,
            (Question::Lease(Demand { probe: Some(_), .. }), Probe::Asked(number)) => {
                Probe::There(number)
            }
            _ => return,
        };
        self.last = Some(Last::Waiting(left, next));
    }
}
