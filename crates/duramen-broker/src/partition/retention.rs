//! # Room card: retention
//!
//! Purpose:    decide the offset up to which a leader may trim its log, the age of a segment without times, and the
//!             trust in the clock.
//! Owns:       [`ClockWatch`], [`Undated`], [`trim_to`].
//! Interface:  all three.
//! Invariants: after a leap of the wall clock, retention by time removes nothing until the clock returns to the time
//!             that the monotonic clock expects. A clock that leapt back does not make records older.
//! Never:      removal: a Trim entry removes.
//! Tests:      below and in `node`.
//! Start at:   [`trim_to`].

use std::borrow::Cow;
use std::collections::BTreeMap;

use duramen_storage::op::SegmentMeta;

use crate::event::Now;
use crate::limits::CLOCK_LEAP_MS_MAX;
use duramen_storage::sabotage::{self, Bug};

/// Compares the wall clock with the monotonic one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClockWatch {
    believed: Now,
    /// Last reading of the wall clock, in milliseconds.
    wall_ms: i64,
    held: bool,
    holds: u64,
}

impl ClockWatch {
    /// Believes the first reading: there is nothing to compare it with.
    pub(crate) fn new(now: Now) -> Self {
        Self { believed: now, wall_ms: now.wall_ms, held: false, holds: 0 }
    }

    /// Takes a reading, and corrects a clock that has leapt back. Records with its time would be too old at once for
    /// the next leader, whose clock is right.
    pub(crate) fn read(&mut self, now: Now) -> Now {
        self.wall_ms = now.wall_ms;
        let expected_ms = self.expected_ms(now);
        let has_leapt_back = expected_ms.saturating_sub(now.wall_ms) > CLOCK_LEAP_MS_MAX
            && !sabotage::is(Bug::LeapBackFollowed);
        Now { wall_ms: if has_leapt_back { expected_ms } else { now.wall_ms }, ..now }
    }

    /// Returns the time that the wall clock should have, in milliseconds.
    fn expected_ms(&self, now: Now) -> i64 {
        let passed = now.mono_us.saturating_sub(self.believed.mono_us) / 1000;
        self.believed.wall_ms.saturating_add(i64::try_from(passed).unwrap_or(i64::MAX))
    }

    /// Tells whether the last reading, taken now, may be used to remove data. Small differences are forgiven one by
    /// one, so that slow drift is followed. A leap is not believed until it is undone or the node restarted.
    pub(crate) fn believes(&mut self, now: Now) -> bool {
        let now = Now { wall_ms: self.wall_ms, ..now };
        let apart_ms = now.wall_ms.saturating_sub(self.expected_ms(now));
        let believed = apart_ms.abs() <= CLOCK_LEAP_MS_MAX || sabotage::is(Bug::ClockLeapBelieved);
        if believed {
            self.believed = now;
            self.held = false;
        } else if !self.held {
            self.held = true;
            self.holds += 1;
            tracing::warn!(
                apart_ms,
                "the wall clock has leapt; the node holds retention by time until the clock returns, or a restart"
            );
        }
        assert_ne!(believed, self.held, "a reading is believed, or holds retention");
        assert!(!self.held || self.holds > 0, "a leap that holds retention counts");
        believed
    }

    /// Notes that the machine was suspended for so long: the wall clock is ahead by that, and right.
    pub(crate) fn note_suspended(&mut self, ms: i64) {
        self.believed.wall_ms = self.believed.wall_ms.saturating_add(ms);
    }

    /// Returns the number of leaps that held retention.
    pub(crate) fn holds(&self) -> u64 {
        self.holds
    }

    /// Tells whether a leap holds retention now.
    pub(crate) fn is_held(&self) -> bool {
        self.held
    }
}

/// Times of the last append to each segment without record timestamps, as this process has seen it. A segment that was
/// there at the start counts from the start. Kafka takes the time at which the file was written last. Later segments
/// say nothing, because producers may send old times.
#[derive(Clone, Debug, Default)]
pub(crate) struct Undated(BTreeMap<i64, i64>);

