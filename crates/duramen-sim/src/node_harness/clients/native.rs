//! Clients of the native API: they append under guards, fence and truncate logs that other clients use, too.
//!
//! A refusal means that nothing was appended, and is a leader's. An append under a guard is where the guard says. A
//! token that another one replaced lets nothing in, and no fence or pointer that was seen is forgotten.

use std::collections::BTreeMap;

use bytes::Bytes;
use duramen_broker::ConnectionId;
use duramen_broker::checked_batch::CheckedBatch;
use duramen_broker::native::{
    Answer, Answered, Append, Guard, Last, Log, Op, Pointer, Position, Problem, SetFence, Tail,
    Target, Truncate, WantTail,
};
use duramen_broker::session::{Prepared, RequestContext};
use duramen_protocol::Response;
use duramen_protocol::compression::Codec;

use super::super::oracle::{Oracle, Place, Standing};
use super::leasing::{self, Facts, WORKERS, Workers};
use super::queueing::{self, QUEUERS, Queuers};
use super::{CLIENTS, Clients, PARTITIONS};
use crate::batch::Records;
use crate::failure::{Failure, wrong};
use crate::machine::{Shown, Worked};
use crate::prng::Prng;
use crate::trace::tell;

/// The topic that these clients use. It is never deleted: the native API names a topic by its name alone.
pub(super) const TOPIC: &str = "pears";
/// Number of these clients.
const NATIVES: usize = 3;
const TIMEOUT_MS: i32 = 10_000;

/// A question of one of these clients, as far as its answer is judged by it.
#[derive(Clone, Debug)]
pub(super) struct Question {
    place: Place,
    asked: Asked,
    /// Number of the token that must be the fence.
    fence: Option<u64>,
    /// End of the log that clients knew when the question was asked.
    least: i64,
    /// Moment of the question.
    sent: u64,
}

#[derive(Clone, Debug)]
enum Asked {
    Append {
        number: u64,
        count: i64,
        last: Option<Last>,
    },
    Tail {
        is_certain: bool,
    },
    Truncate {
        offset: i64,
        pointer: Option<u64>,
    },
    Fence {
        token: u64,
    },
    /// Of a queue: the other fields say nothing.
    Queue(queueing::Question),
    /// Of a worker: likewise.
    Work(leasing::Question),
}

/// A fence or pointer that somebody asked for. Each is asked for once.
#[derive(Clone, Copy, Debug)]
struct Mark {
    sent: u64,
    /// Moment when it was seen to be the log's.
    known: Option<u64>,
    /// Moment when it was answered: it cannot become the log's later.
    settled: Option<u64>,
    /// For a fence, the end of the log that its answer told; for a pointer, the offset of its truncation.
    offset: i64,
}

impl Mark {
    fn new(sent: u64, offset: i64) -> Self {
        Self { sent, known: None, settled: None, offset }
    }
}

/// Facts about one log.
#[derive(Debug, Default)]
struct Seen {
    /// Term and entry of the offsets whose positions were told.
    positions: BTreeMap<i64, (i32, i64)>,
    fences: BTreeMap<u64, Mark>,
    pointers: BTreeMap<u64, Mark>,
}

/// One client's view of the logs.
#[derive(Debug, Default)]
struct Native {
    last: BTreeMap<Place, Option<Position>>,
    tokens: BTreeMap<Place, u64>,
}

/// See above.
#[derive(Debug, Default)]
pub(super) struct Natives {
    all: Vec<Native>,
    /// Clients of queues, if there are some: these come last.
    queuers: Option<Queuers>,
    /// Workers, if there are some: these come after them.
    workers: Option<Workers>,
    logs: BTreeMap<Place, Seen>,
    /// Counts questions and answers.
    moment: u64,
    /// Clients that were told of the leader, each with it.
    aims: Vec<(usize, i32)>,
    /// Logs whose ends have to be told before the run is over.
    untold: Vec<Place>,
    /// Operations that were done, and refusals by a guard.
    done: u64,
    refused: u64,
}

