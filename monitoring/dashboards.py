#!/usr/bin/env python3
"""Writes the Grafana dashboards into dashboards/; with --check it compares them instead."""

import json
import sys
from pathlib import Path

FOLDER = Path(__file__).parent / "dashboards"
BY_NODE = 'job="$job",instance=~"$instance"'
WIDTH = 24


def query(name, text):
    return {
        "type": "query",
        "name": name,
        "label": name,
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "query": {"query": text, "refId": name},
        "definition": text,
        "refresh": 2,
        "sort": 1,
        "includeAll": name != "job",
        "multi": name != "job",
        "current": {} if name == "job" else {"text": ["All"], "value": ["$__all"]},
    }


SOURCE = {"type": "datasource", "name": "datasource", "label": "source", "query": "prometheus", "refresh": 1}
JOB = query("job", "label_values(duramen_build_info, job)")
INSTANCE = query("instance", 'label_values(duramen_build_info{job="$job"}, instance)')
TOPIC = query("topic", 'label_values(duramen_topic_in_bytes_total{job="$job"}, topic)')
GROUP = query("group", 'label_values(duramen_group_members{job="$job"}, group)')


def panel(kind, title, unit, queries, help=""):
    """A panel; `queries` are pairs of an expression and a legend."""
    targets = [
        {
            "datasource": {"type": "prometheus", "uid": "${datasource}"},
            "refId": chr(ord("A") + at),
            "expr": expr,
            "legendFormat": legend,
            "instant": kind != "timeseries",
            "range": kind == "timeseries",
            "format": "table" if kind == "table" else "time_series",
        }
        for at, (expr, legend) in enumerate(queries)
    ]
    options = {
        "timeseries": {
            "legend": {"displayMode": "list", "placement": "bottom"},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "stat": {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "value", "graphMode": "none"},
        "table": {"showHeader": True},
    }[kind]
    return {
        "type": kind,
        "title": title,
        "description": help,
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "fieldConfig": {"defaults": {"unit": unit}, "overrides": []},
        "options": options,
        "targets": targets,
    }


def stat(title, expr, bad=None, unit="none", help=""):
    """A number; red from `bad` on."""
    it = panel("stat", title, unit, [(expr, "")], help)
    steps = [{"color": "green", "value": None}]
    if bad is not None:
        steps.append({"color": "red", "value": bad})
    it["fieldConfig"]["defaults"]["thresholds"] = {"mode": "absolute", "steps": steps}
    return it


def lines(title, unit, *queries, help=""):
    return panel("timeseries", title, unit, queries, help)


def table(title, unit, expr, help=""):
    return panel("table", title, unit, [(expr, "")], help)


def rate(name, more=BY_NODE):
    return f"rate({name}{{{more}}}[$__rate_interval])"


def p99(name, by, more=BY_NODE):
    labels = ", ".join(["le", *by])
    return f"histogram_quantile(0.99, sum by ({labels}) ({rate(name + '_bucket', more)}))"


CLUSTER = [
    stat("Nodes", 'max(duramen_cluster_nodes{job="$job"})'),
    stat("Nodes not heard", 'max(duramen_cluster_nodes_unheard{job="$job"})', 1),
    stat("Leaders of the metadata", 'sum(duramen_controller_active{job="$job"})', 2, help="It should be 1."),
    stat("Partitions without a leader", 'max(duramen_cluster_partitions_leaderless{job="$job"})', 1),
    stat("Under min.insync.replicas", 'sum(duramen_partitions_under_min_isr{job="$job"})', 1),
    stat("With replicas out of sync", 'sum(duramen_partitions_under_replicated{job="$job"})', 1),
    stat("Failed partitions", 'sum(duramen_groups_failed{job="$job"})', 1),
    stat("Partitions", 'max(duramen_cluster_partitions{job="$job"})'),
    lines("Bytes in", "Bps", (f"sum by (instance) ({rate('duramen_topic_in_bytes_total')})", "{{instance}}")),
    lines("Bytes out", "Bps", (f"sum by (instance) ({rate('duramen_topic_out_bytes_total')})", "{{instance}}")),
    lines("Records in", "cps", (f"sum by (instance) ({rate('duramen_topic_in_records_total')})", "{{instance}}")),
    lines("Requests", "reqps", (f"sum by (api) ({rate('duramen_request_seconds_count')})", "{{api}}")),
    lines(
        "Time of requests, 99th percentile", "s", (p99("duramen_request_seconds", ["api"]), "{{api}}"),
        help="A Fetch waits for records, and a JoinGroup for other members.",
    ),
    lines("Time of Produce, 99th percentile", "s",
          (p99("duramen_request_seconds", ["instance"], BY_NODE + ',api="Produce"'), "{{instance}}")),
    lines("Sync of the journal, 99th percentile", "s", (p99("duramen_sync_seconds", ["instance"]), "{{instance}}"),
          help="No acknowledgement is faster than that."),
    lines("Busy time of the node's thread", "percentunit", (rate("duramen_node_busy_seconds_total"), "{{instance}}"),
          help="At 1 the thread is the bottleneck."),
    lines("Processors", "none", (rate("process_cpu_seconds_total"), "{{instance}}")),
    lines("Memory", "bytes", (f"process_resident_memory_bytes{{{BY_NODE}}}", "{{instance}}")),
    lines("Free space", "bytes", (f"duramen_disk_free_bytes{{{BY_NODE}}}", "{{instance}}")),
    lines("Size of the logs", "bytes", (f"duramen_log_bytes{{{BY_NODE}}}", "{{instance}}")),
    lines("Partitions led", "none", (f"duramen_partitions_led{{{BY_NODE}}}", "{{instance}}")),
    lines("Connections", "none", (f"duramen_connections{{{BY_NODE}}}", "{{instance}}")),
    lines("Requests in memory", "bytes", (f"duramen_in_flight_bytes{{{BY_NODE}}}", "{{instance}}")),
    lines("Open files", "percentunit",
          (f"process_open_fds{{{BY_NODE}}} / process_max_fds{{{BY_NODE}}}", "{{instance}}")),
    lines("Traffic between nodes", "Bps",
          (f"sum by (instance, peer) ({rate('duramen_peer_sent_bytes_total')})", "{{instance}} to {{peer}}")),
    lines("Disk", "Bps", (rate("duramen_process_read_bytes_total"), "{{instance}} read"),
          (rate("duramen_process_written_bytes_total"), "{{instance}} written")),
    lines("Transfers of leadership", "cps", (rate("duramen_handovers_total"), "{{instance}}")),
]

OF_TOPIC = BY_NODE + ',topic=~"$topic"'
TOPICS = [
    lines("Bytes in", "Bps", (f"sum by (topic) ({rate('duramen_topic_in_bytes_total', OF_TOPIC)})", "{{topic}}"),
          help="The topic … has all topics above METRIC_TOPICS_MAX."),
    lines("Bytes out", "Bps", (f"sum by (topic) ({rate('duramen_topic_out_bytes_total', OF_TOPIC)})", "{{topic}}")),
    lines("Records in", "cps", (f"sum by (topic) ({rate('duramen_topic_in_records_total', OF_TOPIC)})", "{{topic}}")),
    lines("Size of the logs, all replicas", "bytes",
          (f"sum by (topic) (duramen_topic_log_bytes{{{OF_TOPIC}}})", "{{topic}}")),
    lines("Batches", "cps", (f"sum by (topic) ({rate('duramen_topic_appends_total', OF_TOPIC)})", "{{topic}}")),
    lines("Refused batches", "cps",
          (f"sum by (topic) ({rate('duramen_topic_appends_refused_total', OF_TOPIC)})", "{{topic}}")),
    lines("Reads", "cps", (f"sum by (topic) ({rate('duramen_topic_reads_total', OF_TOPIC)})", "{{topic}}")),
    lines("Refused reads", "cps",
          (f"sum by (topic) ({rate('duramen_topic_reads_refused_total', OF_TOPIC)})", "{{topic}}")),
    lines("Replicas out of sync", "none",
          (f"sum by (topic) (duramen_partition_replicas{{{OF_TOPIC}}}"
           f" - duramen_partition_in_sync_replicas{{{OF_TOPIC}}})", "{{topic}}")),
    lines("Partitions with another leader than the preferred", "none",
          (f"sum by (topic) (duramen_partition_leader_is_preferred{{{OF_TOPIC}}} < bool 1)", "{{topic}}")),
    table("Partitions", "none", 'max by (topic) (duramen_topic_partitions{job="$job",topic=~"$topic"})'),
    table("Largest partitions", "bytes",
          f"topk(20, max by (topic, partition) (duramen_partition_log_bytes{{{OF_TOPIC}}}))"),
    table("Fastest partitions, records a second", "cps",
          f"topk(20, sum by (topic, partition) (rate(duramen_partition_high_watermark{{{OF_TOPIC}}}[5m])))"),
]

OF_GROUP = 'job="$job",group=~"$group"'
GROUPS = [
    stat("Groups", 'sum(duramen_groups{job="$job"})'),
    stat("Largest lag", f"max(duramen:group_lag_records{{{OF_GROUP}}})", help="Needs the recording rule of rules.yml."),
    stat("Oldest lag", f"max(duramen_group_lag_seconds{{{OF_GROUP}}})", 600, "s"),
    stat("Offsets without rows", 'sum(duramen_group_offsets_without_row{job="$job"})',
         help="Offsets above METRIC_OFFSETS_MAX of a node, those with the least lag."),
    lines("Lag", "none", (f"sum by (group, topic) (duramen:group_lag_records{{{OF_GROUP}}})", "{{group}} {{topic}}")),
    lines("Age of the first record that is not committed", "s",
          (f"max by (group, topic) (duramen_group_lag_seconds{{{OF_GROUP}}})", "{{group}} {{topic}}"),
          help="A guess between two scrapes; at most the time since the node's first scrape."),
    lines("Committed offsets a second", "cps",
          (f"sum by (group, topic) (rate(duramen_group_topic_offsets{{{OF_GROUP}}}[$__rate_interval]))",
           "{{group}} {{topic}}")),
    lines("Lag as the coordinators know it", "none",
          (f"sum by (group, topic) (duramen_group_topic_lag_records{{{OF_GROUP}}})", "{{group}} {{topic}}"),
          help="Without partitions of which the coordinator's node has no replica."),
    lines("Members", "none", (f"max by (group) (duramen_group_members{{{OF_GROUP}}})", "{{group}}")),
    lines("States", "none", ('sum by (kind, state) (duramen_groups{job="$job"})', "{{kind}} {{state}}")),
    table("Partitions with the most lag", "none",
          f"topk(20, duramen:group_lag_records{{{OF_GROUP}}})"),
    table("Offsets", "none", f"topk(100, max by (group, topic, partition) (duramen_group_offset{{{OF_GROUP}}}))"),
]

QUEUES = [
    stat("Reads of queues that wait", 'sum(duramen_queue_reads_waiting{job="$job"})'),
    stat("Records that the index lacks", 'sum(duramen_queue_index_lag_records{job="$job"})'),
    stat("Dead letters that wait", 'sum(duramen_dead_letters_waiting{job="$job"})', 1),
    stat("Open streams", 'sum(duramen_native_streams{job="$job"})'),
    lines("Calls", "reqps", (f"sum by (operation) ({rate('duramen_native_calls_total')})", "{{operation}}")),
    lines("Calls that were not ok", "reqps",
          (f"sum by (outcome) ({rate('duramen_native_calls_total', BY_NODE + ',outcome!=' + chr(34) + 'ok' + chr(34))})",
           "{{outcome}}")),
    lines("Time of calls, 99th percentile", "s", (p99("duramen_native_call_seconds", ["operation"]), "{{operation}}"),
          help="Waits of reads count, too."),
    lines("Streams", "none", (f"sum by (operation) (duramen_native_streams{{{BY_NODE}}})", "{{operation}}")),
    lines("Reads that wait", "none", (f"duramen_native_reads_waiting{{{BY_NODE}}}", "{{instance}} all"),
          (f"duramen_queue_reads_waiting{{{BY_NODE}}}", "{{instance}} queues")),
    lines("Records that the index lacks", "none", (f"duramen_queue_index_lag_records{{{BY_NODE}}}", "{{instance}}")),
    lines("Records that share groups have taken", "none", (f"duramen_share_records{{{BY_NODE}}}", "{{instance}}")),
    lines("Share sessions", "none", (f"duramen_share_sessions{{{BY_NODE}}}", "{{instance}}")),
    lines("Share partitions", "none", (f"duramen_share_partitions{{{BY_NODE}}}", "{{instance}}")),
    lines("Dead letters that wait", "none", (f"duramen_dead_letters_waiting{{{BY_NODE}}}", "{{instance}}")),
]

ALL = {
    "cluster": ("Duramen: cluster", [SOURCE, JOB, INSTANCE], CLUSTER),
    "topics": ("Duramen: topics", [SOURCE, JOB, INSTANCE, TOPIC], TOPICS),
    "groups": ("Duramen: groups", [SOURCE, JOB, GROUP], GROUPS),
    "queues": ("Duramen: queues", [SOURCE, JOB, INSTANCE], QUEUES),
}
SIZES = {"stat": (3, 4), "timeseries": (12, 8), "table": (12, 10)}


def placed(panels):
    """Gives each panel a place: from left to right, in rows of one height."""
    x = y = height = 0
    for number, it in enumerate(panels, 1):
        wide, high = SIZES[it["type"]]
        if x + wide > WIDTH or x > 0 and high != height:
            x, y = 0, y + height
        yield {"id": number, "gridPos": {"x": x, "y": y, "w": wide, "h": high}, **it}
        x, height = x + wide, high


def dashboard(name):
    title, variables, panels = ALL[name]
    return {
        "uid": f"duramen-{name}",
        "title": title,
        "tags": ["duramen"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "timezone": "browser",
        "templating": {"list": variables},
        "annotations": {"list": []},
        "links": [{"type": "dashboards", "title": "Duramen", "tags": ["duramen"], "asDropdown": True, "keepTime": True}],
        "panels": list(placed(panels)),
    }


def main():
    stale = []
    for name in ALL:
        path = FOLDER / f"{name}.json"
        text = json.dumps(dashboard(name), indent=1, ensure_ascii=False) + "\n"
        if "--check" not in sys.argv:
            FOLDER.mkdir(exist_ok=True)
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            stale.append(path.name)
    if stale:
        sys.exit(f"dashboards: {', '.join(stale)} are not as dashboards.py says; run it without --check")


if __name__ == "__main__":
    main()
