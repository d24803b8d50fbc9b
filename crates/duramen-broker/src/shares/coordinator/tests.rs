//! Share coordinators, by scenario and by chance.

use super::*;
use crate::event::ConnectionId;
use crate::prng::Prng;
use crate::shares::StateBatch;

/// A coordinator and its log.
struct Play {
    coordinator: Coordinator,
    now: Now,
    log: BTreeMap<i64, ShareRecord>,
    end: i64,
    waiting: VecDeque<(Ticket, Vec<ShareRecord>)>,
    lands_at_once: bool,
    asked: u64,
    answers: BTreeMap<u64, (Answer, bool)>,
}

const UPDATES: u32 = 4;

fn key(number: i32) -> ShareKey {
    ShareKey { group: "g".into(), topic_id: Uuid::from_u128(9), partition: number }
}

fn batch(first: i64, last: i64, state: i8, count: i16) -> StateBatch {
    StateBatch { first, last, state, count }
}

fn write(leader_epoch: i32, state_epoch: i32, start: i64, batches: &[StateBatch]) -> Ask {
    let complete = i32::try_from(batches.len()).expect("few");
    let write = ShareWrite { state_epoch, start, complete, batches: batches.to_vec() };
    Ask::Write { leader_epoch, write }
}

impl Play {
    fn new() -> Self {
        Self {
            coordinator: Coordinator::new(UPDATES),
            now: Now { mono_us: 1, wall_ms: 1_700_000_000_000 },
            log: BTreeMap::new(),
            end: 0,
            waiting: VecDeque::new(),
            lands_at_once: true,
            asked: 0,
            answers: BTreeMap::new(),
        }
    }

    fn settle(&mut self) {
        loop {
            for output in self.coordinator.take_outputs() {
                match output {
                    Output::Answered { asker: Asker::Own { nonce }, answer, is_written } => {
                        let before = self.answers.insert(nonce, (answer, is_written));
                        assert!(before.is_none(), "a question was answered twice");
                    }
                    Output::Answered { .. } => {}
                    Output::Append(ticket, records) => self.waiting.push_back((ticket, records)),
                }
            }
            self.coordinator.inspect();
            if !self.lands_at_once || !self.land() {
                return;
            }
        }
    }

    /// The oldest append becomes durable.
    fn land(&mut self) -> bool {
        let Some((ticket, records)) = self.waiting.pop_front() else { return false };
        let base = self.end;
        for record in records {
            let (key, value) = record.encode().expect("all fits");
            assert_eq!(ShareRecord::decode(key, value).as_ref(), Ok(&record));
            self.log.insert(self.end, record);
            self.end += 1;
        }
        self.coordinator.on_appended(ticket, Ok(base), self.now);
        self.check();
        true
    }

    fn fail(&mut self, code: ErrorCode) {
        let (ticket, _) = self.waiting.pop_front().expect("something waits");
        self.coordinator.on_appended(ticket, Err(code), self.now);
        self.settle();
    }

    fn send(&mut self, key: &ShareKey, ask: Ask) -> u64 {
        self.asked += 1;
        let nonce = self.asked;
        self.coordinator.ask(key, Asker::Own { nonce }, ask, self.now);
        self.settle();
        nonce
    }

    /// Asks what is answered at once.
    fn ask(&mut self, key: &ShareKey, ask: Ask) -> Answer {
        let nonce = self.send(key, ask);
        self.answers.remove(&nonce).expect("it was answered").0
    }

    fn look(&mut self, key: &ShareKey) -> Option<Arc<ShareState>> {
        self.ask(key, Ask::Look).expect("looking is never refused")
    }

    fn begin(&mut self, key: &ShareKey) -> i32 {
        let state = self.ask(key, Ask::Begin).expect("it may begin").expect("it is kept");
        state.state_epoch
    }

    /// What a log says is what its coordinator says.
    fn check(&self) {
        let mut other = Coordinator::new(UPDATES);
        for (at, record) in &self.log {
            other.apply(*at, record.clone());
        }
        let kept = |it: &Coordinator| -> Vec<String> {
            let kept = it.entries.iter().filter_map(|(key, it)| Some((key, it.kept.as_ref()?)));
            kept.map(|it| format!("{it:?}")).collect()
        };
        assert_eq!(kept(&other), kept(&self.coordinator));
        assert_eq!(
            (&other.ledger.live, other.counted),
            (&self.coordinator.ledger.live, self.coordinator.counted)
        );
    }

