//! A share partition by chance: consumers that acknowledge, release, reject, renew, leave or forget what they hold, a
//! coordinator that is slow, leaders that die, a log that grows and loses its beginning.
//!
//! What must be so at any time: a record has one holder; only its holder decides; none comes again that was
//! acknowledged, nor more often than it may; with keys in order, one record of a key is out at a time, the first that
//! is not done with, and no key waits for another. And when all goes on, the consumers are done with every record.

use std::collections::BTreeSet;

use duramen_protocol::records::Schedule;

use super::*;
use crate::prng::Prng;

/// What the test knows of a record.
#[derive(Clone, Debug, Default)]
struct Known {
    key: Option<u128>,
    schedule: Schedule,
    holder: Option<(usize, u64)>,
    /// It was answered that it is acknowledged or given up.
    is_over: bool,
    is_buried: bool,
}

struct Play {
    seed: u64,
    chance: Prng,
    rules: Rules,
    is_of_queues: bool,
    it: SharePartition,
    log: Vec<Seen>,
    log_start: i64,
    log_end: i64,
    known: BTreeMap<i64, Known>,
    /// The coordinator's: by offset, how often and what.
    kept: BTreeMap<i64, (i16, i8)>,
    kept_start: i64,
    now_us: u64,
    ticket: u64,
    /// What waits for its answer.
    asked: BTreeMap<u64, Vec<(i64, i8)>>,
    consumers: Vec<Arc<str>>,
}

impl Play {
    fn new(seed: u64) -> Self {
        let mut chance = Prng::stream(seed, 77);
        let rules = Rules {
            lock_us: 50,
            deliveries_max: 2 + i16::try_from(chance.below(4)).expect("small"),
            unfinished_max: 5 + i64::try_from(chance.below(60)).expect("small"),
            by_key: chance.below(2) == 0,
            has_dead_letters: chance.below(2) == 0,
            may_renew: true,
        };
        Self {
            seed,
            rules,
            is_of_queues: chance.below(2) == 0,
            it: SharePartition::new(0, &[]),
            log: Vec::new(),
            log_start: 0,
            log_end: 0,
            known: BTreeMap::new(),
            kept: BTreeMap::new(),
            kept_start: 0,
            now_us: 0,
            ticket: 0,
            asked: BTreeMap::new(),
            consumers: ["a", "b", "c"].map(member).to_vec(),
            chance,
        }
    }

    fn below(&mut self, bound: i64) -> i64 {
        i64::try_from(self.chance.below(bound.unsigned_abs())).expect("small")
    }

    fn many(&mut self, bound: i64) -> usize {
        usize::try_from(self.below(bound)).expect("small")
    }

    fn produce(&mut self) {
        let base = self.log_end + if self.below(8) == 0 { self.below(4) } else { 0 };
        let last = base + self.below(12);
        let is_nothing = self.below(10) == 0;
        let mut keys = Vec::new();
        for offset in base..=last {
            // One by one it is known which offsets have no record.
            if (self.rules.by_key || self.is_of_queues) && self.below(15) == 0 {
                continue;
            }
            let key = 1 + u128::from(self.chance.below(5));
            let key = (self.below(6) > 0 || self.is_of_queues).then_some(key);
            let schedule = self.schedule();
            let is_scheduled = self.is_of_queues.then_some(schedule);
            keys.push(SeenRecord { offset, key, schedule: is_scheduled });
            if !is_nothing {
                let key = key.filter(|_| self.rules.by_key);
                self.known.insert(offset, Known { key, schedule, ..Known::default() });
            }
        }
        let at = self.log.last().map_or(0, |seen| seen.span.at + seen.span.bytes);
        let bytes = 10 + self.chance.below(100);
        let span = Span { last, segment: base / 100, at, bytes };
        let one_by_one = self.rules.by_key || self.is_of_queues;
        let records = one_by_one.then_some(SeenRecords { end: last + 1, of: keys });
        self.log.push(Seen { base, span, is_nothing, records });
        self.log_end = last + 1;
    }

    fn now_ms(&self) -> i64 {
        i64::try_from(self.now_us).expect("small")
    }

    fn schedule(&mut self) -> Schedule {
        let usual = Schedule::default();
        if !self.is_of_queues {
            return usual;
        }
        let deliver_at_ms =
            if self.below(4) == 0 { self.now_ms() + self.below(90) } else { usual.deliver_at_ms };
        let expires_ms =
            if self.below(8) == 0 { self.now_ms() + self.below(90) } else { usual.expires_ms };
        let priority = u8::try_from(self.below(3)).expect("small");
        Schedule { deliver_at_ms, expires_ms, priority }
    }

