//! Every planted bug is found.

use duramen_sim::planted::{BUGS, Bug, OF_CLUSTERS, find};

/// A bug that survives so many seeds would survive a night.
const SEEDS_MAX: u64 = 400;

/// Which of them are not found.
fn missed(bugs: &[(&'static str, Bug)]) -> Vec<&'static str> {
    let mut missed = Vec::new();
    for (name, bug) in bugs {
        match find(*bug, SEEDS_MAX) {
            Some((seeds, failure)) => println!("{name}: {seeds} seeds: {}", failure.what),
            None => missed.push(*name),
        }
    }
    missed
}

#[test]
fn every_planted_bug_is_found() {
    assert_eq!(missed(BUGS), [""; 0], "not found in {SEEDS_MAX} seeds");
}

#[test]
fn every_planted_bug_of_clusters_is_found() {
    assert_eq!(missed(OF_CLUSTERS), [""; 0], "not found in {SEEDS_MAX} seeds");
}
