"""What clients do all day, one function a scenario: messages in and out, tailing, all kinds of access at once, groups."""

import json
import os
import statistics
import subprocess
import sys
import threading
import time

import limits
import machine
from brokers import BENCH, COMPAT, LONGEST_COMMAND_S, delete_topic, duramen, duramen_begin, finish, log_files
from scenarios import create, fill, measured, warm_up

sys.path.insert(0, str(COMPAT / "wire"))
from calls import EARLIEST, LATEST, connect, delete_records, list_offset  # noqa: E402

MESSAGE_BYTES = 200
TAIL_RATE = 1000
CONNECTIONS = 8
SLICES = 20
TRANSACTORS = (1, 16)
WORKERS, WORK_PARTITIONS, WORK_RATE = 64, 8, 400


def messages(broker, sizes):
    """200 B messages in batches of 1 and 50 and as the Java client batches them, by acks; and read again."""
    warm_up(broker, sizes)
    points = []
    for acks in ("0", "1", "all"):
        for batch in (1, 50):
            topic = f"messages-{acks}-{batch}"
            create(broker, topic, 1)
            point = _produce(broker, topic, acks, batch, sizes.messages // (10 if batch == 1 else 1))
            points.append({"acks": acks, "batch": batch, **_per_cpu_second(point)})
            if (acks, batch) != ("all", 50):
                delete_topic(broker, topic)
        create(broker, "as-it-likes", 1)
        point = _java_producer(broker, "as-it-likes", acks, sizes.messages)
        points.append({"acks": acks, "batch": "client's", **_per_cpu_second(point)})
        delete_topic(broker, "as-it-likes")
    read = measured(broker, lambda read: read["bytes"], lambda: duramen(broker, "bench", "consume", "--topic", "messages-all-50"))
    read["total"] = read["records"]
    return {"points": points, "consume": _per_cpu_second(read)}


def _produce(broker, topic, acks, batch, count):
    return measured(
        broker,
        lambda result: result["total"] * MESSAGE_BYTES,
        lambda: duramen(
            broker, "bench", "produce", "--topic", topic, "--messages", count, "--size", MESSAGE_BYTES, "--batch", batch,
            "--acks", acks, "--connections", CONNECTIONS,
        ),
    )  # fmt: skip


def _java_producer(broker, topic, acks, count):
    """Kafka's own producer-perf-test, which leaves batching to the client."""

    def run():
        settings = [f"bootstrap.servers={broker.bootstrap}", f"acks={acks}", "enable.idempotence=false"]
        begun = time.monotonic()
        _java(
            "org.apache.kafka.tools.ProducerPerformance", "--topic", topic, "--num-records", count, "--record-size", MESSAGE_BYTES,
            "--throughput", -1, "--producer-props", *settings,
        )  # fmt: skip
        return {"total": count, "seconds": time.monotonic() - begun}

    return measured(broker, lambda result: result["total"] * MESSAGE_BYTES, run)


def _java(*arguments):
    """Runs a class of Kafka's jars, or a source file that uses them; answers what it prints."""
    libs = subprocess.run([COMPAT / "kafka/fetch.sh"], check=True, capture_output=True, text=True).stdout.strip()
    command = ["java", "-Xmx1g", f"-Dlog4j2.configurationFile={COMPAT}/java/log4j2.properties", "-cp", f"{libs}/*", *arguments]
    ran = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=LONGEST_COMMAND_S)
    if ran.returncode != 0:
        raise RuntimeError(f"{arguments[0]}: {ran.stderr.strip()}")
    return ran.stdout


def _figures(source, *arguments):
    """What a program of ours prints last; its client may have had something to say before."""
    return json.loads(_java(BENCH / source, *arguments).splitlines()[-1])


def _per_cpu_second(point):
    return {
        "messages_per_second": round(point["total"] / point["seconds"]),
        "messages_per_cpu_second": round(point["total"] / max(point["broker_cpu_seconds"], 0.01)),
        "broker_cpu_seconds": point["broker_cpu_seconds"],
        "total": point["total"],
    }


