//! # Room card: compaction of a partition
//!
//! Purpose:    decide when a leader's log is compacted, up to which offset, and which tombstones go.
//! Owns:       [`Decided`]: decisions of entries, a part of the view; [`decide`].
//! Interface:  both, and [`Log`], which `decide` looks at.
//! Invariants: decisions are a function of the committed log alone, and never go back. Tombstones go only if an earlier
//!             compaction included them, was decided long enough before, and is complete on this leader's disk. A
//!             leader that does not believe its clock decides nothing.
//! Never:      the records that stay (see storage's `compaction`).
//! Tests:      below; `tests/over_storage`; `duramen-sim`, `tests/promises/compaction.rs`, scenarios `node` and
//!             `cluster`.
//! Start at:   [`decide`].

use std::collections::BTreeMap;

use bytes::{Buf, BufMut};
use duramen_storage::compaction::Order;
use duramen_storage::keys::{Erasable, Expiry};
use duramen_storage::op::{Compacted, Op, OpKind, SegmentMeta};
use duramen_storage::sabotage::{self, Bug};

use super::Partition;
use super::internal::Internal;
use crate::configs::TopicSettings;
use crate::event::Action;

/// First byte of decided compactions in an image.
const COMPACTIONS: u8 = 5;
/// First byte of decided erasures of a log of queues that took nothing by itself: older images have it.
const ERASURES_OF_EDITS: u8 = 8;
/// First byte of decided erasures of a log of queues.
const ERASURES: u8 = 9;

/// Compaction of a log: decided and done.
#[derive(Clone, Debug, Default)]
pub(super) struct Compacting {
    pub(super) decided: Decided,
    pub(super) done: Compacted,
    /// Index of the Compact entry whose order storage has not answered.
    ordered: Option<u64>,
    /// True if an order failed: the next look at the log repeats it.
    is_put_off: bool,
    /// Index of the latest Compact entry proposed in this term, and the offset up to which it compacts.
    proposed: Option<(u64, i64)>,
    /// Time of a segment's first batch, by the segment's base offset. Covers the segments that began since this replica
    /// started.
    begun: BTreeMap<i64, i64>,
    /// Tick until which a node is fed with the remains of the last compaction.
    fed_until_tick: u64,
    pub(super) erasing: Erasing,
}

/// Answers of the index about records that edits took away, or that are of no use, and that are still there.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Erasing {
    /// Offset up to which the index was asked, and index of the Erase entry that was the latest one then.
    pub(super) asked: Option<(i64, u64)>,
    pub(super) found: Option<Waiting>,
    /// The batch that is of no use first, in part, and which the erasures so far have not judged.
    pub(super) next_expiry: Option<Expiry>,
}

/// Records that wait to be erased.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    pub(super) erasable: Erasable,
    /// Time since when they wait, by this leader's clock: that of the statement, or of its first sight if that is
    /// earlier.
    pub(super) since_ms: i64,
}

impl Compacting {
    /// Tells whether a Compact entry was proposed in this term.
    pub(super) fn is_proposing(&self) -> bool {
        self.proposed.is_some()
    }

    /// Checks the stages of a compaction: decided, ordered, done.
    pub(super) fn inspect(&self, committed: i64) {
        let Self { decided, done, ordered, is_put_off, .. } = self;
        assert!(
            ordered.is_none_or(|index| index <= decided.index),
            "an order is of an entry that is applied"
        );
        assert!(ordered.is_none() || !is_put_off, "an order under way is not repeated");
        assert!(done.below <= committed, "only committed records are compacted");
    }
}

impl Partition {
    /// Returns the extent of the latest compaction by storage, as this view knows it.
    pub(crate) fn compacted(&self) -> Compacted {
        self.compacting.done
    }

    /// Returns the time by which records had expired that the latest erasure took by themselves; 0 if another is
    /// decided.
    pub(crate) fn expired_by_ms(&self) -> i64 {
        let Compacting { decided, done, .. } = &self.compacting;
        if decided.index == done.index { decided.expired_by_ms } else { 0 }
    }

    /// Puts off the next compaction until this tick, because a node is fed with the remains of the last one. After
    /// another compaction the feed would have to begin anew.
    pub(crate) fn note_fed(&mut self, until_tick: u64) {
        self.compacting.fed_until_tick = until_tick;
    }

    /// Lets a failed order be tried again. True if there is one.
    pub(crate) fn retry_compaction(&mut self) -> bool {
        std::mem::take(&mut self.compacting.is_put_off)
    }

