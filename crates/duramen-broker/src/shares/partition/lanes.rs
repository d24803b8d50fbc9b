//! Records of queue topics in a share partition: the time of delivery of each, its end and its rank; and the turns of
//! queues.
//!
//! A record that waits for its time is `Delayed`. It does not count against the bound of records that are looked at
//! and not done with, and has a bound of its own. Released records may wait as well, in any topic.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use duramen_protocol::records::Schedule;
use duramen_storage::sabotage::{self, Bug};

use super::{Limits, Phase, Piece, Plan, Range, Reason, Rules, SKIPPED_BYTES_MAX, SharePartition};
use crate::limits::SHARE_DELAYED_MAX;

/// A record of a queue that the group is not done with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Lane {
    /// Hash of the queue's name.
    queue: u128,
    schedule: Schedule,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Lanes {
    records: BTreeMap<i64, Lane>,
    /// Available records of queues.
    available: BTreeSet<i64>,
    /// The same by rank, then by queue.
    ready: BTreeMap<Reverse<u8>, BTreeMap<u128, BTreeSet<i64>>>,
    /// Queue that had its turn last.
    turn: u128,
    /// Delayed records with the time of each, in milliseconds since 1970; and the same by time.
    delays: BTreeMap<i64, i64>,
    due: BTreeSet<(i64, i64)>,
    /// Times for decided releases that are not durable yet.
    later: BTreeMap<i64, i64>,
    /// Records by the time of their end; and those that had a holder when their end came.
    ends: BTreeSet<(i64, i64)>,
    pub(super) overdue: BTreeSet<i64>,
}

impl Lanes {
    /// Returns the number of delayed records.
    pub(super) fn delayed(&self) -> i64 {
        i64::try_from(self.delays.len()).unwrap_or(i64::MAX)
    }

    /// Takes a record of a queue in, before the window has it.
    fn insert(&mut self, offset: i64, queue: u128, schedule: Schedule) {
        self.records.insert(offset, Lane { queue, schedule });
        if schedule.expires_ms < i64::MAX {
            self.ends.insert((schedule.expires_ms, offset));
        }
    }

    /// Notes that records are available now, or are not any more.
    pub(super) fn set_available(&mut self, (first, last): Range, is_available: bool) {
        for (&offset, lane) in self.records.range(first..=last) {
            let rank = Reverse(lane.schedule.priority);
            if is_available {
                self.available.insert(offset);
                let of_rank = self.ready.entry(rank).or_default();
                of_rank.entry(lane.queue).or_default().insert(offset);
                continue;
            }
            self.available.remove(&offset);
            let Some(of_rank) = self.ready.get_mut(&rank) else { continue };
            if let Some(of_queue) = of_rank.get_mut(&lane.queue) {
                of_queue.remove(&offset);
                if of_queue.is_empty() {
                    of_rank.remove(&lane.queue);
                }
            }
            if of_rank.is_empty() {
                self.ready.remove(&rank);
            }
        }
    }

    fn delay(&mut self, offset: i64, until_ms: i64) {
        self.delays.insert(offset, until_ms);
        self.due.insert((until_ms, offset));
    }

    fn end_delay(&mut self, offset: i64) {
        if let Some(until_ms) = self.delays.remove(&offset) {
            self.due.remove(&(until_ms, offset));
        }
    }

    /// Forgets records that the group is done with.
    pub(super) fn forget(&mut self, (first, last): Range) {
        while let Some((&offset, _)) = self.delays.range(first..=last).next() {
            self.end_delay(offset);
        }
        while let Some((&offset, _)) = self.later.range(first..=last).next() {
            self.later.remove(&offset);
        }
        while let Some((&offset, lane)) = self.records.range(first..=last).next() {
            self.ends.remove(&(lane.schedule.expires_ms, offset));
            self.overdue.remove(&offset);
            self.records.remove(&offset);
        }
    }

