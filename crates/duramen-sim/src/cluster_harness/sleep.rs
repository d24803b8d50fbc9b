//! Rules that must hold of quiesced replicas, and the count of their sleeps.

use std::collections::{BTreeMap, BTreeSet};

use duramen_broker::Standing;
use duramen_protocol::wire::Uuid;

use super::World;
use super::member::{Log, Member};
use super::network::Network;
use crate::failure::Failure;
use crate::node_harness::oracle::Oracle;
use crate::prng::Prng;
use crate::trace::tell;

/// Longest time that a replica may stay quiesced without the conditions for it. Its node notices within a second.
pub(super) const LATE_US: u64 = 3_000_000;
/// The log of the metadata is always awake.
pub(super) const METADATA: [u8; 16] = 1_u128.to_be_bytes();
/// Time between two looks, in microseconds.
const LOOK_US: u64 = 40_000;

/// A replica of one life of a machine.
type Sleeper = (usize, u64, Log);

/// See above.
#[derive(Debug, Default)]
pub(super) struct Watch {
    looked_us: u64,
    asleep: BTreeSet<Sleeper>,
    /// Replicas that are quiesced without the conditions for it, and the time since which they are.
    forsaken: BTreeMap<Sleeper, u64>,
    /// True if no replica is awake except those of the metadata, machines agree on that, and no partition moves.
    is_all: bool,
    /// Times that a replica was seen to have become quiesced.
    pub(super) slept: u64,
    /// Times that one slept when its leader's machine or its followers' were gone, and woke.
    pub(super) roused: u64,
}

/// Tells whether a machine hears another one.
fn hears(members: &[Member], network: &Network, from: usize, to: usize) -> bool {
    members[from].machine.is_alive() && !members[from].is_frozen() && !network.is_cut(from, to)
}

/// Times in which no client asks for anything, so that groups are quiesced when faults come.
#[derive(Debug)]
pub(super) struct Lulls {
    chance: Prng,
    is_lull: bool,
    until_us: u64,
}

impl Lulls {
    /// Draws the lulls of a run; half of all runs have none.
    pub(super) fn new(seed: u64) -> Self {
        let mut chance = Prng::new(seed, "lulls");
        let until_us = *chance.pick(&[0, u64::MAX]);
        Self { chance, is_lull: true, until_us }
    }

    pub(super) fn is_now(&mut self, now_us: u64) -> bool {
        if now_us >= self.until_us {
            self.is_lull = !self.is_lull;
            self.until_us = now_us + self.chance.between(300_000, 2_500_000);
        }
        self.is_lull && self.until_us < u64::MAX
    }
}

impl Watch {
    /// Tells whether all replicas are quiesced except those of the metadata, and machines agree on that.
    pub(super) fn is_all_asleep(&self) -> bool {
        self.is_all
    }

    /// Checks the reasons of quiesced replicas. A follower is quiesced because its leader is, whose node it hears; a
    /// leader is, because a majority answers.
    pub(super) fn look(
        &mut self,
        now_us: u64,
        members: &[Member],
        network: &Network,
        oracle: &Oracle,
    ) -> Result<(), Failure> {
        if now_us < self.looked_us + LOOK_US {
            return Ok(());
        }
        self.looked_us = now_us;
        let all: Vec<Vec<Standing>> = members.iter().map(|it| it.machine.standings()).collect();
        let mut asleep = BTreeSet::new();
        let mut forsaken = BTreeMap::new();
        for (at, standings) in all.iter().enumerate() {
            for own in standings.iter().filter(|own| own.is_asleep) {
                let log = (own.topic_id, own.partition);
                let sleeper = (at, members[at].machine.starts, log);
                asleep.insert(sleeper);
                if !self.asleep.contains(&sleeper) {
                    self.slept += 1;
                    tell(|| format!("machine {at}: {log:?} SLEEPS in term {}", own.term));
                }
                // One that stands still notices nothing.
                if members[at].is_frozen() || is_well(at, own, &all, members, network) {
                    continue;
                }
                // The others may have deleted it, which this machine does not know yet.
                if oracle.may_be_gone(Uuid(own.topic_id)) {
                    continue;
                }
                let since = *self.forsaken.get(&sleeper).unwrap_or(&now_us);
                forsaken.insert(sleeper, since);
                if now_us >= since + LATE_US {
                    let who = if own.serves { "its followers" } else { "its leader" };
                    return Err(Failure::liveness(format!(
                        "machine {at}: {log:?} sleeps on in term {}, though {who} cannot be heard \
                         or do not sleep",
                        own.term
                    )));
                }
            }
        }
        for sleeper in self.asleep.difference(&asleep) {
            let (at, start, log) = sleeper;
            if members[*at].machine.starts == *start && members[*at].machine.is_alive() {
                tell(|| format!("machine {at}: {log:?} WAKES"));
                self.roused += u64::from(self.forsaken.contains_key(sleeper));
            }
        }
        let is_metadata = |it: &Standing| it.topic_id == METADATA;
        let of_cluster = || members.iter().zip(&all).filter(|(member, _)| !member.is_out);
        let mut nodes = of_cluster().filter_map(|(it, _)| it.machine.node());
        self.is_all = of_cluster()
            .flat_map(|(_, standings)| standings)
            .all(|it| it.is_asleep && !it.is_reassigned || is_metadata(it))
            && nodes.all(|node| node.metrics().sleep_disputes == 0);
        (self.asleep, self.forsaken) = (asleep, forsaken);
        Ok(())
    }
}

