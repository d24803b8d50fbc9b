//! Records of queues: their times, ranks and turns.

use duramen_protocol::records::{PRIORITY_USUAL, Schedule};

use super::*;

const USUAL: Schedule =
    Schedule { deliver_at_ms: 0, expires_ms: i64::MAX, priority: PRIORITY_USUAL };
const ONE: Limits = Limits { records: 1, bytes: 1 << 20, is_strict: true };
const BY_KEY: Rules = Rules { by_key: true, ..RULES };

/// A window over one batch for each record.
fn of_records(records: &[(u128, Schedule)], now_ms: i64, rules: &Rules) -> SharePartition {
    let mut it = SharePartition::new(0, &[]);
    let one = |(offset, (key, schedule)): (i64, &(u128, Schedule))| {
        let at = u64::try_from(offset * 10).expect("small");
        let span = Span { last: offset, segment: 0, at, bytes: 10 };
        let (key, schedule) = (Some(*key), Some(*schedule));
        let records =
            SeenRecords { end: offset + 1, of: vec![SeenRecord { offset, key, schedule }] };
        Seen { base: offset, span, is_nothing: false, records: Some(records) }
    };
    let seen: Vec<Seen> = (0..).zip(records).map(one).collect();
    let to = i64::try_from(seen.len()).expect("small");
    it.extend(0, (seen, to), now_ms, rules);
    it
}

fn take(it: &mut SharePartition, limits: &Limits, rules: &Rules) -> Vec<i64> {
    let plan = it.pick(limits, rules);
    it.acquire(0, &member("w"), &plan, rules);
    plan.pieces.iter().map(|piece| piece.first).collect()
}

#[test]
fn queues_have_their_turns_and_a_long_one_holds_up_no_other() {
    let mut records = vec![(1, USUAL); 20];
    records.extend([(2, USUAL), (3, USUAL), (3, USUAL)]);
    let mut it = of_records(&records, 0, &RULES);
    let turns: Vec<i64> = (0..6).flat_map(|_| take(&mut it, &ONE, &RULES)).collect();
    assert_eq!(turns, [0, 20, 21, 1, 22, 2]);
    let mut it = of_records(&records, 0, &RULES);
    assert_eq!(take(&mut it, &Limits { records: 5, ..ONE }, &RULES), [0, 20, 21, 1, 22]);
    // A consumer of Kafka's protocol gets whole batches, in the order of the log: each queue its share.
    let it = of_records(&records, 0, &RULES);
    let plan = it.plan(&Limits { records: 6, ..ONE }, &RULES);
    let pieces: Vec<(i64, i64)> = plan.pieces.iter().map(|it| (it.first, it.last)).collect();
    assert_eq!(pieces, [(0, 1), (20, 22)]);
}

#[test]
fn the_bytes_of_batches_bound_a_lease() {
    let mut it = of_records(&[(1, USUAL), (2, USUAL), (3, USUAL)], 0, &RULES);
    assert_eq!(take(&mut it, &Limits { records: 9, bytes: 20, is_strict: true }, &RULES), [0, 1]);
    assert_eq!(take(&mut it, &Limits { records: 9, bytes: 1, is_strict: true }, &RULES), [2]);
}

#[test]
fn a_higher_rank_comes_first_and_the_order_of_a_key_beats_it() {
    let high = Schedule { priority: 9, ..USUAL };
    let records = [(1, USUAL), (1, high), (2, USUAL), (3, high)];
    let mut it = of_records(&records, 0, &RULES);
    assert_eq!(take(&mut it, &Limits { records: 9, ..ONE }, &RULES), [1, 3, 0, 2]);
    let mut it = of_records(&records, 0, &BY_KEY);
    assert_eq!(take(&mut it, &Limits { records: 9, ..ONE }, &BY_KEY), [3, 0, 2]);
}

