"""Queues, beside what others have for them: one function a scenario. Each takes a broker, or three, and the sizes.

Duramen has a queue for each key of a topic, Kafka a partition, NATS JetStream a subject of one stream, Redis a stream.
"""

import contextlib
import http.client
import json
import random
import shutil
import statistics
import subprocess
import time
import urllib.parse
import urllib.request
from pathlib import Path

import cluster
import limits
import machine
import peers
from brokers import DURAMEN_BIN, LONGEST_COMMAND_S, MeasuredDuramen, duramen, finish, launcher, log_files, start
from cluster import warm_up as warm_up_three
from scenarios import create, warm_up

MESSAGE_BYTES = 100
ROWS_A_BATCH = 1024
# Clients of bulk loads, each with a connection and one request at a time.
WRITERS = 8
CALLERS = 128
PARTITIONS = 6
TOPIC = "queues"
# Kafka keeps a few files open for each partition; more of them no broker of one machine is for.
KAFKA_QUEUES_MAX = 10_000
IDLE_ELEMENTS = 10
COLD_MESSAGE_BYTES, COLD_ELEMENTS = 1024, 10
WAIT_RATE = 200
# Streams that nobody reads, each over a connection of its own.
STALLED = 64
# Readers beside writers: enough callers that a read is rarely late for want of one.
PACED_CALLERS = 16
MIXED_ELEMENTS = 10
# Shares of all calls that are reads; none is said twice, since the machine changes meanwhile.
READ_SHARES = [0, 0.5, 0.9, 0]
# Edits and erasures: records of about 1 KB in batches of one queue each, in segments that an erasure soon has written.
EDIT_BYTES, EDIT_BATCH, EDIT_QUEUES, EDIT_SEGMENT_BYTES = 1000, 500, 100, 16 << 20
EDIT_KINDS, EDIT_CONNECTIONS = ["append", "delete", "replace"], [1, 32]
# Share of records that are deleted, and which.
ERASED = [(0, "none"), (0.001, "random ones"), (0.01, "random ones"), (0.01, "the oldest")]
# How often the leader looks for what to erase, so long an erasure may wait.
LOOK_MS = 100
LONG_LAG_MS = 24 * 3600 * 1000
POSITIONS_A_CALL = 1000
# No broker takes nearly as long to come back.
LONGEST_START_S = 120


class Sizes:
    """How much of everything; `quick` keeps every scenario and shortens it."""

    def __init__(self, sizes):
        quick = self.quick = sizes.quick
        self.all = sizes
        # The bounds of a bulk load, whichever comes first.
        self.rows, self.bulk_seconds = (1 << 17, 1) if quick else (1 << 24, 30)
        self.counts, self.count_seconds = ([6, 6_000], 1) if quick else ([6, 60, 600, 6_000, 10_000, 100_000], 6)
        self.idle_queues = 5_000 if quick else 100_000
        # Duramen's index writes a memtable down one to two minutes after the last append.
        self.silence_s = {"duramen": 1 if quick else 150, "others": 1 if quick else 20}
        self.connections, self.call_seconds = ([1, 128], 1) if quick else ([1, 4, 16, 64, 128], 6)
        self.call_queues, self.kafka_call_queues = (1_000, 100) if quick else (10_000, 10_000)
        self.readers, self.wait_seconds = ([1, 100], 1) if quick else ([1, 1_000, 10_000], 15)
        self.read_messages = 50_000 if quick else 1_000_000
        self.cold_bytes, self.cold_queues, self.cold_reads = (256 << 20, 2_000, 200) if quick else (20 << 30, 100_000, 2_000)
        self.cold_fill_s, self.cold_read_s = (4, 2) if quick else (300, 30)
        self.cost_rows, self.cost_calls, self.repeats = (1 << 16, 2_000, 1) if quick else (1 << 22, 200_000, 3)
        self.mixed_rate, self.mixed_queues, self.mixed_seconds = (100, 1_000, 1) if quick else (500, 10_000, 10)
        self.edits, self.edit_seconds = (2_000, 1) if quick else (30_000, 6)
        self.erased_records, self.erased_reads = (100_000, 1) if quick else (1_000_000, 5)
        self.takeover_queues, self.kills = (500, 1) if quick else (10_000, 3)


