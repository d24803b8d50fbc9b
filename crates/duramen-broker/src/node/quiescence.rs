//! # Room card: sleepers
//!
//! Purpose:    make quiesced groups free: they get no ticks, and a number in the frames between nodes replaces all
//!             their heartbeats.
//! Owns:       the groups that get ticks; the quiesced groups that this node leads with each other node, and that each
//!             other node leads with this one; knowledge of which nodes answer each other.
//! Interface:  [`Quiescence::tick_groups`], [`Quiescence::on_asleep`], [`Quiescence::note_rest`].
//! Invariants: a follower sleeps only while this node hears the leader's node, which reports the group asleep in the
//!             same term. A leader sleeps only while the nodes of all its followers answer. No work of a tick grows
//!             with the number of quiesced groups.
//! Never:      the conditions of sleep, and waking (see `raft/sleeping.rs`); the metadata group, which is always
//!             awake.
//! Tests:      `node/tests/quiescence.rs`; `duramen-sim`, scenario `cluster`.
//! Start at:   [`Asleep`](crate::peer::Asleep).
//!
//! The quiesced groups that a node leads with another node are a set, which changes in numbered steps. A frame carries
//! the steps that its receiver may lack, and the number and the hash of the present set. A node whose own groups do not
//! match that set for long asks for the whole set. Frames may be lost, doubled, and out of order.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use duramen_protocol::wire::Uuid;
use duramen_storage::op::ReplicaId;
use duramen_storage::sabotage::{self, Bug};

use crate::core::{Core, mark};
use crate::limits::{ELECTION_TICKS, PEER_SLEEPERS_MAX};
use crate::peer::{Asleep, Sleeper};
use crate::prng::Prng;
use crate::raft::{Doze, GroupId};

/// Ticks until unacknowledged steps are told again.
const AGAIN_TICKS: u64 = 4;
/// Ticks for which two sets may differ, because a step may be on its way.
const UNEVEN_TICKS: u64 = 4;
/// Ticks between two times that all of a set is asked for.
const WHOLE_TICKS: u64 = 20;
/// Frames, sent and not acknowledged, that are remembered.
const OPEN_MAX: usize = 100;
const SILENT_TICKS: u64 = ELECTION_TICKS as u64;
const _: () = assert!(2 * AGAIN_TICKS < SILENT_TICKS);

/// Hashes a member of a set. A set's hash is the sum of its members', so that a change needs no new count.
fn digest(sleeper: &Sleeper) -> u64 {
    let of = |seed, part| Prng::stream(seed, part).next();
    of(of(of(of(0, sleeper.from), sleeper.to), sleeper.term), sleeper.index)
}

/// Set of the quiesced groups that this node leads with another one.
#[derive(Debug, Default)]
struct Led {
    version: u64,
    hash: u64,
    /// Number of groups in the set.
    count: usize,
    /// Groups by the replica there, with the version that brought each. A group that woke stays until the other node
    /// has heard that.
    sleepers: BTreeMap<u64, (u64, Sleeper)>,
    changes: BTreeMap<u64, u64>,
    /// Version that the other node has heard, version that it was told, and the tick since when neither is new. In that
    /// tick it had heard more, or was told all that it lacks.
    heard: u64,
    told: u64,
    told_at: u64,
}

impl Led {
    fn change(&mut self, sleeper: Sleeper) {
        self.version += 1;
        let to = sleeper.to;
        if !sleeper.has_woken() {
            self.hash = self.hash.wrapping_add(digest(&sleeper));
            self.count += 1;
        }
        if let Some((version, before)) = self.sleepers.insert(to, (self.version, sleeper)) {
            self.changes.remove(&version);
            if !before.has_woken() {
                self.hash = self.hash.wrapping_sub(digest(&before));
                self.count -= 1;
            }
        }
        self.changes.insert(self.version, to);
        assert_eq!(self.changes.len(), self.sleepers.len(), "each group has its latest step");
        assert!(self.count <= self.sleepers.len(), "groups that sleep are among those in the set");
    }

    fn on_heard(&mut self, heard: u64, ticks: u64) {
        let before = std::mem::replace(&mut self.heard, heard.min(self.version));
        if self.heard < before {
            self.told = 0;
        } else if self.heard > before {
            self.told_at = ticks;
        }
        let known = self.changes.range(before + 1..).take_while(|(at, _)| **at <= self.heard);
        let known: Vec<(u64, u64)> = known.map(|(at, to)| (*at, *to)).collect();
        for (version, to) in known {
            if self.sleepers.get(&to).is_some_and(|(_, sleeper)| sleeper.has_woken()) {
                self.sleepers.remove(&to);
                self.changes.remove(&version);
            }
        }
    }

