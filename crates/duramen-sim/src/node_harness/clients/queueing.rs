//! Clients of queues: they enqueue, some on a condition, read pages, and wait, on a topic of their own. Some send
//! batches of several queues, as producers of Kafka do. One that gets no answer to a batch with ids, or of a session,
//! sends it again.
//!
//! Each element is in its queue once, in its place, with its content. A read shows all that was acknowledged before the
//! question, up to where it says that it looked. Between the element that a guard named and the append that it let
//! through, its queue has no other. A refusal names the queue's last element, no earlier one than was acknowledged.
//!
//! Some name elements of other queues when they delete. Some replace elements, rewrite queues, fence or trim them, or
//! trim their log. Some read the topic as consumers of Kafka do. Once an edit is acknowledged, no read at a leader
//! shows the records that it took away. A replaced element keeps its place, and a rewrite is there whole or not at all.
//! A token passes while it is the fence. Some elements expire, and may be gone then. All else stays, and a consumer
//! comes to the end.

mod editing;
mod known;
mod reading;

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use duramen_broker::checked_batch::CheckedBatch;
use duramen_broker::native::{Answer, Append, Last, Op, Position, Problem, Queue, Start, Target};
use duramen_broker::session::{Prepared, PreparedPartition, PreparedProduce, PreparedTopic};
use duramen_protocol::messages::create_topics::{CreatableTopic, CreatableTopicConfig};
use duramen_protocol::messages::{CreateTopicsRequest, InitProducerIdRequest};
use duramen_protocol::partitioner::{key_number, partition_of_key};
use duramen_protocol::records::{BatchBuilder, EXPIRES_HEADER, ID_HEADER, NewRecord};
use duramen_protocol::wire::Uuid;
use duramen_protocol::{ErrorCode, Request, Response};

use self::known::{Edits, Gone};
use crate::failure::{Failure, wrong};
use crate::prng::Prng;

/// The topic of the queues. No other client uses it.
pub(super) const TOPIC: &str = "mails";
/// Number of these clients.
pub(super) const QUEUERS: usize = 5;
const PARTITIONS: i32 = 2;
/// Numbers of queues, of which a run has one: few have more elements each, many have more neighbours.
const QUEUES: [u64; 4] = [2, 5, 12, 40];

/// Times to live, in milliseconds: an element of the last one is there to the end.
const TTLS_MS: [i64; 4] = [1, 500, 5_000, TTL_LONG_MS];
/// Time to live of an element that is there to the end, in milliseconds: clocks leap by years.
const TTL_LONG_MS: i64 = 100 * 365 * 24 * 3_600_000;

/// Token of an append, and the number of changes of the fence, if the token is right unless there are more.
type Token = (Vec<u8>, Option<u64>);

/// A question of one of these clients.
#[derive(Clone, Debug)]
pub(super) enum Question {
    Create,
    OpenSession,
    /// Batch of several queues. The answer is a producer's.
    Produce {
        number: u64,
    },
    Enqueue {
        number: u64,
        count: i64,
        /// The guard's element, or -1 for none; `None` without a guard.
        guard: Option<i64>,
        fence: Option<Token>,
        /// The last offset of the queue that was acknowledged before the question, or -1.
        acked: i64,
        /// True for one that was sent before, with ids or in a session, and had no answer.
        is_again: bool,
    },
    Retrieve {
        queue: String,
        /// Offset behind which the page begins.
        after: i64,
        /// Offsets behind it that were acknowledged before the question.
        due: BTreeSet<i64>,
        is_certain: bool,
        /// True if it reads the queue through in the last phase.
        is_last: bool,
        gone: Gone,
    },
    Delete {
        queue: String,
        /// Offsets of elements of the queue that were acknowledged.
        offsets: BTreeSet<i64>,
        /// Number of positions of other queues.
        foreign: usize,
    },
    Replace {
        queue: String,
        number: u64,
        element: i64,
        version: Option<i64>,
    },
    /// The number is of the batch, or of none.
    Rewrite {
        queue: String,
        number: u64,
        count: i64,
    },
    /// The number is of the change.
    Fence {
        queue: String,
        number: u64,
    },
    TrimQueue {
        queue: String,
        through: i64,
    },
    /// `DeleteRecords` of Kafka's.
    TrimLog,
    /// A fetch of Kafka's, which a leader answers.
    Fetch {
        partition: i32,
        offset: i64,
        /// Offsets behind that one which were acknowledged before the question.
        due: BTreeSet<i64>,
        gone: Gone,
    },
}

