//! `InitProducerId`: an id for an idempotent producer.

use duramen_protocol::ErrorCode;
use duramen_protocol::messages::{InitProducerIdRequest, InitProducerIdResponse};

use super::{Operation, Resource, authorize, deadline_us};
use crate::event::{Action, Now, RequestKey};
use crate::node::{Node, Parked};
use crate::session::RequestContext;

/// How long a producer is kept while a block of ids is allocated.
const ALLOCATION_MS_MAX: i32 = 5_000;

pub(crate) fn handle(
    node: &mut Node,
    now: Now,
    key: RequestKey,
    context: &RequestContext,
    request: &InitProducerIdRequest,
    actions: &mut Vec<Action>,
) {
    if request.transactional_id.is_some() {
        // Transactions are not built yet. Stock clients take this code as final: the Java client
        // and librdkafka raise it at once, where they would ask a missing coordinator for ever.
        let code = ErrorCode::TransactionalIdAuthorizationFailed;
        return node.reply(key, refused(code), actions);
    }
    if (request.producer_id < 0) != (request.producer_epoch < 0) {
        return node.reply(key, refused(ErrorCode::InvalidRequest), actions);
    }
    if !authorize(&context.principal, Operation::IdempotentWrite, Resource::Cluster) {
        return node.reply(key, refused(ErrorCode::ClusterAuthorizationFailed), actions);
    }
    match node.next_producer_id(now) {
        Ok(Some(id)) => node.reply(key, granted(id), actions),
        Ok(None) => node.park(key, Parked::ProducerId, deadline_us(now, ALLOCATION_MS_MAX)),
        Err(_) => node.reply(key, refused(ErrorCode::CoordinatorNotAvailable), actions),
    }
}

pub(crate) fn granted(producer_id: i64) -> InitProducerIdResponse {
    InitProducerIdResponse { producer_id, producer_epoch: 0, ..InitProducerIdResponse::default() }
}

pub(crate) fn refused(code: ErrorCode) -> InitProducerIdResponse {
    InitProducerIdResponse {
        error_code: code.code(),
        producer_id: -1,
        producer_epoch: -1,
        ..InitProducerIdResponse::default()
    }
}
