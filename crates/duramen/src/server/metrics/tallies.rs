//! # Room card: tallies
//!
//! Purpose:    metrics by topic, partition and group, from the rows of a census.
//! Owns:       the sums of each topic, which only rise; the tables of the last census.
//! Interface:  [`Tallies::begin`], [`Draft::take`], [`Tallies::finish`]; [`Tallies::note_sent`].
//! Invariants: the number of rows is bounded. A topic's traffic is in its own row, or in that of the rest, and never in
//!             both. A partition's figures come from its leader alone, so that sums over all nodes are right.
//! Never:      a look at the node; lag of groups (see `lags`).
//! Tests:      below; `tests/server.rs`.
//! Start at:   [`Tallies::finish`].

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use duramen_broker::census::{Counted, Led, NodeCounted, ReplicaCounted, TopicCounted, Traffic};
use duramen_broker::limits::{METRIC_PARTITIONS_MAX, METRIC_TOPICS_MAX};
use duramen_storage::op::ReplicaId;

use super::exposition::{Def, Kind, Labels, Table, Value, label};
use super::lags::{self, Lags};

/// The label of all topics that have no row of their own: no topic can be called so.
const REST: &str = "…";

/// Time for which a census is new enough for another scrape.
const NEW_ENOUGH: Duration = Duration::from_secs(1);

const fn def(
    name: &'static str,
    kind: Kind,
    labels: &'static [&'static str],
    help: &'static str,
) -> Def {
    Def { name, kind, labels, help }
}

/// The metrics of topics' traffic, in the order of [`Sums::values`].
static OF_TOPICS: [Def; 7] = [
    def(
        "duramen_topic_in_bytes",
        Kind::Counter,
        &["topic"],
        "Bytes of batches that clients appended at leaders on this node",
    ),
    def(
        "duramen_topic_in_records",
        Kind::Counter,
        &["topic"],
        "Records that clients appended at leaders on this node",
    ),
    def(
        "duramen_topic_out_bytes",
        Kind::Counter,
        &["topic"],
        "Bytes of batches in responses of Fetch and ShareFetch",
    ),
    def(
        "duramen_topic_appends",
        Kind::Counter,
        &["topic"],
        "Batches that clients gave to replicas on this node, refused ones among them",
    ),
    def(
        "duramen_topic_appends_refused",
        Kind::Counter,
        &["topic"],
        "Batches of clients that replicas on this node refused at once, for another reason than a condition",
    ),
    def(
        "duramen_topic_reads",
        Kind::Counter,
        &["topic"],
        "Looks of Fetch requests at replicas on this node; a request that waits looks twice",
    ),
    def(
        "duramen_topic_reads_refused",
        Kind::Counter,
        &["topic"],
        "Looks of Fetch requests at replicas on this node that ended with an error",
    ),
];

static LOG_BYTES: Def = def(
    "duramen_topic_log_bytes",
    Kind::Gauge,
    &["topic"],
    "Size of the segments of the topic's replicas on this node, in bytes",
);

/// The metrics of partitions that this node leads, in the order of [`of_led`].
static OF_PARTITIONS: [Def; 7] = [
    def(
        "duramen_partition_high_watermark",
        Kind::Gauge,
        &["topic", "partition"],
        "High watermark, from the partition's leader",
    ),
    def(
        "duramen_partition_log_start_offset",
        Kind::Gauge,
        &["topic", "partition"],
        "Log start offset, from the partition's leader",
    ),
    def(
        "duramen_partition_replicas",
        Kind::Gauge,
        &["topic", "partition"],
        "Replicas of the partition, from its leader",
    ),
    def(
        "duramen_partition_in_sync_replicas",
        Kind::Gauge,
        &["topic", "partition"],
        "Replicas of the partition that are in sync, from its leader",
    ),
    def(
        "duramen_partition_in_sync_replicas_min",
        Kind::Gauge,
        &["topic", "partition"],
        "Replicas that must be in sync for an append with acks=all: min.insync.replicas, at most all",
    ),
    def(
        "duramen_partition_leader",
        Kind::Gauge,
        &["topic", "partition"],
        "Id of the node that leads the partition, from that node",
    ),
    def(
        "duramen_partition_leader_is_preferred",
        Kind::Gauge,
        &["topic", "partition"],
        "1 if the partition's leader is its preferred one",
    ),
];

