//! `LeaveGroup`: removes members, at their own request or an operator's.

use duramen_protocol::messages::{LeaveGroupRequest, LeaveGroupResponse};

use super::checks::admit_to_group;
use crate::access::Operation;
use crate::event::RequestKey;
use crate::node::Node;
use crate::session::RequestContext;

pub(crate) fn handle(
    node: &mut Node,
    key: RequestKey,
    context: &RequestContext,
    request: &LeaveGroupRequest,
) {
    let group = request.group_id.as_str();
    let asked = admit_to_group(node, context, Operation::Read, group).and_then(|()| {
        let now = node.core.now;
        node.coordinators.coordinate(&mut node.core, key, context.version, group, |it, _| {
            it.leave_group(key, context.version, request, now);
        })
    });
    if let Err(code) = asked {
        let error_code = code.code();
        node.reply(key, LeaveGroupResponse { error_code, ..Default::default() });
    }
}
