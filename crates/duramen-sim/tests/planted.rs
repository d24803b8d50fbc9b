//! Every planted bug is found.

use std::iter::once;

use duramen_sim::planted::{BUGS, Bug, OF_CLUSTERS, find};

/// A bug that survives so many seeds would survive a night.
const SEEDS_MAX: u64 = 400;

/// The bug's name, if none of the seeds finds it.
fn missed(name: &'static str, bug: Bug, seeds: impl Iterator<Item = u64>) -> Option<&'static str> {
    let Some((seed, failure)) = find(bug, seeds) else { return Some(name) };
    println!("{name}: seed {seed}: {}", failure.what);
    None
}

#[test]
fn every_planted_bug_is_found() {
    let missed: Vec<_> =
        BUGS.iter().filter_map(|(name, bug)| missed(name, *bug, 1..=SEEDS_MAX)).collect();
    assert_eq!(missed, [""; 0], "not found in {SEEDS_MAX} seeds");
}

#[test]
fn every_planted_bug_of_clusters_is_found() {
    let missed: Vec<_> = OF_CLUSTERS
        .iter()
        .filter_map(|(name, bug, known)| missed(name, *bug, once(*known).chain(1..=SEEDS_MAX)))
        .collect();
    assert_eq!(missed, [""; 0], "not found in {SEEDS_MAX} seeds");
}