/// Things that a client needs to ask: chance, the other clients' knowledge, and the number of the next batch.
struct Means<'a> {
    work: &'a mut Prng,
    oracle: &'a mut Oracle,
    next_batch: &'a mut u64,
    wall_ms: i64,
    /// True if clocks leap; and if disks rot.
    leaps: bool,
    rots: bool,
}

impl Means<'_> {
    fn facts(&self) -> Facts {
        let (wall_ms, leaps, rots) = (self.wall_ms, self.leaps, self.rots);
        Facts { wall_ms, leaps, rots, lies: self.oracle.trims_by_time }
    }
}

fn bytes_of(number: u64) -> Bytes {
    Bytes::copy_from_slice(&number.to_be_bytes())
}

fn number_of(token: &[u8]) -> Option<u64> {
    token.try_into().ok().map(u64::from_be_bytes)
}

impl Clients {
    /// Turns clients of the native API off: a log that lost its records without an entry has no last position.
    pub(crate) fn spare_natives(&mut self) {
        self.natives = None;
    }

    pub(super) fn first_native(&self) -> usize {
        CLIENTS + self.crowds.len()
    }

    /// Returns an operation of the native API. No session reads it.
    pub(super) fn ask_natively(
        &mut self,
        at: usize,
        native: usize,
        wall_ms: i64,
    ) -> Option<super::Question> {
        let natives = self.natives.as_mut()?;
        if let Some(lost) = self.all[at].lost.take() {
            natives.on_lost(&lost);
        }
        let (work, oracle) = (&mut self.work, &mut self.oracle);
        let (next_batch, leaps, rots) = (&mut self.next_batch, self.leaps, self.rots);
        let means = &mut Means { work, oracle, next_batch, wall_ms, leaps, rots };
        let (question, request) = natives.choose(native, means)?;
        self.correlation += 1;
        self.requests += 1;
        let connection = self.all[at].connection;
        tell(|| format!("client {at} asks {question:?} on {connection:?}"));
        let context = RequestContext {
            principal: "User:ANONYMOUS".into(),
            client_id: None,
            listener: "NATIVE".into(),
            client_host: "/127.0.0.1".into(),
            api: request.api(),
            version: 0,
            spent_us: 0,
            is_ruled: false,
        };
        let sequence = u64::from(self.correlation.unsigned_abs());
        natives.on_asked((connection, sequence), &question);
        let client = &mut self.all[at];
        client.outstanding = Some((None, super::Asked::Native(question)));
        Some((client.connection, sequence, context, Box::new(request)))
    }

    /// Judges the answer to an operation.
    pub(super) fn on_answered(&mut self, at: usize, answered: &Answered) -> Result<(), Failure> {
        let first = self.first_native();
        match (self.all[at].outstanding.take(), &mut self.natives) {
            (Some((_, super::Asked::Native(question))), Some(natives)) => {
                let oracle = &mut self.oracle;
                natives.on_answer(oracle, self.leaps, at - first, &question, answered)
            }
            (other, _) => wrong(format!("a native answer to {other:?}: {answered:?}")),
        }
    }

    /// Judges the answer to a worker, even if nobody hears it.
    pub(super) fn on_worked(
        &mut self,
        to: (ConnectionId, u64),
        worked: &Worked,
    ) -> Result<(), Failure> {
        let first = self.first_native();
        let Some(natives) = &mut self.natives else { return wrong("an answer to no worker") };
        natives.witness(to, worked)?;
        let Some(at) = self.all.iter().position(|client| client.connection == to.0) else {
            return Ok(());
        };
        match self.all[at].outstanding.take() {
            Some((_, super::Asked::Native(question))) => {
                natives.on_heard(at - first, &question, worked);
                Ok(())
            }
            other => wrong(format!("a worker's answer to {other:?}: {worked:?}")),
        }
    }

