//! Quiesced groups: a group that has nothing to do sleeps. It is not ticked, and sends nothing.
//!
//! A leader may sleep when it serves and gets no requests, and all followers have its whole log and know that the log
//! is committed. The leader stops its heartbeats, waits for the answers to the last ones, and sleeps. From then on
//! every frame of its node stands in for its heartbeats (see `node/quiescence.rs`). Its followers sleep when they hear
//! of it. Any event that concerns a sleeping group wakes it first.
//!
//! A follower wakes with its election clock expired. So it grants votes at once, and soon stands for election itself,
//! unless it gets the heartbeat that a leader sends when it wakes. A leader wakes with all followers counted as active,
//! because their nodes are. Its own node names those that are not, and then its first tick is the one that counts.

use std::collections::BTreeSet;

use raft::StateRole;

use super::Group;
use super::log::sorted;
use crate::limits::ELECTION_TICKS;

/// Ticks for which heartbeats are held back before a leader sleeps: answers to the last ones come meanwhile, which
/// would wake it. Followers must not miss them.
const HELD_TICKS: u64 = 3;
const _: () = assert!(HELD_TICKS + 3 < ELECTION_TICKS as u64);

/// Activity of a group in a tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Doze {
    /// The usual activity.
    Awake,
    /// No activity: the group is about to sleep.
    Held,
    /// The group may sleep now.
    Still,
}

/// State that changes with any activity of the group: term, last index, leadership checks, index of the membership.
type Doing = (u64, u64, u64, u64);

#[derive(Debug, Default)]
pub(super) struct Sleeping {
    is_asleep: bool,
    /// Of those that wake, this one is the first that should lead.
    goes_first: bool,
    doing: Doing,
    /// Ticks since it did anything.
    still: u64,
    /// The tick of the last heartbeat.
    beat: u64,
}

impl Group {
    /// Tells whether the group sleeps. A failed group does not.
    pub(crate) fn is_asleep(&self) -> bool {
        self.sleeping.is_asleep && self.failed.is_none()
    }

    /// Returns the other replicas that this one knows of, voters or not.
    pub(crate) fn peers(&self) -> Vec<u64> {
        let all = self.raw.raft.prs().iter().map(|(id, _)| *id);
        sorted(all.filter(|id| *id != self.id.0))
    }

    /// Decides the activity in a tick of a group that sleeps after `quiet_ticks` ticks without activity. Only a leader
    /// decides to sleep.
    pub(crate) fn doze(&mut self, quiet_ticks: u64) -> Doze {
        if self.raw.raft.state != StateRole::Leader {
            return Doze::Awake;
        }
        let (log, conf) = (&self.raw.raft.raft_log, &self.raw.store().conf);
        let doing = (self.term(), log.last_index(), self.confirming.asked(), conf.applied);
        let did = std::mem::replace(&mut self.sleeping.doing, doing);
        if did != doing || !self.is_still() {
            self.sleeping.still = 0;
            return Doze::Awake;
        }
        self.sleeping.still += 1;
        if self.sleeping.still <= quiet_ticks {
            return Doze::Awake;
        }
        if self.sleeping.still <= quiet_ticks + HELD_TICKS && self.is_heard_by_all() {
            return Doze::Held;
        }
        self.sleeping.still = 0;
        if self.is_answered_by_all() { Doze::Still } else { Doze::Awake }
    }

    /// Tells whether the group has nothing left to do: followers have the whole log, and know that it is committed.
    fn is_still(&self) -> bool {
        let (raft, log, conf) = (&self.raw.raft, &self.raw.raft.raft_log, &self.raw.store().conf);
        let last = log.last_index();
        let is_joint = !conf.voters_outgoing.is_empty() || !conf.learners_next.is_empty();
        let is_applied = self.applied.0 == last && log.committed == last && log.persisted == last;
        let mut others = raft.prs().iter().filter(|(id, _)| **id != self.id.0);
        self.is_serving()
            && is_applied
            && !is_joint
            && !self.is_moving()
            && raft.lead_transferee.is_none()
            && self.confirming.is_idle(self.term())
            && self.has_nothing_under_way()
            // Where all is matched, nothing will be sent that could end a probe.
            && others.all(|(_, it)| it.matched == last && it.committed_index == last)
    }

