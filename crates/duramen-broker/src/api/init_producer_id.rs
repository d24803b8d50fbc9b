//! `InitProducerId`: returns an id and epoch for an idempotent or a transactional producer. A transactional producer's
//! predecessor is fenced.

use duramen_protocol::ErrorCode;
use duramen_protocol::messages::{InitProducerIdRequest, InitProducerIdResponse};

use super::add_partitions_to_txn::admit;
use crate::access::{Kind, Operation, Resource};
use crate::core::Parked;
use crate::event::RequestKey;
use crate::node::Node;
use crate::session::RequestContext;
use crate::transactions::coordinator::Ask;

/// Longest time that a producer waits while a block of producer ids is allocated, in milliseconds.
const ALLOCATION_MS_MAX: i32 = 5_000;
/// First version in which a client learns by its own error code that another producer has replaced it.
pub(super) const FIRST_FENCED: i16 = 4;

pub(crate) fn handle(
    node: &mut Node,
    key: RequestKey,
    context: &RequestContext,
    request: &InitProducerIdRequest,
) {
    if (request.producer_id < 0) != (request.producer_epoch < 0) {
        return node.reply(key, refused(ErrorCode::InvalidRequest));
    }
    if let Some(id) = &request.transactional_id {
        return of_transactions(node, key, context, id, request);
    }
    if !node.core.access.may(context, Operation::IdempotentWrite, Resource::Cluster)
        && !node.core.access.may_on_any(context, Operation::Write, Kind::Topic)
    {
        return node.reply(key, refused(ErrorCode::ClusterAuthorizationFailed));
    }
    match node.core.next_producer_id() {
        Ok(Some(id)) => node.reply(key, granted(id)),
        Ok(None) => {
            node.core.park(key, Parked::ProducerId, node.core.now.deadline_us(ALLOCATION_MS_MAX));
        }
        Err(_) => node.reply(key, refused(ErrorCode::CoordinatorNotAvailable)),
    }
}

fn of_transactions(
    node: &mut Node,
    key: RequestKey,
    context: &RequestContext,
    id: &str,
    request: &InitProducerIdRequest,
) {
    let longest_ms = node.core.options.settings.transaction_max_timeout_ms;
    let admitted = admit(node, context, id).and_then(|()| {
        let is_possible = (1..=longest_ms).contains(&request.transaction_timeout_ms);
        if is_possible { Ok(()) } else { Err(ErrorCode::InvalidTransactionTimeout) }
    });
    if let Err(code) = admitted {
        return node.reply(key, refused(code));
    }
    let expected = (request.producer_id, request.producer_epoch);
    let expected = (expected.0 >= 0).then_some(expected);
    node.core.park(key, Parked::Transaction { version: context.version }, u64::MAX);
    let timeout_ms = request.transaction_timeout_ms;
    let (now, ask) = (node.core.now, Ask::Init { key, timeout_ms, expected });
    let asked = node.coordinators.coordinate_transaction(&mut node.core, id, |it| {
        it.ask(id, ask, now);
    });
    debug_assert!(asked.is_ok(), "it was admitted");
}

pub(crate) fn granted(producer_id: i64) -> InitProducerIdResponse {
    InitProducerIdResponse { producer_id, producer_epoch: 0, ..Default::default() }
}

pub(crate) fn refused(code: ErrorCode) -> InitProducerIdResponse {
    InitProducerIdResponse {
        error_code: code.code(),
        producer_id: -1,
        producer_epoch: -1,
        ..Default::default()
    }
}
