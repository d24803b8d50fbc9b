//! # Room card: membership
//!
//! Purpose:    one consumer group of the classic protocol: its members and its generations.
//! Owns:       the states of a rebalance, its timeouts, waiting `JoinGroup`s and `SyncGroup`s, the assignments.
//! Interface:  [`Membership`]: `join`, `sync`, `heartbeat`, `leave`, `check_commit`, `on_stored`, `on_time`.
//! Invariants: each waiting request gets one answer; no two generations have one number; members get an assignment only
//!             after it was stored; a request of an older generation changes nothing.
//! Never:      the existence, authorisation and coordinator of the group; committed offsets.
//! Tests:      `tests.rs`, by scenario.
//! Start at:   [`Membership::join`], `membership/joining.rs`; then `prepare` and `complete_join` in
//!             `membership/rebalance.rs`; [`Membership::sync`].
//!
//! A rebalance makes a generation in two steps. While the group is *preparing*, members send their metadata, and wait.
//! When all have sent it, or time is up, all get the number of the new generation, and the leader gets the list of
//! members. While the group is *completing*, members ask for their assignment, and wait for the leader to send it. Then
//! the group is *stable*. Eager and cooperative consumers revoke different partitions meanwhile, which the coordinator
//! need not know.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;

use bytes::Bytes;
use duramen_protocol::ErrorCode;
use duramen_protocol::messages::describe_groups::{DescribedGroup, DescribedGroupMember};
use duramen_protocol::messages::leave_group::MemberIdentity;
use duramen_protocol::messages::{
    JoinGroupRequest, JoinGroupResponse, SyncGroupRequest, SyncGroupResponse,
};
use duramen_protocol::wire::{Decoder, Message, Uuid};
use duramen_storage::sabotage::{self, Bug};

use super::records::{GroupMetadataValue, MemberMetadata};
use super::roster::{Member, Roster};
use super::rules::{Rules, us};
use crate::access::RequestContext;
use crate::event::RequestKey;

mod inspection;
mod joining;
mod rebalance;

/// Where a group stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum State {
    /// No members.
    #[default]
    Empty,
    /// Members join the next generation.
    PreparingRebalance,
    /// The generation waits for the leader's assignment.
    CompletingRebalance,
    /// Every member can know its assignment.
    Stable,
    /// The group is deleted, or coordinated elsewhere.
    Dead,
}

impl State {
    /// Returns Kafka's name.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Empty => "Empty",
            Self::PreparingRebalance => "PreparingRebalance",
            Self::CompletingRebalance => "CompletingRebalance",
            Self::Stable => "Stable",
            Self::Dead => "Dead",
        }
    }
}

/// Client that asks to join.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    /// The request, until it is answered.
    pub key: RequestKey,
    /// Its client, of whom access control asks.
    pub context: RequestContext,
    /// Its client id.
    pub client_id: String,
    /// Its address.
    pub client_host: String,
    /// Bits that no other caller gets: they make a new member's id.
    pub fresh: Uuid,
}

/// The number of an [`Effect::Store`].
pub(crate) type Ticket = u64;

/// Effects of requests and time.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Effect {
    /// Answer this `JoinGroup`.
    Joined(RequestKey, JoinGroupResponse),
    /// Answer this `SyncGroup`.
    Synced(RequestKey, SyncGroupResponse),
    /// Store the group, then call [`Membership::on_stored`]. The coordinator knows the time of the group's state.
    Store(Ticket, GroupMetadataValue),
}

/// A member that goes on in a group of the consumer protocol, with all protocols that it knows.
#[derive(Clone, Debug)]
pub(crate) struct HandedOver {
    pub stored: MemberMetadata,
    pub protocols: Vec<(String, Bytes)>,
}

/// Act that follows once a change is stored.
#[derive(Clone, Debug)]
enum Awaited {
    /// The assignments of a generation are handed out.
    Assignments { generation: i32, assignments: BTreeMap<String, Bytes> },
    /// A static member that came back under a new id gets its answer, or goes back to its earlier state.
    Return(Box<Return>),
}

