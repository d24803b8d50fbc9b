//! The document of the HTTP surface, `OpenAPI` 3.1: made from the routes, the types of their bodies, and the problems.

use std::borrow::Cow;
use std::collections::BTreeMap;

use utoipa::openapi::content::ContentBuilder;
use utoipa::openapi::header::HeaderBuilder;
use utoipa::openapi::path::{HttpMethod, OperationBuilder, PathItem, PathsBuilder};
use utoipa::openapi::response::{Response, ResponseBuilder};
use utoipa::openapi::schema::{
    AllOfBuilder, ComponentsBuilder, KnownFormat, Object, ObjectBuilder, Schema, SchemaFormat, Type,
};
use utoipa::openapi::{InfoBuilder, License, OpenApi, OpenApiBuilder, Ref, RefOr, Required};
use utoipa::{IntoResponses, PartialSchema, ToSchema};

use super::problems::{
    BAD_REQUEST, BUSY, DAMAGED, DISK_FULL, FENCED, FILTER_FAILED, FILTER_INVALID, KINDS, Kind,
    LAST_MISMATCH, NO_LEADER, NOT_A_QUEUE_TOPIC, NOT_A_SHARE_GROUP, NOT_AUTHORIZED,
    NOT_ENOUGH_REPLICAS, OUTCOME_UNKNOWN, POSITION_DIVERGED, SEQUENCE_GAP, SESSION_EXPIRED,
    SESSION_FENCED, THROTTLED, TOO_LARGE, TOPIC_EXISTS, TRIMMED, UNAUTHENTICATED, UNKNOWN_ELEMENT,
    UNKNOWN_TOPIC, UNSUPPORTED, VERSION_MISMATCH,
};

const ABOUT: &str = "\
Logs with one order for all their records, each of them a partition of a Kafka topic. gRPC on the same port has \
the same operations, and `/duramen.proto` describes them.

`Content-Type: application/x-protobuf` and `Accept: application/x-protobuf` use the protocol's messages instead \
of JSON, by the operation's name: `AppendRequest` for `Append`, and so on. A member that JSON has not is refused.

A failure answers `application/problem+json`. A path that is not here answers 404 with `/problems/unsupported`, and a \
method that its path has not answers 405 with `/problems/method-not-allowed`.";

