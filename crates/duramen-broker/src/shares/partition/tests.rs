//! What a share partition does, step by step.

use super::*;

mod chance;
mod lanes;

pub(super) const RULES: Rules = Rules {
    lock_us: 30,
    deliveries_max: 3,
    unfinished_max: 100,
    by_key: false,
    has_dead_letters: false,
    may_renew: true,
};
const ALL: Limits = Limits { records: 1000, bytes: 1 << 20, is_strict: false };

/// Batches of ten records and a hundred bytes each, of one segment.
fn tens(from: i64, count: i64) -> Vec<Seen> {
    let one = |n: i64| {
        let base = from + n * 10;
        let at = u64::try_from(base * 10).expect("not negative");
        let span = Span { last: base + 9, segment: 0, at, bytes: 100 };
        Seen { base, span, is_nothing: false, records: None }
    };
    (0..count).map(one).collect()
}

fn filled(count: i64) -> SharePartition {
    let mut it = SharePartition::new(0, &[]);
    it.extend(0, (tens(0, count), count * 10), 0, &RULES);
    it
}

fn member(name: &str) -> Arc<str> {
    Arc::from(name)
}

fn get(it: &mut SharePartition, now_us: u64, name: &str, limits: &Limits) -> Vec<(i64, i64, i16)> {
    let plan = it.plan(limits, &RULES);
    it.acquire(now_us, &member(name), &plan, &RULES);
    plan.pieces.iter().map(|piece| (piece.first, piece.last, piece.deliveries)).collect()
}

fn say(first: i64, last: i64, types: &[i8]) -> Acknowledgement {
    Acknowledgement { first, last, types: types.to_vec() }
}

fn save(it: &mut SharePartition) -> Option<Write> {
    let write = it.next_write();
    it.on_written();
    write
}

#[test]
fn whole_batches_are_given_out_unless_the_limit_is_strict() {
    let mut it = filled(3);
    assert_eq!(get(&mut it, 0, "a", &Limits { records: 5, ..ALL }), [(0, 9, 1)]);
    let strict = Limits { records: 5, is_strict: true, ..ALL };
    assert_eq!(get(&mut it, 0, "b", &strict), [(10, 14, 1)]);
    let plan = it.plan(&ALL, &RULES);
    assert_eq!((plan.from, plan.end, plan.bytes, plan.records), (10, 30, 200, 15));
    assert_eq!(get(&mut it, 0, "c", &Limits { bytes: 1, ..ALL }), [(15, 19, 1)]);
}

#[test]
fn an_acknowledgement_is_answered_once_it_is_durable_and_then_the_start_passes() {
    let mut it = filled(2);
    get(&mut it, 0, "a", &ALL);
    assert_eq!(it.acknowledge(1, "a", &[say(0, 9, &[ACCEPT])], 7, &RULES), Ok(true));
    let write = it.next_write().expect("something is due");
    assert_eq!((write.start, write.complete, write.batches), (10, 0, vec![]));
    assert_eq!((it.start(), it.take_answers()), (0, vec![]));
    assert_eq!(it.acknowledge(1, "a", &[say(12, 13, &[REJECT, ACCEPT])], 8, &RULES), Ok(true));
    assert_eq!(it.next_write(), None, "one at a time");
    it.on_written();
    assert_eq!((it.start(), it.take_answers()), (10, vec![(7, ErrorCode::None)]));
    let write = save(&mut it).expect("the rest is due");
    let batch = |first, state| StateBatch { first, last: first, state, count: 1 };
    assert_eq!((write.start, write.complete), (10, 2));
    assert_eq!(write.batches, [batch(12, 4), batch(13, 2)]);
    assert_eq!(it.take_answers(), [(8, ErrorCode::None)]);
}