    /// Another one takes over, with what is in the log. What was under way is lost.
    fn crash(&mut self) {
        self.coordinator.unload();
        self.waiting.clear();
        self.settle();
        let mut next = Coordinator::new(UPDATES);
        for (at, record) in &self.log {
            next.apply(*at, record.clone());
        }
        self.coordinator = next;
        self.check();
    }

    /// All that says nothing any more is let go of, but what is before the first that does.
    fn renew(&mut self) {
        let before = self.end;
        while self.coordinator.live().first().is_some_and(|at| at < before) {
            self.coordinator.renew(before, 300);
            self.settle();
            if !self.lands_at_once && !self.land() {
                break;
            }
            self.settle();
        }
        let first = self.coordinator.live().first().unwrap_or(self.end);
        self.log.retain(|at, _| *at >= first);
        self.check();
    }
}

const FENCED: Answer = Err(ErrorCode::FencedStateEpoch);

#[test]
fn what_leaders_write_is_read_by_the_next() {
    let mut it = Play::new();
    let key = key(0);
    assert_eq!(it.ask(&key, Ask::Read { leader_epoch: 1 }), Err(ErrorCode::InvalidRequest));
    assert_eq!(it.look(&key), None);
    let epoch = it.begin(&key);
    assert_eq!(it.begin(&key), epoch, "it has begun");
    let state = it.ask(&key, Ask::Read { leader_epoch: 1 }).expect("it is kept");
    assert_eq!(state.expect("it is kept").start, -1, "a leader is to find it");
    for offset in 10..20 {
        let wrote = write(1, epoch, 10, &[batch(offset, offset, 2, 1)]);
        it.ask(&key, wrote).expect("it leads");
    }
    it.crash();
    let state = it.ask(&key, Ask::Read { leader_epoch: 2 }).expect("it is kept");
    let state = state.expect("it is kept");
    assert_eq!((state.start, &state.batches[..]), (10, &[batch(10, 19, 2, 1)][..]));
    let negative = write(2, epoch, 10, &[batch(20, 21, 0, -1)]);
    assert_eq!(it.ask(&key, negative), Err(ErrorCode::InvalidRequest));
    let late = write(1, epoch, 20, &[]);
    assert_eq!(it.ask(&key, late), Err(ErrorCode::FencedLeaderEpoch));
    assert_eq!(it.ask(&key, Ask::Read { leader_epoch: 1 }), Err(ErrorCode::FencedLeaderEpoch));
    it.ask(&key, write(2, epoch, 20, &[])).expect("it leads");
    assert_eq!(it.look(&key).expect("it is kept").batches, []);
}

#[test]
fn what_was_written_for_an_earlier_life_of_a_group_is_refused() {
    let mut it = Play::new();
    let key = key(0);
    let first = it.begin(&key);
    let late = || write(1, first, 5, &[batch(5, 9, 2, 1)]);
    it.ask(&key, late()).expect("it leads");
    it.ask(&key, Ask::Delete { of: Some(first) }).expect("it is that");
    assert_eq!(it.ask(&key, late()), Err(ErrorCode::InvalidRequest));
    it.renew();
    it.crash();
    let second = it.begin(&key);
    assert!(second > first, "an epoch is never used twice, whatever was forgotten");
    assert_eq!(it.ask(&key, late()), FENCED);
    assert_eq!(it.ask(&key, Ask::Delete { of: Some(first) }), FENCED);
    assert_eq!(it.ask(&key, Ask::Reset { of: Some(first), start: 0 }), FENCED);
    let third = it.ask(&key, Ask::Reset { of: Some(second), start: 7 }).expect("it is that");
    let third = third.expect("it is kept");
    assert_eq!((third.start, third.complete), (7, 0));
    assert_eq!(it.ask(&key, Ask::Reset { of: Some(second), start: 8 }), FENCED, "once more");
    assert_eq!(it.look(&key), Some(third));
}

