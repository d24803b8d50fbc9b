//! Changes of a queue that depend on its elements: appends whose guard names the last one, and edits.
//!
//! The index knows the elements of committed batches, and the leader which of its other batches may be of the queue. A
//! change is held until the index has all of those. Then somebody looks for the elements. One step judges the change
//! and appends it. If another change of its queue came in between, the elements are looked up again.

use std::collections::BTreeMap;

use bytes::Bytes;
use duramen_protocol::ErrorCode;
use duramen_protocol::partitioner::key_number;
use duramen_storage::keys::{
    CUTS_AFTER_HEADER, Deleted, FACT_HEADER, REPLACES_HEADER, Replaced, Said, Standing, Statement,
};
use duramen_storage::op::ReplicaId;
use duramen_storage::sabotage::{self, Bug};

use super::{native, produce};
use crate::checked_batch::CheckedBatch;
use crate::core::{Awaited, Parked};
use crate::event::{FoundElement, FoundElements, QueueLooked, WantedElements};
use crate::guard::{Guard, Last, Position};
use crate::limits::QUEUE_MASKS_MAX;
use crate::native::{Edited, Span, Trimmed};
use crate::node::Node;
use crate::node::queues::{Change, Edit, Editing, Held, HeldStage, Place, Waiter};
use crate::partition::controls::Objection;
use crate::partition::pointers::encode_pointer;
use crate::partition::producers::Verdict;
use crate::partition::{Acks, Appended, Partition, Slot};

const OPEN: &str = "a transaction is open on the queue";
const TOO_MANY_DELETED: &str = "too many deleted records of the partition wait for their erasure";

/// Outcome of a held append, and the log start.
pub(super) type Outcome = (Appended, i64);