    /// Proposes to compact the log if it is time. True if it did. The leader waits for a live follower that lacks
    /// entries to be compacted, because the follower would have to begin anew.
    pub(crate) fn sweep_compaction(&mut self, wall_ms: i64, ticks: u64) -> bool {
        let Compacting { decided, done, .. } = self.compacting;
        if !self.settings.compact || !self.may_compact(ticks) {
            return false;
        }
        let log = Log {
            segments: &self.undated.dated(&self.segments, Some(wall_ms)),
            begun: &self.compacting.begun,
            start: self.log_start,
            stable: self.stable(),
            end: self.group.end_offset(),
        };
        let now = decide(&log, (&decided, &done), &self.settings, wall_ms);
        let Some((below, tombstones_below)) = now else { return false };
        let entry = Internal::Compact { below, tombstones_below, at_ms: wall_ms };
        self.propose_compaction(&entry, below)
    }

    /// Tells whether this leader may decide another compaction: the one before is done here, or has nothing left to do.
    pub(super) fn may_compact(&self, ticks: u64) -> bool {
        let Compacting { decided, done, proposed, fed_until_tick, .. } = self.compacting;
        let is_under_way = proposed.is_some_and(|(index, _)| index > decided.index);
        let is_left = done.index != decided.index && self.log_start < decided.below;
        !is_under_way && !is_left && ticks >= fed_until_tick && self.obstacle().is_none()
    }

    /// Proposes an entry that compacts or erases the log below an offset, once all followers that are there have all
    /// entries below. True if it did.
    pub(super) fn propose_compaction(&mut self, entry: &Internal, below: i64) -> bool {
        let next = self.segments.iter().find(|it| it.base_offset == below);
        let last = next.map_or(self.group.last_index(), |next| next.first_index - 1);
        if !self.group.is_everywhere(last) {
            return false;
        }
        assert!(below <= self.group.end_offset(), "a compaction ends within the log");
        let Ok(index) = self.group.propose_internal(&entry.encode()) else { return false };
        assert!(index > self.compacting.decided.index, "one such entry is under way at a time");
        self.compacting.proposed = Some((index, below));
        true
    }

    /// Returns the offset up to which the log is compacted, or will be: no segment that begins below goes on beyond.
    pub(super) fn compacts_below(&self) -> i64 {
        let Compacting { decided, proposed, .. } = &self.compacting;
        proposed.map_or(0, |(_, below)| below).max(decided.below)
    }

    /// Forgets the proposed Compact entry, because a new leader's proposals are its own.
    pub(super) fn forget_proposed(&mut self) {
        self.compacting.proposed = None;
    }

    /// Notes when a segment begins, for `max.compaction.lag.ms`.
    pub(super) fn note_begun(&mut self, base_offset: i64, first_timestamp: i64) {
        let begun = &mut self.compacting.begun;
        begun.insert(base_offset, first_timestamp);
        // Earlier segments count only if they are not compacted yet.
        let from = self.compacting.decided.below.max(self.log_start);
        let begins_before = begun.range(..=from).next_back().map(|(base, _)| *base);
        self.compacting.begun = begun.split_off(&begins_before.unwrap_or(from));
    }

    /// Returns the storage actions for the latest Compact entry. An image behind the entry comes first, since the
    /// replaced batches must not be needed to make the view again.
    pub(super) fn order(&mut self) -> Option<[Action; 3]> {
        let Compacting { decided, done, ordered, is_put_off, .. } = self.compacting;
        let is_due = decided.index > done.index && ordered.is_none() && !is_put_off;
        // An image would pass what makes the log begin anew.
        let may = self.group.failure().is_none() && !self.group.is_beginning();
        let is_kept = self.log_start < decided.below;
        if !is_due || !may || !is_kept {
            return None;
        }
        let compacted = decided.wanted();
        // From now on a read there may return compacted batches, which differ from the appended ones.
        self.group.compact(compacted.below, compacted.index);
        self.compacting.ordered = Some(compacted.index);
        let replica = self.group.id();
        let aborted = self.producers.transactions().aborted_before(compacted.below);
        let is_told = sabotage::is(Bug::EraseOfSettings);
        let erases = if is_told { self.settings.queue } else { decided.erases };
        let order = Order {
            replica,
            compacted,
            aborted: aborted.collect(),
            segment_bytes: u64::try_from(self.settings.segment_bytes).unwrap_or(0),
            erases_since: erases.then_some(done),
            expired_by_ms: decided.expired_by_ms,
        };
        let storage =
            [self.image(), OpKind::Settle].map(|kind| Action::Storage(Op { replica, kind }));
        let [image, settle] = storage;
        Some([image, settle, Action::Compact(order)])
    }

