//! The operations on queues as HTTP.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::Response;
use axum::response::sse::Event;
use bytes::Bytes;
use serde::Deserialize;
use utoipa::IntoParams;

use super::super::json::{self, As};
use super::super::openapi::{
    self, EditProblems, ElementProblems, EnqueueProblems, QueueProblems, ReplaceProblems,
    RetrieveProblems, RewriteProblems,
};
use super::super::problems::Fault;
use super::parts::{
    self, Asked, Body, Client, Form, QueuePath, Surface, TopicPath, Wishes, wishes,
};
use crate::proto;

/// Appends messages to a queue, all or none, as one entry
///
/// A body that is neither JSON nor protobuf is one message. Each header `duramen-header-NAME` becomes a header NAME of
/// the message.
#[utoipa::path(
    post, path = "/v1/topics/{topic}/queues/{queue}/messages", operation_id = "Enqueue", tag = "Queues",
    params(
        QueuePath,
        (
            "duramen-if-last" = Option<String>, Header,
            description = "Position of the queue's last element, or `none` for a queue that has to be empty.",
            pattern = r"^(none|[0-9]+\.(-1|[0-9]+)\.[0-9]+)$",
        ),
        (
            "duramen-fence" = Option<String>, Header,
            description = "Token that has to be the queue's fence: its own, or else the log's.",
            max_length = 64,
        ),
        (
            "duramen-session" = Option<String>, Header,
            description = "Id and epoch of a session, with a dot between them.",
            pattern = r"^[0-9]+\.[0-9]+$",
        ),
        (
            "duramen-sequence" = Option<i32>, Header,
            description = "Number of messages that the session appended to the queue's partition before.",
            minimum = 0,
        ),
        (
            "duramen-id" = Option<String>, Header,
            description = "The writer's name for the message. With a guard the same request may be sent again: it is taken once.",
            min_length = 1, max_length = 64,
        ),
    ),
    request_body(content(
        (json::Enqueue = "application/json"),
        (openapi::Binary = "application/x-protobuf"),
        (openapi::Binary = "application/octet-stream"),
    )),
    responses(
        (
            status = 200, description = "The positions of the messages.",
            content((json::Appended = "application/json"), (openapi::Binary = "application/x-protobuf"))
        ),
        EnqueueProblems,
    )
)]
pub(super) async fn enqueue(
    State(surface): State<Arc<Surface>>,
    client: Client,
    QueuePath { topic, queue }: QueuePath,
    body: Body,
) -> Result<Response, Fault> {
    if body.header("duramen-key")?.is_some() {
        let reason = "the key of a message is its queue's name".to_owned();
        return Err(Fault::bad_request(&[("duramen-key", reason)]));
    }
    let request = match body.form {
        Form::Json => body.json::<json::Enqueue>()?.message(topic, queue)?,
        Form::Protobuf => proto::EnqueueRequest { topic, queue, ..body.protobuf()? },
        Form::Other => proto::EnqueueRequest {
            topic,
            queue,
            messages: vec![body.record(None)?],
            guard: body.guard()?,
            session: body.session()?,
            timeout_ms: 0,
        },
    };
    let answer = surface.queues.enqueue(&client.origin, request).await?;
    Ok(client.answer(StatusCode::OK, answer, json::Appended::from))
}

/// Parameters of a read of a queue.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub(super) struct RetrieveQuery {
    /// `begin`, `end`, or the position of the last element that the reader has.
    #[param(pattern = r"^(begin|end|[0-9]+\.(-1|[0-9]+)\.[0-9]+)$")]
    after: Option<String>,
    /// Most elements of the page: 1 to 1,000, 100 by default.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
    /// Size of the page, about, in bytes; 0 for 1 MiB.
    #[param(maximum = 16_777_216)]
    bytes: u32,
    /// Longest wait for an element, such as 30s or 500ms; at most 60s.
    #[param(pattern = "^([1-5]?[0-9]s|[0-9]{1,4}ms)$")]
    wait: Option<String>,
    /// `latest` shows all that was acknowledged before the call; `any_replica` what the node has, which may be less.
    #[param(pattern = "^(latest|any_replica)$")]
    consistency: Option<String>,
    /// `fail` where the wanted elements are gone, or `skip` them.
    #[param(pattern = "^(fail|skip)$")]
    on_trimmed: Option<String>,
    /// Expression of CEL that is true of the wanted elements, such as `json.level == "error"`.
    #[param(max_length = 4096)]
    filter: String,
    /// Expressions of CEL by name, as a JSON object, whose results are returned instead of messages.
    #[param(value_type = Option<String>)]
    fields: Option<String>,
    /// `fail` where an expression fails on an element, or `skip` the element.
    #[param(pattern = "^(fail|skip)$")]
    on_error: Option<String>,
    /// Form of values.
    #[serde(rename = "as")]
    #[param(inline)]
    how: As,
}

