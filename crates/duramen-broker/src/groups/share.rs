//! # Room card: share groups
//!
//! Purpose:    one share group (KIP-932): its members, and the partitions that each is to fetch from. Several members
//!             may share a partition: its leader decides which of them gets which record (see `shares`).
//! Owns:       [`ShareGroup`]: the facts as far as they were decided, sessions, which partitions have stored state for
//!             the group, records to append, answers to send.
//! Interface:  [`ShareGroup::heartbeat`], [`ShareGroup::on_begun`], [`ShareGroup::on_time`], then [`ShareGroup::take`];
//!             [`ShareGroup::load`] makes one of facts.
//! Invariants: epochs never go back; no member gets a partition before it has stored state; a decision rests on facts
//!             that are durable or that the coordinator appends with it, in one go: during that append, the group
//!             decides nothing.
//! Never:      clocks, chance, appends, the group's coordinator, delivery of records.
//! Tests:      below; `coordinator/tests/shares.rs`.
//! Start at:   [`ShareGroup::heartbeat`].

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::sync::Arc;

use duramen_protocol::messages::share_group_describe::{
    Assignment as DescribedAssignment, DescribedGroup, Member as DescribedMember,
    TopicPartitions as DescribedPartitions,
};
use duramen_protocol::messages::share_group_heartbeat::{Assignment, TopicPartitions};
use duramen_protocol::messages::{ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse};
use duramen_protocol::wire::Uuid;
use duramen_protocol::{ErrorCode, Response};

use super::consumer::{Answer, Refusal, Said, Topics, sorted};
use super::membership::Caller;
use super::records::{
    DeletingTopic, Fact, FactValue, ShareCurrentValue, ShareEpochValue, ShareFact,
    ShareMemberValue, ShareStatesValue, ShareValue, StateTopic, TargetEpochValue, TargetTopic,
    TargetValue,
};
use super::rules::{ShareRules, us};
use crate::event::{Now, RequestKey};

/// The epoch that a member leaves with.
const LEAVE: i32 = -1;
/// The only way in which partitions are shared out.
const ASSIGNOR: &str = "simple";
/// Kafka's name of this kind of groups.
pub(crate) const SHARE: &str = "share";

/// A topic and a partition.
type Place = (Uuid, i32);
/// Member, and the partitions that it may get.
type Wish = (Arc<str>, Vec<Place>);
/// Partitions by topic.
type Partitions = BTreeMap<Uuid, BTreeSet<i32>>;

#[derive(Debug, Default, PartialEq)]
struct Member {
    value: Arc<ShareMemberValue>,
    epoch: i32,
    previous: i32,
    assigned: Partitions,
    target: Partitions,
}

/// Stored states of a topic's partitions for the group.
#[derive(Debug, Default)]
struct States {
    name: String,
    begun: BTreeSet<i32>,
    /// Partitions for which the group is asking to begin stored state.
    beginning: BTreeSet<i32>,
}

/// See the room card. Times are microseconds of one monotonic clock.
#[derive(Debug, Default)]
pub(crate) struct ShareGroup {
    epoch: i32,
    metadata_hash: i64,
    target_epoch: i32,
    members: BTreeMap<Arc<str>, Member>,
    states: BTreeMap<Uuid, States>,
    /// Topics whose stored state is being deleted.
    deleting: BTreeMap<Uuid, String>,
    sessions: BTreeMap<Arc<str>, u64>,
    /// The topics that its epoch was last compared with.
    seen: Option<u64>,
    emitted: Vec<Said>,
    answers: Vec<Answer>,
    /// Partitions to begin stored state of, once that intent is durable.
    wanted: Vec<Place>,
    have_states_changed: bool,
    /// Flag that a partition with stored state may be in no member's target.
    may_lack_targets: bool,
}

