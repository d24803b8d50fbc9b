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

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use duramen_protocol::ErrorCode;
use duramen_protocol::messages::ListGroupsRequest;
use duramen_protocol::messages::list_groups::ListedGroup;
use duramen_protocol::records::{BatchBuilder, NewRecord};
use duramen_protocol::wire::{EncodeError, Uuid};
use duramen_storage::op::ReplicaId;
use duramen_storage::sabotage::{self, Bug};
use view::{View, replay};

use super::share_calls::{Caller, ShareCalls};
use super::transactions::Calls;
use crate::configs::{BrokerSettings, bounds_of_group};
use crate::controller::image::{Image, Topic};
use crate::core::{Core, Parked, Signal, Timer};
use crate::event::{Action, LogRead, MadeBy, Now, ReadLog, RequestKey};
use crate::groups::consumer::Topics;
use crate::groups::coordinator::{Coordinator, Output, Transactor};
use crate::groups::records::{Encoded, GroupRecord};
use crate::groups::{Assignor, ConsumerRules, Migration, Rules, ShareRules};
use crate::internal_topics;
use crate::limits::{
    GROUP_LOG_AGAIN_US, GROUP_LOG_BYTES_MIN, GROUP_LOG_READ_BYTES, SWEEP_PAUSE_US, SWEEP_SLICE,
};
use crate::node::sweep::interval_us;
use crate::partition::{Appended, Slot};
use crate::raft::Group;
use crate::shares::ShareKey;
use crate::shares::coordinator::{self as shares, Answer, Ask};
use crate::transactions::coordinator as transactions;

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
    view: View,
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

/// State of the node that a coordinator sees with a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sight<'a> {
    /// Settings of all groups.
    pub rules: &'a Rules,
    /// The cluster's metadata, with its topics.
    pub image: &'a Image,
    /// The same, for groups that follow them.
    pub topics: Topics<'a>,
}

impl Shard {
    /// Returns the time at which the coordinator is due if nothing happens before, in monotonic microseconds.
    fn due_us(&self) -> Option<u64> {
        match self.stage {
            Stage::Failed { again_us } => again_us,
            Stage::Loading { .. } | Stage::Serving => self.view.deadline_us(),
        }
    }

    fn on_stored(&mut self, now: Now, ticket: u64, result: Result<i64, ErrorCode>) {
        self.view.on_appended(now, ticket, result);
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
    pub(super) replicas: BTreeMap<ReplicaId, Kind>,
    /// Those that lead.
    shards: BTreeMap<ReplicaId, Shard>,
    /// Settings of all groups.
    rules: Rules,
    /// Time for which an unused transactional id is kept, in milliseconds.
    transactional_id_expiration_ms: i64,
    /// Updates of a share group's state between two snapshots.
    share_updates_max: u32,
    sweep: GroupSweep,
    /// Rises with every topic that is made, grows or goes.
    topics_version: u64,
    pub(super) calls: Calls,
    pub(super) share_calls: ShareCalls,
}

fn consumer_rules(settings: &BrokerSettings) -> ConsumerRules {
    let assignors = settings.group_consumer_assignors.split(',').map(str::trim);
    ConsumerRules {
        session_timeout_ms: settings.group_consumer_session_timeout_ms,
        session_timeout_bounds_ms: bounds_of_group("consumer.session.timeout.ms", settings),
        heartbeat_interval_ms: settings.group_consumer_heartbeat_interval_ms,
        heartbeat_interval_bounds_ms: bounds_of_group("consumer.heartbeat.interval.ms", settings),
        members_max: usize::try_from(settings.group_consumer_max_size).unwrap_or(usize::MAX),
        assignors: assignors.filter_map(Assignor::named).collect(),
        migration: Migration::named(&settings.group_consumer_migration_policy)
            .unwrap_or(Migration::Disabled),
        assignment_interval_ms: settings.group_consumer_assignment_interval_ms,
        assignment_interval_bounds_ms: bounds_of_group("consumer.assignment.interval.ms", settings),
        regex_refresh_ms: settings.group_consumer_regex_refresh_interval_ms,
    }
}

impl Coordinators {
    pub(super) fn new(settings: &BrokerSettings) -> Self {
        let (min, max) =
            (settings.group_min_session_timeout_ms, settings.group_max_session_timeout_ms);
        let rules = Rules {
            initial_delay_ms: settings.group_initial_rebalance_delay_ms,
            session_timeout_ms: min..=max,
            members_max: usize::try_from(settings.group_max_size).unwrap_or(usize::MAX),
            metadata_max: usize::try_from(settings.offset_metadata_max_bytes).unwrap_or(0),
            retention_ms: i64::from(settings.offsets_retention_minutes) * 60_000,
            consumer: consumer_rules(settings),
            share: ShareRules {
                session_timeout_ms: settings.group_share_session_timeout_ms,
                session_timeout_bounds_ms: bounds_of_group("share.session.timeout.ms", settings),
                heartbeat_interval_ms: settings.group_share_heartbeat_interval_ms,
                heartbeat_interval_bounds_ms: bounds_of_group(
                    "share.heartbeat.interval.ms",
                    settings,
                ),
                members_max: usize::try_from(settings.group_share_max_size).unwrap_or(usize::MAX),
            },
        };
        Self {
            replicas: BTreeMap::new(),
            shards: BTreeMap::new(),
            rules,
            transactional_id_expiration_ms: i64::from(settings.transactional_id_expiration_ms),
            share_updates_max: u32::try_from(settings.share_updates_per_snapshot).unwrap_or(0),
            sweep: GroupSweep::default(),
            topics_version: 0,
            calls: Calls::default(),
            share_calls: ShareCalls::default(),
        }
    }

