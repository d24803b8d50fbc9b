#!/usr/bin/env python3
"""Tables from figures.

    bench/report.py bench/results/full.json                                       prints them as Markdown
    bench/report.py run.json --only reads --into bench/results/reads.md           puts one scenario between the marks of that document
    bench/report.py run.json --only queues --into bench/results/queues.md         the same of all of queues; writes the page's text, too
    bench/report.py hot.json cold.json --only reads --into bench/results/reads.md the same of several runs, one after the other
"""

import argparse
import json
from pathlib import Path

import report_fast
import report_queues
import report_small_requests
import report_tls
import report_work_queues
from tables import DASH, get, number, ratio, table

BEGIN, END = "<!-- figures: written by bench/report.py -->", "<!-- end of figures -->"
# With more than this, somebody else was at work: ratios may hold, absolutes do not.
LOAD_OF_AN_IDLE_MACHINE = 0.5


def disk(probes):
    rows = [
        [number(p["round_bytes"] / 1024), number(p["syncs_per_second"]), number(p["megabytes_per_second"], 1), number(p["p50_us"]),
         number(p["p99_us"]), number(p["p999_us"])]
        for p in probes
    ]  # fmt: skip
    return "### Disk: rounds written over an existing file, each synced\n\n" + table(
        ["KiB a round", "syncs/s", "MB/s", "p50 µs", "p99 µs", "p99.9 µs"], rows
    )


def scenario(name, found):
    return {
        "group_commit": group_commit,
        "slow_syncs": slow_syncs,
        "partitions": partitions,
        "reads": reads,
        "disturbed": disturbed,
        "messages": messages,
        "tailing": tailing,
        "patterns": patterns,
        "groups": groups,
        "transactions": transactions,
        "shared_work": shared_work,
        "lifecycle": lifecycle,
        "cluster_group_commit": cluster_group_commit,
        "cluster_partitions": cluster_partitions,
        "cluster_latency": cluster_latency,
        "cluster_slow_disk": cluster_slow_disk,
        "cluster_failover": cluster_failover,
        "cluster_network": cluster_network,
        "cluster_idle": cluster_idle,
        "cluster_catch_up": cluster_catch_up,
        "work_queues": report_work_queues.work_queues,
        **report_queues.TABLES,
        **report_fast.TABLES,
        **report_small_requests.TABLES,
        **report_tls.TABLES,
    }[name](found)


def _points(found, key):
    """Points of all variants, by the value of `key`, in order."""
    by_key = {}
    for variant, result in found.items():
        for point in result.get("points", []):
            by_key.setdefault(point[key], {})[variant] = point
    return sorted(by_key.items())


def _latency(point):
    latency = get(point, "latency_us")
    return DASH if latency is None else "/".join(number(latency[q]) for q in ("p50", "p99", "p999"))


def group_commit(found):
    best = {
        variant: max((p["appends_per_second"] for p in result.get("points", [])), default=0)
        for variant, result in found.items()
    }
    rows = []
    for connections, points in _points(found, "connections"):
        ours = get(points, "duramen", "appends_per_second")
        for variant, point in points.items():
            limit = point.get("disk_appends_per_second")
            rows.append([
                connections, variant, ratio(point["appends_per_second"], best[variant]),
                DASH if ours is None or variant == "duramen" else f"{ours / point['appends_per_second']:.1f}×",
                DASH if not limit else f"{point['appends_per_second'] / limit:.2f} of {number(limit)}",
                _latency(point), number(point["broker_cpu_seconds"], 1),
                number(get(point, "device_bytes_per_payload_byte"), 2), number(point.get("checkpoints")),
            ])  # fmt: skip
    return "### Group commit: 128 appenders of 2 KiB, one partition\n\n" + table(
        ["connections", "broker", "appends/s (of its best)", "Duramen is", "of the disk", "p50/p99/p99.9 µs", "CPU s",
         "device bytes a byte", "checkpoints"], rows,
    )  # fmt: skip


