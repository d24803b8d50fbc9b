//! Records, guards and sessions, which requests and answers about logs and queues share.

use std::collections::BTreeMap;

use bytes::Bytes;
use data_encoding::{BASE64, HEXLOWER_PERMISSIVE};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::super::openapi::Position;
use super::super::problems::Fault;
use crate::proto;

/// A record in a request.
#[derive(Debug, Default, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct NewRecord {
    /// Key as text.
    pub key: Option<String>,
    /// Key as base64, instead.
    #[schema(format = Byte)]
    pub key_base64: Option<String>,
    /// Value as text.
    pub value: Option<String>,
    /// Value as any JSON, kept as its text without the blanks between its parts, instead.
    #[serde(deserialize_with = "raw")]
    #[schema(value_type = Option<Value>)]
    pub json: Option<Box<RawValue>>,
    /// Value as base64, instead.
    #[schema(format = Byte)]
    pub base64: Option<String>,
    pub headers: BTreeMap<String, String>,
    /// Milliseconds since 1970; now if absent or 0.
    pub timestamp_ms: i64,
    /// The writer's name for the record. If all records of an append under a guard have one, the same append may be
    /// sent again: it is taken once.
    #[schema(min_length = 1, max_length = 64)]
    pub id: Option<String>,
}

#[derive(Debug, Default, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Guard {
    /// Position of the last record of the log or queue, or `none` for one that has to be empty.
    #[schema(pattern = r"^(none|[0-9]+\.(-1|[0-9]+)\.[0-9]+)$")]
    pub last: Option<String>,
    /// Token that has to be the fence of the log, or of the queue; of at most 64 bytes.
    pub fence: Option<String>,
}

#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct OpenSession {
    /// A name, or nothing. The next session of the same name has a higher epoch. A log refuses the earlier holder once
    /// it has a record of the new one.
    #[schema(max_length = 255)]
    pub name: String,
}

#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Session {
    #[schema(minimum = 0)]
    pub id: i64,
    #[schema(minimum = 0, maximum = 32_767)]
    pub epoch: i32,
    /// Number of records that the session appended to this log before.
    #[serde(default)]
    #[schema(minimum = 0)]
    pub sequence: i32,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Appended {
    #[schema(value_type = Position)]
    pub first: String,
    #[schema(value_type = Position)]
    pub last: String,
    /// An earlier request had appended these records.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub duplicate: bool,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Record {
    #[schema(value_type = Position)]
    pub position: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_base64: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base64: Option<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timestamp_ms: Option<i64>,
    /// Of an element of a queue: the offset of the record that is its content.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<i64>,
    /// Results of the expressions, instead of all but the position and the version.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub fields: BTreeMap<String, Value>,
}

pub(super) fn wrong(field: &'static str, reason: &str) -> Fault {
    Fault::bad_request(&[(field, reason.to_owned())])
}

/// Reads JSON as its text: null is a value, and no number loses a digit.
pub(super) fn raw<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Box<RawValue>>, D::Error> {
    Box::<RawValue>::deserialize(from).map(Some)
}

/// Leaves out the blanks between the parts of a text that is JSON.
fn compact(json: &str) -> String {
    let (mut is_text, mut is_escaped) = (false, false);
    let is_part = |it: &char| {
        let is_blank = !is_text && it.is_ascii_whitespace();
        is_text ^= *it == '"' && !is_escaped;
        is_escaped = is_text && *it == '\\' && !is_escaped;
        !is_blank
    };
    json.chars().filter(is_part).collect()
}

pub(super) fn from_base64(field: &'static str, text: &str) -> Result<Bytes, Fault> {
    BASE64.decode(text.as_bytes()).map(Bytes::from).map_err(|_| wrong(field, "it is no base64"))
}

impl NewRecord {
    pub(crate) fn message(self) -> Result<proto::Record, Fault> {
        let key = match (self.key, self.key_base64) {
            (Some(_), Some(_)) => return Err(wrong("key_base64", "there is a key already")),
            (Some(text), None) => Some(text.into()),
            (None, Some(text)) => Some(from_base64("key_base64", &text)?),
            (None, None) => None,
        };
        let value = match (self.value, self.json, self.base64) {
            (Some(text), None, None) => Some(text.into()),
            (None, Some(json), None) => Some(compact(json.get()).into()),
            (None, None, Some(text)) => Some(from_base64("base64", &text)?),
            (None, None, None) => None,
            _ => return Err(wrong("value", "it is one of value, json and base64")),
        };
        let headers = self.headers.into_iter();
        let headers =
            headers.map(|(name, value)| proto::Header { name, value: Some(value.into()) });
        let timestamp_ms = self.timestamp_ms;
        let (headers, id) = (headers.collect(), self.id);
        Ok(proto::Record { key, value, headers, timestamp_ms, id, schedule: None })
    }
}

