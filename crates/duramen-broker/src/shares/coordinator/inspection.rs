//! Invariants of a coordinator of share groups' states, checked after each change where debug assertions are on.

use std::collections::BTreeSet;

use super::{COUNTER, Coordinator, Flight};
use crate::limits::INSPECTED_MAX;
use crate::shares::ShareKey;
use crate::shares::records::ShareRecord;

impl Coordinator {
    /// Checks that states, appends under way and live records agree.
    pub(crate) fn inspect(&self) {
        if !cfg!(debug_assertions) || self.entries.len() > INSPECTED_MAX {
            return;
        }
        let flying = self.flying();
        let mut live = usize::from(self.counted.is_some());
        for (key, entry) in &self.entries {
            assert!(*key != *COUNTER, "no group has the name of the counter");
            assert_eq!(entry.flying, flying.contains(key), "{key} knows its records under way");
            let is_at_rest = entry.waiting.is_empty() && entry.kept.is_some();
            assert!(is_at_rest || entry.flying, "{key} has a state, or waits for its records");
            let Some(kept) = &entry.kept else { continue };
            live += 1;
            let at = kept.at;
            assert_eq!(self.ledger.live.at(at), Some(key), "{key} has its snapshot at {at}");
            let (epoch, taken) = (kept.state.state_epoch, self.taken);
            assert!(epoch <= taken, "{key} is of the epoch {epoch}, and {taken} were given");
        }
        let all_known = flying.iter().all(|key| self.entries.contains_key(*key));
        assert!(all_known, "a key with records under way is not forgotten");
        if let Some((at, epoch)) = self.counted {
            assert_eq!(self.ledger.live.at(at), Some(&*COUNTER), "the counter stands at {at}");
            assert!(epoch <= self.taken, "{epoch}, a counted epoch, was given");
        }
        assert_eq!(self.ledger.live.size().0, live, "each live record is a key's state");
    }

    /// Collects the keys of records under way.
    fn flying(&self) -> BTreeSet<&ShareKey> {
        let mut all = BTreeSet::new();
        for (ticket, records, Flight { keys, askers }) in self.ledger.flights() {
            let is_one = keys.len() == 1;
            assert!(askers.is_empty() || is_one, "the answers of {ticket} are those of one key");
            let mut others = records.iter().map(ShareRecord::key).filter(|it| **it != *COUNTER);
            assert!(others.all(|it| keys.contains(it)), "{ticket} has records of its keys only");
            for key in keys {
                assert!(all.insert(key), "{key} is in one append at a time");
            }
        }
        all
    }
}
