//! Requests and answers in JSON. Unknown fields in a request are refused: a misspelt guard must not be an unguarded
//! append.

use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;
use data_encoding::{BASE64, HEXLOWER_PERMISSIVE};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::openapi::Position;
use super::problems::Fault;
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
}

/// An append in a request.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Append {
    #[schema(min_items = 1, max_items = 10_000)]
    pub records: Vec<NewRecord>,
    pub guard: Guard,
    pub session: Option<Session>,
    /// Longest wait for the answer, in milliseconds; 0 for 30 seconds.
    #[schema(maximum = 4_294_967_295_u32)]
    pub timeout_ms: u32,
}

#[derive(Debug, Default, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Guard {
    /// Position of the last record of the log or queue, or `none` for one that has to be empty.
    #[schema(pattern = r"^(none|[0-9]+\.(-1|[0-9]+)\.[0-9]+)$")]
    pub last: Option<String>,
    /// Token that has to be the log's fence; of at most 64 bytes.
    pub fence: Option<String>,
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

/// A message in a request.
#[derive(Debug, Default, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct NewMessage {
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
}

/// An append to a queue in a request.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Enqueue {
    #[schema(min_items = 1, max_items = 10_000)]
    pub messages: Vec<NewMessage>,
    pub guard: Guard,
    pub session: Option<Session>,
    /// Longest wait for the answer, in milliseconds; 0 for 30 seconds.
    #[schema(maximum = 4_294_967_295_u32)]
    pub timeout_ms: u32,
}

/// A message and its queue in a request.
#[derive(Debug, Default, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct QueueMessage {
    /// Name of the queue as text.
    pub queue: Option<String>,
    /// Name of the queue as base64, instead.
    #[schema(format = Byte)]
    pub queue_base64: Option<String>,
    pub message: NewMessage,
}

/// An append to many queues in a request.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct EnqueueMany {
    #[schema(min_items = 1, max_items = 10_000)]
    pub messages: Vec<QueueMessage>,
    /// Longest wait for the answer, in milliseconds; 0 for 30 seconds.
    #[schema(maximum = 4_294_967_295_u32)]
    pub timeout_ms: u32,
}

/// Result of an append to many queues.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Enqueued {
    /// In the order of the messages.
    pub results: Vec<EnqueueResult>,
}

/// Result of one message: its position, or why it has none.
#[derive(Debug, Default, Serialize, ToSchema)]
pub(crate) struct EnqueueResult {
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Position>)]
    pub position: Option<String>,
    /// Problem document.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub problem: Option<Value>,
}

/// A queue that is followed.
#[derive(Debug, Default, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Cursor {
    /// Name of the queue as text.
    pub queue: Option<String>,
    /// Name of the queue as base64, instead.
    #[schema(format = Byte)]
    pub queue_base64: Option<String>,
    /// `begin`, `end`, or the position of the last element that the reader has.
    #[schema(pattern = r"^(begin|end|[0-9]+\.(-1|[0-9]+)\.[0-9]+)$")]
    pub after: Option<String>,
}

/// A subscription in a request.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Subscribe {
    #[schema(min_items = 1, max_items = 64)]
    pub cursors: Vec<Cursor>,
    /// Expression of CEL that is true of the wanted elements.
    #[schema(max_length = 4096)]
    pub filter: String,
    /// Expressions of CEL by name, whose results are returned instead of messages.
    pub fields: HashMap<String, String>,
    /// Memory that the node may use for elements on their way, about, in bytes; 0 for 1 MiB.
    #[schema(maximum = 16_777_216)]
    pub bytes: u32,
    /// True for what the nodes have, which may be less than what was acknowledged.
    pub any_replica: bool,
    /// Goes on at the first element that there is if the log begins behind a cursor.
    pub skip_trimmed: bool,
    /// Leaves out elements on which an expression fails.
    pub skip_failed: bool,
    /// Form of values.
    #[serde(rename = "as")]
    #[schema(inline)]
    pub how: As,
}

/// An event of a subscription.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct QueueEvent {
    /// Name of the queue, if it is text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_base64: Option<String>,
    /// Position to go on behind.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Position>)]
    pub next: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub element: Option<Record>,
}

