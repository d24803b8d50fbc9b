//! # Room card: erasing of a partition
//!
//! Purpose:    decide when the records that edits of queues took away leave the disks, and up to which offset.
//! Owns:       the answers of the index about this leader's log ([`super::compaction::Erasing`]).
//! Interface:  [`Partition::wants_erasable`], [`Partition::note_erasable`], [`Partition::sweep_erasure`].
//! Invariants: an erasure ends where a segment begins, behind a statement that took something away, and not behind the
//!             leader's own index. Statements go only if an earlier erasure took what they are about, and was decided
//!             long enough before. A leader that does not believe its clock decides nothing.
//! Never:      the records that go (see storage's `compaction/erasing.rs`); the order to storage, which is that of a
//!             compaction (`compaction.rs`).
//! Tests:      `duramen/tests/native/erasure.rs`; `duramen-sim`, scenarios `node` and `cluster`.
//! Start at:   [`Partition::sweep_erasure`].

use duramen_storage::keys::Erasable;

use super::Partition;
use super::compaction::Waiting;
use super::internal::Internal;
use crate::limits::QUEUE_MASKS_MAX;

impl Partition {
    /// Returns the offset from which the index is to be asked for statements that took something away. `None` if it has
    /// not gone on since it was asked last.
    pub(crate) fn wants_erasable(&self) -> Option<i64> {
        let decided = self.compacting.decided;
        let asked = self.compacting.erasing.asked;
        let is_news = asked != Some((self.indexed_to(), decided.index));
        let wants = self.settings.queue && self.indexed_to() > 0 && is_news;
        (wants && self.obstacle().is_none()).then_some(decided.below)
    }

    /// Takes the answer of the index, which is complete up to an offset, with the time of the first statement.
    pub(crate) fn note_erasable(&mut self, to: i64, found: Option<(Erasable, i64)>, wall_ms: i64) {
        let decided = self.compacting.decided;
        let erasing = &mut self.compacting.erasing;
        let before = erasing.found.take();
        erasing.asked = Some((to, decided.index));
        erasing.found =
            found.filter(|(it, _)| it.first >= decided.below).map(|(erasable, said_ms)| {
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
        let waiting = self.compacting.erasing.found.filter(|it| {
            let age_ms = wall_ms.saturating_sub(it.since_ms);
            let is_many = it.erasable.records >= QUEUE_MASKS_MAX / 2;
            age_ms >= self.settings.queue_erase_lag_ms || is_many
        });
        let below = match waiting {
            Some(Waiting { erasable, .. }) => match self.erasure_end(erasable) {
                Some(below) => below,
                None => return false,
            },
            None if statements_below > decided.tombstones_below => decided.below,
            None => return false,
        };
        if below > self.indexed_to() || below <= self.log_start || below < decided.below {
            return false;
        }
        let entry = Internal::Erase { below, statements_below, at_ms: wall_ms };
        self.propose_compaction(&entry, below)
    }

    /// Returns where an erasure may end that takes in statements.
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
