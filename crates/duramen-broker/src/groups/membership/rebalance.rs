//! The course of a rebalance, from the first reason for one to the assignments.

use std::collections::BTreeMap;
use std::mem;

use bytes::Bytes;
use duramen_protocol::ErrorCode;
use duramen_protocol::messages::{SyncGroupRequest, SyncGroupResponse};
use duramen_storage::sabotage::{self, Bug};

use super::{Awaited, Effect, Gathering, Membership, State, refused_sync, us};
use crate::event::RequestKey;

/// Shortest time between two looks at a group that no member joins, whatever timeout its members ask for, in
/// microseconds.
const PAUSE_US: u64 = 1_000_000;

/// The course of a rebalance.
impl Membership {
    /// Begins a rebalance after a change of members, or perhaps ends the one that runs.
    pub(super) fn rebalance(&mut self) {
        match self.state {
            State::PreparingRebalance => self.complete_if_all_joined(),
            State::Empty | State::CompletingRebalance | State::Stable => self.prepare(),
            State::Dead => {}
        }
    }

    pub(in crate::groups) fn prepare(&mut self) {
        if self.state == State::CompletingRebalance {
            self.refuse_syncs(ErrorCode::RebalanceInProgress);
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

    pub(super) fn complete_if_all_joined(&mut self) {
        let is_waiting = self.state == State::PreparingRebalance && self.gathering.is_none();
        let all_joined = self.roster.iter().all(|(_, member)| member.joining.is_some());
        if is_waiting && all_joined && self.promised.is_empty() {
            self.complete_join();
        }
    }

    pub(super) fn on_join_due(&mut self) {
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

    /// Begins the next generation with the members that have joined, and with static members that may yet come back.
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
        assert!(self.protocol.is_some(), "all members of a generation know a protocol");
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

    pub(super) fn take_sync(
        &mut self,
        key: RequestKey,
        request: &SyncGroupRequest,
    ) -> Result<(), ErrorCode> {
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

    /// Stores the leader's assignments, once a generation: the leader may send them again.
    fn store_assignments(&mut self, request: &SyncGroupRequest) {
        let generation = self.generation;
        let is_same = |it: &Awaited| matches!(it, Awaited::Assignments { generation: g, .. } if *g == generation);
        if self.awaited.values().any(is_same) {
            return;
        }
        // A member that the leader left out gets an empty assignment.
        let given = request.assignments.iter();
        let given = given.map(|it| (it.member_id.clone(), it.assignment.clone()));
        let left_out = self.roster.iter().map(|(id, _)| (id.clone(), Bytes::new()));
        let assignments: BTreeMap<String, Bytes> = left_out.chain(given).collect();
        let stored = self.stored(&assignments);
        if sabotage::is(Bug::AssignedBeforeStored) {
            self.assign(assignments.clone());
            self.state = State::Stable;
        }
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
    pub(super) fn assign(&mut self, mut assignments: BTreeMap<String, Bytes>) {
        for id in self.roster.ids(|_| true) {
            let assignment = assignments.remove(&id).unwrap_or_default();
            let answer = self.synced(assignment.clone());
            self.roster.get_mut(&id).expect("it is listed").assignment = assignment;
            self.answer_sync(&id, answer);
        }
    }

    /// Refuses all waiting `SyncGroup`s, because the generation ends before any member got its assignment. Members may
    /// still have their earlier partitions. Those are theirs if the group changes to the consumer protocol now.
    pub(super) fn refuse_syncs(&mut self, code: ErrorCode) {
        for id in self.roster.ids(|_| true) {
            self.answer_sync(&id, refused_sync(code));
        }
    }

    fn answer_sync(&mut self, id: &str, answer: SyncGroupResponse) {
        let waiting = self.roster.get_mut(id).and_then(|member| member.syncing.take());
        if let Some(key) = waiting {
            self.effects.push(Effect::Synced(key, answer));
            // While it waited, its session did not run.
            self.beat(id);
        }
    }
}
