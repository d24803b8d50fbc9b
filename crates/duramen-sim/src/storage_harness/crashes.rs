//! # Room card: storage crashes
//!
//! Purpose:    end the process in every way, start it again, and judge what it found.
//! Owns:       kills, power losses, failed recoveries, rot; the last phase of a run.
//! Interface:  [`World::crash`], [`World::reopen`], [`World::finish`].
//! Invariants: after at most a few interrupted attempts recovery succeeds on a disk without rot.
//! Never:      faults outside the atlas.
//! Tests:      with the harness.
//! Start at:   [`World::reopen`].

use duramen_storage::Storage;
use duramen_storage::op::RecoveredReplica;
use duramen_storage::storage::Recovered;

use super::World;
use super::checks::Places;
use crate::disk::{Faults, SimDisk};
use crate::failure::{Failure, wrong};
use crate::model::ReplicaModel;
use crate::trace::tell;

/// Rounds of quiet after which storage must be quiet too.
const QUIET_ROUNDS_MAX: u32 = 3000;

impl World {
    /// Ends the process, killed or by a power loss, and starts it again.
    pub(super) fn crash(&mut self) -> Result<(), Failure> {
        self.end_process();
        let power = self.chance.chance(450);
        self.lose(power);
        self.reopen()
    }

    fn end_process(&mut self) {
        self.storage = None;
        self.to_run.clear();
        self.ran.clear();
        self.wants.clear();
        self.segments_due = false;
        self.full = false;
        self.in_flight.clear();
        self.unrestored.clear();
    }

    fn lose(&mut self, power: bool) {
        tell(|| (if power { "POWER LOSS" } else { "KILL" }).to_owned());
        self.disk = if power { self.disk.power_loss() } else { self.disk.kill() };
        if self.limited && self.chance.chance(500) {
            // Somebody else takes the space that the crash has freed.
            let left = self.chance.below(20_000);
            self.disk.set_capacity(self.disk.used() + left);
        }
    }

    /// Starts the process, interrupting its recovery now and then.
    pub(super) fn reopen(&mut self) -> Result<(), Failure> {
        for attempt in 0.. {
            let last = attempt == 4;
            if !last && self.chance.chance(300) {
                let calls = self.chance.between(1, 150);
                self.disk.crash_in(Some(calls));
            }
            let calm = last || self.chance.chance(600);
            self.disk.set_faults(if calm { Faults::default() } else { self.profile.faults });
            let opened = Storage::open(self.disk.clone(), self.options.clone());
            self.disk.check()?;
            match opened {
                Ok((storage, recovered)) => {
                    self.disk.set_faults(Faults::default());
                    return self.opened(storage, &recovered);
                }
                Err(error) => {
                    tell(|| format!("start failed: {}", super::chain(&error)));
                    self.expected(&error)?;
                    if last {
                        return Err(Failure::liveness(format!(
                            "it does not start: {}",
                            super::chain(&error)
                        )));
                    }
                    let power = self.chance.chance(500);
                    self.lose(power);
                }
            }
        }
        Ok(())
    }

    fn opened(&mut self, storage: Storage<SimDisk>, found: &Recovered) -> Result<(), Failure> {
        self.report.recoveries += 1;
        tell(|| {
            let brief = |it: &RecoveredReplica| {
                let last = it.prev_index + it.entries.len() as u64;
                format!(
                    "{} {}-{} last {last} offsets {}..{} {:?} image {} segments {:?}",
                    it.replica.0,
                    it.identity.topic,
                    it.identity.partition,
                    it.log_start,
                    it.end_offset,
                    it.hard_state,
                    it.prev_index,
                    it.segments.iter().map(|it| it.base_offset).collect::<Vec<_>>()
                )
            };
            let all: Vec<String> = found.replicas.iter().map(brief).collect();
            format!("RECOVERED {}", all.join("; "))
        });
        if found.facts != self.options.facts {
            return wrong("the directory has other facts");
        }
        self.storage = Some(storage);
        if self.disk.is_dead() {
            // The process died after its last call: nobody will ever know its findings.
            return self.crash();
        }
        self.disk.crash_in(None);
        self.adopt(found)?;
        self.take_done()?;
        self.check_reads(false)?;
        self.disk.set_faults(self.profile.faults);
        if self.chance.chance(150) { self.crash() } else { Ok(()) }
    }

    /// Checks that the models allow the findings of recovery.
    fn adopt(&mut self, found: &Recovered) -> Result<(), Failure> {
        for replica in &found.replicas {
            let id = replica.replica;
            self.trace.mix(id.0);
            self.trace.mix(replica.end_offset.cast_unsigned());
            let Some(model) = self.replicas.iter_mut().find(|model| model.id == id) else {
                let what = if self.dead.contains(&id) { "was gone for good" } else { "never was" };
                return wrong(format!("replica {} {what}", id.0));
            };
            if self.limited && replica.lacks_room {
                // Nobody is shown anything of it. The next start decides what is there.
                self.unrestored.insert(id);
                model.deleted = false;
                continue;
            }
            model.adopt(replica)?;
            model.deleted = false;
            let at = self.replicas.iter().position(|model| model.id == id);
            self.adopt_holds(at.expect("it was just found"), &replica.holds)?;
        }
        self.deletions.clear();
        let missing: Vec<_> = self
            .replicas
            .iter()
            .filter(|model| !found.replicas.iter().any(|replica| replica.replica == model.id))
            .map(|model| (model.id, model.created && !model.deleted))
            .collect();
        for (id, lost) in missing {
            if lost {
                return wrong(format!("replica {} is lost", id.0));
            }
            self.bury(id);
        }
        Ok(())
    }

