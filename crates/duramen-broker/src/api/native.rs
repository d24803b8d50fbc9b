//! The operations of the native API on logs.

use bytes::Bytes;
use duramen_protocol::ErrorCode;
use duramen_storage::op::ReplicaId;
use duramen_storage::sabotage::{self, Bug};

use super::produce::INDEX_BEHIND;
use super::queues::INDEX_WAIT_MS;
use super::{guarded, leases, queues};
use crate::access::{Operation, Resource};
use crate::configs::is_queue_topic;
use crate::core::{Awaited, NativeWait, Parked};
use crate::event::{Now, Reply, RequestKey};
use crate::internal_topics::is_internal;
use crate::native::{
    Answer, Answered, Append, Delete, DeleteQueue, Edited, Guard, Identified, Last, Op, Position,
    Problem, Repeat, Replace, Rewrite, SetFence, Span, Tail, Target, TrimQueue, Trimmed, Truncate,
    WantTail,
};
use crate::node::Node;
use crate::node::queues::{Change, Edit, Editing, Waiter};
use crate::partition::controls::Objection;
use crate::partition::faults::Faults;
use crate::partition::{Acks, Appended, Partition, Slot};
use crate::quotas::QuotaKey;
use crate::session::{Prepared, RequestContext};

/// Longest time that an operation without a timeout waits, in milliseconds.
const UNTIMED_MS: i32 = 30_000;
/// Longest rest that delays an answer, in milliseconds. A client that has to rest longer is refused.
pub(super) const THROTTLED_MS: i32 = 1_000;
const STALLED: &str = "earlier appends wait for the disk";

fn deadline_us(now: Now, timeout_ms: i32) -> u64 {
    now.deadline_us(if timeout_ms > 0 { timeout_ms } else { UNTIMED_MS })
}

/// Returns how long a client has to rest that has exceeded a quota, in milliseconds.
pub(super) fn rest_ms(node: &mut Node, context: &RequestContext, key: QuotaKey) -> i32 {
    node.core.quota(key, context).map_or(0, |quota| node.core.use_up(&quota, 0))
}

/// Serves an operation, now or later.
pub(crate) fn handle(node: &mut Node, key: RequestKey, context: RequestContext, op: Op) {
    match op {
        Op::Append(it) => {
            let deadline_us = deadline_us(node.core.now, it.timeout_ms);
            let rest_ms = rest_ms(node, &context, QuotaKey::ProducerByteRate);
            if rest_ms > THROTTLED_MS && !it.is_patient {
                refuse(node, key, Problem::Throttled(rest_ms));
            } else if node.core.has_stalled() || !node.core.has_room(it.batch.bytes.len() as u64) {
                let request = Prepared::Native(Box::new(Op::Append(it)));
                node.core.stall(key, context, request, deadline_us);
            } else {
                append(node, key, &context, it, deadline_us);
            }
        }
        Op::Tail(WantTail { target, is_certain }) => {
            let found = find(node, &context, Operation::Describe, &target, is_certain);
            let found = found.and_then(|replica| {
                if knows_last(node, replica) {
                    return Ok(replica);
                }
                find(node, &context, Operation::Describe, &target, true)
            });
            match found {
                // A reader that learns this end finds all records before it.
                Ok(replica) if is_certain && queues::is_behind(node, replica) => {
                    let op = Op::Tail(WantTail { target, is_certain });
                    queues::await_index(node, key, context, op, replica);
                }
                Ok(replica) => answer_tail(node, key, replica),
                Err(problem) => refuse(node, key, problem),
            }
        }
        Op::Truncate(it) => truncate(node, key, &context, it),
        Op::Fence(it) => set_fence(node, key, &context, &it),
        op @ (Op::Delete(_)
        | Op::Replace(_)
        | Op::Rewrite(_)
        | Op::DeleteQueue(_)
        | Op::TrimQueue(_)
        | Op::FenceQueue(_)) => edit(node, key, &context, op),
        Op::Lease(it) => leases::lease(node, key, &context, &it),
        Op::Settle(it) => leases::settle(node, key, &context, &it),
        op @ (Op::Retrieve(_) | Op::GetQueue(_) | Op::ListQueues(_)) => {
            queues::handle(node, key, context, op);
        }
    }
}

