//! # Room card: transaction records
//!
//! Purpose:    the records of the log of transactions (`__transaction_state`), one transactional id each, in Kafka's
//!             format.
//! Owns:       the layouts of keys and values; which version is written.
//! Interface:  [`TransactionRecord::encode`], [`TransactionRecord::decode`]; [`Transaction`], the content of a value.
//! Invariants: a record has the bytes that Apache Kafka 4.3 writes for the same fact; this code reads all versions that
//!             Kafka ever wrote. A key of another kind, an unknown version or state and bytes left over are errors.
//! Never:      the effects of records (see `coordinator`); batches.
//! Tests:      below.
//! Start at:   [`Transaction`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use duramen_protocol::wire::{DecodeError, Decoder, EncodeError};

use crate::ledger::{Encoded, value_of, versioned, whole};

duramen_protocol::message! {
    struct TransactionLogKey: versions 0..=0, flexible none {
        transactional_id: Arc<str> [0..],
    }
    struct TransactionLogValue: versions 0..=1, flexible 1.. {
        producer_id: i64 [0..],
        previous_producer_id: i64 [1.., tag 0 in 1.., ignorable] = -1,
        next_producer_id: i64 [1.., tag 1 in 1.., ignorable] = -1,
        next_producer_epoch: i16 [1.., tag 3 in 1.., ignorable] = -1,
        producer_epoch: i16 [0..],
        transaction_timeout_ms: i32 [0..],
        transaction_status: i8 [0..],
        transaction_partitions: Option<Vec<PartitionsSchema>> [0.., nullable 0..],
        transaction_last_update_timestamp_ms: i64 [0..],
        transaction_start_timestamp_ms: i64 [0..],
        client_transaction_version: i16 [1.., tag 2 in 1.., ignorable],
    }
    struct PartitionsSchema {
        topic: String [0..],
        partition_ids: Vec<i32> [0..],
    }
}

/// Where a transactional id stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Status {
    /// The id has a producer, which has begun no transaction yet.
    Empty,
    /// A transaction is open.
    Ongoing,
    /// The transaction commits, and its partitions are getting markers.
    PrepareCommit,
    /// The transaction aborts, and its partitions are getting markers.
    PrepareAbort,
    /// The last one was committed.
    CompleteCommit,
    /// The last one was aborted.
    CompleteAbort,
}

impl Status {
    const ALL: [Self; 6] = [
        Self::Empty,
        Self::Ongoing,
        Self::PrepareCommit,
        Self::PrepareAbort,
        Self::CompleteCommit,
        Self::CompleteAbort,
    ];

    /// Returns Kafka's name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Empty => "Empty",
            Self::Ongoing => "Ongoing",
            Self::PrepareCommit => "PrepareCommit",
            Self::PrepareAbort => "PrepareAbort",
            Self::CompleteCommit => "CompleteCommit",
            Self::CompleteAbort => "CompleteAbort",
        }
    }

    /// Returns the decision whose markers are under way: true for a commit.
    pub(crate) fn decided(self) -> Option<bool> {
        match self {
            Self::PrepareCommit => Some(true),
            Self::PrepareAbort => Some(false),
            _ => None,
        }
    }
}

/// Topics and their partitions.
pub(crate) type Partitions = BTreeMap<String, BTreeSet<i32>>;

/// Durable state of a transactional id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Transaction {
    pub producer_id: i64,
    /// The one before, after the epochs of that were used up; or -1.
    pub previous_producer_id: i64,
    /// The one that comes when this transaction is over; or -1.
    pub next_producer_id: i64,
    pub epoch: i16,
    pub timeout_ms: i32,
    pub status: Status,
    pub partitions: Partitions,
    pub updated_ms: i64,
    /// When the transaction began, or -1.
    pub started_ms: i64,
    /// The protocol that its producer speaks: 2 has an epoch for each transaction.
    pub version: i16,
}

/// State of a transactional id; a record without a value removes the id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TransactionRecord {
    pub id: Arc<str>,
    pub value: Option<Arc<Transaction>>,
}

const KEY_VERSION: i16 = 0;
const VALUE_VERSION: i16 = 1;

impl TransactionRecord {
    /// Encodes key and value. Fails if a length does not fit its field.
    pub(crate) fn encode(&self) -> Result<Encoded, EncodeError> {
        let key = TransactionLogKey { transactional_id: self.id.clone() };
        let key = versioned(&key, KEY_VERSION)?;
        let Some(it) = &self.value else { return Ok((key, None)) };
        let topic = |(topic, partitions): (&String, &BTreeSet<i32>)| PartitionsSchema {
            topic: topic.clone(),
            partition_ids: partitions.iter().copied().collect(),
        };
        let value = TransactionLogValue {
            producer_id: it.producer_id,
            previous_producer_id: it.previous_producer_id,
            next_producer_id: it.next_producer_id,
            next_producer_epoch: -1,
            producer_epoch: it.epoch,
            transaction_timeout_ms: it.timeout_ms,
            transaction_status: it.status as i8,
            // Kafka has none where nothing was begun.
            transaction_partitions: (it.status != Status::Empty)
                .then(|| it.partitions.iter().map(topic).collect()),
            transaction_last_update_timestamp_ms: it.updated_ms,
            transaction_start_timestamp_ms: it.started_ms,
            client_transaction_version: it.version,
        };
        Ok((key, Some(versioned(&value, VALUE_VERSION)?)))
    }

    /// Reads a record of any version.
    pub(crate) fn decode(key: Bytes, value: Option<Bytes>) -> Result<Self, DecodeError> {
        let mut d = Decoder::new(key);
        let version = d.i16()?;
        let TransactionLogKey { transactional_id: id } = whole(d, version)?;
        let Some(it) = value_of::<TransactionLogValue>(value)? else {
            return Ok(Self { id, value: None });
        };
        let at = usize::try_from(it.transaction_status).unwrap_or(usize::MAX);
        let why = "a state of a transaction that is not known";
        let status = *Status::ALL.get(at).ok_or(DecodeError::Malformed { at: 0, why })?;
        let topics = it.transaction_partitions.unwrap_or_default().into_iter();
        let partitions = topics.map(|it| (it.topic, it.partition_ids.into_iter().collect()));
        let value = Transaction {
            producer_id: it.producer_id,
            previous_producer_id: it.previous_producer_id,
            next_producer_id: it.next_producer_id,
            epoch: it.producer_epoch,
            timeout_ms: it.transaction_timeout_ms,
            status,
            partitions: partitions.collect(),
            updated_ms: it.transaction_last_update_timestamp_ms,
            started_ms: it.transaction_start_timestamp_ms,
            version: it.client_transaction_version,
        };
        Ok(Self { id, value: Some(Arc::new(value)) })
    }

    /// Returns the approximate size in a batch, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        let topics = self.value.iter().flat_map(|it| &it.partitions);
        let topics = topics.map(|(topic, partitions)| topic.len() + 8 + partitions.len() * 4);
        64 + self.id.len() + topics.sum::<usize>()
    }
}
