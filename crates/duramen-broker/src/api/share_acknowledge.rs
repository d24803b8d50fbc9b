//! `ShareAcknowledge`: a consumer of a share group decides on records that it holds.

use std::collections::BTreeMap;

use duramen_protocol::ErrorCode;
use duramen_protocol::messages::share_acknowledge::{PartitionData, ShareAcknowledgeTopicResponse};
use duramen_protocol::messages::{ShareAcknowledgeRequest, ShareAcknowledgeResponse};

use super::{leaders, share_fetch};
use crate::core::ShareRequest;
use crate::event::RequestKey;
use crate::node::Node;
use crate::session::RequestContext;
use crate::shares::partition::Acknowledgement;
use crate::shares::sessions::{FINAL_EPOCH, Target};

pub(crate) fn handle(
    node: &mut Node,
    key: RequestKey,
    context: &RequestContext,
    request: &ShareAcknowledgeRequest,
) {
    let (group, member) = (request.group_id.as_deref(), request.member_id.as_deref());
    let epoch = request.share_session_epoch;
    let begun = share_fetch::admit(node, context, group, member).and_then(|member| {
        let counted = node.shares.sessions.acknowledge(&member, epoch);
        counted.map_err(|code| (code, "the share session is not as it was said"))?;
        Ok(member)
    });
    let member = match begun {
        Ok(member) => member,
        Err((code, text)) => {
            let response = ShareAcknowledgeResponse {
                error_code: code.code(),
                error_message: Some(text.to_owned()),
                ..Default::default()
            };
            return node.reply(key, response);
        }
    };
    let mut said = BTreeMap::<Target, Vec<Acknowledgement>>::new();
    for topic in &request.topics {
        for partition in &topic.partitions {
            let all = partition.acknowledgement_batches.iter().map(|it| Acknowledgement {
                first: it.first_offset,
                last: it.last_offset,
                types: it.acknowledge_types.clone(),
            });
            said.entry((topic.topic_id, partition.partition_index)).or_default().extend(all);
        }
    }
    let mut waiting = ShareRequest::new(member.clone(), context.clone(), None);
    waiting.is_renewing = request.is_renew_ack;
    for (target, said) in said {
        node.shares.acknowledge_share(&mut node.core, key, &mut waiting, target, &said);
    }
    if epoch == FINAL_EPOCH {
        node.shares.end_share_session(&member);
    }
    node.shares.wait_for_shares(&mut node.core, &mut node.coordinators, key, waiting, u64::MAX);
}

/// Answers the request: all its decisions are durable, or their result will not come.
pub(crate) fn answer(node: &mut Node, key: RequestKey, request: ShareRequest) {
    assert_eq!(request.undecided, 0, "no answer leaves before its decisions are durable");
    let lock_ms = node.core.group_settings(&request.member.0).record_lock_duration_ms;
    let mut response =
        ShareAcknowledgeResponse { acquisition_lock_timeout_ms: lock_ms, ..Default::default() };
    for ((topic_id, partition_index), told) in request.told {
        if response.responses.last().is_none_or(|topic| topic.topic_id != topic_id) {
            let topic = ShareAcknowledgeTopicResponse { topic_id, ..Default::default() };
            response.responses.push(topic);
        }
        let topic = response.responses.last_mut().expect("it was just made");
        topic.partitions.push(PartitionData {
            partition_index,
            error_code: told.acknowledged.map_or(0, ErrorCode::code),
            ..Default::default()
        });
    }
    leaders::tell_share_decider(node, &request.context.listener, &mut response);
    node.reply(key, response);
}
