//! Planned transfer of a group's leadership.
//!
//! A leader that transfers its leadership accepts no more proposals. First it applies all of its entries, so that no
//! request waits for one of them. Then the library makes sure that the successor has all entries, and tells it to stand
//! for election at once. If the transfer does not complete within an election timeout, the leader goes on as before.
//!
//! A leader whose own disk is far behind, or stands still, does not wait until its entries are applied. A majority
//! without it has the entries that its disk lacks, and its successor will commit them.

use super::Group;
use super::lag::Lag;
use crate::limits::ELECTION_TICKS;
use raft::StateRole;

/// Ticks in which other replicas have time to elect one of them, after a leader has stepped aside.
const ASIDE_TICKS: u64 = 4 * ELECTION_TICKS as u64;

/// A handover that has begun.
#[derive(Clone, Copy, Debug)]
struct Handover {
    to: u64,
    /// The tick at which it has failed.
    until: u64,
    /// True if the leader does not wait until its entries are applied: the successor will commit them.
    in_haste: bool,
    /// True once the library knows of the handover.
    is_told: bool,
}

#[derive(Debug, Default)]
pub(super) struct Moving {
    handover: Option<Handover>,
    lag: Lag,
}

impl Group {
    /// Begins to hand leadership over to a voter that [`Group::successors`] names. False if it cannot be.
    pub(crate) fn hand_over(&mut self, to: u64, in_haste: bool) -> bool {
        let is_possible = self.is_serving()
            && !self.is_moving()
            && self.successors().any(|successor| successor == to);
        if is_possible {
            self.wake();
            let until = self.pace.ticks + ELECTION_TICKS as u64;
            self.moving.handover = Some(Handover { to, until, in_haste, is_told: false });
        }
        is_possible
    }

    /// Gives up leadership, and leaves it to other replicas to stand for election. This leader cannot give the entries
    /// that only it has, so nothing is committed while it leads.
    pub(crate) fn step_aside(&mut self) {
        let log = &self.raw.raft.raft_log;
        if self.raw.raft.state == StateRole::Leader && log.committed < log.last_index() {
            self.pace.aside_until = self.pace.ticks + ASIDE_TICKS;
            let term = self.term();
            self.guarded(|raw| raw.raft.become_follower(term, raft::INVALID_ID));
        }
    }

    /// Tells whether leadership is being handed over: nothing is appended meanwhile.
    pub(crate) fn is_moving(&self) -> bool {
        self.moving.handover.is_some()
    }

    /// Returns the replicas that may lead instead: voters that keep up, and were heard within an election timeout.
    pub(crate) fn successors(&self) -> impl Iterator<Item = u64> {
        let is_heard = |id: u64| self.is_heard(id, ELECTION_TICKS as u64);
        let may =
            move |id: &u64| *id != self.id.0 && is_heard(*id) && self.voter_ids().contains(id);
        self.caught_up().filter(may)
    }

    /// Tells whether this leader heard a peer in its last ticks.
    pub(crate) fn is_heard(&self, peer: u64, ticks: u64) -> bool {
        let since = self.pace.ticks.saturating_sub(ticks);
        self.pace.heard.get(&peer).is_some_and(|at| *at >= since)
    }

    /// Returns the last index that a peer has, as far as this leader knows.
    pub(crate) fn matched(&self, peer: u64) -> u64 {
        self.raw.raft.prs().get(peer).map_or(0, |progress| progress.matched)
    }

    /// Returns by how many ticks this replica's own disk is behind a majority, if it has been so for too long.
    pub(crate) fn held_up_by_disk(&self) -> Option<u64> {
        self.moving.lag.too_much()
    }

    /// Counts one tick.
    pub(super) fn tick_moving(&mut self) {
        let ticks = self.pace.ticks;
        self.moving.handover.take_if(|handover| ticks > handover.until);
        self.moving.lag.tick(self.raw.raft.raft_log.committed, self.persisted());
    }

    /// Tells the library, once nobody waits for an entry.
    pub(super) fn move_on(&mut self) {
        let Some(handover) = self.moving.handover else { return };
        if !self.is_serving() {
            self.moving.handover = None;
            return;
        }
        let is_applied = self.applied.0 == self.raw.raft.raft_log.last_index();
        if handover.is_told || !is_applied && !handover.in_haste {
            return;
        }
        let until = self.pace.ticks + ELECTION_TICKS as u64;
        self.moving.handover = Some(Handover { until, is_told: true, ..handover });
        self.guarded(|raw| raw.transfer_leader(handover.to));
    }
}
