//! # Room card: share partition
//!
//! Purpose:    one partition as the consumers of one share group share it (KIP-932): the holder of each record, its
//!             count of deliveries, and its state.
//! Owns:       the window from the first offset that the group is not done with to the last that was surveyed; locks;
//!             delivery counts; the order of keys; the writes to the coordinator of share groups, and their time.
//! Interface:  [`SharePartition::extend`], [`SharePartition::plan`], [`SharePartition::acquire`],
//!             [`SharePartition::acknowledge`], [`SharePartition::expire`], [`SharePartition::next_write`],
//!             [`SharePartition::on_written`].
//! Invariants: a record has at most one holder, and only its holder decides on it. A decision takes effect, and gets
//!             its answer, once it is durable; the start passes only records that the group is done with. No record has
//!             more deliveries than its limit. With keys in order, a consumer gets only the first record of a key that
//!             the group is not done with.
//! Never:      logs, files, clocks, sessions, the way to the coordinator.
//! Tests:      `partition/tests.rs`, `partition/tests/lanes.rs`, and by chance `partition/tests/chance.rs`.
//! Start at:   [`SharePartition::plan`].
//!
//! All offsets of the window are in runs that share one state. Runs that the group is done with stay, and merge, until
//! the start passes them. So memory grows with the records that the group is not done with, which are bounded.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use duramen_protocol::ErrorCode;
use duramen_storage::sabotage::{self, Bug};

use super::StateBatch;
use crate::event::{SeenRecord, SeenRecords};

mod inspection;
mod keeping;
mod lanes;

use lanes::Lanes;

/// Offsets, both included.
pub(crate) type Range = (i64, i64);

/// Most bytes of batches without an available record that a fetch sends between two batches with one.
const SKIPPED_BYTES_MAX: u64 = 64 << 10;

/// Settings of the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rules {
    /// Time for which a consumer holds an acquired record, in microseconds.
    pub lock_us: u64,
    /// Highest count of deliveries of a record.
    pub deliveries_max: i16,
    /// Records that are looked at and not done with.
    pub unfinished_max: i64,
    /// Records of one key go one after the other.
    pub by_key: bool,
    /// Flag that a rejected record needs a durable dead letter first.
    pub has_dead_letters: bool,
    /// Locks may be renewed.
    pub may_renew: bool,
}

/// Where a record batch lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub last: i64,
    /// Its segment, and its place there.
    pub segment: i64,
    pub at: u64,
    pub bytes: u64,
}

/// A record batch that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub base: i64,
    pub span: Span,
    /// None of its records is for consumers: it is of an aborted transaction, or a marker.
    pub is_nothing: bool,
    /// Its records, if they were read.
    pub records: Option<SeenRecords>,
}

/// State of a record after a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Available,
    Acknowledged,
    Archived,
}

impl Outcome {
    fn code(self) -> i8 {
        match self {
            Self::Available => 0,
            Self::Acknowledged => 2,
            Self::Archived => 4,
        }
    }
}

/// Reason for which the group gives a record up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// A consumer rejected the record.
    Rejected,
    /// The record has had its last delivery.
    Exhausted,
    /// The record's end has come.
    Expired,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Phase {
    Available,
    /// The record waits for a time.
    Delayed,
    Acquired {
        holder: Arc<str>,
        until_us: u64,
    },
    /// A decision on the record exists, and takes effect once it is durable.
    Settling {
        to: Outcome,
        ticket: Option<u64>,
    },
    /// The group gave the record up, and a dead letter must be durable first.
    Dying {
        reason: Reason,
        ticket: Option<u64>,
        is_asked: bool,
    },
    Done,
}

/// Knowledge of the coordinator of share groups about a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Saved {
    Yes,
    /// The next write must include the run.
    Due,
    /// A write includes the run, and the coordinator has not answered.
    Sent,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Run {
    last: i64,
    phase: Phase,
    deliveries: i16,
    saved: Saved,
}

/// Changes to make durable, all at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Write {
    pub start: i64,
    /// Offsets from the start on that are done with.
    pub complete: i32,
    pub batches: Vec<StateBatch>,
}

/// Limits of a consumer's fetch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub records: i64,
    pub bytes: u64,
    /// Not one record more; else the last batch is taken whole.
    pub is_strict: bool,
}

/// Records that a consumer gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub first: i64,
    pub last: i64,
    /// This one included.
    pub deliveries: i16,
}

