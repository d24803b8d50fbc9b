//! Metrics and health, as those who scrape them see them.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::time::Instant;

use duramen_client::{Client, Connection, NewTopic, Options};
use duramen_protocol::wire::RecordData;

use super::{Node, PATIENCE, assert_serves, fetch_of_all, http_get, produce_of};

/// Starts a node that serves metrics. Returns it with their address.
fn start(directory: &std::path::Path, more: &[&str]) -> (Node, String) {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let http = port.to_string();
    (Node::start(directory, &[&["--http", &http][..], more].concat()), http)
}

/// Returns the rows of a scrape: names with labels, and values. Everything is in the text format of `OpenMetrics`.
fn scrape(http: &str) -> BTreeMap<String, f64> {
    let answer = http_get(http, "/metrics");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.contains("openmetrics-text"), "{head}");
    assert!(body.ends_with("# EOF\n"));
    let mut rows = BTreeMap::new();
    let mut family = "";
    for line in body.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            family = help.split_once(' ').unwrap().0;
            assert!(help.ends_with('.'), "{line}");
        } else if !line.starts_with('#') {
            let (name, value) = line.rsplit_once(' ').unwrap();
            assert!(name.starts_with(family), "{line} is not of {family}");
            let value = value.parse::<f64>().unwrap();
            assert!(rows.insert(name.to_owned(), value).is_none(), "{name} comes once");
        }
    }
    rows
}

fn is(rows: &BTreeMap<String, f64>, name: &str, wanted: f64) -> bool {
    rows.get(name).is_some_and(|is| (is - wanted).abs() < 1e-9)
}

/// Scrapes until a row has a value: a census in the last second is new enough.
fn wait_for(http: &str, name: &str, wanted: f64) -> BTreeMap<String, f64> {
    let until = Instant::now() + PATIENCE;
    loop {
        let rows = scrape(http);
        if is(&rows, name, wanted) {
            return rows;
        }
        assert!(Instant::now() < until, "{name} is {:?}, not {wanted}", rows.get(name));
    }
}

#[test]
fn metrics_and_health_are_served_where_asked() {
    let directory = tempfile::tempdir().unwrap();
    let (node, http) = start(directory.path(), &["--set", "metrics.kafka.names.enable=false"]);
    assert_serves(&mut node.connect(), 1);
    // The node says about once a second how it stands.
    for path in ["/livez", "/readyz", "/healthz"] {
        let until = Instant::now() + PATIENCE;
        while !http_get(&http, path).starts_with("HTTP/1.1 200 OK") {
            assert!(Instant::now() < until, "{path}: {}", http_get(&http, path));
        }
    }
    let rows = scrape(&http);
    let is_ours = |name: &String| name.starts_with("duramen_") || name.starts_with("process_");
    assert!(rows.keys().all(is_ours), "{rows:?}");
    for name in ["sync_batches_count", "step_longest_us", "journal_live_bytes", "disk_free_bytes"] {
        assert!(rows.contains_key(&format!("duramen_{name}")), "{name}");
    }
    assert!(is(&rows, "duramen_connections_accepted_total", 1.0), "{rows:?}");
    assert!(is(&rows, "duramen_request_seconds_count{api=\"ApiVersions\"}", 1.0), "{rows:?}");
}

