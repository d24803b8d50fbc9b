//! Starts of segments. The leader decides for all replicas, and marks the entry of a segment's first batch.

use duramen_storage::Descriptor;
use duramen_storage::sabotage::{self, Bug};

use super::Partition;
use crate::event::Now;
use crate::limits::PARTITION_SEGMENTS;

/// The largest position an index entry can name, and so a segment can have.
const SEGMENT_BYTES_MAX: u64 = i32::MAX as u64 - 1;

/// The segment that the next batch goes to, as the leader sees it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Active {
    pub(super) base_offset: i64,
    bytes: u64,
    first_timestamp: i64,
    opened_ms: i64,
}

impl Partition {
    /// Tells whether the batch begins a segment.
    pub(super) fn rolls(&self, now: Now, batch: &Descriptor) -> bool {
        let Some(active) = self.active else { return true };
        assert!(
            batch.base_offset >= active.base_offset,
            "offset {} comes after the start of the active segment at {}",
            batch.base_offset,
            active.base_offset
        );
        if active.bytes == 0 {
            return false;
        }
        let is_taken_in = active.base_offset < self.compacts_below();
        if self.roll_due || is_taken_in && !sabotage::is(Bug::EndGoesOn) {
            return true;
        }
        let bytes = active.bytes + u64::from(batch.length);
        let has_many = self.segments.len() >= PARTITION_SEGMENTS;
        let limit = if has_many { i32::MAX } else { self.settings.segment_bytes };
        let is_full = bytes > u64::try_from(limit).unwrap_or(0).min(SEGMENT_BYTES_MAX);
        let last_relative = batch.end_offset() - 1 - active.base_offset;
        let waited_ms = if batch.max_timestamp >= 0 && active.first_timestamp >= 0 {
            batch.max_timestamp.saturating_sub(active.first_timestamp)
        } else {
            now.wall_ms.saturating_sub(active.opened_ms)
        };
        let is_old = waited_ms > self.settings.roll_ms() && !has_many;
        is_full || last_relative > i64::from(i32::MAX) || is_old || self.is_mostly_trimmed(active)
    }

    /// Tells whether half of the segment is gone, or will be: then the next trim has something to remove. Each replica
    /// removes the file of a segment that is all gone, so the batch behind the Trim entry must begin one.
    fn is_mostly_trimmed(&self, active: Active) -> bool {
        let start = self.log_start.max(self.trimming);
        let left = self.group.end_offset() - start;
        start > active.base_offset && start - active.base_offset >= left
    }

    pub(super) fn note_appended(&mut self, now: Now, batch: &Descriptor) {
        self.roll_due = false;
        if batch.starts_segment {
            self.active = Some(Active {
                base_offset: batch.base_offset,
                bytes: 0,
                first_timestamp: batch.max_timestamp,
                opened_ms: now.wall_ms,
            });
        }
        let active = self.active.as_mut().expect("the first batch starts a segment");
        active.bytes += u64::from(batch.length);
        assert!(
            active.bytes <= SEGMENT_BYTES_MAX.max(u64::from(batch.length)),
            "an index entry can name each place in a segment of {} bytes",
            active.bytes
        );
        assert!(
            batch.end_offset() - active.base_offset <= i64::from(i32::MAX) + 1,
            "an index entry can name each offset in a segment"
        );
    }

    /// Lets the next batch begin a segment. Returns its offset: all before can be let go as a whole.
    pub(crate) fn roll(&mut self) -> i64 {
        assert!(self.obstacle().is_none(), "only a leader begins segments");
        self.roll_due = true;
        self.group.end_offset()
    }

    /// Returns the last segment, as one that the next batch may go to.
    pub(super) fn last_segment(&self, now: Now) -> Option<Active> {
        self.segments.last().map(|last| Active {
            base_offset: last.base_offset,
            bytes: last.size,
            first_timestamp: last.max_timestamp,
            opened_ms: now.wall_ms,
        })
    }
}
