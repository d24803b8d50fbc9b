//! Invariants of a coordinator of groups, checked after each change where debug assertions are on.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{Coordinator, Flight, Group, Key, Place, Then};
use crate::groups::records::GroupRecord;
use crate::ledger::Ticket;
use crate::limits::INSPECTED_MAX;

/// Appends under way for one group.
#[derive(Debug, Default)]
struct Flying<'a> {
    tickets: BTreeSet<Ticket>,
    /// Count of records of the group as one of the classic protocol.
    stored: u32,
    /// Count of records of its facts.
    facts: u32,
    /// Counts of records of its offsets, by topic and partition.
    offsets: BTreeMap<(&'a str, i32), u32>,
    /// Count of appends of a decision.
    decisions: usize,
    /// Appends that end the group.
    ends: BTreeSet<Ticket>,
    /// Flag that the intent of a change is being appended.
    is_declared: bool,
}

impl Coordinator {
    /// Checks that groups, appends under way, live records and deadlines agree.
    pub(crate) fn inspect(&self) {
        if !cfg!(debug_assertions) || self.groups.len() > INSPECTED_MAX {
            return;
        }
        let flying = self.flying();
        let (none, mut live, mut due) = (Flying::default(), 0, 0);
        for (name, group) in &self.groups {
            let of_it = flying.get(name).unwrap_or(&none);
            assert!(group.life <= self.next_life, "{name} has a life that was given");
            group.inspect_flying(name, of_it);
            group.inspect_kind(name);
            group.members.inspect();
            live += self.inspect_live(name, group);
            due += usize::from(group.due_us.is_some());
            self.inspect_turn(name, group, of_it);
        }
        let all_known = flying.keys().all(|name| self.groups.contains_key(*name));
        assert!(all_known, "a group with an append under way is not forgotten");
        assert_eq!(self.ledger.live.size().0, live, "each live record is a group's state");
        assert_eq!(self.due.len(), due, "only known groups are due, each once");
        let mut held = self.in_transactions.values();
        assert!(held.all(|it| !it.is_empty()), "an open transaction here has an offset");
    }

    /// Collects the appends under way, by group.
    fn flying(&self) -> BTreeMap<&Arc<str>, Flying<'_>> {
        let mut all: BTreeMap<&Arc<str>, Flying<'_>> = BTreeMap::new();
        for (ticket, records, flight) in self.ledger.flights() {
            let Flight { group, then, transactor, last, .. } = flight;
            assert!(ticket <= *last, "{ticket} is not after {last}, the last of its batches");
            let is_awaited = !matches!(then, Then::Nothing);
            assert!(group.is_some() || !is_awaited, "no request waits for the renewal {ticket}");
            let is_of_transaction = matches!(then, Then::Commit { is_transactional: true, .. });
            assert_eq!(transactor.is_some(), is_of_transaction, "{ticket} has its producer");
            for record in records {
                let of_it = all.entry(record.group()).or_default();
                match record {
                    GroupRecord::Group { .. } => of_it.stored += 1,
                    GroupRecord::Consumer { .. } => of_it.facts += 1,
                    GroupRecord::Offset { key, .. } => {
                        *of_it.offsets.entry((&*key.topic, key.partition)).or_default() += 1;
                    }
                }
            }
            let Some(name) = group else { continue };
            let of_it = all.entry(name).or_default();
            of_it.tickets.insert(ticket);
            match then {
                Then::Decided(_) | Then::More(..) | Then::Cleared(_) => of_it.decisions += 1,
                Then::DeleteGroup(_) => _ = of_it.ends.insert(ticket),
                Then::Declared => of_it.is_declared = true,
                _ => {}
            }
        }
        all
    }

    /// Checks that the log has a live record for each durable state of a group. Returns the count of these.
    fn inspect_live(&self, name: &Arc<str>, group: &Group) -> usize {
        let live = &self.ledger.live;
        if let Some((at, _)) = &group.stored {
            let key = live.at(*at);
            assert_eq!(key, Some(&Key::Group(name.clone())), "{name} is stored at {at}");
        }
        for (fact, (at, _)) in &group.facts {
            let key = Key::Consumer { group: name.clone(), fact: fact.clone() };
            assert_eq!(live.at(*at), Some(&key), "a fact about {name} is stored at {at}");
        }
        let mut count = usize::from(group.stored.is_some()) + group.facts.len();
        for (topic, slots) in group.offsets.slots() {
            for (&partition, slot) in slots {
                if let Some(committed) = &slot.committed {
                    let (group, topic) = (name.clone(), topic.clone());
                    let key = Key::Offset { group, topic, partition };
                    let at = committed.at;
                    assert_eq!(live.at(at), Some(&key), "an offset of {name} is stored at {at}");
                }
                let place: Place = (name.clone(), topic.clone(), partition);
                for (producer, pending) in &slot.pending {
                    let key = live.at(pending.at);
                    assert_eq!(key, Some(&Key::Pending), "{place:?} waits for {producer}");
                    let held = self.in_transactions.get(producer);
                    let is_held = held.is_some_and(|it| it.contains(&place));
                    assert!(is_held, "the end of {producer}'s transaction finds {place:?}");
                }
                count += usize::from(slot.committed.is_some()) + slot.pending.len();
            }
        }
        count
    }

    /// Checks that a group gets its turn: at its deadline, and for each request that waits.
    fn inspect_turn(&self, name: &Arc<str>, group: &Group, flying: &Flying<'_>) {
        let due_us = group.due_us;
        assert!(due_us.is_none_or(|at| self.due.has(name, at)), "{name} stands at {due_us:?}");
        let deadline_us = group.deadline_us();
        let is_in_time = |deadline_us| due_us.is_some_and(|due_us| due_us <= deadline_us);
        let in_time = deadline_us.is_none_or(is_in_time);
        assert!(in_time, "{name} is looked at by {deadline_us:?}, not only at {due_us:?}");
        if self.ready.contains(name) {
            return;
        }
        assert!(!group.is_idle(), "{name} has something to keep");
        // A commit may bring a group back that is ending; its requests wait on for that append.
        let has_to_wait = !group.is_at_rest() || !flying.ends.is_empty();
        assert!(group.waiting.is_empty() || has_to_wait, "requests to {name} wait for an append");
        let is_kept = !group.facts.is_empty() || group.is_deciding || group.changing.is_some();
        let is_of_facts = group.consumer.is_some() || group.share.is_some();
        assert!(is_kept || !is_of_facts, "{name} has facts, or decides on the first");
        if group.is_at_rest() && group.facts.len() <= INSPECTED_MAX {
            let facts = || group.facts.iter().map(|(fact, (_, value))| (fact, value));
            let consumer = group.consumer.as_ref();
            assert!(consumer.is_none_or(|it| it.is_of(facts())), "{name} is as its facts say");
            let share = group.share.as_ref();
            assert!(share.is_none_or(|it| it.is_of(facts())), "{name} is as its facts say");
        }
    }
}