/// A batch that was sent.
#[derive(Clone, Debug)]
struct Sent {
    /// Queue and value of each record.
    elements: Vec<(String, Vec<u8>)>,
    is_refused: bool,
    /// True if its records expire soon.
    is_brief: bool,
    /// Element that it replaces.
    replaces: Option<i64>,
    /// The batch, if it may be sent again, with what makes that harmless.
    again: Option<(Bytes, Once)>,
}

impl Sent {
    /// Tells whether ids name its records, so that a guard makes its repetition harmless.
    fn has_ids(&self) -> bool {
        matches!(self.again, Some((_, Once::Ids(_))))
    }
}

/// Way to append a batch once.
#[derive(Clone, Copy, Debug)]
enum Once {
    /// Ids under a guard.
    Ids(Last),
    /// A session, which counts its records.
    Session,
}

/// Session that all clients share. Of each partition one batch of it is under way.
#[derive(Debug)]
struct Session {
    id: i64,
    epoch: i16,
    /// Number of records that are in each partition.
    records: BTreeMap<i32, i32>,
    under_way: BTreeMap<i32, u64>,
}

/// One queue, as the clients know it.
#[derive(Clone, Debug, Default)]
struct Known {
    acked: BTreeSet<i64>,
    /// The last element that a client has heard of.
    last: Option<Position>,
    /// The guard's element and the first offset of each append that a guard let through.
    guarded: Vec<(i64, i64)>,
    /// The position that each reader goes on behind.
    next: Option<Position>,
    /// Positions of elements, as pages told them.
    positions: BTreeMap<i64, Position>,
    edits: Edits,
}

impl Known {
    /// Returns the position of an element, if one is known: often of one that was edited before.
    fn pick(&self, work: &mut Prng) -> Option<Position> {
        let edited = |it: &&Position| self.edits.content(it.offset) != it.offset;
        let edited: Vec<Position> = self.positions.values().filter(edited).copied().collect();
        let all: Vec<Position> = self.positions.values().copied().collect();
        let from = if edited.is_empty() || work.chance(500) { &all } else { &edited };
        (!from.is_empty()).then(|| *work.pick(from))
    }
}

/// See above.
#[derive(Debug, Default)]
pub(super) struct Queuers {
    is_made: bool,
    /// Number of queues.
    count: u64,
    sent: BTreeMap<u64, Sent>,
    queues: BTreeMap<String, Known>,
    /// Batch, and place in it, of the element at an offset of a partition.
    at: BTreeMap<(i32, i64), (u64, u8)>,
    /// The same, the other way round.
    of: BTreeMap<(u64, u8), i64>,
    batches: u64,
    /// Batches with ids, or of a session, that had no answer.
    unanswered: Vec<u64>,
    session: Option<Session>,
    is_last_phase: bool,
    /// Numbers of batches of which nothing can be left: a leader refused to append them a second time.
    erased: BTreeSet<u64>,
    /// Queues to read through before the run is over, each with the position to go on behind.
    unread: BTreeMap<String, Option<Position>>,
    /// Partitions to consume to their ends before the run is over, each with the offset to go on at.
    unconsumed: BTreeMap<i32, i64>,
    /// Offset at which the consumer of each partition goes on.
    consumed: BTreeMap<i32, i64>,
    /// Offset of each partition below which somebody asked to trim it.
    floors: BTreeMap<i32, i64>,
    /// Partition and offset of elements whose deletion was acknowledged, to be looked for at once.
    suspects: Vec<(i32, i64)>,
    /// True if no element expires: what an erasure changed elsewhere mends no disk that has rotted.
    pub(super) spares_expiry: bool,
}

fn id_of(batch: u64, index: u8) -> Vec<u8> {
    format!("{batch}-{index}").into_bytes()
}

/// Returns the number of the batch in whose record a value is.
fn number_in(value: &[u8]) -> Option<u64> {
    value.get(..8).and_then(|it| it.try_into().ok()).map(u64::from_be_bytes)
}

