//! Wall clocks of single machines that leap by days, forwards and back, while their process runs; and the process's
//! notice of it.
//!
//! A machine that starts with a wrong clock learns it from the others, unless one of them is wrong by just as much.
//! Its timestamps are wrong all the same. In most runs a clock is set right while its process is down. Nothing at all
//! may be deleted for its age, except where two clocks are wrong alike, or one started with a time long ago. Then
//! replicas must at least agree on the records that go.

use super::member::Member;
use crate::failure::{Failure, wrong};
use crate::node_harness::oracle::Oracle;
use crate::prng::Prng;
use crate::trace::tell;

const DAY_MS: i64 = 86_400_000;
/// Time in which a process that runs has looked at its clock, in microseconds.
const LOOKED_US: u64 = 1_000_000;

/// See above.
#[derive(Debug)]
pub(super) struct Clocks {
    /// Chance of a leap in ten thousand, for each step.
    pub(super) leaps: u64,
    /// A clock stays wrong while its process is down.
    pub(super) outlast: bool,
    /// Leaps so far.
    pub(super) leapt: u64,
    processes: Vec<Process>,
    chance: Prng,
}

/// Facts that are known of a machine's process.
#[derive(Clone, Copy, Debug, Default)]
struct Process {
    start: u64,
    /// Error of its clock when it started, in milliseconds: the process believes that clock.
    believes_ms: i64,
    /// Time since which the process has run and its clock has not leapt, in microseconds.
    since_us: u64,
}

impl Clocks {
    /// Draws the clocks of a run: in most runs none leaps.
    pub(super) fn new(seed: u64, machines: usize) -> Self {
        let mut chance = Prng::new(seed, "cluster clocks");
        let leaps = *chance.pick(&[0, 0, 0, 10, 40]);
        let outlast = leaps > 0 && chance.chance(300);
        Self { leaps, outlast, leapt: 0, processes: vec![Process::default(); machines], chance }
    }

    /// Makes a clock leap, now and then.
    pub(super) fn disturb(
        &mut self,
        members: &mut [Member],
        oracle: &mut Oracle,
        mono_us: u64,
    ) -> Result<(), Failure> {
        for at in 0..members.len() {
            self.look_at(at, &mut members[at], oracle, mono_us)?;
            oracle.trims_by_time |= self.is_wrong_alike(at, members);
        }
        if self.chance.below(10_000) < self.leaps {
            let at = self.chance.index(members.len());
            let days = i64::try_from(self.chance.between(1, 20)).expect("small");
            let leapt_ms = *self.chance.pick(&[0, days * DAY_MS, -days * DAY_MS]);
            // A process that starts in this very moment would start with the leap.
            let is_set_right = !members[at].machine.is_alive() && !self.outlast;
            let leapt_ms = if is_set_right { 0 } else { leapt_ms };
            tell(|| format!("the clock of machine {at} leaps: {} days", leapt_ms / DAY_MS));
            self.leapt += u64::from(members[at].leapt_ms != leapt_ms);
            members[at].leapt_ms = leapt_ms;
            self.processes[at].since_us = mono_us;
        }
        Ok(())
    }

    /// Tells whether a process that started with a wrong clock may hear that it is right.
    fn is_wrong_alike(&self, at: usize, members: &[Member]) -> bool {
        let wrong_ms = self.processes[at].believes_ms;
        let others = members.iter().enumerate().filter(|(other, _)| *other != at);
        let mut others = others.map(|(other, it)| (it, self.processes[other].believes_ms));
        wrong_ms != 0
            && members[at].machine.is_alive()
            && others.any(|(it, believes_ms)| it.leapt_ms == wrong_ms || believes_ms == wrong_ms)
    }

    /// Checks that a process that runs knows whether its clock is where it was.
    fn look_at(
        &mut self,
        at: usize,
        member: &mut Member,
        oracle: &mut Oracle,
        mono_us: u64,
    ) -> Result<(), Failure> {
        let process = &mut self.processes[at];
        let (leapt_ms, starts) = (member.leapt_ms, member.machine.starts);
        let Some(node) = member.machine.node() else {
            if !self.outlast {
                member.leapt_ms = 0;
            }
            return Ok(());
        };
        if process.start != starts {
            *process = Process { start: starts, believes_ms: leapt_ms, since_us: mono_us };
            oracle.trims_by_time |= leapt_ms < 0;
        }
        if member.is_frozen() {
            process.since_us = mono_us;
        }
        if mono_us < process.since_us + LOOKED_US {
            return Ok(());
        }
        process.since_us = mono_us;
        let is_held = node.metrics().is_clock_held;
        if is_held == (leapt_ms == process.believes_ms) {
            let days = (leapt_ms - process.believes_ms) / DAY_MS;
            return wrong(format!("machine {at}: the clock leapt by {days} days, held: {is_held}"));
        }
        Ok(())
    }
}