/// Returns the replica of a log that leads here, or one that can be read, or the reason why there is none for this
/// client.
pub(super) fn find(
    node: &Node,
    context: &RequestContext,
    operation: Operation,
    target: &Target,
    must_lead: bool,
) -> Result<ReplicaId, Problem> {
    if !node.core.access.may(context, operation, Resource::Topic(target.topic())) {
        return Err(Problem::NotAuthorized);
    }
    let topic = node.core.controller.image.topic_named(target.topic());
    let topic = topic.ok_or(Problem::UnknownTopic)?;
    if is_internal(&topic.name) && operation != Operation::Describe {
        let why = "the topic belongs to the broker, and only the broker writes it".to_owned();
        return Err(Problem::BadRequest("topic", why));
    }
    if matches!(target, Target::Queue(_)) && !is_queue_topic(&topic.configs) {
        return Err(Problem::NotAQueueTopic);
    }
    let partition = target.partition(topic.partitions.len());
    let found = if must_lead {
        node.core.serving(topic, partition)
    } else {
        node.core.readable(topic, partition)
    };
    match found {
        Ok(partition) => Ok(partition.group.id()),
        Err(ErrorCode::UnknownTopicOrPartition) => Err(Problem::UnknownTopic),
        Err(ErrorCode::KafkaStorageError) => Err(Problem::Damaged),
        Err(_) => {
            let own = node.core.options.facts.broker_id;
            let leader = node.core.leader_of(topic, partition).map(|(id, _)| id);
            Err(match leader.filter(|id| *id != own) {
                Some(id) => Problem::Elsewhere(id, node.core.native_place(id)),
                None => Problem::NoLeader,
            })
        }
    }
}

/// Returns the replicas that have to lead for certain before an operation is served.
pub(crate) fn asked_for_latest(node: &Node, op: &Op) -> Vec<ReplicaId> {
    let image = &node.core.controller.image;
    let Some(topic) = image.topic_named(op.target().topic()) else { return Vec::new() };
    let count = topic.partitions.len();
    let all = 0..i32::try_from(count).unwrap_or(i32::MAX);
    let named = op.target().partition(count);
    let is_any = named < 0 && matches!(op, Op::Lease(_));
    let partitions = if is_any { all } else { named..named.saturating_add(1) };
    let replicas = partitions.filter_map(|it| node.core.local_replica(topic, it));
    let is_asked = |replica: &ReplicaId| {
        node.core.partitions.get(replica).is_some_and(|it| must_lead_for_certain(op, it))
    };
    replicas.filter(is_asked).collect()
}

fn must_lead_for_certain(op: &Op, partition: &Partition) -> bool {
    match op {
        // A leader that has a successor would give out records that are settled there.
        Op::Lease(_) => true,
        Op::Tail(it) | Op::ListQueues(it) => it.is_certain,
        Op::Retrieve(it) => it.is_certain,
        Op::GetQueue(it) => it.is_certain,
        Op::Truncate(it) => it.through.is_some_and(|it| diverges(partition, it).is_some()),
        Op::Delete(it) => it.positions.iter().any(|it| diverges(partition, *it).is_some()),
        Op::Replace(it) => diverges(partition, it.position).is_some(),
        Op::Rewrite(it) => it.after.is_some_and(|it| diverges(partition, it).is_some()),
        Op::TrimQueue(it) => {
            it.through.offset >= partition.committed() || diverges(partition, it.through).is_some()
        }
        Op::Append(_) | Op::Fence(_) | Op::DeleteQueue(_) | Op::FenceQueue(_) | Op::Settle(_) => {
            false
        }
    }
}

