//! # Room card: statements
//!
//! Purpose:    what a log says about its queues: control batches with facts, and facts in headers of records.
//! Owns:       the type of these batches, the headers, and the bytes of each kind of fact.
//! Interface:  [`Statement`], [`Said`]; [`batch_of`] and [`Statement::header`] to write, [`statements_of`] and
//!             [`statement_with`] to read.
//! Invariants: a control batch has one record, whose key is of four bytes. A fact in a header stands on the first
//!             record of its batch. No client can write either. One that cannot be read is an error: nothing goes on
//!             behind an edit that is not understood. A statement names every offset that it takes away, so that no
//!             replica has to find one out.
//! Never:      the decision what is said (see the broker), its effect on an index (see `index`).
//! Tests:      below; `tests/formats`.
//! Start at:   [`statements_of`].

use bytes::{Buf, BufMut, Bytes, BytesMut};
use duramen_protocol::BatchHeader;
use duramen_protocol::batch::BatchView;
use duramen_protocol::records::{BatchBuilder, NewRecord, Record, Records};

use crate::format::{Malformed, put_varint, take_long, varint};

/// Key of the record of a batch of facts: version 0, type 0x4455. Kafka's own control batches have types 0 to 6.
const KEY: [u8; 4] = [0, 0, 0x44, 0x55];
/// Most bytes of such a record. The node bounds a batch far below it.
const RECORD_BYTES_MAX: usize = 16 << 20;

/// Header of a batch's first record: the fact that the batch states, as in a control batch.
pub const FACT_HEADER: &str = "duramen-fact";
/// Header of a record that is the new content of an element: the element's position.
pub const REPLACES_HEADER: &str = "duramen-replaces";
/// Header of the first record behind a cut: the last position that stays, or `none`.
pub const CUTS_AFTER_HEADER: &str = "duramen-cuts-after";

/// Kind of a deletion.
const DELETED: u8 = 1;
/// Kind of a cut.
const CUT: u8 = 2;
/// Kind of a trim.
const TRIMMED: u8 = 3;
/// Kind of a fence.
const FENCED: u8 = 4;
/// Kind of a replacement.
const REPLACED: u8 = 5;
/// Kind of the deletion of a queue.
const GONE: u8 = 6;

/// Something that was said about a queue as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fact {
    /// Kind, which is the node's.
    pub kind: u8,
    /// Offset at which the log says it.
    pub offset: i64,
    /// Bytes of the kind.
    pub body: Bytes,
}

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
        let latest = match &self.said {
            Said::Deleted(it) => it.elements.iter().max().copied().unwrap_or(-1),
            Said::Gone(_) => -1,
            Said::Cut { after, .. } => *after,
            Said::Trimmed { through, first_said, .. } => *through.max(first_said),
            Said::Fenced { first_said, .. } => *first_said,
            Said::Replaced(it) => it.offset,
        };
        latest < offset && self.said.withdrawn().last().is_none_or(|last| *last < offset)
    }

    /// Returns the value of [`FACT_HEADER`] that states it.
    pub fn header(&self) -> Vec<u8> {
        encode(std::slice::from_ref(self))
    }
}

/// Content of a [`Statement`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said {
    /// Elements are deleted.
    Deleted(Deleted),
    /// All elements behind an offset are withdrawn, or all if it is -1. Their records are at these offsets, in order.
    Cut {
        /// Offset behind which the queue ends, but for what comes later.
        after: i64,
        /// Text for people.
        reason: String,
        /// Records of these elements.
        withdrawn: Vec<i64>,
    },
    /// Elements up to an offset are trimmed: readers of the queue begin behind it.
    Trimmed {
        /// The last offset that is trimmed.
        through: i64,
        /// Offset at which the log said it first; -1 if it says so here.
        first_said: i64,
        /// Pointer to where the earlier state is, as the node encodes it.
        pointer: Bytes,
    },
    /// The queue has a fence.
    Fenced {
        /// The token; empty for none.
        token: Bytes,
        /// As of a trim.
        first_said: i64,
    },
    /// The record that says so is the content of an element.
    Replaced(Replaced),
    /// The queue is deleted, with its fence and trim. The records of its elements are at these offsets, in order.
    Gone(Vec<i64>),
}

/// Latest trim and fence of a queue, and the places where the log says so.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    trim: Option<Stated>,
    fence: Option<Stated>,
}

/// Something that is said of a queue, until something else is.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Stated {
    said: Said,
    /// Offset at which the log said it first: it alone decides what is newer.
    first_said: i64,
    /// Offset at which the log said it last.
    last_said: i64,
}