    fn tell(&mut self, ticks: u64) -> Asleep {
        // The other node does not take steps after a lost one: however much is new, the lost step is told again.
        let is_due = ticks >= self.told_at + AGAIN_TICKS;
        let is_first = self.heard >= self.told;
        let after = if is_due { self.heard } else { self.heard.max(self.told) };
        let news = self.changes.range(after + 1..).take(PEER_SLEEPERS_MAX);
        let news: Vec<(u64, u64)> = news.map(|(version, to)| (*version, *to)).collect();
        let is_all = news.len() < PEER_SLEEPERS_MAX;
        let upto = news.last().filter(|_| !is_all).map_or(self.version, |(version, _)| *version);
        assert!(after <= upto && upto <= self.version, "steps {after} to {upto} are of the set");
        if !news.is_empty() {
            self.told = upto;
        }
        if is_due || is_first {
            self.told_at = ticks;
        }
        let sleepers = news.iter().map(|(_, to)| self.sleepers[to].1.clone()).collect();
        Asleep { version: self.version, hash: self.hash, after, upto, sleepers }
    }
}

/// Set of the quiesced groups that another node leads with this one, as far as replicas here sleep.
#[derive(Debug, Default)]
struct Followed {
    /// Incarnation of the other node.
    incarnation: u64,
    known: u64,
    hash: u64,
    /// Quiesced replicas, with the number of the latest question for the whole set at that time.
    sleepers: BTreeMap<ReplicaId, (u64, Sleeper)>,
    /// Questions for the whole set, and whether the last one is open.
    asked: u64,
    is_asking: bool,
    asked_at: u64,
    /// Ticks since the other node was heard without a missing step.
    silent: u64,
    /// Ticks since the sets were the same, if they are not.
    uneven: Option<u64>,
}

impl Followed {
    fn remove(&mut self, replica: ReplicaId) -> bool {
        let removed = self.sleepers.remove(&replica);
        if let Some((_, sleeper)) = &removed {
            self.hash = self.hash.wrapping_sub(digest(sleeper));
        }
        removed.is_some()
    }

    fn insert(&mut self, sleeper: Sleeper) {
        let replica = ReplicaId(sleeper.to);
        self.remove(replica);
        self.hash = self.hash.wrapping_add(digest(&sleeper));
        self.sleepers.insert(replica, (self.asked, sleeper));
    }

    fn ask_for_all(&mut self, ticks: u64) {
        self.known = 0;
        self.asked += 1;
        (self.is_asking, self.asked_at, self.uneven) = (true, ticks, None);
    }
}

/// Record of whether another node hears this one, as its own frames report.
#[derive(Debug, Default)]
struct Answers {
    /// First frames of the last ticks, each with the tick in which it was sent.
    open: VecDeque<(u64, u64)>,
    /// Tick in which the latest acknowledged frame was sent.
    at: u64,
}

#[derive(Debug, Default)]
struct Bond {
    led: Led,
    followed: Followed,
    answers: Answers,
}

/// See the room card.
#[derive(Debug, Default)]
pub(crate) struct Quiescence {
    quiet_ticks: u64,
    ticks: u64,
    awake: BTreeSet<ReplicaId>,
    /// Quiesced replicas that lead here: the nodes and the ids of the other replicas.
    led: BTreeMap<ReplicaId, Vec<(i32, u64)>>,
    /// Quiesced replicas that follow: the node of the leader.
    following: BTreeMap<ReplicaId, i32>,
    bonds: BTreeMap<i32, Bond>,
    slept: u64,
}

impl Quiescence {
    pub(super) fn new(quiet_ticks: u64) -> Self {
        Self { quiet_ticks, ..Self::default() }
    }

    /// Adds a replica, awake.
    pub(super) fn begin(&mut self, replica: ReplicaId) {
        self.awake.insert(replica);
    }

    /// Forgets a replica that is gone.
    pub(super) fn forget(&mut self, replica: ReplicaId) {
        self.rouse(replica);
        self.awake.remove(&replica);
    }

    /// Returns the replicas that are ticked.
    pub(super) fn awake(&self) -> impl Iterator<Item = ReplicaId> {
        self.awake.iter().copied()
    }

    /// Returns the number of quiesced replicas.
    pub(super) fn asleep(&self) -> usize {
        self.led.len() + self.following.len()
    }