    /// Judges a page of a queue.
    pub(super) fn on_page(
        &mut self,
        at: usize,
        elements: &[Shown],
        end: (Option<Position>, bool),
    ) -> Result<(), Failure> {
        match (self.all[at].outstanding.take(), &mut self.natives) {
            (Some((_, super::Asked::Native(question))), Some(natives)) => {
                natives.on_page(&question, elements, end)
            }
            (other, _) => wrong(format!("a page answers {other:?}")),
        }
    }

    /// Judges a response to a client of the native API.
    pub(super) fn on_kafkas(&mut self, at: usize, response: &Response) -> Result<(), Failure> {
        match (self.all[at].outstanding.take(), &mut self.natives) {
            (
                Some((_, super::Asked::Native(Question { asked: Asked::Queue(asked), .. }))),
                Some(Natives { queuers: Some(queuers), .. }),
            ) => queuers.on_kafkas(&asked, response),
            (
                Some((_, super::Asked::Native(Question { asked: Asked::Work(asked), .. }))),
                Some(Natives { workers: Some(workers), .. }),
            ) => {
                let (wall_ms, lies) = (self.oracle.now_ms, self.oracle.trims_by_time);
                let facts = Facts { wall_ms, leaps: self.leaps, rots: self.rots, lies };
                workers.on_kafkas(&asked, response, facts)
            }
            (other, _) => wrong(format!("{response:?} answers {other:?}")),
        }
    }

    /// Returns the number of native operations that were done, and of those that a guard refused.
    pub(crate) fn operated(&self) -> (u64, u64) {
        self.natives.as_ref().map_or((0, 0), |natives| (natives.done, natives.refused))
    }

    /// Returns the numbers of leases, of decisions on them, and of dead letters.
    pub(crate) fn worked(&self) -> (u64, u64, u64) {
        let workers = self.natives.as_ref().and_then(|natives| natives.workers.as_ref());
        workers.map_or((0, 0, 0), Workers::totals)
    }
}

impl Natives {
    /// Returns the clients of a run, if it has some.
    pub(super) fn of(seed: u64) -> Option<Self> {
        let all = (0..NATIVES).map(|_| Native::default()).collect();
        let (queuers, workers) = (Queuers::of(seed), Workers::of(seed));
        (seed % 4 == 1).then(|| Self { all, queuers, workers, ..Self::default() })
    }

    fn first_worker(&self) -> usize {
        self.all.len() + self.queuers.as_ref().map_or(0, |_| QUEUERS)
    }

    /// Returns the number of clients.
    pub(super) fn len(&self) -> usize {
        self.first_worker() + self.workers.as_ref().map_or(0, |_| WORKERS)
    }

    /// Tells whether some clients are workers.
    pub(super) fn has_workers(&self) -> bool {
        self.workers.is_some()
    }

    /// Describes what the workers have left to do.
    pub(super) fn told(&self) -> String {
        self.workers.as_ref().map(Workers::told).unwrap_or_default()
    }

    fn on_asked(&mut self, to: (ConnectionId, u64), question: &Question) {
        if let (Asked::Work(asked), Some(workers)) = (&question.asked, &mut self.workers) {
            workers.on_asked(to, asked);
        }
    }

    /// Notes that nobody hears the answer to a question.
    fn on_lost(&mut self, question: &Question) {
        match (&question.asked, &mut self.queuers, &mut self.workers) {
            (Asked::Queue(lost), Some(queuers), _) => queuers.on_lost(lost),
            (Asked::Work(lost), _, Some(workers)) => workers.on_lost(lost),
            _ => {}
        }
    }

    fn witness(&mut self, to: (ConnectionId, u64), worked: &Worked) -> Result<(), Failure> {
        tell(|| format!("  worker on {to:?}: {worked:?}"));
        match &mut self.workers {
            Some(workers) => workers.witness(to, worked),
            None => wrong(format!("{worked:?} answers no worker")),
        }
    }

