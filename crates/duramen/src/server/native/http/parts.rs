//! Parts of requests that the handlers take: client, words of the path, query, body.

use std::collections::HashMap;
use std::convert::Infallible;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, PathRejection, QueryRejection};
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use futures_util::stream::{self, BoxStream, StreamExt};
use percent_encoding::percent_decode_str;
use prost::Message;
use serde::de::DeserializeOwned;
use utoipa::IntoParams;

use super::super::calls::Origin;
use super::super::identify::origin_of;
use super::super::json;
use super::super::leases::Leases;
use super::super::logs::Logs;
use super::super::observing::Ending;
use super::super::problems::Fault;
use super::super::queues::Queues;
use super::super::reading::WAIT_MS_MAX;
use super::super::topics::Topics;
use crate::proto;

/// Largest body of a request, in bytes.
pub(super) const BODY_BYTES_MAX: usize = 16 << 20;
pub(super) const PROTOBUF: &str = "application/x-protobuf";
pub(super) const EVENTS: &str = "text/event-stream";

/// Operations of all handlers.
#[derive(Debug)]
pub(super) struct Surface {
    pub logs: Logs,
    pub queues: Queues,
    pub leases: Leases,
    pub topics: Topics,
    /// Content of `/openapi.json`.
    pub document: Bytes,
}

/// Reads a duration such as 30s or 500ms.
fn wait_ms(text: &str) -> Option<u32> {
    let (number, factor) = match text.strip_suffix("ms") {
        Some(number) => (number, 1),
        None => (text.strip_suffix('s').unwrap_or(text), 1000),
    };
    number.parse::<u32>().ok()?.checked_mul(factor)
}

/// Wishes of a read that are words in a query.
#[derive(Debug, Default)]
pub(super) struct Wishes {
    pub wait: Option<String>,
    pub consistency: Option<String>,
    pub on_trimmed: Option<String>,
    pub on_error: Option<String>,
    /// JSON object of names and expressions.
    pub fields: Option<String>,
}

/// Takes the wishes out of a query, for both kinds of reads: each has a field for each of them.
macro_rules! wishes {
    ($query:expr) => {
        Wishes {
            wait: $query.wait,
            consistency: $query.consistency,
            on_trimmed: $query.on_trimmed,
            on_error: $query.on_error,
            fields: $query.fields,
        }
    };
}
pub(super) use wishes;

/// The same, read.
#[derive(Debug)]
pub(super) struct Wished {
    pub wait_ms: u32,
    pub consistency: proto::Consistency,
    pub skip_trimmed: bool,
    pub skip_failed: bool,
    pub fields: HashMap<String, String>,
}

impl Wishes {
    /// Reads all of them, and notes those that are wrong.
    pub(super) fn read(self, errors: &mut Vec<(&'static str, String)>) -> Wished {
        let wait_ms = self.wait.as_deref().map_or(Some(0), wait_ms).unwrap_or_else(|| {
            errors.push(("wait", "it is like 30s or 500ms".to_owned()));
            0
        });
        if wait_ms > WAIT_MS_MAX {
            errors.push(("wait", format!("a read waits at most {WAIT_MS_MAX} ms")));
        }
        let mut choose = |field, text: Option<String>, usual: &str, other: &str| match text {
            Some(text) if text == other => true,
            Some(text) if text != usual => {
                errors.push((field, format!("it is {usual} or {other}")));
                false
            }
            _ => false,
        };
        let is_any = choose("consistency", self.consistency, "latest", "any_replica");
        let skip_trimmed = choose("on_trimmed", self.on_trimmed, "fail", "skip");
        let skip_failed = choose("on_error", self.on_error, "fail", "skip");
        let fields = self.fields.as_deref().map_or(Ok(HashMap::new()), serde_json::from_str);
        let fields = fields.unwrap_or_else(|error| {
            errors
                .push(("fields", format!("it is a JSON object of names and expressions: {error}")));
            HashMap::new()
        });
        let consistency =
            if is_any { proto::Consistency::AnyReplica } else { proto::Consistency::Latest };
        Wished { wait_ms, consistency, skip_trimmed, skip_failed, fields }
    }
}

/// Answers with the events of a stream's items. The last one is its problem, if it has one. While there is no event, a
/// comment comes every `heartbeat`.
pub(super) fn events_of<T: Send + 'static, I>(
    items: BoxStream<'static, Result<T, Fault>>,
    heartbeat: Duration,
    mut events_of: impl FnMut(T) -> I + Send + 'static,
) -> Response
where
    I: IntoIterator<Item = Event>,
    I::IntoIter: Send + 'static,
{
    let ending = Ending::default();
    let noted = ending.clone();
    let events = items.map(move |item| match item {
        Ok(item) => stream::iter(events_of(item)).boxed(),
        Err(fault) => {
            noted.set(fault.kind);
            let event = Event::default().event("problem").data(fault.document().to_string());
            stream::once(async { event }).boxed()
        }
    });
    let alive = KeepAlive::new().interval(heartbeat);
    let events = Sse::new(events.flatten().map(Ok::<_, Infallible>)).keep_alive(alive);
    (Extension(ending), events).into_response()
}

