//! Share groups in a coordinator, which appends their decisions and asks for their stored state. `changes` holds the
//! changes by administrators.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Included, Unbounded};
use std::sync::Arc;

use duramen_protocol::ErrorCode;
use duramen_protocol::messages::ShareGroupHeartbeatRequest;
use duramen_protocol::messages::share_group_describe::DescribedGroup;
use duramen_protocol::wire::Uuid;

use super::{Asked, Coordinator, Group, Output};
use crate::event::Now;
use crate::groups::consumer::{Refusal, Topics};
use crate::groups::membership::{Caller, Membership, State};
use crate::groups::records::{Fact, FactValue, GroupRecord, ShareFact, ShareValue};
use crate::groups::rules::{Rules, ShareRules};
use crate::groups::share::{ShareGroup, check_request, refused};
use crate::shares::ShareKey;
use crate::shares::coordinator::{Answer, Ask};

pub(super) mod changes;

impl Group {
    /// Tells whether the group's durable facts are those of a share group.
    pub(super) fn has_share_facts(&self) -> bool {
        matches!(self.facts.last_key_value(), Some((Fact::Share(_), _)))
    }

    /// Tells whether the group is a share group, in memory or by its records.
    pub(super) fn is_of_shares(&self) -> bool {
        self.is_ending.is_none() && (self.share.is_some() || self.has_share_facts())
    }

    /// Tells whether the group is one of consumers, of either protocol.
    fn is_of_others(&self) -> bool {
        self.is_of_consumers()
            || self.stored.is_some()
            || self.stored_flying > 0
            || !self.offsets.is_empty()
            || !self.members.is_idle()
            || self.members.state() != State::Empty
    }

    /// Builds the share group from the durable facts, if these are of one.
    pub(super) fn begin_share(&mut self, rules: &ShareRules, now: Now) {
        if self.share.is_none() && self.has_share_facts() && self.is_ending.is_none() {
            let mut share = self.durable_share(rules, now);
            if self.has_failed {
                share.take_wanted();
            }
            self.share = Some(Box::new(share));
            self.members = Membership::default();
        }
    }

    fn durable_share(&self, rules: &ShareRules, now: Now) -> ShareGroup {
        let facts = self.facts.iter().map(|(fact, (_, value))| (fact, value));
        ShareGroup::load(facts, rules, now)
    }

    /// Shows a share group as far as it is durable.
    pub(super) fn shown_share<T>(
        &self,
        rules: &ShareRules,
        now: Now,
        show: impl FnOnce(&ShareGroup) -> T,
    ) -> T {
        match &self.share {
            Some(share) if !self.is_deciding => show(share),
            _ => show(&self.durable_share(rules, now)),
        }
    }
}

fn not_found(name: &str) -> Refusal {
    Refusal::new(ErrorCode::GroupIdNotFound, format!("Share group {name} not found."))
}

/// Requests.
impl Coordinator {
    /// Handles a `ShareGroupHeartbeat`.
    pub(crate) fn share_group_heartbeat(
        &mut self,
        rules: &Rules,
        topics: Topics<'_>,
        caller: Caller,
        request: ShareGroupHeartbeatRequest,
        now: Now,
    ) {
        if let Err(refusal) = check_request(&request) {
            return self.reply(caller.key, refused(refusal));
        }
        let known = self.groups.get_key_value(request.group_id.as_str());
        let name = match known {
            Some((name, _)) => name.clone(),
            None if request.member_epoch == 0 => request.group_id.as_str().into(),
            None => return self.reply(caller.key, refused(not_found(&request.group_id))),
        };
        self.ask(&name, Asked::ShareHeartbeat(caller, request), rules, topics, now);
    }