    /// Calls with the available records of each rank, the highest first, until the call returns false. Each queue has
    /// its turn: the first is the one behind the queue that had its turn last.
    fn each_in_turn(&self, mut take: impl FnMut(i64, u8) -> bool) {
        let turn = if sabotage::is(Bug::TurnsForgotten) { u128::MAX } else { self.turn };
        for (Reverse(rank), queues) in &self.ready {
            let after = (std::ops::Bound::Excluded(turn), std::ops::Bound::Unbounded);
            let in_turn = || queues.range(after).chain(queues.range(..=turn)).map(|(_, it)| it);
            let mut waiting: Vec<_> = Vec::new();
            for of_queue in in_turn() {
                let mut records = of_queue.iter();
                if records.next().is_some_and(|offset| !take(*offset, *rank)) {
                    return;
                }
                waiting.push(records);
            }
            while !waiting.is_empty() {
                let mut is_over = false;
                waiting.retain_mut(|records| {
                    let Some(offset) = records.next().filter(|_| !is_over) else { return false };
                    is_over = !take(*offset, *rank);
                    true
                });
                if is_over {
                    return;
                }
            }
        }
    }

    /// Checks that what lies in several orders agrees with the runs of the window.
    pub(super) fn inspect(&self, available: i64, delayed: i64) {
        let ready = self.ready.values().flat_map(BTreeMap::values).map(BTreeSet::len);
        let ready = ready.sum::<usize>();
        assert_eq!(self.available.len(), ready, "available records have a rank and a queue");
        let is_known = i64::try_from(ready) == Ok(available);
        assert!(self.records.is_empty() || is_known, "{ready} of {available} records are ready");
        assert_eq!(self.delays.len(), self.due.len(), "a delayed record has a time");
        assert_eq!(self.delayed(), delayed, "delayed records are counted");
    }
}

/// Records of queues, and records that wait.
impl SharePartition {
    /// Tells whether the bounds leave room for another record.
    pub(super) fn has_room(&self, rules: &Rules) -> bool {
        let delayed = self.lanes.delayed();
        self.unfinished - delayed < rules.unfinished_max && delayed < SHARE_DELAYED_MAX
    }

    /// Returns the number of records for which there is room.
    pub(crate) fn room(&self, rules: &Rules) -> usize {
        let room = rules.unfinished_max - (self.unfinished - self.lanes.delayed());
        usize::try_from(room).unwrap_or(0).max(1)
    }

    /// Tells whether a worker has a lease of a record: of this delivery, and no other.
    pub(crate) fn is_held(&self, offset: i64, worker: &str, deliveries: i16) -> bool {
        self.within((offset, offset)).any(|(_, run)| {
            let is_its =
                matches!(&run.phase, Phase::Acquired { holder, .. } if **holder == *worker);
            is_its && (run.deliveries == deliveries || sabotage::is(Bug::FormerLeaseSettles))
        })
    }

    /// Takes a record of a queue into the window.
    pub(super) fn append_of_queue(
        &mut self,
        (offset, key): (i64, Option<u128>),
        schedule: Schedule,
        now_ms: i64,
        rules: &Rules,
    ) {
        let before = self.unfinished;
        self.lanes.insert(offset, key.unwrap_or_default(), schedule);
        self.append(offset, rules);
        if self.unfinished == before {
            return self.lanes.forget((offset, offset));
        }
        let is_available =
            self.within((offset, offset)).any(|(_, run)| run.phase == Phase::Available);
        let is_early = schedule.deliver_at_ms > now_ms && !sabotage::is(Bug::DelayIgnored);
        if is_available && is_early {
            self.delay((offset, offset), schedule.deliver_at_ms);
        } else if let Some(key) = key.filter(|_| rules.by_key) {
            self.enter_queue(offset, key);
        }
    }

    fn delay(&mut self, (first, last): Range, until_ms: i64) {
        self.update((first, last), |run| run.phase = Phase::Delayed);
        for offset in first..=last {
            self.lanes.delay(offset, until_ms);
        }
    }

    /// Takes a record into the order of its key: behind one that is out already, for one of a key is out at a time.
    fn enter_queue(&mut self, offset: i64, key: u128) {
        if self.keys.insert(offset, key).is_some() {
            return;
        }
        let is_free = |phase: &Phase| matches!(phase, Phase::Available | Phase::Delayed);
        let first = self.queues.get(&key).and_then(|queue| queue.front()).copied();
        let is_out = |first: i64| self.within((first, first)).any(|(_, run)| !is_free(&run.phase));
        let from = usize::from(first.is_some_and(is_out));
        let queue = self.queues.entry(key).or_default();
        let later = queue.iter().skip(from).position(|other| *other > offset);
        queue.insert(later.map_or(queue.len(), |at| from + at), offset);
    }

