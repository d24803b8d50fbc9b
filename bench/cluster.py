"""Three brokers that are one cluster, three replicas of everything, `min.insync.replicas=2`, durable on all: one function a
scenario. The brokers and the client share this machine, so figures say how the two compare, not what a cluster gives."""

import json
import os
import re
import signal
import subprocess
import threading
import time
from contextlib import contextmanager, nullcontext

import machine
from brokers import BENCH, delete_topic, duramen, duramen_begin, finish
from scenarios import APPEND_BYTES, APPENDERS, BULK, create

# The second is more than durable Kafka takes, one record a batch; so there is a first, at which both are measured.
RATES, MESSAGE_BYTES = (1_000, 10_000), 1024
CLIENT_IS_THERE_S = 1
# Each sync of a slow disk takes so much longer.
SLOW_SYNC_MS = int(os.environ.get("SLOW_SYNC_MS", "100"))
# A broker with such a disk may know of a topic so much later.
KNOWN_WITHIN_S = 60
# A slow follower gets this much of each second, in pieces of a twentieth.
SLOW_SHARE = 0.2


def measured(cluster, work):
    """Runs `work` and adds what the three brokers used for it."""
    before = [machine.cpu_seconds(broker.pid) for broker in cluster.brokers]
    result = work()
    after = [machine.cpu_seconds(broker.pid) for broker in cluster.brokers]
    result["broker_cpu_seconds"] = round(sum(after) - sum(before), 2)
    return result


def append(cluster, sizes, topic, connections, partitions):
    return measured(
        cluster,
        lambda: duramen(
            cluster, "bench", "append", "--appenders", APPENDERS, "--connections", connections, "--size", APPEND_BYTES,
            "--topic", topic, "--partitions", partitions, "--seconds", sizes.seconds, "--warmup-seconds", sizes.warmup,
        ),
    )  # fmt: skip


def warm_up(cluster, sizes):
    """Three JVMs compile while they run; give them the time to."""
    if cluster.kind == "kafka":
        create(cluster, "warm-up", 12)
        duramen(
            cluster, "bench", "append", "--appenders", APPENDERS, "--connections", 16, "--topic", "warm-up", "--partitions", 12,
            "--seconds", sizes.jvm_warmup, "--warmup-seconds", 0,
        )  # fmt: skip


def group_commit(cluster, sizes):
    """128 appenders of 2 KiB, each waiting for its ack, over more and more connections; one partition."""
    warm_up(cluster, sizes)
    create(cluster, "group-commit", 1)
    return {"points": [append(cluster, sizes, "group-commit", count, 1) for count in sizes.connections]}


def partitions(cluster, sizes):
    """The same appenders, a connection each, over more and more partitions."""
    warm_up(cluster, sizes)
    points = []
    for count in sizes.cluster_partitions:
        topic = f"wide-{count}"
        create(cluster, topic, count)
        points.append(append(cluster, sizes, topic, APPENDERS, count))
        delete_topic(cluster, topic)
    return {"points": points}


def latency(cluster, sizes):
    """Records of 1 KiB at a steady rate, each from when it was due to its ack: all well, one follower frozen, one slow."""
    warm_up(cluster, sizes)
    points = []
    for rate in RATES:
        topic = f"steady-{rate}"
        create(cluster, topic, 1)
        follower = next(broker for broker in cluster.brokers if broker is not leader(cluster, topic))
        for name, disturbance in (("well", nullcontext), ("frozen", _frozen), ("slow", _slow)):
            point = _steady(cluster, topic, rate, sizes.disturbed, lambda disturbance=disturbance: disturbance(follower))
            points.append({"rate": rate, "while": name, **point})
            time.sleep(sizes.disturbed)  # it catches up
        delete_topic(cluster, topic)
    return {"points": points}


