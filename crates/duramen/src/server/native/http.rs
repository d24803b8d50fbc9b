//! The native API as HTTP: resources under /v1, JSON or protobuf bodies, pages or server-sent events.

use std::sync::Arc;

use axum::Router;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::sse::Event;
use axum::response::{IntoResponse, Response};
use futures_util::stream::StreamExt;
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa::openapi::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::json::{self, As};
use super::leases::Leases;
use super::logs::Logs;
use super::openapi::{
    self, AppendProblems, ControlProblems, CreateProblems, DeleteProblems, GetProblems,
    ListProblems, PageProblems, ReadProblems, SessionProblems, TailProblems,
};
use super::problems::{self, Fault, METHOD_NOT_ALLOWED, UNSUPPORTED};
use super::queues::Queues;
use super::topics::Topics;
use crate::proto;

mod leases;
mod parts;
mod queues;

use parts::{
    Asked, BODY_BYTES_MAX, Body, Client, Form, LogPath, SlugPath, Surface, TopicPath, Wishes,
    wishes,
};

/// Records of a page, if the client names no number, and the most.
const PAGE_RECORDS: u64 = 100;
const PAGE_RECORDS_MAX: u64 = 1_000;
const MARKDOWN: &str = "text/markdown; charset=utf-8";
/// The protocol, as clients of gRPC compile it.
const PROTO: &str = include_str!("../../../proto/duramen/v1/duramen.proto");

/// Returns the routes of all operations, and of the pages that explain them, with their document.
pub(crate) fn routes(
    logs: Logs,
    queues: Queues,
    leases: Leases,
    topics: Topics,
) -> anyhow::Result<(Router, OpenApi)> {
    let routes = OpenApiRouter::with_openapi(openapi::document())
        .routes(routes!(list_topics))
        .routes(routes!(create_topic, get_topic, delete_topic))
        .routes(routes!(tail))
        .routes(routes!(append, read))
        .routes(routes!(truncate))
        .routes(routes!(fence))
        .routes(routes!(open_session))
        .routes(routes!(queues::list))
        .routes(routes!(queues::get, queues::delete_queue))
        .routes(routes!(queues::enqueue, queues::retrieve))
        .routes(routes!(queues::enqueue_many))
        .routes(routes!(queues::subscribe))
        .routes(routes!(queues::get_element, queues::replace, queues::delete_element))
        .routes(routes!(queues::delete))
        .routes(routes!(queues::rewrite))
        .routes(routes!(queues::trim))
        .routes(routes!(queues::fence))
        .routes(routes!(leases::lease))
        .routes(routes!(leases::settle))
        .routes(routes!(leases::redrive))
        .routes(routes!(problem))
        .routes(routes!(protocol))
        .routes(routes!(document));
    let (routes, document) = routes.split_for_parts();
    let document = openapi::with_optional_bodies(document);
    let surface = Surface { logs, queues, leases, topics, document: document.to_json()?.into() };
    // Each request has a state of its own, and room for it in several futures.
    let surface = Arc::new(surface);
    let routes = routes.layer(DefaultBodyLimit::max(BODY_BYTES_MAX)).with_state(surface);
    Ok((routes, document))
}

/// Answers a method that the path has not.
pub(crate) async fn wrong_method() -> Fault {
    Fault::new(METHOD_NOT_ALLOWED, "the path has no operation of this method")
}

/// Answers a request for nothing, in the protocol of its client.
pub(crate) async fn unknown(headers: HeaderMap) -> Response {
    let fault = Fault::new(UNSUPPORTED, "no operation has this path");
    let kind = headers.get(header::CONTENT_TYPE).and_then(|it| it.to_str().ok());
    if kind.is_some_and(|kind| kind.starts_with("application/grpc")) {
        return tonic::Status::from(fault).into_http::<axum::body::Body>();
    }
    fault.into_response()
}

/// Explains a problem
#[utoipa::path(
    get, path = "/problems/{slug}", operation_id = "problem", tag = "Pages",
    params(("slug" = String, Path, description = "Last part of the `type` of a problem document.")),
    responses(
        (
            status = 200, description = "The cause, and the way out.",
            body = String, content_type = MARKDOWN
        ),
        PageProblems,
    )
)]
async fn problem(SlugPath(slug): SlugPath) -> Result<Response, Fault> {
    match problems::page(&slug) {
        Some(page) => Ok(([(header::CONTENT_TYPE, MARKDOWN)], page).into_response()),
        None => Err(Fault::new(UNSUPPORTED, "there is no such problem")),
    }
}

