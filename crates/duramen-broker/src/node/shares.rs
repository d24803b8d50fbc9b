//! # Room card: share groups in the node
//!
//! Purpose:    share groups on the partitions that this node leads, for their consumers (KIP-932).
//! Owns:       share partitions while they are in use: reads and writes of their state, surveys of their logs; the
//!             requests that wait for them; share sessions.
//! Interface:  [`Shares::acknowledge_share`], [`Shares::wait_for_shares`], [`Shares::end_share_session`] for requests;
//!             the node calls the rest on events.
//! Invariants: no consumer gets a record before the state is known, and no answer to a decision leaves before it is
//!             durable. The node drops a share partition when its replica no longer leads, or another leader has taken
//!             the state.
//! Never:      the holders of records (see `shares::partition`), the place of the state (see `share_calls`).
//! Tests:      `node/tests/{shares,share_groups,leases}.rs`; `duramen-sim`.
//! Start at:   [`Shares::wait_for_shares`], then `try_share`; `shares/workers.rs` for the native API.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use duramen_protocol::ErrorCode;
use duramen_protocol::wire::Uuid;
use duramen_storage::op::ReplicaId;
use duramen_storage::sabotage::{self, Bug};

mod entry;
mod workers;

use entry::{Entry, Stage};
use workers::refuse_workers;

use super::Coordinators;
use super::dead_letters::DeadLetterCopies;
use super::share_calls::ShareTold;
use crate::access::{Operation, Resource};
use crate::configs::{Beginning, BrokerSettings, GroupSettings};
use crate::core::{Core, Parked, ShareRequest, Signal, Timer};
use crate::event::{
    Action, ConnectionId, Date, Dated, Look, RequestKey, SeenBatch, Survey, Surveyed,
};
use crate::internal_topics::SHARES;
use crate::limits::{SHARE_AGAIN_US, SHARE_BEGIN_US, SHARE_LINGER_US, SHARE_SURVEY_BYTES};
use crate::partition::Partition;
use crate::session::RequestContext;
use crate::shares::partition::{
    Acknowledgement, Limits, Plan, RENEW, Rules, Seen, SharePartition, Span,
};
use crate::shares::sessions::{Member, ShareSessions, Target};
use crate::shares::{ShareKey, ShareState, ShareWrite};

/// Receiver of records.
#[derive(Clone, Copy)]
enum Taker<'a> {
    /// A member of the group, in a session.
    Member(&'a Arc<str>),
    /// A worker of the native API.
    Worker,
}

/// See the room card.
#[derive(Debug, Default)]
pub(crate) struct Shares {
    entries: BTreeMap<ShareKey, Entry>,
    by_number: BTreeMap<u64, ShareKey>,
    pub(crate) sessions: ShareSessions,
    /// Share partitions with events in this turn.
    dirty: BTreeSet<ShareKey>,
    /// Decisions that are not durable yet: the request that waits for each, and the partition of the request.
    tickets: BTreeMap<u64, (RequestKey, Target)>,
    /// Looks at logs that are under way, with their share partitions.
    looks: BTreeMap<u64, ShareKey>,
    /// Looks at logs that are to begin.
    wanted: Vec<Look>,
    /// Requests that may be answered by now.
    woken: BTreeSet<RequestKey>,
    /// Rules of groups, until the end of the turn.
    rules: BTreeMap<Arc<str>, Rules>,
    /// Share partitions that have nothing for workers until the end of the turn: true if all of the log is known.
    exhausted: BTreeMap<ShareKey, bool>,
    counted: u64,
    pub(super) dead_letters: DeadLetterCopies,
}

impl Shares {
    pub(super) fn new(settings: &BrokerSettings) -> Self {
        let most = usize::try_from(settings.group_share_max_share_sessions).unwrap_or(usize::MAX);
        Self { sessions: ShareSessions::new(most), ..Self::default() }
    }

    /// Checks that a turn has followed all events of share partitions.
    pub(crate) fn inspect(&self, core: &Core) {
        assert!(self.dirty.is_empty(), "a turn settles every share partition with events");
        assert!(self.woken.is_empty(), "a turn looks at every request that may be answered");
        assert!(self.wanted.is_empty(), "a turn begins all looks");
        assert_eq!(self.by_number.len(), self.entries.len(), "a share partition has a number");
        debug_assert!(
            self.entries.iter().all(|(key, entry)| self.by_number.get(&entry.number) == Some(key)),
            "a share partition is found by its number"
        );
        debug_assert!(
            self.entries.values().all(|entry| entry
                .timer_us
                .is_none_or(|at| { core.timers.contains(&(at, Timer::Share(entry.number))) })),
            "a share partition with a time has a timer"
        );
        debug_assert!(
            self.entries.values().all(|entry| {
                entry.survey.is_none_or(|ticket| self.looks.contains_key(&ticket))
            }),
            "a survey under way is looked for"
        );
        debug_assert!(
            self.entries.values().all(|entry| core.partitions.contains_key(&entry.replica)),
            "a share partition has a replica here"
        );
        self.dead_letters.inspect();
    }

