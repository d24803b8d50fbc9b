//! `JoinGroup`: become a member, or begin the next generation.

use duramen_protocol::Response;
use duramen_protocol::messages::{JoinGroupRequest, JoinGroupResponse};

use super::checks::{admit_to_group, caller};
use crate::access::Operation;
use crate::core::Parked;
use crate::event::RequestKey;
use crate::node::Node;
use crate::session::RequestContext;

/// The first version in which there may be no protocol.
const FIRST_WITHOUT_PROTOCOL: i16 = 7;

pub(crate) fn handle(
    node: &mut Node,
    key: RequestKey,
    context: &RequestContext,
    request: &JoinGroupRequest,
) {
    let group = request.group_id.as_str();
    let caller = caller(node, key, context);
    let asked = admit_to_group(node, context, Operation::Read, group).and_then(|()| {
        let now = node.core.now;
        node.coordinators.coordinate(&mut node.core, key, context.version, group, |it, sight| {
            it.join_group(sight.rules, context.version, caller, request, now);
        })
    });
    if let Err(code) = asked {
        let (error_code, member_id) = (code.code(), request.member_id.clone());
        let mut refused = JoinGroupResponse { error_code, member_id, ..Default::default() };
        settle(&mut refused, context.version);
        node.reply(key, refused);
    }
}

/// Removes the protocol's name from a refusal in the versions that allow that.
fn settle(answer: &mut JoinGroupResponse, version: i16) {
    if answer.error_code != 0 && version >= FIRST_WITHOUT_PROTOCOL {
        answer.protocol_name = None;
    }
}

/// Sends the answer of a group's coordinator, to any request about the group.
pub(crate) fn on_answered(node: &mut Node, key: RequestKey, mut response: Box<Response>) {
    // The client may be gone.
    let Some(&mut Parked::Group { version }) = node.core.parked_mut(key) else { return };
    node.unpark(key);
    if let Response::JoinGroup(answer) = &mut *response {
        settle(answer, version);
    }
    node.reply_boxed(key, response);
}
