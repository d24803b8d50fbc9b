//! `Lease` and `Settle`: workers of the native API take records that share groups give out, without a session.

use std::collections::BTreeSet;
use std::sync::Arc;

use duramen_protocol::ErrorCode;
use duramen_protocol::wire::Uuid;

use super::native::{THROTTLED_MS, find, refuse, reply, rest_ms};
use crate::access::{Operation, Resource};
use crate::core::{ShareRequest, Told, Wanted, Worker};
use crate::event::RequestKey;
use crate::native::{
    self, Answer, Decision, Lease, Leased, LeasedPart, Problem, Settle, Target as Place,
};
use crate::node::Node;
use crate::quotas::QuotaKey;
use crate::session::RequestContext;
use crate::shares::partition::Limits;
use crate::shares::sessions::{Member, Target};

/// Longest time for which a worker that waits for nothing waits for what is being read, in milliseconds.
const READ_WAIT_MS: i32 = 5_000;

fn admit(
    node: &Node,
    context: &RequestContext,
    group: &str,
    worker: &str,
) -> Result<Member, Problem> {
    if node.core.access.may(context, Operation::Read, Resource::Group(group)) {
        Ok((Arc::from(group), Arc::from(worker)))
    } else {
        Err(Problem::NotAuthorized)
    }
}

/// Returns the partitions that this node leads and a worker leases of, in turns.
fn targets(
    node: &mut Node,
    context: &RequestContext,
    target: &Place,
) -> Result<Vec<Target>, Problem> {
    if !node.core.access.may(context, Operation::Read, Resource::Topic(target.topic())) {
        return Err(Problem::NotAuthorized);
    }
    let wanted = target.partition(0);
    if wanted >= 0 {
        find(node, context, Operation::Read, target, true)?;
    }
    let chance = node.core.chance.next();
    let topic = node.core.controller.image.topic_named(target.topic());
    let topic = topic.ok_or(Problem::UnknownTopic)?;
    if wanted >= 0 {
        return Ok(vec![(topic.id, wanted)]);
    }
    let count = i32::try_from(topic.partitions.len()).unwrap_or(i32::MAX);
    let mut here: Vec<Target> = (0..count)
        .filter(|partition| node.core.serving(topic, *partition).is_ok())
        .map(|partition| (topic.id, partition))
        .collect();
    let turn = usize::try_from(chance % here.len().max(1) as u64).unwrap_or(0);
    here.rotate_left(turn);
    Ok(here)
}

/// Returns the other nodes that lead partitions of a topic.
fn others(node: &Node, topic: Uuid) -> Vec<(i32, Option<native::Place>)> {
    let own = node.core.options.facts.broker_id;
    let Some(topic) = node.core.controller.image.topic(topic) else { return Vec::new() };
    let count = i32::try_from(topic.partitions.len()).unwrap_or(i32::MAX);
    let leaders = (0..count).filter_map(|partition| node.core.leader_of(topic, partition));
    let others: BTreeSet<i32> = leaders.map(|(id, _)| id).filter(|id| *id != own).collect();
    others.into_iter().map(|id| (id, node.core.native_place(id))).collect()
}

/// Leases records, now or once there are any.
pub(super) fn lease(node: &mut Node, key: RequestKey, context: &RequestContext, wanted: &Lease) {
    let quota = node.core.quota(QuotaKey::ConsumerByteRate, context);
    let rest_ms = rest_ms(node, context, QuotaKey::ConsumerByteRate);
    if rest_ms > THROTTLED_MS {
        return refuse(node, key, Problem::Throttled(rest_ms));
    }
    let admitted = admit(node, context, &wanted.group, &wanted.worker)
        .and_then(|member| Ok((member, targets(node, context, &wanted.target)?)));
    let (member, targets) = match admitted {
        Ok(admitted) => admitted,
        Err(problem) => return refuse(node, key, problem),
    };
    let limits = Limits { records: wanted.records, bytes: wanted.bytes, is_strict: true };
    let mut request = ShareRequest::new(
        member,
        context.clone(),
        Some(Wanted { limits, bytes_min: 0, is_full: false }),
    );
    request.quota = quota;
    let topic = node.core.controller.image.topic_named(wanted.target.topic()).map(|it| it.id);
    let is_of_all = wanted.target.partition(0) < 0;
    let others = topic.filter(|_| is_of_all).map_or_else(Vec::new, |it| others(node, it));
    request.is_over = wanted.wait_ms <= 0 || targets.is_empty();
    request.worker = Some(Worker { targets, others, ..Worker::default() });
    let wait_ms = if request.is_over { READ_WAIT_MS } else { wanted.wait_ms };
    let deadline_us = node.core.now.deadline_us(wait_ms);
    node.shares.wait_for_shares(&mut node.core, &mut node.coordinators, key, request, deadline_us);
}

