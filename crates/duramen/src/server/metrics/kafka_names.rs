//! # Room card: Kafka's names
//!
//! Purpose:    metrics under the names that dashboards and alerts for Apache Kafka ask for.
//! Owns:       [`NAMES`], the one table of these names.
//! Interface:  [`tables`].
//! Invariants: every row is made from a metric of ours, in the same scrape. A name that cannot be filled is left out.
//! Never:      a figure of its own.
//! Tests:      below; `monitoring/` compares the table with dashboards.
//! Start at:   [`NAMES`].
//!
//! Names are of two programs. The JMX exporter makes `kafka_server_*` and the like from Apache Kafka's own metrics, by
//! the rules that Strimzi ships. `kafka_exporter` asks a cluster by Kafka's protocol. Both have labels of their own.

use std::collections::HashMap;

use super::exposition::{Kind, Labels, Spread, Table, Value};

/// Way in which the rows of a metric are made from one of ours.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Form {
    /// The same rows.
    Same,
    /// The same rows, and one of all topics, with an empty label.
    WithTotal,
    /// 1 where the row of ours is below that of another metric, else 0.
    Below(&'static str),
    /// 1 where the row of ours equals that of another metric, else 0.
    Equals(&'static str),
    /// Count of a histogram's values, by API; Apache Kafka counts each Fetch of a client twice.
    Count,
    /// Quantiles of a histogram, in milliseconds.
    Quantiles,
    /// A part of 1 that is left of a part of 1.
    LeftOfOne,
    /// The role of the node in the metadata's group, as a label.
    Role,
    /// Always this number.
    Always(u64),
}

/// A name of Apache Kafka's world.
#[derive(Debug)]
pub(crate) struct KafkaName {
    /// That of a counter has no `_total`.
    pub name: &'static str,
    pub kind: Kind,
    /// Our metric.
    pub of: &'static str,
    pub form: Form,
}

const fn counter(name: &'static str, of: &'static str, form: Form) -> KafkaName {
    KafkaName { name, kind: Kind::Counter, of, form }
}

const fn gauge(name: &'static str, of: &'static str, form: Form) -> KafkaName {
    KafkaName { name, kind: Kind::Gauge, of, form }
}

/// Our labels that have other names there.
const LABELS: [(&str, &str, &str); 3] = [
    ("kafka_consumergroup_", "group", "consumergroup"),
    ("kafka_broker_info", "broker", "id"),
    ("kafka_network_", "api", "request"),
];

/// The quantiles that Apache Kafka gives of a histogram.
const QUANTILES: [(f64, &str); 6] = [
    (0.5, "0.50"),
    (0.75, "0.75"),
    (0.95, "0.95"),
    (0.98, "0.98"),
    (0.99, "0.99"),
    (0.999, "0.999"),
];

/// Apache Kafka's name for a Fetch that is not of a follower.
const FETCH_OF_CONSUMERS: &str = "FetchConsumer";

/// All names.
#[rustfmt::skip]
pub(crate) static NAMES: &[KafkaName] = &[
    // As the JMX exporter makes them from Apache Kafka's brokers, by Strimzi's rules.
    counter("kafka_server_brokertopicmetrics_bytesin", "duramen_topic_in_bytes", Form::WithTotal),
    counter("kafka_server_brokertopicmetrics_bytesout", "duramen_topic_out_bytes", Form::WithTotal),
    counter("kafka_server_brokertopicmetrics_messagesin", "duramen_topic_in_records", Form::WithTotal),
    counter("kafka_server_brokertopicmetrics_totalproducerequests", "duramen_topic_appends", Form::WithTotal),
    counter("kafka_server_brokertopicmetrics_failedproducerequests", "duramen_topic_appends_refused", Form::WithTotal),
    counter("kafka_server_brokertopicmetrics_totalfetchrequests", "duramen_topic_reads", Form::WithTotal),
    counter("kafka_server_brokertopicmetrics_failedfetchrequests", "duramen_topic_reads_refused", Form::WithTotal),
    counter("kafka_network_requestmetrics_requests", "duramen_request_seconds", Form::Count),
    gauge("kafka_network_requestmetrics_totaltimems_count", "duramen_request_seconds", Form::Count),
    gauge("kafka_network_requestmetrics_totaltimems", "duramen_request_seconds", Form::Quantiles),
    gauge("kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent", "duramen_node_busy_ratio", Form::LeftOfOne),
    gauge("kafka_server_socket_server_metrics_connection_count", "duramen_connections", Form::Same),
    gauge("kafka_server_replicamanager_partitioncount", "duramen_partitions", Form::Same),
    gauge("kafka_server_replicamanager_leadercount", "duramen_partitions_led", Form::Same),
    gauge("kafka_server_replicamanager_underreplicatedpartitions", "duramen_partitions_under_replicated", Form::Same),
    gauge("kafka_server_replicamanager_underminisrpartitioncount", "duramen_partitions_under_min_isr", Form::Same),
    gauge("kafka_server_replicamanager_atminisrpartitioncount", "duramen_partitions_at_min_isr", Form::Same),
    gauge("kafka_server_replicamanager_offlinereplicacount", "duramen_groups_failed", Form::Same),
    gauge("kafka_cluster_partition_replicascount", "duramen_partition_replicas", Form::Same),
    gauge("kafka_cluster_partition_insyncreplicascount", "duramen_partition_in_sync_replicas", Form::Same),
    gauge("kafka_cluster_partition_underreplicated", "duramen_partition_in_sync_replicas", Form::Below("duramen_partition_replicas")),
    gauge("kafka_cluster_partition_underminisr", "duramen_partition_in_sync_replicas", Form::Below("duramen_partition_in_sync_replicas_min")),
    gauge("kafka_cluster_partition_atminisr", "duramen_partition_in_sync_replicas", Form::Equals("duramen_partition_in_sync_replicas_min")),
    gauge("kafka_log_log_size", "duramen_partition_log_bytes", Form::Same),
    gauge("kafka_log_logmanager_offlinelogdirectorycount", "duramen_disk_total_bytes", Form::Always(0)),
    gauge("kafka_controller_kafkacontroller_activecontrollercount", "duramen_controller_active", Form::Same),
    gauge("kafka_controller_kafkacontroller_offlinepartitionscount", "duramen_cluster_partitions_leaderless", Form::Same),
    gauge("kafka_controller_kafkacontroller_globalpartitioncount", "duramen_cluster_partitions", Form::Same),
    gauge("kafka_controller_kafkacontroller_globaltopiccount", "duramen_cluster_topics", Form::Same),
    gauge("kafka_controller_kafkacontroller_preferredreplicaimbalancecount", "duramen_cluster_partitions_not_preferred", Form::Same),
    gauge("kafka_controller_kafkacontroller_fencedbrokercount", "duramen_cluster_nodes_unheard", Form::Same),
    counter("kafka_controller_controllerstats_uncleanleaderelections", "duramen_controller_active", Form::Always(0)),
    gauge("kafka_server_raftmetrics_current_leader", "duramen_metadata_leader", Form::Same),
    gauge("kafka_server_raftmetrics_current_epoch", "duramen_metadata_term", Form::Same),
    gauge("kafka_server_raftmetrics_high_watermark", "duramen_metadata_end_offset", Form::Same),
    gauge("kafka_server_raftmetrics_current_state", "duramen_controller_active", Form::Role),
    gauge("kafka_server_kafkaserver_linux_disk_read_bytes", "duramen_process_read_bytes", Form::Same),
    gauge("kafka_server_kafkaserver_linux_disk_write_bytes", "duramen_process_written_bytes", Form::Same),
    // As kafka_exporter makes them.
    gauge("kafka_brokers", "duramen_cluster_nodes", Form::Same),
    gauge("kafka_broker_info", "duramen_cluster_node_info", Form::Same),
    gauge("kafka_topic_partitions", "duramen_topic_partitions", Form::Same),
    gauge("kafka_topic_partition_current_offset", "duramen_partition_high_watermark", Form::Same),
    gauge("kafka_topic_partition_oldest_offset", "duramen_partition_log_start_offset", Form::Same),
    gauge("kafka_topic_partition_replicas", "duramen_partition_replicas", Form::Same),
    gauge("kafka_topic_partition_in_sync_replica", "duramen_partition_in_sync_replicas", Form::Same),
    gauge("kafka_topic_partition_leader", "duramen_partition_leader", Form::Same),
    gauge("kafka_topic_partition_leader_is_preferred", "duramen_partition_leader_is_preferred", Form::Same),
    gauge("kafka_topic_partition_under_replicated_partition", "duramen_partition_in_sync_replicas", Form::Below("duramen_partition_replicas")),
    gauge("kafka_consumergroup_current_offset", "duramen_group_offset", Form::Same),
    gauge("kafka_consumergroup_current_offset_sum", "duramen_group_topic_offsets", Form::Same),
    gauge("kafka_consumergroup_lag", "duramen_group_lag_records", Form::Same),
    gauge("kafka_consumergroup_lag_sum", "duramen_group_topic_lag_records", Form::Same),
    gauge("kafka_consumergroup_members", "duramen_group_members", Form::Same),
];

/// Makes the tables of Kafka's names from ours. `recent` has the times of the requests of the last minute or two: the
/// quantiles are of these.
pub(crate) fn tables(ours: &[Table], recent: &Table) -> Vec<Table> {
    let by_name: HashMap<&str, &Table> = ours.iter().map(|it| (it.name.as_str(), it)).collect();
    NAMES.iter().filter_map(|it| it.table(&by_name, recent)).collect()
}

impl KafkaName {
    /// Returns the names of the rows' labels.
    pub(crate) fn labels(&self, ours: &[&'static str]) -> Vec<&'static str> {
        let named = |own: &&'static str| {
            let other =
                LABELS.iter().find(|(of, from, _)| self.name.starts_with(of) && from == own);
            other.map_or(*own, |(.., to)| *to)
        };
        let more = match self.form {
            Form::Quantiles => Some("quantile"),
            Form::Role => Some("current_state"),
            _ => None,
        };
        ours.iter().map(named).chain(more).collect()
    }

    fn table(&self, ours: &HashMap<&str, &Table>, recent: &Table) -> Option<Table> {
        let source = ours.get(self.of)?;
        let mut table = Table {
            name: self.name.to_owned(),
            kind: self.kind,
            labels: self.labels(&source.labels),
            help: format!("See {}", self.of),
            rows: Vec::with_capacity(source.rows.len()),
        };
        match self.form {
            Form::Same => table.rows.clone_from(&source.rows),
            Form::WithTotal => {
                table.rows.clone_from(&source.rows);
                let sum = source.rows.iter().map(|(_, value)| whole(value)).sum();
                table.push(&["".into()].into(), Value::Whole(sum));
            }
            Form::Below(other) => compare(&mut table, source, ours.get(other)?, |a, b| a < b),
            Form::Equals(other) => {
                compare(&mut table, source, ours.get(other)?, |a, b| (a - b).abs() < 0.5);
            }
            Form::Count => {
                for (labels, count) in counts(source) {
                    table.push(&labels, Value::Whole(count));
                }
            }
            Form::Quantiles => {
                for (api, spread) in spreads(recent) {
                    for (quantile, name) in QUANTILES {
                        let value = spread.quantile(quantile) * 1000.0;
                        table.push(&[api.clone(), name.into()].into(), Value::Real(value));
                    }
                }
            }
            Form::LeftOfOne => {
                for (labels, value) in &source.rows {
                    table.push(labels, Value::Real((1.0 - number(value)).clamp(0.0, 1.0)));
                }
            }
            Form::Role => {
                let leads = source.rows.first().is_some_and(|(_, value)| number(value) > 0.0);
                let role = if leads { "leader" } else { "follower" };
                table.push(&[role.into()].into(), Value::Whole(1));
            }
            Form::Always(value) => table.push(&Labels::default(), Value::Whole(value)),
        }
        Some(table)
    }
}

fn whole(value: &Value) -> u64 {
    if let Value::Whole(number) = value { *number } else { 0 }
}

fn number(value: &Value) -> f64 {
    match value {
        Value::Whole(number) => *number as f64,
        Value::Real(number) => *number,
        Value::Spread(spread) => spread.sum,
    }
}

/// Compares the rows of two metrics that have the same rows.
fn compare(table: &mut Table, one: &Table, other: &Table, holds: fn(f64, f64) -> bool) {
    for ((labels, value), (_, with)) in one.rows.iter().zip(&other.rows) {
        table.push(labels, Value::Whole(holds(number(value), number(with)).into()));
    }
}

/// Returns the histograms by API. Apache Kafka has a Fetch of consumers twice: with those of followers, and alone.
fn spreads(table: &Table) -> impl Iterator<Item = (std::sync::Arc<str>, &Spread)> {
    table.rows.iter().flat_map(|(labels, value)| {
        let Value::Spread(spread) = value else { unreachable!("a histogram has spreads") };
        let also = (&*labels[0] == "Fetch").then(|| FETCH_OF_CONSUMERS.into());
        std::iter::once(labels[0].clone()).chain(also).map(move |api| (api, spread))
    })
}

fn counts(table: &Table) -> impl Iterator<Item = (Labels, u64)> {
    spreads(table).map(|(api, spread)| ([api].into(), spread.buckets.iter().map(|it| it.1).sum()))
}

impl Spread {
    /// Returns about the value that this part of all values does not exceed: between the bounds of its bucket.
    fn quantile(&self, part: f64) -> f64 {
        let all: u64 = self.buckets.iter().map(|(_, count)| count).sum();
        let rank = part * all as f64;
        let (mut below, mut from) = (0.0, 0.0);
        for (bound, count) in &self.buckets {
            let in_bucket = *count as f64;
            if *count > 0 && below + in_bucket >= rank {
                // The last bucket has no bound: its values are at least as large as the bound before.
                let to = if *bound < f64::MAX { *bound } else { from };
                return from + (to - from) * ((rank - below) / in_bucket);
            }
            below += in_bucket;
            from = *bound;
        }
        0.0
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::exposition::label;
    use super::*;

    fn table(name: &str, labels: &[&'static str], rows: &[(&[&str], u64)]) -> Table {
        let row = |(values, number): &(&[&str], u64)| {
            (values.iter().map(|it| label(it)).collect(), Value::Whole(*number))
        };
        Table {
            name: name.to_owned(),
            kind: Kind::Gauge,
            labels: labels.to_vec(),
            help: String::new(),
            rows: rows.iter().map(row).collect(),
        }
    }

    fn times(fast: u64, slow: u64) -> Table {
        let buckets = vec![(0.001, fast), (0.002, 0), (0.004, slow), (f64::MAX, 0)];
        let mut times = table("duramen_request_seconds", &["api"], &[]);
        let spread = Spread { sum: 1.0, buckets };
        times.push(&[label("Fetch")].into(), Value::Spread(spread));
        times
    }

    /// Returns the rows of a metric, as a scrape would show them.
    fn shown(tables: &[Table], name: &str) -> Vec<String> {
        let found = tables.iter().find(|it| it.name == name).expect(name);
        let row = |(values, value): &(Labels, Value)| {
            let named = found.labels.iter().zip(&**values);
            let named: Vec<_> = named.map(|(name, value)| format!("{name}={value}")).collect();
            format!("{} {}", named.join(","), (number(value) * 1000.0).round() / 1000.0)
        };
        found.rows.iter().map(row).collect()
    }

    #[test]
    fn rows_have_the_labels_that_dashboards_ask_for() {
        let of_partition: &[&str] = &["topic", "partition"];
        let ours = [
            table("duramen_topic_in_bytes", &["topic"], &[(&["a"], 5), (&["b"], 7)]),
            table(
                "duramen_group_lag_records",
                &["group", "topic", "partition"],
                &[(&["g", "a", "0"], 3)],
            ),
            table(
                "duramen_partition_replicas",
                of_partition,
                &[(&["a", "0"], 3), (&["b", "0"], 3)],
            ),
            table(
                "duramen_partition_in_sync_replicas",
                of_partition,
                &[(&["a", "0"], 2), (&["b", "0"], 3)],
            ),
            table(
                "duramen_partition_in_sync_replicas_min",
                of_partition,
                &[(&["a", "0"], 2), (&["b", "0"], 2)],
            ),
            table("duramen_controller_active", &[], &[(&[], 1)]),
            times(10, 0),
        ];
        let all = tables(&ours, &times(99, 1));
        let bytes = shown(&all, "kafka_server_brokertopicmetrics_bytesin");
        assert_eq!(bytes, ["topic=a 5", "topic=b 7", "topic= 12"]);
        assert_eq!(
            shown(&all, "kafka_consumergroup_lag"),
            ["consumergroup=g,topic=a,partition=0 3"]
        );
        let under = shown(&all, "kafka_topic_partition_under_replicated_partition");
        assert_eq!(under, ["topic=a,partition=0 1", "topic=b,partition=0 0"]);
        let at_min = shown(&all, "kafka_cluster_partition_atminisr");
        assert_eq!(at_min, ["topic=a,partition=0 1", "topic=b,partition=0 0"]);
        assert_eq!(
            shown(&all, "kafka_server_raftmetrics_current_state"),
            ["current_state=leader 1"]
        );
        let requests = shown(&all, "kafka_network_requestmetrics_requests");
        assert_eq!(requests, ["request=Fetch 10", "request=FetchConsumer 10"]);
        let times = shown(&all, "kafka_network_requestmetrics_totaltimems");
        assert!(times.contains(&"request=Fetch,quantile=0.99 1".to_owned()), "{times:?}");
        assert!(times.contains(&"request=Fetch,quantile=0.999 3.8".to_owned()), "{times:?}");
    }

    #[test]
    fn every_name_comes_once() {
        let names: BTreeSet<_> = NAMES.iter().map(|it| it.name).collect();
        assert_eq!(names.len(), NAMES.len());
        assert!(names.iter().all(|it| !it.ends_with("_total")));
    }
}
