//! # Room card: http
//!
//! Purpose:    `/metrics` for Prometheus, `/livez` for the supervisor that restarts us, `/readyz` for the balancer that
//!             sends clients here, and `/healthz` for people.
//! Owns:       these answers.
//! Interface:  [`router`]. `native::listen` serves it on a port of its own, too.
//! Invariants: nothing here can hold up a client of the log: the node counts for a scrape in parts.
//! Never:      administration.
//! Tests:      `tests/` asks a real server.
//! Start at:   [`router`].

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::sync::mpsc::unbounded_channel;
use tokio::time::{Instant, timeout_at};

use super::health::Health;
use super::metrics::{Draft, Metrics};
use super::threads::{Input, ToNode};

/// Longest time that a scrape waits for a census. The default time limit of Prometheus is 10 s.
const CENSUS_MAX: Duration = Duration::from_secs(2);

/// Sources of the answers.
#[derive(Clone, Debug)]
pub struct Sources {
    /// For `/metrics`.
    pub metrics: Arc<Metrics>,
    /// Source of the other answers.
    pub health: Arc<Health>,
    /// The way to the node, which counts partitions and groups for a scrape.
    pub node: ToNode,
}

/// Returns the routes of the answers.
pub fn router(sources: Sources) -> Router {
    Router::new()
        .route("/metrics", get(metrics))
        .route("/livez", get(livez))
        .route("/readyz", get(readyz))
        .route("/healthz", get(healthz))
        .with_state(sources)
}

/// Has the node count partitions and groups, unless it just did. A node that is slow, or does not run yet, leaves the
/// last counts.
async fn count(sources: &Sources) {
    let tallies = &sources.metrics.tallies;
    let Some(turn) = tallies.begin().await else { return };
    let (sender, mut rows) = unbounded_channel();
    sources.node.push(Input::Census(sender));
    let (until, mut draft) = (Instant::now() + CENSUS_MAX, Draft::default());
    while let Ok(Some(part)) = timeout_at(until, rows.recv()).await {
        match part {
            Some(part) => draft.take(part),
            None => return tallies.finish(draft, turn),
        }
    }
    turn.give_up();
}

async fn metrics(State(sources): State<Sources>) -> Response {
    count(&sources).await;
    // The files of /proc, and of the data directory, are read on a thread that may wait.
    match tokio::task::spawn_blocking(move || sources.metrics.encode()).await {
        Ok(Ok(text)) => {
            let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            ([(header::CONTENT_TYPE, kind)], text).into_response()
        }
        Ok(Err(_)) | Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

async fn livez(State(sources): State<Sources>) -> Response {
    verdict("not alive", &sources.health.stuck())
}

async fn readyz(State(sources): State<Sources>) -> Response {
    verdict("not ready", &sources.health.not_ready())
}

async fn healthz(State(sources): State<Sources>) -> Response {
    verdict("not healthy", &sources.health.problems())
}

fn verdict(title: &str, problems: &[String]) -> Response {
    if problems.is_empty() {
        return "ok\n".into_response();
    }
    // A problem document as of RFC 9457, small enough to write by hand.
    let detail = escape(&problems.join("; "));
    let body = format!("{{\"title\":\"{title}\",\"status\":503,\"detail\":\"{detail}\"}}\n");
    let kind = [(header::CONTENT_TYPE, "application/problem+json")];
    (StatusCode::SERVICE_UNAVAILABLE, kind, body).into_response()
}

/// Escapes our own sentences for a JSON string.
fn escape(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"")
}
