//! # Room card: coordinators
//!
//! Purpose:    the coordinators whose partitions this node leads: of groups, in `__consumer_offsets`, of transactions,
//!             in `__transaction_state`, and of share groups' progress, in `__share_group_state`.
//! Owns:       the loading of coordinators, their appends and the results of these, their timers, the size of their
//!             logs.
//! Interface:  [`Coordinators::coordinate`] for requests about groups, [`Coordinators::coordinate_transaction`] for
//!             those about transactions (for those of shares see `node/share_calls.rs`); the node calls the rest on
//!             events.
//! Invariants: a coordinator answers only after it has read all of its log. A coordinator gets the results of its
//!             appends in their order. It never skips a part of a log that cannot be read. No log grows without bound.
//! Never:      the state of groups, transactions and shares (see `groups`, `transactions`, `shares`), messages about
//!             them between nodes (see `node/transactions.rs`, `node/share_calls.rs`); files.
//! Tests:      `node/tests/groups.rs`, `node/tests/coordinators.rs`; `duramen-sim`.
//! Start at:   [`Coordinators::coordinate`], then `settle`.
//!
//! The log of a coordinator is its image, too. Once the log is much larger than its live records, the coordinator
//! appends the old live records again, slice by slice. The first slice begins a segment, and in the end the coordinator
//! trims everything before that segment.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;

use duramen_protocol::ErrorCode;
use duramen_protocol::records::{BatchBuilder, NewRecord};
use duramen_protocol::wire::{EncodeError, Uuid};
use duramen_storage::op::ReplicaId;
use duramen_storage::sabotage::{self, Bug};
use view::{Effect, Expired, Settings, View, replay};

use super::share_calls::{Caller, ShareCalls};
use super::transactions::Calls;
use crate::configs::BrokerSettings;
use crate::controller::image::Topic;
use crate::core::{Core, Timer};
use crate::event::{Action, LogRead, MadeBy, Now, ReadLog};
use crate::groups::coordinator::Transactor;
use crate::internal_topics;
use crate::ledger::Encoded;
use crate::limits::{
    GROUP_LOG_AGAIN_US, GROUP_LOG_BYTES_MIN, GROUP_LOG_READ_BYTES, GROUP_LOG_SLICE_BYTES,
    SWEEP_PAUSE_US, SWEEP_SLICE,
};
use crate::node::sweep::interval_us;
use crate::partition::{Appended, Slot};
use crate::raft::Group;

mod groups;
mod shares;
mod transactions;
mod view;

pub(crate) use view::Kind;

/// Progress of a coordinator.
#[derive(Debug)]
enum Stage {
    /// Loading: the coordinator has read its log up to `at`. The log ended at `end` when the coordinator began to lead.
    Loading { at: i64, end: i64 },
    /// Serving requests.
    Serving,
    /// Failed, because the log cannot be read. The coordinator reads it anew at this time, if that may help.
    Failed { again_us: Option<u64> },
}

/// A log that has grown is being renewed: what it says before an offset is said again after it.
#[derive(Debug)]
struct Renewal {
    before: i64,
    /// Records that are on their way.
    ticket: Option<u64>,
    /// All was said; what is before is being trimmed.
    is_trimming: bool,
}

#[derive(Debug)]
struct Shard {
    view: Box<dyn View>,
    stage: Stage,
    timer_us: Option<u64>,
    renewal: Option<Renewal>,
    /// Topics that were deleted before the coordinator had read all of its log.
    deleted: Vec<(String, Uuid)>,
}

/// Why a slice of a log was no use.
enum Problem {
    /// Failure to read, which may pass.
    Read(String),
    /// Content that no coordinator's log can have.
    Content(String),
}

impl Shard {
    fn is_serving(&self) -> bool {
        matches!(self.stage, Stage::Serving)
    }

    /// Returns the coordinator, if it is of this type.
    fn as_view<V: View>(&self) -> Option<&V> {
        let view: &dyn Any = &*self.view;
        view.downcast_ref()
    }

