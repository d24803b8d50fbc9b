//! Messages that clients enqueue for workers. Each has a content of its own, and some have a schedule.

use std::collections::BTreeMap;

use bytes::Bytes;
use duramen_broker::checked_batch::CheckedBatch;
use duramen_broker::native::{Append, Op, Queue, Target};
use duramen_broker::session::{Prepared, PreparedPartition, PreparedProduce, PreparedTopic};
use duramen_protocol::partitioner::{key_number, partition_of_key};
use duramen_protocol::records::{
    BatchBuilder, DELIVER_AT_HEADER, EXPIRES_HEADER, NewRecord, PRIORITY_HEADER, PRIORITY_USUAL,
};
use duramen_protocol::wire::Uuid;

use super::{PARTITIONS, Place, Question, TOPIC};
use crate::failure::{Failure, wrong};
use crate::prng::Prng;

/// Most batches of a run: all have to be worked off in the end.
const BATCHES_MAX: u64 = 120;
const DAY_MS: u64 = 86_400_000;

/// A message that was sent.
#[derive(Clone, Debug)]
pub(super) struct Message {
    pub(super) queue: String,
    value: Vec<u8>,
    pub(super) priority: u8,
    /// Time before which nobody gets the message, in milliseconds since 1970; 0 for none.
    pub(super) deliver_at_ms: i64,
    /// Time from which nobody gets the message, in milliseconds since 1970; `i64::MAX` for none.
    pub(super) expires_ms: i64,
    /// Place in the log, once somebody was told of it.
    pub(super) place: Option<Place>,
    /// Number of the answer that acknowledged the message.
    pub(super) acknowledged: Option<u64>,
    is_refused: bool,
}

impl Message {
    /// Tells whether no time keeps workers from the message.
    pub(super) fn is_timeless(&self) -> bool {
        self.deliver_at_ms == 0 && self.expires_ms == i64::MAX
    }
}

/// See above.
#[derive(Debug, Default)]
pub(super) struct Messages {
    /// By number.
    pub(super) all: BTreeMap<u64, Message>,
    /// First and last message of each batch.
    batches: BTreeMap<u64, (u64, u64)>,
    pub(super) queues: Vec<String>,
    /// Number of each message, by its place.
    at: BTreeMap<Place, u64>,
}

/// Returns the partition of a queue.
pub(super) fn partition_of(queue: &str) -> i32 {
    partition_of_key(queue.as_bytes(), PARTITIONS)
}

impl Messages {
    pub(super) fn new(queues: u64) -> Self {
        let queues = (0..queues).map(|number| format!("line-{number}")).collect();
        Self { queues, ..Self::default() }
    }

    /// Tells whether clients have sent all that a run has time for.
    pub(super) fn are_many(&self) -> bool {
        self.batches.len() as u64 >= BATCHES_MAX
    }

    /// Returns the message at a place, if somebody was told of it.
    pub(super) fn at(&self, place: Place) -> Option<(u64, &Message)> {
        let number = *self.at.get(&place)?;
        Some((number, &self.all[&number]))
    }

    /// Returns the messages of a partition whose places are known.
    pub(super) fn of(&self, partition: i32) -> impl Iterator<Item = (Place, &Message)> {
        let here = self.at.range((partition, 0)..=(partition, i64::MAX));
        here.map(|(place, number)| (*place, &self.all[number]))
    }

    /// Makes a message. Where clocks leap, nobody may wait for a time: a clock may never come to it.
    fn message(
        work: &mut Prng,
        queue: String,
        number: u64,
        (wall_ms, leaps): (i64, bool),
    ) -> Message {
        let mut value = number.to_be_bytes().to_vec();
        value.resize(usize::try_from(work.between(8, 200)).expect("small"), 7);
        let mut after = |from: i64, low: u64, high: u64| {
            from + i64::try_from(work.between(low, high)).expect("small")
        };
        let (deliver_at_ms, expires_ms) = match after(0, 0, 9) {
            0..=1 if !leaps => (after(wall_ms, 1, 3000), i64::MAX),
            2 if !leaps => (0, after(wall_ms, 300, 4000)),
            3 if !leaps => {
                let deliver_at_ms = after(wall_ms, 1, 2000);
                (deliver_at_ms, after(deliver_at_ms, 1, 2000))
            }
            2..=3 => (0, after(wall_ms, DAY_MS, 30 * DAY_MS)),
            _ => (0, i64::MAX),
        };
        let priority = if work.chance(300) { *work.pick(&[0, 4, 9]) } else { PRIORITY_USUAL };
        Message {
            queue,
            value,
            priority,
            deliver_at_ms,
            expires_ms,
            place: None,
            acknowledged: None,
            is_refused: false,
        }
    }

    /// Makes a batch of these messages. Returns its number.
    fn batch(&mut self, messages: Vec<Message>, wall_ms: i64) -> (u64, Bytes) {
        let number = self.batches.len() as u64;
        let first = self.all.len() as u64;
        let last = first + messages.len() as u64 - 1;
        self.batches.insert(number, (first, last));
        let mut builder = BatchBuilder::new();
        for (number, message) in (first..).zip(messages) {
            let texts = [
                (DELIVER_AT_HEADER, message.deliver_at_ms.to_string(), message.deliver_at_ms > 0),
                (EXPIRES_HEADER, message.expires_ms.to_string(), message.expires_ms < i64::MAX),
                (PRIORITY_HEADER, message.priority.to_string(), message.priority != PRIORITY_USUAL),
            ];
            let said = texts.iter().filter(|it| it.2);
            let headers: Vec<_> = said.map(|it| (it.0, Some(it.1.as_bytes()))).collect();
            let record = NewRecord {
                timestamp: wall_ms,
                key: Some(message.queue.as_bytes()),
                value: Some(&message.value),
                headers: &headers,
            };
            builder.push(&record).expect("a small record");
            self.all.insert(number, message);
        }
        (number, builder.build().expect("a small batch"))
    }

