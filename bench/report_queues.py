"""Tables of the scenarios of queues, and the page that has them."""

from tables import DASH, get, number, ratio, table

PAGE = """# Queues

Duramen has a queue for each key of a topic. The peers have something else for it: Kafka a partition a queue, NATS JetStream a
subject a queue in one stream, Redis a stream a queue. All run on one machine with their clients, in one run, over loopback.

Repeat: `bench/run.sh --only queues --out run.json`, then
`bench/report.py run.json --only queues --into bench/results/queues.md`.

- **Load**: `duramen bench enqueue`, `retrieve`, `wait` and `takeover` for Duramen, with one thread. `duramen bench produce`,
  `append` and `tail` for Kafka. `bench/peers/` for NATS (nats.go) and Redis (go-redis), with as many threads as cores; it also
  makes the edits and the paced reads of Duramen, by HTTP/1.1.
- **Syncs**: each row says what the broker syncs before it acknowledges an append. Rows with `none` promise less.
- **Bulk**: 8 connections have one batch of 1,024 messages of 100 B each under way, round all queues. A time ends the load of
  slow brokers. Duramen and atomic batches of NATS append a batch whole or not at all. Publishes of NATS and pipelines of Redis
  may end in between. Three nodes of Duramen pass calls of the native API on to leaders; Produce goes to leaders at once.
- **Callers**: 128 callers append one message each, and wait. Over HTTP/1.1 a connection has one caller. Callers of Produce,
  Redis and Kafka that share a connection share requests. Calls by gRPC and publishes of NATS are one a message.
- **Memory**: as many messages go to six queues first, so what a broker takes for messages on their way is in both figures. Redis
  keeps elements in memory: 1,000 B of its figure are those.
- **Waits**: readers of Duramen wait by long polls, those of NATS by pulls of a consumer each, those of Redis by `XREAD BLOCK` on
  a connection each. A Kafka consumer follows a partition. The time is from when a message was due. A message to Kafka is late by
  up to a millisecond, for its load has a coarser timer.
- **Streams**: the whole log, 1 KB records in batches of 500, twice each way; the second time counts. Then 100 long polls, as in
  Waits, whose queues are in the same log: alone, and beside streams that began at its start and are not read.
- **Cold**: batches of ten messages of 1 KiB, in rounds through all queues. The pages are dropped before the reads, and the broker
  has just started. Each read takes the last round's ten elements, from a position that the client knows.
- **Mixed**: a writer appends one message at a time to random queues, at a steady rate. Beside it 16 callers read the first ten
  elements of random queues, at a steady rate. Duramen's writer uses gRPC, its readers HTTP/1.1 with protobuf. Nobody waits for
  another, so rates and shares stay the same. A time is from when a call was due. Each row is the pass in the middle by p99.
  *Cores* are the CPU seconds a second of the broker, of both loads together, and of all else. All share the machine's cores.
- **Edits**: each connection has one call at a time, on an element of its own, in rounds through 100 queues of one partition.
- **Erasure**: topics of one partition and 100 queues, with records of 1,000 B in batches of 500, a queue a batch, and segments of
  16 MiB. A call deletes up to 1,000 elements of one queue. Readers of a whole topic are kcat (librdkafka), which checks checksums,
  and `duramen bench consume`, which walks over batches. They read each topic in turn: before the deletions, while the deleted records
  are hidden, and after they are erased. Each speed is a median, and beside it the best. kcat's time includes the start of its process.
  kcat has to find each record that is left, and no other. The order to erase sets `queue.erase.lag.ms` to 0; the leader
  looks each 0.1 s. New files are segments and tables of the index. What the disk wrote includes all else on the machine.
- **Cost**: the same keyed batches by Produce into topics of Duramen with and without `queue.enable`; a clean stop ends each run, so
  the tables of the index count.
- **Takeover**: three nodes; one partition, or one stream, has all queues. The node that leads it is killed. Then 64 callers append to
  each queue behind the last element that they know, and read the queue. The pass before has the same load without a kill. A read
  of NATS gets the last message of a subject, from the stream's leader.

| | Goal |
|---|---|
| B1 | 161,000 rows/s, durable, on one node and three; 0.8 of our own Produce; twice each durable peer |
| B2 | the worst 0.8 of six queues |
| B3 | 100 B a queue; 1 s to the first read after a kill; 0.1 of NATS's memory a subject |
| B4 | flat as Produce: within 0.8 of it |
| B5 | p50 0.2 ms behind a durable append; p99 with 10,000 readers twice that with one |
| streams | 0.5 of Fetch's bytes a CPU second; p99 beside streams that nobody reads 1.2 of alone |
| B6 | 5 disk reads beside the batch's; p99 five times that of a 4 KiB read of the disk |
| B7 | p99 of appends beside reads 1.5 of alone, where cores are free |
| B8 | a consumer at 0.9 of a topic without deletions, after the erasure; the rest is stated |
| B9 | 5 % more CPU and 0.1 B a byte at batches of 1,024; 15 % more bytes at batches of one |
| B10 | 2 s to the first guarded append and the first read |

"""