static PARTITION_BYTES: Def = def(
    "duramen_partition_log_bytes",
    Kind::Gauge,
    &["topic", "partition"],
    "Size of the segments of this node's replica, in bytes",
);

/// Figures of the node, in the order of [`of_node`].
static OF_NODE: [Def; 7] = [
    def("duramen_partitions_led", Kind::Gauge, &[], "Partitions that this node leads"),
    def(
        "duramen_partitions_under_min_isr",
        Kind::Gauge,
        &[],
        "Partitions led here with fewer replicas in sync than appends with acks=all need",
    ),
    def(
        "duramen_partitions_at_min_isr",
        Kind::Gauge,
        &[],
        "Partitions led here with just as many replicas in sync as appends with acks=all need",
    ),
    def("duramen_log_bytes", Kind::Gauge, &[], "Size of all segments of the node, in bytes"),
    def(
        "duramen_log_segments",
        Kind::Gauge,
        &[],
        "Segments of all logs of the node, that of the metadata aside",
    ),
    def(
        "duramen_partitions_without_row",
        Kind::Gauge,
        &[],
        "Replicas here that have no rows of their own, because there are too many",
    ),
    def(
        "duramen_topics_without_row",
        Kind::Gauge,
        &[],
        "Topics with replicas here whose traffic is in the row of the rest, because there are too many",
    ),
];

/// Figures of the metadata, which each node has, in the order of [`of_metadata`].
static OF_METADATA: [Def; 4] = [
    def("duramen_controller_active", Kind::Gauge, &[], "1 if this node leads the metadata"),
    def(
        "duramen_metadata_leader",
        Kind::Gauge,
        &[],
        "Id of the node that leads the metadata, as far as this node knows; -1 for none",
    ),
    def("duramen_metadata_term", Kind::Gauge, &[], "Term of the metadata's Raft group"),
    def(
        "duramen_metadata_end_offset",
        Kind::Gauge,
        &[],
        "End of the metadata that this node has applied, as an offset",
    ),
];

/// Figures of the cluster, which only the leader of the metadata has, in the order of [`of_cluster`].
static OF_CLUSTER: [Def; 6] = [
    def(
        "duramen_cluster_nodes",
        Kind::Gauge,
        &[],
        "Registered nodes; only from the leader of the metadata, as all of the cluster",
    ),
    def(
        "duramen_cluster_nodes_unheard",
        Kind::Gauge,
        &[],
        "Registered nodes that the leader of the metadata has not heard lately",
    ),
    def("duramen_cluster_topics", Kind::Gauge, &[], "Topics of the cluster"),
    def("duramen_cluster_partitions", Kind::Gauge, &[], "Partitions of the cluster"),
    def(
        "duramen_cluster_partitions_leaderless",
        Kind::Gauge,
        &[],
        "Partitions of the cluster that have no leader",
    ),
    def(
        "duramen_cluster_partitions_not_preferred",
        Kind::Gauge,
        &[],
        "Partitions of the cluster with another leader than the preferred one",
    ),
];

static NODE_INFO: Def = def(
    "duramen_cluster_node_info",
    Kind::Gauge,
    &["broker", "address"],
    "1 for each registered node, with its address for clients; only from the leader of the metadata",
);

static TOPIC_PARTITIONS: Def = def(
    "duramen_topic_partitions",
    Kind::Gauge,
    &["topic"],
    "Partitions of the topic; only from the leader of the metadata",
);

/// Returns the metrics of this room.
#[cfg(test)]
pub(crate) fn defs() -> impl Iterator<Item = &'static Def> {
    let single = [&LOG_BYTES, &PARTITION_BYTES, &NODE_INFO, &TOPIC_PARTITIONS];
    let all = OF_TOPICS.iter().chain(&OF_PARTITIONS).chain(&OF_NODE);
    all.chain(&OF_METADATA).chain(&OF_CLUSTER).chain(single)
}