/// Checks a request by itself, with Kafka's error messages.
pub(crate) fn check_request(request: &ShareGroupHeartbeatRequest) -> Result<(), Refusal> {
    let invalid = |message: &str| Err(Refusal::new(ErrorCode::InvalidRequest, message));
    if request.member_id.trim().is_empty() {
        return invalid("MemberId can't be empty.");
    }
    if request.group_id.trim().is_empty() {
        return invalid("GroupId can't be empty.");
    }
    if request.rack_id.as_deref().is_some_and(|rack| rack.trim().is_empty()) {
        return invalid("RackId can't be empty.");
    }
    if request.member_epoch == 0
        && request.subscribed_topic_names.as_ref().is_none_or(Vec::is_empty)
    {
        return invalid("SubscribedTopicNames must be set in first request.");
    }
    if request.member_epoch < LEAVE {
        return invalid("MemberEpoch is invalid.");
    }
    Ok(())
}

/// Returns the answer to a heartbeat that the coordinator refuses.
pub(crate) fn refused(refusal: Refusal) -> ShareGroupHeartbeatResponse {
    ShareGroupHeartbeatResponse {
        error_code: refusal.code.code(),
        error_message: Some(refusal.message),
        ..ShareGroupHeartbeatResponse::default()
    }
}

/// Requests.
impl ShareGroup {
    fn of<'a>(facts: impl Iterator<Item = (&'a Fact, &'a FactValue)>) -> Self {
        let mut group = Self::default();
        for (fact, value) in facts {
            if let (Fact::Share(fact), FactValue::Share(value)) = (fact, value) {
                group.apply(fact, Some(value));
            }
        }
        group
    }

    /// Builds the group from its facts. Every member gets a new session timeout, and the group asks again for stored
    /// state that has not begun.
    pub(crate) fn load<'a>(
        facts: impl Iterator<Item = (&'a Fact, &'a FactValue)>,
        rules: &ShareRules,
        now: Now,
    ) -> Self {
        let mut group = Self::of(facts);
        for id in group.members.keys() {
            group.sessions.insert(id.clone(), now.mono_us + us(rules.session_timeout_ms));
        }
        let beginning = group
            .states
            .iter()
            .flat_map(|(topic, it)| it.beginning.iter().map(|partition| (*topic, *partition)));
        group.wanted = beginning.collect();
        group.may_lack_targets = true;
        group
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Returns the decisions since the last call, and the answers to send once the decisions are durable.
    pub(crate) fn take(&mut self) -> (Vec<Said>, Vec<Answer>) {
        if mem::take(&mut self.have_states_changed) {
            let value = ShareValue::States(Arc::new(self.states_value()));
            self.emitted.push((Fact::Share(ShareFact::States), Some(FactValue::Share(value))));
        }
        (mem::take(&mut self.emitted), mem::take(&mut self.answers))
    }

    /// Returns the partitions that need stored state from now on, once that intent is durable.
    pub(crate) fn take_wanted(&mut self) -> Vec<Place> {
        mem::take(&mut self.wanted)
    }

    /// Returns the time at which [`Self::on_time`] is due next, if nothing else happens before.
    pub(crate) fn deadline_us(&self) -> Option<u64> {
        self.sessions.values().min().copied()
    }

    /// Returns the time at which the group removes a member, unless the member sends something before.
    pub(crate) fn expires_us(&self, id: &str) -> Option<u64> {
        self.sessions.get(id).copied()
    }

    /// Extends all sessions by the time of an append. During the append the group heard no member, which is no fault of
    /// members.
    pub(crate) fn hold(&mut self, us: u64) {
        for session in self.sessions.values_mut() {
            *session += us;
        }
    }

    /// Removes members that were silent for too long.
    pub(crate) fn on_time(&mut self, topics: Topics<'_>, now: Now) {
        let is_due = |(_, at): &(&Arc<str>, &u64)| **at <= now.mono_us;
        let due: Vec<Arc<str>> =
            self.sessions.iter().filter(is_due).map(|(id, _)| id.clone()).collect();
        // Time alone decides nothing more than that: the group would repeat a decision that could not be stored again
        // and again.
        if !due.is_empty() {
            self.fence(&due, topics);
        }
    }

    /// Notes that a partition has stored state now, or that its topic is gone.
    pub(crate) fn on_begun(&mut self, topic: Uuid, partition: i32, is_there: bool) {
        let Some(states) = self.states.get_mut(&topic) else { return };
        if states.beginning.remove(&partition) {
            self.have_states_changed = true;
            if is_there {
                states.begun.insert(partition);
                self.may_lack_targets = true;
            }
        }
    }

    /// Forgets a topic that is gone.
    pub(crate) fn forget_topic(&mut self, topic: Uuid) {
        self.have_states_changed |= self.states.remove(&topic).is_some();
        self.have_states_changed |= self.deleting.remove(&topic).is_some();
    }

    /// Returns the partitions that have stored state for the group.
    pub(crate) fn begun(&self) -> BTreeMap<Uuid, Vec<i32>> {
        let all = self.states.iter().filter(|(_, it)| !it.begun.is_empty());
        all.map(|(topic, it)| (*topic, it.begun.iter().copied().collect())).collect()
    }

    /// Returns all partitions that have stored state for the group, or may have: a deletion may still be under way.
    pub(crate) fn kept(&self, topics: Topics<'_>) -> Vec<Place> {
        let all = self.states.iter().flat_map(|(topic, it)| {
            it.begun.union(&it.beginning).map(|partition| (*topic, *partition))
        });
        let deleting = self.deleting.keys().flat_map(|topic| {
            (0..topics.partitions(*topic)).map(move |partition| (*topic, partition))
        });
        all.chain(deleting).collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Returns the same of one topic.
    pub(crate) fn kept_of(&self, topic: Uuid, topics: Topics<'_>) -> Vec<Place> {
        self.kept(topics).into_iter().filter(|(id, _)| *id == topic).collect()
    }

    /// Begins stored state of these partitions, even where one exists already.
    pub(crate) fn begin_states(
        &mut self,
        places: impl Iterator<Item = Place>,
        names: &BTreeMap<Uuid, String>,
    ) {
        for (topic, partition) in places {
            let states = self.states.entry(topic).or_default();
            if let Some(name) = names.get(&topic).filter(|_| states.name.is_empty()) {
                states.name.clone_from(name);
            }
            if !states.begun.contains(&partition) {
                states.beginning.insert(partition);
            }
            self.deleting.remove(&topic);
        }
        self.states.retain(|_, it| !it.begun.is_empty() || !it.beginning.is_empty());
        self.have_states_changed = true;
    }

    /// Marks the stored state of a topic for deletion.
    pub(crate) fn give_up_states_of(&mut self, topic: Uuid) {
        if let Some(states) = self.states.remove(&topic) {
            self.deleting.insert(topic, states.name);
        }
        self.have_states_changed = true;
    }

    /// Marks all stored state of the group for deletion.
    pub(crate) fn give_up_states(&mut self) {
        let states = mem::take(&mut self.states);
        self.deleting.extend(states.into_iter().map(|(topic, it)| (topic, it.name)));
        self.have_states_changed = true;
    }

    /// Tells whether members, epochs and stored states are as these facts say.
    pub(crate) fn is_of<'a>(&self, facts: impl Iterator<Item = (&'a Fact, &'a FactValue)>) -> bool {
        let it = Self::of(facts);
        let epochs = |it: &Self| (it.epoch, it.metadata_hash, it.target_epoch);
        epochs(self) == epochs(&it) && self.members == it.members && self.begun() == it.begun()
    }

    /// Checks that members, epochs and stored states agree.
    pub(crate) fn inspect(&self, group: &str) {
        assert!(self.emitted.is_empty(), "{group} hands over all that it decides");
        assert!(self.members.keys().eq(self.sessions.keys()), "members of {group} have sessions");
        let (epoch, target_epoch) = (self.epoch, self.target_epoch);
        assert!(target_epoch <= epoch, "{group}: targets of {target_epoch} in the epoch {epoch}");
        for (id, member) in &self.members {
            let at = member.epoch;
            assert!(at <= target_epoch, "{group}: {id} at {at} has targets of {target_epoch}");
        }
        for (topic, states) in &self.states {
            let is_either = states.begun.is_disjoint(&states.beginning);
            assert!(is_either, "{group}: a state of {topic} has begun or not");
            assert!(
                !self.deleting.contains_key(topic),
                "{group}: states of {topic} are not deleted"
            );
        }
    }

    /// Returns the count of members.
    pub(crate) fn members_len(&self) -> usize {
        self.members.len()
    }

    /// Returns Kafka's name of the group's state.
    pub(crate) fn state(&self) -> &'static str {
        if self.members.is_empty() { "Empty" } else { "Stable" }
    }

    /// Describes the group for `ShareGroupDescribe`.
    pub(crate) fn describe(&self, group_id: &str, topics: Topics<'_>) -> DescribedGroup {
        let named = |(topic_id, partitions): (&Uuid, &BTreeSet<i32>)| {
            let topic = topics.image.topic(*topic_id)?;
            Some(DescribedPartitions {
                topic_id: *topic_id,
                topic_name: topic.name.clone(),
                partitions: partitions.iter().copied().collect(),
            })
        };
        let member = |(id, member): (&Arc<str>, &Member)| DescribedMember {
            member_id: id.as_ref().to_owned(),
            rack_id: member.value.rack_id.clone(),
            member_epoch: member.epoch,
            client_id: member.value.client_id.clone(),
            client_host: member.value.client_host.clone(),
            subscribed_topic_names: member.value.subscribed_topic_names.clone(),
            assignment: DescribedAssignment {
                topic_partitions: member.assigned.iter().filter_map(named).collect(),
            },
        };
        DescribedGroup {
            group_id: group_id.to_owned(),
            group_state: self.state().to_owned(),
            group_epoch: self.epoch,
            assignment_epoch: self.target_epoch,
            assignor_name: ASSIGNOR.to_owned(),
            members: self.members.iter().map(member).collect(),
            ..DescribedGroup::default()
        }
    }
}