DURABLE = ["duramen", "kafka-durable", "nats-always", "redis-always"]
ALL = ["duramen", "kafka-durable", "kafka", "nats-always", "nats", "redis-always", "redis-everysec"]
# The variants of each scenario, in a full run and in a quick one. A JVM takes seconds to begin, so few of the quick ones have one.
WITHOUT_JVM = ["duramen", "nats-always", "redis-always"]
VARIANTS = {
    "queue_bulk": (ALL, DURABLE),
    "queue_counts": (ALL, WITHOUT_JVM),
    "queue_memory": (["duramen", "nats", "redis-everysec"], ["duramen", "nats", "redis-everysec"]),
    "queue_callers": (ALL, WITHOUT_JVM),
    "queue_waits": (ALL, WITHOUT_JVM),
    "queue_streams": (["duramen"], ["duramen"]),
    "queue_cold": (["duramen", "nats"], ["duramen", "nats"]),
    "queue_mixed": (["duramen", "nats-always", "redis-always"], WITHOUT_JVM),
    "queue_edits": (["duramen"], ["duramen"]),
    "queue_cost": (["duramen"], ["duramen"]),
    "cluster_queue_bulk": (["duramen", "kafka-durable", "kafka", "nats-always", "nats"], ["duramen", "nats-always"]),
    "cluster_queue_takeover": (["duramen", "nats-always", "nats"], ["duramen", "nats-always"]),
}


def variants_of(name, quick):
    return VARIANTS[name][1 if quick else 0]


def load(broker, command, **options):
    """Runs a load of queues on any broker; answers its report."""
    return finish(begin(broker, command, **options))


def begin(broker, command, stdin=None, **options):
    """Begins it. Options are those of `duramen bench`, with the same names for peers, whose load has `edit` and `pace` for Duramen."""
    if broker.kind == "duramen" and command != "edit" and "pace" not in options:
        words = [DURAMEN_BIN, "bench", command, "--output", "json", "--native", ",".join(each.native for each in broker.brokers)]
        if command == "enqueue":
            words += ["--bootstrap", broker.bootstrap]
    else:
        words = peers.load_command(broker, command)
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        if value is True:
            words.append(flag)
        elif isinstance(value, list):
            words += [word for each in value for word in (flag, each)]
        elif value is not None and value is not False:
            words += [flag, value]
    return subprocess.Popen(
        list(map(str, words)), stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )  # fmt: skip


def ways(broker, batch):
    """How messages go in: of Duramen each of its ways, of NATS one by one or in atomic batches."""
    if broker.kind == "duramen":
        return {"gRPC": {"via": "grpc"}, "gRPC stream": {"via": "stream"}, "HTTP/protobuf": {"via": "http"}, "Produce": {"via": "kafka"}}
    if broker.kind == "nats":
        return {"publishes": {}, "atomic batches": {"atomic": True}} if batch > 1 else {"publishes": {}}
    return {"Produce": {}} if broker.kind == "kafka" else {"pipelines": {}}


def measured(broker, size, work):
    """Runs `work` and adds what the brokers used for it, all of them together."""
    directory = broker.brokers[0].data_dir
    written = machine.written_bytes(directory)
    cpu = [machine.cpu_seconds(each.pid) for each in broker.brokers]
    result = work()
    cpu = sum(machine.cpu_seconds(each.pid) for each in broker.brokers) - sum(cpu)
    written = machine.written_bytes(directory) - written
    count = max(1, result["total"])
    return {
        **result,
        "broker_cpu_seconds": round(cpu, 2),
        "broker_cpu_us_per_message": round(cpu / count * 1e6, 3),
        "device_bytes_per_payload_byte": round(written / (count * size), 3),
    }


def attempt(points, point, work):
    """Adds a point. One that fails says so, and the others are still measured."""
    try:
        points.append({**point, **work()})
    except (RuntimeError, subprocess.SubprocessError) as error:
        points.append({**point, "failed": str(error).strip().splitlines()[-1]})


def make_topic(broker, topic, partitions=PARTITIONS, queues=True, **more):
    """Peers make their streams themselves."""
    if broker.kind == "duramen":
        settings = ["--config", "queue.enable=true"] if queues else []
        settings += [word for name, value in more.items() for word in ("--config", f"{name.replace('_', '.')}={value}")]
        duramen(broker, "topic", "create", topic, "--partitions", partitions, *settings)
        for each in broker.brokers:
            for partition in range(partitions):
                _tail(each, topic, partition)


