//! Problems: why a call failed, in words, as RFC 9457 has them for HTTP and as `google.rpc.ErrorInfo` for gRPC.

use std::collections::HashMap;
use std::time::Duration;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use data_encoding::HEXLOWER;
use duramen_broker::native::{Pointer, Position, Problem};
use serde_json::{Map, Value, json};
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, FieldViolation, StatusExt};

use crate::proto;

/// Domain of the reasons in gRPC.
const DOMAIN: &str = "duramen";
/// Time after which a client may try again what may pass soon, if nothing tells a better one.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Kind of problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kind {
    /// Name in addresses and reasons; never changes.
    pub slug: &'static str,
    pub title: &'static str,
    pub status: u16,
    pub code: Code,
    /// True if the same request may succeed later.
    pub may_pass: bool,
    /// Text of the kind's page: the cause, and the way out.
    pub page: &'static str,
}

macro_rules! kinds {
    ($($name:ident $slug:literal $status:literal $code:ident $may_pass:literal $title:literal $page:literal;)*) => {
        $(pub(crate) const $name: Kind = Kind {
            slug: $slug,
            title: $title,
            status: $status,
            code: Code::$code,
            may_pass: $may_pass,
            page: $page,
        };)*

        /// All kinds.
        pub(crate) const KINDS: &[Kind] = &[$($name),*];
    };
}