/// Heartbeats.
impl ShareGroup {
    /// Handles a `ShareGroupHeartbeat` that has passed the check of requests.
    pub(crate) fn heartbeat(
        &mut self,
        rules: &ShareRules,
        topics: Topics<'_>,
        caller: &Caller,
        request: &ShareGroupHeartbeatRequest,
        now: Now,
    ) {
        let answer = if request.member_epoch == LEAVE {
            self.leave(request, topics)
        } else {
            self.stay(rules, topics, caller, request, now)
        };
        self.answer(caller.key, answer.unwrap_or_else(refused));
    }

    /// Answers a request once all decisions so far are durable.
    pub(crate) fn answer(&mut self, key: RequestKey, answer: impl Into<Response>) {
        self.answers.push((key, answer.into()));
    }

    fn stay(
        &mut self,
        rules: &ShareRules,
        topics: Topics<'_>,
        caller: &Caller,
        request: &ShareGroupHeartbeatRequest,
        now: Now,
    ) -> Result<ShareGroupHeartbeatResponse, Refusal> {
        let id = self.identify(rules, request)?;
        let is_new = !self.members.contains_key(&id);
        let (before, had) = match self.members.get(&id) {
            Some(member) => (member.value.clone(), member.assigned.clone()),
            None => Default::default(),
        };
        let value = told(&before, caller, request);
        let has_other_topics = value.subscribed_topic_names != before.subscribed_topic_names;
        if is_new || value != *before {
            let value = ShareValue::Member(Arc::new(value));
            self.emit(ShareFact::Member(id.clone()), Some(value));
        }
        let is_missing =
            self.may_lack_targets && self.target_epoch >= self.epoch && self.lacks_targets(topics);
        self.may_lack_targets &= is_missing;
        self.raise_epoch(is_new || has_other_topics || is_missing, topics);
        self.want_states(topics);
        self.assign(topics, now);
        self.reconcile(&id);
        self.sessions.insert(id.clone(), now.mono_us + us(rules.session_timeout_ms));
        let member = &self.members[&id];
        let is_told = request.member_epoch == 0
            || request.subscribed_topic_names.is_some()
            || member.assigned != had;
        Ok(ShareGroupHeartbeatResponse {
            member_id: Some(id.as_ref().to_owned()),
            member_epoch: member.epoch,
            heartbeat_interval_ms: rules.heartbeat_interval_ms,
            assignment: is_told.then(|| assignment(&member.assigned)),
            ..ShareGroupHeartbeatResponse::default()
        })
    }

