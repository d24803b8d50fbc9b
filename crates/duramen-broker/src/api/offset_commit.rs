//! `OffsetCommit`: stores the offsets of a group. The answer comes once they are durable.

use duramen_protocol::ErrorCode;
use duramen_protocol::messages::offset_commit::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic, OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
};
use duramen_protocol::messages::{OffsetCommitRequest, OffsetCommitResponse};

use crate::access::{Access, Operation, Resource};
use crate::controller::image::Image;
use crate::event::RequestKey;
use crate::node::Node;
use crate::session::RequestContext;

/// The first version that names topics by their ids.
const FIRST_BY_ID: i16 = 10;

pub(crate) fn handle(
    node: &mut Node,
    key: RequestKey,
    context: &RequestContext,
    mut request: OffsetCommitRequest,
) {
    let group = request.group_id.clone();
    if !node.core.access.may(context, Operation::Read, Resource::Group(&group)) {
        let refused = refused(&request, ErrorCode::GroupAuthorizationFailed);
        return node.reply(key, refused);
    }
    let by_id = context.version >= FIRST_BY_ID;
    for topic in &mut request.topics {
        let image = &node.core.controller.image;
        if by_id {
            topic.name = image.topic(topic.topic_id).map_or_else(String::new, |it| it.name.clone());
        } else {
            topic.topic_id = image.topic_named(&topic.name).map(|it| it.id).unwrap_or_default();
        }
    }
    // Kafka's answer begins with the partitions that it refuses.
    let (access, image) = (&node.core.access, &node.core.controller.image);
    let is_good = |topic: &OffsetCommitRequestTopic, partition| {
        problem(access, image, context, topic, partition).is_none()
    };
    for topic in &mut request.topics {
        let mut partitions = std::mem::take(&mut topic.partitions);
        partitions.sort_by_key(|it| is_good(topic, it.partition_index));
        topic.partitions = partitions;
    }
    request.topics.sort_by_key(|topic| {
        topic.partitions.first().is_some_and(|it| is_good(topic, it.partition_index))
    });
    let mut request = Some(request);
    let now = node.core.now;
    let asked =
        node.coordinators.coordinate(&mut node.core, key, context.version, &group, |it, sight| {
            let refuse = |topic: &OffsetCommitRequestTopic, partition| {
                problem(sight.topics.access, sight.image, context, topic, partition)
            };
            let request = request.take().expect("it is asked once");
            it.offset_commit(sight.rules, key, context.version, request, refuse, now);
        });
    if let (Err(code), Some(request)) = (asked, request) {
        node.reply(key, refused(&request, code));
    }
}

/// Returns the error that forbids a commit for a partition, if there is one.
fn problem(
    access: &Access,
    image: &Image,
    context: &RequestContext,
    topic: &OffsetCommitRequestTopic,
    partition: i32,
) -> Option<ErrorCode> {
    let known = image.topic(topic.topic_id);
    if context.version >= FIRST_BY_ID && known.is_none() {
        return Some(ErrorCode::UnknownTopicId);
    }
    if !access.may(context, Operation::Read, Resource::Topic(&topic.name)) {
        return Some(ErrorCode::TopicAuthorizationFailed);
    }
    let is_there = known.is_some_and(|known| known.replicas(partition).is_some());
    (!is_there).then_some(ErrorCode::UnknownTopicOrPartition)
}

fn refused(request: &OffsetCommitRequest, code: ErrorCode) -> OffsetCommitResponse {
    let partition = |it: &OffsetCommitRequestPartition| OffsetCommitResponsePartition {
        partition_index: it.partition_index,
        error_code: code.code(),
    };
    let topic = |it: &OffsetCommitRequestTopic| OffsetCommitResponseTopic {
        name: it.name.clone(),
        topic_id: it.topic_id,
        partitions: it.partitions.iter().map(partition).collect(),
    };
    let topics = request.topics.iter().map(topic).collect();
    OffsetCommitResponse { topics, ..Default::default() }
}