def tailing(broker, sizes):
    """Consumers at the end of a partition written at a steady rate; then as many as possible that only wait."""
    warm_up(broker, sizes)
    create(broker, "tail", 1)
    points = []
    for consumers in (1, 10, 100):
        points.append(measured(broker, lambda _: 0, lambda: _tail(broker, "tail", consumers, TAIL_RATE, sizes.seconds)))
    create(broker, "quiet", 1)
    before = machine.memory_mib(broker.pid)
    waiting = duramen_begin(
        broker, "bench", "tail", "--topic", "quiet", "--consumers", sizes.parked, "--rate", 0, "--warmup-seconds", 0,
        "--seconds", sizes.seconds + 4,
    )  # fmt: skip
    time.sleep(3)
    usage = machine.Usage(broker.pid, broker.data_dir)
    time.sleep(sizes.seconds)
    percent = round(usage.since()["broker_cpu_seconds"] / sizes.seconds * 100, 1)
    parked = {"consumers": sizes.parked, "cpu_percent": percent, "memory_mib": machine.memory_mib(broker.pid), "before_mib": before}
    finish(waiting)
    return {"points": points, "parked": parked}


def _tail(broker, topic, consumers, rate, seconds):
    return duramen(
        broker, "bench", "tail", "--topic", topic, "--consumers", consumers, "--rate", rate, "--size", MESSAGE_BYTES,
        "--seconds", seconds,
    )  # fmt: skip