kinds! {
    BAD_REQUEST "bad-request" 400 InvalidArgument false "The request is wrong"
        "`errors` names each field and what is wrong with it. The same request fails again.";
    UNAUTHENTICATED "unauthenticated" 401 Unauthenticated false "The client has to show who it is"
        "Send the header Authorization: Basic with a name and a password, or Bearer with a token; `WWW-Authenticate` says which. docs/security.md says more.";
    NOT_AUTHORIZED "not-authorized" 403 PermissionDenied false "The client may not do this"
        "An administrator has to give the client the right.";
    UNKNOWN_TOPIC "unknown-topic" 404 NotFound false "There is no such topic or partition"
        "Create the topic with PUT /v1/topics/NAME, or mind its number of partitions.";
    TOPIC_EXISTS "topic-exists" 409 AlreadyExists false "There is such a topic already"
        "Its partitions or settings are others than the request wants.";
    UNKNOWN_ELEMENT "unknown-element" 404 NotFound false "The queue has no such element"
        "It was never there, somebody deleted or trimmed it, or retention has removed it.";
    VERSION_MISMATCH "version-mismatch" 412 Aborted false "The element has another content"
        "Somebody replaced it meanwhile. `version` is that of its present content: read the element, then decide.";
    NOT_A_QUEUE_TOPIC "not-a-queue-topic" 409 FailedPrecondition false "The topic's keys are no queues"
        "Create a topic with the setting queue.enable=true; a topic that is there cannot become one.";
    LAST_MISMATCH "last-mismatch" 412 Aborted false "The log or queue does not end where the append expects"
        "Somebody appended meanwhile. `last` is the last position of the log, or of the queue, as a majority confirms: read up to it, then decide.";
    FENCED "fenced" 412 FailedPrecondition false "The log or queue has another fence"
        "Somebody else has taken it over with a token of its own. A writer that finds this stops.";
    SEQUENCE_GAP "sequence-gap" 409 OutOfRange false "Earlier records of the session are missing"
        "`session.sequence` is the number of records that the session appended to this log before; the log wants `expected`.";
    SESSION_EXPIRED "session-expired" 410 FailedPrecondition false "The log has forgotten the session"
        "Open a new session. The outcome of requests without an answer is unknown.";
    SESSION_FENCED "session-fenced" 410 FailedPrecondition false "A newer holder has opened the session"
        "The session belongs to the holder with the higher epoch.";
    TRIMMED "trimmed" 410 OutOfRange false "The wanted records are gone"
        "`first` is the first offset there is, `pointer` leads to what the removed records led to, if somebody left one.";
    POSITION_DIVERGED "position-diverged" 409 DataLoss false "The log has another history than the position"
        "The cluster lost what was behind `diverged_at`, and somebody decided to go on without it.";
    FILTER_INVALID "filter-invalid" 400 InvalidArgument false "The expression cannot be used"
        "`field` names the expression, `at` the line and column where it could not be read. docs/native-api.md lists the variables, functions and bounds.";
    FILTER_FAILED "filter-failed" 422 InvalidArgument false "The expression fails on a record"
        "`position` is the record's. Guard the expression with has(), or leave such records out with on_error=skip.";
    TOO_LARGE "too-large" 413 InvalidArgument false "The request is too large"
        "`limit` is the bound in bytes. The topic's setting max.message.bytes bounds one append.";
    BUSY "busy" 503 Unavailable true "Too much waits"
        "`why` says for what. Nothing was appended; send the same request again later.";
    THROTTLED "throttled" 429 ResourceExhausted true "The client exceeds its quota"
        "`rest_ms` says for how long. Nothing was appended. An answer that is late by up to a second is the first sign.";
    NOT_ENOUGH_REPLICAS "not-enough-replicas" 503 Unavailable true "Too few replicas are in sync"
        "The topic's setting min.insync.replicas wants more. Nothing was appended.";
    DISK_FULL "disk-full" 503 Unavailable true "The disk is full"
        "Nothing was appended, and reads go on. Delete topics or records, or free space.";
    DAMAGED "damaged" 503 Unavailable true "The log cannot be read or written here"
        "The node repairs what it can from other replicas; its log says more.";
    NO_LEADER "no-leader" 503 Unavailable true "No node leads the log"
        "An election takes a moment, or no majority is there. Nothing was appended; send the same request again.";
    OUTCOME_UNKNOWN "outcome-unknown" 504 DeadlineExceeded false "The outcome is unknown"
        "The change may become durable or not. With a guard or a session the same request may be sent again; without, it may be done twice.";
    NOT_A_SHARE_GROUP "not-a-share-group" 409 FailedPrecondition false "The group is one of consumers"
        "Workers lease through share groups. Take another name for the group, or delete the group of consumers.";
    LEASE_LOST "lease-lost" 410 FailedPrecondition false "The worker does not have the lease"
        "Its time was over, it is settled, or the leader changed. Somebody else may have the record: do not settle it again.";
    METHOD_NOT_ALLOWED "method-not-allowed" 405 Unimplemented false "The path has no operation of this method"
        "The header Allow names the methods that it has. gRPC has no such problem.";
    UNSUPPORTED "unsupported" 404 Unimplemented false "There is no such operation"
        "/duramen.proto describes the operations that there are.";
}

fn text_of(position: Position) -> String {
    proto::Position::from(position).to_string()
}

/// Why a call failed.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Fault {
    pub kind: Kind,
    pub detail: String,
    /// Members of the problem document beside the standard ones.
    pub members: Map<String, Value>,
}

impl Fault {
    pub(crate) fn new(kind: Kind, detail: impl Into<String>) -> Self {
        Self { kind, detail: detail.into(), members: Map::new() }
    }