    fn count(&mut self) -> u64 {
        self.counted += 1;
        self.counted
    }

    /// Returns the number of share partitions in use here.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns the number of surveyed records that the groups are not done with.
    pub(super) fn unfinished(&self) -> i64 {
        let known = self.entries.values().filter_map(|entry| match &entry.stage {
            Stage::Known { part, .. } => Some(part.unfinished()),
            Stage::Reading { .. } | Stage::Dating { .. } => None,
        });
        known.sum()
    }
}

/// Requests.
impl Core {
    pub(crate) fn group_settings(&self, group: &str) -> GroupSettings {
        GroupSettings::resolve(self.controller.image.group_configs(group), &self.options.settings)
    }

    /// Returns the name of the topic that a group's dead letters go to, if it has one.
    pub(super) fn dead_letters_of(&self, group: &str) -> Option<&str> {
        let own = self.controller.image.group_configs(group);
        let name = own.get("errors.deadletterqueue.topic.name").map(String::as_str);
        name.filter(|name| !name.is_empty())
    }

    fn share_rules(&self, group: &str) -> Rules {
        let settings = self.group_settings(group);
        Rules {
            lock_us: u64::from(settings.record_lock_duration_ms.unsigned_abs()) * 1000,
            deliveries_max: settings.delivery_count_limit,
            unfinished_max: i64::from(settings.partition_max_record_locks),
            by_key: settings.by_key,
            has_dead_letters: self.dead_letters_of(group).is_some(),
            may_renew: settings.may_renew,
        }
    }

    /// Returns the key and the leading local replica of a share partition, or the error for the consumer.
    fn share_target(
        &self,
        context: &RequestContext,
        group: &Arc<str>,
        (topic_id, partition): Target,
    ) -> Result<(ShareKey, ReplicaId), ErrorCode> {
        let topic = self.controller.image.topic(topic_id).ok_or(ErrorCode::UnknownTopicId)?;
        if !self.access.may(context, Operation::Read, Resource::Topic(&topic.name)) {
            return Err(ErrorCode::TopicAuthorizationFailed);
        }
        let replica = self.serving(topic, partition)?.group.id();
        Ok((ShareKey { group: Arc::clone(group), topic_id, partition }, replica))
    }

    /// Ends locks and waits of a share partition whose time has come. Tells whether there were any.
    fn bring_up_to_date(&mut self, part: &mut SharePartition, rules: &Rules) -> bool {
        let wall_ms = self.now.wall_ms;
        let has_expired = part.expire(self.now.mono_us, rules);
        let is_due = part.is_due(wall_ms);
        has_expired | (is_due && part.wake(wall_ms, self.believes_clock(), rules))
    }

    /// Tells whether a consumer's quota lets it have so many bytes now. If not, the consumer has to rest, acquires
    /// nothing, and the bytes do not count.
    fn may_have(&mut self, key: RequestKey, bytes: u64) -> bool {
        let Some(Parked::Share(request)) = self.parked_mut(key) else { return false };
        let Some(quota) = request.quota.clone() else { return true };
        let rest_ms = self.use_up(&quota, bytes);
        if rest_ms > 0 {
            self.give_back(&quota, bytes);
        }
        if let Some(Parked::Share(request)) = self.parked_mut(key) {
            request.rest_ms = rest_ms;
        }
        rest_ms == 0
    }
}

impl Shares {
    /// Returns the replica of a share partition of this number, if it is still that one.
    pub(super) fn shared_replica(&self, key: &ShareKey, number: u64) -> Option<ReplicaId> {
        let entry = self.entries.get(key).filter(|entry| entry.number == number);
        entry.map(|entry| entry.replica)
    }

    /// Notes that the dead letters of records are durable.
    pub(super) fn note_buried(&mut self, key: &ShareKey, number: u64, first: i64, last: i64) {
        let entry = self.entries.get_mut(key).filter(|entry| entry.number == number);
        if let Some(part) = entry.and_then(Entry::known) {
            part.on_buried(first, last);
            self.dirty.insert(key.clone());
        }
    }

    /// Ends the waits of the consumers that gave up records, because the dead letters cannot be made durable yet.
    pub(super) fn note_burial_waits(&mut self, key: &ShareKey, number: u64) {
        let entry = self.entries.get_mut(key).filter(|entry| entry.number == number);
        if let Some(part) = entry.and_then(Entry::known) {
            part.fail_dying(ErrorCode::CoordinatorNotAvailable);
            self.dirty.insert(key.clone());
        }
    }

