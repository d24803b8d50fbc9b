//! `UnregisterBroker`: a node leaves the cluster. It has no replicas then; what it keeps of the metadata goes by itself, and it
//! is gone from the cluster's description after that.

use duramen_protocol::ErrorCode;
use duramen_protocol::messages::{UnregisterBrokerRequest, UnregisterBrokerResponse};

use super::settings::TIMEOUT_MS;
use super::{Operation, Resource, answer_after_commit, authorize, deadline_us, why_undecided};
use crate::controller::Error;
use crate::controller::records::{MetadataRecord, RetireDirectory};
use crate::event::{Action, Now, RequestKey};
use crate::node::Node;
use crate::session::RequestContext;

pub(crate) fn handle(
    node: &mut Node,
    now: Now,
    key: RequestKey,
    context: &RequestContext,
    request: &UnregisterBrokerRequest,
    actions: &mut Vec<Action>,
) {
    let is_allowed = authorize(&context.principal, Operation::Alter, Resource::Cluster);
    let decided = if is_allowed {
        decide(node, request.broker_id)
    } else {
        let text = "not allowed to alter the cluster";
        Err(Error::new(ErrorCode::ClusterAuthorizationFailed, text))
    };
    let (records, response) = match decided {
        Ok(records) => (records, UnregisterBrokerResponse::default()),
        Err(error) => (Vec::new(), refused(error.code, error.message)),
    };
    let deadline = deadline_us(now, TIMEOUT_MS);
    answer_after_commit(node, now, key, &records, response.into(), deadline, actions);
}

fn refused(code: ErrorCode, text: String) -> UnregisterBrokerResponse {
    let (error_code, error_message) = (code.code(), Some(text));
    UnregisterBrokerResponse { error_code, error_message, ..Default::default() }
}

fn decide(node: &Node, id: i32) -> Result<Vec<MetadataRecord>, Error> {
    let image = &node.controller.image;
    let Some(broker) = image.brokers.get(&id) else {
        return Err(Error::new(
            ErrorCode::BrokerIdNotRegistered,
            format!("there is no broker {id}"),
        ));
    };
    let directory_id = broker.directory_id;
    if image.retired.contains(&directory_id) {
        return Ok(Vec::new());
    }
    let invalid = |text: String| Err(Error::new(ErrorCode::InvalidRequest, text));
    if image.staying().count() == 1 {
        return invalid(format!("broker {id} is the only one"));
    }
    match node.replicas_in(directory_id) {
        0 => Ok(vec![MetadataRecord::RetireDirectory(RetireDirectory { directory_id })]),
        count => invalid(format!(
            "broker {id} has {count} replicas: move them to other brokers first (duramen cluster move --from {id}, or \
             AlterPartitionReassignments)"
        )),
    }
}

pub(super) fn undecided(code: ErrorCode) -> UnregisterBrokerResponse {
    refused(code, why_undecided(code).to_owned())
}
