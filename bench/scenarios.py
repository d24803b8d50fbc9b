"""What is measured, one function a scenario. Each takes a broker and the sizes, and answers figures."""

import os
import shutil
import socket
import struct
import sys
import threading
import time

import limits
import machine
from brokers import COMPAT, delete_topic, directory_bytes, duramen, duramen_begin, finish, log_files, start, start_slow

sys.path.insert(0, str(COMPAT / "wire"))
from batch import batch  # noqa: E402
from calls import connect  # noqa: E402

APPENDERS = 128
APPEND_BYTES = 2048
GIB = 1 << 30
# Shorter than any Kafka segment roll, long enough to be more than one request.
BULK = ("--size", 1000, "--batch", 500)
BULK_MESSAGE_BYTES = 1008
LONGEST_START_S = 300
# Kafka refuses to make 10,000 in one request.
PARTITIONS_AT_ONCE = 5_000
SYNC_DELAYS_MS = [2, 4, 10]


class Sizes:
    """How much of everything; `quick` keeps every scenario and shortens it."""

    def __init__(self, quick):
        self.quick = quick
        self.seconds = 2 if quick else 10
        self.warmup = 0.5 if quick else 2
        self.jvm_warmup = 2 if quick else 15
        self.connections = [1, 16, 128] if quick else [1, 2, 4, 8, 16, 32, 64, 128]
        self.slow_connections = [8, 128] if quick else [8, 16, 32, 64, 128]
        self.partitions = [1, 100] if quick else [1, 10, 100, 1000, 5000]
        self.many = 500 if quick else 5000
        self.read_bytes = GIB // 2 if quick else 5 * GIB
        self.restart_bytes = GIB // 2 if quick else 10 * GIB
        self.small_records = 200_000 if quick else 2_000_000
        self.disturbed = 2 if quick else 20
        self.repeats = 1 if quick else 3
        self.messages = 500_000 if quick else 10_000_000
        self.parked = 100 if quick else 1000
        self.cluster_partitions = [1, 100] if quick else [1, 10, 100, 1000]
        self.kills = 1 if quick else 5
        self.network_bytes = 64 << 20 if quick else GIB
        self.idle_partitions = 300 if quick else 10_000
        self.group_partitions, self.group_members = (100, 10) if quick else (1000, 50)


def measured(broker, payload_bytes, work):
    """Runs `work` and adds what the broker used for it, by payload byte where that makes sense."""
    usage, before = machine.Usage(broker.pid, broker.data_dir), broker.metrics()
    result = work()
    used, after = usage.since(), broker.metrics()
    result.update(used)
    payload = payload_bytes(result)
    if payload:
        result["device_bytes_per_payload_byte"] = round(used["device_bytes"] / payload, 3)
        result["broker_cpu_seconds_per_gb"] = round(used["broker_cpu_seconds"] / (payload / 1e9), 3)
    for name in ("journal_rounds", "journal_bytes", "checkpoints", "appended_batches"):
        if name in after:
            result[name] = after[name] - before.get(name, 0)
    return result


def append(broker, sizes, topic, connections, partitions, appenders=APPENDERS, seconds=None):
    seconds = seconds or sizes.seconds
    # Device bytes are counted over the warm-up too, so the payload is taken from the offsets at the end.
    return measured(
        broker,
        lambda result: result["total"] * APPEND_BYTES * (seconds + sizes.warmup) / seconds,
        lambda: duramen(
            broker, "bench", "append", "--appenders", appenders, "--connections", connections, "--size", APPEND_BYTES,
            "--topic", topic, "--partitions", partitions, "--seconds", seconds, "--warmup-seconds", sizes.warmup,
        ),
    )  # fmt: skip


def warm_up(broker, sizes):
    """A JVM compiles while it runs; give it the time to."""
    if broker.kind == "kafka":
        create(broker, "warm-up", 1)
        for connections in (1, APPENDERS):
            duramen(
                broker, "bench", "append", "--appenders", APPENDERS, "--connections", connections, "--size", APPEND_BYTES,
                "--topic", "warm-up", "--seconds", sizes.jvm_warmup / 2, "--warmup-seconds", 0,
            )  # fmt: skip


