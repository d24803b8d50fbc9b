//! # Room card: erasing of a partition
//!
//! Purpose:    decide when records of queues leave the disks that edits took away, or that are of no use any more, and
//!             up to which offset.
//! Owns:       the answers of the index about this leader's log ([`super::compaction::Erasing`]).
//! Interface:  [`Partition::wants_erasable`], [`Partition::note_erasable`], [`Partition::sweep_erasure`].
//! Invariants: an erasure ends where a segment begins, and not behind the leader's own index. Something below its end
//!             was taken away by a statement there, or has expired. Statements go only if an earlier erasure took what
//!             they are about, and was decided long enough before. A leader that does not believe its clock decides
//!             nothing.
//! Never:      the records that go (see storage's `compaction/erasing.rs`); the order to storage, which is that of a
//!             compaction (`compaction.rs`).
//! Tests:      `duramen/tests/native/erasure.rs`; `duramen-sim`, scenarios `node` and `cluster`.
//! Start at:   [`Partition::sweep_erasure`].

use duramen_storage::keys::{Erasable, Expiry};

use super::Partition;
use super::compaction::{Decided, Waiting};
use super::internal::Internal;
use crate::limits::QUEUE_MASKS_MAX;

impl Partition {
    /// Returns the latest erasure, if the index is to be asked what waits for the next one. `None` if the index has not
    /// gone on since it was asked last.
    pub(crate) fn wants_erasable(&self) -> Option<Decided> {
        let decided = self.compacting.decided;
        let asked = self.compacting.erasing.asked;
        let is_news = asked != Some((self.indexed_to(), decided.index));
        let wants = self.settings.queue && self.indexed_to() > 0 && is_news;
        (wants && self.obstacle().is_none()).then_some(decided)
    }

    /// Takes the answer of the index, which is complete up to an offset, with the time of the first statement. The
    /// question was about the erasure of an index.
    pub(crate) fn note_erasable(
        &mut self,
        asked: (i64, u64),
        (found, next_expiry): (Option<(Erasable, i64)>, Option<Expiry>),
        wall_ms: i64,
    ) {
        let erasing = &mut self.compacting.erasing;
        let before = erasing.found.take();
        erasing.asked = Some(asked);
        erasing.next_expiry = next_expiry;
        erasing.found = found.map(|(erasable, said_ms)| {
            let known = before.filter(|it| it.erasable.first == erasable.first);
            let since_ms = known.map_or(said_ms.min(wall_ms), |it| it.since_ms);
            Waiting { erasable, since_ms }
        });
    }

    /// Proposes to erase if it is time. True if it did. A segment has to end behind the statements first: without
    /// appends it ends with the log, else the next batch begins one.
    pub(crate) fn sweep_erasure(&mut self, wall_ms: i64, ticks: u64) -> bool {
        if !self.settings.queue || !self.may_compact(ticks) {
            return false;
        }
        let decided = self.compacting.decided;
        let statements_below = decided.horizon(self.settings.delete_retention_ms, wall_ms);
        let lag_ms = self.settings.queue_erase_lag_ms;
        let is_old = |since_ms: i64| wall_ms.saturating_sub(since_ms) >= lag_ms;
        let erasing = self.compacting.erasing;
        // Another erasure may have taken what an older answer names.
        let erasing = Some(erasing).filter(|it| it.asked.is_some_and(|it| it.1 == decided.index));
        let erasing = erasing.unwrap_or_default();
        let expired = erasing.next_expiry.filter(|it| is_old(it.at_ms));
        let expired =
            expired.map(|it| Erasable { first: it.base_offset, last: it.base_offset, records: 1 });
        let waiting = erasing.found.filter(|it| {
            let is_many = it.erasable.records >= QUEUE_MASKS_MAX / 2;
            is_old(it.since_ms) || is_many
        });
        let due = waiting.map(|it| it.erasable).into_iter().chain(expired);
        let below = match due.reduce(Erasable::with) {
            Some(erasable) => match self.erasure_end(erasable) {
                Some(below) => below.max(decided.below),
                None => return false,
            },
            None if statements_below > decided.tombstones_below => decided.below,
            None => return false,
        };
        if below > self.indexed_to() || below <= self.log_start || below < decided.below {
            return false;
        }
        // Statements alone may go without a believed time: that would be none.
        let expired_by_ms = wall_ms.max(0);
        let entry = Internal::Erase { below, statements_below, at_ms: wall_ms, expired_by_ms };
        self.propose_compaction(&entry, below)
    }

    /// Returns where an erasure may end that takes in statements, or batches that have expired.
    fn erasure_end(&mut self, erasable: Erasable) -> Option<i64> {
        let end = self.group.end_offset();
        let last = self.segments.last().map_or(0, |it| it.base_offset);
        if last > erasable.last || last > erasable.first && self.committed != end {
            return Some(last);
        }
        if self.committed == end {
            return Some(end);
        }
        self.roll();
        None
    }
}
