//! # Room card: offsets
//!
//! Purpose:    the committed offsets of one group.
//! Owns:       [`Offsets`]: durable offsets and their places in the log, the writes under way, offsets that wait for
//!             the end of their transaction, and expiry.
//! Interface:  [`Offsets::launch`] and [`Offsets::land`] around every write, [`Offsets::put`] for durable offsets,
//!             [`Offsets::hold`] and [`Offsets::release`] for offsets in a transaction, [`Offsets::fetch`],
//!             [`Offsets::keys`], [`Offsets::committed_after`], [`Offsets::expired`].
//! Invariants: no answer shows an offset that is not durable; a slot exists while it has an offset, or a write is under
//!             way, or an open transaction has one for it. Of several offsets the one whose record is later in the log
//!             counts.
//! Never:      members, answers, the right to commit.
//! Tests:      below, and `coordinator/tests.rs`.
//! Start at:   [`Offsets`].

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use duramen_protocol::wire::Uuid;

use super::records::{NEVER, OffsetCommitValue};

/// Durable offset, and the offset of its record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Committed {
    pub at: i64,
    pub value: OffsetCommitValue,
}

/// One partition's place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Slot {
    pub committed: Option<Committed>,
    /// Count of records of this key whose append is under way.
    pub flying: u32,
    /// Offsets that count once the transactions of these producers commit.
    pub pending: BTreeMap<i64, Committed>,
}

impl Slot {
    fn is_empty(&self) -> bool {
        self.committed.is_none() && self.flying == 0 && self.pending.is_empty()
    }
}

/// The committed offsets of one group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Offsets {
    topics: BTreeMap<Arc<str>, BTreeMap<i32, Slot>>,
}

impl Offsets {
    /// Tells whether the group has neither an offset nor a write under way.
    pub(crate) fn is_empty(&self) -> bool {
        self.topics.is_empty()
    }

    /// Returns a topic's name, shared if it is known.
    pub(crate) fn name(&self, topic: &str) -> Arc<str> {
        self.topics.get_key_value(topic).map_or_else(|| topic.into(), |(name, _)| name.clone())
    }

    /// Returns the slot of a partition.
    pub(crate) fn slot(&self, topic: &str, partition: i32) -> Option<&Slot> {
        self.topics.get(topic)?.get(&partition)
    }

    /// Returns the durable offset. An offset that was committed for an older topic of the same name does not count.
    pub(crate) fn fetch(
        &self,
        topic: &str,
        topic_id: Uuid,
        partition: i32,
    ) -> Option<&OffsetCommitValue> {
        let value = &self.slot(topic, partition)?.committed.as_ref()?.value;
        let is_other =
            !topic_id.is_zero() && !value.topic_id.is_zero() && value.topic_id != topic_id;
        (!is_other).then_some(value)
    }

    /// Returns all slots, by topic.
    pub(crate) fn slots(&self) -> impl Iterator<Item = (&Arc<str>, &BTreeMap<i32, Slot>)> {
        self.topics.iter()
    }

    /// Returns the durable offsets behind a partition, or all of them, in order.
    pub(crate) fn committed_after<'a>(
        &'a self,
        after: Option<(&'a str, i32)>,
    ) -> impl Iterator<Item = (&'a Arc<str>, i32, &'a OffsetCommitValue)> {
        let from = after.map_or(Bound::Unbounded, |(topic, _)| Bound::Included(topic));
        let topics = self.topics.range::<str, _>((from, Bound::Unbounded));
        topics.flat_map(move |(name, slots)| {
            let behind = after.filter(|(topic, _)| *topic == &**name);
            let behind = behind.map_or(Bound::Unbounded, |(_, at)| Bound::Excluded(at));
            let slots = slots.range((behind, Bound::Unbounded));
            let value = |slot: &'a Slot| slot.committed.as_ref().map(|it| &it.value);
            slots.filter_map(move |(partition, slot)| Some((name, *partition, value(slot)?)))
        })
    }

    /// Returns every partition that has an offset, or will have one if a write under way succeeds.
    pub(crate) fn keys(&self) -> impl Iterator<Item = (&Arc<str>, i32)> {
        self.topics
            .iter()
            .flat_map(|(topic, slots)| slots.keys().map(move |partition| (topic, *partition)))
    }

    /// Returns the partitions of a topic that have an offset, or may have one soon. Leaves out those of another topic
    /// of its name.
    pub(crate) fn of_topic(
        &self,
        topic: &str,
        topic_id: Uuid,
    ) -> impl Iterator<Item = (&Arc<str>, i32)> {
        let slots = self.topics.get_key_value(topic).into_iter();
        let is_its = move |slot: &Slot| {
            let id = slot.committed.as_ref().map_or(Uuid::ZERO, |it| it.value.topic_id);
            id.is_zero() || id == topic_id
        };
        slots.flat_map(move |(name, slots)| {
            let its = slots.iter().filter(move |(_, slot)| is_its(slot));
            its.map(move |(partition, _)| (name, *partition))
        })
    }