    fn as_view_mut<V: View>(&mut self) -> Option<&mut V> {
        let view: &mut dyn Any = &mut *self.view;
        view.downcast_mut()
    }

    /// Returns the time at which the coordinator is due if nothing happens before, in monotonic microseconds.
    fn due_us(&self) -> Option<u64> {
        match self.stage {
            Stage::Failed { again_us } => again_us,
            Stage::Loading { .. } | Stage::Serving => self.view.deadline_us(),
        }
    }

    fn on_stored(&mut self, now: Now, ticket: u64, result: Result<i64, ErrorCode>) {
        self.view.on_appended(ticket, result, now);
        if let Some(renewal) = &mut self.renewal
            && renewal.ticket == Some(ticket)
        {
            renewal.ticket = None;
            // The renewal begins anew when another batch was stored.
            if result.is_err() {
                self.renewal = None;
            }
        }
    }
}

/// Where the sweep for old offsets stands: groups up to this one of this partition were looked at, and all of those
/// before. Nothing between two sweeps.
#[derive(Debug, Default)]
struct GroupSweep {
    at: Option<(ReplicaId, Option<Arc<str>>)>,
}

/// See the room card.
#[derive(Debug)]
pub(crate) struct Coordinators {
    /// The replicas here of the topics that have coordinators.
    pub(super) replicas: BTreeMap<ReplicaId, &'static Kind>,
    /// Those that lead.
    shards: BTreeMap<ReplicaId, Shard>,
    settings: Settings,
    sweep: GroupSweep,
    /// Rises with every topic that is made, grows or goes.
    topics_version: u64,
    pub(super) calls: Calls,
    pub(super) share_calls: ShareCalls,
}

impl Coordinators {
    pub(super) fn new(settings: &BrokerSettings) -> Self {
        Self {
            replicas: BTreeMap::new(),
            shards: BTreeMap::new(),
            settings: Settings::of(settings),
            sweep: GroupSweep::default(),
            topics_version: 0,
            calls: Calls::default(),
            share_calls: ShareCalls::default(),
        }
    }

    fn view<V: View>(&self, replica: ReplicaId) -> Option<&V> {
        self.shards.get(&replica)?.as_view()
    }

    fn view_mut<V: View>(&mut self, replica: ReplicaId) -> Option<&mut V> {
        self.shards.get_mut(&replica)?.as_view_mut()
    }

    /// Returns all coordinators of a type here. An error while some of them load, because they could know more.
    fn serving<V: View>(&self) -> Result<Vec<&V>, ErrorCode> {
        let mut all = Vec::new();
        for shard in self.shards.values() {
            let Some(view) = shard.as_view() else { continue };
            match shard.stage {
                Stage::Loading { .. } => return Err(ErrorCode::CoordinatorLoadInProgress),
                Stage::Serving => all.push(view),
                Stage::Failed { .. } => {}
            }
        }
        Ok(all)
    }

    /// Returns the number of coordinators that cannot read their logs.
    pub(super) fn failed(&self) -> usize {
        self.shards.values().filter(|shard| matches!(shard.stage, Stage::Failed { .. })).count()
    }
}

/// Leading and loading.
impl Coordinators {
    /// Adds a replica of a topic that has coordinators. Its coordinator begins when the replica leads.
    pub(super) fn note_coordinated(
        &mut self,
        core: &mut Core,
        replica: ReplicaId,
        kind: &'static Kind,
    ) {
        if self.replicas.insert(replica, kind).is_some() {
            return;
        }
        let partition = core.partitions.get(&replica);
        if partition.is_some_and(|partition| partition.group.is_serving()) {
            self.begin_coordinating(core, replica);
        }
    }

    /// Ends the coordinator of a replica that is gone.
    pub(super) fn forget_coordinated(&mut self, core: &mut Core, replica: ReplicaId) {
        if self.replicas.remove(&replica).is_some() {
            self.end_coordinating(core, replica);
        }
    }