impl RetrieveQuery {
    fn message(
        self,
        QueuePath { topic, queue }: QueuePath,
        resume: Option<&str>,
    ) -> Result<proto::RetrieveRequest, Fault> {
        use proto::retrieve_request::Start;
        let mut errors = Vec::new();
        let start = match resume.or(self.after.as_deref()) {
            None | Some("begin") => None,
            Some("end") => Some(Start::End(true)),
            Some(text) => Some(Start::After(json::position("after", text)?)),
        };
        if self.limit == Some(0) {
            errors.push(("limit", "a page has at least one element".to_owned()));
        }
        let wished = wishes!(self).read(&mut errors);
        if !errors.is_empty() {
            return Err(Fault::bad_request(&errors));
        }
        Ok(proto::RetrieveRequest {
            topic,
            queue,
            start,
            limit: self.limit.unwrap_or(0),
            bytes: self.bytes,
            wait_ms: wished.wait_ms,
            filter: self.filter,
            fields: wished.fields,
            consistency: wished.consistency.into(),
            skip_trimmed: wished.skip_trimmed,
            skip_failed: wished.skip_failed,
        })
    }
}

/// Reads elements of a queue in their order: a page, or an event stream that goes on until the client goes
#[utoipa::path(
    get, path = "/v1/topics/{topic}/queues/{queue}/messages", operation_id = "Retrieve", tag = "Queues",
    params(
        QueuePath,
        RetrieveQuery,
        (
            "last-event-id" = Option<String>, Header,
            description = "Position behind which an event stream goes on, instead of `after`.",
        ),
    ),
    responses(
        (
            status = 200, description = "A page; or with `Accept: text/event-stream` an event `element` for \
                each element, whose id is the position to go on behind, and an event `problem` at the end.",
            content((json::ElementPage = "application/json"),
                (openapi::Binary = "application/x-protobuf"), (String = "text/event-stream"))
        ),
        RetrieveProblems,
    )
)]
pub(super) async fn retrieve(
    State(surface): State<Arc<Surface>>,
    client: Client,
    path: QueuePath,
    Asked(query): Asked<RetrieveQuery>,
    headers: HeaderMap,
) -> Result<Response, Fault> {
    let how = query.how;
    if client.wants_events {
        let resume = headers.get("last-event-id").and_then(|it| it.to_str().ok());
        let request = query.message(path, resume)?;
        let pages = surface.queues.follow(&client.origin, request).await?;
        let heartbeat = surface.queues.heartbeat;
        return Ok(parts::events_of(pages, heartbeat, move |page| events_of(page, how)));
    }
    let request = query.message(path, None)?;
    let answer = surface.queues.retrieve(&client.origin, request).await?;
    let json = |page: proto::RetrieveResponse| json::ElementPage {
        elements: page.elements.into_iter().map(|it| json::record(it, how)).collect(),
        next: page.next.map(|it| it.to_string()),
        more: page.more,
        skipped: page.skipped,
    };
    Ok(client.answer(StatusCode::OK, answer, json))
}

fn events_of(page: proto::RetrieveResponse, how: As) -> Vec<Event> {
    let Some(next) = page.next.filter(|_| page.elements.is_empty()) else {
        let event = |it: proto::ReadRecord| {
            let id = it.position.map(|position| position.to_string()).unwrap_or_default();
            let data = serde_json::to_string(&json::record(it, how)).unwrap_or_default();
            Event::default().id(id).event("element").data(data)
        };
        return page.elements.into_iter().map(event).collect();
    };
    // Nothing came, or a filter let nothing through: the reader stores how far it is.
    let data = serde_json::json!({ "next": next.to_string() }).to_string();
    vec![Event::default().id(next.to_string()).event("progress").data(data)]
}

