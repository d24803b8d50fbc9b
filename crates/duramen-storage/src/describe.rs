//! # Room card: describe
//!
//! Purpose:    describe journal records for people and tools that look into a journal.
//! Owns:       the names of kinds and fields. `docs/format.md` has their bytes and meaning.
//! Interface:  [`describe`], [`Description`], [`Value`].
//! Invariants: a description has every field of a record, but only the length of payload.
//! Never:      I/O; anything that recovery relies on.
//! Tests:      below.
//! Start at:   [`describe`].

use bytes::Bytes;

use crate::encoding::ImageSource;
use crate::format::GIVEN;
use crate::history::PastEntry;
use crate::op::{
    Compacted, ConfState, Content, HardState, Hold, HoldId, Identity, LogEntry, TermRun,
};
use crate::record::{self, Record};
use crate::replica_state::{Replacement, ReplicaState, SegmentState};

/// Named values, in the order of the format.
pub type Fields = Vec<(&'static str, Value)>;

/// One record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// Name of the record's kind.
    pub kind: &'static str,
    /// Id of the replica that the record belongs to.
    pub replica: u64,
    /// Fields of the record.
    pub fields: Fields,
}

/// A value of a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// A number without sign: an index, a term, a length.
    Unsigned(u64),
    /// A number with sign: an offset, a timestamp, a producer's id.
    Signed(i64),
    /// Yes or no.
    Flag(bool),
    /// A name.
    Text(String),
    /// Bytes that storage keeps without reading them: an internal entry, a snapshot.
    Bytes(Bytes),
    /// Several of a kind.
    List(Vec<Value>),
    /// A structure.
    Fields(Fields),
}

macro_rules! value_from {
    ($($variant:ident: $($from:ty)*;)*) => {$($(
        impl From<$from> for Value {
            fn from(value: $from) -> Self {
                Self::$variant(value.into())
            }
        }
    )*)*};
}

value_from! {
    Unsigned: u64 u32;
    Signed: i64 i32 i16;
    Flag: bool;
    Text: String;
    Bytes: Bytes;
    Fields: Fields;
}

impl<T: Into<Self>> FromIterator<T> for Value {
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> Self {
        Self::List(items.into_iter().map(Into::into).collect())
    }
}

/// Describes all records of a round's body. The last item is an error if the body cannot be read to its end.
pub fn describe(mut body: Bytes) -> Vec<Result<Description, String>> {
    let mut found = Vec::new();
    while !body.is_empty() {
        let record = record::decode_next(&mut body);
        found.push(record.as_ref().map(of_record).map_err(ToString::to_string));
        if record.is_err() {
            break;
        }
    }
    found
}

fn of_record(record: &Record) -> Description {
    let (kind, fields) = match record {
        Record::Create { identity, conf, .. } => {
            ("create", vec![("identity", of_identity(identity)), ("conf", of_conf(conf))])
        }
        Record::Append { entry, payload, .. } => {
            let mut fields = of_entry(entry);
            if let Content::Batch(_) = entry.content {
                let bytes = payload.as_ref().map_or(0, |payload| payload.len() as u64);
                fields.push(("payload_bytes", bytes.into()));
            }
            ("append", fields)
        }
        Record::Truncate { from, .. } => ("truncate", vec![("from", (*from).into())]),
        Record::Trim { log_start, .. } => ("trim", vec![("log_start", (*log_start).into())]),
        Record::HardState { hard_state, .. } => ("hard_state", of_hard_state(*hard_state)),
        Record::Conf { conf, .. } => ("conf", vec![("conf", of_conf(conf))]),
        Record::Image { index, image, .. } => {
            ("image", vec![("index", (*index).into()), of_image(image)])
        }
        Record::State { as_of, state } => {
            let mut fields = vec![("as_of", (*as_of).into())];
            fields.extend(of_state(state));
            ("state", fields)
        }
        Record::Delete { .. } => ("delete", Vec::new()),
        Record::Gone { .. } => ("gone", Vec::new()),
        Record::Synced { index, .. } => ("synced", vec![("index", (*index).into())]),
        Record::Compacted { replacement, .. } => {
            let Replacement { compacted, last, segments } = &**replacement;
            let mut fields = of_compacted(compacted);
            fields.extend([("last_index", last.0.into()), ("last_term", last.1.into())]);
            fields.push(("segments", segments.iter().map(of_segment).collect()));
            ("compacted", fields)
        }
        Record::Emptied { .. } => ("emptied", Vec::new()),
        Record::Held { hold: Hold { id, payload }, .. } => {
            let mut fields = of_hold_id(*id);
            fields.push(("payload_bytes", (payload.len() as u64).into()));
            ("held", fields)
        }
        Record::AppendHeld { entry, id, .. } => {
            let mut fields = of_entry(entry);
            fields.push(("hold", of_hold_id(*id).into()));
            ("append_held", fields)
        }
    };
    Description { kind, replica: record.replica().0, fields }
}