/// Returns the offset at which the log's history parts from that of a position, if it does.
pub(super) fn diverges(partition: &Partition, position: Position) -> Option<i64> {
    let Position { term, offset, .. } = position;
    let (start, end) = (partition.log_start(), partition.committed());
    // The terms below the start are not all known any more.
    if offset < start || (offset < end && partition.epoch_at(offset) == term) {
        return None;
    }
    let (known, until) = partition.epoch_end(term);
    let parted = if known < 0 { end } else { until };
    Some(parted.clamp(start, offset.max(start)))
}

fn append(
    node: &mut Node,
    key: RequestKey,
    context: &RequestContext,
    append: Append,
    deadline_us: u64,
) {
    let bytes = append.batch.bytes.len() as u64;
    let quota = node.core.quota(QuotaKey::ProducerByteRate, context);
    let rest_ms = quota.map_or(0, |quota| node.core.use_up(&quota, bytes));
    let Append { target, batch, ids, .. } = append;
    let attributes = batch.header.attributes;
    if attributes.is_transactional() || attributes.is_control() {
        let why = "they are of a transaction, which only Kafka's protocol has".to_owned();
        let problem = Problem::BadRequest("records", why);
        return reply(node, key, Err(problem), None, rest_ms);
    }
    let replica = match find(node, context, Operation::Write, &target, true)
        .and_then(|replica| takes_appends(node, replica))
    {
        Ok(replica) => replica,
        Err(problem) => return reply(node, key, Err(problem), None, rest_ms),
    };
    let partition = &node.core.partitions[&replica];
    let (end, last_delta) = (partition.group.end_offset(), batch.header.last_offset_delta);
    let producer = (batch.header.producer_id, batch.header.producer_epoch);
    let is_held =
        matches!(target, Target::Queue(_)) && guarded::is_of_queue(partition, &batch.guard);
    // A duplicate of another writer's append is none of the session's: its next request would leave a gap.
    let is_sought = !ids.is_empty() && !batch.header.has_producer();
    let identified = batch.guard.last.filter(|_| is_sought).map(|after| {
        let queue = batch.guard.queue.clone().filter(|_| is_held);
        Identified { after, queue: queue.unwrap_or_default(), ids }
    });
    let appended = if is_held {
        guarded::hold(node, replica, Change::append(batch, Acks::All), (key, 0, 0))
    } else {
        Some(node.core.append(replica, batch, Acks::All, slot(key)))
    };
    let awaited = Awaited::Append { end, last_delta, producer };
    let wait = NativeWait { replica, awaited, identified, rest_ms };
    node.core.park(key, Parked::Native(Box::new(wait)), deadline_us);
    if let Some((appended, _)) = appended {
        go_on(node, key, appended);
    }
}

/// Tells whether a log takes appends now.
fn takes_appends(node: &Node, replica: ReplicaId) -> Result<ReplicaId, Problem> {
    let is_full = node.core.refusal().filter(|_| !sabotage::is(Bug::FullDiskIgnored));
    let partition = &node.core.partitions[&replica];
    match is_full {
        Some(refusal) => Err(Problem::DiskFull(refusal)),
        None if partition.lacks_replicas() => Err(Problem::NotEnoughReplicas),
        None if node.queues.is_behind(partition) => Err(Problem::Busy(INDEX_BEHIND)),
        None => Ok(replica),
    }
}

