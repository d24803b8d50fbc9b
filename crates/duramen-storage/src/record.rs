//! # Room card: record
//!
//! Purpose:    the records of a journal round.
//! Owns:       the kinds of record, and their bytes (`docs/format.md`, "Journal records").
//! Interface:  [`Record`], [`Record::encode`], [`decode_all`].
//! Invariants: every record carries kind and length. Recovery stops at an unknown kind and never skips it, because it
//!             may change the meaning of all later records.
//! Never:      I/O.
//! Tests:      below; fuzz target `journal`.
//! Start at:   [`Record`].

use bytes::{Buf, BufMut, Bytes};

use crate::descriptor::BATCH_HEADER_BYTES;
use crate::encoding::{
    ImageSource, get_conf, get_entry, get_hard_state, get_identity, put_conf, put_entry,
    put_hard_state, put_identity,
};
use crate::format::{Malformed, take};
use crate::op::{
    ConfState, Content, HardState, Hold, HoldId, Identity, LogEntry, ReplicaId, Stretch,
};
use crate::replica_state::{Replacement, ReplicaState, StateVersion};

const CREATE: u8 = 1;
const APPEND: u8 = 2;
const TRUNCATE: u8 = 3;
const TRIM: u8 = 4;
const HARD_STATE: u8 = 5;
const CONF: u8 = 6;
const IMAGE: u8 = 7;
const STATE_1: u8 = 8;
const DELETE: u8 = 9;
const GONE: u8 = 10;
const SYNCED: u8 = 11;
const STATE_2: u8 = 12;
const STATE_3: u8 = 13;
const COMPACTED: u8 = 14;
const STATE_4: u8 = 15;
const EMPTIED: u8 = 16;
const HELD: u8 = 17;
const APPEND_HELD: u8 = 18;

/// One fact the node must not forget.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Record {
    /// A new, empty replica.
    Create { replica: ReplicaId, identity: Identity, conf: ConfState },
    /// An entry was appended. `payload` is `None` when it was synced in its segment instead.
    Append { replica: ReplicaId, entry: LogEntry, payload: Option<Bytes> },
    /// The log was cut: `from` and all after it are gone.
    Truncate { replica: ReplicaId, from: u64 },
    /// Offsets below `log_start` are gone.
    Trim { replica: ReplicaId, log_start: i64 },
    /// Raft's hard state.
    HardState { replica: ReplicaId, hard_state: HardState },
    /// Raft's membership.
    Conf { replica: ReplicaId, conf: ConfState },
    /// Snapshot of a view.
    Image { replica: ReplicaId, index: u64, image: ImageSource },
    /// A checkpoint: everything of this replica in rounds below `as_of`, payload included, is
    /// durable outside the journal or in here.
    State { as_of: u64, state: Box<ReplicaState> },
    /// The replica is to be removed.
    Delete { replica: ReplicaId },
    /// The directory has its new name for good: the old name may be used again.
    Gone { replica: ReplicaId },
    /// The synced mark: payload up to this index is durable in its segments.
    Synced { replica: ReplicaId, index: u64 },
    /// The log was compacted: these segments, which are durable, take the place of all below.
    Compacted { replica: ReplicaId, replacement: Box<Replacement> },
    /// All offsets are gone, and the last segment with them: the next batch begins one.
    Emptied { replica: ReplicaId },
    /// A batch is kept beside the log.
    Held { replica: ReplicaId, hold: Hold },
    /// A batch was appended that a Held record of the journal has, with another header.
    AppendHeld { replica: ReplicaId, entry: LogEntry, id: HoldId, header: Bytes },
}

