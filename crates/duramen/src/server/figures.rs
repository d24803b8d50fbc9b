//! The node's own counters and gauges, under the names that operators see.

use duramen_broker::Metrics;

use super::metrics::Figure;

/// Returns the counts of the node.
pub(crate) fn of(metrics: &Metrics) -> Vec<Figure> {
    let mut all = of_logs(metrics);
    all.extend(of_shares(metrics));
    all.extend(of_queues(metrics));
    all
}

fn counter(name: &'static str, value: u64, help: &'static str) -> Figure {
    Figure { name, help, is_counter: true, value }
}

fn gauge(name: &'static str, value: u64, help: &'static str) -> Figure {
    Figure { name, help, is_counter: false, value }
}

fn of_logs(metrics: &Metrics) -> Vec<Figure> {
    let mut all = vec![
        counter("node_requests", metrics.requests, "Requests that the node received"),
        counter("node_replies", metrics.replies, "Responses that the node returned"),
        counter("node_batches", metrics.batches, "Record batches that the node appended"),
        counter("node_batch_bytes", metrics.batch_bytes, "Bytes of batches that the node appended"),
        counter("duplicates", metrics.duplicates, "Batches that a producer sent a second time"),
        counter("stalls", metrics.stalls, "Produce requests that waited for room in the node"),
        counter("retention_trims", metrics.retention_trims, "Trims that retention proposed"),
        counter("handovers", metrics.handovers, "Leadership transfers that the node began"),
        gauge("disk_full", metrics.is_disk_full.into(), "1 while the disk is too full for appends"),
        gauge("disk_slow", metrics.has_slow_disk.into(), "1 while others lead: the disk is slow"),
        gauge("opening", metrics.is_opening.into(), "1 until all replicas on disk have leaders"),
        gauge("nodes_unheard", metrics.nodes_unheard, "Nodes without a message for 3 seconds"),
        gauge(
            "partitions_under_replicated",
            metrics.partitions_under_replicated,
            "Partitions led here with replicas that are not in sync",
        ),
        gauge("parked_requests", metrics.parked, "Requests that wait, as in a long poll"),
        gauge("unsynced_bytes", metrics.bytes_in_flight, "Bytes of batches that wait for a sync"),
        gauge("partitions", metrics.partitions, "Partitions with a replica on the node"),
        gauge("groups_failed", metrics.partitions_failed, "Failed partitions; the log names them"),
        gauge(
            "coordinators_failed",
            metrics.coordinators_failed,
            "Coordinators' partitions whose log cannot be read; the node's log names them",
        ),
        counter(
            "foreign_frames",
            metrics.foreign_frames,
            "Frames from a node of another cluster or data directory",
        ),
        counter(
            "foreign_letters",
            metrics.foreign_letters,
            "Messages from or to a replica that the metadata does not place there",
        ),
        gauge(
            "followers_left_behind",
            metrics.left_behind,
            "Followers that lack entries which their leader here cannot provide",
        ),
        gauge(
            "groups_asleep",
            metrics.partitions_asleep,
            "Quiesced replicas: their group is idle and sends no heartbeats",
        ),
        counter("group_sleeps", metrics.partitions_slept, "Times that a replica was quiesced"),
        gauge(
            "sleep_disputes",
            metrics.sleep_disputes,
            "Nodes that disagree with this one about the quiesced groups",
        ),
        gauge("producers", metrics.producers, "Idempotent producers that partitions remember"),
        gauge("fetch_sessions", metrics.fetch_sessions, "Incremental fetch sessions"),
    ];
    all.extend(of_fast_appends(metrics));
    all.extend(of_clocks(metrics));
    all.extend(at_rest(metrics));
    all
}