/// Returns the protocol of gRPC
#[utoipa::path(
    get, path = "/duramen.proto", operation_id = "protocol", tag = "Pages",
    responses((status = 200, description = "The protocol's file.", body = String, content_type = "text/plain"))
)]
async fn protocol() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "text/plain")], PROTO)
}

/// Returns this document
#[utoipa::path(
    get, path = "/openapi.json", operation_id = "document", tag = "Pages",
    responses((status = 200, description = "The document.", body = Object, content_type = "application/json"))
)]
async fn document(State(surface): State<Arc<Surface>>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], surface.document.clone())
}

/// Appends records, all or none, as one entry
///
/// A body that is neither JSON nor protobuf is the value of one record, and headers carry the rest. Each header
/// `duramen-header-NAME` becomes a header NAME of the record.
#[utoipa::path(
    post, path = "/v1/topics/{topic}/partitions/{partition}/records", operation_id = "Append", tag = "Logs",
    params(
        LogPath,
        (
            "duramen-if-last" = Option<String>, Header,
            description = "Position of the log's last record, or `none` for a log that has to be empty.",
            pattern = r"^(none|[0-9]+\.(-1|[0-9]+)\.[0-9]+)$",
        ),
        (
            "duramen-fence" = Option<String>, Header,
            description = "Token that has to be the log's fence.",
            max_length = 64,
        ),
        ("duramen-key" = Option<String>, Header, description = "Key of the record."),
        (
            "duramen-session" = Option<String>, Header,
            description = "Id and epoch of a session, with a dot between them.",
            pattern = r"^[0-9]+\.[0-9]+$",
        ),
        (
            "duramen-sequence" = Option<i32>, Header,
            description = "Number of records that the session appended to this log before.",
            minimum = 0,
        ),
        (
            "duramen-id" = Option<String>, Header,
            description = "The writer's name for the record. With a guard the same request may be sent again: it is taken once.",
            min_length = 1, max_length = 64,
        ),
    ),
    request_body(content(
        (json::Append = "application/json"),
        (openapi::Binary = "application/x-protobuf"),
        (openapi::Binary = "application/octet-stream"),
    )),
    responses(
        (
            status = 200, description = "The positions of the records.",
            content((json::Appended = "application/json"), (openapi::Binary = "application/x-protobuf"))
        ),
        AppendProblems,
    )
)]
async fn append(
    State(surface): State<Arc<Surface>>,
    client: Client,
    path: LogPath,
    body: Body,
) -> Result<Response, Fault> {
    let request = match body.form {
        Form::Json => body.json::<json::Append>()?.message(path.topic, path.partition)?,
        Form::Protobuf => {
            let LogPath { topic, partition } = path;
            proto::AppendRequest { topic, partition, ..body.protobuf()? }
        }
        Form::Other => body.one_record(path)?,
    };
    let answer = surface.logs.append(&client.origin, request).await?;
    Ok(client.answer(StatusCode::OK, answer, json::Appended::from))
}

/// Tells the ends of a log, its fence and its pointer, as a majority confirms them
#[utoipa::path(
    get, path = "/v1/topics/{topic}/partitions/{partition}", operation_id = "Tail", tag = "Logs",
    params(LogPath),
    responses(
        (
            status = 200, description = "The ends.",
            content((json::Tail = "application/json"), (openapi::Binary = "application/x-protobuf"))
        ),
        TailProblems,
    )
)]
async fn tail(
    State(surface): State<Arc<Surface>>,
    client: Client,
    LogPath { topic, partition }: LogPath,
) -> Result<Response, Fault> {
    let request = proto::TailRequest { topic, partition };
    let answer = surface.logs.tail(&client.origin, request).await?;
    Ok(client.answer(StatusCode::OK, answer, json::Tail::from))
}

/// Removes the first records, and keeps a pointer to what they led to, in the same entry
#[utoipa::path(
    post, path = "/v1/topics/{topic}/partitions/{partition}/truncate", operation_id = "Truncate", tag = "Logs",
    params(LogPath),
    request_body(content((json::Truncate = "application/json"), (openapi::Binary = "application/x-protobuf"))),
    responses(
        (
            status = 200, description = "The ends afterwards.",
            content((json::Tail = "application/json"), (openapi::Binary = "application/x-protobuf"))
        ),
        ControlProblems,
    )
)]
async fn truncate(
    State(surface): State<Arc<Surface>>,
    client: Client,
    LogPath { topic, partition }: LogPath,
    body: Body,
) -> Result<Response, Fault> {
    let request = match body.form {
        Form::Protobuf => proto::TruncateRequest { topic, partition, ..body.protobuf()? },
        Form::Json | Form::Other => body.json::<json::Truncate>()?.message(topic, partition)?,
    };
    let answer = surface.logs.truncate(&client.origin, request).await?;
    Ok(client.answer(StatusCode::OK, answer, json::Tail::from))
}

