//! The plan of `duramen cluster balance`: which replicas go to which nodes, and which replica comes first.
//!
//! First each partition gets as many racks as it can. Then replicas move from nodes with more to nodes with fewer, and
//! at last the order of the replicas spreads the preferred leaders. A plan is a function of its input alone. The plan
//! of what a plan leaves behind is empty: planning ends with a round that found nothing to change.

use std::collections::{BTreeMap, BTreeSet};

use duramen_client::NodeId;
use serde::Serialize;

/// Replicas of one partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Replicas {
    /// Nodes of the replicas, the preferred leader first.
    pub(super) nodes: Vec<NodeId>,
    /// Size of one replica, in bytes.
    pub(super) bytes: u64,
    /// True if the plan may change the replicas. Others only count as load of their nodes.
    pub(super) is_free: bool,
}

/// Reason for a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Why {
    /// Replicas shared a rack, and another rack had none.
    Racks,
    /// A node had more replicas than another one.
    Replicas,
    /// A node was the preferred leader of more partitions than another one. Nothing but the order changes.
    Leaders,
}

/// Change of one partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Change {
    /// Place of the partition in the input.
    pub(super) at: usize,
    /// Nodes of the replicas after the change, the preferred leader first.
    pub(super) after: Vec<NodeId>,
    pub(super) why: Why,
}

/// Plans changes for partitions on `sites`: nodes that may get replicas, with their racks. At most `moves_max`
/// partitions get a replica on another node.
pub(super) fn plan(
    sites: &BTreeMap<NodeId, Option<String>>,
    there: &[Replicas],
    moves_max: usize,
) -> Vec<Change> {
    if sites.is_empty() {
        return Vec::new();
    }
    let mut draft = Draft::new(sites, there, moves_max);
    loop {
        draft.begin_round();
        draft.spread_over_racks();
        draft.even_out_replicas();
        draft.even_out_leaders();
        if !draft.has_changed() {
            break;
        }
    }
    draft.changes()
}

/// Place of a node in the order of ids.
type Site = usize;

/// Partition that may change.
#[derive(Debug)]
struct Log {
    /// Place in the input.
    at: usize,
    /// Cost of one new replica. A move without bytes costs something, too.
    cost: i128,
    /// Sites before the plan.
    before: Vec<Site>,
    /// Sites before the round.
    origin: Vec<Site>,
    /// Sites now, the preferred leader first.
    now: Vec<Site>,
    changed_racks: bool,
}

impl Log {
    fn is_moved(&self) -> bool {
        self.now.iter().any(|site| !self.before.contains(site))
    }

    /// Returns the cost of a replica on a site: none if it was there.
    fn cost_of(&self, site: Site) -> i128 {
        if self.origin.contains(&site) { 0 } else { self.cost }
    }

    fn replace(&mut self, from: Site, to: Site) {
        assert!(!self.now.contains(&to), "a node has one replica of a partition");
        let slot = self.now.iter().position(|site| *site == from).expect("it has a replica there");
        self.now[slot] = to;
    }
}

/// Replicas while they are planned.
#[derive(Debug)]
struct Draft {
    ids: Vec<NodeId>,
    /// Number of each site's rack.
    racks: Vec<usize>,
    /// Replicas of each site.
    replicas: Vec<usize>,
    /// Partitions whose first replica is on each site.
    leaders: Vec<usize>,
    logs: Vec<Log>,
    moves_max: usize,
}

impl Draft {
    fn new(sites: &BTreeMap<NodeId, Option<String>>, there: &[Replicas], moves_max: usize) -> Self {
        let ids: Vec<NodeId> = sites.keys().copied().collect();
        // Nodes without a rack count as one rack, as for new topics.
        let names: BTreeSet<&Option<String>> = sites.values().collect();
        let number = |rack| names.iter().position(|name| *name == rack).unwrap_or_default();
        let racks = sites.values().map(number).collect();
        let mut draft = Self {
            replicas: vec![0; ids.len()],
            leaders: vec![0; ids.len()],
            ids,
            racks,
            logs: Vec::new(),
            moves_max,
        };
        for (at, one) in there.iter().enumerate() {
            let site = |id: &NodeId| draft.ids.binary_search(id).ok();
            let found: Vec<Option<Site>> = one.nodes.iter().map(site).collect();
            if let Some(Some(first)) = found.first() {
                draft.leaders[*first] += 1;
            }
            found.iter().flatten().for_each(|site| draft.replicas[*site] += 1);
            let now: Vec<Site> = found.iter().flatten().copied().collect();
            // A partition with a replica elsewhere stays: its other replicas may be all that it has.
            if one.is_free && now.len() == one.nodes.len() {
                let (before, origin) = (now.clone(), now.clone());
                let cost = i128::from(one.bytes) + 1;
                draft.logs.push(Log { at, cost, before, origin, now, changed_racks: false });
            }
        }
        draft
    }