    /// Returns the number of heard nodes whose set of quiesced groups differs from this node's.
    pub(super) fn uneven(&self) -> usize {
        let followed = self.bonds.values().map(|bond| &bond.followed);
        let heard = followed.filter(|it| it.silent < SILENT_TICKS);
        heard.filter(|it| it.uneven.is_some() || it.is_asking).count()
    }

    /// Returns the number of times that a replica became quiesced.
    pub(super) fn slept(&self) -> u64 {
        self.slept
    }

    fn rouse(&mut self, replica: ReplicaId) {
        self.awake.insert(replica);
        for (broker_id, to) in self.led.remove(&replica).unwrap_or_default() {
            let woken = Sleeper { from: replica.0, to, ..Sleeper::default() };
            self.bonds.entry(broker_id).or_default().led.change(woken);
        }
        if let Some(broker_id) = self.following.remove(&replica) {
            self.bonds.entry(broker_id).or_default().followed.remove(replica);
        }
    }

    fn is_answered(&self, broker_id: i32) -> bool {
        let bond = self.bonds.get(&broker_id);
        bond.is_some_and(|bond| bond.answers.at + SILENT_TICKS / 2 >= self.ticks)
    }

    /// Notes that another node has heard a frame of this one, and which version of the set it knows.
    pub(crate) fn on_heard(&mut self, broker_id: i32, number: u64, version: u64) {
        let bond = self.bonds.entry(broker_id).or_default();
        let Answers { open, at } = &mut bond.answers;
        while let Some((_, sent_at)) = open.front().filter(|(sent, _)| *sent <= number) {
            *at = *sent_at;
            open.pop_front();
        }
        bond.led.on_heard(version, self.ticks);
    }

    /// Returns the known version of another node's set, for this start of it.
    pub(crate) fn known(&self, broker_id: i32, incarnation: u64) -> u64 {
        let bond = self.bonds.get(&broker_id).map(|bond| &bond.followed);
        bond.filter(|it| it.incarnation == incarnation).map_or(0, |it| it.known)
    }

    /// Returns the part of a frame about quiesced groups, and notes that the frame is sent.
    pub(crate) fn tell(&mut self, broker_id: i32, number: u64) -> Asleep {
        let bond = self.bonds.entry(broker_id).or_default();
        let open = &mut bond.answers.open;
        if open.back().is_none_or(|(_, at)| *at < self.ticks) {
            open.push_back((number, self.ticks));
            open.truncate(OPEN_MAX);
        }
        bond.led.tell(self.ticks)
    }

    /// Checks that each replica here is ticked, or sleeps as leader or follower, at the end of a turn.
    pub(crate) fn inspect(&self, core: &Core) {
        debug_assert!(
            core.partitions.iter().all(|(replica, partition)| {
                let stages = [
                    self.awake.contains(replica),
                    self.led.contains_key(replica),
                    self.following.contains_key(replica),
                ];
                let is_ticked = partition.group.failure().is_some() || stages[0];
                stages.iter().filter(|it| **it).count() == 1
                    && (partition.group.is_asleep() || is_ticked)
            }),
            "a replica is ticked, or sleeps"
        );
        debug_assert_eq!(
            self.awake.len() + self.asleep(),
            core.partitions.len(),
            "only replicas that are here are ticked or sleep"
        );
        debug_assert!(
            self.following.iter().all(|(replica, node)| {
                self.bonds.get(node).is_some_and(|it| it.followed.sleepers.contains_key(replica))
            }),
            "a follower sleeps as its leader's node says"
        );
        debug_assert_eq!(
            self.following.len(),
            self.bonds.values().map(|bond| bond.followed.sleepers.len()).sum::<usize>(),
            "what a node says of sleepers is of replicas that sleep here"
        );
    }

    /// Counts a tick. Returns the replicas that no longer hear their leader's node, and the nodes that do not answer.
    fn tick(&mut self) -> (Vec<ReplicaId>, BTreeSet<i32>) {
        self.ticks += 1;
        let (mut unled, mut silent) = (Vec::new(), BTreeSet::new());
        for (broker_id, Bond { led, followed, answers }) in &mut self.bonds {
            followed.silent += 1;
            let is_silent = followed.silent >= SILENT_TICKS;
            if is_silent && !sabotage::is(Bug::SleepsOn) {
                unled.extend(followed.sleepers.keys());
            }
            followed.uneven = followed.uneven.map(|ticks| ticks + 1);
            if followed.uneven.is_some_and(|ticks| ticks >= UNEVEN_TICKS)
                && self.ticks >= followed.asked_at + WHOLE_TICKS
            {
                followed.ask_for_all(self.ticks);
            }
            let is_unanswered = answers.at + SILENT_TICKS <= self.ticks;
            if is_unanswered && led.count > 0 && !sabotage::is(Bug::SilentCounted) {
                silent.insert(*broker_id);
            }
        }
        (unled, silent)
    }
}

