//! `ShareFetch`: a consumer of a share group decides on records that it holds, and acquires others.

use std::collections::BTreeMap;
use std::sync::Arc;

use duramen_protocol::ErrorCode;
use duramen_protocol::messages::share_fetch::{
    AcquiredRecords, PartitionData, ShareFetchableTopicResponse,
};
use duramen_protocol::messages::{ShareFetchRequest, ShareFetchResponse};

use super::leaders;
use crate::access::{Operation, Resource};
use crate::core::{Parked, ShareRequest, Told, Wanted};
use crate::event::{Reply, RequestKey, SharePart, SharePlan};
use crate::node::Node;
use crate::quotas::QuotaKey;
use crate::session::RequestContext;
use crate::shares::partition::{Acknowledgement, Limits};
use crate::shares::sessions::{FINAL_EPOCH, FIRST_EPOCH, Member, Target};

/// Characters of a member's id.
const MEMBER_ID_MAX: usize = 36;
const RECORD_LIMIT: i8 = 1;

type Refusal = (ErrorCode, &'static str);

/// Tells whether a consumer may ask for anything of a group at all.
pub(super) fn admit(
    node: &Node,
    context: &RequestContext,
    group: Option<&str>,
    member: Option<&str>,
) -> Result<Member, Refusal> {
    let group = group.ok_or((ErrorCode::InvalidRequest, "a group id is missing"))?;
    if !node.core.access.may(context, Operation::Read, Resource::Group(group)) {
        return Err((ErrorCode::GroupAuthorizationFailed, "not allowed to read of the group"));
    }
    let is_good = |it: &&str| !it.is_empty() && it.chars().count() <= MEMBER_ID_MAX;
    let member = member.filter(is_good);
    let member = member.ok_or((ErrorCode::InvalidRequest, "the member id is none"))?;
    Ok((Arc::from(group), Arc::from(member)))
}

pub(crate) fn handle(
    node: &mut Node,
    key: RequestKey,
    context: &RequestContext,
    request: &ShareFetchRequest,
) {
    if let Err((code, text)) = begin(node, key, context, request) {
        let response = ShareFetchResponse {
            error_code: code.code(),
            error_message: Some(text.to_owned()),
            ..Default::default()
        };
        node.reply(key, response);
    }
}

fn begin(
    node: &mut Node,
    key: RequestKey,
    context: &RequestContext,
    request: &ShareFetchRequest,
) -> Result<(), Refusal> {
    let member = admit(node, context, request.group_id.as_deref(), request.member_id.as_deref())?;
    let epoch = request.share_session_epoch;
    let is_idle = request.max_bytes == 0
        && request.min_bytes == 0
        && request.max_records == 0
        && request.max_wait_ms == 0;
    if request.is_renew_ack && !is_idle {
        return Err((ErrorCode::InvalidRequest, "who renews locks fetches nothing"));
    }
    let said = acknowledgements(request);
    if epoch == FINAL_EPOCH {
        if !node.shares.sessions.has(&member) {
            return Err((ErrorCode::ShareSessionNotFound, "there is no such share session"));
        }
    } else {
        if epoch == FIRST_EPOCH && !said.is_empty() {
            return Err((ErrorCode::InvalidRequest, "a new session has nothing to acknowledge"));
        }
        if epoch == FIRST_EPOCH {
            node.shares.forget_share_session(&member);
        }
        let asked = request.topics.iter();
        let asked =
            asked.flat_map(|it| it.partitions.iter().map(|p| (it.topic_id, p.partition_index)));
        let forgotten = request.forgotten_topics_data.iter();
        let forgotten = forgotten.flat_map(|it| it.partitions.iter().map(|p| (it.topic_id, *p)));
        let (asked, forgotten): (Vec<Target>, Vec<Target>) = (asked.collect(), forgotten.collect());
        let begun = node.shares.sessions.begin(&member, epoch, key.0, &asked, &forgotten);
        let changed = begun.map_err(|code| (code, "the share session is not as it was said"))?;
        node.shares.note_share_session(&member, &changed.added, &changed.removed);
    }
    let is_strict = request.share_acquire_mode == RECORD_LIMIT;
    let quota = node.core.quota(QuotaKey::ConsumerByteRate, context);
    let bytes = request.max_bytes.min(node.core.options.settings.fetch_max_bytes);
    let bytes = quota.as_ref().map_or(bytes, |quota| bytes.min(quota.window_max()));
    let bytes = bytes.max(0).unsigned_abs();
    let (bytes, records) = (u64::from(bytes), i64::from(request.max_records.max(0)));
    let is_fetching = epoch != FINAL_EPOCH && records > 0;
    let wanted = Wanted {
        limits: Limits { records: if is_fetching { records } else { 0 }, bytes, is_strict },
        bytes_min: u64::from(request.min_bytes.max(0).unsigned_abs()).min(bytes),
        is_full: epoch == FIRST_EPOCH,
    };
    let mut waiting = ShareRequest::new(member.clone(), context.clone(), Some(wanted));
    (waiting.is_renewing, waiting.quota) = (request.is_renew_ack, quota);
    for (target, said) in said {
        node.shares.acknowledge_share(&mut node.core, key, &mut waiting, target, &said);
    }
    if epoch == FINAL_EPOCH {
        node.shares.end_share_session(&member);
    }
    let wait_ms = if is_fetching { request.max_wait_ms } else { 0 };
    let deadline_us = node.core.now.deadline_us(wait_ms);
    node.shares.wait_for_shares(&mut node.core, &mut node.coordinators, key, waiting, deadline_us);
    Ok(())
}

fn acknowledgements(request: &ShareFetchRequest) -> BTreeMap<Target, Vec<Acknowledgement>> {
    let mut said = BTreeMap::<_, Vec<Acknowledgement>>::new();
    for topic in &request.topics {
        for partition in &topic.partitions {
            let all = partition.acknowledgement_batches.iter().map(|it| Acknowledgement {
                first: it.first_offset,
                last: it.last_offset,
                types: it.acknowledge_types.clone(),
            });
            let mut all = all.peekable();
            if all.peek().is_some() {
                said.entry((topic.topic_id, partition.partition_index)).or_default().extend(all);
            }
        }
    }
    said
}

/// Answers a request that timed out with the records at hand. The request still waits for its decisions to become
/// durable.
pub(crate) fn on_timeout(node: &mut Node, key: RequestKey) {
    if let Some(Parked::Share(request)) = node.core.parked_mut(key) {
        request.is_over = true;
        if let Some(worker) = &mut request.worker {
            worker.is_late = true;
        }
        node.shares.wake_share(key);
    }
}

/// Answers a fetch.
pub(crate) fn answer(node: &mut Node, key: RequestKey, request: ShareRequest) {
    assert_eq!(request.undecided, 0, "no answer leaves before its decisions are durable");
    let lock_ms = node.core.group_settings(&request.member.0).record_lock_duration_ms;
    let mut response = ShareFetchResponse {
        acquisition_lock_timeout_ms: lock_ms,
        throttle_time_ms: request.rest_ms,
        ..Default::default()
    };
    let mut parts = Vec::new();
    for ((topic_id, partition_index), told) in request.told {
        let Told { acknowledged, error, plan } = told;
        if response.responses.last().is_none_or(|topic| topic.topic_id != topic_id) {
            let topic = ShareFetchableTopicResponse { topic_id, ..Default::default() };
            response.responses.push(topic);
        }
        let topic = response.responses.len() - 1;
        let partitions = &mut response.responses[topic].partitions;
        let mut data = PartitionData {
            partition_index,
            error_code: error.map_or(0, ErrorCode::code),
            acknowledge_error_code: acknowledged.map_or(0, ErrorCode::code),
            ..Default::default()
        };
        if let Some((replica, plan)) = plan {
            let acquired = plan.pieces.iter().map(|piece| AcquiredRecords {
                first_offset: piece.first,
                last_offset: piece.last,
                delivery_count: piece.deliveries,
            });
            data.acquired_records = acquired.collect();
            let (from, end, bytes, partition) = (plan.from, plan.end, plan.bytes, partitions.len());
            let is_of_queues =
                node.core.partitions.get(&replica).is_some_and(|it| it.settings.queue);
            let part = SharePart { topic, partition, replica, from, end, bytes, is_of_queues };
            parts.push(part);
        }
        partitions.push(data);
    }
    leaders::tell_share_consumer(node, &request.context.listener, &mut response);
    if parts.is_empty() {
        return node.reply(key, response);
    }
    node.reply_with(key, Reply::ShareFetch(Box::new(SharePlan { response, parts })));
}
