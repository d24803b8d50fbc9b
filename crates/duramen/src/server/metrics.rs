//! # Room card: metrics
//!
//! Purpose:    show a running server to its operator.
//! Owns:       every metric's name and help text (`metrics/` has those that are made for a scrape); the last figures of
//!             node and storage.
//! Interface:  [`Metrics`], [`Metrics::encode`].
//! Invariants: names start with `duramen_` and end with their unit, unless others share them (`process_*`, `kafka_*`);
//!             nothing here is ever read back to decide something.
//! Never:      a process-wide registry: two servers in one test process keep apart.
//! Tests:      below; `metrics/page.rs` writes `docs/metrics.md`; `tests/` scrapes a real server.
//! Start at:   [`Metrics::new`].

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use super::disk::RealDisk;
use super::metric_names::Names;
use super::peers::PeerMetrics;
use exposition::{Def, Kind, Table, Value};
pub use latencies::Latencies;
use process::Process;
pub(crate) use tallies::Draft;
pub use tallies::Tallies;

mod exposition;
mod kafka_names;
mod lags;
mod latencies;
#[cfg(test)]
mod page;
mod process;
mod tallies;

/// Shortest time over which the busy part of the node's thread is taken.
const BUSY_MIN: Duration = Duration::from_secs(1);

static BUSY: Def = Def {
    name: "duramen_node_busy_ratio",
    kind: Kind::Gauge,
    labels: &[],
    help: "Part of the time since the last scrape that the node's thread was busy; 1 is all it can do",
};

/// Gauges of the registry that have a name of Kafka's, too.
static GAUGES: [Def; 4] = [
    gauge_def("duramen_connections"),
    gauge_def("duramen_partitions"),
    gauge_def("duramen_partitions_under_replicated"),
    gauge_def("duramen_groups_failed"),
];

const fn gauge_def(name: &'static str) -> Def {
    Def { name, kind: Kind::Gauge, labels: &[], help: "" }
}

/// The metrics of one server.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    figures: Arc<Figures>,
    process: Process,
    has_kafka_names: AtomicBool,
    /// The last reading of the busy time, with the part of the time that it made.
    busy_before: Mutex<(Instant, f64, f64)>,
    /// Clients' connections.
    pub network: NetworkMetrics,
    /// Work of the node's threads.
    pub threads: ThreadMetrics,
    /// Passes over the segments.
    pub scrubbing: ScrubMetrics,
    /// Traffic with other nodes.
    pub peers: PeerMetrics,
    /// Calls of the native API.
    pub native: NativeMetrics,
    /// Times of requests.
    pub latencies: Latencies,
    /// Metrics by topic, partition and group.
    pub tallies: Tallies,
}

/// Connections of clients, and the bytes on them.
#[derive(Debug)]
pub struct NetworkMetrics {
    /// Connections accepted.
    pub connections_accepted: Counter,
    /// Connections refused at the limit.
    pub connections_refused: Counter,
    /// Clients that made no TLS handshake.
    pub tls_handshakes_failed: Counter,
    /// Clients that have shown who they are.
    pub logins: Counter,
    /// Clients that were not who they said.
    pub logins_failed: Counter,
    /// Connections closed because their clients did not show again who they are.
    pub logins_expired: Counter,
    /// Readings of the keys of tokens that failed.
    pub token_keys_failed: Counter,
    /// Reloads of certificates that were refused.
    pub tls_reload_failed: Counter,
    /// Connections closed for bytes that make no sense.
    pub frames_malformed: Counter,
    /// Requests that reached the node.
    pub requests: Counter,
    /// Bytes of requests.
    pub received_bytes: Counter,
    /// Bytes of records sent from files.
    pub fetch_bytes: Counter,
    /// Of these, bytes that had to be read from the medium first.
    pub fetch_cold_bytes: Counter,
    /// Connections open now.
    pub connections: Gauge,
    /// Bytes of requests that wait for their response.
    pub in_flight_bytes: Gauge,
}

/// Turns of the node's thread, and work of storage's threads.
#[derive(Debug)]
pub struct ThreadMetrics {
    /// Time that the node's thread was busy, in seconds.
    pub node_busy_seconds: Counter<f64, AtomicU64>,
    /// Events a turn of the node's thread.
    pub turn_events: Histogram,
    /// Batches in a journal sync.
    pub sync_batches: Histogram,
    /// Time of journal syncs, in seconds.
    pub sync_seconds: Histogram,
    /// Time of syncs of payload outside the journal, in seconds.
    pub payload_sync_seconds: Histogram,
    /// Time of the syncs of one replica's checkpoint, in seconds.
    pub checkpoint_sync_seconds: Histogram,
    /// Time of slices of background work on the storage thread, in seconds.
    pub maintain_seconds: Histogram,
    /// The longest single step of the node, in microseconds.
    pub step_longest_us: Gauge,
    /// Directories that starts have set aside and nobody has dropped.
    pub set_aside: Gauge,
    /// The longest turn of the node's thread, in microseconds.
    pub turn_longest_us: Gauge,
}