fn name_of(number: u64) -> String {
    format!("queue-{number}")
}

fn target(queue: &str) -> Target {
    let name = Bytes::copy_from_slice(queue.as_bytes());
    Target::Queue(Queue { topic: TOPIC.to_owned(), name })
}

fn partition_of(queue: &str) -> i32 {
    partition_of_key(queue.as_bytes(), PARTITIONS)
}

impl Queuers {
    /// Returns the clients of a run, if it has some.
    pub(super) fn of(seed: u64) -> Option<Self> {
        let count = *Prng::new(seed, "queues").pick(&QUEUES);
        (seed % 16 == 13).then(|| Self { count, ..Self::default() })
    }

    pub(super) fn begin_last_phase(&mut self) {
        self.is_last_phase = true;
        self.unread = self.queues.keys().map(|queue| (queue.clone(), None)).collect();
        if self.is_made {
            self.unconsumed = (0..PARTITIONS).map(|partition| (partition, 0)).collect();
        }
    }

    /// Tells whether acknowledged edits took the record at an offset away.
    pub(super) fn is_gone(&self, partition: i32, offset: i64) -> bool {
        let mut here = self.queues.iter().filter(|(name, _)| partition_of(name) == partition);
        here.any(|(_, known)| known.edits.gone_in(&known.acked).forbids(offset, offset).is_some())
    }

    pub(super) fn is_done(&self) -> bool {
        self.unread.is_empty() && self.unconsumed.is_empty()
    }

    /// Returns a request that one of the clients asks now.
    pub(super) fn choose(&mut self, work: &mut Prng, wall_ms: i64) -> (Question, Prepared) {
        if !self.is_made {
            return (Question::Create, Prepared::Request(create()));
        }
        if let Some((queue, after)) = self.unread.first_key_value() {
            let (queue, start) = (queue.clone(), after.map_or(Start::Begin, Start::After));
            return self.retrieve(queue, (start, 0), true, true);
        }
        if let Some((partition, offset)) = self.unconsumed.first_key_value() {
            return self.fetch(*partition, *offset, work);
        }
        if let Some((partition, offset)) = self.suspects.pop() {
            return self.fetch(partition, offset, work);
        }
        if !self.unanswered.is_empty() && !self.is_last_phase && work.chance(300) {
            let number = self.unanswered.swap_remove(work.index(self.unanswered.len()));
            return self.enqueue_again(number);
        }
        let queue = name_of(work.below(self.count));
        match work.below(10) {
            0 => return self.produce(partition_of(&queue), work, wall_ms),
            1 => {
                if let Some(asked) = self.enqueue_in_session(&queue, work, wall_ms) {
                    return asked;
                }
            }
            2..=4 => return self.enqueue(&queue, work, wall_ms),
            5 if work.chance(600) && !self.is_last_phase => {
                let asked = match work.below(10) {
                    0..=4 => self.delete(&queue, work),
                    5..=7 => self.replace(&queue, work, wall_ms),
                    _ => Some(self.rewrite(&queue, work, wall_ms)),
                };
                if let Some(asked) = asked {
                    return asked;
                }
            }
            7 if work.chance(300) && !self.is_last_phase => {
                if work.chance(700) {
                    return self.fence_or_trim(&queue, work);
                }
                if let Some(asked) = self.trim_log(&queue, work) {
                    return asked;
                }
            }
            6 => {
                let partition = partition_of(&queue);
                let offset = self.consumed.get(&partition).copied().unwrap_or(0);
                return self.fetch(partition, if work.chance(500) { 0 } else { offset }, work);
            }
            _ => {}
        }
        let known = self.queues.get(&queue);
        let after = match work.below(4) {
            0 => None,
            1 => known.and_then(|known| known.next),
            // One that waits there gets the next element.
            _ => known.and_then(|known| known.last),
        };
        let start = after.map_or(Start::Begin, Start::After);
        // In the last phase the run ends once nothing is outstanding.
        let waits = !self.is_last_phase && work.chance(500);
        let wait_ms = if waits { *work.pick(&[1, 50, 2000]) } else { 0 };
        let is_certain = work.chance(800);
        self.retrieve(queue, (start, wait_ms), is_certain, false)
    }