/// Records that a consumer would get, and their place in the log: whole batches, all of one segment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    pub pieces: Vec<Piece>,
    pub records: i64,
    /// The first offset of the first batch.
    pub from: i64,
    /// One past the last batch's last offset.
    pub end: i64,
    pub bytes: u64,
}

impl Plan {
    fn add(&mut self, first: i64, last: i64, deliveries: i16) {
        self.records += last - first + 1;
        match self.pieces.last_mut() {
            Some(piece) if piece.last + 1 == first && piece.deliveries == deliveries => {
                piece.last = last;
            }
            _ => self.pieces.push(Piece { first, last, deliveries }),
        }
    }
}

/// Acknowledgement of records by a consumer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Acknowledgement {
    pub first: i64,
    pub last: i64,
    /// One for all, or one for each.
    pub types: Vec<i8>,
}

pub(crate) const GAP: i8 = 0;
pub(crate) const ACCEPT: i8 = 1;
pub(crate) const RELEASE: i8 = 2;
pub(crate) const REJECT: i8 = 3;
pub(crate) const RENEW: i8 = 4;

/// Records that need a dead letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Dying {
    pub first: i64,
    pub last: i64,
    pub deliveries: i16,
    pub reason: Reason,
}

/// See the room card.
#[derive(Debug, Default)]
pub(crate) struct SharePartition {
    start: i64,
    end: i64,
    runs: BTreeMap<i64, Run>,
    /// Stored states of offsets that were not surveyed yet.
    kept: BTreeMap<i64, StateBatch>,
    spans: BTreeMap<i64, Span>,
    /// Records of the window that are not done with.
    unfinished: i64,
    /// No record before it is available.
    scan_from: i64,
    /// No lock ends before it.
    earliest_us: u64,
    /// Ranges with changes to write.
    due: Vec<Range>,
    /// Flag that a write must carry the start, even if nothing else is due.
    is_start_due: bool,
    sent: Option<(Write, Vec<Range>)>,
    /// Count of records that each decision still waits for.
    tickets: BTreeMap<u64, i64>,
    answers: Vec<(u64, ErrorCode)>,
    /// Flag that records need dead letters for which the node was not asked yet.
    is_dying: bool,
    /// With records in the order of their keys: which key each has, and the records of each that are not done with.
    keys: BTreeMap<i64, u128>,
    queues: BTreeMap<u128, VecDeque<i64>>,
    lanes: Lanes,
}

/// Loading from stored state, and the needs of the window.
impl SharePartition {
    /// Builds the partition from its stored state: `start` is known, and the log has everything from there on.
    pub(crate) fn new(start: i64, kept: &[StateBatch]) -> Self {
        let later = kept.iter().filter(|batch| batch.last >= start);
        Self {
            start,
            end: start,
            kept: later.map(|it| (it.first.max(start), it.counted())).collect(),
            scan_from: start,
            earliest_us: u64::MAX,
            ..Self::default()
        }
    }

    /// Marks the start as due for a write. The start was found here, and must be stored before a consumer gets any
    /// record.
    pub(crate) fn save_start(&mut self) {
        self.is_start_due = true;
    }

    /// Returns the first offset that the group is not done with.
    #[cfg(test)]
    pub(crate) fn start(&self) -> i64 {
        self.start
    }

    /// Returns the count of surveyed records that the group is not done with.
    pub(crate) fn unfinished(&self) -> i64 {
        self.unfinished
    }

    /// Tells whether no consumer holds a record and no write is due, so that the node may forget the partition and load
    /// it again.
    pub(crate) fn is_idle(&self) -> bool {
        let is_still = |run: &Run| {
            let phase = &run.phase;
            run.saved == Saved::Yes
                && matches!(phase, Phase::Available | Phase::Delayed | Phase::Done)
        };
        !self.is_start_due && self.sent.is_none() && self.runs.values().all(is_still)
    }

    /// Forgets the survey of the window, but not the state of its records: the next survey reads the records in another
    /// way.
    pub(crate) fn begin_anew(&mut self) {
        debug_assert!(self.is_idle(), "nobody holds anything");
        let known = self.runs.iter().map(|(&first, run)| {
            let is_done = run.phase == Phase::Done;
            let state = if is_done { Outcome::Archived } else { Outcome::Available }.code();
            StateBatch { first, last: run.last, state, count: run.deliveries }
        });
        let later =
            self.kept.values().map(|it| StateBatch { first: it.first.max(self.end), ..*it });
        let kept: Vec<StateBatch> = known.chain(later).collect();
        *self = Self::new(self.start, &kept);
    }

