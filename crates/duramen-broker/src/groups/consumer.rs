//! # Room card: groups of the consumer protocol
//!
//! Purpose:    one group of the consumer protocol (KIP-848): its members, the partitions that each has, and those that
//!             each is to have. The coordinator decides; members report their subscriptions and their partitions.
//! Owns:       [`ConsumerGroup`]: the facts as far as they were decided, sessions, records to append, answers to send.
//! Interface:  a function a request ([`ConsumerGroup::heartbeat`] and others), [`ConsumerGroup::on_time`], then
//!             [`ConsumerGroup::take`]; [`ConsumerGroup::load`] makes one of facts.
//! Invariants: a partition has at most one owner at any time; epochs never go back; a decision rests on facts that are
//!             durable or that the coordinator appends with it, in one go: during that append, the group decides
//!             nothing.
//! Never:      clocks, chance, appends, the group's coordinator; committed offsets.
//! Tests:      `coordinator/tests/consumers.rs`, by scenario and by chance; `consumer/assignors/tests.rs`.
//! Start at:   [`ConsumerGroup::heartbeat`], `consumer/heartbeats.rs`; then `reconcile.rs`.
//!
//! The protocol has three steps. The group's *epoch* rises when members or topics change. For an epoch the coordinator
//! decides the *target assignments*, which carry that epoch. Then each member moves to its target on its own, by its
//! heartbeats. The member first learns which partitions to revoke, and reports when it has revoked them. Then it gets
//! the epoch of the targets, and each new partition as soon as no other member has it. No member waits for all others.
//!
//! Every decision is a fact, which the group emits and at once sees in later decisions ([`View::apply`]). The
//! coordinator appends the facts of one turn together, and sends the answers when the facts are durable. If the append
//! fails, the coordinator builds the group anew from the durable facts, and no member has heard anything.
//!
//! Members may speak the classic protocol (`consumer/classic.rs`), while at least one speaks the consumer protocol.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::sync::Arc;

use duramen_protocol::messages::consumer_group_describe::{
    Assignment, DescribedGroup, Member as DescribedMember, TopicPartitions,
};
use duramen_protocol::wire::Uuid;
use duramen_protocol::{ErrorCode, Response};
use duramen_storage::sabotage::{self, Bug};

use super::records::{EpochValue, Fact, FactValue};
use super::rules::{Assignor, ConsumerRules, Migration, us};
use crate::event::{Now, RequestKey};

mod assignors;
mod classic;
mod heartbeats;
mod reconcile;
mod topics;
mod view;

pub(crate) use classic::CONSUMER;
pub(crate) use heartbeats::{check_request, refused};
use topics::Search;
pub(crate) use topics::Topics;
use view::{AWAY, Shares, View, regex_of};

/// A fact, and its value if it is so.
pub(crate) type Said = (Fact, Option<FactValue>);

/// Request and the answer to it.
pub(crate) type Answer = (RequestKey, Response);

/// Reason for which a request is refused, with its error message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub code: ErrorCode,
    pub message: String,
}

impl Refusal {
    pub(crate) fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    /// Refuses a request of a member that the group does not have.
    pub(super) fn unknown_member(id: &str, group: &str) -> Self {
        let message = format!("Member {id} is not a member of group {group}.");
        Self::new(ErrorCode::UnknownMemberId, message)
    }
}

/// Times at which the group removes a member, unless the member acts before, in microseconds.
#[derive(Clone, Copy, Debug, Default)]
struct Deadlines {
    session: u64,
    /// Deadline of the member to report that it has revoked partitions.
    revoking: Option<u64>,
    /// Deadline of a classic member to join again, after a heartbeat asked for that.
    joining: Option<u64>,
    /// To ask for its share, if it is a classic member that has joined.
    syncing: Option<u64>,
}

impl Deadlines {
    fn first(self) -> u64 {
        let others = [self.revoking, self.joining, self.syncing].into_iter().flatten();
        others.fold(self.session, u64::min)
    }
}

/// See the room card. Times are microseconds of one monotonic clock, but for those that are stored.
#[derive(Debug, Default)]
pub(crate) struct ConsumerGroup {
    view: View,
    emitted: Vec<Said>,
    answers: Vec<Answer>,
    deadlines: BTreeMap<Arc<str>, Deadlines>,
    /// The topics that its epoch was last compared with.
    seen: Option<u64>,
    /// The topics in which its regular expressions were last looked for, and when (wall time).
    searched: Option<(u64, i64)>,
    search: Option<Search>,
    /// A member of the consumer protocol left, or speaks the classic one now.
    has_lost_consumer: bool,
}