    /// Takes the answer that worker `at` hears.
    fn on_heard(&mut self, at: usize, question: &Question, worked: &Worked) {
        self.done += 1;
        if let (Asked::Work(asked), Some(workers)) = (&question.asked, &mut self.workers)
            && let Some(node) = workers.on_heard(asked, worked)
        {
            self.aims.push((at, node));
        }
    }

    pub(super) fn take_aims(&mut self) -> Vec<(usize, i32)> {
        std::mem::take(&mut self.aims)
    }

    /// Has nothing expire in queues.
    pub(super) fn spare_expiry(&mut self, spares: bool) {
        self.queuers.iter_mut().for_each(|it| it.spares_expiry = spares);
    }

    pub(super) fn begin_last_phase(&mut self) {
        self.untold = (0..PARTITIONS).map(|partition| (TOPIC.to_owned(), partition)).collect();
        self.queuers.iter_mut().for_each(Queuers::begin_last_phase);
        self.workers.iter_mut().for_each(Workers::begin_last_phase);
    }

    /// Tells whether some clients use queues.
    pub(super) fn has_queues(&self) -> bool {
        self.queuers.is_some()
    }

    /// Tells whether acknowledged edits took the record at an offset of the queues' log away.
    pub(super) fn is_gone(&self, partition: i32, offset: i64) -> bool {
        self.queuers.as_ref().is_some_and(|queuers| queuers.is_gone(partition, offset))
    }

    pub(super) fn is_done(&self) -> bool {
        self.untold.is_empty()
            && self.queuers.as_ref().is_none_or(Queuers::is_done)
            && self.workers.as_ref().is_none_or(Workers::is_done)
    }

    /// Returns an operation that client `at` asks for now, if it does.
    fn choose(&mut self, at: usize, means: &mut Means<'_>) -> Option<(Question, Prepared)> {
        if at >= self.first_worker() {
            let (asked, request) = self.workers.as_mut()?.choose(means.facts())?;
            let place = (leasing::TOPIC.to_owned(), 0);
            let question =
                Question { place, asked: Asked::Work(asked), fence: None, least: 0, sent: 0 };
            return Some((question, request));
        }
        if at >= self.all.len() {
            let (work, wall_ms) = (&mut *means.work, means.wall_ms);
            let (asked, request) = self.queuers.as_mut()?.choose(work, wall_ms);
            let place = (queueing::TOPIC.to_owned(), 0);
            let question =
                Question { place, asked: Asked::Queue(asked), fence: None, least: 0, sent: 0 };
            return Some((question, request));
        }
        let (question, op) = self.choose_on_logs(at, means)?;
        Some((question, Prepared::Native(Box::new(op))))
    }

    fn choose_on_logs(&mut self, at: usize, means: &mut Means<'_>) -> Option<(Question, Op)> {
        if means.oracle.topics[TOPIC].standing != Standing::Live {
            return None;
        }
        if let Some(place) = self.untold.last().cloned() {
            return Some(self.tail(place, means, true));
        }
        let partition = i32::try_from(means.work.below(2)).expect("small");
        let place = (TOPIC.to_owned(), partition);
        match means.work.below(20) {
            0..=12 => Some(self.append(at, place, means)),
            13..=15 => {
                let is_certain = means.work.chance(700);
                Some(self.tail(place, means, is_certain))
            }
            16 if means.work.chance(400) => self.truncate(at, place, means),
            17 => Some(self.set_fence(at, place, means)),
            _ => None,
        }
    }

    fn question(&mut self, place: Place, asked: Asked, oracle: &mut Oracle) -> Question {
        self.moment += 1;
        let known = oracle.known(&place);
        let least = known.end_seen.max(known.acked_end());
        Question { place, asked, fence: None, least, sent: self.moment }
    }

