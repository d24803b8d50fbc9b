//! Groups of the consumer protocol in a coordinator. Their requests wait their turn, and the coordinator appends their
//! decisions.

use std::collections::BTreeSet;
use std::mem;
use std::sync::Arc;

use duramen_protocol::messages::consumer_group_describe::DescribedGroup;
use duramen_protocol::messages::{
    AlterShareGroupOffsetsResponse, ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse,
    DeleteShareGroupOffsetsResponse, HeartbeatRequest, HeartbeatResponse, JoinGroupRequest,
    JoinGroupResponse, LeaveGroupRequest, LeaveGroupResponse, ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse, SyncGroupRequest, SyncGroupResponse,
};
use duramen_protocol::wire::Uuid;
use duramen_protocol::{ErrorCode, Response};
use duramen_storage::sabotage::{self, Bug};

use super::{BATCH_BYTES, Coordinator, Group, Then, Wish, refused_wish};
use crate::event::{Now, RequestKey};
use crate::groups::consumer::{
    self, Answer, CONSUMER, ConsumerGroup, Refusal, Topics, check_request,
};
use crate::groups::membership::{Caller, Membership, State};
use crate::groups::records::{Fact, GroupMetadataValue, GroupRecord};
use crate::groups::rules::{ConsumerRules, Rules};
use crate::groups::share;

/// Request to a group of the consumer protocol or a share group, or to one that is to become such a group.
#[derive(Debug)]
pub(super) enum Asked {
    Heartbeat(Caller, ConsumerGroupHeartbeatRequest),
    Delete(RequestKey, usize),
    Classic(Classic),
    ShareHeartbeat(Caller, ShareGroupHeartbeatRequest),
    Wish(RequestKey, Box<Wish>),
    /// A partition has stored state now, or its topic is gone.
    Begun(Uuid, i32, bool),
    /// A topic is gone.
    TopicGone(Uuid),
    /// Workers, who are no members, need stored state of a partition.
    Workers(Uuid, i32),
}

/// Request of a member of the classic protocol.
#[derive(Debug)]
pub(super) enum Classic {
    Join(i16, Caller, JoinGroupRequest),
    Sync(RequestKey, SyncGroupRequest),
    Heartbeat(RequestKey, HeartbeatRequest),
    Leave(RequestKey, i16, LeaveGroupRequest),
}

/// Returns the answer in place of this one, if its decision could not be stored.
pub(super) fn refused(answer: Response, code: ErrorCode) -> Response {
    let error_code = code.code();
    match answer {
        Response::ConsumerGroupHeartbeat(_) => {
            ConsumerGroupHeartbeatResponse { error_code, ..Default::default() }.into()
        }
        Response::JoinGroup(JoinGroupResponse { member_id, .. }) => {
            JoinGroupResponse { error_code, member_id, ..Default::default() }.into()
        }
        Response::SyncGroup(_) => SyncGroupResponse { error_code, ..Default::default() }.into(),
        Response::Heartbeat(_) => HeartbeatResponse { error_code, ..Default::default() }.into(),
        Response::LeaveGroup(_) => LeaveGroupResponse { error_code, ..Default::default() }.into(),
        Response::ShareGroupHeartbeat(_) => {
            ShareGroupHeartbeatResponse { error_code, ..Default::default() }.into()
        }
        Response::AlterShareGroupOffsets(_) => {
            AlterShareGroupOffsetsResponse { error_code, ..Default::default() }.into()
        }
        Response::DeleteShareGroupOffsets(_) => {
            DeleteShareGroupOffsetsResponse { error_code, ..Default::default() }.into()
        }
        answer => answer,
    }
}

impl Group {
    /// Builds the group of the consumer protocol from the durable facts, if these are of one.
    pub(super) fn begin_consumer(&mut self, rules: &ConsumerRules, now: Now) {
        let is_of_consumers = !self.facts.is_empty() && !self.has_share_facts();
        if self.consumer.is_none() && is_of_consumers && self.is_ending.is_none() {
            self.consumer = Some(Box::new(self.durable(rules, now)));
            self.members = Membership::default();
        }
    }