    /// Takes the result of an order.
    pub(crate) fn on_compacted(&mut self, done: Option<&(Compacted, Vec<SegmentMeta>)>) {
        let ordered = self.compacting.ordered.take();
        let Some((compacted, made)) = done else {
            self.compacting.is_put_off = true;
            return;
        };
        if compacted.index <= self.compacting.done.index {
            return; // the log has begun anew since
        }
        assert!(
            ordered.is_none_or(|index| index == compacted.index),
            "a result is that of the order under way"
        );
        let after = self.segments.partition_point(|it| it.base_offset < compacted.below);
        self.segments.splice(..after, made.iter().copied());
        self.drop_segments();
        self.group.note_compacted(*compacted, made);
        self.note_compacted(*compacted);
    }

    /// Notes the extent of the compaction. No aborted transaction is left below it, and readers must not hear of any.
    /// Their markers may be gone, without which a reader would leave out all later records of their producers.
    pub(super) fn note_compacted(&mut self, compacted: Compacted) {
        self.compacting.done = compacted;
        // An erasure leaves them all.
        if !self.compacting.decided.erases {
            self.producers.trim(compacted.below);
        }
    }
}

/// Decisions of the Compact entries so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Decided {
    /// Index of the latest Compact entry.
    pub index: u64,
    pub below: i64,
    pub tombstones_below: i64,
    /// End of the compaction whose tombstones go next, and the time when it was decided. Other compactions may come
    /// before the next such one.
    horizon_below: i64,
    horizon_at_ms: i64,
    /// True if records go that edits of queues took away, and no others. A log is of one kind for ever. The entries say
    /// so: a node that was just started may not know its topics' settings.
    pub erases: bool,
    /// Time at which the records that an erasure takes by themselves were of no use, in milliseconds since 1970; 0 for
    /// none.
    pub expired_by_ms: i64,
}

impl Decided {
    /// Applies a committed entry, unless the image holds it already.
    pub(crate) fn apply(
        &mut self,
        index: u64,
        (below, tombstones_below): (i64, i64),
        at_ms: i64,
        erases: bool,
    ) {
        if index <= self.index {
            return;
        }
        assert!(self.index == 0 || self.erases == erases, "a log is compacted or erased");
        self.erases = erases;
        if tombstones_below > self.tombstones_below || self.index == 0 {
            (self.horizon_below, self.horizon_at_ms) = (below, at_ms);
        }
        self.index = index;
        self.below = self.below.max(below);
        self.tombstones_below = self.tombstones_below.max(tombstones_below);
        assert!(
            self.tombstones_below <= self.below,
            "tombstones go only where the log is compacted"
        );
        assert!(
            self.horizon_below <= self.below,
            "only decided compactions wait for their tombstones"
        );
    }

    /// Applies the time of a committed entry that erases, as [`Self::apply`] does with its offsets.
    pub(crate) fn expire(&mut self, index: u64, expired_by_ms: i64) {
        if index == self.index {
            self.expired_by_ms = self.expired_by_ms.max(expired_by_ms);
        }
    }

    /// Returns the offset below which tombstones, or statements about queues, go with the next entry.
    pub(super) fn horizon(&self, retention_ms: i64, wall_ms: i64) -> i64 {
        let is_over = self.index > 0 && wall_ms.saturating_sub(self.horizon_at_ms) >= retention_ms;
        let horizon = if is_over { self.horizon_below } else { 0 };
        horizon.max(self.tombstones_below)
    }

    /// Returns the compaction that storage is to do.
    pub(crate) fn wanted(&self) -> Compacted {
        let Self { index, below, tombstones_below, .. } = *self;
        Compacted { index, below, tombstones_below }
    }