def _tail(broker, topic, partition):
    """The ends of a partition, as soon as the node knows who leads it."""
    deadline = time.monotonic() + LONGEST_START_S
    while True:
        try:
            with urllib.request.urlopen(f"http://{broker.native}/v1/topics/{topic}/partitions/{partition}", timeout=30) as answer:
                return json.load(answer)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def placed(broker, topic, partitions=PARTITIONS):
    """The options that name a topic, or a stream."""
    if broker.kind == "duramen":
        return {"topic": topic, "partitions": partitions}
    return {"topic": topic, "replicas": len(broker.brokers)} if broker.kind == "nats" else {"topic": topic}


def bulk(broker, sizes):
    """B1: 2^24 rows of 100 B in batches of 1,024, round six queues; each batch is of one queue."""
    s = Sizes(sizes)
    (warm_up_three if len(broker.brokers) > 1 else warm_up)(broker, sizes)
    points = []
    for number, (way, options) in enumerate(ways(broker, ROWS_A_BATCH).items()):
        attempt(points, {"way": way, "queues": 6}, lambda: _bulk(broker, f"rows-{number}", 6, s.rows, s.bulk_seconds, options))
    return {"points": points}


def _bulk(broker, topic, queues, rows, seconds, options, spread=False):
    if broker.kind == "kafka":
        create(broker, topic, queues)
        work = lambda: duramen(  # noqa: E731
            broker, "bench", "produce", "--topic", topic, "--partitions", queues, "--messages", rows, "--seconds", seconds,
            "--size", MESSAGE_BYTES, "--batch", ROWS_A_BATCH, "--connections", WRITERS, "--in-flight", 1,
        )  # fmt: skip
    else:
        make_topic(broker, topic)
        work = lambda: load(  # noqa: E731
            broker, "enqueue", **placed(broker, topic), queues=queues, messages=rows, seconds=seconds, size=MESSAGE_BYTES,
            batch=ROWS_A_BATCH, callers=WRITERS, connections=WRITERS, spread=spread, **options,
        )  # fmt: skip
    result = measured(broker, MESSAGE_BYTES, work)
    _forget(broker, topic)
    return result


def _forget(broker, topic):
    """Makes room on the disk. Peers remove their streams with their directories."""
    if broker.kind in ("duramen", "kafka"):
        duramen(broker, "topic", "delete", topic)
        time.sleep(0.5)


def counts(broker, sizes):
    """B2: the same over more and more queues: batches of one queue each, and batches with a queue a row."""
    s = Sizes(sizes)
    warm_up(broker, sizes)
    points = []
    way, options = next(iter(ways(broker, 1).items()))
    for count in s.counts:
        for spread in (False, True):
            if broker.kind == "kafka" and (spread or count > KAFKA_QUEUES_MAX):
                continue
            attempt(
                points, {"queues": count, "spread": spread, "way": way},
                lambda: _bulk(broker, f"counts-{count}-{spread}", count, s.rows, s.count_seconds, options, spread),
            )  # fmt: skip
    return {"points": points}


def memory(broker, sizes):
    """B3: many queues of ten elements, then silence; what they take, and how soon they are there after `kill -9`."""
    s = Sizes(sizes)
    messages = s.idle_queues * IDLE_ELEMENTS
    silence_s = s.silence_s.get(broker.kind, s.silence_s["others"])
    fill = {"messages": messages, "size": MESSAGE_BYTES, "batch": 1000, "spread": True, "callers": 4, "connections": 4}
    # As much over six queues first: what is taken for bytes on their way is no memory of queues.
    make_topic(broker, "few")
    load(broker, "enqueue", **placed(broker, "few"), queues=6, **fill)
    time.sleep(silence_s)
    before = machine.memory_mib(broker.pid)
    make_topic(broker, TOPIC)
    load(broker, "enqueue", **placed(broker, TOPIC), queues=s.idle_queues, **fill)
    time.sleep(silence_s)
    after = machine.memory_mib(broker.pid)
    broker.kill9()
    begun = time.monotonic()
    broker.spawn()
    launched = time.monotonic() - begun
    back = load(
        broker, "retrieve", **placed(broker, TOPIC), queues=s.idle_queues, limit=IDLE_ELEMENTS, reads=1000,
        patience=LONGEST_START_S, list=True,
    )  # fmt: skip
    return {
        "queues": s.idle_queues,
        "elements": IDLE_ELEMENTS,
        "before_mib": before,
        "after_mib": after,
        "bytes_a_queue": round((after - before) * 2**20 / s.idle_queues),
        "first_read_after_kill_s": round(launched + back["first_s"], 3),
        "listed": back["listed"],
        "list_s": round(back["list_s"], 3),
        "read_us": back["latency_us"],
        "short": back["short"],
    }