    fn append(&mut self, at: usize, place: Place, means: &mut Means<'_>) -> (Question, Op) {
        *means.next_batch += 1;
        let number = *means.next_batch;
        let count = i64::try_from(means.work.between(1, 3)).expect("small");
        let mut value = number.to_be_bytes().to_vec();
        value.resize(usize::try_from(means.work.between(8, 120)).expect("small"), 7);
        let records = Records {
            timestamps: (0..count).map(|it| means.wall_ms + it).collect(),
            value,
            producer: (-1, -1, -1),
            log_append_time: false,
            codec: Codec::None,
        };
        let bytes = Bytes::from(records.encode(0, 0));
        let client = &self.all[at];
        let last = client.last.get(&place).filter(|_| means.work.chance(700));
        let last = last.map(|last| last.map_or(Last::Nothing, Last::At));
        let fence = client.tokens.get(&place).copied().filter(|_| means.work.chance(500));
        means.oracle.on_sent(number, (&place, 0), (count, bytes.len()), false);
        let asked = Asked::Append { number, count, last };
        let question = Question { fence, ..self.question(place, asked, means.oracle) };
        let mut batch = CheckedBatch::of(bytes, 0).expect("batches here are right");
        batch.guard = Guard { last, fence: fence.map(bytes_of), queue: None };
        let op = Op::Append(Append {
            target: target(&question.place),
            batch,
            ids: Vec::new(),
            is_patient: false,
            timeout_ms: TIMEOUT_MS,
        });
        (question, op)
    }

    fn tail(&mut self, place: Place, means: &mut Means<'_>, is_certain: bool) -> (Question, Op) {
        let question = self.question(place, Asked::Tail { is_certain }, means.oracle);
        let op = Op::Tail(WantTail { target: target(&question.place), is_certain });
        (question, op)
    }

    /// Truncates up to a position that was told.
    fn truncate(
        &mut self,
        at: usize,
        place: Place,
        means: &mut Means<'_>,
    ) -> Option<(Question, Op)> {
        let seen = self.logs.get_mut(&place)?;
        let which = means.work.index(seen.positions.len().max(1));
        let (offset, (term, entry)) = seen.positions.iter().nth(which)?;
        let through = Position { term: *term, entry: *entry, offset: *offset };
        let offset = through.offset + 1;
        let pointer = means.work.chance(600).then_some(self.moment + 1);
        if let Some(number) = pointer {
            seen.pointers.insert(number, Mark::new(self.moment + 1, offset));
        }
        means.oracle.on_trim_sent(&place, offset);
        let fence = self.all[at].tokens.get(&place).copied().filter(|_| means.work.chance(300));
        let asked = Asked::Truncate { offset, pointer };
        let question = Question { fence, ..self.question(place, asked, means.oracle) };
        let op = Op::Truncate(Truncate {
            target: target(&question.place),
            through: Some(through),
            pointer: pointer.map(|number| Pointer {
                uri: number.to_string(),
                position: Some(through),
                ..Pointer::default()
            }),
            fence: fence.map(bytes_of),
            timeout_ms: TIMEOUT_MS,
        });
        Some((question, op))
    }

    fn set_fence(&mut self, at: usize, place: Place, means: &mut Means<'_>) -> (Question, Op) {
        let token = self.moment + 1;
        let mark = Mark::new(token, -1);
        self.logs.entry(place.clone()).or_default().fences.insert(token, mark);
        let fence = self.all[at].tokens.get(&place).copied().filter(|_| means.work.chance(500));
        let question =
            Question { fence, ..self.question(place, Asked::Fence { token }, means.oracle) };
        let op = Op::Fence(SetFence {
            target: target(&question.place),
            token: bytes_of(token),
            if_token: fence.map(bytes_of),
            timeout_ms: TIMEOUT_MS,
        });
        (question, op)
    }