    fn begin_round(&mut self) {
        for log in &mut self.logs {
            log.origin.clone_from(&log.now);
        }
    }

    fn has_changed(&self) -> bool {
        self.logs.iter().any(|log| log.origin != log.now)
    }

    fn changes(self) -> Vec<Change> {
        let changed = self.logs.into_iter().filter(|log| log.now != log.before);
        let change = |log: Log| Change {
            at: log.at,
            why: match (log.is_moved(), log.changed_racks) {
                (true, true) => Why::Racks,
                (true, false) => Why::Replicas,
                (false, _) => Why::Leaders,
            },
            after: log.now.iter().map(|site| self.ids[*site]).collect(),
        };
        changed.map(change).collect()
    }

    /// Counts the partitions that may still move.
    fn room(&self) -> usize {
        self.moves_max.saturating_sub(self.logs.iter().filter(|log| log.is_moved()).count())
    }

    /// Counts a partition's replicas in the rack of a site.
    fn in_rack(&self, log: &Log, site: Site) -> usize {
        log.now.iter().filter(|other| self.racks[**other] == self.racks[site]).count()
    }

    /// Moves replicas out of racks that have several of a partition, where another rack has fewer.
    fn spread_over_racks(&mut self) {
        let mut room = self.room();
        for at in 0..self.logs.len() {
            while let Some((from, to)) = self.best_for_racks(at) {
                let was_moved = self.logs[at].is_moved();
                if !was_moved && room == 0 {
                    return;
                }
                self.shift(at, from, to);
                self.logs[at].changed_racks = true;
                room -= usize::from(!was_moved);
            }
        }
    }

    /// Finds the move of a partition's replica that helps most: to the emptiest rack, then to the emptiest node.
    fn best_for_racks(&self, at: usize) -> Option<(Site, Site)> {
        let log = &self.logs[at];
        let free = (0..self.ids.len()).filter(|site| !log.now.contains(site));
        let all = free.flat_map(|to| log.now.iter().map(move |from| (*from, to)));
        let gain = |(from, to): (Site, Site)| {
            self.in_rack(log, from).checked_sub(self.in_rack(log, to) + 1)
        };
        let helps = all.filter_map(|pair| Some((gain(pair).filter(|gain| *gain > 0)?, pair)));
        let best = helps.min_by_key(|(gain, (from, to))| {
            let (crowd, is_first) = (self.replicas[*from], *from == log.now[0]);
            (usize::MAX - gain, self.replicas[*to], usize::MAX - crowd, is_first, *to, *from)
        });
        best.map(|(_, pair)| pair)
    }

    fn shift(&mut self, at: usize, from: Site, to: Site) {
        let log = &mut self.logs[at];
        let first = log.now[0];
        log.replace(from, to);
        self.replicas[from] -= 1;
        self.replicas[to] += 1;
        self.leaders[first] -= 1;
        self.leaders[log.now[0]] += 1;
    }

    /// Moves replicas until no node has two more than another one that they could go to.
    fn even_out_replicas(&mut self) {
        let mut routes = Routes::default();
        for at in 0..self.logs.len() {
            routes.add(at, self.ways_of(at));
        }
        let mut room = self.room();
        while let Some(path) = routes.path(&self.replicas) {
            let new = path.iter().filter(|step| !self.logs[step.log].is_moved()).count();
            if new > room {
                return;
            }
            for step in path {
                let was_moved = self.logs[step.log].is_moved();
                routes.remove(step.log, self.ways_of(step.log));
                self.shift(step.log, step.from, step.to);
                routes.add(step.log, self.ways_of(step.log));
                room += usize::from(was_moved);
                room -= usize::from(self.logs[step.log].is_moved());
            }
        }
    }

    /// Lists the moves of a partition's replicas that leave it in no fewer racks.
    fn ways_of(&self, at: usize) -> Vec<Way> {
        let log = &self.logs[at];
        let mut ways = Vec::new();
        for &from in &log.now {
            for to in (0..self.ids.len()).filter(|site| !log.now.contains(site)) {
                let is_same = self.racks[from] == self.racks[to];
                if is_same || self.in_rack(log, to) < self.in_rack(log, from) {
                    ways.push(Way { from, to, cost: log.cost_of(to) - log.cost_of(from) });
                }
            }
        }
        ways
    }

    /// Reorders replicas until no node is the preferred leader of two more than another one that could be instead.
    fn even_out_leaders(&mut self) {
        let mut routes = Routes::default();
        for (at, log) in self.logs.iter().enumerate() {
            routes.add(at, turns_of(log));
        }
        while let Some(path) = routes.path(&self.leaders) {
            for step in path {
                let log = &mut self.logs[step.log];
                routes.remove(step.log, turns_of(log));
                let slot = log.now.iter().position(|site| *site == step.to);
                log.now[..=slot.expect("it has a replica there")].rotate_right(1);
                self.leaders[step.from] -= 1;
                self.leaders[step.to] += 1;
                routes.add(step.log, turns_of(log));
            }
        }
    }
}

