//! `OffsetFetch`: returns the committed offsets of groups.

use duramen_protocol::ErrorCode;
use duramen_protocol::messages::offset_fetch::{
    OffsetFetchRequestGroup, OffsetFetchRequestTopic, OffsetFetchRequestTopics,
    OffsetFetchResponseGroup, OffsetFetchResponsePartition, OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic, OffsetFetchResponseTopics,
};
use duramen_protocol::messages::{OffsetFetchRequest, OffsetFetchResponse};

use crate::access::{Operation, Resource};
use crate::core::Parked;
use crate::event::RequestKey;
use crate::groups::coordinator::Coordinator;
use crate::node::Node;
use crate::session::RequestContext;

/// First version that has an error code for a whole group.
const FIRST_WITH_GROUP_ERROR: i16 = 2;
/// The first version that asks about several groups.
const FIRST_OF_SEVERAL: i16 = 8;
/// The first version that names topics by their ids.
const FIRST_BY_ID: i16 = 10;

pub(crate) fn handle(
    node: &mut Node,
    key: RequestKey,
    context: &RequestContext,
    request: OffsetFetchRequest,
) {
    let version = context.version;
    let stable = request.require_stable;
    let asked = if version >= FIRST_OF_SEVERAL { request.groups } else { vec![sole(request)] };
    let named = |it: &OffsetFetchRequestGroup| OffsetFetchResponseGroup {
        group_id: it.group_id.clone(),
        ..Default::default()
    };
    let groups = asked.iter().map(named).collect();
    // Some groups answer at once, so the count is one too high until all have the request.
    let outstanding = asked.len() + 1;
    let parked = Parked::OffsetFetch { groups, outstanding, context: context.clone() };
    node.core.park(key, parked, u64::MAX);
    for (part, mut group) in asked.into_iter().enumerate() {
        let id = group.group_id.clone();
        let fetched = if node.core.access.may(context, Operation::Describe, Resource::Group(&id)) {
            refuse_topics(node, key, context, part, &mut group);
            let spare = (version < FIRST_WITH_GROUP_ERROR).then(|| group.clone());
            let fetch = node.coordinators.coordinate_part(&mut node.core, &id, |it, _| {
                it.offset_fetch(key, part, group, stable);
            });
            fetch.map_err(|code| (code, spare))
        } else {
            Err((ErrorCode::GroupAuthorizationFailed, Some(group)))
        };
        if let Err((code, group)) = fetched {
            let named = || OffsetFetchRequestGroup { group_id: id, ..Default::default() };
            let refused = Coordinator::not_fetched(&group.unwrap_or_else(named), code);
            record(node, key, part, refused);
        }
    }
    finish(node, key);
}

/// Returns the only group of an older request.
fn sole(request: OffsetFetchRequest) -> OffsetFetchRequestGroup {
    let topic = |it: OffsetFetchRequestTopic| OffsetFetchRequestTopics {
        name: it.name,
        partition_indexes: it.partition_indexes,
        ..Default::default()
    };
    OffsetFetchRequestGroup {
        group_id: request.group_id,
        topics: request.topics.map(|topics| topics.into_iter().map(topic).collect()),
        ..Default::default()
    }
}

/// Answers at once about topics that may not be asked about, and finds the names of others.
fn refuse_topics(
    node: &mut Node,
    key: RequestKey,
    context: &RequestContext,
    part: usize,
    group: &mut OffsetFetchRequestGroup,
) {
    let image = &node.core.controller.image;
    let by_id = context.version >= FIRST_BY_ID;
    let Some(asked) = &mut group.topics else { return };
    let (mut refused, mut kept) = (Vec::new(), Vec::new());
    for mut topic in std::mem::take(asked) {
        let known =
            if by_id { image.topic(topic.topic_id) } else { image.topic_named(&topic.name) };
        if let Some(known) = known {
            topic.name.clone_from(&known.name);
            topic.topic_id = known.id;
        }
        let code = if by_id && known.is_none() {
            ErrorCode::UnknownTopicId
        } else if !node.core.access.may(context, Operation::Describe, Resource::Topic(&topic.name))
        {
            ErrorCode::TopicAuthorizationFailed
        } else {
            kept.push(topic);
            continue;
        };
        refused.push(refused_topic(topic, code));
    }
    *asked = kept;
    if let Some(Parked::OffsetFetch { groups, .. }) = node.core.parked_mut(key) {
        groups[part].topics = refused;
    }
}