def slow_syncs(found):
    rows = []
    for delay_ms, points in _by(found, "delay_ms"):
        best = max(point["appends_per_second"] for _, point in points)
        for variant, point in points:
            syncs = "/".join(number(point["latency_us"][q] / 1000 / point["sync_ms"], 1) for q in ("p50", "p99"))
            rows.append([
                delay_ms, point["connections"], variant, ratio(point["appends_per_second"], best), number(point["sync_ms"], 2),
                syncs, number(point["batches_a_round"], 1),
            ])  # fmt: skip
    return "### Slow syncs: 128 appenders of 2 KiB, one partition, each sync made longer\n\n" + table(
        ["ms longer", "connections", "broker", "appends/s (of the best)", "a sync, ms", "p50/p99 in syncs", "batches a round"], rows
    )


def partitions(found):
    one = {}
    rows = []
    for count, points in _points(found, "partitions"):
        for variant, point in points.items():
            one.setdefault(variant, point["appends_per_second"])
            ours = get(points, "duramen", "appends_per_second")
            rows.append([
                count, variant, ratio(point["appends_per_second"], one[variant]),
                DASH if ours is None or variant == "duramen" else f"{ours / point['appends_per_second']:.1f}×",
                _latency(point), number(point["broker_cpu_seconds"], 1),
                number(get(point, "device_bytes_per_payload_byte"), 2), number(point.get("checkpoints")),
            ])  # fmt: skip
    return "### 128 appenders of 2 KiB on 128 connections, over more partitions\n\n" + table(
        ["partitions", "broker", "appends/s (of one partition)", "Duramen is", "p50/p99/p99.9 µs", "CPU s", "device bytes a byte",
         "checkpoints"], rows,
    )  # fmt: skip


def reads(found):
    rows = []
    for state in ("hot", "cold"):
        for variant, result in found.items():
            at = get(result, state)
            if at is None:
                continue
            for mode in ("discard", "walk", "check"):
                read = at.get(mode)
                if read is None:
                    continue
                speed = read["megabytes_per_second"]
                rows.append([
                    state, variant, mode, number(speed), f"{speed / at['cat_mb_s']:.2f} of {number(at['cat_mb_s'])}",
                    f"{speed / at['sendfile_mb_s']:.2f} of {number(at['sendfile_mb_s'])}",
                    number(get(read, "broker_cpu_seconds_per_gb"), 2), number(read["client_cpu_seconds"], 1),
                ])  # fmt: skip
    return "### Sequential read of one partition\n\n" + table(
        ["pages", "broker", "reader", "MB/s", "of cat", "of bare sendfile", "broker CPU s/GB", "client CPU s"], rows
    )


def disturbed(found):
    rows = []
    for variant, result in found.items():
        alone = get(result, "alone", "latency_us", "p99")
        for name, label in [("alone", "alone"), ("beside_cold_reader", "cold reader"), ("beside_producer", "bulk producer")]:
            point = get(result, name)
            if point is None:
                continue
            p99 = point["latency_us"]["p99"]
            beside = DASH
            if name == "beside_cold_reader" and point["reads"]:
                beside = f"{number(sum(point['reads']) / len(point['reads']))} MB/s read"
            elif name == "beside_producer":
                beside = f"{number(point['producer']['megabytes_per_second'])} MB/s produced"
            rows.append([variant, label, beside, _latency(point), f"{p99 / alone:.2f}", number(point["appends_per_second"])])
        disk = get(result, "disk")
        if disk is not None:
            for name, label in [("alone", "alone"), ("beside_cat", "`cat` of the same files")]:
                point, beside = disk[name], DASH
                if name == "beside_cat":
                    beside = f"{number(sum(disk['reads']) / len(disk['reads']))} MB/s read"
                latency = "/".join(number(point[quantile]) for quantile in ("p50_us", "p99_us", "p999_us"))
                ratio = f"{point['p99_us'] / disk['alone']['p99_us']:.2f}"
                rows.append(["4 KiB and a sync", label, beside, latency, ratio, number(point["syncs_per_second"])])
    return "### One appender of 2 KiB beside other work\n\n" + table(
        ["broker", "beside", "at", "p50/p99/p99.9 µs", "p99 of alone", "appends/s"], rows
    )


