//! # Room card: share records
//!
//! Purpose:    the records of the log of share groups (`__share_group_state`), one group and partition each, in Kafka's
//!             format.
//! Owns:       the layouts of keys and values.
//! Interface:  [`ShareRecord::encode`], [`ShareRecord::decode`]; [`Snapshot`] and [`Update`], the content of a value.
//! Invariants: a record has the bytes that Apache Kafka 4.3 writes for the same fact, and Kafka can read it. A key of
//!             another kind, an unknown version and bytes left over are errors.
//! Never:      the effects of records (see `coordinator`); batches.
//! Tests:      below.
//! Start at:   [`ShareRecord`].

use std::sync::Arc;

use bytes::Bytes;
use duramen_protocol::wire::{DecodeError, Decoder, EncodeError, Uuid};

use super::{ShareKey, ShareState, StateBatch};
use crate::ledger::{Encoded, decoded, keyed, versioned, whole};

duramen_protocol::message! {
    struct Key: versions 0..=0, flexible none {
        group_id: Arc<str> [0..],
        topic_id: Uuid [0..],
        partition: i32 [0..],
    }
    struct SnapshotValue: versions 0..=0, flexible 0.. {
        snapshot_epoch: i32 [0..],
        state_epoch: i32 [0..],
        leader_epoch: i32 [0..],
        start_offset: i64 [0..],
        delivery_complete_count: i32 [0.., tag 0 in 0..] = -1,
        create_timestamp: i64 [0..],
        write_timestamp: i64 [0..],
        state_batches: Vec<StateBatch> [0..],
    }
    /// Changes since the last snapshot.
    #[derive(Eq)]
    pub(crate) struct Update: versions 0..=0, flexible 0.. {
        /// Of that snapshot.
        number: i32 [0..],
        leader_epoch: i32 [0..],
        /// -1 leaves it as it is.
        start: i64 [0..],
        complete: i32 [0.., tag 0 in 0..] = -1,
        batches: Vec<StateBatch> [0..],
    }
}

/// Whole stored state of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Snapshot {
    /// Count of earlier snapshots of the key.
    pub number: i32,
    pub state: Arc<ShareState>,
    pub created_ms: i64,
    pub written_ms: i64,
}

/// One record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ShareRecord {
    Snapshot(ShareKey, Snapshot),
    Update(ShareKey, Update),
    /// The key has no stored state any more.
    Gone(ShareKey),
}

const SNAPSHOT: i16 = 0;
const UPDATE: i16 = 1;
const KEY_VERSION: i16 = 0;
const VALUE_VERSION: i16 = 0;
/// A batch of offsets, with its field of tags.
const BATCH_BYTES: usize = 20;

fn sound(batches: Vec<StateBatch>) -> Result<Vec<StateBatch>, DecodeError> {
    let why = "a batch of offsets that ends before it begins";
    let are_sound = batches.iter().all(StateBatch::is_sound);
    if are_sound { Ok(batches) } else { Err(DecodeError::Malformed { at: 0, why }) }
}

impl ShareRecord {
    /// Returns the key of the record.
    pub(crate) fn key(&self) -> &ShareKey {
        match self {
            Self::Snapshot(key, _) | Self::Update(key, _) | Self::Gone(key) => key,
        }
    }

    /// Encodes key and value. Fails if a length does not fit its field.
    pub(crate) fn encode(&self) -> Result<Encoded, EncodeError> {
        debug_assert!(
            match self {
                Self::Snapshot(_, it) => it.state.batches.iter().all(StateBatch::is_sound),
                Self::Update(_, it) => it.batches.iter().all(StateBatch::is_sound),
                Self::Gone(_) => true,
            },
            "what is written of {} can be read",
            self.key()
        );
        let (kind, value) = match self {
            Self::Snapshot(_, it) => {
                let value = SnapshotValue {
                    snapshot_epoch: it.number,
                    state_epoch: it.state.state_epoch,
                    leader_epoch: it.state.leader_epoch,
                    start_offset: it.state.start,
                    delivery_complete_count: it.state.complete,
                    create_timestamp: it.created_ms,
                    write_timestamp: it.written_ms,
                    state_batches: it.state.batches.clone(),
                };
                (SNAPSHOT, Some(versioned(&value, VALUE_VERSION)?))
            }
            Self::Update(_, it) => (UPDATE, Some(versioned(it, VALUE_VERSION)?)),
            Self::Gone(_) => (SNAPSHOT, None),
        };
        let ShareKey { group: group_id, topic_id, partition } = self.key().clone();
        Ok((keyed(kind, &Key { group_id, topic_id, partition }, KEY_VERSION)?, value))
    }