    pub(crate) fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.members.insert(name.to_owned(), value.into());
        self
    }

    /// Makes the problem of wrong fields, all at once.
    pub(crate) fn bad_request(errors: &[(&str, String)]) -> Self {
        let row = |(field, reason): &(&str, String)| json!({ "field": field, "reason": reason });
        let text = |(field, reason): &(&str, String)| format!("{field}: {reason}");
        let detail = errors.iter().map(text).collect::<Vec<_>>().join("; ");
        let rows: Vec<Value> = errors.iter().map(row).collect();
        Self::new(BAD_REQUEST, detail).with("errors", rows)
    }

    /// Makes the problem of too many bytes.
    pub(crate) fn too_large(limit: u64, detail: impl Into<String>) -> Self {
        Self::new(TOO_LARGE, detail).with("limit", limit)
    }

    /// Returns the time after which the same call may succeed, if it may.
    pub(crate) fn retry_after(&self) -> Option<Duration> {
        let rest = self.members.get("rest_ms").and_then(Value::as_u64).map(Duration::from_millis);
        self.kind.may_pass.then(|| rest.unwrap_or(RETRY_AFTER))
    }

    pub(crate) fn outcome_unknown(detail: impl Into<String>) -> Self {
        Self::new(OUTCOME_UNKNOWN, detail)
    }

    /// Returns the problem as one of a read, which changes nothing: no outcome of it is open.
    pub(crate) fn of_a_read(self) -> Self {
        if self.kind == OUTCOME_UNKNOWN { Self { kind: NO_LEADER, ..self } } else { self }
    }

    /// Makes the problem of a position that the log does not share.
    pub(crate) fn diverged(at: i64) -> Self {
        let detail = format!("the log's own history goes on from offset {at}");
        Self::new(POSITION_DIVERGED, detail).with("diverged_at", at)
    }

    /// Makes the problem of a reader that comes too late.
    pub(crate) fn trimmed(first: i64, pointer: Option<&Pointer>) -> Self {
        let detail = format!("what is there begins at offset {first}");
        let fault = Self::new(TRIMMED, detail).with("first", first);
        match pointer {
            Some(Pointer { uri, position, sha256, note }) => {
                let mut told = json!({ "uri": uri });
                let position = position.map(text_of);
                let sha256 = (!sha256.is_empty()).then(|| HEXLOWER.encode(sha256));
                let note = (!note.is_empty()).then(|| note.clone());
                for (name, text) in [("position", position), ("sha256", sha256), ("note", note)] {
                    if let Some(text) = text {
                        told[name] = text.into();
                    }
                }
                fault.with("pointer", told)
            }
            None => fault,
        }
    }

    /// Returns the problem document.
    pub(crate) fn document(&self) -> Value {
        let Kind { slug, title, status, .. } = self.kind;
        let mut document = self.members.clone();
        document.insert("type".to_owned(), format!("/problems/{slug}").into());
        document.insert("title".to_owned(), title.into());
        document.insert("status".to_owned(), status.into());
        document.insert("detail".to_owned(), self.detail.clone().into());
        document.into()
    }

    /// Reads the problem that another node answered with. A failure below gRPC leaves open what the node did.
    pub(crate) fn of_status(status: &Status) -> Self {
        let details = status.get_error_details();
        let detail = status.message();
        let fault = details.error_info().map(|it| Self::of_parts(&it.reason, detail, &it.metadata));
        fault.flatten().unwrap_or_else(|| Self::outcome_unknown(format!("another node: {detail}")))
    }

    fn of_parts(reason: &str, detail: &str, metadata: &HashMap<String, String>) -> Option<Self> {
        let kind = KINDS.iter().find(|kind| kind.slug == reason)?;
        let member = |(name, text): (&String, &String)| {
            let value = serde_json::from_str(text).unwrap_or_else(|_| text.clone().into());
            (name.clone(), value)
        };
        let members = metadata.iter().map(member).collect();
        Some(Self { kind: *kind, detail: detail.to_owned(), members })
    }

    fn metadata(&self) -> HashMap<String, String> {
        let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        self.members.iter().map(|(name, value)| (name.clone(), text(value))).collect()
    }
}

impl From<Fault> for proto::Problem {
    fn from(fault: Fault) -> Self {
        let metadata = fault.metadata();
        Self { reason: fault.kind.slug.to_owned(), detail: fault.detail, metadata }
    }
}

impl From<proto::Problem> for Fault {
    fn from(it: proto::Problem) -> Self {
        Self::of_parts(&it.reason, &it.detail, &it.metadata)
            .unwrap_or_else(|| Self::outcome_unknown(it.detail))
    }
}

