//! Appending batches to one partition: in order, several in flight, each exactly once if idempotent.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};
use duramen_protocol::error_code::ErrorCode;
use duramen_protocol::messages::produce::{PartitionProduceData, TopicProduceData};
use duramen_protocol::messages::{InitProducerIdRequest, ProduceRequest, ProduceResponse};

use crate::backoff::Backoff;
use crate::client::{Client, Leader};
use crate::connection::InFlight;
use crate::error::Error;

const CRC_AT: usize = 17;
const CRC_FROM: usize = 21;
const PRODUCER_ID_AT: usize = 43;
const PRODUCER_EPOCH_AT: usize = 51;
const SEQUENCE_AT: usize = 53;
const COUNT_AT: usize = 57;
const HEADER_BYTES: usize = 61;

/// An idempotent producer, as the cluster knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Producer {
    /// Producer id.
    pub id: i64,
    /// Producer epoch.
    pub epoch: i16,
}

/// When an append counts as done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Acknowledgement {
    /// Never answered: sent and forgotten.
    None,
    /// On the leader's word alone.
    Leader,
    /// When enough replicas have it.
    All,
}

impl Acknowledgement {
    /// Returns the number on the wire.
    pub fn code(self) -> i16 {
        match self {
            Self::None => 0,
            Self::Leader => 1,
            Self::All => -1,
        }
    }
}

/// Options of appends.
#[derive(Debug, Clone, Copy)]
pub struct AppenderOptions {
    /// Acknowledgement that the broker waits for.
    pub acks: Acknowledgement,
    /// Producer of exactly-once appends; `None` for others.
    pub producer: Option<Producer>,
    /// Batches in flight at once; with a producer at most 5, as many as brokers remember.
    pub window: usize,
    /// Longest wait of the broker for its replicas, in milliseconds.
    pub timeout_ms: i32,
}

/// Batch that the broker acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Acked {
    /// The offset of its first record; -1 where the broker did not say.
    pub base_offset: i64,
    /// Number of its records.
    pub records: u32,
    /// Size in bytes, with its header.
    pub bytes: usize,
    /// True if it took one round trip: the leader was not asked for its commit.
    pub is_fast: bool,
}

/// Appends batches to one partition, in order.
pub struct Appender {
    client: Client,
    topic: String,
    partition: i32,
    options: AppenderOptions,
    next_sequence: i32,
    unacked: VecDeque<Unacked>,
}

struct Unacked {
    batch: Bytes,
    records: u32,
    state: State,
}

enum State {
    Unsent,
    Sent(InFlight<ProduceResponse>),
    Answered(i64),
}

impl Client {
    /// Asks for a new idempotent producer.
    pub async fn init_producer(&self) -> Result<Producer, Error> {
        let request = InitProducerIdRequest::default();
        self.retry(async || {
            let response = self.any().await?.call(&request).await?;
            Error::check(|| "idempotent producer".into(), response.error_code, None)?;
            Ok(Producer { id: response.producer_id, epoch: response.producer_epoch })
        })
        .await
    }
}

impl Appender {
    /// Returns an appender to a partition that exists.
    pub fn new(client: Client, topic: &str, partition: i32, options: AppenderOptions) -> Self {
        let unacked = VecDeque::new();
        Self { client, topic: topic.into(), partition, options, next_sequence: 0, unacked }
    }

    /// Takes an encoded batch, and sends it as soon as the window allows. Returns the batches that the broker
    /// acknowledged meanwhile, the oldest first. Writes the producer and its sequence into the batch.
    ///
    /// Fails with the error of the oldest batch, if a retry cannot help or
    /// [`Options::retry_for`](crate::Options::retry_for) is over. Batches that the broker has not acknowledged are then
    /// in the log or not.
    ///
    /// # Panics
    ///
    /// Panics on bytes that are shorter than the header of a batch.
    pub async fn push(&mut self, mut batch: BytesMut) -> Result<Vec<Acked>, Error> {
        let records = records_of(&batch);
        if let Some(producer) = self.options.producer {
            claim(&mut batch, producer, self.next_sequence);
            self.next_sequence = advance(self.next_sequence, records);
        }
        let batch = batch.freeze();
        if self.options.acks == Acknowledgement::None {
            return self.send_and_forget(batch, records).await.map(|acked| vec![acked]);
        }
        let mut acked = Vec::new();
        while self.unacked.len() >= self.options.window.max(1) {
            acked.push(self.oldest().await?);
        }
        // A batch behind an unsent one waits for its turn, or it would overtake.
        let clear = self.unacked.iter().all(|earlier| !matches!(earlier.state, State::Unsent));
        let state = if clear { self.send(&batch).await? } else { State::Unsent };
        self.unacked.push_back(Unacked { batch, records, state });
        Ok(acked)
    }

