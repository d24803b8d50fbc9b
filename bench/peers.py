"""Peers of Duramen's queues: NATS JetStream and Redis, through the interface of compat/broker.py, and the load on them."""

import functools
import json
import re
import socket
import subprocess
import time
import urllib.request
from pathlib import Path

from brokers import BENCH, launcher

# Largest atomic batch; peers/nats.go has the same number.
ATOMIC_BATCH_MAX = 10_000
# More than the readers that wait, each of which has a connection of its own.
REDIS_CLIENTS = 20_000


class Missing(Exception):
    """A peer, or a tool of its, that this machine has not. The run goes on without it."""


@functools.cache
def _built():
    """The directory of the programs, and what could not be had."""
    run = subprocess.run([BENCH / "peers/build.sh"], capture_output=True, text=True)
    return Path(run.stdout.split("\n")[0]), run.stderr.strip()


def program(name):
    directory, said = _built()
    if not (directory / name).exists():
        raise Missing(f"{name} is missing: {said or 'bench/peers/build.sh made none'}")
    return str(directory / name)


class Nats(launcher.Broker):
    """One server of JetStream, alone or in a cluster."""

    kind = "nats"

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.binary = program("nats-server")
        self.monitor = launcher.free_port()
        self.name = self.data_dir.name
        self.cluster = ""
        self.config = self.data_dir.with_name(self.data_dir.name + ".conf")

    @property
    def version(self):
        return subprocess.check_output([self.binary, "--version"], text=True).strip()

    def command(self):
        lines = "\n".join(f"  {name}: {value}" for name, value in self.settings.items())
        self.config.write_text(
            f'server_name: "{self.name}"\nlisten: "{self.bootstrap}"\nhttp: "{launcher.HOST}:{self.monitor}"\n'
            f'jetstream {{\n  store_dir: "{self.data_dir}"\n  limits {{ batch {{ max_msgs: {ATOMIC_BATCH_MAX} }} }}\n{lines}\n}}\n'
            f"{self.cluster}"
        )
        return [self.binary, "-c", str(self.config)]

    def wait_until_ready(self):
        _wait(self, lambda: _get(self.monitor, "healthz"))

    def metrics(self):
        return {}


class Redis(launcher.Broker):
    """One server of Redis, which appends each command to a file."""

    kind = "redis"

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.binary = program("redis-server")

    @property
    def version(self):
        text = subprocess.check_output([self.binary, "--version"], text=True)
        return "redis " + re.search(r"v=(\S+)", text)[1]

    def command(self):
        self.data_dir.mkdir(exist_ok=True)
        settings = {
            "port": self.port, "bind": launcher.HOST, "dir": self.data_dir, "appendonly": "yes", "save": "", "daemonize": "no",
            "maxclients": REDIS_CLIENTS, **self.settings,
        }  # fmt: skip
        return [self.binary, *(word for name, value in settings.items() for word in (f"--{name}", str(value)))]

    def wait_until_ready(self):
        _wait(self, lambda: _ping(self.port))

    def metrics(self):
        return {}


KINDS = {"nats": Nats, "redis": Redis}


def start(kind, directory, settings):
    program("peers")
    server = KINDS[kind](launcher.free_port(), Path(directory), dict(settings), [], [])
    server.restart()
    return server


def start_cluster(kind, directory, settings):
    """Three servers of NATS that are one cluster."""
    if kind != "nats":
        raise Missing("Redis replicates without a majority: three nodes of it promise no more than one")
    program("peers")
    ports = [launcher.free_port() for _ in range(launcher.THREE)]
    routes = ", ".join(f'"nats-route://{launcher.HOST}:{port}"' for port in ports)
    servers = []
    for node, port in enumerate(ports, 1):
        server = Nats(launcher.free_port(), Path(directory) / f"node-{node}", dict(settings), [], [])
        server.cluster = f'cluster {{\n  name: "three"\n  listen: "{launcher.HOST}:{port}"\n  routes: [{routes}]\n}}\n'
        servers.append(server)
    cluster = launcher.Cluster(servers)
    for server in servers:
        server.spawn()
    for server in servers:
        server.wait_until_ready()
    return cluster


def leader(cluster, stream):
    """The server that leads a stream of NATS."""
    for server in cluster.brokers:
        told = json.loads(_get(server.monitor, "jsz?accounts=true&streams=true") or "{}")
        for account in told.get("account_details", []):
            for it in account.get("stream_detail", []):
                if it["name"] == stream and it.get("cluster", {}).get("leader"):
                    return next(each for each in cluster.brokers if each.name == it["cluster"]["leader"])
    raise RuntimeError(f"no server leads the stream {stream}")


def load_command(broker, command):
    """What peers/ is called with for a command on this server, or these; on Duramen by its native API."""
    servers = ",".join(each.native if broker.kind == "duramen" else each.bootstrap for each in broker.brokers)
    return [program("peers"), command, "--peer", broker.kind, "--servers", servers]


def _wait(server, is_ready):
    deadline = time.monotonic() + server.READY_TIMEOUT_S
    while not is_ready():
        if server.process.poll() is not None:
            raise launcher.BrokerFailed(f"{server.kind} ended with {server.process.returncode}\n{server.log_tail()}")
        if time.monotonic() > deadline:
            server.kill9()
            raise launcher.BrokerFailed(f"{server.kind} did not answer within {server.READY_TIMEOUT_S} s\n{server.log_tail()}")
        time.sleep(0.02)


def _get(port, path):
    try:
        with urllib.request.urlopen(f"http://{launcher.HOST}:{port}/{path}", timeout=5) as answer:
            return answer.read().decode() if answer.status == 200 else None
    except OSError:
        return None


def _ping(port):
    try:
        with socket.create_connection((launcher.HOST, port), timeout=1) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(16).startswith(b"+PONG")
    except OSError:
        return False