impl From<Problem> for Fault {
    fn from(problem: Problem) -> Self {
        let text = |position: Option<Position>| position.map_or("none".to_owned(), text_of);
        match problem {
            Problem::BadRequest(field, reason) => Self::bad_request(&[(field, reason)]),
            Problem::NotAuthorized => Self::new(NOT_AUTHORIZED, "the client lacks the right"),
            Problem::UnknownTopic => {
                Self::new(UNKNOWN_TOPIC, "the cluster has no such topic or partition")
            }
            Problem::Elsewhere(id, _) => {
                let detail = format!("node {id} leads the log, and this call does not get there");
                Self::new(NO_LEADER, detail)
            }
            Problem::NoLeader => {
                Self::new(NO_LEADER, "no node leads the log, as far as this one knows")
            }
            Problem::LastMismatch(last) => {
                let last = text(last);
                Self::new(LAST_MISMATCH, format!("it ends with {last}")).with("last", last)
            }
            Problem::VersionMismatch(version) => {
                let detail = format!("the element's version is {version}");
                Self::new(VERSION_MISMATCH, detail).with("version", version)
            }
            Problem::UnknownElement => {
                Self::new(UNKNOWN_ELEMENT, "the queue has no element at the position")
            }
            Problem::Fenced => Self::new(FENCED, "the token is not the fence of the log or queue"),
            Problem::SequenceGap(expected) => {
                let detail = format!("the log expects the session's record {expected} next");
                Self::new(SEQUENCE_GAP, detail).with("expected", expected)
            }
            Problem::SessionExpired => {
                Self::new(SESSION_EXPIRED, "the log does not know the session any more")
            }
            Problem::SessionFenced => {
                Self::new(SESSION_FENCED, "the session was opened again, with a higher epoch")
            }
            Problem::NotAQueueTopic => Self::new(
                NOT_A_QUEUE_TOPIC,
                "queues are in topics that were created with queue.enable=true",
            ),
            Problem::NotAShareGroup => {
                Self::new(NOT_A_SHARE_GROUP, "a group of this name is one of consumers")
            }
            Problem::LeaseLost => Self::new(LEASE_LOST, "the worker does not have the lease"),
            Problem::Trimmed(first, pointer) => Self::trimmed(first, pointer.as_ref()),
            Problem::PositionDiverged(at) => Self::diverged(at),
            Problem::TooLarge(limit) => {
                Self::too_large(limit, format!("the topic takes at most {limit} bytes at once"))
            }
            Problem::NotEnoughReplicas => {
                Self::new(NOT_ENOUGH_REPLICAS, "fewer replicas are in sync than the topic wants")
            }
            Problem::DiskFull(text) => Self::new(DISK_FULL, text),
            Problem::Damaged => Self::new(DAMAGED, "the node cannot read or write the log"),
            Problem::Throttled(rest_ms) => {
                let detail = format!("the client has to rest for {rest_ms} ms");
                Self::new(THROTTLED, detail).with("rest_ms", rest_ms)
            }
            Problem::Busy(why) => Self::new(BUSY, why).with("why", why),
            Problem::OutcomeUnknown => {
                Self::outcome_unknown("the time was over, or the leader lost its leadership")
            }
        }
    }
}

impl From<Fault> for Status {
    fn from(fault: Fault) -> Self {
        let (metadata, retry_after) = (fault.metadata(), fault.retry_after());
        let Fault { kind, detail, members } = fault;
        let mut details = ErrorDetails::new();
        details.set_error_info(kind.slug, DOMAIN, metadata);
        if retry_after.is_some() {
            details.set_retry_info(retry_after);
        }
        if let Some(Value::Array(errors)) = members.get("errors") {
            let field = |error: &Value, name: &str| error[name].as_str().unwrap_or("").to_owned();
            let violation =
                |error: &Value| FieldViolation::new(field(error, "field"), field(error, "reason"));
            details.set_bad_request(errors.iter().map(violation).collect::<Vec<_>>());
        }
        Self::with_error_details(kind.code, detail, details)
    }
}