impl Undated {
    /// Notes that a batch was added to the segment.
    pub(crate) fn note(&mut self, segment: &SegmentMeta, wall_ms: i64) {
        if segment.max_timestamp < 0 {
            self.0.insert(segment.base_offset, wall_ms);
        } else {
            self.0.remove(&segment.base_offset);
        }
    }

    /// Begins to count for segments that were not seen before, and forgets those that are gone. A time that is still to
    /// come was read from a clock that was wrong.
    pub(crate) fn look_at(&mut self, segments: &[SegmentMeta], wall_ms: i64) {
        let undated = segments.iter().filter(|it| it.max_timestamp < 0);
        let date = |it: &SegmentMeta| {
            let seen = self.0.get(&it.base_offset).map_or(wall_ms, |seen| wall_ms.min(*seen));
            (it.base_offset, seen)
        };
        self.0 = undated.map(date).collect();
    }

    /// Returns the segments, each with a time of 0 or later.
    pub(crate) fn dated<'a>(
        &mut self,
        segments: &'a [SegmentMeta],
        wall_ms: Option<i64>,
    ) -> Cow<'a, [SegmentMeta]> {
        let Some(wall_ms) = wall_ms else { return Cow::Borrowed(segments) };
        self.look_at(segments, wall_ms);
        if self.0.is_empty() {
            debug_assert!(
                segments.iter().all(|it| it.max_timestamp >= 0),
                "every segment has a time"
            );
            return Cow::Borrowed(segments);
        }
        let date = |it: &SegmentMeta| {
            let seen = self.0.get(&it.base_offset).copied();
            SegmentMeta { max_timestamp: seen.unwrap_or(it.max_timestamp).max(0), ..*it }
        };
        Cow::Owned(segments.iter().map(date).collect())
    }
}

/// Retention of a topic; -1 is without limit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Keep {
    pub(crate) ms: i64,
    pub(crate) bytes: i64,
}

