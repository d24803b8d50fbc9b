//! `OffsetDelete`: deletes committed offsets of a group.

use duramen_protocol::ErrorCode;
use duramen_protocol::messages::{OffsetDeleteRequest, OffsetDeleteResponse};

use super::checks::admit_to_group;
use crate::access::{Access, Operation, Resource};
use crate::controller::image::Image;
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
        |topic: &str, partition| problem(access, image, context, topic, partition).is_none();
    for topic in &mut request.topics {
        topic.partitions.sort_by_key(|it| is_good(&topic.name, it.partition_index));
    }
    request.topics.sort_by_key(|topic| {
        topic.partitions.first().is_some_and(|it| is_good(&topic.name, it.partition_index))
    });
    let asked =
        node.coordinators.coordinate(&mut node.core, key, context.version, &group, |it, sight| {
            let access = sight.topics.access;
            let refuse =
                |topic: &str, partition| problem(access, sight.image, context, topic, partition);
            it.offset_delete(key, request, refuse);
        });
    if let Err(code) = asked {
        node.reply(key, refused(code));
    }
}

fn refused(code: ErrorCode) -> OffsetDeleteResponse {
    OffsetDeleteResponse { error_code: code.code(), ..Default::default() }
}

/// Returns the error that forbids the deletion of a partition's offset, if there is one.
fn problem(
    access: &Access,
    image: &Image,
    context: &RequestContext,
    topic: &str,
    partition: i32,
) -> Option<ErrorCode> {
    if !access.may(context, Operation::Read, Resource::Topic(topic)) {
        return Some(ErrorCode::TopicAuthorizationFailed);
    }
    let count = image.topic_named(topic).map_or(0, |topic| topic.partitions.len());
    let is_there = usize::try_from(partition).is_ok_and(|it| it < count);
    (!is_there).then_some(ErrorCode::UnknownTopicOrPartition)
}