# Peers that a scenario has not, and why.
WITHOUT = {
    "queue_memory": {
        "kafka": "100,000 partitions are no size for one broker",
        "other sync settings": "syncs have no part in memory and in starts",
    },
    "queue_waits": {"kafka, above one reader": "its consumers wait for partitions, not for keys"},
    "queue_cold": {
        "kafka": "it has no read of one key",
        "redis": "it keeps all elements in memory",
        "other sync settings": "syncs have no part in reads",
    },
    "queue_mixed": {
        "kafka": "it has no read of one key",
        "other sync settings": "the goal is about durable appends",
    },
    "queue_edits": {"peers": "none has edits with an order of their own, which its consumers see at once"},
    "queue_streams": {"peers": "the scenario compares Duramen with itself"},
    "work_queues": {"kafka and redis, delayed": "share groups and streams know no time of delivery"},
    "queue_cost": {"peers": "the scenario compares Duramen with itself"},
    "cluster_queue_bulk": {"redis": "it replicates without a majority: an acknowledged append may be lost with the first node"},
    "cluster_queue_takeover": {
        "kafka": "it has no guarded append",
        "redis": "it needs another program to choose a leader, and may lose acknowledged appends",
    },
}

HEADINGS = ["broker", "synced before the ack"]
# So many readers are enough to tell the memory of one.
READERS_WEIGHED = 100


def rows_of(found, key="points"):
    """The points of all variants, with what begins their rows."""
    for variant, result in found.items():
        for point in result.get(key, []):
            yield variant, [variant, result.get("sync", DASH)], point


def milliseconds(latency, *quantiles):
    if not latency or not any(latency.values()):
        return DASH  # no batch was over when the time was
    return "/".join(number(latency[quantile] / 1000, 2) for quantile in quantiles or ("p50", "p99"))


def times(ours, theirs):
    return DASH if not ours or not theirs else f"{ours / theirs:.1f}×"


def notes(name, found, *keys):
    """What is not in a table, and why."""
    versions = dict.fromkeys(result["version"] for result in found.values() if result.get("version"))
    lines = [f"- Peers: {', '.join(versions)}."] if versions else []
    lines += [f"- Without {peer}: {why}." for peer, why in WITHOUT.get(name, {}).items()]
    for variant, result in found.items():
        for key in ("skipped", "failed"):
            if key in result:
                lines.append(f"- {variant} {'was skipped' if key == 'skipped' else 'failed'}: {result[key].splitlines()[0]}")
        for point in [it for key in keys or ["points"] for it in result.get(key, [])]:
            if isinstance(point, dict) and "failed" in point and isinstance(point["failed"], str):
                where = ", ".join(f"{key} {value}" for key, value in point.items() if key != "failed" and value != "")
                lines.append(f"- {variant} failed at {where}: {point['failed']}")
    return "\n" + "\n".join(lines) + "\n" if lines else ""


def _ours(found, way):
    """Duramen's rate by one of its ways."""
    points = get(found, "duramen", "points") or []
    return next((point["messages_per_second"] for point in points if point["way"] == way and "total" in point), None)


def _bulk(name, found, title):
    produce, ours = _ours(found, "Produce"), _ours(found, "gRPC")
    rows = []
    for variant, start, point in rows_of(found):
        if "total" not in point:
            continue
        rate = point["messages_per_second"]
        is_ours = variant == "duramen"
        rows.append([
            *start, point["way"], ratio(rate, produce if is_ours else None), DASH if is_ours else times(ours, rate),
            number(point["broker_cpu_us_per_message"], 2), number(point["device_bytes_per_payload_byte"], 2), milliseconds(point["latency_us"]),
            number(point["client_cpu_seconds"], 1), number(point["total"]),
        ])  # fmt: skip
    return f"### {title}\n\n" + table(
        [*HEADINGS, "way", "rows/s (of Duramen's Produce)", "Duramen by gRPC is", "broker CPU µs a row", "device bytes a byte",
         "a batch, p50/p99 ms", "client CPU s", "rows"], rows,
    ) + notes(name, found)  # fmt: skip