    pub(crate) fn begin_coordinating(&mut self, core: &mut Core, replica: ReplicaId) {
        let Some(partition) = core.partitions.get(&replica) else { return };
        let Some(&kind) = self.replicas.get(&replica) else { return };
        let (at, mut end) = (partition.log_start(), partition.committed());
        if sabotage::is(Bug::LoadEndsEarly) {
            end = at.max(end - 1);
        }
        let view = (kind.new)(&self.settings);
        let stage = Stage::Loading { at, end };
        let failed = self.shards.remove(&replica);
        let deleted = failed.map(|shard| shard.deleted).unwrap_or_default();
        let shard = Shard { view, stage, timer_us: None, renewal: None, deleted };
        self.shards.insert(replica, shard);
        self.go_on_loading(core, replica);
    }

    pub(crate) fn end_coordinating(&mut self, core: &mut Core, replica: ReplicaId) {
        let Some(shard) = self.shards.get_mut(&replica) else { return };
        shard.view.unload();
        self.settle(core, replica);
        self.forget_wanted(replica);
        let Some(shard) = self.shards.remove(&replica) else { return };
        if let Some(at) = shard.timer_us {
            core.timers.remove(&(at, Timer::Coordinator(replica)));
        }
    }

    fn go_on_loading(&mut self, core: &mut Core, replica: ReplicaId) {
        let Some(shard) = self.shards.get_mut(&replica) else { return };
        let Stage::Loading { at, end } = shard.stage else { return };
        if at < end {
            let bytes_max = GROUP_LOG_READ_BYTES;
            core.out.push(Action::ReadLog(ReadLog {
                replica,
                from: at,
                pass: 0,
                end,
                bytes_max,
                peer: None,
                ticket: 0,
                made_by: MadeBy::Anything,
            }));
            return;
        }
        shard.stage = Stage::Serving;
        let deleted = std::mem::take(&mut shard.deleted);
        let epoch = core.partitions.get(&replica).map_or(0, |it| it.group.epoch());
        shard.view.loaded(self.settings.sight(core, self.topics_version), epoch, core.now);
        for (name, id) in deleted {
            shard.view.forget_topic(&name, id, core.now);
        }
        self.settle(core, replica);
        self.keep_small(core, replica);
    }

    pub(crate) fn on_log_read(&mut self, core: &mut Core, read: LogRead) {
        let LogRead { replica, from, batches, .. } = read;
        let Some(shard) = self.shards.get_mut(&replica) else { return };
        // A slice that was read for an earlier term of this leader is not for this one.
        let Stage::Loading { at, end } = shard.stage else { return };
        if at != from {
            return;
        }
        let replayed = batches.map_err(Problem::Read).and_then(|batches| {
            replay(&mut *shard.view, batches, at, end).map_err(Problem::Content)
        });
        let (problem, again_us) = match replayed {
            Ok(next) => {
                assert!(next > at, "a slice of {replica:?} brings it on from {at}, not to {next}");
                let at = next;
                shard.stage = Stage::Loading { at, end };
                return self.go_on_loading(core, replica);
            }
            Err(Problem::Read(problem)) => (problem, Some(core.now.mono_us + GROUP_LOG_AGAIN_US)),
            Err(Problem::Content(problem)) => (problem, None),
        };
        let topic = self.replicas.get(&replica).map_or("", |kind| kind.topic);
        tracing::error!(
            replica = replica.0,
            topic,
            from,
            problem,
            is_tried_again = again_us.is_some(),
            "a coordinator does not serve: the log of its partition cannot be read"
        );
        shard.stage = Stage::Failed { again_us };
        self.set_coordinator_timer(core, replica);
    }
}

