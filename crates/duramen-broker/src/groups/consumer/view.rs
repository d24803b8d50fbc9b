//! # Room card: view
//!
//! Purpose:    the state of a group of the consumer protocol that follows from its facts.
//! Owns:       [`View`]: members by id and by static name, owners of partitions, epochs, regular expressions.
//! Interface:  [`View::of`] for all facts, [`View::apply`] for the next one; lookups.
//! Invariants: the view is the fold of the facts, in any order that puts members first; a partition has one owner.
//! Never:      decisions, answers, durability.
//! Tests:      `coordinator/tests/consumers.rs`.
//! Start at:   [`View::apply`].

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::sync::Arc;

use duramen_protocol::wire::Uuid;

use crate::groups::records::{
    CurrentTopic, CurrentValue, Fact, FactValue, MemberValue, RegexValue, TargetTopic, TargetValue,
};

/// Partitions by topic, in order.
pub(super) type Shares = BTreeMap<Uuid, Vec<i32>>;

/// Partitions by topic, each with the epoch in which its owner got it.
pub(super) type Owned = BTreeMap<Uuid, BTreeMap<i32, i32>>;

/// The epoch of a static member that is away, and may come back under another id.
pub(super) const AWAY: i32 = -2;

/// Progress of a member toward its target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Stage {
    /// The member has its target.
    #[default]
    Stable,
    /// The member has yet to report that it has revoked partitions.
    Revoking,
    /// Stage that only a later version knows. The member has to begin anew.
    Waiting,
    /// Whatever a later version meant by this. The member has to begin anew.
    Unknown,
}

impl Stage {
    fn of(code: i8) -> Self {
        match code {
            0 => Self::Stable,
            1 => Self::Revoking,
            2 => Self::Waiting,
            _ => Self::Unknown,
        }
    }

    fn code(self) -> i8 {
        match self {
            Self::Stable => 0,
            Self::Revoking => 1,
            Self::Waiting => 2,
            Self::Unknown => 127,
        }
    }
}

/// Assignment that a member has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Current {
    pub epoch: i32,
    pub previous: i32,
    pub stage: Stage,
    pub assigned: Owned,
    /// Partitions that the member must revoke and has not yet reported as revoked.
    pub revoking: Owned,
}

impl Current {
    fn of(value: &CurrentValue) -> Self {
        let owned = |topics: &[CurrentTopic]| {
            let mut owned = Owned::new();
            for topic in topics {
                let epochs = topic.assignment_epochs.as_deref().unwrap_or_default();
                let epochs = epochs.iter().copied().chain(std::iter::repeat(value.member_epoch));
                owned
                    .entry(topic.topic_id)
                    .or_default()
                    .extend(topic.partitions.iter().copied().zip(epochs));
            }
            owned
        };
        Self {
            epoch: value.member_epoch,
            previous: value.previous_member_epoch,
            stage: Stage::of(value.state),
            assigned: owned(&value.assigned),
            revoking: owned(&value.revoking),
        }
    }

    /// Returns the stored form.
    pub(super) fn value(&self) -> FactValue {
        let topics = |owned: &Owned| {
            let topic = |(topic_id, partitions): (&Uuid, &BTreeMap<i32, i32>)| CurrentTopic {
                topic_id: *topic_id,
                partitions: partitions.keys().copied().collect(),
                assignment_epochs: Some(partitions.values().copied().collect()),
            };
            owned.iter().map(topic).collect()
        };
        FactValue::Current(Arc::new(CurrentValue {
            member_epoch: self.epoch,
            previous_member_epoch: self.previous,
            state: self.stage.code(),
            assigned: topics(&self.assigned),
            revoking: topics(&self.revoking),
        }))
    }

    /// Tells whether the member has the target of this epoch.
    pub(super) fn has_arrived(&self, epoch: i32) -> bool {
        self.stage == Stage::Stable && self.epoch == epoch
    }

    /// Returns the epoch in which the member got a partition, if it has it.
    pub(super) fn since(&self, topic: Uuid, partition: i32) -> Option<i32> {
        let in_one = |owned: &Owned| owned.get(&topic)?.get(&partition).copied();
        in_one(&self.assigned).or_else(|| in_one(&self.revoking))
    }

    fn partitions(&self) -> impl Iterator<Item = (Uuid, i32)> {
        let topics = self.assigned.iter().chain(&self.revoking);
        topics.flat_map(|(topic, owned)| owned.keys().map(move |partition| (*topic, *partition)))
    }
}

