//! Heartbeats of the consumer protocol: joining, staying, leaving.

use std::collections::BTreeMap;
use std::sync::Arc;

use duramen_protocol::ErrorCode;
use duramen_protocol::messages::consumer_group_heartbeat::{
    Assignment, ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse, TopicPartitions,
};
use duramen_protocol::wire::Uuid;

use super::assignors::Applicant;
use super::reconcile::{Step, step};
use super::topics::{Search, compile};
use super::view::{Current, Member, Owned, Stage, View, regex_of, target_value};
use super::{AWAY, ConsumerGroup, ConsumerRules, Deadlines, Refusal, Topics, sorted};
use crate::access::RequestContext;
use crate::event::Now;
use crate::groups::membership::Caller;
use crate::groups::records::{Fact, FactValue, MemberValue, RegexValue, TargetEpochValue};
use crate::groups::rules::us;

/// The epoch that a member leaves with.
const LEAVE: i32 = -1;

/// Shortest time between two searches for the topics of regular expressions, in milliseconds.
const SEARCH_PAUSE_MS: i64 = 10_000;

/// The first version in which members make their ids themselves.
const FIRST_WITH_OWN_ID: i16 = 1;

/// Checks a request by itself, with Kafka's error messages.
pub(crate) fn check_request(
    rules: &ConsumerRules,
    version: i16,
    request: &ConsumerGroupHeartbeatRequest,
) -> Result<(), Refusal> {
    let invalid = |message: &str| Err(Refusal::new(ErrorCode::InvalidRequest, message));
    let epoch = request.member_epoch;
    let is_blank = |text: &str| text.trim().is_empty();
    let needs_id = version >= FIRST_WITH_OWN_ID || epoch > 0 || epoch == LEAVE;
    if needs_id && is_blank(&request.member_id) {
        return invalid("MemberId can't be empty.");
    }
    if is_blank(&request.group_id) {
        return invalid("GroupId can't be empty.");
    }
    if request.instance_id.as_deref().is_some_and(is_blank) {
        return invalid("InstanceId can't be empty.");
    }
    if request.rack_id.as_deref().is_some_and(is_blank) {
        return invalid("RackId can't be empty.");
    }
    if epoch == 0 {
        if request.rebalance_timeout_ms == -1 {
            return invalid("RebalanceTimeoutMs must be provided in first request.");
        }
        if request.topic_partitions.as_ref().is_none_or(|it| !it.is_empty()) {
            return invalid("TopicPartitions must be empty when (re-)joining.");
        }
        if request.subscribed_topic_names.is_none() && request.subscribed_topic_regex.is_none() {
            return invalid(
                "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.",
            );
        }
    } else if epoch == AWAY && request.instance_id.is_none() {
        return invalid("InstanceId can't be null.");
    } else if epoch < AWAY {
        return invalid("MemberEpoch is invalid.");
    }
    let Some(wanted) = &request.server_assignor else { return Ok(()) };
    if rules.assignors.iter().any(|it| it.name() == wanted) {
        return Ok(());
    }
    let known: Vec<&str> = rules.assignors.iter().map(|it| it.name()).collect();
    let message = format!(
        "ServerAssignor {wanted} is not supported. Supported assignors: {}.",
        known.join(", ")
    );
    Err(Refusal::new(ErrorCode::UnsupportedAssignor, message))
}

/// Returns the answer to a heartbeat that the coordinator refuses.
pub(crate) fn refused(refusal: Refusal) -> ConsumerGroupHeartbeatResponse {
    ConsumerGroupHeartbeatResponse {
        error_code: refusal.code.code(),
        error_message: Some(refusal.message),
        ..ConsumerGroupHeartbeatResponse::default()
    }
}

/// Sender of a heartbeat.
enum Sender {
    /// Unknown member.
    New(Arc<str>),
    /// A member.
    Known(Arc<str>),
    /// The member of a static name, under another id than before.
    Back { id: Arc<str>, before: Arc<str> },
}

impl ConsumerGroup {
    /// Handles a `ConsumerGroupHeartbeat` that has passed the check of requests.
    pub(crate) fn heartbeat(
        &mut self,
        rules: &ConsumerRules,
        topics: Topics<'_>,
        caller: &Caller,
        request: &ConsumerGroupHeartbeatRequest,
        now: Now,
    ) {
        let answer = if request.member_epoch < 0 {
            self.leave(request, topics)
        } else {
            self.stay(rules, topics, caller, request, now)
        };
        self.answer(caller.key, answer.unwrap_or_else(refused));
    }