    /// Makes sure that a group is a share group, which is a new one if there is none and it may be.
    fn begin_share_group(
        &mut self,
        name: &Arc<str>,
        rules: &Rules,
        may_be_new: bool,
        now: Now,
    ) -> Result<(), Refusal> {
        let life = self.new_life();
        let group = self.group_mut(name);
        group.begin_share(&rules.share, now);
        if group.share.is_some() {
            return Ok(());
        }
        if group.is_of_others() {
            let message = format!("Group {name} is not a share group.");
            return Err(Refusal::new(ErrorCode::GroupIdNotFound, message));
        }
        assert!(group.facts.is_empty(), "{name} has no facts before it is a share group");
        if may_be_new {
            group.share = Some(Box::default());
            group.life = life;
        }
        Ok(())
    }

    pub(super) fn share_heartbeat_of(
        &mut self,
        name: &Arc<str>,
        rules: &Rules,
        topics: Topics<'_>,
        caller: &Caller,
        request: &ShareGroupHeartbeatRequest,
        now: Now,
    ) -> Result<(), Refusal> {
        self.begin_share_group(name, rules, request.member_epoch == 0, now)?;
        let share = &mut self.group_mut(name).share;
        let share = share.as_mut().ok_or_else(|| not_found(name))?;
        let rules = rules.share.with(topics.image.group_configs(name));
        share.heartbeat(&rules, topics, caller, request, now);
        Ok(())
    }

    /// Begins the stored state of a partition for workers, who are no members. The group comes to be if there is none.
    pub(crate) fn begin_for_workers(
        &mut self,
        key: &ShareKey,
        rules: &Rules,
        topics: Topics<'_>,
        now: Now,
    ) -> Result<(), ErrorCode> {
        let known = self.groups.get_key_value(&key.group);
        let name = known.map_or_else(|| key.group.clone(), |(name, _)| name.clone());
        let group = self.groups.get(&name);
        if group.is_some_and(|group| !group.is_of_shares() && group.is_of_others()) {
            return Err(ErrorCode::GroupIdNotFound);
        }
        let asked = Asked::Workers(key.topic_id, key.partition);
        self.ask(&name, asked, rules, topics, now);
        Ok(())
    }

    pub(super) fn begin_states_for_workers(
        &mut self,
        name: &Arc<str>,
        rules: &Rules,
        topics: Topics<'_>,
        place: (Uuid, i32),
        now: Now,
    ) {
        if self.begin_share_group(name, rules, true, now).is_ok()
            && let Some(topic) = topics.image.topic(place.0)
            && let Some(share) = &mut self.group_mut(name).share
        {
            share.want_state(place, &topic.name);
        }
    }

    /// Returns the partitions that have stored state for a share group.
    pub(crate) fn begun_of_shares(
        &self,
        rules: &Rules,
        group_id: &str,
        now: Now,
    ) -> BTreeMap<Uuid, Vec<i32>> {
        let group = self.groups.get(group_id).filter(|group| group.is_of_shares());
        group.map_or_else(BTreeMap::new, |it| it.shown_share(&rules.share, now, ShareGroup::begun))
    }

    /// Describes a group for `ShareGroupDescribe`.
    pub(crate) fn describe_shares(
        &self,
        rules: &Rules,
        topics: Topics<'_>,
        group_id: &str,
        now: Now,
    ) -> DescribedGroup {
        let missing = |error_message: String| DescribedGroup {
            group_id: group_id.to_owned(),
            error_code: ErrorCode::GroupIdNotFound.code(),
            error_message: Some(error_message),
            ..DescribedGroup::default()
        };
        match self.groups.get(group_id).filter(|group| group.is_ending.is_none()) {
            None => missing(format!("Group {group_id} not found.")),
            Some(group) if !group.is_of_shares() => {
                missing(format!("Group {group_id} is not a share group."))
            }
            Some(group) => group.shown_share(&rules.share, now, |it| it.describe(group_id, topics)),
        }
    }
}

