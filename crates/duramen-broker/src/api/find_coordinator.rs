//! `FindCoordinator`: which node coordinates a group; makes the topic that groups are kept in when it is first needed.

use duramen_protocol::ErrorCode;
use duramen_protocol::messages::find_coordinator::Coordinator;
use duramen_protocol::messages::{FindCoordinatorRequest, FindCoordinatorResponse};

use super::{Operation, Resource, authorize, deadline_us};
use crate::event::{Action, Now, RequestKey};
use crate::internal_topics::{self, GROUPS};
use crate::node::{Node, Parked};
use crate::session::RequestContext;

const GROUP: i8 = 0;
const TRANSACTION: i8 = 1;
/// The first version that asks for several at once.
const FIRST_BATCHED: i16 = 4;
/// How long a client is kept while the topic is made. It asks again by itself.
const CREATION_MS_MAX: i32 = 5_000;

pub(crate) fn handle(
    node: &mut Node,
    now: Now,
    key: RequestKey,
    context: RequestContext,
    request: FindCoordinatorRequest,
    actions: &mut Vec<Action>,
) {
    let is_missing = request.key_type == GROUP
        && authorize(&context.principal, Operation::Create, Resource::Topic(GROUPS))
        && node.controller.image.topic_named(GROUPS).is_none();
    let leads = node.metadata_leader() == Some(node.options.facts.broker_id);
    if is_missing && !leads {
        node.want_topic(GROUPS);
    }
    if let Some(index) = (is_missing && leads).then(|| make(node, now)).flatten() {
        node.controller.wait(index, key);
        let parked = Parked::FindCoordinator { request, context, outstanding: 1 };
        node.park(key, parked, deadline_us(now, CREATION_MS_MAX));
    } else {
        let response = answer(node, &context, &request);
        node.reply(key, response, actions);
    }
}

/// Proposes the topic, unless somebody did. Returns the index to wait for.
fn make(node: &mut Node, now: Now) -> Option<u64> {
    if let Some(index) = node.controller.creating(GROUPS) {
        return Some(index);
    }
    let topic = node.topic_to_make(GROUPS)?;
    let made = node.controller.create_topic(&topic, &node.options.settings);
    let proposed = match made {
        Ok(creation) => {
            node.controller.propose(now, &creation.records).map_err(|code| code.to_string())
        }
        Err(error) => Err(error.message),
    };
    match proposed {
        Ok(index) => {
            node.mark_controller_dirty();
            Some(index)
        }
        Err(problem) => {
            tracing::warn!(problem, "groups cannot be served: {GROUPS} cannot be made");
            None
        }
    }
}

/// The answer as things stand.
pub(crate) fn answer(
    node: &Node,
    context: &RequestContext,
    request: &FindCoordinatorRequest,
) -> FindCoordinatorResponse {
    let find = |key: &String| find(node, context, request.key_type, key);
    if context.version >= FIRST_BATCHED {
        let coordinators = request.coordinator_keys.iter().map(find).collect();
        return FindCoordinatorResponse { coordinators, ..FindCoordinatorResponse::default() };
    }
    let Coordinator { node_id, host, port, error_code, .. } = find(&request.key);
    let name = ErrorCode::from_code(error_code).map(|code| code.name().to_owned());
    FindCoordinatorResponse {
        node_id,
        host,
        port,
        error_code,
        error_message: name,
        ..FindCoordinatorResponse::default()
    }
}

fn find(node: &Node, context: &RequestContext, key_type: i8, key: &str) -> Coordinator {
    let key = key.to_owned();
    let found = match key_type {
        GROUP => coordinator_of(node, context, &key),
        // Transactions are not built yet. Clients take this code as final, see `init_producer_id`.
        TRANSACTION => Err(ErrorCode::TransactionalIdAuthorizationFailed),
        // Share groups, and what is not known at all.
        _ => Err(ErrorCode::InvalidRequest),
    };
    let located = found.and_then(|broker_id| {
        let broker = node.controller.image.brokers.get(&broker_id);
        let endpoint = broker.and_then(|broker| broker.endpoints.first());
        endpoint.map(|endpoint| (broker_id, endpoint)).ok_or(ErrorCode::CoordinatorNotAvailable)
    });
    match located {
        Ok((node_id, endpoint)) => Coordinator {
            key,
            node_id,
            host: endpoint.host.clone(),
            port: i32::from(endpoint.port),
            error_message: Some(String::new()),
            ..Coordinator::default()
        },
        Err(code) => Coordinator {
            key,
            node_id: -1,
            port: -1,
            error_code: code.code(),
            error_message: Some(String::new()),
            ..Coordinator::default()
        },
    }
}

/// The node that coordinates a group.
fn coordinator_of(node: &Node, context: &RequestContext, group: &str) -> Result<i32, ErrorCode> {
    if !authorize(&context.principal, Operation::Describe, Resource::Group(group)) {
        return Err(ErrorCode::GroupAuthorizationFailed);
    }
    let topic = node.controller.image.topic_named(GROUPS);
    let topic = topic.ok_or(ErrorCode::CoordinatorNotAvailable)?;
    let partition = internal_topics::partition_of(group, topic.partitions.len());
    let leader = node.leader_of(topic, partition).ok_or(ErrorCode::CoordinatorNotAvailable)?;
    Ok(leader.0)
}
