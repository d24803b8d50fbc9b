//! Requests and answers about queues.

use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::super::openapi::Position;
use super::super::problems::Fault;
use super::logs::{Pointer, fence_text};
use super::records::{
    Appended, As, Guard, NewRecord, Record, Session, either, from_base64, position, raw, record,
    wrong,
};
use crate::proto;

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
    /// The writer's name for the message. If all messages of an append under a guard have one, the same append may be
    /// sent again: it is taken once.
    #[schema(min_length = 1, max_length = 64)]
    pub id: Option<String>,
    /// Time before which no worker gets the message, in milliseconds since 1970.
    #[schema(minimum = 1)]
    pub deliver_at_ms: Option<i64>,
    /// The same as a delay from now, in milliseconds.
    pub delay_ms: Option<u64>,
    /// Time from which the message is of no use, in milliseconds since 1970.
    #[schema(minimum = 1)]
    pub expires_ms: Option<i64>,
    /// The same as a time to live from now, in milliseconds.
    pub ttl_ms: Option<u64>,
    /// Workers get a message of a higher priority first; 4 if absent.
    #[schema(maximum = 9)]
    pub priority: Option<u32>,
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
    /// Goes on at the first element that there is if the log or queue begins behind a cursor.
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

/// A deletion in a request.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Delete {
    #[schema(value_type = Vec<Position>, min_items = 1, max_items = 1_000)]
    pub positions: Vec<String>,
    /// The token that has to be the queue's fence: its own, or else the log's.
    #[schema(max_length = 64)]
    pub fence: Option<String>,
    /// Longest wait for the answer, in milliseconds; 0 for 30 seconds.
    #[schema(maximum = 4_294_967_295_u32)]
    pub timeout_ms: u32,
}

/// A rewrite in a request.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Rewrite {
    /// The last position that stays.
    #[schema(value_type = Option<Position>)]
    pub after: Option<String>,
    /// True if nothing stays, instead.
    pub none: bool,
    /// Messages that follow the part that stays.
    #[schema(max_items = 10_000)]
    pub messages: Vec<NewMessage>,
    /// The token that has to be the queue's fence. Set it first.
    #[schema(min_length = 1, max_length = 64)]
    pub fence: String,
    /// Text for people.
    #[schema(max_length = 1_024)]
    pub reason: String,
    /// Longest wait for the answer, in milliseconds; 0 for 30 seconds.
    #[schema(maximum = 4_294_967_295_u32)]
    pub timeout_ms: u32,
}

/// A trim in a request.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct TrimQueue {
    /// The last position that goes.
    #[schema(value_type = Position)]
    pub through: String,
    pub pointer: Option<Pointer>,
    /// The token that has to be the queue's fence: its own, or else the log's.
    #[schema(max_length = 64)]
    pub fence: Option<String>,
    /// Longest wait for the answer, in milliseconds; 0 for 30 seconds.
    #[schema(maximum = 4_294_967_295_u32)]
    pub timeout_ms: u32,
}

/// Result of an edit.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Edited {
    /// The first record of the entry that says it; null if there was nothing to say.
    #[schema(value_type = Option<Position>)]
    pub at: Option<String>,
    /// The last record of that entry.
    #[schema(value_type = Option<Position>)]
    pub last: Option<String>,
    /// Number of positions that named no element of the queue.
    pub absent: u32,
    /// Number of records that readers see no more.
    pub withdrawn: u32,
    /// The version of a replaced element.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<i64>,
    /// An earlier request had done it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub duplicate: bool,
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
    /// Elements that are deleted, trimmed, or gone by retention, may be counted.
    pub about_elements: u64,
    /// Its own.
    pub fence: Option<String>,
    /// Left by its latest trim.
    pub pointer: Option<Pointer>,
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

impl NewMessage {
    pub(crate) fn message(self) -> Result<proto::Record, Fault> {
        let schedule = self.schedule()?;
        let Self { value, json, base64, headers, timestamp_ms, id, .. } = self;
        let (key, key_base64) = (None, None);
        let record = NewRecord { key, key_base64, value, json, base64, headers, timestamp_ms, id };
        Ok(proto::Record { schedule, ..record.message()? })
    }

