//! # Room card: rot
//!
//! Purpose:    one machine of a cluster whose disk rots at rest, and the state of the scrubs and repairs then.
//! Owns:       the time of each flip and its bytes; harm to an answer for a repair.
//! Interface:  [`Rotting`], [`Rot`]; `Member::scrub` is in `scrubbing`.
//! Invariants: only bytes flip that a checkpoint has synced, and only while nobody runs: a living process checks
//!             bytes once, as on a real machine. One machine rots, so that there is always another copy.
//! Never:      the metadata's log, the journal, snapshots: those are refused at start.
//! Tests:      `tests/promises/cluster.rs`, `tests/planted.rs`.
//! Start at:   [`Rotting::rot`].

use bytes::Bytes;
use duramen_broker::event::LogRead;
use duramen_storage::Reader;
use duramen_storage::mending::{Mend, Mended};
use duramen_storage::scrub::Scrubber;

use crate::disk::SimDisk;
use crate::prng::Prng;
use crate::trace::tell;

/// State of a machine's scrubs and repairs, and of the rot done to it.
pub(super) struct Rotting {
    /// True if machines look for rot in this run at all.
    looks: bool,
    /// True if this machine's disk rots.
    pub(super) rots: bool,
    /// Number of times that its disk has rotted.
    pub(super) flips: u64,
    /// Segments that were repaired.
    pub(super) mended: u64,
    pub(super) chance: Prng,
}

/// A living process at it.
pub(super) struct Rot {
    pub(super) scrubber: Scrubber<SimDisk>,
    pub(super) mends: Vec<Mend>,
    pub(super) mended: Vec<(Mend, Mended<SimDisk>)>,
    /// Passes without damage, one after the other.
    pub(super) sound_passes: u64,
}

impl Rotting {
    pub(super) fn off(seed: u64) -> Self {
        let chance = Prng::new(seed, "machine rot");
        Self { looks: false, rots: false, flips: 0, mended: 0, chance }
    }

    /// Makes the machine look for rot; `rots` tells whether its own disk rots.
    pub(super) fn begin(&mut self, rots: bool) {
        (self.looks, self.rots) = (true, rots);
    }

    pub(super) fn is_on(&self) -> bool {
        self.looks
    }

    /// Flips a few bits of settled data.
    pub(super) fn rot(&mut self, disk: &SimDisk, settled: &[(String, u64)]) {
        if !self.rots || self.chance.chance(300) {
            return;
        }
        let may = |file: &&(String, u64)| file.1 > 0 && !file.0.starts_with("__cluster_metadata");
        let files: Vec<_> = settled.iter().filter(may).collect();
        if files.is_empty() {
            return;
        }
        for _ in 0..self.chance.between(1, 4) {
            let (path, size) = *self.chance.pick(&files);
            let at = self.chance.below(*size);
            let bit = u8::try_from(self.chance.below(8)).expect("small");
            if disk.flip(path, at, bit) {
                tell(|| format!("{path} ROTS at {at}"));
                self.flips += 1;
            }
        }
    }

    /// Harms bytes that were read for a repair now and then, where no checksum is checked.
    pub(super) fn harm(&mut self, read: &mut LogRead) {
        let Ok(bytes) = &read.batches else { return };
        if bytes.is_empty() || !self.chance.chance(200) {
            return;
        }
        let mut harmed = bytes.to_vec();
        let at = self.chance.index(harmed.len());
        harmed[at] ^= 1 << self.chance.below(8);
        read.batches = Ok(Bytes::from(harmed));
    }
}

impl Rot {
    pub(super) fn new(reader: Reader<SimDisk>) -> Self {
        Self {
            scrubber: Scrubber::new(reader, 0),
            mends: Vec::new(),
            mended: Vec::new(),
            sound_passes: 0,
        }
    }
}