def bulk(found):
    return _bulk("queue_bulk", found, "B1: rows of 100 B in batches of 1,024, six queues")


def cluster_bulk(found):
    return _bulk("cluster_queue_bulk", found, "B1 on three nodes: rows of 100 B in batches of 1,024, six queues, three replicas")


def counts(found):
    few, rows = {}, []
    for variant, start, point in rows_of(found):
        if "total" not in point:
            continue
        kind = variant, point["spread"]
        rate = point["messages_per_second"]
        few.setdefault(kind, rate)
        rows.append([
            "a queue a row" if point["spread"] else "one queue", *start, number(point["queues"]), ratio(rate, few[kind]),
            number(point["broker_cpu_us_per_message"], 2), number(point["device_bytes_per_payload_byte"], 2), milliseconds(point["latency_us"]),
        ])  # fmt: skip
    rows.sort(key=lambda row: row[0], reverse=True)
    return "### B2: the same over more queues\n\n" + table(
        ["a batch is of", *HEADINGS, "queues", "rows/s (of the fewest queues)", "broker CPU µs a row", "device bytes a byte",
         "a batch, p50/p99 ms"], rows,
    ) + notes("queue_counts", found)  # fmt: skip


def memory(found):
    lines = [
        ("queues", lambda it: number(it["queues"])),
        ("memory before them, MiB", lambda it: number(it["before_mib"], 1)),
        ("memory with them, MiB", lambda it: number(it["after_mib"], 1)),
        ("bytes of memory a queue", lambda it: number(it["bytes_a_queue"])),
        ("`kill -9` to the first read, s", lambda it: number(it["first_read_after_kill_s"], 3)),
        ("all queues listed, s", lambda it: f"{number(it['list_s'], 3)} ({number(it['listed'])})"),
        ("a read then, p50/p99 ms", lambda it: milliseconds(it["read_us"])),
        ("reads with fewer elements than were written", lambda it: number(it["short"])),
    ]
    there = {variant: result for variant, result in found.items() if "queues" in result}
    rows = [[label, *(cell(result) for result in there.values())] for label, cell in lines]
    return "### B3: queues of ten elements of 100 B that nobody uses\n\n" + table(["", *there], rows) + notes("queue_memory", found)


def callers(found):
    best, produce = {}, {}
    for variant, _, point in rows_of(found):
        if "total" in point:
            kind, rate = (variant, point["way"]), point["messages_per_second"]
            best[kind] = max(best.get(kind, 0), rate)
            if kind == ("duramen", "Produce"):
                produce[point["connections"]] = rate
    rows = []
    for variant, start, point in rows_of(found):
        if "total" not in point:
            continue
        rate, count = point["messages_per_second"], point["connections"]
        rows.append([
            count, *start, point["way"], point["callers"], ratio(rate, best[variant, point["way"]]), _share(rate, produce.get(count)),
            milliseconds(point["latency_us"]), number(point["broker_cpu_us_per_message"], 1), number(point["device_bytes_per_payload_byte"], 2),
        ])  # fmt: skip
    rows.sort(key=lambda row: row[0])
    return "### B4: one message of 100 B a call\n\n" + table(
        ["connections", *HEADINGS, "way", "callers", "messages/s (of its best)", "of Duramen's Produce", "p50/p99 ms",
         "broker CPU µs a message", "device bytes a byte"], rows,
    ) + notes("queue_callers", found)  # fmt: skip


def _share(value, reference):
    return DASH if not value or not reference else f"{value / reference:.2f}"


def waits(found):
    alone, rows = {}, []
    for variant, start, point in rows_of(found):
        if get(point, "latency_us", "p99") is None:
            continue
        latency, append = point["latency_us"], point["append_us"]
        first = alone.setdefault((variant, point["way"]), latency["p99"])
        # With few readers it would be the noise of all the rest.
        is_known = "memory_mib" in point and point["readers"] >= READERS_WEIGHED
        more = (point["memory_mib"] - get(found, variant, "before_mib")) * 1024 / point["readers"] if is_known else None
        rows.append([
            number(point["readers"]), *start, point["way"] or DASH, milliseconds(latency, "p50", "p99", "p999"), milliseconds(append, "p50", "p99", "p999"),
            number((latency["p50"] - append["p50"]) / 1000, 2), f"{latency['p99'] / first:.2f}", number(more, 1),
        ])  # fmt: skip
    rows.sort(key=lambda row: int(row[0].replace(",", "")))
    return "### B5: readers that wait, 200 messages of 100 B a second\n\n" + table(
        ["readers", *HEADINGS, "way", "to the reader, p50/p99/p99.9 ms", "to the ack, p50/p99/p99.9 ms", "p50 behind the ack, ms",
         "p99 of one reader's", "KiB of memory more a reader"], rows,
    ) + notes("queue_waits", found)  # fmt: skip