def messages(found):
    """Duramen's messages a CPU second beside each other broker's."""
    rows = []
    for variant, result in found.items():
        points = result.get("points", [])
        read = get(result, "consume")
        points = [*points, {"acks": DASH, "batch": "read", **read}] if read else points
        for point in points:
            ours = [
                it for it in [*found["duramen"].get("points", []), {"batch": "read", "acks": DASH, **get(found, "duramen", "consume")}]
                if (it["acks"], it["batch"]) == (point["acks"], point["batch"])
            ] if "duramen" in found and variant != "duramen" else []  # fmt: skip
            times = [f"{it['messages_per_cpu_second'] / point['messages_per_cpu_second']:.1f}×" for it in ours]
            rows.append([
                point["acks"], point["batch"], variant, number(point["messages_per_second"]), number(point["broker_cpu_seconds"], 2),
                number(point["messages_per_cpu_second"]), *(times or [DASH]),
            ])  # fmt: skip
    rows.sort(key=lambda row: (str(row[0]), str(row[1])))
    return "### Messages of 200 B, one partition\n\n" + table(
        ["acks", "batch", "broker", "messages/s", "broker CPU s", "messages a CPU s", "Duramen's is"], rows
    )


def tailing(found):
    rows = []
    for consumers, points in _points(found, "consumers"):
        for variant, point in points.items():
            append = "/".join(number(point["append_us"][q]) for q in ("p50", "p99", "p999"))
            rows.append([consumers, variant, _latency(point), append, number(point["broker_cpu_seconds"], 2)])
    text = "### Consumers at the end of a partition written 1,000 times a second\n\n" + table(
        ["consumers", "broker", "to the consumer, p50/p99/p99.9 µs", "to the ack", "broker CPU s"], rows
    )
    rows = [
        [variant, number(at["consumers"]), number(at["cpu_percent"], 1), number(at["memory_mib"] - at["before_mib"], 1)]
        for variant, result in found.items() if (at := get(result, "parked"))
    ]  # fmt: skip
    return text + "\n" + table(["broker", "consumers that only wait", "CPU %", "MiB more"], rows)


def patterns(found):
    text = "### Four kinds of access, each alone and all at once\n\n" + _alone_and_together(found)
    pinned = {variant: result["pinned"] for variant, result in found.items() if "pinned" in result}
    if pinned:
        text += "\n### The same, one core for the broker and one for the clients\n\n" + _alone_and_together(pinned)
    return text


def _alone_and_together(found):
    rows, cores = [], []
    for variant, result in found.items():
        for name, alone in result.get("alone", {}).items():
            p99 = result["together"][name]["p99_us"]
            rows.append([name, variant, number(alone["p99_us"]), f"{number(p99)} ({p99 / alone['p99_us']:.2f})"])
        if "broker_cores" in result:
            cores.append(f"{variant}: {result['broker_cores']} and {result['client_cores']}")
    rows.sort(key=lambda row: row[0])
    text = table(["what", "broker", "p99 alone, µs", "p99 beside the others (of alone)"], rows)
    return text + f"\nCores that broker and clients use, all at once: {'; '.join(cores)}.\n" if cores else text


