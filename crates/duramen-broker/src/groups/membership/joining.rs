//! Joining a group, and coming back as a member.

use std::collections::BTreeMap;

use bytes::Bytes;
use duramen_protocol::ErrorCode;
use duramen_protocol::messages::join_group::JoinGroupResponseMember;
use duramen_protocol::messages::{JoinGroupRequest, JoinGroupResponse};
use duramen_protocol::wire::Uuid;

use super::{Awaited, Caller, Effect, Member, Membership, Return, Rules, State, refused_join, us};
use crate::event::RequestKey;
use crate::limits::NEW_MEMBER_WAITS_US;

/// Returns the usual text of a UUID, with which member ids end.
fn hyphenated(id: Uuid) -> String {
    let hex = format!("{:032x}", id.as_u128());
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

fn protocols(request: &JoinGroupRequest) -> Vec<(String, Bytes)> {
    request.protocols.iter().map(|it| (it.name.clone(), it.metadata.clone())).collect()
}

/// Returns the rebalance timeout. Version 0 of `JoinGroup` has one timeout only.
fn rebalance_timeout_ms(request: &JoinGroupRequest) -> i32 {
    match request.rebalance_timeout_ms {
        -1 => request.session_timeout_ms,
        ms => ms,
    }
}

/// Joining.
impl Membership {
    pub(super) fn admit(
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
                // A client that never gets its id would join again and again. Each time it would leave behind a member
                // that the others wait for. So a client becomes a member only when it sends its id.
                let refused = refused_join(&id, ErrorCode::MemberIdRequired);
                self.effects.push(Effect::Joined(caller.key, refused));
                self.promised.insert(id, self.now_us + us(request.session_timeout_ms));
            }
            _ => self.add(id, caller, request),
        }
        Ok(())
    }

    /// Tells whether the group has room for a member. A member that the group counts already has room; while members
    /// join anew, those that came first have it.
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

    /// Tells whether all members still share a protocol after this request.
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
            // The new member cannot send heartbeats, and may be gone, so the group waits for it only a limited time.
            expires_us: Some(self.now_us + NEW_MEMBER_WAITS_US),
        };
        self.roster.insert(id, member);
        self.rebalance();
    }

    /// Admits a request with the id of a member.
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

    /// Admits a static member that comes back without its id. A client that still uses the old id is fenced from now
    /// on.
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
            // The member must not assign anew, and in this version the answer can only prevent that by hiding its
            // leadership.
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

    pub(super) fn on_return_stored(&mut self, returned: Return, result: Result<(), ErrorCode>) {
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

    pub(super) fn joined(&self, id: &str) -> JoinGroupResponse {
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
