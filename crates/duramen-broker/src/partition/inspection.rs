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
        assert!(
            self.fencing.as_ref().is_none_or(|(index, _)| *index > applied),
            "a fence that is applied is not proposed any more"
        );
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
        assert!(
            self.segments_end <= self.group.end_offset(),
            "segments end within the log, at {}",
            self.segments_end
        );
        let is_within = self.stretches.is_within(self.group.last_index());
        assert!(is_within, "an Open that is not applied is in the log");
        let held = self.fast.holds.in_order_before(self.stretches.applied().map(|it| it.at));
        assert!(held, "no hold is of a stretch that is over here");
        self.inspect_leadership();
        self.compacting.inspect(self.committed);
        self.producers.inspect(applied);
    }

    /// Checks that only a leader decides, and that requests wait only for a leader.
    fn inspect_leadership(&self) {
        let serves = self.served.is_some();
        assert!(serves || self.trimming == 0, "only a leader proposes trims");
        assert!(serves || self.fencing.is_none(), "only a leader proposes fences");
        assert!(serves || !self.roll_due, "only a leader begins segments");
        assert!(serves || self.open_here().is_none(), "only a leader has a stretch open");
        assert!(serves || self.doubted.is_empty(), "only a leader is asked whether it leads");
        assert!(!serves || self.creators.is_empty(), "no request waits for a leader that is here");
        assert!(
            serves || !self.compacting.is_proposing(),
            "only a leader proposes to compact the log"
        );
        let active = self.active.filter(|_| serves);
        assert!(
            active.is_none_or(|it| it.base_offset <= self.group.end_offset()),
            "the next batch does not go before the active segment"
        );
    }
}