def groups(found):
    steps = [("start", "members start together"), ("nothing", "nothing happens"), ("join", "one joins"),
             ("kill", "one is killed (6 s session)"), ("leave", "one leaves")]  # fmt: skip
    rows = []
    for protocol in ("classic", "consumer"):
        for step, label in steps:
            at = {variant: get(result, protocol, step) for variant, result in found.items()}
            shared = [number(get(it, "shared_s"), 2) for it in at.values()]
            pauses = ["/".join(number(get(it, f"{which}_pause_s"), 2) for which in ("worst", "median")) for it in at.values()]
            rows.append([protocol, label, *shared, *pauses])
    sizes = next((get(result, "classic") for result in found.values() if get(result, "classic")), {"members": DASH, "partitions": DASH})
    return f"### A group of {sizes['members']} members over {sizes['partitions']} partitions\n\n" + table(
        ["protocol", "", *(f"{it}: s until all have their share" for it in found),
         *(f"{it}: s without a record, the worst member/the middle one" for it in found)], rows
    )  # fmt: skip


def transactions(found):
    rows = []
    for variant, result in found.items():
        for point in result.get("points", []):
            plain = point["plain"]
            times = [f"{plain['units'] / max(1, point[kind]['units']):.2f}×" for kind in ("idempotent", "transactional")]
            style = "each waited for" if point["style"] == "waiting" else "sent together"
            cpu = "/".join(
                number(point[kind]["broker_cpu_seconds"] / max(1, point[kind]["all"]) * 1e6) for kind in ("plain", "idempotent", "transactional")
            )
            rows.append([point["producers"], style, variant, number(plain["records"] / plain["seconds"]), *times, cpu])
    rows.sort(key=lambda row: row[:2])
    return "### 100 records of 200 B: plain, idempotent, and as a transaction\n\n" + table(
        ["producers", "records", "broker", "records/s, plain", "time of idempotent", "time of a transaction",
         "broker CPU µs for 100 records, plain/idempotent/transaction"], rows
    )  # fmt: skip


def shared_work(found):
    rows = [
        [name, variant, f"{number(of['done'])} of {number(of['written'])}", number(of["p50_us"] / 1000), number(of["p99_us"] / 1000),
         number(of["slow_done"]), number(of["at_once"]), number(of["out_of_order"])]
        for variant, result in found.items() for name, of in result.items() if isinstance(of, dict)
    ]  # fmt: skip
    rows.sort(key=lambda row: row[0])
    return "### 64 workers, 8 partitions, 400 records a second, one of fifty of a key that takes 100 ms\n\n" + table(
        ["workers are", "broker", "records of other keys done", "after ms, p50", "p99", "of the slow key done",
         "two of a key at once", "out of order"], rows
    )  # fmt: skip


def lifecycle(found):
    lines = [
        ("start to first acknowledged append, s", ("start_to_first_ack_s",), 3),
        ("idle memory, MiB", ("idle", "memory_mib"), 1),
        ("idle CPU, %", ("idle", "cpu_percent"), 1),
        ("create many partitions, s", ("create_partitions", "create_s"), 2),
        ("a first record into each of them, s", ("create_partitions", "first_record_each_s"), 2),
        ("memory with them, MiB", ("many", "memory_mib"), 1),
        ("idle CPU with them, %", ("many", "idle_cpu_percent"), 1),
        ("Metadata of all of them, p50 ms", ("many", "metadata_ms", "p50"), 2),
        ("Metadata of all of them, p99 ms", ("many", "metadata_ms", "p99"), 2),
        ("kill to first acknowledged append with them, s", ("many", "restart_s"), 2),
        ("bytes in segments per 200 B record, batches of 100", ("bytes_on_disk_per_record", "batches_of_100", "segment_bytes"), 1),
        ("bytes in segments per 200 B record, batches of 1", ("bytes_on_disk_per_record", "batches_of_1", "segment_bytes"), 1),
        ("bytes sent to the device per 200 B record, batches of 100", ("bytes_on_disk_per_record", "batches_of_100", "device_bytes"), 1),
        ("bytes sent to the device per 200 B record, batches of 1", ("bytes_on_disk_per_record", "batches_of_1", "device_bytes"), 1),
        ("kill to first acknowledged append, s", ("restart_after_kill_s",), 2),
    ]  # fmt: skip
    rows = []
    for label, path, digits in lines:
        ours = get(found, "duramen", *path)
        row = [label]
        for variant in found:
            value = get(found, variant, *path)
            beside = "" if variant == "duramen" or not ours or value is None else f" ({value / ours:.1f}×)"
            row.append(number(value, digits) + beside)
        rows.append(row)
    sizes = [get(result, "many", "partitions") for result in found.values()]
    restart = [get(result, "restart_bytes") for result in found.values()]
    notes = f"Many partitions: {next(filter(None, sizes), DASH)}. "
    notes += f"Killed with {number(next(filter(None, restart), 0) / 2**30, 1)} GiB in one partition.\n"
    return "### Starting, standing, and coming back\n\n" + table(["", *found], rows) + "\n" + notes