/// Client of a request, and whether it wants protobuf.
pub(super) struct Client {
    pub origin: Origin,
    pub wants_protobuf: bool,
    pub wants_events: bool,
}

impl<S: Send + Sync> FromRequestParts<S> for Client {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        let text =
            |name: header::HeaderName| parts.headers.get(name).and_then(|it| it.to_str().ok());
        let accepts = |kind: &str| text(header::ACCEPT).is_some_and(|it| it.contains(kind));
        let origin = origin_of(&parts.extensions, &parts.headers);
        Ok(Self { origin, wants_protobuf: accepts(PROTOBUF), wants_events: accepts(EVENTS) })
    }
}

impl Client {
    /// Answers with a message, or with the JSON of it.
    pub(super) fn answer<M: Message, J: serde::Serialize>(
        &self,
        status: StatusCode,
        message: M,
        json: impl FnOnce(M) -> J,
    ) -> Response {
        if self.wants_protobuf {
            let kind = [(header::CONTENT_TYPE, PROTOBUF)];
            (status, kind, message.encode_to_vec()).into_response()
        } else {
            (status, Json(json(message))).into_response()
        }
    }
}

/// Name of a log in a path.
#[derive(IntoParams)]
#[into_params(parameter_in = Path)]
pub(super) struct LogPath {
    /// Name of the topic.
    #[param(min_length = 1, max_length = 249, pattern = "^[a-zA-Z0-9._-]+$")]
    pub topic: String,
    /// Number of the partition.
    #[param(minimum = 0)]
    pub partition: i32,
}

impl<S: Send + Sync> FromRequestParts<S> for LogPath {
    type Rejection = Fault;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Fault> {
        let path = Path::<(String, i32)>::from_request_parts(parts, state).await;
        let Path((topic, partition)) = path.map_err(|error: PathRejection| {
            Fault::bad_request(&[("partition", error.body_text())])
        })?;
        Ok(Self { topic, partition })
    }
}

/// Name of a topic in a path.
#[derive(IntoParams)]
#[into_params(parameter_in = Path)]
pub(super) struct TopicPath {
    /// Name of the topic.
    #[param(min_length = 1, max_length = 249, pattern = "^[a-zA-Z0-9._-]+$")]
    pub topic: String,
}

pub(super) async fn word<S: Send + Sync>(
    field: &'static str,
    parts: &mut Parts,
    state: &S,
) -> Result<String, Fault> {
    let path = Path::<String>::from_request_parts(parts, state).await;
    path.map(|Path(word)| word)
        .map_err(|error: PathRejection| Fault::bad_request(&[(field, error.body_text())]))
}

impl<S: Send + Sync> FromRequestParts<S> for TopicPath {
    type Rejection = Fault;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Fault> {
        Ok(Self { topic: word("topic", parts, state).await? })
    }
}