    fn stay(
        &mut self,
        rules: &ConsumerRules,
        topics: Topics<'_>,
        caller: &Caller,
        request: &ConsumerGroupHeartbeatRequest,
        now: Now,
    ) -> Result<ConsumerGroupHeartbeatResponse, Refusal> {
        let sender = self.identify(rules, caller, request)?;
        let before = match &sender {
            Sender::New(_) => Member::default(),
            Sender::Known(id) | Sender::Back { before: id, .. } => self.view.members[id].clone(),
        };
        if before.current.stage == Stage::Unknown
            && request.topic_partitions.as_ref().is_none_or(|it| !it.is_empty())
        {
            let message = "The consumer group member is in a unknown state. The member must abandon all its \
                           partitions and rejoin.";
            return Err(Refusal::new(ErrorCode::FencedMemberEpoch, message));
        }
        let value = told(&before.value, caller, request);
        self.check_regex(&before, value.as_deref())?;
        let has_said = value.is_some();
        let value = value.unwrap_or_else(|| before.value.clone());
        let id = match sender {
            Sender::Known(id) if !has_said => id,
            Sender::New(id) | Sender::Known(id) => {
                self.emit(Fact::Member(id.clone()), Some(FactValue::Member(value.clone())));
                id
            }
            Sender::Back { id, before: old } => {
                self.replace(&old, &id, &before, &value);
                id
            }
        };
        let has_changed =
            self.follow_subscription(rules, topics, &caller.context, (&before.value, &value), now);
        self.assign(rules, topics, now);
        self.reconcile(&id, has_changed, request.topic_partitions.as_deref(), topics, now);
        self.beat(&id, rules.session_timeout_ms, now);
        if let Some(deadlines) = self.deadlines.get_mut(&id) {
            (deadlines.joining, deadlines.syncing) = (None, None);
        }
        let current = self.view.members[&id].current.clone();
        let says_all = request.rebalance_timeout_ms != -1
            && (request.subscribed_topic_names.is_some()
                || request.subscribed_topic_regex.is_some())
            && request.topic_partitions.is_some();
        let is_told = request.member_epoch == 0
            || says_all
            || !has_same_partitions(&current.assigned, &before.current.assigned);
        Ok(ConsumerGroupHeartbeatResponse {
            member_id: Some(id.as_ref().to_owned()),
            member_epoch: current.epoch,
            heartbeat_interval_ms: rules.heartbeat_interval_ms,
            assignment: is_told.then(|| assignment(&current)),
            ..ConsumerGroupHeartbeatResponse::default()
        })
    }

    fn identify(
        &self,
        rules: &ConsumerRules,
        caller: &Caller,
        request: &ConsumerGroupHeartbeatRequest,
    ) -> Result<Sender, Refusal> {
        let id: Arc<str> = match request.member_id.as_str() {
            "" => caller.fresh.to_string().into(),
            id => self.view.known(id).cloned().unwrap_or_else(|| id.into()),
        };
        let known = self.view.members.get(&id);
        let most = rules.members_max;
        if known.is_none() && self.view.members.len() >= most {
            let message =
                format!("The consumer group has reached its maximum capacity of {most} members.");
            return Err(Refusal::new(ErrorCode::GroupMaxSizeReached, message));
        }
        let is_joining = request.member_epoch == 0;
        let named = request.instance_id.as_deref().map(|name| (name, self.view.named(name)));
        match (named, known) {
            (Some((name, Some((other, existing)))), _) if *other != id => {
                if !is_joining {
                    return Err(fenced(&id, name, other));
                }
                if !existing.is_classic() && existing.current.epoch != AWAY {
                    let message = format!(
                        "Static member {id} with instance id {name} cannot join the group because the \
                         instance id is owned by {other} member."
                    );
                    return Err(Refusal::new(ErrorCode::UnreleasedInstanceId, message));
                }
                Ok(Sender::Back { id, before: other.clone() })
            }
            (Some((name, None)), _) if !is_joining => Err(unknown_instance(name)),
            (_, Some(member)) => {
                check_epoch(member, request)?;
                Ok(Sender::Known(id))
            }
            (_, None) if is_joining => Ok(Sender::New(id)),
            (_, None) => Err(Refusal::unknown_member(&id, &request.group_id)),
        }
    }