/// Static member that came back under a new id, and its former state.
#[derive(Clone, Debug)]
struct Return {
    key: RequestKey,
    id: String,
    answer: JoinGroupResponse,
    before_id: String,
    before: Member,
}

/// A rebalance of a group that was empty: it ends when the delay passes without a new member.
#[derive(Clone, Copy, Debug)]
struct Gathering {
    delay_us: u64,
    step_us: u64,
    left_us: u64,
    has_grown: bool,
}

/// One consumer group. All times are microseconds of one monotonic clock.
#[derive(Clone, Debug, Default)]
pub(crate) struct Membership {
    state: State,
    generation: i32,
    protocol_type: String,
    protocol: Option<String>,
    roster: Roster,
    /// Ids that were promised to clients that have not joined with them yet, and the end of each promise.
    promised: BTreeMap<String, u64>,
    initial_delay_us: u64,
    gathering: Option<Gathering>,
    join_due_us: Option<u64>,
    sync_due_us: Option<u64>,
    awaited: BTreeMap<Ticket, Awaited>,
    next_ticket: Ticket,
    now_us: u64,
    effects: Vec<Effect>,
}

fn refused_join(id: &str, code: ErrorCode) -> JoinGroupResponse {
    JoinGroupResponse {
        error_code: code.code(),
        member_id: id.to_owned(),
        ..JoinGroupResponse::default()
    }
}

fn refused_sync(code: ErrorCode) -> SyncGroupResponse {
    SyncGroupResponse { error_code: code.code(), ..SyncGroupResponse::default() }
}

/// Requests.
impl Membership {
    /// Builds the group from its stored state. Every member gets a new session timeout.
    pub(crate) fn load(stored: &GroupMetadataValue, now_us: u64) -> Self {
        let mut group = Self {
            state: if stored.members.is_empty() { State::Empty } else { State::Stable },
            generation: if sabotage::is(Bug::GenerationForgotten) { 0 } else { stored.generation },
            protocol_type: stored.protocol_type.clone(),
            protocol: stored.protocol.clone(),
            now_us,
            ..Self::default()
        };
        for member in &stored.members {
            let protocol = stored.protocol.clone().unwrap_or_default();
            let loaded = Member {
                instance: member.group_instance_id.clone(),
                client_id: member.client_id.clone(),
                client_host: member.client_host.clone(),
                session_timeout_ms: member.session_timeout,
                rebalance_timeout_ms: match member.rebalance_timeout {
                    -1 => member.session_timeout, // The first version knew one timeout only.
                    ms => ms,
                },
                protocols: vec![(protocol, member.subscription.clone())],
                assignment: member.assignment.clone(),
                joining: None,
                syncing: None,
                is_new: false,
                owes_sync: false,
                expires_us: Some(now_us + us(member.session_timeout)),
            };
            group.roster.insert(member.member_id.clone(), loaded);
        }
        if let Some(leader) = &stored.leader {
            group.roster.restore_leader(leader);
        }
        group
    }

    /// Begins a rebalance if the group has more members than it may have. Members that join again while there is room
    /// stay. Until then all may commit.
    pub(crate) fn shrink_to(&mut self, members_max: usize) {
        if self.roster.len() > members_max {
            self.prepare();
        }
    }

    /// Returns the group's state.
    pub(crate) fn state(&self) -> State {
        self.state
    }

    /// Returns the number of the generation.
    pub(crate) fn generation(&self) -> i32 {
        self.generation
    }

    /// Returns the kind of group; empty if the group never had a member.
    pub(crate) fn protocol_type(&self) -> &str {
        &self.protocol_type
    }

    /// Tells whether the group has no members, and no ids promised to new ones.
    pub(crate) fn is_idle(&self) -> bool {
        self.state == State::Empty && self.promised.is_empty()
    }

