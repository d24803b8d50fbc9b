//! Changes of a queue that depend on its elements: appends whose guard names the last one, and edits.
//!
//! The index knows the elements of committed batches, and the leader which of its other batches may be of the queue. A
//! change is held until the index has all of those. Then somebody looks for the elements. One step judges the change
//! and appends it. If another change of its queue came in between, the elements are looked up again.

use bytes::Bytes;
use duramen_protocol::ErrorCode;
use duramen_protocol::partitioner::key_number;
use duramen_storage::keys::{Said, Statement};
use duramen_storage::op::ReplicaId;

use super::{native, produce};
use crate::core::{Awaited, Parked};
use crate::event::{FoundElements, WantedElements};
use crate::guard::{Guard, Last};
use crate::limits::QUEUE_MASKS_MAX;
use crate::native::Span;
use crate::node::Node;
use crate::node::queues::{Change, Held, HeldStage, Place, Waiter};
use crate::partition::controls::Objection;
use crate::partition::producers::Verdict;
use crate::partition::{Appended, Partition, Slot};

const OPEN: &str = "a transaction is open on the queue";
const TOO_MANY_DELETED: &str = "too many deleted records of the partition wait for their erasure";

/// Outcome of a held append, and the log start.
pub(super) type Outcome = (Appended, i64);

/// Tells whether the guard of a batch names the last element of a queue of the log.
pub(super) fn is_of_queue(partition: &Partition, guard: &Guard) -> bool {
    partition.settings.queue && guard.last.is_some() && guard.queue.is_some()
}

/// Holds a change, or returns its outcome at once.
pub(super) fn hold(
    node: &mut Node,
    replica: ReplicaId,
    change: Change,
    place: Place,
) -> Option<Outcome> {
    node.queues.follow(&mut node.core, replica);
    let term = node.core.partitions[&replica].group.term();
    go_on(node, place, Held { replica, change, term, stage: HeldStage::Behind(0) })
}

impl Change {
    fn queue(&self) -> &Bytes {
        match self {
            Self::Append { batch, .. } => {
                batch.guard.queue.as_ref().expect("the guard is of a queue")
            }
            Self::Delete { queue, .. } => queue,
        }
    }

    /// Returns the conditions that need no look.
    fn fence(&self) -> Guard {
        let guard = match self {
            Self::Append { batch, .. } => &batch.guard,
            Self::Delete { guard, .. } => guard,
        };
        Guard { last: None, ..guard.clone() }
    }

    fn wanted(&self) -> WantedElements {
        match self {
            Self::Append { .. } => WantedElements::Last,
            Self::Delete { offsets, .. } => WantedElements::These(offsets.clone()),
        }
    }
}

/// Has the elements of its queue looked up for a change, once the index has all that may be of the queue.
fn go_on(node: &mut Node, place: Place, mut held: Held) -> Option<Outcome> {
    let Some(partition) = node.core.partitions.get(&held.replica) else {
        return Some((Appended::Refused(ErrorCode::UnknownTopicOrPartition, None), -1));
    };
    let leads = partition.obstacle().is_none() && partition.group.term() == held.term;
    if !leads {
        let refused = Appended::Refused(ErrorCode::NotLeaderOrFollower, None);
        return Some((refused, partition.log_start()));
    }
    let is_objected = partition.objection(&held.change.fence()).is_some();
    if is_there(partition, &held.change) || is_objected {
        return Some(carry_out(node, place, held));
    }
    let name = held.change.queue().clone();
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
    let ticket =
        node.queues.look(&mut node.core, Waiter::Append(place), span, held.change.wanted());
    held.stage = HeldStage::Looking { ticket, end: indexed };
    node.queues.hold(place, held);
    None
}

/// Tells whether the batch is in the log. A retry is answered with its first positions, whatever the queue ends with.
fn is_there(partition: &Partition, change: &Change) -> bool {
    match change {
        Change::Append { batch, .. } => {
            matches!(partition.verdict(&batch.header), Verdict::Duplicate { .. })
        }
        Change::Delete { .. } => false,
    }
}

/// Goes on with a change for which the index is there, or whose replica leads no more.
pub(super) fn on_ready(node: &mut Node, place: Place) {
    let Some(held) = node.queues.take_held(place) else { return };
    if let Some(outcome) = go_on(node, place, held) {
        settle(node, place, outcome);
    }
}

/// Judges a change by the elements of its queue.
pub(crate) fn on_looked(node: &mut Node, place: Place, found: FoundElements) {
    let Some(held) = node.queues.take_held(place) else { return };
    if let Some(outcome) = judge(node, place, held, found) {
        settle(node, place, outcome);
    }
}

fn judge(node: &mut Node, place: Place, mut held: Held, found: FoundElements) -> Option<Outcome> {
    let Some(partition) = node.core.partitions.get_mut(&held.replica) else {
        return go_on(node, place, held);
    };
    let number = key_number(held.change.queue());
    let HeldStage::Looking { end, .. } = held.stage else {
        unreachable!("a change has one look at a time")
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
        FoundElements::These(found, masked) => {
            let Change::Delete { offsets, .. } = &mut held.change else {
                unreachable!("an append asks for the last element")
            };
            if found.last().is_some_and(|last| *last >= partition.stable()) {
                return Some((Appended::Busy(OPEN), partition.log_start()));
            }
            if masked + found.len() as u64 > QUEUE_MASKS_MAX {
                return Some((Appended::Busy(TOO_MANY_DELETED), partition.log_start()));
            }
            if let Some(Parked::Native(wait)) = node.core.parked_mut(place.0) {
                wait.awaited = Awaited::Edit { absent: offsets.len() - found.len() };
            }
            *offsets = found;
            return Some(carry_out(node, place, held));
        }
        FoundElements::None | FoundElements::Some => None,
    };
    let Change::Append { batch, .. } = &held.change else {
        unreachable!("an edit asks for certain elements")
    };
    let holds = match batch.guard.last {
        None => true,
        Some(Last::Nothing) => last.is_none(),
        Some(Last::At(wanted)) => {
            last.is_some_and(|last| (last.term, last.offset) == (wanted.term, wanted.offset))
        }
    };
    if holds || is_there(partition, &held.change) {
        return Some(carry_out(node, place, held));
    }
    let objected = partition.object(Objection::QueueEnds(last), slot(place));
    let log_start = partition.log_start();
    node.core.mark_dirty(held.replica);
    Some((objected, log_start))
}

fn slot((key, topic, partition): Place) -> Slot {
    Slot::Request { key, topic, partition }
}

/// Carries out a change whose conditions hold but for the fence, which the partition judges.
fn carry_out(node: &mut Node, place: Place, held: Held) -> Outcome {
    let Held { replica, change, .. } = held;
    let (queue, offsets, guard, principal) = match change {
        Change::Append { mut batch, acks } => {
            batch.guard.last = None;
            return node.core.append(replica, *batch, acks, slot(place));
        }
        Change::Delete { queue, offsets, guard, principal } => (queue, offsets, guard, principal),
    };
    let partition = node.core.partitions.get_mut(&replica).expect("it was just found");
    let log_start = partition.log_start();
    let appended = if let Some(reason) = partition.objection(&guard) {
        partition.object(reason, slot(place))
    } else if offsets.is_empty() {
        partition.make_certain(slot(place))
    } else {
        let statement = Statement { queue, principal, said: Said::Deleted(offsets) };
        node.core.say(replica, &statement, slot(place))
    };
    node.core.mark_dirty(replica);
    (appended, log_start)
}

/// Tells a request that waits the outcome of one of its changes.
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
