//! `EndTxn`: commits or aborts a transaction. The answer comes once the decision is durable.

use duramen_protocol::messages::{EndTxnRequest, EndTxnResponse};
use duramen_protocol::{ErrorCode, Response};

use super::add_partitions_to_txn::admit;
use super::checks::told;
use super::init_producer_id;
use crate::core::Parked;
use crate::event::RequestKey;
use crate::node::Node;
use crate::session::RequestContext;
use crate::transactions::coordinator::{Ask, End};

/// The first version in which each transaction has an epoch of its own (KIP-890).
const FIRST_WITH_EPOCHS: i16 = 5;
/// First version in which a client learns by its own error code that another producer has replaced it.
const FIRST_FENCED: i16 = 2;

pub(crate) fn handle(
    node: &mut Node,
    key: RequestKey,
    context: &RequestContext,
    request: &EndTxnRequest,
) {
    let id = request.transactional_id.as_str();
    if let Err(code) = admit(node, context, id) {
        let error_code = told(code.code(), context.version, FIRST_FENCED);
        return node.reply(key, EndTxnResponse { error_code, ..Default::default() });
    }
    let end = End {
        producer_id: request.producer_id,
        epoch: request.producer_epoch,
        commits: request.committed,
        version: if context.version >= FIRST_WITH_EPOCHS { 2 } else { 1 },
    };
    node.core.park(key, Parked::Transaction { version: context.version }, u64::MAX);
    let (now, ask) = (node.core.now, Ask::End { key, end });
    let ended =
        node.coordinators.coordinate_transaction(&mut node.core, id, |it| it.ask(id, ask, now));
    debug_assert!(ended.is_ok(), "it was admitted");
}

/// Sends the answer of a transaction's coordinator, to `EndTxn` or `InitProducerId`.
pub(crate) fn on_answered(
    node: &mut Node,
    key: RequestKey,
    mut response: Box<Response>,
    is_certain: bool,
) {
    // The client may be gone.
    let Some(&mut Parked::Transaction { version }) = node.core.parked_mut(key) else { return };
    node.unpark(key);
    let moved = ErrorCode::NotCoordinator;
    match &mut *response {
        Response::EndTxn(answer) if !is_certain => {
            *answer = EndTxnResponse { error_code: moved.code(), ..Default::default() };
        }
        Response::EndTxn(answer) => {
            answer.error_code = told(answer.error_code, version, FIRST_FENCED);
        }
        Response::InitProducerId(answer) if !is_certain => {
            *answer = init_producer_id::refused(moved);
        }
        Response::InitProducerId(answer) => {
            answer.error_code = told(answer.error_code, version, init_producer_id::FIRST_FENCED);
        }
        _ => {}
    }
    node.reply_boxed(key, response);
}