impl Quiescence {
    /// Ticks the groups of several voters that are awake, except the metadata group, and wakes others.
    pub(crate) fn tick_groups(&mut self, core: &mut Core) {
        let mut still = Vec::new();
        for replica in self.awake.clone() {
            let Some(partition) = core.partitions.get_mut(&replica) else { continue };
            match partition.group.doze(self.quiet_ticks) {
                Doze::Held => {}
                Doze::Still => still.push(replica),
                Doze::Awake => {
                    if partition.group.tick() {
                        mark(&mut core.dirty, partition);
                    }
                }
            }
        }
        let (unled, silent) = self.tick();
        for replica in still {
            self.lead_to_sleep(core, replica);
        }
        for replica in unled {
            core.wake(replica);
        }
        if !silent.is_empty() {
            self.wake_without(core, &silent);
        }
    }

    /// Wakes the groups that are led here with nodes that do not answer, so that they see which members are left.
    fn wake_without(&mut self, core: &mut Core, silent: &BTreeSet<i32>) {
        let left_of = |all: &Vec<(i32, u64)>| -> BTreeSet<u64> {
            all.iter().filter(|(broker_id, _)| silent.contains(broker_id)).map(|it| it.1).collect()
        };
        let led = self.led.iter().map(|(replica, all)| (*replica, left_of(all)));
        let left: Vec<_> = led.filter(|(_, silent)| !silent.is_empty()).collect();
        for (replica, silent) in left {
            if let Some(partition) = core.partitions.get_mut(&replica) {
                partition.group.wake_without(&silent);
                mark(&mut core.dirty, partition);
            }
        }
    }

    /// Puts a group that is led here and has nothing to do to sleep, if all its nodes are there.
    fn lead_to_sleep(&mut self, core: &mut Core, replica: ReplicaId) {
        // While the group sleeps, nobody checks which replicas keep up.
        core.note_lacking_of(replica);
        let Some(partition) = core.partitions.get(&replica) else { return };
        let (id, term, index) = (partition.id, partition.group.term(), partition.group.applied());
        let place = |to| Some((core.placed(id, to)?.broker_id, to));
        let places: Option<Vec<(i32, u64)>> =
            partition.group.peers().into_iter().map(place).collect();
        let is_there = |(broker_id, _): &(i32, u64)| self.is_answered(*broker_id);
        let Some(places) = places.filter(|it| it.iter().all(is_there)) else { return };
        for &(broker_id, to) in &places {
            let sleeper = Sleeper { from: replica.0, to, term, index };
            self.bonds.entry(broker_id).or_default().led.change(sleeper);
        }
        self.led.insert(replica, places);
        self.awake.remove(&replica);
        self.slept += 1;
        let partition = core.partitions.get_mut(&replica).expect("it was just there");
        partition.group.sleep();
    }

    /// Ticks a replica again if it has woken, and tells the other nodes. Every event that wakes a group gives it a
    /// turn.
    pub(crate) fn note_rest(&mut self, core: &mut Core, replica: ReplicaId) {
        if self.awake.contains(&replica) {
            return;
        }
        let Some(partition) = core.partitions.get(&replica) else { return };
        if partition.group.is_asleep() {
            return;
        }
        if sabotage::is(Bug::StaysInSet) && !partition.group.is_serving() {
            self.led.remove(&replica);
        }
        self.rouse(replica);
    }

