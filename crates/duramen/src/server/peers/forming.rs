//! # Room card: forming
//!
//! Purpose:    make one cluster, and never two, of nodes that know each other's addresses.
//! Owns:       a node's promise, its entry as a member, the choice of nodes that it speaks with.
//! Interface:  [`Forming`]; [`judge`].
//! Invariants: a directory promises one set of directories, durably, and no other one ever; a cluster begins only where
//!             all of its directories have promised just that set. Two clusters that share a directory would share its
//!             promise, and so all directories, and so the one among them that decided, which decides once.
//! Never:      sockets, the disk, clocks: the caller makes [`Step`]s durable and passes on the greetings heard.
//! Tests:      `forming/tests.rs`: orders of messages, loss, restarts, wiped directories.
//! Start at:   [`Forming::next`].
//!
//! 1. Each node of a fresh directory greets the others until it has heard all that are listed. 2. It promises these
//!    directories, and says so. 3. The listed node of the lowest id hears that all have promised the same, decides
//!    the cluster's id, and is a member. 4. The others hear of it and are members, too. A node says only durable
//!    facts, and repeats them to each node that connects, so a node that was down hears them later.
//!
//! A directory that has promised nothing, and hears a member, joins its cluster, whether it is listed or not.

use std::collections::{BTreeMap, BTreeSet};

use duramen_protocol::wire::Uuid;
use duramen_storage::storage::Voter;

use super::greeting::{Greeting, Identity};

/// Decision that has to be made durable next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Voters with whom a cluster may be formed.
    Promise(Vec<Voter>),
    /// The cluster's id, or `None` if this node is to choose it, and the voters that it began with.
    Join(Option<[u8; 16]>, Vec<Voter>),
}

/// See the room card.
#[derive(Debug)]
pub(crate) struct Forming {
    own: Identity,
    /// All nodes that are listed. One that is not among them joins their cluster.
    listed: BTreeSet<i32>,
    heard: BTreeMap<i32, Identity>,
}

impl Forming {
    /// Makes the state from the manifest and the listed nodes.
    pub(crate) fn new(own: Identity, listed: impl IntoIterator<Item = i32>) -> Self {
        let heard = BTreeMap::new();
        Self { own, listed: listed.into_iter().collect(), heard }
    }

    /// Returns the identity that this node tells others.
    pub(crate) fn own(&self) -> &Identity {
        &self.own
    }

    /// Takes another node's greeting.
    pub(crate) fn hear(&mut self, greeting: Greeting) {
        let is_member = greeting.from.cluster_id.is_some();
        let counts = is_member || self.listed.contains(&greeting.from.broker_id);
        if counts && judge(&self.own, &greeting).is_ok() {
            self.heard.insert(greeting.from.broker_id, greeting.from);
        }
    }

    /// Notes that the promise is durable.
    pub(crate) fn promised(&mut self, voters: Vec<Voter>) {
        assert!(self.own.voters.is_empty(), "a promise is never changed");
        self.own.voters = voters;
    }

    /// Notes that the membership is durable.
    pub(crate) fn joined(&mut self, cluster_id: [u8; 16], founders: Vec<Voter>) {
        assert_eq!(self.own.cluster_id, None, "a member stays one");
        self.own.cluster_id = Some(cluster_id);
        self.own.voters = founders;
    }

    /// Returns the step that has to be made durable now, if any, or the reason why this directory can never be a
    /// member.
    pub(crate) fn next(&self) -> Result<Option<Step>, String> {
        if self.own.cluster_id.is_some() {
            return Ok(None);
        }
        let mut members = self.heard.values().filter(|it| it.cluster_id.is_some());
        if let Some(member) = members.next() {
            return self.next_with(member).map(Some);
        }
        if self.own.voters.is_empty() {
            let table = self.table();
            let is_agreed =
                |it: &Identity| it.voters.is_empty() || Some(&it.voters) == table.as_ref();
            let may_promise = self.heard.values().all(is_agreed);
            return Ok(table.filter(|_| may_promise).map(Step::Promise));
        }
        let have_promised = |voter: &Voter| {
            let heard = || self.heard.get(&voter.broker_id);
            let has = |it: &Identity| {
                it.directory_id == voter.directory_id && it.voters == self.own.voters
            };
            voter.broker_id == self.own.broker_id || heard().is_some_and(has)
        };
        let decides =
            self.own.voters.iter().map(|it| it.broker_id).min() == Some(self.own.broker_id);
        let is_agreed = decides && self.own.voters.iter().all(have_promised);
        Ok(is_agreed.then(|| Step::Join(None, self.own.voters.clone())))
    }

