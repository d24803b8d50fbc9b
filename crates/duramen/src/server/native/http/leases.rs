//! The operations of workers as HTTP.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;

use super::super::json::{self, As};
use super::super::openapi::{self, LeaseProblems, RedriveProblems, SettleProblems};
use super::super::problems::Fault;
use super::parts::{Body, Client, Form, GroupPath, Surface, TopicPath};
use crate::proto;

/// Leases records of a share group to a worker, or waits for the first one
///
/// A record that is not settled in time is leased again. The group comes to be with its first lease, and begins with
/// the first record that there is.
#[utoipa::path(
    post, path = "/v1/topics/{topic}/groups/{group}/lease", operation_id = "Lease", tag = "Leases",
    params(GroupPath),
    request_body(content(
        (json::Lease = "application/json"),
        (openapi::Binary = "application/x-protobuf"),
    )),
    responses(
        (
            status = 200, description = "The leases; none once the wait is over.",
            content((json::Leases = "application/json"), (openapi::Binary = "application/x-protobuf"))
        ),
        LeaseProblems,
    )
)]
pub(super) async fn lease(
    State(surface): State<Arc<Surface>>,
    client: Client,
    GroupPath { topic, group }: GroupPath,
    body: Body,
) -> Result<Response, Fault> {
    let (request, how) = match body.form {
        Form::Protobuf => (proto::LeaseRequest { topic, group, ..body.protobuf()? }, As::default()),
        Form::Json | Form::Other => body.json::<json::Lease>()?.message(topic, group),
    };
    let answer = surface.leases.lease(&client.origin, request).await?;
    Ok(client.answer(StatusCode::OK, answer, |it| json::Leases::of(it, how)))
}

/// Ends leases of a worker, or prolongs them
///
/// The answer comes when the decisions are durable.
#[utoipa::path(
    post, path = "/v1/topics/{topic}/groups/{group}/settle", operation_id = "Settle", tag = "Leases",
    params(GroupPath),
    request_body(content(
        (json::Settle = "application/json"),
        (openapi::Binary = "application/x-protobuf"),
    )),
    responses(
        (
            status = 200, description = "The leases that were not settled, with the problem of each.",
            content((json::Settled = "application/json"), (openapi::Binary = "application/x-protobuf"))
        ),
        SettleProblems,
    )
)]
pub(super) async fn settle(
    State(surface): State<Arc<Surface>>,
    client: Client,
    GroupPath { topic, group }: GroupPath,
    body: Body,
) -> Result<Response, Fault> {
    let request = match body.form {
        Form::Protobuf => proto::SettleRequest { topic, group, ..body.protobuf()? },
        Form::Json | Form::Other => body.json::<json::Settle>()?.message(topic, group),
    };
    let answer = surface.leases.settle(&client.origin, request).await?;
    Ok(client.answer(StatusCode::OK, answer, json::Settled::from))
}

/// Puts dead letters of a topic back into the topics that they come from
///
/// Each goes to its queue, or to the partition that it comes from. One that is put back while a node fails may be there
/// twice.
#[utoipa::path(
    post, path = "/v1/topics/{topic}/redrive", operation_id = "Redrive", tag = "Leases",
    params(TopicPath),
    request_body(content(
        (json::Redrive = "application/json"),
        (openapi::Binary = "application/x-protobuf"),
    )),
    responses(
        (
            status = 200, description = "The number of dead letters that went back.",
            content((json::Redriven = "application/json"), (openapi::Binary = "application/x-protobuf"))
        ),
        RedriveProblems,
    )
)]
pub(super) async fn redrive(
    State(surface): State<Arc<Surface>>,
    client: Client,
    TopicPath { topic }: TopicPath,
    body: Body,
) -> Result<Response, Fault> {
    let request = match body.form {
        Form::Protobuf => proto::RedriveRequest { topic, ..body.protobuf()? },
        Form::Json | Form::Other => body.json::<json::Redrive>()?.message(topic),
    };
    let answer = surface.leases.redrive(&client.origin, request).await?;
    Ok(client.answer(StatusCode::OK, answer, json::Redriven::from))
}
