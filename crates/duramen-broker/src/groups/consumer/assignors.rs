//! # Room card: assignors
//!
//! Purpose:    the target assignment: which member is to have which partitions.
//! Owns:       [`Assignor`]: `uniform`, which moves as few partitions as it can, and `range`, which gives every member
//!             a piece of each topic.
//! Interface:  [`Assignor::assign`].
//! Invariants: every partition of a topic with subscribers has one owner, who is subscribed to the topic; the same
//!             question has the same answer; time grows with members and partitions, times a logarithm.
//! Never:      the partitions that members have now: `reconcile` moves members to their targets.
//! Tests:      `assignors/tests.rs`.
//! Start at:   [`Assignor::assign`].

use std::collections::{BTreeMap, BTreeSet};

use duramen_protocol::wire::Uuid;

use super::view::Shares;
use crate::groups::rules::Assignor;

/// Member that applies for partitions.
pub(super) struct Applicant<'a> {
    pub id: &'a str,
    pub instance: Option<&'a str>,
    /// The topics that it is subscribed to and that exist, in order.
    pub topics: &'a [Uuid],
    /// Target assignment until now.
    pub target: &'a Shares,
}

impl Assignor {
    /// Returns the target assignment of each applicant. `partitions` gives the count of partitions of a topic.
    pub(super) fn assign(
        self,
        applicants: &[Applicant<'_>],
        partitions: impl Fn(Uuid) -> i32,
    ) -> Vec<Shares> {
        let topics: BTreeSet<Uuid> = applicants.iter().flat_map(|it| it.topics).copied().collect();
        let sizes = topics.into_iter().map(|topic| (topic, partitions(topic).max(0))).collect();
        debug_assert!(
            applicants.iter().all(|it| it.topics.is_sorted_by(|a, b| a < b)),
            "the topics of each applicant are in order"
        );
        let shares = match self {
            Self::Range => range(applicants, &sizes),
            Self::Uniform if applicants.windows(2).all(|it| it[0].topics == it[1].topics) => {
                even(applicants, &sizes)
            }
            Self::Uniform => Mixed::new(applicants, &sizes).assign(),
        };
        if cfg!(debug_assertions) {
            inspect(applicants, &sizes, &shares);
        }
        shares
    }
}

/// Checks that every partition has one owner, who is subscribed to its topic.
fn inspect(applicants: &[Applicant<'_>], sizes: &Sizes, shares: &[Shares]) {
    let mut taken = BTreeSet::new();
    for (Applicant { id, topics, .. }, shares) in applicants.iter().zip(shares) {
        for (topic, partitions) in shares {
            assert!(topics.contains(topic), "{id} is subscribed to {topic}");
            assert!(!partitions.is_empty(), "{id} has a partition of {topic}");
            for partition in partitions {
                assert!(*partition < sizes[topic], "{topic} has the partition {partition}");
                assert!(taken.insert((topic, partition)), "{topic}-{partition} has one owner");
            }
        }
    }
    let all: usize = sizes.values().map(|size| usize::try_from(*size).unwrap_or(0)).sum();
    assert_eq!(taken.len(), all, "each partition has an owner");
}

/// Count of partitions of each topic.
type Sizes = BTreeMap<Uuid, i32>;

/// Assigns by `range`. Members with static names come first, by name, then the others by id, so a member that comes
/// back gets its old place.
fn range(applicants: &[Applicant<'_>], sizes: &Sizes) -> Vec<Shares> {
    let mut order: Vec<usize> = (0..applicants.len()).collect();
    order.sort_by_key(|&it| {
        let Applicant { id, instance, .. } = &applicants[it];
        (instance.is_none(), instance.unwrap_or(id))
    });
    let mut subscribers: BTreeMap<Uuid, i32> = BTreeMap::new();
    for topic in applicants.iter().flat_map(|it| it.topics) {
        *subscribers.entry(*topic).or_default() += 1;
    }
    // Start of a topic's next range, and the count of members that have theirs.
    let mut given: BTreeMap<Uuid, (i32, i32)> = BTreeMap::new();
    let mut shares = vec![Shares::new(); applicants.len()];
    for at in order {
        for topic in applicants[at].topics {
            let (size, count) = (sizes[topic], subscribers[topic]);
            let (begin, place) = given.entry(*topic).or_default();
            let end = *begin + size / count + i32::from(*place < size % count);
            if *begin < end {
                shares[at].insert(*topic, (*begin..end).collect());
            }
            (*begin, *place) = (end, *place + 1);
        }
    }
    shares
}

/// Returns the partitions of a member's target that the member still subscribes to, that exist, and that no applicant
/// before it took.
fn kept(
    applicant: &Applicant<'_>,
    sizes: &Sizes,
    taken: &mut BTreeSet<(Uuid, i32)>,
) -> Vec<(Uuid, i32)> {
    let mut kept = Vec::new();
    for (topic, partitions) in applicant.target {
        if applicant.topics.binary_search(topic).is_err() {
            continue;
        }
        let size = sizes.get(topic).copied().unwrap_or(0);
        let there = partitions.iter().map(|part| (*topic, *part)).filter(|it| it.1 < size);
        kept.extend(there.filter(|it| taken.insert(*it)));
    }
    kept
}

fn shares_of(partitions: impl Iterator<Item = (Uuid, i32)>) -> Shares {
    let mut shares = Shares::new();
    for (topic, part) in partitions {
        shares.entry(topic).or_default().push(part);
    }
    for partitions in shares.values_mut() {
        partitions.sort_unstable();
    }
    shares
}

/// Returns the partitions without an owner: of each topic the first, then of each the second. So the assignor spreads
/// every topic.
fn free(sizes: &Sizes, taken: &BTreeSet<(Uuid, i32)>) -> Vec<(Uuid, i32)> {
    let all = sizes.iter().flat_map(|(topic, size)| (0..*size).map(move |part| (*topic, part)));
    let mut free: Vec<_> = all.filter(|it| !taken.contains(it)).collect();
    free.sort_unstable_by_key(|(topic, part)| (*part, *topic));
    free
}

/// Assigns by `uniform` where all members are subscribed to the same topics.
fn even(applicants: &[Applicant<'_>], sizes: &Sizes) -> Vec<Shares> {
    let count = applicants.len();
    if count == 0 {
        return Vec::new();
    }
    let total: usize = sizes.values().map(|size| usize::try_from(*size).unwrap_or(0)).sum();
    let (quota, mut extra) = (total / count, total % count);
    let mut taken = BTreeSet::new();
    let mut has: Vec<_> = applicants.iter().map(|it| kept(it, sizes, &mut taken)).collect();
    for has in &mut has {
        let mut most = quota;
        if has.len() > quota && extra > 0 {
            (most, extra) = (quota + 1, extra - 1);
        }
        for lost in has.drain(most.min(has.len())..) {
            taken.remove(&lost);
        }
    }
    let mut free = free(sizes, &taken).into_iter();
    for has in &mut has {
        let mut wanted = quota.saturating_sub(has.len());
        if has.len() <= quota && extra > 0 {
            (wanted, extra) = (wanted + 1, extra - 1);
        }
        has.extend(free.by_ref().take(wanted));
    }
    has.into_iter().map(|it| shares_of(it.into_iter())).collect()
}

/// Not all are subscribed to the same topics.
struct Mixed {
    /// Subscribers of each topic.
    subscribers: BTreeMap<Uuid, Vec<usize>>,
    /// Partitions of a topic that each applicant has.
    has: BTreeMap<Uuid, Vec<Vec<i32>>>,
    /// Count of partitions that each applicant has.
    load: Vec<usize>,
    free: BTreeMap<Uuid, Vec<i32>>,
}

/// After so many rounds over all topics it is good enough. Each round makes it more even.
const ROUNDS: usize = 8;

impl Mixed {
    fn new(applicants: &[Applicant<'_>], sizes: &Sizes) -> Self {
        let mut subscribers: BTreeMap<Uuid, Vec<usize>> = BTreeMap::new();
        for (at, applicant) in applicants.iter().enumerate() {
            for topic in applicant.topics {
                subscribers.entry(*topic).or_default().push(at);
            }
        }
        let empty = |(topic, them): (&Uuid, &Vec<usize>)| (*topic, vec![Vec::new(); them.len()]);
        let has = subscribers.iter().map(empty).collect();
        let load = vec![0; applicants.len()];
        let mut it = Self { subscribers, has, load, free: BTreeMap::new() };
        let mut taken = BTreeSet::new();
        for (at, applicant) in applicants.iter().enumerate() {
            for (topic, part) in kept(applicant, sizes, &mut taken) {
                let place = it.subscribers[&topic].binary_search(&at).expect("it is subscribed");
                it.has.get_mut(&topic).expect("it is a topic of theirs")[place].push(part);
                it.load[at] += 1;
            }
        }
        for (topic, part) in free(sizes, &taken) {
            it.free.entry(topic).or_default().push(part);
        }
        it
    }

    fn assign(mut self) -> Vec<Shares> {
        // Topics with few subscribers come first, since these have little choice.
        let mut order: Vec<Uuid> = self.subscribers.keys().copied().collect();
        order.sort_by_key(|topic| self.subscribers[topic].len());
        for topic in &order {
            self.fill(*topic);
        }
        for _ in 0..ROUNDS {
            let mut moved = false;
            for topic in &order {
                moved |= self.level(*topic);
            }
            if !moved {
                break;
            }
        }
        let mut shares = vec![Shares::new(); self.load.len()];
        for (topic, has) in self.has {
            for (at, mut partitions) in self.subscribers[&topic].iter().zip(has) {
                if !partitions.is_empty() {
                    partitions.sort_unstable();
                    shares[*at].insert(topic, partitions);
                }
            }
        }
        shares
    }

    /// Returns the subscribers of a topic, ordered by their load in all topics: `(load, place among the subscribers)`.
    fn by_load(&self, topic: Uuid) -> BTreeSet<(usize, usize)> {
        let them = self.subscribers[&topic].iter().enumerate();
        them.map(|(place, at)| (self.load[*at], place)).collect()
    }

    /// Gives the free partitions of a topic to the subscribers that have the fewest.
    fn fill(&mut self, topic: Uuid) {
        let mut by_load = self.by_load(topic);
        for part in self.free.remove(&topic).unwrap_or_default() {
            let Some((load, place)) = by_load.pop_first() else { return };
            self.has.get_mut(&topic).expect("it is a topic of theirs")[place].push(part);
            self.load[self.subscribers[&topic][place]] += 1;
            by_load.insert((load + 1, place));
        }
    }

    /// Moves partitions of a topic from the members with the most to those with the fewest. Returns false if no move
    /// helped.
    fn level(&mut self, topic: Uuid) -> bool {
        let mut by_load = self.by_load(topic);
        let has = self.has.get_mut(&topic).expect("it is a topic of theirs");
        let subscribers = &self.subscribers[&topic];
        let mut givers = by_load.clone();
        givers.retain(|(_, place)| !has[*place].is_empty());
        let mut moved = false;
        while let (Some(&(most, from)), Some(&(least, to))) = (givers.last(), by_load.first()) {
            if most <= least + 1 {
                break;
            }
            let part = has[from].pop().expect("only who has some is a giver");
            has[to].push(part);
            for (place, before, after) in [(from, most, most - 1), (to, least, least + 1)] {
                self.load[subscribers[place]] = after;
                by_load.remove(&(before, place));
                by_load.insert((after, place));
                givers.remove(&(before, place));
                if !has[place].is_empty() {
                    givers.insert((after, place));
                }
            }
            moved = true;
        }
        moved
    }
}

#[cfg(test)]
mod tests;
