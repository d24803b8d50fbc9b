//! Changes of a group's voters, one at a time.
//!
//! A new replica begins as a learner, outside the voters. The leader promotes it when it has caught up and while it is
//! heard. One change does all the rest, joint if it concerns more than one voter. A leader that is to go hands
//! leadership over first, if a voter that stays can lead. A replica that goes may fail at any time, so it must not stay
//! as an extra voter beside those that were asked for. Where no voter stays, the leader remains a voter until another
//! replica leads, because no leader proposes to remove itself. A leader that a former leader's change has removed steps
//! down. Every change is an entry, executed when it is applied. The next step follows from the membership alone, so a
//! new leader goes on where the former one stopped.
//!
//! A leader may have old metadata, and want the result of an earlier move. It would let in replicas that are deleted,
//! and remove those of a later move. So every move has a number, and each change carries the number of its move. A move
//! is over only when the group's log has its number. The leader has all of that log, and changes nothing for a move
//! before the latest one.

use duramen_storage::op::ConfState;
use protobuf::Message as _;
use raft::eraftpb::{ConfChangeSingle, ConfChangeType, ConfChangeV2, Entry, EntryType};

use super::Group;
use crate::limits::ELECTION_TICKS;
use duramen_storage::sabotage::{self, Bug};

fn change(
    kinds: impl IntoIterator<Item = (ConfChangeType, u64)>,
    move_number: u64,
) -> ConfChangeV2 {
    let single = |(kind, peer)| {
        let mut single = ConfChangeSingle::default();
        single.set_change_type(kind);
        single.node_id = peer;
        single
    };
    let changes: Vec<_> = kinds.into_iter().map(single).collect();
    debug_assert!(
        changes
            .iter()
            .enumerate()
            .all(|(at, one)| { changes[..at].iter().all(|before| before.node_id != one.node_id) }),
        "a change names each peer once"
    );
    assert!(!changes.is_empty(), "a change without a peer would leave a joint membership");
    let mut change = ConfChangeV2::default();
    change.set_changes(changes.into());
    change.context = move_number.to_be_bytes().to_vec().into();
    change
}

/// Returns the number of the move that a change is of; 0 if it is of none.
pub(super) fn move_number(change: &ConfChangeV2) -> u64 {
    change.context.first_chunk().map_or(0, |number| u64::from_be_bytes(*number))
}

/// Result of a step towards other voters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Approach {
    /// Target reached: no other member remains, and no earlier move can change the membership any more.
    There,
    /// Nothing done: a change is under way, or a replica is not ready.
    Waits,
    /// Something was proposed, or a hand-over has begun: the group has to have its turn.
    Stepped,
}

impl Group {
    /// Takes one step towards the voters `target`, and the `observers`, which have the whole log and do not vote.
    /// `move_number` is the number of the move that wants them.
    pub(crate) fn approach(
        &mut self,
        target: &[u64],
        observers: &[u64],
        move_number: u64,
    ) -> Approach {
        if !self.is_serving() || self.is_moving() || self.raw.raft.has_pending_conf() {
            return Approach::Waits;
        }
        let ConfState { voters, learners, voters_outgoing, move_number: latest, .. } =
            self.raw.store().conf.clone();
        if latest > move_number {
            return Approach::Waits;
        }
        if !voters_outgoing.is_empty() {
            // The library leaves a joint membership by itself, but not one that another leader has entered.
            self.reshape_to(&ConfChangeV2::default());
            return Approach::Stepped;
        }
        let is_new = |peer: &&u64| !voters.contains(peer) && !learners.contains(peer);
        if let Some(new) = target.iter().chain(observers).find(is_new) {
            self.reshape_to(&change([(ConfChangeType::AddLearnerNode, *new)], move_number));
            return Approach::Stepped;
        }
        let own = self.id.0;
        if !target.contains(&own)
            && let Some(successor) = self.next_successor(target)
        {
            let is_begun = self.hand_over(successor, false);
            return if is_begun { Approach::Stepped } else { Approach::Waits };
        }
        // A voter without entries would count toward a majority. So a new one must have all that was committed a moment
        // ago.
        let committed = self.raw.raft.raft_log.committed;
        let before = self.pace.looked.replace((self.term(), committed));
        let Some((_, least)) = before.filter(|(term, _)| *term == self.term()) else {
            return Approach::Waits;
        };
        let since = self.pace.ticks.saturating_sub(ELECTION_TICKS as u64);
        let is_heard =
            |peer: &&u64| **peer == own || self.pace.heard.get(peer).is_some_and(|at| *at >= since);
        // One whose disk was lost since it caught up would take the place of one that is alive.
        let is_fit = |peer: &u64| {
            self.matched(*peer) >= least && is_heard(&peer) || sabotage::is(Bug::PromotedAtOnce)
        };
        if !target.iter().all(|peer| voters.contains(peer) || is_fit(peer)) {
            return Approach::Waits;
        }
        // Nor may those who are to vote be so many that are dead that they could never decide anything.
        if 2 * target.iter().filter(is_heard).count() <= target.len() {
            return Approach::Waits;
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
            self.reshape_to(&change(changes, move_number));
        } else if target.contains(&own) && latest < move_number {
            // This replica votes already: the change only records which move was the latest.
            self.reshape_to(&change([(ConfChangeType::AddNode, own)], move_number));
        } else {
            return if target.contains(&own) { Approach::There } else { Approach::Waits };
        }
        Approach::Stepped
    }

    /// Returns one of these that may lead after this replica. Each call returns another one, since a replica whose node
    /// is about to end declines.
    fn next_successor(&self, among: &[u64]) -> Option<u64> {
        let mut successors: Vec<u64> = self.successors().filter(|it| among.contains(it)).collect();
        successors.sort_unstable();
        let turn = usize::try_from(self.pace.ticks).unwrap_or(0) / ELECTION_TICKS;
        (!successors.is_empty()).then(|| successors[turn % successors.len()])
    }

    /// Tells whether a peer is a voter or a learner.
    pub(crate) fn has_member(&self, peer: u64) -> bool {
        let ConfState { voters, learners, voters_outgoing, learners_next, .. } =
            &self.raw.store().conf;
        [voters, learners, voters_outgoing, learners_next].iter().any(|it| it.contains(&peer))
    }

    /// Tells whether the group is in a joint membership, between its former and its next voters.
    pub(crate) fn is_joint(&self) -> bool {
        !self.raw.store().conf.voters_outgoing.is_empty()
    }

    fn reshape_to(&mut self, change: &ConfChangeV2) {
        self.wake();
        self.guarded(|raw| raw.propose_conf_change(Vec::new(), change.clone()).ok());
    }
}

/// Returns the change of membership that an entry is; an empty one leaves a joint membership.
pub(super) fn change_of(entry: &Entry) -> Option<ConfChangeV2> {
    let is_change = entry.get_entry_type() == EntryType::EntryConfChangeV2;
    let mut change = ConfChangeV2::default();
    let read = is_change.then(|| change.merge_from_bytes(&entry.data))?;
    read.ok().map(|()| change)
}