THREE = "three brokers, three replicas, min.insync.replicas=2"


def _cluster_points(found, key, heading, title):
    rows, best = [], {}
    for variant, result in found.items():
        best[variant] = max((point["appends_per_second"] for point in result.get("points", [])), default=0)
    for value, points in _points(found, key):
        ours = get(points, "duramen", "appends_per_second")
        for variant, point in points.items():
            rows.append([
                value, variant, ratio(point["appends_per_second"], best[variant]),
                DASH if ours is None or variant == "duramen" else f"{ours / point['appends_per_second']:.1f}×",
                _latency(point), number(point["broker_cpu_seconds"], 1),
            ])  # fmt: skip
    return f"### {title}: {THREE}\n\n" + table(
        [heading, "broker", "appends/s (of its best)", "Duramen is", "p50/p99/p99.9 µs", "CPU s of all brokers"], rows
    )


def cluster_group_commit(found):
    return _cluster_points(found, "connections", "connections", "128 appenders of 2 KiB, one partition")


def cluster_partitions(found):
    return _cluster_points(found, "partitions", "partitions", "128 appenders of 2 KiB on 128 connections")


def cluster_latency(found):
    rows, well = [], {}
    labels = {"well": "all well", "frozen": "a follower frozen", "slow": "a follower slow"}
    for rate, points in _by(found, "rate"):
        for variant, point in points:
            if "behind" in point:
                rows.append([number(rate), variant, labels[point["while"]], "acknowledged nothing in time", DASH, DASH])
                continue
            alone = well.setdefault((rate, variant), point["p99"])
            quantiles = "/".join(number(point[q]) for q in ("p50", "p99", "p999"))
            rows.append([
                number(rate), variant, labels[point["while"]], quantiles, f"{point['p99'] / alone:.2f}",
                number(point["broker_cpu_seconds"], 1),
            ])  # fmt: skip
    return f"### Records of 1 KiB at a steady rate, from due to acknowledged: {THREE}\n\n" + table(
        ["a second", "broker", "while", "p50/p99/p99.9 µs", "p99 of all well", "CPU s of all brokers"], rows
    )


def cluster_slow_disk(found):
    rows = []
    for variant, result in found.items():
        for point in result.get("points", []):
            led = {True: "that broker", False: "another one"}.get(point.get("led_by_it"), DASH)
            what = "all well" if point["while"] == "well" else f"each sync of a broker that is to lead takes {point.get('sync_ms', 100)} ms longer"
            if "behind" in point:
                rows.append([variant, what, led, "acknowledged nothing in time"])
                continue
            rows.append([variant, what, led, "/".join(number(point[q]) for q in ("p50", "p99", "p999"))])
    return f"### 1,000 records of 1 KiB a second, from due to acknowledged: {THREE}\n\n" + table(
        ["broker", "while", "led at the end by", "p50/p99/p99.9 µs"], rows
    )


def _by(found, key):
    """All points of all variants, by the value of `key`."""
    by_key = {}
    for variant, result in found.items():
        for point in result.get("points", []):
            by_key.setdefault(point[key], []).append((variant, point))
    return sorted(by_key.items())


