//! Members of a group and their progress, for callers that ask.

use super::Group;
use super::log::sorted;

impl Group {
    /// Returns the peers that vote, by the present membership or by the one that it leaves.
    pub(crate) fn electorate(&self) -> Vec<u64> {
        let conf = &self.raw.store().conf;
        sorted(conf.voters.iter().chain(&conf.voters_outgoing).copied())
    }

    /// Tells whether a peer votes by the present membership and, in a joint one, also by the one that it leaves. Both
    /// must agree.
    pub(crate) fn is_full_voter(&self, peer: u64) -> bool {
        let conf = &self.raw.store().conf;
        let leaves = &conf.voters_outgoing;
        conf.voters.contains(&peer) && (leaves.is_empty() || leaves.contains(&peer))
    }

    /// Returns the learners, which have the log and do not vote.
    pub(crate) fn learners(&self) -> Vec<u64> {
        let conf = &self.raw.store().conf;
        let electorate = self.electorate();
        let learners = conf.learners.iter().chain(&conf.learners_next).copied();
        sorted(learners.filter(|peer| !electorate.contains(peer)))
    }

    /// Returns one past the last offset that a peer has, if it is known here. The leader knows it, unless the peer is
    /// very far behind.
    pub(crate) fn end_offset_of(&self, peer: u64) -> Option<i64> {
        if peer == self.id.0 {
            return Some(self.end_offset());
        }
        if !self.is_serving() {
            return None;
        }
        let matched = self.matched(peer);
        self.raw.store().offset_after(matched).filter(|_| matched > 0)
    }
}