def _steady(cluster, topic, rate, seconds, disturbance):
    """The disturbance begins when the client is there: it asks the controller, which may be the one that is frozen."""

    def run():
        process = duramen_begin(
            cluster, "bench", "tail", "--topic", topic, "--consumers", 0, "--rate", rate, "--size", MESSAGE_BYTES,
            "--seconds", seconds, "--warmup-seconds", 2 * CLIENT_IS_THERE_S,
        )  # fmt: skip
        time.sleep(CLIENT_IS_THERE_S)
        with disturbance():
            return finish(process)["append_us"]

    try:
        return measured(cluster, run)
    except RuntimeError as error:
        if "nothing was acknowledged" not in str(error):
            raise
        return {"behind": True}  # what it acknowledged was due before the measured time


def slow_disk(cluster, sizes):
    """The same, at the first rate: all well, and then to a partition that a broker is to lead whose disk is slow."""
    warm_up(cluster, sizes)
    create(cluster, "well", 1)
    points = [{"while": "well", **_steady(cluster, "well", RATES[0], sizes.disturbed, nullcontext)}]
    broker = cluster.brokers[0]
    broker.stop()
    syncs = "fdatasync,fsync"
    broker.wrapper = [
        "strace", "-D", "-f", "--seccomp-bpf", "-o", "/dev/null", "-e", f"trace={syncs}",
        "-e", f"inject={syncs}:delay_enter={SLOW_SYNC_MS}ms",
    ]  # fmt: skip
    broker.restart()
    for number in range(30):  # chance says which broker is the first
        topic = f"slow-{number}"
        create(cluster, topic, 1)
        if _partition(cluster, topic)["replicas"][0] == 1:
            break
    else:
        raise RuntimeError("no topic is placed so that the broker with the slow disk is to lead it")
    point = _steady(cluster, topic, RATES[0], sizes.disturbed, nullcontext)
    points.append({"while": "slow", "sync_ms": SLOW_SYNC_MS, "led_by_it": leader(cluster, topic) is broker, **point})
    return {"points": points}


@contextmanager
def _frozen(broker):
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(broker.pid, signal.SIGCONT)


