//! `ShareGroupHeartbeat`: join, stay in and leave a share group.

use duramen_protocol::ErrorCode;
use duramen_protocol::messages::{ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse};

use crate::access::{Operation, Resource};
use crate::event::RequestKey;
use crate::groups::Caller;
use crate::node::Node;
use crate::session::RequestContext;

pub(crate) fn handle(
    node: &mut Node,
    key: RequestKey,
    context: &RequestContext,
    request: ShareGroupHeartbeatRequest,
) {
    let (group, version) = (request.group_id.clone(), context.version);
    let caller = Caller {
        key,
        context: context.clone(),
        client_id: context.client_id.clone().unwrap_or_default(),
        client_host: context.client_host.to_string(),
        fresh: node.core.fresh_id(),
    };
    let asked = admit(node, context, &request).and_then(|()| {
        let now = node.core.now;
        node.coordinators.coordinate(&mut node.core, key, version, &group, |it, sight| {
            it.share_group_heartbeat(sight.rules, sight.topics, caller, request, now);
        })
    });
    if let Err(code) = asked {
        let error_code = code.code();
        let refused = ShareGroupHeartbeatResponse { error_code, ..Default::default() };
        node.reply(key, refused);
    }
}

/// Tells whether the client may ask about this group, and may see the topics that it names.
fn admit(
    node: &Node,
    context: &RequestContext,
    request: &ShareGroupHeartbeatRequest,
) -> Result<(), ErrorCode> {
    let access = &node.core.access;
    access.admit(context, Operation::Read, Resource::Group(&request.group_id))?;
    let mut names = request.subscribed_topic_names.iter().flatten();
    if names.all(|name| access.may(context, Operation::Describe, Resource::Topic(name))) {
        Ok(())
    } else {
        Err(ErrorCode::TopicAuthorizationFailed)
    }
}