    fn identify(
        &self,
        rules: &ShareRules,
        request: &ShareGroupHeartbeatRequest,
    ) -> Result<Arc<str>, Refusal> {
        let id = request.member_id.as_str();
        let Some((known, member)) = self.members.get_key_value(id) else {
            let most = rules.members_max;
            if self.members.len() >= most {
                let message =
                    format!("The share group has reached its maximum capacity of {most} members.");
                return Err(Refusal::new(ErrorCode::GroupMaxSizeReached, message));
            }
            if request.member_epoch != 0 {
                return Err(Refusal::unknown_member(id, &request.group_id));
            }
            return Ok(id.into());
        };
        let (said, is, before) = (request.member_epoch, member.epoch, member.previous);
        let problem = if said > is {
            format!(
                "has a greater member epoch ({said}) than the one known by the group coordinator ({is})"
            )
        } else if said != 0 && said < is && said != before {
            format!(
                "has a smaller member epoch ({said}) than the one known by the group coordinator ({is}), \
                 and it does not match the previous member epoch ({before})"
            )
        } else {
            return Ok(known.clone());
        };
        let message = format!(
            "The share group member {problem}. The member must abandon all its partitions and rejoin."
        );
        Err(Refusal::new(ErrorCode::FencedMemberEpoch, message))
    }