/// Goes on with a parked operation whose entry is proposed, or that was judged.
pub(super) fn go_on(node: &mut Node, key: RequestKey, appended: Appended) {
    let Some(Parked::Native(wait)) = node.core.parked_mut(key) else { return };
    let (replica, rest_ms) = (wait.replica, wait.rest_ms);
    let problem = match appended {
        Appended::Waits { .. } => return,
        Appended::Objected { reason, is_certain } => {
            wait.awaited = Awaited::Refusal(reason);
            if is_certain {
                on_finished(node, key, ErrorCode::PolicyViolation, -1);
            }
            return;
        }
        Appended::Done { base_offset } => {
            return on_finished(node, key, ErrorCode::None, base_offset);
        }
        Appended::Refused(
            code @ (ErrorCode::PolicyViolation | ErrorCode::OutOfOrderSequenceNumber),
            _,
        ) => return on_finished(node, key, code, -1),
        Appended::Refused(code, text) => problem_of(node, replica, code, text),
        Appended::Faulty(Faults { message, .. }) => Problem::BadRequest("records", message),
        Appended::Busy(why) => Problem::Busy(why),
    };
    node.unpark(key);
    reply(node, key, Err(problem), None, rest_ms);
}

/// Lets in an append that waited for room.
pub(crate) fn resume_stalled(
    node: &mut Node,
    key: RequestKey,
    context: &RequestContext,
    op: Op,
    deadline_us: u64,
) {
    let Op::Append(it) = op else { unreachable!("only appends are stalled") };
    append(node, key, context, it, deadline_us);
}

/// Answers a stalled append whose time is over; its batch was not appended.
pub(crate) fn on_stalled_too_long(node: &mut Node, key: RequestKey) {
    refuse(node, key, Problem::Busy(STALLED));
}

fn truncate(node: &mut Node, key: RequestKey, context: &RequestContext, truncate: Truncate) {
    let Truncate { target, through, pointer, fence, timeout_ms } = truncate;
    let replica = match find(node, context, Operation::Delete, &target, true) {
        Ok(replica) => replica,
        Err(problem) => return refuse(node, key, problem),
    };
    let deadline_us = deadline_us(node.core.now, timeout_ms);
    let partition = node.core.partitions.get_mut(&replica).expect("it was just found");
    if partition.settings.compact && !partition.settings.delete {
        let why = "a compacted topic loses no first records: delete keys in it".to_owned();
        return refuse(node, key, Problem::BadRequest("topic", why));
    }
    if let Some(from) = through.and_then(|position| diverges(partition, position)) {
        return refuse(node, key, Problem::PositionDiverged(from));
    }
    let offset = through.map_or(partition.committed(), |it| it.offset + 1);
    let guard = Guard { fence, ..Guard::default() };
    let appended = match (partition.objection(&guard), pointer) {
        (Some(reason), _) => partition.object(reason, slot(key)),
        (None, Some(pointer)) => partition.truncate(offset, pointer, slot(key)),
        (None, None) => match partition.trim(offset, Some(slot(key))) {
            Ok(true) => Appended::Waits { append_time_ms: -1 },
            Ok(false) => partition.make_certain(slot(key)),
            Err(code) => Appended::Refused(code, None),
        },
    };
    settle(node, key, replica, appended, Awaited::Truncate, deadline_us);
}

fn set_fence(node: &mut Node, key: RequestKey, context: &RequestContext, wanted: &SetFence) {
    let replica = match find(node, context, Operation::Alter, &wanted.target, true) {
        Ok(replica) => replica,
        Err(problem) => return refuse(node, key, problem),
    };
    let deadline_us = deadline_us(node.core.now, wanted.timeout_ms);
    let partition = node.core.partitions.get_mut(&replica).expect("it was just found");
    let appended = partition.set_fence(&wanted.token, wanted.if_token.as_ref(), slot(key));
    let awaited = Awaited::Fence(wanted.token.clone());
    settle(node, key, replica, appended, awaited, deadline_us);
}