    /// Takes a consumer's acknowledgements of records that it holds. The request waits if there is something to wait
    /// for.
    pub(crate) fn acknowledge_share(
        &mut self,
        core: &mut Core,
        request_key: RequestKey,
        request: &mut ShareRequest,
        target: Target,
        said: &[Acknowledgement],
    ) {
        let result = self.decide_share(core, request_key, request, target, said);
        let told = request.told.entry(target).or_default();
        match result {
            Ok(true) => request.undecided += 1,
            Ok(false) => told.acknowledged = Some(ErrorCode::None),
            Err(code) => told.acknowledged = Some(code),
        }
    }

    fn decide_share(
        &mut self,
        core: &mut Core,
        request_key: RequestKey,
        request: &ShareRequest,
        target: Target,
        said: &[Acknowledgement],
    ) -> Result<bool, ErrorCode> {
        let (group, member) = &request.member;
        if !request.is_renewing && said.iter().any(|it| it.types.contains(&RENEW)) {
            return Err(ErrorCode::InvalidRequest);
        }
        let (key, replica) = core.share_target(&request.context, group, target)?;
        let rules = core.share_rules(group);
        let log_start = core.partitions.get(&replica).map_or(0, |it| it.log_start());
        let entry = self.entries.get_mut(&key).filter(|entry| entry.replica == replica);
        // No member holds any record of it here.
        let part = entry.and_then(Entry::known).ok_or(ErrorCode::InvalidRecordState)?;
        part.trim(log_start);
        core.bring_up_to_date(part, &rules);
        self.counted += 1;
        let ticket = self.counted;
        let waits = part.acknowledge(core.now.mono_us, member, said, ticket, &rules);
        self.dirty.insert(key);
        if waits == Ok(true) {
            self.tickets.insert(ticket, (request_key, target));
        }
        waits
    }

    /// Notes which partitions a session has gained and lost.
    pub(crate) fn note_share_session(
        &mut self,
        (group, member): &Member,
        added: &[Target],
        removed: &[Target],
    ) {
        for &(topic_id, partition) in removed {
            let key = ShareKey { group: Arc::clone(group), topic_id, partition };
            if let Some(entry) = self.entries.get_mut(&key) {
                entry.members.remove(member);
                self.dirty.insert(key);
            }
        }
        for &(topic_id, partition) in added {
            let key = ShareKey { group: Arc::clone(group), topic_id, partition };
            if let Some(entry) = self.entries.get_mut(&key) {
                entry.members.insert(Arc::clone(member));
            }
        }
    }

    /// Resets a session. Its consumer keeps the records that it holds, as with Kafka.
    pub(crate) fn forget_share_session(&mut self, member: &Member) {
        if let Some(targets) = self.sessions.end(member) {
            self.note_share_session(member, &[], &targets);
        }
    }

    /// Ends a session, and releases the records that its consumer holds.
    pub(crate) fn end_share_session(&mut self, member: &Member) {
        let Some(targets) = self.sessions.end(member) else { return };
        self.note_share_session(member, &[], &targets);
        let (group, member) = member;
        let first = ShareKey { group: Arc::clone(group), topic_id: Uuid::ZERO, partition: 0 };
        let of_group = self.entries.range_mut(first..);
        // The consumer may hold records of partitions that it no longer fetches.
        for (key, entry) in of_group.take_while(|(key, _)| key.group == *group) {
            if let Some(part) = entry.known() {
                part.release(member);
                self.dirty.insert(key.clone());
            }
        }
    }

    /// Ends the sessions of a connection that is gone.
    pub(super) fn forget_share_sessions(&mut self, connection: ConnectionId) {
        for member in self.sessions.of(connection) {
            self.end_share_session(&member);
        }
    }

    /// Keeps a request until there is an answer.
    pub(crate) fn wait_for_shares(
        &mut self,
        core: &mut Core,
        coordinators: &mut Coordinators,
        key: RequestKey,
        request: ShareRequest,
        deadline_us: u64,
    ) {
        let mut request = request;
        self.rules.clear();
        self.exhausted.clear();
        request.is_over |= deadline_us <= core.now.mono_us;
        core.park(key, Parked::Share(Box::new(request)), deadline_us);
        self.try_share(core, coordinators, key);
    }

    /// Stops to wake a request.
    pub(super) fn forget_share_request(
        &mut self,
        core: &mut Core,
        key: RequestKey,
        request: &ShareRequest,
    ) {
        for (share, replica) in &request.waits_on {
            self.forget_waiting(core, key, share, *replica);
        }
    }