impl Standing {
    /// Finds the latest trim and fence among the facts about a queue. The deletion of a queue takes both away.
    pub fn of<'a>(facts: impl IntoIterator<Item = &'a Fact>) -> Result<Self, &'static str> {
        let mut standing = Self::default();
        let mut gone = -1;
        for fact in facts {
            let said = Said::of(fact)?;
            let (place, first_said) = match &said {
                Said::Trimmed { first_said, .. } => (&mut standing.trim, *first_said),
                Said::Fenced { first_said, .. } => (&mut standing.fence, *first_said),
                Said::Gone(_) => {
                    gone = gone.max(fact.offset);
                    continue;
                }
                Said::Cut { .. } | Said::Deleted(_) | Said::Replaced(_) => continue,
            };
            let first_said = if first_said < 0 { fact.offset } else { first_said };
            let last_said = fact.offset;
            match place {
                Some(known) if first_said < known.first_said => {}
                Some(known) if first_said == known.first_said => {
                    known.last_said = known.last_said.max(last_said);
                }
                place => *place = Some(Stated { said, first_said, last_said }),
            }
        }
        let is_there = |it: &Stated| it.first_said > gone;
        standing.trim = standing.trim.filter(is_there);
        standing.fence = standing.fence.filter(is_there);
        Ok(standing)
    }

    /// Returns the token of the queue's fence, if it has one.
    pub fn fence(&self) -> Option<&Bytes> {
        match &self.fence.as_ref()?.said {
            Said::Fenced { token, .. } => Some(token).filter(|token| !token.is_empty()),
            _ => None,
        }
    }

    /// Returns the last offset that is trimmed, and the pointer that the trim kept.
    pub fn trim(&self) -> Option<(i64, &Bytes)> {
        match &self.trim.as_ref()?.said {
            Said::Trimmed { through, pointer, .. } => Some((*through, pointer)),
            _ => None,
        }
    }

    /// Returns what has to be said again before a log loses its records below an offset. A fence of none has not.
    pub fn below(&self, offset: i64) -> impl Iterator<Item = Said> {
        let fence = self.fence.as_ref().filter(|_| self.fence().is_some());
        let all = self.trim.iter().chain(fence);
        let late = all.filter(move |it| it.last_said < offset);
        late.map(|Stated { said, first_said, .. }| {
            let mut said = said.clone();
            if let Said::Trimmed { first_said: at, .. } | Said::Fenced { first_said: at, .. } =
                &mut said
            {
                *at = *first_said;
            }
            said
        })
    }
}

/// Elements that are deleted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Deleted {
    /// Offsets of their contents, in order.
    pub withdrawn: Vec<i64>,
    /// Offsets at which they were appended, in the order of their contents.
    pub elements: Vec<i64>,
}

impl Deleted {
    /// Deletes elements that have their first contents.
    pub fn of(offsets: &[i64]) -> Self {
        Self { withdrawn: offsets.to_vec(), elements: offsets.to_vec() }
    }
}

/// Element that has a new content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replaced {
    /// Leader epoch of the element's position.
    pub term: i32,
    /// First offset of the batch in which the element was appended.
    pub entry: i64,
    /// Offset at which the element was appended.
    pub offset: i64,
    /// Offset of its content before.
    pub withdrawn: i64,
}

impl Said {
    /// Returns the number of its kind.
    pub fn kind(&self) -> u8 {
        match self {
            Self::Deleted(_) => DELETED,
            Self::Cut { .. } => CUT,
            Self::Trimmed { .. } => TRIMMED,
            Self::Fenced { .. } => FENCED,
            Self::Replaced(_) => REPLACED,
            Self::Gone(_) => GONE,
        }
    }

    /// Returns the offsets that it takes away, in order.
    pub fn withdrawn(&self) -> &[i64] {
        match self {
            Self::Gone(withdrawn)
            | Self::Cut { withdrawn, .. }
            | Self::Deleted(Deleted { withdrawn, .. }) => withdrawn,
            Self::Trimmed { .. } | Self::Fenced { .. } => &[],
            Self::Replaced(it) => std::slice::from_ref(&it.withdrawn),
        }
    }