impl Record {
    /// Returns the replica that the record belongs to.
    pub(crate) fn replica(&self) -> ReplicaId {
        match self {
            Self::Create { replica, .. }
            | Self::Append { replica, .. }
            | Self::Truncate { replica, .. }
            | Self::Trim { replica, .. }
            | Self::HardState { replica, .. }
            | Self::Conf { replica, .. }
            | Self::Image { replica, .. }
            | Self::Delete { replica }
            | Self::Gone { replica }
            | Self::Synced { replica, .. }
            | Self::Compacted { replica, .. }
            | Self::Emptied { replica }
            | Self::Held { replica, .. }
            | Self::AppendHeld { replica, .. } => *replica,
            Self::State { state, .. } => state.replica,
        }
    }

    /// Appends kind, length, replica and body.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let kind = match self {
            Self::Create { .. } => CREATE,
            Self::Append { .. } => APPEND,
            Self::Truncate { .. } => TRUNCATE,
            Self::Trim { .. } => TRIM,
            Self::HardState { .. } => HARD_STATE,
            Self::Conf { .. } => CONF,
            Self::Image { .. } => IMAGE,
            Self::State { state, .. } => match state.version() {
                StateVersion::One => STATE_1,
                StateVersion::Two => STATE_2,
                StateVersion::Three => STATE_3,
                StateVersion::Four => STATE_4,
            },
            Self::Delete { .. } => DELETE,
            Self::Gone { .. } => GONE,
            Self::Synced { .. } => SYNCED,
            Self::Compacted { .. } => COMPACTED,
            Self::Emptied { .. } => EMPTIED,
            Self::Held { .. } => HELD,
            Self::AppendHeld { .. } => APPEND_HELD,
        };
        let start = out.len();
        out.put_u8(kind);
        out.put_u32(0);
        out.put_u64(self.replica().0);
        self.encode_body(out);
        let length = u32::try_from(out.len() - start - 5).expect("records are bounded by a round");
        out[start + 1..start + 5].copy_from_slice(&length.to_be_bytes());
    }

    fn encode_body(&self, out: &mut Vec<u8>) {
        match self {
            Self::Create { identity, conf, .. } => {
                put_identity(out, identity);
                put_conf(out, conf);
            }
            Self::Append { entry, payload, .. } => {
                put_entry(out, entry);
                if let Some(payload) = payload {
                    out.put_slice(payload);
                }
            }
            Self::Truncate { from, .. } => out.put_u64(*from),
            Self::Trim { log_start, .. } => out.put_i64(*log_start),
            Self::HardState { hard_state, .. } => put_hard_state(out, *hard_state),
            Self::Conf { conf, .. } => put_conf(out, conf),
            Self::Image { index, image, .. } => {
                out.put_u64(*index);
                image.encode(out);
            }
            Self::State { as_of, state } => {
                out.put_u64(*as_of);
                state.encode(out);
            }
            Self::Delete { .. } | Self::Gone { .. } | Self::Emptied { .. } => {}
            Self::Synced { index, .. } => out.put_u64(*index),
            Self::Compacted { replacement, .. } => replacement.encode(out),
            Self::Held { hold: Hold { id, payload }, .. } => {
                put_hold_id(out, *id);
                out.put_slice(payload);
            }
            Self::AppendHeld { entry, id, header, .. } => {
                put_entry(out, entry);
                put_hold_id(out, *id);
                out.put_slice(header);
            }
        }
    }

    fn decode(kind: u8, mut body: Bytes) -> Result<Self, Malformed> {
        let body = &mut body;
        let replica = ReplicaId(body.try_get_u64()?);
        let record = match kind {
            CREATE => {
                let identity = get_identity(body)?;
                Self::Create { replica, identity, conf: get_conf(body)? }
            }
            APPEND => return Self::decode_append(replica, body),
            TRUNCATE => Self::Truncate { replica, from: body.try_get_u64()? },
            TRIM => Self::Trim { replica, log_start: body.try_get_i64()? },
            HARD_STATE => Self::HardState { replica, hard_state: get_hard_state(body)? },
            CONF => Self::Conf { replica, conf: get_conf(body)? },
            IMAGE => {
                let index = body.try_get_u64()?;
                Self::Image { replica, index, image: ImageSource::decode(body)? }
            }
            STATE_1 | STATE_2 | STATE_3 | STATE_4 => {
                let as_of = body.try_get_u64()?;
                let version = match kind {
                    STATE_1 => StateVersion::One,
                    STATE_2 => StateVersion::Two,
                    STATE_3 => StateVersion::Three,
                    _ => StateVersion::Four,
                };
                let state = ReplicaState::decode(replica, version, body)?;
                Self::State { as_of, state: Box::new(state) }
            }
            DELETE => Self::Delete { replica },
            GONE => Self::Gone { replica },
            SYNCED => Self::Synced { replica, index: body.try_get_u64()? },
            EMPTIED => Self::Emptied { replica },
            HELD => {
                let id = get_hold_id(body)?;
                if body.len() < BATCH_HEADER_BYTES {
                    return Err(Malformed("a batch that is held lacks its header"));
                }
                Self::Held { replica, hold: Hold { id, payload: body.split_to(body.len()) } }
            }
            APPEND_HELD => {
                let (entry, id) = (get_entry(body)?, get_hold_id(body)?);
                if !matches!(entry.content, Content::Batch(_)) {
                    return Err(Malformed("an internal entry names a batch that is held"));
                }
                Self::AppendHeld { replica, entry, id, header: take(body, BATCH_HEADER_BYTES)? }
            }
            COMPACTED => {
                Self::Compacted { replica, replacement: Box::new(Replacement::decode(body)?) }
            }
            _ => return Err(Malformed("a journal record is of a kind this version does not know")),
        };
        if body.is_empty() { Ok(record) } else { Err(Malformed("a record is too long")) }
    }

    fn decode_append(replica: ReplicaId, body: &mut Bytes) -> Result<Self, Malformed> {
        let entry = get_entry(body)?;
        let payload = match &entry.content {
            Content::Batch(batch) if !body.is_empty() => {
                if body.len() != batch.length as usize {
                    return Err(Malformed("a payload's length is not its descriptor's"));
                }
                Some(body.split_to(body.len()))
            }
            _ => None,
        };
        if body.is_empty() {
            Ok(Self::Append { replica, entry, payload })
        } else {
            Err(Malformed("an internal entry has a payload"))
        }
    }
}