fn of_hold_id(id: HoldId) -> Fields {
    vec![
        ("stretch_term", id.stretch.term.into()),
        ("stretch_index", id.stretch.index.into()),
        ("number", id.number.into()),
    ]
}

fn of_identity(identity: &Identity) -> Value {
    let Identity { topic, topic_id, partition } = identity;
    let topic_id = format!("{:032x}", u128::from_be_bytes(*topic_id));
    let topic = topic.clone().into();
    vec![("topic", topic), ("topic_id", topic_id.into()), ("partition", (*partition).into())].into()
}

fn of_conf(conf: &ConfState) -> Value {
    let ConfState { applied, voters, learners, voters_outgoing, learners_next, .. } = conf;
    let peers = |peers: &[u64]| peers.iter().copied().collect::<Value>();
    vec![
        ("applied", (*applied).into()),
        ("voters", peers(voters)),
        ("learners", peers(learners)),
        ("voters_outgoing", peers(voters_outgoing)),
        ("learners_next", peers(learners_next)),
        ("auto_leave", conf.auto_leave.into()),
        ("move_number", conf.move_number.into()),
    ]
    .into()
}

fn of_hard_state(hard_state: HardState) -> Fields {
    let HardState { term, vote, commit } = hard_state;
    vec![("term", term.into()), ("vote", vote.into()), ("commit", commit.into())]
}

fn of_entry(entry: &LogEntry) -> Fields {
    let LogEntry { index, term, content } = entry;
    let content = match content {
        Content::Internal(bytes) => ("internal", bytes.clone().into()),
        Content::Batch(batch) => {
            let fields = vec![
                ("base_offset", batch.base_offset.into()),
                ("count", batch.count.into()),
                ("length", batch.length.into()),
                ("batch_crc", batch.batch_crc.into()),
                ("header_crc", batch.header_crc.into()),
                ("producer_id", batch.producer_id.into()),
                ("producer_epoch", batch.producer_epoch.into()),
                ("first_sequence", batch.first_sequence.into()),
                ("max_timestamp", batch.max_timestamp.into()),
                ("starts_segment", batch.starts_segment.into()),
                ("transactional", batch.transactional.into()),
                ("control", batch.control.into()),
                ("log_append_time", batch.log_append_time.into()),
            ];
            ("batch", fields.into())
        }
    };
    vec![("index", (*index).into()), ("term", (*term).into()), content]
}

fn of_image(image: &ImageSource) -> (&'static str, Value) {
    match image {
        ImageSource::Inline(bytes) => ("image", bytes.clone().into()),
        ImageSource::File { length, crc } => {
            let fields = vec![("length", (*length).into()), ("crc", (*crc).into())];
            ("image_file", fields.into())
        }
    }
}

fn of_state(state: &ReplicaState) -> Fields {
    let run = |run: &TermRun| {
        vec![
            ("term", run.term.into()),
            ("first_index", run.first_index.into()),
            ("start_offset", run.start_offset.into()),
        ]
    };
    vec![
        ("identity", of_identity(&state.identity)),
        ("hard_state", of_hard_state(state.hard_state).into()),
        ("conf", of_conf(&state.conf)),
        ("image_index", state.prev_index.into()),
        ("image_term", state.prev_term.into()),
        ("image_end", state.prev_end_offset.into()),
        of_image(&state.image),
        ("entries", state.entries.iter().map(of_entry).collect()),
        ("term_runs", state.term_runs.iter().map(run).collect()),
        ("log_start", state.log_start.into()),
        ("end_offset", state.end_offset.into()),
        ("synced_index", state.synced_index.into()),
        ("segments", state.segments.iter().map(of_segment).collect()),
        ("history_index", state.history.index.into()),
        ("history_term", state.history.term.into()),
        ("history_end", state.history.end_offset.into()),
        ("history", state.history.internal().map(of_past_entry).collect()),
        ("compacted", of_compacted(&state.compacted).into()),
    ]
}