/// Requests, and what follows from them.
impl Coordinators {
    /// Returns the coordinator of a group or a transactional id, or the error for a client that asks here.
    pub(crate) fn shard_of(
        &self,
        core: &Core,
        topic: &str,
        name: &str,
    ) -> Result<ReplicaId, ErrorCode> {
        let topic = core.controller.image.topic_named(topic);
        let topic = topic.ok_or(ErrorCode::NotCoordinator)?;
        let partition = internal_topics::partition_of(name, topic.partitions.len());
        let replica = core.local_replica(topic, partition).ok_or(ErrorCode::NotCoordinator)?;
        let group = core.partitions.get(&replica).map(|partition| &partition.group);
        // This node may have heard in this turn of another leader, of which the coordinator is notified at the turn's
        // end.
        if !group.is_some_and(Group::is_serving) && !sabotage::is(Bug::CoordinatorUnaware) {
            // Other nodes name this one as soon as it is elected. A client that comes then has come to the right node.
            let is_elected = group.is_some_and(Group::is_elected);
            return Err(if is_elected {
                ErrorCode::CoordinatorLoadInProgress
            } else {
                ErrorCode::NotCoordinator
            });
        }
        match self.shards.get(&replica).map(|shard| &shard.stage) {
            Some(Stage::Serving) => Ok(replica),
            // That this one leads may have been heard of in this turn, too.
            Some(Stage::Loading { .. }) | None => Err(ErrorCode::CoordinatorLoadInProgress),
            Some(Stage::Failed { .. }) => Err(ErrorCode::NotCoordinator),
        }
    }

    /// Tells a coordinator that its records are stored, or known not to be.
    pub(super) fn on_stored(
        &mut self,
        core: &mut Core,
        replica: ReplicaId,
        ticket: u64,
        result: Result<i64, ErrorCode>,
    ) {
        let Some(shard) = self.shards.get_mut(&replica) else { return };
        shard.on_stored(core.now, ticket, result);
        self.settle(core, replica);
        self.keep_small(core, replica);
    }

    pub(crate) fn on_coordinator_timer(&mut self, core: &mut Core, replica: ReplicaId) {
        let Some(shard) = self.shards.get_mut(&replica) else { return };
        shard.timer_us = None;
        if matches!(shard.stage, Stage::Failed { .. }) {
            return self.begin_coordinating(core, replica);
        }
        shard.view.on_time(core.now);
        self.settle(core, replica);
    }

    /// Does what a coordinator wants done, and sets its timer.
    fn settle(&mut self, core: &mut Core, replica: ReplicaId) {
        loop {
            let Some(shard) = self.shards.get_mut(&replica) else { return };
            if shard.is_serving() {
                shard.view.go_on(self.settings.sight(core, self.topics_version), core.now);
            }
            let effects = shard.view.take_effects();
            if effects.is_empty() {
                break;
            }
            for effect in effects {
                self.carry_out(core, replica, effect);
            }
        }
        self.set_coordinator_timer(core, replica);
        self.inspect(core, replica);
    }

    /// Checks a coordinator after its turn.
    fn inspect(&self, core: &Core, replica: ReplicaId) {
        let Some(Shard { view, stage, timer_us, renewal, deleted }) = self.shards.get(&replica)
        else {
            return;
        };
        let is_timed = |at| core.timers.contains(&(at, Timer::Coordinator(replica)));
        assert!(timer_us.is_none_or(is_timed), "{replica:?} has a timer at {timer_us:?}");
        if !matches!(stage, Stage::Serving) {
            assert!(renewal.is_none(), "{replica:?} renews no log that it has not read");
            return;
        }
        assert!(deleted.is_empty(), "{replica:?} has heard of the topics that are gone");
        if let Some(Renewal { ticket, is_trimming, before }) = renewal {
            let is_one = ticket.is_none() || !is_trimming;
            assert!(is_one, "{replica:?} trims below {before} after the renewal");
        }
        if cfg!(debug_assertions) {
            let log_start = core.partitions.get(&replica).map(|it| it.log_start());
            let first = view.first_live();
            let is_there = first.zip(log_start).is_none_or(|(first, start)| start <= first);
            assert!(is_there, "{replica:?}: the log from {log_start:?} has the record {first:?}");
            view.inspect();
        }
    }

