//! The node's own counters and gauges, under the names that operators see.

use duramen_broker::Metrics;

use super::metrics::Figure;

/// What the node counts.
pub(crate) fn of(metrics: &Metrics) -> Vec<Figure> {
    let mut all = of_logs(metrics);
    all.extend(of_shares(metrics));
    all
}

fn of_logs(metrics: &Metrics) -> Vec<Figure> {
    let counter = |name, value, help| Figure { name, help, is_counter: true, value };
    let gauge = |name, value, help| Figure { name, help, is_counter: false, value };
    let mut all = vec![
        counter("node_requests", metrics.requests, "Requests that the node took in"),
        counter("node_replies", metrics.replies, "Replies that the node gave"),
        counter("node_batches", metrics.batches, "Record batches that the node appended"),
        counter("node_batch_bytes", metrics.batch_bytes, "Bytes of them"),
        counter("duplicates", metrics.duplicates, "Produces whose batch was appended already"),
        counter("stalls", metrics.stalls, "Produces that waited for bytes in flight"),
        counter("retention_trims", metrics.retention_trims, "Trims proposed by retention"),
        counter("handovers", metrics.handovers, "Times that leadership was handed over on purpose"),
        gauge("disk_full", metrics.is_disk_full.into(), "1 while appends are refused for space"),
        gauge("disk_slow", metrics.has_slow_disk.into(), "1 while others lead because of the disk"),
        gauge("opening", metrics.is_opening.into(), "1 until the groups found on disk lead"),
        gauge("nodes_unheard", metrics.nodes_unheard, "Nodes that were not heard for 3 seconds"),
        gauge(
            "partitions_under_replicated",
            metrics.partitions_under_replicated,
            "Partitions led here, with replicas that are not in sync",
        ),
        gauge("parked_requests", metrics.parked, "Requests that wait for something"),
        gauge("unsynced_bytes", metrics.bytes_in_flight, "Bytes of batches not yet synced"),
        gauge("partitions", metrics.partitions, "Partitions on this node"),
        gauge("groups_failed", metrics.partitions_failed, "Partitions that failed; see the log"),
        gauge(
            "coordinators_failed",
            metrics.coordinators_failed,
            "Partitions of groups whose log cannot be read; see the log",
        ),
        counter(
            "foreign_frames",
            metrics.foreign_frames,
            "Frames from a node of another cluster or data directory",
        ),
        counter(
            "foreign_letters",
            metrics.foreign_letters,
            "Messages between replicas that were for none here, or from none that is placed so",
        ),
        gauge(
            "followers_left_behind",
            metrics.left_behind,
            "Followers that lack what their leader here does not have in memory any more",
        ),
        gauge(
            "groups_asleep",
            metrics.partitions_asleep,
            "Replicas of partitions whose group has nothing to do, and says nothing",
        ),
        counter("group_sleeps", metrics.partitions_slept, "Times that a replica here fell asleep"),
        gauge(
            "sleep_disputes",
            metrics.sleep_disputes,
            "Nodes with which it is not agreed which groups they lead asleep with this one",
        ),
        gauge("producers", metrics.producers, "Producers remembered"),
        gauge("fetch_sessions", metrics.fetch_sessions, "Incremental fetch sessions"),
    ];
    all.extend(of_clocks(metrics));
    all.extend(at_rest(metrics));
    all
}

fn of_clocks(metrics: &Metrics) -> Vec<Figure> {
    let counter = |name, value, help| Figure { name, help, is_counter: true, value };
    let gauge = |name, value, help| Figure { name, help, is_counter: false, value };
    vec![
        counter("clock_holds", metrics.clock_holds, "Leaps of the wall clock that held retention"),
        gauge("clock_held", metrics.is_clock_held.into(), "1 while a clock leap holds retention"),
        gauge(
            "clocks_apart_ms",
            metrics.clocks_apart_ms,
            "Largest difference between the wall clocks of this node and another",
        ),
        gauge(
            "clock_alone",
            metrics.is_clock_alone.into(),
            "1 while too few nodes share this one's time, and nothing is removed for its age",
        ),
    ]
}

/// What is done to segments.
fn at_rest(metrics: &Metrics) -> Vec<Figure> {
    let counter = |name, value, help| Figure { name, help, is_counter: true, value };
    let gauge = |name, value, help| Figure { name, help, is_counter: false, value };
    vec![
        gauge(
            "segments_damaged",
            metrics.segments_damaged,
            "Segments that are known to be damaged and not mended yet",
        ),
        counter(
            "segments_mended",
            metrics.segments_mended,
            "Damaged segments mended with what other replicas have",
        ),
        counter("mended_bytes", metrics.mended_bytes, "Bytes of record batches put into them"),
        counter(
            "ranges_given",
            metrics.ranges_given,
            "Pieces given to other nodes to mend their segments",
        ),
        counter(
            "prefixes_given",
            metrics.prefixes_given,
            "Pieces given to other nodes of what compaction left of logs",
        ),
        counter("compactions", metrics.compactions, "Logs compacted"),
        counter("compacted_bytes", metrics.compacted_bytes, "Bytes gone by compaction"),
    ]
}

fn of_shares(metrics: &Metrics) -> Vec<Figure> {
    let gauge = |name, value, help| Figure { name, help, is_counter: false, value };
    vec![
        gauge("share_sessions", metrics.share_sessions, "Sessions of consumers of share groups"),
        gauge("share_partitions", metrics.share_partitions, "Partitions that share groups use"),
        gauge(
            "share_records",
            metrics.share_records,
            "Records that share groups have looked at and are not done with",
        ),
        gauge(
            "dead_letters_waiting",
            metrics.burials,
            "Batches of records that share groups gave up and that are not in their dead-letter topics yet",
        ),
    ]
}
