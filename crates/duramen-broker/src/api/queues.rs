//! The operations of the native API that read queues.
//!
//! A read needs the queue index up to all that was committed when it came. A read that waits is registered under its
//! queue before anybody looks, so no element comes in between unseen.

use duramen_protocol::partitioner::partition_of_key;
use duramen_storage::op::ReplicaId;
use duramen_storage::sabotage::{self, Bug};

use super::native::{self, THROTTLED_MS, diverges, find, refuse, reply, rest_ms};
use super::produce::INDEX_BEHIND;
use crate::access::{Operation, Resource};
use crate::core::{Parked, QueueStage, QueueWait};
use crate::event::{FoundElements, RequestKey, WantedElements};
use crate::native::{Answer, Op, Problem, Retrieve, Span, Start, Target, Trimmed};
use crate::node::Node;
use crate::node::queues::Waiter;
use crate::quotas::QuotaKey;
use crate::session::RequestContext;

/// Longest wait for the index, in milliseconds.
pub(super) const INDEX_WAIT_MS: i32 = 5_000;

/// Serves an operation, now or later.
pub(super) fn handle(node: &mut Node, key: RequestKey, context: RequestContext, op: Op) {
    let is_certain = match &op {
        Op::Retrieve(it) => it.is_certain,
        Op::GetQueue(it) => it.is_certain,
        Op::ListQueues(it) => it.is_certain,
        other => unreachable!("{other:?} reads no queue"),
    };
    let replica = match find(node, &context, operation_of(&op), op.target(), is_certain) {
        Ok(replica) => replica,
        Err(problem) => return refuse(node, key, problem),
    };
    let rest_ms = match op {
        Op::Retrieve(_) => rest_ms(node, &context, QuotaKey::ConsumerByteRate),
        _ => 0,
    };
    if rest_ms > THROTTLED_MS {
        return refuse(node, key, Problem::Throttled(rest_ms));
    }
    let partition = &node.core.partitions[&replica];
    // The target of a list is a log.
    if !partition.settings.queue {
        return refuse(node, key, Problem::NotAQueueTopic);
    }
    let committed = partition.committed();
    // A replica that has just begun may have had no turn yet.
    node.queues.follow(&mut node.core, replica);
    if is_certain && is_behind(node, replica) && !sabotage::is(Bug::CommittedTakenForIndexed) {
        return await_index(node, key, context, op, replica);
    }
    let stage = QueueStage::Behind(committed);
    look_or_answer(node, key, QueueWait { context, op, replica, stage });
}

/// Returns the operation that a client needs the right to.
const fn operation_of(op: &Op) -> Operation {
    if let Op::Retrieve(_) = op { Operation::Read } else { Operation::Describe }
}

/// Tells whether the index of a log of queues lacks something that is committed.
pub(super) fn is_behind(node: &Node, replica: ReplicaId) -> bool {
    let partition = &node.core.partitions[&replica];
    partition.settings.queue && node.queues.indexed(replica) < partition.committed()
}

/// Keeps an operation until the index has all that is committed now.
pub(super) fn await_index(
    node: &mut Node,
    key: RequestKey,
    context: RequestContext,
    op: Op,
    replica: ReplicaId,
) {
    node.queues.follow(&mut node.core, replica);
    let committed = node.core.partitions[&replica].committed();
    node.queues.await_index(replica, committed, Waiter::Read(key));
    let deadline_us = node.core.now.deadline_us(INDEX_WAIT_MS);
    let stage = QueueStage::Behind(committed);
    let wait = QueueWait { context, op, replica, stage };
    node.core.park(key, Parked::Queue(Box::new(wait)), deadline_us);
}

/// Answers an operation whose index is there, or has a read look whether it has to wait.
fn look_or_answer(node: &mut Node, key: RequestKey, mut wait: QueueWait) {
    let wait_ms = match &wait.op {
        Op::Retrieve(it) => it.wait_ms,
        _ => 0,
    };
    if wait_ms <= 0 {
        return answer(node, key, &wait);
    }
    let span = match span(node, &wait) {
        Ok(span) => span,
        Err(problem) => return refuse(node, key, problem),
    };
    // The end of now, wherever the end is when an element comes.
    if let Op::Retrieve(it) = &mut wait.op
        && it.start == Start::End
    {
        it.start = Start::At(span.from);
    }
    let deadline_us = node.core.now.deadline_us(wait_ms);
    if !node.queues.has_room() {
        return refuse(node, key, Problem::Busy("too many reads wait for elements of queues"));
    }
    let hash = node.queues.hash(&span.name);
    if !sabotage::is(Bug::WaitsAfterLook) {
        node.queues.await_elements(wait.replica, hash, key);
    }
    let ticket = node.queues.look(&mut node.core, Waiter::Read(key), span, WantedElements::Any);
    wait.stage = QueueStage::Waiting { hash, ticket };
    node.core.park(key, Parked::Queue(Box::new(wait)), deadline_us);
}