/// Appends messages to many queues, one entry for each partition
///
/// The messages of one partition are appended all or none. Each message has a result of its own; if all fail for one
/// reason, the call does.
#[utoipa::path(
    post, path = "/v1/topics/{topic}/messages", operation_id = "EnqueueMany", tag = "Queues",
    params(TopicPath),
    request_body(content(
        (json::EnqueueMany = "application/json"),
        (openapi::Binary = "application/x-protobuf"),
    )),
    responses(
        (
            status = 200, description = "A result for each message, in their order.",
            content((json::Enqueued = "application/json"), (openapi::Binary = "application/x-protobuf"))
        ),
        EnqueueProblems,
    )
)]
pub(super) async fn enqueue_many(
    State(surface): State<Arc<Surface>>,
    client: Client,
    TopicPath { topic }: TopicPath,
    body: Body,
) -> Result<Response, Fault> {
    let request = match body.form {
        Form::Protobuf => proto::EnqueueManyRequest { topic, ..body.protobuf()? },
        Form::Json | Form::Other => body.json::<json::EnqueueMany>()?.message(topic)?,
    };
    let answer = surface.queues.enqueue_many(&client.origin, request).await?;
    Ok(client.answer(StatusCode::OK, answer, json::Enqueued::from))
}

/// Reads up to 64 queues to their ends, and each element that comes, as an event stream until the client goes
#[utoipa::path(
    post, path = "/v1/topics/{topic}/subscribe", operation_id = "Subscribe", tag = "Queues",
    params(TopicPath),
    request_body(content(
        (json::Subscribe = "application/json"),
        (openapi::Binary = "application/x-protobuf"),
    )),
    responses(
        (
            status = 200, description = "Events `element`, `trimmed`, `caught_up` and `heartbeat`, each with its \
                queue and the position to go on behind, and an event `problem` at the end.",
            content((json::QueueEvent = "text/event-stream"))
        ),
        RetrieveProblems,
    )
)]
pub(super) async fn subscribe(
    State(surface): State<Arc<Surface>>,
    client: Client,
    TopicPath { topic }: TopicPath,
    body: Body,
) -> Result<Response, Fault> {
    let (request, how) = match body.form {
        Form::Protobuf => (proto::SubscribeRequest { topic, ..body.protobuf()? }, As::default()),
        Form::Json | Form::Other => body.json::<json::Subscribe>()?.message(topic)?,
    };
    let events = surface.queues.subscribe(&client.origin, request).await?;
    Ok(parts::events_of(events, surface.queues.heartbeat, move |event| {
        let (name, event) = json::QueueEvent::of(event, how);
        let data = serde_json::to_string(&event).unwrap_or_default();
        Some(Event::default().event(name).data(data))
    }))
}

/// Name of an element in a path.
#[derive(IntoParams)]
#[into_params(parameter_in = Path)]
struct ElementPath {
    /// Position of the element.
    #[param(value_type = openapi::Position)]
    #[expect(dead_code, reason = "it is for the document")]
    position: String,
}

/// Reads one element
#[utoipa::path(
    get, path = "/v1/topics/{topic}/queues/{queue}/messages/{position}", operation_id = "GetElement", tag = "Queues",
    params(QueuePath, ElementPath),
    responses(
        (
            status = 200, description = "The element.",
            headers(("etag" = String, description = "Version of the element, in quotation marks.")),
            content((json::Record = "application/json"), (openapi::Binary = "application/x-protobuf"))
        ),
        ElementProblems,
    )
)]
pub(super) async fn get_element(
    State(surface): State<Arc<Surface>>,
    client: Client,
    QueuePath { topic, queue }: QueuePath,
    uri: axum::http::Uri,
) -> Result<Response, Fault> {
    let position = Some(position_in(&uri)?);
    let request = proto::GetElementRequest { topic, queue, position };
    let answer = surface.queues.get_element(&client.origin, request).await?;
    let version = answer.version;
    let response = client.answer(StatusCode::OK, answer, |it| json::record(it, As::Text));
    Ok(with_version(response, version))
}

/// Adds the version of an element to an answer, for a header `If-Match` of the next request.
fn with_version(mut response: Response, version: Option<i64>) -> Response {
    let tag = version.and_then(|version| HeaderValue::from_str(&format!("\"{version}\"")).ok());
    if let Some(tag) = tag {
        response.headers_mut().insert(header::ETAG, tag);
    }
    response
}