/// One member.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Member {
    pub value: Arc<MemberValue>,
    pub current: Arc<Current>,
    pub target: Arc<Shares>,
}

impl Member {
    /// Returns the regular expression that the member is subscribed to.
    pub(super) fn regex(&self) -> Option<&Arc<str>> {
        regex_of(&self.value)
    }

    /// Tells whether the member speaks the classic protocol.
    pub(super) fn is_classic(&self) -> bool {
        self.value.classic.is_some()
    }
}

/// Returns the regular expression that a member is subscribed to; an empty one is none.
pub(super) fn regex_of(value: &MemberValue) -> Option<&Arc<str>> {
    value.subscribed_topic_regex.as_ref().filter(|regex| !regex.is_empty())
}

/// See the room card.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct View {
    pub epoch: i32,
    /// Hash of the group's topics when the epoch was set.
    pub metadata_hash: i64,
    pub has_partition_metadata: bool,
    /// The epoch that targets were last decided for, and when.
    pub target_epoch: i32,
    pub target_ms: i64,
    pub members: BTreeMap<Arc<str>, Member>,
    instances: BTreeMap<Arc<str>, Arc<str>>,
    owners: BTreeMap<(Uuid, i32), Arc<str>>,
    /// Count of members that are subscribed to a topic by its name.
    names: BTreeMap<String, usize>,
    pub regexes: BTreeMap<Arc<str>, Arc<RegexValue>>,
}