    /// Makes a batch of records of these queues, perhaps with ids, or of a session. Returns its number.
    fn batch(
        &mut self,
        queues: Vec<String>,
        (has_ids, ttl_ms, producer): (bool, Option<i64>, Option<(i64, i16, i32)>),
        work: &mut Prng,
        wall_ms: i64,
    ) -> (u64, Bytes) {
        self.batches += 1;
        let number = self.batches;
        let mut builder = BatchBuilder::new();
        if let Some((id, epoch, sequence)) = producer {
            builder = builder.producer(id, epoch, sequence);
        }
        let mut elements = Vec::new();
        for (index, queue) in (0_u8..).zip(queues) {
            let mut value = number.to_be_bytes().to_vec();
            value.push(index);
            value.resize(usize::try_from(work.between(9, 300)).expect("small"), 7);
            let id = id_of(number, index);
            let expires = ttl_ms.map(|it| (wall_ms + it).to_string());
            let own = [(EXPIRES_HEADER, expires.as_ref().map(String::as_bytes))];
            let named = [(ID_HEADER, Some(&id[..]))];
            let own = own.iter().filter(|_| expires.is_some());
            let headers: Vec<_> = own.chain(named.iter().filter(|_| has_ids)).copied().collect();
            let record = NewRecord {
                timestamp: wall_ms,
                key: Some(queue.as_bytes()),
                value: Some(&value),
                headers: &headers,
            };
            builder.push(&record).expect("a small record");
            elements.push((queue, value));
        }
        let is_brief = ttl_ms.is_some_and(|it| it < TTL_LONG_MS);
        let (is_refused, replaces, again) = (false, None, None);
        self.sent.insert(number, Sent { elements, is_refused, is_brief, replaces, again });
        (number, builder.build().expect("a small batch"))
    }

    /// Appends to several queues of a partition at once, as a producer does.
    fn produce(&mut self, partition: i32, work: &mut Prng, wall_ms: i64) -> (Question, Prepared) {
        let names = (0..self.count).map(name_of);
        let here: Vec<String> = names.filter(|it| partition_of(it) == partition).collect();
        let queues = (0..work.between(1, 8)).map(|_| work.pick(&here).clone()).collect();
        let ttl_ms = self.ttl_ms(work);
        let (number, batch) = self.batch(queues, (false, ttl_ms, None), work, wall_ms);
        let batch = CheckedBatch::of(batch, partition).expect("it is right");
        let partitions = [PreparedPartition { index: partition, batch: Ok(batch) }].into();
        let topic = PreparedTopic { name: TOPIC.into(), id: Uuid::default(), partitions };
        let request = PreparedProduce {
            acks: -1,
            timeout_ms: 10_000,
            transactional_id: None,
            is_transactional: false,
            topics: [topic].into(),
        };
        (Question::Produce { number }, Prepared::Produce(request))
    }

    /// Returns the time to live of an element, if it is to have one.
    fn ttl_ms(&self, work: &mut Prng) -> Option<i64> {
        let ttl_ms = work.chance(200).then(|| *work.pick(&TTLS_MS));
        ttl_ms.filter(|_| !self.spares_expiry)
    }

    fn enqueue(&mut self, queue: &str, work: &mut Prng, wall_ms: i64) -> (Question, Prepared) {
        let known = self.queues.entry(queue.to_owned()).or_default();
        let acked = known.acked.last().copied().unwrap_or(-1);
        let last = known.last.map_or(Last::Nothing, Last::At);
        let guard = work.chance(400).then_some(last);
        let queues = (0..work.between(1, 4)).map(|_| queue.to_owned()).collect();
        let has_ids = guard.is_some() && work.chance(500);
        let ttl_ms = self.ttl_ms(work);
        let (number, batch) = self.batch(queues, (has_ids, ttl_ms, None), work, wall_ms);
        if has_ids {
            let again = guard.map(|last| (batch.clone(), Once::Ids(last)));
            self.sent.get_mut(&number).expect("just made").again = again;
        }
        let known = &self.queues[queue];
        let fence = (guard.is_none() && work.chance(300)).then(|| known.edits.token(work));
        self.append(number, batch, (guard, fence), (acked, false))
    }