/// Sets the token that appends have to carry if they carry one
#[utoipa::path(
    put, path = "/v1/topics/{topic}/partitions/{partition}/fence", operation_id = "Fence", tag = "Logs",
    params(LogPath),
    request_body(content((json::Fence = "application/json"), (openapi::Binary = "application/x-protobuf"))),
    responses(
        (
            status = 200, description = "The ends afterwards.",
            content((json::Tail = "application/json"), (openapi::Binary = "application/x-protobuf"))
        ),
        ControlProblems,
    )
)]
async fn fence(
    State(surface): State<Arc<Surface>>,
    client: Client,
    LogPath { topic, partition }: LogPath,
    body: Body,
) -> Result<Response, Fault> {
    let request = match body.form {
        Form::Protobuf => proto::FenceRequest { topic, partition, ..body.protobuf()? },
        Form::Json | Form::Other => body.json::<json::Fence>()?.message(topic, partition),
    };
    let answer = surface.logs.fence(&client.origin, request).await?;
    Ok(client.answer(StatusCode::OK, answer, json::Tail::from))
}

/// Opens a session, with which appends that are sent again are taken once
#[utoipa::path(
    post, path = "/v1/sessions", operation_id = "OpenSession", tag = "Logs",
    request_body(content(
        (json::OpenSession = "application/json"),
        (openapi::Binary = "application/x-protobuf"),
    )),
    responses(
        (
            status = 201, description = "The session.",
            content((json::Session = "application/json"), (openapi::Binary = "application/x-protobuf"))
        ),
        SessionProblems,
    )
)]
async fn open_session(
    State(surface): State<Arc<Surface>>,
    client: Client,
    body: Body,
) -> Result<Response, Fault> {
    let request = match body.form {
        Form::Protobuf => body.protobuf()?,
        Form::Json | Form::Other => {
            let json::OpenSession { name } = body.json()?;
            proto::OpenSessionRequest { name }
        }
    };
    let answer = surface.logs.open_session(&client.origin, request).await?;
    Ok(client.answer(StatusCode::CREATED, answer, json::Session::from))
}

/// Parameters of a read.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
struct ReadQuery {
    /// `begin`, `end`, or an offset.
    #[param(pattern = "^(begin|end|[0-9]+)$")]
    from: Option<String>,
    /// Position of the last record that the reader has.
    #[param(value_type = Option<openapi::Position>)]
    after: Option<String>,
    /// Most records: 1 to 1,000 of a page, 100 by default; an event stream has no bound by default.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u64>,
    /// Size of one page, about, in bytes; 0 for 1 MiB.
    #[param(maximum = 16_777_216)]
    bytes: u32,
    /// Longest wait for more at the end of the log, such as 30s or 500ms; at most 60s.
    #[param(pattern = "^([1-5]?[0-9]s|[0-9]{1,4}ms)$")]
    wait: Option<String>,
    /// `latest` shows all that was acknowledged before the call; `any_replica` what the node has, which may be less.
    #[param(pattern = "^(latest|any_replica)$")]
    consistency: Option<String>,
    /// `fail` where the wanted records are gone, or `skip` them.
    #[param(pattern = "^(fail|skip)$")]
    on_trimmed: Option<String>,
    /// Expression of CEL that is true of the wanted records, such as `json.level == "error"`.
    #[param(max_length = 4096)]
    filter: String,
    /// Expressions of CEL by name, as a JSON object, whose results are returned instead of keys and values.
    #[param(value_type = Option<String>)]
    fields: Option<String>,
    /// `fail` where an expression fails on a record, or `skip` the record.
    #[param(pattern = "^(fail|skip)$")]
    on_error: Option<String>,
    /// Form of keys and values.
    #[serde(rename = "as")]
    #[param(inline)]
    how: As,
}