    /// Encodes what its kind says.
    pub fn body(&self) -> Bytes {
        let mut out = Vec::new();
        match self {
            Self::Deleted(Deleted { withdrawn, elements }) => {
                put_offsets(&mut out, withdrawn);
                for (offset, element) in withdrawn.iter().zip(elements) {
                    put_varint(&mut out, offset.abs_diff(*element));
                }
            }
            Self::Gone(withdrawn) => put_offsets(&mut out, withdrawn),
            Self::Cut { after, reason, withdrawn } => {
                put_varint(&mut out, after.abs_diff(-1));
                put_varint(&mut out, reason.len() as u64);
                out.put_slice(reason.as_bytes());
                put_offsets(&mut out, withdrawn);
            }
            Self::Trimmed { through, first_said, pointer } => {
                put_varint(&mut out, first_said.abs_diff(-1));
                put_varint(&mut out, through.unsigned_abs());
                out.put_slice(pointer);
            }
            Self::Fenced { token, first_said } => {
                put_varint(&mut out, first_said.abs_diff(-1));
                out.put_slice(token);
            }
            Self::Replaced(Replaced { term, entry, offset, withdrawn }) => {
                put_varint(&mut out, u64::from(term.unsigned_abs()));
                put_varint(&mut out, entry.abs_diff(-1));
                put_varint(&mut out, offset.unsigned_abs());
                put_varint(&mut out, withdrawn.abs_diff(*offset));
            }
        }
        out.into()
    }

    /// Reads a fact of an index. The error says what is wrong.
    pub fn of(fact: &Fact) -> Result<Self, &'static str> {
        Self::decode(fact.kind, fact.body.clone()).map_err(|why| why.0)
    }

    fn decode(kind: u8, mut body: Bytes) -> Result<Self, Malformed> {
        let said = match kind {
            DELETED => {
                let withdrawn = take_offsets(&mut body)?;
                let mut elements = Vec::new();
                for offset in &withdrawn {
                    let element = offset.checked_sub_unsigned(varint(&mut body)?);
                    let element = element.filter(|it| *it >= 0);
                    elements.push(element.ok_or(Malformed("an element is out of range"))?);
                }
                Self::Deleted(Deleted { withdrawn, elements })
            }
            GONE => Self::Gone(take_offsets(&mut body)?),
            CUT => {
                let after = take_offset(&mut body, -1)?;
                let reason = take_text(&mut body)?;
                Self::Cut { after, reason, withdrawn: take_offsets(&mut body)? }
            }
            TRIMMED => {
                let first_said = take_offset(&mut body, -1)?;
                let through = take_offset(&mut body, 0)?;
                Self::Trimmed { through, first_said, pointer: std::mem::take(&mut body) }
            }
            FENCED => {
                let first_said = take_offset(&mut body, -1)?;
                Self::Fenced { token: std::mem::take(&mut body), first_said }
            }
            REPLACED => {
                let term = i32::try_from(varint(&mut body)?);
                let term = term.map_err(|_| Malformed("a term is out of range"))?;
                let entry = take_offset(&mut body, -1)?;
                let offset = take_offset(&mut body, 0)?;
                let withdrawn = take_offset(&mut body, offset)?;
                Self::Replaced(Replaced { term, entry, offset, withdrawn })
            }
            _ => return Err(Malformed("a fact is of an unknown kind")),
        };
        if body.has_remaining() { Err(Malformed("a fact is too long")) } else { Ok(said) }
    }
}

fn take_text(body: &mut Bytes) -> Result<String, Malformed> {
    let text = String::from_utf8(take_long(body)?.into());
    text.map_err(|_| Malformed("a text is none"))
}

fn put_offsets(out: &mut Vec<u8>, offsets: &[i64]) {
    put_varint(out, offsets.len() as u64);
    let mut before = 0;
    for offset in offsets {
        assert!(before <= *offset, "offsets are in order");
        put_varint(out, offset.abs_diff(before));
        before = *offset;
    }
}

/// Reads an offset as its distance from an earlier one.
fn take_offset(body: &mut Bytes, before: i64) -> Result<i64, Malformed> {
    let offset = before.checked_add_unsigned(varint(body)?);
    offset.filter(|it| *it < i64::MAX).ok_or(Malformed("an offset is out of range"))
}

fn take_offsets(body: &mut Bytes) -> Result<Vec<i64>, Malformed> {
    let count = varint(body)?;
    let (mut offsets, mut before) = (Vec::new(), 0_i64);
    for _ in 0..count {
        let offset = take_offset(body, before)?;
        if offset == before && !offsets.is_empty() {
            return Err(Malformed("offsets are out of order"));
        }
        before = offset;
        offsets.push(offset);
    }
    Ok(offsets)
}

