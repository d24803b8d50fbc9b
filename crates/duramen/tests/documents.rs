//! What documents say of tests, checked.

use std::path::Path;

#[test]
fn every_test_that_the_compatibility_page_names_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = std::fs::read_to_string(root.join("docs/compatibility.md")).unwrap();
    let rows = page.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| behav"));
    let mut count = 0;
    for row in rows {
        let shown_by = row.trim_end_matches('|').rsplit('|').next().unwrap();
        let named: Vec<_> = shown_by.split('`').filter_map(|it| it.split_once("::")).collect();
        assert!(!named.is_empty(), "no test is named in {row}");
        for (path, name) in named {
            let source = std::fs::read_to_string(root.join(path)).expect(path);
            let is_there =
                ["fn", "def", "void"].iter().any(|it| source.contains(&format!("{it} {name}(")));
            assert!(is_there, "{path} has no test {name}");
            count += 1;
        }
    }
    assert!(count > 30, "only {count} tests were found: has the page another form now?");
}