    fn leave(
        &mut self,
        request: &ShareGroupHeartbeatRequest,
        topics: Topics<'_>,
    ) -> Result<ShareGroupHeartbeatResponse, Refusal> {
        let id = request.member_id.as_str();
        let Some((id, _)) = self.members.get_key_value(id) else {
            return Err(Refusal::unknown_member(id, &request.group_id));
        };
        let id = id.clone();
        self.fence(&[id], topics);
        Ok(ShareGroupHeartbeatResponse {
            member_id: Some(request.member_id.clone()),
            member_epoch: LEAVE,
            ..ShareGroupHeartbeatResponse::default()
        })
    }

    /// Removes members.
    fn fence(&mut self, ids: &[Arc<str>], topics: Topics<'_>) {
        for id in ids {
            self.emit(ShareFact::Current(id.clone()), None);
            self.emit(ShareFact::Target(id.clone()), None);
            self.emit(ShareFact::Member(id.clone()), None);
            self.sessions.remove(id);
        }
        self.raise_epoch(!ids.is_empty(), topics);
    }

    fn subscribed(&self) -> BTreeSet<&str> {
        let names = self.members.values().flat_map(|it| &it.value.subscribed_topic_names);
        names.map(String::as_str).collect()
    }

    /// Raises the epoch if it has to rise, or if topics differ from those that the group last saw.
    fn raise_epoch(&mut self, has_to: bool, topics: Topics<'_>) {
        if !has_to && self.seen == Some(topics.version) {
            return;
        }
        self.seen = Some(topics.version);
        let metadata_hash = topics.hash(self.subscribed().into_iter());
        if has_to || metadata_hash != self.metadata_hash {
            let epoch = self.epoch.saturating_add(1);
            let value = ShareValue::Epoch(ShareEpochValue { epoch, metadata_hash });
            self.emit(ShareFact::Epoch, Some(value));
        }
    }

    /// Asks for stored state of all partitions that members are subscribed to.
    fn want_states(&mut self, topics: Topics<'_>) {
        let names: Vec<String> = self.subscribed().into_iter().map(str::to_owned).collect();
        for name in names {
            let Some(topic) = topics.image.topic_named(&name) else { continue };
            let count = topics.partitions(topic.id);
            let states = self.states.entry(topic.id).or_default();
            if states.name.is_empty() {
                states.name = name;
            }
            for partition in 0..count {
                if states.begun.contains(&partition) {
                    continue;
                }
                self.wanted.push((topic.id, partition));
                if states.beginning.insert(partition) {
                    self.have_states_changed = true;
                    self.deleting.remove(&topic.id);
                }
            }
        }
        self.states.retain(|_, it| !it.begun.is_empty() || !it.beginning.is_empty());
    }

