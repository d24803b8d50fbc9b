//! # Room card: shares
//!
//! Purpose:    the stored state of share groups (KIP-932) in each partition: the group's start offset, and the state of
//!             the records after it.
//! Owns:       [`coordinator::Coordinator`], the state in one partition of `__share_group_state`; the records of that
//!             state; the merge of runs of offsets.
//! Interface:  the coordinator's functions for requests of partition leaders, coordinators of groups and
//!             administrators; its outputs for the effects.
//! Invariants: every answer is durable; a request of an earlier leader or of an earlier life of a group changes
//!             nothing.
//! Never:      clocks, chance, the bytes of a log, the members of a group (see `groups`), acquired records (their
//!             leader keeps these in memory).
//! Tests:      below; `shares/coordinator/tests.rs`; `node/tests/shares.rs`.
//! Start at:   `shares/coordinator.rs`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use duramen_protocol::wire::Uuid;

pub(crate) mod coordinator;
pub(crate) mod partition;
pub(crate) mod records;
pub(crate) mod sessions;

duramen_protocol::message! {
    /// A run of offsets that were delivered equally often, with the same end.
    #[derive(Copy, Eq)]
    pub(crate) struct StateBatch {
        first: i64 [0..],
        last: i64 [0..],
        /// Kafka's number: 0 is available, 2 acknowledged, 4 archived. The stored state does not say which member
        /// acquired a record.
        state: i8 [0..],
        count: i16 [0..],
    }
}

/// A share group, and one of its partitions.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ShareKey {
    pub group: Arc<str>,
    pub topic_id: Uuid,
    pub partition: i32,
}

impl fmt::Display for ShareKey {
    /// Writes the name by which clients find the key's coordinator. Clients of Kafka hash it, too.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.group, self.topic_id, self.partition)
    }
}

impl ShareKey {
    /// Parses the key of this name. The group's name may have colons.
    pub(crate) fn named(name: &str) -> Option<Self> {
        let (rest, partition) = name.rsplit_once(':')?;
        let (group, topic_id) = rest.rsplit_once(':')?;
        let key = Self {
            group: group.into(),
            topic_id: topic_id.parse().ok()?,
            partition: partition.parse().ok()?,
        };
        (!group.trim().is_empty()).then_some(key)
    }
}

impl StateBatch {
    fn is_sound(&self) -> bool {
        (0..i64::MAX).contains(&self.last) && (0..=self.last).contains(&self.first)
    }

    /// Returns the batch with a count of deliveries that can be.
    fn counted(self) -> Self {
        Self { count: self.count.max(0), ..self }
    }
}

/// Stored state of a share group in a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ShareState {
    /// Larger than in any earlier life of the group, and after each time that its offsets were set.
    pub state_epoch: i32,
    /// Of the last leader that has read it.
    pub leader_epoch: i32,
    /// First offset that the group may not be done with; -1 until a leader has found it.
    pub start: i64,
    /// Count of offsets after the start that the group is done with; -1 if no leader has given it.
    pub complete: i32,
    /// In order, apart, and none of them before the start.
    pub batches: Vec<StateBatch>,
}

/// Write that a leader asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ShareWrite {
    pub state_epoch: i32,
    /// -1 leaves it as it is.
    pub start: i64,
    pub complete: i32,
    /// Those that have changed.
    pub batches: Vec<StateBatch>,
}

/// Merges runs of offsets into one list. Where runs overlap, the one with more deliveries is the newer one. Among those
/// with equal deliveries, the one with the later state is newer. So neither the order nor the repetition of merges
/// matters.
pub(crate) fn combined(
    batches: impl Iterator<Item = StateBatch> + Clone,
    start: i64,
) -> Vec<StateBatch> {
    let kept = batches.filter(|it| it.last >= start);
    let kept = kept.map(|it| StateBatch { first: it.first.max(start), ..it });
    let mut begins: BTreeMap<i64, Vec<(i16, i8, i64)>> = BTreeMap::new();
    let mut cuts = BTreeSet::new();
    for it in kept {
        begins.entry(it.first).or_default().push((it.count, it.state, it.last));
        cuts.extend([it.first, it.last + 1]);
    }
    // Those that reach beyond the cut at hand; the last is the one that counts.
    let mut open: BTreeSet<(i16, i8, i64)> = BTreeSet::new();
    let mut all: Vec<StateBatch> = Vec::new();
    let mut cuts = cuts.into_iter().peekable();
    while let Some(first) = cuts.next() {
        open.extend(begins.remove(&first).unwrap_or_default());
        while open.last().is_some_and(|(.., last)| *last < first) {
            open.pop_last();
        }
        let (Some(&(count, state, _)), Some(&next)) = (open.last(), cuts.peek()) else { continue };
        let last = next - 1;
        match all.last_mut() {
            Some(it) if it.last + 1 == first && (it.count, it.state) == (count, state) => {
                it.last = last;
            }
            _ => all.push(StateBatch { first, last, state, count }),
        }
    }
    debug_assert!(all.iter().all(|it| it.first >= start), "no batch is before the start {start}");
    debug_assert!(all.is_sorted_by(|a, b| a.last < b.first), "batches are in order, and apart");
    all
}