def patterns(broker, sizes):
    """Tailing readers, writers, long cold reads from different points, and truncation: each alone, then all at once.
    Once with all cores for all, and once with one core for the broker and the other for the clients."""
    warm_up(broker, sizes)
    for topic in ("old", "tail", "written", "trimmed"):
        create(broker, topic, 1)
    fill(broker, "old", sizes.read_bytes)
    fill(broker, "trimmed", sizes.read_bytes // 4)
    found = _alone_and_together(broker, sizes)
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        return found
    try:
        for thread in os.listdir(f"/proc/{broker.pid}/task"):
            os.sched_setaffinity(int(thread), cores[:1])
        os.sched_setaffinity(0, cores[1:])
        found["pinned"] = _alone_and_together(broker, sizes)
    finally:
        os.sched_setaffinity(0, cores)
    return found


def _alone_and_together(broker, sizes):
    files = log_files(broker, "old")
    alone = {name: work(broker, sizes, files) for name, work in PATTERNS.items()}
    together, running = {}, []
    cpu, clients, began = machine.cpu_seconds(broker.pid), machine.children_cpu_seconds(), time.monotonic()
    for name, work in PATTERNS.items():
        running.append(threading.Thread(target=lambda name=name, work=work: together.update({name: work(broker, sizes, files)})))
        running[-1].start()
    for thread in running:
        thread.join()
    seconds = time.monotonic() - began
    if missing := PATTERNS.keys() - together.keys():
        raise RuntimeError(f"failed beside the others: {', '.join(missing)}")
    return {
        "alone": alone,
        "together": together,
        "broker_cores": round((machine.cpu_seconds(broker.pid) - cpu) / seconds, 2),
        "client_cores": round((machine.children_cpu_seconds() - clients) / seconds, 2),
    }


def _tailing_readers(broker, sizes, _):
    return {"p99_us": _tail(broker, "tail", 10, TAIL_RATE, sizes.disturbed)["latency_us"]["p99"]}


def _writers(broker, sizes, _):
    result = duramen(
        broker, "bench", "append", "--topic", "written", "--appenders", 4, "--connections", 4, "--size", 2048,
        "--seconds", sizes.disturbed,
    )  # fmt: skip
    return {"p99_us": result["latency_us"]["p99"], "per_second": result["appends_per_second"]}


def _cold_readers(broker, sizes, files):
    """Pieces of a long log, each from another point; what counts is how long a piece takes."""
    with connect(broker.bootstrap) as connection:
        end = list_offset(connection, "old", LATEST)["Offset"]
    piece, took, at = 32 << 20, [], 0
    over = time.monotonic() + sizes.disturbed
    while time.monotonic() < over:
        limits.drop_pages(files)
        result = duramen(
            broker, "bench", "consume", "--topic", "old", "--from", at * end // SLICES, "--bytes", piece, "--discard"
        )
        took.append(result["seconds"] * 1e6)
        at = (at + 7) % (SLICES - 1)
    return {"p99_us": _p99(took), "megabytes_per_second": round(piece / statistics.median(took), 1)}


def _truncation(broker, sizes, _):
    """Moves the start of a log on, a little at a time."""
    took = []
    with connect(broker.bootstrap) as connection:
        start, end = (list_offset(connection, "trimmed", at)["Offset"] for at in (EARLIEST, LATEST))
        step = max(1, (end - start) // (sizes.disturbed * 50 * 3))
        over = time.monotonic() + sizes.disturbed
        while time.monotonic() < over:
            start += step
            begun = time.monotonic()
            answer = delete_records(connection, "trimmed", min(start, end))
            took.append((time.monotonic() - begun) * 1e6)
            if answer["ErrorCode"] != 0:
                raise RuntimeError(f"DeleteRecords was refused: {answer}")
            time.sleep(0.02)
    return {"p99_us": _p99(took)}


PATTERNS = {
    "tailing": _tailing_readers, "writers": _writers, "cold reads": _cold_readers, "truncation": _truncation,
}  # fmt: skip


def _p99(took):
    return round(sorted(took)[min(len(took) - 1, len(took) * 99 // 100)], 1)


def groups(broker, sizes):
    """A group over many partitions, of both protocols: how long until all have their share, after members join, leave and
    are killed, and how long the others hear nothing."""
    python = os.environ.get("DURAMEN_CACHE", os.path.expanduser("~/.cache/duramen")) + "/venv/bin/python"
    found = {}
    for protocol in ("classic", "consumer"):
        topic = f"shared-{protocol}"
        create(broker, topic, sizes.group_partitions)
        command = [python, BENCH / "group_members.py", broker.bootstrap, topic, protocol, sizes.group_partitions, sizes.group_members]
        run = subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True, timeout=LONGEST_COMMAND_S)
        found[protocol] = json.loads(run.stdout)
        delete_topic(broker, topic)
    return found


def transactions(broker, sizes):
    """100 records at a time by a plain producer, an idempotent one, and in a transaction; by one and by several producers."""
    warm_up(broker, sizes)
    create(broker, "transactions", TRANSACTORS[-1])
    points = []
    for producers in TRANSACTORS:
        for style in ("waiting", "together"):
            found = {}
            # In turn, since disks are not steady.
            for kind in ("plain", "idempotent", "transactional") * sizes.repeats:
                found.setdefault(kind, []).append(_transact(broker, sizes, producers, kind, style))
            middle = {kind: sorted(of, key=lambda it: it["units"])[len(of) // 2] for kind, of in found.items()}
            points.append({"producers": producers, "style": style, **middle})
    return {"points": points}


def _transact(broker, sizes, producers, kind, style):
    return measured(
        broker,
        lambda _: 0,
        lambda: _figures(
            "TransactionCost.java", broker.bootstrap, "transactions", sizes.seconds, sizes.warmup + 1, producers, kind, style
        ),
    )


def shared_work(broker, sizes):
    """64 workers on 8 partitions, where records of one key take long: a consumer group, a share group, and one in the order of keys."""
    found = {}
    for name, kind, settings in [
        ("consumer group", "consumer", None),
        ("share group", "share", "share.auto.offset.reset=earliest"),
        ("share group, keys in order", "share", "share.auto.offset.reset=earliest,share.record.order=key"),
    ]:
        if broker.kind == "kafka" and settings and "order" in settings:
            continue
        topic = f"work-{len(found)}"
        # Without first records: they would have neither a key nor a value that is a number.
        duramen(broker, "topic", "create", topic, "--partitions", WORK_PARTITIONS)
        group = f"workers-{len(found)}"
        if settings:
            _java(
                "kafka.admin.ConfigCommand", "--bootstrap-server", broker.bootstrap, "--alter", "--group", group, "--add-config", settings
            )
        found[name] = _figures(
            "SharedWork.java", broker.bootstrap, topic, WORK_PARTITIONS, group, kind, WORKERS, 2 * sizes.seconds, WORK_RATE
        )
        delete_topic(broker, topic)
    return found