    /// Returns the offset from which the next survey should look at the log. Returns `None` if there is no room for
    /// more, or no log below `end`.
    pub(crate) fn wants(&self, rules: &Rules, end: i64) -> Option<i64> {
        (self.has_room(rules) && self.end < end).then_some(self.end)
    }

    /// Adds the survey of the log from `from`, which [`Self::wants`] returned, up to `to`. Offsets between batches hold
    /// no record.
    pub(crate) fn extend(
        &mut self,
        from: i64,
        (seen, to): (Vec<Seen>, i64),
        now_ms: i64,
        rules: &Rules,
    ) {
        if from > self.end {
            return;
        }
        for batch in seen {
            let Seen { base, span, is_nothing, records } = batch;
            if span.last < self.end {
                continue;
            }
            if !self.has_room(rules) {
                return;
            }
            if base > self.end {
                self.append_done(base - 1);
            }
            if is_nothing {
                self.append_done(span.last);
                continue;
            }
            self.spans.insert(base, span);
            match records {
                None => self.append(span.last, rules),
                Some(records) => {
                    let last = span.last.min(records.end - 1);
                    if !self.append_records(&records.of, last, now_ms, rules) {
                        return;
                    }
                }
            }
        }
        if to > self.end {
            self.append_done(to - 1);
        }
    }

    /// Adds a batch record by record, as far as there is room. Tells whether all of the batch fit.
    fn append_records(
        &mut self,
        records: &[SeenRecord],
        last: i64,
        now_ms: i64,
        rules: &Rules,
    ) -> bool {
        for &SeenRecord { offset, key, schedule } in records {
            if offset < self.end {
                continue;
            }
            if !self.has_room(rules) {
                return false;
            }
            if offset > self.end {
                self.append_done(offset - 1);
            }
            if let Some(schedule) = schedule {
                self.append_of_queue((offset, key), schedule, now_ms, rules);
                continue;
            }
            let before = self.unfinished;
            self.append(offset, rules);
            if let Some(key) = key.filter(|_| self.unfinished > before) {
                self.keys.insert(offset, key);
                self.queues.entry(key).or_default().push_back(offset);
            }
        }
        if last >= self.end {
            self.append_done(last);
        }
        true
    }

    fn append_done(&mut self, last: i64) {
        let first = self.end;
        self.push(last, Phase::Done, 0, Saved::Yes);
        self.forget_kept(last);
        self.forget_spans(first);
        self.advance();
    }

    /// Extends the window to `last`, with the stored states of its offsets.
    fn append(&mut self, last: i64, rules: &Rules) {
        while self.end <= last {
            let kept = self.kept.range(..=self.end).next_back().map(|(_, it)| *it);
            let kept = kept.filter(|it| it.last >= self.end);
            let next = self.kept.range(self.end + 1..).next().map_or(i64::MAX, |(first, _)| *first);
            let (upto, deliveries, is_done) = match kept {
                None => (last.min(next - 1), 0, false),
                Some(it) => (last.min(it.last), it.count, it.state != Outcome::Available.code()),
            };
            let first = self.end;
            if is_done {
                self.push(upto, Phase::Done, 0, Saved::Yes);
                self.forget_spans(first);
            } else {
                self.unfinished += upto - first + 1;
                self.push(upto, Phase::Available, deliveries, Saved::Yes);
                if deliveries >= rules.deliveries_max {
                    self.give_up((first, upto), Reason::Exhausted, None, rules);
                } else {
                    self.scan_from = self.scan_from.min(first);
                }
            }
        }
        self.forget_kept(last);
        self.advance();
    }

    fn push(&mut self, last: i64, phase: Phase, deliveries: i16, saved: Saved) {
        let first = self.end;
        if phase == Phase::Available {
            self.lanes.set_available((first, last), true);
        }
        self.runs.insert(first, Run { last, phase, deliveries, saved });
        self.end = last + 1;
        self.merge(first, last);
    }

    fn forget_kept(&mut self, last: i64) {
        while let Some(first) = self.kept.first_entry() {
            if first.get().last > last {
                break;
            }
            first.remove();
        }
    }

