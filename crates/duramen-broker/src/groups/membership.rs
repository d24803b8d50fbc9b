//! # Room card: membership
//!
//! Purpose:    one consumer group of the classic protocol: who is a member of which generation.
//! Owns:       the states of a rebalance, its timeouts, waiting `JoinGroup`s and `SyncGroup`s, the assignments.
//! Interface:  [`Membership`]: `join`, `sync`, `heartbeat`, `leave`, `check_commit`, `on_stored`, `on_time`.
//! Invariants: a waiting request is answered once; no two generations have one number; an assignment is told to
//!             members only after it was stored; a request of an older generation changes nothing.
//! Never:      whether the group exists, is authorised, or is coordinated here; committed offsets.
//! Tests:      `tests.rs`, by scenario.
//! Start at:   [`Membership::join`], then `prepare`, `complete_join`, [`Membership::sync`].
//!
//! A generation is made in two steps. While the group is *preparing*, members hand in what they know, and wait. When
//! all have, or time is up, all learn the number of the new generation, and the leader learns who is in it. While the
//! group is *completing*, members ask for their assignment, and wait for the leader to hand it in. Then it is *stable*.
//! Eager and cooperative consumers differ in what they give up meanwhile, which the coordinator need not know.

use std::collections::BTreeMap;
use std::mem;
use std::ops::RangeInclusive;

use bytes::Bytes;
use duramen_protocol::ErrorCode;
use duramen_protocol::messages::describe_groups::{DescribedGroup, DescribedGroupMember};
use duramen_protocol::messages::join_group::JoinGroupResponseMember;
use duramen_protocol::messages::leave_group::MemberIdentity;
use duramen_protocol::messages::{
    JoinGroupRequest, JoinGroupResponse, SyncGroupRequest, SyncGroupResponse,
};
use duramen_protocol::wire::Uuid;

use super::roster::{Member, Roster};
use crate::event::RequestKey;
use crate::limits::NEW_MEMBER_WAITS_US;

/// What an operator sets for all groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    /// How long a group that was empty waits for more members.
    pub initial_delay_ms: i32,
    /// The session timeouts that members may ask for.
    pub session_timeout_ms: RangeInclusive<i32>,
    /// How many members a group may have.
    pub members_max: usize,
}

/// Where a group stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// No members.
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
    /// Kafka's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Empty => "Empty",
            Self::PreparingRebalance => "PreparingRebalance",
            Self::CompletingRebalance => "CompletingRebalance",
            Self::Stable => "Stable",
            Self::Dead => "Dead",
        }
    }
}

/// Who asks to join.
#[derive(Clone, Debug)]
pub struct Caller {
    /// The request, until it is answered.
    pub key: RequestKey,
    /// Its client id.
    pub client_id: String,
    /// Its address.
    pub client_host: String,
    /// Bits that no other caller gets: they make a new member's id.
    pub fresh: Uuid,
}

/// The number of an [`Effect::Store`].
pub type Ticket = u64;

/// What follows from what happened.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Answer this `JoinGroup`.
    Joined(RequestKey, JoinGroupResponse),
    /// Answer this `SyncGroup`.
    Synced(RequestKey, SyncGroupResponse),
    /// Store the group, then call [`Membership::on_stored`].
    Store(Ticket, Stored),
}

/// What must survive of a group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stored {
    /// What kind of group: `consumer`, `connect`.
    pub protocol_type: String,
    /// The generation's number.
    pub generation: i32,
    /// The protocol that was chosen; none without members.
    pub protocol: Option<String>,
    /// The leader's id.
    pub leader: Option<String>,
    /// The members.
    pub members: Vec<StoredMember>,
}

/// One member in [`Stored`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoredMember {
    /// Its id.
    pub id: String,
    /// Its static name.
    pub instance: Option<String>,
    /// Its client's id.
    pub client_id: String,
    /// Its client's address.
    pub client_host: String,
    /// How long it may be silent.
    pub session_timeout_ms: i32,
    /// How long it may take to join again.
    pub rebalance_timeout_ms: i32,
    /// Its metadata under the chosen protocol.
    pub subscription: Bytes,
    /// What was assigned to it.
    pub assignment: Bytes,
}