def group_commit(broker, sizes):
    """128 appenders of 2 KiB, each waiting for its ack, over more and more connections; one partition."""
    warm_up(broker, sizes)
    create(broker, "group-commit", 1)
    points = []
    for connections in sizes.connections:
        point = append(broker, sizes, "group-commit", connections, 1)
        if point.get("journal_rounds"):
            # What the disk gives for rounds like those just written, with as many appends in each.
            round_bytes = int(point["journal_bytes"] / point["journal_rounds"])
            probe = limits.disk_probe(broker.data_dir, round_bytes, sizes.seconds / 2)
            in_a_round = point["total"] * (sizes.seconds + sizes.warmup) / sizes.seconds / point["journal_rounds"]
            point["disk"] = probe
            point["disk_appends_per_second"] = round(probe["syncs_per_second"] * in_a_round, 1)
        points.append(point)
    return {"points": points}


def slow_syncs(variant, directory, sizes):
    """The same appenders while each sync takes longer, as on disks that are not this one; in lengths of a sync."""
    points = []
    for delay_ms in SYNC_DELAYS_MS:
        with start_slow(directory / str(delay_ms), delay_ms) as broker:
            create(broker, "slow-syncs", 1)
            for connections in sizes.slow_connections:
                before = broker.metrics()
                point = append(broker, sizes, "slow-syncs", connections, 1)
                spent = {name: value - before[name] for name, value in broker.metrics().items() if name in before}
                points.append({
                    "delay_ms": delay_ms, **point,
                    "sync_ms": round(1000 * spent["sync_seconds_sum"] / spent["sync_seconds_count"], 3),
                    "batches_a_round": round(spent["sync_batches_sum"] / spent["sync_batches_count"], 1),
                })  # fmt: skip
        shutil.rmtree(directory, ignore_errors=True)
    return {"points": points}


def partitions(broker, sizes):
    """The same appenders, a connection each, over more and more partitions."""
    warm_up(broker, sizes)
    points = []
    for count in sizes.partitions:
        topic = f"wide-{count}"
        create(broker, topic, count)
        points.append(append(broker, sizes, topic, APPENDERS, count))
        delete_topic(broker, topic)
    return {"points": points}


def create(broker, topic, count):
    """A topic with a first record in each partition; answers how long either took.

    The first append to a partition makes its files; what is measured later should not.
    """
    begun = time.monotonic()
    duramen(broker, "topic", "create", topic, "--partitions", min(count, PARTITIONS_AT_ONCE))
    for more in range(2 * PARTITIONS_AT_ONCE, count + PARTITIONS_AT_ONCE, PARTITIONS_AT_ONCE):
        duramen(broker, "topic", "alter", topic, "--partitions", min(count, more))
    created = time.monotonic()
    _first_record_each(broker, topic, count)
    return {"create_s": round(created - begun, 2), "first_record_each_s": round(time.monotonic() - created, 2)}