    /// Replaces the id of a static member that is back under another one. The member keeps its assignment.
    pub(super) fn replace(
        &mut self,
        before: &Arc<str>,
        id: &Arc<str>,
        was: &Member,
        value: &Arc<MemberValue>,
    ) {
        self.remove_member(before);
        self.emit(Fact::Member(id.clone()), Some(FactValue::Member(value.clone())));
        self.emit(Fact::Target(id.clone()), Some(target_value(&was.target)));
        let current = Current { epoch: 0, previous: 0, ..was.current.as_ref().clone() };
        self.emit(Fact::Current(id.clone()), Some(current.value()));
    }

    /// Checks that a new regular expression compiles.
    fn check_regex(&self, before: &Member, value: Option<&MemberValue>) -> Result<(), Refusal> {
        let Some(regex) = value.and_then(regex_of) else { return Ok(()) };
        if before.regex() == Some(regex) || self.view.subscribers(regex) > 0 {
            return Ok(());
        }
        compile(regex).map(|_| ()).map_err(|problem| {
            let message = format!(
                "SubscribedTopicRegex `{regex}` is not a valid regular expression: {problem}."
            );
            Refusal::new(ErrorCode::InvalidRegularExpression, message)
        })
    }

    /// Follows a change of a member's subscription, or of topics. Returns true if the member's subscription differs
    /// from before.
    pub(super) fn follow_subscription(
        &mut self,
        rules: &ConsumerRules,
        topics: Topics<'_>,
        context: &RequestContext,
        (before, after): (&MemberValue, &MemberValue),
        now: Now,
    ) -> bool {
        let by_name = before.subscribed_topic_names != after.subscribed_topic_names;
        let by_regex = before.subscribed_topic_regex != after.subscribed_topic_regex;
        let mut is_known = false;
        if by_regex {
            self.forget_regexes();
            // A new expression raises the epoch anyway, once its topics are found.
            is_known = match regex_of(after) {
                Some(regex) => self.view.regexes.contains_key(regex),
                None => regex_of(before).is_some(),
            };
        }
        self.begin_search(rules, topics, context, now);
        self.raise_epoch(by_name || is_known || self.view.epoch == 0, topics);
        by_name || by_regex
    }

    /// Extends a member's session, because the member sent something.
    pub(super) fn beat(&mut self, id: &Arc<str>, session_timeout_ms: i32, now: Now) {
        let session = now.mono_us + us(session_timeout_ms);
        if let Some(deadlines) = self.deadlines.get_mut(id) {
            deadlines.session = session;
        } else {
            let deadlines = Deadlines { session, ..Deadlines::default() };
            self.deadlines.insert(id.clone(), deadlines);
        }
    }

    /// Takes out a member that leaves, for good or to come back under its static name.
    fn leave(
        &mut self,
        request: &ConsumerGroupHeartbeatRequest,
        topics: Topics<'_>,
    ) -> Result<ConsumerGroupHeartbeatResponse, Refusal> {
        let id = request.member_id.as_str();
        let id = match &request.instance_id {
            None => {
                let unknown = || Refusal::unknown_member(id, &request.group_id);
                self.view.known(id).ok_or_else(unknown)?.clone()
            }
            Some(name) => {
                let named = self.view.named(name).ok_or_else(|| unknown_instance(name))?;
                let (known, _) = named;
                if known.as_ref() != id {
                    return Err(fenced(id, name, known));
                }
                known.clone()
            }
        };
        if request.member_epoch == AWAY && request.instance_id.is_some() {
            let mut away = self.view.members[&id].current.as_ref().clone();
            away.epoch = AWAY;
            away.revoking.clear();
            // A static member that returns under another id has had its partitions all along.
            away.assigned.values_mut().flat_map(BTreeMap::values_mut).for_each(|epoch| *epoch = 0);
            self.emit(Fact::Current(id.clone()), Some(away.value()));
            if let Some(deadlines) = self.deadlines.get_mut(&id) {
                deadlines.revoking = None;
            }
        } else {
            self.fence(&[id], topics);
        }
        Ok(ConsumerGroupHeartbeatResponse {
            member_id: Some(request.member_id.clone()),
            member_epoch: request.member_epoch,
            ..ConsumerGroupHeartbeatResponse::default()
        })
    }
}

