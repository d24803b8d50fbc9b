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

#[test]
fn seeds_that_failed_once_pass() {
    let lines = include_str!("../../regressions.txt").lines();
    cores::on_all(lines.filter(|line| !line.starts_with('#')), |line| {
        let mut words = line.split_whitespace();
        let scenario = words.next().and_then(Scenario::named).expect("a scenario comes first");
        let seed = words.next().and_then(|word| word.parse().ok()).expect("then a seed");
        run(scenario, seed);
    });
}

#[test]
fn what_was_reported_persisted_survives_every_crash() {
    cores::on_all(1..=SEEDS, |seed| run(Scenario::Storage, seed));
}