    /// Asks for stored state of one partition.
    pub(crate) fn want_state(&mut self, (topic, partition): Place, name: &str) {
        let states = self.states.entry(topic).or_default();
        if states.name.is_empty() {
            name.clone_into(&mut states.name);
        }
        // Where the group thinks that a state has begun and a leader finds none, it begins anew.
        self.have_states_changed |= states.begun.remove(&partition);
        self.have_states_changed |= states.beginning.insert(partition);
        self.deleting.remove(&topic);
        self.wanted.push((topic, partition));
    }

    /// Returns the partitions that a member may get.
    fn shareable(&self, value: &ShareMemberValue, topics: Topics<'_>) -> Vec<Place> {
        let ids = topics.ids(value.subscribed_topic_names.iter().map(String::as_str));
        let known = ids.into_iter().filter_map(|id| Some((id, self.states.get(&id)?)));
        known.flat_map(|(id, it)| it.begun.iter().map(move |partition| (id, *partition))).collect()
    }

    /// Tells whether a partition with stored state is in no member's target.
    fn lacks_targets(&self, topics: Topics<'_>) -> bool {
        let given: BTreeSet<Place> =
            self.members.values().flat_map(|it| pairs(&it.target)).collect();
        let values: BTreeSet<&Vec<String>> =
            self.members.values().map(|it| &it.value.subscribed_topic_names).collect();
        let all: BTreeSet<Place> = values
            .into_iter()
            .flat_map(|names| {
                let subscribed_topic_names = names.clone();
                let value = ShareMemberValue { subscribed_topic_names, ..Default::default() };
                self.shareable(&value, topics)
            })
            .collect();
        !all.is_subset(&given)
    }

    /// Decides new targets, if the epoch has risen since the last ones.
    fn assign(&mut self, topics: Topics<'_>, now: Now) {
        if self.target_epoch >= self.epoch {
            return;
        }
        let wishes: Vec<Wish> = self
            .members
            .iter()
            .map(|(id, member)| (id.clone(), self.shareable(&member.value, topics)))
            .collect();
        let targets = shared_out(&wishes);
        debug_assert!(
            wishes.iter().all(|(id, wish)| pairs(&targets[id]).all(|it| wish.contains(&it))),
            "members get partitions that they may get"
        );
        debug_assert_eq!(
            wishes.iter().flat_map(|(_, wish)| wish).collect::<BTreeSet<_>>().len(),
            targets.values().flat_map(pairs).collect::<BTreeSet<_>>().len(),
            "each partition has a member"
        );
        for (id, target) in targets {
            if self.members[&id].target != target {
                let value = TargetValue { topics: topics_of(&target) };
                self.emit(ShareFact::Target(id), Some(ShareValue::Target(Arc::new(value))));
            }
        }
        self.may_lack_targets = false;
        let value = TargetEpochValue { epoch: self.epoch, timestamp: now.wall_ms };
        self.emit(ShareFact::TargetEpoch, Some(ShareValue::TargetEpoch(value)));
    }

    /// Gives a member its target at once: no member has to give anything up first.
    fn reconcile(&mut self, id: &Arc<str>) {
        let member = &self.members[id];
        if member.epoch == self.target_epoch {
            return;
        }
        let value = ShareCurrentValue {
            member_epoch: self.target_epoch,
            previous_member_epoch: member.epoch,
            state: 0,
            assigned: topics_of(&member.target),
        };
        let value = ShareValue::Current(Arc::new(value));
        self.emit(ShareFact::Current(id.clone()), Some(value));
    }
}

/// Facts.
impl ShareGroup {
    /// Emits a fact, which holds at once.
    fn emit(&mut self, fact: ShareFact, value: Option<ShareValue>) {
        let epoch = self.epoch;
        match &value {
            Some(ShareValue::Epoch(it)) => {
                assert!(epoch <= it.epoch, "the epoch {epoch} never goes back, to {}", it.epoch);
            }
            Some(ShareValue::TargetEpoch(it)) => {
                assert_eq!(epoch, it.epoch, "targets are decided for the present epoch");
            }
            _ => {}
        }
        self.apply(&fact, value.as_ref());
        self.emitted.push((Fact::Share(fact), value.map(FactValue::Share)));
    }