/// Tells whether a replica has the conditions for being quiesced.
fn is_well(
    at: usize,
    own: &Standing,
    all: &[Vec<Standing>],
    members: &[Member],
    network: &Network,
) -> bool {
    let log = (own.topic_id, own.partition);
    let others = all.iter().enumerate().filter(|(other, _)| *other != at);
    let mut others =
        others.flat_map(|(other, standings)| standings.iter().map(move |it| (other, it)));
    if own.serves {
        let answers = others.filter(|(other, it)| {
            (it.topic_id, it.partition) == log
                && hears(members, network, *other, at)
                && hears(members, network, at, *other)
        });
        return 2 * (1 + answers.count()) > own.voters.len();
    }
    others.any(|(other, it)| {
        Some(it.replica.0) == own.leader
            && it.serves
            && it.is_asleep
            && it.term == own.term
            && hears(members, network, other, at)
    })
}

impl World {
    /// Waits until all groups are quiesced, while no client asks for anything. Then one machine fails in some way, and
    /// others lead its groups soon, though no client asks for that either.
    pub(super) fn sleep_through_faults(&mut self) -> Result<(), Failure> {
        for _ in 0..self.chance.below(3) {
            self.fall_asleep()?;
            let count = self.members.len();
            let mut at = self.chance.index(count);
            match self.chance.below(4) {
                // A machine that was taken out is of no use to anybody.
                _ if self.members[at].is_out => continue,
                0 => {
                    self.kill(at, true);
                    self.members[at].down_until_us = self.mono_us + LATE_US + 1_500_000;
                }
                1 => self.members[at].freeze(self.mono_us + LATE_US + 1_500_000),
                _ => at = self.network.cut(count),
            }
            tell(|| format!("machine {at} fails while all sleep"));
            self.pass(LATE_US + 1_000_000)?;
            // Of two that are left both may stand for the same election, and again for the next.
            for _ in 0..4 {
                if self.check_led_without(at).is_err() {
                    self.pass(100_000)?;
                }
            }
            self.check_led_without(at)?;
            self.network.heal();
            self.pass(600_000)?;
            self.report.nights += 1;
        }
        self.fall_asleep()
    }

    /// Waits until all groups are quiesced, while no client asks for anything, and any machine may fail: also where
    /// disks were lost.
    fn fall_asleep(&mut self) -> Result<(), Failure> {
        let late_us = self.mono_us + 12_000_000;
        let is_whole = |it: &Self| {
            it.report.wiped == 0
                || (0..it.members.len()).all(|at| it.members[at].is_out || it.can_spare(at))
        };
        while !self.watch.is_all_asleep() || !is_whole(self) {
            if self.mono_us > late_us {
                return self.stuck(if self.watch.is_all_asleep() {
                    "disks that were lost have no successors:"
                } else {
                    "not all groups sleep:"
                });
            }
            self.pass(50_000)?;
        }
        self.pass(100_000)
    }

    /// Checks that others lead each group of several replicas, if this machine is of no use to them: dead, frozen, or
    /// cut off from all.
    fn check_led_without(&self, at: usize) -> Result<(), Failure> {
        let others = (0..self.members.len()).filter(|other| *other != at);
        let is_cut = |other| self.network.is_cut(at, other) || self.network.is_cut(other, at);
        let is_gone = !self.members[at].machine.is_alive() || self.members[at].is_frozen();
        if !is_gone && !others.clone().all(is_cut) {
            return Ok(());
        }
        let all: Vec<_> =
            others.flat_map(|other| self.members[other].machine.standings()).collect();
        let of = |log: Log| all.iter().filter(move |it| (it.topic_id, it.partition) == log);
        for it in all.iter().filter(|it| it.voters.len() > 2) {
            let log = (it.topic_id, it.partition);
            if !of(log).any(|it| it.serves) {
                return self.stuck(&format!("nobody leads {log:?} without machine {at}:"));
            }
        }
        Ok(())
    }
}
