//! `Heartbeat`: renews a member's session.

use duramen_protocol::ErrorCode;
use duramen_protocol::messages::{HeartbeatRequest, HeartbeatResponse};

use super::checks::admit_to_group;
use crate::access::Operation;
use crate::event::RequestKey;
use crate::node::Node;
use crate::session::RequestContext;

pub(crate) fn handle(
    node: &mut Node,
    key: RequestKey,
    context: &RequestContext,
    request: &HeartbeatRequest,
) {
    let group = request.group_id.as_str();
    let asked = admit_to_group(node, context, Operation::Read, group).and_then(|()| {
        let now = node.core.now;
        node.coordinators.coordinate(&mut node.core, key, context.version, group, |it, _| {
            it.heartbeat(key, request, now);
        })
    });
    if let Err(code) = asked {
        // Members begin their session times anew once their group is loaded: no reason to be alarmed.
        let is_loading = code == ErrorCode::CoordinatorLoadInProgress;
        let error_code = if is_loading { 0 } else { code.code() };
        node.reply(key, HeartbeatResponse { error_code, ..Default::default() });
    }
}