    /// Waits until the broker has acknowledged every batch. Returns those that [`push`](Self::push) has not returned,
    /// the oldest first. Fails as `push` does.
    pub async fn finish(&mut self) -> Result<Vec<Acked>, Error> {
        let mut acked = Vec::new();
        while !self.unacked.is_empty() {
            acked.push(self.oldest().await?);
        }
        Ok(acked)
    }

    /// Waits until the oldest batch is acknowledged, sending it again while that may help.
    async fn oldest(&mut self) -> Result<Acked, Error> {
        let mut backoff = Backoff::new(self.client.options().retry_for);
        loop {
            let oldest = self.unacked.front_mut().expect("the caller checked");
            match std::mem::replace(&mut oldest.state, State::Unsent) {
                State::Answered(base_offset) => {
                    let oldest = self.unacked.pop_front().expect("just seen");
                    let (records, bytes) = (oldest.records, oldest.batch.len());
                    return Ok(Acked { base_offset, records, bytes, is_fast: false });
                }
                State::Unsent => self.send_all().await?,
                State::Sent(in_flight) => match self.outcome(in_flight).await {
                    Ok(offset) => self.unacked[0].state = State::Answered(offset),
                    Err(error) if may_pass(&error) && backoff.pause().await => {
                        self.client.forget(&self.topic).await;
                        self.settle().await?;
                    }
                    Err(error) => return Err(error),
                },
            }
        }
    }

    /// Waits for the answers to all that follow a failed batch, before any of it is sent again.
    async fn settle(&mut self) -> Result<(), Error> {
        for index in 0..self.unacked.len() {
            let state = std::mem::replace(&mut self.unacked[index].state, State::Unsent);
            self.unacked[index].state = match state {
                State::Sent(in_flight) => match self.outcome(in_flight).await {
                    Ok(offset) => State::Answered(offset),
                    // Behind a batch that was lost, every sequence is out of order.
                    Err(error) if error.code() == Some(ErrorCode::OutOfOrderSequenceNumber) => {
                        State::Unsent
                    }
                    Err(error) if may_pass(&error) => State::Unsent,
                    Err(error) => return Err(error),
                },
                other => other,
            };
        }
        Ok(())
    }

    async fn send_all(&mut self) -> Result<(), Error> {
        let mut backoff = Backoff::new(self.client.options().retry_for);
        for index in 0..self.unacked.len() {
            while matches!(self.unacked[index].state, State::Unsent) {
                let batch = self.unacked[index].batch.clone();
                self.unacked[index].state = self.send(&batch).await?;
                if matches!(self.unacked[index].state, State::Sent(_)) || backoff.pause().await {
                    continue;
                }
                // One more try, for its reason.
                let leader = self.client.leader(&self.topic, self.partition).await?;
                let in_flight = leader.connection.start(&self.request(&leader, batch)).await?;
                self.unacked[index].state = State::Sent(in_flight);
            }
        }
        Ok(())
    }

    /// Sends a batch; `Unsent` if the leader cannot be reached at this moment.
    async fn send(&self, batch: &Bytes) -> Result<State, Error> {
        let leader = match self.client.leader(&self.topic, self.partition).await {
            Ok(leader) => leader,
            Err(error) if may_pass(&error) => return Ok(State::Unsent),
            Err(error) => return Err(error),
        };
        match leader.connection.start(&self.request(&leader, batch.clone())).await {
            Ok(in_flight) => Ok(State::Sent(in_flight)),
            Err(error) if may_pass(&error) => Ok(State::Unsent),
            Err(error) => Err(error),
        }
    }

