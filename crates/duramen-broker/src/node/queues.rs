//! # Room card: queues
//!
//! Purpose:    follow the queue index of each log here: order it, learn how far it is, wake those who wait for it.
//! Owns:       the indexed end of each log; reads that wait for the index, or for an element of their queue; appends
//!             whose guard waits for the last element of its queue.
//! Interface:  [`Queues::follow`] after a turn of a replica; [`Queues::on_indexed`], [`Queues::on_looked`]; the waits
//!             of `api/queues.rs` and `api/guarded.rs`.
//! Invariants: one order of a log is under way at a time, and none for a second after one that failed. A report about
//!             an earlier beginning of a log is no report. A read is registered under its queue before anybody looks
//!             for its elements. A commit wakes the reads of its own queues, or of all if it names too many. A bounded
//!             number of looks is under way.
//! Never:      names of queues: a hash with a seed of the process stands for each. Elements: see
//!             `read_plan/queues.rs`.
//! Tests:      `node/tests/queues.rs`; `duramen-sim`.
//! Start at:   [`Queues::follow`].

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use duramen_protocol::wire::Uuid;
use duramen_storage::indexing::{Indexed, Order, Touched, queue_hash};
use duramen_storage::keys::Statement;
use duramen_storage::op::{Identity, ReplicaId};

use crate::checked_batch::CheckedBatch;
use crate::core::{Awaited, Core, Parked, QueueStage, QueueWait, Signal, Timer};
use crate::event::{Action, FoundElements, Look, QueueLook, RequestKey, WantedElements};
use crate::guard::{Guard, Position};
use crate::limits::{INDEX_LAG_BYTES_MAX, QUEUE_LOOKS_MAX, QUEUE_READS_WAITING_MAX};
use crate::native::{Pointer, Span, Trimmed};
use crate::partition::{Acks, Appended, Partition};

/// Time after which an order that failed is given again, in microseconds.
const RETRY_US: u64 = 1_000_000;

/// See the room card.
#[derive(Debug)]
pub(crate) struct Queues {
    logs: BTreeMap<ReplicaId, Indexing>,
    /// Those who have a look under way, or before them, by its ticket.
    looks: BTreeMap<u64, Waiter>,
    /// Looks that wait until others are done.
    later: VecDeque<QueueLook>,
    under_way: usize,
    tickets: u64,
    /// Reads that wait for an element.
    waiting: usize,
    held: BTreeMap<Place, Held>,
    seed: u64,
}

/// Place of a batch in a request: the request, the number of its topic there, and that of its partition.
pub(crate) type Place = (RequestKey, usize, usize);

/// Request that waits for the index, or for a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Waiter {
    Read(RequestKey),
    Append(Place),
    /// The trims of a log, which look for what it has to say again.
    Trims(ReplicaId),
    /// The erasure of a log, which looks for what edits took away.
    Erasure(ReplicaId),
}

/// Change of a queue that depends on the queue's elements.
#[derive(Debug)]
pub(crate) struct Held {
    pub replica: ReplicaId,
    pub change: Change,
    /// Term of the leader that judges it.
    pub term: u64,
    pub stage: HeldStage,
}

/// Change of a queue.
#[derive(Debug)]
pub(crate) enum Change {
    /// Append whose guard names the last element of its queue.
    Append { batch: Box<CheckedBatch>, acks: Acks },
    /// Edit of a queue.
    Edit(Box<Editing>),
}

/// Edit of a queue on behalf of a client.
#[derive(Debug)]
pub(crate) struct Editing {
    pub queue: Bytes,
    pub edit: Edit,
    /// Condition on the fence.
    pub guard: Guard,
    pub principal: String,
}

