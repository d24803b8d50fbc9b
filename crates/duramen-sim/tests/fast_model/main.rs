//! # Room card: fast model
//!
//! Purpose:    judge the protocol of fast appends before any code of it: every run of a small cluster.
//! Owns:       the searches, their sizes, the planted bugs.
//! Interface:  `cargo test -p duramen-sim --test fast_model -- --nocapture` prints the states of each search.
//! Invariants: a batch that is complete for its client stays in the log, once, in the order that clients may see.
//!             Each planted bug breaks a promise.
//! Never:      code of the broker, chance. Membership changes, snapshots and power loss are left to the simulator.
//! Tests:      this is one.
//! Start at:   `state.rs`, then `clients.rs`, `settling.rs` and `raft.rs`.

mod actions;
mod canonical;
mod clients;
mod log;
mod model;
mod properties;
mod raft;
mod search;
mod sets;
mod settling;
mod state;

use model::{Model, Plant};
use search::search;

/// More states than any search of the gate has.
const STATES_MAX: usize = 1_000_000;
/// About as many states as a long search may have: two to three minutes, and five gigabytes.
const STATES_OF_NIGHTS_MAX: usize = 12_000_000;

/// Visits every state of the model, none of which may break a promise.
fn exhaust<const N: usize>(name: &str, model: &Model<N>) {
    let searched = search(model, STATES_MAX);
    println!("{name}: {searched}");
    assert!(searched.broken.is_none(), "{name}: {searched}");
    assert!(searched.is_exhausted, "{name}: {searched}");
}

/// Visits the nearest states of the model, none of which may break a promise.
fn search_long<const N: usize>(name: &str, model: &Model<N>) {
    let searched = search(model, STATES_OF_NIGHTS_MAX);
    println!("{name}: {searched}");
    assert!(searched.broken.is_none(), "{name}: {searched}");
}

/// Visits states of the model until the planted bug breaks a promise. Returns the bug if none does.
fn missed<const N: usize>(plant: Plant, model: Model<N>) -> Option<Plant> {
    let model = Model { plant: Some(plant), ..model };
    let searched = search(&model, STATES_MAX);
    let broken = searched.broken.as_ref().map(|(promise, _)| *promise);
    let states = searched.states;
    println!("{plant:?}: {broken:?} after {states} states, {} actions deep", searched.depth);
    broken.is_none().then_some(plant)
}

/// Three nodes and two terms, the smallest search in which a leader fails and another settles.
fn three(producers: &'static [usize]) -> Model<3> {
    Model::new(producers, 2)
}

/// As [`three`]; one leader restarts, and each appends when elected. So a log may be cut before anybody has settled.
fn three_with_cuts(producers: &'static [usize]) -> Model<3> {
    Model { bounces: 1, has_no_op: true, ..three(producers) }
}

#[test]
fn one_producer_keeps_its_batches_and_their_order_through_every_failover() {
    exhaust("two batches", &Model { bounces: 1, ..three(&[2]) });
    exhaust("one batch, with cuts", &three_with_cuts(&[1]));
}

#[test]
fn two_producers_keep_the_order_in_which_batches_were_completed() {
    exhaust("two producers", &three(&[1, 1]));
}

#[test]
fn a_second_stretch_in_a_term_loses_nothing() {
    let once = |producers| Model::<3> { bounces: 1, reopens: true, ..Model::new(producers, 1) };
    exhaust("second stretch, two batches", &once(&[2]));
    exhaust("second stretch, two producers", &once(&[1, 1]));
}

#[test]
fn a_refused_batch_is_never_in_the_log() {
    exhaust("refusals", &Model { refuses: true, ..three_with_cuts(&[1]) });
}

#[test]
fn larger_clusters_settle_from_any_majority() {
    let four = Model::<4> { bounces: 1, reopens: true, ..Model::new(&[1], 1) };
    exhaust("four nodes, second stretch", &four);
    let five = Model::<5> { bounces: 1, reopens: true, ..Model::new(&[1], 1) };
    exhaust("five nodes, second stretch", &five);
    exhaust("five nodes, two batches", &Model::<5>::new(&[2], 1));
    exhaust("five nodes, two producers", &Model::<5>::new(&[1, 1], 1));
}

#[test]
fn every_planted_bug_breaks_a_promise() {
    let plants = [
        (Plant::SealForgotten, three(&[1])),
        (Plant::RecoveredTwice, three(&[1])),
        (Plant::OpensTooEarly, three(&[1, 1])),
        (Plant::AskedAnyone, three(&[1])),
        (Plant::RecoveredReversed, three(&[1, 1])),
        (Plant::HeldWithGap, three(&[2])),
        (Plant::CutForgetsHeld, three_with_cuts(&[1])),
        (Plant::HeldGoneAtAppend, Model { has_no_op: true, ..Model::new(&[1], 3) }),
        (Plant::OldStretchCounts, Model { reopens: true, ..three(&[1]) }),
        (Plant::HeldInPlace, three(&[1])),
        (Plant::NoBarrier, three(&[1])),
        (Plant::RefusedTooEarly, Model { refuses: true, ..three(&[1]) }),
        (Plant::ExLeaderHolds, three_with_cuts(&[2])),
        (Plant::CountsTooFew, three(&[1])),
        (Plant::CountsWithoutLeader, three(&[1])),
    ];
    let missed: Vec<_> = plants.into_iter().filter_map(|(it, model)| missed(it, model)).collect();
    assert_eq!(missed, []);
}

#[test]
#[ignore = "ten seconds: these two bugs need hundreds of thousands of states"]
fn every_planted_bug_that_is_far_away_breaks_a_promise() {
    let reopens = Model { reopens: true, ..three(&[2]) };
    assert_eq!(missed(Plant::GapAcrossStretches, reopens), None);
    assert_eq!(missed(Plant::ToldOutOfOrder, Model::<5>::new(&[2], 2)), None);
}

#[test]
#[ignore = "a quarter of an hour and five gigabytes"]
fn long_searches_find_nothing() {
    search_long("two batches, with cuts", &three_with_cuts(&[2]));
    search_long("two producers, with cuts", &three_with_cuts(&[1, 1]));
    search_long("three terms", &Model::<3> { terms: 3, ..three_with_cuts(&[1]) });
    search_long("second stretch", &Model { reopens: true, ..three(&[1]) });
    let once = Model::<3> { bounces: 1, reopens: true, ..Model::new(&[2, 1], 1) };
    search_long("second stretch, three batches, one term", &once);
    search_long("second stretch, two producers", &Model { reopens: true, ..three(&[1, 1]) });
    let refuses = |producers| Model { has_no_op: true, refuses: true, ..three(producers) };
    search_long("refusals, two batches", &refuses(&[2]));
    search_long("refusals, two producers", &refuses(&[1, 1]));
    let all = Model { reopens: true, refuses: true, ..three_with_cuts(&[2]) };
    search_long("second stretch and refusals", &all);
    let four = Model::<4> { bounces: 1, has_no_op: true, ..Model::new(&[1], 2) };
    search_long("four nodes", &four);
    search_long("five nodes", &Model::<5>::new(&[1], 2));
    search_long("five nodes, two producers", &Model::<5>::new(&[1, 1], 2));
    search_long("five nodes, three producers", &Model::<5>::new(&[1, 1, 1], 1));
}