/// Goes on with a read whose index is there now, or whose queue may have an element.
pub(super) fn on_ready(node: &mut Node, key: RequestKey) {
    if let Some(Parked::Native(_)) = node.core.parked(key) {
        return native::on_indexed(node, key);
    }
    let Some(Parked::Queue(wait)) = node.unpark(key) else { return };
    match wait.stage {
        QueueStage::Behind(_) => look_or_answer(node, key, *wait),
        QueueStage::Waiting { .. } => answer(node, key, &wait),
    }
}

/// Goes on with a read whose queue somebody has looked at.
pub(crate) fn on_looked(node: &mut Node, key: RequestKey, found: &FoundElements) {
    // The reader of a log that cannot be read learns why.
    if *found != FoundElements::None {
        return on_ready(node, key);
    }
    if let Some(Parked::Queue(wait)) = node.core.parked(key)
        && let QueueStage::Waiting { hash, .. } = wait.stage
        && sabotage::is(Bug::WaitsAfterLook)
    {
        node.queues.await_elements(wait.replica, hash, key);
    }
}

/// Serves an operation again whose replica leads no more, or is gone.
pub(super) fn on_lost(node: &mut Node, key: RequestKey) {
    if let Some(Parked::Native(_)) = node.core.parked(key) {
        return native::on_indexed(node, key);
    }
    let Some(Parked::Queue(wait)) = node.unpark(key) else { return };
    let QueueWait { context, op, .. } = *wait;
    native::handle(node, key, context, op);
}

/// Answers an operation whose time is over.
pub(super) fn on_timeout(node: &mut Node, key: RequestKey) {
    let Some(Parked::Queue(wait)) = node.unpark(key) else { return };
    match wait.stage {
        QueueStage::Behind(_) => {
            refuse(node, key, Problem::Busy(INDEX_BEHIND));
        }
        QueueStage::Waiting { .. } => answer(node, key, &wait),
    }
}

fn answer(node: &mut Node, key: RequestKey, wait: &QueueWait) {
    if let Op::Tail(_) = wait.op {
        return native::answer_tail(node, key, wait.replica);
    }
    // The right may be gone since the operation came.
    let topic = Resource::Topic(wait.op.target().topic());
    let is_trusted = sabotage::is(Bug::ParkedNotJudged);
    if !is_trusted && !node.core.access.may(&wait.context, operation_of(&wait.op), topic) {
        return refuse(node, key, Problem::NotAuthorized);
    }
    let answer = span(node, wait).map(Answer::Span);
    let rest_ms = match wait.op {
        Op::Retrieve(_) => rest_ms(node, &wait.context, QuotaKey::ConsumerByteRate),
        _ => 0,
    };
    reply(node, key, answer, None, rest_ms);
}

/// Returns the part of the log that an operation reads.
fn span(node: &Node, wait: &QueueWait) -> Result<Span, Problem> {
    let partition = node.core.partitions.get(&wait.replica).ok_or(Problem::NoLeader)?;
    let (log_start, indexed) = (partition.log_start(), node.queues.indexed(wait.replica));
    let stable = partition.stable().min(indexed.max(log_start));
    let (start, skips, is_certain) = match &wait.op {
        Op::Retrieve(Retrieve { start, skips_trimmed, is_certain, .. }) => {
            (*start, *skips_trimmed, *is_certain)
        }
        _ => (Start::Begin, true, true),
    };
    let from = match start {
        Start::Begin => log_start,
        Start::End => stable,
        Start::At(offset) => offset,
        Start::After(position) => {
            let is_known = position.offset < partition.committed();
            if (is_certain || is_known)
                && let Some(parted) = diverges(partition, position)
            {
                return Err(Problem::PositionDiverged(parted));
            }
            position.offset.saturating_add(1)
        }
    };
    let has_skipped = from < log_start;
    if has_skipped && !skips {
        return Err(Problem::Trimmed(log_start, partition.controls.pointer.clone()));
    }
    let from = from.max(log_start);
    // A page may end early. An extent may not, so it takes all.
    let (aborted, end) = if matches!(wait.op, Op::GetQueue(_)) {
        (partition.all_aborted(stable), stable)
    } else {
        let (aborted, end) = partition.aborted(from, stable);
        let aborted = aborted.iter();
        (aborted.map(|it| (it.producer_id, it.first_offset, it.last_offset)).collect(), end)
    };
    let name = match wait.op.target() {
        Target::Queue(queue) => queue.name.clone(),
        Target::Log(_) => bytes::Bytes::new(),
    };
    debug_assert!(
        name.is_empty()
            || partition_of_key(&name, partition.settings.partitions) == partition.id.partition,
        "a queue is in the partition of its name"
    );
    Ok(Span {
        replica: wait.replica,
        partition: partition.id.partition,
        name,
        from,
        end,
        is_whole: end == stable,
        aborted,
        has_skipped,
        trimmed: match start {
            Start::Begin | Start::End => Trimmed::Passed,
            Start::At(_) | Start::After(_) if skips => Trimmed::Skipped,
            Start::At(_) | Start::After(_) => Trimmed::Refused,
        },
        ended_ms: node.core.ended_ms(),
        is_metered: node.core.quota(QuotaKey::ConsumerByteRate, &wait.context).is_some(),
    })
}