def callers(broker, sizes):
    """B4: 128 callers that each append one message and wait, over more and more connections, round many queues."""
    s = Sizes(sizes)
    warm_up(broker, sizes)
    points = []
    if broker.kind == "kafka":
        create(broker, TOPIC, s.kafka_call_queues)
    for number, (way, options) in enumerate(ways(broker, 1).items()):
        topic = f"{TOPIC}-{number}"
        make_topic(broker, topic)
        for count in s.connections:
            # A connection of HTTP/1.1 has one call at a time.
            at_once = count if options.get("via") == "http" else CALLERS
            attempt(
                points, {"connections": count, "callers": at_once, "way": way},
                lambda: _calls(broker, s, topic, at_once, count, options),
            )  # fmt: skip
    return {"points": points}


def _calls(broker, s, topic, at_once, connections, options):
    warm = s.all.warmup
    if broker.kind == "kafka":
        work = lambda: duramen(  # noqa: E731
            broker, "bench", "append", "--appenders", at_once, "--connections", connections, "--size", MESSAGE_BYTES,
            "--topic", TOPIC, "--partitions", s.kafka_call_queues, "--seconds", s.call_seconds, "--warmup-seconds", warm,
        )  # fmt: skip
    else:
        work = lambda: load(  # noqa: E731
            broker, "enqueue", **placed(broker, topic), queues=s.call_queues, seconds=s.call_seconds, warmup_seconds=warm,
            size=MESSAGE_BYTES, callers=at_once, connections=connections, **options,
        )  # fmt: skip

    def counted():
        result = work()
        # CPU and disk are counted over the warm-up, too.
        share = (result["seconds"] + warm) / result["seconds"]
        return {**result, "measured": result["total"], "total": round(result["total"] * share)}

    result = measured(broker, MESSAGE_BYTES, counted)
    result["messages_per_second"] = result.get("messages_per_second", result.get("appends_per_second"))
    return result


def waits(broker, sizes):
    """B5: readers that wait, each for its queue, and 200 messages a second; from when one is due to its reader."""
    s = Sizes(sizes)
    warm_up(broker, sizes)
    points = []
    before = machine.memory_mib(broker.pid)
    for readers in s.readers:
        if broker.kind == "kafka" and readers > 1:
            continue
        for way in ["gRPC", "HTTP/1.1"] if broker.kind == "duramen" else [""]:
            topic = f"{TOPIC}-{readers}-{len(points)}"
            make_topic(broker, topic)
            # Each second some hundreds, or thousands, of readers begin to wait.
            warm = (1 if s.quick else 2) + readers / 2500
            options = {"readers": readers, "rate": WAIT_RATE, "seconds": s.wait_seconds, "warmup_seconds": warm, "size": MESSAGE_BYTES}
            attempt(points, {"readers": readers, "way": way}, lambda: _wait(broker, topic, way, warm, options))
    return {"points": points, "before_mib": before}


def _wait(broker, topic, way, warm, options):
    if broker.kind == "kafka":
        create(broker, topic, 1)
        return duramen(
            broker, "bench", "tail", "--topic", topic, "--consumers", 1, "--rate", WAIT_RATE, "--size", MESSAGE_BYTES,
            "--seconds", options["seconds"], "--warmup-seconds", warm,
        )  # fmt: skip
    if broker.kind == "duramen":
        options = {**options, "via": "http" if way == "HTTP/1.1" else "grpc"}
    process = begin(broker, "wait", **placed(broker, topic), connections=min(16, options["readers"]), **options)
    time.sleep(warm + options["seconds"] / 2)
    memory_mib = machine.memory_mib(broker.pid)
    return {**finish(process), "memory_mib": memory_mib}