    fn forget_waiting(
        &mut self,
        core: &mut Core,
        key: RequestKey,
        share: &ShareKey,
        replica: ReplicaId,
    ) {
        if let Some(entry) = self.entries.get_mut(share) {
            entry.waiting.remove(&key);
            self.dirty.insert(share.clone());
        }
        if let Some(partition) = core.partitions.get_mut(&replica) {
            partition.fetches.remove(&key);
        }
    }

    /// Wakes the requests that wait on a partition, because an entry was committed there.
    pub(crate) fn wake_share(&mut self, key: RequestKey) {
        self.woken.insert(key);
    }

    fn rules_of(&mut self, core: &Core, group: &Arc<str>) -> Rules {
        if let Some(rules) = self.rules.get(group) {
            return *rules;
        }
        let rules = core.share_rules(group);
        self.rules.insert(Arc::clone(group), rules);
        rules
    }

    /// Answers a request if there is enough, or if its time is over.
    fn try_share(&mut self, core: &mut Core, coordinators: &mut Coordinators, key: RequestKey) {
        let Some(Parked::Share(request)) = core.parked_mut(key) else { return };
        if request.undecided > 0 || self.waits_in_vain(request) {
            return;
        }
        let is_refused = request.worker.as_ref().is_some_and(|it| it.problem.is_some());
        let (is_over, worker) = (request.is_over, request.worker.clone());
        let (member, context) = (request.member.clone(), request.context.clone());
        let wanted = request.wanted.filter(|it| it.limits.records > 0 && !is_refused);
        let Some(wanted) = wanted else { return self.answer_share(core, key) };
        let mut limits = wanted.limits;
        let (mut found, mut refused, mut waits_on) = (Vec::new(), Vec::new(), Vec::new());
        let rules = self.rules_of(core, &member.0);
        let (mut bytes, mut is_all_known) = (0, true);
        let of_worker = worker.as_ref().map(|it| it.targets.clone());
        let targets = of_worker.unwrap_or_else(|| self.sessions.targets(&member));
        for &target in &targets {
            let (share, replica) = match core.share_target(&context, &member.0, target) {
                Ok(found) => found,
                Err(code) => {
                    refused.push((target, code));
                    continue;
                }
            };
            let plan = if worker.is_some() {
                self.pick_share(core, coordinators, (&share, replica), &limits, &rules)
            } else {
                let who = Taker::Member(&member.1);
                self.plan_share(core, coordinators, (&share, replica), who, &limits, &rules)
            };
            is_all_known &= plan.is_some();
            let plan = plan.unwrap_or_default();
            waits_on.push((share.clone(), replica));
            if !plan.pieces.is_empty() && limits.records > 0 && (bytes == 0 || limits.bytes > 0) {
                bytes += plan.bytes;
                limits.records -= plan.records;
                limits.bytes = limits.bytes.saturating_sub(plan.bytes);
                found.push((target, share, replica, plan));
            }
            if worker.is_some() && limits.records <= 0 {
                break;
            }
        }
        let is_enough = !found.is_empty() && bytes >= wanted.bytes_min;
        // A worker who does not wait gets nothing only if there is nothing.
        let is_over = is_over && (is_all_known || worker.is_none_or(|it| it.is_late));
        if !(is_enough || is_over || !refused.is_empty()) {
            return self.go_on_waiting(core, key, waits_on);
        }
        if !core.may_have(key, bytes) {
            found.clear();
        }
        let Some(Parked::Share(request)) = core.parked_mut(key) else { return };
        if wanted.is_full {
            for target in &targets {
                request.told.entry(*target).or_default();
            }
        }
        for (target, code) in refused {
            request.told.entry(target).or_default().error = Some(code);
        }
        for (target, share, replica, plan) in found {
            self.sessions.served(&member, &target);
            if let Some(part) = self.entries.get_mut(&share).and_then(Entry::known) {
                part.acquire(core.now.mono_us, &member.1, &plan, &rules);
                self.dirty.insert(share);
            }
            if let Some(Parked::Share(request)) = core.parked_mut(key) {
                request.told.entry(target).or_default().plan = Some((replica, plan));
            }
        }
        self.answer_share(core, key);
    }

    fn go_on_waiting(
        &mut self,
        core: &mut Core,
        key: RequestKey,
        waits_on: Vec<(ShareKey, ReplicaId)>,
    ) {
        let Some(Parked::Share(request)) = core.parked_mut(key) else { return };
        // Its session may have forgotten some since it was looked at last.
        let before = std::mem::replace(&mut request.waits_on, waits_on.clone());
        for (share, replica) in before.iter().filter(|it| !waits_on.contains(it)) {
            self.forget_waiting(core, key, share, *replica);
        }
        for (share, replica) in waits_on {
            if let Some(entry) = self.entries.get_mut(&share) {
                entry.waiting.insert(key);
            }
            if let Some(partition) = core.partitions.get_mut(&replica) {
                partition.fetches.insert(key);
            }
        }
    }