    /// Encodes the decisions for the image, always in as many bytes of a kind.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = vec![if self.erases { ERASURES } else { COMPACTIONS }];
        out.put_u64(self.index);
        for it in [self.below, self.tombstones_below, self.horizon_below, self.horizon_at_ms] {
            out.put_i64(it);
        }
        if self.erases {
            out.put_i64(self.expired_by_ms);
        }
        out
    }

    /// Reads [`Self::encode`] off the front, if the bytes begin so. `None` if the offsets do not fit each other.
    pub(crate) fn decode(whole: &[u8]) -> Option<(Self, &[u8])> {
        let Some((&kind, mut bytes)) = whole.split_first() else {
            return Some((Self::default(), whole));
        };
        let erases = match kind {
            COMPACTIONS => false,
            ERASURES | ERASURES_OF_EDITS => true,
            _ => return Some((Self::default(), whole)),
        };
        let mut decided = Self {
            index: bytes.try_get_u64().ok()?,
            below: bytes.try_get_i64().ok()?,
            tombstones_below: bytes.try_get_i64().ok()?,
            horizon_below: bytes.try_get_i64().ok()?,
            horizon_at_ms: bytes.try_get_i64().ok()?,
            erases,
            expired_by_ms: 0,
        };
        if kind == ERASURES {
            decided.expired_by_ms = bytes.try_get_i64().ok().filter(|it| *it >= 0)?;
        }
        let ends = [decided.tombstones_below, decided.horizon_below];
        ends.iter().all(|end| (0..=decided.below).contains(end)).then_some((decided, bytes))
    }
}

/// A log as [`decide`] looks at it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Log<'a> {
    /// Segments, each with a time.
    pub segments: &'a [SegmentMeta],
    /// Time of the first batch, by the segment's base offset, where it is known.
    pub begun: &'a BTreeMap<i64, i64>,
    /// Log start offset.
    pub start: i64,
    /// Last stable offset.
    pub stable: i64,
    /// Log end offset.
    pub end: i64,
}

impl Log<'_> {
    /// Tells whether a segment's oldest record has waited for longer than `max.compaction.lag.ms`.
    fn is_overdue(&self, segment: &SegmentMeta, settings: &TopicSettings, wall_ms: i64) -> bool {
        let begun = self.begun.get(&segment.base_offset).filter(|time| **time >= 0);
        let oldest = begun.map_or(segment.max_timestamp, |it| segment.max_timestamp.min(*it));
        wall_ms.saturating_sub(oldest) > settings.max_compaction_lag_ms
    }
}

