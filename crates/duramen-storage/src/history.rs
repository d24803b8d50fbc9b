//! # Room card: history
//!
//! Purpose:    the data of a log's entries that stays after the entries leave memory. With the segments it is enough to
//!             make each entry again.
//! Owns:       the place from which the log can be made again; the internal entries since, which segments do not have.
//! Interface:  [`History`].
//! Invariants: internal entries are in order, all after [`History::index`], and none between is missing: every other
//!             index since then is a batch.
//! Never:      batches; I/O.
//! Tests:      below; every run of the simulator's scenario `cluster`.
//! Start at:   [`History::note`].

use std::collections::VecDeque;

use crate::entry::{Content, LogEntry, TermRun};
use crate::sabotage::{self, Bug};

/// Most bytes of internal entries in a history, with [`ENTRY_BYTES`] for each. Above that the history begins later,
/// and a leader can no longer bring a replica that lacks earlier entries up entry by entry. Every checkpoint holds
/// the internal entries, and some thousand terms fit.
const BYTES_MAX: usize = 256 << 10;
/// Bytes that an internal entry takes in a State, beside its own bytes.
const ENTRY_BYTES: usize = 29;

/// An internal entry, and where the log stood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PastEntry {
    /// The entry.
    pub entry: LogEntry,
    /// The end offset at it.
    pub end_offset: i64,
}

/// See the room card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct History {
    /// The entry before the first that can be had again.
    pub index: u64,
    /// Term of that entry.
    pub term: u64,
    /// End offset of the log at that entry.
    pub end_offset: i64,
    internal: VecDeque<PastEntry>,
    bytes: usize,
}

fn bytes_of(entry: &LogEntry) -> usize {
    match &entry.content {
        Content::Internal(bytes) => ENTRY_BYTES + bytes.len(),
        Content::Batch(_) => 0,
    }
}

/// Drops the term runs that end before an index.
pub fn forget_runs(runs: &mut Vec<TermRun>, index: u64) {
    let begun = runs.partition_point(|run| run.first_index <= index);
    runs.drain(..begun.saturating_sub(1));
}

impl History {
    /// Creates a history that begins after an entry.
    pub fn new(index: u64, term: u64, end_offset: i64) -> Self {
        Self { index, term, end_offset, internal: VecDeque::new(), bytes: 0 }
    }

    /// Returns the internal entries, oldest first.
    pub fn internal(&self) -> impl ExactSizeIterator<Item = &PastEntry> {
        self.internal.iter()
    }

    /// Notes an entry that is no longer in memory. Batches are in segments.
    pub fn note(&mut self, entry: &LogEntry, end_offset: i64) {
        let is_batch = matches!(entry.content, Content::Batch(_));
        if is_batch || entry.index <= self.index || sabotage::is(Bug::PastEntryForgotten) {
            return;
        }
        let last = self.internal.back();
        let is_next = last.is_none_or(|last| last.entry.index < entry.index);
        assert!(is_next, "internal entries are in order");
        let is_behind = last.is_none_or(|last| last.end_offset <= end_offset);
        assert!(is_behind, "a log grows from entry to entry");
        self.bytes += bytes_of(entry);
        self.internal.push_back(PastEntry { entry: entry.clone(), end_offset });
        while self.bytes > BYTES_MAX {
            let Some(PastEntry { entry, end_offset }) = self.internal.pop_front() else { break };
            self.bytes -= bytes_of(&entry);
            (self.index, self.term, self.end_offset) = (entry.index, entry.term, end_offset);
        }
    }

    /// Notes a decoded entry like [`History::note`], but without its checks.
    pub(crate) fn restore(&mut self, past: PastEntry) {
        self.bytes += bytes_of(&past.entry);
        self.internal.push_back(past);
    }