fn put_hold_id(out: &mut Vec<u8>, id: HoldId) {
    out.put_u64(id.stretch.term);
    out.put_u64(id.stretch.index);
    out.put_u64(id.number);
}

fn get_hold_id(body: &mut Bytes) -> Result<HoldId, Malformed> {
    let stretch = Stretch { term: body.try_get_u64()?, index: body.try_get_u64()? };
    Ok(HoldId { stretch, number: body.try_get_u64()? })
}

/// Reads all records of a round's body.
pub(crate) fn decode_all(mut body: Bytes) -> Result<Vec<Record>, Malformed> {
    let mut records = Vec::new();
    while !body.is_empty() {
        records.push(decode_next(&mut body)?);
    }
    Ok(records)
}

/// Reads the first record off a round's body.
pub(crate) fn decode_next(body: &mut Bytes) -> Result<Record, Malformed> {
    let kind = body.try_get_u8()?;
    let length = body.try_get_u32()? as usize;
    Record::decode(kind, take(body, length)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_whose_name_leads_to_another_place_is_refused() {
        for (topic, is_good) in
            [("orders", true), ("a..b", true), ("../orders", false), ("a\0", false)]
        {
            let identity = Identity { topic: topic.to_owned(), topic_id: [7; 16], partition: 3 };
            let mut bytes = Vec::new();
            put_identity(&mut bytes, &identity);
            let read = get_identity(&mut Bytes::from(bytes));
            assert_eq!(read.ok(), is_good.then_some(identity), "{topic:?}");
        }
    }
}