    /// Judges the answer to client `at`.
    fn on_answer(
        &mut self,
        oracle: &mut Oracle,
        leaps: bool,
        at: usize,
        question: &Question,
        answered: &Answered,
    ) -> Result<(), Failure> {
        self.moment += 1;
        tell(|| format!("  native {question:?}: {:?}", answered.answer));
        if let (Asked::Queue(asked), Some(queuers)) = (&question.asked, &mut self.queuers) {
            if let Err(Problem::Elsewhere(node, _)) = &answered.answer {
                self.aims.push((at, *node));
            }
            return queuers.on_answer(asked, &answered.answer);
        }
        if let (Asked::Work(asked), Some(workers)) = (&question.asked, &mut self.workers) {
            if let Err(Problem::Elsewhere(node, _)) = &answered.answer {
                self.aims.push((at, *node));
            }
            return workers.on_answer(asked, &answered.answer);
        }
        if let Asked::Truncate { offset, .. } = question.asked {
            oracle.on_trim_answered(&question.place, offset);
        }
        self.settle(question, &answered.answer);
        match &answered.answer {
            Ok(Answer::Appended { first, last, is_duplicate: false }) => {
                self.done += 1;
                self.on_appended(oracle, question, *first, *last)?;
                self.all[at].last.insert(question.place.clone(), Some(*last));
                Ok(())
            }
            Ok(Answer::Tail(tail)) => {
                self.done += 1;
                self.on_tail(oracle, question, tail)?;
                self.all[at].last.insert(question.place.clone(), tail.last);
                if let Some(token) = number_of(&tail.fence) {
                    self.all[at].tokens.insert(question.place.clone(), token);
                }
                Ok(())
            }
            Ok(other) => wrong(format!("{question:?} is answered with {other:?}")),
            Err(problem) => self.on_problem(oracle, leaps, at, question, problem),
        }
    }

    fn on_page(
        &mut self,
        question: &Question,
        elements: &[Shown],
        end: (Option<Position>, bool),
    ) -> Result<(), Failure> {
        tell(|| format!("  native {question:?}: {elements:?} {end:?}"));
        self.done += 1;
        match (&question.asked, &mut self.queuers) {
            (Asked::Queue(asked), Some(queuers)) => queuers.on_page(asked, elements, end),
            _ => wrong(format!("a page answers {question:?}")),
        }
    }

    /// Notes the moment after which a fence or pointer cannot become the log's any more, if it is not by now.
    fn settle(&mut self, question: &Question, answer: &Result<Answer, Problem>) {
        if matches!(answer, Err(Problem::OutcomeUnknown)) {
            return;
        }
        let seen = self.logs.entry(question.place.clone()).or_default();
        let mark = match question.asked {
            Asked::Fence { token } => seen.fences.get_mut(&token),
            Asked::Truncate { pointer: Some(number), .. } => seen.pointers.get_mut(&number),
            _ => None,
        };
        if let Some(mark) = mark {
            mark.settled = Some(self.moment);
        }
    }

    fn on_appended(
        &mut self,
        oracle: &mut Oracle,
        question: &Question,
        first: Position,
        last: Position,
    ) -> Result<(), Failure> {
        let Asked::Append { number, count, last: expected } = &question.asked else {
            return wrong(format!("{question:?} is answered as an append"));
        };
        let is_whole = first.entry == first.offset
            && (last.term, last.entry) == (first.term, first.entry)
            && last.offset == first.offset + count - 1;
        if !is_whole {
            return wrong(format!("batch {number} of {count} records is at {first:?} to {last:?}"));
        }
        let is_right = match expected {
            None => true,
            Some(Last::Nothing) => first.offset == 0,
            Some(Last::At(at)) => first.offset == at.offset + 1 && first.term >= at.term,
        };
        if !is_right {
            return wrong(format!(
                "batch {number} was to follow {expected:?}, and is at {first:?}"
            ));
        }
        self.on_position(&question.place, first)?;
        self.on_position(&question.place, last)?;
        if let Some(token) = question.fence {
            self.on_let_in(question, token)?;
            let fences = &self.logs[&question.place].fences;
            let since = fences[&token].known.expect("it let something in");
            let is_before =
                |it: &&Mark| it.sent > since && it.offset >= 0 && it.offset <= first.offset;
            if let Some(by) = fences.values().find(is_before) {
                return wrong(format!("{first:?} has token {token}, and is behind {by:?}"));
            }
        }
        oracle.on_acked(*number, first.offset)
    }