    fn durable(&self, rules: &ConsumerRules, now: Now) -> ConsumerGroup {
        let facts = self.facts.iter().map(|(fact, (_, value))| (fact, value));
        ConsumerGroup::load(facts, rules, now)
    }

    /// Tells whether the group is one of the consumer protocol, in memory or by its records.
    pub(super) fn is_of_consumers(&self) -> bool {
        let has_facts = !self.facts.is_empty() && !self.has_share_facts();
        self.is_ending.is_none() && (self.consumer.is_some() || has_facts)
    }

    /// Shows a group of the consumer protocol as far as it is durable.
    pub(super) fn shown<T>(
        &self,
        rules: &ConsumerRules,
        now: Now,
        show: impl FnOnce(&ConsumerGroup) -> T,
    ) -> T {
        match &self.consumer {
            Some(consumer) if !self.is_deciding => show(consumer),
            _ => show(&self.durable(rules, now)),
        }
    }

    /// Tells whether the group can decide a new request now.
    pub(super) fn is_at_rest(&self) -> bool {
        !self.is_deciding && self.is_ending.is_none() && self.changing.is_none()
    }
}

/// Requests.
impl Coordinator {
    /// Handles a `ConsumerGroupHeartbeat` of this version.
    pub(crate) fn consumer_group_heartbeat(
        &mut self,
        rules: &Rules,
        topics: Topics<'_>,
        version: i16,
        caller: Caller,
        request: ConsumerGroupHeartbeatRequest,
        now: Now,
    ) {
        if let Err(refusal) = check_request(&rules.consumer, version, &request) {
            return self.reply(caller.key, consumer::refused(refusal));
        }
        let known = self.groups.get_key_value(request.group_id.as_str());
        let name = match known {
            Some((name, _)) => name.clone(),
            None if request.member_epoch == 0 => request.group_id.as_str().into(),
            None => {
                let refusal = no_group(&request);
                return self.reply(caller.key, consumer::refused(refusal));
            }
        };
        self.ask(&name, Asked::Heartbeat(caller, request), rules, topics, now);
    }

