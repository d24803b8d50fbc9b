//! The scrubs and repairs of one machine, and the check of repaired bytes.

use duramen_broker::Event;
use duramen_protocol::batch::batches;
use duramen_storage::mending::{Mend, MendError};
use duramen_storage::scrub::Found;
use duramen_storage::{Descriptor, Done};

use super::member::{Member, Outcome};
use crate::failure::wrong;
use crate::machine::Reports;
use crate::prng::Prng;
use crate::trace::tell;

/// Draws whether disks rot in a run, and returns it. If so, one machine's disk rots, and all machines look for rot.
pub(super) fn begin(seed: u64, members: &mut [Member]) -> bool {
    let mut chance = Prng::new(seed, "cluster rot");
    let rots = chance.chance(250);
    if rots {
        let rotten = chance.index(members.len());
        for (at, member) in members.iter_mut().enumerate() {
            member.rotting.begin(at == rotten);
        }
    }
    rots
}

impl Member {
    /// Does a piece of the scrubs and repairs, now and then.
    pub(super) fn scrub(&mut self, mono_us: u64) -> Option<Outcome> {
        if !self.rotting.chance.chance(150) {
            return None;
        }
        let rot = self.rot.as_mut()?;
        if let Some((mend, mended)) = rot.mended.pop() {
            let switched = self.machine.switch(&mended);
            return Some(self.after_switch(mono_us, &mend, switched));
        }
        if let Some(mend) = rot.mends.pop() {
            match self.machine.reader()?.mend(&mend, 0) {
                Ok(mended) => rot.mended.push((mend.clone(), mended)),
                Err(MendError::Unfit(what)) => tell(|| format!("unfit: {what}")),
                Err(error) => tell(|| format!("machine {}: {error:?}", self.at)),
            }
            if self.machine.disk.is_dead() || !rot.mended.is_empty() {
                return Some(Ok(Vec::new()));
            }
            let (replica, segment) = (mend.replica, mend.segment);
            let done = Done::Mended { replica, segment, is_done: false };
            return Some(Ok(self.step(mono_us, Event::Storage(done))));
        }
        let (_, found) = rot.scrubber.step(2000);
        if self.machine.disk.is_dead() {
            return Some(Ok(Vec::new()));
        }
        match found {
            Found::Nothing | Found::Sound { .. } => None,
            Found::EndOfPass => {
                rot.sound_passes += 1;
                None
            }
            Found::Damaged(damage) => {
                tell(|| format!("machine {}: {damage:?}", self.at));
                if self.rotting.flips == 0 {
                    let what =
                        format!("machine {}: damage where there was none: {damage:?}", self.at);
                    return Some(wrong(what));
                }
                // Damage to data that was trimmed, and that nobody has any more, stays until its segment goes.
                let standings = self.machine.standings();
                let own = standings.iter().find(|it| it.replica == damage.replica);
                let start = own.map_or(0, |it| it.log_start);
                if damage.ranges.iter().any(|range| range.end_offset > start) {
                    rot.sound_passes = 0;
                }
                Some(Ok(self.step(mono_us, Event::Damaged(damage))))
            }
        }
    }

    /// Checks a repaired copy, whether or not it took its segment's place: it must have the bytes that belong there.
    fn after_switch(&mut self, mono_us: u64, mend: &Mend, switched: Reports) -> Outcome {
        let Some(done) = switched? else { return Ok(Vec::new()) };
        let actions = self.on_done(mono_us, done);
        for (range, patch) in &mend.patches {
            let mut offset = range.offset;
            for batch in batches(patch.clone()) {
                let batch = batch.ok().filter(|batch| {
                    let described = Descriptor::of_batch(batch.bytes(), false);
                    described.is_ok_and(|it| it.matches(batch.bytes()) && it.base_offset == offset)
                });
                let Some(batch) = batch else {
                    return wrong(format!("machine {} is mended with rot at {offset}", self.at));
                };
                offset = batch.header().end_offset();
            }
        }
        self.rotting.mended += 1;
        Ok(actions)
    }
}