    async fn send_and_forget(&self, batch: Bytes, records: u32) -> Result<Acked, Error> {
        let bytes = batch.len();
        let leader = self.client.leader(&self.topic, self.partition).await?;
        leader.connection.tell(&self.request(&leader, batch)).await?;
        Ok(Acked { base_offset: -1, records, bytes, is_fast: false })
    }

    fn request(&self, leader: &Leader, batch: Bytes) -> ProduceRequest {
        let AppenderOptions { acks, timeout_ms, .. } = self.options;
        produce((&self.topic, self.partition), leader, batch, (acks, timeout_ms))
    }

    async fn outcome(&self, in_flight: InFlight<ProduceResponse>) -> Result<i64, Error> {
        produced(in_flight.answer().await?, (&self.topic, self.partition))
    }
}

/// Returns the number of records of an encoded batch.
///
/// # Panics
///
/// Panics on bytes that are shorter than the header of a batch.
pub(crate) fn records_of(batch: &[u8]) -> u32 {
    assert!(batch.len() >= HEADER_BYTES, "the caller encodes whole batches");
    let count: [u8; 4] = batch[COUNT_AT..COUNT_AT + 4].try_into().expect("four bytes");
    u32::from_be_bytes(count)
}

/// Names an append in errors.
pub(crate) fn append_to((topic, partition): (&str, i32)) -> String {
    format!("append to partition {partition} of topic {topic}")
}

/// Makes a Produce request with one batch.
pub(crate) fn produce(
    (topic, index): (&str, i32),
    leader: &Leader,
    batch: Bytes,
    (acks, timeout_ms): (Acknowledgement, i32),
) -> ProduceRequest {
    let partition = PartitionProduceData { index, records: Some(batch) };
    ProduceRequest {
        transactional_id: None,
        acks: acks.code(),
        timeout_ms,
        topic_data: [TopicProduceData {
            name: topic.into(),
            topic_id: leader.topic_id,
            partition_data: [partition].into(),
        }]
        .into(),
    }
}

/// Returns the offset of the one batch of a Produce request, from its response.
pub(crate) fn produced(response: ProduceResponse, to: (&str, i32)) -> Result<i64, Error> {
    let what = || append_to(to);
    let rows = response.responses.into_iter().flat_map(|topic| topic.partition_responses);
    let answer = Error::first(rows, what)?;
    if answer.error_code == ErrorCode::DuplicateSequenceNumber.code() {
        // The batch is there; the broker only forgot its offset.
        return Ok(-1);
    }
    Error::check(what, answer.error_code, answer.error_message.as_deref())?;
    Ok(answer.base_offset)
}

/// Tells whether the same append may succeed a little later.
pub(crate) fn may_pass(error: &Error) -> bool {
    // The topic existed when this appender was made; metadata may lag behind a restart.
    error.is_retriable() || error.code() == Some(ErrorCode::UnknownTopicOrPartition)
}

/// Marks a batch as a producer's, from this sequence number on.
pub(crate) fn claim(batch: &mut [u8], producer: Producer, sequence: i32) {
    batch[PRODUCER_ID_AT..PRODUCER_EPOCH_AT].copy_from_slice(&producer.id.to_be_bytes());
    batch[PRODUCER_EPOCH_AT..SEQUENCE_AT].copy_from_slice(&producer.epoch.to_be_bytes());
    batch[SEQUENCE_AT..COUNT_AT].copy_from_slice(&sequence.to_be_bytes());
    let crc = crc32c::crc32c(&batch[CRC_FROM..]);
    batch[CRC_AT..CRC_FROM].copy_from_slice(&crc.to_be_bytes());
}

/// Returns the sequence number after `records` more; 2³¹−1 is followed by 0.
pub(crate) fn advance(sequence: i32, records: u32) -> i32 {
    let next = (i64::from(sequence) + i64::from(records)) % (i64::from(i32::MAX) + 1);
    i32::try_from(next).expect("the remainder fits")
}

#[cfg(test)]
mod sequence_tests {
    use super::*;

    #[test]
    fn sequences_wrap_as_kafka_wraps_them() {
        assert_eq!(advance(0, 7), 7);
        assert_eq!(advance(i32::MAX - 1, 1), i32::MAX);
        assert_eq!(advance(i32::MAX, 1), 0);
        assert_eq!(advance(i32::MAX - 1, 5), 3);
    }
}