    fn answer_share(&mut self, core: &mut Core, key: RequestKey) {
        let Some(Parked::Share(request)) = core.take_parked(key) else { return };
        self.forget_share_request(core, key, &request);
        core.signals.push_back(Signal::Shared { key, request });
    }
}

/// Share partitions.
impl Shares {
    /// Returns the records of a share partition that a consumer would get now. Begins the reads that more records need;
    /// `None` without records until these are over.
    fn plan_share(
        &mut self,
        core: &mut Core,
        coordinators: &mut Coordinators,
        (key, replica): (&ShareKey, ReplicaId),
        taker: Taker<'_>,
        limits: &Limits,
        rules: &Rules,
    ) -> Option<Plan> {
        let partition = core.partitions.get(&replica)?;
        let (term, log_start) = (partition.group.term(), partition.log_start());
        let is_it = |entry: &Entry| entry.replica == replica && entry.term == term;
        if !self.entries.get(key).is_some_and(is_it) {
            self.drop_share(core, key, ErrorCode::NotLeaderOrFollower);
            self.read_share(
                core,
                coordinators,
                key,
                (replica, term),
                matches!(taker, Taker::Worker),
            );
        }
        let entry = self.entries.get_mut(key)?;
        match taker {
            Taker::Member(member) => {
                entry.members.insert(Arc::clone(member));
            }
            Taker::Worker => entry.linger_us = core.now.mono_us.saturating_add(SHARE_LINGER_US),
        }
        let Stage::Known { part, is_ready, by_key, .. } = &mut entry.stage else {
            return None;
        };
        if sabotage::is(Bug::LockEndsEarly) {
            part.expire(u64::MAX, rules);
        }
        if part.trim(log_start) | core.bring_up_to_date(part, rules) {
            self.dirty.insert(key.clone());
        }
        if *by_key != rules.by_key {
            // Until no member holds a record, nothing more is given out.
            if !part.is_idle() {
                return None;
            }
            part.begin_anew();
            *by_key = rules.by_key;
            entry.survey = None;
        }
        if !*is_ready {
            return None;
        }
        let plan = match taker {
            Taker::Member(_) => part.plan(limits, rules),
            Taker::Worker => part.pick(limits, rules),
        };
        if plan.records < limits.records {
            self.survey_share(core, key, rules);
        }
        let is_surveyed = self.entries.get(key).is_some_and(|it| it.survey.is_none());
        (is_surveyed || !plan.pieces.is_empty()).then_some(plan)
    }

    fn read_share(
        &mut self,
        core: &mut Core,
        coordinators: &mut Coordinators,
        key: &ShareKey,
        (replica, term): (ReplicaId, u64),
        is_of_worker: bool,
    ) {
        // Where no state of any group is kept, no coordinator answers.
        let is_beginning = is_of_worker && core.controller.image.topic_named(SHARES).is_none();
        let call = if is_beginning {
            coordinators.begin_share_state(core, replica, key.clone())
        } else {
            coordinators.read_share_state(core, replica, key.clone())
        };
        let number = self.count();
        self.by_number.insert(number, key.clone());
        let entry = Entry {
            number,
            replica,
            term,
            stage: Stage::Reading { call: Some(call), again_us: 0, is_beginning },
            survey: None,
            survey_again_us: 0,
            members: BTreeSet::new(),
            waiting: BTreeSet::new(),
            linger_us: 0,
            timer_us: None,
        };
        self.entries.insert(key.clone(), entry);
    }

    /// Forgets a share partition. Requests that wait for its decisions get the error; those that wait for records try
    /// again.
    fn drop_share(&mut self, core: &mut Core, key: &ShareKey, code: ErrorCode) {
        let Some(mut entry) = self.entries.remove(key) else { return };
        self.by_number.remove(&entry.number);
        let dating = match entry.stage {
            Stage::Dating { look, .. } => Some(look),
            _ => None,
        };
        for ticket in entry.survey.into_iter().chain(dating) {
            self.looks.remove(&ticket);
        }
        if let Some(at) = entry.timer_us {
            core.timers.remove(&(at, Timer::Share(entry.number)));
        }
        let waiting = entry.waiting.clone();
        if let Some(part) = entry.known() {
            part.fail_tickets(code);
            for (ticket, code) in part.take_answers() {
                self.note_decided(core, ticket, code);
            }
        }
        self.woken.extend(waiting);
    }