/// Edit of elements of a queue.
#[derive(Debug)]
pub(crate) enum Edit {
    /// Deletion of the elements at these offsets, in order.
    Delete(Vec<i64>),
    /// New content of the element at an offset, with the version and id as in the request.
    Replace { at: i64, batch: Box<CheckedBatch>, if_version: Option<i64>, id: Option<Bytes> },
    /// Withdrawal of all behind a position, with records in its place and their ids.
    Rewrite {
        after: Option<Position>,
        batch: Option<Box<CheckedBatch>>,
        ids: Vec<Bytes>,
        reason: String,
    },
    /// Deletion of the queue.
    DeleteQueue,
    /// Trim of the queue through an offset.
    Trim { through: i64, pointer: Option<Pointer> },
    /// Change of the queue's fence, if that is the expected one.
    Fence { token: Bytes, if_token: Option<Bytes> },
}

impl Change {
    pub(crate) fn append(batch: CheckedBatch, acks: Acks) -> Self {
        Self::Append { batch: Box::new(batch), acks }
    }
}

/// Event that a held change waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeldStage {
    /// The index reaches this offset.
    Behind(i64),
    /// The look with this ticket, below an offset.
    Looking { ticket: u64, end: i64 },
}

/// Index of one log, and those who wait for it.
#[derive(Debug)]
struct Indexing {
    /// Number of the log's beginning that all of this is about.
    beginning: u64,
    /// Offset up to which the log is indexed; -1 before the index is open.
    indexed: i64,
    /// End of the order under way.
    ordered: Option<i64>,
    /// Size of that order, in bytes of the log, or of the last one that did not follow a failed one.
    size: u64,
    /// Time before which nothing is ordered, in microseconds, if the last order failed.
    paused_until_us: Option<u64>,
    /// Offset of the trims for which a look is under way, and the cursor of that look.
    keeping: Option<(i64, i64)>,
    /// Offset up to which the index has to be before the next such look, and the time of that, in microseconds.
    keeps_again: (i64, u64),
    /// Cursor of the look for what edits took away that is under way.
    erasing: Option<(i64, u64)>,
    /// True if the log was erased, and its index does not know yet.
    is_erased: bool,
    /// Those who wait until the log is indexed up to an offset.
    behind: BTreeSet<(i64, Waiter)>,
    /// Reads that wait for an element, by the hash of their queue.
    waiting: BTreeMap<u64, BTreeSet<RequestKey>>,
}

impl Waiter {
    /// Returns the signal that the index is there.
    fn ready(self) -> Signal {
        match self {
            Self::Read(key) => Signal::QueueReady(key),
            Self::Append(place) => Signal::GuardReady(place),
            Self::Trims(_) | Self::Erasure(_) => unreachable!("the log's own look waits for none"),
        }
    }
}

impl Indexing {
    fn new(beginning: u64) -> Self {
        Self {
            beginning,
            indexed: -1,
            ordered: None,
            size: 0,
            paused_until_us: None,
            keeping: None,
            keeps_again: (0, 0),
            erasing: None,
            is_erased: false,
            behind: BTreeSet::new(),
            waiting: BTreeMap::new(),
        }
    }
}

/// Returns the whole log below the cursor of its index, as a look asks for it.
fn whole(partition: &Partition, indexed: i64) -> Span {
    let from = partition.log_start();
    Span {
        replica: partition.group.id(),
        partition: partition.id.partition,
        name: Bytes::new(),
        from,
        end: indexed.min(partition.committed()).max(from),
        is_whole: true,
        aborted: Vec::new(),
        has_skipped: false,
        trimmed: Trimmed::Passed,
        ended_ms: i64::MIN,
        is_metered: false,
    }
}