#[test]
fn only_the_holder_decides_and_all_of_it_or_nothing() {
    let mut it = filled(2);
    get(&mut it, 0, "a", &Limits { records: 1, ..ALL });
    let code = |it: &mut SharePartition, name, said: &[Acknowledgement]| {
        it.acknowledge(1, name, said, 1, &RULES).expect_err("refused")
    };
    assert_eq!(code(&mut it, "b", &[say(0, 9, &[ACCEPT])]), ErrorCode::InvalidRecordState);
    let both = [say(0, 3, &[ACCEPT]), say(10, 10, &[ACCEPT])];
    assert_eq!(code(&mut it, "a", &both), ErrorCode::InvalidRecordState);
    assert_eq!(code(&mut it, "a", &[say(15, 25, &[ACCEPT])]), ErrorCode::InvalidRequest);
    assert_eq!(code(&mut it, "a", &[say(0, 3, &[ACCEPT, ACCEPT])]), ErrorCode::InvalidRequest);
    assert_eq!(code(&mut it, "a", &[say(0, 0, &[9])]), ErrorCode::InvalidRequest);
    let twice = [say(0, 3, &[ACCEPT]), say(3, 4, &[ACCEPT])];
    assert_eq!(code(&mut it, "a", &twice), ErrorCode::InvalidRequest);
    assert_eq!(it.next_write(), None, "nothing was decided");
    assert_eq!(it.acknowledge(1, "a", &[say(0, 9, &[ACCEPT])], 1, &RULES), Ok(true));
    assert_eq!(code(&mut it, "a", &[say(0, 9, &[ACCEPT])]), ErrorCode::InvalidRecordState);
}

#[test]
fn what_is_held_too_long_comes_again_alone_at_last_and_then_never() {
    let mut it = filled(1);
    assert_eq!(get(&mut it, 0, "a", &ALL), [(0, 9, 1)]);
    assert_eq!(it.deadline_us(), 30);
    assert!(!it.expire(29, &RULES));
    assert!(it.expire(30, &RULES));
    let write = save(&mut it).expect("how often they came is kept");
    assert_eq!(write.batches, [StateBatch { first: 0, last: 9, state: 0, count: 1 }]);
    assert_eq!(get(&mut it, 40, "b", &ALL), [(0, 9, 2)]);
    assert!(it.expire(70, &RULES));
    assert_eq!(get(&mut it, 71, "c", &ALL), [(0, 0, 3)]);
    assert!(it.expire(101, &RULES));
    assert_eq!(save(&mut it).expect("it is given up").start, 1);
    assert_eq!(get(&mut it, 102, "d", &ALL), [(1, 1, 3)]);
}

#[test]
fn a_renewed_lock_lasts_and_what_a_consumer_leaves_is_not_counted() {
    let mut it = filled(1);
    get(&mut it, 0, "a", &ALL);
    assert_eq!(it.acknowledge(20, "a", &[say(0, 4, &[RENEW])], 1, &RULES), Ok(false));
    it.expire(30, &RULES);
    assert_eq!(it.plan(&ALL, &RULES).pieces, [Piece { first: 5, last: 9, deliveries: 2 }]);
    it.release("a");
    let (one, two) =
        (Piece { first: 0, last: 4, deliveries: 1 }, Piece { first: 5, last: 9, deliveries: 2 });
    assert_eq!(it.plan(&ALL, &RULES).pieces, [one, two]);
    let strict = Rules { may_renew: false, ..RULES };
    let refused = it.acknowledge(20, "a", &[say(0, 4, &[RENEW])], 1, &strict);
    assert_eq!(refused, Err(ErrorCode::InvalidRecordState));
}

#[test]
fn a_lock_that_is_renewed_for_less_time_ends_then() {
    let mut it = filled(1);
    get(&mut it, 0, "a", &ALL);
    let shorter = Rules { lock_us: 5, ..RULES };
    assert_eq!(it.acknowledge(1, "a", &[say(0, 9, &[RENEW])], 1, &shorter), Ok(false));
    assert_eq!(it.deadline_us(), 6);
    assert!(it.expire(6, &RULES));
}

#[test]
fn stored_counts_of_deliveries_are_not_negative() {
    let mut it = SharePartition::new(0, &[StateBatch { first: 0, last: 9, state: 0, count: -5 }]);
    it.extend(0, (tens(0, 1), 10), 0, &RULES);
    assert_eq!(get(&mut it, 0, "a", &ALL), [(0, 9, 1)]);
}

