//! # Room card: pacing
//!
//! Purpose:    measure what the choice of a stretch's members rests on.
//! Owns:       the time that each voter takes for an entry; the times at which stretches began.
//! Interface:  [`Paces::follow`], [`Paces::are_slow`], [`Rate::lets`].
//! Invariants: one entry at a time is timed.
//! Never:      a partition.
//! Tests:      below.
//! Start at:   [`Paces::follow`].

use std::collections::{BTreeMap, BTreeSet};

use crate::limits::{
    FAST_LASTING_US, FAST_OPENED_US, FAST_SHORT_MAX, FAST_SLOW_ENTRIES, FAST_SLOW_US, FAST_TIMED_US,
};

/// Times at which a leader began stretches.
#[derive(Debug, Default)]
pub(super) struct Rate {
    last_us: Option<u64>,
    /// Stretches in a row that followed the one before soon.
    short: u32,
}

impl Rate {
    /// Tells whether a stretch may begin now.
    pub(super) fn lets(&self, now_us: u64) -> bool {
        let pause_us = if self.short >= FAST_SHORT_MAX { FAST_LASTING_US } else { FAST_OPENED_US };
        self.last_us.is_none_or(|last| now_us >= last + pause_us)
    }

    pub(super) fn note(&mut self, now_us: u64) {
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
    /// Number of entries that were timed; see [`FAST_SLOW_ENTRIES`].
    entries: u64,
    /// Mean in microseconds, in which the last four count most.
    by_voter: BTreeMap<u64, u64>,
}

impl Paces {
    /// Returns a voter's mean time. One that is not known counts as the slowest.
    pub(super) fn of(&self, voter: u64) -> u64 {
        self.by_voter.get(&voter).copied().unwrap_or(u64::MAX)
    }

    fn note(&mut self, voter: u64, took_us: u64) {
        let mean = self.by_voter.entry(voter).or_insert(took_us);
        *mean = *mean - *mean / 4 + took_us / 4;
        self.answered.insert(voter);
    }

    /// Returns the number of entries that were timed, as far as they tell of slow members.
    pub(super) fn entries(&self) -> u64 {
        self.entries
    }

    /// Tells whether one of the members is much slower than the best of the others.
    pub(super) fn are_slow(&self, members: &[u64], others: &[u64]) -> bool {
        let worst = members.iter().filter_map(|it| self.by_voter.get(it)).max();
        let best = others.iter().filter_map(|it| self.by_voter.get(it)).min();
        worst.zip(best).is_some_and(|(worst, best)| {
            worst / 2 >= *best && worst.saturating_sub(*best) >= FAST_SLOW_US
        })
    }

    /// Follows the other voters, each with the last entry that it has: one entry at a time is timed.
    pub(super) fn follow(&mut self, now_us: u64, end: (u64, u64), voters: &[(u64, u64)]) {
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
        if self.timed.take_if(|_| is_over).is_some() {
            self.entries += if is_late { FAST_SLOW_ENTRIES } else { 1 };
        }
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
