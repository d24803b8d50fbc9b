//! The whole node, with clients, on the simulated disk.

use duramen_sim::failure::catching;
use duramen_sim::node_harness;

/// A first look; `./test full` goes on with thousands.
const SEEDS: u64 = 50;

#[test]
fn what_clients_were_told_stays_true_through_every_crash() {
    let mut compactions = 0;
    for seed in 1..=SEEDS {
        match catching(|| node_harness::run(seed, None)) {
            Ok(report) => compactions += report.compactions,
            Err(failure) => panic!(
                "{}\nseed {seed}\ncommand: cargo sim --seed {seed} --scenario node",
                failure.what
            ),
        }
    }
    assert!(compactions > SEEDS / 4, "{compactions} logs were compacted");
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    for seed in 2000..2020 {
        let first = node_harness::run(seed, None).expect("the seed is good").trace;
        let second = node_harness::run(seed, None).expect("the seed is good").trace;
        assert_eq!(first, second, "seed {seed} ran in two ways");
    }
}