    fn wake(&mut self) {
        self.it.wake(self.now_ms(), true, &self.rules);
        let is_due = self.it.is_due(self.now_ms());
        assert!(!is_due || !self.it.lanes.overdue.is_empty(), "seed {}", self.seed);
    }

    fn look(&mut self) {
        let Some(from) = self.it.wants(&self.rules, self.log_end) else { return };
        let most = 1 + self.many(4);
        let all: Vec<Seen> = self.log.iter().filter(|it| it.span.last >= from).cloned().collect();
        let mut seen: Vec<Seen> = all.iter().take(most).cloned().collect();
        let is_all = all.len() <= most;
        let mut to = seen.last().filter(|_| !is_all).map_or(self.log_end, |it| it.span.last + 1);
        // The last batch may be read in part.
        if let Some(last) = seen.last_mut()
            && let Some(records) = &mut last.records
            && self.chance.below(3) == 0
        {
            records.end = records.end.min(from.max(last.base) + 3);
            records.of.retain(|record| record.offset < records.end);
            to = records.end;
        }
        self.it.extend(from, (seen, to), self.now_ms(), &self.rules);
        self.wake();
    }

    fn fetch(&mut self) {
        let at = self.many(3);
        let (records, bytes) = (1 + self.below(20), 1 + self.chance.below(500));
        let is_strict = self.below(2) == 0;
        let limits = Limits { records, bytes, is_strict };
        self.wake();
        let is_of_worker = self.below(2) == 0;
        let plan = if is_of_worker {
            self.it.pick(&limits, &self.rules)
        } else {
            self.it.plan(&limits, &self.rules)
        };
        let seed = self.seed;
        assert_eq!(plan.pieces.is_empty(), !self.it.has_any(&self.rules));
        if plan.pieces.is_empty() {
            return self.check_nothing_is_held_up();
        }
        assert!(!is_strict || plan.records <= records, "seed {seed}");
        if !is_of_worker || !self.is_of_queues {
            let batches = self.log.iter().filter(|it| it.base >= plan.from && it.base < plan.end);
            let segments: BTreeSet<i64> = batches.clone().map(|it| it.span.segment).collect();
            assert_eq!(segments.len(), 1, "seed {seed}: one segment at a time");
            assert_eq!(plan.bytes, batches.map(|it| it.span.bytes).sum::<u64>(), "seed {seed}");
            let is_within = |it: &Piece| it.first >= plan.from && it.last < plan.end;
            assert!(plan.pieces.iter().all(is_within), "seed {seed}");
        }
        self.check_ranks(&plan, is_of_worker);
        self.it.acquire(self.now_us, &self.consumers[at], &plan, &self.rules);
        let until_us = self.now_us + self.rules.lock_us;
        for piece in plan.pieces {
            for offset in piece.first..=piece.last {
                let known = self.known.get(&offset);
                let known = known.unwrap_or_else(|| panic!("seed {seed}: {offset} is no record"));
                assert!(!known.is_over, "seed {seed}: {offset} was over");
                assert_eq!(known.holder, None, "seed {seed}: {offset} has two holders");
                assert!(piece.deliveries <= self.rules.deliveries_max, "seed {seed}: too often");
                let counted = self.kept.get(&offset).map_or(0, |it| it.0);
                assert!(piece.deliveries > counted, "seed {seed}: {offset} was counted before");
                let mut before = self.known.range(..offset).filter(|it| it.1.key == known.key);
                // One with a time enters the order of its key when the time has come.
                let is_open = |it: (&i64, &Known)| {
                    let has_time = it.1.schedule.deliver_at_ms > 0;
                    it.1.key.is_some() && !has_time && !self.is_done(*it.0)
                };
                assert!(!before.any(is_open), "seed {seed}: {offset} came before its turn");
                let of_key = |it: &Known| it.key.is_some() && it.key == known.key;
                let is_out = self.known.values().any(|it| of_key(it) && it.holder.is_some());
                assert!(!is_out, "seed {seed}: {offset} came while another of its key was out");
                let (schedule, now_ms) = (known.schedule, self.now_ms());
                assert!(schedule.deliver_at_ms <= now_ms, "seed {seed}: {offset} came early");
                assert!(schedule.expires_ms > now_ms, "seed {seed}: {offset} came too late");
                let known = self.known.get_mut(&offset).expect("it was just there");
                known.holder = Some((at, until_us));
            }
        }
    }

