"""What TLS and rules of access cost: the same reads with TLS and without, connections in a burst, and many rules."""

import contextlib
import json
import os
import select
import socket
import ssl
import statistics
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import machine
from brokers import COMPAT, DURAMEN_BIN, KAFKA_JVM, duramen, launcher

TOPIC = "sealed"
HOST = "127.0.0.1"
BATCH_BYTES, BATCHES = 1_000_000, 256
FETCH_MIB = (1, 8)
RULES, RULES_A_REQUEST = 10_000, 1_000
BURST = 500
PRODUCE, FETCH, API_VERSIONS, CREATE_ACLS = 0, 1, 18, 30
AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


def tls(_variant, directory, sizes):
    """Duramen and Kafka are up at once, and each is read in turn, with TLS and without, in short slices."""
    directory = Path(directory)
    made = directory / "certificates"
    subprocess.run([DURAMEN_BIN, "tls", "init", "--node", f"localhost,{HOST}", "--out", made], check=True, capture_output=True)
    trust = ssl.create_default_context(cafile=str(made / "ca.pem"))
    found = {}
    with contextlib.ExitStack() as stack:
        started = {kind: stack.enter_context(_start(kind, directory / kind, made)) for kind in ("duramen", "kafka")}
        for broker in started.values():
            _fill(broker)
        found["reads"] = _reads(started, made / "ca.pem", sizes)
        found["appends"] = _appends(started, made / "ca.pem", sizes)
        found["burst"] = {kind: _burst(broker, broker, trust, sizes) for kind, broker in started.items()}
        other = stack.enter_context(_start("duramen", directory / "other", made))
        found["burst"]["duramen, burst at another node"] = _burst(started["duramen"], other, trust, sizes)
    found["rules"] = _rules(directory, sizes)
    return found


def _start(kind, directory, made):
    port, sealed = launcher.free_port(), launcher.free_port()
    settings = {
        "listeners": f"PLAINTEXT://{HOST}:{port},SSL://{HOST}:{sealed}",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(made / "localhost.pem"),
    }
    broker = launcher.start(kind, port, directory, settings, jvm_options=KAFKA_JVM)
    broker.sealed = (HOST, sealed)
    return broker


# Frames by hand: a client that does nothing with what it gets.


def _frame(key, version, body):
    return struct.pack(">hhih", key, version, 7, -1) + body


def _text(text):
    return struct.pack(">h", len(text)) + text.encode()


class Client:
    """One connection."""

    def __init__(self, address, trust=None):
        plain = socket.create_connection(address, timeout=60)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = trust.wrap_socket(plain, server_hostname="localhost") if trust else plain
        self.buffer = memoryview(bytearray(1 << 20))

    def ask(self, frame):
        """Returns the bytes of the answer, which it drops."""
        self.socket.sendall(struct.pack(">i", len(frame)) + frame)
        (size,) = struct.unpack(">i", self._take(4))
        left = size
        while left:
            got = self.socket.recv_into(self.buffer, min(left, len(self.buffer)))
            assert got, "the broker closed the connection"
            left -= got
        return size

    def _take(self, count):
        taken = b""
        while len(taken) < count:
            more = self.socket.recv(count - len(taken))
            assert more, "the broker closed the connection"
            taken += more
        return taken

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()


def _address(broker):
    return HOST, broker.port


def _fill(broker):
    """The same batch many times: its bytes do not repeat within."""
    sys.path.insert(0, str(COMPAT / "wire"))
    from batch import batch

    duramen(broker, "topic", "create", TOPIC, "--partitions", 1)
    records = batch([os.urandom(BATCH_BYTES)])
    body = struct.pack(">hhii", -1, -1, 60_000, 1) + _text(TOPIC) + struct.pack(">iii", 1, 0, len(records)) + records
    with Client(_address(broker)) as client:
        for _ in range(BATCHES):
            client.ask(_frame(PRODUCE, 3, body))


def _command(broker, ca, *arguments):
    """Runs a command with TLS, or without if there is no authority."""
    if not ca:
        return duramen(broker, *arguments)
    command = [DURAMEN_BIN, *map(str, arguments), "--bootstrap", f"localhost:{broker.sealed[1]}", "--tls-ca", ca, "--output", "json"]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def _reads(started, ca, sizes):
    """For each broker, way and size: the medians of CPU a GB, of GB a second, and of the client's share of a core."""
    ways = [(kind, sealed, mib) for mib in FETCH_MIB for kind in started for sealed in (False, True)]
    rounds, passes = (3, 2) if sizes.quick else (7, 4)
    figures = {way: [] for way in ways}
    # The first round warms Kafka up.
    for number in range(rounds + 1):
        for way in ways:
            kind, sealed, mib = way
            broker = started[kind]
            cpu, read, took, client = machine.cpu_seconds(broker.pid), 0, 0, 0
            for _ in range(passes if number else 3 * passes):
                done = _command(broker, sealed and ca, "bench", "consume", "--topic", TOPIC, "--max-bytes", mib << 20)
                read, took, client = read + done["bytes"], took + done["seconds"], client + done["client_cpu_seconds"]
            if number:
                gb = read / 1e9
                figures[way].append(((machine.cpu_seconds(broker.pid) - cpu) / gb, gb / took, client / took))
    points = []
    for (kind, sealed, mib), taken in figures.items():
        cpu, rate, client = (statistics.median(it) for it in zip(*taken))
        costs = [cost for cost, *_ in taken]
        points.append({
            "broker": kind, "tls": sealed, "mib": mib, "cpu_s_a_gb": round(cpu, 3), "cpu_spread": [round(min(costs), 2), round(max(costs), 2)],
            "gb_a_second": round(rate, 3), "client_busy": round(client, 2),
        })  # fmt: skip
    return points