/// Begins an edit of a queue.
fn edit(node: &mut Node, key: RequestKey, context: &RequestContext, op: Op) {
    let admitted = admit_edit(node, context, &op).and_then(|(replica, rest_ms)| {
        let wanted = edit_of(&node.core.partitions[&replica], op)?;
        Ok((replica, rest_ms, wanted))
    });
    let (replica, rest_ms, (target, edit, fence, timeout_ms)) = match admitted {
        Ok(admitted) => admitted,
        Err(problem) => return refuse(node, key, problem),
    };
    let Target::Queue(queue) = target else { unreachable!("elements are those of a queue") };
    let awaited = Awaited::Edit { last_delta: 0, edited: Edited::default() };
    let deadline_us = deadline_us(node.core.now, timeout_ms);
    let wait = NativeWait { replica, awaited, identified: None, rest_ms };
    node.core.park(key, Parked::Native(Box::new(wait)), deadline_us);
    let guard = Guard { fence, ..Guard::default() };
    let principal = context.principal.to_string();
    let editing = Editing { queue: queue.name, edit, guard, principal };
    let change = Change::Edit(Box::new(editing));
    if let Some((appended, _)) = guarded::hold(node, replica, change, (key, 0, 0)) {
        go_on(node, key, appended);
    }
}

/// Returns the replica that is to take an edit, and the time that its client has to rest, or the reason of a refusal.
fn admit_edit(
    node: &mut Node,
    context: &RequestContext,
    op: &Op,
) -> Result<(ReplicaId, i32), Problem> {
    let topic = Resource::Topic(op.target().topic());
    let writes = matches!(op, Op::Replace(_) | Op::Rewrite(_));
    if writes && !node.core.access.may(context, Operation::Write, topic) {
        return Err(Problem::NotAuthorized);
    }
    let operation =
        if matches!(op, Op::FenceQueue(_)) { Operation::Alter } else { Operation::Delete };
    let replica = find(node, context, operation, op.target(), true)?;
    let bytes = op.bytes();
    let quota = node.core.quota(QuotaKey::ProducerByteRate, context).filter(|_| bytes > 0);
    let rest_ms = quota.as_ref().map_or(0, |quota| node.core.use_up(quota, 0));
    if rest_ms > THROTTLED_MS {
        return Err(Problem::Throttled(rest_ms));
    }
    if bytes > 0 && (node.core.has_stalled() || !node.core.has_room(bytes)) {
        return Err(Problem::Busy(STALLED));
    }
    takes_appends(node, replica)?;
    Ok((replica, quota.map_or(0, |quota| node.core.use_up(&quota, bytes))))
}

/// Returns the queue of an edit, the edit, its token and its timeout.
fn edit_of(partition: &Partition, op: Op) -> Result<(Target, Edit, Option<Bytes>, i32), Problem> {
    let check = |position: Position| match diverges(partition, position) {
        Some(from) => Err(Problem::PositionDiverged(from)),
        None => Ok(()),
    };
    Ok(match op {
        Op::Delete(Delete { target, positions, fence, timeout_ms }) => {
            positions.iter().copied().try_for_each(check)?;
            let mut offsets: Vec<i64> = positions.iter().map(|it| it.offset).collect();
            offsets.sort_unstable();
            offsets.dedup();
            (target, Edit::Delete(offsets), fence, timeout_ms)
        }
        Op::Replace(Replace { target, position, batch, id, if_version, fence, timeout_ms }) => {
            check(position)?;
            let (at, batch) = (position.offset, Box::new(batch));
            (target, Edit::Replace { at, batch, if_version, id }, fence, timeout_ms)
        }
        Op::Rewrite(Rewrite { target, after, batch, ids, fence, reason, timeout_ms }) => {
            after.map_or(Ok(()), check)?;
            let batch = batch.map(Box::new);
            (target, Edit::Rewrite { after, batch, ids, reason }, fence, timeout_ms)
        }
        Op::DeleteQueue(DeleteQueue { target, fence, timeout_ms }) => {
            (target, Edit::DeleteQueue, fence, timeout_ms)
        }
        Op::TrimQueue(TrimQueue { target, through, pointer, fence, timeout_ms }) => {
            check(through)?;
            let through = through.offset;
            (target, Edit::Trim { through, pointer }, fence, timeout_ms)
        }
        Op::FenceQueue(SetFence { target, token, if_token, timeout_ms }) => {
            (target, Edit::Fence { token, if_token }, None, timeout_ms)
        }
        other => unreachable!("{other:?} edits no queue"),
    })
}