impl Group {
    /// Checks what the group knows about its appends under way.
    fn inspect_flying(&self, name: &str, flying: &Flying<'_>) {
        assert_eq!(self.flying, flying.tickets, "{name} knows its appends under way");
        assert_eq!(self.stored_flying, flying.stored, "{name} counts its records under way");
        assert_eq!(self.facts_flying, flying.facts, "{name} counts its facts under way");
        self.offsets.inspect(name, &flying.offsets);
        let decisions = usize::from(self.is_deciding);
        assert_eq!(decisions, flying.decisions, "{name} appends one decision at a time");
        let is_ending = self.is_ending.is_none_or(|ticket| flying.ends.contains(&ticket));
        assert!(is_ending, "{name} ends by an append under way, not {:?}", self.is_ending);
        let changing = self.changing.as_ref();
        let goes_on = changing.is_none_or(|it| it.is_awaiting() || flying.is_declared);
        assert!(goes_on, "the change of {name} waits for a stored state or for its intent");
        let first = flying.tickets.first();
        let mut readers = self.readers.iter();
        let has_to_wait = readers.all(|it| first.is_some_and(|first| *first <= it.until));
        assert!(has_to_wait, "a fetch from {name} waits for an earlier append only");
    }

    /// Checks that the group is of one kind.
    fn inspect_kind(&self, name: &str) {
        let Self { consumer, share, members, changing, .. } = self;
        assert!(consumer.is_none() || share.is_none(), "{name} is of one kind");
        let is_classic = consumer.is_none() && share.is_none();
        assert!(is_classic || members.is_idle(), "{name} has no members of the classic protocol");
        let is_ending = self.is_ending.is_some();
        assert!(!is_ending || is_classic && members.is_idle(), "{name} ends without members");
        if changing.is_some() {
            let is_empty = share.as_ref().is_some_and(|it| it.is_empty());
            assert!(is_empty, "{name}, a share group without members, is being changed");
            assert!(!self.is_deciding, "{name} decides nothing while it is being changed");
        }
        if let Some(consumer) = consumer {
            consumer.inspect(name);
        }
        if let Some(share) = share {
            share.inspect(name);
        }
    }
}