/// Passes of the scrubber.
#[derive(Debug)]
pub struct ScrubMetrics {
    /// Bytes of segments that were read from the medium to be checked.
    pub bytes: Counter,
    /// Times that a segment was found to be damaged by that.
    pub damage_found: Counter,
    /// Times that all segments were read.
    pub passes: Counter,
    /// Time when all segments were last read, in seconds since 1970.
    pub passed_seconds: Gauge,
}

/// A label of a metric.
type Labels = Vec<(&'static str, String)>;

/// Calls of the native API, by operation.
#[derive(Debug)]
pub struct NativeMetrics {
    calls: Family<Labels, Counter>,
    seconds: Family<Labels, Histogram>,
    streams: Family<Labels, Gauge>,
    /// Reads that wait for more.
    pub reads_waiting: Gauge,
}

/// The newest figures of node and storage, put here by their threads.
#[derive(Debug, Default)]
struct Figures {
    storage: Mutex<duramen_storage::storage::Metrics>,
    node: Mutex<NodeFigures>,
}

/// Figures of the node, as name, help and value.
type NodeFigures = Vec<Figure>;

/// One number of the node's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Figure {
    /// Name without prefix; a counter's has no `_total`.
    pub name: &'static str,
    /// One sentence.
    pub help: &'static str,
    /// True if the number only rises.
    pub is_counter: bool,
    /// The number.
    pub value: u64,
}

impl NetworkMetrics {
    fn new(of: &mut Names) -> Self {
        Self {
            connections_accepted: of
                .make("connections_accepted", "Connections that the node accepted"),
            connections_refused: of
                .make("connections_refused", "Connections that the node refused at a limit"),
            tls_handshakes_failed: of
                .make("tls_handshakes_failed", "Connections that ended without a TLS handshake"),
            logins: of.make("logins", "Clients that have shown who they are, by SASL"),
            logins_failed: of.make("logins_failed", "Clients that were not who they said, by SASL"),
            logins_expired: of.make(
                "logins_expired",
                "Connections that the node closed because the client did not show again who it is",
            ),
            token_keys_failed: of.make(
                "token_keys_failed",
                "Readings of the keys of tokens that failed; the node goes on with those read last",
            ),
            tls_reload_failed: of.make(
                "tls_reload_failed",
                "Changes of certificates that the node refused; it goes on with the last good ones",
            ),
            frames_malformed: of.make(
                "frames_malformed",
                "Connections that the node closed because of malformed requests",
            ),
            requests: of.make("requests", "Requests that connections handed to the node"),
            received_bytes: of.make("received_bytes", "Bytes of requests that clients sent"),
            fetch_bytes: of.make("fetch_bytes", "Bytes of records in Fetch responses"),
            fetch_cold_bytes: of.make(
                "fetch_cold_bytes",
                "Bytes of records that the node read from the disk for a Fetch response",
            ),
            connections: of.make("connections", "Open connections"),
            in_flight_bytes: of
                .make("in_flight_bytes", "Bytes of requests that wait for their response"),
        }
    }
}

impl ThreadMetrics {
    fn new(of: &mut Names) -> Self {
        Self {
            node_busy_seconds: of.make(
                "node_busy_seconds",
                "Time that the node's thread spent in its turns, in seconds; a second in a second is all it can do",
            ),
            turn_events: of.counts("turn_events", "Events in one turn of the node's thread"),
            sync_batches: of
                .counts("sync_batches", "Record batches that one sync of the journal made durable"),
            sync_seconds: of
                .seconds("sync_seconds", "Duration of a sync of the journal, in seconds"),
            payload_sync_seconds: of.seconds(
                "payload_sync_seconds",
                "Duration of a sync of batches outside the journal, in seconds",
            ),
            checkpoint_sync_seconds: of.seconds(
                "checkpoint_sync_seconds",
                "Duration of the syncs of one replica's checkpoint, in seconds",
            ),
            maintain_seconds: of.seconds(
                "maintain_seconds",
                "Duration of one slice of the storage thread's background work, in seconds",
            ),
            step_longest_us: of.make(
                "step_longest_us",
                "Longest step of the node's thread since its start, in microseconds",
            ),
            set_aside: of.make(
                "set_aside",
                "Directories of batches that starts set aside and no operator has dropped",
            ),
            turn_longest_us: of.make(
                "turn_longest_us",
                "Longest turn of the node's thread since its start, in microseconds",
            ),
        }
    }
}