    /// Appends in the session, unless a batch of it is under way; opens the session first.
    fn enqueue_in_session(
        &mut self,
        queue: &str,
        work: &mut Prng,
        wall_ms: i64,
    ) -> Option<(Question, Prepared)> {
        let partition = partition_of(queue);
        let Some(session) = &self.session else {
            let request = InitProducerIdRequest::default();
            return Some((Question::OpenSession, Prepared::Request(request.into())));
        };
        if session.under_way.contains_key(&partition) {
            return None;
        }
        let sequence = session.records.get(&partition).copied().unwrap_or(0);
        let producer = Some((session.id, session.epoch, sequence));
        let queues = (0..work.between(1, 4)).map(|_| queue.to_owned()).collect();
        let (number, batch) = self.batch(queues, (false, None, producer), work, wall_ms);
        let again = Some((batch.clone(), Once::Session));
        self.sent.get_mut(&number).expect("just made").again = again;
        let session = self.session.as_mut().expect("it was just there");
        session.under_way.insert(partition, number);
        let known = self.queues.entry(queue.to_owned()).or_default();
        let acked = known.acked.last().copied().unwrap_or(-1);
        Some(self.append(number, batch, (None, None), (acked, false)))
    }

    /// Notes that the outcome of a batch is known, if it is the session's.
    fn settle(&mut self, number: u64, is_appended: bool) {
        let elements = &self.sent[&number].elements;
        let Some(session) = &mut self.session else { return };
        let partition = partition_of(&elements[0].0);
        if session.under_way.get(&partition) == Some(&number) {
            session.under_way.remove(&partition);
            let more = if is_appended { i32::try_from(elements.len()).expect("few") } else { 0 };
            *session.records.entry(partition).or_default() += more;
        }
    }

    /// Sends a batch once more, as its client does that cannot know whether it is there.
    fn enqueue_again(&self, number: u64) -> (Question, Prepared) {
        let sent = &self.sent[&number];
        let (batch, once) = sent.again.clone().expect("it may be sent again");
        let guard = if let Once::Ids(last) = once { Some(last) } else { None };
        let known = self.queues.get(&sent.elements[0].0);
        let acked = known.and_then(|it| it.acked.last().copied()).unwrap_or(-1);
        self.append(number, batch, (guard, None), (acked, true))
    }

    fn append(
        &self,
        number: u64,
        batch: Bytes,
        (guard, fence): (Option<Last>, Option<Token>),
        (acked, is_again): (i64, bool),
    ) -> (Question, Prepared) {
        let sent = &self.sent[&number];
        let queue = &sent.elements[0].0;
        let mut batch = CheckedBatch::of(batch, key_number(queue.as_bytes())).expect("it is right");
        if guard.is_some() || fence.is_some() {
            let name = Bytes::copy_from_slice(queue.as_bytes());
            batch.guard.last = guard;
            batch.guard.fence = fence.as_ref().map(|(token, _)| Bytes::copy_from_slice(token));
            batch.guard.queue = Some(name);
        }
        let count = sent.elements.len();
        let ids = (0_u8..).take(if sent.has_ids() { count } else { 0 });
        let ids = ids.map(|index| Bytes::from(id_of(number, index))).collect();
        let target = target(queue);
        let append = Append { target, batch, ids, is_patient: false, timeout_ms: 10_000 };
        let guard = guard.map(|last| match last {
            Last::Nothing => -1,
            Last::At(position) => position.offset,
        });
        let count = i64::try_from(count).expect("small");
        let question = Question::Enqueue { number, count, guard, fence, acked, is_again };
        (question, Prepared::Native(Box::new(Op::Append(append))))
    }

    /// Tells whether the element at an offset, or a content of it, may have expired.
    fn may_have_expired(&self, partition: i32, offset: i64) -> bool {
        let batch = self.at.get(&(partition, offset)).map(|(batch, _)| &self.sent[batch]);
        batch.is_some_and(|it| it.is_brief)
    }