    /// Batches without a record that is not done with need not be known any more.
    fn forget_spans(&mut self, at: i64) {
        let Some((&from, run)) = self.runs.range(..=at).next_back() else { return };
        if run.phase != Phase::Done || run.last < at {
            return;
        }
        let (last, start) = (run.last, self.start);
        let first = self.spans.range(..=from).next_back().map_or(from, |(base, _)| *base);
        let is_over = |base: i64, span: &Span| span.last <= last && base.max(start) >= from;
        let inside = self.spans.range(first..=last);
        let gone: Vec<i64> =
            inside.filter(|(base, span)| is_over(**base, span)).map(|(base, _)| *base).collect();
        for base in gone {
            self.spans.remove(&base);
        }
    }

    /// Moves the start past the offsets that the group is done with.
    fn advance(&mut self) {
        while let Some(first) = self.runs.first_entry() {
            if first.get().phase != Phase::Done {
                break;
            }
            self.start = first.remove().last + 1;
        }
        while let Some(first) = self.spans.first_entry() {
            if first.get().last >= self.start {
                break;
            }
            first.remove();
        }
        self.scan_from = self.scan_from.max(self.start);
        self.inspect();
    }

    /// Drops the records before the new log start offset. Tells whether that changes the start; the coordinator must
    /// then learn the start even if no decision follows.
    pub(crate) fn trim(&mut self, log_start: i64) -> bool {
        if log_start <= self.start {
            return false;
        }
        if log_start > self.end {
            self.append_done(log_start - 1);
        }
        let inside = (self.start, log_start - 1);
        if inside.0 <= inside.1 {
            self.finish(inside);
        }
        self.advance();
        self.is_start_due = true;
        true
    }
}

/// Runs.
impl SharePartition {
    fn split(&mut self, at: i64) {
        let Some((&first, run)) = self.runs.range_mut(..at).next_back() else { return };
        if run.last >= at {
            let rest = run.clone();
            run.last = at - 1;
            debug_assert!(first < at, "both parts of a run have an offset: {first}, {at}");
            self.runs.insert(at, rest);
        }
    }

    fn merge(&mut self, first: i64, last: i64) {
        let before = self.runs.range(..first).next_back().map(|(at, _)| *at);
        let Some(mut at) = before.or_else(|| self.runs.range(first..).next().map(|(at, _)| *at))
        else {
            return;
        };
        while let Some((&next, _)) = self.runs.range(at + 1..).next() {
            if next > last.saturating_add(1) {
                break;
            }
            let is_alike = {
                let (one, other) = (&self.runs[&at], &self.runs[&next]);
                one.phase == other.phase
                    && one.deliveries == other.deliveries
                    && one.saved == other.saved
            };
            if is_alike {
                let gone = self.runs.remove(&next).expect("it was just there");
                self.runs.get_mut(&at).expect("it was just there").last = gone.last;
            } else {
                at = next;
            }
        }
    }

    /// Changes the runs between two offsets, cut to them.
    fn update(&mut self, (first, last): Range, mut change: impl FnMut(&mut Run)) {
        self.split(first);
        self.split(last + 1);
        for (&at, run) in self.runs.range_mut(first..=last) {
            let was_available = run.phase == Phase::Available;
            change(run);
            let is_available = run.phase == Phase::Available;
            if is_available != was_available {
                self.lanes.set_available((at, run.last), is_available);
            }
        }
        self.merge(first, last);
    }

    /// Returns the runs between two offsets, cut to them.
    fn within(&self, (first, last): Range) -> impl Iterator<Item = (Range, &Run)> {
        let from = self.runs.range(..=first).next_back().map_or(first, |(at, _)| *at);
        let runs = self.runs.range(from..(last + 1).max(from));
        let runs = runs.filter(move |(_, run)| run.last >= first);
        runs.map(move |(at, run)| ((first.max(*at), last.min(run.last)), run))
    }

    /// Marks records as done with.
    fn finish(&mut self, range: Range) {
        let ended: Vec<(i64, Option<u64>)> = self
            .within(range)
            .filter(|(_, run)| run.phase != Phase::Done)
            .map(|((first, last), run)| {
                let ticket = match run.phase {
                    Phase::Settling { ticket, .. } | Phase::Dying { ticket, .. } => ticket,
                    _ => None,
                };
                (last - first + 1, ticket)
            })
            .collect();
        for (records, ticket) in ended {
            self.unfinished -= records;
            self.count_down(ticket, records);
        }
        self.update(range, |run| {
            (run.phase, run.deliveries, run.saved) = (Phase::Done, 0, Saved::Yes);
        });
        self.forget_keys(range);
        self.lanes.forget(range);
        self.forget_spans(range.0);
    }