    /// Has records that a consumer is about to release wait until a time.
    pub(crate) fn release_later(&mut self, offset: i64, until_ms: i64) {
        let is_settling = |phase: &Phase| matches!(phase, Phase::Settling { .. });
        if self.within((offset, offset)).any(|(_, run)| is_settling(&run.phase)) {
            self.lanes.later.insert(offset, until_ms);
        }
    }

    /// Begins the wait of records whose release is durable now.
    pub(super) fn begin_waits(&mut self, (first, last): Range) {
        while let Some((&offset, &until_ms)) = self.lanes.later.range(first..=last).next() {
            self.lanes.later.remove(&offset);
            self.delay((offset, offset), until_ms);
        }
    }

    /// Returns the time at which a record has to be looked at, in milliseconds since 1970.
    pub(crate) fn deadline_ms(&self) -> Option<i64> {
        let due = self.lanes.due.first().map(|(at, _)| *at);
        due.into_iter().chain(self.lanes.ends.first().map(|(at, _)| *at)).min()
    }

    /// Tells whether a record has to be looked at.
    pub(crate) fn is_due(&self, now_ms: i64) -> bool {
        !self.lanes.overdue.is_empty() || self.deadline_ms().is_some_and(|at| at <= now_ms)
    }

    /// Gives records free whose time has come, and gives up those whose end has come. Tells whether there were any.
    /// Without a clock to believe, no end has come.
    pub(crate) fn wake(&mut self, now_ms: i64, believes_clock: bool, rules: &Rules) -> bool {
        let mut is_any = false;
        while let Some(&(_, offset)) = self.lanes.due.first().filter(|(at, _)| *at <= now_ms) {
            self.lanes.end_delay(offset);
            let mut is_delayed = false;
            self.update((offset, offset), |run| {
                is_delayed = run.phase == Phase::Delayed;
                if is_delayed {
                    run.phase = Phase::Available;
                }
            });
            debug_assert!(is_delayed, "the record {offset} waits for its time");
            self.scan_from = self.scan_from.min(offset);
            if let Some(lane) = self.lanes.records.get(&offset).filter(|_| rules.by_key) {
                self.enter_queue(offset, lane.queue);
            }
            is_any = true;
        }
        if believes_clock && !sabotage::is(Bug::EndsIgnored) {
            is_any |= self.end_records(now_ms, rules);
        }
        if is_any {
            self.inspect();
        }
        is_any
    }

    fn end_records(&mut self, now_ms: i64, rules: &Rules) -> bool {
        while let Some(&(at, offset)) = self.lanes.ends.first().filter(|(at, _)| *at <= now_ms) {
            self.lanes.ends.remove(&(at, offset));
            self.lanes.overdue.insert(offset);
        }
        let is_free = |offset: &i64| {
            let free = |phase: &Phase| matches!(phase, Phase::Available | Phase::Delayed);
            self.within((*offset, *offset)).any(|(_, run)| free(&run.phase))
        };
        let over: Vec<i64> = self.lanes.overdue.iter().copied().filter(is_free).collect();
        for &offset in &over {
            self.lanes.overdue.remove(&offset);
            self.lanes.end_delay(offset);
            self.give_up((offset, offset), Reason::Expired, None, rules);
        }
        !over.is_empty()
    }

    /// Tells whether the records of the window are those of queues.
    pub(super) fn is_of_queues(&self) -> bool {
        !self.lanes.records.is_empty()
    }

    /// Returns the first offset from which a record may be available.
    pub(super) fn first_available(&self) -> i64 {
        if self.is_of_queues() {
            return self.lanes.available.first().copied().unwrap_or(self.end);
        }
        let mut later = self.within((self.scan_from, self.end - 1));
        let next = later.find(|(_, run)| run.phase == Phase::Available);
        next.map_or(self.end, |(range, _)| range.0)
    }

