//! Clusters of whole nodes, with clients, on simulated disks and a simulated network.

use std::sync::atomic::{AtomicU64, Ordering};

use duramen_sim::failure::catching;
use duramen_sim::{cluster_harness, cores};

/// A first look; `./test full` goes on with hundreds.
const SEEDS: u64 = 12;

#[test]
fn a_cluster_keeps_what_it_told_through_deaths_and_cuts() {
    cores::on_all(1..=SEEDS, |seed| {
        if let Err(failure) = catching(|| cluster_harness::run(seed, None)) {
            panic!(
                "{}\nseed {seed}\ncommand: cargo sim --seed {seed} --scenario cluster",
                failure.what
            );
        }
    });
}

#[test]
fn a_cluster_keeps_what_all_members_of_a_stretch_have() {
    let fast = AtomicU64::new(0);
    cores::on_all(1..=SEEDS / 2, |seed| match catching(|| cluster_harness::run_fast(seed, None)) {
        Ok(report) => {
            fast.fetch_add(report.fast.1, Ordering::Relaxed);
        }
        Err(failure) => {
            panic!(
                "{}\nseed {seed}\ncommand: cargo sim --seed {seed} --scenario fast",
                failure.what
            )
        }
    });
    assert!(fast.into_inner() > 100, "few appends were fast");
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    cores::on_all(2000..2002, |seed| {
        let first = cluster_harness::run(seed, None).expect("the seed is good").trace;
        let second = cluster_harness::run(seed, None).expect("the seed is good").trace;
        assert_eq!(first, second, "seed {seed} ran in two ways");
    });
}
