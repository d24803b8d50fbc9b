//! `docs/metrics.md`, written from the metrics themselves.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use super::Metrics;
use super::exposition::{Def, Kind};
use super::kafka_names::{Form, KafkaName, NAMES};

const HEAD: &str = "# Metrics

This page lists every metric of `/metrics`, which a node serves with `--http` and beside the native API. A test writes the
page from the metrics themselves: `DURAMEN_WRITE_DOCS=1 cargo test -p duramen metrics`. The metrics that an operator
watches, and when to look closer, are in [operations.md](operations.md).

A histogram `x` has the series `x_bucket`, `x_sum` and `x_count`. A metric of seconds, bytes, milliseconds (`ms`) or
microseconds (`us`) has its unit in its name.

The last column has the names that dashboards and alerts for Apache Kafka ask for, with their labels where these have
other names: as the JMX exporter makes them by the rules of Strimzi (`kafka_server_*` and the like), and as
`kafka_exporter` does. They have the same rows; `metrics.kafka.names.enable=false` turns them off.
`kafka_server_brokertopicmetrics_*` has a row of all topics, too, without the label. `kafka_cluster_partition_underreplicated`
and its like are 1 or 0. Quantiles are of the requests of the last minute or two, and guessed within a bucket; Apache Kafka's
fade out over five minutes. Always 0 are `kafka_log_logmanager_offlinelogdirectorycount` and
`kafka_controller_controllerstats_uncleanleaderelections_total`: a node whose directory fails ends, and no replica leads
without all that was committed. Of the metrics in Strimzi's dashboards, there are no
`kafka_network_socketserver_networkprocessoravgidle_percent`, `kafka_server_raftchannelmetrics_*`, rates of
`kafka_server_raftmetrics_*`, and none of the JVM.

**How many rows there are** is bounded, by [limits.md](limits.md): `METRIC_TOPICS_MAX` and its like. The traffic of topics above
the bound is in a row whose topic is `…`. The first topics that a node saw keep their rows. Of offsets, those with the most
lag have rows.

**Who shows what**: the leader of a partition shows its figures, the coordinator of a group the group's, and the leader of the
metadata those of the cluster (`duramen_cluster_*`, `duramen_topic_partitions`). So a sum over all nodes is right. A node
counts when it is scraped, in parts of a tenth of a millisecond; a scrape less than a second later shows the same.

**Lag** is known where the coordinator's node has a replica of the partition, as with three nodes and three replicas. Of other
partitions `duramen_group_offset` is there, and `monitoring/rules.yml` subtracts it from `duramen_partition_high_watermark`.
A lag in seconds is the age of the first record that the group has not committed. The node reads no log for that: it notes the
high watermark at each scrape, and takes records to have come at a steady pace between two of them. What was there before the
first scrape is at least as old as that.

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

/// Returns the names of Kafka's world that are made from a metric, with the labels that they have in place of ours.
fn kafkas(name: &str) -> Vec<String> {
    let own = super::defs().find(|it| it.name == name).map_or(&[][..], |it| it.labels);
    let is_its = |it: &&KafkaName| it.of == name && !matches!(it.form, Form::Always(_));
    let shown = |it: &KafkaName| {
        let suffix = if it.kind == Kind::Counter { "_total" } else { "" };
        let labels = it.labels(own);
        let labels =
            if labels == own { String::new() } else { format!("{{{}}}", labels.join(",")) };
        format!("`{}{suffix}{labels}`", it.name)
    };
    NAMES.iter().filter(is_its).map(shown).collect()
}

fn render() -> String {
    let mut all = registered();
    for def in super::defs() {
        let (name, listed) = listed(def);
        assert!(all.insert(name, listed).is_none(), "{} comes once", def.name);
    }
    let mut text = HEAD.to_owned();
    text.push_str("| name | kind | labels | meaning | Kafka |\n|---|---|---|---|---|\n");
    for (name, Listed { kind, labels, help }) in &all {
        let labels: Vec<_> = labels.iter().map(|it| format!("`{it}`")).collect();
        let suffix = if kind == "counter" { "_total" } else { "" };
        let kafkas = kafkas(name).join(", ");
        writeln!(text, "| `{name}{suffix}` | {kind} | {} | {help} | {kafkas} |", labels.join(", "))
            .unwrap();
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