impl ReadQuery {
    fn message(self, path: LogPath, resume: Option<&str>) -> Result<proto::ReadRequest, Fault> {
        use proto::read_request::Start;
        let mut errors = Vec::new();
        let start = match (resume, self.from.as_deref(), self.after.as_deref()) {
            (_, Some(_), Some(_)) => {
                errors.push(("after", "there is a `from` already".to_owned()));
                None
            }
            (Some(resume), ..) if resume.parse::<i64>().is_ok() => {
                resume.parse().ok().map(Start::From)
            }
            (_, None | Some("begin"), None) | (_, None, Some("begin")) => None,
            (_, Some("end"), None) | (_, None, Some("end")) => Some(Start::End(true)),
            (_, Some(offset), None) => {
                let offset = offset.parse().ok();
                if offset.is_none() {
                    errors.push(("from", "it is begin, end, or an offset".to_owned()));
                }
                offset.map(Start::From)
            }
            (_, None, Some(text)) => Some(Start::After(json::position("after", text)?)),
        };
        let wished = wishes!(self).read(&mut errors);
        if !errors.is_empty() {
            return Err(Fault::bad_request(&errors));
        }
        Ok(proto::ReadRequest {
            topic: path.topic,
            partition: path.partition,
            start,
            limit: self.limit.unwrap_or(0),
            bytes: self.bytes,
            wait_ms: wished.wait_ms,
            consistency: wished.consistency.into(),
            skip_trimmed: wished.skip_trimmed,
            filter: self.filter,
            fields: wished.fields,
            skip_failed: wished.skip_failed,
            ..proto::ReadRequest::default()
        })
    }
}

/// Reads records in their order: a page, or an event stream that goes on until the client goes
#[utoipa::path(
    get, path = "/v1/topics/{topic}/partitions/{partition}/records", operation_id = "Read", tag = "Logs",
    params(
        LogPath,
        ReadQuery,
        (
            "last-event-id" = Option<String>, Header,
            description = "Offset at which an event stream goes on, instead of `from` or `after`.",
        ),
    ),
    responses(
        (
            status = 200, description = "A page; or with `Accept: text/event-stream` an event `record` for \
                each record, whose id is the offset to go on at, and an event `problem` at the end.",
            content((json::Page = "application/json"),
                (openapi::Binary = "application/x-protobuf"), (String = "text/event-stream"))
        ),
        ReadProblems,
    )
)]
async fn read(
    State(surface): State<Arc<Surface>>,
    client: Client,
    path: LogPath,
    Asked(query): Asked<ReadQuery>,
    headers: HeaderMap,
) -> Result<Response, Fault> {
    let how = query.how;
    if client.wants_events {
        let resume = headers.get("last-event-id").and_then(|it| it.to_str().ok());
        let follow = query.limit.is_none();
        let request = proto::ReadRequest { follow, ..query.message(path, resume)? };
        return events(&surface, &client, request, how).await;
    }
    let limit = query.limit.unwrap_or(PAGE_RECORDS);
    if !(1..=PAGE_RECORDS_MAX).contains(&limit) {
        let reason = format!("a page has 1 to {PAGE_RECORDS_MAX} records");
        return Err(Fault::bad_request(&[("limit", reason)]));
    }
    let request = proto::ReadRequest { limit, ..query.message(path, None)? };
    let from = request.start;
    let mut pages = surface.logs.read(&client.origin, request.clone()).await?;
    let page = match pages.next().await.transpose()? {
        Some(page) => page,
        None => empty(&surface, &client, &request, from).await?,
    };
    let more = page.next < page.stable;
    let json = |page: proto::ReadResponse| json::Page {
        records: page.records.into_iter().map(|it| json::record(it, how)).collect(),
        next: page.next,
        end: page.end,
        more,
        skipped: page.skipped,
    };
    Ok(client.answer(StatusCode::OK, page, json))
}

/// Makes the page of a reader that has everything: where to go on.
async fn empty(
    surface: &Surface,
    client: &Client,
    request: &proto::ReadRequest,
    from: Option<proto::read_request::Start>,
) -> Result<proto::ReadResponse, Fault> {
    use proto::read_request::Start;
    let (topic, partition) = (request.topic.clone(), request.partition);
    let tail = surface.logs.tail(&client.origin, proto::TailRequest { topic, partition }).await?;
    let next = match from {
        Some(Start::From(offset)) => offset,
        Some(Start::After(position)) => position.offset.saturating_add(1),
        Some(Start::End(_)) | None => tail.stable,
    };
    let end = tail.end.max(next);
    Ok(proto::ReadResponse { next, end, stable: next, ..proto::ReadResponse::default() })
}

