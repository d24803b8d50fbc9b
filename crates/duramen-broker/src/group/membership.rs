//! The voters of a group become others, a change at a time.
//!
//! Who is added begins as a learner, outside the voters, and is promoted when it has caught up; all that is left to do is
//! then one change, joint if it concerns more than one voter. A leader that is to go stays a voter until another one
//! leads: so none proposes to remove itself; and one that finds itself removed, by a change of a former leader, steps
//! down. Every change is an entry, executed when it is applied, and what is to be done next follows from the membership
//! alone: whoever leads goes on where another one stopped.

use duramen_storage::op::ConfState;
use raft::eraftpb::{ConfChangeSingle, ConfChangeType, ConfChangeV2};

use super::Group;
use crate::limits::ELECTION_TICKS;
use duramen_storage::sabotage::{self, Bug};

fn change(kinds: impl IntoIterator<Item = (ConfChangeType, u64)>) -> ConfChangeV2 {
    let single = |(kind, peer)| {
        let mut single = ConfChangeSingle::default();
        single.set_change_type(kind);
        single.node_id = peer;
        single
    };
    let mut change = ConfChangeV2::default();
    change.set_changes(kinds.into_iter().map(single).collect::<Vec<_>>().into());
    change
}

impl Group {
    /// Comes one step nearer to the voters `target`, and to `observers`, which have all and do not vote. True if it is so
    /// already, and there is nobody else.
    pub(crate) fn approach(&mut self, target: &[u64], observers: &[u64]) -> bool {
        if !self.is_serving() || self.is_moving() || self.raw.raft.has_pending_conf() {
            return false;
        }
        let ConfState { voters, learners, voters_outgoing, .. } = self.raw.store().conf.clone();
        if !voters_outgoing.is_empty() {
            // The library leaves a joint membership by itself, but not one that another leader has entered.
            self.reshape_to(&ConfChangeV2::default());
            return false;
        }
        let is_new = |peer: &&u64| !voters.contains(peer) && !learners.contains(peer);
        if let Some(new) = target.iter().chain(observers).find(is_new) {
            self.reshape_to(&change([(ConfChangeType::AddLearnerNode, *new)]));
            return false;
        }
        let own = self.id.0;
        // A voter that has nothing would be asked to elect somebody: it must have all that was committed a moment ago.
        let committed = self.raw.raft.raft_log.committed;
        let before = self.pace.looked.replace((self.term(), committed));
        let Some((_, least)) = before.filter(|(term, _)| *term == self.term()) else {
            return false;
        };
        let is_fit = |peer: &u64| self.matched(*peer) >= least || sabotage::is(Bug::PromotedAtOnce);
        if !target.iter().all(|peer| voters.contains(peer) || is_fit(peer)) {
            return false;
        }
        // Nor may those who are to vote be so many that are dead that they could never decide anything.
        let since = self.pace.ticks.saturating_sub(ELECTION_TICKS as u64);
        let is_heard =
            |peer: &&u64| **peer == own || self.pace.heard.get(peer).is_some_and(|at| *at >= since);
        if 2 * target.iter().filter(is_heard).count() <= target.len() {
            return false;
        }
        let leads_on = |peer: &u64| *peer == own && voters.contains(&own);
        let added = target.iter().filter(|it| !voters.contains(it));
        let others = voters.iter().chain(&learners);
        let is_wanted = |it: &&u64| target.contains(it) || observers.contains(it);
        let removed = others.filter(|it| !is_wanted(it) && !leads_on(it));
        let added = added.map(|peer| (ConfChangeType::AddNode, *peer));
        let changes: Vec<_> =
            added.chain(removed.map(|peer| (ConfChangeType::RemoveNode, *peer))).collect();
        if !changes.is_empty() {
            self.reshape_to(&change(changes));
        } else if !target.contains(&own) {
            let successor = self.successors().find(|peer| target.contains(peer));
            successor.map(|peer| self.hand_over(peer, false));
        } else {
            return true;
        }
        false
    }

    /// Whether a peer votes or learns.
    pub(crate) fn has_member(&self, peer: u64) -> bool {
        let ConfState { voters, learners, voters_outgoing, learners_next, .. } =
            &self.raw.store().conf;
        [voters, learners, voters_outgoing, learners_next].iter().any(|it| it.contains(&peer))
    }

    /// Whether it is on its way from some voters to others.
    pub(crate) fn is_joint(&self) -> bool {
        !self.raw.store().conf.voters_outgoing.is_empty()
    }

    fn reshape_to(&mut self, change: &ConfChangeV2) {
        self.guarded(|raw| raw.propose_conf_change(Vec::new(), change.clone()).ok());
    }
}