def _appends(started, ca, sizes):
    """Appends a second of 128 clients that wait for theirs, a connection each, and the broker's CPU an append: with TLS and without, in turn."""
    rounds, seconds = (3, 2) if sizes.quick else (7, 5)
    figures = {(kind, sealed): [] for kind in started for sealed in (False, True)}
    for number in range(rounds + 1):
        for (kind, sealed), taken in figures.items():
            broker = started[kind]
            cpu = machine.cpu_seconds(broker.pid)
            load = ["--appenders", 128, "--connections", 128, "--topic", "appended", "--seconds", seconds, "--warmup-seconds", 0]
            done = _command(broker, sealed and ca, "bench", "append", *load)
            if number:
                taken.append((done["appends_per_second"], (machine.cpu_seconds(broker.pid) - cpu) / (done["appends_per_second"] * seconds)))
    return [
        {
            "broker": kind,
            "tls": sealed,
            "appends_a_second": round(statistics.median(rate for rate, _ in taken)),
            "cpu_us_an_append": round(statistics.median(cost for _, cost in taken) * 1e6, 1),
        }
        for (kind, sealed), taken in figures.items()
    ]


def _burst(broker, target, trust, sizes):
    """The p99 of a client that asks for the versions of APIs: alone, and beside others that connect to `target` with TLS."""
    opened, failed = [], []

    def connect():
        for _ in range(BURST // 4):
            try:
                opened.append(Client(target.sealed, trust))
            except OSError as error:
                failed.append(str(error))

    def burst():
        threads = [threading.Thread(target=connect) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    alone, _ = _p99_us(broker, lambda: time.sleep(2 if sizes.quick else 5))
    beside, took = _p99_us(broker, burst)
    for client in opened:
        client.socket.close()
    assert not failed, failed[:3]
    return {"connections": len(opened), "seconds": round(took, 2), "p99_us_alone": alone, "p99_us_beside": beside}


def _p99_us(broker, meanwhile):
    """Asks in a process of its own, so that this one's interpreter does not hold it up; also returns how long the rest took."""
    (told, tell), (over, end) = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.close(end)
        took = []
        with Client(_address(broker)) as client:
            frame = _frame(API_VERSIONS, 0, b"")
            while not select.select([over], [], [], 0.0005)[0]:
                begun = time.monotonic()
                client.ask(frame)
                took.append(time.monotonic() - begun)
        took.sort()
        os.write(tell, f"{took[len(took) * 99 // 100] * 1e6:.0f}".encode())
        os._exit(0)
    begun = time.monotonic()
    try:
        meanwhile()
    finally:
        os.close(end)
    took = time.monotonic() - begun
    os.waitpid(child, 0)
    return int(os.read(told, 100)), took


def _rules(directory, sizes):
    """Appends a second beside the node's CPU an append, without rules and with many: both nodes are up, in turn."""
    ruled = {"authorizer.class.name": AUTHORIZER, "allow.everyone.if.no.acl.found": "true"}
    rounds, seconds = (3, 2) if sizes.quick else (7, 5)
    figures = {"none": [], "many": []}
    with contextlib.ExitStack() as stack:
        nodes = {}
        for name, settings in (("none", {}), ("many", ruled)):
            nodes[name] = stack.enter_context(launcher.start("duramen", launcher.free_port(), directory / f"rules-{name}", settings))
            duramen(nodes[name], "topic", "create", TOPIC, "--partitions", 1)
        _make_rules(nodes["many"])
        for _ in range(rounds):
            for name, node in nodes.items():
                cpu = machine.cpu_seconds(node.pid)
                done = duramen(node, "bench", "append", "--appenders", 128, "--connections", 128, "--topic", TOPIC, "--seconds", seconds, "--warmup-seconds", 0)
                figures[name].append((done["appends_per_second"], (machine.cpu_seconds(node.pid) - cpu) / (done["appends_per_second"] * seconds)))
    rates = {name: round(statistics.median(rate for rate, _ in taken)) for name, taken in figures.items()}
    cpu = {name: round(statistics.median(cost for _, cost in taken) * 1e6, 1) for name, taken in figures.items()}
    return {"rules": RULES, "appends_a_second": rates, "cpu_us_an_append": cpu}


def _make_rules(node):
    """One lets the appenders in, and the others are about other topics, with beginnings of names among them."""
    topic, literal, prefixed, write, allow = 2, 3, 4, 4, 3
    rules = [(TOPIC, literal, "User:ANONYMOUS")]
    rules += [(f"topic-{number}-", (literal, prefixed)[number % 2], f"User:client-{number % 100}") for number in range(RULES - 1)]
    with Client(_address(node)) as client:
        for at in range(0, RULES, RULES_A_REQUEST):
            part = rules[at : at + RULES_A_REQUEST]
            made = [
                struct.pack(">b", topic) + _text(name) + struct.pack(">b", pattern) + _text(who) + _text("*") + struct.pack(">bb", write, allow)
                for name, pattern, who in part
            ]
            client.ask(_frame(CREATE_ACLS, 1, struct.pack(">i", len(made)) + b"".join(made)))
