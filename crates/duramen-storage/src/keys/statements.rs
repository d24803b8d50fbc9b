//! # Room card: statements
//!
//! Purpose:    what a log says about its queues: control batches with facts.
//! Owns:       their type, and the bytes of each kind of fact.
//! Interface:  [`Statement`], [`Said`]; [`batch_of`] to write, [`statements_of`] to read.
//! Invariants: a batch has one record, whose key is of four bytes. No client can write one. A batch of this type that
//!             cannot be read is an error: nothing goes on behind an edit that is not understood.
//! Never:      the decision what is said (see the broker), its effect on an index (see `index`).
//! Tests:      below; `tests/formats`.
//! Start at:   [`statements_of`].

use bytes::{Buf, BufMut, Bytes, BytesMut};
use duramen_protocol::batch::BatchView;
use duramen_protocol::records::{BatchBuilder, NewRecord, Records};

use super::block::take_long;
use crate::format::{Malformed, put_varint, varint};

/// Key of the record of a batch of facts: version 0, type 0x4455. Kafka's own control batches have types 0 to 6.
const KEY: [u8; 4] = [0, 0, 0x44, 0x55];
/// Most bytes of such a record. The node bounds a batch far below it.
const RECORD_BYTES_MAX: usize = 16 << 20;

/// Kind of a deletion.
const DELETED: u8 = 1;

/// Statement of a log about one of its queues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statement {
    /// Name of the queue.
    pub queue: Bytes,
    /// The client on whose behalf the leader said it, such as `User:alice`.
    pub principal: String,
    /// Content.
    pub said: Said,
}

impl Statement {
    /// Tells whether all that it is about is below an offset.
    pub(crate) fn is_before(&self, offset: i64) -> bool {
        match &self.said {
            Said::Deleted(offsets) => offsets.last().is_none_or(|last| *last < offset),
        }
    }
}

/// Content of a [`Statement`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said {
    /// The elements that were first appended at these offsets, in order, are deleted. All are of the queue.
    Deleted(Vec<i64>),
}

impl Said {
    /// Returns the number of its kind.
    pub fn kind(&self) -> u8 {
        match self {
            Self::Deleted(_) => DELETED,
        }
    }

    /// Encodes what its kind says.
    pub fn body(&self) -> Bytes {
        let mut out = Vec::new();
        match self {
            Self::Deleted(offsets) => {
                put_varint(&mut out, offsets.len() as u64);
                let mut before = 0;
                for offset in offsets {
                    assert!(before <= *offset, "deleted offsets are in order");
                    put_varint(&mut out, offset.abs_diff(before));
                    before = *offset;
                }
            }
        }
        out.into()
    }

    fn decode(kind: u8, mut body: Bytes) -> Result<Self, Malformed> {
        if kind != DELETED {
            return Err(Malformed("a fact is of an unknown kind"));
        }
        let count = varint(&mut body)?;
        let (mut offsets, mut before) = (Vec::new(), 0_i64);
        for _ in 0..count {
            let offset = before.checked_add_unsigned(varint(&mut body)?);
            let offset = offset.filter(|it| *it < i64::MAX && (*it > before || offsets.is_empty()));
            before = offset.ok_or(Malformed("deleted offsets are out of order"))?;
            offsets.push(before);
        }
        if body.has_remaining() {
            Err(Malformed("a fact is too long"))
        } else {
            Ok(Self::Deleted(offsets))
        }
    }
}

/// Returns the control batch that makes statements, without its offset.
pub fn batch_of(timestamp: i64, statements: &[Statement]) -> BytesMut {
    let mut value = Vec::new();
    put_varint(&mut value, statements.len() as u64);
    for Statement { queue, principal, said } in statements {
        value.put_u8(said.kind());
        for part in [&queue[..], principal.as_bytes(), &said.body()] {
            put_varint(&mut value, part.len() as u64);
            value.put_slice(part);
        }
    }
    let (key, value) = (Some(&KEY[..]), Some(&value[..]));
    let record = NewRecord { timestamp, key, value, ..NewRecord::default() };
    let mut batch = BatchBuilder::new().control();
    let built = batch.push(&record).and_then(|()| batch.build_mut());
    built.expect("statements have a bounded size")
}