/// Sums of a topic's traffic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sums {
    traffic: Traffic,
    sent_bytes: u64,
}

impl Sums {
    /// Adds what has come since `before`.
    fn add(&mut self, now: &Self, before: &Self) {
        let since = |now: u64, before: u64| now.saturating_sub(before);
        let (sum, now, old) = (&mut self.traffic, &now.traffic, &before.traffic);
        sum.appends += since(now.appends, old.appends);
        sum.appends_refused += since(now.appends_refused, old.appends_refused);
        sum.appended_bytes += since(now.appended_bytes, old.appended_bytes);
        sum.appended_records += since(now.appended_records, old.appended_records);
        sum.reads += since(now.reads, old.reads);
        sum.reads_refused += since(now.reads_refused, old.reads_refused);
    }

    fn values(&self) -> [u64; 7] {
        let Traffic { appends, appends_refused, appended_bytes, appended_records, .. } =
            self.traffic;
        let Traffic { reads, reads_refused, .. } = self.traffic;
        let sent = self.sent_bytes;
        [appended_bytes, appended_records, sent, appends, appends_refused, reads, reads_refused]
    }
}

/// Metrics by topic, partition and group.
#[derive(Debug, Default)]
pub struct Tallies {
    /// Taken by the scrape that has the node count: the end of the last census.
    turn: tokio::sync::Mutex<Option<Instant>>,
    state: Mutex<State>,
    /// Bytes of batches sent from each replica.
    sent: RwLock<HashMap<ReplicaId, AtomicU64>>,
}

#[derive(Debug, Default)]
struct State {
    /// Traffic of each replica, as it was counted last.
    seen: HashMap<ReplicaId, Sums>,
    topics: BTreeMap<Arc<str>, Sums>,
    rest: Sums,
    lags: Lags,
    tables: Vec<Table>,
}

/// Rows of a census that is not done yet.
#[derive(Debug, Default)]
pub(crate) struct Draft {
    node: Option<NodeCounted>,
    /// Topics of the cluster.
    topics: BTreeMap<String, TopicCounted>,
    replicas: Vec<ReplicaCounted>,
    lags: lags::Draft,
}

impl Draft {
    /// Takes rows.
    pub(crate) fn take(&mut self, rows: Vec<Counted>) {
        for row in rows {
            match row {
                Counted::Node(row) => self.node = Some(row),
                Counted::Replica(row) => self.replicas.push(row),
                Counted::Group(row) => self.lags.take_group(row),
                Counted::Offset(row) => self.lags.take_offset(row),
                Counted::Topic(row) => match self.topics.get_mut(&row.topic) {
                    Some(topic) => {
                        topic.partitions += row.partitions;
                        topic.leaderless += row.leaderless;
                        topic.not_preferred += row.not_preferred;
                    }
                    None => _ = self.topics.insert(row.topic.clone(), row),
                },
            }
        }
    }
}

/// The turn of a scrape that may have the node count.
#[derive(Debug)]
pub(crate) struct Turn<'a>(tokio::sync::MutexGuard<'a, Option<Instant>>);

impl Turn<'_> {
    /// Ends the turn without a census, so that scrapes that waited show the last one, too.
    pub(crate) fn give_up(mut self) {
        *self.0 = Some(Instant::now());
    }
}

impl Tallies {
    /// Counts bytes of batches that are sent from a replica.
    pub fn note_sent(&self, replica: ReplicaId, bytes: u64) {
        let sent = self.sent.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(sum) = sent.get(&replica) {
            sum.fetch_add(bytes, Ordering::Relaxed);
            return;
        }
        drop(sent);
        let mut sent = self.sent.write().unwrap_or_else(PoisonError::into_inner);
        sent.entry(replica).or_default().fetch_add(bytes, Ordering::Relaxed);
    }