    pub(super) fn has_nothing_under_way(&self) -> bool {
        self.created
            && self.in_flight.is_empty()
            && self.released.is_empty()
            && !self.is_beginning()
            && !self.raw.has_ready()
    }

    fn is_heard_by_all(&self) -> bool {
        let since = self.pace.ticks.saturating_sub(ELECTION_TICKS as u64);
        self.peers().iter().all(|id| self.pace.heard.get(id).is_some_and(|at| *at >= since))
    }

    fn is_answered_by_all(&self) -> bool {
        let beat = self.sleeping.beat;
        self.peers().iter().all(|id| self.pace.heard.get(id).is_some_and(|at| *at >= beat))
    }

    /// Notes that a leader may have sent heartbeats.
    pub(super) fn note_beat(&mut self) {
        if self.raw.raft.state == StateRole::Leader && self.raw.has_ready() {
            self.sleeping.beat = self.pace.ticks;
        }
    }

    /// Puts the leader to sleep, as [`Group::doze`] allowed.
    pub(crate) fn sleep(&mut self) {
        assert!(self.is_still(), "a leader sleeps only with nothing left to do");
        self.sleeping.is_asleep = true;
        self.shipping.forget(self.applied.0);
    }

    /// Follows a leader that sleeps, if this replica has the same log up to `index`. True if this replica sleeps now
    /// too. If not, this is a heartbeat like any other, and its answer wakes the leader.
    pub(crate) fn follow_to_sleep(
        &mut self,
        leader: u64,
        (term, index): (u64, u64),
        goes_first: bool,
    ) -> bool {
        if self.failed.is_some() {
            return false;
        }
        let (raft, log) = (&self.raw.raft, &self.raw.raft.raft_log);
        let follows = raft.state == StateRole::Follower
            && raft.leader_id == leader
            && raft.term == term
            && leader != self.id.0;
        let has_all = log.last_index() == index
            && log.persisted == index
            && log.committed == index
            && self.applied.0 == index;
        if follows && has_all && self.has_nothing_under_way() {
            self.sleeping.is_asleep = true;
            self.sleeping.goes_first = goes_first;
            self.shipping.clear();
            return true;
        }
        self.on_message(self.beat_of(leader, term), Vec::new());
        false
    }

    /// Wakes the group, because something concerns it.
    pub(crate) fn wake(&mut self) {
        if !std::mem::take(&mut self.sleeping.is_asleep) {
            return;
        }
        self.sleeping.still = 0;
        if self.raw.raft.state == StateRole::Leader {
            for (_, progress) in self.raw.raft.mut_prs().iter_mut() {
                progress.recent_active = true;
            }
            self.raw.raft.election_elapsed = 0;
            // Followers hear it with the news that this group does not sleep any more.
            self.guarded(|raw| raw.raft.ping());
        } else {
            let half = ELECTION_TICKS / 2;
            let spread = usize::try_from(self.timeouts.below(half as u64)).expect("below five");
            let turn = if self.sleeping.goes_first { 0 } else { half };
            self.timeout_ticks = ELECTION_TICKS + turn + spread;
            self.raw.raft.election_elapsed = ELECTION_TICKS;
            self.settle_timeout();
        }
    }

    /// Wakes a leader because the nodes of these peers do not answer. The leader does not count them, and finds out at
    /// once whether enough are left.
    pub(crate) fn wake_without(&mut self, silent: &BTreeSet<u64>) {
        self.wake();
        if self.raw.raft.state != StateRole::Leader {
            return;
        }
        for (id, progress) in self.raw.raft.mut_prs().iter_mut() {
            progress.recent_active &= !silent.contains(id);
        }
        self.raw.raft.election_elapsed = ELECTION_TICKS;
    }
}