    /// Notes that a decision is durable or has failed.
    fn note_decided(&mut self, core: &mut Core, ticket: u64, code: ErrorCode) {
        let Some((key, target)) = self.tickets.remove(&ticket) else { return };
        let Some(Parked::Share(request)) = core.parked_mut(key) else { return };
        request.undecided -= 1;
        let told = request.told.entry(target).or_default();
        told.acknowledged = Some(code);
        if request.undecided == 0 {
            self.woken.insert(key);
        }
    }

    /// Begins a survey of the log, if there is more and there is room for it.
    fn survey_share(&mut self, core: &mut Core, key: &ShareKey, rules: &Rules) {
        let settings = core.group_settings(&key.group);
        let Some(entry) = self.entries.get_mut(key) else { return };
        let Some(partition) = core.partitions.get(&entry.replica) else { return };
        if entry.survey.is_some() || entry.survey_again_us > core.now.mono_us {
            return;
        }
        let end = end_of(partition, &settings);
        let Some(part) = entry.known() else { return };
        let Some(from) = part.wants(rules, end) else { return };
        let one_by_one = rules.by_key || partition.settings.queue;
        let records_max = if one_by_one { part.room(rules) } else { 0 };
        self.counted += 1;
        let ticket = self.counted;
        entry.survey = Some(ticket);
        entry.survey_again_us = 0;
        let replica = entry.replica;
        self.looks.insert(ticket, key.clone());
        let bytes_max = SHARE_SURVEY_BYTES;
        let is_of_queues = partition.settings.queue;
        let survey = Survey { replica, from, end, bytes_max, records_max, is_of_queues, ticket };
        core.out.push(Action::Look(Look::Survey(survey)));
    }

    pub(crate) fn on_surveyed(&mut self, core: &mut Core, surveyed: Surveyed) {
        let Surveyed { replica, from, ticket, found } = surveyed;
        let Some(key) = self.looks.remove(&ticket) else { return };
        let rules = core.share_rules(&key.group);
        let is_read_committed = core.group_settings(&key.group).is_read_committed;
        let Some(entry) = self.entries.get_mut(&key) else { return };
        if entry.survey != Some(ticket) {
            return;
        }
        entry.survey = None;
        let Some(partition) = core.partitions.get(&replica) else { return };
        match found {
            Ok((batches, mut to)) => {
                let mut aborted = Vec::new();
                if is_read_committed && !sabotage::is(Bug::AbortedIsShared) {
                    (aborted, to) = partition.aborted(from, to);
                }
                let is_aborted = |batch: &SeenBatch| {
                    let of = |it: &crate::partition::Aborted| {
                        batch.transactional == Some(it.producer_id)
                            && (it.first_offset..=it.last_offset).contains(&batch.base)
                    };
                    aborted.iter().any(of)
                };
                let seen = batches.into_iter().filter(|batch| batch.base < to).map(|batch| {
                    let SeenBatch { base, last, segment, at, bytes, .. } = batch;
                    let is_nothing = batch.is_nothing || is_aborted(&batch);
                    let span = Span { last, segment, at, bytes };
                    Seen { base, span, is_nothing, records: batch.records }
                });
                let seen = seen.collect();
                if let Some(part) = entry.known() {
                    part.extend(from, (seen, to), core.now.wall_ms, &rules);
                    core.bring_up_to_date(part, &rules);
                }
            }
            Err(problem) => {
                tracing::warn!(
                    replica = replica.0,
                    from,
                    problem,
                    "cannot read a log for a share group"
                );
                entry.survey_again_us = core.now.mono_us.saturating_add(SHARE_AGAIN_US);
            }
        }
        self.dirty.insert(key);
    }

    /// Takes the result of a call to the coordinator of share groups.
    fn on_share_told(&mut self, core: &mut Core, coordinators: &mut Coordinators, told: ShareTold) {
        let ShareTold { replica, key, call, answer } = told;
        let Some(entry) = self.entries.get_mut(&key) else { return };
        if entry.replica != replica {
            return;
        }
        match &mut entry.stage {
            Stage::Reading { call: waits, is_beginning, .. } if *waits == Some(call) => {
                let is_beginning = *is_beginning;
                self.on_share_read(core, coordinators, (&key, is_beginning), answer);
            }
            Stage::Known { part, writing, is_ready, .. } if *writing == Some(call) => {
                *writing = None;
                match answer {
                    Ok(_) => {
                        part.on_written();
                        *is_ready = true;
                    }
                    // The write may be durable, and is sent again until that is known.
                    Err(code @ ErrorCode::CoordinatorNotAvailable) => part.fail_tickets(code),
                    Err(code) => return self.drop_share(core, &key, refused(code)),
                }
            }
            _ => return,
        }
        self.dirty.insert(key);
    }

