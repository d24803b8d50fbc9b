//! `OffsetDelete`: deletes committed offsets of a group.

use duramen_protocol::ErrorCode;
use duramen_protocol::messages::{OffsetDeleteRequest, OffsetDeleteResponse};

use super::{Operation, Resource, admit_to_group, authorize};
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
    // Kafka's answer begins with the partitions that it refuses.
    let image = &node.controller.image;
    let is_good =
        |topic: &str, partition| problem(image, &context.principal, topic, partition).is_none();
    for topic in &mut request.topics {
        topic.partitions.sort_by_key(|it| is_good(&topic.name, it.partition_index));
    }
    request.topics.sort_by_key(|topic| {
        topic.partitions.first().is_some_and(|it| is_good(&topic.name, it.partition_index))
    });
    let asked = admit_to_group(context, Operation::Delete, &group).and_then(|()| {
        node.coordinate(key, context.version, &group, |it, sight| {
            let refuse =
                |topic: &str, partition| problem(sight.image, &context.principal, topic, partition);
            it.offset_delete(key, request, refuse);
        })
    });
    if let Err(code) = asked {
        let error_code = code.code();
        let refused = OffsetDeleteResponse { error_code, ..OffsetDeleteResponse::default() };
        node.reply(key, refused);
    }
}

/// Returns the error that forbids the deletion of a partition's offset, if there is one.
fn problem(image: &Image, principal: &str, topic: &str, partition: i32) -> Option<ErrorCode> {
    if !authorize(principal, Operation::Read, Resource::Topic(topic)) {
        return Some(ErrorCode::TopicAuthorizationFailed);
    }
    let count = image.topic_named(topic).map_or(0, |topic| topic.partitions.len());
    let is_there = usize::try_from(partition).is_ok_and(|it| it < count);
    (!is_there).then_some(ErrorCode::UnknownTopicOrPartition)
}
