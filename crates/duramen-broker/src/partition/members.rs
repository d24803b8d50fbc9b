//! # Room card: members of a stretch
//!
//! Purpose:    choose which voters hold batches for clients, and when others should.
//! Owns:       the time that each voter takes for an entry; the rate of stretches; the last use of one.
//! Interface:  [`Partition::open_stretch`], [`Partition::renew_stretch`], [`Partition::tend_stretch`].
//! Invariants: a stretch has as many members as a majority of the voters. Few stretches begin in a time, so that a
//!             voter that comes and goes, or a client that errs, does not end one after the other.
//! Never:      the batches that members hold.
//! Tests:      below; `node/tests/fast.rs`.
//! Start at:   [`Partition::tend_stretch`].

use std::collections::{BTreeMap, BTreeSet};

use duramen_protocol::ErrorCode;
use duramen_storage::op::Stretch;
use duramen_storage::sabotage::{self, Bug};

use super::internal::Internal;
use super::{Acks, Partition, Slot, Waiting};
use crate::event::Now;
use crate::limits::{
    FAST_IDLE_US, FAST_LASTING_US, FAST_OPENED_US, FAST_SHORT_MAX, FAST_SILENT_TICKS, FAST_SLOW_US,
    FAST_TIMED_US,
};

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

/// Times at which a leader began stretches.
#[derive(Debug, Default)]
pub(super) struct Rate {
    last_us: Option<u64>,
    /// Stretches in a row that followed the one before soon.
    short: u32,
}

impl Rate {
    /// Tells whether a stretch may begin now.
    fn lets(&self, now_us: u64) -> bool {
        let pause_us = if self.short >= FAST_SHORT_MAX { FAST_LASTING_US } else { FAST_OPENED_US };
        self.last_us.is_none_or(|last| now_us >= last + pause_us)
    }

    fn note(&mut self, now_us: u64) {
        let is_short = self.last_us.is_some_and(|last| now_us < last + FAST_LASTING_US);
        self.short = if is_short { self.short + 1 } else { 0 };
        self.last_us = Some(now_us);
    }
}

/// Time that each voter takes until it has an entry, as its leader sees it.
#[derive(Debug, Default)]
pub(super) struct Paces {
    /// The entry that is timed, and since when.
    timed: Option<(u64, u64)>,
    answered: BTreeSet<u64>,
    /// Mean in microseconds, in which the last four count most.
    by_voter: BTreeMap<u64, u64>,
}

impl Paces {
    /// Returns a voter's mean time. One that is not known counts as the slowest.
    fn of(&self, voter: u64) -> u64 {
        self.by_voter.get(&voter).copied().unwrap_or(u64::MAX)
    }

    fn note(&mut self, voter: u64, took_us: u64) {
        let mean = self.by_voter.entry(voter).or_insert(took_us);
        *mean = *mean - *mean / 4 + took_us / 4;
        self.answered.insert(voter);
    }

    /// Tells whether one of the members is much slower than the best of the others.
    fn are_slow(&self, members: &[u64], others: &[u64]) -> bool {
        let worst = members.iter().filter_map(|it| self.by_voter.get(it)).max();
        let best = others.iter().filter_map(|it| self.by_voter.get(it)).min();
        worst.zip(best).is_some_and(|(worst, best)| {
            worst / 2 >= *best && worst.saturating_sub(*best) >= FAST_SLOW_US
        })
    }

    /// Follows the other voters, each with the last entry that it has: one entry at a time is timed.
    fn follow(&mut self, now_us: u64, end: (u64, u64), voters: &[(u64, u64)]) {
        let (applied, last) = end;
        let Some((index, since_us)) = self.timed else {
            if last > applied {
                self.timed = Some((last, now_us));
                self.answered.clear();
            }
            return;
        };
        let took_us = now_us.saturating_sub(since_us);
        let is_late = took_us >= FAST_TIMED_US;
        for (voter, matched) in voters {
            if !self.answered.contains(voter) && (*matched >= index || is_late) {
                self.note(*voter, took_us);
            }
        }
        let is_over = voters.iter().all(|(voter, _)| self.answered.contains(voter));
        self.timed.take_if(|_| is_over);
    }
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
        if self.fast.opening.is_none() && !self.group.is_reshaping() {
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
        let index = self.propose_change(&Internal::Open { members })?;
        self.fast.rate.note(now.mono_us);
        self.fast.used_us = now.mono_us;
        self.fast.slow_since_us = None;
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
            self.fast.slow_since_us = None;
            return false;
        }
        let is_slow = self.fast.paces.are_slow(members, &others);
        if !is_slow {
            self.fast.slow_since_us = None;
        }
        let since_us = *self.fast.slow_since_us.get_or_insert(now.mono_us);
        let is_slow_for_long = is_slow && now.mono_us >= since_us + FAST_TIMED_US;
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

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;

    #[test]
    fn a_stretch_a_second_begins_and_after_three_short_ones_one_in_ten() {
        let mut rate = Rate::default();
        let mut now = 0;
        let mut begun = Vec::new();
        while now < 30 * SECOND {
            if rate.lets(now) {
                rate.note(now);
                begun.push(now / SECOND);
            }
            now += SECOND / 4;
        }
        assert_eq!(begun, [0, 1, 2, 3, 13, 14, 15, 16, 26, 27, 28, 29]);
    }

    #[test]
    fn one_entry_at_a_time_is_timed() {
        let mut paces = Paces::default();
        paces.follow(0, (4, 5), &[(2, 4), (3, 4)]);
        paces.follow(1_000, (5, 6), &[(2, 5), (3, 4)]);
        assert_eq!((paces.of(2), paces.of(3)), (1_000, u64::MAX));
        paces.follow(2_000, (6, 6), &[(2, 6), (3, 4)]);
        assert_eq!(paces.of(2), 1_000, "the next entry is not timed yet");
        paces.follow(FAST_TIMED_US, (6, 6), &[(2, 6), (3, 4)]);
        assert_eq!((paces.of(2), paces.of(3)), (1_000, FAST_TIMED_US), "it is late");
        paces.follow(FAST_TIMED_US, (6, 7), &[(2, 6), (3, 4)]);
        paces.follow(FAST_TIMED_US + 5_000, (7, 7), &[(2, 7), (3, 7)]);
        assert_eq!(paces.of(2), 2_000);
    }

    #[test]
    fn a_member_is_slow_that_takes_twice_as_long_as_an_outsider_and_ten_milliseconds_more() {
        let by_voter = BTreeMap::from([(2, 1_000), (3, 10_900), (4, 11_000), (5, 21_000)]);
        let paces = Paces { by_voter, ..Paces::default() };
        assert!(!paces.are_slow(&[3], &[2]), "not by ten milliseconds");
        assert!(paces.are_slow(&[4], &[2]));
        assert!(paces.are_slow(&[2, 4], &[2, 5]), "the worst member and the best outsider count");
        assert!(!paces.are_slow(&[5], &[4]), "not twice as long");
        assert!(!paces.are_slow(&[9], &[2]) && !paces.are_slow(&[5], &[9]), "not known");
    }
}
