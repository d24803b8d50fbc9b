//! `DescribeShareGroupOffsets`, `AlterShareGroupOffsets` and `DeleteShareGroupOffsets`: the start offsets of share
//! groups in their partitions, for administrators.

use std::collections::BTreeMap;

use duramen_protocol::ErrorCode;
use duramen_protocol::messages::alter_share_group_offsets::{
    AlterShareGroupOffsetsResponsePartition, AlterShareGroupOffsetsResponseTopic,
};
use duramen_protocol::messages::delete_share_group_offsets::DeleteShareGroupOffsetsResponseTopic;
use duramen_protocol::messages::describe_share_group_offsets::{
    DescribeShareGroupOffsetsRequestGroup, DescribeShareGroupOffsetsResponseGroup,
    DescribeShareGroupOffsetsResponsePartition as Described,
    DescribeShareGroupOffsetsResponseTopic,
};
use duramen_protocol::messages::{
    AlterShareGroupOffsetsRequest, AlterShareGroupOffsetsResponse, DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse, DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsResponse,
};
use duramen_protocol::wire::Uuid;

use super::results::count_result;
use crate::access::{Operation, Resource};
use crate::core::{Describing, Parked};
use crate::event::RequestKey;
use crate::groups::Refusal;
use crate::groups::coordinator::{Wish, refused_wish};
use crate::internal_topics::SHARES;
use crate::node::Node;
use crate::session::RequestContext;
use crate::shares::ShareKey;
use crate::shares::coordinator::Answer;

const NO_SUCH_TOPIC: &str = "This server does not host this topic-partition.";
const NO_TOPIC_ACCESS: &str = "Topic authorization failed.";
/// First version with the lag: the count of records that are left.
const FIRST_WITH_LAG: i16 = 1;

/// Handles `DescribeShareGroupOffsets`.
pub(crate) fn describe(
    node: &mut Node,
    key: RequestKey,
    context: &RequestContext,
    request: &DescribeShareGroupOffsetsRequest,
) {
    let groups = request.groups.iter().map(|it| describe_group(node, context, it));
    let groups: Vec<_> = groups.collect();
    let mut places = Vec::new();
    for (g, group) in groups.iter().enumerate() {
        for (t, topic) in group.topics.iter().enumerate().filter(|(_, it)| !it.topic_id.is_zero()) {
            for (p, it) in topic.partitions.iter().enumerate() {
                let (group, topic_id) = (group.group_id.as_str().into(), topic.topic_id);
                let of = ShareKey { group, topic_id, partition: it.partition_index };
                places.push((g, t, p, of));
            }
        }
    }
    let response = DescribeShareGroupOffsetsResponse { groups, ..Default::default() };
    let is_any_kept = node.core.controller.image.topic_named(SHARES).is_some();
    if places.is_empty() || !is_any_kept {
        return node.reply(key, response);
    }
    let keys: Vec<ShareKey> = places.iter().map(|(.., key)| key.clone()).collect();
    let outstanding = keys.len();
    let with_lag = context.version >= FIRST_WITH_LAG;
    let describing = Describing { response, places, outstanding, with_lag };
    node.core.park(key, Parked::ShareOffsets(Box::new(describing)), u64::MAX);
    for (part, of) in keys.into_iter().enumerate() {
        node.coordinators.look_at_share_state(&mut node.core, key, part, of);
    }
}

fn unknown(partition_index: i32) -> Described {
    Described { partition_index, start_offset: -1, lag: -1, ..Default::default() }
}