    /// Waits for another scrape's census, and returns the turn to have the node count; `None` if that is new enough.
    pub(crate) async fn begin(&self) -> Option<Turn<'_>> {
        let turn = self.turn.lock().await;
        let is_new = turn.is_some_and(|at| at.elapsed() < NEW_ENOUGH);
        (!is_new).then_some(Turn(turn))
    }

    /// Makes the tables of a census that is done.
    pub(crate) fn finish(&self, draft: Draft, mut turn: Turn<'_>) {
        let sent = self.take_sent(&draft.replicas);
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.count_traffic(&draft.replicas, &sent);
        state.lags.follow(&draft.lags, Instant::now());
        state.tables = state.tables_of(draft);
        *turn.0 = Some(Instant::now());
    }

    /// Returns the bytes sent from each of these replicas, and forgets others.
    fn take_sent(&self, replicas: &[ReplicaCounted]) -> HashMap<ReplicaId, u64> {
        let here: BTreeSet<_> = replicas.iter().map(|it| it.replica).collect();
        let mut sent = self.sent.write().unwrap_or_else(PoisonError::into_inner);
        sent.retain(|replica, _| here.contains(replica));
        sent.iter().map(|(replica, sum)| (*replica, sum.load(Ordering::Relaxed))).collect()
    }

    /// Returns the tables of the last census.
    pub(crate) fn tables(&self) -> Vec<Table> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).tables.clone()
    }
}

impl State {
    /// Adds the traffic since the last census to the sums. Rows are for the topics that come first, and stay.
    fn count_traffic(&mut self, replicas: &[ReplicaCounted], sent: &HashMap<ReplicaId, u64>) {
        let here: BTreeSet<&str> = replicas.iter().map(|it| it.topic.as_str()).collect();
        self.topics.retain(|topic, _| here.contains(&**topic));
        let mut seen = HashMap::with_capacity(replicas.len());
        for row in replicas {
            let sent_bytes = sent.get(&row.replica).copied().unwrap_or(0);
            let now = Sums { traffic: row.traffic, sent_bytes };
            let before = self.seen.get(&row.replica).copied().unwrap_or_default();
            if !self.topics.contains_key(&*row.topic) && self.topics.len() < METRIC_TOPICS_MAX {
                self.topics.insert(row.topic.as_str().into(), Sums::default());
            }
            let sums = self.topics.get_mut(&*row.topic).unwrap_or(&mut self.rest);
            sums.add(&now, &before);
            sums.sent_bytes += sent_bytes.saturating_sub(before.sent_bytes);
            seen.insert(row.replica, now);
        }
        self.seen = seen;
    }

    fn tables_of(&self, draft: Draft) -> Vec<Table> {
        let Draft { node, topics, replicas, lags } = draft;
        let Some(node) = node else { return Vec::new() };
        let mut all = self.of_topics(&replicas);
        all.extend(of_partitions(node.broker_id, &replicas));
        all.extend(self.of_node(&replicas));
        all.extend(of_metadata(&node));
        if node.leads_metadata {
            all.extend(of_cluster(&node, &topics));
        }
        all.extend(self.lags.tables(lags, Instant::now()));
        all
    }

    fn of_topics(&self, replicas: &[ReplicaCounted]) -> Vec<Table> {
        let mut tables: Vec<_> = OF_TOPICS.iter().map(Table::of).collect();
        let mut bytes = Table::of(&LOG_BYTES);
        let mut sizes: BTreeMap<&str, u64> = BTreeMap::new();
        for row in replicas {
            let topic =
                if self.topics.contains_key(&*row.topic) { row.topic.as_str() } else { REST };
            *sizes.entry(topic).or_default() += row.bytes;
        }
        let own = self.topics.iter().map(|(topic, sums)| (&**topic, sums));
        // Once there was a rest, its sums stay: they only rise.
        let has_rest = self.rest != Sums::default() || sizes.contains_key(REST);
        for (topic, sums) in own.chain(has_rest.then_some((REST, &self.rest))) {
            let labels: Labels = [label(topic)].into();
            for (table, value) in tables.iter_mut().zip(sums.values()) {
                table.push(&labels, Value::Whole(value));
            }
            bytes.push(&labels, Value::Whole(sizes.get(topic).copied().unwrap_or(0)));
        }
        tables.push(bytes);
        tables
    }

