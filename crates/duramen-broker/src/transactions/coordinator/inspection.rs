//! Invariants of a coordinator of transactions, checked after each change where debug assertions are on.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Coordinator, Flight, Id, Then};
use crate::ledger::Ticket;
use crate::limits::INSPECTED_MAX;
use crate::transactions::records::{Status, Transaction};

/// Records under way for one transactional id.
#[derive(Debug, Default)]
struct Flying {
    own: Vec<Ticket>,
    renewed: u32,
}

impl Coordinator {
    /// Checks that ids, appends under way, live records and deadlines agree.
    pub(crate) fn inspect(&self) {
        if !cfg!(debug_assertions) || self.ids.len() > INSPECTED_MAX {
            return;
        }
        let flying = self.flying();
        let (none, mut live, mut due) = (Flying::default(), 0, 0);
        for (name, id) in &self.ids {
            let of_it = flying.get(name).unwrap_or(&none);
            let own: Vec<Ticket> = id.flying.into_iter().collect();
            assert_eq!(own, of_it.own, "{name} knows its record under way");
            assert_eq!(id.renewing, of_it.renewed, "{name} counts its renewed records");
            id.inspect(name);
            if let Some((at, _)) = &id.stored {
                assert_eq!(self.ledger.live.at(*at), Some(name), "{name} is stored at {at}");
            }
            live += usize::from(id.stored.is_some());
            due += usize::from(id.due_us.is_some());
            let due_us = id.due_us;
            assert!(due_us.is_none_or(|at| self.due.has(name, at)), "{name} stands at {due_us:?}");
            let deadline_us = id.deadline_us();
            let is_in_time = |deadline_us| due_us.is_some_and(|due_us| due_us <= deadline_us);
            let in_time = deadline_us.is_none_or(is_in_time);
            assert!(in_time, "{name} is looked at by {deadline_us:?}, not only at {due_us:?}");
        }
        let all_known = flying.keys().all(|name| self.ids.contains_key(*name));
        assert!(all_known, "an id with a record under way is not forgotten");
        assert_eq!(self.ledger.live.size().0, live, "each live record is an id's state");
        assert_eq!(self.due.len(), due, "only known ids are due, each once");
    }

    /// Collects the records under way, by id.
    fn flying(&self) -> BTreeMap<&Arc<str>, Flying> {
        let mut all: BTreeMap<&Arc<str>, Flying> = BTreeMap::new();
        for (ticket, records, Flight { id, then }) in self.ledger.flights() {
            let is_awaited = !matches!(then, Then::Nothing);
            assert!(id.is_some() || !is_awaited, "no request waits for the renewal {ticket}");
            for record in records {
                let of_it = all.entry(&record.id).or_default();
                match id {
                    Some(_) => of_it.own.push(ticket),
                    None => of_it.renewed += 1,
                }
            }
        }
        all
    }
}

impl Id {
    /// Checks the next state of the id, which is about to be appended.
    pub(super) fn check_next(&self, name: &str, next: Option<&Transaction>) {
        let it = self.transaction();
        let is_over = self.unmarked.is_empty() || it.is_none_or(|it| it.status.decided().is_none());
        assert!(is_over, "all partitions have the last marker of {name}");
        let Some(next) = next else {
            let is_open = it.is_some_and(|it| it.status == Status::Ongoing);
            assert!(!is_open, "{name} is not forgotten while its transaction is open");
            return;
        };
        let (producer_id, epoch) = (next.producer_id, next.epoch);
        let before = it.filter(|it| it.producer_id == producer_id).map(|it| it.epoch);
        assert!(before.is_none_or(|it| it <= epoch), "{name}: {epoch} follows {before:?}");
        let is_decided = next.status.decided().is_some();
        let is_replaced = next.next_producer_id >= 0;
        assert!(is_decided || !is_replaced, "{name}: a complete transaction replaces its producer");
        let is_open = is_decided || next.status == Status::Ongoing;
        let has_none = next.partitions.is_empty();
        assert!(is_open || has_none, "{name}: {:?} has no partitions", next.status);
    }

    fn inspect(&self, name: &str) {
        assert!(!self.is_idle(), "{name} has something to keep");
        let stored = self.stored.as_ref();
        let decided = stored.filter(|(_, it)| it.status.decided().is_some());
        assert!(self.unmarked.is_empty() || decided.is_some(), "{name} marks a decision only");
        if let Some((at, it)) = decided {
            let number = self.number;
            assert!(
                number <= *at,
                "{name}: the decision at {number} is not after its copy at {at}"
            );
            let is_in = |(topic, partition): &(String, i32)| {
                it.partitions.get(topic).is_some_and(|known| known.contains(partition))
            };
            let all_in = self.unmarked.iter().all(is_in);
            assert!(all_in, "{name} marks partitions of its transaction only");
        }
        let is_free = self.spare.is_none() || !self.awaits_spare;
        assert!(is_free, "{name} asks for a producer id only without a spare one");
        let is_over = self.present().is_none_or(|it| it.status.decided().is_none());
        let has_to_wait = self.flying.is_some() || self.awaits_spare || !is_over;
        assert!(
            self.waiting.is_empty() || has_to_wait,
            "requests of {name} are decided on at once"
        );
    }
}