/// Sorts the names that a member subscribes to, each of them once.
pub(super) fn sorted(mut names: Vec<String>) -> Vec<String> {
    names.sort_unstable();
    names.dedup();
    names
}

/// Requests.
impl ConsumerGroup {
    /// Builds the group from its facts. Every member gets a new session timeout.
    pub(crate) fn load<'a>(
        facts: impl Iterator<Item = (&'a Fact, &'a FactValue)>,
        rules: &ConsumerRules,
        now: Now,
    ) -> Self {
        let view = View::of(facts);
        let deadline = |(id, member): (&Arc<str>, &view::Member)| {
            let classic = member.value.classic.as_ref();
            let session_ms =
                classic.map_or(rules.session_timeout_ms, |classic| classic.session_timeout_ms);
            let session = now.mono_us + us(session_ms);
            let is_revoking = member.current.stage == view::Stage::Revoking && !member.is_classic();
            let revoking = is_revoking.then(|| now.mono_us + us(member.value.rebalance_timeout_ms));
            (id.clone(), Deadlines { session, revoking, ..Deadlines::default() })
        };
        let deadlines = view.members.iter().map(deadline).collect();
        Self { view, deadlines, ..Self::default() }
    }

    /// Tells whether the group has no members.
    pub(crate) fn is_empty(&self) -> bool {
        self.view.members.is_empty()
    }

    /// Returns the decisions since the last call, and the answers to send once the decisions are durable.
    pub(crate) fn take(&mut self) -> (Vec<Said>, Vec<Answer>) {
        self.has_lost_consumer = false;
        (mem::take(&mut self.emitted), mem::take(&mut self.answers))
    }

    /// Returns the time at which [`Self::on_time`] is due next, if nothing else happens before. Looks at every member.
    pub(crate) fn deadline_us(&self) -> Option<u64> {
        let members = self.deadlines.values().map(|deadlines| deadlines.first());
        let search = self.search.as_ref().map(|_| 0);
        members.chain(search).min()
    }

    /// Tells whether the group is looking for the topics that match regular expressions.
    pub(crate) fn is_searching(&self) -> bool {
        self.search.is_some()
    }

    /// Returns the time at which the group removes a member, unless the member sends something before.
    pub(crate) fn expires_us(&self, id: &str) -> Option<u64> {
        self.deadlines.get(id).map(|deadlines| deadlines.first())
    }

    /// Extends all deadlines by the time of an append. During the append the group neither heard nor answered its
    /// members, which is no fault of theirs.
    pub(crate) fn hold(&mut self, us: u64) {
        for Deadlines { session, revoking, joining, syncing } in self.deadlines.values_mut() {
            *session += us;
            for other in [revoking, joining, syncing].into_iter().flatten() {
                *other += us;
            }
        }
    }

    /// Removes members that were silent for too long, and goes on with the search for topics of regular expressions.
    pub(crate) fn on_time(&mut self, topics: Topics<'_>, now: Now) {
        let is_due = |(_, deadlines): &(&Arc<str>, &Deadlines)| deadlines.first() <= now.mono_us;
        let due: Vec<Arc<str>> =
            self.deadlines.iter().filter(is_due).map(|(id, _)| id.clone()).collect();
        if !due.is_empty() {
            self.fence(&due, topics);
        }
        self.go_on_searching(topics, now);
    }

    /// Checks whether a client that gives this member id and epoch may commit offsets.
    pub(crate) fn check_commit(
        &self,
        version: i16,
        id: &str,
        epoch: i32,
    ) -> Result<CommitRight<'_>, ErrorCode> {
        if epoch < 0 && self.is_empty() {
            return Ok(CommitRight::All);
        }
        let member = self.view.members.get(id).ok_or(ErrorCode::UnknownMemberId)?;
        if !member.is_classic() && version < 9 {
            return Err(ErrorCode::UnsupportedVersion);
        }
        let refused = if member.is_classic() {
            ErrorCode::IllegalGeneration
        } else {
            ErrorCode::StaleMemberEpoch
        };
        match epoch.cmp(&member.current.epoch) {
            std::cmp::Ordering::Equal => Ok(CommitRight::All),
            std::cmp::Ordering::Less if sabotage::is(Bug::EarlierEpochTaken) => {
                Ok(CommitRight::All)
            }
            std::cmp::Ordering::Greater => Err(refused),
            std::cmp::Ordering::Less => Ok(CommitRight::Since(Earlier { member, epoch, refused })),
        }
    }

    /// Tells whether the group is as these facts say.
    pub(crate) fn is_of<'a>(&self, facts: impl Iterator<Item = (&'a Fact, &'a FactValue)>) -> bool {
        self.view == View::of(facts)
    }

    /// Checks that all decisions were handed over, and that members and epochs agree.
    pub(crate) fn inspect(&self, group: &str) {
        let is_done = self.emitted.is_empty() && self.answers.is_empty();
        assert!(is_done, "{group} hands over all that it decides");
        let members = self.view.members.keys();
        assert!(members.eq(self.deadlines.keys()), "each member of {group} has a deadline");
        let View { epoch, target_epoch, .. } = self.view;
        assert!(target_epoch <= epoch, "{group}: targets of {target_epoch} in the epoch {epoch}");
        for (id, member) in &self.view.members {
            let at = member.current.epoch;
            assert!(at <= target_epoch, "{group}: {id} at {at} has targets of {target_epoch}");
        }
        self.view.inspect();
    }

    /// Tells whether a member is subscribed to a topic.
    pub(crate) fn is_subscribed(&self, topic: &str) -> bool {
        self.view
            .members
            .values()
            .any(|member| self.view.topics_of(&member.value).any(|it| it == topic))
    }
}

