//! `OffsetDelete`: deletes committed offsets of a group.

use duramen_protocol::ErrorCode;
use duramen_protocol::messages::{OffsetDeleteRequest, OffsetDeleteResponse};

use super::checks::{admit_to_group, admit_to_offset};
use crate::access::Operation;
use crate::event::RequestKey;
use crate::node::Node;
use crate::session::RequestContext;

pub(crate) fn handle(
    node: &mut Node,
    key: RequestKey,
    context: &RequestContext,
    mut request: OffsetDeleteRequest,
) {
    let group = request.group_id.clone();
    if let Err(code) = admit_to_group(node, context, Operation::Delete, &group) {
        return node.reply(key, refused(code));
    }
    // Kafka's answer begins with the partitions that it refuses.
    let (access, image) = (&node.core.access, &node.core.controller.image);
    let is_good =
        |topic: &str, partition| admit_to_offset(access, image, context, topic, partition).is_ok();
    for topic in &mut request.topics {
        topic.partitions.sort_by_key(|it| is_good(&topic.name, it.partition_index));
    }
    request.topics.sort_by_key(|topic| {
        topic.partitions.first().is_some_and(|it| is_good(&topic.name, it.partition_index))
    });
    let asked =
        node.coordinators.coordinate(&mut node.core, key, context.version, &group, |it, sight| {
            let access = sight.topics.access;
            let refuse = |topic: &str, partition| {
                admit_to_offset(access, sight.image, context, topic, partition).err()
            };
            it.offset_delete(key, request, refuse);
        });
    if let Err(code) = asked {
        node.reply(key, refused(code));
    }
}

fn refused(code: ErrorCode) -> OffsetDeleteResponse {
    OffsetDeleteResponse { error_code: code.code(), ..Default::default() }
}
