//! The document of bounds is what the constants say.

use std::fmt::Write as _;
use std::path::Path;

use duramen_broker::limits::table;

const HEAD: &str = "# Bounds of a node

Bounds that no setting changes. `crates/duramen-broker/src/limits.rs` has them and this text:
`DURAMEN_WRITE_DOCS=1 cargo test -p duramen-broker --test limits` writes the page.
[internals/limits.md](internals/limits.md) says how bounds act together, and names those of the process and of storage.

| Bound | Value | Meaning |
|---|---|---|
";

/// Separates the thousands of a number.
fn spaced(number: &str) -> String {
    let mut spaced = String::new();
    for (at, digit) in number.chars().enumerate() {
        if at > 0 && (number.len() - at).is_multiple_of(3) {
            spaced.push(',');
        }
        spaced.push(digit);
    }
    spaced
}

/// Writes a value in the largest unit that divides it.
fn shown(name: &str, value: &str) -> String {
    let number: u64 = value.parse().expect("bounds are positive");
    let units: &[(&str, u64)] = if name.contains("BYTES") {
        &[("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("bytes", 1)]
    } else if name.contains("_US") {
        &[("s", 1_000_000), ("ms", 1000), ("µs", 1)]
    } else if name.contains("_MS_") {
        &[("s", 1000), ("ms", 1)]
    } else {
        return spaced(value);
    };
    let (unit, size) = units.iter().find(|(_, size)| number.is_multiple_of(*size)).expect("1");
    format!("{} {unit}", spaced(&(number / size).to_string()))
}

#[test]
fn the_document_of_bounds_is_written_from_the_constants() {
    let mut page = HEAD.to_owned();
    for limit in table() {
        let text = limit.text.trim().replace("[`", "`").replace("`]", "`");
        let value = shown(limit.name, &limit.value);
        writeln!(page, "| `{}` | {value} | {text} |", limit.name).expect("memory");
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/limits.md");
    if std::env::var_os("DURAMEN_WRITE_DOCS").is_some() {
        std::fs::write(&path, &page).expect("the document is ours");
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(written, page, "run with DURAMEN_WRITE_DOCS=1 to write docs/limits.md");
}
