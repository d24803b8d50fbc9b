//! # Room card: roster
//!
//! Purpose:    the members of a consumer group, and the protocols that they have in common.
//! Owns:       [`Roster`] and [`Member`]; static names; the choice of leader and protocol.
//! Interface:  [`Roster::insert`], [`Roster::remove`], [`Roster::rename`], [`Roster::check`], [`Roster::elect`].
//! Invariants: a static name belongs to one member; the leader, if there is one, is a member; there is one while there
//!             are members.
//! Never:      states of a rebalance, answers.
//! Tests:      `groups/membership/tests.rs`.
//! Start at:   [`Roster`].

use std::collections::BTreeMap;

use bytes::Bytes;
use duramen_protocol::ErrorCode;

use super::records::MemberMetadata;
use crate::event::RequestKey;

/// One member.
#[derive(Clone, Debug)]
pub(super) struct Member {
    /// The static name (`group.instance.id`).
    pub instance: Option<String>,
    pub client_id: String,
    pub client_host: String,
    pub session_timeout_ms: i32,
    pub rebalance_timeout_ms: i32,
    /// Assignment protocols that the member supports, best first, each with its metadata.
    pub protocols: Vec<(String, Bytes)>,
    pub assignment: Bytes,
    /// A `JoinGroup` that waits.
    pub joining: Option<RequestKey>,
    /// A `SyncGroup` that waits.
    pub syncing: Option<RequestKey>,
    /// Flag that the member has not yet got its id, so it cannot send heartbeats.
    pub is_new: bool,
    /// Flag that the member has not asked for its assignment in this generation.
    pub owes_sync: bool,
    /// Time at which the group removes the member, unless the member sends something before.
    pub expires_us: Option<u64>,
}

impl Member {
    /// Returns what the log keeps of the member, with its metadata under a protocol and an assignment.
    pub(super) fn stored(&self, id: &str, protocol: &str, assignment: &Bytes) -> MemberMetadata {
        MemberMetadata {
            member_id: id.to_owned(),
            group_instance_id: self.instance.clone(),
            client_id: self.client_id.clone(),
            client_host: self.client_host.clone(),
            rebalance_timeout: self.rebalance_timeout_ms,
            session_timeout: self.session_timeout_ms,
            subscription: self.metadata(protocol),
            assignment: assignment.clone(),
        }
    }

    /// Returns the member's metadata under a protocol.
    pub(super) fn metadata(&self, protocol: &str) -> Bytes {
        let found = self.protocols.iter().find(|(name, _)| name == protocol);
        found.map(|(_, metadata)| metadata.clone()).unwrap_or_default()
    }
}

/// All members.
#[derive(Clone, Debug, Default)]
pub(super) struct Roster {
    members: BTreeMap<String, Member>,
    instances: BTreeMap<String, String>,
    leader: Option<String>,
}