def streams(found):
    it = found.get("duramen", {})
    if "reads" not in it:
        return "### Streams\n" + notes("queue_streams", found)
    rows = []
    for way, read in it["reads"].items():
        per_cpu = read["bytes"] / 1e6 / max(read["broker_cpu_seconds"], 0.01)
        first = rows[0][-1] if rows else per_cpu
        rows.append([way, number(read["bytes"] / 2**20), number(read["megabytes_per_second"]), number(per_cpu), f"{per_cpu / first:.2f}", per_cpu])
    text = "### Streams: a log read whole\n\n" + table(
        ["way", "MiB", "MB/s", "MB a second of the broker's CPU", "of Fetch's"], [row[:-1] for row in rows]
    )
    rows = [
        [beside, milliseconds(wait["latency_us"], "p50", "p99", "p999"), milliseconds(wait["append_us"], "p50", "p99", "p999")]
        for beside, wait in it["waits"].items()
    ]
    text += f"\n### Streams: 100 readers that wait, beside {it['stalled']} streams that nobody reads\n\n"
    head = ["", "to the reader, p50/p99/p99.9 ms", "to the ack, p50/p99/p99.9 ms"]
    return text + table(head, rows) + notes("queue_streams", found)


def cold(found):
    rows = []
    for variant, it in found.items():
        if "probe_4k" not in it:
            continue
        latency, probe = it["latency_us"], it["probe_4k"]
        rows.append([
            variant, it.get("sync", DASH), number(it["log_bytes"] / 2**30, 2), number(it["queues"]), number(it["device_reads_a_read"], 1),
            number(it["device_bytes_a_read"] / 1024), milliseconds(latency), milliseconds(probe, "p50_us", "p99_us"),
            f"{latency['p99'] / probe['p99_us']:.1f}×", number(it["reads"]), number(it["short"]), it["dropped"],
        ])  # fmt: skip
    return "### B6: the last ten elements of random queues of a cold log\n\n" + table(
        [*HEADINGS, "log, GiB", "queues", "disk reads a read (one is the batch's)", "KiB from the disk a read", "p50/p99 ms",
         "a random 4 KiB of the disk, p50/p99 ms", "p99 of the disk's", "reads", "with fewer than ten", "dropped"], rows,
    ) + notes("queue_cold", found)  # fmt: skip


def cost(found):
    rows = []
    for point in get(found, "duramen", "points") or []:
        have, lack = point["with_queues"], point["without"]
        cpu = [it["broker_cpu_us_per_message"] for it in (have, lack)]
        device = [it["device_bytes_per_payload_byte"] for it in (have, lack)]
        rates = [it["messages_per_second"] for it in (have, lack)]
        rows.append([
            point["batch"], number(cpu[0], 2), f"{number(cpu[1], 2)} ({cpu[0] / max(cpu[1], 1e-9):.2f}×)", number(device[0], 3),
            f"{number(device[1], 3)} ({device[0] - device[1]:+.3f} B, {device[0] / max(device[1], 1e-9):.2f}×)",
            number(rates[0]), f"{number(rates[1])} ({rates[0] / rates[1]:.2f}×)",
        ])  # fmt: skip
    return "### B9: Produce of records of 100 B into a topic with queues, and into one without\n\n" + table(
        ["batch", "CPU µs a record, with", "without (with is)", "device bytes a byte, with", "without (with is)", "records/s, with",
         "without (with is)"], rows,
    ) + notes("queue_cost", found)  # fmt: skip


