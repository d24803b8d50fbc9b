"""The brokers that are compared, and the client that measures them."""

import functools
import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

BENCH = Path(__file__).resolve().parent
COMPAT = BENCH.parent / "compat"
sys.path.insert(0, str(COMPAT))
import broker as launcher  # noqa: E402

DURAMEN_BIN = os.environ.get("DURAMEN_BIN", str(BENCH.parent / "target/release/duramen"))

# No command of any scenario takes nearly as long; one that does is stuck.
LONGEST_COMMAND_S = 600

# What Kafka's own start script uses.
KAFKA_JVM = [
    "-Xmx1G",
    "-Xms1G",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
]

# Both durable, and Kafka as it comes. Duramen as it comes is durable, so it has one column only.
VARIANTS = {
    "duramen": ("duramen", {}),
    "kafka-durable": ("kafka", {"flush.messages": "1"}),
    "kafka": ("kafka", {}),
}
# Peers of queues alone; peers.py starts them.
PEERS = {
    "nats-always": ("nats", {"sync_interval": "always"}),
    "nats": ("nats", {}),
    "redis-always": ("redis", {"appendfsync": "always"}),
    "redis-everysec": ("redis", {"appendfsync": "everysec"}),
}
# What each syncs before it acknowledges an append.
SYNCS = {
    "duramen": "each append",
    "kafka-durable": "each append (flush.messages=1)",
    "kafka": "none (its default)",
    "nats-always": "each append (sync_interval=always)",
    "nats": "none (its default: every 2 minutes)",
    "redis-always": "each append (appendfsync=always)",
    "redis-everysec": "none (appendfsync=everysec)",
}
# Scenarios of fast appends have nodes of Duramen that share a real disk, too; far.py starts them.
SHARED_DISK = "duramen-shared-disk"


class MeasuredDuramen(launcher.Duramen):
    """Duramen with its metrics served, which tell how many syncs and checkpoints a figure spans."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.http = f"127.0.0.1:{launcher.free_port()}"
        # The same after each start, so that clients find it again.
        self.native_address = f"127.0.0.1:{launcher.free_port()}"

    def command(self):
        command = super().command()
        command[command.index("--native") + 1] = self.native_address
        return [*command, "--http", self.http]

    @property
    def native(self):
        return self.native_address

    def metrics(self):
        with urllib.request.urlopen(f"http://{self.http}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        return {
            match[1]: float(match[2])
            for match in re.finditer(r"^duramen_(\w+?)(?:_total)? ([0-9.e+-]+)$", text, re.MULTILINE)
        }


def start(variant, directory):
    kind, settings = VARIANTS[variant]
    if kind == "kafka":
        started = launcher.start("kafka", launcher.free_port(), directory, settings, jvm_options=KAFKA_JVM)
        started.metrics = dict
        return started
    started = MeasuredDuramen(launcher.free_port(), Path(directory), dict(settings), [], [])
    started.restart()
    return started


class SlowDuramen(MeasuredDuramen):
    """Duramen each of whose syncs takes longer, by its own hand.

    `strace --inject` would stop its threads at other system calls, too: at those of the threads that serve sockets it is most of
    what an append costs, and at those of the thread that syncs still a tenth of a round.
    """

    def command(self):
        _, *arguments = super().command()
        return [str(slow_binary()), *arguments]


@functools.cache
def slow_binary():
    """Builds it, in a directory of its own, unless DURAMEN_SLOW_SYNCS_BIN names one."""
    if made := os.environ.get("DURAMEN_SLOW_SYNCS_BIN"):
        return Path(made)
    target = BENCH.parent / "target/slow-syncs"
    build = ["cargo", "build", "--release", "--quiet", "-p", "duramen", "--features", "slow-syncs", "--target-dir", target]
    subprocess.run(build, cwd=BENCH.parent, check=True)
    return target / "release/duramen"


def start_slow(directory, delay_ms):
    slow_binary()
    wrapper = ["env", f"DURAMEN_SLOW_SYNC_US={delay_ms * 1000}"]
    started = SlowDuramen(launcher.free_port(), directory, {}, wrapper, [])
    started.restart()
    return started


def start_cluster(variant, directory):
    """Three brokers that are one cluster, with three replicas of everything."""
    kind, settings = VARIANTS[variant]
    kinds = {"duramen": MeasuredDuramen, "kafka": launcher.Kafka}
    return launcher.start_cluster(kind, directory, settings, KAFKA_JVM, kinds)


def log_files(broker, topic, partition=0):
    """The segments of a partition, wherever this kind of broker keeps them."""
    files = sorted(broker.data_dir.glob(f"**/{topic}-{partition}/*.log"))
    if not files:
        raise FileNotFoundError(f"no segments of {topic}-{partition} under {broker.data_dir}")
    return files


def directory_bytes(path):
    """Blocks taken, not lengths: preallocated files count as what they occupy."""
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            try:
                total += os.stat(os.path.join(folder, name)).st_blocks * 512
            except FileNotFoundError:
                pass  # The broker removed it meanwhile.
    return total


def duramen(broker, *arguments):
    """Runs a client command against a broker; answers its JSON."""
    return finish(duramen_begin(broker, *arguments))


def duramen_begin(broker, *arguments):
    command = [DURAMEN_BIN, *map(str, arguments), "--bootstrap", broker.bootstrap, "--output", "json"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process):
    try:
        out, err = process.communicate(timeout=LONGEST_COMMAND_S)
    except subprocess.TimeoutExpired:
        process.kill()
        raise RuntimeError(f"{' '.join(process.args)}: not done within {LONGEST_COMMAND_S} s") from None
    if process.returncode != 0:
        raise RuntimeError(f"{' '.join(process.args)}\n{err.strip()}")
    return json.loads(out)


def delete_topic(broker, topic):
    """Makes room; what a broker removes later in the background must not disturb the next scenario."""
    duramen(broker, "topic", "delete", topic)
    time.sleep(2 if VARIANTS["kafka"][0] == broker.kind else 0.5)
