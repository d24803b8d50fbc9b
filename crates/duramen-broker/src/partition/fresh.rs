//! Keys of the batches of a queue topic that this leader has appended, until the queue index has them.
//!
//! A guard names the last element of a queue, and the index knows that of committed batches alone. Of the others this
//! knows which queues they may belong to.

use std::collections::VecDeque;

use duramen_protocol::records::Keys;
use duramen_storage::sabotage::{self, Bug};

/// Most numbers of keys that are remembered. Above it the index has to know the whole log.
const NUMBERS_MAX: usize = 65_536;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Fresh {
    /// Offset up to which the index has to know the log, whichever queue is meant: its end when this replica began to
    /// lead, or later.
    since: i64,
    /// End offset and numbers of the keys of each batch behind it.
    batches: VecDeque<(i64, Vec<i32>)>,
    numbers: usize,
}

impl Fresh {
    /// Begins with a log that ends at `end`, which other leaders may have written.
    pub(super) fn begin(&mut self, end: i64) {
        *self = Self { since: end, ..Self::default() };
    }

    /// Begins a term with a log that ends at `end`. Nothing of an earlier term is kept.
    pub(super) fn begin_term(&mut self, end: i64) {
        self.begin(if sabotage::is(Bug::FreshFromNothing) { 0 } else { end });
    }

    /// Notes a batch that was appended.
    pub(super) fn note(&mut self, end: i64, keys: Keys) {
        if sabotage::is(Bug::FreshForgotten) {
            return;
        }
        let mut numbers = keys.others;
        numbers.extend(keys.number);
        self.numbers += numbers.len();
        if keys.is_cut || self.numbers > NUMBERS_MAX {
            return self.begin(end);
        }
        self.batches.push_back((end, numbers));
    }

    /// Forgets the batches that the index has. One that is made anew needs them again.
    pub(super) fn forget(&mut self, indexed: i64) {
        while let Some((end, numbers)) = self.batches.front()
            && *end <= indexed
        {
            self.since = self.since.max(*end);
            self.numbers -= numbers.len();
            self.batches.pop_front();
        }
    }

    /// Returns the offset up to which the index has to know the log. Then it knows all elements of a queue whose name
    /// has this number.
    pub(super) fn end_of(&self, number: i32) -> i64 {
        let has_it = |(_, numbers): &&(i64, Vec<i32>)| numbers.contains(&number);
        let last = self.batches.iter().rev().find(has_it);
        last.map_or(self.since, |(end, _)| *end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(numbers: &[i32]) -> Keys {
        Keys { number: numbers.first().copied(), others: numbers.to_vec(), ..Keys::default() }
    }

    #[test]
    fn a_queue_waits_for_the_latest_batch_that_may_be_its_own() {
        let mut fresh = Fresh::default();
        fresh.begin(10);
        fresh.note(11, keys(&[1, 2]));
        fresh.note(12, keys(&[2]));
        assert_eq!([1, 2, 3].map(|it| fresh.end_of(it)), [11, 12, 10]);
        fresh.forget(11);
        assert_eq!([1, 2, 3].map(|it| fresh.end_of(it)), [11, 12, 11]);
        // A batch of too many keys may be of any queue.
        fresh.note(13, Keys { is_cut: true, ..Keys::default() });
        assert_eq!([1, 2, 3].map(|it| fresh.end_of(it)), [13, 13, 13]);
        fresh.begin(20);
        assert_eq!(fresh.end_of(2), 20);
    }

    #[test]
    fn a_term_begins_with_what_other_leaders_may_have_appended() {
        let mut fresh = Fresh::default();
        fresh.begin_term(10);
        fresh.note(12, keys(&[1]));
        fresh.begin_term(20);
        assert_eq!(
            [1, 2].map(|it| fresh.end_of(it)),
            [20, 20],
            "nothing of an earlier term is kept"
        );
    }

    #[test]
    fn the_memory_is_bounded_while_the_index_stands_still() {
        let mut fresh = Fresh::default();
        for end in 1..=200 {
            fresh.note(end, keys(&vec![1; 1000]));
            assert!(fresh.numbers <= NUMBERS_MAX && fresh.batches.len() <= 65);
            assert_eq!(fresh.end_of(1), end);
        }
    }
}