def _first_record_each(broker, topic, count):
    """Kafka may answer that topics are made before brokers know of them, or lead them: then all of it is done again."""
    produce = (
        "bench", "produce", "--topic", topic, "--partitions", count, "--messages", count, "--batch", 1, "--size", 100,
        "--in-flight", 64,
    )  # fmt: skip
    deadline = time.monotonic() + LONGEST_START_S
    while True:
        try:
            return duramen(broker, *produce)
        except RuntimeError as error:
            is_early = any(text in str(error) for text in ("NOT_LEADER_OR_FOLLOWER", "has no more than 0 partitions"))
            if not is_early or time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def fill(broker, topic, size):
    """Bulk produce of about `size` bytes; answers what that took."""
    return measured(
        broker,
        lambda result: result["total"] * 1000,
        lambda: duramen(broker, "bench", "produce", "--topic", topic, "--messages", size // BULK_MESSAGE_BYTES, *BULK),
    )


def reads(broker, sizes):
    """Sequential read of one partition, hot and cold, beside what cat and a bare sendfile server do with its files."""
    result = {"fill": fill(broker, "reads", sizes.read_bytes)}
    files = log_files(broker, "reads")
    limits.drop_pages(files)
    limits.cat(files)

    def consume(*arguments):
        return measured(
            broker,
            lambda read: read["bytes"],
            lambda: duramen(broker, "bench", "consume", "--topic", "reads", *arguments),
        )

    hot, cold = {}, {}
    for _ in range(sizes.repeats):
        _add(hot, "cat_mb_s", limits.cat(files))
        _add(hot, "sendfile_mb_s", limits.sendfile(files))
        _add(hot, "discard", consume("--discard"))
        _add(hot, "walk", consume())
        _add(hot, "check", consume("--check"))
        for name, read in [
            ("cat_mb_s", lambda: limits.cat(files)),
            ("sendfile_mb_s", lambda: limits.sendfile(files)),
            ("discard", lambda: consume("--discard")),
            ("check", lambda: consume("--check")),
        ]:
            limits.drop_pages(files)
            _add(cold, name, read())
    result["hot"], result["cold"] = map(_medians, (hot, cold))
    delete_topic(broker, "reads")
    return result


def _add(found, name, figure):
    found.setdefault(name, []).append(figure)


def _medians(found):
    """Of several repetitions, the one in the middle."""

    def speed(figure):
        return figure["megabytes_per_second"] if isinstance(figure, dict) else figure

    return {name: sorted(figures, key=speed)[len(figures) // 2] for name, figures in found.items()}


def disturbed(broker, sizes):
    """One appender alone, then beside a cold consumer, then beside a producer that saturates the disk."""
    warm_up(broker, sizes)
    for topic in ("old", "appender", "flood"):
        create(broker, topic, 1)
    fill(broker, "old", sizes.read_bytes * (1 if sizes.quick else 2))
    files = log_files(broker, "old")

    def one_appender():
        return append(broker, sizes, "appender", 1, 1, appenders=1, seconds=sizes.disturbed)

    result = {"alone": one_appender()}
    reader = _Repeated(lambda: _read_cold(broker, files))
    result["beside_cold_reader"] = one_appender()
    result["beside_cold_reader"]["reads"] = reader.stop()
    result["disk"] = _disk_beside_cat(broker.data_dir, files, sizes.disturbed / 2)
    producing = duramen_begin(
        broker, "bench", "produce", "--topic", "flood", "--seconds", sizes.disturbed + sizes.warmup + 2, *BULK
    )
    time.sleep(1)
    result["beside_producer"] = one_appender()
    result["beside_producer"]["producer"] = finish(producing)
    for topic in ("old", "flood"):
        delete_topic(broker, topic)
    return result


def _disk_beside_cat(directory, files, seconds):
    """What reading the same files does to a bare write and sync of 4 KiB."""
    alone = limits.disk_probe(directory, limits.ROUND_ALIGN, seconds)

    def cat():
        limits.drop_pages(files)
        return limits.cat(files)

    reader = _Repeated(cat)
    beside = limits.disk_probe(directory, limits.ROUND_ALIGN, seconds)
    return {"alone": alone, "beside_cat": beside, "reads": reader.stop()}


def _read_cold(broker, files):
    limits.drop_pages(files)
    return duramen(broker, "bench", "consume", "--topic", "old", "--discard")["megabytes_per_second"]


class _Repeated:
    """Does something over and over beside what is measured."""

    def __init__(self, work):
        self.results = []
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._run, args=(work,), daemon=True)
        self.thread.start()

    def _run(self, work):
        while not self.over.is_set():
            self.results.append(work())

    def stop(self):
        self.over.set()
        self.thread.join()
        return self.results


def lifecycle(variant, directory, sizes):
    """Start to first acknowledged append, idle memory, many partitions, bytes on disk, restart after a kill."""
    result = {}
    broker = start(variant, directory)
    try:
        duramen(broker, "topic", "create", "first", "--partitions", 1)
        time.sleep(5)
        usage = machine.Usage(broker.pid, broker.data_dir)
        time.sleep(3)
        result["idle"] = {"memory_mib": machine.memory_mib(broker.pid), "cpu_percent": _percent(usage, 3)}
        broker.stop()
        result["start_to_first_ack_s"] = _start_to_ack(broker, "first")

        result["create_partitions"] = create(broker, "many", sizes.many)
        time.sleep(3)
        usage = machine.Usage(broker.pid, broker.data_dir)
        time.sleep(3)
        result["many"] = {
            "partitions": sizes.many,
            "memory_mib": machine.memory_mib(broker.pid),
            "idle_cpu_percent": _percent(usage, 3),
            "metadata_ms": _metadata_ms(broker),
        }
        broker.kill9()
        result["many"]["restart_s"] = _start_to_ack(broker, "first")
        delete_topic(broker, "many")

        result["bytes_on_disk_per_record"] = {
            f"batches_of_{count}": _bytes_per_record(broker, sizes, count) for count in (1, 100)
        }
        fill(broker, "restart", sizes.restart_bytes)
        broker.kill9()
        result["restart_after_kill_s"] = _start_to_ack(broker, "restart")
        result["restart_bytes"] = sizes.restart_bytes
    finally:
        broker.stop()
        shutil.rmtree(directory, ignore_errors=True)
    return result


def _percent(usage, seconds):
    return round(usage.since()["broker_cpu_seconds"] / seconds * 100, 1)


def _metadata_ms(broker):
    """Of 100 Metadata answers that name all partitions, the median and the slowest but one."""
    took = []
    with connect(broker.bootstrap) as connection:
        for _ in range(100):
            correlation_id = connection.send("Metadata", 12, {"Topics": None})
            begun = time.monotonic()
            answered, _ = connection.receive_frame()
            took.append((time.monotonic() - begun) * 1e3)
            assert answered == correlation_id
    took.sort()
    return {"p50": round(took[50], 2), "p99": round(took[98], 2)}


def _bytes_per_record(broker, sizes, count):
    """200 B records: what their segments take, and what the whole directory grew by."""
    topic = f"small-{count}"
    records = sizes.small_records // (20 if count == 1 else 1)
    before = directory_bytes(broker.data_dir)
    produced = measured(
        broker,
        lambda result: result["total"] * 200,
        lambda: duramen(
            broker, "bench", "produce", "--topic", topic, "--messages", records, "--size", 200, "--batch", count,
            "--connections", 8,
        ),
    )  # fmt: skip
    os.sync()
    segments = sum(path.stat().st_size for path in log_files(broker, topic))
    return {
        "segment_bytes": round(segments / records, 1),
        "directory_bytes": round((directory_bytes(broker.data_dir) - before) / records, 1),
        "device_bytes": round(produced["device_bytes"] / records, 1),
    }


def _start_to_ack(broker, topic):
    """Starts the broker's process and appends until that is acknowledged; answers the seconds between."""
    request = produce_request(topic)
    begun = time.monotonic()
    broker.spawn()
    while time.monotonic() < begun + LONGEST_START_S:
        try:
            if append_once(broker.port, request) == 0:
                return round(time.monotonic() - begun, 3)
        except OSError:
            pass
        if broker.process.poll() is not None:
            raise RuntimeError(f"the broker ended while starting\n{broker.log_tail()}")
        time.sleep(0.002)
    raise RuntimeError(f"no append was acknowledged within {LONGEST_START_S} s")


def produce_request(topic):
    records = batch([b"first"])
    name = topic.encode()
    body = struct.pack(">hhiih", -1, -1, 30_000, 1, len(name)) + name
    body += struct.pack(">iii", 1, 0, len(records)) + records
    header = struct.pack(">hhih", 0, 3, 1, -1)
    return struct.pack(">i", len(header) + len(body)) + header + body


def append_once(port, request):
    """The error code of one append."""
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        connection.settimeout(60)
        connection.sendall(request)
        answer = b""
        while len(answer) < 4 or len(answer) < 4 + struct.unpack(">i", answer[:4])[0]:
            piece = connection.recv(4096)
            if not piece:
                raise ConnectionResetError
            answer += piece
        # Correlation id, one topic, its name, one partition, its index: then the code.
        (name_bytes,) = struct.unpack_from(">h", answer, 12)
        return struct.unpack_from(">h", answer, 14 + name_bytes + 8)[0]


def disk_limits(directory, sizes):
    """The disk under the journal's write pattern, by size of a round."""
    return [limits.disk_probe(directory, kib << 10, sizes.seconds / 2) for kib in (4, 16, 64, 128, 256, 512)]