#[test]
fn brokers_of_kafka_name_their_own_epochs() {
    let mut it = Play::new();
    let key = key(0);
    let initialize = |epoch, start| Ask::Initialize { epoch, start };
    it.ask(&key, initialize(3, 5)).expect("there is nothing");
    assert_eq!(it.ask(&key, initialize(2, 5)), FENCED);
    assert_eq!(it.ask(&key, write(-1, 2, 6, &[])), FENCED);
    it.ask(&key, write(-1, -1, 6, &[])).expect("it says nothing of epochs");
    it.ask(&key, initialize(3, 1)).expect("the same may begin anew");
    assert_eq!(it.look(&key).expect("it is kept").start, 1);
    assert_eq!(it.ask(&COUNTER, Ask::Begin), Err(ErrorCode::InvalidRequest));
    let odd = write(-1, -1, 6, &[batch(5, 4, 2, 1)]);
    assert_eq!(it.ask(&key, odd), Err(ErrorCode::InvalidRequest));
}

#[test]
fn nothing_is_told_before_it_is_durable_and_writes_that_wait_share_a_record() {
    let mut it = Play::new();
    let key = key(0);
    let epoch = it.begin(&key);
    it.lands_at_once = false;
    let first = it.send(&key, write(1, epoch, 0, &[batch(0, 0, 2, 1)]));
    let more: Vec<u64> =
        (1..5).map(|at| it.send(&key, write(1, epoch, 0, &[batch(at, at, 2, 1)]))).collect();
    let look = it.send(&key, Ask::Look);
    assert!(it.answers.is_empty());
    it.land();
    it.settle();
    assert_eq!(it.answers.keys().copied().collect::<Vec<_>>(), [first]);
    assert_eq!(it.waiting.len(), 1, "the others are one");
    it.land();
    it.settle();
    assert!(more.iter().all(|nonce| it.answers[nonce].0.is_ok() && it.answers[nonce].1));
    let (Ok(Some(state)), false) = &it.answers[&look] else { panic!("it is kept") };
    assert_eq!(state.batches, [batch(0, 4, 2, 1)]);
    let failed = it.send(&key, write(1, epoch, 0, &[batch(9, 9, 2, 1)]));
    it.fail(ErrorCode::NotLeaderOrFollower);
    assert_eq!(it.answers[&failed].0, Err(ErrorCode::NotCoordinator));
    let twice = it.send(&key, write(1, epoch, 0, &[batch(3, 3, 0, 1)]));
    assert!(it.answers[&twice].0.is_ok() && it.waiting.is_empty(), "a later one said more");
}

#[test]
fn a_topic_that_goes_takes_its_states_along() {
    let mut it = Play::new();
    let other = ShareKey { topic_id: Uuid::from_u128(10), ..key(0) };
    for key in [&key(0), &key(1), &other] {
        it.begin(key);
    }
    it.coordinator.forget_topic(Uuid::from_u128(9), it.now);
    it.settle();
    assert_eq!((it.look(&key(0)), it.look(&key(1))), (None, None));
    assert!(it.look(&other).is_some());
    it.check();
    assert_eq!(it.coordinator.live().size().0, 2, "the other one, and the counter");
}

#[test]
fn whoever_waits_is_told_when_it_is_over() {
    let mut it = Play::new();
    it.lands_at_once = false;
    let first = it.send(&key(0), Ask::Begin);
    let second = it.send(&key(0), Ask::Look);
    it.crash();
    for nonce in [first, second] {
        assert_eq!(it.answers[&nonce].0, Err(ErrorCode::NotCoordinator));
    }
}

/// What one asker was told, and has a right to rely on.
#[derive(Default)]
struct Told {
    leader: i32,
    epoch: i32,
    /// The best that was acknowledged of each offset in this epoch.
    offsets: BTreeMap<i64, (i16, i8)>,
    start: i64,
}