fn refused_topic(topic: OffsetFetchRequestTopics, code: ErrorCode) -> OffsetFetchResponseTopics {
    let partition = |partition_index| OffsetFetchResponsePartitions {
        partition_index,
        committed_offset: -1,
        metadata: Some(String::new()),
        error_code: code.code(),
        ..Default::default()
    };
    OffsetFetchResponseTopics {
        name: topic.name,
        topic_id: topic.topic_id,
        partitions: topic.partition_indexes.into_iter().map(partition).collect(),
    }
}

/// Takes the coordinator's answer for one of the groups. The client has not named the topics if it asks for all.
pub(crate) fn on_fetched(
    node: &mut Node,
    key: RequestKey,
    part: usize,
    mut fetched: OffsetFetchResponseGroup,
) {
    let Some(Parked::OffsetFetch { context, .. }) = node.core.parked_mut(key) else { return };
    let context = context.clone();
    fetched.topics.retain(|topic| {
        node.core.access.is_shown(&context, Operation::Describe, Resource::Topic(&topic.name))
    });
    record(node, key, part, fetched);
}

/// Records the answer for one of the groups.
fn record(node: &mut Node, key: RequestKey, part: usize, mut fetched: OffsetFetchResponseGroup) {
    let image = &node.core.controller.image;
    for topic in fetched.topics.iter_mut().filter(|topic| topic.topic_id.is_zero()) {
        let known = image.topic_named(&topic.name);
        topic.topic_id = known.map(|topic| topic.id).unwrap_or_default();
    }
    let Some(Parked::OffsetFetch { groups, context, .. }) = node.core.parked_mut(key) else {
        return;
    };
    let version = context.version;
    if version >= FIRST_BY_ID {
        // A topic that is gone has no id to be named by.
        fetched.topics.retain(|topic| !topic.topic_id.is_zero());
    }
    if version < FIRST_WITH_GROUP_ERROR {
        // An older version has no field for an error of the group, so each partition carries it.
        fetched.error_code = 0;
    }
    if fetched.error_code != 0 {
        fetched.topics.clear();
    } else {
        fetched.topics.append(&mut groups[part].topics);
    }
    groups[part] = fetched;
    finish(node, key);
}

fn finish(node: &mut Node, key: RequestKey) {
    let Some(Parked::OffsetFetch { outstanding, .. }) = node.core.parked_mut(key) else { return };
    *outstanding -= 1;
    if *outstanding == 0
        && let Some(Parked::OffsetFetch { groups, context, .. }) = node.unpark(key)
    {
        node.reply(key, response(groups, context.version));
    }
}

fn response(mut groups: Vec<OffsetFetchResponseGroup>, version: i16) -> OffsetFetchResponse {
    if version >= FIRST_OF_SEVERAL {
        return OffsetFetchResponse { groups, ..Default::default() };
    }
    let group = groups.pop().unwrap_or_default();
    let partition = |it: OffsetFetchResponsePartitions| OffsetFetchResponsePartition {
        partition_index: it.partition_index,
        committed_offset: it.committed_offset,
        committed_leader_epoch: it.committed_leader_epoch,
        metadata: it.metadata,
        error_code: it.error_code,
    };
    let topic = |it: OffsetFetchResponseTopics| OffsetFetchResponseTopic {
        name: it.name,
        partitions: it.partitions.into_iter().map(partition).collect(),
    };
    OffsetFetchResponse {
        topics: group.topics.into_iter().map(topic).collect(),
        error_code: group.error_code,
        ..Default::default()
    }
}
