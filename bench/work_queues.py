"""Work queues: workers that share the messages of many queues, beside a share group of Kafka and a consumer group of Redis.

Duramen leases the messages of a topic whose keys are queues. Kafka has a share group on a topic with the queue's name as key,
Redis one stream with the queue as a field.
"""

import subprocess
import time

import peers
from brokers import BENCH, COMPAT, LONGEST_COMMAND_S, duramen, finish
from queues import PARTITIONS, attempt, make_topic, measured
from scenarios import warm_up

MESSAGE_BYTES = 100
WORKERS, QUEUES = 64, 10_000
LEASED_AT_ONCE = (1, 10)
# All brokers bear so many messages a second.
RATE = 500
KAFKA_CLIENT = "share consumers"

ALL = ["duramen", "kafka-durable", "kafka", "redis-always", "redis-everysec"]
# The variants of a full run, and of a quick one.
VARIANTS = {"work_queues": (ALL, ["duramen", "redis-always"])}


class Sizes:
    """How much of everything; `quick` shortens it."""

    def __init__(self, quick):
        self.messages, self.warm_ups = (5_000, 1_000) if quick else (100_000, 20_000)
        # The longest time to empty the queues.
        self.drain_s = 10 if quick else 120
        self.follow_s, self.skipped_s = (2, 1) if quick else (20, 5)
        self.delayed = 500 if quick else 5_000


def work_queues(broker, sizes):
    """64 workers and 10,000 queues: a backlog that is worked off, messages that are waited for, and delayed ones."""
    s = Sizes(sizes.quick)
    warm_up(broker, sizes)
    drains, waits, delays = [], [], []
    ways = _ways(broker, sizes.quick)
    for way, options in ways.items():
        for limit in LEASED_AT_ONCE:
            topic = f"drain-{len(drains)}"
            attempt(drains, {"way": way, "limit": limit}, lambda: _drain(broker, s, topic, limit, options))
        topic = f"follow-{len(waits)}"
        attempt(waits, {"way": way}, lambda: _follow(broker, s, topic, options))
        if broker.kind == "duramen" and way != KAFKA_CLIENT:
            topic = f"late-{len(delays)}"
            attempt(delays, {"way": way}, lambda: _late(broker, s, topic, options))
    return {"points": drains, "waits": waits, "delays": delays}


def _ways(broker, quick):
    """How workers get messages. Kafka's client is for Duramen, too; a JVM takes seconds to begin, so no quick run has one."""
    if broker.kind == "redis":
        return {"XREADGROUP": {}}
    if broker.kind == "kafka":
        return {KAFKA_CLIENT: None}
    native = {"gRPC": {"via": "grpc"}, "HTTP/protobuf": {"via": "http"}}
    return native if quick else {**native, KAFKA_CLIENT: None}


def _drain(broker, s, topic, limit, options):
    _make(broker, topic)
    if options is None:
        process = _share(broker, topic, "drain", limit, s.warm_ups, s.messages, s.drain_s)
    else:
        process = _begin(
            broker, topic, "drain", limit, messages=s.messages, warmup_messages=s.warm_ups, seconds=s.drain_s,
            patience=LONGEST_COMMAND_S / 4, **options,
        )  # fmt: skip
    if process.stdout.readline().strip() != "ready":
        process.kill()
        raise RuntimeError(f"{' '.join(process.args)}\n{process.stderr.read().strip()}")

    def work():
        process.stdin.write("go\n")
        process.stdin.close()
        # The report comes with the last settlement; what the process does then is no part of it.
        process.stdin = None
        return finish(process)

    return _whole(measured(broker, MESSAGE_BYTES, work))


def _follow(broker, s, topic, options):
    _make(broker, topic)

    def work():
        if options is None:
            counts = (s.warm_ups, (s.skipped_s + s.follow_s) * RATE, RATE, s.skipped_s * RATE)
            return finish(_share(broker, topic, "follow", 1, *counts))
        timing = {"rate": RATE, "seconds": s.follow_s, "warmup_seconds": s.skipped_s}
        return finish(_begin(broker, topic, "follow", 1, **timing, **options))

    return _whole(measured(broker, MESSAGE_BYTES, work))


def _late(broker, s, topic, options):
    _make(broker, topic)
    return _whole(measured(broker, MESSAGE_BYTES, lambda: finish(_begin(broker, topic, "late", 1, messages=s.delayed, **options))))


def _whole(result):
    result["missing"] = result["messages"] - result["total"]
    return result


def _make(broker, topic):
    """Redis's stream comes with its group."""
    make_topic(broker, topic)
    if broker.kind == "kafka":
        duramen(broker, "topic", "create", topic, "--partitions", PARTITIONS)
        time.sleep(1)


def _begin(broker, topic, command, limit, **options):
    """Begins workers of ours."""
    servers = broker.native if broker.kind == "duramen" else broker.bootstrap
    words = [peers.program("peers"), command, "--peer", broker.kind, "--servers", servers, "--topic", topic]
    options = {"queues": QUEUES, "workers": WORKERS, "size": MESSAGE_BYTES, "limit": limit, **options}
    words += [word for name, value in options.items() for word in ("--" + name.replace("_", "-"), value)]
    return _popen(words)


def _share(broker, topic, command, limit, *counts):
    """Begins workers of Kafka's client."""
    libs = subprocess.run([COMPAT / "kafka/fetch.sh"], check=True, capture_output=True, text=True).stdout.strip()
    return _popen([
        "java", "-Xmx1g", f"-Dlog4j2.configurationFile={COMPAT}/java/log4j2.properties", "-cp", f"{libs}/*",
        BENCH / "WorkQueues.java", broker.bootstrap, topic, command, WORKERS, limit, QUEUES, MESSAGE_BYTES, *counts,
    ])  # fmt: skip


def _popen(words):
    pipe = subprocess.PIPE
    return subprocess.Popen(list(map(str, words)), stdin=pipe, stdout=pipe, stderr=pipe, text=True)