@contextmanager
def _slow(broker):
    """Stops and continues it all the time."""
    over = threading.Event()

    def run():
        while not over.is_set():
            with _frozen(broker):
                time.sleep((1 - SLOW_SHARE) / 20)
            time.sleep(SLOW_SHARE / 20)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def failover(cluster, sizes):
    """The longest time without an ack that a steady producer sees while the leader of its partition is killed."""
    warm_up(cluster, sizes)
    create(cluster, "failover", 1)
    gaps = []
    for _ in range(sizes.kills):
        producer = subprocess.Popen(
            [_python(), BENCH / "steady_producer.py", cluster.bootstrap, "failover"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        time.sleep(3)
        victim = leader(cluster, "failover")
        victim.kill9()
        time.sleep(12)  # Kafka's controller waits 9 s for a broker's session to end
        victim.restart()
        time.sleep(5)
        out, _ = producer.communicate("", timeout=120)
        gaps.append(json.loads(out))
    return {"kills": gaps}


def _python():
    return os.environ.get("DURAMEN_CACHE", os.path.expanduser("~/.cache/duramen")) + "/venv/bin/python"


def network(cluster, sizes):
    """Bytes between brokers for each byte of payload: bulk, and small appends that wait for their acks."""
    create(cluster, "bulk", 3)
    result = {}
    with between_brokers(cluster) as sent:
        produced = duramen(
            cluster, "bench", "produce", "--topic", "bulk", "--partitions", 3, "--messages", sizes.network_bytes // 1000, *BULK
        )
        time.sleep(2)  # what followers lack yet
    result["bulk"] = {"bytes_per_payload_byte": round(sent["bytes"] / (produced["total"] * 1000), 3)}
    create(cluster, "small", 1)
    with between_brokers(cluster) as sent:
        appended = append(cluster, sizes, "small", 16, 1)
    payload = appended["total"] * APPEND_BYTES * (sizes.seconds + sizes.warmup) / sizes.seconds
    result["small"] = {"bytes_per_payload_byte": round(sent["bytes"] / payload, 3)}
    return result


def idle(cluster, sizes):
    """What many partitions that nobody uses cost: CPU of all brokers, and bytes between them."""
    made = create(cluster, "idle", sizes.idle_partitions)
    # Elections come first, and groups sleep two seconds after the last thing that they had to do.
    time.sleep(max(sizes.disturbed, 6))
    before = [machine.cpu_seconds(broker.pid) for broker in cluster.brokers]
    with between_brokers(cluster) as sent:
        time.sleep(sizes.disturbed)
    cpu = sum(machine.cpu_seconds(broker.pid) for broker in cluster.brokers) - sum(before)
    return {
        "partitions": sizes.idle_partitions,
        "create_s": made["create_s"],
        "cpu_percent": round(cpu / sizes.disturbed * 100, 1),
        "bytes_per_second": round(sent["bytes"] / sizes.disturbed),
        "memory_mib": round(sum(machine.memory_mib(broker.pid) for broker in cluster.brokers), 1),
    }


def catch_up(cluster, sizes):
    """How fast a follower gets what was written while it was stopped, and all of it once more when its disk was lost."""
    create(cluster, "behind", 1)
    follower = next(broker for broker in cluster.brokers if broker is not leader(cluster, "behind"))
    follower.stop()
    duramen(cluster, "bench", "produce", "--topic", "behind", "--messages", sizes.network_bytes // 1000, *BULK)
    wanted = max(_log_bytes(broker, "behind") for broker in cluster.brokers)
    result = _caught_up(follower, wanted)
    follower.stop()
    follower.wipe()
    return {**result, "wiped": _caught_up(follower, wanted)}


def _caught_up(follower, wanted):
    had = _log_bytes(follower, "behind")
    begun = time.monotonic()
    follower.restart()
    started = time.monotonic()
    while _log_bytes(follower, "behind") < wanted:
        if time.monotonic() > started + 300:
            raise RuntimeError(f"the follower has {_log_bytes(follower, 'behind')} of {wanted} bytes after 300 s")
        time.sleep(0.05)
    seconds = time.monotonic() - begun
    return {"start_s": round(started - begun, 2), "seconds": round(seconds, 2), "bytes": wanted - had,
            "megabytes_per_second": round((wanted - had) / seconds / 1e6, 1)}  # fmt: skip


def _log_bytes(broker, topic):
    return sum(path.stat().st_size for path in broker.data_dir.glob(f"**/{topic}-0/*.log"))


def _partition(cluster, topic):
    """The broker that is asked may have yet to learn of it."""
    deadline = time.monotonic() + KNOWN_WITHIN_S
    while True:
        try:
            return duramen(cluster, "topic", "describe", topic)[0]["partitions"][0]
        except RuntimeError as error:
            if "there is no topic" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def leader(cluster, topic):
    """The broker that leads the first partition."""
    return cluster.brokers[_partition(cluster, topic)["leader"] - 1]


@contextmanager
def between_brokers(cluster):
    """Counts what brokers send to each other, on connections that are there at the end: none of them is short-lived."""
    counted = {}
    before = _sent(cluster)
    yield counted
    counted["bytes"] = sum(count - before.get(way, 0) for way, count in _sent(cluster).items())


def _sent(cluster):
    """Bytes sent so far, for each connection with a broker at both ends."""
    pids = {str(broker.pid) for broker in cluster.brokers}
    lines = subprocess.run(["ss", "-tinpOH"], check=True, capture_output=True, text=True).stdout.splitlines()
    sent = {}
    for line in lines:
        owner, count = re.search(r"pid=(\d+)", line), re.search(r"bytes_sent:(\d+)", line)
        if owner and owner[1] in pids:
            here, there = line.split()[3:5]
            sent[_address(here), _address(there)] = int(count[1]) if count else 0
    return {way: count for way, count in sent.items() if way[::-1] in sent}


def _address(text):
    """Java's sockets are IPv6 ones."""
    return text.replace("[::ffff:", "").replace("]", "")
