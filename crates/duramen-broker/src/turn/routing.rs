//! Place and time of each request: here or by another node; now or later. Later is after a leadership check, after a
//! decision on its topic, or when there is room for its batches.

use std::collections::BTreeSet;

use duramen_protocol::messages::ListOffsetsRequest;
use duramen_protocol::messages::create_topics::CreatableTopic;
use duramen_protocol::{ErrorCode, Request};
use duramen_storage::op::ReplicaId;
use duramen_storage::sabotage::{self, Bug};

use crate::core::{Parked, Then};
use crate::event::RequestKey;
use crate::internal_topics::GROUPS;
use crate::limits::BROKERS_AWAITED_US;
use crate::node::Node;
use crate::session::{Prepared, RequestContext};
use crate::{api, controller};

/// Takes a request whose answer needs a leadership check; hands any other back. The request waits until the check
/// is done: a leader that cannot reach its followers ceases to lead.
pub(super) fn doubt(
    node: &mut Node,
    key: RequestKey,
    context: RequestContext,
    request: Prepared,
) -> Option<(RequestContext, Prepared)> {
    let replicas = match &request {
        _ if !node.core.is_clustered() || sabotage::is(Bug::StaleLeaderAnswers) => BTreeSet::new(),
        Prepared::Produce(_) | Prepared::Fast(_) => BTreeSet::new(),
        Prepared::Request(request) => asked_for_latest(node, request),
        Prepared::Native(op) => api::native::asked_for_latest(node, op).into_iter().collect(),
    };
    let mut outstanding = 0;
    for replica in replicas {
        outstanding += usize::from(node.core.when_sure(replica, Then::Serve(key)).is_none());
    }
    if outstanding == 0 {
        return Some((context, request));
    }
    let request = Box::new(request);
    node.core.park(key, Parked::Doubtful { context, request, outstanding }, u64::MAX);
    None
}

pub(super) fn asked_for_latest(node: &Node, request: &Request) -> BTreeSet<ReplicaId> {
    let partition = |name: &str, index: i32| {
        let topic = node.core.controller.image.topic_named(name)?;
        node.core.local_replica(topic, index)
    };
    match request {
        Request::ListOffsets(ListOffsetsRequest { topics, .. }) => {
            let asked = topics.iter().flat_map(|topic| {
                let indexes = topic.partitions.iter().map(|it| it.partition_index);
                indexes.map(|index| (topic.name.as_str(), index))
            });
            asked.filter_map(|(name, index)| partition(name, index)).collect()
        }
        Request::OffsetForLeaderEpoch(request) => {
            let asked = request.topics.iter().flat_map(|topic| {
                let indexes = topic.partitions.iter().map(|it| it.partition);
                indexes.map(|index| (topic.topic.as_str(), index))
            });
            asked.filter_map(|(name, index)| partition(name, index)).collect()
        }
        Request::DeleteRecords(request) => {
            let asked = request
                .topics
                .iter()
                .flat_map(|topic| topic.partitions.iter().map(|it| (topic.name.as_str(), it)));
            let refused = asked.filter_map(|(name, asked)| {
                let replica = partition(name, asked.partition_index)?;
                let is_ahead = asked.offset > node.core.partitions.get(&replica)?.committed();
                is_ahead.then_some(replica)
            });
            refused.collect()
        }
        // A client that learns that its offset is out of range begins anew somewhere else.
        Request::Fetch(request) => {
            let asked = request.topics.iter().flat_map(|topic| {
                topic.partitions.iter().map(|it| (topic.topic.as_str(), topic.topic_id, it))
            });
            let refused = asked.filter_map(|(name, id, asked)| {
                let image = &node.core.controller.image;
                let topic = if id.is_zero() { image.topic_named(name) } else { image.topic(id) };
                let replica = node.core.local_replica(topic?, asked.partition)?;
                let group = &node.core.partitions.get(&replica)?.group;
                let is_ahead = asked.fetch_offset > group.end_offset()
                    || asked.last_fetched_epoch > group.epoch();
                is_ahead.then_some(replica)
            });
            refused.collect()
        }
        Request::OffsetFetch(request) => {
            let asked = request.groups.iter().map(|group| group.group_id.as_str());
            let asked = asked.chain([request.group_id.as_str()]);
            asked
                .filter_map(|group| node.coordinators.shard_of(&node.core, GROUPS, group).ok())
                .collect()
        }
        // The leader may refuse the request at once, because of a newer producer epoch. So it must lead for
        // certain.
        Request::TxnOffsetCommit(request) => {
            let replica = node.coordinators.shard_of(&node.core, GROUPS, &request.group_id).ok();
            let partition = |id: &ReplicaId| node.core.partitions.get(id);
            let is_refused = |id: &ReplicaId| {
                let (producer, epoch) = (request.producer_id, request.producer_epoch);
                partition(id).is_some_and(|it| it.producer_epoch(producer) > Some(epoch))
            };
            replica.into_iter().filter(is_refused).collect()
        }
        // The controller may refuse the request at once, because of its metadata. So it must lead for certain.
        decided if controller::decides(decided) => {
            BTreeSet::from([node.core.controller.group.id()])
        }
        _ => BTreeSet::new(),
    }
}