def streams(broker, sizes):
    """A log of 1 KB records read whole by Fetch and by the native API; then waits, alone and beside streams that nobody reads."""
    s = Sizes(sizes)
    warm_up(broker, sizes)
    make_topic(broker, TOPIC, 1)
    fill = {"messages": s.read_messages, "size": 1000, "batch": 500, "callers": 4, "connections": 4}
    load(broker, "enqueue", **placed(broker, TOPIC, 1), queues=1000, **fill)
    ways = {
        "Fetch": lambda: duramen(broker, "bench", "consume", "--topic", TOPIC),
        "native, raw": lambda: load(broker, "read", topic=TOPIC),
    }
    reads = {}
    for way, read in ways.items():
        read()
        cpu = machine.cpu_seconds(broker.pid)
        report = read()
        reads[way] = {**report, "broker_cpu_seconds": round(machine.cpu_seconds(broker.pid) - cpu, 2)}
    waits = {}
    for beside in ("alone", "beside stalled streams", "alone again"):
        wait = {"readers": 100, "rate": WAIT_RATE, "seconds": s.wait_seconds, "warmup_seconds": 2, "size": MESSAGE_BYTES}
        holding = None
        if beside == "beside stalled streams":
            holding = begin(broker, "read", topic=TOPIC, stalled=STALLED, seconds=600)
            time.sleep(2)
        waits[beside] = load(broker, "wait", **placed(broker, TOPIC, 1), connections=16, via="grpc", **wait)
        if holding:
            is_held = holding.poll() is None
            holding.kill()
            failure = holding.communicate()[1]
            if not is_held:
                raise RuntimeError(f"the streams that nobody reads ended: {failure}")
    return {"reads": reads, "waits": waits, "stalled": STALLED}


