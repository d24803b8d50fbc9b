//! Choice of nodes for replicas. A replica on an allowed node stays. A new one goes to the rack with the fewest
//! replicas of the partition, and there to the node with the fewest replicas.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::ensure;
use duramen_client::NodeId;

use crate::cli::screen;

/// Nodes with their racks and their numbers of replicas.
#[derive(Debug, Clone, Default)]
pub(crate) struct Load {
    sites: BTreeMap<NodeId, Site>,
}

#[derive(Debug, Clone, Default)]
struct Site {
    /// Rack of the node. Nodes without one count as one rack.
    rack: Option<String>,
    replicas: usize,
    /// Number of partitions whose first replica, the preferred leader, the node has.
    preferred: usize,
}

impl Load {
    /// Makes nodes without replicas.
    pub(crate) fn of_nodes(nodes: impl IntoIterator<Item = (NodeId, Option<String>)>) -> Self {
        let site = |(id, rack)| (id, Site { rack, ..Site::default() });
        Self { sites: nodes.into_iter().map(site).collect() }
    }

    /// Adds the replicas of a partition.
    pub(crate) fn add(&mut self, replicas: &[NodeId]) {
        for (at, id) in replicas.iter().enumerate() {
            let site = self.sites.entry(*id).or_default();
            site.replicas += 1;
            site.preferred += usize::from(at == 0);
        }
    }

    fn remove(&mut self, replicas: &[NodeId]) {
        for (at, id) in replicas.iter().enumerate() {
            let site = self.sites.entry(*id).or_default();
            site.replicas -= 1;
            site.preferred -= usize::from(at == 0);
        }
    }

    /// Moves the replicas of a partition to other nodes.
    pub(crate) fn replace(&mut self, before: &[NodeId], after: &[NodeId]) {
        self.remove(before);
        self.add(after);
    }

    /// Chooses `factor` nodes of `allowed` for a partition that is on the nodes `before`. The load has the new nodes
    /// from then on.
    pub(crate) fn fit(
        &mut self,
        before: &[NodeId],
        allowed: &BTreeSet<NodeId>,
        factor: usize,
    ) -> anyhow::Result<Vec<NodeId>> {
        ensure!(
            factor <= allowed.len(),
            "{} cannot be on {}: each needs a node of its own",
            screen::count(factor, "replica"),
            screen::count(allowed.len(), "node")
        );
        self.remove(before);
        let mut slots: Vec<Option<NodeId>> =
            before.iter().map(|id| Some(*id).filter(|id| allowed.contains(id))).collect();
        // Slots of forbidden nodes go first.
        while slots.len() > factor
            && let Some(empty) = slots.iter().rposition(Option::is_none)
        {
            slots.remove(empty);
        }
        while slots.len() > factor {
            let last = self.most_dispensable(&slots);
            slots.remove(last);
        }
        slots.resize(factor, None);
        for at in 0..slots.len() {
            if slots[at].is_none() {
                slots[at] = self.best_for(&slots, at == 0, allowed);
            }
        }
        let after: Vec<NodeId> = slots.into_iter().flatten().collect();
        self.add(&after);
        Ok(after)
    }

    fn rack(&self, id: NodeId) -> Option<&str> {
        self.sites.get(&id)?.rack.as_deref()
    }

    /// Counts the slots in a node's rack.
    fn in_rack(&self, slots: &[Option<NodeId>], id: NodeId) -> usize {
        slots.iter().flatten().filter(|other| self.rack(**other) == self.rack(id)).count()
    }

    /// Chooses the replica to remove: one that shares a rack with another, then one whose node has the most replicas.
    /// Keeps the first, the preferred leader.
    fn most_dispensable(&self, slots: &[Option<NodeId>]) -> usize {
        let weight = |at: usize| {
            let id = slots[at].unwrap_or_default();
            let load = self.sites.get(&id).map_or(0, |site| site.replicas);
            (self.in_rack(slots, id), load, at)
        };
        (1..slots.len()).max_by_key(|at| weight(*at)).unwrap_or(0)
    }

    fn best_for(
        &self,
        slots: &[Option<NodeId>],
        is_preferred: bool,
        allowed: &BTreeSet<NodeId>,
    ) -> Option<NodeId> {
        let free = allowed.iter().copied().filter(|id| !slots.contains(&Some(*id)));
        free.min_by_key(|id| {
            let (replicas, preferred) =
                self.sites.get(id).map_or((0, 0), |site| (site.replicas, site.preferred));
            let first = if is_preferred { preferred } else { 0 };
            (self.in_rack(slots, *id), first, replicas, *id)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(racks: &[Option<&str>]) -> Load {
        Load::of_nodes((1..).zip(racks.iter().map(|rack| rack.map(ToOwned::to_owned))))
    }

    #[test]
    fn what_may_stay_stays_and_what_is_new_goes_to_the_idlest() {
        let mut load = load(&[None; 5]);
        load.add(&[1, 2, 3]);
        load.add(&[4, 1, 2]);
        let allowed = BTreeSet::from([1, 2, 4, 5]);
        assert_eq!(load.fit(&[1, 2, 3], &allowed, 3).expect("enough"), [1, 2, 5]);
        // Node 5 has one replica now, as node 4; node 4 leads one already.
        load.add(&[3]);
        assert_eq!(load.fit(&[3], &allowed, 1).expect("enough"), [5]);
        let error = load.fit(&[1, 2], &BTreeSet::from([1]), 2).expect_err("too few").to_string();
        assert_eq!(error, "2 replicas cannot be on 1 node: each needs a node of its own");
    }

    #[test]
    fn each_rack_has_a_replica_before_any_has_two() {
        let mut load = load(&[Some("a"), Some("a"), Some("b"), Some("b"), Some("c")]);
        let all: BTreeSet<NodeId> = (1..=5).collect();
        load.add(&[1]);
        let raised = load.fit(&[1], &all, 3).expect("enough");
        assert_eq!(raised, [1, 3, 5]);
        // Node 2 shares a rack with node 1, which leads.
        load.add(&[1, 2, 3]);
        assert_eq!(load.fit(&[1, 2, 3], &all, 2).expect("enough"), [1, 3]);
    }

    #[test]
    fn a_node_is_emptied_evenly() {
        let mut load = load(&[None; 4]);
        let partitions: Vec<Vec<NodeId>> = (0..60).map(|_| vec![4, 1]).collect();
        for replicas in &partitions {
            load.add(replicas);
        }
        let allowed = BTreeSet::from([1, 2, 3]);
        let mut led = BTreeMap::new();
        for replicas in &partitions {
            let after = load.fit(replicas, &allowed, 2).expect("enough");
            assert!(after.len() == 2 && after[0] != after[1] && !after.contains(&4), "{after:?}");
            *led.entry(after[0]).or_insert(0) += 1;
        }
        assert_eq!(led, BTreeMap::from([(2, 30), (3, 30)]), "node 1 has all of them already");
    }
}
