//! `UnregisterBroker`: the only broker there is stays, and others are not known.

use duramen_protocol::ErrorCode;
use duramen_protocol::messages::{UnregisterBrokerRequest, UnregisterBrokerResponse};

use super::{Operation, Resource, authorize};
use crate::node::Node;
use crate::session::RequestContext;

pub(crate) fn answer(
    node: &Node,
    context: &RequestContext,
    request: &UnregisterBrokerRequest,
) -> UnregisterBrokerResponse {
    let id = request.broker_id;
    let (code, text) = if !authorize(&context.principal, Operation::Alter, Resource::Cluster) {
        (ErrorCode::ClusterAuthorizationFailed, "not allowed to alter the cluster".to_owned())
    } else if node.controller.image.brokers.contains_key(&id) {
        (ErrorCode::InvalidRequest, format!("broker {id} is running, and the only one"))
    } else {
        (ErrorCode::BrokerIdNotRegistered, format!("there is no broker {id}"))
    };
    let (error_code, error_message) = (code.code(), Some(text));
    UnregisterBrokerResponse { error_code, error_message, ..Default::default() }
}
