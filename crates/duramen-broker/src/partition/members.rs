//! # Room card: members of a stretch
//!
//! Purpose:    choose which voters hold batches for clients, and when others should.
//! Owns:       the decision to begin, renew and end a stretch.
//! Interface:  [`Partition::open_stretch`], [`Partition::renew_stretch`], [`Partition::tend_stretch`].
//! Invariants: a stretch has as many members as a majority of the voters. Voters that come and go, and clients that
//!             err, do not end one stretch after the other: few begin in a time.
//! Never:      the batches that members hold; the measures behind a choice (`pacing.rs`).
//! Tests:      `node/tests/fast.rs`.
//! Start at:   [`Partition::tend_stretch`].

use duramen_protocol::ErrorCode;
use duramen_storage::op::Stretch;
use duramen_storage::sabotage::{self, Bug};

use super::internal::Internal;
use super::{Acks, Partition, Slot, Waiting};
use crate::event::Now;
use crate::limits::{FAST_IDLE_US, FAST_SILENT_TICKS, FAST_SLOW_ENTRIES, FAST_TIMED_US};

/// Result of a wish for a stretch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Opening {
    /// A [`super::Finished`] will come once a stretch is open.
    Waits,
    /// A stretch is open.
    Open,
    /// None is opened, for this reason.
    Refused(ErrorCode),
}

impl Partition {
    /// Opens a stretch, if none is open. Some peers are members only where there are too few others.
    pub(crate) fn open_stretch(&mut self, now: Now, unfit: &[u64], slot: Slot) -> Opening {
        if let Some(code) = self.obstacle() {
            return Opening::Refused(code);
        }
        if self.fast.open.is_some() {
            return Opening::Open;
        }
        if self.fast.opening.is_none() {
            let Some(members) = self.choose_members(unfit) else {
                return Opening::Refused(ErrorCode::NotEnoughReplicas);
            };
            if !self.fast.rate.lets(now.mono_us) {
                return Opening::Refused(ErrorCode::ThrottlingQuotaExceeded);
            }
            if let Err(code) = self.begin_stretch(now, members) {
                return Opening::Refused(code);
            }
        }
        let Some(index) = self.fast.opening else {
            return Opening::Refused(ErrorCode::NotEnoughReplicas);
        };
        self.wait(index, Acks::All, Waiting { slot, base_offset: -1 }, -1);
        Opening::Waits
    }

    fn begin_stretch(&mut self, now: Now, members: Vec<u64>) -> Result<u64, ErrorCode> {
        // The members may not vote any more once the change is applied.
        if self.group.is_reshaping() {
            return Err(ErrorCode::ReassignmentInProgress);
        }
        let index = self.propose_change(&Internal::Open { members })?;
        self.fast.rate.note(now.mono_us);
        self.fast.used_us = now.mono_us;
        self.fast.slow_since = None;
        Ok(index)
    }

    /// Begins another stretch with the members of this one. Without a right to do so soon, the stretch just ends.
    pub(super) fn renew_stretch(&mut self, now: Now) -> Result<u64, ErrorCode> {
        let members = self.stretches.current().map(|it| it.members.clone()).unwrap_or_default();
        let may_open = self.fast.rate.lets(now.mono_us) && !self.group.is_reshaping();
        if members.is_empty() || !may_open {
            return self.propose_change(&Internal::Close);
        }
        self.begin_stretch(now, members)
    }

    /// Sees to it that no leader takes a batch over any more that may be held in a stretch. `Ok(true)` if `slot` now
    /// waits for that.
    pub(crate) fn outlast_stretch(
        &mut self,
        now: Now,
        stretch: Stretch,
        slot: Slot,
    ) -> Result<bool, ErrorCode> {
        if let Some(code) = self.obstacle() {
            return Err(code);
        }
        if stretch.term > self.group.term() {
            return Err(ErrorCode::NotLeaderOrFollower); // a newer leader began it
        }
        let current = self.stretches.current().filter(|it| it.at >= stretch);
        let Some(current) = current.filter(|_| !sabotage::is(Bug::RefusedTooEarly)) else {
            return Ok(false);
        };
        if current.at == stretch && !current.members.is_empty() {
            self.renew_stretch(now)?;
        }
        let Some(index) = self.fast.opening else { return Ok(false) };
        self.wait(index, Acks::All, Waiting { slot, base_offset: -1 }, -1);
        Ok(true)
    }

    /// Ends a stretch that nobody uses. Begins another where a member is silent, or much slower than an outsider. True
    /// if something was proposed.
    pub(crate) fn tend_stretch(&mut self, now: Now, unfit: &[u64]) -> bool {
        if self.obstacle().is_some() || self.group.is_moving() || self.fast.opening.is_some() {
            return false;
        }
        let Some(open) = self.open_here() else { return false };
        if now.mono_us >= self.fast.used_us + FAST_IDLE_US {
            return self.close_stretch();
        }
        if self.group.is_asleep() || !self.fast.rate.lets(now.mono_us) {
            return false;
        }
        let Some(better) = self.choose_members(unfit) else { return false };
        let is_member = |peer: &u64| open.members.contains(peer);
        let members = &open.members[1..];
        let others: Vec<u64> = better.iter().copied().filter(|it| !is_member(it)).collect();
        if others.is_empty() {
            self.fast.slow_since = None;
            return false;
        }
        let is_slow = self.fast.paces.are_slow(members, &others);
        if !is_slow {
            self.fast.slow_since = None;
        }
        let entries = self.fast.paces.entries();
        let since = *self.fast.slow_since.get_or_insert((now.mono_us, entries));
        let lasts = now.mono_us >= since.0 + FAST_TIMED_US;
        let is_slow_for_long = is_slow && lasts && entries >= since.1 + FAST_SLOW_ENTRIES;
        let is_silent = |peer: &u64| !self.group.is_heard(*peer, FAST_SILENT_TICKS);
        let is_unfit = |peer: &u64| unfit.contains(peer);
        let is_due = members.iter().any(|it| is_silent(it) || is_unfit(it)) || is_slow_for_long;
        is_due && self.begin_stretch(now, better).is_ok()
    }

    /// Returns the members of a new stretch, this leader first: voters that keep up, as many as make a majority. Those
    /// with the shortest times come first, and those that are unfit last.
    pub(super) fn choose_members(&self, unfit: &[u64]) -> Option<Vec<u64>> {
        let own = self.group.id().0;
        let majority = self.group.voters() / 2 + 1;
        let mut others: Vec<u64> = self.group.successors().collect();
        let is_silent = |id: u64| !self.group.is_heard(id, FAST_SILENT_TICKS);
        let rank = |id: u64| {
            let matched = std::cmp::Reverse(self.group.matched(id));
            (is_silent(id) || unfit.contains(&id), self.fast.paces.of(id), matched, id)
        };
        others.sort_by_key(|id| rank(*id));
        others.truncate(majority - 1);
        let is_enough = majority > 1 && others.len() == majority - 1;
        is_enough.then(|| std::iter::once(own).chain(others).collect())
    }

    /// Times the voters while a stretch is open here.
    pub(super) fn time_voters(&mut self, now: Now) {
        if self.fast.open.is_none() {
            return;
        }
        let own = self.group.id().0;
        let others = self.group.voter_ids().iter().filter(|id| **id != own);
        let voters: Vec<(u64, u64)> = others.map(|id| (*id, self.group.matched(*id))).collect();
        let end = (self.group.applied(), self.group.last_index());
        self.fast.paces.follow(now.mono_us, end, &voters);
    }
}