def cluster_failover(found):
    rows = [
        [variant, *(number(sorted(gaps)[at], 2) for at in (0, len(gaps) // 2, -1)), sum(it["failed"] for it in result["kills"])]
        for variant, result in found.items()
        if (gaps := [it["longest_gap_s"] for it in result.get("kills", [])])
    ]
    return f"### The leader is killed: longest time without an ack, s: {THREE}\n\n" + table(
        ["broker", "shortest", "median", "longest", "records not acknowledged"], rows
    )


def _cluster_rows(found, title, lines):
    rows = [[label, *(number(get(result, *path), digits) for result in found.values())] for label, path, digits in lines]
    return f"### {title}: {THREE}\n\n" + table(["", *found], rows)


def cluster_network(found):
    return _cluster_rows(found, "Bytes between brokers for a byte of payload", [
        ("bulk, batches of 500 KB", ("bulk", "bytes_per_payload_byte"), 3),
        ("2 KiB appends that wait for their acks, 16 connections", ("small", "bytes_per_payload_byte"), 3),
    ])  # fmt: skip


def cluster_idle(found):
    return _cluster_rows(found, "Partitions that nobody uses", [
        ("partitions", ("partitions",), 0),
        ("to create them, s", ("create_s",), 1),
        ("CPU of all brokers, %", ("cpu_percent",), 1),
        ("bytes between brokers a second", ("bytes_per_second",), 0),
        ("memory of all brokers, MiB", ("memory_mib",), 0),
    ])  # fmt: skip


def cluster_catch_up(found):
    return _cluster_rows(found, "A follower gets what was written while it was stopped", [
        ("MB/s, its start included", ("megabytes_per_second",), 1),
        ("seconds", ("seconds",), 2),
        ("of these to start", ("start_s",), 2),
        ("MB/s to an empty disk, its start included", ("wiped", "megabytes_per_second"), 1),
        ("seconds", ("wiped", "seconds"), 2),
    ])  # fmt: skip


def document(results, only=None):
    facts = results["machine"]
    parts = [
        f"{facts['cpu']}, {facts['cores']} cores, {facts['memory_gib']} GiB, Linux {facts['kernel']}, {facts['file_system']}; "
        f"{facts['date']}, commit {facts['commit']}; `{results['command'].strip()}`.\n"
    ]
    if facts["load_before"] > LOAD_OF_AN_IDLE_MACHINE:
        parts.append(
            f"**The machine was not idle**: its load was {facts['load_before']:.1f} before the first scenario. "
            "Trust the ratios within a row a little, and the absolutes not at all.\n"
        )
    if results["quick"]:
        parts.append("A quick run: every scenario is there, but shorter and smaller than the text says.\n")
    parts.append(disk(results["disk"]))
    parts += [scenario(name, found) for name, found in results["scenarios"].items() if not only or name in only]
    return "\n".join(parts)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figures", type=Path, nargs="+")
    parser.add_argument("--only", action="append", metavar="SCENARIO", help="only this scenario of the runs, or queues or fast for all of these; may be repeated")
    parser.add_argument("--into", type=Path, metavar="DOCUMENT")
    options = parser.parse_args()
    groups = {"queues": report_queues.TABLES, "fast": report_fast.TABLES}
    only = [each for name in options.only or [] for each in groups.get(name, [name])]
    text = "\n".join(document(json.loads(path.read_text()), only) for path in options.figures)
    if options.into is None:
        print(text)
        return
    if not options.into.exists() and options.into.name == "queues.md":
        options.into.write_text(f"{report_queues.PAGE}{BEGIN}\n{END}\n")
    before, rest = options.into.read_text().split(BEGIN)
    after = rest.split(END)[1]
    options.into.write_text(f"{before}{BEGIN}\n\n{text}\n{END}{after}")


if __name__ == "__main__":
    main()
