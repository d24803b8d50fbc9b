//! Keeper of the topic of a share group. The keeper makes and fills it, asks where the group starts, and in the end
//! reads all of it, and the dead letters.

use std::collections::BTreeMap;

use bytes::Bytes;
use duramen_protocol::messages::read_share_group_state_summary::{
    PartitionData, ReadStateSummaryData,
};
use duramen_protocol::messages::{
    FetchResponse, ReadShareGroupStateSummaryRequest, ReadShareGroupStateSummaryResponse,
};
use duramen_protocol::records::{BatchBuilder, NewRecord, Record, Records};
use duramen_protocol::{ErrorCode, Request, Response};

use super::super::answers::{bytes_of, code_of, expect_one_of, is_made, unexpected};
use super::super::passing::Passing;
use super::super::requests::{self, OF_GROUP, Patience, TIMELESS};
use super::deliveries::{Numbered, key_of};
use super::writing::Writer;
use super::{Asking, GROUP, KEEPER, LETTERS, PARTITIONS, Question, ShareGroup, TOPIC, batches};
use crate::failure::{Failure, wrong};
use crate::prng::Prng;
use crate::trace::tell;

pub(super) const WRITES_MAX: u64 = 120;
const SET_CODES: [ErrorCode; 3] =
    [ErrorCode::None, ErrorCode::NotController, ErrorCode::RequestTimedOut];