    /// Tells whether all elements of a batch may be erased, so that no node finds an earlier attempt to append it.
    fn may_be_erased(&self, number: u64) -> bool {
        let sent = &self.sent[&number];
        let known = self.queues.get(&sent.elements[0].0);
        let may_be_gone = |element: usize| {
            let of = (number, u8::try_from(element).expect("few"));
            let at = self.of.get(&of);
            at.zip(known).is_some_and(|(at, known)| known.edits.may_lack_content(*at))
        };
        sent.is_brief || (0..sent.elements.len()).all(may_be_gone)
    }

    /// Notes that a question gets no answer.
    pub(super) fn on_lost(&mut self, question: &Question) {
        if let Question::Enqueue { number, .. } = question
            && self.sent[number].again.is_some()
        {
            self.unanswered.push(*number);
        }
        if self.is_last_phase {
            return;
        }
        // The node that serves next must not show what was deleted before.
        for (queue, known) in &self.queues {
            let first = known.edits.first_deleted();
            self.suspects.extend(first.map(|offset| (partition_of(queue), offset)));
        }
    }

    /// Judges an answer of Kafka's.
    pub(super) fn on_kafkas(
        &mut self,
        question: &Question,
        response: &Response,
    ) -> Result<(), Failure> {
        match (question, response) {
            (Question::Create, Response::CreateTopics(response)) => {
                let code = ErrorCode::from_code(response.topics[0].error_code);
                let is_made = matches!(code, Some(ErrorCode::None | ErrorCode::TopicAlreadyExists));
                self.is_made |= is_made;
                Ok(())
            }
            (Question::OpenSession, Response::InitProducerId(it)) => {
                if it.error_code == 0 && self.session.is_none() {
                    let (id, epoch) = (it.producer_id, it.producer_epoch);
                    let (records, under_way) = (BTreeMap::new(), BTreeMap::new());
                    self.session = Some(Session { id, epoch, records, under_way });
                }
                Ok(())
            }
            (Question::Produce { number }, Response::Produce(response)) => {
                let part = &response.responses[0].partition_responses[0];
                match ErrorCode::from_code(part.error_code) {
                    Some(ErrorCode::None) => self.on_appended(*number, part.base_offset),
                    // The batch may be in the log all the same.
                    Some(
                        ErrorCode::RequestTimedOut
                        | ErrorCode::NotLeaderOrFollower
                        | ErrorCode::UnknownTopicOrPartition,
                    ) => Ok(()),
                    Some(
                        ErrorCode::NotEnoughReplicas
                        | ErrorCode::KafkaStorageError
                        | ErrorCode::InvalidTimestamp,
                    ) => self.on_refused(*number),
                    _ => wrong(format!("batch {number} is refused: {part:?}")),
                }
            }
            (Question::Fetch { partition, offset, due, gone }, Response::Fetch(response)) => {
                match response.responses.first().and_then(|it| it.partitions.first()) {
                    Some(part) => self.on_fetched((*partition, *offset), (due, gone), part),
                    None => Ok(()),
                }
            }
            (Question::TrimLog, Response::DeleteRecords(_)) => Ok(()),
            _ => wrong(format!("{question:?} is answered with {response:?}")),
        }
    }

    /// Notes that a batch is in the log.
    fn on_appended(&mut self, number: u64, first: i64) -> Result<(), Failure> {
        let queues: Vec<_> = self.sent[&number].elements.iter().map(|it| it.0.clone()).collect();
        for (index, (offset, queue)) in (0..).zip((first..).zip(queues)) {
            self.place(&queue, offset, (number, index))?;
            self.queues.entry(queue).or_default().acked.insert(offset);
        }
        Ok(())
    }

    /// Notes that a batch was refused: it must never be in the log.
    fn on_refused(&mut self, number: u64) -> Result<(), Failure> {
        self.sent.get_mut(&number).expect("it was sent").is_refused = true;
        if self.at.values().any(|(batch, _)| *batch == number) {
            return wrong(format!("batch {number} is there, and was refused"));
        }
        Ok(())
    }