/// Tells whether the guard of a batch is about a queue of the log: its last element, or its fence.
pub(super) fn is_of_queue(partition: &Partition, guard: &Guard) -> bool {
    partition.settings.queue && !guard.is_open() && guard.queue.is_some()
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
    /// Takes the condition on the fence away, which holds.
    fn pass_fence(&mut self) {
        match self {
            Self::Append { batch, .. } => batch.guard.fence = None,
            Self::Edit(it) => it.guard.fence = None,
        }
    }

    fn queue(&self) -> &Bytes {
        match self {
            Self::Append { batch, .. } => {
                batch.guard.queue.as_ref().expect("the guard is of a queue")
            }
            Self::Edit(it) => &it.queue,
        }
    }

    /// Returns the condition on the fence.
    fn fence(&self) -> Guard {
        let guard = match self {
            Self::Append { batch, .. } => &batch.guard,
            Self::Edit(it) => &it.guard,
        };
        Guard { last: None, ..guard.clone() }
    }

    fn wanted(&self) -> WantedElements {
        match self {
            Self::Append { batch, .. } if batch.guard.last.is_none() => WantedElements::Standing,
            Self::Append { .. } => WantedElements::Last,
            Self::Edit(it) => match &it.edit {
                Edit::Delete(offsets) => WantedElements::These(offsets.clone()),
                Edit::Replace { at, .. } => WantedElements::These(vec![*at]),
                Edit::Rewrite { after, .. } => {
                    WantedElements::Behind(after.map_or(-1, |it| it.offset))
                }
                Edit::DeleteQueue => WantedElements::Behind(-1),
                Edit::Trim { .. } | Edit::Fence { .. } => WantedElements::Standing,
            },
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
    if let Change::Append { batch, acks } = held.change {
        if is_there(partition, &batch) {
            return Some(append(node, held.replica, *batch, acks, place));
        }
        held.change = Change::Append { batch, acks };
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
        trimmed: Trimmed::Shown,
        ended_ms: i64::MIN,
        is_metered: false,
    };
    let ticket =
        node.queues.look(&mut node.core, Waiter::Append(place), span, held.change.wanted());
    held.stage = HeldStage::Looking { ticket, end: indexed };
    node.queues.hold(place, held);
    None
}

/// Tells whether the batch is in the log. A retry is answered with its first positions, whatever the queue ends with.
fn is_there(partition: &Partition, batch: &CheckedBatch) -> bool {
    matches!(partition.verdict(&batch.header), Verdict::Duplicate { .. })
}

/// Goes on with a change for which the index is there, or whose replica leads no more.
pub(super) fn on_ready(node: &mut Node, place: Place) {
    let Some(held) = node.queues.take_held(place) else { return };
    if let Some(outcome) = go_on(node, place, held) {
        settle(node, place, outcome);
    }
}

/// Judges a change by the elements of its queue.
pub(crate) fn on_looked(node: &mut Node, place: Place, looked: QueueLooked) {
    let Some(held) = node.queues.take_held(place) else { return };
    if let Some(outcome) = judge(node, place, held, looked) {
        settle(node, place, outcome);
    }
}

fn judge(node: &mut Node, place: Place, mut held: Held, looked: QueueLooked) -> Option<Outcome> {
    let Some(partition) = node.core.partitions.get_mut(&held.replica) else {
        return go_on(node, place, held);
    };
    let number = key_number(held.change.queue());
    let HeldStage::Looking { end, .. } = held.stage else {
        unreachable!("a change has one look at a time")
    };
    let is_late = partition.group.term() != held.term || partition.fresh_end(number) > end;
    if is_late {
        return go_on(node, place, held);
    }
    let QueueLooked { found, standing, .. } = looked;
    let fence = held.change.fence();
    let is_again = match &held.change {
        Change::Append { batch, .. } => is_there(partition, batch),
        Change::Edit(_) => false,
    };
    match found {
        FoundElements::NoIndex => {
            node.queues.on_index_lost(&mut node.core, held.replica);
            return go_on(node, place, held);
        }
        FoundElements::Unreadable => {
            let refused = Appended::Refused(ErrorCode::KafkaStorageError, None);
            return Some((refused, partition.log_start()));
        }
        _ if is_again => {}
        _ => {
            // The fence of the queue is in the log's place.
            let own = standing.fence().filter(|_| !sabotage::is(Bug::QueueFenceIgnored));
            let objection = match (own, &fence.fence) {
                (Some(own), Some(token)) => (own != token).then_some(Objection::Fenced),
                _ => partition.objection(&fence),
            };
            if let Some(reason) = objection {
                return Some(object(node, held.replica, reason, place));
            }
            if own.is_some() {
                held.change.pass_fence();
            }
        }
    }
    match held.change {
        Change::Append { batch, acks } => {
            Some(judge_append(node, held.replica, (batch, acks), &found, place))
        }
        Change::Edit(editing) => {
            Some(judge_edit(node, held.replica, *editing, (found, &standing), place))
        }
    }
}

/// Refuses a change, once it is certain that its condition does not hold.
fn object(node: &mut Node, replica: ReplicaId, reason: Objection, place: Place) -> Outcome {
    let partition = node.core.partitions.get_mut(&replica).expect("it was just found");
    let objected = partition.object(reason, slot(place));
    let log_start = partition.log_start();
    node.core.mark_dirty(replica);
    (objected, log_start)
}

fn judge_append(
    node: &mut Node,
    replica: ReplicaId,
    (batch, acks): (Box<CheckedBatch>, Acks),
    found: &FoundElements,
    place: Place,
) -> Outcome {
    let partition = &node.core.partitions[&replica];
    let last = match found {
        FoundElements::Last(position, true) if position.offset >= partition.stable() => {
            return (Appended::Busy(OPEN), partition.log_start());
        }
        FoundElements::Last(position, _) => Some(*position),
        _ => None,
    };
    let holds = match batch.guard.last {
        None => true,
        Some(Last::Nothing) => last.is_none(),
        Some(Last::At(wanted)) => {
            last.is_some_and(|last| (last.term, last.offset) == (wanted.term, wanted.offset))
        }
    };
    if holds || is_there(partition, &batch) {
        append(node, replica, *batch, acks, place)
    } else {
        object(node, replica, Objection::QueueEnds(last), place)
    }
}

fn judge_edit(
    node: &mut Node,
    replica: ReplicaId,
    Editing { queue, edit, guard, principal }: Editing,
    (found, standing): (FoundElements, &Standing),
    place: Place,
) -> Outcome {
    let (found, masked) = match found {
        FoundElements::These(found, masked) => (found, masked),
        _ => (Vec::new(), 0),
    };
    let partition = &node.core.partitions[&replica];
    if found.last().is_some_and(|last| last.position.offset >= partition.stable()) {
        return (Appended::Busy(OPEN), partition.log_start());
    }
    if masked + found.len() as u64 > QUEUE_MASKS_MAX {
        return (Appended::Busy(TOO_MANY_DELETED), partition.log_start());
    }
    match decide(partition, edit, &found, standing) {
        Ok((said, records, awaited)) => {
            if let Some(Parked::Native(wait)) = node.core.parked_mut(place.0) {
                wait.awaited = awaited;
            }
            let saying = said.map(|said| (Statement { queue, principal, said }, records));
            say(node, replica, &guard, saying, place)
        }
        Err(reason) => object(node, replica, reason, place),
    }
}

fn slot((key, topic, partition): Place) -> Slot {
    Slot::Request { key, topic, partition }
}

/// Appends a batch whose queue ends as its guard says. The partition judges the fence.
fn append(
    node: &mut Node,
    replica: ReplicaId,
    mut batch: CheckedBatch,
    acks: Acks,
    place: Place,
) -> Outcome {
    batch.guard.last = None;
    // The first attempt of a retry may have been appended while the retry was held.
    let held_until = node.core.partitions[&replica].group.end_offset();
    if let Some(Parked::Native(wait)) = node.core.parked_mut(place.0)
        && let Awaited::Append { end, .. } = &mut wait.awaited
    {
        *end = held_until;
    }
    node.core.append(replica, batch, acks, slot(place))
}

/// Records with which the log states an edit. Their first one has a header for consumers of Kafka.
struct Records {
    batch: Box<CheckedBatch>,
    header: (&'static str, String),
}

/// Decision on an edit: the fact to be stated, the records that state it, and the event that the answer waits for.
type Decision = (Option<Said>, Option<Records>, Awaited);

/// States that elements are deleted.
fn deletion_of(found: &[FoundElement]) -> Deleted {
    let element = |it: &FoundElement| (it.content, it.position.offset);
    let all: BTreeMap<i64, i64> = found.iter().map(element).collect();
    let (withdrawn, elements) = all.into_iter().unzip();
    Deleted { withdrawn, elements }
}

/// Judges an edit by the elements that it is about.
fn decide(
    partition: &Partition,
    edit: Edit,
    found: &[FoundElement],
    standing: &Standing,
) -> Result<Decision, Objection> {
    let mut withdrawn: Vec<i64> = found.iter().map(|it| it.content).collect();
    withdrawn.sort_unstable();
    let mut edited = Edited { withdrawn: withdrawn.len(), ..Edited::default() };
    let (said, records) = match edit {
        Edit::Delete(offsets) => {
            edited.absent = offsets.len() - found.len();
            ((!found.is_empty()).then(|| Said::Deleted(deletion_of(found))), None)
        }
        Edit::Replace { batch, if_version, id, .. } => {
            let through = standing.trim().map_or(-1, |(through, _)| through);
            let [FoundElement { position, content, id: of_content, digest }] = found else {
                return Err(Objection::NoElement);
            };
            if position.offset <= through || position.offset < partition.log_start() {
                return Err(Objection::NoElement);
            }
            let Position { term, entry, offset } = *position;
            // A client may give a later content the id of the earlier one.
            if id.is_some() && id == *of_content && batch.digests() == [*digest] {
                // A content that is no first one has a batch of its own.
                let is_first = *content == offset;
                let (term, entry) =
                    if is_first { (term, entry) } else { (partition.epoch_at(*content), *content) };
                let at = Some(Position { term, entry, offset: *content });
                edited = Edited { first: at, last: at, is_duplicate: true, ..Edited::default() };
                (None, None)
            } else if if_version.is_some_and(|version| version != *content) {
                return Err(Objection::Version(*content));
            } else {
                let replaced = Replaced { term, entry, offset, withdrawn: *content };
                let header = (REPLACES_HEADER, position.to_string());
                (Some(Said::Replaced(replaced)), Some(Records { batch, header }))
            }
        }
        Edit::Rewrite { after, batch, ids, reason } => {
            if is_repeated(batch.as_deref(), &ids, found) {
                let [first, last] =
                    [found.first(), found.last()].map(|it| it.map(|it| it.position));
                edited = Edited { first, last, is_duplicate: true, ..Edited::default() };
                (None, None)
            } else {
                let stays = after.map_or_else(|| "none".to_owned(), |it| it.to_string());
                let header = (CUTS_AFTER_HEADER, stays);
                let after = after.map_or(-1, |it| it.offset);
                let is_something = !withdrawn.is_empty() || batch.is_some();
                let said = is_something.then_some(Said::Cut { after, reason, withdrawn });
                (said, batch.map(|batch| Records { batch, header }))
            }
        }
        Edit::DeleteQueue => {
            let is_something = !withdrawn.is_empty() || *standing != Standing::default();
            (is_something.then_some(Said::Gone(withdrawn)), None)
        }
        Edit::Trim { through, pointer } => {
            let pointer = encode_pointer(pointer.as_ref());
            let is_new = standing.trim().is_none_or(|(before, kept)| {
                through > before || through == before && pointer != *kept
            });
            (is_new.then_some(Said::Trimmed { through, first_said: -1, pointer }), None)
        }
        Edit::Fence { token, if_token } => {
            let own = standing.fence().cloned().unwrap_or_default();
            if if_token.is_some_and(|expected| expected != own) {
                return Err(Objection::Fenced);
            }
            ((token != own).then_some(Said::Fenced { token, first_said: -1 }), None)
        }
    };
    let last_delta = records.as_ref().map_or(0, |it| it.batch.header.last_offset_delta);
    Ok((said, records, Awaited::Edit { last_delta, edited }))
}

/// Tells whether elements are those of a rewrite's records, with their ids and contents.
fn is_repeated(batch: Option<&CheckedBatch>, ids: &[Bytes], found: &[FoundElement]) -> bool {
    let of_found = found.iter().map(|it| it.id.as_ref());
    let has_ids = !ids.is_empty() && of_found.eq(ids.iter().map(Some));
    batch
        .filter(|_| has_ids)
        .is_some_and(|batch| batch.digests().into_iter().eq(found.iter().map(|it| it.digest)))
}

/// Has the log say what an edit comes to, by records if it has some, unless its fence is another one. An edit that
/// comes to nothing is answered once that is certain.
fn say(
    node: &mut Node,
    replica: ReplicaId,
    guard: &Guard,
    saying: Option<(Statement, Option<Records>)>,
    place: Place,
) -> Outcome {
    let partition = node.core.partitions.get_mut(&replica).expect("it was just found");
    let log_start = partition.log_start();
    let appended = match (partition.objection(guard), saying) {
        (Some(reason), _) => partition.object(reason, slot(place)),
        (None, None) => partition.make_certain(slot(place)),
        (None, Some((statement, None))) => node.core.say(replica, &statement, slot(place)),
        (None, Some((statement, Some(records))))
            if sabotage::is(Bug::RewriteInTwo) && matches!(statement.said, Said::Cut { .. }) =>
        {
            node.core.say(replica, &statement, Slot::Coordinator { replica, ticket: 0 });
            node.core.append(replica, *records.batch, Acks::All, slot(place)).0
        }
        (None, Some((statement, Some(records)))) => match stating(records, &statement) {
            Ok(batch) => node.core.append(replica, batch, Acks::All, slot(place)).0,
            Err(why) => Appended::Refused(ErrorCode::CorruptMessage, Some(why)),
        },
    };
    node.core.mark_dirty(replica);
    (appended, log_start)
}

/// Adds the headers with which records state a fact.
fn stating(records: Records, statement: &Statement) -> Result<CheckedBatch, String> {
    let Records { batch, header: (name, value) } = records;
    batch.with_headers(&[(name, value.as_bytes()), (FACT_HEADER, &statement.header())])
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
