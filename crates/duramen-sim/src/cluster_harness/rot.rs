//! # Room card: rot
//!
//! Purpose:    one machine of a cluster whose disk rots at rest, and the scrubs and repairs that all of them do then.
//! Owns:       the time of each flip and its bytes; harm to an answer for a repair; the check of repaired bytes.
//! Interface:  [`Rotting`], [`Rot`], `Machine::scrub`.
//! Invariants: only bytes flip that a checkpoint has synced, and only while nobody runs: a living process checks
//!             bytes once, as on a real machine. One machine rots, so that there is always another copy.
//! Never:      the metadata's log, the journal, snapshots: those are refused at start.
//! Tests:      `tests/promises/cluster.rs`, `tests/planted.rs`.
//! Start at:   `Machine::scrub`.

use bytes::Bytes;
use duramen_broker::Event;
use duramen_broker::event::LogRead;
use duramen_protocol::batch::batches;
use duramen_storage::mending::{Mend, MendError, Mended};
use duramen_storage::scrub::{Found, Scrubber};
use duramen_storage::{Descriptor, Done, Reader};

use super::machine::{Machine, Outcome};
use crate::disk::SimDisk;
use crate::failure::Failure;
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
    chance: Prng,
}

/// A living process at it.
pub(super) struct Rot {
    scrubber: Scrubber<SimDisk>,
    pub(super) mends: Vec<Mend>,
    mended: Vec<(Mend, Mended<SimDisk>)>,
    /// Repair that storage was given, until storage reports its outcome.
    switched: Option<Mend>,
    /// Passes without damage, one after the other.
    pub(super) sound_passes: u64,
}

/// Draws whether disks rot in a run, and returns it. If so, one machine's disk rots, and all machines look for rot.
pub(super) fn begin(seed: u64, machines: &mut [Machine]) -> bool {
    let mut chance = Prng::new(seed, "cluster rot");
    let rots = chance.chance(250);
    if rots {
        let rotten = chance.index(machines.len());
        for (at, machine) in machines.iter_mut().enumerate() {
            machine.rotting.begin(at == rotten);
        }
    }
    rots
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
            switched: None,
            sound_passes: 0,
        }
    }
}

impl Machine {
    /// Does a piece of the scrubs and repairs, now and then.
    pub(super) fn scrub(&mut self, mono_us: u64) -> Option<Outcome> {
        if !self.rotting.chance.chance(150) {
            return None;
        }
        let life = self.life.as_mut()?;
        if let Some((mend, mended)) = life.rot.mended.pop() {
            life.rot.switched = Some(mend);
            let switched = life.storage.switch(&mended);
            return Some(self.after_switch(mono_us, switched));
        }
        if let Some(mend) = life.rot.mends.pop() {
            match life.storage.reader().mend(&mend, 0) {
                Ok(mended) => life.rot.mended.push((mend.clone(), mended)),
                Err(MendError::Unfit(what)) => tell(|| format!("unfit: {what}")),
                Err(error) => tell(|| format!("machine {}: {error:?}", self.at)),
            }
            let life = self.life.as_mut()?;
            if self.disk.is_dead() || !life.rot.mended.is_empty() {
                return Some(Ok(Vec::new()));
            }
            let (replica, segment) = (mend.replica, mend.segment);
            let done = Done::Mended { replica, segment, is_done: false };
            return Some(Ok(self.step(mono_us, Event::Storage(done))));
        }
        let (_, found) = life.rot.scrubber.step(2000);
        if self.disk.is_dead() {
            return Some(Ok(Vec::new()));
        }
        match found {
            Found::Nothing | Found::Sound { .. } => None,
            Found::EndOfPass => {
                life.rot.sound_passes += 1;
                None
            }
            Found::Damaged(damage) => {
                tell(|| format!("machine {}: {damage:?}", self.at));
                if self.rotting.flips == 0 {
                    let what =
                        format!("machine {}: damage where there was none: {damage:?}", self.at);
                    return Some(Err(Failure::correctness(what)));
                }
                // Damage to data that was trimmed, and that nobody has any more, stays until its segment goes.
                let standings = life.node.standings();
                let own = standings.iter().find(|it| it.replica == damage.replica);
                let start = own.map_or(0, |it| it.log_start);
                if damage.ranges.iter().any(|range| range.end_offset > start) {
                    life.rot.sound_passes = 0;
                }
                Some(Ok(self.step(mono_us, Event::Damaged(damage))))
            }
        }
    }

    /// Checks a repaired copy, whether or not it took its segment's place: it must have the bytes that belong there.
    fn after_switch(
        &mut self,
        mono_us: u64,
        switched: Result<(), duramen_storage::storage::Error>,
    ) -> Outcome {
        if let Err(error) = switched {
            self.on_error(&error)?;
            return Ok(Vec::new());
        }
        let Some(life) = self.life.as_mut() else { return Ok(Vec::new()) };
        let mend = life.rot.switched.take();
        let actions = self.take_done(mono_us);
        if let Some(mend) = mend {
            for (range, patch) in &mend.patches {
                let mut offset = range.offset;
                for batch in batches(patch.clone()) {
                    let batch = batch.ok().filter(|batch| {
                        let described = Descriptor::of_batch(batch.bytes(), false);
                        described
                            .is_ok_and(|it| it.matches(batch.bytes()) && it.base_offset == offset)
                    });
                    let Some(batch) = batch else {
                        let what = format!("machine {} is mended with rot at {offset}", self.at);
                        return Err(Failure::correctness(what));
                    };
                    offset = batch.header().end_offset();
                }
            }
            self.rotting.mended += 1;
        }
        Ok(actions)
    }
}