    /// Judges an answer that is no page.
    pub(super) fn on_answer(
        &mut self,
        question: &Question,
        answer: &Result<Answer, Problem>,
    ) -> Result<(), Failure> {
        match (question, answer) {
            (
                Question::Delete { .. }
                | Question::Replace { .. }
                | Question::Rewrite { .. }
                | Question::Fence { .. }
                | Question::TrimQueue { .. },
                answer,
            ) => self.on_edit_answer(question, answer),
            (
                Question::Enqueue { number, count, guard, fence, is_again, .. },
                Ok(Answer::Appended { first, last, is_duplicate }),
            ) => {
                if *is_duplicate && !is_again {
                    return wrong(format!("batch {number} is there twice, and was sent once"));
                }
                if let Some((token, _)) = fence {
                    let queue = self.sent[number].elements[0].0.clone();
                    self.queues.entry(queue).or_default().edits.on_passed(first.offset, token)?;
                }
                self.on_enqueued((*number, *count, *guard), (*first, *last))
            }
            (Question::Enqueue { number, fence, .. }, Err(Problem::Fenced)) => {
                let queue = self.sent[number].elements[0].0.clone();
                let edits = &self.queues.entry(queue).or_default().edits;
                if fence.as_ref().is_none_or(|(_, asked)| edits.is_right(*asked)) {
                    return wrong(format!("{question:?} is fenced: {edits:?}"));
                }
                self.on_refused(*number)
            }
            // Of a batch that was sent before nobody knows any more whether it is there.
            (Question::Enqueue { number, is_again, .. }, Err(Problem::SessionExpired))
                if matches!(self.sent[number].again, Some((_, Once::Session))) =>
            {
                self.session = None;
                if *is_again { Ok(()) } else { self.on_refused(*number) }
            }
            (Question::Enqueue { .. }, Err(Problem::OutcomeUnknown)) => {
                self.on_lost(question);
                Ok(())
            }
            (Question::Enqueue { is_again: true, .. }, Err(problem))
                if !matches!(problem, Problem::LastMismatch(_)) =>
            {
                self.on_lost(question);
                refusal(question, problem)
            }
            (Question::Enqueue { number, guard, acked, is_again, .. }, Err(problem)) => {
                if let Problem::LastMismatch(last) = problem {
                    self.on_mismatch((*number, *guard, *acked), *last)?;
                }
                self.settle(*number, false);
                if *is_again && self.may_be_erased(*number) {
                    self.erased.insert(*number);
                    return Ok(());
                }
                self.on_refused(*number)?;
                refusal(question, problem)
            }
            (Question::Retrieve { queue, after, .. }, Err(Problem::Trimmed(first, _))) => {
                let known = self.queues.get(queue).map_or(0, |known| known.edits.first());
                let known = known.max(self.floor(queue));
                if *first > known || *first <= after + 1 {
                    return wrong(format!("{question:?}: {first} is the first, and {known}"));
                }
                // The reader begins anew.
                self.queues.entry(queue.clone()).or_default().next = None;
                Ok(())
            }
            (_, Err(problem)) => refusal(question, problem),
            _ => wrong(format!("{question:?} is answered with {answer:?}")),
        }
    }

    /// Judges the refusal of a batch for the last element of its queue.
    fn on_mismatch(
        &mut self,
        (number, guard, acked): (u64, Option<i64>, i64),
        last: Option<Position>,
    ) -> Result<(), Failure> {
        let at = last.map_or(-1, |it| it.offset);
        let queue = self.sent[&number].elements[0].0.clone();
        let floor = self.floor(&queue);
        let known = self.queues.entry(queue).or_default();
        known.last = last;
        let is_gone = known.edits.may_be_cut(acked) || acked < floor;
        if guard.is_none_or(|guard| guard == at) || at < acked && !is_gone {
            return wrong(format!(
                "batch {number} is refused for {at}; its guard is {guard:?}, and {acked} was acknowledged"
            ));
        }
        Ok(())
    }