/// What is done when something is stored.
#[derive(Clone, Debug)]
enum Awaited {
    /// The assignments of a generation are handed out.
    Assignments { generation: i32, assignments: BTreeMap<String, Bytes> },
    /// A static member that came back under a new id is told so, or is what it was.
    Return(Box<Return>),
}

/// A static member that came back under a new id, and how it was before.
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
#[derive(Clone, Debug)]
pub struct Membership {
    state: State,
    generation: i32,
    protocol_type: String,
    protocol: Option<String>,
    roster: Roster,
    /// Ids that were given to members which have not joined by them yet, and until when they may.
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

/// What passes at least between two looks at a group that nobody joins, whatever timeout its members ask for.
const PAUSE_US: u64 = 1_000_000;

fn us(ms: i32) -> u64 {
    u64::try_from(ms).unwrap_or(0) * 1000
}

/// The usual text of a UUID, which member ids end with.
fn hyphenated(id: Uuid) -> String {
    let hex = format!("{:032x}", id.as_u128());
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
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

fn protocols(request: &JoinGroupRequest) -> Vec<(String, Bytes)> {
    request.protocols.iter().map(|it| (it.name.clone(), it.metadata.clone())).collect()
}

/// Version 0 of `JoinGroup` knows one timeout only.
fn rebalance_timeout_ms(request: &JoinGroupRequest) -> i32 {
    match request.rebalance_timeout_ms {
        -1 => request.session_timeout_ms,
        ms => ms,
    }
}

impl Default for Membership {
    fn default() -> Self {
        Self {
            state: State::Empty,
            generation: 0,
            protocol_type: String::new(),
            protocol: None,
            roster: Roster::default(),
            promised: BTreeMap::new(),
            initial_delay_us: 0,
            gathering: None,
            join_due_us: None,
            sync_due_us: None,
            awaited: BTreeMap::new(),
            next_ticket: 0,
            now_us: 0,
            effects: Vec::new(),
        }
    }
}

/// What is asked from outside.
impl Membership {
    /// The group as it was stored. Its members are given their session timeouts anew.
    pub fn load(stored: Stored, now_us: u64) -> Self {
        let mut group = Self {
            state: if stored.members.is_empty() { State::Empty } else { State::Stable },
            generation: stored.generation,
            protocol_type: stored.protocol_type,
            now_us,
            ..Self::default()
        };
        for member in stored.members {
            let protocol = stored.protocol.clone().unwrap_or_default();
            let loaded = Member {
                instance: member.instance,
                client_id: member.client_id,
                client_host: member.client_host,
                session_timeout_ms: member.session_timeout_ms,
                rebalance_timeout_ms: member.rebalance_timeout_ms,
                protocols: vec![(protocol, member.subscription)],
                assignment: member.assignment,
                joining: None,
                syncing: None,
                is_new: false,
                owes_sync: false,
                expires_us: Some(now_us + us(member.session_timeout_ms)),
            };
            group.roster.insert(member.id, loaded);
        }
        if let Some(leader) = &stored.leader {
            group.roster.restore_leader(leader);
        }
        group.protocol = stored.protocol;
        group
    }

    /// Where it stands.
    pub fn state(&self) -> State {
        self.state
    }

    /// The number of the generation.
    pub fn generation(&self) -> i32 {
        self.generation
    }

    /// What follows from all that happened since the last call.
    pub fn take_effects(&mut self) -> Vec<Effect> {
        mem::take(&mut self.effects)
    }

    /// When [`Self::on_time`] is due next, if nothing else happens before. Looks at every member.
    pub fn deadline_us(&self) -> Option<u64> {
        let sessions = self.roster.iter().filter_map(|(_, member)| member.expires_us);
        let phases = self.join_due_us.into_iter().chain(self.sync_due_us);
        sessions.chain(phases).chain(self.promised.values().copied()).min()
    }

    /// A `JoinGroup` of this version. It is answered by an effect.
    pub fn join(
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

    /// A `SyncGroup`. It is answered by an effect.
    pub fn sync(&mut self, key: RequestKey, request: &SyncGroupRequest, now_us: u64) {
        self.now_us = now_us;
        if let Err(code) = self.take_sync(key, request) {
            self.effects.push(Effect::Synced(key, refused_sync(code)));
        }
    }

    /// A `Heartbeat`.
    pub fn heartbeat(
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

    /// A `LeaveGroup`: a result for each of its members, in order.
    pub fn leave(
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

    /// Whether offsets may be committed by whoever says that it is this member of this generation. Without members
    /// anybody may who does not claim to be one: tools, and consumers that choose partitions themselves.
    pub fn check_commit(
        &mut self,
        id: &str,
        instance: Option<&str>,
        generation: i32,
        now_us: u64,
    ) -> Result<(), ErrorCode> {
        self.now_us = now_us;
        if self.state == State::Dead {
            return Err(ErrorCode::CoordinatorNotAvailable);
        }
        if generation < 0 && self.state == State::Empty {
            return Ok(());
        }
        self.check(id, instance, generation)?;
        if self.state == State::CompletingRebalance {
            return Err(ErrorCode::RebalanceInProgress);
        }
        self.beat(id);
        Ok(())
    }

    /// What an [`Effect::Store`] asked for is durable, or is known not to be.
    pub fn on_stored(&mut self, ticket: Ticket, result: Result<(), ErrorCode>, now_us: u64) {
        self.now_us = now_us;
        match self.awaited.remove(&ticket) {
            Some(Awaited::Assignments { generation, assignments }) => {
                // A rebalance may have begun since; then its members were told so.
                if self.state != State::CompletingRebalance || self.generation != generation {
                    return;
                }
                match result {
                    Ok(()) => {
                        self.assign(assignments, ErrorCode::None);
                        self.state = State::Stable;
                    }
                    Err(code) => {
                        self.assign(BTreeMap::new(), code);
                        self.prepare();
                    }
                }
            }
            Some(Awaited::Return(returned)) => self.on_return_stored(*returned, result),
            None => {}
        }
    }

    /// Time has passed: whatever is due by now happens.
    pub fn on_time(&mut self, now_us: u64) {
        self.now_us = now_us;
        let is_due = |due: Option<u64>| due.is_some_and(|due| due <= now_us);
        self.promised.retain(|_, expires_us| *expires_us > now_us);
        self.complete_if_all_joined();
        for id in self.roster.ids(|member| is_due(member.expires_us)) {
            // What happened to those before it may have moved its own deadline.
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

    /// Deletes the group, if nobody is in it.
    pub fn delete(&mut self) -> Result<(), ErrorCode> {
        match self.state {
            State::Empty => {
                self.end(ErrorCode::UnknownMemberId);
                Ok(())
            }
            State::Dead => Err(ErrorCode::GroupIdNotFound),
            _ => Err(ErrorCode::NonEmptyGroup),
        }
    }

    /// The group ends here. Requests that wait are answered with `code`.
    pub fn end(&mut self, code: ErrorCode) {
        for id in self.roster.ids(|_| true) {
            self.drop_member(&id, code);
        }
        self.promised.clear();
        self.awaited.clear();
        (self.gathering, self.join_due_us, self.sync_due_us) = (None, None, None);
        self.state = State::Dead;
    }

    /// What `DescribeGroups` tells. Protocol, metadata and assignments are told of a stable group only.
    pub fn describe(&self, group_id: &str) -> DescribedGroup {
        let protocol = self.protocol.as_deref().filter(|_| self.state == State::Stable);
        let member = |(id, member): (&String, &Member)| DescribedGroupMember {
            member_id: id.clone(),
            group_instance_id: member.instance.clone(),
            client_id: member.client_id.clone(),
            client_host: member.client_host.clone(),
            member_metadata: protocol.map(|it| member.metadata(it)).unwrap_or_default(),
            member_assignment: protocol.map(|_| member.assignment.clone()).unwrap_or_default(),
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

/// Joining.
impl Membership {
    fn admit(
        &mut self,
        rules: &Rules,
        version: i16,
        caller: Caller,
        request: &JoinGroupRequest,
    ) -> Result<(), ErrorCode> {
        let id = request.member_id.as_str();
        if !rules.session_timeout_ms.contains(&request.session_timeout_ms) {
            return Err(ErrorCode::InvalidSessionTimeout);
        }
        if !self.has_room_for(id, rules.members_max) {
            self.drop_member(id, ErrorCode::GroupMaxSizeReached);
            self.complete_if_all_joined();
            return Err(ErrorCode::GroupMaxSizeReached);
        }
        if self.state == State::Dead {
            return Err(ErrorCode::CoordinatorNotAvailable);
        }
        if !self.takes(request) {
            return Err(ErrorCode::InconsistentGroupProtocol);
        }
        if !id.is_empty() {
            return self.admit_known(caller, request);
        }
        let instance = request.group_instance_id.as_ref();
        let id = format!("{}-{}", instance.unwrap_or(&caller.client_id), hyphenated(caller.fresh));
        match instance.map(|instance| self.roster.named(instance).cloned()) {
            Some(Some(before)) => self.admit_return(version, &caller, request, &before, id),
            None if version >= 4 => {
                // A client that never hears its id would join again and again, and every time leave a member behind
                // that the others wait for. So it is a member only when it has said its id.
                let refused = refused_join(&id, ErrorCode::MemberIdRequired);
                self.effects.push(Effect::Joined(caller.key, refused));
                self.promised.insert(id, self.now_us + us(request.session_timeout_ms));
            }
            _ => self.add(id, caller, request),
        }
        Ok(())
    }

    /// Whoever is counted as a member already has room; while members join anew, those that came first.
    fn has_room_for(&self, id: &str, members_max: usize) -> bool {
        match self.state {
            State::Empty | State::Dead => true,
            State::PreparingRebalance => {
                let waits = |member: &Member| member.joining.is_some();
                self.roster.get(id).is_some_and(waits)
                    || self.roster.iter().filter(|(_, it)| waits(it)).count() < members_max
            }
            State::CompletingRebalance | State::Stable => {
                self.roster.contains(id) || self.roster.len() < members_max
            }
        }
    }

    /// Whether the group goes on having a protocol that all know.
    fn takes(&self, request: &JoinGroupRequest) -> bool {
        if self.state == State::Empty {
            return !request.protocol_type.is_empty() && !request.protocols.is_empty();
        }
        self.protocol_type == request.protocol_type
            && request.protocols.iter().any(|protocol| self.roster.all_know(&protocol.name))
    }

    fn add(&mut self, id: String, caller: Caller, request: &JoinGroupRequest) {
        if let Some(gathering) = &mut self.gathering {
            gathering.has_grown = true;
        }
        if self.roster.is_empty() {
            self.protocol_type.clone_from(&request.protocol_type);
        }
        let member = Member {
            instance: request.group_instance_id.clone(),
            client_id: caller.client_id,
            client_host: caller.client_host,
            session_timeout_ms: request.session_timeout_ms,
            rebalance_timeout_ms: rebalance_timeout_ms(request),
            protocols: protocols(request),
            assignment: Bytes::new(),
            joining: Some(caller.key),
            syncing: None,
            is_new: true,
            owes_sync: false,
            // It cannot send heartbeats, and may be gone: it is not waited for without end.
            expires_us: Some(self.now_us + NEW_MEMBER_WAITS_US),
        };
        self.roster.insert(id, member);
        self.rebalance();
    }

    /// A request by the id of a member.
    fn admit_known(&mut self, caller: Caller, request: &JoinGroupRequest) -> Result<(), ErrorCode> {
        let (id, instance) = (&request.member_id, request.group_instance_id.as_deref());
        // Ids are promised to members without a static name only.
        if instance.is_none() && self.promised.remove(id).is_some() {
            self.add(id.clone(), caller, request);
            return Ok(());
        }
        self.roster.check(id, instance)?;
        let member = self.roster.get(id).expect("it was checked");
        let is_same = member.protocols == protocols(request);
        match self.state {
            State::Empty | State::Dead => return Err(ErrorCode::UnknownMemberId),
            // The answer was lost. A leader of a stable group, however, wants a rebalance by joining.
            State::CompletingRebalance if is_same => self.repeat(caller.key, id),
            State::Stable if is_same && !self.roster.is_leader(id) => self.repeat(caller.key, id),
            _ => {
                self.update(id, caller.key, request);
                self.rebalance();
            }
        }
        Ok(())
    }

    fn repeat(&mut self, key: RequestKey, id: &str) {
        self.effects.push(Effect::Joined(key, self.joined(id)));
    }

    fn update(&mut self, id: &str, key: RequestKey, request: &JoinGroupRequest) {
        let member = self.roster.get_mut(id).expect("only members are updated");
        member.protocols = protocols(request);
        member.session_timeout_ms = request.session_timeout_ms;
        member.rebalance_timeout_ms = rebalance_timeout_ms(request);
        if let Some(older) = member.joining.replace(key) {
            // The client gave it up; its connection still waits for an answer.
            let refused = refused_join(id, ErrorCode::RebalanceInProgress);
            self.effects.push(Effect::Joined(older, refused));
        }
    }

    /// A static member comes back without its id, which somebody else may still use: from now on in vain.
    fn admit_return(
        &mut self,
        version: i16,
        caller: &Caller,
        request: &JoinGroupRequest,
        before_id: &str,
        id: String,
    ) {
        let old_leader = self.roster.leader().cloned();
        self.refuse_waiting(before_id, ErrorCode::FencedInstanceId);
        let before = self.roster.get(before_id).expect("static names are members'").clone();
        self.roster.rename(before_id, id.clone());
        self.update(&id, caller.key, request);
        self.roster.get_mut(&id).expect("it was renamed").is_new = false;
        self.beat(&id);
        let keeps_protocol = self.roster.choose_protocol() == self.protocol;
        if self.state != State::Stable || !keeps_protocol {
            // A leader that is at work on assignments knows the old id only, so these are in vain, too.
            self.rebalance();
            return;
        }
        let mut answer = self.joined(&id);
        if version < 9 {
            // It must not assign anew, and can only be told so by hiding that it leads.
            answer.leader = old_leader.unwrap_or_default();
            answer.members = Vec::new();
        } else {
            answer.skip_assignment = self.roster.is_leader(&id);
        }
        let stored = self.stored(&BTreeMap::new());
        let before_id = before_id.to_owned();
        let returned = Return { key: caller.key, id, answer, before_id, before };
        self.store(stored, Some(Awaited::Return(Box::new(returned))));
    }

    fn on_return_stored(&mut self, returned: Return, result: Result<(), ErrorCode>) {
        let Return { key, id, answer, before_id, before } = returned;
        let waits = |member: &&mut Member| member.joining == Some(key);
        let Some(member) = self.roster.get_mut(&id).filter(waits) else { return };
        if self.state != State::Stable {
            return; // The rebalance that began since will answer.
        }
        if let Err(code) = result {
            *member = before;
            self.effects.push(Effect::Joined(key, refused_join(&before_id, code)));
            self.beat(&id);
            self.roster.rename(&id, before_id);
            return;
        }
        member.joining = None;
        self.effects.push(Effect::Joined(key, answer));
        self.beat(&id);
    }

    fn joined(&self, id: &str) -> JoinGroupResponse {
        let protocol = self.protocol.as_deref().unwrap_or_default();
        let member = |(id, member): (&String, &Member)| JoinGroupResponseMember {
            member_id: id.clone(),
            group_instance_id: member.instance.clone(),
            metadata: member.metadata(protocol),
        };
        let is_leader = self.roster.is_leader(id);
        let members = self.roster.iter().filter(|_| is_leader).map(member).collect();
        JoinGroupResponse {
            generation_id: self.generation,
            protocol_type: Some(self.protocol_type.clone()),
            protocol_name: self.protocol.clone(),
            leader: self.roster.leader().cloned().unwrap_or_default(),
            member_id: id.to_owned(),
            members,
            ..JoinGroupResponse::default()
        }
    }
}

/// The course of a rebalance.
impl Membership {
    /// Members came or went: begins a rebalance, or perhaps ends the one that runs.
    fn rebalance(&mut self) {
        match self.state {
            State::PreparingRebalance => self.complete_if_all_joined(),
            State::Empty | State::CompletingRebalance | State::Stable => self.prepare(),
            State::Dead => {}
        }
    }

    fn prepare(&mut self) {
        if self.state == State::CompletingRebalance {
            self.assign(BTreeMap::new(), ErrorCode::RebalanceInProgress);
        }
        self.sync_due_us = None;
        let timeout_us = us(self.roster.rebalance_timeout_ms());
        if mem::replace(&mut self.state, State::PreparingRebalance) == State::Empty {
            let delay_us = self.initial_delay_us;
            let left_us = timeout_us.saturating_sub(delay_us);
            self.gathering =
                Some(Gathering { delay_us, step_us: delay_us, left_us, has_grown: false });
            self.join_due_us = Some(self.now_us + delay_us);
            return;
        }
        self.join_due_us = Some(self.now_us + timeout_us);
        self.complete_if_all_joined();
    }

    fn complete_if_all_joined(&mut self) {
        let is_waiting = self.state == State::PreparingRebalance && self.gathering.is_none();
        let all_joined = self.roster.iter().all(|(_, member)| member.joining.is_some());
        if is_waiting && all_joined && self.promised.is_empty() {
            self.complete_join();
        }
    }

    fn on_join_due(&mut self) {
        match &mut self.gathering {
            Some(gathering) if gathering.has_grown && gathering.left_us > 0 => {
                let step_us = gathering.delay_us.min(gathering.left_us);
                gathering.left_us = gathering.left_us.saturating_sub(gathering.step_us);
                gathering.step_us = step_us;
                gathering.has_grown = false;
                self.join_due_us = Some(self.now_us + step_us);
            }
            _ => self.complete_join(),
        }
    }

    /// Those that have joined make the next generation, and static members that may yet come back.
    fn complete_join(&mut self) {
        for id in self.roster.ids(|it| it.joining.is_none() && it.instance.is_none()) {
            self.drop_member(&id, ErrorCode::UnknownMemberId);
        }
        let timeout_us = us(self.roster.rebalance_timeout_ms());
        if !self.roster.is_empty() && !self.roster.elect() {
            // Only static members, and none is back. Sooner or later their sessions end.
            self.join_due_us = Some(self.now_us + timeout_us.max(PAUSE_US));
            return;
        }
        (self.gathering, self.join_due_us) = (None, None);
        self.generation = self.generation.checked_add(1).unwrap_or(1);
        self.protocol = self.roster.choose_protocol();
        if self.roster.is_empty() {
            self.state = State::Empty;
            let stored = self.stored(&BTreeMap::new());
            self.store(stored, None);
            return;
        }
        self.state = State::CompletingRebalance;
        self.sync_due_us = Some(self.now_us + timeout_us);
        for id in self.roster.ids(|_| true) {
            let answer = self.joined(&id);
            let member = self.roster.get_mut(&id).expect("it is listed");
            (member.is_new, member.owes_sync) = (false, true);
            if let Some(key) = member.joining.take() {
                self.effects.push(Effect::Joined(key, answer));
            }
            self.beat(&id);
        }
    }

    fn take_sync(&mut self, key: RequestKey, request: &SyncGroupRequest) -> Result<(), ErrorCode> {
        let id = request.member_id.as_str();
        self.check(id, request.group_instance_id.as_deref(), request.generation_id)?;
        let differs = |asked: &Option<String>, is: Option<&str>| {
            asked.as_deref().is_some_and(|asked| is.is_some_and(|is| is != asked))
        };
        if differs(&request.protocol_type, Some(&self.protocol_type))
            || differs(&request.protocol_name, self.protocol.as_deref())
        {
            return Err(ErrorCode::InconsistentGroupProtocol);
        }
        match self.state {
            State::Empty | State::Dead => return Err(ErrorCode::UnknownMemberId),
            State::PreparingRebalance => return Err(ErrorCode::RebalanceInProgress),
            State::CompletingRebalance | State::Stable => {}
        }
        let member = self.roster.get_mut(id).expect("it was checked");
        member.owes_sync = false;
        if self.state == State::Stable {
            let assignment = member.assignment.clone();
            self.effects.push(Effect::Synced(key, self.synced(assignment)));
        } else if let Some(older) = member.syncing.replace(key) {
            let refused = refused_sync(ErrorCode::RebalanceInProgress);
            self.effects.push(Effect::Synced(older, refused));
        }
        if self.roster.iter().all(|(_, member)| !member.owes_sync) {
            self.sync_due_us = None;
        }
        if self.state == State::CompletingRebalance && self.roster.is_leader(id) {
            self.store_assignments(request);
        }
        Ok(())
    }

    /// Stores what the leader decided, once a generation: it may ask again.
    fn store_assignments(&mut self, request: &SyncGroupRequest) {
        let generation = self.generation;
        let is_same = |it: &Awaited| matches!(it, Awaited::Assignments { generation: g, .. } if *g == generation);
        if self.awaited.values().any(is_same) {
            return;
        }
        let given = request.assignments.iter();
        let assignments = given.map(|it| (it.member_id.clone(), it.assignment.clone())).collect();
        let stored = self.stored(&assignments);
        self.store(stored, Some(Awaited::Assignments { generation, assignments }));
    }

    fn synced(&self, assignment: Bytes) -> SyncGroupResponse {
        SyncGroupResponse {
            protocol_type: Some(self.protocol_type.clone()),
            protocol_name: self.protocol.clone(),
            assignment,
            ..SyncGroupResponse::default()
        }
    }

    /// Gives every member its assignment, or none, and answers those that wait for it.
    fn assign(&mut self, mut assignments: BTreeMap<String, Bytes>, code: ErrorCode) {
        for id in self.roster.ids(|_| true) {
            let assignment = assignments.remove(&id).unwrap_or_default();
            let answer = match code {
                ErrorCode::None => self.synced(assignment.clone()),
                code => refused_sync(code),
            };
            let member = self.roster.get_mut(&id).expect("it is listed");
            member.assignment = assignment;
            if let Some(key) = member.syncing.take() {
                self.effects.push(Effect::Synced(key, answer));
                // While it waited, its session did not run.
                self.beat(&id);
            }
        }
    }
}

/// What all need.
impl Membership {
    fn check(&self, id: &str, instance: Option<&str>, generation: i32) -> Result<(), ErrorCode> {
        if self.state == State::Dead {
            return Err(ErrorCode::CoordinatorNotAvailable);
        }
        self.roster.check(id, instance)?;
        if generation == self.generation { Ok(()) } else { Err(ErrorCode::IllegalGeneration) }
    }

    /// A sign of life.
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

    /// What is stored now, with these assignments for members that have none yet.
    fn stored(&self, assignments: &BTreeMap<String, Bytes>) -> Stored {
        let protocol = self.protocol.as_deref().unwrap_or_default();
        let member = |(id, member): (&String, &Member)| StoredMember {
            id: id.clone(),
            instance: member.instance.clone(),
            client_id: member.client_id.clone(),
            client_host: member.client_host.clone(),
            session_timeout_ms: member.session_timeout_ms,
            rebalance_timeout_ms: member.rebalance_timeout_ms,
            subscription: member.metadata(protocol),
            assignment: assignments.get(id).unwrap_or(&member.assignment).clone(),
        };
        Stored {
            protocol_type: self.protocol_type.clone(),
            generation: self.generation,
            protocol: self.protocol.clone(),
            leader: self.roster.leader().cloned(),
            members: self.roster.iter().map(member).collect(),
        }
    }

    fn store(&mut self, stored: Stored, awaited: Option<Awaited>) {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.awaited.extend(awaited.map(|awaited| (ticket, awaited)));
        self.effects.push(Effect::Store(ticket, stored));
    }
}

#[cfg(test)]
mod tests;