    /// Judges that a token was taken for the fence at some moment since the question was asked.
    fn on_let_in(&mut self, question: &Question, token: u64) -> Result<(), Failure> {
        let moment = self.moment;
        let fences = &mut self.logs.entry(question.place.clone()).or_default().fences;
        let Some(mark) = fences.get_mut(&token) else {
            return wrong(format!("{:?} has a fence that nobody set: {token}", question.place));
        };
        let since = *mark.known.get_or_insert(moment);
        let replaced =
            |it: &&Mark| it.sent > since && it.known.is_some_and(|it| it < question.sent);
        match fences.values().find(replaced) {
            Some(by) => wrong(format!("{question:?}: token {token} was replaced: {by:?}")),
            None => Ok(()),
        }
    }

    /// Judges that a token was refused.
    fn on_fenced(&self, question: &Question) -> Result<(), Failure> {
        let Some(token) = question.fence else {
            // The fence was set, and another one since.
            let is_fence = matches!(question.asked, Asked::Fence { .. });
            let why = || wrong(format!("{question:?} is fenced, and names no token"));
            return if is_fence { Ok(()) } else { why() };
        };
        let fences = &self.logs[&question.place].fences;
        let Some(since) = fences[&token].known.filter(|it| *it < question.sent) else {
            return Ok(());
        };
        let mut others = fences.iter().filter(|(other, _)| **other != token);
        let is_over = |it: &Mark| it.settled.is_some_and(|settled| settled < since);
        if others.all(|(_, it)| is_over(it)) {
            return wrong(format!("{question:?} is fenced, and nobody replaced the token"));
        }
        Ok(())
    }

    fn on_position(&mut self, place: &Place, position: Position) -> Result<(), Failure> {
        let Position { term, entry, offset } = position;
        if term < 0 || entry > offset {
            return wrong(format!("{place:?} has no such position: {position:?}"));
        }
        let positions = &mut self.logs.entry(place.clone()).or_default().positions;
        let before = positions.entry(offset).or_insert((term, entry));
        if before.1 < 0 {
            before.1 = entry;
        }
        if before.0 != term || entry >= 0 && before.1 != entry {
            return wrong(format!("{place:?}: {before:?} was at {offset}, and is {position:?}"));
        }
        Ok(())
    }

    fn on_tail(
        &mut self,
        oracle: &mut Oracle,
        question: &Question,
        tail: &Tail,
    ) -> Result<(), Failure> {
        let place = &question.place;
        let is_in_order = tail.start <= tail.stable && tail.stable <= tail.end;
        let is_last = match tail.last {
            None => tail.end == 0,
            Some(last) => {
                last.offset == tail.end - 1 && (last.entry >= 0 || tail.start == tail.end)
            }
        };
        if !is_in_order || !is_last {
            return wrong(format!("{place:?} has these ends: {tail:?}"));
        }
        if let Some(last) = tail.last {
            self.on_position(place, last)?;
        }
        if !oracle.may_start_at(place, tail.start) {
            return wrong(format!("{place:?}: nobody asked for a start at {}", tail.start));
        }
        if !matches!(question.asked, Asked::Tail { is_certain: false }) {
            self.untold.retain(|it| it != place);
            oracle.on_end(place, tail.end, question.least)?;
            self.on_controls(question, tail)?;
        }
        if let Asked::Truncate { offset, .. } = question.asked {
            oracle.on_trimmed(place, offset, tail.start)?;
        }
        if let Asked::Fence { token } = question.asked {
            if number_of(&tail.fence) != Some(token) {
                return wrong(format!("{question:?} is answered with {tail:?}"));
            }
            let seen = self.logs.entry(place.clone()).or_default();
            seen.fences.get_mut(&token).expect("it was noted").offset = tail.end;
        }
        match question.fence {
            Some(token) if matches!(question.asked, Asked::Truncate { .. }) => {
                self.on_let_in(question, token)
            }
            _ => Ok(()),
        }
    }