    fn carry_out(&mut self, core: &mut Core, replica: ReplicaId, effect: Effect) {
        match effect {
            Effect::Signal(signal) => core.signals.push_back(signal),
            Effect::Answer { then, is_written } => {
                self.tell_for_certain(core, replica, then, is_written);
            }
            Effect::Append { ticket, records, transactor } => {
                self.append_records(core, replica, ticket, records, transactor);
            }
            Effect::AskShares(key, ask) => {
                self.call_shares(core, Caller::Group(replica), key, ask);
            }
            Effect::WantProducerId(name) => self.want_producer_id(core, replica, name),
            Effect::Mark(mark) => self.want_mark(core, replica, mark),
            Effect::Close { key, reason } => {
                core.take_parked(key);
                core.out.push(Action::Close { connection: key.0, reason: reason.to_owned() });
            }
        }
    }

    /// Appends what a coordinator asked to store, as one batch.
    pub(super) fn append_records(
        &mut self,
        core: &mut Core,
        replica: ReplicaId,
        ticket: u64,
        records: Result<Vec<Encoded>, EncodeError>,
        transactor: Option<Transactor>,
    ) {
        // Kafka answers so where a text does not fit its field.
        let records = records.map_err(|_| ErrorCode::UnknownServerError);
        let appended =
            records.and_then(|records| core.append_batch(replica, ticket, &records, transactor));
        if let Some(result) = appended.transpose() {
            let shard = self.shards.get_mut(&replica);
            let shard = shard.expect("nothing here ends a coordinator");
            shard.on_stored(core.now, ticket, result);
        }
    }

    fn set_coordinator_timer(&mut self, core: &mut Core, replica: ReplicaId) {
        let Some(shard) = self.shards.get_mut(&replica) else { return };
        let due_us = shard.due_us();
        if shard.timer_us == due_us {
            return;
        }
        if let Some(at) = std::mem::replace(&mut shard.timer_us, due_us) {
            core.timers.remove(&(at, Timer::Coordinator(replica)));
        }
        if let Some(at) = due_us {
            core.timers.insert((at, Timer::Coordinator(replica)));
        }
    }
}

impl Core {
    /// Says where the batch is, if that is the end of it already.
    fn append_batch(
        &mut self,
        replica: ReplicaId,
        ticket: u64,
        records: &[Encoded],
        transactor: Option<Transactor>,
    ) -> Result<Option<i64>, ErrorCode> {
        if self.is_disk_full() {
            return Err(ErrorCode::KafkaStorageError);
        }
        let mut batch = BatchBuilder::new();
        if let Some(Transactor { producer_id, epoch }) = transactor {
            batch = batch.producer(producer_id, epoch, -1).transactional();
        }
        for (key, value) in records {
            let (key, value) = (Some(&key[..]), value.as_deref());
            let record =
                NewRecord { timestamp: self.now.wall_ms, key, value, ..NewRecord::default() };
            batch.push(&record).map_err(|error| error.code())?;
        }
        let bytes = batch.build_mut().map_err(|error| error.code())?;
        let slot = Slot::Coordinator { replica, ticket };
        match self.append_own(replica, bytes, slot) {
            Appended::Waits { .. } => Ok(None),
            Appended::Done { base_offset } => Ok(Some(base_offset)),
            Appended::Objected { reason, .. } => {
                unreachable!("a coordinator's batch has no guard, and there is {reason:?}")
            }
            Appended::Busy(_) => Err(ErrorCode::NotEnoughReplicas),
            Appended::Refused(code, _) => Err(code),
            Appended::Faulty(faults) => Err(faults.code),
        }
    }
}

/// Work without a request.
impl Coordinators {
    /// Notes that topics have changed. Groups that follow them notice at their next request.
    pub(super) fn note_topics(&mut self) {
        self.topics_version += 1;
    }

    /// Forgets the committed offsets of a topic that is gone.
    pub(super) fn forget_offsets(&mut self, core: &mut Core, topic: &Topic) {
        let replicas: Vec<_> = self.shards.keys().copied().collect();
        for replica in replicas {
            let shard = self.shards.get_mut(&replica).expect("it is listed");
            match shard.stage {
                Stage::Serving => {
                    shard.view.forget_topic(&topic.name, topic.id, core.now);
                    self.settle(core, replica);
                }
                Stage::Loading { .. } | Stage::Failed { again_us: Some(_) } => {
                    shard.deleted.push((topic.name.clone(), topic.id));
                }
                Stage::Failed { again_us: None } => {}
            }
        }
    }