    /// Lets everything that was begun come to rest.
    pub(super) fn quiesce(&mut self) -> Result<(), Failure> {
        let mut quiet = 0;
        for _ in 0..QUIET_ROUNDS_MAX {
            let recoveries = self.report.recoveries;
            self.begin_round()?;
            self.write_segments()?;
            while !(self.to_run.is_empty() && self.ran.is_empty()) {
                self.run_sync();
                self.report_sync()?;
            }
            self.answer_wants();
            self.maintain(true)?;
            let nothing = self.to_run.is_empty()
                && self.wants.is_empty()
                && self.report.recoveries == recoveries
                && self.storage().is_quiet();
            quiet = if nothing { quiet + 1 } else { 0 };
            if quiet == 8 {
                return Ok(());
            }
        }
        let metrics = self.storage().metrics();
        Err(Failure::liveness(format!("storage does not come to rest: {metrics:?}")))
    }

    fn answer_wants(&mut self) {
        for wanted in std::mem::take(&mut self.wants) {
            let at = self.replicas.iter().position(|model| model.id == wanted && !model.deleted);
            if let Some(at) = at {
                self.answer_want(at);
            }
        }
    }

    /// Ends the faults; everything must come to rest, be there, and be tidy.
    pub(super) fn finish(&mut self) -> Result<(), Failure> {
        self.profile.faults = Faults::default();
        self.disk.set_faults(Faults::default());
        self.disk.crash_in(None);
        self.disk.set_capacity(u64::MAX / 2);
        self.limited = false;
        if self.disk.is_doomed() || self.disk.is_dead() || !self.unrestored.is_empty() {
            self.crash()?;
        }
        self.profile.crash = 0;
        self.quiesce()?;
        self.check_settled()?;
        self.replicas.iter_mut().for_each(ReplicaModel::rest);
        self.check_reads(true)?;
        self.check_tidy()?;
        let metrics = self.storage().metrics();
        self.report.rounds += metrics.rounds;
        self.report.checkpoints += metrics.checkpoints;
        let tampers = self.profile.rots && self.tampering.chance(500);
        let is_closed = tampers && self.tampering.chance(600);
        if is_closed && let Err(error) = self.storage().close() {
            return wrong(super::chain(&error));
        }
        self.end_process();
        let power = self.chance.chance(500);
        self.lose(power);
        if tampers {
            self.tamper(is_closed)?;
        } else if self.profile.rots {
            self.rot()?;
        } else {
            self.reopen()?;
        }
        self.disk.check()
    }

    /// Checks that all ops submitted before the quiet were reported.
    fn check_settled(&self) -> Result<(), Failure> {
        let waits = |model: &&ReplicaModel| model.waits() || !model.holds.waiting.is_empty();
        match self.replicas.iter().filter(|model| !model.deleted).find(waits) {
            Some(model) => {
                Err(Failure::liveness(format!("replica {}: an op was never reported", model.id.0)))
            }
            None => Ok(()),
        }
    }

    /// Flips one bit of durable bytes while nobody looks. The damage may be noticed and reported, or have no effect.
    /// It may not change or shorten anything silently.
    fn rot(&mut self) -> Result<(), Failure> {
        let files: Vec<_> = self.disk.files().into_iter().filter(|(_, len)| *len > 0).collect();
        let (path, len) = self.chance.pick(&files).clone();
        let at = self.chance.below(len);
        let bit = u8::try_from(self.chance.below(8)).expect("a bit's number");
        if !self.disk.flip(&path, at, bit) {
            return self.reopen();
        }
        let name = format!("bit {bit} of byte {at} of {path} flipped");
        // Index files have Kafka's form, without checksums: rot in one may misdirect a
        // lookup by time, never the bytes of a read.
        let timely = !path.ends_with("index");
        self.judge_start(&name, &Places { timely, foreign: Vec::new(), alike: Vec::new() })
    }

    pub(super) fn adopt_rotten(&mut self, found: &Recovered) -> Result<(), Failure> {
        let mut sound = found.clone();
        sound.replicas.clear();
        for replica in &found.replicas {
            let id = replica.replica;
            if replica.damage.is_none() {
                sound.replicas.push(replica.clone());
                continue;
            }
            let at = self.replicas.iter().position(|model| model.id == id);
            let at = at.ok_or_else(|| Failure::correctness("a replica that never was"))?;
            self.replicas[at].check_damaged(replica)?;
            self.replicas.remove(at);
        }
        self.adopt(&sound)
    }
}