/// What a question may be, of somebody who was told this; none if something else happens.
fn some_question(chance: &mut Prng, it: &mut Play, of: &Told) -> Option<Ask> {
    let mut below = |bound: u64| i32::try_from(chance.below(bound)).expect("small");
    let lag = below(2);
    match below(12) {
        0 => Some(Ask::Begin),
        1 => Some(Ask::Reset { of: Some(of.epoch), start: of.start }),
        2 => Some(Ask::Delete { of: Some(of.epoch - lag) }),
        3 => Some(Ask::Read { leader_epoch: of.leader + 1 - lag }),
        4..8 => {
            let first = i64::from(below(30));
            let last = first + i64::from(below(5));
            let state = i8::try_from(2 * below(3)).expect("small");
            let count = i16::try_from(1 + below(3)).expect("small");
            let start = i64::from(below(20)) - 1;
            Some(write(of.leader - lag, of.epoch, start, &[batch(first, last, state, count)]))
        }
        8 => {
            it.crash();
            None
        }
        9 => {
            it.renew();
            None
        }
        10 if !it.waiting.is_empty() => {
            it.fail(ErrorCode::NotEnoughReplicas);
            None
        }
        _ => {
            it.land();
            it.settle();
            None
        }
    }
}

impl Told {
    fn hear(&mut self, ask: Ask, answer: Answer) {
        match (ask, answer) {
            (Ask::Begin | Ask::Reset { .. }, Ok(Some(state))) => {
                assert!(state.state_epoch >= self.epoch, "epochs rise");
                if state.state_epoch > self.epoch {
                    let (epoch, leader) = (state.state_epoch, self.leader);
                    *self = Self { epoch, leader, start: state.start, ..Self::default() };
                }
            }
            (Ask::Delete { .. }, Ok(None)) => {
                // Whoever comes next has another epoch.
                *self = Self { epoch: self.epoch, start: -1, ..Self::default() };
            }
            (Ask::Read { leader_epoch }, Ok(_)) => self.leader = self.leader.max(leader_epoch),
            (Ask::Write { write, .. }, Ok(_)) if write.state_epoch == self.epoch => {
                self.start = self.start.max(write.start);
                for it in write.batches {
                    for offset in it.first..=it.last {
                        let best = self.offsets.entry(offset).or_insert((it.count, it.state));
                        *best = (*best).max((it.count, it.state));
                    }
                }
            }
            _ => {}
        }
    }

    fn holds_in(&self, state: &ShareState) {
        assert!(state.start >= self.start, "the start never falls");
        assert!(state.leader_epoch >= self.leader, "fenced leaders stay fenced");
        for (offset, best) in self.offsets.range(state.start.max(0)..) {
            let held = state.batches.iter().find(|it| (it.first..=it.last).contains(offset));
            assert!(held.map(|it| (it.count, it.state)) >= Some(*best), "offset {offset}");
        }
    }
}

#[test]
fn by_chance_what_was_told_holds_through_crashes_and_renewals() {
    for seed in 0..200 {
        let mut chance = Prng::stream(seed, 0);
        let mut it = Play::new();
        let mut told: BTreeMap<i32, Told> = BTreeMap::new();
        let mut asked: BTreeMap<u64, (i32, Ask)> = BTreeMap::new();
        it.lands_at_once = false;
        for _ in 0..300 {
            let number = i32::try_from(chance.below(3)).expect("small");
            let of = told.entry(number).or_default();
            if let Some(ask) = some_question(&mut chance, &mut it, of) {
                let nonce = it.send(&key(number), ask.clone());
                asked.insert(nonce, (number, ask));
            }
            for (nonce, (answer, _)) in mem::take(&mut it.answers) {
                let (number, ask) = asked.remove(&nonce).expect("it was asked");
                told.entry(number).or_default().hear(ask, answer);
            }
        }
        it.lands_at_once = true;
        it.crash();
        for (number, of) in told {
            if let Some(state) = it.look(&key(number)).filter(|it| it.state_epoch == of.epoch) {
                of.holds_in(&state);
            }
        }
    }
}

#[test]
fn askers_may_be_clients() {
    let mut it = Play::new();
    let asker = Asker::Request { key: (ConnectionId(1), 1), part: 3 };
    it.coordinator.ask(&key(0), asker, Ask::Look, it.now);
    let answered = Output::Answered { asker, answer: Ok(None), is_written: false };
    assert_eq!(it.coordinator.take_outputs(), [answered]);
}