    fn on_share_read(
        &mut self,
        core: &mut Core,
        coordinators: &mut Coordinators,
        (key, is_beginning): (&ShareKey, bool),
        answer: Result<Arc<ShareState>, ErrorCode>,
    ) {
        let settings = core.group_settings(&key.group);
        let Some(entry) = self.entries.get_mut(key) else { return };
        let Some(partition) = core.partitions.get(&entry.replica) else { return };
        let state = match answer {
            Ok(state) => state,
            Err(ErrorCode::FencedLeaderEpoch) => {
                return self.drop_share(core, key, ErrorCode::NotLeaderOrFollower);
            }
            Err(ErrorCode::InvalidRequest) if entry.linger_us > 0 && !is_beginning => {
                // No state is kept, and workers are no members, for whom the group would begin it.
                let call = coordinators.begin_share_state(core, entry.replica, key.clone());
                entry.stage = Stage::Reading { call: Some(call), again_us: 0, is_beginning: true };
                return;
            }
            Err(ErrorCode::GroupIdNotFound) if is_beginning => {
                refuse_workers(core, &entry.waiting);
                return self.drop_share(core, key, ErrorCode::GroupIdNotFound);
            }
            Err(code) => {
                tracing::debug!(share = %key, %code, "the state of a share partition is unknown yet");
                let pause_us = if is_beginning { SHARE_BEGIN_US } else { SHARE_AGAIN_US };
                let again_us = core.now.mono_us.saturating_add(pause_us);
                entry.stage = Stage::Reading { call: None, again_us, is_beginning: false };
                return;
            }
        };
        let (log_start, end) = (partition.log_start(), end_of(partition, &settings));
        let own = core.controller.image.group_configs(&key.group);
        let is_workers = entry.linger_us > 0 && !own.contains_key("share.auto.offset.reset");
        let first = match (state.start, settings.beginning) {
            (0.., _) => state.start,
            // A worker wants the work that was there before the first lease.
            (_, Beginning::Earliest) => log_start,
            _ if is_workers => log_start,
            (_, Beginning::Ago(ms)) if log_start < end => {
                self.counted += 1;
                let ticket = self.counted;
                let replica = entry.replica;
                entry.stage = Stage::Dating { look: ticket, state };
                self.looks.insert(ticket, key.clone());
                let timestamp = core.now.wall_ms.saturating_sub(ms);
                let date = Date { replica, timestamp, start: log_start, end, ticket };
                self.wanted.push(Look::Date(date));
                return;
            }
            _ => end,
        };
        begin_share_partition(entry, &state, first, log_start, settings.by_key);
    }

    /// Starts a share partition at the first record since the requested time.
    pub(crate) fn on_dated(&mut self, core: &mut Core, dated: Dated) {
        let Dated { ticket, found } = dated;
        let Some(key) = self.looks.remove(&ticket) else { return };
        let settings = core.group_settings(&key.group);
        let Some(entry) = self.entries.get_mut(&key) else { return };
        let Some(partition) = core.partitions.get(&entry.replica) else { return };
        let Stage::Dating { look, state } = &entry.stage else { return };
        if *look != ticket {
            return;
        }
        match found {
            Ok(offset) => {
                let first = offset.unwrap_or_else(|| end_of(partition, &settings));
                let state = Arc::clone(state);
                let log_start = partition.log_start();
                begin_share_partition(entry, &state, first, log_start, settings.by_key);
            }
            Err(problem) => {
                tracing::warn!(share = %key, problem, "cannot survey a log for a share group");
                let again_us = core.now.mono_us.saturating_add(SHARE_AGAIN_US);
                entry.stage = Stage::Reading { call: None, again_us, is_beginning: false };
            }
        }
        self.dirty.insert(key);
    }

    /// Does the follow-up work of all events of share partitions in this turn.
    pub(crate) fn flush_shares(
        &mut self,
        core: &mut Core,
        coordinators: &mut Coordinators,
    ) -> bool {
        // Without share partitions no request waits for any.
        if !self.entries.is_empty() {
            for told in coordinators.take_share_answers() {
                self.on_share_told(core, coordinators, told);
            }
        }
        core.out.extend(std::mem::take(&mut self.wanted).into_iter().map(Action::Look));
        self.rules.clear();
        let dirty = std::mem::take(&mut self.dirty);
        for key in &dirty {
            self.settle_share(core, coordinators, key);
        }
        let woken = std::mem::take(&mut self.woken);
        self.exhausted.clear();
        for key in &woken {
            self.try_share(core, coordinators, *key);
        }
        self.exhausted.clear();
        self.rules.clear();
        !dirty.is_empty() || !woken.is_empty()
    }