/// Decisions.
impl Coordinator {
    /// Appends the decisions of a share group. Without decisions, it sends all answers at once.
    pub(super) fn append_share(&mut self, name: &Arc<str>, now: Now) {
        let group = self.group_mut(name);
        let Some(share) = &mut group.share else { return };
        let (facts, answers) = share.take();
        if facts.is_empty() {
            self.want_shares(name);
            for (key, answer) in answers {
                self.reply(key, answer);
            }
            return;
        }
        (group.is_deciding, group.deciding_since_us) = (true, now.mono_us);
        let record = |(fact, value)| GroupRecord::Consumer { group: name.clone(), fact, value };
        let records = facts.into_iter().map(record).collect();
        self.append_in_order(name, records, answers);
    }

    /// Takes the result of an append of a share group's decision. If the append failed, the group goes back to its
    /// durable state.
    pub(super) fn on_share_decided(&mut self, name: &Arc<str>, is_durable: bool, held_us: u64) {
        let group = self.group_mut(name);
        group.has_failed = !is_durable;
        if !is_durable {
            group.share = None;
        } else if let Some(share) = &mut group.share {
            share.hold(held_us);
            self.want_shares(name);
        }
    }

    /// Asks for the stored states that the group needs.
    fn want_shares(&mut self, name: &Arc<str>) {
        let Some(share) = &mut self.group_mut(name).share else { return };
        for place in share.take_wanted() {
            if self.group_mut(name).beginning.insert(place) {
                self.ask_share(name, place, Ask::Begin);
            }
        }
    }

    fn ask_share(&mut self, name: &Arc<str>, (topic_id, partition): (Uuid, i32), ask: Ask) {
        let key = ShareKey { group: name.clone(), topic_id, partition };
        self.ledger.push(Output::AskShares(key, ask));
    }

    /// Takes the answer to an [`Output::AskShares`].
    pub(crate) fn on_share_answer(&mut self, key: &ShareKey, ask: &Ask, answer: &Answer) {
        let Some((name, _)) = self.groups.get_key_value(&key.group) else { return };
        let name = name.clone();
        let place = (key.topic_id, key.partition);
        let is_gone = *answer == Err(ErrorCode::UnknownTopicOrPartition);
        if *ask == Ask::Begin {
            // The answer serves every request of the group; a later need has to ask again.
            self.group_mut(&name).beginning.remove(&place);
            if self.on_begun_for_change(&name, key, answer) {
                return;
            }
            let group = self.group_mut(&name);
            if group.is_of_shares() && (answer.is_ok() || is_gone) {
                let begun = Asked::Begun(place.0, place.1, answer.is_ok());
                group.waiting.push_back(begun);
                self.ready.insert(name);
            }
            return;
        }
        self.on_change_answer(&name, key, ask, answer);
    }
}

/// Topics.
impl Coordinator {
    /// Returns the topics that have durable stored state for share groups: groups after the first of these, up to the
    /// second.
    pub(crate) fn topics_shared(
        &self,
        after: Option<&Arc<str>>,
        last: Option<&Arc<str>>,
    ) -> BTreeSet<Uuid> {
        let (from, to) = (after.map_or(Unbounded, Excluded), last.map_or(Unbounded, Included));
        let groups = self.groups.range::<Arc<str>, _>((from, to));
        let mut topics = BTreeSet::new();
        for (_, group) in groups {
            let said = group.facts.get(&Fact::Share(ShareFact::States));
            let Some((_, FactValue::Share(ShareValue::States(it)))) = said else { continue };
            let kept = it.initializing.iter().chain(&it.initialized).map(|it| it.topic_id);
            topics.extend(kept.chain(it.deleting.iter().map(|it| it.topic_id)));
        }
        topics
    }

    /// Forgets a deleted topic, which may have stored state for share groups.
    pub(crate) fn forget_shared_topic(&mut self, topic_id: Uuid) {
        let of_it = self.groups.iter().filter(|(_, group)| group.is_of_shares());
        let names: Vec<Arc<str>> = of_it.map(|(name, _)| name.clone()).collect();
        for name in names {
            self.group_mut(&name).waiting.push_back(Asked::TopicGone(topic_id));
            self.ready.insert(name);
        }
    }
}
