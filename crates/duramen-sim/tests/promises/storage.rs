//! The real storage on the simulated disk: seeds that failed once, and a batch of others.

use duramen_sim::cores;
use duramen_sim::failure::catching;
use duramen_sim::scenario::Scenario;

/// A first look; `./test full` goes on with thousands.
const SEEDS: u64 = 100;

fn run(scenario: Scenario, seed: u64) {
    if let Err(failure) = catching(|| scenario.run(seed)) {
        let name = scenario.name();
        panic!("{}\nseed {seed}\ncommand: cargo sim --seed {seed} --scenario {name}", failure.what);
    }
}

/// The clusters among the seeds that failed once that a first look takes: the newest, whose histories changed least.
const FAILED_CLUSTERS: usize = 6;

/// Returns each seed that failed once.
fn failed() -> impl DoubleEndedIterator<Item = (Scenario, u64)> {
    include_str!("../../regressions.txt").lines().filter(|line| !line.starts_with('#')).map(
        |line| {
            let mut words = line.split_whitespace();
            let scenario = words.next().and_then(Scenario::named).expect("a scenario comes first");
            (scenario, words.next().and_then(|word| word.parse().ok()).expect("then a seed"))
        },
    )
}

fn is_of_cluster(seed: &(Scenario, u64)) -> bool {
    matches!(seed.0, Scenario::Cluster)
}

#[test]
fn seeds_that_failed_once_pass() {
    let clusters = failed().rev().filter(is_of_cluster).take(FAILED_CLUSTERS);
    let seeds = failed().filter(|seed| !is_of_cluster(seed)).chain(clusters);
    cores::on_all(seeds, |(scenario, seed)| run(scenario, seed));
}

#[test]
#[ignore = "takes a minute: `./test full` runs it"]
fn every_cluster_that_failed_once_passes() {
    cores::on_all(failed().filter(is_of_cluster), |(scenario, seed)| run(scenario, seed));
}

#[test]
fn what_was_reported_persisted_survives_every_crash() {
    cores::on_all(1..=SEEDS, |seed| run(Scenario::Storage, seed));
}