    fn of_node(&self, replicas: &[ReplicaCounted]) -> Vec<Table> {
        let led = || replicas.iter().filter_map(|it| it.led);
        let names: BTreeSet<_> = replicas.iter().map(|it| &it.topic).collect();
        let segments: usize = replicas.iter().map(|it| it.segments).sum();
        let values = [
            led().count() as u64,
            led().filter(|it| it.in_sync < it.in_sync_min).count() as u64,
            led().filter(|it| it.in_sync == it.in_sync_min).count() as u64,
            replicas.iter().map(|it| it.bytes).sum(),
            segments as u64,
            replicas.len().saturating_sub(METRIC_PARTITIONS_MAX) as u64,
            names.len().saturating_sub(self.topics.len()) as u64,
        ];
        tables_of(&OF_NODE, values.map(Value::Whole))
    }
}

fn tables_of<const N: usize>(defs: &'static [Def; N], values: [Value; N]) -> Vec<Table> {
    defs.iter().zip(values).map(|(def, value)| Table::one(def, value)).collect()
}

fn whole(number: i64) -> Value {
    Value::Whole(u64::try_from(number).unwrap_or(0))
}

/// Returns the rows of partitions: the first replicas by their ids, which are the oldest.
fn of_partitions(own: i32, replicas: &[ReplicaCounted]) -> Vec<Table> {
    let mut tables: Vec<_> = OF_PARTITIONS.iter().map(Table::of).collect();
    let mut bytes = Table::of(&PARTITION_BYTES);
    for row in replicas.iter().take(METRIC_PARTITIONS_MAX) {
        let labels: Labels = [label(&row.topic), row.partition.to_string().into()].into();
        bytes.push(&labels, Value::Whole(row.bytes));
        let Some(led) = row.led else { continue };
        for (table, value) in tables.iter_mut().zip(of_led(own, row, led)) {
            table.push(&labels, value);
        }
    }
    tables.push(bytes);
    tables
}

fn of_led(own: i32, row: &ReplicaCounted, led: Led) -> [Value; 7] {
    [
        whole(row.high_watermark),
        whole(row.log_start),
        Value::Whole(led.replicas as u64),
        Value::Whole(led.in_sync as u64),
        Value::Whole(led.in_sync_min as u64),
        whole(own.into()),
        Value::Whole(led.is_preferred.into()),
    ]
}

fn of_metadata(node: &NodeCounted) -> Vec<Table> {
    let leader = node.metadata_leader.map_or(Value::Real(-1.0), |id| whole(id.into()));
    let values = [
        Value::Whole(node.leads_metadata.into()),
        leader,
        Value::Whole(node.metadata_term),
        whole(node.metadata_end),
    ];
    tables_of(&OF_METADATA, values)
}

fn of_cluster(node: &NodeCounted, topics: &BTreeMap<String, TopicCounted>) -> Vec<Table> {
    let sum = |of: fn(&TopicCounted) -> u64| topics.values().map(of).sum::<u64>();
    let values = [
        node.brokers.len() as u64,
        node.brokers.iter().filter(|(.., is_heard)| !is_heard).count() as u64,
        topics.len() as u64,
        sum(|it| it.partitions),
        sum(|it| it.leaderless),
        sum(|it| it.not_preferred),
    ];
    let mut all = tables_of(&OF_CLUSTER, values.map(Value::Whole));
    let mut nodes = Table::of(&NODE_INFO);
    for (id, address, _) in &node.brokers {
        nodes.push(&[id.to_string().into(), label(address)].into(), Value::Whole(1));
    }
    let mut sizes = Table::of(&TOPIC_PARTITIONS);
    for (name, topic) in topics.iter().take(METRIC_TOPICS_MAX) {
        sizes.push(&[label(name)].into(), Value::Whole(topic.partitions));
    }
    all.extend([nodes, sizes]);
    all
}

#[cfg(test)]
mod tests;