    /// Returns the time at which the group removes a member, unless the member sends something before.
    pub(crate) fn expires_us(&self, id: &str) -> Option<u64> {
        self.roster.get(id)?.expires_us
    }

    /// Returns the topics that the members of this generation subscribe to, if they are consumers and encode their
    /// subscriptions as Kafka's do.
    pub(crate) fn subscribed_topics(&self) -> Option<BTreeSet<String>> {
        if self.roster.is_empty() {
            return Some(BTreeSet::new());
        }
        let protocol = self.protocol.as_deref()?;
        let mut topics = BTreeSet::new();
        for (_, member) in self.roster.iter() {
            // Every version begins like the first.
            let mut d = Decoder::new(member.metadata(protocol));
            d.i16().ok()?;
            topics.extend(Subscription::decode(&mut d, 0).ok()?.topics);
        }
        Some(topics)
    }

    /// Returns the effects of everything since the last call.
    pub(crate) fn take_effects(&mut self) -> Vec<Effect> {
        mem::take(&mut self.effects)
    }

    /// Returns the time at which [`Self::on_time`] is due next, if nothing else happens before. Looks at every member.
    pub(crate) fn deadline_us(&self) -> Option<u64> {
        let sessions = self.roster.iter().filter_map(|(_, member)| member.expires_us);
        let phases = self.join_due_us.into_iter().chain(self.sync_due_us);
        sessions.chain(phases).chain(self.promised.values().copied()).min()
    }

    /// Handles a `JoinGroup` of this version, and answers it by an effect.
    pub(crate) fn join(
        &mut self,
        rules: &Rules,
        version: i16,
        caller: Caller,
        request: &JoinGroupRequest,
        now_us: u64,
    ) {
        self.now_us = now_us;
        self.initial_delay_us = us(rules.initial_delay_ms);
        let key = caller.key;
        if let Err(code) = self.admit(rules, version, caller, request) {
            let has_id = code != ErrorCode::GroupMaxSizeReached;
            let id = if has_id { request.member_id.as_str() } else { "" };
            self.effects.push(Effect::Joined(key, refused_join(id, code)));
        }
    }

    /// Handles a `SyncGroup`, and answers it by an effect.
    pub(crate) fn sync(&mut self, key: RequestKey, request: &SyncGroupRequest, now_us: u64) {
        self.now_us = now_us;
        if let Err(code) = self.take_sync(key, request) {
            self.effects.push(Effect::Synced(key, refused_sync(code)));
        }
    }

    /// Handles a `Heartbeat`.
    pub(crate) fn heartbeat(
        &mut self,
        id: &str,
        instance: Option<&str>,
        generation: i32,
        now_us: u64,
    ) -> Result<(), ErrorCode> {
        self.now_us = now_us;
        self.check(id, instance, generation)?;
        self.beat(id);
        match self.state {
            State::PreparingRebalance => Err(ErrorCode::RebalanceInProgress),
            _ => Ok(()),
        }
    }

    /// Handles a `LeaveGroup`: returns a result for each of its members, in order.
    pub(crate) fn leave(
        &mut self,
        leaving: &[MemberIdentity],
        now_us: u64,
    ) -> Result<Vec<Result<(), ErrorCode>>, ErrorCode> {
        self.now_us = now_us;
        if self.state == State::Dead {
            return Err(ErrorCode::CoordinatorNotAvailable);
        }
        let mut has_left = false;
        let results = leaving.iter().map(|member| -> Result<(), ErrorCode> {
            let instance = member.group_instance_id.as_deref();
            if self.promised.remove(&member.member_id).is_some() {
                return Ok(());
            }
            // An operator removes static members by their names, without knowing their ids.
            let id = match instance.and_then(|instance| self.roster.named(instance)) {
                Some(named) if member.member_id.is_empty() => named.clone(),
                _ => member.member_id.clone(),
            };
            self.roster.check(&id, instance)?;
            self.drop_member(&id, ErrorCode::UnknownMemberId);
            has_left = true;
            Ok(())
        });
        let results = results.collect();
        if has_left {
            self.rebalance();
        } else {
            self.complete_if_all_joined();
        }
        Ok(results)
    }