/// Returns the control batch that makes statements, without its offset.
pub fn batch_of(timestamp: i64, statements: &[Statement]) -> BytesMut {
    let value = encode(statements);
    let (key, value) = (Some(&KEY[..]), Some(&value[..]));
    let record = NewRecord { timestamp, key, value, ..NewRecord::default() };
    let mut batch = BatchBuilder::new().control();
    let built = batch.push(&record).and_then(|()| batch.build_mut());
    built.expect("statements have a bounded size")
}

/// Returns a control batch with some of the statements of another, in its place.
pub(crate) fn batch_at(header: &BatchHeader, statements: &[Statement]) -> Bytes {
    let (timestamp, value) = (header.max_timestamp, encode(statements));
    let (key, value) = (Some(&KEY[..]), Some(&value[..]));
    let record = NewRecord { timestamp, key, value, ..NewRecord::default() };
    let mut batch = BatchBuilder::new().control().base_offset(header.base_offset);
    batch = batch.partition_leader_epoch(header.partition_leader_epoch);
    let built = batch.push(&record).and_then(|()| batch.build());
    built.expect("a batch with fewer statements has a bounded size")
}

fn encode(statements: &[Statement]) -> Vec<u8> {
    let mut value = Vec::new();
    put_varint(&mut value, statements.len() as u64);
    for Statement { queue, principal, said } in statements {
        value.put_u8(said.kind());
        for part in [&queue[..], principal.as_bytes(), &said.body()] {
            put_varint(&mut value, part.len() as u64);
            value.put_slice(part);
        }
    }
    value
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

/// Reads the statement that a batch makes with its first record, if it makes one. The error says what is wrong.
pub fn statement_with(
    header: &BatchHeader,
    first: &Record<'_>,
) -> Result<Option<Statement>, &'static str> {
    let facts = first.headers.into_iter().filter(|it| it.key == FACT_HEADER.as_bytes());
    let mut facts = facts.map(|it| Bytes::copy_from_slice(it.value.unwrap_or_default()));
    let Some(value) = facts.next() else { return Ok(None) };
    let mut statements = decode(value).map_err(|why| why.0)?;
    let statement = statements.pop().filter(|_| statements.is_empty() && facts.next().is_none());
    let statement = statement.ok_or("a batch of records states one fact")?;
    let is_alone = header.record_count == 1;
    let is_its_own = first.key == Some(&statement.queue[..])
        && match statement.said {
            Said::Deleted(_) | Said::Gone(_) | Said::Trimmed { .. } | Said::Fenced { .. } => false,
            Said::Cut { .. } => true,
            Said::Replaced(_) => is_alone,
        };
    if is_its_own { Ok(Some(statement)) } else { Err("a fact is not of the record that states it") }
}

/// Tells whether a record is the new content of an element, and no element of its own.
pub fn is_replacement(record: &Record<'_>) -> bool {
    record.headers.into_iter().any(|it| it.key == REPLACES_HEADER.as_bytes())
}