/// Returns the offset below which a log may go, if it is above `log_start`. `end` is the high watermark, and every
/// segment has a time. Whole segments go; the active one too, once every record in it is too old.
pub(crate) fn trim_to(
    segments: &[SegmentMeta],
    log_start: i64,
    end: i64,
    keep: Keep,
    wall_ms: Option<i64>,
) -> Option<i64> {
    debug_assert!(
        segments.is_sorted_by(|a, b| a.base_offset < b.base_offset),
        "segments follow each other"
    );
    let mut bytes: u64 = segments.iter().map(|segment| segment.size).sum();
    let mut trim = log_start;
    for (at, segment) in segments.iter().enumerate() {
        let next = segments.get(at + 1).map(|next| next.base_offset);
        if segment.size == 0 && next.is_some() {
            continue; // compaction left nothing of it: it goes with the one behind
        }
        let is_old = wall_ms.is_some_and(|wall_ms| {
            keep.ms >= 0 && wall_ms.saturating_sub(segment.max_timestamp) > keep.ms
        });
        let rest = bytes - segment.size;
        let is_surplus = u64::try_from(keep.bytes).is_ok_and(|keep| rest >= keep);
        // So the active segment goes for its size only where nothing is to be kept.
        if !(is_old || is_surplus) {
            break;
        }
        bytes = rest;
        trim = trim.max(next.unwrap_or(end).min(end));
    }
    assert!(trim <= end.max(log_start), "only committed records are trimmed");
    (trim > log_start).then_some(trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(base_offset: i64, size: u64, max_timestamp: i64) -> SegmentMeta {
        SegmentMeta { base_offset, first_index: 2, size, max_timestamp }
    }

    const ALL: Keep = Keep { ms: -1, bytes: -1 };

    #[test]
    fn old_segments_go_and_the_first_young_one_stops_it() {
        let segments = [segment(0, 10, 100), segment(5, 10, 900), segment(9, 10, 200)];
        let keep = Keep { ms: 500, ..ALL };
        assert_eq!(trim_to(&segments, 0, 12, keep, Some(1000)), Some(5));
        assert_eq!(trim_to(&segments, 0, 12, keep, None), None);
        assert_eq!(trim_to(&segments, 0, 12, ALL, Some(i64::MAX)), None);
    }

    #[test]
    fn the_active_segment_goes_when_all_of_it_is_old() {
        let segments = [segment(0, 10, 100)];
        let keep = Keep { ms: 500, ..ALL };
        assert_eq!(trim_to(&segments, 0, 12, keep, Some(601)), Some(12));
        assert_eq!(trim_to(&segments, 12, 12, keep, Some(601)), None);
    }

    #[test]
    fn a_segment_of_which_compaction_left_nothing_holds_up_no_other() {
        let segments = [segment(0, 0, -1), segment(5, 10, 100), segment(9, 10, 900)];
        let keep = Keep { ms: 500, ..ALL };
        assert_eq!(trim_to(&segments, 0, 12, keep, Some(1000)), Some(9));
        assert_eq!(trim_to(&segments, 0, 12, keep, Some(500)), None);
    }

    #[test]
    fn a_segment_without_times_is_as_old_as_its_last_append_and_holds_up_no_other() {
        let mut undated = Undated::default();
        let segments = [segment(0, 10, -1), segment(5, 10, 100), segment(9, 10, -1)];
        undated.note(&segments[0], 300);
        let keep = Keep { ms: 500, ..ALL };
        let mut at = |wall_ms| {
            let dated = undated.dated(&segments, Some(wall_ms));
            trim_to(&dated, 0, 12, keep, Some(wall_ms))
        };
        assert_eq!(at(800), None);
        assert_eq!(at(801), Some(9));
        // The last one was met at 800, when its log was looked at first.
        assert_eq!(at(1300), Some(9));
        assert_eq!(at(1301), Some(12));
        // A time from a clock that was ahead counts from now.
        undated.note(&segments[0], 10_000);
        undated.look_at(&segments, 400);
        assert_eq!(trim_to(&undated.dated(&segments, Some(900)), 0, 12, keep, Some(900)), None);
        assert_eq!(trim_to(&undated.dated(&segments, Some(901)), 0, 12, keep, Some(901)), Some(12));
        // One record with a time is enough.
        undated.note(&segment(0, 20, 7), 950);
        let dated = undated.dated(&[segment(0, 20, 7)], Some(990)).into_owned();
        assert_eq!(dated, [segment(0, 20, 7)]);
    }

    #[test]
    fn size_keeps_at_least_what_was_asked_and_the_active_segment() {
        let segments = [segment(0, 10, 1), segment(5, 10, 1), segment(9, 10, 1)];
        let keep = |bytes| Keep { bytes, ..ALL };
        assert_eq!(trim_to(&segments, 0, 12, keep(15), None), Some(5));
        assert_eq!(trim_to(&segments, 0, 12, keep(10), None), Some(9));
        assert_eq!(trim_to(&segments, 0, 12, keep(1), None), Some(9));
        assert_eq!(trim_to(&segments, 0, 12, keep(0), None), Some(12));
        assert_eq!(trim_to(&segments, 0, 12, keep(21), None), None);
    }

    #[test]
    fn a_leap_of_days_is_not_believed_however_often_it_is_looked_at() {
        let at = |mono_s: u64, wall_ms| Now { mono_us: mono_s * 1_000_000, wall_ms };
        let mut watch = ClockWatch::new(at(0, 1_000_000));
        let believes = |watch: &mut ClockWatch, now| {
            let read = watch.read(now);
            (watch.believes(read), read.wall_ms)
        };
        assert_eq!(believes(&mut watch, at(300, 1_300_000)), (true, 1_300_000));
        let leap = 8 * 86_400_000;
        let leapt = 1_600_000 + leap;
        assert_eq!(believes(&mut watch, at(600, leapt)), (false, leapt));
        assert!(!believes(&mut watch, at(90_000, 91_000_000 + leap)).0);
        assert_eq!((watch.holds(), watch.is_held()), (1, true));
        assert_eq!(believes(&mut watch, at(90_300, 91_300_000)), (true, 91_300_000));
        assert!(!watch.is_held());
        // A clock that has leapt back is not followed, and holds retention all the same.
        assert_eq!(believes(&mut watch, at(90_600, 91_600_000 - leap)), (false, 91_600_000));
        assert_eq!((watch.holds(), watch.is_held()), (2, true));
    }
}
