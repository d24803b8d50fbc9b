//! `SyncGroup`: stores the generation's assignments, or returns a member's own.

use duramen_protocol::ErrorCode;
use duramen_protocol::messages::{SyncGroupRequest, SyncGroupResponse};

use super::checks::admit_to_group;
use crate::access::Operation;
use crate::event::RequestKey;
use crate::node::Node;
use crate::session::RequestContext;

/// First version in which a member names the protocol that it follows.
const FIRST_WITH_PROTOCOL: i16 = 5;

pub(crate) fn handle(
    node: &mut Node,
    key: RequestKey,
    context: &RequestContext,
    request: &SyncGroupRequest,
) {
    let group = request.group_id.as_str();
    let is_silent = request.protocol_type.is_none() || request.protocol_name.is_none();
    let asked = if is_silent && context.version >= FIRST_WITH_PROTOCOL {
        Err(ErrorCode::InconsistentGroupProtocol)
    } else {
        admit_to_group(node, context, Operation::Read, group).and_then(|()| {
            let now = node.core.now;
            node.coordinators.coordinate(&mut node.core, key, context.version, group, |it, _| {
                it.sync_group(key, request, now);
            })
        })
    };
    if let Err(code) = asked {
        let error_code = code.code();
        node.reply(key, SyncGroupResponse { error_code, ..Default::default() });
    }
}
