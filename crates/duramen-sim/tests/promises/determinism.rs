//! The same seed gives the same run, to the last call of the disk.

use duramen_sim::storage_harness;

#[test]
fn the_same_seed_gives_the_same_trace() {
    let mut traces = Vec::new();
    for seed in 1000..1040 {
        let first = storage_harness::run(seed, None).expect("the seed is good").trace;
        let second = storage_harness::run(seed, None).expect("the seed is good").trace;
        assert_eq!(first, second, "seed {seed} ran in two ways");
        traces.push(first.hash());
    }
    traces.sort_unstable();
    traces.dedup();
    assert_eq!(traces.len(), 40, "different seeds give different runs");
}