    /// A fetch begins with the highest rank that there is. A worker gets lower ones behind it, and a consumer does not.
    fn check_ranks(&self, plan: &Plan, is_of_worker: bool) {
        let rank = |offset: i64| self.known[&offset].schedule.priority;
        let ranks: Vec<u8> = plan.pieces.iter().map(|it| rank(it.first)).collect();
        let is_free = |offset: i64| {
            let mut runs = self.it.within((offset, offset));
            runs.any(|(_, run)| run.phase == Phase::Available)
                && self.it.next_delivery(offset, &self.rules).is_some()
        };
        let in_window = self.known.range(self.it.start()..self.it.end).map(|(offset, _)| *offset);
        let best = in_window.filter(|it| is_free(*it)).map(rank).max();
        assert_eq!(ranks.first().copied(), best, "seed {}: the highest rank first", self.seed);
        let falls = ranks.is_sorted_by(|a, b| a >= b);
        let is_one = is_of_worker || ranks.iter().all(|it| Some(*it) == best);
        assert!(falls && is_one, "seed {}: {ranks:?}", self.seed);
    }

    fn is_done(&self, offset: i64) -> bool {
        offset < self.kept_start || self.kept.get(&offset).is_some_and(|it| it.1 != 0)
    }

    /// Tells whether a record of a key is out, or decided on and not done with.
    fn is_out(&self, key: u128) -> bool {
        let is_free =
            |run: &Run| matches!(run.phase, Phase::Available | Phase::Delayed | Phase::Done);
        let of_key = self.known.range(..self.it.end).filter(|(_, it)| it.key == Some(key));
        let mut of_key = of_key.map(|(offset, _)| *offset);
        of_key.any(|at| self.it.within((at, at)).any(|(_, run)| !is_free(run)))
    }

    /// There was nothing to get: all that was looked at is out, decided on, or waits for its key.
    fn check_nothing_is_held_up(&self) {
        let mut busy = BTreeSet::new();
        for (offset, known) in self.known.range(..self.it.end) {
            let mut runs = self.it.within((*offset, *offset));
            let is_available = runs.any(|(_, run)| run.phase == Phase::Available);
            let waits = known.key.is_some_and(|key| busy.contains(&key) || self.is_out(key));
            assert!(!is_available || waits, "seed {}: {offset} is held up", self.seed);
            let mut runs = self.it.within((*offset, *offset));
            let is_delayed = runs.any(|(_, run)| run.phase == Phase::Delayed);
            let is_early = is_delayed && known.schedule.deliver_at_ms > self.now_ms();
            if !self.is_done(*offset) && !is_early {
                busy.extend(known.key);
            }
        }
    }

    fn decide(&mut self) {
        let at = self.many(3);
        let held = self.known.iter().filter(|(_, it)| it.holder.is_some_and(|it| it.0 == at));
        let mut offsets: Vec<i64> = held.map(|(offset, _)| *offset).collect();
        if offsets.is_empty() {
            return;
        }
        let before = self.many(i64::try_from(offsets.len()).expect("small"));
        offsets.drain(..before);
        offsets.truncate(1 + self.many(10));
        let is_wrong = self.below(8) == 0;
        let by = if is_wrong { (at + 1) % 3 } else { at };
        let is_calm = self.below(3) > 0;
        let kind = |play: &mut Self| i8::try_from(play.below(5)).expect("small");
        let all: Vec<(i64, i8)> = offsets
            .iter()
            .map(|offset| (*offset, if is_calm { ACCEPT } else { kind(self) }))
            .collect();
        let said: Vec<_> = all.iter().map(|(offset, it)| say(*offset, *offset, &[*it])).collect();
        self.ticket += 1;
        let (consumer, ticket) = (&self.consumers[by], self.ticket);
        let result = self.it.acknowledge(self.now_us, consumer, &said, ticket, &self.rules);
        if is_wrong {
            assert_eq!(result, Err(ErrorCode::InvalidRecordState), "seed {}", self.seed);
            return;
        }
        for (offset, _) in all.iter().filter(|it| it.1 == RELEASE) {
            if self.chance.below(2) == 0 {
                let until_ms = self.now_ms() + self.below(60);
                self.it.release_later(*offset, until_ms);
            }
        }
        let waits = all.iter().any(|it| it.1 != RENEW);
        assert_eq!(result, Ok(waits), "seed {}: holders decide", self.seed);
        let until_us = self.now_us + self.rules.lock_us;
        for (offset, kind) in &all {
            let known = self.known.get_mut(offset).expect("it was held");
            known.holder = (*kind == RENEW).then_some((at, until_us));
        }
        if waits {
            self.asked.insert(ticket, all);
        }
    }

    fn answers(&mut self) {
        for (ticket, code) in self.it.take_answers() {
            assert_eq!(code, ErrorCode::None);
            for (offset, kind) in self.asked.remove(&ticket).expect("answered once") {
                let is_kept = self.is_done(offset);
                let Some(known) = self.known.get_mut(&offset) else { continue };
                if matches!(kind, ACCEPT | REJECT | GAP) {
                    assert!(is_kept, "seed {}: answered before it was kept", self.seed);
                    assert!(kind != REJECT || known.is_buried || !self.rules.has_dead_letters);
                    known.is_over = true;
                }
            }
        }
    }

