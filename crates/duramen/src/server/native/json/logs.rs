//! Requests and answers about logs.

use bytes::Bytes;
use data_encoding::HEXLOWER_PERMISSIVE;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::super::openapi::Position;
use super::super::problems::Fault;
use super::records::{Guard, NewRecord, Record, Session, lossy, position, to_hex, wrong};
use crate::proto;

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

fn from_hex(field: &'static str, text: &str) -> Result<Bytes, Fault> {
    let bytes = HEXLOWER_PERMISSIVE.decode(text.as_bytes());
    bytes.map(Bytes::from).map_err(|_| wrong(field, "it is in pairs of hexadecimal digits"))
}

impl Pointer {
    pub(super) fn message(self) -> Result<proto::Pointer, Fault> {
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

    pub(crate) fn message_of_queue(self, topic: String, queue: Bytes) -> proto::FenceQueueRequest {
        proto::FenceQueueRequest {
            topic,
            queue,
            token: self.token.into(),
            if_token: self.if_token.map(Bytes::from),
            timeout_ms: self.timeout_ms,
        }
    }
}

impl From<proto::Pointer> for Pointer {
    fn from(it: proto::Pointer) -> Self {
        Self {
            position: it.position.map(|it| it.to_string()),
            sha256: to_hex(&it.sha256),
            uri: it.uri,
            note: it.note,
        }
    }
}

/// Writes a fence; none for an empty one.
pub(super) fn fence_text(token: &Bytes) -> Option<String> {
    (!token.is_empty()).then(|| lossy(token))
}

impl From<proto::Tail> for Tail {
    fn from(it: proto::Tail) -> Self {
        Self {
            start: it.start,
            stable: it.stable,
            end: it.end,
            last: it.last.map(|it| it.to_string()),
            fence: fence_text(&it.fence),
            pointer: it.pointer.map(Into::into),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pointer_survives_the_way_out_and_in() {
        let pointer = proto::Pointer {
            uri: "s3://snapshot".to_owned(),
            position: Some(proto::Position { term: 7, entry: 4711, offset: 4713 }),
            sha256: Bytes::from(vec![0xab; 32]),
            note: String::new(),
        };
        let tail = proto::Tail { pointer: Some(pointer.clone()), ..proto::Tail::default() };
        let json = serde_json::to_value(Tail::from(tail)).unwrap();
        assert_eq!(json["pointer"]["position"], "7.4711.4713");
        let read: Pointer = serde_json::from_value(json["pointer"].clone()).unwrap();
        assert_eq!(read.message(), Ok(pointer));
        let odd = Pointer { sha256: "abc".to_owned(), ..Pointer::default() };
        assert_eq!(odd.message().unwrap_err().members["errors"][0]["field"], "pointer.sha256");
    }
}