/// Returns the offset up to which a log is to be compacted now, and the one below which tombstones go: `(below,
/// tombstones_below)`. The last segment is compacted only when it is overdue, and nothing is in flight. `done` is the
/// latest compaction on this replica's disk.
pub(crate) fn decide(
    log: &Log<'_>,
    (decided, done): (&Decided, &Compacted),
    settings: &TopicSettings,
    wall_ms: i64,
) -> Option<(i64, i64)> {
    if done.index != decided.index && log.start < decided.below {
        return None; // that is to be done first
    }
    let segments = log.segments;
    let is_old = |segment: &SegmentMeta| {
        let age_ms = wall_ms.saturating_sub(segment.max_timestamp);
        settings.min_compaction_lag_ms == 0 || age_ms >= settings.min_compaction_lag_ms
    };
    // A reader in a gap finds a later batch that it may be shown.
    let may_go = |pair: &&[SegmentMeta]| is_old(&pair[0]) && pair[1].base_offset < log.stable;
    debug_assert!(
        segments.is_sorted_by(|a, b| a.base_offset < b.base_offset),
        "segments follow each other"
    );
    let mut count = segments.windows(2).take_while(may_go).count();
    let mut below = segments.get(count)?.base_offset;
    if let [last] = segments[count..]
        && log.stable == log.end
        && is_old(&last)
        && log.is_overdue(&last, settings, wall_ms)
    {
        // Its last record is its key's last, so that one stays for a reader in a gap.
        (count, below) = (count + 1, log.end);
    }
    if count == 0 || below <= decided.below {
        return None;
    }
    let (mut clean, mut dirty, mut is_overdue) = (0, 0, false);
    for segment in &segments[..count] {
        if segment.base_offset < decided.below {
            clean += segment.size;
        } else {
            dirty += segment.size;
            is_overdue |= log.is_overdue(segment, settings, wall_ms);
        }
    }
    let ratio = dirty as f64 / (clean + dirty).max(1) as f64;
    if dirty == 0 || !(is_overdue || ratio > settings.min_cleanable_dirty_ratio) {
        return None;
    }
    let tombstones_below = decided.horizon(settings.delete_retention_ms, wall_ms);
    assert!(tombstones_below <= below, "tombstones go only where the log is compacted");
    Some((below, tombstones_below))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::configs::BrokerSettings;
    use crate::partition::retention::Undated;

    fn settings(own: &[(&str, &str)]) -> TopicSettings {
        let broker = BrokerSettings::from_pairs(&[]).expect("no mistakes");
        let own: BTreeMap<_, _> =
            own.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        TopicSettings::resolve(&own, &broker)
    }

    fn segment(base_offset: i64, size: u64, max_timestamp: i64) -> SegmentMeta {
        SegmentMeta { base_offset, first_index: 2, size, max_timestamp }
    }

    const SEGMENTS: [(i64, u64, i64); 4] = [(0, 100, 10), (5, 100, 20), (9, 100, 30), (20, 7, 40)];

    fn all() -> Vec<SegmentMeta> {
        SEGMENTS.map(|(base, size, time)| segment(base, size, time)).into()
    }

    /// Decides for a log of these segments, from `start`. All up to `stable` is committed and stable, and more is in
    /// flight.
    fn decide_of(
        segments: &[SegmentMeta],
        (start, stable): (i64, i64),
        of: (&Decided, &Compacted),
        settings: &TopicSettings,
        wall_ms: i64,
    ) -> Option<(i64, i64)> {
        let begun = BTreeMap::new();
        decide(
            &Log { segments, begun: &begun, start, stable, end: stable + 1 },
            of,
            settings,
            wall_ms,
        )
    }

    fn done(decided: &Decided) -> Compacted {
        decided.wanted()
    }

    #[test]
    fn all_but_the_last_segment_goes_in_that_no_open_transaction_reaches() {
        let none = Decided::default();
        let all = all();
        let at = |stable| decide_of(&all, (0, stable), (&none, &done(&none)), &settings(&[]), 1000);
        assert_eq!(at(21), Some((20, 0)));
        // One that is at its very beginning stays: what follows is not to be read yet.
        assert_eq!(at(20), Some((9, 0)));
        assert_eq!(at(5), None);
        assert_eq!(decide_of(&all[..1], (0, 9), (&none, &done(&none)), &settings(&[]), 1000), None);
    }

    #[test]
    fn what_is_young_waits_and_what_waited_long_goes_in() {
        let none = Decided::default();
        let lag = settings(&[("min.compaction.lag.ms", "980")]);
        assert_eq!(decide_of(&all(), (0, 30), (&none, &done(&none)), &lag, 1000), Some((9, 0)));
        assert_eq!(decide_of(&all(), (0, 30), (&none, &done(&none)), &lag, 980), None);
        let mut some = Decided::default();
        some.apply(7, (9, 0), 0, false);
        // A third of it is dirty.
        let ratio = |ratio: &str, max: &str| {
            let own = [("min.cleanable.dirty.ratio", ratio), ("max.compaction.lag.ms", max)];
            decide_of(&all(), (0, 30), (&some, &done(&some)), &settings(&own), 1000)
        };
        assert_eq!(ratio("0.33", "100000"), Some((20, 0)));
        assert_eq!(ratio("0.34", "100000"), None);
        assert_eq!(ratio("1.0", "969"), Some((20, 0)));
        assert_eq!(ratio("1.0", "970"), None);
    }

    #[test]
    fn the_last_segment_goes_in_once_it_is_overdue_and_nothing_is_in_flight() {
        let none = Decided::default();
        let own = [("max.compaction.lag.ms", "100"), ("min.cleanable.dirty.ratio", "1")];
        let segments = [segment(0, 100, 10), segment(5, 100, 40)];
        let at = |(stable, end), first: Option<i64>, wall_ms| {
            let begun = first.map(|first| (5, first)).into_iter().collect();
            let log = Log { segments: &segments, begun: &begun, start: 0, stable, end };
            decide(&log, (&none, &done(&none)), &settings(&own), wall_ms).map(|it| it.0)
        };
        assert_eq!(at((9, 9), None, 110), None);
        assert_eq!(at((9, 9), None, 111), Some(5));
        assert_eq!(at((9, 9), None, 141), Some(9));
        // By its first record, where that is known; one without a time says nothing.
        assert_eq!(at((9, 9), Some(20), 120), Some(5));
        assert_eq!(at((9, 9), Some(20), 121), Some(9));
        assert_eq!(at((9, 9), Some(-1), 140), Some(5));
        // A producer appends, or has a transaction open.
        assert_eq!(at((9, 10), None, 141), Some(5));
        assert_eq!(at((8, 9), None, 141), Some(5));
        let mut some = Decided::default();
        some.apply(7, (9, 0), 0, false);
        let begun = BTreeMap::new();
        let log = Log { segments: &segments, begun: &begun, start: 0, stable: 9, end: 9 };
        assert_eq!(decide(&log, (&some, &done(&some)), &settings(&own), 1000), None, "once");
    }

    #[test]
    fn segments_without_times_are_as_old_as_their_last_append() {
        let none = Decided::default();
        let segments = [segment(0, 100, -1), segment(5, 100, -1), segment(9, 7, 10)];
        let mut undated = Undated::default();
        undated.note(&segments[0], 100);
        undated.note(&segments[1], 200);
        let mut at = |lag, wall_ms| {
            let own = settings(&[(lag, "500"), ("min.cleanable.dirty.ratio", "1")]);
            let dated = undated.dated(&segments, Some(wall_ms));
            decide_of(&dated, (0, 30), (&none, &done(&none)), &own, wall_ms).map(|it| it.0)
        };
        assert_eq!(at("max.compaction.lag.ms", 600), None);
        assert_eq!(at("max.compaction.lag.ms", 601), Some(9));
        let mut young = |wall_ms| {
            let own =
                settings(&[("min.compaction.lag.ms", "500"), ("min.cleanable.dirty.ratio", "0")]);
            let dated = undated.dated(&segments, Some(wall_ms));
            decide_of(&dated, (0, 30), (&none, &done(&none)), &own, wall_ms).map(|it| it.0)
        };
        assert_eq!([young(599), young(600), young(700)], [None, Some(5), Some(9)]);
    }

    #[test]
    fn one_compaction_is_done_before_the_next_is_decided() {
        let mut some = Decided::default();
        some.apply(7, (5, 0), 0, false);
        let at = |done: Compacted| decide_of(&all(), (0, 30), (&some, &done), &settings(&[]), 1000);
        assert_eq!(at(Compacted::default()), None);
        assert_eq!(at(done(&some)), Some((20, 0)));
        // Offsets that were trimmed meanwhile need no compaction any more.
        let none = Compacted::default();
        let left = &all()[1..];
        assert_eq!(decide_of(left, (5, 30), (&some, &none), &settings(&[]), 1000), Some((20, 0)));
    }

    #[test]
    fn tombstones_go_when_what_they_were_in_was_decided_long_enough_ago() {
        let own = settings(&[("delete.retention.ms", "100"), ("min.cleanable.dirty.ratio", "0")]);
        let mut some = Decided::default();
        let at = |some: &Decided, wall_ms| {
            decide_of(&all(), (0, 30), (some, &done(some)), &own, wall_ms)
        };
        some.apply(7, (5, 0), 1000, false);
        assert_eq!(at(&some, 1099), Some((20, 0)));
        assert_eq!(at(&some, 1100), Some((20, 5)));
        // One that comes between does not put it off.
        some.apply(8, (9, 0), 1050, false);
        assert_eq!(at(&some, 1100), Some((20, 5)));
        some.apply(9, (9, 5), 1100, false);
        assert_eq!(at(&some, 1199), Some((20, 5)), "it never falls");
        assert_eq!(at(&some, 1200), Some((20, 9)));
    }

    #[test]
    fn what_was_decided_survives_the_image_and_is_not_decided_twice() {
        let mut some = Decided::default();
        some.apply(7, (5, 3), 1000, false);
        some.apply(7, (9, 9), 2000, false);
        assert_eq!(some.wanted(), Compacted { index: 7, below: 5, tombstones_below: 3 });
        let bytes = [&some.encode()[..], b"rest"].concat();
        assert_eq!(Decided::decode(&bytes), Some((some, &b"rest"[..])));
        assert_eq!(Decided::decode(&bytes[..40]), None);
        let mut erased = Decided::default();
        erased.apply(7, (5, 3), 1000, true);
        erased.expire(7, 900);
        erased.expire(6, 950);
        assert_eq!(erased.expired_by_ms, 900);
        let bytes = [&erased.encode()[..], b"rest"].concat();
        assert_eq!(Decided::decode(&bytes), Some((erased, &b"rest"[..])));
        // Older images end before the time.
        let older = [&[ERASURES_OF_EDITS][..], &bytes[1..41], b"rest"].concat();
        let of_edits = Decided { expired_by_ms: 0, ..erased };
        assert_eq!(Decided::decode(&older), Some((of_edits, &b"rest"[..])));
    }
}