    /// Returns the step of a node that hears of a cluster. A directory that has promised nothing joins, as a new node
    /// or in the place of a node whose directory is lost. Then others have to send it all that it is to have.
    fn next_with(&self, member: &Identity) -> Result<Step, String> {
        let own = &self.own;
        let counts_on = |it: &Voter| it.directory_id == own.directory_id;
        if own.voters == member.voters {
            return Ok(Step::Join(member.cluster_id, own.voters.clone()));
        }
        let (id, cluster) = (own.broker_id, Uuid(member.cluster_id.unwrap_or_default()));
        if !own.voters.is_empty() {
            return Err(format!(
                "the cluster {cluster} was formed without node {id}, whose data directory was to form another one with \
                 other directories. No data was taken yet: remove the directory, and start the node again to join"
            ));
        }
        if member.voters.iter().any(counts_on) {
            return Err(format!(
                "the cluster {cluster} counts on this data directory, which does not know of it: it is an older copy. Start \
                 the node with the directory that it had last"
            ));
        }
        Ok(Step::Join(member.cluster_id, member.voters.clone()))
    }

    /// Returns all that are listed, if all were heard; ids in the metadata's group by order of node id.
    fn table(&self) -> Option<Vec<Voter>> {
        if !self.listed.contains(&self.own.broker_id) {
            return None;
        }
        let directory = |id: &i32| {
            let heard = || self.heard.get(id).map(|it| it.directory_id);
            if *id == self.own.broker_id { Some(self.own.directory_id) } else { heard() }
        };
        let voter = |(peer_id, id): (u64, &i32)| {
            Some(Voter { peer_id, broker_id: *id, directory_id: directory(id)? })
        };
        (1..).zip(&self.listed).map(voter).collect()
    }

    /// Describes in words the event that the node waits for.
    pub(crate) fn waits_for(&self) -> String {
        if !self.listed.contains(&self.own.broker_id) {
            let listed = &self.listed;
            return format!(
                "it is to join the cluster of nodes {listed:?}, and no member was heard yet"
            );
        }
        let others = self.listed.iter().filter(|id| **id != self.own.broker_id);
        let (heard, missing): (Vec<i32>, Vec<i32>) =
            others.copied().partition(|id| self.heard.contains_key(id));
        if !missing.is_empty() {
            return format!("nodes {missing:?} have not been heard yet");
        }
        let is_other = |it: &&Identity| {
            let table = if self.own.voters.is_empty() {
                self.table()
            } else {
                Some(self.own.voters.clone())
            };
            let stranger = |it: &Identity, table: &[Voter]| {
                !table.iter().any(|voter| voter.directory_id == it.directory_id)
                    || !it.voters.is_empty() && it.voters != table
            };
            table.is_some_and(|table| stranger(it, &table))
        };
        match self.heard.values().find(is_other) {
            Some(other) => format!(
                "node {} has another data directory than was agreed when the forming of this cluster began. No cluster was \
                 formed, so nothing is lost: stop all nodes, remove their data directories, and start them again",
                other.broker_id
            ),
            None => format!("nodes {heard:?} were heard, and have to agree"),
        }
    }
}

/// Tells whether a node goes on listening to one that sends this greeting; if not, returns the reason. The metadata
/// knows which directory belongs to which node, and that is judged there.
pub(crate) fn judge(own: &Identity, greeting: &Greeting) -> Result<(), String> {
    let Greeting { to, from, .. } = greeting;
    if *to != own.broker_id {
        return Err(format!(
            "node {} takes this one for node {to}: an address in its \
            controller.quorum.voters leads to the wrong node",
            from.broker_id
        ));
    }
    if from.broker_id == own.broker_id {
        return Err(format!(
            "another process is node {to}, too: every node needs a node.id of its own"
        ));
    }
    let Some(cluster_id) = own.cluster_id else { return Ok(()) };
    if from.cluster_id.is_some_and(|other| other != cluster_id) {
        return Err(format!("node {} belongs to another cluster", from.broker_id));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