impl ScrubMetrics {
    fn new(of: &mut Names) -> Self {
        Self {
            bytes: of.make(
                "scrubbed_bytes",
                "Bytes of segments that the scrubber read from the disk and checked",
            ),
            damage_found: of.make(
                "scrub_damage_found",
                "Times that the scrubber found a segment damaged on the disk",
            ),
            passes: of.make("scrub_passes", "Passes of the scrubber over all segments"),
            passed_seconds: of.make(
                "scrub_passed_seconds",
                "Time of the scrubber's last complete pass, in seconds since 1970; 0 before the first",
            ),
        }
    }
}

impl NativeMetrics {
    fn new(of: &mut Names) -> Self {
        Self {
            calls: of.make(
                "native_calls",
                "Calls of the native API that ended, by operation and outcome: ok, the slug of a problem, or gone \
                 where the client went first",
            ),
            seconds: of.seconds_by(
                "native_call_seconds",
                "Time until the answer to a call of the native API begins, in seconds; an open stream has none",
            ),
            streams: of.make("native_streams", "Open streams of the native API, by operation"),
            reads_waiting: of.make(
                "native_reads_waiting",
                "Reads of the native API that wait at the end of a log or queue",
            ),
        }
    }

    /// Counts a call that ended, with the time that it took if it was no stream.
    pub(crate) fn count(&self, operation: &str, outcome: &str, time: Option<Duration>) {
        let labels = vec![("operation", operation.to_owned()), ("outcome", outcome.to_owned())];
        self.calls.get_or_create(&labels).inc();
        if let Some(time) = time {
            self.seconds.get_or_create(&labels).observe(time.as_secs_f64());
        }
    }

    /// Returns the number of an operation's open streams.
    pub(crate) fn streams_of(&self, operation: &str) -> Gauge {
        self.streams.get_or_create_owned(&vec![("operation", operation.to_owned())])
    }
}

impl Metrics {
    /// Returns all metrics, at zero.
    pub fn new() -> Self {
        let figures = Arc::new(Figures::default());
        let mut names = Names::default();
        let network = NetworkMetrics::new(&mut names);
        let threads = ThreadMetrics::new(&mut names);
        let scrubbing = ScrubMetrics::new(&mut names);
        let peers = PeerMetrics::new(&mut names);
        let native = NativeMetrics::new(&mut names);
        let mut registry = names.into_registry();
        registry.register_collector(Box::new(Arc::clone(&figures)));
        Self {
            registry,
            figures,
            process: Process::new(),
            has_kafka_names: AtomicBool::new(true),
            busy_before: Mutex::new((Instant::now(), 0.0, 0.0)),
            network,
            threads,
            scrubbing,
            peers,
            native,
            latencies: Latencies::new(),
            tallies: Tallies::default(),
        }
    }

    /// Sets storage's newest figures.
    pub fn set_storage(&self, figures: duramen_storage::storage::Metrics) {
        *self.figures.storage.lock().unwrap_or_else(PoisonError::into_inner) = figures;
    }

    /// Sets the node's newest figures.
    pub fn set_node(&self, figures: Vec<Figure>) {
        *self.figures.node.lock().unwrap_or_else(PoisonError::into_inner) = figures;
    }

    /// Sets the disk whose space is shown.
    pub fn set_disk(&self, disk: RealDisk) {
        self.process.set_disk(disk);
    }

    /// Returns everything in the text format of `OpenMetrics`, which Prometheus reads. Call it where it does no harm to
    /// wait.
    pub fn encode(&self) -> Result<String, fmt::Error> {
        let mut text = String::new();
        encode_registry(&mut text, &self.registry)?;
        exposition::encode(&mut text, self.tables())?;
        encode_eof(&mut text)?;
        Ok(text)
    }

    /// Returns the metrics that are made for each scrape.
    fn tables(&self) -> Vec<Table> {
        let mut all = self.process.tables();
        all.push(self.latencies.table());
        all.push(Table::one(&BUSY, Value::Real(self.busy_ratio())));
        all.extend(self.tallies.tables());
        if self.has_kafka_names.load(Ordering::Relaxed) {
            let mut ours = self.gauges();
            ours.append(&mut all);
            let kafkas = kafka_names::tables(&ours, &self.latencies.recent());
            all = ours.split_off(GAUGES.len());
            all.extend(kafkas);
        }
        all
    }

    /// Turns off the names that dashboards for Apache Kafka ask for, or on again.
    pub fn set_kafka_names(&self, is_on: bool) {
        self.has_kafka_names.store(is_on, Ordering::Relaxed);
    }