    /// Applies the next fact. A member comes before the facts about it.
    fn apply(&mut self, fact: &ShareFact, value: Option<&ShareValue>) {
        match (fact, value) {
            (ShareFact::Epoch, Some(ShareValue::Epoch(it))) => {
                (self.epoch, self.metadata_hash) = (it.epoch, it.metadata_hash);
            }
            (ShareFact::TargetEpoch, Some(ShareValue::TargetEpoch(it))) => {
                self.target_epoch = it.epoch;
            }
            (ShareFact::Member(id), Some(ShareValue::Member(it))) => {
                self.members.entry(id.clone()).or_default().value = it.clone();
            }
            (ShareFact::Member(id), _) => {
                self.members.remove(id);
            }
            (ShareFact::Target(id), Some(ShareValue::Target(it))) => {
                if let Some(member) = self.members.get_mut(id) {
                    member.target = partitions_of(&it.topics);
                }
            }
            (ShareFact::Current(id), Some(ShareValue::Current(it))) => {
                if let Some(member) = self.members.get_mut(id) {
                    (member.epoch, member.previous) = (it.member_epoch, it.previous_member_epoch);
                    member.assigned = partitions_of(&it.assigned);
                }
            }
            (ShareFact::States, Some(ShareValue::States(it))) => self.put_states(it),
            _ => {}
        }
    }

    fn put_states(&mut self, value: &ShareStatesValue) {
        self.states.clear();
        for topic in &value.initialized {
            let states = self.states.entry(topic.topic_id).or_default();
            states.name.clone_from(&topic.topic_name);
            states.begun.extend(&topic.partitions);
        }
        for topic in &value.initializing {
            let states = self.states.entry(topic.topic_id).or_default();
            states.name.clone_from(&topic.topic_name);
            states.beginning.extend(&topic.partitions);
        }
        let deleting = value.deleting.iter();
        self.deleting = deleting.map(|it| (it.topic_id, it.topic_name.clone())).collect();
    }

    fn states_value(&self) -> ShareStatesValue {
        let topics = |of: fn(&States) -> &BTreeSet<i32>| {
            let some = self.states.iter().filter(move |(_, it)| !of(it).is_empty());
            let topic = move |(topic_id, it): (&Uuid, &States)| StateTopic {
                topic_id: *topic_id,
                topic_name: it.name.clone(),
                partitions: of(it).iter().copied().collect(),
            };
            some.map(topic).collect()
        };
        let deleting = self.deleting.iter().map(|(topic_id, name)| DeletingTopic {
            topic_id: *topic_id,
            topic_name: name.clone(),
        });
        ShareStatesValue {
            initializing: topics(|it| &it.beginning),
            initialized: topics(|it| &it.begun),
            deleting: deleting.collect(),
        }
    }
}

fn pairs(partitions: &Partitions) -> impl Iterator<Item = Place> {
    partitions.iter().flat_map(|(topic, all)| all.iter().map(move |partition| (*topic, *partition)))
}

fn topics_of(partitions: &Partitions) -> Vec<TargetTopic> {
    let topic = |(topic_id, partitions): (&Uuid, &BTreeSet<i32>)| TargetTopic {
        topic_id: *topic_id,
        partitions: partitions.iter().copied().collect(),
    };
    partitions.iter().map(topic).collect()
}

fn partitions_of(topics: &[TargetTopic]) -> Partitions {
    topics.iter().map(|it| (it.topic_id, it.partitions.iter().copied().collect())).collect()
}

fn assignment(assigned: &Partitions) -> Assignment {
    let topic = |(topic_id, partitions): (&Uuid, &BTreeSet<i32>)| TopicPartitions {
        topic_id: *topic_id,
        partitions: partitions.iter().copied().collect(),
    };
    Assignment { topic_partitions: assigned.iter().map(topic).collect() }
}