    /// Appends a log's old live records again, once most of the log is dead, and trims the log before them.
    fn keep_small(&mut self, core: &mut Core, replica: ReplicaId) {
        let Some(partition) = core.partitions.get_mut(&replica) else { return };
        let Some(shard) = self.shards.get_mut(&replica) else { return };
        // A partition can lose its leadership in this turn, before its coordinator hears of that.
        let serves = matches!(shard.stage, Stage::Serving) && partition.obstacle().is_none();
        if !serves || core.disk_shortage.is_some() {
            return;
        }
        let Some(renewal) = &mut shard.renewal else {
            let (_, live) = shard.view.live_size();
            let segment = u64::try_from(partition.settings.segment_bytes).unwrap_or(0);
            if partition.bytes() > segment.min(GROUP_LOG_BYTES_MIN).max(3 * live as u64) {
                let before = partition.roll();
                shard.renewal = Some(Renewal { before, ticket: None, is_trimming: false });
                self.keep_small(core, replica);
            }
            return;
        };
        if renewal.is_trimming {
            if partition.log_start() >= renewal.before {
                shard.renewal = None;
            }
            return;
        }
        // The coordinator first learns the result of earlier appends, so that no dead record is appended again.
        if renewal.ticket.is_some() || partition.committed() < renewal.before {
            return;
        }
        let before = renewal.before;
        let is_said = shard.view.first_live().is_none_or(|first| first >= before);
        if is_said || sabotage::is(Bug::RenewalCutShort) {
            renewal.is_trimming = partition.trim(before, None).is_ok();
            core.mark_dirty(replica);
            return;
        }
        renewal.ticket = shard.view.renew(before, GROUP_LOG_SLICE_BYTES);
        if renewal.ticket.is_some() {
            self.settle(core, replica);
        }
    }

    /// Forgets unused committed offsets and transactional ids, some at a time. Looks for topics that were deleted while
    /// no coordinator kept their state. Each slice checks the clock.
    pub(crate) fn sweep_offsets(&mut self, core: &mut Core) {
        let interval_us = interval_us(core.options.settings.offsets_retention_check_interval_ms);
        let pause_us = if self.sweep_some_offsets(core) { SWEEP_PAUSE_US } else { interval_us };
        core.timers.insert((core.now.mono_us.saturating_add(pause_us), Timer::Offsets));
    }

    /// Sweeps one slice. False if it was the last of this sweep.
    fn sweep_some_offsets(&mut self, core: &mut Core) -> bool {
        let is_believed = core.believes_clock();
        let Self { shards, sweep, settings, topics_version, .. } = self;
        let (from, after) = sweep.at.take().unwrap_or((ReplicaId(0), None));
        let Some((&replica, shard)) = shards.range_mut(from..).next() else { return false };
        if !is_believed {
            return false;
        }
        let after = after.filter(|_| replica == from);
        let expired = if shard.is_serving() {
            let sight = settings.sight(core, *topics_version);
            shard.view.expire(sight, core.now, after.as_ref(), SWEEP_SLICE)
        } else {
            Expired::default()
        };
        let Expired { seen, kept } = expired;
        let goes_on = seen.as_ref().is_none_or(|seen| after.as_ref().is_none_or(|it| it < seen));
        assert!(goes_on, "a sweep goes on after {after:?}, not at {seen:?}");
        sweep.at = Some(match seen {
            Some(group) => (replica, Some(group)),
            None => (ReplicaId(replica.0 + 1), None),
        });
        self.settle(core, replica);
        self.doubt_topics(core, replica, kept);
        true
    }

    /// Forgets a coordinator's state of a topic that is certainly deleted.
    pub(super) fn forget_kept(&mut self, core: &mut Core, replica: ReplicaId, topic_id: Uuid) {
        let Some(shard) = self.shards.get_mut(&replica) else { return };
        shard.view.forget_kept(topic_id, core.now);
        self.settle(core, replica);
    }
}