#[test]
fn a_record_waits_for_its_time_and_holds_up_neither_its_queue_nor_the_window() {
    let later = Schedule { deliver_at_ms: 100, ..USUAL };
    let few = Rules { unfinished_max: 2, ..BY_KEY };
    let mut it = of_records(&[(1, later), (1, later), (1, USUAL), (2, USUAL)], 50, &few);
    assert_eq!((it.unfinished(), it.deadline_ms()), (4, Some(100)));
    assert_eq!(take(&mut it, &Limits { records: 9, ..ONE }, &few), [2, 3]);
    assert!(!it.wake(99, true, &few));
    assert!(it.wake(100, true, &few));
    assert_eq!(take(&mut it, &ONE, &few), [0; 0], "another of its key is out");
    assert_eq!(it.acknowledge(1, "w", &[say(2, 2, &[ACCEPT])], 1, &few), Ok(true));
    save(&mut it);
    assert_eq!(take(&mut it, &Limits { records: 9, ..ONE }, &few), [0]);
}

#[test]
fn an_ended_record_is_given_up_unless_somebody_has_it_or_the_clock_is_odd() {
    let short = Schedule { expires_ms: 100, ..USUAL };
    let rules = Rules { has_dead_letters: true, ..RULES };
    let mut it = of_records(&[(1, short), (2, short), (3, USUAL)], 0, &rules);
    assert_eq!(take(&mut it, &ONE, &rules), [0]);
    assert!(!it.wake(100, false, &rules), "the clock is not believed");
    assert!(it.wake(100, true, &rules));
    let expired = Dying { first: 1, last: 1, deliveries: 0, reason: Reason::Expired };
    assert_eq!(it.take_dying(), [expired]);
    assert_eq!(it.acknowledge(1, "w", &[say(0, 0, &[RELEASE])], 1, &rules), Ok(true));
    save(&mut it);
    assert!(it.is_due(100), "the record is free again, and its end is over");
    assert!(it.wake(100, true, &rules));
    let expired = Dying { first: 0, last: 0, deliveries: 1, reason: Reason::Expired };
    assert_eq!(it.take_dying(), [expired]);
    assert_eq!(take(&mut it, &Limits { records: 9, ..ONE }, &rules), [2]);
}

#[test]
fn a_released_record_waits_and_is_written_at_once() {
    let mut it = of_records(&[(1, USUAL)], 0, &RULES);
    assert_eq!(take(&mut it, &ONE, &RULES), [0]);
    assert!(it.is_held(0, "w", 1) && !it.is_held(0, "w", 2) && !it.is_held(0, "x", 1));
    assert_eq!(it.acknowledge(1, "w", &[say(0, 0, &[RELEASE])], 1, &RULES), Ok(true));
    it.release_later(0, 500);
    let write = save(&mut it).expect("a release is kept");
    assert_eq!(write.batches, [StateBatch { first: 0, last: 0, state: 0, count: 1 }]);
    assert_eq!(it.take_answers(), [(1, ErrorCode::None)]);
    assert_eq!(take(&mut it, &ONE, &RULES), [0; 0]);
    assert!(it.wake(500, true, &RULES));
    assert_eq!(it.pick(&ONE, &RULES).pieces, [Piece { first: 0, last: 0, deliveries: 2 }]);
    assert_eq!(take(&mut it, &ONE, &RULES), [0]);
    it.hand_back((0, 0));
    assert_eq!(it.pick(&ONE, &RULES).pieces, [Piece { first: 0, last: 0, deliveries: 2 }]);
}

/// Tells whether a test fails with a planted bug.
#[cfg(feature = "sabotage")]
fn finds(bug: Bug, test: fn()) -> bool {
    sabotage::plant(Some(bug));
    let found = std::panic::catch_unwind(test).is_err();
    sabotage::plant(None);
    found
}

#[test]
#[cfg(feature = "sabotage")]
fn planted_bugs_are_found() {
    let by_chance = || chance::play(0..20);
    assert!(finds(Bug::DelayIgnored, by_chance));
    assert!(finds(Bug::EndsIgnored, by_chance));
    let turns = queues_have_their_turns_and_a_long_one_holds_up_no_other;
    assert!(finds(Bug::TurnsForgotten, turns));
    assert!(finds(Bug::FormerLeaseSettles, a_released_record_waits_and_is_written_at_once));
    by_chance();
}