/// Targets, and the members' steps toward them.
impl ConsumerGroup {
    /// Decides new targets, if the epoch has risen since the last ones, and enough time has passed.
    pub(super) fn assign(&mut self, rules: &ConsumerRules, topics: Topics<'_>, now: Now) {
        let View { epoch, target_epoch, target_ms, .. } = self.view;
        let next_ms = target_ms.saturating_add(i64::from(rules.assignment_interval_ms));
        // A clock that was set back is no reason to wait.
        if target_epoch >= epoch || (target_ms..next_ms).contains(&now.wall_ms) {
            return;
        }
        let assignor = self.assignor(rules);
        // Most members are subscribed to the same topics: these are looked up once.
        let mut subscriptions = BTreeMap::<_, Vec<Uuid>>::new();
        for member in self.view.members.values() {
            let value = &member.value;
            let subscription = (&value.subscribed_topic_names, member.regex());
            subscriptions
                .entry(subscription)
                .or_insert_with(|| topics.ids(self.view.topics_of(value)).into_iter().collect());
        }
        let applicants = self.view.members.iter().map(|(id, member)| Applicant {
            id,
            instance: member.value.instance_id.as_deref(),
            topics: &subscriptions[&(&member.value.subscribed_topic_names, member.regex())],
            target: &member.target,
        });
        let applicants: Vec<Applicant<'_>> = applicants.collect();
        let shares = assignor.assign(&applicants, |topic| topics.partitions(topic));
        assert_eq!(shares.len(), self.view.members.len(), "each member has a target");
        let changed = self.view.members.iter().zip(shares);
        let changed: Vec<_> = changed
            .filter(|((_, member), shares)| *member.target != *shares)
            .map(|((id, _), shares)| (id.clone(), target_value(&shares)))
            .collect();
        for (id, target) in changed {
            self.emit(Fact::Target(id), Some(target));
        }
        let value = TargetEpochValue { epoch, timestamp: now.wall_ms };
        self.emit(Fact::TargetEpoch, Some(FactValue::TargetEpoch(value)));
    }

    /// Takes the next step of a member on its way to its target.
    pub(super) fn reconcile(
        &mut self,
        id: &Arc<str>,
        has_changed: bool,
        owned: Option<&[TopicPartitions]>,
        topics: Topics<'_>,
        now: Now,
    ) {
        let member = &self.view.members[id];
        if !has_changed && member.current.has_arrived(self.view.target_epoch) {
            return;
        }
        let subscribed = topics.ids(self.view.topics_of(&member.value));
        let (view, subscribed) = (&self.view, &subscribed);
        let Some(next) = step(&Step { view, id, subscribed, has_changed, owned }) else { return };
        let timeout_us = us(member.value.rebalance_timeout_ms);
        // Classic members have other times to keep.
        let is_revoking = next.stage == Stage::Revoking && !member.is_classic();
        self.emit(Fact::Current(id.clone()), Some(next.value()));
        let deadlines = self.deadlines.entry(id.clone()).or_default();
        deadlines.revoking = is_revoking.then_some(now.mono_us + timeout_us);
    }
}

/// Regular expressions.
impl ConsumerGroup {
    /// Begins a search for the topics of regular expressions, if these topics are unknown or may have changed.
    fn begin_search(
        &mut self,
        rules: &ConsumerRules,
        topics: Topics<'_>,
        context: &RequestContext,
        now: Now,
    ) {
        let regexes = self.view.subscribed_regexes();
        if regexes.is_empty() || self.search.is_some() {
            return;
        }
        let since_ms = self.searched.map_or(i64::MAX, |(_, at)| now.wall_ms.saturating_sub(at));
        let is_known = regexes.iter().all(|regex| self.view.regexes.contains_key(*regex));
        let is_new = self.searched.is_none_or(|(version, _)| version != topics.version);
        let is_old = since_ms > i64::from(rules.regex_refresh_ms);
        // A clock that was set back is no reason to wait.
        let is_too_soon = (0..=SEARCH_PAUSE_MS).contains(&since_ms);
        if !is_too_soon && (!is_known || is_new || is_old) {
            self.search = Some(Search::new(context.clone(), regexes.into_iter(), topics.version));
        }
    }

    /// Looks at some more topics.
    pub(super) fn go_on_searching(&mut self, topics: Topics<'_>, now: Now) {
        let Some(search) = &mut self.search else { return };
        let version = search.version;
        let Some(found) = search.go_on(topics) else { return };
        self.search = None;
        self.searched = Some((version, now.wall_ms));
        let as_of = i64::try_from(topics.image.as_of).unwrap_or(i64::MAX);
        let mut has_changed = false;
        for (regex, topics) in found {
            if self.view.subscribers(&regex) == 0 {
                continue;
            }
            let before = self.view.regexes.get(&regex);
            let is_same = before.is_some_and(|before| before.topics == topics);
            if !is_same {
                // A first result without topics changes nothing.
                has_changed |= before.is_some() || !topics.is_empty();
                let value = RegexValue { topics, version: as_of, timestamp: now.wall_ms };
                self.emit(Fact::Regex(regex), Some(FactValue::Regex(Arc::new(value))));
            }
        }
        self.raise_epoch(has_changed, topics);
    }
}

