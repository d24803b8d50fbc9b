//! # Room card: observing
//!
//! Purpose:    count the calls of the native API, and the time that they take, for the operator.
//! Owns:       [`Operations`]: which request is which operation; the layer that counts.
//! Interface:  [`observed`], [`Ending`].
//! Invariants: only names of operations and problems become labels, so they are few. A call is counted once, however it
//!             ends. Its time is that until its answer begins; an open stream has none.
//! Never:      the names of metrics (`server/metrics.rs`).
//! Tests:      `tests/native.rs` scrapes a real server.
//! Start at:   [`observed`].

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Instant;

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, Method, header};
use axum::middleware::Next;
use axum::response::Response;
use http_body::{Frame, SizeHint};
use prost::Message;
use prost_types::FileDescriptorSet;
use tonic::{Code, Status};
use utoipa::openapi::OpenApi;

use super::problems::{Kind, kind_of};
use crate::server::metrics::Metrics;

/// Package of the protocol's services.
const PACKAGE: &str = "duramen.v1";
/// Outcome of a call that did all that it should.
const DONE: &str = "ok";
/// Outcome of a call whose client went first, as that of a stream may.
const GONE: &str = "gone";
/// Outcome of a call that failed, and has no kind of problem: its bytes are no request.
const FAILED: &str = "failed";

/// The operations of both surfaces, and the metrics in which they are counted.
#[derive(Debug)]
pub(crate) struct Operations {
    metrics: Arc<Metrics>,
    /// By the paths of gRPC; true for a stream of answers.
    of_grpc: HashMap<String, (Arc<str>, bool)>,
    /// By the methods and routes of HTTP.
    of_http: HashMap<(Method, String), Arc<str>>,
}

impl Operations {
    /// Returns the operations of the protocol, and of the document of HTTP.
    pub(crate) fn of(document: &OpenApi, metrics: Arc<Metrics>) -> anyhow::Result<Self> {
        let mut of_grpc = HashMap::new();
        let files = FileDescriptorSet::decode(crate::proto::DESCRIPTORS)?;
        let files = files.file.iter().filter(|file| file.package() == PACKAGE);
        for service in files.flat_map(|file| &file.service) {
            for method in &service.method {
                let path = format!("/{PACKAGE}.{}/{}", service.name(), method.name());
                let name = format!("{}.{}", service.name(), method.name());
                of_grpc.insert(path, (name.into(), method.server_streaming()));
            }
        }
        let mut of_http = HashMap::new();
        for (path, item) in &document.paths.paths {
            let methods = [
                (Method::GET, &item.get),
                (Method::PUT, &item.put),
                (Method::POST, &item.post),
                (Method::DELETE, &item.delete),
            ];
            for (method, operation) in methods {
                let Some(operation) = operation.as_ref().filter(|_| path.starts_with("/v1/"))
                else {
                    continue;
                };
                let service = operation.tags.iter().flatten().next();
                if let (Some(service), Some(name)) = (service, &operation.operation_id) {
                    of_http.insert((method, path.clone()), format!("{service}.{name}").into());
                }
            }
        }
        Ok(Self { metrics, of_grpc, of_http })
    }

    /// Returns the operation of a request, and whether it is a stream in any case.
    fn find(&self, request: &Request) -> Option<(Arc<str>, bool)> {
        if let Some(found) = self.of_grpc.get(request.uri().path()) {
            return Some(found.clone());
        }
        let route = request.extensions().get::<MatchedPath>()?.as_str().to_owned();
        let name = self.of_http.get(&(request.method().clone(), route))?;
        Some((Arc::clone(name), false))
    }
}

/// A call under way.
struct Counted {
    operations: Arc<Operations>,
    name: Arc<str>,
    began: Instant,
    is_stream: bool,
    is_over: bool,
}

impl Counted {
    fn end(&mut self, outcome: &str) {
        if std::mem::replace(&mut self.is_over, true) {
            return;
        }
        let metrics = &self.operations.metrics.native;
        let time = (!self.is_stream).then(|| self.began.elapsed());
        metrics.count(&self.name, outcome, time);
        if self.is_stream {
            metrics.streams_of(&self.name).dec();
        }
    }

    fn begin_stream(&mut self) {
        self.is_stream = true;
        self.operations.metrics.native.streams_of(&self.name).inc();
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.end(GONE);
    }
}

/// The problem with which a stream of events ended, if it did.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ending(Arc<OnceLock<Kind>>);

impl Ending {
    /// Notes the problem.
    pub(crate) fn set(&self, kind: Kind) {
        // The first one ends the stream.
        let _ = self.0.set(kind);
    }
}

/// Counts a call, if it is one of an operation.
pub(crate) async fn observed(
    State(operations): State<Arc<Operations>>,
    request: Request,
    next: Next,
) -> Response {
    let Some((name, may_stream)) = operations.find(&request) else {
        return next.run(request).await;
    };
    let (began, is_stream, is_over) = (Instant::now(), false, false);
    let mut call = Counted { operations, name, began, is_stream, is_over };
    let response = next.run(request).await;
    let is_events = response
        .headers()
        .get(header::CONTENT_TYPE)
        .is_some_and(|it| it.as_bytes().starts_with(b"text/event-stream"));
    let outcome = outcome_of(&response);
    if outcome != DONE || !(may_stream || is_events) {
        call.end(outcome);
        return response;
    }
    call.begin_stream();
    let ending = response.extensions().get::<Ending>().cloned().unwrap_or_default();
    response.map(|body| Body::new(Observed { body, call, ending }))
}

/// Returns the outcome that the head of an answer tells.
fn outcome_of(response: &Response) -> &'static str {
    let extensions = response.extensions();
    if let Some(kind) = extensions.get::<Kind>() {
        return kind.slug;
    }
    match extensions.get::<Status>() {
        Some(status) => outcome_of_status(status),
        None if response.status().is_success() => DONE,
        None => FAILED,
    }
}

fn outcome_of_status(status: &Status) -> &'static str {
    match kind_of(status) {
        Some(kind) => kind.slug,
        None if status.code() == Code::Ok => DONE,
        None => FAILED,
    }
}

fn outcome_of_trailers(trailers: &HeaderMap) -> &'static str {
    Status::from_header_map(trailers).as_ref().map_or(DONE, outcome_of_status)
}

/// A stream whose end is counted.
struct Observed {
    body: Body,
    call: Counted,
    ending: Ending,
}

impl HttpBody for Observed {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let Self { body, call, ending } = self.get_mut();
        let frame = ready!(Pin::new(&mut *body).poll_frame(context));
        match &frame {
            Some(Ok(frame)) => {
                if let Some(trailers) = frame.trailers_ref() {
                    call.end(outcome_of_trailers(trailers));
                }
            }
            Some(Err(_)) => call.end(FAILED),
            None => call.end(ending.0.get().map_or(DONE, |kind| kind.slug)),
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