    /// Checks whether a client that gives this member id and generation may commit offsets. In a group without members,
    /// a client that claims no membership may: tools, and consumers that choose partitions themselves.
    pub(crate) fn check_commit(
        &mut self,
        id: &str,
        instance: Option<&str>,
        generation: i32,
        is_transactional: bool,
        now_us: u64,
    ) -> Result<(), ErrorCode> {
        self.now_us = now_us;
        if self.state == State::Dead {
            return Err(ErrorCode::CoordinatorNotAvailable);
        }
        if generation < 0 && self.state == State::Empty {
            return Ok(());
        }
        // A producer need not name the member that it commits for, and its transaction may outlast a rebalance.
        if is_transactional && generation < 0 && id.is_empty() && instance.is_none() {
            return Ok(());
        }
        self.check(id, instance, generation)?;
        if self.state == State::CompletingRebalance && !is_transactional {
            return Err(ErrorCode::RebalanceInProgress);
        }
        self.beat(id);
        Ok(())
    }

    /// Takes the result of an [`Effect::Store`]: the change is durable, or is known not to be.
    pub(crate) fn on_stored(&mut self, ticket: Ticket, result: Result<(), ErrorCode>, now_us: u64) {
        self.now_us = now_us;
        match self.awaited.remove(&ticket) {
            Some(Awaited::Assignments { generation, assignments }) => {
                // A rebalance may have begun since; its members have got that answer already.
                if self.state != State::CompletingRebalance || self.generation != generation {
                    return;
                }
                assert!(!self.roster.is_empty(), "the generation {generation} has members");
                match result {
                    Ok(()) => {
                        self.assign(assignments);
                        self.state = State::Stable;
                    }
                    Err(code) => {
                        self.refuse_syncs(code);
                        self.prepare();
                    }
                }
            }
            Some(Awaited::Return(returned)) => self.on_return_stored(*returned, result),
            None => {}
        }
    }

    /// Does everything that is due by now.
    pub(crate) fn on_time(&mut self, now_us: u64) {
        self.now_us = now_us;
        let is_due = |due: Option<u64>| due.is_some_and(|due| due <= now_us);
        self.promised.retain(|_, expires_us| *expires_us > now_us);
        self.complete_if_all_joined();
        for id in self.roster.ids(|member| is_due(member.expires_us)) {
            // The loop's work on earlier members may have moved this member's deadline.
            let Some(member) = self.roster.get_mut(&id) else { continue };
            if !is_due(member.expires_us) {
                continue;
            }
            member.expires_us = None;
            let waits = member.joining.is_some() || member.syncing.is_some();
            if waits && !member.is_new {
                continue; // It could not send heartbeats. The answer sets the next deadline.
            }
            self.drop_member(&id, ErrorCode::UnknownMemberId);
            self.rebalance();
        }
        if is_due(self.join_due_us) {
            self.on_join_due();
        }
        if is_due(self.sync_due_us) {
            self.sync_due_us = None;
            for id in self.roster.ids(|member| member.owes_sync) {
                self.drop_member(&id, ErrorCode::UnknownMemberId);
            }
            self.prepare();
        }
    }

    /// Returns the members and their assignments, which stay when the group changes to the consumer protocol.
    pub(crate) fn hand_over(&self) -> Vec<HandedOver> {
        let member = |(id, member): (&String, &Member)| {
            // Before the group has chosen a protocol, the metadata under a member's first protocol serves as well.
            let first = || member.protocols.first().map(|(name, _)| name.clone());
            let protocol = self.protocol.clone().or_else(first).unwrap_or_default();
            let stored = member.stored(id, &protocol, &member.assignment);
            HandedOver { stored, protocols: member.protocols.clone() }
        };
        self.roster.iter().map(member).collect()
    }

