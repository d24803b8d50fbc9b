//! Lag of a replica's own disk behind the entries that a majority has stored, over many ticks.
//!
//! Each tick adds the number of ticks that the disk is behind. That is the number of earlier ticks that saw a commit
//! which the disk still lacks. The sum is large for a disk that stands still, and for one that moves and is always
//! late. A tick in which the disk has the commit of the tick before lowers the sum. A tick in which nothing happens
//! leaves it unchanged. Where all disks are equally slow, the own one is the last of three seldom enough for the sum to
//! stay small.

use crate::limits::{DISK_STILL_TICKS, ELECTION_TICKS};

/// A sum that is too much: that of a disk which has stood still for an election timeout.
const SUM_MAX: u64 = (ELECTION_TICKS * (ELECTION_TICKS + 1) / 2) as u64;
/// Amount by which a tick in which the disk keeps up lowers the sum. With a smaller amount, one of three disks whose
/// syncs all take a fifth of a second would seem slow now and then.
const KEPT_UP: u64 = 3;

#[derive(Debug, Default)]
pub(super) struct Lag {
    /// Commit indexes of ticks that saw a new commit or one that the disk lacked, until the disk has them.
    marks: Vec<u64>,
    /// Commit index at the last tick.
    committed: u64,
    behind: u64,
    sum: u64,
}

impl Lag {
    /// Counts one tick.
    pub(super) fn tick(&mut self, committed: u64, persisted: u64) {
        let before = self.marks.len();
        self.marks.retain(|mark| *mark > persisted);
        self.behind = self.marks.len() as u64;
        self.sum = match (before, self.behind) {
            (1, 0) => self.sum.saturating_sub(KEPT_UP),
            (_, behind) => (self.sum + behind).min(SUM_MAX),
        };
        assert!(committed >= self.committed, "the commit index never falls");
        assert!(self.behind <= DISK_STILL_TICKS, "few ticks are remembered");
        debug_assert!(self.marks.is_sorted(), "earlier ticks saw earlier commits");
        let is_of_note = committed > self.committed || committed > persisted;
        if is_of_note && self.behind < DISK_STILL_TICKS {
            self.marks.push(committed);
        }
        self.committed = committed;
    }

    /// Returns by how many ticks the disk is behind, if it has been behind for too long.
    pub(super) fn too_much(&self) -> Option<u64> {
        Some(self.behind).filter(|behind| *behind > 0 && self.sum >= SUM_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::TICK_US;
    use crate::prng::Prng;

    const SYNC_SOON_MS: u64 = 2;
    const SECOND: u64 = 1_000_000 / TICK_US;

    /// A disk whose syncs begin when there is something to store, one at a time.
    struct Disk {
        has: u64,
        /// When a sync ends, and what it stores.
        sync: Option<(u64, u64)>,
    }

    /// Returns the tick, of ten minutes, at which the first of three disks has been slow for too long. `sync_ms` gives
    /// the duration of a sync by disk and start time; chance adds or takes a tenth.
    fn noticed(appends_a_second: u64, sync_ms: impl Fn(usize, u64) -> u64) -> Option<u64> {
        let mut lag = Lag::default();
        let (mut chance, mut appended) = (Prng::stream(1, 0), 0);
        let mut disks = [(); 3].map(|()| Disk { has: 0, sync: None });
        for ms in 0..600_000 {
            appended += u64::from(chance.below(1000) < appends_a_second);
            for (at, disk) in disks.iter_mut().enumerate() {
                if let Some((_, upto)) = disk.sync.take_if(|(end, _)| *end <= ms) {
                    disk.has = upto;
                }
                if disk.sync.is_none() && disk.has < appended {
                    let takes = sync_ms(at, ms);
                    let end = ms + takes * 9 / 10 + chance.below(takes / 5 + 1);
                    disk.sync = Some((end, appended));
                }
            }
            if ms % (TICK_US / 1000) == 0 {
                let mut all = disks.each_ref().map(|disk| disk.has);
                all.sort_unstable();
                lag.tick(all[1], disks[0].has);
                if lag.too_much().is_some() {
                    return Some(ms * 1000 / TICK_US);
                }
            }
        }
        None
    }

    fn own_takes(slow_ms: u64, others_ms: u64) -> impl Fn(usize, u64) -> u64 {
        move |at, _| if at == 0 { slow_ms } else { others_ms }
    }

    #[test]
    fn a_disk_that_is_always_slower_is_noticed_within_seconds() {
        for (own_ms, others_ms, within) in
            [(100, 2, 2), (60, 2, 4), (300, 2, 1), (1000, 2, 1), (200, 100, 3), (1000, 300, 2)]
        {
            let at = noticed(1000, own_takes(own_ms, others_ms));
            assert!(at.is_some_and(|at| at <= within * SECOND), "{own_ms}, {others_ms}: {at:?}");
        }
    }

    #[test]
    fn it_is_noticed_where_little_is_appended() {
        // Each append counts once or twice.
        let at = noticed(2, own_takes(100, 2));
        assert!(at.is_some_and(|at| at <= 30 * SECOND), "{at:?}");
    }

    #[test]
    fn disks_that_are_equally_slow_are_not_to_blame() {
        for appends_a_second in [1, 20, 1000] {
            for ms in [2, 20, 50, 100, 200] {
                assert_eq!(noticed(appends_a_second, own_takes(ms, ms)), None, "{ms}");
            }
        }
    }

    #[test]
    fn a_disk_that_is_slow_now_and_then_is_forgiven() {
        for (stall_ms, every_ms) in [(100, 1000), (300, 1000), (400, 2000)] {
            let stalls = move |at, ms| {
                if at == 0 && ms % every_ms < 5 { stall_ms } else { SYNC_SOON_MS }
            };
            assert_eq!(noticed(1000, stalls), None, "{stall_ms} of {every_ms}");
        }
    }

    #[test]
    fn a_disk_that_stands_still_is_noticed_after_an_election_timeout() {
        let mut lag = Lag::default();
        lag.tick(9, 8);
        for behind in 1..=DISK_STILL_TICKS + 5 {
            lag.tick(9, 8);
            let is_long = behind >= ELECTION_TICKS as u64;
            assert_eq!(lag.too_much(), is_long.then_some(behind.min(DISK_STILL_TICKS)));
        }
        lag.tick(9, 9);
        assert_eq!(lag.too_much(), None, "it moves again");
    }

    #[test]
    fn a_disk_that_is_well_again_is_not_blamed_for_what_was() {
        let mut lag = Lag::default();
        (0..50).for_each(|_| lag.tick(9, 8));
        assert!(lag.too_much().is_some());
        (0..1000).for_each(|_| lag.tick(9, 9));
        // Nothing was to be stored since, so nothing is known of it.
        assert_eq!(lag.sum, SUM_MAX);
        (10..30).for_each(|index| lag.tick(index, index));
        assert!(lag.sum < SUM_MAX / 2);
    }
}