/// Settles leases, and answers once the decisions are durable.
pub(super) fn settle(node: &mut Node, key: RequestKey, context: &RequestContext, wanted: &Settle) {
    let admitted = admit(node, context, &wanted.group, &wanted.worker).and_then(|member| {
        find(node, context, Operation::Read, &wanted.target, true)?;
        let topic = node.core.controller.image.topic_named(wanted.target.topic());
        let topic = topic.ok_or(Problem::UnknownTopic)?;
        Ok((member, (topic.id, wanted.target.partition(topic.partitions.len()))))
    });
    let (member, target) = match admitted {
        Ok(admitted) => admitted,
        Err(problem) => return refuse(node, key, problem),
    };
    let is_renewal = |decision| matches!(decision, Decision::Renew);
    let renews = wanted.settlements.iter().any(|it| is_renewal(it.decision));
    if renews && !node.core.group_settings(&wanted.group).may_renew {
        let why = "the group's setting share.renew.acknowledge.enable forbids renewals".to_owned();
        return refuse(node, key, Problem::BadRequest("settlements", why));
    }
    let mut request = ShareRequest::new(member, context.clone(), None);
    let settled =
        node.shares.settle_leases(&mut node.core, key, &mut request, target, &wanted.settlements);
    match settled {
        Ok(lost) => request.worker = Some(Worker { lost, ..Worker::default() }),
        Err(_) => return refuse(node, key, Problem::NoLeader),
    }
    node.shares.wait_for_shares(&mut node.core, &mut node.coordinators, key, request, u64::MAX);
}

/// Answers a worker: its decisions are durable, or their result will not come; or it has records.
pub(super) fn answer(node: &mut Node, key: RequestKey, request: ShareRequest) {
    assert_eq!(request.undecided, 0, "no answer leaves before its decisions are durable");
    let ShareRequest { worker, told, wanted, rest_ms, member, quota, .. } = request;
    let worker = worker.unwrap_or_default();
    if let Some(problem) = worker.problem {
        return refuse(node, key, problem);
    }
    if wanted.is_none() {
        let failed = told.values().filter_map(|it| it.acknowledged).any(|code| !code.is_none());
        let answer =
            if failed { Err(Problem::OutcomeUnknown) } else { Ok(Answer::Settled(worker.lost)) };
        return reply(node, key, answer, None, rest_ms);
    }
    let is_gone = !told.is_empty() && told.values().all(|it| it.error.is_some());
    if is_gone {
        let is_unknown = |it: &Told| it.error == Some(ErrorCode::UnknownTopicId);
        let problem =
            if told.values().any(is_unknown) { Problem::UnknownTopic } else { Problem::NoLeader };
        return refuse(node, key, problem);
    }
    let part = |((_, partition), told): (Target, Told)| {
        let (replica, plan) = told.plan?;
        let log = node.core.partitions.get(&replica)?;
        let (end, is_of_queues) = (log.committed(), log.settings.queue);
        let each = |it: &crate::shares::partition::Piece| {
            let deliveries = it.deliveries;
            (it.first..=it.last).map(move |offset| (offset, deliveries))
        };
        let records = plan.pieces.iter().flat_map(each).collect();
        Some(LeasedPart { replica, partition, end, is_of_queues, records })
    };
    let parts = told.into_iter().filter_map(part).collect();
    let lock_ms = node.core.group_settings(&member.0).record_lock_duration_ms;
    let leased = Leased { parts, lock_ms, others: worker.others, is_metered: quota.is_some() };
    reply(node, key, Ok(Answer::Leased(leased)), None, rest_ms);
}