fn decode(mut value: Bytes) -> Result<Vec<Statement>, Malformed> {
    let count = varint(&mut value)?;
    let mut statements = Vec::new();
    for _ in 0..count {
        let kind = value.try_get_u8()?;
        let (queue, principal) = (take_long(&mut value)?, take_text(&mut value)?);
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
        let said = Said::Deleted(Deleted::of(offsets));
        Statement { queue: Bytes::from_static(b"alice"), principal: "User:bob".to_owned(), said }
    }

    fn read(bytes: &[u8]) -> Result<Option<Vec<Statement>>, &'static str> {
        statements_of(&BatchView::parse(&Bytes::copy_from_slice(bytes)).expect("a batch"))
    }

    #[test]
    fn statements_survive_their_batch() {
        let said = [
            Said::Deleted(Deleted::of(&[0, 1, 500])),
            Said::Deleted(Deleted { withdrawn: vec![7, 500, 700], elements: vec![7, 0, 699] }),
            Said::Deleted(Deleted::of(&[i64::MAX - 1])),
            Said::Deleted(Deleted::default()),
            Said::Gone(vec![7, 9]),
            Said::Cut { after: -1, reason: "moved".to_owned(), withdrawn: vec![0, 4] },
            Said::Cut { after: i64::MAX - 1, reason: String::new(), withdrawn: Vec::new() },
            Said::Replaced(Replaced { term: 7, entry: -1, offset: 100, withdrawn: 100 }),
            Said::Replaced(Replaced { term: 0, entry: 98, offset: 100, withdrawn: i64::MAX - 1 }),
            Said::Trimmed { through: 9, first_said: -1, pointer: Bytes::from_static(b"p") },
            Said::Fenced { token: Bytes::from_static(b"one"), first_said: 300 },
            Said::Fenced { token: Bytes::new(), first_said: -1 },
        ];
        let all = said.map(|said| Statement { said, ..statement(&[]) });
        let batch = batch_of(5, &all);
        assert_eq!(read(&batch), Ok(Some(all.to_vec())));
        let header = *BatchView::parse(&batch.freeze()).expect("a batch").header();
        assert!(header.attributes.is_control() && header.record_count == 1);
        assert_eq!((header.producer_id, header.max_timestamp), (-1, 5));
    }

    #[test]
    fn the_fence_that_was_said_last_stands_however_often_an_earlier_one_is_said_again() {
        let fact = |offset: i64, said: &Said| Fact { kind: said.kind(), offset, body: said.body() };
        let fenced = |offset, token: &'static str, first_said| {
            let token = Bytes::from_static(token.as_bytes());
            fact(offset, &Said::Fenced { token, first_said })
        };
        let (gone, empty) = (Said::Gone(vec![]), []);
        let token = |facts: &[Fact]| {
            let standing = Standing::of(facts).expect("they can be read");
            standing.fence().map(|it| String::from_utf8_lossy(it).into_owned())
        };
        let one = [fenced(5, "one", -1), fenced(9, "two", -1), fenced(12, "one", 5)];
        assert_eq!(token(&one), Some("two".to_owned()));
        assert_eq!(token(&[fenced(20, "two", 9), fenced(12, "one", 5)]), Some("two".to_owned()));
        assert_eq!(token(&[fenced(5, "one", -1), fenced(6, "", -1)]), None);
        assert_eq!(token(&[fenced(5, "one", -1), fact(6, &gone), fenced(8, "one", 5)]), None);
        assert_eq!(token(&[fact(6, &gone), fenced(7, "new", -1)]), Some("new".to_owned()));
        assert_eq!(token(&empty), None);
        let standing = Standing::of(&one).expect("they can be read");
        let again = standing.below(10).collect::<Vec<_>>();
        assert_eq!(again, [Said::Fenced { token: "two".into(), first_said: 9 }]);
        assert_eq!(standing.below(9).count(), 0);
        let said_again = [fenced(5, "one", -1), fenced(12, "one", 5)];
        let standing = Standing::of(&said_again).expect("they can be read");
        assert_eq!(standing.below(12).count(), 0, "it is there already");
    }

    #[test]
    fn a_fact_in_a_header_is_of_its_record() {
        let read = |said: Said, key: &str, records: i32| {
            let statement = Statement { said, ..statement(&[]) };
            let value = statement.header();
            let headers: &[(&str, Option<&[u8]>)] = &[("other", None), (FACT_HEADER, Some(&value))];
            let mut batch = BatchBuilder::new();
            for number in 0..records {
                let headers = if number == 0 { headers } else { &[] };
                let key = Some(key.as_bytes());
                batch.push(&NewRecord { key, headers, ..NewRecord::default() }).expect("small");
            }
            let batch = BatchView::parse(&batch.build().expect("small")).expect("a batch");
            let records = Records::of(&batch, 1000).expect("records");
            let first = records.iter().next().expect("one").expect("a record");
            let stated = statement_with(batch.header(), &first);
            assert!(!is_replacement(&first), "the other header says that");
            stated.map(|it| it.is_some_and(|it| it == statement))
        };
        let cut = Said::Cut { after: 3, reason: String::new(), withdrawn: vec![4] };
        let replaced = Said::Replaced(Replaced { term: 1, entry: 3, offset: 3, withdrawn: 4 });
        assert_eq!(read(cut.clone(), "alice", 2), Ok(true));
        assert_eq!(read(replaced.clone(), "alice", 1), Ok(true));
        for (said, key, records) in [
            (cut, "bob", 1),
            (replaced, "alice", 2),
            (Said::Deleted(Deleted::of(&[3])), "alice", 1),
        ] {
            assert!(read(said.clone(), key, records).is_err(), "{said:?} of {key} on {records}");
        }
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
        let wrong: [&[u8]; 8] = [
            &[1, 2, 1, b'q', 0, 1, 0],
            &[1, 5, 1, b'q', 0, 4, 1, 1, 1, 0xff],
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