/// Headers of an append that a replacement has not.
const OF_APPENDS: [&str; 4] =
    ["duramen-if-last", "duramen-key", "duramen-sequence", "duramen-session"];

/// Gives an element another content, and leaves it at its position
///
/// The body is the new content: a message in JSON, a `ReplaceRequest` as protobuf, or else the value itself. Then each
/// header `duramen-header-NAME` becomes a header NAME of the message.
#[utoipa::path(
    put, path = "/v1/topics/{topic}/queues/{queue}/messages/{position}", operation_id = "Replace", tag = "Queues",
    params(
        QueuePath,
        ElementPath,
        (
            "if-match" = Option<String>, Header,
            description = "The version that the element has to have, in quotation marks.",
            pattern = r#"^"[0-9]+"$"#,
        ),
        (
            "duramen-fence" = Option<String>, Header,
            description = "Token that has to be the queue's fence: its own, or else the log's.",
            max_length = 64,
        ),
        (
            "duramen-id" = Option<String>, Header,
            description = "The writer's name for the content. The same request may be sent again: it is done once.",
            min_length = 1, max_length = 64,
        ),
    ),
    request_body(content(
        (json::NewMessage = "application/json"),
        (openapi::Binary = "application/x-protobuf"),
        (openapi::Binary = "application/octet-stream"),
    )),
    responses(
        (
            status = 200, description = "Readers see the new content, and the old one no more.",
            headers(("etag" = String, description = "Version of the element, in quotation marks.")),
            content((json::Edited = "application/json"), (openapi::Binary = "application/x-protobuf"))
        ),
        ReplaceProblems,
    )
)]
pub(super) async fn replace(
    State(surface): State<Arc<Surface>>,
    client: Client,
    QueuePath { topic, queue }: QueuePath,
    uri: axum::http::Uri,
    body: Body,
) -> Result<Response, Fault> {
    let request = replacement(&body)?;
    let position = Some(position_in(&uri)?);
    let request = proto::ReplaceRequest { topic, queue, position, ..request };
    let answer = surface.queues.replace(&client.origin, request).await?;
    let version = answer.at.map(|it| it.offset);
    Ok(with_version(client.answer(StatusCode::OK, answer, json::Edited::replaced), version))
}

/// Reads a replacement but for its element. A condition in a header goes before one in the body.
fn replacement(body: &Body) -> Result<proto::ReplaceRequest, Fault> {
    for name in OF_APPENDS {
        if body.header(name)?.is_some() {
            return Err(Fault::bad_request(&[(name, "it is for appends".to_owned())]));
        }
    }
    let mut request = match body.form {
        Form::Protobuf => body.protobuf::<proto::ReplaceRequest>()?,
        Form::Json => {
            let message = Some(body.json::<json::NewMessage>()?.message()?);
            proto::ReplaceRequest { message, ..proto::ReplaceRequest::default() }
        }
        Form::Other => {
            let message = Some(body.record(None)?);
            proto::ReplaceRequest { message, ..proto::ReplaceRequest::default() }
        }
    };
    request.if_version = body.if_version()?.or(request.if_version);
    request.fence = fence_in(&body.headers).or(request.fence);
    Ok(request)
}

fn fence_in(headers: &HeaderMap) -> Option<Bytes> {
    headers.get("duramen-fence").map(|it| Bytes::copy_from_slice(it.as_bytes()))
}

fn position_in(uri: &axum::http::Uri) -> Result<proto::Position, Fault> {
    json::position("position", uri.path().rsplit('/').next().unwrap_or_default())
}

/// Deletes one element
///
/// One that is not there any more is counted as absent.
#[utoipa::path(
    delete, path = "/v1/topics/{topic}/queues/{queue}/messages/{position}", operation_id = "DeleteElement",
    tag = "Queues",
    params(
        QueuePath,
        ElementPath,
        (
            "duramen-fence" = Option<String>, Header,
            description = "Token that has to be the queue's fence: its own, or else the log's.",
            max_length = 64,
        ),
    ),
    responses(
        (
            status = 200, description = "Readers see the element no more.",
            content((json::Edited = "application/json"), (openapi::Binary = "application/x-protobuf"))
        ),
        EditProblems,
    )
)]
pub(super) async fn delete_element(
    State(surface): State<Arc<Surface>>,
    client: Client,
    QueuePath { topic, queue }: QueuePath,
    uri: axum::http::Uri,
    headers: HeaderMap,
) -> Result<Response, Fault> {
    let (positions, fence) = (vec![position_in(&uri)?], fence_in(&headers));
    let request = proto::DeleteRequest { topic, queue, positions, fence, timeout_ms: 0 };
    let answer = surface.queues.delete(&client.origin, request).await?;
    Ok(client.answer(StatusCode::OK, answer, json::Edited::from))
}