    fn forget_keys(&mut self, (first, last): Range) {
        while let Some((&offset, &key)) = self.keys.range(first..=last).next() {
            self.keys.remove(&offset);
            let Some(queue) = self.queues.get_mut(&key) else { continue };
            if sabotage::is(Bug::WrongOfKeyFinished) {
                queue.pop_back();
            } else {
                queue.retain(|other| *other != offset);
            }
            match queue.front() {
                Some(&next) => self.scan_from = self.scan_from.min(next),
                None => {
                    self.queues.remove(&key);
                }
            }
        }
    }

    fn count_down(&mut self, ticket: Option<u64>, records: i64) {
        let Some(ticket) = ticket else { return };
        let Some(left) = self.tickets.get_mut(&ticket) else { return };
        *left -= records;
        assert!(*left >= 0, "the decision {ticket} waits for its own records only");
        if *left <= 0 {
            self.tickets.remove(&ticket);
            self.answers.push((ticket, ErrorCode::None));
        }
    }

    /// Returns the answers to decisions that are durable by now, or whose result will not come.
    pub(crate) fn take_answers(&mut self) -> Vec<(u64, ErrorCode)> {
        std::mem::take(&mut self.answers)
    }

    /// Answers all waiting requests with an error. Their decisions may be durable, or become so.
    pub(crate) fn fail_tickets(&mut self, code: ErrorCode) {
        let tickets = std::mem::take(&mut self.tickets);
        self.answers.extend(tickets.into_keys().map(|ticket| (ticket, code)));
    }
}

/// Consumers.
impl SharePartition {
    /// Tells whether a consumer could get any record.
    #[cfg(test)]
    pub(crate) fn has_any(&self, rules: &Rules) -> bool {
        !self.plan(&Limits { records: 1, bytes: 0, is_strict: true }, rules).pieces.is_empty()
    }

    /// Returns the records that a consumer would get now. A record in its last delivery comes alone: if it crashes its
    /// consumer, it takes no other record with it.
    pub(crate) fn plan(&self, limits: &Limits, rules: &Rules) -> Plan {
        if self.is_of_queues() {
            return self.plan_of_queues(limits, rules);
        }
        let mut plan = Plan::default();
        let mut first_span: Option<Span> = None;
        let mut last_span: Option<Span> = None;
        for ((first, last), run) in self.within((self.scan_from, self.end - 1)) {
            if run.phase != Phase::Available {
                continue;
            }
            let is_last_time = run.deliveries + 1 >= rules.deliveries_max && run.deliveries > 0;
            let from = self.spans.range(..=first).next_back().map_or(first, |(base, _)| *base);
            for (&base, span) in self.spans.range(from..=last) {
                let (low, high) = (first.max(base), last.min(span.last));
                if low > high {
                    continue;
                }
                if plan.records >= limits.records || plan.records > 0 && is_last_time {
                    return plan;
                }
                if let (Some(one), Some(other)) = (first_span, last_span)
                    && (span.segment != one.segment
                        || span.at + span.bytes - one.at > limits.bytes
                        || span.at.saturating_sub(other.at + other.bytes) > SKIPPED_BYTES_MAX)
                {
                    return plan;
                }
                let most = match () {
                    () if is_last_time => 1,
                    () if limits.is_strict => limits.records - plan.records,
                    () => i64::MAX,
                };
                if !self.take(&mut plan, (low, high), run.deliveries + 1, most, rules) {
                    continue;
                }
                let one = *first_span.get_or_insert(*span);
                last_span = Some(*span);
                if plan.end == 0 {
                    plan.from = base;
                }
                plan.end = span.last + 1;
                plan.bytes = span.at + span.bytes - one.at;
                if is_last_time {
                    return plan;
                }
            }
        }
        plan
    }

    /// Adds the available records between two offsets of one batch. Tells whether there were any.
    fn take(
        &self,
        plan: &mut Plan,
        (low, high): Range,
        deliveries: i16,
        most: i64,
        rules: &Rules,
    ) -> bool {
        let before = plan.records;
        if rules.by_key {
            let is_first = |offset: &i64| {
                let queue = self.keys.get(offset).and_then(|key| self.queues.get(key));
                queue.is_none_or(|queue| queue.front() == Some(offset))
            };
            let most = usize::try_from(most).unwrap_or(usize::MAX);
            for offset in (low..=high).filter(is_first).take(most) {
                plan.add(offset, offset, deliveries);
            }
        } else {
            plan.add(low, high.min(low.saturating_add(most - 1)), deliveries);
        }
        plan.records > before
    }

