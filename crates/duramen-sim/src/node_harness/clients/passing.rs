//! What a client passes over that reads what is committed: of the batches that it is given, those of aborted transactions.

use std::collections::{BTreeSet, VecDeque};

use duramen_protocol::batch::BatchHeader;
use duramen_protocol::messages::fetch::PartitionData;

/// An answer's batches, seen one after the other.
pub(super) struct Passing {
    /// The aborted transactions that are still to come: where they begin, and whose they are.
    aborted: VecDeque<(i64, i64)>,
    /// Whose batches are passed over.
    passing: BTreeSet<i64>,
}

impl Passing {
    pub(super) fn of(part: &PartitionData) -> Self {
        let aborted = part.aborted_transactions.iter().flatten();
        let mut aborted: Vec<_> = aborted.map(|it| (it.first_offset, it.producer_id)).collect();
        aborted.sort_unstable();
        Self { aborted: aborted.into(), passing: BTreeSet::new() }
    }

    /// Whether the next batch is for the client: markers are not.
    pub(super) fn shows(&mut self, header: &BatchHeader) -> bool {
        while self.aborted.front().is_some_and(|it| it.0 <= header.base_offset) {
            self.passing.extend(self.aborted.pop_front().map(|it| it.1));
        }
        if header.attributes.is_control() {
            self.passing.remove(&header.producer_id);
            return false;
        }
        !self.passing.contains(&header.producer_id)
    }
}
