//! What documents say of tests, checked.

use std::fs::read_to_string;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns the number of tests that the last cell of a row names, all of which exist.
fn count_tests(row: &str) -> usize {
    let cell = row.trim_end_matches('|').rsplit('|').next().expect("a cell");
    let mut count = 0;
    for (path, name) in cell.split('`').filter_map(|it| it.split_once("::")) {
        let source = read_to_string(root().join(path)).expect(path);
        let is_there =
            ["fn", "def", "void"].iter().any(|it| source.contains(&format!("{it} {name}(")));
        assert!(is_there, "{path} has no test {name}");
        count += 1;
    }
    assert!(count > 0, "no test is named in {row}");
    count
}

#[test]
fn every_test_that_the_compatibility_page_names_exists() {
    let page = read_to_string(root().join("docs/compatibility.md")).unwrap();
    let rows = page.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| behav"));
    let count: usize = rows.map(count_tests).sum();
    assert!(count > 30, "only {count} tests were found: has the page another form now?");
}

#[test]
fn every_test_that_the_page_of_queues_names_exists() {
    let page = read_to_string(root().join("docs/internals/queues.md")).unwrap();
    let planted = read_to_string(root().join("crates/duramen-sim/src/planted.rs")).unwrap();
    let (_, section) = page.split_once("\n| Fault | Rule | Tests |\n|---|---|---|\n").unwrap();
    let rows: Vec<_> = section.lines().take_while(|line| line.starts_with("| ")).collect();
    let count: usize = rows.iter().map(|row| count_tests(row)).sum();
    assert!(rows.len() >= 25 && count > 50, "only {count} tests were found in {} rows", rows.len());
    let bugs: Vec<_> = rows.iter().flat_map(|row| row.split('*').skip(1).step_by(2)).collect();
    assert!(bugs.len() > 15, "only {bugs:?} were found");
    for bug in bugs {
        assert!(planted.contains(&format!("\"{bug}\"")), "no bug is planted that is called {bug}");
    }
}

#[test]
fn every_metric_that_dashboards_and_alerts_name_exists() {
    let page = read_to_string(root().join("docs/metrics.md")).unwrap();
    let dashboards = std::fs::read_dir(root().join("monitoring/dashboards")).unwrap();
    let mut paths: Vec<_> = dashboards.map(|it| it.unwrap().path()).collect();
    paths.extend(["rules.yml", "rules_test.yml"].map(|it| root().join("monitoring").join(it)));
    assert!(paths.len() > 5, "{paths:?}");
    let mut count = 0;
    for path in &paths {
        let text = read_to_string(path).unwrap();
        let words = text.split(|it: char| !it.is_ascii_alphanumeric() && it != '_' && it != ':');
        let is_metric =
            |it: &&str| ["duramen_", "kafka_", "process_"].iter().any(|of| it.starts_with(of));
        for name in words.filter(is_metric) {
            // A histogram has its buckets, its sum and its count.
            let parts = ["_bucket", "_sum", "_count"];
            let whole = parts.iter().find_map(|part| name.strip_suffix(part)).unwrap_or(name);
            let is_there = page.contains(&format!("`{name}`"))
                || page.contains(&format!("| `{whole}` | histogram |"));
            assert!(is_there, "{}: no metric is called {name}", path.display());
            count += 1;
        }
    }
    assert!(count > 150, "only {count} names were found");
}