    fn coordinate(&mut self) {
        let Some(write) = self.it.sent().cloned() else {
            self.it.next_write();
            return;
        };
        for batch in &write.batches {
            assert!(batch.first >= write.start, "seed {}", self.seed);
            for offset in batch.first..=batch.last {
                let kept = self.kept.entry(offset).or_default();
                *kept = (*kept).max((batch.count, batch.state));
            }
        }
        self.kept_start = self.kept_start.max(write.start);
        // The answer may be lost with the leader.
        if self.below(15) == 0 {
            return self.crash();
        }
        self.it.on_written();
        self.answers();
    }

    fn bury(&mut self) {
        for dying in self.it.take_dying() {
            assert!(self.rules.has_dead_letters);
            for offset in dying.first..=dying.last {
                self.known.get_mut(&offset).expect("a record").is_buried = true;
            }
            self.it.on_buried(dying.first, dying.last);
        }
    }

    fn crash(&mut self) {
        let mut kept: Vec<StateBatch> = Vec::new();
        for (&offset, &(count, state)) in self.kept.range(self.kept_start..) {
            match kept.last_mut() {
                Some(it) if (it.last + 1, it.count, it.state) == (offset, count, state) => {
                    it.last += 1;
                }
                _ => kept.push(StateBatch { first: offset, last: offset, state, count }),
            }
        }
        self.it = SharePartition::new(self.kept_start.max(self.log_start), &kept);
        self.asked.clear();
        for known in self.known.values_mut() {
            known.holder = None;
        }
    }

    fn time(&mut self, us: u64) {
        self.now_us += us;
        self.it.expire(self.now_us, &self.rules);
        self.wake();
        for known in self.known.values_mut() {
            known.holder = known.holder.filter(|(_, until_us)| *until_us > self.now_us);
        }
    }

    fn leave(&mut self) {
        let at = self.many(3);
        self.it.release(&self.consumers[at]);
        self.wake();
        for known in self.known.values_mut() {
            known.holder = known.holder.filter(|it| it.0 != at);
        }
    }

    fn trim(&mut self) {
        self.log_start += self.below((self.log_end - self.log_start) / 4 + 1);
        self.log.retain(|it| it.span.last >= self.log_start);
        self.it.trim(self.log_start);
        self.known.retain(|offset, _| *offset >= self.log_start);
        self.answers();
    }

    fn step(&mut self) {
        match self.below(100) {
            0..10 => self.produce(),
            10..25 => self.look(),
            25..45 => self.fetch(),
            45..65 => self.decide(),
            65..85 => self.coordinate(),
            85..90 => self.bury(),
            90..96 => {
                let us = self.chance.below(30);
                self.time(us);
            }
            96 => self.leave(),
            97 => self.trim(),
            98 => self.crash(),
            _ if self.it.is_idle() => self.it.begin_anew(),
            _ => {}
        }
        self.check_bounds();
    }

    fn check_bounds(&self) {
        let open = self.it.runs.iter().filter(|(_, run)| run.phase != Phase::Done);
        let open: i64 = open.map(|(first, run)| run.last - first + 1).sum();
        assert_eq!(self.it.unfinished(), open, "seed {}", self.seed);
        let spans = i64::try_from(self.it.spans.len()).expect("small");
        assert!(spans <= open + 1, "seed {}: batches are forgotten", self.seed);
        let queued: usize = self.it.queues.values().map(VecDeque::len).sum();
        assert_eq!(self.it.keys.len(), queued);
    }

    fn finish(&mut self) {
        for _ in 0..20_000 {
            if self.it.start() == self.log_end {
                break;
            }
            self.look();
            self.fetch();
            self.decide();
            self.coordinate();
            self.bury();
            if self.below(4) == 0 {
                self.time(60);
            }
        }
        assert_eq!(self.it.start(), self.log_end, "seed {}: all ends", self.seed);
        assert!(self.it.spans.is_empty() && self.it.keys.is_empty() && self.it.kept.is_empty());
        let left: Vec<_> = self.known.keys().filter(|it| !self.is_done(**it)).collect();
        assert!(left.is_empty(), "seed {}: {left:?} were passed by", self.seed);
    }
}

#[test]
fn consumers_share_a_partition_by_chance() {
    play(0..150);
}

pub(super) fn play(seeds: std::ops::Range<u64>) {
    for seed in seeds {
        let mut play = Play::new(seed);
        for _ in 0..600 {
            play.step();
        }
        play.finish();
    }
}