/// Returns the member's description after this request.
fn told(
    before: &ShareMemberValue,
    caller: &Caller,
    request: &ShareGroupHeartbeatRequest,
) -> ShareMemberValue {
    let names = request.subscribed_topic_names.clone().map(sorted);
    ShareMemberValue {
        rack_id: request.rack_id.clone().or_else(|| before.rack_id.clone()),
        client_id: caller.client_id.clone(),
        client_host: caller.client_host.clone(),
        subscribed_topic_names: names.unwrap_or_else(|| before.subscribed_topic_names.clone()),
    }
}

/// Shares out the partitions as a function of the members' wishes. If all members want the same partitions, it shares
/// out all of them together, else topic by topic. Each partition has a member, and no more members than are needed for
/// every member to have a partition.
fn shared_out(wishes: &[Wish]) -> BTreeMap<Arc<str>, Partitions> {
    let mut all: BTreeMap<Arc<str>, Partitions> =
        wishes.iter().map(|(id, _)| (id.clone(), Partitions::new())).collect();
    let mut share = |members: &[&Arc<str>], partitions: &[Place]| {
        if members.is_empty() || partitions.is_empty() {
            return;
        }
        // Round and round in both: two places that meet the same member are further apart than one partition's.
        let places = members.len().div_ceil(partitions.len()) * partitions.len();
        for at in 0..places {
            let (topic, partition) = partitions[at % partitions.len()];
            let member = members[at % members.len()];
            let has = all.get_mut(member).expect("it is listed");
            has.entry(topic).or_default().insert(partition);
        }
    };
    let Some((_, first)) = wishes.first() else { return all };
    if wishes.iter().all(|(_, wish)| wish == first) {
        let members: Vec<&Arc<str>> = wishes.iter().map(|(id, _)| id).collect();
        share(&members, first);
        return all;
    }
    let topics: BTreeSet<Uuid> =
        wishes.iter().flat_map(|(_, wish)| wish.iter().map(|(topic, _)| *topic)).collect();
    for topic in topics {
        let of_it = |wish: &[Place]| -> Vec<Place> {
            wish.iter().filter(|(it, _)| *it == topic).copied().collect()
        };
        let members: Vec<&Arc<str>> =
            wishes.iter().filter(|(_, wish)| !of_it(wish).is_empty()).map(|(id, _)| id).collect();
        let wish = wishes.iter().map(|(_, wish)| of_it(wish)).find(|it| !it.is_empty());
        share(&members, &wish.unwrap_or_default());
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_are_shared_out_evenly_and_each_is_somebodys() {
        for count in 1..12i32 {
            for members in 1..12usize {
                let partitions: Vec<_> = (0..count).map(|it| (Uuid::from_u128(1), it)).collect();
                let wishes: Vec<(Arc<str>, _)> = (0..members)
                    .map(|it| (format!("{it:02}").into(), partitions.clone()))
                    .collect();
                let all = shared_out(&wishes);
                let sizes: Vec<usize> = all.values().map(|it| pairs(it).count()).collect();
                let (most, least) = (sizes.iter().max(), sizes.iter().min());
                assert!(
                    most.zip(least).is_some_and(|(most, least)| most - least <= 1),
                    "{sizes:?}"
                );
                let sharing = members.div_ceil(partitions.len());
                assert_eq!(sizes.iter().sum::<usize>(), sharing * partitions.len());
                for partition in &partitions {
                    let having = all.values().filter(|it| pairs(it).any(|it| it == *partition));
                    assert_eq!(having.count(), sharing, "{count} of {members}");
                }
            }
        }
    }

    #[test]
    fn members_get_what_they_are_subscribed_to() {
        let (a, b) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let one = vec![(a, 0), (a, 1)];
        let both = vec![(a, 0), (a, 1), (b, 0)];
        let all = shared_out(&[("x".into(), one), ("y".into(), both), ("z".into(), Vec::new())]);
        assert_eq!(pairs(&all["x"]).collect::<Vec<_>>(), [(a, 0)]);
        assert_eq!(pairs(&all["y"]).collect::<Vec<_>>(), [(a, 1), (b, 0)]);
        assert!(all["z"].is_empty());
    }
}
