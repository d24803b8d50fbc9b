//! `DescribeTransactions`, `ListTransactions`: the states of transactional ids.

use duramen_protocol::ErrorCode;
use duramen_protocol::messages::describe_transactions::TransactionState;
use duramen_protocol::messages::{
    DescribeTransactionsRequest, DescribeTransactionsResponse, ListTransactionsRequest,
    ListTransactionsResponse,
};
use regex::Regex;

use crate::access::{Operation, Resource};
use crate::node::Node;
use crate::session::RequestContext;
use crate::transactions::records::Transaction;

/// States that Kafka has names for. Two of them are never durable, and so never occur in an answer.
const STATES: [&str; 8] = [
    "Empty",
    "Ongoing",
    "PrepareCommit",
    "PrepareAbort",
    "CompleteCommit",
    "CompleteAbort",
    "Dead",
    "PrepareEpochFence",
];

fn may_describe(node: &Node, context: &RequestContext, id: &str) -> bool {
    node.core.access.may(context, Operation::Describe, Resource::TransactionalId(id))
}

pub(crate) fn answer(
    node: &Node,
    context: &RequestContext,
    request: &DescribeTransactionsRequest,
) -> DescribeTransactionsResponse {
    let one = |id: &String| {
        let found = match () {
            () if id.is_empty() => Err(ErrorCode::InvalidRequest),
            () if !may_describe(node, context, id) => {
                Err(ErrorCode::TransactionalIdAuthorizationFailed)
            }
            () => node.coordinators.transaction_coordinator(&node.core, id),
        };
        match found {
            Ok(coordinator) => {
                let mut told = coordinator.describe(id);
                let may = |topic: &str| {
                    node.core.access.may(context, Operation::Describe, Resource::Topic(topic))
                };
                told.topics.retain(|it| may(&it.topic));
                told
            }
            Err(code) => TransactionState {
                error_code: code.code(),
                transactional_id: id.clone(),
                ..Default::default()
            },
        }
    };
    let transaction_states = request.transactional_ids.iter().map(one).collect();
    DescribeTransactionsResponse { transaction_states, ..Default::default() }
}

pub(crate) fn list(
    node: &Node,
    context: &RequestContext,
    request: &ListTransactionsRequest,
) -> ListTransactionsResponse {
    let refused = |code: ErrorCode| ListTransactionsResponse {
        error_code: code.code(),
        ..Default::default()
    };
    let pattern = request.transactional_id_pattern.as_deref().filter(|it| !it.is_empty());
    let Ok(pattern) = pattern.map(|it| Regex::new(&format!("^(?:{it})$"))).transpose() else {
        return refused(ErrorCode::InvalidRegularExpression);
    };
    let (known, unknown): (Vec<_>, Vec<_>) =
        request.state_filters.iter().cloned().partition(|it| STATES.contains(&it.as_str()));
    let is_wanted = |id: &str, it: &Transaction| {
        let lasts_ms = node.core.now.wall_ms.saturating_sub(it.started_ms);
        let ids = &request.producer_id_filters;
        may_describe(node, context, id)
            && (request.state_filters.is_empty()
                || known.iter().any(|name| name == it.status.name()))
            && (ids.is_empty() || ids.contains(&it.producer_id))
            && (request.duration_filter < 0 || lasts_ms > request.duration_filter)
            && pattern.as_ref().is_none_or(|pattern| pattern.is_match(id))
    };
    match node.coordinators.transaction_coordinators() {
        Err(code) => refused(code),
        Ok(coordinators) => ListTransactionsResponse {
            unknown_state_filters: unknown,
            transaction_states: coordinators.iter().flat_map(|it| it.list(is_wanted)).collect(),
            ..Default::default()
        },
    }
}
