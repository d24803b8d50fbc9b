//! Every planted bug is found.

use duramen_sim::planted::{BUGS, find};

/// A bug that survives so many seeds would survive a night.
const SEEDS_MAX: u64 = 400;

#[test]
fn every_planted_bug_is_found() {
    let mut missed = Vec::new();
    for (name, bug) in BUGS {
        match find(*bug, SEEDS_MAX) {
            Some((seeds, failure)) => println!("{name}: {seeds} seeds: {}", failure.what),
            None => missed.push(*name),
        }
    }
    assert!(missed.is_empty(), "not found in {SEEDS_MAX} seeds: {missed:?}");
}
