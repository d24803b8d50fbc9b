//! The way between machines: frames are late, lost, doubled, out of order, or cut off in one direction.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use crate::prng::Prng;

/// Faults of the network.
#[derive(Clone, Copy, Debug)]
pub(super) struct Weather {
    /// Chance in a thousand that a frame is lost.
    pub(super) lost: u64,
    pub(super) doubled: u64,
    /// The longest way, in microseconds.
    pub(super) late_us: u64,
}

impl Weather {
    pub(super) const FINE: Self = Self { lost: 0, doubled: 0, late_us: 2_000 };
}

/// See above.
#[derive(Debug)]
pub(super) struct Network {
    pub(super) weather: Weather,
    /// Frames on their way, by arrival and a number that tells those of one moment apart.
    on_the_way: BTreeMap<(u64, u64), (usize, usize, Bytes)>,
    cut: BTreeSet<(usize, usize)>,
    sent: u64,
    chance: Prng,
}

impl Network {
    pub(super) fn new(seed: u64, weather: Weather) -> Self {
        Self {
            weather,
            on_the_way: BTreeMap::new(),
            cut: BTreeSet::new(),
            sent: 0,
            chance: Prng::new(seed, "network"),
        }
    }

    /// Returns the number of frames that were sent.
    pub(super) fn sent(&self) -> u64 {
        self.sent
    }

    pub(super) fn send(&mut self, now_us: u64, from: usize, to: usize, frame: &Bytes) {
        let copies = if self.chance.chance(self.weather.doubled) { 2 } else { 1 };
        for _ in 0..copies {
            self.sent += 1;
            if self.cut.contains(&(from, to)) || self.chance.chance(self.weather.lost) {
                continue;
            }
            let at = now_us + self.chance.between(50, self.weather.late_us);
            self.on_the_way.insert((at, self.sent), (from, to, frame.clone()));
        }
    }

    /// Returns the next frame that has arrived, with its sender and its receiver.
    pub(super) fn arrived(&mut self, now_us: u64) -> Option<(usize, usize, Bytes)> {
        let first = self.on_the_way.first_entry().filter(|first| first.key().0 <= now_us)?;
        let (from, to, frame) = first.remove();
        // A frame that was on the way when the way was cut is lost, too.
        if self.cut.contains(&(from, to)) { self.arrived(now_us) } else { Some((from, to, frame)) }
    }

    /// Cuts one machine off in one direction or both, or one way between two. Returns the machine.
    pub(super) fn cut(&mut self, machines: usize) -> usize {
        let one = self.chance.index(machines);
        let kind = self.chance.below(3);
        for other in (0..machines).filter(|other| *other != one) {
            if kind != 1 {
                self.cut.insert((one, other));
            }
            if kind != 2 {
                self.cut.insert((other, one));
            }
            if self.chance.chance(300) {
                break;
            }
        }
        one
    }

    pub(super) fn is_cut(&self, from: usize, to: usize) -> bool {
        self.cut.contains(&(from, to))
    }

    pub(super) fn heal(&mut self) {
        self.cut.clear();
    }
}
