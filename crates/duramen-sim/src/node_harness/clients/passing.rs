//! Batches of aborted transactions, which a client with isolation level `read_committed` passes over.

use std::collections::{BTreeSet, VecDeque};

use duramen_protocol::batch::BatchHeader;
use duramen_protocol::messages::fetch::PartitionData;

/// An answer's batches, seen one after the other.
pub(super) struct Passing {
    /// Aborted transactions that are still to come: the first offset and the producer id of each.
    aborted: VecDeque<(i64, i64)>,
    /// Producer ids whose batches are passed over.
    passing: BTreeSet<i64>,
}

impl Passing {
    pub(super) fn of(part: &PartitionData) -> Self {
        let aborted = part.aborted_transactions.iter().flatten();
        let mut aborted: Vec<_> = aborted.map(|it| (it.first_offset, it.producer_id)).collect();
        aborted.sort_unstable();
        Self { aborted: aborted.into(), passing: BTreeSet::new() }
    }

    /// Tells whether the next batch is for the client: markers are not.
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
