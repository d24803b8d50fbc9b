//! `UnregisterBroker`: a node leaves the cluster. The node has no replicas then. Its replica of the metadata goes by
//! itself, and its vote goes to another node if need be. The controller answers only after that: an operator may then
//! stop the node, and an earlier stop would take a vote away.

use duramen_protocol::ErrorCode;
use duramen_protocol::messages::{UnregisterBrokerRequest, UnregisterBrokerResponse};

use super::checks::admit_operator;
use super::decisions::why_undecided;
use crate::controller::{DECISION_MS, Error};
use crate::core::Parked;
use crate::event::RequestKey;
use crate::metadata_records::{MetadataRecord, RetireDirectory};
use crate::node::Node;
use crate::session::RequestContext;

pub(crate) fn handle(
    node: &mut Node,
    key: RequestKey,
    context: &RequestContext,
    request: &UnregisterBrokerRequest,
) {
    let decided = admit_operator(node, context).and_then(|()| decide(node, request.broker_id));
    let proposed = decided.and_then(|records| {
        if records.is_empty() {
            return Ok(());
        }
        let proposed = node.core.propose(&records);
        proposed.map(|_| ()).map_err(|code| Error::new(code, why_undecided(code)))
    });
    match proposed {
        Ok(()) => {
            let parked = Parked::Departure { broker_id: request.broker_id };
            node.core.park(key, parked, node.core.now.deadline_us(DECISION_MS));
        }
        Err(error) => node.reply(key, refused(error.code, error.message)),
    }
}

fn refused(code: ErrorCode, text: String) -> UnregisterBrokerResponse {
    let (error_code, error_message) = (code.code(), Some(text));
    UnregisterBrokerResponse { error_code, error_message, ..Default::default() }
}

fn decide(node: &Node, id: i32) -> Result<Vec<MetadataRecord>, Error> {
    let image = &node.core.controller.image;
    let Some(broker) = image.brokers.get(&id) else {
        let text = format!("there is no broker {id}");
        return Err(Error::new(ErrorCode::BrokerIdNotRegistered, text));
    };
    let directory_id = broker.directory_id;
    if image.retired.contains(&directory_id) {
        return Ok(Vec::new());
    }
    let invalid = |text: String| Err(Error::new(ErrorCode::InvalidRequest, text));
    if node.core.controller.staying().count() == 1 {
        return invalid(format!("broker {id} is the only one"));
    }
    match node.core.replicas_in(directory_id) {
        0 if node.core.controller.is_placing() => {
            let text = "partitions are placed or moved just now; ask again";
            Err(Error::new(ErrorCode::RequestTimedOut, text))
        }
        0 => Ok(vec![MetadataRecord::RetireDirectory(RetireDirectory { directory_id })]),
        count => invalid(format!(
            "broker {id} has {count} replicas: move them to other brokers first (duramen cluster move --from {id}, or \
             AlterPartitionReassignments)"
        )),
    }
}

/// Returns the answer to a request after its decision.
pub(crate) fn told(code: ErrorCode) -> UnregisterBrokerResponse {
    if code.is_none() {
        return UnregisterBrokerResponse::default();
    }
    let text = match code {
        ErrorCode::RequestTimedOut => {
            "it was not heard in time that the node has left: its vote on the metadata may not have gone to another one yet; \
             ask again"
        }
        _ => why_undecided(code),
    };
    refused(code, text.to_owned())
}