def takeover(found):
    rows = []
    for variant, result in found.items():
        points = result.get("points", [])
        for name, label in (("before", "nothing"), ("after", "the leader is killed")):
            passes = [point[name] for point in points]
            if not passes:
                continue

            def middle(key, passes=passes):
                return number(sorted(it[key] for it in passes)[len(passes) // 2], 2)

            rows.append([
                variant, result.get("sync", DASH), label, middle("first_append_s"), middle("last_append_s"), middle("first_read_s"),
                middle("last_read_s"), number(sum(it["failed"] for it in passes)), number(len(passes)), number(points[0]["queues"]),
            ])  # fmt: skip
    return "### B10: the leader of all queues is killed; medians of all kills\n\n" + table(
        [*HEADINGS, "what happened", "first guarded append, s", "all queues appended, s", "first read, s", "all queues read, s",
         "calls that came again", "passes", "queues"], rows,
    ) + notes("cluster_queue_takeover", found)  # fmt: skip


def mixed(found):
    alone, rows = {}, []
    for variant, start, point in rows_of(found):
        if "append_us" not in point:
            continue
        append = point["append_us"]
        # The first point of a variant has no reads.
        p50, p99 = (append[it] / alone.setdefault((variant, it), append[it]) for it in ("p50", "p99"))
        rows.append([
            *start, f"{point['read_share']:.0%}", number(point["appends_per_second"]), number(point["reads_per_second"]), milliseconds(append),
            f"{p50:.2f}/{p99:.2f}", "/".join(number(it / 1000, 2) for it in point["all_p99_us"]), milliseconds(point["read_us"]),
            number(point["short"]), *(number(point[f"{whose}_cores"], 2) for whose in ("broker", "client", "other")),
        ])  # fmt: skip
    return "### B7: appends at a steady rate beside reads of ten elements\n\n" + table(
        [*HEADINGS, "reads of all calls", "appends/s", "reads/s", "an append, p50/p99 ms", "of alone, p50/p99",
         "p99 of each pass, ms", "a read, p50/p99 ms", "short reads", "broker, cores", "loads, cores", "others, cores"], rows,
    ) + notes("queue_mixed", found)  # fmt: skip


def edits(found):
    points = get(found, "duramen", "points") or []
    appends = {it["connections"]: it["messages_per_second"] for it in points if it["edit"] == "append" and "total" in it}
    rows = [
        [
            it["edit"], it["connections"], ratio(it["messages_per_second"], appends.get(it["connections"])), milliseconds(it["latency_us"]),
            number(it["broker_cpu_us_per_message"], 1), number(it["device_bytes_per_payload_byte"] * 100), number(it["total"]),
        ]
        for it in points if "total" in it
    ]  # fmt: skip
    text = "### B8: edits of one element a call, by HTTP/1.1\n\n" + table(
        ["edit", "connections", "calls/s (of appends)", "p50/p99 ms", "broker CPU µs a call", "device bytes a call", "calls"], rows
    )
    erasures = get(found, "duramen", "erasures") or []
    rows = []
    for it in erasures:
        for state, label in (("whole", "before the deletions"), ("hidden", "hidden"), ("erased", "erased")):
            if state not in it:
                continue
            readers = ("kcat", "kcat_best", "walk", "walk_best")
            speeds = [ratio(get(it, state, reader), get(erasures[0], state, reader)) for reader in readers]
            start = [f"{it['share']:.1%}", it["which"], number(it.get("deleted", 0)), label]
            rows.append([*start, *speeds, number(it[state]["walk_cpu_s"], 2)])
    text += "\n### B8: MB/s of a consumer that reads the whole topic (of the topic without deletions)\n\n" + table(
        ["deleted", "which", "records", "when", "kcat", "kcat, best", "walk", "walk, best", "broker CPU s of a walk"], rows
    )
    rows = [
        [
            f"{it['share']:.1%}", it["which"], number(it["delete_calls"]), number(it["delete_s"], 2), number(it["deleted_bytes"] / 1e6, 1),
            number(it["log_bytes"] / 1e6), f"{it['new_segments']} of {it['segments']}", number(it["new_bytes"] / 1e6),
            number(it["new_bytes"] / it["deleted_bytes"], 1), number(it["device_bytes"] / 1e6), number(it["erase_s"], 2),
            number(it["erase_cpu_s"], 2),
        ]
        for it in erasures if "erase_s" in it
    ]  # fmt: skip
    text += "\n### B8: what deletions and their erasure take\n\n" + table(
        ["deleted", "which", "calls", "s", "MB deleted", "MB of the log", "segments written", "MB of new files",
         "bytes of new files a deleted byte", "MB that the disk wrote", "s until erased", "broker CPU s"], rows,
    )  # fmt: skip
    return text + notes("queue_edits", found)


TABLES = {
    "queue_bulk": bulk,
    "queue_counts": counts,
    "queue_memory": memory,
    "queue_callers": callers,
    "queue_waits": waits,
    "queue_streams": streams,
    "queue_mixed": mixed,
    "queue_edits": edits,
    "queue_cold": cold,
    "queue_cost": cost,
    "cluster_queue_bulk": cluster_bulk,
    "cluster_queue_takeover": takeover,
}