#[test]
fn what_was_kept_is_so_again_and_the_rest_is_available() {
    let kept = [
        StateBatch { first: 12, last: 14, state: 2, count: 1 },
        StateBatch { first: 17, last: 25, state: 0, count: 1 },
    ];
    let mut it = SharePartition::new(10, &kept);
    assert_eq!(it.wants(&RULES, 30), Some(10));
    it.extend(10, (tens(10, 2), 30), 0, &RULES);
    let pieces = it.plan(&ALL, &RULES).pieces;
    let piece = |first, last, deliveries| Piece { first, last, deliveries };
    assert_eq!(pieces, [piece(10, 11, 1), piece(15, 16, 1), piece(17, 25, 2), piece(26, 29, 1)]);
    assert_eq!(it.unfinished(), 17);
}

#[test]
fn gaps_and_batches_that_are_for_nobody_are_passed() {
    let mut it = SharePartition::new(5, &[]);
    let mut seen = tens(0, 3);
    seen[1].is_nothing = true;
    seen.extend(tens(40, 1));
    it.extend(5, (seen, 55), 0, &RULES);
    let pieces = it.plan(&ALL, &RULES).pieces;
    let at: Vec<_> = pieces.iter().map(|piece| (piece.first, piece.last)).collect();
    assert_eq!(at, [(5, 9), (20, 29), (40, 49)]);
    get(&mut it, 0, "a", &ALL);
    let all = [say(5, 9, &[ACCEPT]), say(20, 29, &[ACCEPT]), say(40, 49, &[GAP])];
    assert_eq!(it.acknowledge(1, "a", &all, 1, &RULES), Ok(true));
    assert_eq!(save(&mut it).map(|write| write.start), Some(55));
    assert_eq!((it.start(), it.unfinished()), (55, 0));
}

#[test]
fn records_that_the_log_has_lost_are_done_with_and_who_waits_is_answered() {
    let mut it = filled(3);
    get(&mut it, 0, "a", &ALL);
    assert_eq!(it.acknowledge(1, "a", &[say(0, 9, &[ACCEPT])], 4, &RULES), Ok(true));
    it.trim(15);
    assert_eq!(it.take_answers(), [(4, ErrorCode::None)]);
    assert_eq!((it.start(), it.unfinished()), (15, 15));
    assert_eq!(it.acknowledge(1, "a", &[say(10, 19, &[ACCEPT])], 5, &RULES), Ok(true));
    assert!(it.trim(100));
    assert_eq!((it.start(), it.unfinished(), it.wants(&RULES, 200)), (100, 0, Some(100)));
    // Nobody may ever decide again: the coordinator is told by itself.
    assert_eq!(save(&mut it).map(|write| (write.start, write.batches)), Some((100, vec![])));
    assert!(it.is_idle() && !it.trim(100));
}

#[test]
fn the_window_is_bounded() {
    let mut it = filled(50);
    assert_eq!((it.unfinished(), it.wants(&RULES, 1000)), (100, None));
    get(&mut it, 0, "a", &Limits { records: 1, ..ALL });
    it.acknowledge(1, "a", &[say(0, 9, &[ACCEPT])], 4, &RULES).expect("it holds them");
    save(&mut it);
    assert_eq!(it.wants(&RULES, 1000), Some(100));
}

#[test]
fn what_is_given_up_is_kept_elsewhere_first() {
    let rules = Rules { has_dead_letters: true, ..RULES };
    let mut it = filled(1);
    get(&mut it, 0, "a", &ALL);
    it.acknowledge(1, "a", &[say(0, 1, &[REJECT, ACCEPT])], 4, &rules).expect("it holds them");
    assert_eq!(save(&mut it).map(|write| write.start), Some(0));
    assert_eq!(it.take_answers(), [], "the rejected one is nowhere yet");
    let dying = Dying { first: 0, last: 0, deliveries: 1, reason: Reason::Rejected };
    assert_eq!((it.take_dying(), it.take_dying()), (vec![dying], vec![]));
    it.on_buried(0, 0);
    assert_eq!(save(&mut it).map(|write| write.start), Some(2));
    assert_eq!(it.take_answers(), [(4, ErrorCode::None)]);
}