impl View {
    /// Builds the view from all facts.
    pub(super) fn of<'a>(facts: impl Iterator<Item = (&'a Fact, &'a FactValue)>) -> Self {
        let mut view = Self::default();
        // In this order a member comes before the facts about it.
        for (fact, value) in facts {
            view.apply(fact, Some(value));
        }
        view
    }

    /// Applies the next fact.
    pub(super) fn apply(&mut self, fact: &Fact, value: Option<&FactValue>) {
        match (fact, value) {
            (Fact::Epoch, Some(FactValue::Epoch(value))) => {
                (self.epoch, self.metadata_hash) = (value.epoch, value.metadata_hash);
            }
            (Fact::Epoch, _) => (self.epoch, self.metadata_hash) = (0, 0),
            (Fact::PartitionMetadata, value) => self.has_partition_metadata = value.is_some(),
            (Fact::TargetEpoch, Some(FactValue::TargetEpoch(value))) => {
                (self.target_epoch, self.target_ms) = (value.epoch, value.timestamp);
            }
            (Fact::TargetEpoch, _) => (self.target_epoch, self.target_ms) = (0, 0),
            (Fact::Member(id), Some(FactValue::Member(value))) => {
                if let Some(instance) = &value.instance_id {
                    self.instances.insert(instance.clone(), id.clone());
                }
                let member = self.members.entry(id.clone()).or_default();
                let before = mem::replace(&mut member.value, value.clone());
                self.count_names(&before, value);
                if before.instance_id != value.instance_id {
                    self.free_name(id, &before);
                }
            }
            (Fact::Member(id), _) => self.remove(id),
            (Fact::Target(id), value) => {
                let Some(member) = self.members.get_mut(id) else { return };
                member.target = match value {
                    Some(FactValue::Target(value)) => Arc::new(shares_of(value)),
                    _ => Arc::default(),
                };
            }
            (Fact::Current(id), Some(FactValue::Current(value))) => {
                self.put(id, Current::of(value));
            }
            (Fact::Current(id), _) => self.put(id, Current::default()),
            (Fact::Regex(regex), Some(FactValue::Regex(value))) => {
                self.regexes.insert(regex.clone(), value.clone());
            }
            (Fact::Regex(regex), _) => {
                self.regexes.remove(regex);
            }
            (Fact::Share(_), _) => {}
        }
    }

    fn put(&mut self, id: &Arc<str>, current: Current) {
        let Some(member) = self.members.get_mut(id) else { return };
        let before = mem::replace(&mut member.current, Arc::new(current));
        let after = member.current.clone();
        self.release(id, &before);
        for partition in after.partitions() {
            let other = self.owners.insert(partition, id.clone());
            debug_assert!(other.is_none(), "{partition:?} is {other:?}'s, and given to {id}");
        }
    }

    fn release(&mut self, id: &Arc<str>, current: &Current) {
        for partition in current.partitions() {
            if self.owners.get(&partition) == Some(id) {
                self.owners.remove(&partition);
            }
        }
    }

    fn count_names(&mut self, before: &MemberValue, after: &MemberValue) {
        if before.subscribed_topic_names == after.subscribed_topic_names {
            return;
        }
        for name in &after.subscribed_topic_names {
            *self.names.entry(name.clone()).or_default() += 1;
        }
        for name in &before.subscribed_topic_names {
            let Some(count) = self.names.get_mut(name) else { continue };
            *count -= 1;
            if *count == 0 {
                self.names.remove(name);
            }
        }
    }

    fn remove(&mut self, id: &Arc<str>) {
        let Some(member) = self.members.remove(id) else { return };
        self.count_names(&member.value, &MemberValue::default());
        self.release(id, &member.current);
        self.free_name(id, &member.value);
    }

    /// Frees the static name that a member had.
    fn free_name(&mut self, id: &Arc<str>, before: &MemberValue) {
        if let Some(instance) = &before.instance_id
            && self.instances.get(instance) == Some(id)
        {
            self.instances.remove(instance);
        }
    }

    /// Checks that names and owners are those of the members.
    pub(super) fn inspect(&self) {
        let mut owned = 0;
        for (id, Member { value, current, .. }) in &self.members {
            for partition in current.partitions() {
                let owner = self.owners.get(&partition);
                assert_eq!(owner, Some(id), "{partition:?} has one owner");
                owned += 1;
            }
            if let Some(instance) = &value.instance_id {
                let named = self.instances.get(instance);
                assert_eq!(named, Some(id), "{instance} is the name of one member");
            }
        }
        assert_eq!(owned, self.owners.len(), "each partition with an owner is a member's");
        let named = self.members.values().filter(|it| it.value.instance_id.is_some()).count();
        assert_eq!(named, self.instances.len(), "each static name is a member's");
        let names = self.members.values().map(|it| it.value.subscribed_topic_names.len());
        assert_eq!(
            names.sum::<usize>(),
            self.names.values().sum::<usize>(),
            "subscriptions are counted"
        );
    }

    /// Returns the shared text of a member's id.
    pub(super) fn known(&self, id: &str) -> Option<&Arc<str>> {
        self.members.get_key_value(id).map(|(id, _)| id)
    }

    /// Returns the member of a static name.
    pub(super) fn named(&self, instance: &str) -> Option<(&Arc<str>, &Member)> {
        self.members.get_key_value(self.instances.get(instance)?)
    }

    /// Returns the owner of a partition.
    pub(super) fn owner(&self, topic: Uuid, partition: i32) -> Option<&Arc<str>> {
        self.owners.get(&(topic, partition))
    }

    /// Returns the count of members that are subscribed to a regular expression.
    pub(super) fn subscribers(&self, regex: &Arc<str>) -> usize {
        self.members.values().filter(|member| member.regex() == Some(regex)).count()
    }

    /// Returns all regular expressions that members are subscribed to.
    pub(super) fn subscribed_regexes(&self) -> BTreeSet<&Arc<str>> {
        self.members.values().filter_map(Member::regex).collect()
    }

    /// Returns all topics that members are subscribed to, including those that do not exist.
    pub(super) fn subscribed_topics(&self) -> BTreeSet<&str> {
        let resolved = self.regexes.values().flat_map(|it| it.topics.iter().map(AsRef::as_ref));
        self.names.keys().map(String::as_str).chain(resolved).collect()
    }

    /// Returns the topics that a member is subscribed to, by names and by its regular expression.
    pub(super) fn topics_of<'a>(&'a self, value: &'a MemberValue) -> impl Iterator<Item = &'a str> {
        let resolved = regex_of(value).and_then(|regex| self.regexes.get(regex));
        let resolved = resolved.into_iter().flat_map(|it| it.topics.iter().map(AsRef::as_ref));
        value.subscribed_topic_names.iter().map(String::as_str).chain(resolved)
    }
}

/// Returns the target assignment of a member.
pub(super) fn shares_of(value: &TargetValue) -> Shares {
    let sorted = |topic: &TargetTopic| {
        let mut partitions = topic.partitions.clone();
        partitions.sort_unstable();
        (topic.topic_id, partitions)
    };
    value.topics.iter().map(sorted).collect()
}

/// Returns a member's target assignment in its stored form.
pub(super) fn target_value(shares: &Shares) -> FactValue {
    let topic = |(topic_id, partitions): (&Uuid, &Vec<i32>)| TargetTopic {
        topic_id: *topic_id,
        partitions: partitions.clone(),
    };
    FactValue::Target(Arc::new(TargetValue { topics: shares.iter().map(topic).collect() }))
}