    /// Notes which queue had its turn last.
    pub(super) fn end_turn(&mut self, plan: &Plan) {
        let last = plan.pieces.last().and_then(|it| self.lanes.records.get(&it.last));
        self.lanes.turn = last.map_or(self.lanes.turn, |it| it.queue);
    }

    /// Returns the count of a record's next delivery, if the record may be given out now.
    pub(super) fn next_delivery(&self, offset: i64, rules: &Rules) -> Option<i16> {
        let queue = self.keys.get(&offset).and_then(|key| self.queues.get(key));
        let is_first = queue.is_none_or(|it| it.front() == Some(&offset));
        let (_, run) = self.within((offset, offset)).next()?;
        (is_first || !rules.by_key).then_some(run.deliveries + 1)
    }

    fn is_last_time(deliveries: i16, rules: &Rules) -> bool {
        deliveries >= rules.deliveries_max && deliveries > 1
    }

    /// Returns the records that a worker would get now: of the highest rank, and of all queues in turn. A record in its
    /// last delivery comes alone.
    pub(crate) fn pick(&self, limits: &Limits, rules: &Rules) -> Plan {
        if !self.is_of_queues() {
            return self.plan(&Limits { is_strict: true, ..*limits }, rules);
        }
        let mut plan = Plan::default();
        let mut batches = BTreeSet::new();
        self.lanes.each_in_turn(|offset, _| {
            let Some(deliveries) = self.next_delivery(offset, rules) else { return true };
            let is_alone = Self::is_last_time(deliveries, rules);
            if is_alone && plan.records > 0 {
                return true;
            }
            let Some((base, span)) = self.spans.range(..=offset).next_back() else { return true };
            let more = if batches.contains(base) { 0 } else { span.bytes };
            if plan.records > 0 && plan.bytes + more > limits.bytes {
                return false;
            }
            batches.insert(*base);
            plan.bytes += more;
            plan.records += 1;
            plan.pieces.push(Piece { first: offset, last: offset, deliveries });
            plan.records < limits.records && !is_alone
        });
        plan
    }

    /// Returns the records that a consumer of Kafka's protocol would get now, as [`Self::plan`] does. All are of one
    /// rank. The fetch begins with the queue whose turn it is, and no queue has more than its share of it.
    pub(super) fn plan_of_queues(&self, limits: &Limits, rules: &Rules) -> Plan {
        let mut plan = Plan::default();
        let mut first = None;
        self.lanes.each_in_turn(|offset, rank| {
            first = self.next_delivery(offset, rules).map(|_| (offset, rank));
            first.is_none()
        });
        let Some((from, rank)) = first else { return plan };
        let queues = self.lanes.ready.get(&Reverse(rank)).map_or(1, BTreeMap::len);
        let share = limits.records / i64::try_from(queues).unwrap_or(i64::MAX);
        let mut of_queue: BTreeMap<u128, i64> = BTreeMap::new();
        let (mut begin, mut until) = (None, 0);
        for &offset in self.lanes.available.range(from..) {
            let lane = &self.lanes.records[&offset];
            let taken = of_queue.entry(lane.queue).or_default();
            if lane.schedule.priority != rank || *taken >= share.max(1) {
                continue;
            }
            let Some(deliveries) = self.next_delivery(offset, rules) else { continue };
            let is_alone = Self::is_last_time(deliveries, rules);
            let Some((&base, span)) = self.spans.range(..=offset).next_back() else { continue };
            let at = *begin.get_or_insert((span.segment, span.at));
            let is_near = span.segment == at.0
                && span.at + span.bytes - at.1 <= limits.bytes.max(span.bytes)
                && span.at.saturating_sub(until) <= SKIPPED_BYTES_MAX;
            let is_first = plan.records == 0;
            if plan.records >= limits.records || !is_first && (!is_near || is_alone) {
                break;
            }
            *taken += 1;
            if is_first {
                plan.from = base;
            }
            plan.add(offset, offset, deliveries);
            until = span.at + span.bytes;
            (plan.end, plan.bytes) = (span.last + 1, until - at.1);
            if is_alone {
                break;
            }
        }
        plan
    }
}
