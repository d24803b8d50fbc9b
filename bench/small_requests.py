"""What a small request costs: brokers beside a bare server, which does as little as a durable broker can."""

import contextlib
import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import brokers
from brokers import BENCH, LONGEST_COMMAND_S, duramen

TOPIC = "small"
MANY = 1000
# The first is the limit that the others are compared with.
BARE = {"bare": "both", "bare-journal": "journal", "bare-nothing": "nothing"}
KAFKA_WARM_UP_S = 20


@functools.cache
def binary():
    """Builds the bare server and its load client, unless BARE_BIN names them."""
    if made := os.environ.get("BARE_BIN"):
        return made
    subprocess.run(["cargo", "build", "--release", "--quiet", "-p", "bare"], cwd=BENCH.parent, check=True)
    return str(BENCH.parent / "target/release/bare")


def small_requests(variant, directory, sizes):
    """128 appenders over 1 to 128 connections: all servers are up at once, and loaded in turn, in short slices."""
    directory = Path(directory)
    slices = ("--slices", 3, "--slice-seconds", 0.3) if sizes.quick else ("--slices", 9, "--slice-seconds", 0.5)
    with contextlib.ExitStack() as stack:
        targets = {name: stack.enter_context(_bare(directory / name, store)) for name, store in BARE.items()}
        started = {name: stack.enter_context(brokers.start(name, directory / name)) for name in brokers.VARIANTS}
        for name, broker in started.items():
            duramen(broker, "topic", "create", TOPIC, "--partitions", 1)
            if broker.kind == "kafka":
                seconds = 2 if sizes.quick else KAFKA_WARM_UP_S
                duramen(broker, "bench", "append", "--connections", 16, "--topic", TOPIC, "--seconds", seconds, "--warmup-seconds", 0)
            targets[name] = (broker.bootstrap, broker.pid)
        found = {"points": _load(targets, TOPIC, *slices)}
        with _busy_loop():
            found["beside_a_busy_loop"] = _load(targets, TOPIC, "--connections", "8,128", *slices)
        some = {name: targets[name] for name in ("bare", "duramen")}
        duramen(started["duramen"], "topic", "create", "many", "--partitions", MANY)
        found["many_partitions"] = _load(some, "many", "--connections", 128, "--partitions", MANY, *slices)
    return found


def _load(targets, topic, *options):
    """Figures of all servers, in the order of the targets."""
    names = [f"--target={name}={address}/{topic}/{pid}" for name, (address, pid) in targets.items()]
    command = [binary(), "load", *names, *map(str, options)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST_COMMAND_S)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}\n{done.stderr.strip()}")
    return json.loads(done.stdout)


@contextlib.contextmanager
def _bare(directory, store):
    """A bare server's address and process id."""
    command = [binary(), "serve", "--directory", str(directory), "--store", store]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        port = process.stdout.readline().split()[-1]
        yield f"127.0.0.1:{port}", process.pid
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def _busy_loop():
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()
