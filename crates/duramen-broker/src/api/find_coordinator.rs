//! `FindCoordinator`: the node that coordinates a group, a transactional id, or a share group's state of a partition.
//! The first such request creates the internal topic that holds the state.

use duramen_protocol::ErrorCode;
use duramen_protocol::messages::find_coordinator::Coordinator;
use duramen_protocol::messages::{FindCoordinatorRequest, FindCoordinatorResponse};

use crate::access::{Operation, Resource};
use crate::core::Parked;
use crate::event::RequestKey;
use crate::internal_topics::{GROUPS, SHARES, TRANSACTIONS};
use crate::node::Node;
use crate::session::RequestContext;
use crate::shares::ShareKey;

const GROUP: i8 = 0;
const TRANSACTION: i8 = 1;
/// A share group with one of its partitions.
const SHARE: i8 = 2;
/// The first version that asks for those.
const FIRST_OF_SHARES: i16 = 6;
/// The first version that asks for several at once.
const FIRST_BATCHED: i16 = 4;
/// Longest time that a client waits while the topic is created, in milliseconds. The client then asks again.
const CREATION_MS_MAX: i32 = 5_000;

pub(crate) fn handle(
    node: &mut Node,
    key: RequestKey,
    context: RequestContext,
    request: FindCoordinatorRequest,
) {
    // The node itself makes the topic: most clients may not create topics, and none could use a group without it.
    let missing = topic_of(&context, &request).filter(|topic| {
        let mut keys = keys_of(&context, &request).iter();
        keys.any(|key| may_find(node, &context, request.key_type, key))
            && node.core.controller.image.topic_named(topic).is_none()
    });
    let leads = node.core.metadata_leader() == Some(node.core.options.facts.broker_id);
    if let Some(topic) = missing.filter(|_| !leads) {
        node.core.want_topic(topic);
    }
    let made = missing.filter(|_| leads);
    if let Some(index) = made.and_then(|topic| node.core.make_topic_here(topic)) {
        node.core.controller.wait(index, key);
        let parked = Parked::FindCoordinator { request, context, outstanding: 1 };
        node.core.park(key, parked, node.core.now.deadline_us(CREATION_MS_MAX));
    } else {
        let response = answer(node, &context, &request);
        node.reply(key, response);
    }
}

/// Returns the keys that the request asks about.
fn keys_of<'a>(context: &RequestContext, request: &'a FindCoordinatorRequest) -> &'a [String] {
    if context.version >= FIRST_BATCHED {
        &request.coordinator_keys
    } else {
        std::slice::from_ref(&request.key)
    }
}

/// Returns the internal topic that the request asks about.
fn topic_of(context: &RequestContext, request: &FindCoordinatorRequest) -> Option<&'static str> {
    let is_key = |name: &String| ShareKey::named(name).is_some();
    match request.key_type {
        GROUP => Some(GROUPS),
        TRANSACTION => Some(TRANSACTIONS),
        SHARE if context.version >= FIRST_OF_SHARES => {
            request.coordinator_keys.iter().any(is_key).then_some(SHARES)
        }
        _ => None,
    }
}

/// Builds the answer from the present state.
pub(crate) fn answer(
    node: &Node,
    context: &RequestContext,
    request: &FindCoordinatorRequest,
) -> FindCoordinatorResponse {
    let find = |key: &String| find(node, context, request.key_type, key);
    if context.version >= FIRST_BATCHED {
        let coordinators = request.coordinator_keys.iter().map(find).collect();
        return FindCoordinatorResponse { coordinators, ..Default::default() };
    }
    let Coordinator { node_id, host, port, error_code, .. } = find(&request.key);
    let name = ErrorCode::from_code(error_code).map(|code| code.name().to_owned());
    FindCoordinatorResponse {
        node_id,
        host,
        port,
        error_code,
        error_message: name,
        ..Default::default()
    }
}

/// Tells whether the client may learn the coordinator of a key.
fn may_find(node: &Node, context: &RequestContext, key_type: i8, key: &str) -> bool {
    let may = |operation, resource| node.core.access.may(context, operation, resource);
    match key_type {
        GROUP => may(Operation::Describe, Resource::Group(key)),
        TRANSACTION => may(Operation::Describe, Resource::TransactionalId(key)),
        SHARE if context.version >= FIRST_OF_SHARES => {
            may(Operation::ClusterAction, Resource::Cluster)
        }
        _ => true,
    }
}

fn find(node: &Node, context: &RequestContext, key_type: i8, key: &str) -> Coordinator {
    let key = key.to_owned();
    let found = match key_type {
        _ if !may_find(node, context, key_type, &key) => Err(match key_type {
            GROUP => ErrorCode::GroupAuthorizationFailed,
            TRANSACTION => ErrorCode::TransactionalIdAuthorizationFailed,
            _ => ErrorCode::ClusterAuthorizationFailed,
        }),
        GROUP => Ok(node.core.coordinator_of(GROUPS, &key)),
        TRANSACTION => Ok(node.core.coordinator_of(TRANSACTIONS, &key)),
        SHARE if context.version >= FIRST_OF_SHARES => {
            let known = ShareKey::named(&key).ok_or(ErrorCode::InvalidRequest);
            known.map(|it| node.core.coordinator_of(SHARES, &it.to_string()))
        }
        _ => Err(ErrorCode::InvalidRequest),
    };
    let located = found.and_then(|broker_id| {
        let broker_id = broker_id.filter(|id| node.core.may_lead(*id));
        let broker = broker_id.and_then(|id| node.core.controller.image.brokers.get(&id));
        let located = broker.and_then(|it| Some((it.broker_id, it.endpoint(&context.listener)?)));
        located.ok_or(ErrorCode::CoordinatorNotAvailable)
    });
    match located {
        Ok((node_id, endpoint)) => Coordinator {
            key,
            node_id,
            host: endpoint.host.clone(),
            port: i32::from(endpoint.port),
            error_message: Some(String::new()),
            ..Default::default()
        },
        Err(code) => Coordinator {
            key,
            node_id: -1,
            port: -1,
            error_code: code.code(),
            error_message: Some(String::new()),
            ..Default::default()
        },
    }
}