#[derive(Debug, Default)]
pub(super) struct Keeper {
    trims: bool,
    made: Vec<&'static str>,
    is_set: bool,
    pub(super) written: u64,
    pub(super) leaders: BTreeMap<&'static str, BTreeMap<i32, i32>>,
    pub(super) coordinator: Option<i32>,
    /// The partition whose start is asked for next.
    turn: i32,
    /// Offset to which each partition was read in the last phase, and below its end if it was read to there.
    read: BTreeMap<(&'static str, i32), i64>,
    ends: BTreeMap<(&'static str, i32), i64>,
    /// Log start offsets that were told; below, the partition that begins elsewhere.
    log_starts: BTreeMap<i32, i64>,
    strays: Option<i32>,
    pub(super) is_done: bool,
}

impl Keeper {
    pub(super) fn new(trims: bool) -> Self {
        Self { trims, ..Self::default() }
    }

    pub(super) fn forget(&mut self) {
        self.leaders.clear();
        self.coordinator = None;
    }

    /// Looks anew for leaders and coordinators after an error.
    fn heed(&mut self, code: i16) {
        if code != 0 {
            self.forget();
        }
    }
}

impl ShareGroup {
    /// Returns the keeper's next request.
    pub(super) fn keep(&mut self, work: &mut Prng) -> Option<Asking> {
        if let Some(asking) = self.prepare() {
            return Some(asking);
        }
        let is_known = |name, count| {
            self.keeper.leaders.get(name).is_some_and(|all| all.len() == usize::from(count))
        };
        let letters = u8::from(self.deliveries.rules.has_dead_letters);
        if self.topic_id.is_none() || !is_known(TOPIC, 2u8) || !is_known(LETTERS, letters) {
            return Some((Question::Overview, requests::metadata(&[TOPIC, LETTERS]), 12));
        }
        if self.last_phase {
            let is_written = self.writers.iter().all(Writer::is_done);
            return is_written.then(|| self.read_through())?;
        }
        match work.below(100) {
            0..=59 if self.keeper.written < WRITES_MAX => self.write(work),
            60..=63 if self.keeper.trims => self.trim(work),
            64..=79 => self.ask_start(),
            _ => None,
        }
    }

    /// Prepares topics and settings first: a node that knows the topic knows the group's settings.
    fn prepare(&self) -> Option<Asking> {
        let rules = &self.deliveries.rules;
        let lacks = |name: &&str| !self.keeper.made.contains(name);
        let letters = Some(LETTERS).filter(|_| rules.has_dead_letters);
        if let Some(name) = letters.filter(lacks) {
            return Some((Question::Create(name), created(name), 7));
        }
        if self.keeper.is_set {
            return Some(TOPIC).filter(lacks).map(|it| (Question::Create(it), created(it), 7));
        }
        let by_key = if rules.by_key { "key" } else { "none" };
        let reset = if rules.starts_at_earliest { "earliest" } else { "latest" };
        let (lock_ms, most) =
            ((rules.lock_us / 1000).to_string(), rules.deliveries_max.to_string());
        let settings = [
            ("share.record.order", by_key),
            ("share.auto.offset.reset", reset),
            ("share.record.lock.duration.ms", &lock_ms),
            ("share.delivery.count.limit", &most),
        ];
        let committed = [("share.isolation.level", "read_committed")];
        let committed = committed.into_iter().filter(|_| rules.is_committed);
        let letters = letters.map(|name| ("errors.deadletterqueue.topic.name", name));
        let settings = settings.into_iter().chain(committed).chain(letters);
        let settings = settings.map(|(name, value)| (name, Some(value)));
        Some((Question::Set, requests::alter((OF_GROUP, GROUP), settings), 1))
    }

    /// Sends a request to the leader of a partition.
    fn ask_leader(&mut self, name: &str, partition: i32, asking: Asking) -> Option<Asking> {
        let node = self.keeper.leaders.get(name)?.get(&partition).copied()?;
        self.places.to(KEEPER, node, asking)
    }

    fn write(&mut self, work: &mut Prng) -> Option<Asking> {
        let partition = i32::from(work.chance(500));
        let (number, count) = (self.keeper.written + 1, work.between(1, 4));
        let target = ((TOPIC.to_owned(), partition), None);
        let request = requests::produce(&target, -1, batch_of(number, count, None));
        let asking = self.ask_leader(TOPIC, partition, (Question::Write, request.into(), 9))?;
        self.keeper.written = number;
        Some(asking)
    }

    /// Deletes some records, whatever became of them.
    fn trim(&mut self, work: &mut Prng) -> Option<Asking> {
        let partition = i32::from(work.chance(500));
        let start = self.deliveries.start(partition).max(0).unsigned_abs();
        let offset = i64::try_from(start + work.below(6)).expect("small");
        let request = requests::trim(&(TOPIC.to_owned(), partition), offset);
        let asking = self.ask_leader(TOPIC, partition, (Question::Trim, request, 2))?;
        self.deliveries.on_trim_sent(partition, offset);
        Some(asking)
    }

    /// Asks where the group starts in a partition.
    fn ask_start(&mut self) -> Option<Asking> {
        let topic_id = self.topic_id?;
        let partition = self.keeper.turn;
        let Some(node) = self.keeper.coordinator else {
            let key = format!("{GROUP}:{topic_id}:{partition}");
            return Some((Question::Find, requests::find(requests::SHARE_KEY, &[&key]), 6));
        };
        let partitions = vec![PartitionData { partition, leader_epoch: -1 }];
        let topics = vec![ReadStateSummaryData { topic_id, partitions }];
        let request = ReadShareGroupStateSummaryRequest { group_id: GROUP.to_owned(), topics };
        self.places.to(KEEPER, node, (Question::Start(partition), request.into(), 0))
    }

    /// Tells whether the group starts behind all records that are for somebody, in a partition that was read to its
    /// end.
    fn is_over(&self, partition: i32) -> bool {
        let first = self.keeper.log_starts.get(&partition).copied().unwrap_or(0);
        let end = self.keeper.ends[&(TOPIC, partition)];
        let start = self.deliveries.start(partition).max(first);
        start >= end || start >= self.deliveries.end_of_all(partition, end)
    }

    /// Reads all of the log, waits for the group, and then reads its dead letters.
    fn read_through(&mut self) -> Option<Asking> {
        let ends = &self.keeper.ends;
        if let Some(partition) = (0..PARTITIONS).find(|it| !ends.contains_key(&(TOPIC, *it))) {
            return self.read(TOPIC, partition);
        }
        if !(0..PARTITIONS).all(|partition| self.is_over(partition)) {
            return self.ask_start();
        }
        let has_letters = self.deliveries.rules.has_dead_letters;
        (has_letters && !ends.contains_key(&(LETTERS, 0))).then(|| self.read(LETTERS, 0))?
    }

    fn read(&mut self, name: &'static str, partition: i32) -> Option<Asking> {
        if let Some(partition) = self.keeper.strays {
            let request = requests::start(&(TOPIC.to_owned(), partition));
            return self.ask_leader(TOPIC, partition, (Question::Begin(partition), request, 5));
        }
        let at = self.keeper.read.get(&(name, partition)).copied().unwrap_or(0);
        let target = ((name.to_owned(), partition), None);
        let patience = Patience { wait_ms: 100, bytes: 10_000 };
        let mut request = requests::fetch(&[(target, at)], patience);
        request.isolation_level = i8::from(self.deliveries.rules.is_committed);
        let asking = (Question::Read(name, partition), request.into(), requests::FETCH_OF_LEADER);
        self.ask_leader(name, partition, asking)
    }
}

/// Answers.
impl ShareGroup {
    pub(super) fn on_kept(&mut self, question: Question, came: &Response) -> Result<(), Failure> {
        match (question, came) {
            (Question::Create(name), Response::CreateTopics(it)) => {
                self.keeper.made.extend(is_made(it).then_some(name));
            }
            (Question::Set, Response::IncrementalAlterConfigs(it)) => {
                let code = it.responses[0].error_code;
                self.keeper.is_set = code == 0;
                expect_one_of(code, &SET_CODES, "IncrementalAlterConfigs")?;
            }
            (Question::Write, Response::Produce(it)) => {
                self.keeper.heed(it.responses[0].partition_responses[0].error_code);
            }
            (Question::Trim, Response::DeleteRecords(it)) => {
                self.keeper.heed(it.topics[0].partitions[0].error_code);
            }
            (Question::Start(partition), Response::ReadShareGroupStateSummary(it)) => {
                self.keeper.turn = (partition + 1) % PARTITIONS;
                self.on_start(partition, it)?;
                self.keeper.coordinator = None;
                self.look_for_end()?;
            }
            (Question::Begin(partition), Response::ListOffsets(it)) => {
                let part = &it.topics[0].partitions[0];
                self.keeper.heed(part.error_code);
                if part.error_code == 0 {
                    self.keeper.strays = None;
                    self.keeper.read.insert((TOPIC, partition), part.offset);
                }
            }
            (Question::Read(name, partition), Response::Fetch(it)) => {
                self.on_read(name, partition, it)?;
                self.look_for_end()?;
            }
            (_, came) => unexpected(came)?,
        }
        Ok(())
    }

    fn on_start(
        &mut self,
        partition: i32,
        it: &ReadShareGroupStateSummaryResponse,
    ) -> Result<(), Failure> {
        let part = &it.results[0].partitions[0];
        if part.error_code == 0 {
            return self.deliveries.on_start(partition, part.start_offset);
        }
        let code = code_of(part.error_code);
        if code.is_retriable() { Ok(()) } else { wrong(format!("where it starts: {code:?}")) }
    }

    fn on_read(
        &mut self,
        name: &'static str,
        partition: i32,
        it: &FetchResponse,
    ) -> Result<(), Failure> {
        let part = &it.responses[0].partitions[0];
        let code = code_of(part.error_code);
        if name == TOPIC && part.log_start_offset >= 0 {
            self.keeper.log_starts.insert(partition, part.log_start_offset);
        }
        if code == ErrorCode::OffsetOutOfRange && name == TOPIC {
            self.keeper.strays = Some(partition);
            return Ok(());
        }
        if !code.is_none() {
            self.keeper.forget();
            let is_expected = code.is_retriable() || code == ErrorCode::UnknownTopicOrPartition;
            return if is_expected { Ok(()) } else { wrong(format!("{name}: {code:?}")) };
        }
        let mut next = self.keeper.read.get(&(name, partition)).copied().unwrap_or(0);
        let mut passing = Passing::of(part);
        for batch in batches(bytes_of(part)).map_while(Result::ok) {
            let header = *batch.header();
            let is_shown = passing.shows(&header);
            if header.attributes.is_control() {
                next = header.end_offset();
                continue;
            }
            let Ok(records) = Records::of(&batch, 1 << 20) else {
                return wrong(format!("{name}: records cannot be read"));
            };
            for record in &records {
                let Ok(record) = record else { return wrong(format!("{name}: a torn record")) };
                let Some(content) = content_of(&record) else {
                    return wrong(format!("{name}: a record is not what was written"));
                };
                if name == TOPIC {
                    let place = (partition, records.offset(&record));
                    self.deliveries.on_content(place, content)?;
                    self.deliveries.fates.on_read(content.0, is_shown)?;
                } else {
                    self.on_letter(&record, content)?;
                }
            }
            next = header.end_offset();
        }
        self.keeper.read.insert((name, partition), next);
        if next >= part.high_watermark {
            self.keeper.ends.insert((name, partition), part.high_watermark);
        }
        Ok(())
    }

    fn on_letter(&mut self, record: &Record<'_>, content: Numbered) -> Result<(), Failure> {
        let number = |name: &str| -> Option<i64> {
            let header = record.headers.into_iter().find(|it| it.key == name.as_bytes())?;
            std::str::from_utf8(header.value?).ok()?.parse().ok()
        };
        let of = (number("__dlq.errors.partition"), number("__dlq.errors.offset"));
        let (Some(partition), Some(offset)) = of else {
            return wrong(format!("the dead letter {content:?} does not say what it is"));
        };
        tell(|| format!("  dead letter: {offset} of {partition}"));
        let partition = i32::try_from(partition).expect("few");
        self.deliveries.on_letter((partition, offset), content)
    }

    /// Judges all, once there is nothing more to come.
    fn look_for_end(&mut self) -> Result<(), Failure> {
        let ends = &self.keeper.ends;
        let logs = if self.deliveries.rules.has_dead_letters { PARTITIONS + 1 } else { PARTITIONS };
        if !self.last_phase || ends.len() < usize::try_from(logs).expect("few") {
            return Ok(());
        }
        let of_topic = ends.iter().filter(|((name, _), _)| *name == TOPIC);
        let of_topic: BTreeMap<i32, i64> = of_topic.map(|(it, end)| (it.1, *end)).collect();
        if of_topic.keys().all(|partition| self.is_over(*partition)) {
            self.keeper.is_done = true;
            return self.deliveries.check_end(&of_topic);
        }
        Ok(())
    }
}

/// Returns the request that makes a topic. Clocks leap, so its settings set no limit of time.
fn created(name: &str) -> Request {
    if name == LETTERS {
        let enabled = ("errors.deadletterqueue.group.enable", "true");
        return requests::create(name, 1, 3, &[TIMELESS[0], TIMELESS[1], enabled]);
    }
    requests::create(name, PARTITIONS, 3, &TIMELESS)
}

/// Makes a batch of records that carry their content in key and value; of a transaction, if they have a producer.
pub(super) fn batch_of(number: u64, count: u64, producer: Option<(i64, i16, i32)>) -> Bytes {
    let mut batch = BatchBuilder::new();
    if let Some((id, epoch, sequence)) = producer {
        batch = batch.producer(id, epoch, sequence).transactional();
    }
    for within in 0..count {
        let key = key_of((number, within)).to_be_bytes();
        let value = [number.to_be_bytes(), within.to_be_bytes()].concat();
        let record = NewRecord {
            timestamp: 1_700_000_000_000,
            key: Some(&key),
            value: Some(&value),
            ..NewRecord::default()
        };
        batch.push(&record).expect("it is small");
    }
    batch.build().expect("it is small")
}

/// Returns the content of a record by its value and key, if they are as they were written.
pub(super) fn content_of(record: &Record<'_>) -> Option<Numbered> {
    let (number, within) = record.value?.split_at_checked(8)?;
    let number = u64::from_be_bytes(number.try_into().ok()?);
    let within = u64::from_be_bytes(within.try_into().ok()?);
    (record.key == Some(&key_of((number, within)).to_be_bytes()[..])).then_some((number, within))
}