/// Keeps an operation until its entry is committed or its answer certain, or answers it.
fn settle(
    node: &mut Node,
    key: RequestKey,
    replica: ReplicaId,
    appended: Appended,
    awaited: Awaited,
    deadline_us: u64,
) {
    node.core.mark_dirty(replica);
    let wait = NativeWait { replica, awaited, identified: None, rest_ms: 0 };
    node.core.park(key, Parked::Native(Box::new(wait)), deadline_us);
    go_on(node, key, appended);
}

fn slot(key: RequestKey) -> Slot {
    Slot::Request { key, topic: 0, partition: 0 }
}

/// Goes on with an operation whose entry is committed, whose answer is certain, or that lost its leader.
pub(crate) fn on_finished(node: &mut Node, key: RequestKey, error: ErrorCode, base_offset: i64) {
    let Some(Parked::Native(wait)) = node.unpark(key) else { return };
    match error {
        ErrorCode::None | ErrorCode::PolicyViolation => {
            answer_certain(node, key, *wait, base_offset);
        }
        // Until an answer is certain nothing is appended.
        _ if matches!(wait.awaited, Awaited::Refusal(_)) => {
            reply(node, key, Err(Problem::NoLeader), None, wait.rest_ms);
        }
        code => {
            let problem = match code {
                ErrorCode::OutOfOrderSequenceNumber => sequence_gap(node, &wait),
                ErrorCode::UnknownProducerId => Problem::SessionExpired,
                ErrorCode::InvalidProducerEpoch => Problem::SessionFenced,
                _ => Problem::OutcomeUnknown,
            };
            reply(node, key, Err(problem), None, wait.rest_ms);
        }
    }
}

/// Returns the problem of a session that left records out.
fn sequence_gap(node: &Node, wait: &NativeWait) -> Problem {
    match (node.core.partitions.get(&wait.replica), &wait.awaited) {
        (Some(partition), Awaited::Append { producer: (id, epoch), .. }) => {
            Problem::SequenceGap(partition.next_sequence(*id, *epoch))
        }
        // The log is gone meanwhile.
        _ => Problem::NoLeader,
    }
}

fn answer_certain(node: &mut Node, key: RequestKey, wait: NativeWait, base_offset: i64) {
    let NativeWait { replica, awaited, identified, rest_ms } = wait;
    let answer = match awaited {
        Awaited::Append { end, last_delta, .. } => {
            let answer = appended_at(node, replica, base_offset, end, last_delta);
            return reply(node, key, answer, None, rest_ms);
        }
        Awaited::Refusal(reason) => {
            let (problem, last) = match reason {
                Objection::Fenced => (Problem::Fenced, None),
                Objection::LogEnds(last) | Objection::QueueEnds(last) => {
                    (Problem::LastMismatch(last), last)
                }
                Objection::NoElement => (Problem::UnknownElement, None),
                Objection::Version(content) => (Problem::VersionMismatch(content), None),
            };
            let is_mismatch = matches!(problem, Problem::LastMismatch(_));
            let sought = identified.filter(|_| is_mismatch);
            let repeat = sought.and_then(|it| repeat(node, replica, it, last));
            let answered =
                Answered { answer: Err(problem), lacking: Some(replica), repeat, rest_ms };
            return answer(node, key, answered);
        }
        Awaited::Edit { last_delta, mut edited } => {
            if let Some(partition) = node.core.partitions.get(&replica).filter(|_| base_offset >= 0)
            {
                let term = partition.epoch_at(base_offset);
                let first = Position { term, entry: base_offset, offset: base_offset };
                let last = Position { offset: base_offset + i64::from(last_delta), ..first };
                (edited.first, edited.last) = (Some(first), Some(last));
            }
            return await_index(node, key, (replica, rest_ms), edited);
        }
        Awaited::Indexed { edited, .. } => edit_answer(node, replica, edited),
        Awaited::Truncate => tail(node, replica),
        Awaited::Fence(token) => match node.core.partitions.get(&replica) {
            Some(partition) if partition.controls.fence != token => Err(Problem::Fenced),
            _ => tail(node, replica),
        },
    };
    reply(node, key, answer, Some(replica), rest_ms);
}

