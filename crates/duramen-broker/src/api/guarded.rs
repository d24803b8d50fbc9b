//! Appends whose guard names the last element of a queue.
//!
//! The index knows the elements of committed batches, and the leader which of its other batches may be of the queue. An
//! append is held until the index has all of those. Then somebody looks for the last element. One step judges the
//! append and appends it. If another append of its queue came in between, the element is looked up again.

use duramen_protocol::ErrorCode;
use duramen_protocol::partitioner::key_number;
use duramen_storage::op::ReplicaId;

use super::{native, produce};
use crate::checked_batch::CheckedBatch;
use crate::core::Parked;
use crate::event::FoundElements;
use crate::guard::{Guard, Last};
use crate::native::Span;
use crate::node::Node;
use crate::node::queues::{Held, HeldStage, Place, Waiter};
use crate::partition::controls::Objection;
use crate::partition::producers::Verdict;
use crate::partition::{Acks, Appended, Partition, Slot};

const OPEN: &str = "a transaction is open on the queue";

/// Outcome of a held append, and the log start.
pub(super) type Outcome = (Appended, i64);

/// Tells whether the guard of a batch names the last element of a queue of the log.
pub(super) fn is_of_queue(partition: &Partition, guard: &Guard) -> bool {
    partition.settings.queue && guard.last.is_some() && guard.queue.is_some()
}

/// Holds an append, or returns its outcome at once.
pub(super) fn hold(
    node: &mut Node,
    replica: ReplicaId,
    batch: CheckedBatch,
    acks: Acks,
    place: Place,
) -> Option<Outcome> {
    node.queues.follow(&mut node.core, replica);
    let term = node.core.partitions[&replica].group.term();
    let stage = HeldStage::Behind(0);
    go_on(node, place, Held { replica, batch, acks, term, stage })
}

/// Has the last element of its queue looked up for an append, once the index has all that may be of the queue.
fn go_on(node: &mut Node, place: Place, mut held: Held) -> Option<Outcome> {
    let Some(partition) = node.core.partitions.get(&held.replica) else {
        return Some((Appended::Refused(ErrorCode::UnknownTopicOrPartition, None), -1));
    };
    let leads = partition.obstacle().is_none() && partition.group.term() == held.term;
    if !leads {
        let refused = Appended::Refused(ErrorCode::NotLeaderOrFollower, None);
        return Some((refused, partition.log_start()));
    }
    let fence = Guard { last: None, ..held.batch.guard.clone() };
    if is_there(partition, &held) || partition.objection(&fence).is_some() {
        return Some(append(node, place, held));
    }
    let name = held.batch.guard.queue.clone().expect("the guard is of a queue");
    let end = partition.fresh_end(key_number(&name));
    let indexed = node.queues.indexed(held.replica);
    if indexed < end {
        held.stage = HeldStage::Behind(end);
        node.queues.await_index(held.replica, end, Waiter::Append(place));
        node.queues.hold(place, held);
        return None;
    }
    let from = partition.log_start();
    let span = Span {
        replica: held.replica,
        partition: partition.id.partition,
        name,
        from,
        end: indexed.min(partition.committed()).max(from),
        is_whole: true,
        aborted: partition.all_aborted(indexed),
        has_skipped: false,
        is_metered: false,
    };
    let ticket = node.queues.look(&mut node.core, Waiter::Append(place), span, true);
    held.stage = HeldStage::Looking { ticket, end: indexed };
    node.queues.hold(place, held);
    None
}

/// Tells whether the batch is in the log. A retry is answered with its first positions, whatever the queue ends with.
fn is_there(partition: &Partition, held: &Held) -> bool {
    matches!(partition.verdict(&held.batch.header), Verdict::Duplicate { .. })
}

/// Goes on with an append for which the index is there, or whose replica leads no more.
pub(super) fn on_ready(node: &mut Node, place: Place) {
    let Some(held) = node.queues.take_held(place) else { return };
    if let Some(outcome) = go_on(node, place, held) {
        settle(node, place, outcome);
    }
}

/// Judges an append by the last element of its queue.
pub(crate) fn on_looked(node: &mut Node, place: Place, found: FoundElements) {
    let Some(held) = node.queues.take_held(place) else { return };
    if let Some(outcome) = judge(node, place, held, found) {
        settle(node, place, outcome);
    }
}

fn judge(node: &mut Node, place: Place, held: Held, found: FoundElements) -> Option<Outcome> {
    let Some(partition) = node.core.partitions.get_mut(&held.replica) else {
        return go_on(node, place, held);
    };
    let guard = &held.batch.guard;
    let number = guard.queue.as_ref().map_or(0, |name| key_number(name));
    let HeldStage::Looking { end, .. } = held.stage else {
        unreachable!("an append has one look at a time")
    };
    let is_late = partition.group.term() != held.term || partition.fresh_end(number) > end;
    let last = match found {
        _ if is_late => return go_on(node, place, held),
        FoundElements::NoIndex => {
            node.queues.on_index_lost(&mut node.core, held.replica);
            return go_on(node, place, held);
        }
        FoundElements::Unreadable => {
            let refused = Appended::Refused(ErrorCode::KafkaStorageError, None);
            return Some((refused, partition.log_start()));
        }
        FoundElements::Last(position, true) if position.offset >= partition.stable() => {
            return Some((Appended::Busy(OPEN), partition.log_start()));
        }
        FoundElements::Last(position, _) => Some(position),
        FoundElements::None | FoundElements::Some => None,
    };
    let holds = match guard.last {
        None => true,
        Some(Last::Nothing) => last.is_none(),
        Some(Last::At(wanted)) => {
            last.is_some_and(|last| (last.term, last.offset) == (wanted.term, wanted.offset))
        }
    };
    if holds || is_there(partition, &held) {
        return Some(append(node, place, held));
    }
    let objected = partition.object(Objection::QueueEnds(last), slot(place));
    let log_start = partition.log_start();
    node.core.mark_dirty(held.replica);
    Some((objected, log_start))
}

fn slot((key, topic, partition): Place) -> Slot {
    Slot::Request { key, topic, partition }
}

/// Appends a batch whose guard holds but for its fence, which the partition judges.
fn append(node: &mut Node, place: Place, held: Held) -> Outcome {
    let Held { replica, mut batch, acks, .. } = held;
    batch.guard.last = None;
    node.core.append(replica, batch, acks, slot(place))
}

/// Tells a request that waits the outcome of one of its appends.
fn settle(node: &mut Node, place: Place, (appended, log_start): Outcome) {
    match node.core.parked(place.0) {
        Some(Parked::Produce { .. }) => {
            produce::settle_part(node, slot(place), appended, log_start);
        }
        Some(Parked::Native(_)) => native::go_on(node, place.0, appended),
        Some(other) => unreachable!("{other:?} appends nothing"),
        None => {}
    }
}
