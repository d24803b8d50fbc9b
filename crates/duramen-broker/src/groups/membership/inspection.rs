//! Invariants of a group of the classic protocol.

use super::{Awaited, Member, Membership, State};

impl Membership {
    /// Checks the state against members, timers and waiting requests.
    pub(in crate::groups) fn inspect(&self) {
        if !cfg!(debug_assertions) {
            return;
        }
        let Self { state, roster, join_due_us, sync_due_us, gathering, .. } = self;
        roster.inspect();
        match state {
            State::Empty | State::Dead => assert!(roster.is_empty(), "{state:?}: no members"),
            State::PreparingRebalance => {}
            State::CompletingRebalance | State::Stable => {
                assert!(!roster.is_empty(), "{state:?}: a generation has members");
            }
        }
        let is_preparing = *state == State::PreparingRebalance;
        assert_eq!(join_due_us.is_some(), is_preparing, "{state:?}: the time to join is limited");
        assert!(gathering.is_none() || is_preparing, "{state:?}: only a new group gathers members");
        let is_made = matches!(state, State::CompletingRebalance | State::Stable);
        assert!(sync_due_us.is_none() || is_made, "{state:?}: a generation awaits its members");
        let knows_all = self.protocol.as_deref().is_none_or(|it| roster.all_know(it));
        assert!(!is_made || knows_all, "all members know {:?}", self.protocol);
        let mut promised = self.promised.keys();
        assert!(promised.all(|id| !roster.contains(id)), "an id that is promised is no member's");
        let all_joined = roster.iter().all(|(_, member)| member.joining.is_some());
        let is_open = gathering.is_some() || !self.promised.is_empty() || !all_joined;
        assert!(!is_preparing || is_open, "a rebalance ends when all members have joined");
        if *state == State::Dead {
            let has_none = self.promised.is_empty() && self.awaited.is_empty();
            assert!(has_none, "a group that has ended waits for nothing");
        }
        for (id, member) in roster.iter() {
            self.inspect_member(id, member);
        }
    }

    fn inspect_member(&self, id: &str, member: &Member) {
        let Member { joining, syncing, is_new, expires_us, .. } = member;
        let state = self.state;
        let mut awaited = self.awaited.values();
        let is_back = |it: &Awaited| matches!(it, Awaited::Return(it) if Some(it.key) == *joining);
        let may_join = state == State::PreparingRebalance || awaited.any(is_back);
        assert!(joining.is_none() || may_join, "{state:?}: {id} waits for a generation");
        let may_sync = state == State::CompletingRebalance;
        assert!(syncing.is_none() || may_sync, "{state:?}: {id} waits for the assignments");
        assert!(!is_new || joining.is_some(), "{id} waits for its id");
        let waits = joining.is_some() || syncing.is_some();
        assert!(expires_us.is_some() || waits, "{id} has a deadline, or waits for an answer");
    }
}