/// Keeps an edit that is committed until the index has it: from its answer on no reader sees what it took away.
fn await_index(
    node: &mut Node,
    key: RequestKey,
    (replica, rest_ms): (ReplicaId, i32),
    edited: Edited,
) {
    let end = edited.last.filter(|_| !edited.is_duplicate).map_or(0, |last| last.offset + 1);
    let has_it = node.queues.indexed(replica) >= end || sabotage::is(Bug::EditNotAwaited);
    if has_it || !node.core.partitions.contains_key(&replica) {
        let answer = edit_answer(node, replica, edited);
        return reply(node, key, answer, None, rest_ms);
    }
    node.queues.await_index(replica, end, Waiter::Read(key));
    let awaited = Awaited::Indexed { end, edited };
    let wait = NativeWait { replica, awaited, identified: None, rest_ms };
    let deadline_us = node.core.now.deadline_us(INDEX_WAIT_MS);
    node.core.park(key, Parked::Native(Box::new(wait)), deadline_us);
}

/// Answers an edit that the index has, or whose replica leads no more: the next leader shows nothing before it has it.
pub(super) fn on_indexed(node: &mut Node, key: RequestKey) {
    let Some(Parked::Native(wait)) = node.unpark(key) else { return };
    answer_certain(node, key, *wait, -1);
}

fn edit_answer(node: &Node, replica: ReplicaId, edited: Edited) -> Result<Answer, Problem> {
    let is_here = node.core.partitions.contains_key(&replica);
    if is_here { Ok(Answer::Edited(edited)) } else { Err(Problem::OutcomeUnknown) }
}

/// Answers an operation whose time is over.
pub(crate) fn on_timeout(node: &mut Node, key: RequestKey) {
    let is_held = node.queues.holds(key);
    let Some(Parked::Native(wait)) = node.unpark(key) else { return };
    let problem = match wait.awaited {
        Awaited::Refusal(_) => Problem::NoLeader,
        Awaited::Append { .. } | Awaited::Edit { .. } if is_held => Problem::Busy(INDEX_BEHIND),
        Awaited::Append { .. }
        | Awaited::Truncate
        | Awaited::Fence(_)
        | Awaited::Edit { .. }
        | Awaited::Indexed { .. } => Problem::OutcomeUnknown,
    };
    reply(node, key, Err(problem), None, wait.rest_ms);
}

/// Returns the positions of a batch that is committed.
fn appended_at(
    node: &Node,
    replica: ReplicaId,
    base_offset: i64,
    end: i64,
    last_delta: i32,
) -> Result<Answer, Problem> {
    let partition = node.core.partitions.get(&replica).ok_or(Problem::OutcomeUnknown)?;
    let term = partition.epoch_at(base_offset);
    let first = Position { term, entry: base_offset, offset: base_offset };
    let last = Position { offset: base_offset + i64::from(last_delta), ..first };
    assert!(last.offset < partition.committed(), "an append is answered once it is committed");
    Ok(Answer::Appended { first, last, is_duplicate: base_offset < end })
}