fn of_compacted(compacted: &Compacted) -> Fields {
    let Compacted { index, below, tombstones_below } = *compacted;
    vec![
        ("index", index.into()),
        ("below", below.into()),
        ("tombstones_below", tombstones_below.into()),
    ]
}

fn of_past_entry(past: &PastEntry) -> Fields {
    let mut fields = vec![("end_offset", past.end_offset.into())];
    fields.extend(of_entry(&past.entry));
    fields
}

fn of_segment(segment: &SegmentState) -> Fields {
    let indexed = segment.index_tail.iter().map(|entry| {
        vec![("offset_delta", entry.offset_delta.into()), ("position", entry.position.into())]
    });
    let timed = segment.times_tail.iter().map(|entry| {
        vec![("timestamp", entry.timestamp.into()), ("offset_delta", entry.offset_delta.into())]
    });
    vec![
        ("base_offset", segment.base_offset.into()),
        ("first_index", segment.first_index.into()),
        ("size", segment.size.into()),
        ("max_timestamp", segment.max_timestamp.into()),
        ("index_flushed", segment.index_flushed.into()),
        ("times_flushed", segment.times_flushed.into()),
        ("flushed_position", segment.flushed_position.into()),
        ("flushed_timestamp", segment.flushed_timestamp.into()),
        ("max_timestamp_delta", segment.max_timestamp_delta.into()),
        ("image_max_timestamp", segment.image_max_timestamp.into()),
        ("image_max_delta", segment.image_max_delta.into()),
        ("index_tail", indexed.collect()),
        ("times_tail", timed.collect()),
        ("generation", (segment.generation & !GIVEN).into()),
        ("given", (segment.generation & GIVEN != 0).into()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ReplicaId;

    #[test]
    fn records_are_told_up_to_the_first_that_cannot_be_read() {
        let replica = ReplicaId(7);
        let mut body = Vec::new();
        let entry = LogEntry { index: 3, term: 2, content: Content::Internal(Bytes::from("x")) };
        Record::Append { replica, entry, payload: None }.encode(&mut body);
        Record::Trim { replica, log_start: 5 }.encode(&mut body);
        Record::Gone { replica }.encode(&mut body);
        let last = body.len() - 1;
        body.truncate(last);
        let told = describe(body.into());
        let internal = ("internal", Bytes::from("x").into());
        let fields = vec![("index", 3u64.into()), ("term", 2u64.into()), internal];
        assert_eq!(told[0], Ok(Description { kind: "append", replica: 7, fields }));
        let fields = vec![("log_start", 5i64.into())];
        assert_eq!(told[1], Ok(Description { kind: "trim", replica: 7, fields }));
        assert!(told[2].is_err());
        assert_eq!(told.len(), 3);
    }

    #[test]
    fn a_state_is_told_whole() {
        let identity = Identity { topic: "t".into(), topic_id: [1; 16], partition: 4 };
        let state = ReplicaState::new(ReplicaId(9), identity, ConfState::default());
        let mut body = Vec::new();
        Record::State { as_of: 12, state: Box::new(state) }.encode(&mut body);
        let [Ok(told)] = &describe(body.into())[..] else { panic!("one record") };
        assert_eq!((told.kind, told.replica), ("state", 9));
        let field = |name: &str| told.fields.iter().find(|(it, _)| *it == name).expect("there");
        assert_eq!(field("as_of").1, Value::Unsigned(12));
        let Value::Fields(identity) = &field("identity").1 else { panic!("a structure") };
        assert_eq!(identity[0], ("topic", "t".to_owned().into()));
        assert_eq!(field("image").1, Value::Bytes(Bytes::new()));
        assert_eq!(field("segments").1, Value::List(Vec::new()));
    }
}