    /// Returns the count of members.
    pub(crate) fn len(&self) -> usize {
        self.roster.len()
    }

    /// Ends the group, and answers its waiting requests with `code`.
    pub(crate) fn end(&mut self, code: ErrorCode) {
        for id in self.roster.ids(|_| true) {
            self.drop_member(&id, code);
        }
        self.promised.clear();
        self.awaited.clear();
        (self.gathering, self.join_due_us, self.sync_due_us) = (None, None, None);
        self.state = State::Dead;
    }

    /// Returns the group's description for `DescribeGroups`. Only a stable group shows its protocol and metadata.
    pub(crate) fn describe(&self, group_id: &str) -> DescribedGroup {
        let protocol = self.protocol.as_deref().filter(|_| self.state == State::Stable);
        let member = |(id, member): (&String, &Member)| DescribedGroupMember {
            member_id: id.clone(),
            group_instance_id: member.instance.clone(),
            client_id: member.client_id.clone(),
            client_host: member.client_host.clone(),
            member_metadata: protocol.map(|it| member.metadata(it)).unwrap_or_default(),
            member_assignment: member.assignment.clone(),
        };
        DescribedGroup {
            group_id: group_id.to_owned(),
            group_state: self.state.name().to_owned(),
            protocol_type: self.protocol_type.clone(),
            protocol_data: protocol.unwrap_or_default().to_owned(),
            members: self.roster.iter().map(member).collect(),
            ..DescribedGroup::default()
        }
    }
}

duramen_protocol::message! {
    /// Subscription of a consumer, which the consumer sends to the leader of its group.
    struct Subscription: versions 0..=0, flexible none {
        topics: Vec<String> [0..],
        user_data: Option<Bytes> [0.., nullable 0..],
    }
}

/// Helpers of all requests.
impl Membership {
    fn check(&self, id: &str, instance: Option<&str>, generation: i32) -> Result<(), ErrorCode> {
        if self.state == State::Dead {
            return Err(ErrorCode::CoordinatorNotAvailable);
        }
        self.roster.check(id, instance)?;
        let is_now = generation == self.generation || sabotage::is(Bug::OldGenerationTaken);
        if is_now { Ok(()) } else { Err(ErrorCode::IllegalGeneration) }
    }

    /// Extends a member's session, because the member sent something.
    fn beat(&mut self, id: &str) {
        if let Some(member) = self.roster.get_mut(id) {
            member.expires_us = Some(self.now_us + us(member.session_timeout_ms));
        }
    }

    fn refuse_waiting(&mut self, id: &str, code: ErrorCode) {
        let Some(member) = self.roster.get_mut(id) else { return };
        if let Some(key) = member.joining.take() {
            self.effects.push(Effect::Joined(key, refused_join(id, code)));
        }
        if let Some(key) = member.syncing.take() {
            self.effects.push(Effect::Synced(key, refused_sync(code)));
        }
    }

    fn drop_member(&mut self, id: &str, code: ErrorCode) {
        self.refuse_waiting(id, code);
        self.roster.remove(id);
    }

    /// Returns the state to store, with these assignments by member.
    fn stored(&self, assignments: &BTreeMap<String, Bytes>) -> GroupMetadataValue {
        let protocol = self.protocol.as_deref().unwrap_or_default();
        let member = |(id, member): (&String, &Member)| {
            member.stored(id, protocol, assignments.get(id).unwrap_or(&member.assignment))
        };
        GroupMetadataValue {
            protocol_type: self.protocol_type.clone(),
            generation: self.generation,
            protocol: self.protocol.clone(),
            leader: self.roster.leader().cloned(),
            members: self.roster.iter().map(member).collect(),
            ..GroupMetadataValue::default()
        }
    }

    fn store(&mut self, stored: GroupMetadataValue, awaited: Option<Awaited>) {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.awaited.extend(awaited.map(|awaited| (ticket, awaited)));
        self.effects.push(Effect::Store(ticket, stored));
    }
}

#[cfg(test)]
mod tests;