impl Roster {
    pub(super) fn len(&self) -> usize {
        self.members.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    pub(super) fn contains(&self, id: &str) -> bool {
        self.members.contains_key(id)
    }

    pub(super) fn get(&self, id: &str) -> Option<&Member> {
        self.members.get(id)
    }

    pub(super) fn get_mut(&mut self, id: &str) -> Option<&mut Member> {
        self.members.get_mut(id)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&String, &Member)> {
        self.members.iter()
    }

    /// Returns the ids of the members for which a condition holds.
    pub(super) fn ids(&self, holds: impl Fn(&Member) -> bool) -> Vec<String> {
        self.iter().filter(|(_, member)| holds(member)).map(|(id, _)| id.clone()).collect()
    }

    pub(super) fn leader(&self) -> Option<&String> {
        self.leader.as_ref()
    }

    pub(super) fn is_leader(&self, id: &str) -> bool {
        self.leader.as_deref() == Some(id)
    }

    /// Restores the leader from before a restart. Has no effect if that id is no member.
    pub(super) fn restore_leader(&mut self, id: &str) {
        if self.contains(id) {
            self.leader = Some(id.to_owned());
        }
    }

    /// Returns the member of a static name.
    pub(super) fn named(&self, instance: &str) -> Option<&String> {
        self.instances.get(instance)
    }

    /// Checks that a request with this id, and static name if it has one, comes from a member.
    pub(super) fn check(&self, id: &str, instance: Option<&str>) -> Result<(), ErrorCode> {
        if let Some(instance) = instance {
            match self.named(instance) {
                None => return Err(ErrorCode::UnknownMemberId),
                Some(named) if named != id => return Err(ErrorCode::FencedInstanceId),
                Some(_) => {}
            }
        }
        if self.contains(id) { Ok(()) } else { Err(ErrorCode::UnknownMemberId) }
    }

    /// Checks names and leader against the members.
    pub(super) fn inspect(&self) {
        let leader = self.leader.as_deref();
        assert_eq!(leader.is_some(), !self.is_empty(), "members have a leader");
        assert!(leader.is_none_or(|id| self.contains(id)), "{leader:?}, who leads, is a member");
        for (name, id) in &self.instances {
            let named = self.get(id).and_then(|member| member.instance.as_ref());
            assert_eq!(named, Some(name), "{id} has the static name that leads to it");
        }
        let named = self.members.values().filter(|member| member.instance.is_some()).count();
        assert_eq!(named, self.instances.len(), "a static name belongs to one member");
    }

    /// Takes a member in. The first one leads.
    pub(super) fn insert(&mut self, id: String, member: Member) {
        if let Some(instance) = &member.instance {
            self.instances.insert(instance.clone(), id.clone());
        }
        self.leader.get_or_insert_with(|| id.clone());
        self.members.insert(id, member);
    }

    pub(super) fn remove(&mut self, id: &str) -> Option<Member> {
        let member = self.members.remove(id)?;
        if let Some(instance) = &member.instance {
            self.instances.remove(instance);
        }
        if self.is_leader(id) {
            self.leader = self.members.keys().next().cloned();
        }
        Some(member)
    }

    /// Gives a member another id. A leader stays leader.
    pub(super) fn rename(&mut self, from: &str, to: String) {
        let Some(member) = self.members.remove(from) else { return };
        if let Some(instance) = &member.instance {
            self.instances.insert(instance.clone(), to.clone());
        }
        if self.is_leader(from) {
            self.leader = Some(to.clone());
        }
        self.members.insert(to, member);
    }

    /// Makes a member that waits for the next generation the leader, unless the present leader waits itself. Returns
    /// false if no member waits.
    pub(super) fn elect(&mut self) -> bool {
        let waits = |id: &&String| self.members[*id].joining.is_some();
        let leader = self.leader.as_ref().filter(waits).or_else(|| self.members.keys().find(waits));
        let Some(leader) = leader.cloned() else { return false };
        self.leader = Some(leader);
        true
    }

    /// Returns the longest time that a member may take to join again, in milliseconds.
    pub(super) fn rebalance_timeout_ms(&self) -> i32 {
        self.members.values().map(|member| member.rebalance_timeout_ms).max().unwrap_or(0)
    }

    /// Tells whether every member knows a protocol.
    pub(super) fn all_know(&self, protocol: &str) -> bool {
        let knows = |member: &Member| member.protocols.iter().any(|(name, _)| name == protocol);
        self.members.values().all(knows)
    }

    /// Returns the protocol that all members know and most like best. If several get equally many votes, the leader's
    /// order decides.
    pub(super) fn choose_protocol(&self) -> Option<String> {
        let leader = self.members.get(self.leader.as_ref()?)?;
        let common: Vec<&String> =
            leader.protocols.iter().map(|(name, _)| name).filter(|it| self.all_know(it)).collect();
        let mut votes = vec![0usize; common.len()];
        for member in self.members.values() {
            let place = |(name, _): &(String, Bytes)| common.iter().position(|it| *it == name);
            if let Some(place) = member.protocols.iter().find_map(place) {
                votes[place] += 1;
            }
        }
        let most = votes.iter().max()?;
        let place = votes.iter().position(|it| it == most)?;
        Some(common[place].clone())
    }
}