/// Deletes elements of a queue, all in one entry
#[utoipa::path(
    post, path = "/v1/topics/{topic}/queues/{queue}/delete", operation_id = "Delete", tag = "Queues",
    params(QueuePath),
    request_body(content(
        (json::Delete = "application/json"),
        (openapi::Binary = "application/x-protobuf"),
    )),
    responses(
        (
            status = 200, description = "Readers see the elements no more.",
            content((json::Edited = "application/json"), (openapi::Binary = "application/x-protobuf"))
        ),
        EditProblems,
    )
)]
pub(super) async fn delete(
    State(surface): State<Arc<Surface>>,
    client: Client,
    QueuePath { topic, queue }: QueuePath,
    body: Body,
) -> Result<Response, Fault> {
    let request = match body.form {
        Form::Protobuf => proto::DeleteRequest { topic, queue, ..body.protobuf()? },
        Form::Json | Form::Other => body.json::<json::Delete>()?.message(topic, queue)?,
    };
    let answer = surface.queues.delete(&client.origin, request).await?;
    Ok(client.answer(StatusCode::OK, answer, json::Edited::from))
}

/// Withdraws all elements behind a position, and appends messages in their place, all in one entry
#[utoipa::path(
    post, path = "/v1/topics/{topic}/queues/{queue}/rewrite", operation_id = "Rewrite", tag = "Queues",
    params(QueuePath),
    request_body(content(
        (json::Rewrite = "application/json"),
        (openapi::Binary = "application/x-protobuf"),
    )),
    responses(
        (
            status = 200, description = "Readers see the new elements, and the old ones no more.",
            content((json::Edited = "application/json"), (openapi::Binary = "application/x-protobuf"))
        ),
        RewriteProblems,
    )
)]
pub(super) async fn rewrite(
    State(surface): State<Arc<Surface>>,
    client: Client,
    QueuePath { topic, queue }: QueuePath,
    body: Body,
) -> Result<Response, Fault> {
    let request = match body.form {
        Form::Protobuf => proto::RewriteRequest { topic, queue, ..body.protobuf()? },
        Form::Json | Form::Other => body.json::<json::Rewrite>()?.message(topic, queue)?,
    };
    let answer = surface.queues.rewrite(&client.origin, request).await?;
    Ok(client.answer(StatusCode::OK, answer, json::Edited::from))
}

/// Deletes all elements of a queue, in one entry
#[utoipa::path(
    delete, path = "/v1/topics/{topic}/queues/{queue}", operation_id = "DeleteQueue", tag = "Queues",
    params(
        QueuePath,
        (
            "duramen-fence" = Option<String>, Header,
            description = "Token that has to be the queue's fence: its own, or else the log's.",
            max_length = 64,
        ),
    ),
    responses(
        (
            status = 200, description = "The queue has no elements.",
            content((json::Edited = "application/json"), (openapi::Binary = "application/x-protobuf"))
        ),
        EditProblems,
    )
)]
pub(super) async fn delete_queue(
    State(surface): State<Arc<Surface>>,
    client: Client,
    QueuePath { topic, queue }: QueuePath,
    headers: HeaderMap,
) -> Result<Response, Fault> {
    let fence = fence_in(&headers);
    let request = proto::DeleteQueueRequest { topic, queue, fence, timeout_ms: 0 };
    let answer = surface.queues.delete_queue(&client.origin, request).await?;
    Ok(client.answer(StatusCode::OK, answer, json::Edited::from))
}