    /// Notes that an append of a record of this key begins.
    pub(crate) fn launch(&mut self, topic: &Arc<str>, partition: i32) {
        self.edit(topic, partition, |slot| slot.flying += 1);
    }

    /// Notes that the result of a record of this key is known.
    pub(crate) fn land(&mut self, topic: &Arc<str>, partition: i32) {
        self.edit(topic, partition, |slot| slot.flying -= 1);
    }

    /// Sets or removes a durable offset. Returns the one before.
    pub(crate) fn put(
        &mut self,
        topic: &Arc<str>,
        partition: i32,
        committed: Option<Committed>,
    ) -> Option<Committed> {
        self.edit(topic, partition, |slot| std::mem::replace(&mut slot.committed, committed))
    }

    /// Holds a durable offset of an open transaction. Returns the one before it of the same transaction.
    pub(crate) fn hold(
        &mut self,
        topic: &Arc<str>,
        partition: i32,
        producer_id: i64,
        committed: Committed,
    ) -> Option<Committed> {
        self.edit(topic, partition, |slot| slot.pending.insert(producer_id, committed))
    }

    /// Takes out the offset that a producer's transaction held for this partition, because the transaction has ended.
    /// Returns that offset.
    pub(crate) fn release(
        &mut self,
        topic: &Arc<str>,
        partition: i32,
        producer_id: i64,
    ) -> Option<Committed> {
        self.edit(topic, partition, |slot| slot.pending.remove(&producer_id))
    }

    /// Takes out the offsets of all open transactions for this partition, because the partition's offset is deleted.
    pub(crate) fn release_all(&mut self, topic: &Arc<str>, partition: i32) -> Vec<Committed> {
        let pending = self.edit(topic, partition, |slot| std::mem::take(&mut slot.pending));
        pending.into_values().collect()
    }

    /// Checks that each slot has a reason to exist, and counts its records under way as they are.
    pub(super) fn inspect(&self, group: &str, flying: &BTreeMap<(&str, i32), u32>) {
        for (topic, slots) in &self.topics {
            assert!(!slots.is_empty(), "{group} has an offset of {topic}");
            for (partition, slot) in slots {
                assert!(!slot.is_empty(), "{group} has an offset of {topic}-{partition}");
                let count = flying.get(&(&**topic, *partition)).copied().unwrap_or(0);
                assert_eq!(slot.flying, count, "{group}, {topic}-{partition}: under way");
            }
        }
        let have_slots = flying.keys().all(|(topic, it)| self.slot(topic, *it).is_some());
        assert!(have_slots, "each offset of {group} that is under way has a slot");
    }

    fn edit<T>(
        &mut self,
        topic: &Arc<str>,
        partition: i32,
        edit: impl FnOnce(&mut Slot) -> T,
    ) -> T {
        // Most edits find their slot: no new reference to the name is needed then.
        if let Some(slot) = self.topics.get_mut(topic).and_then(|slots| slots.get_mut(&partition)) {
            let result = edit(slot);
            if slot.is_empty() {
                self.forget(topic, partition);
            }
            return result;
        }
        let mut slot = Slot::default();
        let result = edit(&mut slot);
        if !slot.is_empty() {
            self.topics.entry(topic.clone()).or_default().insert(partition, slot);
        }
        result
    }

    fn forget(&mut self, topic: &Arc<str>, partition: i32) {
        let Some(slots) = self.topics.get_mut(topic) else { return };
        slots.remove(&partition);
        if slots.is_empty() {
            self.topics.remove(topic);
        }
    }

    /// Returns the partitions whose offsets have expired, and tells whether that is all of them. `since` gives the time
    /// from which an offset ages. A commit that names its own expiry ignores `since`. An offset with an append under
    /// way stays.
    pub(crate) fn expired(
        &self,
        now_ms: i64,
        retention_ms: i64,
        is_subscribed: impl Fn(&str) -> bool,
        since: impl Fn(&OffsetCommitValue) -> i64,
    ) -> (Vec<(Arc<str>, i32)>, bool) {
        let has_expired = |slot: &Slot| {
            slot.committed.as_ref().is_some_and(|Committed { value, .. }| {
                match value.expire_timestamp {
                    NEVER => now_ms.saturating_sub(since(value)) >= retention_ms,
                    expire_ms => now_ms >= expire_ms,
                }
            })
        };
        let (mut expired, mut all) = (Vec::new(), true);
        for (topic, slots) in &self.topics {
            let is_kept = is_subscribed(topic);
            for (partition, slot) in slots {
                let is_at_rest = slot.flying == 0 && slot.pending.is_empty();
                if !is_kept && is_at_rest && has_expired(slot) {
                    expired.push((topic.clone(), *partition));
                } else {
                    all = false;
                }
            }
        }
        (expired, all)
    }
}