impl IntoResponse for Fault {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.kind.status).expect("the table has real ones");
        let kind = HeaderValue::from_static("application/problem+json");
        let body = format!("{}\n", self.document());
        let mut response = (status, [(header::CONTENT_TYPE, kind)], body).into_response();
        response.extensions_mut().insert(self.kind);
        if let Some(time) = self.retry_after() {
            let seconds = time.as_secs() + u64::from(time.subsec_nanos() > 0);
            let seconds = HeaderValue::from(seconds);
            response.headers_mut().insert(header::RETRY_AFTER, seconds);
        }
        response
    }
}

/// Returns the kind of problem that a status of gRPC tells.
pub(crate) fn kind_of(status: &Status) -> Option<Kind> {
    let info = status.get_details_error_info().filter(|info| info.domain == DOMAIN)?;
    KINDS.iter().find(|kind| kind.slug == info.reason).copied()
}

/// Returns the page of a kind, for people.
pub(crate) fn page(slug: &str) -> Option<String> {
    let kind = KINDS.iter().find(|kind| kind.slug == slug)?;
    let Kind { slug, title, status, code, may_pass, page } = kind;
    let again = if *may_pass { "The same request may succeed later." } else { "" };
    Some(format!("# {title}\n\nslug {slug} · HTTP {status} · gRPC {code:?}\n\n{page}\n{again}\n"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fmt::Write;
    use std::path::Path;

    use super::*;

    #[test]
    fn each_kind_has_a_name_of_its_own_a_real_status_and_a_page() {
        let names: BTreeMap<&str, Kind> = KINDS.iter().map(|kind| (kind.slug, *kind)).collect();
        assert_eq!(names.len(), KINDS.len());
        for kind in KINDS {
            assert!(StatusCode::from_u16(kind.status).is_ok_and(|it| it.as_u16() >= 400));
            assert!(page(kind.slug).is_some_and(|page| page.contains(kind.page)));
        }
    }

    #[test]
    fn the_guide_has_the_table_of_the_code() {
        let mut table =
            "| Slug | HTTP | gRPC | Cause, and the way out |\n|---|---|---|---|\n".to_owned();
        for Kind { slug, title, status, code, may_pass, page } in KINDS {
            let again = if *may_pass { " The same request may succeed later." } else { "" };
            let code = format!("{code:?}");
            writeln!(table, "| `{slug}` | {status} | {code} | {title}. {page}{again} |")
                .expect("memory");
        }
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/native-api.md");
        let guide = std::fs::read_to_string(&path).expect("the document is ours");
        let (head, rest) = guide.split_once("| Slug |").expect("the guide has the table");
        let (_, tail) = rest.split_once("\n\n").expect("a text follows the table");
        let wanted = format!("{head}{table}\n{tail}");
        if std::env::var_os("DURAMEN_WRITE_DOCS").is_some() {
            std::fs::write(&path, &wanted).expect("the document is ours");
        } else {
            assert_eq!(guide, wanted, "run with DURAMEN_WRITE_DOCS=1 to write docs/native-api.md");
        }
    }

    #[test]
    fn a_problem_survives_the_way_between_nodes() {
        let position = Position { term: 7, entry: 4711, offset: 4713 };
        let problems = [
            Problem::BadRequest("records", "there are none".to_owned()),
            Problem::LastMismatch(Some(position)),
            Problem::LastMismatch(None),
            Problem::PositionDiverged(12),
            Problem::TooLarge(100),
            Problem::SequenceGap(7),
            Problem::Busy("why not"),
            Problem::DiskFull("it is full".to_owned()),
            Problem::Fenced,
            Problem::VersionMismatch(4713),
            Problem::UnknownElement,
        ];
        for problem in problems {
            let fault = Fault::from(problem);
            assert_eq!(Fault::of_status(&Status::from(fault.clone())), fault);
            assert_eq!(Fault::from(proto::Problem::from(fault.clone())), fault);
        }
        let unknown = Fault::of_status(&Status::unavailable("gone"));
        assert_eq!(unknown.kind, OUTCOME_UNKNOWN);
        assert_eq!(unknown.of_a_read().kind, NO_LEADER);
    }
}