    /// Entries up to this one cannot be had any more.
    pub fn begin_after(&mut self, index: u64, term: u64, end_offset: i64) {
        if index <= self.index {
            return;
        }
        (self.index, self.term, self.end_offset) = (index, term, end_offset);
        while let Some(first) = self.internal.front().filter(|it| it.entry.index <= index) {
            self.bytes -= bytes_of(&first.entry);
            self.internal.pop_front();
        }
        assert!(self.bytes == 0 || !self.internal.is_empty(), "the bytes are those of the entries");
    }

    /// Returns the internal entry at an index.
    pub fn internal_at(&self, index: u64) -> Option<&PastEntry> {
        let at = self.internal.partition_point(|it| it.entry.index < index);
        self.internal.get(at).filter(|it| it.entry.index == index)
    }

    /// Returns the last internal entry before an index.
    pub fn internal_before(&self, index: u64) -> Option<&PastEntry> {
        let after = self.internal.partition_point(|it| it.entry.index < index);
        self.internal.get(after.checked_sub(1)?)
    }

    /// Returns the number of internal entries from one index up to, but not including, another.
    pub fn internal_count(&self, from: u64, before: u64) -> u64 {
        let below = |index| self.internal.partition_point(|it| it.entry.index < index);
        below(before).saturating_sub(below(from)) as u64
    }

    /// Tells whether the parts of a decoded history, which ends at an entry, fit each other.
    pub(crate) fn holds_together(&self, last: (u64, u64, i64)) -> bool {
        let mut before = (self.index, self.term, self.end_offset);
        for PastEntry { entry, end_offset } in &self.internal {
            let follows = entry.index > before.0
                && entry.term >= before.1
                && *end_offset >= before.2
                && matches!(entry.content, Content::Internal(_));
            if !follows {
                return false;
            }
            before = (entry.index, entry.term, *end_offset);
        }
        let ends = before.0 <= last.0 && before.1 <= last.1 && before.2 <= last.2;
        ends && self.end_offset >= 0 && (before.0 < last.0 || before == last)
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn internal(index: u64, bytes: usize) -> LogEntry {
        LogEntry { index, term: 3, content: Content::Internal(Bytes::from(vec![1; bytes])) }
    }

    fn indexes(history: &History) -> Vec<u64> {
        history.internal().map(|it| it.entry.index).collect()
    }

    #[test]
    fn it_knows_which_indexes_are_internal_and_forgets_what_lies_below_its_beginning() {
        let mut history = History::new(1, 1, 0);
        for (index, end_offset) in [(2, 0), (5, 20), (6, 20), (9, 50)] {
            history.note(&internal(index, 2), end_offset);
        }
        assert_eq!(history.internal_at(6).map(|it| it.end_offset), Some(20));
        assert_eq!(history.internal_at(7), None);
        assert_eq!(history.internal_before(6).map(|it| it.entry.index), Some(5));
        assert_eq!(history.internal_before(2), None);
        assert_eq!(history.internal_count(2, 9), 3);
        assert_eq!(history.internal_count(7, 9), 0);
        assert!(history.holds_together((9, 3, 50)) && history.holds_together((11, 3, 70)));
        assert!(!history.holds_together((9, 3, 51)) && !history.holds_together((8, 3, 50)));
        history.begin_after(5, 3, 20);
        history.begin_after(4, 3, 10);
        assert_eq!((history.index, indexes(&history)), (5, vec![6, 9]));
        history.note(&internal(5, 2), 20);
        assert_eq!(indexes(&history), [6, 9], "what lies below is not taken in again");
    }

    #[test]
    fn it_is_bounded_and_begins_later_instead() {
        let mut history = History::new(1, 1, 0);
        for index in 2..800 {
            history.note(&internal(index, 1000), i64::try_from(index).expect("small"));
            let bytes: usize = history.internal().map(|it| bytes_of(&it.entry)).sum();
            assert!(bytes <= BYTES_MAX && bytes == history.bytes);
        }
        assert!(history.index > 400);
        assert_eq!(history.end_offset, i64::try_from(history.index).expect("small"));
        assert_eq!(indexes(&history), (history.index + 1..800).collect::<Vec<_>>());
    }
}
