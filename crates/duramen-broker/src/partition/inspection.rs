//! Invariants of a partition, checked at the end of each turn.

use super::Partition;

impl Partition {
    pub(super) fn inspect(&self) {
        if self.group.failure().is_some() {
            return;
        }
        let is_short = self.trims_again || self.log_start <= self.committed;
        assert!(is_short, "only committed records are trimmed");
        assert!(self.committed <= self.group.end_offset(), "shown records are in the log");
        assert!(self.committed <= self.segments_end, "segments have all that is committed");
        assert!(self.stable() <= self.committed, "stable records are committed");
        assert!(self.trimming <= self.group.end_offset(), "a trim names records of the log");
        let applied = self.group.applied();
        let first = self.waiting_commit.first_key_value();
        assert!(first.is_none_or(|(key, _)| key.0 > applied), "no committed append waits");
        let first = self.waiting_persist.first_key_value();
        let persisted = self.group.persisted();
        assert!(first.is_none_or(|(key, _)| key.0 > persisted), "no persisted append waits");
        assert_eq!(self.served.is_some(), self.group.is_serving(), "who leads is known");
        debug_assert!(
            self.segments.is_sorted_by(|a, b| a.base_offset < b.base_offset),
            "segments follow each other"
        );
        debug_assert!(
            self.segments.is_sorted_by(|a, b| a.first_index < b.first_index),
            "segments are in the order of their entries"
        );
        let last = self.segments.last();
        assert!(last.is_none_or(|it| it.base_offset < self.segments_end), "no segment is empty");
        let second = self.segments.get(1);
        assert!(
            second.is_none_or(|it| it.base_offset > self.log_start),
            "a segment below the log start is gone"
        );
    }
}
