"""Fast appends, beside the two other acknowledgements and beside Kafka, in clusters that are far apart: one function a
scenario.

`d` is the delay one way between a client and a node, `x` that between two nodes, in milliseconds. See far.py for the
relays and for the directories in memory."""

import contextlib
import json
import math
import subprocess
import threading
import time
from collections import Counter

import brokers
import far
import machine
from brokers import SHARED_DISK, delete_topic, duramen, duramen_begin, finish
from cluster import leader
from scenarios import append_once, connect, produce_request

TOPIC = "far"
MESSAGE_BYTES = 1024
MODES = {"all": ("--acks", "all"), "1": ("--acks", "1"), "fast": ("--fast",)}
# What each variant is measured with; Kafka's replicas sync alike with both acknowledgements.
MODES_OF = {"duramen": ["all", "1", "fast"], SHARED_DISK: ["all", "1", "fast"], "kafka-durable": ["all"], "kafka": ["all", "1"]}
# With these, by delay of all ways and by number of nodes.
DELAYS_MS = {3: [0.5, 1, 5, 25], 5: [1, 5]}
SOME_DELAYS_MS = {3: [1, 5]}
# Leaders choose members by what they have seen in the last second.
CHOSEN_S = 2
SLOWER_MS = 50
BESIDE_MS, AWAY_MS = 0.05, 5
# Of a client's wire, in bytes a second: two cores bear it with three nodes. Two members of three get a copy each, so
# with half the wire acks=all has the rate of a fast append: CPU a byte falls with the rate, and is compared at one rate.
WIRE_BYTES_PER_SECOND = 40_000_000
WIRES = (
    (WIRE_BYTES_PER_SECOND, "all"), (WIRE_BYTES_PER_SECOND, "fast"), (WIRE_BYTES_PER_SECOND // 2, "all"),
    (0, "all"), (0, "fast"),
)  # fmt: skip
BULK_BYTES, BULK_BATCH = 1000, 500
PRODUCERS, LINES_PER_SECOND = 4, 1000
AFTER_START_S, DOWN_S = 3, 4
# Most time that survivors are watched, and the time between two looks.
WATCHED_S, LOOK_EVERY_S = 3, 0.002
# What one appends to find out whether the partition is served again; scenarios.py has it.
PROBE = "first"
VARIANTS = {
    "fast_latency": (["duramen", SHARED_DISK, "kafka-durable", "kafka"], ["duramen", SHARED_DISK, "kafka"]),
    "fast_slow_node": (["duramen"], ["duramen"]),
    "fast_beside": (["duramen"], ["duramen"]),
    "fast_failover": (["duramen"], ["duramen"]),
    "fast_throughput": (["duramen"], ["duramen"]),
}


class Sizes:
    """How much of everything."""

    def __init__(self, quick):
        self.passes = 2 if quick else 3
        self.warmup = 1 if quick else 2
        self.appends = 150 if quick else 300
        self.seconds = 2 if quick else 10
        self.jvm_warmup = 10 if quick else 30
        self.slow_seconds = 8 if quick else 60
        self.kills = 2 if quick else 15
        self.bulk_seconds = 3 if quick else 10
        self.bulk_bytes = 100_000_000 if quick else 500_000_000

    def seconds_at(self, delay_ms):
        """Enough for the p99 of the slowest way, which takes four delays."""
        return max(self.seconds, math.ceil(self.appends * 4 * delay_ms / 1000))


def latency(variant, directory, sizes):
    """One appender of 1 KiB: all acknowledgements in turn, on the same nodes, again and again."""
    fast, points = Sizes(sizes.quick), []
    delays = SOME_DELAYS_MS if sizes.quick or variant == SHARED_DISK else DELAYS_MS
    for nodes, steps in delays.items():
        with _started(variant, directory / str(nodes), nodes) as cluster:
            _warm_up(cluster, fast)
            for delay in steps:
                cluster.network.set(delay, delay)
                time.sleep(CHOSEN_S)
                points += _in_turn(cluster, fast, MODES_OF[variant], delay, {"nodes": nodes, "d": delay, "x": delay})
    return {"points": points}


def beside(variant, directory, sizes):
    """The same for a client beside the leader: a fast append cannot gain, and must not lose."""
    fast = Sizes(sizes.quick)
    with _started(variant, directory, 3) as cluster:
        near = leader(cluster, TOPIC)
        cluster.network.set(AWAY_MS, AWAY_MS, {cluster.brokers.index(near) + 1: BESIDE_MS})
        time.sleep(CHOSEN_S)
        points = _in_turn(cluster, fast, MODES_OF[variant], AWAY_MS, {"nodes": 3, "d": BESIDE_MS, "x": AWAY_MS})
        return {"points": points, "leader_stayed": leader(cluster, TOPIC) is near}


def slow_node(variant, directory, sizes):
    """Five nodes, of which none is slow, then a member that does not lead, none, then one that is no member."""
    fast, points = Sizes(sizes.quick), []
    with _started(variant, directory, 5) as cluster:
        for which in ("none", "member", "none", "outsider"):
            cluster.network.set(1, 1)
            _append(cluster, "fast", CHOSEN_S, 1)
            members = _members(cluster)
            outsiders = [node for node in cluster.network.nodes if node not in members]
            slow = {"none": None, "member": members[-1], "outsider": outsiders[0]}[which]
            process = duramen_begin(cluster, *_append_command("fast", fast.slow_seconds, fast.warmup + 1))
            # The measured time begins a second after this, and later by what the client needs to start.
            time.sleep(fast.warmup)
            cluster.network.set(1, 1, slower=slow, by_ms=SLOWER_MS)
            point = _figures(finish(process))
            points.append({"slow": which, **point, "members": members, "slow_node": slow, "members_after": _members(cluster)})
    return {"points": points, "seconds": fast.slow_seconds}


def failover(variant, directory, sizes):
    """The leader is killed while four producers append 1,000 lines a second, fast and with acks=all in turn. Whatever
    was acknowledged must be there once and in its producer's order."""
    fast, kills = Sizes(sizes.quick), []
    with _started(variant, directory, 3) as cluster:
        cluster.network.set(1, 1)
        for number in range(fast.kills):
            for mode in ("fast", "all"):
                topic = f"kill-{mode}-{number}"
                _create(cluster, topic)
                kills.append({"mode": mode, **_killed(cluster, topic, mode)})
    return {"kills": kills, "d": 1, "x": 1}


def _killed(cluster, topic, mode):
    producers = [Producer(cluster, topic, mode, f"{name}-") for name in range(PRODUCERS)]
    over = threading.Event()
    feeder = threading.Thread(target=_feed, args=(producers, over))
    feeder.start()
    try:
        time.sleep(AFTER_START_S)
        victim = leader(cluster, topic)
        survivors = [broker for broker in cluster.brokers if broker is not victim]
        killed = time.monotonic()
        victim.kill9()
        takeover = _watched(survivors, topic, killed)
        time.sleep(max(0, killed + DOWN_S - time.monotonic()))
        victim.restart()
        time.sleep(AFTER_START_S)
    finally:
        over.set()
        feeder.join()
        for producer in producers:
            producer.end()
    times = sorted(at for producer in producers for at, _ in producer.acked)
    gaps = [(later - earlier, later) for earlier, later in zip(times, times[1:])]
    return {
        "pause_ms": round(max(gap for gap, at in gaps if at > killed) * 1000, 1),
        # From the second second on: the first connects, and opens the stretch.
        "pause_before_ms": round(max(gap for gap, at in gaps if times[0] + 1 < at < killed) * 1000, 1),
        **takeover,
        **_judge(cluster, topic, producers),
    }


def _watched(survivors, topic, killed):
    """When a survivor said that it leads, and when it first took a record: without the pauses of a client between its
    attempts, and past the relays."""
    seen = {}
    threads = [threading.Thread(target=_watch, args=(broker, topic, killed + WATCHED_S, seen)) for broker in survivors]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {name: round((at - killed) * 1000, 1) for name, at in seen.items()}


def _watch(broker, topic, until, seen):
    node, request = int(broker.settings["node.id"]), produce_request(topic)
    wanted = {"Topics": [{"Name": topic}], "AllowAutoTopicCreation": False}
    with connect(f"{far.HOST}:{broker.port}") as connection:
        while "served_ms" not in seen and time.monotonic() < until:
            [partition] = connection.call("Metadata", 12, wanted)["Topics"][0]["Partitions"]
            if partition["LeaderId"] == node:
                seen.setdefault("elected_ms", time.monotonic())
                if append_once(broker.port, request) == 0:
                    seen["served_ms"] = time.monotonic()
            time.sleep(LOOK_EVERY_S)


class Producer:
    """A process of `duramen produce`, which appends each line by itself and tells when that is acknowledged."""

    def __init__(self, cluster, topic, mode, prefix):
        acks = ["--fast"] if mode == "fast" else ["--idempotent", "--acks", mode]
        self.prefix = prefix
        self.fed = 0
        # When, and how many records were known to be there then.
        self.acked = []
        # Those of which the offset was not known yet: they were complete before their commit.
        self.early = 0
        self.process = subprocess.Popen(
            [brokers.DURAMEN_BIN, "produce", topic, *acks, "--each", "--quiet", "--partition", "0", "--batch-bytes", "1", "--linger-ms", "0",
             "--retry-seconds", "60", "--bootstrap", cluster.bootstrap],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.thread = threading.Thread(target=self._hear)
        self.thread.start()

    def feed(self):
        """A process that has failed tells why when it is ended."""
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(f"{self.prefix}{self.fed}\n")
            self.process.stdin.flush()
            self.fed += 1

    def _hear(self):
        known = 0
        for line in self.process.stdout:
            told = json.loads(line)
            known += told["records"]
            self.acked.append((time.monotonic(), known))
            self.early += told["offset"] is None

    def end(self):
        """Waits until all is acknowledged, which it may not be if the process fails."""
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.thread.join()
        self.failure = self.process.stderr.read().strip() if self.process.wait() else ""

    @property
    def acknowledged(self):
        return self.acked[-1][1] if self.acked else 0


def _feed(producers, over):
    """A line for one producer after the other, at a steady rate."""
    begun = time.monotonic()
    fed = 0
    while not over.wait(0.001):
        for fed in range(fed, int((time.monotonic() - begun) * LINES_PER_SECOND)):
            producers[fed % len(producers)].feed()


def _judge(cluster, topic, producers):
    """Compares the whole log with what was acknowledged: the first so many lines of each producer."""
    command = [brokers.DURAMEN_BIN, "consume", topic, "--bootstrap", cluster.bootstrap]
    lines = subprocess.run(command, check=True, capture_output=True, text=True, timeout=brokers.LONGEST_COMMAND_S).stdout.split()
    lines = [line for line in lines if line != PROBE]
    counts = Counter(lines)
    lost = sum(f"{it.prefix}{number}" not in counts for it in producers for number in range(it.acknowledged))
    numbers = [[int(line.removeprefix(it.prefix)) for line in lines if line.startswith(it.prefix)] for it in producers]
    return {
        "lines": sum(it.fed for it in producers),
        "acknowledged": sum(it.acknowledged for it in producers),
        "before_commit": sum(it.early for it in producers),
        "lost": lost,
        "twice": len(lines) - len(counts),
        "out_of_order": sum(later < earlier for each in numbers for earlier, later in zip(each, each[1:])),
        "failures": [it.failure for it in producers if it.failure],
    }


def throughput(variant, directory, sizes):
    """Bulk over a client's wire that is the limit, then as much as the machine gives; and what nodes use for it."""
    fast, points = Sizes(sizes.quick), []
    with _started(variant, directory, 3) as cluster:
        cluster.network.set(1, 1)
        time.sleep(CHOSEN_S)
        for number in range(fast.passes):
            for rate, mode in WIRES:
                cluster.network.set_wire(rate)
                until = ("--seconds", fast.bulk_seconds) if rate else ("--messages", fast.bulk_bytes // BULK_BYTES)
                point = _bulk(cluster, f"bulk-{mode}-{rate}-{number}", mode, until)
                points.append({"rate": rate, "pass": number, "mode": mode, **point})
    return {"points": points}


def _bulk(cluster, topic, mode, until):
    """Into a topic of its own, which is memory and goes at the end."""
    _create(cluster, topic)
    before = _cpu_seconds(cluster)
    result = duramen(
        cluster, "bench", "produce", "--topic", topic, "--size", BULK_BYTES, "--batch", BULK_BATCH, *MODES[mode], *until
    )
    used = _cpu_seconds(cluster) - before
    megabytes = result["total"] * BULK_BYTES / 1e6
    members = len(_members(cluster, topic))
    delete_topic(cluster, topic)
    return {
        "megabytes_per_second": result["megabytes_per_second"],
        "node_cpu_ms_per_mb": round(used * 1000 / megabytes, 2),
        # The client counts the first batches too, and `total` only those of the measured time.
        "fast_share": None if mode != "fast" else min(1, round(result["fast_batches"] * BULK_BATCH / result["total"], 4)),
        "members": members,
    }


def _started(variant, directory, nodes):
    """A cluster with a topic of one partition."""
    cluster = far.start(variant, directory, nodes)
    try:
        _create(cluster, TOPIC)
    except BaseException:
        cluster.__exit__()
        raise
    return cluster


def _create(cluster, topic):
    """Kafka may answer that a topic is made before its brokers know of it."""
    allowed = ("--config", "fast.append.enable=true") if cluster.kind == "duramen" else ()
    duramen(cluster, "topic", "create", topic, "--partitions", 1, *allowed)
    leader(cluster, topic)


def _warm_up(cluster, fast):
    """JVMs compile while they run; give them the time to."""
    if cluster.kind == "kafka":
        duramen(
            cluster, "bench", "append", "--appenders", 16, "--connections", 16, "--size", MESSAGE_BYTES, "--topic", TOPIC,
            "--seconds", fast.jvm_warmup, "--warmup-seconds", 0,
        )  # fmt: skip


def _in_turn(cluster, fast, modes, delay, facts):
    return [
        {**facts, "pass": number, "mode": mode, **_append(cluster, mode, fast.seconds_at(delay), fast.warmup)}
        for number in range(fast.passes) for mode in modes
    ]  # fmt: skip


def _append_command(mode, seconds, warmup):
    return (
        "bench", "append", "--appenders", 1, "--connections", 1, "--size", MESSAGE_BYTES, "--topic", TOPIC,
        "--seconds", seconds, "--warmup-seconds", warmup, *MODES[mode],
    )  # fmt: skip


def _append(cluster, mode, seconds, warmup):
    before = _syncs(cluster)
    point = _figures(duramen(cluster, *_append_command(mode, seconds, warmup)))
    count, took = (after - earlier for after, earlier in zip(_syncs(cluster), before))
    return {**point, "sync_ms": round(took * 1000 / count, 3)} if count else point


def _figures(result):
    point = {"latency_us": result["latency_us"], "total": result["total"]}
    if "fast_batches" in result:
        point["fast_share"] = round(result["fast_batches"] / result["total"], 4)
    return point


def _syncs(cluster):
    """Of all nodes of Duramen: how many syncs, and their seconds."""
    if cluster.kind != "duramen":
        return 0, 0
    metrics = [broker.metrics() for broker in cluster.brokers]
    return tuple(sum(it[f"sync_seconds_{what}"] for it in metrics) for what in ("count", "sum"))


def _members(cluster, topic=TOPIC):
    """Those of the stretch of a topic's one partition, the leader first. A slow node may be a fault, which the command
    tells by its exit code, too."""
    said, _ = duramen_begin(cluster, "cluster", "status").communicate(timeout=brokers.LONGEST_COMMAND_S)
    return next((it["members"] for it in json.loads(said)["stretches"] if it["topic"] == topic), [])


def _cpu_seconds(cluster):
    return sum(machine.cpu_seconds(broker.pid) for broker in cluster.brokers)