/// Which offsets a member may commit.
pub(crate) enum CommitRight<'a> {
    All,
    /// Right of a member that gives an earlier epoch: partitions that it got in that epoch or before, and still has.
    Since(Earlier<'a>),
}

/// Member that gives an earlier epoch than its own.
pub(crate) struct Earlier<'a> {
    member: &'a view::Member,
    epoch: i32,
    refused: ErrorCode,
}

impl CommitRight<'_> {
    /// Checks whether the right extends to a partition.
    pub(crate) fn check(&self, topic: Uuid, partition: i32) -> Result<(), ErrorCode> {
        let Self::Since(Earlier { member, epoch, refused }) = self else { return Ok(()) };
        let since = member.current.since(topic, partition);
        if since.is_some_and(|since| since <= *epoch) { Ok(()) } else { Err(*refused) }
    }
}

/// Views of the group for other requests.
impl ConsumerGroup {
    /// Returns the count of members.
    pub(crate) fn members_len(&self) -> usize {
        self.view.members.len()
    }

    /// Returns Kafka's name of the group's state.
    pub(crate) fn state(&self) -> &'static str {
        let View { epoch, target_epoch, members, .. } = &self.view;
        if members.is_empty() {
            "Empty"
        } else if epoch > target_epoch {
            "Assigning"
        } else if members.values().any(|it| !it.current.has_arrived(*target_epoch)) {
            "Reconciling"
        } else {
            "Stable"
        }
    }

    /// Describes the group for `ConsumerGroupDescribe`.
    pub(crate) fn describe(
        &self,
        group_id: &str,
        rules: &ConsumerRules,
        topics: Topics<'_>,
    ) -> DescribedGroup {
        let assignment = |shares: Shares| {
            let named = |(topic_id, partitions)| {
                let topic = topics.image.topic(topic_id)?;
                Some(TopicPartitions { topic_id, topic_name: topic.name.clone(), partitions })
            };
            Assignment { topic_partitions: shares.into_iter().filter_map(named).collect() }
        };
        let member = |(id, member): (&Arc<str>, &view::Member)| {
            let value = &member.value;
            let assigned = member.current.assigned.iter();
            let assigned = assigned.map(|(topic, it)| (*topic, it.keys().copied().collect()));
            DescribedMember {
                member_id: id.as_ref().to_owned(),
                instance_id: value.instance_id.as_deref().map(ToOwned::to_owned),
                rack_id: value.rack_id.clone(),
                member_epoch: member.current.epoch,
                client_id: value.client_id.clone(),
                client_host: value.client_host.clone(),
                subscribed_topic_names: value.subscribed_topic_names.clone(),
                // As in Kafka, a member without an expression has an empty one.
                subscribed_topic_regex: Some(regex_of(value).map_or("", |it| it).to_owned()),
                assignment: assignment(assigned.collect()),
                target_assignment: assignment(member.target.as_ref().clone()),
                member_type: i8::from(!member.is_classic()),
            }
        };
        DescribedGroup {
            group_id: group_id.to_owned(),
            group_state: self.state().to_owned(),
            group_epoch: self.view.epoch,
            assignment_epoch: self.view.target_epoch,
            assignor_name: self.assignor(rules).name().to_owned(),
            members: self.view.members.iter().map(member).collect(),
            ..DescribedGroup::default()
        }
    }
}