    fn schedule(&self) -> Result<Option<proto::Schedule>, Fault> {
        use proto::schedule::{End, Start};
        let start = match (self.deliver_at_ms, self.delay_ms) {
            (Some(_), Some(_)) => return Err(wrong("delay_ms", "there is deliver_at_ms already")),
            (at, delay) => at.map(Start::DeliverAtMs).or(delay.map(Start::DelayMs)),
        };
        let end = match (self.expires_ms, self.ttl_ms) {
            (Some(_), Some(_)) => return Err(wrong("ttl_ms", "there is expires_ms already")),
            (at, ttl) => at.map(End::ExpiresMs).or(ttl.map(End::TtlMs)),
        };
        let is_any = start.is_some() || end.is_some() || self.priority.is_some();
        Ok(is_any.then_some(proto::Schedule { start, end, priority: self.priority }))
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

impl Delete {
    pub(crate) fn message(
        self,
        topic: String,
        queue: Bytes,
    ) -> Result<proto::DeleteRequest, Fault> {
        let positions = self.positions.iter().map(|text| position("positions", text));
        Ok(proto::DeleteRequest {
            topic,
            queue,
            positions: positions.collect::<Result<_, _>>()?,
            fence: self.fence.map(Bytes::from),
            timeout_ms: self.timeout_ms,
        })
    }
}

impl From<proto::EditResponse> for Edited {
    fn from(it: proto::EditResponse) -> Self {
        let text = |position: Option<proto::Position>| position.map(|it| it.to_string());
        Self {
            at: text(it.at),
            last: text(it.last),
            absent: it.absent,
            withdrawn: it.withdrawn,
            version: None,
            duplicate: it.duplicate,
        }
    }
}

impl Edited {
    /// Writes the result of a replacement.
    pub(crate) fn replaced(it: proto::EditResponse) -> Self {
        let version = it.at.map(|it| it.offset);
        Self { version, ..it.into() }
    }
}

impl Rewrite {
    pub(crate) fn message(
        self,
        topic: String,
        queue: Bytes,
    ) -> Result<proto::RewriteRequest, Fault> {
        use proto::rewrite_request::Keep;
        let keep = match (self.after.as_deref(), self.none) {
            (Some(_), true) => return Err(wrong("none", "there is a position already")),
            (Some(text), false) => Some(Keep::After(position("after", text)?)),
            (None, is_none) => is_none.then_some(Keep::None(true)),
        };
        let messages = self.messages.into_iter().map(NewMessage::message);
        Ok(proto::RewriteRequest {
            topic,
            queue,
            keep,
            messages: messages.collect::<Result<_, _>>()?,
            fence: self.fence.into(),
            reason: self.reason,
            timeout_ms: self.timeout_ms,
        })
    }
}

impl TrimQueue {
    pub(crate) fn message(
        self,
        topic: String,
        queue: Bytes,
    ) -> Result<proto::TrimQueueRequest, Fault> {
        Ok(proto::TrimQueueRequest {
            topic,
            queue,
            through: Some(position("through", &self.through)?),
            pointer: self.pointer.map(Pointer::message).transpose()?,
            fence: self.fence.map(Bytes::from),
            timeout_ms: self.timeout_ms,
        })
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
            fence: fence_text(&it.fence),
            pointer: it.pointer.map(Into::into),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_is_named_once_as_text_or_as_base64() {
        let queue = |json: &str| {
            let cursor: Cursor = serde_json::from_str(json).unwrap();
            cursor.message().map(|it| it.queue)
        };
        assert_eq!(queue(r#"{"queue":"alice"}"#), Ok(Bytes::from("alice")));
        assert_eq!(queue(r#"{"queue_base64":"AP8="}"#), Ok(Bytes::from_static(b"\0\xff")));
        for (json, field) in [
            ("{}", "queue"),
            (r#"{"queue":"a","queue_base64":"YQ=="}"#, "queue"),
            (r#"{"queue_base64":"?"}"#, "queue_base64"),
            (r#"{"queue":"a","after":"1.2"}"#, "after"),
        ] {
            assert_eq!(queue(json).unwrap_err().members["errors"][0]["field"], field, "{json}");
        }
    }
}