#[tokio::test]
async fn topics_partitions_and_groups_have_metrics_by_our_names_and_kafkas() {
    let directory = tempfile::tempdir().unwrap();
    let (node, http) = start(directory.path(), &["--set", "offsets.topic.num.partitions=3"]);
    let address = node.address.to_string();
    let client = Client::connect(Options::new([address.clone()])).await.unwrap();
    let topic = NewTopic {
        name: "t".to_owned(),
        partitions: 2,
        replication_factor: -1,
        ..NewTopic::default()
    };
    client.create_topic(&topic, false).await.unwrap();
    let connection = Connection::open(&address, client.options()).await.unwrap();
    let mut sent = 0;
    for bytes in [10, 20, 30] {
        let request = produce_of(bytes, false);
        let records = request.topic_data[0].partition_data[0].records.as_ref();
        sent += records.map_or(0, bytes::Bytes::len);
        connection.start(&request).await.unwrap().answer().await.unwrap();
    }
    let fetched = connection.start(&fetch_of_all()).await.unwrap().answer().await.unwrap();
    let got = fetched.responses[0].partitions[0].records.as_ref().map_or(0, RecordData::len);
    assert_eq!(got, sent);
    client.commit("g", &[("t".to_owned(), [(0, 1)].into())].into()).await.unwrap();
    let lag = "duramen_group_lag_records{group=\"g\",topic=\"t\",partition=\"0\"}";
    wait_for(&http, lag, 2.0);
    // The node copies its own figures out about once a second.
    let rows = wait_for(&http, "kafka_server_replicamanager_partitioncount", 5.0);
    let sent = sent as f64;
    for (name, wanted) in [
        ("duramen_topic_in_bytes_total{topic=\"t\"}", sent),
        ("duramen_topic_in_records_total{topic=\"t\"}", 3.0),
        ("duramen_topic_out_bytes_total{topic=\"t\"}", sent),
        ("duramen_topic_appends_total{topic=\"t\"}", 3.0),
        ("duramen_topic_log_bytes{topic=\"t\"}", sent),
        ("duramen_partition_high_watermark{topic=\"t\",partition=\"0\"}", 3.0),
        ("duramen_partition_high_watermark{topic=\"t\",partition=\"1\"}", 0.0),
        ("duramen_request_seconds_count{api=\"Produce\"}", 3.0),
        ("duramen_groups{kind=\"classic\",state=\"Empty\"}", 1.0),
        ("duramen_controller_active", 1.0),
        ("duramen_topic_partitions{topic=\"t\"}", 2.0),
        ("kafka_server_brokertopicmetrics_messagesin_total{topic=\"t\"}", 3.0),
        ("kafka_server_brokertopicmetrics_messagesin_total{topic=\"\"}", 3.0),
        ("kafka_server_brokertopicmetrics_bytesout_total{topic=\"t\"}", sent),
        ("kafka_server_replicamanager_leadercount", 5.0),
        ("kafka_server_replicamanager_partitioncount", 5.0),
        ("kafka_controller_kafkacontroller_activecontrollercount", 1.0),
        ("kafka_controller_kafkacontroller_offlinepartitionscount", 0.0),
        ("kafka_network_requestmetrics_requests_total{request=\"Produce\"}", 3.0),
        ("kafka_log_log_size{topic=\"t\",partition=\"0\"}", sent),
        ("kafka_brokers", 1.0),
        ("kafka_topic_partitions{topic=\"t\"}", 2.0),
        ("kafka_topic_partition_current_offset{topic=\"t\",partition=\"0\"}", 3.0),
        ("kafka_topic_partition_under_replicated_partition{topic=\"t\",partition=\"0\"}", 0.0),
        ("kafka_consumergroup_lag{consumergroup=\"g\",topic=\"t\",partition=\"0\"}", 2.0),
        ("kafka_consumergroup_lag_sum{consumergroup=\"g\",topic=\"t\"}", 2.0),
        ("kafka_consumergroup_members{consumergroup=\"g\"}", 0.0),
    ] {
        assert!(is(&rows, name, wanted), "{name} is {:?}, not {wanted}", rows.get(name));
    }
    client.commit("g", &[("t".to_owned(), [(0, 3)].into())].into()).await.unwrap();
    let rows = wait_for(&http, lag, 0.0);
    let age = "duramen_group_lag_seconds{group=\"g\",topic=\"t\",partition=\"0\"}";
    assert!(is(&rows, age, 0.0), "{:?}", rows.get(age));
}