/// Helpers of all requests.
impl ConsumerGroup {
    /// Emits a fact, which holds at once.
    fn emit(&mut self, fact: Fact, value: Option<FactValue>) {
        let View { epoch, .. } = self.view;
        match &value {
            Some(FactValue::Epoch(it)) => {
                assert!(epoch <= it.epoch, "the epoch {epoch} never goes back, to {}", it.epoch);
            }
            Some(FactValue::TargetEpoch(it)) => {
                assert_eq!(epoch, it.epoch, "targets are decided for the present epoch");
            }
            _ => {}
        }
        if let Fact::Member(id) = &fact {
            let was_classic = self.view.members.get(id).map(view::Member::is_classic);
            let is_classic =
                matches!(&value, Some(FactValue::Member(value)) if value.classic.is_some());
            self.has_lost_consumer |= was_classic == Some(false) && (value.is_none() || is_classic);
        }
        self.view.apply(&fact, value.as_ref());
        self.emitted.push((fact, value));
    }

    fn answer(&mut self, key: RequestKey, answer: impl Into<Response>) {
        self.answers.push((key, answer.into()));
    }

    /// Raises the epoch if it has to rise, or if topics differ from those that the group last saw.
    fn raise_epoch(&mut self, has_to: bool, topics: Topics<'_>) {
        if !has_to && self.seen == Some(topics.version) {
            return;
        }
        self.seen = Some(topics.version);
        let metadata_hash = topics.hash(self.view.subscribed_topics().into_iter());
        if has_to || metadata_hash != self.view.metadata_hash {
            let epoch = self.view.epoch.saturating_add(1);
            self.emit(Fact::Epoch, Some(FactValue::Epoch(EpochValue { epoch, metadata_hash })));
            if self.view.has_partition_metadata {
                self.emit(Fact::PartitionMetadata, None);
            }
        }
    }

    /// Removes members.
    fn fence(&mut self, ids: &[Arc<str>], topics: Topics<'_>) {
        for id in ids {
            self.remove_member(id);
        }
        self.forget_regexes();
        self.raise_epoch(true, topics);
    }

    fn remove_member(&mut self, id: &Arc<str>) {
        self.emit(Fact::Current(id.clone()), None);
        self.emit(Fact::Target(id.clone()), None);
        self.emit(Fact::Member(id.clone()), None);
        self.deadlines.remove(id);
    }

    /// Forgets the topics of regular expressions that no member subscribes to.
    fn forget_regexes(&mut self) {
        let subscribed: BTreeSet<Arc<str>> =
            self.view.subscribed_regexes().into_iter().cloned().collect();
        let all = self.view.regexes.keys().cloned();
        for regex in all.filter(|it| !subscribed.contains(it)).collect::<Vec<_>>() {
            self.emit(Fact::Regex(regex), None);
        }
    }

    /// Returns the assignor that most members name, or the operator's first if none names one.
    fn assignor(&self, rules: &ConsumerRules) -> Assignor {
        let named =
            |member: &view::Member| Assignor::named(member.value.server_assignor.as_deref()?);
        let mut votes: BTreeMap<Assignor, usize> = BTreeMap::new();
        for assignor in self.view.members.values().filter_map(named) {
            *votes.entry(assignor).or_default() += 1;
        }
        let most = votes.into_iter().rev().max_by_key(|(_, votes)| *votes);
        most.map_or_else(|| rules.assignors.first().copied(), |(it, _)| Some(it))
            .unwrap_or(Assignor::Uniform)
    }
}
