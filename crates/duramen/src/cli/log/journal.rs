//! Extents of the journal: rounds, and the records in them.

use std::fmt::Write as _;

use anyhow::ensure;
use bytes::Bytes;
use duramen_storage::ReplicaId;
use duramen_storage::describe::{Description, Fields, Value, describe};
use duramen_storage::journal::{Round, rounds_of};
use serde::Serialize;
use serde_json::Map;

use super::dump::Dump;
use super::printer::Printer;

#[derive(Serialize)]
struct Entry {
    extent: u64,
    round: u64,
    position: u64,
    tail: u64,
    directory: String,
    body_bytes: u32,
    whole: bool,
}

/// Prints the rounds of an extent. The ring uses files again, so rounds of an earlier use may follow.
pub(super) fn dump(dump: &Dump, printer: &mut Printer) -> anyhow::Result<()> {
    let bytes = Bytes::from(std::fs::read(&dump.file)?);
    let rounds = rounds_of(0, &bytes);
    // A file of the ring is all zeroes before its first use.
    ensure!(
        !rounds.is_empty() || bytes.iter().all(|byte| *byte == 0),
        "the file has no round: it is not one of a journal's ring"
    );
    for round in rounds {
        let header = round.header;
        let entry = Entry {
            extent: header.extent,
            round: header.lsn,
            position: header.position,
            tail: header.tail,
            directory: format!("{:016x}", header.directory),
            body_bytes: header.body_bytes,
            whole: round.body.is_some(),
        };
        let line = || {
            let Entry { extent, round, position, tail, body_bytes, .. } = &entry;
            let torn = if entry.whole { "" } else { "  TORN" };
            format!(
                "extent {extent}  round {round}  position {position}  {body_bytes} bytes  \
                 tail {tail}{torn}"
            )
        };
        let more = printer.entry(&entry, line)?;
        if dump.records {
            dump_records(printer, &round)?;
        }
        if !more {
            break;
        }
    }
    Ok(())
}

fn dump_records(printer: &mut Printer, round: &Round) -> anyhow::Result<()> {
    let Some(body) = round.body.clone() else { return Ok(()) };
    for record in describe(body) {
        match record {
            Ok(record) => printer.detail(&json(&record), || lines(&record))?,
            Err(what) => printer.damage(round.header.position, &what)?,
        }
    }
    Ok(())
}

fn json(record: &Description) -> serde_json::Value {
    let mut object = json_of_fields(&record.fields, record.replica);
    object.insert("kind".to_owned(), record.kind.into());
    object.insert("replica".to_owned(), record.replica.into());
    object.into()
}

fn json_of_fields(fields: &Fields, replica: u64) -> Map<String, serde_json::Value> {
    let field = |(name, value): &(&str, Value)| ((*name).to_owned(), json_of(name, value, replica));
    fields.iter().map(field).collect()
}

fn json_of(name: &str, value: &Value, replica: u64) -> serde_json::Value {
    match value {
        Value::Unsigned(number) => (*number).into(),
        Value::Signed(number) => (*number).into(),
        Value::Flag(flag) => (*flag).into(),
        Value::Text(text) => text.clone().into(),
        Value::Bytes(bytes) => words(name, bytes, replica).into(),
        Value::List(items) => items.iter().map(|item| json_of(name, item, replica)).collect(),
        Value::Fields(fields) => json_of_fields(fields, replica).into(),
    }
}

/// Describes values that only the broker can read.
fn words(name: &str, bytes: &Bytes, replica: u64) -> Vec<String> {
    let words = match name {
        "internal" => Some(vec![duramen_broker::describe::internal(bytes)]),
        _ => duramen_broker::describe::image(ReplicaId(replica), bytes),
    };
    words.unwrap_or_else(|| vec![format!("{} bytes that cannot be read", bytes.len())])
}

/// Writes a record for people: short values on its first line, and lists below.
fn lines(record: &Description) -> String {
    let mut text = format!("  {}  replica {}", record.kind, record.replica);
    put_fields(&mut text, &record.fields, record.replica, 4);
    text
}

fn put_fields(text: &mut String, fields: &Fields, replica: u64, indent: usize) {
    let (below, plain): (Vec<_>, Vec<_>) =
        fields.iter().partition(|(name, value)| is_long(name, value));
    for (name, value) in plain {
        write!(text, "  {name} ").expect("a string takes all");
        put_plain(text, name, value, replica);
    }
    for (name, value) in below {
        match value {
            Value::List(items) => {
                for item in items {
                    write!(text, "\n{:indent$}{name}:", "").expect("a string takes all");
                    match item {
                        Value::Fields(fields) => put_fields(text, fields, replica, indent + 2),
                        other => put_plain(text, name, other, replica),
                    }
                }
            }
            Value::Bytes(bytes) => {
                for words in words(name, bytes, replica) {
                    write!(text, "\n{:indent$}{name}: {words}", "").expect("a string takes all");
                }
            }
            other => put_plain(text, name, other, replica),
        }
    }
}

/// Tells whether a value gets lines of its own.
fn is_long(name: &str, value: &Value) -> bool {
    match value {
        Value::List(items) => items.iter().any(|item| matches!(item, Value::Fields(_))),
        Value::Bytes(_) => name != "internal",
        _ => false,
    }
}

fn put_plain(text: &mut String, name: &str, value: &Value, replica: u64) {
    match value {
        Value::Unsigned(number) => write!(text, "{number}"),
        Value::Signed(number) => write!(text, "{number}"),
        Value::Flag(flag) => write!(text, "{flag}"),
        Value::Text(word) => write!(text, "{word}"),
        Value::Bytes(bytes) => write!(text, "{}", words(name, bytes, replica).join(", ")),
        Value::List(items) => {
            text.push('[');
            for (at, item) in items.iter().enumerate() {
                text.push_str(if at == 0 { "" } else { " " });
                put_plain(text, name, item, replica);
            }
            text.push(']');
            Ok(())
        }
        Value::Fields(fields) => {
            let mut inner = String::new();
            put_fields(&mut inner, fields, replica, 0);
            write!(text, "({})", inner.trim_start())
        }
    }
    .expect("a string takes all");
}