    /// Describes a group for `ConsumerGroupDescribe`.
    pub(crate) fn describe_consumers(
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
            Some(group) if !group.is_of_consumers() => {
                missing(format!("Group {group_id} is not a consumer group."))
            }
            Some(group) => group
                .shown(&rules.consumer, now, |it| it.describe(group_id, &rules.consumer, topics)),
        }
    }

    /// Hands a request to a group, now or once the group's last decision is durable.
    pub(super) fn ask(
        &mut self,
        name: &Arc<str>,
        asked: Asked,
        rules: &Rules,
        topics: Topics<'_>,
        now: Now,
    ) {
        self.group_mut(name).waiting.push_back(asked);
        self.serve(name, rules, topics, now);
    }

    /// Queues a classic member's request to a group of the consumer protocol, until [`Self::go_on`] can show it the
    /// topics.
    pub(super) fn ask_as_classic(&mut self, name: &Arc<str>, asked: Classic) {
        self.group_mut(name).waiting.push_back(Asked::Classic(asked));
        self.ready.insert(name.clone());
    }

    /// Carries out the requests and the deadlines that had to wait.
    pub(crate) fn go_on(&mut self, rules: &Rules, topics: Topics<'_>, now: Now) {
        for name in mem::take(&mut self.ready) {
            let Some(group) = self.groups.get_mut(&name) else { continue };
            if !group.is_at_rest() {
                continue;
            }
            group.begin_consumer(&rules.consumer, now);
            group.begin_share(&rules.share, now);
            if let Some(consumer) = &mut group.consumer {
                consumer.on_time(topics, now);
            }
            if let Some(share) = &mut group.share {
                share.on_time(topics, now);
            }
            self.serve(&name, rules, topics, now);
        }
        assert!(self.ready.is_empty(), "a group that had its turn is not at once ready again");
    }

    /// Decides on the waiting requests, and appends the decisions.
    fn serve(&mut self, name: &Arc<str>, rules: &Rules, topics: Topics<'_>, now: Now) {
        loop {
            let group = self.group_mut(name);
            if !group.is_at_rest() {
                return;
            }
            let Some(asked) = group.waiting.pop_front() else { break };
            if matches!(asked, Asked::Delete(..) | Asked::Wish(..)) {
                // Earlier decisions must come before this one in the log.
                self.append_decided(name, rules, topics, now);
                if !self.group_mut(name).is_at_rest() {
                    self.group_mut(name).waiting.push_front(asked);
                    return;
                }
            }
            match asked {
                Asked::Heartbeat(caller, request) => {
                    let id = request.member_id.clone();
                    if let Err(refusal) =
                        self.heartbeat_of(name, rules, topics, &caller, &request, now)
                    {
                        self.reply(caller.key, consumer::refused(refusal));
                    }
                    self.hasten(name, &id);
                }
                Asked::Delete(key, part) => {
                    if self.groups[name].is_of_shares() {
                        self.delete_shares(name, topics, key, part);
                    } else {
                        self.delete_consumers(name, key, part);
                    }
                }
                Asked::ShareHeartbeat(caller, request) => {
                    let id = request.member_id.clone();
                    if let Err(refusal) =
                        self.share_heartbeat_of(name, rules, topics, &caller, &request, now)
                    {
                        self.reply(caller.key, share::refused(refusal));
                    }
                    self.hasten(name, &id);
                }
                Asked::Wish(key, wish) => {
                    self.begin_wish(name, rules, topics, key, *wish, now);
                }
                Asked::Begun(topic, partition, is_there) => {
                    if let Some(share) = &mut self.group_mut(name).share {
                        share.on_begun(topic, partition, is_there);
                    }
                }
                Asked::TopicGone(topic) => {
                    if let Some(share) = &mut self.group_mut(name).share {
                        share.forget_topic(topic);
                    }
                }
                Asked::Workers(topic, partition) => {
                    self.begin_states_for_workers(name, rules, topics, (topic, partition), now);
                }
                Asked::Classic(asked) => {
                    if let Some(asked) = self.classic_of(name, rules, topics, asked, now) {
                        // Earlier decisions must come before this one in the log.
                        self.append_decided(name, rules, topics, now);
                        if !self.group_mut(name).is_at_rest() {
                            self.group_mut(name).waiting.push_front(Asked::Classic(asked));
                            return;
                        }
                        self.clear_for(name, asked);
                    }
                }
            }
        }
        self.append_decided(name, rules, topics, now);
        self.rest(name);
    }

    fn heartbeat_of(
        &mut self,
        name: &Arc<str>,
        rules: &Rules,
        topics: Topics<'_>,
        caller: &Caller,
        request: &ConsumerGroupHeartbeatRequest,
        now: Now,
    ) -> Result<(), Refusal> {
        let life = self.new_life();
        let group = self.group_mut(name);
        group.begin_consumer(&rules.consumer, now);
        if group.consumer.is_none() {
            if group.is_of_shares() {
                let message = format!("Group {name} is not a consumer group.");
                return Err(Refusal::new(ErrorCode::GroupIdNotFound, message));
            }
            let is_there =
                group.stored.is_some() || !group.offsets.is_empty() || !group.members.is_idle();
            let code = ErrorCode::GroupIdNotFound;
            if request.member_epoch != 0 {
                let of_other_kind = format!("Group {name} is not a consumer group.");
                return Err(if is_there {
                    Refusal::new(code, of_other_kind)
                } else {
                    no_group(request)
                });
            }
            let consumer = match group.members.state() {
                State::Empty => ConsumerGroup::default(),
                _ => upgraded(name, &group.members, &rules.consumer, topics, now)?,
            };
            group.consumer = Some(Box::new(consumer));
            group.life = life;
            group.members.end(ErrorCode::RebalanceInProgress);
            for effect in mem::take(&mut group.members).take_effects() {
                self.tell(effect);
            }
        }
        let group = self.group_mut(name);
        let consumer = group.consumer.as_mut().expect("it is there now");
        let rules = rules.consumer.with(topics.image.group_configs(name));
        consumer.heartbeat(&rules, topics, caller, request, now);
        Ok(())
    }

    /// Carries out a classic member's request. Returns the request if the group must first become one of the classic
    /// protocol.
    fn classic_of(
        &mut self,
        name: &Arc<str>,
        rules: &Rules,
        topics: Topics<'_>,
        asked: Classic,
        now: Now,
    ) -> Option<Classic> {
        let group = self.group_mut(name);
        group.begin_consumer(&rules.consumer, now);
        let Some(consumer) = &mut group.consumer else {
            self.ask_classic_group(rules, asked, now);
            return None;
        };
        if consumer.is_empty() && matches!(asked, Classic::Join(..)) {
            return Some(asked);
        }
        match &asked {
            Classic::Join(version, caller, request) => {
                let rules = rules.consumer.with(topics.image.group_configs(name));
                consumer.join(&rules, topics, *version, caller, request, now);
            }
            Classic::Sync(key, request) => consumer.sync(topics, *key, request, now),
            Classic::Heartbeat(key, request) => consumer.classic_heartbeat(*key, request, now),
            Classic::Leave(key, version, request) => {
                consumer.leave_classic(topics, *key, *version, request);
            }
        }
        if let Classic::Join(_, _, JoinGroupRequest { member_id, .. })
        | Classic::Heartbeat(_, HeartbeatRequest { member_id, .. })
        | Classic::Sync(_, SyncGroupRequest { member_id, .. }) = &asked
        {
            self.hasten(name, member_id);
        }
        None
    }

    /// Carries out a classic member's request in a group of the classic protocol.
    fn ask_classic_group(&mut self, rules: &Rules, asked: Classic, now: Now) {
        match asked {
            Classic::Join(version, caller, request) => {
                self.join_group(rules, version, caller, &request, now);
            }
            Classic::Sync(key, request) => self.sync_group(key, &request, now),
            Classic::Heartbeat(key, request) => self.heartbeat(key, &request, now),
            Classic::Leave(key, version, request) => {
                self.leave_group(key, version, &request, now);
            }
        }
    }

    /// Ends a group of the consumer protocol without members, because a classic member wants to join. The group then
    /// begins as one of the classic protocol.
    fn clear_for(&mut self, name: &Arc<str>, asked: Classic) {
        let records = self.ends_of_facts(name);
        let asked = Asked::Classic(asked);
        let group = self.group_mut(name);
        let is_empty = group.consumer.as_ref().is_none_or(|it| it.is_empty());
        assert!(is_empty, "{name} has no members of the consumer protocol when it is cleared");
        group.consumer = None;
        if records.is_empty() {
            group.waiting.push_front(asked);
        } else {
            group.is_deciding = true;
            self.append(Some(name), records, Then::Cleared(Box::new(asked)));
        }
    }

    /// Appends the decisions of a group. Without decisions, it sends all answers at once.
    fn append_decided(&mut self, name: &Arc<str>, rules: &Rules, topics: Topics<'_>, now: Now) {
        let group = self.group_mut(name);
        if group.share.is_some() {
            return self.append_share(name, now);
        }
        let Some(consumer) = &mut group.consumer else { return };
        let downgraded = consumer.downgraded(&rules.consumer, rules.members_max, topics);
        let (facts, answers) = consumer.take();
        if facts.is_empty() {
            for (key, answer) in answers {
                self.reply(key, answer);
            }
            return;
        }
        (group.is_deciding, group.deciding_since_us) = (true, now.mono_us);
        let mut answers = answers;
        if sabotage::is(Bug::ToldBeforeStored) {
            for (key, answer) in mem::take(&mut answers) {
                self.reply(key, answer);
            }
        }
        let group = self.group_mut(name);
        let was_classic = group.stored.is_some() || group.stored_flying > 0;
        let mut records = Vec::with_capacity(facts.len() + 1);
        if was_classic {
            records.push(GroupRecord::Group { group: name.clone(), value: None });
        }
        let record = |(fact, value)| GroupRecord::Consumer { group: name.clone(), fact, value };
        records.extend(facts.into_iter().map(record));
        let is_downgraded = downgraded.is_some();
        if let Some(stored) = downgraded {
            // Whatever was decided ends with all the rest.
            let known = group.facts.keys().chain(records.iter().filter_map(fact_of));
            let all: BTreeSet<Fact> = known.cloned().collect();
            let end = |fact| GroupRecord::Consumer { group: name.clone(), fact, value: None };
            records = all.into_iter().rev().map(end).collect();
            let value = GroupMetadataValue { current_state_timestamp: now.wall_ms, ..stored };
            let value = Some(Arc::new(value));
            records.push(GroupRecord::Group { group: name.clone(), value });
        }
        if was_classic || is_downgraded {
            // All of it or nothing: a group is of one kind.
            self.append(Some(name), records, Then::Decided(answers));
        } else {
            self.append_in_order(name, records, answers);
        }
    }

    /// Appends as many decisions as fit one batch. The rest follows once that batch is durable: each record rests on
    /// those before it, and must not be there without them.
    pub(super) fn append_in_order(
        &mut self,
        name: &Arc<str>,
        mut records: Vec<GroupRecord>,
        answers: Vec<Answer>,
    ) {
        let mut bytes = 0;
        let is_too_much = |record: &GroupRecord| {
            bytes += record.bytes();
            bytes > BATCH_BYTES
        };
        let fits = records.iter().position(is_too_much).unwrap_or(records.len()).max(1);
        let rest = records.split_off(fits);
        let then = if rest.is_empty() { Then::Decided(answers) } else { Then::More(rest, answers) };
        self.append(Some(name), records, then);
    }

    /// Takes the result of an append of a group's decision. If the append failed, the group goes back to its durable
    /// state.
    pub(super) fn on_decided(&mut self, name: &Arc<str>, is_durable: bool, now: Now) {
        let group = self.group_mut(name);
        assert!(group.is_deciding, "{name} waits for the result of one decision");
        assert!(group.is_ending.is_none(), "{name} does not end while it decides");
        group.is_deciding = false;
        let held_us = now.mono_us.saturating_sub(group.deciding_since_us);
        if let Some(consumer) = &mut group.consumer {
            consumer.hold(held_us);
        }
        if group.share.is_some() {
            self.on_share_decided(name, is_durable, held_us);
        }
        let group = self.group_mut(name);
        let is_classic = group.facts.is_empty() && group.stored.is_some();
        if !is_durable || is_classic {
            group.consumer = None;
        }
        if let (true, Some((_, value))) = (is_classic, &group.stored) {
            group.since_ms = value.current_state_timestamp;
            group.members = Membership::load(value, now.mono_us);
            // Its members find out so that it is of another kind, or is so again.
            if group.members.state() != State::Empty {
                group.members.prepare();
            }
        }
        self.ready.insert(name.clone());
    }

    /// Ends the work on this group for now.
    fn rest(&mut self, name: &Arc<str>) {
        let group = self.group_mut(name);
        // A request created the group in memory, and nothing of it was stored.
        if group.facts.is_empty() && !group.is_deciding {
            group.consumer = None;
            group.share = None;
        }
        let is_searching = group.consumer.as_ref().is_some_and(|it| it.is_searching());
        if group.is_idle() {
            self.forget_if_idle(name);
        } else if group.due_us.is_none() || is_searching {
            let due_us = group.deadline_us();
            self.schedule(name, due_us);
        }
    }

    /// Deletes a group without members.
    fn delete_consumers(&mut self, name: &Arc<str>, key: RequestKey, part: usize) {
        let group = self.group_mut(name);
        let is_empty = group.consumer.as_ref().is_none_or(|consumer| consumer.is_empty());
        if !is_empty {
            return self.push_deleted(key, part, name, ErrorCode::NonEmptyGroup);
        }
        self.delete_empty(name, key, part);
    }

    /// Returns the tombstones of all facts about a group.
    pub(super) fn ends_of_facts(&self, name: &Arc<str>) -> Vec<GroupRecord> {
        let end = |fact| GroupRecord::Consumer { group: name.clone(), fact, value: None };
        // The facts about a member end before the member.
        self.groups[name].facts.keys().rev().cloned().map(end).collect()
    }

    /// Refuses a request, because another node coordinates the groups now.
    pub(super) fn refuse(&mut self, asked: Asked, code: ErrorCode) {
        match asked {
            Asked::Heartbeat(caller, _) => {
                let answer = refused(ConsumerGroupHeartbeatResponse::default().into(), code);
                self.reply(caller.key, answer);
            }
            Asked::Delete(key, part) => self.push_deleted(key, part, "", code),
            Asked::ShareHeartbeat(caller, _) => {
                let answer = refused(ShareGroupHeartbeatResponse::default().into(), code);
                self.reply(caller.key, answer);
            }
            Asked::Wish(key, wish) => {
                let refusal = Refusal::new(code, code.name().to_owned());
                self.reply(key, refused_wish(&wish, refusal));
            }
            Asked::Begun(..) | Asked::TopicGone(_) | Asked::Workers(..) => {}
            Asked::Classic(asked) => {
                let (key, answer): (_, Response) = match asked {
                    Classic::Join(_, caller, request) => {
                        let member_id = request.member_id;
                        let answer =
                            JoinGroupResponse { member_id, ..JoinGroupResponse::default() };
                        (caller.key, answer.into())
                    }
                    Classic::Sync(key, _) => (key, SyncGroupResponse::default().into()),
                    Classic::Heartbeat(key, _) => (key, HeartbeatResponse::default().into()),
                    Classic::Leave(key, ..) => (key, LeaveGroupResponse::default().into()),
                };
                self.reply(key, refused(answer, code));
            }
        }
    }
}