/// Problem documents by the operations that may answer with them. Each asks its client who it is, where the port does.
macro_rules! problems {
    ($($(#[$doc:meta])* $name:ident: $($kind:ident)*;)*) => {
        $(
            $(#[$doc])*
            pub(super) enum $name {}

            impl IntoResponses for $name {
                fn responses() -> BTreeMap<String, RefOr<Response>> {
                    documents(&[UNAUTHENTICATED, $($kind),*])
                }
            }
        )*
    };
}

problems! {
    /// Problems of an append.
    AppendProblems: BAD_REQUEST NOT_AUTHORIZED UNKNOWN_TOPIC LAST_MISMATCH FENCED SEQUENCE_GAP SESSION_EXPIRED
        SESSION_FENCED TOO_LARGE THROTTLED BUSY NOT_ENOUGH_REPLICAS DISK_FULL DAMAGED NO_LEADER OUTCOME_UNKNOWN;
    /// Problems of a read.
    ReadProblems: BAD_REQUEST NOT_AUTHORIZED UNKNOWN_TOPIC TRIMMED POSITION_DIVERGED FILTER_INVALID FILTER_FAILED BUSY
        DAMAGED NO_LEADER;
    /// Problems of a question about the ends of a log.
    TailProblems: BAD_REQUEST NOT_AUTHORIZED UNKNOWN_TOPIC BUSY DAMAGED NO_LEADER;
    /// Problems of a truncation, or of a change of the fence.
    ControlProblems: BAD_REQUEST NOT_AUTHORIZED UNKNOWN_TOPIC FENCED LAST_MISMATCH TOO_LARGE BUSY NOT_ENOUGH_REPLICAS
        DISK_FULL DAMAGED NO_LEADER OUTCOME_UNKNOWN;
    /// Problems of an append to a queue.
    EnqueueProblems: BAD_REQUEST NOT_AUTHORIZED UNKNOWN_TOPIC NOT_A_QUEUE_TOPIC LAST_MISMATCH FENCED SEQUENCE_GAP
        SESSION_EXPIRED SESSION_FENCED TOO_LARGE THROTTLED BUSY NOT_ENOUGH_REPLICAS DISK_FULL DAMAGED NO_LEADER
        OUTCOME_UNKNOWN;
    /// Problems of a read of a queue.
    RetrieveProblems: BAD_REQUEST NOT_AUTHORIZED UNKNOWN_TOPIC NOT_A_QUEUE_TOPIC TRIMMED POSITION_DIVERGED
        FILTER_INVALID FILTER_FAILED THROTTLED BUSY DAMAGED NO_LEADER;
    /// Problems of a read of one element.
    ElementProblems: BAD_REQUEST NOT_AUTHORIZED UNKNOWN_TOPIC UNKNOWN_ELEMENT NOT_A_QUEUE_TOPIC THROTTLED BUSY DAMAGED
        NO_LEADER;
    /// Problems of an edit of a queue.
    EditProblems: BAD_REQUEST NOT_AUTHORIZED UNKNOWN_TOPIC NOT_A_QUEUE_TOPIC FENCED POSITION_DIVERGED TOO_LARGE BUSY
        NOT_ENOUGH_REPLICAS DISK_FULL DAMAGED NO_LEADER OUTCOME_UNKNOWN;
    /// Problems of a replacement of an element.
    ReplaceProblems: BAD_REQUEST NOT_AUTHORIZED UNKNOWN_TOPIC UNKNOWN_ELEMENT NOT_A_QUEUE_TOPIC VERSION_MISMATCH FENCED
        POSITION_DIVERGED TOO_LARGE THROTTLED BUSY NOT_ENOUGH_REPLICAS DISK_FULL DAMAGED NO_LEADER OUTCOME_UNKNOWN;
    /// Problems of a rewrite of a queue.
    RewriteProblems: BAD_REQUEST NOT_AUTHORIZED UNKNOWN_TOPIC NOT_A_QUEUE_TOPIC FENCED POSITION_DIVERGED TOO_LARGE
        THROTTLED BUSY NOT_ENOUGH_REPLICAS DISK_FULL DAMAGED NO_LEADER OUTCOME_UNKNOWN;
    /// Problems of a question about queues.
    QueueProblems: BAD_REQUEST NOT_AUTHORIZED UNKNOWN_TOPIC NOT_A_QUEUE_TOPIC BUSY DAMAGED NO_LEADER;
    /// Problems of a lease.
    LeaseProblems: BAD_REQUEST NOT_AUTHORIZED UNKNOWN_TOPIC NOT_A_SHARE_GROUP THROTTLED DAMAGED NO_LEADER;
    /// Problems of a settlement.
    SettleProblems: BAD_REQUEST NOT_AUTHORIZED UNKNOWN_TOPIC DAMAGED NO_LEADER OUTCOME_UNKNOWN;
    /// Problems of dead letters that go back.
    RedriveProblems: BAD_REQUEST NOT_AUTHORIZED UNKNOWN_TOPIC NOT_A_SHARE_GROUP TOO_LARGE THROTTLED BUSY
        NOT_ENOUGH_REPLICAS DISK_FULL DAMAGED NO_LEADER OUTCOME_UNKNOWN;
    /// Problems of a new session.
    SessionProblems: BAD_REQUEST NOT_AUTHORIZED TOO_LARGE NO_LEADER OUTCOME_UNKNOWN;
    /// Problems of a new topic.
    CreateProblems: BAD_REQUEST NOT_AUTHORIZED UNKNOWN_TOPIC TOPIC_EXISTS TOO_LARGE DISK_FULL NO_LEADER OUTCOME_UNKNOWN;
    /// Problems of a question about a topic.
    GetProblems: BAD_REQUEST NOT_AUTHORIZED UNKNOWN_TOPIC NO_LEADER;
    /// Problems of a list of topics.
    ListProblems: BAD_REQUEST NO_LEADER;
    /// Problems of the removal of a topic.
    DeleteProblems: BAD_REQUEST NOT_AUTHORIZED UNKNOWN_TOPIC NO_LEADER OUTCOME_UNKNOWN;
    /// Problems of a page about a problem.
    PageProblems: BAD_REQUEST UNSUPPORTED;
}

fn address(kind: &Kind) -> String {
    format!("/problems/{}", kind.slug)
}

/// Describes the problem documents of these kinds, one answer for each status.
fn documents(kinds: &[Kind]) -> BTreeMap<String, RefOr<Response>> {
    let mut by_status: BTreeMap<u16, Vec<&Kind>> = BTreeMap::new();
    for kind in kinds {
        by_status.entry(kind.status).or_default().push(kind);
    }
    let answer = |(status, kinds): (u16, Vec<&Kind>)| {
        let lines =
            kinds.iter().map(|kind| format!("`{}`: {}. {}", kind.slug, kind.title, kind.page));
        let text = lines.collect::<Vec<_>>().join("\n\n");
        let here = string().enum_values(Some(kinds.iter().map(|kind| address(kind)))).build();
        let here = ObjectBuilder::new().property("type", here);
        let schema = AllOfBuilder::new().item(Ref::from_schema_name("Problem")).item(here);
        let content = ContentBuilder::new().schema(Some(Schema::from(schema.build()))).build();
        let mut answer =
            ResponseBuilder::new().description(text).content("application/problem+json", content);
        if kinds.iter().any(|kind| kind.may_pass) {
            let seconds = ObjectBuilder::new().schema_type(Type::Integer).minimum(Some(0));
            let header = HeaderBuilder::new().schema(Some(seconds.build()));
            let text = "Seconds after which the same request may succeed.";
            answer = answer.header("retry-after", header.description(Some(text)).build());
        }
        (status.to_string(), RefOr::T(answer.build()))
    };
    by_status.into_iter().map(answer).collect()
}

fn string() -> ObjectBuilder {
    ObjectBuilder::new().schema_type(Type::String)
}

/// Describes the members of every problem document.
fn problem() -> Schema {
    let integer = || ObjectBuilder::new().schema_type(Type::Integer);
    let text = |text: &str| string().description(Some(text.to_owned()));
    let wrong = ObjectBuilder::new()
        .property("field", string())
        .property("reason", string())
        .required("field")
        .required("reason");
    let pointer = ObjectBuilder::new().property("uri", string()).required("uri");
    let object = ObjectBuilder::new()
        .description(Some("Problem document (RFC 9457); `type` leads to a page about its kind."))
        .property("type", string().enum_values(Some(KINDS.iter().map(address))))
        .property("title", string())
        .property("status", integer().minimum(Some(400)).maximum(Some(599)))
        .property("detail", string())
        .property("errors", utoipa::openapi::schema::Array::new(wrong))
        .property("last", text("The last position of the log or queue, or `none`."))
        .property("first", integer().description(Some("The first offset there is.")))
        .property("pointer", pointer.description(Some("Place of what the removed records led to.")))
        .property("diverged_at", integer().description(Some("Offset of the other history.")))
        .property("field", text("Field of the expression."))
        .property("at", text("Line and column, with a colon between them."))
        .property("position", text("Position of the record."))
        .property("limit", integer().description(Some("The bound, in bytes.")))
        .property("version", integer().description(Some("Version of the element's content.")))
        .property("expected", integer().description(Some("The sequence that the log wants.")))
        .property("why", text("What waits."))
        .required("type")
        .required("title")
        .required("status")
        .required("detail");
    object.build().into()
}

/// Position of a record in text.
pub(super) enum Position {}

impl PartialSchema for Position {
    fn schema() -> RefOr<Schema> {
        let text = "Place of a record: term, entry and offset. An entry of -1 is not known.";
        let schema = string().pattern(Some(r"^[0-9]+\.(-1|[0-9]+)\.[0-9]+$"));
        schema.description(Some(text)).examples(["7.4711.4713"]).build().into()
    }
}

impl ToSchema for Position {
    fn name() -> Cow<'static, str> {
        "Position".into()
    }
}

/// Bytes: a message of the protocol, or the value of a record.
pub(super) enum Binary {}

impl PartialSchema for Binary {
    fn schema() -> RefOr<Schema> {
        string().format(Some(SchemaFormat::KnownFormat(KnownFormat::Binary))).build().into()
    }
}

impl ToSchema for Binary {
    fn name() -> Cow<'static, str> {
        "Binary".into()
    }
}

/// A page of text, or a problem document of a health question, in the form of the port `--http`.
fn answer(text: &str, form: &str, schema: Object) -> Response {
    let content = ContentBuilder::new().schema(Some(schema)).build();
    ResponseBuilder::new().description(text).content(form, content).build()
}

/// Describes what the port of metrics and health serves here, too.
fn of_watchers() -> PathsBuilder {
    let metrics = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    let plain = "text/plain; charset=utf-8";
    let rows = [
        ("/metrics", "All metrics, for Prometheus.", metrics),
        ("/livez", "Whether the process has to be restarted.", plain),
        ("/readyz", "Whether clients may be sent here.", plain),
        ("/healthz", "Whether anything is wrong, for people.", plain),
    ];
    rows.into_iter().fold(PathsBuilder::new(), |paths, (path, text, form)| {
        let mut operation = OperationBuilder::new()
            .operation_id(Some(&path[1..]))
            .summary(Some(text))
            .tag("Watching")
            .response("200", answer(text, form, string().build()));
        if form == plain {
            let verdict = ObjectBuilder::new()
                .property("title", string())
                .property("status", ObjectBuilder::new().schema_type(Type::Integer))
                .property("detail", string())
                .required("title")
                .required("status")
                .required("detail");
            let wrong =
                answer("`detail` says why not.", "application/problem+json", verdict.build());
            operation = operation.response("503", wrong);
        }
        paths.path(path, PathItem::new(HttpMethod::Get, operation))
    })
}

/// Says of the bodies that may be absent that they may.
pub(super) fn with_optional_bodies(mut document: OpenApi) -> OpenApi {
    for path in document.paths.paths.values_mut() {
        for operation in [&mut path.put, &mut path.post].into_iter().flatten() {
            let may_lack = matches!(
                operation.operation_id.as_deref(),
                Some("CreateTopic" | "Truncate" | "OpenSession")
            );
            if let (true, Some(RefOr::T(body))) = (may_lack, &mut operation.request_body) {
                body.required = Some(Required::False);
            }
        }
    }
    document
}

/// Returns the document before the routes are added.
pub(super) fn document() -> OpenApi {
    let mut license = License::new("Apache-2.0");
    license.identifier = Some("Apache-2.0".to_owned());
    let info = InfoBuilder::new()
        .title("Duramen")
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some(ABOUT))
        .license(Some(license));
    OpenApiBuilder::new()
        .info(info)
        .paths(of_watchers())
        .components(Some(ComponentsBuilder::new().schema("Problem", problem()).build()))
        .build()
}