/// Serves a request, unless another node is to serve it. A request about a topic that is being created or deleted
/// waits, but not longer than its timeout. Before that it waits for a leadership check, if one is needed
/// (`core/certainty.rs`).
pub(super) fn judge(node: &mut Node, key: RequestKey, context: RequestContext, request: Prepared) {
    if let Some((context, request)) = doubt(node, key, context, request) {
        judge_certain(node, key, context, request);
    }
}

pub(super) fn judge_certain(
    node: &mut Node,
    key: RequestKey,
    context: RequestContext,
    request: Prepared,
) {
    let Prepared::Request(request) = request else {
        return api::dispatch(node, key, context, request);
    };
    if node.core.is_clustered()
        && !node.core.controller.group.is_serving()
        && (controller::decides(&request) || is_known_elsewhere(node, &request))
    {
        return node.forwards.forward(&mut node.core, key, &context, &request);
    }
    if is_to_wait(node, &request) {
        let mut deadline_us = node.core.now.deadline_us(controller::timeout_ms(&request));
        if awaits_brokers(node, &request) {
            deadline_us = deadline_us.min(node.core.now.mono_us + BROKERS_AWAITED_US);
        }
        let request = Box::new(request);
        return node.core.park(key, Parked::Deferred { context, request }, deadline_us);
    }
    api::dispatch(node, key, context, Prepared::Request(request));
}

/// Tells whether another node leads the metadata and knows better.
pub(super) fn is_known_elsewhere(node: &Node, request: &Request) -> bool {
    let leader = node.core.metadata_leader();
    controller::knows_best(request)
        && leader.is_some_and(|id| id != node.core.options.facts.broker_id)
}

pub(super) fn is_to_wait(node: &Node, request: &Request) -> bool {
    node.core.controller.is_deciding_on(request) || awaits_brokers(node, request)
}

/// Tells whether topics are to be made on founders of the cluster that have not registered yet, because the cluster
/// has just been started.
pub(super) fn awaits_brokers(node: &Node, request: &Request) -> bool {
    let Request::CreateTopics(request) = request else { return false };
    let there = &node.core.controller.image.brokers;
    let missing = node.core.founding_brokers().filter(|id| !there.contains_key(id));
    let missing: Vec<i32> = missing.collect();
    let expected = there.len() + missing.len();
    let awaits = |topic: &CreatableTopic| {
        let asked = match topic.replication_factor {
            -1 => usize::try_from(node.core.options.settings.default_replication_factor),
            given => usize::try_from(given),
        };
        let mut assigned = topic.assignments.iter().flat_map(|it| &it.broker_ids);
        if topic.assignments.is_empty() {
            asked.is_ok_and(|asked| asked > there.len() && asked <= expected)
        } else {
            assigned.any(|id| missing.contains(id))
        }
    };
    !missing.is_empty() && request.topics.iter().any(awaits)
}

/// Serves the waiting requests whose topics or settings are decided now.
pub(super) fn judge_again(node: &mut Node) {
    for key in node.core.deferred() {
        let Some(Parked::Deferred { request, .. }) = node.core.parked(key) else { continue };
        if is_to_wait(node, request) {
            continue;
        }
        let Some(Parked::Deferred { context, request }) = node.core.take_parked(key) else {
            continue;
        };
        api::dispatch(node, key, context, Prepared::Request(*request));
        // The next one may be about the same topic.
        node.resume();
    }
}

/// Ends the wait of a request for a decision.
fn end_deferred(node: &mut Node, key: RequestKey) {
    let Some(Parked::Deferred { context, request }) = node.core.take_parked(key) else { return };
    if !node.core.controller.is_deciding_on(&request) {
        // The expected nodes did not come, and the answer says so.
        api::dispatch(node, key, context, Prepared::Request(*request));
    } else if let Some(response) =
        api::waiting::undecided_answer(&request, ErrorCode::RequestTimedOut)
    {
        node.reply(key, response);
    }
}

/// Ends the wait of a request whose time is over, or whose awaited event will not come.
pub(super) fn end_wait(node: &mut Node, key: RequestKey) {
    if matches!(node.core.parked(key), Some(Parked::Deferred { .. })) {
        end_deferred(node, key);
    } else {
        api::waiting::on_timeout(node, key);
    }
}

/// Lets the first waiting append in, if there is room. False if nothing was done.
pub(super) fn resume_stalled(node: &mut Node) -> bool {
    let Some((key, context, request, deadline_us)) = node.core.next_stalled() else { return false };
    match request {
        Prepared::Produce(it) => api::produce::append(node, key, &context, it, deadline_us),
        Prepared::Fast(it) => api::fast::resume_stalled(node, key, context, it, deadline_us),
        Prepared::Native(op) => {
            api::native::resume_stalled(node, key, &context, *op, deadline_us);
        }
        Prepared::Request(_) => unreachable!("only appends are stalled"),
    }
    true
}