/// Lists the replicas of a partition that could be the first instead of the present one.
fn turns_of(log: &Log) -> Vec<Way> {
    let (from, others) = log.now.split_first().expect("a partition has a replica");
    // A partition that loses its preferred leader anyway gets one for nothing.
    let is_lost = !log.now.contains(&log.origin[0]);
    let cost = |site: Site| i128::from(!is_lost && site != log.origin[0]);
    others.iter().map(|to| Way { from: *from, to: *to, cost: cost(*to) - cost(*from) }).collect()
}

/// A way of one partition from a site to another one.
#[derive(Debug, Clone, Copy)]
struct Way {
    from: Site,
    to: Site,
    cost: i128,
}

/// Use of a way.
#[derive(Debug, Clone, Copy)]
struct Step {
    log: usize,
    from: Site,
    to: Site,
}

/// The ways of all partitions between two sites, the cheapest first.
#[derive(Debug, Default)]
struct Routes {
    ways: BTreeMap<(Site, Site), BTreeSet<(i128, usize)>>,
}

impl Routes {
    fn add(&mut self, log: usize, ways: Vec<Way>) {
        for Way { from, to, cost } in ways {
            self.ways.entry((from, to)).or_default().insert((cost, log));
        }
    }

    fn remove(&mut self, log: usize, ways: Vec<Way>) {
        for Way { from, to, cost } in ways {
            let there = self.ways.get_mut(&(from, to)).expect("it was added");
            assert!(there.remove(&(cost, log)), "what was added is there");
            if there.is_empty() {
                self.ways.remove(&(from, to));
            }
        }
    }

    /// Finds steps that take one from the fullest site possible and give one to a site that has two fewer. The sites
    /// between keep what they have.
    fn path(&self, counts: &[usize]) -> Option<Vec<Step>> {
        let mut sources: Vec<Site> = (0..counts.len()).collect();
        sources.sort_by_key(|site| (usize::MAX - counts[*site], *site));
        sources.into_iter().find_map(|from| self.path_from(from, counts))
    }

    fn path_from(&self, source: Site, counts: &[usize]) -> Option<Vec<Step>> {
        let least = counts.iter().sum::<usize>() / counts.len();
        let is_end = |site: &Site| counts[source] >= counts[*site] + 2;
        if !(0..counts.len()).any(|site| is_end(&site)) {
            return None;
        }
        let mut banned = BTreeSet::new();
        loop {
            let (costs, before) = self.distances(source, counts.len(), &banned);
            let ends = (0..counts.len()).filter(is_end);
            let ends = ends.filter_map(|site| Some((costs[site]?, site)));
            // A site below the mean has to get something anyway.
            let end = ends
                .min_by_key(|(cost, site)| (counts[*site] >= least, *cost, counts[*site], *site));
            let (_, end) = end?;
            match self.steps(source, end, &before) {
                Ok(steps) => return Some(steps),
                Err(way) => banned.insert(way),
            };
        }
    }

    /// Computes the least cost from a site to all others, and the site before each on that way (Bellman and Ford).
    fn distances(
        &self,
        source: Site,
        sites: usize,
        banned: &BTreeSet<(Site, Site)>,
    ) -> (Vec<Option<i128>>, Vec<Site>) {
        let mut costs: Vec<Option<i128>> = vec![None; sites];
        let mut before = vec![source; sites];
        costs[source] = Some(0);
        // A cycle that saves something would not end; after so many rounds every simple way is known.
        for _ in 1..sites {
            let mut is_settled = true;
            for (&(from, to), ways) in &self.ways {
                let Some(so_far) = costs[from] else { continue };
                let Some((cost, _)) = ways.first() else { continue };
                let is_less = costs[to].is_none_or(|known| so_far + cost < known);
                if to != source && is_less && !banned.contains(&(from, to)) {
                    (costs[to], before[to]) = (Some(so_far + cost), from);
                    is_settled = false;
                }
            }
            if is_settled {
                break;
            }
        }
        (costs, before)
    }

    /// Walks back from an end, and chooses another partition for each step. Two moves of one partition could together
    /// leave it in fewer racks. Fails with a way that has no other partition.
    fn steps(&self, source: Site, end: Site, before: &[Site]) -> Result<Vec<Step>, (Site, Site)> {
        let mut steps: Vec<Step> = Vec::new();
        let mut to = end;
        while to != source {
            let from = before[to];
            // Costs below 0 may make a circle, which leads back to no source.
            if steps.len() > before.len() {
                return Err((from, to));
            }
            let ways = self.ways.get(&(from, to)).into_iter().flatten();
            let mut others = ways.filter(|(_, log)| steps.iter().all(|step| step.log != *log));
            let Some(&(_, log)) = others.next() else { return Err((from, to)) };
            steps.push(Step { log, from, to });
            to = from;
        }
        Ok(steps)
    }
}

#[cfg(test)]
mod tests;