    /// Takes another node's set of quiesced groups.
    pub(crate) fn on_asleep(
        &mut self,
        core: &mut Core,
        (broker_id, incarnation): (i32, u64),
        directory_id: Uuid,
        asleep: Asleep,
    ) {
        let Asleep { version, hash, after, upto, sleepers } = asleep;
        let followed = &mut self.bonds.entry(broker_id).or_default().followed;
        if followed.incarnation != incarnation {
            // Statements of another start of the node are void.
            let before = std::mem::take(followed);
            followed.incarnation = incarnation;
            for replica in before.sleepers.into_keys() {
                self.following.remove(&replica);
                core.wake(replica);
            }
        }
        let followed = &mut self.bonds.entry(broker_id).or_default().followed;
        if upto < followed.known || after > followed.known || upto > version {
            return;
        }
        (followed.known, followed.silent) = (upto, 0);
        for sleeper in sleepers {
            self.follow_sleeper(core, broker_id, directory_id, sleeper);
        }
        if upto < version {
            return;
        }
        let followed = &mut self.bonds.entry(broker_id).or_default().followed;
        let mut unnamed = Vec::new();
        if std::mem::take(&mut followed.is_asking) {
            let asked = followed.asked;
            let all = followed.sleepers.iter().filter(|(_, (at, _))| *at < asked);
            unnamed.extend(all.map(|(replica, _)| *replica));
        }
        if followed.hash == hash {
            followed.uneven = None;
        } else {
            followed.uneven.get_or_insert(0);
        }
        for replica in unnamed {
            core.wake(replica);
        }
    }

    /// Follows a leader elsewhere that sleeps or has woken.
    fn follow_sleeper(
        &mut self,
        core: &mut Core,
        broker_id: i32,
        directory_id: Uuid,
        sleeper: Sleeper,
    ) {
        let replica = ReplicaId(sleeper.to);
        let Some(partition) = core.partitions.get(&replica) else { return };
        let (id, leader) = (partition.id, sleeper.from);
        if sleeper.has_woken() {
            if self.following.get(&replica) == Some(&broker_id) {
                core.wake(replica);
            }
            return;
        }
        let is_placed = core.placed(id, leader).is_some_and(|it| it.directory_id == directory_id);
        if !is_placed {
            core.counters.foreign_letters += 1;
            return;
        }
        let goes_first = core.is_next_preferred(id, leader, replica);
        let Some(partition) = core.partitions.get_mut(&replica) else { return };
        let place = (sleeper.term, sleeper.index);
        let sleeps = partition.group.follow_to_sleep(leader, place, goes_first);
        mark(&mut core.dirty, partition);
        if let Some(before) = self.following.remove(&replica) {
            self.bonds.entry(before).or_default().followed.remove(replica);
        } else if sleeps {
            self.slept += 1;
        }
        if sleeps {
            self.awake.remove(&replica);
            self.following.insert(replica, broker_id);
            self.bonds.entry(broker_id).or_default().followed.insert(sleeper);
        }
    }
}

impl Core {
    fn wake(&mut self, replica: ReplicaId) {
        if let Some(partition) = self.partitions.get_mut(&replica) {
            partition.group.wake();
            mark(&mut self.dirty, partition);
        }
    }

    /// Tells whether a replica is the first of its placement except for the leader.
    fn is_next_preferred(&self, group: GroupId, leader: u64, replica: ReplicaId) -> bool {
        let topic = self.controller.image.topic(Uuid(group.topic_id));
        let at = usize::try_from(group.partition).unwrap_or(usize::MAX);
        let placed = topic.and_then(|topic| topic.partitions.get(at)).into_iter().flatten();
        let mut others = placed.filter(|placed| placed.peer_id != leader);
        others.next().is_some_and(|next| next.peer_id == replica.0)
    }
}

impl Quiescence {
    /// Finds which replicas of the partitions led here lack something. Quiesced groups have no such replica.
    pub(crate) fn note_lacking(&mut self, core: &mut Core) {
        let is_settled = |replica: &ReplicaId| {
            core.partitions.get(replica).is_some_and(|it| core.peers.is_settled(it.id))
        };
        let led: Vec<ReplicaId> = self.awake().filter(is_settled).collect();
        for replica in led {
            core.note_lacking_of(replica);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the version up to which a step is taken; the rest of the set has no bearing on that.
    fn take(known: u64, told: &Asleep) -> u64 {
        if told.after <= known && told.upto >= known { told.upto } else { known }
    }

    #[test]
    fn what_was_lost_is_told_again_however_much_is_new() {
        let (mut led, mut known, mut taken_at) = (Led::default(), 0, 0);
        for ticks in 1..200 {
            led.change(Sleeper { from: 1, to: ticks, term: 1, index: 1 });
            let told = led.tell(ticks);
            // One frame of ten is lost, and the answers to the others are two ticks late.
            if !ticks.is_multiple_of(10) && take(known, &told) == told.version {
                (known, taken_at) = (told.version, ticks);
            }
            led.on_heard(known.saturating_sub(2), ticks);
            assert!(ticks - taken_at < SILENT_TICKS, "deaf since {taken_at}");
        }
    }
}