/// Returns a control batch that says nothing, and takes offsets from `base_offset` to `last_offset`. A reader passes
/// over them with it.
pub fn passing_over(base_offset: i64, last_offset: i64, epoch: i32) -> Bytes {
    let record = NewRecord { key: Some(&KEY[..]), value: Some(&[0]), ..NewRecord::default() };
    let offsets = last_offset - base_offset;
    let mut batch = BatchBuilder::new().control().base_offset(base_offset);
    batch = batch.partition_leader_epoch(epoch);
    // The record stands at the last offset: consumers go on behind it.
    batch = batch.skipping(i32::try_from(offsets).expect("an answer has a bounded size"));
    let built = batch.push(&record).and_then(|()| batch.build());
    built.expect("a record of a few bytes")
}

/// Reads the statements of a control batch; `None` for one of another type. The error says what is wrong.
pub fn statements_of(batch: &BatchView) -> Result<Option<Vec<Statement>>, &'static str> {
    const UNREADABLE: &str = "a control batch cannot be read";
    let records = Records::of(batch, RECORD_BYTES_MAX).map_err(|_| UNREADABLE)?;
    let record = records.iter().next().ok_or(UNREADABLE)?.map_err(|_| UNREADABLE)?;
    if record.key != Some(&KEY[..]) {
        return Ok(None);
    }
    let value = Bytes::copy_from_slice(record.value.unwrap_or_default());
    decode(value).map(Some).map_err(|why| why.0)
}

fn decode(mut value: Bytes) -> Result<Vec<Statement>, Malformed> {
    let count = varint(&mut value)?;
    let mut statements = Vec::new();
    for _ in 0..count {
        let kind = value.try_get_u8()?;
        let (queue, principal) = (take_long(&mut value)?, take_long(&mut value)?);
        let principal = String::from_utf8(principal.into());
        let principal = principal.map_err(|_| Malformed("a principal is no text"))?;
        let said = Said::decode(kind, take_long(&mut value)?)?;
        statements.push(Statement { queue, principal, said });
    }
    if value.has_remaining() {
        Err(Malformed("a batch of facts is too long"))
    } else {
        Ok(statements)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn statement(offsets: &[i64]) -> Statement {
        let said = Said::Deleted(offsets.to_vec());
        Statement { queue: Bytes::from_static(b"alice"), principal: "User:bob".to_owned(), said }
    }

    fn read(bytes: &[u8]) -> Result<Option<Vec<Statement>>, &'static str> {
        statements_of(&BatchView::parse(&Bytes::copy_from_slice(bytes)).expect("a batch"))
    }

    #[test]
    fn statements_survive_their_batch() {
        let all = [statement(&[0, 1, 500]), statement(&[i64::MAX - 1]), statement(&[])];
        let batch = batch_of(5, &all);
        assert_eq!(read(&batch), Ok(Some(all.to_vec())));
        let header = *BatchView::parse(&batch.freeze()).expect("a batch").header();
        assert!(header.attributes.is_control() && header.record_count == 1);
        assert_eq!((header.producer_id, header.max_timestamp), (-1, 5));
    }

    #[test]
    fn a_batch_that_passes_over_offsets_ends_with_the_last() {
        let batch = passing_over(100, 4711, 7);
        assert_eq!(read(&batch), Ok(Some(Vec::new())));
        let view = BatchView::parse(&batch).expect("a batch");
        let header = view.header();
        assert_eq!((header.base_offset, header.last_offset()), (100, 4711));
        let records = Records::of(&view, 1000).expect("records");
        let offsets = records.iter().map(|it| records.offset(&it.expect("a record")));
        assert_eq!(offsets.collect::<Vec<_>>(), [4711]);
    }

    #[test]
    fn a_marker_says_nothing_of_queues_and_an_unknown_fact_is_an_error() {
        let of = |key: &[u8], value: &[u8]| {
            let mut batch = BatchBuilder::new().control();
            let (key, value) = (Some(key), Some(value));
            batch.push(&NewRecord { key, value, ..NewRecord::default() }).expect("small");
            batch.build_mut().expect("small")
        };
        assert_eq!(read(&of(&[0, 0, 0, 1], &[0; 6])), Ok(None));
        let wrong: [&[u8]; 6] = [
            &[],
            &[1],
            &[1, 9, 1, b'q', 0, 1, 0],
            &[1, 1, 1, b'q', 0, 2, 1],
            &[1, 1, 1, b'q', 1, 0xff, 1, 0],
            &[1, 1, 1, b'q', 0, 3, 2, 5, 0],
        ];
        for value in wrong {
            assert!(read(&of(&KEY, value)).is_err(), "{value:?}");
        }
        assert!(read(&of(&KEY, &[0, 0])).is_err(), "it goes on");
    }
}