def cold(broker, sizes):
    """B6: a long log of batches of ten, its pages dropped; the last ten elements of random queues, one read at a time."""
    s = Sizes(sizes)
    make_topic(broker, TOPIC)
    batch = {"batch": COLD_ELEMENTS, "size": COLD_MESSAGE_BYTES, "callers": 64, "connections": 4, "queues": s.cold_queues}
    place = placed(broker, TOPIC)
    last_round = s.cold_queues * COLD_ELEMENTS
    messages = max(last_round, s.cold_bytes // COLD_MESSAGE_BYTES - last_round)
    filled = load(broker, "enqueue", **place, **batch, messages=messages, seconds=s.cold_fill_s)
    after = _ends(broker)
    load(broker, "enqueue", **place, **batch, messages=last_round)
    broker.stop()
    files = [path for path in broker.data_dir.rglob("*") if path.is_file()]
    dropped = _drop(files)
    broker.restart()
    # The start itself read some.
    _drop(files)
    log = [path for path in files if path.suffix in (".log", ".blk")]
    probe = limits.read_probe(log, s.cold_read_s / 4)
    _drop(files)
    reads = machine.device_reads(broker.data_dir)
    found = load(
        broker, "retrieve", **place, queues=s.cold_queues, limit=COLD_ELEMENTS, reads=s.cold_reads, seconds=s.cold_read_s,
        after=after, patience=LONGEST_START_S,
    )  # fmt: skip
    used = {name: count - reads[name] for name, count in machine.device_reads(broker.data_dir).items()}
    return {
        "log_bytes": sum(path.stat().st_size for path in log if path.exists()),
        "messages": filled["total"] + last_round,
        "queues": s.cold_queues,
        "dropped": dropped,
        "reads": found["total"],
        "short": found["short"],
        "device_reads_a_read": round(used["reads"] / max(1, found["total"]), 2),
        "device_bytes_a_read": round(used["bytes"] / max(1, found["total"])),
        "latency_us": found["latency_us"],
        "probe_4k": probe,
    }


def _ends(broker):
    """Where the last round will begin: for `--after`."""
    if broker.kind != "duramen":
        return load(broker, "end", topic=TOPIC)["end"]
    lasts = {partition: _tail(broker, TOPIC, partition).get("last") for partition in range(PARTITIONS)}
    return [f"{partition}={last}" for partition, last in lasts.items() if last]


def _drop(files):
    """Takes files out of the page cache; as root the whole cache, with names and places of files."""
    limits.drop_pages([path for path in files if path.exists()])
    try:
        Path("/proc/sys/vm/drop_caches").write_text("3\n")
        return "all caches"
    except OSError:
        return "pages of the files"


def mixed(broker, sizes):
    """B7: appends at a steady rate, alone and beside reads at steady rates, so that both are shares of all calls."""
    s = Sizes(sizes)
    make_topic(broker, TOPIC)
    # A read is of one batch, as in B6.
    fill = {"messages": s.mixed_queues * MIXED_ELEMENTS, "batch": MIXED_ELEMENTS, "callers": 64, "connections": 4}
    load(broker, "enqueue", **placed(broker, TOPIC), queues=s.mixed_queues, size=MESSAGE_BYTES, **fill)
    passes = []
    for _ in range(s.repeats):
        for share in READ_SHARES:
            attempt(passes, {"read_share": share}, lambda: _mixed(broker, s, share))
    points = []
    for share in dict.fromkeys(READ_SHARES):
        found = [it for it in passes if it["read_share"] == share]
        # The pass in the middle by what the goal is about.
        done = sorted((it for it in found if "failed" not in it), key=lambda it: it["append_us"]["p99"])
        points += [done[len(done) // 2] | {"all_p99_us": [it["append_us"]["p99"] for it in done]}] if done else found[:1]
    return {"points": points}


def _mixed(broker, s, share):
    """Appends and reads in processes of their own. What each took is from when it was due."""
    times = {"seconds": s.mixed_seconds, "warmup_seconds": 1 if s.quick else 2}
    writer = {"readers": 0, "rate": s.mixed_rate, "size": MESSAGE_BYTES, "queues": s.mixed_queues, "connections": 1}
    reads = round(s.mixed_rate * share / (1 - share))
    counters = (lambda: machine.cpu_seconds(broker.pid), machine.children_cpu_seconds, machine.busy_cpu_seconds)
    before, begun = [each() for each in counters], time.monotonic()
    reading = None
    if reads:
        reading = begin(
            broker, "retrieve", **placed(broker, TOPIC), queues=s.mixed_queues, limit=MIXED_ELEMENTS, callers=PACED_CALLERS,
            connections=PACED_CALLERS, pace=reads, seconds=times["seconds"], warmup_seconds=times["warmup_seconds"],
        )  # fmt: skip
    try:
        wrote = load(broker, "wait", **placed(broker, TOPIC), **writer, **times)
    finally:
        read = finish(reading) if reading else {}
    spent = time.monotonic() - begun
    ours, clients, busy = (round((each() - at) / spent, 2) for each, at in zip(counters, before, strict=True))
    return {
        "appends_per_second": s.mixed_rate,
        "reads_per_second": read.get("reads_per_second", 0),
        "short": read.get("short", 0),
        "append_us": wrote["append_us"],
        "read_us": read.get("latency_us"),
        "broker_cores": ours,
        "client_cores": clients,
        "other_cores": round(max(0, busy - ours - clients), 2),
    }


def edits(_variant, directory, sizes):
    """B8: edits a second; then how fast a consumer reads a topic some of whose records are deleted, and erased; what that costs."""
    s = Sizes(sizes)
    settings = {"log.cleaner.backoff.ms": str(LOOK_MS)}
    broker = MeasuredDuramen(launcher.free_port(), Path(directory), settings, [], [])
    broker.restart()
    with broker:
        points = []
        for edit in EDIT_KINDS:
            for connections in EDIT_CONNECTIONS:
                attempt(points, {"edit": edit, "connections": connections}, lambda: _edit(broker, s, edit, connections))
        erasures = _erasures(broker, s)
    shutil.rmtree(directory, ignore_errors=True)
    return {"points": points, "erasures": erasures}


def _edit(broker, s, edit, connections):
    topic = f"{edit}-{connections}"
    make_topic(broker, topic, 1, queue_erase_lag_ms=LONG_LAG_MS, segment_bytes=EDIT_SEGMENT_BYTES)
    place = {**placed(broker, topic, 1), "queues": EDIT_QUEUES, "size": MESSAGE_BYTES}
    load(broker, "enqueue", **place, messages=s.edits, batch=s.edits // EDIT_QUEUES, callers=1)
    options = {"edit": edit, "messages": s.edits, "seconds": s.edit_seconds, "connections": connections}
    result = measured(broker, MESSAGE_BYTES, lambda: load(broker, "edit", **place, **options))
    _forget(broker, topic)
    return result


def _erasures(broker, s):
    points = []
    for number, (share, which) in enumerate(ERASED):
        topic = f"erased-{number}"
        make_topic(broker, topic, 1, queue_erase_lag_ms=LONG_LAG_MS, segment_bytes=EDIT_SEGMENT_BYTES)
        fill = {"messages": s.erased_records, "size": EDIT_BYTES, "batch": EDIT_BATCH, "callers": 4, "connections": 4}
        load(broker, "enqueue", **placed(broker, topic, 1), queues=EDIT_QUEUES, **fill)
        points.append({"topic": topic, "share": share, "which": which, "records": s.erased_records})
    _read_all(broker, points, "whole", s.erased_reads)
    for point in points:
        if point["share"]:
            point |= _delete_share(broker, s, point)
    _read_all(broker, points, "hidden", s.erased_reads)
    for point in points:
        if point["share"]:
            point |= _erase(broker, point)
    _read_all(broker, points, "erased", s.erased_reads)
    return points


def _read_all(broker, points, name, repeats):
    """Reads of each topic, in turn, by a stock consumer and by one that only walks over batches."""
    kcat = shutil.which("kcat")
    found = [{"kcat": [], "walk": [], "walk_cpu_s": []} for _ in points]
    order = list(zip(points, found, strict=True))
    for turn in range(repeats):
        at = turn % len(order)
        for point, figures in order[at:] + order[:at]:
            cpu = machine.cpu_seconds(broker.pid)
            walked = duramen(broker, "bench", "consume", "--topic", point["topic"])
            figures["walk_cpu_s"].append(machine.cpu_seconds(broker.pid) - cpu)
            figures["walk"].append(walked["megabytes_per_second"])
            if kcat:
                figures["kcat"].append(_kcat(kcat, broker, point["topic"], point["records"] - point.get("deleted", 0)))
    for point, figures in order:
        point[name] = {figure: round(statistics.median(each), 2) for figure, each in figures.items() if each}
        point[name] |= {f"{figure}_best": round(max(each), 2) for figure, each in figures.items() if each}


def _kcat(kcat, broker, topic, records):
    """Megabytes of values a second, from the start of the process to the last record."""
    command = [
        kcat, "-C", "-q", "-b", broker.bootstrap, "-t", topic, "-p", "0", "-o", "beginning", "-c", str(records), "-e", "-f", "\\n",
        "-X", "check.crcs=true",
    ]  # fmt: skip
    begun = time.monotonic()
    out = subprocess.run(command, capture_output=True, timeout=LONGEST_COMMAND_S, check=True).stdout
    took = time.monotonic() - begun
    if len(out) != records:
        raise RuntimeError(f"kcat read {len(out)} records of {topic}, not {records}")
    return records * EDIT_BYTES / took / 1e6


def _delete_share(broker, s, point):
    """Deletes of many elements a call, each of one queue. The choice is the same in each run."""
    wanted = round(s.erased_records * point["share"] / EDIT_QUEUES)
    chance = random.Random(point["topic"])
    with contextlib.closing(http.client.HTTPConnection(broker.native, timeout=LONGEST_COMMAND_S)) as connection:
        chosen = {}
        for number in range(EDIT_QUEUES):
            queue = f"/v1/topics/{point['topic']}/queues/queue-{number:08}"
            is_oldest = point["which"] == "the oldest"
            positions = _positions(connection, queue, wanted if is_oldest else s.erased_records // EDIT_QUEUES)
            chosen[queue] = positions if is_oldest else chance.sample(positions, wanted)
        begun, calls, deleted = time.monotonic(), 0, 0
        for queue, positions in chosen.items():
            for at in range(0, len(positions), POSITIONS_A_CALL):
                body = json.dumps({"positions": positions[at : at + POSITIONS_A_CALL]})
                deleted += _call(connection, "POST", f"{queue}/delete", body)["withdrawn"]
                calls += 1
    return {"deleted": deleted, "delete_calls": calls, "delete_s": round(time.monotonic() - begun, 3)}


def _positions(connection, queue, wanted):
    """Those of the first elements of a queue, without what the elements hold."""
    found, after = [], ""
    while len(found) < wanted:
        options = {"limit": min(POSITIONS_A_CALL, wanted - len(found)), "fields": '{"o":"offset"}'} | ({"after": after} if after else {})
        page = _call(connection, "GET", f"{queue}/messages?{urllib.parse.urlencode(options)}")
        found += [element["position"] for element in page["elements"]]
        after = page["next"]
        if not page["more"]:
            break
    return found


def _call(connection, method, path, body=None):
    connection.request(method, path, body, {"content-type": "application/json"} if body else {})
    answer = connection.getresponse()
    text = answer.read()
    if answer.status != 200:
        raise RuntimeError(f"{method} {path}: {answer.status} {text.decode()}")
    return json.loads(text)


def _erase(broker, point):
    """Orders an erasure and waits until it is done; what it wrote, by the files that are new and by the disk."""
    topic = point["topic"]
    told = _erasure(broker, topic)
    if told["hidden_records"] != point["deleted"]:
        raise RuntimeError(f"{topic}: {told['hidden_records']} records wait for erasure, not {point['deleted']}")
    log_bytes = sum(path.stat().st_size for path in log_files(broker, topic))
    before, written, cpu = _files(broker.data_dir), machine.written_bytes(broker.data_dir), machine.cpu_seconds(broker.pid)
    begun = time.monotonic()
    duramen(broker, "topic", "alter", topic, "--config", "queue.erase.lag.ms=0")
    while _erasure(broker, topic)["state"] != "erased":
        if time.monotonic() - begun > LONGEST_COMMAND_S:
            raise RuntimeError(f"{topic} is not erased after {LONGEST_COMMAND_S} s")
        time.sleep(0.05)
    took = time.monotonic() - begun
    cpu = machine.cpu_seconds(broker.pid) - cpu
    written = machine.written_bytes(broker.data_dir) - written
    new = [(path, size) for inode, (path, size) in _files(broker.data_dir).items() if inode not in before]
    segments = [size for path, size in new if path.suffix == ".log"]
    deleted_bytes = log_bytes / point["records"] * point["deleted"]
    return {
        "erase_s": round(took, 2),
        "erase_cpu_s": round(cpu, 2),
        "log_bytes": log_bytes,
        "new_segments": len(segments),
        "segments": len(log_files(broker, topic)),
        "new_segment_bytes": sum(segments),
        "new_bytes": sum(size for _, size in new),
        "device_bytes": written,
        "deleted_bytes": round(deleted_bytes),
    }


def _erasure(broker, topic):
    return duramen(broker, "queue", "erasure", topic)["replicas"][0]


def _files(directory):
    """All files by their inodes: one that is written anew is another."""
    found = {}
    for path in directory.rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # the broker removed it meanwhile
            about = path.stat()
            if path.is_file():
                found[about.st_ino] = path, about.st_size
    return found


def cost(variant, directory, sizes):
    """B9: the same records into topics with and without queues; what the index costs."""
    s = Sizes(sizes)
    shapes = {
        "1,024, one queue": {"batch": ROWS_A_BATCH, "messages": s.cost_rows, "callers": WRITERS, "connections": WRITERS},
        "1,024, a queue each": {"batch": ROWS_A_BATCH, "messages": s.cost_rows, "callers": WRITERS, "connections": WRITERS, "spread": True},
        "1": {"batch": 1, "messages": s.cost_calls, "callers": CALLERS, "connections": CALLERS},
    }  # fmt: skip
    points = []
    for shape, options in shapes.items():
        found = {True: [], False: []}
        # In turn, since disks are not steady.
        for has_queues in (True, False) * s.repeats:
            found[has_queues].append(_cost(variant, directory / f"{len(points)}", s, has_queues, options))
        middle = {has: sorted(of, key=lambda it: it["broker_cpu_us_per_message"])[len(of) // 2] for has, of in found.items()}
        points.append({"batch": shape, "with_queues": middle[True], "without": middle[False]})
    return {"points": points}


def _cost(variant, directory, s, has_queues, options):
    with start(variant, directory) as broker:
        make_topic(broker, TOPIC, queues=has_queues)

        def work():
            result = load(broker, "enqueue", **placed(broker, TOPIC), queues=s.call_queues, size=MESSAGE_BYTES, via="kafka", **options)
            time.sleep(0.5)  # the index follows
            return result

        written = machine.written_bytes(broker.data_dir)
        result = measured(broker, MESSAGE_BYTES, work)
        # A clean stop writes the tables of the newest part, too.
        broker.stop()
        written = machine.written_bytes(broker.data_dir) - written
        result["device_bytes_per_payload_byte"] = round(written / (result["total"] * MESSAGE_BYTES), 3)
    shutil.rmtree(directory, ignore_errors=True)
    return result


def takeover(three, sizes):
    """B10: the node that leads all queues is killed; a guarded append to each of them, and a read, before and after."""
    s = Sizes(sizes)
    points = []
    for number in range(s.kills):
        topic = f"{TOPIC}-{number}"
        make_topic(three, topic, 1)
        options = {"queues": s.takeover_queues, "callers": 64, "size": MESSAGE_BYTES, "patience": 60}
        if three.kind == "nats":
            options |= {"connections": 8, "direct": "false"}
        process = begin(three, "takeover", subprocess.PIPE, **placed(three, topic, 1), **options)
        if process.stdout.readline().strip() != "ready":
            process.kill()
            raise RuntimeError(f"{' '.join(process.args)}\n{process.stderr.read().strip()}")
        victim = peers.leader(three, topic) if three.kind == "nats" else cluster.leader(three, topic)
        victim.kill9()
        out, err = process.communicate("go\n", timeout=LONGEST_COMMAND_S)
        if process.returncode != 0:
            raise RuntimeError(f"{' '.join(process.args)}\n{err.strip()}")
        points.append(json.loads(out))
        victim.restart()
        time.sleep(2)
    return {"points": points}