    /// Reads a record.
    pub(crate) fn decode(key: Bytes, value: Option<Bytes>) -> Result<Self, DecodeError> {
        let mut d = Decoder::new(key);
        let kind = d.i16()?;
        let Key { group_id, topic_id, partition } = whole(d, KEY_VERSION)?;
        let key = ShareKey { group: group_id, topic_id, partition };
        match (kind, value) {
            (SNAPSHOT, None) => Ok(Self::Gone(key)),
            (SNAPSHOT, Some(value)) => {
                let it: SnapshotValue = decoded(value)?;
                let state = ShareState {
                    state_epoch: it.state_epoch,
                    leader_epoch: it.leader_epoch,
                    start: it.start_offset,
                    complete: it.delivery_complete_count,
                    batches: sound(it.state_batches)?,
                };
                let snapshot = Snapshot {
                    number: it.snapshot_epoch,
                    state: Arc::new(state),
                    created_ms: it.create_timestamp,
                    written_ms: it.write_timestamp,
                };
                Ok(Self::Snapshot(key, snapshot))
            }
            (UPDATE, Some(value)) => {
                let update: Update = decoded(value)?;
                let batches = sound(update.batches)?;
                Ok(Self::Update(key, Update { batches, ..update }))
            }
            _ => Err(DecodeError::Malformed { at: 0, why: "a kind of record that is not known" }),
        }
    }

    /// Returns the approximate size in a batch, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        let batches = match self {
            Self::Snapshot(_, it) => it.state.batches.len(),
            Self::Update(_, it) => it.batches.len(),
            Self::Gone(_) => 0,
        };
        96 + self.key().group.len() + batches * BATCH_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> ShareKey {
        ShareKey { group: "g".into(), topic_id: Uuid::from_u128(1), partition: 7 }
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
    }

    fn some() -> [ShareRecord; 3] {
        let batch = StateBatch { first: 5, last: 6, state: 2, count: 1 };
        let state = ShareState {
            state_epoch: 3,
            leader_epoch: 4,
            start: 5,
            complete: 2,
            batches: vec![batch],
        };
        let snapshot = Snapshot { number: 1, state: state.into(), created_ms: 8, written_ms: 9 };
        let update =
            Update { number: 1, leader_epoch: 4, start: -1, complete: -1, batches: vec![batch] };
        [
            ShareRecord::Snapshot(key(), snapshot),
            ShareRecord::Update(key(), update),
            ShareRecord::Gone(key()),
        ]
    }

    #[test]
    fn records_read_back() {
        for record in some() {
            let (key, value) = record.encode().expect("it is short");
            let weight = key.len() + value.as_ref().map_or(0, Bytes::len);
            assert!(record.bytes() >= weight, "{record:?}");
            assert_eq!(ShareRecord::decode(key, value), Ok(record));
        }
    }

    #[test]
    fn bytes_are_those_of_kafka() {
        let [snapshot, update, gone] = some();
        let (key, value) = snapshot.encode().expect("it is short");
        let of_key = "000167000000000000000000000000000000010000000";
        assert_eq!(hex(&key), format!("0000{of_key}7"));
        let batch = "0000000000000005000000000000000602000100";
        let head = "0000000000010000000300000004";
        let times = "00000000000000080000000000000009";
        let expected = format!("{head}0000000000000005{times}02{batch}01000400000002");
        assert_eq!(hex(&value.expect("it has one")), expected);
        let (key, value) = update.encode().expect("it is short");
        assert_eq!(hex(&key), format!("0001{of_key}7"));
        let expected = format!("00000000000100000004ffffffffffffffff02{batch}00");
        assert_eq!(hex(&value.expect("it has one")), expected);
        let (key, value) = gone.encode().expect("it is short");
        assert_eq!((hex(&key), value), (format!("0000{of_key}7"), None));
    }

    #[test]
    fn what_is_not_known_is_an_error() {
        let [snapshot, ..] = some();
        let (key, value) = snapshot.encode().expect("it is short");
        let mut other = key.to_vec();
        other[1] = 2;
        assert!(ShareRecord::decode(other.into(), value.clone()).is_err(), "another kind");
        let value = value.expect("it has one");
        let mut newer = value.to_vec();
        newer[1] = 1;
        assert!(ShareRecord::decode(key.clone(), Some(newer.into())).is_err(), "a newer version");
        for len in 0..value.len() {
            let cut = value.slice(..len);
            assert!(ShareRecord::decode(key.clone(), Some(cut)).is_err(), "{len} bytes");
        }
        let longer = [&value[..], &[0]].concat();
        assert!(ShareRecord::decode(key, Some(longer.into())).is_err(), "a byte more");
    }
}