/// Merges new runs into kept ones, both as [`combined`] makes them. There may be very many kept ones, so only those
/// that new ones overlap are combined.
pub(crate) fn merged(kept: &[StateBatch], new: &[StateBatch], start: i64) -> Vec<StateBatch> {
    let overlaps = |it: &StateBatch| {
        let next = new.partition_point(|other| other.last < it.first);
        new.get(next).is_some_and(|other| other.first <= it.last)
    };
    let changed = kept.iter().filter(|it| overlaps(it)).chain(new).copied();
    let changed = combined(changed, start);
    let rest = kept.iter().filter(|it| it.last >= start && !overlaps(it));
    let mut rest = rest.map(|it| StateBatch { first: it.first.max(start), ..*it }).peekable();
    let mut changed = changed.into_iter().peekable();
    let mut all: Vec<StateBatch> = Vec::with_capacity(kept.len() + new.len());
    loop {
        let next = match (rest.peek(), changed.peek()) {
            (Some(one), Some(other)) if one.first < other.first => rest.next(),
            (_, Some(_)) => changed.next(),
            (_, None) => rest.next(),
        };
        let Some(next) = next else { return all };
        match all.last_mut() {
            Some(it)
                if (it.last + 1, it.count, it.state) == (next.first, next.count, next.state) =>
            {
                it.last = next.last;
            }
            _ => all.push(next),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prng::Prng;

    fn batch(first: i64, last: i64, state: i8, count: i16) -> StateBatch {
        StateBatch { first, last, state, count }
    }

    #[test]
    fn runs_that_meet_become_one_and_the_newer_ones_win() {
        let check = |batches: &[StateBatch], start, expected: &[StateBatch]| {
            assert_eq!(combined(batches.iter().copied(), start), expected, "{batches:?}");
        };
        check(&[], -1, &[]);
        check(&[batch(5, 9, 2, 1), batch(0, 4, 2, 1)], -1, &[batch(0, 9, 2, 1)]);
        check(
            &[batch(0, 9, 0, 1), batch(3, 4, 2, 1)],
            -1,
            &[batch(0, 2, 0, 1), batch(3, 4, 2, 1), batch(5, 9, 0, 1)],
        );
        check(
            &[batch(0, 9, 2, 1), batch(5, 12, 0, 2)],
            3,
            &[batch(3, 4, 2, 1), batch(5, 12, 0, 2)],
        );
        check(&[batch(0, 2, 2, 1), batch(4, 5, 2, 1)], -1, &[batch(0, 2, 2, 1), batch(4, 5, 2, 1)]);
        check(&[batch(0, 2, 2, 1)], 3, &[]);
    }

    #[test]
    fn keys_are_named_as_in_kafka() {
        let key = ShareKey { group: "a:b".into(), topic_id: Uuid::from_u128(1), partition: 2 };
        assert_eq!(key.to_string(), "a:b:AAAAAAAAAAAAAAAAAAAAAQ:2");
        assert_eq!(ShareKey::named(&key.to_string()), Some(key));
        for wrong in
            ["", "g", "g:2", " :AAAAAAAAAAAAAAAAAAAAAQ:2", "g:x:2", "g:AAAAAAAAAAAAAAAAAAAAAQ:x"]
        {
            assert_eq!(ShareKey::named(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn the_order_and_number_of_runs_do_not_matter() {
        for seed in 0..2_000 {
            let mut chance = Prng::stream(seed, 0);
            let mut below = |bound: u64| i64::try_from(chance.below(bound)).expect("small");
            let mut batches = Vec::new();
            for _ in 0..below(8) {
                let (first, more) = (below(20), below(6));
                let state = i8::try_from(2 * below(3)).expect("small");
                let count = i16::try_from(1 + below(3)).expect("small");
                batches.push(batch(first, first + more, state, count));
            }
            let start = below(16) - 1;
            let mut by_offset: BTreeMap<i64, (i16, i8)> = BTreeMap::new();
            for it in &batches {
                for offset in it.first.max(start)..=it.last {
                    let best = by_offset.entry(offset).or_insert((it.count, it.state));
                    *best = (*best).max((it.count, it.state));
                }
            }
            let all = combined(batches.iter().copied(), start);
            let turned = batches.iter().rev().chain(&batches).chain(&all).copied();
            assert_eq!(combined(turned, start), all, "seed {seed}");
            assert!(all.windows(2).all(|two| two[0].last < two[1].first), "seed {seed}");
            let (kept, new) = batches.split_at(batches.len() / 2);
            let new = combined(new.iter().copied(), start);
            let kept = combined(kept.iter().copied(), -1);
            assert_eq!(merged(&kept, &new, start), all, "seed {seed}");
            let told =
                all.iter().flat_map(|it| (it.first..=it.last).map(|at| (at, (it.count, it.state))));
            assert_eq!(told.collect::<BTreeMap<_, _>>(), by_offset, "seed {seed}");
        }
    }
}