    /// Gives a consumer the records of the plan that was just made.
    pub(crate) fn acquire(&mut self, now_us: u64, member: &Arc<str>, plan: &Plan, rules: &Rules) {
        let until_us = now_us.saturating_add(rules.lock_us);
        let records = plan.pieces.iter().map(|it| it.last - it.first + 1);
        debug_assert_eq!(records.sum::<i64>(), plan.records, "a plan counts its records");
        let mut pieces = plan.pieces.iter();
        let is_known = pieces.all(|it| self.start <= it.first && it.last < self.end);
        assert!(is_known, "a plan is made in the window {}..{}", self.start, self.end);
        for piece in &plan.pieces {
            self.update((piece.first, piece.last), |run| {
                debug_assert!(run.phase == Phase::Available, "it was planned");
                run.phase = Phase::Acquired { holder: Arc::clone(member), until_us };
                run.deliveries += 1;
            });
        }
        if !plan.pieces.is_empty() {
            self.earliest_us = self.earliest_us.min(until_us);
        }
        if self.is_of_queues() || !rules.by_key {
            self.scan_from = self.first_available();
        }
        self.end_turn(plan);
        self.inspect();
    }

    /// Decides on records that a consumer holds. If this returns true, the answer comes from [`Self::take_answers`];
    /// otherwise there is nothing to wait for. If one part of the request is wrong, the whole request decides nothing.
    pub(crate) fn acknowledge(
        &mut self,
        now_us: u64,
        member: &str,
        said: &[Acknowledgement],
        ticket: u64,
        rules: &Rules,
    ) -> Result<bool, ErrorCode> {
        let mut parts = Vec::new();
        let mut before = -1;
        for it in said {
            if it.first <= before || it.last < it.first {
                return Err(ErrorCode::InvalidRequest);
            }
            before = it.last;
            parts_of(it, &mut parts)?;
        }
        parts.retain_mut(|(range, _)| {
            range.0 = range.0.max(self.start);
            range.0 <= range.1
        });
        for (range, kind) in &parts {
            self.check_holder(*range, member)?;
            if *kind == RENEW && !rules.may_renew {
                return Err(ErrorCode::InvalidRecordState);
            }
        }
        let mut waits = 0;
        for (range, kind) in parts {
            waits += self.decide(now_us, range, kind, ticket, rules);
        }
        if waits > 0 {
            let before = self.tickets.insert(ticket, waits);
            assert!(before.is_none(), "the decision {ticket} is new");
        }
        self.inspect();
        Ok(waits > 0)
    }

    fn check_holder(&self, (first, last): Range, member: &str) -> Result<(), ErrorCode> {
        if self.start == self.end {
            return Err(ErrorCode::InvalidRecordState);
        }
        if last >= self.end {
            return Err(ErrorCode::InvalidRequest);
        }
        let is_holder = |holder: &str| *holder == *member || sabotage::is(Bug::FormerHolderDecides);
        let is_held =
            |run: &Run| matches!(&run.phase, Phase::Acquired { holder, .. } if is_holder(holder));
        let is_all = self.within((first, last)).all(|(_, run)| is_held(run));
        if is_all { Ok(()) } else { Err(ErrorCode::InvalidRecordState) }
    }

    /// Decides on a range of records. Returns the count of records that the decision must wait for.
    fn decide(&mut self, now_us: u64, range: Range, kind: i8, ticket: u64, rules: &Rules) -> i64 {
        let records = range.1 - range.0 + 1;
        let ticket = Some(ticket);
        match kind {
            RENEW => {
                let end_us = now_us.saturating_add(rules.lock_us);
                self.update(range, |run| {
                    if let Phase::Acquired { until_us, .. } = &mut run.phase {
                        *until_us = end_us;
                    }
                });
                // Locks may last less than when this one began.
                self.earliest_us = self.earliest_us.min(end_us);
                return 0;
            }
            GAP => self.settle(range, Outcome::Archived, ticket),
            ACCEPT => self.settle(range, Outcome::Acknowledged, ticket),
            REJECT => self.give_up(range, Reason::Rejected, ticket, rules),
            _ => self.put_back(range, ticket, rules),
        }
        records
    }