fn describe_group(
    node: &Node,
    context: &RequestContext,
    request: &DescribeShareGroupOffsetsRequestGroup,
) -> DescribeShareGroupOffsetsResponseGroup {
    let group_id = request.group_id.clone();
    let mut described = DescribeShareGroupOffsetsResponseGroup { group_id, ..Default::default() };
    let may_see =
        |name: &str| node.core.access.may(context, Operation::Describe, Resource::Topic(name));
    if !node.core.access.may(context, Operation::Describe, Resource::Group(&request.group_id)) {
        described.error_code = ErrorCode::GroupAuthorizationFailed.code();
        return described;
    }
    let image = &node.core.controller.image;
    let Some(topics) = &request.topics else {
        let begun = node.coordinators.coordinator_and_sight(&node.core, &request.group_id).map(
            |(coordinator, sight)| {
                coordinator.begun_of_shares(sight.rules, &request.group_id, node.core.now)
            },
        );
        match begun {
            Ok(begun) => {
                let known = begun.into_iter().filter_map(|(id, all)| Some((image.topic(id)?, all)));
                let seen = known.filter(|(topic, _)| {
                    let topic = Resource::Topic(&topic.name);
                    node.core.access.is_shown(context, Operation::Describe, topic)
                });
                let topic = |(topic, all): (&crate::controller::image::Topic, Vec<i32>)| {
                    DescribeShareGroupOffsetsResponseTopic {
                        topic_name: topic.name.clone(),
                        topic_id: topic.id,
                        partitions: all.into_iter().map(unknown).collect(),
                    }
                };
                described.topics = seen.map(topic).collect();
            }
            Err(code) => described.error_code = code.code(),
        }
        return described;
    };
    for topic in topics {
        let mut partitions: Vec<_> = topic.partitions.iter().map(|it| unknown(*it)).collect();
        let mut topic_id = Uuid::ZERO;
        if may_see(&topic.topic_name) {
            topic_id = image.topic_named(&topic.topic_name).map_or(Uuid::ZERO, |it| it.id);
        } else {
            for it in &mut partitions {
                it.error_code = ErrorCode::TopicAuthorizationFailed.code();
                it.error_message = Some(NO_TOPIC_ACCESS.to_owned());
            }
        }
        let topic_name = topic.topic_name.clone();
        let topic = DescribeShareGroupOffsetsResponseTopic { topic_name, topic_id, partitions };
        described.topics.push(topic);
    }
    described
}

/// Records the share group's stored state of a partition.
pub(crate) fn on_looked(node: &mut Node, key: RequestKey, part: usize, answer: &Answer) {
    let Some(Parked::ShareOffsets(describing)) = node.core.parked_mut(key) else { return };
    let with_lag = describing.with_lag;
    let Describing { response, places, .. } = &mut **describing;
    let (g, t, p, of) = &places[part];
    let slot = &mut response.groups[*g].topics[*t].partitions[*p];
    match answer {
        Ok(Some(state)) => {
            (slot.start_offset, slot.leader_epoch) = (state.start, state.leader_epoch);
            if with_lag && state.start >= 0 && state.complete >= 0 {
                // The end offset of the partition turns this into the lag later.
                slot.lag = i64::from(state.complete);
                let of = of.clone();
                return node.coordinators.look_at_end(&mut node.core, key, part, of);
            }
        }
        // Without stored state the start offset is unknown, which is no error.
        Ok(None) | Err(ErrorCode::UnknownTopicOrPartition) => {}
        Err(code) => fail(slot, *code),
    }
    count_result(node, key);
}

/// Records the end offset of a partition.
pub(crate) fn on_end_known(
    node: &mut Node,
    key: RequestKey,
    part: usize,
    end: Result<i64, ErrorCode>,
) {
    let Some(Parked::ShareOffsets(describing)) = node.core.parked_mut(key) else { return };
    let (g, t, p, _) = &describing.places[part];
    let slot = &mut describing.response.groups[*g].topics[*t].partitions[*p];
    match end {
        Ok(end) => slot.lag = (end - slot.start_offset - slot.lag).max(0),
        Err(code) => {
            slot.lag = -1;
            fail(slot, code);
        }
    }
    count_result(node, key);
}

fn fail(slot: &mut Described, code: ErrorCode) {
    (slot.error_code, slot.error_message) = (code.code(), Some(code.name().to_owned()));
}

