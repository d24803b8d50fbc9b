#!/usr/bin/env python3
"""Runs the scenarios, prints a table as they end, and writes the figures. See run.sh."""

import argparse
import json
import shutil
import sys
import tempfile
import time
import traceback
from pathlib import Path

import brokers
import cluster
import fast
import machine
import peers
import queues
import report
import scenarios
import small_requests
import tls
import traffic
import work_queues

# Each of these is run on a fresh broker.
SCENARIOS = {
    "group_commit": scenarios.group_commit,
    "partitions": scenarios.partitions,
    "reads": scenarios.reads,
    "disturbed": scenarios.disturbed,
    "messages": traffic.messages,
    "tailing": traffic.tailing,
    "patterns": traffic.patterns,
    "groups": traffic.groups,
    "transactions": traffic.transactions,
    "shared_work": traffic.shared_work,
    "queue_bulk": queues.bulk,
    "queue_counts": queues.counts,
    "queue_memory": queues.memory,
    "queue_callers": queues.callers,
    "queue_waits": queues.waits,
    "queue_streams": queues.streams,
    "queue_cold": queues.cold,
    "queue_mixed": queues.mixed,
    "work_queues": work_queues.work_queues,
}
# These start their own.
OWN_BROKERS = {
    "lifecycle": scenarios.lifecycle,
    "slow_syncs": scenarios.slow_syncs,
    "small_requests": small_requests.small_requests,
    "tls": tls.tls,
    "queue_edits": queues.edits,
    "queue_cost": queues.cost,
    "fast_latency": fast.latency,
    "fast_slow_node": fast.slow_node,
    "fast_beside": fast.beside,
    "fast_failover": fast.failover,
    "fast_throughput": fast.throughput,
}
# These on three fresh brokers that are one cluster.
CLUSTER_SCENARIOS = {
    "cluster_group_commit": cluster.group_commit,
    "cluster_partitions": cluster.partitions,
    "cluster_latency": cluster.latency,
    "cluster_slow_disk": cluster.slow_disk,
    "cluster_failover": cluster.failover,
    "cluster_network": cluster.network,
    "cluster_idle": cluster.idle,
    "cluster_catch_up": cluster.catch_up,
    "cluster_queue_bulk": queues.bulk,
    "cluster_queue_takeover": queues.takeover,
}
NAMES = [*SCENARIOS, *OWN_BROKERS, *CLUSTER_SCENARIOS]
# A name for several.
GROUPS = {"queues": list(queues.VARIANTS), "fast": list(fast.VARIANTS)}
# These have peers beside Kafka.
WITH_PEERS = {**queues.VARIANTS, **work_queues.VARIANTS}
# Syncs have no part in reading, waiting, starting and memory, and would make acks 0 and 1 a figure of their own.
WITHOUT_SYNCS = ["reads", "messages", "tailing", "groups", "shared_work", "lifecycle"]