    fn settle(&mut self, range: Range, to: Outcome, ticket: Option<u64>) {
        self.update(range, |run| {
            (run.phase, run.saved) = (Phase::Settling { to, ticket }, Saved::Due);
        });
        self.due.push(range);
    }

    fn give_up(&mut self, range: Range, reason: Reason, ticket: Option<u64>, rules: &Rules) {
        if !rules.has_dead_letters {
            return self.settle(range, Outcome::Archived, ticket);
        }
        self.is_dying = true;
        self.update(range, |run| {
            run.phase = Phase::Dying { reason, ticket, is_asked: false };
        });
    }

    /// Releases records that a consumer gives back, or whose lock has ended.
    fn put_back(&mut self, range: Range, ticket: Option<u64>, rules: &Rules) {
        let counts: Vec<(Range, i16)> =
            self.within(range).map(|(range, run)| (range, run.deliveries)).collect();
        for (range, deliveries) in counts {
            if deliveries >= rules.deliveries_max && !sabotage::is(Bug::LimitIgnored) {
                self.give_up(range, Reason::Exhausted, ticket, rules);
            } else if ticket.is_some() {
                self.settle(range, Outcome::Available, ticket);
            } else {
                self.update(range, |run| {
                    (run.phase, run.saved) = (Phase::Available, Saved::Due);
                });
                self.due.push(range);
                self.scan_from = self.scan_from.min(range.0);
            }
        }
    }

    /// Releases the records of a consumer that is gone. The consumer did not process them, and that delivery does not
    /// count, as in Kafka.
    pub(crate) fn release(&mut self, member: &str) {
        let is_held =
            |run: &Run| matches!(&run.phase, Phase::Acquired { holder, .. } if **holder == *member);
        let held: Vec<Range> = self.find(is_held);
        for range in held {
            self.hand_back(range);
        }
        self.inspect();
    }

    /// Releases records that their holder has not seen.
    pub(crate) fn hand_back(&mut self, range: Range) {
        self.update(range, |run| {
            run.phase = Phase::Available;
            run.deliveries -= 1;
        });
        self.scan_from = self.scan_from.min(range.0);
    }

    fn find(&self, is_one: impl Fn(&Run) -> bool) -> Vec<Range> {
        let found = self.runs.iter().filter(|(_, run)| is_one(run));
        found.map(|(first, run)| (*first, run.last)).collect()
    }

    /// Returns the earliest time at which a lock may end.
    pub(crate) fn deadline_us(&self) -> u64 {
        self.earliest_us
    }

    /// Releases records whose lock has ended. Tells whether there were any.
    pub(crate) fn expire(&mut self, now_us: u64, rules: &Rules) -> bool {
        if self.earliest_us > now_us {
            return false;
        }
        let is_over =
            |run: &Run| matches!(run.phase, Phase::Acquired { until_us, .. } if until_us <= now_us);
        let over = self.find(is_over);
        for range in &over {
            self.put_back(*range, None, rules);
        }
        let left = self.runs.values().filter_map(|run| match run.phase {
            Phase::Acquired { until_us, .. } => Some(until_us),
            _ => None,
        });
        self.earliest_us = left.min().unwrap_or(u64::MAX);
        assert!(self.earliest_us > now_us, "no lock that has ended is held at {now_us}");
        self.inspect();
        !over.is_empty()
    }
}

/// Splits an acknowledgement into runs of offsets with the same type.
fn parts_of(said: &Acknowledgement, parts: &mut Vec<(Range, i8)>) -> Result<(), ErrorCode> {
    let is_known = |kind: &i8| matches!(*kind, GAP | ACCEPT | RELEASE | REJECT | RENEW);
    if !said.types.iter().all(is_known) {
        return Err(ErrorCode::InvalidRequest);
    }
    if let [kind] = said.types[..] {
        parts.push(((said.first, said.last), kind));
        return Ok(());
    }
    let records = said.last.checked_sub(said.first).and_then(|it| it.checked_add(1));
    if records != i64::try_from(said.types.len()).ok() {
        return Err(ErrorCode::InvalidRequest);
    }
    for (offset, kind) in (said.first..).zip(said.types.iter().copied()) {
        match parts.last_mut() {
            Some((range, last)) if *last == kind && range.1 + 1 == offset => range.1 = offset,
            _ => parts.push(((offset, offset), kind)),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
