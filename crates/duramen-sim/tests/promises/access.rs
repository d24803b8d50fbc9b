//! Clusters that ask clients who they are, and judge them by rules that change.

use duramen_sim::cluster_harness::access;
use duramen_sim::cores;
use duramen_sim::failure::catching;

/// A first look; `./test full` goes on with hundreds. The first seed runs twice, and has to come to the same end.
const SEEDS: [u64; 4] = [1, 2, 3, 1];

#[test]
fn no_answer_is_against_the_rules() {
    let reports = cores::on_all(SEEDS, |seed| match catching(|| access::run(seed)) {
        Ok(report) => report,
        Err(failure) => {
            let command = format!("cargo sim --seed {seed} --scenario access");
            panic!("{}\nseed {seed}\ncommand: {command}", failure.what)
        }
    });
    assert_eq!(reports[0].trace, reports[3].trace, "seed 1 ran in two ways");
    let sum = |count: fn(&access::Report) -> u64| reports.iter().map(count).sum::<u64>();
    assert!(sum(|it| it.changes) > 100, "rules and users hardly change");
    assert!(sum(|it| it.logins) > 100 && sum(|it| it.shut) > 10, "users hardly come and go");
    assert!(sum(|it| it.allowed) > 500 && sum(|it| it.denied) > 500, "rules hardly matter");
}