/// Returns the part of the log that an earlier attempt of a refused append would have begun.
fn repeat(
    node: &Node,
    replica: ReplicaId,
    identified: Identified,
    last: Option<Position>,
) -> Option<Repeat> {
    let partition = node.core.partitions.get(&replica)?;
    let Identified { after, queue, ids } = identified;
    let from = match after {
        Last::Nothing => 0,
        Last::At(position) if diverges(partition, position).is_some() => return None,
        Last::At(position) => position.offset.saturating_add(1),
    };
    // A rewrite may have withdrawn the attempt since, and a queue ends before elements that are withdrawn.
    let end = match last {
        Some(last) if queue.is_empty() => last.offset + 1,
        _ => node.queues.indexed(replica).min(partition.committed()),
    };
    assert!(end <= partition.committed(), "a refusal is certain once its last record is committed");
    let span = Span {
        replica,
        partition: partition.id.partition,
        name: queue,
        from: from.max(partition.log_start()),
        end,
        is_whole: true,
        aborted: partition.all_aborted(end),
        has_skipped: from < partition.log_start(),
        trimmed: Trimmed::Passed,
        ended_ms: i64::MIN,
        is_metered: false,
    };
    let is_sought = !span.is_empty() && !sabotage::is(Bug::RepeatNotSought);
    is_sought.then_some(Repeat { span, ids })
}

/// Returns the position of a log's last committed record, without its entry.
fn last(partition: &Partition) -> Option<Position> {
    let offset = partition.committed() - 1;
    (offset >= 0).then(|| Position { term: partition.term_at(offset), entry: -1, offset })
}

/// Tells whether a replica knows the last record's term. One that knows nothing to be committed behind a trim does not.
fn knows_last(node: &Node, replica: ReplicaId) -> bool {
    let last = node.core.partitions.get(&replica).and_then(|it| last(it));
    last.is_none_or(|last| last.term >= 0)
}

fn tail(node: &Node, replica: ReplicaId) -> Result<Answer, Problem> {
    let partition = node.core.partitions.get(&replica).ok_or(Problem::UnknownTopic)?;
    Ok(Answer::Tail(Tail {
        start: partition.log_start(),
        stable: partition.stable(),
        end: partition.committed(),
        last: last(partition),
        fence: partition.controls.fence.clone(),
        pointer: partition.controls.pointer.clone(),
    }))
}

pub(super) fn answer_tail(node: &mut Node, key: RequestKey, replica: ReplicaId) {
    let answer = tail(node, replica);
    reply(node, key, answer, Some(replica), 0);
}

/// Returns the problem of a refusal before the append.
fn problem_of(node: &Node, replica: ReplicaId, code: ErrorCode, text: Option<String>) -> Problem {
    let limit = node.core.partitions.get(&replica).map(|it| it.settings.max_message_bytes);
    match code {
        ErrorCode::MessageTooLarge => {
            Problem::TooLarge(limit.and_then(|it| u64::try_from(it).ok()).unwrap_or(0))
        }
        ErrorCode::NotEnoughReplicas => Problem::NotEnoughReplicas,
        ErrorCode::KafkaStorageError => Problem::Damaged,
        ErrorCode::UnknownProducerId => Problem::SessionExpired,
        ErrorCode::InvalidProducerEpoch => Problem::SessionFenced,
        ErrorCode::OffsetOutOfRange => {
            let why = "the position is not in the log".to_owned();
            Problem::BadRequest("through", why)
        }
        ErrorCode::CorruptMessage | ErrorCode::InvalidTxnState => {
            Problem::BadRequest("records", text.unwrap_or_else(|| code.to_string()))
        }
        _ => Problem::NoLeader,
    }
}

pub(super) fn refuse(node: &mut Node, key: RequestKey, problem: Problem) {
    reply(node, key, Err(problem), None, 0);
}

/// Answers an operation. The entry of the answer's last position is looked up in the log of `of`.
pub(super) fn reply(
    node: &mut Node,
    key: RequestKey,
    answer: Result<Answer, Problem>,
    of: Option<ReplicaId>,
    rest_ms: i32,
) {
    self::answer(node, key, Answered { answer, lacking: of, repeat: None, rest_ms });
}

fn answer(node: &mut Node, key: RequestKey, mut answered: Answered) {
    if answered.lacking().is_none() {
        answered.lacking = None;
    }
    node.reply_with(key, Reply::Native(Box::new(answered)));
}