fn fact_of(record: &GroupRecord) -> Option<&Fact> {
    match record {
        GroupRecord::Consumer { fact, .. } => Some(fact),
        _ => None,
    }
}

/// Converts a group of the classic protocol to the consumer protocol, if it can become one.
fn upgraded(
    name: &str,
    members: &Membership,
    rules: &ConsumerRules,
    topics: Topics<'_>,
    now: Now,
) -> Result<ConsumerGroup, Refusal> {
    let refused = |why: &str| {
        let message =
            format!("Cannot upgrade classic group {name} to consumer group because {why}.");
        Refusal::new(ErrorCode::GroupIdNotFound, message)
    };
    if !rules.migration.upgrades() {
        return Err(refused("online upgrade is disabled"));
    }
    if members.protocol_type() != CONSUMER {
        return Err(refused("the group does not use the consumer embedded protocol"));
    }
    if members.len() > rules.members_max {
        return Err(refused("the group size exceeds the consumer group maximum size"));
    }
    ConsumerGroup::upgraded(members.generation(), members.hand_over(), topics, now).ok_or_else(
        || refused("the embedded consumer protocol is malformed, or of an assignor of its own"),
    )
}

fn no_group(request: &ConsumerGroupHeartbeatRequest) -> Refusal {
    let name = &request.group_id;
    let kind = if request.member_epoch < 0 { "Group" } else { "Consumer group" };
    Refusal::new(ErrorCode::GroupIdNotFound, format!("{kind} {name} not found."))
}