/// Handles `AlterShareGroupOffsets`.
pub(crate) fn alter(
    node: &mut Node,
    key: RequestKey,
    context: &RequestContext,
    request: &AlterShareGroupOffsetsRequest,
) {
    let group = &request.group_id;
    let mut response = AlterShareGroupOffsetsResponse::default();
    if !node.core.access.may(context, Operation::Read, Resource::Group(group)) {
        response.error_code = ErrorCode::GroupAuthorizationFailed.code();
        return node.reply(key, response);
    }
    let (mut starts, mut names) = (BTreeMap::new(), BTreeMap::new());
    for asked in &request.topics {
        let may =
            node.core.access.may(context, Operation::Read, Resource::Topic(&asked.topic_name));
        let topic = node.core.controller.image.topic_named(&asked.topic_name);
        let known = topic.filter(|_| may);
        let mut partitions = Vec::with_capacity(asked.partitions.len());
        for it in &asked.partitions {
            let is_there = known.is_some_and(|topic| topic.replicas(it.partition_index).is_some());
            let problem = match () {
                () if !may => Some((ErrorCode::TopicAuthorizationFailed, NO_TOPIC_ACCESS)),
                () if !is_there => Some((ErrorCode::UnknownTopicOrPartition, NO_SUCH_TOPIC)),
                () => None,
            };
            if let (Some(topic), None) = (known, problem) {
                starts.insert((topic.id, it.partition_index), it.start_offset.max(-1));
            }
            partitions.push(AlterShareGroupOffsetsResponsePartition {
                partition_index: it.partition_index,
                error_code: problem.map_or(0, |(code, _)| code.code()),
                error_message: problem.map(|(_, text)| text.to_owned()),
            });
        }
        if let Some(topic) = known {
            names.insert(topic.id, topic.name.clone());
        }
        response.responses.push(AlterShareGroupOffsetsResponseTopic {
            topic_name: asked.topic_name.clone(),
            topic_id: known.map_or(Uuid::ZERO, |it| it.id),
            partitions,
        });
    }
    // As Kafka has it, which looks at no group then.
    if names.is_empty() && !group.is_empty() {
        return node.reply(key, response);
    }
    wish(node, key, context, group, Wish::Start { starts, names, response });
}

/// Handles `DeleteShareGroupOffsets`.
pub(crate) fn delete(
    node: &mut Node,
    key: RequestKey,
    context: &RequestContext,
    request: &DeleteShareGroupOffsetsRequest,
) {
    let group = &request.group_id;
    let mut response = DeleteShareGroupOffsetsResponse::default();
    if !node.core.access.may(context, Operation::Delete, Resource::Group(group)) {
        response.error_code = ErrorCode::GroupAuthorizationFailed.code();
        return node.reply(key, response);
    }
    for asked in &request.topics {
        let may =
            node.core.access.may(context, Operation::Read, Resource::Topic(&asked.topic_name));
        let topic = node.core.controller.image.topic_named(&asked.topic_name);
        let problem = match topic {
            _ if !may => Some((ErrorCode::TopicAuthorizationFailed, NO_TOPIC_ACCESS)),
            None => Some((ErrorCode::UnknownTopicOrPartition, NO_SUCH_TOPIC)),
            Some(_) => None,
        };
        response.responses.push(DeleteShareGroupOffsetsResponseTopic {
            topic_name: asked.topic_name.clone(),
            topic_id: topic.filter(|_| may).map_or(Uuid::ZERO, |it| it.id),
            error_code: problem.map_or(0, |(code, _)| code.code()),
            error_message: problem.map(|(_, text)| text.to_owned()),
        });
    }
    wish(node, key, context, group, Wish::Forget { response });
}

fn wish(node: &mut Node, key: RequestKey, context: &RequestContext, group: &str, wish: Wish) {
    let refused = |code: ErrorCode| refused_wish(&wish, Refusal::new(code, code.name().to_owned()));
    if group.is_empty() {
        return node.reply(key, refused(ErrorCode::InvalidGroupId));
    }
    let not_here = refused(ErrorCode::NotCoordinator);
    let now = node.core.now;
    let asked =
        node.coordinators.coordinate(&mut node.core, key, context.version, group, |it, sight| {
            it.change_shares(sight.rules, sight.topics, key, group, wish, now);
        });
    if let Err(code) = asked {
        let mut answer = not_here;
        match &mut answer {
            duramen_protocol::Response::AlterShareGroupOffsets(it) => it.error_code = code.code(),
            duramen_protocol::Response::DeleteShareGroupOffsets(it) => it.error_code = code.code(),
            _ => {}
        }
        node.reply(key, answer);
    }
}