    /// Enqueues messages of one queue by the native API.
    pub(super) fn enqueue(
        &mut self,
        work: &mut Prng,
        (wall_ms, leaps): (i64, bool),
    ) -> (Question, Prepared) {
        let queue = work.pick(&self.queues).clone();
        let count = work.between(1, 4);
        let first = self.all.len() as u64;
        let messages = (first..first + count)
            .map(|number| Self::message(work, queue.clone(), number, (wall_ms, leaps)));
        let messages = messages.collect();
        self.append(&queue, messages, wall_ms)
    }

    /// Enqueues a message that is due at a time. Returns its number, too.
    pub(super) fn enqueue_delayed(
        &mut self,
        queue: &str,
        (wall_ms, deliver_at_ms): (i64, i64),
    ) -> (u64, Question, Prepared) {
        let number = self.all.len() as u64;
        let message = Message {
            queue: queue.to_owned(),
            value: number.to_be_bytes().to_vec(),
            priority: PRIORITY_USUAL,
            deliver_at_ms,
            expires_ms: i64::MAX,
            place: None,
            acknowledged: None,
            is_refused: false,
        };
        let (question, request) = self.append(queue, vec![message], wall_ms);
        (number, question, request)
    }

    fn append(
        &mut self,
        queue: &str,
        messages: Vec<Message>,
        wall_ms: i64,
    ) -> (Question, Prepared) {
        let (batch, bytes) = self.batch(messages, wall_ms);
        let name = Bytes::copy_from_slice(queue.as_bytes());
        let key = key_number(queue.as_bytes());
        let append = Append {
            target: Target::Queue(Queue { topic: TOPIC.to_owned(), name }),
            batch: CheckedBatch::of(bytes, key).expect("it is right"),
            ids: Vec::new(),
            is_patient: false,
            timeout_ms: 10_000,
        };
        (Question::Enqueue { batch }, Prepared::Native(Box::new(Op::Append(append))))
    }

    /// Enqueues messages of several queues of a partition at once, as a producer of Kafka does.
    pub(super) fn produce(
        &mut self,
        work: &mut Prng,
        (wall_ms, leaps): (i64, bool),
    ) -> (Question, Prepared) {
        let partition = partition_of(work.pick::<String>(&self.queues));
        let here = self.queues.iter().filter(|it| partition_of(it) == partition);
        let here: Vec<String> = here.cloned().collect();
        let first = self.all.len() as u64;
        let messages = (first..first + work.between(1, 6)).map(|number| {
            let queue = work.pick(&here).clone();
            Self::message(work, queue, number, (wall_ms, leaps))
        });
        let messages = messages.collect();
        let (batch, bytes) = self.batch(messages, wall_ms);
        let checked = CheckedBatch::of(bytes, partition).expect("it is right");
        let partitions = [PreparedPartition { index: partition, batch: Ok(checked) }].into();
        let topic = PreparedTopic { name: TOPIC.into(), id: Uuid::default(), partitions };
        let request = PreparedProduce {
            acks: -1,
            timeout_ms: 10_000,
            transactional_id: None,
            is_transactional: false,
            topics: [topic].into(),
        };
        (Question::Enqueue { batch }, Prepared::Produce(request))
    }

    /// Notes that a batch is in the log.
    pub(super) fn on_appended(
        &mut self,
        batch: u64,
        base: i64,
        moment: u64,
    ) -> Result<(), Failure> {
        let (first, last) = self.batches[&batch];
        for (number, offset) in (first..=last).zip(base..) {
            let partition = partition_of(&self.all[&number].queue);
            self.put(number, (partition, offset))?;
            self.all.get_mut(&number).expect("it was sent").acknowledged = Some(moment);
        }
        Ok(())
    }

    /// Notes that a batch was refused: nobody may ever get it.
    pub(super) fn on_refused(&mut self, batch: u64) -> Result<(), Failure> {
        let (first, last) = self.batches[&batch];
        for number in first..=last {
            let message = self.all.get_mut(&number).expect("it was sent");
            message.is_refused = true;
            if message.place.is_some() {
                return wrong(format!("message {number} is there, and was refused: {message:?}"));
            }
        }
        Ok(())
    }

    /// Notes the content of a record. Returns the number of its message.
    pub(super) fn on_content(
        &mut self,
        place: Place,
        (key, value): &(Bytes, Bytes),
    ) -> Result<u64, Failure> {
        let number = value.first_chunk().copied().map(u64::from_be_bytes);
        let message = number.and_then(|number| Some((number, self.all.get(&number)?)));
        let Some((number, message)) = message else {
            return wrong(format!("nobody sent {value:?}, which is at {place:?}"));
        };
        if message.value != *value || message.queue.as_bytes() != &**key || message.is_refused {
            return wrong(format!(
                "{key:?} {value:?} is at {place:?}, and was sent as {message:?}"
            ));
        }
        self.put(number, place)?;
        Ok(number)
    }

    fn put(&mut self, number: u64, place: Place) -> Result<(), Failure> {
        let here = *self.at.entry(place).or_insert(number);
        let there = *self.all.get_mut(&number).expect("it was sent").place.get_or_insert(place);
        if here != number || there != place {
            return wrong(format!(
                "message {number} is at {place:?}, where {here} was; it was at {there:?}"
            ));
        }
        Ok(())
    }
}