/// Reads a position.
pub(crate) fn position(field: &'static str, text: &str) -> Result<proto::Position, Fault> {
    text.parse().map_err(|reason: String| wrong(field, &reason))
}

impl Guard {
    pub(crate) fn message(self) -> Result<Option<proto::Guard>, Fault> {
        let last = match self.last.as_deref() {
            None => None,
            Some("none") => Some(proto::guard::Last::None(true)),
            Some(text) => Some(proto::guard::Last::At(position("guard.last", text)?)),
        };
        let fence = self.fence.map(Bytes::from);
        let is_open = last.is_none() && fence.is_none();
        Ok((!is_open).then_some(proto::Guard { last, fence }))
    }
}

impl From<Session> for proto::Session {
    fn from(Session { id, epoch, sequence }: Session) -> Self {
        Self { id, epoch, sequence }
    }
}

impl From<proto::Session> for Session {
    fn from(proto::Session { id, epoch, sequence }: proto::Session) -> Self {
        Self { id, epoch, sequence }
    }
}

pub(super) fn to_hex(bytes: &[u8]) -> String {
    HEXLOWER_PERMISSIVE.encode(bytes)
}

impl From<proto::AppendResponse> for Appended {
    fn from(it: proto::AppendResponse) -> Self {
        let text = |position: Option<proto::Position>| position.map(|it| it.to_string());
        let (first, last) = (text(it.first), text(it.last));
        Self {
            first: first.unwrap_or_default(),
            last: last.unwrap_or_default(),
            duplicate: it.duplicate,
        }
    }
}

pub(super) fn lossy(bytes: &Bytes) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Form of written values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum As {
    /// As text where the bytes are UTF-8, else as base64.
    #[default]
    Text,
    /// As base64 always.
    Base64,
}

pub(super) fn either(bytes: Option<Bytes>, how: As) -> (Option<String>, Option<String>) {
    let Some(bytes) = bytes else { return (None, None) };
    match std::str::from_utf8(&bytes) {
        Ok(text) if how == As::Text => (Some(text.to_owned()), None),
        _ => (None, Some(BASE64.encode(&bytes))),
    }
}

/// Writes a record.
pub(crate) fn record(it: proto::ReadRecord, how: As) -> Record {
    let timestamp_ms = it.record.as_ref().map(|record| record.timestamp_ms);
    let fields = it.fields.into_iter().map(|(name, value)| (name, result(value))).collect();
    let record = it.record.unwrap_or_default();
    let (key, key_base64) = either(record.key, how);
    let (value, base64) = either(record.value, how);
    let headers = record.headers.into_iter();
    let headers = headers.map(|it| (it.name, it.value.as_ref().map(lossy).unwrap_or_default()));
    Record {
        position: it.position.map(|it| it.to_string()).unwrap_or_default(),
        key,
        key_base64,
        value,
        base64,
        headers: headers.collect(),
        id: record.id,
        timestamp_ms,
        version: it.version,
        fields,
    }
}

/// Largest number to which a double holds all integers.
const EXACT_MAX: f64 = 9_007_199_254_740_992.0;

/// Writes the result of an expression.
fn result(value: prost_types::Value) -> Value {
    use prost_types::value::Kind;
    match value.kind {
        None | Some(Kind::NullValue(_)) => Value::Null,
        Some(Kind::BoolValue(it)) => it.into(),
        Some(Kind::NumberValue(it)) if it.fract() == 0.0 && it.abs() <= EXACT_MAX => {
            integer(it).into()
        }
        Some(Kind::NumberValue(it)) => it.into(),
        Some(Kind::StringValue(it)) => it.into(),
        Some(Kind::ListValue(all)) => all.values.into_iter().map(result).collect(),
        Some(Kind::StructValue(all)) => {
            all.fields.into_iter().map(|(name, value)| (name, result(value))).collect()
        }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "it is a whole number of at most 53 bits")]
fn integer(number: f64) -> i64 {
    number as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_kept_digit_by_digit_and_null_is_a_value() {
        for (json, kept) in [
            ("null", "null"),
            ("18446744073709551616", "18446744073709551616"),
            (r#"{ "b" : 1.10, "a":[ 1 , 2 ] }"#, r#"{"b":1.10,"a":[1,2]}"#),
            (r#" "a \" b \\" "#, r#""a \" b \\""#),
        ] {
            let text = format!(r#"{{"json":{json}}}"#);
            let record: NewRecord = serde_json::from_str(&text).unwrap();
            let value = record.message().unwrap().value;
            assert_eq!(value.as_deref(), Some(kept.as_bytes()), "{json}");
        }
        let none: NewRecord = serde_json::from_str("{}").unwrap();
        assert_eq!(none.message().unwrap().value, None);
    }
}