/// Name of a kind of problem in a path.
pub(super) struct SlugPath(pub String);

impl<S: Send + Sync> FromRequestParts<S> for SlugPath {
    type Rejection = Fault;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Fault> {
        Ok(Self(word("slug", parts, state).await?))
    }
}

/// Parameters of a query.
pub(super) struct Asked<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Asked<T> {
    type Rejection = Fault;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Fault> {
        let query = Query::<T>::from_request_parts(parts, state).await;
        query
            .map(|Query(query)| Self(query))
            .map_err(|error: QueryRejection| Fault::bad_request(&[("query", error.body_text())]))
    }
}

/// Kind of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Json,
    Protobuf,
    Other,
}

/// The whole body of a request.
pub(super) struct Body {
    pub form: Form,
    pub headers: HeaderMap,
    pub bytes: Bytes,
}

impl<S: Send + Sync> FromRequest<S> for Body {
    type Rejection = Fault;

    async fn from_request(request: Request, state: &S) -> Result<Self, Fault> {
        let headers = request.headers().clone();
        let kind = headers.get(header::CONTENT_TYPE).and_then(|it| it.to_str().ok());
        let form = match kind.map(|it| it.split(';').next().unwrap_or("").trim()) {
            Some("application/json") => Form::Json,
            Some(PROTOBUF) => Form::Protobuf,
            _ => Form::Other,
        };
        let bytes =
            Bytes::from_request(request, state).await.map_err(|error: BytesRejection| {
                if error.status() == StatusCode::PAYLOAD_TOO_LARGE {
                    let detail = format!("a body has at most {BODY_BYTES_MAX} bytes");
                    Fault::too_large(BODY_BYTES_MAX as u64, detail)
                } else {
                    Fault::bad_request(&[("body", error.body_text())])
                }
            })?;
        Ok(Self { form, headers, bytes })
    }
}

impl Body {
    pub(super) fn json<T: DeserializeOwned>(&self) -> Result<T, Fault> {
        let bytes: &[u8] = if self.bytes.is_empty() { b"{}" } else { &self.bytes };
        serde_json::from_slice(bytes)
            .map_err(|error| Fault::bad_request(&[("body", error.to_string())]))
    }

    pub(super) fn protobuf<M: Message + Default>(&self) -> Result<M, Fault> {
        M::decode(self.bytes.clone())
            .map_err(|error| Fault::bad_request(&[("body", error.to_string())]))
    }

    pub(super) fn header(&self, name: &'static str) -> Result<Option<&str>, Fault> {
        let value = self.headers.get(name);
        value
            .map(|value| value.to_str())
            .transpose()
            .map_err(|_| Fault::bad_request(&[(name, "it is not text".to_owned())]))
    }

    /// Reads the session of a body that is one record.
    pub(super) fn session(&self) -> Result<Option<proto::Session>, Fault> {
        let wrong = || {
            let reason =
                "a session is like 4711.0, its id and epoch; duramen-sequence comes with it";
            Fault::bad_request(&[("duramen-session", reason.to_owned())])
        };
        match (self.header("duramen-session")?, self.header("duramen-sequence")?) {
            (None, None) => Ok(None),
            (Some(session), Some(sequence)) => {
                let (id, epoch) = session.split_once('.').ok_or_else(wrong)?;
                Ok(Some(proto::Session {
                    id: id.parse().map_err(|_| wrong())?,
                    epoch: epoch.parse().map_err(|_| wrong())?,
                    sequence: sequence.parse().map_err(|_| wrong())?,
                }))
            }
            _ => Err(wrong()),
        }
    }

    /// Reads the guard of a body that is one record.
    pub(super) fn guard(&self) -> Result<Option<proto::Guard>, Fault> {
        let last = self.header("duramen-if-last")?.map(str::to_owned);
        let fence = self.header("duramen-fence")?.map(str::to_owned);
        json::Guard { last, fence }.message()
    }