    fn settle_share(&mut self, core: &mut Core, coordinators: &mut Coordinators, key: &ShareKey) {
        let rules = self.rules_of(core, &key.group);
        let Some(entry) = self.entries.get_mut(key) else { return };
        let (replica, number) = (entry.replica, entry.number);
        let (mut answers, mut dying) = (Vec::new(), Vec::new());
        let mut write = None;
        let mut is_unused = !entry.is_in_use(core.now);
        match &mut entry.stage {
            Stage::Known { part, state_epoch, writing, .. } => {
                core.bring_up_to_date(part, &rules);
                answers = part.take_answers();
                dying = part.take_dying();
                if writing.is_none() {
                    let next = part.sent().cloned().or_else(|| part.next_write());
                    write = next.map(|it| ShareWrite {
                        state_epoch: *state_epoch,
                        start: it.start,
                        complete: it.complete,
                        batches: it.batches,
                    });
                }
                is_unused = is_unused && write.is_none() && part.is_idle();
            }
            Stage::Reading { call: None, again_us, .. } if *again_us <= core.now.mono_us => {
                // A request that waits asks for it again.
                is_unused = true;
            }
            Stage::Reading { .. } | Stage::Dating { .. } => {}
        }
        self.woken.extend(entry.waiting.iter().copied());
        for (ticket, code) in answers {
            self.note_decided(core, ticket, code);
        }
        if !dying.is_empty() {
            self.bury(core, key, number, dying);
        }
        if is_unused {
            return self.drop_share(core, key, ErrorCode::NotLeaderOrFollower);
        }
        if let Some(write) = write {
            let call = coordinators.write_share_state(core, replica, key.clone(), write);
            if let Some(Entry { stage: Stage::Known { part, writing, .. }, .. }) =
                self.entries.get_mut(key)
            {
                *writing = Some(call);
                if sabotage::is(Bug::DecidedBeforeKept) {
                    part.on_written();
                    self.dirty.insert(key.clone());
                }
            }
        }
        let Some(entry) = self.entries.get_mut(key) else { return };
        if entry.linger_us <= core.now.mono_us {
            entry.linger_us = 0;
        }
        let due = Some(entry.due_us(core.now)).filter(|at| *at < u64::MAX);
        if entry.timer_us != due {
            if let Some(at) = std::mem::replace(&mut entry.timer_us, due) {
                core.timers.remove(&(at, Timer::Share(number)));
            }
            core.timers.extend(due.map(|at| (at, Timer::Share(number))));
        }
    }

    pub(crate) fn on_share_timer(&mut self, number: u64) {
        let Some(key) = self.by_number.get(&number) else { return };
        if let Some(entry) = self.entries.get_mut(key) {
            entry.timer_us = None;
            entry.survey_again_us = 0;
        }
        self.dirty.insert(key.clone());
    }

    /// Forgets the share partitions of a replica that leads no more, or is gone.
    pub(super) fn forget_shares(&mut self, core: &mut Core, replica: ReplicaId) {
        let of_it = self.entries.iter().filter(|(_, entry)| entry.replica == replica);
        let keys: Vec<ShareKey> = of_it.map(|(key, _)| key.clone()).collect();
        for key in keys {
            self.drop_share(core, &key, ErrorCode::NotLeaderOrFollower);
        }
    }
}

fn begin_share_partition(
    entry: &mut Entry,
    state: &ShareState,
    first: i64,
    log_start: i64,
    by_key: bool,
) {
    let kept = if sabotage::is(Bug::KeptForgotten) { &[] } else { &state.batches[..] };
    let mut part = Box::new(SharePartition::new(first.max(log_start), kept));
    let is_ready = state.start >= 0;
    if first.max(log_start) != state.start {
        part.save_start();
    }
    let state_epoch = state.state_epoch;
    entry.stage = Stage::Known { part, state_epoch, writing: None, is_ready, by_key };
}

/// Returns the end of a partition as a group sees it, with or without open transactions.
fn end_of(partition: &Partition, settings: &GroupSettings) -> i64 {
    if settings.is_read_committed && !sabotage::is(Bug::OpenIsShared) {
        partition.stable().min(partition.shown())
    } else {
        partition.shown()
    }
}

/// Returns a client's error for a decision that will not be kept.
fn refused(code: ErrorCode) -> ErrorCode {
    match code {
        ErrorCode::FencedLeaderEpoch | ErrorCode::FencedStateEpoch => {
            ErrorCode::NotLeaderOrFollower
        }
        ErrorCode::InvalidRequest => ErrorCode::GroupIdNotFound,
        other => other,
    }
}