/// Has readers of a queue begin behind a position, and keeps a pointer to what the elements led to
///
/// The log keeps the records: its own readers, and Kafka's consumers, get them until retention.
#[utoipa::path(
    post, path = "/v1/topics/{topic}/queues/{queue}/trim", operation_id = "TrimQueue", tag = "Queues",
    params(QueuePath),
    request_body(content(
        (json::TrimQueue = "application/json"),
        (openapi::Binary = "application/x-protobuf"),
    )),
    responses(
        (
            status = 200, description = "Readers of the queue begin behind the position.",
            content((json::Edited = "application/json"), (openapi::Binary = "application/x-protobuf"))
        ),
        EditProblems,
    )
)]
pub(super) async fn trim(
    State(surface): State<Arc<Surface>>,
    client: Client,
    QueuePath { topic, queue }: QueuePath,
    body: Body,
) -> Result<Response, Fault> {
    let request = match body.form {
        Form::Protobuf => proto::TrimQueueRequest { topic, queue, ..body.protobuf()? },
        Form::Json | Form::Other => body.json::<json::TrimQueue>()?.message(topic, queue)?,
    };
    let answer = surface.queues.trim_queue(&client.origin, request).await?;
    Ok(client.answer(StatusCode::OK, answer, json::Edited::from))
}

/// Sets the token that changes of a queue have to carry if they carry one
///
/// A queue without a fence of its own has that of its log.
#[utoipa::path(
    put, path = "/v1/topics/{topic}/queues/{queue}/fence", operation_id = "FenceQueue", tag = "Queues",
    params(QueuePath),
    request_body(content((json::Fence = "application/json"), (openapi::Binary = "application/x-protobuf"))),
    responses(
        (
            status = 200, description = "The queue has the fence.",
            content((json::Edited = "application/json"), (openapi::Binary = "application/x-protobuf"))
        ),
        EditProblems,
    )
)]
pub(super) async fn fence(
    State(surface): State<Arc<Surface>>,
    client: Client,
    QueuePath { topic, queue }: QueuePath,
    body: Body,
) -> Result<Response, Fault> {
    let request = match body.form {
        Form::Protobuf => proto::FenceQueueRequest { topic, queue, ..body.protobuf()? },
        Form::Json | Form::Other => body.json::<json::Fence>()?.message_of_queue(topic, queue),
    };
    let answer = surface.queues.fence_queue(&client.origin, request).await?;
    Ok(client.answer(StatusCode::OK, answer, json::Edited::from))
}

/// Tells where a queue begins and ends, its fence and its pointer, and about how much it has
#[utoipa::path(
    get, path = "/v1/topics/{topic}/queues/{queue}", operation_id = "GetQueue", tag = "Queues",
    params(QueuePath),
    responses(
        (
            status = 200, description = "The queue; one that was never used has no elements.",
            content((json::QueueExtent = "application/json"), (openapi::Binary = "application/x-protobuf"))
        ),
        QueueProblems,
    )
)]
pub(super) async fn get(
    State(surface): State<Arc<Surface>>,
    client: Client,
    QueuePath { topic, queue }: QueuePath,
) -> Result<Response, Fault> {
    let request = proto::GetQueueRequest { topic, queue };
    let answer = surface.queues.get_queue(&client.origin, request).await?;
    Ok(client.answer(StatusCode::OK, answer, json::QueueExtent::from))
}

/// Parameters of a list of queues.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub(super) struct ListQuery {
    /// Beginning of the names.
    prefix: String,
    /// The last name of the page before.
    after: String,
    /// Most queues of the page; 0 for 1,000.
    #[param(maximum = 1000)]
    limit: u32,
    /// Only queues of this partition.
    #[param(minimum = 0)]
    partition: Option<i32>,
}

/// Lists queues of a topic by their names
#[utoipa::path(
    get, path = "/v1/topics/{topic}/queues", operation_id = "ListQueues", tag = "Queues",
    params(TopicPath, ListQuery),
    responses(
        (
            status = 200, description = "A page of queues.",
            content((json::Queues = "application/json"), (openapi::Binary = "application/x-protobuf"))
        ),
        QueueProblems,
    )
)]
pub(super) async fn list(
    State(surface): State<Arc<Surface>>,
    client: Client,
    TopicPath { topic }: TopicPath,
    Asked(query): Asked<ListQuery>,
) -> Result<Response, Fault> {
    let ListQuery { prefix, after, limit, partition } = query;
    let (prefix, after) = (prefix.into(), after.into());
    let request = proto::ListQueuesRequest { topic, prefix, after, limit, partition };
    let answer = surface.queues.list(&client.origin, request).await?;
    let json = |it: proto::ListQueuesResponse| json::Queues {
        queues: it.queues.into_iter().map(Into::into).collect(),
        more: it.more,
    };
    Ok(client.answer(StatusCode::OK, answer, json))
}