    /// Returns the number of coordinators that cannot read their logs.
    pub(super) fn failed(&self) -> usize {
        self.shards.values().filter(|shard| matches!(shard.stage, Stage::Failed { .. })).count()
    }
}

/// Leading and loading.
impl Coordinators {
    /// Adds a replica of a topic that has coordinators. Its coordinator begins when the replica leads.
    pub(super) fn note_coordinated(&mut self, core: &mut Core, replica: ReplicaId, kind: Kind) {
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
        let view = View::new(kind, self.share_updates_max);
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
        match &mut shard.view {
            View::Groups(groups) => {
                groups.loaded(&self.rules, core.now);
                for (name, id) in deleted {
                    groups.forget_topic(&name, id);
                }
            }
            View::Transactions(transactions) => {
                let epoch = core.partitions.get(&replica).map_or(0, |it| it.group.epoch());
                transactions.loaded(epoch, core.now);
            }
            View::Shares(shares) => {
                for (_, id) in deleted {
                    shares.forget_topic(id, core.now);
                }
            }
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
            replay(&mut shard.view, batches, at, end).map_err(Problem::Content)
        });
        let (problem, again_us) = match replayed {
            Ok(at) => {
                shard.stage = Stage::Loading { at, end };
                return self.go_on_loading(core, replica);
            }
            Err(Problem::Read(problem)) => (problem, Some(core.now.mono_us + GROUP_LOG_AGAIN_US)),
            Err(Problem::Content(problem)) => (problem, None),
        };
        let topic = self.replicas.get(&replica).map_or("", |kind| kind.topic());
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
        kind: Kind,
        name: &str,
    ) -> Result<ReplicaId, ErrorCode> {
        let topic = core.controller.image.topic_named(kind.topic());
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

    /// Returns the coordinator of a group, for callers that only read.
    pub(crate) fn coordinator(&self, core: &Core, group: &str) -> Result<&Coordinator, ErrorCode> {
        let replica = self.shard_of(core, Kind::Groups, group)?;
        match &self.shards[&replica].view {
            View::Groups(groups) => Ok(groups),
            View::Transactions(_) | View::Shares(_) => Err(ErrorCode::NotCoordinator),
        }
    }

    /// Returns the coordinator of a transactional id, for callers that only read.
    pub(crate) fn transaction_coordinator(
        &self,
        core: &Core,
        id: &str,
    ) -> Result<&transactions::Coordinator, ErrorCode> {
        let replica = self.shard_of(core, Kind::Transactions, id)?;
        match &self.shards[&replica].view {
            View::Transactions(transactions) => Ok(transactions),
            View::Groups(_) | View::Shares(_) => Err(ErrorCode::NotCoordinator),
        }
    }

    /// Returns all coordinators of transactions here. An error while some of them load, because they could know more.
    pub(crate) fn transaction_coordinators(
        &self,
    ) -> Result<Vec<&transactions::Coordinator>, ErrorCode> {
        let mut all = Vec::new();
        for shard in self.shards.values() {
            let View::Transactions(transactions) = &shard.view else { continue };
            match shard.stage {
                Stage::Loading { .. } => return Err(ErrorCode::CoordinatorLoadInProgress),
                Stage::Serving => all.push(transactions),
                Stage::Failed { .. } => {}
            }
        }
        Ok(all)
    }

    /// Lets the coordinator of a transactional id do something.
    pub(crate) fn coordinate_transaction(
        &mut self,
        core: &mut Core,
        id: &str,
        ask: impl FnOnce(&mut transactions::Coordinator),
    ) -> Result<(), ErrorCode> {
        let replica = self.shard_of(core, Kind::Transactions, id)?;
        self.with_transactions(core, replica, ask);
        Ok(())
    }

    /// Lets a coordinator of transactions do something, if it is here still.
    pub(super) fn with_transactions(
        &mut self,
        core: &mut Core,
        replica: ReplicaId,
        ask: impl FnOnce(&mut transactions::Coordinator),
    ) {
        let shard = self.shards.get_mut(&replica);
        if let Some(transactions) = shard.and_then(|shard| shard.view.transactions()) {
            ask(transactions);
            self.settle(core, replica);
        }
    }

    /// Lets a coordinator of share groups' states do something, if it is here still.
    pub(super) fn with_shares(
        &mut self,
        core: &mut Core,
        replica: ReplicaId,
        ask: impl FnOnce(&mut shares::Coordinator),
    ) {
        let shard = self.shards.get_mut(&replica);
        if let Some(shares) = shard.and_then(|shard| shard.view.shares()) {
            ask(shares);
            self.settle(core, replica);
        }
    }

    /// Answers a question of a coordinator of groups to one of shares.
    pub(super) fn tell_groups_of_share(
        &mut self,
        core: &mut Core,
        replica: ReplicaId,
        (key, ask, answer): (&ShareKey, &Ask, &Answer),
    ) {
        let shard = self.shards.get_mut(&replica);
        if let Some(groups) = shard.and_then(|shard| shard.view.groups()) {
            groups.on_share_answer(key, ask, answer);
            self.settle(core, replica);
        }
    }

    /// Tells coordinators of groups that a transaction has ended in a partition, which may be one that keeps groups.
    pub(super) fn tell_groups_of_marker(
        &mut self,
        core: &mut Core,
        replica: ReplicaId,
        producer_id: i64,
        commits: bool,
    ) {
        let Some(shard) = self.shards.get_mut(&replica) else { return };
        if let (View::Groups(groups), Stage::Serving) = (&mut shard.view, &shard.stage) {
            groups.on_marker(producer_id, commits);
            self.settle(core, replica);
            self.keep_small(core, replica);
        }
    }

    /// Returns the groups of all coordinators that a client asks for. An error while some of them load, because they
    /// could have more.
    pub(crate) fn groups(
        &self,
        core: &Core,
        request: &ListGroupsRequest,
    ) -> Result<Vec<ListedGroup>, ErrorCode> {
        let mut groups = Vec::new();
        for shard in self.shards.values() {
            let View::Groups(coordinator) = &shard.view else { continue };
            match shard.stage {
                Stage::Loading { .. } => return Err(ErrorCode::CoordinatorLoadInProgress),
                Stage::Serving => {
                    let rules = &self.rules;
                    groups.append(&mut coordinator.list(rules, request, core.now));
                }
                Stage::Failed { .. } => {}
            }
        }
        Ok(groups)
    }

    /// Gives the coordinator of a group a request, and parks it so: the answer comes as an [`Output`].
    pub(crate) fn coordinate(
        &mut self,
        core: &mut Core,
        key: RequestKey,
        version: i16,
        group: &str,
        ask: impl FnOnce(&mut Coordinator, Sight<'_>),
    ) -> Result<(), ErrorCode> {
        self.shard_of(core, Kind::Groups, group)?;
        core.park(key, Parked::Group { version }, u64::MAX);
        self.coordinate_part(core, group, ask)
    }

    /// Gives the coordinator of a group its part of a request that is parked.
    pub(crate) fn coordinate_part(
        &mut self,
        core: &mut Core,
        group: &str,
        ask: impl FnOnce(&mut Coordinator, Sight<'_>),
    ) -> Result<(), ErrorCode> {
        let replica = self.shard_of(core, Kind::Groups, group)?;
        let shard = self.shards.get_mut(&replica).expect("it was just found");
        let image = &core.controller.image;
        let version = self.topics_version;
        let topics = Topics { access: &core.access, image, version };
        let sight = Sight { rules: &self.rules, image, topics };
        if let Some(groups) = shard.view.groups() {
            ask(groups, sight);
        }
        self.settle(core, replica);
        Ok(())
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
            let Self { shards, rules, topics_version, .. } = self;
            let Some(shard) = shards.get_mut(&replica) else { return };
            let (access, image) = (&core.access, &core.controller.image);
            let topics = Topics { access, image, version: *topics_version };
            match &mut shard.view {
                View::Groups(groups) => {
                    if matches!(shard.stage, Stage::Serving) {
                        groups.go_on(rules, topics, core.now);
                    }
                    let outputs = groups.take_outputs();
                    if outputs.is_empty() {
                        break;
                    }
                    self.carry_out(core, replica, outputs);
                }
                View::Transactions(transactions) => {
                    let outputs = transactions.take_outputs();
                    if outputs.is_empty() {
                        break;
                    }
                    self.carry_out_transactions(core, replica, outputs);
                }
                View::Shares(shares) => {
                    let outputs = shares.take_outputs();
                    if outputs.is_empty() {
                        break;
                    }
                    self.carry_out_shares(core, replica, outputs);
                }
            }
        }
        self.set_coordinator_timer(core, replica);
    }

    fn carry_out(&mut self, core: &mut Core, replica: ReplicaId, outputs: Vec<Output>) {
        for output in outputs {
            match output {
                Output::Reply(key, response) => {
                    core.signals.push_back(Signal::GroupAnswered { key, response });
                }
                Output::Fetched { key, part, group } => {
                    core.signals.push_back(Signal::OffsetsFetched { key, part, group });
                }
                Output::Deleted { key, part, result } => {
                    let code = result.error_code;
                    core.signals.push_back(Signal::GroupDeleted { key, part, code });
                }
                Output::AskShares(key, ask) => {
                    self.call_shares(core, Caller::Group(replica), key, ask);
                }
                Output::Append(ticket, records, transactor) => {
                    let records: Result<Vec<_>, _> =
                        records.iter().map(GroupRecord::encode).collect();
                    self.append_records(core, replica, ticket, records, transactor);
                }
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

    /// Returns the coordinator of a group, and its view of topics, for callers that only read.
    pub(crate) fn coordinator_and_sight<'a>(
        &'a self,
        core: &'a Core,
        group: &str,
    ) -> Result<(&'a Coordinator, Sight<'a>), ErrorCode> {
        let coordinator = self.coordinator(core, group)?;
        let (image, version) = (&core.controller.image, self.topics_version);
        let topics = Topics { access: &core.access, image, version };
        Ok((coordinator, Sight { rules: &self.rules, image, topics }))
    }

    /// Forgets the committed offsets of a topic that is gone.
    pub(super) fn forget_offsets(&mut self, core: &mut Core, topic: &Topic) {
        let replicas: Vec<_> = self.shards.keys().copied().collect();
        for replica in replicas {
            let shard = self.shards.get_mut(&replica).expect("it is listed");
            match shard.stage {
                Stage::Serving => {
                    match &mut shard.view {
                        View::Groups(it) => it.forget_topic(&topic.name, topic.id),
                        View::Shares(it) => it.forget_topic(topic.id, core.now),
                        View::Transactions(_) => continue,
                    }
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
        if !matches!(shard.stage, Stage::Serving) || core.disk_shortage.is_some() {
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
        renewal.ticket = shard.view.renew(before);
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
        let Self { shards, rules, transactional_id_expiration_ms, sweep, .. } = self;
        let (from, after) = sweep.at.take().unwrap_or((ReplicaId(0), None));
        let Some((&replica, shard)) = shards.range_mut(from..).next() else { return false };
        if !is_believed {
            return false;
        }
        let after = after.filter(|_| replica == from);
        let after = after.as_ref();
        let mut kept = BTreeSet::new();
        let seen = match (&shard.stage, &mut shard.view) {
            (Stage::Serving, View::Groups(it)) => {
                let seen = it.expire(rules, core.now, after, SWEEP_SLICE);
                kept = it.topics_shared(after, seen.as_ref());
                seen
            }
            (Stage::Serving, View::Transactions(it)) => {
                it.expire(*transactional_id_expiration_ms, core.now, after, SWEEP_SLICE)
            }
            (Stage::Serving, View::Shares(it)) => {
                let seen;
                (kept, seen) = it.topics_kept(after, SWEEP_SLICE);
                seen
            }
            (Stage::Loading { .. } | Stage::Failed { .. }, _) => None,
        };
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
        match &mut shard.view {
            View::Groups(it) => it.forget_shared_topic(topic_id),
            View::Shares(it) => it.forget_topic(topic_id, core.now),
            View::Transactions(_) => return,
        }
        self.settle(core, replica);
    }
}