#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Truncate {
    /// Position of the last record that goes; all that are committed, if absent.
    #[schema(value_type = Option<Position>)]
    pub through: Option<String>,
    pub pointer: Option<Pointer>,
    /// Token that has to be the log's fence; of at most 64 bytes.
    pub fence: Option<String>,
    /// Longest wait for the answer, in milliseconds; 0 for 30 seconds.
    #[schema(maximum = 4_294_967_295_u32)]
    pub timeout_ms: u32,
}

#[derive(Debug, Default, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Pointer {
    /// Place of the state that the removed records led to.
    pub uri: String,
    /// The last position that it covers.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Position>)]
    pub position: Option<String>,
    /// In hexadecimal digits.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schema(pattern = "^([0-9a-fA-F]{64})?$")]
    pub sha256: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub note: String,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Fence {
    /// Of at most 64 bytes; empty for none.
    pub token: String,
    /// The token that has to be the fence until now.
    #[serde(default)]
    pub if_token: Option<String>,
    /// Longest wait for the answer, in milliseconds; 0 for 30 seconds.
    #[serde(default)]
    #[schema(maximum = 4_294_967_295_u32)]
    pub timeout_ms: u32,
}

#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct CreateTopic {
    /// 0 for the cluster's default.
    #[schema(minimum = 0)]
    pub partitions: i32,
    /// 0 for the cluster's default.
    #[schema(minimum = 0)]
    pub replication_factor: i32,
    /// Kafka's settings of topics, by name.
    pub settings: HashMap<String, String>,
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
pub(crate) struct Tail {
    /// The first offset that is there.
    pub start: i64,
    /// One past the last offset before the first open transaction.
    pub stable: i64,
    /// One past the last committed offset.
    pub end: i64,
    /// The last committed record; null if the log never had one.
    #[schema(value_type = Option<Position>)]
    pub last: Option<String>,
    pub fence: Option<String>,
    pub pointer: Option<Pointer>,
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
    pub timestamp_ms: Option<i64>,
    /// Results of the expressions, instead of all but the position.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub fields: BTreeMap<String, serde_json::Value>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Page {
    pub records: Vec<Record>,
    /// Offset at which to go on.
    pub next: i64,
    /// One past the last committed offset, as the node knew it.
    pub end: i64,
    /// Readers see offsets behind the page already.
    pub more: bool,
    /// Records before the page were wanted and are gone.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub skipped: bool,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ElementPage {
    pub elements: Vec<Record>,
    /// Position to go on behind; null if the log never had anything.
    #[schema(value_type = Option<Position>)]
    pub next: Option<String>,
    /// There may be more elements now.
    pub more: bool,
    /// Elements before the page were wanted and are gone.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub skipped: bool,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct QueueExtent {
    /// Name of the queue, if it is text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_base64: Option<String>,
    pub partition: i32,
    /// Null for a queue without elements.
    #[schema(value_type = Option<Position>)]
    pub first: Option<String>,
    #[schema(value_type = Option<Position>)]
    pub last: Option<String>,
    /// Elements that are gone by retention may be counted.
    pub about_elements: u64,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct QueueName {
    /// Name of the queue, if it is text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_base64: Option<String>,
    pub partition: i32,
    pub about_elements: u64,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Queues {
    pub queues: Vec<QueueName>,
    pub more: bool,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Topic {
    pub name: String,
    pub id: String,
    pub partitions: i32,
    pub replication_factor: i32,
    pub settings: BTreeMap<String, String>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Topics {
    pub topics: Vec<Topic>,
    pub more: bool,
}

fn wrong(field: &'static str, reason: &str) -> Fault {
    Fault::bad_request(&[(field, reason.to_owned())])
}

/// Reads JSON as its text: null is a value, and no number loses a digit.
fn raw<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Box<RawValue>>, D::Error> {
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

fn from_base64(field: &'static str, text: &str) -> Result<Bytes, Fault> {
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
        Ok(proto::Record { key, value, headers: headers.collect(), timestamp_ms })
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

impl Append {
    pub(crate) fn message(
        self,
        topic: String,
        partition: i32,
    ) -> Result<proto::AppendRequest, Fault> {
        let records = self.records.into_iter().map(NewRecord::message);
        Ok(proto::AppendRequest {
            topic,
            partition,
            records: records.collect::<Result<_, _>>()?,
            batch: Bytes::new(),
            guard: self.guard.message()?,
            session: self.session.map(Into::into),
            timeout_ms: self.timeout_ms,
        })
    }
}

impl NewMessage {
    fn message(self) -> Result<proto::Record, Fault> {
        let Self { value, json, base64, headers, timestamp_ms } = self;
        let (key, key_base64) = (None, None);
        NewRecord { key, key_base64, value, json, base64, headers, timestamp_ms }.message()
    }
}

/// Reads the name of a queue.
fn queue_of(text: Option<String>, base64: Option<&str>) -> Result<Bytes, Fault> {
    match (text, base64) {
        (Some(text), None) => Ok(text.into()),
        (None, Some(base64)) => from_base64("queue_base64", base64),
        _ => Err(wrong("queue", "it is one of queue and queue_base64")),
    }
}

impl EnqueueMany {
    pub(crate) fn message(self, topic: String) -> Result<proto::EnqueueManyRequest, Fault> {
        let messages = self.messages.into_iter().map(|it| {
            let queue = queue_of(it.queue, it.queue_base64.as_deref())?;
            Ok(proto::QueueMessage { queue, message: Some(it.message.message()?) })
        });
        let messages = messages.collect::<Result<_, Fault>>()?;
        Ok(proto::EnqueueManyRequest { topic, messages, timeout_ms: self.timeout_ms })
    }
}

impl From<proto::EnqueueManyResponse> for Enqueued {
    fn from(it: proto::EnqueueManyResponse) -> Self {
        use proto::enqueue_result::Result;
        let result = |it: proto::EnqueueResult| match it.result {
            Some(Result::Position(position)) => {
                EnqueueResult { position: Some(position.to_string()), problem: None }
            }
            Some(Result::Problem(problem)) => {
                EnqueueResult { position: None, problem: Some(Fault::from(problem).document()) }
            }
            None => EnqueueResult::default(),
        };
        Self { results: it.results.into_iter().map(result).collect() }
    }
}

impl Cursor {
    fn message(self) -> Result<proto::Cursor, Fault> {
        use proto::cursor::Start;
        let queue = queue_of(self.queue, self.queue_base64.as_deref())?;
        let start = match self.after.as_deref() {
            None | Some("begin") => None,
            Some("end") => Some(Start::End(true)),
            Some(text) => Some(Start::After(position("after", text)?)),
        };
        Ok(proto::Cursor { queue, start })
    }
}

impl Subscribe {
    pub(crate) fn message(self, topic: String) -> Result<(proto::SubscribeRequest, As), Fault> {
        use proto::Consistency;
        let cursors = self.cursors.into_iter().map(Cursor::message);
        let consistency =
            if self.any_replica { Consistency::AnyReplica } else { Consistency::Latest };
        let request = proto::SubscribeRequest {
            topic,
            cursors: cursors.collect::<Result<_, _>>()?,
            filter: self.filter,
            fields: self.fields,
            bytes: self.bytes,
            consistency: consistency.into(),
            skip_trimmed: self.skip_trimmed,
            skip_failed: self.skip_failed,
        };
        Ok((request, self.how))
    }
}

impl QueueEvent {
    /// Returns an event, and its name.
    pub(crate) fn of(it: proto::SubscribeResponse, how: As) -> (&'static str, Self) {
        use proto::subscribe_response::Event;
        let (queue, queue_base64) = either(Some(it.queue), As::Text);
        let next = it.next.map(|it| it.to_string());
        let (name, element) = match it.event {
            Some(Event::Element(it)) => ("element", Some(record(it, how))),
            Some(Event::Trimmed(_)) => ("trimmed", None),
            Some(Event::CaughtUp(_)) => ("caught_up", None),
            Some(Event::Heartbeat(_)) | None => ("heartbeat", None),
        };
        (name, Self { queue, queue_base64, next, element })
    }
}

impl Enqueue {
    pub(crate) fn message(
        self,
        topic: String,
        queue: Bytes,
    ) -> Result<proto::EnqueueRequest, Fault> {
        let messages = self.messages.into_iter().map(NewMessage::message);
        Ok(proto::EnqueueRequest {
            topic,
            queue,
            messages: messages.collect::<Result<_, _>>()?,
            guard: self.guard.message()?,
            session: self.session.map(Into::into),
            timeout_ms: self.timeout_ms,
        })
    }
}

fn from_hex(field: &'static str, text: &str) -> Result<Bytes, Fault> {
    let bytes = HEXLOWER_PERMISSIVE.decode(text.as_bytes());
    bytes.map(Bytes::from).map_err(|_| wrong(field, "it is in pairs of hexadecimal digits"))
}

fn to_hex(bytes: &[u8]) -> String {
    HEXLOWER_PERMISSIVE.encode(bytes)
}

impl Pointer {
    fn message(self) -> Result<proto::Pointer, Fault> {
        let at = self.position.map(|text| position("pointer.position", &text)).transpose()?;
        let sha256 = from_hex("pointer.sha256", &self.sha256)?;
        Ok(proto::Pointer { uri: self.uri, position: at, sha256, note: self.note })
    }
}

impl Truncate {
    pub(crate) fn message(
        self,
        topic: String,
        partition: i32,
    ) -> Result<proto::TruncateRequest, Fault> {
        Ok(proto::TruncateRequest {
            topic,
            partition,
            through: self.through.map(|text| position("through", &text)).transpose()?,
            pointer: self.pointer.map(Pointer::message).transpose()?,
            fence: self.fence.map(Bytes::from),
            timeout_ms: self.timeout_ms,
        })
    }
}

impl Fence {
    pub(crate) fn message(self, topic: String, partition: i32) -> proto::FenceRequest {
        proto::FenceRequest {
            topic,
            partition,
            token: self.token.into(),
            if_token: self.if_token.map(Bytes::from),
            timeout_ms: self.timeout_ms,
        }
    }
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

impl From<proto::EnqueueResponse> for Appended {
    fn from(it: proto::EnqueueResponse) -> Self {
        let proto::EnqueueResponse { first, last, duplicate } = it;
        proto::AppendResponse { first, last, duplicate }.into()
    }
}

impl From<proto::Queue> for QueueExtent {
    fn from(it: proto::Queue) -> Self {
        let (queue, queue_base64) = either(Some(it.name), As::Text);
        Self {
            queue,
            queue_base64,
            partition: it.partition,
            first: it.first.map(|it| it.to_string()),
            last: it.last.map(|it| it.to_string()),
            about_elements: it.about_elements,
        }
    }
}

impl From<proto::QueueName> for QueueName {
    fn from(it: proto::QueueName) -> Self {
        let (queue, queue_base64) = either(Some(it.name), As::Text);
        let (partition, about_elements) = (it.partition, it.about_elements);
        Self { queue, queue_base64, partition, about_elements }
    }
}

fn lossy(bytes: &Bytes) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

impl From<proto::Tail> for Tail {
    fn from(it: proto::Tail) -> Self {
        let pointer = it.pointer.map(|it| Pointer {
            position: it.position.map(|it| it.to_string()),
            sha256: to_hex(&it.sha256),
            uri: it.uri,
            note: it.note,
        });
        Self {
            start: it.start,
            stable: it.stable,
            end: it.end,
            last: it.last.map(|it| it.to_string()),
            fence: (!it.fence.is_empty()).then(|| lossy(&it.fence)),
            pointer,
        }
    }
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

fn either(bytes: Option<Bytes>, how: As) -> (Option<String>, Option<String>) {
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
        timestamp_ms,
        fields,
    }
}

/// Largest number to which a double holds all integers.
const EXACT_MAX: f64 = 9_007_199_254_740_992.0;

/// Writes the result of an expression.
fn result(value: prost_types::Value) -> serde_json::Value {
    use prost_types::value::Kind;
    match value.kind {
        None | Some(Kind::NullValue(_)) => serde_json::Value::Null,
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

impl From<proto::Topic> for Topic {
    fn from(it: proto::Topic) -> Self {
        Self {
            name: it.name,
            id: to_hex(&it.id),
            partitions: it.partitions,
            replication_factor: it.replication_factor,
            settings: it.settings.into_iter().collect(),
        }
    }
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