impl Queues {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            logs: BTreeMap::new(),
            looks: BTreeMap::new(),
            later: VecDeque::new(),
            under_way: 0,
            tickets: 0,
            waiting: 0,
            held: BTreeMap::new(),
            seed,
        }
    }

    /// Returns the seed of the hashes that stand for queues.
    pub(crate) fn seed(&self) -> u64 {
        self.seed
    }

    pub(crate) fn hash(&self, name: &[u8]) -> u64 {
        queue_hash(name, self.seed)
    }

    /// Returns the offset up to which a log is indexed; -1 if its index is not open.
    pub(crate) fn indexed(&self, replica: ReplicaId) -> i64 {
        self.logs.get(&replica).map_or(-1, |log| log.indexed)
    }

    /// Returns the number of reads that wait for an element.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting
    }

    /// Tells whether another read may wait for an element.
    pub(crate) fn has_room(&self) -> bool {
        self.waiting < QUEUE_READS_WAITING_MAX
    }

    /// Returns the number of committed records that are not indexed.
    pub(crate) fn lag(&self, core: &Core) -> u64 {
        let lag = |(replica, log): (&ReplicaId, &Indexing)| {
            let partition = core.partitions.get(replica)?;
            let from = log.indexed.max(partition.log_start());
            u64::try_from(partition.committed() - from).ok()
        };
        self.logs.iter().filter_map(lag).sum()
    }

    /// Tells whether so much of a log waits to be indexed that it takes no appends.
    pub(crate) fn is_behind(&self, partition: &Partition) -> bool {
        let Some(log) = self.logs.get(&partition.group.id()) else { return false };
        let from = log.ordered.filter(|_| log.paused_until_us.is_none()).unwrap_or(log.indexed);
        partition.bytes_from(from) > log.size.max(INDEX_LAG_BYTES_MAX)
    }

    /// Orders the index of what a turn has committed.
    pub(crate) fn follow(&mut self, core: &mut Core, replica: ReplicaId) {
        let Some(partition) = core.partitions.get(&replica) else { return };
        if !partition.settings.queue || partition.group.failure().is_some() {
            return;
        }
        let (beginning, committed) = (partition.beginnings(), partition.committed());
        let log = self.logs.entry(replica).or_insert_with(|| Indexing::new(beginning));
        if log.beginning != beginning {
            (log.beginning, log.indexed, log.ordered) = (beginning, -1, None);
        }
        // Storage may not have made the replica yet, and there is nothing to index.
        if committed == 0 {
            log.indexed = 0;
        }
        let is_paused = log.paused_until_us.is_some_and(|until| core.now.mono_us < until);
        self.keep_for_trims(core, replica);
        let Some(partition) = core.partitions.get(&replica) else { return };
        let log = self.logs.get_mut(&replica).expect("it was just there");
        let is_done = log.indexed >= committed && !(log.is_erased && committed > 0);
        if log.ordered.is_some() || is_done || is_paused {
            return;
        }
        let id = partition.id;
        let Some(topic) = core.controller.image.topic(Uuid(id.topic_id)) else { return };
        let identity =
            Identity { topic: topic.name.clone(), topic_id: id.topic_id, partition: id.partition };
        log.ordered = Some(committed);
        log.is_erased = false;
        if log.paused_until_us.is_none() {
            log.size = partition.bytes_from(log.indexed);
        }
        let start = partition.log_start();
        let order = Order { replica, identity, beginning, start, to: committed };
        core.out.push(Action::Index(order));
    }

    /// Looks for what a log has to say again before its trims, if trims wait and the index is there.
    fn keep_for_trims(&mut self, core: &mut Core, replica: ReplicaId) {
        let Some(partition) = core.partitions.get(&replica) else { return };
        let Some(below) = partition.wants_kept() else { return };
        let Some(log) = self.logs.get_mut(&replica) else { return };
        let (end, again_us) = log.keeps_again;
        let is_due = log.indexed >= below.max(end) && core.now.mono_us >= again_us;
        if log.keeping.is_some() || !is_due {
            return;
        }
        log.keeping = Some((below, log.indexed));
        let span = whole(partition, log.indexed);
        self.look(core, Waiter::Trims(replica), span, WantedElements::Kept(below));
    }

    /// Looks for what edits took away of a log, if its leader here has to know.
    pub(crate) fn look_erasable(&mut self, core: &mut Core, replica: ReplicaId) {
        let Some(partition) = core.partitions.get(&replica) else { return };
        let Some(decided) = partition.wants_erasable() else { return };
        let Some(log) = self.logs.get_mut(&replica) else { return };
        if log.erasing.is_some() || log.indexed < 0 {
            return;
        }
        let span = whole(partition, log.indexed);
        log.erasing = Some((log.indexed, decided.index));
        let wanted = WantedElements::Erasable(decided.below, decided.expired_by_ms);
        self.look(core, Waiter::Erasure(replica), span, wanted);
    }

    /// Tells the leader of a log what edits took away.
    pub(crate) fn on_erasable(
        &mut self,
        core: &mut Core,
        replica: ReplicaId,
        found: &FoundElements,
    ) {
        let Some(log) = self.logs.get_mut(&replica) else { return };
        let Some(asked) = log.erasing.take() else { return };
        match found {
            FoundElements::Erasable(found, next_expiry) => {
                let wall_ms = core.now.wall_ms;
                if let Some(partition) = core.partitions.get_mut(&replica) {
                    partition.note_erasable(asked, (*found, *next_expiry), wall_ms);
                }
            }
            FoundElements::NoIndex => self.on_index_lost(core, replica),
            // The next sweep asks again.
            _ => {}
        }
    }

    /// Has the index of a log take into account that it was erased.
    pub(crate) fn on_erased(&mut self, core: &mut Core, replica: ReplicaId) {
        if let Some(log) = self.logs.get_mut(&replica) {
            log.is_erased = true;
            self.follow(core, replica);
        }
    }

    /// Has a log say again what a look found, or lets its trims go on if that was nothing.
    pub(crate) fn on_kept(&mut self, core: &mut Core, replica: ReplicaId, found: FoundElements) {
        let Some(log) = self.logs.get_mut(&replica) else { return };
        let Some((below, known)) = log.keeping.take() else { return };
        let Some(partition) = core.partitions.get_mut(&replica) else { return };
        match found {
            FoundElements::Kept(kept) if kept.is_empty() => partition.note_kept(below),
            FoundElements::Kept(kept) => {
                let principal = String::new;
                let statement = |(queue, said)| Statement { queue, principal: principal(), said };
                let statements = kept.into_iter().map(statement).collect();
                let is_said = core.say_again(replica, statements, known);
                let end = core.partitions[&replica].group.end_offset();
                let again_us = match is_said {
                    Appended::Done { .. } => 0,
                    _ => core.now.mono_us + RETRY_US,
                };
                log.keeps_again = (end, again_us);
                core.timers.insert((again_us.max(core.now.mono_us), Timer::Queues));
            }
            FoundElements::NoIndex => return self.on_index_lost(core, replica),
            _ => {
                let again_us = core.now.mono_us + RETRY_US;
                log.keeps_again.1 = again_us;
                core.timers.insert((again_us, Timer::Queues));
            }
        }
        core.mark_dirty(replica);
    }

    /// Takes a report about an order.
    pub(crate) fn on_indexed(&mut self, core: &mut Core, indexed: Indexed) {
        let Indexed { replica, beginning, to, touched, problem } = indexed;
        let Some(log) = self.logs.get_mut(&replica) else { return };
        if log.beginning != beginning {
            return;
        }
        // An index that was just opened has older elements of any queue.
        let is_opened = std::mem::replace(&mut log.indexed, to) < 0;
        let touched = if is_opened { Touched::All } else { touched };
        if let Some(partition) = core.partitions.get_mut(&replica) {
            partition.note_indexed(to, problem.is_some());
            core.mark_dirty(replica);
        }
        if let Some(problem) = problem {
            tracing::warn!(replica = replica.0, problem, "a log cannot be indexed");
            let until = core.now.mono_us + RETRY_US;
            (log.ordered, log.paused_until_us) = (None, Some(until));
            core.timers.insert((until, Timer::Queues));
        } else {
            log.paused_until_us = None;
        }
        log.ordered = log.ordered.filter(|ordered| *ordered > to);
        let ready = log.behind.iter().take_while(|(end, _)| *end <= to);
        core.signals.extend(ready.map(|(_, waiter)| waiter.ready()));
        let mut ready: Vec<RequestKey> = Vec::new();
        match touched {
            Touched::All => ready.extend(log.waiting.values().flatten()),
            Touched::These(hashes) => {
                ready.extend(hashes.iter().filter_map(|hash| log.waiting.get(hash)).flatten());
            }
        }
        core.signals.extend(ready.into_iter().map(Signal::QueueReady));
        self.follow(core, replica);
    }

    /// Orders an index anew in which a reader found damage, or that is not there.
    pub(crate) fn on_index_lost(&mut self, core: &mut Core, replica: ReplicaId) {
        if let Some(log) = self.logs.get_mut(&replica) {
            (log.indexed, log.ordered) = (-1, None);
            self.follow(core, replica);
        }
    }

    /// Gives orders again that failed.
    pub(crate) fn on_timer(&mut self, core: &mut Core) {
        let replicas: Vec<_> = self.logs.keys().copied().collect();
        for replica in replicas {
            self.follow(core, replica);
        }
    }

    /// Has somebody look for elements of a queue in a part of a log. Returns the look's ticket.
    pub(crate) fn look(
        &mut self,
        core: &mut Core,
        waiter: Waiter,
        span: Span,
        wanted: WantedElements,
    ) -> u64 {
        let ticket = self.tickets;
        self.tickets += 1;
        self.looks.insert(ticket, waiter);
        self.later.push_back(QueueLook { ticket, span, wanted });
        self.look_on(core);
        ticket
    }

    /// Begins the looks that there is room for.
    fn look_on(&mut self, core: &mut Core) {
        while self.under_way < QUEUE_LOOKS_MAX {
            let Some(look) = self.later.pop_front() else { return };
            // The read may be answered or gone.
            if self.looks.contains_key(&look.ticket) {
                self.under_way += 1;
                core.out.push(Action::Look(Look::Queue(look)));
            }
        }
    }

    /// Notes that a look is done. Returns the request that waits for it, if it still does.
    pub(crate) fn on_looked(&mut self, core: &mut Core, ticket: u64) -> Option<Waiter> {
        self.under_way -= 1;
        self.look_on(core);
        self.looks.remove(&ticket)
    }

    pub(crate) fn await_index(&mut self, replica: ReplicaId, end: i64, waiter: Waiter) {
        let log = self.logs.get_mut(&replica).expect("a log that is behind is followed");
        log.behind.insert((end, waiter));
    }

    /// Holds an append until its queue's last element is known.
    pub(crate) fn hold(&mut self, place: Place, held: Held) {
        let before = self.held.insert(place, held);
        assert!(before.is_none(), "a batch has one place in its request");
    }

    /// Returns an append that was held, and withdraws it from everything that could wake it.
    pub(crate) fn take_held(&mut self, place: Place) -> Option<Held> {
        let held = self.held.remove(&place)?;
        match held.stage {
            HeldStage::Behind(end) => {
                if let Some(log) = self.logs.get_mut(&held.replica) {
                    log.behind.remove(&(end, Waiter::Append(place)));
                }
            }
            HeldStage::Looking { ticket, .. } => _ = self.looks.remove(&ticket),
        }
        Some(held)
    }

    /// Tells whether an append of a request is held.
    pub(crate) fn holds(&self, key: RequestKey) -> bool {
        self.held.range((key, 0, 0)..=(key, usize::MAX, usize::MAX)).next().is_some()
    }

    /// Tells whether any append is held.
    #[cfg(test)]
    pub(crate) fn holds_any(&self) -> bool {
        !self.held.is_empty() || self.logs.values().any(|log| !log.behind.is_empty())
    }

    /// Forgets the appends of a request that nobody waits for.
    pub(crate) fn forget_appends(&mut self, key: RequestKey) {
        let all = self.held.range((key, 0, 0)..=(key, usize::MAX, usize::MAX));
        let places: Vec<Place> = all.map(|(place, _)| *place).collect();
        for place in places {
            self.take_held(place);
        }
    }

    /// Withdraws a request that waits for the index.
    pub(crate) fn forget_behind(&mut self, replica: ReplicaId, end: i64, key: RequestKey) {
        if let Some(log) = self.logs.get_mut(&replica) {
            log.behind.remove(&(end, Waiter::Read(key)));
        }
    }

    pub(crate) fn await_elements(&mut self, replica: ReplicaId, hash: u64, key: RequestKey) {
        let log = self.logs.get_mut(&replica).expect("a log that is indexed is followed");
        self.waiting += usize::from(log.waiting.entry(hash).or_default().insert(key));
    }

    /// Withdraws a read from everything that could wake it.
    pub(crate) fn forget_read(&mut self, key: RequestKey, wait: &QueueWait) {
        match wait.stage {
            QueueStage::Behind(end) => self.forget_behind(wait.replica, end, key),
            QueueStage::Waiting { hash, ticket } => {
                self.looks.remove(&ticket);
                let Some(log) = self.logs.get_mut(&wait.replica) else { return };
                let Some(keys) = log.waiting.get_mut(&hash) else { return };
                self.waiting -= usize::from(keys.remove(&key));
                if keys.is_empty() {
                    log.waiting.remove(&hash);
                }
            }
        }
    }

    /// Has all reads of a replica served again, and its appends judged anew, because it leads no more.
    pub(crate) fn lose(&mut self, core: &mut Core, replica: ReplicaId) {
        let Some(log) = self.logs.get(&replica) else { return };
        core.signals.extend(log.behind.iter().map(|(_, waiter)| match waiter {
            Waiter::Read(key) => Signal::QueueLost(*key),
            Waiter::Append(place) => Signal::GuardReady(*place),
            Waiter::Trims(_) | Waiter::Erasure(_) => {
                unreachable!("the log's own look waits for none")
            }
        }));
        core.signals.extend(log.waiting.values().flatten().copied().map(Signal::QueueLost));
    }

    /// Forgets a replica that is gone.
    pub(crate) fn forget(&mut self, core: &mut Core, replica: ReplicaId) {
        self.lose(core, replica);
        let Some(log) = self.logs.remove(&replica) else { return };
        self.waiting -= log.waiting.values().map(BTreeSet::len).sum::<usize>();
    }

    /// Checks that each request that is registered waits.
    pub(crate) fn inspect(&self, core: &Core) {
        debug_assert!(
            self.logs.iter().all(|(replica, log)| {
                let waits = |key: &RequestKey| match core.parked(*key) {
                    Some(Parked::Queue(wait)) => wait.replica == *replica,
                    Some(Parked::Native(wait)) => {
                        let is_edit = matches!(wait.awaited, Awaited::Indexed { .. });
                        is_edit && wait.replica == *replica
                    }
                    _ => false,
                };
                let is_known = |waiter: &Waiter| match waiter {
                    Waiter::Read(key) => waits(key),
                    Waiter::Append(place) => self.held.contains_key(place),
                    Waiter::Trims(_) | Waiter::Erasure(_) => false,
                };
                log.behind.iter().all(|(_, waiter)| is_known(waiter))
                    && log.waiting.values().flatten().all(waits)
            }),
            "a read is registered while it waits"
        );
        debug_assert_eq!(
            self.waiting,
            self.logs
                .values()
                .flat_map(|log| log.waiting.values())
                .map(BTreeSet::len)
                .sum::<usize>(),
            "the reads that wait are counted"
        );
    }
}