    /// Judges the positions of a batch.
    fn on_enqueued(
        &mut self,
        (number, count, guard): (u64, i64, Option<i64>),
        (first, last): (Position, Position),
    ) -> Result<(), Failure> {
        if last.offset != first.offset + count - 1 || first.entry != first.offset {
            return wrong(format!("batch {number} of {count} is at {first:?}, {last:?}"));
        }
        self.on_appended(number, first.offset)?;
        self.settle(number, true);
        let queue = self.sent[&number].elements[0].0.clone();
        self.hear_of(&queue, last);
        let Some(after) = guard else { return Ok(()) };
        let between = (partition_of(&queue), after + 1)..(partition_of(&queue), first.offset);
        let floor = self.floor(&queue);
        let edits = &self.queues.entry(queue.clone()).or_default().edits;
        let is_between = |((_, offset), element): &(&(i32, i64), &(u64, u8))| {
            let sent = &self.sent[&element.0];
            let is_own = sent.elements[usize::from(element.1)].0 == queue;
            let may_be_gone = edits.may_be_cut(*offset) || *offset < floor;
            is_own && sent.replaces.is_none() && !may_be_gone
        };
        if let Some(other) = self.at.range(between).find(is_between) {
            return wrong(format!("{queue}: {other:?} is between {after} and {first:?}"));
        }
        let known = self.queues.entry(queue).or_default();
        known.guarded.push((after, first.offset));
        Ok(())
    }

    /// Notes that an element is at an offset.
    fn place(&mut self, queue: &str, offset: i64, element: (u64, u8)) -> Result<(), Failure> {
        let here = self.at.entry((partition_of(queue), offset)).or_insert(element);
        if *here != element {
            return wrong(format!("{queue}: {here:?} was at {offset}, and is {element:?}"));
        }
        let floor = self.floor(queue);
        let known = self.queues.entry(queue.to_owned()).or_default();
        let there = *self.of.entry(element).or_insert(offset);
        if there != offset {
            // A guard holds again once another client has withdrawn the first try, and then nothing tells of that.
            let is_withdrawn = known.edits.may_be_cut(there.min(offset));
            if !(is_withdrawn && self.sent.get(&element.0).is_some_and(Sent::has_ids)) {
                return wrong(format!("{queue}: {element:?} is at {there} and at {offset}"));
            }
            self.of.insert(element, there.max(offset));
        }
        let is_element = self.sent.get(&element.0).is_some_and(|it| it.replaces.is_none());
        let may_be_gone = known.edits.may_be_cut(offset) || offset < floor;
        let is_between =
            |it: &&(i64, i64)| is_element && it.0 < offset && offset < it.1 && !may_be_gone;
        if let Some((after, first)) = known.guarded.iter().find(is_between) {
            return wrong(format!(
                "{queue}: {offset} is between {after} and {first}, which a guard joined"
            ));
        }
        Ok(())
    }

    /// Notes the last element of a queue, as a client has heard of it.
    fn hear_of(&mut self, queue: &str, last: Position) {
        let known = self.queues.entry(queue.to_owned()).or_default();
        known.last = known.last.filter(|it| it.offset > last.offset).or(Some(last));
    }
}

/// Judges a refusal: it is of the cluster's state, and not of the request.
fn refusal(question: &Question, problem: &Problem) -> Result<(), Failure> {
    match problem {
        Problem::Elsewhere(..)
        | Problem::NoLeader
        | Problem::NotEnoughReplicas
        | Problem::DiskFull(_)
        | Problem::Damaged
        | Problem::Busy(_)
        | Problem::LastMismatch(_)
        | Problem::UnknownElement
        | Problem::VersionMismatch(_)
        | Problem::UnknownTopic
        | Problem::OutcomeUnknown
        // The clock has leapt.
        | Problem::BadRequest("records", _) => Ok(()),
        _ => wrong(format!("{question:?} is refused: {problem:?}")),
    }
}

fn create() -> Request {
    let configs = [
        ("queue.enable", "true"),
        ("retention.ms", "-1"),
        ("segment.bytes", "16384"),
        ("queue.erase.lag.ms", "300"),
        ("delete.retention.ms", "1500"),
    ];
    let config = |(name, value): (&str, &str)| CreatableTopicConfig {
        name: name.to_owned(),
        value: Some(value.to_owned()),
    };
    let topic = CreatableTopic {
        name: TOPIC.to_owned(),
        num_partitions: PARTITIONS,
        replication_factor: -1,
        configs: configs.into_iter().map(config).collect(),
        ..CreatableTopic::default()
    };
    CreateTopicsRequest { topics: [topic].into(), timeout_ms: 10_000, ..Default::default() }.into()
}