fn unknown_instance(name: &str) -> Refusal {
    Refusal::new(ErrorCode::UnknownMemberId, format!("Instance id {name} is unknown."))
}

fn fenced(id: &str, name: &str, by: &str) -> Refusal {
    let message = format!("Static member {id} with instance id {name} was fenced by member {by}.");
    Refusal::new(ErrorCode::FencedInstanceId, message)
}

/// Checks that a member gives its current epoch. A member that missed its last answer may give the epoch before, if it
/// names no partition that it got since.
fn check_epoch(member: &Member, request: &ConsumerGroupHeartbeatRequest) -> Result<(), Refusal> {
    let (said, is) = (request.member_epoch, member.current.epoch);
    let has_only = |owned: &[TopicPartitions]| {
        owned.iter().all(|topic| {
            let assigned = member.current.assigned.get(&topic.topic_id);
            assigned.is_some_and(|it| topic.partitions.iter().all(|part| it.contains_key(part)))
        })
    };
    let is_behind = said == member.current.previous
        && request.topic_partitions.as_deref().is_some_and(has_only);
    if said == 0 || said == is || (said < is && is_behind) {
        return Ok(());
    }
    let size = if said > is { "greater" } else { "smaller" };
    let message = format!(
        "The consumer group member has a {size} member epoch ({said}) than the one known by the group \
         coordinator ({is}). The member must abandon all its partitions and rejoin."
    );
    Err(Refusal::new(ErrorCode::FencedMemberEpoch, message))
}

/// Returns the member's new description, if the request changes it.
fn told(
    before: &MemberValue,
    caller: &Caller,
    request: &ConsumerGroupHeartbeatRequest,
) -> Option<Arc<MemberValue>> {
    let names = request.subscribed_topic_names.clone().map(sorted);
    let differs = |said: Option<&str>, is: Option<&str>| said.is_some() && said != is;
    let is_same = !differs(request.instance_id.as_deref(), before.instance_id.as_deref())
        && !differs(request.rack_id.as_deref(), before.rack_id.as_deref())
        && !differs(request.server_assignor.as_deref(), before.server_assignor.as_deref())
        && !differs(
            request.subscribed_topic_regex.as_deref(),
            before.subscribed_topic_regex.as_deref(),
        )
        && names.as_ref().is_none_or(|names| *names == before.subscribed_topic_names)
        && (request.rebalance_timeout_ms == -1
            || request.rebalance_timeout_ms == before.rebalance_timeout_ms)
        && (&caller.client_id, &caller.client_host) == (&before.client_id, &before.client_host)
        && before.classic.is_none();
    if is_same {
        return None;
    }
    let said = |said: &Option<String>, is: &Option<String>| said.as_ref().or(is.as_ref()).cloned();
    let shared = |said: &Option<String>, is: &Option<Arc<str>>| {
        said.as_deref().map(Arc::from).or_else(|| is.clone())
    };
    Some(Arc::new(MemberValue {
        instance_id: shared(&request.instance_id, &before.instance_id),
        rack_id: said(&request.rack_id, &before.rack_id),
        client_id: caller.client_id.clone(),
        client_host: caller.client_host.clone(),
        subscribed_topic_names: names.unwrap_or_else(|| before.subscribed_topic_names.clone()),
        subscribed_topic_regex: shared(
            &request.subscribed_topic_regex,
            &before.subscribed_topic_regex,
        ),
        rebalance_timeout_ms: match request.rebalance_timeout_ms {
            -1 => before.rebalance_timeout_ms,
            ms => ms,
        },
        server_assignor: said(&request.server_assignor, &before.server_assignor),
        classic: None,
    }))
}

fn has_same_partitions(one: &Owned, other: &Owned) -> bool {
    let same = |(topic, owned): (&Uuid, &BTreeMap<i32, i32>)| {
        other.get(topic).is_some_and(|other| owned.keys().eq(other.keys()))
    };
    one.len() == other.len() && one.iter().all(same)
}

fn assignment(current: &Current) -> Assignment {
    let topic = |(topic_id, partitions): (&Uuid, &BTreeMap<i32, i32>)| TopicPartitions {
        topic_id: *topic_id,
        partitions: partitions.keys().copied().collect(),
    };
    Assignment { topic_partitions: current.assigned.iter().map(topic).collect() }
}