    /// Judges fence and pointer as a leader tells them.
    fn on_controls(&mut self, question: &Question, tail: &Tail) -> Result<(), Failure> {
        let moment = self.moment;
        let seen = self.logs.entry(question.place.clone()).or_default();
        let kept = match &tail.pointer {
            None => None,
            Some(it) => match it.uri.parse().ok().and_then(|it: u64| seen.pointers.get_mut(&it)) {
                None => return wrong(format!("nobody left this pointer: {tail:?}")),
                Some(mark) => {
                    mark.known.get_or_insert(moment);
                    Some(*mark)
                }
            },
        };
        let is_lost = |it: &&Mark| {
            it.known.is_some_and(|it| it < question.sent)
                && kept.is_none_or(|kept| kept.offset < it.offset)
        };
        if let Some(lost) = seen.pointers.values().find(is_lost) {
            return wrong(format!("{question:?}: a pointer is lost: {lost:?}, now {tail:?}"));
        }
        if kept.is_some_and(|kept| tail.start < kept.offset) {
            return wrong(format!("{question:?}: a pointer without its truncation: {tail:?}"));
        }
        if let Some(token) = number_of(&tail.fence) {
            return self.on_let_in(question, token);
        }
        let mut known = seen.fences.values().filter_map(|it| it.known);
        match known.find(|it| *it < question.sent) {
            Some(_) => wrong(format!("{question:?}: the fence is lost: {:?}", seen.fences)),
            None => Ok(()),
        }
    }

    /// Judges a refusal. If clocks leap (`leaps`), timestamps may be refused.
    fn on_problem(
        &mut self,
        oracle: &mut Oracle,
        leaps: bool,
        at: usize,
        question: &Question,
        problem: &Problem,
    ) -> Result<(), Failure> {
        if let Asked::Append { number, .. } = question.asked
            && *problem != Problem::OutcomeUnknown
        {
            oracle.on_refused(number)?;
        }
        match (problem, &question.asked) {
            (Problem::LastMismatch(last), Asked::Append { last: Some(expected), .. }) => {
                self.refused += 1;
                let end = last.map_or(0, |last| last.offset + 1);
                let is_as_expected = match (last, expected) {
                    (None, Last::Nothing) => true,
                    (Some(last), Last::At(at)) => (last.term, last.offset) == (at.term, at.offset),
                    _ => false,
                };
                if is_as_expected || end < question.least {
                    return wrong(format!("{question:?} is refused: the last is {last:?}"));
                }
                if let Some(last) = last {
                    self.on_position(&question.place, *last)?;
                }
                self.all[at].last.insert(question.place.clone(), *last);
                Ok(())
            }
            (Problem::Fenced, _) => {
                self.refused += 1;
                self.on_fenced(question)
            }
            (Problem::Elsewhere(node, _), _) if oracle.many => {
                self.aims.push((at, *node));
                Ok(())
            }
            (Problem::UnknownTopic, _) => oracle.on_unknown(TOPIC),
            (Problem::BadRequest(field, _), Asked::Append { .. }) if *field == "records" => {
                if leaps { Ok(()) } else { wrong(format!("{question:?}: {problem:?}")) }
            }
            (
                Problem::NoLeader
                | Problem::NotEnoughReplicas
                | Problem::DiskFull(_)
                | Problem::Damaged
                | Problem::Busy(_)
                | Problem::OutcomeUnknown,
                _,
            ) => Ok(()),
            _ => wrong(format!("{question:?} is refused: {problem:?}")),
        }
    }
}

fn target(place: &Place) -> Target {
    Target::Log(Log { topic: place.0.clone(), partition: place.1 })
}