/// Answers with an event for each record, until the client goes, or the records end where it wants so many.
async fn events(
    surface: &Surface,
    client: &Client,
    request: proto::ReadRequest,
    how: As,
) -> Result<Response, Fault> {
    let pages = surface.logs.read(&client.origin, request).await?;
    Ok(parts::events_of(pages, surface.queues.heartbeat, move |page| events_of(page, how)))
}

fn events_of(page: proto::ReadResponse, how: As) -> Vec<Event> {
    let event = |it: proto::ReadRecord| {
        let next = it.position.map_or(0, |position| position.offset + 1);
        let data = serde_json::to_string(&json::record(it, how)).unwrap_or_default();
        Event::default().id(next.to_string()).event("record").data(data)
    };
    if page.records.is_empty() {
        // A filter let nothing through: the reader stores how far it is.
        let data = serde_json::json!({ "next": page.next }).to_string();
        return vec![Event::default().id(page.next.to_string()).event("progress").data(data)];
    }
    page.records.into_iter().map(event).collect()
}

/// Creates a topic
#[utoipa::path(
    put, path = "/v1/topics/{topic}", operation_id = "CreateTopic", tag = "Topics",
    params(TopicPath),
    request_body(content((json::CreateTopic = "application/json"), (openapi::Binary = "application/x-protobuf"))),
    responses(
        (
            status = 201, description = "The topic.",
            content((json::Topic = "application/json"), (openapi::Binary = "application/x-protobuf"))
        ),
        CreateProblems,
    )
)]
async fn create_topic(
    State(surface): State<Arc<Surface>>,
    client: Client,
    TopicPath { topic: name }: TopicPath,
    body: Body,
) -> Result<Response, Fault> {
    let request = match body.form {
        Form::Protobuf => proto::CreateTopicRequest { name, ..body.protobuf()? },
        Form::Json | Form::Other => body.json::<json::CreateTopic>()?.message(name),
    };
    let answer = surface.topics.create(&client.origin.caller, request).await?;
    Ok(client.answer(StatusCode::CREATED, answer, json::Topic::from))
}

/// Describes a topic
#[utoipa::path(
    get, path = "/v1/topics/{topic}", operation_id = "GetTopic", tag = "Topics",
    params(TopicPath),
    responses(
        (
            status = 200, description = "The topic.",
            content((json::Topic = "application/json"), (openapi::Binary = "application/x-protobuf"))
        ),
        GetProblems,
    )
)]
async fn get_topic(
    State(surface): State<Arc<Surface>>,
    client: Client,
    TopicPath { topic: name }: TopicPath,
) -> Result<Response, Fault> {
    let request = proto::GetTopicRequest { name };
    let answer = surface.topics.get(&client.origin.caller, request).await?;
    Ok(client.answer(StatusCode::OK, answer, json::Topic::from))
}

/// Deletes a topic
#[utoipa::path(
    delete, path = "/v1/topics/{topic}", operation_id = "DeleteTopic", tag = "Topics",
    params(TopicPath),
    responses((status = 204, description = "The topic is gone."), DeleteProblems)
)]
async fn delete_topic(
    State(surface): State<Arc<Surface>>,
    client: Client,
    TopicPath { topic: name }: TopicPath,
) -> Result<Response, Fault> {
    let request = proto::DeleteTopicRequest { name };
    surface.topics.delete(&client.origin.caller, request).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Parameters of a list of topics.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
struct ListQuery {
    /// Beginning of the names.
    prefix: String,
    /// The last name of the page before.
    after: String,
    /// Most topics of the page; 0 for 1,000.
    #[param(maximum = 1000)]
    limit: u32,
}

/// Lists topics by their names
#[utoipa::path(
    get, path = "/v1/topics", operation_id = "ListTopics", tag = "Topics",
    params(ListQuery),
    responses(
        (
            status = 200, description = "A page of topics.",
            content((json::Topics = "application/json"), (openapi::Binary = "application/x-protobuf"))
        ),
        ListProblems,
    )
)]
async fn list_topics(
    State(surface): State<Arc<Surface>>,
    client: Client,
    Asked(query): Asked<ListQuery>,
) -> Result<Response, Fault> {
    let ListQuery { prefix, after, limit } = query;
    let request = proto::ListTopicsRequest { prefix, after, limit };
    let answer = surface.topics.list(&client.origin.caller, request).await?;
    let json = |it: proto::ListTopicsResponse| json::Topics {
        topics: it.topics.into_iter().map(Into::into).collect(),
        more: it.more,
    };
    Ok(client.answer(StatusCode::OK, answer, json))
}