    /// Returns the gauges of node and clients that have a name of Kafka's, too.
    fn gauges(&self) -> Vec<Table> {
        let connections = self.network.connections.get();
        let node = self.figures.node.lock().unwrap_or_else(PoisonError::into_inner);
        let value = |name: &str| {
            let figure = node.iter().find(|it| name.strip_prefix("duramen_") == Some(it.name));
            figure.map_or_else(|| u64::try_from(connections).unwrap_or(0), |it| it.value)
        };
        GAUGES.iter().map(|def| Table::one(def, Value::Whole(value(def.name)))).collect()
    }

    /// Returns the part of the time since the last scrape that the node's thread was busy.
    fn busy_ratio(&self) -> f64 {
        let busy = self.threads.node_busy_seconds.get();
        let mut before = self.busy_before.lock().unwrap_or_else(PoisonError::into_inner);
        let (then, was_busy, ratio) = *before;
        let passed = then.elapsed();
        if passed < BUSY_MIN {
            return ratio;
        }
        let ratio = ((busy - was_busy) / passed.as_secs_f64()).clamp(0.0, 1.0);
        *before = (Instant::now(), busy, ratio);
        ratio
    }
}

/// Returns the metrics that are made for each scrape, as they are documented.
#[cfg(test)]
fn defs() -> impl Iterator<Item = &'static Def> {
    let all = process::DEFS.iter().chain(&latencies::DEFS);
    all.chain([&BUSY]).chain(tallies::defs()).chain(lags::defs())
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Collector for Figures {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let storage = *self.storage.lock().unwrap_or_else(PoisonError::into_inner);
        let node = self.node.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for figure in storage_figures(&storage).into_iter().chain(node) {
            let Figure { name, help, is_counter, value } = figure;
            if is_counter {
                encode_one(&mut encoder, name, help, &ConstCounter::new(value))?;
            } else {
                let value = i64::try_from(value).unwrap_or(i64::MAX);
                encode_one(&mut encoder, name, help, &ConstGauge::new(value))?;
            }
        }
        Ok(())
    }
}

fn encode_one(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    metric: &impl EncodeMetric,
) -> fmt::Result {
    // The registry puts a full stop after the help of its own metrics, but not after a collector's.
    let help = format!("{help}.");
    metric.encode(encoder.encode_descriptor(name, &help, None, metric.metric_type())?)
}

fn storage_figures(storage: &duramen_storage::storage::Metrics) -> Vec<Figure> {
    let counter = |name, help, value| Figure { name, help, is_counter: true, value };
    let gauge = |name, help, value| Figure { name, help, is_counter: false, value };
    vec![
        counter("journal_rounds", "Rounds that the node wrote to the journal", storage.rounds),
        counter(
            "appended_batches",
            "Record batches that the node wrote to the log",
            storage.batches,
        ),
        counter(
            "appended_bytes",
            "Bytes of record batches that the node wrote to segments",
            storage.segment_bytes,
        ),
        counter(
            "journal_bytes",
            "Bytes that the node wrote to the journal, with padding",
            storage.journal_bytes,
        ),
        counter(
            "checkpoints",
            "Checkpoints of replicas that the node completed",
            storage.checkpoints,
        ),
        gauge(
            "journal_live_bytes",
            "Bytes of the journal that no checkpoint covers yet",
            storage.journal_live_bytes,
        ),
        gauge("journal_size_bytes", "Size of the journal, in bytes", storage.journal_size_bytes),
        gauge("replicas", "Replicas in the node's storage", storage.replicas),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_metric_has_a_help_text_and_comes_once() {
        let metrics = Metrics::new();
        metrics.threads.sync_batches.observe(7.0);
        metrics.set_node(vec![Figure {
            name: "groups_failed",
            help: "Groups that failed",
            is_counter: false,
            value: 3,
        }]);
        let text = metrics.encode().unwrap();
        let names = |kind: &str| -> Vec<&str> {
            let lines = text.lines().filter_map(|line| line.strip_prefix(kind));
            lines.map(|line| line.split(' ').next().unwrap()).collect()
        };
        let help = names("# HELP ");
        assert_eq!(help, names("# TYPE "));
        let mut unique = help.clone();
        unique.sort_unstable();
        unique.dedup();
        assert_eq!(unique.len(), help.len());
        let is_ours =
            |name: &&str| ["duramen_", "process_", "kafka_"].iter().any(|it| name.starts_with(it));
        assert!(help.iter().all(is_ours), "{help:?}");
        assert!(text.contains("\nduramen_groups_failed 3\n"), "{text}");
        assert!(text.contains("duramen_sync_batches_count 1"), "{text}");
        assert!(text.contains("duramen_appended_bytes_total 0"), "{text}");
    }
}