fn of_fast_appends(metrics: &Metrics) -> Vec<Figure> {
    vec![
        counter("fast_held", metrics.fast_held, "Fast appends that replicas here took to hold"),
        counter(
            "fast_appended",
            metrics.fast_appended,
            "Fast appends that leaders here counted in a stretch",
        ),
        counter(
            "fast_not_taken",
            metrics.fast_not_taken,
            "Fast appends that the node did not take: no such stretch, a gap, or no room",
        ),
        counter("access_denied", metrics.denials, "Operations that rules of access denied"),
        counter("stretches", metrics.stretches, "Stretches that leaders here began"),
        gauge("stretches_open", metrics.stretches_open, "Partitions led here with an open stretch"),
        counter(
            "fast_taken_over",
            metrics.taken_over,
            "Batches that new leaders here took over from replicas that held them",
        ),
        counter(
            "fast_left_out_bytes",
            metrics.left_out,
            "Bytes that leaders here left out of letters: their receivers hold the batches",
        ),
        gauge("held_bytes", metrics.held_bytes, "Bytes of batches that replicas here hold"),
        gauge(
            "partitions_settling",
            metrics.partitions_settling,
            "Leaders here that do not serve yet: they ask for what other replicas hold",
        ),
    ]
}

fn of_clocks(metrics: &Metrics) -> Vec<Figure> {
    vec![
        counter(
            "clock_holds",
            metrics.clock_holds,
            "Leaps of the wall clock that suspended retention by time",
        ),
        gauge(
            "clock_held",
            metrics.is_clock_held.into(),
            "1 while a leap of the wall clock suspends retention by time",
        ),
        gauge(
            "clocks_apart_ms",
            metrics.clocks_apart_ms,
            "Largest difference between the wall clocks of this node and another, in milliseconds",
        ),
        gauge(
            "clock_alone",
            metrics.is_clock_alone.into(),
            "1 while too few nodes share this node's time to remove data for its age",
        ),
    ]
}

/// Returns the counts of work on segments at rest.
fn at_rest(metrics: &Metrics) -> Vec<Figure> {
    vec![
        gauge(
            "segments_damaged",
            metrics.segments_damaged,
            "Damaged segments that the node has not repaired yet",
        ),
        counter(
            "segments_mended",
            metrics.segments_mended,
            "Damaged segments that the node repaired from other replicas",
        ),
        counter(
            "mended_bytes",
            metrics.mended_bytes,
            "Bytes of record batches in repaired segments",
        ),
        counter(
            "ranges_given",
            metrics.ranges_given,
            "Pieces of segments that the node sent to other nodes for a repair",
        ),
        counter(
            "prefixes_given",
            metrics.prefixes_given,
            "Pieces of compacted logs that the node sent to other nodes",
        ),
        counter(
            "throttled_bytes",
            metrics.throttled_bytes,
            "Bytes of record batches that the node sent within the limits of throttled replication",
        ),
        counter("compactions", metrics.compactions, "Logs that the node compacted"),
        counter(
            "compacted_bytes",
            metrics.compacted_bytes,
            "Bytes of record batches that compaction removed",
        ),
    ]
}

fn of_shares(metrics: &Metrics) -> Vec<Figure> {
    vec![
        gauge("share_sessions", metrics.share_sessions, "Share sessions"),
        gauge("share_partitions", metrics.share_partitions, "Partitions that share groups use"),
        gauge(
            "share_records",
            metrics.share_records,
            "Records that share groups have read but neither acknowledged nor archived",
        ),
        gauge(
            "dead_letters_waiting",
            metrics.burials,
            "Batches of dead letters that wait for their dead-letter topic",
        ),
    ]
}

fn of_queues(metrics: &Metrics) -> Vec<Figure> {
    vec![
        gauge(
            "queue_reads_waiting",
            metrics.queue_reads_waiting,
            "Reads of queues that wait for an element",
        ),
        gauge(
            "queue_index_lag_records",
            metrics.queue_index_lag,
            "Committed records of queue topics that the queue index does not have yet",
        ),
    ]
}
