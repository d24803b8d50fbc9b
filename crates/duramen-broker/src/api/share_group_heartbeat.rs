//! `ShareGroupHeartbeat`: join, stay in and leave a share group.

use duramen_protocol::messages::{ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse};

use super::checks::{admit_member, caller};
use crate::event::RequestKey;
use crate::node::Node;
use crate::session::RequestContext;

pub(crate) fn handle(
    node: &mut Node,
    key: RequestKey,
    context: &RequestContext,
    request: ShareGroupHeartbeatRequest,
) {
    let (group, version) = (request.group_id.clone(), context.version);
    let caller = caller(node, key, context);
    let topics = request.subscribed_topic_names.as_deref();
    let asked = admit_member(node, context, &group, topics).and_then(|()| {
        let now = node.core.now;
        node.coordinators.coordinate(&mut node.core, key, version, &group, |it, sight| {
            it.share_group_heartbeat(sight.rules, sight.topics, caller, request, now);
        })
    });
    if let Err(code) = asked {
        let error_code = code.code();
        node.reply(key, ShareGroupHeartbeatResponse { error_code, ..Default::default() });
    }
}
