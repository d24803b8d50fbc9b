//! `docs/metrics.md`, written from the metrics themselves.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use super::Metrics;
use super::exposition::{Def, Kind};

const HEAD: &str = "# Metrics

This page lists every metric of `/metrics`, which a node serves with `--http` and beside the native API. A test writes the
page from the metrics themselves: `DURAMEN_WRITE_DOCS=1 cargo test -p duramen metrics`. The metrics that an operator
watches, and when to look closer, are in [operations.md](operations.md).

A histogram `x` has the series `x_bucket`, `x_sum` and `x_count`. A metric of seconds, bytes, milliseconds (`ms`) or microseconds (`us`) has its unit in its name.

";

/// A row of the page.
struct Listed {
    kind: String,
    labels: Vec<String>,
    help: String,
}

/// Returns the metrics of the registry, as a scrape shows them.
fn registered() -> BTreeMap<String, Listed> {
    let metrics = Metrics::new();
    metrics.native.count("op", "ok", Some(std::time::Duration::ZERO));
    let _streams = metrics.native.streams_of("op");
    let _ = metrics.peers.of(7);
    metrics.set_node(crate::server::figures::of(&duramen_broker::Metrics::default()));
    let mut text = String::new();
    super::encode_registry(&mut text, &metrics.registry).unwrap();
    let mut all: BTreeMap<String, Listed> = BTreeMap::new();
    let mut last = String::new();
    for line in text.lines() {
        if let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|it| it.split_once(' ')) {
            let help = help.trim_end_matches('.').to_owned();
            let listed = Listed { kind: String::new(), labels: Vec::new(), help };
            assert!(all.insert(name.to_owned(), listed).is_none(), "{name} comes once");
            name.clone_into(&mut last);
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            kind.clone_into(&mut all.get_mut(name).unwrap().kind);
        } else if let Some((_, labels)) = line.split_once('{') {
            let labels = labels.rsplit_once('}').unwrap().0.split(',');
            let labels = labels.map(|it| it.split_once('=').unwrap().0);
            let labels = labels.filter(|it| *it != "le").map(str::to_owned);
            all.get_mut(&last).unwrap().labels = labels.collect();
        }
    }
    all
}

fn listed(def: &Def) -> (String, Listed) {
    let kind = match def.kind {
        Kind::Counter => "counter",
        Kind::Gauge => "gauge",
        Kind::Histogram => "histogram",
    };
    let labels = def.labels.iter().map(|it| (*it).to_owned()).collect();
    let listed = Listed { kind: kind.to_owned(), labels, help: def.help.to_owned() };
    (def.name.to_owned(), listed)
}

fn render() -> String {
    let mut all = registered();
    for def in super::defs() {
        let (name, listed) = listed(def);
        assert!(all.insert(name, listed).is_none(), "{} comes once", def.name);
    }
    let mut text = HEAD.to_owned();
    text.push_str("| name | kind | labels | meaning |\n|---|---|---|---|\n");
    for (name, Listed { kind, labels, help }) in &all {
        let labels: Vec<_> = labels.iter().map(|it| format!("`{it}`")).collect();
        let suffix = if kind == "counter" { "_total" } else { "" };
        writeln!(text, "| `{name}{suffix}` | {kind} | {} | {help} |", labels.join(", ")).unwrap();
    }
    text
}

#[test]
fn the_page_of_metrics_is_as_the_code_says() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/metrics.md");
    let wanted = render();
    if std::env::var_os("DURAMEN_WRITE_DOCS").is_some() {
        std::fs::write(&path, &wanted).unwrap();
    }
    let page = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(page == wanted, "run with DURAMEN_WRITE_DOCS=1 to write docs/metrics.md");
}

#[test]
fn the_page_of_operations_names_only_metrics_that_there_are() {
    let page = include_str!("../../../../../docs/operations.md");
    let wanted = render();
    let names = page.split('`').skip(1).step_by(2).filter(|it| it.starts_with("duramen_"));
    let is_there = |name: &&str| name.ends_with('…') || wanted.contains(&format!("`{name}`"));
    let missing: Vec<_> = names.filter(|it| !is_there(it)).collect();
    assert!(missing.is_empty(), "no metric is called {missing:?}");
}