def main():
    options = arguments()
    sizes = scenarios.Sizes(options.quick)
    parent = Path(options.directory or brokers.BENCH.parent / ".cache")
    parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix="bench-", dir=parent))
    names = [each for name in options.only or NAMES for each in GROUPS.get(name, [name])]
    # Where each node of a far cluster is to seem to have a disk of its own.
    memory = work
    if not options.directory and not set(names).isdisjoint(fast.VARIANTS):
        memory = Path(tempfile.mkdtemp(prefix="bench-", dir="/dev/shm"))
    results = {
        "machine": machine.describe(work),
        "command": "bench/run.sh " + " ".join(sys.argv[1:]),
        "quick": options.quick,
        "scenarios": {},
    }
    path = Path(options.out or brokers.BENCH / "results" / ("quick.json" if options.quick else "full.json"))
    path.parent.mkdir(parents=True, exist_ok=True)
    failed = False
    try:
        results["disk"] = scenarios.disk_limits(work, sizes)
        print(report.disk(results["disk"]), flush=True)
        for name in names:
            found = results["scenarios"].setdefault(name, {})
            for variant in wanted_variants(name, options):
                begun = time.monotonic()
                in_memory = name in fast.VARIANTS and variant != brokers.SHARED_DISK
                directory = (memory if in_memory else work) / f"{name}-{variant}"
                try:
                    found[variant] = {"sync": brokers.SYNCS[variant]} if name in WITH_PEERS else {}
                    found[variant] |= run_one(name, variant, directory, sizes)
                except peers.Missing as missing:
                    found[variant] = {"skipped": str(missing)}
                    print(f"# {name} {variant} is skipped: {missing}", flush=True)
                except Exception as error:
                    failed = True
                    found[variant] = {"failed": str(error)}
                    traceback.print_exc()
                finally:
                    shutil.rmtree(directory, ignore_errors=True)
                print(f"# {name} {variant}: {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)
            # A report that fails must not lose the figures.
            path.write_text(json.dumps(results, indent=1) + "\n")
            print(report.scenario(name, found), flush=True)
    finally:
        for directory in (work, memory):
            shutil.rmtree(directory, ignore_errors=True)
    print(f"figures: {path}")
    sys.exit(1 if failed else 0)


def run_one(name, variant, directory, sizes):
    if name in OWN_BROKERS:
        return OWN_BROKERS[name](variant, directory, sizes)
    if name in CLUSTER_SCENARIOS:
        with start_cluster(variant, directory) as three:
            return CLUSTER_SCENARIOS[name](three, sizes) | version_of(three)
    with start(variant, directory) as broker:
        return SCENARIOS[name](broker, sizes) | version_of(broker)


def version_of(broker):
    """The version of a peer of queues; Kafka's is that of compat/."""
    version = getattr(broker.brokers[0], "version", None)
    return {"version": version} if version else {}


def wanted_variants(name, options):
    if not options.variant:
        return variants_of(name, options.quick)
    has_own = name in fast.VARIANTS
    return [it for it in options.variant if it in brokers.VARIANTS and not has_own or it in variants_of(name, quick=False)]


def start(variant, directory):
    if variant in brokers.PEERS:
        kind, settings = brokers.PEERS[variant]
        return peers.start(kind, directory, settings)
    return brokers.start(variant, directory)


def start_cluster(variant, directory):
    if variant in brokers.PEERS:
        kind, settings = brokers.PEERS[variant]
        return peers.start_cluster(kind, directory, settings)
    return brokers.start_cluster(variant, directory)


def variants_of(name, quick):
    """Which brokers a scenario is for."""
    if name in WITH_PEERS:
        return WITH_PEERS[name][1 if quick else 0]
    if name in fast.VARIANTS:
        return fast.VARIANTS[name][1 if quick else 0]
    if name in ("slow_syncs", "small_requests", "tls"):
        return ["duramen"]
    if name in WITHOUT_SYNCS:
        return ["duramen", "kafka"]
    if name in CLUSTER_SCENARIOS:
        return ["duramen", "kafka-durable"]
    return ["duramen", "kafka-durable"] if quick and name == "disturbed" else list(brokers.VARIANTS)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="every scenario, smaller")
    only = "only this scenario, or queues or fast for all of these; may be repeated"
    parser.add_argument("--only", action="append", choices=[*NAMES, *GROUPS], metavar="SCENARIO", help=only)
    parser.add_argument("--fast", action="append_const", const="fast", dest="only", help="the same as --only fast")
    variants = [*brokers.VARIANTS, *brokers.PEERS, brokers.SHARED_DISK]
    parser.add_argument("--variant", action="append", choices=variants, help="only this broker; may be repeated")
    parser.add_argument("--directory", help="where data directories are made; the disk that is measured")
    parser.add_argument("--out", help="file for the figures")
    return parser.parse_args()


if __name__ == "__main__":
    main()