    /// Reads the version that an element has to have.
    pub(super) fn if_version(&self) -> Result<Option<i64>, Fault> {
        let Some(text) = self.header("if-match")? else { return Ok(None) };
        let version = text.strip_prefix('"').and_then(|it| it.strip_suffix('"'));
        let version = version.filter(|it| it.bytes().all(|it| it.is_ascii_digit()));
        let version = version.and_then(|it| it.parse().ok());
        let reason = "it is a version in quotation marks, such as \"4713\"".to_owned();
        version.map(Some).ok_or_else(|| Fault::bad_request(&[("if-match", reason)]))
    }

    /// Makes a record of the body, with headers of its own in headers of the request.
    pub(super) fn record(&self, key: Option<Bytes>) -> Result<proto::Record, Fault> {
        let mut headers = Vec::new();
        for (name, value) in &self.headers {
            if let Some(name) = name.as_str().strip_prefix("duramen-header-") {
                let value = Some(Bytes::copy_from_slice(value.as_bytes()));
                headers.push(proto::Header { name: name.to_owned(), value });
            }
        }
        let id = self.header("duramen-id")?.map(str::to_owned);
        let value = Some(self.bytes.clone());
        Ok(proto::Record { key, value, headers, timestamp_ms: 0, id, schedule: None })
    }

    /// Makes an append of one record: the body, with the rest in headers.
    pub(super) fn one_record(&self, path: LogPath) -> Result<proto::AppendRequest, Fault> {
        let key = self.header("duramen-key")?.map(|key| Bytes::copy_from_slice(key.as_bytes()));
        Ok(proto::AppendRequest {
            topic: path.topic,
            partition: path.partition,
            records: vec![self.record(key)?],
            guard: self.guard()?,
            session: self.session()?,
            ..proto::AppendRequest::default()
        })
    }
}

/// Name of a group in a path, with the topic that it works off.
#[derive(IntoParams)]
#[into_params(parameter_in = Path)]
pub(super) struct GroupPath {
    /// Name of the topic.
    #[param(min_length = 1, max_length = 249, pattern = "^[a-zA-Z0-9._-]+$")]
    pub topic: String,
    /// Name of the share group, percent-encoded.
    #[param(min_length = 1)]
    pub group: String,
}

impl<S: Send + Sync> FromRequestParts<S> for GroupPath {
    type Rejection = Fault;

    /// Reads the path itself, as for a queue.
    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Fault> {
        let mut segments = parts.uri.path().split('/').skip(3);
        let mut text = |field, at| {
            let segment = percent_decode_str(segments.nth(at).unwrap_or_default()).decode_utf8();
            let text = segment.map(std::borrow::Cow::into_owned);
            text.map_err(|_| Fault::bad_request(&[(field, "it is not text".into())]))
        };
        Ok(Self { topic: text("topic", 0)?, group: text("group", 1)? })
    }
}

/// Name of a queue in a path.
#[derive(IntoParams)]
#[into_params(parameter_in = Path)]
pub(super) struct QueuePath {
    /// Name of the topic.
    #[param(min_length = 1, max_length = 249, pattern = "^[a-zA-Z0-9._-]+$")]
    pub topic: String,
    /// Name of the queue, percent-encoded: 1 to 512 bytes of any kind.
    #[param(value_type = String, min_length = 1, max_length = 512)]
    pub queue: Bytes,
}

impl<S: Send + Sync> FromRequestParts<S> for QueuePath {
    type Rejection = Fault;

    /// Reads the path itself: the router decodes text alone.
    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Fault> {
        let mut segments = parts.uri.path().split('/').skip(3);
        let topic = percent_decode_str(segments.next().unwrap_or_default()).decode_utf8();
        let topic = topic.map_err(|_| Fault::bad_request(&[("topic", "it is not text".into())]))?;
        let queue = percent_decode_str(segments.nth(1).unwrap_or_default());
        Ok(Self { topic: topic.into_owned(), queue: queue.collect::<Vec<u8>>().into() })
    }
}
